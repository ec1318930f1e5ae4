"""The command line of chapter 13: `python -m annotated --help`."""

import sys

from annotated.cli import main

if __name__ == "__main__":
    sys.exit(main())
