"""Check the chapters' form: the rules of CONTRIBUTING.md that a program can see.

    python tools/layout.py [--drafts] [CHAPTER ...]

Prints `book/NN-name.md:LINE: what is wrong` and exits 1. A chapter with `draft: true` in its front matter
may break these rules: its remarks are counted, and shown with --drafts.
"""

import argparse
import ast
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from chapters import ROOT, Cell, Chapter, Refused, chosen, read
from collect import HEADER, rows, statements
from tangle import code_lines, name_of

SECTIONS = ["In this chapter", "What the paper does not say", "Recap", "Exercises", "What comes next"]
LONGEST, MEDIAN, WIDTH, OUTPUT, MARGIN = 25, 8, 100, 15, 40
WORDS = (8, 15)
SYMBOLS = "| symbol | code | shape |"
PLACES = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|usr|opt|Users|work|mnt|srv)/[\w.-]")
REGISTRY = re.compile(r"--(?:extra-)?index-url|--registry|registry *= *[\"']?https?:|PIP_INDEX_URL|npm_config_registry")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u26ff\u2705\u274c\u2728\ufe0f]")
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|al|Eq|Eqs|Fig|Figs|Sec|No|ca|resp|etc)\.$|\b[A-Z]\.$")
SENTENCE_END = re.compile(r"[.!?][\"')\]*_”]*(?=\s+[A-Z“\"(*_])")
FULL = re.compile(r"[.!?:;,]?[.!?:;][\"')\]*_”]*$")
PLACE_IN_PAPER = re.compile(r"[\s—–(-]*\b(?:[Ss]ections? [\d., and]*\d|Figure \d|[Aa]bstract)(?:, [^.]{0,40})?[.)\s]*$")
Problem = tuple[int, str]


def check(chapter: Chapter, root: Path = ROOT) -> list[Problem]:
    """(line, message) for each rule the chapter breaks."""
    tests = (template, prose, quotes, margins, cells, figures, exercises, symbols, tables, run_here, machine, fences)
    return sorted({p for test in tests for p in test(chapter, root)})


# ---- text


def text_lines(chapter: Chapter) -> Iterator[Problem]:
    """(line, text) of the prose: no code, tables, math blocks, headings, directives or comments."""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        fence, math, comment = None, False, False
        for number, line in enumerate(cell.source.splitlines(), cell.line):
            bare = line.strip()
            if fence:
                fence = None if bare.startswith(fence) and not bare.strip(fence[0]) else fence
            elif match := re.match(r"(`{3,}|~{3,})", bare):
                fence = match[1]
            elif bare.startswith("$$") or bare.endswith("$$"):
                math = not math if bare.count("$$") == 1 else math
            elif bare.startswith("<!--") or comment:
                comment = "-->" not in bare
            elif not math and not re.match(r"(:{3,}|\||#{1,6} |:[\w-]+:|\(.*\)=$|\+\+\+|%)", bare):
                yield number, bare


