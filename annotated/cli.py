"""Inside the command line.

Generated from book/H-command-line.md by tools/tangle.py: edit the chapter, not this file.
"""

import argparse
import codecs
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from annotated.corpora import CORPORA, _missing_files, _open_tokens, cache_folder, fetch, load_corpus, prepare
from annotated.data import Batches, Corpus, Subwords, Words, _fraction, load_vocabulary, token_batches
from annotated.decoding import Translator, _check_device, _check_memory, _check_n_best, _machine_memory, save
from annotated.evaluation import _bleu_metric, bleu, chrf, cross_entropy
from annotated.files import (
    _check_fields,
    _decode_line,
    _need,
    _remove,
    file_lock,
    read_json,
    resumable_output,
    sha256_of,
    write_text,
)
from annotated.quick import QUICK, QUICK_RECIPE, by_muon
from annotated.records import Record, _check_same, read_run
from annotated.training import Recipe, Run, TrainingBackend, average, list_checkpoints, train
from annotated.transformer import BASE, BIG, TINY, Config, Transformer

__all__ = ["PRESETS", "main"]


def _text_lines(file, name="the input", encoding=None):
    """Yield the lines of a file opened for bytes, cut at line feeds only, without their ends.

    A ValueError names the line that is not of the encoding; without one, UTF-8 is wanted.
    """
    if encoding:
        yield from _encoded_lines(file, name, encoding)
        return
    for number, line in enumerate(file, start=1):
        text = _decode_line(line, name, number, ", or name its encoding by --encoding")
        if "\0" in text:
            what = f"{name}, line {number} holds a zero byte and so is no UTF-8 text"
            raise ValueError(f"{what}: if it is UTF-16, say so by --encoding utf-16")
        yield text


def _encoded_lines(blocks, name, encoding):
    """The same of blocks of bytes in an encoding by name."""
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    parts = [""]
    for block in chain(blocks, [b""]):
        try:
            first, *others = decoder.decode(block, not block).split("\n")
        except UnicodeError:
            place = f"{name}, line {number}"
            raise ValueError(f"{place} is no text in the encoding {encoding}") from None
        parts.append(first)
        for other in others:
            line = "".join(parts).removesuffix("\r")
            yield line if number > 1 else line.removeprefix("\ufeff")
            number += 1
            parts = [other]
    if last := "".join(parts):
        last = last.removesuffix("\r")
        yield last if number > 1 else last.removeprefix("\ufeff")


def _one_line(text):
    """A text with each run of white space, line ends among it, made one space."""
    return " ".join(text.split())


def _windows(lines, size, characters=1_000_000):
    """Cut a stream of lines into lists of at most so many lines, none of them empty.

    A list also ends when it has so many characters, since lines may be of any length.
    """
    if size < 1:
        raise ValueError(f"window must be 1 line or more, got {size}")
    window, length = [], 0
    for line in lines:
        window.append(line)
        length += len(line)
        if len(window) == size or length >= characters:
            yield window
            window, length = [], 0
    if window:
        yield window


def _translate_windows(translator, lines, options, first=1):
    """Yield for each window of lines how many it has, and the text to be written for them."""
    search = options.beam, options.alpha
    for window in _windows(lines, options.window):
        if options.n_best:
            found = translator.n_best(window, options.n_best, *search, progress=False)
            write = _as_n_best_lines
        else:
            found = translator.translate(window, *search, progress=False)
            write = _as_line
        text = "".join(write(number, line) for number, line in enumerate(found, first))
        yield len(window), text
        first += len(window)


def _as_line(number, text):
    """A translation as a line."""
    return _one_line(text) + "\n"


def _as_n_best_lines(number, found):
    """The translations of a line, each as number, score and text with tabulators between."""
    return "".join(f"{number}\t{score:.4f}\t{_one_line(text)}\n" for score, text in found)


def _job_of(options):
    """What must be the same for a stopped translation to go on; for a pipe, input is None."""
    # A folder, or a name on the Hugging Face hub, which stands for itself.
    folder = Path(options.model)
    beside = "README.md", "run.json", "scores.json", "log.jsonl", "outputs.txt"
    files = sorted(path for path in folder.glob("[!.]*")
                   if path.is_file() and path.name not in beside)
    model = sha256_of(*files) if files else str(folder)
    hashes = {"model": model, "input": sha256_of(options.input or "")}
    search = {name: getattr(options, name) for name in ("beam", "alpha", "n_best")}
    rare = {name: getattr(options, name) for name in ("encoding", "int8")}
    return hashes | search | {name: value for name, value in rare.items() if value}


