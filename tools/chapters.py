"""What every tool here needs: the chapters of book/, cell by cell, with the line each cell stands on."""

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import nbformat
import yaml
from jupytext.myst import myst_to_notebook

ROOT = Path(__file__).resolve().parent.parent
HOUR, CHAPTERS, APPENDICES = "the-hour.md", "[0-9][0-9]-*.md", "[A-Z]-*.md"
CHAPTER = r"[0-9][0-9]-[\w-]+"
QUESTIONS = "-questions"  # how the name of a chapter's second notebook ends


class Refused(Exception):
    """A rule of CONTRIBUTING.md is broken; the message names the chapter and the line."""


@dataclass
class Cell:
    """A cell of a chapter: its source, the line of the chapter the source begins on, and the lines it fills."""

    kind: str
    source: str
    metadata: dict
    line: int  # of the first source line, counted from 1
    span: tuple  # lines of the whole cell with its fences, counted from 0, end excluded

    @property
    def tags(self) -> list[str]:
        return list(self.metadata.get("tags", []))

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)


@dataclass
class Chapter:
    """One book/NN-name.md; or, without its template, its questions, an appendix that is a notebook, or the hour."""

    path: Path
    text: str
    cells: list[Cell] = field(default_factory=list)
    front: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"book/{self.path.name}"

    @property
    def number(self) -> str:
        """Two digits, or the letter of an appendix; "the" of the hour."""
        return self.path.name.split("-")[0]

    @property
    def appendix(self) -> bool:
        """Whether the text has no number, and so no chapter's template."""
        return not self.number.isdigit()

    @property
    def questions(self) -> bool:
        """Whether the text is a chapter's second notebook, which has a template of its own and exports nothing."""
        return is_questions(self.path)

    @property
    def position(self) -> str:
        """Where the chapter's module stands among the others."""
        return position(self.path, self.front)

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def module(self) -> str | None:
        return self.front.get("module")

    @property
    def program(self) -> str | None:
        """The name of the file in book/ that the cells tagged `program` make by themselves."""
        return self.front.get("program")

    @property
    def title(self) -> str:
        match = re.search(r"^# +(.+?)\s*$", self.text[self.front_end :], re.MULTILINE)
        return match[1] if match else self.stem

    @property
    def front_end(self) -> int:
        match = re.match(r"---\n.*?^---\n", self.text, re.DOTALL | re.MULTILINE)
        return match.end() if match else 0

    def code(self, tag: str | None = None) -> list[Cell]:
        return [c for c in self.cells if c.kind == "code" and (tag is None or tag in c.tags)]

    def at(self, cell: Cell, line: int = 1) -> str:
        """`book/02-attention.md:57` for the given line (from 1) of a cell."""
        return f"{self.name}:{cell.line + line - 1}"


def read(path: Path) -> Chapter:
    """Parse a chapter; the same parser that jupytext uses decides what a cell is.

    Parsing takes a tenth of a second: a text is parsed once in a process, and whoever reads it shares the chapter.
    """
    return parse(path, path.read_text(encoding="utf-8"))


@cache
def parse(path: Path, text: str) -> Chapter:
    """The chapter that a text makes."""
    name = f"book/{path.name}"
    try:
        notebook = myst_to_notebook(text, add_source_map=True)
    except Exception as error:  # the parser raises several kinds, none with the file's name
        raise Refused(f"{name}:1: cannot be read: {' '.join(str(error).split())}") from error
    front = dict(notebook.metadata)
    starts = front.pop("source_map")
    front.pop("jupytext", None)
    lines = text.splitlines()
    chapter = Chapter(path, text, front=front)
    for cell, start in zip(notebook.cells, starts):
        source = cell.source.splitlines() or [""]
        if cell.cell_type == "markdown":
            while not lines[start].strip():
                start += 1
            span, first = (start, start + len(source)), start
        else:
            fence = re.match(r"\s*(`{3,}|~{3,})", lines[start - 1])
            end = next((i for i in range(start, len(lines)) if fence and lines[i].strip() == fence[1]), start)
            first = next((i for i in range(start, end + 1) if lines[i : i + len(source)] == source), None)
            if first is None:
                raise Refused(f"{name}:{start}: a cell that is empty, or whose code begins like options, with ---")
            span = (start - 1, end + 1)
        chapter.cells.append(Cell(cell.cell_type, cell.source, plain(cell.metadata), first + 1, span))
    return chapter


