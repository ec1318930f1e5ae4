"""Constituency parsing: a Transformer trained on a treebank from words to brackets, scored on all held-out sentences.

    ANNOTATED_DATA=... python benchmarks/18_parsing.py [--threads 1] [--out results/18-parsing]
    python benchmarks/18_parsing.py --train FOLDER --dev FILE --test FILE --out FOLDER      a treebank of one's own

Reads words only, no parts of speech; writes one token a word, see chapter 18.
Training is cut off anywhere and goes on with the same command; more --steps continue a finished one.
Weights (last, or the mean of the last checkpoints) and beam are chosen on the development part;
then the test part is decoded once without constraint and once with, and scored:

    strict        what the model writes by itself; output that is no tree over the words counts as no bracket
    repaired      the same output, made a tree by `repair`
    constrained   the model may choose only among tokens that a tree can go on with

With --network recurrent the parser is the network of chapter 1, of as many weights as the Transformer of these sizes,
under the same constraint, without label smoothing. With --share the first trees of the training part only.
With --rates the highest rate is the one of most F1 on the development part, constrained, after a short training of
--trial updates with a seed of its own. Trainings with other seeds share these trials, and make those that are missing.
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from script import begin, best_of, check_unfinished, rounded, run, slug, weights
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from treebanks import parts_of

from annotated.cpu import CPURun
from annotated.data import token_batches
from annotated.decoding import beam_search, greedy, packed
from annotated.distributed import fast_run
from annotated.files import file_lock, sha256_of
from annotated.parsing import (
    TREEBANKS,
    WellFormed,
    _attempt,
    _common_labels,
    _encode_tree,
    _leaves,
    _matched,
    _parse_brackets,
    _spans,
    _vocabularies,
    _words_of,
    bracket_f1,
    delinearize,
    init_cross_attention_diagonal,
    linearize,
    parse_words,
    read_trees,
    repair,
    right_branching,
)
from annotated.quick import _product_type, by_muon
from annotated.records import Record
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import Recipe, Run, average, train
from annotated.transformer import TINY, Transformer


class RecurrentParser(RecurrentSeq2Seq):
    """The network of chapter 1, whose sources and targets have vocabularies of their own."""

    def __init__(self, config, words):
        super().__init__(config)
        self.source_embedding = nn.Embedding(words, config.d_model, config.pad)

    def encode(self, source):
        x = self.dropout(self.source_embedding(source))  # (B, S, d_model)
        lengths = (source != self.config.pad).sum(-1).cpu()
        packed_x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed_x)[0], True, total_length=source.shape[1])[0]


def recurrent(words, tokens, P_drop, wanted):
    """A recurrent parser whose number of weights is nearest to the one wanted."""
    def made(d):
        return RecurrentParser(RecurrentConfig(tokens, d, P_drop), words)

    def off(d):
        with torch.device("meta"):
            return abs(weights(made(d)) - wanted)

    return made(min(range(16, 1040, 16), key=off))


TRIAL = 99  # the trials' seed
LENGTHS = (10, 20, 30, 40, 60, 10_000)  # a sentence's words, at most, of each group in the record


def read(options):
    """The three parts, and what the record says of them."""
    given = {"train": options.train, "dev": options.dev, "test": options.test}
    if any(given.values()):
        if not all(given.values()):
            raise ValueError("--train, --dev and --test belong together: give a file or a folder for each")
        parts = {part: read_trees(path) for part, path in given.items()}
        about = {"treebank": "from files", "licence": "of whoever made it",
                 "sha256": {part: sha256_of("\n".join(trees).encode()) for part, trees in parts.items()}}
    else:
        parts, published = parts_of(options.treebank), TREEBANKS[options.treebank]
        about = {"treebank": options.treebank, "licence": published.licence,
                 "sha256": {file.path: file.sha256 for file in published.files}}
    parts["train"] = parts["train"][: len(parts["train"]) * options.share // 100]
    if options.trees:
        parts = {part: trees[: options.trees] for part, trees in parts.items()}
    about["sentences"] = {part: len(trees) for part, trees in parts.items()}
    return parts, about


def prepared(options):
    """What `read` gives, the vocabularies, and the encoded training trees."""
    parts, about = read(options)
    words, tokens = _vocabularies(parts["train"], options.least)
    pairs = [_encode_tree(tree, words, tokens) for tree in parts["train"]]
    return parts, about, words, tokens, [pair for pair in pairs if len(pair[0]) <= options.words]


def trees_from(tokens, sentences, way):
    """Trees, or None, from what the model wrote."""
    if way == "repaired":
        tokens = [repair(symbols, len(words)) for symbols, words in zip(tokens, sentences, strict=True)]
    return [_attempt(symbols, words) for symbols, words in zip(tokens, sentences, strict=True)]


def quick(model):
    """The model, or on a CPU a copy that searches faster."""
    return packed(model)


def search_of(beam):
    """Greedy search, or a beam; constrained output has a known length, and other output the usual penalty."""
    return greedy if beam == 1 else partial(beam_search, beam=beam)


def without_labels(trees):
    """The same trees, every constituent called X."""
    def unnamed(tree):
        tags, words = zip(*_leaves(tree), strict=True)
        return delinearize(["(X" if symbol[0] == "(" else symbol for symbol in linearize(tree)], words, tags)

    return [unnamed(tree) if tree else None for tree in trees]


def groups(gold, predicted):
    """F1 of sentences of similar length, and of each label."""
    lengths = []
    for shortest, longest in zip((0, *LENGTHS), LENGTHS):
        rows = [i for i, tree in enumerate(gold) if shortest < len(_words_of(tree)) <= longest]
        if rows:
            counts = [sum(column) for column in zip(*(_matched(gold[i], predicted[i]) for i in rows), strict=True)]
            lengths.append({"words": [shortest + 1, longest], "sentences": len(rows),
                            "f1": round(200 * counts[0] / max(1, counts[1] + counts[2]), 2)})
    return lengths


def by_label(gold, predicted):
    """Gold, predicted and right brackets of each label, commonest first; punctuation counted as a word here."""
    totals = {name: Counter() for name in ("gold", "predicted", "right")}
    for right, made in zip(gold, predicted, strict=True):
        found = [_spans(_parse_brackets(tree)[0]) if tree else Counter() for tree in (right, made)]
        for name, brackets in zip(totals, (*found, found[0] & found[1]), strict=True):
            for (label, _, _), count in brackets.items():
                totals[name][label] += count
    labels = [label for label, _ in totals["gold"].most_common(12)]
    return {label: {name: counts[label] for name, counts in totals.items()} for label in labels}


def baseline(parts):
    """Right-branching trees with the labels commonest in training, over the test part."""
    root, label = _common_labels(parts["train"])
    made = [right_branching(_words_of(tree), root, label) for tree in parts["test"]]
    return {"root": root, "label": label, "labelled": rounded(bracket_f1(parts["test"], made)._asdict(), 2),
            "unlabelled": rounded(bracket_f1(*map(without_labels, (parts["test"], made)))._asdict(), 2),
            "lengths": groups(parts["test"], made)}


def choose(model, work, trees, words, tokens, beams):
    """Weights, and then beam, that do best on the development part; leaves the model with those weights."""
    sentences, tried, best = [_words_of(tree) for tree in trees], [], None

    def try_out(averaged, beam):
        made = parse_words(WellFormed(quick(model), tokens), sentences, words, tokens, search_of(beam))
        f1 = bracket_f1(trees, trees_from(made, sentences, "constrained")).f1
        tried.append({"averaged": averaged, "beam": beam, "f1": round(f1, 2)})
        print(json.dumps(tried[-1]), file=sys.stderr)
        return f1, averaged, beam

    for averaged in sorted({average(model, work, k) for k in (1, 5, 10)}):
        average(model, work, averaged)
        best = max(best or (0, 1, 1), try_out(averaged, beams[0]))
    average(model, work, best[1])
    best = max([best, *(try_out(best[1], beam) for beam in beams[1:])])
    return {"tried_on_dev": tried, "dev_sentences": len(trees), "averaged": best[1], "beam": best[2]}


def score(model, beam, parts, words, tokens):
    """Decode the test part without and with constraint, and score it."""
    test, scores, examples = parts["test"], {}, []
    sentences, fast = [_words_of(tree) for tree in test], quick(model)
    began = time.monotonic()
    free = parse_words(fast, sentences, words, tokens, search_of(beam))
    bound = parse_words(WellFormed(fast, tokens), sentences, words, tokens, search_of(beam))
    seconds = time.monotonic() - began
    made = {}
    for way, output in (("strict", free), ("repaired", free), ("constrained", bound)):
        made[way] = trees_from(output, sentences, way)
        unlabelled = bracket_f1(*map(without_labels, (test, made[way]))).f1
        scores[way] = {**rounded(bracket_f1(test, made[way])._asdict(), 2), "unlabelled_f1": round(unlabelled, 2),
                       "no_tree": sum(tree is None for tree in made[way]), "lengths": groups(test, made[way])}
    exact = sum(a == b == c for a, b, c in (_matched(g, p) for g, p in zip(test, made["constrained"], strict=True)))
    scores["constrained"]["exact"] = round(100 * exact / len(test), 2)
    scores["by_label"] = by_label(test, made["constrained"])
    for i in range(0, len(test), max(1, len(test) // 24)):
        examples.append({"gold": test[i], "strict": made["strict"][i], "constrained": made["constrained"][i],
                         "f1": round(bracket_f1([test[i]], [made["constrained"][i]]).f1, 1)})
    return scores, round(seconds), examples


def made(options, words, tokens):
    """The network, not trained yet."""
    config = replace(TINY, N=options.N, N_decoder=options.N_decoder, d_model=options.d_model,
                     d_ff=options.d_ff, h=options.h, d_k=None, d_v=None, P_drop=options.P_drop, eps_ls=options.eps_ls,
                     norm="pre", final_norm=True, positions="learned", vocab=len(tokens), source_vocab=len(words))
    torch.manual_seed(options.seed)
    model = init_cross_attention_diagonal(Transformer(config))
    if options.network == "recurrent":
        torch.manual_seed(options.seed)
        model = recurrent(len(words), len(tokens), options.P_drop, weights(model))
    return model.to(options.device)


def recipe_of(options):
    """How the options would have it trained."""
    return Recipe(steps=options.steps, warmup=options.warmup, rate=options.rate, source_tokens=options.words,
                  target_tokens=options.words, seed=options.seed, evaluate_every=options.every,
                  save_every=options.save_every, keep=10, optimizer=options.optimizer)


def start_of(options):
    """What makes the run that trains."""
    start = partial(fast_run, precision="bfloat16") if torch.device(options.device).type == "cuda" else CPURun
    if options.network == "recurrent":
        start = Run
    return by_muon(start) if options.optimizer == "muon" else start


def short_of(options, rate):
    """The options of a trial."""
    warmup = max(1, options.warmup * options.trial // options.steps)
    return argparse.Namespace(**vars(options) | {"steps": options.trial, "warmup": warmup, "rate": rate, "seed": TRIAL})


def trials(options, data, trees, words, tokens, pairs):
    """F1 on the development part of each rate after a short training; those that are missing are made now.

    Trainings on the same data, for which a digest stands in the folder's name, share them.
    """
    sentences, tried = [_words_of(tree) for tree in trees], {}
    digest = sha256_of(json.dumps(data).encode())[:8]
    for rate in options.rates:
        short = short_of(options, rate)
        work = options.work.parent / slug("18-trials", digest, options.network, options.optimizer, rate)
        with file_lock(work.parent / f"{work.name}.lock"):  # another seed may be at it
            model, recipe = made(short, words, tokens), recipe_of(short)
            about = {"config": model.config, "recipe": recipe, "data": data, "training": len(pairs),
                     "dev_sentences": len(trees)}
            with Record.begin(work, **about) as record:
                if not record.scores:
                    batches = partial(token_batches, pairs, options.words, options.words, TRIAL)
                    try:
                        train(model, recipe, batches, work, None, start_of(short))
                        parsed = parse_words(WellFormed(quick(model), tokens), sentences, words, tokens)
                        f1 = bracket_f1(trees, trees_from(parsed, sentences, "constrained")).f1
                    except FloatingPointError:
                        f1 = 0.0  # it diverged
                    record.write_scores({"f1": round(f1, 2)})
            tried[str(rate)] = record.scores["f1"]
        print(f"rate {rate}: F1 {tried[str(rate)]} after {options.trial} updates", file=sys.stderr)
    return tried


def go(options):
    """Train, or go on, then choose on the development part and score the test part."""
    torch.set_num_threads(options.threads)
    if not options.only_trials:
        check_unfinished(options.out, options.work)
    parts, about, words, tokens, pairs = prepared(options)
    dev = parts["dev"][:: max(1, len(parts["dev"]) // options.dev_sentences)]
    if options.only_trials:
        model, recipe = made(options, words, tokens), asdict(recipe_of(short_of(options, options.rates[0])))
        what = {"config": model.config, "recipe": recipe | {"rate": options.rates}, "data": about,
                "network": options.network, "parameters": weights(model)}
        with Record.begin(options.out, ("rate",), **what) as record:
            found = record.scores.get("trials", {}).get("f1", {}) | trials(options, about, dev, words, tokens, pairs)
            tested = {"updates": options.trial, "seed": TRIAL, "f1": found}
            record.write_scores({"measured_on": "dev", "sentences": len(dev), "trials": tested})
        return
    tried = trials(options, about, dev, words, tokens, pairs) if options.rates else {}
    tested = {"trials": {"updates": options.trial, "seed": TRIAL, "f1": tried} if tried else {}}
    if tried:
        options.rate = best_of({rate: -f1 for rate, f1 in tried.items()})
    model, recipe = made(options, words, tokens), recipe_of(options)
    some = parts["dev"][:: max(1, len(parts["dev"]) // 150)]
    held_out = [_words_of(tree) for tree in some]
    batches = partial(token_batches, pairs, options.words, options.words, options.seed)

    def evaluate(model):
        fast = quick(model)
        free = parse_words(fast, held_out, words, tokens)
        bound = parse_words(WellFormed(fast, tokens), held_out, words, tokens)
        strict = trees_from(free, held_out, "strict")
        return {"strict_f1": round(bracket_f1(some, strict).f1, 2), "no_tree": sum(tree is None for tree in strict),
                "constrained_f1": round(bracket_f1(some, trees_from(bound, held_out, "constrained")).f1, 2)}

    what = {
        "seed": options.seed, "config": model.config, "recipe": recipe, "data": about, "least": options.least,
        "network": options.network, "share": options.share, "parameters": weights(model),
        "vocabulary": {"words": len(words), "tokens": len(tokens)},
        "training": {"sentences": len(pairs), "words": sum(len(source) - 1 for source, _ in pairs)},
    }
    free = ("steps",) if options.optimizer == "adam" else ()  # a rate that falls to 0 needs the number of steps
    with begin(options.out, options.work, free, **what) as record:
        log = train(model, recipe, batches, options.work, evaluate, start_of(options))
        chosen = choose(model, options.work, dev, words, tokens, options.beams)
        found, seconds, examples = score(model, chosen["beam"], parts, words, tokens)
        evaluations = [line for line in log if "constrained_f1" in line]
        scores = {"measured_on": "test", "sentences": len(parts["test"]), "right_branching": baseline(parts), **found,
                  **tested, "chosen": chosen, "muon_products": str(_product_type(torch.zeros(1))),
                  "training_seconds": evaluations[-1]["seconds"], "decoding_seconds": seconds,
                  "words_seen": sum(line["tokens"] for line in log if "tokens" in line)}
        record.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in log))
        record.write("examples.json", json.dumps(examples, indent=1, ensure_ascii=False) + "\n")
        record.write_scores(scores)
    print(json.dumps({way: scores[way]["f1"] for way in ("strict", "repaired", "constrained")}
                     | {"right_branching": scores["right_branching"]["labelled"]["f1"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--treebank", default="treebank-craft", choices=list(TREEBANKS))
    for part in ("train", "dev", "test"):
        parser.add_argument(f"--{part}", type=Path, help="a file or folder of bracketed trees, instead of --treebank")
    parser.add_argument("--network", choices=("Transformer", "recurrent"), default="Transformer")
    parser.add_argument("--share", type=int, default=100, help="of the training trees, in percent")
    parser.add_argument("--N", type=int, default=2, help="layers of each stack (default 2; 4 in the paper)")
    parser.add_argument("--N_decoder", type=int, help="layers of the decoder, if others than --N")
    parser.add_argument("--d_model", type=int, default=128, help="(default 128; 1024 in the paper)")
    parser.add_argument("--d_ff", type=int, default=512)
    parser.add_argument("--h", type=int, default=4)
    parser.add_argument("--P_drop", type=float, default=0.05)
    parser.add_argument("--eps_ls", type=float, default=0.1, help="label smoothing of a Transformer")
    parser.add_argument("--least", type=int, default=3, help="how often a word occurs to have a place of its own")
    parser.add_argument("--steps", type=int, default=2400, help="updates")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.3, help="a factor on Eq. 3")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="try these first, instead of --rate")
    parser.add_argument("--trial", type=int, default=800, help="updates of such a try")
    parser.add_argument("--only_trials", action="store_true", help="what each of --rates does, and no training then")
    parser.add_argument("--optimizer", choices=("adam", "muon"), default="adam", help="muon: its rate falls to 0")
    parser.add_argument("--words", type=int, default=1200, help="of a batch, at most, padding counted")
    parser.add_argument("--every", type=int, default=200, help="updates between evaluations")
    parser.add_argument("--save_every", type=int, default=50, help="updates between checkpoints, of which 10 are kept")
    parser.add_argument("--beams", type=int, nargs="+", default=[1], help="tried on the development part; 1 is greedy")
    parser.add_argument("--dev_sentences", type=int, default=700, help="by which weights and beam are chosen")
    parser.add_argument("--trees", type=int, help="no more trees of each part than these, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, default=Path(".cache/18-parsing"), help="for checkpoints")
    parser.add_argument("--out", type=Path, default=Path("results/18-parsing"))
    options = parser.parse_args()
    if options.only_trials and not options.rates:
        parser.error("--only_trials needs --rates")
    if options.optimizer == "muon" and torch.device(options.device).type == "cuda":
        parser.error("--optimizer muon is for --device cpu")
    return run(go, options)


if __name__ == "__main__":
    sys.exit(main())
