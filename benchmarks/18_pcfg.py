"""A treebank grammar as the parser's rival: probabilities counted from trees, the likeliest tree by the CKY algorithm.

    ANNOTATED_DATA=... python benchmarks/18_pcfg.py [--treebank NAME] [--shares 100 50 25] [--out results/18-pcfg]

Reads words only, as 18_parsing.py does, the rare ones by their shape. The grammar is binarised from the left; an
intermediate symbol remembers its parent's label and as many of the last children as the grammar's second number says;
where the first is 2, a label remembers its own parent's (Klein and Manning 2003). A chain of constituents over the same
words is one symbol. Which of three
grammars is taken is decided on the development part: some hundreds of its sentences of at most 40 words. A sentence
without a parse gets the right-branching tree.
With shares of less than 100 the grammar counts the first trees of the training part only.
Writes run.json and scores.json; the same command goes on with the shares that are missing.
"""

import argparse
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

import torch
from script import rounded, run
from tqdm import tqdm
from treebanks import parts_of

from annotated.parsing import (
    TREEBANKS,
    _common_labels,
    _parse_brackets,
    _signature,
    _words_of,
    _write_tree,
    bracket_f1,
    right_branching,
)
from annotated.records import Record

GRAMMARS = (1, 1), (2, 0), (2, 1)  # vertical, horizontal
LEAST, WEIGHT = 3, 0.5  # how often a word occurs to be known; what its shape says beside its own counts


def collapsed(tree):
    """(label, child, ...) in which no constituent has one constituent only: such chains are one label, with +."""
    label, *children = tree
    while len(children) == 1 and not isinstance(children[0], str):
        below, *children = children[0]
        label = f"{label}+{below}"
    return (label, *(child if isinstance(child, str) else collapsed(child) for child in children))


def restored(label, children):
    """The trees that a node of a binarised tree stands for: one, or those of an intermediate symbol."""
    if label.startswith("@"):
        return children
    *above, own = label.split("^")[0].split("+")
    tree = (own, *children)
    for name in reversed(above):
        tree = (name, tree)
    return [tree]


class Grammar:
    """Rules and words with their log-probabilities, counted from trees in Penn brackets."""

    def __init__(self, trees, vertical, horizontal):
        self.vertical, self.horizontal = vertical, horizontal
        self.rules, self.words, self.roots = Counter(), defaultdict(Counter), Counter()
        seen = Counter(word for tree in trees for word in _words_of(tree))
        self.known = {word for word, count in seen.items() if count >= LEAST}
        for tree in trees:
            (parsed,) = _parse_brackets(tree)
            self.roots[self._count(collapsed(parsed), "")] += 1
        self._index()

    def _count(self, tree, parent):
        """Count the rules of a tree; its symbol."""
        label, *children = tree
        if isinstance(children[0], str):
            (word,) = children
            self.words[word if word in self.known else _signature(word)][label] += 1
            return label
        own = f"{label}^{parent}" if self.vertical == 2 else label
        names = [self._count(child, label.split("+")[-1]) for child in children]
        symbol = own
        for i, name in enumerate(names[:-2]):
            before = "_".join(n.split("^")[0] for n in names[max(0, i + 1 - self.horizontal) : i + 1])
            rest = f"@{own}|{before}"
            self.rules[symbol, name, rest] += 1
            symbol = rest
        self.rules[symbol, *names[-2:]] += 1
        return own

    def _index(self):
        """Everything as tensors: symbols become numbers, counts log-probabilities."""
        tags = Counter()
        for counts in self.words.values():
            tags.update(counts)
        heads = Counter()
        for (head, *_), count in self.rules.items():
            heads[head] += count
        self.symbols = sorted({*heads, *tags, *self.roots})
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        rules = sorted((number[a], number[b], number[c], math.log(n / heads[a])) for (a, b, c), n in self.rules.items())
        heads_of, left, right, log_p = zip(*rules)
        self.head, self.left, self.right = (torch.tensor(part) for part in (heads_of, left, right))
        self.log_p = torch.tensor(log_p)
        self.root = torch.full((len(number),), -math.inf)
        for symbol, count in self.roots.items():
            self.root[number[symbol]] = math.log(count / sum(self.roots.values()))
        shapes = defaultdict(Counter)  # what tags the words of a shape have
        for word, counts in self.words.items():
            shapes[word if word.startswith("<") else _signature(word)].update(counts)
        self.tags, self.number, self.shapes = tags, number, shapes

    def scores(self, word):
        """How likely each symbol is to be this word, (symbols,)."""
        row, shape = torch.full((len(self.symbols),), -math.inf), _signature(word)
        own = self.words.get(word if word in self.known else shape, Counter())
        alike = self.shapes.get(shape) or self.tags
        for tag in {*own, *alike}:
            count = own[tag] + WEIGHT * alike[tag] / alike.total()
            row[self.number[tag]] = math.log(count / self.tags[tag])
        return row

    def chart(self, words):
        """The best log-probability of each symbol over each span, (n, n + 1, symbols)."""
        n, size = len(words), len(self.symbols)
        chart = torch.full((n, n + 1, size), -math.inf)
        for i, word in enumerate(words):
            chart[i, i + 1] = self.scores(word)
        for length in range(2, n + 1):
            for i in range(n - length + 1):
                left = chart[i, i + 1 : i + length].index_select(1, self.left)  # (splits, rules)
                right = chart[i + 1 : i + length, i + length].index_select(1, self.right)
                best = left.add_(right).amax(0).add_(self.log_p)  # (rules,)
                chart[i, i + length].scatter_reduce_(0, self.head, best, "amax")
        return chart

    def parse(self, words):
        """The likeliest tree in Penn brackets, and its log-probability; None, -inf where there is none."""
        chart = self.chart(words)
        final = chart[0, len(words)] + self.root
        best = int(final.argmax())
        if final[best] == -math.inf:
            return None, -math.inf
        (tree,) = self._trees(chart, words, 0, len(words), best)
        return _write_tree(tree), final[best].item()

    def _trees(self, chart, words, i, j, symbol):
        """The trees of the best derivation of a symbol over words i to j."""
        if j == i + 1:
            return restored(self.symbols[symbol], [words[i]])
        rules = (self.head == symbol).nonzero()[:, 0]
        left = chart[i, i + 1 : j][:, self.left[rules]]  # (splits, rules)
        ways = left + chart[i + 1 : j, j][:, self.right[rules]] + self.log_p[rules]
        split, rule = divmod(int(ways.argmax()), len(rules))
        sides = ((i, i + 1 + split, self.left[rules[rule]]), (i + 1 + split, j, self.right[rules[rule]]))
        children = [tree for a, b, child in sides for tree in self._trees(chart, words, a, b, int(child))]
        return restored(self.symbols[symbol], children)


