"""Training.

Generated from book/10-training.md by tools/tangle.py: edit the chapter, not this file.
"""

import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import load_file, load_model, save_file, save_model
from tqdm import tqdm

from annotated.data import replacing
from annotated.optimization import label_smoothed_loss, learning_rate, optimizer

__all__ = [
    "Recipe",
    "update",
    "stream",
    "save_checkpoint",
    "list_checkpoints",
    "load_checkpoint",
    "stopping",
    "Log",
    "Run",
    "advance",
    "train",
    "average",
    "provenance",
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
        for name in ("steps", "warmup", "source_tokens", "target_tokens", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name in ("evaluate_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")


def update(model, adam, batches):
    """One update from one or several (source, target) batches, each token counting the same (section 5.3).

    Returns:
        The loss in nats a token, and the number of target tokens, without padding.

    Raises:
        FloatingPointError: if the loss is not finite; the weights are then as before.
    """
    pad, eps_ls = model.config.pad, getattr(model.config, "eps_ls", 0.0)  # the recurrent baseline smooths nothing
    tokens = sum((target[:, 1:] != pad).sum().item() for _, target in batches)
    total = 0.0
    adam.zero_grad()
    for source, target in batches:
        logits = model(source, target[:, :-1])  # (B, T, vocab)
        # The divisor is the whole update's: a short batch must not weigh its tokens more.
        loss = label_smoothed_loss(logits, target[:, 1:], eps_ls, pad, "sum") / tokens
        loss.backward()
        total += loss.item()
    if not math.isfinite(total):
        raise FloatingPointError(f"the loss is {total}")
    adam.step()
    return total, tokens


def stream(batches, epoch=0, position=0):
    """Batch after batch, epoch after epoch, from a given place on.

    Args:
        batches: called with (epoch, position), gives the epoch's (source, target) batches from position on.

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


def save_checkpoint(folder, model, adam, progress, keep=5):
    """Write weights, optimizer and progress to folder/checkpoints/STEP, whole or not at all; prune old ones."""
    checkpoints = Path(folder, "checkpoints")
    checkpoints.mkdir(parents=True, exist_ok=True)
    moments = {
        f"{number}.{name}": value
        for number, state in adam.state_dict()["state"].items()
        for name, value in state.items()
    }
    with replacing(checkpoints / f"{progress['step']:07d}") as fresh:
        fresh.mkdir()
        save_model(model, str(fresh / "model.safetensors"))
        save_file(moments, fresh / "adam.safetensors")
        (fresh / "progress.json").write_text(json.dumps(progress))
    *older, _ = found = list_checkpoints(folder)
    for old in found[:-keep]:
        shutil.rmtree(old)
    for old in older:  # only the newest is ever resumed
        (old / "adam.safetensors").unlink(missing_ok=True)


def list_checkpoints(folder):
    """The checkpoints in a training folder, oldest first."""
    return sorted(Path(folder, "checkpoints").glob("[0-9]*"))


def load_checkpoint(checkpoint, model, adam):
    """Put weights and optimizer back as they were; returns the progress.

    Raises:
        ValueError: if the weights do not fit the model, or a file is damaged.
    """
    try:
        load_model(model, str(checkpoint / "model.safetensors"))
        moments = load_file(checkpoint / "adam.safetensors")
        progress = json.loads((checkpoint / "progress.json").read_text())
    except Exception as error:  # each library has errors of its own for a damaged or foreign file
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"{checkpoint} does not fit this model or is damaged: {reason}") from error
    state = adam.state_dict()
    for key, value in moments.items():
        number, name = key.split(".")
        state["state"].setdefault(int(number), {})[name] = value
    adam.load_state_dict(state)
    return progress


@contextmanager
def stopping():
    """A list that is empty until an interrupt or a request to terminate comes; then it holds the signal."""
    seen = []
    signals = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(s, lambda number, frame: seen.append(number)) for s in signals]
    except ValueError:  # only the main thread may listen
        before = []
    try:
        yield seen
    finally:
        for s, handler in zip(signals, before):
            signal.signal(s, handler)


class Log:
    """A file of JSON lines that begins where training begins or resumes.

    Args:
        folder: where log.jsonl is; None keeps the lines in memory only.
        step: lines of later steps are dropped, since they will be made again.
    """

    def __init__(self, folder, step):
        self.lines, self.file = [], None
        if folder is None:
            return
        path = Path(folder, "log.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            complete = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
            self.lines = [line for line in map(json.loads, complete) if line["step"] <= step]
        with replacing(path) as fresh:
            fresh.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        self.file = path.open("a", buffering=1)

    def add(self, **line):
        """Append a line."""
        self.lines.append(line)
        if self.file:
            self.file.write(json.dumps(line) + "\n")


@dataclass
class Run:
    """A training under way: the model, its optimizer, and how far it has come."""

    model: torch.nn.Module
    adam: torch.optim.Optimizer
    folder: Path | None = None
    step: int = 0
    epoch: int = 0
    position: int = 0

    def save(self, keep):
        """Write a checkpoint, if there is a folder."""
        if self.folder:
            progress = {"step": self.step, "epoch": self.epoch, "position": self.position}
            save_checkpoint(self.folder, self.model, self.adam, progress, keep)

    def resume(self):
        """Go on from the newest checkpoint, if there is one."""
        found = list_checkpoints(self.folder) if self.folder else []
        if found:
            progress = load_checkpoint(found[-1], self.model, self.adam)
            self.step, self.epoch, self.position = (progress[name] for name in ("step", "epoch", "position"))
        return self

    def advance(self, micro_batches, recipe):
        """One update; returns what the log says of it."""
        self.step += 1
        rate = learning_rate(self.step, self.model.config.d_model, recipe.warmup, recipe.rate)
        for group in self.adam.param_groups:
            group["lr"] = rate
        # Seeded step by step, so that a resumed training drops the same units as one never stopped.
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        device = next(self.model.parameters()).device
        pairs = [(source.to(device), target.to(device)) for source, target, _ in micro_batches]
        self.model.train()
        loss, tokens = update(self.model, self.adam, pairs)
        self.epoch, self.position = micro_batches[-1][-1]
        return {"step": self.step, "loss": round(loss, 6), "tokens": tokens, "rate": rate}


def advance(run, coming, recipe):
    """Take the batches of one update and make it.

    Raises:
        FloatingPointError: if the loss is not finite; names the update, the batch and the last good checkpoint.
    """
    batches = [next(coming) for _ in range(recipe.accumulate)]
    try:
        return run.advance(batches, recipe)
    except FloatingPointError as error:
        good = list_checkpoints(run.folder)[-1:] if run.folder else []
        epoch, position = batches[-1][-1]
        raise FloatingPointError(
            f"{error} in update {run.step}, epoch {epoch}, batch {position}; "
            f"last good checkpoint: {good[0] if good else 'none'}; a lower rate or a longer warmup may help"
        ) from None


def train(model, recipe, batches, folder=None, evaluate=None):
    """Train, log, evaluate and save; called again with the same folder, go on where it stopped.

    Args:
        model: on the device it is to be trained on; its config gives eps_ls, d_model and pad.
        recipe: what training varies.
        batches: called with (epoch, position), gives the epoch's (source, target) batches from position on;
            source (B, S) ends in eos, target (B, T + 1) begins with bos and ends in eos.
        folder: where log.jsonl and checkpoints go; None keeps nothing on disk.
        evaluate: f(model) -> dict of numbers, called every recipe.evaluate_every updates and at the end.

    Returns:
        The log: a dict for each update and each evaluation.

    Raises:
        FloatingPointError: if the loss is not finite; names the update and the last good checkpoint.
        KeyboardInterrupt: after an interrupt or a request to terminate, when the checkpoint is written.
    """
    run = Run(model, optimizer(model, recipe.beta1, recipe.beta2, recipe.eps), folder).resume()
    log, coming = Log(folder, run.step), stream(batches, run.epoch, run.position)
    began = time.monotonic() - max((line.get("seconds", 0) for line in log.lines), default=0)
    bar = tqdm(total=recipe.steps, initial=run.step, unit="step", dynamic_ncols=True, mininterval=0.5)
    with bar, stopping() as stop:
        while run.step < recipe.steps:
            log.add(**advance(run, coming, recipe))
            bar.set_postfix(loss=f"{log.lines[-1]['loss']:.3f}", refresh=False)
            bar.update()
            last = run.step == recipe.steps
            if evaluate and (last or run.step % recipe.evaluate_every == 0):
                log.add(step=run.step, seconds=round(time.monotonic() - began), **evaluate(model.eval()))
            if stop or last or run.step % recipe.save_every == 0:
                run.save(recipe.keep)
            if stop:
                raise KeyboardInterrupt(f"stopped after update {run.step}; the same command goes on from there")
    return log.lines


def average(model, folder, k=5):
    """Give the model the mean of the weights of the last k checkpoints (section 6.1).

    Returns:
        How many there were.

    Raises:
        ValueError: if there is none.
    """
    found = list_checkpoints(folder)[-k:]
    if not found:
        raise ValueError(f"no checkpoint in {Path(folder, 'checkpoints')}: train first")
    weights = [load_file(checkpoint / "model.safetensors") for checkpoint in found]
    mean = {name: torch.stack([w[name].float() for w in weights]).mean(0) for name in weights[0]}
    if model.load_state_dict(mean, strict=False).unexpected_keys:  # missing ones: a tied matrix is stored once
        raise ValueError(f"the checkpoints in {folder} are another model's")
    return len(found)


def provenance(**more):
    """Where a record comes from: command, commit, date, machine, versions; and what the caller adds."""
    script = Path(sys.argv[0])
    program = "-m annotated" if script.name == "__main__.py" else os.path.join(script.parent.name, script.name)
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    cpu = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(": ")[1] for line in cpu.splitlines() if line.startswith("model name")]
    return {
        "command": " ".join(["python", program, *sys.argv[1:]]),
        "commit": git.stdout.strip() or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": names[0] if names else platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **{name: asdict(value) if hasattr(value, "__dataclass_fields__") else value for name, value in more.items()},
    }
