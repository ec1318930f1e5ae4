"""Chapters 5 to 7: the model, and the parts around its attention."""

import math

import torch

from annotated.embedding import Embedding, _angles, positional_encoding
from annotated.layers import FeedForward
from annotated.masks import causal_mask, padding_mask
from annotated.transformer import BASE

from .canvas import Canvas, drawing

SENTENCE = "the dog sees the cat".split()


@drawing("figure-1", 584, "The Transformer")
def figure_1(c: Canvas) -> None:
    """Read from the bottom up. At the left, source identifiers pass an Embedding, get positions added, and go
    through N EncoderLayers: MultiHeadAttention, AddNorm, FeedForward, AddNorm. What comes out is the memory. At the
    right, the target so far passes an Embedding, positions, and N DecoderLayers: masked MultiHeadAttention,
    AddNorm, a second MultiHeadAttention whose keys and values come from the memory, AddNorm, FeedForward, AddNorm.
    The embedding's matrix turns the result into logits, a softmax into probabilities of the next token."""
    left, right, wide = 93, 267, 146
    c.box(5, 252, 166, 212, kind="frame", round=10)
    c.box(189, 156, 166, 308, kind="frame", round=10)
    attention = "`MultiHeadAttention`"
    for x, words, size in ((left, "source", "S"), (right, "target so far", "T")):
        c.text(x, 571, f"{words} `(B, {size})`", "small")
        c.wire((x, 563), (x, 548))
        c.box(x - wide / 2, 520, wide, 28, "`Embedding`", face="small")
        c.wire((x, 520), (x, 509))
        c.sign(x, 500, "+")
        c.wire((x, 491), (x, 486), head=False)
        c.text(x, 478, f"`(B, {size}, d_model)`", "small")
        c.wire((x, 470), (x, 450), head=False)
    c.text(180, 500, "positions", "small")
    c.wire((142, 500), (left + 10, 500))
    c.wire((218, 500), (right - 10, 500))
    for x, words in ((left, "self-attention"), (right, "masked self-attention")):
        sublayer(c, x, 396, words, attention, fork=456)
        for name, offset in (("q", -26), ("k", 0), ("v", 26)):
            c.wire((x, 448), (x + offset, 448), (x + offset, 436), hue=name, bend=4)
    sublayer(c, right, 302, "cross-attention", attention, fork=354)
    c.wire((right, 362), (right, 342), hue="q")
    sublayer(c, left, 302, "feed-forward", "`FeedForward`", fork=354)
    c.wire((left, 362), (left, 342))
    sublayer(c, right, 208, "feed-forward", "`FeedForward`", fork=260)
    c.wire((right, 268), (right, 248))
    c.wire((148, 268), (148, 228), (180, 228), (180, 330), head=False, kind="thick", bend=8)
    c.wire((180, 314), (194, 314), hue="k")
    c.wire((180, 330), (194, 330), hue="v")
    c.text(186, 213, "memory `(B,S,d_model)`", "small", anchor="end")
    c.text(8, 241, "N × `EncoderLayer`", "small", anchor="start")
    c.text(184, 164, "N × `DecoderLayer`", "small", anchor="end")
    c.wire((right, 174), (right, 150), head=False)
    c.text(right, 142, "`(B, T, d_model)`", "small")
    c.wire((right, 134), (right, 122))
    c.box(right - wide / 2, 94, wide, 28, "`Embedding.logits`", face="small")
    c.wire((right, 94), (right, 88), head=False)
    c.text(right, 80, "`(B, T, vocab)`", "small")
    c.wire((right, 72), (right, 62))
    c.box(right - wide / 2, 34, wide, 28, "softmax", face="small")
    c.wire((right, 34), (right, 22))
    c.text(right, 12, "the next token", "small")
    for y, hue, words in ((40, "q", "queries"), (60, "k", "keys"), (80, "v", "values")):
        c.wire((16, y), (40, y), hue=hue)
        c.text(50, y, words, f"small {hue}", anchor="start")


def sublayer(c: Canvas, x: float, y: float, words: str, code: str, fork: float) -> None:
    """A sub-layer whose top is at y, its AddNorm above it, and the way around it from fork, at the outer side."""
    side = -1 if x < 180 else 1
    c.box(x - 73, y, 146, 40, words, code, face="small")
    c.wire((x, y), (x, y - 12))
    norm = c.box(x - 73, y - 34, 146, 22, "`AddNorm`", face="small")
    c.wire((x, fork), (x + side * 81, fork), (x + side * 81, norm.cy), (x + side * 73, norm.cy))


