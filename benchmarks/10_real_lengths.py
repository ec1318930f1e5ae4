"""How many real tokens a second does training see on real text, with padding as each side makes it?

    ANNOTATED_DATA=... python benchmarks/10_real_lengths.py [--batches 16] [--threads 2] [--out results/10-real-lengths]

Ours: batches of similar length under token budgets (chapter 8). The other side: torch.nn.Transformer, and the usual
loader that shuffles the sentences, takes 32 at a time and pads them to the longest.
Both have the base model's sizes (vocabulary about 8,000), the same weights, loss and optimizer, and see Multi30k.
A batch of ours holds at most as many positions as one of the other side's does on average, about 5 % fewer in fact.
Counted are real tokens, source and target; a third row, ours with the usual loader, parts the two causes.
Writes run.json and scores.json.
"""

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import script
import torch
from peers import TorchTransformer, keep_memory, update
from tqdm import tqdm

from annotated.corpora import load_corpus
from annotated.data import Subwords, make_batch, token_batches
from annotated.optimization import optimizer
from annotated.records import Record, about_corpus
from annotated.transformer import BASE, Transformer

SENTENCES = 32


def usual_batches(pairs, seed):
    """Shuffled, 32 sentences at a time, padded to the longest."""
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    for i in range(0, len(order) - SENTENCES, SENTENCES):
        yield make_batch([pairs[j] for j in order[i : i + SENTENCES]])


def padding(batches):
    positions = sum(source.numel() + target[:, 1:].numel() for source, target in batches)
    return 1 - sum(real_tokens(*batch) for batch in batches) / positions


def real_tokens(source, target):
    return (source != 0).sum().item() + (target[:, 1:] != 0).sum().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--N", type=int, default=BASE.N, help="fewer layers for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/10-real-lengths"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_memory()
    corpus = load_corpus("multi30k-en-de")
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), 8000)
    pairs = script.encode_pairs(corpus.train, vocabulary)
    config = replace(BASE, N=options.N, vocab=len(vocabulary), eps_norm=1e-5)
    with Record.begin(options.out, anew=True, seed=0, config=config, data=about_corpus(corpus)) as record:
        usual = list(usual_batches(pairs, seed=0))
        places = [(source.numel(), target[:, 1:].numel()) for source, target in usual]  # bos counts nowhere
        budgets = [round(statistics.mean(side)) for side in zip(*places, strict=True)]
        ours = list(token_batches(pairs, *budgets, seed=0))
        shares = {"ours": padding(ours), "torch.nn.Transformer, usual loader": padding(usual)}
        plain = Transformer(config)
        peer = TorchTransformer(plain)
        sides = {"ours": (plain, ours), "ours, usual loader": (plain, usual)}
        sides["torch.nn.Transformer, usual loader"] = (peer, usual)
        adams = {id(model): optimizer(model) for model in (plain, peer)}
        spent, seen = {name: [] for name in sides}, {name: [] for name in sides}
        for number in tqdm(range(options.batches + 1), unit="batch"):
            for name, (model, batches) in sides.items():
                source, target = batches[number]
                began = time.perf_counter()
                update(model, adams[id(model)], source, target)
                if number:  # the first makes the optimizer's moments
                    spent[name].append(time.perf_counter() - began)
                    seen[name].append(real_tokens(source, target))
        rates = {name: sum(seen[name]) / sum(spent[name]) for name in sides}
        halves = slice(options.batches // 2), slice(options.batches // 2, None)
        by_half = {name: [sum(seen[name][half]) / sum(spent[name][half]) for half in halves] for name in sides}
        scores = {
            "sentences of the usual loader": SENTENCES, "budgets": budgets, "layers": options.N,
            "padding": {name: round(share, 4) for name, share in shares.items()},
            "real tokens a second": {name: round(rate, 1) for name, rate in rates.items()},
            "ours against it": {name: round(rates["ours"] / rate, 3) for name, rate in rates.items()},
            "the same in each half": {
                name: [round(a / b, 3) for a, b in zip(by_half["ours"], by_half[name], strict=True)] for name in sides
            },
        }
        record.write_scores(scores)
    for key in ("padding", "real tokens a second", "ours against it", "the same in each half"):
        print(key, scores[key])


if __name__ == "__main__":
    sys.exit(script.run(main))
