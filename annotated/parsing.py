"""Parsing.

Generated from book/18-parsing.md by tools/tangle.py: edit the chapter, not this file.
"""

import gzip
import lzma
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from annotated.corpora import _Download, _Published, _verified
from annotated.data import Words, pad_batch
from annotated.decoding import _select, _widen, greedy
from annotated.files import read_file

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
    """Make a tree of what stood between two brackets.

    Args:
        parts: strings and trees.

    Returns:
        (label, child, ...); words of one part of speech become one, with _ between them.

    Raises:
        ValueError: there is nothing, or words and trees are mixed.
    """
    label, *children = parts if parts and isinstance(parts[0], str) else ["", *parts]
    words = [isinstance(child, str) for child in children]
    if not children or (any(words) and not all(words)):
        what = "words beside trees" if children else "nothing"
        raise ValueError(f"({label} ...) holds {what}; it should hold trees, or one word")
    return (label, "_".join(children)) if words[0] else (label, *children)


def _parse_brackets(text, name="text"):
    """Read trees written in Penn brackets.

    Args:
        text: any number of trees, white space wherever it stands.
        name: what the text is called in an error.

    Returns:
        list of (label, child, ...): children are such tuples, or of a part of speech
        one word.

    Raises:
        ValueError: brackets do not match, or a word stands where none may; names the line.
    """
    stack = [[]]
    for match in re.finditer(r"[()]|[^\s()]+", text):
        try:
            if match[0] != "(" and len(stack) == 1:
                raise ValueError(f"{match[0]!r} stands outside; a tree is (S (NN Hello))")
            if len(stack) > 300:  # the functions below call themselves once a level
                raise ValueError("300 brackets are open, more than in the tree of any sentence")
            if match[0] == "(":
                stack.append([])
            else:
                item = _closed(stack.pop()) if match[0] == ")" else match[0]
                stack[-1].append(item)
        except ValueError as error:
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"{name}, line {line}: {error}") from None
    if len(stack) > 1:
        raise ValueError(f"{name}: brackets opened and never closed: {len(stack) - 1}; "
                         "the text may be cut off")
    return stack[0]


def _write_tree(tree):
    """Write a tree in Penn brackets.

    Args:
        tree: as `_parse_brackets` returns them.

    Returns:
        a string.
    """
    children = (child if isinstance(child, str) else _write_tree(child) for child in tree[1:])
    return f"({tree[0]} {' '.join(children)})"


_ROOTS = ("", "TOP", "ROOT", "S1")  # what treebanks put around a sentence's tree


def linearize(tree):
    """Write a tree as a sequence of symbols, without its words and parts of speech (section 6.3).

    Args:
        tree: a bracketed string; ROOTS around it are left out.

    Returns:
        list of symbols: "(NP" opens a constituent, ")" closes one, "*" stands for a word.

    Raises:
        ValueError: `tree` is not a tree in brackets.
    """
    def symbols(node):
        if isinstance(node[1], str):
            return ["*"]
        inner = [symbol for child in node[1:] for symbol in symbols(child)]
        return inner if node[0] in _ROOTS else [f"({node[0]}", *inner, ")"]

    return [symbol for node in _parse_brackets(tree, "tree") for symbol in symbols(node)]


def _by_word(symbols):
    """Join symbols to one token a word: what opens before it, the word, what closes after it.

    Args:
        symbols: list of strings, as `linearize` returns them.

    Returns:
        list of strings such as "(S(NP*" and "*))", as many as there are words.
    """
    return re.findall(r"[^*]*\*\)*", "".join(symbols))


def delinearize(symbols, words, tags=None):
    """Make a tree of a sequence of symbols and the words.

    Args:
        symbols: as `linearize` or `_by_word` returns them.
        words: list of strings, one for each "*".
        tags: their parts of speech; XX by default.

    Returns:
        a bracketed string; several trees side by side get TOP around them.

    Raises:
        ValueError: the symbols are not a tree over these words; says what is wrong.
    """
    text, words = "".join(symbols), list(words)
    parts = re.findall(r"\([^()*]+|\*|\)", text)
    if "".join(parts) != text:
        raise ValueError(f"symbols must be such as '(NP', '*' and ')', got {text[:60]!r}")
    if (stars := parts.count("*")) != len(words):
        raise ValueError(f"symbols stand for {stars} words, and there are {len(words)}")
    if not words:
        raise ValueError("there are no words, and a tree holds at least one")
    pairs = zip(tags or ["XX"] * len(words), words, strict=True)
    whole = " ".join(f"({' '.join(next(pairs))})" if part == "*" else part for part in parts)
    trees = _parse_brackets(whole, "symbols")
    return _write_tree(trees[0] if len(trees) == 1 else ("TOP", *trees))


