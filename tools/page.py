"""Measure the built page in headless Chromium: what a reader waits for, cannot see whole, or does not find.

    python tools/page.py [--html _build/html] [--only shape,clipped,code,weight,tabs,search] [--json FILE]

Nothing is built here, and nothing fails: the numbers are printed; some of them have tests.
The network and the processor of `weight` are those that Lighthouse calls slow 4G and a mid-tier phone.
"""

import argparse
import contextlib
import functools
import gzip
import http.server
import io
import json
import re
import shutil
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", MAC))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
HEIGHT = 844
SLOW = {"offline": False, "latency": 562.5, "downloadThroughput": 1474.56e3 / 8, "uploadThroughput": 675e3 / 8}
SLOWER = 4  # times
WEIGHED = ("book/index", "notebooks/the-hour", "notebooks/02-attention", "notebooks/07-transformer")
QUIET = 2.5  # seconds without a request or a long task: the page has come to rest

# What a reader types -> the pages, or the one place, that may come first.
QUERIES = {
    "attention": ["notebooks/02-attention"],
    "scaled dot product": ["notebooks/02-attention"],
    "layer norm": ["notebooks/05-layers", "notebooks/05-layers-questions"],
    "positional encoding": ["notebooks/06-embedding"],
    "learning rate": ["notebooks/09-optimization"],
    "label smoothing": ["notebooks/09-optimization", "notebooks/09-optimization-questions"],
    "beam search": ["notebooks/11-decoding", "notebooks/11-decoding-questions"],
    "why sqrt": ["notebooks/02-attention-questions.html#why-the-root-of-d-k-and-not-d-k"],
    "mask": ["notebooks/03-masks"],
    "kv cache": ["notebooks/11-decoding", "notebooks/07-transformer", "notebooks/07-transformer-questions"],
    "bleu": ["notebooks/12-evaluation"],
    "does label smoothing help":
        ["notebooks/09-optimization-questions.html#does-label-smoothing-worsen-perplexity-and-improve-bleu"],
    "why multiple heads": ["notebooks/04-multihead", "notebooks/04-multihead-questions"],
    "Table 1": ["notebooks/16-why-self-attention"],
    "Table 3": ["notebooks/17-variations"],
    "table 4": ["notebooks/18-parsing"],
    "fig. 2": ["notebooks/02-attention", "notebooks/04-multihead"],
    "Eq. 3": ["notebooks/09-optimization"],
    "section 3.2.1": ["notebooks/02-attention"],
}


# ---------------------------------------------------------------- a server and a browser

class Zipped(http.server.SimpleHTTPRequestHandler):
    "Files of a folder, compressed as a published page's are."

    protocol_version = "HTTP/1.1"

    def send_head(self):
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return None
        body = path.read_bytes()
        text = path.suffix in (".html", ".css", ".js", ".svg", ".json", ".txt", ".xml", ".ipynb", ".map")
        if text:
            body = gzip.compress(body, 6)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(len(body)))
        if text:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        return io.BytesIO(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder: Path, handler: type = Zipped):
    "The address at which a folder is served."
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def opened():
    "Chromium without a window."
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        except Error as error:
            raise SystemExit(f"cannot start {CHROMIUM or 'Chromium'}: install Chromium or Google Chrome") from error
        try:
            yield browser
        finally:
            browser.close()


def pages(folder: Path) -> list[str]:
    "Addresses of the book's own pages, without the search, the index and the like."
    found = [path for part in ("book", "notebooks") for path in (folder / part).rglob("*.html")]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def settled(page) -> None:
    "Wait for typefaces, and for formulas where the page typesets them itself."
    page.evaluate("() => window.MathJax?.startup?.promise")
    page.evaluate("() => document.fonts.ready")


# ---------------------------------------------------------------- what is cut or scrolls sideways

WIDE = """selector => {
  for (const fold of document.querySelectorAll('.bd-article details')) fold.open = true;
  const boxes = [...document.querySelectorAll(selector)].filter(e => e.clientWidth);
  const wide = boxes.filter(e => e.scrollWidth > e.clientWidth + 1);
  return [wide.length, boxes.length, wide.map(e => e.scrollWidth - e.clientWidth + ': ' + (e.closest('[id]')?.id || '') + ' ' + e.textContent.trim().slice(0, 60))];
}"""  # noqa: E501


def sideways(browser, site: str, names: list[str], asked: list[tuple[str, int]]) -> list[tuple[int, int, list[str]]]:
    "For each selector and width: how many boxes are wider inside than outside, of how many, and which."
    page = browser.new_page()
    page.set_default_timeout(120_000)
    out = [[0, 0, []] for _ in asked]
    for name in names:
        page.goto(f"{site}/{name}", wait_until="load")
        settled(page)
        for kept, (selector, width) in zip(out, asked):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            some, of, said = page.evaluate(WIDE, selector)
            kept[0] += some
            kept[1] += of
            kept[2] += [f"{name}: {line}" for line in said]
    page.close()
    return [tuple(kept) for kept in out]


