"""What this book's page does beyond the theme: numbers, exported cells, the drawing, self-hosted math and type.

Chapters say nothing about any of it: it follows from their file names, tags and notebook metadata
(`annotated.module`, `annotated.paper`, `annotated.lit`).
"""

import ast
import contextlib
import copy
import hashlib
import importlib.util
import json
import re
from pathlib import Path

import annotated_api as api
import annotated_front as front
import annotated_page as page
import annotated_search as search
from annotated_drawing import PARTS, drawing, names
from annotated_drawing import SOURCE as MODEL
from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode, HideInputCells
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent.parent
API = "book/api"
TOOLS = "chapters", "collect", "explorers", "find", "layout", "rows", "tangle"  # which all this asks
MAP = "notebooks/00-the-paper"  # has the directive `model-map`, which asks all chapters what they light
PROMPTS = {"setup": "setup", "solution": "the solution", "export": "the code", "hide-input": "how it is done"}
SIEVE = """<form class="sieve" role="search">
<label for="sieve">Show only questions and answers that contain these words</label>
<input type="search" id="sieve" spellcheck="false" placeholder="warm-up rate">
<output for="sieve" aria-live="polite"></output>
</form>"""
log = logging.getLogger(__name__)


# ---------------------------------------------------------------- math and type

