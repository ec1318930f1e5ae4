"""Tangling makes the module the chapter says, and refuses, with the line, what the rules forbid."""

import subprocess
import sys
from pathlib import Path

import pytest
import tangle
from chapters import ROOT, module_order

HEAD = "---\nmodule: attention\n---\n\n# Attention\n\nWords.\n"


def cell(source: str, tags: str = "export") -> str:
    return f"\n```{{code-cell}}\n:tags: [{tags}]\n\n{source}\n```\n"


GOOD = HEAD + "".join(
    cell(source)
    for source in (
        "import torch\nfrom math import sqrt, pi",
        "from collections import Counter as Bag\nimport numpy as np\nfrom math import e",
        "WIDTH: int = 3  # the narrowest",
        "NAMES = ('a', 'b')",
        '@torch.no_grad()\ndef scale(x):\n    """Scale (section 3.2.1)."""\n    return x / sqrt(WIDTH)  # (B, T)',
        "def _helper(x):\n    return Bag(x), pi, e, np.pi",
        'class Layer:\n    """A layer."""\n\n    size: int = 2',
    )
)

MADE = '''"""Attention.

Generated from book/02-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections import Counter as Bag
from math import e, pi, sqrt

import numpy as np
import torch

__all__ = ["WIDTH", "NAMES", "scale", "Layer"]


WIDTH: int = 3  # the narrowest

NAMES = ('a', 'b')


@torch.no_grad()
def scale(x):
    """Scale (section 3.2.1)."""
    return x / sqrt(WIDTH)  # (B, T)


def _helper(x):
    return Bag(x), pi, e, np.pi


class Layer:
    """A layer."""

    size: int = 2
'''


def test_the_module_is_what_the_chapter_says(book):
    book("02-attention.md", GOOD + cell("print(1)", "setup"))
    assert tangle.main([], book.root) == 0
    assert (book.root / "annotated/attention.py").read_text() == MADE


def test_imports_merge_in_the_order_that_ruff_wants(book):
    imports = (
        "from torch.nn import functional as F\nfrom torch import Tensor, nn\nimport torch.nn.functional\nimport torch\n"
        "from tqdm import tqdm\nfrom typing import Any\nfrom pathlib import Path\nimport os\nimport json as js\n"
        "from dataclasses import replace, dataclass, MISSING"
    )
    used = "torch, F, Tensor, nn, tqdm, Any, Path, os, js, replace, dataclass, MISSING"
    book("02-attention.md", HEAD + cell(imports) + cell(f"EVERY = ({used})"))
    assert tangle.main([], book.root) == 0
    made = book.root / "annotated/attention.py"
    config = str(ROOT / "pyproject.toml")
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", config, str(made)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + made.read_text()


def test_check_writes_nothing_and_names_each_stale_file(book, capsys):
    book("02-attention.md", GOOD)
    assert tangle.main(["--check"], book.root) == 1
    assert not (book.root / "annotated/attention.py").exists()
    assert capsys.readouterr().out == "annotated/attention.py is not what its chapter says\n"
    assert tangle.main([], book.root) == 0
    capsys.readouterr()
    assert tangle.main(["--check"], book.root) == 0
    assert capsys.readouterr().out == ""


LONG = "\n".join(f"    x = {i}" for i in range(24)) + "\n    return x"
METHOD = "    def m{0}(self):\n" + "\n".join(f"        x = {i}" for i in range(14)) + "\n        return x\n"


def indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


