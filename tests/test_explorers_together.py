"""All explorers on one page: axe-core finds nothing serious, and Firefox shows what Chromium shows.

That what Chromium shows is what Python computes is the matter of each explorer's own test.
"""

import html
import re
import shutil
from pathlib import Path

import annotated_explorers
import annotated_model
import browsers
import explorers
import first
import pytest
from annotated_explorers import ATTRIBUTES
from explore import FOLDER, STATIC, needs
from web.fetch import fetch

from annotated.page import to_page

ROOT = Path(__file__).resolve().parent.parent
PLACE = re.compile(r"<annotated-([a-z0-9-]+)([^>]*)>\n\n!\[.*?\]\(\.\./book/img/([\w-]+\.svg)\)\n\n</annotated-\1>")
FRONT = {"model": "tatoeba-en-de", "heads": "2 4", "first": "Dogs bark.", "examples": '[{"source": "Dogs bark."}]'}
HELPERS = {"shared", "engine", "live", "boxes"}


def elements() -> dict[str, str]:
    "Each explorer as its chapter has it, with its still in the page, as the build puts it there."
    found = {}
    for path in sorted((ROOT / "book").glob("*.md")):
        for name, attributes, still in PLACE.findall(path.read_text(encoding="utf-8")):
            told = ATTRIBUTES[name]() if name in ATTRIBUTES else {}
            attributes += "".join(f" data-{key}='{html.escape(value)}'" for key, value in told.items())
            found[name] = attributes, (ROOT / "book/img" / still).read_text(encoding="utf-8")
    front = "".join(f" data-{key}='{html.escape(value)}'" for key, value in FRONT.items())
    found["translator"] = front, "<p>The still.</p>"
    return {name: f"<section aria-label='{name}'><annotated-{name}{attributes}>{still}</annotated-{name}></section>"
            for name, (attributes, still) in found.items()}


def test_every_script_of_an_element_stands_in_a_chapter():
    scripts = {path.stem for path in FOLDER.glob("*.js") if not path.stem.endswith("-first")}
    assert scripts - HELPERS == elements().keys()


def test_what_an_explorer_needs_stands_in_its_first_lines_with_or_without_spaces(tmp_path, monkeypatch):
    monkeypatch.setattr(explorers, "FOLDER", tmp_path)
    for name, line in {"close": "// needs: engine,live", "wide": "// A word.\n// needs: engine,  live", "none": "let x;"}.items():
        (tmp_path / f"{name}.js").write_text(f"{line}\nlet y;\n")
    assert [needs(name) for name in ("close", "wide", "none")] == [["shared", "engine", "live"]] * 2 + [["shared"]]
    assert explorers.needs is needs is annotated_explorers.needs and first.program is explorers.program


def test_the_engine_is_told_which_weights_are_current():
    class App:
        told = {}

        def add_js_file(self, name, **more):
            self.told[name] = more

        def add_css_file(self, _):
            pass

    annotated_explorers.add(App(), "page", "", {"body": "<annotated-attention>"}, None)
    assert {name: more.get("data-weights") for name, more in App.told.items()} == {
        f"explorers/{name}.js": annotated_model.version() if name == "engine" else None for name in [*needs("attention"), "attention"]}


def test_whatever_the_weights_are_made_of_changes_their_version(tmp_path, monkeypatch):
    monkeypatch.setattr(annotated_model, "ROOT", tmp_path)
    files = [tmp_path / "annotated/page.py", *(tmp_path / "results" / name / "model" for name in annotated_model.MODELS)]
    found = set()
    for changed in (None, *files):
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("new" if file == changed else "old")
        found.add(annotated_model.version.__wrapped__())
    assert len(found) == 1 + len(files)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> str:
    "The address of the page, a file with the weights beside it."
    folder = tmp_path_factory.mktemp("together")
    (folder / "models").mkdir()
    for path in [*FOLDER.glob("*.js"), *FOLDER.glob("*.css"), STATIC / "book.css", STATIC / "drawing.css"]:
        shutil.copy(path, folder)
    for name in ("tatoeba-en-de", "tatoeba-cpu"):
        to_page(ROOT / "results" / name, folder / f"models/{name}.js")
    parts = elements()
    scripts = dict.fromkeys(script for name in parts for script in [*needs(name), name])
    text = "<!doctype html><html lang='en' data-theme='light'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
    text += "<title>All explorers</title>"
    text += "".join(f"<link rel='stylesheet' href='{name}.css'>" for name in ("book", "drawing", "explorers"))
    text += "".join(f"<script defer src='{script}.js'></script>" for script in scripts)
    text += f"<body style='margin: 8px; color: var(--ink); background: var(--paper)'><main class='bd-article' style='max-width: 672px'><h1>All</h1>{''.join(parts.values())}</main>"
    (folder / "page.html").write_text(text, encoding="utf-8")
    return (folder / "page.html").as_uri()