SMALL = """() => {
  const shown = [...document.querySelectorAll('.bd-article mjx-container[display]')].filter(e => e.clientWidth);
  const sizes = shown.map(e => [parseFloat(getComputedStyle(e).fontSize), e.closest('[id]')?.id]);
  return sizes.filter(([size]) => size < 11).map(([size, id]) => `${id}: ${size} px`);
}"""


FORMULA = ".bd-article div.math:has(.eqno) mjx-container"
ANY_FORMULA = ".bd-article div.math mjx-container"
CELL = ".bd-article div.cell_input pre"


# ---------------------------------------------------------------- screens, figures and code

SCREEN = 800  # CSS pixels
SHAPE = """() => {
  const main = document.querySelector('.bd-article'), box = e => e.getBoundingClientRect();
  const shown = e => e.checkVisibility() && e.getClientRects().length;  // what is folded has a size, too
  const all = selector => [...main.querySelectorAll(selector)].filter(shown);
  const live = all('*').filter(e => e.localName.startsWith('annotated-'));
  const within = e => e.parentElement.closest('svg, .here, .zoom') || live.some(one => one.contains(e));
  const still = all('svg.drawing, svg.model.large, figure img, .cell_output img').filter(e => !within(e));
  const tops = [...still, ...live].map(e => box(e).top - box(main).top);
  return {
    height: main.offsetHeight, figures: tops.length, live: live.length, first: tops.length ? Math.min(...tops) : null,
    code: all('div.cell_input pre').reduce((sum, e) => sum + box(e).height, 0),
  };
}"""


def shapes(browser, site: str, names: list[str]) -> dict[str, dict]:
    "Of each page at 1280 pixels: its height and that of its code, its figures, and where the first of them stands."
    page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
    page.set_default_timeout(120_000)
    out = {}
    for name in names:
        page.goto(f"{site}/{name}", wait_until="load")
        settled(page)
        out[name] = page.evaluate(SHAPE)
    page.close()
    return out


def shape_table(seen: dict[str, dict]) -> list[str]:
    "The lines that say so: a page each, and the chapters together."
    lines = []
    for name, one in seen.items():
        first = f"first at {one['first'] / SCREEN:.0f}" if one["figures"] else "none"
        figures = f"{one['figures']:2} figures ({first}, {one['live']} live)"
        screens, share = one["height"] / SCREEN, one["code"] / one["height"]
        lines.append(f"{screens:5.0f} screens, {figures}, {share:4.0%} code: {name}")
    chapters = [one for name, one in seen.items() if re.match(r"notebooks/\d\d-(?!.*-questions)", name)]
    if chapters:
        height, code = (sum(one[what] for one in chapters) for what in ("height", "code"))
        figures, live = (sum(one[what] for one in chapters) for what in ("figures", "live"))
        screens = height / SCREEN
        lines.append(f"{len(chapters)} chapters: {screens:.0f} screens, {figures} figures, {live} of them live, "
                     f"{10 * figures / screens:.1f} in ten screens, {code / height:.0%} code")
    return lines


# ---------------------------------------------------------------- tab stops

STOPS = """() => {
  const all = [...document.querySelectorAll('a[href], button, input, summary, [tabindex]')];
  const stops = all.filter(e => e.tabIndex >= 0 && e.getClientRects().length);
  return [stops.filter(e => e.closest('mjx-container')).length, stops.length];
}"""


def stops(browser, site: str, name: str) -> tuple[int, int]:
    "Tab stops that are formulas, and all of them."
    page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
    page.goto(f"{site}/{name}", wait_until="load")
    settled(page)
    found = page.evaluate(STOPS)
    page.close()
    return tuple(found)


# ---------------------------------------------------------------- weight and time

WATCH = """() => {
  window.seen = {tasks: [], shift: 0, paint: 0};
  const each = take => new PerformanceObserver(list => list.getEntries().forEach(take));
  const watch = (type, take) => each(take).observe({type, buffered: true});
  watch('longtask', e => window.seen.tasks.push([e.startTime, e.startTime + e.duration]));
  watch('layout-shift', e => { if (!e.hadRecentInput) window.seen.shift += e.value; });
  watch('paint', e => { if (e.name === 'first-contentful-paint') window.seen.paint = e.startTime; });
}"""


