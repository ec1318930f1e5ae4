"""On GPUs.

Generated from book/14-gpu.md by tools/tangle.py: edit the chapter, not this file.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from annotated.attention import _check_mask, _check_sizes, _check_values, scaled_dot_product_attention
from annotated.data import Batches, _Plan, _plan_batches, make_batch
from annotated.layers import FusedLayerNorm, LayerNorm, _is_hooked
from annotated.masks import causal_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention
from annotated.recurrent import _casts
from annotated.transformer import Config, Decoder, Transformer

__all__ = [
    "products",
    "training_flops",
    "ceilings",
    "precision_context",
    "fused_attention",
    "fused_causal_attention",
    "fuse",
    "join_projections",
    "chunked_loss",
    "Objective",
    "StaticBatches",
    "unpadded_attention",
    "UnpaddedObjective",
    "compiled",
    "TrainStep",
    "FastUpdate",
    "Prefetch",
]


def products(config: Config, S: float | Tensor, T: float | Tensor) -> float | Tensor:
    """Multiplications in the matrix products of a forward pass (Figure 1, logits included).

    S and T are the source and target tokens of a pair, or of many pairs, as tensors of one shape.
    """
    c = config
    heads = c.h * (c.key_width + c.value_width)
    projections = 2 * c.d_model * heads
    ffn = 2 * c.d_model * c.d_ff
    encoder = S * (projections + ffn + S * heads)
    decoder = T * (projections + ffn + T * heads)
    cross = (S + T) * projections // 2 + S * T * heads
    return c.N * encoder + c.decoder_layers * (decoder + cross) + T * c.d_model * c.vocab


def training_flops(config: Config, S: float | Tensor, T: float | Tensor) -> float | Tensor:
    """Operations that training needs for a pair: 3 times the forward `products`, 2 for each."""
    return 3 * 2 * products(config, S, T)


def _wait_for(device):
    """Wait until a GPU has done all it was given; a CPU has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _calls_a_second(function, device, seconds=1.0):
    """How often a function can be called in a second; three calls before do not count."""
    for _ in range(3):
        function()
    _wait_for(device)
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(5):
            function()
        _wait_for(device)
        count += 5
    return count / (time.perf_counter() - began)


def ceilings(
    device: torch.device | str, n: int = 8192, seconds: float = 1.0
) -> dict[str, float]:
    """What a machine reaches in large products and in copies: the ceilings of a roofline.

    Args:
        device: which.
        n: side of the square matrices; a copy moves one of them in float32.
        seconds: of each measurement.

    Returns:
        operations a second "float32", "tf32" (a GPU) and "bfloat16", and bytes a second "copy",
        read and written both counted.
    """
    rates = {}
    before = torch.get_float32_matmul_precision()
    a = torch.randn(n, n, device=device)
    b = torch.empty_like(a)
    names = ("float32", "tf32", "bfloat16") if a.is_cuda else ("float32", "bfloat16")
    for name in names:
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        x = a.bfloat16() if name == "bfloat16" else a
        y = torch.empty_like(x)
        multiply = partial(torch.mm, x, x, out=y)
        rates[name] = 2 * n**3 * _calls_a_second(multiply, device, seconds)
    torch.set_float32_matmul_precision(before)
    rates["copy"] = 2 * 4 * n * n * _calls_a_second(lambda: b.copy_(a), device, seconds)
    return rates


def precision_context(
    name: str, device: torch.device | str
) -> Callable[[], AbstractContextManager]:
    """How matrix products are to be computed: what makes a context for each forward pass.

    The precision of float32 products is set at once and for the whole process; only bfloat16
    needs the context.

    Args:
        name: "float32"; "tf32", which changes products on a GPU only; or "bfloat16", by autocast.
        device: where.

    Raises:
        ValueError: there is no such precision.
    """
    if name not in ("float32", "tf32", "bfloat16"):
        raise ValueError(f"precision must be float32, tf32 or bfloat16, got {name!r}")
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    if name == "bfloat16":
        return partial(torch.autocast, torch.device(device).type, dtype=torch.bfloat16)
    return nullcontext


def _aligned(mask):
    """The same mask, its rows at multiples of 8 in memory, as a GPU's kernels want them."""
    if not mask.is_cuda:
        return mask
    S = mask.shape[-1]
    # Never 0 more: the compiler would make a second program for lengths that need none.
    return F.pad(mask, (0, 8 - S % 8))[..., :S]


