"""How much of Multi30k's batches is padding: sorted by length under token budgets, and shuffled?

    python benchmarks/08_padding.py [--vocab 8000] [--tokens 4096] [--seed 0] [--out results/08-padding]

Needs Multi30k. Encodes the training pairs with subwords of their own text and counts the places of every batch of an
epoch. The naive loader shuffles the pairs and takes equally many for each batch, so many that there are as many
batches; no budget bounds it. Only numbers are written, no text: run.json and scores.json, which chapter 08 reads.
"""

import argparse
import json
import math
import random
import sys
from pathlib import Path

import numpy as np
import script

from annotated.corpora import load_corpus
from annotated.data import Subwords, _plan_batches
from annotated.records import Record, about_corpus

ROOT = Path(__file__).resolve().parent.parent


def measure(lengths, plan):
    """What a plan pads, over all its batches."""
    longest = np.array([lengths[batch].max(0) for batch in plan])  # (batches, 2)
    rows = np.array([len(batch) for batch in plan])  # (batches,)
    places = longest * rows[:, None]  # (batches, 2)
    sides = 1 - lengths.sum(0) / places.sum(0)
    return {
        "padding": round(1 - float(lengths.sum() / places.sum()), 4),
        "padding_source": round(float(sides[0]), 4),
        "padding_target": round(float(sides[1]), 4),
        "batches": len(plan),
        "rows": {"mean": round(float(rows.mean()), 1), "least": int(rows.min()), "most": int(rows.max())},
        "places_of_the_largest_batch": int(places.sum(1).max()),
        "places": int(places.sum()),
    }


def count(corpus, args):
    """The lengths of the corpus, and what both ways to make batches pad."""
    subwords = Subwords.train((text for pair in corpus.train for text in pair), args.vocab)
    lengths = np.array([(len(subwords.encode(s)), len(subwords.encode(t))) for s, t in corpus.train])
    sorted_plan = list(_plan_batches(lengths, args.tokens, args.tokens, args.seed))
    shuffled = list(range(len(lengths)))
    random.Random(args.seed).shuffle(shuffled)
    rows = math.ceil(len(lengths) / len(sorted_plan))
    naive = [shuffled[i : i + rows] for i in range(0, len(lengths), rows)]
    return {
        "pairs": len(lengths),
        "tokens": int(lengths.sum()),
        "length_pairs": len(np.unique(lengths, axis=0)),
        "lengths": [np.bincount(side).tolist() for side in lengths.T],
        "by_length": measure(lengths, sorted_plan),
        "naive": measure(lengths, naive),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=4096, help="the budget of either side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "08-padding")
    args = parser.parse_args()
    corpus = load_corpus("multi30k-en-de")
    config = {"vocab": args.vocab, "source_tokens": args.tokens, "target_tokens": args.tokens}
    what = {"seed": args.seed, "config": config, "data": about_corpus(corpus)}
    with Record.begin(args.out, anew=True, **what) as record:
        scores = count(corpus, args)
        record.write_scores(scores, indent=None)
    print(json.dumps({name: scores[name] for name in ("by_length", "naive")}, indent=1), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
