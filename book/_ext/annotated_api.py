"""The package's pages: modules read as text and never imported, with the chapter each name comes from.

book/api.md sorts the modules into groups by what one wants to do, and book/api/ has a page for each.
"""

import ast
import functools
import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "tools"))
from chapters import front_matter, module_order, woven  # noqa: E402

PACKAGE = ROOT / "annotated"
log = logging.getLogger(__name__)
SECTION = re.compile(r"(Args|Arguments|Attributes|Returns|Yields|Raises|Warns|Example|Examples|Note|Notes):\s*$")
ITEMISED = ("Args", "Arguments", "Attributes", "Raises", "Warns")
ITEM = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*)(?: \([^)]*\))?: +(.*)", re.S)


@functools.cache
def modules() -> list[SimpleNamespace]:
    "The package's modules in the order of the chapters; each with its docstring and its public definitions."
    chapters = {front["module"]: path.stem for path in woven(ROOT) if "module" in (front := front_matter(path) or {})}
    out = []
    for stem in ["__init__", *module_order(ROOT)]:
        path = PACKAGE / f"{stem}.py"
        if path.exists():
            out.append(module(path, chapters.get(stem, "")))
    return [m for m in out if m.found]


def module(path: Path, chapter: str) -> SimpleNamespace:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = [d for node in tree.body for d in definitions(node, text)]
    public = declared(tree)
    found = [d for d in found if not d.name.startswith("_") and (public is None or d.name in public)]
    title = (ast.get_docstring(tree) or "").split("\n")[0].rstrip(".")
    name = "annotated" if path.stem == "__init__" else f"annotated.{path.stem}"
    return SimpleNamespace(name=name, path=path, title=title, found=found, chapter=chapter)


def page(name: str) -> str:
    "The page of a module, `book/api/attention` for `annotated.attention`."
    return f"book/api/{name.removeprefix('annotated.')}"


def declared(tree: ast.Module) -> set[str] | None:
    "What `__all__` lists, or None where there is none."
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            try:
                return set(ast.literal_eval(node.value))
            except ValueError:
                return None
    return None


def definitions(node: ast.stmt, text: str) -> list[SimpleNamespace]:
    "What a statement at top level defines: a function, a class or a constant."
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [function(node)]
    if isinstance(node, ast.ClassDef):
        return [klass(node, text)]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno] if targets else []  # ast.get_source_segment takes 100 times as long
    source = "\n".join(lines)
    return [
        SimpleNamespace(kind="data", name=t.id, parameters=None, returns="", doc="", source=source, members=[])
        for t in targets
        if isinstance(t, ast.Name) and t.id != "__all__"
    ]


def function(node, kind: str = "function") -> SimpleNamespace:
    arguments = node.args
    if kind == "method" and (arguments.posonlyargs + arguments.args):
        skip = not any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
        arguments.args = arguments.args[1:] if skip else arguments.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg) and argument.annotation:
            argument.annotation = ast.Name(plain(argument.annotation))
    returns = plain(node.returns) if node.returns else ""
    doc = ast.get_docstring(node) or ""
    return SimpleNamespace(kind=kind, name=node.name, parameters=split(ast.unparse(arguments)), returns=returns, doc=doc, source="", members=[])


def plain(annotation: ast.expr) -> str:
    "A type as text, without the quotes that it has where its name stands further down in the module."
    return re.sub(r"'([A-Z]\w*)'", r"\1", ast.unparse(annotation))


