"""Does the length of the path decide what a network learns? Recall over 8 to 256 positions, trained.

    python benchmarks/16_recall.py [--networks ...] [--lengths 8 16 ...] [--seeds 0 1 2] [--out results/16-recall]
    python benchmarks/16_recall.py --networks "recurrent, gates open" --lengths 32 64 128 --out results/16-recall-open

Two facts, then n words that say nothing, then a question. A fact is a word that ties one of four keys to one of four
values; the question names one of the two keys, and the last position must give its value: one in four is
chance. Four networks of nearly equally many weights: self-attention (chapter 7's encoder, two layers), a recurrent
network (two layers of GRUs), the same with additive attention over its states, and dilated convolutions of kernel
three, as many layers as reach over the sentence.
A training ends after --updates, or when of the last 50 batches 99 % of the answers were right. The rate is the better
of two, by trials at 8 words with a seed of their own, which are recorded.
Written after every training; the same command goes on with those that are missing.
"""

import argparse
import math
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from script import run, weights
from torch import nn

from annotated.attention import additive_attention
from annotated.comparison import Convolution
from annotated.embedding import positional_encoding
from annotated.records import Record
from annotated.transformer import TINY, Encoder

KEYS, VALUES, FACTS, FILLING = 4, 4, 2, 64  # words: every fact, every filling word, every question
WORDS = KEYS * VALUES + FILLING + KEYS
RATES, TRIAL, BATCH, GOOD, LAST = (1e-3, 3e-3), 8, 32, 0.99, 50
OPEN = 3.0  # more on the biases of update gates that start nearly open


def examples(n, count, generator):
    """Sentences (count, FACTS + n + 1) and the values asked for (count,)."""
    draw = lambda high, *shape: torch.randint(high, shape, generator=generator)  # noqa: E731
    keys = torch.rand(count, KEYS, generator=generator).argsort(1)[:, :FACTS]  # (count, FACTS), different ones
    values, asked = draw(VALUES, count, FACTS), draw(FACTS, count)
    filling = KEYS * VALUES + draw(FILLING, count, n)
    rows = torch.arange(count)
    question = KEYS * VALUES + FILLING + keys[rows, asked]
    return torch.cat([keys * VALUES + values, filling, question[:, None]], 1), values[rows, asked]


class Network(nn.Module):
    """Embedding, layers, and the value read off at the last position."""

    def __init__(self, d):
        super().__init__()
        self.d = d
        self.embedding = nn.Embedding(WORDS, d)
        self.answer = nn.Linear(d, VALUES)

    def forward(self, ids):
        return self.answer(self.last(self.embedding(ids)))


class SelfAttention(Network):
    """The encoder of chapter 7."""

    def __init__(self, d, reach):
        super().__init__(d)
        self.encoder = Encoder(replace(TINY, N=2, d_model=d, d_ff=2 * d, h=4, P_drop=0.0, vocab=WORDS))

    def last(self, x):
        return self.encoder(x * math.sqrt(self.d) + positional_encoding(torch.arange(x.shape[1]), self.d))[:, -1]


class Recurrent(Network):
    """Two layers of GRUs; the last state has to hold everything."""

    def __init__(self, d, reach):
        super().__init__(d)
        self.layers = nn.GRU(d, d, 2, batch_first=True)

    def last(self, x):
        return self.layers(x)[0][:, -1]


class RecurrentOpen(Recurrent):
    """The same; its update gates start nearly open, so that a state keeps most of what it holds."""

    def __init__(self, d, reach):
        super().__init__(d, reach)
        with torch.no_grad():
            for layer in range(2):
                getattr(self.layers, f"bias_hh_l{layer}")[d : 2 * d] += OPEN  # PyTorch's order: reset, update, new


class RecurrentAttention(Recurrent):
    """The same; its last state asks all states, as chapter 1's decoder does."""

    def __init__(self, d, reach):
        super().__init__(d, reach)
        self.Q, self.K = nn.Linear(d, d), nn.Linear(d, d)
        self.v = nn.Parameter(torch.randn(d) / d**0.5)
        self.join = nn.Linear(2 * d, d)

    def last(self, x):
        states = self.layers(x)[0]
        here = states[:, -1:]
        context = additive_attention(self.Q(here), self.K(states), states, self.v)
        return self.join(torch.cat([here, context], -1))[:, 0].tanh()


