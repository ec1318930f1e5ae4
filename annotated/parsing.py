"""Parsing.

Generated from book/18-parsing.md by tools/tangle.py: edit the chapter, not this file.
"""

import gzip
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from annotated.corpora import _Download, _Published, _verified
from annotated.data import Words, pad_batch
from annotated.decoding import _select, _widen, greedy
from annotated.files import read_file
from annotated.transformer import Transformer

__all__ = [
    "linearize",
    "delinearize",
    "repair",
    "bracket_f1",
    "read_trees",
    "TREEBANKS",
    "load_treebank",
    "right_branching",
    "WellFormed",
    "parse_words",
    "init_cross_attention_diagonal",
]


def _closed(parts):
    """Make a tree, (label, child, ...), of the strings and trees between two brackets.

    Words of one part of speech become one word, with _ between them.
    """
    labelled = parts and isinstance(parts[0], str)
    label, *children = parts if labelled else ["", *parts]
    words = [isinstance(child, str) for child in children]
    if not children or (any(words) and not all(words)):
        what = "words beside trees" if children else "nothing"
        raise ValueError(f"({label} ...) holds {what}; it should hold trees, or one word")
    return (label, "_".join(children)) if words[0] else (label, *children)


def _parse_brackets(text, name="text"):
    """Read the trees of a text in Penn brackets, as a list of (label, child, ...).

    A child is such a tuple, or of a part of speech one word; errors say `name` and the line.
    """
    stack: list[list] = [[]]
    opened: list[int] = []  # where, of the brackets on the stack
    for match in re.finditer(r"[()]|[^\s()]+", text):
        try:
            if match[0] != "(" and len(stack) == 1:
                raise ValueError(f"{match[0]!r} stands outside; a tree is (S (NN Hello))")
            if len(stack) > 300:  # the functions below call themselves once a level
                raise ValueError("300 brackets are open, more than in the tree of any sentence")
            if match[0] == "(":
                stack.append([])
                opened.append(match.start())
            elif match[0] == ")":
                item = _closed(stack.pop())
                stack[-1].append(item)
                opened.pop()
            else:
                stack[-1].append(match[0])
        except ValueError as error:
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"{name}, line {line}: {error}") from None
    if opened:
        line = text.count("\n", 0, opened[0]) + 1
        raise ValueError(f"{name}, line {line}: a bracket is opened and never closed")
    return stack[0]


def _write_tree(tree):
    """Write a tree, as `_parse_brackets` returns them, in Penn brackets."""
    children = (child if isinstance(child, str) else _write_tree(child) for child in tree[1:])
    return f"({tree[0]} {' '.join(children)})"


_ROOTS = ("", "TOP", "ROOT", "S1")  # what treebanks put around a sentence's tree


def linearize(tree: str) -> list[str]:
    """Write a tree as a sequence of symbols, without its words and parts of speech (section 6.3).

    Args:
        tree: in Penn brackets, as `read_trees` returns it, without empty nodes. TOP, ROOT,
            S1 and brackets without a label are left out wherever they stand, as TOP is by EVALB.

    Returns:
        "(NP" opens a constituent, ")" closes one, "*" stands for a word.

    Raises:
        ValueError: `tree` is not one tree in brackets.
    """
    trees = _parse_brackets(tree, "tree")
    if len(trees) != 1:
        raise ValueError(f"tree must hold one tree, got {len(trees)}")

    def symbols(node):
        if isinstance(node[1], str):
            return ["*"]
        inner = [symbol for child in node[1:] for symbol in symbols(child)]
        return inner if node[0] in _ROOTS else [f"({node[0]}", *inner, ")"]

    return symbols(trees[0])


def _by_word(symbols):
    """Join the symbols of `linearize` to one token a word, such as "(S(NP*" or "*))"."""
    return re.findall(r"[^*]*\*\)*", "".join(symbols))


