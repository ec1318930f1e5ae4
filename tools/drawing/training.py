"""Chapter 10 and appendix P: what a token counts for, the mean of weights, a killed training, and a run's folder."""

import torch

from .canvas import Canvas, drawing, wired


@drawing("every-position", 346, "Every position is asked for the next word")
def every_position(c: Canvas) -> None:
    """Two target sentences, one under the other. In each the lower row is what the decoder reads, beginning with
    bos, and the upper row is the label of each position, one word further. The first sentence has six positions, the
    second four and two columns of padding, drawn dashed and without a loss. Below: ten losses, one update."""
    sentences = ("bos Der Hund sieht die Katze eos".split(), "bos Der Hund schläft eos".split())
    pitch, wide, high, left = 58, 54, 28, 8
    count = 0
    for y, words in zip((38, 190), sentences):
        c.text(left, y - 14, "labels", "small o", anchor="start")
        c.text(left, y + 104, "read", "small soft", anchor="start")
        for i in range(6):
            x = left + pitch * i
            real = i + 1 < len(words)
            label, read = (words[i + 1], words[i]) if real else ("pad", words[i] if i < len(words) else "pad")
            face = "small" if real else "small soft"
            c.box(x, y, wide, high, label, kind="ofill" if real else "empty", face=face, round=3)
            c.box(x, y + 62, wide, high, read, kind="block" if real else "empty", face=face, round=3)
            if real:
                count += 1
                c.wire((x + wide / 2, y + 62), (x + wide / 2, y + high))
                c.text(x + wide / 2 + 6, y + 46, f"ℓ_{{{count}}}", "small", anchor="start")
    c.text(180, 328, f"{count} labels, {count} losses, one update")


@drawing("token-weights", 226, "What a token counts for in a mean of means, and in a mean over tokens")
def token_weights(c: Canvas) -> None:
    """Two bars of equal length, each divided among ten tokens: one of batch 1, filled, and nine of batch 2. In the
    mean of the batches' means the one token of batch 1 has half of the bar, and each of the others an eighteenth. In
    the mean over tokens each has a tenth."""
    left, total = 8, 344
    rows = (
        (30, "mean of the batches' means", [1 / 2] + [1 / 18] * 9, ("1/2", "1/18 each")),
        (128, "mean over the tokens", [1 / 10] * 10, ("1/10", "1/10 each")),
    )
    for y, title, shares, (first, others) in rows:
        c.text(left, y - 14, title, "strong", anchor="start")
        x = left
        for i, share in enumerate(shares):
            kind = "dark" if i == 0 else "block"
            c.shape("rect", kind, x=x, y=y, width=share * total, height=30)
            x += share * total
        half = left + shares[0] * total
        c.text((left + half) / 2, y + 46, first, "small")
        c.text((half + left + total) / 2, y + 46, others, "small")
    c.text(left, 208, "filled: the token of batch 1", "small", anchor="start")
    c.text(352, 208, "others: batch 2", "small", anchor="end")


@drawing("mean-of-weights", 326, "Weights that circle a place, and their mean")
def mean_of_weights(c: Canvas) -> None:
    """A valley seen from above, as ellipses around its lowest point. The path of the weights comes in from the upper
    left and then jumps about the lowest point. Five checkpoints, drawn as circles, lie around the cross that marks
    it; their mean, a filled point, lies nearer to the cross than any of them."""
    x0, y0, wide, high = 186, 158, 126, 88
    for scale in (1.3, 0.9, 0.5):
        c.shape("ellipse", "rule", cx=x0, cy=y0, rx=wide * scale, ry=high * scale)
    generator = torch.Generator().manual_seed(57)
    place, path = torch.tensor([-1.35, -1.25]), []
    for _ in range(16):
        path.append(place)
        noise = 0.62 * torch.randn(2, generator=generator)
        place = place - 0.9 * (place + noise)
    path.append(place)
    on = [(x0 + wide * a, y0 + high * b) for a, b in (p.tolist() for p in path)]
    c.line(wired(on, 3.0), "wire dash")
    c.line(f"M{x0 - 6} {y0}h12M{x0} {y0 - 6}v12", "hand")
    chosen = path[-1::-2][:5]
    for p in chosen:
        c.shape("circle", "box", cx=x0 + wide * p[0].item(), cy=y0 + high * p[1].item(), r=6)
    mean = torch.stack(chosen).mean(0)
    assert mean.norm() < min(p.norm() for p in chosen)
    c.dot(x0 + wide * mean[0].item(), y0 + high * mean[1].item(), r=6)
    c.text(8, 14, "two weights, seen from above", "strong", anchor="start")
    c.text(8, 290, "cross: lowest loss", "small", anchor="start")
    c.text(8, 312, "circles: last five checkpoints", "small", anchor="start")
    c.text(352, 312, "filled: their mean", "small", anchor="end")


