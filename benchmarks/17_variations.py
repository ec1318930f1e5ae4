"""Table 3 again at a reduced scale: one training for each row and seed, on Multi30k English-German.

    ANNOTATED_DATA=... python benchmarks/17_variations.py                        every usual run that the record lacks
    ANNOTATED_DATA=... python benchmarks/17_variations.py --row "A h=1" --seeds 0 1 2      these runs

All rows are trained by one recipe, with one vocabulary, for equally many updates; rows of the same seed see the same
batches. The released code's presets change the recipe by the factors by which their own numbers differ from the
paper's. Everything is measured on the validation set by the last weights, as the paper's table is (no averaging); the
perplexity also on as many training pairs, the first. With --keep n checkpoints, --save_every updates apart, a run
also has what the means of its last ones are worth (section 6.1).

Each run is a file of its own under runs/, with its provenance. The same command goes on with the runs that are
missing, and in the middle of a run that was stopped. Several processes may share the work: each takes runs that
no other has begun.

With --norm pre every row has its norm before each sub-layer, and one after the stack. With --rates the factor on the
rate is the one at which base, of a seed of its own, has the lowest perplexity after --trial updates; the record keeps
what was tried. In the record of rows as the paper has them it was chosen so among 0.25, 0.5 and 1, after 500 updates.
Updates, pairs and vocabulary are what two cores have time for; a GPU has time for more (--device cuda --width 4
--depth 1, and another --out).
"""

import argparse
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from script import alone, best_of, encode_pairs, rounded, run, slug, weights
from table_3 import CORPUS, small_recipe

from annotated.corpora import load_corpus
from annotated.cpu import CPURun
from annotated.data import Subwords, token_batches
from annotated.decoding import Translator
from annotated.embedding import positional_encoding
from annotated.evaluation import _resampled_difference, accuracy, bleu, bleu_counts, perplexity
from annotated.files import sha256_of, write_json
from annotated.records import Record, about_corpus, read_run
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import Run, average, train
from annotated.transformer import Transformer
from annotated.variations import _PRE_NORM, _RELEASED_PRESETS, _SCORES, TABLE_3, Variation, shrink


@dataclass(frozen=True)
class Positions(Variation):
    """Row E with other first vectors of the positions, or with vectors that training does not change."""

    sines: bool = False
    fixed: bool = False

    def model(self, config):
        model = Transformer(config)
        rows = model.positions.weight
        if self.sines:
            rows.data = positional_encoding(torch.arange(len(rows)), config.d_model)
        rows.requires_grad_(not self.fixed)
        return model


POSITIONS = {  # row E is learned, from random vectors; base has sines, fixed
    "positions from sines": Positions({"positions": "learned"}, sines=True),
    "positions random fixed": Positions({"positions": "learned"}, fixed=True),
}
RECURRENT = 640  # d_model of the recurrent baseline before the division, whose weights are then about as many as base's
ROWS = TABLE_3 | _SCORES | _PRE_NORM | _RELEASED_PRESETS | {"recurrent": None}
ROWS.pop("paper")  # base under another name
ROWS |= POSITIONS
SEEDS = {"base": range(5)}  # of any other row: 0
TRIAL = 99  # the seed of trainings that choose a rate
AVERAGED = 2, 5, 10, 20  # numbers of checkpoints; the paper's are 5 and 20


