"""What is public is typed, and the package says so to those who import it."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from chapters import ROOT

PACKAGE = ROOT / "annotated"
MODULES = sorted(PACKAGE.glob("*.py"))
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def untyped(text: str) -> list[str]:
    """`function: what lacks a type`, of the public functions and of the public methods of public classes."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, FUNCTION) and not node.name.startswith("_"):
            found += [f"{node.name}: {lack}" for lack in lacks(node)]
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = [m for m in node.body if isinstance(m, FUNCTION)]
            public = [m for m in methods if not m.name.startswith("_") or m.name in ("__init__", "__call__")]
            found += [f"{node.name}.{method.name}: {lack}" for method in public for lack in lacks(method, method=True)]
    return found


def lacks(node, method: bool = False) -> list[str]:
    """The parameters without an annotation, and `return`; a method's first parameter needs none."""
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
    every = [*node.args.posonlyargs, *node.args.args][1 if method and not static else 0 :]
    every += [*node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    found = [argument.arg for argument in every if argument is not None and argument.annotation is None]
    return found + (["return"] if node.returns is None and node.name != "__init__" else [])


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in MODULES])
def test_what_is_public_is_typed(path):
    found = untyped(path.read_text(encoding="utf-8"))
    assert not found, "\n".join(found)


def test_each_missing_annotation_is_found():
    assert untyped(SOURCE) == [
        *(f"bad: {name}" for name in ("a", "c", "e", "d", "f", "return")),
        "Bad.__init__: x",
        "Bad.forward: x",
        "Bad.make: x",
        "Bad.make: return",
        "Bad.size: return",
    ]


def test_mypy_finds_a_wrong_type_in_a_module_off_the_list(tmp_path):
    """By the package's own settings, on a module that is not on its list."""
    pytest.importorskip("mypy")
    (tmp_path / "wrong.py").write_text("def f(x: int) -> int:\n    return str(x)\n\n\ndef _g():\n    return f('a')\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path / "wrong.py")], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "wrong.py:2: error" in done.stdout and "wrong.py:6: error" in done.stdout, done.stdout


SOURCE = '''
def good(x: int, *y: int, z: int = 1, **k: int) -> None: ...
def bad(a, b: int, /, c=1, *d, e, **f): ...
def _private(x): ...
class Good:
    def __init__(self, x: int): ...
    def forward(self, x: int) -> int: ...
    @staticmethod
    def make(x: int) -> int: ...
    def _private(self, x): ...
    def __eq__(self, other): ...
class Bad:
    def __init__(self, x): ...
    def forward(self, x) -> int: ...
    @staticmethod
    def make(x): ...
    @property
    def size(self): ...
class _Hidden:
    def forward(self, x): ...
'''


def test_the_wheel_is_typed_and_holds_the_viewers_files(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(PACKAGE, tmp_path / "annotated", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--wheel-dir", str(tmp_path), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    extra = {"annotated/py.typed", "annotated/viewer.css", "annotated/viewer.js"}
    assert {*extra, *(f"annotated/{path.name}" for path in MODULES)} <= held
    assert not [name for name in held if not Path(name).parts[0].startswith("annotated")]
