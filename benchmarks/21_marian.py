"""How long does translating a file with a MarianMT folder take, beside `transformers`?

    python benchmarks/21_marian.py [--rounds 3] [--threads 1] [--out results/21-marian]

results/tatoeba-cpu, written by `to_marian`, so that both sides read one folder. The lines are English sentences
of the built-in grammar: short ones, and every fourth joined of three. Each side as its user would do it:
`PublishedTranslator.translate`, which sorts by length; `MarianMTModel.generate` with MarianTokenizer in batches of
32 in the file's order, and once more in the order of length. Greedy, and beam 4 with their penalty and stopping
rule, so that the outputs are the same; the share that is stands in the record, too, and the book's own search.
Subwords are encoded and decoded inside the measured time. Writes run.json and scores.json.
"""

import argparse
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from peers import keep_memory, of_transformers, summary, take_turns

from annotated.decoding import load
from annotated.grammar import grammar_corpus
from annotated.interop import PublishedTranslator, load_marian, to_marian
from annotated.records import Record, about_model

BATCH, LONGEST = 32, 100


def sentences(count):
    """English sentences of the grammar's held-out part; every fourth line is three of them."""
    texts = [source for source, _ in grammar_corpus(train=10, validation=10, test=2 * count).test]
    pieces = iter(texts)
    return [" ".join(next(pieces) for _ in range(3 if i % 4 == 0 else 1)) for i in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-cpu"))
    parser.add_argument("--out", type=Path, default=Path("results/21-marian"))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*sacremoses.*")
    from transformers import MarianMTModel, MarianTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    keep_memory()
    lines, trained = sentences(options.lines), load(options.model)
    with tempfile.TemporaryDirectory() as folder:
        to_marian(trained.model, trained.vocabulary, folder)
        theirs, tokenizer = MarianMTModel.from_pretrained(folder).eval(), MarianTokenizer.from_pretrained(folder)
        by_the_book = load_marian(folder)
    how = replace(by_the_book.how, max_len=LONGEST)
    ours = PublishedTranslator(by_the_book.model, by_the_book.vocabulary, how)
    scores = {"lines": len(lines), "batch of transformers": BATCH, "longest output": LONGEST}
    what = {"config": trained.model.config, "model": about_model(options.model)}
    with Record.begin(options.out, anew=True, packages=("transformers",), seed=0, **what) as record:
        for name, beam in (("greedy", 1), ("beam 4", 4)):
            search = {"num_beams": beam, "length_penalty": 1.0, "max_new_tokens": LONGEST}
            by_transformers = partial(of_transformers, theirs, tokenizer, BATCH, **search)
            sides = {
                "ours": partial(ours.translate, beam=beam, alpha=1.0),
                "ours, the book's search": partial(by_the_book.translate, beam=beam),
                "transformers": by_transformers,
                "transformers, sorted": partial(by_transformers, sort=True),
            }
            made = {side: translate(lines) for side, translate in sides.items()}
            rows = summary(take_turns({side: partial(f, lines) for side, f in sides.items()}, options.rounds, name))
            for side, outputs in made.items():
                rows[side]["outputs equal to ours"] = round(sum(map(str.__eq__, outputs, made["ours"])) / len(lines), 3)
                print(f"{name:8}{side:26}", *(f"{key} {value}" for key, value in rows[side].items()), sep="  ")
            scores[name] = rows
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
