"""What the programs here share: whose package they run, how they end, how several share the work, and a few helpers.

Not a benchmark itself.
"""

import math
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch

import annotated
from annotated.files import file_lock
from annotated.records import Record, _check_same
from annotated.training import list_checkpoints


def check_package():
    """Refuse to run another checkout's package: the record would name this one's commit."""
    here, runs = Path(__file__).resolve().parent.parent, Path(annotated.__file__).resolve().parent
    if runs.parent != here:
        raise ValueError(f"the package that runs is {runs}, not the one beside the program: set PYTHONPATH={here}")


def cannot_be_done(error):
    """Whether an error says what cannot be done here; any other is a mistake of ours, and needs its traceback."""
    if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        signs = "allocate memory", "not enough memory"  # torch on Unix, on Windows
        return any(sign in str(error) for sign in signs)
    limits = FloatingPointError, MemoryError, torch.OutOfMemoryError
    return isinstance(error, (ValueError, OSError, ImportError, *limits))


def run(go, *options):
    """Call go(*options); the exit status: 0; 2: cannot be done, said in a line; 130: stopped."""
    name = Path(sys.argv[0]).stem
    try:
        check_package()
        go(*options)
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on from there, or begins anew", file=sys.stderr)
        return 130
    except Exception as error:
        if not cannot_be_done(error):
            raise
        print(f"{name}: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def alone(path):
    """Whether the work of this lock is ours: no other process gets True until `with` ends, or this process does.

    The system keeps the lock, not the file, so that nothing is left of a process that was killed. Who gets True must
    still look whether the work is done: another may have ended it just before.
    """
    ours = True
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(path, wait=False))
        except ValueError:  # another process has it
            ours = False
        try:
            yield ours
        finally:
            if ours:
                with suppress(OSError):  # Windows removes no open file
                    path.unlink()


def check_unfinished(folder, work):
    """Refuse to train for a record that is finished and whose checkpoints, in work, are gone: ValueError."""
    if Record(folder).scores and not list_checkpoints(work):
        gone = f"{folder} is finished, and {work} has no checkpoint to go on from"
        raise ValueError(f"{gone}: choose another --out")


def begin(folder, work, free=(), **what):
    """`Record.begin` of a training whose checkpoints are in work; where there are none it begins anew, as the training.

    The work folder has a record of its own, or its checkpoints could be taken for those of another run.
    """
    lost = not list_checkpoints(work)
    if (folder / "run.json").exists():
        _check_same(folder, free, **what)
    Record.begin(work, free, **what)
    record = Record.begin(folder, free, anew=lost, **what)
    record.before = {}  # a failure puts nothing back: what stood there was of a training that is gone
    return record


def encode_pairs(pairs, vocabulary):
    """Sentence pairs as identifiers."""
    return [(vocabulary.encode(source), vocabulary.encode(target)) for source, target in pairs]


def best_of(tried):
    """The rate, a text there, with the least loss; None is that of a training that diverged. If all did: the lowest."""
    return float(min(tried, key=lambda rate: (math.inf if tried[rate] is None else tried[rate], float(rate))))


def weights(model):
    """How many a model has."""
    return sum(p.numel() for p in model.parameters())


def rounded(numbers, digits):
    """Named numbers with so many decimals."""
    return {name: round(value, digits) for name, value in numbers.items()}


def slug(*words):
    """What a run is called, as the name of a file."""
    return "-".join(map(str, words)).replace(" ", "-").replace("=", "-")
