"""Explorers: a page that holds `<annotated-NAME>` gets the scripts of that element, and no other page does.

A chapter writes the element around a drawing, its still, which stays wherever no script runs: in Jupyter, in Colab, in
print. Lines before and after the still are empty, so that it is read as Markdown:

    <annotated-lookup>

    ![what is seen](../book/img/attention-by-hand.svg)

    </annotated-lookup>

The script is _static/explorers/NAME.js. Its first lines may say what it needs besides shared.js: `// needs: engine`.
"""

import re
from pathlib import Path

from sphinx.util import logging

FOLDER = Path(__file__).resolve().parent.parent / "_static" / "explorers"
log = logging.getLogger(__name__)


def needs(name: str) -> list[str]:
    "The scripts of an element, in the order in which they must run."
    head = (FOLDER / f"{name}.js").read_text(encoding="utf-8")[:2000]
    more = re.search(r"^// needs: (.+)$", head, re.M)
    return ["shared", *(more[1].replace(",", " ").split() if more else []), name]


def add(app, pagename, templatename, context, doctree) -> None:
    "The scripts and the style of the elements on a page."
    found = dict.fromkeys(re.findall(r"<annotated-([a-z0-9-]+)", context.get("body") or ""))
    wanted: dict[str, None] = {}
    for name in found:
        if not (FOLDER / f"{name}.js").is_file():
            log.warning("no explorer <annotated-%s>: there is no _static/explorers/%s.js", name, name, location=pagename)
            continue
        wanted.update(dict.fromkeys(needs(name)))
    for name in wanted:
        app.add_js_file(f"explorers/{name}.js", loading_method="defer")
    if wanted:
        app.add_css_file("explorers/explorers.css")


def setup(app):
    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
