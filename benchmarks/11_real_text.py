"""How long does translating a test set take, as a user of each library would do it?

    ANNOTATED_DATA=... python benchmarks/11_real_text.py [--rounds 3] [--threads 2] [--out results/11-real-text]

The 1,000 sentences of Multi30k test 2016, beam 4, by results/tatoeba-cpu (not trained on captions; what is
compared is time) in three libraries with the same weights: `Translator.translate`; MarianMTModel.generate in
batches of 32 in the file's order; CTranslate2, which sorts by length itself, 32 at a time. Ours and CTranslate2 are
timed in float32 and with int8, CTranslate2 in processes of its own.
Length penalty 0, because each library means something else by another value; at most 100 new tokens.
The libraries differ in what becomes of a finished hypothesis, so outputs need not all be equal: the share that is,
and the BLEU of each, stand in the record. Subwords are encoded and decoded inside the measured time.
Writes run.json and scores.json.
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from peers import CTranslate2, keep_memory, marian, summary, take_turns

from annotated.corpora import load_corpus
from annotated.data import pad_batch
from annotated.decoding import load
from annotated.evaluation import bleu
from annotated.records import Record, about_corpus, about_model

BEAM, BATCH, LONGEST = 4, 32, 100


@torch.inference_mode()
def of_marian(model, vocabulary, lines):
    outputs = []
    for i in range(0, len(lines), BATCH):
        source = pad_batch([vocabulary.encode(line) for line in lines[i : i + BATCH]])
        made = model.generate(source, attention_mask=source != 0, num_beams=BEAM, do_sample=False,
                              length_penalty=0.0, max_new_tokens=LONGEST)
        outputs += [vocabulary.decode(row) for row in made.tolist()]
    return outputs


def of_ctranslate2(translate, vocabulary, lines):
    source = [vocabulary.encode(line) for line in lines]
    made = translate(source, beam_size=BEAM, max_batch_size=BATCH, length_penalty=0.0, max_decoding_length=LONGEST)
    return [vocabulary.decode(ids) for ids in made]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lines", type=int, default=1000, help="fewer for a trial")
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-cpu"))
    parser.add_argument("--out", type=Path, default=Path("results/11-real-text"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    corpus = load_corpus("multi30k-en-de")
    lines, references = (list(side) for side in zip(*corpus.test[: options.lines], strict=True))
    ours = load(options.model)
    for module in ours.model.modules():  # Marian's is fixed at this
        if hasattr(module, "eps"):
            module.eps = 1e-5
    ours, with_int8 = (type(ours)(ours.model, ours.vocabulary, int8=int8) for int8 in (False, True))
    theirs = {kind: CTranslate2(ours.model, kind, options.threads, eps_norm=1e-5) for kind in ("float32", "int8")}
    sides = {
        "ours": partial(ours.translate, beam=BEAM, alpha=0.0),
        "transformers": partial(of_marian, marian(ours.model), ours.vocabulary),
        "CTranslate2": partial(of_ctranslate2, theirs["float32"], ours.vocabulary),
        "ours, int8": partial(with_int8.translate, beam=BEAM, alpha=0.0),
        "CTranslate2, int8": partial(of_ctranslate2, theirs["int8"], ours.vocabulary),
    }
    packages = "transformers", "ctranslate2"
    config = replace(ours.model.config, eps_norm=1e-5)
    what = {"config": config, "model": about_model(options.model), "data": about_corpus(corpus)}
    with Record.begin(options.out, anew=True, packages=packages, seed=0, **what) as record:
        made = {name: translate(lines) for name, translate in sides.items()}
        rows = summary(take_turns({name: partial(f, lines) for name, f in sides.items()}, options.rounds, "beam 4"))
        for name, outputs in made.items():
            rows[name]["outputs equal to ours"] = round(sum(map(str.__eq__, outputs, made["ours"])) / len(lines), 3)
            rows[name]["BLEU"] = round(bleu(outputs, references)[0], 2)
            print(f"{name:14}", *(f"{key} {value}" for key, value in rows[name].items()), sep="  ")
        scores = {"sentences": len(lines), "beam": BEAM, **rows}
        record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