def _speak_unicode():
    """Let standard output take all letters, which the system's encoding may lack."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")


@contextmanager
def _printed(source=None):
    """Standard output, in the form of `resumable_output`: nothing is done already."""
    if sys.stdout is None:  # the shell's >&-
        raise ValueError("standard output is closed: name a file by --output")
    _speak_unicode()

    def add(lines, text):
        sys.stdout.write(text)
        sys.stdout.flush()

    yield 0, add


def _open_input(path):
    """A file's bytes, standard input's for None; ValueError where it cannot be read."""
    if path is None and sys.stdin is None:  # the shell's <&-
        raise ValueError("standard input is closed: name a file by --input")
    try:
        return nullcontext(sys.stdin.buffer) if path is None else open(path, "rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def _translate_stream(translator, options):
    """Translate a file or standard input to a file or standard output, window by window."""
    a_file = options.input and options.input.is_file()
    size = options.input.stat().st_size if a_file else None
    output = _printed
    if options.output:
        output = partial(resumable_output, options.output, _job_of(options))
    with _open_input(options.input) as file, output(file) as (done, add):
        if done:
            print(f"{options.output}: going on after {done} lines", file=sys.stderr)
        name = options.input or "standard input"
        lines = islice(_text_lines(file, name, options.encoding), done, None)
        off = None if size else True  # None: off where stderr is no terminal
        with tqdm(total=size, unit="B", unit_scale=True, disable=off) as bar:
            for number, text in _translate_windows(translator, lines, options, first=done + 1):
                add(number, text)
                if size:
                    bar.update(file.tell() - bar.n)


def _translate_interactively(translator, options):
    """Translate each line as it is typed; `quit` or the end of the input (Ctrl-D) ends."""
    def ask():
        print("> ", end="", file=sys.stderr, flush=True)
        return file.readline()

    print("A sentence, then Enter; quit or Ctrl-D ends.", file=sys.stderr)
    with _open_input(None) as file, _printed() as (_, add):
        lines = _text_lines(iter(ask, b""), "standard input", options.encoding)
        for number, line in enumerate(lines, start=1):
            if line.strip() == "quit":
                break
            for count, text in _translate_windows(translator, [line], options, first=number):
                add(count, text)


def _load(folder, device, int8=False):
    """The Translator of a model folder of any kind; see `annotated.load`."""
    if len(folder.parts) == 1 and not folder.exists():
        hint = "a name on the Hugging Face hub reads owner/model"
        raise ValueError(f"there is no folder {folder}, and {hint}")
    import annotated  # the package, which knows every kind of folder

    return annotated.load(folder, device, int8)


def _check_outside(folder, model, option):
    """Refuse to write to a folder that is the model's own."""
    if model.is_dir() and model.resolve() == folder.resolve():
        raise ValueError(f"{option} names the model's own folder {model}: choose another place")


def _run_translate(options):
    """`translate`: as many lines out as in, in the same order."""
    if options.interactive and (options.input or options.output):
        said = "interactive means standard input and output"
        raise ValueError(f"{said}: leave out --input and --output")
    _check_n_best(options.n_best or 1, options.beam)
    if options.output:
        _check_outside(options.output.resolve().parent, options.model, "--output")
    translator = _load(options.model, options.device, options.int8)
    typed = not (options.input or options.output) and sys.stdin and sys.stdin.isatty()
    if options.interactive or typed:
        _translate_interactively(translator, options)
    else:
        _translate_stream(translator, options)


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
                yield tuple(line.strip() for line in pair)

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


def _corpus_of_files(options):
    """The corpus in the files --source, --target, --valid-source and --valid-target."""
    encoding = options.encoding
    pairs: Any = _FilePairs(options.source, options.target, encoding=encoding)  # as a list
    held_out: Any = ()
    if options.valid_source:
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
        tqdm.write(f"left out {left} pairs of more than {longest} tokens", file=sys.stderr)


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


