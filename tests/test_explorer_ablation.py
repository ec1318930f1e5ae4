"""The explorer of chapter 17: its rows are the record's and the paper's, its interval and its verdicts the chapter's."""

import html
import json
import math
import random
import statistics

import annotated_explorers
import pytest
from drawing.evidence import paired_rows
from explore import node, rest, with_browser, with_node
from rows import complete
from tangle import ROOT

from annotated.variations import TABLE_3, _mean_interval

DATA = annotated_explorers.table_3()
PAPER = dict(zip(TABLE_3, json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))["table_3"], strict=True))
KEYS = {"ppl": "perplexity", "bleu": "bleu"}


def compared(key):
    "Row -> the paper's difference from base, ours by seed, our mean, and what it shows; from the record itself."
    found, form = complete(ROOT), math.log if key == "ppl" else float
    ours = {name: [run[KEYS[key]] for run in found[name]] for name in TABLE_3 if name in found}
    out = {}
    for name, values in ours.items():
        seeds = [form(value) - form(base) for value, base in zip(values, ours["base"], strict=True)]
        low, high = _mean_interval(seeds)
        above = "worse" if key == "ppl" else "better"
        below = "better" if key == "ppl" else "worse"
        shown = "" if name == "base" else above if low > 0 else below if high < 0 else "undecided"
        theirs = form(PAPER[name][key]) - form(PAPER["base"][key])
        out[name] = theirs, seeds, statistics.mean(values), shown
    return out


def test_the_pages_numbers_are_the_records_and_the_papers():
    found = complete(ROOT)
    assert [row["name"] for row in DATA["rows"]] == [name for name in TABLE_3 if name in found]
    for row in DATA["rows"]:
        for key, what in KEYS.items():
            assert row["ours"][key] == [run[what] for run in found[row["name"]]]
            assert row["paper"][key] == PAPER[row["name"]][key]
        assert row["group"] == PAPER[row["name"]]["row"]


def test_the_drawing_and_the_page_have_the_same_rows():
    assert paired_rows() == {row["name"]: row["ours"]["ppl"] for row in DATA["rows"]}


def record_of(root, runs):
    "A record with these runs: pairs of a row and a seed, their perplexities 10 and the seed."
    folder = root / "results" / "17-norm-first" / "runs"
    folder.mkdir(parents=True)
    for row, seed in runs:
        run = {"row": row, "recipe": {"seed": seed}, "perplexity": 10.0 + seed, "bleu": 20.0 + seed}
        (folder / f"{row.replace(' ', '-')}-{seed}.json").write_text(json.dumps(run))
    for file in ("book/paper.json", "annotated/variations.py"):
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).write_text((ROOT / file).read_text(encoding="utf-8"), encoding="utf-8")


def test_a_row_is_compared_in_the_first_three_seeds_of_base_and_left_out_where_it_lacks_one(tmp_path):
    seeds = {"base": (0, 2, 1, 10), "A h=1": (0, 1), "A h=32": (2, 5, 1, 0), "B d_k=16": (0, 1, 3), "E learned": (1, 0, 2), "positions": (0, 1, 2)}
    record_of(tmp_path, [(row, seed) for row, its in seeds.items() for seed in its])
    found = complete(tmp_path)
    assert {row: [run["perplexity"] for run in made] for row, made in found.items()} == dict.fromkeys(
        ["base", "A h=32", "E learned", "positions"], [10, 11, 12])
    rows = annotated_explorers.table_3(tmp_path)["rows"]
    assert [(row["name"], row["ours"]["bleu"]) for row in rows] == [(name, [20, 21, 22]) for name in ("base", "A h=32", "E learned")]


def test_a_page_with_the_element_gets_the_numbers():
    class App:
        added = []

        def add_js_file(self, name, **more):
            self.added.append(name)
            assert more == {"loading_method": "defer"}

        def add_css_file(self, name):
            self.added.append(name)

    context = {"body": "<p>x</p><annotated-ablation>\n<p>still</p></annotated-ablation>"}
    annotated_explorers.add(App(), "page", "", context, None)
    start = context["body"].split('data-numbers="')[1].split('"')[0]
    assert json.loads(html.unescape(start)) == DATA
    assert App.added == ["explorers/shared.js", "explorers/ablation.js", "explorers/explorers.css"]


@with_node
def test_the_interval_is_the_chapters():
    chance = random.Random(0)
    asked = [[chance.gauss(20, 3) for _ in range(chance.randrange(2, 12))] for _ in range(200)]
    made = node("ablation", "x.values.map((values) => it.interval(values, x.t))", {"values": asked, "t": DATA["t"]})
    for values, ends in zip(asked, made, strict=True):
        assert ends == pytest.approx(_mean_interval(values), rel=1e-12)


