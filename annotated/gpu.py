"""On GPUs.

Generated from book/14-gpu.md by tools/tangle.py: edit the chapter, not this file.
"""

import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from annotated.attention import check_sizes, scaled_dot_product_attention
from annotated.cli import Worker
from annotated.data import Batches, plan_batches
from annotated.layers import LayerNorm
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention
from annotated.training import Run, list_checkpoints

__all__ = [
    "products",
    "training_flops",
    "wait_for",
    "calls_a_second",
    "ceilings",
    "precision_context",
    "check_mask",
    "fused_attention",
    "fused_causal_attention",
    "FastNorm",
    "use_attention",
    "fuse",
    "loss_piece",
    "Pieces",
    "LossInPieces",
    "chunked_loss",
    "hidden",
    "Objective",
    "StaticBatches",
    "compiled",
    "Passes",
    "recording",
    "Recorded",
    "Prefetch",
    "Room",
    "make_room",
    "layer_in_room",
    "step_in_room",
    "RoomState",
    "RecordedSteps",
    "Team",
    "FastUpdate",
    "together",
    "TeamRun",
    "team_of_environment",
    "make_run",
    "fast_worker",
    "shard",
]


def products(config, S, T):
    """Multiplications in the matrix products of a forward pass (Figure 1, logits included).

    Args:
        config: the sizes.
        S, T: source and target tokens of a pair, numbers or tensors.

    Returns:
        A number, or a tensor of the shape of S and T.
    """
    c = config
    heads = c.h * (c.d_k + c.d_v)
    projections, ffn = 2 * c.d_model * heads, 2 * c.d_model * c.d_ff
    encoder = S * (projections + ffn + S * heads)
    decoder = T * (projections + ffn + T * heads)
    cross = (S + T) * projections // 2 + S * T * heads
    return c.N * (encoder + decoder + cross) + T * c.d_model * c.vocab


def training_flops(config, S, T):
    """Operations that training needs for a pair: 3 times the forward products, 2 for each.

    Args, returns: as `products`.
    """
    return 3 * 2 * products(config, S, T)


def wait_for(device):
    """Wait until a GPU has done all it was given; a CPU has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def calls_a_second(function, device, seconds=1.0):
    """How often a function can be called in a second; three calls before do not count."""
    for _ in range(3):
        function()
    wait_for(device)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            function()
        wait_for(device)
        count += 5
    return count / (time.perf_counter() - began)


def ceilings(device, n=8192, seconds=1.0):
    """What a machine reaches in large products and in copies: the ceilings of a roofline.

    Args:
        device: which.
        n: side of the square matrices; a copy moves one of them in float32.
        seconds: of each measurement.

    Returns:
        dict: operations a second "float32", "tf32" (a GPU) and "bfloat16", and bytes a second
        "copy", read and written both counted.
    """
    rates, before = {}, torch.get_float32_matmul_precision()
    a, b = torch.randn(n, n, device=device), torch.empty(n, n, device=device)
    names = ("float32", "tf32", "bfloat16") if a.is_cuda else ("float32", "bfloat16")
    for name in names:
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        x = a.bfloat16() if name == "bfloat16" else a
        y = torch.empty_like(x)
        multiply = partial(torch.mm, x, x, out=y)
        rates[name] = 2 * n**3 * calls_a_second(multiply, device, seconds)
    torch.set_float32_matmul_precision(before)
    rates["copy"] = 2 * 4 * n * n * calls_a_second(lambda: b.copy_(a), device, seconds)
    return rates


def precision_context(name, device):
    """How matrix products are to be computed in the forward pass.

    Args:
        name: "float32"; "tf32", which only a GPU has; or "bfloat16", by autocast.
        device: where.

    Returns:
        a function without arguments that gives a context for the forward pass.

    Raises:
        ValueError: there is no such precision.
    """
    if name not in ("float32", "tf32", "bfloat16"):
        raise ValueError(f"precision must be float32, tf32 or bfloat16, got {name!r}")
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    if name == "bfloat16":
        return partial(torch.autocast, torch.device(device).type, dtype=torch.bfloat16)
    return nullcontext


def check_mask(Q, K, mask):
    """Refuse a mask that is not boolean or does not fit; nothing is said of its values.

    Raises:
        TypeError: mask is not boolean.
        ValueError: mask does not broadcast to the scores.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may look, not {mask.dtype}")
    scores = (*Q.shape[:-1], K.shape[-2])
    axes = zip(reversed(mask.shape), reversed(scores))
    if mask.dim() > len(scores) or any(m not in (1, s) for m, s in axes):
        shapes = f"{scores}, not {tuple(mask.shape)}"
        raise ValueError(f"mask must broadcast to the shape of the scores, {shapes}")


