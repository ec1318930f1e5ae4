"""The model in a page.

Generated from book/M-in-the-page.md by tools/tangle.py: edit the chapter, not this file.
"""

import base64
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated.data import Subwords, Words
from annotated.decoding import load
from annotated.files import write_text
from annotated.transformer import Config, Transformer

__all__ = ["to_page"]


def _round_rows(W: Tensor) -> tuple[Tensor, Tensor]:
    """Round a matrix to bytes, each row in steps of its own.

    Args:
        W: (n, m).

    Returns:
        scales (n,), and whole numbers from -127 to 127, (n, m), int8; their product is near W.
    """
    largest = W.abs().amax(1)  # (n,)
    scales = torch.where(largest > 0, largest / 127, torch.ones_like(largest))  # (n,)
    whole = (W / scales[:, None]).round().clamp(-127, 127)  # (n, m)
    return scales, whole.to(torch.int8)


def _rounded(model: Transformer) -> Transformer:
    """A copy of a model whose matrices have been rounded to bytes and back."""
    twin = deepcopy(model).cpu().float()
    with torch.no_grad():
        for W in twin.parameters():
            if W.dim() == 2:
                scales, whole = _round_rows(W)
                W.copy_(scales[:, None] * whole)
    return twin


def _pieces(vocabulary: Any) -> list[str]:
    """The words or pieces behind the markers, and behind the bytes.

    Raises:
        ValueError: the engine would segment otherwise than the vocabulary does.
    """
    if isinstance(vocabulary, Words):
        return vocabulary.words[len(vocabulary.markers) :]
    if not isinstance(vocabulary, Subwords):
        kind = type(vocabulary).__name__
        raise ValueError(f"the vocabulary must be a Words or a Subwords for a page, got {kind}")
    p = vocabulary.processor
    ids = range(260, len(vocabulary))
    pieces = [p.id_to_piece(i) for i in ids]
    probe = "\u2581ﬁ\u2581Ａ\u2581e\u0301"
    checks = {
        "bytes for unknown characters": all(p.is_byte(i) for i in range(4, 260)),
        # In unigram models scores are log-probabilities.
        "pieces in the order of their merges": [p.get_score(i) for i in ids] == [-i + 260 for i in ids],
        "text left as it is": p.normalize("  ﬁ  Ａ e\u0301 ") == probe,
        "word marks at the beginning only": not any("\u2581" in piece[1:] for piece in pieces),
    }
    for what, fits in checks.items():
        if not fits:
            raise ValueError(f"a page needs subwords as `Subwords.train` makes them: {what}")
    return pieces


_ACTIVATIONS = ("relu", "swish")


def _check_engine(model: Any) -> None:
    """Refuse, in a line, a model that the engine cannot run or whose weights are damaged."""
    if not isinstance(model, Transformer):
        raise ValueError(f"a page runs a Transformer, got a {type(model).__name__}")
    if model.config.activation not in _ACTIVATIONS:
        known = " and ".join(_ACTIVATIONS)
        raise ValueError(f"a page knows the activations {known}, got {model.config.activation}")
    for name, W in model.named_parameters():
        if not W.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite: the model is damaged")


def _pack(model: Transformer) -> tuple[list[dict], bytes]:
    """The table of a model's tensors, and their bytes: scales, then rows; vectors in float32."""
    table = []
    content = bytearray()
    for name, W in model.named_parameters():  # a matrix for both languages is named once
        parts = _round_rows(W.detach().float()) if W.dim() == 2 else (W.detach().float(),)
        content += bytes(-len(content) % 4)
        table.append({"name": name, "shape": list(W.shape), "at": len(content)})
        for part in parts:
            kind = "int8" if part.dtype == torch.int8 else "<f4"
            content += part.cpu().numpy().astype(kind).tobytes()
    return table, bytes(content)


def _about(config: Config) -> dict:
    """What the engine has to know of a configuration, with nothing left to work out."""
    names = "N d_model d_ff h vocab bos eos norm eps_norm activation positions max_positions"
    known = {name: getattr(config, name) for name in names.split()}
    widths = {"d_k": config.key_width, "d_v": config.value_width}
    return known | widths | {"N_decoder": config.decoder_layers}


def to_page(folder: Path | str, out: Path | str) -> None:
    """Write a model folder as a script, from which `engine.js` translates in a page.

    The script holds the configuration, the vocabulary, the folder's README, which says where
    the data comes from, and the weights in bytes, a scale for each row. The same
    folder gives the same script, byte for byte.

    Args:
        folder: of a Transformer, as `save` writes it.
        out: a file NAME.js; the page calls the model NAME.

    Raises:
        ValueError: the folder holds no model that the engine can run, or out is no such name.
    """
    folder = Path(folder)
    out = Path(out)
    if out.suffix != ".js":
        raise ValueError(f"out must be a file NAME.js, got {str(out)!r}")
    translator = load(folder)
    _check_engine(translator.model)
    table, content = _pack(translator.model)
    readme = folder / "README.md"
    file = {
        "config": _about(translator.model.config),
        "vocabulary": type(translator.vocabulary).__name__,
        "pieces": _pieces(translator.vocabulary),
        "about": readme.read_text("utf-8", "replace") if readme.exists() else "",
        "tensors": table,
        "data": base64.b64encode(content).decode("ascii"),
    }
    said = json.dumps(file, ensure_ascii=True, separators=(",", ":"))
    name = json.dumps(out.stem)
    write_text(out, f"((globalThis.annotated ??= {{}}).weights ??= {{}})[{name}] = {said};\n")