def build(row, vocab, seed, width=8, depth=2, norm=None):
    """The untrained model of a row, its sizes divided by width and its layers by depth; norm: instead of the row's."""
    torch.manual_seed(seed)
    if ROWS[row] is None:
        return RecurrentSeq2Seq(RecurrentConfig(vocab, RECURRENT // width))
    config = replace(shrink(ROWS[row].config, width, depth), vocab=vocab)
    if norm:
        config = replace(config, norm=norm, final_norm=None)
    return ROWS[row].model(config)


def start_of(row, device):
    """The run of appendix N on a CPU, for models that have nothing else than a Config says."""
    plain = ROWS[row] is not None and ROWS[row].scores is None
    return CPURun if plain and torch.device(device).type == "cpu" else Run


def interval(outputs, references):
    """The 95 % interval of a BLEU score when the sentences are drawn anew."""
    counts = bleu_counts(outputs, references)
    _, ends, _ = _resampled_difference(counts, torch.zeros_like(counts))
    return [round(end, 2) for end in ends]


def recipe_of(row, options):
    """The reduced recipe of a row, with as many checkpoints as are asked for."""
    recipe = small_recipe(ROWS[row], options)
    return replace(recipe, keep=options.keep, save_every=options.save_every or recipe.save_every)


def one_run(row, seed, corpus, vocabulary, options):
    """Train and measure; the training's folder is a cache that outlives an interrupt."""
    recipe = replace(recipe_of(row, options), seed=seed)
    pairs, held_out = (encode_pairs(part, vocabulary) for part in (corpus.train, corpus.validation))
    began = time.monotonic()
    model = build(row, len(vocabulary), seed, options.width, options.depth, options.norm)
    model.to(options.device)
    batches = partial(token_batches, pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed)
    check, seen = (list(token_batches(part, options.tokens, options.tokens))
                   for part in (held_out, pairs[: len(held_out)]))

    def measure(model):
        found = {"perplexity": perplexity(model, check), "accuracy": accuracy(model, check),
                 "training_perplexity": perplexity(model, seen)}
        return rounded(found, 4)

    folder = options.cache / slug(row, seed)
    Record.begin(folder, row=row, config=model.config, recipe=recipe,  # a run that was stopped goes on
                 data=about_corpus(corpus, pairs=len(pairs)), subwords_sha256=sha256_of(vocabulary.model))
    log = train(model, recipe, batches, folder, measure, start_of(row, options.device))
    seconds = max(line.get("seconds", 0) for line in log)
    sources, references = (list(side) for side in zip(*corpus.validation, strict=True))

    def translations(model):
        return Translator(model.eval(), vocabulary).translate(sources, 4)

    outputs = translations(model)
    score, signature = bleu(outputs, references)
    curve = [line for line in log if "perplexity" in line]
    last = [line["loss"] for line in log if "loss" in line and line["step"] > 0.9 * recipe.steps]
    made = read_run(folder) | {
        "parameters": weights(model),
        **{name: curve[-1][name] for name in ("perplexity", "accuracy", "training_perplexity")},
        "bleu": round(score, 2), "bleu_interval": interval(outputs, references), "signature": signature,
        "training_loss": round(sum(last) / len(last), 4), "epochs": epochs(pairs, recipe),
        "training_seconds": seconds, "seconds": round(time.monotonic() - began), "curve": curve,
        "examples": outputs[:5],
    }
    if recipe.keep > 1:  # last, because a mean takes the place of the weights
        made["averages"] = {
            average(model, folder, k): {
                **measure(model.eval()), "bleu": round(bleu(translations(model), references)[0], 2)}
            for k in AVERAGED if k <= recipe.keep}
    write_json(options.out / "runs" / f"{slug(row, seed)}.json", made)
    shutil.rmtree(folder)
    return made


def best_rate(corpus, vocabulary, options, record):
    """The best of the rates by short trainings of base; those that are missing are made now."""
    pairs, held_out = (encode_pairs(part, vocabulary) for part in (corpus.train, corpus.validation))
    check = list(token_batches(held_out, options.tokens, options.tokens))
    scores = {"perplexity of base after a trial": {}, **record.scores}
    tried = scores["perplexity of base after a trial"]
    for rate in options.rates:
        if str(rate) not in tried:
            short = argparse.Namespace(**vars(options) | {"steps": options.trial, "rate": rate})
            recipe = replace(small_recipe(ROWS["base"], short), seed=TRIAL)
            model = build("base", len(vocabulary), TRIAL, options.width, options.depth, options.norm)
            batches = partial(token_batches, pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed)
            try:
                train(model.to(options.device), recipe, batches, None, None, start_of("base", options.device))
                tried[str(rate)] = round(perplexity(model, check), 4)
            except FloatingPointError:
                tried[str(rate)] = None  # it diverged
            record.write_scores(scores)
    return best_of(tried)


def epochs(pairs, recipe):
    """How often the updates go through the corpus."""
    batches = sum(1 for _ in token_batches(pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed))
    return round(recipe.steps / batches, 2)


def begin(options, corpus, vocabulary):
    """The record that all runs share; one begun otherwise is not gone on with."""
    config = build("base", len(vocabulary), 0, options.width, options.depth, options.norm).config
    lengths = {part: len(getattr(corpus, part)) for part in ("train", "validation")}
    recipe = asdict(recipe_of("base", options))
    if options.rates:
        recipe |= {"rate": options.rates, "trial": options.trial}
    return Record.begin(
        options.out, recipe=recipe, subwords_sha256=sha256_of(vocabulary.model),
        config=config, data=about_corpus(corpus, pairs=lengths))


def usual_rows(norm):
    """The rows that are run if none are named: those of Table 3 and, with a norm of their own, chapter 17's others."""
    return [row for row in ROWS if row in TABLE_3 or not norm and row not in POSITIONS]


def go(options):
    """Make the runs that the record lacks."""
    torch.set_num_threads(options.threads)
    corpus = load_corpus(CORPUS)
    corpus = replace(corpus, train=corpus.train[: options.pairs], validation=corpus.validation[: options.pairs])
    # The file of the pieces names this limit, which no line comes near, and older records know the file by its hash.
    limit = {"max_sentence_length": 1 << 16}
    vocabulary = Subwords.train((text for pair in corpus.train for text in pair), options.vocab, **limit)
    options.cache.mkdir(parents=True, exist_ok=True)
    with begin(options, corpus, vocabulary) as record:
        if options.rates:
            options.rate = best_rate(corpus, vocabulary, options, record)
        for row in options.row or usual_rows(options.norm):
            for seed in SEEDS.get(row, [0]) if options.seeds is None else options.seeds:
                unless_made(row, seed, corpus, vocabulary, options)


def unless_made(row, seed, corpus, vocabulary, options):
    """Make a run, unless it is there or another process is at it."""
    name = slug(row, seed)
    with alone(options.cache / f"{name}.lock") as ours:
        if not ours or (options.out / "runs" / f"{name}.json").exists():
            return
        print(f"{row}, seed {seed}", file=sys.stderr)
        made = one_run(row, seed, corpus, vocabulary, options)
    print(f"{row:16} seed {seed}  perplexity {made['perplexity']:6.3f}  BLEU {made['bleu']:5.2f}", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=list(ROWS), metavar="ROW", help="rows to run: " + ", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 0 to 4 of base, 0 of the others")
    parser.add_argument("--steps", type=int, default=1500, help="updates of a run")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.5, help="a factor on Eq. 3")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="the best of these, by short trainings")
    parser.add_argument("--trial", type=int, default=500, help="updates of a training that chooses the rate")
    parser.add_argument("--keep", type=int, default=1, help="checkpoints of a run")
    parser.add_argument("--save_every", type=int, help="updates between them; default: a tenth of all")
    parser.add_argument("--norm", choices=("pre", "post"), help="of every row; default: as the row has it")
    parser.add_argument("--tokens", type=int, default=1500, help="of a batch, on each side, padding included")
    parser.add_argument("--vocab", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=10000, help="sentence pairs to train on, from the first")
    parser.add_argument("--width", type=int, default=8, help="divides d_model, d_ff, d_k and d_v of every row")
    parser.add_argument("--depth", type=int, default=2, help="divides the number of layers of every row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=Path(".cache/17-variations"), help="of trainings under way")
    parser.add_argument("--out", type=Path, default=Path("results/17-variations"))
    options = parser.parse_args(arguments)
    return run(go, options)


if __name__ == "__main__":
    sys.exit(main())
