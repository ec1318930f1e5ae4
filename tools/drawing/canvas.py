"""The vocabulary of the drawings: boxes, wires, blocks of cells, weights, bars, and words that are measured.

Every drawing is 360 units wide, so that on a phone one unit is about one pixel. Hues have meaning: `q` queries, `k`
keys, `v` values, `o` outputs, no letter anything else. Colours are named in book/_static/drawing.css only.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
STYLES = ROOT / "book" / "_static"
WIDTH, SHOWN = 360, 480  # of the drawing; of the image where nothing else says how large it should be
NORMAL, SMALL = 14, 12.5
SHADES = 10  # steps of the map of attention weights
PAPER_INK = ("--paper", "--plate", "--line", "--ink", "--soft", "--query", "--key", "--value", "--output")

DRAWINGS: dict[str, Callable] = {}


def drawing(name: str, height: float, title: str):
    """Register a function that fills a canvas of this height; its docstring says what is seen, in the file too."""

    def register(fill):
        def make() -> Canvas:
            canvas = Canvas(name, height, title, " ".join(fill.__doc__.split()))
            fill(canvas)
            return canvas

        DRAWINGS[name] = make
        return make

    return register


# ---------------------------------------------------------------- words


class Run(NamedTuple):
    """A stretch of words in one face; rise lifts or sinks it."""

    words: str
    face: str = ""
    rise: float = 0.0


def runs(words: str) -> list[Run]:
    """Split `code`, *slant*, ^{above} and _{below} from plain words."""
    out = []
    for piece in re.split(r"(`[^`]+`|\*[^*]+\*|[\^_]\{[^}]*\})", words):
        if piece.startswith("`"):
            out.append(Run(piece[1:-1], "code"))
        elif piece.startswith("*") and len(piece) > 1:
            out.append(Run(piece[1:-1], "slant"))
        elif piece[:2] in ("^{", "_{"):
            out.append(Run(piece[2:-1], "small slant", 5.0 if piece[0] == "^" else -3.0))
        elif piece:
            out.append(Run(piece))
    return out


@functools.cache
def advances(mono: bool) -> tuple[dict, int]:
    """Advance width of each character in a wide typeface, so that the words fit in any other, and units an em."""
    import matplotlib
    from fontTools.ttLib import TTFont

    name = "DejaVuSansMono.ttf" if mono else "DejaVuSans.ttf"
    with TTFont(Path(matplotlib.get_data_path(), "fonts", "ttf", name)) as font:
        metrics, glyphs = font["hmtx"], font.getBestCmap()
        return {code: metrics[glyph][0] for code, glyph in glyphs.items()}, font["head"].unitsPerEm


def width(words: str, size: float, kind: str = "") -> float:
    """How wide words come out, at most."""
    total = 0.0
    for run in runs(words):
        faces = f"{kind} {run.face}".split()
        table, em = advances("code" in faces)
        own = min(size, SMALL) if "small" in faces else size
        total += sum(table.get(ord(c), em) for c in run.words) / em * own * (1.06 if "strong" in faces else 1)
    return total


# ---------------------------------------------------------------- places


class Area(NamedTuple):
    """A rectangle, by its corner at the top left."""

    x: float
    y: float
    w: float
    h: float

    @property
    def left(self):
        return self.x

    @property
    def right(self):
        return self.x + self.w

    @property
    def top(self):
        return self.y

    @property
    def bottom(self):
        return self.y + self.h

    @property
    def cx(self):
        return self.x + self.w / 2

    @property
    def cy(self):
        return self.y + self.h / 2


class Label(NamedTuple):
    """Words as they lie on the canvas, and the box that must hold them, if any."""

    words: str
    area: Area
    size: float
    holder: Area | None


def n(x: float) -> str:
    """A coordinate, short and the same on every machine."""
    return f"{round(x, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def wired(points: list[tuple[float, float]], bend: float) -> str:
    """The path through points with rounded corners."""
    out = [f"M{n(points[0][0])} {n(points[0][1])}"]
    for before, here, after in zip(points, points[1:], points[2:]):
        (ax, ay), (bx, by) = towards(here, before, bend), towards(here, after, bend)
        out.append(f"L{n(ax)} {n(ay)}Q{n(here[0])} {n(here[1])} {n(bx)} {n(by)}")
    return "".join(out) + f"L{n(points[-1][0])} {n(points[-1][1])}"


def towards(a, b, far: float) -> tuple[float, float]:
    """The point `far` from a on the way to b, at most halfway."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    part = min(far, length / 2) / length
    return a[0] + dx * part, a[1] + dy * part


