"""Multi-head attention.

Generated from book/04-multihead.md by tools/tangle.py: edit the chapter, not this file.
"""

from torch import nn

from annotated.attention import scaled_dot_product_attention

__all__ = ["MultiHeadAttention", "AttentionDropout"]


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
        ValueError: if d_k or d_v is left out and h does not divide d_model.
    """

    def __init__(self, d_model, h, d_k=None, d_v=None, bias=False, attention=scaled_dot_product_attention):
        super().__init__()
        if d_model % h and None in (d_k, d_v):
            raise ValueError(f"h={h} does not divide d_model={d_model}: choose another h, or give d_k and d_v")
        self.h = h
        d_k, d_v = d_k or d_model // h, d_v or d_model // h
        self.W_Q = nn.Linear(d_model, h * d_k, bias)  # the h matrices W_i^Q side by side
        self.W_K = nn.Linear(d_model, h * d_k, bias)
        self.W_V = nn.Linear(d_model, h * d_v, bias)
        self.W_O = nn.Linear(h * d_v, d_model, bias)
        self.attention = attention

    def split(self, x):
        """View the last axis as h heads: (B, T, h * d) to (B, h, T, d)."""
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, T, d)

    def keys_values(self, memory):
        """Project what is looked at, (B, S, d_model), to K (B, h, S, d_k) and V (B, h, S, d_v)."""
        return self.split(self.W_K(memory)), self.split(self.W_V(memory))

    def attend(self, x, K, V, mask=None):
        """Let x, (B, T, d_model), look at keys and values that are already projected."""
        Q = self.split(self.W_Q(x))  # (B, h, T, d_k)
        heads = self.attention(Q, K, V, mask)  # (B, h, T, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)

    def forward(self, x, memory, mask=None):
        """Let each position of x look at the positions of memory.

        Args:
            x: where the queries come from, (B, T, d_model).
            memory: where keys and values come from, (B, S, d_model); x itself in self-attention.
            mask: boolean, broadcasts to (B, h, T, S); True = may look.

        Returns:
            (B, T, d_model).
        """
        return self.attend(x, *self.keys_values(memory), mask)


class AttentionDropout(nn.Module):
    """Drop attention weights while training (released code from 2017-06 on; the paper names it in section 6.3 only).

    Args:
        attention: a function called with (Q, K, V, mask, dropout).
        P_drop: probability of dropping a weight.
    """

    def __init__(self, attention, P_drop):
        super().__init__()
        self.attention, self.P_drop = attention, P_drop

    def forward(self, Q, K, V, mask=None):
        """Attend, with dropout in training mode and without it otherwise."""
        return self.attention(Q, K, V, mask, self.P_drop if self.training else 0.0)