def fetcher():
    "tools/web/fetch.py as a module."
    spec = importlib.util.spec_from_file_location("fetch", ROOT / "tools" / "web" / "fetch.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def host(app, config) -> None:
    "Serve math and type from the book itself; where they cannot be had, math comes from the CDN, checked by its digest."
    tool = fetcher()
    folder = tool.fetch()
    if folder is None:
        log.info("math comes from the CDN and type from the reader's machine: npm is needed to host them here")
        config.mathjax_path = tool.CDN
        config.mathjax_options = {"integrity": tool.CDN_INTEGRITY, "crossorigin": "anonymous"}
        return
    config.annotated_web = str(folder)
    config.html_static_path.append(str(folder / "page"))
    config.mathjax_path = "mathjax/tex-mml-chtml.js"
    config.html_css_files.insert(0, "faces.css")


# ---------------------------------------------------------------- what a notebook says about itself

def about(env, docname: str) -> dict:
    "The notebook's `annotated` metadata; empty for other pages."
    path = Path(env.doc2path(docname))
    if path.suffix != ".ipynb":
        return {}
    return json.loads(path.read_text(encoding="utf-8")).get("metadata", {}).get("annotated", {})


def number(docname: str) -> int | None:
    "The chapter's number, from its file name."
    match = re.match(r"(\d\d)-", docname.rsplit("/", 1)[-1])
    return int(match[1]) if match else None


def asks(docname: str) -> bool:
    "Whether a page is a chapter's second notebook, its questions."
    return number(docname) is not None and docname.endswith("-questions")


def letter(docname: str) -> str:
    "The number of a chapter, Q and that number for its questions, or the letter of an appendix; the package is C."
    if docname == API:
        return "C"
    match = re.match(r"([A-Z])-", docname.rsplit("/", 1)[-1])
    n = number(docname)
    return match[1] if match else "" if n is None else f"Q{n}" if asks(docname) else str(n)


def kind(docname: str) -> str:
    "What a notebook is called: a chapter has a number, an appendix a letter."
    return "chapter" if number(docname) is not None else "appendix"


def is_api(docname: str) -> bool:
    "Whether a page is the package's: the groups, or a module."
    return docname == API or docname.startswith(f"{API}/")


# ---------------------------------------------------------------- while a page is read

def prepare(app, doctree) -> None:
    env = app.env
    docname = env.docname
    told = about(env, docname)
    if not asks(docname):
        search.index(env, doctree, letter(docname), told.get("paper", []))
    title(doctree, docname)
    masthead(app, doctree, docname, told)
    for cell in list(doctree.findall(lambda n: isinstance(n, nodes.container) and "cell" in n.get("classes", []))):
        dress(env, docname, cell, told.get("module"))
    colour(doctree)
    link_names(env, doctree, told.get("module"))
    for table in doctree.findall(nodes.table):
        table["classes"].append("booktabs")
    if docname.endswith("D-glossary"):
        glossary(app.env, doctree)
    if docname == "book/questions":
        sieve(doctree)


def sieve(doctree) -> None:
    "A line above the list of all questions; book.js leaves those that hold what is written there."
    page = next(doctree.findall(nodes.section))
    first = next(i for i, node in enumerate(page) if isinstance(node, nodes.section))
    page.insert(first, nodes.raw("", SIEVE, format="html"))


def glossary(env, doctree) -> None:
    "Let the last column of the glossary lead to the chapters that it names."
    pages = {letter(name): name for name in env.found_docs if letter(name) and not asks(name)}
    for row in doctree.findall(nodes.row):
        for text in list(row[-1].findall(nodes.Text)):
            if text.astext() in pages:
                text.parent.replace(text, front.to_page(pages[text.astext()], nodes.Text(text.astext())))


def title(doctree, docname: str) -> None:
    "Put the chapter's number before its title, where the sidebar finds it too."
    head = next(doctree.findall(nodes.title), None)
    sign = "" if asks(docname) else letter(docname)
    if head is not None and sign:
        head.insert(0, nodes.inline("", f"{sign}\u2002", classes=["chapter-number"]))


def masthead(app, doctree, docname: str, told: dict) -> None:
    "Under the title: the place in the paper, the module, the minutes, and the drawing with the parts at hand lit."
    head = next(doctree.findall(nodes.title), None)
    if head is None or not told:
        return
    below = []
    if told.get("lit"):
        app.env.note_dependency(str(MODEL))
        try:
            svg = drawing(told["lit"])
        except ValueError as error:
            log.warning("%s", error, location=head)
        else:
            below.append(nodes.raw("", f'<div class="here">{svg}<div class="lit-names" aria-hidden="true">{names(told["lit"])}</div></div>', format="html"))
            head["classes"].append("beside")
    line = nodes.paragraph(classes=["place"])
    if told.get("paper"):
        line += nodes.Text("The paper: ")
        for i, place in enumerate(told["paper"]):
            line += [nodes.Text(", ")] * bool(i) + [paper_link(place)]
    if told.get("module"):
        if line.children:
            line += nodes.Text(" · ")
        line += nodes.Text("code: ")
        line += module_link(app.env, f"annotated.{told['module']}")
    stem = docname.rsplit("/", 1)[-1]
    if asks(docname):
        chapter = f"notebooks/{stem.removesuffix('-questions')}"
        line += [nodes.Text("behind "), front.to_page(chapter, nodes.Text(f"chapter {number(docname)}"))]
    if not front.opening(doctree, stem) and (time := front.minutes(stem)):
        line += nodes.Text(f"{' · ' if line.children else ''}{front.spoken(time)} to read")
    if line.children:
        below.append(line)
    for node in reversed(below):
        head.parent.insert(head.parent.index(head) + 1, node)


def spell(place: str) -> str:
    "`3.2.1` -> `section 3.2.1`; anything else as it stands."
    return f"section {place}" if re.fullmatch(r"[\d.]+", str(place)) else str(place)


PAPER = "https://arxiv.org/html/1706.03762v7"
STANDS = {  # figures, tables and equations -> the section of the paper in which a reader finds them
    "Eq. 1": "3.2.1", "Eq. 2": "3.3", "Eq. 3": "5.3", "Figure 1": "3.1", "Figure 2": "3.2", "Figure 3": "4", "Figure 4": "4", "Figure 5": "4",
    "Table 1": "4", "Table 2": "6.1", "Table 3": "6.2", "Table 4": "6.3",
}


def paper_link(place: str) -> nodes.Node:
    "A place in the paper, leading to its section there: S3.SS2.SSS1 is the anchor of section 3.2.1."
    named = re.match(r"[A-Z][a-z]+\.? \d", str(place))
    section = STANDS.get(named[0]) if named else re.match(r"[\d.]*", str(place))[0]
    anchor = ".".join(mark + n for mark, n in zip(("S", "SS", "SSS"), section.split("."))) if section else ""
    return nodes.reference("", spell(place), refuri=PAPER + (f"#{anchor}" if anchor else ""), internal=False)


def module_link(env, module: str) -> nodes.Node:
    text = nodes.literal(module, module)
    if API not in env.found_docs or not (api.PACKAGE / f"{module.split('.')[1]}.py").exists():
        return text
    return addnodes.pending_xref("", text, refdomain="py", reftype="mod", reftarget=module, refexplicit=True, refdoc=env.docname)


def dress(env, docname: str, cell, module: str | None) -> None:
    "What a cell's tags mean on the page."
    tags = set(cell.get("cell_metadata", {}).get("tags", [])) or {c[4:].replace("_", "-") for c in cell["classes"] if c.startswith("tag_")}
    if "launch" in tags:
        cell.parent.remove(cell)
        return
    if tags & {"setup", "hide-input"} and "hide_mode" not in cell:  # myst-nb leaves cells without output open
        cell["hide_mode"] = "all"
    for tag, words in PROMPTS.items():
        if tag in tags and "hide_mode" in cell:
            cell["prompt_show"] = f"Show {words}"
            cell["prompt_hide"] = f"Hide {words}"
            break
    if "export" in tags and module:
        export(env, docname, cell, f"annotated.{module}")


def bound(source: str) -> list[str]:
    "The names that a cell's code binds at top level; none for imports."
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return []
    out = []
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            out.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            out += [t.id for t in targets if isinstance(t, ast.Name)]
    return out


def export(env, docname: str, cell, module: str) -> None:
    "Say above an exported cell where it goes."
    code = next(cell.findall(nodes.literal_block), None)
    found = bound(code.astext()) if code is not None else []
    line = nodes.paragraph(classes=["export-line"])
    line += module_link(env, module)
    line += nodes.Text(" · ")
    if not found:
        line += nodes.inline("", "imports")
        cell["classes"].append("export-imports")
    for i, name in enumerate(found):
        full = f"{module}.{name}"
        place = f"export-{name}"
        cell["ids"].append(place)
        env.annotated_exports[full] = (docname, place)
        if i:
            line += nodes.Text(", ")
        text = nodes.literal(name, name)
        if API in env.found_docs and name in {d.split(".")[-1] for d in public(env, module)}:
            text = addnodes.pending_xref("", text, refdomain="py", reftype="obj", reftarget=full, refexplicit=True, refdoc=docname)
        line += text
    cell.insert(0, line)


class FoldExported(SphinxPostTransform):
    """Fold an exported cell below the line that says where it goes: myst-nb folds only what begins with code.

    Several folded cells in a row are folded as one.
    """

    default_priority = HideInputCells.default_priority + 1
    formats = ("html",)

    def run(self, **kwargs):
        rows: list[list] = []
        for cell in list(self.document.findall(nodes.container)):
            if cell.get("hide_mode") not in ("all", "input") or not cell.children or "export-line" not in cell[0]["classes"]:
                continue
            follows = rows and cell.parent is rows[-1][-1].parent and cell.parent.index(cell) == cell.parent.index(rows[-1][-1]) + 1
            if follows and not any(len(one.children) > 2 for one in (cell, rows[-1][-1])):  # nothing to be seen of either
                rows[-1].append(cell)
            else:
                rows.append([cell])
        for row in rows:
            if len(row) > 2:
                fold_row(row)
                continue
            for cell in row:
                fold_one(cell)


def fold_one(cell) -> None:
    "Fold the code of an exported cell, and what it gives where all is to be hidden."
    fold = HideCodeCellNode(prompt_show=cell["prompt_show"], prompt_hide=cell["prompt_hide"], classes=["above-input"])
    for part in cell.children[1:] if cell["hide_mode"] == "all" else cell.children[1:2]:
        cell.remove(part)
        fold += part
    cell.insert(1, fold)


def fold_row(cells: list) -> None:
    "Fold exported cells that follow each other below one line, which names what is in them."
    lines = [list(cell[0].findall(nodes.literal)) for cell in cells]  # of each: its module, and the names
    names = list(dict.fromkeys(name for line in lines for name in [part.astext() for part in line[1:]] or ["imports"]))
    more = f" and {len(names) - 5} more" if len(names) > 6 else ""
    words = f"{len(cells)} cells of {lines[0][0].astext()}: {', '.join(names[:5] if more else names)}{more}"
    fold = HideCodeCellNode(prompt_show=f"Show {words}", prompt_hide=f"Hide {words}", classes=["above-input"])
    parent, at = cells[0].parent, cells[0].parent.index(cells[0])
    for cell in cells:
        parent.remove(cell)
        fold += cell
    parent.insert(at, nodes.container("", fold, classes=["cell", "folded-row"]))


def public(env, module: str) -> list[str]:
    "The public names of a module as its page lists them."
    return env.annotated_public.get(module, [])


def colour(doctree) -> None:
    "On a page where some formula has queries, keys and values, these letters keep their hues."
    formulas = [*doctree.findall(nodes.math), *doctree.findall(nodes.math_block)]
    words = [set(re.findall(r"(?<![A-Za-z\\])[QKV](?![A-Za-z])", node.astext())) for node in formulas]
    if {"Q", "K", "V"} in words:
        for node in formulas:
            node["classes"].append("qkv")


def own_names(doctree) -> set[str]:
    "What the code of a page gives names to; in its text these names mean that."
    out: set[str] = set()
    for block in doctree.findall(nodes.literal_block):
        with contextlib.suppress(SyntaxError, ValueError):
            out |= api.bound(ast.parse(block.astext()))
    return out


def link_names(env, doctree, own: str | None) -> None:
    """Code in the text that is a public name of another chapter leads to its entry on the package's pages.

    A bare name leads there only if nothing else is called so: no method, field or parameter of the package, and
    nothing on this page.
    """
    if API not in env.found_docs or is_api(env.docname):
        return
    known = env.annotated_names
    full_names = set(known.values())
    meant = own_names(doctree)
    for node in list(doctree.findall(nodes.literal)):
        text = node.astext().removesuffix("()")
        full = text if text in full_names else f"annotated.{text}" if f"annotated.{text}" in full_names else None
        if full is None and text not in env.annotated_namesakes and text not in meant:
            full = known.get(text)
        inside = node.parent
        while inside is not None and not isinstance(inside, (nodes.title, nodes.reference, addnodes.pending_xref)):
            inside = inside.parent
        if full is None or inside is not None or full.split(".")[1] == own:
            continue
        link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=full, refexplicit=True, refdoc=env.docname, classes=["quiet"])
        node.replace_self(link)
        link += node


