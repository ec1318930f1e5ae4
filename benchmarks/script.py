"""What the programs here share: whose package they run, how they end, and how several share the work.

Not a benchmark itself.
"""

import os
import sys
from pathlib import Path

import annotated


def check_package():
    """Refuse to run another checkout's package: the record would name this one's commit."""
    here, runs = Path(__file__).resolve().parent.parent, Path(annotated.__file__).resolve().parent
    if runs.parent != here:
        raise ValueError(f"the package that runs is {runs}, not the one beside the program: set PYTHONPATH={here}")


def run(go, *options):
    """Call go(*options); the exit status: 0; 2: cannot be done, said in a line; 130: stopped."""
    name = Path(sys.argv[0]).stem
    try:
        check_package()
        go(*options)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on from there, or begins anew", file=sys.stderr)
        return 130
    return 0


def taken(path):
    """Whether another process that is alive has the work of this lock; if none has, it is ours from now on."""
    try:
        with path.open("x") as file:
            file.write(str(os.getpid()))
        return False
    except FileExistsError:
        owner = path.read_text()
        if owner.isdigit() and Path(f"/proc/{owner}").exists():
            return True
        path.unlink(missing_ok=True)  # of a process that was killed
        return taken(path)
