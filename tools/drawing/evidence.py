"""Chapters 12, 15 and 16: what is counted, drawn and compared."""

import json
import math
import random

from rows import complete

from annotated.comparison import multiplications
from annotated.gpu import products
from annotated.transformer import BASE, BIG
from annotated.variations import TABLE_3, _mean_interval

from .canvas import ROOT, Canvas, drawing

PAPER = json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- chapter 12


@drawing("way-to-a-score", 336, "From weights to a score")
def way_to_a_score(c: Canvas) -> None:
    """Boxes from the top: weights, search, output. Beside the output stands the reference. Both are cut into words,
    their n-grams are counted, and BLEU comes out. A dashed line under the output parts the choices that make other
    outputs from those that compare the same outputs otherwise."""
    for y, name, choices in ((8, "weights", "mean of 5, or the last"), (66, "search", "beam and alpha, or greedy")):
        c.box(8, y, 118, 36, name)
        c.text(138, y + 18, choices, "small", anchor="start")
        c.wire((67, y + 36), (67, y + 58))
    c.box(8, 124, 118, 36, "output", kind="ofill")
    c.box(234, 124, 118, 36, "reference", kind="block")
    c.text(293, 108, "one, or several", "small")
    c.line("M8 178H352", "wire dash")
    c.box(8, 196, 344, 36, "cut into words")
    c.wire((67, 160), (67, 196))
    c.wire((293, 160), (293, 196))
    c.text(180, 246, "`13a`, `intl` or spaces; with case or without", "small")
    c.wire((180, 256), (180, 272))
    c.box(110, 272, 140, 36, "count n-grams")
    c.wire((250, 290), (284, 290))
    c.text(318, 290, "BLEU", "strong")
    c.text(8, 326, "above the dashed line: other outputs", "small soft", anchor="start")


RIGHT_A, RIGHT_B = (1, 1, 1, 0, 1, 1, 1, 0, 1, 1), (1, 0, 1, 0, 1, 1, 0, 0, 1, 1)  # as in chapter 12


@drawing("bootstrap-draw", 344, "A test set drawn anew, for both systems")
def bootstrap_draw(c: Canvas) -> None:
    """Ten numbered sentences in a row; under them a filled cell where system a is right, an empty one where it is
    wrong, and a second row for system b. Below, the same for two sets of ten sentences drawn from the ten: some
    numbers come twice or more, some are missing. At the right of each set stands the difference of the two systems."""
    chance = random.Random(0)
    sets = [("the test set", list(range(10)))]
    sets += [(f"draw {i}", [chance.randrange(10) for _ in range(10)]) for i in (1, 2)]
    cell, left = 27, 28
    for i, (name, chosen) in enumerate(sets):
        y = 12 + 114 * i
        c.text(8, y, name, "strong", anchor="start")
        if i:
            c.text(352, y, "with replacement", "small soft", anchor="end")
        for j, one in enumerate(chosen):
            c.box(left + cell * j, y + 14, cell - 3, 24, str(one + 1), kind="block", face="small", round=3)
            for row, right in enumerate((RIGHT_A, RIGHT_B)):
                kind = ("ofill" if row == 0 else "dark") if right[one] else "empty"
                c.block(left + cell * j, y + 44 + 21 * row, 1, 1, cell - 3, kind, high=18)
        for row, who in enumerate("ab"):
            c.text(14, y + 53 + 21 * row, f"*{who}*", "small")
        difference = sum(RIGHT_A[one] - RIGHT_B[one] for one in chosen) / 10
        c.text(left + 10 * cell + 28, y + 64, f"{difference:+.1f}", "strong")


