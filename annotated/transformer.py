"""The Transformer.

Generated from book/07-transformer.md by tools/tangle.py: edit the chapter, not this file.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from annotated.attention import scaled_dot_product_attention
from annotated.embedding import Embedding, LearnedPositions, halves_encoding, positional_encoding
from annotated.layers import AddNorm, FeedForward, LayerNorm, PreNorm
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention

__all__ = [
    "NORMS",
    "ACTIVATIONS",
    "POSITIONS",
    "HeadWidth",
    "Config",
    "BASE",
    "BIG",
    "TINY",
    "sublayers",
    "EncoderLayer",
    "Encoder",
    "DecoderLayer",
    "State",
    "Decoder",
    "OutputBias",
    "Transformer",
    "check_ids",
    "initialise",
]


NORMS = {"post": AddNorm, "pre": PreNorm}

ACTIVATIONS = {"relu": torch.relu, "gelu": F.gelu, "swish": F.silu}

POSITIONS = {
    "sinusoidal": lambda config: partial(positional_encoding, d_model=config.d_model),
    "halves": lambda config: partial(halves_encoding, d_model=config.d_model),
    "learned": lambda config: LearnedPositions(config.max_positions, config.d_model),
}


class HeadWidth(int):
    """A d_k or d_v that nobody asked for: d_model / h, worked out anew in every copy."""


@dataclass(frozen=True)
class Config:
    """The sizes and choices of a model, in the paper's symbols (Table 3).

    Defaults are the base model's; where the paper is silent, the comment says what is
    chosen. A copy, by `dataclasses.replace`, states what differs.

    Raises:
        ValueError: if a field makes no model; the message names the field.
    """

    N: int = 6  # layers in the encoder, and in the decoder
    d_model: int = 512
    d_ff: int = 2048
    h: int = 8
    d_k: int | None = None  # None: d_model / h, filled in below
    d_v: int | None = None
    P_drop: float = 0.1
    eps_ls: float = 0.1
    vocab: int = 37000  # section 5.1: "about 37000"
    source_vocab: int | None = None  # None: one matrix for both languages (section 3.4)
    pad: int = 0
    bos: int = 1
    eos: int = 2
    unk: int = 3
    norm: str = "post"  # "post": section 3.1; "pre": later released code
    final_norm: bool = False  # a LayerNorm after the last layer, which pre-norm needs
    eps_norm: float = 1e-6  # the paper gives none; this is the released code's
    bias: bool = False  # of attention's projections; the formula of section 3.2.2 has none
    output_bias: bool = False  # of the logits; section 3.4 has none, Marian (2018) has one
    activation: str = "relu"  # Eq. 2; also "gelu", "swish"
    positions: str = "sinusoidal"  # section 3.5; "halves": released code; "learned": row E
    max_positions: int = 1024  # of learned positions only
    P_drop_attention: float = 0.0  # section 5.4 has none; 0.1 in later released code
    P_drop_ffn: float = 0.0  # the same

    def __post_init__(self):
        optional = ("d_k", "d_v", "source_vocab")
        for name in ("N", "d_model", "d_ff", "h", "vocab", "max_positions", *optional):
            value = getattr(self, name)
            left_out = value is None and name in optional
            if not left_out and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number, 1 or more, got {value!r}")
        for name in ("P_drop", "eps_ls", "P_drop_attention", "P_drop_ffn"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {value!r}")
        for name in ("pad", "bos", "eos", "unk"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < self.vocab:
                most = self.vocab - 1
                raise ValueError(f"{name} must lie in 0..{most} (vocab), got {value!r}")
        choices = {"norm": NORMS, "activation": ACTIVATIONS, "positions": POSITIONS}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.d_model % 2 and self.positions != "learned":
            given = self.d_model
            raise ValueError(f"d_model must be even for sines and cosines, got {given}")
        for name in ("d_k", "d_v"):
            if isinstance(getattr(self, name), HeadWidth | None):
                if self.d_model % self.h:
                    raise ValueError(
                        "h must divide d_model, or give d_k and d_v; "
                        f"got h={self.h} and d_model={self.d_model}"
                    )
                # frozen for everybody else; nobody holds this object yet
                object.__setattr__(self, name, HeadWidth(self.d_model // self.h))


BASE = Config()

BIG = replace(BASE, d_model=1024, d_ff=4096, h=16, P_drop=0.3)

TINY = replace(BASE, N=2, d_model=128, d_ff=512, h=4, vocab=1000)


def sublayers(config, attention):
    """Makers of what the layers of both stacks are made of (section 3.1).

    Args:
        config: the sizes and choices.
        attention: a function of (Q, K, V, mask) and, if config.P_drop_attention > 0,
            dropout.

    Returns:
        three functions without arguments, which make an attention, a feed-forward network
        and a residual connection with its norm.
    """
    if config.P_drop_attention:
        attention = AttentionDropout(attention, config.P_drop_attention)
    c = config
    return (
        partial(MultiHeadAttention, c.d_model, c.h, c.d_k, c.d_v, c.bias, attention),
        partial(FeedForward, c.d_model, c.d_ff, ACTIVATIONS[c.activation], c.P_drop_ffn),
        partial(NORMS[c.norm], c.d_model, c.P_drop, c.eps_norm),
    )


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network (section 3.1, Figure 1 left).

    Args:
        config: the sizes and choices.
        attention: as in `sublayers`.
    """

    def __init__(self, config, attention=scaled_dot_product_attention):
        super().__init__()
        attend, feed_forward, residual = sublayers(config, attention)
        self.self_attention, self.feed_forward = attend(), feed_forward()
        self.add_norm = nn.ModuleList(residual() for _ in range(2))

    def forward(self, x, mask=None):
        """Map x, (B, S, d_model), to the same shape; mask as in attention."""
        x = self.add_norm[0](x, lambda x: self.self_attention(x, x, mask))  # (B, S, d_model)
        return self.add_norm[1](x, self.feed_forward)  # (B, S, d_model)


