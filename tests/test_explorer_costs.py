"""The explorer of chapter 16: operations, waiting and paths are those that the chapter counts, and those of Table 1."""

import json
import math
import random
import re
from functools import partial

import pytest
import torch
from explore import node, rest, with_browser, with_node
from tangle import ROOT
from test_comparison import repeated
from torch import nn

from annotated.attention import scaled_dot_product_attention
from annotated.comparison import (
    Convolution,
    Recurrent,
    _longest_chain,
    _table_layers,
    multiplications,
    path_length,
    restricted_attention,
    separable_convolution,
)
from annotated.masks import causal_mask

TABLE_1 = json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))["table_1"]
NAMES = list(multiplications(1, 1))
START = {"n": 64, "d": 512, "k": 3, "r": 9}


def settings(count, largest=5000):
    chance = random.Random(0)
    for _ in range(count):
        n, d = (round(2 ** chance.uniform(1, math.log2(largest))) for _ in "nd")
        yield {"n": n, "d": d, "k": chance.randrange(3, 33, 2), "r": chance.randrange(3, 1027, 2)}


def value(term, n, k, r, d):
    "What the paper writes inside an O( ), such as k n d^2, as a number."
    if term == "log_k n":
        return math.log(n) / math.log(k)
    assert re.fullmatch(r"[nkrd1 ^2/]+", term), term
    return eval(re.sub(r"(?<=[\w)]) (?=\w)", " * ", term.replace("^", "**")), {}, {"n": n, "k": k, "r": r, "d": d})


@with_node
def test_operations_are_the_chapters():
    assert node("costs", "it.NAMES") == NAMES
    asked = list(settings(400))
    for sizes, now in zip(asked, node("costs", "x.map((sizes) => it.counted(sizes))", asked), strict=True):
        assert now["operations"] == list(multiplications(**sizes).values())


@with_node
def test_waiting_is_what_the_gradients_graph_shows():
    asked = [{"n": n, "d": 8, "k": 3, "r": 5} for n in (5, 8, 16)]
    for sizes, now in zip(asked, node("costs", "x.map((sizes) => it.counted(sizes))", asked), strict=True):
        x = torch.randn(1, sizes["n"], 8, requires_grad=True)
        assert now["sequential"] == [_longest_chain(layer(x)) for layer in _table_layers(8, k=3, r=5).values()]


