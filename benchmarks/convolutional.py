"""A convolutional translator (Gehring et al. 2017), the third family of the paper's section 2 and Table 2.

Not a benchmark itself. Blocks of a convolution, a gated linear unit and a residual connection; each block of the
decoder looks at the source by attention of one head. As published: learned positions, weight normalisation of the
convolutions, sums scaled by the root of a half. Its parts have the names that `annotated.recurrent` gives to those of
the recurrent network, so that `train` and `Translator` take it too.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

HALF = math.sqrt(0.5)


@dataclass(frozen=True)
class ConvolutionalConfig:
    """Sizes; `layers` of each stack, and positions that an output of a block reads, an odd number."""

    vocab: int
    d_model: int = 256
    layers: int = 4
    kernel: int = 3
    P_drop: float = 0.1
    max_positions: int = 1024
    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3


class ConvolutionalSeq2Seq(nn.Module):
    """Source (B, S) and target (B, T) give logits (B, T, vocab)."""

    def __init__(self, config: ConvolutionalConfig):
        super().__init__()
        self.config, d = config, config.d_model
        self.embedding = nn.Embedding(config.vocab, d, config.pad)
        self.position = nn.Embedding(config.max_positions, d)
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.1)
        self.encoder = self._convolutions()
        self.decoder = self._convolutions()
        self.W_Q = nn.ModuleList(nn.Linear(d, d) for _ in self.decoder)
        self.W_C = nn.ModuleList(nn.Linear(d, d) for _ in self.decoder)
        self.W_O = nn.Linear(d, config.vocab)
        self.dropout = nn.Dropout(config.P_drop)

    def _convolutions(self):
        d, k, keep = self.config.d_model, self.config.kernel, 1 - self.config.P_drop
        made = nn.ModuleList(nn.Conv1d(d, 2 * d, k) for _ in range(self.config.layers))
        for layer in made:  # a gate halves, dropout thins: so the variance stays what it was
            nn.init.normal_(layer.weight, std=math.sqrt(4 * keep / (k * d)))
            nn.init.zeros_(layer.bias)
        return nn.ModuleList(weight_norm(layer, dim=0) for layer in made)

    def _gated(self, convolution, x):
        """x (B, n + k - 1, d) gives (B, n, d)."""
        return F.glu(convolution(self.dropout(x).transpose(1, 2)), 1).transpose(1, 2)

    def _embed(self, ids, first):
        """ids (B, n), the first of them at position `first` (B,) of its sentence."""
        place = first[:, None] + torch.arange(ids.shape[1], device=ids.device)
        return self.dropout(self.embedding(ids) + self.position(place.clamp(max=self.config.max_positions - 1)))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.advance(target, self.start(source))[0]

    def start(self, source: Tensor) -> dict:
        """The state before the first token."""
        real = (source != self.config.pad)[..., None]  # (B, S, 1)
        beside = self.config.kernel // 2
        first = source.new_zeros(len(source))
        embedded = x = self._embed(source, first) * real  # (B, S, d)
        for convolution in self.encoder:
            x = HALF * (x + self._gated(convolution, F.pad(x, (0, 0, beside, beside)))) * real
        shape = len(source), len(self.decoder), self.config.kernel - 1, self.config.d_model
        return {"K": x, "V": HALF * (x + embedded), "visible": real[:, None, :, 0], "read": first,
                "seen": x.new_zeros(shape)}

    def step(self, ids: Tensor, state: dict) -> tuple[Tensor, dict]:
        """Logits (B, vocab) of what follows ids (B,), and the state after them."""
        logits, state = self.advance(ids[:, None], state)
        return logits[:, 0], state

    def advance(self, target: Tensor, state: dict) -> tuple[Tensor, dict]:
        """Read target tokens (B, T): logits (B, T, vocab) and the state after the last."""
        embedded = x = self._embed(target, state["read"])  # (B, T, d)
        seen, count = [], state["visible"].sum(-1, keepdim=True)  # (B, 1, 1)
        for i, convolution in enumerate(self.decoder):
            before = torch.cat([state["seen"][:, i], x], 1)  # (B, k - 1 + T, d): no block sees what comes
            seen.append(before[:, before.shape[1] - self.config.kernel + 1 :])
            y = self._gated(convolution, before)  # (B, T, d)
            scores = HALF * (self.W_Q[i](y) + embedded) @ state["K"].mT  # (B, T, S)
            weights = scores.masked_fill(~state["visible"], -math.inf).softmax(-1)
            found = weights @ state["V"] * count.sqrt()  # a mean of many has a smaller variance than each
            x = HALF * (x + HALF * (y + self.W_C[i](found)))
        state = {**state, "seen": torch.stack(seen, 1), "read": state["read"] + target.shape[1]}
        return self.W_O(self.dropout(x)), state


def multiply_adds(config: ConvolutionalConfig, S: int, T: int) -> int:
    """Of the matrix products of a forward pass over a sentence of S tokens and its translation of T."""
    d, block = config.d_model, config.kernel * 2 * config.d_model**2
    each = (S + T) * block + T * 2 * d * d + 2 * T * S * d
    return config.layers * each + T * d * config.vocab
