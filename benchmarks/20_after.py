"""What pre-training is worth, and what the changes since 2017 do: small models of the built-in grammar.

    python benchmarks/20_after.py pretraining [--seeds 0 1 2] [--out results/20-pretraining]
    python benchmarks/20_after.py longer [--seeds 0 1 2] [--out results/20-longer]
    python benchmarks/20_after.py changes [--seeds 0 1 2] [--out results/20-changes]
    python benchmarks/20_after.py changes --rate 0.012 --out results/20-changes-faster

pretraining: trains a masked-word model on the grammar's English sentences and keeps its weights.
Then it trains classifiers that tell right sentences from such with one wrong verb form, on few and on more labels,
beginning with those weights and with random ones, at several learning rates, and scores each on the validation and
the test sentences.
The chapter takes, for each start and number of labels, the rate that is best on the validation sentences.

longer: trains the classifier with random weights on the labels alone, for as many updates as pre-training and
fine-tuning take together.

changes: trains language models, the stack of 2017 and the same with each later change, all by one recipe,
and the two orders of the norm also without warm-up, and measures the loss on the validation sentences.
The chapter shows both of the learning rates above.

Each run is written as it ends; the same command goes on with the runs that are missing.
"""

import argparse
import json
import math
import random
import sys
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from script import run, weights

from annotated.after import (
    CHANGES,
    Classifier,
    LanguageModel,
    MaskedModel,
    _accuracy,
    _judge,
    _label_sentences,
    _learn,
    causal_loss,
    finetune,
    pretrain,
)
from annotated.data import Words, pad_batch
from annotated.decoding import _evaluating
from annotated.files import atomic_write
from annotated.grammar import grammar_examples
from annotated.records import Record
from annotated.transformer import TINY

LABELS = (50, 200, 1000, 4000)
RATES = (1e-3, 3e-3)


def record_of(options, config, **what):
    """The record of these options; more seeds may follow."""
    return Record.begin(options.out, free=("seeds",), seed=0, seeds=options.seeds, config=config, **what)


def add_run(record, made):
    """Add a run to the record as it is now: another process may be making other seeds."""
    with record.change("scores.json") as scores:
        scores["runs"].append(made)
    print(json.dumps(made))


def begun(record, **empty):
    """The scores so far."""
    with record.change("scores.json") as scores:
        for name, value in {**empty, "runs": []}.items():
            scores.setdefault(name, value)
        return scores


def masked_model(record, config, text, blank, settings):
    """The pre-trained model: trained once, then read again."""
    model, path = MaskedModel(config).eval(), record.folder / "model.safetensors"
    if path.exists():
        load_model(model, path)
        return model
    torch.manual_seed(0)
    model = MaskedModel(config)
    losses = pretrain(model, text, blank, **settings)
    means = [{"step": i + 100, "loss": round(sum(losses[i : i + 100]) / 100, 4)} for i in range(0, len(losses), 100)]
    record.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in means))
    with atomic_write(path) as fresh:
        save_model(model, fresh)
    return model


def pretraining(options):
    """Pre-train once, then fine-tune for every start, number of labels, rate and seed."""
    train, validation, test = grammar_examples(20000, 500, 500)
    words = Words.build((x.source, x.source) for x in train)
    blank = len(words)
    config = replace(TINY, vocab=blank + 1, d_model=64, d_ff=256, P_drop=0.0)
    settings = {"steps": options.steps, "rate": 3e-3, "seed": 0}
    what = {"pretraining": settings, "finetuning": {"steps": 150, "sentences": 32, "rates": RATES}}
    with record_of(options, config, **what) as record:
        words.save(record.folder / words.filename)
        model = masked_model(record, config, [[1, *words.encode(x.source)] for x in train], blank, settings)
        scores = begun(record, measured="share of sentences right", rates=RATES)
        rng = random.Random(0)
        task = {"train": _label_sentences(train, rng), "test": _label_sentences(test, rng)}
        task["validation"] = _label_sentences(validation, rng)
        if "without labels" not in scores:
            held_out = {name: task[name] for name in ("validation", "test")}
            asked = {name: [_judge(model, words, s, blank) == y for s, y in part] for name, part in held_out.items()}
            scores["without labels"] = {name: round(sum(right) / len(right), 4) for name, right in asked.items()}
            scores["sentences"] = {name: len(rows) for name, rows in task.items()}
            with record.change("scores.json") as now:
                now.update({name: scores[name] for name in ("without labels", "sentences")})
        rows = {name: [([1, *words.encode(s)], y) for s, y in part] for name, part in task.items()}
        done = {(r["start"], r["labels"], r["rate"], r["seed"]) for r in scores["runs"]}
        for seed in options.seeds:
            own = random.Random(seed).sample(rows["train"], len(rows["train"]))
            for labels in LABELS:
                for rate in RATES:
                    for start in ("pre-trained", "random"):
                        if (start, labels, rate, seed) in done:
                            continue
                        torch.manual_seed(seed)
                        body = deepcopy(model) if start == "pre-trained" else MaskedModel(config)
                        classifier = Classifier(body, 2)
                        losses = finetune(classifier, own[:labels], 150, rate, seed)
                        add_run(record, {
                            "start": start, "labels": labels, "rate": rate, "seed": seed,
                            "training_loss": round(sum(losses[-10:]) / 10, 4),
                            **{name: round(_accuracy(classifier, rows[name]), 4) for name in ("validation", "test")}})


