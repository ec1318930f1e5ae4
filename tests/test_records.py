"""Where a record comes from is noted when it begins; what goes on is the same run; an error stays in the record."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import warm

from annotated import records
from annotated.files import sha256_of
from annotated.records import Record, _check_same, about_corpus, about_model, commit, provenance, read_run
from annotated.training import Recipe
from annotated.transformer import TINY


def test_a_record_can_be_made_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] is None


def test_the_command_of_a_record_can_be_pasted(monkeypatch):
    arguments = ["--out", "my model", "--text", "it's *", "--rate=2"]
    monkeypatch.setattr(sys, "argv", ["/some/where/annotated/__main__.py", *arguments])
    assert shlex.split(provenance()["command"]) == ["python", "-m", "annotated", *arguments]
    monkeypatch.setattr(sys, "argv", ["/some/where/bin/annotated", *arguments])
    assert shlex.split(provenance()["command"]) == ["python", "-m", "annotated", *arguments]
    monkeypatch.setattr(sys, "argv", ["benchmarks/12_grammar.py", "--seed", "1"])
    assert provenance()["command"] == "python benchmarks/12_grammar.py --seed 1"
    for program, pasted in (
        ("run.py", ["run.py"]), ("exp/2024/run.py", ["exp/2024/run.py"]), ("a b/run.py", ["a b/run.py"]),
        ("/some/where/benchmarks/run.py", ["benchmarks/run.py"]), ("/some/other/__main__.py", ["other/__main__.py"]),
    ):
        monkeypatch.setattr(sys, "argv", [program, "--seed", "1"])
        assert shlex.split(provenance()["command"]) == ["python", *pasted, "--seed", "1"]


@pytest.mark.parametrize("size, start", [(2, "torchrun --nproc-per-node 2"), (8, "torchrun --nnodes 4 --nproc-per-node 2")])
def test_the_command_of_several_processes_says_how_many(size, start, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/annotated/__main__.py", "train"])
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert provenance()["command"] == f"{start} -m annotated train"
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert provenance()["command"] == "python -m annotated train", "another launcher's variable"


@pytest.mark.parametrize("left", ["scores.json", "log.jsonl"])
def test_what_an_unknown_run_has_left_is_not_taken_over(left, tmp_path):
    (tmp_path / left).write_text('{"bleu": 99}\n')
    with pytest.raises(ValueError, match=f"holds {left} of an unknown run: choose another"):
        Record.begin(tmp_path, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == [left]
    record = Record.begin(tmp_path, anew=True, seed=0)
    assert not record.scores and not (tmp_path / "log.jsonl").exists()


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_record_made_anew_never_has_the_scores_of_the_old_one(stopped_at, tmp_path, monkeypatch):
    "Wherever it is stopped: after each file that is removed."
    with Record.begin(tmp_path, seed=0) as record:
        record.log(step=1)
        record.write_scores({"bleu": 99})
    removed, unlink = [], Path.unlink

    def stop(path, **more):
        if path.name in ("run.json", "scores.json", "log.jsonl"):
            if len(removed) == stopped_at:
                raise KeyboardInterrupt
            removed.append(path.name)
        unlink(path, **more)

    monkeypatch.setattr(Path, "unlink", stop)
    with pytest.raises(KeyboardInterrupt):
        Record.begin(tmp_path, anew=True, seed=1)
    monkeypatch.undo()
    run = json.loads((tmp_path / "run.json").read_text()) if (tmp_path / "run.json").exists() else {"seed": None}
    assert run["seed"] == (0 if stopped_at == 0 else None)
    if stopped_at:
        with pytest.raises(ValueError, match="of an unknown run"):
            Record.begin(tmp_path, seed=1)
    assert not Record.begin(tmp_path, anew=True, seed=1).scores


def test_a_copy_without_a_repository_says_its_commit_by_a_variable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("ANNOTATED_COMMIT", raising=False)
    assert commit() is None
    monkeypatch.setenv("ANNOTATED_COMMIT", "abcdef123456")
    assert commit() == "abcdef123456"


# ---- the state of the repository


def git(*words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], capture_output=True, check=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The working directory: a repository with one commit; its name."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "ANNOTATED_COMMIT"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "repository"
    (place / "annotated").mkdir(parents=True)
    monkeypatch.chdir(place)
    Path("annotated", "code.py").write_text("answer = 41\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "first")
    return git("rev-parse", "--short=12", "HEAD").decode().strip()


def test_a_record_names_the_commit_at_which_its_run_began(repository, tmp_path):
    with Record.begin(tmp_path / "run", seed=0) as record:
        Path("annotated", "code.py").write_text("answer = 42\n")
        git("commit", "-qam", "second")
        record.write_scores({"answer": 41})
    run = read_run(tmp_path / "run")
    assert run["commit"] == repository != git("rev-parse", "--short=12", "HEAD").decode().strip()
    assert run["uncommitted"] == {} and run["ended"] >= run["date"]
    assert run["load"] >= 0 and run["ended_load"] >= 0
    with Record.begin(tmp_path / "run", seed=0):
        pass
    (again,) = read_run(tmp_path / "run")["continued"]
    assert again["commit"] == git("rev-parse", "--short=12", "HEAD").decode().strip()
    assert read_run(tmp_path / "run")["commit"] == repository


def test_a_tag_does_not_stand_for_the_commit(repository, tmp_path):
    git("tag", "-a", "v1.0", "-m", "first")
    Record.begin(tmp_path / "run")
    assert read_run(tmp_path / "run")["commit"] == repository


@pytest.mark.parametrize("below", [".", "annotated"])
def test_what_differs_from_the_commit_is_hashed_and_named(repository, tmp_path, monkeypatch, below):
    Path("annotated", "code.py").write_bytes(b"answer = '\xe4'\n")  # no UTF-8
    Path("annotated", "new.py").write_text("import code\n")
    Path("notes.txt").write_text("not run\n")
    difference = git("diff", "HEAD")
    monkeypatch.chdir(below)
    Record.begin(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run["commit"] == f"{repository}-dirty" and b"answer" in difference
    assert run["uncommitted"] == {"sha256": hashlib.sha256(difference).hexdigest(),
                                  "changed": ["annotated/code.py"], "untracked": ["annotated/new.py"]}


def test_a_committed_record_that_is_continued_does_not_count_as_a_difference(repository):
    with Record.begin(Path("results", "run"), seed=0) as record:
        record.write_scores({"answer": 41})
    git("add", "-A")
    git("commit", "-qm", "a record")
    with Record.begin(Path("results", "run"), seed=0), Record.begin(Path("results", "run", "part")) as part:
        assert git("diff", "HEAD", "--name-only")
    (sitting,) = read_run(Path("results", "run"))["continued"]
    for run in (sitting, read_run(part.folder)):
        assert not run["commit"].endswith("-dirty") and run["uncommitted"] == {}
    Path("results", "run", "scores.json").write_text("{}")
    assert provenance()["uncommitted"]["changed"] == ["results/run/scores.json"]


def test_a_new_file_that_could_be_run_is_named_beside_a_clean_commit(repository):
    Path("benchmarks").mkdir()
    Path("benchmarks", "new.py").write_text("1\n")
    run = provenance()
    assert run["commit"] == repository and run["uncommitted"] == {"untracked": ["benchmarks/new.py"]}


# ---- what else a record says


def test_a_record_says_where_it_was_made_and_of_what(tmp_path):
    run = provenance(("safetensors", "no-such-package"), config=TINY, rates=(1, 2), out=Path("a"))
    assert run["config"] == json.loads(json.dumps(asdict(TINY))) and run["rates"] == [1, 2] and run["out"] == "a"
    assert run["versions"]["torch"] == torch.__version__ and run["versions"]["safetensors"]
    assert run["versions"]["no-such-package"] is None
    assert run["machine"]["threads"] == torch.get_num_threads() and run["machine"]["processor"]
    corpus = SimpleNamespace(name="c", licence="l", provenance={"f": "sum"})
    assert about_corpus(corpus, pairs=3) == {"corpus": "c", "licence": "l", "sha256": {"f": "sum"}, "pairs": 3}
    assert about_model(tmp_path)["sha256"] is None
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert about_model(tmp_path) == {"folder": str(tmp_path), "sha256": sha256_of(b"weights")}
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert about_model(tmp_path) == {"folder": str(tmp_path), "sha256": sha256_of(b"weights")}


# ---- the same run


WHAT = {"config": TINY, "recipe": Recipe(steps=10), "seed": 0, "data": {"corpus": "c", "sha256": {"f": "1"}}}


@pytest.mark.parametrize(("change", "why"), [
    ({"config": replace(TINY, N=7)}, f"N={TINY.N}, now N=7"), ({"recipe": Recipe(steps=11)}, "steps=10, now steps=11"),
    ({"seed": 1}, "seed=0, now seed=1"), ({"data": {"corpus": "c", "sha256": {"f": "2"}}}, "other data"),
    ({"rates": [1]}, "another rates"),
])
def test_another_run_does_not_go_on_in_the_folder(tmp_path, change, why):
    Record.begin(tmp_path, **WHAT).write_scores({"a": 1})
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match=f"was begun with {why}: choose another folder"):
        Record.begin(tmp_path, **WHAT | change)
    assert (tmp_path / "run.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    (name,) = change
    Record.begin(tmp_path, free=(name,), **WHAT | change)
    (again,) = read_run(tmp_path)["continued"]
    assert again[name] == json.loads(json.dumps(change[name], default=asdict))
    assert {"command", "commit", "uncommitted", "date"} < set(again)
    record = Record.begin(tmp_path, anew=True, **WHAT | change)
    assert "continued" not in read_run(tmp_path) and record.scores == {}


def test_a_field_may_differ_that_the_caller_frees(tmp_path):
    Record.begin(tmp_path, **WHAT)
    changed = WHAT | {"recipe": Recipe(steps=20)}
    Record.begin(tmp_path, free=("steps",), **changed)
    run = read_run(tmp_path)
    assert run["recipe"]["steps"] == 10 and run["continued"][0]["steps"] == 20
    with pytest.raises(ValueError, match="warmup"):
        _check_same(tmp_path, free=("steps",), recipe=Recipe(steps=20, warmup=1))


def test_a_sitting_on_another_machine_says_so(tmp_path):
    Record.begin(tmp_path, seed=0)
    run = read_run(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run | {"machine": run["machine"] | {"cores": 97}}))
    Record.begin(tmp_path, seed=0)
    (again,) = read_run(tmp_path)["continued"]
    assert again["machine"] == run["machine"] and "versions" not in again, "what is as it was is not said again"


def test_a_field_that_came_since_had_its_default(tmp_path):
    Record.begin(tmp_path, **WHAT)
    run = read_run(tmp_path)
    del run["config"]["bias"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    _check_same(tmp_path, config=TINY)
    with pytest.raises(ValueError, match="bias=False, now bias=True"):
        _check_same(tmp_path, config=replace(TINY, bias=True))


@pytest.mark.parametrize("content", ["", "[]", '{"config": 7}', "[" * 100_000, '{"data": "x"}'])
def test_a_damaged_run_is_said_in_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged: [^\n]+$"):
        read_run(tmp_path)
    assert Record.begin(tmp_path, anew=True).scores == {}


# ---- how it ends


def test_the_error_of_a_run_is_not_hidden_by_that_of_a_full_disk(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="make room"), Record.begin(tmp_path, seed=0) as record:
        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(record), "change", full)
        raise OSError("make room, then the same command goes on")
    with pytest.raises(OSError, match="No space left"), Record(tmp_path):
        pass  # a run that ends well and cannot say so


def test_a_run_that_fails_leaves_its_error_and_its_scores(tmp_path):
    with pytest.raises(ZeroDivisionError), Record.begin(tmp_path, seed=0) as record:
        record.log(step=1, loss=2.5)
        record.write_scores({"early": 1})
        raise ZeroDivisionError("division by zero")
    assert read_run(tmp_path)["failed"] == "ZeroDivisionError: division by zero" and record.scores == {"early": 1}
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": 2.5}\n'
    with pytest.raises(KeyboardInterrupt), Record.begin(tmp_path, seed=0):
        raise KeyboardInterrupt
    assert read_run(tmp_path)["failed"] == "KeyboardInterrupt"
    with Record.begin(tmp_path, seed=0) as record:
        record.write("outputs.txt", "ü\n")
    run = read_run(tmp_path)
    assert "failed" not in run and run["ended"]
    assert [again["after"] for again in run["continued"]] == ["ZeroDivisionError: division by zero", "KeyboardInterrupt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.jsonl", "outputs.txt", "run.json", "scores.json"]


ADD = """
import sys
from annotated.records import Record
record = Record.begin(sys.argv[1], seed=0)
for number in range(20):
    with record.change("scores.json") as scores:
        scores.setdefault("runs", []).append(int(sys.argv[2]) + number)
