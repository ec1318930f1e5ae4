"""Chapters 17 to 19: ablations, parsing, and attention of trained models."""

import functools

import annotated
from annotated.figures import look
from annotated.parsing import _parse_brackets, _spans
from annotated.variations import BASE, _prediction_interval, shrink

from .canvas import ROOT, Canvas, drawing, n, width

MAKES = "She makes my life more difficult."
IT = "A queen has read the long book because a hungry man sees it."
SOLD = "Tom sold his car because it was too old."
FAR = "My aunt buys the book because the kings can see the red lamp."


@functools.cache
def looked(model: str, sentence: str):
    """The attention maps of a model in results/ on one sentence."""
    return look(annotated.load(ROOT / "results" / model), sentence)


def thick(weight: float, most: float) -> float:
    """How thick a weight is drawn: in steps, so that the last digits of a machine do not show."""
    return round(weight * 20) / 20 * most


def shown(token: str) -> str:
    """A token without the mark of pieces that continue a word."""
    return token.removeprefix("·").replace("<eos>", "eos")


@drawing("figure-3", 338, "Three heads from the verb makes")
def figure_3(c: Canvas) -> None:
    """The same sentence three times, once for each of three heads: She makes my life more difficult. Arcs lead from
    the verb makes to the words that it attends to, the thicker the larger the weight. In two heads of layer 1 the
    thickest end at life and at difficult, in a head of layer 4 at difficult; a number stands below each word."""
    m = looked("tatoeba-en-de", MAKES)
    tokens = [shown(token) for token in m.source]
    query, gap = m.source.index("makes"), 9.0
    sizes = [max(width(token, 13), 20) for token in tokens]
    left = (360 - sum(sizes) - gap * (len(sizes) - 1)) / 2
    places = [left + sum(sizes[:i]) + gap * i + sizes[i] / 2 for i in range(len(sizes))]
    ends = [m.source.index(word) for word in ("more", "difficult")]
    both = m.weights["encoder"][:, :, query, ends].sum(-1)  # (N, h)
    most = sorted(divmod(int(i), both.shape[1]) for i in both.flatten().topk(3).indices)
    for row, (layer, head) in enumerate(most):
        base = 80 + 112 * row
        c.text(8, base - 64, f"layer {layer + 1}, head {head + 1}", "small soft", anchor="start")
        weights = m.weights["encoder"][layer, head, query].tolist()
        for i, (token, weight) in enumerate(zip(tokens, weights)):
            if i != query and (w := thick(weight, 14)):
                arc(c, places[query], places[i], base - 10, w)
            kind = "strong q" if i == query else "k" if weight > 0.2 else "soft"
            c.text(places[i], base, token, f"small {kind}")
            c.text(places[i], base + 17, f"{weight:.1f}".removeprefix("0").replace(".0", "0"), "small soft")


def arc(c: Canvas, a: float, b: float, y: float, w: float) -> None:
    """A filled arc from a to b above y, w thick at its middle."""
    high, middle = 22 + 0.3 * abs(b - a), (a + b) / 2
    outer, inner = y - high - w, y - high + w
    d = f"M{n(a)} {n(y)}Q{n(middle)} {n(outer)} {n(b)} {n(y)}Q{n(middle)} {n(inner)} {n(a)} {n(y)}Z"
    c.line(d, "bar kbar")


