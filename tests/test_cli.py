"""The command line as a user meets it: a whole job, and everything that can be wrong with the input."""

import json
import subprocess
import sys

import pytest

WORDS = [("the", "die"), ("a", "eine"), ("cat", "Katze"), ("dog", "Hündin"), ("sees", "sieht"), ("hears", "hört")]


def annotated(*arguments, stdin=b"", **more):
    return subprocess.run([sys.executable, "-m", "annotated", *map(str, arguments)], input=stdin, capture_output=True, **more)


def failed(done):
    "A user's mistake: status 2, one line on stderr, no traceback."
    lines = [line for line in done.stderr.decode().replace("\r", "\n").split("\n") if line.startswith("annotated ")]
    return done.returncode == 2 and len(lines) == 1 and b"Traceback" not in done.stderr


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    "A small parallel corpus: every sentence of five words."
    folder = tmp_path_factory.mktemp("text")
    pairs = [
        tuple(" ".join(word[side] for word in (a, b, v, c, d)) for side in (0, 1))
        for a in WORDS[:2] for b in WORDS[2:4] for v in WORDS[4:] for c in WORDS[:2] for d in WORDS[2:4]
    ]
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return folder


SIZES = "--preset tiny --vocab 300 --N 1 --d_model 32 --d_ff 32 --h 2 --source_tokens 200 --target_tokens 200 --threads 1".split()
RECIPE = "--warmup 30 --save_every 40 --evaluate_every 40 --steps 160".split()


@pytest.fixture(scope="module")
def model(text):
    done = annotated("train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE, "--out", text / "model")
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return text / "model"


def test_a_trained_folder_is_complete(model):
    for name in ("model.safetensors", "config.json", "subwords.model", "README.md", "run.json", "log.jsonl"):
        assert (model / name).stat().st_size
    run = json.loads((model / "run.json").read_text())
    assert run["command"].startswith("python -m annotated train --source")
    assert run["config"]["d_model"] == 32 and run["recipe"]["warmup"] == 30


def test_the_same_command_goes_on_and_another_size_is_refused(model, text):
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--out", model]
    assert annotated(*arguments, *RECIPE[:-1], "161").returncode == 0
    assert json.loads((model / "log.jsonl").read_text().splitlines()[-1])["step"] == 161
    assert [run["steps"] for run in json.loads((model / "run.json").read_text())["continued"]] == [161]
    refused = annotated(*arguments, *RECIPE, "--d_ff", "64")
    assert failed(refused) and b"d_ff=32, now d_ff=64" in refused.stderr


def test_translate_keeps_the_number_of_lines(model, tmp_path):
    lines = ["the cat sees a dog", "", "  ", "word " * 300, "日本語", "🙂", "a cat hears the dog"]
    done = annotated("translate", "--model", model, "--threads", "1", stdin="\n".join(lines).encode())
    assert done.returncode == 0 and done.stdout.decode().count("\n") == len(lines)
    (tmp_path / "in").write_bytes("\n".join([*lines, ""]).encode())
    written = annotated("translate", "--model", model, "--threads", "1", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert written.returncode == 0 and (tmp_path / "out").read_bytes() == done.stdout


def test_nothing_in_gives_nothing_out(model):
    done = annotated("translate", "--model", model, "--threads", "1", stdin=b"")
    assert done.returncode == 0 and done.stdout == b""


def test_bytes_that_are_no_text_still_give_a_line(model):
    done = annotated("translate", "--model", model, "--threads", "1", stdin=b"the \xff\xfe cat\n")
    assert done.returncode == 0 and done.stdout.count(b"\n") == 1


def test_evaluate_prints_the_score_with_its_signature(model, text, tmp_path):
    done = annotated("evaluate", "--model", model, "--source", text / "train.en", "--target", text / "train.de",
                     "--threads", "1", "--out", tmp_path)
    assert done.returncode == 0 and b"BLEU" in done.stdout and b"nrefs:1|case:mixed" in done.stdout
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["sentences"] == 32 == len((tmp_path / "outputs.txt").read_text().splitlines())
    assert scores["bleu"] > 20  # it was trained on these, for a moment


def test_input_that_cannot_be_used_gives_one_line(model, text, tmp_path):
    (tmp_path / "short.de").write_text("eins\n")
    (tmp_path / "latin").write_bytes("für\n".encode("latin-1"))
    (tmp_path / "empty").write_text("")
    train = ["train", *SIZES, "--out", tmp_path / "out"]
    en, de = text / "train.en", text / "train.de"
    for arguments, hint in [
        (["translate", "--model", tmp_path], "not a model folder"),
        (["translate", "--model", model, "--input", tmp_path / "nothing"], "cannot read"),
        ([*train, "--source", en, "--target", tmp_path / "nothing"], "cannot read"),
        ([*train, "--source", en, "--target", tmp_path / "short.de"], "has 32 lines and"),
        ([*train, "--source", tmp_path / "latin", "--target", de], "is not UTF-8"),
        ([*train, "--source", tmp_path / "empty", "--target", tmp_path / "empty"], "no sentence pair"),
        ([*train, "--source", en], "give either"),
        ([*train, "--corpus", "wmt99"], "no corpus"),
        ([*train, "--source", en, "--target", de, "--vocab", "10"], "vocab=10"),
        ([*train, "--source", en, "--target", de, "--h", "5"], "got h=5 and d_model=32"),
        ([*train, "--source", en, "--target", de, "--source_tokens", "3"], "source_tokens=3"),
        (["translate", "--model", model, "--beam", "0"], "beam must be 1 or more"),
    ]:
        done = annotated(*arguments, stdin=b"a line\n")
        assert failed(done) and hint.encode() in done.stderr, (arguments, done.stderr.decode()[-500:])


def test_help_teaches_by_example():
    for command in ("train", "translate", "evaluate"):
        assert b"examples:\n  " in annotated(command, "--help").stdout
