"""Training on text of one's own: what is read and held out, the folder that it leaves, going on, and what is refused."""

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import warm
from commands import RECIPE, SIZES, annotated, contents
from safetensors.torch import load_file

from annotated import cli, corpora, decoding, own_text
from annotated.data import Batches, Corpus, make_batch
from annotated.decoding import load
from annotated.files import sha256_of
from annotated.optimization import label_smoothed_loss
from annotated.training import Recipe, Run, list_checkpoints
from annotated.transformer import TINY, Config, Transformer

ROOT = Path(__file__).resolve().parents[1]


# ---- the choices that reach it


def test_the_speed_that_is_asked_for_is_given(monkeypatch):
    from annotated import distributed

    asked = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(distributed, "_fast_backend", lambda *given: asked.append(given))
    for more in (["--fast"], ["--precision", "bfloat16"], ["--compile"]):
        own_text._backend_for(cli._make_parser().parse_args(["train", "--out", "x", "--device", "cpu", *more]))
    recipe = Recipe(source_tokens=7, target_tokens=5)
    assert own_text._start_for("cpu", TINY, recipe).keywords["rows"] == 5 and own_text._start_for("cuda", TINY, recipe) is Run
    assert asked == [("cpu", None, False, Path("x")), ("cpu", "bfloat16", False, Path("x")), ("cpu", None, True, Path("x"))]


def test_what_is_scored_at_the_end_is_held_out_and_the_seed_decides_the_batches(text, tmp_path, called, monkeypatch):
    (tmp_path / "vs").write_text("the dog sees the dog\n")
    (tmp_path / "vt").write_text("die Hündin sieht die Hündin\n")
    scored, score, made = [], own_text._score, []
    monkeypatch.setattr(own_text, "_score", lambda translator, pairs, *more: scored.extend(pairs) or score(translator, pairs, *more))
    monkeypatch.setattr(own_text, "Batches", lambda *given: made.append(Batches(*given)) or made[-1])
    files = "--source", text / "train.en", "--target", text / "train.de", "--valid-source", tmp_path / "vs", "--valid-target", tmp_path / "vt"
    status, _, said = called("train", *files, *SIZES, "--steps", 1, "--seed", 7, "--out", tmp_path / "out")
    assert status == 0, said
    assert scored == [("the dog sees the dog", "die Hündin sieht die Hündin")]
    assert [batches.seed for batches in made] == [7]


# ---- text to learn from


def test_pairs_are_read_from_files_again_and_again(tmp_path):
    (tmp_path / "s").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo\xe2\x80\xa8two\nthree")
    (tmp_path / "t").write_bytes(b"eins\n-\nzwei \ndrei\n")
    pairs = own_text._FilePairs(tmp_path / "s", tmp_path / "t")
    wanted = [("one", "eins"), ("two two", "zwei"), ("three", "drei")]
    assert list(pairs) == list(pairs) == wanted
    assert list(own_text._FilePairs(tmp_path / "s", tmp_path / "t", frozenset(["eins", "three"]))) == wanted[1:2]


def test_copies_that_differ_in_white_space_alone_are_on_one_side_of_the_split(text, tmp_path, capsys):
    odd = {}
    for name in ("train.en", "train.de"):
        lines = (text / name).read_text().splitlines()
        assert all(" " in line for line in lines)
        spaced = [line.replace(" ", "  " if name == "train.en" else "\u00a0", 1) for line in lines]
        odd[name] = tmp_path / name
        odd[name].write_text("\n".join(lines + spaced) + "\n")
    options = SimpleNamespace(corpus=None, source=odd["train.en"], target=odd["train.de"], valid_source=None, valid_target=None, encoding=None)
    corpus = own_text._read_corpus(options)
    held_out = {side for pair in corpus.validation for side in pair}
    assert held_out and held_out.isdisjoint(side for pair in corpus.train for side in pair)


@pytest.mark.parametrize("lines", [(2, 5), (5, 2), (0, 1), (3, 4)])
def test_files_of_unequal_length_are_refused(tmp_path, lines):
    for name, number in zip("st", lines):
        (tmp_path / name).write_text("x\n" * number)
    with pytest.raises(ValueError, match=f"s has {lines[0]} lines and .*t has {lines[1]}:"):
        list(own_text._FilePairs(tmp_path / "s", tmp_path / "t"))


def test_held_out_pairs_depend_on_their_text_only_and_are_about_a_fiftieth():
    pairs = [(f"source {i % 700}", f"target {i % 900}") for i in range(5000)] * 2
    held = own_text._hold_out(lambda: pairs)
    assert 60 <= len(held) <= 140 and len(set(held)) == len(held) and set(held) <= set(pairs)
    shuffled = list(pairs)
    random.Random(0).shuffle(shuffled)
    assert set(own_text._hold_out(lambda: shuffled)) == set(held)
    assert 1 <= len(own_text._hold_out(lambda: pairs, most=10)) <= 30
    assert len(own_text._hold_out(lambda: pairs[:2])) >= 1
    with pytest.raises(ValueError, match="no sentence pair"):
        own_text._hold_out(list)


