"""Layers: residuals, normalisation, feed-forward.

Generated from book/05-layers.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.recurrent import _casts

__all__ = ["LayerNorm", "AddNorm", "PreNorm", "FeedForward", "FusedLayerNorm"]


class LayerNorm(nn.Module):
    """Normalise each position over its d_model features, then scale and shift (section 3.1).

    Args:
        d_model: number of features.
        eps: added to the variance, inside the root; the paper gives none, the released code
            has 1e-6.

    Raises:
        ValueError: in use, if the last axis of the input is not d_model wide.
        TypeError: in use, if it does not hold floating-point numbers.
    """

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, (..., d_model), to the same shape."""
        d_model = len(self.gain)
        if x.shape[-1:] != (d_model,):  # an axis of 1 would be broadcast in silence
            given = tuple(x.shape)
            raise ValueError(f"x must be (..., {d_model}) for this LayerNorm, not {given}")
        if not x.is_floating_point():  # the result would be rounded to x's kind in silence
            raise TypeError(f"x must hold floating-point numbers, not {x.dtype}")
        # Sums and squares overflow in float16.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # (..., d_model)
        centred = wide - wide.mean(-1, keepdim=True)  # (..., d_model)
        variance = centred.square().mean(-1, keepdim=True)  # (..., 1)
        normalised = centred / torch.sqrt(variance + self.eps)  # (..., d_model)
        return self.gain * normalised.to(x.dtype) + self.bias  # (..., d_model)


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the paper's order (sections 3.1 and 5.4).

    Args:
        d_model: number of features.
        P_drop: dropout on the sub-layer's output, before it is added.
        eps: of the normalisation.

    Raises:
        ValueError: in use, if the sub-layer does not return a tensor of x's shape.
    """

    def __init__(self, d_model: int, P_drop: float = 0.0, eps: float = 1e-6):
        super().__init__()
        self.norm = LayerNorm(d_model, eps)
        self.dropout = nn.Dropout(P_drop)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap sublayer, a function from (B, T, d_model) to the same shape, around x."""
        return self.norm(self.add(x, sublayer(x)))

    def add(self, x: Tensor, change: Tensor) -> Tensor:
        """The residual connection: x and what is left of its change after dropout."""
        if getattr(change, "shape", None) != x.shape:
            given = tuple(x.shape)
            made = tuple(change.shape) if isinstance(change, Tensor) else type(change).__name__
            raise ValueError(f"a sub-layer must keep the shape {given}, not return {made}")
        return x + self.dropout(change)


class PreNorm(AddNorm):
    """x + Dropout(Sublayer(LayerNorm(x))): the order of later released code."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Wrap sublayer, a function from (B, T, d_model) to the same shape, around x."""
        return self.add(x, sublayer(self.norm(x)))


class FeedForward(nn.Module):
    """The same two-layer network at every position (section 3.3, Eq. 2).

    Args:
        d_model: width of what comes in and goes out.
        d_ff: width between the two layers.
        activation: max(0, x) in the paper.
        P_drop: dropout after the activation; 0 in the paper, 0.1 in later released code.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: Callable = torch.relu, P_drop: float = 0.0
    ):
        super().__init__()
        self.W_1 = nn.Linear(d_model, d_ff)
        self.W_2 = nn.Linear(d_ff, d_model)
        self.activation = activation
        self.dropout = nn.Dropout(P_drop)

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (..., d_model), position by position, to the same shape."""
        hidden = self.dropout(self.activation(self.W_1(x)))  # (..., d_ff)
        return self.W_2(hidden)  # (..., d_model)


def _is_hooked(module):
    """Whether a module calls forward hooks, or has a `forward` that is not its class's."""
    if module is None:
        return False
    return "forward" in vars(module) or bool(module._forward_hooks or module._forward_pre_hooks)


class FusedLayerNorm(LayerNorm):
    """`LayerNorm` in one kernel, which keeps the precision of its input (section 3.1)."""

    @classmethod
    def of(cls, norm: LayerNorm) -> "FusedLayerNorm":
        """A fused norm with the gain and the bias of another norm, not copies of them."""
        fused = cls(len(norm.gain), norm.eps)
        fused.gain, fused.bias = norm.gain, norm.bias
        return fused.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, (..., d_model), to the same shape and precision."""
        if x.shape[-1:] != self.gain.shape or not x.is_floating_point():
            return super().forward(x)  # which refuses it
        gain = self.gain.to(x.dtype)
        bias = self.bias.to(x.dtype)
        if not _casts(x):
            return F.layer_norm(x, self.gain.shape, gain, bias, self.eps)
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.gain.shape, gain, bias, self.eps)
