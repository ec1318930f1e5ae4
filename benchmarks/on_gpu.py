"""What the benchmarks of chapter 14 share: pairs to train on, the rungs of the ladder, and their timing.

Not a benchmark itself. Everything runs on a CPU, too, at tiny size, for a trial.
"""

import gc
import os
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from packed import PackedBatches, PackedObjective, PackedUpdate, attend_by
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated.data import Batches, make_batch
from annotated.gpu import (
    FastUpdate,
    Objective,
    Prefetch,
    StaticBatches,
    TrainStep,
    UnpaddedObjective,
    _loss_piece,
    ceilings,
    compiled,
    fuse,
    join_projections,
    precision_context,
    training_flops,
)
from annotated.graphs import CudaGraphTrainStep
from annotated.layers import FusedLayerNorm, LayerNorm
from annotated.optimization import label_smoothed_loss, learning_rate
from annotated.own_text import PRESETS
from annotated.records import Record, read_run
from annotated.training import _read_later, _stream
from annotated.transformer import BASE, BIG, TINY, Transformer

# What the compiler makes is kept here, also for the next process; a rung compiles the model twice.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parent.parent.resolve() / ".cache" / "inductor"))

CONFIGS = {"base": BASE, "big": BIG, "small": PRESETS["small"], "tiny": replace(TINY, vocab=503)}

# Each rung changes one thing and keeps what came before it.
RUNGS = {
    "float32, plain": {},
    "TF32": {"precision": "tf32"},
    "bfloat16 autocast": {"precision": "bfloat16"},
    "fused attention": {"attention": True},
    "norms in one kernel": {"norms": True},
    "residual sums in 16 bits": {"sums": True},
    "joint projections": {"joint": True},
    "fused optimizer": {"optimizer": True},
    "loss in pieces": {"pieces": True},
    "batches made ahead": {"ahead": True},
    "compiled layers": {"compile": True},
    "few shapes": {"static": True},
    "CUDA graphs": {"record": True},
}
# Beside the ladder: CUDA graphs without the compiler or with chapter 2's attention, batches without padding, and pairs
# packed into rows of one width, with several kinds of attention (packed.py).
ASIDE = {
    "CUDA graphs, not compiled": {"static": True, "record": True},
    "CUDA graphs, plain attention": {"static": True, "record": True, "compile": True, "kernel": "plain"},
    "no padding": {"unpadded": True},
    "no padding, compiled layers": {"unpadded": True, "compile": True},
    "packed rows": {"packed": True},
    "packed rows, CUDA graphs": {"packed": True, "record": True},
    "packed rows, compiled, CUDA graphs": {"packed": True, "compile": True, "record": True},
    "packed rows, plain attention, compiled, CUDA graphs":
        {"packed": True, "compile": True, "record": True, "kernel": "plain"},
    "packed rows, flexible attention, compiled, CUDA graphs":
        {"packed": True, "compile": True, "record": True, "kernel": "flexible"},
}


class Gate:
    """Programs that share a device: all may prepare at once, while none is timed; each is timed alone.

    path: of a file that they all name; None: there are no others.
    """

    def __init__(self, path=None):
        self.path = path

    @contextmanager
    def _hold(self, kind):
        if self.path is None:
            yield
            return
        import fcntl  # not on Windows

        with open(self.path, "a") as file:
            fcntl.flock(file, getattr(fcntl, kind))
            yield
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
                torch.cuda.empty_cache()

    def together(self):
        """While this is held, others may prepare, too, and none is timed."""
        return self._hold("LOCK_SH")

    def alone(self):
        """While this is held, nobody else uses the device."""
        return self._hold("LOCK_EX")

    def wait_for_others(self, seconds):
        """Until another program prepares, at most so long: it began to start before."""
        import fcntl

        end = time.monotonic() + seconds
        with open(self.path, "a") as file:
            while time.monotonic() < end:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
                fcntl.flock(file, fcntl.LOCK_UN)
                time.sleep(0.1)