def _leaves(tree):
    """The words of a tree and their parts of speech.

    Args:
        tree: (label, child, ...), or the same as a bracketed string.

    Returns:
        list of (part of speech, word), from left to right.
    """
    if isinstance(tree, str):
        return [leaf for t in _parse_brackets(tree) for leaf in _leaves(t)]
    if isinstance(tree[1], str):
        return [tree]
    return [leaf for child in tree[1:] for leaf in _leaves(child)]


def _words_of(tree):
    """The words of a bracketed string.

    Args:
        tree: a bracketed string.

    Returns:
        list of strings.
    """
    return [word for _, word in _leaves(tree)]


def _attempt(symbols, words):
    """The tree that symbols stand for, or None where they stand for none.

    Args:
        symbols: see `delinearize`.
        words: the sentence.

    Returns:
        a bracketed string or None.
    """
    try:
        return delinearize(symbols, words)
    except ValueError:
        return None


def repair(symbols, n):
    """Make a well-formed sequence of any: drop what does not fit, close what is open.

    Args:
        symbols: as `linearize` or `_by_word` returns them, in any order and number.
        n: how many words there are.

    Returns:
        list of symbols for n words; missing words are put at the end.
    """
    made, depth, seen = [], 0, 0
    for part in re.findall(r"\([^()*]+|\*|\)", "".join(symbols)):
        if part == "*" and seen == n or part == ")" and not depth:
            continue
        if part == ")" and made[-1].startswith("("):  # nothing is in it
            made.pop()
        else:
            made.append(part)
        seen, depth = seen + (part == "*"), depth + (part[0] == "(") - (part == ")")
    made += ["*"] * (n - seen)
    while made and made[-1].startswith("("):
        made, depth = made[:-1], depth - 1
    return made + [")"] * depth


# Parts of speech that EVALB's COLLINS.prm does not count.
_PUNCTUATION = (",", ":", "``", "''", ".")

_SAME = {"PRT": "ADVP"}  # labels that EVALB's COLLINS.prm takes for one another


def _spans(tree, skip=()):
    """The labelled constituents of a tree, as EVALB counts them.

    Args:
        tree: (label, child, ...).
        skip: numbers of the words that do not count, punctuation.

    Returns:
        `Counter` of (label, first word, end), words numbered without the skipped ones.
    """
    found, seen = Counter(), [0, 0]  # words, and words that count

    def visit(node):
        begin = seen[1]
        if isinstance(node[1], str):
            seen[1] += seen[0] not in skip
            seen[0] += 1
            return
        for child in node[1:]:
            visit(child)
        if node[0] not in _ROOTS and seen[1] > begin:
            found[_SAME.get(node[0], node[0]), begin, seen[1]] += 1

    visit(tree)
    return found


def _matched(gold, predicted):
    """Compare a predicted tree with the right one.

    Args:
        gold: a bracketed string.
        predicted: another; or None, or anything that is not one tree over the same words.

    Returns:
        constituents that are right, that were predicted, that there are; the first two
        are 0 for what is not such a tree.

    Raises:
        ValueError: `gold` is not one tree.
    """
    trees = _parse_brackets(gold, "gold")
    if len(trees) != 1:
        raise ValueError(f"gold must be one tree a sentence, got {len(trees)} "
                         f"in {gold[:60]!r}")
    right = _leaves(trees[0])
    skip = {i for i, (tag, _) in enumerate(right) if tag in _PUNCTUATION}
    wanted = _spans(trees[0], skip)
    try:
        (tree,) = _parse_brackets(predicted or "", "predicted")
    except ValueError:
        return 0, 0, wanted.total()
    if [word for _, word in _leaves(tree)] != [word for _, word in right]:
        return 0, 0, wanted.total()
    found = _spans(tree, skip)
    return (wanted & found).total(), found.total(), wanted.total()


