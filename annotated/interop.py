"""Real weights.

Generated from book/21-real-weights.md by tools/tangle.py: edit the chapter, not this file.
"""

import math
import re
import warnings
import zipfile
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from annotated.data import Subwords, pad_batch
from annotated.decoding import (
    Translator,
    _check_attention,
    _check_device,
    _check_layers,
    _check_logits,
    _check_memory,
    _check_search,
    _check_tensors,
    _check_vocabulary,
    _evaluating,
    _is_packed,
    _select,
    _widen,
    greedy,
)
from annotated.embedding import positional_encoding
from annotated.files import _need, atomic_write, fsync, read_file, read_json, write_json
from annotated.transformer import _ACTIVATIONS, Config, KVCache, State, Transformer

__all__ = [
    "from_marian",
    "MarianVocabulary",
    "MarianTranslator",
    "PublishedTranslator",
    "load_marian",
    "to_marian",
    "to_torch",
    "from_torch",
    "to_onnx",
]


_MARIAN_NAMES = {
    "encoder.layers.": "model.encoder.layers.",
    "decoder.layers.": "model.decoder.layers.",
    "source_embedding.": "model.encoder.embed_tokens.",
    "target_embedding.": "model.decoder.embed_tokens.",
    "output_bias.bias": "final_logits_bias",
    ".self_attention.": ".self_attn.",
    ".cross_attention.": ".encoder_attn.",
    ".W_Q.": ".q_proj.", ".W_K.": ".k_proj.", ".W_V.": ".v_proj.", ".W_O.": ".out_proj.",
    ".feed_forward.W_1.": ".fc1.", ".feed_forward.W_2.": ".fc2.",
    ".norm.gain": ".norm.weight",
    ".add_norm.0.norm.": ".self_attn_layer_norm.",
    ".add_norm.last.norm.": ".final_layer_norm.",
    ".add_norm.1.norm.": ".encoder_attn_layer_norm.",
}


def _marian_name(name, shared=True):
    """What `transformers` calls a parameter of ours; a shared embedding has one name."""
    if shared and name.endswith("embedding.weight"):
        return "model.shared.weight"
    last = 1 if name.startswith("encoder") else 2
    name = name.replace(f".add_norm.{last}.", ".add_norm.last.")
    for ours, theirs in _MARIAN_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _feature_order(d_model):
    """Our features in Marian's order: those that carry sines, then those with cosines."""
    even = torch.arange(0, d_model, 2)
    odd = torch.arange(1, d_model, 2)
    return torch.cat([even, odd])  # (d_model,)


def _feature_axis(name):
    """Which axis of a parameter of ours runs over the d_model features; None: none does."""
    if "embedding" in name:
        return 1
    if "norm" in name or ".W_O." in name or ".W_2." in name:
        return 0
    return 1 if name.endswith(".weight") else None


_REQUIRED = {
    "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
    "static_position_embeddings": True, "tie_word_embeddings": True,
    "is_encoder_decoder": True,
}

_MARIAN_FIELDS = {
    "N": "encoder_layers", "d_model": "d_model", "d_ff": "encoder_ffn_dim",
    "h": "encoder_attention_heads", "vocab": "vocab_size",
    "activation": "activation_function", "P_drop": "dropout",
    "P_drop_attention": "attention_dropout", "P_drop_ffn": "activation_dropout",
    "pad": "pad_token_id", "bos": "decoder_start_token_id", "eos": "eos_token_id",
}


def _unless_equal(decoder, encoder):
    """The value of `Config.N_decoder` for these depths: None where the stacks are alike."""
    return None if decoder == encoder else decoder


def _marian_config(about, unk=1):
    """The Config that a Marian config.json describes; unk is known to the vocabulary only.

    Raises:
        ValueError: the file is of another architecture, incomplete, or has no counterpart.
    """
    if about.get("model_type") != "marian":
        raise ValueError(f"config.json needs model_type 'marian', got {about.get('model_type')!r}")
    for name in ("attention_heads", "ffn_dim"):
        one, other = (about.get(f"{side}_{name}") for side in ("encoder", "decoder"))
        if one != other:
            given = f"{one} and {other}"
            raise ValueError(f"encoder and decoder must have equal {name}, got {given}")
    for name, needed in _REQUIRED.items():
        if about.get(name, needed) != needed:
            raise ValueError(f"config.json must have {name} {needed}, got {about[name]!r}")
    try:
        fields = {ours: about[theirs] for ours, theirs in _MARIAN_FIELDS.items()}
    except KeyError as error:
        raise ValueError(f"config.json is incomplete: it lacks {error}") from None
    fields["activation"] = str(fields["activation"]).replace("silu", "swish")
    fields["N_decoder"] = _unless_equal(about.get("decoder_layers", fields["N"]), fields["N"])
    if not about.get("share_encoder_decoder_embeddings", True):
        fields |= {"source_vocab": fields["vocab"], "vocab": about.get("decoder_vocab_size")}
    return Config(**fields, unk=unk, eps_norm=1e-5, bias=True, output_bias=True)


def _check_packing(path):
    """Refuse an archive whose files are together larger than it is; torch writes none packed."""
    if path.suffix == ".bin" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            total = sum(file.file_size for file in archive.infolist())
        if total > path.stat().st_size:
            raise ValueError(f"it unpacks to {total} bytes, more than it has")


def _as_floats(tensors, path):
    """Tensors by name in float32; ValueError where they are larger than their file."""
    numbers = sum(tensor.numel() for tensor in tensors.values())
    if numbers > path.stat().st_size:
        raise ValueError(f"it claims {numbers} numbers, more than it has bytes")
    return {key: tensor.float() for key, tensor in tensors.items()}


