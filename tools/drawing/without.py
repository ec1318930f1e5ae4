"""Chapters 4 and 19: trained models without some of their heads."""

import textwrap
from contextlib import ExitStack

import torch

import annotated
from annotated.decoding import greedy
from annotated.figures import look, without_head

from .canvas import ROOT, Canvas, drawing, width
from .heads_and_trees import arc, shown, thick

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


QUESTION = "Can the old kings see the lamp?"
SUBJECT = ("encoder", 1, 0)  # the head that attends from can to its subject, as chapter 19 measures


@drawing("without-subject-head", 252, "A translation with and without the head of the subject")
def without_subject_head(c: Canvas) -> None:
    """The words of Can the old kings see the lamp? with the weights of head 1 of layer 2 below them; one thick arc
    leads from Can to kings. Below stand two translations that differ in the first word: with all heads Können, in a
    filled box, and without this head Kann, in a dashed one."""
    grammar = annotated.load(ROOT / "results" / "grammar-tiny")
    kind, layer, head = SUBJECT
    whole = look(grammar, QUESTION)
    with without_head(grammar.model, *SUBJECT):
        cut = look(grammar, QUESTION)
    name, tokens, gap, base = f"head {layer + 1}.{head + 1}", [shown(token) for token in whole.source], 9.0, 88
    query = tokens.index("Can")
    sizes = [max(width(token, 12.5, "small"), 22) for token in tokens]
    left = (360 - sum(sizes) - gap * (len(sizes) - 1)) / 2
    places = [left + sum(sizes[:i]) + gap * i + sizes[i] / 2 for i in range(len(sizes))]
    c.text(8, 14, f"{name}, from *Can*", "small soft", anchor="start")
    for i, weight in enumerate(whole.weights[kind][layer, head, query].tolist()):
        if i != query and (w := thick(weight, 14)):
            arc(c, places[query], places[i], base - 10, w)
        hue = "strong q" if i == query else "k" if weight > 0.2 else "soft"
        c.text(places[i], base, tokens[i], f"small {hue}")
        c.text(places[i], base + 17, f"{weight:.2f}".removeprefix("0").replace(".00", "0"), "small soft")
    for y, title, said, other, box in (
        (142, "with all heads: a plural verb", whole, cut, "ofill"),
        (200, f"without {name}: a singular verb", cut, whole, "empty"),
    ):
        c.text(8, y, title, "small soft", anchor="start")
        x = 8.0
        for word, instead in zip(said.written[:-1], other.written):  # all but eos
            wide = width(word, 12.5, "small")
            if word != instead:
                wide += 12
                c.box(x, y + 14, wide, 26, word, kind=box, face="small", round=4)
            else:
                c.text(x, y + 27, word, "small", anchor="start")
            x += wide + 7