def rungs_of(device):
    """The rungs that a device has: TF32 and CUDA graphs need a GPU."""
    return [r for r in (*RUNGS, *ASIDE) if torch.device(device).type == "cuda" or not ("TF32" in r or "CUDA" in r)]


def settings(rung):
    """All changes up to a rung, as a dict."""
    chosen = {}
    for name, change in RUNGS.items():
        chosen |= change
        if name == rung:
            return chosen
    if rung in ASIDE:
        return settings("batches made ahead") | ASIDE[rung]
    raise ValueError(f"no rung {rung!r}: there are {', '.join([*RUNGS, *ASIDE])}")


def drawn_pairs(tokens, vocab, seed=0):
    """Pairs of random identifiers with about so many target tokens, lengths as sentences have them.

    Lengths are log-normal around e^3.1, 2 to 120, the two sides of a pair alike: a choice of ours, not a corpus.
    """
    generator, pairs, total = torch.Generator().manual_seed(seed), [], 0
    while total < tokens:
        noise = torch.randn(1000, 2, generator=generator)
        drawn = (3.1 + 0.5 * noise[:, :1] + torch.tensor([0.0, 0.12]) * noise).exp().clamp(2, 120).long()
        for s, t in drawn.tolist():
            ids = torch.randint(4, vocab, (s + t - 2,), generator=generator).tolist()
            pairs.append(([*ids[: s - 1], 2], [*ids[s - 1 :], 2]))
            total += t
            if total >= tokens:
                break
    return pairs


class Plain:
    """Chapter 10's update without chapter 14's functions, but in a precision of its own and any optimizer."""

    def __init__(self, context):
        self.context = context

    def __call__(self, model, adam, batches):
        (source, target), = batches
        tokens = (target[:, 1:] != 0).sum().item()
        here = next(model.parameters()).device
        source, target = source.to(here, non_blocking=True), target.to(here, non_blocking=True)
        adam.zero_grad()
        with self.context():
            logits = model(source, target[:, :-1])
            loss = label_smoothed_loss(logits, target[:, 1:], model.config.eps_ls, 0, "sum") / tokens
        loss.backward()
        adam.step()
        return loss.detach(), tokens


def feed_of(chosen, pairs, tokens):
    """The batches of the chosen kind, of so many tokens a side."""
    kind = PackedBatches if chosen.get("packed") else StaticBatches if chosen.get("static") else Batches
    return kind(pairs, tokens, tokens)


def prepare(model, chosen, device, backend="inductor"):
    """An update with the chosen changes, for what feed_of gives; the model is changed in place."""
    context = precision_context(chosen.get("precision", "float32"), device)
    if chosen.get("attention"):
        fuse(model)
        take_back(model, chosen)
    if chosen.get("joint"):
        join_projections(model)
    compute = _loss_piece
    if chosen.get("compile"):
        dynamic = not chosen.get("packed")  # these have one shape
        compiled(model, dynamic, backend=backend)
        compute = torch.compile(_loss_piece, dynamic=dynamic, backend=backend)
    if not chosen.get("pieces"):
        return Plain(context)
    kind = CudaGraphTrainStep if chosen.get("record") else TrainStep
    if chosen.get("packed"):
        return PackedUpdate(kind(PackedObjective(model, chosen.get("kernel", "fused"), compute=compute), context))
    if "kernel" in chosen:
        attend_by(model, chosen["kernel"])
    whole = UnpaddedObjective if chosen.get("unpadded") else Objective
    return FastUpdate(kind(whole(model, compute=compute), context))


def take_back(model, chosen):
    """Undo what `fuse` changes besides attention, unless it is chosen, too."""
    if not chosen.get("sums"):
        model.dropout._forward_hooks.clear()
    if chosen.get("norms"):
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is FusedLayerNorm:
                norm = LayerNorm(len(child.gain), child.eps)
                norm.gain, norm.bias = child.gain, child.bias
                setattr(module, name, norm)