# ---------------------------------------------------------------- the canvas


@dataclass
class Canvas:
    """One drawing; what is drawn first lies below."""

    name: str
    height: float
    title: str
    words: str
    parts: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)

    def shape(self, tag: str, kind: str, **values) -> None:
        given = " ".join(f'{key}="{n(v) if isinstance(v, int | float) else v}"' for key, v in values.items())
        self.parts.append(f'<{tag} class="{kind}" {given}/>')

    def text(self, x, y, words: str, kind="", anchor="middle", holder: Area | None = None) -> Area:
        """Words whose middle line lies at y; anchor start, middle or end of them at x."""
        size = SMALL if "small" in kind.split() else NORMAL
        w = width(words, size, kind)
        left = x - {"start": 0, "middle": w / 2, "end": w}[anchor]
        pieces, risen = [], 0.0
        for run in runs(words):
            shift = f' dy="{n(risen - run.rise)}"' if run.rise != risen else ""
            risen = run.rise
            face = f' class="{run.face}"' if run.face else ""
            inside = escape(run.words, quote=False)
            pieces.append(f"<tspan{face}{shift}>{inside}</tspan>" if face or shift else inside)
        marks = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        self.parts.append(f'<text{marks} x="{n(x)}" y="{n(y + 0.35 * size)}">{"".join(pieces)}</text>')
        area = Area(left, y - size / 2, w, size)
        self.labels.append(Label(words, area, size, holder))
        return area

    def lines(self, x, y, *words: str, kind="", anchor="middle", step=17.0, holder=None) -> None:
        """Lines of words, one under the other, around the middle y."""
        for i, line in enumerate(words):
            self.text(x, y + (i - (len(words) - 1) / 2) * step, line, kind, anchor, holder)

    def box(self, x, y, w, h, *words: str, kind="box", face="", round=6.0) -> Area:
        """A box of Figure 1, with words in its middle."""
        area = Area(x, y, w, h)
        self.shape("rect", kind, x=x, y=y, width=w, height=h, rx=round)
        self.lines(area.cx, area.cy, *words, kind=face, holder=area)
        return area

    def block(self, x, y, rows: int, columns: int, cell=16.0, kind="block", high: float | None = None) -> Area:
        """A matrix as so many cells; `high` is a cell's height where it is no square."""
        high = cell if high is None else high
        area = Area(x, y, columns * cell, rows * high)
        self.shape("rect", kind, x=x, y=y, width=area.w, height=area.h)
        across = [f"M{n(x)} {n(y + i * high)}H{n(area.right)}" for i in range(1, rows)]
        down = [f"M{n(x + i * cell)} {n(y)}V{n(area.bottom)}" for i in range(1, columns)]
        if across or down:
            hue = kind[0] if kind in ("qfill", "kfill", "vfill", "ofill") else ""
            self.shape("path", f"rule {hue}".strip(), d="".join(across + down))
        return area

    def weights(self, x, y, rows, cell=24.0, digits: int | None = None, high: float | None = None) -> Area:
        """Attention weights, each in its shade, and as numbers where digits are wanted."""
        high = cell if high is None else high
        for i, row in enumerate(rows):
            for j, weight in enumerate(row):
                shade = round(float(weight) * SHADES)
                at = Area(x + j * cell, y + i * high, cell, high)
                self.shape("rect", f"w w{shade}", x=at.x, y=at.y, width=at.w, height=at.h)
                if digits is not None:
                    words = f"{weight:g}" if weight in (0, 1) else f"{float(weight):.{digits}f}".removeprefix("0")
                    self.text(at.cx, at.cy, words, "small on" if shade < 5 else "small under", holder=at)
        return Area(x, y, cell * len(rows[0]), high * len(rows))

    def table(self, x, y, allowed, cell=24.0) -> Area:
        """A mask: who may attend to whom."""
        for i, row in enumerate(allowed):
            for j, may in enumerate(row):
                at = {"x": x + j * cell, "y": y + i * cell}
                self.shape("rect", "dark" if may else "empty", **at, width=cell, height=cell)
        return Area(x, y, cell * len(allowed[0]), cell * len(allowed))

    def wire(self, *points, hue="", head=True, kind="", bend=6.0) -> None:
        """A line through points, with an arrow's head at its end."""
        points = list(points)
        if head:
            (ax, ay), (bx, by) = points[-2:]
            length = ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5
            ux, uy = (bx - ax) / length, (by - ay) / length
            back = (bx - 7 * ux, by - 7 * uy)
            points[-1] = (bx - 5 * ux, by - 5 * uy)
            sides = [(back[0] - a * uy, back[1] + a * ux) for a in (3.6, -3.6)]
            tip = "M" + "L".join(f"{n(px)} {n(py)}" for px, py in [(bx, by), *sides]) + "Z"
        self.shape("path", " ".join(f"wire {kind} {hue}".split()), d=wired(points, bend))
        if head:
            self.shape("path", f"head {hue}".strip(), d=tip)

    def sign(self, x, y, which: str, r=9.0) -> Area:
        """A circle with + or x in it, as in Figure 1."""
        self.shape("circle", "box", cx=x, cy=y, r=r)
        a = r * (0.55 if which == "+" else 0.42)
        d = f"M{n(x - a)} {n(y)}h{n(2 * a)}M{n(x)} {n(y - a)}v{n(2 * a)}"
        if which == "x":
            d = f"M{n(x - a)} {n(y - a)}l{n(2 * a)} {n(2 * a)}M{n(x + a)} {n(y - a)}l{n(-2 * a)} {n(2 * a)}"
        self.shape("path", "wire", d=d)
        return Area(x - r, y - r, 2 * r, 2 * r)

    def dot(self, x, y, hue="", r=3.0) -> None:
        """Where a wire branches."""
        self.shape("circle", f"dot {hue}".strip(), cx=x, cy=y, r=r)

    def bar(self, x, y, w, h, hue="") -> Area:
        self.shape("rect", f"bar {hue}bar" if hue else "bar", x=x, y=y, width=w, height=h)
        return Area(x, y, w, h)

    def line(self, d: str, kind="wire") -> None:
        self.shape("path", kind, d=d)

    def svg(self) -> str:
        """The file: complete, so that it can also be shown alone."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {WIDTH} {n(self.height)}"'
            f' width="{SHOWN}" height="{n(self.height * SHOWN / WIDTH)}" role="img">'
        )
        told = [f"<title>{escape(self.title)}</title>", f"<desc>{escape(self.words)}</desc>"]
        ground = f'<rect class="ground" width="{WIDTH}" height="{n(self.height)}"/>'
        return "\n".join([head, *told, f"<style>\n{style()}</style>", ground, *self.parts, "</svg>"]) + "\n"


# ---------------------------------------------------------------- colours


def palette(theme: str) -> dict[str, str]:
    """The page's colours in one theme, as book.css has them."""
    css = (STYLES / "book.css").read_text(encoding="utf-8")
    rule = re.search(rf'html\[data-theme="{theme}"\] \{{\n(.*?)\n\}}', css, re.S)
    found = dict(re.findall(r"(--\w+): (#\w{6});", rule[1]))
    return {name: found[name] for name in PAPER_INK}


def style() -> str:
    """What a file needs to be shown alone: the page's colours, by the reader's preference, and the rules."""
    light, dark = ("".join(f"{k}:{v};" for k, v in palette(t).items()) for t in ("light", "dark"))
    alone = f".drawing{{{light}}}\n@media(prefers-color-scheme:dark){{.drawing{{{dark}}}}}\n"
    rules = re.sub(r"/\*.*?\*/\s*", "", (STYLES / "drawing.css").read_text(encoding="utf-8"), flags=re.S)
    rules = re.sub(r"\n+", "\n", rules.strip())
    return alone + rules + "\n"
