"""Multi30k English-German from scratch to a score on one GPU, in two protocols.

    python benchmarks/14_multi30k.py [--protocols tok raw] [--seeds 1 2 3] [--out results/multi30k]

`raw` is trained on the raw text and scored by cased sacreBLEU; `tok` is the published protocol: trained and scored on
the lower-cased, tokenised files, BLEU over their tokens. The model is that of the published score (Wu et al. 2021):
4 + 4 layers, d_model 128, d_ff 256, 4 heads, dropout 0.3, about 10,000 shared pieces, 4096 tokens a batch, beam 5;
but normalised before each sub-layer. In short trials on a CPU, with smaller rates and batches, the norm after it left
the encoder's vectors of a sentence nearly alike and the loss high; the norm before did not.
Updates are recorded as CUDA graphs on batches of few shapes: at this size a GPU mostly waits for Python.
With --bpe_dropout p, every epoch cuts the training text anew and leaves out each merge with probability p; such a
training cannot be repeated exactly.

Chosen on the validation set alone: how long to train (averages of --average checkpoints, the best of several numbers,
that end at different updates, by greedy search), then the strength of the length penalty: where the strongest of ALPHAS
is the best, stronger ones are tried until the score falls. The test set is translated once a seed.
Writes OUT-SEED or OUT-tok-SEED: run.json, log.jsonl, scores.json, outputs.txt; no weights, because of the data's
licence. Stopped, it goes on from the last checkpoint; a seed whose scores are there is not trained again.
On a CPU, where chapter 14's update is appendix N's: --device cpu, or for a trial --device cpu --steps 20 --pairs 200.
There --muon trains as appendix O does: fewer updates, with a rate that ends at 0, so few checkpoints are averaged.
--N, --N_decoder, --d_model, --d_ff, --h and --P_drop are other sizes than the published ones.
With --rates the rate is the best of several by the loss on the validation set after --trial updates (OUT-rates).

With --teachers n the model also reads its text as n other trainings translate the sources and n translate the targets
back (data diversification, Nguyen et al. 2020): no other data, and one model in the end. All seeds of one work
folder have the same teachers, of --teacher_steps updates. Several processes may share them, and then take a seed each
(--seeds).
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from on_gpu import Gate
from script import alone, begin, best_of, encode_pairs, run

from annotated.corpora import load_corpus
from annotated.cpu import CPURun
from annotated.data import Batches, Subwords, token_batches
from annotated.decoding import Translator
from annotated.evaluation import _resampled_difference, bleu, bleu_counts, cross_entropy
from annotated.files import read_json, sha256_of, write_json, write_text
from annotated.gpu import FastUpdate, Objective, Prefetch, StaticBatches, fuse, precision_context
from annotated.graphs import CudaGraphTrainStep
from annotated.quick import by_muon
from annotated.records import Record, _check_same, about_corpus, read_run
from annotated.training import Recipe, Run, average, list_checkpoints, train
from annotated.transformer import BASE, Transformer

SIZES = {"N": 4, "N_decoder": 4, "d_model": 128, "d_ff": 256, "h": 4, "P_drop": 0.3}  # the published ones
CORPUS = {"raw": "multi30k-en-de", "tok": "multi30k-en-de-tok"}
SCORING = {"raw": {}, "tok": {"tokenize": "none"}}
ALPHAS = (0.0, 0.3, 0.6, 1.0, 1.4, 1.8)
STRONGER, STRONGEST = 0.6, 6.0  # the step beyond them, and where it ends
KEPT = 10  # of so many lines for updates one stays in the record
TRIAL = 99  # the seed of trainings that choose a rate
TEACHER = 100  # the seed of the first teacher
WAIT = 10.0  # seconds between looks for what another process makes


class Resampled:
    """Batches of text that is cut into pieces anew in every epoch (BPE dropout, Provilkov et al. 2020).

    SentencePiece draws by chance that no seed of ours reaches: a seed does not repeat its training, and one that goes
    on reads the rest of an epoch as another cut of it gives it.
    """

    def __init__(self, texts, vocabulary, p, make):
        self.texts, self.make = [[" ".join(text.split()) for text in side] for side in zip(*texts)], make
        self.encode = partial(vocabulary.processor.encode, enable_sampling=True, alpha=p, nbest_size=-1)
        self.thread, self.ready = ThreadPoolExecutor(1), {}

    def cut(self):
        return list(zip(*([[*ids, 2] for ids in self.encode(side)] for side in self.texts)))

    def __call__(self, epoch=0, position=0):
        now = self.ready.pop(epoch, None) or self.thread.submit(self.cut)
        self.ready[epoch + 1] = self.thread.submit(self.cut)  # while the GPU trains on this one
        yield from self.make(now.result())(epoch, position)


def teachers(options):
    """Name -> the seed of its training."""
    names = (f"{way}-{n}" for n in range(1, options.teachers + 1) for way in ("forward", "backward"))
    return {name: TEACHER + i for i, name in enumerate(names)}


def about_teachers(rate, options):
    """What they are made by."""
    theirs = argparse.Namespace(**{**vars(options), "steps": options.teacher_steps})
    made_by = {"bpe_dropout": options.bpe_dropout, "average": options.average[0], "beam": options.beam}
    return {"config": config_for(options), "recipe": recipe_for(0, rate, theirs), "pairs": options.pairs,
            "teachers": teachers(options), "choices": made_by}


def turned(pairs):
    return [(target, source) for source, target in pairs]


def teach(name, data, rate, folder, how, options):
    """Train a teacher; write the training text as it translates it, and its score on the validation set."""
    corpus, vocabulary, *encoded = data
    if name.startswith("backward"):
        corpus = replace(corpus, train=turned(corpus.train), validation=turned(corpus.validation))
        encoded = map(turned, encoded)
    theirs = argparse.Namespace(**{**vars(options), "steps": options.teacher_steps})
    recipe = recipe_for(teachers(options)[name], rate, theirs)
    data = corpus, vocabulary, *encoded
    model, log = trained(data, config_for(options), recipe, folder / name, options)
    ended = time.monotonic()
    average_of(model, list_checkpoints(folder / name)[-options.average[0] :])
    search = partial(translate, model, vocabulary, beam=options.beam, alpha=1.0)
    score, _ = bleu(search(corpus.validation), [target for _, target in corpus.validation], **how)
    write_text(folder / f"{name}.txt", "".join(line + "\n" for line in search(corpus.train)))
    seconds = json.loads(log.splitlines()[-1])["seconds"]
    found = {"validation": round(score, 2), "seconds of training": seconds,
             "seconds in all": round(seconds + time.monotonic() - ended, 1)}
    write_json(folder / f"{name}.json", found)  # last: there is all of it
    shutil.rmtree(folder / name)


def taught(data, rate, folder, how, options):
    """The data with what the teachers have written, and their scores; those that are missing are made now."""
    folder.mkdir(parents=True, exist_ok=True)
    Record.begin(folder, **about_teachers(rate, options))  # those of other settings are not read
    made = {name: folder / f"{name}.json" for name in teachers(options)}
    while missing := [name for name, path in made.items() if not path.exists()]:
        waiting = True
        for name in missing:
            with alone(folder / f"{name}.lock") as ours:
                waiting = waiting and not ours
                if ours and not made[name].exists():
                    teach(name, data, rate, folder, how, options)
        if waiting:
            time.sleep(WAIT)  # other processes are at them
    corpus, vocabulary, pairs, held_out = data
    more = []
    for name in made:
        lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        forward = name.startswith("forward")
        more += [(pair[0], line) if forward else (line, pair[1])
                 for pair, line in zip(corpus.train, lines, strict=True) if line]
    pairs = pairs + encode_pairs(more, vocabulary)
    scores = {name: read_json(path) for name, path in made.items()}
    return (replace(corpus, train=[*corpus.train, *more]), vocabulary, pairs, held_out), scores


def average_of(model, checkpoints):
    """Give the model the mean of the weights of these checkpoints."""
    with tempfile.TemporaryDirectory() as folder:  # where they are the last
        Path(folder, "checkpoints").mkdir()
        for checkpoint in checkpoints:
            Path(folder, "checkpoints", checkpoint.name).symlink_to(checkpoint.resolve())
        average(model, folder, len(checkpoints))


def translate(model, vocabulary, pairs, beam, alpha):
    return Translator(model, vocabulary).translate([source for source, _ in pairs], beam, alpha)


def choose(model, vocabulary, folder, validation, options, how):
    """The best end of the average and the best penalty, by BLEU on the validation set; the model is left so."""
    references = [target for _, target in validation]
    found, tried = list_checkpoints(folder), {}
    for count in options.average:
        first = min(len(found), count)
        for end in sorted({*range(len(found), first - 1, -options.every)}):
            average_of(model, found[max(0, end - count) : end])
            tried[min(end, count), end] = bleu(translate(model, vocabulary, validation, 1, 0.6), references, **how)[0]
    count, end = max(tried, key=tried.get)
    average_of(model, found[end - count : end])
    search = partial(translate, model, vocabulary, validation, options.beam)
    penalties = {alpha: bleu(search(alpha), references, **how)[0] for alpha in ALPHAS}
    while (last := max(penalties)) == max(penalties, key=penalties.get) and last < STRONGEST:
        penalties[round(last + STRONGER, 1)] = bleu(search(round(last + STRONGER, 1)), references, **how)[0]
    ends = {n: {int(found[e - 1].name): round(score, 2) for (m, e), score in tried.items() if m == n} for n, _ in tried}
    return {
        "ends tried, greedy": ends[count], "end": int(found[end - 1].name), "checkpoints averaged": count,
        "averages tried, greedy": {n: max(scores.values()) for n, scores in ends.items()},
        "penalties tried": {str(alpha): round(score, 2) for alpha, score in penalties.items()},
        "alpha": max(penalties, key=penalties.get), "validation": round(max(penalties.values()), 2),
    }


def prepared(protocol, work, options):
    """The corpus, its vocabulary, and its training and validation pairs as identifiers."""
    work.mkdir(parents=True, exist_ok=True)
    corpus = load_corpus(CORPUS[protocol])
    texts, validation, test = (part[: options.pairs] for part in (corpus.train, corpus.validation, corpus.test))
    corpus = replace(corpus, train=texts, validation=validation, test=test)
    if not (work / "subwords.model").exists():
        Subwords.train([text for pair in texts for text in pair], options.vocab).save(work / "subwords.model")
    vocabulary = Subwords.load(work / "subwords.model")
    if len(vocabulary) != options.vocab:
        raise ValueError(f"{work} has a vocabulary of {len(vocabulary)} pieces, not {options.vocab}: "
                         "remove it or name another --work")
    return corpus, vocabulary, *(encode_pairs(part, vocabulary) for part in (texts, validation))


def config_for(options):
    return replace(BASE, **{name: getattr(options, name) for name in SIZES}, vocab=options.vocab, norm=options.norm)


def recipe_for(seed, rate, options):
    return Recipe(steps=options.steps, warmup=options.warmup, rate=rate, source_tokens=options.tokens,
                  target_tokens=options.tokens, seed=seed, save_every=options.save_every, keep=1000,
                  evaluate_every=options.save_every * 5, optimizer="muon" if options.muon else "adam")


def trained(data, config, recipe, work, options):
    """The model after a training, its losses on the validation set on the way among the lines of its log."""
    corpus, vocabulary, pairs, held_out = data
    budget = options.tokens, options.tokens
    cuda = torch.device(options.device).type == "cuda"

    def make(encoded):
        kind = StaticBatches if cuda else Batches
        return kind(encoded, *budget, recipe.seed)

    dropped = options.bpe_dropout
    batches = Prefetch(Resampled(corpus.train, vocabulary, dropped, make) if dropped else make(pairs))
    torch.manual_seed(recipe.seed)
    model = Transformer(config)
    if cuda:
        model = fuse(model).to(options.device)
        context = precision_context("bfloat16", options.device)
        start = partial(Run, update=FastUpdate(CudaGraphTrainStep(Objective(model, 4096), context)))
    else:
        start = by_muon(CPURun) if options.muon else CPURun
    check = list(token_batches(held_out, *budget))

    def evaluate(model):
        return {"validation_loss": round(cross_entropy(model, check), 4)}

    train(model, recipe, batches, work, evaluate, start)
    return model, (work / "log.jsonl").read_text().rstrip()


def about_score(outputs, references, how):
    """What the score is made of, and the interval that holds 95 % of those of resampled test sets."""
    counts = bleu_counts(outputs, references, **how)
    *ngrams, ours, theirs = counts.sum(0).tolist()
    _, interval, _ = _resampled_difference(counts, torch.zeros_like(counts))  # nothing scores 0
    return {
        "precisions": [round(100 * right / max(1, made), 2) for right, made in zip(ngrams[:4], ngrams[4:])],
        "brevity penalty": round(math.exp(min(0.0, 1 - theirs / max(1, ours))), 4),
        "length ratio": round(ours / theirs, 4), "interval": [round(end, 2) for end in interval],
    }


def thinned(log):
    """The log without most of its lines for updates."""
    lines = [(line, json.loads(line)) for line in log.splitlines()]
    return "".join(line + "\n" for line, made in lines if "loss" not in made or made["step"] % KEPT == 0)


def name_of(protocol, what, options):
    return f"{options.out.name}-{what}" if protocol == "raw" else f"{options.out.name}-{protocol}-{what}"


def best_rate(protocol, options):
    """The best of the rates by short trainings with a seed of their own; those that are missing are made now."""
    name = name_of(protocol, "rates", options)
    work = options.work / name
    data = prepared(protocol, work, options)
    config = config_for(options)
    short = argparse.Namespace(**{**vars(options), "steps": options.trial, "save_every": options.trial,
                                  "warmup": max(1, round(options.warmup * options.trial / options.steps))})
    recipe = {**asdict(recipe_for(TRIAL, 1.0, short)), "rate": options.rates}
    what = {"config": config, "recipe": recipe, "data": about_corpus(data[0])}
    with Record.begin(options.out.with_name(name), free=("rate",), **what) as record:
        scores = {"validation loss": {}, **record.scores}
        tried = scores["validation loss"]
        for rate in options.rates:
            if str(rate) in tried:
                continue
            Record.begin(work / str(rate), config=config, recipe=recipe_for(TRIAL, rate, short))  # as for a seed
            try:
                model, _ = trained(data, config, recipe_for(TRIAL, rate, short), work / str(rate), short)
                check = list(token_batches(data[3], options.tokens, options.tokens))
                tried[str(rate)] = round(cross_entropy(model, check), 4)
            except FloatingPointError:
                tried[str(rate)] = None  # it diverged
            record.write_scores(scores)
    return best_of(tried)


def check_teachers(folder, options):
    """Refuse to go on without the teachers that a record was begun with: ValueError."""
    if (folder / "run.json").exists() and "teachers" in read_run(folder) and not options.teachers:
        raise ValueError(f"{folder} was begun with teachers: give --teachers again, or choose another --out")


def one_seed(protocol, seed, rate, options):
    """Train and score; returns the scores."""
    name = name_of(protocol, seed, options)
    folder = options.out.with_name(name)
    recipe = recipe_for(seed, rate, options)
    what = {"config": config_for(options), "recipe": recipe, "pairs": options.pairs,
            "choices": {name: getattr(options, name) for name in ("bpe_dropout", "average", "every", "beam")}}
    if options.teachers:
        what["teachers"] = {"seeds": teachers(options), "steps": options.teacher_steps}
    free = () if options.muon else ("steps",)  # a rate that falls to 0 needs the number of steps
    check_teachers(folder, options)
    if (folder / "scores.json").exists():
        there = read_run(folder)  # of older records some parts are not known
        _check_same(folder, free, **{part: value for part, value in what.items() if part in there})
        return read_json(folder / "scores.json")
    work, began = options.work / name, time.monotonic()
    data = corpus, vocabulary, *_ = prepared(protocol, work, options)
    what |= {"data": about_corpus(corpus), "pieces": sha256_of(vocabulary.model)}
    how = SCORING[protocol]
    with begin(folder, work, free, **what) as record:
        before = time.monotonic() - began
        if options.teachers:
            place = options.work / f"{options.out.name}-{protocol}-teachers"
            data, of_teachers = taught(data, rate, place, how, options)
        model, log = trained(data, what["config"], recipe, work, options)
        ended = time.monotonic()
        seconds = json.loads(log.splitlines()[-1])["seconds"]  # of all sittings, where it was stopped and went on
        chosen = choose(model, vocabulary, work, corpus.validation, options, how)
        outputs = translate(model, vocabulary, corpus.test, options.beam, chosen["alpha"])
        references = [target for _, target in corpus.test]
        score, signature = bleu(outputs, references, **how)
        scores = {
            "bleu": round(score, 2), "signature": signature, "corpus": CORPUS[protocol], "sentences": len(outputs),
            "beam": options.beam, **about_score(outputs, references, how), **chosen, "seconds of training": seconds,
            "seconds in all": round(before + seconds + time.monotonic() - ended, 1),
        }
        if options.teachers:
            scores["teachers"] = {"pairs with theirs": len(data[2]), **of_teachers}
        record.write("log.jsonl", thinned(log))
        record.write("outputs.txt", "\n".join(outputs) + "\n")
        record.write_scores(scores)  # last: a folder with scores is not made again
    shutil.rmtree(work)
    return scores


def go(options):
    with Gate(options.gate).together():  # who times waits until the training has ended
        train_all(options)


def train_all(options):
    """Every seed of every protocol that is not there yet."""
    for protocol in options.protocols:
        found, rate = [], best_rate(protocol, options) if options.rates else options.rate
        for seed in options.seeds:
            scores = one_seed(protocol, seed, rate, options)
            found.append(scores["bleu"])
            print(f"{protocol}, seed {seed}: BLEU {scores['bleu']} (validation {scores['validation']}), "
                  f"{scores['seconds in all']:.0f} seconds", flush=True)
        values = torch.tensor(found, dtype=torch.double)
        spread = values.std().item() if len(found) > 1 else float("nan")
        print(f"{protocol}: mean {values.mean():.2f}, standard deviation {spread:.2f}, {len(found)} seeds")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", choices=CORPUS, default=["tok", "raw"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path("results/multi30k"))
    parser.add_argument("--work", type=Path, default=Path(".cache/14_multi30k"), help="checkpoints, while training")
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=type(size), default=size)
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--norm", choices=("pre", "post"), default="pre", help="post is the paper's")
    parser.add_argument("--bpe_dropout", type=float, default=0.1)
    parser.add_argument("--muon", action="store_true", help="on a CPU: appendix O's optimizer and schedule")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--warmup", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=2.5, help="2.5 peaks at 0.005, the published recipe's rate")
    parser.add_argument("--rates", type=float, nargs="+", default=[], help="the best of these, by short trainings")
    parser.add_argument("--trial", type=int, default=500, help="updates of a training that chooses the rate")
    parser.add_argument("--tokens", type=int, default=4096, help="of each side in a batch")
    parser.add_argument("--save_every", type=int, default=200)
    parser.add_argument("--average", type=int, nargs="+", default=[10], help="checkpoints; a teacher takes the first")
    parser.add_argument("--every", type=int, default=5, help="checkpoints between the ends tried")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--teachers", type=int, default=0, help="trainings each way whose translations are read")
    parser.add_argument("--teacher_steps", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, help="of each part, for a trial")
    parser.add_argument("--threads", type=int, help="of a CPU (default: all)")
    parser.add_argument("--gate", help="as for the other programs of chapter 14: nothing is timed beside a training")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.muon and torch.device(options.device).type == "cuda":
        parser.error("--muon is for --device cpu: its updates are not recorded as graphs")
    return run(go, options)


if __name__ == "__main__":
    sys.exit(main())
