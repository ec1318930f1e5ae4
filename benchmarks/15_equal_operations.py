"""A Transformer and the recurrent network of chapter 1 on real text, trained with equally many operations.

    ANNOTATED_DATA=... python benchmarks/15_equal_operations.py [--seeds 0 1 2] [--out results/15-equal-operations]

Multi30k English-German. Counted are the multiply-adds of all matrix products on tokens that are not padding, so that
the comparison does not depend on the machine; seconds are recorded beside them. The Transformer makes --steps
updates, the recurrent network as many as the same operations pay for. Its width is the one whose number of weights is
nearest to the Transformer's. Both use Adam and the schedule of Eq. 3, without label smoothing, each at the factor on
the rate that trials of a third of its updates preferred, by perplexity on the validation set. The factor is doubled
until a trial is worse than the one before it. Everything is measured there, by the last weights.

The record is written after every run; the same command goes on with the runs that are missing. Two processes may
share the work, a network each (--networks).
"""

import argparse
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from equal import operations, recurrent_weights, updates_for
from script import encode_pairs, run, weights

from annotated.corpora import load_corpus
from annotated.data import Subwords, token_batches
from annotated.decoding import Translator
from annotated.evaluation import bleu, perplexity
from annotated.records import Record, about_corpus
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import Recipe, train
from annotated.transformer import TINY, Transformer

CORPUS, BUDGET, WARMUP = "multi30k-en-de", 1500, 400
RATES = {"Transformer": 0.5, "RecurrentSeq2Seq": 0.5}  # the smallest factor to try


def build(name, vocab, seed):
    """A network before training."""
    torch.manual_seed(seed)
    transformer = Transformer(replace(TINY, vocab=vocab, eps_ls=0.0))
    if name == "Transformer":
        return transformer
    wanted = weights(transformer)
    off = lambda d: abs(recurrent_weights(vocab, d) - wanted)  # noqa: E731
    torch.manual_seed(seed)
    return RecurrentSeq2Seq(RecurrentConfig(vocab, min(range(32, 512, 16), key=off)))


def trained(name, recipe, texts, folder=None):
    """A trained network and its log."""
    model = build(name, texts["vocab"], recipe.seed)
    batches = partial(token_batches, texts["train"], BUDGET, BUDGET, recipe.seed)
    measure = lambda m: {"perplexity": round(perplexity(m, texts["held_out"]), 4)}  # noqa: E731
    return model, train(model, recipe, batches, folder, measure)


@contextmanager
def scores_of(record):
    """The scores as they are by now, to be added to: another process may have done so."""
    with record.change("scores.json") as scores:
        for name, empty in (("measured_on", "validation"), ("trials", {}), ("runs", [])):
            scores.setdefault(name, empty)
        yield scores
        scores["runs"].sort(key=lambda made: (made["name"] != "Transformer", made["seed"]))


def choose_rate(name, steps, texts, record):
    """The factor of the lowest perplexity, doubled until the perplexity rises; each trial is recorded."""
    rate, tried = RATES[name], record.scores.get("trials", {}).get(name, {})
    while True:
        if str(rate) not in tried:
            short = Recipe(steps=max(1, steps // 3), warmup=WARMUP, rate=rate, seed=99)
            try:
                tried[str(rate)] = trained(name, short, texts)[1][-1]["perplexity"]
            except FloatingPointError:
                tried[str(rate)] = None  # it diverged
            with scores_of(record) as scores:
                scores["trials"][name] = tried
        best = min((r for r in tried if tried[r]), key=tried.get, default=None)
        if best != str(rate):
            break
        rate *= 2
    if best is None:
        raise ValueError(f"{name} diverges at a factor of {rate} on the rate: begin with a smaller one")
    return float(best)


def go(options):
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    corpus = replace(corpus, train=corpus.train[: options.pairs], validation=corpus.validation[: options.pairs])
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), options.vocab)
    pairs, held_out = (encode_pairs(part, vocabulary) for part in (corpus.train, corpus.validation))
    texts = {"vocab": len(vocabulary), "train": pairs, "held_out": list(token_batches(held_out, BUDGET, BUDGET))}
    configs = {name: build(name, len(vocabulary), 0).config for name in RATES}
    batches = partial(token_batches, pairs, BUDGET, BUDGET, 0)
    epoch = sum(1 for _ in batches(0, 0))
    total = operations(configs["Transformer"], pairs) / epoch * options.steps
    steps = {name: updates_for(total, config, pairs, batches) for name, config in configs.items()}
    what = {
        "operations": total, "updates": steps,
        "config": {name: asdict(config) for name, config in configs.items()},
        "parameters": {name: weights(build(name, len(vocabulary), 0)) for name in RATES},
        "data": about_corpus(corpus, pairs=len(pairs)),
    }
    free = "seed", "networks"  # two processes may share the work
    with Record.begin(options.out, free, seed=options.seeds, networks=options.networks, **what) as record:
        make_runs(options, record, steps, corpus, vocabulary, texts)


def make_runs(options, record, steps, corpus, vocabulary, texts):
    """The runs that the record lacks."""
    sources, references = (list(side) for side in zip(*corpus.validation, strict=True))
    for name in options.networks:
        rate = choose_rate(name, steps[name], texts, record)
        for seed in options.seeds:
            if any((made["name"], made["seed"]) == (name, seed) for made in record.scores.get("runs", [])):
                continue
            recipe = Recipe(steps=steps[name], warmup=WARMUP, rate=rate, seed=seed,
                            evaluate_every=max(1, steps[name] // 20))
            began = time.monotonic()
            model, log = trained(name, recipe, texts)
            seconds = round(time.monotonic() - began)
            outputs = Translator(model.eval(), vocabulary).translate(sources, 4)
            score, signature = bleu(outputs, references)
            curve = [[line["step"], line["perplexity"]] for line in log if "perplexity" in line]
            made = {
                "name": name, "seed": seed, "rate": rate, "updates": steps[name], "bleu": round(score, 2),
                "perplexity": curve[-1][1], "seconds": seconds, "curve": curve,
                "examples": list(islice(zip(sources, references, outputs, strict=True), 40, 46)),
            }
            with scores_of(record) as scores:
                scores["signature"] = signature
                scores["runs"].append(made)
            print(f"{name:18} seed {seed}: perplexity {curve[-1][1]:.2f}, BLEU {score:.2f}, {seconds} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--steps", type=int, default=2000, help="updates of the Transformer")
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--pairs", type=int, help="no more sentence pairs than these, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/15-equal-operations"))
    options = parser.parse_args()
    return run(go, options)


if __name__ == "__main__":
    sys.exit(main())
