"""Does a corpus larger than a reader's memory stream in little memory, and does its first batch come at once?

    python benchmarks/08_streaming.py [--pairs 10000000] [--batches 0] [--seed 0] [--folder DIR] [--out DIR]

Makes sentence pairs from a seed as they are asked for, with lengths like those of picture captions. Their "text" is
already numbers, so that the vocabulary has nothing to do: what is measured is the way from pairs to files and from
files to batches, not a tokeniser. Then, each in a fresh process:

    prepare  encodes all pairs into mapped files
    stream   opens them, takes the first batch, then as many as --batches says (0: the whole epoch)
    kept     the same for a tenth of the batches, but never gives pages back to the system

Before a process streams, the files' pages are dropped from the system's cache, as far as it does so when asked.
Memory is what Linux tells of the process: VmHWM the most that was ever resident, RssAnon its own, RssFile pages of
mapped files, libraries among them. The first batch is timed from opening the folder, imports before it apart.
Writes run.json and scores.json, which appendix G reads.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import script

from annotated.corpora import TokenPairs, prepare
from annotated.data import Batches

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, TOKENS = 8000, 4096


class Numbers:
    """Stands for a vocabulary where the pairs are numbers already."""

    def encode(self, ids):
        return ids

    def __len__(self):
        return VOCABULARY


def synthetic(pairs, seed):
    """Encoded pairs, one after the other; the tokens are slices of one list of random numbers."""
    rng = random.Random(seed)
    pool = [rng.randrange(4, VOCABULARY) for _ in range(1 << 16)]
    sizes = [min(60, max(3, round(rng.lognormvariate(2.45, 0.33)))) for _ in range(1 << 16)]
    for _ in range(pairs):
        chance = rng.getrandbits(50)
        place, s = chance & 0x7FFF, sizes[chance >> 34]
        t = max(3, s + ((chance >> 16) & 7) - 3)
        yield [*pool[place : place + s - 1], 2], [*pool[place + s : place + s + t - 1], 2]


def memory():
    """What Linux says this process takes, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    rows = dict(line.split(":", 1) for line in lines)
    return {name: round(int(rows[name].split()[0]) / 1024, 1) for name in ("VmHWM", "RssAnon", "RssFile")}


def drop_cached(folder):
    """Have the system forget the files' pages, so that reading begins at the disk."""
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def do_prepare(args):
    start = time.perf_counter()
    pairs = prepare(synthetic(args.pairs, args.seed), Numbers(), args.folder)
    size = sum(path.stat().st_size for path in args.folder.iterdir())
    return {
        "pairs": len(pairs),
        "tokens": len(pairs.tokens),
        "length_pairs": len(pairs.runs),
        "bytes": size,
        "bytes_a_pair": round(size / len(pairs), 2),
        "seconds": round(time.perf_counter() - start, 1),
        "MB": memory(),
    }


def do_stream(args):
    begun, start = memory(), time.perf_counter()
    pairs = TokenPairs(args.folder)
    if args.phase == "kept":
        pairs.forget = lambda: None
    batches = Batches(pairs, TOKENS, TOKENS, args.seed)()
    source, target = next(batches)
    first = time.perf_counter() - start
    limit = max(1, args.batches // 10) if args.phase == "kept" and args.batches else args.batches
    found = {"batches": 1, "pairs": len(source), "tokens": 0, "places": 0}
    peaks, start = [], time.perf_counter()
    for number, (source, target) in enumerate(batches, 2):
        if limit and number > limit:
            break
        found["batches"], found["pairs"] = number, found["pairs"] + len(source)
        found["places"] += source.numel() + target.numel() - len(target)
        found["tokens"] += int((source > 0).sum() + (target > 0).sum()) - len(target)
        if number % 100 == 0:
            peaks.append(memory())
    seconds = time.perf_counter() - start
    return {
        "batches": found["batches"],
        "pairs": found["pairs"],
        "padding": round(1 - found["tokens"] / max(1, found["places"]), 4),
        "first_batch_seconds": round(first, 3),
        "batches_a_second": round((found["batches"] - 1) / seconds, 1),
        "seconds": round(seconds, 1),
        "MB_before": begun,
        "MB": memory() | {name + "_most": max(p[name] for p in peaks or [memory()]) for name in ("RssAnon", "RssFile")},
    }


def phase(name, args, **more):
    """Run a phase in a process of its own."""
    options = {"pairs": args.pairs, "seed": args.seed, "folder": args.folder, "batches": args.batches, **more}
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, __file__, "--phase", name, *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, default=0, help="how many to stream; 0 means the whole epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the prepared corpus goes; a temporary one by default")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "08-streaming")
    parser.add_argument("--phase", choices=["prepare", "stream", "kept"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase:
        print(json.dumps((do_prepare if args.phase == "prepare" else do_stream)(args)))
        return
    from annotated.records import Record  # not above: a phase must not load what it does not need

    config = {"pairs": args.pairs, "vocabulary": VOCABULARY, "budget": TOKENS}
    with (tempfile.TemporaryDirectory() as temporary,
          Record.begin(args.out, anew=True, seed=args.seed, config=config) as record):
        args.folder = args.folder or Path(temporary, "prepared")
        scores = {"prepare": phase("prepare", args)}
        record.write_scores(scores)
        drop_cached(args.folder)
        scores["stream"] = phase("stream", args)
        record.write_scores(scores)
        drop_cached(args.folder)
        scores["kept"] = phase("kept", args, batches=scores["stream"]["batches"])
        record.write_scores(scores)
    print(json.dumps(scores, indent=1), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
