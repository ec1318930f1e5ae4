"""After the paper.

Generated from book/20-after.md by tools/tangle.py: edit the chapter, not this file.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.data import join_words, pad_batch, split_words
from annotated.decoding import _evaluating
from annotated.embedding import Embedding, _angles
from annotated.grammar import _VERBS
from annotated.layers import LayerNorm, PreNorm
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention
from annotated.optimization import label_smoothed_loss, optimizer
from annotated.recurrent import _check_ids, _check_step
from annotated.transformer import _POSITIONS, Config, Encoder, KVCache, Transformer, _check_caches, _initialise

__all__ = [
    "causal_loss",
    "masked_loss",
    "MaskedModel",
    "LanguageModel",
    "mask_words",
    "pretrain",
    "Classifier",
    "finetune",
    "top_k",
    "top_p",
    "sample",
    "generate",
    "RMSNorm",
    "rotary_attention",
    "GatedFeedForward",
    "GroupedQueryAttention",
    "CHANGES",
]


def causal_loss(model: "LanguageModel", ids: Tensor) -> Tensor:
    """How well a language model predicts each next token (Radford et al. 2018).

    Args:
        model: maps (B, T) to logits (B, T, vocab).
        ids: sentences, bos to eos, (B, T + 1), padding at the end.

    Returns:
        (), in nats, the mean over all tokens but bos and padding.
    """
    logits = model(ids[:, :-1])  # (B, T, vocab)
    return label_smoothed_loss(logits, ids[:, 1:], 0.0, model.config.pad)


def masked_loss(model: "MaskedModel", ids: Tensor, seen: Tensor, chosen: Tensor) -> Tensor:
    """How well a masked-word model restores the words that were chosen (Devlin et al. 2019).

    Args:
        model: maps (B, T) to logits (B, T, vocab).
        ids: sentences, (B, T).
        seen: the same with the chosen words hidden, (B, T).
        chosen: boolean, (B, T).

    Returns:
        (), in nats, the mean over the chosen words; NaN if there are none.
    """
    return label_smoothed_loss(model(seen)[chosen], ids[chosen], 0.0, model.config.pad)


class _Stack(nn.Module):
    """An embedding and N encoder layers; the embedding makes the logits too (section 3.4)."""

    embed: Any = Transformer.embed  # it finds the parts it needs under the same names here

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        if config.output_bias or config.source_vocab is not None:
            raise ValueError("one stack has no output_bias and no source_vocab: leave them out")
        self.config = config
        self.embedding = Embedding(config.vocab, config.d_model)
        self.positions = _POSITIONS[config.positions](config)
        self.dropout = nn.Dropout(config.P_drop)
        self.encoder = Encoder(config, attention)
        _initialise(self)

    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Turn ids, (B, T), into vectors, (B, T, d_model); mask as in attention."""
        return self.encoder(self.embed(self.embedding, ids), mask)  # (B, T, d_model)