def delinearize(
    symbols: Iterable[str], words: Iterable[str], tags: Iterable[str] | None = None
) -> str:
    """Make a tree of a sequence of symbols and the words.

    Args:
        symbols: of `linearize`, one by one or joined to a token a word.
        words: one for each "*".
        tags: their parts of speech; XX by default.

    Returns:
        the tree in Penn brackets; several trees side by side get TOP around them.

    Raises:
        ValueError: the symbols are not a tree over these words; says what is wrong.
    """
    words = list(words)
    tags = ["XX"] * len(words) if tags is None else list(tags)
    for kind, part in [*(("words", word) for word in words), *(("tags", tag) for tag in tags)]:
        if not re.fullmatch(r"[^\s()]+", part):
            raise ValueError(f"{kind} hold neither spaces nor brackets (-LRB-, -RRB-), got {part!r}")
    if len(tags) != len(words):
        raise ValueError(f"{len(tags)} tags for {len(words)} words")
    text = "".join(symbols)
    parts = re.findall(r"\([^\s()*]+|\*|\)", text)
    if "".join(parts) != text:
        raise ValueError(f"symbols must be such as '(NP', '*' and ')', got {text[:60]!r}")
    stars = parts.count("*")
    if stars != len(words):
        raise ValueError(f"symbols stand for {stars} words, and there are {len(words)}")
    if not words:
        raise ValueError("there are no words, and a tree holds at least one")
    pairs = zip(tags, words)
    whole = " ".join(f"({' '.join(next(pairs))})" if part == "*" else part for part in parts)
    trees = _parse_brackets(whole, "symbols")
    return _write_tree(trees[0] if len(trees) == 1 else ("TOP", *trees))


def _leaves(tree):
    """The (part of speech, word) pairs of a tree, given as a tuple or as a string."""
    if isinstance(tree, str):
        return [leaf for t in _parse_brackets(tree) for leaf in _leaves(t)]
    if isinstance(tree[1], str):
        return [tree]
    return [leaf for child in tree[1:] for leaf in _leaves(child)]


def _words_of(tree):
    """The words of a bracketed string."""
    return [word for _, word in _leaves(tree)]


def _attempt(symbols, words):
    """The tree that symbols stand for, as `delinearize` makes it, or None."""
    try:
        return delinearize(symbols, words)
    except ValueError:
        return None


def repair(symbols: Iterable[str], n: int) -> list[str]:
    """Make a well-formed sequence of any: drop what does not fit, close what is open.

    Args:
        symbols: as for `delinearize`, in any order and number.
        n: how many words there are.

    Returns:
        symbols for n words; missing words are put at the end.
    """
    made: list[str] = []
    depth = 0  # brackets that are open
    seen = 0  # words so far
    for part in re.findall(r"\([^\s()*]+|\*|\)", "".join(symbols)):
        if part == "*" and seen == n or part == ")" and depth == 0:
            continue
        if part[0] == "(" and depth == 298:  # no deeper tree can be read
            continue
        if part == ")" and made[-1].startswith("("):  # nothing is in it
            made.pop()
        else:
            made.append(part)
        if part == "*":
            seen += 1
        else:
            depth += 1 if part[0] == "(" else -1
    made += ["*"] * (n - seen)
    while made and made[-1].startswith("("):
        made.pop()
        depth -= 1
    return made + [")"] * depth


# Parts of speech that EVALB's COLLINS.prm does not count.
_PUNCTUATION = (",", ":", "``", "''", ".")

_SAME = {"PRT": "ADVP"}  # labels that EVALB's COLLINS.prm takes for one another


def _spans(tree, skip=()):
    """The constituents (label, first word, end) of a tree, as EVALB counts them, in a `Counter`.

    Words are numbered without those to skip, punctuation.
    """
    found: Counter = Counter()
    passed = 0
    counted = 0

    def visit(node):
        nonlocal passed, counted
        begin = counted
        if isinstance(node[1], str):
            counted += passed not in skip
            passed += 1
            return
        for child in node[1:]:
            visit(child)
        if node[0] not in _ROOTS and counted > begin:
            label = _SAME.get(node[0], node[0])
            found[label, begin, counted] += 1

    visit(tree)
    return found


