"""The book keeps its form, and each check of the form finds its fault."""

import json
from fnmatch import fnmatch

import collect
import layout
import pytest
import yaml
from chapters import ROOT, chosen, paths, read, woven


def test_the_chapters_keep_their_form(capsys):
    failed = layout.main([])
    assert not failed, capsys.readouterr().out


EXERCISE = """
### Exercise {n}: double

Double x.

```python
# exercise {n}: your answer
def double(x):
    ...
```

```{{code-cell}}
:tags: [check]

def check_{n}(double):
    assert double(3) == 6, "double(3) is 6"
```

:::{{dropdown}} A wrong answer, and why it is wrong
```python
# exercise {n}: a wrong answer
def double(x):
    return x
```
It is not doubled.
:::

```{{code-cell}}
:tags: [solution, hide-cell]

def double(x):
    return 2 * x

check_{n}(double)
```
"""

GOOD = (
    """---
module: attention
paper: ["3.2.1", "Eq. 1"]
lit: [encoder-attention]
---

# Attention

> Keys of dimension $d_k$ are used, e.g. in each head. (section 3.2.1)

:::{margin}
Section 3.2.1, module `attention`.
:::

## In this chapter

- scale scores.

```{code-cell}
:tags: [setup]

import matplotlib.pyplot as plt
```

The sum of Eq. 1 is e.g. $x. Y$ or `a. B`.
A second sentence (it ends here).
A third, with a formula:

$$
x. Y
$$ (eq-x)

| symbol | code | shape |
|---|---|---|
| $Q$, $d_k$ | `Q` | (T, d_k) |

```{code-cell}
:tags: [export]

def scale(x):
    \"\"\"Scale.\"\"\"
    return 2 * x
```

(statement-scale)=
:::{admonition} "Scores grow."
:class: statement
They do not.
:::

```{code-cell}
---
mystnb:
  figure:
    caption: A line.
  image:
    alt: A line that rises.
tags: [hide-input]
---
plt.plot([scale(1)])
plt.show()
```

## What the paper does not say

| question | the paper | released code | here, and why |
|---|---|---|---|
| Which? | silent | `a | b` | ours |

## Recap

It scales.

## Exercises
"""
    + "".join(EXERCISE.format(n=n) for n in (1, 2, 3))
    + """
## What comes next

Masks.
"""
)

NOTATION = "# Notation\n\n| symbol | code |\n|---|---|\n| $Q$, $K$ | `Q` |\n| $d_k$ | `d_k` |\n"
LONG = "\n".join(f"x{i} = {i}" for i in range(26))
OUTPUT_CELL = "```{code-cell}\nprint(1)\n```\n"

