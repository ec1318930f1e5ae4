"""Inside the command line.

Generated from book/H-command-line.md by tools/tangle.py: edit the chapter, not this file.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib import import_module
from itertools import islice, zip_longest
from pathlib import Path

import torch
from tqdm import tqdm

from annotated.attention import scaled_dot_product_attention
from annotated.corpora import CORPORA, TokenPairs, cache_folder, fetch, load_corpus, missing_files, prepare
from annotated.data import (
    Batches,
    Corpus,
    Subwords,
    Words,
    fraction,
    load_vocabulary,
    pad_batch,
    read_file,
    replacing,
    token_batches,
)
from annotated.decoding import Translator, check_device, hypotheses, length_penalty, save
from annotated.evaluation import bleu, bleu_metric, chrf, cross_entropy
from annotated.training import Recipe, Run, average, list_checkpoints, provenance, train
from annotated.transformer import BASE, BIG, TINY, Config, Transformer

__all__ = [
    "text_lines",
    "one_line",
    "windows",
    "translated",
    "plain",
    "numbered",
    "check_several",
    "n_best",
    "join_pieces",
    "fingerprint",
    "job_of",
    "done_before",
    "claimed",
    "check_output",
    "written",
    "printed",
    "opened",
    "translate_stream",
    "converse",
    "load",
    "run_translate",
    "decoded",
    "FilePairs",
    "hold_out",
    "sha256_of",
    "name_of",
    "corpus_of_files",
    "read_corpus",
    "sampled",
    "make_vocabulary",
    "too_long",
    "positions_of",
    "encoded",
    "AsTheyAre",
    "token_pairs",
    "MARK",
    "check_folder",
    "has_weights",
    "read_run",
    "check_same_run",
    "begin",
    "score",
    "write_scores",
    "to_score",
    "run_evaluate",
    "describe",
    "PRESETS",
    "settings",
    "Worker",
    "worker_for",
    "run_train",
    "held_out_loss",
    "learn",
    "train_as",
    "finish",
    "state_of",
    "write_grammar",
    "run_fetch",
    "add_fetch",
    "MEANING",
    "PACE",
    "yes_or_no",
    "at_least",
    "folder_name",
    "METAVAR",
    "add_fields",
    "EXAMPLES",
    "add_corpus",
    "add_machine",
    "add_speed",
    "add_search",
    "add_train",
    "add_translate",
    "add_evaluate",
    "ABOUT",
    "make_parser",
    "foreseen",
    "prepare_torch",
    "main",
]


def text_lines(file):
    """The lines of a file as they come, cut at line feeds only, without their ends.

    Args:
        file: a file opened for bytes, or anything else that gives lines of bytes.

    Yields:
        strings; a byte that is not UTF-8 becomes the replacement character.
    """
    for number, line in enumerate(file):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        line = line if number else line.removeprefix(b"\xef\xbb\xbf")
        yield line.decode("utf-8", errors="replace")


def one_line(text):
    """A text with each run of white space, line ends among it, made one space."""
    return " ".join(text.split())


def windows(lines, size, characters=1_000_000):
    """Cut a stream of lines into lists.

    Args:
        lines: iterable of strings.
        size: lines of a list at most.
        characters: a list that has so many or more ends, since lines may be of any length.

    Yields:
        lists of strings, in order, none empty.

    Raises:
        ValueError: the size is below 1.
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


def translated(translator, lines, options, first=1):
    """Translate a stream of lines window by window, in order.

    Args:
        translator: a `Translator`.
        lines: iterable of strings.
        options: with window, beam, alpha and n_best.
        first: the number of the first line.

    Yields:
        how many lines a window had, and the text to be written for them.
    """
    search = options.beam, options.alpha
    for window in windows(lines, options.window):
        if options.n_best:
            found = n_best(translator, window, options.n_best, *search)
        else:
            found = translator.translate(window, *search, progress=False)
        write = numbered if options.n_best else plain
        yield len(window), "".join(write(i, line) for i, line in enumerate(found, first))
        first += len(window)


def plain(number, text):
    """A translation as a line."""
    return one_line(text) + "\n"


def numbered(number, found):
    """The translations of a line, each as number, score and text with tabulators between."""
    return "".join(f"{number}\t{score:.4f}\t{one_line(text)}\n" for score, text in found)


def check_several(k, beam):
    """Refuse to ask a search for more translations than its beam is wide: ValueError."""
    if k > beam:
        raise ValueError(f"n-best={k} needs a beam of {k} or more, got beam={beam}")


def n_best(translator, lines, k, beam=4, alpha=0.6, rows=32):
    """The k best translations of each line.

    Args:
        translator: a `Translator`.
        lines: list of strings.
        k: how many; a search finds no more than the beam is wide.
        beam, alpha: of the search.
        rows: pieces of lines that are searched together.

    Returns:
        as many lists of (score, text), best first.
    """
    check_several(k, beam)
    cut = [translator.cut(line) for line in lines]
    parts = sorted((piece for pieces in cut for piece in pieces), key=len)
    found, penalty = {}, partial(length_penalty, alpha=alpha)
    device = next(translator.model.parameters()).device
    for start in range(0, len(parts), rows):
        batch = parts[start:start + rows]
        source = pad_batch(batch, translator.model.config.pad).to(device)  # (B, S)
        results = hypotheses(translator.quick, source, beam, penalty)
        found.update(zip(map(tuple, batch), results))
    return [join_pieces(translator, [found[tuple(p)][:k] for p in pieces]) for pieces in cut]