def _cleaned(tree):
    """Drop empty nodes, function tags and indices; None where only empty nodes were."""
    label, *children = tree
    if label == "-NONE-":
        return None
    if isinstance(children[0], str):
        return tree
    kept = [child for child in map(_cleaned, children) if child]
    label = label if label.startswith("-") else re.split("[-=]", label)[0]
    return (label, *kept) if kept else None


def _matched(gold, predicted):
    """Count the constituents that are right, that were predicted, and that there are.

    The first two are 0 where `predicted` is not one tree over the same words.
    """
    trees = _parse_brackets(gold, "gold")
    if len(trees) != 1:
        raise ValueError(f"gold must be one tree a sentence, got {len(trees)} "
                         f"in {gold[:60]!r}")
    if (answer := _cleaned(trees[0])) is None:
        return 0, 0, 0
    right = _leaves(answer)
    skip = {i for i, (tag, _) in enumerate(right) if tag in _PUNCTUATION}
    wanted = _spans(answer, skip)
    try:
        (tree,) = map(_cleaned, _parse_brackets(predicted or "", "predicted"))
    except ValueError:
        return 0, 0, wanted.total()
    if tree is None or [word for _, word in _leaves(tree)] != [word for _, word in right]:
        return 0, 0, wanted.total()
    found = _spans(tree, skip)
    return (wanted & found).total(), found.total(), wanted.total()


class _BracketScore(NamedTuple):
    """Labelled precision, recall and F1, in percent."""

    precision: float
    recall: float
    f1: float


def bracket_f1(gold: Sequence[str], predicted: Sequence[str | None]) -> _BracketScore:
    """Labelled bracket precision, recall and F1, as EVALB counts (section 6.3, Table 4).

    Not counted: parts of speech, brackets around a sentence such as TOP, words whose part
    of speech in the right tree is punctuation, empty nodes, function tags. A prediction that
    is no tree over the same words counts as one without any bracket.

    Args:
        gold: trees in Penn brackets.
        predicted: as many; None stands for no tree.

    Returns:
        (precision, recall, f1), in percent, over all sentences together.

    Raises:
        TypeError: one string is given instead of a list.
        ValueError: the lists differ in length or are empty, or a tree of `gold` is broken.
    """
    for name, trees in (("gold", gold), ("predicted", predicted)):
        if isinstance(trees, str):
            raise TypeError(f"{name} must be a list of bracketed strings, got one string: "
                            "put it in a list")
    if len(gold) != len(predicted) or not len(gold):
        raise ValueError(f"gold has {len(gold)} trees and predicted {len(predicted)}: "
                         "as many are needed, 1 or more")
    counts = zip(*map(_matched, gold, predicted), strict=True)
    right, found, wanted = map(sum, counts)
    precision, recall = (100 * right / total if total else 0.0 for total in (found, wanted))
    f1 = 200 * right / (found + wanted) if found + wanted else 0.0
    return _BracketScore(precision, recall, f1)


def _unwrapped(tree):
    """Take off the brackets around a sentence's tree; around several trees they become TOP."""
    while tree[0] in _ROOTS and len(tree) == 2 and not isinstance(tree[1], str):
        tree = tree[1]
    return ("TOP", *tree[1:]) if tree[0] in _ROOTS else tree


def _trees_in(text, name="text"):
    """The trees of a text, cleaned, as bracketed strings; those of empty nodes only left out."""
    trees = [_unwrapped(tree) for tree in map(_cleaned, _parse_brackets(text, name)) if tree]
    if not trees:
        raise ValueError(f"{name} holds no tree: "
                         "it should hold lines such as (S (NN Hello))")
    return [_write_tree(tree) for tree in trees]


def _unpacked(content, name):
    """The text of a file's content, unpacked where its name ends in .gz or .xz."""
    ending = Path(name).suffix.lower()
    try:
        if ending == ".gz":
            content = gzip.decompress(content)
        elif ending == ".xz":
            content = lzma.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text: convert it to UTF-8") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{name} cannot be unpacked, it may be cut off: {error}") from None


_TREE_FILES = re.compile(r"\.(mrg|tree|trees|parse|ptb|txt)(\.gz|\.xz)?$", re.IGNORECASE)