def _are_results(folder):
    """Whether scores.json and outputs.txt of a folder are what `evaluate` has written there."""
    told: dict = {}
    with suppress(ValueError):  # none, or not ours
        told = read_json(folder / "scores.json")
    if (folder / "outputs.txt").exists():
        return "outputs" in told and told["outputs"] == sha256_of(folder / "outputs.txt")
    return "outputs" in told or not (folder / "scores.json").exists()


def _check_results(folder, inputs):
    """Refuse a folder for results that is a file, or in which something would be lost."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: choose another --out")
    if not _are_results(folder):
        what = f"{folder} holds scores.json or outputs.txt that evaluate has not written"
        raise ValueError(f"{what}: choose another --out")
    written = [folder / name for name in ("scores.json", "outputs.txt")]
    for path in inputs:
        if any(place.exists() and path.exists() and place.samefile(path) for place in written):
            raise ValueError(f"{path} is read, and would be lost: choose another --out")


def _to_score(options):
    """The name and the pairs of what `evaluate` is to score."""
    files = options.source, options.target
    if any(files) != all(files) or bool(options.corpus) == all(files):
        raise ValueError("give either --corpus NAME, or --source FILE and --target FILE")
    if options.split and not options.corpus:
        raise ValueError("--split is for --corpus NAME: leave it out with files")
    if options.encoding and options.corpus:
        raise ValueError("--encoding is for files: leave it out with --corpus")
    if options.corpus:
        name = options.corpus
        pairs = getattr(load_corpus(name), options.split or "test")
    else:
        name = _name_of(*files)
        pairs = list(_FilePairs(*files, encoding=options.encoding).lines())
    if not any(all(pair) for pair in pairs):
        raise ValueError(f"{name} hold no sentence pair")
    return name, pairs


def _check_tokenizer(options):
    """Refuse a tokeniser that is not known, and say so where one may have to be fetched."""
    _need("sacrebleu", "data", "for scores")
    if options.tokenize in ("spm", "flores101", "flores200", "spBLEU-1K"):
        print(f"--tokenize {options.tokenize} is a model, which sacreBLEU fetches from its "
              "publisher where it is not there yet", file=sys.stderr)
    _bleu_metric(options.lowercase, options.tokenize)


def _run_evaluate(options):
    """`evaluate`: translate a held-out set and score it."""
    if sys.stdout is None and not options.out:  # the shell's >&-
        raise ValueError("standard output is closed: name a folder by --out")
    _check_tokenizer(options)
    if options.out:
        _check_outside(options.out, options.model, "--out")
        _check_results(options.out, filter(None, (options.source, options.target)))
    name, pairs = _to_score(options)
    translator = _load(options.model, options.device, options.int8)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    search = options.beam, options.alpha
    scores, outputs = _score(translator, pairs, *search, options.lowercase, options.tokenize)
    scores |= {"int8": True} if options.int8 else {}
    if options.out:  # first: a closed or too narrow standard output must not cost the work
        split = {"split": options.split or "test"} if options.corpus else {}
        _write_scores(options.out, {**scores, "corpus": name, **split}, outputs)
    _speak_unicode()
    count = scores["sentences"]
    left = len(pairs) - count
    print(f"BLEU {scores['bleu']:.2f}  {scores['signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")
    print(f"{name}, {count} sentences, beam {options.beam}, alpha {options.alpha}"
          + (", int8" if options.int8 else "")
          + (f"; {left} lines more have an empty side" if left else ""))


def _describe(corpus, config, run, used, scores=None):
    """The README of a model folder: run is its run.json, used its checkpoints averaged."""
    depth = ("N",) if config.N_decoder is None else ("N", "N_decoder")
    names = (*depth, "d_model", "d_ff", "h", "vocab")
    sizes = ", ".join(f"{name}={getattr(config, name)}" for name in names)
    text = f"# A Transformer trained on {corpus.name}\n\n"
    text += f"Data: {corpus.name}. Licence of the data: {corpus.licence}\n\n"
    text += f"{sizes}; checkpoints averaged: {used}.\n"
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
    if device != "cpu" or config.output_bias:  # for which the faster one has no place
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
    processes = int(os.environ.get("WORLD_SIZE", 1))
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


def _check_able(options, config):
    """Refuse sizes that the memory cannot hold, and packages that will be missed later."""
    copies = 4 if options.device == "cpu" else 1
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


def _bytes_to_train(config, S, T, lean=False):
    """Memory for training on batches of S source and T target tokens, at least.

    Args:
        config, S, T: as they are.
        lean: whether activations may have two bytes, and the loss is made in pieces.
    """
    size = 2 if lean else 4
    rows = min(T, 4096) if lean else T
    weights = 4 * _count_weights(config)
    kept = size * (_count_activations(config, S, T) + rows * config.vocab)
    return max(4 * weights, 3 * weights + kept)


def _largest_batch(batches):
    """Source and target tokens of the largest of an epoch's first batches."""
    plan = batches.plan()
    found = [(0, 0)]
    for k in range(min(len(plan), 20)):
        sides = zip(*(batches.pairs[i] for i in plan[k].tolist()))
        source, target = (sum(map(len, side)) for side in sides)
        found.append((source, target))
    return max(found, key=sum)


