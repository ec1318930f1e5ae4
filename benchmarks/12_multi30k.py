"""Score a model of real text, once, and keep what is worth reading of its outputs.

    ANNOTATED_DATA=... python benchmarks/12_multi30k.py --model results/multi30k-cpu [--threads 2]
    ANNOTATED_DATA=... python benchmarks/12_multi30k.py --model results/multi30k-tok-cpu --corpus multi30k-en-de-tok
    ANNOTATED_DATA=... python benchmarks/12_multi30k.py --model results/tatoeba-en-de --corpus tatoeba-en-de --half

The second is the published protocol: trained on the lower-cased, tokenised files and scored over their tokens.
With --half the folder's weights are first rounded to float16, in half of the bytes; `load` makes float32 of them.
Writes into the model's own folder: scores.json (the score with its signature, the same outputs under other
protocols, greedy against beam search on the validation set), outputs.txt, and examples.json.
"""

import argparse
import json
import sys
from pathlib import Path

import script
import torch

from annotated.corpora import load_corpus
from annotated.decoding import load, save
from annotated.evaluation import bleu
from annotated.records import Record, about_model, provenance, read_run

HALF = "The weights are in float16."
RAW = {
    "cased, tokeniser 13a (the score above)": {},
    "lower-cased, tokeniser 13a": {"lowercase": True},
    "cased, tokeniser intl": {"tokenize": "intl"},
    "cased, split at spaces only": {"tokenize": "none"},
    "lower-cased, split at spaces only": {"tokenize": "none", "lowercase": True},
}
PROTOCOLS = {
    "multi30k-en-de": RAW,
    "tatoeba-en-de": RAW,
    "multi30k-en-de-tok": {
        "tokenised files, split at spaces only (the score above)": {"tokenize": "none"},
        "the same, cut further by tokeniser 13a": {},
    },
}


def examples(sources, references, outputs, words=8):
    """Sentences of at least so many words at fixed ranks of their own BLEU: not a choice of ours."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)
    rows = [row for row in zip(sources, references, outputs, strict=True) if len(row[0].split()) >= words]
    scored = sorted(((metric.sentence_score(o, [r]).score, s, r, o) for s, r, o in rows), reverse=True)
    last = len(scored) - 1
    for share in (0, 0.1, 0.25, 0.5, 0.75, 1):
        score, source, reference, output = scored[round(share * last)]
        rank = f"BLEU {score:.0f}, better than {100 * (1 - share):.0f} % of the others"
        yield {"rank": rank, "source": source, "reference": reference, "output": output}


def halve(folder):
    """Write the weights as float16; the model's README says so, once."""
    translator, about = load(folder), (folder / "README.md").read_text(encoding="utf-8")
    if HALF not in about:
        about = f"{about.rstrip()}\n\n{HALF}\n"
    save(folder, translator.model.half(), translator.vocabulary, about)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", choices=PROTOCOLS, default="multi30k-en-de")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=0.6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--half", action="store_true", help="round the weights to float16 first")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trained_on = read_run(options.model)["data"]["corpus"]
    if trained_on != options.corpus:  # or its record would be overwritten
        advice = f": say --corpus {trained_on}" if trained_on in PROTOCOLS else ", which has no protocol here"
        raise ValueError(f"{options.model} was trained on {trained_on}{advice}")
    if options.half:
        halve(options.model)
    corpus, translator = load_corpus(options.corpus), load(options.model)
    scored_by = provenance(model=about_model(options.model))
    sources, references = (list(side) for side in zip(*corpus.test, strict=True))
    protocols = PROTOCOLS[options.corpus]
    own = next(iter(protocols.values()))
    outputs = translator.translate(sources, options.beam, options.alpha)
    score, signature = bleu(outputs, references, **own)
    print(f"BLEU {score:.2f}  {signature}")
    held_out, wanted = (list(side) for side in zip(*corpus.validation, strict=True))
    by_width = {beam: translator.translate(held_out, beam, options.alpha) for beam in (1, options.beam)}
    searches = {f"beam {beam}": bleu(made, wanted, **own)[0] for beam, made in by_width.items()}
    scores = {
        "bleu": round(score, 2), "signature": signature, "corpus": options.corpus, "sentences": len(sources),
        "beam": options.beam, "alpha": options.alpha,
        "protocols": {name: round(bleu(outputs, references, **how)[0], 2) for name, how in protocols.items()},
        "validation": script.rounded(searches, 2),
        "scored_by": scored_by,
    }
    record, chosen = Record(options.model), list(examples(sources, references, outputs))
    record.write("outputs.txt", "\n".join(outputs) + "\n")
    record.write("examples.json", json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")
    record.write_scores(scores)
    print(json.dumps(scores["protocols"] | scores["validation"], indent=1))


if __name__ == "__main__":
    sys.exit(script.run(main))
