"""The package's pages list what is public, module by module, and nothing else."""

import ast
import inspect
import re

import annotated_api as api
import collect
import pytest
from chapters import ROOT, module_order
from docutils import nodes

MODULES = {module.name.removeprefix("annotated."): module for module in api.modules()}


def test_each_module_stands_in_one_group():
    groups = re.findall(r"^```\{annotated-group\}\n(.*?)^```", (ROOT / "book/api.md").read_text(), re.M | re.S)
    listed = [name for group in groups for name in group.split()]
    wanted = ["annotated", *module_order()]
    assert sorted(listed) == sorted(wanted), f"book/api.md: {set(wanted) ^ set(listed) or 'a module stands there twice'}"


@pytest.mark.parametrize("name", ["README.md", "book/api.md", "book/index.md"])
def test_the_examples_run_one_after_the_other(name, tmp_path, monkeypatch):
    """As they are copied, in a folder that has the records as a clone has."""
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)
    assert code
    (tmp_path / "results").symlink_to(ROOT / "results", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile("\n".join(code), name, "exec"), names)
    if name == "book/api.md":
        assert names["maps"].weights["cross"].ndim == 4
        assert (tmp_path / "model" / "config.json").exists()


@pytest.mark.parametrize("name", ["annotated", *module_order()])
def test_a_page_lists_the_public_names_of_its_module(name):
    module = MODULES[name]
    (declared,) = [n for n in ast.parse(module.path.read_text()).body if ast.unparse(n).startswith("__all__ =")]
    public = [n for n in ast.literal_eval(declared.value) if not n.startswith("_")]
    assert [found.name for found in module.found] == public
    assert not [member.name for found in module.found for member in found.members if member.name.startswith("_")]


def test_private_names_are_not_listed(tmp_path):
    path = tmp_path / "some.py"
    path.write_text('''"""Title.

Made.
"""

X, _Y = 1, 2


def _helper(): ...


def f(Q, /, mask: dict[str, int] | None = None, *rest, text="a, b") -> str:
    """Say."""


class C:
    """Hold."""

    def forward(self, x): ...

    def _private(self):
        """Hide."""

    @staticmethod
    def of(y):
        """Make."""


@dataclass
class Few:
    a: int = 1


@dataclass
class Many:
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int
    g: int
''')
    module = api.module(path, "02-x")
    assert (module.name, module.title) == ("annotated.some", "Title")
    f, c, few, many = module.found
    assert (f.name, c.name) == ("f", "C")
    assert few.parameters == ["a: int = 1"] and many.parameters == ["..."] and many.source.count("\n") == 6
    assert f.parameters == ["Q", "/", "mask: dict[str, int] | None=None", "*rest", "text='a, b'"]
    assert f.returns == "str"
    assert [(member.name, member.parameters) for member in c.members] == [("forward", ["x"]), ("of", ["y"])]
    path.write_text('__all__ = ["_x", "y"]\n_x = 1\ny = 2\nz = 3\n')
    assert [found.name for found in api.module(path, "").found] == ["y"]


def test_a_class_has_the_methods_of_its_hidden_bases(tmp_path):
    path = tmp_path / "some.py"
    path.write_text('''"""Title."""


class _Base(Module):
    def forward(self, x):
        """Hidden."""

    def step(self, state: "State", how: str = "State") -> tuple[int, "State"]:
        """Go on."""


class C(_Base):
    def forward(self, y):
        """Shown."""


class State: ...
''')
    c, _ = api.module(path, "").found
    assert [(member.name, member.parameters[0]) for member in c.members] == [("forward", "y"), ("step", "state: State")]
    assert c.members[1].parameters[1] == "how: str='State'" and c.members[1].returns == "tuple[int, State]"


def test_prose_after_a_section_is_no_part_of_it():
    doc = """What it does.

    Args:
        x: a size,
            of (B, T).
        y: another.

    Beware of both.

    Returns:
        Their sum.

    Warns:
        UserWarning: they are large.
    """
    first, given, prose, rest = api.docstring(inspect.cleandoc(doc))
    assert (first.astext(), prose.astext()) == ("What it does.", "Beware of both.")
    assert [term.astext() for term in given.findall(nodes.term)] == ["Arguments"]
    assert [item.astext() for item in given.findall(nodes.list_item)] == ["x a size, of (B, T).", "y another."]
    assert [term.astext() for term in rest.findall(nodes.term)] == ["Returns", "Warns"]


def test_a_module_has_a_page_as_long_as_a_chapter_makes_it(book, capsys):
    chapter = book("02-attention.md", "---\nmodule: attention\n---\n\n# Attention\n")
    pages = book.root / "book/api"
    assert collect.main([], book.root) == 0
    assert sorted(path.stem for path in pages.glob("*.md")) == ["annotated", "attention"]
    assert "{annotated-api} annotated.attention\n" in (pages / "attention.md").read_text()
    assert collect.main(["--check"], book.root) == 0
    chapter.unlink()
    capsys.readouterr()
    assert collect.main(["--check"], book.root) == 1
    assert "api/attention.md is left over" in capsys.readouterr().out
    assert collect.main([], book.root) == 0
    assert [path.stem for path in pages.glob("*.md")] == ["annotated"]
    (pages / "notes.md").write_text("By hand.\n")
    assert collect.main([], book.root) == 1 and (pages / "notes.md").exists()
