"""Several GPUs.

Generated from book/L-distributed.md by tools/tangle.py: edit the chapter, not this file.
"""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from annotated.data import Batches
from annotated.gpu import (
    FastUpdate,
    Objective,
    Prefetch,
    TrainStep,
    _loss_piece,
    compiled,
    fuse,
    fused_attention,
    precision_context,
)
from annotated.graphs import CudaGraphTrainStep
from annotated.training import Recipe, Run, TrainingBackend, list_checkpoints
from annotated.transformer import Transformer

__all__ = ["ProcessGroup", "DistributedUpdate", "fast_run", "shard", "save_shards", "load_shards"]


@dataclass
class ProcessGroup:
    """The processes that train together, seen from one of them (section 5.2).

    Args:
        rank, size: which one this is, and of how many.
        local: how many of them each machine has; by default all are on one.
        patient: a group of torch.distributed on CPUs, for what may take long or goes on
            beside an update; by default torch's own.
    """

    rank: int = 0
    size: int = 1
    local: int | None = None
    patient: Any = None

    def share(self, batches: list) -> list:
        """This process's share of an update's batches.

        Raises:
            ValueError: they cannot be shared equally.
        """
        if len(batches) % self.size:
            number = f"{len(batches)} batches for {self.size} processes"
            raise ValueError(f"accumulate must be a multiple of the processes, got {number}")
        return batches[self.rank :: self.size]

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective, its gradients averaged over all processes."""
        if self.size == 1:
            return objective
        # Gradients lie in the buffers that are sent, so that nothing is copied into these.
        return nn.parallel.DistributedDataParallel(objective, gradient_as_bucket_view=True)

    def no_sync(self, objective: nn.Module, more: bool) -> AbstractContextManager:
        """A context that sends nothing, while more batches of the update are to come."""
        if hasattr(objective, "set_requires_gradient_sync"):  # it is sharded
            objective.set_requires_gradient_sync(not more)
        elif more and isinstance(objective, nn.parallel.DistributedDataParallel):
            return objective.no_sync()
        return nullcontext()

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all processes of a tensor, which is overwritten."""
        if self.size > 1:
            dist.all_reduce(value)
        return value / self.size

    def any(self, asked: bool, among: Any = None) -> bool:
        """Whether any process has been asked; all wait here, and a lost one is noticed."""
        flag = torch.tensor(int(asked))  # on the CPU, so that no GPU waits
        if self.size > 1:
            dist.all_reduce(flag, dist.ReduceOp.MAX, among)
        return bool(flag)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Each machine's first process goes alone, one after the other; then all others."""
        local = self.local or self.size
        machine, place = divmod(self.rank, local)
        before = self.size // local if place else machine
        for _ in range(before):
            self.any(False, self.patient)
        yield
        for _ in range(self.size // local - before):
            self.any(False, self.patient)


@dataclass(frozen=True)
class _Elsewhere:
    """A batch that another process makes.

    Args:
        tokens: how many target tokens it predicts.
    """

    tokens: int


@dataclass(frozen=True)
class _SharedBatches:
    """Batches of which a process makes only its own share (section 5.1).

    Args:
        batches: all of them, the same in every process.
        group: the processes; an update takes a multiple of their number.
    """

    batches: Batches
    group: ProcessGroup

    def tokens(self, indices: list[int]) -> int:
        """How many target tokens these pairs predict together."""
        pairs = self.batches.pairs
        if hasattr(pairs, "lengths"):
            return int(pairs.lengths[indices, 1].sum())
        return sum(len(pairs[i][1]) for i in indices)

    def __call__(self, epoch: int = 0, position: int = 0) -> Iterator[tuple[Any, Any]]:
        """Yield (source, target), or (`_Elsewhere`, None), as `Batches` would."""
        plan = self.batches.plan(epoch)
        before = epoch * len(plan)  # all epochs have as many; an update may reach into the next
        for k in range(position, len(plan)):
            turn, place = divmod(before + k, self.group.size)
            if place == self.group.rank:
                yield self.batches.build(plan, k)
                self.batches.forget(turn + 1)
            else:
                yield _Elsewhere(self.tokens(plan[k])), None


class DistributedUpdate(FastUpdate):
    """`FastUpdate` on each of several processes (section 5.2).

    Args:
        step: its objective is wrapped by the group.
        group: the processes; each is given all batches and computes its own.

    Raises:
        ValueError: the step is recorded, and there are several processes.
    """

    def __init__(self, step: TrainStep, group: ProcessGroup):
        super().__init__(step)
        if group.size > 1 and isinstance(step, CudaGraphTrainStep):
            raise ValueError("several processes need TrainStep: a recorded step sends no gradients")
        self.group = group

    def count(self, source: Any, target: Any, pad: int) -> int:
        """The target tokens that a batch predicts, here or elsewhere."""
        if isinstance(source, _Elsewhere):
            return source.tokens
        return super().count(source, target, pad)

    def passes(self, batches: list, tokens: int, device: torch.device) -> Tensor:
        """Add the gradients of the mean loss over all tokens; returns that loss."""
        total = torch.zeros((), device=device)
        # DDP and FSDP take the mean over processes; the sum is wanted.
        scale = torch.full((), self.group.size / tokens, device=device)
        mine = self.group.share(batches)
        for number, (source, target) in enumerate(mine, 1):
            with self.group.no_sync(self.step.objective, number < len(mine)):
                total += self.step(source, target, scale)
        return self.group.mean(total)


@contextmanager
def _report_lost_process(group: ProcessGroup, folder: Path | None = None) -> Iterator[None]:
    """Inside, the loss of a process of the group is an error that says what is kept.

    Raises:
        ConnectionError: another process was lost.
    """
    try:
        yield
    except RuntimeError as error:
        words = r"gloo|nccl|connection|peer|socket|timed? ?out"
        if group.size == 1 or not re.search(words, str(error), re.IGNORECASE):
            raise
        found = list_checkpoints(folder)[-1:] if folder else []
        kept = f"checkpoint {found[0].name} is whole; " if found else ""
        lost = f"process {group.rank} of {group.size} has lost another one"
        what = f"{lost}; {kept}the same command goes on, with as many processes or fewer"
        raise ConnectionError(f"{what} ({' '.join(str(error).split())[:300]})") from error


@dataclass
class _DistributedRun(Run):
    """A `Run` of several processes that stay in step; the first has the folder."""

    group: ProcessGroup = field(default_factory=ProcessGroup)

    def __post_init__(self):
        if self.group.size > 1:
            self.patience = 10.0

    def seed(self, recipe: Recipe) -> int:
        """Of this process's dropout in this update; the first one's is that of one alone."""
        return (super().seed(recipe) + self.group.rank * 0x9E3779B97F4A7C15) % 2**63

    def stops(self, signals: list) -> bool:
        """Whether anybody was asked to stop."""
        with _report_lost_process(self.group, self.folder):
            return self.group.any(bool(signals))

    def resume(self, keep: int, every: int = 1) -> "_DistributedRun":
        """Go on from the first process's newest checkpoint."""
        super().resume(keep, every)
        if self.group.size > 1:
            saved = self.adam.state_dict()
            averages = saved["state"].items()
            state = {i: {k: v.cpu() for k, v in kept.items()} for i, kept in averages}
            sent: list = [(self.step, self.epoch, self.position), state]
            dist.broadcast_object_list(sent)  # what the others get is the first one's
            progress, saved["state"] = sent
            self.step, self.epoch, self.position = progress
            self.adam.load_state_dict(saved)
            for tensor in self.model.state_dict().values():
                dist.broadcast(tensor, 0)
        return self

    def advance(self, coming: Iterator, recipe: Recipe) -> dict:
        """One update, together."""
        with _report_lost_process(self.group, self.folder):
            return super().advance(coming, recipe)


def _timeout():
    """How long a process may be silent before it counts as lost."""
    given = os.environ.get("ANNOTATED_TIMEOUT_MINUTES", "30")
    with suppress(ValueError, OverflowError):
        if (limit := timedelta(minutes=float(given))) > timedelta(0):
            return limit
    what = "ANNOTATED_TIMEOUT_MINUTES must be a number of minutes above 0"
    raise ValueError(f"{what}, got {given!r}")


@contextmanager
def _torchrun_group(device: str) -> Iterator[ProcessGroup]:
    """The group that torchrun has started, or a group of one; ended when the context ends.

    Args:
        device: "cpu" or "cuda".

    A process that is silent for ANNOTATED_TIMEOUT_MINUTES, 30 by default, counts as lost.

    Raises:
        ValueError: more processes than GPUs, or not as many on one machine as on another.
    """
    # Other launchers set WORLD_SIZE, too.
    ours = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & set(os.environ)
    size = int(os.environ.get("WORLD_SIZE") or 1) if ours else 1
    if size == 1:
        yield ProcessGroup()
        return
    gpus = torch.device(device).type == "cuda"
    if gpus:
        local = int(os.environ["LOCAL_RANK"])
        if local >= (found := torch.cuda.device_count()):
            raise ValueError(f"this machine has {found} GPUs: start at most as many processes")
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_timeout())
    # When one is lost, torchrun ends the others at once; they have to say first what is kept.
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    # Preparing a corpus may take longer than an update ever does.
    patient = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or size)
    counts = torch.tensor([here, -here])
    dist.all_reduce(counts, dist.ReduceOp.MAX, group=patient)  # the most, and less the fewest
    if counts.sum():
        raise ValueError("--nproc-per-node must be equal on all machines")
    yield ProcessGroup(dist.get_rank(), size, here, patient)
    signal.signal(signal.SIGTERM, before)
    dist.destroy_process_group()  # not after an error: it would wait for a lost process