@drawing("guided-or-free", 300, "After the reference's words, or after its own")
def guided_or_free(c: Canvas) -> None:
    """Two panels. Above, teacher forcing: the model reads bos, der, Hund, sieht, die of the reference and writes der,
    Mann, sieht, die, Katze; only Mann is wrong. Below, in use: it reads its own words, so after Mann it goes on with
    schläft and ends, and the rest of the sentence is lost."""
    reference = ["bos", "der", "Hund", "sieht", "die", "Katze"]
    guided, free = ["der", "Mann", "sieht", "die", "Katze"], ["der", "Mann", "schläft", "eos"]
    pitch, wide = 69, 62
    for y, title, reads, writes in (
        (14, "teacher forcing: reads the reference", reference, guided),
        (164, "in use: reads its own words", ["bos", *free], free),
    ):
        c.text(8, y, title, "strong", anchor="start")
        for i, word in enumerate(writes):
            x = 8 + pitch * i
            wrong = i + 1 >= len(reference) or word != reference[i + 1]
            c.box(x, y + 20, wide, 28, word, kind="empty" if wrong else "ofill", face="small", round=4)
            c.wire((x + wide / 2, y + 80), (x + wide / 2, y + 49))
            c.box(x, y + 80, wide, 28, reads[i], kind="block", face="small", round=4)
            if reads[0] == "bos" and writes is free and i:
                c.wire((x - pitch + wide - 12, y + 48), (x + 12, y + 79), hue="o")
    c.text(8, 136, "filled: right; dashed: wrong", "small soft", anchor="start")
    c.text(8, 288, "a wrong word is read by all later positions", "small soft", anchor="start")


# ---------------------------------------------------------------- chapter 16


@drawing("three-words", 330, "What grows with the length, and what with the width")
def three_words(c: Canvas) -> None:
    """Above, self-attention: queries, three rows of two, meet keys, two rows of three, in nine scores; the scores meet
    values, three rows of two, in an output of three rows of two. Below, recurrence: at each of three words, a word of
    two numbers meets a matrix of two by two, and the state meets another."""
    n, d, cell = 3, 2, 20
    c.text(8, 14, "self-attention", "strong", anchor="start")
    c.text(352, 14, "2 · 3 · 3 · 2 = 36 products", "small", anchor="end")
    q = c.block(12, 46, n, d, cell, "qfill")
    c.text(64, 76, "·")
    k = c.block(74, 56, d, n, cell, "kfill")
    c.text(147, 76, "=")
    s = c.block(160, 46, n, n, cell, "block")
    c.text(231, 76, "·")
    v = c.block(242, 46, n, d, cell, "vfill")
    c.text(294, 76, "=")
    o = c.block(306, 46, n, d, cell, "ofill")
    sizes = ((q, "n × d", "q"), (k, "d × n", "k"), (s, "n × n", ""), (v, "n × d", "v"), (o, "n × d", "o"))
    for area, words, hue in sizes:
        c.text(area.cx, 122, words, f"small {hue}".strip())
    c.line("M8 144H352", "rule")
    c.text(8, 166, "recurrence", "strong", anchor="start")
    c.text(352, 166, "3 · (2 · 2 + 2 · 2) = 24 products", "small", anchor="end")
    for i in range(n):
        x = 12 + 118 * i
        c.block(x, 196, 1, d, cell, "block")
        c.text(x + 47, 206, "·", "")
        c.block(x + 54, 186, d, d, cell, "dark")
        c.block(x, 246, 1, d, cell, "ofill")
        c.text(x + 47, 256, "·", "")
        c.block(x + 54, 236, d, d, cell, "dark")
        if i:
            c.wire((x - 24, 256), (x, 256), hue="o")
        c.text(x + 50, 294, f"word {i + 1}", "small soft")
    c.text(180, 318, "matrices of d × d, at each of n words", "small")


