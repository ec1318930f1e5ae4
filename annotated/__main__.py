"""The command line of chapter 13: `python -m annotated --help`."""

import sys

if __name__ == "__main__":
    try:
        from annotated.cli import main  # here, so that an interrupt of this import leaves no traceback either

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
