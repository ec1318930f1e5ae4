"""Decoding.

Generated from book/11-decoding.md by tools/tangle.py: edit the chapter, not this file.
"""

import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from dataclasses import asdict
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.data import Subwords, Words, _writable, load_vocabulary, pad_batch
from annotated.embedding import Embedding
from annotated.files import _check_fields, _is_visible, atomic_write, fsync, read_json, write_json
from annotated.layers import FusedLayerNorm, LayerNorm, _is_hooked
from annotated.masks import causal_mask
from annotated.multihead import MultiHeadAttention
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq, _check_ids
from annotated.transformer import Config, Transformer

__all__ = [
    "greedy",
    "cannot_improve",
    "when_full",
    "length_penalty",
    "hypotheses",
    "beam_search",
    "packed",
    "packed_int8",
    "Translator",
    "save",
    "load",
]


def greedy(model: Any, source: Tensor, max_len: int | None = None) -> list[list[int]]:
    """Translate by the likeliest token at every step.

    Args:
        model: any module with `start`, `step` and `config`, which allows a token at every step.
        source: (B, S), each sentence ending in eos, padding at the end.
        max_len: tokens of an output at most; default: its source's length + 50 (section 6.1).

    Returns:
        the identifiers of B outputs: no bos, eos last where it was reached.

    Raises:
        TypeError: source is no tensor of identifiers.
        ValueError: max_len is below 1, or source has another shape.
        FloatingPointError: the model's logits are NaN or infinite.
    """
    limits = _output_limits(model, source, max_len).tolist()
    outputs: list[list[int]] = [[] for _ in source]
    with _evaluating(model):
        state = model.start(source)
        ids = torch.full_like(source[:, 0], model.config.bos)  # (B,)
        active = list(range(len(source)))
        while active:
            logits, state = model.step(ids, state)  # (B, vocab), B sentences still active
            _check_logits(logits)
            ids = logits.argmax(-1)  # (B,)
            going = []  # by the list: to read the tensor again would make a GPU wait
            for place, (row, token) in enumerate(zip(active, ids.tolist(), strict=True)):
                outputs[row].append(token)
                if token != model.config.eos and len(outputs[row]) < limits[row]:
                    going.append(place)
            if len(going) < len(active):  # finished sentences leave the batch
                active = [active[place] for place in going]
                rows = torch.tensor(going, dtype=torch.long, device=source.device)
                ids = ids[rows]
                state = _select(state, rows)
    return outputs


def _check_logits(logits):
    """Refuse logits, (R, vocab), that are NaN or infinite; -inf forbids a token and may stand."""
    if not (logits.amax(-1) < math.inf).all():
        what = "the model's logits are not finite"
        raise FloatingPointError(f"{what}: weights are damaged, or a precision is too low")


