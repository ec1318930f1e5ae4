"""Embeddings and positions.

Generated from book/06-embedding.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.recurrent import _check_ids

__all__ = ["Embedding", "positional_encoding", "LearnedPositions", "halves_encoding"]


def _look_up(weight, rows, name="ids"):
    """Take rows, of any shape, of weight, (n, d_model): rows.shape + (d_model,).

    Raises:
        TypeError, ValueError: rows are not whole numbers from 0 to n - 1.
    """
    _check_ids(name, rows, len(weight), axes=None)
    return F.embedding(rows, weight)  # (..., d_model)


class Embedding(nn.Module):
    """One matrix that turns identifiers into vectors, and vectors into logits (section 3.4).

    Args:
        vocab: number of identifiers.
        d_model: width of a vector.
    """

    def __init__(self, vocab: int, d_model: int):
        super().__init__()
        # Rows of length about 1: logits then have variance 1 where x has variance 1.
        self.weight = nn.Parameter(torch.randn(vocab, d_model) / math.sqrt(d_model))

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids, (B, T), and multiply by sqrt(d_model): (B, T, d_model).

        Raises:
            TypeError, ValueError: ids are not identifiers of the vocabulary.
        """
        x = _look_up(self.weight, ids)  # (B, T, d_model)
        return x * math.sqrt(self.weight.shape[-1])

    def logits(self, x: Tensor) -> Tensor:
        """The pre-softmax projection, same matrix: (B, T, d_model) to (B, T, vocab)."""
        return x @ self.weight.T  # (B, T, vocab)


def _angles(positions, exponents):
    """positions / 10000 ** exponents, for every pair of the two (section 3.5).

    Args:
        positions: any shape, any numbers.
        exponents: (d_model/2,), from 0 towards 1, float64.

    Returns:
        positions.shape + (d_model/2,), in radians, float64.
    """
    # In float64: at position 5000, float32 leaves an error in the fourth decimal of the angle.
    rates = 10000.0**-exponents  # (d_model/2,)
    return positions.double()[..., None] * rates  # (..., d_model/2)


def _pairs(d_model, device):
    """The numbers 0 to d_model/2 - 1 of the pairs of features, float64."""
    if d_model % 2:
        raise ValueError(f"d_model must be even (sines and cosines come in pairs), not {d_model}")
    return torch.arange(d_model // 2, device=device).double()  # (d_model/2,)


def positional_encoding(positions: Tensor, d_model: int) -> Tensor:
    """Sines in the even features, cosines in the odd ones (section 3.5).

    Args:
        positions: (T,) or any shape, counted from 0.
        d_model: width, even.

    Returns:
        positions.shape + (d_model,), float32.

    Raises:
        ValueError: d_model is odd.
    """
    i = _pairs(d_model, positions.device)  # (d_model/2,)
    turn = _angles(positions, 2 * i / d_model)  # (..., d_model/2)
    both = torch.stack([turn.sin(), turn.cos()], dim=-1)  # (..., d_model/2, 2)
    return both.flatten(-2).float()  # (..., d_model)


class LearnedPositions(nn.Module):
    """A vector of its own for each position (section 3.5 and Table 3, row E).

    Args:
        max_positions: how many positions have one.
        d_model: width.
    """

    def __init__(self, max_positions: int, d_model: int):
        super().__init__()
        # The mean square of a sinusoid: words and positions are as large as with sinusoids.
        self.weight = nn.Parameter(torch.randn(max_positions, d_model) / math.sqrt(2))

    def forward(self, positions: Tensor) -> Tensor:
        """Look up positions, any shape: positions.shape + (d_model,).

        Raises:
            TypeError, ValueError: positions are not whole numbers, or one has no vector.
        """
        return _look_up(self.weight, positions, "positions")  # (..., d_model)


def halves_encoding(positions: Tensor, d_model: int) -> Tensor:
    """All sines, then all cosines, exponents from 0 to 1 inclusive (all released code).

    Args, returns and raises as `positional_encoding`.
    """
    i = _pairs(d_model, positions.device)  # (d_model/2,)
    turn = _angles(positions, i / max(d_model // 2 - 1, 1))  # (..., d_model/2)
    return torch.cat([turn.sin(), turn.cos()], dim=-1).float()  # (..., d_model)