def _read_weights(folder):
    """The tensors of a model folder by name, in float32; no code in the file is executed.

    Raises:
        ValueError: there is no file of weights, it is damaged or holds something else, or
            it takes more memory than there is.
    """
    legacy = partial(torch.load, map_location="cpu", weights_only=True)
    for name, read in (("model.safetensors", load_file), ("pytorch_model.bin", legacy)):
        path = Path(folder, name)
        if path.is_file():
            _check_memory(f"{path}", path.stat().st_size // 4, copies=2)  # the file, and float32
            try:
                _check_packing(path)
                return _as_floats(read(path), path)
            except Exception as error:  # each library has its own errors for a damaged file
                reason = str(error).strip().partition("\n")[0][:120]
                what = f"{path} is damaged, or holds more than tensors: {reason}"
                raise ValueError(what) from None
    missing = "neither model.safetensors nor pytorch_model.bin"
    raise ValueError(f"{folder} has no weights: {missing}")


def _check_embedding(tensors, config):
    """Refuse an embedding that is not (vocab, d_model): all that follows is of these sizes."""
    name = _marian_name("target_embedding.weight", config.source_vocab is None)
    if name not in tensors:
        raise ValueError(f"the weights do not fit config.json: {name} is missing")
    shape = tuple(tensors[name].shape)
    if shape != (config.vocab, config.d_model):
        sizes = f"({config.vocab}, {config.d_model}), got {shape}"
        raise ValueError(f"{name} must have the shape {sizes}")


def _check_copies(tensors, config):
    """Drop tensors that repeat others; ValueError: one of them differs from the first."""
    shared = config.source_vocab is None
    order = _feature_order(config.d_model)
    for side in ("encoder", "decoder"):
        again = {}
        if shared:
            again[f"model.{side}.embed_tokens.weight"] = "model.shared.weight"
        if side == "decoder":
            again["lm_head.weight"] = _marian_name("target_embedding.weight", shared)
        for name, first in again.items():
            copy = tensors.pop(name, None)
            if copy is not None and not torch.equal(copy, tensors.get(first, copy)):
                raise ValueError(f"{name} differs from {first}: the matrices must be one")
        table = tensors.pop(f"model.{side}.embed_positions.weight", None)
        if table is not None:
            fits = table.ndim == 2 and table.shape[1] == config.d_model
            rows = torch.arange(len(table) if fits else 0)
            wanted = positional_encoding(rows, config.d_model)[:, order]
            if not fits or not torch.allclose(table, wanted, rtol=0, atol=1e-3):
                name = f"model.{side}.embed_positions.weight"
                raise ValueError(f"{name} holds no sines and cosines")


def _matched(model, tensors):
    """For each of our parameters its name, itself, and Marian's tensor.

    Raises:
        ValueError: one is missing, left over or of another shape.
    """
    shared = model.config.source_vocab is None
    wanted = {_marian_name(name, shared): (name, p) for name, p in model.named_parameters()}
    for name in [*(wanted.keys() - tensors.keys()), *(tensors.keys() - wanted.keys())]:
        what = "is missing" if name in wanted else "has no counterpart"
        raise ValueError(f"the weights do not fit config.json: {name} {what}")
    found = []
    for theirs, (name, p) in wanted.items():
        tensor = tensors[theirs]
        if theirs == "final_logits_bias" and tensor.shape[:1] == (1,):
            tensor = tensor[0]
        if tensor.shape != p.shape:
            shapes = f"{tuple(p.shape)}, got {tuple(tensor.shape)}"
            raise ValueError(f"{theirs} must have the shape {shapes}")
        found.append((name, p, tensor))
    return found


def _fill(model, tensors):
    """Copy Marian's tensors into our parameters, features in our order, each used once.

    Raises:
        ValueError: one is missing, left over or of another shape.
    """
    back = _feature_order(model.config.d_model).argsort()
    with torch.no_grad():
        for name, p, tensor in _matched(model, tensors):
            axis = _feature_axis(name)
            p.copy_(tensor if axis is None else tensor.index_select(axis, back))


def _unscale(model):
    """Make a model whose embeddings were not multiplied by sqrt(d_model) one of ours.

    The shared matrix is divided by the root, and the decoder's last norm, which only the
    logits read, multiplied by it.
    """
    root = math.sqrt(model.config.d_model)
    norm = model.decoder.layers[-1].add_norm[-1].norm
    with torch.no_grad():
        for weight in {model.source_embedding.weight, model.target_embedding.weight}:
            weight /= root
        norm.gain *= root
        norm.bias *= root


def _is_hub_name(folder):
    """Whether it reads owner/model, and nothing here is called owner."""
    name = folder.as_posix() if isinstance(folder, PurePath) else str(folder)
    named = re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    return bool(named) and not Path(folder).parent.exists()


def _is_foreign(folder):
    """Whether `load_marian` is to load it: another library's folder, or a hub's name."""
    path = Path(folder, "config.json")
    try:
        return "model_type" in read_json(path) if path.is_file() else _is_hub_name(folder)
    except ValueError:  # damaged: the book's own `load` says so
        return False


def _find_folder(folder):
    """The folder as a Path; fetched through huggingface_hub where it is a name: owner/model.

    Raises:
        ValueError: there is no such folder, or the model cannot be had.
    """
    path = Path(folder)
    if not _is_hub_name(folder):
        if not (path / "config.json").is_file():
            raise ValueError(f"{folder} is not a model folder: it has no config.json")
        return path
    _need("huggingface_hub", "hub", f"to fetch {folder}, which is no folder here, by its name")
    import huggingface_hub

    files = ["*.json", "*.spm", "model.safetensors", "pytorch_model.bin"]
    try:
        return Path(huggingface_hub.snapshot_download(path.as_posix(), allow_patterns=files))
    except Exception as error:  # of the hub, of the connection, of the disk
        reason = " ".join(str(error).split())[:120]
        what = f"{folder} is no folder here, and cannot be fetched by this name: {reason}"
        raise ValueError(what) from None


def from_marian(folder: Path | str) -> Transformer:
    """Load the model of a MarianMT folder, such as OPUS-MT (Tiedemann & Thottingal 2020).

    It is in evaluation mode, with bias, output_bias and eps_norm=1e-5.

    Args:
        folder: with config.json and model.safetensors or pytorch_model.bin; or a name on the
            Hugging Face hub.

    Raises:
        ValueError: the folder holds no such model, or one that is damaged or unlike ours.
    """
    folder = _find_folder(folder)
    about = read_json(folder / "config.json")
    words = folder / "vocab.json"
    table = read_json(words) if words.is_file() else {}
    config = _marian_config(about, table.get("<unk>", 1))
    tensors = _read_weights(folder)
    _check_embedding(tensors, config)
    _check_copies(tensors, config)
    _check_layers(config, len(tensors))
    with torch.device("meta"):  # shapes are compared before memory is taken
        _matched(Transformer(config), tensors)
    model = Transformer(config).eval()
    _fill(model, tensors)
    if not about.get("scale_embedding", False):
        _unscale(model)
    return model


class MarianVocabulary:
    """The vocabulary of a MarianMT folder: two SentencePiece models, a table of identifiers.

    Args:
        folder: with source.spm, target.spm, vocab.json and, where the languages have
            tables of their own, target_vocab.json.

    Raises:
        ValueError: a file is missing or damaged.
    """

    def __init__(self, folder: Path | str):
        folder = Path(folder)
        names = ("source.spm", "target.spm")
        self.files = {name: read_file(folder / name) for name in names}
        self.source, self.target = (self._processor(folder / name) for name in names)
        self.source_ids = read_json(folder / "vocab.json")
        self.target_ids = self.source_ids
        if (folder / "target_vocab.json").is_file():
            self.target_ids = read_json(folder / "target_vocab.json")
        for ids in (self.source_ids, self.target_ids):
            if {type(i) for i in ids.values()} != {int} or len(set(ids.values())) < len(ids):
                raise ValueError(f"the vocabulary of {folder} needs a number of its own a piece")
            if missing := {"</s>", "<unk>", "<pad>"} - ids.keys():
                lacking = ", ".join(sorted(missing))
                raise ValueError(f"the vocabulary of {folder} lacks {lacking}")
        self.pieces = {i: piece for piece, i in self.target_ids.items()}
        self.source_pieces = {i: piece for piece, i in self.source_ids.items()}

    def _processor(self, path):
        """The SentencePiece model of a file that is read."""
        _need("sentencepiece", "data", "for a Marian vocabulary")
        import sentencepiece

        made = sentencepiece.SentencePieceProcessor()
        try:
            made.LoadFromSerializedProto(self.files[path.name])
        except (RuntimeError, UnicodeDecodeError):
            raise ValueError(f"{path} is damaged: it is no SentencePiece model") from None
        return made

    def encode(self, text: str, target: bool = False) -> list[int]:
        """Turn a text into identifiers, eos at the end; a leading >>code<< is one piece."""
        sides = (self.source, self.source_ids), (self.target, self.target_ids)
        model, ids = sides[bool(target)]
        code = re.match(">>.*?<<", text, re.DOTALL)
        pieces = [code[0]] if code else []
        rest = text[code.end():] if code else text
        pieces += [*model.encode(rest, out_type=str), "</s>"]
        return [ids.get(piece, ids["<unk>"]) for piece in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """Turn identifiers of the target into a text; pad, eos and unknown pieces vanish."""
        return self._text(ids, self.pieces, self.target)

    def _decode_source(self, ids):
        """As `decode`, of identifiers of the source."""
        return self._text(ids, self.source_pieces, self.source)

    def _text(self, ids, names, model):
        pieces = [names.get(int(i), "<unk>") for i in ids]
        words = [piece for piece in pieces if piece not in ("<pad>", "</s>", "<unk>")]
        return model.decode_pieces(words).replace("▁", " ").strip()

    def __len__(self) -> int:
        return len(self.target_ids)


@dataclass(frozen=True)
class _Generation:
    """How a published Marian model is to be searched (its generation_config.json)."""

    beam: int = 1  # hypotheses a sentence
    power: float = 1.0  # a sum of log-probabilities is divided by length ** power
    max_len: int = 511  # tokens of an output at most
    forbidden: tuple[int, ...] = ()  # tokens that are never said
    forced_eos: bool = False  # whether an output that reaches max_len ends in eos
    renormalise: bool = False  # whether probabilities sum to 1 without the forbidden tokens

    def guide(self, scores, length, eos):
        """Rule tokens out, in place, of scores, (R, vocab), of the token number `length`."""
        scores[:, list(self.forbidden)] = -math.inf
        if self.forced_eos and length == self.max_len:
            scores[:] = -math.inf
            scores[:, eos] = 0.0
        return scores  # (R, vocab)

    def log_probs(self, logits, length, eos):
        """Log-probabilities, (R, vocab), after the rules; arguments as of `guide`."""
        log_p = self.guide(logits.log_softmax(-1), length, eos)  # (R, vocab)
        return log_p.log_softmax(-1) if self.renormalise else log_p


def _check_rules(folder, about, forbidden, vocab):
    """Refuse rules of a search that make no sense: ValueError with the folder and the rule."""
    bounds = {"num_beams": (1, 1000), "max_length": (2, 100_000), "length_penalty": (-100, 100)}
    for name, (least, most) in bounds.items():
        value = about.get(name) or least
        kinds = (int,) if name != "length_penalty" else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            given = repr(value)[:40]
            raise ValueError(f"{folder}: {name} must lie in {least}..{most}, got {given}")
    tokens = isinstance(forbidden, list) and all(
        isinstance(ids, list) and all(type(i) is int and 0 <= i < vocab for i in ids)
        for ids in forbidden)
    if not tokens:
        raise ValueError(f"{folder}: bad_words_ids must be lists of tokens below {vocab}")


_LACKING = (
    "early_stopping", "do_sample", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "min_length", "min_new_tokens", "max_new_tokens", "suppress_tokens", "begin_suppress_tokens",
    "forced_bos_token_id", "sequence_bias", "diversity_penalty",
    "exponential_decay_length_penalty")

_LACKING_OVER_1 = "repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"


def _read_generation(folder, vocab=2**31):
    """The `_Generation` of a MarianMT folder; older folders keep it in config.json.

    Raises:
        ValueError: it asks for what this search lacks, forbids sequences of tokens, or holds
            what makes no sense.
    """
    files = [Path(folder, name) for name in ("config.json", "generation_config.json")]
    about = {k: v for path in files if path.is_file() for k, v in read_json(path).items()}
    forbidden = about.get("bad_words_ids") or []
    _check_rules(folder, about, forbidden, vocab)
    asked = [name for name in _LACKING if about.get(name)]
    asked += ["bad_words_ids of several tokens"] * any(len(ids) != 1 for ids in forbidden)
    asked += [name for name in _LACKING_OVER_1 if about.get(name) not in (None, 1)]
    forced = about.get("forced_eos_token_id")
    eos = about.get("eos_token_id", forced)
    asked += ["several eos_token_id"] * isinstance(eos, list)
    asked += ["another forced_eos_token_id"] * (forced not in (None, eos))
    if asked:
        raise ValueError(f"{folder} asks for {', '.join(asked)}, which this search lacks")
    power = about.get("length_penalty")
    return _Generation(
        beam=about.get("num_beams") or 1,
        power=1.0 if power is None else float(power),
        max_len=(about.get("max_length") or 512) - 1,
        forbidden=tuple(ids[0] for ids in forbidden),
        forced_eos=forced is not None,
        renormalise=bool(about.get("renormalize_logits")))


class _Guided(nn.Module):
    """A model to which the rules of a `_Generation` apply, whichever search asks it."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.config, self.how = model, model.config, how

    def start(self, source):
        """As the model's."""
        return self.model.start(source)

    def step(self, ids, state):
        """As the model's, with -inf for what may not be said."""
        logits, after = self.model.step(ids, state)  # (R, vocab)
        length = after.caches[0].K.shape[2]
        return self.how.guide(logits, length, self.config.eos), after


def _continued(tokens, log_p, log_probs):
    """The 2k best continuations of k hypotheses: were half of them to end, k could go on.

    Args:
        tokens: of the hypotheses so far, (B, k, t).
        log_p: theirs, (B, k).
        log_probs: of the next token, (B, k, vocab).

    Returns:
        tokens (B, 2k, t + 1), log_p (B, 2k), and the hypothesis that each continues (B, 2k).
    """
    k, vocab = log_probs.shape[1:]
    log_p, index = (log_p[..., None] + log_probs).flatten(1).topk(2 * k)  # (B, 2*k)
    parent = index // vocab  # (B, 2*k)
    token = index % vocab  # (B, 2*k)
    rows = parent[..., None].expand(-1, -1, tokens.shape[-1])  # (B, 2*k, t)
    before = tokens.gather(1, rows)  # (B, 2*k, t)
    return torch.cat([before, token[..., None]], -1), log_p, parent


def _put_away(pools, tokens, scores, ended):
    """Move hypotheses that ended to their sentence's pool, which keeps the k best.

    Args:
        pools: B lists of (ids, score), best first.
        tokens: (B, 2k, t), the start token first.
        scores: (B, 2k), best first.
        ended: (B, 2k); only what ranks among the k best counts.
    """
    k = ended.shape[1] // 2
    for b, i in ended[:, :k].nonzero().tolist():
        pools[b].append((tokens[b, i, 1:].tolist(), scores[b, i].item()))
        pools[b].sort(key=lambda hypothesis: -hypothesis[1])
        del pools[b][k:]


class _PublishedBeams:
    """The hypotheses of a search after `transformers`: what has ended frees its place.

    Args:
        source: (B, S).
        config: of the model.
        how: a `_Generation`.
    """

    def __init__(self, source, config, how):
        self.eos, self.how = config.eos, how
        self.found: list[list] = [[] for _ in source]
        self.pools = list(self.found)  # those of the sentences still under way
        self.tokens = source.new_full((len(source), how.beam, 1), config.bos)  # (B, k, 1)
        # Every place but the first is empty, or the same hypothesis would stand in all.
        places = self.tokens.shape[:2]
        self.log_p = torch.full(places, -math.inf, device=source.device)  # (B, k)
        self.log_p[:, 0] = 0.0

    def extend(self, logits):
        """Make one step, logits (B * k, vocab); returns the rows of the state to go on."""
        length, how = self.tokens.shape[-1], self.how
        log_probs = how.log_probs(logits, length, self.eos).unflatten(0, self.log_p.shape)
        tokens, log_p, parent = _continued(self.tokens, self.log_p, log_probs)
        ended = (tokens[..., -1] == self.eos) | (length == how.max_len)  # (B, 2*k)
        _put_away(self.pools, tokens, log_p / length**how.power, ended)
        self.log_p, index = log_p.masked_fill(ended, -math.inf).topk(how.beam)  # (B, k)
        index3 = index[..., None].expand(-1, -1, length + 1)  # (B, k, length + 1)
        self.tokens = tokens.gather(1, index3)  # (B, k, length + 1)
        return self.leave(length, parent.gather(1, index))

    def leave(self, length, parent):
        """Drop the sentences whose pool is full of better ones than can be hoped for."""
        k = self.how.beam
        hope = (self.log_p[:, 0] / length**self.how.power).tolist()
        going = [b for b, pool in enumerate(self.pools) if length < self.how.max_len
                 and (len(pool) < k or hope[b] > pool[-1][1])]
        self.pools = [self.pools[b] for b in going]
        rows = torch.tensor(going, dtype=torch.long, device=parent.device)  # (B,)
        self.tokens = self.tokens[rows]
        self.log_p = self.log_p[rows]
        return (rows[:, None] * k + parent[rows]).flatten()


def _published_search(model, source, how):
    """Beam search as `transformers` does it (version 5, early_stopping=False).

    Args:
        model: anything with `start`, `step` and `config`.
        source: (B, S), each sentence ending in eos, padding at the end.
        how: a `_Generation`.

    Returns:
        B lists of (ids, score), best first: no start token, eos last where it was reached.
    """
    with _evaluating(model):
        beams = _PublishedBeams(source, model.config, how)
        everyone = torch.arange(len(source), device=source.device)  # (B,)
        state = _widen(model.start(source), everyone, how.beam)
        while beams.pools:
            logits, state = model.step(beams.tokens[..., -1].flatten(), state)  # (R, vocab)
            _check_logits(logits)
            rows = beams.extend(logits)
            state = _select(state, rows) if len(rows) else None
    return beams.found


class MarianTranslator(Translator):
    """A published model with its vocabulary, searched as the book does, by its rules.

    Args:
        model: of `from_marian`.
        how: the rules, of `_read_generation`.
        longest, int8: as of `Translator`.
    """

    def __init__(
        self, model: Transformer, vocabulary: MarianVocabulary, how: _Generation, longest: int = 200,
        int8: bool = False,
    ):
        super().__init__(model, vocabulary, longest, int8)
        self.how = how
        self.quick = _Guided(self.quick, how)

    def __reduce__(self):
        return type(self), (self.model, self.vocabulary, self.how, self.longest, self.int8)

    def cut(self, line: str) -> list[list[int]]:
        """As `Translator.cut`; a >>code<< at the beginning stands before every piece."""
        pieces = super().cut(line)
        if not re.match(">>.*?<<", line.strip()):
            return pieces
        return [*pieces[:1], *([pieces[0][0], *piece] for piece in pieces[1:])]


class PublishedTranslator(MarianTranslator):
    """A published model searched as in `transformers`; alpha is the power of the length.

    Without a beam or an alpha it takes those that the model's folder names.
    """

    def _by_rules(self, beam: int | None, alpha: float | None) -> dict[str, Any]:
        return {"beam": self.how.beam if beam is None else beam,
                "alpha": self.how.power if alpha is None else alpha}

    def translate(
        self, lines: Iterable[str], beam: int | None = None, alpha: float | None = None,
        tokens: int = 4096, progress: bool = True,
    ) -> list[str]:
        """As `Translator.translate`."""
        rules = self._by_rules(beam, alpha)
        return super().translate(lines, **rules, tokens=tokens, progress=progress)

    def n_best(
        self, lines: Iterable[str], k: int, beam: int | None = None, alpha: float | None = None,
        tokens: int = 4096, progress: bool = True,
    ) -> list[list[tuple[float, str]]]:
        """As `Translator.n_best`."""
        rules = self._by_rules(beam, alpha)
        return super().n_best(lines, k, **rules, tokens=tokens, progress=progress)

    def search(self, batch: list, beam: int, alpha: float, k: int = 0) -> list:
        """The hypotheses, (ids, score), of lists of identifiers that fit one batch."""
        _check_search(beam, lambda n: float(n) ** alpha, torch.tensor([self.how.max_len]))
        device = next(self.model.parameters()).device
        source = pad_batch(batch, self.model.config.pad).to(device)  # (B, S)
        if beam == 1 and not k:  # nobody asks for scores
            return [[(ids, 0.0)] for ids in greedy(self.quick, source, self.how.max_len)]
        how = replace(self.how, beam=beam, power=alpha)
        return _published_search(self.quick.model, source, how)


def _check_marian(vocabulary, config, said="the vocabulary"):
    """Refuse a `MarianVocabulary` of another model: ValueError."""
    c = config
    rows = c.source_vocab or c.vocab, c.vocab
    for ids, size in zip((vocabulary.source_ids, vocabulary.target_ids), rows):
        if not all(0 <= i < size for i in ids.values()):
            raise ValueError(f"{said} leaves the model's 0..{size - 1}")
        if (ids["</s>"], ids["<pad>"]) != (c.eos, c.pad):
            given = f"{ids['</s>']} and {ids['<pad>']}, the model {c.eos} and {c.pad}"
            raise ValueError(f"for </s> and <pad> {said} has {given}")


def load_marian(
    folder: Path | str,
    device: torch.device | str = "cpu",
    kind: type[MarianTranslator] = MarianTranslator,
    int8: bool = False,
) -> MarianTranslator:
    """Load a MarianMT folder whole; `annotated.load` calls this where it meets one.

    Args:
        folder: with the model's files, source.spm, target.spm and vocab.json; or a name on
            the Hugging Face hub.
        kind: PublishedTranslator for the search of `transformers`.
        int8: as of `Translator`.

    Raises:
        ValueError: the folder holds no such model, or one that is damaged or unlike ours;
            there is no such device, or int8 is not possible.
    """
    _check_device(device)
    folder = _find_folder(folder)
    model = from_marian(folder)
    vocabulary = MarianVocabulary(folder)
    _check_marian(vocabulary, model.config, f"the vocabulary of {folder}")
    how = _read_generation(folder, model.config.vocab)
    return kind(model.to(device), vocabulary, how, int8=int8)


def _check_model(model):
    """A Transformer, without its compiler's wrapper; refuse any other model, or other tensors.

    Raises TypeError or ValueError.
    """
    model = getattr(model, "_orig_mod", model)
    if not all(hasattr(getattr(model, stack, None), "layers") for stack in ("encoder", "decoder")):
        raise TypeError(f"model must be a Transformer, not {type(model).__name__}")
    _check_tensors(model)
    _check_attention(model)
    return model


def _with_biases(model):
    """A copy of a Transformer with all the biases of Marian's, 0 where there was none."""
    twin = Transformer(replace(model.config, bias=True, output_bias=True)).eval()
    twin.load_state_dict(model.state_dict(), strict=False)
    return twin


def _start_from_zero(model):
    """Make the embedding of the first target token 0, and leave the probabilities alone.

    The row is taken from every row of the target's matrix, which moves all logits of a
    position by one number. What the first layers then miss, biases of theirs give back.

    Args:
        model: a post-norm Transformer with biases; it is changed.
    """
    with torch.no_grad():
        row = model.target_embedding.weight[model.config.bos].clone()  # (d_model,)
        missing = row * math.sqrt(model.config.d_model)  # (d_model,)
        model.target_embedding.weight -= row
        shared = model.source_embedding is model.target_embedding
        for stack in (model.encoder, model.decoder) if shared else (model.decoder,):
            attention = stack.layers[0].self_attention
            for W in (attention.W_Q, attention.W_K, attention.W_V):
                W.bias += W.weight @ missing
            attention.W_O.bias += missing  # for the residual connection


def _never_pad(model):
    """Let padding begin the target, with an embedding of 0, and never be said."""
    with torch.no_grad():
        model.target_embedding.weight[model.config.pad] = 0.0
        model.output_bias.bias[model.config.pad] = -1e4  # finite in half precision, too


def _marian_vocabulary(vocabulary, config):
    """The files of a vocabulary in Marian's layout, and our identifiers in its order.

    Eos and unk come first and padding last; a MarianVocabulary keeps its order.

    Raises:
        TypeError: the vocabulary is of another kind.
        ValueError: a Subwords of another size, or the model has a source_vocab.
    """
    if isinstance(vocabulary, MarianVocabulary):
        _check_marian(vocabulary, config)
        tables = {"vocab.json": vocabulary.source_ids}
        if config.source_vocab is not None:
            tables["target_vocab.json"] = vocabulary.target_ids
        return vocabulary.files | tables, list(range(config.vocab))
    if not isinstance(vocabulary, Subwords):
        kind = type(vocabulary).__name__
        raise TypeError(f"vocabulary must be Subwords or MarianVocabulary, got {kind}")
    if config.source_vocab is not None:  # its rows would keep an order that no table has
        raise ValueError("a model with source_vocab needs the MarianVocabulary it came with")
    _check_vocabulary(vocabulary, config)
    c = config
    name = vocabulary.processor.id_to_piece
    special = (c.pad, c.bos, c.eos, c.unk)
    order = [c.eos, c.unk, *(i for i in range(c.vocab) if i not in special), c.bos, c.pad]
    table = {name(ours): theirs for theirs, ours in enumerate(order)}
    files = dict.fromkeys(("source.spm", "target.spm"), vocabulary.model)
    return files | {"vocab.json": table}, order


def _marian_about(config, order):
    """config.json and generation_config.json, as dicts, of a vocabulary in this order."""
    c = config
    pad = order.index(c.pad)
    eos = order.index(c.eos)
    start = order.index(c.bos) if order == sorted(order) else pad
    about = {theirs: getattr(c, ours) for ours, theirs in _MARIAN_FIELDS.items()}
    twins = {k: v for k, v in about.items() if k.startswith("encoder_")}
    about |= {k.replace("en", "de", 1): v for k, v in twins.items()}
    about["decoder_layers"] = c.decoder_layers
    ids = {"pad_token_id": pad, "eos_token_id": eos, "decoder_start_token_id": start}
    about |= _REQUIRED | ids | {"model_type": "marian", "architectures": ["MarianMTModel"]}
    about |= {"scale_embedding": True, "max_position_embeddings": 1024}
    about["decoder_vocab_size"] = c.vocab
    about["share_encoder_decoder_embeddings"] = c.source_vocab is None
    about["vocab_size"] = c.source_vocab or c.vocab
    rules = {"bad_words_ids": [[pad]], "forced_eos_token_id": eos}
    return about, ids | rules | {"num_beams": 4, "max_length": 512}


def _marian_tensors(model, order):
    """Parameters, with all biases, under Marian's names; order: our tokens in its order."""
    features = _feature_order(model.config.d_model)
    shared = model.config.source_vocab is None
    tensors = {}
    for name, p in model.named_parameters():
        tensor = p.detach().cpu().float()
        axis = _feature_axis(name)
        if axis is not None:
            tensor = tensor.index_select(axis, features)
        if name in ("target_embedding.weight", "output_bias.bias"):
            tensor = tensor[order]
        if name == "output_bias.bias":
            tensor = tensor[None]
        tensors[_marian_name(name, shared)] = tensor.contiguous()
    return tensors


def _write_marian(folder, files, tensors, about, generation):
    """Write a MarianMT folder, config.json last: a folder without it is no model."""
    folder.mkdir(parents=True, exist_ok=True)
    separate = "target_vocab.json" in files
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    files |= {"tokenizer_config.json": tokenizer, "generation_config.json": generation}
    files["config.json"] = about
    with atomic_write(folder / "model.safetensors") as fresh:
        save_file(tensors, fresh, {"format": "pt"})
        fsync(fresh)  # a full disk says so here, while the old model is whole
        for name in ("config.json", "target_vocab.json"):  # of an older model
            (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        if isinstance(content, dict):
            write_json(folder / name, content)
            continue
        with atomic_write(folder / name) as fresh:
            fresh.write_bytes(content)


def to_marian(
    model: Transformer, vocabulary: Subwords | MarianVocabulary, folder: Path | str
) -> None:
    """Write a Transformer as a MarianMT folder, which `transformers` and CTranslate2 read.

    Marian's LayerNorm has eps 1e-5, whatever `eps_norm` was: logits move a little.

    Args:
        model: post-norm, with sinusoids.
        folder: made where it does not exist.

    Raises:
        ValueError: the model has no counterpart; the message names the field.
        TypeError: the model is no Transformer, or the vocabulary is of another kind.
    """
    model = _check_model(model)
    c = model.config
    wanted = {
        "norm": (c.norm, "post"), "final_norm": (c.last_norm, False),
        "positions": (c.positions, "sinusoidal"),
        "d_k": (c.key_width, c.d_model / c.h), "d_v": (c.value_width, c.d_model / c.h)}
    for name, (given, value) in wanted.items():
        if given != value:
            raise ValueError(f"a Marian model must have {name}={value}, got {given}")
    files, order = _marian_vocabulary(vocabulary, c)
    twin = _with_biases(model)
    _start_from_zero(twin)
    if c.pad != c.bos:
        _never_pad(twin)
    tensors = _marian_tensors(twin, order)
    _write_marian(Path(folder), files, tensors, *_marian_about(c, order))


def _torch_pairs(layer, other):
    """For a layer of ours and one of torch's: lists of our parameters, and torch's one.

    The tensors of a list stand side by side in torch's (section 3.1).
    """
    names = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    for mine, name in names.items():
        a = getattr(layer, mine, None)
        b = getattr(other, name, None)
        for kind in ("weight", "bias") if a else ():
            three = [getattr(W, kind) for W in (a.W_Q, a.W_K, a.W_V)]
            yield three, getattr(b, f"in_proj_{kind}")
            yield [getattr(a.W_O, kind)], getattr(b.out_proj, kind)
    for mine, name in (("W_1", "linear1"), ("W_2", "linear2")):
        a = getattr(layer.feed_forward, mine)
        b = getattr(other, name)
        yield [a.weight], b.weight
        yield [a.bias], b.bias
    for i, residual in enumerate(layer.add_norm, 1):
        norm = getattr(other, f"norm{i}")
        yield [residual.norm.gain], norm.weight
        yield [residual.norm.bias], norm.bias


def _both_stacks(model, theirs):
    """The pairs of `_torch_pairs` for all layers of both stacks, and of the last norms."""
    for ours, other in ((model.encoder, theirs.encoder), (model.decoder, theirs.decoder)):
        for layers in zip(ours.layers, other.layers, strict=True):
            yield from _torch_pairs(*layers)
        if other.norm is not None:
            yield [ours.norm.gain], other.norm.weight
            yield [ours.norm.bias], other.norm.bias


def _torch_stacks(config, device=None):
    """The stacks that torch makes of a Config, batch first, with new weights."""
    c = config
    with warnings.catch_warnings(action="ignore"):  # torch says that it nests no tensors
        theirs = nn.Transformer(
            c.d_model, c.h, c.N, c.decoder_layers, c.d_ff, c.P_drop, _ACTIVATIONS[c.activation],
            layer_norm_eps=c.eps_norm, batch_first=True, norm_first=c.norm == "pre", device=device)
    if not c.last_norm:
        theirs.encoder.norm = None
        theirs.decoder.norm = None
    for part in theirs.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = c.P_drop_attention
        if isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            part.dropout.p = c.P_drop_ffn
    return theirs


def to_torch(model: Transformer) -> nn.Transformer:
    """The two stacks of a model as torch's, batch first, which has no embeddings.

    The weights are copies; training or evaluation mode is as in the model.

    Raises:
        ValueError: h * d_k or h * d_v is not d_model, or the attention or a layer is another
            one, which torch cannot have.
        TypeError: the model is no Transformer.
    """
    model = _check_model(model)
    c = model.config
    if {c.h * c.key_width, c.h * c.value_width} != {c.d_model}:
        given = f"h={c.h}, d_k={c.key_width}, d_v={c.value_width}"
        raise ValueError(f"model must have h * d_k = h * d_v = {c.d_model} for torch, got {given}")
    theirs = _torch_stacks(c).to(next(model.parameters()))
    with torch.no_grad():
        for ours, other in _both_stacks(model, theirs):
            other.copy_(torch.zeros_like(other) if ours[0] is None else torch.cat(ours))
    return theirs.train(model.training)


def _activation_of(layer):
    """The name of the activation of a layer of torch's, a function or a module."""
    names = {f: name for name, f in _ACTIVATIONS.items()} | {F.relu: "relu"}
    modules = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}
    given = layer.activation
    name = modules.get(type(given)) or names.get(given)
    if name is None or getattr(given, "approximate", "none") != "none":
        known = ", ".join(_ACTIVATIONS)
        got = " ".join(str(given).split())
        raise ValueError(f"theirs must have one of {known}, got {got}")
    return name


def _check_kind(part, kind, place):
    """Refuse what is another module of torch's, or a subclass, which may compute otherwise."""
    if type(part) is not kind:
        found = type(part).__name__
        raise ValueError(f"theirs must have torch's own {kind.__name__} as {place}, got {found}")


def _layer_choices(layer, place):
    """What an encoder layer of torch's says of itself, as fields of a Config."""
    _check_kind(layer, nn.TransformerEncoderLayer, place)
    kinds = {"self_attn": nn.MultiheadAttention, "linear1": nn.Linear, "norm1": nn.LayerNorm,
             "dropout": nn.Dropout, "dropout1": nn.Dropout}
    for name, kind in kinds.items():
        _check_kind(getattr(layer, name, None), kind, f"{place}.{name}")
    return {
        "h": layer.self_attn.num_heads, "d_ff": layer.linear1.out_features,
        "activation": _activation_of(layer), "norm": "pre" if layer.norm_first else "post",
        "eps_norm": layer.norm1.eps, "P_drop": layer.dropout1.p,
        "P_drop_attention": layer.self_attn.dropout, "P_drop_ffn": layer.dropout.p,
    }


def _torch_choices(theirs):
    """What an `nn.Transformer` says of itself, as fields of a Config; see `from_torch`.

    They are of its first layer; `_check_stacks` compares the others.
    """
    encoder, decoder = theirs.encoder, theirs.decoder
    _check_kind(encoder, nn.TransformerEncoder, "encoder")
    _check_kind(decoder, nn.TransformerDecoder, "decoder")
    if not len(encoder.layers) or not len(decoder.layers):
        raise ValueError("theirs must have a layer in each of both stacks")
    if (encoder.norm is None) != (decoder.norm is None):
        raise ValueError("theirs must have a norm at the end of both stacks or of none")
    depth = len(encoder.layers)
    return _layer_choices(encoder.layers[0], "encoder.layers.0") | {
        "N": depth, "N_decoder": _unless_equal(len(decoder.layers), depth),
        "d_model": theirs.d_model, "bias": True, "final_norm": encoder.norm is not None,
    }


def _part_choices(part):
    """What a part of torch's stacks computes with, by name, and the shapes of its parameters."""
    names = "num_heads", "dropout", "add_zero_attn", "norm_first", "eps", "p"
    found = {name: vars(part)[name] for name in names if name in vars(part)}
    if hasattr(part, "activation"):
        found["activation"] = _activation_of(part)
    shapes = {f"{n}.shape": tuple(p.shape) for n, p in part.named_parameters(recurse=False)}
    return found | shapes


def _check_stacks(theirs, wanted):
    """Refuse stacks of torch's of which any part is not as in others: ValueError."""
    for stack in ("encoder", "decoder"):
        parts = dict(getattr(theirs, stack).named_modules(None, stack, False))
        for place, part in getattr(wanted, stack).named_modules(prefix=stack):
            found = parts.get(place)
            _check_kind(found, type(part), place)
            one = _part_choices(part)
            other = _part_choices(found)
            for name in sorted(one.keys() | other.keys()):
                if (value := one.get(name)) != (given := other.get(name)):
                    said = f"{name}={value} in {place}, got {given}"
                    raise ValueError(f"theirs must have {said}")


def from_torch(theirs: nn.Transformer, vocab: int, **fields: Any) -> Transformer:
    """A model with copies of the weights of torch's; its embeddings are new.

    Args:
        theirs: in training or evaluation mode, which stays.
        vocab: number of tokens, about which torch's module knows nothing.
        fields: further fields of Config, such as pad or positions.

    Raises:
        TypeError: theirs is another module.
        ValueError: it has no counterpart here, or a field is refused.
    """
    if not isinstance(theirs, nn.Transformer):
        raise TypeError(f"theirs must be an nn.Transformer, got {type(theirs).__name__}")
    choices = _torch_choices(theirs)
    if given := sorted({"d_k", "d_v", *choices} & fields.keys()):
        raise ValueError(f"theirs decides {', '.join(given)}: leave that out")
    config = Config(vocab=vocab, **choices, **fields)
    _check_stacks(theirs, _torch_stacks(config, "meta"))
    model = Transformer(config).to(next(theirs.parameters()))
    with torch.no_grad():
        for ours, other in _both_stacks(model, theirs):
            for mine, part in zip(ours, other.chunk(len(ours))):
                mine.copy_(part)
    return model.train(theirs.training)


class _Table(nn.Module):
    """Rows of weight, (n, d_model), times scale, as an `Embedding` gives them, unchecked."""

    def __init__(self, weight, scale=1.0):
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(weight.detach(), requires_grad=False)

    def forward(self, rows):
        """Look up rows, any shape: rows.shape + (d_model,)."""
        return F.embedding(rows, self.weight) * self.scale

    def logits(self, x):
        """As the embedding's: (..., d_model) to (..., n)."""
        return x @ self.weight.T


def _traceable(model, positions=1024):
    """A copy of a Transformer that can be traced: tables for embeddings and positions."""
    if _is_packed(model):
        raise ValueError("model must be the model itself, not a packed copy for searches")
    c = model.config
    root = math.sqrt(c.d_model)
    twin = deepcopy(model).cpu().float().eval()
    shared = twin.source_embedding is twin.target_embedding
    twin.target_embedding = _Table(twin.target_embedding.weight, root)
    if shared:
        twin.source_embedding = twin.target_embedding
    else:
        twin.source_embedding = _Table(twin.source_embedding.weight, root)
    count = c.max_positions if c.positions == "learned" else positions
    twin.positions = _Table(twin.positions(torch.arange(count)))
    for part in twin.modules():
        if "linear" in vars(part):  # appendix N's products, which cannot be traced
            part.linear = F.linear
        vars(part).pop("step", None)  # appendix K's, compiled
    return twin.requires_grad_(False)


class _EncoderGraph(nn.Module):
    """The encoder, and the keys and values that each decoder layer makes of its output."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, source):
        """source (B, S) -> K (B, h, S, d_k), V (B, h, S, d_v) for each layer in turn."""
        return [x for cache in self.model.start(source).memory for x in (cache.K, cache.V)]


class _StepGraph(nn.Module):
    """One cached step of the decoder: the key-value caches go in and out as tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, source, *tensors):
        """Tokens (B,), source (B, S), then K and V of each layer: the cache, the memory.

        Returns:
            logits (B, vocab), then K and V of each layer's cache, one position longer.
        """
        both = [KVCache(K, V) for K, V in zip(tensors[::2], tensors[1::2])]
        layers = len(both) // 2
        caches = both[:layers]
        memory = both[layers:]
        mask = (source != self.model.config.pad)[:, None, None]  # (B, 1, 1, S)
        logits, state = self.model.step(ids, State(caches, memory, mask))  # (B, vocab)
        return [logits, *(x for cache in state.caches for x in (cache.K, cache.V))]


def _graph_names(N):
    """The names of the caches (past), of the memory and of the new caches, for N layers."""
    return tuple(
        [f"{kind}.{i}.{letter}" for i in range(N) for letter in "KV"]
        for kind in ("past", "memory", "new"))


def to_onnx(model: Transformer, folder: Path | str) -> None:
    """Write a Transformer as two ONNX graphs: encoder.onnx and step.onnx, of any B, S and t.

    Their table of sinusoids has 1024 rows, so that S and t are 1024 at most.

    The caller loops: `memory.*` from the encoder; `past.*` empty at first, (B, h, 0, d_k)
    and (B, h, 0, d_v), then `new.*` of the step before.

    Args:
        model: of any precision; the graphs compute in float32.
        folder: made where it does not exist.

    Raises:
        TypeError: the model is no Transformer.
        ValueError: it is a copy that `packed` or `packed_int8` has made.
    """
    _need("onnx", "onnx", "to write ONNX graphs")
    model = getattr(model, "_orig_mod", model)  # without its compiler's wrapper
    if not isinstance(model, Transformer):
        raise TypeError(f"model must be a Transformer, not {type(model).__name__}")
    c = model.config
    twin = _traceable(model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    past, memory, new = _graph_names(c.decoder_layers)
    source = torch.full((2, 3), c.eos)
    ids = torch.full((2,), c.bos)
    state = twin.start(source)
    begun = twin.step(ids, state)[1].caches
    caches = [x.repeat(1, 1, 2, 1) for cache in begun for x in (cache.K, cache.V)]
    memories = [x for cache in state.memory for x in (cache.K, cache.V)]
    axes = {"ids": {0: "B"}, "source": {0: "B", 1: "S"}, "logits": {0: "B"}}
    for names, length in ((past, "t"), (memory, "S"), (new, "t + 1")):
        axes |= {name: {0: "B", 2: length} for name in names}
    export = partial(torch.onnx.export, dynamo=False, dynamic_axes=axes, opset_version=17)
    with warnings.catch_warnings(action="ignore"):  # the tracer remarks on checks of shapes
        export(_EncoderGraph(twin), (source,), folder / "encoder.onnx",
               input_names=["source"], output_names=memory)
        export(_StepGraph(twin), (ids, source, *caches, *memories), folder / "step.onnx",
               input_names=["ids", "source", *past, *memory], output_names=["logits", *new])