def template(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """Title, quote, and the sections in their order; the first cell is the setup."""
    if not chapter.appendix and not isinstance(chapter.front.get("paper"), list):
        yield 1, "no list `paper:` in the front matter"
    first = chapter.cells[0] if chapter.cells else None
    if first is None or first.kind != "markdown" or not first.source.startswith("# "):
        yield 1, "a chapter begins with its title"
    elif chapter.front.get("paper") and not re.search(r"^>", first.source, re.MULTILINE):
        yield first.line, "a block quote of the paper stands before the first cell"
    code = chapter.code()
    if not code or "setup" not in code[0].tags:
        yield code[0].line if code else 1, "the first cell is tagged `setup`"
    if chapter.appendix:  # no part of the paper: its sections are its own
        return
    heads = [(n, t) for n, t in headings(chapter) if t in SECTIONS]
    names = [t for _, t in heads]
    for section in SECTIONS:
        if section not in names and not (section == SECTIONS[1] and not chapter.front.get("paper")):
            yield 1, f"no section `## {section}`"
    if names != [s for s in SECTIONS if s in names]:
        yield heads[0][0], f"sections out of order: {', '.join(names)}"


def headings(chapter: Chapter) -> Iterator[Problem]:
    for cell in chapter.cells:
        if cell.kind == "markdown":
            outside = re.sub(r"^(`{3,}).*?^\1", lambda m: "\n" * m[0].count("\n"), cell.source, flags=re.M | re.S)
            for number, line in enumerate(outside.splitlines(), cell.line):
                if line.startswith("## "):
                    yield number, line[3:].strip()


def prose(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """One sentence a line, and a sentence on one line; no emoji."""
    lines = dict(text_lines(chapter))
    for number, line in lines.items():
        if EMOJI.search(line):
            yield number, "no emoji"
        if line.startswith(">"):
            continue
        plain = re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)", "x", line)
        plain = re.sub(r"^((?:[-*]|\d+\.) )?\*\*[^*]*\*\*", "x", plain)  # a bold lead-in
        for match in SENTENCE_END.finditer(plain):
            if not ABBREVIATION.search(plain[: match.start() + 1]) and not re.match(r"^\d+\.", plain[: match.end()]):
                yield number, f"one sentence a line: a second one after {plain[max(0, match.end() - 20):match.end()]!r}"
                break
        after = lines.get(number + 1, "")
        goes_on = line and after and not re.match(r"[-*>] |\d+\. ", line) and not re.match(r"[-*>] |\d+\. ", after)
        if goes_on and not line.startswith("![") and not FULL.search(line):
            yield number, "a sentence stays on one line"


def quotes(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """A block quote is the paper's, word for word as in book/paper.json."""
    record = root / "book" / "paper.json"
    if not record.exists():
        return
    kept = [letters(s) for s in flatten(json.loads(record.read_text(encoding="utf-8")).get("sentences", {}))]
    block, start = [], 0
    for number, line in [*text_lines(chapter), (0, "")]:
        if line.startswith(">"):
            start = start or number
            block.append(line.lstrip("> "))
            continue
        said = PLACE_IN_PAPER.sub("", " ".join(block))
        if block and not any(letters(said) and letters(said) in sentence for sentence in kept):
            yield start, f"a block quote is the paper's: not in book/paper.json: {said.strip()[:60]!r}"
        block, start = [], 0


def flatten(node) -> list[str]:
    if isinstance(node, dict | list):
        return [s for v in (node.values() if isinstance(node, dict) else node) for s in flatten(v)]
    return [node] if isinstance(node, str) else []


def letters(text: str) -> str:
    """A text without markup, spaces and punctuation, for comparing $d_k$ with d_k."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\\(?:mathrm|text|mathit|operatorname|quad)\b", "", text).lower())


def margins(chapter: Chapter, root: Path) -> Iterator[Problem]:
    for match in re.finditer(r"^(:{3,}|`{3,})\{margin\}.*?\n(.*?)^\1\s*$", chapter.text, re.MULTILINE | re.DOTALL):
        if (n := len(match[2].split())) > MARGIN:
            yield line_at(chapter, match.start()), f"a margin note of {n} words, {MARGIN} are allowed"


def line_at(chapter: Chapter, position: int) -> int:
    return chapter.text.count("\n", 0, position) + 1


# ---- cells


def length(cell: Cell) -> int:
    """Lines of code: no blank lines, comments or docstrings."""
    try:
        whole = ast.Module(cell.tree.body, [])
        whole.lineno, whole.end_lineno = 1, len(cell.source.splitlines())
        return code_lines(cell, whole)
    except SyntaxError:
        return len(cell.source.splitlines())


def cells(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """Short cells of plain Python; a folded cell or one with a class may be longer."""
    for cell in chapter.code():
        for number, line in enumerate(cell.source.splitlines(), cell.line):
            if re.match(r"\s*[%!]", line):
                yield number, "no magics: the notebook also runs as a script"
        try:
            has_class = any(isinstance(n, ast.ClassDef) for n in cell.tree.body)
        except SyntaxError as error:
            yield cell.line + (error.lineno or 1) - 1, f"not Python: {error.msg}"
            continue
        folded = {"hide-input", "hide-cell", "remove-cell", "remove-input"} & set(cell.tags)
        if (n := length(cell)) > LONGEST and not has_class and not folded:
            yield cell.line, f"a cell of {n} lines, {LONGEST} are allowed"
    lengths = [length(c) for c in chapter.code()]
    if lengths and not chapter.appendix and (m := statistics.median(lengths)) > MEDIAN:
        yield 1, f"half of the cells have {m:g} lines or more, {MEDIAN} are allowed"


def figures(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """A figure has alternative text and a caption."""
    for cell in chapter.code():
        if "plt.show()" in cell.source:
            shown = cell.metadata.get("mystnb", {})
            if not shown.get("image", {}).get("alt"):
                yield cell.line, "a figure without alternative text (mystnb: image: alt)"
            if not shown.get("figure", {}).get("caption"):
                yield cell.line, "a figure without a caption (mystnb: figure: caption)"
    for match in re.finditer(r"!\[\s*\]\(", chapter.text):
        yield line_at(chapter, match.start()), "an image without alternative text"


def run_here(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """Every exported public name is used in another cell of its chapter."""
    names, used = {}, []
    for cell in chapter.code():
        try:
            body = cell.tree.body
        except SyntaxError:
            continue
        used.append((cell, {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name)}))
        if "export" in cell.tags and len(body) == 1 and not isinstance(body[0], ast.Import | ast.ImportFrom):
            try:
                names[name_of(body[0])] = cell
            except AttributeError:
                continue  # tangling refuses it
    for name, cell in names.items():
        if not name.startswith("_") and not any(name in ids for other, ids in used if other is not cell):
            yield cell.line, f"{name} is exported and never used in its chapter"


# ---- exercises, tables


def exercises(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """Three exercises, each with a stub, a check, a wrong answer and a solution that is checked."""
    if not chapter.front.get("paper") and "## Exercises" not in chapter.text:
        return
    numbers = re.findall(r"^### Exercise (\d+)\b", chapter.text, re.MULTILINE)
    if numbers != ["1", "2", "3"]:
        yield 1, f"exercises 1, 2 and 3 are wanted, there are: {', '.join(numbers) or 'none'}"
    found = parts(chapter)
    for n in map(int, numbers):
        for what in ("stub", "check", "wrong", "solution"):
            if not found[what].get(n):
                yield 1, f"exercise {n} has no {what}"
    for cell in chapter.code("solution"):
        if "hide-cell" not in cell.tags:
            yield cell.line, "a solution is also tagged `hide-cell`"


def parts(chapter: Chapter) -> dict[str, dict[int, list[str]]]:
    """Stubs, checks, wrong answers and solutions by the number of their exercise."""
    found: dict[str, dict[int, list[str]]] = {"stub": {}, "check": {}, "wrong": {}, "solution": {}}
    block = r"^```python\n# exercise (\d+): (your answer|a wrong answer)[^\n]*\n(.*?)^```\s*$"
    for number, what, source in re.findall(block, chapter.text, re.MULTILINE | re.DOTALL):
        found["stub" if what == "your answer" else "wrong"].setdefault(int(number), []).append(source)
    for what, pattern in (("check", r"^def check_(\d+)\("), ("solution", r"^check_(\d+)\(")):
        for cell in chapter.code(what):
            for number in dict.fromkeys(re.findall(pattern, cell.source, re.MULTILINE)):
                found[what].setdefault(int(number), []).append(cell.source)
    return found


def symbols(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """The symbols of the chapter's tables stand in appendix A; a displayed equation has such a table."""
    notation = root / "book" / "A-notation.md"
    lines = chapter.text.splitlines()
    headers = [n for n, line in enumerate(lines) if line.strip() == SYMBOLS]
    if not headers and re.search(r"^(\$\$|`{3,}\{math\})", chapter.text, re.MULTILINE):
        yield 1, f"an equation, but no table with the header {SYMBOLS}"
    known = first_column(notation.read_text(encoding="utf-8").splitlines()) if notation.exists() else None
    for start in headers:
        for number in range(start + 2, len(lines)):
            if not lines[number].startswith("|"):
                break
            for symbol in column(lines[number]):
                if known is not None and symbol not in known:
                    yield number + 1, f"{symbol} is not in book/A-notation.md"


def column(row: str) -> list[str]:
    """The symbols in the first cell of a table's row, without markup."""
    cell = re.split(r"(?<!\\)\|", row)[1]
    cell = re.sub(r"\\(?:mathrm|text|mathit|operatorname|mathbf)\{([^}]*)\}", r"\1", cell)
    items = re.split(r",(?![^({\[]*[)}\]])", cell)
    return [s for item in items if (s := re.sub(r"[\s$`{}]", "", item))]


def first_column(lines: list[str]) -> set[str]:
    return {s for line in lines if line.startswith("|") and not line.startswith("|-") for s in column(line)}


def tables(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """The table of choices and the statements can be collected."""
    try:
        if f"## {SECTIONS[1]}" in chapter.text and not rows(chapter):
            yield 1, f"no rows under {HEADER}"
        statements(chapter)
    except Refused as error:
        _, line, message = str(error).split(":", 2)
        yield int(line), message.strip()


# ---- the machine, the page


def machine(chapter: Chapter, root: Path) -> Iterator[Problem]:
    for number, line in enumerate(chapter.text.splitlines(), 1):
        if PLACES.search(line):
            yield number, f"an absolute path: {PLACES.search(line)[0]}..."
        if REGISTRY.search(line):
            yield number, "no word of a package registry"


def fences(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """A cell inside a directive would tear it apart."""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        open_at = []
        for number, line in enumerate(cell.source.splitlines(), cell.line):
            if re.match(r":{3,}\{", line):
                open_at.append(number)
            elif re.match(r":{3,}\s*$", line) and open_at:
                open_at.pop()
        if open_at:
            yield open_at[0], "a directive that is not closed before the next cell"


def outputs(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """At most 15 lines of text under a cell, in the notebook as it was woven."""
    path = root / "notebooks" / f"{chapter.stem}.ipynb"
    if not path.exists():
        return
    notebook = nbformat.read(path, as_version=4)
    ran = [c for c in notebook.cells if c.cell_type == "code" and "launch" not in c.metadata.get("tags", [])]
    for cell, node in zip(chapter.code(), ran):
        lines = 0
        for output in node.outputs:
            data = output.get("data", {})
            rich = any(k.startswith("image/") or k == "text/html" for k in data)
            text = output.get("text") or ("" if rich else data.get("text/plain", ""))
            lines += len(text.splitlines())
        if lines > OUTPUT and not {"hide-cell", "hide-output", "remove-output"} & set(cell.tags):
            yield cell.line, f"{lines} lines of output, {OUTPUT} are allowed"


def advice(chapter: Chapter) -> Iterator[str]:
    """What is worth knowing and no fault."""
    words = sum(len(line.split()) for _, line in text_lines(chapter))
    ratio = words / max(1, sum(length(c) for c in chapter.code()))
    if not WORDS[0] <= ratio <= WORDS[1]:
        yield f"{ratio:.1f} words for a line of code, {WORDS[0]} to {WORDS[1]} are usual"
    shown = [c for c in chapter.code() if not {"hide-input", "hide-cell"} & set(c.tags)]
    if wide := [n for c in shown for n, line in enumerate(c.source.splitlines(), c.line) if len(line) > WIDTH]:
        yield f"{len(wide)} shown lines of code over {WIDTH} columns, the first on line {wide[0]}"


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Check the chapters' form.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="02 or book/02-attention.md; all by default")
    parser.add_argument("--drafts", action="store_true", help="show the remarks on drafts too")
    args = parser.parse_args(argv)
    failed, drafts, remarks = False, 0, 0
    for path in chosen(args.chapters, root):
        try:
            chapter = read(path)
            found = check(chapter, root) + sorted(outputs(chapter, root))
        except Refused as error:
            print(error)
            failed = True
            continue
        drafts += chapter.draft
        if chapter.draft:
            remarks += len(found)
        else:
            failed |= bool(found)
            for text in advice(chapter):
                print(f"{chapter.name}: warning: {text}")
        if args.drafts or not chapter.draft:
            for line, message in found:
                print(f"{chapter.name}:{line}: {message}" + (" (draft)" if chapter.draft else ""))
    if drafts:
        print(f"layout: {drafts} drafts, {remarks} remarks on them (tools/layout.py --drafts shows them)")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