def parsed(grammar, trees, label):
    """What the grammar makes of the words of trees, and how many it could not parse."""
    made, failed = [], 0
    for tree in tqdm(trees, desc=label, disable=None):
        words = _words_of(tree)
        found, _ = grammar.parse(words)
        failed += found is None
        made.append(found)
    return made, failed


def score(gold, made, common):
    """F1, with right-branching trees where there was none."""
    whole = [tree or right_branching(_words_of(right), *common) for tree, right in zip(made, gold, strict=True)]
    return rounded(bracket_f1(gold, whole)._asdict(), 2)


def go(options):
    torch.set_num_threads(options.threads)
    parts, published = parts_of(options.treebank), TREEBANKS[options.treebank]
    parts = {part: trees[: options.trees] for part, trees in parts.items()}
    dev = [tree for tree in parts["dev"] if len(_words_of(tree)) <= 40][:: max(1, len(parts["dev"]) // 300)]
    what = {"data": {"treebank": options.treebank, "licence": published.licence,
                     "sha256": {file.path: file.sha256 for file in published.files},
                     "sentences": {part: len(trees) for part, trees in parts.items()}}}
    with Record.begin(options.out, ("shares",), shares=options.shares, **what) as record:
        scores = {"measured_on": "test", "grammars on development": {}, "shares": {}, **record.scores}
        tried = scores["grammars on development"]
        for vertical, horizontal in GRAMMARS:
            name = f"vertical {vertical}, horizontal {horizontal}"
            if name not in tried:
                grammar = Grammar(parts["train"], vertical, horizontal)
                tried[name] = score(dev, parsed(grammar, dev, name)[0], _common_labels(parts["train"]))["f1"]
                record.write_scores(scores)
        best = GRAMMARS[max(range(len(GRAMMARS)), key=lambda i: list(tried.values())[i])]
        for share in options.shares:
            if str(share) in scores["shares"]:
                continue
            trees = parts["train"][: len(parts["train"]) * share // 100]
            grammar = Grammar(trees, *best)
            made, failed = parsed(grammar, parts["test"], f"{share} %")
            scores["shares"][str(share)] = {
                **score(parts["test"], made, _common_labels(trees)), "trees": len(trees), "without a parse": failed,
                "rules": len(grammar.rules), "symbols": len(grammar.symbols)}
            record.write_scores(scores)
    print(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treebank", default="treebank-craft", choices=list(TREEBANKS))
    parser.add_argument("--shares", type=int, nargs="+", default=[100, 50, 25], help="of the trees, in percent")
    parser.add_argument("--trees", type=int, help="no more trees of each part than these, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/18-pcfg"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
