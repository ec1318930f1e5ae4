"""Training.

Generated from book/10-training.md by tools/tangle.py: edit the chapter, not this file.
"""

import errno
import json
import math
import os
import shutil
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import Tensor, nn
from torch.random import fork_rng
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.files import _check_fields, _Messages, _put_back, atomic_write, file_lock, fsync, read_json, sha256_of
from annotated.optimization import label_smoothed_loss, learning_rate, optimizer

__all__ = [
    "update",
    "Recipe",
    "list_checkpoints",
    "save_checkpoint",
    "load_checkpoint",
    "Run",
    "TrainingBackend",
    "train",
    "average",
]


def update(
    model: nn.Module, adam: torch.optim.Optimizer, batches: Sequence[tuple[Tensor, Tensor]]
) -> tuple[Tensor, int]:
    """One update (section 5.3) from one or several batches, each token counting the same.

    Args:
        model: its config gives pad and, if the loss is to be smoothed, eps_ls.
        adam: the model's optimizer, its rate set.
        batches: source (B, S) and target (B, T + 1), best on the CPU, which counts tokens.

    Returns:
        The loss in nats a token, on the model's device, so that nothing waits, and the
        number of target tokens, without padding.

    Raises:
        ValueError: there is no target token.
        FloatingPointError: on a CPU, if the loss is not finite; the weights then stay.
    """
    config: Any = model.config
    pad = config.pad
    eps_ls = getattr(config, "eps_ls", 0.0)  # the recurrent baseline smooths nothing
    device = next(model.parameters()).device
    tokens = sum(int((target[:, 1:] != pad).sum()) for _, target in batches)
    if not tokens:
        raise ValueError("batches hold no target token to predict")
    total = torch.zeros((), device=device)
    adam.zero_grad()
    for batch in batches:
        source, target = (ids.to(device, non_blocking=True) for ids in batch)
        logits = model(source, target[:, :-1])  # (B, T, vocab)
        # The divisor is the whole update's: a short batch must not weigh its tokens more.
        loss = label_smoothed_loss(logits, target[:, 1:], eps_ls, pad, "sum") / tokens
        loss.backward()
        total = total + loss.detach()
    if device.type == "cpu" and not total.isfinite():
        raise FloatingPointError(f"the loss is {total:.3g}")
    adam.step()
    return total, tokens


def _check_recipe(recipe):
    """ValueError if a field makes no training."""
    counts = ("steps", "warmup", "source_tokens", "target_tokens", "accumulate")
    for name in (*counts, "evaluate_every", "save_every", "keep"):
        value = getattr(recipe, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")
    if not isinstance(recipe.seed, int) or not 0 <= recipe.seed < 2**43:
        most = "a whole number from 0 to 2**43 - 1"
        raise ValueError(f"seed must be {most}, got {recipe.seed!r}")
    for name in ("rate", "eps"):
        value = getattr(recipe, name)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be more than 0 and finite, got {value!r}")
    for name in ("beta1", "beta2"):
        value = getattr(recipe, name)
        if not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value!r}")
    if recipe.optimizer not in ("adam", "muon"):
        raise ValueError(f'optimizer must be "adam" or "muon", got {recipe.optimizer!r}')


@dataclass(frozen=True)
class Recipe:
    """What training varies (sections 5.1 to 5.3, 6.1); the paper's numbers are the defaults.

    Raises:
        ValueError: if a field makes no training; the message names the field.
    """

    steps: int = 100_000  # updates
    warmup: int = 4000
    rate: float = 1.0  # a factor on Eq. 3
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    source_tokens: int = 25_000  # of a batch, at most, padding included; see `Batches`
    target_tokens: int = 25_000
    accumulate: int = 1  # batches an update
    seed: int = 0  # of dropout; batches and first weights have seeds of their own
    evaluate_every: int = 1000  # updates
    save_every: int = 1000  # updates; the paper's checkpoints are 10 minutes apart
    keep: int = 5  # checkpoints; section 6.1 averages 5 for base and 20 for big
    optimizer: str = "adam"  # or "muon", of appendix O

    def __post_init__(self) -> None:
        _check_recipe(self)


