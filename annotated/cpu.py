"""Training on a CPU.

Generated from book/N-cpu.md by tools/tangle.py: edit the chapter, not this file.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.gpu import (
    FastUpdate,
    Objective,
    TrainStep,
    _apart,
    _check_plain,
    _check_sides,
    _joint,
    _JointAttention,
    _JointDecoder,
    _Layout,
    _refuse_second,
    fuse,
)
from annotated.layers import FusedLayerNorm, LayerNorm
from annotated.masks import causal_mask
from annotated.multihead import MultiHeadAttention
from annotated.training import Run
from annotated.transformer import Decoder, Transformer

__all__ = ["LinearMaps", "calibrate", "CPUObjective", "CPURun"]


def _onednn():
    """oneDNN's x @ W.T + b; None where this torch lacks it, or means something else by it."""
    def multiply(x, W, b=None):
        return torch.ops.mkldnn._linear_pointwise(x, W, b, "none", [], "")

    x = torch.arange(6.0).view(2, 3)
    W = torch.arange(12.0).view(4, 3)
    b = torch.arange(4.0)
    try:
        right = torch.allclose(multiply(x, W, b), F.linear(x, W, b))
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None
    return multiply if right else None


@dataclass(frozen=True)
class _Products:
    """The products of a linear map; those that are named are made by `multiply`.

    Args:
        multiply: as `_onednn` gives it.
        names: some of "forward", "input" and "weight"; the others are torch's own.
    """

    multiply: Callable = F.linear
    names: Collection[str] = ()

    def forward(self, x, W, b=None):
        """x (n, m), W (k, m), b (k,) or None: (n, k)."""
        return (self.multiply if "forward" in self.names else F.linear)(x, W, b)

    def by_input(self, G, W):
        """The gradient by x, (n, m), from that by the output, G (n, k)."""
        return self.multiply(G, W.t()) if "input" in self.names else G @ W

    def by_weight(self, G, x):
        """The gradient by W, (k, m), from G (n, k) and x (n, m)."""
        if "weight" not in self.names:
            return G.t() @ x
        return self.multiply(x.t(), G.t()).t()  # of two transposed factors it copies the first


class _Linear(torch.autograd.Function):
    """`F.linear` by some `_Products`; it can be differentiated only once."""

    @staticmethod
    def forward(ctx, x, W, b, products):
        """x (n, m), W (k, m), b (k,) or None: (n, k)."""
        ctx.save_for_backward(x, W)
        ctx.products = products
        return products.forward(x, W, b)

    @staticmethod
    def backward(ctx, G):
        """Gradients by x, W and b, those that are wanted."""
        _refuse_second()
        x, W = ctx.saved_tensors
        G = G.contiguous()
        of_x, of_W, of_b, _ = ctx.needs_input_grad
        return (
            ctx.products.by_input(G, W) if of_x else None,
            ctx.products.by_weight(G, x) if of_W else None,
            G.sum(0) if of_b else None,
            None,
        )


class LinearMaps:
    """`F.linear`, each of its products by the library that is chosen for its size (section 3.3).

    Args:
        chosen: for a size "k x m" of the weights (k, m), which of "forward", "input" and
            "weight" oneDNN makes; without it, or where torch has no oneDNN, all are torch's own.
    """

    def __init__(self, chosen: Mapping[str, Collection[str]] | None = None):
        self.multiply = _onednn()
        self.chosen = dict(chosen or {})

    def __reduce__(self):  # another process looks for oneDNN itself
        return type(self), (self.chosen,)

    def products(self, x: Tensor, W: Tensor) -> _Products:
        """The products for an input and weights such as these."""
        names = self.chosen.get(_size(*W.shape), ())
        fits = x.dtype == W.dtype == torch.float32 and x.device.type == W.device.type == "cpu"
        if not names or not fits or self.multiply is None or not x.numel():
            return _Products()
        return _Products() if torch.is_autocast_enabled("cpu") else _Products(self.multiply, names)

    def __call__(self, x: Tensor, W: Tensor, b: Tensor | None = None) -> Tensor:
        """x (..., m), W (k, m), b (k,) or None: (..., k)."""
        products = self.products(x, W)
        if not products.names:
            return F.linear(x, W, b)
        rows = x.reshape(-1, x.shape[-1]).contiguous()  # (n, m)
        return _Linear.apply(rows, W, b, products).view(*x.shape[:-1], len(W))  # (..., k)