def fused_attention(Q, K, V, mask=None, dropout=0.0):
    """`scaled_dot_product_attention` by PyTorch's fused kernels (section 3.2.1, Eq. 1).

    Args, returns, raises: as `scaled_dot_product_attention`.
    """
    check_sizes(Q, K, V)
    if mask is None:
        return F.scaled_dot_product_attention(Q, K, V, dropout_p=dropout)  # (..., T, d_v)
    check_mask(Q, K, mask)
    some = mask.any(-1, keepdim=True)  # (..., 1)
    # A row without a key looks at all and is cut afterwards: no 0/0, on the way back either.
    out = F.scaled_dot_product_attention(Q, K, V, mask | ~some, dropout)  # (..., T, d_v)
    return out.masked_fill(~some, 0.0)


def fused_causal_attention(Q, K, V, mask=None, dropout=0.0):
    """`fused_attention` for a decoder's own words, under the causal mask (section 3.2.3).

    Args, returns: as `scaled_dot_product_attention`; for as many queries as keys the mask is the
    causal one, and a GPU does not read its values.

    Raises:
        ValueError: it is another one (its values are looked at on a CPU only).
    """
    if mask is None:
        return fused_attention(Q, K, V, dropout=dropout)
    check_sizes(Q, K, V)
    T, S = Q.shape[-2], K.shape[-2]
    if T != S:  # a step of decoding, whose mask hides what is not written yet
        return fused_attention(Q, K, V, mask, dropout)
    on_cpu = mask.device.type == "cpu" and not torch.compiler.is_compiling()
    if mask.shape[-2:] != (T, T) or on_cpu and not (mask == causal_mask(T)).all():
        raise ValueError(f"mask must be causal_mask({T}): use fused_attention")
    return F.scaled_dot_product_attention(Q, K, V, dropout_p=dropout, is_causal=True)


class FastNorm(LayerNorm):
    """`LayerNorm` in one kernel that keeps the precision of its input (section 3.1).

    Args:
        d_model, eps: as for `LayerNorm`.
    """

    def forward(self, x):
        """Normalise x, (..., d_model), to the same shape and precision."""
        if x.shape[-1:] != self.gain.shape:
            return super().forward(x)  # which refuses it
        with torch.autocast(x.device.type, enabled=False):
            gain, bias = self.gain.to(x.dtype), self.bias.to(x.dtype)
            return F.layer_norm(x, self.gain.shape, gain, bias, self.eps)


def use_attention(module, attention):
    """Let a `MultiHeadAttention` make its scaled dot products elsewhere, dropout kept."""
    dropped = isinstance(module.attention, AttentionDropout)
    inner = module.attention.attention if dropped else module.attention
    if inner in (scaled_dot_product_attention, fused_attention, fused_causal_attention):
        if dropped:  # a new one, since the attentions of a layer share theirs
            attention = AttentionDropout(attention, module.attention.P_drop)
            attention.train(module.training)
        module.attention = attention


