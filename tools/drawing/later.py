"""Chapters 13, 20, 21 and appendix O: the command line, what came after the paper, published weights, and Muon."""

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


@drawing("drafting", 270, "Words drafted, and checked in one step of the model")
def drafting(c: Canvas) -> None:
    """Above, a row of six words: the text The dog will, and, dashed, three drafted words, know that the. All six go
    into a wide box, one step of the model. From its last four positions come know, that, he and tired. Arrows lead
    from these to the next place in the row at the bottom: The dog will, then know and that, which the draft has, too,
    and he, which replaces the. The word tired, dashed, is dropped, since it follows the word that was replaced."""
    text, draft, best = "The dog will".split(), "know that the".split(), "know that he tired".split()
    pitch, wide, high, left = 58, 54, 28, 8
    middle = [left + wide / 2 + pitch * i for i in range(6)]
    right = sum(a == b for a, b in zip(draft, best))  # drafted words that stay
    c.text(left, 14, "the text", "strong", anchor="start")
    c.text(left + 3 * pitch, 14, "drafted", "strong", anchor="start")
    for i, word in enumerate(text + draft):
        c.box(left + pitch * i, 28, wide, high, word, kind="block" if i < 3 else "empty", face="small", round=3)
        c.wire((middle[i], 56), (middle[i], 76))
    c.box(left, 76, 5 * pitch + wide, 32, "one step of the model")
    for i, word in enumerate(best):
        kept = i <= right
        c.wire((middle[2 + i], 108), (middle[2 + i], 130), hue="o" if kept else "")
        c.box(left + pitch * (2 + i), 130, wide, high, word, kind="ofill" if kept else "empty",
              face="small" if kept else "small soft", round=3)
        if kept:
            c.wire((middle[2 + i], 158), (middle[2 + i], 172), (middle[3 + i], 190), (middle[3 + i], 212), hue="o")
    c.text(left, 144, "likeliest next", "small o", anchor="start")
    c.text(352, 172, "dropped", "small soft", anchor="end")
    for i, word in enumerate([*text, *best[: right + 1]]):
        c.box(left + pitch * i, 212, wide, high, word, kind="block" if i < 3 else "ofill", face="small", round=3)
    c.text((middle[3] + middle[4]) / 2, 256, "as drafted", "small")
    c.text(352, 256, f"not *{draft[right]}*", "small", anchor="end")
    c.text(left, 256, f"{right + 1} words in one step", "small o", anchor="start")


@drawing("directions-alike", 330, "An update whose directions count alike")
def directions_alike(c: Canvas) -> None:
    """At the left a circle of radius 1 with two perpendicular axes. At the top right what a matrix of two rows and two
    columns makes of it, an ellipse: one axis is longer than 1, the other much shorter. At the bottom right what the
    matrix makes of it without its singular values: a circle of radius 1, whose axes point as the ellipse's do."""
    G = torch.tensor([[0.6, 1.0], [-0.1, 0.45]], dtype=torch.double)
    U, S, VT = torch.linalg.svd(G)
    up = U[1].sign()  # the signs of a pair of singular vectors are free: the axes of the ellipse point up
    U, V = U * up, VT.T * up
    assert torch.allclose(U @ torch.diag(S) @ V.T, G)
    unit, left, right, middle, upper, lower = 52, 70, 240, 166, 84, 246

    def axes(x, y, directions, lengths, *words):
        for kind, i in (("", 0), ("dash", 1)):
            across, rise = (directions[:, i] * unit).tolist()
            c.wire((x, y), (x + lengths[i] * across, y - lengths[i] * rise), kind=kind)
            far = lengths[i] + (0.17 if across > 0.8 * unit else 0.27)
            anchor = "start" if across > 0.8 * unit else "middle"
            c.text(x + far * across, y - far * rise, words[i], "small", anchor=anchor)

    turn = torch.arange(73, dtype=torch.double) * (2 * math.pi / 72)
    ring = torch.stack([turn.cos(), turn.sin()]) * unit  # (2, 73)
    c.text(left, middle + unit + 18, "radius 1", "small soft")
    c.text(right, 16, "mean of the gradients, *USV*^{T}", "small")
    c.text(right, lower + unit + 18, "update, *UV*^{T}", "small")
    for x, y, matrix in ((left, middle, torch.eye(2).double()), (right, upper, G), (right, lower, U @ V.T)):
        points = (matrix @ ring).T.tolist()
        c.line("M" + "L".join(f"{n(x + a)} {n(y - b)}" for a, b in points) + "Z", "ring")
    axes(left, middle, V, (1, 1), "*v*_{1}", "*v*_{2}")
    axes(right, upper, U, S.tolist(), f"{S[0]:.1f} *u*_{{1}}", f"{S[1]:.1f} *u*_{{2}}")
    axes(right, lower, U, (1, 1), "*u*_{1}", "*u*_{2}")
    c.wire((left + 54, middle - 28), (right - 72, upper + 20))
    c.wire((left + 54, middle + 28), (right - 62, lower - 16))