class Encoder(nn.Module):
    """N layers, one on the other (section 3.1).

    Args:
        config: the sizes and choices.
        attention: as in `sublayers`.
    """

    def __init__(self, config, attention=scaled_dot_product_attention):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config, attention) for _ in range(config.N))
        self.norm = nn.Identity()
        if config.final_norm:
            self.norm = LayerNorm(config.d_model, config.eps_norm)

    def forward(self, x, mask=None):
        """Map embedded sources, (B, S, d_model), to memory of the same shape."""
        for layer in self.layers:
            x = layer(x, mask)  # (B, S, d_model)
        return self.norm(x)  # (B, S, d_model)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward (section 3.1, Figure 1 right).

    Args:
        config: the sizes and choices.
        attention: as in `sublayers`.
    """

    def __init__(self, config, attention=scaled_dot_product_attention):
        super().__init__()
        attend, feed_forward, residual = sublayers(config, attention)
        self.self_attention, self.cross_attention = attend(), attend()
        self.feed_forward = feed_forward()
        self.add_norm = nn.ModuleList(residual() for _ in range(3))

    def forward(self, x, memory, causal, mask=None):
        """Map x, (B, T, d_model), to the same shape; memory is (B, S, d_model)."""
        x = self.add_norm[0](x, lambda x: self.self_attention(x, x, causal))
        x = self.add_norm[1](x, lambda x: self.cross_attention(x, memory, mask))
        return self.add_norm[2](x, self.feed_forward)  # (B, T, d_model)

    def start(self, memory):
        """Keys and values before the first step: none of the target's, all the memory's."""
        past = self.self_attention.keys_values(memory[:, :0])
        # Each step reads them in this order, and would else copy them into it each time.
        return past, [x.contiguous() for x in self.cross_attention.keys_values(memory)]

    def step(self, x, past, memory, mask=None):
        """One position, x (R, 1, d_model), given keys and values so far: x and new past."""
        def look_back(x):  # x as the sub-layer gets it: normalised, with the norm first
            nonlocal past
            new = self.self_attention.keys_values(x)  # (R, h, 1, d_k), (R, h, 1, d_v)
            past = [torch.cat(both, dim=2) for both in zip(past, new)]
            return self.self_attention.attend(x, *past)  # (R, 1, d_model)

        def look_across(x):  # to one memory, a sentence's hypotheses are so many queries
            queries = x.reshape(memory[0].shape[0], -1, x.shape[-1])  # (B, R / B, d_model)
            seen = self.cross_attention.attend(queries, *memory, mask)  # (B, R / B, d_model)
            return seen.reshape(x.shape)  # (R, 1, d_model)

        x = self.add_norm[0](x, look_back)  # (R, 1, d_model)
        x = self.add_norm[1](x, look_across)  # (R, 1, d_model)
        return self.add_norm[2](x, self.feed_forward), past


@dataclass
class State:
    """What cached decoding keeps: of each hypothesis its past, of each sentence its memory.

    R hypotheses belong to B sentences, R / B to each, those of a sentence side by side.

    Args:
        past: K (R, h, t, d_k) and V (R, h, t, d_v) of the t positions so far, for each layer.
        memory: K (B, h, S, d_k) and V (B, h, S, d_v) of the source, for each layer.
        mask: of the source's padding, (B, 1, 1, S).
    """

    past: list
    memory: list
    mask: torch.Tensor

    def repeat(self, k):
        """k hypotheses in the place of each one; the memory is not copied."""
        past = [[x.repeat_interleave(k, 0) for x in layer] for layer in self.past]
        return State(past, self.memory, self.mask)

    def select(self, rows):
        """Go on with hypotheses rows, (R',), as many a sentence as before, side by side.

        Raises:
            ValueError: if they are not (looked at on a CPU only).
        """
        k = len(self.past[0][0]) // len(self.mask)  # hypotheses a sentence
        sentences = rows[::k] // k  # (B',)
        together = sentences.repeat_interleave(k)  # (R',)
        if rows.device.type == "cpu" and not torch.equal(rows // k, together):
            wanted = f"keep the {k} hypotheses of a sentence together"
            raise ValueError(f"rows must {wanted}, got {rows.tolist()}")
        past = [[x.index_select(0, rows) for x in layer] for layer in self.past]
        memory, mask = self.memory, self.mask
        if len(sentences) < len(mask) or sentences.diff().ne(1).any():
            memory = [[x.index_select(0, sentences) for x in layer] for layer in memory]
            mask = mask[sentences]
        return State(past, memory, mask)


class Decoder(nn.Module):
    """N layers, each reading the same memory, the last encoder layer's output (section 3.1).

    Args:
        config: the sizes and choices.
        attention: as in `sublayers`.
    """

    def __init__(self, config, attention=scaled_dot_product_attention):
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config, attention) for _ in range(config.N))
        self.norm = nn.Identity()
        if config.final_norm:
            self.norm = LayerNorm(config.d_model, config.eps_norm)

    def forward(self, x, memory, causal, mask=None):
        """Map embedded targets, (B, T, d_model), to the same shape; logits come after."""
        for layer in self.layers:
            x = layer(x, memory, causal, mask)  # (B, T, d_model)
        return self.norm(x)  # (B, T, d_model)

    def start(self, memory, mask=None):
        """What cached decoding remembers before the first position."""
        past, memory = zip(*(layer.start(memory) for layer in self.layers))
        return State(list(past), list(memory), mask)

    def step(self, x, state):
        """One position, x (R, 1, d_model); returns the output and the new state."""
        past = []
        for layer, before, memory in zip(self.layers, state.past, state.memory, strict=True):
            x, now = layer.step(x, before, memory, state.mask)
            past.append(now)
        return self.norm(x), State(past, state.memory, state.mask)


class OutputBias(nn.Module):
    """A number for each token, added to its logit (not in section 3.4; Marian's have it).

    Args:
        vocab: number of tokens.
    """

    def __init__(self, vocab):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, logits):
        """Add the bias to logits, (..., vocab)."""
        return logits + self.bias  # (..., vocab)


class Transformer(nn.Module):
    """The model of Figure 1: source and target identifiers in, next tokens' logits out.

    Args:
        config: the sizes and choices.
        attention: a function of (Q, K, V, mask) and, if config.P_drop_attention > 0,
            dropout.
    """

    def __init__(self, config, attention=scaled_dot_product_attention):
        super().__init__()
        self.config = config
        self.target_embedding = Embedding(config.vocab, config.d_model)
        self.source_embedding = self.target_embedding
        if config.source_vocab is not None:
            self.source_embedding = Embedding(config.source_vocab, config.d_model)
        self.positions = POSITIONS[config.positions](config)
        self.dropout = nn.Dropout(config.P_drop)
        self.encoder, self.decoder = Encoder(config, attention), Decoder(config, attention)
        self.output_bias = OutputBias(config.vocab) if config.output_bias else nn.Identity()
        initialise(self)

    def embed(self, embedding, ids, first=0):
        """Embed ids, (B, T), from position first on; dropout on the sum (section 5.4)."""
        x = embedding(ids)  # (B, T, d_model)
        positions = torch.arange(first, first + ids.shape[1], device=ids.device)  # (T,)
        return self.dropout(x + self.positions(positions).to(x.dtype))  # (B, T, d_model)

    def encode(self, source):
        """Turn source identifiers, (B, S), ending in eos, into memory, (B, S, d_model)."""
        check_ids(source=source)
        x = self.embed(self.source_embedding, source)  # (B, S, d_model)
        return self.encoder(x, padding_mask(source, self.config.pad))  # (B, S, d_model)

    def decode(self, target, memory, source):
        """Logits (B, T, vocab) for target (B, T), which begins with bos.

        logits[:, t] predicts target[:, t + 1]; memory is `encode(source)`.
        """
        check_ids(target=target, source=source)
        if memory.shape[:2] != source.shape:
            shapes = f"{tuple(memory.shape)} and {tuple(source.shape)}"
            raise ValueError(f"memory must be that of source, their shapes are {shapes}")
        x = self.embed(self.target_embedding, target)  # (B, T, d_model)
        causal = causal_mask(target.shape[1], target.device)  # (T, T)
        mask = padding_mask(source, self.config.pad)  # (B, 1, 1, S)
        x = self.decoder(x, memory, causal, mask)  # (B, T, d_model)
        return self.output_bias(self.target_embedding.logits(x))  # (B, T, vocab)

    def forward(self, source, target):
        """Logits (B, T, vocab) for source (B, S), target (B, T); masks are made inside."""
        return self.decode(target, self.encode(source), source)  # (B, T, vocab)

    def start(self, source):
        """The state of cached decoding before the first step, a hypothesis a sentence."""
        return self.decoder.start(self.encode(source), padding_mask(source, self.config.pad))

    def step(self, ids, state):
        """Logits (R, vocab) of what follows ids, (R,), and a new state; the old is kept."""
        t = state.past[0][0].shape[2]  # as many keys as there were positions before
        x = self.embed(self.target_embedding, ids[:, None], first=t)  # (R, 1, d_model)
        x, state = self.decoder.step(x, state)
        return self.output_bias(self.target_embedding.logits(x))[:, 0], state


def check_ids(**named):
    """Refuse anything but batches of identifiers, a sentence a row.

    Args:
        named: the batches by their names, (B, S) or (B, T).

    Raises:
        TypeError: if one is no tensor of identifiers.
        ValueError: if one has another shape, or the numbers of rows differ.
    """
    for name, ids in named.items():
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.long, torch.int):
            given = getattr(ids, "dtype", type(ids).__name__)
            wanted = "a tensor of identifiers (torch.long)"
            raise TypeError(f"{name} must be {wanted}, got {given}")
        if ids.dim() != 2 or 0 in ids.shape:
            given = tuple(ids.shape)
            raise ValueError(f"{name} must be (sentences, positions), got {given}")
    rows = {name: len(ids) for name, ids in named.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(f"target and source must have as many rows each, got {rows}")


def initialise(model):
    """Glorot's uniform for every matrix, 0 for biases; embeddings keep variance 1 / d_model.

    The paper gives no initialisation; this is the released code's.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