def _read_later(value):
    """Begin to copy a number from its device; the function returned waits for it."""
    if not value.is_cuda:
        return lambda *_: value.item()
    copy = value.to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(value.device).record_event()
    return partial(_read_arrived, copy, arrived)


def _read_arrived(copy, arrived, signals=(), patience=math.inf):
    """Wait for a copy. After a signal, no longer than `patience` seconds: RuntimeError.

    A GPU that waits for a lost process never answers, and nobody could end this one.
    """
    asked = math.inf
    while not arrived.query():
        time.sleep(1e-4)
        if signals:
            asked = min(asked, time.monotonic())
            if time.monotonic() > asked + patience:
                raise RuntimeError("nccl: the GPU still waits for another process")
    return copy.item()


def _stream(batches, epoch=0, position=0):
    """Batch after batch, epoch after epoch, from (epoch, position) on; batches as in `train`.

    Yields source, target, and the (epoch, position) at which to go on after them.
    """
    while True:
        first = position
        for source, target in batches(epoch, position):
            position += 1
            yield source, target, (epoch, position)
        if position == first == 0:
            raise ValueError(f"epoch {epoch} has no batch: is the corpus empty?")
        if position == first and not any(True for _ in batches(epoch, first - 1)):
            raise ValueError(f"epoch {epoch} has no batch {first}: the checkpoint is damaged, "
                             "or of another corpus")
        epoch, position = epoch + 1, 0


def _step_of(checkpoint):
    """After how many updates a checkpoint was made."""
    return int(checkpoint.name)


def list_checkpoints(folder: Path | str) -> list[Path]:
    """The checkpoints in a training folder, oldest first; one half written is not seen."""
    found = Path(folder, "checkpoints").glob("[0-9]*")
    return sorted((path for path in found if path.name.isdecimal()), key=_step_of)


def _discard(checkpoint):
    """Remove a checkpoint, out of sight first, so that it is never seen in part."""
    away = checkpoint.with_name(f".{checkpoint.name}.part")
    checkpoint.rename(away)
    shutil.rmtree(away)


def _every_of(checkpoint, every):
    """The distance of the checkpoints with which this one was made; `every` if it does not say."""
    with suppress(OSError, ValueError, AttributeError):
        noted = read_json(checkpoint / "progress.json").get("every")
        return noted if isinstance(noted, int) and noted > 0 else every
    return every


def _prune(folder, keep, every=1):
    """Keep the newest checkpoint and the last `keep` planned ones; of two the optimizer.

    A checkpoint is planned where `every` divides its step, or the `every` that it was made
    with; any other is of a stop.
    """
    found = list_checkpoints(folder)
    planned = [path for path in found if _step_of(path) % _every_of(path, every) == 0]
    stay = sorted({*planned[-keep:], *found[-1:]}, key=_step_of)
    for old in found:
        if old not in stay:
            _discard(old)
    for old in stay[:-2]:
        (old / "adam.safetensors").unlink(missing_ok=True)


@contextmanager
def _disk_errors(folder):
    """Turn what goes wrong with a disk inside into an OSError that names the last checkpoint."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        kept = "no checkpoint yet"
        for newest in list_checkpoints(folder)[-1:]:
            kept = f"checkpoint {newest.name} and those before"
        lacks = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
        full = isinstance(error, SafetensorError) or error.errno in lacks
        raise OSError(
            f"cannot write to {folder}: {reason}; kept: {kept}; "
            f"{'make room' if full else 'mend that'}, then the same command goes on from there"
        ) from error


def _hashes(checkpoint, progress):
    """The sha256 of the weights, of the optimizer's averages, and of the progress."""
    names = ("model.safetensors", "adam.safetensors")
    files = {name: sha256_of(checkpoint / name) for name in names}
    return files | {"progress": sha256_of(json.dumps(progress).encode())}