@drawing("decoder-layer", 512, "One decoder layer")
def decoder_layer(c: Canvas) -> None:
    """Read from the bottom up. In a frame, three sub-layers, each followed by AddNorm, which also gets the sub-layer's
    input. Masked self-attention gets queries, keys and values from x, (B, T, d_model), which comes from the target; at
    its left the causal mask, (T, T), a triangle of 5 rows. Cross-attention gets its queries from below, its keys and
    values from memory, (B, S, d_model), which comes from the source; at its left the padding mask, (B, 1, 1, S), a
    row of 7 whose last two are hidden. Then FeedForward. The shape stays (B, T, d_model)."""
    x, mask_x, attention, shape = 252, 66, "`MultiHeadAttention`", "`(B, T, d_model)`"
    c.box(162, 28, 194, 436, kind="frame", round=10)
    c.text(6, 40, "`DecoderLayer`", anchor="start")
    c.text(6, 58, "one of N", "small soft", anchor="start")
    c.text(x, 486, f"`x` {shape}", "small")
    c.text(x, 503, "from the target", "small soft")
    for y in (14, 150, 314):
        c.text(x, y, shape, "small")
    sublayer(c, x, 72, "feed-forward", "`FeedForward`", fork=132)
    c.wire((x, 38), (x, 22))
    c.wire((x, 142), (x, 112))
    sublayer(c, x, 208, "cross-attention", attention, fork=290)
    c.wire((x, 174), (x, 158), head=False)
    c.wire((x, 306), (x, 290), head=False)
    c.wire((x, 290), (x, 248), hue="q")
    sublayer(c, x, 372, "masked self-attention", attention, fork=444)
    c.wire((x, 338), (x, 322), head=False)
    c.wire((x, 478), (x, 434), head=False)
    for name, offset in (("q", 26), ("k", -26), ("v", 0)):
        c.wire((x, 434), (x + offset, 434), (x + offset, 412), hue=name, bend=4)
    for name, y, offset in (("k", 274, -52), ("v", 282, -26)):
        c.wire((58, y), (x + offset, y), (x + offset, 248), hue=name)
    c.text(6, 278, "`memory`", "small", anchor="start")
    c.text(6, 296, "`(B, S, d_model)`", "small", anchor="start")
    c.text(6, 313, "from the source", "small soft", anchor="start")
    c.text(mask_x, 196, "padding `mask`", "small")
    row = c.table(mask_x - 42, 208, padding_mask(torch.tensor([[1, 1, 1, 1, 1, 0, 0]]))[0, 0].tolist(), 12)
    c.wire((row.right + 4, row.cy), (x - 73, row.cy))
    c.text(mask_x, 234, "`(B, 1, 1, S)`", "small")
    c.text(mask_x, 348, "`causal` mask", "small")
    square = c.table(mask_x - 30, 360, causal_mask(5).tolist(), 12)
    c.wire((square.right + 4, square.cy), (x - 73, square.cy))
    c.text(mask_x, 432, "`(T, T)`", "small")
    for y, hue, words in ((460, "q", "queries"), (478, "k", "keys"), (496, "v", "values")):
        c.wire((12, y), (36, y), hue=hue)
        c.text(46, y, words, f"small {hue}", anchor="start")


@drawing("residual", 410, "The norm after the sum, or before the sub-layer")
def residual(c: Canvas) -> None:
    """Two circuits, each with two sub-layers, read from the top. A thick line is the residual path, from which a
    branch leaves to each sub-layer and comes back in a sum. At the left the norm stands on the path, after the
    sum. At the right it stands in the branch, before the sub-layer, and the path carries only the sums."""
    sides = ((60, "norm after", "norm(x + f(x))", False), (244, "norm before", "x + f(norm(x))", True))
    for x, title, formula, before in sides:
        c.text(x + 34, 14, title, "strong")
        c.text(x + 34, 34, f"`{formula}`", "small")
        c.text(x, 62, "`x`")
        y = 74
        for name in ("attention", "feed-forward"):
            fork, plus = y + 8, y + 128 if before else y + 96
            c.wire((x, y), (x, plus - 9), kind="thick", head=False)
            branch = x + 66
            c.wire((x, fork), (branch, fork), (branch, y + 24))
            if before:
                norm = c.box(branch - 46, y + 24, 92, 24, "norm", face="small")
                c.wire((branch, norm.bottom), (branch, y + 62))
                box = c.box(branch - 46, y + 62, 92, 46, name, face="small")
            else:
                box = c.box(branch - 46, y + 24, 92, 46, name, face="small")
            c.wire((branch, box.bottom), (branch, plus), (x + 9, plus))
            c.sign(x, plus, "+")
            y = plus + 9
            if not before:
                c.wire((x, y), (x, y + 12), kind="thick", head=False)
                norm = c.box(x - 46, y + 12, 92, 24, "norm", face="small")
                y = norm.bottom
        c.wire((x, y), (x, 392), kind="thick")
    c.line("M188 6V400", "rule")


