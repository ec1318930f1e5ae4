"""What a page weighs and how it is found: built pages, mended after the theme has written them.

Formulas are typeset here, not in the reader's browser; icons are drawings in the page, not a script and three fonts;
what no page needs before the first touch is not asked for. Beside the pages come a site map and a root page.
"""

import functools
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

from annotated_bundle import bundle
from annotated_figures import themed
from annotated_heard import headed, named, spoken
from docutils import nodes
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TYPESETTER = ROOT / "tools" / "web" / "typeset.js"
log = logging.getLogger(__name__)


# ---------------------------------------------------------------- formulas

FORMULA = re.compile(r'(<(?:span|div) class="[^"]*\bmath notranslate nohighlight\b[^"]*"[^>]*>(?:\s*<span class="eqno">.*?</span>)?)\s*\\([(\[])(.*?)\\[)\]]\s*</(span|div)>([,.;:!?)\u2019\u201d]*)', re.S)


LONG = 90  # signs of TeX: on a line of its own, a part as long as this may be cut before a sign of relation as well
QUADS = (r"\qquad", r"\quad")
GOES_ON = r"[=+]|\\times"  # what a part begins with that goes on with the one before


def parts(tex: str, signs: tuple[str, ...] = QUADS) -> list[str]:
    r"""A displayed formula cut at each \quad that stands in no group: its parts may stand below each other on a narrow page.

    Long parts are cut once more: a page breaks between two equations before it breaks within one.
    """
    out, depth, last = [], 0, 0
    for found in re.finditer(r"\\q?quad(?![a-z])|\\left(?![a-z])|\\right(?![a-z])|\\begin|\\end|\\times|\\\W|[{}=+]", tex):
        sign = found[0]
        depth += {"{": 1, r"\left": 1, r"\begin": 1, "}": -1, r"\right": -1, r"\end": -1}.get(sign, 0)
        if depth == 0 and sign in signs:
            out.append(tex[last:found.start()])
            last = found.end() if sign in QUADS else found.start()
    whole = [part.strip() for part in (*out, tex[last:]) if part.strip()]
    return [cut for part in whole for cut in (parts(part, ("=", "+", r"\times")) if signs is QUADS and len(part) > LONG else [part])]


def formulas(page: str) -> list[tuple[str, bool]]:
    "The formulas of a page that are not typeset yet: TeX, and whether it stands on a line of its own."
    return [(part, found[2] == "[") for found in FORMULA.finditer(page) for part in pieces(found)]


def pieces(found: re.Match) -> list[str]:
    """The TeX of a match of `FORMULA`; a displayed one in its parts.

    A sign with which a part goes on stands behind an empty group: else it would be set as that of a number, without room.
    """
    tex = html.unescape(found[3])
    if found[2] != "[":
        return [tex]
    return [f"{{}}{part}" if i and re.match(GOES_ON, part) else part for i, part in enumerate(parts(tex))]


class Typesetter:
    "Formulas as HTML, kept beside the build: a page that is not written again must find its glyphs in the same stylesheet."

    def __init__(self, folder: Path, kept: Path):
        self.folder, self.kept = folder, kept
        self.of = hashlib.sha256(TYPESETTER.read_bytes() + str(folder).encode()).hexdigest()
        self.html: dict[str, str] = {}
        self.css = ""
        if kept.is_file() and (known := json.loads(kept.read_text(encoding="utf-8")))["of"] == self.of:
            self.html, self.css = known["html"], known["css"]

    def learn(self, wanted: set[tuple[str, bool]]) -> bool:
        "Typeset what is new; False where that cannot be done."
        old = {(key[1:], key[0] == "[") for key in self.html}
        if wanted <= old:
            return True
        asked = sorted(old | wanted)
        command = ["node", str(TYPESETTER), str(self.folder)]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, encoding="utf-8")
        if done.returncode:
            log.info("node cannot typeset: %s", done.stderr.strip().split("\n")[0])
            return False
        told = json.loads(done.stdout)
        self.html = {("[" if display else "(") + tex: markup for (tex, display), markup in zip(asked, told["html"])}
        self.css = told["css"]
        self.kept.write_text(json.dumps({"of": self.of, "html": self.html, "css": self.css}), encoding="utf-8")
        return True

    def typeset(self, page: str) -> str:
        return FORMULA.sub(self.one, page)

    def one(self, found: re.Match) -> str:
        "A formula in place; a comma behind it stays on its line."
        markup = [self.html[found[2] + piece] for piece in pieces(found)]
        if found[2] == "[":
            widest = max((float(n) for part in markup for n in re.findall(r"--wide: ?([\d.]+)", part)), default=0)
            markup = [re.sub(r"--wide: ?[\d.]+", f"--wide: {widest:g}", part) for part in markup]  # of one size
            on = [piece.startswith("{}") for piece in pieces(found)]
            kinds = [f"{'on ' * here}{'cut' * after}".strip() for here, after in zip(on, (*on[1:], False))]
            markup = ['<span class="parts">', *(f'<span class="{kind}">{part}</span>' if kind else f"<span>{part}</span>"
                                                for kind, part in zip(kinds, markup)), "</span>"]
        typeset = f"{found[1]}{''.join(markup)}</{found[4]}>"
        return f'<span class="together">{typeset}{found[5]}</span>' if found[5] and found[4] == "span" else typeset + found[5]