class MaskedModel(_Stack):
    """Every position sees the whole sentence: the stack of BERT (Devlin et al. 2019).

    Args:
        config: the sizes and choices.
        attention: a function of (Q, K, V, mask), as in `Transformer`.

    Raises:
        ValueError: config has an output_bias or a source_vocab, for which one stack has no use.
    """

    def encode(self, ids: Tensor) -> Tensor:
        """Turn ids, (B, T), into vectors, (B, T, d_model)."""
        return self.read(ids, padding_mask(ids, self.config.pad))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, vocab) for the word that belongs at each position of ids, (B, T)."""
        return self.embedding.logits(self.encode(ids))  # (B, T, vocab)


class LanguageModel(_Stack):
    """A position sees itself and what is before: the stack of GPT (Radford et al. 2018).

    Args:
        config: the sizes and choices.
        attention: a function of (Q, K, V, mask), as in `Transformer`.

    Raises:
        ValueError: config has an output_bias or a source_vocab, for which one stack has no use.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, T, vocab) for the token after each position of ids, (B, T)."""
        _check_ids("ids", ids)
        x = self.read(ids, causal_mask(ids.shape[1], ids.device))  # (B, T, d_model)
        return self.embedding.logits(x)  # (B, T, vocab)

    def start(self, B: int) -> list[KVCache]:
        """The caches of B texts before their first token: empty, one for each layer."""
        if type(B) is not int or B < 1:
            raise ValueError(f"B must be a number of texts, 1 or more, not {B}")
        none = self.embedding.weight.new_zeros(B, 0, self.config.d_model)  # (B, 0, d_model)
        layers: Iterable[Any] = self.encoder.layers
        return [KVCache(*layer.self_attention.keys_values(none)) for layer in layers]

    def step(self, ids: Tensor, caches: list[KVCache]) -> tuple[Tensor, list[KVCache]]:
        """Logits (B, n, vocab) after each of n more tokens, (B, n), and the caches after them."""
        _check_ids("ids", ids)
        _check_caches(caches, caches, self.config, self.config.N)
        _check_step(ids[:, 0], len(caches[0].K))
        n = ids.shape[1]
        t = caches[0].K.shape[2]  # positions so far
        positions = caches[0].next_positions(n)  # (n,)
        mask = causal_mask(t + n, ids.device)[t:]  # (n, t + n)
        x = self.embed(self.embedding, ids, positions)  # (B, n, d_model)
        caches = [cache.copy() for cache in caches]  # those given are left as they were
        layers: Iterable[Any] = self.encoder.layers
        for layer, cache in zip(layers, caches, strict=True):
            attend = partial(layer.self_attention.step, cache=cache, mask=mask)
            x = layer.add_norm[0](x, attend)  # (B, n, d_model)
            x = layer.add_norm[1](x, layer.feed_forward)  # (B, n, d_model)
        return self.embedding.logits(self.encoder.norm(x)), caches  # (B, n, vocab)


def mask_words(
    ids: Tensor, blank: int, rate: float = 0.15, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Hide words: 80 % become the blank, 10 % a random word, 10 % stay (Devlin et al. 2019).

    Args:
        ids: sentences, (B, T); identifiers up to 3 are markers and are never chosen.
        blank: identifier of the blank; words are 4 to blank - 1.
        rate: share of the words to choose.
        generator: of the random numbers.

    Returns:
        seen, (B, T), and chosen, boolean, (B, T).

    Raises:
        ValueError: rate is not a share above 0, or blank leaves no words.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate must be above 0 and at most 1, not {rate}")
    if blank <= 4:
        raise ValueError(f"blank must be above 4, for words lie between, not {blank}")
    chance, how = torch.rand(2, *ids.shape, generator=generator).to(ids.device)  # (2, B, T)
    words = torch.randint(4, blank, ids.shape, generator=generator).to(ids.device)  # (B, T)
    chosen = (ids > 3) & (chance < rate)  # (B, T)
    seen = ids.masked_fill(chosen & (how < 0.8), blank)  # (B, T)
    return torch.where(chosen & (how >= 0.9), words, seen), chosen


def _learn(model, loss, steps, rate, warmup=50):
    """Train by Adam on what `loss()` gives; the rate rises, then falls to 0 in a line.

    `rate` is what a schedule without warm-up would begin with; returns the losses.
    """
    adam = optimizer(model)
    losses: list[float] = []
    model.train()
    for step in tqdm(range(1, steps + 1), desc="learn"):
        adam.param_groups[0]["lr"] = rate * min(1, step / warmup) * (1 - (step - 1) / steps)
        adam.zero_grad()
        value = loss()
        value.backward()
        adam.step()
        losses.append(value.item())
    model.eval()
    return losses


def pretrain(
    model: MaskedModel, text: Sequence[list[int]], blank: int, steps: int, rate: float,
    seed: int = 0,
) -> list[float]:
    """Train a masked-word model on sentences without labels (Devlin et al. 2019).

    Args:
        model: trained in place.
        text: the identifiers of each sentence.
        blank: identifier of the blank.
        steps: number of updates, of 64 sentences each.
        rate: what the learning rate would begin with if it fell to 0 in a line from the start;
            it rises for the first 50 updates.
        seed: of the choice of sentences and words.

    Returns:
        the loss of each update.

    Raises:
        ValueError: there is no sentence.
    """
    if not text:
        raise ValueError("text must have at least one sentence, not none")
    generator = torch.Generator().manual_seed(seed)

    def loss():
        rows = torch.randint(len(text), (64,), generator=generator)
        ids = pad_batch([text[i] for i in rows.tolist()], model.config.pad)  # (B, T)
        seen, chosen = mask_words(ids, blank, generator=generator)  # (B, T), (B, T)
        device = next(model.parameters()).device
        return masked_loss(model, ids.to(device), seen.to(device), chosen.to(device))

    return _learn(model, loss, steps, rate)


def _other_forms():
    """Each present form of the grammar's verbs -> the other: sees -> see, see -> sees."""
    pairs = {(v.base, v.third) for v in _VERBS if "/" not in v.third}
    pairs |= {("are", "is"), ("do", "does"), ("have", "has"), ("know", "knows")}
    return dict(pairs) | {third: base for base, third in pairs}


