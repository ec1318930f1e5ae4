"""Collect what the chapters say into pages of their own, and give each module a page.

    python tools/collect.py [--check]

book/questions.md is the index of every question that a chapter's second notebook answers, by its group, with the first
sentence of the answer; the statements put to the test, `(statement-...)=`, are the last group.
book/B-differences.md begins with book/ten-differences.md, which is written by hand, and holds the rows of every table
under `## What the paper does not say`.
_toc.yml lists a chapter's questions under the chapter.
book/api/ has a page for each module that a chapter makes, and one for the package itself: the page is read from the
module when the book is built, and book/api.md sorts the modules into groups.
`--check` writes nothing and exits 1, with a line for each page that is not up to date.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from chapters import (
    ROOT,
    Chapter,
    Refused,
    chapter_of,
    clear_orphans,
    headings,
    module_order,
    read,
    second_notebooks,
    woven,
    write_whole,
)

HEADER = "| question | the paper | released code | here, and why |"
SECTION = "## What the paper does not say"
STATEMENT = re.compile(r"^\((statement-[a-z0-9-]+)\)=\n:{3,}\{admonition\} *(.+)\n((?:.*\n)*?):{3,}\s*$", re.MULTILINE)
TEN = "ten-differences.md"

DIFFERENCES = """# Differences and choices

<!-- Made by tools/collect.py from the chapters and from book/ten-differences.md: edit there. -->

The paper leaves some choices open, and its released code, tensor2tensor, sometimes departs from its text.
"""

ALL_DIFFERENCES = """
## Every choice, by chapter

The tables of all chapters: what the paper says, what the released code does, and what this book does and why.
"""

GROUPS = {  # the key after `<!-- group: KEY -->` -> the heading in the index
    "why": "Why is it built this way?",
    "how": "How exactly does it work?",
    "instead": "What if one leaves it out, or does it otherwise?",
    "cost": "What does it cost, and how fast is it?",
    "learns": "What is learned, and how do we know?",
    "practice": "What do I do?",
    "said": "Is it true what people say?",
}

QUESTIONS_PAGE = """# All questions

<!-- Made by tools/collect.py from the chapters: edit there. -->

Each question is answered in a sentence here, and with its evidence behind the link: text, cells to run, a figure.
A question can be read alone; the number after the answer is that of its chapter.
"""

SAID = """
### Statements put to the test

Statements that many texts on the Transformer repeat, and what came out when they were run.
The test is behind each link.
"""


MODULE = """# `{short}`

<!-- Made by tools/collect.py: the names are read from the module. -->

```{{annotated-api}} {name}
```
"""


@dataclass(frozen=True)
class Question:
    """A section of a chapter's second notebook, as far as the index and the layout check need it."""

    label: str  # "" where it has none
    title: str
    group: str | None
    answer: str  # the first sentence; "" where something else stands first
    line: int  # of the heading
    end: int  # the line after the last


def questions(chapter: Chapter) -> list[Question]:
    """The questions that a second notebook answers; none for any other text."""
    if not chapter.questions:
        return []
    lines, heads = chapter.text.splitlines(), headings(chapter)
    ends = [line for line, _ in heads[1:]] + [len(lines) + 1]
    return [question(lines, line, title, end) for (line, title), end in zip(heads, ends)]


def question(lines: list[str], line: int, title: str, end: int) -> Question:
    """The section from a heading to the next, lines counted from 1."""
    label, above = "", line - 2
    while above >= 0 and (named := re.fullmatch(r"\(([\w-]+)\)=", lines[above].strip())):
        label = named[1] if named[1].startswith("q-") else label
        above -= 1
    said = [text.strip() for text in lines[line : end - 1] if text.strip()]
    marked = re.fullmatch(r"<!-- group: *(\S+) *-->", said[0]) if said else None
    first = "".join(said[bool(marked) :][:1])
    plain = not re.match(r"[`~:]{3}|\$\$|[|>#%]|\+\+\+|<!--|!\[|\(.*\)=$|([-*]|\d+\.) ", first)
    return Question(label, title, marked[1] if marked else None, first if plain else "", line, end)


