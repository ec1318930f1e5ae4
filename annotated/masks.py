"""Masks.

Generated from book/03-masks.md by tools/tangle.py: edit the chapter, not this file.
"""

import torch
from torch import Tensor

from annotated.recurrent import _check_ids

__all__ = ["padding_mask", "causal_mask"]


def padding_mask(ids: Tensor, pad: int = 0) -> Tensor:
    """Let every query attend to every token but padding, which the paper's text does not mention.

    Args:
        ids: identifiers, (B, S).
        pad: the identifier of padding.

    Returns:
        (B, 1, 1, S), boolean, True = may attend; broadcasts over heads and queries.

    Raises:
        TypeError, ValueError: ids is no batch of identifiers.
    """
    _check_ids("ids", ids)
    return (ids != pad)[:, None, None, :]  # (B, 1, 1, S)


def causal_mask(T: int, device: torch.device | str | None = None) -> Tensor:
    """Let position t attend to positions 0 to t and to nothing later (section 3.2.3).

    Args:
        T: number of positions.
        device: where the mask is made; the CPU by default.

    Returns:
        (T, T), boolean, True = may attend.

    Raises:
        ValueError: T is negative.
    """
    if T < 0:
        raise ValueError(f"T must be 0 or more positions, not {T}")
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()  # (T, T)