@contextmanager
def _evaluating(model):
    """Inside, the model is in evaluation mode without gradients; then as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _output_limits(model, source, max_len=None):
    """How many tokens each output may have, (B,): max_len, or its source's + 50 (section 6.1).

    Raises:
        TypeError: source is no tensor of identifiers.
        ValueError: max_len is below 1, or source has another shape.
    """
    _check_ids("source", source)
    if max_len is not None and (not isinstance(max_len, Integral) or max_len < 1):
        raise ValueError(f"max_len must be a whole number, 1 or more, got {max_len!r}")
    config = model.config
    if max_len is None:
        limits = (source != config.pad).sum(1) + 50  # (B,)
    else:
        limits = torch.full_like(source[:, 0], int(max_len))  # (B,)
    if getattr(config, "positions", None) == "learned":
        limits = limits.clamp(max=config.max_positions)  # (B,)
    return limits


def _select(state, rows):
    """Rows of a decoding state: by its own `select`, or of each tensor that it holds."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, dict):
        return {name: _select(part, rows) for name, part in state.items()}
    if isinstance(state, list | tuple):
        parts = [_select(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    if state is None or isinstance(state, int | float | str):
        return state
    if not hasattr(state, "select"):
        kind = type(state).__name__
        raise TypeError("a decoding state holds tensors, lists and dictionaries, or has a method "
                        f"select(rows); this is a {kind}")
    return state.select(rows)


def _continuations(log_p, done, log_probs):
    """Choose the k best continuations of each sentence's k hypotheses.

    Args:
        log_p: log-probabilities of the hypotheses, (B, k).
        done: which of them are finished, (B, k); each is sure to be chosen.
        log_probs: of every next token of each, (B, k, vocab).

    Returns:
        (B, k) each: the log-probability of what was chosen, the place that it continues, and
        by which token; infinity and any token for a finished one.
    """
    best, token = log_probs.topk(min(log_probs.shape[1:]))  # (B, k, m)
    none = best.isnan() | done[..., None]  # (B, k, m)
    total = (log_p[..., None] + best).masked_fill(none, -math.inf)  # (B, k, m)
    total[..., 0].masked_fill_(done, math.inf)  # a finished one keeps its place
    best, index = total.flatten(1).topk(log_p.shape[1])  # (B, k)
    parent = index // total.shape[-1]  # (B, k)
    return best, parent, token.flatten(1).gather(1, index)


def cannot_improve(best: Tensor, attainable: Tensor) -> Tensor:
    """Stop a sentence when nothing unfinished can beat its best finished hypothesis, (B,)."""
    return best >= attainable


def when_full(best: Tensor, attainable: Tensor) -> Tensor:
    """Stop a sentence only when its beam holds nothing but finished hypotheses, (B,)."""
    return torch.zeros_like(best, dtype=torch.bool)


def length_penalty(length: int | Tensor, alpha: float = 0.6) -> Any:
    """((5 + length) / 6) ** alpha, the divisor of a log-probability (section 6.1).

    The paper gives alpha, and Wu et al. (2016) the formula; a length counts eos.
    """
    return ((5 + length) / 6) ** alpha


class _Beams:
    """The hypotheses of the sentences still under way, k places a sentence.

    Args:
        sources: which sentences of the batch these are, (B,).
        k: places of a beam.
        limits: tokens of an output at most, (B,).
        worth: the penalty of each limit, (B,).
        penalty: maps a length to the divisor of a log-probability; rises only or falls only.
    """

    def __init__(self, sources, k, limits, worth, penalty):
        self.sources, self.limits, self.worth, self.penalty = sources, limits, worth, penalty
        self.length = 0
        # Of finished hypotheses:
        self.score = torch.full((len(sources), k), -math.inf, device=sources.device)  # (B, k)
        self.lengths = torch.zeros_like(self.score, dtype=torch.long)  # (B, k)
        # Every place but the first is empty, or the same hypothesis would stand in all.
        self.log_p = self.score.clone()  # (B, k)
        self.log_p[:, 0] = 0.0
        self.tokens = self.lengths.new_zeros(len(sources), k, 0)  # (B, k, length)

    @property
    def done(self):
        """Which hypotheses are finished, (B, k)."""
        return self.score > -math.inf

    def extend(self, log_probs, pad):
        """Keep the k best continuations of each sentence, finished hypotheses unchanged.

        The log-probabilities of the next token are (B, k, vocab); pad stands behind finished
        hypotheses. Returned is the place that each hypothesis continues, (B, k).
        """
        # A float64 model's scores are float64, too.
        self.log_p = self.log_p.to(log_probs)
        self.score = self.score.to(log_probs)
        self.end(log_probs[..., 0].isnan())  # the softmax of -inf alone: nothing may follow
        best, parent, token = _continuations(self.log_p, self.done, log_probs)  # (B, k)
        for name in ("log_p", "score", "lengths"):
            setattr(self, name, getattr(self, name).gather(1, parent))
        # Where too little can follow, a place is filled up by anything: it must not be a second
        # copy of a finished hypothesis.
        self.score = self.score.masked_fill(best == -math.inf, -math.inf)
        self.log_p = torch.where(self.done, self.log_p, best)  # (B, k)
        token = token.masked_fill(self.done, pad)[..., None]  # (B, k, 1)
        same = parent[..., None].expand(-1, -1, self.length)  # (B, k, length)
        self.tokens = torch.cat([self.tokens.gather(1, same), token], -1)  # (B, k, length + 1)
        self.length += 1
        return parent

    def finish(self, eos):
        """Give a score to the hypotheses that ended now, by eos or by the limit."""
        self.end((self.tokens[..., -1] == eos) | (self.length >= self.limits)[:, None])

    def end(self, which):
        """Give a score to those of some hypotheses, (B, k), that have none yet."""
        which = which & ~self.done & (self.log_p > -math.inf)  # (B, k)
        score = self.log_p / self.penalty(max(self.length, 1))  # (B, k)
        self.score = torch.where(which, score, self.score)  # (B, k)
        self.lengths = torch.where(which, self.length, self.lengths)  # (B, k)

    def over(self, stop):
        """Which sentences need no further step, (B,)."""
        alive = self.log_p.masked_fill(self.done, -math.inf).amax(1)  # (B,)
        attainable = torch.maximum(alive / self.penalty(self.length), alive / self.worth.to(alive))
        return (alive == -math.inf) | stop(self.score.amax(1), attainable)

    def keep(self, rows):
        """Drop the other sentences."""
        for name in ("sources", "limits", "worth", "tokens", "log_p", "score", "lengths"):
            setattr(self, name, getattr(self, name)[rows])

    def best_first(self, row):
        """The finished hypotheses of one sentence as (ids, score), best first."""
        ids = self.tokens[row].tolist()
        places = zip(ids, self.lengths[row].tolist(), self.score[row].tolist())
        found = [(ids[:n], score) for ids, n, score in places if score > -math.inf]
        return sorted(found, key=lambda pair: -pair[1])


def _beam_step(model, beams, ids, state):
    """Make one step of the search: ids, (B, beam), are the last tokens of the hypotheses.

    Returns:
        The place that each hypothesis continues, (B, beam); the state, not yet arranged so.
    """
    logits, state = model.step(ids.flatten(), state)  # (B * beam, vocab)
    _check_logits(logits)
    logits = logits.float() if logits.dtype.itemsize < 4 else logits  # (B * beam, vocab)
    log_probs = logits.log_softmax(-1)  # (B * beam, vocab)
    parent = beams.extend(log_probs.unflatten(0, ids.shape), model.config.pad)  # (B, beam)
    beams.finish(model.config.eos)
    return parent, state


def _widen(state, rows, k):
    """A state of k hypotheses, side by side, for each sentence; rows are 0 to B - 1."""
    if hasattr(state, "repeat") and not isinstance(state, Tensor):
        return state.repeat(k)
    return _select(state, rows.repeat_interleave(k))


def _check_beam(beam):
    """Refuse a beam that is no whole number, below 1 or beyond all use: ValueError."""
    if not isinstance(beam, Integral) or beam is True or not 1 <= beam <= 100_000:
        raise ValueError(f"beam must be a whole number from 1 to 100000, got {beam!r}")


def _check_count(name, value):
    """Refuse a count that is no whole number, or below 1: ValueError."""
    if not isinstance(value, Integral) or value is True or value < 1:
        raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")


def _check_search(beam, penalty, limits):
    """Refuse a wrong beam, and a penalty that cannot divide from 1 to the limits, (B,)."""
    _check_beam(beam)
    for length in sorted({1, *limits.tolist()}):
        try:
            worth = penalty(length)
        except OverflowError:
            worth = math.inf
        if not 1e-30 < worth < 1e30:
            given = f"{worth:.3g} for a length of {length}"
            raise ValueError(f"penalty must be above 0 and within 1e-30..1e30, got {given}")


def hypotheses(
    model: Any, source: Tensor, beam: int = 4, penalty: Callable = length_penalty,
    max_len: int | None = None, stop: Callable = when_full,
) -> list[list[tuple[list[int], float]]]:
    """The translations of each sentence that a beam search finds, with scores (section 6.1).

    At every step each unfinished hypothesis is continued by every token, and the best stay.
    A finished one keeps its place, so that a beam of 1 is greedy search.

    Args:
        model: any module with `start`, `step` and `config`.
        source: (B, S), each sentence ending in eos, padding at the end.
        beam: hypotheses a sentence.
        penalty: maps a length to the divisor of a log-probability, above 0; it must only rise or
            only fall with the length where `stop` is `cannot_improve`.
        max_len: tokens of an output at most; default: its source's length + 50.
        stop: tells from best and best attainable score, (B,) each, which sentences may stop.

    Returns:
        for each sentence its (ids, score), best first: no bos, eos last where it was reached.

    Raises:
        TypeError: source is no tensor of identifiers.
        ValueError: beam is not from 1 to 100000, max_len is below 1, source is not (B, S), or
            a penalty lies outside 1e-30 to 1e30.
        FloatingPointError: the model's logits are NaN or infinite.
    """
    limits = _output_limits(model, source, max_len)  # (B,)
    _check_search(beam, penalty, limits)
    found: list = [[] for _ in source]
    with _evaluating(model):
        everyone = torch.arange(len(source), device=source.device)  # (B,)
        worth = torch.tensor([penalty(n) for n in limits.tolist()], dtype=torch.double)  # (B,)
        beams = _Beams(everyone, beam, limits, worth.to(source.device), penalty)
        state = _widen(model.start(source), everyone, beam)
        ids = torch.full_like(beams.log_p, model.config.bos, dtype=torch.long)  # (B, beam)
        while len(beams.sources):
            parent, state = _beam_step(model, beams, ids, state)
            over = beams.over(stop)  # (B,)
            for row in over.nonzero()[:, 0].tolist():
                found[beams.sources[row]] = beams.best_first(row)
            going = (~over).nonzero()[:, 0]  # finished sentences leave the batch
            rows = (going[:, None] * beam + parent[going]).flatten()
            beams.keep(going)
            ids = beams.tokens[..., -1]  # (B, beam)
            state = _select(state, rows)
    return found


def beam_search(
    model: Any, source: Tensor, beam: int = 4, alpha: float = 0.6, max_len: int | None = None
) -> list[list[int]]:
    """The best translation of each sentence that a beam search finds (section 6.1).

    Args:
        model, source, max_len: as for `hypotheses`.
        beam: hypotheses a sentence; 4 in the paper.
        alpha: of the length penalty; 0.6 in the paper.

    Returns:
        the identifiers of B outputs: no bos, eos last where it was reached.

    Raises:
        TypeError, ValueError, FloatingPointError: as for `hypotheses`.
    """
    penalty = partial(length_penalty, alpha=alpha)
    found = hypotheses(model, source, beam, penalty, max_len, stop=cannot_improve)
    return [best[0][0] for best in found]


def _least_seconds(function, *arguments):
    """The least time of seven calls, after one that is not counted."""
    times = []
    for _ in range(8):
        began = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - began)
    return min(times[1:])


@cache
def _plain_rows(n, m):
    """Up to how many rows a product with a matrix (n, m) is faster here without packing.

    Timed once a process for each size: it depends on the processor and its library.
    """
    weight = torch.ones(n, m)
    packed_weight = torch.ops.mkldnn._reorder_linear_weight(weight)
    most = 0
    for rows in (1, 4, 16, 64):
        x = torch.ones(rows, m)
        plain = _least_seconds(F.linear, x, weight, None)
        if _least_seconds(_packed_product, x, packed_weight, None) < plain:
            break
        most = rows
    return most


def _packed_product(x, weight, bias):
    """x @ W.T + bias for a packed W (n, m): (..., m) to (..., n)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _PackedLinear(nn.Module):
    """A linear layer for searches, weight (n, m), bias (n,) or None; no gradients.

    Many rows are multiplied with the weight in oneDNN's order, few with the weight as it is.
    """

    def __init__(self, weight, bias=None):
        super().__init__()
        self.few = weight.shape[1] * _plain_rows(*weight.shape)  # numbers in so many rows
        self.plain = weight.detach() if self.few else None
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def __reduce__(self):  # to copy or to keep it: the packed weight has no storage of its own
        return type(self), (self.weight.to_dense(), self.bias), {"training": self.training}

    def forward(self, x):
        """x @ weight.T + bias: (..., m) to (..., n)."""
        if self.plain is not None and x.numel() <= self.few:
            return F.linear(x, self.plain, self.bias)
        return _packed_product(x, self.weight, self.bias)


def _as_int8(weight, bias=None):
    """A weight (n, m), each row in 8 bits with a scale of its own, as torch's products want it."""
    scales = weight.abs().amax(1).clamp(min=1e-12).double() / 127  # (n,)
    zeros = torch.zeros_like(scales, dtype=torch.long)  # (n,)
    with warnings.catch_warnings():  # torch 2.13 says that a later one will lack such tensors
        warnings.simplefilter("ignore")
        rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, bias)


