"""Scaled dot-product attention.

Generated from book/02-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from annotated.recurrent import additive_scores

__all__ = ["attention_weights", "scaled_dot_product_attention", "masked_softmax", "additive_attention"]


def attention_weights(Q: Tensor, K: Tensor, mask: Tensor | None = None) -> Tensor:
    """How much each query attends to each key (section 3.2.1, the softmax of Eq. 1).

    As in Eq. 1 a product is divided after it is made: in float16 one beyond 65504 overflows
    first, and weights become NaN. `fused_attention` of chapter 14 does not overflow there.

    Args:
        Q: queries, (..., T, d_k).
        K: keys, (..., S, d_k).
        mask: boolean, broadcasts to (..., T, S); True = may attend.

    Returns:
        (..., T, S); each row sums to 1, or to 0 where it may attend to nothing.

    Raises:
        TypeError, ValueError: widths or a mask that do not fit.
    """
    _check_sizes(Q, K)
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])  # (..., T, S)
    return masked_softmax(scores, mask)


def scaled_dot_product_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Average the values by how well each key fits the query (section 3.2.1, Eq. 1).

    Args:
        Q: queries, (..., T, d_k).
        K: keys, (..., S, d_k).
        V: values, (..., S, d_v).
        mask: boolean, broadcasts to (..., T, S); True = may attend.
        dropout: probability of dropping a weight; the caller passes 0 outside training.

    Returns:
        (..., T, d_v); a row that may attend to nothing is 0.

    Raises:
        TypeError, ValueError: sizes or a mask that do not fit.
    """
    weights = attention_weights(Q, K, mask)  # (..., T, S)
    _check_values(K, V)
    return F.dropout(weights, dropout) @ V  # (..., T, d_v)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Turn each row of scores into weights that sum to 1 (the softmax of Eq. 1).

    Args:
        scores: (..., T, S).
        mask: boolean, broadcasts to (..., T, S); True = may attend.

    Returns:
        (..., T, S); a row that may attend to nothing is 0.

    Raises:
        TypeError, ValueError: the mask is not boolean, or does not broadcast.
    """
    if mask is None:
        return scores.softmax(-1)
    _check_mask(mask, scores.shape)
    # The lowest finite number, not -inf: a row without any allowed key would be 0/0.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1).masked_fill(~mask, 0.0)


def _check_sizes(Q, K):
    """Refuse queries and keys, (..., T, d_k) and (..., S, d_k), that do not fit: ValueError."""
    flat = [name for name, x in (("Q", Q), ("K", K)) if x.dim() < 2]
    if flat:
        fault = f"{flat[0]} must have at least two axes"
    elif not Q.shape[-1]:
        fault = "Q and K must have a width of 1 or more, not 0"
    elif Q.shape[-1] != K.shape[-1]:
        widths = f"{Q.shape[-1]} and {K.shape[-1]}"
        fault = f"Q and K must have one width, not {widths}: project one of them"
    else:
        return
    raise ValueError(fault)


def _check_values(K, V):
    """Refuse values, (..., S, d_v), that are not as many as the keys: ValueError."""
    if V.dim() < 2 or K.shape[-2] != V.shape[-2]:
        found = f"{K.shape[-2]} keys and values of shape {tuple(V.shape)}"
        raise ValueError(f"K and V must come in pairs, (..., S, d_v), not {found}")


def _check_mask(mask, scores):
    """Refuse a mask that is not boolean (TypeError) or does not broadcast (ValueError).

    Args:
        mask: what may be looked at.
        scores: the shape of the scores, (..., T, S).
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, not {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may attend, not {mask.dtype}")
    axes = zip(reversed(mask.shape), reversed(scores))
    if len(mask.shape) > len(scores) or any(m not in (1, s) for m, s in axes):
        shapes = f"{tuple(scores)}, not {tuple(mask.shape)}"
        raise ValueError(f"mask must broadcast to the shape of the scores, {shapes}")


def additive_attention(
    Q: Tensor, K: Tensor, V: Tensor, v: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Average the values by additive scores, v . tanh(Q + K) (section 3.2.1).

    Args:
        Q: queries after their projection, (..., T, d_k).
        K: keys after theirs, (..., S, d_k).
        V: values, (..., S, d_v).
        v: the scoring vector, (d_k,).
        mask: boolean, broadcasts to (..., T, S); True = may attend.

    Returns:
        (..., T, d_v); a row that may attend to nothing is 0.

    Raises:
        TypeError, ValueError: sizes or a mask that do not fit.
    """
    weights = masked_softmax(additive_scores(Q, K, v), mask)  # (..., T, S)
    _check_values(K, V)
    return weights @ V  # (..., T, d_v)
