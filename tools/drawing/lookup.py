"""Chapters 1 and 2: what attention looks up, how far apart its scores lie, and what waits in a recurrent network."""

import re

import torch

from .canvas import ROOT, Canvas, drawing, n

WORDS = "the dog sees the cat".split()


@drawing("scores-spread", 252, "Scores with and without the root")
def scores_spread(c: Canvas) -> None:
    """One random query of width 64 against five random keys, named the, dog, sees, the, cat. On the left the scores
    are long bars to both sides, and one of the five weights is nearly 1. On the right the same scores divided by
    the root of 64 are short bars, and all five weights differ from 0."""
    d_k = 64
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(d_k, generator=generator)
    scores = torch.randn(len(WORDS), d_k, generator=generator) @ q
    longest = scores.abs().max().item()
    top, high = 66, 34
    for j, word in enumerate(WORDS):
        c.text(8, top + high * (j + 0.5), word, "k", anchor="start")
    for x, title, given in ((54, "`q · k`", scores), (212, "`q · k` ÷ √`d_k`", scores / d_k**0.5)):
        middle, unit = x + 44, 40 / longest
        c.text(x + 71, 14, title)
        c.text(middle, 44, "scores", "small soft")
        c.text(x + 118, 44, "weights", "small soft")
        for j, score in enumerate(given.tolist()):
            length = max(abs(unit * score), 1)
            c.bar(middle if score > 0 else middle - length, top + high * j + 8, length, high - 16, "k")
        c.line(f"M{middle} {top}v{high * len(WORDS)}", "rule")
        c.weights(x + 97, top, [[w] for w in given.softmax(0).tolist()], 42, digits=2, high=high)
    c.line(f"M204 4V{top + high * len(WORDS)}", "rule")


def desk() -> dict:
    """The things, keys and cues of chapter 1, as the chapter has them."""
    text = (ROOT / "book" / "01-why-attention.md").read_text(encoding="utf-8")
    given = {"torch": torch}
    exec(re.search(r"^things = .*?(?=^```)", text, re.M | re.S)[0], given)
    return given


@drawing("cues", 268, "A gaze as a lookup")
def cues(c: Canvas) -> None:
    """A query of three numbers, for reading, drinking and hearing, stands above a table. Four things are its rows,
    a newspaper, a cup, a phone and a pen; each has a key of three numbers, a weight and a value. The newspaper has
    most of the weight, the phone a little. The query is marked as the voluntary cue, the keys as the involuntary
    cues, the values as what the senses get."""
    given = desk()
    query, keys = given["cues"]["wants to read"], given["K"]
    weights = (keys @ query).softmax(0).tolist()
    left, cell, high, top = 98, 40, 28, 104
    for i, name in enumerate(("read", "drink", "hear")):
        c.text(left + cell * (i + 0.5), 14, name, "small soft")
    c.text(8, 41, "query", "q strong", anchor="start")
    c.text(236, 41, "voluntary cue", "small q", anchor="start")
    for i, number in enumerate(query.tolist()):
        c.box(left + cell * i, 27, cell, high, f"{number:g}", kind="qfill", face="small", round=0)
    c.text(left + 1.5 * cell, top - 14, "keys", "k strong")
    c.text(253, top - 14, "weights", "small")
    c.text(290, top - 14, "values", "v strong", anchor="start")
    for j, (thing, key) in enumerate(zip(given["things"], keys.tolist())):
        y = top + high * j
        c.text(8, y + high / 2, thing, anchor="start")
        for i, number in enumerate(key):
            c.box(left + cell * i, y, cell, high, f"{number:g}", kind="kfill", face="small", round=0)
        c.text(290, y + high / 2, ("news", "a sip", "a call", "a note")[j], "small v", anchor="start")
    c.weights(232, top, [[w] for w in weights], 42, digits=2, high=high)
    below = top + 4 * high
    c.lines(left + 1.5 * cell, below + 26, "involuntary", "cues", kind="small k")
    c.lines(316, below + 26, "what the", "senses get", kind="small v")


@drawing("recurrent-attention", 262, "The recurrent translator with attention")
def recurrent_attention(c: Canvas) -> None:
    """Five encoder cells read the dog sees the cat in both directions, and each leaves a vector; together they are
    the memory. The decoder has read bos, der and Hund. Its state is the query; five weights lie under the memory,
    the greatest under sees. Their average of the memory, the context, joins the state, and the next word, sieht,
    is written."""
    pitch, wide = 70, 48
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 0.5]).softmax(0).tolist()
    c.box(11, 107, 338, 30, kind="frame", round=4)  # the query meets all of them, and the context is made of all
    for i, word in enumerate(WORDS):
        x = 16 + pitch * i
        middle = x + wide / 2
        c.text(middle, 12, word)
        c.box(x, 26, wide, 30, "GRU", face="small")
        if i:
            c.wire((x - pitch + wide, 35), (x, 35))
            c.wire((x, 47), (x - pitch + wide, 47))
        c.wire((middle, 56), (middle, 74), hue="k")
        c.block(x, 74, 1, 3, 16, "kfill")
        c.weights(x, 112, [[weights[i]]], wide, high=20)
        c.wire((middle, 90), (middle, 112), hue="k")
    c.text(75, 101, "memory", "small k")
    c.text(16, 149, "weights", "small soft", anchor="start")
    for i, word in enumerate(["bos", *"der Hund".split()]):
        x = 16 + pitch * i
        c.box(x, 194, wide, 30, "GRU", face="small")
        c.wire((x + wide / 2, 238), (x + wide / 2, 224))
        c.text(x + wide / 2, 248, word)
        if i:
            c.wire((x - pitch + wide, 209), (x, 209))
    c.wire((180, 194), (180, 137), hue="q")
    c.text(173, 172, "query *s*_{t}", "small q", anchor="end")
    c.wire((349, 122), (356, 122), (356, 166), (316, 166), hue="o")
    context = c.block(268, 158, 1, 3, 16, "ofill")
    c.text(260, 166, "context *c*_{t}", "small o", anchor="end")
    c.wire((292, context.bottom), (292, 194), hue="o")
    c.wire((204, 209), (246, 209))
    c.box(246, 194, 92, 30, "`W_C`, `W_O`", face="small")
    c.wire((292, 224), (292, 238))
    c.text(292, 248, "sieht")