class _BracketScore(NamedTuple):
    """Labelled precision, recall and F1, in percent."""

    precision: float
    recall: float
    f1: float


def bracket_f1(gold, predicted):
    """Labelled bracket precision, recall and F1, as EVALB counts (section 6.3, Table 4).

    Not counted: parts of speech, brackets around a sentence (ROOTS), words whose part of
    speech in the right tree is punctuation. A prediction that is no tree over the same
    words counts as one without any bracket.

    Args:
        gold: list of bracketed strings.
        predicted: as many; None stands for no tree.

    Returns:
        a `_BracketScore`: (precision, recall, F1), in percent, over all sentences together.

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


def _cleaned(tree):
    """Drop empty nodes, function tags and indices; unary chains stay.

    Args:
        tree: (label, child, ...).

    Returns:
        a tree, or None where nothing but empty nodes was in it.
    """
    label, children = tree[0], tree[1:]
    if label == "-NONE-":
        return None
    if isinstance(children[0], str):
        return tree
    kept = [child for child in map(_cleaned, children) if child]
    label = label if label.startswith("-") else re.split("[-=]", label)[0]
    return (label, *kept) if kept else None


def _unwrapped(tree):
    """Take off the brackets around a sentence's tree; around several trees they become TOP.

    Args:
        tree: (label, child, ...).

    Returns:
        a tree.
    """
    while tree[0] in _ROOTS and len(tree) == 2 and not isinstance(tree[1], str):
        tree = tree[1]
    return ("TOP", *tree[1:]) if tree[0] in _ROOTS else tree


def _trees_in(text, name="text"):
    """Clean the trees of a text.

    Args:
        text: trees in Penn brackets.
        name: what the text is called in an error.

    Returns:
        list of bracketed strings; a tree of nothing but empty nodes is left out.

    Raises:
        ValueError: see `_parse_brackets`; or there is no tree.
    """
    trees = [_unwrapped(tree) for tree in map(_cleaned, _parse_brackets(text, name)) if tree]
    if not trees:
        raise ValueError(f"{name} holds no tree: "
                         "it should hold lines such as (S (NN Hello))")
    return [_write_tree(tree) for tree in trees]


def _unpacked(content, name):
    """The text of a file, unpacked where its name ends in .gz or .xz.

    Args:
        content: bytes.
        name: of the file.

    Returns:
        a string.

    Raises:
        ValueError: it cannot be unpacked, or is not UTF-8.
    """
    kinds = {".gz": gzip.decompress, ".xz": lzma.decompress}
    try:
        return kinds.get(Path(name).suffix.lower(), bytes)(content).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text: convert it to UTF-8") from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ValueError(f"{name} cannot be unpacked, it may be cut off: {error}") from None


_TREE_FILES = re.compile(r"\.(mrg|tree|trees|parse|ptb|txt)(\.gz|\.xz)?$", re.IGNORECASE)


def read_trees(path):
    """Read a treebank in Penn brackets, without empty nodes, function tags and indices.

    Args:
        path: a file, or a folder whose files are read in the order of their names: .mrg,
            .tree, .trees, .parse, .ptb or .txt, and the same packed as .gz or .xz.

    Returns:
        list of bracketed strings, one a sentence; brackets around a whole sentence, ROOTS,
        are taken off.

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
    """Describe a treebank's files.

    Args:
        name: of its folder.
        repository: where its publishers keep it.
        licence: what may be done with it, in a sentence.
        table: lines of part, size and sha256.

    Returns:
        a `_Published`.
    """
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


def load_treebank(name):
    """Read a treebank of `TREEBANKS` from the folder that ANNOTATED_DATA names.

    Args:
        name: a key of `TREEBANKS`.

    Returns:
        part ("train", "dev", "test") -> list of bracketed strings.

    Raises:
        ValueError: the name is unknown; that variable of the environment is not set; a file
            is missing or another version.
    """
    if name not in TREEBANKS:
        raise ValueError(f"name={name!r} is no treebank; there are {', '.join(TREEBANKS)}")
    published, folder = TREEBANKS[name], os.environ.get("ANNOTATED_DATA")
    if not folder:
        file = published.files[0]
        raise ValueError(f"{name} is not fetched, its publishers keep it in another form "
                         f"({file.address}): set ANNOTATED_DATA to a folder that holds "
                         f"{file.path}, or read a copy of your own with read_trees")
    return published.read({file.path: _verified(folder, file) for file in published.files})