def _present_verbs(example):
    """The words of an `Example`, and (place, other form) of each present form among them."""
    others = _other_forms()
    tagged = re.findall(r"\((\S+) ([^()\s]+)\)", example.tree)
    places = []
    for i, (tag, word) in enumerate(tagged):
        other = others.get(word.lower())
        if tag in ("VBZ", "VBP") and other is not None:
            places.append((i, other if word.islower() else other.capitalize()))
    return [word for _, word in tagged], places


def _label_sentences(examples, rng):
    """Make (sentence, label) pairs: half get one verb in the wrong form, and label 1.

    Examples without a present form are left out.
    """
    rows = []
    for words, places in map(_present_verbs, examples):
        if places:
            i, other = rng.choice(places)
            label = rng.randrange(2)
            words[i] = other if label else words[i]
            rows.append((join_words(words), label))
    return rows


class Classifier(nn.Module):
    """A label for a sentence: a linear layer on the mean of its vectors (BERT takes the first).

    Args:
        model: pre-trained or not; it is trained further in place.
        classes: number of labels.
    """

    def __init__(self, model: MaskedModel, classes: int):
        super().__init__()
        self.model = model
        self.W = nn.Linear(model.config.d_model, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, classes) for sentences ids, (B, T), padding at the end."""
        vectors = self.model.encode(ids)  # (B, T, d_model)
        real = (ids != self.model.config.pad)[..., None]  # (B, T, 1)
        mean = (vectors * real).sum(1) / real.sum(1).clamp(min=1)  # (B, d_model)
        return self.W(mean)  # (B, classes)


def _padded(sequences, classifier):
    """Sequences of identifiers as one tensor, (B, T), as a classifier reads them."""
    device = next(classifier.parameters()).device
    return pad_batch(sequences, classifier.model.config.pad).to(device)


def finetune(
    classifier: Classifier, rows: Sequence[tuple[list[int], int]], steps: int, rate: float,
    seed: int = 0,
) -> list[float]:
    """Train a classifier on labelled sentences (Devlin et al. 2019).

    Args:
        classifier: trained in place, with the model in it.
        rows: the identifiers and the label of each sentence.
        steps: number of updates, of 32 sentences each.
        rate: as in `pretrain`.
        seed: of the choice of sentences.

    Returns:
        the loss of each update.

    Raises:
        ValueError: there is no sentence.
    """
    if not rows:
        raise ValueError("rows must have at least one sentence, not none")
    generator = torch.Generator().manual_seed(seed)

    def loss():
        chosen = torch.randint(len(rows), (32,), generator=generator).tolist()
        ids = _padded([rows[i][0] for i in chosen], classifier)  # (B, T)
        labels = torch.tensor([rows[i][1] for i in chosen], device=ids.device)  # (B,)
        return F.cross_entropy(classifier(ids), labels)

    return _learn(classifier, loss, steps, rate)


def _accuracy(classifier, rows):
    """The share, 0 to 1, of (identifiers, label) rows that a classifier gets right."""
    with _evaluating(classifier):
        given = classifier(_padded([ids for ids, _ in rows], classifier)).argmax(-1)  # (B,)
    labels = torch.tensor([label for _, label in rows], device=given.device)  # (B,)
    return (given == labels).float().mean().item()


def _judge(model, words, sentence, blank):
    """1, wrong, if the model holds another form of one of the verbs more likely; else 0."""
    others = _other_forms()
    ids = torch.tensor([[1, *words.encode(sentence)]])  # (1, T)
    for i, word in enumerate(split_words(sentence), 1):
        other = others.get(word.lower())
        if other is not None:
            other = other if word.islower() else other.capitalize()
            logits = model(ids.index_fill(1, torch.tensor(i), blank))[0, i]  # (vocab,)
            if logits[words.ids[other]] > logits[ids[0, i]]:
                return 1
    return 0


def top_k(logits: Tensor, k: int) -> Tensor:
    """Forget all but the k likeliest tokens (Fan et al. 2018).

    Args:
        logits: (..., vocab).
        k: how many to keep; tokens as likely as the last of them stay too.

    Returns:
        (..., vocab), -inf where a token is forgotten.

    Raises:
        ValueError: k is less than 1.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    least = logits.topk(min(k, logits.shape[-1]), -1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < least, float("-inf"))


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest likeliest tokens whose probabilities reach p (Holtzman et al. 2020).

    Args:
        logits: (..., vocab).
        p: above 0 and at most 1; the likeliest token always stays.

    Returns:
        (..., vocab), -inf where a token is forgotten.

    Raises:
        ValueError: p is no such share.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, not {p}")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))  # sums of 16 bits round
    share, order = wide.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = share.cumsum(-1) - share  # (..., vocab), what the likelier tokens have together
    reached = (before >= p) & (p < 1)  # a rounded sum may be 1 before the last token
    forget = torch.zeros_like(reached).scatter(-1, order, reached)  # (..., vocab)
    return logits.masked_fill(forget, float("-inf"))


