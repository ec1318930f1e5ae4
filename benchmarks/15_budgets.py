"""Transformers, the recurrent network of chapter 1 and a convolutional translator, trained with equal operations.

    ANNOTATED_DATA=... python benchmarks/15_budgets.py [--networks ...] [--budgets 1 4] [--seeds 0 1 2]

Multi30k English-German. Counted are the multiply-adds of all matrix products on tokens that are not padding, so that
the comparison does not depend on the machine. A budget of 1 is what --steps updates of the Transformer take; every
network makes as many as the budget pays for. The others' widths are those whose numbers of weights are nearest to the
Transformer's. All use Adam and the schedule of Eq. 3 with a tenth of the updates to warm up, without label smoothing.

A network's highest rate is the best by perplexity on the validation set after trials of a third of the updates of a
budget of 1: doubled until a trial is worse, then the steps between the best and its neighbours are tried, too. At
larger budgets, where text is read often, the first seed is trained with each of two dropouts; the better one by
perplexity on the validation set is kept for the others. The test set is translated with a beam of 4 by the last
weights.

The record is written after every training; the same command goes on with those that are missing. Several processes may
share the work, a network each (--networks).
"""

import argparse
import math
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from convolutional import ConvolutionalConfig, ConvolutionalSeq2Seq
from equal import operations, updates_for
from script import encode_pairs, run, weights

from annotated.corpora import load_corpus
from annotated.cpu import CPURun
from annotated.data import Subwords, token_batches
from annotated.decoding import Translator
from annotated.evaluation import bleu, perplexity
from annotated.optimization import learning_rate
from annotated.records import Record, about_corpus
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import Recipe, Run, train
from annotated.transformer import TINY, Transformer

CORPUS, TOKENS, TRIAL = "multi30k-en-de", 1500, 99  # the last is the trials' seed
NETWORKS = ("Transformer", "Transformer, norm first", "recurrent", "convolutional")
FIRST, BETWEEN = 1e-3, math.sqrt(2)  # the rate that is tried first; the finer step
DROPOUTS = 0.1, 0.3


def config_of(name, vocab, d=None):
    """The configuration of a network; that of a rival of so many features."""
    if name == "recurrent":
        return RecurrentConfig(vocab, d)
    if name == "convolutional":
        return ConvolutionalConfig(vocab, d)
    return replace(TINY, vocab=vocab, eps_ls=0.0, norm="pre" if "first" in name else "post")


def model_of(config):
    """A network before training."""
    kinds = {RecurrentConfig: RecurrentSeq2Seq, ConvolutionalConfig: ConvolutionalSeq2Seq}
    return kinds.get(type(config), Transformer)(config)


def size(config):
    """How many weights a network has."""
    with torch.device("meta"):
        return weights(model_of(config))


def nearest(name, vocab):
    """The configuration whose number of weights is nearest to the Transformer's."""
    if name.startswith("Transformer"):
        return config_of(name, vocab)
    wanted = size(config_of("Transformer", vocab))
    return min((config_of(name, vocab, d) for d in range(32, 512, 8)), key=lambda c: abs(size(c) - wanted))


