"""What the scale, the FFN and the residual connection are worth in a trained translator of the built-in grammar.

    python benchmarks/05_inside.py [--rows "scale none d_k=64" ...] [--seeds 0 1 2] [--out results/05-inside]

Each row is a small Transformer, the norm first, with one part left out or changed. A row has its own rate: short
trainings of another seed try three factors on Eq. 3, and further ones while the best is at an end of what was tried;
their perplexity on validation sentences chooses. Rows of the same seed see the same batches. Everything is measured by
the last weights: on the validation sentences, and on as many training pairs.

Each run is a file of its own under runs/, each row's trials one under trials/. The same command goes on with what is
missing, and several processes may share the work.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from script import alone, best_of, encode_pairs, rounded, run, slug, weights
from torch import nn

from annotated.attention import attention_weights, scaled_dot_product_attention
from annotated.data import Words, token_batches
from annotated.decoding import Translator
from annotated.evaluation import accuracy, bleu, perplexity
from annotated.files import read_json, write_json
from annotated.grammar import grammar_corpus
from annotated.layers import PreNorm
from annotated.multihead import MultiHeadAttention
from annotated.records import Record, provenance
from annotated.training import Recipe, train
from annotated.transformer import TINY, Transformer

BASE = replace(TINY, d_model=64, d_ff=256, h=2, P_drop=0.0, norm="pre")
RATES, FURTHEST, TRIAL = (0.25, 0.5, 1.0), (1 / 64, 8.0), 99  # factors on the rate; the seed of the short trainings


def scaled(power, Q, K, V, mask=None):
    """Attention whose dot products are divided by d_k to this power: 1/2 in the paper."""
    return scaled_dot_product_attention(Q * Q.shape[-1] ** (0.5 - power), K, V, mask)


class Nothing(nn.Module):
    """Stands for a feed-forward network, and adds nothing."""

    def forward(self, x):
        return torch.zeros_like(x)


class Bare(PreNorm):
    """Dropout(Sublayer(LayerNorm(x)))."""

    def add(self, x, change):
        return self.dropout(change)


def layers_of(model):
    return [*model.encoder.layers, *model.decoder.layers]


def without_ffn(model):
    """Each layer's last sub-layer adds nothing any more."""
    for layer in layers_of(model):
        layer.feed_forward = Nothing()


def without_residual(model):
    """No sub-layer's input is added to its output."""
    for layer in layers_of(model):
        for part in layer.add_norm:
            part.__class__ = Bare


@dataclass(frozen=True)
class Row:
    """Fields of the configuration that differ, the power of d_k that divides the scores, a change of the model."""

    config: dict[str, Any] = field(default_factory=dict)
    power: float = 0.5
    change: Callable[[Transformer], None] = lambda model: None

    def model(self, vocab):
        model = Transformer(replace(BASE, vocab=vocab, **self.config), attention=partial(scaled, self.power))
        self.change(model)
        return model


ROWS = {
    "base": Row(),
    **{f"scale {name} d_k={d_k}": Row({"d_k": d_k}, power)
       for d_k in (16, 64, 256) for name, power in (("none", 0.0), ("root", 0.5), ("d_k", 1.0))},
    "no FFN": Row(change=without_ffn),
    "no FFN N=5": Row({"N": 5}, change=without_ffn),  # about as many weights as base
    **{f"residual N={N}": Row({"N": N}) for N in (1, 6)},  # base has two layers
    **{f"no residual N={N}": Row({"N": N}, change=without_residual) for N in (1, 2)},
}


class Sentences:
    """The grammar's sentences as identifiers, and what a model makes of them."""

    def __init__(self, tokens):
        corpus = grammar_corpus()
        self.tokens, self.vocabulary = tokens, Words.build(corpus.train)
        self.pairs, held_out = (encode_pairs(part, self.vocabulary) for part in (corpus.train, corpus.validation))
        self.sources, self.wanted = (list(side) for side in zip(*corpus.validation, strict=True))
        self.held_out, self.seen = (list(token_batches(part, tokens, tokens))
                                    for part in (held_out, self.pairs[: len(held_out)]))

    def trained(self, row, recipe, evaluate=None):
        """The model of a row by a recipe, and the lines of its log."""
        torch.manual_seed(recipe.seed)
        model = row.model(len(self.vocabulary))
        before = largest_weights(model, row.power, self.held_out)
        batches = partial(token_batches, self.pairs, self.tokens, self.tokens, recipe.seed)
        return model, before, train(model, recipe, batches, None, evaluate)

    def measured(self, model):
        """Perplexity and accuracy on held-out sentences, and perplexity on training pairs."""
        found = {"perplexity": perplexity(model, self.held_out), "accuracy": accuracy(model, self.held_out),
                 "training_perplexity": perplexity(model, self.seen)}
        return rounded(found, 4)

    def translated(self, model):
        """BLEU of greedy search, and how many sentences are right to the last word."""
        written = Translator(model.eval(), self.vocabulary).translate(self.sources, 1)
        score, signature = bleu(written, self.wanted)
        exact = sum(a == b for a, b in zip(written, self.wanted, strict=True))
        return {"bleu": round(score, 2), "signature": signature, "exact": exact, "sentences": len(self.wanted)}


