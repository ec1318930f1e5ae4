"""How well a quarter of an hour on one thread of a CPU translates: the paper's recipe, then later changes.

    ANNOTATED_DATA=... python benchmarks/20_minutes.py [--rungs ...] [--seeds 1] [--out results/20-minutes]
    ANNOTATED_DATA=... python benchmarks/20_minutes.py --timed results/20-minutes --out results/20-minutes-adam ...

A rung keeps the changes of those before it. First each rung's update is timed, the rungs in turn, on an otherwise idle
machine: a quarter of an hour divided by the median is its number of updates. So the scores do not depend on what else
the machine does later, and the minutes are those of one moment; evaluating and translating come on top of them.
Then each rung is trained from raw text, a seed at a time, and the record written after each training; the same command
goes on with those that are missing.

A rung's highest rate is chosen by trials of a third of the time with a seed of their own, by the loss on the validation
set; so is the strength of the length penalty, by its BLEU. The test set is translated once a training.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from script import best_of, encode_pairs, run

from annotated.corpora import load_corpus
from annotated.cpu import CPURun
from annotated.data import Batches, Subwords, token_batches
from annotated.decoding import Translator
from annotated.evaluation import bleu, cross_entropy
from annotated.files import read_json
from annotated.optimization import learning_rate, optimizer
from annotated.quick import QUICK, QUICK_RECIPE, _line, by_muon
from annotated.records import Record, about_corpus
from annotated.training import Recipe, Run, average, train
from annotated.transformer import BASE, Config, Transformer

CORPUS, MINUTES, ALPHAS = "multi30k-en-de", 15, (0.6, 1.0, 1.4, 1.8)
FIRST = replace(BASE, N=3, d_model=256, d_ff=512, h=4, P_drop=0.1, vocab=QUICK.vocab)
PAPER = Recipe(source_tokens=1500, target_tokens=1500)
SLOW, HIGH, TRIAL = (1e-3, 2e-3, 4e-3), (4e-3, 8e-3, 16e-3), 99  # highest rates that are tried, and the trials' seed


@dataclass(frozen=True)
class Rung:
    """What a rung trains, and how; `warmup` is a share of the updates."""

    config: Config
    start: Callable = by_muon(CPURun)
    recipe: Recipe = QUICK_RECIPE
    warmup: float = QUICK_RECIPE.warmup / QUICK_RECIPE.steps
    averaged: int = QUICK_RECIPE.keep
    rates: tuple = HIGH

    def recipe_for(self, steps, highest, seed):
        """The recipe of so many updates, or a few less, whose rate rises to `highest`; the last update is saved as
        the others are, or the last two checkpoints would lie a few updates apart."""
        every = max(1, steps // 20)
        steps -= steps % every
        warmup = max(1, round(self.warmup * steps))
        rate = highest / learning_rate(warmup, self.config.d_model, warmup)
        return replace(self.recipe, steps=steps, warmup=warmup, rate=rate, seed=seed,
                       save_every=every, evaluate_every=every, keep=5)


def in_a_line(*given):
    """A run by Adam whose rate ends at 0, as Muon's does."""
    return CPURun(*given, schedule=_line)


def rungs():
    """The rungs by name, from below."""
    norm_first = replace(FIRST, norm="pre")
    narrow = replace(QUICK, N=FIRST.N, N_decoder=None)
    slow = {"recipe": PAPER, "rates": SLOW}
    paper = {**slow, "warmup": 0.2, "averaged": 5}
    return {
        "the paper's recipe": Rung(FIRST, Run, **paper),
        "an update without padding": Rung(FIRST, CPURun, **paper),
        "the norm first": Rung(norm_first, CPURun, **paper),
        "a rate that ends at 0": Rung(norm_first, in_a_line, **slow),
        "Muon": Rung(norm_first),
        "half the width": Rung(narrow),
        "a deep encoder, a shallow decoder": Rung(QUICK),
    }


def prepared(folder):
    """The vocabulary, the corpus, and its training pairs as identifiers."""
    corpus, path = load_corpus(CORPUS), folder / "subwords.model"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        Subwords.train((text for pair in corpus.train for text in pair), QUICK.vocab).save(path)
    vocabulary = Subwords.load(path)
    return corpus, vocabulary, *(encode_pairs(part, vocabulary) for part in (corpus.train, corpus.validation))


def begun(rung, seed):
    """A model of the rung, and what makes its batches from pairs."""
    torch.manual_seed(seed)
    budget = {"source_tokens": rung.recipe.source_tokens, "target_tokens": rung.recipe.target_tokens}
    return Transformer(rung.config), partial(Batches, **budget, seed=seed)