def _size(k, m):
    """How a size of weights is written in a choice."""
    return f"{k}x{m}"


def calibrate(
    sizes: Collection[tuple[int, int]], rows: int = 512, seconds: float = 0.05
) -> dict[str, list[str]]:
    """Choose for `LinearMaps` what oneDNN makes faster than torch's own products, here and now.

    Args:
        sizes: (k, m) of weights; those with fewer than 2**14 numbers are not tried.
        rows: of the inputs; at most 512 are timed, and at most 2048 of the k and m.
        seconds: for a size, unless three rounds take longer.
    """
    multiply = _onednn()
    chosen = {}
    for k, m in sorted(set(sizes)):
        if multiply is None or k * m < 2**14:
            continue
        plain = _Products()
        other = _Products(multiply, ("forward", "input", "weight"))
        W = torch.ones(min(k, 2048), min(m, 2048))  # not random: the seed is the training's
        x = torch.ones(min(rows, 512), W.shape[1])
        G = torch.ones(len(x), len(W))
        inputs = {"forward": (x, W), "by_input": (G, W), "by_weight": (G, x)}
        names = [name.removeprefix("by_") for name, given in inputs.items()
                 if _faster(getattr(plain, name), getattr(other, name), given, seconds / 3)]
        if names:
            chosen[_size(k, m)] = names
    return chosen


def _faster(plain, other, given, seconds):
    """Whether other(*given) takes less than nine tenths of the time of plain(*given)."""
    shortest = {plain: float("inf"), other: float("inf")}
    until = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < until:
        for function in shortest:
            began = time.perf_counter()
            function(*given)
            shortest[function] = min(shortest[function], time.perf_counter() - began)
        rounds += 1
    return shortest[other] < 0.9 * shortest[plain]


class _Spread(torch.autograd.Function):
    """Put rows (n, d) to the places index (n,) of (places, d); elsewhere stands 0."""

    @staticmethod
    def forward(ctx, rows, index, places):
        """The places, filled."""
        ctx.save_for_backward(index)
        return rows.new_zeros(places, rows.shape[1]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx, G):
        """The gradient by the rows."""
        return G.index_select(0, *ctx.saved_tensors), None, None


class _Pick(torch.autograd.Function):
    """Pick the rows at the places index (n,) of (places, d), no place twice."""

    @staticmethod
    def forward(ctx, padded, index):
        """The rows, (n, d)."""
        ctx.save_for_backward(index)
        ctx.places = len(padded)
        return padded.index_select(0, index)

    @staticmethod
    def backward(ctx, G):
        """The gradient by the places."""
        (index,) = ctx.saved_tensors
        return G.new_zeros(ctx.places, G.shape[1]).index_copy_(0, index, G), None


@dataclass(frozen=True)
class _Within:
    """Packed queries attend to the packed keys of their own sentence; the decoder's, causally."""

    queries: _Layout
    keys: _Layout
    causal: bool = False

    @property
    def mask(self):
        """The mask of the spread sentences; None if all may attend to all."""
        real = self.keys.real
        if self.causal:
            return causal_mask(real.shape[1], real.device)  # (T, T)
        full = len(self.keys.index) == real.numel()
        return None if full else real[:, None, None]  # (B, 1, 1, S)


def _spread(x, layout):
    """The packed rows of x, (1, n, d), as sentences, (B, L, d)."""
    B, L = layout.real.shape
    if len(layout.index) < B * L:
        x = _Spread.apply(x[0], layout.index, B * L)
    return x.view(B, L, x.shape[-1])


def _pack(x, layout):
    """The real tokens of sentences, (B, L, d): (1, n, d)."""
    rows = x.flatten(0, 1)  # (B * L, d)
    if len(layout.index) < len(rows):
        rows = _Pick.apply(rows, layout.index)  # (n, d)
    return rows[None]