def _common_labels(trees):
    """The commonest label of a whole sentence, and of a constituent within one.

    Args:
        trees: list of bracketed strings.

    Returns:
        two labels.
    """
    sequences = [[symbol[1:] for symbol in linearize(tree) if symbol[0] == "("]
                 for tree in trees]
    roots = Counter(labels[0] for labels in sequences if labels)
    inner = Counter(label for labels in sequences for label in labels[1:])
    return roots.most_common(1)[0][0], inner.most_common(1)[0][0]


def right_branching(words, root="S", label="NP"):
    """The tree in which everything from a word to the end is a constituent.

    Args:
        words: list of strings.
        root: label of the whole.
        label: of all the others, which hold two words or more.

    Returns:
        a bracketed string.

    Raises:
        ValueError: there is no word.
    """
    if not words:
        raise ValueError("words must be 1 or more, got none")
    opened = [f"({root}", *[f"({label}"] * (len(words) - 2)]
    tokens = [*(f"{symbol}*" for symbol in opened), *["*"] * (len(words) - len(opened))]
    return delinearize([*tokens, ")" * len(opened)], words)


def _signature(word):
    """The shape of a word, by which words that are too rare to be learned are told apart.

    Args:
        word: a string.

    Returns:
        a string such as "<a:ing>": capital, small letter, digit, hyphen, other marks, and
        the end of a longer word.
    """
    marks = (("A", "[A-Z]"), ("a", "[a-z]"), ("0", "[0-9]"), ("-", "[-–/]"),
             (".", "[^\\w\\s/–-]"))
    shape = "".join(mark for mark, pattern in marks if re.search(pattern, word))
    ending = word[-3:].lower() if len(word) > 5 and word[-3:].isalpha() else ""
    return f"<{shape}:{ending}>"


def _deepest(trees):
    """The greatest number of constituents, one in the other, in any of the trees.

    Args:
        trees: list of bracketed strings.

    Returns:
        an int.
    """
    most = 0
    for tree in trees:
        depth = 0
        for symbol in linearize(tree):
            depth += {"(": 1, ")": -1}.get(symbol[0], 0)
            most = max(most, depth)
    return most


def _vocabularies(trees, least=1):
    """Make the two vocabularies of a parser from its training trees.

    Args:
        trees: list of bracketed strings.
        least: how often a word must occur to have a place of its own; shapes of rarer ones
            that occur as often have one too.

    Returns:
        `Words` of the words, and `Words` of the tokens that `_by_word` makes of the trees.
    """
    counts = Counter(word for tree in trees for word in _words_of(tree))
    known = {word for word, count in counts.items() if count >= least}
    shapes = Counter()
    for word in counts.keys() - known:
        shapes[_signature(word)] += counts[word]
    known |= {shape for shape, count in shapes.items() if count >= least}
    tokens = {token for tree in trees for token in _by_word(linearize(tree))}
    # So that a tree of any depth can be closed.
    ends = {"*" + ")" * n for n in range(_deepest(trees) + 1)}
    return Words(sorted(known)), Words(sorted(tokens | ends))


def _encode_words(words, vocabulary):
    """Turn words into identifiers, a word that is not in the vocabulary into that of its shape.

    Args:
        words: list of strings.
        vocabulary: the first of `_vocabularies`.

    Returns:
        list of identifiers, eos last.
    """
    ids = vocabulary.ids
    return [*(ids.get(word, ids.get(_signature(word), 3)) for word in words), 2]


def _encode_tree(tree, words, tokens):
    """Turn a tree into what the model reads and what it is to write.

    Args:
        tree: a bracketed string.
        words, tokens: the two `_vocabularies`.

    Returns:
        two lists of identifiers, eos last, of equal length; a token that is not in the
        vocabulary becomes unk.
    """
    wanted = [tokens.ids.get(token, 3) for token in _by_word(linearize(tree))]
    return _encode_words(_words_of(tree), words), [*wanted, 2]


