"""Multi-head attention.

Generated from book/04-multihead.md by tools/tangle.py: edit the chapter, not this file.
"""

from torch import nn

from annotated.attention import scaled_dot_product_attention

__all__ = ["head_widths", "MultiHeadAttention", "AttentionDropout"]


def head_widths(d_model, h, d_k=None, d_v=None):
    """The widths of a head's keys and values (section 3.2.2; Table 3 A and B choose others).

    Args:
        d_model: width of what comes in and goes out.
        h: number of heads.
        d_k: width of queries and keys; default d_model / h.
        d_v: width of values; default d_model / h.

    Returns:
        d_k, d_v.

    Raises:
        ValueError: a size is less than 1; or d_k or d_v is left out and h does not divide
            d_model.
    """
    for name, size in (("d_model", d_model), ("h", h), ("d_k", d_k), ("d_v", d_v)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    if None in (d_k, d_v) and d_model % h:
        raise ValueError(
            f"h={h} does not divide d_model={d_model}: give d_k and d_v, or another h"
        )
    return d_model // h if d_k is None else d_k, d_model // h if d_v is None else d_v


class MultiHeadAttention(nn.Module):
    """Attend h times in parallel, each time through projections of its own (section 3.2.2).

    Args:
        d_model: width of what comes in and goes out.
        h: number of heads.
        d_k: width of a head's queries and keys; default d_model / h.
        d_v: width of a head's values; default d_model / h.
        bias: whether the four projections add a bias; the paper's formula has none.
        attention: what each head computes, called with (Q, K, V, mask).

    Raises:
        ValueError: sizes that `head_widths` refuses; in use, shapes that do not fit.
    """

    def __init__(
        self, d_model, h, d_k=None, d_v=None, bias=False,
        attention=scaled_dot_product_attention,
    ):
        super().__init__()
        d_k, d_v = head_widths(d_model, h, d_k, d_v)
        self.d_model, self.h = d_model, h
        self.W_Q = nn.Linear(d_model, h * d_k, bias)  # the h matrices W_i^Q side by side
        self.W_K = nn.Linear(d_model, h * d_k, bias)
        self.W_V = nn.Linear(d_model, h * d_v, bias)
        self.W_O = nn.Linear(h * d_v, d_model, bias)
        self.attention = attention

    def check(self, name, x):
        """Refuse what the projections cannot read."""
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            wanted = f"(sentences, positions, {self.d_model})"
            raise ValueError(f"{name} must be {wanted}, not of shape {tuple(x.shape)}")

    def split(self, x):
        """View the last axis as h heads: (B, T, h * d) to (B, h, T, d)."""
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, T, d)

    def keys_values(self, memory):
        """Project memory, (B, S, d_model), to K (B, h, S, d_k) and V (B, h, S, d_v)."""
        self.check("memory", memory)
        K, V = self.W_K(memory), self.W_V(memory)
        return self.split(K), self.split(V)  # (B, h, S, d_k), (B, h, S, d_v)

    def attend(self, x, K, V, mask=None):
        """Let x, (B, T, d_model), look at keys and values that are already projected."""
        self.check("x", x)
        if len(x) != len(K):
            found = f"{len(x)} and {len(K)}"
            raise ValueError(f"x and memory must be of as many sentences, not {found}")
        Q = self.split(self.W_Q(x))  # (B, h, T, d_k)
        heads = self.attention(Q, K, V, mask)  # (B, h, T, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)

    def forward(self, x, memory, mask=None):
        """Let each position of x look at the positions of memory.

        Args:
            x: where the queries come from, (B, T, d_model).
            memory: where keys and values come from, (B, S, d_model); x itself in
                self-attention.
            mask: boolean, broadcasts to (B, h, T, S); True = may look.

        Returns:
            (B, T, d_model); a position that may look at nothing gets the bias of W_O, or 0.
        """
        return self.attend(x, *self.keys_values(memory), mask)


class AttentionDropout(nn.Module):
    """Drop attention weights in training (named in section 6.3, done by the released code).

    Args:
        attention: a function called with (Q, K, V, mask, dropout).
        P_drop: probability of dropping a weight.

    Raises:
        ValueError: P_drop is not a probability less than 1.
    """

    def __init__(self, attention, P_drop):
        super().__init__()
        if not 0 <= P_drop < 1:
            raise ValueError(f"P_drop must be at least 0 and less than 1, not {P_drop}")
        self.attention, self.P_drop = attention, P_drop

    def forward(self, Q, K, V, mask=None):
        """Attend, with dropout in training mode only; shapes as in attention."""
        return self.attention(Q, K, V, mask, self.P_drop if self.training else 0.0)