@drawing("figure-4", 336, "Two heads from the pronoun it")
def figure_4(c: Canvas) -> None:
    """The words of A queen has read the long book because a hungry man sees it, one below the other. From it, near
    the end, two thick arcs lead up to book, six words before: one at the left, one at the right, each of another
    head."""
    m = looked("grammar-tiny", IT)
    tokens = [shown(token) for token in m.source]
    query, step = tokens.index("it"), 20
    heads = m.weights["encoder"][:, :, query]  # (N, h, S)
    best = heads[..., tokens.index("book")].flatten().topk(2).indices.tolist()
    for i, token in enumerate(tokens):
        kind = "strong q" if i == query else "k" if token == "book" else "soft"
        c.text(180, 44 + step * i, token, kind)
    for side, number in zip((-1, 1), best):
        layer, head = divmod(number, heads.shape[1])
        anchor = "start" if side < 0 else "end"
        c.text(180 + side * 172, 16, f"layer {layer + 1}, head {head + 1}", "small soft", anchor)
        for i, weight in enumerate(heads[layer, head].tolist()):
            if i != query and (w := thick(weight, 16)) > 0.8:
                edge = 180 + side * 36
                a, b = 44 + step * query, 44 + step * i
                far, middle = side * (34 + 0.5 * abs(a - b)), (a + b) / 2
                outer, inner = edge + far + w, edge + far - w
                there = f"M{n(edge)} {n(a)}Q{n(outer)} {n(middle)} {n(edge)} {n(b)}"
                c.line(f"{there}Q{n(inner)} {n(middle)} {n(edge)} {n(a)}Z", "bar kbar")


def apart(weights) -> tuple[int, int, int]:
    """Of weights (N, h, S, S) the layer and its two heads, one of which gives more to later words and the other more
    to earlier ones than any other two do."""
    later, earlier = (side.sum((-2, -1)) for side in (weights.triu(1), weights.tril(-1)))  # (N, h)
    layer = int((later.amax(1) + earlier.amax(1)).argmax())
    return layer, int(later[layer].argmax()), int(earlier[layer].argmax())


@drawing("figure-5", 262, "Two heads of different structure")
def figure_5(c: Canvas) -> None:
    """Tom sold his car because it was too old, in two panels of two columns, queries at the left and keys at the
    right; lines join them, the thicker the larger the weight. In the first panel most lines lead down, to a word
    further on; in the second they lead up, to words before."""
    m = looked("tatoeba-en-de", SOLD)
    tokens = [shown(token) for token in m.source]
    layer, *heads = apart(m.weights["encoder"])
    for x, head in zip((8, 192), heads):
        c.text(x, 14, f"layer {layer + 1}, head {head + 1}", "small soft", anchor="start")
        for i, token in enumerate(tokens):
            y = 42 + 20 * i
            c.text(x, y, token, "small q", anchor="start")
            c.text(x + 160, y, token, "small k", anchor="end")
        for t, row in enumerate(m.weights["encoder"][layer, head].tolist()):
            for s, weight in enumerate(row):
                if (w := thick(weight, 6)) > 0.8:
                    a, b = 42 + 20 * t, 42 + 20 * s
                    left, right = x + 58, x + 102
                    d = f"M{left} {n(a - w / 2)}L{right} {n(b - w / 2)}V{n(b + w / 2)}L{left} {n(a + w / 2)}Z"
                    c.line(d, "bar kbar")


@drawing("long-short", 248, "From the far German verb to the near English one")
def long_short(c: Canvas) -> None:
    """Two clauses, one above the other: weil die Könige die rote Lampe sehen können, and because the kings can see the
    red lamp. A dashed arrow from the last German word, können, back to Könige is crossed out: no head of the decoder
    gives more than 0.00. A thick arrow leads from können down to can, weight 1.00, and another from can to kings, the
    word before it, weight 1.00."""
    m = looked("grammar-tiny", FAR)
    verb, subject = m.source.index("can"), m.source.index("kings")
    said, noun = m.target.index("können"), m.target.index("Könige")  # places among the keys; bos is key 0
    back = m.weights["decoder"][:, :, said - 1, noun].max().item()  # the row before writes the verb
    across = m.weights["cross"][:, :, said - 1, verb].max().item()
    near = m.weights["encoder"][:, :, verb, subject].max().item()
    german = clause(c, 92, m.target[m.target.index("weil") :], {"können": "strong q", "Könige": "soft"})
    english = clause(c, 176, m.source[m.source.index("because") :], {"can": "strong k", "kings": "strong k"})
    a, b = german["können"], german["Könige"]
    c.wire((a, 80), (a, 42), (b, 42), (b, 80), kind="dash")
    c.line(f"M{n((a + b) / 2 - 9)} 33l18 18m0 -18l-18 18", "hand")
    c.text(352, 18, f"in the decoder, to *Könige*: at most {back:.2f}", "small soft", anchor="end")
    c.wire((a, 104), (english["can"] + 4, 164), kind="thick", hue="k")
    c.text(352, 142, f"to *can*: {across:.2f}", "small k", anchor="end")
    a, b = english["can"], english["kings"]
    c.wire((a, 188), (a, 214), (b, 214), (b, 188), kind="thick", hue="k")
    c.text((a + b) / 2, 234, f"in the encoder, to *kings*: {near:.2f}", "small k")


