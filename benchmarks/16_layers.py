"""What the layers of Table 1 cost, in time and in memory, against the length n and the width d.

    python benchmarks/16_layers.py [--out results/16-layers] [--budget 0.4] [--most 25]

One thread, one sentence, forward. The layers take turns at every n and d, so that what slows the machine
down for a while slows all of them down. Then the kernel k and the neighbourhood r are varied at one n and d.
Memory is counted twice: the peak of what a forward pass without gradients holds at a time, from PyTorch's
own record of allocations, and what a pass with gradients keeps for the way back.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import script
import torch
from peers import keep_memory
from torch import nn
from tqdm import tqdm

from annotated.comparison import (
    Convolution,
    _kept_bytes,
    _table_layers,
    multiplications,
    restricted_attention,
    separable_convolution,
)
from annotated.layers import FeedForward
from annotated.multihead import MultiHeadAttention
from annotated.records import Record

ROOT = Path(__file__).resolve().parent.parent
LENGTHS, WIDTHS = [64, 128, 256, 512, 1024, 2048, 4096], [64, 128, 256, 512]
K, R, HEAD = 3, 33, 64
KERNELS, NEIGHBOURHOODS = [3, 9, 27, 81], [17, 33, 65, 129, 257]
K_AT, R_AT = (512, 128), (2048, 128)  # n, d where k and where r is varied


class Lstm(nn.LSTM):
    """PyTorch's own layer, which is faster than a loop in Python; gives the states alone."""

    def forward(self, x):
        return super().forward(x)[0]


class SelfAttention(MultiHeadAttention):
    """Attention with its four projections, looking at its own input."""

    def forward(self, x):
        return super().forward(x, x)


def look_around(x, r):
    """Restricted self-attention without projections."""
    return restricted_attention(x, x, x, r=r)


def layers(d):
    """Table 1, and what stands around attention in the model."""
    return _table_layers(d, K, R) | {
        "recurrent": Lstm(d, d, batch_first=True),
        "self-attention with projections": SelfAttention(d, d // HEAD),
        "feed-forward": FeedForward(d, 4 * d),
    }


def work(n, d, name):
    """Products of two numbers: of Table 1 as the module counts them, of the others as weights and pairs say."""
    others = {"self-attention with projections": 4 * n * d * d + 2 * n * n * d, "feed-forward": 8 * n * d * d}
    return (multiplications(n, d, K, R) | others)[name]


def milliseconds(functions, x, budget, most):
    """Fastest time and median of each function; processor time, which on one thread leaves out other programs."""
    times = {name: [] for name in functions}
    for f in functions.values():
        f(x)
    began = time.perf_counter()
    for turn in range(max(3, most)):
        if turn > 2 and time.perf_counter() - began > budget * len(functions):
            break
        for name, f in functions.items():
            start = time.process_time()
            f(x)
            times[name].append(1e3 * (time.process_time() - start))
    return {name: [round(min(t), 4), round(statistics.median(t), 4)] for name, t in times.items()}


def peak_bytes(f, x):
    """The most memory that one call holds at a time, beyond its input and weights."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        f(x)
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measure(functions, n, d, args):
    """Rows of one n and d: time, peak of memory, what is kept."""
    x = torch.randn(1, n, d)
    with torch.no_grad():
        times = milliseconds(functions, x, args.budget, args.most)
        peaks = {name: peak_bytes(f, x) for name, f in functions.items()}
    return [
        {"layer": name, "n": n, "d": d, "ms": times[name], "peak": peaks[name], "kept": _kept_bytes(f, x)}
        for name, f in functions.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "16-layers")
    parser.add_argument("--budget", type=float, default=0.4, help="seconds for a layer at one n and d")
    parser.add_argument("--most", type=int, default=25, help="passes at most; three are always made")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    grid, kernels, neighbourhoods = [], [], []
    config = {"sentences": 1, "k": K, "r": R, "d_k": HEAD, "d_ff / d": 4, "k_at": K_AT, "r_at": R_AT}
    with Record.begin(args.out, anew=True, seed=0, config=config) as record:
        for d in tqdm(WIDTHS, unit="width"):
            for n in LENGTHS:
                functions = layers(d)
                grid += [row | {"multiplications": work(n, d, row["layer"])} for row in measure(functions, n, d, args)]
        n, d = K_AT
        for k in KERNELS:
            functions = {"convolutional": Convolution(d, k), "convolutional (separable)": separable_convolution(d, k)}
            kernels += [row | {"k": k} for row in measure(functions, n, d, args)]
        n, d = R_AT
        for r in NEIGHBOURHOODS:
            functions = {"self-attention (restricted)": partial(look_around, r=r)}
            neighbourhoods += [row | {"r": r} for row in measure(functions, n, d, args)]
        scores = {
            "unit": "ms: milliseconds of processor time, fastest and median; peak, kept: bytes",
            "config": config,
            "grid": grid,
            "kernels": kernels,
            "neighbourhoods": neighbourhoods,
        }
        record.write_scores(scores)
    for row in grid:
        if row["n"] in (64, 4096):
            print(row, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