def fuse(model):
    """Give a Transformer fused attention and norms, in place; its weights keep their names.

    Attention by cuDNN is turned off for the whole process: it makes a plan for every new shape.

    Returns:
        the model.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is LayerNorm:
                norm = FastNorm(len(child.gain), child.eps)
                norm.gain, norm.bias = child.gain, child.bias
                setattr(module, name, norm)
        if isinstance(module, MultiHeadAttention):
            use_attention(module, fused_attention)
    for layer in model.decoder.layers:
        use_attention(layer.self_attention, fused_causal_attention)
    return model


def loss_piece(x, W, target, eps, pad):
    """The summed loss of some positions, and its gradient by their logits (section 5.4).

    Args:
        x: decoder outputs, (n, d_model).
        W: the tied matrix, (vocab, d_model), in the precision of x.
        target: identifiers, (n,).
        eps, pad: as for `label_smoothed_loss`.

    Returns:
        A scalar in nats, and (n, vocab) in the precision of x.
    """
    logits = x @ W.T  # (n, vocab)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    log_p = logits.log_softmax(-1)  # (n, vocab)
    right, real = target[:, None], (target != pad)[:, None]  # (n, 1), (n, 1)
    lost = (1 - eps) * log_p.gather(-1, right) + eps * log_p.mean(-1, keepdim=True)  # (n, 1)
    slope = log_p.exp() - eps / len(W)  # (n, vocab)
    slope = slope.scatter_add(-1, right, torch.full_like(lost, eps - 1))
    return -(lost * real).sum(), (slope * real).to(x.dtype)


@dataclass(frozen=True)
class Pieces:
    """How the loss is cut: rows positions at a time, by compute, which may be compiled."""

    eps: float = 0.1
    pad: int = 0
    rows: int = 4096
    compute: Callable = loss_piece


class LossInPieces(torch.autograd.Function):
    """The arithmetic of `chunked_loss`: gradients are made with the loss, piece by piece."""

    @staticmethod
    def forward(ctx, x, W, target, pieces):
        """The loss of x (n, d_model), W (vocab, d_model) and target (n,)."""
        kind, dtype = x.device.type, x.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        total, by_x, by_W = 0.0, torch.empty_like(x), torch.zeros_like(W)
        with torch.autocast(kind, enabled=False):
            low, w = x.to(dtype), W.to(dtype)
            for begin in range(0, len(x), pieces.rows):
                here = slice(begin, begin + pieces.rows)
                cut = low[here], w, target[here], pieces.eps, pieces.pad
                loss, slope = pieces.compute(*cut)
                by_x[here] = slope @ w
                by_W += slope.T @ low[here]
                total = total + loss
        ctx.save_for_backward(by_x, by_W)
        return total

    @staticmethod
    def backward(ctx, above):
        """Gradients by x and W; above is a scalar."""
        by_x, by_W = ctx.saved_tensors
        return by_x * above.to(by_x.dtype), by_W * above, None, None


def chunked_loss(x, W, target, pieces=None):
    """`label_smoothed_loss(x @ W.T, target, ..., "sum")` without ever holding all logits.

    Args:
        x: decoder outputs, (..., d_model).
        W: the tied matrix, (vocab, d_model).
        target: identifiers, (...).
        pieces: a `Pieces`.

    Returns:
        A scalar, in nats; it can be differentiated once.

    Raises:
        ValueError: shapes do not fit, or a piece has no rows.
    """
    pieces = pieces or Pieces()
    if x.shape[:-1] != target.shape or x.shape[-1] != W.shape[-1]:
        shapes = f"{tuple(x.shape)}, {tuple(W.shape)} and {tuple(target.shape)}"
        wanted = "(..., d), (vocab, d) and (...)"
        raise ValueError(f"x, W and target must be {wanted}, got {shapes}")
    if pieces.rows < 1:
        raise ValueError(f"rows must be 1 or more, got {pieces.rows}")
    return LossInPieces.apply(x.flatten(0, -2), W, target.flatten(), pieces)


def hidden(model, source, target):
    """The decoder's output before the logits (Figure 1).

    Args:
        model: a Transformer.
        source, target: (B, S) and (B, T), the target without its last column.

    Returns:
        (B, T, d_model), under autocast in its precision.
    """
    kind, dtype = source.device.type, None
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    mask = padding_mask(source, model.config.pad)  # (B, 1, 1, S)
    x = model.embed(model.source_embedding, source).to(dtype)  # (B, S, d_model)
    memory = model.encoder(x, mask)  # (B, S, d_model)
    y = model.embed(model.target_embedding, target).to(dtype)  # (B, T, d_model)
    return model.decoder(y, memory, causal_mask(target.shape[1], target.device), mask)


class Objective(nn.Module):
    """A Transformer and its loss as one module.

    Args:
        model: a Transformer.
        rows, compute: as in `Pieces`.

    Raises:
        ValueError: the model has an output_bias, which the paper's has not.
    """

    def __init__(self, model, rows=4096, compute=loss_piece):
        super().__init__()
        if model.config.output_bias:
            raise ValueError("the loss in pieces has no place for output_bias: train with `update`")
        self.model = model
        self.pieces = Pieces(model.config.eps_ls, model.config.pad, rows, compute)

    def forward(self, source, target):
        """The loss of source (B, S), target (B, T + 1), summed over all tokens but padding."""
        x = hidden(self.model, source, target[:, :-1])  # (B, T, d_model)
        W = self.model.target_embedding.weight  # (vocab, d_model)
        return chunked_loss(x, W, target[:, 1:], self.pieces)


@dataclass(frozen=True)
class StaticBatches(Batches):
    """`Batches` of few shapes: one length on both sides, a multiple, and rows to the budget.

    Args:
        multiple: lengths are rounded up to multiples of this.
        eos, pad, bos: identifiers of the rows that fill up.
        others: as for `Batches`.

    Raises:
        ValueError: multiple is less than 1; as `Batches`, a pair that does not fit, rounded.
    """

    multiple: int = 8
    eos: int = 2
    pad: int = 0
    bos: int = 1

    def __post_init__(self):
        super().__post_init__()
        if self.multiple < 1:
            raise ValueError(f"multiple must be 1 or more, got {self.multiple}")

    def rounded(self, n):
        """The next multiple, of a number or an array."""
        return -(-n // self.multiple) * self.multiple

    def plan(self, epoch=0):
        """The plan of an epoch by rounded lengths, the same for all workers."""
        lengths = getattr(self.pairs, "lengths", None)
        if lengths is None:
            lengths = [(len(source), len(target)) for source, target in self.pairs]
        longest = self.rounded(np.asarray(lengths).astype(np.int64).max(1))  # (n,)
        budgets = self.source_tokens, self.target_tokens
        both = np.column_stack([longest, longest])  # (n, 2)
        return plan_batches(both, *budgets, self.seed, epoch, self.workers)

    def __call__(self, epoch=0, position=0):
        """Yield source (rows, L) and target (rows, L + 1), see `Batches`."""
        for source, target in super().__call__(epoch, position):
            L = self.rounded(max(source.shape[1], target.shape[1] - 1))
            rows = min(self.source_tokens, self.target_tokens) // L
            wide = source.new_full((rows, L), self.pad)  # (rows, L)
            longer = target.new_full((rows, L + 1), self.pad)  # (rows, L + 1)
            wide[:, 0], longer[:, 0] = self.eos, self.bos
            wide[: len(source), : source.shape[1]] = source
            longer[: len(target), : target.shape[1]] = target
            yield wide, longer


def compiled(model, dynamic=True, backend="inductor"):
    """Compile the layers of a Transformer in place; state and names of the weights stay.

    Args:
        model: a Transformer.
        dynamic: one program for all shapes; False: one for each.
        backend: as in `torch.compile`; "inductor" writes kernels.

    Returns:
        the model.
    """
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(dynamic=dynamic, backend=backend)
    return model


class Passes:
    """Forward and backward pass of an objective.

    Args:
        objective: called with (source, target), gives a summed loss.
        context: as `precision_context` gives it.
    """

    empties = True  # whether gradients may be thrown away between updates

    def __init__(self, objective, context=nullcontext):
        self.objective, self.context = objective, context

    def __call__(self, source, target, scale):
        """Add the gradients of scale * loss, and return it; all tensors on one device."""
        with self.context():
            loss = self.objective(source, target) * scale
        loss.backward()
        return loss.detach()


def recording(work, pool=None):
    """Record what a function does on a GPU, as a CUDA graph.

    Args:
        work: called without arguments, three times; what it reads must stay where it is.
        pool: memory of an earlier recording that never runs at the same time.

    Returns:
        the graph, and what work returned, which every replay fills anew.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Only this thread is bound by the rules of recording: another may be making batches.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = work()
    return graph, result


