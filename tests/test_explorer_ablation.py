"""The explorer of chapter 17: its rows are the record's and the paper's, its interval and its verdicts the chapter's."""

import html
import json
import math
import random
import sys

import pytest
from explore import alive, browser, node, rest, with_browser, with_node  # noqa: F401
from tangle import ROOT

from annotated.variations import TABLE_3, _prediction_interval

sys.path.append(str(ROOT / "book" / "_ext"))
import annotated_explorers  # noqa: E402

DATA = annotated_explorers.table_3()
PAPER = dict(zip(TABLE_3, json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))["table_3"], strict=True))
KEYS = {"ppl": "perplexity", "bleu": "bleu"}


def runs():
    found = {}
    for path in sorted((ROOT / "results" / "17-variations" / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(run["row"], []).append(run)
    return found


def compared(key):
    "Row -> differences of the paper and of ours from base, our mean, and what it shows; from the record itself."
    found, form = runs(), math.log if key == "ppl" else float
    ours = {name: [run[KEYS[key]] for run in found[name]] for name in TABLE_3 if name in found}
    low, high = _prediction_interval(ours["base"])
    zero = sum(map(form, ours["base"])) / len(ours["base"])
    out = {}
    for name, values in ours.items():
        mean = sum(values) / len(values)
        above = "worse" if key == "ppl" else "better"
        below = "better" if key == "ppl" else "worse"
        shown = "" if name == "base" else above if mean > high else below if mean < low else "undecided"
        theirs = form(PAPER[name][key]) - form(PAPER["base"][key])
        out[name] = theirs, sum(map(form, values)) / len(values) - zero, mean, shown
    return out, [form(low) - zero, form(high) - zero]


def test_the_pages_numbers_are_the_records_and_the_papers():
    found = runs()
    assert [row["name"] for row in DATA["rows"]] == [name for name in TABLE_3 if name in found]
    for row in DATA["rows"]:
        for key, what in KEYS.items():
            assert row["ours"][key] == [run[what] for run in found[row["name"]]]
            assert row["paper"][key] == PAPER[row["name"]][key]
        assert row["group"] == PAPER[row["name"]]["row"]


def test_a_page_with_the_element_gets_the_numbers():
    class App:
        added = []

        def add_js_file(self, name, **_):
            self.added.append(name)

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
        assert ends == pytest.approx(_prediction_interval(values), rel=1e-12)


@with_node
@pytest.mark.parametrize("key", KEYS)
def test_differences_and_verdicts_are_the_chapters(key):
    made = node("ablation", f"it.compare(x, '{key}')", DATA)
    expected, band = compared(key)
    assert made["band"] == pytest.approx(band, rel=1e-9)
    assert [row["name"] for row in made["rows"]] == list(expected)
    for row in made["rows"]:
        theirs, ours, mean, shown = expected[row["name"]]
        assert [row["paper"], row["ours"], row["value"]] == pytest.approx([theirs, ours, mean], rel=1e-9, abs=1e-12)
        assert row["shown"] == shown


@pytest.fixture
def element(alive):  # noqa: F811
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
    expected, _ = compared(key)
    digits = 2 if key == "ppl" else 1
    seeds = f"{len(runs()['base'])} seeds"

    def verdict(theirs, shown):
        if shown in ("", "undecided"):
            return shown or seeds
        if theirs == 0:
            return f"{shown}, equal in the paper"
        same = (theirs > 0) == ((key == "bleu") == (shown == "better"))
        return f"{shown}, {'as in' if same else 'unlike'} the paper"

    return {
        name: [verdict(theirs, shown), f"{PAPER[name][key]:.{digits}f}", signed(theirs), f"{mean:.{digits}f}", signed(ours)]
        for name, (theirs, ours, mean, shown) in expected.items() if name in names
    }


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_it_starts_with_the_heads_and_shows_the_rows_that_are_chosen(element, width):
    page = element(width)
    groups = {group: ["base", *(name for name in TABLE_3 if name.startswith(group))] for group in "ABCDE"}
    assert rows(page) == lines("ppl", groups["A"])
    page.get_by_role("radio", name="perplexity", exact=True).press("ArrowRight")
    assert rows(page) == lines("bleu", groups["A"])
    for before, group in zip("ABCD", "BCDE", strict=True):
        page.get_by_role("radio", name=before, exact=True).press("ArrowRight")
        assert rows(page) == lines("bleu", groups[group])
    page.get_by_role("radio", name="E", exact=True).press("ArrowRight")
    assert list(rows(page).items()) == list(lines("bleu", list(TABLE_3)).items())
    page.get_by_role("radio", name="Table 3's", exact=True).press("ArrowRight")
    expected, _ = compared("bleu")
    order = sorted([name for name in expected if name != "base"], key=lambda name: expected[name][0])
    assert list(rows(page)) == ["base", *order]
    page.get_by_role("radio", name="the paper's", exact=True).press("ArrowRight")
    assert list(rows(page)) == ["base", *sorted(order, key=lambda name: expected[name][1])]
    count = [sum(shown == word for *_, shown in expected.values()) for word in ("better", "worse", "undecided")]
    told = "Rows all by BLEU: ours are better than base in {}, worse in {}, undecided in {}".format(*count)
    rest(page)
    assert page.locator(".told").inner_text() == told


@with_browser
def test_dots_lie_where_the_axis_says_and_undecided_ones_in_the_band(element):
    page = element(1280)
    page.get_by_role("radio", name="all", exact=True).check()
    page.wait_for_function("n => document.querySelectorAll('svg.drawing circle.dot').length === n", arg=len(DATA["rows"]) - 1)
    drawn = page.evaluate("""() => {
      const x = (kind) => [...document.querySelectorAll(`svg.drawing circle.${kind}`)].map((e) => Number(e.getAttribute("cx")));
      const band = document.querySelector("svg.drawing .block");
      const [from, wide] = ["x", "width"].map((name) => Number(band.getAttribute(name)));
      return { ours: x("dot"), paper: x("box"), band: [from, from + wide] };
    }""")
    expected, band = compared("ppl")
    scale = (drawn["band"][1] - drawn["band"][0]) / (band[1] - band[0])
    place = lambda value: drawn["band"][0] + (value - band[0]) * scale  # noqa: E731
    others = [row for name, row in expected.items() if name != "base"]
    assert drawn["ours"] == pytest.approx([place(ours) for _, ours, *_ in others], abs=0.1)
    assert drawn["paper"] == pytest.approx([place(theirs) for theirs, *_ in others], abs=0.1)
    for x, (*_, shown) in zip(drawn["ours"], others, strict=True):
        assert (drawn["band"][0] <= x <= drawn["band"][1]) == (shown == "undecided")
