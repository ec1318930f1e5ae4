"""Chapters 7 and 11: what a cache keeps, a step of decoding, and a search by hand."""

from annotated.decoding import length_penalty

from .canvas import Canvas, drawing

NEXT = {
    "start": {"a": 0.6, "b": 0.4, "end": 0.0},
    "a": {"a": 0.3, "b": 0.25, "end": 0.45},
    "b": {"a": 0.0, "b": 0.1, "end": 0.9},
}


def candidates() -> list[tuple[str, str, float, float]]:
    """The second step of the search by hand: parent, word, factor, probability of both."""
    return [(p, w, f, NEXT["start"][p] * f) for p in "ab" for w, f in NEXT[p].items()]


@drawing("decoding-step", 330, "A step of decoding with a key-value cache")
def decoding_step(c: Canvas) -> None:
    """The token sieht is read and becomes a query. The query attends first to the keys and values of bos, der, Hund
    and sieht: those of sieht, framed, are new, the others wait in the cache. Then it attends to the keys and values
    of the source, the dog sees the cat, made once by start. Logits follow, the likeliest token is die, and the next
    step reads it."""
    written, source, left = ["bos", "der", "Hund", "sieht"], ["the", "dog", "sees", "the", "cat"], 118
    c.box(8, 8, 76, 28, "sieht", kind="ofill")
    c.text(94, 22, "the last token written", "small soft", anchor="start")
    c.wire((46, 36), (46, 84))
    for y, title, words, note in (
        (54, "self-attention", written, "framed: new; the rest is cached"),
        (158, "cross-attention", source, "made once, by `start`"),
    ):
        c.text(left, y + 2, title, "strong", anchor="start")
        cell = 44
        for j, word in enumerate(words):
            c.text(left + (j + 0.5) * cell, y + 22, word, "small")
        c.block(left, y + 32, 1, len(words), cell, "kfill", high=16)
        c.block(left, y + 48, 1, len(words), cell, "vfill", high=16)
        c.text(left - 8, y + 40, "*K*", "small k", anchor="end")
        c.text(left - 8, y + 56, "*V*", "small v", anchor="end")
        c.text(left, y + 77, note, "small soft", anchor="start")
        c.block(35, y + 37, 1, 1, 22, "qfill")
        c.text(26, y + 48, "*Q*", "small q", anchor="end")
        c.wire((57, y + 48), (90, y + 48), hue="q")
    c.shape("rect", "ring", x=left + 3 * 44, y=86, width=44, height=32)
    c.wire((46, 113), (46, 195))
    c.wire((46, 217), (46, 256))
    c.box(8, 256, 76, 28, "logits")
    c.wire((84, 270), (118, 270))
    c.box(118, 256, 60, 28, "die", kind="ofill")
    c.text(188, 270, "the likeliest", "small soft", anchor="start")
    c.wire((148, 284), (148, 312), (352, 312), (352, 22), (250, 22), kind="dash")
    c.text(188, 300, "the next step reads it", "small soft", anchor="start")


