"""What the programs here share: how they end.

Not a benchmark itself.
"""

import sys
from pathlib import Path


def run(go, options):
    """Call go(options); the exit status: 0; 2: cannot be done, said in a line; 130: stopped."""
    name = Path(sys.argv[0]).stem
    try:
        go(options)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on from there, or begins anew", file=sys.stderr)
        return 130
    return 0