def save_checkpoint(
    folder: Path | str,
    model: nn.Module,
    adam: torch.optim.Optimizer,
    progress: dict[str, Any],
    keep: int = 5,
    every: int = 1,
) -> None:
    """Write folder/checkpoints/STEP, whole or not at all, then prune the older ones.

    Args:
        folder: of the training.
        model, adam: whose weights and averages are saved.
        progress: goes into a file of JSON; its "step" names the checkpoint.
        keep: how many planned checkpoints stay, beside the newest one.
        every: a checkpoint is planned where this divides its step.

    Raises:
        OSError: if the disk takes no more; earlier checkpoints are then as they were.
        ValueError: keep or every is less than 1.
    """
    for name, value in (("keep", keep), ("every", every)):
        if value < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")
    states = adam.state_dict()["state"].items()
    moments = {f"{i}.{name}": value for i, state in states for name, value in state.items()}
    checkpoints = Path(folder, "checkpoints")
    with _disk_errors(folder):
        with atomic_write(checkpoints / f"{progress['step']:07d}") as fresh:
            fresh.mkdir()
            save_model(model, str(fresh / "model.safetensors"))
            save_file(moments, fresh / "adam.safetensors")
            progress = {**progress, "every": every, "optimizer": type(adam).__name__}
            noted = {**progress, "sha256": _hashes(fresh, progress)}
            (fresh / "progress.json").write_text(json.dumps(noted))
        _prune(folder, keep, every)


@contextmanager
def _checkpoint_errors(checkpoint, more=""):
    """Turn whatever is wrong with a checkpoint's files into a ValueError that names it.

    A disk that cannot be read now, or a lack of memory, says nothing about the files.
    """
    try:
        yield
    except Exception as error:
        absent = FileNotFoundError, IsADirectoryError, NotADirectoryError
        passing = OSError, MemoryError, torch.OutOfMemoryError
        if isinstance(error, passing) and not isinstance(error, absent):
            raise
        reason = " ".join(str(error).split())[:200]
        message = f"{checkpoint} does not fit this model or is damaged: {reason}{more}"
        raise ValueError(message) from error


def _read_progress(checkpoint, *names):
    """The progress of a checkpoint; ValueError where it or one of these files is damaged."""
    path = checkpoint / "progress.json"
    progress = read_json(path)
    told = progress.pop("sha256", {})
    places = {name: int for name in ("epoch", "position") if name in progress}
    _check_fields(path, {**progress, "sha256": told}, step=int, sha256=dict, **places)
    if checkpoint.name.isdecimal() and int(checkpoint.name) != progress["step"]:
        raise ValueError(f"{path} is damaged: it is of step {progress['step']}")
    found = _hashes(checkpoint, progress) if told else {}
    for name in (*names, "progress"):
        if name in names and not (checkpoint / name).exists():
            kept = "; only the newest two checkpoints keep it" if name.startswith("adam") else ""
            raise ValueError(f"{name} is missing{kept}")
        if told.get(name) != found.get(name):
            raise ValueError(f"{name} is not what was written")
    return progress


def load_checkpoint(
    checkpoint: Path | str, model: nn.Module, adam: torch.optim.Optimizer
) -> dict[str, Any]:
    """Put weights and optimizer back as they were; returns the progress.

    Raises:
        OSError: if a file cannot be read now.
        TypeError: if it was made by another optimizer.
        ValueError: if the weights do not fit the model, or a file is damaged.
    """
    checkpoint = Path(checkpoint)
    with _checkpoint_errors(checkpoint):
        progress = _read_progress(checkpoint, "model.safetensors", "adam.safetensors")
    kind = type(adam).__name__
    if (before := progress.get("optimizer", kind)) != kind:  # an older one would be no better
        raise TypeError(f"{checkpoint} was made by {before}, not by {kind}")
    with _checkpoint_errors(checkpoint):
        _check_weights(model, checkpoint / "model.safetensors")
        moments = load_file(checkpoint / "adam.safetensors")
        state = adam.state_dict()
        owners = dict(enumerate(p for group in adam.param_groups for p in group["params"]))
        for key, value in moments.items():
            number, name = key.split(".")
            owner = owners.get(int(number))
            if owner is None or "optimizer" not in progress and value.shape not in ((), owner.shape):
                raise ValueError(f"{key} is of another weight: was it another optimizer?")
            state["state"].setdefault(int(number), {})[name] = value
        load_model(model, str(checkpoint / "model.safetensors"))
        adam.load_state_dict(state)
    return progress


