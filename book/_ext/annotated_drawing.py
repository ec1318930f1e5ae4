"""The drawing of the model: one SVG, lit where a chapter stands, or large with every part a link."""

import re
from html import escape
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "img" / "model.svg"

PARTS = {
    "source-embedding": "the source embedding",
    "target-embedding": "the target embedding",
    "positions": "the positions",
    "encoder": "the encoder",
    "encoder-attention": "the encoder's self-attention",
    "encoder-feed-forward": "the encoder's feed-forward layer",
    "add-norm": "add and norm after each sub-layer",
    "decoder": "the decoder",
    "decoder-self-attention": "the decoder's masked self-attention",
    "cross-attention": "the attention from decoder to encoder",
    "decoder-feed-forward": "the decoder's feed-forward layer",
    "output": "the linear layer and softmax",
    "memory": "the memory that the encoder hands to the decoder",
}
# As short as on the large drawing: beside the small one, which has no room for words.
NAMES = {
    "source-embedding": "embedding", "target-embedding": "embedding", "encoder-attention": "self-attention", "add-norm": "add and norm",
    "encoder-feed-forward": "feed-forward", "decoder-feed-forward": "feed-forward", "decoder-self-attention": "masked self-attention",
    "cross-attention": "cross-attention", "output": "linear and softmax",
}


def names(lit) -> str:
    "What the parts are called, a line each, each name once."
    return "<br>".join(dict.fromkeys(NAMES.get(part, part) for part in lit))


def drawing(lit=(), size: str = "small", links: dict[str, tuple[str, str]] | None = None) -> str:
    """The drawing as inline SVG.

    Args:
        lit: the parts to light, keys of `PARTS`.
        size: "small" beside a title, without labels, or "large".
        links: part -> (address, title); those parts become links.

    Raises:
        ValueError: a part that the drawing does not have.
    """
    unknown = sorted(set(lit) - set(PARTS))
    if unknown:
        raise ValueError(f"the drawing has no part {', '.join(unknown)}; it has {', '.join(PARTS)}")
    svg = re.sub(r"<!--.*?-->\s*", "", SOURCE.read_text(encoding="utf-8"), flags=re.S)
    if size == "small":
        svg = re.sub(r'<g class="label".*?</g>|<text class="label".*?</text>', "", svg, flags=re.S)
    for part in lit:
        svg = svg.replace(f'class="part" data-part="{part}"', f'class="part lit" data-part="{part}"')
    for part, (address, title) in (links or {}).items():
        # A part with words on it is called by them; the two frames have none.
        name = f' aria-label="{escape(PARTS[part])}: {escape(title)}"' if part in ("encoder", "decoder") else ""
        opening = f'<a class="part" data-part="{part}" href="{escape(address)}"{name}>'
        svg = re.sub(rf'<g class="part" data-part="{part}">(.*)</g>\n', rf"{opening}<title>{escape(title)}</title>\1</a>\n", svg)
    words = ", ".join(PARTS[part] for part in lit)
    alt = "The Transformer as in Figure 1 of the paper: encoder at the left, decoder at the right"
    alt += f". Lit: {words}." if lit else ". Every part is named and leads to its chapter." if links else "."
    role = "group" if links else "img"
    return svg.replace('class="model"', f'class="model {size}" role="{role}" aria-label="{escape(alt)}"', 1).strip()