@drawing("killed-training", 300, "What a kill loses, and what is made again")
def killed_training(c: Canvas) -> None:
    """Three rows of cells for updates 1 to 12. Above, undisturbed: twelve updates, checkpoints after 4, 8 and 12.
    In the middle, killed in update 11: the checkpoints after 4 and 8 are on disk, the lines of the log for 9 and 10
    lie beyond the last checkpoint. Below, started again: the log is cut back to 8, and 9 to 12, filled,
    are made, 9 and 10 for the second time."""
    cell, left = 27, 20
    rows = (
        (40, "undisturbed", range(1, 13), ()),
        (130, "killed in update 11", range(1, 9), (9, 10)),
        (220, "started again", range(1, 13), ()),
    )
    for y, title, kept, lost in rows:
        c.text(8, y - 16, title, "strong", anchor="start")
        for step in range(1, 13):
            x = left + cell * (step - 1)
            again = y == 220 and step > 8
            kind = "dark" if again else "block" if step in kept else "empty"
            words = [str(step)] if step in kept or step in lost else ["×"] if step == 11 else []
            c.box(x, y, cell - 3, 24, *words, kind=kind, face="small", round=3)
            if step % 4 == 0 and step in kept:
                c.wire((x + 12, y + 42), (x + 12, y + 25))
    c.text(352, 164, "logged, not saved", "small soft", anchor="end")
    c.text(left + 8 * cell, 276, "filled: made now", "small", anchor="start")
    c.text(8, 276, "arrows: checkpoints", "small", anchor="start")


@drawing("own-text-run", 466, "What a training run writes, and what an error removes")
def own_text_run(c: Canvas) -> None:
    """Seven steps, one under the other, and beside each what it writes. Read and check the text: nothing yet. Lock the
    folder: .training. Learn subwords: run.json and subwords.model. Text to numbers: tokens. An error up to here
    removes these files. Below a line, an error keeps all files. Train: log.jsonl and checkpoints. Average:
    model.safetensors, config.json and README.md. Score: scores.json, and README.md again."""
    parts = (
        ("an error here removes", (
            ("read, check the text", ("nothing yet",)),
            ("lock the folder", ("`.training`",)),
            ("learn subwords", ("`run.json`", "`subwords.model`")),
            ("text to numbers", ("`tokens/`",)),
        )),
        ("an error here keeps", (
            ("train", ("`log.jsonl`", "`checkpoints/`")),
            ("average", ("`model.safetensors`", "`config.json`", "`README.md`")),
            ("score", ("`scores.json`", "`README.md` again")),
        )),
    )  # fmt: skip
    y, end = 14, 0.0
    for title, steps in parts:
        c.text(352, y, title, "strong", anchor="end")
        y += 20
        for what, files in steps:
            high = max(32, 18 * len(files) + 6)
            if end:
                c.wire((90, end), (90, y))
            box = c.box(8, y, 164, high, what, face="small")
            nothing = files == ("nothing yet",)
            kind = "small soft" if nothing else "small"
            c.wire((box.right, box.cy), (204, box.cy), hue="" if nothing else "o")
            c.lines(210, box.cy, *files, kind=kind, anchor="start", step=18)
            end = box.bottom
            y = end + 16
        if title == parts[0][0]:
            c.line(f"M8 {y}H82M98 {y}H352", "rule")
        y += 22