def join_pieces(translator, found):
    """Join the hypotheses of a line's pieces, (ids, score), to the line's, (score, text)."""
    if not found:  # a line without content
        return [(0.0, "")]
    decode = translator.vocabulary.decode
    joined = []
    for row in zip(*found):
        joined.append((sum(s for _, s in row), " ".join(decode(ids) for ids, _ in row)))
    return joined


def fingerprint(paths):
    """The sha256 of some files' contents, taken together.

    Args:
        paths: files, in a fixed order.

    Returns:
        a string of 64 hexadecimal digits; None where one of them is no regular file.
    """
    total = hashlib.sha256()
    for path in map(Path, paths):
        if not path.is_file():
            return None
        with path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def job_of(options):
    """What must be the same for a stopped translation to go on; input is None for a pipe."""
    # A folder, or a name on the Hugging Face hub, which stands for itself.
    folder = Path(options.model)
    files = sorted(path for path in folder.glob("*") if path.is_file())
    model = fingerprint(files) if files else str(folder)
    prints = {"model": model, "input": fingerprint([options.input or ""])}
    return prints | {name: getattr(options, name) for name in ("beam", "alpha", "n_best")}


def done_before(part, note, job):
    """How far an earlier run of the same job came.

    Args:
        part: the file that it wrote to.
        note: what it noted beside it.
        job: what this run is to do, see `job_of`.

    Returns:
        dict with the finished `lines` and the `bytes` of their translations; both may be 0.
    """
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        if job["input"] and told["job"] == job and part.stat().st_size >= told["bytes"]:
            return {"lines": told["lines"], "bytes": told["bytes"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no earlier run, or a damaged note
    return {"lines": 0, "bytes": 0}


@contextmanager
def claimed(path):
    """A file to be added to that one process at a time can have open in this way.

    Args:
        path: made where it is missing; the claim ends with the context or the process.

    Raises:
        ValueError: another process has claimed it, or has just given it another name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        except BlockingIOError:
            what = f"another process is writing there: {path} is claimed"
            raise ValueError(f"{what}; wait for its end, or name another place") from None
        except (ImportError, OSError):
            same = True  # no locks on this system, or on this drive
        if not same:
            raise ValueError(f"another process has just finished {path}: try again")
        yield file


def check_output(path, part, source):
    """Refuse an output that cannot take the place of what is there.

    Args:
        path, part: where the output goes, and where it is made.
        source: the open file that is read, or None.

    Raises:
        ValueError: it is a folder, a pipe, a device, or the file that is read.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file for the output")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: use > FILE instead of --output FILE")
    with suppress(AttributeError, OSError):  # what is read may be no file of the system
        read = os.fstat(source.fileno())
        if any(name.exists() and os.path.samestat(read, name.stat()) for name in (path, part)):
            raise ValueError(f"{path} is the input: name another file for the output")


@contextmanager
def written(path, job, source=None):
    """A file that is written bit by bit, and appears under its name when it is complete.

    Until then it is PATH.part, with PATH.part.json beside it; see `done_before`.

    Args:
        path: where to; of a symbolic link, the file that it leads to is written.
        job: see `job_of`.
        source: the open file that is read, if any.

    Yields:
        how many lines are done already, and a function of (lines, text) that adds to them.

    Raises:
        ValueError: see `check_output` and `claimed`.
    """
    named, path = Path(path), os.path.realpath(path)
    part, note = Path(f"{path}.part"), Path(f"{path}.part.json")
    check_output(named, part, source)
    with claimed(part) as file:
        done = done_before(part, note, job)
        file.seek(done["bytes"])
        file.truncate()

        def add(lines, text):
            file.write(text.encode("utf-8"))
            file.flush()
            done.update(lines=done["lines"] + lines, bytes=file.tell())
            with replacing(note) as fresh:
                fresh.write_text(json.dumps({"job": job, **done}) + "\n", encoding="utf-8")

        yield done["lines"], add
        if os.name == "posix":  # while it is claimed; Windows renames no open file
            os.replace(part, path)
    if os.name != "posix":
        os.replace(part, path)
    note.unlink(missing_ok=True)


@contextmanager
def printed(source=None):
    """Standard output, in the form of `written`: nothing is done already."""
    if sys.stdout is None:  # the shell's >&-
        raise ValueError("standard output is closed: name a file by --output")
    if hasattr(sys.stdout, "reconfigure"):  # the system's encoding may lack letters
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")

    def add(lines, text):
        sys.stdout.write(text)
        sys.stdout.flush()

    yield 0, add


def opened(path):
    """A file's bytes, standard input's for None; ValueError where it cannot be read."""
    if path is None and sys.stdin is None:  # the shell's <&-
        raise ValueError("standard input is closed: name a file by --input")
    try:
        return nullcontext(sys.stdin.buffer) if path is None else open(path, "rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def translate_stream(translator, options):
    """Translate a file or standard input to a file or standard output, window by window."""
    a_file = options.input and options.input.is_file()
    size = options.input.stat().st_size if a_file else None
    output = partial(written, options.output, job_of(options)) if options.output else printed
    with opened(options.input) as file, output(file) as (done, add):
        if done:
            print(f"{options.output}: going on after {done} lines", file=sys.stderr)
        lines = islice(text_lines(file), done, None)
        off = None if size else True  # None: off where stderr is no terminal
        with tqdm(total=size, unit="B", unit_scale=True, disable=off) as bar:
            for number, text in translated(translator, lines, options, first=done + 1):
                add(number, text)
                if size:
                    bar.update(file.tell() - bar.n)


def converse(translator, options):
    """Translate each line as it is typed; `quit` or the end of the input (Ctrl-D) ends."""
    def ask():
        print("> ", end="", file=sys.stderr, flush=True)
        return file.readline()

    print("A sentence, then Enter; quit or Ctrl-D ends.", file=sys.stderr)
    with opened(None) as file, printed() as (_, add):
        for line in text_lines(iter(ask, b"")):
            if line.strip() == "quit":
                break
            for number, text in translated(translator, [line], options):
                add(number, text)


def load(folder, device):
    """The Translator of a model folder of any kind; see `annotated.load`."""
    if len(folder.parts) == 1 and not folder.exists():
        hint = "a name on the Hugging Face hub reads owner/model"
        raise ValueError(f"there is no folder {folder}, and {hint}")
    return import_module("annotated").load(folder, device)


def run_translate(options):
    """`translate`: as many lines out as in, in the same order."""
    if options.interactive and (options.input or options.output):
        said = "interactive means standard input and output"
        raise ValueError(f"{said}: leave out --input and --output")
    check_several(options.n_best, options.beam)
    translator = load(options.model, options.device)
    typed = not (options.input or options.output) and sys.stdin and sys.stdin.isatty()
    (converse if options.interactive or typed else translate_stream)(translator, options)


def decoded(path, number, line):
    """A line's text without space around it; ValueError with the place if it is no UTF-8."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError:
        place = f"{path}, line {number}"
        raise ValueError(f"{place} is not UTF-8 text: convert the file to UTF-8") from None


@dataclass(frozen=True)
class FilePairs:
    """The sentence pairs of two files, read anew each time they are gone through.

    Args:
        source, target: the files, a sentence a line; line n of one translates the other's.
        without: strings; pairs with one of them, or with an empty side, are passed over.

    Raises:
        ValueError: when gone through; a file cannot be read, is no UTF-8, or has more lines.
    """

    source: Path
    target: Path
    without: frozenset = frozenset()

    def __iter__(self):
        paths = self.source, self.target
        with opened(paths[0]) as source, opened(paths[1]) as target:
            for number, lines in enumerate(zip_longest(source, target), start=1):
                if None in lines:  # one is at its end, the other a line further, or more
                    rest = [sum(1 for _ in file) for file in (source, target)]
                    has = [number - (line is None) + more for line, more in zip(lines, rest)]
                    raise ValueError(
                        f"{paths[0]} has {has[0]} lines and {paths[1]} has {has[1]}: "
                        "line n of one should be the translation of line n of the other")
                pair = tuple(decoded(path, number, line) for path, line in zip(paths, lines))
                if all(pair) and self.without.isdisjoint(pair):
                    yield pair


def hold_out(pairs, most=2000):
    """Choose pairs by a hash of their text: about one in fifty, at least one.

    Args:
        pairs: iterable of (source, target) that can be gone through several times.
        most: about how many at most.

    Returns:
        list of pairs, all different.

    Raises:
        ValueError: there is no pair.
    """
    def place(pair):
        return fraction("\t".join(pair))

    total = sum(1 for _ in pairs)
    if not total:
        raise ValueError("there is no sentence pair to choose from")
    share = min(1 / 50, most / total)
    chosen = [pair for pair in pairs if place(pair) < share] or [min(pairs, key=place)]
    return list(dict.fromkeys(chosen))


def sha256_of(path):
    """The sha256 of a file, as `sha256sum` gives it; None for what is no regular file."""
    if not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def name_of(source, target):
    """What text in two files is called, in letters that UTF-8 can write."""
    return f"{source.name} and {target.name}".encode("utf-8", "replace").decode()


def corpus_of_files(options):
    """The corpus in the files --source, --target, --valid-source and --valid-target.

    Raises:
        ValueError: a file cannot be used, or nothing is left to train on.
    """
    pairs = FilePairs(options.source, options.target)
    given = options.valid_source
    held_out = FilePairs(given, options.valid_target) if given else None
    name = name_of(options.source, options.target)
    total = sum(1 for _ in pairs)
    if not total:
        raise ValueError(f"{name} hold no sentence pair")
    validation = list(held_out) if held_out else hold_out(pairs)
    pairs = replace(pairs, without=frozenset(text for pair in validation for text in pair))
    kept = sum(1 for _ in pairs)
    left = total - kept - (0 if held_out else len(validation))
    print(f"{name}: {kept} pairs to train on, {len(validation)} held out, "
          f"{left} left out that share a sentence with these", file=sys.stderr)
    if not kept or not validation:
        raise ValueError(f"{name} leave nothing to train on or to validate with: give more")
    names = ("source", "target", *(("valid_source", "valid_target") if held_out else ()))
    sums = {name: sha256_of(getattr(options, name)) for name in names}
    return Corpus(name, pairs, validation, [], "the user's own", sums)


def read_corpus(options):
    """The corpus for `train`: what --corpus names, or what two or four files hold."""
    names = ("source", "target", "valid_source", "valid_target")
    files = [getattr(options, name) for name in names]
    if bool(options.corpus) == all(files[:2]) or any(files) and not all(files[:2]):
        raise ValueError("give either --corpus NAME, or --source FILE and --target FILE")
    if bool(files[2]) != bool(files[3]):
        raise ValueError("give both --valid-source and --valid-target, or neither")
    for path in filter(None, files):
        if path.exists() and not path.is_file():
            what = f"{path} is no regular file"
            raise ValueError(f"{what}, but training text is read repeatedly")
    return load_corpus(options.corpus) if options.corpus else corpus_of_files(options)


def sampled(pairs, most=1_000_000):
    """Every k-th pair, k so large that there are at most `most`."""
    step = max(1, -(-sum(1 for _ in pairs) // most))
    return islice(pairs, 0, None, step)


def make_vocabulary(corpus, size, folder):
    """The vocabulary of a training folder: that of the run it holds, or else a new one.

    Raises:
        ValueError: the run was begun with another size.
    """
    if (folder / "run.json").exists():
        found = load_vocabulary(folder)
        if isinstance(found, Subwords) and len(found) != size:
            begun = f"{folder} was begun with vocab={len(found)}"
            raise ValueError(f"{begun}, now vocab={size}: choose another --out")
        return found
    for kind in (Words, Subwords):
        (folder / kind.filename).unlink(missing_ok=True)
    if corpus.name == "grammar":
        vocabulary = Words.build(corpus.train)
    else:
        texts = (text for pair in sampled(corpus.train) for text in pair)
        vocabulary = Subwords.train(texts, size)
    vocabulary.save(folder / vocabulary.filename)
    return vocabulary


def too_long(text, s, t, limits):
    """The error about a pair that is longer than some limits, given as NAME=VALUE."""
    return ValueError(
        f"the pair that begins {text[:40]!r} has {len(s)} source and {len(t)} target tokens, "
        f"more than {limits}: raise that, or leave such pairs out with --longest N")


def positions_of(config):
    """How many positions a model of these sizes has; None for any number."""
    return config.max_positions if config.positions == "learned" else None


def encoded(pairs, vocabulary, recipe, longest=None, positions=None):
    """Turn pairs of texts into pairs of identifiers, one after the other.

    Args:
        pairs: iterable of (source, target).
        vocabulary: with `encode`.
        recipe: its source_tokens and target_tokens are what a sentence may have.
        longest: leave out pairs with a side of more tokens; None leaves out none.
        positions: how many the model has, see `positions_of`; None: as many as are wanted.

    Yields:
        (source ids, target ids), each ending in eos.

    Raises:
        ValueError: a pair is too long for any batch, or for the model.
    """
    left = 0
    for source, target in pairs:
        s, t = vocabulary.encode(source), vocabulary.encode(target)
        if longest and max(len(s), len(t)) > longest:
            left += 1
        elif positions and max(len(s), len(t)) > positions:
            raise too_long(source, s, t, f"max_positions={positions}")
        elif len(s) > recipe.source_tokens or len(t) > recipe.target_tokens:
            raise too_long(source, s, t, f"source_tokens={recipe.source_tokens} or "
                                         f"target_tokens={recipe.target_tokens}")
        else:
            yield s, t
    if left:
        print(f"left out {left} pairs of more than {longest} tokens", file=sys.stderr)


@dataclass(frozen=True)
class AsTheyAre:
    """In place of a vocabulary, for pairs that are encoded already.

    Args:
        size: of the vocabulary that encoded them.
    """

    size: int

    def encode(self, ids):
        """The identifiers, unchanged."""
        return ids

    def __len__(self):
        return self.size


def token_pairs(corpus, vocabulary, recipe, folder, longest=None, positions=None):
    """Encode a corpus: training text to folder/tokens on disk, held-out text to a list.

    Args:
        corpus: a `Corpus`.
        folder: of the training.
        vocabulary, recipe, longest, positions: as for `encoded`.

    Returns:
        a `TokenPairs`, and a list of (source ids, target ids).

    Raises:
        ValueError: no training or no held-out pair is left; see also `encoded`.
    """
    limits = recipe, longest, positions
    held_out = list(encoded(corpus.validation, vocabulary, *limits))
    if not held_out:
        raise ValueError(f"longest={longest} leaves out every held-out pair: raise it")
    if (folder / "run.json").exists():
        with suppress(ValueError):  # there are none, or damaged ones
            return TokenPairs(folder / "tokens"), held_out
    training = encoded(corpus.train, vocabulary, *limits)
    return prepare(training, AsTheyAre(len(vocabulary)), folder / "tokens"), held_out


MARK = ".training"


def check_folder(folder):
    """Refuse a training folder that holds what no training has written.

    Raises:
        ValueError: names what is there, or says that the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, not a folder: choose another --out")
    if (folder / "run.json").exists():
        return
    names = "README.md config.json model.safetensors checkpoints log.jsonl scores.json".split()
    if not (folder / MARK).exists():
        names += ["tokens", Words.filename, Subwords.filename]
    found = [path.name for name in names for path in folder.glob(name)]
    if found:
        what = f"{folder} is no training folder, but holds {found[0]}"
        raise ValueError(f"{what}, which would be lost: choose another --out")


def has_weights(folder):
    """Whether a training folder holds a checkpoint, or the model that was made of them."""
    return bool(list_checkpoints(folder)) or (folder / "config.json").exists()


def read_run(folder):
    """What run.json holds: a dict whose parts config, recipe and data are dicts, if there.

    Raises:
        ValueError: it cannot be read, or is damaged.
    """
    content = read_file(folder / "run.json")
    try:
        run = json.loads(content)
        parts = run, *(run.get(name, {}) for name in ("config", "recipe", "data"))
        if all(isinstance(part, dict) for part in parts):
            return run
        why = "its parts should hold names with values"
    except (ValueError, AttributeError) as error:
        why = error
    raise ValueError(f"{folder / 'run.json'} is damaged: {why}")


def check_same_run(folder, **wanted):
    """Refuse to go on with other settings or other text than the folder was begun with.

    Args:
        folder: of the training.
        wanted: parts of run.json (config, recipe, data), each a dict.

    Raises:
        ValueError: names the first field that differs; or run.json is damaged.
    """
    if not (folder / "run.json").exists():
        return
    begun = read_run(folder)
    if not has_weights(folder):
        wanted.pop("recipe", None)
    free = ("steps", "evaluate_every", "save_every", "vocab")  # vocab has a check of its own
    for part, values in wanted.items():
        for field, value in values.items():
            was = begun.get(part, {}).get(field)
            if was != value and field not in free:
                what = f"{field}={was}, now {field}={value}"
                what = "other text" if field == "sha256" else what
                raise ValueError(f"{folder} was begun with {what}: choose another --out")


def begin(folder, config, recipe, data):
    """Write run.json; where a stopped run goes on, add to it with what it went on."""
    path = folder / "run.json"
    run = provenance(config=config, recipe=recipe, data=data)
    if path.exists() and has_weights(folder):
        now = {name: run[name] for name in ("command", "commit", "date")}
        now["steps"] = recipe.steps
        run = read_run(folder)
        run["continued"] = [*run.get("continued", []), now]
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def score(translator, pairs, beam=4, alpha=0.6, lowercase=False, tokenize="13a"):
    """Translate the sources of some pairs and score the outputs against their targets.

    Args:
        translator: a `Translator`.
        pairs: list of (source, target).
        beam, alpha: of the search.
        lowercase, tokenize: of BLEU, see `bleu`.

    Returns:
        dict with scores and signatures, and the outputs as a list.
    """
    sources, references = map(list, zip(*pairs))
    outputs = [one_line(line) for line in translator.translate(sources, beam, alpha)]
    value, signature = bleu(outputs, references, lowercase, tokenize)
    other, other_signature = chrf(outputs, references)
    scores = {"bleu": round(value, 2), "signature": signature}
    scores |= {"chrf": round(other, 2), "chrf_signature": other_signature}
    return {**scores, "sentences": len(pairs), "beam": beam, "alpha": alpha}, outputs


def write_scores(folder, scores, outputs=None):
    """Write scores.json, and outputs.txt where there are outputs, to a folder."""
    texts = {"scores.json": json.dumps(scores, indent=1, ensure_ascii=False) + "\n"}
    if outputs is not None:
        texts["outputs.txt"] = "".join(line + "\n" for line in outputs)
    for name, text in texts.items():
        with replacing(folder / name) as fresh:
            fresh.write_text(text, encoding="utf-8", newline="\n")


def to_score(options):
    """The name and the pairs of what `evaluate` is to score.

    Raises:
        ValueError: a name and files are given, or neither, or there is no pair.
    """
    files = options.source, options.target
    if any(files) != all(files) or bool(options.corpus) == all(files):
        raise ValueError("give either --corpus NAME, or --source FILE and --target FILE")
    if options.corpus:
        name, pairs = options.corpus, getattr(load_corpus(options.corpus), options.split)
    else:
        name, pairs = name_of(*files), list(FilePairs(*files))
    if not pairs:
        raise ValueError(f"{name} hold no sentence pair")
    return name, pairs


def run_evaluate(options):
    """`evaluate`: translate a held-out set and score it."""
    name, pairs = to_score(options)
    bleu_metric(options.lowercase, options.tokenize)  # refuses a name that it does not know
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"{options.out} is a file, not a folder: choose another --out")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    translator = load(options.model, options.device)
    search = options.beam, options.alpha
    scores, outputs = score(translator, pairs, *search, options.lowercase, options.tokenize)
    print(f"BLEU {scores['bleu']:.2f}  {scores['signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")
    print(f"{name}, {len(pairs)} sentences, beam {options.beam}, alpha {options.alpha}")
    if options.out:
        split = {"split": options.split} if options.corpus else {}
        write_scores(options.out, {**scores, "corpus": name, **split}, outputs)


def describe(corpus, config, run, used, scores=None):
    """The README of a model folder.

    Args:
        corpus: the `Corpus` that it was trained on.
        config: the model's sizes.
        run: what run.json holds.
        used: how many checkpoints the model is the mean of.
        scores: of `score`, if it was scored.
    """
    names = ("N", "d_model", "d_ff", "h", "vocab")
    sizes = ", ".join(f"{name}={getattr(config, name)}" for name in names)
    text = f"# A Transformer trained on {corpus.name}\n\n"
    text += f"Data: {corpus.name}. Licence of the data: {corpus.licence}\n\n"
    text += f"{sizes}; checkpoints averaged: {used}.\n"
    text += f"Made by `{run['command']}`, {run['date']}.\n\n"
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
}