def _check_weights(model, path):
    """Refuse a file whose tensors are not the model's, before any is replaced: ValueError."""
    own = model.state_dict(keep_vars=True)
    with safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    for name, shape in shapes.items():
        has = tuple(own[name].shape) if name in own else "no such tensor"
        if has != shape:
            raise ValueError(f"{name} has the shape {shape}, and the model {has}")
    stored = {id(own[name]) for name in shapes}  # a tied matrix has two names, stored once
    if missing := [name for name, tensor in own.items() if id(tensor) not in stored]:
        raise ValueError(f"{missing[0]} is missing")


def _tidy(checkpoints):
    """Put back what a process that was killed has set aside; remove what it had begun."""
    for aside in checkpoints.glob(".*.old"):
        _put_back(checkpoints / aside.name[1:].removesuffix(".old"), aside)
    for begun in checkpoints.glob(".*.part"):
        shutil.rmtree(begun)


def _load_newest(folder, model, adam):
    """Go back to the newest checkpoint; if it is damaged, with a warning, to the one before.

    Returns its progress, None without checkpoints; ValueError if neither can be used.
    """
    _tidy(Path(folder, "checkpoints"))
    damaged = []
    message = ""
    for checkpoint in reversed(list_checkpoints(folder)[-2:]):
        try:
            progress = load_checkpoint(checkpoint, model, adam)
        except ValueError as error:
            damaged.append(checkpoint)
            message = message or str(error)  # of the newest
            continue
        for older in list_checkpoints(folder):  # the average will want it
            if _step_of(older) < _step_of(checkpoint):
                with _checkpoint_errors(older, "; remove it to go on without it"):
                    _read_progress(older, "model.safetensors")
        for useless in damaged:  # it will be made again
            warnings.warn(f"{message}; going on from {checkpoint.name}", stacklevel=2)
            _discard(useless)
        return progress
    if damaged:
        raise ValueError(message)
    return None


def _ending_signals():
    """Those that ask a program to end; not SIGHUP where it is ignored, as under nohup."""
    closed = getattr(signal, "SIGHUP", None)  # Windows has none
    heard = closed and signal.getsignal(closed) != signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([closed] if heard else [])]


def _end_as_usual(number):
    """In a child process: a request to terminate ends it; an interrupt is the parent's."""
    if number != signal.SIGINT:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


@contextmanager
def _stop_signals():
    """A list that gets the time of every interrupt and of every request to terminate.

    An interrupt more than a second after the first signal is a KeyboardInterrupt at once.
    """
    seen = []
    owner = os.getpid()
    signals = _ending_signals()

    def note(number, frame):
        if os.getpid() != owner:  # forked during training, as by a DataLoader or a Pool
            return _end_as_usual(number)
        now = time.monotonic()
        seen.append(now)
        if len(seen) == 1:
            with suppress(OSError, RuntimeError):  # stderr is gone, or amid another line
                tqdm.write("stopping after this update; again: at once", file=sys.stderr)
        elif number == signal.SIGINT and now > seen[0] + 1:
            what = "stopped at once; the same command goes on from the last checkpoint"
            raise KeyboardInterrupt(what)

    try:
        before = [signal.signal(s, note) for s in signals]
    except ValueError:  # only the main thread may listen
        before = []
    try:
        yield seen
    finally:
        for s, handler in zip(signals, before):
            signal.signal(s, handler)


