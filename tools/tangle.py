"""Tangle: the cells of book/*.md that are tagged `export` become annotated/*.py.

    python tools/tangle.py [--check] [CHAPTER ...]

A chapter names its module in its front matter (`module: attention`).
A cell that breaks a rule of CONTRIBUTING.md is refused with the chapter and the line;
`--check` writes nothing and exits 1, with a line for every module that is not what the chapters say.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

from chapters import ROOT, Cell, Chapter, Refused, chosen, clear_orphans, module_order, read, write_whole

MADE = "by tools/tangle.py: edit the chapter, not this file."
BY_HAND = {"__init__", "__main__"}
CORE = {"torch", "numpy", "safetensors", "tqdm"}
INSIDE = {"sentencepiece", "sacrebleu", "matplotlib", "huggingface_hub"}
EXEMPT = {"Config", "Recipe"}
LINES, ARGUMENTS, CLASS_LINES = 25, 6, 45
WIDTH = 120
PROJECT = str(ROOT / "pyproject.toml")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORT = (ast.Import, ast.ImportFrom)


def tangle(chapter: Chapter, order: dict[str, str]) -> tuple[str | None, list[str]]:
    """The module a chapter makes (None without exported cells) and the rules it breaks."""
    cells = chapter.code("export")
    if chapter.questions:  # their chapter makes the module
        found = [f"{chapter.name}:1: questions name no `module:`"] * bool(chapter.module)
        return None, found + [f"{chapter.at(cell)}: questions export nothing: a chapter does" for cell in cells]
    try:
        here = chapter.position  # an appendix with a module says where it stands
    except Refused as error:
        return None, [str(error)]
    if not cells:
        missing = [f"{chapter.name}:1: module {chapter.module}, but no cell is tagged export"]
        return None, missing * bool(chapter.module)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(chapter.module)):
        where = chapter.at(cells[0])
        return None, [f"{where}: exported cells need a `module:` in the front matter, not {chapter.module!r}"]
    problems = []

    def refuse(cell, node, message):
        problems.append(f"{chapter.at(cell, getattr(node, 'lineno', node))}: {message}")

    imports, bodies = sorted_cells(cells, chapter.module, refuse)
    check_imports(here, imports + inner_imports(bodies), order, refuse)
    check_names(imports, bodies, refuse)
    check_rebinding(chapter, {name_of(n) for _, n in bodies}, refuse)
    if problems:
        return None, problems
    return module_text(chapter, imports, bodies), []


def sorted_cells(cells: list[Cell], module: str, refuse) -> tuple[list, list]:
    """The imports and the definitions of exported cells, each as (cell, node); what breaks a rule is refused."""
    imports, bodies = [], []
    for cell in cells:
        if not parsed(cell, refuse):
            continue
        for node in packed(cell):
            names = ", ".join(map(ast.unparse, node.targets[0].elts))
            refuse(cell, node, f"one thought a line: {names} are bound in lines of their own")
        body = cell.tree.body
        if all(isinstance(n, IMPORT) for n in body):
            imports += [(cell, node) for node in body]
            continue
        node = one_name(cell, refuse)
        if node is not None:
            bodies.append((cell, node))
            check_definition(cell, node, module, refuse)
    return imports, bodies


def check_names(imports, bodies, refuse) -> None:
    """No name is bound twice, and none that is imported is bound."""
    bound = {}  # name -> the line of the chapter
    for cell, node in bodies:
        name = name_of(node)
        if name in bound:
            refuse(cell, node, f"{name} is bound twice, first on line {bound[name]}")
        bound.setdefault(name, cell.line + node.lineno - 1)
    for cell, node in imports:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            if name in bound:
                refuse(cell, node, f"{name} is imported here and bound on line {bound[name]}")


def parsed(cell: Cell, refuse) -> bool:
    """Whether the cell holds Python; magics are named as such."""
    for number, line in enumerate(cell.source.splitlines(), 1):
        if re.match(r"\s*[%!]", line):
            refuse(cell, number, f"no magics in exported cells: {line.strip()}")
            return False
    try:
        body = cell.tree.body
    except SyntaxError as error:
        refuse(cell, error.lineno or 1, f"not Python: {error.msg}")
        return False
    if not body:
        refuse(cell, 1, "an exported cell is empty")
    return bool(body)


def name_of(node) -> str:
    if isinstance(node, ast.Assign):
        return node.targets[0].id
    return node.target.id if isinstance(node, ast.AnnAssign) else node.name


def one_name(cell: Cell, refuse):
    """The one statement of the cell, which binds one name."""
    body = cell.tree.body
    imported = [n for n in body if isinstance(n, IMPORT)]
    if imported:
        refuse(cell, imported[0], "imports stand in exported cells of their own")
        return None
    node = body[0]
    if len(body) > 1:
        refuse(cell, body[1], "an exported cell binds one name and does nothing else")
    elif isinstance(node, FUNCTION + (ast.ClassDef,)):
        return node
    elif isinstance(node, ast.AnnAssign):
        if isinstance(node.target, ast.Name) and node.value is not None:
            return node
        refuse(cell, node, "an exported annotation binds one plain name to a value")
    elif isinstance(node, ast.Assign):
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            return node
        refuse(cell, node, "an exported assignment binds one plain name")
    else:
        refuse(cell, node, "an exported cell is a function, a class, a constant, or imports")
    return None


def is_string(node) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def code_lines(cell: Cell, node) -> int:
    """Lines of a definition from `def` or `class` on, without docstrings, comments and blank lines."""
    skip = set()
    for inner in ast.walk(node):
        if isinstance(inner, FUNCTION + (ast.ClassDef,)) and is_string(inner.body[0]):
            skip |= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    used = set()
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(cell.source).readline):
        if token.type not in blank:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len([n for n in used - skip if node.lineno <= n <= node.end_lineno])


def check_definition(cell: Cell, node, module: str, refuse) -> None:
    name = name_of(node)
    if isinstance(node, FUNCTION + (ast.ClassDef,)):
        if not name.startswith("_") and not ast.get_docstring(node):
            refuse(cell, node, f"{name} has no docstring")
    exempt = name in EXEMPT
    if isinstance(node, ast.ClassDef) and not exempt and (n := code_lines(cell, node)) > CLASS_LINES:
        refuse(cell, node, f"class {name} has {n} lines, {CLASS_LINES} are allowed")
    for inner in ast.walk(node):
        if isinstance(inner, FUNCTION) and not exempt:
            if (n := code_lines(cell, inner)) > LINES:
                refuse(cell, inner, f"{inner.name} has {n} lines, {LINES} are allowed")
            if (n := len(arguments(inner))) > ARGUMENTS:
                refuse(cell, inner, f"{inner.name} has {n} arguments, {ARGUMENTS} are allowed")
        if isinstance(inner, ast.Call):
            called = ast.unparse(inner.func)
            if called == "print" and module not in ("cli", "own_text", "figures"):
                refuse(cell, inner, "the package prints nothing")
            if called == "torch.manual_seed" and module not in ("training", "own_text"):
                refuse(cell, inner, "the package sets no seed outside `train`: pass a generator")
        if isinstance(inner, ast.Global):
            refuse(cell, inner, "no global statements in the package")


def arguments(node) -> list[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    names = [a.arg for a in every if a is not None]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def inner_imports(bodies) -> list:
    """The imports inside exported functions and classes."""
    return [(cell, n) for cell, node in bodies for n in ast.walk(node) if isinstance(n, IMPORT)]


def check_imports(here: str, imports, order: dict[str, str], refuse) -> None:
    """Imports name what the core needs and modules of earlier chapters; extras stand inside functions."""
    for cell, node in imports:
        inside = node.col_offset > 0
        if isinstance(node, ast.ImportFrom) and (node.level or any(a.name == "*" for a in node.names)):
            refuse(cell, node, "imports name what they import, from an absolute module")
            continue
        for name in imported(node, order):
            root, _, rest = name.partition(".")
            if root == "annotated":
                wanted = rest.split(".")[0]
                if not wanted:
                    if not (inside and here == order.get("cli")):  # which asks the package for `load` and the version
                        refuse(cell, node, "import from the chapter's module: `from annotated.attention import ...`")
                elif wanted not in order:
                    refuse(cell, node, f"no chapter makes annotated.{wanted}")
                elif order[wanted] >= here:
                    refuse(cell, node, f"annotated.{wanted} is {spoken(order[wanted])}: import earlier chapters only")
            elif root not in CORE | set(sys.stdlib_module_names) and not (inside and root in INSIDE):
                hint = "inside the function that needs it" if root in INSIDE else "not in the package"
                refuse(cell, node, f"{root}: {hint}")


def imported(node, order: dict[str, str]) -> list[str]:
    """The modules that an import names; `from annotated import gpu` names annotated.gpu."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    below = [alias.name for alias in node.names if node.module == "annotated"]
    return [f"annotated.{name}" if name in order else "annotated" for name in below] or [node.module]