def settings(options):
    """The sizes and the recipe that the options ask for."""
    def of(kind):
        names = [field.name for field in fields(kind) if hasattr(options, field.name)]
        return {name: getattr(options, name) for name in names}

    return replace(PRESETS[options.preset], **of(Config)), Recipe(**of(Recipe))


@dataclass
class Worker:
    """How a process trains.

    Args:
        first: whether this process writes the folder; of several, one does.
        attention: for the model, as in `Transformer`.
        turn: a context in which one process after the other reads and writes the folder.
        feed: gets the batches and gives those to train on.
        start: as in `train`.
    """

    first: bool = True
    attention: Callable = scaled_dot_product_attention
    turn: Callable = nullcontext
    feed: Callable = lambda batches: batches
    start: Callable = Run


def worker_for(options):
    """A context that gives the worker the options ask for; may set the options' device.

    Raises:
        ValueError: the batches of an update cannot be shared among the processes, or the model
            is one that only the plain update trains.
    """
    asked = options.fast or options.compile or options.precision
    if not asked and "LOCAL_RANK" not in os.environ:  # torchrun sets it
        return nullcontext(Worker())
    config, recipe = settings(options)
    if config.output_bias:
        raise ValueError("output_bias cannot be trained with --fast or by several processes")
    processes, batches = int(os.environ.get("WORLD_SIZE", 1)), recipe.accumulate
    if batches % processes:
        what = f"accumulate must be a multiple of the processes, got {batches} batches"
        raise ValueError(f"{what} for {processes} processes: try --accumulate {processes}")
    return import_module("annotated.gpu").fast_worker(options)


