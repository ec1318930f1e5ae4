"""Embeddings and positions.

Generated from book/06-embedding.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch
from torch import nn

__all__ = ["Embedding", "angles", "positional_encoding", "halves_encoding", "LearnedPositions"]


class Embedding(nn.Module):
    """One matrix that turns identifiers into vectors, and vectors into logits (section 3.4).

    Args:
        vocab: number of identifiers.
        d_model: width of a vector.
    """

    def __init__(self, vocab, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab, d_model) / math.sqrt(d_model))

    def forward(self, ids):
        """Look up ids, (B, T), and multiply by sqrt(d_model): (B, T, d_model).

        Raises:
            ValueError: if an identifier lies outside the vocabulary (checked on the CPU only).
        """
        vocab, d_model = self.weight.shape
        if ids.device.type == "cpu" and ids.numel() and not 0 <= ids.min() <= ids.max() < vocab:
            raise ValueError(f"ids must lie in 0..{vocab - 1}, got {ids.min().item()}..{ids.max().item()}")
        return self.weight[ids] * math.sqrt(d_model)  # (B, T, d_model)

    def logits(self, x):
        """The pre-softmax projection with the same matrix: (B, T, d_model) to (B, T, vocab)."""
        return x @ self.weight.T  # (B, T, vocab)


def angles(positions, exponents):
    """positions / 10000 ** exponents, for every pair of the two (section 3.5).

    Args:
        positions: (...,), any numbers.
        exponents: (d,), from 0 towards 1.

    Returns:
        (..., d), in radians.
    """
    # In float64: at position 5000, float32 leaves an error in the fourth digit of the angle.
    rates = 10000.0 ** -exponents.double()  # (d,)
    return positions.double()[..., None] * rates  # (..., d)


def positional_encoding(positions, d_model):
    """Sines in the even features, cosines in the odd ones (section 3.5).

    Args:
        positions: (T,) or any shape, counted from 0.
        d_model: width, even.

    Returns:
        positions.shape + (d_model,), float32.

    Raises:
        ValueError: if d_model is odd.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sines and cosines come in pairs, choose an even one")
    pairs = torch.arange(0, d_model, 2, device=positions.device) / d_model  # (d_model/2,)
    turn = angles(positions, pairs)  # (..., d_model/2)
    return torch.stack([turn.sin(), turn.cos()], dim=-1).flatten(-2).float()  # (..., d_model)


def halves_encoding(positions, d_model):
    """All sines, then all cosines, exponents from 0 to 1 inclusive (released code, all versions).

    Args and returns as `positional_encoding`.
    """
    half = torch.arange(d_model // 2, device=positions.device) / (d_model // 2 - 1)  # (d_model/2,)
    turn = angles(positions, half)  # (..., d_model/2)
    return torch.cat([turn.sin(), turn.cos()], dim=-1).float()  # (..., d_model)


class LearnedPositions(nn.Module):
    """A vector of its own for each position (section 3.5 and Table 3, row E).

    Args:
        max_positions: how many positions have one.
        d_model: width.
    """

    def __init__(self, max_positions, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_positions, d_model) / math.sqrt(d_model))

    def forward(self, positions):
        """Look up positions, any shape: positions.shape + (d_model,).

        Raises:
            ValueError: if a position has no vector (checked on the CPU only).
        """
        if positions.device.type == "cpu" and positions.numel() and positions.max() >= len(self.weight):
            raise ValueError(
                f"position {positions.max().item()} has no learned vector: max_positions is {len(self.weight)}"
            )
        return self.weight[positions]  # (..., d_model)