def seconds_an_update(every, pairs, rounds, updates=4):
    """The median of each rung's time for an update, and the times: the rungs take turns, the first one is left out."""
    runs, times = {}, {name: [] for name in every}
    for name, rung in every.items():
        model, batches = begun(rung, 0)
        started = rung.start(model, optimizer(model), None).resume(1)
        runs[name] = started, stream(batches(pairs)), rung.recipe_for(1000, 1e-4, 0)
    for turn in range(rounds + 1):
        for name, (started, coming, recipe) in runs.items():
            start = time.perf_counter()
            for _ in range(updates):
                float(started.advance(coming, recipe)["loss"])
            if turn:
                times[name].append((time.perf_counter() - start) / updates)
    return {name: {"seconds": round(statistics.median(found), 4), "all": [round(t, 4) for t in found]}
            for name, found in times.items()}


def stream(batches):
    for position, (source, target) in enumerate(batches(0, 0), 1):
        yield source, target, (0, position)


def loss_on(batches, model):
    """What is measured during a training."""
    return {"validation": round(cross_entropy(model, batches), 4)}


def trained(rung, folder, recipe, data):
    """The model after a training, its loss on the validation set, and the curve of that."""
    _, _, pairs, held_out = data
    Record.begin(folder, config=rung.config, recipe=recipe)  # its checkpoints are gone on with only so
    model, batches = begun(rung, recipe.seed)
    check = list(token_batches(held_out, 4000, 4000))
    log = train(model, recipe, batches(pairs), folder, partial(loss_on, check), rung.start)
    average(model, folder, rung.averaged)
    curve = [(line["step"], line["validation"]) for line in log if "validation" in line]
    return model, round(cross_entropy(model, check), 4), curve


def one(rung, folder, recipe, data):
    """Train, choose the penalty, score; what the record says of it."""
    corpus, vocabulary, *_ = data
    model, loss, curve = trained(rung, folder, recipe, data)
    translator = Translator(model, vocabulary)

    def score(pairs, alpha):
        return bleu(translator.translate([source for source, _ in pairs], 4, alpha), [target for _, target in pairs])

    chosen = {alpha: round(score(corpus.validation, alpha)[0], 2) for alpha in ALPHAS}
    alpha = max(chosen, key=chosen.get)
    found, signature = score(corpus.test, alpha)[:2]
    return {"loss": loss, "curve": curve, "alpha": alpha, "BLEU on validation": {str(a): b for a, b in chosen.items()},
            "BLEU": round(found, 2), "signature": signature}


def highest_rate(name, rung, steps, scores, record, data, options):
    """The best of the rung's rates by trials, those that are missing made now."""
    tried = scores["trials"].setdefault(name, {})
    for rate in rung.rates:
        if str(rate) not in tried:
            recipe = rung.recipe_for(max(1, steps // 3), rate, TRIAL)
            try:
                folder = options.work / options.out.name / f"{name}-{rate}"
                tried[str(rate)] = trained(rung, folder, recipe, data)[1]
            except FloatingPointError:
                tried[str(rate)] = None  # it diverged
            record.write_scores(scores)
    return best_of(tried)


def go(options):
    every, data = rungs(), prepared(options.work)
    what = {"recipe": {name: {"config": asdict(rung.config), "recipe": asdict(rung.recipe), "warmup": rung.warmup,
                              "averaged": rung.averaged, "rates": rung.rates} for name, rung in every.items()},
            "data": about_corpus(data[0])}
    loose = {"rungs": options.rungs, "seeds": options.seeds}
    with Record.begin(options.out, tuple(loose), steps=options.steps, **loose, **what) as record:
        scores = {"minutes": MINUTES, "trials": {}, "trainings": [], **record.scores}
        if "an update" not in scores:
            timed = options.timed and read_json(options.timed / "scores.json")["an update"]
            scores["an update"] = timed or seconds_an_update(every, data[2], options.rounds)
            record.write_scores(scores)
        for name in options.rungs or every:
            rung = every[name]
            steps = options.steps or round(60 * MINUTES / scores["an update"][name]["seconds"])
            rate = highest_rate(name, rung, steps, scores, record, data, options)
            for seed in options.seeds:
                if any((made["rung"], made["seed"]) == (name, seed) for made in scores["trainings"]):
                    continue
                folder = options.work / options.out.name / f"{name}-{seed}"
                recipe = rung.recipe_for(steps, rate, seed)
                found = one(rung, folder, recipe, data)
                about = {"rung": name, "seed": seed, "updates": recipe.steps, "rate": rate}
                scores["trainings"].append({**about, **found})
                record.write_scores(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a quarter of an hour on one thread makes, a change at a time.")
    parser.add_argument("--rungs", nargs="*", choices=rungs(), help="only these")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--rounds", type=int, default=15, help="of the timing")
    parser.add_argument("--timed", type=Path, help="a record of this program, whose times of updates are taken")
    parser.add_argument("--steps", type=int, help="for a trial: so many updates, whatever they take")
    parser.add_argument("--work", type=Path, default=Path(".cache/20-minutes"), help="for checkpoints")
    parser.add_argument("--out", type=Path, default=Path("results/20-minutes"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    raise SystemExit(run(go, options))
