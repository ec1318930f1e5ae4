"""How well four ways translate the built-in grammar's held-out sentences: a table, word for word, two networks.

    python benchmarks/12_grammar.py [--seconds 90] [--seeds 0 1 2] [--out results/12-grammar]

Both networks are trained for the same number of seconds of one core's time, whatever else the machine does, on the
same batches, each at the rate that short trainings of another seed preferred, on validation sentences.
"""

import argparse
import sys
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from script import encode_pairs, run, weights
from tqdm import tqdm

from annotated.data import Words, lookup_baseline, token_batches, word_for_word_baseline
from annotated.decoding import Translator
from annotated.evaluation import bleu
from annotated.grammar import grammar_corpus
from annotated.optimization import learning_rate, optimizer
from annotated.records import Record
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import _stream, update
from annotated.transformer import TINY, Transformer

RATES = {"RecurrentSeq2Seq": (1.0, 2.0, 4.0, 8.0), "Transformer": (0.2, 0.4, 0.8, 1.6)}
WARMUP, TOKENS, TRIAL = 150, 512, 99  # the last is the seed of the short trainings


def build(name, vocab, seed):
    """A network of about the same width, before training."""
    torch.manual_seed(seed)
    if name == "Transformer":
        return Transformer(replace(TINY, N=1, d_ff=256, vocab=vocab, P_drop=0.0))
    return RecurrentSeq2Seq(RecurrentConfig(vocab=vocab, d_model=TINY.d_model, P_drop=0.0))


def fit_for(model, batches, rate, seconds):
    """Train for so many seconds of this thread; the mean of the last weights (section 6.1). Returns the updates."""
    adam, coming, steps, last = optimizer(model), _stream(batches), 0, deque(maxlen=5)
    until = time.thread_time() + seconds  # work of others does not count
    with tqdm(unit="step", desc=type(model).__name__) as bar:
        while time.thread_time() < until:
            steps += 1
            for group in adam.param_groups:
                group["lr"] = learning_rate(steps, TINY.d_model, WARMUP, rate)
            source, target, _ = next(coming)
            update(model.train(), adam, [(source, target)])
            bar.update()
            if steps % 20 == 0:
                last.append([p.detach().clone() for p in model.parameters()])
    last = last or [[p.detach().clone() for p in model.parameters()]]  # a trial, of less than twenty updates
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.stack([kept[number] for kept in last]).mean(0))
    return steps


def go(options):
    """Train and score; the two programs without a network first."""
    torch.set_num_threads(1)
    corpus = grammar_corpus()
    vocabulary = Words.build(corpus.train)
    pairs = encode_pairs(corpus.train, vocabulary)
    sources, wanted = (list(side) for side in zip(*corpus.test, strict=True))
    held_out, held_wanted = (list(side) for side in zip(*corpus.validation[:100], strict=True))

    def trained(name, seed, rate, seconds):
        model = build(name, len(vocabulary), seed)
        updates = fit_for(model, partial(token_batches, pairs, TOKENS, TOKENS, seed), rate, seconds)
        return partial(Translator(model, vocabulary).translate, beam=1), updates

    programs = {"lookup table": lookup_baseline, "word for word": word_for_word_baseline}
    scores = {"bleu": {}, "sentences": len(sources)}
    for name, program in programs.items():
        score, scores["signature"] = bleu(program(corpus.train, sources), wanted)
        scores["bleu"][name] = round(score, 2)
    what = {"seeds": options.seeds, "seconds": options.seconds, "warmup": WARMUP, "tokens": TOKENS}
    with Record.begin(options.out, anew=True, packages=("sacrebleu",), **what) as record:
        for name, rates in RATES.items():
            trials = {}
            for rate in rates:
                translate, _ = trained(name, TRIAL, rate, options.seconds / 4)
                trials[rate] = round(bleu(translate(held_out), held_wanted)[0], 2)
            rate = max(trials, key=trials.get)
            made = {seed: trained(name, seed, rate, options.seconds) for seed in options.seeds}
            scores["bleu"][name] = [round(bleu(translate(sources), wanted)[0], 2) for translate, _ in made.values()]
            about = {"rate": rate, "validation BLEU of trials": trials,
                     "parameters": weights(build(name, len(vocabulary), 0)),
                     "updates": [updates for _, updates in made.values()]}
            with record.change("run.json") as told:
                told.setdefault("networks", {})[name] = about
            print(name, scores["bleu"][name], about)
            record.write_scores(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/12-grammar"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
