"""Where does the time of an update go?

    python benchmarks/14_profile.py [--preset small] [--tokens 1500] [--rows 12] [--named softmax] [--device cpu]
        [--memory] [--trace trace.json] [--rung "CUDA graphs" --out results/14-profile]

Trains one update of the fast form of chapter 14 under `torch.profiler` and prints the operations that take the most
time by themselves: their number of calls and their share. On a GPU the time is that of the kernels.
With `--memory` it prints the operations that ask for the most memory, and their share of all that is asked for.
`--trace` also writes a time line, to be opened in a browser at a trace viewer; gaps between kernels are waiting.
With `--rung` it trains by a rung of 14_ladder.py, on the ladder's sentences; with `--out` the table becomes a record.
"""

import argparse
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import script
import torch
from on_gpu import CONFIGS, adam_for, drawn_pairs, feed_of, prepare, settings
from torch.profiler import ProfilerActivity, profile

from annotated.gpu import FastUpdate, Objective, TrainStep, fuse, precision_context
from annotated.optimization import optimizer
from annotated.records import Record
from annotated.transformer import Transformer


def profiled(config, tokens, device, memory=False, rung=None):
    """The profile of one update, after one that does not count; without a rung on sentences of 25 tokens."""
    model = Transformer(config).to(device).train()
    if rung is None:
        fuse(model)
        context = precision_context("bfloat16" if device == "cuda" else "float32", device)
        make, adam = FastUpdate(TrainStep(Objective(model), context)), optimizer(model)
        batch = tuple(torch.randint(4, config.vocab, (2, max(1, tokens // 25), 25)))
    else:
        feed = feed_of(settings(rung), drawn_pairs(3 * tokens, config.vocab), tokens)
        make, adam = prepare(model, settings(rung), device), adam_for(model, settings(rung))
        batch = max(feed(), key=lambda made: int((made[1] != 0).sum()))
    make(model, adam, [batch])
    if device == "cuda":
        torch.cuda.synchronize()
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=kinds, profile_memory=memory) as seen:
        make(model, adam, [batch])
        if device == "cuda":
            torch.cuda.synchronize()
    return seen


def table(seen, device, memory=False):
    """(operation, calls, share of the time or of the memory that is asked for), the largest first."""
    where = "device" if device == "cuda" else "cpu"
    key = f"self_{where}_memory_usage" if memory else f"self_{where}_time_total"
    rows = seen.key_averages()
    if device == "cuda" and not memory:  # an operation's time is that of its kernels, which have rows of their own
        rows = [row for row in rows if row.device_type == torch.autograd.DeviceType.CUDA]
    taken = {row: max(0, getattr(row, key)) for row in rows}  # what gives memory back is less than 0
    total = sum(taken.values())
    return [(row.key, row.count, taken[row] / total) for row in sorted(taken, key=taken.get, reverse=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=CONFIGS, default="small")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=1500, help="of the batch, on each side")
    parser.add_argument("--rows", type=int, default=12, help="of the table")
    parser.add_argument("--named", nargs="+", default=[""], help="only operations with one of these in their names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", action="store_true", help="memory instead of time")
    parser.add_argument("--trace", help="where to write a time line")
    parser.add_argument("--rung", help="of chapter 14's ladder")
    parser.add_argument("--out", type=Path, help="a record")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = replace(CONFIGS[options.preset], vocab=options.vocab)
    record = Record.begin(options.out, anew=True, seed=0, config=config) if options.out else nullcontext()
    with record:
        seen = profiled(config, options.tokens, options.device, options.memory, options.rung)
        rows = table(seen, options.device, options.memory)
        if options.out:
            about = {"rung": options.rung, "tokens a side": options.tokens}
            record.write_scores(about | {"operation, calls, share": rows})
    wanted = [row for row in rows if any(word in row[0] for word in options.named)]
    for name, calls, share in wanted[: options.rows]:
        print(f"{name[:44]:44} {calls:5} calls {share:5.1%}")
    if options.trace:
        seen.export_chrome_trace(options.trace)


if __name__ == "__main__":
    sys.exit(script.run(main))
