"""Chapter 8: how a sentence is cut, sentences to a batch, pairs that belong together, sorting; the hour's sentence."""

import annotated
from annotated.data import Words, _bucket_key, _connected_components, _fraction, make_batch, split_pairs, split_words
from annotated.grammar import grammar_corpus, grammar_examples

from .canvas import ROOT, Canvas, drawing, n, width
from .rest import merged


@drawing("three-cuts", 216, "Three ways to cut a sentence")
def three_cuts(c: Canvas) -> None:
    """The words the sleepless dog, three times. As letters they are eighteen boxes. As pieces of words they are four:
    the, sleep, less, dog. As whole words they are three, and the box of sleepless is dashed and says unk, since the
    list of words has no such word."""
    words, left, wide, high = ["the", "sleepless", "dog"], 9, 19, 28
    known = Words.build(grammar_corpus(train=500, validation=1, test=1).train)
    pieces = [piece for word in words for piece, _ in merged(word)]
    letters = [letter for word in words for letter in "_" + word]
    entries = len(annotated.load(ROOT / "results" / "tatoeba-en-de").vocabulary)
    assert "sleepless" not in known.ids and {"the", "dog"} <= set(known.ids)
    rows = (
        ("letters", f"{len(letters)} tokens of a few dozen", letters),
        ("pieces", f"{len(pieces)} tokens of {entries:,}", [piece.replace("\u2581", "_") for piece in pieces]),
        ("words", f"{len(words)} tokens of a list without end", ["_" + word for word in words]),
    )
    for i, (title, count, parts) in enumerate(rows):
        y, x = 28 + 68 * i, left
        title = c.text(left, y - 14, title, "strong", anchor="start")
        c.text(title.right + 10, y - 14, count, "small soft", anchor="start")
        for part in parts:
            lost = i == 2 and part[1:] not in known.ids
            said = "unk" if lost else part.removeprefix("_") if i == 2 else part
            c.box(x + 1, y, wide * len(part) - 2, high, said, kind="empty" if lost else "block", round=3)
            x += wide * len(part)
    c.text(left, 206, "_ stands for the space before a word", "small soft", anchor="start")


@drawing("text-to-batch", 372, "From sentences to a batch")
def text_to_batch(c: Canvas) -> None:
    """Two pairs of sentences, The dog sees the cat and The bird sleeps with their German translations, in rows of
    words, full stops among them. Below the two sources a table of two rows and seven columns: a number for each word,
    2 at the end, 0 after it where the second sentence is shorter. Below the two targets a table that has 1 before the
    first word, and one column more."""
    pairs = [
        ("The dog sees the cat.", "Der Hund sieht die Katze."),
        ("The bird sleeps.", "Der Vogel schläft."),
    ]
    vocabulary = Words.build(pairs)
    ids = [(vocabulary.encode(source), vocabulary.encode(target)) for source, target in pairs]
    tensors = make_batch(ids)
    names = dict(enumerate(vocabulary.words)) | {0: "", 1: "", 2: ""}
    for y, title, shape, ids in zip((12, 198), ("sources", "targets"), "ST", tensors):
        rows = ids.tolist()
        wide = 344 / len(rows[1]) if shape == "T" else 46
        c.text(8, y, title, "strong", anchor="start")
        for i, row in enumerate(rows):
            for j, token in enumerate(row):
                x = 8 + wide * j
                c.text(x + wide / 2, y + 24 + 22 * i, names[token], "small")
                kind = "empty" if token == 0 else "dark" if token < 3 else "block"
                c.box(x, y + 82 + 28 * i, wide, 28, str(token), kind=kind, round=0)
        c.wire((180, y + 58), (180, y + 78))
        size = "T + 1" if shape == "T" else shape
        c.text(352, y + 66, f"(B, {size}) = ({len(rows)}, {len(rows[0])})", "small code", anchor="end")
    c.text(8, 362, "0 padding, 1 begins a target, 2 ends a sentence", "small soft", anchor="start")


GREETINGS = [("Hi.", "Hallo!"), ("Hello.", "Hallo!"), ("Hello.", "Guten Tag!"), ("Run!", "Lauf!")]


