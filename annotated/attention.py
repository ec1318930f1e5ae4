"""Scaled dot-product attention.

Generated from book/02-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
import torch.nn.functional as F

from annotated.recurrent import additive_scores

__all__ = ["check_sizes", "masked_softmax", "attention_weights", "scaled_dot_product_attention", "additive_attention"]


def check_sizes(Q, K, V=None):
    """Refuse queries, keys and values that do not fit together (section 3.2.1).

    Args:
        Q: queries, (..., T, d_k).
        K: keys, (..., S, d_k).
        V: values, (..., S, d_v), or None where only the weights are wanted.

    Raises:
        ValueError: Q and K differ in width, K and V in number, or one has fewer than two
            axes.
    """
    for name, x in (("Q", Q), ("K", K), ("V", V)):
        if x is not None and x.dim() < 2:
            raise ValueError(f"{name} must have at least two axes, not {tuple(x.shape)}")
    if Q.shape[-1] != K.shape[-1]:
        widths = f"{Q.shape[-1]} and {K.shape[-1]}"
        raise ValueError(f"Q and K must have one width, not {widths}: project one of them")
    if V is not None and K.shape[-2] != V.shape[-2]:
        numbers = f"{K.shape[-2]} keys and {V.shape[-2]} values"
        raise ValueError(f"K and V must come in pairs, not {numbers}")


def masked_softmax(scores, mask=None):
    """Turn each row of scores into weights that sum to 1 (the softmax of Eq. 1).

    Args:
        scores: (..., T, S).
        mask: boolean, broadcasts to (..., T, S); True = may look.

    Returns:
        (..., T, S); a row that may look at nothing is 0.

    Raises:
        TypeError: mask is not boolean.
        ValueError: mask does not broadcast to the shape of the scores.
    """
    if mask is None:
        return scores.softmax(-1)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may look, not {mask.dtype}")
    axes = zip(reversed(mask.shape), reversed(scores.shape))
    if mask.dim() > scores.dim() or any(m not in (1, s) for m, s in axes):
        shapes = f"{tuple(scores.shape)}, not {tuple(mask.shape)}"
        raise ValueError(f"mask must broadcast to the shape of the scores, {shapes}")
    # The lowest finite number, not -inf: a row without any allowed key would be 0/0.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~mask, 0.0)


def attention_weights(Q, K, mask=None):
    """How much each query looks at each key (section 3.2.1, the softmax of Eq. 1).

    Args:
        Q: queries, (..., T, d_k).
        K: keys, (..., S, d_k).
        mask: boolean, broadcasts to (..., T, S); True = may look.

    Returns:
        (..., T, S); each row sums to 1, or to 0 where it may look at nothing.

    Raises:
        TypeError, ValueError: an argument that `check_sizes` or `masked_softmax` refuses.
    """
    check_sizes(Q, K)
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])  # (..., T, S)
    return masked_softmax(scores, mask)


def scaled_dot_product_attention(Q, K, V, mask=None, dropout=0.0):
    """Average the values by how well each key fits the query (section 3.2.1, Eq. 1).

    Args:
        Q: queries, (..., T, d_k).
        K: keys, (..., S, d_k).
        V: values, (..., S, d_v).
        mask: boolean, broadcasts to (..., T, S); True = may look.
        dropout: probability of dropping a weight; 0 in the paper.

    Returns:
        (..., T, d_v); a row that may look at nothing is 0.

    Raises:
        TypeError, ValueError: an argument that `check_sizes` or `masked_softmax` refuses.
    """
    check_sizes(Q, K, V)
    weights = attention_weights(Q, K, mask)  # (..., T, S)
    return F.dropout(weights, dropout) @ V  # (..., T, d_v)


def additive_attention(Q, K, V, v, mask=None):
    """Average the values by additive scores, v . tanh(Q + K)
    (section 3.2.1, second paragraph).

    Args:
        Q: queries after their projection, (..., T, d_k).
        K: keys after theirs, (..., S, d_k).
        V: values, (..., S, d_v).
        v: the scoring vector, (d_k,).
        mask: boolean, broadcasts to (..., T, S); True = may look.

    Returns:
        (..., T, d_v); a row that may look at nothing is 0.

    Raises:
        TypeError, ValueError: an argument that one of the functions called here refuses.
    """
    check_sizes(Q, K, V)
    weights = masked_softmax(additive_scores(Q, K, v), mask)  # (..., T, S)
    return weights @ V  # (..., T, d_v)
