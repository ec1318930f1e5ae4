"""How a parser of the built-in grammar's trees learns from four different starts.

    python benchmarks/18_start.py [--steps 200] [--out results/18-start]

Same trees, same batches, same sizes, same seed of the weights; what differs is where the norm stands,
what tells positions apart, and whether the decoder starts looking at the word that its output belongs to.
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch

from annotated.data import token_batches
from annotated.grammar import grammar_examples
from annotated.parsing import (
    WellFormed,
    _attempt,
    _common_labels,
    _encode_tree,
    _vocabularies,
    _words_of,
    bracket_f1,
    init_cross_attention_diagonal,
    parse_words,
    right_branching,
)
from annotated.records import Record
from annotated.training import Recipe, train
from annotated.transformer import TINY, Transformer

STARTS = {
    "post-norm, sines": ({}, False),
    "pre-norm, sines": ({"norm": "pre", "final_norm": True}, False),
    "pre-norm, learned positions": ({"norm": "pre", "final_norm": True, "positions": "learned"}, False),
    "the same, side by side": ({"norm": "pre", "final_norm": True, "positions": "learned"}, True),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/18-start"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trees, held_out, _ = ([example.tree for example in part] for part in grammar_examples(3000, 200, 0))
    words, tokens = _vocabularies(trees)
    pairs, sentences = [_encode_tree(tree, words, tokens) for tree in trees], [_words_of(tree) for tree in held_out]
    config = replace(TINY, d_ff=256, P_drop=0.0, eps_ls=0.0, vocab=len(tokens), source_vocab=len(words))
    recipe = Recipe(steps=options.steps, warmup=24, rate=0.2, source_tokens=800, target_tokens=800,
                    evaluate_every=options.steps // 5)

    def evaluate(model):
        scores = {}
        for name, writer in (("strict", model), ("constrained", WellFormed(model, tokens))):
            made = map(_attempt, parse_words(writer, sentences, words, tokens), sentences)
            scores[f"{name}_f1"] = round(bracket_f1(held_out, list(made)).f1, 2)
        return scores

    base = [right_branching(sentence, *_common_labels(trees)) for sentence in sentences]
    runs = {}
    scores = {"measured_on": "validation", "sentences": len(held_out),
              "right_branching_f1": round(bracket_f1(held_out, base).f1, 2), "runs": runs}
    what = {"config": config, "recipe": recipe, "data": {"corpus": "grammar", "trees": len(trees)}}
    with Record.begin(options.out, anew=True, **what) as record:
        for name, (changes, beside) in STARTS.items():
            print(name, file=sys.stderr)
            torch.manual_seed(0)
            model = Transformer(replace(config, **changes))
            log = train(init_cross_attention_diagonal(model) if beside else model, recipe,
                        partial(token_batches, pairs, 800, 800), evaluate=evaluate)
            runs[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in log if "strict_f1" in line]
            runs[name][-1]["loss"] = log[-2]["loss"]
            record.write_scores(scores)
    print(json.dumps({name: lines[-1] for name, lines in runs.items()}, indent=1))


if __name__ == "__main__":
    sys.exit(script.run(main))
