"""Figures as a page shows them: their words in the hues of a theme, and on a narrow screen their panels below each other."""

import functools
import html
import math
import re
from pathlib import Path

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

# The figures' mid-tones (annotated.mplstyle) read on any ground, but not at 4.5:1: on the page their words take its hues.
WORDS = {  # in the figure -> on light, on dark
    "767676": ("5d5a53", "a9a69d"), "8a8a8a": ("66665f", "a9a69d"), "2a7fbf": ("1d6ba6", "6fb1e6"), "d9861a": ("9a5a08", "e6a44a"),
    "1f9d77": ("14724f", "56c09a"), "c2557f": ("a83f68", "e58bb0"), "7d6bb5": ("6a57a8", "ab9be0"),
}
WORD = re.compile(r"(<text\b[^>]*?\bfill: #)(" + "|".join(WORDS) + r")\b")
FIGURE = re.compile(r'<img\b(?![^>]*\bonly-)([^>]*?\bsrc=")([^":]*_images/[^":]+)\.svg("[^>]*)>')
NARROW = "(max-width: 480px)"


def coloured(svg: str, theme: int) -> str:
    "A figure whose words have the hues of a theme, 0 light or 1 dark."
    return WORD.sub(lambda found: found[1] + WORDS[found[2]][theme], svg)


def themed(page: str, folder: Path) -> str:
    "A page whose figures come in two versions, of which a theme shows its own, each with one for narrow screens where that helps."
    def both(found: re.Match) -> str:
        path = (folder / f"{found[2]}.svg").resolve()
        dark, narrow = (path.with_name(f"{path.stem}-{kind}.svg") for kind in ("dark", "narrow"))
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if WORD.search(text):  # as the notebook has it: copied anew by this build
            below = stacked(text)
            for theme, kind in ((1, "-dark"), (0, "")):  # what all are made of goes last
                stack = path.with_name(f"{path.stem}-narrow{kind}.svg")
                if below:
                    stack.write_text(coloured(below, theme), encoding="utf-8")
                else:
                    stack.unlink(missing_ok=True)
                path.with_name(f"{path.stem}{kind}.svg").write_text(coloured(text, theme), encoding="utf-8")
        if not dark.is_file():
            return found[0]

        def shown(theme: str, kind: str) -> str:
            image = f"<img{found[1]}{found[2]}{kind}.svg{found[3]}>"
            with_class = re.sub(r'\bclass="', f'class="{theme} ', image)
            image = with_class if with_class != image else image.replace("<img", f'<img class="{theme}"', 1)
            if not narrow.is_file():
                return image
            wide, high = sides(narrow)
            return (f'<picture><source media="{NARROW}" srcset="{found[2]}-narrow{kind}.svg" width="{wide}" height="{high}">'
                    f"{image}</picture>")
        return shown("only-light", "") + shown("only-dark", "-dark")
    return FIGURE.sub(both, page)


def sides(path: Path) -> tuple[int, int]:
    "The width and height of a narrow figure in CSS pixels."
    told = re.search(r'<svg\b[^>]*?width="([\d.]+)pt" height="([\d.]+)pt"', path.read_text(encoding="utf-8"))
    return tuple(round(float(side) * 4 / 3) for side in told.groups())


# ---------------------------------------------------------------- panels below each other

NUMBER = r"-?[\d.]+"
PANEL = re.compile(r'^  <g id="axes_\d+">\n(.*?)^  </g>', re.M | re.S)
BOX = re.compile(rf'<path d="M ({NUMBER}) ({NUMBER}) \nL ({NUMBER}) {NUMBER} \nL {NUMBER} ({NUMBER}) ')
TEXT = re.compile(rf'<text style="font-size: ({NUMBER})px;([^"]*)" x="({NUMBER})" y="{NUMBER}" '
                  r'transform="rotate\((-?\d+)[^>]*>([^<]*)</text>')
FIGURE_WIDE = re.compile(r"^  <g id=\"(?!patch_1\")(?!axes_)", re.M)  # a legend or a title of all panels
# A text that is slanted or of several lines; a formula, such as a label of a logarithmic axis.
MOVED = re.compile(rf'<text style="([^"]*)" transform="translate\(({NUMBER}) {NUMBER}\)(?: rotate\(({NUMBER})\))?">([^<]*)</text>')
MATH = re.compile(rf'<g style="[^"]*" transform="translate\(({NUMBER}) {NUMBER}\)(?: rotate\(({NUMBER})\))?">\s*<text>(.*?)</text>', re.S)
GLYPH = re.compile(rf'<tspan x="([^"]*)"[^>]*font-size: ({NUMBER})px[^>]*>([^<]+)<')
SIZE = re.compile(rf"font-size: ({NUMBER})px")
SHARE = {"middle": 0.5, "end": 1.0}
TICK, AIR, LINE = 5.0, 1.0, 14.0  # in points: a tick with its line, what stays free beside a word, the line that names a panel
NAMES = {2: ("left", "right"), 3: ("left", "middle", "right")}


