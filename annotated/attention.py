"""Scaled dot-product attention.

Generated from book/02-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
import torch.nn.functional as F

from annotated.recurrent import additive_scores

__all__ = ["masked_softmax", "attention_weights", "scaled_dot_product_attention", "additive_attention"]


def masked_softmax(scores, mask=None):
    """Turn each row of scores into weights that sum to 1 (the softmax of Eq. 1).

    Args:
        scores: (..., T, S).
        mask: boolean, broadcasts to (..., T, S); True = may look.

    Returns:
        (..., T, S); a row that may look at nothing is 0.
    """
    if mask is None:
        return scores.softmax(-1)
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
    """
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
    """
    weights = attention_weights(Q, K, mask)  # (..., T, S)
    return F.dropout(weights, dropout) @ V  # (..., T, d_v)


def additive_attention(Q, K, V, v, mask=None):
    """Average the values by additive scores, v . tanh(Q + K) (section 3.2.1, second paragraph).

    Args:
        Q: queries after their projection, (..., T, d).
        K: keys after theirs, (..., S, d).
        V: values, (..., S, d_v).
        v: the scoring vector, (d,).
        mask: boolean, broadcasts to (..., T, S); True = may look.

    Returns:
        (..., T, d_v); a row that may look at nothing is 0.
    """
    weights = masked_softmax(additive_scores(Q, K, v), mask)  # (..., T, S)
    return weights @ V  # (..., T, d_v)