class _Log:
    """A file of JSON lines that begins where training begins or resumes.

    Lines of later steps than `step` are dropped, since they will be made again; without a
    folder the lines are in memory only.
    """

    def __init__(self, folder, step, save_every=1):
        self.folder = folder
        self.lines = []
        if folder is None:
            return
        self.path = Path(folder, "log.jsonl")
        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        found = [self.read(row) for row in text.splitlines()]
        self.lines = [line for line in found if line and line["step"] <= step]
        cut_short = not text.endswith("\n") and found[-1:] == [None]  # as a crash does
        if None in (found[:-1] if cut_short else found):  # damage, or another program's file
            with _disk_errors(folder):
                shutil.copyfile(self.path, Path(folder, "log.jsonl.damaged"))
        elif not step and any(line["step"] > save_every for line in found if line):
            with _disk_errors(folder):  # of a training whose checkpoints are gone
                shutil.copyfile(self.path, Path(folder, "log.jsonl.before"))
        with _disk_errors(folder), atomic_write(self.path) as fresh:
            fresh.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    @staticmethod
    def read(row):
        """The line in a row of text; None where a crash cut it short, or a disk damaged it."""
        try:
            line = json.loads(row)
            whole = type(line["step"]) is int and 0 <= line.get("seconds", 0) < math.inf
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        return line if whole else None

    def add(self, **line):
        """Append a line."""
        line = json.loads(json.dumps(line, default=float))  # numbers of numpy and torch, too
        self.lines.append(line)
        if self.folder is not None:
            with _disk_errors(self.folder), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def flush(self):
        """Wait until every line is on the disk."""
        if self.folder is not None:
            with _disk_errors(self.folder):
                fsync(self.path)


def _not_finite(what, folder, step, place):
    """The FloatingPointError that names update, batch and last good checkpoint.

    `place` is the epoch, and the number in it of the update's last batch.
    """
    epoch, position = place
    checkpoints = list_checkpoints(folder) if folder else []
    good = checkpoints[-1] if checkpoints else "none"
    return FloatingPointError(
        f"{what} in update {step}, epoch {epoch}, batch {position}; "
        f"last good checkpoint: {good}; "
        "a lower rate or a longer warmup may help"
    )


_PLACE = "step", "epoch", "position", "notes"  # of a run, in its checkpoints


def _paper_rate(recipe, step, d_model):
    """The rate of an update by Adam; a recipe for another optimizer is refused."""
    if recipe.optimizer != "adam":
        raise ValueError(f"this run trains by adam, not by {recipe.optimizer} (appendix O does)")
    return learning_rate(step, d_model, recipe.warmup, recipe.rate)


@dataclass
class Run:
    """A training under way: the model, its optimizer, and how far it has come."""

    model: nn.Module
    adam: torch.optim.Optimizer
    folder: Path | None = None
    step: int = 0
    epoch: int = 0
    position: int = 0
    update: Callable = field(default_factory=lambda: update)  # chapter 14 has a faster one
    notes: dict[str, Any] = field(default_factory=dict)  # what else a checkpoint remembers
    schedule: Callable = field(default_factory=lambda: _paper_rate)  # appendix O has another
    patience: float = math.inf  # seconds that a GPU may still take once a stop is asked for

    def seed(self, recipe: Recipe) -> int:
        """Of the dropout of this update: a resumed training drops what one never stopped does."""
        return recipe.seed * 1_000_003 + self.step

    def stops(self, signals: list) -> bool:
        """Whether to stop here: if somebody has asked for it."""
        return bool(signals)

    def save(self, keep: int, every: int = 1) -> None:
        """Write a checkpoint, if there is a folder, unless a weight is not finite."""
        if self.folder is None:
            return
        if not all(p.isfinite().all() for p in self.model.parameters()):
            what = "a weight is not finite"
            raise _not_finite(what, self.folder, self.step, (self.epoch, self.position))
        progress = {name: getattr(self, name) for name in _PLACE}
        save_checkpoint(self.folder, self.model, self.adam, progress, keep, every)

    def resume(self, keep: int, every: int = 1) -> "Run":
        """Go on from the newest checkpoint, if any; prune, in case a kill left that undone."""
        if self.folder is not None:
            progress = _load_newest(self.folder, self.model, self.adam) or {}
            for name in _PLACE:
                setattr(self, name, progress.get(name, getattr(self, name)))
            _prune(self.folder, keep, every)
        return self

    def advance(self, coming: Iterator, recipe: Recipe) -> dict[str, Any]:
        """One update; returns its line of the log.

        Args:
            coming: source, target, and the (epoch, position) after them, batch after batch.
            recipe: gives the rate, the seed, and how many batches make the update.
        """
        taken = [next(coming) for _ in range(recipe.accumulate)]
        batches = [(source, target) for source, target, _ in taken]
        place = self.epoch, self.position = taken[-1][2]
        self.step += 1
        rate = self.schedule(recipe, self.step, self.model.config.d_model)
        for group in self.adam.param_groups:
            group["lr"] = rate
        torch.manual_seed(self.seed(recipe))
        self.model.train()
        try:
            loss, tokens = self.update(self.model, self.adam, batches)
        except FloatingPointError as error:
            raise _not_finite(error, self.folder, self.step, place) from None
        return {"step": self.step, "loss": loss, "tokens": tokens, "rate": rate}