@dataclass
class _Budget:
    """What `WellFormed` remembers of R hypotheses.

    Args:
        state: the model's.
        depth: brackets that are open, (R,).
        left: words still to come, (R,).
    """

    state: object
    depth: torch.Tensor
    left: torch.Tensor

    def select(self, rows):
        """Go on with hypotheses `rows`, (R',)."""
        return _Budget(_select(self.state, rows), self.depth[rows], self.left[rows])

    def repeat(self, k):
        """k hypotheses in the place of each one."""
        rows = torch.arange(len(self.depth), device=self.depth.device)
        depth, left = (x.repeat_interleave(k) for x in (self.depth, self.left))  # (R * k,)
        return _Budget(_widen(self.state, rows, k), depth, left)


class WellFormed:
    """A model that can write nothing but trees: `greedy` and `beam_search` take it like any other.

    Args:
        model: anything with `start`, `step` and `config`, whose sources are words and eos.
        tokens: the vocabulary of its outputs, see `_vocabularies`.
    """

    def __init__(self, model, tokens):
        self.model, self.config = model, model.config
        device = next(model.parameters()).device
        rises = [word.count("(") - word.count(")") for word in tokens.words]
        self.rise = torch.tensor(rises, device=device)  # (vocab,)
        stars = ["*" in word for word in tokens.words]
        self.word = torch.tensor(stars, device=device)  # (vocab,)
        self.most = max(word.count(")") for word in tokens.words)

    @property
    def training(self):
        """As of the model."""
        return self.model.training

    def train(self, mode=True):
        """As of the model."""
        return self.model.train(mode)

    def eval(self):
        """As of the model."""
        return self.model.eval()

    def start(self, source):
        """State before the first token; source (B, S)."""
        left = (source != self.config.pad).sum(1) - 1  # (B,)
        return _Budget(self.model.start(source), torch.zeros_like(left), left)

    def step(self, ids, state):
        """Logits (R, vocab), -inf where no tree goes on, and the state after ids, (R,)."""
        logits, inner = self.model.step(ids, state.state)  # (R, vocab)
        depth = state.depth + self.rise[ids]  # (R,)
        left = state.left - self.word[ids].long()  # (R,)
        logits = logits.masked_fill(~self.allowed(depth, left), -torch.inf)
        return logits, _Budget(inner, depth, left)

    def allowed(self, depth, left):
        """Which tokens may come next, (R, vocab)."""
        after, left = depth[:, None] + self.rise, left[:, None]  # (R, vocab), (R, 1)
        inside = (after >= 1) & (after <= self.most)  # one token can close what is open
        goes_on = torch.where(left > 1, inside, after == 0)  # (R, vocab)
        fits = self.word & goes_on & (left > 0)  # (R, vocab)
        fits[:, self.config.eos] = left[:, 0] <= 0
        return fits


def parse_words(model, sentences, words, tokens, search=greedy, size=4000):
    """Parse sentences.

    Args:
        model: a trained one, or a `WellFormed`.
        sentences: lists of words.
        words, tokens: the two `_vocabularies`.
        search: f(model, source) -> lists of identifiers.
        size: words of a batch, padding counted.

    Returns:
        as many lists of tokens, in the same order, for `delinearize`, `_attempt` or `repair`.
    """
    device = next(getattr(model, "model", model).parameters()).device
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]), reverse=True)
    found = {}
    while order:
        rows = max(1, size // (len(sentences[order[0]]) + 1))
        batch, order = order[:rows], order[rows:]
        source = pad_batch([_encode_words(sentences[i], words) for i in batch])  # (B, S)
        for i, ids in zip(batch, search(model, source.to(device)), strict=True):
            found[i] = [tokens.words[k] for k in ids if k != model.config.eos]
    return [found[i] for i in range(len(sentences))]


@torch.no_grad()
def init_cross_attention_diagonal(model, gain=2.0):
    """Start the decoder looking at the source position that has its own number.

    Where each position has a vector unlike the others', equal projections for queries and
    keys make a position's score greatest with its like. Later training changes them freely.

    Args:
        model: a new `Transformer`; its weights are changed.
        gain: a factor on the queries' projection, and on the keys'.

    Returns:
        the model.
    """
    for layer in model.decoder.layers:
        attention = layer.cross_attention
        attention.W_Q.weight.mul_(gain)
        attention.W_K.weight.copy_(attention.W_Q.weight)
    return model
