"""Every program of benchmarks/ can be started: it imports, explains itself, and knows the commands that name it."""

import argparse
import re
import runpy
import shlex
import sys

import pytest
from chapters import ROOT

FOLDER = ROOT / "benchmarks"
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
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [str(FOLDER / words[0]), *words[1:]])
    runpy.run_path(str(FOLDER / words[0]), run_name="__main__")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_the_package_beside_it_and_fails_in_a_line(name):
    "`script.run` sees to both: else a record would name the commit of one checkout and be of another."
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert re.search(r"^(import script|from script import .*\brun\b)", text, re.M) and re.search(r"\brun\((main|go|\{)", text)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_explains_itself(name, monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        start([name, "--help"], monkeypatch)
    usage, _, about = capsys.readouterr().out.partition("\n\n")
    assert end.value.code == 0 and usage.startswith(f"usage: {name} [-h]") and len(about.split("\n\n")[0]) > 30


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
