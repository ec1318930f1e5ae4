"""Multi-head attention.

Generated from book/04-multihead.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from annotated.attention import scaled_dot_product_attention

__all__ = ["MultiHeadAttention", "AttentionDropout"]


def _head_widths(d_model, h, d_k=None, d_v=None):
    """The widths d_k, d_v of a head's keys and values (section 3.2.2).

    Raises:
        ValueError: a size is less than 1, or h does not divide d_model where it has to.
    """
    sizes = {"d_model": d_model, "h": h, "d_k": d_k, "d_v": d_v}
    small = [name for name, size in sizes.items() if size is not None and size < 1]
    if small:
        raise ValueError(f"{small[0]} must be at least 1, not {sizes[small[0]]}")
    if None in (d_k, d_v) and d_model % h:
        raise ValueError(f"h={h} does not divide d_model={d_model}: give d_k and d_v, or another h")
    return d_k or d_model // h, d_v or d_model // h


def _check_inputs(x, memory, d_model):
    """Refuse inputs that are not (B, T, d_model) and (B, S, d_model): ValueError."""
    for name, given in (("x", x), ("memory", memory)):
        shape = tuple(given.shape)
        if len(shape) != 3 or shape[0] != x.shape[0] or shape[2] != d_model:
            wanted = f"({len(x)} sentences, positions, {d_model})"
            raise ValueError(f"{name} must be {wanted}, not of shape {shape}")


def _check_axes(mask):
    """Refuse a mask whose first axis could be sentences, and would be read as heads: ValueError."""
    if isinstance(mask, Tensor) and mask.dim() == 3:
        shape = tuple(mask.shape)
        raise ValueError(f"mask must be (T, S) or have four axes, (B, h, T, S), not {shape}")


class _CachedAttention(nn.Module):
    """Attention one step at a time."""

    keys_values: Callable[[Tensor], tuple[Tensor, Tensor]]
    attend: Callable[..., Tensor]

    def step(self, x: Tensor, cache: Any, mask: Tensor | None = None) -> Tensor:
        """Let new positions, x (B, n, d_model), attend to those of the cache and themselves.

        Args:
            cache: a `KVCache` (chapter 7), to which their keys and values are added.
            mask: as in `forward`; by default the cache's own.
        """
        K, V = cache.update(*self.keys_values(x))
        return self.attend(x, K, V, cache.mask if mask is None else mask)


class MultiHeadAttention(_CachedAttention):
    """Attend h times in parallel, each time through projections of its own (section 3.2.2).

    Args:
        d_model: width of what comes in and goes out.
        h: number of heads.
        d_k: width of a head's queries and keys; default d_model / h.
        d_v: width of a head's values; default d_model / h.
        bias: whether the four projections add a bias; the paper's formula has none.
        attention: what each head computes, called with (Q, K, V, mask).

    Raises:
        ValueError: impossible sizes; in use, shapes that do not fit.
    """

    def __init__(
        self, d_model: int, h: int, d_k: int | None = None, d_v: int | None = None,
        bias: bool = False, attention: Callable = scaled_dot_product_attention,
    ):
        super().__init__()
        d_k, d_v = _head_widths(d_model, h, d_k, d_v)
        self.d_model = d_model
        self.h = h
        self.W_Q = nn.Linear(d_model, h * d_k, bias)  # the h matrices W_i^Q side by side
        self.W_K = nn.Linear(d_model, h * d_k, bias)
        self.W_V = nn.Linear(d_model, h * d_v, bias)
        self.W_O = nn.Linear(h * d_v, d_model, bias)
        self.attention = attention

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let each position of x attend to the positions of memory.

        Args:
            x: where the queries come from, (B, T, d_model).
            memory: where keys and values come from, (B, S, d_model); x in self-attention.
            mask: boolean, (T, S) or four axes that broadcast to (B, h, T, S); True = may attend.

        Returns:
            (B, T, d_model); a position that may attend to nothing gets the bias of W_O, or 0.
        """
        _check_inputs(x, memory, self.d_model)
        return self.attend(x, *self.keys_values(memory), mask)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project memory, (B, S, d_model), to K (B, h, S, d_k) and V (B, h, S, d_v)."""
        K = self.W_K(memory)
        V = self.W_V(memory)
        return self.split(K), self.split(V)  # (B, h, S, d_k), (B, h, S, d_v)

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let x, (B, T, d_model), attend to keys and values that are already projected."""
        _check_axes(mask)
        Q = self.split(self.W_Q(x))  # (B, h, T, d_k)
        heads = self.attention(Q, K, V, mask)  # (B, h, T, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)

    def split(self, x: Tensor) -> Tensor:
        """View the last axis as h heads: (B, T, h * d) to (B, h, T, d)."""
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, T, d)


class AttentionDropout(nn.Module):
    """Drop attention weights in training (named in section 6.3; in the released code, 0 in the first tag).

    Args:
        attention: a function called with (Q, K, V, mask, dropout).
        P_drop: probability of dropping a weight.

    Raises:
        ValueError: P_drop is not a probability less than 1.
    """

    def __init__(self, attention: Callable, P_drop: float):
        super().__init__()
        if not 0 <= P_drop < 1:
            raise ValueError(f"P_drop must be at least 0 and less than 1, not {P_drop}")
        self.attention = attention
        self.P_drop = P_drop

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend, with dropout in training mode only; shapes as in attention."""
        return self.attention(Q, K, V, mask, self.P_drop if self.training else 0.0)
