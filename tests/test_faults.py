"""Faults found in widely read implementations of the paper, each made impossible by a test.

fault | the test that fails where it is made
--- | ---
pre-norm code under post-norm prose | test_faults.py::test_pre_norm_code_under_post_norm_prose
dropout argument not passed on to attention | test_transformer.py::test_dropout_stands_where_the_configuration_puts_it
scheduler stepped at every micro-batch | test_training.py::test_the_rate_moves_once_an_update_whatever_is_accumulated
accumulated gradients not divided by the tokens of the whole step | test_training.py::test_accumulated_gradients_count_every_token_the_same
averaging code that no run reaches | test_faults.py::test_averaging_code_that_no_run_reaches
weight-sharing code that no run reaches | test_faults.py::test_weight_sharing_code_that_no_run_reaches
vocabulary built on train, validation and test | test_faults.py::test_vocabulary_built_on_train_validation_and_test
long sentences cut so that the end token is lost | test_data.py::test_a_sentence_is_never_cut
a mask that lets the target through | test_transformer.py::test_each_position_sees_itself_and_what_is_before
the decoder ignoring the source mask | test_transformer.py::test_padding_and_company_change_nothing
LayerNorm with unbiased deviation and eps outside the root | test_layers.py::test_variance_is_biased_and_eps_inside_the_root
"BLEU" teacher-forced | test_faults.py::test_bleu_teacher_forced
"BLEU" scored on characters | test_faults.py::test_bleu_scored_on_characters
finished beams that go on growing | test_decoding.py::test_the_n_best_are_sorted_distinct_and_ended
cached output that differs from uncached | test_transformer.py::test_cached_steps_equal_decode
multiprocessing started inside a notebook | test_faults.py::test_multiprocessing_started_inside_a_notebook
"""

import ast
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from chapters import paths, read, second_notebooks
from safetensors.torch import load_file

from annotated.cli import main
from annotated.data import Subwords, load_vocabulary
from annotated.decoding import load
from annotated.evaluation import bleu
from annotated.training import list_checkpoints
from annotated.transformer import BASE, BIG, TINY, Transformer

TABLE = [tuple(part.strip() for part in row.split("|")) for row in __doc__.splitlines() if "::" in row]


@pytest.mark.parametrize("fault, test", TABLE, ids=[fault for fault, _ in TABLE])
def test_every_fault_has_its_test(fault, test):
    file, _, name = test.partition("::")
    tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_pre_norm_code_under_post_norm_prose():
    "After a post-norm layer every position has mean 0 and variance 1; after a pre-norm layer it has not."
    ids = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    for config in (BASE, BIG, TINY):
        torch.manual_seed(0)
        model = Transformer(replace(config, vocab=50, N=2, d_model=16, d_ff=16, h=2, d_k=8, d_v=8)).eval()
        memory = model.encode(ids)
        torch.testing.assert_close(memory.mean(-1), torch.zeros(2, 7), atol=1e-5, rtol=0)
        torch.testing.assert_close(memory.var(-1, unbiased=False), torch.ones(2, 7), atol=1e-3, rtol=0)


# ---- what the command line does from text to score


SIZES = "--preset tiny --N 1 --d_model 16 --d_ff 16 --h 2 --P_drop 0 --vocab 300".split()
RECIPE = "--steps 12 --warmup 4 --rate 2 --save_every 4 --evaluate_every 6 --keep 2 --device cpu".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "A model trained by the command line; only held-out text has the letter ж, only training text the letter я."
    folder = tmp_path_factory.mktemp("faults")
    lines = {"train": ["a cat я sees", "a dog я runs", "the cat я runs"] * 9, "held-out": ["a ж cat runs", "the ж dog sees"]}
    for name, text in lines.items():
        for side in ("", ".target"):  # one file for both sides is refused
            (folder / f"{name}{side}").write_text("".join(line + "\n" for line in text), encoding="utf-8")
    files = [(f"--{option}", str(folder / name)) for option, name in (
        ("source", "train"), ("target", "train.target"), ("valid-source", "held-out"), ("valid-target", "held-out.target"))]
    assert main(["train", *(part for pair in files for part in pair), *SIZES, *RECIPE, "--out", str(folder / "model")]) == 0
    return folder


def test_averaging_code_that_no_run_reaches(folder):
    last = [load_file(path / "model.safetensors") for path in list_checkpoints(folder / "model")]
    saved = load_file(folder / "model/model.safetensors")
    assert len(last) == 2 and set(saved) == set(last[0])
    for name, weight in saved.items():
        torch.testing.assert_close(weight, (last[0][name] + last[1][name]) / 2, rtol=0, atol=1e-7)
    assert any(not torch.allclose(weight, last[1][name], atol=1e-5) for name, weight in saved.items())