def run_train(options):
    """`train`: corpus to subwords to batches to a model folder."""
    with worker_for(options) as worker:
        train_as(worker, options)


def held_out_loss(batches, model):
    """What is measured during a training: the mean loss on held-out batches."""
    return {"validation_loss": round(cross_entropy(model, batches), 4)}


def learn(worker, model, recipe, pairs, held_out, folder):
    """Train a model on encoded pairs as the worker does it; the first one keeps a record."""
    budget = recipe.source_tokens, recipe.target_tokens
    evaluate = partial(held_out_loss, list(token_batches(held_out, *budget)))
    batches = worker.feed(Batches(pairs, *budget, recipe.seed))
    keeps = {"folder": folder, "evaluate": evaluate} if worker.first else {}
    train(model, recipe, batches, start=worker.start, **keeps)


def train_as(worker, options):
    """Train in one of perhaps several processes, the first of which writes everything."""
    (config, recipe), folder, corpus = settings(options), options.out, read_corpus(options)
    data = {"corpus": corpus.name, "licence": corpus.licence, "sha256": corpus.provenance,
            "longest": options.longest}
    check_folder(folder)
    check_same_run(folder, config=asdict(config), recipe=asdict(recipe), data=data)
    with claimed(folder / MARK) if worker.first else nullcontext():
        with worker.turn():
            vocabulary = make_vocabulary(corpus, config.vocab, folder)
            limits = options.longest, positions_of(config)
            texts = token_pairs(corpus, vocabulary, recipe, folder, *limits)
            config = replace(config, vocab=len(vocabulary))
            if worker.first:
                begin(folder, config, recipe, data)
        torch.manual_seed(recipe.seed)
        model = Transformer(config, worker.attention).to(options.device)
        learn(worker, model, recipe, *texts, folder)
        if worker.first:
            finish(model, vocabulary, corpus, folder, recipe.keep, options.score)