@drawing("four-layers", 512, "Four kinds of layer, and the way from the first word to the last")
def four_layers(c: Canvas) -> None:
    """Four panels of eight positions, inputs below and outputs above; thin lines are the connections, a thick line is
    a shortest way from the first position to the last. Self-attention: every input to every output, one layer, one
    step. Recurrent: a chain through all eight positions. Convolutions of three places with dilations 1, 2 and 4:
    three layers. Restricted self-attention with r = 5: four layers of two steps to the right."""
    n, left, pitch = 8, 24, 44.5
    place = [left + pitch * i for i in range(n)]

    def layers(y, title, said, reach, way):
        """reach: for each layer the distances that it connects; way: positions of the lit path, layer by layer."""
        c.text(8, y, title, "strong", anchor="start")
        c.text(352, y, said, "small", anchor="end")
        high = 30 if len(reach) > 1 else 44
        base = y + 22 + high * len(reach)
        for level, distances in enumerate(reach):
            low, up = base - high * level, base - high * (level + 1)
            thin = [f"M{place[i]} {low}L{place[i + j]} {up}" for i in range(n) for j in distances if 0 <= i + j < n]
            c.line("".join(thin), "rule")
        for level, (a, b) in enumerate(zip(way, way[1:])):
            ends = (place[a], base - high * level), (place[b], base - high * (level + 1))
            c.wire(*ends, hue="o", kind="thick", head=False)
        for level in range(len(reach) + 1):
            for x in place:
                c.dot(x, base - high * level, r=3.5)
        return base

    y = layers(14, "self-attention", "path 1", [range(-n, n)], [0, n - 1])
    top = y + 34
    c.text(8, top, "recurrent", "strong", anchor="start")
    c.text(352, top, f"path {n}", "small", anchor="end")
    up, low = top + 22, top + 66
    for x in place:
        c.wire((x, low), (x, up + 5), head=False)
    c.wire((place[0], low), (place[0], up), hue="o", kind="thick", head=False)
    for a, b in zip(place, place[1:]):
        c.wire((a + 4, up), (b - 4, up), hue="o", kind="thick", head=False)
    for x in place:
        c.dot(x, up, r=3.5)
        c.dot(x, low, r=3.5)
    y = layers(low + 34, "convolutions, k = 3, dilated", "path 3", [(-1, 0, 1), (-2, 0, 2), (-4, 0, 4)], [0, 1, 3, 7])
    layers(y + 34, "restricted, r = 5", "path 4", [range(-2, 3)] * 4, [0, 2, 4, 6, 7])