def longer(options):
    """Train on labels alone for as long as pre-training and fine-tuning take together."""
    train, validation, test = grammar_examples(20000, 500, 500)
    words = Words.build((x.source, x.source) for x in train)
    config = replace(TINY, vocab=len(words) + 1, d_model=64, d_ff=256, P_drop=0.0)
    settings = {"steps": options.steps, "rate": 1e-3, "sentences": 32}
    with record_of(options, config, training=settings) as record:
        scores = begun(record, measured="share of sentences right")
        rng = random.Random(0)  # the same task as in `pretraining`
        rows = {name: [([1, *words.encode(s)], y) for s, y in _label_sentences(part, rng)]
                for name, part in (("train", train), ("test", test), ("validation", validation))}
        done = {(r["labels"], r["seed"]) for r in scores["runs"]}
        for seed in options.seeds:
            own = random.Random(seed).sample(rows["train"], len(rows["train"]))
            for labels in LABELS[2:]:
                if (labels, seed) not in done:
                    torch.manual_seed(seed)
                    classifier = Classifier(MaskedModel(config), 2)
                    losses = finetune(classifier, own[:labels], settings["steps"], settings["rate"], seed)
                    add_run(record, {
                        "labels": labels, "seed": seed, "training_loss": round(sum(losses[-10:]) / 10, 4),
                        **{name: round(_accuracy(classifier, rows[name]), 4) for name in ("validation", "test")}})


def one_change(config, text, held_out, change, warmup, options, seed):
    """Train the stack of 2017 with some changes; its loss on held-out sentences, and its size."""
    torch.manual_seed(seed)
    model = LanguageModel(config)
    for name in change:
        CHANGES[name](model)
    generator = torch.Generator().manual_seed(seed)

    def loss():
        rows = torch.randint(len(text), (64,), generator=generator).tolist()
        return causal_loss(model, pad_batch([text[i] for i in rows]))

    began = time.perf_counter()
    losses = _learn(model, loss, options.steps, options.rate, warmup)
    with _evaluating(model):
        measured = causal_loss(model, held_out).item()
        _, caches = model.step(held_out[:1, :8], model.start(1))
    return {
        "validation": round(measured, 4) if math.isfinite(measured) else None,
        "training": round(sum(losses[-50:]) / 50, 4), "parameters": weights(model),
        "cache_bytes_a_token": sum(cache.K.nbytes + cache.V.nbytes for cache in caches) // 8,
        "seconds": round(time.perf_counter() - began, 1)}


def changes(options):
    """Train every model with every seed; the two orders of the norm, 2017's and later, without warm-up too."""
    names = ["2017", *CHANGES, "all"]
    language_models(options, [(name, 50) for name in names] + [("2017", 1), ("norm first", 1)])


def language_models(options, wanted):
    """Train a language model for every (name, warm-up) and seed that the record lacks."""
    train, validation, _ = grammar_examples(20000, 500, 500)
    words = Words.build((x.source, x.source) for x in train)
    text, held_out = ([[1, *words.encode(x.source)] for x in part] for part in (train, validation))
    config = replace(TINY, vocab=len(words), N=4, d_model=64, d_ff=192, h=4, P_drop=0.0)
    settings = {"steps": options.steps, "rate": options.rate, "sentences": 64, "warmup": [1, 50]}
    with record_of(options, config, training=settings) as record:
        scores = begun(record, measured="nats a token, validation sentences")
        done = {(r["name"], r["warmup"], r["seed"]) for r in scores["runs"]}
        models = {"2017": []} | {name: [name] for name in CHANGES} | {"all": list(CHANGES)}
        for seed in options.seeds:
            for name, steps in wanted:
                if (name, steps, seed) not in done:
                    made = one_change(config, text, pad_batch(held_out), models[name], steps, options, seed)
                    add_run(record, {"name": name, "warmup": steps, "seed": seed, **made})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pretraining", "longer", "changes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="updates of the pre-training, or of each language model")
    parser.add_argument("--rate", type=float, default=4e-3, help="of the language models")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.out = options.out or Path("results", f"20-{options.what}")
    options.steps = options.steps or {"pretraining": 3000, "longer": 3150}.get(options.what, 200)
    torch.set_num_threads(options.threads)
    return run({"pretraining": pretraining, "longer": longer, "changes": changes}[options.what], options)


if __name__ == "__main__":
    sys.exit(main())
