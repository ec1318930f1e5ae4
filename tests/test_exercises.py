"""Every exercise's check fails on the stub and on the wrong answers, with a message, and passes on the solution."""

import ast
import contextlib
import io
import re
import sys
from importlib import import_module

import pytest
from answers import RIGHT, WRONG
from chapters import ROOT, Chapter, paths, read
from layout import parts

CASES = [
    pytest.param(path, number, id=f"{path.stem}-{number}")
    for path in paths()
    for number in sorted({int(found) for found in re.findall(r"^def check_(\d+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)})
]


def namespace(chapter: Chapter) -> dict:
    """What a check may use: the setup cell, the chapter's imports and exported names, and the checks."""
    names: dict = {"__name__": "exercise"}
    for cell in chapter.code():
        if "setup" in cell.tags:
            run(cell.source, names)
    if chapter.module:
        for cell in chapter.code("export"):
            if all(isinstance(node, ast.Import | ast.ImportFrom) for node in cell.tree.body):
                run(cell.source, names)
        module = import_module(f"annotated.{chapter.module}")  # its helpers, too: a notebook has them
        names |= {name: value for name, value in vars(module).items() if not name.startswith("__")}
    for cell in chapter.code("check"):
        run(cell.source, names)
    return names


def run(source: str, names: dict) -> None:
    exec(compile(source, "<chapter>", "exec"), names)


def call(number: int, solution: str) -> str:
    """The call of the check that the solution's cell makes."""
    calls = [
        ast.unparse(node)
        for node in ast.parse(solution).body
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith(f"check_{number}(")
    ]
    assert calls, f"the solution does not call check_{number}"
    return "\n".join(calls)


def outcome(answer: str, check: str, names: dict) -> str:
    """The message with which the check refuses an answer; anything but an AssertionError is an error."""
    names = dict(names)
    run(answer, names)
    try:
        run(check, names)
    except AssertionError as refusal:
        return str(refusal)
    except Exception as error:
        pytest.fail(f"the check breaks with {type(error).__name__}: {error}; let it assert what it needs first")
    pytest.fail("the check lets it pass")


@pytest.fixture
def here(monkeypatch):
    """Chapters run in notebooks/, without windows."""
    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setenv("MPLBACKEND", "agg")
    yield
    if "matplotlib" in sys.modules:
        import matplotlib.pyplot as plt

        plt.close("all")


@pytest.mark.parametrize("path, number", CASES)
def test_the_check_tells_answers_apart(path, number, here):
    chapter = read(path)
    found, names = parts(chapter), namespace(chapter)
    (solution,) = found["solution"][number]
    check = call(number, solution)
    run(solution, dict(names))
    (stub,) = found["stub"][number]
    assert outcome(stub, check, names), "the check says nothing about the stub"
    assert found["wrong"].get(number), "no wrong answer is listed"
    for answer in found["wrong"][number]:
        assert outcome(answer, check, names), "the check says nothing about the wrong answer"


@pytest.mark.parametrize("place, number", sorted({*RIGHT, *WRONG}))
def test_the_check_judges_what_an_answer_does_and_not_its_form(place, number, here):
    (path,) = (path for path in paths() if path.stem.startswith(f"{place}-") and "questions" not in path.stem)
    chapter = read(path)
    (solution,) = parts(chapter)["solution"][number]
    check, names = call(number, solution), namespace(chapter)
    for answer in RIGHT.get((place, number), []):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            run(f"{answer}\n{check}", dict(names))
        assert said.getvalue() == "right\n"
    for answer in WRONG.get((place, number), []):
        assert outcome(answer, check, names), f"the check says nothing about {answer}"


# ---- the test's own test

EXERCISE = """---
paper: ["3.2.1"]
---

# Title

```python
# exercise 1: your answer
def double(x):
    ...
```

```{code-cell}
:tags: [check]

def check_1(double):
    CHECK
```

```python
# exercise 1: a wrong answer
def double(x):
    return x ** 2
```

```{code-cell}
:tags: [solution, hide-cell]

def double(x):
    return SOLUTION

check_1(double)
```
"""

GOOD = 'assert double(3) == 6, "double(3) is 6"'


@pytest.mark.parametrize(
    "check, solution, passes",
    [
        (GOOD, "2 * x", True),
        (GOOD, "3 * x", False),  # a wrong solution
        ("pass", "2 * x", False),  # a check that passes everything
        ("assert double(3) == 6", "2 * x", False),  # no message
        ('assert double(2) == 4, "double(2) is 4"', "2 * x", False),  # the wrong answer passes
        ('assert double(3) + 0 == 6, "double(3) is 6"', "2 * x", False),  # None + 0 breaks on the stub
    ],
)
def test_faults_of_exercises_are_found(book, here, check, solution, passes):
    path = book("01-x.md", EXERCISE.replace("CHECK", check).replace("SOLUTION", solution))
    if passes:
        test_the_check_tells_answers_apart(path, 1, None)
    else:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            test_the_check_tells_answers_apart(path, 1, None)
