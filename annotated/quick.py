"""Training in a quarter of an hour.

Generated from book/O-quick.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from annotated.optimization import learning_rate
from annotated.training import Recipe, Run
from annotated.transformer import BASE

__all__ = ["Muon", "by_muon", "QUICK", "QUICK_RECIPE"]


def _orthogonal(G, rounds=5):
    """Matrices of the same directions as G, (n, a, b), with singular values near 1.

    Their values must not be more than 1 at the beginning, so they are divided by the norm.
    """
    X = G / (G.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        A = X @ X.mT  # (n, a, a)
        B = torch.baddbmm(A, A, A, beta=-4.775, alpha=2.0315)
        X = torch.baddbmm(X, B, X, beta=3.4445)  # 3.4445 x - 4.775 x^3 + 2.0315 x^5
    return X


def _product_type(X):
    """bfloat16 for float32 numbers if the processor multiplies it directly; else X's type."""
    can: Any = getattr(torch.cpu, "get_capabilities", dict)()
    direct = X.device.type == "cpu" and (can.get("avx512_bf16") or can.get("amx_bf16"))
    if X.is_cuda:
        direct = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if direct and X.dtype == torch.float32 else X.dtype


class Muon(torch.optim.Adam):
    """Muon for the weights of linear layers, Adam for all else (Jordan et al. 2024).

    Args:
        model: its parameters are trained; the rate is set before every update.
        beta1, beta2, eps: of Adam.
        momentum: how slowly the mean of a matrix's gradients forgets.
    """

    def __init__(self, model: nn.Module, beta1: float = 0.9, beta2: float = 0.98,
                 eps: float = 1e-9, momentum: float = 0.95):
        matrices = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
        apart = set(map(id, matrices))
        rest = [p for p in model.parameters() if id(p) not in apart]
        groups: list[dict] = [{"params": rest}, {"params": matrices, "momentum": momentum}]
        super().__init__(groups, lr=0.0, betas=(beta1, beta2), eps=eps, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        """One update; the matrices then have no gradient any more."""
        loss = None
        if closure is not None:  # it makes the gradients of the matrices, too
            with torch.enable_grad():
                loss = closure()
        _, group = self.param_groups
        alike: dict[tuple, list] = {}
        for p in group["params"]:
            if p.grad is not None:
                alike.setdefault(tuple(sorted(p.shape)), []).append(p)
        for same in alike.values():
            self._turn(same, group["lr"], group["momentum"])
        super().step()
        return loss

    def _turn(self, matrices, lr, momentum):
        """Update matrices of one shape, (a, b) or (b, a), together."""
        wide = []
        for p in matrices:
            state = self.state[p] or {"mean": torch.zeros_like(p), "step": torch.zeros(())}
            self.state[p] = state  # Adam reads "step" when it is loaded again
            mean = state["mean"]
            mean.lerp_(p.grad, 1 - momentum)
            ahead = p.grad.lerp(mean, momentum)  # Nesterov's: the newest counts once more
            wide.append(ahead if ahead.shape[0] <= ahead.shape[1] else ahead.T)
            p.grad = None  # Adam passes over it
        G = torch.stack(wide)  # (n, a, b)
        turned = _orthogonal(G.to(_product_type(G))).to(G.dtype)
        size = 0.2 * max(turned.shape[1:]) ** 0.5
        for p, X in zip(matrices, turned, strict=True):
            p.add_(X if X.shape == p.shape else X.T, alpha=-lr * size)


def _line(recipe, step, d_model):
    """The rate of an update: it rises as in Eq. 3, and falls to 0 in a line."""
    highest = learning_rate(recipe.warmup, d_model, recipe.warmup, recipe.rate)
    left = (recipe.steps - step + 1) / max(1, recipe.steps - recipe.warmup)
    return highest * min(step / recipe.warmup, left)


def by_muon(start: Callable[..., Run] = Run) -> Callable[..., Run]:
    """Make the runs that `start` makes train by `Muon`, with a rate that falls to 0 in a line.

    Args:
        start: as for `train`.

    Returns:
        Another such function; its recipe says "muon".
    """
    return partial(_begin_by_muon, start)


def _begin_by_muon(start, model, adam, folder):
    """A run by Muon, with the constants that the Adam given to it has."""
    beta1, beta2 = adam.defaults["betas"]
    muon = Muon(model, beta1, beta2, adam.defaults["eps"])
    return start(model, muon, folder, schedule=_muon_rate)


def _muon_rate(recipe, step, d_model):
    """`_line`; a recipe for another optimizer is refused."""
    if recipe.optimizer != "muon":
        raise ValueError(f'a run by Muon needs optimizer="muon", got {recipe.optimizer!r}')
    return _line(recipe, step, d_model)


QUICK = replace(BASE, N=4, N_decoder=2, d_model=128, d_ff=512, h=4, vocab=5000, norm="pre")

QUICK_RECIPE = Recipe(
    steps=4200, warmup=252, rate=1.45, source_tokens=1500, target_tokens=1500,
    evaluate_every=200, save_every=100, keep=2, optimizer="muon",
)