# ---------------------------------------------------------------- icons

ICON = re.compile(r'(?:"([\w-]+)"|(?<![\w"-])([a-z]\w*)):\[(\d+),(\d+),\[([^\]]*)\],"[0-9a-f]+","([^"]+)"')
PLACE = re.compile(r'<(i|span) class="([^"]*\bfa[a-z]?(?:-solid|-brands|-regular)? [^"]*)"([^>]*)></\1>')


@functools.cache
def icons(script: Path) -> dict[str, tuple[str, str, str]]:
    "Name -> width, height and outline, out of the script that the theme ships; where packs share a name, the solid one."
    out: dict[str, tuple[str, str, str]] = {}
    also: dict[str, tuple[str, str, str]] = {}
    for quoted, bare, width, height, aliases, outline in ICON.findall(script.read_text(encoding="utf-8")):
        out[quoted or bare] = (width, height, outline)
        also |= {alias: (width, height, outline) for alias in re.findall(r'"([\w-]+)"', aliases)}
    return also | out


def drawn(page: str, known: dict[str, tuple[str, str, str]]) -> str:
    "A page whose icons are inline SVG, with the classes by which the theme styles them."
    def draw(found: re.Match) -> str:
        classes = found[2].split()
        name = next((c.removeprefix("fa-") for c in classes if c.removeprefix("fa-") in known and c != "fa-solid"), None)
        if name is None:
            return found[0]
        width, height, outline = known[name]
        attributes = re.sub(r'\s*\btitle="[^"]*"', "", found[3])
        return f'<svg class="icon {" ".join(classes)}"{attributes} viewBox="0 0 {width} {height}" aria-hidden="true"><path d="{outline}"/></svg>'
    return PLACE.sub(draw, page)


# ---------------------------------------------------------------- code

CODE = re.compile(r'(<div class="(output \w+ )?highlight-(?:python|js|bash|html|myst-ansi) notranslate"><div class="highlight"><pre)><span></span>(.*?)(</pre>)', re.S)
COLUMNS, WIDEST = re.compile(r"\S {2,}\S"), 98  # signs of a printed line that a wide page shows whole


def lined(page: str) -> str:
    """A page whose lines of code are boxes that know their indentation: where one is folded, its rest stands further in.

    So are the lines of printed sentences; what is printed in columns stays as it is, and scrolls on a narrow page,
    unless no page is wide enough for it.
    """
    def text(code: str) -> str:
        return html.unescape(re.sub("<[^>]*>", "", code))

    def line(code: str) -> str:
        indent = len(text(code)) - len(text(code).lstrip(" "))
        code = re.sub(r"^((?:<span[^>]*>)?)( +)(?=\S)", r'\1<span class="in">\2</span>', code)
        return f'<span class="ln" style="--in:{indent}">{code}</span>'

    def block(found: re.Match) -> str:
        printed = text(found[3])
        if found[2] and COLUMNS.search(printed) and max(map(len, printed.splitlines())) <= WIDEST:
            return found[0]
        return f'{found[1]} class="lined">' + "".join(line(code) for code in re.findall(r".*\n|.+", found[3])) + found[4]
    return CODE.sub(block, page)


EXPORTED = re.compile(r'<div class="cell tag_export(?![^"]*\bhide|[^"]*hide-input)[^>]*>.*?</pre>', re.S)
ONE_LINE = re.compile(r'<span class="ln".*?\n</span>', re.S)


