"""Fewer requests and less to work out: a page asks for one stylesheet and one script of the theme's, not for thirty files.

The stylesheets become one, without the rules that nothing on any page could match. The scripts become one that waits for
the page's text, in their order. Explorers keep their own: only some pages have them.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from sphinx.util import logging

STYLES, SCRIPTS = "styles.css", "scripts.js"
OURS = re.compile(r"explorers/|(book|drawing|faces|formulas)\.css")  # nothing to spare, and explorers make up names of classes
log = logging.getLogger(__name__)


# ---------------------------------------------------------------- stylesheets

COMMENT = re.compile(r"/\*.*?\*/", re.S)
LINKED = re.compile(r"url\(\s*(['\"]?)(?!data:|[a-z]+:|/|#)([^'\")]+)\1\s*\)")
IMPORTED = re.compile(r"@import\s+(?:url\()?\s*['\"]?([^'\");]+)['\"]?\s*\)?\s*;")
TOLD = re.compile(r"[.#]((?:\\.|[\w-])+)")
GROUPS = ("@media", "@supports", "@layer", "@container")


def blocks(css: str) -> Iterable[tuple[str, str | None]]:
    "The statements of a stylesheet without comments: what stands before the brace, and what within; None where there is none."
    start = place = depth = opened = 0
    for found in re.finditer(r"\\.|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|url\(\s*(?:\"[^\"]*\"|'[^']*'|[^'\")]*)\s*\)|[{};]", css, re.S):
        sign, place = found[0], found.start()
        if sign == "{":
            depth += 1
            opened = place if depth == 1 else opened
        elif sign == "}":
            depth -= 1
            if depth == 0:
                yield css[start:opened].strip(), css[opened + 1:place]
                start = place + 1
        elif sign == ";" and depth == 0:
            yield css[start:place].strip(), None
            start = place + 1


def selectors(prelude: str) -> list[str]:
    "The selectors of a list, cut at the commas that stand in no bracket."
    out, depth, last = [], 0, 0
    for found in re.finditer(r"\\.|[()\[\],]", prelude):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(found[0], 0)
        if found[0] == "," and depth == 0:
            out.append(prelude[last:found.start()])
            last = found.end()
    return [one.strip() for one in (*out, prelude[last:])]


def possible(selector: str, words: set[str]) -> bool:
    "Whether every class and name that a selector asks for, outside of brackets, occurs anywhere; Bootstrap puts some together."
    plain = selector
    while plain != (plain := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", plain)):
        pass
    told = [re.sub(r"\\(.)", r"\1", name) for name in TOLD.findall(plain)]
    return all(name in words or name.startswith("bs-") for name in told)


# A rule that asks what is inside of an element, by :has(), is asked again of the whole page at every change of it: on a slow
# processor that alone takes longer than a frame. The theme's are asked otherwise, or not at all where they show nothing here.
INSTEAD = (
    (":has(:focus-visible)", ":focus-within"),
    ("div.highlight:has(button.copybtn)", ":is(div.cell_input, div.highlight-bash) div.highlight"),  # as copybutton_selector
    (":not(:has(table.dataframe))", ""),  # the book prints none
)
DROPPED = (
    "~figcaption",  # both versions of a figure have one caption
    "a:has(.viewcode-link)",  # no page has such a link
    ":not(:has(.highlight))",  # every output of these kinds is highlighted
    ":has(+ details.below-input)",  # cells are folded from above
    "div.cell:has(> *:nth-child(2))",  # round corners of boxes without a ground or a border
)


def cheaper(selector: str) -> str | None:
    "A selector of the theme's without :has(); None where its rule can go."
    selector = " ".join(selector.split())
    for asked, instead in INSTEAD:
        selector = selector.replace(asked, instead)
    if any(asked in selector for asked in DROPPED):
        return None
    if ":has(" in selector:
        log.warning("the theme has a new rule that asks for an element's inside: %s", selector)
    return selector


def trimmed(css: str, words: set[str]) -> str:
    "A stylesheet without the rules that match nothing where only these words are classes or names, and without :has()."
    out = []
    for prelude, inside in blocks(COMMENT.sub("", css)):
        if inside is None:
            out.append(f"{prelude};")
        elif prelude.startswith(GROUPS):
            if rules := trimmed(inside, words):
                out.append(f"{prelude}{{{rules}}}")
        elif prelude.startswith("@"):
            out.append(f"{prelude}{{{inside.strip()}}}")
        elif kept := [plain for one in selectors(prelude) if possible(one, words) and (plain := cheaper(one))]:
            out.append(f"{','.join(kept)}{{{' '.join(inside.split())}}}")
    return "\n".join(out)


def sheet(static: Path, name: str) -> str:
    "A stylesheet with what it imports, its addresses as seen from the folder of all of them."
    css = COMMENT.sub("", (static / name).read_text(encoding="utf-8")).replace('@charset "UTF-8";', "")

    def seen(address: str) -> str:
        return os.path.normpath(os.path.join(os.path.dirname(name), re.split("[?#]", address)[0])).replace(os.sep, "/")
    own, *more = IMPORTED.split(css)
    imported = "".join(sheet(static, seen(address)) for address in more[::2])
    return imported + LINKED.sub(lambda found: f'url("{seen(found[2])}")', own + "".join(more[1::2]))


# ---------------------------------------------------------------- scripts

# What the theme does to every page at its end: it asks each box whether it scrolls, which makes the browser lay out what
# is out of sight. book.js asks where one reads.
ASKS = '"complete"===document.readyState?I():window.addEventListener("load",I)'
# Sphinx writes a page's own name into a script of its own; only a switch between versions would read it.
OWN = re.compile(r"DOCUMENTATION_OPTIONS\.pagename = '[^']*';")


def script(static: Path, source: str) -> str:
    "One script of the bundle: a file of _static, or text that stands in the page."
    if not source.endswith(".js"):
        return source
    text = (static / source).read_text(encoding="utf-8")
    if source.endswith("pydata-sphinx-theme.js"):
        if ASKS not in text:
            log.warning("the theme's script has changed: %s is not in it", ASKS)
        text = text.replace(ASKS, "0")
    return re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.M)


# ---------------------------------------------------------------- pages

SHEET = re.compile(r'<link\b(?=[^>]*\brel="stylesheet")[^>]*\bhref="([^"]*?)_static/([^"?]+)[^"]*"[^>]*>\n?')
SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>\n?", re.S)
SOURCE = re.compile(r'\bsrc="([^"]*?)_static/([^"?]+)')
PRELOAD = re.compile(r'<link rel="preload" as="script"[^>]*>\n?')
APART = re.compile(r"explorers/|mathjax|searchtools|language_data")
SHORT = re.compile(r"(let|var) toggle|DOCUMENTATION_OPTIONS")
# The theme's first script leaves the colours to its last; until then, and then once more, everything would be styled.
THEME = re.compile(r'(<script data-cfasync="false">).*?(</script>)', re.S)
NOW = """
    try { localStorage.getItem("mode"); } catch {  // where nothing may be kept, it is kept for this page
      const kept = new Map();
      Object.defineProperty(window, "localStorage", {configurable: true, value: {
        getItem: k => kept.get(k) ?? null, setItem: (k, v) => { kept.set(k, String(v)); }, removeItem: k => { kept.delete(k); }}});
    }
    {
      const mode = localStorage.getItem("mode") || "auto";
      const dark = mode === "auto" ? matchMedia("(prefers-color-scheme: dark)").matches : mode === "dark";
      Object.assign(document.documentElement.dataset, {mode, theme: dark ? "dark" : "light"});
    }
  """


def later(tag: str) -> str:
    "A script that waits for those before it."
    return tag if "defer" in tag else tag.replace("<script", "<script defer", 1)


def parted(page: str) -> tuple[str, list[str], list[str], str]:
    "A page without its stylesheets and the theme's scripts, these in their order, and the way to them."
    above, styles, scripts = "", [], []

    def style(found: re.Match) -> str:
        nonlocal above
        above = found[1]
        styles.append(found[2])
        return "" if len(styles) > 1 else "<!-- styles -->"

    def one(found: re.Match) -> str:
        attributes, text = found[1], found[2]
        source = SOURCE.search(attributes)
        if "searchindex.js" in attributes:
            return later(found[0])
        if "type=" in attributes or "cfasync" in attributes or source is None and not SHORT.match(text):
            return found[0]
        if source and APART.search(source[2]):
            return later(found[0])
        if not OWN.fullmatch(text):
            scripts.append(source[2] if source else text)
        return "<!-- scripts -->" if len(scripts) == 1 else ""
    head, end, body = page.partition("</head>")
    head = SCRIPT.sub(one, SHEET.sub(style, PRELOAD.sub("", head)))
    return head + end + SCRIPT.sub(one, body), styles, scripts, above


def merged(lists: Iterable[tuple[str, ...]]) -> list[str]:
    "One list that has each of these lists in its order: what a page alone has stands where it has it."
    out: list[str] = []
    for one in sorted(set(lists), key=lambda names: (-len(names), names)):
        place = 0
        for name in one:
            if name not in out:
                out.insert(place, name)
            place = out.index(name) + 1
    return out


WORDS = re.compile(r"""\b(?:class|id)=(?:"([^"]*)"|'([^']*)')""")


