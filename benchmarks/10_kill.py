"""Does a training that is killed or stopped at any moment, and started again, end as if nothing had happened?

    python benchmarks/10_kill.py [--once 20] [--often 5] [--seed 0] [--out results/10-kill]

A small training with dropout, two batches an update, evaluation and a checkpoint after every second update runs
undisturbed. Then, for each of the signals KILL, TERM, HUP and INT, `--once` trainings get it at a random moment each
and are resumed; and `--often` trainings are killed again and again, until one attempt comes through. A moment is a
random number of lines in the log, and from there a random delay of about two updates at most.
At the end all checkpoints (weights, optimizer, progress) and the log must equal the undisturbed ones byte for byte,
but for the seconds that they note, and the hash of a progress that holds them.
A training that gets TERM, HUP or INT must also have written a checkpoint of its last logged update before it ends.
Each attempt is a process of its own, forked from this one, which has loaded the libraries and trains nothing.
Writes run.json and scores.json, which chapter 10 reads, and exits with 1 if any ending differs. Some 5 minutes of a
free core; most of it are the trainings themselves, so fewer of them (`--once 2 --often 1`) take less.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import script
import torch

from annotated.data import Words, token_batches
from annotated.evaluation import cross_entropy
from annotated.grammar import grammar_corpus
from annotated.optimization import optimizer
from annotated.records import Record
from annotated.training import Recipe, list_checkpoints, train
from annotated.transformer import TINY, Transformer

RECIPE = Recipe(steps=40, warmup=10, accumulate=2, evaluate_every=5, save_every=2, keep=3)
SIZES = replace(TINY, N=1, d_model=32, d_ff=32, h=2, P_drop=0.3)
DELAY = 0.06
LIMIT = 300  # seconds, even on a machine that is busy: an attempt that takes longer hangs
STOPPED = 130
SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
COMPARED = ["model.safetensors and adam.safetensors of every checkpoint", "progress.json, log.jsonl, without seconds"]
TIMES = rb'"seconds": \d+(, )?|"progress": "\w+"'


def training(folder, pairs, vocab):
    """One attempt; goes on from what the folder holds."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # the progress bar
    try:
        listen()
        torch.manual_seed(0)
        model = Transformer(replace(SIZES, vocab=vocab))
        held_out = list(token_batches(pairs[:20], 100, 100))
        batches = lambda epoch, position: token_batches(pairs, 100, 100, epoch=epoch, start=position)  # noqa: E731
        train(model, RECIPE, batches, folder, lambda model: {"held_out": cross_entropy(model, held_out)})
    except KeyboardInterrupt:
        sys.exit(STOPPED)


def listen():
    """Signals do in this process what they usually do, also if it was begun by `nohup` or in the background."""
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)


def lines_of(folder):
    log = Path(folder, "log.jsonl")
    return log.read_bytes().count(b"\n") if log.exists() else 0


def begin(work):
    """Start a training; a signal that comes before it can listen waits until it can."""
    process = multiprocessing.get_context("fork").Process(target=training, args=work)
    signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    process.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    return process


def attempt(work, lines=None, delay=0.0, name="SIGKILL"):
    """Run training in a process, and send it a signal so many seconds after its log has so many lines.

    Returns:
        whether it had ended by itself, as it does in any case without `lines`.
    """
    began = time.monotonic()
    process = begin(work)
    if lines is not None:
        while process.is_alive() and lines_of(work[0]) < lines and time.monotonic() < began + LIMIT:
            time.sleep(0.002)
    process.join(LIMIT if lines is None else delay)
    ended = process.exitcode is not None
    if not ended:
        os.kill(process.pid, getattr(signal, name))
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        raise ValueError(f"{work[0]}: the training did not end within {LIMIT} seconds")
    check_end(work[0], process.exitcode, None if ended else name)
    return ended


