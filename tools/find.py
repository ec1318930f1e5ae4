"""Where the code answers what a newcomer asks: eight questions, each with the lines, found by name.

The front page shows the rows as a table. A line is given by the name that it belongs to and a piece of its text;
a piece that is not there, or there twice, is refused, so that no link goes stale.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

from chapters import ROOT, Refused


@dataclass(frozen=True)
class Place:
    """A line of the package: `attention.attention_weights`, and a piece of the line's text."""

    name: str
    text: str


@dataclass(frozen=True)
class Row:
    """A question, its answer in a line, the lines of code, and a page of the book that says why."""

    question: str
    answer: str
    code: tuple[Place, ...]
    page: str


ROWS = (
    Row(
        "Where are the scores scaled, and why?",
        "Right after the product with the keys: the variance of a score grows with `d_k`,"
        " and the root brings it back to 1.",
        (Place("attention.attention_weights", "math.sqrt"),),
        "notebooks/02-attention",
    ),
    Row(
        "Which axis is masked?",
        "The last, that of the keys; True = may attend."
        " Padding is the same for every query; the causal mask has a row for each.",
        (Place("masks.padding_mask", "return"), Place("masks.causal_mask", "return")),
        "notebooks/03-masks",
    ),
    Row(
        "Where would I put the norm first?",
        '`replace(BASE, norm="pre")`: each sub-layer then gets the normalised input, and each stack ends with a norm.',
        (
            Place("transformer.Config", "norm: str"),
            Place("layers.PreNorm", "return"),
            Place("transformer.Config", "return self.norm"),
        ),
        "notebooks/07-transformer",
    ),
    Row(
        "What do the embeddings and the last layer share?",
        "One matrix: a row of it is a token's vector, and its transpose makes the logits.",
        (Place("embedding.Embedding", "_look_up(self.weight"), Place("embedding.Embedding", "self.weight.T")),
        "notebooks/06-embedding",
    ),
    Row(
        "What changes from base to big?",
        "Four fields of the configuration: twice the widths and the heads, and more dropout.",
        (Place("transformer.BIG", "BIG ="),),
        "notebooks/07-transformer",
    ),
    Row(
        "Where does the rate peak?",
        "At the last warm-up step, where the two arguments of `min` are equal.",
        (Place("optimization.learning_rate", "min("),),
        "notebooks/09-optimization",
    ),
    Row(
        "How does beam search stop?",
        "When no unfinished hypothesis can beat the best finished one;"
        " `hypotheses` waits by default until every hypothesis of the beam is finished.",
        (
            Place("decoding.beam_search", "stop="),
            Place("decoding.cannot_improve", "return"),
            Place("decoding.when_full", "return"),
        ),
        "notebooks/11-decoding",
    ),
    Row(
        "Where do we differ from the paper?",
        "In ten places that matter, and in details that every chapter lists.",
        (),
        "book/B-differences",
    ),
)


def line(place: Place, root: Path = ROOT) -> int:
    """The number of the one line, counted from 1."""
    module, name = place.name.split(".")
    file = root / "annotated" / f"{module}.py"
    if not file.exists():
        raise Refused(f"find: there is no annotated/{module}.py")
    text = file.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(text).body if name in bound(node)]
    if not nodes:
        raise Refused(f"find: annotated/{module}.py has no {name}")
    first, last = nodes[0].lineno, nodes[0].end_lineno or nodes[0].lineno
    hits = [n for n, said in enumerate(text.splitlines(), 1) if first <= n <= last and place.text in said]
    if len(hits) != 1:
        raise Refused(f"find: {place.text!r} stands in {len(hits)} lines of {place.name}, one is wanted")
    return hits[0]


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)}