class Recorded(Passes):
    """`Passes` that are recorded once for each shape, as a CUDA graph, and then replayed.

    Args:
        objective, context: as for `Passes`; batches should have few shapes.
    """

    empties = False  # a recording adds to the gradients where they lay

    def __init__(self, objective, context=nullcontext):
        super().__init__(objective, context)
        self.known, self.pool = {}, None

    def __call__(self, *batch):
        """As `Passes`; batch is source, target and scale."""
        if not batch[0].is_cuda:
            return super().__call__(*batch)
        shapes = tuple(x.shape for x in batch)
        if shapes not in self.known:
            self.known[shapes] = self.record([x.clone() for x in batch])
        graph, places, loss = self.known[shapes]
        for place, x in zip(places, batch):
            place.copy_(x)
        graph.replay()
        return loss.clone()

    def record(self, places):
        """Record the passes; the gradients of making them are taken back."""
        weights = list(self.objective.parameters())
        before = [None if w.grad is None else w.grad.clone() for w in weights]
        drawn = torch.cuda.get_rng_state()
        graph, loss = recording(partial(super().__call__, *places), self.pool)
        torch.cuda.set_rng_state(drawn)  # the passes of recording have used up random numbers
        self.pool = self.pool or graph.pool()
        for w, old in zip(weights, before):
            w.grad.zero_() if old is None else w.grad.copy_(old)
        return graph, places, loss