def read_trees(path: Path | str) -> list[str]:
    """Read a treebank in Penn brackets, without empty nodes, function tags and indices.

    Args:
        path: a file, or a folder whose files are read in the order of their names: .mrg,
            .tree, .trees, .parse, .ptb or .txt, and the same packed as .gz or .xz.

    Returns:
        a tree a sentence; brackets around a whole sentence, such as TOP, are taken off.

    Raises:
        ValueError: nothing is there, or a file cannot be read, or is no treebank; names file
            and line.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        found = (f for f in path.rglob("*") if _TREE_FILES.search(f.name))
        files = sorted(f for f in found if f.is_file())
        if not files:
            raise ValueError(f"no trees in {path}: a folder should hold files such as "
                             "wsj_0001.mrg or train.mrg.xz")
    return [tree for file in files
            for tree in _trees_in(_unpacked(read_file(file), file), file)]


def _treebank(name, repository, licence, table):
    """Describe a treebank's files; each line of the table is a part, its size and its sha256."""
    rows = [line.split() for line in table.strip().splitlines()]
    files = [_Download(f"{name}/{part}.mrg.xz", repository, int(size), sha)
             for part, size, sha in rows]

    def parts(contents):
        return {Path(path).name.split(".")[0]: _trees_in(_unpacked(content, path), path)
                for path, content in contents.items()}

    return _Published(tuple(files), licence, parts)


TREEBANKS = {
    "treebank-craft": _treebank(
        "treebank-craft", "https://github.com/UCDenver-ccp/CRAFT",
        "CRAFT (University of Colorado): CC BY 3.0 on the annotations.",
        """
        train 823020 217d75fc2136ec3adfb09a5dc281f8c952b23aa354393a73851a17e896c72b53
        dev 127304 06f7461fe740015c09c3ab8f78326b00f91e8808d906aa5e4d1b51217e716276
        test 410892 2ad75977741ea8bf89333ff3b9197fdfb3ee167c20e7189acca7e8c803c43a84
        """),
    "treebank-genia": _treebank(
        "treebank-genia", "http://www.geniaproject.org",
        "GENIA Treebank (GENIA Project): CC BY 3.0 on the annotations.",
        """
        train 672244 152152c9e888971585e8f98c376bda437f13923ae82355267ce3054c3435dc51
        dev 97348 4e0940c0f0483e9f360ce82960c6c5f4203fc869b742674645de98df95db6bbf
        """),
}


def load_treebank(name: str) -> dict[str, list[str]]:
    """Read a treebank of `TREEBANKS` from the folder that ANNOTATED_DATA names.

    Returns:
        the trees, in Penn brackets, of each part ("train", "dev", "test").

    Raises:
        ValueError: the name is unknown; that variable of the environment is not set; a file
            is missing or another version.
    """
    if name not in TREEBANKS:
        raise ValueError(f"name={name!r} is no treebank; there are {', '.join(TREEBANKS)}")
    published = TREEBANKS[name]
    folder = os.environ.get("ANNOTATED_DATA")
    if not folder:
        file = published.files[0]
        raise ValueError(f"{name} is not fetched, its publishers keep it in another form "
                         f"({file.address}): set ANNOTATED_DATA to a folder that holds "
                         f"{file.path}, or read a copy of your own with read_trees")
    return published.read({file.path: _verified(folder, file) for file in published.files})


def _common_labels(trees):
    """The commonest label of a whole sentence, and of a constituent within one."""
    sequences = [[symbol[1:] for symbol in linearize(tree) if symbol[0] == "("]
                 for tree in trees]
    roots = Counter(labels[0] for labels in sequences if labels)
    inner = Counter(label for labels in sequences for label in labels[1:])
    return roots.most_common(1)[0][0], inner.most_common(1)[0][0]


def right_branching(words: Sequence[str], root: str = "S", label: str = "NP") -> str:
    """The tree in which everything from a word to the end is a constituent.

    Args:
        words: of the sentence.
        root: label of the whole.
        label: of all the others, which hold two words or more.

    Raises:
        ValueError: there is no word, or there are more than 299: no deeper tree can be read.
    """
    if not 1 <= len(words) < 300:
        raise ValueError(f"words must be 1 to 299, got {len(words)}")
    opened = [f"({root}", *[f"({label}"] * (len(words) - 2)]
    tokens = [*(f"{symbol}*" for symbol in opened), *["*"] * (len(words) - len(opened))]
    return delinearize([*tokens, ")" * len(opened)], words)