def _check_batches(options, config, batches, device):
    """Refuse batches for which the memory of the device is too small, before the first update."""
    S, T = _largest_batch(batches)
    has = _machine_memory()
    where = "this machine"
    if torch.device(device).type == "cuda":
        has = torch.cuda.get_device_properties(device).total_memory
        where = f"the GPU {device}"
    lean = device != "cpu" or options.fast or options.compile or options.precision
    wanted = _bytes_to_train(config, S, T, bool(lean))
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


def _train_as(backend, options):
    """Train in one of perhaps several processes, the first of which writes everything."""
    config, recipe = _settings(options)
    _check_able(options, config)
    corpus = _read_corpus(options)
    folder = options.out
    data = {"corpus": corpus.name, "licence": corpus.licence, "sha256": corpus.provenance,
            "longest": options.longest}
    _check_folder(folder)
    _check_same_run(folder, config=config, recipe=recipe, data=data)
    made = not folder.exists()
    lock = file_lock(folder / _MARK, wait=False) if backend.writes else nullcontext()
    with lock:
        with backend.in_turn(), _undone(folder, made) if backend.writes else nullcontext():
            config, vocabulary, pairs, held_out = _prepared(
                backend, options, corpus, config, recipe, data)
            batches = Batches(pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed)
            _check_batches(options, config, batches, backend.device)
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
    run = read_run(folder)
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


def _state_of(name, folder):
    """A line about a corpus: its size, how much of it is in a folder, its licence."""
    files = CORPORA[name].files
    missing = _missing_files(name, folder)
    there = "in part" if missing else "there"
    if len(missing) == len(files):
        there = "not there"
    size = f"{sum(file.size for file in files) / 1e6:.1f} MB"
    return f"{name:<20}{size:>8}  {there:<9}  {CORPORA[name].licence}"


def _write_grammar(folder):
    """Write the built-in grammar as train.tsv, validation.tsv and test.tsv into grammar/."""
    corpus = load_corpus("grammar")
    for part in ("train", "validation", "test"):
        lines = [f"{source}\t{target}\n" for source, target in getattr(corpus, part)]
        content = "".join(lines)
        path = folder / "grammar" / f"{part}.tsv"
        if path.exists() and sha256_of(path) != sha256_of(content.encode()):
            raise ValueError(f"{path} holds something else, which would be lost: move it away")
        write_text(path, content)


def _run_fetch(options):
    """`fetch`: download a corpus, or all, or write the grammar; without a name, list them."""
    folder = options.folder or Path(os.environ.get("ANNOTATED_DATA") or cache_folder())
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: name another folder")
    _check_above(folder)
    if options.name is None:
        print(f"in {folder}:", *(_state_of(name, folder) for name in CORPORA), sep="\n")
        print("grammar is made by the program: `fetch grammar` writes it as text.")
        return
    for name in CORPORA if options.name == "all" else [options.name]:
        if name == "grammar":
            _write_grammar(folder)
        else:
            fetch(name, folder)
        print(f"{name} is in {folder}")


def _add_fetch(parser):
    """Options of `fetch`."""
    names = ", ".join([*CORPORA, "grammar"])
    parser.add_argument("name", nargs="?", help=f"{names}, or all; default: list them")
    parser.add_argument("--folder", type=_folder_name,
                        help="where to; default: $ANNOTATED_DATA, else the system's cache")


