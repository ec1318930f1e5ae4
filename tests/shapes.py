"""Execute the shape comments of the package.

A comment `# (B, T, d_k)` at the end of a line claims the shape of what the line makes:

- at the end of a statement, the shape of the value it assigns, returns or names;
- inside a statement of several lines, the shape of the largest expression that ends on that line;
- after `for x in y:`, the shape of x.

Several shapes, `# (B, T), (B, S)`, are those of a tuple's elements in turn; one shape goes for every tensor in a
tuple or list. Words may follow after the shapes. An axis is a number, a name, `...` for any axes, or simple
arithmetic (`2*d`, `h*d_k`, `T - 1`, `d_model/2`).

Within one call of a function a name stands for one size, and where the call has an integer variable of that
name, or `self` has, for that one. A name first met inside a loop is free again on every turn.

    with checked(attention) as seen:
        attention.scaled_dot_product_attention(Q, K, V)
    assert not unseen(seen, attention)

The comments run as code put into the functions for the time of the `with`, so that whoever holds the functions
is checked; nothing of it remains afterwards.
"""

import ast
import io
import re
import tokenize
import types
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

SHAPE = r"\(\s*(?:[^(),]+,)*\s*[^(),]*\)"
COMMENT = re.compile(rf"#\s*({SHAPE}(?:\s*,\s*{SHAPE})*)")
CHECK, SIZES = "__shape_check__", "__shape_sizes__"
STATEMENT = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class ShapeError(AssertionError):
    """A shape comment is wrong."""


class Misplaced(ValueError):
    """A shape comment stands where it says nothing that can be checked."""


# ---- reading comments


def parse(comment: str):
    """The shapes a comment claims, each a list of axes; None for an ordinary comment."""
    match = COMMENT.match(comment)
    if not match:
        return None
    shapes = []
    for text in re.findall(SHAPE, match[1]):
        items = [item.strip() for item in text.strip()[1:-1].split(",")]
        one = len(items) == 1 and items[0] != ""  # `(why)` is no shape, `(B,)` is
        axes = items[:-1] if items[-1] == "" else items
        if one or not all(axis == "..." or arithmetic(axis) is not None for axis in axes) or axes.count("...") > 1:
            return None
        shapes.append(axes)
    return shapes


def arithmetic(axis: str):
    """The expression of an axis, if it is one of names, numbers and + - * /."""
    try:
        tree = ast.parse(axis, mode="eval").body
    except SyntaxError:
        return None
    allowed = (ast.Name, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Load)
    for node in ast.walk(tree):
        if not (isinstance(node, allowed) or isinstance(node, ast.Constant) and type(node.value) is int):
            return None
    return tree


def comments(source: str) -> dict[int, list]:
    """Line -> shapes claimed there; a comment alone on its line claims nothing."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            if (shapes := parse(token.string)) is not None:
                found[token.start[0]] = shapes
    return found


def claims(*modules) -> set[tuple[str, int]]:
    """(module, line) of every shape comment inside a function of the modules."""
    return {(Path(m.__file__).stem, line) for m in modules for line in instrument(Path(m.__file__))[1]}


def unseen(seen, *modules) -> list[str]:
    """The shape comments that no call reached, as `attention.py:31`."""
    return [f"{name}.py:{line}" for name, line in sorted(claims(*modules) - set(seen))]


# ---- comparing


def value_of(node, sizes: dict) -> Fraction:
    """The size an axis stands for; KeyError where a name is not known."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.Name):
        return Fraction(sizes[node.id])
    left, right = value_of(node.left, sizes), value_of(node.right, sizes)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return left * right if isinstance(node.op, ast.Mult) else left / right