"""


def test_processes_that_share_a_record_lose_nothing(tmp_path):
    processes = [warm.begin([sys.executable, "-c", ADD, tmp_path, str(100 * i)]) for i in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    runs = Record(tmp_path).scores["runs"]
    assert sorted(runs) == [100 * i + n for i in range(3) for n in range(20)]
    assert len(read_run(tmp_path)["continued"]) == 2
    assert sorted(os.listdir(tmp_path)) == ["run.json", "scores.json"]


@pytest.mark.parametrize("change", [{"continued": "x"}, {"continued": {}}, {"recipe": 1}, {"data": []}])
def test_parts_of_a_run_of_another_kind_are_damage(tmp_path, change):
    (tmp_path / "run.json").write_text(json.dumps({"config": {}, **change}))
    with pytest.raises(ValueError, match=f"run.json is damaged: its {next(iter(change))} should be"):
        read_run(tmp_path)


def test_a_sitting_that_is_killed_does_not_look_complete(tmp_path):
    with pytest.raises(ZeroDivisionError), Record.begin(tmp_path, seed=0):
        raise ZeroDivisionError
    assert "ended" in read_run(tmp_path)
    Record.begin(tmp_path, seed=0)  # and nothing more comes of it
    assert not {"failed", "ended", "ended_load"} & set(read_run(tmp_path))
    assert "load" in read_run(tmp_path)["continued"][-1]


def test_begun_anew_it_has_no_line_of_the_log_before(tmp_path):
    Record.begin(tmp_path, seed=0).log(step=1)
    Record.begin(tmp_path, anew=True, seed=0).log(step=2)
    assert [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [2]


@pytest.mark.parametrize("scored", [False, True])
def test_a_record_begun_anew_is_not_lost_to_a_run_that_has_no_scores(tmp_path, scored):
    with Record.begin(tmp_path, seed=1) as record:
        record.log(step=1)
        record.write_scores({"bleu": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ModuleNotFoundError), Record.begin(tmp_path, anew=True, seed=2) as record:
        assert record.scores == {}
        if scored:
            record.write_scores({"bleu": 2})
        raise ModuleNotFoundError("x_transformers")
    if scored:
        assert record.scores == {"bleu": 2} and read_run(tmp_path)["failed"]
    else:
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_record_that_was_only_begun_is_put_back_alone(tmp_path):
    Record.begin(tmp_path, seed=1)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OSError), Record.begin(tmp_path, anew=True, seed=2) as record:
        record.log(step=1)
        raise OSError("no machine")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"] and (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize("size", ["1", None])
def test_a_single_process_under_torchrun_needs_none(size, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/annotated/__main__.py", "train"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", size) if size else monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert provenance()["command"] == "python -m annotated train"


@pytest.mark.parametrize(("processor", "said"), [("", "arm64"), ("i386", "i386")])
def test_a_system_that_does_not_name_its_processor_says_its_kind(processor, said, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert records._machine()["processor"] == said


@pytest.mark.parametrize(("was", "now"), [("c", {"corpus": "c"}), ({"corpus": "c"}, "c"), (None, {"corpus": "c"})])
def test_a_part_of_a_run_that_is_of_another_kind_now_is_another(was, now, tmp_path):
    Record.begin(tmp_path, made=was)
    with pytest.raises(ValueError, match="was begun with another made: choose another folder"):
        _check_same(tmp_path, made=now)