# Fastest first. The kernel of cuDNN is left out: it makes a plan for every new shape.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def _attend(Q, K, V, mask=None, dropout=0.0, causal=False):
    """PyTorch's `scaled_dot_product_attention`, by one of `_KERNELS` on a GPU."""
    choose = sdpa_kernel(_KERNELS, set_priority=True) if Q.is_cuda else nullcontext()
    with choose:
        return F.scaled_dot_product_attention(Q, K, V, mask, dropout, causal)  # (..., T, d_v)


def fused_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """`scaled_dot_product_attention` by PyTorch's fused kernels (section 3.2.1, Eq. 1).

    Args, returns, raises: as `scaled_dot_product_attention`.
    """
    _check_sizes(Q, K)
    _check_values(K, V)
    if mask is None:
        return _attend(Q, K, V, None, dropout)  # (..., T, d_v)
    leading = torch.broadcast_shapes(Q.shape[:-2], K.shape[:-2])
    _check_mask(mask, (*leading, Q.shape[-2], K.shape[-2]))
    mask = torch.atleast_2d(mask)
    some = mask.any(-1, keepdim=True)  # (..., 1)
    # A row without a key looks at all and is cut afterwards: no 0/0 in either pass.
    seen = _aligned(mask | ~some)  # (..., S)
    out = _attend(Q, K, V, seen, dropout)  # (..., T, d_v)
    return out.masked_fill(~some, 0.0)


def fused_causal_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """`fused_attention` for a decoder's own words, under the causal mask (section 3.2.3).

    Args, returns: as `scaled_dot_product_attention`; for as many queries as keys the mask is
    the causal one, and a GPU does not read its values.

    Raises:
        ValueError: it is another one (its values are looked at on a CPU only).
    """
    T = Q.shape[-2]
    S = K.shape[-2]
    if mask is None or T != S:  # a step of decoding, whose mask hides what is not written yet
        return fused_attention(Q, K, V, mask, dropout)
    _check_sizes(Q, K)
    _check_values(K, V)
    _check_mask(mask, (*Q.shape[:-1], S))
    on_cpu = mask.device.type == "cpu" and not torch.compiler.is_compiling()
    if mask.shape[-2:] != (T, T) or on_cpu and not (mask == causal_mask(T)).all():
        raise ValueError(f"mask must be causal_mask({T}): use fused_attention")
    return _attend(Q, K, V, None, dropout, causal=True)


def _inner_attention(module):
    """The function with which a `MultiHeadAttention` attends, without its dropout."""
    dropped = isinstance(module.attention, AttentionDropout)
    return module.attention.attention if dropped else module.attention


_DOT_PRODUCTS = scaled_dot_product_attention, fused_attention, fused_causal_attention


def _use_attention(module, attention):
    """Let a `MultiHeadAttention` make its scaled dot products elsewhere, dropout kept."""
    if _inner_attention(module) in _DOT_PRODUCTS:
        if isinstance(module.attention, AttentionDropout):  # a layer's attentions share theirs
            attention = AttentionDropout(attention, module.attention.P_drop)
            attention.train(module.training)
        module.attention = attention


def fuse(model: Transformer) -> Transformer:
    """Give a Transformer fused attention and norms, in place; its weights keep their names.

    A norm with forward hooks, or with a `forward` of its own, stays. Returns the model.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is LayerNorm and not _is_hooked(child):
                setattr(module, name, FusedLayerNorm.of(child))
        if isinstance(module, MultiHeadAttention):
            _use_attention(module, fused_attention)
    for layer in model.decoder.layers:
        _use_attention(layer.self_attention, fused_causal_attention)
    if _to_autocast not in model.dropout._forward_hooks.values():
        model.dropout.register_forward_hook(_to_autocast)
    return model


def _to_autocast(module, inputs, x):
    """A forward hook: hand x on in the precision of autocast, where that is enabled."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if _casts(x) else x


def _joint(linear, x, layers):
    """What several linear layers make of the same x, (..., m), by one product: (..., sum of k)."""
    W = torch.cat([layer.weight for layer in layers])  # (sum of k, m)
    b = None
    if layers[0].bias is not None:
        b = torch.cat([layer.bias for layer in layers])  # (sum of k,)
    return linear(x, W, b)


