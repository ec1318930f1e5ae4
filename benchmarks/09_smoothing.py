"""What label smoothing does to perplexity, accuracy and BLEU: Multi30k English-German, several seeds.

    ANNOTATED_DATA=... python benchmarks/09_smoothing.py [--threads 1] [--out results/09-smoothing]

Trains one model for each value of eps_ls and each seed, from scratch, all by one recipe and with one vocabulary.
Runs of the same seed begin with the same weights and see the same batches and the same dropout.
Everything is measured on the validation set, by the last weights, without smoothing.
The record is written after every run; the same command goes on with the runs that are missing.

The factor on the rate was chosen among 0.4, 0.8 and 1.6 by trials of 500 updates (--eps 0.05 --seeds 99 --steps 500)
and their perplexity on the validation set, so that neither side of the comparison had a part in the choice.
The number of updates is what one core makes in about 8 minutes; the warm-up was set and not tuned.
"""

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from script import encode_pairs, rounded, run, weights

from annotated.corpora import load_corpus
from annotated.data import Subwords, token_batches
from annotated.decoding import Translator, _evaluating
from annotated.evaluation import bleu
from annotated.files import sha256_of
from annotated.records import Record, about_corpus
from annotated.training import Recipe, train
from annotated.transformer import TINY, Transformer

CORPUS = "multi30k-en-de"
BUDGET = 1500  # source tokens of a batch, and target tokens


def teacher_forced(model, batches):
    """How a model that is given the right tokens so far predicts the next one; a mean over the target tokens.

    Returns:
        cross_entropy (nats, without smoothing), its exponential, the share of right predictions,
        and the entropy of the predictions (nats), which is how unsure the model is.
    """
    total, tokens = torch.zeros(3, dtype=torch.float64), 0
    with _evaluating(model):
        for source, target in batches:
            log_p = model(source, target[:, :-1]).log_softmax(-1)  # (B, T, vocab)
            wanted = target[:, 1:]
            real = wanted != model.config.pad
            lost = -log_p.gather(-1, wanted[..., None])[..., 0]
            right = (log_p.argmax(-1) == wanted).float()
            unsure = -(log_p.exp() * log_p).sum(-1)
            total += torch.stack([values[real].double().sum() for values in (lost, right, unsure)])
            tokens += real.sum().item()
    loss, accuracy, entropy = (total / tokens).tolist()
    return {"cross_entropy": loss, "perplexity": math.exp(loss), "accuracy": accuracy, "entropy": entropy}


def one_run(config, recipe, pairs, vocabulary, corpus):
    """Train one model and measure it."""
    torch.manual_seed(recipe.seed)
    model, began = Transformer(config), time.monotonic()
    batches = partial(token_batches, pairs["train"], BUDGET, BUDGET, recipe.seed)
    held_out = list(token_batches(pairs["validation"], BUDGET, BUDGET))
    # Four decimals are more than the spread between seeds leaves meaning in.
    log = train(model, recipe, batches, evaluate=lambda m: rounded(teacher_forced(m, held_out), 4))
    trained = time.monotonic() - began
    sources, references = (list(side) for side in zip(*corpus.validation, strict=True))
    translator, scores = Translator(model, vocabulary), {}
    for beam in (1, 4):
        score, signature = bleu(translator.translate(sources, beam), references)
        scores[f"bleu_beam_{beam}"] = round(score, 2)
    last = [line for line in log if "accuracy" in line]
    measured = {name: last[-1][name] for name in ("cross_entropy", "perplexity", "accuracy", "entropy")}
    training_loss = sum(line["loss"] for line in log if "loss" in line and line["step"] > 0.9 * recipe.steps)
    about = {"eps_ls": config.eps_ls, "seed": recipe.seed, **measured, **scores,
             "training_loss": round(training_loss / (recipe.steps - int(0.9 * recipe.steps)), 4),
             "seconds": round(trained)}
    return about, signature, [{"eps_ls": config.eps_ls, "seed": recipe.seed, **line} for line in last]


def go(options):
    """Make the runs that the record lacks."""
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    corpus = replace(corpus, train=corpus.train[: options.pairs], validation=corpus.validation[: options.pairs])
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), options.vocab)
    pairs = {part: encode_pairs(getattr(corpus, part), vocabulary) for part in ("train", "validation")}
    config = replace(TINY, vocab=len(vocabulary))
    recipe = Recipe(steps=options.steps, warmup=options.warmup, rate=options.rate, source_tokens=BUDGET,
                    target_tokens=BUDGET, evaluate_every=max(1, options.steps // 10), seed=options.seeds[0])
    lengths = {part: len(rows) for part, rows in pairs.items()}
    what = {
        "config": {k: v for k, v in asdict(config).items() if k != "eps_ls"}, "recipe": asdict(recipe),
        "subwords_sha256": sha256_of(vocabulary.model), "parameters": weights(Transformer(config)),
        "data": about_corpus(corpus, pairs=lengths),
    }
    with Record.begin(options.out, free=("seed", "parameters"), **what) as record:
        scores = record.scores or {"measured_on": "validation", "runs": []}
        log = options.out / "log.jsonl"
        done = {(run["eps_ls"], run["seed"]) for run in scores["runs"]}
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        lines = [line for line in lines if (line["eps_ls"], line["seed"]) in done]
        for seed in options.seeds:
            for eps in options.eps:
                if (eps, seed) in done:
                    continue
                print(f"eps_ls {eps}, seed {seed}", file=sys.stderr)
                made, scores["signature"], new = one_run(
                    replace(config, eps_ls=eps), replace(recipe, seed=seed), pairs, vocabulary, corpus)
                scores["runs"].append(made)
                lines += new
                record.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
                record.write_scores(scores)
                print(json.dumps(made))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.0, 0.1], help="values of eps_ls (default 0 0.1)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=2000, help="updates of a run")
    parser.add_argument("--warmup", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.8, help="a factor on Eq. 3")
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--pairs", type=int, help="no more sentence pairs than these, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/09-smoothing"))
    options = parser.parse_args()
    return run(go, options)


if __name__ == "__main__":
    sys.exit(main())