def clause(c: Canvas, y: float, tokens: list[str], kinds: dict[str, str]) -> dict[str, float]:
    """The words of a clause in a row, up to its full stop, and where each of them stands."""
    words = tokens[: tokens.index(".")]
    sizes = [width(word, 12.5, "strong" if "strong" in kinds.get(word, "") else "") for word in words]
    gap = (344 - sum(sizes)) / (len(words) - 1)
    places = [8 + sum(sizes[:i]) + gap * i + sizes[i] / 2 for i in range(len(words))]
    for x, word in zip(places, words):
        c.text(x, y, word, f"small {kinds.get(word, 'soft')}")
    return dict(zip(words, places))


@drawing("attention-hook", 296, "A hook recomputes the weights")
def attention_hook(c: Canvas) -> None:
    """At the left x and memory go into a box, multi-head attention, and its output leaves at the bottom: nothing else
    leaves it. Dashed lines branch off from both inputs before the box and lead to the right, to the hook, which makes
    queries and keys with the same W_Q and W_K and turns them into weights of shape B, h, T, S."""
    c.text(50, 14, "`x`", "q")
    c.text(8, 31, "`(B, T, d_model)`", "small soft", anchor="start")
    c.text(174, 14, "`memory`", "k", anchor="start")
    c.text(174, 31, "`(B, S, d_model)`", "small soft", anchor="start")
    box = c.box(14, 122, 150, 84, "attention", "of the model")
    c.wire((50, 42), (50, 122), hue="q")
    c.wire((214, 42), (214, 60), (134, 60), (134, 122), hue="k")
    c.wire((box.cx, box.bottom), (box.cx, 262), hue="o")
    c.text(box.cx, 276, "output", "o")
    c.wire((50, 78), (226, 78), (226, 122), hue="q", kind="dash")
    c.wire((134, 98), (302, 98), (302, 122), hue="k", kind="dash")
    c.dot(50, 78, "q")
    c.dot(134, 98, "k")
    hook = c.box(194, 122, 158, 84, "hook", "`W_Q`, `W_K`, softmax", kind="frame")
    c.wire((hook.cx, hook.bottom), (hook.cx, 244))
    c.text(hook.cx, 258, "weights")
    c.text(hook.cx, 276, "`(B, h, T, S)`", "small soft")


@drawing("ablation", 246, "One change at a time")
def ablation(c: Canvas) -> None:
    """A table of six rows. The first, base, is filled in: h 8, d k 64, N 6, P drop 0.1, positions of
    sines. Below it a row for each of the groups A to E names one field that differs, in a filled cell; its other
    cells are empty, which means as in base, but for d k of A, dashed: 512, since h times d k stays 512."""
    fields = ("h", "d_k", "N", "P_drop", "positions")
    base = ("8", "64", "6", "0.1", "sines")
    changed = (("A", 0, "1"), ("B", 1, "16"), ("C", 2, "2"), ("D", 3, "0.0"), ("E", 4, "learned"))
    edges = [52, 98, 150, 196, 262, 352]
    for x, right, name in zip(edges, edges[1:], fields):
        c.text((x + right) / 2, 16, f"`{name}`", "small")
    for row, (name, *_) in enumerate((("base",), *changed)):
        y = 32 + 32 * row
        c.text(8, y + 14, name, "strong", anchor="start")
        for i, (x, right) in enumerate(zip(edges, edges[1:])):
            is_base, one = row == 0, row and changed[row - 1][1] == i
            follows = ("512",) if (name, i) == ("A", 1) else ()  # h * d_k stays d_model
            words = (base[i],) if is_base else (changed[row - 1][2],) if one else follows
            kind = "block" if is_base else "ofill" if one else "empty"
            c.box(x + 2, y, right - x - 4, 28, *words, kind=kind, round=3)
    c.text(52, 236, "empty: as in base; 512: `h` · `d_k` stays", "small soft", anchor="start")