def recipe_for(config, steps, highest, seed):
    """The rate rises to `highest` in a tenth of the updates."""
    warmup = max(1, steps // 10)
    rate = highest / learning_rate(warmup, config.d_model, warmup)
    return Recipe(steps=steps, warmup=warmup, rate=rate, seed=seed, evaluate_every=max(1, steps // 20),
                  save_every=max(1, steps // 20), keep=1)


def trained(config, recipe, texts, folder=None):
    """A trained network and its log."""
    torch.manual_seed(recipe.seed)
    if folder is not None:  # its checkpoints are gone on with only so
        Record.begin(folder, config=config, recipe=recipe, pairs=len(texts["train"]))
    model = model_of(config)
    batches = partial(token_batches, texts["train"], TOKENS, TOKENS, recipe.seed)
    measure = lambda m: {"perplexity": round(perplexity(m, texts["validation"]), 4)}  # noqa: E731
    start = CPURun if isinstance(model, Transformer) else Run
    return model, train(model, recipe, batches, folder, measure, start)


@contextmanager
def scores_of(record):
    """The scores as they are by now, to be added to: another process may have done so."""
    with record.change("scores.json") as scores:
        for name, empty in (("trials", {}), ("runs", [])):
            scores.setdefault(name, empty)
        yield scores
        scores["runs"].sort(key=lambda made: (made["budget"], NETWORKS.index(made["network"]), made["seed"]))


def highest_rate(name, config, steps, texts, record):
    """The best rate by trials, each of which is recorded."""
    tried = record.scores.get("trials", {}).get(name, {})

    def loss(rate):
        key = f"{rate:.6f}"
        if key not in tried:
            recipe = recipe_for(config, max(1, steps // 3), rate, TRIAL)
            try:
                tried[key] = trained(config, recipe, texts)[1][-1]["perplexity"]
            except FloatingPointError:
                tried[key] = None  # it diverged
            with scores_of(record) as scores:
                scores["trials"][name] = tried
        return tried[key] or math.inf

    best, rose = FIRST, False
    while loss(2 * best) < loss(best):
        best, rose = 2 * best, True
    while not rose and loss(best / 2) < loss(best):
        best /= 2
    return min((best / BETWEEN, best, best * BETWEEN), key=loss)


def measured(model, log, corpus, vocabulary):
    """What a training has come to, on the validation and on the test set."""
    translator, found = Translator(model.eval(), vocabulary), {}
    for part in ("validation", "test"):
        sources, references = (list(side) for side in zip(*getattr(corpus, part), strict=True))
        score, found["signature"] = bleu(translator.translate(sources, 4), references)
        found[f"BLEU, {part}"] = round(score, 2)
    curve = [[line["step"], line["perplexity"]] for line in log if "perplexity" in line]
    losses = [line["loss"] for line in log if "loss" in line][-100:]
    return {"perplexity": curve[-1][1], "training_loss": round(sum(losses) / len(losses), 4), **found, "curve": curve}


def make_runs(name, budget, config, steps, rate, corpus, vocabulary, texts, record, options):
    """The trainings of a network at a budget that the record lacks."""
    def made():
        return [one for one in record.scores.get("runs", []) if (one["network"], one["budget"]) == (name, budget)]

    first = min([*options.seeds, *(one["seed"] for one in made())])
    for seed in sorted(options.seeds):
        firsts = [one for one in made() if one["seed"] == first]
        dropouts = DROPOUTS[: 1 if budget == 1 else 2]
        if seed != first:
            dropouts = [min(firsts, key=lambda one: one["perplexity"])["P_drop"]]
        for dropout in dropouts:
            if any((one["seed"], one["P_drop"]) == (seed, dropout) for one in made()):
                continue
            began, folder = time.monotonic(), options.work / f"{name}-{budget}-{seed}-{dropout}"
            config = replace(config, P_drop=dropout)
            model, log = trained(config, recipe_for(config, steps, rate, seed), texts, folder)
            about = {"network": name, "budget": budget, "seed": seed, "P_drop": dropout, "rate": rate, "updates": steps}
            scored = measured(model, log, corpus, vocabulary)
            with scores_of(record) as scores:
                scores["runs"].append({**about, **scored, "seconds": round(time.monotonic() - began)})
            shutil.rmtree(folder)  # last: a stopped scoring must not cost the training
            print(f"{name}, budget {budget}, dropout {dropout}, seed {seed}: perplexity {scored['perplexity']:.2f}, "
                  f"BLEU {scored['BLEU, test']:.2f}", flush=True)


def go(options):
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    parts = "train", "validation", "test"
    corpus = replace(corpus, **{part: getattr(corpus, part)[: options.pairs] for part in parts})
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), options.vocab)
    pairs, held_out = (encode_pairs(part, vocabulary) for part in (corpus.train, corpus.validation))
    texts = {"train": pairs, "validation": list(token_batches(held_out, TOKENS, TOKENS))}
    configs = {name: nearest(name, len(vocabulary)) for name in NETWORKS}
    batches = partial(token_batches, pairs, TOKENS, TOKENS, 0)
    unit = operations(configs["Transformer"], pairs) / sum(1 for _ in batches(0, 0)) * options.steps
    steps = {name: updates_for(unit, config, pairs, batches) for name, config in configs.items()}
    what = {
        "operations": unit, "updates": steps, "config": {name: asdict(config) for name, config in configs.items()},
        "parameters": {name: size(config) for name, config in configs.items()},
        "dropouts": DROPOUTS, "data": about_corpus(corpus, pairs=len(pairs)),
    }
    free = "seed", "networks", "budgets"  # several processes may share the work
    asked = {"seed": options.seeds, "networks": options.networks, "budgets": options.budgets}
    with Record.begin(options.out, free, **asked, **what) as record:
        for budget in options.budgets:
            for name, config in configs.items():
                if name in options.networks:
                    rate = highest_rate(name, config, steps[name], texts, record)
                    given = corpus, vocabulary, texts, record, options
                    make_runs(name, budget, config, budget * steps[name], rate, *given)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--budgets", type=int, nargs="+", default=[1, 4], help="times the operations of --steps")
    parser.add_argument("--steps", type=int, default=2000, help="of the Transformer, for a budget of 1")
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--pairs", type=int, help="no more of each part than these, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path(".cache/15-budgets"), help="for checkpoints")
    parser.add_argument("--out", type=Path, default=Path("results/15-budgets"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
