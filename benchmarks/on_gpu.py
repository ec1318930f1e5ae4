"""What the benchmarks of chapter 14 share: pairs to train on, the rungs of the ladder, and their timing.

Not a benchmark itself. Everything runs on a CPU, too, at tiny size, for a trial.
"""

import gc
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated.cli import PRESETS
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
from annotated.records import Record
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
# Beside the ladder: CUDA graphs without the compiler, and batches without padding, which have no fixed shape.
ASIDE = {
    "CUDA graphs, not compiled": {"static": True, "record": True},
    "no padding": {"unpadded": True},
    "no padding, compiled layers": {"unpadded": True, "compile": True},
}


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


def prepare(model, chosen, device, backend="inductor"):
    """An update with the chosen changes; the model is changed in place."""
    context = precision_context(chosen.get("precision", "float32"), device)
    if chosen.get("attention"):
        fuse(model)
        take_back(model, chosen)
    if chosen.get("joint"):
        join_projections(model)
    compute = _loss_piece
    if chosen.get("compile"):
        compiled(model, backend=backend)
        compute = torch.compile(_loss_piece, dynamic=True, backend=backend)
    if not chosen.get("pieces"):
        return Plain(context)
    kind = CudaGraphTrainStep if chosen.get("record") else TrainStep
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
    adam, update = adam_for(model, chosen), prepare(model, chosen, device)
    pairs = drawn_pairs(tokens, config.vocab)
    batches = (StaticBatches if chosen.get("static") else Batches)(pairs, tokens, tokens)()
    with Traffic() as traffic:
        for batch in batches:
            update(model, adam, [batch])
    return sum(training_flops(config, len(s), len(t)) for s, t in pairs) / traffic.bytes


def gradient_error(config, chosen, device, backend, tokens):
    """Relative distance of a rung's gradients to those of chapter 10 in float32, without dropout."""
    found = []
    batch = make_batch(drawn_pairs(tokens, config.vocab, 1))
    for settings_ in ({}, chosen):
        torch.manual_seed(0)
        model = Transformer(replace(config, P_drop=0.0)).to(device)
        prepare(model, settings_, device, backend)(model, adam_for(model, settings_), [batch])
        found.append(torch.cat([p.grad.flatten().float() for p in model.parameters()]))
    return ((found[1] - found[0]).norm() / found[0].norm()).item()


def forget_compiled():
    """Let go of compiled models, which hold their memory, and of the shapes that counted against recompiling."""
    torch._dynamo.reset()
    gc.collect()


def measure(config, chosen, device, tokens=25_000, batches=24, seconds=5.0, backend="inductor"):
    """Train with the chosen changes: every batch once to warm up, then whole epochs for about so many seconds.

    Returns:
        dict for a record; tokens are target tokens without padding.
    """
    # As many tokens as a piece of the loss has: what is compiled for a few may be kept for many.
    row = {"gradients differ by": round(gradient_error(config, chosen, device, backend, min(tokens, 4096)), 6)}
    row["operations a byte"] = intensity(config, chosen, device, tokens)
    forget_compiled()
    torch.manual_seed(0)
    model = Transformer(config).to(device).train()
    adam, update = adam_for(model, chosen), prepare(model, chosen, device, backend)
    pairs = drawn_pairs(tokens * batches, config.vocab)
    feed = (StaticBatches if chosen.get("static") else Batches)(pairs, tokens, tokens)
    count, real = len(feed.plan()), sum(len(t) for _, t in pairs)
    needed = sum(training_flops(config, len(s), len(t)) for s, t in pairs)
    coming = _stream(Prefetch(feed) if chosen.get("ahead") else feed)
    cuda = torch.device(device).type == "cuda"
    synchronize = torch.cuda.synchronize if cuda else lambda: None
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step, waiting = 0, None

    def epoch():
        nonlocal step, waiting
        for _ in range(count):
            step += 1
            for group in adam.param_groups:
                group["lr"] = learning_rate(step, config.d_model)
            source, target, _ = next(coming)
            loss, _ = update(model, adam, [(source, target)])
            waiting, last = _read_later(loss), waiting
            if last:
                last()  # one update late, as in a training
        synchronize()

    began = time.perf_counter()
    epoch()
    row |= {"warm-up, seconds": round(time.perf_counter() - began, 1), "loss after an epoch": round(waiting(), 3)}
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        epoch()
        epochs += 1
    spent = time.perf_counter() - began
    row |= {
        "tokens a second": round(epochs * real / spent),
        "milliseconds an update": round(1e3 * spent / epochs / count, 2),
        "operations a second": epochs * needed / spent, "updates timed": epochs * count,
        "padding": round(1 - real / sum((t.shape[1] - 1) * len(t) for _, t in feed()), 3),
        # Reserved, because the memory of a recorded graph counts as such only.
        "memory, GiB": round(torch.cuda.max_memory_reserved() / 2**30, 2) if cuda else None,
    }
    return row


def begin(options, out=None, packages=(), **what):
    """The record of a program with these options; one that was stopped goes on if they are the same."""
    shape = {name: getattr(options, name) for name in ("device", "tokens", "batches", "backend")}
    return Record.begin(out or options.out, packages=packages, seed=0, options=shape, **what)


def machine_ceilings(device, seconds):
    """`ceilings` of this machine, small ones for a trial, and the best matrix rate among them."""
    n = 512 if seconds < 1 else 8192 if torch.device(device).type == "cuda" else 4096
    rates = ceilings(device, n, min(1.0, max(0.1, seconds)))
    return rates, max(rate for name, rate in rates.items() if name != "copy")


def add_options(parser, out):
    """The options that all these programs share."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    parser.add_argument("--sizes", nargs="+", choices=CONFIGS, default=["base", "big"])
    parser.add_argument("--tokens", type=int, default=25_000, help="of each side in an update, at most")
    parser.add_argument("--batches", type=int, default=24, help="different batches")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing, about")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; eager for a trial")
    parser.add_argument("--out", type=Path, default=Path(out))

