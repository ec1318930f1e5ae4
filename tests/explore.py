"""What the tests of explorers share: JavaScript run by node, and a page with one element of the book in a browser."""

import html
import json
import subprocess
from pathlib import Path

import pytest
from browsers import CHROMIUM, NODE, has_playwright
from explorers import FOLDER, needs, program, require
from page import opened

STATIC = FOLDER.parent
with_node = pytest.mark.skipif(NODE is None, reason="no node here to run the explorers' arithmetic with")
with_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to touch an explorer with")


def node(script: str, expression: str, data=None):
    """The value of a JavaScript expression over the exports of one explorer's script; `x` in it is `data`.

    Numbers arrive as JSON has them, so NaN and the infinities come back as None.
    """
    code = f"""
      {program(script)}
      const shared = {require(FOLDER / "shared.js")};
      const x = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
      process.stdout.write(JSON.stringify({expression}));
    """
    done = subprocess.run([NODE, "-e", code], input=json.dumps(data), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def page_with(folder: Path, name: str, inside: str = "<p>the still</p>", attributes: str = "") -> str:
    """A page as a file, with nothing but one element of the book and its scripts; returns its address."""
    scripts = [*needs(name), name]
    styles = [STATIC / "book.css", STATIC / "drawing.css", FOLDER / "explorers.css"]
    text = "<!doctype html><html lang='en' data-theme='light'><meta charset='utf-8'><title>one explorer</title>"
    text += "".join(f"<link rel='stylesheet' href='{html.escape(path.as_uri())}'>" for path in styles)
    text += "".join(f"<script defer src='{(FOLDER / f'{script}.js').as_uri()}'></script>" for script in scripts)
    text += f"<body><main class='bd-article'><annotated-{name} {attributes}>{inside}</annotated-{name}></main>"
    path = folder / f"{name}.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def rest(page):
    "Wait until an explorer shows what a change has done, and has said it: that it does when nothing changes for 150 ms."
    page.wait_for_timeout(400)


@pytest.fixture(scope="module")
def browser():
    """Chromium, closed after the file's last test."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here to look at the page with")
    if not has_playwright():
        pytest.skip("playwright is not installed")
    with opened() as chromium:
        yield chromium


@pytest.fixture
def alive(browser, tmp_path):
    """alive(name) opens one explorer at phone or desk width and fails at the end if its page complained of anything."""
    trouble, pages = [], []

    def open_(name: str, width: int = 1280, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
        page.on("pageerror", lambda e: trouble.append(f"script: {e}"))
        page.on("console", lambda m: trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
        page.on("request", lambda r: trouble.append(f"foreign: {r.url}") if not r.url.startswith(("file:", "data:", "blob:")) else None)
        page.goto(page_with(tmp_path, name, **options))
        page.wait_for_selector(f"annotated-{name}.alive")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{name} is {wide} px wider than a window of {width} px"
        pages.append(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert not trouble