def test_weight_sharing_code_that_no_run_reaches(folder):
    model, vocab = load(folder / "model", "cpu").model, 300
    names = [name for name, p in model.named_parameters() if vocab in p.shape]
    assert len(names) == 1, f"one matrix has a row for each piece, not {names}"
    W = dict(model.named_parameters())[names[0]]
    source, target = torch.tensor([[9, 2]]), torch.tensor([[1, 7]])
    model.eval()
    before = model.encode(source), model.decode(target, model.encode(source), source)
    with torch.no_grad():
        W[9] += 1.0  # a source word's row: the encoder reads it
        W[7] += 1.0  # a target word's row: the decoder reads it
        W[5] *= 2.0  # the row of a word that stands nowhere: only its logit is made of it
    after = model.encode(source), model.decode(target, before[0], source)
    assert not torch.allclose(after[0], before[0]) and not torch.allclose(after[1][0, 1, :5], before[1][0, 1, :5])
    torch.testing.assert_close(after[1][0, 0, 5], 2 * before[1][0, 0, 5])


def test_vocabulary_built_on_train_validation_and_test(folder):
    vocabulary = load_vocabulary(folder / "model")
    pieces = {letter: len(vocabulary.encode(letter)) for letter in "яж"}
    assert pieces["ж"] > pieces["я"], "a letter of held-out text only must be spelled as bytes"
    everything = [line for name in ("train", "held-out") for line in (folder / name).read_text(encoding="utf-8").splitlines()]
    leaky = Subwords.train(everything, 300, character_coverage=1.0)
    assert len(leaky.encode("ж")) == pieces["я"], "else the comparison above shows nothing"


def evaluate(folder, target, capsys, name):
    (folder / name).write_text("".join(line + "\n" for line in target), encoding="utf-8")
    files = "--source", str(folder / "held-out"), "--target", str(folder / name)
    assert main(["evaluate", "--model", str(folder / "model"), *files, "--device", "cpu", "--out", str(folder / f"{name}-scores")]) == 0
    return (folder / f"{name}-scores/outputs.txt").read_text(encoding="utf-8"), capsys.readouterr().out


def test_bleu_teacher_forced(folder, capsys):
    "What is written must not depend on the reference, as it does where the reference is fed to the decoder."
    outputs = {evaluate(folder, target, capsys, f"target-{i}")[0] for i, target in enumerate((["a b", "c"], ["the cat runs", "x y z"]))}
    assert len(outputs) == 1


def test_bleu_scored_on_characters(folder, capsys):
    "Words with their letters the other way round share characters, and no word."
    written, wanted = ["a level radar stops desserts , madam"] * 2, ["a level radar spots stressed , madam now"] * 2
    letters = [" ".join(text.replace(" ", "_")) for text in (*written, *wanted)]
    by_words, signature = bleu(written, wanted)
    by_characters, _ = bleu(letters[:2], letters[2:])
    assert by_characters > 50 > by_words + 10 and "tok:13a" in signature
    _, said = evaluate(folder, wanted, capsys, "words")
    assert "tok:13a" in said and "tok:13a" in json.loads((folder / "words-scores/scores.json").read_text())["signature"]


# ---- the notebooks


def processes(tree):
    "What in this code starts processes that import the code again."
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            yield from (name for name in names if re.search(r"multiprocessing|ProcessPoolExecutor", name))
        if isinstance(node, ast.keyword) and node.arg == "num_workers" and getattr(node.value, "value", 1) != 0:
            yield "num_workers"
        if isinstance(node, ast.Attribute) and node.attr in ("fork", "spawn", "multiprocessing", "ProcessPoolExecutor"):
            yield node.attr


def test_multiprocessing_started_inside_a_notebook():
    for text in ("import multiprocessing", "import torch.multiprocessing as mp", "from concurrent.futures import ProcessPoolExecutor",
                 "DataLoader(x, num_workers=2)", "DataLoader(x, num_workers=n)", "torch.multiprocessing.spawn(f)", "os.fork()"):
        assert list(processes(ast.parse(text))), text
    assert not list(processes(ast.parse("DataLoader(x, num_workers=0)")))
    found = Counter()
    for path in [*paths(), *second_notebooks()]:
        for cell in read(path).code():
            found.update(f"{path.name}: {name}" for name in processes(cell.tree))
    assert not found
