"""The command line.

Generated from book/13-command-line.md by tools/tangle.py: edit the chapter, not this file.
"""

import argparse
import json
import sys
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

import torch

from annotated.data import (
    CHECKSUMS,
    Corpus,
    Subwords,
    Words,
    load_corpus,
    load_vocabulary,
    read_pairs,
    replacing,
    token_batches,
)
from annotated.decoding import load, save
from annotated.evaluation import bleu, cross_entropy
from annotated.training import Recipe, average, provenance, train
from annotated.transformer import BASE, BIG, TINY, Config, Transformer

__all__ = [
    "PRESETS",
    "EXAMPLES",
    "add_fields",
    "add_corpus",
    "add_search",
    "add_train",
    "add_translate",
    "add_evaluate",
    "make_parser",
    "pairs_of_files",
    "read_corpus",
    "make_vocabulary",
    "encode_pairs",
    "epoch_batches",
    "check_same_run",
    "begin",
    "describe",
    "run_train",
    "read_text",
    "run_translate",
    "run_evaluate",
    "main",
]


PRESETS = {"tiny": TINY, "small": replace(BASE, N=3, d_model=256, d_ff=1024, h=4), "base": BASE, "big": BIG}

EXAMPLES = {
    "train": """examples:
  python -m annotated train --corpus grammar --preset tiny --steps 500 --out model
  python -m annotated train --source train.en --target train.de --valid-source val.en --valid-target val.de \\
      --preset small --vocab 8000 --out model
The same command goes on where it was stopped.""",
    "translate": """examples:
  echo "A man rides a bike." | python -m annotated translate --model model
  python -m annotated translate --model model --input test.en --output test.out""",
    "evaluate": """examples:
  python -m annotated evaluate --model model --corpus multi30k-en-de
  python -m annotated evaluate --model model --source test.en --target test.de --beam 1""",
}


def add_fields(parser, kind, leave_out=()):
    """Give the parser an option for each field of a dataclass, named as the field."""
    group = parser.add_argument_group(f"{kind.__name__} (the paper's symbols; see the book)")
    for field in fields(kind):
        if field.name not in leave_out:
            type_ = str if isinstance(field.default, str) else float if isinstance(field.default, float) else int
            type_ = (lambda text: text.lower() in ("1", "true", "yes")) if isinstance(field.default, bool) else type_
            group.add_argument(f"--{field.name}", type=type_, metavar=str(field.default), default=argparse.SUPPRESS)


def add_corpus(parser):
    """Options that say which sentence pairs."""
    parser.add_argument("--corpus", help=f"a corpus by name: grammar, {', '.join(CHECKSUMS)}")
    parser.add_argument("--source", type=Path, help="or a file of source sentences, one a line")
    parser.add_argument("--target", type=Path, help="and one of their translations")


def add_search(parser):
    """Options of the search."""
    parser.add_argument("--beam", type=int, default=4, help="hypotheses a sentence; 1 is greedy search (default 4)")
    parser.add_argument("--alpha", type=float, default=0.6, help="of the length penalty (default 0.6)")