def link(chapter: Chapter, root: Path) -> str:
    """The chapter's title, linked once the chapter is part of the page; of questions, the chapter's they belong to."""
    if chapter.questions:
        chapter = read(chapter_of(chapter.path))
    title = f"{chapter.number.lstrip('0') or '0'}. {chapter.title}"
    return f"[{title}](../notebooks/{chapter.stem}.ipynb)" if in_toc(chapter, root) else title


def in_toc(chapter: Chapter, root: Path) -> bool:
    """Whether a text is part of the page; questions are with their chapter."""
    toc, stem = root / "_toc.yml", chapter_of(chapter.path).stem if chapter.questions else chapter.stem
    return toc.exists() and f"notebooks/{stem}" in listed(toc.read_text(encoding="utf-8"))


@cache
def listed(toc: str) -> set[str]:
    """Every file that the text of a table of contents names."""
    return files(yaml.safe_load(toc))


def files(node) -> set[str]:
    """Every `file:` and `root:` of the table of contents."""
    if isinstance(node, list):
        return set().union(set(), *map(files, node))
    if not isinstance(node, dict):
        return set()
    return {node[k] for k in ("file", "root") if k in node} | set().union(set(), *map(files, node.values()))


def line_of(chapter: Chapter, position: int) -> int:
    return chapter.text.count("\n", 0, position) + 1


def rows(chapter: Chapter) -> list[str]:
    """The rows of the chapter's table of choices; a section without the table is refused."""
    match = re.search(rf"^{SECTION}\s*$", chapter.text, re.MULTILINE)
    if not match:
        return []
    end = re.search(r"^## ", chapter.text[match.end() :], re.MULTILINE)
    section = chapter.text[match.end() :][: end.start() if end else None].splitlines()
    start = line_of(chapter, match.end())
    if HEADER not in section:
        raise Refused(f"{chapter.name}:{start}: no table with the header {HEADER}")
    found, first = [], section.index(HEADER)
    for number, line in enumerate(section[first + 2 :], start + first + 2):
        if not line.startswith("|"):
            break
        cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) - 1
        if cells != 4:
            raise Refused(f"{chapter.name}:{number}: {cells} cells in a row of the table of choices, 4 are wanted")
        found.append(line)
    return found


def statements(chapter: Chapter) -> list[tuple[str, str, str]]:
    """(label, statement, first sentence of the answer) of each statement the chapter tests."""
    found = []
    for match in STATEMENT.finditer(chapter.text):
        body = [line for line in match[3].splitlines() if line.strip() and not line.startswith(":")]
        if not body:
            raise Refused(f"{chapter.name}:{line_of(chapter, match.start())}: {match[1]} says nothing")
        found.append((match[1], match[2].strip(), body[0].strip()))
    labels = set(re.findall(r"^\((statement-[^)]*)\)=", chapter.text, re.MULTILINE))
    if lost := sorted(labels - {label for label, _, _ in found}):
        line = line_of(chapter, chapter.text.index(f"({lost[0]})="))
        raise Refused(f"{chapter.name}:{line}: no admonition follows {lost[0]}")
    return found


def differences_page(chapters: list[Chapter], root: Path) -> str:
    text, ten = DIFFERENCES, root / "book" / TEN
    if ten.exists():
        text += f"\n{ten.read_text(encoding='utf-8').strip()}\n"
    text += ALL_DIFFERENCES
    for chapter in chapters:
        if table := rows(chapter):
            kind = "appendix" if chapter.appendix else "chapter"
            text += "\n".join([f"\n### {chapter.title}\n", f"From {kind} {link(chapter, root)}.\n", HEADER])
            text += "\n|---|---|---|---|\n" + "\n".join(table) + "\n"
    return text