def finish(model, vocabulary, corpus, folder, keep, most):
    """Average the last checkpoints; save the model, score it on held-out pairs, describe."""
    used = average(model, folder, keep)
    run = read_run(folder)
    save(folder, model, vocabulary, describe(corpus, model.config, run, used))
    print(f"{folder} holds the model: the mean of {used} checkpoints", file=sys.stderr)
    if most:
        scores, _ = score(Translator(model, vocabulary), corpus.validation[:most])
        write_scores(folder, {**scores, "corpus": corpus.name, "split": "validation"})
        about = describe(corpus, model.config, run, used, scores)
        with replacing(folder / "README.md") as fresh:
            fresh.write_text(about, encoding="utf-8")
        count = scores["sentences"]
        print(f"BLEU {scores['bleu']:.2f} on {count} held-out pairs", file=sys.stderr)


def state_of(name, folder):
    """A line about a corpus: its size, how much of it is in a folder, its licence."""
    files, missing = CORPORA[name].files, missing_files(name, folder)
    part = "not there" if len(missing) == len(files) else "in part"
    there = part if missing else "there"
    size = f"{sum(file.size for file in files) / 1e6:.1f} MB"
    return f"{name:<20}{size:>8}  {there:<9}  {CORPORA[name].licence}"


def write_grammar(folder):
    """Write the built-in grammar as train.tsv, validation.tsv and test.tsv into grammar/.

    Args:
        folder: `grammar` is made in it.
    """
    corpus = load_corpus("grammar")
    for part in ("train", "validation", "test"):
        lines = [f"{source}\t{target}\n" for source, target in getattr(corpus, part)]
        with replacing(folder / "grammar" / f"{part}.tsv") as fresh:
            fresh.write_bytes("".join(lines).encode())


