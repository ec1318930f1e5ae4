"""What bounds our searches on a CPU: how much of their time do the matrix products alone take?

    python benchmarks/11_bound.py [--rounds 7] [--threads 1] [--out results/11-bound]

The searches of 11_decoding.py: the base model's sizes with random weights, packed, 16 sentences of 30 tokens, 40 new
tokens each, greedy and with a beam of 4. Every call of a linear layer in a search is noted with the shape of its
input. Then the search takes turns with these calls alone, in the same order, on random inputs of the same shapes:
what is left is all else, such as attention, norms, the choice of tokens and Python.
Writes run.json and scores.json.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from peers import EndlessTransformer, keep_memory, summary, take_turns

from annotated.decoding import _PackedLinear, beam_search, greedy, packed
from annotated.records import Record
from annotated.transformer import BASE

B, S, LENGTH = 16, 30, 40


def calls_of(model, search):
    """(layer, input) of every call of a packed linear layer in a search; calls of one shape share their input."""
    calls, inputs = [], {}

    def note(layer, given, output):
        shape = given[0].shape
        calls.append((layer, inputs.setdefault(shape, torch.randn(shape))))

    layers = [layer for layer in model.modules() if isinstance(layer, _PackedLinear)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    search()
    for hook in hooks:
        hook.remove()
    return calls


@torch.inference_mode()
def again(calls):
    for layer, given in calls:
        layer(given)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/11-bound"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_memory()
    config = replace(BASE, vocab=8192)
    model = packed(EndlessTransformer(config).eval())
    source = torch.randint(4, model.config.vocab, (B, S))
    source[:, -1] = model.config.eos
    searches = {
        "greedy": partial(greedy, model, source, LENGTH),
        "beam 4": partial(beam_search, model, source, 4, 0.0, LENGTH),
    }
    scores = {"sentences": B, "source tokens": S, "new tokens": LENGTH, "layers": BASE.N}
    with Record.begin(options.out, anew=True, seed=0, config=config) as record:
        for name, search in searches.items():
            calls = calls_of(model, search)
            sides = {"ours": search, "its matrix products": partial(again, calls)}
            scores[name] = summary(take_turns(sides, options.rounds, name))
            scores[name]["its matrix products"]["calls"] = len(calls)
            for side, row in scores[name].items():
                print(f"{name}: {side:20}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
