"""Training.

Generated from book/10-training.md by tools/tangle.py: edit the chapter, not this file.
"""

import json
import math
import shutil
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file, save_model
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.files import atomic_write, fsync, read_json
from annotated.optimization import label_smoothed_loss, learning_rate, optimizer

__all__ = [
    "Recipe",
    "update",
    "list_checkpoints",
    "save_checkpoint",
    "load_checkpoint",
    "Run",
    "TrainingBackend",
    "train",
    "average",
]


@dataclass(frozen=True)
class Recipe:
    """What training varies (sections 5.1 to 5.4); the defaults are the paper's.

    Raises:
        ValueError: if a field makes no training; the message names the field.
    """

    steps: int = 100_000  # updates
    warmup: int = 4000
    rate: float = 1.0  # a factor on Eq. 3
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    source_tokens: int = 25_000  # of a batch, at most, padding included
    target_tokens: int = 25_000
    accumulate: int = 1  # batches an update
    seed: int = 0
    evaluate_every: int = 1000  # updates
    save_every: int = 1000  # updates; the paper's checkpoints are 10 minutes apart
    keep: int = 5  # checkpoints; section 6.1 averages 5 for base and 20 for big

    def __post_init__(self):
        counts = ("steps", "warmup", "source_tokens", "target_tokens", "accumulate")
        for name in (*counts, "evaluate_every", "save_every", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**43:
            most = "a whole number from 0 to 2**43 - 1"
            raise ValueError(f"seed must be {most}, got {self.seed!r}")
        for name in ("rate", "eps"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0 and finite, got {value!r}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {getattr(self, name)!r}")


def update(model, adam, batches):
    """One update from one or several batches, each token counting the same (section 5.3).

    Args:
        model: its config gives pad and, if the loss is to be smoothed, eps_ls.
        adam: the model's optimizer, its rate set.
        batches: of source (B, S) and target (B, T + 1), best on the CPU, which counts.

    Returns:
        The loss in nats a token, a tensor on the model's device, so that nothing waits,
        and the number of target tokens, without padding.

    Raises:
        FloatingPointError: on a CPU, if the loss is not finite; the weights then stay.
    """
    pad, device = model.config.pad, next(model.parameters()).device
    eps_ls = getattr(model.config, "eps_ls", 0.0)  # the recurrent baseline smooths nothing
    tokens = sum((target[:, 1:] != pad).sum().item() for _, target in batches)
    total = 0.0
    adam.zero_grad()
    for batch in batches:
        source, target = (ids.to(device, non_blocking=True) for ids in batch)
        logits = model(source, target[:, :-1])  # (B, T, vocab)
        # The divisor is the whole update's: a short batch must not weigh its tokens more.
        loss = label_smoothed_loss(logits, target[:, 1:], eps_ls, pad, "sum") / tokens
        loss.backward()
        total += loss.detach()
    if device.type == "cpu" and not math.isfinite(total):
        raise FloatingPointError(f"the loss is {total:.3g}")
    adam.step()
    return total, tokens


def _read_later(value):
    """Begin to copy a number from its device; the result, when called, waits for it.

    Args:
        value: a tensor of one element.

    Returns:
        a function without arguments.
    """
    if not value.is_cuda:
        return value.item
    copy = value.to("cpu", non_blocking=True)
    arrived = torch.cuda.current_stream(value.device).record_event()

    def read():
        arrived.synchronize()
        return copy.item()

    return read


def _stream(batches, epoch=0, position=0):
    """Batch after batch, epoch after epoch, from a given place on.

    Args:
        batches: called with (epoch, position), gives the epoch's (source, target) batches
            from position on.
        epoch, position: where to begin.

    Yields:
        (source, target), and the (epoch, position) at which to go on after it.

    Raises:
        ValueError: if an epoch holds no batch.
    """
    while True:
        first = position
        for source, target in batches(epoch, position):
            position += 1
            yield source, target, (epoch, position)
        if position == first == 0:
            raise ValueError(f"epoch {epoch} has no batch: is the corpus empty?")
        epoch, position = epoch + 1, 0


def list_checkpoints(folder):
    """The checkpoints in a training folder, oldest first; one half written is not seen."""
    found = Path(folder, "checkpoints").glob("[0-9]*")
    return sorted(path for path in found if path.name.isdecimal())


def _discard(checkpoint):
    """Remove a checkpoint, out of sight first, so that it is never seen in part."""
    away = checkpoint.with_name(f".{checkpoint.name}.part")
    checkpoint.rename(away)
    shutil.rmtree(away)


def _prune(folder, keep, every=1):
    """Keep the newest checkpoint and the last planned ones; of the newest two the optimizer.

    Args:
        folder: of the training.
        keep: how many planned ones stay.
        every: a checkpoint is planned where this divides its step; any other is of a stop.
    """
    found = list_checkpoints(folder)
    planned = [path for path in found if int(path.name) % every == 0]
    stay = sorted({*planned[-keep:], *found[-1:]})
    for old in found:
        if old not in stay:
            _discard(old)
    for old in stay[:-2]:
        (old / "adam.safetensors").unlink(missing_ok=True)


@contextmanager
def _disk_errors(folder):
    """Inside, a disk that takes no more raises an error that says what is kept.

    Raises:
        OSError: if something could not be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        kept = "no checkpoint yet"
        for newest in list_checkpoints(folder)[-1:]:
            kept = f"checkpoint {newest.name} and those before"
        raise OSError(
            f"cannot write to {folder}: {reason}; kept: {kept}; "
            "make room, then the same command goes on from there"
        ) from error


def save_checkpoint(folder, model, adam, progress, keep=5, every=1):
    """Write folder/checkpoints/STEP, whole or not at all, then prune the older ones.

    Args:
        folder: of the training.
        model, adam: whose numbers are kept.
        progress: a dict for JSON; its "step" names the checkpoint.
        keep, every: which checkpoints stay, see `_prune`.

    Raises:
        OSError: if the disk takes no more; earlier checkpoints are then as they were.
    """
    states = adam.state_dict()["state"].items()
    moments = {f"{i}.{name}": value for i, state in states for name, value in state.items()}
    checkpoints = Path(folder, "checkpoints")
    with _disk_errors(folder):
        with atomic_write(checkpoints / f"{progress['step']:07d}") as fresh:
            fresh.mkdir()
            save_model(model, str(fresh / "model.safetensors"))
            save_file(moments, fresh / "adam.safetensors")
            (fresh / "progress.json").write_text(json.dumps(progress))
        _prune(folder, keep, every)


@contextmanager
def _checkpoint_errors(checkpoint):
    """Inside, whatever is wrong with a checkpoint's files is a ValueError that names it."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        message = f"{checkpoint} does not fit this model or is damaged: {reason}"
        raise ValueError(message) from error


def load_checkpoint(checkpoint, model, adam):
    """Put weights and optimizer back as they were; returns the progress.

    Raises:
        ValueError: if the weights do not fit the model, or a file is damaged.
    """
    with _checkpoint_errors(checkpoint):
        load_model(model, str(checkpoint / "model.safetensors"))
        moments = load_file(checkpoint / "adam.safetensors")
        progress = read_json(checkpoint / "progress.json")
        state = adam.state_dict()
        for key, value in moments.items():
            number, name = key.split(".")
            state["state"].setdefault(int(number), {})[name] = value
        adam.load_state_dict(state)
    return progress


def _load_newest(folder, model, adam):
    """Go back to the newest checkpoint; if it is damaged, with a warning, to the one before.

    Returns:
        The progress; None if there is no checkpoint.

    Raises:
        ValueError: if there are checkpoints, and none of the newest two can be used.
    """
    for left in Path(folder, "checkpoints").glob(".*.part"):  # of a process that was killed
        shutil.rmtree(left)
    damaged, message = [], ""
    for checkpoint in reversed(list_checkpoints(folder)[-2:]):
        try:
            progress = load_checkpoint(checkpoint, model, adam)
        except ValueError as error:
            damaged, message = [*damaged, checkpoint], message or str(error)
            continue
        for useless in damaged:  # it will be made again
            warnings.warn(f"{message}; going on from {checkpoint.name}", stacklevel=2)
            _discard(useless)
        return progress
    if damaged:
        raise ValueError(message)
    return None


@contextmanager
def _stop_signals():
    """A list, empty until an interrupt or a request to terminate comes: then its time.

    Raises:
        KeyboardInterrupt: inside, at an interrupt more than a second after the first signal.
    """
    seen, signals = [], (signal.SIGINT, signal.SIGTERM)

    def note(number, frame):
        seen.append(time.monotonic())
        if len(seen) == 1:
            with suppress(OSError, RuntimeError):  # stderr is gone, or amid another line
                tqdm.write("stopping after this update; again: at once", file=sys.stderr)
        elif number == signal.SIGINT and seen[-1] > seen[0] + 1:
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

    Args:
        folder: where log.jsonl is; None keeps the lines in memory only.
        step: lines of later steps are dropped, since they will be made again.

    Raises:
        OSError: from every method, if the disk takes no more.
    """

    def __init__(self, folder, step):
        self.folder, self.lines = folder, []
        if folder is None:
            return
        self.path = Path(folder, "log.jsonl")
        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        for row in text.splitlines():
            try:
                line = json.loads(row)
                if line["step"] <= step:
                    self.lines.append(line)
            except (ValueError, KeyError, TypeError):  # cut short by a crash
                break
        with _disk_errors(folder), atomic_write(self.path) as fresh:
            fresh.write_text("".join(json.dumps(line) + "\n" for line in self.lines))

    def add(self, **line):
        """Append a line."""
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
    """The error that names the update, the batch and the last good checkpoint.

    Args:
        what: what is not finite.
        folder: of the training, or None.
        step: number of the update.
        place: epoch and number of its last batch.

    Returns:
        a FloatingPointError.
    """
    good = list_checkpoints(folder)[-1:] if folder else []
    return FloatingPointError(
        f"{what} in update {step}, epoch {place[0]}, batch {place[1]}; "
        f"last good checkpoint: {good[0] if good else 'none'}; "
        "a lower rate or a longer warmup may help"
    )


@dataclass
class Run:
    """A training under way: the model, its optimizer, and how far it has come."""

    model: torch.nn.Module
    adam: torch.optim.Optimizer
    folder: Path | None = None
    step: int = 0
    epoch: int = 0
    position: int = 0
    update: Callable = field(default_factory=lambda: update)  # chapter 14 has a faster one

    def stops(self, signals):
        """Whether to stop here: if somebody has asked for it."""
        return bool(signals)

    def save(self, keep, every=1):
        """Write a checkpoint, if there is a folder, unless a weight is not finite."""
        if self.folder is None:
            return
        if not all(p.isfinite().all() for p in self.model.parameters()):
            place = self.epoch, self.position
            raise _not_finite("a weight is not finite", self.folder, self.step, place)
        progress = {"step": self.step, "epoch": self.epoch, "position": self.position}
        save_checkpoint(self.folder, self.model, self.adam, progress, keep, every)

    def resume(self, keep, every=1):
        """Go on from the newest checkpoint, if any; prune, in case a kill left that undone."""
        if self.folder is not None:
            progress = _load_newest(self.folder, self.model, self.adam) or {}
            for name, value in progress.items():
                setattr(self, name, value)
            _prune(self.folder, keep, every)
        return self

    def advance(self, coming, recipe):
        """One update from the batches that come; returns its line of the log."""
        batches = [next(coming) for _ in range(recipe.accumulate)]
        self.step, (self.epoch, self.position) = self.step + 1, batches[-1][-1]
        d_model = self.model.config.d_model
        rate = learning_rate(self.step, d_model, recipe.warmup, recipe.rate)
        for group in self.adam.param_groups:
            group["lr"] = rate
        # Seeded step by step: a resumed training drops the same units as one never stopped.
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        self.model.train()
        try:
            pairs = [batch[:2] for batch in batches]
            loss, tokens = self.update(self.model, self.adam, pairs)
        except FloatingPointError as error:
            raise _not_finite(error, self.folder, self.step, batches[-1][-1]) from None
        return {"step": self.step, "loss": loss, "tokens": tokens, "rate": rate}


@dataclass
class TrainingBackend:
    """How a process trains: where, by which attention, and what it shares with others.

    Args:
        device: where to.
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
    """Log and progress bar of a run; a GPU's losses are read one update late.

    Args:
        log: where the lines go.
        run: the training.
        steps: updates at the end.
    """

    def __init__(self, log, run, steps):
        self.log, self.run, self.waiting, self.tokens = log, run, deque(), 0
        self.late = int(next(run.model.parameters()).is_cuda)
        self.began = time.monotonic()
        self.before = max((line.get("seconds", 0) for line in log.lines), default=0)
        style = {"unit": "step", "dynamic_ncols": True, "mininterval": 0.5}
        self.bar = tqdm(total=steps, initial=run.step, **style)

    def add(self, line):
        """Take the line of an update; write those whose turn has come."""
        place = self.run.epoch, self.run.position
        self.waiting.append((line, _read_later(line["loss"]), place))
        self.settle(self.late)

    def settle(self, late=0):
        """Read and write all lines but so many; refuse a loss that is not finite."""
        while len(self.waiting) > late:
            line, read, place = self.waiting.popleft()
            if not math.isfinite(loss := read()):
                what = f"the loss is {loss:.3g}"
                raise _not_finite(what, self.run.folder, line["step"], place)
            self.log.add(**{**line, "loss": round(loss, 6)})
            self.tokens += line["tokens"]
            speed = f"{self.tokens / (time.monotonic() - self.began):,.0f}/s"
            self.bar.set_postfix(loss=f"{loss:.3f}", tokens=speed, refresh=False)
            self.bar.update()

    def seconds(self):
        """How long the training has taken, what came before it was stopped included."""
        return round(self.before + time.monotonic() - self.began)


def train(model, recipe, batches, folder=None, evaluate=None, start=Run):
    """Train, log, evaluate and save; with the same folder again, go on where it stopped.

    Args:
        model: on the device to train on; its config gives eps_ls, d_model and pad.
        recipe: what training varies.
        batches: called with (epoch, position), gives the epoch's (source, target) batches
            from position on; source (B, S) up to eos, target (B, T + 1) from bos to eos.
        folder: where log.jsonl and checkpoints go; None keeps nothing on disk.
        evaluate: f(model) -> dict of numbers, called every recipe.evaluate_every updates
            and at the end.
        start: called with model, optimizer and folder, gives the Run; chapter 14 has others.

    Returns:
        The log: a dict for each update and each evaluation.

    Raises:
        FloatingPointError: if the loss is not finite; names update and last good checkpoint.
        KeyboardInterrupt: after an interrupt or a request to terminate, once all is saved;
            after a second interrupt at once.
        OSError: if the disk takes no more; says what is kept.
        ValueError: if the folder's checkpoints are damaged or another model's.
    """
    run = start(model, optimizer(model, recipe.beta1, recipe.beta2, recipe.eps), folder)
    log = _Log(folder, run.resume(recipe.keep, recipe.save_every).step)
    report, coming = _Report(log, run, recipe.steps), _stream(batches, run.epoch, run.position)
    with report.bar, _stop_signals() as signals:
        while run.step < recipe.steps:
            report.add(run.advance(coming, recipe))
            last = run.step == recipe.steps
            if evaluate and (last or run.step % recipe.evaluate_every == 0):
                report.settle()
                log.add(step=run.step, seconds=report.seconds(), **evaluate(model.eval()))
            asked = run.stops(signals)
            if asked or last or run.step % recipe.save_every == 0:
                report.settle()
                log.flush()
                run.save(recipe.keep, recipe.save_every)
            if asked:
                what = f"stopped after update {run.step}"
                raise KeyboardInterrupt(f"{what}; the same command goes on from there")
    return log.lines


def average(model, folder, k=5):
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
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    found = list_checkpoints(folder)[-k:]
    if not found:
        raise ValueError(f"no checkpoint in {Path(folder, 'checkpoints')}: train first")
    sums = {}
    for checkpoint in found:
        with _checkpoint_errors(checkpoint):
            path = checkpoint / "model.safetensors"
            load_model(model, str(path))  # refuses another model's
            for name, value in load_file(path).items():
                sums[name] = sums.get(name, 0) + value.double()
    mean = {name: total / len(found) for name, total in sums.items()}
    model.load_state_dict(mean, strict=False)  # a tied matrix has two names, stored once
    return len(found)