def bundle(pages: dict[Path, str], static: Path, kept: Path) -> dict[Path, str]:
    """All pages with one stylesheet and one script, which are written into the folder `static`.

    What each page asked for is kept beside the build, in the file `kept`: a page that is not written again no longer says it.
    """
    known = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    split = {path: parted(text) for path, text in pages.items()}
    fresh = {path: parts for path, parts in split.items() if parts[1] and STYLES not in parts[1]}
    names = {path: os.path.relpath(path, static).replace(os.sep, "/") for path in pages}
    asked = {name: [fresh[path][1], fresh[path][2]] if path in fresh else known[name] for path, name in names.items() if path in fresh or name in known}
    styles, scripts = (merged(tuple(each[i]) for each in asked.values()) for i in (0, 1))
    kept.write_text(json.dumps(asked), encoding="utf-8")

    code = "\n;\n".join(script(static, source) for source in scripts)  # a file may end without its semicolon
    words = {word for text in pages.values() for found in WORDS.findall(text) for word in " ".join(found).split()}
    others = [path.read_text(encoding="utf-8") for folder in (static, static / "explorers") for path in folder.glob("*.js")
              if path.name not in (STYLES, SCRIPTS) and path.stat().st_size < 200_000]
    for text in (code, *others):
        words.update(re.findall(r"[\w-]+", text))
    css = "\n".join(sheet(static, name) if OURS.match(name) else trimmed(sheet(static, name), words) for name in styles)
    version = {}
    for name, text in ((STYLES, css), (SCRIPTS, code)):
        (static / name).write_text(text, encoding="utf-8")
        version[name] = hashlib.sha256(text.encode()).hexdigest()[:8]

    def link(name: str, above: str) -> str:
        address = f"{above}_static/{name}?v={version[name]}"
        return f'<script defer src="{address}"></script>\n' if name == SCRIPTS else f'<link rel="stylesheet" href="{address}" />\n'

    out = {}
    for path, text in pages.items():
        if path in fresh:
            text, _, _, above = fresh[path]
            text = text.replace("<!-- styles -->", link(STYLES, above), 1).replace("<!-- scripts -->", link(SCRIPTS, above), 1)
            text = THEME.sub(lambda found: found[1] + NOW + found[2], text, count=1)
            text = text.replace('data-theme="auto"', 'data-theme="light"', 1)  # without scripts; NOW says which it is
        out[path] = re.sub(r"(_static/(styles\.css|scripts\.js)\?v=)\w+", lambda found: found[1] + version[found[2]], text)
    return out