def solve(node, size: int, sizes: dict):
    """(name, size) of the one name of an axis that is not known yet; None where there is no telling."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - set(sizes)
    if len(names) != 1:
        return None
    name = names.pop()
    try:
        low, high = (value_of(node, {**sizes, name: x}) for x in (1, 2))
        found = 1 + (size - low) / (high - low)
        fits = found.denominator == 1 and value_of(node, {**sizes, name: found}) == size
    except ZeroDivisionError:
        return None
    return (name, int(found)) if fits and found >= 0 else (name, None)


def unify(shape, axes, sizes: dict, given: dict, where: str) -> None:
    """Compare one shape with its claim; `sizes` gathers what the call's names stand for."""
    shape, claimed = tuple(shape), "(" + ", ".join(axes) + ("," if len(axes) == 1 else "") + ")"
    got = f"{where}: claimed {claimed}, got {shape}"
    if "..." in axes:
        dots = axes.index("...")
        rest = len(axes) - 1
        if len(shape) < rest:
            raise ShapeError(f"{got}: too few axes")
        pairs = [*zip(axes[:dots], shape), *zip(axes[dots + 1 :], shape[len(shape) - (rest - dots) :])]
    elif len(axes) != len(shape):
        raise ShapeError(f"{got}: another number of axes")
    else:
        pairs = list(zip(axes, shape))
    # plain names first, so that `h*d_k` finds them known
    for axis, size in sorted(pairs, key=lambda p: not p[0].isidentifier()):
        known = {**sizes, **given}
        node = arithmetic(axis)
        try:
            expected = value_of(node, known)
        except KeyError:
            name, solution = solve(node, size, known) or (axis, size)
            if solution is None:
                raise ShapeError(f"{got}: no size of {name} makes {axis} = {size}") from None
            if sizes.setdefault(name, solution) != solution:
                raise ShapeError(f"{got}: {axis} was {sizes[name]}") from None
            continue
        if expected != size:
            raise ShapeError(f"{got}: {axis} is {expected}")


def integers(variables: dict) -> dict:
    """The call's integer variables, and those of `self`, under their names."""
    own = getattr(variables.get("self"), "__dict__", {})
    return {k: v for d in (own, variables) for k, v in d.items() if type(v) is int}


def tensors(value) -> list:
    """The tensors of a value: itself, or those of a tuple or list."""
    if isinstance(value, tuple | list) and not hasattr(value, "shape"):
        return [t for v in value for t in tensors(v)]
    return [value] if hasattr(value, "shape") else []


# ---- putting the checks into the code


class Instrument(ast.NodeTransformer):
    """Wrap what shape comments talk about in calls of the check."""

    def __init__(self, path: Path):
        self.path, self.source = path, path.read_text(encoding="utf-8")
        self.todo = comments(self.source)
        self.placed: set[int] = set()
        self.depth = self.loops = 0

    def call(self, value, line: int):
        """`__shape_check__(value, line, sizes, locals())`."""
        template = ast.parse(f"{CHECK}(0, {line}, {SIZES}, locals())", mode="eval").body
        template.args[0] = value
        self.placed.add(line)
        return located(template, value)

    def visit_FunctionDef(self, node):
        self.depth += 1
        outer, self.loops = self.loops, 0
        self.generic_visit(node)
        self.depth, self.loops = self.depth - 1, outer
        start = located(ast.parse(f"{SIZES} = {{}}").body[0], node.body[0])
        doc = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        node.body.insert(1 if doc and isinstance(node.body[0].value.value, str) else 0, start)
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_loop(self, node):
        header = node.body[0].lineno - 1
        self.loops += 1
        kept, made = f"{SIZES}{self.loops}", []
        if isinstance(node, ast.For) and self.depth:
            for line in [n for n in self.todo if node.iter.end_lineno <= n <= header and n not in self.placed]:
                target = ast.parse(ast.unparse(node.target), mode="eval").body
                made.append(located(ast.Expr(self.call(located(target, node.target), line)), node.body[0]))
        node = self.generic_visit(node)
        self.loops -= 1
        if not self.depth:
            return node
        again = ast.parse(f"{SIZES}.clear()\n{SIZES}.update({kept})").body
        node.body[:0] = [located(s, node.body[0]) for s in again] + made
        return [located(ast.parse(f"{kept} = dict({SIZES})").body[0], node), node]

    visit_For = visit_While = visit_loop

    def generic_visit(self, node):
        if isinstance(node, STATEMENT) and self.depth:
            return self.statement(node)
        return super().generic_visit(node)

    def statement(self, node):
        """Claims on the statement's last line are about its value, others about a part of it."""
        lines = [n for n in self.todo if node.lineno <= n <= node.end_lineno and n not in self.placed]
        last = node.end_lineno if node.end_lineno in lines else None
        for line in lines:
            if line != last and node.value is not None:
                node = self.inner(node, line)
        node = super().generic_visit(node)
        if last is None or node.value is None:
            return node
        if isinstance(node, ast.AugAssign):
            target = located(ast.parse(ast.unparse(node.target), mode="eval").body, node)
            return [node, located(ast.Expr(self.call(target, last)), node)]
        node.value = self.call(node.value, last)
        return node

    def inner(self, node, line: int):
        """Wrap the largest expression of a statement that ends on the line."""
        parts = []

        def look(part):
            if isinstance(part, ast.expr) and part.end_lineno == line and not isinstance(part, ast.Starred):
                parts.append(part)
            else:
                for child in ast.iter_child_nodes(part):
                    look(child)

        look(node.value)
        if len(parts) != 1:
            raise Misplaced(f"{self.path.name}:{line}: {len(parts)} expressions end here, a shape is of one")
        transformer = self

        class Wrap(ast.NodeTransformer):
            def visit(self, part):
                return transformer.call(part, line) if part is parts[0] else super().visit(part)

        node.value = Wrap().visit(node.value)
        return node


