"""What do products of 8-bit numbers cost in BLEU?

    ANNOTATED_DATA=... python benchmarks/11_int8.py [--model results/tatoeba-cpu] [--out results/11-int8]

The whole test sets of Multi30k (2016) and of Tatoeba, translated by one model with float32 and with int8, greedily
and with a beam of 4. The scores are compared by resampling the sentences. Then the greedy translations are made again
in batches of a quarter of the size: how many of them depend on their neighbours in the batch?
Nothing is timed. Writes run.json and scores.json.
"""

import argparse
import sys
from pathlib import Path

import script

from annotated.corpora import load_corpus
from annotated.decoding import _int8_bits, load
from annotated.evaluation import _resampled_difference, bleu, bleu_counts
from annotated.records import Record, about_corpus, about_model

TOKENS = 4096  # of a batch, as `translate` has it


def equal(some, others):
    """The share of lines that are the same, in percent."""
    return round(100 * sum(map(str.__eq__, some, others)) / len(some), 2)


def measure(sides, pairs, samples):
    """BLEU of each search with both kinds of numbers, and how much the lines differ."""
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    found = {"sentences": len(sources)}
    for name, beam in (("greedy", 1), ("beam 4", 4)):
        made = {side: translator.translate(sources, beam, tokens=TOKENS) for side, translator in sides.items()}
        counts = {side: bleu_counts(lines, references) for side, lines in made.items()}
        difference, (low, high), p = _resampled_difference(counts["int8"], counts["float32"], samples)
        row = {side: round(bleu(lines, references)[0], 2) for side, lines in made.items()}
        row |= {"difference": round(difference, 2), "low": round(low, 2), "high": round(high, 2), "p": round(p, 4)}
        found[name] = row | {"same lines in percent": equal(made["int8"], made["float32"])}
        if beam == 1:
            again = {side: t.translate(sources, 1, tokens=TOKENS // 4) for side, t in sides.items()}
            found["same lines in smaller batches in percent"] = {s: equal(again[s], made[s]) for s in sides}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-cpu"))
    parser.add_argument("--corpora", nargs="+", default=["multi30k-en-de", "tatoeba-en-de"])
    parser.add_argument("--lines", type=int, help="fewer for a trial")
    parser.add_argument("--samples", type=int, default=1000, help="drawn for the intervals")
    parser.add_argument("--out", type=Path, default=Path("results/11-int8"))
    options = parser.parse_args()
    sides = {"float32": load(options.model), "int8": load(options.model, int8=True)}
    corpora = {name: load_corpus(name) for name in options.corpora}
    what = {"config": sides["int8"].model.config, "model": about_model(options.model)}
    what |= {"data": {name: about_corpus(corpus) for name, corpus in corpora.items()}, "samples": options.samples}
    what |= {"bits of an input": _int8_bits()}
    scores = {}
    with Record.begin(options.out, anew=True, packages=("sacrebleu",), seed=0, **what) as record:
        for name, corpus in corpora.items():
            scores[name] = measure(sides, corpus.test[: options.lines], options.samples)
            print(name, scores[name])
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