def run_fetch(options):
    """`fetch`: download a corpus, or all, or write the grammar; without a name, list them."""
    folder = options.folder or Path(os.environ.get("ANNOTATED_DATA") or cache_folder())
    if options.name is None:
        print(f"in {folder}:", *(state_of(name, folder) for name in CORPORA), sep="\n")
        print("grammar is made by the program: `fetch grammar` writes it as text.")
    for name in CORPORA if options.name == "all" else [options.name] if options.name else []:
        if name == "grammar":
            write_grammar(folder)
        else:
            fetch(name, folder)
        print(f"{name} is in {folder}")


def add_fetch(parser):
    """Options of `fetch`."""
    names = ", ".join([*CORPORA, "grammar"])
    parser.add_argument("name", nargs="?", help=f"{names}, or all; default: list them")
    parser.add_argument("--folder", type=folder_name,
                        help="where to; default: $ANNOTATED_DATA, else the system's cache")


MEANING = dict(line.split(None, 1) for line in """
N layers of the encoder, and of the decoder
d_model width of the model
d_ff width inside the feed-forward layers
h heads of each attention
d_k width of a head's queries and keys; default d_model / h
d_v width of a head's values; default d_model / h
P_drop dropout
eps_ls label smoothing
vocab pieces of the vocabulary
norm where the layer norm stands: post, as in the paper, or pre
final_norm a layer norm after the last layer, which pre needs
eps_norm added under the root of the layer norm
bias biases of the projections in attention
output_bias a number for each token, added to its logit
activation relu, gelu or swish
positions sinusoidal, halves or learned
max_positions longest sentence, for learned positions
P_drop_attention dropout of the attention weights
P_drop_ffn dropout inside the feed-forward layers
""".strip().splitlines())

