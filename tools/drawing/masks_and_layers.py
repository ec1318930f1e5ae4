"""Chapters 3 to 5: masks and what they hide, why two heads, one position through a layer."""

import math
from itertools import permutations

import torch

from annotated.attention import attention_weights
from annotated.masks import causal_mask, padding_mask

from .canvas import Canvas, drawing

SENTENCE = "the dog sees the cat".split()


@drawing("two-heads", 440, "One average against two")
def two_heads(c: Canvas) -> None:
    """The words the, dog, sees, the, cat, with the value 1 under dog and 5 under cat. One head with weights of one
    half on dog and cat returns 3. Of two heads, the first has all its weight on dog and returns 1, the second all
    on cat and returns 5. Side by side they are 1 and 5, and W_O, with the entries minus 1 and 1, makes 4 of them.
    For the cat sees the dog, one head returns 3 again, and two heads return minus 4."""
    left, wide = 10, 50
    values = {1: 1, 4: 5}
    for i, word in enumerate(SENTENCE):
        asks = word == "sees"
        c.box(left + wide * i, 10, wide, 26, word, kind="qfill" if asks else "empty", face="small", round=0)
        if i in values:
            c.box(left + wide * i, 40, wide, 24, str(values[i]), kind="vfill", round=0)
    c.text(left + 2.5 * wide, 52, "query", "small q")
    c.text(270, 52, "values", "small v", anchor="start")
    rows = (
        (104, "one head", {1: 0.5, 4: 0.5}, "3"),
        (182, "head 1", {1: 1}, "1"),
        (242, "head 2", {4: 1}, "5"),
    )
    for y, title, on, output in rows:
        c.text(left, y - 12, title, "strong", anchor="start")
        c.weights(left, y, [[on.get(i, 0) for i in range(len(SENTENCE))]], wide, digits=1, high=24)
        c.wire((left + 5 * wide + 4, y + 12), (300, y + 12), hue="v")
        c.box(300, y, 40, 24, output, kind="ofill", round=0)
    c.line("M10 150H350", "rule")
    both = c.box(70, 298, 40, 26, "1", kind="ofill", round=0)
    c.box(110, 298, 40, 26, "5", kind="ofill", round=0)
    c.wire((340, 194), (350, 194), (350, 284), (110, 284), (110, 298), hue="o")
    c.wire((340, 254), (350, 254), (350, 284), hue="o", head=False)
    c.text(60, both.cy, "concat", "small", anchor="end")
    c.text(166, both.cy, "×")
    c.box(182, 292, 40, 20, "-1", face="small", round=0)
    c.box(182, 312, 40, 20, "+1", face="small", round=0)
    c.text(202, 344, "`W_O`", "o")
    c.text(238, both.cy, "=")
    c.box(254, 298, 40, 26, "4", kind="ofill", round=0)
    c.text(302, both.cy, "= 5 - 1", "small", anchor="start")
    c.line("M10 362H350", "rule")
    c.text(left, 382, "the cat sees the dog:", "strong", anchor="start")
    c.text(left, 404, "one head ½·5 + ½·1 = 3 again", "", anchor="start")
    c.text(left, 426, "two heads 1 - 5 = -4", "", anchor="start")


@drawing("hide-a-key", 306, "Three ways to hide a key")
def hide_a_key(c: Canvas) -> None:
    """Keys dog, sleeps and pad with the scores 1, 0 and 2, and four rows of weights. Without the padding: .73 and
    .27, sum 1. Score set to 0: .58, .21 and .21 for the padding. Weight set to 0 after the softmax: .24, .09 and 0,
    sum .33. Score set to minus infinity: .73, .27 and 0, sum 1."""
    scores = torch.tensor([1.0, 0.0, 2.0])
    mask = torch.tensor([True, True, False])
    left, wide = 142, 56
    for i, word in enumerate(("dog", "sleeps", "pad")):
        c.box(left + wide * i, 10, wide, 26, word, kind="kfill" if mask[i] else "empty", face="small", round=0)
        c.box(left + wide * i, 36, wide, 26, f"{scores[i]:g}", round=0)
    c.text(left - 10, 23, "keys", "small k", anchor="end")
    c.text(left - 10, 49, "scores", "small", anchor="end")
    c.text(left + 1.5 * wide, 82, "weights", "small soft")
    c.text(336, 82, "sum", "small soft")
    rows = (
        ("without", "padding", scores[:2].softmax(-1)),
        ("score 0", "for padding", (scores * mask).softmax(-1)),
        ("weight 0", "afterwards", scores.softmax(-1) * mask),
        ("score -∞", "for padding", scores.masked_fill(~mask, -math.inf).softmax(-1)),
    )
    for i, (first, second, weights) in enumerate(rows):
        y = 96 + 52 * i
        c.lines(left - 10, y + 20, first, second, kind="small", anchor="end", step=15)
        c.weights(left, y, [weights.tolist()], wide, digits=2, high=40)
        if len(weights) == 2:
            c.box(left + 2 * wide, y, wide, 40, kind="empty", round=0)
        c.text(336, y + 20, f"{weights.sum():.2g}".removeprefix("0"), "strong")


