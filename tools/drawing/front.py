"""The front page: one translation of a model in results/, with its attention, and the paper's title tried."""

import json
import math
from collections import Counter

import torch

import annotated
from annotated.figures import attention_maps

from .canvas import ROOT, Canvas, drawing

SENTENCE = "Can you tell me what you saw yesterday?"
SHOWN = ((0.57, "thick"), (0.3, ""), (0.25, "dash"))  # attention weight from which a line is drawn, and how


def translated(sentence: str) -> tuple[list[str], list[str], list[list[float]]]:
    """Source tokens, target tokens, and the last decoder layer's attention, (T, S), averaged over its heads."""
    translator = annotated.load(ROOT / "results" / "tatoeba-en-de")
    model, pieces = translator.model, translator.vocabulary.processor
    (read,) = translator.cut(sentence)
    written = [*pieces.encode(translator.translate([sentence])[0]), model.config.eos]
    target = torch.tensor([[model.config.bos, *written[:-1]]])
    weights = attention_maps(model, torch.tensor([read]), target)["cross"][-1, 0].mean(0)  # (T, S)
    words = [[pieces.id_to_piece(i).lstrip("\u2581") for i in ids] for ids in (read, written)]
    return words[0], words[1], weights.tolist()


@drawing("translation", 324, "A translation, and what the model attends to")
def translation(c: Canvas) -> None:
    """At the left the English tokens Can you tell me what you saw yesterday?, at the right the German ones that a
    model of this book writes: Kannst du mir sagen, was du gestern gesehen hast? Lines lead from each German token to
    the English ones it attends to, the thicker the more: gestern to yesterday, crossed by gesehen to saw."""
    source, target, weights = translated(SENTENCE)
    source, target = source[:-1], target[:-1]  # the ends of both sentences are left out
    left, right, top, step = 130, 228, 44, 25
    c.text(left, 14, "English", "strong", anchor="end")
    c.text(right, 14, "German", "strong", anchor="start")
    ys = [top + step * (len(target) - 1) / (len(source) - 1) * i for i in range(len(source))]
    for i, row in enumerate(weights[: len(target)]):
        y = top + step * i
        for at, weight in zip(ys, row):
            kind = next((kind for least, kind in SHOWN if weight >= least), None)
            if kind is not None:
                bend = (left + right) / 2
                path = f"M{left + 8} {at:.2f}C{bend} {at:.2f} {bend} {y} {right - 8} {y}"
                c.line(path, " ".join(f"wire {kind} q".split()))
    for word, y in zip(source, ys):
        c.text(left, y, word, "k", anchor="end")
    for i, word in enumerate(target):
        c.text(right, top + step * i, word, "q", anchor="start")


@drawing("recall", 250, "How long four networks need to learn to recall a fact")
def recall(c: Canvas) -> None:
    """The updates of training until a fact is recalled, over the words between the fact and the question, both on
    logarithmic axes. The line of self-attention lies far below those of the recurrent network with attention and of
    convolutions at every distance. The recurrent network without attention learns at 8 and 16 words and never from 32
    words on."""
    runs = json.loads((ROOT / "results" / "16-recall" / "scores.json").read_text(encoding="utf-8"))["runs"]
    looks = {
        "self-attention": ("wire o thick", "self-attention", 0),
        "recurrent": ("wire dash", "recurrent", 0),
        "recurrent with attention": ("wire hand", "recurrent + attention", 2),
        "dilated convolutions": ("wire", "convolutions", -2),
    }
    limit = max(run["updates"] for run in runs)
    made = Counter(run["n"] for run in runs)
    lengths = sorted(n for n in made if made[n] == max(made.values()))  # those that are complete
    left, right, top, base, low, high = 38, 216, 46, 206, 100, 2000

    def at(n: float, updates: float) -> tuple[float, float]:
        across = math.log2(n / lengths[0]) / math.log2(lengths[-1] / lengths[0])
        return left + (right - left) * across, base - (base - top) * math.log(updates / low) / math.log(high / low)

    c.text(8, 14, "updates until 99 % are right", "small", anchor="start")
    for tick in (100, 500, 1000, 2000):
        y = at(8, tick)[1]
        c.line(f"M{left} {y:.2f}H{right}", "rule")
        c.text(left - 6, y, f"{tick}", "small", anchor="end")
    for n in lengths:
        c.text(at(n, low)[0], base + 14, str(n), "small")
    c.text(right, base + 33, "words between fact and question", "small", anchor="end")
    for name, (kind, said, shift) in looks.items():
        updates = {n: [run["updates"] for run in runs if (run["network"], run["n"]) == (name, n)] for n in lengths}
        learnt = [n for n in lengths if min(updates[n]) < limit]
        points = [at(n, sum(updates[n]) / len(updates[n])) for n in learnt]
        c.line("M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points), kind)
        if learnt == lengths:
            c.text(right + 8, points[-1][1] + shift, said, "small", anchor="start")
        else:
            never = f"{said}: fails from {lengths[len(learnt)]} words on"
            c.text(points[-1][0] + 8, at(8, limit)[1] - 9, never, "small", anchor="start")