PACE = dict(line.split(None, 1) for line in """
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
evaluate_every updates from one look at held-out text to the next
save_every updates from one checkpoint to the next
keep checkpoints that are kept, and averaged at the end
""".strip().splitlines())


def yes_or_no(text):
    """The value of an option that is true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"give true or false, not {text!r}")
    return text.lower() == "true"


def at_least(least):
    """The type of an option that is a whole number, this one or more."""
    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"give a whole number, {least} or more, not {text!r}")
        return int(text)

    return number


def folder_name(text):
    """The path of an option that names a folder."""
    if not text:
        raise argparse.ArgumentTypeError("name a folder, not ''")
    return Path(text)


METAVAR = {int: "N", float: "X", str: "NAME", yes_or_no: "true|false"}


def add_fields(parser, kind, meaning, title, shown=True):
    """Give the parser an option for each field of a dataclass that has a meaning."""
    group = parser.add_argument_group(title)
    for field in fields(kind):
        if field.name in meaning:
            known = type(field.default)
            type_ = yes_or_no if known is bool else known if known in (str, float) else int
            default = f" (default {field.default})" if shown else ""
            group.add_argument(f"--{field.name}", type=type_, metavar=METAVAR[type_],
                               default=argparse.SUPPRESS, help=meaning[field.name] + default)


EXAMPLES = {
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


def add_corpus(parser):
    """Options that say which sentence pairs."""
    add = parser.add_argument
    add("--corpus", help=f"a corpus by name: grammar, {', '.join(CORPORA)}")
    add("--source", type=Path, help="or a file of source sentences, one a line")
    add("--target", type=Path, help="and one of their translations")


def add_machine(parser):
    """Options that say where to compute."""
    add = parser.add_argument
    default = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=default, help=f"cpu or cuda (default {default})")
    add("--threads", type=int, help="CPU threads; default: torch's own choice")


def add_speed(parser):
    """Options that say where to train, and how fast."""
    add_machine(parser)
    add = parser.add_argument
    add("--fast", action="store_true",
        help="train as chapter 14 does: "
        "fused attention, a loss in pieces, batches made ahead")
    add("--precision", choices=("float32", "tf32", "bfloat16"),
        help="of matrix products; implies --fast, whose default is bfloat16 on a GPU")
    add("--compile", action="store_true", help="compile the layers; implies --fast")


def add_search(parser):
    """Options of the search."""
    add = parser.add_argument
    add("--model", type=Path, required=True,
        help="a model folder, ours or MarianMT's, or owner/model on the Hugging Face hub")
    add("--beam", type=at_least(1), default=4, metavar="K",
        help="of the search; 1 is greedy (default 4)")
    add("--alpha", type=float, default=0.6, help="of the length penalty (default 0.6)")
    add_machine(parser)


def add_train(parser):
    """Options of `train`."""
    add = parser.add_argument
    add_corpus(parser)
    add_speed(parser)
    add("--valid-source", type=Path,
        help="held-out source sentences; default: about one pair "
        "in fifty, 2000 at most, chosen by a hash of the text and never trained on")
    add("--valid-target", type=Path, help="their translations")
    add("--out", type=folder_name, required=True,
        help="folder for the model, its log and its checkpoints")
    add("--preset", choices=PRESETS, default="small",
        help="sizes to begin with (default small)")
    add("--longest", type=at_least(1), metavar="N",
        help="leave out pairs with a side of more tokens, and say how many")
    add("--score", type=at_least(0), default=1000, metavar="N",
        help="held-out pairs to be translated and scored "
        "at the end, at most (default 1000; 0: none)")
    sizes = "sizes (the paper's symbols; what is not given, the preset decides)"
    add_fields(parser, Config, MEANING, sizes, shown=False)
    add_fields(parser, Recipe, PACE, "recipe")


def add_translate(parser):
    """Options of `translate`."""
    add = parser.add_argument
    add_search(parser)
    add("--input", type=Path, help="a file, one sentence a line; default: standard input")
    add("--output", type=Path, help="a file; default: standard output")
    add("--n-best", type=at_least(0), default=0, metavar="K",
        help="K translations of a line, each as number, score and text with tabs between")
    add("--interactive", action="store_true",
        help="answer each line at once, as on a terminal")
    add("--window", type=at_least(1), default=1000, metavar="N",
        help="lines translated together (default 1000)")


def add_evaluate(parser):
    """Options of `evaluate`."""
    add = parser.add_argument
    add_search(parser)
    add_corpus(parser)
    add("--split", choices=("validation", "test"), default="test",
        help="of a corpus (default test)")
    add("--lowercase", action="store_true", help="compare without case")
    add("--tokenize", default="13a", metavar="NAME",
        help="BLEU's tokeniser: 13a (default), zh for Chinese, char, intl, none, ...")
    add("--out", type=folder_name, help="folder for scores.json and outputs.txt")


ABOUT = "Train, use and score the Transformer of the book."


def make_parser():
    """The parser of `python -m annotated`."""
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    release = sys.modules["annotated"].__version__  # the package that this module is part of
    texts = {"description": ABOUT, "epilog": EXAMPLES[None]}
    parser = argparse.ArgumentParser("annotated", **texts, **raw)
    version = f"annotated {release}, torch {torch.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(run=lambda options: parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, function, add, help_ in (
        ("train", run_train, add_train, "learn a model from sentence pairs"),
        ("translate", run_translate, add_translate, "translate lines of text"),
        ("evaluate", run_evaluate, add_evaluate, "score a model with BLEU"),
        ("fetch", run_fetch, add_fetch, "get a corpus; without a name, list them"),
    ):
        texts = {"help": help_, "description": help_, "epilog": EXAMPLES[name]}
        command = commands.add_parser(name, **texts, **raw)
        command.set_defaults(run=function)
        add(command)
    return parser


def foreseen(error):
    """Whether an error is the user's, or a limit of the machine, and no mistake of ours."""
    if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
        return "allocate memory" in str(error) or "overflowed" in str(error)
    limits = FloatingPointError, OverflowError, MemoryError, torch.OutOfMemoryError
    return isinstance(error, (ValueError, TypeError, OSError, *limits))