def folded(page: str, least: int = 5) -> str:
    """A page where a function of the package that is shown shows of its docstring the first line, and the rest when asked.

    The rest is in the page for all who copy, print or listen; book.css only gives it no height. A docstring of
    few lines stays as it is.
    """
    def text(line: str) -> str:
        return html.unescape(re.sub("<[^>]*>", "", line)).strip()

    def cell(found: re.Match) -> str:
        out, last, first, docs = [], 0, None, []
        for line in ONE_LINE.finditer(found[0]):
            said = text(line[0])
            if first is None and said.startswith('"""') and not (len(said) > 5 and said.endswith('"""')):
                first, docs = line, []
            elif first is not None:
                docs.append(line)
                if said.endswith('"""'):
                    if len(docs) >= least:
                        more = (f'<input type="checkbox" class="more" data-lines="{len(docs)}"'
                                f' aria-label="{len(docs)} more lines of the docstring">')
                        rest = found[0][docs[0].start() : docs[-1].end()].replace('<span class="ln"', '<span class="ln told"')
                        out += [found[0][last : first.end()].removesuffix("\n</span>"), more, "\n</span>", f'<span class="rest-of-doc">{rest}</span>']
                        last = docs[-1].end()
                    first = None
        return "".join((*out, found[0][last:]))
    return page if 'class="more"' in page else EXPORTED.sub(cell, page)


# Words of code that book.css gives no colour of their own: half of the elements of a page.
PLAIN = re.compile(r'<span class="(?:n|p|o|w|nn|ne|nv|vm)">([^<]*)</span>')


def plainer(page: str) -> str:
    "A page whose words of code are elements only where they have a colour."
    return PLAIN.sub(r"\1", page)


OPTION = re.compile(r'(?<=<span class="pre">)(--?\w)')
LONG_NAME = re.compile(r'(?<=<span class="pre">)[^<\s]{24,}')


def breakable(page: str) -> str:
    "A page whose long names in the text break between their words, and whose options keep their dashes."
    names = LONG_NAME.sub(lambda found: re.sub(r"(?<=[_/:.])(?=\w)", "<wbr>", found[0]), page)
    return OPTION.sub(r'<span class="together">\1</span>', names)


# ---------------------------------------------------------------- what a page lays out

SECTION = re.compile(r'<section\b(?![^>]*--tall)[^>]*|</section>')
UNSEEN = re.compile(r"<mjx-assistive-mml.*?</mjx-assistive-mml>|<details class=\"admonition hide above-input\">.*?</details>|<svg\b.*?</svg>", re.S)
LINE, SIGNS, CODE_LINE, CODE_SIGNS, CELL, PICTURE = 26, 42, 19, 46, 40, 260  # CSS pixels of a phone; signs on its lines


