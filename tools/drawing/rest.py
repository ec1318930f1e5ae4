"""The other chapters: why attention, data, optimisation, evaluation, speed, parsing, and what came after."""

import math

import torch

import annotated
from annotated.evaluation import bleu_counts, bleu_of_counts
from annotated.masks import causal_mask
from annotated.parsing import linearize, parse_brackets

from .canvas import ROOT, Canvas, drawing

SOURCE, TARGET = "the dog sees the cat".split(), "der Hund sieht die Katze".split()


@drawing("rnn-bottleneck", 236, "The recurrent translator and its bottleneck")
def rnn_bottleneck(c: Canvas) -> None:
    """Five cells of an encoder read the dog sees the cat, one after the other. Its last state, a single vector, is all that
    five cells of a decoder get, which write der Hund sieht die Katze, each reading the word before."""
    pitch, cell = 70, 48
    for i, (source, target) in enumerate(zip(SOURCE, TARGET)):
        x = 16 + pitch * i
        c.text(x + cell / 2, 14, source)
        c.wire((x + cell / 2, 24), (x + cell / 2, 38))
        c.box(x, 38, cell, 32, "")
        c.box(x, 166, cell, 32, "")
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
    """Eight positions in a row, three times; a thick way leads from the first to the last. Along the chain of a recurrent
    network it takes seven steps. In a tree of convolutions it takes three, a level each. With self-attention it is one."""
    n = 8
    place = [28 + 43.5 * i for i in range(n)]

    def row(y, faint=()):
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
    base = 190
    row(base)
    at = [(x, base) for x in place]
    for level in range(1, levels + 1):
        y = base - 30 * level
        above = [((a[0] + b[0]) / 2, y) for a, b in zip(at[::2], at[1::2])]
        for i, node in enumerate(at):
            way = i in (0,)
            c.wire(node, above[i // 2], head=False, hue="o" if way else "", kind="thick" if way else "", bend=0)
        for x, _ in above:
            c.dot(x, y, r=4)
        at = above
    c.text(8, 232, "self-attention", "strong", anchor="start")
    c.text(352, 232, "1 step", anchor="end")
    row(300)
    c.line(f"M{place[0]} 294C{place[2]} 232 {place[5]} 232 {place[-1]} 294", "wire o thick")


@drawing("token-budget", 320, "Batches of equal budget")
def token_budget(c: Canvas) -> None:
    """Twelve sentences as rows of tokens. In the order of the text, batches of four need much padding, drawn dashed. Sorted
    by length and cut where a budget of tokens is full, batches differ in height and hold little padding."""
    c.text(8, 14, "", "")


@drawing("masks-of-three", 250, "Three architectures by their masks")
def masks_of_three(c: Canvas) -> None:
    """Three tables of who may look at whom. Encoder-only: everything. Decoder-only: a triangle. Encoder-decoder, source and
    target one after the other: the source sees all of the source, the target all of the source and a triangle of itself."""
    S, T, cell = 3, 4, 14
    size = S + T
    full, causal = torch.ones(size, size, dtype=torch.bool), causal_mask(size)
    both = full.clone()
    both[:S, S:] = False
    both[S:, S:] = causal_mask(T)
    for x, title, example, mask in (
        (10, "encoder", "BERT", full), (131, "decoder", "GPT", causal), (252, "both", "Transformer", both)
    ):
        area = c.table(x, 60, mask, cell)
        c.text(area.cx, 14, title, "strong")
        c.text(area.cx, 34, example, "small soft")
