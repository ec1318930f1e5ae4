"""Figures for narrow screens: what is laid out anew, and what stays as it is."""

import io
import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import annotated_figures
import matplotlib.pyplot as plt
import narrow
import pytest
import weave
from chapters import ROOT

STYLE = ROOT / "book/annotated.mplstyle"
MOST = [wide * (1 + narrow.STICKS_OUT) + 0.2 for wide in narrow.WIDTHS]  # with the margin that IPython leaves


@pytest.fixture(autouse=True)
def style():
    "The book's, of figures that go when a test is over."
    with plt.style.context(STYLE), plt.rc_context({"backend": "agg"}):
        yield
        plt.close("all")


def wide_and_narrow(figure) -> tuple[ElementTree.Element, ElementTree.Element]:
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return ElementTree.fromstring(file.getvalue()), ElementTree.fromstring(narrow.narrowed(figure))


def texts(svg) -> list[str]:
    return ["".join(e.itertext()).strip() for e in svg.iter("{http://www.w3.org/2000/svg}text")]


def width(svg) -> float:
    "In inches."
    return float(svg.get("width").removesuffix("pt")) / 72


def sizes(svg) -> set[str]:
    return set(re.findall(r"font-size: [\d.]+px", ElementTree.tostring(svg, encoding="unicode")))


def panels_of(n: int, **settings):
    figure, axes = plt.subplots(1, n, figsize=(6.8, 3.0), squeeze=False, **settings)
    for i, panel in enumerate(axes[0]):
        panel.plot([0, 1, 2], [3, 1 + i, 4])
        panel.set(xlabel=f"step {i}", ylabel="loss" if not i or "sharey" not in settings else "")
    return figure, axes[0]


def test_a_panel_is_as_wide_as_a_phone_with_letters_of_the_same_size():
    figure, (panel,) = panels_of(1)
    panel.set_title("of $d_k$")
    before, after = wide_and_narrow(figure)
    assert width(before) > 6.5 and width(after) < MOST[0]
    assert sizes(before) == sizes(after)
    assert {"step 0", "loss"} < set(texts(after))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("settings", [{}, {"sharey": True}])
def test_panels_go_below_each_other_by_their_names_with_a_scale_each(n, settings):
    figure, axes = panels_of(n, **settings)
    axes[-1].set_title("of base")
    scale = len([label for label in axes[0].get_yticklabels() if label.get_text()])
    before, after = wide_and_narrow(figure)
    assert width(after) < MOST[0]
    tops = [axes_.get_position().y0 for axes_ in axes]
    lefts = [axes_.get_position().x0 for axes_ in axes]
    assert tops == sorted(tops, reverse=True) and max(lefts) - min(lefts) < 0.1
    names = {2: ["left"], 3: ["left", "middle"]}[n]
    assert [*names, "right: of base"] == [t for t in texts(after) if t.split(":")[0] in ("left", "middle", "right")]
    assert texts(after).count("loss") == n and texts(before).count("loss") == (1 if settings else n)
    assert scale and all(len([label for label in one.get_yticklabels() if label.get_text() and label.get_visible()]) >= 2 for one in axes)


def test_many_panels_stand_in_two_columns_and_more_stay():
    figure, axes = plt.subplots(2, 4, figsize=(6.8, 3.4), sharex=True, sharey=True)
    for i, panel in enumerate(axes.flat):
        panel.plot([0, 1], [i, 1])
        panel.set_title(f"number {i}")
    _, after = wide_and_narrow(figure)
    assert width(after) < MOST[-1]
    places = {(round(one.get_position().x0, 2), round(one.get_position().y0, 2)) for one in axes.flat}
    assert len({x for x, _ in places}) == 2 and len({y for _, y in places}) == 4
    assert [t for t in texts(after) if t.startswith("number")] == [f"number {i}" for i in range(8)]
    assert narrow.narrowed(plt.subplots(3, 3, figsize=(6.8, 6.8))[0]) is None


def test_what_is_narrow_or_has_no_simple_grid_stays():
    assert narrow.narrowed(plt.subplots(figsize=(narrow.WIDTHS[1], 3.0))[0]) is None
    spanning = plt.figure(figsize=(6.8, 3.0))
    grid = spanning.add_gridspec(2, 2)
    for place in (grid[0, :], grid[1, 0], grid[1, 1]):
        spanning.add_subplot(place)
    assert narrow.narrowed(spanning) is None
    solid = plt.figure(figsize=(6.8, 3.0))
    solid.add_subplot(projection="3d")
    assert narrow.narrowed(solid) is None