@drawing("kept-keys", 280, "Keys and values computed and kept, without and with a cache")
def kept_keys(c: Canvas) -> None:
    """Two columns, without and with a cache, each with the keys and values of self-attention, one cell a target
    token, and of cross-attention, four cells for the memory; without a cache, steps 1 to 3 fill one, two and three
    cells of self-attention and each time all four of cross-attention; with a cache, start fills the memory's four,
    and each step fills one cell of self-attention and only outlines the earlier ones and the memory's, which are
    kept; new keys in all, and as many values, 6 and 12 without, 3 and 4 with."""
    cell, high, memory = 17, 14, 4
    without, cached = 62, 222

    def both(x: float, y: float, kept: int, new: int) -> None:
        """A row of keys and one of values: the kept ones outlined, then the new ones, filled."""
        for i, hue in enumerate("kv"):
            for at, count, kind in ((x, kept, f"wire {hue}"), (x + kept * cell, new, f"{hue}fill")):
                if count:
                    c.block(at, y + i * (high + 2), 1, count, cell, kind, high)

    sums = {}
    for x, title in ((without, "without a cache"), (cached, "with a cache")):
        across = x + 3 * cell + 14  # of cross-attention
        c.text(x + 66, 14, title, "strong")
        c.text(x + 1.5 * cell, 36, "self", "small")
        c.text(across + memory / 2 * cell, 36, "cross", "small")
        filled = [0, 0]
        for step in range(4):  # 0 is start
            y, again = 50 + 46 * step, x == without
            own = (0, step) if again else (max(step - 1, 0), min(step, 1))
            other = (0, memory if step else 0) if again else (memory if step else 0, 0 if step else memory)
            both(x, y, *own)
            both(across, y, *other)
            filled = [filled[0] + own[1], filled[1] + other[1]]
            if step or not again:
                beside = x if step else across
                c.text(beside - 4, y + 7, "*K*", "small k", anchor="end")
                c.text(beside - 4, y + 23, "*V*", "small v", anchor="end")
        sums[x + 1.5 * cell], sums[across + memory / 2 * cell] = filled
    for step in range(4):
        words, face = (f"step {step}", "small") if step else ("start", "small code")
        c.text(4, 65 + 46 * step, words, face, anchor="start")
    c.line("M4 230H356", "rule")
    c.text(4, 243, "new keys", "small", anchor="start")
    for x, count in sums.items():
        c.text(x, 243, str(count), "small strong")
    for x, kinds, words in ((without, ("kfill", "vfill"), "computed now"), (cached, ("wire k", "wire v"), "kept")):
        for i, kind in enumerate(kinds):
            c.block(x + i * (cell + 2), 257, 1, 1, cell, kind, high)
        c.text(x + 44, 264, words, "small", anchor="start")


@drawing("beam-by-hand", 262, "Beam search by hand, two places")
def beam_by_hand(c: Canvas) -> None:
    """From start, the words a with 0.6 and b with 0.4 are kept, end has 0. From a go a 0.18, b 0.15 and end 0.27;
    from b go a 0, b 0.04 and end 0.36. Of these six the two of highest probability are kept, drawn solid: a end and
    b end. Greedy search follows a and gives a end; the best sentence is b end."""
    c.text(180, 14, "start")
    wide, pitch = 54, 60
    place = {"a": 90, "b": 270}
    for word, p in NEXT["start"].items():
        x, stays = place.get(word, 180), p > 0
        c.wire((180, 24), (x, 52), hue="o" if stays else "", kind="" if stays else "dash", head=False)
        c.box(x - wide / 2, 52, wide, 42, word, f"{p:g}", kind="ofill" if stays else "empty",
              face="small" if stays else "small soft", round=4)
    grown = candidates()
    best = sorted(grown, key=lambda g: -g[3])[:2]
    for i, (parent, word, factor, p) in enumerate(grown):
        x, stays = 30 + pitch * i, grown[i] in best
        c.wire((place[parent], 94), (x, 134), hue="o" if stays else "", kind="" if stays else "dash", head=False)
        c.box(x - wide / 2, 134, wide, 60, word, f"× {factor:g}", f"{p:.2g}", kind="ofill" if stays else "empty",
              face="small" if stays else "small soft", round=4)
    c.text(150, 210, "greedy", "small")
    c.text(330, 210, "the best", "small")
    c.text(180, 248, "solid: the two places of the beam", "small soft")