def _signature(word):
    """The shape of a word, such as "<a:ing>": the kinds of its characters and a long word's end."""
    marks = (("A", "[A-Z]"), ("a", "[a-z]"), ("0", "[0-9]"), ("-", "[-–/]"),
             (".", "[^\\w\\s/–-]"))
    shape = "".join(mark for mark, pattern in marks if re.search(pattern, word))
    ending = word[-3:].lower() if len(word) > 5 and word[-3:].isalpha() else ""
    return f"<{shape}:{ending}>"


def _deepest(trees):
    """The greatest number of constituents, one in the other, in any of the trees."""
    most = 0
    for tree in trees:
        depth = 0
        for symbol in linearize(tree):
            depth += {"(": 1, ")": -1}.get(symbol[0], 0)
            most = max(most, depth)
    return most


def _vocabularies(trees, least=1):
    """The vocabularies of words and shapes that occur `least` times, and of `_by_word`'s tokens."""
    counts = Counter(word for tree in trees for word in _words_of(tree))
    known = {word for word, count in counts.items() if count >= least}
    shapes: Counter[str] = Counter()
    for word in counts.keys() - known:
        shapes[_signature(word)] += counts[word]
    known |= {shape for shape, count in shapes.items() if count >= least}
    tokens = {token for tree in trees for token in _by_word(linearize(tree))}
    # So that a tree of any depth can be closed.
    ends = {"*" + ")" * n for n in range(_deepest(trees) + 1)}
    return Words(sorted(known)), Words(sorted(tokens | ends))


def _encode_words(words, vocabulary):
    """Identifiers of words, eos last; a word that is not in the vocabulary has its shape's."""
    ids = vocabulary.ids
    return [*(ids.get(word, ids.get(_signature(word), 3)) for word in words), 2]


def _encode_tree(tree, words, tokens):
    """The identifiers that the model reads of a tree, and as many that it is to write, eos last."""
    wanted = [tokens.ids.get(token, 3) for token in _by_word(linearize(tree))]
    return _encode_words(_words_of(tree), words), [*wanted, 2]


def _may_follow(depth, left, rise, word, most):
    """Which tokens but eos may come next, (R, vocab).

    Args:
        depth, left: open brackets and words to come, (R,) each.
        rise: how many more brackets a token opens than it closes, (vocab,).
        word: whether a token stands for a word, (vocab,).
        most: brackets that one token closes at most.
    """
    after = depth[:, None] + rise  # (R, vocab)
    left = left[:, None]  # (R, 1)
    inside = (after >= 1) & (after <= most)  # one token can close what is open
    goes_on = torch.where(left > 1, inside, after == 0)  # (R, vocab)
    return word & goes_on & (left > 0)  # (R, vocab)


@dataclass
class _Budget:
    """What `WellFormed` remembers of R hypotheses.

    Args:
        state: the model's.
        depth: brackets that are open, (R,).
        left: words still to come, (R,).
    """

    state: Any
    depth: Tensor
    left: Tensor

    def select(self, rows):
        """Go on with hypotheses `rows`, (R',)."""
        return _Budget(_select(self.state, rows), self.depth[rows], self.left[rows])

    def repeat(self, k):
        """k hypotheses in the place of each one."""
        rows = torch.arange(len(self.depth), device=self.depth.device)
        depth = self.depth.repeat_interleave(k)  # (R * k,)
        left = self.left.repeat_interleave(k)  # (R * k,)
        return _Budget(_widen(self.state, rows, k), depth, left)