@drawing("weights-map", 420, "A published model's weights and ours")
def weights_map(c: Canvas) -> None:
    """Two columns of names joined by wires, at the left those of a published Marian model, at the right ours: q_proj
    and W_Q, k_proj and W_K, v_proj and W_V, out_proj and W_O, fc1 and W_1, fc2 and W_2, layer_norm and norm, shared
    and embedding, final_logits_bias and output_bias. A box on each wire says along which axis the features change
    their order: columns, rows, entries, or not at all. Two more names, lm_head and embed_positions, end at a box
    that says compared and are dropped."""
    c.text(8, 14, "published", "strong", anchor="start")
    c.text(195, 14, "reordered", "strong")
    c.text(262, 14, "this book", "strong", anchor="start")
    pairs = [
        ("q_proj", "W_Q.weight", "q"), ("k_proj", "W_K.weight", "k"), ("v_proj", "W_V.weight", "v"),
        ("out_proj", "W_O.weight", "o"), ("fc1", "W_1.weight", ""), ("fc2", "W_2.weight", ""),
        ("layer_norm", "norm.gain", ""), ("shared", "embedding.weight", ""),
        ("final_logits_bias", "output_bias.bias", ""),
    ]  # fmt: skip
    for i, (theirs, ours, hue) in enumerate(pairs):
        y = 44 + 32 * i
        axis = _feature_axis(f".{ours}")
        word = "entries" if "gain" in ours else ("rows", "columns")[axis or 0]
        if axis is None or "output" in ours:
            word = "as it is"
        c.text(8, y, f"`{theirs}`", f"small {hue}".strip(), anchor="start")
        c.wire((12 + width(f"`{theirs}`", SMALL), y), (158, y), head=False, hue=hue)
        c.box(158, y - 11, 74, 22, word, face="small", round=4)
        c.wire((232, y), (258, y), hue=hue)
        name = ours.removesuffix(".weight").removesuffix(".bias")
        c.text(262, y, f"`{name}`", f"small {hue}".strip(), anchor="start")
    for i, name in enumerate(("lm_head", "embed_positions")):
        y = 44 + 32 * (len(pairs) + i)
        c.text(8, y, f"`{name}`", "small", anchor="start")
        c.wire((12 + width(f"`{name}`", SMALL), y), (158, y), head=False, kind="dash")
        c.box(158, y - 11, 86, 22, "compared", kind="empty", face="small", round=4)
        c.text(252, y, "dropped", "small soft", anchor="start")
    c.text(180, 404, "the order of sines and cosines decides", "small soft")


@drawing("feature-order", 190, "The same features in another order")
def feature_order(c: Canvas) -> None:
    """Two rows of six cells. Above, ours: sine, cosine, sine, cosine, sine, cosine of the angles 0, 1, 2. Below,
    the published order: the three sines, then the three cosines. A wire leads from each cell above to its place
    below."""
    d_model, cell, left = 6, 52, 24
    order = _feature_order(d_model).tolist()
    c.text(left, 14, "this book", "strong", anchor="start")
    for place, feature in enumerate(order):
        kind = "block" if feature % 2 else "dark"
        word = f"{'cos' if feature % 2 else 'sin'} {feature // 2}"
        c.box(left + feature * cell, 28, cell, 30, word, kind=kind, face="small", round=0)
        c.box(left + place * cell, 128, cell, 30, word, kind=kind, face="small", round=0)
        c.wire((left + (feature + 0.5) * cell, 58), (left + (place + 0.5) * cell, 128))
    c.text(left, 176, "published", "strong", anchor="start")


