"""Pairs packed into rows of one width, so that an update has one shape and can be recorded.

Not a benchmark itself: an idea that 14_ladder.py measures beside the rungs of chapter 14. Batches without padding
differ in their number of tokens, so a compiled program must serve all lengths and nothing can be recorded. Here a row
holds several pairs, source beside source and target beside target, and is filled up with padding; a mask keeps each
sentence to itself. How the attention of such rows is computed is a choice (`ATTENTIONS`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated.attention import scaled_dot_product_attention
from annotated.data import Batches
from annotated.gpu import FastUpdate, Objective, _loss_piece, _use_attention, chunked_loss, fuse, fused_attention
from annotated.masks import causal_mask
from annotated.multihead import MultiHeadAttention
from annotated.transformer import Transformer


@dataclass(frozen=True)
class PackedBatches(Batches):
    """Batches of as many rows as the budgets hold, for `PackedObjective`.

    A row's last places are padding, which counts as one more sentence; the source has some in every row.

    Args:
        width: places of a row on each side.
        others: as for `Batches`; one worker only.
    """

    width: int = 128

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return max(1, min(self.source_tokens, self.target_tokens) // self.width)

    def plan(self, epoch: int = 0) -> Any:
        """The pairs of each batch: for each of its rows an array of their numbers."""
        longest = [max(len(source), len(target)) for source, target in self.pairs]
        if longest and max(longest) >= self.width:
            i = int(np.argmax(longest))
            raise ValueError(f"pair {i} has {longest[i]} tokens, more than the {self.width - 1} that a row holds: "
                             "raise `width` or leave the pair out")
        draw = np.random.default_rng((self.seed, epoch))
        shelves: list[list[int]] = [[] for _ in range(self.width)]  # by the longer side, in a random order
        for i in draw.permutation(len(longest)).tolist():
            shelves[longest[i]].append(i)
        rows = []
        while (most := max((size for size, shelf in enumerate(shelves) if shelf), default=0)):
            row, left = [], [self.width - 1, self.width]
            while (size := next((n for n in range(min(most, *left), 0, -1) if shelves[n]), 0)):
                row.append(shelves[size].pop())  # the longest that fits
                left = [room - len(side) for room, side in zip(left, self.pairs[row[-1]], strict=True)]
            rows.append(np.array(row))
        order = draw.permutation(len(rows))
        return [[rows[i] for i in order[k : k + self.rows]] for k in range(0, len(rows), self.rows)]

    def build(self, plan: Any, k: int) -> tuple[Tensor, Tensor]:
        """Batch k: source (2, B, W), ids and positions; target (3, B, W), ids, next ids, positions."""
        found = [[self.pairs[i] for i in row.tolist()] for row in plan[k]]
        found += [[]] * (self.rows - len(found))
        ids, positions = self._filled([[source for source, _ in row] for row in found])
        after, places = self._filled([[target for _, target in row] for row in found])
        first = np.where(places == 0, self.bos, np.roll(after, 1, -1))
        first[after == self.pad] = self.pad
        return torch.from_numpy(np.stack([ids, positions])), torch.from_numpy(np.stack([first, after, places]))

    def _filled(self, rows):
        """Rows of sequences, one after the other, and padding: arrays of ids and positions, (B, W)."""
        ids = np.full((len(rows), self.width), self.pad, np.int64)
        positions = np.zeros_like(ids)
        for row, sequences in enumerate(rows):
            lengths = [*map(len, sequences)]
            end = sum(lengths)
            ids[row, :end] = list(chain.from_iterable(sequences))
            positions[row] = list(chain.from_iterable(map(range, [*lengths, self.width - end])))
        return ids, positions


@dataclass(frozen=True)
class Sentences:
    """A mask: queries may attend to the keys of the same sentence; under causal, to no later one.

    Args:
        queries: the number of the sentence at each place, (B, T).
        keys: likewise, (B, S).
    """

    queries: Tensor
    keys: Tensor
    causal: bool = False

    def dense(self) -> Tensor:
        """True = may attend, (B, 1, T, S)."""
        seen = self.queries[:, :, None] == self.keys[:, None]  # (B, T, S)
        if self.causal:
            seen = seen & causal_mask(seen.shape[-1], seen.device)
        return seen[:, None]


def flexible_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Any = None, dropout: float = 0.0) -> Tensor:
    """Attention under `Sentences` by PyTorch's FlexAttention, a block for each row; to be compiled."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    B, h, T, _ = Q.shape
    queries, keys, causal = mask.queries, mask.keys, mask.causal

    def seen(b, head, q, k):
        same = queries[b, q] == keys[b, k]
        return same & (q >= k) if causal else same

    ones = queries.new_ones(B, 1, 1, dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(ones, torch.zeros_like(ones)[..., None], BLOCK_SIZE=(T, K.shape[2]),
                                      mask_mod=seen, seq_lengths=(T, K.shape[2]))
    return flex_attention(Q, K, V, block_mask=blocks)


# Chapter 2's, which a compiler may fuse; PyTorch's kernel that takes any mask; kernels written for this mask.
ATTENTIONS = {"plain": scaled_dot_product_attention, "fused": fused_attention, "flexible": flexible_attention}


def attend_by(model: Transformer, kind: str) -> Transformer:
    """Let all attentions of a model be made by one of `ATTENTIONS`, in place."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            _use_attention(module, ATTENTIONS[kind])
    return model


class PackedObjective(Objective):
    """An `Objective` for `PackedBatches`; all are of one shape, so that it can be recorded.

    Args:
        model, rows, compute: as for `Objective`; the model is changed in place, as by `fuse`.
        kind: one of `ATTENTIONS`.
    """

    def __init__(self, model: Transformer, kind: str = "fused", rows: int = 4096, compute: Callable = _loss_piece):
        super().__init__(model, rows, compute)
        attend_by(fuse(model), kind)
        self.is_dense = kind != "flexible"

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """The summed loss of a batch of `PackedBatches`."""
        model = self.model
        device = model.target_embedding.weight.device
        ids, positions = source.to(device, non_blocking=True)
        first, after, places = target.to(device, non_blocking=True)
        words, labels = (positions == 0).cumsum(-1), (places == 0).cumsum(-1)  # (B, S), (B, T)
        masks = Sentences(words, words), Sentences(labels, labels, True), Sentences(labels, words)
        within, causal, across = (mask.dense() if self.is_dense else mask for mask in masks)
        memory = model.encoder(model.embed(model.source_embedding, ids, positions), within)  # (B, S, d_model)
        x = model.embed(model.target_embedding, first, places)  # (B, T, d_model)
        x = model.decoder(x, memory, causal, across)
        return chunked_loss(x, model.target_embedding.weight, after, self.pieces)


class PackedUpdate(FastUpdate):
    """A `FastUpdate` by a `PackedObjective`."""

    def count(self, source: Any, target: Any, pad: int) -> int:
        """The target tokens that a row predicts."""
        return (target[1] != pad).sum().item()
