"""Print the built book: one PDF of the hour, one of the main line, from _build/html by headless Chromium.

    python tools/pdf.py [--html _build/html] [--out _build/pdf]

A copy of both goes into the built page's _static/, where the front page's links lead. Without Chromium nothing is made,
and a line says so: the page builds without a browser.
"""

import argparse
import json
import re
import shutil
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from chapters import paths
from page import CHROMIUM, ROOT, opened, served, settled

if TYPE_CHECKING:
    from pypdf import PdfWriter

BOOKS = {"the-hour": ("The paper in an hour", ["notebooks/the-hour.html"]), "main-line": ("The main line", [])}
Place = tuple[int, float | None]  # a page of the PDF, from 0, and the height on it
FOOT = """
@page {{
  margin: 18mm 16mm;
  @bottom-left {{ content: {title}; font: 8px sans-serif; color: #555 }}
  @bottom-right {{ content: counter(page); font: 8px sans-serif; color: #555 }}
}}
html {{ counter-set: page {before} }}
"""
# Chromium writes down where an element stands only if a link of the same page leads there: one to each, out of sight.
MARK = """() => {
  const links = document.body.appendChild(document.createElement('div'));
  links.hidden = true;
  for (const e of document.querySelectorAll('.bd-article [id]'))
    links.appendChild(document.createElement('a')).href = '#' + e.id;
}"""


def main_line() -> list[str]:
    "The main line's pages in their order."
    return [f"notebooks/{path.stem}.html" for path in paths(ROOT)]


def printed(page, address: str, before: int = 0) -> bytes:
    "One page as PDF, numbered from before + 1, with everything unfolded that a reader of paper would miss."
    page.goto(address, wait_until="load")
    page.evaluate("() => document.querySelectorAll('img[loading]').forEach(e => e.loading = 'eager')")
    page.evaluate("() => Promise.all([...document.images].map(e => e.decode().catch(() => 0)))")
    settled(page)
    page.evaluate(MARK)
    page.add_style_tag(content=FOOT.format(title=json.dumps(page.title(), ensure_ascii=False), before=before))
    return page.pdf(format="A4", print_background=True, tagged=True)


def bound(page, site: str, places: list[str]) -> "PdfWriter":
    "Pages of a served site as one PDF, whose links lead nowhere on this machine."
    from pypdf import PdfReader, PdfWriter

    book, starts, base = PdfWriter(), {}, ""
    for place in places:
        before = len(book.pages)
        part = PdfReader(BytesIO(printed(page, f"{site}/{place}", before)))
        heading = re.sub(r"\s+", " ", page.locator(".bd-article h1").first.text_content()).strip("# ")
        book.append(part, outline_item=heading, import_outline=False)
        marks = {name.removeprefix("/"): mark for name, mark in part.named_destinations.items()}
        at = {name: (before + part.get_destination_page_number(mark), mark.get("/Top")) for name, mark in marks.items()}
        starts[place] = at | {"": (before, None)}
        told = page.locator("link[rel=canonical]")
        base = told.first.get_attribute("href").removesuffix(place) if told.count() else base
    relink(book, starts, site, base)
    return book


def relink(book: "PdfWriter", starts: dict[str, dict[str, Place]], site: str, base: str) -> None:
    """Lead the links of a bound book to places in it, or else to the published page; where there is none, to nothing.

    Args:
        starts: address of a page -> anchor -> where it stands; the page itself has the anchor "".
        site: where the pages were served.
        base: where they are published, or "".
    """
    from pypdf.generic import ArrayObject, NameObject

    order = sorted(starts, key=lambda place: starts[place][""][0])
    for number, sheet in enumerate(book.pages):
        here = [place for place in order if starts[place][""][0] <= number][-1]
        kept = ArrayObject()
        for entry in sheet.get("/Annots", []):
            mark = entry.get_object()
            anchor = mark.pop("/Dest", None)
            address = f"{site}/{here}#{anchor.removeprefix('/')}" if anchor else mark.get("/A", {}).get("/URI", "")
            if address.startswith(site):
                mark.pop("/A", None)
                mark.update(lead(book, starts, address.removeprefix(f"{site}/"), base))
            if "/A" in mark or "/Dest" in mark:
                kept.append(entry)
        sheet[NameObject("/Annots")] = kept
    for names in ("/Names", "/Dests"):  # of anchors with one name, these have the first only
        book.root_object.pop(names, None)


def lead(book: "PdfWriter", starts: dict[str, dict[str, Place]], address: str, base: str) -> dict:
    "What makes a link lead to an address within the site: an entry of its annotation, or none."
    from pypdf.generic import ArrayObject, DictionaryObject, FloatObject, NameObject, NullObject, TextStringObject

    place, _, anchor = address.partition("#")
    marks = starts.get(place, {})
    if goal := marks.get(unquote(anchor), marks.get("")):
        number, top = goal
        height = NullObject() if top is None else FloatObject(top)
        fit = [book.pages[number].indirect_reference, NameObject("/XYZ"), NullObject(), height, NullObject()]
        return {NameObject("/Dest"): ArrayObject(fit)}
    if not base:
        return {}
    action = {NameObject("/S"): NameObject("/URI"), NameObject("/URI"): TextStringObject(base + address)}
    return {NameObject("/A"): DictionaryObject(action)}


def link(html: Path) -> None:
    "Name both on the front page and on the hour's; only here, because a build without a browser has none to name."
    for place, up in (("index.html", ""), ("book/index.html", "../"), ("notebooks/the-hour.html", "../")):
        path = html / place
        text = path.read_text(encoding="utf-8")
        links = ", ".join(f'<a href="{up}_static/{name}.pdf">{title}</a>' for name, (title, _) in BOOKS.items())
        if "as-pdf" not in text:
            line = f'<p class="as-pdf">On paper: {links} (PDF).</p>'
            path.write_text(text.replace("</article>", f"{line}</article>", 1), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--out", type=Path, default=ROOT / "_build" / "pdf")
    options = parser.parse_args()
    if CHROMIUM is None:
        print("there is no Chromium: no PDF is made")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    with served(options.html) as site, opened() as browser:
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(180_000)
        for name, (title, names) in BOOKS.items():
            book = bound(page, site, names or main_line())
            book.add_metadata({"/Title": f"Attention Is All You Need, Executed: {title}"})
            book.compress_identical_objects()
            book.write(options.out / f"{name}.pdf")
            shutil.copyfile(options.out / f"{name}.pdf", options.html / "_static" / f"{name}.pdf")
            print(f"{options.out / name}.pdf: {len(book.pages)} pages")
    link(options.html)
    return 0


if __name__ == "__main__":
    sys.exit(main())