@pytest.mark.parametrize("side", ["\u200b", "\ufeff\u200b", " \u200b \u200d\u2060", "\x01", "\u00ad" * 50])
def test_a_side_that_nobody_can_see_is_empty(side, tmp_path):
    (tmp_path / "s").write_text(f"one\n{side}\ntwo\n\u200bthree\n\n")
    (tmp_path / "t").write_text(f"eins\nzwei\n{side}\ndrei\n{side}\n")
    pairs = own_text._FilePairs(tmp_path / "s", tmp_path / "t")
    assert list(pairs) == [("one", "eins"), ("\u200bthree", "drei")] and pairs.count() == (2, 3)


def test_what_unicode_lacks_so_far_is_text():
    "Letters of private use, and of a later Unicode than Python's: some font may have them."
    assert [own_text._bare(f" {line} ") for line in ("\ue000", "\U000323af", "\u200ba", "字", "")] == ["\ue000", "\U000323af", "\u200ba", "字", ""]


def options_for(tmp_path, **more):
    names = ("corpus", "source", "target", "valid_source", "valid_target", "encoding")
    files = {"source": tmp_path / "s", "target": tmp_path / "t"}
    return cli.argparse.Namespace(**{**dict.fromkeys(names), **files, **more})


def test_no_held_out_sentence_is_trained_on(tmp_path, capsys):
    chance = random.Random(1)
    pairs = [(f"s {chance.randrange(400)}", f"t {chance.randrange(400)}") for _ in range(2000)]
    for name, side in zip("st", zip(*pairs)):
        (tmp_path / name).write_text("\n".join(side) + "\n")
    corpus = own_text._read_corpus(options_for(tmp_path))
    train, held = list(corpus.train), corpus.validation
    strings = {text for pair in held for text in pair}
    assert held and train and strings.isdisjoint(text for pair in train for text in pair)
    left = len(pairs) - len(train) - len(held)
    assert left > 0 and f"{len(train)} pairs to train on, {len(held)} held out, {left} left out" in capsys.readouterr().err


def test_given_held_out_sentences_are_not_trained_on_either(tmp_path, capsys):
    (tmp_path / "s").write_text("a\nb\nc\n")
    (tmp_path / "t").write_text("A\nB\nC\n")
    (tmp_path / "vs").write_text("b\n")
    (tmp_path / "vt").write_text("beta\n")
    corpus = own_text._read_corpus(options_for(tmp_path, valid_source=tmp_path / "vs", valid_target=tmp_path / "vt"))
    assert list(corpus.train) == [("a", "A"), ("c", "C")] and corpus.validation == [("b", "beta")]
    assert "2 pairs to train on, 1 held out, 1 left out" in capsys.readouterr().err


def test_two_pairs_are_the_least_that_can_be_trained_on(tmp_path):
    for text, enough in (("a\n", False), ("a\na\n", False), ("a\nb\n", True)):
        (tmp_path / "s").write_text(text)
        (tmp_path / "t").write_text(text.upper())
        if enough:
            corpus = own_text._read_corpus(options_for(tmp_path))
            assert len(list(corpus.train)) == len(corpus.validation) == 1
        else:
            with pytest.raises(ValueError, match="leave nothing to train on"):
                own_text._read_corpus(options_for(tmp_path))


def test_one_file_for_both_sides_is_refused(tmp_path, capsys):
    for name in ("s", "t", "v"):
        (tmp_path / name).write_text("".join(f"{name} {n}\n" for n in range(60)))
    (tmp_path / "link").symlink_to(tmp_path / "s")
    os.link(tmp_path / "v", tmp_path / "v2")
    for more, name in (({"target": tmp_path / "s"}, "s"), ({"target": tmp_path / "link"}, "s"), ({"valid_source": tmp_path / "v", "valid_target": tmp_path / "v2"}, "v")):
        with pytest.raises(ValueError, match=f"{name} is both source and target: name two files"):
            own_text._read_corpus(options_for(tmp_path, **more))
    assert len(list(own_text._read_corpus(options_for(tmp_path)).train)) > 50


@pytest.mark.parametrize("encoding", [None, "utf-16"])
@pytest.mark.parametrize("end", ["", "\r", "\n"])
def test_lines_that_end_in_cr_are_called_so(tmp_path, encoding, end):
    for name in ("s", "t", "vs", "vt"):
        (tmp_path / name).write_bytes("\n".join(f"{name} {n}" for n in range(60)).encode(encoding or "utf-8"))
    valid = {"valid_source": tmp_path / "vs", "valid_target": tmp_path / "vt", "encoding": encoding}
    own_text._read_corpus(options_for(tmp_path, **valid))
    for name in ("vt", "t", "s"):
        (tmp_path / name).write_bytes(("\r".join(f"{name} {n}" for n in range(60)) + end).encode(encoding or "utf-8"))
        with pytest.raises(ValueError, match=rf"{name} is a single line, with CR where lines should end: convert it with tr '\\r' '\\n' < FILE > NEW"):
            own_text._read_corpus(options_for(tmp_path, **valid))


