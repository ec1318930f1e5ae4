"""What the two Multi30k scores are made of: for each test sentence the n-grams that match, and its length.

Also the words on both sides of the tokenised pairs: of each validation and test pair, and of all training pairs.

    ANNOTATED_DATA=... python benchmarks/12_lengths.py [--out results/12-lengths]

Needs Multi30k, and the outputs that benchmarks/12_multi30k.py left beside both models; translates nothing. Only
numbers are written, no text: scores.json holds `bleu_counts` of the outputs, each in its own protocol. Chapter 12
computes precisions, brevity penalty and lengths from them, and lays them beside the published run's.
"""

import argparse
import sys
from pathlib import Path

import script

from annotated.corpora import load_corpus
from annotated.evaluation import bleu_counts, bleu_of_counts
from annotated.files import sha256_of
from annotated.records import Record, about_corpus, read_run

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"multi30k-cpu": "13a", "multi30k-tok-cpu": "none"}  # each with the tokeniser of its own protocol


def sides(pairs):
    """The words of source and target of each pair; a tokenised file has a space between any two."""
    return [[len(text.split()) for text in pair] for pair in pairs]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/12-lengths"))
    options = parser.parse_args()
    folders = {name: ROOT / "results" / name for name in MODELS}
    runs = {name: read_run(folder) for name, folder in folders.items()}
    corpora = {name: load_corpus(run["data"]["corpus"]) for name, run in runs.items()}
    outputs = {name: folder / "outputs.txt" for name, folder in folders.items()}
    seeds = {run["recipe"]["seed"] for run in runs.values()}
    with Record.begin(
        options.out, packages=("sacrebleu",), anew=True, seed=sorted(seeds),
        data={name: about_corpus(corpus) for name, corpus in corpora.items()},
        outputs={name: sha256_of(path) for name, path in outputs.items()},
    ) as record:
        scores = {}
        for name, tokenize in MODELS.items():
            references = [target for _, target in corpora[name].test]
            made = outputs[name].read_text(encoding="utf-8").splitlines()
            counts = bleu_counts(made, references, tokenize=tokenize)
            scores[name] = {"bleu": round(bleu_of_counts(counts.sum(0)), 2), "counts": counts.tolist()}
            print(name, scores[name]["bleu"], counts.sum(0).tolist())
        parts = {part: sides(getattr(corpora["multi30k-tok-cpu"], part)) for part in ("validation", "test", "train")}
        scores["words"] = parts | {"train": [sum(column) for column in zip(*parts["train"], strict=True)]}
        record.write_scores(scores, indent=None)


if __name__ == "__main__":
    sys.exit(script.run(main))
