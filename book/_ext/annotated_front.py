"""The front page: minutes, the main line, numbers from records, and where the code answers eight questions.

Nothing of it is typed: minutes are counted by tools/layout.py, numbers are read from results/, lines found by tools/find.py.
"""

import functools
import json
import math
import re
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path

import annotated_api  # which makes tools/ importable
import find
import layout
import yaml
from chapters import paths, read
from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

ROOT = annotated_api.ROOT
log = logging.getLogger(__name__)


# ---------------------------------------------------------------- minutes

@functools.cache
def minutes_of(path: Path, changed: float) -> int:
    "Counted anew when the file changed: a build may follow another in one process."
    return layout.size(read(path)).minutes


def minutes(stem: str) -> int | None:
    "How long a woven page takes to read, without exercises and folded cells; None for other pages."
    path = ROOT / "book" / f"{stem}.md"
    return minutes_of(path, path.stat().st_mtime) if path.exists() else None


def spoken(n: int) -> str:
    "`14 minutes`; from two hours on, `9 hours`."
    return f"{n / 60:.0f} hours" if n >= 115 else f"{n} minute{'s' * (n != 1)}"


class Minutes(SphinxRole):
    "`` {minutes}`the-hour` `` is how long that page takes; `` {minutes}`main line` `` is all chapters."

    def run(self):
        if self.text == "main line":
            return [nodes.Text(spoken(sum(minutes(path.stem) for path in paths(ROOT))))], []
        found = minutes(self.text)
        if found is None:
            return [], [self.inliner.reporter.warning(f"no page {self.text} with minutes", line=self.lineno)]
        return [nodes.Text(spoken(found))], []


OPENING = re.compile(r"(Needed first|May be skipped):$")


def opening(doctree, stem: str) -> bool:
    "Put the minutes before the two lines under a title, and each on a line of its own; whether there are such lines."
    for paragraph in doctree.findall(nodes.paragraph):
        said = [child for child in paragraph.children if child.astext()]  # the parser leaves empty texts between others
        if said and isinstance(said[0], nodes.strong) and said[0].astext() == "Needed first:":
            break
    else:
        return False
    lines = nodes.line_block(classes=["opening"])
    time = nodes.line()
    time += [nodes.strong("", "Takes:"), nodes.Text(f" {spoken(minutes(stem))} to read, exercises apart.")]
    lines += time
    for child in said:
        if isinstance(child, nodes.strong) and OPENING.match(child.astext()):
            lines += nodes.line()
        if isinstance(child, nodes.Text):
            child = nodes.Text(str(child).replace("\n", " "))
        lines[-1] += child
    paragraph.replace_self(lines)
    return True


# ---------------------------------------------------------------- links

def to_page(docname: str, *words: nodes.Node) -> nodes.Node:
    "A link to a page of the book that keeps what is in it, as Sphinx's own does not; `resolve` gives it an address."
    return nodes.inline("", "", *words, classes=["to-page"], page=docname)


def resolve(app, doctree, docname: str) -> None:
    for node in list(doctree.findall(nodes.inline)):
        if "to-page" not in node["classes"]:
            continue
        if node["page"] not in app.env.found_docs:
            log.warning("there is no page %s", node["page"], location=docname)
            continue
        uri = app.builder.get_relative_uri(docname, node["page"])
        node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


# ---------------------------------------------------------------- the main line

def contents() -> list[tuple[str, list[str]]]:
    "The parts of _toc.yml that hold chapters: caption -> stems."
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = {path.stem for path in paths(ROOT)}
    parts = [(part.get("caption", ""), [Path(entry.get("file", "")).name for entry in part["chapters"]]) for part in toc["parts"]]
    kept = [(caption, [stem for stem in stems if stem in chapters]) for caption, stems in parts]
    return [(caption, stems) for caption, stems in kept if stems]


class MainLine(SphinxDirective):
    "`main-line`: the chapters, part by part, each with its minutes."

    def run(self):
        box = nodes.container(classes=["main-line"])
        for caption, stems in contents():
            part = nodes.container(classes=["part"])
            part += nodes.paragraph("", caption, classes=["part-name"])
            rows = nodes.bullet_list(classes=["chapters"])
            for stem in stems:
                chapter = read(ROOT / "book" / f"{stem}.md")
                sign = nodes.inline("", str(int(chapter.number)), classes=["chapter-number"])
                link = to_page(f"notebooks/{stem}", sign, nodes.Text(chapter.title))
                time = nodes.inline("", f"{minutes(stem)} min", classes=["time"])
                rows += nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(" "), time))
            part += rows
            box += part
        return [box]


