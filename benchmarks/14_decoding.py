"""How many sentences a second does base translate on a GPU, beside MarianMT and CTranslate2?

    python benchmarks/14_decoding.py [--rounds 5] [--batch 128] [--device cuda] [--out results/14-decoding]

The base model's sizes with random weights, batches of 128 sentences of 30 tokens, 40 new tokens each, greedy and with
a beam of 4. Ours runs plain, without a cache, one sentence at a time (the first few), fused, in bfloat16, with recorded
steps (in bfloat16, too), and with these compiled.
All sides get the same weights; in float32 all must write the same tokens before anything is timed, and
in 16 bits it is recorded how many sentences are the same. Length penalty 0 and a forced length leave no room for
different rules. What cannot be imported, or fails, is recorded with its reason.
Writes run.json and scores.json, after each search.
"""

import argparse
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial

import on_gpu
import script
import torch
from peers import CTranslate2, Endless, EndlessTransformer, marian, of_marian, of_ours, summary, take_turns

from annotated.gpu import fuse
from annotated.graphs import CudaGraphDecoder, compile_steps

S = 30
FEW = 8  # sentences are enough to time one at a time
OURS = ("ours, recorded", "ours, compiled, recorded", "ours, fused, bfloat16")
USUAL = {"batch": 128, "length": 40}  # all that was measured before records named them
SIXTEEN = (*OURS, "MarianMT, bfloat16", "CTranslate2, bfloat16")  # bits: of two likely words either may be written


class EndlessSteps(Endless, CudaGraphDecoder):
    pass


class Uncached(torch.nn.Module):
    """A Transformer that goes through all words so far at every step; the state is source, memory and these words."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def start(self, source):
        return source, self.model.encode(source), source[:, :0]

    def step(self, ids, state):
        source, memory, words = state
        words = torch.cat([words, ids[:, None]], 1)
        return self.model.decode(words, memory, source)[:, -1], (source, memory, words)


class EndlessUncached(Endless, Uncached):
    pass


def one_at_a_time(model, length, source, beam):
    return [of_ours(model, length, one, beam)[0] for one in source[:FEW].split(1)]


def of_ctranslate2(translator, length, source, beam):
    rules = {"beam_size": beam, "length_penalty": 0.0, "max_batch_size": len(source)}
    return translator(source.tolist(), min_decoding_length=length, max_decoding_length=length, **rules)


def sides(model, options):
    """name -> function of source and beam; and name -> why one is missing."""
    found, missing, length, device = {}, {}, options.length, options.device
    plain = deepcopy(model).to(device)
    found["ours, plain"] = partial(of_ours, plain, length)
    found["ours, without cache"] = partial(of_ours, EndlessUncached(plain), length)
    found["ours, one at a time"] = partial(one_at_a_time, plain, length)
    found["ours, fused"] = partial(of_ours, fuse(deepcopy(model)).to(device), length)
    quick = fuse(deepcopy(model)).to(device, torch.bfloat16)
    found["ours, fused, bfloat16"] = partial(of_ours, quick, length)
    found["ours, recorded"] = partial(of_ours, EndlessSteps(quick), length)
    compiled = compile_steps(deepcopy(quick), options.backend)
    found["ours, compiled, recorded"] = partial(of_ours, EndlessSteps(compiled), length)
    try:
        found["MarianMT"] = partial(of_marian, marian(model).to(device), length)
        found["MarianMT, bfloat16"] = partial(of_marian, marian(model).to(device, torch.bfloat16), length)
    except ImportError as error:
        missing["MarianMT"] = str(error)
    try:
        kind = torch.device(device).type
        for precision in ("float32", *(["bfloat16"] if kind == "cuda" else [])):
            translator = CTranslate2(model, precision, torch.get_num_threads(), kind)
            name = "CTranslate2" + ("" if precision == "float32" else ", bfloat16")
            found[name] = partial(of_ctranslate2, translator, length)
    except (ImportError, RuntimeError, ValueError) as error:
        missing["CTranslate2"] = str(error)[:300]
    return found, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu.add_options(parser, "results/14-decoding")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int, help="new tokens a sentence")
    parser.set_defaults(sizes=["base"], **USUAL)
    options = parser.parse_args()
    torch.manual_seed(0)
    config = replace(on_gpu.CONFIGS[options.sizes[0]], eps_norm=1e-5)  # CTranslate2 and Marian: eps 1e-5
    model = EndlessTransformer(config).eval()
    source = torch.randint(4, config.vocab, (options.batch, S))
    source[:, -1] = config.eos
    scores = {"sentences": options.batch, "source tokens": S, "new tokens": options.length}
    what = {"packages": ("transformers", "ctranslate2"), "config": config}
    with on_gpu.begin(options, ("device", "backend", "batch", "length"), USUAL, **what) as record:
        scores = record.scores | scores
        gate = on_gpu.Gate(options.gate)
        with gate.together():
            source = source.to(options.device)
            searches, missing = sides(model, options)
        for beam, name in ((1, "greedy"), (4, "beam 4")):
            if name in scores:
                continue
            made = {}
            with gate.together():
                for side, search in list(searches.items()):
                    try:
                        made[side] = search(source, beam)
                    except Exception as error:
                        missing[side] = " ".join(str(error).split())[:300]
                        searches.pop(side)
            plain = made["ours, plain"]
            same = {side: sum(a == b for a, b in zip(outputs, plain)) / len(outputs) for side, outputs in made.items()}
            # Of two likely words a kernel for another shape may take the other: one sentence may differ.
            wrong = [side for side, share in same.items()
                     if side not in SIXTEEN and (1 - share) * len(made[side]) > max(1, 0.03 * len(made[side]))]
            for side in wrong:
                if side.startswith("ours"):
                    raise ValueError(f"{name}: {side} writes other tokens than ours, plain; nothing was timed")
                missing[side] = f"{name}: other tokens than ours in {1 - same[side]:.0%} of the sentences"
                searches.pop(side)
            turns = {side: partial(search, source, beam) for side, search in searches.items()}
            against = next(side for side in (*OURS, "ours, plain") if side in searches)
            with gate.alone():
                times = take_turns(turns, options.rounds, name)
            rows = summary(times, against)
            for side, row in rows.items():
                rate = round(len(made[side]) / row["median"], 1)
                row |= {"sentences": len(made[side]), "sentences a second": rate, "same as plain": round(same[side], 3)}
                print(f"{name}: {side:24} {row['sentences a second']:8} sentences/s, same {same[side]:.0%}", flush=True)
            scores |= {name: rows, f"{name}, ratios to": against, "missing": {**scores.get("missing", {}), **missing}}
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