def adam_for(model, chosen):
    fused = True if chosen.get("optimizer") else None  # None: PyTorch's default
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=fused)


class Traffic(TorchDispatchMode):
    """Counts the bytes of what every operation reads and writes, each once; views move nothing."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        alias = [r.alias_info for r in func._schema.returns if r.alias_info is not None]
        views = alias and not alias[0].is_write
        if not views and "empty" not in func._schema.name:
            moved = {id(x): x for x in tree_leaves((args, kwargs, made)) if isinstance(x, torch.Tensor)}
            self.bytes += sum(x.numel() * x.element_size() for x in moved.values())
        return made


def intensity(config, chosen, device, tokens):
    """Needed operations for each byte that an update moves, where no compiler or recording hides it."""
    if chosen.get("compile") or chosen.get("record"):
        return None
    model = Transformer(config).to(device)
    pairs = drawn_pairs(4 * tokens, config.vocab)
    feed = feed_of(chosen, pairs, tokens)
    adam, update = adam_for(model, chosen), prepare(model, chosen, device)
    plan = feed.plan()
    sizes = [[(len(pairs[i][0]), len(pairs[i][1])) for i in np.hstack(plan[n]).tolist()] for n in range(len(plan))]
    fullest = max(range(len(plan)), key=lambda n: sum(map(sum, sizes[n])))
    with Traffic() as traffic:
        update(model, adam, [feed.build(plan, fullest)])
    return sum(training_flops(config, s, t) for s, t in sizes[fullest]) / traffic.bytes


def gradient_error(config, chosen, device, backend, tokens):
    """Relative distance of a rung's gradients to those of chapter 10 in float32, without dropout."""
    found = []
    pairs = [pair for pair in drawn_pairs(2 * tokens, config.vocab, 1) if max(map(len, pair)) <= 25]
    feed = feed_of({"packed": True}, pairs, 3 * tokens)  # all in one batch
    for settings_ in ({}, chosen):
        torch.manual_seed(0)
        model = Transformer(replace(config, P_drop=0.0)).to(device)
        batch = next(feed()) if settings_.get("packed") else make_batch(pairs)
        prepare(model, settings_, device, backend)(model, adam_for(model, settings_), [batch])
        found.append(torch.cat([p.grad.flatten().float() for p in model.parameters()]))
    return ((found[1] - found[0]).norm() / found[0].norm()).item()


def places_of(target, chosen):
    """The places for target tokens of a batch that an update computes, padding counted."""
    if chosen.get("packed"):
        return target[0].numel()
    return int((target[:, 1:] != 0).sum()) if chosen.get("unpadded") else target[:, 1:].numel()


def forget_compiled():
    """Let go of compiled models, which hold their memory, and of the shapes that counted against recompiling."""
    torch._dynamo.reset()
    gc.collect()


def measure(config, chosen, device, tokens=25_000, batches=24, seconds=5.0, backend="inductor", gate=None):
    """Train with the chosen changes: every batch once to warm up, then whole epochs for about so many seconds.

    Returns:
        dict for a record; tokens are target tokens without padding.
    """
    gate = gate or Gate()
    with gate.together():
        row, epoch, facts = prepared(config, chosen, device, tokens, batches, backend)
    with gate.alone():
        return row | timed(epoch, facts, seconds, torch.device(device).type == "cuda")