def located(node, like):
    """Give a made-up node, and what is in it, the place of another."""
    for part in ast.walk(node):
        if not hasattr(part, "lineno"):
            ast.copy_location(part, like)
    return ast.fix_missing_locations(node)


def instrument(path: Path):
    """The module's syntax tree with checks in it, and {line: shapes} of those checks."""
    work = Instrument(path)
    tree = work.visit(ast.parse(work.source))
    inside = set()
    for node in ast.walk(ast.parse(work.source)):
        if isinstance(node, FUNCTION):
            inside |= set(range(node.body[0].lineno, node.end_lineno + 1))
    if lost := sorted(set(work.todo) & inside - work.placed):
        raise Misplaced(f"{path.name}:{lost[0]}: this line makes nothing whose shape could be checked")
    return ast.fix_missing_locations(tree), {line: work.todo[line] for line in work.placed}


def codes(code) -> dict:
    """(qualified name, first line) -> code object, for every function of a module's code."""
    found = {}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found[const.co_qualname, const.co_firstlineno] = const
            found |= codes(const)
    return found


def functions(module) -> list:
    """The functions a module defines, methods and what decorators wrap included."""
    todo, found, seen = list(vars(module).values()), [], set()
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType) and thing.__code__.co_filename == module.__file__:
            found.append(thing)
        elif isinstance(thing, type) and thing.__module__ == module.__name__:
            todo += list(vars(thing).values())
        elif isinstance(thing, property):
            todo += [thing.fget, thing.fset]
        for name in ("__wrapped__", "__func__"):
            if isinstance(inner := getattr(thing, name, None), types.FunctionType):
                todo.append(inner)
    return found


@contextmanager
def checked(*modules):
    """Check every shape comment of the modules while the body runs; gives the set of (module, line) checked."""
    seen: set[tuple[str, int]] = set()
    before = []
    try:
        for module in modules:
            path = Path(module.__file__)
            tree, table = instrument(path)
            made = codes(compile(tree, module.__file__, "exec"))
            vars(module)[CHECK] = checker(path.stem, table, seen)
            for function in functions(module):
                code = function.__code__
                new = made.get((code.co_qualname, code.co_firstlineno))
                if new is not None and new.co_freevars == code.co_freevars:
                    before.append((function, code))
                    function.__code__ = new
        yield seen
    finally:
        for function, code in before:
            function.__code__ = code
        for module in modules:
            vars(module).pop(CHECK, None)


def checker(name: str, table: dict, seen: set):
    """The function that the instrumented code calls: it checks a value and gives it back."""

    def check(value, line, sizes, variables):
        shapes, where = table[line], f"{name}.py:{line}"
        if len(shapes) > 1:
            if not isinstance(value, tuple | list) or len(value) != len(shapes):
                raise ShapeError(f"{where}: {len(shapes)} shapes are claimed, for {type(value).__name__}")
            pairs = [(t, axes) for v, axes in zip(value, shapes) for t in tensors(v)]
        else:
            pairs = [(t, shapes[0]) for t in tensors(value)]
        given = integers(variables)
        for tensor, axes in pairs:
            unify(tensor.shape, axes, sizes, given, where)
            seen.add((name, line))
        return value

    return check
