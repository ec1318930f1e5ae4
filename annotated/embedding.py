"""Embeddings and positions.

Generated from book/06-embedding.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["look_up", "Embedding", "angles", "positional_encoding", "LearnedPositions", "halves_encoding"]


def look_up(weight, rows, name):
    """Take rows of a matrix, as its product with one-hot vectors would (section 3.4).

    Args:
        weight: (n, d_model).
        rows: whole numbers from 0 to n - 1, any shape.
        name: what the rows are called in a message.

    Returns:
        rows.shape + (d_model,).

    Raises:
        TypeError: rows are not whole numbers.
        ValueError: there is no such row (looked up on a CPU only).
    """
    if rows.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be whole numbers (torch.long), not {rows.dtype}")
    n = len(weight)
    if rows.device.type == "cpu" and rows.numel() and not 0 <= rows.min() <= rows.max() < n:
        found = f"{rows.min().item()}..{rows.max().item()}"
        raise ValueError(f"{name} must lie in 0..{n - 1}, not {found}")
    return F.embedding(rows, weight)  # (..., d_model)


class Embedding(nn.Module):
    """One matrix that turns identifiers into vectors, and vectors into logits (section 3.4).

    Args:
        vocab: number of identifiers.
        d_model: width of a vector.
    """

    def __init__(self, vocab, d_model):
        super().__init__()
        # Rows of length about 1: logits then have variance 1 where x has variance 1.
        self.weight = nn.Parameter(torch.randn(vocab, d_model) / math.sqrt(d_model))

    def forward(self, ids):
        """Look up ids, (B, T), and multiply by sqrt(d_model): (B, T, d_model).

        Raises:
            TypeError: ids are not whole numbers.
            ValueError: an identifier lies outside the vocabulary (looked up on a CPU only).
        """
        x = look_up(self.weight, ids, "ids")  # (B, T, d_model)
        return x * math.sqrt(self.weight.shape[-1])

    def logits(self, x):
        """The pre-softmax projection, same matrix: (B, T, d_model) to (B, T, vocab)."""
        return x @ self.weight.T  # (B, T, vocab)


def angles(positions, exponents):
    """positions / 10000 ** exponents, for every pair of the two (section 3.5).

    Args:
        positions: any shape, any numbers.
        exponents: (n,), from 0 towards 1, float64.

    Returns:
        positions.shape + (n,), in radians, float64.
    """
    # In float64: at position 5000, float32 leaves an error in the fourth decimal of the angle.
    rates = 10000.0**-exponents  # (n,)
    return positions.double()[..., None] * rates  # (..., n)


def positional_encoding(positions, d_model):
    """Sines in the even features, cosines in the odd ones (section 3.5).

    Args:
        positions: (T,) or any shape, counted from 0.
        d_model: width, even.

    Returns:
        positions.shape + (d_model,), float32.

    Raises:
        ValueError: d_model is odd.
    """
    if d_model % 2:
        raise ValueError(
            f"d_model must be even (sines and cosines come in pairs), not {d_model}"
        )
    pairs = torch.arange(0, d_model, 2, device=positions.device)  # (d_model/2,)
    turn = angles(positions, pairs.double() / d_model)  # (..., d_model/2)
    both = torch.stack([turn.sin(), turn.cos()], dim=-1)  # (..., d_model/2, 2)
    return both.flatten(-2).float()  # (..., d_model)


class LearnedPositions(nn.Module):
    """A vector of its own for each position (section 3.5 and Table 3, row E).

    Args:
        max_positions: how many positions have one.
        d_model: width.
    """

    def __init__(self, max_positions, d_model):
        super().__init__()
        # The mean square of a sinusoid: words and positions are as loud as with sinusoids.
        self.weight = nn.Parameter(torch.randn(max_positions, d_model) / math.sqrt(2))

    def forward(self, positions):
        """Look up positions, any shape: positions.shape + (d_model,).

        Raises:
            TypeError: positions are not whole numbers.
            ValueError: a position has no vector (looked up on a CPU only).
        """
        return look_up(self.weight, positions, "positions")  # (..., d_model)


def halves_encoding(positions, d_model):
    """All sines, then all cosines, exponents from 0 to 1 inclusive (all released code).

    Args, returns and raises as `positional_encoding`.
    """
    if d_model % 2:
        raise ValueError(
            f"d_model must be even (sines and cosines come in pairs), not {d_model}"
        )
    pairs = torch.arange(d_model // 2, device=positions.device)  # (d_model/2,)
    last = max(d_model // 2 - 1, 1)
    turn = angles(positions, pairs.double() / last)  # (..., d_model/2)
    return torch.cat([turn.sin(), turn.cos()], dim=-1).float()  # (..., d_model)
