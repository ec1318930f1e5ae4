"""Decoding.

Generated from book/11-decoding.md by tools/tangle.py: edit the chapter, not this file.
"""

import json
import math
import re
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_model, save_model
from torch import nn
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.data import load_vocabulary, pad_batch, replacing
from annotated.embedding import Embedding
from annotated.layers import LayerNorm
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import Config, Transformer

__all__ = [
    "evaluating",
    "output_limits",
    "select",
    "widen",
    "greedy",
    "length_penalty",
    "cannot_improve",
    "when_full",
    "Beams",
    "grow",
    "hypotheses",
    "beam_search",
    "PackedLinear",
    "PackedEmbedding",
    "FusedNorm",
    "packed",
    "pieces",
    "Translator",
    "KINDS",
    "save",
    "load",
]


@contextmanager
def evaluating(model):
    """Inside, the model drops nothing and records no gradient; afterwards it is as it was."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def output_limits(model, source, max_len=None):
    """How many tokens each output may have: max_len, or the source's own length + 50 (section 6.1).

    Returns:
        (B,), counted without padding, so that a sentence's limit does not depend on its batch.
    """
    if max_len is None:
        return (source != model.config.pad).sum(1) + 50  # (B,)
    if max_len < 1:
        raise ValueError(f"max_len must be 1 or more, got {max_len}")
    return torch.full_like(source[:, 0], max_len)  # (B,)


def select(state, rows):
    """Rows of a decoding state: what its own `select` gives, or of each tensor in tuples, lists and dicts."""
    if isinstance(state, torch.Tensor):
        return state.index_select(0, rows)
    if isinstance(state, dict):
        return {name: select(part, rows) for name, part in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([select(part, rows) for part in state])
    return state.select(rows) if hasattr(state, "select") else state


def widen(state, rows, k):
    """A state of k hypotheses, side by side, for each of the rows, (B,), which are all there are."""
    if hasattr(state, "repeat") and not isinstance(state, torch.Tensor):
        return state.repeat(k)
    return select(state, rows.repeat_interleave(k))


def greedy(model, source, max_len=None):
    """Translate by the likeliest token at every step.

    Args:
        model: anything with `start`, `step` and `config`.
        source: (B, S), each sentence ending in eos, padding at the end.
        max_len: tokens of an output at most; default: its source's length + 50.

    Returns:
        B lists of identifiers: no bos, eos last where it was reached.
    """
    with evaluating(model):
        limits, state = output_limits(model, source, max_len), model.start(source)
        ids = torch.full_like(source[:, 0], model.config.bos)  # (B,)
        outputs, active = [[] for _ in source], torch.arange(len(source), device=source.device)
        while len(active):
            logits, state = model.step(ids, state)  # (B, vocab), B the sentences still active
            ids = logits.argmax(-1)  # (B,)
            for row, token in zip(active.tolist(), ids.tolist(), strict=True):
                outputs[row].append(token)
            length = len(outputs[active[0]])
            going = ((ids != model.config.eos) & (length < limits[active])).nonzero()[:, 0]
            if len(going) < len(active):  # finished sentences leave the batch
                ids, active, state = ids[going], active[going], select(state, going)
    return outputs


def length_penalty(length, alpha=0.6):
    """((5 + length) / 6) ** alpha, by which a log-probability is divided (Wu et al. 2016; section 6.1 gives alpha).

    Args:
        length: tokens of the output, eos included.
        alpha: 0 compares log-probabilities as they are.
    """
    return ((5 + length) / 6) ** alpha


def cannot_improve(best, attainable):
    """Stop a sentence when nothing unfinished can still beat its best finished hypothesis."""
    return best >= attainable


def when_full(best, attainable):
    """Stop a sentence only when every place of its beam is taken by a finished hypothesis."""
    return torch.zeros_like(best, dtype=torch.bool)


class Beams:
    """The hypotheses of the sentences still under way, k places a sentence.

    Args:
        sources: which sentences of the batch these are, (B,).
        k: places of a beam.
        limits: tokens of an output at most, (B,).
        penalty: maps a length to the divisor of a log-probability; must not fall or not rise with it.
    """

    def __init__(self, sources, k, limits, penalty):
        shape, device = (len(sources), k), sources.device
        self.sources, self.limits, self.penalty = sources, limits, penalty
        self.length = 0
        self.tokens = torch.zeros(*shape, 0, dtype=torch.long, device=device)  # (B, k, length)
        # Every place but the first is empty, or the same hypothesis would stand in all.
        self.log_p = torch.full(shape, -math.inf, device=device)  # (B, k)
        self.log_p[:, 0] = 0.0
        self.score = torch.full(shape, -math.inf, device=device)  # (B, k), of finished ones
        self.lengths = torch.zeros(shape, dtype=torch.long, device=device)  # (B, k), of finished ones

    @property
    def done(self):
        """Which hypotheses are finished, (B, k)."""
        return self.score > -math.inf

    def extend(self, log_probs, pad):
        """Keep the k best continuations of each sentence, finished hypotheses unchanged.

        Args:
            log_probs: of the next token, (B, k, vocab).
            pad: filled in behind finished hypotheses.

        Returns:
            The place that each continues, (B, k).
        """
        # A float64 model's scores are float64, too.
        self.log_p, self.score = self.log_p.to(log_probs), self.score.to(log_probs)
        # Of one hypothesis, no more continuations than there are places can be among the best.
        best, token = log_probs.topk(min(log_probs.shape[1:]))  # (B, k, m)
        total = (self.log_p[..., None] + best).masked_fill(self.done[..., None], -math.inf)  # (B, k, m)
        total[..., 0].masked_fill_(self.done, math.inf)  # a finished one keeps its place
        token = token.masked_fill(self.done[..., None], pad)  # (B, k, m)
        best, index = total.flatten(1).topk(self.log_p.shape[1])  # (B, k)
        parent, token = index // total.shape[-1], token.flatten(1).gather(1, index)  # (B, k)
        for name in ("log_p", "score", "lengths"):
            setattr(self, name, getattr(self, name).gather(1, parent))
        self.log_p = torch.where(self.done, self.log_p, best)  # (B, k)
        history = self.tokens.gather(1, parent[..., None].expand(-1, -1, self.length))  # (B, k, length)
        self.tokens = torch.cat([history, token[..., None]], dim=-1)  # (B, k, length + 1)
        self.length += 1
        return parent

    def finish(self, eos):
        """Give a score to the hypotheses that ended now, by eos or by the limit."""
        ended = (self.tokens[..., -1] == eos) | (self.length >= self.limits)[:, None]  # (B, k)
        ended &= ~self.done & (self.log_p > -math.inf)
        self.score = torch.where(ended, self.log_p / self.penalty(self.length), self.score)
        self.lengths = torch.where(ended, self.length, self.lengths)

    def over(self, stop):
        """Which sentences need no further step, (B,)."""
        alive = self.log_p.masked_fill(self.done, -math.inf).amax(1)  # (B,)
        ends = [self.penalty(self.length + 1), torch.as_tensor(self.penalty(self.limits)).to(alive)]
        attainable = torch.maximum(alive / ends[0], alive / ends[1])  # (B,)
        return (alive == -math.inf) | stop(self.score.amax(1), attainable)

    def keep(self, rows):
        """Drop the other sentences."""
        for name in ("sources", "limits", "tokens", "log_p", "score", "lengths"):
            setattr(self, name, getattr(self, name)[rows])

    def best_first(self, row):
        """The finished hypotheses of one sentence as (ids, score), best first."""
        order = self.score[row].argsort(descending=True, stable=True).tolist()
        lengths, scores, tokens = self.lengths[row].tolist(), self.score[row].tolist(), self.tokens[row].tolist()
        return [(tokens[i][: lengths[i]], scores[i]) for i in order if scores[i] > -math.inf]


def grow(model, beams, ids, state):
    """Make one step of the search: ids, (B, beam), are the last tokens of the hypotheses.

    Returns:
        The place that each hypothesis continues, (B, beam), and the state before it is rearranged so.
    """
    logits, state = model.step(ids.flatten(), state)  # (B * beam, vocab)
    log_probs = logits.float().log_softmax(-1) if logits.dtype.itemsize < 4 else logits.log_softmax(-1)
    parent = beams.extend(log_probs.unflatten(0, ids.shape), model.config.pad)  # (B, beam)
    beams.finish(model.config.eos)
    return parent, state


def hypotheses(model, source, beam=4, penalty=length_penalty, max_len=None, stop=when_full):
    """The best translations of each sentence that a beam search finds, with scores (section 6.1).

    At every step the hypotheses that are not finished are continued by every token, and the best stay.
    A finished one keeps its place, so that a beam of 1 is greedy search.

    Args:
        model: anything with `start`, `step` and `config`.
        source: (B, S), each sentence ending in eos, padding at the end.
        beam: hypotheses a sentence.
        penalty: maps a length to the divisor of a log-probability.
        max_len: tokens of an output at most; default: its source's length + 50.
        stop: says from best score and best attainable score, (B,) each, which sentences may stop early.

    Returns:
        B lists of (ids, score), best first: no bos, eos last where it was reached.
    """
    if beam < 1:
        raise ValueError(f"beam must be 1 or more, got {beam}")
    with evaluating(model):
        found, everyone = [None] * len(source), torch.arange(len(source), device=source.device)
        beams = Beams(everyone, beam, output_limits(model, source, max_len), penalty)
        state = widen(model.start(source), everyone, beam)
        ids = torch.full_like(beams.log_p, model.config.bos, dtype=torch.long)  # (B, beam)
        while len(beams.sources):
            parent, state = grow(model, beams, ids, state)
            over = beams.over(stop)  # (B,)
            for row in over.nonzero()[:, 0].tolist():
                found[beams.sources[row]] = beams.best_first(row)
            going = (~over).nonzero()[:, 0]  # finished sentences leave the batch
            rows = (going[:, None] * beam + parent[going]).flatten()
            beams.keep(going)
            ids, state = beams.tokens[..., -1], select(state, rows)
    return found


def beam_search(model, source, beam=4, alpha=0.6, max_len=None):
    """The best translation of each sentence that a beam search finds (section 6.1).

    Args:
        model: anything with `start`, `step` and `config`.
        source: (B, S), each sentence ending in eos, padding at the end.
        beam: hypotheses a sentence; 4 in the paper.
        alpha: of the length penalty; 0.6 in the paper.
        max_len: tokens of an output at most; default: its source's length + 50.

    Returns:
        B lists of identifiers: no bos, eos last where it was reached.
    """
    penalty = partial(length_penalty, alpha=alpha)
    found = hypotheses(model, source, beam, penalty, max_len, stop=cannot_improve)
    return [best[0][0] for best in found]


class PackedLinear(nn.Module):
    """A linear layer for float32 on a CPU, without gradients, its matrix in the order that oneDNN reads.

    Args:
        weight: (n, m).
        bias: (n,) or None.
    """

    def __init__(self, weight, bias=None):
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.bias = None if bias is None else bias.detach()

    def forward(self, x):
        """x @ weight.T + bias: (..., m) to (..., n)."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class PackedEmbedding(nn.Module):
    """An `Embedding` whose projection to logits is packed."""

    def __init__(self, embedding):
        super().__init__()
        self.look_up, self.logits = embedding, PackedLinear(embedding.weight)

    def forward(self, ids):
        """As the embedding's."""
        return self.look_up(ids)


