"""Optimisation.

Generated from book/09-optimization.md by tools/tangle.py: edit the chapter, not this file.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "optimizer",
    "learning_rate",
    "label_smoothed_loss",
    "spread_over_all",
    "spread_over_others",
    "spread_over_words",
]


def optimizer(
    model: nn.Module, beta1: float = 0.9, beta2: float = 0.98, eps: float = 1e-9
) -> torch.optim.Adam:
    """Adam with the constants of section 5.3; its rate is set before every update.

    Args:
        model: its parameters are trained.
        beta1, beta2: how slowly the averages of the gradient and of its square forget.
        eps: added to the divisor.

    Raises:
        ValueError: if a beta is outside [0, 1), or eps is not above 0.
    """
    for name, value in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must lie in [0, 1), got {value}")
    if not eps > 0:
        raise ValueError(f"eps must be above 0, got {eps}")
    betas = (beta1, beta2)
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=betas, eps=eps, fused=True)


def learning_rate(
    step: int, d_model: int = 512, warmup: int = 4000, rate: float = 1.0
) -> float:
    """The learning rate of update number step, counted from 1 (section 5.3, Eq. 3).

    Args:
        step, d_model: as in the equation.
        warmup: the rate rises until this update, and then falls with the inverse root of the step.
        rate: a factor on the whole; 1 in the paper, 2 in later released code.

    Raises:
        ValueError: if step, warmup or d_model is less than 1.
    """
    if step < 1 or warmup < 1:
        given = f"step={step} and warmup={warmup}"
        raise ValueError(f"step and warmup count from 1, got {given}")
    if d_model < 1:
        raise ValueError(f"d_model must be 1 or more, got {d_model}")
    return rate * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def label_smoothed_loss(
    logits: Tensor, target: Tensor, eps: float = 0.1, pad: int = 0, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy against targets that keep 1 - eps and spread eps over all (section 5.4).

    Args:
        logits: (..., vocab).
        target: identifiers, (...).
        eps: eps_ls of the paper.
        pad: targets with this identifier count nothing, in the sum and in its divisor.
        reduction: "mean" over the other positions, or "sum".

    Returns:
        A scalar, in nats; a mean is NaN if there is nothing but padding.

    Raises:
        ValueError: if shapes do not fit, eps is outside [0, 1], or reduction is unknown.
    """
    if logits.shape[:-1] != target.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} need a target of shape "
                         f"{tuple(logits.shape[:-1])}, got {tuple(target.shape)}")
    if not 0 <= eps <= 1:
        raise ValueError(f"eps must lie in [0, 1], got {eps}")
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", got {reduction!r}')
    if logits.dtype.itemsize < 4:  # a sum over the vocabulary needs more digits
        logits = logits.float()
    return F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        target.flatten().long(),
        ignore_index=pad,
        label_smoothing=eps,
        reduction=reduction,
    )


def _check_spread(vocab, eps, least):
    """ValueError if vocab is less than least, or eps is outside [0, 1)."""
    if vocab < least:
        raise ValueError(f"vocab must be {least} or more to spread eps over, got {vocab}")
    if not 0 <= eps < 1:
        raise ValueError(f"eps must lie in [0, 1), got {eps}")


def spread_over_all(target: Tensor, vocab: int, eps: float = 0.1, pad: int = 0) -> Tensor:
    """Targets that keep 1 - eps and spread eps over all tokens, the right one too (5.4).

    Args:
        target: identifiers, (...).
        vocab: size of the vocabulary.
        eps: eps_ls of the paper.
        pad: not used; the three definitions are called alike.

    Returns:
        (..., vocab), probabilities.

    Raises:
        ValueError: if vocab is too small, or eps is outside [0, 1).
    """
    _check_spread(vocab, eps, 1)
    each = eps / vocab
    shape = (*target.shape, vocab)
    goal = torch.full(shape, each, device=target.device)  # (..., vocab)
    return goal.scatter_(-1, target[..., None], 1 - eps + each)


def spread_over_others(target: Tensor, vocab: int, eps: float = 0.1, pad: int = 0) -> Tensor:
    """Targets that keep 1 - eps and spread eps over the wrong tokens (released code).

    Args, returns and raises as `spread_over_all`.
    """
    _check_spread(vocab, eps, 2)
    each = eps / (vocab - 1)
    shape = (*target.shape, vocab)
    goal = torch.full(shape, each, device=target.device)  # (..., vocab)
    return goal.scatter_(-1, target[..., None], 1 - eps)


def spread_over_words(target: Tensor, vocab: int, eps: float = 0.1, pad: int = 0) -> Tensor:
    """Targets that keep 1 - eps and spread eps over the wrong tokens that are not padding.

    Args, returns and raises as `spread_over_all`; a target that is padding means nothing.
    """
    apart = 2 if pad >= 0 else 1  # the right token and padding; -1 stands for no padding
    _check_spread(vocab, eps, apart + 1)
    each = eps / (vocab - apart)
    shape = (*target.shape, vocab)
    goal = torch.full(shape, each, device=target.device)  # (..., vocab)
    if pad >= 0:
        goal[..., pad] = 0.0
    return goal.scatter_(-1, target[..., None], 1 - eps)


def _smoothed_loss(logits, target, spread=spread_over_all, eps=0.1, pad=0):
    """Cross-entropy against a target spread by any definition, written out (section 5.4).

    With the default spread the result is the mean of `label_smoothed_loss`, which is the one to
    train with: this one holds arrays as large as the logits.
    """
    if logits.shape[:-1] != target.shape:
        raise ValueError(f"logits of shape {tuple(logits.shape)} need a target of shape "
                         f"{tuple(logits.shape[:-1])}, got {tuple(target.shape)}")
    goal = spread(target, logits.shape[-1], eps, pad).to(logits)  # (..., vocab)
    lost = -(goal * logits.log_softmax(-1)).sum(-1)  # (...)
    return lost[target != pad].mean()