@dataclass
class TrainingBackend:
    """How a process trains: where, by which attention, and what it shares with others.

    Args:
        device: to train on.
        writes: whether this process writes the folder; of several, one does.
        attention: for the model, as in `Transformer`.
        in_turn: a context in which one process after the other reads and writes the folder.
        feed: gets the batches and gives those to train on.
        start: as in `train`.
    """

    device: str = "cpu"
    writes: bool = True
    attention: Callable = scaled_dot_product_attention
    in_turn: Callable = nullcontext
    feed: Callable = lambda batches: batches
    start: Callable = Run


class _Report:
    """Log and progress bar of a run; a GPU's losses are read one update late."""

    def __init__(self, log, run, steps):
        self.log = log
        self.run = run
        self.waiting: deque = deque()  # lines of the log whose loss is not read yet
        self.tokens = 0
        self.late = int(next(run.model.parameters()).is_cuda)
        self.began = time.monotonic()
        self.before = max(line.get("seconds", 0) for line in [run.notes, *log.lines])
        self.messages = _Messages.of(sys.stderr)
        style = {"unit": "step", "dynamic_ncols": True, "mininterval": 0.5}
        self.bar = tqdm(total=steps, initial=run.step, file=self.messages, **style)

    def add(self, line, signals):
        """Take the line of an update; write those whose turn has come.

        That nobody reads the bar any more is a signal, too, as a closed terminal is.
        """
        place = self.run.epoch, self.run.position
        self.waiting.append((line, _read_later(line["loss"]), place))
        self.settle(self.late, signals)
        if self.messages.gone and not signals:
            signals.append(time.monotonic())

    def settle(self, late=0, signals=()):
        """Read and write all lines but so many; refuse a loss that is not finite."""
        while len(self.waiting) > late:
            line, read, place = self.waiting.popleft()
            loss = read(signals, self.run.patience)
            if not math.isfinite(loss):
                what = f"the loss is {loss:.3g}"
                raise _not_finite(what, self.run.folder, line["step"], place)
            self.log.add(**{**line, "loss": round(loss, 6)})
            self.tokens += line["tokens"]
            speed = f"{self.tokens / max(time.monotonic() - self.began, 1e-3):,.0f}/s"
            self.bar.set_postfix(loss=f"{loss:.3f}", tokens=speed, refresh=False)
            self.bar.update()

    def save(self, recipe, signals):
        """Write all lines, then a checkpoint, which remembers the seconds."""
        self.settle(signals=signals)
        self.log.flush()
        self.run.notes["seconds"] = self.seconds()
        self.run.save(recipe.keep, recipe.save_every)

    def seconds(self):
        """How long the training has taken, what came before it was stopped included."""
        return round(self.before + time.monotonic() - self.began)


@contextmanager
def _alone(folder):
    """The folder as a path, or None; inside `with`, no other training writes there: ValueError."""
    if folder is None:
        yield None
        return
    mark = Path(folder, ".writing")
    with ExitStack() as held:
        with _disk_errors(mark.parent):
            held.enter_context(file_lock(mark, wait=False))
        try:
            yield mark.parent
        finally:
            with suppress(OSError):  # Windows removes no open file
                mark.unlink()


