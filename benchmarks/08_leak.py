"""How much of a test score is memory, when pairs that share a sentence stand on both sides of the split?

    python benchmarks/08_leak.py [--corpus tatoeba-en-de] [--seeds 3] [--test 2000] [--out results/08-leak]

Needs Tatoeba. The pairs are divided twice: at random, as is often done, and by connected components of equal strings
(chapter 08). On both, a table answers a test sentence with the translation that it has in training, and where it has
none, with nothing, or else with the translation of a training sentence much like it: the one with the
greatest share of words in common, of two hundred that share its rarest words. Both tables know no grammar and no word.
The score is sacreBLEU's corpus BLEU (13a, cased) on at most --test sentences of the test part. Writes run.json and
scores.json, which chapter 08 reads.
"""

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

import sacrebleu
import script

from annotated.corpora import load_corpus
from annotated.data import lookup_baseline, split_words
from annotated.records import Record, about_corpus

ROOT = Path(__file__).resolve().parent.parent


def bag(text):
    return set(split_words(text.lower()))


def nearest(train, sources):
    """Answer with the translation of the training sentence whose words overlap most (Jaccard's measure)."""
    bags = [bag(source) for source, _ in train]
    where = defaultdict(list)
    for i, words in enumerate(bags):
        for word in words:
            where[word].append(i)
    found = []
    for source in sources:
        words, common = bag(source), Counter()
        rare = sorted(words, key=lambda word: len(where[word]))[:4]  # the frequent words decide nothing and cost all
        for word in rare:
            if len(where[word]) < 20000:
                common.update(where[word])
        likely = [i for i, _ in common.most_common(200)]
        best = max(likely, key=lambda i: len(words & bags[i]) / len(words | bags[i]), default=None)
        found.append("" if best is None else train[best][1])
    return found


def measure(train, test, count, seed):
    """Score both tables on a sample of the test part."""
    test = random.Random(seed).sample(test, min(count, len(test)))
    sources, references = map(list, zip(*test))
    known, texts = {source for source, _ in train}, {text for pair in train for text in pair}
    bleu = lambda answers: round(sacrebleu.corpus_bleu(answers, [references]).score, 2)  # noqa: E731
    return {
        "train": len(train),
        "test": len(test),
        "source_seen": round(sum(source in known for source in sources) / len(test), 4),
        "either_side_seen": round(sum(s in texts or t in texts for s, t in test) / len(test), 4),
        "bleu_lookup": bleu(lookup_baseline(train, sources)),
        "bleu_nearest": bleu(nearest(train, sources)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="tatoeba-en-de", choices=["tatoeba-en-de", "tatoeba-zh-en"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--test", type=int, default=2000, help="most test sentences to score")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "08-leak")
    args = parser.parse_args()
    corpus = load_corpus(args.corpus)
    metric = sacrebleu.metrics.BLEU()
    metric.corpus_score(["a"], [["a"]])  # a metric has no signature before it has scored
    config = {"test": args.test, "metric": str(metric.get_signature())}
    what = {"seed": list(range(args.seeds)), "config": config, "data": about_corpus(corpus)}
    pairs, n = corpus.train + corpus.validation + corpus.test, len(corpus.test)
    scores = {"random": [], "components": []}
    with Record.begin(args.out, anew=True, **what) as record:
        for seed in range(args.seeds):
            shuffled = random.Random(seed).sample(pairs, len(pairs))
            scores["random"].append(measure(shuffled[2 * n :], shuffled[:n], args.test, seed))
            scores["components"].append(measure(corpus.train, corpus.test, args.test, seed))
            record.write_scores(scores)
    print(json.dumps(scores, indent=1), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