@functools.cache
def width(text: str, size: float) -> float:
    return TextPath((0, 0), text.replace("$", r"\$"), size, prop=FontProperties(family="DejaVu Sans")).get_extents().width if text.strip() else 0.0


def reach(panel: str) -> tuple[float, float]:
    "How far to the left and right the words of a panel go."
    ends = []
    for size, style, x, turned, text in TEXT.findall(panel):
        long = float(size) if int(turned) else width(html.unescape(text), float(size))
        left = float(x) - next((share for anchor, share in SHARE.items() if f"text-anchor: {anchor}" in style), 0.0) * long
        ends.append((left, left + long))
    for style, x, turned, words in MOVED.findall(panel):
        long = width(html.unescape(words), float(SIZE.search(style)[1]))
        ends.append((float(x), float(x) + long * math.cos(math.radians(float(turned or 0)))))
    for x, turned, glyphs in MATH.findall(panel):
        long = max(float(places.split()[-1]) + width(signs[-1], float(size)) for places, size, signs in GLYPH.findall(glyphs))
        ends.append((float(x), float(x) + long * math.cos(math.radians(float(turned or 0)))))
    return min((left for left, _ in ends), default=1e9), max((right for _, right in ends), default=-1e9)


def panels(svg: str) -> list[list[tuple[float, float]]]:
    "For each of two or three panels that stand side by side, from where to where it goes; empty if they cannot be parted."
    found = []
    for panel in PANEL.findall(svg):
        if box := BOX.search(panel):
            left, bottom, right, _ = map(float, box.groups())
            found.append((left, right, bottom, *reach(panel)))
    found.sort()
    alike = len({round(bottom) for _, _, bottom, *_ in found}) == 1
    if len(found) not in NAMES or len(PANEL.findall(svg)) != len(found) or not alike or FIGURE_WIDE.search(svg):
        return []
    out, begin = [], 0.0
    edge = float(re.search(rf'viewBox="0 0 ({NUMBER})', svg)[1])
    for i, (left, right, _, _, words_end) in enumerate(found):
        if right - left < 60:  # a scale of colours
            return []
        parts = [(begin, edge)]
        if begin == left - TICK:  # the scale stands at the first panel
            parts.insert(0, (0.0, found[0][0] - TICK))
        if i + 1 < len(found):
            next_left, _, _, next_words, *_ = found[i + 1]
            after = max(right, words_end) + AIR
            if after > min(next_left - TICK, next_words - AIR):
                return []
            own = next_words < next_left - TICK  # words beside it, of a scale of its own
            parts[-1] = (begin, after if own else min(after, next_left - TICK))
            begin = (after + next_words - AIR) / 2 if own else next_left - TICK
        out.append(parts)
    return out


def stacked(svg: str) -> str:
    "A figure with its panels below each other, each with its name; empty if it is one panel, or they cannot be parted."
    rows = panels(svg)
    if not rows:
        return ""
    head, drawing = re.search(r"^(.*?)(<svg\b.*)$", svg, re.S).groups()
    high = float(re.search(rf'viewBox="0 0 {NUMBER} ({NUMBER})"', drawing)[1])
    low = float(BOX.search(drawing, drawing.index('id="axes_1"'))[2]) + TICK
    wide = max(sum(end - begin for begin, end in parts) for parts in rows)
    whole = len(rows) * (high + LINE)
    size = f'width="{wide:.2f}pt" height="{whole:.2f}pt" viewBox="0 0 {wide:.2f} {whole:.2f}"'
    drawing = re.sub(r'width="[^"]*" height="[^"]*" viewBox="[^"]*"', size, drawing, count=1)
    drawing = drawing.replace(' <g id="figure_1">', ' <defs>\n <g id="figure_1">', 1).replace("\n </g>\n", "\n </g>\n </defs>\n", 1)
    shown = []
    for i, (name, parts) in enumerate(zip(NAMES[len(rows)], rows, strict=True)):
        top, place = i * (high + LINE), 0.0
        shown.append(f'<text style="font-size: 9px; font-family: \'DejaVu Sans\', sans-serif; fill: #767676" x="2" y="{top + 10:.2f}">{name}</text>')
        for begin, end in parts:
            deep = low if len(parts) > 1 and not begin else high  # of the scale alone
            shown.append(f'<svg x="{place:.2f}" y="{top + LINE:.2f}" width="{end - begin:.2f}" height="{deep:.2f}" '
                         f'viewBox="{begin:.2f} 0 {end - begin:.2f} {deep:.2f}"><use xlink:href="#figure_1"/></svg>')
            place += end - begin
    return head + drawing.replace("</svg>", "\n".join(shown) + "\n</svg>")
