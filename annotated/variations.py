"""Variations.

Generated from book/17-variations.md by tools/tangle.py: edit the chapter, not this file.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from annotated.attention import masked_softmax
from annotated.multihead import MultiHeadAttention
from annotated.recurrent import additive_scores
from annotated.transformer import BASE, Config, Transformer

__all__ = ["Variation", "TABLE_3", "shrink"]


@dataclass(frozen=True)
class Variation:
    """A row of Table 3, or another model to stand beside them, at the paper's size.

    Args:
        changes: fields of `Config` that differ from the base model's.
        recipe: fields of `Recipe` that differ from the paper's, but for the number of updates.
        scores: makes a module that is called as attention is, from h and d_k; None: dot products.
    """

    changes: dict[str, Any] = field(default_factory=dict, hash=False)  # a dict has no hash
    recipe: dict[str, Any] = field(default_factory=dict, hash=False)
    scores: Callable[[int, int], nn.Module] | None = None

    @property
    def config(self) -> Config:
        """The configuration at the paper's size."""
        return replace(BASE, **self.changes)

    def model(self, config: Config) -> Transformer:
        """A new model of this kind, of the sizes of config.

        Raises:
            ValueError: config has attention dropout, which only dot products apply.
        """
        if self.scores is not None and config.P_drop_attention:
            raise ValueError("other scores have no attention dropout: P_drop_attention must be 0")
        model = Transformer(config)
        if self.scores is not None:
            for part in model.modules():
                if isinstance(part, MultiHeadAttention):
                    part.attention = self.scores(part.h, part.W_Q.out_features // part.h)
        return model


TABLE_3 = {
    "base": Variation(),
    "A h=1": Variation({"h": 1}),
    "A h=4": Variation({"h": 4}),
    "A h=16": Variation({"h": 16}),
    "A h=32": Variation({"h": 32}),
    "B d_k=16": Variation({"d_k": 16}),
    "B d_k=32": Variation({"d_k": 32}),
    "C N=2": Variation({"N": 2}),
    "C N=4": Variation({"N": 4}),
    "C N=8": Variation({"N": 8}),
    "C d_model=256": Variation({"d_model": 256}),
    "C d_model=1024": Variation({"d_model": 1024}),
    "C d_ff=1024": Variation({"d_ff": 1024}),
    "C d_ff=4096": Variation({"d_ff": 4096}),
    "D P_drop=0.0": Variation({"P_drop": 0.0}),
    "D P_drop=0.2": Variation({"P_drop": 0.2}),
    "D eps_ls=0.0": Variation({"eps_ls": 0.0}),
    "D eps_ls=0.2": Variation({"eps_ls": 0.2}),
    "E learned": Variation({"positions": "learned"}),
    "big": Variation({"d_model": 1024, "d_ff": 4096, "h": 16, "P_drop": 0.3}),
}


def shrink(config: Config, width: int = 8, depth: int = 2) -> Config:
    """The same model made narrower and shallower, with as many heads as before.

    Args:
        config: a configuration at the paper's size.
        width: divides d_model and d_ff, and d_k and d_v where the configuration states them.
        depth: divides N, and N_decoder where the configuration states it.

    Raises:
        ValueError: width or depth is less than 1, or does not divide a size.
    """
    for name, factor in (("width", width), ("depth", depth)):
        if factor < 1:
            raise ValueError(f"{name} must be at least 1, not {factor}")
    factors = {"N": depth, "N_decoder": depth}
    factors |= dict.fromkeys(("d_model", "d_ff", "d_k", "d_v"), width)
    sizes: dict[str, Any] = {}
    for name, factor in factors.items():
        size = getattr(config, name)
        if size is None:  # d_k, d_v or N_decoder, which follows from another
            continue
        if size % factor:
            raise ValueError(f"{name}={size} cannot be divided by {factor}")
        sizes[name] = size // factor
    return replace(config, **sizes)


_T_975 = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def _around_mean(values, further):
    """mean - reach and mean + reach, where reach is t * s * sqrt(further + 1/n).

    further is 0 for the interval of the mean itself, and 1 for that of one more value.
    """
    n = len(values)
    if not 2 <= n <= len(_T_975):
        raise ValueError(f"values must be 2 to {len(_T_975)} numbers, got {n}")
    mean = sum(values) / n
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    reach = _T_975[n - 1] * std * math.sqrt(further + 1 / n)
    return mean - reach, mean + reach


def _mean_interval(values):
    """Where the mean of all values of this kind lies, with 95 % confidence, if they are normal.

    Args:
        values: numbers, 2 to 11 of them, such as the differences of two models, seed by seed.

    Returns:
        low, high.

    Raises:
        ValueError: there are fewer than 2 values, or more than 11.
    """
    return _around_mean(values, 0)


class _AdditiveHeads(nn.Module):
    """Score by a layer of tanh in each of h heads, instead of by dot products (section 3.2.1)."""

    def __init__(self, h: int, d_k: int):
        super().__init__()
        self.v = nn.Parameter(torch.randn(h, d_k) / math.sqrt(d_k))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Average the values as `scaled_dot_product_attention` does, by these scores.

        Q (B, h, T, d_k), K (B, h, S, d_k) and V (B, h, S, d_v) give (B, h, T, d_v).
        """
        heads = zip(Q.unbind(1), K.unbind(1), self.v)
        scores = torch.stack([additive_scores(q, k, v) for q, k, v in heads], 1)  # (B, h, T, S)
        return masked_softmax(scores, mask) @ V  # (B, h, T, d_v)


class _BilinearHeads(nn.Module):
    """Score by q W k in each of h heads, with W learned, instead of by q k (Luong et al. 2015)."""

    def __init__(self, h: int, d_k: int):
        super().__init__()
        self.W = nn.Parameter(torch.randn(h, d_k, d_k) / math.sqrt(d_k))

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Average the values as `scaled_dot_product_attention` does, by these scores.

        Q (B, h, T, d_k), K (B, h, S, d_k) and V (B, h, S, d_v) give (B, h, T, d_v).
        """
        scores = Q @ self.W @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])  # (B, h, T, S)
        return masked_softmax(scores, mask) @ V  # (B, h, T, d_v)


_SCORES = {
    "additive": Variation(scores=_AdditiveHeads),
    "bilinear": Variation(scores=_BilinearHeads),
}

_PRE_NORM = {
    f"pre-norm {row}": Variation(TABLE_3[row].changes | {"norm": "pre", "final_norm": True})
    for row in ("base", "C N=2", "C N=8")
}

_RELEASED_PRESETS = {
    "paper": Variation(),
    "t2t_v1": Variation(
        {"positions": "halves", "bias": True, "eps_ls": 0.1 * BASE.vocab / (BASE.vocab - 1)},
        {"source_tokens": 8 * 4096, "target_tokens": 8 * 4096},
    ),
    "t2t_v3": Variation(
        {"positions": "halves", "norm": "pre", "final_norm": True, "P_drop_attention": 0.1,
         "P_drop_ffn": 0.1, "eps_ls": 0.1 * BASE.vocab / (BASE.vocab - 1)},
        {"source_tokens": 8 * 4096, "target_tokens": 8 * 4096,
         "beta2": 0.997, "warmup": 8000, "rate": 2.0},
    ),
}


def _prediction_interval(values):
    """Where one more value of the same kind lies with probability 0.95, if they are normal.

    Args:
        values: numbers, 2 to 11 of them, such as the scores of one model over several seeds.

    Returns:
        low, high.

    Raises:
        ValueError: there are fewer than 2 values, or more than 11.
    """
    return _around_mean(values, 1)