# ---------------------------------------------------------------- numbers from records

def record(name: str, file: str):
    return json.loads((ROOT / "results" / name / file).read_text(encoding="utf-8"))


def logged(name: str) -> list[dict]:
    "The lines of a record's log."
    return [json.loads(line) for line in (ROOT / "results" / name / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def seconds(name: str) -> float:
    "How long a record's training took."
    return max(line.get("seconds", 0) for line in logged(name))


TRANSLATOR = "tatoeba-en-de"
MULTI30K = "multi30k-diverse-tok"  # and the seed
PLAIN = "multi30k-hour-tok"  # the same recipe without teachers


def cores(name: str) -> str:
    "On how many a record's training ran."
    count = record(name, "run.json")["machine"]["threads"]
    return {1: "one core", 2: "two cores"}.get(count, f"{count} cores")


def with_teachers(name: str) -> float:
    "The seconds of a core for a training and for those whose translations it reads; searches included."
    run, scores = record(name, "run.json"), record(name, "scores.json")
    own, teachers = scores["seconds in all"], [made for made in scores["teachers"].values() if isinstance(made, dict)]
    if all("seconds in all" in made for made in teachers):
        return own + sum(made["seconds in all"] for made in teachers)
    # An older record: there were two, made side by side.
    whole = datetime.fromisoformat(run["ended"]) - datetime.fromisoformat(run["date"])
    return 2 * (whole.total_seconds() - own) + own


def numbers() -> list[tuple[str, str, str]]:
    "Three results of records: the number, what it is, and the page that says more."
    hour = record("hour", "scores.json")["seeds"]
    worst = min(hour, key=lambda row: row["exact"])
    longest = round(max(row["seconds"] for row in hour), -1)
    tatoeba = record(TRANSLATOR, "scores.json")
    names = [path.parent.name for path in sorted((ROOT / "results").glob(f"{MULTI30K}-*/scores.json"))]
    seeds = [record(name, "scores.json") for name in names]
    bleu, spent = [row["bleu"] for row in seeds], max(map(with_teachers, names)) / 3600
    plain = statistics.mean(record(f"{PLAIN}-{seed}", "scores.json")["bleu"] for seed in (1, 2, 3))
    spread = f", deviation {statistics.stdev(bleu):.2f}" if len(bleu) > 1 else ""
    same = max(Counter(json.dumps(row["teachers"], sort_keys=True) for row in seeds).values())
    shared = f" ({same} of the seeds share theirs)" if same > 1 else ""
    published = json.loads((ROOT / "book/paper.json").read_text(encoding="utf-8"))["multi30k_text_only"]["bleu"]
    return [
        (f"{worst['exact']} of {worst['sentences']}",
         f"new sentences translated exactly by the hour's model, trained for {longest:.0f} seconds of one core's time;"
         f" the worst of {len(hour)} runs",
         "notebooks/the-hour"),
        (f"{tatoeba['bleu']:.1f} BLEU",
         f"on {tatoeba['sentences']:,} new English sentences of Tatoeba into German, after {seconds(TRANSLATOR) / 60:.0f} minutes of training on {cores(TRANSLATOR)}, a single run",
         "notebooks/13-command-line"),
        (f"{statistics.mean(bleu):.2f} BLEU",
         f"on the {seeds[0]['sentences']:,} captions of Multi30k's test set, lower-cased and tokenised: mean of {len(bleu)} seeds{spread}, each also taught by two other models{shared},"
         f" at most {spent:.1f} hours on one core in all; {plain:.1f} without such teachers; the published score of a text-only Transformer, a single training run, is {published:.2f}",
         "notebooks/12-evaluation-questions"),  # which has this record
    ]


class Records(SphinxDirective):
    "`record-numbers`: what `numbers` finds, each a link."

    def run(self):
        box = nodes.container(classes=["numbers"])
        for number, words, page in numbers():
            link = to_page(page, nodes.strong("", number))
            box += nodes.paragraph("", "", link, nodes.Text(f" {words}"))
        return [box]


# ---------------------------------------------------------------- the translator

FIRST = ("Can you tell me what you saw yesterday?", "Kannst du mir sagen, was du gestern gesehen hast?")  # the still's


def shapes(name: str) -> list[list[int]]:
    "The shapes of a model's tensors, from the head of its file."
    with (ROOT / "results" / name / "model.safetensors").open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return [entry["shape"] for key, entry in head.items() if key != "__metadata__"]


def fetched(name: str) -> float:
    """Megabytes of a model in a page: a byte for each weight of a matrix, four for a scale or a bias, in base64, which adds
    a third; and the pieces of its vocabulary, which take about six tenths of their file."""
    content = sum(math.prod(shape) + 4 * shape[0] if len(shape) == 2 else 4 * shape[0] for shape in shapes(name))
    pieces = (ROOT / "results" / name / "subwords.model").stat().st_size
    return (content * 4 / 3 + 0.6 * pieces) / 1e6


def examples() -> list[dict]:
    "Sentences to click: the still's, then those of the record, from its best output to its worst."
    ranked = record(TRANSLATOR, "examples.json")
    better = [int(re.search(r"better than (\d+) %", row["rank"])[1]) for row in ranked]
    rows = [{"source": row["source"], "reference": row["reference"], "fails": share <= 50} for row, share in zip(ranked, better)]
    return [{"source": FIRST[0]}, *rows]  # which is of no test set: it has no rank


def facts() -> str:
    "What the translator is, in a paragraph of numbers from records."
    told = record(TRANSLATOR, "run.json")
    tokens = sum(line.get("tokens", 0) for line in logged(TRANSLATOR)) / 1e6
    count = sum(math.prod(shape) for shape in shapes(TRANSLATOR)) / 1e6
    return (
        f"{count:.1f} million weights, {fetched(TRANSLATOR):.1f} MB, fetched when you first touch it; then everything is"
        f" computed in this page. Trained for {seconds(TRANSLATOR) / 60:.0f} minutes on {cores(TRANSLATOR)}; it read {tokens:.1f} million German tokens, repetitions counted, of everyday sentences:"
        f" {told['data']['licence'].rstrip('.').replace('): ', '; ')}). It reaches {record(TRANSLATOR, 'scores.json')['bleu']:.1f} BLEU,"
        " where 100 is a person's translation to the letter, and often fails: the sentences to click are taken from its best translation to its worst.")


def translator() -> dict[str, str]:
    "What the explorer `translator` is told: its model, the heads, its sentences."
    config = record(TRANSLATOR, "config.json")["config"]
    heads = f"{config.get('N_decoder') or config['N']} {config['h']}"
    return {"model": TRANSLATOR, "heads": heads, "first": FIRST[1], "examples": json.dumps(examples(), ensure_ascii=False)}


class Translator(SphinxDirective):
    "`translator`: the explorer of that name around its still, with its sentences, and what it is in numbers."

    has_content = True

    def run(self):
        still = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, still)
        return [
            nodes.raw("", "<annotated-translator>", format="html"), *still.children,
            nodes.raw("", "</annotated-translator>", format="html"), nodes.paragraph("", facts(), classes=["facts"])]


# ---------------------------------------------------------------- find it fast

def inline(words: str) -> list[nodes.Node]:
    "Text in which `code` is code."
    return [nodes.literal("", part) if i % 2 else nodes.Text(part) for i, part in enumerate(words.split("`"))]


class FindItFast(SphinxDirective):
    "`find-it-fast`: the rows of tools/find.py, each line of code linked in the repository, its cell and its page in the book."

    def run(self):
        table = nodes.table(classes=["find"])
        group = nodes.tgroup(cols=3)
        group += [nodes.colspec(colwidth=width) for width in (30, 40, 30)]
        head, body = nodes.thead(), nodes.tbody()
        head += self.row(*([nodes.Text(words)] for words in ("question", "answer", "where")))
        body += [self.row(inline(row.question), inline(row.answer), self.where(row)) for row in find.ROWS]
        group += [head, body]
        table += group
        return [table]

    def row(self, *cells) -> nodes.row:
        return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))

    def where(self, row: find.Row) -> list[nodes.Node]:
        repository = self.config.html_theme_options["repository_url"]
        out: list[nodes.Node] = []
        for place in row.code:
            module = place.name.split(".")[0]
            n = find.line(place)
            address = f"{repository}/blob/main/annotated/{module}.py#L{n}"
            out += [nodes.reference("", "", nodes.literal("", f"{module}.py:{n}"), refuri=address), nodes.Text(", ")]
        words = "appendix\u00a0" + row.page.split("/")[1][0] if row.page.startswith("book/") else f"chapter\u00a0{int(row.page.split('/')[1][:2])}"
        return [*out, to_page(row.page, nodes.Text(words))]


def setup(app):
    app.add_role("minutes", Minutes())
    app.add_directive("main-line", MainLine)
    app.add_directive("record-numbers", Records)
    app.add_directive("translator", Translator)
    app.add_directive("find-it-fast", FindItFast)
    app.connect("doctree-resolved", resolve)
