"""How far the choices around one model move its score: search, averaging, case, tokens, references.

    ANNOTATED_DATA=... python benchmarks/12_protocols.py --model DIR --checkpoints DIR [--out results/12-protocols]

--model is a model folder whose weights are the mean of the last five checkpoints, in float32 or
float16; --checkpoints holds these five.
The sentences are a fixed part of Tatoeba's validation set; the test set is not read.
Writes run.json, scores.json and outputs/: source, reference, further references and each system's outputs.
"""

import argparse
import json
import re
import sys
from itertools import zip_longest
from pathlib import Path

import script
import torch

from annotated.corpora import load_corpus
from annotated.data import make_batch
from annotated.decoding import Translator, _evaluating, load
from annotated.evaluation import _resampled_difference, accuracy, bleu, bleu_counts, chrf, cross_entropy
from annotated.records import Record, about_corpus, about_model
from annotated.training import average

CHECKPOINTS = {"last checkpoint": 1, "mean of 5": 5}
SEARCHES = {"greedy": (1, 0.0), "beam 4, alpha 0": (4, 0.0), "beam 4, alpha 0.6": (4, 0.6)}
BASE = "mean of 5, beam 4, alpha 0.6"
SCORINGS = {
    "cased, 13a": {},
    "lower-cased, 13a": {"lowercase": True},
    "cased, intl": {"tokenize": "intl"},
    "cased, split at spaces": {"tokenize": "none"},
    "lower-cased, split at spaces": {"tokenize": "none", "lowercase": True},
    "cased, characters": {"tokenize": "char"},
}


def held_out(corpus, size):
    """So many different sentences of the validation set at equal distances, each with all its translations."""
    translations = {}
    for source, target in corpus.validation:
        translations.setdefault(source, []).append(target)
    every, size = list(translations.items()), min(size, len(translations))
    return dict(every[i * len(every) // size] for i in range(size))  # to the end: the file goes from short to long


def split_compounds(lines, tokenizer):
    """Tokenised text with compounds split at hyphens, as the script of the released code does it."""
    return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenizer(line)) for line in lines]


def count_all(outputs, references):
    """As `bleu_counts`, with several references a sentence."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)
    scores = [metric.sentence_score(output, wanted) for output, wanted in zip(outputs, references, strict=True)]
    return torch.tensor([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores])


def scorings(outputs, translations):
    """The same outputs under every protocol: name -> (score, signature, counts of each sentence)."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International

    references = [wanted[0] for wanted in translations]
    made = {name: (outputs, references, how) for name, how in SCORINGS.items()}
    for name, tokenizer in (("13a", Tokenizer13a()), ("intl", TokenizerV14International())):
        sides = [split_compounds(side, tokenizer) for side in (outputs, references)]
        made[f"cased, {name}, compounds split at hyphens"] = (*sides, {"tokenize": "none"})
    found = {name: (*bleu(a, b, **how), bleu_counts(a, b, **how)) for name, (a, b, how) in made.items()}
    metric = BLEU()
    score = metric.corpus_score(outputs, list(zip_longest(*translations))).score
    found["cased, 13a, every reference"] = (score, str(metric.get_signature()), count_all(outputs, translations))
    return found


def compare(counts, base, samples):
    """The difference of two scores with its interval, in points of BLEU."""
    difference, (low, high), p = _resampled_difference(counts, base, samples)
    return {"difference": round(difference, 2), "low": round(low, 2), "high": round(high, 2), "p": round(p, 4)}


