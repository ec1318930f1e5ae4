"""Why attention.

Generated from book/01-why-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from tqdm import tqdm

__all__ = ["soft_lookup", "additive_scores", "RecurrentConfig", "RecurrentSeq2Seq", "fit"]


def soft_lookup(scores: Tensor, V: Tensor, visible: Tensor | None = None) -> Tensor:
    """Average the values with the softmax of the scores as weights (Bahdanau et al. 2015).

    Args:
        scores: how well each key fits each query, (..., T, S).
        V: values, (..., S, d_v).
        visible: boolean, broadcasts to (..., T, S); True = may attend.
            Every row needs one True.

    Returns:
        (..., T, d_v).
    """
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(-1) @ V  # (..., T, d_v)


def additive_scores(Q: Tensor, K: Tensor, v: Tensor) -> Tensor:
    """Score every query against every key by a layer of tanh
    (section 3.2.1; Bahdanau et al. 2015).

    Args:
        Q: queries, already projected, (..., T, d_k).
        K: keys, already projected to the same width, (..., S, d_k).
        v: the weights of the sum, (d_k,).

    Returns:
        (..., T, S).

    Raises:
        ValueError: Q, K and v differ in width, or have too few axes or too many.
    """
    if Q.dim() < 2 or K.dim() < 2 or v.dim() != 1:
        shapes = f"{tuple(Q.shape)}, {tuple(K.shape)} and {tuple(v.shape)}"
        raise ValueError(f"Q and K must have two axes or more and v one, not {shapes}")
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
        if any(type(n) is not int for n in (self.vocab, self.d_model, *special)):
            names = "vocab, d_model, pad, bos, eos and unk"
            raise ValueError(f"{names} must be whole numbers, each a Python int")
        if self.d_model < 2 or self.d_model % 2:  # one half of it reads in each direction
            raise ValueError(f"d_model must be even and at least 2, not {self.d_model}")
        if not isinstance(self.P_drop, int | float):
            raise ValueError(f"P_drop must be a Python float in [0, 1), not {self.P_drop!r}")
        if not 0 <= self.P_drop < 1:
            raise ValueError(f"P_drop must be at least 0 and less than 1, not {self.P_drop}")
        if len(set(special)) < 4 or min(special) < 0:
            raise ValueError(
                f"pad, bos, eos, unk must be four different numbers from 0 up, not {special}"
            )
        if self.vocab <= max(special):
            raise ValueError(f"vocab must be greater than {max(special)}, not {self.vocab}")


def _check_ids(name, ids, n=None, axes=2):
    """Refuse anything that is not a batch of identifiers.

    Args:
        name: what the batch is called in the message.
        ids: identifiers, (B, S); with axes=None any shape.
        n: every identifier must be below it; checked on a CPU only.

    Raises:
        TypeError: ids is not a tensor of whole numbers.
        ValueError: ids has other axes, or no identifier in it; an identifier is not
            from 0 to n - 1.
    """
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = getattr(ids, "dtype", type(ids).__name__)
        wanted = "a tensor of whole numbers, torch.long or torch.int32"
        raise TypeError(f"{name} must be {wanted}, not {kind}")
    fault = ""
    if axes and (ids.dim() != axes or 0 in ids.shape):
        wanted = "(sentences, positions)" if axes == 2 else "of one axis"
        wanted += " and not empty" if ids.dim() == axes else ""
        fault = f"{name} must be {wanted}, not of shape {tuple(ids.shape)}"
    elif n and ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
        with suppress(RuntimeError):  # of torch.func.vmap, inside which no number can be read
            least = ids.min().item()
            most = ids.max().item()
            if least < 0 or most >= n:
                fault = f"{name} must lie in 0..{n - 1}, not {least}..{most}"
    if fault:
        raise ValueError(fault)


def _check_source(source, config):
    """Refuse what is no batch of sentences, or has padding anywhere but at the end
    (looked at on a CPU only).

    Args:
        source: identifiers, (B, S).
        config: says which there are, and which one is padding.

    Raises:
        TypeError, ValueError: as `_check_ids`.
        ValueError: a row begins with padding or goes on after it.
    """
    _check_ids("source", source, config.vocab)
    pad = config.pad
    real = source != pad
    if source.device.type == "cpu" and (
        not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any()
    ):
        raise ValueError(f"source must have a token first, padding ({pad}) only last")


def _casts(x):
    """Whether autocast is on where x lies; the meta device has none."""
    kind = x.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def _check_precision(name, x, model):
    """Refuse what is no tensor in the precision of a model: TypeError.

    Under autocast, which casts products, any floating-point numbers will do.
    """
    weight = next(iter(model.parameters()), None)
    if weight is None:  # in a replica of nn.DataParallel, weights are attributes like others
        weights = (getattr(module, "weight", None) for module in model.modules())
        weight = next(each for each in weights if isinstance(each, Tensor))
    if not isinstance(x, Tensor) or x.dtype != weight.dtype and not (
        _casts(weight) and x.is_floating_point()
    ):
        kind = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name} must be a tensor of {weight.dtype}, as the model, not {kind}")


def _check_encoded(memory, source, target, model):
    """Refuse a memory that is not `encode(source)`, and targets not as many as sources.

    Args:
        memory: (B, S, d_model).
        source, target: identifiers, (B, S) and (B, T).
        model: its config gives d_model and vocab.

    Raises:
        TypeError: memory is not a tensor, or has another dtype than the model.
        ValueError: the shapes do not fit.
    """
    _check_ids("target", target, model.config.vocab)
    _check_ids("source", source)
    _check_precision("memory", memory, model)
    wanted = (*source.shape, model.config.d_model)
    fault = ""
    if memory.shape != wanted:
        fault = f"memory must be that of source, {wanted}, not of shape {tuple(memory.shape)}"
    elif target.shape[0] != source.shape[0]:  # len() would fix the size for torch.export
        rows = f"{len(target)} and {len(source)}"
        fault = f"target and source must have as many rows each, not {rows}"
    if fault:
        raise ValueError(fault)


def _check_step(ids, R, n=None):
    """Refuse ids that are not (R,), one for each hypothesis, or not below n."""
    _check_ids("ids", ids, n, axes=1)
    if len(ids) != R:
        raise ValueError(f"ids must be one for each row of the state, {R}, not {len(ids)}")


def _check_state(state, ids, model):
    """Refuse a state that `start` or `step` of such a model did not make, and ids (B,)
    that do not go on with it: TypeError or ValueError."""
    config = model.config
    if not isinstance(state, dict) or not {"hidden", "K", "V", "visible"} <= set(state):
        kind = type(state).__name__
        raise TypeError(f"state must be what start or step returned, not {kind}")
    hidden = state["hidden"].shape
    if hidden[-1] != config.d_model or any(len(part) != hidden[0] for part in state.values()):
        shapes = ", ".join(f"{name} {tuple(part.shape)}" for name, part in state.items())
        wanted = f"of this model, d_model={config.d_model}"
        raise ValueError(f"state must be {wanted}, not {shapes}")
    for name in ("hidden", "K", "V"):
        _check_precision(f"{name} in state", state[name], model)
    _check_step(ids, hidden[0], config.vocab)


class RecurrentSeq2Seq(nn.Module):
    """Translate with recurrent layers and additive attention
    (section 1; Bahdanau et al. 2015).

    A bidirectional GRU reads the source.
    Another GRU writes the target and looks up the source after every step.

    Args:
        config: a RecurrentConfig.
    """

    def __init__(self, config: RecurrentConfig):
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

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, vocab) of what follows each token of target (B, T)."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """Source (B, S) gives memory (B, S, d_model), which is 0 at padding."""
        _check_source(source, self.config)
        x = self.dropout(self.embedding(source))  # (B, S, d_model)
        lengths = (source != self.config.pad).sum(-1).cpu()  # (B,)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states = self.encoder(packed)[0]
        return pad_packed_sequence(states, True, total_length=source.shape[1])[0]

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Target (B, T), memory and its source give logits (B, T, vocab)."""
        _check_encoded(memory, source, target, self)
        return self.advance(target, self.prepare(memory, source))[0]

    def start(self, source: Tensor) -> dict:
        """Source (B, S) gives the state from which `step` begins."""
        return self.prepare(self.encode(source), source)

    def step(self, ids: Tensor, state: dict) -> tuple[Tensor, dict]:
        """Logits (B, vocab) of what follows ids, (B,), and a new state."""
        _check_state(state, ids, self)
        logits, state = self.advance(ids[:, None], state)
        return logits[:, 0], state

    def prepare(self, memory: Tensor, source: Tensor) -> dict:
        """What the decoder needs of a source, all of it batch first."""
        visible = (source != self.config.pad)[:, None]  # (B, 1, S)
        hidden = torch.tanh(self.W_S(memory[:, 0]))  # (B, d_model)
        return {"hidden": hidden, "K": self.W_K(memory), "V": memory, "visible": visible}

    def advance(self, target: Tensor, state: dict) -> tuple[Tensor, dict]:
        """Read target tokens (B, T): logits (B, T, vocab) and the state after the last."""
        x = self.dropout(self.embedding(target))  # (B, T, d_model)
        x, hidden = self.decoder(x, state["hidden"][None].contiguous())
        x = torch.cat([x, self.look(x, state)], -1)  # (B, T, 2 d_model)
        x = torch.tanh(self.W_C(x))  # (B, T, d_model)
        return self.W_O(self.dropout(x)), {**state, "hidden": hidden[0]}

    def look(self, x: Tensor, state: dict) -> Tensor:
        """What the decoder's states (B, T, d_model) find in the source, (B, T, d_model)."""
        scores = additive_scores(self.W_Q(x), state["K"], self.v)  # (B, T, S)
        return soft_lookup(scores, state["V"], state["visible"])  # (B, T, d_model)


def fit(
    model: nn.Module, batches: Iterable, steps: int, rate: float = 1e-3
) -> list[float]:
    """Train a model by cross-entropy and Adam: the loop that serves until chapter 10.

    Args:
        model: any model with forward(source, target) and config.pad; left ready for use.
        batches: yields source (B, S) and target (B, T), bos to eos; all are kept, and repeated
            in the same order.
        steps: number of updates.
        rate: learning rate.

    Returns:
        list of the losses, one float a step; padding counts in none of them.

    Raises:
        ValueError: batches is empty.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
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