@contextmanager
def attending(model, attention):
    """Every attention of a model by another function, inside `with`."""
    parts = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    before = [part.attention for part in parts]
    try:
        for part in parts:
            part.attention = attention
        yield
    finally:
        for part, known in zip(parts, before, strict=True):
            part.attention = known


@torch.no_grad()
def largest_weights(model, power, batches):
    """The mean over heads and queries of the largest weight on the source, in the first batch, padded queries too."""
    largest = []

    def watch(Q, K, V, mask=None):
        if mask is not None and mask.shape[-2] == 1:  # the source's padding, for every query
            shares = attention_weights(Q * Q.shape[-1] ** (0.5 - power), K, mask)
            largest.append(shares.amax(-1).mean().item())
        return scaled(power, Q, K, V, mask)

    source, target, *_ = batches[0]
    model.eval()
    memory = model.encode(source)
    with attending(model, watch):
        model.decode(target[:, :-1], memory, source)
    return round(sum(largest) / len(largest), 4)


def best_rate(name, sentences, recipe, options):
    """The best factor on a row's rate by short trainings, and all that were tried."""
    path = options.out / "trials" / f"{slug(name)}.json"
    tried = read_json(path)["perplexity"] if path.exists() else {}

    def attempt(rate):
        if str(rate) not in tried:
            short = replace(recipe, steps=options.trial, rate=rate, seed=TRIAL, evaluate_every=options.trial)
            try:
                model, *_ = sentences.trained(ROWS[name], short)
                tried[str(rate)] = round(perplexity(model, sentences.held_out), 4)
            except FloatingPointError:
                tried[str(rate)] = None  # it diverged
            write_json(path, {"row": name, "steps": options.trial, "seed": TRIAL, "perplexity": tried})

    for rate in RATES:
        attempt(rate)
    while True:
        rates, best = sorted(map(float, tried)), best_of(tried)
        further = best / 2 if best == rates[0] else best * 2
        if best not in (rates[0], rates[-1]) or not FURTHEST[0] <= further <= FURTHEST[1]:
            return best
        attempt(further)


def one_run(name, recipe, sentences, out):
    """Train and measure."""
    began = provenance(row=name, recipe=recipe)
    model, before, log = sentences.trained(ROWS[name], recipe, sentences.measured)
    curve = [line for line in log if "perplexity" in line]
    made = began | {
        "config": model.config.__dict__, "power": ROWS[name].power,
        "parameters": weights(model),
        **{key: curve[-1][key] for key in ("perplexity", "accuracy", "training_perplexity")},
        **sentences.translated(model), "curve": curve,
        "largest_weight": {"before": before, "after": largest_weights(model, ROWS[name].power, sentences.held_out)},
    }
    write_json(out, made)
    print(f"{name:18} seed {recipe.seed}  perplexity {made['perplexity']:7.3f}  exact {made['exact']}", flush=True)


def go(options):
    """Make the runs that the record lacks."""
    torch.set_num_threads(1)
    sentences = Sentences(options.tokens)
    recipe = Recipe(steps=options.steps, warmup=options.warmup, source_tokens=options.tokens,
                    target_tokens=options.tokens, evaluate_every=max(1, options.steps // 10))
    rules = {"rates": RATES, "furthest": FURTHEST, "trial": options.trial}
    with Record.begin(options.out, free=("seed",), config=BASE, recipe=recipe, trials=rules):
        for name in options.rows:
            unless_taken(name, sentences, recipe, options)


def unless_taken(name, sentences, recipe, options):
    """Make the runs of a row, unless another process is at it."""
    with alone(options.out / "trials" / f"{slug(name)}.lock") as ours:
        if not ours:
            return
        rate = best_rate(name, sentences, recipe, options)
        for seed in options.seeds:
            out = options.out / "runs" / f"{slug(name, seed)}.json"
            if not out.exists():
                one_run(name, replace(recipe, rate=rate, seed=seed), sentences, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW",
                        help="some of: " + ", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000, help="updates of a run")
    parser.add_argument("--trial", type=int, default=500, help="updates of a training that chooses a rate")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=512, help="of a batch, on each side, padding included")
    parser.add_argument("--out", type=Path, default=Path("results/05-inside"))
    return run(go, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
