"""The front page: one translation of a model in results/, with its attention."""

import torch

import annotated
from annotated.figures import attention_maps

from .canvas import ROOT, Canvas, drawing

SENTENCE = "Can you tell me what you saw yesterday?"
SHOWN = ((0.57, "thick"), (0.3, ""), (0.25, "dash"))  # attention weight from which a line is drawn, and how


def translated(sentence: str) -> tuple[list[str], list[str], list[list[float]]]:
    """Source tokens, target tokens, and the last decoder layer's attention, (T, S), averaged over its heads."""
    translator = annotated.load(ROOT / "results" / "tatoeba-cpu")
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
