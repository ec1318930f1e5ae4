"""Figures as a page shows them: their words in the hues of a theme, and laid out anew on a narrow screen."""

import functools
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# The figures' mid-tones (annotated.mplstyle) read on any ground, but not at 4.5:1: on the page their words take its hues.
WORDS = {  # in the figure -> on light, on dark
    "767676": ("5d5a53", "a9a69d"), "8a8a8a": ("66665f", "a9a69d"), "2a7fbf": ("1d6ba6", "6fb1e6"), "d9861a": ("9a5a08", "e6a44a"),
    "1f9d77": ("14724f", "56c09a"), "c2557f": ("a83f68", "e58bb0"), "7d6bb5": ("6a57a8", "ab9be0"),
}
WORD = re.compile(r'(<(?:text|tspan)\b[^>]*?\bfill: #)(' + "|".join(WORDS) + r")\b")  # a formula is of several
PALE = re.compile(r'(?:fill|stroke): #(' + "|".join(WORDS) + r')\b(?=[^"]*\bopacity: 0?\.\d)')  # it lets the ground shine through
FIGURE = re.compile(r'<img\b(?![^>]*\bonly-)([^>]*?\bsrc=")([^":]*_images/[^":]+)\.svg("[^>]*)>')
NARROW = "(max-width: 480px)"


def coloured(svg: str, theme: int) -> str:
    "A figure whose words have the hues of a theme, 0 light or 1 dark; on dark what is pale has them, too."
    svg = WORD.sub(lambda found: found[1] + WORDS[found[2]][theme], svg)
    return PALE.sub(lambda found: found[0].replace(found[1], WORDS[found[1]][1]), svg) if theme else svg


@functools.cache
def narrow_versions() -> dict[str, str]:
    "The figures of all notebooks -> what tools/narrow.py made of them."
    found = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for output in cell.get("outputs", []):
                if below := output.get("metadata", {}).get("narrow"):
                    found["".join(output["data"]["image/svg+xml"]).strip()] = below
    return found


def themed(page: str, folder: Path) -> str:
    "A page whose figures come in two versions, of which a theme shows its own, each with one for narrow screens if its notebook has one."
    def both(found: re.Match) -> str:
        path = (folder / f"{found[2]}.svg").resolve()
        dark, narrow = (path.with_name(f"{path.stem}-{kind}.svg") for kind in ("dark", "narrow"))
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        below = narrow_versions().get(text.strip())
        if below or WORD.search(text):  # as the notebook has it: copied anew by this build
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
