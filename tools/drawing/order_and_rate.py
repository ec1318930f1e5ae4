"""Chapters 6 and 9: what order does without positions, and the two lines of the learning rate."""

import json
from dataclasses import replace

import torch

from annotated.embedding import Embedding
from annotated.optimization import learning_rate
from annotated.transformer import BASE, TINY, EncoderLayer

from .canvas import ROOT, Canvas, drawing
from .model import SENTENCE, bars

PAPER = json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))


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


@drawing("rate-two-lines", 272, "The learning rate: the lower of two curves")
def rate_two_lines(c: Canvas) -> None:
    """Two curves over the steps. One rises as a straight line, the other falls with the inverse root of the step. They
    cross at step = warmup. The lower of the two, drawn thick, is the learning rate: it rises up to the crossing and
    falls after it. The parts that lie higher are dashed. Numbers of the paper's base model stand at the peak, with its
    step, and at a point behind a gap in the axis, the last step."""
    left, base, wide, high, end = 40, 196, 252, 130, 330
    warmup, last = PAPER["training"]["warmup_steps"], PAPER["training"]["base_steps"]
    d_model, shown = BASE.d_model, 4 * warmup
    peak = learning_rate(warmup, d_model, warmup)

    def at(step: float, value: float) -> tuple[float, float]:
        return left + wide * step / shown, base - high * value / peak

    def path(points) -> str:
        return "M" + "L".join("{:.2f} {:.2f}".format(*at(step, value)) for step, value in points)

    def power(value: float) -> str:
        digits, exponent = f"{value:.1e}".split("e")
        return f"{digits} · 10^{{{int(exponent)}}}".replace("-", "−")

    beyond = learning_rate(last, d_model, warmup)
    c.line(f"M{left} 14V{base}H302M318 {base}H352M299 {base + 5}l6 -10M315 {base + 5}l6 -10", "rule")
    c.line(path((s, peak * s / warmup) for s in (warmup, 1.3 * warmup)), "wire dash")
    early = range(56 * warmup // 100, warmup + 1, warmup // 25)
    c.line(path((s, peak * (warmup / s) ** 0.5) for s in early), "wire dash")
    steps = (1, *range(warmup // 10, shown + 1, warmup // 10))
    c.line(path((s, learning_rate(s, d_model, warmup)) for s in steps), "wire o thick")
    x, y = at(warmup, peak)
    c.line(f"M{x} {y}V{base}", "wire dash")
    c.dot(x, y, hue="o", r=4)
    c.text(x + 13, y - 5, power(peak), "small", anchor="start")
    _, low = at(last, beyond)
    c.line(f"M{end} {low}V{base}", "wire dash")
    c.dot(end, low, hue="o", r=4)
    c.text(352, low - 15, power(beyond), "small", anchor="end")
    c.text(x, base + 13, f"{warmup:,}", "small")
    c.text(x, base + 29, "= `warmup`", "small")
    c.text(352, base + 13, f"{last:,}", "small", anchor="end")
    c.text(left + wide / 2 + 44, base + 13, "step", "small")
    c.text(left, base + 49, "at the peak: 1 / √(`d_model` · `warmup`)", "small soft", anchor="start")
    c.text(left, base + 67, f"base model: both curves times {d_model}^{{−0.5}}", "small soft", anchor="start")
    c.text(x + 34, 24, "step · warmup^{−1.5}", "small soft", anchor="start")
    c.text(x + 100, 92, "step^{−0.5}", "small soft", anchor="start")
    c.text(22, 105, "rate", "small", anchor="middle")
