"""The compact Transformer of "The paper in an hour", trained once for each seed on the built-in grammar, then scored.

    python benchmarks/hour.py [--seeds 0 1 2] [--threads 1] [--jobs 1] [--out results/hour]

Runs book/the_transformer.py as it stands, with its own recipe, which was chosen on validation sentences. The test
sentences are translated once a seed. `seconds` are those of the processor, in training alone; `waited` those of the
clock, which on a shared machine are more. Writes run.json and scores.json.
"""

import argparse
import importlib.util
import inspect
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import script
import torch
from tqdm import tqdm

from annotated.evaluation import bleu
from annotated.grammar import grammar_corpus
from annotated.records import Record

PROGRAM = Path(__file__).resolve().parent.parent / "book" / "the_transformer.py"


def load():
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("the_transformer", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(seed, threads):
    """Train by the program's own recipe, translate the test sentences; a row of the record."""
    torch.set_num_threads(threads)
    hour, corpus = load(), grammar_corpus()
    vocabulary = hour.Vocabulary(text for pair in corpus.train for text in pair)
    pairs = [tuple(map(vocabulary.encode, pair)) for pair in corpus.train]
    sources, right = (list(side) for side in zip(*corpus.test, strict=True))
    random.seed(seed)
    torch.manual_seed(seed)
    model = hour.Transformer(len(vocabulary.words))
    began, work = time.perf_counter(), time.process_time()
    for _ in tqdm(hour.train(model, pairs), desc=f"seed {seed}", unit="step", position=seed):
        pass
    work, waited = time.process_time() - work, time.perf_counter() - began
    written = hour.translate(model, vocabulary, sources)
    score, signature = bleu(written, right)
    exact = sum(a == b for a, b in zip(written, right, strict=True))
    return {"seed": seed, "seconds": round(work, 1), "waited": round(waited, 1), "bleu": round(score, 2),
            "exact": exact, "sentences": len(right), "signature": signature}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--out", type=Path, default=Path("results/hour"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hour = load()
    recipe = {name: p.default for f in (hour.Transformer.__init__, hour.train, hour.batches, hour.smoothed_loss)
              for name, p in inspect.signature(f).parameters.items() if p.default is not p.empty}
    what = {"seed": options.seeds, "jobs": options.jobs, "recipe": recipe}
    pool = ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"))
    with Record.begin(options.out, anew=True, **what) as record, pool:
        rows = list(pool.map(measured, options.seeds, [options.threads] * len(options.seeds)))
        record.write_scores({"seeds": rows})
    print(*rows, sep="\n")


if __name__ == "__main__":
    sys.exit(script.run(main))