REFUSED = {
    "bound twice": (cell("X = 1") + cell("X = 2"), 18, "X is bound twice, first on line 12"),
    "mixed": (cell("import os\nX = os"), 12, "imports stand in exported cells of their own"),
    "several names": (cell("X = 1\nY = 2"), 13, "binds one name"),
    "tuple target": (cell("X, Y = 1, 2"), 12, "one plain name"),
    "chained": (cell("X = Y = 2"), 12, "one plain name"),
    "no value": (cell("X: int"), 12, "to a value"),
    "attribute": (cell("X.y = 1"), 12, "one plain name"),
    "statement": (cell("if True:\n    X = 1"), 12, "a function, a class, a constant, or imports"),
    "string after a constant": (cell('X = 1\n"""It would be shown as output."""'), 13, "binds one name"),
    "lines": (cell(f'def f(x):\n    "Doc."\n{LONG}\n'), 12, "f has 26 lines, 25 are allowed"),
    "arguments": (cell('def f(a, b, c, d, /, e, *, f, g):\n    "Doc."'), 12, "f has 7 arguments, 6 are allowed"),
    "class lines": (cell('class C:\n    "Doc."\n' + "".join(METHOD.format(i) for i in range(2)) + "\n".join(f"    x{i} = {i}" for i in range(13))), 12, "46 lines"),
    "method lines": (cell('class C:\n    "Doc."\n' + indented(f"def f(self):\n{LONG}")), 14, "26 lines"),
    "later chapter": (cell("from annotated.masks import causal_mask"), 12, "annotated.masks is chapter 03"),
    "itself": (cell("from annotated.attention import X"), 12, "annotated.attention is chapter 02"),
    "no such chapter": (cell("from annotated.nothing import X"), 12, "no chapter makes annotated.nothing"),
    "whole package": (cell("import annotated"), 12, "import from the chapter's module"),
    "other package": (cell("import requests"), 12, "requests: not in the package"),
    "extra at the top": (cell("import matplotlib.pyplot as plt"), 12, "inside the function that needs it"),
    "other package inside": (cell('def f():\n    "Doc."\n    import requests'), 14, "requests: not in the package"),
    "star": (cell("from math import *"), 12, "name what they import"),
    "relative": (cell("from .masks import x"), 12, "absolute module"),
    "docstring": (cell("def f(x):\n    return x"), 12, "f has no docstring"),
    "magic": (cell("%matplotlib inline\nX = 1"), 12, "no magics in exported cells"),
    "shell": (cell("X = 1\n!ls"), 13, "no magics in exported cells"),
    "not Python": (cell("X = (1"), 12, "not Python"),
    "empty": (cell("# nothing yet"), 12, "an exported cell is empty"),
    "print": (cell('def f(x):\n    "Doc."\n    print(x)'), 14, "prints nothing"),
    "seed": (cell('def f(torch):\n    "Doc."\n    torch.manual_seed(0)'), 14, "sets no seed"),
    "global": (cell('def f():\n    "Doc."\n    global X\n    X = 1'), 14, "no global"),
    "import and name": (cell("import os") + cell("os = 1"), 12, "os is imported here and bound on line 18"),
    "bound later": (cell('def f():\n    "Doc."') + cell("def f():\n    return 2", "check"), 19, "f is exported"),
    "two thoughts": (cell('def f(a):\n    "Doc."\n    x, y = a.b(), a[0]\n    return x, y'), 14, "one thought a line: x, y are"),
    "three thoughts": (cell('class C:\n    "Doc."\n    def f(self, a):\n        self.x, y, z = len(a), 0, a + 1'), 15, "self.x, y, z"),
    "whole package by from": (cell("from annotated import load"), 12, "import from the chapter's module"),
    "later chapter by from": (cell("from annotated import masks"), 12, "annotated.masks is chapter 03"),
    "patched later": (cell('def f():\n    "Doc."') + cell("x, f.y = 1, 2", "check"), 19, "must not change it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_chapter_and_line(book, capsys, case):
    body, line, message = REFUSED[case]
    book("02-attention.md", HEAD + body)
    book("03-masks.md", HEAD.replace("attention", "masks") + cell("Z = 1"))
    assert tangle.main([], book.root) == 1
    problems = capsys.readouterr().err.splitlines()
    assert len(problems) == 1, problems
    assert problems[0].startswith(f"book/02-attention.md:{line}: ") and message in problems[0], problems
    assert not (book.root / "annotated/attention.py").exists()
    assert (book.root / "annotated/masks.py").exists(), "one chapter's fault must not hold up the others"


DOC = '    """A docstring.\n\n    Of several lines.\n    """\n    # a comment\n\n'
ALLOWED = {
    "25 lines": cell("def f(x):\n" + DOC + LONG.split("\n", 1)[1]),
    "6 arguments": cell('def f(a, b, c, *d, e, **f):\n    "Doc."'),
    "self is not counted": cell('class C:\n    "Doc."\n    def f(self, a, b, c, d, e, f): ...\n'),
    "45 lines of a class": cell('class C:\n    "Doc."\n' + "".join(METHOD.format(i) for i in range(2)) + "\n".join(f"    x{i} = {i}" for i in range(12))),
    "cls is not counted": cell('class C:\n    "Doc."\n    @classmethod\n    def f(cls, a, b, c, d, e, f): ...\n'),
    "Config": cell('class Config:\n    "Doc."\n' + "".join(METHOD.format(i) for i in range(4))),
    "private": cell("def _f(x):\n    return x"),
    "extra inside": cell('def f():\n    "Doc."\n    import sacrebleu\n    return sacrebleu'),
    "a swap": cell('def f(a, b):\n    "Doc."\n    a, b = b, a\n    return a, b'),
    "one thought and constants": cell('def f(a):\n    "Doc."\n    x, y, z = a.b(), -1, []\n    return x, y, z'),
    "several results of one call": cell('def f(a):\n    "Doc."\n    x, y = a.b()\n    return x, y'),
    "earlier chapter": cell("from annotated.recurrent import R"),
    "string with a number sign": cell('X = """\n# no comment\n"""'),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed(book, capsys, case):
    book("01-recurrent.md", HEAD.replace("attention", "recurrent") + cell("R = 1"))
    book("02-attention.md", HEAD + ALLOWED[case])
    assert tangle.main([], book.root) == 0, capsys.readouterr().err


def test_only_the_command_line_asks_the_whole_package_and_inside_a_function(book, capsys):
    inside = cell('def f():\n    "Doc."\n    import annotated\n    return annotated.__version__')
    book("02-attention.md", HEAD + inside)
    assert tangle.main([], book.root) == 1
    capsys.readouterr()
    book("02-attention.md", HEAD.replace("attention", "cli") + inside)
    assert tangle.main([], book.root) == 0
    book("02-attention.md", HEAD.replace("attention", "cli") + cell("import annotated"))
    assert tangle.main([], book.root) == 1
    assert "import from the chapter's module" in capsys.readouterr().err


def test_a_comment_on_an_import_is_kept(book):
    book("02-attention.md", HEAD + cell("import os  # for the processes\nimport json") + cell("import os") + cell("X = os, json"))
    assert tangle.main([], book.root) == 0
    assert "import json\nimport os  # for the processes\n\n__all__" in (book.root / "annotated/attention.py").read_text()


def test_one_module_has_one_chapter(book, capsys):
    book("02-attention.md", GOOD)
    book("03-again.md", GOOD)
    assert tangle.main([], book.root) == 1
    assert "book/03-again.md:1: module attention is of chapter 02 already" in capsys.readouterr().err


def test_exported_cells_need_a_module(book, capsys):
    book("02-attention.md", GOOD.replace("module: attention", "title: x"))
    assert tangle.main([], book.root) == 1
    assert "need a `module:`" in capsys.readouterr().err


def appendix(*front: str) -> str:
    """The head of an appendix that is a notebook."""
    return "\n".join(["---", "kernelspec:", "  name: python3", "  display_name: P", *front, "---", "", "# T", "", ""])


@pytest.mark.parametrize("front, message", [
    (["module: attention", "after: 02-attention"], "book/E-bugs.md:1: module attention is of chapter 02 already"),
    (["module: bugs"], "book/E-bugs.md:1: an appendix with a module names the chapter it comes after"),
    (["module: bugs", "after: 2"], "(`after: 08-data`), not '2'"),
    (["module: bugs", "after: 03-masks"], "not '03-masks'"),
    (["module: bugs", "after: E-bugs"], "not 'E-bugs'"),
    ([], "book/E-bugs.md:13: exported cells need a `module:`"),
])
def test_an_appendix_with_a_module_says_where_it_stands(book, capsys, front, message):
    book("02-attention.md", GOOD)
    path = book("E-bugs.md", appendix(*front) + cell("X = 1"))
    assert tangle.main([], book.root) == 1
    assert message in capsys.readouterr().err
    assert not (book.root / "annotated/bugs.py").exists()
    path.write_text(appendix() + "```{code-cell}\nx = 1\n```\n")
    assert tangle.main([], book.root) == 0
    path.write_text(appendix("module: bugs", "after: 02-attention") + cell("X = 1"))
    assert tangle.main([], book.root) == 0
    assert "Generated from book/E-bugs.md" in (book.root / "annotated/bugs.py").read_text()


def test_an_appendix_stands_behind_its_chapter_and_before_the_next(book, capsys):
    def imports(*modules):
        names = "".join(f"from annotated.{m} import {m.upper()}\n" for m in modules).rstrip()
        return cell(names) if modules else ""

    def write(name, module, *modules, after=None):
        head = appendix(f"module: {module}", f"after: {after}") if after else f"---\nmodule: {module}\n---\n\n# T\n\n"
        book(name, head + imports(*modules) + cell(f"{module.upper()} = 1"))

    write("08-data.md", "data")
    write("F-grammar.md", "grammar", "data", after="08-data")
    write("G-corpora.md", "corpora", "data", "grammar", after="08-data")
    write("09-next.md", "next", "data", "grammar", "corpora")
    assert tangle.main([], book.root) == 0
    assert module_order(book.root) == {"data": "08", "grammar": "08F", "corpora": "08G", "next": "09"}
    assert list(module_order(book.root)) == ["data", "grammar", "corpora", "next"]
    for name, module, wanted, after, said in [
        ("08-data.md", "data", "grammar", None, "annotated.grammar is appendix F, which comes after chapter 08: import earlier"),
        ("F-grammar.md", "grammar", "corpora", "08-data", "annotated.corpora is appendix G, which"),
        ("G-corpora.md", "corpora", "next", "08-data", "annotated.next is chapter 09: import earlier chapters only"),
    ]:
        kept = (book.root / "book" / name).read_text()
        write(name, module, wanted, after=after)
        assert tangle.main([], book.root) == 1
        assert said in capsys.readouterr().err
        book(name, kept)


def test_the_book_says_the_order_of_its_modules():
    order = list(module_order())
    assert order.index("data") < order.index("grammar") < order.index("corpora") < order.index("optimization")
    assert order.index("files") < order.index("data") and order.index("gpu") < order.index("graphs") < order.index("distributed")
    assert order[-2:] == ["cli", "page"]


def test_a_module_whose_chapter_is_gone_goes_too(book, capsys):
    chapter = book("02-attention.md", GOOD)
    tangle.main([], book.root)
    chapter.unlink()
    assert tangle.main(["--check"], book.root) == 1
    assert (book.root / "annotated/attention.py").exists()
    assert tangle.main([], book.root) == 0
    assert not (book.root / "annotated/attention.py").exists()


def test_a_module_that_no_chapter_made_is_refused_and_kept(book, capsys):
    (book.root / "annotated/stray.py").write_text("X = 1\n")
    assert tangle.main([], book.root) == 1
    assert "annotated/stray.py: no chapter makes it" in capsys.readouterr().err
    assert Path(book.root / "annotated/stray.py").exists()


@pytest.mark.parametrize("typo", [("kernelspec:", "kernelspec: ["), ("after: 02-attention", "after: 2")])
def test_no_module_is_deleted_while_a_text_is_refused_or_was_not_read(book, capsys, typo):
    "An appendix with a fault in its front matter keeps its module, and so does one that nobody asked for."
    book("02-attention.md", GOOD)
    text = appendix("module: bugs", "after: 02-attention") + cell("X = 1")
    path, module = book("E-bugs.md", text), book.root / "annotated/bugs.py"
    assert tangle.main([], book.root) == 0 and module.exists()
    capsys.readouterr()
    path.write_text(text.replace(*typo))
    for arguments in (["--check"], []):
        assert tangle.main(arguments, book.root) == 1 and module.exists()
        told = capsys.readouterr()
        assert "book/E-bugs.md:1: " in told.err and "bugs.py" not in told.out
    assert tangle.main(["02"], book.root) == 0 and module.exists()
    path.unlink()
    assert tangle.main([], book.root) == 0 and not module.exists()