@drawing("pairs-linked", 372, "Pairs that share a sentence")
def pairs_linked(c: Canvas) -> None:
    """Above, four pairs drawn at random: Hello, Hallo goes to the test, and Hello and Hallo, filled, also stand in
    two pairs of the training part. Below, the same strings as boxes with a line for each pair. Lines join Hi, Hello,
    Hallo and Guten Tag to one group, in a frame, which goes to the test as a whole; Run and Lauf are another group,
    which goes to training. Beside each group stands the number that decides."""
    test = 1
    c.text(8, 14, "drawn at random", "strong", anchor="start")
    for i, pair in enumerate(GREETINGS):
        y = 28 + 30 * i
        for side, text in enumerate(pair):
            both = i != test and text in GREETINGS[test]
            leak = both or i == test
            c.box(16 + 122 * side, y, 112, 25, text, kind="dark" if leak else "block", round=3)
        c.text(272, y + 13, "test" if i == test else "training", "strong" if i == test else "", anchor="start")
    c.line("M8 160H352", "rule")
    c.text(8, 180, "by groups", "strong", anchor="start")
    top = 202
    groups = sorted(_connected_components(GREETINGS), key=len, reverse=True)
    for group in groups:
        sides = [list(dict.fromkeys(side)) for side in zip(*group)]
        high = 34 * max(map(len, sides)) + 8
        c.box(8, top, 250, high, kind="frame", round=8)
        place = [{text: top + 20 + 34 * i for i, text in enumerate(side)} for side in sides]
        for source, target in group:
            c.line(f"M120 {n(place[0][source])}L146 {n(place[1][target])}")
        for side in (0, 1):
            for text, y in place[side].items():
                c.box(16 + 130 * side, y - 12, 104, 25, text, kind="box", round=3)
        number = _fraction(min(map(min, group)))
        part = "test" if group[0] in split_pairs(GREETINGS)[2] else "training"
        c.text(272, top + high / 2 - 9, part, "strong" if part == "test" else "", anchor="start")
        c.text(272, top + high / 2 + 10, f"{number:.3f}", "small soft", anchor="start")
        top += high + 10
    c.text(8, 348, "the number: a hash of the group's first string;", "small soft", anchor="start")
    c.text(8, 364, "below 0.02 the group goes to the test", "small soft", anchor="start")


@drawing("length-walk", 330, "An order for pairs of lengths")
def length_walk(c: Canvas) -> None:
    """A table of dots, source lengths 1 to 6 to the right and target lengths 1 to 6 downwards. A line visits every
    dot: along the edges of growing squares, in one direction and back in the other, so that each step goes to a dot
    beside the last one."""
    most, cell, left, top = 6, 44, 84, 60
    pairs = [(s, t) for s in range(1, most + 1) for t in range(1, most + 1)]
    walk = sorted(pairs, key=lambda pair: _bucket_key(*pair))
    points = [(left + cell * (s - 1), top + cell * (t - 1)) for s, t in walk]
    c.text(left - 16, 12, "source length", "small", anchor="start")
    c.lines(8, top + cell * (most - 1) / 2, "target", "length", kind="small", anchor="start")
    for i in range(most):
        c.text(left + cell * i, 34, f"{i + 1}", "small soft")
        c.text(left - 24, top + cell * i, f"{i + 1}", "small soft")
    c.line("M" + "L".join(f"{n(x)} {n(y)}" for x, y in points[:-1]), "wire")
    c.wire(points[-2], points[-1])
    for x, y in points:
        c.dot(x, y, r=4)
    c.text(8, 316, "a pair of lengths is a dot", "small soft", anchor="start")


@drawing("hour-task", 178, "The sentence to translate, and what makes it hard")
def hour_task(c: Canvas) -> None:
    """The hat stays red because a bird sees it above its translation, Der Hut bleibt rot, weil ein Vogel ihn sieht,
    with a line from each word to its own. Thick are those of sees, which becomes the last word, and of it, which
    becomes ihn; these two cross. An arc above leads from it back to hat, the noun that it stands for."""
    (example,) = (e for e in grammar_examples()[2] if e.source == "The hat stays red because a bird sees it.")
    sides = [split_words(text) for text in (example.source, example.target)]
    tops, centres = (70, 146), []
    for words, y in zip(sides, tops):
        kinds = ["strong" if word in ("hat", "it", "sees", "ihn", "sieht", "Hut") else "" for word in words]
        widths = [width(word, 15, kind) for word, kind in zip(words, kinds)]
        room = (344 - sum(widths)) / (len(words) - 1)
        x, middles = 8.0, []
        for word, kind, wide in zip(words, kinds, widths):
            c.text(x + wide / 2, y, word, kind)
            middles.append(x + wide / 2)
            x += wide + room
        centres.append(middles)
    for i, j in example.alignment:
        kind = "wire thick" if sides[0][i] in ("sees", "it") else "wire"
        c.line(f"M{centres[0][i]:.2f} {tops[0] + 13}L{centres[1][j]:.2f} {tops[1] - 13}", kind)
    ((pronoun, noun),) = example.antecedents
    start, end = centres[0][pronoun], centres[0][noun]
    c.line(f"M{start:.2f} {tops[0] - 13}C{start:.2f} 18 {end:.2f} 18 {end:.2f} {tops[0] - 13}", "wire thick dash")
    c.text((start + end) / 2, 18, "stands for", "small soft")
