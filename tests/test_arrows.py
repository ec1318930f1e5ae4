"""Imports within the package point one way, and what is imported brings nothing that it does not need."""

import ast
import functools

import house
import pytest
from chapters import ROOT, module_order

PACKAGE = ROOT / "annotated"
ORDER = module_order()
MOST_LINES = 3500  # of the package, for the fused attention alone


@functools.cache
def found() -> list[str]:
    return house.faults(PACKAGE, ORDER)


@pytest.mark.parametrize("module", [*sorted(house.ROOTS), *ORDER])
def test_the_arrows_of_a_module_point_back_to_earlier_chapters(module):
    own = [fault for fault in found() if fault.startswith(f"annotated/{module}.py:")]
    circles = [fault for fault in found() if fault.startswith("a circle: ") and f" {module} " in f"{fault} "]
    assert not own + circles, "\n".join(own + circles)


def test_the_arrows_of_the_package_are_read():
    found = {(arrow.source, arrow.to) for arrow in house.arrows(PACKAGE)}
    assert {("transformer", "attention"), ("decoding", "transformer"), ("__main__", "cli")} <= found


def test_the_fused_attention_does_not_load_the_command_line():
    ((_, loaded),) = house.closures(["gpu"], PACKAGE)
    assert "cli" not in loaded
    assert house.lines(PACKAGE, loaded) <= MOST_LINES


def test_a_closure_is_what_a_process_of_its_own_loads():
    "After another module, too: each is imported beside nothing but torch."
    _, (spent, loaded) = house.closures(["transformer", "multihead"], PACKAGE)
    assert spent > 0
    assert sorted(loaded) == ["attention", "multihead", "recurrent"]
    whole = sum(len((PACKAGE / f"{name}.py").read_text().splitlines()) for name in loaded)
    assert house.lines(PACKAGE, loaded) == whole


FINE = "import torch\nimport os.path\nfrom annotated.first import x\n"
INSIDE = "def f(name):\n    {}\n"
FAULTS = {
    "back": ("second", "from annotated.third import x", "third (09F) does not come before 08"),
    "back by import": ("second", "import annotated.third", "third (09F) does not come before 08"),
    "back by import as": ("second", "import annotated.third as t", "third (09F) does not come before 08"),
    "back from the package": ("second", "from annotated import third", "third (09F) does not come before 08"),
    "back and relative": ("second", "from .third import x", "third (09F) does not come before 08"),
    "back from here": ("second", "from . import third", "third (09F) does not come before 08"),
    "back inside": ("second", INSIDE.format("from annotated.third import x"), "third (09F) does not come before 08"),
    "itself": ("second", "from annotated.second import x", "second (08) does not come before 08"),
    "no chapter": ("second", "from annotated.fourth import x", "no chapter makes fourth"),
    "import_module": ("third", "x = importlib.import_module('annotated.first')", "first without an import statement"),
    "bare import_module": ("third", INSIDE.format("return import_module('annotated')"), "imports the package without"),
    "formatted": ("third", INSIDE.format("return import_module(f'annotated.{name}')"), "without an import statement"),
    "added": ("third", INSIDE.format("return import_module('annotated.' + name)"), "without an import statement"),
    "__import__": ("third", INSIDE.format("__import__('annotated.first')"), "first without an import statement"),
    "sys.modules": ("third", INSIDE.format("return sys.modules['annotated.first']"), "first without an import"),
    "sys.modules.get": ("third", INSIDE.format("return sys.modules.get('annotated')"), "the package without an import"),
    "the package": ("third", "import annotated", "only functions of the command line may"),
    "the package inside": ("third", INSIDE.format("from annotated import load"), "only functions of the command line"),
    "the command line, at once": ("cli", "import annotated", "only functions of the command line may"),
    "a root in haste": ("__init__", "from annotated.first import x", "imports first before it is asked for"),
}


@pytest.fixture
def package(tmp_path):
    """A package of three modules and a command line in good order; `package(name, text)` writes another module."""

    def write(name, text):
        (tmp_path / "annotated" / f"{name}.py").write_text(text)
        return house.faults(tmp_path / "annotated", {"first": "07", "second": "08", "third": "09F", "cli": "13H"})

    (tmp_path / "annotated").mkdir()
    write("first", "import torch\n")
    write("second", FINE)
    write("third", FINE + INSIDE.format("from annotated.second import x"))
    write("__init__", INSIDE.format("from annotated.third import x"))
    assert not write("cli", "from annotated import third\n" + INSIDE.format("import annotated"))
    return write


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_found(package, case):
    module, text, said = FAULTS[case]
    found = [fault for fault in package(module, text) if fault.startswith(f"annotated/{module}.py:")]
    assert len(found) == 1 and said in found[0], found


def test_a_circle_is_found_even_through_the_package(package):
    found = package("first", INSIDE.format("import annotated"))
    (line,) = [fault for fault in found if fault.startswith("a circle: ")]
    assert {"first", "__init__", "third"} <= set(line.removeprefix("a circle: ").split(" -> "))
    assert not package("first", "import torch\n")


def test_others_packages_are_no_arrows(package):
    assert not package("second", "import sys\nfrom importlib import import_module\nx = import_module('torch')\n")
    assert not package("second", "import sys\nx = sys.modules['torch'], sys.modules[__name__]\nimport annotated_other\n")


def test_the_table_counts_what_a_module_holds(package, tmp_path):
    text = '"""Words.\n\nMore.\n"""\n\n__all__ = ["f"]\n\n\ndef f(x):\n    """Say."""\n    # why\n    raise ValueError(x)\n'
    package("first", text)
    row = house.measured(tmp_path / "annotated", "first", [])
    assert (row["lines"], row["code"], row["public"], row["raise"], row["long"]) == (12, 3, 1, 33.3, 0)
    long = "def g(x):\n" + "".join(f"    x = {i}\n" for i in range(20))
    package("first", text + long)
    assert house.measured(tmp_path / "annotated", "first", [])["long"] == 1


def test_at_most_200_names_are_public():
    "What a stranger would import or a chapter teaches; the others begin with an underscore."
    counts = {name: len(house.public_names(ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8")))) for name in ORDER}
    assert all(counts.values()) and sum(counts.values()) <= 200, counts