@drawing("marian-folder", 372, "What the files of a model folder do")
def marian_folder(c: Canvas) -> None:
    """A text goes down through the files of a published folder: source.spm cuts it into pieces, vocab.json gives
    them numbers, config.json and model.safetensors make logits of these, generation_config.json rules the search,
    vocab.json and target.spm turn numbers into the translated text."""
    c.text(104, 12, "English text")
    steps = (
        (("`source.spm`",), "cuts into pieces"),
        (("`vocab.json`",), "pieces to numbers"),
        (("`config.json`", "`model.safetensors`"), "numbers to logits"),
        (("`generation_config.json`",), "search: beam, rules"),
        (("`vocab.json`", "`target.spm`"), "numbers to text"),
    )
    y = 22
    for files, what in steps:
        high = 14 + 18 * len(files)
        c.wire((104, y), (104, y + 18))
        c.box(8, y + 18, 192, high, *files, face="small")
        c.text(212, y + 18 + high / 2, what, "small", anchor="start")
        y += 18 + high
    c.wire((104, y), (104, y + 18))
    c.text(104, y + 28, "German text")


@drawing("one-command", 356, "From two files to a model folder")
def one_command(c: Canvas) -> None:
    """Two files, train.en and train.de, lead into five steps, one under the other: hold out pairs, learn subwords,
    write text as numbers, train, average and score. Beside each step stands what it leaves in the folder: run.json,
    subwords.model, tokens, log.jsonl and checkpoints, model.safetensors and scores.json."""
    c.box(8, 8, 88, 28, "`train.en`", kind="block", face="small")
    c.box(108, 8, 88, 28, "`train.de`", kind="block", face="small")
    c.text(224, 22, "in the folder:", "small soft", anchor="start")
    steps = (
        ("hold out pairs", ("`run.json`",)),
        ("learn subwords", ("`subwords.model`",)),
        ("text to numbers", ("`tokens/`",)),
        ("train", ("`log.jsonl`", "`checkpoints/`")),
        ("average, score", ("`model.safetensors`", "`scores.json`")),
    )
    c.wire((52, 36), (52, 58))
    c.wire((152, 36), (152, 58))
    y = 58
    for i, (what, files) in enumerate(steps):
        if i:
            c.wire((102, y - 22), (102, y))
        box = c.box(8, y, 188, 40, what)
        c.wire((box.right, box.cy), (216, box.cy), hue="o")
        c.lines(220, box.cy, *files, kind="small", anchor="start", step=18)
        y += 62


@drawing("held-out-by-text", 296, "Held out by line, and by text")
def held_out_by_text(c: Canvas) -> None:
    """The same eight lines twice, four texts two times each. At the left every third line is held out, coloured,
    and a copy of each of these texts remains among the others. At the right all lines of two texts are held out, and
    no copy remains."""
    lines = ["Thanks.", "Hello.", "Thanks.", "Why?", "Hello.", "Come in.", "Come in.", "Why?"]
    third = [i % 3 == 2 for i in range(len(lines))]
    by_text = [line in {"Hello.", "Come in."} for line in lines]
    for x, title, held in ((8, "every third line", third), (188, "by the text", by_text)):
        gone = {line for line, h in zip(lines, held) if h}
        c.text(x, 14, title, "strong", anchor="start")
        leaks = 0
        for i, (line, h) in enumerate(zip(lines, held)):
            y = 32 + 28 * i
            leak = not h and line in gone
            leaks += leak
            c.box(x, y, 92, 24, line, kind="ofill" if h else "block", face="small", round=3)
            if h:
                c.text(x + 98, y + 12, "held out", "small o", anchor="start")
            elif leak:
                c.text(x + 98, y + 12, "a copy", "small", anchor="start")
        c.text(x, 274, f"copies in training: {leaks}", "small", anchor="start")


@drawing("stop-and-go-on", 250, "Stopped, and gone on with")
def stop_and_go_on(c: Canvas) -> None:
    """Two rows of ten cells, the updates of a training. Above, the first command is stopped after four updates and
    leaves a checkpoint. Below, the same command reads the checkpoint and makes the other six; the four are dashed.
    The weights at the end are the same bytes as those of a training that was never stopped."""
    cell, left, done, total = 32, 20, 4, 10
    for y, title, begun, end in ((14, "the command", 0, done), (122, "the same, again", done, total)):
        c.text(left if not begun else left + done * cell + 10, y, title, "strong", anchor="start")
        for i in range(total):
            kind = "dark" if begun <= i < end else "empty"
            c.box(left + i * cell, y + 18, cell, 26, str(i + 1), kind=kind, face="small", round=0)
    stop = left + done * cell
    c.wire((stop, 58), (stop, 140), hue="o")
    c.text(stop + 10, 74, "Ctrl-C: checkpoint", "small o", anchor="start")
    end = left + total * cell
    c.wire((end - cell / 2, 166), (end - cell / 2, 192))
    c.text(end, 206, "`model.safetensors`", "small", anchor="end")
    c.text(end, 228, "same bytes as without a stop", "small soft", anchor="end")