@drawing("seeds", 168, "Five seeds, and where a sixth would lie")
def seeds(c: Canvas) -> None:
    """A line of BLEU with ticks from 25 to 26.5.
    Five dots lie close together around 25.8, the seeds of one model. A bar around
    them, wider than the dots, is where one more training would lie. A changed model, at 24.9, lies outside of it."""
    values = [25.6, 25.9, 25.8, 26.0, 25.7]
    low, high = _prediction_interval(values)

    def place(value: float) -> float:
        return 20 + (value - 24.7) * 168

    c.line("M8 100H352", "wire")
    for tick in (25.0, 25.5, 26.0, 26.5):
        c.line(f"M{n(place(tick))} 96V104", "wire")
        c.text(place(tick), 127, f"{tick:g}", "small soft")
    c.box(place(low), 86, place(high) - place(low), 28, kind="block", round=3)
    for value in values:
        c.dot(place(value), 100, r=5)
    c.dot(place(24.9), 100, "o", r=6)
    c.text(8, 62, "a changed model", "small o", anchor="start")
    c.wire((place(24.9), 72), (place(24.9), 92), hue="o")
    c.text(place((low + high) / 2) + 20, 22, "five seeds of one model,", "small")
    c.text(place((low + high) / 2) + 20, 39, "and the range of a sixth", "small")
    c.text(place((low + high) / 2), 72, "95 %", "small soft")
    c.text(352, 148, "BLEU", "small soft", anchor="end")


@drawing("pairs", 156, "Two models trained from the same seeds")
def pairs(c: Canvas) -> None:
    """Two lines of BLEU from 25.4 to 26.0, base above and a changed model below. Each has five dots. A line joins the
    two dots of each seed; on all five the changed model's dot lies to the left of base's, although the two ranges
    overlap."""
    base = [25.6, 25.9, 25.8, 26.0, 25.7]
    changed = [25.4, 25.7, 25.6, 25.9, 25.5]

    def place(value: float) -> float:
        return 96 + (value - 25.4) * 400

    for y, name, hue in ((28, "base", ""), (100, "changed", "o")):
        c.text(8, y, name, f"small {hue}".strip(), anchor="start")
        c.line(f"M76 {y}H352", "rule")
    for above, below in zip(base, changed):
        c.line(f"M{n(place(above))} 28L{n(place(below))} 100", "wire")
    for above, below in zip(base, changed):
        c.dot(place(above), 28, r=5)
        c.dot(place(below), 100, "o", r=5)
    for tick in (25.4, 25.6, 25.8, 26.0):
        c.text(place(tick), 126, f"{tick:.1f}", "small soft")
    c.text(352, 147, "BLEU", "small soft", anchor="end")


@drawing("shrink", 282, "The same model, narrower and shallower")
def shrunk(c: Canvas) -> None:
    """At the left the base model as six wide layers, at the right ours as three narrow ones. In each layer stand eight
    heads; at the right they are as many, and each is much narrower."""
    for x, config, wide in ((8, BASE, 216), (264, shrink(BASE, width=4), 80)):
        c.text(x, 14, "base" if config is BASE else "ours", "strong", anchor="start")
        for i in range(config.N):
            y = 200 - 34 * i
            c.box(x, y, wide, 28, kind="frame", round=4)
            step = (wide - 12) / config.h
            for head in range(config.h):
                c.box(x + 6 + step * head + 1, y + 6, step - 2, 16, kind="qfill", round=1)
        for i, line in enumerate((f"`N` {config.N}, `h` {config.h}", f"`d_model` {config.d_model}")):
            c.text(x, 246 + 18 * i, line, "small", anchor="start")