@cache
def _int8_bits():
    """How many bits of an input torch's products of 8-bit numbers can take here, or 0.

    On a processor without instructions for them sums overflow, unless inputs have 7 bits.
    """
    for bits in (8, 7):
        try:
            weight = _as_int8(torch.ones(8, 64), torch.ones(8))
            found = torch.ops.quantized.linear_dynamic(torch.ones(3, 64), weight, bits == 7)
        except (AttributeError, RuntimeError):  # another torch
            return 0
        if (found - 65).abs().max() < 1:
            return bits
    return 0


class _Int8Linear(nn.Module):
    """A linear layer for searches, weight (n, m), bias (n,) or None, of 8-bit numbers.

    Each row of the weight has a scale, and each input one for all its rows.
    """

    def __init__(self, weight, bias=None):
        super().__init__()
        self.n = len(weight)
        self.short = _int8_bits() == 7
        self.weight = _as_int8(weight.detach(), None if bias is None else bias.detach())

    def forward(self, x):
        """About x @ weight.T + bias: (..., m) to (..., n)."""
        # They would become some number or other; a sum is quicker, but may overflow.
        if not math.isfinite(x.sum()) and not x.isfinite().all():
            return x.new_full((*x.shape[:-1], self.n), math.nan)  # which a search refuses
        return torch.ops.quantized.linear_dynamic(x, self.weight, self.short)


