"""The paper in an hour: short, by itself, equal to the package, and one file that runs."""

import ast
import json
import random
import re
import subprocess
import sys
from dataclasses import replace

import layout
import pytest
import torch
import torch.nn.functional as F
import weave
from chapters import ROOT, read
from programs import loaded

from annotated.decoding import greedy
from annotated.embedding import positional_encoding
from annotated.grammar import grammar_corpus
from annotated.optimization import learning_rate
from annotated.transformer import TINY, Transformer

PAGE, PROGRAM = ROOT / "book" / "the-hour.md", ROOT / "book" / "the_transformer.py"


@pytest.fixture(scope="module")
def hour():
    "The program as a module."
    return loaded(PROGRAM)


@pytest.fixture(scope="module")
def text():
    return grammar_corpus(train=300, validation=1, test=20)


# ---- its form


def test_the_program_is_what_the_page_says():
    assert weave.weave_program(PAGE, check=True) == ""


def test_the_program_is_short_and_stands_by_itself():
    source = PROGRAM.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 250
    nodes = list(ast.walk(ast.parse(source)))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) == {"torch"}


def test_the_page_can_be_read_in_an_hour():
    page = read(PAGE)
    assert layout.size(page).words <= 4000
    assert layout.size(page).minutes <= 60


def test_the_page_names_a_drawing_for_each_idea_that_is_there():
    drawings = re.findall(r"!\[[^\]]+\]\((\S+)\)", read(PAGE).text)
    assert len(drawings) == len(set(drawings)) >= 12
    missing = [name for name in drawings if not (ROOT / "notebooks" / name).resolve().is_file()]
    assert not missing


def test_three_trainings_of_three_translate():
    rows = json.loads((ROOT / "results" / "hour" / "scores.json").read_text(encoding="utf-8"))["seeds"]
    assert len({row["seed"] for row in rows}) >= 3
    assert min(row["bleu"] for row in rows) >= 95


PAGE_OF_TWO = """---
program: two.py
about: Two functions.
---

# Two

```{code-cell}
:tags: [program]

import sys
```

```{code-cell}
print("not part of it")
```

```{code-cell}
:tags: [program]

def main(*words):
    print(*words)
```
"""


