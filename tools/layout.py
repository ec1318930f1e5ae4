"""Check the chapters' form: the rules of CONTRIBUTING.md that a program can see.

    python tools/layout.py [CHAPTER ...]

Prints `book/NN-name.md:LINE: what is wrong` and exits 1; warnings alone do not fail.
"""

import argparse
import ast
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from chapters import QUESTIONS, ROOT, Cell, Chapter, Refused, chapter_of, chosen, headings, paths, read
from collect import GROUPS, HEADER, Question, questions, rows, statements
from tangle import code_lines, name_of

CHOICES, NEXT = "What the paper does not say", "What comes next"
SECTIONS = [CHOICES, "Recap", "Exercises", NEXT]
OPENING = ("**Needed first:** ", "**May be skipped:** ")
LONGEST, MEDIAN, WIDTH, OUTPUT, MARGIN = 25, 10, 100, 15, 40
WORDS, LINES = (2200, 3000), (250, 350)  # of prose and of shown code in a chapter: as a rule, and at most
TOGETHER = {("01", "07"): 14_000, ("00", "21"): 50_000}  # words of prose in all chapters from one to the other
QUESTION, ANSWER = 1200, 40  # words of a question, and of its first sentence, at most
FOLDED = {"hide-input", "hide-cell", "remove-cell", "remove-input", "setup", "check", "solution"}
PROSE_SPEED, CODE_SPEED = 200, 100  # words a minute
SYMBOLS = "| symbol | code | shape |"
PLACES = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|usr|opt|Users|work|mnt|srv)/[\w.-]")
REGISTRY = re.compile(r"--(?:extra-)?index-url|--registry|registry *= *[\"']?https?:|PIP_INDEX_URL|npm_config_registry")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u26ff\u2705\u274c\u2728\ufe0f]")
SPELLINGS = {  # the book's English is British, but for "learned" and "optimizer", which the paper and torch have
    r"learnt\b": "learned",
    r"(?:spelt|spoilt)\b": "spelled, spoiled",
    r"optimiz(?:e|ing|ation)\b": "optimise, optimisation",
    r"\w*(?:normal|initial|general|token|regular|parallel|special|recogn)iz(?:e|ing|ation)": "...ise, ...isation",
    r"(?:color|favor|neighbor|behavior)": "colour, favour, neighbour, behaviour",
    r"(?:center(?!c)|gray|license|label(?:ed|ing)\b)": "centre, grey, licence, labelled",
}
ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|cf|vs|al|Eq|Eqs|Fig|Figs|Sec|No|ca|resp|etc)\.$|\b[A-Z]\.$")
SENTENCE_END = re.compile(r"[.!?][\"')\]*_”]*(?=\s+[A-Z“\"(*_])")
FULL = re.compile(r"[.!?:;,]?[.!?:;][\"')\]*_”]*$")
PLACE_IN_PAPER = re.compile(r"[\s—–(-]*\b(?:[Ss]ections? [\d., and]*\d|Figure \d|[Aa]bstract)(?:, [^.]{0,40})?[.)\s]*$")
Problem = tuple[int, str]


def check(chapter: Chapter, root: Path = ROOT) -> list[Problem]:
    """(line, message) for each rule the chapter breaks."""
    tests = (template, budget, prose, quotes, margins, cells, figures, exercises, symbols, tables, run_here, machine,
             fences)
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
    if not chapter.appendix and not chapter.questions and not isinstance(chapter.front.get("paper"), list):
        yield 1, "no list `paper:` in the front matter"
    first = chapter.cells[0] if chapter.cells else None
    if first is None or first.kind != "markdown" or not first.source.startswith("# "):
        yield 1, "a chapter begins with its title"
    elif chapter.front.get("paper") and not re.search(r"^>", first.source, re.MULTILINE):
        yield first.line, "a block quote of the paper stands before the first cell"
    code = chapter.code()
    if not code or "setup" not in code[0].tags:
        yield code[0].line if code else 1, "the first cell is tagged `setup`"
    if chapter.questions:
        yield from questions_template(chapter)
    elif not chapter.appendix:  # which is no part of the paper: its sections are its own
        yield from sections(chapter)
        yield from opening(chapter)
        yield from asks(chapter)


def sections(chapter: Chapter) -> Iterator[Problem]:
    """What a chapter ends with, in its order."""
    heads = [(n, t) for n, t in headings(chapter) if t in SECTIONS]
    names = [t for _, t in heads]
    for section in SECTIONS:
        if section not in names and not (section == CHOICES and not chapter.front.get("paper")):
            yield 1, f"no section `## {section}`"
    if names != [s for s in SECTIONS if s in names]:
        yield heads[0][0], f"sections out of order: {', '.join(names)}"


