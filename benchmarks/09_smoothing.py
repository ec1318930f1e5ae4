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
import hashlib
import json
import math
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from annotated.corpora import load_corpus
from annotated.data import Subwords, replacing, token_batches
from annotated.decoding import Translator, evaluating
from annotated.evaluation import bleu
from annotated.training import Recipe, provenance, train
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
    with evaluating(model):
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


def rounded(numbers):
    """Four decimals, which is more than the spread between seeds leaves meaning in."""
    return {name: round(value, 4) for name, value in numbers.items()}


def one_run(config, recipe, pairs, vocabulary, corpus):
    """Train one model and measure it."""
    torch.manual_seed(recipe.seed)
    model, began = Transformer(config), time.monotonic()
    batches = partial(token_batches, pairs["train"], BUDGET, BUDGET, recipe.seed)
    held_out = list(token_batches(pairs["validation"], BUDGET, BUDGET))
    log = train(model, recipe, batches, evaluate=lambda m: rounded(teacher_forced(m, held_out)))
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


def write(path, text):
    """Write a file whole or not at all."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def begin(out, run):
    """Write run.json, or add to the one of a record begun earlier, which must be of the same recipe."""
    path = out / "run.json"
    if path.exists():
        begun = json.loads(path.read_text())
        run["recipe"]["seed"] = begun["recipe"]["seed"]  # the first run's; more seeds may follow
        for name in ("config", "recipe", "subwords_sha256", "data"):
            if begun[name] != json.loads(json.dumps(run[name])):
                raise ValueError(f"{out} was begun with another {name}: choose another --out")
        run = begun | {"continued": [*begun.get("continued", []), {k: run[k] for k in ("command", "commit", "date")}]}
    write(path, json.dumps(run, indent=1) + "\n")


def go(options):
    """Make the runs that the record lacks."""
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    corpus = replace(corpus, train=corpus.train[: options.pairs], validation=corpus.validation[: options.pairs])
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), options.vocab)
    pairs = {part: [(vocabulary.encode(s), vocabulary.encode(t)) for s, t in getattr(corpus, part)]
             for part in ("train", "validation")}
    config = replace(TINY, vocab=len(vocabulary))
    recipe = Recipe(steps=options.steps, warmup=options.warmup, rate=options.rate, source_tokens=BUDGET,
                    target_tokens=BUDGET, evaluate_every=max(1, options.steps // 10), seed=options.seeds[0])
    begin(options.out, provenance(
        config={k: v for k, v in asdict(config).items() if k != "eps_ls"}, recipe=asdict(recipe),
        subwords_sha256=hashlib.sha256(vocabulary.model).hexdigest(), parameters=parameters(config),
        data={"corpus": corpus.name, "licence": corpus.licence, "sha256": corpus.provenance,
              "pairs": {part: len(rows) for part, rows in pairs.items()}},
    ))
    path = options.out / "scores.json"
    record = json.loads(path.read_text()) if path.exists() else {"measured_on": "validation", "runs": []}
    log = options.out / "log.jsonl"
    done = {(run["eps_ls"], run["seed"]) for run in record["runs"]}
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    lines = [line for line in lines if (line["eps_ls"], line["seed"]) in done]
    for seed in options.seeds:
        for eps in options.eps:
            if (eps, seed) in done:
                continue
            print(f"eps_ls {eps}, seed {seed}", file=sys.stderr)
            made, record["signature"], new = one_run(
                replace(config, eps_ls=eps), replace(recipe, seed=seed), pairs, vocabulary, corpus)
            record["runs"].append(made)
            lines += new
            write(log, "".join(json.dumps(line) + "\n" for line in lines))
            write(path, json.dumps(record, indent=1) + "\n")
            print(json.dumps(made))


def parameters(config):
    """How many weights a model has."""
    return sum(p.numel() for p in Transformer(config).parameters())


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
    try:
        go(options)
    except (ValueError, OSError, FloatingPointError) as error:
        print(f"09_smoothing: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("09_smoothing: stopped; the same command goes on with the runs that are missing", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
