"""Chapters 1 and 2: what attention looks up, and how far apart its scores lie."""

import torch

from .canvas import Canvas, drawing

WORDS = "the dog sees the cat".split()


@drawing("scores-spread", 252, "Scores with and without the root")
def scores_spread(c: Canvas) -> None:
    """One random query of width 64 against five random keys, named the, dog, sees, the, cat. On the left the scores
    are long bars to both sides, and one of the five weights is nearly 1. On the right the same scores divided by
    the root of 64 are short bars, and all five weights differ from 0."""
    d_k = 64
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(d_k, generator=generator)
    scores = torch.randn(len(WORDS), d_k, generator=generator) @ q
    longest = scores.abs().max().item()
    top, high = 66, 34
    for j, word in enumerate(WORDS):
        c.text(8, top + high * (j + 0.5), word, "k", anchor="start")
    for x, title, given in ((54, "`q · k`", scores), (212, "`q · k` ÷ √`d_k`", scores / d_k**0.5)):
        middle, unit = x + 44, 40 / longest
        c.text(x + 71, 14, title)
        c.text(middle, 44, "scores", "small soft")
        c.text(x + 118, 44, "weights", "small soft")
        for j, score in enumerate(given.tolist()):
            length = max(abs(unit * score), 1)
            c.bar(middle if score > 0 else middle - length, top + high * j + 8, length, high - 16, "k")
        c.line(f"M{middle} {top}v{high * len(WORDS)}", "rule")
        c.weights(x + 97, top, [[w] for w in given.softmax(0).tolist()], 42, digits=2, high=high)
    c.line(f"M204 4V{top + high * len(WORDS)}", "rule")