class _PackedEmbedding(nn.Module):
    """An `Embedding` whose projection to logits is a linear layer for searches."""

    def __init__(self, embedding, linear):
        super().__init__()
        self.look_up = embedding
        self.logits = linear(embedding.weight)

    def forward(self, ids):
        """As the embedding's."""
        return self.look_up(ids)


def _can_pack():
    """Whether torch has the operators that `packed` uses, and they compute what they should."""
    x = torch.eye(3, 5)
    weight = torch.arange(10.0).view(2, 5)
    bias = torch.ones(2)
    wanted = [F.linear(x, weight, b) for b in (None, bias)]  # (3, 2) each
    try:
        ready = torch.ops.mkldnn._reorder_linear_weight(weight)
        found = [_packed_product(x, ready, b) for b in (None, bias)]  # (3, 2) each
        return all(map(torch.allclose, found, wanted))
    except (AttributeError, RuntimeError):  # another torch
        return False


def _fused_leaves_empty_rows():
    """Whether torch's own attention gives 0 where a query may attend to nothing, as ours does."""
    x = torch.ones(1, 1, 2, 8)
    mask = torch.tensor([[True, True], [False, False]])
    return bool((F.scaled_dot_product_attention(x, x, x, mask)[..., 1, :] == 0).all())


def _exchanged(model, linear):
    """A copy of a model for searching, with other linear layers, and torch's norm and attention."""
    model = deepcopy(model).eval()
    fused = _fused_leaves_empty_rows()
    made: dict[nn.Module, nn.Module] = {}
    modules: list[Any] = list(model.modules())
    for module in modules:
        for name, child in list(module._modules.items()):  # named_children skips repetitions
            if _is_hooked(child):  # another layer would not call them
                continue
            if type(child) is nn.Linear or getattr(type(child), "_is_linear", False):
                setattr(module, name, linear(child.weight, child.bias))
            elif type(child) in (LayerNorm, FusedLayerNorm):
                setattr(module, name, FusedLayerNorm.of(child))
            elif type(child) is Embedding:  # one for both languages stays one
                if child not in made:
                    made[child] = _PackedEmbedding(child, linear)
                setattr(module, name, made[child])
        if fused and getattr(module, "attention", None) is scaled_dot_product_attention:
            module.attention = F.scaled_dot_product_attention
    return model


def _is_plain(model):
    """Whether all of a model's numbers are of 32 bits and on a CPU."""
    parts = model.parameters()
    return all(p.device.type == "cpu" and p.dtype == torch.float32 for p in parts)


def _is_packed(model):
    """Whether a model is a copy that `packed` or `packed_int8` has made."""
    return any(isinstance(m, _PackedLinear | _Int8Linear) for m in model.modules())


def packed(model: nn.Module) -> nn.Module:
    """A copy of a model for searching: the same outputs, faster on a CPU, without gradients.

    Where nothing can be packed, and of any other kind of model, it is the model itself.
    """
    known = isinstance(model, Transformer | RecurrentSeq2Seq)  # others may read a weight itself
    if not known or not _is_plain(model) or not torch.backends.mkldnn.is_available():
        return model
    if _is_packed(model) or not _can_pack():
        return model
    return _exchanged(model, _PackedLinear)


def packed_int8(model: nn.Module) -> nn.Module:
    """A copy of a Transformer for searching, whose products are of 8-bit numbers, on a CPU.

    It is faster than `packed`, and its outputs differ a little.

    Raises:
        ValueError: the model is no Transformer, not in float32 or not on a CPU; or torch has
            no such products for this processor.
        FloatingPointError: a weight is not finite.
    """
    if not isinstance(model, Transformer):
        raise ValueError(f"int8 is for a Transformer, got {type(model).__name__}")
    if not _is_plain(model):
        raise ValueError("int8 is for a model in float32 on a CPU: take device='cpu'")
    if _is_packed(model):
        raise ValueError("int8 is for a model itself: this is a packed copy")
    if not _int8_bits():
        has = f"torch {torch.__version__}"
        raise ValueError(f"int8 cannot be used: {has} has no such products for this processor")
    if not all(p.isfinite().all() for p in model.parameters()):
        raise FloatingPointError("a weight of the model is not finite: it is damaged")
    return _exchanged(model, _Int8Linear)


def _split_long(ids, limit, kinds):
    """Cut a list of identifiers into pieces of at most limit.

    Each of `kinds` says whether the list may be cut before a place; the last such place that
    the limit allows is taken, of the first kind that has one.
    """
    first = 0
    while len(ids) - first > limit:
        places = range(first + limit, first, -1)
        found = (i for fits in kinds for i in places if fits(ids, i))
        last = next(found, first + limit)
        yield ids[first:last]
        first = last
    yield ids[first:]


