"""How long do greedy and beam search take, beside other implementations of the same model?

    python benchmarks/11_decoding.py [--rounds 7] [--threads 2] [--out results/11-decoding]

The base model's sizes (vocabulary 8,192) with random weights, 16 sentences of 30 tokens, 40 new tokens each, by
greedy search and with a beam of 4. MarianMTModel of transformers and CTranslate2 get the same weights.
Length penalty 0 and a forced length of 40 leave no room for different rules: before anything is timed, all that
compute in float32 must write the same tokens. Ours is timed plain, packed and with int8 (chapter 11), CTranslate2 in
float32 and int8, each in a process of its own.
Writes run.json and scores.json.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from peers import CTranslate2, EndlessTransformer, keep_memory, marian, of_marian, of_ours, summary, take_turns

from annotated.decoding import packed, packed_int8
from annotated.records import Record
from annotated.transformer import BASE

B, S, LENGTH = 16, 30, 40


def of_ctranslate2(translate, source, beam):
    rules = {"beam_size": beam, "length_penalty": 0.0, "max_batch_size": B}
    return translate(source.tolist(), min_decoding_length=LENGTH, max_decoding_length=LENGTH, **rules)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--N", type=int, default=BASE.N, help="fewer layers for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/11-decoding"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_memory()
    config = replace(BASE, N=options.N, vocab=8192, eps_norm=1e-5)  # CTranslate2 and Marian: eps 1e-5
    model = EndlessTransformer(config).eval()
    source = torch.randint(4, config.vocab, (B, S))
    source[:, -1] = config.eos
    theirs = {kind: CTranslate2(model, kind, options.threads) for kind in ("float32", "int8")}
    sides = {
        "ours": partial(of_ours, packed(model), LENGTH), "ours, not packed": partial(of_ours, model, LENGTH),
        "transformers": partial(of_marian, marian(model), LENGTH),
        "CTranslate2": partial(of_ctranslate2, theirs["float32"]),
        "ours, int8": partial(of_ours, packed_int8(model), LENGTH),
        "CTranslate2, int8": partial(of_ctranslate2, theirs["int8"]),
    }
    scores = {"sentences": B, "source tokens": S, "new tokens": LENGTH, "layers": options.N}
    packages = "transformers", "ctranslate2"
    with Record.begin(options.out, anew=True, packages=packages, seed=0, config=config) as record:
        for beam, name in ((1, "greedy"), (4, "beam 4")):
            made = {side: search(source, beam) for side, search in sides.items()}
            for side, outputs in made.items():
                if "int8" not in side and outputs != made["ours"]:
                    raise ValueError(f"{name}: {side} writes other tokens than ours; nothing was timed")
            searches = {side: partial(search, source, beam) for side, search in sides.items()}
            scores[name] = summary(take_turns(searches, options.rounds, name))
            for side, row in scores[name].items():
                print(f"{name}: {side:18}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