# ---------------------------------------------------------------- when all pages are read

def start(app) -> None:
    env = app.env
    api.modules.cache_clear()  # a build may follow another in one process
    if not hasattr(env, "annotated_exports"):
        env.annotated_exports = {}
    env.annotated_names = api.names()
    env.annotated_namesakes = api.namesakes()
    env.annotated_public = {m.name: [f"{m.name}.{d.name}" for d in m.found] for m in api.modules()}


def outdated(app, env, added, changed, removed) -> list[str]:
    """The pages that are read again though their own text is the same.

    Those that speak of all chapters are read at every build; all of them are if the package has other public names, which
    `link_names` looks for.
    """
    names = (env.annotated_names, env.annotated_namesakes, env.annotated_public)
    before, env.annotated_names_read = getattr(env, "annotated_names_read", names), names
    if before != names:
        return sorted(env.found_docs)
    return [name for name in env.found_docs if is_api(name) or name in (app.config.root_doc, "book/index", MAP)]


def purge(app, env, docname: str) -> None:
    exports = getattr(env, "annotated_exports", {})
    env.annotated_exports = {full: place for full, place in exports.items() if place[0] != docname}


def merge(app, env, docnames, other) -> None:
    env.annotated_exports.update({full: place for full, place in other.annotated_exports.items() if place[0] in docnames})


