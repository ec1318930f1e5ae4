"""Is our training fast beside other implementations, on a GPU, compiled and not?

    python benchmarks/14_peers.py [--sizes base big] [--rounds 10] [--device cuda] [--out results/14-peers]

Ours, torch.nn.Transformer and x-transformers' XTransformer get the same weights and must give the same logits, and
those that are not compiled the same loss by their update; then all train without dropout, so that all compute the same,
on the same padded batches of 25,000 tokens a side, with bfloat16 autocast and fused Adam, each once as it is and once
through torch.compile, taking turns. Ours alone, but for "plain", also adds the residuals in 16 bits, as chapter 14's
`fuse` does under autocast. All fetch the same pinned batches without waiting for them. (Not from the GPU: an update
counts its tokens, which would wait for it.)
Ours is timed plain (chapter 10), by chapter 14's rungs, with and without computing the padding, and, as "whole loss",
by those of the rungs that leave the loss as the peers have it: logits of all positions, then cross-entropy. Between
turns a side keeps its weights and Adam's averages only. Writes run.json and scores.json after each size; what cannot be
imported or fails is recorded with its reason.
"""

import argparse
import sys
import time
from dataclasses import replace

import on_gpu
import script
import torch
from peers import TorchTransformer, X, summary

from annotated.data import Batches
from annotated.optimization import optimizer
from annotated.transformer import Transformer


def sides(config, options):
    """name -> (model, update), all with the same weights; and name -> why one is missing."""
    found, missing = {}, {}
    torch.manual_seed(0)
    ours = Transformer(config)
    whole, pieces = on_gpu.settings("fused optimizer"), on_gpu.settings("loss in pieces")
    for name, changes in (
        ("ours", pieces | {"compile": True}), ("ours, not compiled", pieces),
        ("ours, plain", {"precision": "bfloat16"}),
        ("ours, whole loss", whole), ("ours, whole loss, compiled", whole | {"compile": True}),
        ("ours, no padding", pieces | {"unpadded": True}),
        ("ours, no padding, compiled", pieces | {"unpadded": True, "compile": True}),
    ):
        if options.not_compiled and changes.get("compile"):
            continue
        model = Transformer(config)
        model.load_state_dict(ours.state_dict())
        model = model.to(options.device)
        found[name] = model, on_gpu.prepare(model, changes, options.device, options.backend)
    for name, kind in (("torch.nn.Transformer", TorchTransformer), ("XTransformer", X)):
        for compile_ in (False,) if options.not_compiled else (False, True):
            label = f"{name}, compiled" if compile_ else name
            try:
                model = kind(ours).to(options.device)
                if compile_:
                    model.compile(dynamic=True, backend=options.backend)
                found[label] = model, on_gpu.prepare(model, {"precision": "bfloat16"}, options.device)
            except Exception as error:  # another version of it, perhaps: the others are still measured
                missing[label] = f"{type(error).__name__}: {error}"[:300]
    return found, missing


@torch.no_grad()
def check_equal(found, batch):
    """Refuse to time what does not compute the same in float32; returns the largest difference of a logit."""
    plain = [name for name in found if not slow(name)]
    logits = {name: found[name][0].eval()(*batch) for name in plain}
    for name, (model, _) in found.items():
        model.train()
        if name in logits:
            torch.testing.assert_close(logits[name], logits["ours, plain"], rtol=1e-3, atol=1e-3)
    return max((x - logits["ours, plain"]).abs().max().item() for x in logits.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu.add_options(parser, "results/14-peers")
    on_gpu.add_training_options(parser)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of warming up; later sides are left out")
    torch.backends.mha.set_fastpath_enabled(False)  # torch's own, which is for inference only: compare what is timed
    parser.add_argument("--not-compiled", action="store_true", help="leave out what is compiled, for a trial")
    options = parser.parse_args()
    with on_gpu.begin(options, packages=("x-transformers",)) as record:
        scores = record.scores
        for size in options.sizes:
            if size in scores:
                continue
            on_gpu.forget_compiled()
            gate = on_gpu.Gate(options.gate)
            config = replace(on_gpu.CONFIGS[size], P_drop=0.0, eps_norm=1e-5)  # both others: eps 1e-5
            pairs = on_gpu.drawn_pairs(options.tokens * options.batches, config.vocab)
            batches = list(Batches(pairs, options.tokens, options.tokens)())
            with gate.together():
                if torch.device(options.device).type == "cuda":
                    batches = [tuple(ids.pin_memory() for ids in batch) for batch in batches]
                found, missing = sides(config, options)
                source, target = (ids[:8].to(options.device) for ids in batches[0])
                rows = {"largest difference of a logit": check_equal(found, (source, target[:, :-1]))}
                rows["largest difference of a loss"] = check_losses(found, (source, target))
                adams = {name: optimizer(model) for name, (model, _) in found.items()}
                runs = {name: turn(model, adams[name], update, batches, options.device)
                        for name, (model, update) in found.items()}
                began = time.perf_counter()
                # Warm up, which compiles; what needs no compiler first, then a side of each implementation.
                for name, run in sorted(runs.items(), key=lambda item: (slow(item[0]), "ours," in item[0])):
                    try:
                        if time.perf_counter() - began > options.limit:
                            raise TimeoutError(f"not reached in {options.limit:.0f} seconds of compiling")
                        run()
                    except Exception as error:
                        missing[name] = " ".join(str(error).split())[:300]
                        del runs[name]
            with gate.alone():
                times = seconds_in_turns(runs, options.rounds)
            tokens = sum(len(t) for _, t in pairs)
            for name, row in summary(times, "ours" if "ours" in times else "ours, not compiled").items():
                rows[name] = row | {"tokens a second": round(tokens / row["median"])}
            scores[size] = rows | {"missing": missing}
            record.write_scores(scores)
            for name in times:
                rate, ratio = rows[name]["tokens a second"], rows[name]["times as long as ours"]
                print(f"{size}: {name:32} {rate:,} tokens/s, {ratio}", flush=True)


def slow(name):
    """Whether a side needs the compiler."""
    return name == "ours" or ", compiled" in name


def check_losses(found, batch):
    """Refuse to time an update of another loss, but for the digits of 16 bits; returns the largest difference."""
    losses = {}
    for name, (model, update) in found.items():
        if not slow(name):
            adam = torch.optim.SGD(model.parameters(), lr=0.0)
            losses[name] = update(model, adam, [batch])[0].item()
            adam.zero_grad(set_to_none=True)
    differ = max(abs(loss / losses["ours, plain"] - 1) for loss in losses.values())
    if differ > 0.01:
        raise ValueError(f"the sides have other losses, nothing was timed: {losses}")
    return differ


def turn(model, adam, update, batches, device):
    """A function that trains on all batches once and returns the seconds until the end.

    Before, it trains on the largest batch without counting, which fetches memory again; afterwards it gives back what
    the next side needs: gradients, and memory that is kept for later.
    """
    adam.param_groups[0]["lr"] = 1e-5
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    largest = max(batches, key=lambda batch: batch[1].numel())

    def run():
        update(model, adam, [largest])
        wait()
        began = time.perf_counter()
        for batch in batches:
            update(model, adam, [batch])
        wait()
        seconds = time.perf_counter() - began
        adam.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return seconds

    return run


def seconds_in_turns(runs, rounds):
    """name -> seconds of each round; the programs are compiled already."""
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run())
    return times


if __name__ == "__main__":
    sys.exit(script.run(main))
