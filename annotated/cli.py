"""Inside the command line.

Generated from book/H-command-line.md by tools/tangle.py: edit the chapter, not this file.
"""

import argparse
import codecs
import errno
import os
import re
import sys
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile

import torch
from tqdm import tqdm

from annotated.corpora import CORPORA, _missing_files, cache_folder, fetch, load_corpus
from annotated.decoding import _check_device, _check_n_best
from annotated.evaluation import _bleu_metric
from annotated.files import (
    _need,
    _one_line,
    _open_input,
    _refuse_lone_cr,
    _text_lines,
    read_json,
    resumable_output,
    sha256_of,
    write_text,
)
from annotated.own_text import (
    PRESETS,
    _check_above,
    _check_files,
    _FilePairs,
    _name_of,
    _run_train,
    _score,
    _write_scores,
)
from annotated.training import Recipe
from annotated.transformer import Config

__all__ = ["main"]


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


def _translate_stream(translator, options):
    """Translate a file or standard input to a file or standard output, window by window."""
    a_file = options.input and options.input.is_file()
    size = options.input.stat().st_size if a_file else None
    if a_file:  # standard input can be read only once
        with _open_input(options.input) as file:
            first = list(islice(_text_lines(file, options.input, options.encoding), 2))
        _refuse_lone_cr(first, options.input)
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
        _check_files(*files, options.encoding)
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


def _check_room(folder):
    """Refuse a folder in which nothing can be written: ValueError."""
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        said = f"cannot write to {folder}: {error.strerror}"
        raise ValueError(f"{said}: choose another --out, or make room") from None


def _print_scores(scores, what, lines):
    """Print what `_score` returns, of what was scored, and how many of the lines were left out."""
    _speak_unicode()
    left = lines - scores["sentences"]
    print(f"BLEU {scores['bleu']:.2f}  {scores['signature']}")
    print(f"chrF {scores['chrf']:.2f}  {scores['chrf_signature']}")
    print(what + (f"; {left} lines more have an empty side" if left else ""))
    if not scores["bleu"]:
        print("BLEU is 0 where no word is right, or no output has four words", file=sys.stderr)


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
        _check_room(options.out)
    search = options.beam, options.alpha
    scores, outputs = _score(translator, pairs, *search, options.lowercase, options.tokenize)
    scores |= {"int8": True} if options.int8 else {}
    try:  # neither a full disk nor a closed standard output must cost the work
        if options.out:
            split = {"split": options.split or "test"} if options.corpus else {}
            _write_scores(options.out, {**scores, "corpus": name, **split}, outputs)
    finally:
        _print_scores(scores, f"{name}, {scores['sentences']} sentences, beam {options.beam}, "
                      f"alpha {options.alpha}" + (", int8" if options.int8 else ""), len(pairs))


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


def _file_name(text, hint=""):
    """The path of an option that names a file."""
    if text in ("", "-"):
        raise argparse.ArgumentTypeError(f"name a file, not {text!r}{hint}")
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
As many lines come out as went in. Stopped with both files named, the same command goes on.""",
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
    add("--source", type=_file_name, help="or a file of source sentences, one a line")
    add("--target", type=_file_name, help="and one of their translations")
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
           "an update made for CPUs (appendix N)")
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
    add("--valid-source", type=_file_name,
        help="held-out source sentences; default: about one pair "
        "in fifty, about 2000 at most, chosen by a hash of the text and never trained on")
    add("--valid-target", type=_file_name, help="their translations")
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
    for name, stream in (("input", "standard input"), ("output", "standard output")):
        type_ = partial(_file_name, hint=f", or leave --{name} out for {stream}")
        what = "a file, one sentence a line" if name == "input" else "a file"
        add(f"--{name}", type=type_, help=f"{what}; default: {stream}")
    _add_encoding(parser)
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


def _said_of_file(error):
    """What a line tells of an error of the system: the file, what is wrong, and what would do."""
    name = re.sub(r"(^|[/\\])\.([^/\\]+)\.part$", r"\1\2", str(error.filename or ""))
    place = f"{name}: " if name else ""
    full = ": make room, and give the same command again" * (error.errno == errno.ENOSPC)
    return _one_line(f"{place}{error.strerror}{full}")


def _said(error):
    """What a line tells of an error: its own words, but for memory plain ones."""
    text = _one_line(str(error))
    if isinstance(error, OSError) and error.strerror:
        return _said_of_file(error)
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
