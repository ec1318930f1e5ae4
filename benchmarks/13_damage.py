"""What does the command line make of damaged files? Ten thousand damages to three kinds of folders.

    python benchmarks/13_damage.py [--trials 10000] [--seed 0] [--out results/13-damage]

Each trial copies a folder (a model of ours, a MarianMT model, a training that is to go on) and damages one of its
files: bytes flipped, a file cut, replaced or removed, a value in JSON made another one, huge, negative or NaN, weights
made NaN. Then `translate`, or `train` with the same settings, is run on it. Right is: one line on stderr and status 2,
no file changed but the note of a sitting in run.json and tokens that are made again; or status 0, as many lines as were
given, and for a training the very weights of the undamaged one. Each within limits of memory and time (see damage.py).
Writes run.json and scores.json, with every trial that went wrong, and exits with 1 if there is one.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from damage import KINDS, MEMORY, SECONDS, make, trial
from script import run
from tqdm import tqdm

from annotated.records import Record


def go(options):
    torch.set_num_threads(1)
    seeds = range(options.seed * options.trials, (options.seed + 1) * options.trials)
    counts, wrong = Counter(), []
    limits = {"memory_mb": MEMORY, "seconds": SECONDS}
    what = {"seed": options.seed, "trials": options.trials, "limits": limits}
    with tempfile.TemporaryDirectory() as place, Record.begin(options.out, anew=True, **what) as record:
        make(Path(place))
        quiet = open(os.devnull, "w")
        for seed in tqdm(seeds, file=sys.stdout if sys.stdout.isatty() else quiet):
            kind = KINDS[seed % len(KINDS)]
            done, status, fault = trial(Path(place), kind, seed)
            counts[f"{kind} {status}"] += 1
            if fault:
                wrong.append({"seed": seed, "kind": kind, "damage": done, "status": status, "fault": fault})
        by_kind = dict(sorted(counts.items()))
        record.write_scores({"trials": options.trials, "by_kind_and_status": by_kind, "wrong": wrong})
    print(f"{len(wrong)} of {options.trials} went wrong; {dict(sorted(counts.items()))}", file=sys.stderr)
    for row in wrong[:20]:
        print(row, file=sys.stderr)
    options.wrong = len(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="another one damages otherwise")
    parser.add_argument("--out", type=Path, default=Path("results/13-damage"))
    options = parser.parse_args()
    status = run(go, options)
    sys.exit(status or options.wrong > 0)


if __name__ == "__main__":
    main()
