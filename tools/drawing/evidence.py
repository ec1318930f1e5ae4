"""Chapters 17 to 19: ablations, parsing, and attention of trained models."""

import functools

import torch

import annotated
from annotated.figures import _look
from annotated.parsing import _parse_brackets, _spans

from .canvas import ROOT, Canvas, drawing, n, width

MAKES = "She makes my life more difficult."
IT = "A queen has read the long book because a hungry man sees it."
SOLD = "Tom sold his car because it was too old."


@functools.cache
def looked(model: str, sentence: str):
    """The attention maps of a model in results/ on one sentence."""
    return _look(annotated.load(ROOT / "results" / model), sentence)


def thick(weight: float, most: float) -> float:
    """How thick a weight is drawn: in steps, so that the last digits of a machine do not show."""
    return round(weight * 20) / 20 * most


def shown(token: str) -> str:
    """A token without the mark of pieces that continue a word."""
    return token.removeprefix("·").replace("<eos>", "eos")


@drawing("figure-3", 338, "Three heads from the verb makes")
def figure_3(c: Canvas) -> None:
    """The same sentence three times, once for each of three heads: She makes my life more difficult. Arcs lead from
    the verb makes to the words that it attends to, the thicker the larger the weight. In each row the thickest arcs
    end at more or at difficult, three and four words further on; a number stands below each word."""
    m = looked("tatoeba-cpu", MAKES)
    tokens = [shown(token) for token in m.source]
    query, gap = m.source.index("makes"), 9.0
    sizes = [max(width(token, 13), 20) for token in tokens]
    left = (360 - sum(sizes) - gap * (len(sizes) - 1)) / 2
    places = [left + sum(sizes[:i]) + gap * i + sizes[i] / 2 for i in range(len(sizes))]
    for row, (layer, head) in enumerate(((0, 2), (0, 3), (1, 2))):
        base = 80 + 112 * row
        c.text(8, base - 64, f"layer {layer + 1}, head {head + 1}", "small soft", anchor="start")
        weights = m.weights["encoder"][layer, head, query].tolist()
        for i, (token, weight) in enumerate(zip(tokens, weights)):
            if i != query and (w := thick(weight, 14)):
                arc(c, places[query], places[i], base - 10, w)
            kind = "strong q" if i == query else "k" if weight > 0.2 else "soft"
            c.text(places[i], base, token, f"small {kind}")
            c.text(places[i], base + 17, f"{weight:.1f}".removeprefix("0").replace(".0", "0"), "small soft")


def arc(c: Canvas, a: float, b: float, y: float, w: float) -> None:
    """A filled arc from a to b above y, w thick at its middle."""
    high, middle = 22 + 0.3 * abs(b - a), (a + b) / 2
    outer, inner = y - high - w, y - high + w
    d = f"M{n(a)} {n(y)}Q{n(middle)} {n(outer)} {n(b)} {n(y)}Q{n(middle)} {n(inner)} {n(a)} {n(y)}Z"
    c.line(d, "bar kbar")


@drawing("figure-4", 336, "Two heads from the pronoun it")
def figure_4(c: Canvas) -> None:
    """The words of A queen has read the long book because a hungry man sees it, one below the other. From it, near
    the end, two thick arcs lead up to book, six words before: one at the left, one at the right, each of another
    head."""
    m = looked("grammar-tiny", IT)
    tokens = [shown(token) for token in m.source]
    query, step = tokens.index("it"), 20
    heads = m.weights["encoder"][:, :, query]  # (N, h, S)
    best = heads[..., tokens.index("book")].flatten().topk(2).indices.tolist()
    for i, token in enumerate(tokens):
        kind = "strong q" if i == query else "k" if token == "book" else "soft"
        c.text(180, 44 + step * i, token, kind)
    for side, number in zip((-1, 1), best):
        layer, head = divmod(number, heads.shape[1])
        c.text(180 + side * 172, 16, f"layer {layer + 1}, head {head + 1}", "small soft", "start" if side < 0 else "end")
        for i, weight in enumerate(heads[layer, head].tolist()):
            if i != query and (w := thick(weight, 16)) > 0.8:
                edge = 180 + side * 36
                a, b = 44 + step * query, 44 + step * i
                far, middle = side * (34 + 0.5 * abs(a - b)), (a + b) / 2
                outer, inner = edge + far + w, edge + far - w
                d = f"M{n(edge)} {n(a)}Q{n(outer)} {n(middle)} {n(edge)} {n(b)}Q{n(inner)} {n(middle)} {n(edge)} {n(a)}Z"
                c.line(d, "bar kbar")


@drawing("figure-5", 262, "Two heads of different structure")
def figure_5(c: Canvas) -> None:
    """Tom sold his car because it was too old, in two panels of two columns, queries at the left and keys at the
    right; lines join them, the thicker the larger the weight. In the first panel most lines lead down, to a word
    further on; in the second they lead up, to the word before."""
    m = looked("tatoeba-cpu", SOLD)
    tokens = [shown(token) for token in m.source]
    for x, head in ((8, 0), (192, 3)):
        c.text(x, 14, f"layer 2, head {head + 1}", "small soft", anchor="start")
        for i, token in enumerate(tokens):
            y = 42 + 20 * i
            c.text(x, y, token, "small q", anchor="start")
            c.text(x + 160, y, token, "small k", anchor="end")
        for t, row in enumerate(m.weights["encoder"][1, head].tolist()):
            for s, weight in enumerate(row):
                if (w := thick(weight, 6)) > 0.8:
                    a, b = 42 + 20 * t, 42 + 20 * s
                    left, right = x + 58, x + 102
                    d = f"M{left} {n(a - w / 2)}L{right} {n(b - w / 2)}V{n(b + w / 2)}L{left} {n(a + w / 2)}Z"
                    c.line(d, "bar kbar")


@drawing("attention-hook", 296, "A hook recomputes the weights")
def attention_hook(c: Canvas) -> None:
    """At the left x and memory go into a box, multi-head attention, and its output leaves at the bottom: nothing else
    leaves it. Dashed lines branch off from both inputs before the box and lead to the right, to the hook, which makes
    queries and keys with the same W_Q and W_K and turns them into weights of shape B, h, T, S."""
    c.text(50, 14, "`x`", "q")
    c.text(8, 31, "`(B, T, d_model)`", "small soft", anchor="start")
    c.text(174, 14, "`memory`", "k", anchor="start")
    c.text(174, 31, "`(B, S, d_model)`", "small soft", anchor="start")
    box = c.box(14, 122, 150, 84, "attention", "of the model")
    c.wire((50, 42), (50, 122), hue="q")
    c.wire((214, 42), (214, 60), (134, 60), (134, 122), hue="k")
    c.wire((box.cx, box.bottom), (box.cx, 262), hue="o")
    c.text(box.cx, 276, "output", "o")
    c.wire((50, 78), (226, 78), (226, 122), hue="q", kind="dash")
    c.wire((134, 98), (302, 98), (302, 122), hue="k", kind="dash")
    c.dot(50, 78, "q")
    c.dot(134, 98, "k")
    hook = c.box(194, 122, 158, 84, "hook", "`W_Q`, `W_K`, softmax", kind="frame")
    c.wire((hook.cx, hook.bottom), (hook.cx, 244))
    c.text(hook.cx, 258, "weights")
    c.text(hook.cx, 276, "`(B, h, T, S)`", "small soft")