@drawing("layer-costs", 302, "What a layer costs, over the length of the sentence")
def layer_costs(c: Canvas) -> None:
    """The operations of five layers of width 512 over the length of the sentence, both on logarithmic axes. The line of
    self-attention rises twice as steeply as the others. It begins below the recurrent layer and the convolutions and
    crosses them at the rings, the recurrent layer last, at 2048 words. Restricted self-attention is the lowest
    from about a dozen words on; below that, self-attention is."""
    d, k, r, first, last = 512, 3, 9, 1, 15
    left, right, top, base, low, high = 40, 246, 26, 262, 3, 12.5
    looks = {
        "self-attention": ("wire o thick", "self-attention", 0), "recurrent": ("wire hand", "recurrent", -3),
        "convolutional": ("wire", "convolution", 2), "convolutional (separable)": ("wire dash", "separable", 4),
        "self-attention (restricted)": ("wire o dash", "restricted", 0),
    }

    def at(n: float, count: float) -> tuple[float, float]:
        across = (math.log2(n) - first) / (last - first)
        return left + (right - left) * across, base - (base - top) * (math.log10(count) - low) / (high - low)

    c.text(8, 10, "operations", "small", anchor="start")
    for power in (3, 6, 9, 12):
        y = at(2, 10**power)[1]
        c.line(f"M{left} {y:.2f}H{right}", "rule")
        c.text(left - 6, y, f"10^{{{power}}}", "small", anchor="end")
    for n in (2, 32, 512, 8192):
        x = at(n, 1)[0]
        c.line(f"M{x:.2f} {top}V{base}", "rule")
        c.text(x, base + 14, str(n), "small")
    c.text(right, base + 33, "words, n", "small", anchor="end")
    for name, (kind, said, shift) in looks.items():
        points = [at(2**i, multiplications(2**i, d, k, r)[name]) for i in range(first, last + 1)]
        c.line("M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points), kind)
        c.text(right + 8, points[-1][1] + shift, said, "small", anchor="start")
    c.text(right, 10, f"d {d}, k {k}, r {r}", "small soft", anchor="end")
    for n in (4 * d, k * d / 2, (k + d) / 2):  # where the formulas are equal
        x, y = at(n, 2 * n * n * d)
        c.shape("circle", "ring", cx=x, cy=y, r=5)


@drawing("recall-task", 132, "A fact to recall")
def recall_task(c: Canvas) -> None:
    """A sentence of eleven words: two facts, d is 1 and c is 2, then eight filler words as numbers, then a question
    about d. Above the question, at the last position, stands the answer, 1; a thick line leads there from the first
    fact."""
    filler = (24, 46, 24, 44, 34, 46, 3, 25)  # the first sentence of the record 16-recall over 8 words, seed 2
    y, high, wide, narrow = 66, 30, 44, 27
    facts = [c.box(8 + wide * i, y, wide - 3, high, said, kind="block", face="small", round=3)
             for i, said in enumerate(("d = 1", "c = 2"))]
    words = [c.box(96 + narrow * i, y, narrow - 3, high, str(word), kind="empty", face="small", round=3)
             for i, word in enumerate(filler)]
    question = c.box(312, y, 40, high, "d ?", kind="block", face="small", round=3)
    answer = c.box(312, 10, 40, high, "1", kind="ofill", face="small", round=3)
    c.wire((facts[0].cx, y - 2), (facts[0].cx, answer.cy), (answer.left - 1, answer.cy), hue="o", kind="thick")
    c.wire((question.cx, y - 1), (question.cx, answer.bottom + 1))
    c.text((facts[0].left + facts[1].right) / 2, y + 48, "two facts", "small")
    c.text((words[0].left + words[-1].right) / 2, y + 48, f"n = {len(filler)} filler words", "small")
    c.text(352, y + 48, "question", "small", anchor="end")
    c.text(answer.left - 12, answer.cy + 16, "answer", "small o", anchor="end")


@drawing("window", 274, "Restricted self-attention in blocks")
def window(c: Canvas) -> None:
    """Twelve positions as queries above and as keys below, cut into blocks of two. One block of queries is coloured,
    and of the keys its own block with one block on either side. Beneath, the small table of these two queries and six
    keys: each query uses five of them, and one is computed and masked."""
    n, w, cell, left = 12, 2, 27, 18
    first = 4  # of the block shown
    c.text(left, 11, "queries, in blocks of w = 2", "q", anchor="start")
    c.text(left, 89, "keys: a window of 3w = 6", "k", anchor="start")
    for i in range(n):
        c.block(left + cell * i, 26, 1, 1, cell, "qfill" if first <= i < first + w else "empty")
        c.block(left + cell * i, 104, 1, 1, cell, "kfill" if first - w <= i < first + 2 * w else "empty")
    for i in range(0, n + 1, w):
        c.line(f"M{left + cell * i} 22v35M{left + cell * i} 100v35", "wire")
    x = left + cell * (first - w)
    c.line(f"M{left + cell * first} 62L{x} 78M{left + cell * (first + w)} 62L{x + 3 * w * cell} 78", "wire dash")
    rows = [[0 <= j - i <= 2 * w for j in range(3 * w)] for i in range(w)]
    c.table(x, 156, rows, cell)
    c.text(x - 8, 183, "scores", "small", anchor="end")
    c.text(left, 236, "filled: the r = 5 keys that each query uses", "small", anchor="start")
    c.text(left, 256, "light: computed, then masked", "small soft", anchor="start")


@drawing("edge-of-the-sentence", 196, "Why a tripled dilation loses a pair")
def edge_of_the_sentence(c: Canvas) -> None:
    """Ten places in a row; the first, dashed, lies before the sentence, the others are its nine words. The only way
    from the first word to the ninth with steps of 1, 3 and 9 goes one place back and nine forward, and so through the
    place outside, where there is nothing but zeros."""
    cell, left, y = 33, 15, 120
    for i in range(10):
        kind = "empty" if i == 0 else ("kfill" if i == 1 else "qfill" if i == 9 else "block")
        c.box(left + cell * i, y, cell - 3, 30, "0" if i == 0 else str(i), kind=kind, face="small", round=3)
    at = [left + cell * i + 15 for i in range(10)]
    c.wire((at[1], y - 2), (at[1], y - 24), (at[0], y - 24), (at[0], y - 2), hue="o", bend=8)
    c.wire((at[0] - 6, y - 2), (at[0] - 6, y - 64), (at[9], y - 64), (at[9], y - 2), hue="o", bend=12)
    c.text(at[1] + 12, y - 26, "dilation 1: one back", "small", anchor="start")
    c.text(180, y - 78, "dilation 9: nine forward", "small")
    c.text(8, 16, "steps of 1, 3 and 9: 8 = 9 − 1", "strong", anchor="start")
    c.text(left, y + 50, "outside", "small soft", anchor="start")
    c.text(352, y + 50, "the nine words", "small soft", anchor="end")


# ---------------------------------------------------------------- chapter 15


@drawing("multiply-adds", 216, "What a matrix product costs")
def multiply_adds(c: Canvas) -> None:
    """A matrix of five rows and three columns times one of three rows and four columns gives five rows and four
    columns. One row of the first, one column of the second and one cell of the result are framed: the cell is a sum of
    three products. There are twenty cells, sixty multiply-adds, one hundred and twenty operations."""
    S, narrow, wide, cell = 5, 3, 4, 22
    c.block(12, 40, S, narrow, cell, "block")
    c.text(94, 95, "·")
    c.block(108, 62, narrow, wide, cell, "block")
    c.text(212, 95, "=")
    c.block(228, 40, S, wide, cell, "ofill")
    c.shape("rect", "ring", x=12, y=40 + 2 * cell, width=narrow * cell, height=cell)
    c.shape("rect", "ring", x=108 + cell, y=62, width=cell, height=narrow * cell)
    c.shape("rect", "ring", x=228 + cell, y=40 + 2 * cell, width=cell, height=cell)
    c.text(45, 20, "5 × 3", "small")
    c.text(152, 20, "3 × 4", "small")
    c.text(272, 20, "5 × 4", "small o")
    c.text(8, 172, "framed: 3 multiplications, added up", "small", anchor="start")
    total = S * narrow * wide
    c.text(8, 198, f"5 · 3 · 4 = {total} multiply-adds = {2 * total} operations", "small strong", anchor="start")


@drawing("three-products", 392, "One product forwards, two backwards")
def three_products(c: Canvas) -> None:
    """Three rows, each a product of two matrices. Forwards: X times W is Y. Backwards: the gradient of Y times W
    transposed is the gradient of X, and X transposed times the gradient of Y is the gradient of W. Each row forms as
    many products as the others."""
    S, a, b, cell = 4, 2, 3, 17
    rows = (
        ("forward", "X", (S, a), "block", "W", (a, b), "dark", "Y", (S, b), "ofill"),
        ("backward", "dY", (S, b), "ofill", "W^{T}", (b, a), "dark", "dX", (S, a), "block"),
        ("backward", "X^{T}", (a, S), "block", "dY", (S, b), "ofill", "dW", (a, b), "dark"),
    )
    for i, (when, *parts) in enumerate(rows):
        middle = 64 + 120 * i
        c.text(8, middle - 50, when, "strong", anchor="start")
        for j, x in enumerate((52, 168, 284)):
            name, (high, wide), kind = parts[3 * j : 3 * j + 3]
            area = c.block(x - wide * cell / 2, middle - high * cell / 2, high, wide, cell, kind)
            c.text(area.cx, middle + 46, f"*{name}*" if "^" not in name else f"*{name[0]}*{name[1:]}", "small")
            if j:
                c.text(x - 58, middle, "·" if j == 1 else "=")
    c.text(8, 380, "S · a · b multiply-adds in each row", "small", anchor="start")


@drawing("stated-and-counted", 196, "The cost in the table, and the products counted")
def stated_and_counted(c: Canvas) -> None:
    """Two long bars, base and big, stand for what the GPUs could have done in the paper's hours at the sustained rate.
    Less than half of each is filled: the model's own matrix products."""
    facts = PAPER["training"]
    rate = facts["gpus"] * facts["gpu_tflops_sustained"]["P100"] * 1e12
    rows = (("base", BASE, facts["base_steps"], facts["base_hours"]),
            ("big", BIG, facts["big_steps"], 24 * facts["big_days"]))
    c.text(8, 14, "hours × GPUs × sustained rate", "small", anchor="start")
    for i, (name, config, steps, hours) in enumerate(rows):
        y, wide = 34 + 66 * i, 290
        made = 6 * products(config, 30, 30) * facts["batch_target_tokens"] / 30 * steps
        share = made / (hours * 3600 * rate)
        c.text(8, y + 18, name, "strong", anchor="start")
        c.shape("rect", "frame", x=56, y=y, width=wide, height=36)
        c.bar(56, y, wide * share, 36, "o")
        c.text(56 + wide * share + 10, y + 18, f"{share:.0%} counted", "small", anchor="start")
    c.text(8, 176, "filled: matrix products of the model", "small o", anchor="start")


@drawing("equal-areas", 236, "The same operations, spent in two ways")
def equal_areas(c: Canvas) -> None:
    """Two rectangles of equal area. The Transformer's is shorter and taller: fewer updates, more operations in each.
    The recurrent network's is longer and lower: more updates, fewer operations in each."""
    run = json.loads((ROOT / "results" / "15-budgets" / "run.json").read_text(encoding="utf-8"))
    updates = run["updates"]
    longest = max(updates.values())
    area = 280 * 56.0
    for i, (name, words) in enumerate((("Transformer", "Transformer"), ("recurrent", "recurrent network"))):
        wide = 280 * updates[name] / longest
        high, base = area / wide, (128, 218)[i]
        c.text(56, base - high - 12, words, "strong", anchor="start")
        kind = "ofill" if i == 0 else "dark"
        box = c.box(56, base - high, wide, high, f"{updates[name]:,} updates", kind=kind, round=0)
        c.wire((44, box.bottom), (44, box.top))
        c.text(36, box.cy, "cost", "small soft", anchor="end")


def paired_rows() -> dict[str, list[float]]:
    """Row of Table 3 -> the perplexity of each seed, the norm first; the rows that the record has whole."""
    found = complete(ROOT)
    return {name: [run["perplexity"] for run in found[name]] for name in TABLE_3 if name in found}


@drawing("rows-in-pairs", 97 + 27 * len(paired_rows()), "Rows of Table 3, differences from base")
def rows_in_pairs(c: Canvas) -> None:
    """Rows of Table 3 on an axis of log perplexity, less being better. On each, small filled dots are our differences
    from base, one for each seed, a shaded bar is where their mean lies with 95 % confidence, and a hollow dot is the
    paper's difference. A sign beside the name says what the bar shows: a tick where it lies on the paper's side of
    base, a cross on the other side, a dash where it holds base. At the foot, each sign and shape with its meaning."""
    measured = paired_rows()
    base = [math.log(value) for value in measured.pop("base")]
    paper = json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))["table_3"]
    published = dict(zip(TABLE_3, (row["ppl"] for row in paper)))
    ours = {name: [math.log(x) - zero for x, zero in zip(values, base)] for name, values in measured.items()}
    ends = {name: _mean_interval(values) for name, values in ours.items()}
    theirs = {name: math.log(published[name] / published["base"]) for name in ours}
    every = [*theirs.values(), *sum(ours.values(), []), *sum(ends.values(), ()), 0]
    low, high, left, right, below = min(every), max(every), 144, 344, 14 + 27 * len(ours)

    def at(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    def sign(x: float, y: float, side: float) -> None:
        """A tick where the product of ours and the paper's is above 0, a cross where below, a dash where it is 0."""
        if side > 0:
            c.line(f"M{x - 6} {y}l4 4l7 -9", "wire hand o")
        elif side < 0:
            c.line(f"M{x - 4} {y - 4}l8 8m0 -8l-8 8", "wire hand")
        else:
            c.line(f"M{x - 4} {y}h8")

    c.line(f"M{at(0):.2f} 8V{below}", "wire dash")
    for tick in range(math.ceil(5 * low), math.floor(5 * high) + 1):
        c.text(at(tick / 5), below + 15, f"{tick / 5:+.1f}" if tick else "0", "small soft" if tick else "small")
    c.text(352, below + 31, "log perplexity − base's; less is better", "small", anchor="end")
    for i, (name, seeds) in enumerate(ours.items()):
        y = 22 + 27 * i
        c.text(8, y, name, "small", anchor="start")
        first, last = ends[name]
        sign(left - 18, y, theirs[name] * (first + last) if first * last > 0 else 0)
        c.line(f"M{left - 8} {y}H352", "rule")
        c.shape("rect", "block", x=at(ends[name][0]), y=y - 6, width=at(ends[name][1]) - at(ends[name][0]), height=12)
        c.shape("circle", "box", cx=at(theirs[name]), cy=y, r=5)
        for seed in seeds:
            c.dot(at(seed), y, hue="o", r=3)
    y = below + 57
    c.dot(14, y, hue="o", r=3)
    c.shape("rect", "block", x=98, y=y - 6, width=22, height=12)
    c.shape("circle", "box", cx=256, cy=y, r=5)
    for x, words in ((26, "our seeds"), (127, "their mean, 95 %"), (268, "the paper's")):
        c.text(x, y, words, "small", anchor="start")
    for x, y, side, words in (
        (14, below + 78, 1, "our bar lies on the paper's side of 0"),
        (14, below + 99, -1, "on the other side"),
        (168, below + 99, 0, "it holds 0: undecided"),
    ):
        sign(x, y, side)
        c.text(x + 12, y, words, "small", anchor="start")