_CONFIG_HELP = dict(line.split(None, 1) for line in """
N layers of the encoder, and of the decoder
N_decoder layers of the decoder; default N
d_model width of the model
d_ff width inside the feed-forward layers
h heads of each attention
d_k width of a head's queries and keys; default d_model / h
d_v width of a head's values; default d_model / h
P_drop dropout
eps_ls label smoothing
vocab pieces of the vocabulary
norm where the layer norm stands: post, as in the paper, or pre
final_norm a layer norm after the last layer; default: where norm is pre
eps_norm added under the root of the layer norm
bias biases of the projections in attention
output_bias a number for each token, added to its logit
activation relu, gelu or swish
positions sinusoidal; halves, all sines before all cosines; or learned
max_positions longest sentence, for learned positions
P_drop_attention dropout of the attention weights
P_drop_ffn dropout inside the feed-forward layers
""".strip().splitlines())

_RECIPE_HELP = dict(line.split(None, 1) for line in """
steps updates in all
warmup updates in which the rate rises
rate a factor on the paper's learning rate
beta1 of Adam
beta2 of Adam
eps of Adam
source_tokens source positions of a batch at most; less takes less memory
target_tokens target positions of a batch at most
accumulate batches of an update
seed of all that is left to chance
evaluate_every updates from one evaluation on held-out text to the next
save_every updates from one checkpoint to the next
keep checkpoints that are kept, and averaged at the end
optimizer adam or muon
""".strip().splitlines())


def _yes_or_no(text):
    """The value of an option that is true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"give true or false, not {text!r}")
    return text.lower() == "true"


def _at_least(least, most=2**31 - 1):
    """The type of an option that is a whole number, neither smaller nor greater than these."""
    def number(text):
        short = text.isdecimal() and len(text) < 20  # longer ones Python refuses to read
        if not short or not least <= int(text) <= most:
            wanted = f"{least} or more" if short and int(text) < least else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"give a whole number, {wanted}, not {text[:40]!r}")
        return int(text)

    return number


def _folder_name(text):
    """The path of an option that names a folder."""
    if not text:
        raise argparse.ArgumentTypeError("name a folder, not ''")
    return Path(text)


_METAVAR = {int: "N", float: "X", str: "NAME", _yes_or_no: "true|false"}


def _option_type(field):
    """The type of the option for a field of a dataclass."""
    if isinstance(field.default, bool) or field.type == bool | None:
        return _yes_or_no
    return type(field.default) if isinstance(field.default, str | float) else int


def _add_fields(parser, kind, meaning, title, shown=True):
    """Give the parser an option for each field of a dataclass that has a meaning."""
    group = parser.add_argument_group(title)
    for field in fields(kind):
        if field.name in meaning:
            type_ = _option_type(field)
            default = f" (default {field.default})" if shown else ""
            group.add_argument(f"--{field.name}", type=type_, metavar=_METAVAR[type_],
                               default=argparse.SUPPRESS, help=meaning[field.name] + default)


_EXAMPLES = {
    "train": """examples:
  python -m annotated train --corpus grammar --preset tiny --steps 500 --warmup 100 \\
      --source_tokens 1000 --target_tokens 1000 --out model
  python -m annotated train --source train.en --target train.de --preset small --vocab 8000 \\
      --source_tokens 4000 --target_tokens 4000 --longest 200 --out model
Stopped by Ctrl-C, the same command goes on. Held-out sentences are never trained on.""",
    "translate": """examples:
  echo "A man rides a bike." | python -m annotated translate --model model
  python -m annotated translate --model model --input test.en --output test.out
  python -m annotated translate --model model --interactive --n-best 3