class _ChosenLinear(nn.Linear):
    """A linear layer whose function is handed in."""

    _is_linear = True  # for `packed`: another function, not another result
    linear: Callable

    @classmethod
    def of(cls, layer, linear):
        """With the weights of another layer, not copies of them."""
        with torch.device("meta"):
            made = cls(layer.in_features, layer.out_features, layer.bias is not None)
        made.weight, made.bias = layer.weight, layer.bias
        made.linear = linear
        return made

    def forward(self, x):
        """As a linear layer's."""
        return self.linear(x, self.weight, self.bias)


class _PackedAttention(_JointAttention):
    """Chapter 14's attention with one product, which also takes packed sentences."""

    @classmethod
    def of(cls, plain, linear=F.linear):
        """With the projections of another attention, not copies of them."""
        made = super().of(plain, linear)
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            setattr(made, name, _ChosenLinear.of(getattr(plain, name), linear))
        return made.train(plain.training)

    def forward(self, x, memory, mask=None):
        """Under a `_Within`, x is (1, n, d_model); memory is x, or keys and values, spread."""
        if not isinstance(mask, _Within):
            return super().forward(x, memory, mask)
        if memory is x:
            layers = [self.W_Q, self.W_K, self.W_V]
            together = _joint(self.linear, x, layers)  # (1, n, h * (2 d_k + d_v))
            Q, K, V = _apart(_spread(together, mask.queries), layers)
        else:
            Q = _spread(self.W_Q(x), mask.queries)  # (B, T, h * d_k)
            K, V = memory
        heads = self.attention(*map(self.split, (Q, K, V)), mask.mask)  # (B, h, T, d_v)
        return self.W_O(_pack(heads.transpose(1, 2).flatten(2), mask.queries))  # (1, n, d_model)


class _PackedDecoder(_JointDecoder):
    """Chapter 14's decoder with one product for all memories, which also takes packed ones."""

    def place(self, x, mask):
        """What has been made of a packed memory, (1, m, ...), as sentences, (B, S, ...)."""
        return _spread(x, mask.keys) if isinstance(mask, _Within) else x


