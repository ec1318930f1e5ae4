"""Collect what the chapters say into two appendices, and give each module a page.

    python tools/collect.py [--check]

book/B-differences.md holds the rows of every table under `## What the paper does not say`,
book/C-statements.md every `(statement-...)=` with a link to the cell that tests it.
book/api/ has a page for each module that a chapter makes, and one for the package itself: the page is read from the
module when the book is built, and book/api.md sorts the modules into groups.
`--check` writes nothing and exits 1, with a line for each page that is not up to date.
"""

import argparse
import re
import sys
from pathlib import Path

import yaml
from chapters import ROOT, Chapter, Refused, module_order, read, woven

HEADER = "| question | the paper | released code | here, and why |"
SECTION = "## What the paper does not say"
STATEMENT = re.compile(r"^\((statement-[a-z0-9-]+)\)=\n:{3,}\{admonition\} *(.+)\n((?:.*\n)*?):{3,}\s*$", re.MULTILINE)

DIFFERENCES = """# Differences and choices

<!-- Made by tools/collect.py from the chapters: edit there. -->

A paper of eleven pages leaves choices open, and its released code sometimes makes another one than the text.
Every such place, as the chapters that meet it say it: the paper, the released code, and what this book does and why.
"""

STATEMENTS = """# Statements put to the test

<!-- Made by tools/collect.py from the chapters: edit there. -->

Statements that many texts on the Transformer repeat, and what came out when they were run.
Each links to the place where the test stands; the cell after it is the test.
"""


MODULE = """# `{short}`

<!-- Made by tools/collect.py: the names are read from the module. -->

```{{annotated-api}} {name}
```
"""


def link(chapter: Chapter, root: Path) -> str:
    """The chapter's title, linked once the chapter is part of the page."""
    title = f"{chapter.number.lstrip('0') or '0'}. {chapter.title}"
    return f"[{title}](../notebooks/{chapter.stem}.ipynb)" if in_toc(chapter, root) else title


def in_toc(chapter: Chapter, root: Path) -> bool:
    toc = root / "_toc.yml"
    return toc.exists() and f"notebooks/{chapter.stem}" in files(yaml.safe_load(toc.read_text(encoding="utf-8")))


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
        if chapter.draft:
            return []
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
    text = DIFFERENCES
    for chapter in chapters:
        if table := rows(chapter):
            kind = "appendix" if chapter.appendix else "chapter"
            text += "\n".join([f"\n## {chapter.title}\n", f"From {kind} {link(chapter, root)}.\n", HEADER])
            text += "\n|---|---|---|---|\n" + "\n".join(table) + "\n"
    return text


def statements_page(chapters: list[Chapter], root: Path) -> str:
    lines, seen = [STATEMENTS, "| statement | in short | tested in |", "|---|---|---|"], {}
    for chapter in chapters:
        for label, title, first in statements(chapter):
            if label in seen:
                raise Refused(f"{chapter.name}:1: {label} is in {seen[label]} already")
            seen[label] = chapter.name
            title, first = (re.sub(r"(?<!\\)\|", r"\\|", t) for t in (title, first))
            shown = f"[{title}](#{label})" if in_toc(chapter, root) else title
            lines.append(f"| {shown} | {first} | {link(chapter, root)} |")
    return "\n".join(lines) + "\n"


def module_pages(root: Path) -> dict[str, str]:
    """The page of the package and of each module."""
    pages = {"api/annotated.md": MODULE.format(short="annotated", name="annotated")}
    every = module_order(root)
    return pages | {f"api/{name}.md": MODULE.format(short=name, name=f"annotated.{name}") for name in every}


def left_over(pages: dict[str, str], root: Path) -> list[Path]:
    """Pages of modules that no chapter makes any more."""
    return sorted(path for path in (root / "book" / "api").glob("*.md") if f"api/{path.name}" not in pages)


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Make the appendices that are collected from the chapters.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a page is stale")
    args = parser.parse_args(argv)
    failed = False
    try:
        chapters = [read(path) for path in woven(root)]
        pages = {
            "B-differences.md": differences_page(chapters, root),
            "C-statements.md": statements_page(chapters, root),
        } | module_pages(root)
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    for name, text in pages.items():
        target = root / "book" / name
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        print(f"book/{name} is " + ("not what the chapters say" if args.check else "written"))
        failed |= args.check
        if not args.check:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
    for path in left_over(pages, root):
        print(f"book/api/{path.name} is " + ("left over: no chapter makes the module" if args.check else "deleted"))
        failed |= args.check
        if not args.check:
            path.unlink()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