# Touch one control of each kind in every element, and note what each says before and after.
TOUCH = """
const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const rest = async (root) => { // the worker answers in turn, so that what was asked before is answered, too
  await frame();
  await (await annotated.load("tatoeba-en-de")).translate("Dogs bark.", { beam: 1 });
  while (/working|Fetching/.test(root.textContent)) await frame();
  await new Promise((done) => setTimeout(done, 300)); // what has changed is said when it rests
};
const tell = (node, type, more = {}) => node.dispatchEvent(Object.assign(new Event(type, { bubbles: true, cancelable: true }), more));
const ways = {
  "input[type=range]": (one) => { one.value = Number(one.min) + 0.3 * (one.max - one.min); tell(one, "input"); },
  "input[type=radio]:not(:checked)": (one) => one.click(),
  "input[type=checkbox]": (one) => one.click(),
  "select": (one) => { one.selectedIndex = 1; tell(one, "change"); },
  ".handle": (one) => tell(one, "keydown", { key: "ArrowRight" }),
  "input[type=text]": (one) => { one.value = "Tom isn't here."; tell(one, "input"); },
};
const told = {};
await Promise.all([...document.querySelectorAll("[class~=alive]")].map(async (host) => {
  const root = host.querySelector(".explorer"), said = told[host.localName] = {};
  const now = () => root.textContent + [...root.querySelectorAll("input")].map((one) => [one.value, one.checked]);
  await rest(root);
  said.first = now();
  for (const [which, act] of Object.entries(ways)) {
    const one = [...root.querySelectorAll(which)].find((one) => !one.disabled);
    if (!one) continue;
    const before = now() + root.innerHTML;
    act(one);
    await rest(root);
    said[which] = now();
    if (before === now() + root.innerHTML) said[which] = "nothing has changed";
  }
}));
return told;
"""
ALIVE = "return [...document.querySelectorAll('[class~=alive]')].map((one) => one.localName.slice(10));"
HEADS = """return Object.fromEntries([...document.querySelectorAll("[class~=alive]")].map((host) =>
  [host.localName.slice(10), [...host.querySelectorAll("thead tr")].map((row) => [...row.children].map((cell) => cell.textContent))]));"""
# A mark whose class has no rule is black: at night it is not seen.
BLACK = """
const marks = [...document.querySelectorAll(".explorer .drawing :is(rect, circle, path, polygon)")].filter((one) => one.checkVisibility());
const black = marks.filter((one) => getComputedStyle(one).fill === "rgb(0, 0, 0)");
return [...new Set(black.map((one) => one.closest("[class~=alive]").localName.slice(10) + ": " + one.outerHTML.slice(0, 60)))];
"""
LARGE = """
const words = [...document.querySelectorAll(".explorer .drawing text")].filter((one) => one.checkVisibility());
const size = (one) => parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a;
return [...new Set(words.filter((one) => size(one) > 18).map((one) => `${one.closest("[class~=alive]").localName}: ${size(one)} px`))];
"""
AXE = """
const found = await axe.run(document, { resultTypes: ["violations"] });
return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => one.id + ": " + one.nodes.map((node) => node.html.slice(0, 140)).join(" | ").slice(0, 700));
"""


def begun(kind: str, place: str):
    path, make = browsers.BROWSERS[kind]
    if path is None:
        pytest.skip(f"no {kind} here")
    if kind == "chromium" and not browsers.has_playwright():
        pytest.skip("playwright is not installed")
    browser = make()
    browser.open(place)
    return browser


@pytest.fixture(scope="module")
def chromium(place):
    """What Chromium's elements said, and what axe-core found: at rest and touched, wide and narrow, light and dark."""
    browser = begun("chromium", place)
    trouble = []
    browser.page.on("pageerror", lambda e: trouble.append(str(e)))
    folder = fetch()
    axe = folder and (folder / "test" / "axe.min.js").read_text(encoding="utf-8")
    found = {"axe": [] if axe else None, "trouble": trouble, "alive": browser.run(ALIVE), "black": [], "large": []}

    def look(when):
        for width, mode in ((1280, "light"), (360, "dark")):
            browser.page.set_viewport_size({"width": width, "height": 900})
            browser.run("Object.assign(document.documentElement.dataset, { mode: given, theme: given });", mode)
            wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth;")
            trouble.extend([f"{when}, {width} px: {wide} px too wide"] if wide > 0 else [])
            found["black"] += browser.run(BLACK) if mode == "dark" else []
            found["large"] += browser.run(LARGE)
            if axe:
                browser.run("if (!window.axe) (0, eval)(given);", axe)
                found["axe"] += [f"{when}, {width} px, {mode}: {line}" for line in browser.run(AXE)]

    found["heads"] = browser.run(HEADS)
    look("first")
    browser.page.set_viewport_size({"width": 1280, "height": 900})
    found["told"] = browser.run(TOUCH)
    look("touched")
    browser.close()
    return found