def retitled(app, env) -> list[str]:
    "Every page names others, in the contents beside it and at its end: all are written again where these have other names or places."
    contents = (ROOT / "_toc.yml").read_text(encoding="utf-8"), {name: title.astext() for name, title in env.titles.items()}
    before, env.annotated_contents = getattr(env, "annotated_contents", contents), contents
    return [] if before == contents else sorted(env.found_docs)


def unnumber(app, env) -> list[str]:
    """Before Sphinx numbers: its own numbers of the build before, instead of ours.

    It compares, and writes each page anew whose numbers are others; with ours that is every page that has any.
    """
    env.toc_fignumbers = getattr(env, "annotated_fignumbers", {})
    return []


def renumber(app, env) -> list[str]:
    "Figures, tables and equations count within their chapter: figure 2.1 is the first of chapter 2."
    env.annotated_fignumbers = copy.deepcopy(env.toc_fignumbers)
    for docname, kinds in env.toc_fignumbers.items():
        n = letter(docname)
        for ids in kinds.values():
            order = sorted(ids, key=lambda i: ids[i])
            for place, i in enumerate(order, 1):
                ids[i] = (n, place) if n else (place,)
    return []


def resolve(app, doctree, docname: str) -> None:
    "Links from the package's pages back to the chapters."
    env = app.env
    for node in list(doctree.findall(nodes.inline)):
        if "from-chapter" in node["classes"]:
            place = env.annotated_exports.get(node["fullname"])
            if place is None:
                node.parent.remove(node)
                continue
            where, anchor = place
            words = f"{kind(where)} {letter(where)}"
        elif "chapter-of" in node["classes"]:
            where, anchor = f"notebooks/{node['chapter']}", ""
            if not node["chapter"] or where not in env.titles:
                paragraph = node.parent
                paragraph.parent.remove(paragraph)
                continue
            words = f"Made in {kind(where)} {env.titles[where].astext().replace(chr(0x2002), ', ')}."
        else:
            continue
        uri = app.builder.get_relative_uri(docname, where) + (f"#{anchor}" if anchor else "")
        node += nodes.reference("", words, refuri=uri, internal=True)
    for node in list(doctree.findall(ModelMap)):
        node.replace_self(nodes.raw("", large(app, docname), format="html"))