def spoken(position: str) -> str:
    """`chapter 08`, or `appendix F, which comes after chapter 08`."""
    number, letter = position[:2], position[2:]
    return f"appendix {letter}, which comes after chapter {number}" if letter else f"chapter {number}"


def packed(cell: Cell) -> list[ast.Assign]:
    """Assignments of several unrelated values at once, `folder, corpus = options.out, read_corpus(options)`."""
    return [node for node in ast.walk(cell.tree) if isinstance(node, ast.Assign) and is_packed(node)]


def is_packed(node: ast.Assign) -> bool:
    """Whether two values or more that are worked out go to a name each in one line."""
    pair = (node.targets[0], node.value)
    if not all(isinstance(side, ast.Tuple) for side in pair) or len(pair[0].elts) != len(pair[1].elts):
        return False
    return len([value for value in node.value.elts if not is_plain(value)]) > 1


def is_plain(node) -> bool:
    """A name, an attribute of one, a constant (also negative), or an empty list, dictionary or tuple."""
    if isinstance(node, ast.Attribute):
        return is_plain(node.value)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Name | ast.Constant) or ast.unparse(node) in ("[]", "{}", "()")


def check_rebinding(chapter: Chapter, exported: set[str], refuse) -> None:
    """No later cell binds or patches an exported name, so that the notebook and the module agree."""
    for cell in chapter.code():
        if "export" in cell.tags:
            continue
        try:
            body = cell.tree.body
        except SyntaxError:
            continue  # weaving and the layout check report it
        for node in body:
            if isinstance(node, FUNCTION + (ast.ClassDef,)) and node.name in exported:
                refuse(cell, node, f"{node.name} is exported; a cell that is not binds it again")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in [t for top in targets if top is not None for t in flat(top)]:
                base = target.value if isinstance(target, ast.Attribute) else target
                if isinstance(base, ast.Name) and base.id in exported:
                    refuse(cell, node, f"{base.id} is exported; a later cell must not change it")