def add_train(parser):
    """Options of `train`."""
    add_corpus(parser)
    parser.add_argument("--valid-source", type=Path, help="held-out source sentences; default: one pair in fifty")
    parser.add_argument("--valid-target", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, its log and its checkpoints")
    parser.add_argument("--preset", choices=PRESETS, default="small")
    add_fields(parser, Config, leave_out=("source_vocab", "pad", "bos", "eos", "unk"))
    add_fields(parser, Recipe)


def add_translate(parser):
    """Options of `translate`."""
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    parser.add_argument("--input", type=Path, help="a file, one sentence a line; default: standard input")
    parser.add_argument("--output", type=Path, help="a file; default: standard output")
    add_search(parser)


def add_evaluate(parser):
    """Options of `evaluate`."""
    parser.add_argument("--model", type=Path, required=True, help="a model folder")
    add_corpus(parser)
    parser.add_argument("--split", choices=("validation", "test"), default="test", help="of a corpus (default test)")
    parser.add_argument("--lowercase", action="store_true", help="compare without case")
    parser.add_argument("--tokenize", default="13a", help="sacreBLEU's tokeniser (default 13a)")
    parser.add_argument("--out", type=Path, help="folder for scores.json and the outputs")
    add_search(parser)


def make_parser():
    """The parser of `python -m annotated`."""
    parser = argparse.ArgumentParser(prog="annotated", description="Train, use and score the Transformer of the book.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="train | translate | evaluate")
    for name, function, add, help_ in (
        ("train", run_train, add_train, "learn a model from sentence pairs"),
        ("translate", run_translate, add_translate, "translate lines of text"),
        ("evaluate", run_evaluate, add_evaluate, "score a model with sacreBLEU"),
    ):
        command = commands.add_parser(
            name, help=help_, epilog=EXAMPLES[name], formatter_class=argparse.RawDescriptionHelpFormatter
        )
        command.set_defaults(run=function)
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
        command.add_argument("--threads", type=int, help="CPU threads; default: torch's own choice")
        add(command)
    return parser


def pairs_of_files(source, target):
    """The sentence pairs of two files; says on stderr how many empty ones were left out."""
    pairs, dropped = read_pairs(source, target)
    if dropped:
        print(f"{source}: left out {dropped} pairs with an empty side", file=sys.stderr)
    if not pairs:
        raise ValueError(f"{source} holds no sentence pair")
    return pairs


def read_corpus(options):
    """The corpus that --corpus names, or that --source and --target hold."""
    if bool(options.corpus) == bool(options.source and options.target):
        raise ValueError("give either --corpus NAME, or --source FILE and --target FILE")
    if options.corpus:
        return load_corpus(options.corpus)
    pairs = pairs_of_files(options.source, options.target)
    held_out = getattr(options, "valid_source", None), getattr(options, "valid_target", None)
    if None in held_out and any(held_out):
        raise ValueError("give both --valid-source and --valid-target, or neither")
    name = f"{options.source.name} and {options.target.name}"
    if all(held_out):
        return Corpus(name, pairs, pairs_of_files(*held_out), pairs, "the user's own")
    return Corpus(name, [p for i, p in enumerate(pairs) if i % 50], pairs[::50], pairs, "the user's own")


def make_vocabulary(corpus, size, folder):
    """The vocabulary of a training folder: the one it holds, or else a new one, learnt from training text only."""
    if any((folder / kind.filename).exists() for kind in (Words, Subwords)):
        return load_vocabulary(folder)
    if corpus.name == "grammar":
        vocabulary = Words.build(corpus.train)
    else:
        vocabulary = Subwords.train((text for pair in corpus.train for text in pair), size)
    vocabulary.save(folder / vocabulary.filename)
    return vocabulary


def encode_pairs(vocabulary, pairs):
    """Turn pairs of texts into pairs of identifiers."""
    return [(vocabulary.encode(source), vocabulary.encode(target)) for source, target in pairs]


def epoch_batches(pairs, recipe, epoch, position):
    """The batches of an epoch from a position on, as `train` asks for them."""
    return token_batches(pairs, recipe.source_tokens, recipe.target_tokens, recipe.seed, epoch, position)


def check_same_run(folder, config, recipe):
    """Refuse to go on with another model or recipe than the folder was begun with.

    Raises:
        ValueError: names the first field that differs.
    """
    if not (folder / "run.json").exists():
        return
    begun = json.loads((folder / "run.json").read_text())
    for name, wanted in ("config", asdict(config)), ("recipe", asdict(recipe)):
        for field, value in wanted.items():
            if begun[name].get(field) != value and field != "steps":
                was = begun[name].get(field)
                raise ValueError(f"{folder} was begun with {field}={was}, now {field}={value}: choose another --out")


def begin(folder, corpus, config, recipe):
    """Write run.json; where a stopped run goes on, add to it with what it went on."""
    path = folder / "run.json"
    data = {"corpus": corpus.name, "licence": corpus.licence, "sha256": corpus.provenance}
    run = provenance(config=config, recipe=recipe, data=data)
    if path.exists():
        now = {**{name: run[name] for name in ("command", "commit", "date")}, "steps": recipe.steps}
        run = json.loads(path.read_text())
        run["continued"] = [*run.get("continued", []), now]
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(run, indent=1) + "\n")


def describe(corpus, config, checkpoints):
    """The README of a model folder."""
    return (
        f"# A Transformer trained on {corpus.name}\n\n"
        f"Data: {corpus.licence}\n\n"
        f"N={config.N}, d_model={config.d_model}, d_ff={config.d_ff}, h={config.h}, vocab={config.vocab}; "
        f"the mean of the last {checkpoints} checkpoints.\n"
    )


def run_train(options):
    """`train`: corpus to subwords to batches to a model folder."""
    given = {name: getattr(options, name) for kind in (Config, Recipe) for name in
             (f.name for f in fields(kind)) if hasattr(options, name)}
    chosen = {f.name: given[f.name] for f in fields(Config) if f.name in given}
    recipe = Recipe(**{f.name: given[f.name] for f in fields(Recipe) if f.name in given})
    corpus = read_corpus(options)
    vocabulary = make_vocabulary(corpus, given.get("vocab", PRESETS[options.preset].vocab), options.out)
    config = replace(PRESETS[options.preset], **{**chosen, "vocab": len(vocabulary)})
    check_same_run(options.out, config, recipe)
    torch.manual_seed(recipe.seed)
    model = Transformer(config).to(options.device)
    begin(options.out, corpus, config, recipe)
    encode = partial(encode_pairs, vocabulary)
    batches = partial(epoch_batches, encode(corpus.train), recipe)
    held_out = list(token_batches(encode(corpus.validation), recipe.source_tokens, recipe.target_tokens))
    train(model, recipe, batches, options.out, lambda m: {"validation_loss": round(cross_entropy(m, held_out), 4)})
    used = average(model, options.out, recipe.keep)
    save(options.out, model, vocabulary, describe(corpus, config, used))
    print(f"{options.out} holds the model: the mean of {used} checkpoints", file=sys.stderr)


def read_text(path):
    """A file's text, or standard input's; a byte that is not UTF-8 becomes the replacement character."""
    try:
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return content.decode("utf-8", errors="replace").replace("\r\n", "\n")


def run_translate(options):
    """`translate`: as many lines out as in, in the same order."""
    translator = load(options.model, options.device)
    lines = read_text(options.input).split("\n")
    if not lines[-1]:  # what follows the last line end is no line
        lines.pop()
    outputs = translator.translate(lines, options.beam, options.alpha)
    result = "".join(line + "\n" for line in outputs)
    if options.output is None:
        sys.stdout.write(result)
    else:
        with replacing(options.output) as fresh:
            fresh.write_text(result, encoding="utf-8")


def run_evaluate(options):
    """`evaluate`: translate a held-out set and score it."""
    corpus, translator = read_corpus(options), load(options.model, options.device)
    pairs = getattr(corpus, options.split if options.corpus else "test")
    outputs = translator.translate([source for source, _ in pairs], options.beam, options.alpha)
    score, signature = bleu(outputs, [target for _, target in pairs], options.lowercase, options.tokenize)
    print(f"BLEU {score:.2f}  {signature}  {corpus.name}, {len(pairs)} sentences, beam {options.beam}")
    if options.out:
        about = {"bleu": round(score, 2), "signature": signature, "corpus": corpus.name, "sentences": len(pairs),
                 "split": options.split, "beam": options.beam, "alpha": options.alpha}
        options.out.mkdir(parents=True, exist_ok=True)
        for name, text in (("scores.json", json.dumps(about, indent=1)), ("outputs.txt", "\n".join(outputs))):
            with replacing(options.out / name) as fresh:
                fresh.write_text(text + "\n", encoding="utf-8")


def main(arguments=None):
    """Run the command line; returns the exit status.

    Errors of the user's making are one line on stderr and status 2; an interrupt is status 130.
    """
    options = make_parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        options.run(options)
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        print(f"annotated {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"annotated {options.command}: {error}", file=sys.stderr)
        return 130
    return 0