def test_long_pairs_are_refused_or_left_out():
    class Letters:
        def encode(self, text):
            return [*text.encode(), 2]

    recipe = Recipe(source_tokens=6, target_tokens=8)
    pairs = [("ab", "cd"), ("abcdef", "x"), ("y", "stuvwxy"), ("z", "stuvwxyz")]
    for pair, fits in zip(pairs, (True, False, True, False)):
        if fits:
            assert len(list(own_text._encoded([pair], Letters(), recipe))) == 1
        else:
            with pytest.raises(ValueError, match=f"begins '{pair[0]}' has .* source_tokens=6 .*--longest"):
                list(own_text._encoded([pair], Letters(), recipe))
    assert len(list(own_text._encoded(pairs, Letters(), recipe, longest=3))) == 1
    assert len(list(own_text._encoded(pairs[:1], Letters(), recipe, positions=3))) == 1
    for pair in (("a", "bcd"), ("bcd", "a")):
        with pytest.raises(ValueError, match="more than max_positions=3"):
            list(own_text._encoded([pair], Letters(), recipe, positions=3))


def test_subwords_are_learned_from_no_more_than_enough():
    assert list(own_text._sampled(range(100), most=7)) == list(range(0, 100, 15))
    assert list(own_text._sampled(range(7), most=7)) == list(range(7))


# ---- a whole job


def test_a_trained_folder_is_complete(model):
    for name in ("model.safetensors", "config.json", "subwords.model", "README.md", "run.json", "log.jsonl", "scores.json"):
        assert (model / name).stat().st_size
    run = json.loads((model / "run.json").read_text())
    assert run["command"].startswith("python -m annotated train --source")
    assert run["config"]["d_model"] == 32 and run["recipe"]["warmup"] == 30
    assert run["ended"] >= run["date"] and "failed" not in run
    assert run["data"]["sha256"] == {name: sha256_of(model.parent / f"train.{end}") for name, end in (("source", "en"), ("target", "de"))}
    assert (model / "tokens" / "about.json").exists()
    kept = [load_file(path / "model.safetensors") for path in list_checkpoints(model)]
    assert len(kept) == 4 and "checkpoints averaged: 4" in (model / "README.md").read_text()
    for name, weight in load_file(model / "model.safetensors").items():
        torch.testing.assert_close(weight, sum(one[name] for one in kept) / 4)


def test_its_page_says_data_licence_command_score_and_use(model):
    page, scores = (model / "README.md").read_text(), json.loads((model / "scores.json").read_text())
    run = json.loads((model / "run.json").read_text())
    for part in ("train.en and train.de", "the user's own", run["command"], f"BLEU {scores['bleu']:.2f}", scores["signature"], "annotated.load", "translate --model"):
        assert part in page
    assert scores["split"] == "validation" and scores["sentences"] >= 1 and "nc:6" in scores["chrf_signature"]


@pytest.mark.parametrize("change, said", [({}, "N=2, d_model=128, "), ({"N_decoder": 1}, "N=2, N_decoder=1, d_model=128, ")])
def test_its_page_gives_the_depth_of_both_stacks(change, said):
    page = own_text._describe(Corpus("pairs", [], [], [], "ours", {}), replace(TINY, **change), {"command": "c", "date": "d", "updates": 7}, 1)
    assert f"\n{said}" in page


def test_a_model_folder_works_elsewhere_and_alone(model, tmp_path):
    wanted = ("model.safetensors", "config.json", "subwords.model")
    (tmp_path / "there").mkdir()
    for name in wanted:
        shutil.copy(model / name, tmp_path / "there" / name)
    environment = {k: v for k, v in os.environ.items() if k != "ANNOTATED_DATA"} | {"HOME": str(tmp_path / "no-home")}
    code = "import annotated; print(annotated.load('there').translate(['the cat sees a dog', '']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == load(model).translate(["the cat sees a dog", ""])


def test_the_same_command_goes_on_and_another_run_is_refused(model, text, tmp_path, called):
    folder = shutil.copytree(model, tmp_path / "model")
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--out", folder, "--score", 0]
    assert called(*arguments, *RECIPE[:-1], "161")[0] == 0
    assert json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"] == 161
    assert [run["steps"] for run in json.loads((folder / "run.json").read_text())["continued"]] == [161]
    assert not (folder / "scores.json").exists(), "the scores were those of the model before"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.en").write_text((text / "train.en").read_text().replace("cat", "cow"))
    before = (folder / "run.json").read_bytes()
    for more, hint in (
        (["--d_ff", "64"], "d_ff=32, now d_ff=64"),
        (["--seed", "1"], "seed=0, now seed=1"),
        (["--keep", "3"], "keep=5, now keep=3"),
        (["--vocab", "310"], "vocab=300, now vocab=310"),
        (["--longest", "50"], "longest=None, now longest=50"),
        (["--source", tmp_path / "other" / "train.en"], "other data"),
    ):
        status, _, said = called(*arguments, *RECIPE[:-1], "161", *more)
        assert status == 2 and hint in said, said
    assert (folder / "run.json").read_bytes() == before


