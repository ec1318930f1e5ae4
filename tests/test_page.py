"""The built page in a browser: what a reader would stumble over, on every page of the book.

Reads `_build/html` (built here if it is not there yet). One browser and one local server serve the whole run.
"""

import base64
import functools
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import layout
import matplotlib
import page as measure
import pytest
from annotated_bundle import COMMENT, GROUPS, blocks
from browsers import CHROMIUM, has_playwright, served
from chapters import read
from web.fetch import CDN, fetch

ROOT = Path(__file__).resolve().parent.parent

HTML = ROOT / "_build" / "html"
NARROW, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 900}

WEIGHTS = ("tatoeba-en-de.js", "tatoeba-cpu.js", "grammar-tiny.js")

pytestmark = [
    pytest.mark.page,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to look at the page with"),
    pytest.mark.skipif(not has_playwright(), reason="playwright is not installed"),
]


def built() -> Path:
    if not (HTML / "book" / "index.html").exists():
        command = [Path(sys.executable).with_name("jupyter-book"), "build", "-W", "-n", "--keep-going", "."]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return HTML


def documents() -> list[str]:
    "The pages that _toc.yml lists, as addresses in the built book."
    toc = (ROOT / "_toc.yml").read_text(encoding="utf-8")
    names = re.findall(r"^\s*(?:- )?(?:root|file):\s*(\S+)", toc, re.M)
    for pattern in re.findall(r"^\s*- glob:\s*(\S+)", toc, re.M):
        names += [path.relative_to(ROOT).with_suffix("").as_posix() for path in sorted(ROOT.glob(f"{pattern}.md"))]
    return [f"{name}.html" for name in names]


@pytest.fixture(scope="module")
def site():
    "A server on the built book, so that the addresses are those of a published one."
    with served(built()) as address:
        yield address