def opening(chapter: Chapter) -> Iterator[Problem]:
    """After title and quote, a paragraph of two lines: what is needed first, and what may be skipped."""
    for number, title in headings(chapter):
        if title == "In this chapter":
            yield number, "no section `## In this chapter`: two lines under the title say what is needed"
    first = chapter.cells[0] if chapter.cells else None
    said = [(n, t) for n, t in text_lines(chapter) if first and t and not t.startswith(">") and n >= first.line]
    found = [n for (n, line), start in zip(said, OPENING) if line.startswith(start)]
    if len(found) != 2 or found[1] != found[0] + 1:
        yield said[0][0] if said else 1, f"the text begins with two lines, `{OPENING[0]}...` and `{OPENING[1]}...`"
    elif len(said) > 2 and said[2][0] == said[1][0] + 1:
        yield said[2][0], f"`{OPENING[0]}` and `{OPENING[1]}` are a paragraph by themselves"


def asks(chapter: Chapter) -> Iterator[Problem]:
    """The last section links every question of the chapter's second notebook, and no other."""
    path = chapter.path.with_name(f"{chapter.stem}{QUESTIONS}.md")
    if not path.exists():
        return
    start = next((n for n, title in headings(chapter) if title == NEXT), None)
    if start is None:  # said elsewhere
        return
    linked = re.findall(r"\]\(#?(q-[\w-]+)\)", "\n".join(chapter.text.splitlines()[start:]))
    there = [question.label for question in questions(read(path)) if question.label]
    for label in there:
        if label not in linked:
            yield start, f"`## {NEXT}` does not link the question {label}"
    for label in linked:
        if label not in there:
            yield start, f"`## {NEXT}` links {label}, which is no question of {path.name}"


def questions_template(chapter: Chapter) -> Iterator[Problem]:
    """A chapter's second notebook: every section is a question with a label, a group, and its answer first."""
    if not chapter_of(chapter.path).exists():
        yield 1, f"questions without a chapter: there is no book/{chapter_of(chapter.path).name}"
    for key in ("module", "paper", "lit"):
        if chapter.front.get(key):
            yield 1, f"`{key}:` belongs to the chapter, not to its questions"
    if not chapter.title.startswith("Questions: "):
        yield 1, "the title begins with `Questions: `"
    for cell in chapter.code("export"):
        yield cell.line, "questions export nothing: this stands in the chapter"
    found = questions(chapter)
    if not found:
        yield 1, "a page of questions without a question"
    for question in found:
        for message in faults(question):
            yield question.line, message
        words = sum(len(text.split()) for number, text in text_lines(chapter) if question.line < number < question.end)
        if words > QUESTION:
            yield question.line, f"a question of {words:,} words, {QUESTION:,} are allowed"


def faults(question: Question) -> Iterator[str]:
    """What is wrong with the form of a question."""
    if not question.label:
        yield "a question has a label on the line above, `(q-short-name)=`"
    if not question.title.endswith("?"):
        yield f"a question's heading ends in a question mark: {question.title!r}"
    if question.group is None:
        yield "the line under a question's heading says its group, `<!-- group: why -->`"
    elif question.group not in GROUPS:
        yield f"no group {question.group!r}; there are {', '.join(GROUPS)}"
    if not question.answer:
        yield "a question is answered in its first sentence, before anything else"
    elif (n := len(question.answer.split())) > ANSWER:
        yield f"an answer of {n} words, {ANSWER} are allowed in the first sentence"


# ---- how long it is


@dataclass(frozen=True)
class Size:
    """How much a reader reads: without exercises, and without cells that are folded."""

    words: int  # of prose
    lines: int  # of shown code: no blank lines, comments or docstrings
    code: int  # words of the cells shown, as they stand

    @property
    def minutes(self) -> int:
        """Reading time, at 200 words of prose and 100 words of code a minute."""
        return max(1, round(self.words / PROSE_SPEED + self.code / CODE_SPEED))


def size(chapter: Chapter) -> Size:
    """What the budgets, the minutes on the page and the way points count, and nothing else counts."""
    read_here = outside_exercises(chapter)
    words = sum(len(line.split()) for number, line in text_lines(chapter) if read_here(number))
    shown = [c for c in chapter.code() if read_here(c.line) and not FOLDED & set(c.tags)]
    return Size(words, sum(map(length, shown)), sum(len(c.source.split()) for c in shown))


def outside_exercises(chapter: Chapter) -> Callable[[int], bool]:
    """Whether a line stands outside the section of exercises."""
    heads = [*headings(chapter), (len(chapter.text.splitlines()) + 1, "")]
    spans = [(a, b) for (a, title), (b, _) in zip(heads, heads[1:]) if title == "Exercises"]
    return lambda number: not any(a <= number < b for a, b in spans)


