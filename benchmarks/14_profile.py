"""Where does the time of an update go?

    python benchmarks/14_profile.py [--preset small] [--tokens 1500] [--rows 12] [--named softmax] [--device cpu]
        [--trace trace.json]

Trains one update of the fast form of chapter 14 under `torch.profiler` and prints the operations that take the most
time by themselves: their number of calls and their share. On a GPU the time is that of the kernels.
`--trace` also writes a time line, to be opened in a browser at a trace viewer; gaps between kernels are waiting.
"""

import argparse
from dataclasses import replace

import torch
from on_gpu import CONFIGS
from torch.profiler import ProfilerActivity, profile

from annotated.gpu import FastUpdate, Objective, TrainStep, fuse, precision_context
from annotated.optimization import optimizer
from annotated.transformer import Transformer


def profiled(config, tokens, device):
    """The profile of one update on sentences of 25 tokens, after one that does not count."""
    model = fuse(Transformer(config).to(device))
    context = precision_context("bfloat16" if device == "cuda" else "float32", device)
    make, adam = FastUpdate(TrainStep(Objective(model), context)), optimizer(model)
    batch = torch.randint(4, config.vocab, (2, max(1, tokens // 25), 25))
    make(model, adam, [tuple(batch)])
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=kinds) as seen:
        make(model, adam, [tuple(batch)])
    return seen


def table(seen, device):
    """(operation, calls, share of the time), the longest first."""
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    rows = sorted(seen.key_averages(), key=lambda row: -getattr(row, key))
    total = sum(getattr(row, key) for row in rows)
    return [(row.key, row.count, getattr(row, key) / total) for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=CONFIGS, default="small")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--tokens", type=int, default=1500, help="of the batch, on each side")
    parser.add_argument("--rows", type=int, default=12, help="of the table")
    parser.add_argument("--named", nargs="+", default=[""], help="only operations with one of these in their names")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--trace", help="where to write a time line")
    options = parser.parse_args()
    torch.manual_seed(0)
    seen = profiled(replace(CONFIGS[options.preset], vocab=options.vocab), options.tokens, options.device)
    wanted = [row for row in table(seen, options.device) if any(word in row[0] for word in options.named)]
    for name, calls, share in wanted[: options.rows]:
        print(f"{name[:44]:44} {calls:5} calls {share:5.1%}")
    if options.trace:
        seen.export_chrome_trace(options.trace)


if __name__ == "__main__":
    main()