def test_an_interrupted_training_goes_on_to_the_same_weights(text, model, tmp_path):
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE, "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "annotated", *map(str, arguments)]
    process = warm.begin(command, stderr=subprocess.PIPE)
    log = tmp_path / "out" / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 20):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1].decode()
    assert process.returncode == 130 and "the same command goes on" in said and "Traceback" not in said
    assert not (tmp_path / "out" / "config.json").exists()
    assert json.loads((tmp_path / "out" / "run.json").read_text())["failed"].startswith("KeyboardInterrupt: stopped after update")
    assert annotated(*arguments).returncode == 0
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["continued"][0]["after"].startswith("KeyboardInterrupt") and run["ended"] and "failed" not in run
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_what_a_run_without_weights_has_left_is_made_anew(text, model, tmp_path, called):
    for name in ("subwords.model", "tokens", "run.json"):  # as if the run had been killed in its first updates
        source, target = model / name, tmp_path / "out" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    (tmp_path / "out" / own_text._MARK).touch()
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    (tmp_path / "few.en").write_text("".join(f"word{i % 5} thing{i % 7}\n" for i in range(35)))
    shutil.copy(tmp_path / "few.en", tmp_path / "few.de")
    sums = dict.fromkeys(("source", "target"), sha256_of(tmp_path / "few.en"))
    run["data"] |= {"corpus": "few.en and few.de", "sha256": sums}
    (tmp_path / "out" / "run.json").write_text(json.dumps(run))
    few = ["--source", tmp_path / "few.en", "--target", tmp_path / "few.de"]
    status, _, said = called("train", *few, *SIZES[:3], "290", *SIZES[4:], "--steps", 1, "--score", 0, "--out", tmp_path / "out")
    assert status == 0, said
    assert len(load(tmp_path / "out").vocabulary) == 290
    assert json.loads((tmp_path / "out" / "tokens" / "about.json").read_text())["pairs"] < 35


def test_longest_leaves_pairs_out_and_says_how_many(text, tmp_path, called):
    (tmp_path / "s").write_text((text / "train.en").read_text() + "the cat sees the dog " * 9 + "\n")
    (tmp_path / "t").write_text((text / "train.de").read_text() + "die Katze\n")
    arguments = ["train", "--source", tmp_path / "s", "--target", tmp_path / "t", *SIZES, "--steps", 1, "--score", 0]
    status, _, said = called(*arguments, "--longest", 40, "--out", tmp_path / "a")
    assert status == 0 and "left out 1 pair of more than 40 tokens" in said
    status, _, said = called(*arguments, "--source_tokens", 40, "--out", tmp_path / "b")
    assert status == 2 and "begins 'the cat sees" in said and "--longest" in said and not (tmp_path / "b" / "run.json").exists()


def test_plain_is_not_forgotten_beside_what_implies_fast(text, tmp_path, called, monkeypatch):
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 1, "--plain", "--out", tmp_path / "out"]
    for more in (["--compile"], ["--precision", "float32"]):
        status, _, said = called(*files, *more)
        assert status == 2 and "--plain cannot be had with --compile, with --precision or in several processes" in said
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert called(*files)[0] == 2 and not (tmp_path / "out").exists()


# ---- nothing is written over that is not ours


def test_a_folder_that_is_no_training_s_stays_as_it_is(model, text, tmp_path, called):
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 1, "--score", 0]
    for name in ("README.md", "words.txt", "config.json", "tokens/notes.txt", "subwords.model", "checkpoints/x"):
        folder = tmp_path / name.replace("/", "-")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
        status, _, said = called(*files, "--out", folder)
        assert status == 2 and f"holds {name.split('/')[0]}" in said and "choose another --out" in said
        assert [path.read_text() for path in folder.rglob("*") if path.is_file()] == ["mine"]
    given = shutil.copytree(model, tmp_path / "given", ignore=shutil.ignore_patterns("run.json"))
    before = (given / "model.safetensors").read_bytes()
    assert called(*files, "--out", given)[0] == 2 and (given / "model.safetensors").read_bytes() == before


# ---- what would fail late


def test_names_that_are_no_utf8_do_not_cost_the_training(text, tmp_path, called):
    odd = tmp_path / os.fsdecode(b"tr\xe4in.en")
    try:
        shutil.copy(text / "train.en", odd)
    except OSError:
        pytest.skip("this file system wants UTF-8 names")
    arguments = ["train", "--source", odd, "--target", text / "train.de", *SIZES, "--steps", 1, "--score", 1, "--out", tmp_path / "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", list(map(str, arguments)))  # which the record tells
        status, _, said = called(*arguments)
    assert status == 0, said
    assert "tr?in.en and train.de" in (tmp_path / "out" / "README.md").read_text()