Lines out are as many as lines in. Stopped with --output, the same command goes on.""",
    "evaluate": """examples:
  python -m annotated evaluate --model model --corpus multi30k-en-de
  python -m annotated evaluate --model model --source test.en --target test.de --beam 1
  python -m annotated evaluate --model model --source test.zh --target test.en --out scores""",
    "fetch": """examples:
  python -m annotated fetch
  python -m annotated fetch tatoeba-en-de
  python -m annotated fetch grammar --folder data""",
    None: """a whole job:
  python -m annotated train --source train.en --target train.de --out model
  python -m annotated evaluate --model model --source test.en --target test.de
  python -m annotated translate --model model --input new.en --output new.de""",
}


def _encoding(text):
    """The type of an option that names an encoding of text, as Python calls it; None: UTF-8."""
    try:
        "".encode(text)
        name = codecs.lookup(text).name
    except (LookupError, ValueError):
        wanted = "give an encoding that Python knows, such as latin-1"
        raise argparse.ArgumentTypeError(f"{wanted}, not {text[:40]!r}") from None
    return None if name == "utf-8" else text  # the default, whose errors say more


def _add_encoding(parser):
    """The option that says what the bytes of a text mean."""
    parser.add_argument("--encoding", type=_encoding, metavar="NAME",
                        help="of the text that is read, such as latin-1 or utf-16; default: utf-8")


def _add_corpus(parser):
    """Options that say which sentence pairs."""
    add = parser.add_argument
    add("--corpus", help=f"a corpus by name: grammar, {', '.join(CORPORA)}")
    add("--source", type=Path, help="or a file of source sentences, one a line")
    add("--target", type=Path, help="and one of their translations")
    _add_encoding(parser)


def _add_machine(parser):
    """Options that say where to compute."""
    add = parser.add_argument
    default = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=default, help=f"cpu or cuda (default {default})")
    add("--threads", type=int, help="CPU threads; default: torch's own choice")


def _add_speed(parser):
    """Options that say where to train, and how fast."""
    _add_machine(parser)
    add = parser.add_argument
    either = parser.add_mutually_exclusive_group().add_argument
    either("--fast", action="store_true",
           help="train as chapter 14 does: "
           "fused attention, a loss in pieces, batches made ahead")
    either("--plain", action="store_true",
           help="train exactly as chapter 10 does; default on a CPU: "
           "the same update, made faster (appendix N)")
    add("--precision", choices=("float32", "tf32", "bfloat16"),
        help="of matrix products; implies --fast, whose default is bfloat16 on a GPU")
    add("--compile", action="store_true", help="compile the layers; implies --fast")


def _alpha(text):
    """The type of the option of the length penalty."""
    with suppress(ValueError):
        if abs(value := float(text)) <= 10:
            return value
    raise argparse.ArgumentTypeError(f"give a number from -10 to 10, not {text[:40]!r}")


def _add_search(parser):
    """Options of the search."""
    add = parser.add_argument
    add("--model", type=_folder_name, required=True,
        help="a model folder, ours or MarianMT's, or owner/model on the Hugging Face hub")
    add("--beam", type=_at_least(1, 1000), default=4, metavar="K",
        help="of the search; 1 is greedy (default 4)")
    add("--alpha", type=_alpha, default=0.6, help="of the length penalty (default 0.6)")
    add("--int8", action="store_true",
        help="search with products of 8-bit numbers, on a CPU: faster, and a little different")
    _add_machine(parser)


def _add_train(parser):
    """Options of `train`."""
    add = parser.add_argument
    _add_corpus(parser)
    _add_speed(parser)
    add("--valid-source", type=Path,
        help="held-out source sentences; default: about one pair "
        "in fifty, about 2000 at most, chosen by a hash of the text and never trained on")
    add("--valid-target", type=Path, help="their translations")
    add("--out", type=_folder_name, required=True,
        help="folder for the model, its log and its checkpoints")
    add("--preset", choices=PRESETS, default="small",
        help="sizes to begin with (default small); quick has a recipe of its own, too")
    add("--longest", type=_at_least(1), metavar="N",
        help="leave out pairs with a side of more tokens, and say how many")
    add("--score", type=_at_least(0), default=1000, metavar="N",
        help="held-out pairs to be translated and scored "
        "at the end, at most (default 1000; 0: none)")
    sizes = "sizes (the paper's symbols; what is not given, the preset decides)"
    _add_fields(parser, Config, _CONFIG_HELP, sizes, shown=False)
    _add_fields(parser, Recipe, _RECIPE_HELP, "recipe")


def _add_translate(parser):
    """Options of `translate`."""
    add = parser.add_argument
    _add_search(parser)
    add("--input", type=Path, help="a file, one sentence a line; default: standard input")
    _add_encoding(parser)
    add("--output", type=Path, help="a file; default: standard output")
    add("--n-best", type=_at_least(0), default=0, metavar="K",
        help="K translations of a line, each as number, score and text with tabs between")
    add("--interactive", action="store_true",
        help="answer each line at once, as on a terminal")
    add("--window", type=_at_least(1), default=1000, metavar="N",
        help="lines translated together (default 1000)")


def _add_evaluate(parser):
    """Options of `evaluate`."""
    add = parser.add_argument
    _add_search(parser)
    _add_corpus(parser)
    add("--split", choices=("validation", "test"), help="of a corpus (default test)")
    add("--lowercase", action="store_true", help="BLEU without regard to case; chrF keeps it")
    add("--tokenize", default="13a", metavar="NAME",
        help="BLEU's tokeniser: 13a (default), zh for Chinese, char, intl, none, ...")
    add("--out", type=_folder_name, help="folder for scores.json and outputs.txt")


_ABOUT = "Train, use and score the Transformer of the book."


def _make_parser():
    """The parser of `python -m annotated`."""
    import annotated

    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "annotated", description=_ABOUT, epilog=_EXAMPLES[None], formatter_class=raw,
        allow_abbrev=False)
    version = f"annotated {annotated.__version__}, torch {torch.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(run=lambda options: parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, function, add, help_ in (
        ("train", _run_train, _add_train, "learn a model from sentence pairs"),
        ("translate", _run_translate, _add_translate, "translate lines of text"),
        ("evaluate", _run_evaluate, _add_evaluate, "score a model with BLEU"),
        ("fetch", _run_fetch, _add_fetch, "get a corpus; without a name, list them"),
    ):
        command = commands.add_parser(
            name, help=help_, description=help_, epilog=_EXAMPLES[name], formatter_class=raw,
            allow_abbrev=False)
        command.set_defaults(run=function)
        add(command)
    return parser


def _is_user_error(error):
    """Whether an error is the user's, or a limit of the machine, and no mistake of ours."""
    if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        signs = "allocate memory", "not enough memory", "overflowed"  # Unix, Windows, sizes
        return any(sign in str(error) for sign in signs)
    limits = FloatingPointError, OverflowError, MemoryError, torch.OutOfMemoryError
    return isinstance(error, (ValueError, OSError, ModuleNotFoundError, *limits))