@drawing("train-and-use", 330, "The mask in training, and none in use")
def train_and_use(c: Canvas) -> None:
    """Left, in training: the words bos, der, Hund, sieht as four queries and four keys at once, with a triangle of
    allowed pairs. Right, in use: four steps, one under the other; each has one query, the newest word, and keys up
    to its own. Every key is allowed, and those before the newest come from the cache."""
    words, cell = ["bos", "der", "Hund", "sieht"], 26
    c.text(8, 14, "in training", "strong", anchor="start")
    c.text(8, 34, "one pass", "small", anchor="start")
    left, top = 66, 96
    for i, word in enumerate(words):
        c.text(left - 6, top + cell * (i + 0.5), word, "small q", anchor="end")
    c.text(left + 2 * cell, top - 14, "keys", "small k")
    c.text(left - 6, top - 14, "queries", "small q", anchor="end")
    c.table(left, top, causal_mask(len(words)), cell)
    c.text(8, top + 4 * cell + 26, "dashed: hidden", "small soft", anchor="start")
    c.text(8, top + 4 * cell + 44, "by the mask", "small soft", anchor="start")
    c.line("M180 6V324", "rule")
    c.text(190, 14, "in use", "strong", anchor="start")
    c.text(190, 34, "step by step, no mask", "small", anchor="start")
    left = 242
    for t, word in enumerate(words):
        y = 58 + 54 * t
        c.text(left - 8, y + cell / 2, word, "small q", anchor="end")
        for s in range(t):
            c.box(left + cell * s, y, cell, cell, kind="kfill", round=0)
        area = c.box(left + cell * t, y, cell, cell, kind="kfill", round=0)
        c.shape("rect", "ring", x=area.x, y=area.y, width=cell, height=cell)
        c.text(left, y + cell + 12, "`(1, " + str(t + 1) + ")`", "small soft", anchor="start")
    c.text(190, 290, "framed: the new key", "small soft", anchor="start")
    c.text(190, 308, "others: from the cache", "small soft", anchor="start")


@drawing("add-and-norm", 312, "One position, added and normalised")
def add_and_norm(c: Canvas) -> None:
    """The vector x, 5 0 2 1, plus the sub-layer's output, 4 1 1 2, makes 9 1 3 3. Less the mean 4 it is 5 -3 -1 -1.
    Divided by the deviation 3 it is 1.7 -1 -0.33 -0.33. Each vector is drawn as four bars."""
    x = torch.tensor([5.0, 0.0, 2.0, 1.0])
    change = torch.tensor([4.0, 1.0, 1.0, 2.0])
    total = x + change
    centred = total - total.mean()
    normal = centred / total.std(correction=0)
    unit = 8.0

    def vector(left: float, line: float, values, title: str, hue: str = "", step: float = 24) -> None:
        c.text(left + 2 * step, line - 88, title, "small")
        c.line(f"M{left} {line}h{4 * step}", "rule")
        for i, value in enumerate(values.tolist()):
            high = unit * value
            c.bar(left + i * step + 5, line - max(high, 0), step - 10, max(abs(high), 0.8), hue)
            below = line + (12 if value >= 0 else -high + 12)
            c.text(left + (i + 0.5) * step, below, f"{value:.2g}".replace("0.", "."), "small")

    vector(6, 100, x, "`x`")
    c.text(114, 80, "+")
    vector(126, 100, change, "sub-layer's output")
    c.text(236, 80, "=")
    vector(250, 100, total, "sum")
    c.wire((298, 122), (298, 138), (56, 138), (56, 160))
    c.text(180, 150, "minus the mean, 4", "small")
    vector(8, 260, centred, "mean 0")
    c.wire((112, 240), (204, 240))
    c.text(158, 226, "÷ deviation, 3", "small")
    vector(214, 260, normal, "deviation 1", "o", step=34)


