"""The Transformer.

Generated from book/07-transformer.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated.attention import scaled_dot_product_attention
from annotated.embedding import Embedding, LearnedPositions, halves_encoding, positional_encoding
from annotated.layers import AddNorm, FeedForward, LayerNorm, PreNorm
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention
from annotated.recurrent import _check_encoded, _check_ids, _check_precision, _check_step

__all__ = [
    "Config",
    "BASE",
    "BIG",
    "TINY",
    "EncoderLayer",
    "Encoder",
    "DecoderLayer",
    "Decoder",
    "Transformer",
    "KVCache",
    "State",
]


_NORMS = {"post": AddNorm, "pre": PreNorm}

_ACTIVATIONS = {"relu": torch.relu, "gelu": F.gelu, "swish": F.silu}

_POSITIONS = {
    "sinusoidal": lambda config: partial(positional_encoding, d_model=config.d_model),
    "halves": lambda config: partial(halves_encoding, d_model=config.d_model),
    "learned": lambda config: LearnedPositions(config.max_positions, config.d_model),
}


@dataclass(frozen=True)
class Config:
    """The sizes and choices of a model, in the paper's symbols (Table 3).

    Defaults are the base model's; where the paper is silent, the comment says what is
    chosen. A copy, by `dataclasses.replace`, states what differs.

    Raises:
        ValueError: if a field does not make a valid model; the message names the field.
    """

    N: int = 6  # layers in the encoder, and in the decoder
    d_model: int = 512
    d_ff: int = 2048
    h: int = 8
    d_k: int | None = None  # None: d_model / h
    d_v: int | None = None  # None: d_model / h
    P_drop: float = 0.1
    eps_ls: float = 0.1
    vocab: int = 37000  # section 5.1: "about 37000"
    source_vocab: int | None = None  # None: one matrix for both languages (section 3.4)
    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3
    norm: str = "post"  # "post": section 3.1; "pre": later released code
    final_norm: bool | None = None  # after the last layer; None: where norm is "pre"
    eps_norm: float = 1e-6  # the paper gives none; this is the released code's
    bias: bool = False  # of attention's projections; the formula of section 3.2.2 has none
    output_bias: bool = False  # of the logits; section 3.4 has none, Marian (2018) has one
    activation: str = "relu"  # Eq. 2; also "gelu", "swish"
    positions: str = "sinusoidal"  # section 3.5; "halves": released code; "learned": row E
    max_positions: int = 1024  # of learned positions only
    P_drop_attention: float = 0.0  # section 5.4 has none; 0.1 in later released code
    P_drop_ffn: float = 0.0  # the same
    N_decoder: int | None = None  # None: N, as in the paper; fewer make writing faster

    @property
    def key_width(self) -> int:
        """The width of a head's queries and keys."""
        return self.d_k or self.d_model // self.h

    @property
    def value_width(self) -> int:
        """The width of a head's values."""
        return self.d_v or self.d_model // self.h

    @property
    def decoder_layers(self) -> int:
        """The number of layers in the decoder."""
        return self.N_decoder or self.N

    @property
    def last_norm(self) -> bool:
        """Whether a LayerNorm stands after the last layer of each stack."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm

    def __post_init__(self) -> None:
        for fault in self._faults():
            raise ValueError(fault)

    def _faults(self):
        fields = vars(self)
        optional = ("d_k", "d_v", "source_vocab", "N_decoder", "final_norm")
        given = {k: v for k, v in fields.items() if v is not None or k not in optional}
        for name in ("N", "N_decoder", "d_model", "d_ff", "h", "d_k", "d_v", "vocab",
                     "source_vocab", "max_positions"):
            value = given.get(name, 1)
            if type(value) is not int:
                yield f"{name} must be a whole number, a Python int, got {value!r}"
            elif not 1 <= value < 2**31:
                yield f"{name} must be a whole number, 1 or more and below 2**31, got {value!r}"
        for name in ("P_drop", "eps_ls", "P_drop_attention", "P_drop_ffn"):
            if not isinstance(given[name], int | float):
                yield f"{name} must be a Python float in [0, 1), got {given[name]!r}"
            elif not 0 <= given[name] < 1:
                yield f"{name} must lie in [0, 1), got {given[name]!r}"
        if not isinstance(given["eps_norm"], int | float):
            yield f"eps_norm must be a Python float in (0, 1), got {self.eps_norm!r}"
        elif not 0 < self.eps_norm < 1:
            yield f"eps_norm must be above 0 and below 1, got {self.eps_norm!r}"
        for name in ("pad", "bos", "eos", "unk"):
            if type(given[name]) is not int:
                yield f"{name} must be a Python int in 0..{self.vocab - 1}, got {given[name]!r}"
            elif not 0 <= given[name] < self.vocab:
                small = given[name] >= self.vocab
                why = f": vocab={self.vocab} is too small for it" if small else ""
                yield f"{name} must lie in 0..{self.vocab - 1}, got {given[name]!r}{why}"
        for name in ("pad", "eos", "unk"):  # what a source may hold
            if given[name] >= given.get("source_vocab", self.vocab):
                yield f"{name} must lie in 0..{self.source_vocab - 1} (source_vocab), got {given[name]}"
        if self.pad == self.eos:
            yield f"pad and eos must differ, or no end is ever learned; both are {self.pad}"
        if self.unk in (self.pad, self.eos):
            yield f"unk must differ from pad={self.pad} and eos={self.eos}, got {self.unk}"
        for name in ("bias", "output_bias", "final_norm"):
            if type(given.get(name, True)) is not bool:
                yield f"{name} must be True or False, got {given[name]!r}"
        choices = {"norm": _NORMS, "activation": _ACTIVATIONS, "positions": _POSITIONS}
        for name, known in choices.items():
            if given[name] not in list(known):
                yield f"{name} must be one of {', '.join(known)}, got {given[name]!r}"
        if self.d_model % 2 and self.positions != "learned":
            yield f"d_model must be even for sines and cosines, got {self.d_model}"
        if None in (self.d_k, self.d_v) and self.d_model % self.h:
            sizes = f"got h={self.h} and d_model={self.d_model}"
            yield f"h must divide d_model, or give d_k and d_v; {sizes}"


BASE = Config()

BIG = replace(BASE, d_model=1024, d_ff=4096, h=16, P_drop=0.3)

TINY = replace(BASE, N=2, d_model=128, d_ff=512, h=4, vocab=1000)


def _sublayers(config, attention):
    """Makers of the parts of a layer: attention, feed-forward network, residual with norm.

    Args:
        config: the sizes and choices.
        attention: as in `Transformer`.
    """
    c = config
    if c.P_drop_attention:
        attention = AttentionDropout(attention, c.P_drop_attention)
    return (
        partial(MultiHeadAttention, c.d_model, c.h, c.d_k, c.d_v, c.bias, attention),
        partial(FeedForward, c.d_model, c.d_ff, _ACTIVATIONS[c.activation], c.P_drop_ffn),
        partial(_NORMS[c.norm], c.d_model, c.P_drop, c.eps_norm),
    )


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network (section 3.1, Figure 1 left).

    Args:
        config: the sizes and choices.
        attention: as in `Transformer`.
    """

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        attend, feed_forward, residual = _sublayers(config, attention)
        self.self_attention = attend()
        self.feed_forward = feed_forward()
        self.add_norm = nn.ModuleList(residual() for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map x, (B, S, d_model), to the same shape; mask as in attention."""
        x = self.add_norm[0](x, lambda x: self.self_attention(x, x, mask))  # (B, S, d_model)
        return self.add_norm[1](x, self.feed_forward)  # (B, S, d_model)


class Encoder(nn.Module):
    """N layers, one on the other (section 3.1).

    Args:
        config: the sizes and choices.
        attention: as in `Transformer`.
    """

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config, attention) for _ in range(config.N))
        self.norm = nn.Identity()
        if config.last_norm:
            self.norm = LayerNorm(config.d_model, config.eps_norm)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map embedded sources, (B, S, d_model), to memory of the same shape."""
        for layer in self.layers:
            x = layer(x, mask)  # (B, S, d_model)
        return self.norm(x)  # (B, S, d_model)


class _CachedLayer(nn.Module):
    """A decoder layer's steps, one position at a time."""

    self_attention: MultiHeadAttention
    cross_attention: MultiHeadAttention
    feed_forward: FeedForward
    add_norm: nn.ModuleList

    def start(self, memory: Tensor) -> tuple["KVCache", "KVCache"]:
        """An empty cache for the target's keys and values, and a full one for the memory's."""
        none = self.self_attention.keys_values(memory[:, :0])
        K, V = self.cross_attention.keys_values(memory)
        # Each step reads them in this order, and would otherwise copy them each time.
        return KVCache(*none), KVCache(K.contiguous(), V.contiguous())

    def step(
        self, x: Tensor, cache: "KVCache", memory: "KVCache", mask: Tensor | None = None
    ) -> Tensor:
        """Map one position, x (R, 1, d_model); its keys and values go into the cache."""
        x = self.add_norm[0](x, lambda x: self.self_attention.step(x, cache))
        x = self.add_norm[1](x, lambda x: self._look_across(x, memory, mask))
        return self.add_norm[2](x, self.feed_forward)  # (R, 1, d_model)

    def _look_across(self, x, memory, mask):
        # The R / B hypotheses of a sentence are that many queries to its one memory.
        queries = x.reshape(memory.K.shape[0], -1, x.shape[-1])  # (B, R / B, d_model)
        return self.cross_attention.attend(queries, memory.K, memory.V, mask).reshape(x.shape)


class _CachedDecoder(nn.Module):
    """The steps of a stack of such layers."""

    layers: nn.ModuleList
    norm: nn.Module

    def start(self, memory: Tensor, mask: Tensor) -> "State":
        """What cached decoding remembers before the first position."""
        caches, memories = zip(*(layer.start(memory) for layer in self.layers))
        return State(list(caches), list(memories), mask)

    def step(self, x: Tensor, state: "State") -> tuple[Tensor, "State"]:
        """Map one position, x (R, 1, d_model); the state given is left as it was."""
        caches = [cache.copy() for cache in state.caches]
        for layer, cache, memory in zip(self.layers, caches, state.memory, strict=True):
            x = layer.step(x, cache, memory, state.mask)  # (R, 1, d_model)
        return self.norm(x), State(caches, state.memory, state.mask)


class _CachedTransformer(nn.Module):
    """The steps of the model."""

    config: Config
    target_embedding: Embedding
    decoder: _CachedDecoder
    encode: Callable[[Tensor], Tensor]
    embed: Callable[..., Tensor]
    logits: Callable[[Tensor], Tensor]

    def start(self, source: Tensor) -> "State":
        """The state of cached decoding before the first step, one hypothesis for each sentence."""
        return self.decoder.start(self.encode(source), padding_mask(source, self.config.pad))

    def step(self, ids: Tensor, state: "State") -> tuple[Tensor, "State"]:
        """Logits (R, vocab) of what follows ids, (R,), and a new state; the old is kept."""
        _check_state(state, ids, self)
        positions = state.caches[0].next_positions()  # (1,)
        x = self.embed(self.target_embedding, ids[:, None], positions)  # (R, 1, d_model)
        x, state = self.decoder.step(x, state)
        return self.logits(x)[:, 0], state


class DecoderLayer(_CachedLayer):
    """Masked self-attention, cross-attention, feed-forward (section 3.1, Figure 1 right).

    Args:
        config: the sizes and choices.
        attention: as in `Transformer`.
    """

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        attend, feed_forward, residual = _sublayers(config, attention)
        self.self_attention = attend()
        self.cross_attention = attend()
        self.feed_forward = feed_forward()
        self.add_norm = nn.ModuleList(residual() for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, causal: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Map x, (B, T, d_model), to the same shape; memory is (B, S, d_model)."""
        x = self.add_norm[0](x, lambda x: self.self_attention(x, x, causal))
        x = self.add_norm[1](x, lambda x: self.cross_attention(x, memory, mask))
        return self.add_norm[2](x, self.feed_forward)  # (B, T, d_model)


class Decoder(_CachedDecoder):
    """N layers, each reading the same memory, the last encoder layer's output (section 3.1).

    Args:
        config: the sizes and choices.
        attention: as in `Transformer`.
    """

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        layers = range(config.decoder_layers)
        self.layers = nn.ModuleList(DecoderLayer(config, attention) for _ in layers)
        self.norm = nn.Identity()
        if config.last_norm:
            self.norm = LayerNorm(config.d_model, config.eps_norm)

    def forward(
        self, x: Tensor, memory: Tensor, causal: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Map embedded targets, (B, T, d_model), to the same shape; logits come after."""
        for layer in self.layers:
            x = layer(x, memory, causal, mask)  # (B, T, d_model)
        return self.norm(x)  # (B, T, d_model)


class Transformer(_CachedTransformer):
    """The model of Figure 1: source and target identifiers in, next tokens' logits out.

    Args:
        config: the sizes and choices.
        attention: a function of (Q, K, V, mask) and, if config.P_drop_attention > 0,
            dropout.

    Where both sides share an embedding, `torch.func.functional_call` needs `tie_weights=False`:
    without it torch 2.13 leaves the weights that it is given in the model.
    """

    def __init__(self, config: Config, attention: Callable = scaled_dot_product_attention):
        super().__init__()
        self.config = config
        self.target_embedding = Embedding(config.vocab, config.d_model)
        self.source_embedding = self.target_embedding
        if config.source_vocab is not None:
            self.source_embedding = Embedding(config.source_vocab, config.d_model)
        self.positions = _POSITIONS[config.positions](config)
        self.dropout = nn.Dropout(config.P_drop)
        self.encoder = Encoder(config, attention)
        self.decoder = Decoder(config, attention)
        self.output_bias = _OutputBias(config.vocab) if config.output_bias else nn.Identity()
        _initialise(self)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, vocab) for source (B, S), target (B, T); masks are made inside."""
        return self.decode(target, self.encode(source), source)  # (B, T, vocab)

    def encode(self, source: Tensor) -> Tensor:
        """Turn source identifiers, (B, S), ending in eos, into memory, (B, S, d_model)."""
        _check_ids("source", source, self.config.source_vocab or self.config.vocab)
        x = self.embed(self.source_embedding, source)  # (B, S, d_model)
        return self.encoder(x, padding_mask(source, self.config.pad))  # (B, S, d_model)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Logits (B, T, vocab) for target (B, T), which begins with bos.

        logits[:, t] predicts target[:, t + 1]; memory is `encode(source)`.
        """
        return self.logits(self.hidden(target, memory, source))  # (B, T, vocab)

    def hidden(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """The decoder's output (B, T, d_model), from which `logits` makes scores."""
        _check_encoded(memory, source, target, self)
        x = self.embed(self.target_embedding, target)  # (B, T, d_model)
        causal = causal_mask(target.shape[1], target.device)  # (T, T)
        mask = padding_mask(source, self.config.pad)  # (B, 1, 1, S)
        return self.decoder(x, memory, causal, mask)  # (B, T, d_model)

    def logits(self, x: Tensor) -> Tensor:
        """A score for every token: (B, T, d_model) to (B, T, vocab) (section 3.4)."""
        return self.output_bias(self.target_embedding.logits(x))  # (B, T, vocab)

    def embed(
        self, embedding: nn.Module, ids: Tensor, positions: Tensor | None = None
    ) -> Tensor:
        """Embed ids, (B, T), at positions, (T,), 0 to T - 1 by default; dropout on the sum."""
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        x = embedding(ids)  # (B, T, d_model)
        return self.dropout(x + self.positions(positions).to(x.dtype))  # (B, T, d_model)


def _initialise(model: nn.Module) -> None:
    """Glorot's uniform for linear layers, 0 for their biases; embeddings are left as they are.

    The paper gives no initialisation; this is the released code's rule, with Q, K and V apart.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@dataclass
class KVCache:
    """The keys and values of one attention, which grow as positions are added.

    Args:
        K: keys of the t positions so far, (R, h, t, d_k).
        V: their values, (R, h, t, d_v).
    """

    K: Tensor
    V: Tensor
    mask = None  # every position that is kept is visible

    def next_positions(self, n: int = 1) -> Tensor:
        """The numbers of the next n positions, (n,)."""
        t = self.K.shape[2]
        return torch.arange(t, t + n, device=self.K.device)

    def update(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys (R, h, n, d_k) and values of n positions; returns all there are."""
        self.K = torch.cat([self.K, K], dim=2)  # (R, h, t + n, d_k)
        self.V = torch.cat([self.V, V], dim=2)  # (R, h, t + n, d_v)
        return self.K, self.V

    def select(self, rows: Tensor) -> "KVCache":
        """A cache of these rows, (R',); a row may be taken several times."""
        return KVCache(self.K.index_select(0, rows), self.V.index_select(0, rows))

    def copy(self) -> "KVCache":
        """A cache that grows apart from this one; the tensors are shared."""
        return KVCache(self.K, self.V)


@dataclass
class State:
    """What cached decoding keeps: a cache for each hypothesis, the memory for each sentence.

    R hypotheses belong to B sentences, R / B to each, those of a sentence side by side.

    Args:
        caches: of the R hypotheses, one for each layer.
        memory: keys and values of the B sources, for each layer.
        mask: of the source's padding, (B, 1, 1, S).
    """

    caches: list[KVCache]
    memory: list[KVCache]
    mask: Tensor

    def repeat(self, k: int) -> "State":
        """k hypotheses in the place of each one; the memory is not copied."""
        hypotheses = torch.arange(len(self.caches[0].K), device=self.mask.device)  # (R,)
        rows = hypotheses.repeat_interleave(k)  # (k R,)
        return State([cache.select(rows) for cache in self.caches], self.memory, self.mask)

    def select(self, rows: Tensor) -> "State":
        """Go on with hypotheses rows, (R',), as many for each sentence as before.

        Raises:
            ValueError: if they are not (looked at on a CPU only).
        """
        # Hypotheses a sentence; any number where none are left.
        k = len(self.caches[0].K) // max(1, len(self.mask)) or 1
        sentences = _sentences_of(rows, k)  # (B',)
        caches = [cache.select(rows) for cache in self.caches]
        if len(sentences) == len(self.mask) and (sentences.diff() == 1).all():
            return State(caches, self.memory, self.mask)
        memory = [cache.select(sentences) for cache in self.memory]
        return State(caches, memory, self.mask[sentences])


def _sentences_of(rows, k, new_k=None):
    """The sentences, (B',), whose hypotheses go on: rows, (R',), of those there were, k each.

    Each sentence has new_k hypotheses now, as many as before by default.

    Raises:
        ValueError: the hypotheses of a sentence do not stand together.
    """
    new_k = new_k or k
    sentences = rows[::new_k] // k  # (B',)
    together = sentences.repeat_interleave(new_k)  # (R',)
    if rows.device.type == "cpu" and not torch.equal(rows // k, together):
        wanted = f"keep the {new_k} hypotheses of a sentence together"
        raise ValueError(f"rows must {wanted}, got {rows.tolist()}")
    return sentences


def _check_caches(state, caches, config, layers):
    """Refuse a state whose caches are not those of a model of these sizes.

    Args:
        state: what was given: a `State`, or a list of caches.
        caches: those in it, one for each layer.
        config: of the model.
        layers: how many it has.

    Raises:
        TypeError: state did not come from `start` or `step`.
        ValueError: it is another model's.
    """
    if not isinstance(caches, list):
        kind = type(state).__name__
        raise TypeError(f"the state must be what start or step returned, not {kind}")
    widths = {int(cache.K.shape[-1]) for cache in caches}  # tensors where ONNX is made
    if len(caches) != layers or widths != {config.key_width}:
        wanted = f"{layers} layers with keys of {config.key_width}"
        found = f"{len(caches)} with keys of {', '.join(map(str, sorted(widths)))}"
        raise ValueError(f"the state must be of this model: {wanted}, not {found}")


def _check_state(state, ids, model):
    """Refuse anything but a `State` of such a model, and ids (R,) that do not continue it."""
    c = model.config
    _check_caches(state, getattr(state, "caches", None), c, c.decoder_layers)
    _check_precision("the memory in state", state.memory[0].K, model)
    _check_step(ids, len(state.caches[0].K))


class _OutputBias(nn.Module):
    """A number for each token, added to its logit (not in section 3.4; Marian's have it).

    Args:
        vocab: number of tokens.
    """

    def __init__(self, vocab: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, logits: Tensor) -> Tensor:
        """Add the bias to logits, (..., vocab)."""
        return logits + self.bias  # (..., vocab)