def weigh(browser, site: str, name: str, width: int = 390, slow: bool = True) -> dict[str, float]:
    """Bytes and requests before the first touch, first paint, the end of the last long task, and the layout's shift.

    What else the machine does draws out the times, but hardly the seconds of processor that the page's own thread took.
    """
    context = browser.new_context(viewport={"width": width, "height": HEIGHT})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.add_init_script(f"({WATCH})()")
    wire = context.new_cdp_session(page)
    wire.send("Network.enable")
    wire.send("Performance.enable", {"timeDomain": "threadTicks"})
    wire.send("Network.setCacheDisabled", {"cacheDisabled": True})
    if slow:
        wire.send("Network.emulateNetworkConditions", SLOW)
        wire.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    got: list[float] = []
    wire.on("Network.loadingFinished", lambda event: got.append(event["encodedDataLength"]))
    page.goto(f"{site}/{name}", wait_until="load")
    before = None
    while before != (now := (len(got), page.evaluate("() => window.seen.tasks.length"))):  # rest
        before = now
        page.wait_for_timeout(1000 * QUIET)
    seen = page.evaluate("() => window.seen")
    ready = page.evaluate("() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    metrics = {metric["name"]: metric["value"] for metric in wire.send("Performance.getMetrics")["metrics"]}
    context.close()
    interactive = max([ready, seen["paint"], *(end for _, end in seen["tasks"])])
    return {"kB": round(sum(got) / 1000), "requests": len(got), "first paint s": round(seen["paint"] / 1000, 1),
            "interactive s": round(interactive / 1000, 1), "processor s": round(metrics["TaskDuration"], 1),
            "layout shift": round(seen["shift"], 3)}


# ---------------------------------------------------------------- search

def found(browser, site: str, query: str, most: int = 8) -> list[tuple[str, str]]:
    "The first results of the built search: address within the book, and the snippet."
    page = browser.new_page(viewport={"width": 1280, "height": HEIGHT})
    page.set_default_timeout(120_000)
    page.goto(f"{site}/search.html?q={query}", wait_until="load")
    page.wait_for_function("() => /finished|did not match/.test(document.querySelector('.search-summary')?.innerText)")
    # The snippets are read out of pages that are fetched one by one.
    page.wait_for_timeout(300)
    take = "r => [r.querySelector('a').getAttribute('href'), r.querySelector('p')?.innerText ?? '']"
    rows = page.eval_on_selector_all("#search-results ul.search > li", f"rows => rows.slice(0, {most}).map({take})")
    page.close()
    return [(address.split("?")[0], words) for address, words in rows]


def rank(results: list[tuple[str, str]], wanted: list[str]) -> int | None:
    "The place, from 1, of the first result that is wanted; None where there is none."
    for place, (address, _) in enumerate(results, 1):
        if any(address == want if "#" in want else address.split("#")[0] == f"{want}.html" for want in wanted):
            return place
    return None


RAW = re.compile(r"\\[()\[\]]|\\(frac|sqrt|mathrm|text|top|cdot|left|begin|in|times)\b|\$[^$]+\$")


# ---------------------------------------------------------------- everything

def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--only", default="shape,clipped,code,weight,tabs,search")
    parser.add_argument("--pages", default="", help="only pages whose address has one of these words, as in hour,07-")
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    parser.add_argument("--list", action="store_true", help="name the boxes that scroll sideways")
    options = parser.parse_args()
    wanted = options.only.split(",")
    out: dict = {}
    with served(options.html) as site, opened() as browser:
        names = [name for name in pages(options.html) if any(word in name for word in options.pages.split(","))]
        if "shape" in wanted:
            out["shape"] = shapes(browser, site, names)
            print("\n".join(shape_table(out["shape"])), flush=True)
        boxes = {"clipped": [(FORMULA, 360), (ANY_FORMULA, 360)], "code": [(CELL, 1280), (CELL, 390), (CELL, 360)]}
        asked = [each for kind, some in boxes.items() if kind in wanted for each in some]
        seen = sideways(browser, site, names, asked) if asked else []
        for (selector, width), (wide, total, which) in zip(asked, seen):
            out[f"{selector} at {width} px"] = [wide, total]
            print(f"{wide:5} of {total:5} scroll sideways at {width:4} px: {selector}", flush=True)
            if options.list:
                print("\n".join(f"      {line}" for line in which))
        for name in WEIGHED if "weight" in wanted else ():
            out[f"weight {name}"] = found_ = weigh(browser, site, f"{name}.html")
            print(f"{name}: " + ", ".join(f"{value:g} {key}" for key, value in found_.items()), flush=True)
        for name in WEIGHED if "tabs" in wanted else ():
            out[f"tab stops {name}"] = stops(browser, site, f"{name}.html")
            some, every = out[f"tab stops {name}"]
            print(f"{name}: {some} of {every} tab stops are formulas", flush=True)
        for query, places in QUERIES.items() if "search" in wanted else ():
            results = found(browser, site, query)
            raw = sum(bool(RAW.search(words)) for _, words in results)
            out[f"search {query}"] = [rank(results, places), raw]
            first = results[0][0] if results else "nothing"
            place = rank(results, places)
            print(f"search {query!r}: wanted at {place}, first {first}, {raw} snippets with raw TeX", flush=True)
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
