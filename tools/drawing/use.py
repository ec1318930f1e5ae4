"""Chapters 8 to 12: data, training and use."""

import torch

import annotated
from annotated.masks import causal_mask
from annotated.optimization import spread_over_all

from .canvas import ROOT, Canvas, drawing


@drawing("cache-or-rows", 232, "All rows at once, or one row a step")
def cache_or_rows(c: Canvas) -> None:
    """At the left, in training, five queries look at a triangle of keys at once. At the right, in use, one query at
    a time: the first looks at one key, the second at two, the fifth at five. The framed key at the end of each row
    is new, those before it wait in the cache."""
    T, cell = 5, 22
    c.text(8, 14, "training", "strong", anchor="start")
    c.text(8, 34, "all rows at once", "small soft", anchor="start")
    c.text(190, 14, "in use", "strong", anchor="start")
    c.text(190, 34, "one row a step", "small soft", anchor="start")
    top = 56
    c.block(8, top, T, 1, cell, "qfill")
    causal = causal_mask(T)
    for i, row in enumerate(causal.tolist()):
        for j, may in enumerate(row):
            c.block(40 + j * cell, top + i * cell, 1, 1, cell, "kfill" if may else "empty")
    for i, row in enumerate(causal.tolist()):
        y = top + i * (cell + 6)
        c.block(190, y, 1, 1, cell, "qfill")
        c.block(222, y, 1, sum(row), cell, "kfill")
        c.shape("rect", "ring", x=222 + i * cell, y=y, width=cell, height=cell)
    c.text(8, 190, "query", "small q", anchor="start")
    c.text(60, 190, "keys, values", "small k", anchor="start")
    c.text(190, 204, "framed: new", "small", anchor="start")
    c.text(190, 220, "others: from the cache", "small soft", anchor="start")


@drawing("smoothing", 304, "A label as one-hot, and smoothed")
def smoothing(c: Canvas) -> None:
    """Two rows of bars over the same five words. Above, the one-hot label: 1 for Hund and 0 for all others. Below,
    the smoothed label: most of the probability is left to Hund, and a little goes to every word."""
    words, eps = ["der", "Hund", "Katze", "sieht", "eos"], 0.1
    label = torch.tensor(words.index("Hund"))
    for y, title, share in ((20, "one-hot", 0.0), (174, f"smoothed, eps {eps}", eps)):
        goal = spread_over_all(label, len(words), share).tolist()
        c.text(8, y - 6, title, "strong", anchor="start")
        base = y + 100
        c.line(f"M8 {base}H352", "rule")
        for i, (word, p) in enumerate(zip(words, goal)):
            x = 44 + 68 * i
            c.bar(x - 18, base - 80 * p, 36, 80 * p, "o" if i == label else "")
            c.text(x, base - 80 * p - 10, f"{p:.2g}", "small")
            c.text(x, base + 13, word, "small")


def search_steps(sentence: str, steps: int, k: int, shown: int) -> list[list[tuple]]:
    """What a beam search of a model in results/ sees: for each step (parent, piece, log-probability, kept)."""
    translator = annotated.load(ROOT / "results" / "tatoeba-en-de")
    model, pieces = translator.model, translator.vocabulary.processor
    source = torch.tensor(translator.cut(sentence))
    beam, out = [([model.config.bos], 0.0)], []
    with torch.inference_mode():
        memory = model.encode(source)
        for _ in range(steps):
            grown = []
            for parent, (ids, log_p) in enumerate(beam):
                following = model.decode(torch.tensor([ids]), memory, source)[0, -1].log_softmax(-1).topk(max(k, shown))
                pairs = zip(following.indices.tolist(), following.values.tolist())
                grown += [(parent, [*ids, i], log_p + p, rank < shown) for rank, (i, p) in enumerate(pairs)]
            best = sorted(grown, key=lambda g: -g[2])[:k]
            out.append([(g[0], pieces.id_to_piece(g[1][-1]).lstrip("\u2581"), g[2], g in best) for g in grown if g[3]])
            beam = [(g[1], g[2]) for g in best]
    return out


@drawing("beam", 408, "Beam search with two places")
def beam(c: Canvas) -> None:
    """A tree that grows downwards: the German words a model considers for What are you thinking of? In each step
    the two hypotheses kept are continued, each by its two likeliest tokens, and of these four the two of the
    highest log-probability are drawn solid and kept. The hypothesis that begins Wor stands behind the one that begins
    Was in the first step, and overtakes it in the second."""
    sentence, wide = "What are you thinking of?", 82
    c.text(180, 14, f"*{sentence}*", "")
    c.text(180, 40, "bos")
    kept = [(180, 50)]
    for depth, step in enumerate(search_steps(sentence, steps=4, k=2, shown=2)):
        y = 84 + 82 * depth
        seen, found = {}, []
        for parent, word, log_p, stays in step:
            place = seen[parent] = seen.get(parent, -1) + 1
            side = 0 if len(kept) == 1 else -88 if kept[parent] == min(kept) else 88
            x = 180 + (place - 0.5) * 88 + side
            c.wire(kept[parent], (x, y), hue="o" if stays else "", kind="" if stays else "dash", head=False)
            c.box(x - wide / 2, y, wide, 42, word, f"{log_p:.2f}".replace("-", "\u2212"),
                  kind="ofill" if stays else "empty", face="small" if stays else "small soft", round=4)
            if stays:
                found.append((log_p, (x, y + 42)))
        kept = [at for _, at in sorted(found, reverse=True)]
    c.text(180, 396, "solid: the best two of all continuations stay", "small soft")
