"""Weaving runs what changed and nothing else, keeps nothing of the machine, and takes edits back."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import pytest
import untangle
import weave
from chapters import Refused, read

CHAPTER = """---
module: attention
paper: ["3.2.1", "Eq. 1"]
lit: [encoder-attention]
---

# Attention

> A quote (section 3.2.1).

One sentence.
Another.

```{code-cell}
:tags: [setup]

import matplotlib.pyplot as plt

plt.rcParams["svg.hashsalt"] = "annotated"
```

```{code-cell}
print("the same")
```

+++

A text of its own.

```{code-cell}
---
mystnb:
  figure:
    name: fig-line
    caption: A line.
  image:
    alt: A line that rises.
tags: [hide-input, nbval-ignore-output]
---
plt.plot([1, 2])
plt.show()
```

```{code-cell}
print("the same")
```

The end.
"""


def cell(source: str) -> str:
    return f"# Title\n\n```{{code-cell}}\n{source}\n```\n"


def woven(book, name="02-attention"):
    return nbformat.read(book.root / "notebooks" / f"{name}.ipynb", as_version=4)


def runs(book, monkeypatch):
    """Count the chapters that are run from now on, without running them."""
    ran = []

    def run(chapter, root):
        ran.append(chapter.stem)
        return [[] for _ in chapter.code()]

    monkeypatch.setattr(weave, "run", run)
    return ran


def test_weaving_twice_changes_no_byte(book):
    (book.root / "_config.yml").write_text("repository: {url: 'https://example.org/owner/book'}\n")
    path = book("02-attention.md", CHAPTER)
    before = dict(os.environ)
    assert weave.weave(path, book.root)[0] == "run"
    assert os.environ == before, "the kernel's settings are the kernel's: another book must not get this one's path"
    first = (book.root / "notebooks/02-attention.ipynb").read_bytes()
    assert weave.weave(path, book.root)[0] == "same"
    assert weave.weave(path, book.root, force=True)[0] == "run"
    assert (book.root / "notebooks/02-attention.ipynb").read_bytes() == first

    notebook = woven(book)
    nbformat.validate(notebook)
    launch, *cells = notebook.cells
    assert launch.metadata["tags"] == ["launch", "remove-cell"] and folded(launch)
    assert "https://example.org/owner/book" in launch.source and not launch.outputs
    assert [c.source for c in cells] == [c.source for c in read(path).cells]
    assert len({c.id for c in notebook.cells}) == len(notebook.cells)
    kept = notebook.metadata["annotated"]
    assert (kept["module"], kept["paper"], kept["lit"]) == ("attention", ["3.2.1", "Eq. 1"], ["encoder-attention"])

    figure = cells[-3]
    assert figure.metadata["mystnb"]["image"]["alt"] == "A line that rises."
    assert figure.metadata["mystnb"]["figure"]["name"] == "fig-line"
    (output,) = figure.outputs
    assert "image/svg+xml" in output.data and "image/png" not in output.data
    assert all(c.execution_count == 1 and "execution" not in c.metadata for c in cells if c.cell_type == "code")


def folded(cell) -> bool:
    """Whether Jupyter and Colab show the cell without its source."""
    hidden = cell.metadata.get("jupyter", {}).get("source_hidden", False)
    assert hidden == (cell.metadata.get("cellView") == "form"), "Jupyter and Colab fold the same cells"
    return hidden


def test_what_the_page_folds_is_folded_in_the_notebook_and_nothing_else(book):
    text = CHAPTER + '\n```{code-cell}\n:tags: [solution, hide-cell]\n\nprint("an answer")\n```\n'
    path = book("02-attention.md", text)
    weave.weave(path, book.root)
    cells = [c for c in woven(book).cells if c.cell_type == "code" and "launch" not in c.metadata.get("tags", [])]
    shown = {c.source: "hide" not in str(c.metadata.get("tags", [])) for c in cells}
    assert {c.source: not folded(c) for c in cells} == shown and set(shown.values()) == {True, False}
    assert [c.metadata.get("jupyter", {}).get("outputs_hidden", False) for c in cells][-2:] == [False, True]
    assert weave.weave(path, book.root)[0] == "same"


def test_the_launch_cell_does_nothing_elsewhere(book, monkeypatch):
    (book.root / "_config.yml").write_text("repository: {url: 'https://example.org/owner/book/'}\n")
    source = weave.launch_cell(book.root).source
    monkeypatch.setattr("subprocess.run", lambda *a, **k: pytest.fail("ran a command"))
    exec(compile(source, "launch", "exec"), {})


def test_the_launch_cell_on_colab_clones_installs_and_moves(book, monkeypatch):
    (book.root / "_config.yml").write_text("repository: {url: 'https://example.org/owner/book/'}\n")
    commands, moved = [], []
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    monkeypatch.setattr("os.chdir", moved.append)
    monkeypatch.setitem(weave.sys.modules, "google.colab", object())
    monkeypatch.setattr(weave.sys, "path", list(weave.sys.path))
    exec(compile(weave.launch_cell(book.root).source, "launch", "exec"), {})
    assert commands[0][-2:] == ["https://example.org/owner/book", "/content/book"]
    assert commands[1][-1] == "/content/book[data,figures]"
    assert moved == ["/content/book/notebooks"]


def test_prose_runs_nothing_and_is_copied(book, monkeypatch):
    ran = runs(book, monkeypatch)
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    path.write_text(CHAPTER.replace("Another.", "A third.").replace("A line.", "The line."))
    assert weave.weave(path, book.root, check=True)[0] == "stale"
    assert weave.weave(path, book.root)[0] == "copied"
    assert "A third." in woven(book).cells[0].source
    assert woven(book).cells[-3].metadata["mystnb"]["figure"]["caption"] == "The line."
    assert weave.weave(path, book.root, check=True)[0] == "same"
    assert ran == ["02-attention"]


READS = """from pathlib import Path
from annotated.b import y
import json
json.loads(Path("../results/run/scores.json").read_text())
Path(f"../results/other/{y}.json")
Path("../results", "fourth", "scores.json")
Path(f"../results/seeds-{y}/scores.json")
Path(f"../results/{y}/run.json")
Path(f"../results/notes-{y}{y}")
Path("../book").glob("F-*.md")
Path("../book/G-named.md").read_text()"""

LISTED = "---\npaper: ['3.1']\n---\n\n# A title\n\nA sentence.\n\n```{code-cell}\n:tags: [export]\n\nx = 1\n```\n"

CHANGES = {
    "its code": ("book/02-x.md", cell(READS + "\n1"), True),
    "a module": ("annotated/b.py", "from annotated.a import x\ny = x + 2\n", True),
    "a module of a module": ("annotated/a.py", "x = 2\ns = 'a.js'\n", True),
    "a script that a module names": ("annotated/a.js", "let x;", True),
    "a script that none names": ("annotated/b.js", "let x;", False),
    "a record": ("results/run/scores.json", "[2]", True),
    "a record in a folder": ("results/other/new.json", "[2]", True),
    "a record that is named apart": ("results/fourth/scores.json", "[2]", True),
    "a record of many by an f-string": ("results/seeds-2/scores.json", "[2]", True),
    "another file of such a record": ("results/seeds-2/run.json", "[2]", False),
    "a folder by an f-string": ("results/notes-1/deep/new.json", "[2]", True),
    "a record of which an f-string has no part": ("results/third/run.json", "[2]", False),
    "a hidden file of a record": ("results/notes-1/deep/.new.json", "[2]", False),
    "a page about a folder": ("results/other/README.md", "Three records.", False),
    "docstrings": ("annotated/b.py", '"""Doc."""\nfrom annotated.a import x\n\ny = x  # why\n\n\ndef f():\n    """Two."""\n', False),
    "another module": ("annotated/c.py", "z = 2\n", False),
    "another record": ("results/third/scores.json", "[2]", False),
    "a sentence of a text that is listed": ("book/F-listed.md", LISTED.replace("A sentence.", "Another sentence."), False),
    "the front matter of a text that is listed": ("book/F-listed.md", LISTED.replace("3.1", "3.2"), True),
    "the title of a text that is listed": ("book/F-listed.md", LISTED.replace("A title", "Another"), True),
    "a cell of a text that is listed": ("book/F-listed.md", LISTED.replace("x = 1", "y = 1"), True),
    "a sentence of a text that is named": ("book/G-named.md", LISTED.replace("A sentence.", "Another sentence."), True),
}


@pytest.mark.parametrize("case", CHANGES)
def test_runs_again_when_what_it_reads_changed(book, monkeypatch, case):
    ran = runs(book, monkeypatch)
    for folder in ("run", "other", "third", "fourth", "seeds-1", "seeds-2", "notes-1/deep"):
        (book.root / "results" / folder).mkdir(parents=True)
    (book.root / "results/run/scores.json").write_text("[1]")
    (book.root / "annotated/a.py").write_text("x = 1\ns = 'a.js'\n")
    (book.root / "annotated/a.js").write_text("")
    (book.root / "annotated/b.py").write_text('from annotated.a import x\ny = x\n\n\ndef f():\n    """One."""\n')
    path = book("02-x.md", cell(READS))
    for listed in ("F-listed", "G-named"):
        (book.root / f"book/{listed}.md").write_text(LISTED)
    weave.weave(path, book.root)
    name, text, again = CHANGES[case]
    (book.root / name).write_text(text)
    assert weave.weave(path, book.root, check=True)[0] == ("stale" if again else "same")
    weave.weave(path, book.root)
    assert len(ran) == 1 + again


def test_a_tag_that_lets_a_cell_fail_runs_it_again_and_another_does_not(book, monkeypatch):
    ran = runs(book, monkeypatch)
    for tags, done in (("", "run"), (":tags: [check]\n\n", "copied"), (":tags: [raises-exception]\n\n", "run")):
        assert weave.weave(book("02-x.md", cell(f"{tags}1 / 1")), book.root)[0] == done
    assert len(ran) == 2


def test_a_failing_cell_is_shown_where_it_stands(book, capsys):
    path = book("02-x.md", cell("x = 1\n\n1 / 0"))
    assert weave.main([], book.root) == 1
    error = capsys.readouterr().err
    assert error.startswith("book/02-x.md:6: ZeroDivisionError: division by zero\n")
    assert "----> 3 1 / 0" in error
    assert path.exists() and not (book.root / "notebooks/02-x.ipynb").exists()


BARS = "100%|██████████| 3/3 [00:00<00:00, 41.20it/s]"
OUTPUTS = {
    "stderr": ("stream", {"name": "stderr", "text": "UserWarning: old"}, "writes to stderr: UserWarning"),
    "path": ("stream", {"name": "stdout", "text": "read /home/someone/data"}, "an absolute path"),
    "path in html": ("display_data", {"data": {"text/html": "<p>/tmp/x/y</p>"}, "metadata": {}}, "an absolute path"),
    "address": ("stream", {"name": "stdout", "text": "<object at 0x7f00aabbcc>"}, "an object's address"),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_of_this_machine_are_refused(book, monkeypatch, case):
    kind, parts, message = OUTPUTS[case]
    monkeypatch.setattr(weave, "run", lambda *_: [[dict(nbformat.v4.new_output(kind, **parts))]])
    with pytest.raises(Refused, match=f"book/02-x.md:4: .*{message}"):
        weave.weave(book("02-x.md", cell("x = 1")), book.root)


@pytest.mark.parametrize("text", ["2/3 of the lines", "https://example.org/home/page", "a / b", "and/or/home"])
def test_ordinary_outputs_pass(book, monkeypatch, text):
    output = dict(nbformat.v4.new_output("stream", name="stdout", text=text))
    monkeypatch.setattr(weave, "run", lambda *_: [[output]])
    assert weave.weave(book("02-x.md", cell("x = 1")), book.root)[0] == "run"


def test_progress_bars_are_not_kept(book):
    source = f"import sys\nprint('\\r' + '{BARS}', file=sys.stderr)\nprint('done')"
    weave.weave(book("02-x.md", cell(source)), book.root)
    assert [o.text for o in woven(book, "02-x").cells[1].outputs] == ["done\n"]


def test_a_heavy_notebook_is_refused(book, monkeypatch):
    output = dict(nbformat.v4.new_output("stream", name="stdout", text="x" * (weave.LIMIT + 1)))
    monkeypatch.setattr(weave, "run", lambda *_: [[output]])
    with pytest.raises(Refused, match=f"{weave.LIMIT:,} are allowed"):
        weave.weave(book("02-x.md", cell("x = 1")), book.root)


def test_an_appendix_is_woven_too(book, capsys):
    path = book("E-bugs.md", "---\nkernelspec:\n  name: python3\n  display_name: P\n---\n\n# Bugs\n\n```{code-cell}\nprint(6 * 7)\n```\n")
    book("A-notation.md", "# Notation\n")
    assert weave.main([], book.root) == 0
    assert weave.main(["--check"], book.root) == 0, "neither stale nor an orphan"
    assert [p.name for p in (book.root / "notebooks").iterdir()] == ["E-bugs.ipynb"]
    assert "42" in (book.root / "notebooks" / f"{path.stem}.ipynb").read_text()


def left_over(book):
    """The notebook of a chapter that is gone."""
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    path.unlink()
    return book.root / "notebooks/02-attention.ipynb"


def test_a_notebook_whose_chapter_is_gone_goes_too(book, monkeypatch):
    runs(book, monkeypatch)
    notebook = left_over(book)
    assert weave.main(["--check"], book.root) == 1 and notebook.exists()
    assert weave.main([], book.root) == 0 and not notebook.exists()


@pytest.mark.parametrize("stray", ["02-attention-Copy1", "mine", "damaged", "02-attention"])
def test_a_notebook_that_is_somebodys_work_is_refused_and_kept(book, monkeypatch, capsys, stray):
    "A copy, a new one, one that is none, and one whose chapter is gone but that was edited; then nothing else is deleted."
    runs(book, monkeypatch)
    notebook, kept = left_over(book), book.root / f"notebooks/{stray}.ipynb"
    if stray == "02-attention":
        edit(book, replaced("Another.", "A third."))
    else:
        empty = json.dumps(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("My own.")]))
        kept.write_text({"mine": empty, "damaged": "{"}.get(stray, notebook.read_text()))
    for arguments in (["--check"], []):
        assert weave.main(arguments, book.root) == 1
        assert f"notebooks/{stray}.ipynb: no chapter makes it\n" in capsys.readouterr().err
        assert kept.exists() and notebook.exists()


def test_nothing_is_deleted_where_a_chapter_failed(book):
    notebook = left_over(book)
    broken = book("03-masks.md", cell("1 / 0"))
    assert weave.main([], book.root) == 1 and notebook.exists()
    broken.unlink()
    assert weave.main([], book.root) == 0 and not notebook.exists()


def test_an_appendix_whose_front_matter_is_broken_keeps_its_notebook(book, monkeypatch, capsys):
    runs(book, monkeypatch)
    text = "---\nkernelspec:\n  name: python3\n  display_name: P\n---\n\n# Bugs\n\n```{code-cell}\nprint(6 * 7)\n```\n"
    path = book("E-bugs.md", text)
    assert weave.main([], book.root) == 0
    path.write_text(text.replace("kernelspec:", "kernelspec: ["))
    assert weave.main([], book.root) == 1 and (book.root / "notebooks/E-bugs.ipynb").exists()
    assert "book/E-bugs.md:1: cannot be read" in capsys.readouterr().err


# ---- back from Jupyter


def edit(book, change):
    """Change the notebook's list of cells as Jupyter would on saving."""
    path = book.root / "notebooks/02-attention.ipynb"
    notebook = nbformat.read(path, as_version=4)
    change(notebook.cells)
    for c in notebook.cells:
        if c.cell_type == "code":
            c.execution_count = 7
            c.metadata["execution"] = {"iopub.status.busy": "2026-01-01"}
    path.write_text(json.dumps(notebook, indent=4))


