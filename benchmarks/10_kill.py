"""Does a training that is killed with -9 at any moment, and started again, end as if nothing had happened?

    python benchmarks/10_kill.py [--once 20] [--often 5] [--seed 0] [--out results/10-kill]

A small training with dropout, two batches an update, evaluation and a checkpoint after every second update runs
undisturbed. Then it is killed at a random moment of that time and resumed, `--once` times; and `--often` trainings
are killed again and again, after random shares of that time, until one attempt comes through.
At the end all checkpoints (weights, optimizer, progress) and the log must equal the undisturbed ones byte for byte,
but for the seconds that the log's evaluations give.
Each attempt is a process of its own, forked from this one, which has loaded the libraries and trains nothing.
Writes run.json and scores.json, which chapter 10 reads, and exits with 1 if any ending differs.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from annotated.data import Words, grammar_corpus, replacing, token_batches
from annotated.evaluation import cross_entropy
from annotated.optimization import optimizer
from annotated.training import Recipe, list_checkpoints, provenance, train
from annotated.transformer import TINY, Transformer

RECIPE = Recipe(steps=40, warmup=10, accumulate=2, evaluate_every=5, save_every=2, keep=3)
SIZES = replace(TINY, N=1, d_model=32, d_ff=32, h=2, P_drop=0.3)
COMPARED = ["model.safetensors, adam.safetensors and progress.json of every checkpoint", "log.jsonl, without seconds"]


def training(folder, pairs, vocab):
    """One attempt; goes on from what the folder holds."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # the progress bar
    torch.manual_seed(0)
    model = Transformer(replace(SIZES, vocab=vocab))
    held_out = list(token_batches(pairs[:20], 100, 100))
    batches = lambda epoch, position: token_batches(pairs, 100, 100, epoch=epoch, start=position)  # noqa: E731
    train(model, RECIPE, batches, folder, lambda model: {"held_out": cross_entropy(model, held_out)})


def attempt(work, gap=None):
    """Run training in a process and kill it after so many seconds; returns whether it had ended by itself."""
    process = multiprocessing.get_context("fork").Process(target=training, args=work)
    process.start()
    process.join(gap)
    ended = process.exitcode is not None
    process.kill()
    process.join()
    if ended and process.exitcode != 0:
        raise SystemExit(f"{work[0]}: the training failed by itself, with {process.exitcode}")
    return ended


def left(folder, gap):
    """What a kill left behind."""
    found, log = list_checkpoints(folder), Path(folder, "log.jsonl")
    return {
        "after_seconds": round(gap, 3),
        "newest_checkpoint": int(found[-1].name) if found else None,
        "log_lines": len(log.read_text().splitlines()) if log.exists() else 0,
        "half_written": any(Path(folder, "checkpoints").glob(".*.part")),
    }


def contents(folder):
    """Every file of a finished training, by name."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    files["log.jsonl"] = re.sub(rb'"seconds": \d+, ', b"", files["log.jsonl"])
    return files


def trial(work, gaps, expected):
    """Kill after each of the gaps, until an attempt ends by itself; then let it end."""
    kills, ended = [], False
    for gap in gaps:
        if ended := attempt(work, gap):
            break
        kills.append(left(work[0], gap))
    if not ended:
        attempt(work)
    return {"kills": kills, "identical": contents(work[0]) == expected}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", type=int, default=20, help="trainings that are killed once")
    parser.add_argument("--often", type=int, default=5, help="trainings that are killed until they end")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path("results/10-kill"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    moments = random.Random(options.seed)
    corpus = grammar_corpus()
    vocabulary = Words.build(corpus.train)
    pairs = [(vocabulary.encode(a), vocabulary.encode(b)) for a, b in corpus.train[:200]]
    optimizer(Transformer(replace(SIZES, vocab=len(vocabulary))))  # the first loads much of torch, once for all forks
    with tempfile.TemporaryDirectory() as place:
        work = lambda name: (f"{place}/{name}", pairs, len(vocabulary))  # noqa: E731
        start = time.monotonic()
        attempt(work("undisturbed"))
        seconds = time.monotonic() - start
        expected = contents(f"{place}/undisturbed")
        once, often = [], []
        for number in range(options.once):
            once.append(trial(work(f"once-{number}"), [moments.uniform(0, seconds)], expected))
        for number in range(options.often):
            gaps = iter(lambda: moments.uniform(0, 0.6) * seconds, None)
            often.append(trial(work(f"often-{number}"), gaps, expected))
    scores = {"seconds_undisturbed": round(seconds, 3), "compared": COMPARED, "files": len(expected)}
    scores |= {"once": once, "again_and_again": often}
    options.out.mkdir(parents=True, exist_ok=True)
    run = provenance(seed=options.seed, config=SIZES, recipe=RECIPE)
    for name, content in (("run.json", run), ("scores.json", scores)):
        with replacing(options.out / name) as fresh:
            fresh.write_text(json.dumps(content, indent=1) + "\n")
    same = sum(trial["identical"] for trial in once + often)
    print(f"{same} of {len(once + often)} trainings ended like the undisturbed one", file=sys.stderr)
    sys.exit(same < len(once + often))


if __name__ == "__main__":
    main()
