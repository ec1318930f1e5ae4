"""The package, the notebooks and the collected appendices say what the chapters say."""

import collect
import nbformat
import pytest
import tangle
import weave
from chapters import ROOT, contents, edited, read, woven

CHAPTERS = [pytest.param(p, id=p.stem) for p in woven()]


def test_there_are_chapters():
    assert CHAPTERS


def test_the_package_is_tangled(capsys):
    failed = tangle.main(["--check"])
    said = capsys.readouterr()
    assert not failed, said.out + said.err


def test_the_appendices_are_collected(capsys):
    failed = collect.main(["--check"])
    said = capsys.readouterr()
    assert not failed, said.out + said.err


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_notebook_is_woven(chapter):
    what, line = weave.weave(chapter, ROOT, check=True)
    assert what == "same", line


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_notebook_has_the_chapters_cells_and_outputs(chapter):
    notebook = nbformat.read(ROOT / "notebooks" / f"{chapter.stem}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert contents(notebook.cells) == contents(read(chapter).cells)
    assert not edited(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count == 1
            failed = [o for o in cell.outputs if o.output_type == "error"]
            assert not failed or "raises-exception" in cell.metadata.get("tags", [])


def test_every_notebook_has_a_chapter():
    assert not weave.orphans(ROOT)
