"""Bugs that still train: each check of the appendix is red on the broken cell and green on the repaired and on ours."""

import ast
import re

import pytest
from chapters import ROOT, read

APPENDIX = read(ROOT / "book" / "E-bugs.md")
BUGS = re.findall(r"^### (\d)\. ", APPENDIX.text.split("\n## Eight red tests\n")[1], re.MULTILINE)
NAMED = re.findall(r"`(tests/\w+\.py)::(\w+)`", APPENDIX.text)


def calls(cell, name):
    """The arguments, as text, of the calls of a function that a cell's statements are."""
    nodes = [node.value for node in cell.tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return [[ast.unparse(a) for a in node.args] for node in nodes if re.fullmatch(name, ast.unparse(node.func))]


@pytest.fixture(scope="module")
def names():
    """What the appendix defines, nothing trained: its cells without measurements, checks and solutions not called."""
    found = {"__name__": "appendix"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT / "notebooks")
        patch.setenv("MPLBACKEND", "agg")
        for cell in APPENDIX.code():
            if "nbval-ignore-output" not in cell.tags and not calls(cell, r"red|check_\w+"):
                exec(compile(cell.source, "<appendix>", "exec"), found)
            elif "solution" in cell.tags:
                body = [node for node in cell.tree.body if isinstance(node, ast.FunctionDef)]
                exec(compile(ast.Module(body, []), "<appendix>", "exec"), found)
    return found


REDS = [pytest.param(*pair, id=pair[0]) for cell in APPENDIX.code() for pair in calls(cell, "red")]
GREENS = [
    pytest.param(call.func.id, ast.unparse(call.args[0]), id=f"{call.func.id}-{ast.unparse(call.args[0])[:12]}")
    for cell in APPENDIX.code()
    for node in cell.tree.body
    if isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call)
    and isinstance(call.func, ast.Name) and call.func.id.startswith("check_")
]


def test_each_bug_has_a_broken_cell_a_red_test_and_a_solution():
    assert BUGS == [str(n) for n in range(1, 9)]
    checks = [cell.tree.body[0].name for cell in APPENDIX.code("check")]
    assert len(set(checks)) == 8
    assert [param.values[0] for param in REDS] == checks
    assert [calls(cell, r"check_\w+") != [] for cell in APPENDIX.code("solution")] == [True] * 8
    assert sorted(param.values[0] for param in GREENS) == sorted(2 * checks), "on ours, and on the repaired cell"


@pytest.mark.parametrize("check, suspect", REDS)
def test_the_check_is_red_on_the_broken_cell(names, check, suspect, capsys):
    with pytest.raises(AssertionError) as refusal:
        eval(f"{check}({suspect})", names)
    assert len(str(refusal.value).split()) > 5, "the message should say what is wrong"
    names["red"](names[check], names[suspect])
    assert capsys.readouterr().out.startswith("red: ")


@pytest.mark.parametrize("check, healthy", GREENS)
def test_the_check_is_green_on_the_right_code(names, check, healthy):
    eval(f"{check}({healthy})", names)


def test_a_check_that_finds_nothing_is_no_red_test(names):
    with pytest.raises(ValueError, match="check_causal found nothing wrong"):
        names["red"](names["check_causal"], names["scaled_dot_product_attention"])


# ---- the table at the end


def test_the_table_names_a_test_for_each_bug():
    rows = re.findall(r"^\| (\d) [^|]+\|[^|]+\|[^|]+\| `tests/\w+\.py::\w+` \|$", APPENDIX.text, re.MULTILINE)
    assert rows == BUGS


@pytest.mark.parametrize("file, test", NAMED, ids=lambda part: part)
def test_the_tests_named_exist(file, test):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