@drawing("waiting", 366, "Six words, read in six steps and in one")
def waiting(c: Canvas) -> None:
    """Time runs to the right; I know that the cat sees stands twice, a word below the other, and a box is a word's
    vector, with the step that computes it. Above, a recurrent network: an arrow leads from each box to the next, and
    the six boxes form a staircase over the steps 1 to 6. Below, self-attention: lines join every word to every box,
    and all six boxes stand in step 1."""
    words = "I know that the cat sees".split()
    left, pitch, high, wide, tall = 58, 46, 23, 26, 17

    def panel(top, title, said, waits) -> None:
        c.text(8, top, title, "strong", anchor="start")
        c.text(352, top, said, anchor="end")
        row = [top + 28 + high * i for i in range(len(words))]
        column = [left + pitch * (i + 1 if waits else 1) for i in range(len(words))]
        for j, word in enumerate(words):
            c.text(8, row[j], word, anchor="start")
            c.dot(left, row[j])
            for i in [j] if waits else range(len(words)):
                c.line(f"M{left} {row[j]}L{column[i] - wide / 2} {row[i]}", "rule")
        for i, (x, y) in enumerate(zip(column, row)):
            step = str(i + 1 if waits else 1)
            c.box(x - wide / 2, y - tall / 2, wide, tall, step, kind="block", face="small", round=0)
            if waits and i:
                c.wire((x - pitch + wide / 2, y - high), (x, y - high), (x, y - tall / 2))

    panel(12, "recurrent network", "6 steps", waits=True)
    panel(186, "self-attention", "1 step", waits=False)
    c.wire((left, 355), (352, 355))
    c.text(8, 355, "time", "small soft", anchor="start")


PLANE = {  # as the explorer of chapter 2 begins, book/_static/explorers/lookup.js
    "q": [[1.6, 1.2]],
    "k": [[2.0, 0.4], [0.2, 2.2], [-1.8, -1.0]],
    "v": [[-2.0, -1.6], [0.2, 2.0], [2.2, -1.2]],
}


@drawing("lookup-plane", 206, "A lookup in the plane")
def lookup_plane(c: Canvas) -> None:
    """Two planes. At the left a query and three keys are arrows from the middle; the query points between the first
    key and the second, and the third key points away from it. At the right three values are points; lines as thick
    as the weights lead from them to the output, which lies between the first value and the second, nearer to the
    first, and far from the third."""
    side, unit = 170, 26
    q, k, v = (torch.tensor(PLANE[name]) for name in "qkv")
    weights = (q @ k.T / 2**0.5).softmax(-1)
    middles = {"q": (side / 2, 20 + side / 2), "v": (362 - side / 2 - 4, 20 + side / 2)}
    for kind, title in (("q", "query and keys"), ("v", "values and output")):
        x, y = middles[kind]
        c.text(x - side / 2, 8, title, anchor="start")
        c.box(x - side / 2, y - side / 2, side, side)
        c.line(f"M{x - side / 2} {y}h{side}M{x} {y - side / 2}v{side}", "rule")

    def at(kind, point):
        x, y = middles["v" if kind in "vo" else "q"]
        return x + unit * point[0], y - unit * point[1]

    for kind, points in (("k", k), ("q", q)):
        for i, point in enumerate(points.tolist(), 1):
            x, y = at(kind, point)
            c.wire(middles["q"], (x, y), hue=kind)
            c.text(x, y - 10 if point[1] > 0 else y + 11, "q" if kind == "q" else f"k_{{{i}}}", f"{kind} strong")
    output = at("o", (weights @ v)[0].tolist())
    for i, (point, weight) in enumerate(zip(v.tolist(), weights[0].tolist()), 1):
        x, y = at("v", point)
        long = ((output[0] - x) ** 2 + (output[1] - y) ** 2) ** 0.5
        half = (0.5 + 7 * weight) / 2 / long  # a line as thick as the weight is a shape: drawings name no widths
        aside = half * (y - output[1]), half * (output[0] - x)
        round_it = (((x, y), 1), (output, 1), (output, -1), ((x, y), -1))
        corners = [(px + s * aside[0], py + s * aside[1]) for (px, py), s in round_it]
        c.shape("path", "obar", d="M" + "L".join(f"{n(px)} {n(py)}" for px, py in corners) + "Z")
        c.dot(x, y, "v", 6)
        c.text(x, y - 13 if point[1] > 0 else y + 15, f"v_{{{i}}}", "v strong")
    c.dot(*output, "o", 6)
    c.text(output[0] + 8, output[1] + 19, "output", "o strong", anchor="start")