@drawing("masks", 362, "Two masks, and what they leave of the weights")
def masks(c: Canvas) -> None:
    """Three small tables, whose rows and columns are the words bos, der, Hund, sieht, die, Katze and padding. The
    padding mask hides the last column, the causal mask what lies right of the diagonal; a pair is allowed where both
    allow it.
    Below, a large table of weights with the same words: every hidden pair has 0, and each row sums to 1."""
    generator = torch.Generator().manual_seed(96)  # with which the rounded weights sum to 1, too
    words = "bos der Hund sieht die Katze pad".split()
    size, small, left, top, below = len(words), 13, 46, 52, 198
    keys = padding_mask(torch.tensor([[1, 4, 5, 6, 7, 8, 0]]))[0, 0].expand(size, size)
    both = keys & causal_mask(size)
    for i, word in enumerate(words):
        c.text(left - 5, top + small * (i + 0.5), word, "small q", anchor="end")
    tables = (
        ("padding", "padding_mask", keys),
        ("causal", "causal_mask", causal_mask(size)),
        ("allowed", "(T, T)", both),
    )
    for i, (title, shape, allowed) in enumerate(tables):
        area = c.table(left + 110 * i, top, allowed, small)
        c.text(area.cx, 12, title, "strong")
        c.text(area.cx, 28, f"`{shape}`", "small soft")
        c.text(area.left, top - 9, words[0], "small k", anchor="start")
        c.text(area.right, top - 9, words[-1], "small k", anchor="end")
    c.text(left + 55 + small * size / 2, 12, "and")
    c.wire((left + 110 + small * size + 2, area.cy), (area.left - 2, area.cy))
    c.wire((area.cx, area.bottom + 4), (area.cx, below - 24))
    c.text(left, below - 30, "weights", "strong", anchor="start")
    c.text(left + 68, below - 30, "`(T, T)`, each row sums to 1", "small soft", anchor="start")
    wide, high = 42, 22
    for i, word in enumerate(words):
        c.text(left + wide * (i + 0.5), below - 10, word, "small k")
        c.text(left - 5, below + high * (i + 0.5), word, "small q", anchor="end")
    Q, K = (torch.randn(size, 8, generator=generator) for _ in "QK")
    c.weights(left, below, attention_weights(Q, K, both).tolist(), wide, digits=2, high=high)


@drawing("small-writer", 356, "What the small model reads and predicts")
def small_writer(c: Canvas) -> None:
    """Six columns. At the top the words read, bos, der, Hund, sieht, die, Katze, and a vector x below each; at the
    bottom the next words, der, Hund, sieht, die, Katze, eos. Three of them are guesses: der, 1 of 3, sieht and die, 1
    of 2; the other three are certain. For the column of sieht the way is drawn: lines from the vectors of bos to
    sieht meet in what attention found, dashed ones come from die and Katze too; beside the column's own x, this passes
    through a linear layer to the next word, die. That word and the die that is read are framed."""
    words = "bos der Hund sieht die Katze eos".split()
    lines = [
        f"bos {subject} {verb} {other.replace('der', 'den')} eos".split()
        for subject, other in permutations(("der Hund", "die Katze", "das Pferd"), 2)
        for verb in ("sieht", "hört")
    ]
    chances = []
    for t in range(6):
        ways = len({line[t + 1] for line in lines if line[: t + 1] == words[: t + 1]})
        chances.append("certain" if ways == 1 else f"1 of {ways}")
    centres, at = [36 + 57 * i for i in range(6)], 3
    c.text(8, 12, "reads", "small soft", anchor="start")
    for centre, word in zip(centres, words):
        c.box(centre - 25, 24, 50, 24, word, face="small", round=3)
        c.block(centre - 16, 60, 1, 4, 8, high=12)
        c.wire((centre, 48), (centre, 60), head=False)
    c.text(centres[-1] + 24, 66, "`x`", "small")
    own, found, top = centres[at] - 20, centres[at] + 20, 146
    for i, centre in enumerate(centres):
        c.wire((centre, 72), (found, top - 2), hue="v", kind="dash" if i > at else "", head=i == at)
    c.wire((centres[at] - 10, 72), (own, top))
    c.text(8, 118, "attention", anchor="start")
    c.block(own - 20, top, 1, 4, 10, high=16)
    c.block(found - 20, top, 1, 4, 10, "ofill", high=16)
    c.text(own - 26, top + 8, "its own `x`", "small", anchor="end")
    c.text(found + 26, top + 8, "found", "small o", anchor="start")
    c.wire((centres[at], top + 16), (centres[at], top + 36))
    box = c.box(centres[at] - 52, top + 36, 104, 26, "linear layer")
    c.text(8, 228, "predicts", "small soft", anchor="start")
    c.wire((box.cx, box.bottom), (box.cx, 240))
    for centre, word, chance in zip(centres, words[1:], chances):
        guessed = chance != "certain"
        c.box(centre - 25, 240, 50, 24, word, kind="dark" if guessed else "box", face="small", round=3)
        c.text(centre, 280, chance, "small" if guessed else "small soft")
    for column, y in ((at + 1, 24), (at, 240)):
        c.shape("rect", "ring", x=centres[column] - 25, y=y, width=50, height=24, rx=3)
    c.text(8, 306, "grey: a guess, for whoever reads from left to right", "small soft", anchor="start")
    c.text(8, 324, "dashed: only without the mask", "small soft", anchor="start")
    c.text(8, 342, "framed: a guess, and where its answer stands", "small soft", anchor="start")