def fast_run(
    model: Transformer, adam: torch.optim.Optimizer, folder: Path | None,
    precision: str | None = None, compile: bool = False, group: ProcessGroup | None = None,
) -> _DistributedRun:
    """The run of a fast training: the model fused, perhaps compiled, shared (section 5.2).

    Args:
        model, adam, folder: as for `Run`.
        precision: as for `precision_context`; default: bfloat16 on a GPU, else float32.
        compile: whether to compile the layers and the loss.
        group: the processes; by default this one alone.
    """
    group = group or ProcessGroup()
    fuse(model)
    compute = _loss_piece
    if compile:
        compiled(model)
        compute = torch.compile(_loss_piece, dynamic=True)
    kind = next(model.parameters()).device.type
    name = precision or ("bfloat16" if kind == "cuda" else "float32")
    objective = group.wrap(Objective(model, compute=compute))
    update = DistributedUpdate(TrainStep(objective, precision_context(name, kind)), group)
    return _DistributedRun(model, adam, folder, update=update, group=group)


def _shared_feed(group: ProcessGroup, batches: Batches) -> Prefetch:
    """This process's share of the batches, made ahead."""
    return Prefetch(_SharedBatches(batches, group))


@contextmanager
def _fast_backend(
    device: str, precision: str | None = None, compile: bool = False, folder: Path | None = None
) -> Iterator[TrainingBackend]:
    """Chapter 10's `TrainingBackend` for a GPU, and for several processes.

    Args:
        device: "cpu" or "cuda"; of several GPUs each process takes its own.
        precision, compile: as for `fast_run`.
        folder: of the training, for the message about a lost process.
    """
    with _torchrun_group(device) as group:
        if group.size > 1 and torch.device(device).type == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
        start = partial(fast_run, precision=precision, compile=compile, group=group)
        feed = partial(_shared_feed, group) if group.size > 1 else Prefetch
        with _report_lost_process(group, folder):
            yield TrainingBackend(
                device, group.rank == 0, fused_attention, group.in_turn, feed, start)