def stacks(k, r):
    "Name -> stack of the layer, as the chapter's experiment builds it."
    def convolutions(growth):
        return lambda depth: nn.Sequential(*(Convolution(4, k, growth**i) for i in range(depth))).double()

    return {
        "self-attention": repeated(lambda x: scaled_dot_product_attention(x, x, x)),
        "recurrent": lambda depth: partial(Recurrent(4).double().rounds, count=depth),
        "convolutional": convolutions(1),
        "convolutional (dilated)": convolutions((k + 1) // 2),
        "convolutional (separable)": lambda depth: nn.Sequential(*(separable_convolution(4, k) for _ in range(depth))).double(),
        "self-attention (restricted)": repeated(lambda x: restricted_attention(x, x, x, r=r)),
    }


@with_node
def test_paths_are_those_of_stacks_that_were_built():
    torch.manual_seed(0)
    asked = [{"n": n, "d": 4, "k": k, "r": r} for n, k, r in ((2, 3, 3), (5, 3, 5), (9, 3, 7), (10, 5, 9), (17, 7, 5))]
    for sizes, now in zip(asked, node("costs", "x.map((sizes) => it.counted(sizes))", asked), strict=True):
        n = sizes["n"]
        for name, path in zip(NAMES, now["path"], strict=True):
            pairs = causal_mask(n) if name == "recurrent" else None
            assert path == path_length(stacks(sizes["k"], sizes["r"])[name], n, 4, pairs), (name, sizes)


@with_node
def test_the_other_kind_of_numbers_is_table_1():
    rows = {row["layer"]: row for row in TABLE_1}
    rows["convolutional (dilated)"] = rows["convolutional"]  # whose path the table states; the others are in the text of section 4
    rows["convolutional"] = rows["convolutional"] | {"path": "n/k"}
    rows["convolutional (separable)"] = {"complexity": "k n d + n d^2", "sequential": "1", "path": "n/k"}
    asked = list(settings(100))
    for sizes, now in zip(asked, node("costs", "x.map((sizes) => it.published(sizes))", asked), strict=True):
        for i, name in enumerate(NAMES):
            for key, column in (("operations", "complexity"), ("sequential", "sequential"), ("path", "path")):
                wanted = sum(value(term, **sizes) for term in rows[name][column].split(" + "))
                assert math.isclose(now[key][i], wanted, rel_tol=1e-12), (name, key)


@with_node
def test_at_a_ring_two_layers_cost_the_same():
    asked = [sizes for sizes in settings(200) if sizes["d"] % 2 == 0]
    for kind in ("counted", "published"):
        for i in range(1, len(NAMES)):
            there = f"x.map((sizes) => {{ const n = it.{kind}(sizes).level[{i}]; return it.{kind}({{ ...sizes, n }}).operations; }})"
            for operations in node("costs", there, asked):
                assert math.isclose(operations[0], operations[i], rel_tol=1e-12), (kind, NAMES[i])


# ---- in the page


def rows(page):
    rest(page)
    out = {}
    for row in page.locator(".readings tbody tr").all():
        name, *_ = row.locator(".layer").inner_text().split("\n")
        out[name] = row.locator("td").all_inner_texts()
    return out


def shown(x):
    if x < 1e6:
        return f"{x:,.0f}"
    front, power = f"{x:.2e}".split("e")
    return f"{front} · 10{str(int(power)).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def operations(page):
    return {name: cells[0] for name, cells in rows(page).items()}


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_it_starts_with_base_and_follows_its_sliders(alive, width):
    page, sizes = alive("costs", width), dict(START)
    expected = {name: shown(count) for name, count in multiplications(**sizes).items()}
    assert operations(page) == expected
    assert rows(page)["recurrent"][1:] == ["64", "64"] and rows(page)["convolutional (dilated)"][1:] == ["1", "6"]
    assert rows(page)["self-attention (restricted)"][2] == "16"
    for label, name, after in (("n, words", "n", 96), ("d, width", "d", 768), ("k, kernel", "k", 5), ("r, positions", "r", 17)):
        page.get_by_label(label).press("ArrowRight")
        sizes[name] = after
        assert operations(page) == {name: shown(count) for name, count in multiplications(**sizes).items()}
    assert "ring at n = 4d = 3,072" in page.locator(".layer").nth(1).inner_text()
    least = min(multiplications(**sizes).items(), key=lambda item: item[1])
    assert page.locator(".readings strong").all_inner_texts() == [shown(least[1])]
    assert page.locator(".told").inner_text().startswith(f"Fewest operations: {least[0]}, {shown(least[1])}")
    page.get_by_label("counted here").press("ArrowRight")  # to the other button
    assert operations(page)["self-attention"] == shown(96 * 96 * 768)
    assert rows(page)["self-attention (restricted)"][1:] == ["1", f"{96 / 17:.1f}"]
    assert "ring at n = d = 768" in page.locator(".layer").nth(1).inner_text()


@with_browser
def test_the_three_words_of_the_chapter_can_be_counted(alive):
    page = alive("costs", 360)
    page.get_by_label("d, width").press("Home")
    page.get_by_label("n, words").press("Home")
    page.get_by_label("n, words").press("ArrowRight")
    assert operations(page)["self-attention"] == "36"  # as the chapter's first cell says; its simple recurrent layer has 24
    page.get_by_label("counted here").press("ArrowRight")
    assert operations(page)["recurrent"] == "12"


@with_browser
def test_rings_lie_where_two_curves_meet(alive):
    page = alive("costs", 1280)
    gaps = page.evaluate("""() => {
      const [self, ...others] = [...document.querySelectorAll('svg.drawing:not(.swatch) g ~ path.wire:not(:nth-child(2))')];
      const at = (curve, x) => {
        let low = 0, high = curve.getTotalLength();
        while (high - low > .01) { const m = (low + high) / 2; if (curve.getPointAtLength(m).x < x) low = m; else high = m; }
        return curve.getPointAtLength(low).y;
      };
      return [...document.querySelectorAll('svg.drawing .ring')].map((ring) => {
        const x = Number(ring.getAttribute('cx')), y = Number(ring.getAttribute('cy'));
        return [Math.abs(at(self, x) - y), Math.min(...others.map((one) => Math.abs(at(one, x) - y)))];
      });
    }""")
    assert len(gaps) == 5 and all(gap < 1 for pair in gaps for gap in pair)