class FusedNorm(nn.Module):
    """A `LayerNorm` as one operation."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        """As the norm's."""
        return F.layer_norm(x, x.shape[-1:], self.norm.gain, self.norm.bias, self.norm.eps)


def packed(model):
    """A copy of a model for searching: the same outputs, faster on a CPU, without gradients.

    Args:
        model: any model; changed later, it leaves the copy as it was.

    Returns:
        the copy, or the model itself where nothing can be packed.
    """
    plain = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in model.parameters())
    if not (plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return model
    model, made = deepcopy(model).eval(), {}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # named_children leaves repetitions out
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias))
            elif isinstance(child, LayerNorm):
                setattr(module, name, FusedNorm(child))
            elif isinstance(child, Embedding):  # one for both languages stays one
                made[child] = made.get(child) or PackedEmbedding(child)
                setattr(module, name, made[child])
        if getattr(module, "attention", None) is scaled_dot_product_attention:
            module.attention = F.scaled_dot_product_attention
    return model


def pieces(ids, limit, ends):
    """Cut a long list of identifiers into pieces of at most limit, after the last of the ends where there is one."""
    while len(ids) > limit:
        cut = next((i + 1 for i in range(limit - 1, 0, -1) if ids[i] in ends), limit)
        yield ids[:cut]
        ids = ids[cut:]
    yield ids


