"""Training on your own text.

Generated from book/P-own-text.md by tools/tangle.py: edit the chapter, not this file.
"""

import os
import sys
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from annotated.corpora import _bare, _open_tokens, load_corpus, prepare
from annotated.data import Batches, Corpus, Subwords, Words, _fraction, load_vocabulary, token_batches
from annotated.decoding import Translator, _check_memory, _machine_memory, save
from annotated.evaluation import bleu, chrf, cross_entropy
from annotated.files import (
    _check_fields,
    _need,
    _one_line,
    _open_input,
    _refuse_lone_cr,
    _remove,
    _text_lines,
    file_lock,
    sha256_of,
    write_text,
)
from annotated.quick import QUICK, QUICK_RECIPE, by_muon
from annotated.records import Record, _check_same, read_run
from annotated.training import Recipe, Run, TrainingBackend, average, list_checkpoints, train
from annotated.transformer import BASE, BIG, TINY, Config, Transformer

__all__ = ["PRESETS"]


@dataclass(frozen=True)
class _FilePairs:
    """The sentence pairs of two files, read anew each time they are iterated over.

    Pairs with an empty side, or with a string of `without` on either side, are left out.
    A ValueError says which file cannot be read, is no UTF-8, or has more lines.
    """

    source: Path
    target: Path
    without: frozenset = frozenset()
    encoding: str | None = None

    def __iter__(self):
        for pair in self.filled():
            pair = tuple(map(_one_line, pair))
            if self.without.isdisjoint(pair):
                yield pair

    def filled(self):
        """The pairs without an empty side, as they stand in the files."""
        return filter(all, self.lines())

    def lines(self):
        """The two lines of every number, without space around them, empty ones too."""
        paths = self.source, self.target
        with _open_input(paths[0]) as first, _open_input(paths[1]) as second:
            source, target = (_text_lines(file, path, self.encoding)
                              for file, path in zip((first, second), paths))
            for number, pair in enumerate(zip_longest(source, target), start=1):
                if None in pair:  # one is at its end, the other a line further, or more
                    rest = [sum(1 for _ in lines) for lines in (source, target)]
                    has = [number - (line is None) + more for line, more in zip(pair, rest)]
                    raise ValueError(
                        f"{paths[0]} has {has[0]} lines and {paths[1]} has {has[1]}: "
                        "line n of one should be the translation of line n of the other")
                yield tuple(map(_bare, pair))

    def count(self):
        """How many pairs there are, and how many more have an empty side."""
        found = Counter(all(pair) for pair in self.lines())
        return found[True], found[False]


def _hold_out(pairs, most=2000):
    """Choose pairs by a hash of their text, all different: about one in fifty, at least one.

    `pairs` is called several times; `most` is about how many are chosen at most.
    """
    def place(pair):
        return _fraction("\t".join(pair))

    total = sum(1 for _ in pairs())
    if not total:
        raise ValueError("there is no sentence pair to choose from")
    share = min(1 / 50, most / total)
    chosen = [pair for pair in pairs() if place(pair) < share] or [min(pairs(), key=place)]
    return list(dict.fromkeys(tuple(map(_one_line, pair)) for pair in chosen))


def _name_of(source, target):
    """What text in two files is called, in letters that UTF-8 can write."""
    return f"{source.name} and {target.name}".encode("utf-8", "replace").decode()


def _check_files(source, target, encoding=None):
    """Refuse one file for both sides, and a file whose lines end in CR: ValueError."""
    with suppress(OSError):  # one is missing, which is said where it is read
        if os.path.samefile(source, target):
            said = f"{source} is both source and target"
            raise ValueError(f"{said}: name two files, the sentences and their translations")
    for path in (source, target):
        with _open_input(path) if path.is_file() else nullcontext(()) as file:
            _refuse_lone_cr(list(islice(_text_lines(file, path, encoding), 2)), path)


