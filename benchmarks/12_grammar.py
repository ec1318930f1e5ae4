"""How well four ways translate the built-in grammar's held-out sentences: a table, word for word, two networks.

    python benchmarks/12_grammar.py [--seconds 40] [--threads 2] [--out results/12-grammar]

Both networks are trained for the same number of seconds on the same processor, one after the other,
on the same batches, each at the rate that a short trial on validation sentences preferred.
"""

import argparse
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
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

RATES = {"Transformer": (0.2, 0.4, 0.8), "RecurrentSeq2Seq": (1.0, 2.0, 4.0)}
WARMUP, TOKENS = 150, 512


def build(name, vocab, seed):
    """A network of about the same width, before training."""
    torch.manual_seed(seed)
    if name == "Transformer":
        return Transformer(replace(TINY, N=1, d_ff=256, vocab=vocab, P_drop=0.0))
    return RecurrentSeq2Seq(RecurrentConfig(vocab=vocab, d_model=TINY.d_model, P_drop=0.0))


def fit_for(model, batches, rate, seconds):
    """Train for so many seconds and take the mean of the last weights (section 6.1); returns the number of updates."""
    adam, coming, steps, last = optimizer(model), _stream(batches), 0, deque(maxlen=5)
    until = time.monotonic() + seconds
    with tqdm(unit="step", desc=type(model).__name__) as bar:
        while time.monotonic() < until:
            steps += 1
            for group in adam.param_groups:
                group["lr"] = learning_rate(steps, TINY.d_model, WARMUP, rate)
            source, target, _ = next(coming)
            update(model.train(), adam, [(source, target)])
            bar.update()
            if steps % 20 == 0:
                last.append([p.detach().clone() for p in model.parameters()])
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.stack([weights[number] for weights in last]).mean(0))
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/12-grammar"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus = grammar_corpus()
    vocabulary = Words.build(corpus.train)
    pairs = [(vocabulary.encode(source), vocabulary.encode(target)) for source, target in corpus.train]
    batches = lambda epoch, start: token_batches(pairs, TOKENS, TOKENS, options.seed, epoch, start)  # noqa: E731
    sources, wanted = (list(side) for side in zip(*corpus.test, strict=True))
    scores, outputs, about = {}, {}, {}
    outputs["lookup table"] = lookup_baseline(corpus.train, sources)
    outputs["word for word"] = word_for_word_baseline(corpus.train, sources)
    with Record.begin(options.out, anew=True, seed=options.seed, seconds=options.seconds) as record:
        for name in ("RecurrentSeq2Seq", "Transformer"):
            build_one = partial(build, name, len(vocabulary), options.seed)
            held_out = [list(side) for side in zip(*corpus.validation[:100], strict=True)]
            trials = {}
            for rate in RATES[name]:
                model = build_one()
                fit_for(model, batches, rate, options.seconds / 4)
                trials[rate] = bleu(Translator(model, vocabulary).translate(held_out[0], beam=1), held_out[1])[0]
            rate = max(trials, key=trials.get)
            model = build_one()
            steps = fit_for(model, batches, rate, options.seconds)
            outputs[name] = Translator(model, vocabulary).translate(sources, beam=1)
            about[name] = {"rate": rate, "updates": steps, "parameters": sum(p.numel() for p in model.parameters()),
                           "validation_bleu_of_trials": {str(r): round(b, 2) for r, b in trials.items()}}
            with record.change("run.json") as run:
                run["networks"] = about
        for name, made in outputs.items():
            score, signature = bleu(made, wanted)
            scores[name] = round(score, 2)
            print(f"{name:20} {score:6.2f}")
        record.write_scores({"bleu": scores, "signature": signature, "sentences": len(sources)})


if __name__ == "__main__":
    main()
