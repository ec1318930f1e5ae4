"""Every program of benchmarks/ can be started: it imports, explains itself, and knows the commands that name it."""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import torch
from chapters import ROOT
from programs import BENCHMARKS as FOLDER
from programs import loaded

from annotated.data import Words
from annotated.decoding import load, save
from annotated.transformer import TINY, Transformer

PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if "__main__" in path.read_text(encoding="utf-8"))


class Parsed(BaseException):
    "Raised in the place of whatever a program would do with its options."


def commands() -> list[str]:
    "The commands of results/README.md and of the Makefile that start one of the programs."
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "results" / "README.md", *(ROOT / "book").glob("*.md"))]
    found = {line for text in texts for line in re.findall(r"`(python benchmarks/[^`\n]*)`", text)}
    names = re.search(r"(?m)^BENCH = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))[1].split()
    found |= {f"python benchmarks/{name}.py --out _build/bench/{name}" for name in names}
    return sorted(found)


def start(words: list[str], monkeypatch) -> None:
    "As in a process of its own: what the tests have put on the path is not there, and not yet imported."
    ours = {str(ROOT / name) for name in ("tests", "tools", "book/_ext")}
    monkeypatch.setattr(sys, "path", [str(FOLDER), *(place for place in sys.path if place not in ours)])
    for name, module in list(sys.modules.items()):
        if str(Path(getattr(module, "__file__", None) or "").parent) in ours:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / words[0]), *words[1:]])
    runpy.run_path(str(FOLDER / words[0]), run_name="__main__")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_in_script_run(name, monkeypatch):
    "It sees to the package and to errors; whatever else a program does, it does inside."
    def instead(go, *options):
        raise Parsed

    monkeypatch.setattr("script.run", instead)
    needed = {"20_after.py": ["changes"]}
    with pytest.raises(Parsed):
        start([name, *needed.get(name, [])], monkeypatch)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_explains_itself(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        start([name, "--help"], monkeypatch)
    usage, _, about = capsys.readouterr().out.partition("\n\n")
    assert end.value.code == 0 and usage.startswith(f"usage: {name} [-h]") and len(about.split("\n\n")[0]) > 30


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_function_calls_something_else_by_the_name_of_a_module(name):
    found = vars(loaded(FOLDER / name))
    modules = {key for key, value in found.items() if isinstance(value, ModuleType)}
    own = [value for value in found.values() if isinstance(value, FunctionType) and value.__module__ == Path(name).stem]
    assert not {f.__name__: hidden for f in own if (hidden := modules & {*f.__code__.co_varnames, *f.__code__.co_cellvars})}


def test_there_are_commands():
    assert len(commands()) > 20


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_told_is_understood(command, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def only_parse(parser, *arguments, **named):
        parse(parser, *arguments, **named)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
    words = shlex.split(command.split(";")[0])[1:]
    with pytest.raises(Parsed):
        start([words[0].removeprefix("benchmarks/"), *words[1:]], monkeypatch)


# ---- script.py


@pytest.fixture
def script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks/program.py"])
    return loaded(FOLDER / "script.py")


def ended(script, error):
    "The status of a program that ends by this error."
    def go(given):
        raise given

    return script.run(go, error)


@pytest.mark.parametrize("error, told", [
    (ValueError("size must be\n more"), "size must be more"), (FileNotFoundError(2, "gone"), "[Errno 2] gone"),
    (FloatingPointError("the loss is nan"), "the loss is nan"),
    (ModuleNotFoundError("No module named 'sacrebleu'"), "No module named 'sacrebleu'"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    (RuntimeError("DefaultCPUAllocator: not enough memory"), "DefaultCPUAllocator: not enough memory"),
    (torch.OutOfMemoryError("CUDA out of memory."), "CUDA out of memory."), (MemoryError(), "MemoryError"),
], ids=lambda value: type(value).__name__)
def test_what_cannot_be_done_is_said_in_a_line(script, error, told, capsys):
    assert ended(script, error) == 2
    assert capsys.readouterr().err == f"program: {told}\n"


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), TypeError("no number"), AssertionError(), SystemExit(1)])
def test_a_mistake_of_ours_keeps_its_traceback_and_an_end_its_status(script, error):
    with pytest.raises(type(error)):
        ended(script, error)


def test_a_program_that_ends_well_or_is_stopped_says_so(script, capsys):
    assert script.run(print, "made") == 0 and capsys.readouterr().out == "made\n"
    assert ended(script, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.startswith("program: stopped; ")


def test_the_package_of_another_checkout_is_not_run(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script.annotated, "__file__", str(tmp_path / "annotated/__init__.py"))
    assert script.run(pytest.fail) == 2
    assert f"the package that runs is {tmp_path.resolve() / 'annotated'}, not the one" in capsys.readouterr().err


HOLD = """
import sys, time
from pathlib import Path
from script import alone
with alone(Path(sys.argv[1])) as ours:
    print(ours, flush=True)
    time.sleep(600)
"""


def test_a_lock_is_one_process_s_until_that_ends_in_whatever_way(script, tmp_path):
    lock = tmp_path / "work/run.lock"
    paths = os.pathsep.join(map(str, (ROOT, FOLDER)))
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen([sys.executable, "-c", HOLD, lock], env=environment, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "True\n"
            with script.alone(lock) as ours:
                assert not ours
            assert lock.exists(), "who does not have it takes it from nobody"
        finally:
            other.kill()
    with script.alone(lock) as ours, script.alone(lock) as again:
        assert ours and not again
    assert not lock.exists()


def test_an_error_in_the_work_frees_its_lock_and_is_no_lock_s(script, tmp_path):
    for _ in range(2):
        with pytest.raises(ValueError, match="of the work"), script.alone(tmp_path / "lock") as ours:
            assert ours
            raise ValueError("of the work")


# ---- some programs


def test_the_best_rate_is_of_a_training_that_did_not_diverge(script):
    assert script.best_of({"0.1": None, "0.2": 3.0, "0.4": 2.0, "0.8": None}) == 0.4
    assert script.best_of({"0.25": None, "0.5": None, "0.125": None}) == 0.125


def test_a_model_is_scored_on_the_corpus_that_it_was_trained_on(script, monkeypatch, capsys):
    module = loaded(FOLDER / "12_multi30k.py")
    monkeypatch.setattr(sys, "argv", ["12_multi30k.py", "--model", str(ROOT / "results/tatoeba-cpu")])
    assert script.run(module.main) == 2
    assert "was trained on tatoeba-en-de: say --corpus tatoeba-en-de" in capsys.readouterr().err


def test_halving_weights_twice_says_so_once(monkeypatch, tmp_path):
    halve, read = loaded(FOLDER / "12_multi30k.py").halve, Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, encoding="ascii": read(path, encoding))  # another locale's
    vocabulary = Words(["ein", "Wort"])
    save(tmp_path, Transformer(replace(TINY, vocab=len(vocabulary))), vocabulary, "Für ein Wort.\n")
    for _ in range(2):
        halve(tmp_path)
        about = (tmp_path / "README.md").read_text(encoding="utf-8")
        assert about == "Für ein Wort.\n\nThe weights are in float16.\n"
    assert load(tmp_path).model.config.vocab == len(vocabulary)