def plain(node):
    """Notebook nodes as ordinary dictionaries and lists."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    return [plain(value) for value in node] if isinstance(node, list | tuple) else node


def headings(chapter: Chapter) -> list[tuple[int, str]]:
    """(line, title) of the sections, headings of the second level, outside fences."""
    found = []
    for cell in chapter.cells:
        if cell.kind == "markdown":
            outside = re.sub(r"^(`{3,}).*?^\1", lambda m: "\n" * m[0].count("\n"), cell.source, flags=re.M | re.S)
            lines = enumerate(outside.splitlines(), cell.line)
            found += [(number, line[3:].strip()) for number, line in lines if line.startswith("## ")]
    return found


def is_questions(path: Path) -> bool:
    """Whether a file is `NN-name-questions`, the second notebook of the chapter `NN-name`."""
    return path.name[:2].isdigit() and path.stem.endswith(QUESTIONS)


def chapter_of(path: Path) -> Path:
    """The chapter that a file with questions belongs to."""
    return path.with_name(path.name.replace(f"{QUESTIONS}.", "."))


def numbered(root: Path) -> list[Path]:
    """The numbered chapters, each before its questions."""
    return sorted((root / "book").glob(CHAPTERS), key=lambda path: path.stem)


def paths(root: Path = ROOT) -> list[Path]:
    """The numbered chapters, without their questions."""
    return [path for path in numbered(root) if not is_questions(path)]


def second_notebooks(root: Path = ROOT) -> list[Path]:
    """The second notebooks of the chapters."""
    return [path for path in numbered(root) if is_questions(path)]


def woven(root: Path = ROOT) -> list[Path]:
    """Everything that is woven: the hour, the chapters with their questions, the appendices that name a kernel.

    An appendix whose front matter cannot be read is among them, so that `read` refuses it and nothing it made is lost.
    """
    hour, appendices = (root / "book").glob(HOUR), sorted((root / "book").glob(APPENDICES))
    return [*hour, *numbered(root), *(path for path in appendices if names_kernel(path))]


def names_kernel(path: Path) -> bool:
    """Whether an appendix names a kernel, or may do so where its front matter cannot be read."""
    front = front_matter(path)
    return front is None or bool(front.get("kernelspec"))


def front_matter(path: Path) -> dict | None:
    """A text's front matter alone, which is cheap; None where it cannot be read: reading the whole reports that."""
    match = re.match(r"---\n(.*?)^---\n", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    try:
        front = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError:
        return None
    return front if isinstance(front, dict) else {}


def chosen(names: list[str], root: Path = ROOT) -> list[Path]:
    """The texts that the command line names (`02`, `02-attention`, `book/02-attention.md`, `E`); none names all.

    A number names the chapter and its questions, a whole name one file.
    """
    every = woven(root)
    if not names:
        return every
    found = []
    for name in names:
        stem = Path(name).stem
        hits = [p for p in every if p.stem == stem] or [p for p in every if p.stem.startswith(f"{stem}-")]
        if not hits:
            raise SystemExit(f"no chapter {name} in book/")
        found += [p for p in hits if p not in found]
    return found


def position(path: Path, front: dict) -> str:
    """Where a module stands among the others: `08` for chapter 8, `08F` for an appendix F that comes `after: 08-data`.

    As text these sort: behind a chapter come its appendices, by letter, and then the next chapter.
    An appendix with a module and without a chapter that it comes after is refused.
    """
    number = path.name.split("-")[0]
    if number.isdigit() or not front.get("module"):
        return number
    after = str(front.get("after", ""))
    if not re.fullmatch(CHAPTER, after) or not path.with_name(f"{after}.md").exists():
        message = f"an appendix with a module names the chapter it comes after (`after: 08-data`), not {after!r}"
        raise Refused(f"book/{path.name}:1: {message}")
    return after[:2] + number


def module_order(root: Path = ROOT) -> dict[str, str]:
    """Module name -> its position, in that order; texts that are refused are left out."""
    found = []
    for path in woven(root):
        front = None if is_questions(path) else front_matter(path)
        try:
            if front and front.get("module"):
                found.append((position(path, front), front["module"]))
        except Refused:  # tangling the text says why
            continue
    order = {}
    for place, name in sorted(found):
        order.setdefault(name, place)
    return order


def as_cell(cell: Cell):
    """A notebook cell without outputs."""
    make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    return make.get(cell.kind, nbformat.v4.new_raw_cell)(source=cell.source, metadata=cell.metadata)


EDITOR_KEYS = "execution ExecuteTime collapsed scrolled jupyter cellView editable slideshow outputId".split()


def shared(cells) -> list:
    """The cells that a chapter and its notebook have in common: without the launch cell and cells left empty."""
    return [cell for cell in cells if cell.source.strip() and "launch" not in cell.metadata.get("tags", [])]


def contents(cells) -> list[tuple]:
    """What a chapter and its notebook have in common: kind, source and metadata of each cell.

    Left out are blank lines around a source and spaces at its end, which no chapter keeps, and what editors add to the
    metadata.
    """
    rows = []
    for cell in shared(cells):
        metadata = {k: v for k, v in plain(cell.metadata).items() if k not in EDITOR_KEYS}
        source = re.sub(r"\A(?:[ \t]*\n)+", "", cell.source).rstrip()
        rows.append((getattr(cell, "kind", None) or cell.cell_type, source, metadata))
    return rows


def digest_of(rows: list[tuple]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def edited(notebook) -> bool:
    """Whether a notebook's cells are no longer those that weaving wrote."""
    kept = notebook.metadata.get("annotated", {}).get("cells")
    return kept is not None and kept != digest_of(contents(notebook.cells))


def write_whole(path: Path, text: str) -> None:
    "Put the file in its place whole: an interrupt or a full disk leaves what was there."
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def clear_orphans(left: list[Path], is_ours: Callable[[Path], bool], check: bool, unknown: bool) -> bool:
    """Delete files whose chapters are gone, unless that is unknown or something is wrong; whether something is.

    A file that was not made from a chapter, or was changed since, is somebody's work: it is refused and kept.
    """
    ours = [path for path in left if is_ours(path)]
    wrong = False
    for path in left:
        if path not in ours:
            print(f"{path.parent.name}/{path.name}: no chapter makes it", file=sys.stderr)
            wrong = True
    for path in [] if unknown else ours:
        if check:
            print(f"{path.parent.name}/{path.name} is left over: no chapter makes it any more")
            wrong = True
        elif not wrong:
            path.unlink()
            print(f"{path.parent.name}/{path.name} is deleted: no chapter makes it any more")
    return wrong
