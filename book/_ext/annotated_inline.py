"""Put the schematic drawings into the page itself, where they follow its theme; elsewhere they stay ordinary images.

`![what is seen](../book/img/NAME.svg)` becomes inline SVG with these words as its name, if NAME.svg is one of
tools/drawings.py: its root has the class `drawing`. The rules that such a file carries for itself are the page's already,
in _static/drawing.css.
"""

import re
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.util import logging

ROOT = '<svg xmlns="http://www.w3.org/2000/svg" class="drawing"'
log = logging.getLogger(__name__)


def inline(svg: str, alt: str) -> str | None:
    """The drawing as a part of a page, or None if the file is another kind of image."""
    if not svg.startswith(ROOT):
        return None
    svg = re.sub(r"<(style|title|desc)>.*?</\1>\n?", "", svg, flags=re.S)  # a title would pop up under the mouse
    opening, rest = svg.split(">", 1)
    high = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', opening)[1]  # print asks how far it may be made smaller
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    return f'{opening} style="--high: {high}" aria-label="{escape(alt)}">{rest.strip()}'


def resolve(app, doctree, docname: str) -> None:
    """Replace the drawings of a page that is about to be written."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        path = Path(app.srcdir, image["uri"])
        if path.suffix != ".svg" or not path.is_file():
            continue
        svg = inline(path.read_text(encoding="utf-8"), image.get("alt", ""))
        if svg is None:
            continue
        if not image.get("alt", "").strip():
            log.warning("the drawing %s needs words between the brackets that say what is seen", image["uri"], location=image)
        image.replace_self(nodes.raw("", svg, format="html"))


def setup(app):
    app.connect("doctree-resolved", resolve)
    app.add_css_file("drawing.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