@dataclass(frozen=True)
class Prefetch:
    """Batches, made ahead by a thread and pinned where there is a GPU.

    Args:
        batches: called with (epoch, position), as `Batches`.
        ahead: how many.

    Raises:
        ValueError: ahead is less than 1; whatever batches raises comes in its place.
    """

    batches: Callable
    ahead: int = 8

    def __post_init__(self):
        if self.ahead < 1:
            raise ValueError(f"ahead must be 1 or more, got {self.ahead}")

    def __call__(self, epoch=0, position=0):
        """Yield what batches yields, in its order."""
        coming, pin = iter(self.batches(epoch, position)), torch.cuda.is_available()

        def make():
            batch = next(coming, None)
            return tuple(ids.pin_memory() for ids in batch) if batch and pin else batch

        with ThreadPoolExecutor(1) as thread:
            waiting = deque(thread.submit(make) for _ in range(self.ahead))
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(make))
                yield batch


@dataclass
class Room:
    """Where a step of decoding finds what it reads, always in the same places.

    B sentences of S source positions, R / B hypotheses each, of L positions at most.

    Args:
        ids: the last tokens, (R,).
        t: how many positions are written, (1,).
        past: K (N, R, h, L, d_k) and V (N, R, h, L, d_v).
        memory: K (N, B, h, S, d_k) and V (N, B, h, S, d_v).
        mask: of the source's padding, (B, 1, 1, S).
        owner: the state that may use it now.
        graph, logits: the recorded step, and where its result arrives.
    """

    ids: torch.Tensor
    t: torch.Tensor
    past: list
    memory: list
    mask: torch.Tensor
    owner: object = None
    graph: object = None
    logits: torch.Tensor = None

    def empty(self):
        """Forget what an earlier search left."""
        for place in (*self.past, *self.memory, self.mask):
            place.zero_()


def make_room(model, B, k, L, S):
    """An empty `Room` for B sentences, k hypotheses each, on the model's device."""
    c, weight = model.config, next(model.parameters()).detach()
    whole = partial(torch.zeros, dtype=torch.long, device=weight.device)
    past = [weight.new_zeros(c.N, B * k, c.h, L, width) for width in (c.d_k, c.d_v)]
    memory = [weight.new_zeros(c.N, B, c.h, S, width) for width in (c.d_k, c.d_v)]
    mask = torch.zeros(B, 1, 1, S, dtype=torch.bool, device=weight.device)
    return Room(whole(B * k), whole(1), past, memory, mask)


def layer_in_room(layer, x, past, memory, t, masks):
    """One position through a `DecoderLayer`; its keys and values are written into past.

    Args:
        layer: the layer.
        x: (R, 1, d_model).
        past: K (R, h, L, d_k) and V (R, h, L, d_v) of this layer.
        memory: K (B, h, S, d_k) and V (B, h, S, d_v) of this layer.
        t: the place to write to, (1,).
        masks: of past, (1, L), and of memory, (B, 1, 1, S).

    Returns:
        (R, 1, d_model).
    """

    def look_back(x):
        for places, new in zip(past, layer.self_attention.keys_values(x)):
            places.index_copy_(2, t, new)
        return layer.self_attention.attend(x, *past, masks[0])  # (R, 1, d_model)

    def look_across(x):  # to one memory, the hypotheses of a sentence are so many queries
        queries = x.reshape(masks[1].shape[0], -1, x.shape[-1])  # (B, R / B, d_model)
        return layer.cross_attention.attend(queries, *memory, masks[1]).reshape(x.shape)

    x = layer.add_norm[0](x, look_back)  # (R, 1, d_model)
    x = layer.add_norm[1](x, look_across)  # (R, 1, d_model)
    return layer.add_norm[2](x, layer.feed_forward)  # (R, 1, d_model)


