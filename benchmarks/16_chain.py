"""What a pass over one sentence takes in a recurrent translator and in a Transformer, over the sentence's length.

    python benchmarks/16_chain.py [--rounds 9] [--threads 1 2] [--out results/16-chain]
    python benchmarks/16_chain.py --device cuda --threads 1 --out results/16-chain-gpu

Chapter 1's network and the base model, both of width 512, with random weights. A pass is what a training does with
one pair of sentences, as long as each other: loss and gradients. At each length both networks take turns, with each
number of threads.
"""

import argparse
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from on_gpu import Gate
from peers import keep_memory, take_turns
from script import run, weights

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


def one_pass(network, ids, threads):
    """Loss and gradients, waited for."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    label_smoothed_loss(network(ids, ids), ids).backward()
    network.zero_grad()
    if ids.is_cuda:
        torch.cuda.synchronize()


def go(options):
    torch.backends.cudnn.allow_tf32 = False  # the recurrent network's products are float32, as the Transformer's
    with Gate(options.gate).together():
        found = {name: network.to(options.device) for name, network in networks(options.d_model).items()}
    config = {"d_model": options.d_model, "vocab": VOCAB, "device": options.device, "threads": options.threads}
    torch.set_num_threads(max(options.threads))
    with Record.begin(options.out, anew=True, seed=0, config=config) as record:
        scores = {"unit": "milliseconds a pass", "weights": {name: weights(network) for name, network in found.items()},
                  "lengths": list(LENGTHS)}
        cases = {(name, threads): {"median": [], "least": [], "most": []}
                 for name in found for threads in options.threads}
        for n in LENGTHS:
            ids = torch.randint(4, VOCAB, (1, n), device=options.device)
            passes = {(name, threads): partial(one_pass, found[name], ids, threads) for name, threads in cases}
            with Gate(options.gate).alone():
                times = take_turns(passes, options.rounds, f"{n} words")
            for case, seconds in times.items():
                for which, take in (("median", statistics.median), ("least", min), ("most", max)):
                    cases[case][which].append(round(1000 * take(seconds), 2))
        scores["networks"] = {name: {str(threads): cases[name, threads] for threads in options.threads}
                              for name in found}
        record.write_scores(scores)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gate", help="as for the programs of chapter 14")
    parser.add_argument("--d_model", type=int, default=BASE.d_model, help="narrower for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/16-chain"))
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    keep_memory()
    raise SystemExit(run(go, options))