def flat(target) -> list:
    if isinstance(target, ast.Tuple | ast.List):
        return [t for element in target.elts for t in flat(element)]
    return [target.value] if isinstance(target, ast.Starred) else [target]


def sorted_imports(text: str, name: str) -> str:
    """A module's text with its imports merged and sorted, by ruff."""
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--select", "I", "--fix", "--config", PROJECT]
    command += ["--config", "lint.isort.split-on-trailing-comma = false"]  # as short as it fits
    command += ["--stdin-filename", f"annotated/{name}.py", "-"]
    done = subprocess.run(command, input=text, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise SystemExit(f"tangle: ruff cannot sort the imports of {name}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def module_text(chapter: Chapter, imports, bodies) -> str:
    """What the module's file holds: where it comes from, the imports, the public names, the cells."""
    title = chapter.title.replace("\\", "\\\\").replace('"""', "'''")
    parts = [f'"""{title}.\n\nGenerated from {chapter.name} {MADE}\n"""\n']
    if imports:
        cells = {id(cell): cell for cell, _ in imports}  # each once, in their order
        parts.append("\n".join(cell.source.strip("\n") for cell in cells.values()) + "\n")
    names = [name_of(n) for _, n in bodies if not name_of(n).startswith("_")]
    line = "__all__ = [" + ", ".join(f'"{n}"' for n in names) + "]"
    if len(line) > WIDTH:
        line = "__all__ = [\n" + "".join(f'    "{n}",\n' for n in names) + "]"
    parts.append(line + "\n")
    text, previous = "\n".join(parts), None
    for cell, node in bodies:
        constants = isinstance(node, ast.Assign | ast.AnnAssign) and previous is not None
        gap = "\n" if constants and isinstance(previous, ast.Assign | ast.AnnAssign) else "\n\n"
        text += gap + "\n".join(line.rstrip() for line in cell.source.strip("\n").splitlines()) + "\n"
        previous = node
    return sorted_imports(text, chapter.module) if imports else text


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Make annotated/*.py from the chapters.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="02 or book/02-attention.md; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 where a module is stale")
    args = parser.parse_args(argv)
    package, order, made, failed = root / "annotated", module_order(root), {}, False
    for path in chosen(args.chapters, root):
        try:
            chapter = read(path)
        except Refused as error:
            print(error, file=sys.stderr)
            failed = True
            continue
        text, problems = tangle(chapter, order)
        if not problems and (chapter.module in made or order.get(chapter.module, chapter.position) != chapter.position):
            problems = [f"{chapter.name}:1: module {chapter.module} is of {spoken(order[chapter.module])} already"]
        for problem in problems:
            print(problem, file=sys.stderr)
        failed |= bool(problems)
        if text is not None and not problems:
            made[chapter.module] = text
    refused = failed
    for name, text in made.items():
        target = package / f"{name}.py"
        if target.exists() and target.read_text(encoding="utf-8") == text:
            continue
        print(f"annotated/{name}.py is " + ("not what its chapter says" if args.check else "written"))
        if args.check:
            failed = True
        else:
            write_whole(target, text)
    # A module may be that of a text that was refused, or of one that was not asked for.
    unknown = refused or bool(args.chapters)
    left = [path for path in sorted(package.glob("*.py")) if path.stem not in {*order, *BY_HAND}]
    return int(clear_orphans(left, is_ours, args.check, unknown) or failed)


def is_ours(path: Path) -> bool:
    """Whether a module was made from a chapter."""
    return MADE in path.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())