def _loss_in_place(logits, target, eps):
    """The summed loss of logits (n, vocab), which then hold its gradient (section 5.4).

    Args:
        logits: written over.
        target: identifiers, (n,), none of them padding.
        eps: as for `label_smoothed_loss`.
    """
    vocab = logits.shape[1]
    at_a_time = max(1, 2**18 // vocab)
    total = logits.new_zeros(())
    for rows, right in zip(logits.split(at_a_time), target[:, None].split(at_a_time), strict=True):
        scale = rows.logsumexp(-1, keepdim=True)  # (n, 1)
        lost = scale - (1 - eps) * rows.gather(-1, right) - eps * rows.mean(-1, keepdim=True)
        total += lost.sum()
        rows.sub_(scale).exp_().sub_(eps / vocab)
        rows.scatter_add_(-1, right, rows.new_full((), eps - 1).expand_as(right))
    return total


class _LossInPlace(torch.autograd.Function):
    """`label_smoothed_loss(x @ W.T, target, eps, reduction="sum")`, its gradients made with it."""

    @staticmethod
    def forward(ctx, x, W, target, eps, products):
        """The loss of x (n, d_model), W (vocab, d_model) and target (n,)."""
        logits = products.forward(x, W)  # (n, vocab)
        exact = logits.float() if logits.dtype.itemsize < 4 else logits  # the sum needs it
        total = _loss_in_place(exact, target, eps)
        G = exact.to(logits.dtype)  # (n, vocab)
        ctx.save_for_backward(products.by_input(G, W), products.by_weight(G, x))
        return total

    @staticmethod
    def backward(ctx, above):
        """Gradients by x and W; above is a scalar."""
        _refuse_second()
        by_x, by_W = ctx.saved_tensors
        return by_x * above, by_W * above, None, None, None


def _check_replaced(model):
    """Refuse layers that would be replaced by plain ones, such as adapters: ValueError."""
    plain = nn.Linear, MultiHeadAttention, LayerNorm, Decoder, Transformer
    ours = (FusedLayerNorm, _JointAttention, _JointDecoder,
            _ChosenLinear, _PackedAttention, _PackedDecoder)
    said = "training on a CPU would leave out: train with start=Run"
    _check_plain(model, plain, ours, said)


class CPUObjective(Objective):
    """A Transformer and its loss, made for a CPU: no padding is computed (section 5.4).

    Args:
        model: changed in place; names and values of its weights stay, and its outputs, too.
        linear: computes linear maps.

    Raises:
        ValueError: the model has an output_bias, or layers of other kinds, with hooks or with
            a `forward` of their own; in use, as `UnpaddedObjective`.
    """

    def __init__(self, model: Transformer, linear: LinearMaps | None = None):
        _check_replaced(model)
        super().__init__(fuse(model))
        self.linear = linear or LinearMaps()
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, MultiHeadAttention):
                    setattr(module, name, _PackedAttention.of(child, self.linear))
                elif type(child) is nn.Linear and not isinstance(module, MultiHeadAttention):
                    setattr(module, name, _ChosenLinear.of(child, self.linear))
        model.decoder = _PackedDecoder.of(model.decoder, self.linear)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The loss of source (B, S), target (B, T + 1), summed over all tokens but padding."""
        model = self.model
        pad = model.config.pad
        _check_sides(source, target, pad)
        W = model.target_embedding.weight  # (vocab, d_model)
        words = _Layout.of(source != pad, W.device)
        labels = _Layout.of(target[:, 1:] != pad, W.device)
        x = model.embed(model.source_embedding, words.ids(source), words.positions())
        memory = model.encoder(x, _Within(words, words))  # (1, m, d_model)
        ids = labels.ids(target[:, :-1])  # (1, n)
        x = model.embed(model.target_embedding, ids, labels.positions())  # (1, n, d_model)
        x = model.decoder(x, memory, _Within(labels, labels, True), _Within(labels, words))[0]
        right = labels.ids(target[:, 1:])[0]  # (n,)
        products = self.linear.products(x, W)
        return _LossInPlace.apply(x, W, right, model.config.eps_ls, products)


@dataclass
class CPURun(Run):
    """A `Run` by `CPUObjective`, for `train(..., start=CPURun)`.

    What `calibrate` chooses at its beginning, it keeps; a small model has torch's own products.

    Args:
        rows: of a batch, for the calibration.
        choose: called with sizes and rows, as `calibrate`.
        say: gets a line that says how it trains.
    """

    rows: int = 512
    choose: Callable = calibrate
    say: Callable[[str], None] = lambda line: None

    def resume(self, keep: int, every: int = 1) -> "CPURun":
        """As `Run.resume`; then take what the checkpoint notes, or choose."""
        super().resume(keep, every)
        model: Any = self.model
        if not self.step:
            large = sum(p.numel() for p in model.parameters()) >= 1_500_000
            self.notes = {"onednn": self.choose(_sizes(model) if large else set(), self.rows)}
        if "onednn" not in self.notes:
            self.say("this training goes on in the plain way in which it was begun")
            return self
        linear = LinearMaps(self.notes["onednn"])
        self.update = FastUpdate(TrainStep(CPUObjective(model, linear)))
        self.say(_said(linear))
        return self


def _sizes(model):
    """The sizes (k, m) of all weights that `CPUObjective` hands to its linear maps."""
    sizes = {(len(layer.weight), layer.weight.shape[1])
             for layer in model.modules() if isinstance(layer, nn.Linear)}
    c = model.config
    both = c.h * (c.key_width + c.value_width)
    joint = both + c.h * c.key_width, both * c.decoder_layers
    return sizes | {(k, c.d_model) for k in (*joint, c.vocab)}


def _said(linear):
    """A line about how a training computes."""
    begin = "training without padding, with joint projections; products"
    if not linear.chosen or linear.multiply is None:
        return f"{begin} by torch's default library"
    count = sum(map(len, linear.chosen.values()))
    return f"{begin} by torch's default library, {count} kinds of them by oneDNN"