def _fork_chance(model):
    """After `with`, torch's generators are as before: the CPU's, and that of the model's GPU."""
    device = next(model.parameters()).device
    return fork_rng([device] if device.type == "cuda" else [])


def _save_after(error, report, recipe, signals):
    """Save the updates so far after an error that is none of theirs; the caller raises it."""
    try:
        report.save(recipe, signals)
    except (OSError, FloatingPointError) as other:  # the first error says more
        error.add_note(f"and the updates so far could not be saved: {other}")


def _coming(batches, report, recipe, signals):
    """The batches of `_stream`; where one cannot be made, the updates before it are saved."""
    run, begun = report.run, report.run.step
    try:
        yield from _stream(batches, run.epoch, run.position)
    except Exception as error:
        if run.step > begun:
            _save_after(error, report, recipe, signals)
        raise


def _measure(evaluate, report, recipe, signals):
    """Evaluate, for the log; after an error the updates so far are saved."""
    report.settle(signals=signals)
    run, seconds = report.run, report.seconds()
    try:
        found = dict(evaluate(run.model.eval()))
        if {"step", "seconds"} & set(found) or not all(isinstance(key, str) for key in found):
            raise ValueError("evaluate must return texts as keys, others than step and seconds")
        json.dumps(found, default=float)
    except Exception as error:
        _save_after(error, report, recipe, signals)
        raise
    report.log.add(step=run.step, seconds=seconds, **found)


def _is_missed(log, run, recipe):
    """Whether the evaluation of the update resumed from is not in the log, because it failed."""
    due = run.step and (run.step == recipe.steps or run.step % recipe.evaluate_every == 0)
    return due and not any("seconds" in line for line in log.lines if line["step"] == run.step)


def _measure_again(evaluate, report, recipe, signals):
    """Make up for a missed evaluation; where no update follows, a request to stop counts here."""
    _measure(evaluate, report, recipe, signals)
    report.log.flush()
    if signals and report.run.step == recipe.steps:
        raise KeyboardInterrupt(f"stopped after update {report.run.step}")


def _marker(batches, name):
    """An identifier that batches say they use, or those they are made of; None if none does."""
    inner = getattr(batches, "batches", None)  # `Prefetch` of chapter 14 makes another's ahead
    if hasattr(batches, name) or not callable(inner) or inner is batches:
        return getattr(batches, name, None)
    return _marker(inner, name)


def _check_feed(batches, config):
    """Refuse what gives no batches, or batches with markers that are not the model's."""
    if not callable(batches):
        kind = type(batches).__name__
        raise TypeError(f"batches must be called as `Batches` is, with (epoch, position), not {kind}")
    for name in ("bos", "pad"):
        given = _marker(batches, name)
        own = getattr(config, name, None)
        if None not in (given, own) and given != own:
            raise ValueError(f"batches have {name}={given} and the model has {name}={own}")


def _warn_of_folder(run, recipe, config):
    """Say where a folder's training is finished, or was another; checkpoints note it."""
    free = {"evaluate_every", "save_every", "keep"}
    if recipe.optimizer == "adam":  # its rates do not depend on the last update
        free.add("steps")
    fields = asdict(recipe)
    if hasattr(config, "__dataclass_fields__"):
        fields |= asdict(config)
    fields = json.loads(json.dumps(fields, default=str))  # as a file keeps them
    told = {name: value for name, value in fields.items() if name not in free}
    noted = run.notes.get("recipe", told)
    others = [f"{name} {noted.get(name)!r}, not {x!r}" for name, x in told.items()
              if noted.get(name) != x]
    run.notes["recipe"] = told
    if run.step >= recipe.steps:
        kept = f"{run.folder} has {run.step} updates already, and the model gets their weights"
        warnings.warn(f"{kept}: for another training name another folder", stacklevel=3)
    elif others:
        before = f"the last updates in {run.folder} had {', '.join(others)}"
        warnings.warn(f"{before}: for another training name another folder", stacklevel=3)


def _way_on(step, folder):
    """What a training that was told to stop says last."""
    again = "" if folder is None else "; the same command goes on from there"
    return f"stopped after update {step}{again}"