def guided(translator, sources, references):
    """What the model says of the reference when it is given every right word before: loss, accuracy, "outputs"."""
    model = translator.model
    pairs = script.encode_pairs(zip(sources, references, strict=True), translator.vocabulary)
    batches = [make_batch(pairs[start : start + 50]) for start in range(0, len(pairs), 50)]
    outputs = []
    with _evaluating(model):
        for source, target in batches:
            best = model(source, target[:, :-1]).argmax(-1)  # (B, T)
            lengths = (target[:, 1:] != model.config.pad).sum(1).tolist()
            outputs += [translator.vocabulary.decode(ids[:n]) for ids, n in zip(best.tolist(), lengths, strict=True)]
    return {
        "accuracy_percent": round(100 * accuracy(model, batches), 2),
        "loss_nats_a_token": round(cross_entropy(model, batches), 4),
        "tokens": sum(len(target) for _, target in pairs),
        "bytes": sum(len(line.encode()) + 1 for line in references),
        "bleu": round(bleu(outputs, references)[0], 2),
        "bleu_on_characters": round(bleu(outputs, references, tokenize="char")[0], 2),
    }


def translate(options, sources):
    """Name -> outputs of every pair of checkpoint and search; and the translator with the mean weights."""
    outputs, given, made = {}, load(options.model), load(options.model)
    for weights, k in CHECKPOINTS.items():
        if average(made.model, options.checkpoints.parent, k) != k:
            raise ValueError(f"{options.checkpoints} must be a folder checkpoints/ with {k} checkpoints or more")
        translator = Translator(made.model, made.vocabulary)  # anew: it may keep a copy of the weights
        for search, (beam, alpha) in SEARCHES.items():
            outputs[f"{weights}, {search}"] = translator.translate(sources, beam, alpha)
    for mine, theirs in zip(made.model.parameters(), given.model.parameters(), strict=True):
        if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-6):
            raise ValueError(f"{options.model} is not the mean of {options.checkpoints}: name its own --checkpoints")
    if len(set(map(tuple, outputs.values()))) < len(outputs):
        raise ValueError("two systems translate every sentence alike: are their weights the same?")
    return outputs, translator


def measure(corpus, options, record):
    """Translate and score in every way."""
    chosen = held_out(corpus, options.sentences)
    sources, translations = list(chosen), list(chosen.values())
    references = [wanted[0] for wanted in translations]
    outputs, translator = translate(options, sources)
    found = {name: scorings(made, translations) for name, made in outputs.items()}
    base = found[BASE]["cased, 13a"][2]
    systems = {
        name: {
            "bleu": {scoring: round(score, 2) for scoring, (score, _, _) in found[name].items()},
            "chrf": round(chrf(made, references)[0], 2),
            "words": sum(len(line.split()) for line in made),
            "against_base": compare(found[name]["cased, 13a"][2], base, options.samples),
        }
        for name, made in outputs.items()
    }
    scores = {
        "sentences": len(sources), "split": "validation", "samples": options.samples, "base": BASE,
        "reference_words": sum(len(line.split()) for line in references),
        "with_several_references": sum(len(wanted) > 1 for wanted in translations),
        "with_hyphen": sum(bool(re.search(r"\S-\S", line)) for line in references),
        "signatures": {name: signature for name, (_, signature, _) in found[BASE].items()}
        | {"chrF": chrf(outputs[BASE], references)[1]},
        "systems": systems,
        "scorings_against_base": {
            name: compare(counts, base, options.samples) for name, (_, _, counts) in found[BASE].items()
        },
        "teacher_forced": guided(translator, sources, references),
    }
    record.write_scores(scores)
    texts = {"source": sources, "reference": references} | outputs
    texts["further-references"] = ["\t".join(wanted[1:]) for wanted in translations]
    for name, lines in texts.items():
        file = re.sub(r"[ ,]+", "-", name) + ".txt"
        record.write(f"outputs/{file}", "".join(line + "\n" for line in lines))
    print(json.dumps({name: s["bleu"]["cased, 13a"] for name, s in systems.items()}, indent=1))
    print(json.dumps(scores["scorings_against_base"] | scores["teacher_forced"], indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/12-protocols"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    corpus, model = load_corpus("tatoeba-en-de"), about_model(options.model)
    with Record.begin(options.out, anew=True, seed=0, data=about_corpus(corpus), model=model) as record:
        measure(corpus, options, record)


if __name__ == "__main__":
    sys.exit(script.run(main))