def test_every_element_comes_alive_and_answers(chromium):
    assert sorted(chromium["alive"]) == sorted(elements())
    assert not chromium["trouble"]
    still = {name: said for name, said in chromium["told"].items() if len(said) < 2 or "nothing has changed" in said.values()}
    assert not still


def test_a_column_0_is_called_0(chromium):
    assert chromium["heads"]["heads"] == [["feature of dog", "0", "1", "2", "3"]]
    assert chromium["heads"]["stack"] == [["layer", "0", "6", "12"]]


def test_no_mark_is_black_at_night(chromium):
    assert not chromium["black"]


def test_words_of_drawings_are_no_larger_than_the_texts(chromium):
    assert not chromium["large"]


def test_axe_finds_nothing_serious_at_rest_or_touched(chromium):
    if chromium["axe"] is None:
        pytest.skip("axe-core comes from npm, which is not here")
    assert not chromium["axe"], "\n".join(chromium["axe"])


# Trees of few kinds, so that two of them have much in common, with a drawing and a box of numbers among them.
RENEW = """
const { el, svg, renew, random } = annotated;
const next = random(1), some = (list) => list[Math.floor(next() * list.length)];
const tree = (depth) => some([
  () => document.createTextNode(some(["a", "b"])),
  () => el(some(["p", "b"]), some([{}, { class: "x" }, { class: "y", title: "z" }]), depth ? many(depth - 1) : ["c"]),
  () => svg("g", some([{}, { d: "M0 0" }]), depth ? many(depth - 1) : []),
])();
const many = (depth) => Array.from({ length: Math.floor(4 * next()) }, () => tree(depth));
const box = el("div"), fresh = el("div"), wrong = [];
for (let round = 0; round < 400; round += 1) {
  fresh.replaceChildren(...many(3));
  const html = fresh.innerHTML;
  renew(box, ...fresh.childNodes);
  if (box.innerHTML !== html) wrong.push([box.innerHTML, html]);
}
const row = (x, y) => el("div", { class: "readings" }, el("p", {}, el("b", {}, x), y));
renew(box, row("1", "2"));
const [kept] = box.children, [inner] = kept.children;
kept.tabIndex = 0; // as for a box that scrolls
renew(box, row("1", "3"));
return { wrong, same: box.firstChild === kept && kept.firstChild === inner, text: box.textContent, tabIndex: kept.tabIndex };
"""


def test_what_is_renewed_is_as_if_made_anew(place):
    "And what is the same has stayed, since that is the point."
    browser = begun("chromium", place)
    found = browser.run(RENEW)
    browser.close()
    assert found == {"wrong": [], "same": True, "text": "13", "tabIndex": 0}


# Tables of which one is only read, one is put into the page, and one is taken out again.
OBSERVED = """
const { el, table } = annotated, watched = new Set(), { observe, unobserve } = ResizeObserver.prototype;
ResizeObserver.prototype.observe = function (box) { watched.add(box); return observe.call(this, box); };
ResizeObserver.prototype.unobserve = function (box) { watched.delete(box); return unobserve.call(this, box); };
const frames = async () => { for (let i = 0; i < 5; i += 1) await new Promise((done) => requestAnimationFrame(done)); };
const make = () => table(["", "a number"], [["a", "1".repeat(500)]]);
const [read, kept, gone] = [make(), make(), make()];
document.querySelector("main").append(kept, gone);
await frames();
const before = [read, kept, gone].map((box) => watched.has(box)), reached = kept.tabIndex;
gone.remove();
await frames();
const after = [read, kept, gone].map((box) => watched.has(box));
kept.remove();
return { before, after, reached };
"""


def test_only_tables_in_the_page_are_watched(place):
    browser = begun("chromium", place)
    found = browser.run(OBSERVED)
    browser.close()
    assert found == {"before": [False, True, True], "after": [False, True, False], "reached": 0}


@pytest.mark.firefox
def test_firefox_shows_what_chromium_shows(place, chromium):
    browser = begun("firefox", place)
    try:
        assert browser.run(ALIVE) == chromium["alive"]
        told = browser.run(TOUCH)
    finally:
        browser.close()
    for name, said in chromium["told"].items():
        assert told[name] == said, name
