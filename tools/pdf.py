"""Print the built book: one PDF of the hour, one of the main line, from _build/html by headless Chromium.

    python tools/pdf.py [--html _build/html] [--out _build/pdf]

A copy of both goes into the built page's _static/, where the front page's links lead. Without Chromium nothing is made,
and a line says so: the page builds without a browser.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from page import CHROMIUM, ROOT, opened, served, settled

BOOKS = {"the-hour": ("The paper in an hour", ["notebooks/the-hour.html"]), "main-line": ("The main line", [])}
FOOT = ('<div style="width: 100%; font: 8px sans-serif; color: #555; padding: 0 16mm; display: flex; '
        'justify-content: space-between"><span class="title"></span><span class="pageNumber"></span></div>')


def chapters(html: Path) -> list[str]:
    "The main line's pages in their order."
    return sorted(path.relative_to(html).as_posix() for path in (html / "notebooks").glob("[0-9][0-9]-*.html")
                  if not path.stem.endswith("-questions"))


def printed(page, address: str) -> bytes:
    "One page as PDF, with everything unfolded that a reader of paper would miss."
    page.goto(address, wait_until="load")
    page.evaluate("() => document.querySelectorAll('img[loading]').forEach(e => e.loading = 'eager')")
    page.evaluate("() => Promise.all([...document.images].map(e => e.decode().catch(() => 0)))")
    settled(page)
    margins = {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}
    return page.pdf(format="A4", print_background=True, margin=margins, tagged=True,
                    display_header_footer=True, header_template="<span></span>", footer_template=FOOT)


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
    from io import BytesIO

    from pypdf import PdfWriter

    options.out.mkdir(parents=True, exist_ok=True)
    with served(options.html) as site, opened() as browser:
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(180_000)
        for name, (title, names) in BOOKS.items():
            book = PdfWriter()
            for place in names or chapters(options.html):
                part = printed(page, f"{site}/{place}")
                heading = re.sub(r"\s+", " ", page.locator(".bd-article h1").first.text_content()).strip("# ")
                book.append(BytesIO(part), outline_item=heading, import_outline=False)
            book.add_metadata({"/Title": f"Attention Is All You Need, Executed: {title}"})
            book.compress_identical_objects()
            book.write(options.out / f"{name}.pdf")
            shutil.copyfile(options.out / f"{name}.pdf", options.html / "_static" / f"{name}.pdf")
            print(f"{options.out / name}.pdf: {len(book.pages)} pages")
    link(options.html)
    return 0


if __name__ == "__main__":
    sys.exit(main())
