"""Measure the package: how long its modules are, what they show, refuse and load.

    python tools/house.py [--times 3]

Prints a line a module, in the order of the chapters, and then what tests/test_arrows.py would complain of.

    public  names of `__all__`
    raise   raise statements in 100 lines of code; docstrings, comments and blank lines are no code
    long    functions of more than 20 lines of code
    loads   lines of the package that an import of the module loads
    ms      time of that import beside torch's own, median of so many processes
"""

import argparse
import ast
import graphlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from chapters import ROOT, Cell, module_order
from tangle import FUNCTION, LINES, code_lines, is_string

ROOTS = {"__init__", "__main__"}  # written by hand; what they import, they import when it is asked for
COMMAND_LINE = "cli"
LONG = 20
PROBE = """
import json, os, sys, time
import torch
for module in sys.argv[1:]:
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    before = time.perf_counter()
    __import__(module)
    spent = time.perf_counter() - before
    print(json.dumps([1000 * spent, [name for name in sys.modules if name.startswith("annotated.")]]), flush=True)
    os._exit(0)
"""


# ---- arrows


class Arrow(NamedTuple):
    """An import of one module of the package by another; `to` is "" for the whole package."""

    source: str
    to: str
    line: int
    inside: bool  # a function or a class
    hidden: bool  # no import statement: import_module, __import__, sys.modules


def arrows(package: Path) -> list[Arrow]:
    """Every import among a package's modules, in whatever form."""
    names = {path.stem for path in package.glob("*.py")}
    found = []
    for path in sorted(package.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = set(map(id, tree.body))
        for node in ast.walk(tree):
            hidden = not isinstance(node, ast.Import | ast.ImportFrom)
            for name in hidden_targets(node) if hidden else targets(node, package.name, names):
                root, _, rest = name.partition(".")
                if root == package.name:
                    found.append(Arrow(path.stem, rest.split(".")[0], node.lineno, id(node) not in top, hidden))
    return found


def targets(node: ast.Import | ast.ImportFrom, package: str, modules: set[str]) -> list[str]:
    """The full names of the modules that an import statement loads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = ".".join(filter(None, [package if node.level else "", node.module]))
    if base != package:
        return [base]
    return [f"{package}.{alias.name}" if alias.name in modules else package for alias in node.names]


def hidden_targets(node: ast.AST) -> list[str]:
    """The module that a call of import_module or __import__ loads, or that `sys.modules[...]` asks for."""
    if isinstance(node, ast.Call) and node.args:
        called = ast.unparse(node.func).split(".")[-1]
        first = node.args[0]
        if called == "get" and ast.unparse(node.func).endswith("modules.get"):
            called = "import_module"
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] == "modules":
        called, first = "import_module", node.slice
    else:
        return []
    if called not in ("import_module", "__import__"):
        return []
    if isinstance(first, ast.JoinedStr) and first.values:  # f"annotated.{name}": the beginning says enough
        first = first.values[0]
    elif isinstance(first, ast.BinOp):
        first = first.left
    return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []


def faults(package: Path, order: dict[str, str]) -> list[str]:
    """What breaks the rules: arrows against the order of the chapters, circles, hidden imports."""
    place = {name: number for number, name in enumerate(order)}
    found, graph = [], {}
    for arrow in arrows(package):
        where = f"{package.name}/{arrow.source}.py:{arrow.line}: "
        graph.setdefault(arrow.source, set()).add(arrow.to or "__init__")
        if arrow.hidden:
            found.append(f"{where}imports {arrow.to or 'the package'} without an import statement")
        elif arrow.source in ROOTS:
            if not arrow.inside:
                found.append(f"{where}imports {arrow.to} before it is asked for")
        elif arrow.to in ROOTS or not arrow.to:
            if arrow.source != COMMAND_LINE or not arrow.inside:
                found.append(f"{where}imports the whole package; only functions of the command line may")
        elif arrow.to not in place:
            found.append(f"{where}no chapter makes {arrow.to}")
        elif place[arrow.to] >= place.get(arrow.source, -1):
            found.append(f"{where}{arrow.to} ({order[arrow.to]}) does not come before {order.get(arrow.source)}")
    return found + list(circle(graph))


def circle(graph: dict[str, set[str]]) -> Iterator[str]:
    """The first circle of a graph of imports, as a line."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield "a circle: " + " -> ".join(reversed(error.args[1]))


# ---- the table


def closures(modules: list[str], package: Path) -> list[tuple[float, list[str]]]:
    """Of each module the milliseconds that a process with nothing but torch takes to import it, and what it then holds.

    The processes are forked from one that has loaded torch.
    """
    command = [sys.executable, "-c", PROBE, *(f"{package.name}.{module}" for module in modules)]
    done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True, check=True)
    rows = map(json.loads, done.stdout.splitlines())
    return [(spent, [name.partition(".")[2] for name in names]) for spent, names in rows]


def lines(package: Path, modules: list[str]) -> int:
    return sum(len((package / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in modules)


def public_names(tree: ast.Module) -> list[str]:
    """What `__all__` lists."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return []


def measured(package: Path, name: str, runs: list) -> dict:
    """A line of the table; runs are of `closures`."""
    text = (package / f"{name}.py").read_text(encoding="utf-8")
    cell = Cell("code", text, {}, 1, (0, 0))
    whole = cell.tree
    whole.lineno, whole.end_lineno = 1, len(text.splitlines())
    first = whole.body[0]
    code = code_lines(cell, whole) - (first.end_lineno - first.lineno + 1 if is_string(first) else 0)
    functions = [node for node in ast.walk(whole) if isinstance(node, FUNCTION)]
    raises = sum(isinstance(node, ast.Raise) for node in ast.walk(whole))
    return {
        "module": name,
        "lines": whole.end_lineno,
        "code": code,
        "public": len(public_names(whole)),
        "raise": round(100 * raises / code, 1),
        "long": sum(code_lines(cell, node) > LONG for node in functions),
        "loads": lines(package, runs[0][1]) if runs else "",
        "ms": round(statistics.median(run[0] for run in runs)) if runs else "",
        "raises": raises,
    }


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Measure the package.")
    parser.add_argument("--times", type=int, default=3, help="processes a module is imported in (default 3; 0: none)")
    args = parser.parse_args(argv)
    package = root / "annotated"
    modules = module_order(root)
    runs = [closures(modules, package) for _ in range(args.times)]
    rows = [measured(package, name, [run[i] for run in runs]) for i, name in enumerate(modules)]
    columns = ["module", "lines", "code", "public", "raise", "long", "loads", "ms"]
    total = {name: sum(row[name] for row in rows) for name in ("lines", "code", "public", "long", "raises")}
    total |= {"module": "together", "raise": round(100 * total["raises"] / total["code"], 1), "loads": "", "ms": ""}
    for row in [dict(zip(columns, columns)), *rows, total]:
        print(f"{row['module']:<14}" + "".join(f"{row[name]:>8}" for name in columns[1:]))
    longest = max(rows, key=lambda row: row["lines"])
    print(f"longest file: {longest['module']}.py, {longest['lines']} lines; functions over {LINES} lines are refused")
    found = faults(package, module_order(root))
    for fault in found:
        print(fault)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
