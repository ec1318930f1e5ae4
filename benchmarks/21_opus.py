"""The published opus-mt-en-de in the book's classes: its outputs and its score, beside `transformers`.

    python benchmarks/21_opus.py [--model Helsinki-NLP/opus-mt-en-de] [--threads 2] [--out results/21-opus-mt-en-de]

Needs a network, or --model with a folder that was fetched before. The 1,000 sentences of Multi30k test 2016, by
`transformers` with the settings that come with the model, by the same search here, and by the book's beam 4 with
alpha 0.6: cased sacreBLEU of each, the share of equal outputs, and seconds. Every output is written to outputs.txt,
a line each: ours, the book's search, transformers, with tabs between. Writes run.json and scores.json, too.
"""

import argparse
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import script
import torch
from peers import keep_memory, of_transformers

from annotated.corpora import load_corpus
from annotated.evaluation import bleu
from annotated.interop import PublishedTranslator, _find_folder, load_marian
from annotated.records import Record, about_corpus, about_model

BATCH, LONGEST = 32, 200


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Helsinki-NLP/opus-mt-en-de")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lines", type=int, default=1000, help="fewer for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/21-opus-mt-en-de"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*sacremoses.*")
    torch.set_num_threads(options.threads)
    keep_memory()
    folder = _find_folder(options.model)
    corpus = load_corpus("multi30k-en-de")
    pairs = corpus.test[: options.lines]
    lines, references = (list(side) for side in zip(*pairs, strict=True))
    from transformers import MarianMTModel, MarianTokenizer

    theirs, tokenizer = MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)
    book = load_marian(folder)
    ours = PublishedTranslator(book.model, book.vocabulary, replace(book.how, max_len=LONGEST))
    how = {"sort": True, "bar": "transformers", "max_new_tokens": LONGEST}
    sides = {
        "ours": lambda lines: ours.translate(lines, book.how.beam, book.how.power),
        "ours, the book's search": lambda lines: book.translate(lines),
        "transformers": lambda lines: of_transformers(theirs, tokenizer, BATCH, lines, **how),
    }
    scores, made = {"model": options.model, "sentences": len(lines), "beam": book.how.beam}, {}
    model = {**about_model(folder), "folder": options.model}  # not where this machine keeps it
    what = {"config": book.model.config, "model": model, "data": about_corpus(corpus)}
    with Record.begin(options.out, anew=True, packages=("transformers",), seed=0, **what) as record:
        for side, translate in sides.items():
            translate(lines[:BATCH])  # the first call is slower
            began = time.perf_counter()
            made[side] = translate(lines)
            scores[side] = {"seconds": round(time.perf_counter() - began, 1)}
            value, scores["signature"] = bleu(made[side], references)
            same = sum(map(str.__eq__, made[side], made["ours"])) / len(lines)
            scores[side] |= {"BLEU": round(value, 2), "outputs equal to ours": round(same, 3)}
            print(side, scores[side])
            record.write_scores(scores)
        record.write("outputs.txt", "".join("\t".join(row) + "\n" for row in zip(*made.values(), strict=True)))


if __name__ == "__main__":
    sys.exit(script.run(main))
