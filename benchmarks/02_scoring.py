"""Does additive scoring cost more time than dot-product scoring, and is a matrix product the reason?

    python benchmarks/02_scoring.py [--device cuda] [--threads 1] [--seed 0] [--rounds 12] [--out results/02-scoring]

Scores T queries against S = T keys in three ways that take the same number of multiplications:

    dot       all inner products at once, as one matrix product (section 3.2.1)
    pairwise  the same inner products without a matrix product: multiply every pair, then sum
    additive  v . tanh(q + k) for every pair

The third differs from the first in two things, the tanh and the missing matrix product; the second in one.
Backward, the third also has a gradient by v.
With one CPU thread the clock is this process's own processor time, so that other work on the machine counts
little. Memory is kept from call to call, as CUDA's allocator keeps it, so that no call waits for the system's pages.
Writes run.json (how it was run) and scores.json (one entry per scoring, size and pass), which chapter 02 reads.
"""

import argparse
import math
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import script
import torch
from peers import keep_memory

from annotated.records import Record
from annotated.recurrent import additive_scores

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = [8, 16, 32, 64, 128, 256, 512]  # at T = S = LENGTH
LENGTHS = [16, 32, 64, 128, 256, 512, 1024]  # at d = WIDTH
LENGTH, WIDTH = 128, 64


def dot(Q, K, v):
    return Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])


def pairwise(Q, K, v):
    return (Q.unsqueeze(-2) * K.unsqueeze(-3)).sum(-1) / math.sqrt(Q.shape[-1])


SCORINGS = {"dot": dot, "pairwise": pairwise, "additive": additive_scores}


def inputs(length, width, device, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(length, width), (length, width), (width,)]
    return [torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes]


def forward(scoring, tensors):
    with torch.no_grad():
        return scoring(*tensors)


def both(scoring, tensors, gradient):
    used = tensors if scoring is additive_scores else tensors[:2]
    return torch.autograd.grad(scoring(*tensors), used, gradient)


def seconds(f, args):
    """The times of single calls after one to warm up: five, or as many as start within a fifth of a second."""
    wait = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)
    clock = getattr(time, clock_of(args))
    f()
    wait()
    times, begun = [], time.perf_counter()
    while not times or (len(times) < 5 and time.perf_counter() - begun < 0.2):
        start = clock()
        f()
        wait()
        times.append(clock() - start)
    return times


def clock_of(args):
    """Processor time where it means something: for one thread, on the CPU."""
    return "process_time" if args.device == "cpu" and args.threads == 1 else "perf_counter"


def cases(args):
    """Every size, scoring and pass, with the call to time."""
    for length, width in sorted({(LENGTH, d) for d in WIDTHS} | {(t, WIDTH) for t in LENGTHS}):
        tensors = inputs(length, width, args.device, args.seed)
        gradient = torch.ones(length, length, device=args.device)
        for name, scoring in SCORINGS.items():
            entry = {"scoring": name, "T": length, "S": length, "d": width}
            yield entry | {"pass": "forward"}, partial(forward, scoring, tensors)
            yield entry | {"pass": "forward and backward"}, partial(both, scoring, tensors, gradient)


def measure(args):
    """Go through all cases in rounds, so that a busy minute of the machine falls on none alone."""
    every = list(cases(args))
    times = [[] for _ in every]
    for number in range(args.rounds):
        for (_, f), found in zip(every, times):
            found += seconds(f, args)
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    return [
        entry | {"seconds_min": min(found), "seconds_median": statistics.median(found), "calls": len(found)}
        for (entry, _), found in zip(every, times)
    ]


def config_of(args, kept):
    return {
        "rounds": args.rounds,
        "clock": clock_of(args),
        "memory_kept": kept,
        "dtype": "float32",
        "widths": WIDTHS,
        "width_of_lengths": WIDTH,
        "lengths": LENGTHS,
        "length_of_widths": LENGTH,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=12, help="passes over all sizes; the fastest call counts")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "02-scoring")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with Record.begin(args.out, anew=True, seed=args.seed, config=config_of(args, keep_memory())) as record:
        scores = measure(args)
        record.write_scores(scores)
    print(f"{args.out.name}: {len(scores)} measurements", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
