"""Figures for narrow screens: each figure of a notebook once more, laid out on the width of a phone.

A figure that is only made smaller has letters of five pixels there. Kernels of `weave` call `register` when they start
(kernel.py), and a figure's output has its second version in its metadata, where the pages look for it.
"""

import re
import sys
import textwrap
import warnings
import weakref
from itertools import combinations

KIND = "image/x-narrow+svg"
WIDTHS = (3.6, 4.0, 4.4, 4.8)  # inches, tried in turn
STICKS_OUT, SHOWN = 0.03, 0.45  # of the width: so much may be words beyond the edge, and is to be what the figure shows
MANY, WIDE_GRID = 8, 3  # panels: more are a picture of their own; a grid of more columns than that is laid out anew
LETTERS = 40  # of a line below the axes
shown_before = weakref.WeakSet()
NAMES = {2: ("left", "right"), 3: ("left", "middle", "right")}  # as the text calls panels that stand side by side


def register(kernel) -> None:
    """Let a kernel give every figure a narrow version, too."""
    from IPython.core.formatters import BaseFormatter
    from traitlets import Unicode

    class Narrow(BaseFormatter):
        format_type = Unicode(KIND)

        def __call__(self, shown):  # a printer of figures would go when the notebooks' backend sets its own
            drawing = sys.modules.get("matplotlib.figure")
            return narrowed(shown) if drawing and isinstance(shown, drawing.Figure) else None

    kernel.display_formatter.formatters[KIND] = Narrow(parent=kernel.display_formatter)