@drawing("beam-step", 350, "A step of beam search as arrays")
def beam_step(c: Canvas) -> None:
    """Two rows of three candidates, the continuations of the hypotheses a and b by the tokens a, b and end: 0.18,
    0.15, 0.27 and 0, 0.04, 0.36. They are written as one row of six, numbered from 0; the two largest are number 5
    and number 2. Number 5 divided by 3 is row 1, remainder 2: parent b, token end. Number 2 is parent a, token end.
    Below, the rows of the cache are exchanged: row 1 of before comes first, then row 0."""
    grown = candidates()
    cell, high, left = 52, 26, 24
    c.text(8, 14, "candidates", "strong", anchor="start")
    c.text(352, 14, "(B, k, vocab)", "small code", anchor="end")
    for j, word in enumerate(NEXT["a"]):
        c.text(left + (j + 0.5) * cell, 34, word, "small")
    best = sorted(range(6), key=lambda i: -grown[i][3])[:2]
    for i, (_, _, _, p) in enumerate(grown):
        x, y = left + (i % 3) * cell, 44 + (i // 3) * high
        c.box(x, y, cell, high, f"{p:.2g}", kind="ofill" if i in best else "empty", face="small", round=0)
    c.text(left + 3 * cell + 10, 57, "hypothesis a", "small soft", anchor="start")
    c.text(left + 3 * cell + 10, 83, "hypothesis b", "small soft", anchor="start")
    c.wire((102, 100), (102, 118))
    c.text(8, 128, "in one row", "strong", anchor="start")
    c.text(352, 128, "(B, k · vocab)", "small code", anchor="end")
    for i, (_, _, _, p) in enumerate(grown):
        x = 24 + i * cell
        c.box(x, 142, cell, high, f"{p:.2g}", kind="ofill" if i in best else "empty", face="small", round=0)
        c.text(x + cell / 2, 178, str(i), "small soft")
    c.wire((102, 190), (102, 208))
    c.text(8, 218, "the k largest", "strong", anchor="start")
    c.text(352, 218, "(B, k)", "small code", anchor="end")
    for row, i in enumerate(best):
        y = 240 + 22 * row
        c.text(24, y, f"number {i}", "small", anchor="start")
        c.text(112, y, f"parent {i // 3} = *{grown[i][0]}*", "small", anchor="start")
        c.text(230, y, f"token {i % 3} = *{grown[i][1]}*", "small", anchor="start")
    c.text(8, 292, "the cache follows", "strong", anchor="start")
    for row, i in enumerate(best):
        y = 306 + 20 * row
        for x, which in ((60, row), (244, i // 3)):
            c.block(x, y, 1, 2, 28, "kfill", high=15)
            c.text(x - 10, y + 8, "ab"[which], "small", anchor="end")
        c.wire((124, 306 + 20 * (i // 3) + 8), (222, y + 8))


@drawing("when-to-stop", 296, "When a search may stop")
def when_to_stop(c: Canvas) -> None:
    """Two panels over one axis of scores, better to the right. A dot is the best finished hypothesis; two bars are
    unfinished ones, each from its score if it ended now to the best that it can still reach. Above, one of the bars
    reaches beyond the dot: go on. Below, one step later, both end left of the dot: stop."""
    limit, alpha, dot = 12, 0.6, -1.25

    def x(score: float) -> float:
        return 352 + 110 * (score + 0.4)

    for y, title, unfinished, length in ((14, "go on", (-1.85, -2.4), 5), (148, "stop", (-2.5, -2.95), 6)):
        c.text(8, y, title, "strong", anchor="start")
        c.shape("circle", "obar", cx=x(dot), cy=y + 26, r=6)
        c.text(x(dot) - 12, y + 26, "best finished", "small o", anchor="end")
        c.line(f"M{x(dot):.1f} {y + 34}V{y + 98}", "wire dash")
        for i, log_p in enumerate(unfinished):
            now, most = (log_p / length_penalty(n, alpha) for n in (length, limit))
            c.bar(x(now), y + 46 + 28 * i, x(most) - x(now), 14)
            c.text(x(now) - 8, y + 53 + 28 * i, "unfinished", "small", anchor="end")
        c.line(f"M8 {y + 104}H352", "rule")
    c.text(8, 280, "bar: from ending now to the limit", "small soft", anchor="start")
    c.text(352, 280, "score →", "small soft", anchor="end")