def short(number) -> str:
    """One decimal, without the 0 before the point."""
    return "0" if abs(number) < 0.05 else f"{float(number):.1f}".replace("0.", ".")


@drawing("ring-task", 352, "A word of the ring wants both neighbours")
def ring_task(c: Canvas) -> None:
    """Eight words, 1 to 8, in a circle. Arrows lead to word 3: from word 4, the next, marked plus, and from word 2, the
    previous, marked minus. Below, the vectors of the words 2, 3 and 4, each of 8 numbers and then 8 marks; the mark
    at the word's own place is filled and 2, the others are 0. In the last row the 8 numbers wanted from word 3, those
    of word 4 minus those of word 2."""
    numbers = torch.randn(8, 8, generator=torch.Generator().manual_seed(4)).round(decimals=1)
    wanted = numbers.roll(-1, 0) - numbers.roll(1, 0)
    marks = 2 * torch.eye(8, dtype=torch.long)
    middle, radius, word = (96, 96), 72, 2  # counted from 0, as the third
    places = []
    for i in range(8):
        angle = math.pi * (i / 4 - 0.5)
        places.append((middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle)))
    for i, (x, y) in enumerate(places):
        c.box(x - 17, y - 12, 34, 24, f"{i + 1}", kind="ofill" if i == word else "box", round=4)
    x, y = places[word]
    for sign, up in (("minus", -1), ("plus", 1)):
        near, _ = places[word + up]
        c.wire((near + 6, y + up * 38), (x, y + up * 13))
        c.text(x - 20, y + up * 24, sign, "small", anchor="end")
    c.lines(*middle, "eight words", "in a ring", kind="small soft", step=16)
    said = ("word 3 should return", "the numbers of word 4", "minus those of word 2")
    c.lines(196, y, *said, kind="small", anchor="start")
    left, wide, narrow, high = 24, 28, 13, 22
    edge = left + 8 * wide
    c.text(8, 196, "word", "small soft", anchor="start")
    c.text(left + 4 * wide, 196, "8 numbers", "small soft")
    c.text(edge + 4 * narrow, 196, "8 marks", "small soft")
    for row, i in enumerate((word - 1, word, word + 1)):
        y = 208 + 26 * row
        c.text(8, y + high / 2, f"{i + 1}", anchor="start")
        for j in range(8):
            c.box(left + wide * j, y, wide, high, short(numbers[i, j]), kind="block", face="small", round=0)
            own = "dark" if marks[i, j] else "empty"
            c.box(edge + narrow * j, y, narrow, high, f"{marks[i, j]}", kind=own, face="small", round=0)
    c.text(8, 302, "wanted from word 3, as its first 8 outputs", "small o", anchor="start")
    for j, number in enumerate(wanted[word].tolist()):
        c.box(left + wide * j, 316, wide, high, short(number), kind="ofill", face="small", round=0)