def _can_join(layers):
    """Whether one product may stand for all: plain linear layers, whose hooks it would not call."""
    return all(
        (type(layer) is nn.Linear or getattr(layer, "_is_linear", False)) and not _is_hooked(layer)
        for layer in layers
    )


def _apart(x, layers):
    """Cut what `_joint` has made, (..., sum of k), into the outputs of the layers."""
    return x.split([len(layer.weight) for layer in layers], -1)


class _JointAttention(MultiHeadAttention):
    """`MultiHeadAttention` that makes queries, keys and values of x by one product."""

    linear: Callable

    @classmethod
    def of(cls, plain, linear=F.linear):
        """With the projections of another attention, not copies of them."""
        d_k, d_v = (layer.out_features // plain.h for layer in (plain.W_K, plain.W_V))
        with torch.device("meta"):
            made = cls(plain.d_model, plain.h, d_k, d_v, plain.W_Q.bias is not None)
        made.attention = plain.attention
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            setattr(made, name, getattr(plain, name))
        made.linear = linear
        return made.train(plain.training)

    def forward(self, x, memory, mask=None):
        """memory is x, or keys (B, S, h * d_k) and values (B, S, h * d_v), or as ever."""
        layers = [self.W_Q, self.W_K, self.W_V]
        if memory is x and _can_join(layers):
            Q, K, V = _apart(_joint(self.linear, x, layers), layers)
        elif isinstance(memory, tuple):
            Q = self.W_Q(x)  # (B, T, h * d_k)
            K, V = memory
        else:
            return super().forward(x, memory, mask)
        heads = self.attention(*map(self.split, (Q, K, V)), mask)  # (B, h, T, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)


class _JointDecoder(Decoder):
    """A `Decoder` that makes the keys and values of the memory by one product for all layers."""

    linear: Callable

    @classmethod
    def of(cls, plain, linear=F.linear):
        """With the layers of another decoder, whose attentions are joint ones."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.layers = plain.layers
        made.norm = plain.norm
        made.linear = linear
        return made.train(plain.training)

    def forward(self, x, memory, causal, mask=None):
        """As the plain one's; each layer gets keys and values of its own for a memory."""
        attentions = [layer.cross_attention for layer in self.layers]
        layers = [each for made in attentions for each in (made.W_K, made.W_V)]
        if not _can_join(layers):
            return super().forward(x, memory, causal, mask)
        parts = _apart(self.place(_joint(self.linear, memory, layers), mask), layers)
        for layer, K, V in zip(self.layers, parts[::2], parts[1::2], strict=True):
            x = layer(x, (K, V), causal, mask)  # (B, T, d_model)
        return self.norm(x)  # (B, T, d_model)

    def place(self, x, mask):
        """Where attention wants what has been made of the memory: here it stays."""
        return x


def _check_plain(
    model, kinds=(MultiHeadAttention, Decoder), ours=(_JointAttention, _JointDecoder),
    said="joint projections would leave out",
):
    """Refuse modules that would be replaced and do more than their classes: ValueError.

    Args:
        model: in which they are.
        kinds: the classes of what is replaced.
        ours: classes derived from these that may be replaced, too.
        said: the end of the message.
    """
    for name, module in model.named_modules():
        kind = type(module)
        if not isinstance(module, kinds) or kind in (*kinds, *ours) and not _is_hooked(module):
            continue
        what = "has hooks"
        if kind not in (*kinds, *ours):  # such as an adapter
            what = f"is of class {kind.__name__}"
        elif "forward" in vars(module):
            what = "has a forward of its own"
        raise ValueError(f"{name or 'the model'} {what}, which {said}")


def join_projections(model: Transformer) -> Transformer:
    """Let a Transformer project by few large products, in place (section 3.2.2).

    Weights keep their names. Not for `shard`: the memory is projected outside of the layers.

    Returns the model.

    Raises:
        ValueError: an attention or the decoder is of another class, has hooks, or a
            `forward` of its own; nothing is changed then.
    """
    _check_plain(model)
    for layer in model.encoder.layers:
        layer.self_attention = _JointAttention.of(layer.self_attention)
    for layer in model.decoder.layers:
        layer.self_attention = _JointAttention.of(layer.self_attention)
        layer.cross_attention = _JointAttention.of(layer.cross_attention)
    model.decoder = _JointDecoder.of(model.decoder)
    return model


def _loss_piece(x, W, target, eps, pad):
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
    right = target[:, None]  # (n, 1)
    real = right != pad  # (n, 1)
    total = logits.logsumexp(-1, keepdim=True)  # (n, 1)
    lost = total - (1 - eps) * logits.gather(-1, right) - eps * logits.mean(-1, keepdim=True)
    # Compared, not scattered: one kernel can then make the slope of one reading of the logits.
    here = torch.arange(len(W), device=x.device) == right  # (n, vocab)
    kept = logits.new_full((), 1 - eps)  # times a boolean, a Python number would be float32
    slope = (logits - total).exp() - eps / len(W) - kept * here  # (n, vocab)
    return (lost * real).sum(), (slope * real).to(x.dtype)


@dataclass(frozen=True)
class _Pieces:
    """How the loss is cut: rows positions at a time, by compute, which may be compiled."""

    eps: float = 0.1
    pad: int = 0
    rows: int = 4096
    compute: Callable = _loss_piece


def _refuse_second():
    """Refuse to be differentiated twice: a gradient made by hand is no part of a graph."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # by create_graph=True
        said = "the fast loss and the fast linear maps can be differentiated only once"
        raise RuntimeError(f"{said}: take the plain ones, or create_graph=False")


class _LossInPieces(torch.autograd.Function):
    """The arithmetic of `chunked_loss`: gradients are made with the loss, piece by piece."""

    @staticmethod
    def forward(ctx, x, W, target, pieces):
        """The loss of x (n, d_model), W (vocab, d_model) and target (n,)."""
        dtype = x.dtype
        plainly: AbstractContextManager = nullcontext()
        if _casts(x):
            dtype = torch.get_autocast_dtype(x.device.type)
            plainly = torch.autocast(x.device.type, enabled=False)
        total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        by_x = torch.empty_like(x)  # (n, d_model)
        by_W = torch.zeros_like(W)  # (vocab, d_model)
        with plainly:
            low = x.to(dtype)
            w = W.to(dtype)
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
        _refuse_second()
        by_x, by_W = ctx.saved_tensors
        # At least 32 bits: a factor that is rounded to 16 would shift every gradient alike.
        wide = torch.promote_types(by_x.dtype, torch.float32)
        return (by_x.to(wide) * above).to(by_x.dtype), by_W * above, None, None


def chunked_loss(x: Tensor, W: Tensor, target: Tensor, pieces: _Pieces | None = None) -> Tensor:
    """`label_smoothed_loss(x @ W.T, target, ..., "sum")` without ever holding all logits.

    Args:
        x: decoder outputs, (..., d_model).
        W: the tied matrix, (vocab, d_model).
        target: identifiers, (...).
        pieces: how it is cut.

    Returns:
        A scalar, in nats; it can be differentiated only once.

    Raises:
        ValueError: shapes do not fit, or a piece has no rows.
        RuntimeError: differentiated with create_graph=True.
    """
    pieces = pieces or _Pieces()
    if x.shape[:-1] != target.shape or x.shape[-1] != W.shape[-1]:
        shapes = f"{tuple(x.shape)}, {tuple(W.shape)} and {tuple(target.shape)}"
        wanted = "(..., d), (vocab, d) and (...)"
        raise ValueError(f"x, W and target must be {wanted}, got {shapes}")
    if pieces.rows < 1:
        raise ValueError(f"rows must be 1 or more, got {pieces.rows}")
    return _LossInPieces.apply(x.flatten(0, -2), W, target.flatten(), pieces)


class Objective(nn.Module):
    """A Transformer and its loss as one module.

    Args:
        model: a Transformer.
        rows, compute: as in `_Pieces`.

    Raises:
        ValueError: the model has an output_bias, which the paper's has not.
    """

    def __init__(self, model: Transformer, rows: int = 4096, compute: Callable = _loss_piece):
        super().__init__()
        if model.config.output_bias:
            raise ValueError("the loss in pieces has no place for output_bias: train with `update`")
        self.model = model
        self.pieces = _Pieces(model.config.eps_ls, model.config.pad, rows, compute)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss of source (B, S), target (B, T + 1), summed over all tokens but padding.

        They may lie on the CPU, from where they are copied while a GPU computes.
        """
        W = self.model.target_embedding.weight  # (vocab, d_model)
        source = source.to(W.device, non_blocking=True)
        target = target.to(W.device, non_blocking=True)
        memory = self.model.encode(source)  # (B, S, d_model)
        x = self.model.hidden(target[:, :-1], memory, source)  # (B, T, d_model)
        return chunked_loss(x, W, target[:, 1:], self.pieces)


@dataclass(frozen=True)
class StaticBatches(Batches):
    """`Batches` of few shapes: one length on both sides, a multiple, and rows to the budget.

    Args:
        multiple: lengths are rounded up to multiples of this.
        eos: ends the rows that fill up.
        others: as for `Batches`.

    Raises:
        ValueError: multiple is less than 1; as `Batches`, a pair that does not fit, rounded.
    """

    multiple: int = 8
    eos: int = 2

    def __post_init__(self):
        super().__post_init__()
        if self.multiple < 1:
            raise ValueError(f"multiple must be 1 or more, got {self.multiple}")

    def _rounded(self, n):
        """The next multiple, of a number or an array."""
        return -(-n // self.multiple) * self.multiple

    def plan(self, epoch: int = 0) -> _Plan:
        """The plan of an epoch by rounded lengths, the same for all workers."""
        pairs: Any = self.pairs
        lengths = getattr(pairs, "lengths", None)
        if lengths is None:
            lengths = [(len(source), len(target)) for source, target in pairs]
        longest = self._rounded(np.asarray(lengths, np.int64).reshape(-1, 2).max(1))  # (n,)
        budgets = self.source_tokens, self.target_tokens
        both = np.column_stack([longest, longest])  # (n, 2)
        return _plan_batches(both, *budgets, self.seed, epoch, self.workers)

    def build(self, plan: _Plan, k: int) -> tuple[Tensor, Tensor]:
        """Batch k of a plan: source (rows, L) and target (rows, L + 1)."""
        pairs: Any = self.pairs
        source, target = make_batch([pairs[i] for i in plan[k].tolist()], self.bos, self.pad)
        L = self._rounded(max(source.shape[1], target.shape[1] - 1))
        rows = min(self.source_tokens, self.target_tokens) // L
        wide = source.new_full((rows, L), self.pad)  # (rows, L)
        longer = target.new_full((rows, L + 1), self.pad)  # (rows, L + 1)
        wide[:, 0] = self.eos
        longer[:, 0] = self.bos
        wide[: len(source), : source.shape[1]] = source
        longer[: len(target), : target.shape[1]] = target
        return wide, longer


def _sent(x, device):
    """x on a device; to a GPU from pinned memory, so that the program does not wait for the copy."""
    if torch.device(device).type == "cuda" and not x.is_cuda:
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


@dataclass(frozen=True)
class _Layout:
    """Where the n real tokens of a padded batch stand, which follow each other when packed.

    Args:
        real: which places of the batch are real tokens, (B, L), at the beginning of each row.
        index: these places, counted row by row, (n,).
        ends: where each sentence ends among the packed tokens, after a 0, (B + 1,).
    """

    real: Tensor
    index: Tensor
    ends: Tensor

    @classmethod
    def of(cls, real: Tensor, device: torch.device | str) -> "_Layout":
        """The layout of a batch, found where `real` lies and then copied to the device."""
        index = real.flatten().nonzero().flatten()  # (n,)
        ends = F.pad(real.sum(1).cumsum(0), (1, 0)).int()  # (B + 1,)
        return cls(*(_sent(x, device) for x in (real, index, ends)))

    def positions(self) -> Tensor:
        """The position of each token in its own sentence, (n,)."""
        return self.index % self.real.shape[1]  # (n,)

    def ids(self, padded: Tensor) -> Tensor:
        """The tokens of a padded batch, (B, L), one after the other, (1, n)."""
        return padded.flatten()[self.index][None]  # (1, n)

    def spread(self, x: Tensor) -> Tensor:
        """Put packed heads, (1, h, n, d), to their places in (B, h, L, d)."""
        B, L = self.real.shape
        rows = x[0].transpose(0, 1)  # (n, h, d)
        padded = rows.new_zeros(B * L, *rows.shape[1:]).index_copy(0, self.index, rows)
        return padded.unflatten(0, (B, L)).transpose(1, 2)  # (B, h, L, d)

    def pack(self, x: Tensor) -> Tensor:
        """Pick the real tokens of (B, h, L, d): (1, h, n, d)."""
        rows = x.transpose(1, 2).flatten(0, 1)[self.index]  # (n, h, d)
        return rows.transpose(0, 1)[None]  # (1, h, n, d)


@dataclass(frozen=True)
class _PackedMask:
    """Queries may attend to the keys of their own sentence; under causal, to no later one."""

    queries: _Layout
    keys: _Layout
    causal: bool = False


def unpadded_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Any = None, dropout: float = 0.0
) -> Tensor:
    """Attention within each of many sentences that follow each other (section 3.2.1).

    Args:
        Q: queries, (1, h, n, d_k).
        K, V: keys (1, h, m, d_k) and values (1, h, m, d_v).
        mask: as `UnpaddedObjective` makes it; with any other, or none, this is
            `fused_attention`.
        dropout: as for `fused_attention`.

    Returns:
        (1, h, n, d_v).
    """
    if not isinstance(mask, _PackedMask):
        return fused_attention(Q, K, V, mask, dropout)
    alike = Q.shape[-1] == V.shape[-1] <= 256 and V.shape[-1] % 8 == 0  # the kernel's widths
    narrow = Q.is_cuda and Q.dtype.itemsize == 2 and alike
    if narrow and not dropout and (kernel := _varlen_kernel()):
        return _flash_unpadded(kernel, Q, K, V, mask)
    rows = mask.queries.spread(Q)  # (B, h, T, d_k)
    keys = mask.keys.spread(K)  # (B, h, S, d_k)
    values = mask.keys.spread(V)  # (B, h, S, d_v)
    # Under the causal mask no real query sees padding, which stands at the end.
    seen = None if mask.causal else _aligned(mask.keys.real[:, None, None])  # (B, 1, 1, S)
    out = _attend(rows, keys, values, seen, dropout, mask.causal)
    return mask.queries.pack(out)  # (1, h, n, d_v)


def _varlen_kernel():
    """PyTorch's kernel for sentences of any lengths; None where torch has it in no such form."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before torch 2.10, which calls the causal mask otherwise
        return None
    return varlen_attn if "window_size" in signature(varlen_attn).parameters else None


def _flash_unpadded(kernel, Q, K, V, mask):
    """`unpadded_attention` by `_varlen_kernel`; 16 bits, on a GPU."""
    # The kernel wants tokens first, then heads.
    queries, keys, values = (x[0].transpose(0, 1) for x in (Q, K, V))
    ends = mask.queries.ends, mask.keys.ends
    longest = mask.queries.real.shape[1], mask.keys.real.shape[1]
    window = (-1, 0) if mask.causal else (-1, -1)
    out = kernel(queries, keys, values, *ends, *longest, window_size=window)
    return out.transpose(0, 1)[None]


def _check_sides(source, target, pad):
    """Refuse sides that are no batch, (B, S) and (B, T + 1), and a target that goes on after
    padding (looked at on a CPU only): ValueError."""
    if source.dim() != 2 or target.dim() != 2 or len(source) != len(target):
        found = f"{tuple(source.shape)} and {tuple(target.shape)}"
        raise ValueError(f"source and target must be (B, S) and (B, T + 1), got {found}")
    real = target[:, 1:] != pad  # (B, T)
    # Places without a label are left out: the token before inner padding would be lost.
    if target.device.type == "cpu" and (real[:, 1:] & ~real[:, :-1]).any():
        raise ValueError(f"target must have padding ({pad}) only at its end")


class UnpaddedObjective(Objective):
    """An `Objective` that computes no padding; its model is given `unpadded_attention`.

    Args, raises: as for `Objective`; the model is changed in place, as by `fuse`. In use,
    ValueError: a target goes on after padding (looked at on a CPU only).
    """

    def __init__(self, model: Transformer, rows: int = 4096, compute: Callable = _loss_piece):
        attentions = [m for m in model.modules() if isinstance(m, MultiHeadAttention)]
        if {_inner_attention(m) for m in attentions} - {*_DOT_PRODUCTS, unpadded_attention}:
            raise ValueError("the model has an attention that knows no packed sentences: "
                             "train it by Objective")
        super().__init__(model, rows, compute)
        fuse(model)
        for module in attentions:
            _use_attention(module, unpadded_attention)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss of source (B, S), target (B, T + 1), as `Objective` gives it."""
        model = self.model
        pad = model.config.pad
        _check_sides(source, target, pad)
        W = model.target_embedding.weight  # (vocab, d_model)
        words = _Layout.of(source != pad, W.device)
        labels = _Layout.of(target[:, 1:] != pad, W.device)
        source = source.to(W.device, non_blocking=True)
        target = target.to(W.device, non_blocking=True)
        ids = words.ids(source)  # (1, m)
        x = model.embed(model.source_embedding, ids, words.positions())  # (1, m, d_model)
        memory = model.encoder(x, _PackedMask(words, words))  # (1, m, d_model)
        ids = labels.ids(target[:, :-1])  # (1, n)
        x = model.embed(model.target_embedding, ids, labels.positions())  # (1, n, d_model)
        causal = _PackedMask(labels, labels, True)
        x = model.decoder(x, memory, causal, _PackedMask(labels, words))  # (1, n, d_model)
        return chunked_loss(x, W, labels.ids(target[:, 1:]), self.pieces)


def compiled(
    model: Transformer, dynamic: bool = True, backend: str | Callable = "inductor"
) -> Transformer:
    """Compile the layers of a Transformer in place; state and names of the weights stay.

    Args:
        model: this is what is returned.
        dynamic: one program for all shapes; False: one for each.
        backend: as in `torch.compile`; "inductor" writes kernels.
    """
    from torch._dynamo import config  # here, because to load it takes seconds
    from torch.fx.experimental import _config as shapes

    # Both kinds of layer, training and evaluation, and each precision are programs of their
    # own; at the default limit torch would warn and run the rest uncompiled.
    config.recompile_limit = max(64, config.recompile_limit)
    # Cutting a program at DDP's buckets lets gradients leave early; a layer is small enough.
    config.optimize_ddp = False
    # Lengths that are equal in the first batch only must not become one and the same.
    if hasattr(shapes, "use_duck_shape"):  # no public setting, and for the whole process
        shapes.use_duck_shape = False
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.compile(dynamic=dynamic, backend=backend)
    return model


class TrainStep:
    """Forward and backward pass of an objective.

    Args:
        objective: called with (source, target), gives a summed loss.
        context: as `precision_context` gives it.
    """

    frees_gradients = True  # whether they may be thrown away between updates

    def __init__(self, objective: nn.Module, context: Callable = nullcontext):
        self.objective = objective
        self.context = context

    def __call__(self, source: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        """Add the gradients of scale * loss, and return it, on the device of scale."""
        with self.context():
            loss = self.objective(source, target) * scale
        loss.backward()
        return loss.detach()


class FastUpdate:
    """`update` of chapter 10 by a `TrainStep` (section 5.3)."""

    def __init__(self, step: TrainStep):
        self.step = step

    def __call__(
        self, model: Transformer, adam: torch.optim.Optimizer, batches: list
    ) -> tuple[Tensor, int]:
        """As `update`: the mean loss a token, and the number of tokens."""
        device = next(model.parameters()).device
        pad = model.config.pad
        tokens = sum(self.count(source, target, pad) for source, target in batches)
        if not tokens:
            raise ValueError("batches hold no target token to predict")
        adam.zero_grad(set_to_none=self.step.frees_gradients)
        total = self.passes(batches, tokens, device)
        if device.type == "cpu" and not total.isfinite():
            raise FloatingPointError(f"the loss is {total.item():.3g}")
        adam.step()
        return total, tokens

    def count(self, source: Any, target: Any, pad: int) -> int:
        """The target tokens that a batch predicts."""
        return (target[:, 1:] != pad).sum().item()

    def passes(self, batches: list, tokens: int, device: torch.device) -> Tensor:
        """Add the gradients of the mean loss over all tokens; returns that loss."""
        total = torch.zeros((), device=device)
        scale = torch.ones((), device=device) / tokens
        for source, target in batches:
            total += self.step(source, target, scale)
        return total


@dataclass(frozen=True)
class Prefetch:
    """Batches, made ahead by a thread, and pinned once a GPU is in use.

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

    def __call__(self, epoch: int = 0, position: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what batches yields, in its order."""
        coming = iter(self.batches(epoch, position))
        pin = torch.cuda.is_initialized()  # as it is once a model lies on a GPU

        def make():
            batch = next(coming, None)
            if batch is None or not pin:
                return batch
            return tuple(x.pin_memory() if isinstance(x, Tensor) else x for x in batch)

        with ThreadPoolExecutor(1) as thread:
            waiting = deque(thread.submit(make) for _ in range(self.ahead))
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(make))
                yield batch