def _corpus_of_files(options):
    """The corpus in the files --source, --target, --valid-source and --valid-target."""
    encoding = options.encoding
    _check_files(options.source, options.target, encoding)
    pairs: Any = _FilePairs(options.source, options.target, encoding=encoding)  # as a list
    held_out: Any = ()
    if options.valid_source:
        _check_files(options.valid_source, options.valid_target, encoding)
        held_out = _FilePairs(options.valid_source, options.valid_target, encoding=encoding)
    name = _name_of(options.source, options.target)
    total, empty = pairs.count()
    if not total:
        raise ValueError(f"{name} hold no sentence pair")
    validation = list(held_out) if held_out else _hold_out(pairs.filled)
    pairs = replace(pairs, without=frozenset(text for pair in validation for text in pair))
    kept = sum(1 for _ in pairs)
    left = total - kept - (0 if held_out else len(validation))
    empty += held_out.count()[1] if held_out else 0
    print(f"{name}: {kept} pairs to train on, {len(validation)} held out, "
          f"{left} left out that share a sentence with these{_empty_said(empty)}",
          file=sys.stderr)
    if not kept or not validation:
        raise ValueError(f"{name} leave nothing to train on or to validate with: give more")
    names = ("source", "target", *(("valid_source", "valid_target") if held_out else ()))
    sums: dict = {name: sha256_of(getattr(options, name)) for name in names}
    return Corpus(name, pairs, validation, [], "the user's own", sums)


def _empty_said(empty):
    """The end of a line that tells how many pairs of two files count for nothing."""
    return f", {empty} left out that have an empty side" if empty else ""


def _read_corpus(options):
    """The corpus for `train`: what --corpus names, or what two or four files hold."""
    names = ("source", "target", "valid_source", "valid_target")
    files = [getattr(options, name) for name in names]
    if options.corpus and any(files[2:]):
        raise ValueError(f"--corpus {options.corpus} has held-out text of its own: leave out "
                         "--valid-source and --valid-target")
    if options.corpus and options.encoding:
        raise ValueError("--encoding is for files: leave it out with --corpus")
    if bool(options.corpus) == all(files[:2]) or any(files) and not all(files[:2]):
        raise ValueError("give either --corpus NAME, or --source FILE and --target FILE")
    if bool(files[2]) != bool(files[3]):
        raise ValueError("give both --valid-source and --valid-target, or neither")
    for path in filter(None, files):
        if path.exists() and not path.is_file():
            what = f"{path} is no regular file"
            raise ValueError(f"{what}, but training text is read repeatedly: name a file")
    return load_corpus(options.corpus) if options.corpus else _corpus_of_files(options)