def test_a_program_is_made_of_its_cells_and_a_stale_one_is_found(book):
    path = book("the-hour.md", PAGE_OF_TWO)
    assert weave.weave_program(path, book.root, check=True) == "book/two.py is not what book/the-hour.md says"
    assert weave.weave_program(path, book.root) == "book/two.py is written"
    assert weave.weave_program(path, book.root) == "" == weave.weave_program(path, book.root, check=True)
    done = subprocess.run([sys.executable, book.root / "book" / "two.py", "a", "b"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("a b\n", "")
    path.write_text(PAGE_OF_TWO.replace("*words)\n```", "words)\n```"))
    assert weave.weave_program(path, book.root, check=True)
    assert "*words)\n\n\nif" in (book.root / "book" / "two.py").read_text()


def test_weave_check_reports_a_stale_program(book, capsys):
    book("the-hour.md", PAGE_OF_TWO)
    assert weave.main(["--check"], book.root) == 1
    assert "book/two.py is not what book/the-hour.md says" in capsys.readouterr().out


# ---- equal to the package


def twins(hour, seed=0):
    "Our model and the package's with the same random weights, sizes all different."
    torch.manual_seed(seed)
    ours = hour.Transformer(23, N=2, d_model=30, h=5, d_ff=17).eval()
    theirs = Transformer(replace(TINY, vocab=23, N=2, d_model=30, h=5, d_ff=17)).eval()
    with torch.no_grad():
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert p.shape == q.shape
            p.copy_(torch.randn_like(p) / 3)
            q.copy_(p)
    return ours, theirs


def test_the_model_runs_where_its_weights_are(hour):
    "The meta device refuses whatever was made on the CPU, as a GPU does."
    model = hour.Transformer(23).to("meta")
    source, target = (torch.ones(2, n, dtype=torch.long, device="meta") for n in (5, 3))
    assert model(source, target).shape == (2, 3, 23)


def test_each_sentence_has_a_limit_of_its_own(hour, monkeypatch):
    "Its own length and fifty more, whatever stands beside it."
    model = hour.Transformer(23)
    monkeypatch.setattr(model, "decode", lambda target, *_: torch.eye(23)[7].expand(*target.shape, 23))  # never the end
    written = hour.greedy(model, torch.tensor([[5, 6, 2, 0, 0, 0], [5, 6, 7, 8, 9, 2]]))
    assert [row.count(7) for row in written] == [53, 56]


SOURCE = torch.tensor([[5, 6, 7, 8, 9, 10, 2], [11, 12, 2, 0, 0, 0, 0], [13, 2, 0, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 14, 15, 16, 2], [1, 17, 18, 19, 20], [1, 21, 2, 0, 0]])


@torch.no_grad()
def test_the_same_weights_give_the_same_logits_padding_included(hour):
    ours, theirs = twins(hour)
    logits = ours(SOURCE, TARGET)
    assert logits.shape == (3, 5, 23) and logits.std() > 0.1
    torch.testing.assert_close(logits, theirs(SOURCE, TARGET))
    wide = F.pad(SOURCE, (0, 3))
    torch.testing.assert_close(ours(wide, TARGET), logits)
    changed = TARGET.clone()
    changed[:, 3:] = 4
    torch.testing.assert_close(ours(SOURCE, changed)[:, :3], logits[:, :3])


@pytest.mark.parametrize("seed", [2, 9])  # with these, sentences end, and differ
def test_the_same_words_are_written(hour, seed):
    ours, theirs = twins(hour, seed)
    wanted = greedy(theirs, SOURCE)
    limits = [(row != 0).sum().item() + 50 for row in SOURCE]
    written = [ids[:limit] for ids, limit in zip(hour.greedy(ours, SOURCE), limits, strict=True)]
    found = [ids[: ids.index(2) + 1] if 2 in ids else ids for ids in written]
    assert found == wanted and len({tuple(ids) for ids in found}) > 1


def test_positions_loss_and_rate_are_the_package_s(hour):
    torch.testing.assert_close(hour.positional_encoding(40, 30), positional_encoding(torch.arange(40), 30))
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 23)
    theirs = F.cross_entropy(logits.flatten(0, 1), TARGET.flatten(), ignore_index=0, label_smoothing=0.1)
    torch.testing.assert_close(hour.smoothed_loss(logits, TARGET), theirs)
    for step in (1, 499, 500, 501, 4000):
        assert hour.learning_rate(step, 128, 500) == pytest.approx(learning_rate(step, 128, 500))


# ---- in use


def test_a_vocabulary_gives_every_sentence_back(hour, text):
    vocabulary = hour.Vocabulary(side for pair in text.train for side in pair)
    for pair in text.train:
        for sentence in pair:
            assert vocabulary.decode(vocabulary.encode(sentence)) == sentence
    assert vocabulary.encode("Xylophones.")[0] == hour.UNK


def test_batches_hold_every_pair_once_an_epoch_and_little_padding(hour, text):
    vocabulary = hour.Vocabulary(side for pair in text.train for side in pair)
    pairs = [tuple(map(vocabulary.encode, pair)) for pair in text.train]
    random.seed(0)
    found, tokens, places, stream = [], 0, 0, hour.batches(pairs, size=30)
    for _ in range(10):
        source, target = next(stream)
        assert (target[:, 0] == hour.BOS).all()
        for s, t in zip(source.tolist(), target.tolist()):
            found.append(([i for i in s if i], [i for i in t[1:] if i]))
        tokens, places = tokens + (source > 0).sum().item(), places + source.numel()
    assert sorted(found) == sorted(pairs)
    assert tokens / places > 0.9


def test_training_lowers_the_loss_and_ends_with_a_mean_of_weights(hour, text):
    vocabulary = hour.Vocabulary(side for pair in text.train for side in pair)
    pairs = [tuple(map(vocabulary.encode, pair)) for pair in text.train]
    random.seed(0)
    torch.manual_seed(0)
    model, seen, losses = hour.Transformer(len(vocabulary.words), N=1, d_model=32, d_ff=64), [], []
    for step, loss in hour.train(model, pairs, steps=120, warmup=30):
        losses.append(loss)
        assert model.training
        if step >= 100 and step % 5 == 0:  # a 24th of the training lies between two sets
            seen.append(model.embedding.detach().clone())
        model.eval()  # as a translation between two steps does
    assert losses[-1] < 0.7 * losses[0] and len(seen) == 5
    torch.testing.assert_close(model.embedding.detach(), torch.stack(seen).mean(0))


def test_the_file_trains_and_translates_with_torch_alone(tmp_path, text):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in text.train) + "\n", encoding="utf-8")  # and an empty line
    (tmp_path / "the_transformer.py").write_bytes(PROGRAM.read_bytes())
    lines = [source for source, _ in text.test[:3]]
    done = subprocess.run(
        [sys.executable, "-I", "the_transformer.py", "pairs.tsv", "80"], cwd=tmp_path, capture_output=True,
        input="".join(f"{line}\n" for line in lines).encode())
    said, out = done.stderr.decode(), done.stdout.decode().split("\n")
    assert done.returncode == 0, said
    steps = re.fullmatch(r"step 1: loss (\d+\.\d\d)\nstep 80: loss (\d+\.\d\d)\n", said.replace("\r", ""))
    assert steps and float(steps[2]) < 0.8 * float(steps[1]), said
    assert len(out) == len(lines) + 1 and out[-1] == ""  # a line for a line; so early it may well be empty


def test_the_file_reads_what_its_readers_have(hour, tmp_path, monkeypatch, capsys):
    """A mark at the beginning, a third column, a line without a tab, an empty line to translate; a file of nothing is refused."""
    seen = []

    def no_training(model, pairs, steps):
        seen.extend(pairs)
        yield from ()

    monkeypatch.setattr(hour, "train", no_training)
    monkeypatch.setattr(hour, "translate", lambda model, vocabulary, lines: [f"<{lines[0].strip()}>"])
    monkeypatch.setattr(sys, "stdin", ["one\n", "\n", "two"])
    path = tmp_path / "pairs.tsv"
    path.write_text("\ufeffa b\tc\tby somebody\nno tab\na\td\n", encoding="utf-8")
    hour.main(path, "1")
    assert capsys.readouterr().out == "<one>\n\n<two>\n"
    assert [len(source) for source, _ in seen] == [3, 2] and seen[0][0][0] == seen[1][0][0]
    path.write_text("\n\n")
    with pytest.raises(SystemExit, match="pairs.tsv has no line of a source, a tab and a target"):
        hour.main(path)
    path.write_text("a\tb\n")
    for steps in ("0", "-1", "1.5", "ten", 0):
        with pytest.raises(SystemExit, match=f"^the number of steps is a whole number from 1, not {steps}$"):
            hour.main(path, steps)
    assert next(hour.batches([]), None) is None