def _said(error):
    """What a line tells of an error: its own words, but for memory plain ones."""
    text = _one_line(str(error))
    if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
        return f"{text}: install it with pip install {error.name}"
    if text and not re.search("allocate memory|DefaultCPUAllocator", text):
        return text
    wanted = re.search(r"allocate (\d+) bytes", text)
    more = f" for {int(wanted[1]) / 1e9:,.1f} GB more" if wanted else ""
    return f"there is not enough memory{more}: a smaller model or smaller batches take less"


def _prepare_torch(options):
    """Set the number of threads, and refuse a device that is not there."""
    if getattr(options, "threads", None) is not None:
        if not 1 <= options.threads <= 1024:
            raise ValueError(f"threads must be from 1 to 1024, got {options.threads}")
        torch.set_num_threads(options.threads)
    if getattr(options, "device", "cpu") != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={options.device!r}: no CUDA device here; use --device cpu")
    if hasattr(options, "device") and "LOCAL_RANK" not in os.environ:  # torchrun's choose theirs
        _check_device(options.device)


def _flush_output():
    """Bring what was printed to its reader; an error says that it cannot go there."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # or Python complains when it closes the old one
        raise


def _parsed(arguments):
    """The options; `--help` and `--version` end the process here."""
    try:
        return _make_parser().parse_args(arguments)
    except SystemExit:
        _flush_output()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of the process.

    Returns:
        the exit status: 0; 2: cannot be done; 130: interrupted; 141: nobody reads on.

    Raises:
        SystemExit: for --help, --version, and options that argparse refuses.
    """
    sys.stderr = sys.stderr or open(os.devnull, "w")
    command = "annotated"
    try:
        options = _parsed(arguments)
        command += f" {options.command}" * bool(options.command)
        _prepare_torch(options)
        options.run(options)
        _flush_output()
        return 0
    except BrokenPipeError:
        status, said = 141, ""
    except KeyboardInterrupt as error:
        status = 141 if getattr(sys.stderr, "gone", False) else 130
        said = str(error) or "stopped"
    except Exception as error:
        if not _is_user_error(error):
            raise
        status = 2
        said = _said(error)
    with suppress(OSError, ValueError):
        _flush_output()
    if said:
        print(f"{command}: {said}", file=sys.stderr)
    return status