class Translator:
    """A model with its vocabulary: lines of text in, lines of text out.

    Args:
        model: anything with `start`, `step` and `config`; changed later, it needs a new Translator,
            because this one searches with a copy (see `packed`).
        vocabulary: anything with `encode` and `decode`.
        longest: a line of more tokens is translated in pieces, since the model has seen none so long.
    """

    def __init__(self, model, vocabulary, longest=200):
        self.model, self.vocabulary, self.longest = model, vocabulary, longest
        self.quick = packed(model)

    def translate(self, lines, beam=4, alpha=0.6, tokens=4096):
        """Translate a list of lines.

        Args:
            lines: strings; an empty one gives an empty one.
            beam: hypotheses a sentence; 1 is greedy search.
            alpha: of the length penalty.
            tokens: source tokens of a batch, padding included.

        Returns:
            As many strings, in the same order.
        """
        if isinstance(lines, str):
            raise TypeError("lines must be a list of strings, got one string: put it in a list")
        parts = [(number, piece) for number, line in enumerate(lines) for piece in self.cut(line)]
        order = sorted(range(len(parts)), key=lambda i: len(parts[i][1]), reverse=True)
        outputs = [""] * len(parts)
        with tqdm(total=len(parts), unit="line", disable=None if len(parts) > 100 else True) as bar:
            while order:
                size = max(1, tokens // len(parts[order[0]][1]))
                batch, order = order[:size], order[size:]
                for i, text in zip(batch, self.search([parts[i][1] for i in batch], beam, alpha), strict=True):
                    outputs[i] = text
                bar.update(len(batch))
        joined = [[] for _ in lines]
        for (number, _), text in zip(parts, outputs, strict=True):
            joined[number].append(text)
        return [" ".join(texts) for texts in joined]

    def cut(self, line):
        """The identifiers of a line, in pieces that each end in eos; none for a line without content."""
        eos = self.model.config.eos
        if not line.strip():
            return []
        ids = [i for i in self.vocabulary.encode(" ".join(line.split())) if i != eos]
        ends = {i for mark in ".!?。！？" for i in self.vocabulary.encode(mark) if i > self.model.config.unk}
        return [[*piece, eos] for piece in pieces(ids, self.longest, ends)]

    def search(self, batch, beam, alpha):
        """Translate lists of identifiers that fit one batch."""
        device = next(self.model.parameters()).device
        source = pad_batch(batch, self.model.config.pad).to(device)  # (B, S)
        return [self.vocabulary.decode(ids) for ids in beam_search(self.quick, source, beam, alpha)]


KINDS = {"Transformer": (Transformer, Config), "RecurrentSeq2Seq": (RecurrentSeq2Seq, RecurrentConfig)}


def save(folder, model, vocabulary, about=""):
    """Write a model folder that is complete in itself: weights, configuration, vocabulary, README.

    Args:
        folder: made where it does not exist.
        model: a Transformer or a RecurrentSeq2Seq.
        vocabulary: a Words or a Subwords.
        about: what the README is to say of data, licence and limits.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save(folder / vocabulary.filename)
    with replacing(folder / "model.safetensors") as fresh:
        save_model(model, str(fresh))
    with replacing(folder / "README.md") as fresh:
        fresh.write_text(about)
    with replacing(folder / "config.json") as fresh:  # last: a folder without it is not a model
        fresh.write_text(json.dumps({"kind": type(model).__name__, "config": asdict(model.config)}, indent=1) + "\n")


def load(folder, device="cpu"):
    """Load a model folder as a Translator.

    Raises:
        ValueError: if the folder holds no model, or a damaged one, or weights that do not fit the configuration.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a model folder: it has no config.json")
    try:
        about = json.loads((folder / "config.json").read_text())
        kind, config = KINDS[about["kind"]]
        model = kind(config(**about["config"]))
        load_model(model, str(folder / "model.safetensors"))
    except Exception as error:  # each library has errors of its own for a damaged or foreign file
        reason = re.sub(r"\s+", " ", str(error))[:200]
        raise ValueError(f"{folder} holds no model that fits its config.json: {reason}") from error
    return Translator(model.to(device).eval(), load_vocabulary(folder))
