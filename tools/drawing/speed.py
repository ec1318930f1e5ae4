"""Chapter 14: a roofline, the loss in pieces, and sentences without padding."""

from drawing.canvas import Canvas, drawing


@drawing("roofline", 268, "What limits a kernel")
def roofline(c: Canvas) -> None:
    """A roof over the operations for each byte: its slope is the rate of the memory, its level part lies at the rate of
    arithmetic. Sums, norms and softmax stand under the slope, the large products under the level part. One arrow
    moves a kernel to the right, which fewer bytes do; another raises the level part, which faster products do."""
    c.wire((34, 226), (350, 226), kind="soft")
    c.wire((34, 226), (34, 12), kind="soft")
    c.text(192, 244, "operations for each byte", "small soft")
    c.text(42, 16, "operations a second", "small soft", anchor="start")
    c.line("M44 200L190 70H346")
    c.text(346, 56, "rate of arithmetic", "small", anchor="end")
    c.text(44, 104, "rate of memory", "small", anchor="start")
    for x, y in ((72, 194), (96, 176), (124, 158)):
        c.dot(x, y, r=4)
    c.lines(146, 194, "sums, norms,", "softmax", kind="small", anchor="start", step=15)
    for x in (256, 290, 322):
        c.dot(x, 92, r=4)
    c.text(289, 112, "large products", "small")
    c.wire((130, 158), (166, 130))
    c.text(174, 138, "fewer bytes", "small", anchor="start")
    c.wire((204, 68), (204, 34))
    c.text(212, 30, "faster products", "small", anchor="start")


@drawing("loss-in-pieces", 232, "The loss in pieces")
def loss_in_pieces(c: Canvas) -> None:
    """At the left the decoder's output, a row for each position, cut into four pieces. One piece meets the tied
    matrix and gives its logits, as wide as the vocabulary; from these come its part of the loss and of the gradient,
    and the logits are dropped. The logits of the other pieces are dashed, because they are not there at the time."""
    top, high = 44, 40
    c.text(34, 22, "output", "o")
    c.text(184, 22, "logits")
    for i in range(4):
        y = top + high * i
        now = i == 1
        c.box(12, y, 44, high, kind="ofill" if now else "box", round=0)
        c.box(104, y, 160, high, kind="block" if now else "empty", round=0)
    y = top + 1.5 * high
    c.wire((58, y), (102, y))
    c.text(80, y - 14, "*W*^{T}", "small")
    c.lines(184, y, "softmax minus target", kind="small")
    c.wire((266, y), (292, y))
    c.lines(298, y - 9, "loss", "gradient", kind="small", anchor="start", step=18)
    c.text(184, top + 2.5 * high, "next", "small soft")
    c.text(184, top + 0.5 * high, "dropped", "small soft")
    c.text(180, 218, "a piece: 4,096 positions at a time", "small soft")


@drawing("unpadded", 330, "Sentences without padding")
def unpadded(c: Canvas) -> None:
    """Three sentences of five, two and four tokens, first as a padded table of three rows in which the empty places
    are dashed, then as one row of eleven tokens. Below, the attention weights as a square of eleven by eleven, in
    which only three blocks on the diagonal are filled."""
    lengths, cell = (5, 2, 4), 20
    fills = ("dark", "box", "block")
    c.text(12, 16, "15 places", "small", anchor="start")
    for row, (length, kind) in enumerate(zip(lengths, fills)):
        for place in range(5):
            x, y = 12 + cell * place, 28 + cell * row
            c.box(x, y, cell, cell, kind=kind if place < length else "empty", round=0)
    c.text(134, 36, "11 tokens", "small", anchor="start")
    c.wire((116, 58), (130, 58))
    at = 0
    square, small = 136, 14
    for length, kind in zip(lengths, fills):
        for _ in range(length):
            c.box(134 + cell * at, 48, cell, cell, kind=kind, round=0)
            at += 1
    n = sum(lengths)
    c.text(square + n * small / 2, 118, "keys", "k")
    c.text(square - 14, 134 + n * small / 2, "queries", "q", anchor="end")
    c.box(square, 134, n * small, n * small, kind="empty", round=0)
    begin = 0
    for length in lengths:
        side = length * small
        c.box(square + begin * small, 134 + begin * small, side, side, kind="dark", round=0)
        begin += length
    c.text(square + n * small / 2, 306, "each sentence attends to itself", "small soft")
