"""The PDFs: links lead to places in them or to the published pages, and pages are numbered through."""

import importlib.util
import re
from io import BytesIO

import pdf
import pytest
from page import CHROMIUM, opened, served

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.skipif(importlib.util.find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("pypdf") is None, reason="pypdf is not installed"),
]
BASE = "https://book.example/"
HEAD = "<!doctype html><html lang='en'><head><title>{0}</title>{1}</head><body><article class='bd-article'><h1 id='top'>{0}</h1>{2}</article>"
NEXT = "<h2 id='{}' style='break-before: page'>Next</h2>"
FIRST = ("<a href='#same'>same page</a> <a href='two.html'>two</a> <a href='two.html#same'>its section</a> <a href='two.html#none'>gone</a> "
         "<a href='three.html#x'>not here</a> <a href='https://else.example/'>else</a>" + NEXT.format("same"))
SECOND = "<a href='#same'>same page</a> <a href='one.html#same'>back</a><p style='break-before: page'>more</p>" + NEXT.format("same")


@pytest.fixture(scope="module")
def bind(tmp_path_factory):
    "bind(base): two small pages as one PDF, read again; with base each says where it is published."
    from pypdf import PdfReader

    folder = tmp_path_factory.mktemp("site")
    with served(folder) as site, opened() as browser:
        def made(base: str) -> PdfReader:
            for name, body in (("one", FIRST), ("two", SECOND)):
                told = f"<link rel='canonical' href='{base}{name}.html'>" if base else ""
                (folder / f"{name}.html").write_text(HEAD.format(name, told, body), encoding="utf-8")
            out = BytesIO()
            pdf.bound(browser.new_page(), site, ["one.html", "two.html"]).write(out)
            return PdfReader(out)
        yield made


def links(book) -> list:
    "Where each link leads: a page's number, or an address."
    marks = [entry.get_object() for sheet in book.pages for entry in sheet.get("/Annots", [])]
    numbers = {sheet.indirect_reference.idnum: number for number, sheet in enumerate(book.pages)}
    return [numbers[mark["/Dest"][0].idnum] if "/Dest" in mark else mark["/A"]["/URI"] for mark in marks]


def test_links_lead_into_the_book_or_to_the_published_page(bind):
    "An anchor is that of its own page, though another page has one of the same name."
    assert links(bind(BASE)) == [1, 2, 4, 2, f"{BASE}three.html#x", "https://else.example/", 4, 1]


def test_links_to_pages_published_nowhere_are_none(bind):
    book = bind("")
    assert links(book) == [1, 2, 4, 2, "https://else.example/", 4, 1]
    assert not re.search(rb"127\.0\.0\.1|localhost", b"".join(str(sheet.get("/Annots")).encode() for sheet in book.pages))


def test_page_numbers_run_through(bind):
    "Beside each number stands the title of the chapter."
    feet = [re.search(r"^(\d+)(one|two)", sheet.extract_text()) for sheet in bind("").pages]
    assert [(int(foot[1]), foot[2]) for foot in feet] == [(1, "one"), (2, "one"), (3, "two"), (4, "two"), (5, "two")]