class ModelMap(nodes.General, nodes.Element):
    "Stands for the large drawing until all chapters are known."


class ModelMapDirective(SphinxDirective):
    "`model-map`: the drawing, large; each part leads to the first chapter about it."

    def run(self):
        return [ModelMap()]


def large(app, docname: str) -> str:
    "The drawing with each part linked to the chapter that lights the fewest parts besides it."
    best: dict[str, tuple[int, str]] = {}
    for where in sorted(app.env.found_docs):
        lit = about(app.env, where).get("lit", [])
        for part in lit:
            if part in PARTS and (part not in best or len(lit) < best[part][0]):
                best[part] = (len(lit), where)
    links = {}
    for part, (_, where) in best.items():
        words = "chapter " + app.env.titles[where].astext().replace("\u2002", ", ")
        links[part] = (app.builder.get_relative_uri(docname, where), words)
    return f'<figure class="model-map">{drawing(size="large", links=links)}</figure>'


def named(toctree):
    "The sidebar's tree, each of its folds with a name for those who do not see the arrow."
    for summary in toctree.select("summary") if hasattr(toctree, "select") else ():
        page = " ".join(summary.find_parent("li").find("a").get_text().split())
        summary["aria-label"] = f"Pages below {page}"
    return toctree


def source(pagename: str) -> str | None:
    "The text from which a page is made: a chapter's for a notebook and for its module; None where there is no one text."
    part, _, stem = pagename.rpartition("/")
    if part == "notebooks":
        return f"book/{stem}.md"
    if part == "book/api":
        chapters = {module.name: module.chapter for module in api.modules()}
        chapter = chapters.get(f"annotated.{stem}")
        return f"book/{chapter}.md" if chapter else None
    return None if stem in ("questions", "B-differences") else f"{pagename}.md"


def edits(pagename: str, buttons: list[dict]) -> list[dict]:
    "The header's buttons, with the one that suggests an edit opening the text, not what is made of it."
    out = []
    for button in buttons:
        if "buttons" in button:
            button = button | {"buttons": edits(pagename, button["buttons"])}
        if button.get("label") == "source-edit-button":
            text = source(pagename)
            if text is None:
                continue
            button = button | {"url": re.match(r".*?/edit/[^/]+/", button["url"])[0] + text}
        out.append(button)
    return out


def scripts(app, pagename, templatename, context, doctree) -> None:
    """Mend the theme: a script declared twice is an error in the console, all folds are named alike,
    a bibliography is marked up as a list of things that are no list items, and code for live cells,
    which are off, names a foreign host.
    """
    if toctree := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = lambda *args, **options: named(toctree(*args, **options))
    if context.get("body"):
        body = context["body"].replace(' aria-label="Toggle hidden content"', "")
        context["body"] = body.replace('role="list" class="citation-list"', 'class="citation-list"')  # its items have another role
    if doctree is not None and "header_buttons" in context:
        context["header_buttons"] = edits(pagename, context["header_buttons"])
    seen, kept = set(), []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body")
        name = str(getattr(script, "filename", script)).lower()
        live = "thebe" in name or "THEBE" in (body or "")
        math = "mathjax" in name or "window.MathJax" in (body or "")  # annotated_page sees to formulas
        if live or math or body is not None and body in seen:
            continue
        seen.add(body)
        kept.append(script)
    context["script_files"] = kept


def setup(app):
    app.add_node(ModelMap)
    app.add_post_transform(FoldExported)
    app.add_directive("annotated-api", api.Reference)
    app.add_directive("annotated-group", api.Group)
    app.add_directive("model-map", ModelMapDirective)
    front.setup(app)
    page.setup(app)
    app.connect("config-inited", host)
    app.connect("builder-inited", start)
    app.connect("env-get-outdated", outdated)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("doctree-read", prepare, priority=100)
    app.connect("env-get-updated", retitled)
    app.connect("env-get-updated", unnumber, priority=100)  # Sphinx numbers at 500
    app.connect("env-get-updated", renumber, priority=900)
    app.connect("env-updated", search.keep)
    app.connect("doctree-resolved", resolve)
    app.connect("html-page-context", scripts, priority=900)
    makers = [*sorted(Path(__file__).parent.glob("annotated_*.py")), *(ROOT / "tools" / f"{name}.py" for name in TOOLS)]
    code = b"".join(path.read_bytes() for path in makers)
    # Pages read by other extensions than these are read again.
    return {"version": "1", "env_version": int(hashlib.sha256(code).hexdigest()[:8], 16), "parallel_read_safe": True, "parallel_write_safe": True}