def narrowed(figure) -> str | None:
    """The figure as SVG on the width of a phone, in one column or two; None where it would not be read better.

    The figure is left so: a notebook's figures are closed once they are shown.

    Raises:
        ValueError: it has been shown, and laid out anew, before.
    """
    from IPython.core.pylabtools import print_figure

    if figure in shown_before:
        raise ValueError("this figure has been shown before: end its cell with plt.show()")
    shown_before.add(figure)
    cells = panels(figure)
    is_narrow, many = figure.get_size_inches()[0] <= WIDTHS[1], len(cells) > MANY
    if not cells or is_narrow or many or not all(map(is_simple, cells)):
        return None
    with warnings.catch_warnings(action="ignore"):  # of a layout for which there is no room: another one is tried
        figure.draw_without_rendering()
        most, crossed = len(collisions(figure)), crossings(figure)
        before, square = figure.get_size_inches()[0], all(cell[0].get_aspect() == 1 for cell in cells)
        high = rearrange(figure, cells)
        shrinks = square and high == figure.get_size_inches()[1]  # maps in their grid: else they stand in empty space
        for factor, breaks in ((1, False), (1.3, True), (1.8, False)):
            if breaks:
                break_lines(figure)
            for wide in WIDTHS:
                tall = high * (wide / before if shrinks else factor)
                figure.set_size_inches(wide, tall)
                figure.draw_without_rendering()
                free_legends(figure, crossed)
                if above := height_above(figure):
                    figure.set_size_inches(wide, tall + above)
                    figure.draw_without_rendering()
                if fits(figure, wide) and len(collisions(figure)) <= most:
                    svg = print_figure(figure, "svg", bbox_inches="tight")
                    return re.sub(r"\s*<!DOCTYPE.*?>|\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    return None


# ---------------------------------------------------------------- what is changed


def panels(figure) -> list[list]:
    """The axes that have places in a grid, row by row; axes on the same place are one panel."""
    found = {}
    for axes in figure.axes:
        if place := axes.get_subplotspec():
            found.setdefault((place.rowspan.start, place.colspan.start), []).append(axes)
    return [found[place] for place in sorted(found)]


def is_simple(cell: list) -> bool:
    """Whether a panel is flat, no scale of colours, takes one place of its grid and, of a wide one, has a name."""
    place = cell[0].get_subplotspec()
    grid = place.get_gridspec()
    is_panel = cell[0].name != "3d" and not hasattr(cell[0], "_colorbar")
    named = grid.nrows == 1 or grid.ncols <= WIDE_GRID or bool(cell[0].get_title())
    return is_panel and named and len(place.rowspan) == len(place.colspan) == 1


def rearrange(figure, cells: list[list]) -> float:
    """Give the panels a grid of one column, or of two where they are many; the height of the figure in inches."""
    from matplotlib.gridspec import GridSpec

    grids = {cell[0].get_subplotspec().get_gridspec() for cell in cells}
    _, high = figure.get_size_inches()
    grid = grids.pop()
    if grids or grid.ncols == 1 or grid.nrows > 1 and grid.ncols <= WIDE_GRID:  # of several rows each says something
        return high
    columns = 1 if len(cells) in NAMES else 2
    rows = -(-len(cells) // columns)
    new = GridSpec(rows, columns, figure=figure)
    for i, cell in enumerate(cells):
        for axes in cell:
            axes.set_subplotspec(new[i // columns, i % columns])
            show_scale(axes, cells[0][0])
        if grid.nrows == 1 and columns == 1:
            name, title = NAMES[len(cells)][i], cell[0].get_title()
            cell[0].set_title(f"{name}: {title}" if title else name)
    if columns == 1:  # what belongs to all panels comes before them
        for legend in figure.legends:
            legend.set_loc("outside upper center")
    if engine := figure.get_layout_engine():
        engine.set(h_pad=0.1)  # inches: a title is not to look like a part of the name above it
    return high / grid.nrows * rows


def show_scale(axes, first) -> None:
    """A panel that shared its scale with the one beside it shows it by itself."""
    if first is not axes and first in axes.get_shared_y_axes().get_siblings(axes):
        axes.tick_params(axis="y", labelleft=True, labelsize=first.get_yticklabels()[0].get_size())
        axes.set_ylabel(axes.get_ylabel() or first.get_ylabel())


def free_legends(figure, crossed: dict) -> None:
    """Move each legend that lies on more than it did: to the best place within its axes, or above them."""
    for place, anchor in (("best", None), ("lower left", (0, 1))):
        for legend, now in crossings(figure).items():
            if now > crossed.get(legend, 0):
                legend.set_bbox_to_anchor(anchor, transform=legend.axes.transAxes)
                legend.set_loc(place)
                figure.draw_without_rendering()


def height_above(figure) -> float:
    """The height in inches of the legends that stand above their axes: the axes are to keep theirs."""
    pairs = [(legend.get_window_extent(), axes.bbox) for axes in figure.axes if (legend := axes.get_legend())]
    return sum(box.height for box, below in pairs if box.y0 >= below.y1 - 1) / figure.dpi


def break_lines(figure) -> None:
    """Write long words on several lines, names below the axes on a slant, and legends in few columns."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_label_text(textwrap.fill(axis.get_label_text(), LETTERS))
            limits = axis.get_view_interval().copy()
            names = [label.get_text() for label in axis.get_ticklabels()]
            if any(re.search(r"[a-z]", name) and "$" not in name and len(name.split("\n")[0]) > 5 for name in names):
                side = "left" if axis.get_ticks_position() == "top" else "right"
                slant = {"rotation": 40, "ha": side, "rotation_mode": "anchor"} if axis is axes.xaxis else {}
                lines = [name if "\n" in name else textwrap.fill(name, LETTERS // 2) for name in names]
                axis.set_ticks(axis.get_ticklocs(), lines, **slant)
                axis.set_view_interval(*limits, ignore=True)
        if legend := axes.get_legend():
            axes.legend(**again(legend, LETTERS // 3), loc="lower left", bbox_to_anchor=(0, 1))
    for legend in list(figure.legends):
        side = "upper" if legend.get_window_extent().y0 > figure.bbox.height / 2 else "lower"
        legend.remove()
        figure.legend(**again(legend, LETTERS // 2), loc=f"outside {side} center")


def again(legend, most: int) -> dict:
    """What a legend is made of, for another one of two columns, or of one if a line has more letters than that."""
    texts = [text.get_text() for text in legend.get_texts()]
    drawn, named = legend.axes.get_legend_handles_labels() if legend.axes else ([], [])
    return {
        "handles": drawn if texts == named else legend.legend_handles,  # the latter are what the legend draws of them
        "labels": [textwrap.fill(text, LETTERS) for text in texts],
        "title": legend.get_title().get_text() or None,
        "ncols": 2 if max(map(len, texts), default=0) <= most else 1,
        "fontsize": legend.get_texts()[0].get_fontsize() if texts else None,
    }


# ---------------------------------------------------------------- what is looked at, once it is drawn


def fits(figure, wide: float) -> bool:
    """Whether the words of a figure stay on its width, and leave enough of it to what is shown."""
    columns = [axes.get_subplotspec().get_gridspec().ncols for axes in figure.axes if axes.get_subplotspec()]
    widest = max(axes.get_position().width for axes in figure.axes)
    return figure.get_tightbbox().width <= wide * (1 + STICKS_OUT) and widest * max(columns, default=1) >= SHOWN


def crossings(figure) -> dict:
    """How many lines, dots and bars each legend lies on; the sides of its axes, which it may stand above, are lines."""
    found = {}
    for axes in figure.axes:
        if legend := axes.get_legend():
            box = legend.get_window_extent()
            paths = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
            several = [some for some in axes.collections if hasattr(some, "get_segments")]
            paths += [some.get_transform().transform_path(path) for some in several for path in some.get_paths()]
            dotted = [some for some in axes.collections if some not in several]
            dots = [xy for some in dotted for xy in some.get_offset_transform().transform(some.get_offsets())]
            found[legend] = sum(path.intersects_bbox(box, filled=False) for path in paths)
            found[legend] += sum(box.overlaps(bar.get_window_extent()) for bar in axes.patches)
            found[legend] += sum(box.contains(*xy) for xy in dots)
            found[legend] += box.overlaps(axes.bbox) * (box.x0 < axes.bbox.x0 - 1 or box.x1 > axes.bbox.x1 + 1)
    return found


def collisions(figure) -> list[tuple[str, str]]:
    """The pairs of words that lie on each other; of words on a slant the boxes do, and the words do not."""
    boxes = [(text, text.get_window_extent().padded(2, -1)) for text in words(figure)]  # side by side there is a space
    return [
        (one.get_text(), other.get_text())
        for (one, box), (other, of_other) in combinations(boxes, 2)
        if box.overlaps(of_other) and not (one.get_rotation() % 90 and one.get_rotation() == other.get_rotation())
    ]


def words(figure) -> list:
    """The texts that are drawn: of the marks of an axis only those within it."""
    from matplotlib.text import Text

    ticks = [(axis, axis._update_ticks()) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    drawn = {label for _, some in ticks for tick in some for label in (tick.label1, tick.label2)}
    all_ticks = [tick for axis, _ in ticks for tick in (*axis.majorTicks, *axis.minorTicks)]
    hidden = {label for tick in all_ticks for label in (tick.label1, tick.label2)} - drawn
    return [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in hidden]
