"""What do the width of the beam and the length penalty do to real translations, and what does stopping early save?

    ANNOTATED_DATA=... python benchmarks/11_search.py [--model results/tatoeba-en-de] [--sentences 500] [--threads 1]

Translates a fixed sample of the validation part of Tatoeba English-German with beams of several widths.
A search that runs until its beam is full does not depend on the penalty, so one search a width gives the n-best
list that every alpha chooses from. With the early stop alpha does matter: a search of its own for each case
listed in EARLY, whose best outputs must be those of the full search.

Writes run.json (how it was run) and scores.json, which chapter 11 reads:

    table     for each width and alpha: BLEU, its difference to greedy search with a paired bootstrap's 95 %
              interval, words of the outputs over words of the references, mean tokens and mean log-probability
    greedy    for each width: the share of sentences whose best output by log-probability is above, the same as,
              or below greedy search's
    stopping  for each case: how many hypotheses the model was asked to continue, with and without the early stop
"""

import argparse
import json
import random
import sys
from functools import partial
from pathlib import Path

import script
import torch

from annotated.corpora import load_corpus
from annotated.data import pad_batch
from annotated.decoding import cannot_improve, hypotheses, length_penalty, load, when_full
from annotated.evaluation import _resampled_difference, bleu, bleu_counts
from annotated.records import Record, about_corpus, about_model

BEAMS = [1, 2, 4, 8, 16]
ALPHAS = [0.0, 0.3, 0.6, 1.0, 1.5]
EARLY = [(beam, 0.6) for beam in BEAMS] + [(4, alpha) for alpha in ALPHAS if alpha != 0.6]
BATCH = 100


class Counting(torch.nn.Module):
    """The model, counting the hypotheses that it is asked to continue."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config, self.rows = model, model.config, 0

    def start(self, source):
        return self.model.start(source)

    def step(self, ids, state):
        self.rows += len(ids)
        return self.model.step(ids, state)


def sample(corpus, sentences, seed=0):
    """Pairs of different sources, each with its first reference."""
    first = {}
    for source, target in corpus.validation:
        first.setdefault(source, target)
    pairs = random.Random(seed).sample(sorted(first.items()), sentences)
    return sorted(pairs, key=lambda pair: len(pair[0]))  # alike in length within a batch


def search(translator, lines, beam, alpha, stop):
    """The n-best list of every line, by log-probability over the penalty, and the hypotheses continued."""
    counting, found = Counting(translator.model), []
    for i in range(0, len(lines), BATCH):
        ids = [translator.vocabulary.encode(line) for line in lines[i : i + BATCH]]
        source = pad_batch(ids, translator.model.config.pad)
        found += hypotheses(counting, source, beam, partial(length_penalty, alpha=alpha), stop=stop)
    return found, counting.rows


def choose(found, alpha):
    """The best (ids, log-probability) of each list that a search with alpha 0 returned."""
    return [max(every, key=lambda pair: pair[1] / length_penalty(len(pair[0]), alpha)) for every in found]


def row(beam, alpha, best, translator, references, greedy_counts):
    """One line of the table."""
    outputs = [translator.vocabulary.decode(ids) for ids, _ in best]
    counts = bleu_counts(outputs, references)
    difference, interval, _ = _resampled_difference(counts, greedy_counts if beam > 1 else counts)
    words, wanted = counts[:, 8:].sum(0).tolist()
    return {
        "beam": beam, "alpha": alpha, "bleu": bleu(outputs, references)[0],
        "over_greedy": difference, "interval": interval, "length_ratio": words / wanted,
        "tokens": sum(len(ids) for ids, _ in best) / len(best),
        "log_p": sum(log_p for _, log_p in best) / len(best),
    }


def against(best, greedy):
    """Shares of sentences above, the same as, and below greedy search by log-probability."""
    pairs = list(zip(best, greedy, strict=True))
    same = sum(a[0] == b[0] for a, b in pairs)
    above = sum(a[0] != b[0] and a[1] > b[1] for a, b in pairs)
    counts = {"above": above, "same": same, "below": len(pairs) - above - same}
    return {name: n / len(pairs) for name, n in counts.items()}


def measure(translator, lines, references, record):
    """Search with every width, penalty and rule; what is found is written as it comes."""
    full, scores = {}, {"table": [], "greedy": [], "stopping": []}
    for beam in BEAMS:
        full[beam] = search(translator, lines, beam, 0.0, when_full)
        best = {alpha: choose(full[beam][0], alpha) for alpha in ALPHAS}
        if beam == 1:
            greedy = best[0.0]
            counts = bleu_counts([translator.vocabulary.decode(ids) for ids, _ in greedy], references)
        scores["table"] += [row(beam, alpha, best[alpha], translator, references, counts) for alpha in ALPHAS]
        scores["greedy"].append({"beam": beam, **against(best[0.0], greedy)})
        record.write_scores(scores)
        print(json.dumps(scores["table"][-3:] + scores["greedy"][-1:]), file=sys.stderr)
    for beam, alpha in EARLY:
        found, rows = search(translator, lines, beam, alpha, cannot_improve)
        pairs = zip(choose(full[beam][0], alpha), found, strict=True)
        same = sum(a[0] == every[0][0] for a, every in pairs) / len(found)
        line = {"beam": beam, "alpha": alpha, "when_full": full[beam][1], "cannot_improve": rows, "same_best": same}
        scores["stopping"].append(line)
        record.write_scores(scores)
        print(json.dumps(line), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-en-de"))
    parser.add_argument("--corpus", default="tatoeba-en-de")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the sample of sentences")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/11-search"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus, translator = load_corpus(options.corpus), load(options.model)
    lines, references = map(list, zip(*sample(corpus, options.sentences, options.seed), strict=True))
    what = {
        "model": about_model(options.model), "config": translator.model.config,
        "data": about_corpus(corpus, part="validation"), "seed": options.seed, "sentences": options.sentences,
        "beams": BEAMS, "alphas": ALPHAS, "batch": BATCH, "signature": bleu(references, references)[1],
    }
    with Record.begin(options.out, anew=True, **what) as record:
        measure(translator, lines, references, record)


if __name__ == "__main__":
    sys.exit(script.run(main))
