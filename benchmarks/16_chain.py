"""What a pass over one sentence takes in a recurrent translator and in a Transformer, over the sentence's length.

    python benchmarks/16_chain.py [--rounds 9] [--out results/16-chain]

Chapter 1's network and the base model, both of width 512, with random weights, one thread. A pass is what a training
does with one pair of sentences, as long as each other: loss and gradients. At each length the networks take turns.
"""

import argparse
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from peers import keep_memory, take_turns
from script import run

from annotated.optimization import label_smoothed_loss
from annotated.records import Record
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import BASE, Transformer

LENGTHS, VOCAB = (8, 16, 32, 64, 128), 1000


def networks(d_model=BASE.d_model):
    """The two, of the same width."""
    torch.manual_seed(0)
    return {
        "recurrent": RecurrentSeq2Seq(RecurrentConfig(VOCAB, d_model)),
        "Transformer": Transformer(replace(BASE, vocab=VOCAB, d_model=d_model, d_ff=4 * d_model)),
    }


def one_pass(network, ids):
    """Loss and gradients."""
    label_smoothed_loss(network(ids, ids), ids).backward()
    network.zero_grad()


def go(options):
    found = networks(options.d_model)
    weights = {name: sum(p.numel() for p in network.parameters()) for name, network in found.items()}
    with Record.begin(options.out, anew=True, seed=0, config={"d_model": options.d_model, "vocab": VOCAB}) as record:
        scores = {"unit": "milliseconds a pass", "weights": weights, "lengths": list(LENGTHS)}
        scores |= {name: {"median": [], "least": [], "most": []} for name in found}
        for n in LENGTHS:
            ids = torch.randint(4, VOCAB, (1, n))
            passes = {name: partial(one_pass, network, ids) for name, network in found.items()}
            for name, seconds in take_turns(passes, options.rounds, f"{n} words").items():
                for which, take in (("median", statistics.median), ("least", min), ("most", max)):
                    scores[name][which].append(round(1000 * take(seconds), 2))
        record.write_scores(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--d_model", type=int, default=BASE.d_model, help="narrower for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/16-chain"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    raise SystemExit(run(go, options))
