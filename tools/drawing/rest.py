"""The other chapters: why attention, data, optimisation, evaluation, speed, parsing, and what came after."""

import ast
import math
import re
from collections import Counter

import torch

import annotated
from annotated.data import _plan_batches
from annotated.evaluation import bleu_counts, bleu_of_counts
from annotated.masks import causal_mask
from annotated.parsing import _parse_brackets, linearize

from .canvas import ROOT, Canvas, drawing, n

SOURCE, TARGET = "the dog sees the cat".split(), "der Hund sieht die Katze".split()


@drawing("rnn-bottleneck", 236, "The recurrent translator and its bottleneck")
def rnn_bottleneck(c: Canvas) -> None:
    """Five cells of an encoder read the dog sees the cat, one after the other. Its last state, a single vector, is
    all that five cells of a decoder get, which write der Hund sieht die Katze."""
    pitch, cell = 70, 48
    for i, (source, target) in enumerate(zip(SOURCE, TARGET)):
        x = 16 + pitch * i
        c.text(x + cell / 2, 14, source)
        c.wire((x + cell / 2, 24), (x + cell / 2, 38))
        c.box(x, 38, cell, 32)
        c.box(x, 166, cell, 32)
        c.wire((x + cell / 2, 198), (x + cell / 2, 212), hue="o")
        c.text(x + cell / 2, 222, target, "o")
        if i:
            c.wire((x - pitch + cell, 54), (x, 54))
            c.wire((x - pitch + cell, 182), (x, 182))
    last = 16 + 4 * pitch + cell / 2
    vector = c.block(132, 112, 1, 6, 16, "dark")
    c.wire((last, 70), (last, 120), (vector.right, 120))
    c.wire((vector.left, 120), (40, 120), (40, 166))
    c.text(180, 98, "one vector for the sentence", "small")
    c.text(16, 86, "encoder", "small soft", anchor="start")
    c.text(352, 152, "decoder", "small soft", anchor="end")