def _sentence_ends(vocabulary, unk):
    """The identifiers of marks that end a sentence: pieces that are the mark and nothing else."""
    marked = ((mark, f"{start}{mark}") for mark in ".!?。！？" for start in ("", "x"))
    decode = getattr(vocabulary, "_decode_source", vocabulary.decode)  # chapter 21's has two tables
    return {i for mark, text in marked for i in vocabulary.encode(text)
            if i > unk and decode([i]).strip() == mark}


def _places_to_cut(vocabulary, unk):
    """Where `_split_long` may cut: behind a sentence, else between words, else characters."""
    decode = getattr(vocabulary, "_decode_source", vocabulary.decode)
    ends = _sentence_ends(vocabulary, unk)
    alone = {i for i in ends if decode([i]).strip() in "。！？"}  # no space follows these

    def word(ids, i):
        apart = f"{decode([ids[i - 1]])} {decode([ids[i]])}"
        return decode([ids[i - 1], ids[i]]) == apart

    def sentence(ids, i):
        return ids[i - 1] in alone or ids[i - 1] in ends and word(ids, i)

    def character(ids, i):  # not before a byte that goes on with one: alone it is none
        return not decode(ids[i : i + 4]).startswith("\ufffd")

    return sentence, word, character


def _fewer_than_positions(longest, config):
    """The most tokens of a piece, of which learned positions may allow fewer; at least 1."""
    if getattr(config, "positions", None) != "learned":
        return longest
    return max(1, min(longest, config.max_positions - 1))  # one of them for the eos


class Translator:
    """A model with its vocabulary: lines of text in, lines of text out.

    Args:
        model: a module with `start`, `step`, and a `config` with `vocab`, `pad`, `bos`, `eos` and
            `unk`; changed later, it needs a new Translator, because this one searches with a
            copy (see `packed`); in evaluation mode, if several threads are to translate.
        vocabulary: anything with `encode` and `decode`.
        longest: a line of more tokens is translated in pieces; learned positions may allow less.
        int8: search with products of 8-bit numbers, faster and a little different; see
            `packed_int8`.

    Raises:
        ValueError: longest is below 1; int8 is not possible; or the vocabulary is a Words or a
            Subwords, and not of the model's size, or with other markers.
    """

    def __init__(self, model: Any, vocabulary: Any, longest: int = 200, int8: bool = False):
        _check_count("longest", longest)
        _check_fit(vocabulary, model.config)
        longest = _fewer_than_positions(longest, model.config)
        self.model, self.vocabulary, self.longest, self.int8 = model, vocabulary, longest, int8
        self.quick = packed_int8(model) if int8 else packed(model)

    def __reduce__(self):  # packed weights cannot leave their process: they are packed again
        return type(self), (self.model, self.vocabulary, self.longest, self.int8)

    def translate(
        self, lines: Iterable[str], beam: int = 4, alpha: float = 0.6, tokens: int = 4096,
        progress: bool = True,
    ) -> list[str]:
        """Translate each line, in the same order, an empty one to an empty one.

        Args:
            beam: hypotheses a sentence; 1 is greedy search.
            alpha: of the length penalty.
            tokens: source tokens of a batch, padding included; fewer where the scores of a step
                would take over half a GB, or keys and values over one.
            progress: show a bar on a terminal where there are more than a hundred lines.

        Raises:
            TypeError: lines is one string, or holds something else.
            ValueError: beam or tokens is below 1, or alpha too far from 0.
            FloatingPointError: the model's logits are NaN or infinite.
        """
        search = partial(self.search, beam=beam, alpha=alpha)
        found = self._search_lines(lines, search, tokens, progress)
        decode = self.vocabulary.decode
        return [_join_texts(decode(pool[0][0]) for pool in pools) for pools in found]

    def n_best(
        self, lines: Iterable[str], k: int, beam: int = 4, alpha: float = 0.6,
        tokens: int = 4096, progress: bool = True,
    ) -> list[list[tuple[float, str]]]:
        """The k best translations of each line with their scores, best first.

        Of a line in pieces, the i-th joins the i-th best of every piece; its score is their sum.

        Args:
            k: how many; a search finds no more than the beam is wide.
            lines, beam, alpha, tokens, progress: as for `translate`.

        Returns:
            for each line its (score, text): the score first, unlike in `hypotheses`.

        Raises:
            TypeError, ValueError, FloatingPointError: as `translate`; ValueError also where k
                is below 1 or above the beam.
        """
        _check_n_best(k, beam)
        search = partial(self.search, beam=beam, alpha=alpha, k=k)
        found = self._search_lines(lines, search, tokens, progress)
        return [_join_pools(pools, k, self.vocabulary.decode) for pools in found]

    def search(self, batch: list, beam: int, alpha: float, k: int = 1) -> list:
        """The hypotheses, (ids, score), of lists of identifiers that fit one batch."""
        weight = next(self.model.parameters(), torch.empty(0))
        source = pad_batch(batch, self.model.config.pad).to(weight.device)  # (B, S)
        penalty = partial(length_penalty, alpha=alpha)
        stop = cannot_improve if k == 1 else when_full
        return hypotheses(self.quick, source, beam, penalty, stop=stop)

    def _search_lines(self, lines, search, tokens, progress):
        rows = partial(_most_rows, search.keywords["beam"], self.model.config)
        rows(1)  # refuses a wrong beam, even where there is no line
        return _search_pieces(map(self.cut, _listed(lines)), search, tokens, rows, progress)

    def cut(self, line: str) -> list[list[int]]:
        """The identifiers of a line, in pieces that end in eos; none where nothing is visible."""
        if not isinstance(line, str):
            raise TypeError(f"lines must be strings, one is {type(line).__name__}")
        eos, unk = self.model.config.eos, self.model.config.unk
        line = " ".join(_writable(line).replace("\ufeff", " ").split())  # without a file's mark
        if not _is_visible(line):
            return []
        ids = [i for i in self.vocabulary.encode(line) if i != eos]
        kinds = _places_to_cut(self.vocabulary, unk) if len(ids) > self.longest else ()
        return [[*piece, eos] for piece in _split_long(ids, self.longest, kinds)]


