"""Chapters 2 and 4: attention, its heads and its three uses."""

import torch

from annotated.attention import attention_weights, scaled_dot_product_attention
from annotated.masks import causal_mask

from .canvas import ROOT, Canvas, drawing

HUES = {"Q": "q", "K": "k", "V": "v"}


def by_hand() -> list[torch.Tensor]:
    """Q, K and V of the first example of chapter 2, as the chapter has them."""
    given = {"torch": torch}
    for line in (ROOT / "book" / "02-attention.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(("Q = torch.tensor(", "K = torch.tensor(", "V = torch.tensor(")) and line[0] not in given:
            exec(line, given)
    return [given[name] for name in "QKV"]


@drawing("figure-2-attention", 404, "Scaled dot-product attention")
def figure_2_attention(c: Canvas) -> None:
    """Q, of three rows and four columns, meets the transposed K, four rows and five columns, in a matrix of three
    by five scores. They are divided by the root of d_k, masked, and made weights by a softmax. The weights meet V,
    five rows and two columns, in the output, three rows and two columns. One row is framed all the way: one query,
    one row of scores, one output."""
    torch.manual_seed(3)
    T, S, d_k, d_v, cell = 3, 5, 4, 2, 18
    K = c.block(142, 30, d_k, S, cell, "kfill")
    Q = c.block(34, 124, T, d_k, cell, "qfill")
    scores = c.block(142, 124, T, S, cell)
    weights = attention_weights(2 * torch.randn(T, d_k), torch.randn(S, d_k)).tolist()
    W = c.weights(142, 322, weights, cell)
    V = c.block(284, 208, S, d_v, cell, "vfill")
    out = c.block(284, 322, T, d_v, cell, "ofill")
    c.text(K.cx, 14, "K^{T} `(d_k, S)`", "k")
    c.text(Q.cx, 108, "Q `(T, d_k)`", "q")
    c.text(V.cx, 192, "V `(S, d_v)`", "v")
    c.text(242, scores.cy - 9, "scores QK^{T}", anchor="start")
    c.text(242, scores.cy + 9, "`(T, S)`", anchor="start")
    c.text(132, W.cy - 9, "weights", anchor="end")
    c.text(132, W.cy + 9, "`(T, S)`", anchor="end")
    c.text(354, 388, "output `(T, d_v)`", "o", anchor="end")
    c.wire((Q.right, Q.cy), (scores.left, Q.cy), hue="q")
    c.wire((K.cx, K.bottom), (K.cx, scores.top), hue="k")
    above = scores.bottom
    for y, words, note in ((196, "scale", "÷ √`d_k`"), (236, "mask", "hide keys"), (276, "softmax", "rows sum to 1")):
        c.wire((187, above), (187, y))
        c.box(137, y, 100, 27, words)
        c.text(127, y + 13.5, note, "small soft", anchor="end")
        above = y + 27
    c.wire((187, above), (187, W.top))
    c.wire((W.right, W.cy), (out.left, W.cy))
    c.wire((V.cx, V.bottom), (V.cx, out.top), hue="v")
    for area in (Q, scores, W, out):
        c.shape("rect", "ring", x=area.x, y=area.y + cell, width=area.w, height=cell)
    c.text(12, 388, "framed: one query", "small soft", anchor="start")


@drawing("figure-2-heads", 452, "Multi-head attention")
def figure_2_heads(c: Canvas) -> None:
    """Three projections, W_Q of x, W_K and W_V of the memory, hand each of four heads its own narrow queries, keys
    and values. Each head attends by itself. The four results, side by side, pass through W_O and are as wide as x
    again."""
    h, cell, centres = 4, 7, [54, 138, 222, 306]
    sources = (
        ("Q", "x", 78, "qfill", 92, -21),
        ("K", "memory", 180, "kfill", 101, 0),
        ("V", "memory", 282, "vfill", 110, 21),
    )
    for name, source, x, _, bus, offset in sources:
        hue = HUES[name]
        c.text(x, 10, f"`{source}`")
        c.text(x, 26, f"`(B,{'T' if source == 'x' else 'S'},d_model)`", "small soft")
        c.wire((x, 34), (x, 47))
        box = c.box(x - 38, 47, 76, 26, f"`W_{name}`", face=hue)
        ends = [centre + offset for centre in centres]
        c.line(f"M{x} {box.bottom}V{bus}M{ends[0]} {bus}H{ends[-1]}", f"wire {hue}")
        c.dot(x, bus, hue)
    for i, centre in enumerate(centres):
        for name, _, _, kind, bus, offset in sources:
            rows = 3 if name == "Q" else 5
            x = centre + offset
            area = c.block(x - cell, 172 - rows * cell, rows, 2, cell, kind)
            c.wire((x, bus), (x, area.top), hue=HUES[name])
            c.wire((x, 172), (x, 188), head=False, hue=HUES[name])
        box = c.box(centre - 37, 188, 74, 44, "attention", f"head {i + 1}", face="small")
        head = c.block(centre - cell, 248, 3, 2, cell, "ofill")
        c.wire((centre, box.bottom), (centre, head.top))
        to = 180 + (i - (h - 1) / 2) * 2 * 2 * cell
        level = 278 if i in (1, 2) else 286
        c.wire((centre, head.bottom), (centre, level), (to, level), (to, 304), hue="o")
    both = c.block(180 - 4 * 2 * cell, 304, 3, 2 * h, 2 * cell, "ofill", high=cell)
    c.text(116, both.cy, "concatenate", "small", anchor="end")
    c.text(244, both.cy, "`(B,T,h·d_v)`", "small", anchor="start")
    c.wire((180, both.bottom), (180, 344), hue="o")
    box = c.box(142, 344, 76, 28, "`W_O`", face="o")
    out = c.block(180 - 4 * 2 * cell, 390, 3, 2 * h, 2 * cell, "ofill", high=cell)
    c.wire((180, box.bottom), (180, out.top), hue="o")
    c.text(116, out.cy, "output", "small", anchor="end")
    c.text(244, out.cy, "`(B,T,d_model)`", "small", anchor="start")
    c.text(4, 435, "a head:", "small", anchor="start")
    for x, name, shape in ((62, "Q", "(T,d_k)"), (164, "K", "(S,d_k)"), (264, "V", "(S,d_v)")):
        c.text(x, 435, f"{name} `{shape}`", f"small {HUES[name]}", anchor="start")


@drawing("attention-by-hand", 382, "Attention by hand")
def attention_by_hand(c: Canvas) -> None:
    """Three queries against two keys. For each query two bars show the scaled scores, two cells the weights of the
    softmax, and a dot on the line from the first value, 10, to the second, 20, the weighted sum: near 10 for the
    first query, near 20 for the second, in the middle for the third."""
    Q, K, V = by_hand()
    scaled = (Q @ K.T / Q.shape[-1] ** 0.5).tolist()
    weights = attention_weights(Q, K).tolist()
    output = scaled_dot_product_attention(Q, K, V).flatten().tolist()
    values = V.flatten().tolist()
    for j, key in enumerate(K.tolist()):
        y = 12 + 30 * j
        c.text(8, y + 9, f"key {j + 1}", "k", anchor="start")
        row_of_numbers(c, 62, y, key, "kfill")
        c.text(158, y + 9, f"value {j + 1}", "v", anchor="start")
        c.box(222, y, 34, 18, f"{values[j]:g}", kind="vfill", face="small", round=0)
    for x, words in ((8, "queries"), (104, "scores ÷ √`d_k`"), (206, "weights"), (300, "output")):
        c.text(x, 94, words, "small soft", anchor="start")
    unit = 60 / max(max(row) for row in scaled)
    for t, query in enumerate(Q.tolist()):
        y = 112 + 92 * t
        c.line(f"M8 {y - 6}H352", "rule")
        c.text(8, y + 16, f"query {t + 1}", "q", anchor="start")
        row_of_numbers(c, 8, y + 34, query, "qfill")
        for j, score in enumerate(scaled[t]):
            at = y + 10 + 36 * j
            c.bar(104, at, unit * score, 18, "k")
            c.text(104 + unit * score + 6, at + 9, f"{score:g}", "small", anchor="start")
        c.weights(208, y + 4, [[w] for w in weights[t]], 42, digits=2, high=34)
        for j, value in enumerate(values):
            c.text(254, y + 21 + 34 * j, f"× {value:g}", "small v", anchor="start")
        low, high = 304, 350
        at = low + (high - low) * (output[t] - values[0]) / (values[1] - values[0])
        c.line(f"M{low} {y + 44}H{high}M{low} {y + 40}v8M{high} {y + 40}v8")
        c.dot(at, y + 44, "o", 5)
        c.text(min(max(at, 318), 340), y + 24, f"{output[t]:.3g}", "o strong")
        c.text(low, y + 62, f"{values[0]:g}", "small v")
        c.text(high, y + 62, f"{values[1]:g}", "small v")


def row_of_numbers(c: Canvas, x, y, numbers, kind: str) -> None:
    """A vector with its numbers."""
    for i, number in enumerate(numbers):
        c.box(x + 20 * i, y, 20, 18, f"{number:g}", kind=kind, face="small", round=0)


@drawing("split-heads", 448, "From one wide matrix to heads, and back")
def split_heads(c: Canvas) -> None:
    """A matrix of five rows and twelve columns; the columns are cut into three groups of four, a head each; then
    the groups stand apart, five rows by four columns a head. One word's row is framed in each of the three
    pictures. A line leads back from the heads to the wide matrix."""
    T, h, d_k, cell = 5, 3, 4, 14
    x = 24
    c.text(x, 14, "`(B, T, h * d_k)`", anchor="start")
    whole = c.block(x, 28, T, h * d_k, cell, "qfill")
    c.line("".join(f"M{x + i * d_k * cell} 28v{T * cell}" for i in range(1, h)), "wire q dash")
    c.shape("rect", "ring", x=x, y=28 + cell, width=h * d_k * cell, height=cell)
    c.wire((108, whole.bottom + 4), (108, 142))
    c.text(118, 121, "`unflatten(-1, (h, -1))`", "small", anchor="start")
    c.text(x, 156, "`(B, T, h, d_k)`", anchor="start")
    for t in range(T):
        for i in range(h):
            c.block(x + i * (d_k * cell + 6), 170 + t * (cell + 5), 1, d_k, cell, "qfill")
    c.shape("rect", "ring", x=x - 3, y=170 + cell + 5 - 2.5, width=h * d_k * cell + 18, height=cell + 5)
    c.wire((114, 266), (114, 300))
    c.text(124, 280, "`transpose(1, 2)`", "small", anchor="start")
    c.text(x, 314, "`(B, h, T, d_k)`", anchor="start")
    for i in range(h):
        at = x + i * (d_k * cell + 34)
        head = c.block(at, 330, T, d_k, cell, "qfill")
        c.shape("rect", "ring", x=at, y=330 + cell, width=d_k * cell, height=cell)
        c.text(head.cx, head.bottom + 16, f"head {i + 1}", "small soft")
    c.wire((272, 365), (336, 365), (336, 63), (whole.right + 4, 63))
    c.text(330, 84, "`transpose(1, 2)`", "small", anchor="end")
    c.text(330, 100, "`.flatten(2)`", "small", anchor="end")
    c.text(24, 438, "framed: one word", "small soft", anchor="start")


@drawing("three-uses", 456, "Where queries, keys and values come from")
def three_uses(c: Canvas) -> None:
    """Three rows. In the encoder's self-attention queries, keys and values all come from the five source positions,
    and all may attend to all. In the decoder's masked self-attention all come from the three target positions, and
    the table of allowed pairs is a triangle. In cross-attention the queries come from the target, keys and values
    from the encoder's memory."""
    T, S, cell = 3, 5, 12
    uses = (
        ("encoder self-attention", ("source", S), ("source", S), torch.ones(S, S)),
        ("masked decoder self-attention", ("target", T), ("target", T), causal_mask(T)),
        ("cross-attention", ("target", T), ("memory", S), torch.ones(T, S)),
    )
    for i, (title, asks, told, allowed) in enumerate(uses):
        y = 14 + 142 * i
        c.text(8, y, title, "strong", anchor="start")
        if asks == told:
            area = c.block(24, y + 60 - asks[1] * cell / 2, asks[1], 4, cell)
            c.text(area.cx, area.bottom + 14, asks[0], "small")
            starts = [(area.right, area.cy + d) for d in (-8, 0, 8)]
        else:
            upper = c.block(24, y + 18, asks[1], 4, cell)
            lower = c.block(24, y + 78, told[1], 4, cell)
            c.text(upper.cx, upper.bottom + 11, asks[0], "small")
            c.text(lower.cx, lower.bottom + 11, told[0], "small")
            starts = [(upper.right, upper.cy), (lower.right, lower.cy - 6), (lower.right, lower.cy + 6)]
        box = c.box(148, y + 26, 82, 68, "attention")
        for (x, at), name, to in zip(starts, "QKV", (-22, 0, 22)):
            goal = box.cy + to
            bend = 96 if name == "Q" else 104 if name == "K" else 112
            c.wire((x, at), (bend, at), (bend, goal), (box.left, goal), hue=HUES[name])
            c.text(135, goal - 10, name, f"small {HUES[name]}")
        rows, columns = allowed.shape
        if not i:
            c.text(262, y + 8, "its mask", "small soft", anchor="start")
        x, top = 262, box.cy - rows * cell / 2
        c.wire((x - 4, box.cy), (box.right, box.cy))
        c.table(x, top, allowed, cell)
        letters = ", ".join("S" if size == S else "T" for size in (rows, columns))
        c.text(x + columns * cell / 2, top + rows * cell + 14, f"`({letters})`", "small")
    for i in (1, 2):
        c.line(f"M8 {142 * i - 4}H352", "rule")


@drawing("favourite-keys", 262, "Which keys can be a favourite")
def favourite_keys(c: Canvas) -> None:
    """Left, eight keys as dots on a line; only the two at the ends are coloured, and an arrow for a query above 0
    points to the right, one for a query below 0 to the left. Right, eight keys as dots in the plane; the five on
    their convex hull, a thin outline, are coloured, the three inside it are grey. An arrow for a query points up and
    right from 0; a dashed line at a right angle to it touches the hull at one key, the query's favourite."""
    line, plane = (torch.randn(8, d_k, generator=torch.Generator().manual_seed(306)) for d_k in (1, 2))
    angles = torch.linspace(0, 2 * torch.pi, 2001)
    around = torch.stack([angles.cos(), angles.sin()], 1)
    corners = list(dict.fromkeys((around @ plane.T).argmax(-1).tolist()))
    ends = {int(line.argmin()), int(line.argmax())}
    c.text(8, 16, "`d_k` = 1", "strong", anchor="start")
    c.text(196, 16, "`d_k` = 2", "strong", anchor="start")

    zero, y = 94, 134
    at = [zero + 34 * x for x in line.flatten().tolist()]
    c.line(f"M{min(at)} {y}H{max(at)}", "rule k")
    c.line(f"M{zero} {y - 9}v18")
    for i, x in enumerate(at):
        c.dot(x, y, "k" if i in ends else "", 5)
    c.text(zero, y + 20, "0", "small soft")
    c.wire((zero, y - 34), (zero + 56, y - 34), hue="q")
    c.text(zero, y - 48, "query > 0", "small q", anchor="start")
    c.wire((zero, y + 58), (zero - 56, y + 58), hue="q")
    c.text(zero, y + 44, "query < 0", "small q", anchor="end")
    c.text(8, 250, f"{len(ends)} favourites of 8", anchor="start")

    unit, x0, y0 = 38, 246, 122
    points = [(x0 + unit * x, y0 - unit * z) for x, z in plane.tolist()]
    c.line("M" + "L".join(f"{points[i][0]:.2f} {points[i][1]:.2f}" for i in corners) + "Z", "rule k")
    (ux, uy), far = (0.5, 0.75**0.5), 2.3
    best = int((plane @ torch.tensor([ux, uy])).argmax())
    bx, by = points[best]
    c.line(f"M{bx - 56 * uy:.2f} {by - 56 * ux:.2f}L{bx + 52 * uy:.2f} {by + 52 * ux:.2f}", "wire dash")
    c.wire((x0, y0), (x0 + unit * far * ux, y0 - unit * far * uy), hue="q")
    for i, (x, z) in enumerate(points):
        c.dot(x, z, "k" if i in corners else "", 5)
    c.text(x0 - 6, y0 + 3, "0", "small soft", anchor="end")
    c.text(x0 + unit * far * ux - 10, y0 - unit * far * uy - 3, "query", "small q", anchor="end")
    c.text(bx + 6, by - 16, "favourite", "small k", anchor="start")
    c.text(196, 250, f"{len(corners)} favourites of 8", anchor="start")
