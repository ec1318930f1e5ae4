"""The command line of chapter 13 (its code is appendix H): `python -m annotated --help`."""

import sys


def run() -> int:
    """The exit status of the command line, also as the installed program `annotated`."""
    try:
        from annotated.cli import main  # here, so that an interrupt of this import leaves no traceback either

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
