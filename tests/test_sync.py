"""The notebooks say what the chapters say; what else is made of them is compared by tools/check.py."""

import nbformat
import pytest
import weave
from chapters import ROOT, contents, edited, read, woven

CHAPTERS = [pytest.param(p, id=p.stem) for p in woven()]


def test_there_are_chapters():
    assert CHAPTERS


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