@drawing("positions", 384, "A word's vector and its position's clocks")
def positions(c: Canvas) -> None:
    """Five columns, the words the, dog, sees, the, cat at positions 0 to 4. Bars show each word's embedding, the
    same for both the's. Under it four clocks, whose hands turn fast in the first row and ever more slowly below.
    The sum of embedding and clocks is drawn as bars again, and now the two the's differ."""
    torch.manual_seed(5)
    words, d_model, shown = SENTENCE, 16, 8
    known = sorted(set(words))
    embedding = Embedding(len(known), d_model)
    with torch.no_grad():
        vectors = embedding(torch.tensor([[known.index(word) for word in words]]))[0]
    places = torch.arange(len(words))
    added = vectors + positional_encoding(places, d_model)
    turn = _angles(places, torch.arange(0, d_model, 2).double() / d_model)
    c.text(6, 32, "word", "small soft", anchor="start")
    c.text(6, 84, "embedding", "small soft", anchor="start")
    c.text(6, 180, "position", "small soft", anchor="start")
    c.text(6, 195, "clocks", "small soft", anchor="start")
    c.text(6, 348, "sum", "small soft", anchor="start")
    for t, word in enumerate(words):
        x = 102 + 56 * t
        c.text(x, 14, str(t), "small soft")
        c.text(x, 32, word, "strong" if word == "the" else "")
        bars(c, x, 84, vectors[t, :shown])
        c.text(x, 132, "+")
        for pair in range(shown // 2):
            clock(c, x, 160 + 38 * pair, turn[t, pair].item())
        c.text(x, 304, "=")
        bars(c, x, 348, added[t, :shown])


def bars(c: Canvas, x: float, y: float, vector, step=6.0, scale=10.0) -> None:
    """A vector as bars up and down from a line."""
    start = x - step * len(vector) / 2
    c.line(f"M{start} {y}h{step * len(vector)}", "rule")
    for i, value in enumerate(vector.tolist()):
        high = scale * value
        c.bar(start + i * step + 1, y - max(high, 0), step - 2, max(abs(high), 0.5))


def clock(c: Canvas, x: float, y: float, angle: float) -> None:
    """A hand that points to (sin, cos) of the angle, as a clock's does: upwards at 0, then to the right."""
    c.shape("circle", "box", cx=x, cy=y, r=15)
    c.wire((x, y), (x + 14 * math.sin(angle), y - 14 * math.cos(angle)), head=False, kind="hand")
    c.dot(x, y, r=2)


@drawing("two-positions", 262, "Two positions that move together")
def two_positions(c: Canvas) -> None:
    """Four clocks with two hands each, at the positions 0 and 3, and under them the same clocks at the positions 20
    and 23. All hands have turned, the fast ones at the left by far more than the slow ones at the right. The angle
    between the two hands of a clock is the same in both rows, and so is the inner product at the end of the row."""
    d_model, k = 8, 3
    c.text(6, 14, "clocks of four pairs", "small soft", anchor="start")
    c.text(354, 14, "inner product", "small soft", anchor="end")
    for row, p in enumerate((0, 20)):
        y = 78 + 116 * row
        places = torch.tensor([p, p + k])
        c.text(6, y - 42, f"positions {p} and {p + k}", "strong", anchor="start")
        turn = _angles(places, torch.arange(0, d_model, 2).double() / d_model)
        for pair in range(d_model // 2):
            x = 34 + 62 * pair
            c.shape("circle", "box", cx=x, cy=y, r=24)
            for hue, angle in zip("qk", turn[:, pair].tolist()):
                c.wire((x, y), (x + 21 * math.sin(angle), y - 21 * math.cos(angle)), hue=hue, kind="thick", head=False)
            c.dot(x, y, r=2)
            if row == 0:
                c.text(x, y + 40, f"pair {pair}", "small soft")
        here, there = positional_encoding(places, d_model)
        c.text(354, y, f"{here @ there:.2f}", "strong", anchor="end")
    c.text(6, 244, "first position", "small q", anchor="start")
    c.text(106, 244, "second position", "small k", anchor="start")


@drawing("one-matrix", 352, "One matrix, two uses")
def one_matrix(c: Canvas) -> None:
    """In the middle a matrix with a row for each of six words. From the left an identifier points to the row of
    dog, which comes out below as a vector: the embedding. From above a vector enters, meets every row, and gives
    each word a logit, drawn as bars at the right; the longest is that of dog."""
    torch.manual_seed(13)
    words, d_model, cell, high = ["the", "dog", "sees", "cat", "a", "eos"], 4, 20, 24
    embedding = Embedding(len(words), d_model)
    chosen = words.index("dog")
    with torch.no_grad():
        x = embedding.weight[chosen] + 0.3 * torch.randn(d_model)
        logits = embedding.logits(x)
    assert logits.argmax() == chosen
    left, top = 138, 104
    out = c.block(left, 44, 1, d_model, cell, "ofill", high=high)
    c.text(out.cx, 14, "output", "o")
    c.text(out.cx, 31, "`(d_model)`", "small")
    matrix = c.block(left, top, len(words), d_model, cell, high=high)
    c.wire((out.cx, out.bottom), (out.cx, matrix.top))
    for i, word in enumerate(words):
        c.text(left - 8, top + high * (i + 0.5), word, "small", anchor="end")
    at = top + high * (chosen + 0.5)
    c.shape("rect", "ring", x=left, y=at - high / 2, width=matrix.w, height=high)
    c.box(12, at - 14, 52, 28, f"id {chosen}")
    c.wire((64, at), (94, at))
    zero, unit = 276, 54 / logits.abs().max().item()
    c.text(zero, 62, "logits", "")
    c.text(zero, 80, "`(vocab)`", "small")
    c.line(f"M{zero} {top - 4}V{matrix.bottom + 4}", "rule")
    for i, logit in enumerate(logits.tolist()):
        y = top + high * i + 5
        c.bar(min(zero, zero + unit * logit), y, abs(unit * logit), high - 10, "o" if i == chosen else "")
    row = c.block(left, 284, 1, d_model, cell, high=high)
    c.wire((row.cx, matrix.bottom), (row.cx, row.top))
    c.text(row.cx, 322, "embedding")
    c.text(row.cx, 340, "row × √`d_model`", "small")
    c.text(8, at - 42, "look up", "small soft", anchor="start")
    c.text(8, at - 28, "a row", "small soft", anchor="start")
    c.text(352, 266, "output · each row", "small soft", anchor="end")


@drawing("target-shift", 228, "The target, shifted by one")
def target_shift(c: Canvas) -> None:
    """Two strips of the target's five tokens, bos, der, Hund, schläft, eos, the upper one shifted left by one. The
    lower strip without its last token goes into the decoder; the upper strip without its first is the labels. So
    above bos stands der, above der Hund, above Hund schläft, and above schläft eos."""
    words, pitch, wide, left = ["bos", "der", "Hund", "schläft", "eos"], 59, 54, 5
    decoder = c.box(left + pitch, 98, 4 * pitch - (pitch - wide), 38, "decoder, logits")
    for i, word in enumerate(words):
        for column, y, dropped, kind in ((i, 30, i == 0, "ofill"), (i + 1, 166, i == 4, "block")):
            x = left + pitch * column
            face = "small soft" if dropped else "small"
            c.box(x, y, wide, 28, word, kind="empty" if dropped else kind, face=face, round=3)
            if not dropped and kind == "ofill":
                c.wire((x + wide / 2, decoder.top), (x + wide / 2, y + 28))
            elif not dropped:
                c.wire((x + wide / 2, y), (x + wide / 2, decoder.bottom))
    c.text(left + pitch, 14, "labels `target[:, 1:]`", "small", anchor="start")
    c.text(left + pitch, 212, "decoder input `target[:, :-1]`", "small", anchor="start")


@drawing("ffn", 366, "One position through the feed-forward network")
def ffn(c: Canvas) -> None:
    """One position's vector, eight bars for the 512 numbers of the base model, passes W_1 and becomes four times as
    wide; of the 32 bars, ReLU makes all that point down 0; W_2 makes eight of them again."""
    torch.manual_seed(4)
    network = FeedForward(8, 32)
    with torch.no_grad():
        x = torch.randn(8)
        wide = network.W_1(x)
        kept = wide.relu()
        out = network.W_2(kept)
    middles = [30, 136, 244, 338]
    for y, vector, scale in zip(middles, (x, wide, kept, out), (10, 20, 20, 36)):
        bars(c, 180, y, vector, step=10, scale=scale)
    narrow = f"`d_model` = {BASE.d_model}"
    steps = ((64, "`W_1`", f"to `d_ff` = {BASE.d_ff}"), (178, "ReLU", "negative to 0"), (274, "`W_2`", f"to {narrow}"))
    for y, words, note in steps:
        c.wire((180, y - 14), (180, y))
        c.box(150, y, 60, 26, words, face="small")
        c.wire((180, y + 26), (180, y + 40))
        c.text(218, y + 13, note, "small soft", anchor="start")
    c.text(130, 30, "one position", "small", anchor="end")
    c.text(230, 30, narrow, "small soft", anchor="start")
    c.text(130, 338, "the same position", "small", anchor="end")