def test_batches_that_the_processes_cannot_share_are_refused_before_the_run_begins(text, tmp_path, called, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--out", tmp_path / "out"]
    status, _, said = called(*arguments, "--accumulate", 3)
    assert status == 2 and "got 3 batches for 2 processes: try --accumulate 2" in said and not (tmp_path / "out").exists()
    status, _, said = called(*arguments, "--accumulate", 2, "--output_bias", "true")
    assert status == 2 and "output_bias cannot be had with --fast" in said and not (tmp_path / "out").exists()


def test_the_number_of_another_launchers_processes_shares_no_batches(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = cli._make_parser().parse_args(["train", "--out", "x", "--device", "cpu", "--fast"])
    with own_text._backend_for(options) as backend:  # an accumulate of 1 is no multiple of 4
        assert backend.writes


def test_a_run_without_weights_begins_anew_with_whatever_is_given(text, tmp_path, called):
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 3, "--score", 0, "--out", tmp_path]
    status, _, said = called(*arguments, "--rate", 1e30)  # fails in its second update
    assert status == 2 and (tmp_path / "run.json").exists(), said
    status, _, said = called(*arguments, "--rate", 1e30, "--d_ff", 64, "--vocab", 290)
    assert status == 2 and "the loss is" in said and json.loads((tmp_path / "run.json").read_text())["config"]["vocab"] == 290
    with (tmp_path / "tokens" / "tokens.bin").open("r+b") as file:
        file.truncate(10)  # damaged: made anew
    status, _, said = called(*arguments, "--rate", 1)
    run = json.loads((tmp_path / "run.json").read_text())
    assert status == 0 and run["recipe"]["rate"] == 1 and "continued" not in run, said
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1, 2, 3, 3]
    assert called(*arguments, "--rate", 2)[0] == 2


def test_learned_positions_must_be_enough(text, tmp_path, called):
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--out", tmp_path]
    status, _, said = called(*arguments, "--positions", "learned", "--max_positions", 3)
    assert status == 2 and "more than max_positions=3: raise that, or leave such pairs out with --longest" in said
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize("content", ["", "[]", "3", '{"config": 3}', "\x00"])
def test_a_damaged_run_is_named(text, tmp_path, called, content):
    (tmp_path / "run.json").write_text(content)
    status, _, said = called("train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--out", tmp_path)
    assert status == 2 and f"{tmp_path}/run.json is damaged: " in said


# ---- nothing lost


def test_training_says_how_many_pairs_lack_a_side(tmp_path, capsys):
    (tmp_path / "s").write_text("a\n\nb\nc\n")
    (tmp_path / "t").write_text("A\nx\nB\n\n")
    own_text._read_corpus(options_for(tmp_path))
    assert "1 pairs to train on, 1 held out, 0 left out that share a sentence with these, 2 left out that have an empty side" in capsys.readouterr().err


def test_a_training_that_is_refused_leaves_the_folder_as_it_was(text, tmp_path, called):
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 1, "--score", 0]
    for more in (["--vocab", 8000], ["--source_tokens", 2], ["--longest", 1], ["--N", 100_000_000], ["--h", 3]):
        assert called(*files, *more, "--out", tmp_path / "out")[0] == 2 and not (tmp_path / "out").exists(), more
    (tmp_path / "out").mkdir()
    assert called(*files, "--vocab", 8000, "--out", tmp_path / "out")[0] == 2
    assert list((tmp_path / "out").iterdir()) == []  # it was there before
    (tmp_path / "out" / own_text._MARK).touch()  # as an older version left it
    (tmp_path / "out" / "words.txt").write_text("mine")
    status, _, said = called(*files, "--out", tmp_path / "out")
    assert status == 2 and "holds words.txt, which would be lost" in said and (tmp_path / "out" / "words.txt").read_text() == "mine"


@pytest.mark.parametrize("name, held", [("multi30k-cpu", "scores.json"), ("grammar-tiny", "scores.json")])
def test_a_finished_record_is_not_begun_anew(tmp_path, name, held):
    record = ROOT / "results" / name
    shutil.copytree(record, tmp_path / "out")
    before = contents(tmp_path / "out")
    assert {"run.json", "log.jsonl", held} <= {path.name for path in record.iterdir()}
    with pytest.raises(ValueError, match=f"holds {held}, which would be lost, and no checkpoint to go on from: choose another --out"):
        own_text._check_folder(tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_fewer_updates_than_there_are_give_the_model_that_is_there_and_its_page_says_so(text, tmp_path, called):
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--score", 0, "--out", tmp_path / "out"]
    assert called(*files, "--steps", 3)[0] == 0
    before = (tmp_path / "out/model.safetensors").read_bytes()
    status, _, said = called(*files, "--steps", 2)
    assert status == 0 and "out has 3 updates already: it is trained no further\n" in said
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    assert "the last after 3 updates." in (tmp_path / "out/README.md").read_text()


def test_a_finished_training_whose_checkpoints_are_gone_keeps_its_log_and_model(text, tmp_path, called):
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 2, "--score", 0, "--out", tmp_path / "out"]
    assert called(*files)[0] == 0
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    before = contents(tmp_path / "out")
    status, _, said = called(*files)
    assert status == 2 and "holds model.safetensors, which would be lost" in said and contents(tmp_path / "out") == before