def test_a_scale_of_colours_stays_beside_its_panels():
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 3.0))
    for panel in axes:
        image = panel.imshow([[0, 1], [1, 0]])
    bar = figure.colorbar(image, ax=axes, label="weight")
    _, after = wide_and_narrow(figure)
    assert "weight" in texts(after) and bar.ax.get_position().x0 > max(panel.get_position().x1 for panel in axes)


def test_a_grid_of_rows_keeps_them():
    "What a panel shows may be said by its row and its column."
    figure, axes = plt.subplots(2, 3, figsize=(6.2, 4.3), sharex=True, sharey=True)
    for row, panels in zip(("before", "after"), axes):
        panels[0].set_ylabel(row)
        for panel in panels:
            panel.imshow([[0, 1], [1, 0]])
    _, after = wide_and_narrow(figure)
    assert width(after) < MOST[-1] and [t for t in texts(after) if t in ("before", "after")] == ["before", "after"]
    assert len({round(one.get_position().y0, 2) for one in axes.flat}) == 2
    wide, _ = plt.subplots(2, 4, figsize=(6.8, 3.4))
    assert narrow.narrowed(wide) is None  # without names its panels may not be parted from their row


def test_a_scale_of_colours_in_the_grid_is_no_panel():
    figure, (panel, place) = plt.subplots(1, 2, figsize=(6.8, 3.0), width_ratios=[20, 1])
    figure.colorbar(panel.imshow([[0, 1], [1, 0]]), cax=place)
    assert narrow.narrowed(figure) is None and narrow.narrowed(plt.figure(figsize=(6.8, 3.0))) is None


def test_a_figure_is_shown_once():
    figure, _ = panels_of(1)
    narrow.narrowed(figure)
    with pytest.raises(ValueError, match="shown before"):
        narrow.narrowed(figure)


def lines(panel):
    for i in range(4):
        panel.plot([0, 1, 2, 3], [i, i, 10, 10 + i / 2], label=f"the line number {i} of all")


def dots(panel):
    for i in range(4):
        panel.scatter([0, 2, 4], [0, 10 - i / 2, 10 - i], label=f"the dots number {i} of all")


def bars(panel):
    for i in range(4):
        panel.bar([i, i + 4], [1 + i, 4 + i], label=f"the bars number {i} of all")


@pytest.mark.parametrize("draw", [lines, dots, bars])
def test_a_legend_that_would_lie_on_something_moves(draw):
    figure, (panel,) = panels_of(1)
    panel.clear()
    draw(panel)
    panel.legend(loc="upper left")
    figure.draw_without_rendering()
    assert sum(narrow.crossings(figure).values()) == 0
    figure.set_size_inches(narrow.WIDTHS[0], 3.0)
    figure.draw_without_rendering()
    assert sum(narrow.crossings(figure).values()) > 0
    figure.set_size_inches(6.8, 3.0)
    _, after = wide_and_narrow(figure)
    assert sum(narrow.crossings(figure).values()) == 0 and width(after) < MOST[-1]


def test_the_axes_keep_their_height_below_a_legend():
    figure, (panel,) = panels_of(1)
    panel.clear()
    for i in range(8):
        panel.plot([0, 1, 2, 3], [i, 9 - i, i / 2, 9 - i / 2], label=f"a line that is everywhere, number {i}")
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.draw_without_rendering()
    high = panel.bbox.height
    wide_and_narrow(figure)
    assert panel.get_legend().get_window_extent().y0 > panel.bbox.y1 - 2 and panel.bbox.height > 0.75 * high
    assert panel.bbox.width > narrow.SHOWN * figure.bbox.width


def test_a_legend_of_the_figure_has_fewer_columns():
    figure, axes = panels_of(2)
    for i, panel in enumerate(axes):
        panel.lines[0].set_label(f"the first of two long names, {i}")
    figure.legend(loc="outside lower center", ncols=2, title="of")
    _, after = wide_and_narrow(figure)
    (legend,) = figure.legends
    assert width(after) < MOST[-1] and legend._ncols == 1 and "of" in texts(after)
    assert [t for t in texts(after) if t.startswith("the first")] == [text.get_text() for text in legend.get_texts()]
    assert legend.get_window_extent().y0 > axes[0].bbox.y1 > axes[1].bbox.y1  # and comes before the panels