def prepare_torch(options):
    """Set the number of threads, and refuse a device that is not there."""
    if getattr(options, "threads", None) is not None:
        if not 1 <= options.threads <= 1024:
            raise ValueError(f"threads must be from 1 to 1024, got {options.threads}")
        torch.set_num_threads(options.threads)
    if getattr(options, "device", "cpu") != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"device={options.device!r}: no CUDA device here; use --device cpu")
    if hasattr(options, "device") and "LOCAL_RANK" not in os.environ:  # torchrun's choose theirs
        check_device(options.device)


def main(arguments=None):
    """Run the command line.

    Args:
        arguments: list of strings; default: those of the process.

    Returns:
        the exit status: 0; 2: cannot be done; 130: interrupted; 141: nobody reads on.
    """
    sys.stderr = sys.stderr or open(os.devnull, "w")
    options = make_parser().parse_args(arguments)
    try:
        prepare_torch(options)
        options.run(options)
        return 0
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # or Python complains when it closes the old one
        return 141
    except KeyboardInterrupt as error:
        status, said = 130, str(error) or "stopped"
    except ModuleNotFoundError as error:
        status, said = 2, f"{error}: install it with pip install {error.name}"
    except Exception as error:
        if not foreseen(error):
            raise
        status, said = 2, one_line(str(error)) or "there is not enough memory"
    print(f"annotated {options.command}: {said}", file=sys.stderr)
    return status