@pytest.mark.parametrize("mine", ["README.md", "config.json", "model.safetensors", "scores.json"])
def test_what_a_user_puts_into_the_folder_of_a_run_without_a_checkpoint_stays(text, tmp_path, called, monkeypatch, mine):
    def full(*_):
        raise MemoryError("no memory for a batch")

    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 2, "--score", 0, "--out", tmp_path / "out"]
    with monkeypatch.context() as patched:
        patched.setattr(own_text, "_learn", full)
        with suppress(MemoryError):
            assert called(*files)[0] != 0
    assert (tmp_path / "out" / "run.json").exists()
    (tmp_path / "out" / mine).write_text("mine")
    status, _, said = called(*files)
    assert status == 2 and f"holds {mine}, which would be lost" in said and (tmp_path / "out" / mine).read_text() == "mine"


def test_a_model_from_before_a_field_came_is_still_the_same_run():
    folder = ROOT / "results/tatoeba-cpu"
    begun = json.loads((folder / "run.json").read_text())
    sizes = {name: value for name, value in begun["config"].items() if name in {field.name for field in fields(Config)}}
    config = Config(**sizes)
    assert set(vars(config)) - set(begun["config"]), "the record lacks a field"
    own_text._check_same_run(folder, config=config, recipe=begun["recipe"], data=begun["data"])
    with pytest.raises(ValueError, match="was begun with d_ff"):
        own_text._check_same_run(folder, config=replace(config, d_ff=7), recipe=begun["recipe"], data=begun["data"])


def test_an_interrupt_while_the_text_is_prepared_leaves_nothing(text, tmp_path, called, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(own_text, "prepare", stop)
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 1, "--score", 0]
    assert called(*files, "--out", tmp_path / "out")[0] == 130 and not (tmp_path / "out").exists()


def test_a_disk_that_is_full_before_the_training_is_named(text, tmp_path, called, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpora, "array", full)
    files = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, "--steps", 1, "--score", 0]
    status, _, said = called(*files, "--out", tmp_path / "out")
    assert status == 2 and said.endswith(f"annotated train: {tmp_path / 'out' / 'tokens'}: No space left on device: make room, and give the same command again\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [
    {"step": 0}, {"step": 10**9}, {"step": "1"}, {"position": 10**9}, {"epoch": -1}, {"position": 1.5}, {"saved": 1}, None, {"epoch": 2**70},
])
def test_a_damaged_place_is_not_gone_on_from(change, model, text, tmp_path, called):
    folder = shutil.copytree(model, tmp_path / "model")
    for path in sorted((folder / "checkpoints").iterdir())[-2:]:
        progress = json.loads((path / "progress.json").read_text())
        (path / "progress.json").write_text(json.dumps({} if change is None else progress | change))
    before = contents(folder)
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE[:-1], 161, "--out", folder, "--score", 0]
    status, _, said = called(*arguments)
    lines = [line for line in said.replace("\r", "\n").split("\n") if line.startswith("annotated ")]
    assert status == 2 and "damaged" in lines[0] and "Traceback" not in said
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} <= {"run.json"} and not before.keys() - after.keys()


def test_damaged_tokens_are_made_anew(model, text, tmp_path, called):
    folder = shutil.copytree(model, tmp_path / "model")
    whole = (folder / "tokens" / "tokens.bin").read_bytes()
    (folder / "tokens" / "tokens.bin").write_bytes(whole[:-1] + bytes([whole[-1] ^ 255]))
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE, "--out", folder, "--score", 0]
    assert called(*arguments)[0] == 0 and (folder / "tokens" / "tokens.bin").read_bytes() == whole


# ---- what this machine cannot do