def _sampled(pairs, most=1_000_000):
    """Every k-th pair, k so large that there are at most `most`."""
    step = max(1, -(-sum(1 for _ in pairs) // most))
    return islice(pairs, 0, None, step)


def _learn_vocabulary(corpus, size):
    """A new vocabulary for a corpus: its words for the grammar, else subwords."""
    if corpus.name == "grammar":
        return Words.build(corpus.train)
    texts = (text for pair in _sampled(corpus.train) for text in pair)
    return Subwords.train(texts, size)


def _begun_vocabulary(folder, size):
    """The vocabulary of the run in a folder; ValueError where it has another size."""
    found = load_vocabulary(folder)
    if isinstance(found, Subwords) and len(found) != size:
        begun = f"{folder} was begun with vocab={len(found)}"
        raise ValueError(f"{begun}, now vocab={size}: choose another --out")
    return found


def _too_long(text, s, t, limits):
    """The error about a pair that is longer than some limits, given as NAME=VALUE."""
    return ValueError(
        f"the pair that begins {text[:40]!r} has {len(s)} source and {len(t)} target tokens, "
        f"more than {limits}: raise that, or leave such pairs out with --longest N")


def _positions_of(config):
    """How many positions a model of these sizes has; None for any number."""
    return config.max_positions if config.positions == "learned" else None


def _encoded(pairs, vocabulary, recipe, longest=None, positions=None):
    """Yield the identifiers of pairs of texts, each list ending in eos.

    Pairs with a side of more than `longest` tokens are left out; what is then too long for a
    batch of the recipe, or for the positions that the model has, is refused.
    """
    left = 0
    for source, target in pairs:
        s = vocabulary.encode(source)
        t = vocabulary.encode(target)
        if longest and max(len(s), len(t)) > longest:
            left += 1
        elif positions and max(len(s), len(t)) > positions:
            raise _too_long(source, s, t, f"max_positions={positions}")
        elif len(s) > recipe.source_tokens or len(t) > recipe.target_tokens:
            raise _too_long(source, s, t, f"source_tokens={recipe.source_tokens} or "
                                         f"target_tokens={recipe.target_tokens}")
        else:
            yield s, t
    if left:
        what = "pair" + "s" * (left > 1)
        tqdm.write(f"left out {left} {what} of more than {longest} tokens", file=sys.stderr)


@dataclass(frozen=True)
class _IdentityVocabulary:
    """In place of the vocabulary, of this size, that has encoded the pairs already."""

    size: int

    def encode(self, ids):
        """The identifiers, unchanged."""
        return ids

    def __len__(self):
        return self.size


def _token_pairs(corpus, vocabulary, recipe, folder, longest=None, positions=None):
    """Encode a corpus: training text as `TokenPairs` in folder/tokens, held-out text as a list."""
    limits = recipe, longest, positions
    held_out = list(_encoded(corpus.validation, vocabulary, *limits))
    if not held_out:
        raise ValueError(f"longest={longest} leaves out every held-out pair: raise it")
    if (folder / "run.json").exists():
        with suppress(ValueError):  # there are none, or damaged ones
            return _open_tokens(folder / "tokens"), held_out
    encoded = _encoded(corpus.train, vocabulary, *limits)
    first = next(encoded, None)
    if first is None:
        raise ValueError(f"longest={longest} leaves out every training pair: raise it")
    encoded = chain([first], encoded)
    training = prepare(encoded, _IdentityVocabulary(len(vocabulary)), folder / "tokens")
    return training, held_out


_MARK = ".training"

_PREPARED = ("tokens", Words.filename, Subwords.filename)

_MADE = ("scores.json", "model.safetensors", "config.json", "README.md")


def _check_above(folder):
    """Refuse a folder that cannot be made, because a file is in the way."""
    blocked = [above for above in folder.parents if above.exists() and not above.is_dir()]
    if blocked:
        raise ValueError(f"{blocked[0]} is a file, so {folder} cannot be made: name another folder")


def _check_folder(folder):
    """Refuse a training folder that is a file, or holds what no training has written."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: choose another --out")
    _check_above(folder)
    if (folder / "run.json").exists():
        found = [] if list_checkpoints(folder) else [n for n in _MADE if (folder / n).exists()]
        if found:
            raise ValueError(f"{folder} holds {found[0]}, which would be lost, and no checkpoint "
                             "to go on from: choose another --out")
        return
    names = (*_MADE, "checkpoints", "log.jsonl")
    found = [path.name for name in (*names, *_PREPARED) for path in folder.glob(name)]
    if found:
        what = f"{folder} is no training folder, but holds {found[0]}"
        raise ValueError(f"{what}, which would be lost: choose another --out")


def _may_differ(recipe=None):
    """The settings that a run may go on with otherwise; the rate of Muon's ends with the steps."""
    names = "evaluate_every", "save_every", "vocab"
    return names if getattr(recipe, "optimizer", "adam") == "muon" else ("steps", *names)


def _has_weights(folder):
    """Whether a training folder holds a checkpoint, or the model that was made of them."""
    return bool(list_checkpoints(folder)) or (folder / "config.json").exists()


def _check_same_run(folder, **wanted):
    """Refuse to go on with other settings or other text than the folder was begun with.

    `wanted` has the parts config, recipe and data of run.json: dicts or dataclasses.
    """
    if (folder / "run.json").exists():
        free = () if _has_weights(folder) else ("recipe", "config")
        free += _may_differ(wanted.get("recipe"))
        parts = {"config": dict, "recipe": dict, "data": dict}
        _check_fields(folder / "run.json", read_run(folder), command=str, date=str, **parts)
        _check_same(folder, free, **wanted)


def _begin(folder, config, recipe, data):
    """Write run.json; where a stopped run goes on, add to it with what it went on."""
    what = {"config": config, "recipe": recipe, "data": data}
    Record.begin(folder, _may_differ(recipe), anew=not _has_weights(folder), **what)


def _score(translator, pairs, beam=4, alpha=0.6, lowercase=False, tokenize="13a"):
    """Translate the sources of some pairs and score the outputs against their targets.

    Returned are a dict of scores and signatures, and the outputs, one for each pair; a pair
    with an empty side is translated, and not scored.
    """
    sources = [source for source, _ in pairs]
    outputs = [_one_line(line) for line in translator.translate(sources, beam, alpha)]
    whole = [(out, pair[1]) for out, pair in zip(outputs, pairs) if all(pair)]
    scored, references = zip(*whole)
    value, signature = bleu(scored, references, lowercase, tokenize)
    other, other_signature = chrf(scored, references)
    scores = {"bleu": round(value, 2), "signature": signature}
    scores |= {"chrf": round(other, 2), "chrf_signature": other_signature}
    return {**scores, "sentences": len(whole), "beam": beam, "alpha": alpha}, outputs


def _write_scores(folder, scores, outputs=None):
    """Write scores.json, and outputs.txt where there are outputs, to a folder."""
    record = Record(folder)
    if outputs is None:
        record.write_scores(scores)
        return
    text = "".join(line + "\n" for line in outputs)
    (folder / "outputs.txt").unlink(missing_ok=True)
    record.write_scores({**scores, "outputs": sha256_of(text.encode())})
    record.write("outputs.txt", text)


def _describe(corpus, config, run, used, scores=None):
    """The README of a model folder: run is its run.json with its `updates`, of which `used`
    checkpoints are averaged."""
    depth = ("N",) if config.N_decoder is None else ("N", "N_decoder")
    names = (*depth, "d_model", "d_ff", "h", "vocab")
    sizes = ", ".join(f"{name}={getattr(config, name)}" for name in names)
    text = f"# A Transformer trained on {corpus.name}\n\n"
    text += f"Data: {corpus.name}. Licence of the data: {corpus.licence}\n\n"
    text += f"{sizes}; checkpoints averaged: {used}, the last after {run['updates']} updates.\n"
    last = (run.get("continued") or [run])[-1]
    text += f"Made by `{last['command']}`, {last['date']}.\n\n"
    if scores:
        text += f"BLEU {scores['bleu']:.2f} on {scores['sentences']} held-out (validation) "
        text += f"pairs, beam {scores['beam']}, alpha {scores['alpha']}: "
        text += f"{scores['signature']}\n\n"
    text += "To use it, with THIS as the path of this folder:\n\n```\n"
    text += "python -m annotated translate --model THIS --input FILE\n"
    code = 'import annotated; print(annotated.load("THIS").translate(["TEXT"]))'
    text += f"python -c '{code}'\n```\n"
    return text.encode("utf-8", "replace").decode()  # the command may hold any bytes


PRESETS = {
    "tiny": TINY,
    "small": replace(BASE, N=3, d_model=256, d_ff=1024, h=4, vocab=8000),
    "base": BASE,
    "big": BIG,
    "quick": QUICK,
}


def _settings(options):
    """The sizes and the recipe that the options ask for."""
    def of(kind):
        names = [field.name for field in fields(kind) if hasattr(options, field.name)]
        return {name: getattr(options, name) for name in names}

    recipe = QUICK_RECIPE if options.preset == "quick" else Recipe()
    return replace(PRESETS[options.preset], **of(Config)), replace(recipe, **of(Recipe))


def _start_for(device, config, recipe):
    """What makes the run of a training in one process; see `train`."""
    if device != "cpu" or config.output_bias:  # for which the one for CPUs has no place
        return Run
    from annotated.cpu import CPURun

    rows = min(recipe.source_tokens, recipe.target_tokens)
    return partial(CPURun, rows=rows, say=_tell)


def _tell(line):
    """Write a line to standard error, as it is now."""
    print(line, file=sys.stderr)


def _backend_for(options):
    """A context that gives the `TrainingBackend` the options ask for."""
    config, recipe = _settings(options)
    asked = options.fast or options.compile or options.precision
    if options.plain and (asked or "LOCAL_RANK" in os.environ):
        what = "--compile, with --precision or in several processes"
        raise ValueError(f"--plain cannot be had with {what}")
    if not asked and "LOCAL_RANK" not in os.environ:  # torchrun sets it
        start = Run if options.plain else _start_for(options.device, config, recipe)
        start = by_muon(start) if recipe.optimizer == "muon" else start
        return nullcontext(TrainingBackend(options.device, start=start))
    processes = int(os.environ.get("WORLD_SIZE") or 1) if "LOCAL_RANK" in os.environ else 1
    for what, chosen in (("output_bias", config.output_bias), ("muon", recipe.optimizer == "muon")):
        if chosen:
            raise ValueError(f"{what} cannot be had with --fast or in several processes")
    if recipe.accumulate % processes:
        what = f"accumulate must be a multiple of the processes, got {recipe.accumulate} batches"
        raise ValueError(f"{what} for {processes} processes: try --accumulate {processes}")
    from annotated.distributed import _fast_backend

    return _fast_backend(options.device, options.precision, options.compile, options.out)


def _run_train(options):
    """`train`: corpus to subwords to batches to a model folder."""
    with _backend_for(options) as backend:
        _train_as(backend, options)


def _held_out_loss(batches, model):
    """What is measured during a training: the mean loss on held-out batches."""
    return {"validation_loss": round(cross_entropy(model, batches), 4)}


def _learn(backend, model, recipe, batches, held_out, folder):
    """Train a model on batches; of several processes, the first keeps a record."""
    batches = backend.feed(batches)
    if not backend.writes:
        train(model, recipe, batches, start=backend.start)
        return
    budget = recipe.source_tokens, recipe.target_tokens
    evaluate = partial(_held_out_loss, list(token_batches(held_out, *budget)))
    with warnings.catch_warnings():  # the folder's recipe and text were found to be these
        warnings.filterwarnings("ignore", ".* updates already")
        train(model, recipe, batches, folder, evaluate, start=backend.start)


def _count_weights(config):
    """The number of weights of a Transformer of these sizes."""
    c = config
    attention = 2 * c.h * (c.key_width + c.value_width) * c.d_model
    if c.bias:
        attention += c.h * (2 * c.key_width + c.value_width) + c.d_model
    feed_forward = 2 * c.d_model * c.d_ff + c.d_ff + c.d_model
    norm = 2 * c.d_model
    encoder = c.N * (attention + feed_forward + 2 * norm)
    decoder = c.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    rows = c.vocab + (c.source_vocab or 0)
    rows += c.max_positions if c.positions == "learned" else 0
    last = 2 * norm * c.last_norm + c.vocab * c.output_bias
    return encoder + decoder + rows * c.d_model + last


def _averages(recipe):
    """How many averages the optimizer keeps for a weight, at least."""
    return 1 if recipe.optimizer == "muon" else 2


def _check_able(options, config, averages=2):
    """Refuse sizes that the memory cannot hold, and packages that will be missed later."""
    copies = 2 + averages if options.device == "cpu" else 1
    _check_memory("training a model of these sizes", _count_weights(config), copies)
    if options.corpus != "grammar":
        _need("sentencepiece", "data", "for subwords")
    if options.score:
        _need("sacrebleu", "data", "for the score at the end (--score 0 leaves it out)")


def _count_activations(config, S, T):
    """Numbers kept for the backward pass, at least, for S source and T target tokens."""
    c = config
    heads = c.h * (c.key_width + c.value_width)
    encoder = S * (2 * heads + 4 * c.d_model + c.d_ff)
    decoder = T * (3 * heads + 6 * c.d_model + c.d_ff) + S * heads
    return c.N * encoder + c.decoder_layers * decoder + (S + T) * c.d_model


def _bytes_to_train(config, S, T, lean=False, averages=2):
    """Memory for training on batches of S source and T target tokens, at least.

    Args:
        config, S, T: as they are.
        lean: whether activations may have two bytes, and the loss is made in pieces.
        averages: that the optimizer keeps for a weight.
    """
    size = 2 if lean else 4
    rows = min(T, 4096) if lean else T
    weights = 4 * _count_weights(config)
    kept = size * (_count_activations(config, S, T) + rows * config.vocab)
    return max((2 + averages) * weights, (1 + averages) * weights + kept)


def _largest_batch(batches):
    """Source and target tokens of the largest of an epoch's first batches."""
    plan = batches.plan()
    found = [(0, 0)]
    for k in range(min(len(plan), 20)):
        sides = zip(*(batches.pairs[i] for i in plan[k].tolist()))
        source, target = (sum(map(len, side)) for side in sides)
        found.append((source, target))
    return max(found, key=sum)


def _check_batches(options, config, batches, device, averages=2):
    """Refuse batches for which the memory of the device is too small, before the first update."""
    S, T = _largest_batch(batches)
    has = _machine_memory()
    where = "this machine"
    if torch.device(device).type == "cuda":
        has = torch.cuda.get_device_properties(device).total_memory
        where = f"the GPU {device}"
    lean = device != "cpu" or options.fast or options.compile or options.precision
    wanted = _bytes_to_train(config, S, T, bool(lean), averages)
    if has is not None and wanted > has:
        what = f"training on batches of {S:,} source and {T:,} target tokens"
        sizes = f"{wanted / 1e9:,.1f} GB of memory, and {where} has {has / 1e9:,.1f}"
        raise ValueError(f"{what} takes {sizes}: take smaller batches, or a smaller model")


def _goes_on(folder, config, **others):
    """Whether the run in a folder goes on with its vocabulary; see `_check_same_run`."""
    if not (folder / "run.json").exists():
        return False
    if _has_weights(folder):
        return True
    with suppress(ValueError):  # damaged, or another
        _check_same(folder, _may_differ(others.get("recipe")), config=config, **others)
        _begun_vocabulary(folder, config["vocab"])
        return True
    return False


def _prepared(backend, options, corpus, config, recipe, data):
    """Configuration, vocabulary, training pairs and held-out pairs of the run in a folder."""
    folder = options.out
    given = {"config": asdict(config), "recipe": recipe, "data": data}
    vocabulary: Words | Subwords
    goes_on = _goes_on(folder, **given)
    if goes_on:
        vocabulary = _begun_vocabulary(folder, config.vocab)
    else:
        vocabulary = _learn_vocabulary(corpus, config.vocab)
        for name in _PREPARED:
            _remove(folder / name)
    config = replace(config, vocab=len(vocabulary))
    if backend.writes or not (folder / "run.json").exists():  # on a machine with a disk of its own
        _begin(folder, config, recipe, data)
    if not goes_on:
        vocabulary.save(folder / vocabulary.filename)
    limits = options.longest, _positions_of(config)
    return config, vocabulary, *_token_pairs(corpus, vocabulary, recipe, folder, *limits)


@contextmanager
def _undone(folder, made):
    """After an error, a folder in which no run had begun holds nothing of this attempt.

    One that was made for it is removed.
    """
    begun = (folder / "run.json").exists()
    try:
        yield
    except BaseException:
        if not begun:
            for name in (*_PREPARED, "run.json"):
                _remove(folder / name)
            with suppress(OSError):  # Windows removes no open file
                _remove(folder / _MARK)
                if made:
                    folder.rmdir()
        raise


def _updates(folder):
    """How many updates the run in a folder has made, 0 without a checkpoint."""
    return max((int(path.name) for path in list_checkpoints(folder)), default=0)


def _train_as(backend, options):
    """Train in one of perhaps several processes, the first of which writes everything."""
    config, recipe = _settings(options)
    _check_able(options, config, _averages(recipe))
    corpus = _read_corpus(options)
    folder = options.out
    data = {"corpus": corpus.name, "licence": corpus.licence, "sha256": corpus.provenance,
            "longest": options.longest}
    _check_folder(folder)
    _check_same_run(folder, config=config, recipe=recipe, data=data)
    if (done := _updates(folder)) > recipe.steps and backend.writes:
        print(f"{folder} has {done} updates already: it is trained no further", file=sys.stderr)
    made = not folder.exists()
    lock = file_lock(folder / _MARK, wait=False) if backend.writes else nullcontext()
    with lock:
        with backend.in_turn(), _undone(folder, made) if backend.writes else nullcontext():
            config, vocabulary, pairs, held_out = _prepared(
                backend, options, corpus, config, recipe, data)
            batches = Batches(pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed)
            _check_batches(options, config, batches, backend.device, _averages(recipe))
        torch.manual_seed(recipe.seed)
        model = Transformer(config, backend.attention).to(backend.device)
        with Record(folder) if backend.writes else nullcontext():  # notes when it ended, and why
            _learn(backend, model, recipe, batches, held_out, folder)
            if backend.writes:
                _finish(model, vocabulary, corpus, folder, recipe.keep, options.score)


def _at_distances(pairs, most):
    """At most so many of a list, at equal distances from its first to its end."""
    count = min(most, len(pairs))
    return [pairs[i * len(pairs) // count] for i in range(count)]


def _finish(model, vocabulary, corpus, folder, keep, most):
    """Average the last checkpoints; save the model, score it on held-out pairs, describe."""
    used = average(model, folder, keep)
    run = read_run(folder) | {"updates": _updates(folder)}
    (folder / "scores.json").unlink(missing_ok=True)  # of the model before
    save(folder, model, vocabulary, _describe(corpus, model.config, run, used))
    said = f"{used} checkpoint" + "s" * (used > 1)
    print(f"{folder} holds the model: the mean of {said}", file=sys.stderr)
    if most:
        scores, _ = _score(Translator(model, vocabulary), _at_distances(corpus.validation, most))
        _write_scores(folder, {**scores, "corpus": corpus.name, "split": "validation"})
        about = _describe(corpus, model.config, run, used, scores)
        write_text(folder / "README.md", about)
        count = scores["sentences"]
        print(f"BLEU {scores['bleu']:.2f} on {count} held-out pairs", file=sys.stderr)