def replaced(old, new):
    def change(cells):
        (hit,) = [c for c in cells if old in c.source]
        hit.source = hit.source.replace(old, new)

    return change


def retag(cells):
    cells[-2].metadata["tags"] = ["check"]


def insert(cells):
    cells.insert(-1, nbformat.v4.new_code_cell("new = 1\n\nnew"))


EDITS = {
    "nothing": (lambda cells: None, CHAPTER),
    "a sentence": (replaced("Another.", "A third."), CHAPTER.replace("Another.", "A third.")),
    "code": (replaced("plt.plot([1, 2])", "plt.plot([1, 3])"), CHAPTER.replace("([1, 2])", "([1, 3])")),
    "a tag": (retag, CHAPTER[: CHAPTER.rindex('print("')] + ':tags: [check]\n\nprint("the same")\n```\n\nThe end.\n'),
    "a new cell": (insert, CHAPTER.replace("The end.", "```{code-cell}\nnew = 1\n\nnew\n```\n\nThe end.")),
    "a cell less": (lambda cells: cells.pop(-2), CHAPTER[: CHAPTER.rindex("```{code-cell}")] + "The end.\n"),
    "an empty cell": (lambda cells: cells.insert(1, nbformat.v4.new_code_cell("")), CHAPTER),
    "the last text": (replaced("The end.", "The end.\nTruly."), CHAPTER + "Truly.\n"),
    "a text after a text": (
        lambda cells: cells.insert(4, nbformat.v4.new_markdown_cell("Between.")),
        CHAPTER.replace("+++\n", "Between.\n\n+++\n"),
    ),
    "no cell left between two texts": (
        lambda cells: [cells.pop(-2), cells.pop(-2)],
        CHAPTER[: CHAPTER.index("```{code-cell}\n---")] + "+++\n\nThe end.\n",
    ),
    "blank lines around a text": (replaced("The end.", "\nThe end.  \n"), CHAPTER),
    "blank lines around code": (replaced("plt.plot([1, 2])\nplt.show()", "\nplt.plot([1, 2])\nplt.show()\n\n"), CHAPTER),
    "a text after the last": (
        lambda cells: cells.append(nbformat.v4.new_markdown_cell("After.")),
        CHAPTER + "\n+++\n\nAfter.\n",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_edits_in_jupyter_flow_back(book, monkeypatch, case):
    runs(book, monkeypatch)
    (book.root / "_config.yml").write_text("repository: {url: 'https://example.org/owner/book'}\n")
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    change, text = EDITS[case]
    edit(book, change)
    if text != CHAPTER:
        assert untangle.main(["--check"], book.root) == 1
        with pytest.raises(Refused, match="make untangle"):
            weave.weave(path, book.root)
    assert untangle.main([], book.root) == 0
    assert path.read_text() == text
    weave.weave(path, book.root)
    assert untangle.main(["--check"], book.root) == 0


BLANK = """# Title

One.

+++

Two.

+++

Three.

```{code-cell}

```

```{code-cell}
b = 2
```

```{code-cell}
c = 3
```
"""


def test_a_cell_left_empty_in_the_chapter_moves_no_other(book, monkeypatch):
    runs(book, monkeypatch)
    path = book("02-attention.md", BLANK)
    weave.weave(path, book.root)
    edit(book, replaced("c = 3", "c = 4"))
    assert untangle.main([], book.root) == 0
    assert path.read_text() == BLANK.replace("c = 3", "c = 4")


def test_a_text_less_leaves_two(book, monkeypatch):
    runs(book, monkeypatch)
    path = book("02-attention.md", BLANK)
    weave.weave(path, book.root)
    edit(book, lambda cells: cells.pop([c.source for c in cells].index("Two.")))
    assert untangle.main([], book.root) == 0
    assert [c.source for c in read(path).cells if c.kind == "markdown"] == ["# Title\n\nOne.", "Three."]


def test_what_the_text_cannot_hold_is_refused_and_nothing_written(book, monkeypatch, capsys):
    runs(book, monkeypatch)
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    edit(book, lambda cells: cells.insert(-1, nbformat.v4.new_markdown_cell("```\nnot closed")))
    assert untangle.main([], book.root) == 1
    assert "02-attention.ipynb: its edits cannot be carried" in capsys.readouterr().err
    assert path.read_text() == CHAPTER


def test_an_empty_cell_is_refused_by_name(book):
    path = book("02-attention.md", "# Title\n\n```{code-cell}\n```\n")
    with pytest.raises(Refused, match="book/02-attention.md:3: a cell that is empty"):
        read(path)


def test_a_chapter_edited_after_weaving_is_not_reverted(book, monkeypatch):
    runs(book, monkeypatch)
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    path.write_text(CHAPTER.replace("The end.", "An end."))
    assert untangle.main([], book.root) == 0
    assert "An end." in path.read_text()


def test_pieces_of_a_stream_are_joined():
    import nbformat
    from weave import joined

    piece = lambda name, text: nbformat.v4.new_output("stream", name=name, text=text)  # noqa: E731
    shown = nbformat.v4.new_output("display_data", data={"text/plain": "x"})
    made = joined([piece("stdout", "a"), piece("stdout", "b"), shown, piece("stdout", "c"), piece("stderr", "d")])
    assert [(o.output_type, o.get("text")) for o in made][:3] == [("stream", "ab"), ("display_data", None), ("stream", "c")]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker may outlive what started it")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_its_kernels(book, number):
    waiting = "import os, pathlib, time\npathlib.Path('kernel').write_text(str(os.getpid()))\ntime.sleep(100)"
    book("02-attention.md", cell(waiting))
    code = "import pathlib, sys, weave; sys.exit(weave.main([], pathlib.Path(sys.argv[1])))"
    environment = os.environ | {"PYTHONPATH": str(weave.ROOT / "tools")}
    process = subprocess.Popen([sys.executable, "-c", code, str(book.root)], env=environment, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    mark = book.root / "notebooks" / "kernel"
    until = time.monotonic() + 60
    while not (mark.exists() and mark.read_text()) and time.monotonic() < until:
        time.sleep(0.1)
    kernel = int(mark.read_text())
    if number == signal.SIGINT:  # which a terminal sends to the whole group
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert process.wait(30) != 0
    while os.path.exists(f"/proc/{kernel}") and time.monotonic() < until:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{kernel}"), "the kernel still runs"


def test_edits_on_both_sides_are_not_mixed_unless_one_is_forced(book, monkeypatch, capsys):
    runs(book, monkeypatch)
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    edit(book, replaced("Another.", "A third."))
    path.write_text(CHAPTER.replace("The end.", "An end."))
    assert untangle.main([], book.root) == 1
    assert "both edited" in capsys.readouterr().out
    assert path.read_text() == CHAPTER.replace("The end.", "An end.")
    assert untangle.main(["--force"], book.root) == 0
    assert path.read_text() == CHAPTER.replace("Another.", "A third.")
    edit(book, replaced("A third.", "A fourth."))
    with pytest.raises(Refused, match="make untangle"):
        weave.weave(path, book.root)
    assert weave.weave(path, book.root, force=True)[0] == "run"
    assert "A third." in (book.root / "notebooks/02-attention.ipynb").read_text()


def test_a_notebook_that_is_damaged_is_said_in_a_line(book, monkeypatch, capsys):
    runs(book, monkeypatch)
    weave.weave(book("02-attention.md", CHAPTER), book.root)
    (book.root / "notebooks/02-attention.ipynb").write_text("<<<<<<< HEAD\n{}\n")
    assert untangle.main([], book.root) == 1
    assert capsys.readouterr().err.startswith("notebooks/02-attention.ipynb: ")


@pytest.mark.parametrize("text, bar", [(f"\r{BARS}\r{BARS}\n", True), (f"\r{BARS}\nUserWarning: old\n", False), (f"UserWarning: old\n\r{BARS}", False)])
def test_a_warning_beside_a_progress_bar_is_no_bar(text, bar):
    assert weave.is_bar(nbformat.v4.new_output("stream", name="stderr", text=text)) == bar


@pytest.mark.parametrize("kind, parts", [("error", {"ename": "E", "evalue": "no /home/someone/x", "traceback": []}), ("error", {"ename": "E", "evalue": "", "traceback": ["/tmp/x/y.py"]}),
                                         ("display_data", {"data": {"application/json": {"place": "/tmp/x/y"}}, "metadata": {}})])
def test_errors_and_json_name_no_place_of_this_machine(book, monkeypatch, kind, parts):
    monkeypatch.setattr(weave, "run", lambda *_: [[dict(nbformat.v4.new_output(kind, **parts))]])
    with pytest.raises(Refused, match="an absolute path"):
        weave.weave(book("02-x.md", cell("x = 1")), book.root)


def test_a_traceback_names_files_of_the_book_from_its_root(book):
    error = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[f"File {book.root}/annotated/a.py:3"])
    assert weave.clean(error, book.root)["traceback"] == ["File annotated/a.py:3"]


@pytest.mark.parametrize("error", [weave.DeadKernelError("Kernel died"), weave.CellTimeoutError("too long")])
def test_a_kernel_that_dies_is_a_line(book, monkeypatch, error):
    def execute(self, **more):
        raise error

    monkeypatch.setattr(weave.NotebookClient, "execute", execute)
    with pytest.raises(Refused, match=rf"^book/02-x.md:1: {type(error).__name__}: {error}"):
        weave.weave(book("02-x.md", cell("x = 1")), book.root)


@pytest.mark.parametrize("fails", ["write", "replace"])
def test_an_edit_that_cannot_be_written_leaves_the_chapter_as_it_was(book, monkeypatch, fails):
    "No tool writes over what is there: a full disk would leave half of a chapter."
    runs(book, monkeypatch)
    path = book("02-attention.md", CHAPTER)
    weave.weave(path, book.root)
    edit(book, replaced("Another.", "A third."))

    def full(path, *_, **__):
        open(path, "w").close()  # what a full disk leaves
        raise OSError("No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        if fails == "write":
            patched.setattr(type(path), "write_text", full)
        else:
            patched.setattr("os.replace", lambda part, _: full(part))
        untangle.main([], book.root)
    assert path.read_text() == CHAPTER and not list(path.parent.glob("*.part"))
    assert untangle.main([], book.root) == 0 and "A third." in path.read_text()
