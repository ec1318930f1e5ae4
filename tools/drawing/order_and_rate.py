"""Chapters 6 and 9: what order does without positions, and the two lines of the learning rate."""

from dataclasses import replace

import torch

from annotated.embedding import Embedding
from annotated.optimization import learning_rate
from annotated.transformer import TINY, EncoderLayer

from .canvas import Canvas, drawing
from .model import SENTENCE, bars


@drawing("order-lost", 372, "Two orders of the same words, without positions")
def order_lost(c: Canvas) -> None:
    """Above, the words the dog sees the cat pass an encoder that gets no positions, and each word's output is drawn
    as bars. Below, the words the cat sees the dog pass the same encoder. A frame marks the output of dog: it has the
    same bars as above, at its new place. So have cat and the other words."""
    torch.manual_seed(11)
    words, d_model = sorted(set(SENTENCE)), 8
    embedding = Embedding(len(words), d_model)
    encoder = EncoderLayer(replace(TINY, d_model=d_model, d_ff=16, h=2)).eval()
    exchanged = [{"dog": "cat", "cat": "dog"}.get(word, word) for word in SENTENCE]
    for top, sentence in ((0, SENTENCE), (190, exchanged)):
        with torch.no_grad():
            out = encoder(embedding(torch.tensor([[words.index(word) for word in sentence]])))[0]
        box = c.box(8, top + 52, 344, 30, "encoder without positions", face="small")
        for t, word in enumerate(sentence):
            x = 44 + 68 * t
            c.text(x, top + 18, word, "strong" if word == "dog" else "")
            c.wire((x, top + 30), (x, box.top))
            c.wire((x, box.bottom), (x, top + 100))
            bars(c, x, top + 128, out[t])
            if word == "dog":
                c.shape("rect", "ring", x=x - 30, y=top + 103, width=60, height=54)
    c.line("M8 176H352", "rule")


@drawing("rate-two-lines", 236, "The learning rate: the lower of two curves")
def rate_two_lines(c: Canvas) -> None:
    """Two curves over the steps. One rises as a straight line, the other falls with the inverse root of the step. They
    cross at step = warmup.
    The lower of the two, drawn thick, is the learning rate: it rises up to the crossing and falls
    after it. The parts that lie higher are dashed."""
    left, base, wide, high, warmup, steps = 40, 196, 300, 130, 100, 400
    peak = learning_rate(warmup, 1, warmup)

    def at(step: float, value: float) -> str:
        return f"{left + wide * step / steps:.2f} {base - high * value / peak:.2f}"

    def path(points) -> str:
        return "M" + "L".join(at(step, value) for step, value in points)

    c.line(f"M{left} 14V{base}H352", "rule")
    c.line(path((s, s * warmup**-1.5) for s in (warmup, 1.3 * warmup)), "wire dash")
    c.line(path((s, s**-0.5) for s in range(56, warmup + 1, 4)), "wire dash")
    c.line(path((s, learning_rate(s, 1, warmup)) for s in (1, *range(10, steps + 1, 10))), "wire o thick")
    x = left + wide * warmup / steps
    c.line(f"M{x} {base - high}V{base}", "wire dash")
    c.dot(x, base - high, hue="o", r=4)
    c.text(x, base + 13, "warmup", "small")
    c.text(352, base + 13, "step", "small", anchor="end")
    c.text(left, base + 30, "at the peak: 1 / √(`d_model` · `warmup`)", "small soft", anchor="start")
    c.text(x + 34, 24, "step · warmup^{−1.5}", "small soft", anchor="start")
    c.text(x + 118, 88, "step^{−0.5}", "small soft", anchor="start")
    c.text(22, 105, "rate", "small", anchor="middle")