class Convolutions(Network):
    """Residual layers of kernel three, normalised first."""

    def __init__(self, d, dilations):
        super().__init__(d)
        self.layers = nn.ModuleList(self.layer(d, dilation) for dilation in dilations)

    def layer(self, d, dilation):
        return nn.Sequential(nn.LayerNorm(d), Convolution(d, 3, dilation), nn.ReLU(), nn.Linear(d, d))

    def last(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x[:, -1]


def dilations(reach):
    """1, 2, 4 ...: as many as lead from the last position to the first without leaving the sentence."""
    return [2**i for i in range(reach.bit_length())]


NETWORKS = {
    "self-attention": SelfAttention,
    "recurrent": Recurrent,
    "recurrent, gates open": RecurrentOpen,  # of a record of its own
    "recurrent with attention": RecurrentAttention,
    "dilated convolutions": lambda d, reach: Convolutions(d, dilations(reach)),
}


def count(name, d, reach):
    with torch.device("meta"):
        return weights(NETWORKS[name](d, reach))


def build(name, reach, wanted):
    """The network of this name whose number of weights is nearest to the one wanted."""
    d = min(range(8, 257, 4), key=lambda d: abs(count(name, d, reach) - wanted))
    return NETWORKS[name](d, reach)


def trained(name, n, rate, seed, options):
    """What one training came to."""
    torch.manual_seed(seed)
    model = build(name, n + FACTS, count("self-attention", options.width, 0))
    adam = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98), fused=True)
    generator = torch.Generator().manual_seed(1_000_003 * seed + n)
    right, began, update = deque(maxlen=LAST), time.thread_time(), 0
    while update < options.updates and (len(right) < LAST or sum(right) < GOOD * LAST):
        update += 1
        adam.param_groups[0]["lr"] = rate * min(1, update / 100)
        ids, values = examples(n, BATCH, generator)
        logits = model(ids)
        adam.zero_grad()
        F.cross_entropy(logits, values).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        right.append((logits.argmax(1) == values).float().mean().item())
    seconds = time.thread_time() - began
    ids, values = examples(n, options.test, torch.Generator().manual_seed(seed))  # drawn anew: new fillings
    with torch.no_grad():
        found = torch.cat([model.eval()(part).argmax(1) for part in ids.split(200)])
    accuracy = (found == values).float().mean().item()
    return {
        "network": name, "n": n, "seed": seed, "rate": rate, "updates": update, "d": model.d,
        "weights": weights(model),
        "accuracy": round(accuracy, 4), "milliseconds an update": round(1e3 * seconds / update, 2),
    }


def go(options):
    if min(options.updates, options.test, *options.lengths) < 1:
        raise ValueError("--updates, --test and --lengths must be 1 or more")
    torch.set_num_threads(options.threads)
    what = {
        "task": {"keys": KEYS, "values": VALUES, "facts": FACTS, "filling": FILLING, "chance": 1 / VALUES},
        "recipe": {"updates": options.updates, "batch": BATCH, "warmup": 100, "clip": 1.0, "rates": RATES,
                   "enough": GOOD},
        "width": options.width, "test": options.test, "trial": TRIAL,
    }
    with Record.begin(options.out, ("networks", "lengths", "seeds"), networks=options.networks,
                      lengths=options.lengths, seeds=options.seeds, **what) as record:
        wanted = [(name, TRIAL, rate, 99) for name in options.networks for rate in RATES]
        make(record, "trials", wanted, options)
        best = {}
        for made in record.scores["trials"]:
            mark = made["accuracy"], -made["updates"]
            if made["network"] not in best or mark > best[made["network"]][0]:
                best[made["network"]] = mark, made["rate"]
        wanted = [(name, n, best[name][1], seed)
                  for n in options.lengths for seed in options.seeds for name in options.networks]
        make(record, "runs", wanted, options)


def make(record, part, wanted, options):
    """The trainings of one part of the record that are not there yet."""
    for name, n, rate, seed in wanted:
        there = [(one["network"], one["n"], one["rate"], one["seed"]) for one in record.scores.get(part, [])]
        if (name, n, rate, seed) in there:
            continue
        made = trained(name, n, rate, seed, options)
        with record.change("scores.json") as scores:
            scores.setdefault(part, []).append(made)
        print(said_of(made), flush=True)


def said_of(made):
    return "  ".join(f"{key} {value}" for key, value in made.items() if key not in ("weights", "d"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS),
                        default=[name for name in NETWORKS if name != "recurrent, gates open"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=2000, help="of a training, at most")
    parser.add_argument("--width", type=int, default=48, help="d_model of self-attention; the others have its weights")
    parser.add_argument("--test", type=int, default=2000, help="sentences drawn for the test")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/16-recall"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
