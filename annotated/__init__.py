"""Attention Is All You Need, executed: the package that the book's chapters make."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from annotated.decoding import Translator

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(folder: Path | str, device: "torch.device | str" = "cpu", int8: bool = False) -> "Translator":
    """Read a self-contained model folder (chapter 11): `load(folder).translate(["A man rides a bike."])`.

    Args:
        folder: where a model, its configuration and its vocabulary lie, ours or MarianMT's
            (chapter 21); or the name of such a model on the Hugging Face hub.
        device: where it is to compute.
        int8: with products of 8-bit numbers, faster and a little different (chapter 11).

    Raises:
        ValueError: the folder holds no model, or a damaged one; or int8 is not possible here.
    """
    from annotated.decoding import load  # here, so that `import annotated` does not import torch
    from annotated.interop import _is_foreign, load_marian

    return (load_marian if _is_foreign(folder) else load)(folder, device, int8=int8)
