"""Chapter 4: a trained model without some of its heads."""

import textwrap
from contextlib import ExitStack

import torch

import annotated
from annotated.decoding import greedy
from annotated.figures import without_head

from .canvas import ROOT, Canvas, drawing

SENTENCE = "Can you tell me what you saw yesterday?"
KINDS = {"encoder": ("encoder", 4), "decoder": ("decoder", 2), "cross": ("cross-attention", 2)}
OFF = [("decoder", layer, head) for layer in range(2) for head in range(4)]


def translated(sentence: str, off: list[tuple[str, int, int]]) -> str:
    """What the model in results/tatoeba-en-de writes greedily without some heads."""
    translator = annotated.load(ROOT / "results" / "tatoeba-en-de")
    with ExitStack() as stack:
        for head in off:
            stack.enter_context(without_head(translator.model, *head))
        (ids,) = greedy(translator.model, torch.tensor(translator.cut(sentence)))
    return translator.vocabulary.decode(ids)


@drawing("without-heads", 344, "A translation without some heads")
def without_heads(c: Canvas) -> None:
    """A grid of small squares, a row for each layer of each kind of attention and four heads in a row. Those of the
    encoder and those of the cross-attention are filled; the eight of the decoder's self-attention are crossed out.
    Below stand the translations of Can you tell me what you saw yesterday? with all heads and without the eight."""
    c.text(8, 14, f"*{SENTENCE}*", anchor="start")
    for i in range(4):
        c.text(206 + 36 * i, 42, f"{i + 1}", "small soft")
    c.text(8, 42, "heads", "small soft", anchor="start")
    rows = [(kind, name, layer) for kind, (name, layers) in KINDS.items() for layer in range(layers)]
    for i, (kind, name, layer) in enumerate(rows):
        y = 54 + 24 * i
        c.text(8, y + 9, f"{name}, layer {layer + 1}", "small", anchor="start")
        for head in range(4):
            x, off = 197 + 36 * head, (kind, layer, head) in OFF
            c.box(x, y, 18, 18, kind="empty" if off else "dark", round=3)
            if off:
                c.line(f"M{x + 3} {y + 3}L{x + 15} {y + 15}M{x + 15} {y + 3}L{x + 3} {y + 15}", "wire")
    for y, title, off in ((264, "with all heads", []), (310, "without those crossed out", OFF)):
        c.text(8, y, title, "small soft", anchor="start")
        said = textwrap.shorten(translated(SENTENCE, off), 52, placeholder=" …")
        c.text(8, y + 20, said, "small o" if off else "small", anchor="start")