def questions_page(chapters: list[Chapter], root: Path) -> str:
    """The index: a list for each group, in the order of the chapters; statements behind the questions of theirs."""
    seen: dict[str, str] = {}
    groups: dict[str, list[str]] = {key: [] for key in GROUPS}
    claims = []
    for chapter in chapters:
        for found in questions(chapter):
            if not found.label or found.group not in groups or not found.answer:
                message = "a question needs a label, a group and an answer (tools/layout.py says which is missing)"
                raise Refused(f"{chapter.name}:{found.line}: {message}")
            groups[found.group].append(entry(chapter, root, found.label, found.title, found.answer, seen))
        for label, title, first in statements(chapter):
            claims.append(entry(chapter, root, label, title, first, seen))
    text = QUESTIONS_PAGE
    for key, entries in groups.items():
        if entries or (key == "said" and claims):
            text += f"\n(questions-{key})=\n## {GROUPS[key]}\n" + "".join(["\n", *entries] if entries else [])
    return text + (SAID + "\n" + "".join(claims) if claims else "")


def entry(chapter: Chapter, root: Path, label: str, title: str, answer: str, seen: dict[str, str]) -> str:
    """A line of the index; a label that is there already is refused."""
    if label in seen:
        raise Refused(f"{chapter.name}:1: {label} is in {seen[label]} already")
    seen[label] = chapter.name
    where = chapter.number.lstrip("0") or "0"
    if in_toc(chapter, root):
        title, where = f"[{title}](#{label})", f"[{where}](../notebooks/{chapter.stem}.ipynb)"
    return f"- {title}\\\n  {answer} ({where})\n"


NESTED = r"  sections:\n\1    - file: notebooks/\2-questions\n(?:\1      title: .*\n)?"
LISTED = re.compile(rf"^( *)- file: notebooks/([0-9]{{2}}-[\w-]+)\n(?:\1{NESTED})?", re.MULTILINE)


def toc_text(root: Path) -> str | None:
    """The table of contents with each file of questions under its chapter; None where there is no such table."""
    toc = root / "_toc.yml"
    there = {chapter_of(path).stem: path.stem for path in second_notebooks(root)}

    def listing(match: re.Match) -> str:
        space, stem = match[1], match[2]
        line = f"{space}- file: notebooks/{stem}\n"
        if stem not in there:
            return line
        return f"{line}{space}  sections:\n{space}    - file: notebooks/{there[stem]}\n{space}      title: Questions\n"

    return LISTED.sub(listing, toc.read_text(encoding="utf-8")) if toc.exists() else None


def module_pages(root: Path) -> dict[str, str]:
    """The page of the package and of each module."""
    pages = {"api/annotated.md": MODULE.format(short="annotated", name="annotated")}
    every = module_order(root)
    return pages | {f"api/{name}.md": MODULE.format(short=name, name=f"annotated.{name}") for name in every}


def left_over(pages: dict[str, str], root: Path) -> list[Path]:
    """Pages of modules that no chapter makes any more."""
    return sorted(path for path in (root / "book" / "api").glob("*.md") if f"api/{path.name}" not in pages)


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Make the pages that are collected from the chapters.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a page is stale")
    args = parser.parse_args(argv)
    failed = False
    try:
        chapters = [read(path) for path in woven(root)]
        pages = {
            "B-differences.md": differences_page(chapters, root),
            "questions.md": questions_page(chapters, root),
        } | module_pages(root)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    targets = {root / "book" / name: text for name, text in pages.items()}
    if (toc := toc_text(root)) is not None:
        targets[root / "_toc.yml"] = toc
    for target, text in targets.items():
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        name = target.relative_to(root).as_posix()
        print(f"{name} is " + ("not what the chapters say" if args.check else "written"))
        failed |= args.check
        if not args.check:
            target.parent.mkdir(exist_ok=True)
            write_whole(target, text)
    return int(clear_orphans(left_over(pages, root), is_ours, args.check, unknown=False) or failed)


def is_ours(path: Path) -> bool:
    """Whether a page is as it was made for a module."""
    name = "annotated" if path.stem == "annotated" else f"annotated.{path.stem}"
    return path.read_text(encoding="utf-8") == MODULE.format(short=path.stem, name=name)


if __name__ == "__main__":
    sys.exit(main())
