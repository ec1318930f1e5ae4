"""Untangle: edits made in notebooks/*.ipynb go back into book/*.md.

    python tools/untangle.py [--check] [CHAPTER ...]

Only cells that differ are written anew; every other line of the chapter stays as it is, byte for byte.
Outputs, counts and the launch cell are not the chapter's and are left out.
"""

import argparse
import dataclasses
import json
import sys
from difflib import SequenceMatcher
from pathlib import Path

import jupytext
import nbformat
from chapters import ROOT, Cell, Chapter, Refused, chosen, contents, digest_of, edited, parse, read, shared, write_whole


def untangle(chapter: Chapter, notebook) -> str:
    """The chapter's text with the notebook's cells in place of those that were edited.

    Raises:
        Refused: the text would make other cells.
    """
    lines = chapter.text.splitlines(keepends=True)
    chapter = dataclasses.replace(chapter, cells=shared(chapter.cells))
    mine, theirs = contents(chapter.cells), contents(notebook.cells)
    keys = [[json.dumps(row, sort_keys=True) for row in side] for side in (mine, theirs)]
    edits = SequenceMatcher(None, *keys, autojunk=False).get_opcodes()
    for what, a, b, c, d in reversed(edits):
        if what == "replace" and b - a == d - c:
            for i in reversed(range(b - a)):
                rewrite(lines, chapter.cells[a + i], theirs[c + i])
        elif what != "equal":
            replace(lines, chapter, (a, b), written(theirs[c:d]), theirs[c:d], theirs[c - 1] if c else None)
    text = "".join(lines)
    try:
        carried = contents(parse(chapter.path, text).cells) == theirs
    except Refused:
        carried = False
    if not carried:
        raise Refused(f"its edits cannot be carried, the text would make other cells: make them in {chapter.name}")
    return text


def written(cells) -> str:
    """Cells as MyST text, by jupytext."""
    if not cells:
        return ""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    notebook = nbformat.v4.new_notebook(
        cells=[make.get(kind, nbformat.v4.new_raw_cell)(source=s, metadata=m) for kind, s, m in cells],
        metadata={"jupytext": {"notebook_metadata_filter": "-all"}},
    )
    text = jupytext.writes(notebook, fmt="md:myst")
    if text.startswith("---\n"):
        text = text.split("\n---\n", 1)[1]
    return text.strip("\n")


def rewrite(lines: list[str], cell: Cell, new: tuple) -> None:
    """Put one cell in the place of another; where only its source differs, its options stay as they are."""
    kind, source, metadata = new
    start, stop = cell.span
    if (kind, metadata) == (cell.kind, cell.metadata):
        start = cell.line - 1
        stop = start + len(cell.source.splitlines())
        lines[start:stop] = [source + "\n"]
    else:
        lines[start:stop] = [written([new]) + "\n"]


def replace(lines: list[str], chapter: Chapter, old: tuple[int, int], text: str, new, before) -> None:
    """Put text in place of the chapter's cells old[0] to old[1]; two texts in a row keep a break between them."""
    spans = [c.span for c in chapter.cells]
    start, stop = old
    if start < stop:
        first, last = spans[start][0], spans[stop - 1][1]
        if not new:  # the cells are gone: so are the blank lines after them
            while last < len(lines) and not lines[last].strip():
                last += 1
            around = chapter.cells[:start][-1:] + chapter.cells[stop:][:1]
            if [cell.kind for cell in around] == ["markdown"] * 2:  # which go on as two texts
                gap = lines[around[0].span[1] : first] + lines[last : around[1].span[0]]
                text = "" if any(line.startswith("+++") for line in gap) else "+++\n"
        lines[first:last] = [text + "\n"] if text else []
        return
    at = spans[start - 1][1] if start else (spans[0][0] if spans else len(lines))
    follows = chapter.cells[start].kind if start < len(chapter.cells) else None
    if new[0][0] == "markdown" and before and before[0] == "markdown":
        text = "+++\n\n" + text
    gap = lines[at : spans[start][0]] if follows else []
    if new[-1][0] == "markdown" and follows == "markdown" and not any(line.startswith("+++") for line in gap):
        text += "\n\n+++"
    lines[at:at] = ["\n" + text + "\n"] if start else [text + "\n\n"]


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Carry edits of notebooks/*.ipynb back into book/*.md.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="02 or book/02-attention.md; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where there are edits to carry")
    parser.add_argument("--force", action="store_true", help="carry them even where the chapter was edited too")
    args = parser.parse_args(argv)
    failed = False
    for path in chosen(args.chapters, root):
        source = root / "notebooks" / f"{path.stem}.ipynb"
        if not source.exists():
            continue
        try:
            chapter, notebook = read(path), nbformat.read(source, as_version=4)
            text = untangle(chapter, notebook) if edited(notebook) else chapter.text
        except (Refused, nbformat.reader.NotJSONError) as error:
            print(f"notebooks/{source.name}: {error}", file=sys.stderr)
            failed = True
            continue
        if text == chapter.text:
            continue
        if digest_of(contents(chapter.cells)) != notebook.metadata["annotated"]["cells"] and not args.force:
            print(f"{chapter.name} and its notebook were both edited: nothing is carried (--force takes the notebook)")
            failed = True
            continue
        print(f"{chapter.name} " + ("differs from its notebook" if args.check else "takes the notebook's edits"))
        failed |= args.check
        if not args.check:
            write_whole(path, text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