def sample(
    logits: Tensor, temperature: float = 1.0, keep: Callable[[Tensor], Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw a token for each row (the temperature is that of chapter 2's softmax).

    Args:
        logits: (B, vocab).
        temperature: divides the logits; above 0.
        keep: a function that sets logits to -inf, such as `partial(top_k, k=10)`; applied
            after the division.
        generator: of the random numbers.

    Returns:
        identifiers, (B,).

    Raises:
        ValueError: temperature is not above 0.
    """
    if not temperature > 0:
        hint = "the likeliest token is found by argmax"
        raise ValueError(f"temperature must be above 0, not {temperature}; {hint}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # (B, vocab)
    # The largest becomes 0, so that a low temperature cannot make it infinite.
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # (B, vocab)
    logits = logits if keep is None else keep(logits)  # (B, vocab)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]  # (B,)


def generate(
    model: LanguageModel, prompt: Tensor, choose: Callable[[Tensor], Tensor], max_len: int = 50
) -> list[list[int]]:
    """Go on with a text, token by token, with a key-value cache.

    Args:
        model: switched to evaluation mode while it writes.
        prompt: the beginnings, all of one length, (B, n), each from bos on.
        choose: maps logits (B, vocab) to identifiers (B,), such as `sample` or an argmax.
        max_len: tokens to write at most; learned positions may end before.

    Returns:
        B lists of identifiers: without the prompt, eos last where it was reached.

    Raises:
        ValueError: max_len is less than 1.
        TypeError: the model does not write step by step, or it translates.
    """
    if max_len < 1:
        raise ValueError(f"max_len must be 1 or more, not {max_len}")
    if not hasattr(model, "step") or hasattr(model, "decode"):  # steps of a translation
        raise TypeError(f"model must be a LanguageModel, not {type(model).__name__}")
    if model.config.positions == "learned":
        max_len = min(max_len, max(1, model.config.max_positions + 1 - prompt.shape[1]))
    eos = model.config.eos
    rows: list[list[int]] = [[] for _ in prompt]
    ids = prompt
    with _evaluating(model):
        caches = model.start(len(prompt))
        for _ in range(max_len):
            logits, caches = model.step(ids, caches)
            ids = choose(logits[:, -1])[:, None]  # (B, 1)
            for row, token in zip(rows, ids[:, 0].tolist(), strict=True):
                if eos not in row:  # a row that has ended goes on unread until all have
                    row.append(token)
            if all(eos in row for row in rows):
                break
    return rows


def _check_stack(model):
    """Refuse to change anything but a model of one stack, before it is half changed: TypeError."""
    if not isinstance(model, _Stack):
        kind = type(model).__name__
        raise TypeError(f"model must be a LanguageModel or a MaskedModel, not {kind}")


def _like_before(model):
    """Give modules that are new in a model its mode, its device and its precision."""
    model.train(model.training).to(model.embedding.weight)


def _norm_first(model):
    """Put each norm inside its branch, and one at the top (Xiong et al. 2020)."""
    _check_stack(model)
    c = model.config
    for layer in model.encoder.layers:
        pair = [PreNorm(c.d_model, c.P_drop, c.eps_norm) for _ in range(2)]
        layer.add_norm = nn.ModuleList(pair)
    model.encoder.norm = LayerNorm(c.d_model, c.eps_norm)
    _like_before(model)


class RMSNorm(nn.Module):
    """Divide by the root of the mean square, then scale (Zhang and Sennrich 2019).

    Args:
        d_model: number of features.
        eps: added to the mean square, inside the root.

    Raises:
        ValueError: in use, if the last axis of the input is not d_model wide.
        TypeError: in use, if it does not hold floating-point numbers.
    """

    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x, (..., d_model), to the same shape."""
        if x.shape[-1:] != self.gain.shape:  # an axis of 1 would be broadcast in silence
            wanted = f"(..., {len(self.gain)}) for this RMSNorm"
            raise ValueError(f"x must be {wanted}, not {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must hold floating-point numbers, not {x.dtype}")
        wide = torch.promote_types(x.dtype, torch.float32)  # squares overflow in float16
        mean_square = x.to(wide).square().mean(-1, keepdim=True)  # (..., 1)
        normal = x.to(wide) / torch.sqrt(mean_square + self.eps)  # (..., d_model)
        return self.gain * normal.to(x.dtype)  # (..., d_model)


def _rms_norm(model):
    """Replace every LayerNorm by an RMSNorm (Zhang and Sennrich 2019)."""
    _check_stack(model)
    c = model.config
    for module in list(model.modules()):
        if isinstance(getattr(module, "norm", None), LayerNorm):
            module.norm = RMSNorm(c.d_model, c.eps_norm)
    _like_before(model)


def _rotate(x, positions):
    """Turn each pair of features of x, (..., T, d_k), by the angle of its position, (T,).

    Features 2i and 2i + 1 are a pair (Su et al. 2024).
    """
    d_k = x.shape[-1]
    if d_k % 2:
        raise ValueError(f"d_k must be even (features are turned in pairs), not {d_k}")
    pairs = torch.arange(0, d_k, 2, device=x.device).double()  # (d_k/2,)
    turn = _angles(positions, pairs / d_k)  # (T, d_k/2), float64
    sin = turn.sin().to(x.dtype)  # (T, d_k/2)
    cos = turn.cos().to(x.dtype)  # (T, d_k/2)
    a = x[..., 0::2]  # (..., T, d_k/2)
    b = x[..., 1::2]  # (..., T, d_k/2)
    turned = torch.stack([cos * a - sin * b, cos * b + sin * a], -1)  # (..., T, d_k/2, 2)
    return turned.flatten(-2)  # (..., T, d_k)


def rotary_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Attention whose scores depend on how far query and key are apart (Su et al. 2024).

    Args:
        Q: queries, (..., T, d_k), the last T of the S positions.
        K, V, mask, dropout: as of `scaled_dot_product_attention`.

    Returns:
        (..., T, d_v).

    Raises:
        ValueError: there are more queries than keys.
    """
    if Q.shape[-2] > K.shape[-2]:
        counts = f"{Q.shape[-2]} positions, more than the {K.shape[-2]} of K"
        raise ValueError(f"Q has {counts}: queries are the last of K's positions")
    positions = torch.arange(K.shape[-2], device=K.device)  # (S,)
    last = positions[len(positions) - Q.shape[-2] :]  # (T,)
    Q = _rotate(Q, last)  # (..., T, d_k)
    K = _rotate(K, positions)  # (..., S, d_k)
    return scaled_dot_product_attention(Q, K, V, mask, dropout)


def _no_positions(positions):
    """Add nothing to the words: zeros, (T, 1), for positions, (T,)."""
    return torch.zeros(len(positions), 1, device=positions.device)  # (T, 1)


def _rotary_positions(model):
    """Turn queries and keys in every layer, and add nothing to the words (Su et al. 2024).

    For models whose positions have no weights.
    """
    _check_stack(model)
    if model.config.positions == "learned":
        raise ValueError("rotary positions replace sines: positions must not be learned")
    model.positions = _no_positions
    for layer in model.encoder.layers:
        before, after = layer.self_attention.attention, rotary_attention
        if isinstance(before, AttentionDropout):
            after = AttentionDropout(rotary_attention, before.P_drop).train(before.training)
        layer.self_attention.attention = after


class GatedFeedForward(nn.Module):
    """A feed-forward network whose hidden features are gated: SwiGLU (Shazeer 2020).

    Args:
        d_model: width of what comes in and goes out.
        d_ff: width between; two thirds of an ungated network's for as many weights.
    """

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.W_1 = nn.Linear(d_model, d_ff, bias=False)
        self.W_G = nn.Linear(d_model, d_ff, bias=False)
        self.W_2 = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map x, (..., d_model), position by position, to the same shape."""
        hidden = F.silu(self.W_G(x)) * self.W_1(x)  # (..., d_ff)
        return self.W_2(hidden)  # (..., d_model)


def _gated_network(model):
    """Replace each feed-forward network by a gated one, two thirds as wide (Shazeer 2020)."""
    _check_stack(model)
    c = model.config
    if c.P_drop_ffn:
        raise ValueError("a gated network has no dropout here: P_drop_ffn must be 0")
    for layer in model.encoder.layers:
        layer.feed_forward = GatedFeedForward(c.d_model, 2 * c.d_ff // 3)
        _initialise(layer.feed_forward)
    _like_before(model)


class GroupedQueryAttention(MultiHeadAttention):
    """Multi-head attention whose heads share keys and values (Ainslie et al. 2023).

    Args:
        d_model, h: as of `MultiHeadAttention`; no biases, d_k and d_v are d_model / h.
        groups: pairs of key and value at a position; h for none shared, 1 for one for all.
        attention: what each head computes.

    Raises:
        ValueError: groups does not divide h, or a size that `MultiHeadAttention` refuses.
    """

    def __init__(
        self, d_model: int, h: int, groups: int, attention: Callable = scaled_dot_product_attention
    ):
        super().__init__(d_model, h, attention=attention)
        if groups < 1 or h % groups:
            raise ValueError(f"groups must divide h={h}, not be {groups}")
        self.groups = groups
        self.W_K = nn.Linear(d_model, groups * d_model // h, bias=False)
        self.W_V = nn.Linear(d_model, groups * d_model // h, bias=False)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project memory, (B, S, d_model), to a K and a V a group, (B, groups, S, d_k)."""
        K = self.W_K(memory).unflatten(-1, (self.groups, -1))  # (B, S, groups, d_k)
        V = self.W_V(memory).unflatten(-1, (self.groups, -1))  # (B, S, groups, d_v)
        return K.transpose(1, 2), V.transpose(1, 2)  # (B, groups, S, d_k)

    def attend(self, x: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
        """Let x, (B, T, d_model), attend; each head takes the K and V of its group."""
        heads = self.h // self.groups
        K = K.repeat_interleave(heads, 1)  # (B, h, S, d_k)
        V = V.repeat_interleave(heads, 1)  # (B, h, S, d_v)
        return super().attend(x, K, V, mask)  # (B, T, d_model)


def _grouped_queries(model, groups=2):
    """Let the heads of every layer share keys and values (Ainslie et al. 2023)."""
    _check_stack(model)
    c = model.config
    if c.bias:
        raise ValueError("grouped queries have no biases here: bias must be False")
    if {c.key_width, c.value_width} != {c.d_model // c.h}:
        raise ValueError("grouped queries have heads of d_model / h here: leave out d_k and d_v")
    for layer in model.encoder.layers:
        old = layer.self_attention
        layer.self_attention = GroupedQueryAttention(old.d_model, old.h, groups, old.attention)
        _initialise(layer.self_attention)
    _like_before(model)


# Several are applied in this order: "norm first" makes LayerNorms anew.
CHANGES = {
    "norm first": _norm_first,
    "RMSNorm": _rms_norm,
    "rotary positions": _rotary_positions,
    "gated network": _gated_network,
    "grouped queries": _grouped_queries,
}