def step_in_room(model, room, compute=layer_in_room):
    """Logits (R, vocab) after a room's last tokens, whose keys and values are written into it."""
    places = torch.arange(room.past[0].shape[-2], device=room.t.device)  # (L,)
    masks = (places <= room.t)[None], room.mask  # (1, L), (B, 1, 1, S)
    x = model.target_embedding(room.ids[:, None])  # (R, 1, d_model)
    x = x + model.positions(room.t).to(x.dtype)  # (R, 1, d_model)
    past, memory = zip(*room.past), zip(*room.memory)  # a K and a V for each layer
    for layer, *cache in zip(model.decoder.layers, past, memory):
        x = compute(layer, x, *cache, room.t, masks)  # (R, 1, d_model)
    logits = model.target_embedding.logits(model.decoder.norm(x))  # (R, 1, vocab)
    return model.output_bias(logits)[:, 0]  # (R, vocab)


@dataclass(eq=False)
class RoomState:
    """What a search by `RecordedSteps` remembers; a step or a move uses it up.

    Args:
        steps: where rooms come from.
        room: the one in use.
        rows: hypotheses, the first of the room.
        k: of these for each sentence.
        t: positions so far.
    """

    steps: nn.Module
    room: Room
    rows: int
    k: int = 1
    t: int = 0

    def __post_init__(self):
        self.room.owner = self

    def check(self, ids=None):
        """Refuse to go on in a room that another state uses by now, and another number of ids."""
        if self.room.owner is not self:
            raise ValueError("this state was used before: keep the newer one, or start again")
        if ids is not None and ids.shape != (self.rows,):
            raise ValueError(f"ids must be ({self.rows},), not {tuple(ids.shape)}")

    def select(self, rows):
        """Go on with hypotheses rows, (R',), as many a sentence as before, side by side."""
        return self.move(rows, self.k, self.room.past[0].shape[-2])

    def repeat(self, k):
        """k hypotheses in the place of each one."""
        rows = torch.arange(self.rows, device=self.room.ids.device)  # (R,)
        return self.move(rows.repeat_interleave(k), self.k * k, self.room.past[0].shape[-2])

    @torch.inference_mode()
    def move(self, rows, k, L):
        """Hypotheses rows, (R',), k a sentence, go on in a room of L positions that fits them."""
        self.check()
        old, sentences = self.room, rows[::k] // self.k  # (B',)
        together = sentences.repeat_interleave(k)  # (R',)
        if rows.device.type == "cpu" and not torch.equal(rows // self.k, together):
            wanted = f"keep the {k} hypotheses of a sentence together"
            raise ValueError(f"rows must {wanted}, got {rows.tolist()}")
        new = old  # if none goes on, no room is needed
        if len(rows):
            new = self.steps.room_for(len(sentences), k, L, old.mask.shape[-1])
        if new is not old:
            new.empty()
        for x, place in zip(old.past, new.past):
            place[:, : len(rows), :, : self.t] = x[..., : self.t, :].index_select(1, rows)
        for x, place in zip(old.memory, new.memory):
            place[:, : len(sentences)] = x.index_select(1, sentences)
        new.mask[: len(sentences)] = old.mask.index_select(0, sentences)
        old.owner = None
        return RoomState(self.steps, new, len(rows), k, self.t)


class RecordedSteps(nn.Module):
    """A Transformer whose steps of decoding have few shapes and are replayed on a GPU.

    It writes what the model writes. Searches share its rooms: one at a time. Choose device and
    precision before, use no autocast; weights may be written to later, but not replaced.

    Args:
        model: a Transformer, fused or not, of any precision.
        compute: as in `step_in_room`.
        least: positions of the smallest room, on either side.
    """

    def __init__(self, model, compute=layer_in_room, least=32):
        super().__init__()
        self.model, self.config = model, model.config
        self.compute, self.least = compute, least
        self.rooms, self.pool = {}, None
        self.train(model.training)  # a new module would say that it trains

    def room_for(self, B, k, L, S):
        """The room of these sizes, rounded up."""
        least = (B, 1), (L, self.least), (S, self.least)
        B, L, S = (1 << (max(pair) - 1).bit_length() for pair in least)
        if (B, k, L, S) not in self.rooms:
            self.rooms[B, k, L, S] = make_room(self.model, B, k, L, S)
        return self.rooms[B, k, L, S]

    @torch.inference_mode()
    def start(self, source):
        """The state before the first step, a hypothesis a sentence of source, (B, S)."""
        begun, (B, S) = self.model.start(source), source.shape
        room = self.room_for(B, 1, 1, S)
        room.empty()
        for place, layers in zip(room.memory, zip(*begun.memory)):
            place[:, :B, :, :S] = torch.stack(layers)
        room.mask[:B, ..., :S] = begun.mask
        return RoomState(self, room, B)

    @torch.inference_mode()
    def step(self, ids, state):
        """Logits (R, vocab) for the token after ids, (R,), and a new state; the old is used up."""
        state.check(ids)
        L = state.room.past[0].shape[-2]
        if state.t == L:
            state = state.move(torch.arange(len(ids), device=ids.device), state.k, 2 * L)
        room = state.room
        room.ids[: len(ids)] = ids
        room.t.fill_(state.t)
        logits = self.replay(room)[: len(ids)].clone()  # (R, vocab)
        return logits, RoomState(self, room, len(ids), state.k, state.t + 1)

    def replay(self, room):
        """The step of a room, recorded where it can be."""
        work = partial(step_in_room, self.model, room, self.compute)
        if not room.t.is_cuda:
            return work()
        if room.graph is None:
            room.graph, room.logits = recording(work, self.pool)
            self.pool = self.pool or room.graph.pool()
        room.graph.replay()
        return room.logits


@dataclass
class Team:
    """The processes that train together, seen from one of them (section 5.2).

    Args:
        rank, size: which one this is, and of how many.
    """

    rank: int = 0
    size: int = 1

    def mine(self, batches):
        """This process's share of an update's batches.

        Raises:
            ValueError: they cannot be shared equally.
        """
        if len(batches) % self.size:
            number = f"{len(batches)} batches for {self.size} processes"
            raise ValueError(f"accumulate must be a multiple of the processes, got {number}")
        return batches[self.rank :: self.size]

    def wrap(self, objective):
        """The objective, its gradients averaged over all processes."""
        if self.size == 1:
            return objective
        return nn.parallel.DistributedDataParallel(objective)

    def quiet(self, objective, more):
        """A context that sends nothing, while more batches of the update are to come."""
        sends = hasattr(objective, "no_sync")
        return objective.no_sync() if more and sends else nullcontext()

    def mean(self, value):
        """The mean over all processes of a tensor."""
        if self.size > 1:
            dist.all_reduce(value)
        return value / self.size

    def agree(self, asked):
        """Whether any process has been asked; all wait here, and a lost one is noticed."""
        flag = torch.tensor(int(asked))  # on the CPU, so that no GPU waits
        if self.size > 1:
            dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)

    @contextmanager
    def turn(self):
        """The first process goes alone, the others after it."""
        if self.rank:
            self.agree(False)
        yield
        if not self.rank:
            self.agree(False)