def train(model: nn.Module, recipe: Recipe, batches: Callable[[int, int], Iterable],
          folder: Path | str | None = None, evaluate: Callable[[nn.Module], dict] | None = None,
          start: Callable[..., Run] = Run) -> list[dict[str, Any]]:
    """Train, log, evaluate and save; with the same folder again, go on where it stopped.

    Args:
        model: on the device to train on, compiled if at all by `model.compile()`; its config
            gives eps_ls, d_model and pad. In evaluation mode afterwards.
        recipe: what training varies.
        batches: called with (epoch, position), gives the epoch's batches from position on:
            source (B, S) up to eos, target (B, T + 1) from bos to eos.
        folder: where log.jsonl and checkpoints go; None writes nothing.
        evaluate: what it returns goes into the log, so its keys are others than step and
            seconds; called every recipe.evaluate_every updates and at the end.
        start: called with model, optimizer and folder; chapter 14 has others.

    Every update seeds torch's generators; after the training the CPU's, and that of the
    model's GPU, are as they were before.

    Returns:
        The log: an entry for each update and each evaluation.

    Raises:
        FloatingPointError: if the loss or a weight is not finite; names update and last good
            checkpoint.
        KeyboardInterrupt: after an interrupt or a request to terminate, once all is saved;
            after a second interrupt at once.
        OSError: if the disk takes no more; names the last checkpoint.
        TypeError: if batches cannot be called, or a checkpoint is another optimizer's.
        ValueError: if the folder's checkpoints are damaged or another model's, another
            training is writing there, or batches have another bos or pad than the model.

    Warns:
        UserWarning: the folder has all updates already, so the model gets its weights; or its
            last updates had another recipe or configuration.
    """
    _check_feed(batches, model.config)
    with _alone(folder) as folder, _fork_chance(model):
        adam = optimizer(model, recipe.beta1, recipe.beta2, recipe.eps)
        run = start(model, adam, folder).resume(recipe.keep, recipe.save_every)
        _warn_of_folder(run, recipe, model.config)
        report = _Report(_Log(folder, run.step, recipe.save_every), run, recipe.steps)
        with report.bar, _stop_signals() as signals:
            coming = _coming(batches, report, recipe, signals)
            if evaluate and _is_missed(report.log, run, recipe):
                _measure_again(evaluate, report, recipe, signals)
            while run.step < recipe.steps:
                report.add(run.advance(coming, recipe), signals)
                last = run.step == recipe.steps
                if evaluate and (last or run.step % recipe.evaluate_every == 0):
                    _measure(evaluate, report, recipe, signals)
                asked = run.stops(signals)
                if asked or last or run.step % recipe.save_every == 0:
                    report.save(recipe, signals)
                if asked:
                    raise KeyboardInterrupt(_way_on(run.step, folder))
    model.eval()
    return report.log.lines


def average(model: nn.Module, folder: Path | str, k: int = 5) -> int:
    """Give the model the mean of the weights of the last k checkpoints (section 6.1).

    Args:
        model: of the same sizes as the checkpoints; its weights are replaced.
        folder: of the training.
        k: how many; fewer if there are fewer.

    Returns:
        How many there were.

    Raises:
        ValueError: k is less than 1, or checkpoints are missing, damaged or another model's.
    """
    if type(k) is not int or k < 1:
        raise ValueError(f"k must be a whole number, 1 or more, got {k!r}")
    found = list_checkpoints(folder)[-k:]
    if not found:
        raise ValueError(f"no checkpoint in {Path(folder, 'checkpoints')}: train first")
    sums: dict[str, Tensor] = {}
    for checkpoint in found:
        with _checkpoint_errors(checkpoint):
            _read_progress(checkpoint, "model.safetensors")
            path = checkpoint / "model.safetensors"
            _check_weights(model, path)
            for name, value in load_file(path).items():
                sums[name] = sums.get(name, 0.0) + value.double()
    mean = {name: total / len(found) for name, total in sums.items()}
    model.load_state_dict(mean, strict=False)  # a tied matrix has two names, stored once
    return len(found)
