"""Why deep stacks that normalise after each sub-layer learn late: how alike the encoder makes the words of a sentence.

    ANNOTATED_DATA=... python benchmarks/17_likeness.py [--updates 750] [--out results/17-likeness]

Trains stacks of several depths by the recipe of 17_variations.py (same pairs, vocabulary and batches),
the norm after and before each sub-layer; and, the norm after, two guesses at a cure: no dropout, and a quarter of the
rate. On the way, on held-out sentences:

- loss: cross-entropy in nats a token;
- exchanged: the same where each sentence is given the source of its neighbour, whose length is about equal.
  The difference is what the model makes of its source;
- likeness: the mean cosine between the encoder's outputs at different positions of a sentence.

Writes OUT/run.json and scores.json; a run of the same command goes on with the trainings that are missing.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from table_3 import CORPUS, small_recipe
from torch.nn import functional as F

from annotated.corpora import load_corpus
from annotated.data import Subwords, token_batches
from annotated.decoding import _evaluating
from annotated.evaluation import cross_entropy
from annotated.records import Record, about_corpus
from annotated.training import train
from annotated.transformer import Config, Transformer
from annotated.variations import TABLE_3, shrink

KINDS = {
    "norm after": {},
    "norm before": {"norm": "pre", "final_norm": True},
    "norm after, no dropout": {"P_drop": 0.0},
    "norm after, a quarter of the rate": {},
}
RATES = {"norm after, a quarter of the rate": 0.25}  # factors
STACKS = [(kind, N) for N in (1, 3, 4, 6) for kind in KINDS if N > 3 or kind in ("norm after", "norm before")]


def likeness(model, batches):
    """The mean cosine between the encoder's outputs at two positions of a sentence."""
    found = []
    with _evaluating(model):
        for source, _ in batches:
            unit = F.normalize(model.encode(source), dim=-1)  # (B, S, d_model)
            words = source != model.config.pad  # (B, S)
            pairs = words[:, :, None] & words[:, None] & ~torch.eye(source.shape[1], dtype=torch.bool)  # (B, S, S)
            found.append((unit @ unit.mT)[pairs])
    return torch.cat(found).mean().item()


def measure(batches, model):
    """What is measured on the way."""
    exchanged = [(source.roll(1, 0), target) for source, target in batches]
    values = {
        "loss": cross_entropy(model, batches), "exchanged": cross_entropy(model, exchanged),
        "likeness": likeness(model, batches),
    }
    return script.rounded(values, 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=750)
    parser.add_argument("--every", type=int, default=50, help="updates between two measurements")
    parser.add_argument("--pairs", type=int, default=10000)
    parser.add_argument("--held_out", type=int, default=300, help="validation sentences to measure on")
    parser.add_argument("--vocab", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/17-likeness"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    texts = corpus.train[: options.pairs]
    vocabulary = Subwords.train((text for pair in texts for text in pair), options.vocab)
    parts = texts, corpus.validation[: options.held_out]
    pairs, held_out = (script.encode_pairs(part, vocabulary) for part in parts)
    shared = argparse.Namespace(steps=options.updates, warmup=200, rate=0.5, tokens=1500)  # 17_variations' defaults
    recipe = replace(small_recipe(TABLE_3["base"], shared), evaluate_every=options.every)
    base = replace(shrink(Config(), 8, 2), vocab=len(vocabulary))
    batches = partial(token_batches, pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed)
    check = list(token_batches(held_out, recipe.source_tokens, recipe.target_tokens))
    data = about_corpus(corpus, **{"pairs": len(pairs), "held out": len(held_out)})
    what = {"config": base, "recipe": recipe, "kinds": KINDS, "rates": RATES, "data": data}
    with Record.begin(options.out, **what) as record:
        scores = record.scores
        for kind, N in STACKS:
            name = f"{kind}, {N}"
            if name in scores:
                continue
            torch.manual_seed(recipe.seed)
            model = Transformer(replace(base, N=N, **KINDS[kind]))
            first = {"step": 0, **measure(check, model)}
            slower = replace(recipe, rate=recipe.rate * RATES.get(kind, 1))
            log = train(model, slower, batches, evaluate=partial(measure, check))
            keep = ("step", "loss", "exchanged", "likeness")
            curve = [{field: line[field] for field in keep} for line in log if "likeness" in line]
            scores[name] = {"kind": kind, "N": N, "curve": [first, *curve]}
            print(f"{name:36}", *(f"{field} {curve[-1][field]:.2f}" for field in keep[1:]), flush=True)
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