class WellFormed(nn.Module):
    """A model that can write nothing but trees: `greedy` and `beam_search` take it like any other.

    Args:
        model: anything with `start`, `step` and `config`, whose sources are words and eos.
        tokens: the vocabulary of its outputs, each a word with the brackets around its "*".

    Raises:
        ValueError: some open brackets could never be closed by tokens; or they are not as many
            as the model's vocab.
    """

    rise: Tensor
    word: Tensor

    def __init__(self, model: Any, tokens: Words):
        super().__init__()
        self.model = model
        self.train(model.training)  # a new module would say that it trains
        self.config = model.config
        rises = [word.count("(") - word.count(")") for word in tokens.words]
        stars = ["*" in word for word in tokens.words]
        self.most = max(word.count(")") for word in tokens.words)
        falls = {-rise for rise, star in zip(rises, stars) if star}
        for n in range(self.most + 1):
            if n not in falls:
                raise ValueError(f"tokens lack a word that closes {n}, such as {'*' + n * ')'!r}")
        if len(tokens) != model.config.vocab:
            wanted = f"{model.config.vocab}, as the model's vocab"
            raise ValueError(f"tokens must be {wanted}, not {len(tokens)}")
        device = next(model.parameters()).device
        for name, values in (("rise", rises), ("word", stars)):  # (vocab,) each
            self.register_buffer(name, torch.tensor(values, device=device), persistent=False)

    def start(self, source: Tensor) -> _Budget:
        """State before the first token; source (B, S)."""
        left = (source != self.config.pad).sum(1) - 1  # (B,)
        return _Budget(self.model.start(source), torch.zeros_like(left), left)

    def step(self, ids: Tensor, state: _Budget) -> tuple[Tensor, _Budget]:
        """Logits (R, vocab), -inf where no tree goes on, and the state after ids, (R,)."""
        logits, inner = self.model.step(ids, state.state)  # (R, vocab)
        depth = state.depth + self.rise[ids]  # (R,)
        left = state.left - self.word[ids].long()  # (R,)
        logits = logits.masked_fill(~self.allowed(depth, left), -torch.inf)
        return logits, _Budget(inner, depth, left)

    def allowed(self, depth: Tensor, left: Tensor) -> Tensor:
        """Which tokens may come next, (R, vocab), by the open brackets and words left, (R,)."""
        fits = _may_follow(depth, left, self.rise, self.word, self.most)  # (R, vocab)
        fits[:, self.config.eos] = left <= 0
        return fits


def parse_words(
    model: Any, sentences: Sequence[Sequence[str]], words: Words, tokens: Words,
    search: Callable = greedy, size: int = 4000,
) -> list[list[str]]:
    """Parse sentences (section 6.3).

    Args:
        model: a trained one, or a `WellFormed`.
        sentences: the words of each.
        words: the vocabulary of the source.
        tokens: that of the outputs, see `WellFormed`.
        search: f(model, source) -> lists of identifiers.
        size: words of a batch, padding counted.

    Returns:
        the tokens of each sentence, for `delinearize` or `repair`.

    Raises:
        TypeError: a sentence is a text, not a list of words.
    """
    if any(isinstance(each, str) for each in sentences):  # its letters would be the words
        raise TypeError("sentences must be lists of words, such as ['the', 'dog'], not texts")
    device = next(getattr(model, "model", model).parameters()).device
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]), reverse=True)
    found = {}
    while order:
        rows = max(1, size // (len(sentences[order[0]]) + 1))
        batch = order[:rows]
        order = order[rows:]
        source = pad_batch([_encode_words(sentences[i], words) for i in batch])  # (B, S)
        for i, ids in zip(batch, search(model, source.to(device)), strict=True):
            found[i] = [tokens.words[k] for k in ids if k != model.config.eos]
    return [found[i] for i in range(len(sentences))]


@torch.no_grad()
def init_cross_attention_diagonal(model: Transformer, gain: float = 2.0) -> Transformer:
    """Start the decoder looking at the source position that has its own number.

    Where each position has a vector unlike the others', equal projections for queries and
    keys tend to make a position's score greatest with its like. Training may change them.

    Args:
        model: a new one, changed in place and returned.
        gain: a factor on the queries' projection, and on the keys'.
    """
    layers: Iterable[Any] = model.decoder.layers
    for layer in layers:
        attention = layer.cross_attention
        attention.W_Q.weight.mul_(gain)
        attention.W_K.weight.copy_(attention.W_Q.weight)
    return model