@pytest.mark.parametrize("size", [["--N", 1_000_000_000], ["--d_model", 1_000_000_000], ["--d_ff", 2**30], ["--vocab", 2**31 - 1]])
def test_sizes_beyond_the_memory_are_refused_with_both_numbers(size, text, tmp_path, called):
    status, _, said = called("train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *size, "--out", tmp_path / "out")
    assert status == 2 and re.search(r"takes [\d,.]+ GB of memory, and this machine has [\d,.]+: ", said) and not (tmp_path / "out").exists()


def test_weights_are_counted_without_a_model():
    changes = [{}, {"bias": True}, {"norm": "pre"}, {"final_norm": True}, {"d_k": 3, "d_v": 5}, {"output_bias": True}, {"N_decoder": 3},
               {"source_vocab": 13}, {"positions": "learned", "max_positions": 17}]
    for change in changes:
        config = replace(TINY, vocab=11, d_model=8, h=2, d_ff=6, **change)
        assert own_text._count_weights(config) == sum(p.numel() for p in Transformer(config).parameters()), change


class Kept:
    """Bytes of what autograd keeps of a forward pass, weights left out; each storage counts once."""

    def __init__(self, model):
        self.known = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.bytes, self.alive = 0, []

    def __call__(self, x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.alive.append(storage)  # so that its address is not used again
            self.bytes += storage.nbytes()
        return x


@pytest.mark.parametrize("form", ["plain", "Objective", "joint", "UnpaddedObjective", "CPUObjective"])
@pytest.mark.parametrize("change", [{}, {"norm": "pre"}, {"d_k": 5, "d_v": 7, "N_decoder": 1}, {"P_drop": 0.1, "activation": "gelu"}], ids=str)
def test_no_form_of_training_keeps_less_than_is_asked_for(form, change):
    from annotated import cpu, gpu

    config = replace(TINY, **{"vocab": 203, "d_model": 38, "h": 2, "d_ff": 101, "P_drop": 0.0} | change)
    model = Transformer(config)
    source, target = make_batch([([5] * (9 + i % 4) + [2], [6] * (11 + i % 3) + [2]) for i in range(20)])
    objective = {
        "plain": lambda: lambda source, target: label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:]),
        "Objective": lambda: gpu.Objective(gpu.fuse(model)), "joint": lambda: gpu.Objective(gpu.join_projections(gpu.fuse(model))),
        "UnpaddedObjective": lambda: gpu.UnpaddedObjective(model), "CPUObjective": lambda: cpu.CPUObjective(model),
    }[form]()
    kept = Kept(model)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda x: x):
        loss = objective(source, target)
    asked = 4 * own_text._count_activations(config, int((source != 0).sum()), int((target[:, 1:] != 0).sum()))
    assert loss.requires_grad and asked <= kept.bytes < 2.2 * asked


def a_training(device="cpu", **options):
    options = SimpleNamespace(**{"fast": False, "compile": False, "precision": None} | options)
    pairs = [([5] * (n % 7) + [2], [6] * (n % 5) + [2]) for n in range(40)]
    batches = Batches(pairs, 60, 60)
    sizes = [[sum(map(len, side)) for side in zip(*(pairs[i] for i in batches.plan()[k].tolist()))] for k in range(len(batches.plan()))]
    return lambda config: own_text._check_batches(options, config, batches, device), max(sizes, key=sum)


@pytest.mark.parametrize("options, lean", [({}, False), ({"fast": True}, True), ({"precision": "bfloat16"}, True)], ids=str)
def test_batches_are_refused_by_the_byte(options, lean, monkeypatch):
    config = replace(TINY, vocab=203)
    check, largest = a_training(**options)
    wanted = own_text._bytes_to_train(config, *largest, lean)
    monkeypatch.setattr(own_text, "_machine_memory", lambda: wanted)
    check(config)
    monkeypatch.setattr(own_text, "_machine_memory", lambda: None)  # nobody says
    check(config)
    monkeypatch.setattr(own_text, "_machine_memory", lambda: wanted - 1)
    with pytest.raises(ValueError, match=f"batches of {largest[0]} source and {largest[1]} target tokens takes 0.0 GB of memory, and this machine"):
        check(config)


def test_a_gpu_is_asked_for_its_own_memory(monkeypatch):
    config = replace(TINY, vocab=203)
    check, largest = a_training("cuda:1")
    wanted, asked = own_text._bytes_to_train(config, *largest, lean=True), []

    def properties(device):
        asked.append(device)
        return SimpleNamespace(total_memory=wanted - len(asked) + 1)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(own_text, "_machine_memory", lambda: 10)
    check(config)
    with pytest.raises(ValueError, match="the GPU cuda:1 has"):
        check(config)
    assert asked == ["cuda:1"] * 2


def test_a_training_on_a_cpu_needs_its_weights_four_times(monkeypatch):
    config, options = replace(TINY, vocab=203), SimpleNamespace(device="cpu", corpus="grammar", score=0)
    wanted = 4 * 4 * own_text._count_weights(config)
    monkeypatch.setattr(decoding, "_machine_memory", lambda: wanted)
    own_text._check_able(options, config)
    monkeypatch.setattr(decoding, "_machine_memory", lambda: wanted - 1)
    with pytest.raises(ValueError, match="training a model of these sizes takes"):
        own_text._check_able(options, config)


