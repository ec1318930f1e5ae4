"""How long one recurrent layer and one self-attention layer take, against the length of the sentence.

    python benchmarks/01_sequential.py [--out results/01-sequential]

One thread, one sentence at a time, forward. At n = d_model both layers do the same number of
multiplications, so that what differs there is the order in which they may be done.
The second question: what it costs in training, forward and backward, to call the decoder of chapter 01
once a word instead of once a sentence.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import script
import torch
from torch import nn

from annotated.records import Record
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = [16, 32, 64, 128, 256, 512, 1024]
D_MODEL, HEADS, SEED = 256, 4, 0
BATCH, WORDS, VOCAB = 32, 32, 1000  # of the second question


def milliseconds(functions, repeats):
    """Each function's fastest time, lower quartile and median; processor time, which on one
    thread is the time on the clock less what other programs took; called in turns all the same."""
    times = [[] for _ in functions]
    for repeat in range(repeats + 2):  # the first two do not count
        for f, kept in zip(functions, times):
            begin = time.process_time()
            f()
            if repeat > 1:
                kept.append(1e3 * (time.process_time() - begin))
    return [[round(t, 4) for t in (min(kept), *statistics.quantiles(kept, n=4)[:2])] for kept in times]


def layers(repeats):
    """Times of the two layers at every length, and how many multiplications each of them does."""
    recurrent = nn.GRU(D_MODEL, D_MODEL, batch_first=True)
    attention = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    for n in LENGTHS:
        x = torch.randn(1, n, D_MODEL)
        both = partial(recurrent, x), partial(attention, x, x, x, need_weights=False)
        recurrent_ms, attention_ms = milliseconds(both, repeats)
        yield {
            "n": n,
            "recurrent_ms": recurrent_ms,
            "attention_ms": attention_ms,
            # products with weights, a position; attention also compares and averages n positions
            "recurrent_multiplications": n * 6 * D_MODEL**2,
            "attention_multiplications": n * (4 * D_MODEL**2 + 2 * n * D_MODEL),
        }


def decoder(repeats):
    """Times of a forward and a backward pass over a target, in one call and word by word."""
    model = RecurrentSeq2Seq(RecurrentConfig(vocab=VOCAB, d_model=D_MODEL, P_drop=0.0))
    source, target = torch.randint(4, VOCAB, (2, BATCH, WORDS))
    memory = model.encode(source).detach()

    def at_once():
        model.decode(target, memory, source).sum().backward()

    def word_by_word():
        state, total = model.prepare(memory, source), 0
        for ids in target.unbind(1):
            logits, state = model.step(ids, state)
            total = total + logits.sum()
        total.backward()

    return dict(zip(("at_once_ms", "word_by_word_ms"), milliseconds((at_once, word_by_word), repeats)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "01-sequential")
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    config = {
        "d_model": D_MODEL, "h": HEADS, "sentences": 1, "repeats": args.repeats, "pass": "forward",
        "decoder": {"sentences": BATCH, "words": WORDS, "vocab": VOCAB, "pass": "forward and backward"},
    }
    data = {"corpus": "random numbers"}
    with Record.begin(args.out, anew=True, seed=SEED, config=config, data=data) as record:
        scores = {"unit": "milliseconds of processor time: fastest, lower quartile, median"}
        with torch.no_grad():
            scores["layers"] = list(layers(args.repeats))
        record.write_scores(scores)
        scores["decoder"] = decoder(max(3, args.repeats // 4))
        record.write_scores(scores)
    for row in scores["layers"]:
        print(row["n"], row["recurrent_ms"], row["attention_ms"], file=sys.stderr)
    print(scores["decoder"], file=sys.stderr)


if __name__ == "__main__":
    sys.exit(script.run(main))