class FastUpdate:
    """`update` of chapter 10 by an `Objective`, on one GPU or on each of several.

    Args:
        passes: a `Passes` or `Recorded`.
        team: a `Team`, or None for one process.
    """

    def __init__(self, passes, team=None):
        self.passes, self.team = passes, team or Team()

    def __call__(self, model, adam, batches):
        """As `update`; of several processes each gets all batches and computes its own."""
        pad, device = model.config.pad, next(model.parameters()).device
        tokens = sum((target[:, 1:] != pad).sum().item() for _, target in batches)
        adam.zero_grad(set_to_none=self.passes.empties)
        # DDP and FSDP take the mean over processes; the sum is wanted.
        scale = torch.full((), self.team.size / tokens, device=device)
        total, mine = torch.zeros((), device=device), self.team.mine(batches)
        for number, batch in enumerate(mine, 1):
            with self.team.quiet(self.passes.objective, number < len(mine)):
                there = (ids.to(device, non_blocking=True) for ids in batch)
                total += self.passes(*there, scale)
        total = self.team.mean(total)
        if device.type == "cpu" and not total.isfinite():
            raise FloatingPointError(f"the loss is {total.item():.3g}")
        adam.step()
        return total, tokens


@contextmanager
def together(team, folder=None):
    """Inside, the loss of a process of the team is an error that says what is kept.

    Raises:
        ConnectionError: another process was lost.
    """
    try:
        yield
    except RuntimeError as error:
        words = r"gloo|nccl|connection|peer|socket|timed? ?out"
        if team.size == 1 or not re.search(words, str(error), re.IGNORECASE):
            raise
        found = list_checkpoints(folder)[-1:] if folder else []
        kept = f"checkpoint {found[0].name} is whole; " if found else ""
        lost = f"process {team.rank} of {team.size} has lost another one"
        what = f"{lost}; {kept}the same command goes on, with as many processes or fewer"
        raise ConnectionError(what) from error


