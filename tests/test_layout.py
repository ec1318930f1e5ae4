"""The book keeps its form, and each check of the form finds its fault."""

import ast
import json
import re
import subprocess

import collect
import layout
import pytest
import yaml
from chapters import ROOT, Refused, chosen, headings, paths, read, woven

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

**Needed first:** [chapter 1](01-x).
**May be skipped:** nothing.

:::{margin}
Section 3.2.1, module `attention`.
:::

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
LINES_OF_CODE = "\n```{code-cell}\n" + "\n".join(LONG.split("\n")[:20]) + "\n```\n"
OUTPUT_CELL = "```{code-cell}\nprint(1)\n```\n"

FAULTS = {
    "no paper": ('paper: ["3.2.1", "Eq. 1"]\n', "", "no list `paper:`"),
    "no title": ("# Attention\n", "", "begins with its title"),
    "no quote": ("> Keys of", "Keys of", "a block quote of the paper stands"),
    "not the paper's": ("dimension $d_k$ are", "dimension $d_v$ are", "not in book/paper.json"),
    "a link to a file": ("[chapter 1](01-x)", "[chapter 1](01-x.md)", "the page finds `01-x`, not `01-x.md`"),
    "a link to a notebook": ("[chapter 1](01-x)", "[chapter 1](E-bugs.ipynb)", "the page finds `E-bugs`, not"),
    "an old section": ("## Recap\n", "## In this chapter\n\n## Recap\n", "no section `## In this chapter`"),
    "nothing needed": ("**Needed first:** [", "Needed first: [", "the text begins with two lines"),
    "nothing skipped": ("**May be skipped:** nothing.\n", "", "the text begins with two lines"),
    "two paragraphs": ("\n**May be", "\n\n**May be", "the text begins with two lines"),
    "a late opening": ("\n**Needed", "\nA word first.\n\n**Needed", "the text begins with two lines"),
    "a third line": ("skipped:** nothing.", "skipped:** nothing.\nA third line.", "are a paragraph by themselves"),
    "too many words": ("It scales.", "word " * 3000 + "end.", "words, 3,000 are allowed"),
    "too much code": ("## Recap", (LINES_OF_CODE * 18) + "\n## Recap", "lines of shown code, 350 are allowed"),
    "no section": ("## Recap\n", "", "no section `## Recap`"),
    "order": ("## Recap", "## Exercises\n\n## Recap", "sections out of order"),
    "no setup": ("[setup]", "[other]", "the first cell is tagged `setup`"),
    "two sentences": ("A second sentence", "A second sentence. And", "one sentence a line"),
    "a broken sentence": ("A second sentence (", "A second\nsentence (", "a sentence stays on one line"),
    "emoji": ("Masks.", "Masks \U0001f600.", "no emoji"),
    "learnt": ("Masks.", "Masks are learnt.", "the book's spelling is learned, not 'learnt'"),
    "American": ("Masks.", "Masks are Normalized.", "the book's spelling is ...ise, ...isation, not 'Normalize'"),
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


def test_what_looks_like_a_heading_in_a_fence_is_none(book):
    fenced = GOOD.replace("It scales.", "```text\n## No section\n```\nIt scales.")
    before, after = (headings(read(book("02-attention.md", text))) for text in (GOOD, fenced))
    assert [title for _, title in after] == [title for _, title in before]
    assert [line - old for (line, _), (old, _) in zip(after, before)] == [0, 0, 3, 3], "and lines are counted through it"


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


@pytest.mark.parametrize("case", ["two sentences", "three choices", "unknown symbol", "magic", "learnt", "not used", "an open solution", "a path"])
def test_a_fault_is_shown_on_its_line(chapter, case):
    old, new, message = FAULTS[case]
    text = GOOD.replace(old, new, 1)
    ((line, _),) = [(line, said) for line, said in chapter(text) if message in said]
    assert {"not used": "def scale(x):", "an open solution": "def double(x):"}.get(case, new) in text.splitlines()[line - 1]


def test_long_outputs_are_found(book):
    import nbformat

    path = book("02-attention.md", "# T\n\n" + OUTPUT_CELL)
    output = nbformat.v4.new_output("stream", name="stdout", text="x\n" * 16)
    cells = [nbformat.v4.new_markdown_cell("# T"), nbformat.v4.new_code_cell("print(1)", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), book.root / "notebooks/02-attention.ipynb")
    assert list(layout.outputs(read(path), book.root)) == [(4, "16 lines of output, 15 are allowed")]
    output.text = "x\n" * 15
    nbformat.write(nbformat.v4.new_notebook(cells=cells), book.root / "notebooks/02-attention.ipynb")
    assert list(layout.outputs(read(path), book.root)) == []


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
    index = (book.root / "book/questions.md").read_text()
    assert "## Is it true what people say?" in index and "## Why is it built this way?" not in index
    assert '- ["Scores grow."](#statement-scale)\\\n  They do not. ([2](../notebooks/02-attention.ipynb))' in index
    assert '- "Scores grow."\\\n  They do not. (3)' in index


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
    broken = book("F-broken.md", "---\nkernelspec: [\n---\n")
    book("G-word.md", "---\nkernelspec\n---\n")
    assert paths(book.root) == [chapter]
    assert woven(book.root) == [chapter, appendix, broken], "what cannot be read is refused, not left out"
    with pytest.raises(Refused, match="book/F-broken.md:1: cannot be read"):
        read(broken)
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
    assert "  It does not. ([E](../notebooks/E-bugs.ipynb))" in (book.root / "book/questions.md").read_text()


# ---- questions: the second notebook of a chapter

QUESTIONS = """---
kernelspec:
  name: python3
  display_name: Python 3
---

# Questions: attention

Each can be read alone.

```{code-cell}
:tags: [setup]

import torch
```

(sec-root)=
(q-why-root)=
## Why the root of $d_k$, and not $d_k$?
<!-- group: why -->

Because the variance of a score is $d_k$.
More of it.

$$
x
$$

## And what does it cost, then?
<!-- group: cost -->

Nothing.
"""
QUESTIONS = QUESTIONS.replace("## And", "(q-cost)=\n## And")
LINKS = "Masks.\n\n- [Why?](q-why-root)\n- [What does it cost?](#q-cost)"
TOC = """format: jb-book
root: book/index
parts:
  - chapters:
      - file: notebooks/02-attention
      - file: notebooks/03-masks
"""


@pytest.fixture
def asked(chapter, book):
    """The problems of a chapter's questions; the chapter links them."""
    book("02-attention.md", GOOD.replace("Masks.", LINKS))

    def problems(text, name="02-attention-questions.md"):
        return layout.check(read(book(name, text)), book.root)

    return problems


def test_questions_belong_to_their_chapter(book, asked):
    assert asked(QUESTIONS) == []
    book("02-b.md", GOOD)
    book("E-bugs.md", APPENDIX)
    names = [path.stem for path in woven(book.root)]
    assert names == ["02-attention", "02-attention-questions", "02-b", "E-bugs"]
    assert [path.stem for path in paths(book.root)] == ["02-attention", "02-b"]
    assert [path.stem for path in chosen(["02"], book.root)] == names[:3]
    assert [path.stem for path in chosen(["book/02-attention.md"], book.root)] == names[:1]
    assert [path.stem for path in chosen(["02-attention-questions", "02-attention"], book.root)] == names[1::-1]
    questions = read(book.root / "book/02-attention-questions.md")
    assert questions.questions and not questions.appendix and not read(book.root / "book/02-attention.md").questions


@pytest.mark.parametrize("old, new, message", [
    ("# Questions: att", "# Att", "the title begins with `Questions: `"),
    ("kernelspec", "module: attention\nkernelspec", "`module:` belongs to the chapter"),
    ("kernelspec", "paper: ['3.2']\nkernelspec", "`paper:` belongs to the chapter"),
    ("[setup]", "[other]", "the first cell is tagged `setup`"),
    ("import torch", "import torch\n```\n\n```{code-cell}\n:tags: [export]\n\nx = 1", "questions export nothing"),
    ("(q-why-root)=\n", "", "has a label on the line above"),
    ("(q-why-root)=", "(why-root)=", "has a label on the line above"),
    ("and not $d_k$?", "and not $d_k$.", "ends in a question mark"),
    ("<!-- group: why -->\n", "", "says its group"),
    ("<!-- group: why -->", "<!-- group: because -->", "no group 'because'; there are why, how"),
    ("Because the", "- Because the", "is answered in its first sentence"),
    ("Because the", "$$\nx\n$$\n\nBecause the", "is answered in its first sentence"),
    ("Because the", "(a-place)=\nBecause the", "is answered in its first sentence"),
    ("Because the", "```{code-cell}\n1 + 1\n```\n\nBecause the", "is answered in its first sentence"),
    ("Because the", "Because " + "very " * 40 + "the", "48 words, 40 are allowed"),
    ("More of it.", "More of it " + "and of it " * 400 + ".", "words, 1,200 are allowed"),
    ("More of it.", "More. Of it.", "one sentence a line"),
])
def test_faults_of_questions_are_found(asked, old, new, message):
    assert old in QUESTIONS
    found = asked(QUESTIONS.replace(old, new, 1))
    assert [said for _, said in found if message in said], found


@pytest.mark.parametrize("first", ["`softmax` says so.", "$d_k$ says so.", "*Both* say so.", "(Nearly) all say so.", "-1 says so."])
def test_an_answer_may_begin_with_code_or_a_formula(asked, book, first):
    text = QUESTIONS.replace("<!-- group: why -->\n\nBecause the variance of a score is $d_k$.", f"\n<!-- group: why -->\n{first}")
    assert asked(text) == []
    found = collect.questions(read(book.root / "book/02-attention-questions.md"))
    assert [(q.label, q.group, q.answer) for q in found] == [("q-why-root", "why", first), ("q-cost", "cost", "Nothing.")]


def test_questions_without_a_chapter_or_a_question_are_found(asked):
    assert (1, "questions without a chapter: there is no book/03-masks.md") in asked(QUESTIONS, "03-masks-questions.md")
    assert (1, "a page of questions without a question") in asked(QUESTIONS.split("(sec-root)=")[0])


def test_a_chapter_links_its_questions_and_no_others(asked, chapter):
    asked(QUESTIONS)
    assert chapter(GOOD.replace("Masks.", LINKS)) == []
    assert [said for _, said in chapter(GOOD.replace("Masks.", LINKS.replace("#q-cost", "#q-coast")))] == [
        "`## What comes next` does not link the question q-cost",
        "`## What comes next` links q-coast, which is no question of 02-attention-questions.md"]


def test_a_name_may_be_used_in_the_questions(asked, chapter):
    unused = GOOD.replace("Masks.", LINKS).replace("plt.plot([scale(1)])", "plt.plot([1])")
    asked(QUESTIONS)
    assert [said for _, said in chapter(unused)] == ["scale is exported and never used in its chapter"]
    asked(QUESTIONS.replace("import torch", "import torch\n\nfrom annotated.attention import scale\n\nscale(1)"))
    assert chapter(unused) == []


def test_questions_are_indexed_and_listed_under_their_chapter(asked, book, capsys):
    (book.root / "_toc.yml").write_text(TOC)
    asked(QUESTIONS)
    assert collect.main([], book.root) == 0
    assert collect.main(["--check"], book.root) == 0
    toc = (book.root / "_toc.yml").read_text()
    (listed,) = yaml.safe_load(toc)["parts"][0]["chapters"][0]["sections"]
    assert listed == {"file": "notebooks/02-attention-questions", "title": "Questions"}
    assert yaml.safe_load(toc)["parts"][0]["chapters"][1] == {"file": "notebooks/03-masks"}
    index = (book.root / "book/questions.md").read_text()
    assert index.index("## Why is it built") < index.index("## What does it cost") < index.index("## Is it true")
    assert "- [Why the root of $d_k$, and not $d_k$?](#q-why-root)\\\n  Because the variance of a score is $d_k$." in index
    (book.root / "book/02-attention-questions.md").unlink()
    assert collect.main(["--check"], book.root) == 1
    assert "_toc.yml is not what the chapters say" in capsys.readouterr().out
    assert collect.main([], book.root) == 0
    assert (book.root / "_toc.yml").read_text() == TOC


@pytest.mark.parametrize("old, new, message", [
    ("(q-cost)=", "(q-why-root)=", "q-why-root is in book/02-attention-questions.md already"),
    ("<!-- group: cost -->", "<!-- group: price -->", "a question needs a label, a group and an answer"),
])
def test_an_index_with_a_hole_is_refused(asked, book, capsys, old, new, message):
    asked(QUESTIONS.replace(old, new))
    assert collect.main([], book.root) == 1
    assert message in capsys.readouterr().err


# ---- budgets


def test_what_is_folded_and_the_exercises_are_not_counted(book):
    before = layout.size(read(book("02-attention.md", GOOD)))
    assert 0 < before.lines < 10 and before.minutes == 1
    more = GOOD.replace("Double x.", "Double x, please.").replace("assert double", "pass; assert double")
    more = more.replace("import matplotlib", "import torch\nimport matplotlib").replace("plt.show()", "plt.show()\n1 + 1")
    assert layout.size(read(book("02-attention.md", more))) == before
    more = GOOD.replace("It scales.", "It scales scores.").replace("    return 2 * x\n```\n\n(", "    x = 2 * x\n    return x\n```\n\n(")
    after = layout.size(read(book("02-attention.md", more)))
    assert (after.words, after.lines, after.code) == (before.words + 1, before.lines + 1, before.code + 3)


def test_minutes_are_words_and_code_at_their_speeds():
    assert layout.Size(2000, 0, 0).minutes == 10
    assert layout.Size(2000, 10, 500).minutes == 15
    assert layout.Size(0, 0, 0).minutes == 1


def test_chapters_have_a_budget_together(book, capsys, monkeypatch):
    chapters = {"01-x.md": GOOD, "02-attention.md": GOOD.replace("statement-scale", "statement-b")}
    for name, text in chapters.items():
        book(name, text)
    words = layout.size(read(book.root / "book/01-x.md")).words
    monkeypatch.setattr(layout, "TOGETHER", {("01", "07"): 2 * words})
    assert list(layout.together(book.root)) == []
    monkeypatch.setattr(layout, "TOGETHER", {("01", "02"): 2 * words - 1})
    assert list(layout.together(book.root)) == [f"chapters 01 to 02 have {2 * words} words together, {2 * words - 1} are allowed"]
    assert layout.main([], book.root) == 1
    assert "words together" in capsys.readouterr().out


HUES = {"C0": "quer", "C1": "key", "C2": "value", "C3": "output"}
HUE = re.compile(r"""["'](C[0-3])(?![0-9a-zA-Z_])""")


def misused(cell: str) -> set[str]:
    "Reserved colours whose meaning a figure's cell does not name, that of outputs in its code; and maps turned round."
    code = cell.split("\n---\n")[-1].lower()
    wrong = {c for c in HUE.findall(cell) if HUES[c] not in (code if c == "C3" else cell.lower())}
    return wrong | set(re.findall(r"""["']\w+_r["'](?=[,)])""", code))


def test_colours_keep_their_meaning():
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")}
    cells = [(name, cell) for name, text in texts.items() for cell in re.findall(r"^```\{code-cell\}(.*?)^```", text, re.S | re.M)]
    figures = [(name, cell) for name, cell in cells if "  figure:\n" in cell]
    assert sum(bool(HUE.search(cell)) for _, cell in figures) > 3
    assert not [(name, misused(cell)) for name, cell in figures if misused(cell)]
    assert misused('plot(bleu, color="C3")') == {"C3"} and misused('bar(x, "C1--", cmap="PuOr_r")') == {"C1", '"puor_r"'}
    assert not misused('plot(outputs, color="C3")')


def test_what_is_woven_is_no_page_besides():
    """A text with a notebook is kept from the page, or the book would hold it twice."""
    assert yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["only_build_toc_files"] is True
    listed = set(re.findall(r"\bbook/([\w-]+)", (ROOT / "_toc.yml").read_text(encoding="utf-8")))
    assert "index" in listed and not listed & {path.stem for path in woven()}


@pytest.mark.parametrize("path", woven(), ids=lambda path: path.stem)
def test_every_text_with_a_notebook_is_a_page(path):
    assert collect.in_toc(read(path), ROOT), f"_toc.yml needs a line `file: notebooks/{path.stem}`"


def test_no_tracked_text_names_this_machine():
    """Pages and programs, not only chapters."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [name for name in listed if name.endswith((".md", ".py", ".json", ".jsonl", ".yml", ".toml", ".txt", ".js", ".css"))]
    assert len(texts) > 500
    place = re.compile(r"(?<![\w.:/])/(?:home|root|Users|work|mnt|srv)/[\w.-]")
    named = {name for name in texts if place.search((ROOT / name).read_text(encoding="utf-8"))}
    assert named == {"tests/test_layout.py", "tests/test_weave.py"}  # which try what must be found


def test_whatever_the_page_is_made_of_makes_it_anew():
    "A file that `make book` does not know could be changed and the page would stay as it was."
    patterns = re.search(r"(?m)^SOURCES = (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"))[1]
    known = {path for pattern in re.findall(r"[\w*./-]*[*.][\w*./-]*", patterns) for path in ROOT.glob(pattern)}
    parts = "_config.yml", "_toc.yml", ":(glob)*.md", "book", "notebooks", "annotated/*.py", ":(glob)tools/*.py", "tools/web"
    parts += tuple(f":(glob)results/*/{name}" for name in ("*.json", "*.jsonl", "*.safetensors", "*.model", "runs/*.json"))
    models = re.search(r"(?m)^MODELS = (.*)$", (ROOT / "book/_ext/annotated_model.py").read_text(encoding="utf-8"))[1]
    parts += tuple(f"results/{name}" for name in ast.literal_eval(models))  # all that their scripts are made of
    listed = subprocess.run(["git", "ls-files", *parts], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert len(listed) > 300 and not [name for name in listed if ROOT / name not in known]


@pytest.mark.parametrize("word", ["learnt", "spelt", "spoilt", "optimize", "optimizing", "optimization", "tokenized", "initialization", "color", "favorite", "neighbor", "behavior",
                                  "center", "gray", "license", "labeled", "labeling"])
@pytest.mark.parametrize("place", ["Masks are {}.", "Masks.\n\n## {} masks"])
def test_another_spelling_is_found_in_sentences_and_in_headings(chapter, word, place):
    found = chapter(GOOD.replace("Masks.", place.format(word)))
    assert [said for _, said in found if said.startswith("the book's spelling is") and word[:5] in said]
    assert not chapter(GOOD.replace("Masks.", f"Masks have an optimizer, are learned, centred, and `{word}`."))


def test_what_is_worth_knowing_is_said(book):
    long = GOOD.replace("It scales.", "word " * 2300 + "end.").replace("import matplotlib", f"x = {'1' * 100}\nimport matplotlib")
    (words, wide) = layout.advice(read(book("02-attention.md", long)))
    assert "words, 2,200 are the rule" in words and wide.startswith("1 shown lines of code over 100 columns")
    assert not list(layout.advice(read(book("02-attention.md", GOOD))))
