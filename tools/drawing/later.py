"""Chapters 13, 20 and 21: the command line, what came after the paper, and published weights."""

import math

import torch

from annotated.interop import _feature_axis, _feature_order

from .canvas import SMALL, Canvas, drawing, n, width

SENTENCE = "the dog sees the cat".split()


@drawing("two-questions", 316, "Two ways to ask about a sentence")
def two_questions(c: Canvas) -> None:
    """The sentence the dog sees the cat, twice. Above, a language model: from each token an arrow leads down to the
    next one, six predictions, each with its probability. Below, a masked-word model: sees is replaced by a blank,
    lines lead to the blank from all words on both sides, and one arrow leads down to the only prediction, sees."""
    place = [30 + 60 * i for i in range(6)]
    c.text(8, 14, "language model", "strong", anchor="start")
    read, right = ["bos", *SENTENCE], [*SENTENCE, "eos"]
    for x, word, answer, p in zip(place, read, right, ("1/2", "1/4", "1/2", "1/2", "1/2", "1")):
        c.text(x, 44, word)
        c.wire((x, 56), (x, 88), hue="o")
        c.text(x, 100, answer, "o")
        c.text(x, 120, p, "small soft")
    c.line("M8 146H352", "rule")
    c.text(8, 168, "masked-word model", "strong", anchor="start")
    hidden = place[3]
    for x, word in zip(place, read):
        if x == hidden:
            c.box(x - 20, 188, 40, 22, kind="empty", round=3)
        else:
            c.text(x, 199, word)
            c.wire((x, 212), (x, 232), (hidden, 232), head=False)
    c.wire((hidden, 210), (hidden, 268), hue="o")
    c.text(hidden, 282, "sees", "o")
    c.text(hidden, 302, "1/2", "small soft")


def column(c: Canvas, x: float, base: float, parts: list[tuple[str, ...]]) -> float:
    """Boxes from the bottom up on one wire; "+" closes the branch that "from" opened. The last height."""
    y, opened, wide, lane = base, base, 128, 12
    for part in parts:
        if part == ("from",):
            opened = y - 10
            c.wire((x, y), (x, opened), head=False)
            c.dot(x, opened)
            y = opened
        elif part == ("+",):
            c.wire((x, y), (x, y - 10), head=False)
            c.sign(x, y - 19, "+")
            side = x - wide / 2 - lane
            c.wire((x, opened), (side, opened), (side, y - 19), (x - 9, y - 19))
            y -= 28
        else:
            high = 18 * len(part) + 10
            c.wire((x, y), (x, y - 14))
            c.box(x - wide / 2, y - 14 - high, wide, high, *part, face="small")
            y -= 14 + high
    return y


@drawing("layer-then-now", 422, "A layer in 2017 and today")
def layer_then_now(c: Canvas) -> None:
    """Two columns of boxes, each a layer, read from the bottom. At the left, 2017: positions are added to the words,
    then attention, with a key and a value for each head, add, LayerNorm, two matrices with ReLU, add, LayerNorm. At
    the right, today: RMSNorm, attention with queries and keys rotated and keys and values for groups of heads, add,
    RMSNorm, a gated network of three matrices, add."""
    left, right, base = 98, 278, 352
    c.text(left, 14, "2017", "strong")
    c.text(right, 14, "today", "strong")
    then = [("from",), ("attention", "K, V: each head"), ("+",), ("LayerNorm",),
            ("from",), ("W_{1}, ReLU, W_{2}",), ("+",), ("LayerNorm",)]
    now = [("from",), ("RMSNorm",), ("attention", "Q, K rotated", "K, V: groups"), ("+",),
           ("from",), ("RMSNorm",), ("W_{1}, gate, W_{2}",), ("+",)]
    for x, parts in ((left, then), (right, now)):
        top = column(c, x, base, parts)
        c.wire((x, top), (x, 28))
    c.sign(left, base + 9, "+")
    c.text(left + 20, base + 9, "positions", "small", anchor="start")
    c.wire((left, 398), (left, base + 18), head=False)
    c.wire((right, 398), (right, base), head=False)
    for x in (left, right):
        c.text(x, 408, "words", "small")


@drawing("rotary-dials", 208, "Rotated queries and keys")
def rotary_dials(c: Canvas) -> None:
    """Two dials with two hands each. At the left the query stands at position 2 and the key at position 0, at the
    right at positions 5 and 3. All hands differ, but the angle between the two hands of a dial is the same."""
    r, cy = 66, 92
    for cx, query, key in ((94, 2, 0), (266, 5, 3)):
        c.shape("circle", "box", cx=cx, cy=cy, r=r)
        for position, hue in ((key, "k"), (query, "q")):
            c.wire((cx, cy), (cx + (r - 6) * math.cos(position), cy - (r - 6) * math.sin(position)), hue=hue)
        a, b = ((cx + 24 * math.cos(p), cy - 24 * math.sin(p)) for p in (key, query))
        c.line(f"M{n(a[0])} {n(a[1])}A24 24 0 0 0 {n(b[0])} {n(b[1])}", "wire o")
        c.text(cx - 6, 182, f"query at {query},", "small q", anchor="end")
        c.text(cx, 182, f"key at {key}", "small k", anchor="start")
    c.text(180, 200, "the same angle between them", "small o")