@dataclass
class TeamRun(Run):
    """A `Run` of several processes that stay in step; the first has the folder."""

    team: Team = field(default_factory=Team)

    def stops(self, signals):
        """Whether anybody was asked to stop."""
        with together(self.team, self.folder):
            return self.team.agree(bool(signals))

    def resume(self, keep, every=1):
        """Go on from the first process's newest checkpoint."""
        super().resume(keep, every)
        if self.team.size > 1:
            saved = self.adam.state_dict()
            averages = saved["state"].items()
            state = {i: {k: v.cpu() for k, v in kept.items()} for i, kept in averages}
            sent = [(self.step, self.epoch, self.position), state]
            dist.broadcast_object_list(sent)
            (self.step, self.epoch, self.position), saved["state"] = sent
            self.adam.load_state_dict(saved)
            for tensor in self.model.state_dict().values():
                dist.broadcast(tensor, 0)
        return self

    def advance(self, coming, recipe):
        """One update, together."""
        with together(self.team, self.folder):
            return super().advance(coming, recipe)


@contextmanager
def team_of_environment(device):
    """The team that torchrun has started, or a team of one; ended when the context ends.

    Args:
        device: "cpu" or "cuda".

    A process that is silent for ANNOTATED_TIMEOUT_MINUTES, 30 by default, counts as lost.

    Raises:
        ValueError: more processes than GPUs.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1:
        yield Team()
        return
    gpus = torch.device(device).type == "cuda"
    if gpus:
        local, found = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= found:
            raise ValueError(f"this machine has {found} GPUs: start at most as many processes")
        torch.cuda.set_device(local)
    minutes = float(os.environ.get("ANNOTATED_TIMEOUT_MINUTES", 30))
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=minutes))
    # When one is lost, torchrun ends the others at once; they have to say first what is kept.
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield Team(dist.get_rank(), size)
    signal.signal(signal.SIGTERM, before)
    dist.destroy_process_group()  # not after an error: it would wait for a lost process


def make_run(model, adam, folder, options, team):
    """The run of a fast training: the model fused, perhaps compiled, shared (section 5.2).

    Args:
        model, adam, folder: as for `Run`.
        options: with device, precision and compile, as the command line gives them.
        team: a `Team`.
    """
    fuse(model)
    compute = loss_piece
    if options.compile:
        compiled(model)
        compute = torch.compile(loss_piece, dynamic=True)
    kind = torch.device(options.device).type
    name = options.precision or ("bfloat16" if kind == "cuda" else "float32")
    objective = team.wrap(Objective(model, compute=compute))
    update = FastUpdate(Passes(objective, precision_context(name, kind)), team)
    return TeamRun(model, adam, folder, update=update, team=team)


@contextmanager
def fast_worker(options):
    """Appendix H's `Worker` for GPUs and for several processes.

    Args:
        options: of `train`; their device becomes this process's own.
    """
    with team_of_environment(options.device) as team:
        if team.size > 1 and options.device == "cuda":
            options.device = f"cuda:{os.environ['LOCAL_RANK']}"
        start = partial(make_run, options=options, team=team)
        with together(team, options.out):
            yield Worker(team.rank == 0, fused_attention, team.turn, Prefetch, start)


def shard(objective, team, device="cpu"):
    """Leave each process its share of the weights, layer by layer, in place (FSDP).

    Make the optimizer afterwards; gradients are means over processes, as with `Team.wrap`.

    Args:
        objective: an `Objective`, the same in every process.
        team: its processes.
        device: "cpu" or "cuda".

    Returns:
        the objective.
    """
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh(torch.device(device).type, (team.size,))
    model = objective.model
    for layer in (*model.encoder.layers, *model.decoder.layers):
        fully_shard(layer, mesh=mesh)
    return fully_shard(objective, mesh=mesh)
