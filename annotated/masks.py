"""Masks.

Generated from book/03-masks.md by tools/tangle.py: edit the chapter, not this file.
"""

import torch

__all__ = ["padding_mask", "causal_mask"]


def padding_mask(ids, pad=0):
    """Let everyone look at every token that is not padding (section 3.2.3; the paper leaves padding unsaid).

    Args:
        ids: (B, S).
        pad: the identifier of padding.

    Returns:
        (B, 1, 1, S), boolean, True = may look; broadcasts over heads and queries.
    """
    return (ids != pad)[:, None, None, :]  # (B, 1, 1, S)


def causal_mask(T, device=None):
    """Let position t look at positions 0 to t and at nothing later (section 3.2.3).

    Returns:
        (T, T), boolean, True = may look.
    """
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()  # (T, T)