def split(arguments: str) -> list[str]:
    "The parameters of a signature, one by one: commas inside brackets do not part them."
    out, depth, quote = [""], 0, ""
    for sign in arguments:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        depth += 0 if quote else (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0 and not quote:
            out.append("")
        else:
            out[-1] += sign
    return [part.strip() for part in out if part.strip()]


def klass(node: ast.ClassDef, text: str) -> SimpleNamespace:
    "A class: its constructor's parameters, its documented methods, and, of a dataclass, its fields as written."
    methods = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
    methods |= {n.name: n for n in hidden(node, text) if isinstance(n, ast.FunctionDef) and n.name not in methods}
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    data = any("dataclass" in ast.unparse(d) for d in node.decorator_list) or any("NamedTuple" in ast.unparse(b) for b in node.bases)
    source = ""
    parameters = function(methods["__init__"], "method").parameters if "__init__" in methods else []
    if data and fields:
        parameters = ["..."] if len(fields) > 6 else [ast.unparse(n) for n in fields]
        lines = text.splitlines()[fields[0].lineno - 1 : fields[-1].end_lineno]
        source = inspect.cleandoc("\n".join(lines))
    members = [
        function(n, "property" if any("property" in ast.unparse(d) for d in n.decorator_list) else "method")
        for name, n in methods.items()
        if (not name.startswith("_") and (ast.get_docstring(n) or name == "forward"))
    ]
    doc = ast.get_docstring(node) or ""
    return SimpleNamespace(kind="class", name=node.name, parameters=parameters, returns="", doc=doc, source=source, members=members)


def hidden(node: ast.ClassDef, text: str) -> list[ast.stmt]:
    "What a class has from bases of its own module whose names begin with an underscore: they have no entry."
    bases = {base.id for base in node.bases if isinstance(base, ast.Name) and base.id.startswith("_")}
    tree = ast.parse(text) if bases else ast.Module([], [])
    return [s for n in tree.body if isinstance(n, ast.ClassDef) and n.name in bases for s in n.body]


def names() -> dict[str, str]:
    "Public name -> full name, of names that only one module defines."
    seen: dict[str, list[str]] = {}
    for module in modules():
        for found in module.found:
            seen.setdefault(found.name, []).append(f"{module.name}.{found.name}")
    return {name: full[0] for name, full in seen.items() if len(full) == 1}


def bound(tree: ast.AST) -> set[str]:
    "Every name that some code gives to something: functions, methods, parameters, fields, attributes, variables."
    out = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.add(node.name)
        elif isinstance(node, ast.arg):
            out.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            out.add(node.attr)
    return out


def namesakes() -> set[str]:
    "Names that the package gives to something within a class or a function: said alone, they may mean that."
    out: set[str] = set()
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
                out |= set().union(*(bound(child) for child in inner)) - {node.name}
    return out


def inline(text: str) -> list[nodes.Node]:
    "A docstring's prose: code between backticks, the rest as it stands."
    out: list[nodes.Node] = []
    for i, part in enumerate(re.split(r"``?([^`]+)``?", " ".join(text.split()))):
        if part:
            out.append(nodes.literal(part, part) if i % 2 else nodes.Text(part))
    return out


def blocks(lines: list[str]) -> list[nodes.Node]:
    "Paragraphs, lists and indented code."
    out: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if not block.strip():
            continue
        rows = block.splitlines()
        if all(row.startswith("    ") for row in rows) or rows[0].lstrip().startswith(">>>"):
            code = inspect.cleandoc("\n" + block)
            out.append(nodes.literal_block(code, code, language="python"))
        elif rows[0].startswith("- "):
            items = re.split(r"^- ", block, flags=re.M)[1:]
            out.append(nodes.bullet_list("", *(nodes.list_item("", nodes.paragraph("", "", *inline(i))) for i in items)))
        else:
            out.append(nodes.paragraph("", "", *inline(block)))
    return out


def docstring(doc: str) -> list[nodes.Node]:
    "A docstring in the form CONTRIBUTING.md asks for: a sentence, then Args, Returns, Raises."
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in doc.splitlines():
        heading = SECTION.match(line)
        if heading:
            parts.append((heading[1], []))
        elif parts[-1][0] and line.strip() and not line.startswith(" "):  # a section is indented: here it has ended
            parts.append(("", [line]))
        else:
            parts[-1][1].append(line)
    out: list[nodes.Node] = []
    for heading, lines in parts:
        body = inspect.cleandoc("\n" + "\n".join(lines))
        if not heading:
            out += blocks(lines)
        elif heading.startswith("Example"):
            out.append(nodes.literal_block(body, body, language="python"))
        else:
            if not out or not isinstance(out[-1], nodes.definition_list):
                out.append(nodes.definition_list(classes=["api-fields"]))
            content = items(body) if heading in ITEMISED else blocks(body.splitlines())
            term = nodes.term("", {"Args": "Arguments"}.get(heading, heading))
            out[-1] += nodes.definition_list_item("", term, nodes.definition("", *content))
    return out


def items(body: str) -> list[nodes.Node]:
    "The lines `name: what it is` of a section, as a list."
    entries: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        elif line.strip():
            entries.append(line)
    out = nodes.bullet_list(classes=["api-items"])
    for entry in entries:
        match = ITEM.match(entry)
        content = [nodes.literal(match[1], match[1]), nodes.Text(" "), *inline(match[2])] if match else inline(entry)
        out += nodes.list_item("", nodes.paragraph("", "", *content))
    return [out]


def cross(name: str, text: str, kind: str, where: str) -> nodes.Node:
    "A link to a name's entry, as code."
    options = {"refdomain": "py", "reftype": kind, "reftarget": name, "refexplicit": True, "refdoc": where}
    return addnodes.pending_xref("", nodes.literal(text, text), **options)


class Group(SphinxDirective):
    "`annotated-group`: a table of the modules that its lines name, each with its subject and its public names."

    has_content = True

    def run(self):
        known = {module.name.removeprefix("annotated."): module for module in modules()}
        rows = nodes.tbody()
        for name in " ".join(self.content).split():
            if name not in known:
                log.warning("there is no module %s to put into a group", name, location=self.get_location())
                continue
            module = known[name]
            self.env.note_dependency(str(module.path))
            rows += self.row(module)
        columns = [nodes.colspec(colwidth=width) for width in (22, 28, 50)]
        head = nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in ("module", "subject", "names")))
        return [nodes.table("", nodes.tgroup("", *columns, nodes.thead("", head), rows, cols=3), classes=["api-group"])]

    def row(self, module) -> nodes.row:
        where = self.env.docname
        names = nodes.paragraph()
        for found in module.found:
            names += [nodes.Text(", ")] * bool(names.children) + [cross(f"{module.name}.{found.name}", found.name, "obj", where)]
        first = nodes.paragraph("", "", cross(module.name, module.name, "mod", where))
        return nodes.row("", *(nodes.entry("", cell) for cell in (first, nodes.paragraph("", module.title), names)))