def test_by_muon_a_training_needs_its_weights_three_times(monkeypatch, text, tmp_path):
    "Of its batches, too, one average less is asked for."
    config = replace(TINY, vocab=203)
    weights = 4 * own_text._count_weights(config)
    assert own_text._bytes_to_train(config, 0, 0, averages=1) == 3 * weights
    plain = own_text._bytes_to_train(config, 90, 90)
    assert own_text._bytes_to_train(config, 90, 90, averages=1) == plain - weights
    asked = []
    monkeypatch.setattr(own_text, "_check_able", lambda options, config, averages: asked.append(averages))
    monkeypatch.setattr(own_text, "_check_batches", lambda *given: asked.append(given[-1]))
    monkeypatch.setattr(own_text, "_learn", lambda *_: asked.append("trains"))
    monkeypatch.setattr(own_text, "_finish", lambda *_: None)
    for preset, averages in (("quick", 1), ("tiny", 2)):
        words = ["--source", str(text / "train.en"), "--target", str(text / "train.de"), "--preset", preset, "--vocab", "300", "--steps", "2", "--out", str(tmp_path / preset)]
        assert cli.main(["train", *words]) == 0
        assert asked[-3:] == [averages, averages, "trains"]


def test_the_bytes_of_a_training_are_weights_averages_and_more():
    config = replace(TINY, vocab=203)
    weights = 4 * own_text._count_weights(config)
    assert own_text._bytes_to_train(config, 0, 0) == 4 * weights == own_text._bytes_to_train(config, 1, 1)  # gradients are more than these
    plain, lean = (own_text._bytes_to_train(config, 9000, 9000, lean) - 3 * weights for lean in (False, True))
    kept = own_text._count_activations(config, 9000, 9000)
    assert plain == 4 * (kept + 9000 * 203) and lean == 2 * (kept + 4096 * 203)


def test_batches_beyond_the_memory_are_refused_before_the_first_update(text, tmp_path, called, monkeypatch):
    monkeypatch.setattr(own_text, "_machine_memory", lambda: 10**6)
    monkeypatch.setattr(own_text, "train", lambda *given, **more: pytest.fail("it trains"))
    files = "train", "--source", text / "train.en", "--target", text / "train.de"
    status, _, said = called(*files, *SIZES, "--out", tmp_path / "out", "--score", 0)
    assert status == 2 and re.search(r"batches of \d+ source and \d+ target tokens takes 0\.\d GB of memory, and this machine has 0\.0: ", said)
    assert not (tmp_path / "out").exists(), "nothing of the attempt stays"


@pytest.mark.parametrize("size, most", [(10, 10), (10, 1000), (10, 3), (10, 7), (1, 1), (0, 5)])
def test_the_pairs_that_are_scored_come_from_the_whole_held_out_part(size, most):
    found = own_text._at_distances(list(range(size)), most)
    assert len(found) == len(set(found)) == min(size, most) and found == sorted(found)
    gaps = {b - a for a, b in zip(found, [*found[1:], size])}
    assert not found or found[0] == 0 and max(gaps) - min(gaps) <= 1, "no end of it is left out"


def test_another_encoding_reaches_all_four_files(tmp_path):
    for name, text in {"s": "f\xfcr\nb\nc\n", "t": "A\nB\nC\n", "vs": "\xe4\n", "vt": "\xf6\n"}.items():
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    corpus = own_text._read_corpus(options_for(tmp_path, valid_source=tmp_path / "vs", valid_target=tmp_path / "vt", encoding="latin-1"))
    assert list(corpus.train)[0] == ("f\xfcr", "A") and corpus.validation == [("\xe4", "\xf6")]


def test_as_many_checkpoints_are_averaged_as_are_kept(text, tmp_path, called):
    files = "--source", text / "train.en", "--target", text / "train.de"
    status, _, said = called("train", *files, *SIZES, "--steps", 7, "--save_every", 1, "--keep", 7, "--score", 0, "--out", tmp_path / "out")
    kept = [load_file(path / "model.safetensors") for path in list_checkpoints(tmp_path / "out")]
    assert status == 0 and len(kept) == 7 and "the mean of 7 checkpoints" in said
    for name, weight in load_file(tmp_path / "out/model.safetensors").items():
        torch.testing.assert_close(weight, sum(one[name] for one in kept) / 7)


def test_scored_pairs_stand_at_distances(text, tmp_path, called, monkeypatch):
    for name in ("vs", "vt"):
        (tmp_path / name).write_text("".join(f"{name} {n}\n" for n in "abcd"))
    scored, score = [], own_text._score
    monkeypatch.setattr(own_text, "_score", lambda translator, pairs, *more: scored.extend(pairs) or score(translator, pairs, *more))
    files = "--source", text / "train.en", "--target", text / "train.de", "--valid-source", tmp_path / "vs", "--valid-target", tmp_path / "vt"
    status, _, said = called("train", *files, *SIZES, "--steps", 1, "--score", 2, "--out", tmp_path / "out")
    assert status == 0, said
    assert scored == [("vs a", "vt a"), ("vs c", "vt c")]


def test_a_vocabulary_is_learned_from_the_sample(monkeypatch):
    monkeypatch.setattr(own_text, "_sampled", lambda pairs: pairs[:1])
    monkeypatch.setattr(own_text.Subwords, "train", lambda texts, size: (list(texts), size))
    assert own_text._learn_vocabulary(Corpus("x", [("a", "b"), ("c", "d")], [], [], "", {}), 7) == (["a", "b"], 7)