@drawing("path-lengths", 330, "The way between two words")
def path_lengths(c: Canvas) -> None:
    """Eight positions in a row, three times; a thick way leads from the first to the last. Along the chain of a
    recurrent network it takes seven steps. In a tree of convolutions it takes three, a level each. With
    self-attention it is one."""
    n = 8
    place = [28 + 43.5 * i for i in range(n)]

    def row(y):
        for x in place:
            c.dot(x, y, r=5)

    c.text(8, 14, "chain", "strong", anchor="start")
    c.text(352, 14, f"{n - 1} steps", anchor="end")
    for a, b in zip(place, place[1:]):
        c.wire((a, 44), (b - 5, 44), hue="o", kind="thick", head=False)
    row(44)
    levels = int(math.log2(n))
    c.text(8, 90, "tree", "strong", anchor="start")
    c.text(352, 90, f"{levels} steps", anchor="end")
    base = 196
    row(base)
    at = [(x, base) for x in place]
    for level in range(1, levels + 1):
        y = base - 30 * level
        above = [(b[0], y) for b in at[1::2]]
        for i, node in enumerate(at):
            c.wire(node, above[i // 2], head=False, hue="" if i else "o", kind="" if i else "thick")
        for x, _ in above:
            c.dot(x, y, r=4)
        at = above
    c.text(8, 240, "self-attention", "strong", anchor="start")
    c.text(352, 240, "1 step", anchor="end")
    row(306)
    c.line(f"M{place[0]} 300C{place[2]} 238 {place[5]} 238 {place[-1]} 300", "wire o thick")


@drawing("masks-of-three", 196, "Three architectures by their masks")
def masks_of_three(c: Canvas) -> None:
    """Three tables of who may attend to whom. Encoder-only: everything. Decoder-only: a triangle. Encoder-decoder,
    source and target one after the other: the source sees all of the source, the target all of the source and a
    triangle of itself."""
    S, T, cell = 3, 4, 14
    full, causal = torch.ones(S + T, S + T, dtype=torch.bool), causal_mask(S + T)
    both = full.clone()
    both[:S, S:] = False
    both[S:, S:] = causal_mask(T)
    kinds = (("encoder", "only", "BERT"), ("decoder", "only", "GPT"), ("encoder-", "decoder", "2017"))
    for i, ((first, second, example), mask) in enumerate(zip(kinds, (full, causal, both))):
        area = c.table(12 + 120 * i, 62, mask, cell)
        c.lines(area.cx, 22, first, second, kind="strong", step=18)
        c.text(area.cx, 180, example, "small soft")
    c.line(f"M{252 + S * cell} 58v106M248 {62 + S * cell}h106", "wire")


@drawing("token-budget", 268, "Batches of one token budget")
def token_budget(c: Canvas) -> None:
    """Twelve sentences as rows of tokens, padding drawn dashed. At the left, in the order of the text, three
    batches of four sentences are each as wide as their longest. At the right, sorted by length, each batch takes as
    many sentences as its budget of tokens holds: high and narrow ones, low and wide ones, with little padding."""
    lengths, budget, cell, high = [5, 11, 3, 8, 12, 4, 7, 2, 9, 6, 10, 3], 24, 12, 12
    as_read = [lengths[i : i + 4] for i in range(0, len(lengths), 4)]
    plan = _plan_batches([(length, length) for length in lengths], budget, budget)
    by_length = sorted(([lengths[i] for i in batch] for batch in plan), key=max)
    for x, title, batches in ((8, "four sentences", as_read), (196, f"{budget} tokens", by_length)):
        y = 44
        for batch in batches:
            longest = max(batch)
            for length in sorted(batch):
                c.block(x, y, 1, length, cell, high=high)
                if length < longest:
                    c.block(x + length * cell, y, 1, longest - length, cell, "empty", high=high)
                y += high
            y += 9
        places = sum(len(batch) * max(batch) for batch in batches)
        padding = places - sum(lengths)
        c.text(x, 14, "a batch:", "small soft", anchor="start")
        c.text(x, 31, title, "strong", anchor="start")
        c.text(x, 254, f"padding {padding} of {places}", "small", anchor="start")


def merged(word: str) -> list[tuple]:
    """The pieces of a word, each with the two it was merged of: the best known pair first, until none is known."""
    processor = annotated.load(ROOT / "results" / "tatoeba-en-de").vocabulary.processor
    parts = [(piece, ()) for piece in "\u2581" + word]
    while True:
        pairs = []
        for i, ((a, _), (b, _)) in enumerate(zip(parts, parts[1:])):
            known = processor.piece_to_id(a + b)
            if known != processor.unk_id():
                pairs.append((processor.get_score(known), -i))
        if not pairs:
            assert [piece for piece, _ in parts] == processor.encode(word, out_type=str)
            return parts
        i = -max(pairs)[1]
        parts[i : i + 2] = [(parts[i][0] + parts[i + 1][0], (parts[i], parts[i + 1]))]


@drawing("bpe-merges", 204, "The merges of a word")
def bpe_merges(c: Canvas) -> None:
    """The word sleepless, letter by letter, in the lowest row. Above, boxes as wide as the letters they join: es,
    ess, less, and at the left the space before the word with s, le, ep, leep and, with the space, sleep.
    Where no pair can be merged any
    more, two pieces are left, sleep and less."""
    wide, high, left, base = 34, 28, 10, 122

    def put(node, first: int, top: bool) -> tuple[int, int]:
        """Draw a node over its parts; returns its level and how many letters it has."""
        piece, parts = node
        level, letters = 0, 0
        for part in parts:
            below, n = put(part, first + letters, False)
            level, letters = max(level, below + 1), letters + n
        letters = letters or 1
        x, y = left + wide * first, base - (high + 8) * level
        kind = "ofill" if top else "block" if parts else "box"
        c.box(x + 2, y, wide * letters - 4, high, piece.replace("\u2581", "_"), kind=kind, round=4)
        return level, letters

    first = 0
    for node in merged("sleepless"):
        first += put(node, first, True)[1]
    c.text(left, 180, "_ stands for the space before a word", "small soft", anchor="start")


@drawing("adam-step", 330, "Adam: four gradients, four steps")
def adam_step(c: Canvas) -> None:
    """Four columns, an update each, for the gradients of chapter 9. Four rows of bars: the gradient g; its
    corrected mean, m hat; the root of the corrected mean of its square, v hat; and the step, minus the one divided
    by the other. The gradients differ in size and in sign, and no step is longer than 1."""
    text = (ROOT / "book" / "09-optimization.md").read_text(encoding="utf-8")
    gradients = ast.literal_eval(re.search(r"^gradients = (\[.*\])$", text, re.M)[1])
    beta1, beta2, m, v, rows = 0.9, 0.98, 0.0, 0.0, []
    for step, g in enumerate(gradients, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        mean, root = m / (1 - beta1**step), math.sqrt(v / (1 - beta2**step))
        rows.append((g, mean, root, -mean / root))
    names = (("gradient", "g"), ("its mean", "m̂"), ("its size", "√v̂"), ("step", "−m̂ / √v̂"))
    for j, (name, symbol) in enumerate(names):
        y = 52 + 78 * j
        c.text(8, y - 8, name, "strong" if j == 3 else "", anchor="start")
        c.text(8, y + 9, symbol, "small soft", anchor="start")
        c.line(f"M104 {y}H352", "rule")
        for i, row in enumerate(rows):
            high, x = 9 * row[j], 136 + 62 * i
            c.bar(x - 12, y - max(high, 0), 24, abs(high), "o" if j == 3 else "")
            number = f"{row[j]:.3g}".replace("-", "\u2212")
            c.text(x, y + (10 if high > 0 else -10), number, "small")
    for i in range(len(rows)):
        c.text(136 + 62 * i, 10, f"{i + 1}", "small soft")
    c.text(8, 10, "update", "small soft", anchor="start")


@drawing("update-loop", 336, "The loop of a training")
def update_loop(c: Canvas) -> None:
    """From the top: batches, loss, gradients. A line leads back from gradients to batches: accumulate. Then update,
    and a longer line back to batches: the next update. From the update a third line leads down to the checkpoint,
    and from the checkpoint a dashed line all the way up: resume."""
    x, wide = 88, 116
    boxes = ((14, "next batch"), (76, "loss"), (138, "add gradients"), (216, "update"), (294, "checkpoint"))
    for y, words in boxes:
        c.box(x, y, wide, 34, words)
    for (a, _), (b, _) in zip(boxes, boxes[1:]):
        c.wire((x + wide / 2, a + 34), (x + wide / 2, b))
    right = x + wide
    c.wire((right, 155), (right + 22, 155), (right + 22, 37), (right, 37))
    c.lines(right + 30, 96, "`accumulate`", "times", kind="small", anchor="start")
    c.wire((right, 233), (right + 128, 233), (right + 128, 25), (right, 25))
    c.text(right + 120, 216, "next update", "small", anchor="end")
    c.text(154, 272, "every `save_every` updates", "small", anchor="start")
    c.wire((x, 311), (30, 311), (30, 31), (x, 31), kind="dash")
    c.text(38, 282, "resume", "small", anchor="start")


@drawing("bleu", 330, "What BLEU counts")
def bleu(c: Canvas) -> None:
    """A reference of eight German words over an output of seven. Of the output's words the second der has no
    partner left and is drawn empty. Below, rows for runs of two, three and four words: a bar over each run that the
    reference has, and how many of how many. At the bottom the brevity penalty, and BLEU."""
    reference, output = "ich weiß dass der Hund die Katze sieht".split(), "ich weiß dass der Hund der Katze".split()
    counts = bleu_counts([" ".join(output)], [" ".join(reference)])[0]
    pitch, left = 43, 8
    c.text(left, 12, "reference", "small soft", anchor="start")
    c.text(left, 68, "output", "small soft", anchor="start")
    for i, word in enumerate(reference):
        c.box(left + pitch * i, 24, pitch - 3, 26, word, kind="block", face="small", round=3)
    for order in (1, 2, 3, 4):
        y = 80 if order == 1 else 128 + 30 * (order - 2)
        left_over = Counter(zip(*(reference[i:] for i in range(order))))
        for i, run in enumerate(zip(*(output[i:] for i in range(order)))):
            found = left_over[run] > 0
            left_over[run] -= 1
            if order == 1:
                kind = "ofill" if found else "empty"
                c.box(left + pitch * i, y, pitch - 3, 26, *run, kind=kind, face="small", round=3)
            elif found:
                c.bar(left + pitch * i, y + 7 * (i % order), pitch * order - 3, 4, "o")
        if order > 1:
            c.text(352, y + 5, f"n = {order}:  {counts[order - 1]} of {counts[order + 3]}", "small", anchor="end")
    c.text(352, 93, f"{counts[0]} of {counts[4]}", "small", anchor="end")
    short, long = counts[8:].tolist()
    c.line("M8 222H352", "rule")
    c.text(left, 246, f"brevity  exp(1 − {long}/{short})", anchor="start")
    c.text(352, 246, f"{math.exp(1 - long / short):.3f}", anchor="end")
    precisions = [counts[i].item() / counts[i + 4].item() for i in range(4)]
    mean = math.prod(precisions) ** 0.25
    c.text(left, 272, "fourth root of the product", anchor="start")
    c.text(352, 272, f"{mean:.3f}", anchor="end")
    c.line("M8 290H352", "rule")
    c.text(left, 310, "BLEU", "strong", anchor="start")
    c.text(352, 310, f"{bleu_of_counts(counts.double()):.1f}", "strong", anchor="end")


@drawing("tiles", 376, "Attention in tiles")
def tiles(c: Canvas) -> None:
    """Queries at the left and keys with values at the top, each cut into four tiles; between them the scores,
    which are never stored as a whole: six tiles are done, solid, one is dark, and nine, dashed, are to come. The
    queries, keys and values of the dark one lie in a frame below, the fast memory,
    with a running maximum, sum and output for each query."""
    size, left, top, n, row, column = 44, 76, 62, 4, 1, 2
    c.text(left + 2 * size, 14, "keys and values", "k")
    c.text(10, top - 12, "queries", "q", anchor="start")
    for i in range(n):
        c.box(left + size * i, 30, size, 20, kind="kfill" if i == column else "empty", round=0)
        y = top + size * i
        c.box(42, y, 22, size, kind="qfill" if i == row else "empty", round=0)
        c.box(left + n * size + 12, y, 22, size, kind="ofill" if i <= row else "empty", round=0)
        for j in range(n):
            done = i < row or (i == row and j < column)
            kind = "dark" if (i, j) == (row, column) else "block" if done else "empty"
            c.box(left + size * j, y, size, size, kind=kind, round=0)
    c.text(left + n * size + 40, top + 2 * size, "output", "o", anchor="start")
    x = left + size * (column + 0.5)
    c.wire((x, top + size * (row + 0.5)), (x, 262))
    c.box(8, 262, 344, 106, kind="frame", round=10)
    for x, y, w, h, kind in (
        (28, 314, 22, 44, "qfill"),
        (58, 288, 44, 20, "kfill"),
        (58, 314, 44, 44, "dark"),
        (312, 314, 22, 44, "ofill"),
    ):
        c.box(x, y, w, h, kind=kind, round=0)
    note = ("one tile of each, and", "for each query a running", "max, sum and output")
    c.lines(122, 328, *note, kind="small", anchor="start")
    c.text(20, 278, "fast memory", "strong", anchor="start")


@drawing("tree-sequence", 316, "A tree is a sequence")
def tree_sequence(c: Canvas) -> None:
    """The tree of the dog sees the cat: S over NP and VP, VP over a word and a second NP. Below it the same as a
    row of symbols: an opening bracket with its label where a constituent begins, a star for each word, and a
    closing bracket where it ends."""
    text = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT the) (NN cat))))"
    (tree,) = _parse_brackets(text)
    place = iter(range(len(SOURCE)))

    def put(node, depth: int) -> float:
        """Draw a node over its parts; returns where it stands."""
        label, *parts = node
        y = 20 + 52 * depth
        if isinstance(parts[0], str):
            x = 44 + 68 * next(place)
            c.text(x, 196, parts[0])
            return x
        places = [put(part, depth + 1) for part in parts]
        x = (places[0] + places[-1]) / 2
        for part, at in zip(parts, places):
            c.line(f"M{n(x)} {y + 13}L{n(at)} {186 if isinstance(part[1], str) else y + 39}")
        c.box(x - 18, y - 13, 36, 26, label, face="small strong")
        return x

    put(tree, 0)
    symbols = linearize(text)
    c.text(8, 244, "the tree as a sequence of symbols", "small soft", anchor="start")
    wide, words = 344 / len(symbols), iter(SOURCE)
    for i, symbol in enumerate(symbols):
        kind = "block" if symbol == "*" else "box"
        area = c.box(8 + wide * i, 258, wide, 28, f"`{symbol}`", kind=kind, face="small", round=0)
        if symbol == "*":
            c.text(area.cx, 299, next(words), "small soft")