class Reference(SphinxDirective):
    "`annotated-api`: the public names of one module."

    required_arguments = 1

    def run(self):
        found = [module for module in modules() if module.name == self.arguments[0]]
        if not found:
            log.warning("there is no module %s with public names", self.arguments[0], location=self.get_location())
            return []
        (module,) = found
        self.env.note_dependency(str(module.path))
        place = nodes.target("", "", ids=[f"module-{module.name}"])
        self.state.document.note_explicit_target(place, place)
        python = self.env.get_domain("py")
        python.note_module(module.name, f"module-{module.name}", "", "", False)
        python.note_object(module.name, "module", f"module-{module.name}", location=place)
        made = nodes.paragraph("", "", nodes.inline("", "", classes=["chapter-of"], chapter=module.chapter))
        called = nodes.paragraph("", "", nodes.literal(module.name, module.name))
        return [place, called, made, *(self.entry(module, name) for name in module.found)]

    def entry(self, module, found, owner: str = ""):
        full = ".".join(filter(None, [module.name, owner, found.name]))
        signature = addnodes.desc_signature("", "", ids=[full], classes=["sig-object", "py"], module=module.name, fullname=full)
        signature["_toc_parts"] = (found.name,)
        signature["_toc_name"] = "" if owner else found.name
        if found.kind in ("class", "property"):
            signature += addnodes.desc_annotation(found.kind + " ", found.kind + " ")
        signature += addnodes.desc_name(found.name, found.name)
        if found.parameters is not None and found.kind != "property":
            parameters = addnodes.desc_parameterlist()
            parameters += [addnodes.desc_parameter("", "", nodes.Text(p)) for p in found.parameters]
            signature += parameters
        if found.returns:
            signature += addnodes.desc_returns("", found.returns)
        if not owner:
            signature += nodes.inline("", "", classes=["from-chapter"], fullname=full)
        content = addnodes.desc_content("", *docstring(found.doc))
        if found.source:
            content += nodes.literal_block(found.source, found.source, language="python")
        content += [self.entry(module, member, found.name) for member in found.members]
        self.state.document.note_explicit_target(signature, signature)
        self.env.get_domain("py").note_object(full, found.kind, full, location=signature)
        return addnodes.desc("", signature, content, domain="py", objtype=found.kind, desctype=found.kind, noindex=False, classes=["py", found.kind])