def test_long_names_are_broken_and_stand_on_a_slant():
    figure, axes = plt.subplots(1, 2, figsize=(6.8, 4.0))
    names = [f"a rather long name of row {i}" for i in range(4)]
    axes[0].barh(names, [1, 2, 3, 4])
    axes[1].bar([f"column\n{i} of {i}" for i in range(6)], range(6))
    axes[1].set_xlabel("a label of more letters than a phone has room for in one line")
    figure.draw_without_rendering()
    limits = axes[0].get_ylim()
    _, after = wide_and_narrow(figure)
    assert axes[0].get_ylim() == limits
    assert not narrow.collisions(figure) and width(after) < MOST[-1]
    assert {label.get_rotation() for label in axes[1].get_xticklabels()} == {40}
    assert any("\n" in label.get_text() for label in axes[0].get_yticklabels()) and "\n" in axes[1].get_xlabel()


def test_words_that_would_collide_anyhow_are_left():
    figure, (panel,) = panels_of(1)
    for i in range(3):
        panel.annotate("words of some length", (2 / 3 * i, 2))
    figure.draw_without_rendering()
    assert not narrow.collisions(figure)
    assert narrow.narrowed(figure) is None and narrow.collisions(figure)


def test_a_kernel_gives_its_figures_in_both_versions():
    from IPython.core.formatters import DisplayFormatter

    kernel = SimpleNamespace(display_formatter=DisplayFormatter())
    narrow.register(kernel)
    figure, _ = panels_of(1)
    data, _ = kernel.display_formatter.format(figure)
    assert "<svg" in data[narrow.KIND] and narrow.KIND not in kernel.display_formatter.format(3)[0]
    output = {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>", **data}, "metadata": {"a": 1}}
    kept = weave.clean(output, ROOT)
    assert kept["metadata"] == {"a": 1, "narrow": data[narrow.KIND]} and narrow.KIND not in kept["data"]
    assert narrow.KIND in output["data"]  # what is given stays


def test_the_pages_find_what_the_notebooks_hold(tmp_path, monkeypatch):
    output = {"data": {"image/svg+xml": ["<svg>", "</svg>\n"]}, "metadata": {"narrow": "<svg narrow/>"}}
    other = {"data": {"image/svg+xml": "<svg other/>"}, "metadata": {}}
    (tmp_path / "notebooks").mkdir()
    text = json.dumps({"cells": [{"outputs": [output, other, {"name": "stdout"}]}, {}]})
    (tmp_path / "notebooks" / "a.ipynb").write_text(text, encoding="utf-8")
    monkeypatch.setattr(annotated_figures, "ROOT", tmp_path)
    assert annotated_figures.narrow_versions.__wrapped__() == {"<svg></svg>": "<svg narrow/>"}


FIGURES = [
    (path.stem, i, output)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    for i, output in enumerate(
        output
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    )
]
PICTURES = {("05-layers-questions", 2), ("19-figures-questions", 0)}  # of many parts or words: read enlarged


@pytest.mark.parametrize("name, i, output", FIGURES, ids=[f"{name}-{i}" for name, i, _ in FIGURES])
def test_every_figure_can_be_read_on_a_phone(name, i, output):
    "No letter is smaller than 6 CSS pixels, an index, on a page of 360, of which a figure takes 328."
    below = output["metadata"].get("narrow")
    wide = ElementTree.fromstring("".join(output["data"]["image/svg+xml"]))
    svg = ElementTree.fromstring(below) if below else wide
    shown = min(1, 328 / (width(svg) * 96))
    smallest = min((float(size) for size in re.findall(r"font-size: ([\d.]+)px", ElementTree.tostring(svg, encoding="unicode"))), default=10)
    if (name, i) in PICTURES or width(wide) < narrow.WIDTHS[1]:
        assert below is None
    else:
        assert below and "<metadata>" not in below and "DOCTYPE" not in below
        assert smallest * 96 / 72 * shown >= 6, (width(svg), smallest)