def _listed(lines):
    """The lines, if they are not one string: TypeError."""
    if isinstance(lines, str):
        raise TypeError("lines must be a list of strings, got one: put it in a list")
    return lines


def _most_rows(beam, config, length):
    """How many sentences of a length have half a GB of scores, and a GB of keys and values."""
    _check_beam(beam)
    kept = 0  # numbers that a hypothesis keeps for each position
    if isinstance(config, Config):
        kept = config.decoder_layers * config.h * (config.key_width + config.value_width)
    caches = 2**28 // max(1, beam * (length + 50) * kept)
    return max(1, min(2**27 // (beam * config.vocab), caches))


def _search_pieces(cut, search, tokens, rows, progress):
    """For each line the hypotheses of each of its pieces, searched batch by batch."""
    _check_count("tokens", tokens)
    cut = list(cut)
    pieces = [piece for line in cut for piece in line]
    pools: dict[int, list] = {}
    off = None if progress and len(pieces) > 100 else True  # None: off without a terminal
    with tqdm(total=len(pieces), unit="line", disable=off) as bar:
        for batch in _by_falling_length(pieces, tokens, rows):
            pools |= zip(batch, search([pieces[i] for i in batch]), strict=True)
            bar.update(len(batch))
    in_order = iter([pools[i] for i in range(len(pieces))])
    return [[next(in_order) for _ in line] for line in cut]


def _by_falling_length(pieces, tokens, rows):
    """Yield batches of places of pieces, the longest first, of tokens and rows(length) at most."""
    order = sorted(range(len(pieces)), key=lambda i: len(pieces[i]), reverse=True)
    first = 0
    while first < len(order):
        longest = len(pieces[order[first]])
        size = min(max(1, tokens // longest), rows(longest))
        yield order[first : first + size]
        first += size


def _join_pools(pools, k, decode):
    """k (score, text) of a line: the first of all its pieces joined, the second of all, and so on."""
    if not pools:  # a line without content
        return [(0.0, "")]
    rows = zip(*(pool[:k] for pool in pools))
    return [(sum(s for _, s in row), _join_texts(decode(ids) for ids, _ in row)) for row in rows]


def _join_texts(parts):
    """The translations of a line's pieces as one text; an empty one leaves no space."""
    return " ".join(part for part in parts if part)


def _check_n_best(k, beam):
    """Refuse to ask a search for more translations than its beam is wide: ValueError."""
    _check_beam(beam)
    if not isinstance(k, Integral) or k < 1:
        raise ValueError(f"k must be a whole number, 1 or more, got {k!r}")
    if k > beam:
        raise ValueError(f"n-best={k} needs a beam of {k} or more, got beam={beam}")


_KINDS = {
    "Transformer": (Transformer, Config),
    "RecurrentSeq2Seq": (RecurrentSeq2Seq, RecurrentConfig),
}


def _check_kind(model, vocabulary):
    """Refuse a model or a vocabulary that `annotated.load` could not make again: TypeError."""
    if type(model) not in [kind for kind, _ in _KINDS.values()]:
        raise TypeError(f"model must be one of {', '.join(_KINDS)}, got {type(model).__name__}: "
                        "of any other, keep the state_dict")
    if not isinstance(vocabulary, Words | Subwords):
        raise TypeError(f"vocabulary must be Words or Subwords, got {type(vocabulary).__name__}")


def _check_vocabulary(vocabulary, config):
    """Refuse a vocabulary that has not one entry for each of the model's embeddings."""
    sizes = {config.vocab, getattr(config, "source_vocab", None) or config.vocab}
    if sizes != {len(vocabulary)}:
        rows = " and ".join(map(str, sorted(sizes)))
        raise ValueError(f"the vocabulary has {len(vocabulary)} entries and the model {rows} "
                         "embeddings: they must be equally many")


def _check_markers(config):
    """Refuse a model whose markers are not those of `Words` and `Subwords`: ValueError."""
    found = config.pad, config.bos, config.eos, config.unk
    if found != (0, 1, 2, 3):
        raise ValueError("the vocabulary has pad, bos, eos, unk = (0, 1, 2, 3), "
                         f"and the model's configuration {found}")


def _nearness(x, near):
    """How far two ways to compute numbers like x may be apart: near, or more where it must be."""
    if x.dtype.itemsize < 4:
        return 0.05
    rounded = x.is_cuda and torch.get_float32_matmul_precision() != "highest"  # TF32
    return 0.05 if rounded else near


def _check_fit(vocabulary, config):
    """Refuse a `Words` or a `Subwords` that is not the model's; others have rules of their own."""
    if isinstance(vocabulary, Words | Subwords):
        _check_vocabulary(vocabulary, config)
        _check_markers(config)


def _is_as_its_base(module):
    """Whether a subclass of `MultiHeadAttention` computes what that class does, by three trials."""
    methods = {"forward", "attend", "keys_values", "split"}
    if type(module) is MultiHeadAttention and not methods & vars(module).keys():
        return True
    generator = torch.Generator().manual_seed(1)
    like = next(module.parameters(), torch.zeros(()))
    # (1, T, d_model) twice
    x, y = (torch.randn(1, 9, module.d_model, generator=generator).to(like) for _ in range(2))
    with _evaluating(module):
        plain = copy(module)
        plain.__class__ = MultiHeadAttention
        for name in methods & vars(plain).keys():
            delattr(plain, name)
        try:
            for memory, mask in ((x, None), (x, causal_mask(9, x.device)), (y, None)):
                wanted = plain.forward(x, memory, mask)  # (1, T, d_model)
                given = module.forward(x, memory, mask)
                near = _nearness(x, 1e-4) * wanted.abs().max().item()
                if not torch.allclose(given, wanted, 0, near, equal_nan=True):
                    return False
        except (TypeError, ValueError, RuntimeError):  # it takes other inputs, or sizes
            return False
    return True


def _is_dot_product(module):
    """Whether a `MultiHeadAttention` computes what chapter 2's attention does, by some trials."""
    if not _is_as_its_base(module):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(1, module.d_model).to(next(module.parameters(), torch.zeros(())))
    function = getattr(module.attention, "attention", module.attention)  # without its dropout
    with torch.no_grad():
        made = [W(x) for W in (module.W_Q, module.W_K, module.W_V)]  # whatever computes them
        T = 65  # more than the window of an attention that looks at neighbours only
        sizes = ((1, module.h, T, y.shape[-1] // module.h) for y in made)
        # (1, h, T, d_k) twice, (1, h, T, d_v)
        Q, K, V = (torch.randn(n, generator=generator).to(y) for n, y in zip(sizes, made))
        near = _nearness(V, 1e-4)
        for mask in (None, causal_mask(T, V.device)):
            wanted = scaled_dot_product_attention(Q, K, V, mask)  # (1, h, T, d_v)
            try:
                given = function(Q, K, V, mask)
            except (TypeError, ValueError):  # it takes no mask, or not this one
                return False
            if given.shape != wanted.shape or not torch.allclose(given, wanted, atol=near):
                return False
    return True


def _ties(tensors):
    """Which names are one tensor: a set of sets, each of one name or more."""
    places: dict[Any, set[str]] = {}
    for name, tensor in tensors.items():
        place = id(tensor) if tensor.is_meta else (tensor.device, tensor.data_ptr())
        places.setdefault(place, set()).add(name)
    return {frozenset(names) for names in places.values()}


def _check_ties(tensors, kind, config):
    """Refuse tensors, by name, that are shared where a model's are apart, or the reverse."""
    with torch.device("meta"):
        wanted = kind(config).state_dict(keep_vars=True)
    ours = _ties({name: wanted[name] for name in tensors})
    if others := ours ^ _ties(tensors):
        names = max(others, key=len)
        first, second = sorted(names)[:2]
        are = "one tensor" if names in ours else "two tensors"
        raise ValueError(f"{first} and {second} must be {are}")


def _check_tensors(model):
    """Refuse a model whose tensors are not those that its configuration makes: ValueError."""
    tensors = model.state_dict(keep_vars=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        _check_shapes(shapes, type(model), model.config)
        _check_ties(tensors, type(model), model.config)
    except ValueError as error:
        raise ValueError(f"the model is not what its configuration makes: {error}; "
                         "keep its state_dict") from None


def _trial_ids(config, device):
    """A few identifiers, (2, T), that a model reads on both sides, none of them padding."""
    size = min(config.vocab, getattr(config, "source_vocab", None) or config.vocab)
    T = min(7, getattr(config, "max_positions", 7))
    ids = torch.arange(size)
    ids = ids[ids != config.pad]
    chosen = torch.randint(len(ids), (2, T), generator=torch.Generator().manual_seed(0))
    return ids[chosen].to(device)  # (2, T)


def _of_config(model):
    """What a model's configuration makes, with the model's own tensors, in evaluation mode."""
    with torch.device("meta"):
        plain = type(model)(model.config).requires_grad_(False)
    plain.load_state_dict(model.state_dict(), assign=True)
    return plain.eval()


def _uncompiled():
    """Inside, nothing is compiled: a trial is not worth a program of its own."""
    if "torch._dynamo" not in sys.modules:  # to load it takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _logits_of_both(model):
    """Logits (2, T, vocab) of a few identifiers: as its configuration says, and the model's own."""
    device = next(model.parameters()).device
    ids = _trial_ids(model.config, device)
    with (_evaluating(model), _uncompiled(), torch.autocast(device.type, enabled=False),
          warnings.catch_warnings()):
        warnings.simplefilter("ignore")  # a GPU's GRU wants its weights side by side
        return _of_config(model)(ids, ids), model(ids, ids)


def _computes_its_config(model):
    """Whether a model's logits are those of its configuration, or the trial is not possible."""
    try:
        wanted, given = _logits_of_both(model)
        if not wanted.isfinite().all():
            return True
        moves = (wanted - wanted.mean((0, 1))).abs().max()  # without what is the same everywhere
        near = max(_nearness(wanted, 1e-3), 25 * torch.finfo(wanted.dtype).eps)
        apart = (given - wanted).abs().max()
        largest = wanted.abs().max()
        rounded = 4 * torch.finfo(wanted.dtype).eps * largest
        return bool(apart <= max(near * (moves + largest / 100), rounded))
    except Exception:  # a layer may have a kernel that takes no such batch
        return True


def _check_attention(model):
    """Refuse a model with an attention or another part of its own, which no file keeps."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and not _is_dot_product(module):
            raise ValueError("the model's attention is not scaled_dot_product_attention, and "
                             "files keep no other: keep its state_dict, and the function")
    if not _computes_its_config(model):
        raise ValueError("the model computes something else than its configuration says, and "
                         "files keep no code: keep its state_dict, and the code")


def _only_vocabulary(folder, filename):
    """Remove the vocabulary of another kind that an older model may have left in a folder."""
    for name in {Words.filename, Subwords.filename} - {filename}:
        (folder / name).unlink(missing_ok=True)


def save(folder: Path | str, model: nn.Module, vocabulary: Any, about: str = "") -> None:
    """Write a model folder that is complete in itself.

    Args:
        folder: made where it does not exist.
        model: a Transformer or a RecurrentSeq2Seq; as float16, it takes half of the bytes.
        vocabulary: a Words or a Subwords.
        about: what the README is to say of data, licence and limits; without it, a README
            that was there before any model is kept.

    Raises:
        TypeError: `annotated.load` knows no such model or vocabulary; about is no text.
        ValueError: the vocabulary is not of the model's size or has other markers; the model has
            or shares other tensors than its configuration says, or computes something else; or
            about has letters that UTF-8 has not.
    """
    _check_kind(model, vocabulary)
    config: Any = model.config
    _check_vocabulary(vocabulary, config)
    _check_markers(config)
    _check_tensors(model)
    _check_attention(model)
    if not isinstance(about, str):
        raise TypeError(f"about must be a text, not {type(about).__name__}")
    folder = Path(folder)
    readme = folder / "README.md"
    stays = not about and not (folder / "config.json").exists() and readme.exists()
    page = readme.read_bytes() if stays else about.encode()
    with (atomic_write(folder / vocabulary.filename) as words, atomic_write(readme) as fresh,
          atomic_write(folder / "model.safetensors") as weights):
        vocabulary.save(words)
        fresh.write_bytes(page)
        save_model(model, str(weights))
        fsync(weights)  # a disk that takes no more says so here, while the old model is whole
        # No model until all of the new one is there: old weights must not meet a new vocabulary.
        (folder / "config.json").unlink(missing_ok=True)
    _only_vocabulary(folder, vocabulary.filename)
    what = {"kind": type(model).__name__, "config": asdict(config)}
    write_json(folder / "config.json", what)  # last: a folder without it is no model


def _check_device(device):
    """Refuse a device, such as "cpu" or "cuda:1", that torch cannot use here."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        why = re.sub(r"\s+", " ", str(error))[:200]
        raise ValueError(f"device={device!r} cannot be used here: {why}") from None


def _machine_memory():
    """Bytes of memory that this machine has, or lets a process have; None if nobody says."""
    found = []
    with suppress(AttributeError, OSError, ValueError):  # Windows has no sysconf
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for group in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # no such file, or "max": no limit
            found.append(int(Path("/sys/fs/cgroup", group).read_text()))
    return min(found, default=None)


def _check_memory(what, weights, copies=1):
    """Refuse what takes so many numbers of 4 bytes, some times over, if the machine lacks them."""
    wanted = 4 * weights * copies
    has = _machine_memory()
    if has is not None and wanted > has:
        sizes = f"{wanted / 1e9:,.1f} GB of memory, and this machine has {has / 1e9:,.1f}"
        raise ValueError(f"{what} takes {sizes}: take a smaller model, or a larger machine")


def _check_layers(config, tensors):
    """Refuse more layers than there are tensors: each has some, and making them takes time."""
    layers = getattr(config, "N", 0) + getattr(config, "decoder_layers", 0)
    if layers > tensors:
        raise ValueError(f"{layers} layers cannot be made of {tensors} tensors")


def _check_shapes(shapes, kind, config):
    """Refuse tensors, name -> shape, that are not those of a model; no memory is taken."""
    _check_layers(config, len(shapes))
    with torch.device("meta"):
        wanted = kind(config).state_dict(keep_vars=True)
    for name, shape in shapes.items():
        if name not in wanted or tuple(wanted[name].shape) != shape:
            has = tuple(wanted[name].shape) if name in wanted else "no such tensor"
            raise ValueError(f"{name} has the shape {shape}, and the model {has}")
    stored = {id(wanted[name]) for name in shapes}
    if missing := [name for name, tensor in wanted.items() if id(tensor) not in stored]:
        raise ValueError(f"{missing[0]} is missing")


def _check_header(path, kind, config):
    """Refuse a file of weights that is not a model's, or too large, by its header alone."""
    with open(path, "rb"):  # safetensors would call a file absent that may not be read
        pass
    with safe_open(path, "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    _check_shapes(shapes, kind, config)
    weights = sum(math.prod(shape) for shape in shapes.values())
    _check_memory("this model", weights, copies=3)  # two for `packed`


def _unstated_widths(fields):
    """Fields of a configuration, in which a d_k or d_v of d_model / h is None."""
    usual = fields["d_model"] / fields["h"] if "h" in fields else None
    follows = {name: None for name in ("d_k", "d_v") if usual and fields.get(name) == usual}
    return {**fields, **follows}


def _read_config(path):
    """The class of a model and its configuration, as `save` has written them.

    Raises:
        ValueError, TypeError: the file is damaged, or does not make a valid model.
    """
    about = read_json(path)
    _check_fields(path, about, kind=str, config=dict)
    if about["kind"] not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {about['kind'][:40]!r}")
    kind, config = _KINDS[about["kind"]]
    return kind, config(**_unstated_widths(about["config"]))


def load(
    folder: Path | str, device: torch.device | str = "cpu", int8: bool = False
) -> Translator:
    """Load a model folder as a Translator that computes in float32.

    Args:
        folder: what `save` has written.
        device: where it is to compute.
        int8: as of `Translator`.

    Raises:
        ValueError: the folder holds no model, a damaged one, or weights or a vocabulary
            that do not fit; there is no such device, or int8 is not possible.
    """
    folder = Path(folder)
    _check_device(device)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json")
    try:
        kind, config = _read_config(folder / "config.json")
        vocabulary = load_vocabulary(folder)
        _check_vocabulary(vocabulary, config)
        _check_header(folder / "model.safetensors", kind, config)
        model = kind(config)
        load_model(model, str(folder / "model.safetensors"))
    except (ModuleNotFoundError, MemoryError, PermissionError, torch.OutOfMemoryError):  # clear
        raise
    except Exception as error:  # each library has errors of its own for a damaged file
        if "allocate memory" in str(error):  # torch, on a CPU
            raise
        why = re.sub(r"\s+", " ", str(error))[:200]
        said = f"{folder} holds no model that fits its config.json: {why}"
        raise ValueError(said) from error
    return Translator(model.to(device).eval(), vocabulary, int8=int8)