def check_end(folder, status, name=None):
    """Refuse an ending that is neither of a whole training nor of one that got this signal."""
    if name is None:
        if status != 0:
            raise ValueError(f"{folder}: the training ended with {status}, and nobody had stopped it")
        return
    # One that is asked to stop behind its last update ends as one that was not asked.
    # One that is asked before it has begun, or when it is over, ends as any program does.
    if status not in (0, STOPPED, -getattr(signal, name)):
        raise ValueError(f"{folder}: the training ended with {status} after {name}")
    newest, logged = left(folder)["newest_checkpoint"], last_update(folder)
    if name != "SIGKILL" and newest != logged:
        raise ValueError(f"{folder}: after {name} the newest checkpoint is {newest}, the log ends at {logged}")


def last_update(folder):
    log = Path(folder, "log.jsonl")
    rows = log.read_text().splitlines() if log.exists() else []
    return json.loads(rows[-1])["step"] if rows else None


def left(folder):
    """What a kill left behind."""
    found = list_checkpoints(folder)
    newest = int(found[-1].name) if found else None
    in_part = [int(path.name[1:].removesuffix(".part")) for path in Path(folder, "checkpoints").glob(".*.part")]
    return {
        "newest_checkpoint": newest,
        "log_lines": lines_of(folder),
        "half_written": any(step > (newest or 0) for step in in_part),  # one that is removed has such a name, too
    }


def contents(folder):
    """Every file of a finished training, by name."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    noted = (name for name in files if Path(name).suffix in (".json", ".jsonl"))
    return files | {name: re.sub(TIMES, b"", files[name]) for name in noted}


def trial(work, moments, often, expected, name="SIGKILL"):
    """Send a training a signal once, or again and again until an attempt ends by itself; then let it end."""
    total, kills, ended = expected["log.jsonl"].count(b"\n"), [], False
    while not ended and (often or not kills):
        already = lines_of(work[0])
        lines = already + moments.randint(-3, 8) if often else moments.randrange(total)
        ended = attempt(work, lines, moments.uniform(0, DELAY), name)
        if not ended:
            kills.append(left(work[0]))
    if not ended:
        attempt(work)
    return {"signal": name, "kills": kills, "identical": contents(work[0]) == expected}


def tell(result):
    """Say how a trial ended; no bar of tqdm, whose lock a killed child would take with it."""
    moments = [kill["newest_checkpoint"] for kill in result["kills"]]
    ending = "the same" if result["identical"] else "DIFFERENT"
    print(result["signal"], "after checkpoint", *moments, ending, file=sys.stderr)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--once", type=int, default=20, help="trainings that get a signal once, for each signal")
    parser.add_argument("--often", type=int, default=5, help="trainings that are killed until they end")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--out", type=Path, default=Path("results/10-kill"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    moments = random.Random(options.seed)
    corpus = grammar_corpus()
    vocabulary = Words.build(corpus.train)
    pairs = script.encode_pairs(corpus.train[:200], vocabulary)
    optimizer(Transformer(replace(SIZES, vocab=len(vocabulary))))  # the first loads much of torch, once for all forks
    what = {"seed": options.seed, "config": SIZES, "recipe": RECIPE}
    with tempfile.TemporaryDirectory() as place, Record.begin(options.out, anew=True, **what) as record:
        work = lambda name: (f"{place}/{name}", pairs, len(vocabulary))  # noqa: E731
        record.write_scores({"once": [], "again_and_again": []})  # from here on a failure stays in the record
        attempt(work("undisturbed"))
        expected = contents(f"{place}/undisturbed")
        each = [(name, i) for name in SIGNALS for i in range(options.once)]
        once = [tell(trial(work(f"{name}-{i}"), moments, False, expected, name)) for name, i in each]
        often = [tell(trial(work(f"often-{i}"), moments, True, expected)) for i in range(options.often)]
        scores = {"compared": COMPARED, "files": len(expected), "longest_delay_seconds": DELAY}
        record.write_scores(scores | {"once": once, "again_and_again": often})
    same = sum(trial["identical"] for trial in once + often)
    print(f"{same} of {len(once + often)} trainings ended like the undisturbed one", file=sys.stderr)
    sys.exit(same < len(once + often))


if __name__ == "__main__":
    sys.exit(script.run(main))
