"""Rows beside those of Table 3 that change what a Config does not say: scale, FFN, residual connection, positions.

Not a benchmark itself. Sizes are the paper's, as in `annotated.variations`; 17_variations.py divides them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from annotated.attention import scaled_dot_product_attention
from annotated.embedding import positional_encoding
from annotated.layers import AddNorm, PreNorm
from annotated.transformer import Transformer
from annotated.variations import Variation


@dataclass(frozen=True)
class Changed(Variation):
    """A variation that other options of `Transformer` make, or a change of the model made."""

    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Transformer], None] = lambda model: None

    def model(self, config):
        model = Transformer(config, **self.options)
        self.change(model)
        return model


def scaled(power, Q, K, V, mask=None):
    """Attention whose dot products are divided by d_k to this power: 1/2 in the paper."""
    return scaled_dot_product_attention(Q * Q.shape[-1] ** (0.5 - power), K, V, mask)


class Nothing(nn.Module):
    """Stands for a feed-forward network, and adds nothing."""

    def forward(self, x):
        return torch.zeros_like(x)


def layers_of(model):
    return [*model.encoder.layers, *model.decoder.layers]


def without_ffn(model):
    """Each layer's last sub-layer adds nothing any more."""
    for layer in layers_of(model):
        layer.feed_forward = Nothing()


class BareNorm(AddNorm):
    """LayerNorm(Dropout(Sublayer(x)))."""

    def add(self, x, change):
        return self.dropout(change)


class BarePreNorm(PreNorm):
    """Dropout(Sublayer(LayerNorm(x)))."""

    def add(self, x, change):
        return self.dropout(change)


def without_residual(model):
    """No sub-layer's input is added to its output."""
    for layer in layers_of(model):
        for part in layer.add_norm:
            part.__class__ = BarePreNorm if isinstance(part, PreNorm) else BareNorm


@dataclass(frozen=True)
class Positions(Variation):
    """Row E with other first vectors of the positions, or with vectors that training does not change."""

    sines: bool = False
    fixed: bool = False

    def model(self, config):
        model = Transformer(config)
        rows = model.positions.weight
        if self.sines:
            rows.data = positional_encoding(torch.arange(len(rows)), config.d_model)
        rows.requires_grad_(not self.fixed)
        return model


POWERS = {"none": 0.0, "root": 0.5, "d_k": 1.0}
DEPTHS = 2, 4, 8, 12

SCALES = {  # d_k as it is after a division by 4
    f"scale {name} d_k={d_k}": Changed({"d_k": 4 * d_k}, options={"attention": partial(scaled, power)})
    for d_k in (16, 64, 256) for name, power in POWERS.items()
}
WITHOUT = {
    "no FFN": Changed(change=without_ffn),
    "no FFN N=12": Changed({"N": 12}, change=without_ffn),
    **{f"residual N={N}": Variation({"N": N}) for N in DEPTHS},
    **{f"no residual N={N}": Changed({"N": N}, change=without_residual) for N in DEPTHS},
}
POSITIONS = {  # row E is learned, from random vectors; base has sines, fixed
    "positions from sines": Positions({"positions": "learned"}, sines=True),
    "positions random fixed": Positions({"positions": "learned"}, fixed=True),
}
INSIDE = SCALES | WITHOUT | POSITIONS