def shard(
    objective: Objective, group: ProcessGroup, device: str = "cpu", precision: str = "float32"
) -> nn.Module:
    """Leave each process its share of the weights, layer by layer, in place (FSDP).

    Make the optimizer afterwards, not between a forward and a backward pass, when some weights
    are whole. Gradients are means over processes, as with `ProcessGroup.wrap`.

    Args:
        objective: the same in every process.
        group: the processes.
        device: "cpu" or "cuda".
        precision: in which layers are sent and compute, "float32" or "bfloat16"; shares of
            weights and sums of gradients are float32.

    Returns:
        the objective.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = dist.device_mesh.init_device_mesh(torch.device(device).type, (group.size,))
    dtype = getattr(torch, precision)
    sums = torch.float32
    policy = MixedPrecisionPolicy(dtype, reduce_dtype=sums, output_dtype=sums)
    model = objective.model
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(objective, mesh=mesh)
    return objective


def save_shards(
    folder: Path | str, objective: nn.Module, adam: torch.optim.Optimizer,
    progress: dict[str, int], group: ProcessGroup,
) -> Future:
    """Begin to write a sharded training to a folder; every process calls this.

    Args:
        folder: where all processes can write.
        objective, adam: as `shard` has left the one, and its optimizer.
        progress: step, epoch and position.
        group: the processes; those that write talk in its `patient`.

    Returns:
        What ends when all is written: wait for its `result()` before the next one begins.

    Raises:
        ValueError: the folder holds a checkpoint, which a stop while writing would destroy.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    if Path(folder, ".metadata").exists():  # written last: what lacks it is no checkpoint
        raise ValueError(f"{folder} holds a checkpoint: name a new folder for each")
    weights, averages = get_state_dict(objective, adam)
    state = {"model": weights, "adam": averages, "progress": progress}
    # In a group of its own: what the thread sends must not get between the gradients.
    among = group.patient or dist.new_group(backend="gloo")
    written: Any = checkpoint.async_save(state, checkpoint_id=folder, process_group=among)
    return written


def load_shards(
    folder: Path | str, objective: nn.Module, adam: torch.optim.Optimizer
) -> dict[str, int]:
    """Go on from `save_shards`, in as many processes or another number.

    Args:
        folder, objective, adam: as there.

    Returns:
        progress, as there.
    """
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    # Where there are gradients, torch would make no place for Adam's averages, and read none.
    objective.zero_grad(set_to_none=True)
    weights, averages = get_state_dict(objective, adam)
    progress = {"step": 0, "epoch": 0, "position": 0}
    state: dict[str, Any] = {"model": weights, "adam": averages, "progress": progress}
    checkpoint.load(state, checkpoint_id=folder)
    set_state_dict(
        objective, adam, model_state_dict=state["model"], optim_state_dict=state["adam"])
    return state["progress"]
