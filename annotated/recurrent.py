"""Why attention.

Generated from book/01-why-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

from dataclasses import dataclass
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tqdm import tqdm

__all__ = [
    "soft_lookup",
    "additive_scores",
    "RecurrentConfig",
    "check_tokens",
    "check_padding",
    "RecurrentSeq2Seq",
    "fit",
]


def soft_lookup(scores, V, visible=None):
    """Average the values with the softmax of the scores as weights (Bahdanau et al. 2015).

    Args:
        scores: how well each key fits each query, (..., T, S).
        V: values, (..., S, d_v).
        visible: boolean, broadcasts to (..., T, S); True = may look.
            Every row needs one True.

    Returns:
        (..., T, d_v).
    """
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(-1) @ V  # (..., T, d_v)


def additive_scores(Q, K, v):
    """Score every query against every key by a layer of tanh
    (section 3.2.1; Bahdanau et al. 2015).

    Args:
        Q: queries, already projected, (..., T, d_k).
        K: keys, already projected to the same width, (..., S, d_k).
        v: the weights of the sum, (d_k,).

    Returns:
        (..., T, S).

    Raises:
        ValueError: Q, K and v differ in width.
    """
    if not Q.shape[-1] == K.shape[-1] == v.shape[-1]:
        widths = f"{Q.shape[-1]}, {K.shape[-1]} and {v.shape[-1]}"
        raise ValueError(f"Q, K and v must have one width, not {widths}")
    pairs = Q.unsqueeze(-2) + K.unsqueeze(-3)  # (..., T, S, d_k)
    return torch.tanh(pairs) @ v  # (..., T, S)


@dataclass(frozen=True)
class RecurrentConfig:
    """The sizes of a recurrent model and the identifiers of its special tokens.

    Raises:
        ValueError: a field has a value that no model can be built from.
    """

    vocab: int
    d_model: int = 256
    P_drop: float = 0.1
    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3

    def __post_init__(self):
        special = (self.pad, self.bos, self.eos, self.unk)
        if self.d_model < 2 or self.d_model % 2:  # one half of it reads in each direction
            raise ValueError(f"d_model must be even and at least 2, not {self.d_model}")
        if not 0 <= self.P_drop < 1:
            raise ValueError(f"P_drop must be at least 0 and less than 1, not {self.P_drop}")
        if len(set(special)) < 4 or min(special) < 0:
            raise ValueError(
                f"pad, bos, eos, unk must be four numbers from 0 up, not {special}"
            )
        if self.vocab <= max(special):
            raise ValueError(f"vocab must be greater than {max(special)}, not {self.vocab}")


def check_tokens(name, ids, config):
    """Refuse a batch of identifiers that no model of the book can read.

    Args:
        name: what the batch is called in the message.
        ids: identifiers, (B, S).
        config: has the field vocab.

    Raises:
        TypeError: ids is not a tensor of integers.
        ValueError: ids is not (sentences, positions) or has none; on a CPU also: an
            identifier is outside the vocabulary.
    """
    if (
        not isinstance(ids, torch.Tensor)
        or ids.is_floating_point()
        or ids.dtype == torch.bool
    ):
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise TypeError(f"{name} must be a tensor of integers, not {kind}")
    if ids.dim() != 2 or 0 in ids.shape:
        shape = tuple(ids.shape)
        raise ValueError(f"{name} must be (sentences, positions), not of shape {shape}")
    if ids.device.type == "cpu" and (ids.min() < 0 or ids.max() >= config.vocab):
        found, last = f"{ids.min()} to {ids.max()}", config.vocab - 1
        raise ValueError(f"{name} must hold identifiers from 0 to {last}, not {found}")


def check_padding(source, pad):
    """Refuse a batch in which padding stands anywhere but at the end
    (checked on a CPU only).

    Args:
        source: identifiers, (B, S).
        pad: the identifier of padding.

    Raises:
        ValueError: a row begins with padding or goes on after it.
    """
    real = source != pad
    if source.device.type == "cpu" and (
        not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any()
    ):
        raise ValueError(f"source must have a token first, padding ({pad}) only last")


class RecurrentSeq2Seq(nn.Module):
    """Translate with recurrent layers and additive attention
    (section 1; Bahdanau et al. 2015).

    A bidirectional GRU reads the source.
    Another GRU writes the target and looks up the source after every step.

    Args:
        config: a RecurrentConfig.
    """

    def __init__(self, config):
        super().__init__()
        self.config, d_model = config, config.d_model
        self.embedding = nn.Embedding(config.vocab, d_model, config.pad)
        self.encoder = nn.GRU(d_model, d_model // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(d_model, d_model, batch_first=True)
        self.W_S = nn.Linear(d_model, d_model)
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Parameter(torch.randn(d_model) / d_model**0.5)
        self.W_C = nn.Linear(2 * d_model, d_model)
        self.W_O = nn.Linear(d_model, config.vocab)
        self.dropout = nn.Dropout(config.P_drop)

    def forward(self, source, target):
        """Logits (B, T, vocab) of what follows each token of target (B, T)."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source):
        """Source (B, S) gives memory (B, S, d_model), which is 0 at padding."""
        check_tokens("source", source, self.config)
        check_padding(source, self.config.pad)
        x = self.dropout(self.embedding(source))  # (B, S, d_model)
        lengths = (source != self.config.pad).sum(-1).cpu()  # (B,)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, S = self.encoder(packed)[0], source.shape[1]
        return pad_packed_sequence(states, batch_first=True, total_length=S)[0]

    def decode(self, target, memory, source):
        """Target (B, T), memory and its source give logits (B, T, vocab)."""
        check_tokens("target", target, self.config)
        return self.advance(target, self.prepare(memory, source))[0]

    def start(self, source):
        """Source (B, S) gives the state from which `step` begins."""
        return self.prepare(self.encode(source), source)

    def step(self, ids, state):
        """Logits (B, vocab) of what follows ids, (B,), and a new state."""
        logits, state = self.advance(ids[:, None], state)
        return logits[:, 0], state

    def prepare(self, memory, source):
        """What the decoder needs of a source, all of it batch first."""
        hidden = torch.tanh(self.W_S(memory[:, 0]))  # (B, d_model)
        visible = (source != self.config.pad)[:, None]  # (B, 1, S)
        return {"hidden": hidden, "K": self.W_K(memory), "V": memory, "visible": visible}

    def advance(self, target, state):
        """Read target tokens (B, T): logits (B, T, vocab) and the state after the last."""
        x = self.dropout(self.embedding(target))  # (B, T, d_model)
        x, hidden = self.decoder(x, state["hidden"][None].contiguous())
        context = self.look(x, state)  # (B, T, d_model)
        x = torch.tanh(self.W_C(torch.cat([x, context], -1)))  # (B, T, d_model)
        return self.W_O(self.dropout(x)), {**state, "hidden": hidden[0]}

    def look(self, x, state):
        """What the decoder's states (B, T, d_model) find in the source, (B, T, d_model)."""
        scores = additive_scores(self.W_Q(x), state["K"], self.v)  # (B, T, S)
        return soft_lookup(scores, state["V"], state["visible"])  # (B, T, d_model)


def fit(model, batches, steps, rate=1e-3):
    """Train a model by cross-entropy and Adam: the loop that serves until chapter 10.

    Args:
        model: any model with forward(source, target) and config.pad; left ready for use.
        batches: yields source (B, S) and target (B, T), bos to eos; begun again at its end.
        steps: number of updates.
        rate: learning rate.

    Returns:
        list of the losses, one float a step; padding counts in none of them.

    Raises:
        ValueError: batches is empty.
    """
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=rate), []
    model.train()
    for source, target in tqdm(islice(cycle(batches), steps), total=steps, desc="fit"):
        logits = model(source, target[:, :-1])  # (B, T - 1, vocab)
        expected = target[:, 1:].flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), expected, ignore_index=model.config.pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if len(losses) < steps:
        raise ValueError(
            "batches must yield at least one pair of source and target, not none"
        )
    model.eval()
    return losses