class Seen:
    "One page open in one window, with everything it asked for and complained of."

    def __init__(self, browser, site):
        self.site = site
        self.page = browser.new_page(viewport=WIDE)
        self.page.set_default_timeout(180_000)  # a busy machine is slow, not wrong
        self.trouble: list[str] = []
        self.page.on("console", self.said)
        self.page.on("pageerror", lambda e: self.trouble.append(f"script: {e}"))
        self.page.on("requestfailed", lambda r: self.trouble.append(f"failed: {r.url}"))
        self.page.on("response", lambda r: self.trouble.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
        self.page.on("request", self.asked)

    def said(self, message) -> None:
        late = "preloaded using link preload but not used within a few seconds"  # says how busy the machine is: FACES asks instead
        if message.type in ("error", "warning") and late not in message.text:
            self.trouble.append(f"console: {message.text}")

    def asked(self, request) -> None:
        own = request.url.startswith((self.site, "data:", "blob:"))
        if not own and not request.url.startswith(allowed()):
            self.trouble.append(f"external request: {request.url}")

    def open(self, name: str):
        self.trouble.clear()
        self.page.goto(f"{self.site}/{name}", wait_until="load")
        # A colour must not be read while it fades from one theme into the other.
        self.page.add_style_tag(content="*, ::before, ::after { transition: none !important; animation: none !important }")
        self.page.evaluate("() => window.MathJax?.startup?.promise")
        self.page.evaluate("() => document.fonts.ready")
        return self.page


@functools.cache
def allowed() -> str:
    "Where there is no npm the CDN is allowed, and only then."
    hosted = (HTML / "_static" / "mathjax" / "tex-mml-chtml.js").exists()
    return "no external request is allowed:" if hosted else CDN.split("/mathjax")[0]


# What is asked of every page runs in the page: each function returns a list of complaints.

# What a page preloads, it must use: every typeface that it asks for at once has been loaded for some of its words.
FACES = """() => {
  const faces = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).filter(rule => rule instanceof CSSFontFaceRule);
  const used = new Set([...document.fonts].filter(face => face.status === 'loaded').map(face => face.family.replaceAll('"', '')));
  return [...document.querySelectorAll('link[rel=preload][as=font]')].map(link => link.href.split('/').pop()).filter(file =>
    !faces.some(rule => rule.style.getPropertyValue('src').includes(file) && used.has(rule.style.getPropertyValue('font-family').replaceAll('"', ''))));
}"""

SIDEWAYS = """() => {
  const wide = document.documentElement.clientWidth, out = [];
  if (document.documentElement.scrollWidth <= wide && document.body.scrollWidth <= wide) return out;
  for (const e of document.querySelectorAll('.bd-main *')) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > wide + 1) out.push(e.tagName + '.' + e.className + ' ends at ' + Math.round(box.right));
  }
  return ['the page scrolls sideways', ...out.slice(0, 8)];
}"""

FORMULAS = """() => {
  const out = [];
  for (const e of document.querySelectorAll('.bd-article .math')) {
    if (!e.querySelector('mjx-container')) out.push('not typeset: ' + e.textContent.slice(0, 60));
  }
  for (const e of document.querySelectorAll('mjx-merror, [data-mjx-error]')) out.push('error in a formula: ' + (e.dataset.mjxError || e.textContent).slice(0, 60));
  const walk = document.createTreeWalker(document.querySelector('.bd-article'), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.parentElement.closest('pre, code, script, style, mjx-container, svg')) continue;
    const raw = node.data.match(/\\$[^$\\n]{1,80}\\$|\\\\(frac|sqrt|mathrm|mathbf|top|begin|left|cdot|text)\\b|\\\\[()[\\]]/);
    if (raw) out.push('raw TeX in the text: ' + node.data.trim().slice(0, 60));
  }
  return out;
}"""

IMAGES = """() => {
  const out = [], trivial = /^(image|figure|plot|chart|picture|graph|svg|png|logo|untitled|_?images?\\/.*|.*\\.(svg|png|jpe?g))$/i;
  for (const e of document.querySelectorAll('.bd-article img, .bd-article svg')) {
    if (e.closest('mjx-container, button, .sd-summary-icon, .sd-summary-state-marker, [aria-hidden=true]') || e.parentElement.closest('svg')) continue;
    const own = e.tagName === 'IMG' ? e.getAttribute('alt') : e.getAttribute('aria-label') || e.querySelector(':scope > title')?.textContent;
    const alt = (own || e.closest('[role=img]')?.getAttribute('aria-label') || '').trim();
    if (alt.length < 20 || alt.split(/\\s+/).length < 4 || trivial.test(alt)) out.push((e.getAttribute('src') || e.outerHTML.slice(0, 80)) + ': alternative text is "' + alt + '"');
    if (e.tagName === 'IMG' && e.complete && !e.naturalWidth) out.push('not shown: ' + e.src);
  }
  return out;
}"""

CLIPPED = """() => {
  const out = [], right = document.documentElement.clientWidth;
  for (const e of document.querySelectorAll('.bd-article aside, .bd-article .margin, .bd-article pre, .bd-article figure, .bd-article p')) {
    const box = e.getBoundingClientRect();
    if (box.width && (box.right > right + 1 || box.left < -1)) out.push(e.tagName + ' from ' + Math.round(box.left) + ' to ' + Math.round(box.right) + ' of ' + right + ': ' + e.textContent.slice(0, 50));
  }
  for (const e of document.querySelectorAll('.bd-sidebar-primary, .bd-header-article')) if (e.getBoundingClientRect().height) out.push('printed: ' + e.className);
  return out;
}"""

# What print keeps on one page and takes more of it than 40 %: the page before may end that empty. A high drawing needs it for its words.
PRINTED = re.compile(r"notebooks/(the-hour|\d\d-(?!.*-questions).*)\.html")  # as tools/pdf.py does
WHOLE = """() => {
  const out = [], page = (297 - 36) / 25.4 * 96;
  const kept = s => s.breakInside === 'avoid' || /auto|scroll|hidden/.test(s.overflowX + s.overflowY);
  const walk = e => {
    const s = getComputedStyle(e), high = e.getBoundingClientRect().height;
    if (s.display === 'none' || high <= .4 * page) return;
    if (e.matches('img, svg, table') && s.breakInside === 'avoid' || s.display !== 'inline' && kept(s)) {
      const drawn = [e, ...e.querySelectorAll('svg')].map(d => parseFloat(d.style.getPropertyValue('--high')) || 0);
      if (high > 1.05 * Math.max(...drawn) * .18 / 25.4 * 96) out.push(Math.round(high / page * 100) + ' % of a page: ' + e.localName + ' ' + e.textContent.trim().slice(0, 50));
    } else for (const child of e.children) walk(child);
  };
  walk(document.querySelector('.bd-article'));
  return out;
}"""

CONTRAST = """() => {
  const parse = c => { const n = c.match(/[\\d.]+/g).map(Number); return c.startsWith('color(srgb') ? n.slice(0, 3).map(v => v * 255).concat(n[3] ?? 1) : n; };
  const over = ([r, g, b, a = 1], under) => a > .99 ? [r, g, b] : [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const out = new Set();
  const look = (e, ground, opacity) => {
    if (e.matches('mjx-assistive-mml, svg:not(.model, .drawing), script, :disabled, [aria-disabled=true]')) return;
    const s = getComputedStyle(e), svg = e instanceof SVGElement;
    if (s.display === 'none') return;
    if (!svg) ground = over(parse(s.backgroundColor), ground);
    opacity *= s.opacity;
    const text = svg ? e.matches('text:not(.drawing .on, .drawing .under)') : e.matches('mjx-c, input:not([type=checkbox], [type=range]), textarea, select') || [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (text && s.visibility === 'visible' && opacity && !(e.matches('mjx-c') && e.closest('[style*=color]'))) {
      const [r, g, b, a = 1] = parse(svg ? s.fill : s.color), box = e.getBoundingClientRect();
      const x = light(over([r, g, b, a * opacity], ground)), y = light(ground), size = parseFloat(s.fontSize);
      const ratio = (Math.max(x, y) + .05) / (Math.min(x, y) + .05), large = !svg && (size >= 24 || size >= 18.66 && s.fontWeight >= 700);
      if (ratio < (large ? 3 : 4.5) && box.width > 1 && box.height > 1) out.add(e.localName + '.' + (e.className.baseVal ?? e.className) + ' ' + s.color + ': ' + ratio.toFixed(2));
    }
    for (const child of e.children) look(child, ground, opacity);
  };
  look(document.body, [255, 255, 255], 1);
  return [...out].slice(0, 8);
}"""


# Words of code and glyphs of formulas are thousands of elements, in which axe-core finds nothing: it gets them plain.
PLAIN = """() => {
  for (const e of document.querySelectorAll('.highlight pre')) e.textContent = e.textContent;
  for (const e of document.querySelectorAll('mjx-math')) e.textContent = '';
}"""


# One page of a kind. axe-core gets the list of all pages, the same markup everywhere, with these only, and of these only
# does it judge the contrast, which takes it longer than all other rules, and the stylesheet: CONTRAST reads every page.
LISTED = ("book/index.html", "notebooks/the-hour.html", "notebooks/02-attention.html", "notebooks/02-attention-questions.html", "book/api/attention.html")
LIST = ".bd-sidebar-primary"


def theme(page, mode: str) -> None:
    "Switch as the button does."
    page.evaluate("m => Object.assign(document.documentElement.dataset, {mode: m, theme: m})", mode)


@pytest.fixture(scope="module")
def visit(browser, site):
    """Everything found on a page in one visit: kind of trouble -> complaints.

    The page is opened once and looked at wide, narrow, printed, light and dark.
    """
    window = Seen(browser, site)
    folder = fetch()
    axe = folder and (folder / "test" / "axe.min.js").read_text(encoding="utf-8")

    @functools.cache
    def look(name: str) -> dict[str, list[str]]:
        page = window.open(name)
        found = {"faces": page.evaluate(FACES), "formulas": page.evaluate(FORMULAS), "images": page.evaluate(IMAGES), "contrast": [], "axe": []}
        for mode in ("light", "dark"):
            theme(page, mode)
            found["contrast"] += [f"{mode}: {line}" for line in page.evaluate(CONTRAST)]
        found["cells"] = page.evaluate(measure.WIDE, measure.CELL)
        page.set_viewport_size(NARROW)
        found["narrow"] = page.evaluate(SIDEWAYS)
        page.set_viewport_size({"width": 360, "height": 780})
        found["cut"] = page.evaluate(measure.WIDE, measure.ANY_FORMULA)[2] + page.evaluate(measure.SMALL)
        found["folded"] = page.evaluate(measure.WIDE, measure.CELL)[2]
        page.set_viewport_size({"width": 700, "height": 1000})  # A4 between its margins
        page.emulate_media(media="print")
        found["print"] = page.evaluate(CLIPPED)
        found["whole"] = page.evaluate(WHOLE) if PRINTED.fullmatch(name) else []
        if axe:
            page.evaluate(PLAIN)  # before it is laid out once more
        page.emulate_media(media="screen")
        page.set_viewport_size(WIDE)
        if axe:
            theme(page, "light")
            if name in LISTED:
                found["axe"] += grave(page, axe)
                theme(page, "dark")
                found["axe"] += [f"dark: {line}" for line in grave(page, axe, runOnly=["color-contrast"])]
            else:
                found["axe"] += grave(page, axe, [LIST], rules={"color-contrast": {"enabled": False}}, preload=False)
        return found | {"console": list(window.trouble)}

    look.axe = axe
    yield look
    window.page.close()


def grave(page, axe: str, without: list[str] = (), **options) -> list[str]:
    "What axe-core finds serious or critical, not within the elements named."
    page.evaluate("source => { if (!window.axe) (0, eval)(source); }", axe)
    run = "async ([without, options]) => (await axe.run({include: [document], exclude: without}, options)).violations"
    found = page.evaluate(run, [list(without), {"resultTypes": ["violations"], **options}])
    found = [f for f in found if f["impact"] in ("serious", "critical")]
    return [f"{f['id']}: {f['help']}: {f['nodes'][0]['html'][:140]} ({len(f['nodes'])})" for f in found]


def test_there_are_pages():
    built()
    assert "book/index.html" in documents() and len(documents()) >= 3
    assert set(LISTED) <= set(documents())
    missing = [name for name in documents() if not (HTML / name).exists()]
    assert not missing, f"_toc.yml lists what was not built, so `make book` first: {missing}"


@functools.cache
def anchors(path: Path) -> set[str]:
    return {html.unescape(found) for found in re.findall(r'\s(?:id|name)="([^"]+)"', path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", documents())
def test_every_link_within_the_book_leads_somewhere(name):
    page = built() / name
    links = re.findall(r'<a\b[^>]*\bhref="([^"?]+)', page.read_text(encoding="utf-8"))
    local = {html.unescape(link) for link in links if not re.match(r"[a-z]+:|//", link)}
    assert any(not link.startswith("#") for link in local), "a page without a link to another"
    for link in sorted(local):
        target, _, anchor = link.partition("#")
        place = (page.parent / target).resolve() if target else page
        assert place.exists(), link
        assert not anchor or unquote(anchor) in anchors(place), link


# Handlers that the theme writes into its own buttons; a policy without 'unsafe-inline' would have them do nothing.
THEME = {"toggleFullScreen()", "window.print()"}


def unsafe(page: str) -> list[str]:
    "What in a page's markup a strict content policy is against, but for the theme's own; no tree, for pages are large."
    scripts = re.compile(r"(<(?:script|template)\b[^>]*>)(.*?)</(?:script|template)>", re.DOTALL)
    found = [f"{host} in code" for script in scripts.finditer(page) for host in re.findall(r"https?://[\w.-]+", script[2])]
    for tag in re.findall(r"<[a-z][^<>]*>", scripts.sub(r"\1", page)):
        values = {name.lower(): value for name, value in re.findall(r'\s([\w-]+)="([^"]*)"', tag)}
        found += [f"{name}={value!r}" for name, value in values.items() if name.startswith("on") and value not in THEME]
        found += [value for value in values.values() if value.lower().startswith("javascript:")]
        if values.get("target") == "_blank" and not re.search("noopener|noreferrer", values.get("rel", "")):
            found.append(f"a new window that can reach this one: {tag}")
        loads = re.match("<(script|img|iframe)", tag) or "stylesheet" in values.get("rel", "")
        source = values.get("src") or values.get("href") or ""
        if loads and re.match(r"(https?:)?//", source) and "integrity" not in values:
            found.append(f"from elsewhere, unchecked: {source}")
    return found


@pytest.mark.parametrize("name", documents())
def test_a_page_needs_nothing_that_a_strict_policy_forbids(name):
    assert not unsafe((built() / name).read_text(encoding="utf-8"))


def test_what_a_strict_policy_forbids_is_seen():
    bad = (
        '<b onclick="x()">', '<a href="javascript:x()">', '<a href="x" target="_blank">', '<script src="https://a.b/c.js"></script>',
        '<link rel="stylesheet" href="//a.b/c.css">', '<script type="text/inert">load("https://a.b/c.js")</script>',
        '<a rel="nofollow"\n target="_blank">',
    )
    assert [len(unsafe(markup)) for markup in bad] == [1] * len(bad)
    good = (
        '<button onclick="window.print()">', '<a rel="noopener" target="_blank" href="https://a.b">', '<script src="a.js"></script>',
        '<script integrity="sha384-x" src="https://a.b/c.js"></script>', '<link rel="canonical" href="https://a.b/">',
    )
    assert not [markup for markup in good if unsafe(markup)]


def test_a_typeface_that_no_word_uses_is_seen(browser):
    face = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansDisplay.ttf").read_bytes()  # the smallest at hand
    url = f"data:font/ttf;base64,{base64.b64encode(face).decode()}"
    page = browser.new_page()
    for family, found in (("used", 0), ("serif", 1)):
        page.set_content(
            f"<link rel=preload as=font crossorigin href='{url}'>"
            f"<style>@font-face {{ font-family: used; src: url('{url}') }} p {{ font-family: {family} }}</style><p>Words</p>"
        )
        page.evaluate("() => document.fonts.ready")
        assert len(page.evaluate(FACES)) == found, family
    page.close()


KINDS = {
    "console": "no message in the console, no failed and no external request",
    "faces": "no typeface preloaded and not used",
    "formulas": "every formula typeset, no raw TeX",
    "images": "every image with alternative text that says what is seen",
    "contrast": "text, formulas, code and drawings at a contrast of 4.5 or more, large text of 3, light and dark",
    "narrow": "no sideways scroll at 390 pixels",
    "cut": "every formula whole at 360 pixels, and of 11 pixels at least",
    "folded": "code that needs no sideways scroll at 360 pixels",
    "print": "nothing clipped on paper, and no navigation there",
    "whole": "on paper nothing is kept on one page that takes more of it than 40 %",
}


@pytest.mark.parametrize("name", documents())
def test_a_reader_meets_no_trouble(visit, name):
    "On every page, all that KINDS lists."
    found = visit(name)
    complaints = [f"{KINDS[kind]}: {line}" for kind in KINDS for line in found[kind]]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", documents())
def test_everybody_can_read_it(visit, name):
    "No finding of axe-core that is serious or critical, light or dark."
    if visit.axe is None:
        pytest.skip("axe-core comes from npm, which is not here")
    found = visit(name)["axe"]
    assert not found, "\n".join(found)


def test_nearly_all_code_fits_a_laptop(visit):
    "At 1280 pixels one cell in twenty, at most, scrolls sideways."
    seen = [visit(name)["cells"] for name in documents() if name.startswith("notebooks/")]
    wide, every = sum(found[0] for found in seen), sum(found[1] for found in seen)
    assert every > 1000 and wide <= every / 20, f"{wide} of {every}"


@pytest.mark.parametrize("query", measure.QUERIES)
def test_the_search_finds_what_a_reader_means(browser, site, query):
    results = measure.found(browser, site, query)
    assert measure.rank(results, measure.QUERIES[query]) == 1, [address for address, _ in results]
    assert not [words for _, words in results if measure.RAW.search(words)]


@pytest.mark.parametrize("query, heading", [
    ("why are embeddings multiplied by the root", "Why are embeddings multiplied by the root of d_model?"),
    ("epsilon of LayerNorm", "Where does the ε of LayerNorm stand, and does it matter?"),
    ("scale and embedding factor cancel", "“The scale 1/√d_k and the embedding factor √d_model cancel each other.”")])
def test_a_result_shows_no_tex(query, heading, browser, site):
    page = browser.new_page()
    page.goto(f"{site}/search.html?q={query}")
    titles = page.locator("#search-results li > a")
    titles.first.wait_for()
    page.wait_for_function("document.querySelectorAll('#search-results .context').length > 4")
    shown, told = titles.all_inner_texts(), page.locator("#search-results .context").all_inner_texts()
    page.close()
    assert told and not [words for words in told if measure.RAW.search(words)]
    assert any(title.endswith(heading) for title in shown), shown
    assert not [title for title in shown if re.search(r"\\[a-z]|[_^]\{", title)]


def test_a_word_that_every_object_of_javascript_has_does_not_stop_the_search(browser, site):
    assert isinstance(measure.found(browser, site, "constructor"), list), "the search ends"


SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.S)
DATA = re.compile(r"""\bdata-(?:maps|numbers|examples)=(?:'[^']*'|"[^"]*")""")


def before_touch(path: Path) -> dict[str, int]:
    "Bytes of script and data that a page brings along, uncompressed: its own files, what stands in it, attributes."
    text = path.read_text(encoding="utf-8")
    found = {"data": sum(len(one.encode()) for one in DATA.findall(text)), "inline": 0}
    for attributes, inside in SCRIPT.findall(text):
        source = re.search(r'\bsrc="([^"?]+)', attributes)
        if source is None:
            found["inline"] += len(inside.encode())
        elif "://" not in source[1]:
            found[source[1].rsplit("/", 1)[-1]] = (path.parent / source[1]).stat().st_size
    return found


@pytest.mark.parametrize("name", documents())
def test_script_and_data_before_the_first_touch_stay_within_300_kB(name):
    found = before_touch(built() / name)
    assert sum(found.values()) <= 300_000, found
    assert not [script for script in found if script in WEIGHTS], "weights are fetched at the first touch"


@pytest.mark.parametrize("name", measure.WEIGHED)
def test_a_page_is_light_and_its_formulas_are_no_tab_stops(browser, zipped, name):
    "Compressed as it is published, without scrolling: 700 kB at most."
    assert measure.weigh(browser, zipped, f"{name}.html", slow=False)["kB"] <= 700
    assert measure.stops(browser, zipped, f"{name}.html")[0] == 0


@pytest.fixture(scope="module")
def zipped():
    with measure.served(built()) as address:
        yield address


def test_a_figure_enlarges_and_escape_closes_it(browser, site):
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    names = page.eval_on_selector_all(".zoom-open", "all => all.filter(one => one.checkVisibility()).map(one => one.getAttribute('aria-label'))")
    assert len(names) > 2 and len(set(names)) == len(names), names
    page.locator(".zoom-open").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog.zoom[open] .zoom-pane > :is(img, svg)").bounding_box()["width"] >= 700
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog.zoom[open]", state="detached")
    assert page.evaluate("document.activeElement.className") == "zoom-open"
    page.locator(".zoomed > :is(img, svg)").first.click()
    page.wait_for_selector("dialog.zoom[open]")
    page.close()


def test_a_docstring_unfolds_by_the_keyboard_and_is_copied_and_printed_whole(browser, site):
    context = browser.new_context(viewport=WIDE, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    cell = page.locator("#export-attention_weights")
    height = "cell => cell.querySelector('.rest-of-doc').getBoundingClientRect().height"
    assert cell.evaluate(height) == 0
    cell.hover()
    cell.locator(".copybtn").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
    copied = {}
    exec("import math\nfrom torch import Tensor\n" + page.evaluate("navigator.clipboard.readText()"), copied)
    assert "Raises:" in copied["attention_weights"].__doc__
    page.emulate_media(media="print")
    assert cell.evaluate(height) > 100 and not cell.locator(".more").is_visible()
    page.emulate_media(media="screen")
    cell.locator(".more").focus()
    page.keyboard.press("Space")
    assert cell.evaluate(height) > 100
    context.close()


def test_the_link_past_the_questions_stands_below_both_neighbours(browser, site):
    for width in (360, 1400):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(f"{site}/notebooks/10-training.html", wait_until="load")
        left, right, onward = (page.locator(f".prev-next-area a.{name}").bounding_box() for name in ("left-prev", "right-next", "onward"))
        assert onward["y"] >= max(box["y"] + box["height"] for box in (left, right)) - 1, width
        assert onward["height"] < 60, width
        page.close()


CUT = """() => [...document.querySelectorAll('.bd-article :is(pre, .pst-scrollable-table-container)')]
  .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth).map(e => e.innerText.slice(0, 60))"""


@pytest.mark.parametrize("name", ["notebooks/00-the-paper", "notebooks/17-variations-questions", "notebooks/E-bugs", "notebooks/F-grammar", "book/A-notation"])
def test_a_wide_page_shows_code_and_tables_whole(browser, site, name):
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    page.goto(f"{site}/{name}.html", wait_until="load")
    page.evaluate("() => document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.evaluate(CUT) == []
    page.add_style_tag(content=".bd-article pre.lined { white-space: pre !important } .bd-article table { min-width: 900px !important }")
    assert page.evaluate(CUT)  # so it would be seen
    page.close()


def test_a_link_stays_in_its_line(browser, site):
    """A rule for cells must not name a class that Sphinx gives to links."""
    page = browser.new_page(viewport=WIDE)
    for name in ("notebooks/13-command-line.html", "notebooks/10-training.html"):
        page.goto(f"{site}/{name}", wait_until="load")
        links = page.eval_on_selector_all(".bd-article p a.reference.internal, .bd-article p a.reference.internal > span",
                                          "all => all.filter(e => !e.closest('nav, .export-line')).map(e => getComputedStyle(e).display)")
        assert len(links) > 10 and set(links) <= {"inline", "inline-block"}, (name, set(links))
    page.close()


def test_of_all_questions_stay_those_that_hold_the_words(browser, site):
    "In any order, in the question or its answer, a formula without its signs; a section without any is gone."
    page = browser.new_page()
    page.goto(f"{site}/book/questions.html")
    shown = page.locator(".bd-article section li:visible")
    every, line, told = shown.count(), page.get_by_role("searchbox", name="Show only questions"), page.locator(".sieve output")
    assert told.inner_text() == ""
    for words in ("DIVIDED d_k", "beam wider", "d_model"):
        line.fill(words)
        texts = ["".join(c for c in text.lower() if c.isalnum() or c.isspace()) for text in shown.all_text_contents()]
        assert 0 < len(texts) < every / 4 and told.inner_text() == f"{len(texts)} of {every}"
        assert all(word.lower().replace("_", "") in text for text in texts for word in words.split())
        assert page.locator(".bd-article section section:visible").count() == page.locator(".bd-article section section:visible:has(li:visible)").count() < 8
    line.press("Enter")  # is no request
    assert shown.count() == len(texts)
    page.goto(f"{site}/index.html")
    page.go_back()  # the browser gives the line its words again
    assert line.input_value() == "d_model" and shown.count() == len(texts) and told.inner_text() == f"{len(texts)} of {every}"
    entries = page.locator(".page-toc a[href^='#']")  # the contents beside lead to what is shown, and to nothing else
    lead = page.evaluate("() => [...document.querySelectorAll('.bd-article section section')].filter(e => !e.hidden).map(e => '#' + e.id)")
    every_entry = entries.count()
    assert [entry.get_attribute("href") for entry in entries.all() if entry.is_visible()] == lead and 0 < len(lead) < every_entry
    line.fill("xyzzy")
    assert shown.count() == 0 and told.inner_text().startswith("None")
    line.fill("(")
    assert shown.count() == every and told.inner_text() == "Only letters and digits are looked for."
    line.fill("")
    assert shown.count() == every and page.locator(".bd-article section section:visible").count() == 8
    page.close()


def test_a_page_asks_for_one_stylesheet_and_one_script_of_the_theme():
    "A request takes half a second on a slow phone; only explorers and the search have scripts of their own."
    built()
    for name in (*LISTED, "search.html", "404.html", "index.html"):
        page = parsed(name)
        assert len(page.select("link[rel=stylesheet]")) == 1, name
        scripts = [e for e in page.select("script[src]") if not re.search("explorers/|searchtools|language_data|searchindex|mathjax", e["src"])]
        assert len(scripts) == 1 and all(e.has_attr("defer") for e in page.select("script[src]")), name


def asking(css: str) -> list[str]:
    "The selectors of a stylesheet that ask what is inside of an element, where a page is read on a screen."
    out = []
    for prelude, inside in blocks(COMMENT.sub("", css)):
        if inside is not None and prelude.startswith(GROUPS) and "print" not in prelude:
            out += asking(inside)
        elif ":has(" in prelude:
            out.append(prelude)
    return out


def test_no_rule_asks_for_the_inside_of_an_element():
    """On a slow processor a browser takes longer than a frame to ask such rules again, at each move of a slider.

    For print it asks once.
    """
    css = (built() / "_static" / "styles.css").read_text(encoding="utf-8")
    assert css.count("{") > 1000 and not asking(css)
    assert asking("a:has(b) {} @media screen { c:not(:has(d)) {} } @media print { e:has(f) {} }") == ["a:has(b)", "c:not(:has(d))"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_figure_is_seen_once_with_its_caption(browser, site, theme):
    "In its theme's version, with scripts, which put it into a box that enlarges, and without them."
    for scripts in (True, False):
        context = browser.new_context(viewport=WIDE, java_script_enabled=scripts)
        page = context.new_page()
        page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
        if scripts:
            page.evaluate("theme => document.documentElement.dataset.theme = theme", theme)
        kinds = [f"figure :is(.only-light, .only-dark) >> visible={sight}" for sight in ("true", "false")]
        shown, hidden = (page.locator(kind).evaluate_all("all => all.map(e => e.className)") for kind in kinds)
        seen = theme if scripts else "light"
        assert shown and all(f"only-{seen}" in name for name in shown), shown
        assert not [name for name in hidden if f"only-{seen}" in name], hidden
        assert page.locator("figure:has(.only-light) figcaption >> visible=false").count() == 0
        page.emulate_media(media="print")  # paper is light
        printed = page.locator("figure :is(.only-light, .only-dark) >> visible=true").evaluate_all("all => all.map(e => e.className)")
        assert printed and all("only-light" in name for name in printed), printed
        context.close()


def test_a_narrow_page_shows_a_figure_s_panels_below_each_other(browser, site):
    "With words of a size to read; enlarged, the figure is as the chapter draws it."
    shown = "img => [img.currentSrc.split('-').pop(), img.naturalWidth, img.getBoundingClientRect().width]"
    for width, narrow in ((360, True), (1280, False)):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(f"{site}/notebooks/15-results.html", wait_until="load")
        image = page.locator("picture img.only-light").first
        image.scroll_into_view_if_needed()
        page.wait_for_function("img => img.complete && img.naturalWidth", arg=image.element_handle())
        source, drawn, seen = image.evaluate(shown)
        assert (source == "narrow.svg") == narrow
        assert seen / drawn > 0.8, (width, seen, drawn)  # their letters are 8 CSS pixels high or more
        image.click()
        assert "narrow" not in page.locator("dialog.zoom img").evaluate("img => img.currentSrc")
        page.close()


# What a browser leaves out of sight, and what stands out of a section whose sides a narrow page cuts.
LATE = "() => [...document.querySelectorAll('.bd-article h2')].map(e => e.checkVisibility({contentVisibilityAuto: true}))"
OUTSIDE = """() => {
  const out = [];
  for (const section of document.querySelectorAll('.bd-article section > section')) {
    const box = section.getBoundingClientRect();
    for (const e of section.querySelectorAll('*')) {
      if (e.closest('mjx-assistive-mml, svg, .copybtn, [hidden], .visually-hidden')) continue;
      const own = e.getBoundingClientRect(), scrolls = e.parentElement.closest('pre, .pst-scrollable-table-container, .text_html, mjx-container');
      if (own.width && !scrolls && (own.left < box.left - 1 || own.right > box.right + 1)) out.push(section.id + ': ' + e.localName + '.' + e.className + ' from ' + own.left + ' to ' + own.right);
    }
  }
  return out;
}"""


@pytest.mark.parametrize("name", LISTED)
def test_a_narrow_page_lays_out_what_is_near_and_cuts_nothing(browser, site, name):
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/{name}", wait_until="load")
    page.wait_for_timeout(300)
    assert not any(page.evaluate(LATE)[-1:]), "the last section is laid out before one comes near"
    for width in (390, 1100):
        page.set_viewport_size({"width": width, "height": 844})
        assert not page.evaluate(OUTSIDE), width
    for width, media in ((1280, "screen"), (700, "print")):
        page.emulate_media(media=media)
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_timeout(100)
        assert all(page.evaluate(LATE)), media
    page.close()


THERE = "id => { const { top } = document.getElementById(id).getBoundingClientRect(); return -1 <= top && top <= 200; }"


@pytest.mark.parametrize(("name", "place"), [("07-transformer", "cached-decoding"), ("07-transformer", "what-comes-next"),
                                             ("the-hour", "where-it-attends"), ("02-attention-questions", "q-additive-cost")])
def test_a_link_to_a_place_far_down_leads_there_on_a_phone(browser, site, name, place):
    "What stands above it has no height yet but the one that the build guessed."
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/notebooks/{name}.html#{place}", wait_until="load")
    page.wait_for_function(THERE, arg=place, timeout=5000)  # a busy machine is slow, not wrong
    for _ in range(3):  # what comes into sight on the way may be higher than it was said to be
        page.wait_for_timeout(300)
        top = page.evaluate("id => document.getElementById(id).getBoundingClientRect().top", place)
        assert -1 <= top <= 200, top
    assert page.evaluate("scrollY") > 844
    page.close()


def test_a_page_opened_at_a_place_begins_there_though_it_moved_meanwhile(browser, site):
    "Something above it grows after the browser went there and before the page is whole."
    page = browser.new_page(viewport=NARROW)
    page.add_init_script("""addEventListener('readystatechange', () => {
      if (document.readyState !== 'complete') return;
      document.documentElement.style.overflowAnchor = 'none';
      document.getElementById('where-it-attends').insertAdjacentHTML('beforebegin', '<div style="height: 868px"></div>');
    }, true)""")
    page.goto(f"{site}/notebooks/the-hour.html#where-it-attends", wait_until="load")
    page.wait_for_function(THERE, arg="where-it-attends", timeout=5000)
    page.close()


HERE = """() => { window.here = document.elementFromPoint(195, 500).closest('p, pre, li, h2, h3, figure, table') ?? document.elementFromPoint(195, 500);
  return [here.textContent.slice(0, 60), here.getBoundingClientRect().top]; }"""


@pytest.mark.parametrize(("name", "far"), [("the-hour", 15_000), ("11-decoding", 9_000)])
def test_a_page_read_again_or_gone_back_to_begins_where_one_was(browser, site, name, far):
    "What is above has its real height where one has been, and a guessed one when the page is new."
    page = browser.new_page(viewport=NARROW, reduced_motion="reduce")

    def stays(before):
        for _ in range(40):
            page.wait_for_timeout(100)
            text, top = page.evaluate(HERE)
            if text == before[0] and abs(top - before[1]) < 3:
                return True
        return False
    page.goto(f"{site}/notebooks/{name}.html", wait_until="load")
    page.mouse.move(195, 400)
    for _ in range(far // 1000):
        page.mouse.wheel(0, 1000)
        page.wait_for_timeout(60)
    page.wait_for_timeout(400)
    before = page.evaluate(HERE)
    assert page.evaluate("scrollY") > far / 2
    page.reload(wait_until="load")
    assert stays(before), page.evaluate(HERE)
    page.goto(f"{site}/notebooks/05-layers.html", wait_until="load")
    page.go_back(wait_until="load")
    assert stays(before), page.evaluate(HERE)
    page.close()


def test_a_page_at_a_place_that_is_read_again_stays_there(browser, site):
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/notebooks/the-hour.html#is-this-really-the-transformer", wait_until="load")
    page.wait_for_function(THERE, arg="is-this-really-the-transformer", timeout=5000)
    page.wait_for_timeout(500)
    page.reload(wait_until="load")
    page.wait_for_timeout(1000)
    page.wait_for_function(THERE, arg="is-this-really-the-transformer", timeout=5000)
    page.close()


FOCUSED = "() => document.activeElement.className"


def test_the_buttons_of_the_head_keep_the_focus(browser, site):
    "The theme takes it from them; a dialog that closes gives it back to the button that has opened it."
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    modes = []
    page.locator(".theme-switch-button:visible").first.focus()
    for _ in range(2):
        page.keyboard.press("Enter")
        page.wait_for_timeout(100)
        modes.append(page.evaluate("document.documentElement.dataset.mode"))
    assert modes[0] != modes[1] and "theme-switch-button" in page.evaluate(FOCUSED)
    for name in ("search-button", "primary-toggle", "secondary-toggle"):
        page.locator(f"button.{name}:visible").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
        assert name in page.evaluate(FOCUSED), name
    link = page.locator(".bd-article p a:visible").first
    link.focus()
    page.keyboard.press("Control+k")  # which opens the search from where one is
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert link.evaluate("e => e === document.activeElement")
    page.close()


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["narrow", "wide"])
def test_a_folded_cell_that_the_address_names_is_open_when_the_page_is_read_again(browser, site, size):
    page = browser.new_page(viewport=size)
    place = "export-_check_beam"
    for again in (False, True):
        if again:
            page.reload(wait_until="load")
        else:
            page.goto(f"{site}/notebooks/11-decoding.html#{place}", wait_until="load")
        page.wait_for_function("id => document.getElementById(id).closest('details')?.open !== false", arg=place, timeout=5000)
        page.wait_for_timeout(300)
        assert page.locator(f"#{place}").is_visible()
    page.close()


def test_a_link_of_the_drawer_leads_to_its_section_and_a_wide_page_needs_no_drawer(browser, site):
    page = browser.new_page(viewport=NARROW)
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    page.locator("button.secondary-toggle:visible").first.click()
    link = page.locator("dialog[open] a[href^='#']").last
    place = link.get_attribute("href")[1:]
    link.click()
    page.wait_for_function(THERE, arg=place, timeout=5000)
    assert page.locator("dialog[open]").count() == 0
    page.locator("button.primary-toggle:visible").first.click()
    page.wait_for_selector("dialog[open]")
    page.set_viewport_size(WIDE)
    page.wait_for_selector("dialog[open]", state="detached")
    page.wait_for_selector(".bd-sidebar-primary a:visible")
    page.close()


def test_without_scripts_the_contents_stand_below_a_narrow_page(browser, site):
    context = browser.new_context(viewport=NARROW, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/notebooks/05-layers.html", wait_until="load")
    contents, text = page.locator(".bd-sidebar-primary").bounding_box(), page.locator(".bd-article").bounding_box()
    assert contents["x"] >= 0 and contents["width"] <= 390 and contents["y"] > text["y"] + text["height"]
    assert page.locator(".bd-sidebar-primary a:visible").count() > 20 and page.locator(".sidebar-toggle:visible").count() == 0
    context.close()


def test_without_scripts_a_drawing_has_its_light_colours(browser, site):
    context = browser.new_context(viewport=WIDE, java_script_enabled=False, color_scheme="dark")
    page = context.new_page()
    page.goto(f"{site}/notebooks/07-transformer.html", wait_until="load")
    box = page.locator("svg.drawing rect.box").first
    fill, stroke = (box.evaluate(f"e => getComputedStyle(e).{what}") for what in ("fill", "stroke"))
    assert sum(map(int, re.findall(r"\d+", fill)[:3])) > 700 and stroke not in ("none", "rgb(0, 0, 0)")
    context.close()


def test_a_page_that_may_keep_nothing_works(browser, site):
    "As where a browser blocks all data of sites: reading localStorage throws."
    page, errors = browser.new_page(viewport=WIDE, color_scheme="dark"), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script("Object.defineProperty(window, 'localStorage', { configurable: true, get() { throw new DOMException('no', 'SecurityError'); } })")
    page.goto(f"{site}/notebooks/07-transformer.html", wait_until="load")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator(".zoom-open").count() > 0 and not errors
    page.close()


def test_the_theme_is_known_before_the_first_line_is_drawn(browser, site):
    "Else a dark page begins light, and every element is styled twice."
    page = browser.new_page(viewport=WIDE, color_scheme="dark")
    page.add_init_script("""new MutationObserver(seen => { for (const one of seen) (window.themes ??= []).push([one.oldValue, one.target.dataset.theme]); })
      .observe(document, {subtree: true, attributeFilter: ['data-theme'], attributeOldValue: true})""")
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    changes = page.evaluate("() => window.themes.filter(([a, b]) => a !== b)")
    assert changes == [["light", "dark"]] and page.evaluate("document.documentElement.dataset.mode") == "auto"
    page.evaluate("() => document.querySelector('.theme-switch-button').click()")
    chosen = page.evaluate("() => ({...document.documentElement.dataset})")
    page.reload(wait_until="load")
    again = page.evaluate("() => ({...document.documentElement.dataset})")
    assert chosen["mode"] != "auto" and (again["mode"], again["theme"]) == (chosen["mode"], chosen["theme"])
    page.close()


RINGS = """() => {
  const out = [], seen = new Set();
  for (const e of document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')) {
    const kind = e.localName + '.' + e.className + (e.closest('.current') ? ' of the current page' : '') + ' in ' + e.closest('.bd-sidebar-primary, .bd-sidebar-secondary, .bd-article, body').className;
    if (e.tabIndex < 0 || !e.checkVisibility({visibilityProperty: true}) || seen.has(kind)) continue;
    seen.add(kind);
    const drawn = e.querySelector(':scope > .toctree-toggle') ?? e;  // where the theme draws the ring of a fold
    const frame = e.matches('svg .query') && e.closest('svg').querySelector(':scope > .ring');  // above the cells of a grid
    const looks = () => { const s = getComputedStyle(drawn); return [s.outlineStyle + s.outlineWidth + s.outlineColor, s.boxShadow, frame && getComputedStyle(frame).stroke]; };
    document.activeElement.blur();
    const plain = looks();
    e.focus();
    const [outline, shadow, stroke] = looks(), s = getComputedStyle(drawn);
    const ring = frame ? stroke !== plain[2] && stroke !== 'none' : s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1 && outline !== plain[0];
    if (document.activeElement === e && !ring && (shadow === plain[1] || shadow === 'none')) out.push(kind);
  }
  return [out, [...seen]];
}"""


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("name", LISTED)
def test_whatever_the_keyboard_reaches_shows_a_ring(browser, site, name, mode):
    page = browser.new_page(viewport=WIDE)
    page.goto(f"{site}/{name}", wait_until="load")
    page.add_style_tag(content="*, ::before, ::after { transition: none !important; animation: none !important }")
    theme(page, mode)
    page.keyboard.press("Tab")  # a browser shows rings to those who use the keyboard
    without, kinds = page.evaluate(RINGS)
    assert not without and len(kinds) > 10
    assert name == "book/index.html" or any("a.current" in kind for kind in kinds)
    page.close()


def test_the_outline_shows_two_levels(browser, site):
    "All the time, not only those of the section where one reads; a folded level hid the heading of beam search."
    page = browser.new_page(viewport=WIDE)
    page.goto(f"{site}/notebooks/11-decoding.html", wait_until="load")
    rows = "rows => rows.map(e => [e.textContent.trim(), e.checkVisibility() && e.getClientRects().length > 0])"
    shown = dict(page.eval_on_selector_all("#pst-page-toc-nav :is(.toc-h2, .toc-h3) > a", rows))
    headings = page.eval_on_selector_all(".bd-article :is(h2, h3)", "rows => rows.map(e => e.firstChild.textContent.trim())")
    assert any("beam search" in heading for heading in headings) and len(headings) > 12
    assert not [heading for heading in headings if not shown.get(heading)]
    page.close()


def test_a_page_can_be_shared_and_edited(chapters):
    "It says what it is, where it is, how it looks as a link, and where its text is."
    addresses = re.findall("<loc>(.*?)</loc>", (HTML / "sitemap.xml").read_text(encoding="utf-8"))
    for name, page in chapters.items():
        assert len(page.select_one('meta[name="description"]')["content"]) > 50, name
        assert page.select_one('link[rel="canonical"]')["href"] in addresses
        assert page.select_one('meta[property="og:image"]')["content"].endswith("/_static/card.png")
        (edit,) = [a["href"] for a in page.select("a.btn-source-edit-button")]
        told = json.loads((ROOT / name).with_suffix(".ipynb").read_text(encoding="utf-8"))["metadata"]["annotated"]
        assert edit.endswith(f"/{told['chapter']}"), name
        places = page.select('.place a[href^="https://arxiv.org/html/1706.03762"]')
        assert len(places) == len(told.get("paper") or []), name
    assert (HTML / "_static" / "card.png").is_file() and (HTML / "404.html").is_file()
    front = parsed("index.html")
    assert front.title.get_text() == "Attention Is All You Need, Executed" and front.select_one(".main-line a")
    assert not [a["href"] for a in front.select("a[href]") if not re.match(r"[a-z]+:|#", a["href"]) and not (HTML / a["href"].split("#")[0]).exists()]


def test_no_icon_font_and_no_index_of_words_before_one_searches(chapters):
    for name, page in chapters.items():
        asked = [e.get("src") or e.get("href") for e in page.select("script[src], link[href]")]
        assert not [address for address in asked if re.search("fontawesome|searchindex|searchtools|mathjax", address)], name


BULK = re.compile(r"<(pre|mjx-container)\b[^>]*>.*?</\1>", re.S)


@functools.cache
def parsed(name: str):
    "A built page as a tree, for what needs no browser; without code and formulas, which are most of it."
    from bs4 import BeautifulSoup

    text = (HTML / name).read_text(encoding="utf-8")
    return BeautifulSoup(BULK.sub("", text), "html.parser")


@pytest.fixture(scope="module")
def chapters() -> dict:
    "Address -> tree of every chapter."
    built()
    found = {name: parsed(name) for name in documents() if name.startswith("notebooks/")}
    assert found
    return found


def test_a_chapter_shows_where_it_stands(chapters):
    "A chapter's number, its place in the paper, its minutes, the drawing with its parts lit, the launch button, and no launch cell."
    for name, page in chapters.items():
        unnumbered = name == "notebooks/the-hour.html" or name.endswith("-questions.html")
        assert bool(re.match(r"(\d+|[A-Z])\s", page.h1.get_text())) != unnumbered, name
        notebook = json.loads((ROOT / name).with_suffix(".ipynb").read_text(encoding="utf-8"))
        told = notebook["metadata"]["annotated"]
        assert bool(page.select_one(".place")) or not (told.get("paper") or told.get("module")), name
        said = [re.search(r"(\d+) minutes? to read", e.get_text()) for e in page.select(".place, .opening")]
        assert [int(found[1]) for found in said if found] == [layout.size(read(ROOT / told["chapter"])).minutes], name
        lit = {e["data-part"] for e in page.select(".here svg.model .lit")}
        assert lit == set(told.get("lit", [])), name
        assert bool(page.select_one(".here .lit-names")) == bool(lit), name
        assert page.select_one('a[href*="colab"][href*="/notebooks/"]'), name
        assert not page.select(".tag_launch"), name
        assert all(cell.select_one("details:not([open])") for cell in page.select(".tag_setup")), name
        folded = [cell for cell in page.select(".tag_hide-input") if cell.select_one(".cell_input")]
        assert all(cell.select_one("details:not([open]) .cell_input") or cell.find_parent("details", open=False) for cell in folded), name


def test_folded_cells_in_a_row_are_folded_as_one(chapters):
    "Their names stand in the line that opens them, and so many cells below it; nowhere do three of them stand apart."
    rows = [row for page in chapters.values() for row in page.select(".folded-row")]
    assert len(rows) > 10
    alone = "div.tag_export:has(> details):not(:has(> .cell_output))"
    assert not [name for name, page in chapters.items() if page.select(f"{alone} + {alone} + {alone}")]
    for row in rows:
        number, names = re.fullmatch(r"Show (\d+) cells of annotated\.\w+: (.+)", row.select_one("summary p").get_text()).groups()
        assert int(number) == len(row.select(".tag_export .cell_input")) > 2
        there = {e["id"].removeprefix("export-") for e in row.select("[id]")}
        assert set(names.split(" and ")[0].split(", ")) <= there | {"imports"}


def test_the_front_page_shows_minutes_numbers_and_lines():
    "Each chapter with its minutes, three numbers, and for each of eight questions where its answer stands."
    built()
    page = parsed("book/index.html")
    times = {a["href"].removeprefix("../notebooks/"): a.find_parent("p").select_one(".time").get_text() for a in page.select(".main-line a")}
    chapters = [name.removeprefix("notebooks/") for name in documents() if re.match(r"notebooks/\d\d-(?!.*-questions)", name)]
    assert list(times) == chapters
    assert all(re.fullmatch(r"\d+ min", time) for time in times.values())
    assert len(page.select(".numbers strong")) == 3
    rows = page.select("table.find tbody tr")
    assert len(rows) == 8 and all(row.select("td:last-child a") for row in rows)
    assert page.select_one(".shown svg.drawing")


def test_cells_and_the_package_lead_to_each_other(chapters):
    "The cell of a public name leads to its entry on its module's page, and the entry leads back to the cell."
    pages = {name: parsed(name) for name in documents() if name.startswith("book/api/")}
    entries = {f"../{name}#{e['id']}" for name, page in pages.items() for e in page.select("[id]")}
    there = {a["href"] for page in chapters.values() for a in page.select(".export-line a")}
    assert there and there <= entries, there - entries
    cells = {f"../../{name}#{e['id']}" for name, page in chapters.items() for e in page.select("[id]")}
    back = [a["href"] for page in pages.values() for a in page.select(".from-chapter a")]
    assert back and sorted(back) == sorted(place for place in cells if re.search("#export-[^_]", place))


def test_the_package_is_sorted_by_what_one_wants_to_do():
    "The groups list every module once, each with the names that have an entry on its page."
    built()
    listed = [a["href"] for a in parsed("book/api.html").select(".api-group a")]
    modules = [place for place in listed if "#module-" in place]
    pages = [name for name in documents() if name.startswith("book/api/")]
    assert sorted(f"book/{place.split('#')[0]}" for place in modules) == sorted(pages)
    entries = {f"{name.removeprefix('book/')}#{e['id']}" for name in pages for e in parsed(name).select("dt.sig[id]")}
    assert set(listed) - set(modules) <= entries
    assert not [place for place in entries if re.search(r"\._(?!_)", place)]


def test_the_complaints_are_real(browser):
    "Each check complains of a page that is wrong in just that way."
    page = browser.new_page(viewport=NARROW)
    page.set_content(
        """<html data-theme="light"><body><main class="bd-main"><article class="bd-article">
        <p style="width: 900px">wide</p><p>costs $x^2$</p><span class="math">\\(x\\)</span>
        <img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt="figure"><svg width="5" height="5"></svg>
        <figcaption>pale</figcaption></article></main>
        <style>figcaption { color: rgb(200, 200, 200) }</style></body></html>"""
    )
    assert page.evaluate(SIDEWAYS) and page.evaluate(CLIPPED)
    assert len(page.evaluate(FORMULAS)) == 3  # one not typeset, and two pieces of raw TeX
    assert len(page.evaluate(IMAGES)) >= 2
    page.close()


PALE = (
    '<p style="color: #777">', '<p style="color: #0008">', '<p style="opacity: .5">', '<div style="opacity: .5"><p>', '<p style="color: #eee; background: #fff8">',
    '<div style="background: #555"><p>', '<b style="color: #999; font-size: 40px">', '<button style="color: #999; background: #fff">',
    '<svg class="drawing"><text y="20" fill="#999">',
)
CLEAR = (
    "<p>", '<p style="color: #000a">', '<b style="color: #888; font-size: 40px">', '<div style="background: #222; color: #fff"><p>',
    '<p style="visibility: hidden; color: #fff">', '<p hidden style="color: #fff">', '<button disabled style="color: #999">', '<p style="color: #fff"><b style="color: #000">',
)


def test_pale_text_is_seen(browser):
    "Its own colour, what shines through it, and what it stands on."
    page = browser.new_page(viewport=WIDE)
    found = []
    for markup in PALE + CLEAR:
        page.set_content(f"<body>{markup}words")
        found.append(len(page.evaluate(CONTRAST)))
    page.close()
    assert found == [1] * len(PALE) + [0] * len(CLEAR)


def test_the_complaints_of_axe_are_real(browser):
    "Within the list of pages and outside of it, and in no element that is left out."
    folder = fetch()
    if folder is None:
        pytest.skip("axe-core comes from npm, which is not here")
    axe = (folder / "test" / "axe.min.js").read_text(encoding="utf-8")
    page = browser.new_page(viewport=WIDE)
    page.set_content(f"""<html lang="en"><title>t</title><main><h1>t</h1><div class="{LIST[1:]}"><a href="#a"></a></div><img src="x"></main></html>""")
    kinds = [[line.split(":")[0] for line in grave(page, axe, without)] for without in ([], [LIST])]
    page.close()
    assert kinds == [["image-alt", "link-name"], ["image-alt"]]


def test_what_is_kept_whole_cut_or_small_is_seen(browser):
    page = browser.new_page(viewport={"width": 360, "height": 780})
    formula = '<div class="math"><mjx-container display="true" style="display: block; width: 90px; overflow: auto; font-size: {}px"><i style="display: inline-block; width: {}px">x</i></mjx-container></div>'
    for high, size, wide, found in ((700, 9, 200, 1), (300, 12, 20, 0)):
        page.set_content(f"<body><article class='bd-article'><pre style='overflow: auto; height: {high}px'>x</pre><section><section id='a' style='width: 99px'><b style='display: block; width: {wide}px'>x</b></section></section>{formula.format(size, wide)}</article>")
        assert len(page.evaluate(WHOLE)) == found
        assert page.evaluate(measure.WIDE, measure.ANY_FORMULA)[:2] == [found, 1]
        assert len(page.evaluate(measure.SMALL)) == found
        assert len(page.evaluate(OUTSIDE)) == found
    page.close()


def test_a_control_without_a_ring_is_seen(browser):
    page = browser.new_page(viewport=NARROW)
    page.set_content("<style>.none:focus { outline: none }</style><body class='b'><button class='none'>a</button><button class='plain'>b</button>")
    page.keyboard.press("Tab")
    without, kinds = page.evaluate(RINGS)
    assert (without, len(kinds)) == (["button.none in b"], 2)
    page.close()