def budget(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """A chapter is short."""
    if chapter.appendix or chapter.questions:
        return
    found = size(chapter)
    if found.words > WORDS[1]:
        yield 1, f"{found.words:,} words, {WORDS[1]:,} are allowed"
    if found.lines > LINES[1]:
        yield 1, f"{found.lines} lines of shown code, {LINES[1]} are allowed"


def together(root: Path) -> Iterator[str]:
    """Chapters that are too long as a whole."""
    found = [(chapter.number, size(chapter).words) for chapter in map(read, paths(root))]
    for (first, last), allowed in TOGETHER.items():
        if (total := sum(words for number, words in found if first <= number <= last)) > allowed:
            yield f"chapters {first} to {last} have {total:,} words together, {allowed:,} are allowed"


def prose(chapter: Chapter, root: Path) -> Iterator[Problem]:
    """One sentence a line, and a sentence on one line; no emoji; links that the built page can follow."""
    lines = dict(text_lines(chapter))
    for number, line in enumerate(chapter.text.splitlines(), 1):
        for name, ending in re.findall(r"\]\(((?:\d\d|[A-Z])-[\w-]+)(\.md|\.ipynb)\b", line):
            yield number, f"a link to another text names it alone: the page finds `{name}`, not `{name}{ending}`"
    for number, title in headings(chapter):
        yield from spelling(number, title)
    for number, line in lines.items():
        if EMOJI.search(line):
            yield number, "no emoji"
        if line.startswith(">"):
            continue
        yield from spelling(number, line)
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


def spelling(number: int, text: str) -> Iterator[Problem]:
    """One spelling throughout; names of code, addresses and citations are not looked at."""
    plain = re.sub(r"`[^`]*`|\{[^}]*\}|\]\([^)]*\)|<[^>]*>|\"[^\"]*\"", "", text)
    plain = re.sub(r"\b\w+[A-Z]\w*", "", plain)  # a class
    for pattern, here in SPELLINGS.items():
        for match in re.finditer(rf"\b{pattern}", plain, re.IGNORECASE):
            yield number, f"the book's spelling is {here}, not {match[0]!r}"


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
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\\(?:mathrm|mathbf|text|mathit|operatorname|quad)\b", "", text).lower())


def margins(chapter: Chapter, root: Path) -> Iterator[Problem]:
    for match in re.finditer(r"^(:{3,}|`{3,})\{margin\}.*?\n(.*?)^\1\s*$", chapter.text, re.MULTILINE | re.DOTALL):
        if (n := len(match[2].split())) > MARGIN:
            yield line_at(chapter, match.start()), f"a margin note of {n} words, {MARGIN} are allowed"


def line_at(chapter: Chapter, position: int) -> int:
    return chapter.text.count("\n", 0, position) + 1


# ---- cells


def length(cell: Cell) -> int:
    """Lines of code: no blank lines, comments or docstrings; of one source counted once."""
    return counted(cell.source)


@cache
def counted(source: str) -> int:
    cell = Cell("code", source, {}, 1, (0, 0))
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
    if lengths and not chapter.appendix and not chapter.questions and (m := statistics.median(lengths)) > MEDIAN:
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
    """Every exported public name is used in another cell of its chapter, or in its questions."""
    names, used = {}, []
    second = chapter.path.with_name(f"{chapter.stem}{QUESTIONS}.md")
    more = read(second).code() if second.exists() and not chapter.appendix else []
    for cell in chapter.code() + more:
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
    if not headers and not chapter.questions and re.search(r"^(\$\$|`{3,}\{math\})", chapter.text, re.MULTILINE):
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
        if f"## {CHOICES}" in chapter.text and not rows(chapter):
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
    found = size(chapter)
    if not chapter.appendix and not chapter.questions:
        if WORDS[0] < found.words <= WORDS[1]:
            yield f"{found.words:,} words, {WORDS[0]:,} are the rule"
        if LINES[0] < found.lines <= LINES[1]:
            yield f"{found.lines} lines of shown code, {LINES[0]} are the rule"
    shown = [c for c in chapter.code() if not {"hide-input", "hide-cell"} & set(c.tags)]
    if wide := [n for c in shown for n, line in enumerate(c.source.splitlines(), c.line) if len(line) > WIDTH]:
        yield f"{len(wide)} shown lines of code over {WIDTH} columns, the first on line {wide[0]}"


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Check the chapters' form.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="02 or book/02-attention.md; all by default")
    args = parser.parse_args(argv)
    failed, broken = False, False
    for path in chosen(args.chapters, root):
        try:
            chapter = read(path)
            found = check(chapter, root) + sorted(outputs(chapter, root))
        except Refused as error:
            print(error)
            failed = broken = True
            continue
        failed |= bool(found)
        for text in advice(chapter):
            print(f"{chapter.name}: warning: {text}")
        for line, message in found:
            print(f"{chapter.name}:{line}: {message}")
    if not args.chapters and not broken:
        for message in together(root):
            print(message)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