GOLD = ("(S (NP (PRP I)) (VP (VBP see) (NP (NP (DT the) (NN man)) "
        "(PP (IN with) (NP (DT a) (NN telescope))))))")
FLAT = ("(S (NP (PRP I)) (VP (VBP see) (NP (DT the) (NN man)) "
        "(PP (IN with) (NP (DT a) (NN telescope)))))")


@drawing("bracket-spans", 262, "Constituents as spans of words")
def bracket_spans(c: Canvas) -> None:
    """I see the man with a telescope, and below it a bar for each constituent of the right tree, over the words that
    it spans, with its label: S, VP, NP, PP, NP, NP, NP. Six bars are filled, since the predicted tree has them too. One
    is empty, the NP over the man with a telescope, which the prediction lacks."""
    (gold,), (flat,) = _parse_brackets(GOLD), _parse_brackets(FLAT)
    words, found = "I see the man with a telescope".split(), _spans(flat)
    sizes = [max(width(word, 14), 26) for word in words]
    gap = (344 - sum(sizes)) / (len(words) - 1)
    starts = [8 + sum(sizes[:i]) + gap * i for i in range(len(words))]
    for x, w, word in zip(starts, sizes, words):
        c.text(x + w / 2, 16, word)
    rows: list[list[tuple[int, int]]] = []
    for label, begin, end in sorted(_spans(gold), key=lambda span: (span[1] - span[2], span[1])):
        row = next((r for r in rows[1:] if all(end <= a or b <= begin for a, b in r) and end - begin < 3), None)
        if row is None:
            rows.append(row := [])
        row.append((begin, end))
        y = 36 + 34 * rows.index(row)
        right = starts[end - 1] + sizes[end - 1]
        kind = "ofill" if (label, begin, end) in found else "empty"
        c.box(starts[begin], y, right - starts[begin], 26, label, kind=kind, face="small strong", round=3)
    c.text(8, 226, "filled: in both trees", "small o", anchor="start")
    c.text(8, 246, "empty: missing in the prediction", "small soft", anchor="start")


@drawing("tree-budget", 268, "Two counters keep the output a tree")
def tree_budget(c: Canvas) -> None:
    """Three columns for the words Small, cats, sleep. In each stand a token that is allowed, filled, a token that is
    not, dashed, and two counters after the allowed one: open brackets 2, 1 and 0, words left 2, 1 and 0."""
    steps = (("Small", "(S(NP*", "*"), ("cats", "*)", "*))"), ("sleep", "(VP*))", "*"))
    for y, words in ((16, "word"), (54, "allowed"), (98, "forbidden"), (148, "open"), (206, "left")):
        c.text(8, y, words, "small soft", anchor="start")
    opened = 0
    for i, (word, yes, no) in enumerate(steps):
        x = 92 + 90 * i
        c.text(x + 40, 16, word)
        c.box(x, 38, 80, 30, f"`{yes}`", kind="ofill", face="small", round=4)
        c.box(x, 83, 80, 30, f"`{no}`", kind="empty", face="small", round=4)
        opened += yes.count("(") - yes.count(")")
        for y, number in ((148, opened), (206, len(steps) - 1 - i)):
            for k in range(number):
                c.block(x + 26 + 16 * k, y - 8, 1, 1, 14, "dark")
            c.text(x + 10, y, f"{number}")
    c.text(8, 176, "brackets that are open after the token", "small soft", anchor="start")
    c.text(8, 234, "words that are still to come", "small soft", anchor="start")
    c.text(8, 258, "at the last word, all brackets close", "small soft", anchor="start")