@with_node
@pytest.mark.parametrize("key", KEYS)
def test_differences_and_verdicts_are_the_chapters(key):
    made = node("ablation", f"it.compare(x, '{key}')", DATA)
    expected = compared(key)
    assert [row["name"] for row in made] == list(expected)
    for row in made:
        theirs, seeds, mean, shown = expected[row["name"]]
        assert [row["paper"], row["value"], *row["seeds"]] == pytest.approx([theirs, mean, *seeds], rel=1e-9, abs=1e-12)
        assert row["ends"] == pytest.approx(_mean_interval(seeds), rel=1e-9, abs=1e-12)
        assert row["shown"] == shown


@pytest.fixture
def element(alive):
    return lambda width: alive("ablation", width, attributes=f'data-numbers="{html.escape(json.dumps(DATA))}"')


def rows(page):
    out = {}
    for row in page.locator(".readings tbody tr").all():
        name, verdict = row.locator(".layer").inner_text().split("\n")
        out[name] = [verdict.removeprefix("ours: "), *row.locator("td").all_inner_texts()]
    return out


def signed(x):
    text = f"{x:+.2f}".replace("-", "−")
    return text[1:] if float(text[1:]) == 0 else text


def lines(key, names):
    expected = compared(key)
    digits = 2 if key == "ppl" else 1
    seeds = f"{len(complete(ROOT)['base'])} seeds"

    def verdict(theirs, shown):
        if shown in ("", "undecided"):
            return shown or seeds
        if theirs == 0:
            return f"{shown}, equal in the paper"
        same = (theirs > 0) == ((key == "bleu") == (shown == "better"))
        return f"{shown}, {'as in' if same else 'unlike'} the paper"

    return {
        name: [verdict(theirs, shown), f"{PAPER[name][key]:.{digits}f}", signed(theirs), f"{mean:.{digits}f}", signed(statistics.mean(seeds))]
        for name, (theirs, seeds, mean, shown) in expected.items() if name in names
    }


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_it_starts_with_all_rows_and_shows_those_that_are_chosen(element, width):
    page = element(width)
    assert list(rows(page).items()) == list(lines("ppl", list(compared("ppl"))).items())
    page.get_by_role("radio", name="perplexity", exact=True).press("ArrowRight")
    assert rows(page) == lines("bleu", list(TABLE_3))
    for group in sorted({row["group"] for row in DATA["rows"]} - {"base"}):
        page.get_by_role("radio", name=group, exact=True).check()
        assert rows(page) == lines("bleu", ["base", *(name for name in TABLE_3 if name.startswith(group))])
    page.get_by_role("radio", name="all", exact=True).check()
    page.get_by_role("radio", name="Table 3's", exact=True).press("ArrowRight")
    expected = compared("bleu")
    order = sorted([name for name in expected if name != "base"], key=lambda name: expected[name][0])
    assert list(rows(page)) == ["base", *order]
    page.get_by_role("radio", name="the paper's", exact=True).press("ArrowRight")
    assert list(rows(page)) == ["base", *sorted(order, key=lambda name: statistics.mean(expected[name][1]))]
    count = [sum(shown == word for *_, shown in expected.values()) for word in ("better", "worse", "undecided")]
    told = "Rows all by BLEU: ours are better than base in {}, worse in {}, undecided in {}".format(*count)
    rest(page)
    assert page.locator(".told").inner_text() == told


@with_browser
def test_dots_lie_where_the_axis_says_and_the_interval_of_what_is_undecided_holds_0(element):
    page = element(1280)
    page.wait_for_function("n => document.querySelectorAll('svg.drawing circle.box').length === n", arg=len(DATA["rows"]) - 1)
    drawn = page.evaluate("""() => {
      const all = (what) => [...document.querySelectorAll(`svg.drawing ${what}`)];
      const number = (name) => (e) => Number(e.getAttribute(name));
      return { ours: all("circle.dot").map(number("cx")), paper: all("circle.box").map(number("cx")),
               ends: all("rect.block").map((e) => [number("x")(e), number("x")(e) + number("width")(e)]),
               zero: Number(/^M([\\d.]+) /.exec(all("path.dash")[0].getAttribute("d"))[1]) };
    }""")
    others = [row for name, row in compared("ppl").items() if name != "base"]
    (least, *_), (most, *_) = (choose(others, key=lambda row: row[0]) for choose in (min, max))
    scale = (max(drawn["paper"]) - min(drawn["paper"])) / (most - least)
    place = lambda value: drawn["zero"] + value * scale  # noqa: E731
    assert drawn["paper"] == pytest.approx([place(theirs) for theirs, *_ in others], abs=0.1)
    assert drawn["ours"] == pytest.approx([place(seed) for _, seeds, *_ in others for seed in seeds], abs=0.1)
    for ends, (_, seeds, _, shown) in zip(drawn["ends"], others, strict=True):
        assert ends == pytest.approx([place(end) for end in _mean_interval(seeds)], abs=0.1)
        assert (ends[0] <= drawn["zero"] <= ends[1]) == (shown == "undecided")