def tall(part: str) -> int:
    "About how high a part of a page is on a phone, in CSS pixels."
    pictures = len(re.findall(r"<(?:svg|img)\b", part))
    part = UNSEEN.sub("", part)
    cells = part.count('<div class="cell ')
    code = sum(max(1, -(-len(re.sub("<[^>]*>", "", line)) // CODE_SIGNS)) for line in re.findall(r'<span class="ln".*?\n', part))
    text = re.sub(r"<pre\b.*?</pre>|</?(?:a|code|em|span|strong|mjx-[\w-]+)\b[^>]*>", "", part, flags=re.S)
    prose = sum(-(-len(words) // SIGNS) for words in re.findall(r">([^<>]+)<", text) if words.strip())
    return LINE * prose + CODE_LINE * code + CELL * cells + PICTURE * pictures


def measured(page: str) -> str:
    """A page whose sections know about how high they are, so that a browser need not lay out those out of sight.

    A narrow page takes only what stands below its first screens so (book.css): there a processor is slow.
    """
    out, last, opened = [], 0, []
    starts: dict[int, int] = {}
    for found in SECTION.finditer(page):
        if found[0].startswith("</"):
            start = opened.pop() if opened else None
            if start is not None:
                starts[start] = found.end()
        else:
            opened.append(found.end())
    for start, end in sorted(starts.items()):
        out += [page[last:start], f' style="--tall: {tall(page[start:end])}px"']
        last = start
    return "".join((*out, page[last:]))


# ---------------------------------------------------------------- what a page asks for

SEARCH = re.compile(r'\s*<script src="[^"]*(?:_static/searchtools|_static/language_data|searchindex)\.js[^"]*"></script>')
FONT_SCRIPT = re.compile(r'\s*(?:<!-- So that users can add custom icons -->\s*)?<script[^>]*\bsrc="[^"]*scripts/fontawesome\.js[^"]*"></script>')
VIEWPORT = re.compile(r'\s*<meta name="viewport"[^>]*>')
DOCSEARCH = re.compile(r'\s*<meta name="docsearch:[^>]*>')


def lighter(page: str, search: bool) -> str:
    "A page that asks for no font of icons, once for its width, and only where one searches for the index of all words."
    page = DOCSEARCH.sub("", FONT_SCRIPT.sub("", page))
    if not search:
        page = SEARCH.sub("", page)
    once = iter([True])
    return VIEWPORT.sub(lambda found: found[0] if next(once, False) else "", page)


def roomy(page: str) -> str:
    "A page whose article is wider where it begins with the front page's two columns."
    narrow = '<div class="bd-article-container">'
    return page.replace(narrow, narrow.replace('">', ' front-page">')) if '<div class="front ' in page else page


def hardened(page: str) -> str:
    "A page whose links to a new window tell that window nothing of this one."
    return re.sub(r'<a\b(?![^>]*\srel=)([^>]*\starget="_blank")', r'<a rel="noopener"\1', page)


NEXT = re.compile(r'<a class="right-next"\s+href="([^"]+)".*?<p class="prev-next-title">(.*?)</p>.*?</a>', re.S)


def onward(pages: dict[Path, str]) -> dict[Path, str]:
    "All pages, with a link past the questions on those of chapters that are followed by theirs."
    out = dict(pages)
    for path, text in pages.items():
        found = NEXT.search(text)
        if found and found[1].endswith("-questions.html") and 'class="onward"' not in text:
            further = NEXT.search(pages.get(path.parent / found[1], ""))
            if further:
                link = f'<a class="onward" href="{further[1]}">or on to {further[2]}</a>'
                out[path] = text[: found.end()] + link + text[found.end() :]
    return out


TABLE = re.compile(r'(<table class="booktabs)( table">)(.*?)</table>', re.S)
ROWS, CELLS, HEADS = (re.compile(rf"<{tag}\b[^>]*>(.*?)</{tag}>", re.S) for tag in ("tr", "td", "th"))


def stacked(page: str) -> str:
    """A page whose tables of sentences know in each cell what stands above its column.

    On a phone their rows are set as blocks, one cell below the other (book.css).
    """
    def words(code: str) -> str:
        return re.sub("<[^>]*>|\\\\[()]", "", code).strip()

    def table(found: re.Match) -> str:
        heads = [words(head) for head in HEADS.findall(found[3])]
        rows = [cells for row in ROWS.findall(found[3]) if (cells := CELLS.findall(row))]
        if not rows or len(heads) < 3 or any(len(cells) != len(heads) for cells in rows):
            return found[0]
        long = sum(len(words(cell)) for cells in rows for cell in cells[1:]) / len(rows) / (len(heads) - 1)
        if long < (30 if len(heads) == 3 else 12) or any("\\" in head for head in heads):
            return found[0]

        def row(one: re.Match) -> str:
            labels = iter(heads)
            return re.sub(r"<td\b", lambda _: f'<td data-label="{(label := next(labels))}"' + ' lang="zh-Hans"' * (label == "中文"), one[0])
        return f"{found[1]} stack{found[2]}{ROWS.sub(row, found[3])}</table>"
    return TABLE.sub(table, page)


IMAGE = re.compile(r'<img\b(?![^>]*\bwidth=)([^>]*?\bsrc="([^":]+\.(?:svg|png))"[^>]*?)/?>')


@functools.cache
def size(path: Path) -> tuple[int, int] | None:
    "The width and height of an image in CSS pixels."
    if path.suffix == ".png":
        head = path.read_bytes()[:24]
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    opening = re.search(r"<svg\b[^>]*>", path.read_text(encoding="utf-8"), re.S)
    box = opening and re.search(r'viewBox="([\d.\s-]+)"', opening[0])
    told = opening and [re.search(rf'\s{side}="([\d.]+)(pt|px)?"', opening[0]) for side in ("width", "height")]
    if told and all(told):
        return tuple(round(float(side[1]) * (4 / 3 if side[2] == "pt" else 1)) for side in told)
    return tuple(round(float(x)) for x in box[1].split()[2:]) if box else None


def spaced(page: str, folder: Path) -> str:
    "A page whose images keep their place free until they come, and come when they are near."
    def space(found: re.Match) -> str:
        path = (folder / found[2]).resolve()
        sides = size(path) if path.is_file() else None
        late = "" if "logo" in found[2] or "loading=" in found[1] else ' loading="lazy"'
        return f'<img{found[1].rstrip()} width="{sides[0]}" height="{sides[1]}"{late}>' if sides else found[0]
    return IMAGE.sub(space, page)


def faces(page: str, above: str) -> str:
    "A page that asks at once for the typefaces of its first lines, and has icons for bookmarks of every kind."
    if "rel=\"apple-touch-icon\"" in page or "_static/faces.css" not in page:
        return page
    more = "".join(f'<link rel="preload" as="font" type="font/woff2" crossorigin href="{above}_static/fonts/{name}-latin-wght-normal.woff2" />\n'
                   for name in ("source-serif-4", "source-sans-3", *["stix-two-text"] * ("<blockquote" in page)))
    more += f'<link rel="icon" type="image/png" sizes="180x180" href="{above}_static/icon.png" />\n'
    more += f'<link rel="apple-touch-icon" href="{above}_static/icon.png" />\n'
    return page.replace('<meta charset="utf-8" />', '<meta charset="utf-8" />\n' + more, 1)


def gone(app, out: Path) -> list[Path]:
    "Pages of an earlier build whose text is no longer there."
    pages = [path for part in ("book", "notebooks") for path in sorted((out / part).rglob("*.html"))]
    return [path for path in pages if path.relative_to(out).with_suffix("").as_posix() not in app.env.found_docs]


def finish(app, error) -> None:
    "Mend what the theme's templates write and no page's context can change."
    if error is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    script = out / "_static" / "scripts" / "fontawesome.js"
    known = icons(script) if script.is_file() else {}
    size.cache_clear()
    for path in gone(app, out):
        path.unlink()
    paths = [path for path in sorted(out.rglob("*.html")) if "_static" not in path.relative_to(out).parts]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    new = {}
    for path, text in texts.items():
        text = stacked(lighter(roomy(hardened(drawn(text, known))), search=path.name == "search.html"))
        text = headed(text)
        text = spoken(named(measured(breakable(plainer(folded(lined(text)))))))
        new[path] = faces(themed(spaced(text, path.parent), path.parent), up(app, path))
    new = bundle(typeset(app, onward(new)), out / "_static", Path(app.doctreedir) / "bundle.json")
    for path in paths:
        if new[path] != texts[path]:
            path.write_text(new[path], encoding="utf-8")
    if app.config.html_baseurl:
        root(app, out)
        site_map(app, out)


def typeset(app, pages: dict[Path, str]) -> dict[Path, str]:
    "All pages with their formulas typeset; where there is no node, with MathJax on those that have formulas."
    wanted = {path: found for path, text in pages.items() if (found := formulas(text))}
    folder = app.config.annotated_web
    setter = Typesetter(Path(folder) / "node", Path(app.doctreedir) / "formulas.json") if folder and shutil.which("node") else None
    if setter is None or not setter.learn({formula for found in wanted.values() for formula in found}):
        return {path: text.replace("</head>", client(app, path) + "</head>") if path in wanted and "tex-mml-chtml" not in text else text
                for path, text in pages.items()}
    (Path(app.outdir) / "_static" / "formulas.css").write_text(setter.css, encoding="utf-8")
    out = dict(pages)
    for path in wanted:
        sheet = f'<link rel="stylesheet" type="text/css" href="{up(app, path)}_static/formulas.css" />\n'
        text = setter.typeset(pages[path])
        out[path] = text if "formulas.css" in text else text.replace("</head>", sheet + "</head>")
    return out


def up(app, path: Path) -> str:
    "The way from a page to the root; the page of what is not found is shown at any address, in any folder."
    if path.name == "404.html":
        return getattr(app.config, "notfound_urls_prefix", None) or "/"
    return "../" * (len(path.relative_to(app.outdir).parts) - 1)


def client(app, path: Path) -> str:
    "What a page needs to typeset its formulas itself."
    hosted = "://" not in app.config.mathjax_path
    address = f"{up(app, path)}_static/{app.config.mathjax_path}" if hosted else app.config.mathjax_path
    more = "".join(f' {key}="{value}"' for key, value in app.config.mathjax_options.items())
    return (f"<script>window.MathJax = {json.dumps(app.config.mathjax3_config or {})}</script>\n"
            f'<script defer src="{address}"{more}></script>\n')


# ---------------------------------------------------------------- to be found and shared

ADDRESS = re.compile(r'(<(?:a|link|script|img|form|source)\b[^>]*?\s(?:href|src|action)=")([^"]*)"')


def root(app, out: Path) -> None:
    "The front page at the root as well, with its own links, instead of a page that sends one on."
    front = out / f"{app.config.root_doc}.html"
    if not front.is_file() or front == out / "index.html":
        return
    below = f"{front.parent.name}/"

    def moved(address: str) -> str:
        if address.startswith("../"):
            return address[3:]
        return address if re.match(r"#|[a-z]+:|//", address) or not address else below + address
    text = front.read_text(encoding="utf-8").replace('data-content_root="../"', 'data-content_root="./"')
    (out / "index.html").write_text(ADDRESS.sub(lambda found: f'{found[1]}{moved(found[2])}"', text), encoding="utf-8")


def site_map(app, out: Path) -> None:
    "Every page of the book, as search engines read it. sphinx-sitemap would list only those written by the last build."
    tree = ElementTree.Element("urlset", xmlns="http://www.sitemaps.org/schemas/sitemap/0.9")
    for docname in sorted(app.env.found_docs):
        place = ElementTree.SubElement(ElementTree.SubElement(tree, "url"), "loc")
        place.text = canonical(app, docname)
    ElementTree.ElementTree(tree).write(out / "sitemap.xml", encoding="utf-8", xml_declaration=True)
    (out / "robots.txt").write_text(f"User-agent: *\nAllow: /\nSitemap: {app.config.html_baseurl}sitemap.xml\n", encoding="utf-8")


def canonical(app, docname: str) -> str:
    "The one address of a page; the front page's is the root."
    return app.config.html_baseurl + ("" if docname == app.config.root_doc else f"{docname}.html")


CITED = re.compile(r"\s*\[[^\[\]]*\b(?:19|20)\d\d[a-z]?\]")


def cut(words: str) -> str:
    "160 signs at most, without citations."
    words = CITED.sub("", " ".join(words.split()))
    return words if len(words) <= 160 else words[:157].rsplit(" ", 1)[0].rstrip(",;:") + "..."


def questions(doctree) -> str:
    "The first two questions of a page that has no more than questions; formulas are not text."
    asked = [title.astext() for title in doctree.findall(nodes.title)]
    return cut(" ".join([words for words in asked if words.endswith("?") and "\\" not in words][:2]))


def description(doctree) -> str:
    "The first paragraph of a page that is neither its masthead nor a quote, as far as it is shown."
    apart = (nodes.block_quote, nodes.table, nodes.figure, nodes.Admonition, nodes.raw, nodes.container)
    for paragraph in doctree.findall(nodes.paragraph):
        around, inside = paragraph.parent, False
        while around is not None:
            inside, around = inside or isinstance(around, apart), around.parent
        words = " ".join(paragraph.astext().split())
        if inside or paragraph["classes"] or len(words) < 60:
            continue
        return cut(words)
    return ""


def about(app, pagename, templatename, context, doctree) -> None:
    "Title, description and canonical address of a page, before sphinxext-opengraph writes its tags."
    if doctree is None:
        return
    if pagename == app.config.root_doc:
        context["title"], context["docstitle"] = app.config.html_title, ""  # else the title stands there twice
    words = (questions(doctree) if pagename.endswith("-questions") else "") or description(doctree)
    if words:
        context["meta"] = (context.get("meta") or {}) | {"og:description": words}
        context["metatags"] += f'\n<meta name="description" content="{html.escape(words)}" />\n'
    if app.config.html_baseurl:
        context["pageurl"] = canonical(app, pagename)


def addresses(app, config) -> None:
    "Where the book is published follows from where its repository is."
    found = re.fullmatch(r"https://github\.com/([^/]+)/([^/]+?)(?:\.git)?/?", config.html_theme_options.get("repository_url", ""))
    if found and not config.html_baseurl:
        config.html_baseurl = f"https://{found[1]}.github.io/{found[2]}/"
        config.ogp_site_url = config.html_baseurl
        config.notfound_urls_prefix = f"/{found[2]}/"
    config.ogp_site_name = config.html_title


def setup(app):
    app.add_config_value("annotated_web", "", "")
    app.connect("config-inited", addresses, priority=100)
    app.connect("html-page-context", about, priority=400)
    app.connect("build-finished", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
