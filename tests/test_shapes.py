"""The checker of shape comments catches each kind of wrong comment, and passes right ones."""

import itertools

import pytest
import torch
from programs import loaded
from shapes import Misplaced, ShapeError, checked, claims, parse, unseen

COUNT = itertools.count()


@pytest.fixture
def module(tmp_path):
    """Make a module of a source; `torch` and `functools` are imported on its first line."""

    def make(source: str):
        path = tmp_path / f"made{next(COUNT)}.py"
        path.write_text("import functools, torch\n" + source, encoding="utf-8")
        return loaded(path)

    return make


X = torch.zeros(2, 3, 5)

# name: (source of f, which takes x of shape (2, 3, 5); what to write for a wrong comment)
STATEMENTS = {
    "return": ("def f(x):\n    return x @ x.mT  # (B, T, T)", "T, T", "T, S, S"),
    "assignment": ("def f(x):\n    y = x.sum(1)  # (B, 5)\n    return y", "B, 5", "B, 3"),
    "several lines": ("def f(x):\n    y = torch.cat(\n        [x, x],\n        1,\n    )  # (B, 6, d)\n    return y", "6", "3"),
    "inside several lines": (
        "def f(x):\n    return torch.cat(\n        [\n            x.sum(1),  # (B, 5)\n            x[:, 0],\n        ],\n    )",
        "B, 5",
        "B, 3",
    ),
    "attribute": (
        "class C:\n    def g(self, x):\n        self.x = x  # (B, 3, d)\n        return self\ndef f(x):\n    return C().g(x)",
        "3",
        "4",
    ),
    "augmented": ("def f(x):\n    y = x[0]\n    y += torch.zeros(5)  # (3, 5)\n    return y", "3, 5", "5,"),
    "annotated": ("def f(x):\n    y: torch.Tensor = x[0]  # (3, d)\n    return y", "3, d", "4, d"),
    "in place": ("def f(x):\n    y = x.clone()\n    y.squeeze_(0)  # (2, 3, d)\n    return y", "2, 3", "3, 2"),
    "one shape for all": ("def f(x):\n    y, z = x[0], x[1]  # (3, 5)\n    return y + z", "3, 5", "5, 3"),
    "shapes in turn": ("def f(x):\n    y, z = x[0], x[:, 0]  # (T, d), (B, d)\n    return y, z", "(B, d)", "(T, d)"),
    "a list": ("def f(x):\n    return [x[0], x[1]]  # (3, 5)", "3, 5", "5, 3"),
    "a loop's target": ("def f(x):\n    for y in x:  # (3, 5)\n        y = y + 1\n    return y", "3, 5", "5, 3"),
    "in a loop": ("def f(x):\n    for y in x:\n        z = y.sum(0)  # (5,)\n    return z", "(5,)", "(3,)"),
    "a nested function": ("def f(x):\n    def g(y):\n        return y  # (2, 3, 5)\n    return g(x)", "3, 5", "5, 3"),
    "a closure": ("def f(x):\n    k = 1\n    def g(y):\n        return y + k  # (2, 3, 5)\n    return g(x)", "3, 5", "5, 3"),
    "decorated": ("@torch.no_grad()\ndef f(x):\n    return x  # (2, 3, 5)", "3, 5", "5, 3"),
    "a method with super": (
        "class A:\n    def g(self, x):\n        return x\nclass C(A):\n    def g(self, x):\n"
        "        return super().g(x)  # (2, 3, 5)\ndef f(x):\n    return C().g(x)",
        "3, 5",
        "5, 3",
    ),
    "a property": (
        "class C:\n    x = torch.zeros(3)\n    @property\n    def y(self):\n        return self.x  # (3,)\n"
        "def f(x):\n    return C().y",
        "(3,)",
        "(4,)",
    ),
    "a static method": (
        "class C:\n    @staticmethod\n    def g(x):\n        return x  # (2, 3, 5)\ndef f(x):\n    return C.g(x)",
        "3, 5",
        "5, 3",
    ),
    "a product": ("def f(x):\n    h, d_k = x.shape[1:]\n    return x.flatten(1)  # (B, h*d_k)", "h*d_k", "2*d_k"),
    "a difference": ("def f(x):\n    T = x.shape[1]\n    return x[:, 1:]  # (B, T - 1, d)", "T - 1", "T"),
    "a quotient": ("def f(x):\n    y = x[:, :2]  # (B, half, d)\n    return x[:, 0, :4]  # (B, 2*half)", "2*half", "half/2"),
    "a variable of the call": ("def f(x):\n    T = x.shape[1]\n    return x.mT  # (B, d, T)", "d, T", "T, d"),
    "an attribute of self": (
        "class C:\n    d_v = 0\n    def __init__(self):\n        self.d_v = 5\n    def g(self, x):\n"
        "        return x  # (B, T, d_v)\ndef f(x):\n    return C().g(x)",
        "T, d_v",
        "d_v, T",
    ),
    "two lines of a call": ("def f(x):\n    y = x[0]  # (T, d)\n    return y.mT  # (d, T)", "(d, T)", "(T, d)"),
    "dots": ("def f(x):\n    y = x.mT  # (..., d, T)\n    return x  # (..., T, d)", "(..., T, d)", "(..., d, T)"),
    "dots in the middle": ("def f(x):\n    return x  # (2, ..., 5)", "2, ...", "3, ..."),
    "too few axes": ("def f(x):\n    return x.sum()  # ()", "()", "(B, T)"),
    "words after it": ("def f(x):\n    return x  # (2, 3, 5), True = may attend", "3, 5", "5, 3"),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_right_comments_pass_and_wrong_ones_fail(module, case):
    source, right, wrong = STATEMENTS[case]
    made = module(source)
    with checked(made) as seen:
        made.f(X)
    assert seen and not unseen(seen, made)
    assert source.count(right) >= 1
    head, tail = source.rsplit(right, 1)
    made = module(head + wrong + tail)
    with checked(made), pytest.raises(ShapeError, match=r"made\d+.py:\d+: "):
        made.f(X)


def test_names_mean_one_size_in_a_call_and_are_free_in_the_next(module):
    made = module("def f(x):\n    return x  # (B, T)")
    with checked(made):
        made.f(torch.zeros(2, 3))
        made.f(torch.zeros(5, 7))


def test_names_of_a_loop_are_free_on_every_turn_but_not_within_one(module):
    grow = "def f(x):\n    y = x  # (B, d)\n    for i in range(1, 4):\n        z = y[:, :i]  # (B, length)\n{}    return z"
    made = module(grow.format(""))
    with checked(made):
        made.f(torch.zeros(2, 5))
    made = module(grow.format("        w = y  # (B, length)\n"))
    with checked(made), pytest.raises(ShapeError, match="length"):
        made.f(torch.zeros(2, 5))


def test_names_known_before_a_loop_hold_inside(module):
    made = module("def f(x):\n    while True:\n        y = x[:1]  # (B, d)\n        return y")
    with checked(made):
        made.f(torch.zeros(2, 5))
    made = module("def f(x):\n    z = x  # (B, d)\n    while True:\n        y = x[:1]  # (B, d)\n        return y")
    with checked(made), pytest.raises(ShapeError):
        made.f(torch.zeros(2, 5))


def test_whoever_holds_the_function_is_checked_and_only_meanwhile(module):
    made = module("def f(x):\n    return x  # (B, T)")
    f = made.f
    with checked(made), pytest.raises(ShapeError):
        f(X)
    assert f(X) is X
    assert not [name for name in vars(made) if "shape" in name]


def test_results_and_errors_of_the_code_stay_what_they_are(module):
    made = module("def f(x):\n    'Doc.'\n    x = x + 1  # (B, T, d)\n    return x\ndef g(x):\n    return x.nothing  # (B,)")
    with checked(made):
        assert torch.equal(made.f(X), X + 1) and made.f.__doc__ == "Doc."
        with pytest.raises(AttributeError, match="nothing"):
            made.g(X)


def test_comments_that_no_call_reached_are_named(module):
    made = module("def f(x):\n    if x is None:\n        return x  # (B,)\n    return x.sum()  # ()")
    with checked(made) as seen:
        made.f(X)
    assert claims(made) == {(made.__name__, 4), (made.__name__, 5)}
    assert unseen(seen, made) == [f"{made.__name__}.py:4"]


def test_a_value_without_a_shape_does_not_count_as_seen(module):
    made = module("def f(x):\n    return None  # (B, T)")
    with checked(made) as seen:
        made.f(X)
    assert unseen(seen, made)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    if x is not None:  # (B, T)\n        return x",
        "def f(x):\n    return torch.add(\n        x, x,  # (B, T)\n    )",
        "def f(x):\n    pass  # (B, T)",
    ],
)
def test_a_comment_that_cannot_be_checked_is_refused(module, source):
    made = module(source)
    with pytest.raises(Misplaced, match=r"made\d+.py:[34]: "), checked(made):
        pass


def test_words_in_parentheses_are_no_shapes():
    for comment in ("# (section 3.2.1)", "# (why)", "# (Eq. 1)", "# (as in 3.1, but not there)", "# scores (B, T)"):
        assert parse(comment) is None, comment
    assert parse("# (B, T) of the scores") == parse("# (B, T), of the scores") == [["B", "T"]]
    assert parse("# (B, h, T, d_k)") == [["B", "h", "T", "d_k"]]
    assert parse("# (B,), (B, T)") == [["B"], ["B", "T"]]
    assert parse("# ()") == [[]]
