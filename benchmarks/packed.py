"""Packed sentences as rows of one length, so that an update has one shape and can be recorded.

Not a benchmark itself: an idea that 14_ladder.py measures beside the rungs of chapter 14. Batches without padding
differ in their number of tokens, so a compiled program must serve all lengths and nothing can be recorded. Here a row
takes pairs in random order until the next one does not fit, and is filled up with a few sentences of padding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated.data import Batches
from annotated.gpu import FastUpdate, UnpaddedObjective, _Layout, _loss_piece
from annotated.transformer import Transformer


@dataclass(frozen=True)
class PackedBatches(Batches):
    """Rows of exactly so many tokens, sentences one after the other, for `PackedObjective`.

    Args:
        longest: most tokens of a sentence.
        others: as for `Batches`; one worker only.
    """

    longest: int = 128

    @property
    def spare(self) -> int:
        """Tokens of a row that are left free, so that padding makes short sentences."""
        return -(-max(self.source_tokens, self.target_tokens) // self.longest)

    @property
    def sentences(self) -> int:
        """Most sentences of a row, padding counted: one for 16 tokens, and the spare ones."""
        return min(self.source_tokens, self.target_tokens) // 16 + self.spare

    def plan(self, epoch: int = 0) -> Any:
        """The pairs of each batch, in a random order: a list of arrays."""
        lengths = np.asarray([(len(s), len(t)) for s, t in self.pairs], np.int64).reshape(-1, 2)
        room = np.array([self.source_tokens, self.target_tokens]) - self.spare
        limit = min(self.longest, *room.tolist())
        if len(lengths) and lengths.max() > limit:
            i = int(lengths.max(1).argmax())
            raise ValueError(f"pair {i} has {lengths[i].max()} tokens, more than the {limit} that `longest` and the "
                             "budgets leave: raise them or leave the pair out")
        order = np.random.default_rng((self.seed, epoch)).permutation(len(lengths))
        cuts, used, most = [0], np.zeros(2, np.int64), self.sentences - self.spare
        for k, length in enumerate(lengths[order]):
            if (used + length > room).any() or k - cuts[-1] == most:
                cuts.append(k)
                used[:] = 0
            used += length
        return np.split(order, cuts[1:]) if len(order) else []

    def build(self, plan: Any, k: int) -> tuple[Tensor, Tensor]:
        """Batch k: source (2, S), ids and positions; target (3, T), ids, next ids, positions."""
        sources, targets = zip(*(self.pairs[i] for i in plan[k].tolist()), strict=True)
        ids, positions = self._row(sources, self.source_tokens)
        after, places = self._row(targets, self.target_tokens)
        first = np.where(places == 0, self.bos, np.roll(after, 1))
        first[sum(map(len, targets)) :] = self.pad
        return torch.from_numpy(np.stack([ids, positions])), torch.from_numpy(np.stack([first, after, places]))

    def _row(self, sequences, n):
        """Sequences and the spare ones of padding, n tokens in all: arrays of ids and positions."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        left = n - lengths.sum()
        lengths = np.append(lengths, left // self.spare + (np.arange(self.spare) < left % self.spare))
        ids = np.full(n, self.pad, np.int64)
        ids[: n - left] = np.fromiter(chain.from_iterable(sequences), np.int64, n - left)
        return ids, np.arange(n) - np.repeat(lengths.cumsum() - lengths, lengths)


def layout_at(positions: Tensor, B: int, L: int) -> _Layout:
    """The layout of tokens at these positions of at most B sentences of at most L, (n,); no size is read from a GPU."""
    number = (positions == 0).cumsum(0) - 1  # (n,)
    index = number * L + positions  # (n,)
    real = index.new_zeros(B * L, dtype=torch.bool).index_fill(0, index, True)
    after = torch.arange(B + 1, device=index.device)  # (B + 1,)
    return _Layout(real.view(B, L), index, torch.searchsorted(number, after, out_int32=True))


class PackedObjective(UnpaddedObjective):
    """An `UnpaddedObjective` whose batches have one shape, so that it can be recorded.

    Args:
        model, rows, compute: as for `UnpaddedObjective`.
        batches: whose rows it takes.
    """

    def __init__(self, model: Transformer, batches: PackedBatches, rows: int = 4096, compute: Callable = _loss_piece):
        super().__init__(model, rows, compute)
        self.sizes = batches.sentences, batches.longest

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The summed loss of a batch of `PackedBatches`."""
        device = self.model.target_embedding.weight.device
        ids, positions = source.to(device, non_blocking=True)
        first, after, places = target.to(device, non_blocking=True)
        words, labels = layout_at(positions, *self.sizes), layout_at(places, *self.sizes)
        return self.loss_of(ids[None], first[None], after[None], words, labels)


class PackedUpdate(FastUpdate):
    """A `FastUpdate` by a `PackedObjective`."""

    def count(self, source: Any, target: Any, pad: int) -> int:
        """The target tokens that a row predicts."""
        return (target[1] != pad).sum().item()