FAULTS = {
    "no paper": ('paper: ["3.2.1", "Eq. 1"]\n', "", "no list `paper:`"),
    "no title": ("# Attention\n", "", "begins with its title"),
    "no quote": ("> Keys of", "Keys of", "a block quote of the paper stands"),
    "not the paper's": ("dimension $d_k$ are", "dimension $d_v$ are", "not in book/paper.json"),
    "no section": ("## Recap\n", "", "no section `## Recap`"),
    "order": ("## Recap", "## Exercises\n\n## Recap", "sections out of order"),
    "no setup": ("[setup]", "[other]", "the first cell is tagged `setup`"),
    "two sentences": ("A second sentence", "A second sentence. And", "one sentence a line"),
    "a broken sentence": ("A second sentence (", "A second\nsentence (", "a sentence stays on one line"),
    "emoji": ("Masks.", "Masks \U0001f600.", "no emoji"),
    "a long note": ("Section 3.2.1, module", "word " * 40, "a margin note of"),
    "magic": ("plt.plot", "%time plt.plot", "no magics"),
    "shell": ("import matplotlib", "!ls\nimport matplotlib", "no magics"),
    "not Python": ("plt.plot(", "plt.plot((", "not Python"),
    "a long cell": ("import matplotlib", LONG + "\nimport matplotlib", "a cell of 27 lines"),
    "long cells": ("]\n\n", "]\n\n" + "\n".join(LONG.split("\n")[:9]) + "\n", "half of"),
    "no alternative text": ("    alt: A line that rises.\n", "    width: 2\n", "without alternative text"),
    "no caption": ("    caption: A line.\n", "    name: fig-x\n", "without a caption"),
    "an image": ("Masks.", "![](x.svg)", "an image without alternative text"),
    "not used": ("scale(1)", "1", "scale is exported and never used"),
    "two exercises": ("### Exercise 2", "### Further 2", "exercises 1, 2 and 3 are wanted"),
    "no stub": ("# exercise 1: your answer", "# exercise 1", "exercise 1 has no stub"),
    "no wrong answer": ("# exercise 3: a wrong", "# exercise 3: wrong", "exercise 3 has no wrong"),
    "no check": ("def check_2(", "def test_2(", "exercise 2 has no check"),
    "no solution": ("\ncheck_1(double)", "\n", "exercise 1 has no solution"),
    "an open solution": ("[solution, hide-cell]", "[solution]", "also tagged `hide-cell`"),
    "unknown symbol": ("$Q$, $d_k$", "$Q$, $d_v$", "d_v is not in book/A-notation.md"),
    "no symbols": ("| symbol | code | shape |", "| symbol | code |", "an equation, but no table"),
    "no choices": ("| Which? | silent | `a | b` | ours |\n", "", "no rows under"),
    "other header": ("| question | the paper |", "| question | paper |", "no table with the header"),
    "three choices": ("| silent | `a | b` |", "| silent |", "3 cells in a row"),
    "lost statement": (':::{admonition} "Scores', ':::{note} "Scores', "no admonition follows"),
    "a path": ("Masks.", "Masks are in /home/someone/masks.", "an absolute path"),
    "a registry": ("Masks.", "Install with `--index-url x`.", "package registry"),
    "open directive": ("They do not.\n:::", "They do not.", "not closed before the next cell"),
}


@pytest.fixture
def chapter(book):
    sentences = {"sentences": {"3.2.1": "Keys of dimension d_k are used, e.g. in each head."}}
    (book.root / "book/paper.json").write_text(json.dumps(sentences))
    (book.root / "book/A-notation.md").write_text(NOTATION)

    def problems(text):
        return layout.check(read(book("02-attention.md", text)), book.root)

    return problems


def test_a_good_chapter_has_no_problems(chapter):
    assert chapter(GOOD) == []


def test_a_private_name_need_not_be_used_in_its_chapter(chapter):
    assert chapter(GOOD.replace("plt.plot([scale(1)])", "plt.plot([1])").replace("def scale", "def _scale")) == []


@pytest.mark.parametrize("case", FAULTS)
def test_faults_are_found(chapter, case):
    old, new, message = FAULTS[case]
    assert old in GOOD
    text = GOOD.replace(old, new)
    found = chapter(text)
    assert any(message in said for _, said in found), found
    assert all(1 <= line <= len(text.splitlines()) for line, _ in found)


def test_a_fault_is_shown_on_its_line(chapter):
    text = GOOD.replace("A second sentence", "A second sentence. And")
    ((line, _),) = chapter(text)
    assert text.splitlines()[line - 1].startswith("A second sentence.")


def test_long_outputs_are_found(book):
    import nbformat

    path = book("02-attention.md", "# T\n\n" + OUTPUT_CELL)
    output = nbformat.v4.new_output("stream", name="stdout", text="x\n" * 16)
    cells = [nbformat.v4.new_markdown_cell("# T"), nbformat.v4.new_code_cell("print(1)", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), book.root / "notebooks/02-attention.ipynb")
    assert list(layout.outputs(read(path), book.root)) == [(4, "16 lines of output, 15 are allowed")]


def test_a_draft_may_break_the_rules_and_is_counted(book, capsys):
    book("02-attention.md", "---\ndraft: true\n---\n\n# Attention\n")
    assert layout.main([], book.root) == 0
    assert capsys.readouterr().out.startswith("layout: 1 drafts, ")
    book("02-attention.md", "# Attention\n")
    assert layout.main([], book.root) == 1


