"""Optimisation.

Generated from book/09-optimization.md by tools/tangle.py: edit the chapter, not this file.
"""

import torch
import torch.nn.functional as F

__all__ = ["learning_rate", "optimizer", "label_smoothed_loss"]


def learning_rate(step, d_model=512, warmup=4000, rate=1.0):
    """The learning rate of update number step, counted from 1 (section 5.3, Eq. 3).

    Args:
        step: number of the update.
        d_model: width of the model.
        warmup: the rate rises linearly until this update, and then falls with the root of the step.
        rate: a factor on the whole; 1 in the paper, 2 in later released code.

    Raises:
        ValueError: if step or warmup is less than 1.
    """
    if step < 1 or warmup < 1:
        raise ValueError(f"step and warmup count from 1, got step={step} and warmup={warmup}")
    return rate * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def optimizer(model, beta1=0.9, beta2=0.98, eps=1e-9):
    """Adam with the constants of section 5.3; its rate is set before every update."""
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=(beta1, beta2), eps=eps, fused=True)


def label_smoothed_loss(logits, target, eps=0.1, pad=0, reduction="mean"):
    """Cross-entropy against a target that keeps 1 - eps and spreads eps over all tokens (section 5.4).

    Args:
        logits: (..., vocab).
        target: identifiers, (...).
        eps: eps_ls of the paper.
        pad: target positions with this identifier count nothing, in the sum and in its divisor.
        reduction: "mean" over the other positions, or "sum".

    Returns:
        A scalar, in nats.
    """
    if logits.dtype.itemsize < 4:  # a sum over the vocabulary needs more digits than half precision has
        logits = logits.float()
    return F.cross_entropy(
        logits.flatten(0, -2),
        target.flatten(),
        ignore_index=pad,
        label_smoothing=eps,
        reduction=reduction,
    )