def prepared(config, chosen, device, tokens, batches, backend):
    """What is measured beside the time, a function that trains for an epoch, and what one has."""
    # As many tokens as a piece of the loss has: what is compiled for a few may be kept for many.
    row = {"gradients differ by": round(gradient_error(config, chosen, device, backend, min(tokens, 4096)), 6)}
    row["operations a byte"] = intensity(config, chosen, device, tokens)
    forget_compiled()
    torch.manual_seed(0)
    model = Transformer(config).to(device).train()
    pairs = drawn_pairs(tokens * batches, config.vocab)
    feed = feed_of(chosen, pairs, tokens)
    adam, update = adam_for(model, chosen), prepare(model, chosen, device, backend)
    facts = {"updates": len(feed.plan()), "tokens": sum(len(t) for _, t in pairs),
             "operations": sum(training_flops(config, len(s), len(t)) for s, t in pairs),
             "places": sum(places_of(t, chosen) for _, t in feed())}
    coming = _stream(Prefetch(feed) if chosen.get("ahead") else feed)
    step, waiting = 0, None

    def epoch():
        nonlocal step, waiting
        for _ in range(facts["updates"]):
            step += 1
            for group in adam.param_groups:
                group["lr"] = learning_rate(step, config.d_model)
            source, target, _ = next(coming)
            loss, _ = update(model, adam, [(source, target)])
            waiting, last = _read_later(loss), waiting
            if last:
                last()  # one update late, as in a training
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        return waiting()

    if chosen.get("compile"):
        began = time.perf_counter()
        epoch()  # which compiles for all batches
        row["preparing, seconds"] = round(time.perf_counter() - began, 1)
    return row, epoch, facts


def timed(epoch, facts, seconds, cuda):
    """The time and the memory of whole epochs, after one that does not count."""
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    row = {"loss after an epoch": round(epoch(), 3), "warm-up, seconds": round(time.perf_counter() - began, 1)}
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        epoch()
        epochs += 1
    spent, count = time.perf_counter() - began, facts["updates"]
    row |= {
        "tokens a second": round(epochs * facts["tokens"] / spent),
        "milliseconds an update": round(1e3 * spent / epochs / count, 2),
        "operations a second": epochs * facts["operations"] / spent, "updates timed": epochs * count,
        "padding": round(1 - facts["tokens"] / facts["places"], 3),
        # Reserved, because the memory of a recorded graph counts as such only.
        "memory, GiB": round(torch.cuda.max_memory_reserved() / 2**30, 2) if cuda else None,
    }
    return row


def begin(options, compared=("device", "tokens", "batches", "backend"), older=None, packages=(), **what):
    """The record of a program with these options; one that was stopped goes on if those compared are the same.

    older: name -> what an option was in the records that do not name it yet.
    """
    folder, older = options.out, older or {}
    shape = {name: getattr(options, name) for name in compared}
    if (folder / "run.json").exists():
        run = read_run(folder)
        for name, usual in older.items():
            was, now = run["options"].get(name, usual), shape[name]
            if was != now:
                raise ValueError(f"{folder} was begun with {name}={was}, now {name}={now}: choose another --out")
        # What is compared comes from one machine.
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
        before, now = (run["machine"]["gpu"], run["versions"]["torch"]), (gpu, torch.__version__)
        if before != now:
            raise ValueError(f"{folder} was begun with GPU {before[0]} and torch {before[1]}, here are "
                             f"{now[0]} and {now[1]}: choose another --out")
    return Record.begin(folder, tuple(older), packages, seed=0, options=shape, **what)


def machine_ceilings(device, seconds):
    """`ceilings` of this machine, small ones for a trial, and the best matrix rate among them."""
    small = 512 if seconds < 1 else 4096
    n = 8192 if torch.device(device).type == "cuda" else small  # a GPU launches small ones too slowly
    rates = ceilings(device, n, min(1.0, max(0.1, seconds)))
    return rates, max(rate for name, rate in rates.items() if name != "copy")


def add_options(parser, out):
    """The options that all these programs share."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--sizes", nargs="+", choices=CONFIGS, default=["base", "big"])
    parser.add_argument("--backend", default="inductor", help="of torch.compile; eager for a trial")
    parser.add_argument("--gate", help="a file: who names the same one prepares beside others and is timed alone")
    parser.add_argument("--out", type=Path, default=Path(out))


def add_training_options(parser):
    """The options of those that train."""
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side in an update, at most")
    parser.add_argument("--batches", type=int, default=24, help="different batches")