def test_the_appendices_hold_what_the_chapters_say(book, capsys):
    (book.root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n- file: notebooks/02-attention\n")
    book("02-attention.md", GOOD)
    book("03-masks.md", GOOD.replace("statement-scale", "statement-mask").replace("# Attention", "# Masks"))
    assert collect.main(["--check"], book.root) == 1
    assert collect.main([], book.root) == 0
    assert collect.main(["--check"], book.root) == 0
    ledger = (book.root / "book/B-differences.md").read_text()
    assert ledger.count("| Which? | silent | `a | b` | ours |") == 2
    assert "[2. Attention](../notebooks/02-attention.ipynb)" in ledger
    assert "From chapter 3. Masks." in ledger, "no link to a chapter that is not part of the page yet"
    statements = (book.root / "book/C-statements.md").read_text()
    assert '| ["Scores grow."](#statement-scale) | They do not. | [2. Attention]' in statements
    assert '| "Scores grow." | They do not. | 3. Masks |' in statements


def test_a_statement_has_one_place(book, capsys):
    book("02-attention.md", GOOD)
    book("03-masks.md", GOOD)
    assert collect.main([], book.root) == 1
    assert "statement-scale is in book/02-attention.md already" in capsys.readouterr().err


# ---- appendices: those that name a kernel are notebooks, the others are pages

APPENDIX = """---
kernelspec:
  name: python3
  display_name: Python 3
---

# Bugs

```{code-cell}
:tags: [setup]

import torch
```

Text, and no section of a chapter.
"""


def test_an_appendix_that_names_a_kernel_is_woven_and_others_are_pages(book):
    chapter, appendix = book("02-attention.md", GOOD), book("E-bugs.md", APPENDIX)
    book("A-notation.md", "# Notation\n")
    book("D-glossary.md", "---\norphan: true\n---\n\n# Glossary\n")
    book("F-broken.md", "---\nkernelspec: [\n---\n")
    book("G-word.md", "---\nkernelspec\n---\n")
    assert paths(book.root) == [chapter]
    assert woven(book.root) == [chapter, appendix]
    assert chosen(["E"], book.root) == chosen(["book/E-bugs.md"], book.root) == [appendix]
    with pytest.raises(SystemExit, match="no chapter A"):
        chosen(["A"], book.root)
    assert (read(appendix).number, read(appendix).appendix) == ("E", True)
    assert (read(chapter).number, read(chapter).appendix) == ("02", False)


@pytest.mark.parametrize("old, new, message", [
    ("# Bugs", "Bugs", "begins with its title"),
    ("[setup]", "[other]", "the first cell is tagged `setup`"),
    ("Text, and", "Text. And", "one sentence a line"),
    ("import torch", "%time 1", "no magics"),
])
def test_an_appendix_has_no_template_and_keeps_the_other_rules(chapter, book, old, new, message):
    def found(text):
        return [said for _, said in layout.check(read(book("E-bugs.md", text)), book.root)]

    assert found(APPENDIX) == []
    assert [said for said in found(APPENDIX.replace(old, new)) if message in said]


def test_an_appendix_is_collected_by_its_letter(book):
    (book.root / "_toc.yml").write_text("format: jb-book\nroot: index\nchapters:\n- file: notebooks/E-bugs\n")
    said = '\n(statement-fine)=\n:::{admonition} "A curve says it."\nIt does not.\n:::\n'
    appendix = read(book("E-bugs.md", APPENDIX + said))
    assert collect.link(appendix, book.root) == "[E. Bugs](../notebooks/E-bugs.ipynb)"
    assert collect.main([], book.root) == 0
    assert "| It does not. | [E. Bugs]" in (book.root / "book/C-statements.md").read_text()


def test_what_is_woven_is_no_page_besides():
    """A text with a notebook is kept from the page, or the book would hold it twice."""
    excluded = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["exclude_patterns"]
    kept = [p.name for p in (ROOT / "book").glob("*.md") if any(fnmatch(f"book/{p.name}", e) for e in excluded)]
    assert sorted(kept) == sorted(p.name for p in woven())


def test_no_tracked_text_names_this_machine():
    """Pages and programs, not only chapters."""
    every = [p for pattern in ("*.md", "*.yml", "*.toml", "book/*.md", "tools/*.py") for p in ROOT.glob(pattern)]
    assert every
    named = [p.name for p in every if str(ROOT) in p.read_text(encoding="utf-8")]
    assert not named
