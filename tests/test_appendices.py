"""Appendices A and D, and the list of records, say what the chapters, the code and the records say."""

import json
import re
from dataclasses import fields

import layout
import pytest
from chapters import ROOT, paths, read, woven

from annotated.embedding import Embedding
from annotated.layers import FeedForward
from annotated.multihead import MultiHeadAttention
from annotated.transformer import Config

CHAPTERS: dict[str, str] = {}  # number -> text, of a chapter with its questions
for path in woven():
    of = path.name.split("-")[0].lstrip("0") or "0"
    CHAPTERS[of] = CHAPTERS.get(of, "") + path.read_text(encoding="utf-8")


def tables(path):
    """The tables of a page: header -> rows, each a list of cells; tables with one header are joined."""
    found, header = {}, None
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else None
        if cells is None:
            header = None
        elif header is None:
            header = tuple(cells)
            found.setdefault(header, [])
        elif not set("".join(cells)) <= set("-"):
            assert len(cells) == len(header), f"{path}: {line}"
            found[header].append(cells)
    return found


# ---- A-notation

NOTATION = tables("book/A-notation.md")
IDENTIFIERS = NOTATION["symbol", "meaning", "code", "value", "chapter"]
SYMBOLS = NOTATION["symbol", "meaning", "code", "shape", "chapter"] + IDENTIFIERS


def test_every_symbol_of_a_chapter_is_in_the_notation():
    missing = [(path.name, *fault) for path in paths() for fault in layout.symbols(read(path), ROOT)
               if "A-notation" in fault[1]]
    assert not missing


def test_a_missing_symbol_is_found(book):
    (book.root / "book" / "A-notation.md").write_text("| symbol | meaning |\n|---|---|\n| $Q$ | queries |\n")
    path = book("02-x.md", "# X\n\n| symbol | code | shape |\n|---|---|---|\n| $Q$ | `Q` | (T,) |\n| $Z$ | `Z` | (T,) |\n")
    assert [message for _, message in layout.symbols(read(path), book.root)] == ["Z is not in book/A-notation.md"]


def test_a_symbol_with_two_rows_is_named_among_the_letters_of_two_meanings():
    symbols = [symbol for row in SYMBOLS for symbol in layout.column(f"| {row[0]} |")]
    twice = {symbol for symbol in symbols if symbols.count(symbol) > 1}
    letters = NOTATION["letter", "in one place", "in another"]
    assert twice <= {symbol for row in letters for symbol in layout.column(f"| {row[0]} |")}


@pytest.mark.parametrize("row", SYMBOLS, ids=lambda row: row[2])
def test_the_chapter_named_uses_the_code_named(row):
    codes = re.findall(r"`([^`]+)`", row[2])
    assert codes, f"{row[0]} has no code"
    for code in codes:
        name = code.split("(")[0]
        for number in row[-1].split(", "):
            assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", CHAPTERS[number]), f"{name} is not in chapter {number}"


def test_identifiers_are_the_configurations():
    stated = {row[0]: int(row[3]) for row in IDENTIFIERS}
    assert stated == {name: getattr(Config(), name) for name in ("pad", "bos", "eos", "unk")}


def test_configured_sizes_are_fields_of_the_configuration():
    page = (ROOT / "book" / "A-notation.md").read_text(encoding="utf-8")
    section = page.split("## Configured sizes")[1].split("\n## ")[0]
    named = re.findall(r"^\| \$.*?\$ \| [^|]+ \| `(\w+)` \|", section, re.MULTILINE)
    assert named == "N d_model d_ff h d_k d_v P_drop eps_ls vocab".split()
    assert set(named) <= {field.name for field in fields(Config)}


def test_weights_have_the_shapes_stated():
    sizes = {"d_model": 3, "d_ff": 5, "h": 7, "d_k": 11, "d_v": 13, "vocab": 17}
    heads, network = MultiHeadAttention(3, 7, 11, 13), FeedForward(3, 5)
    real = {f"W_{name}": getattr(heads, f"W_{name}").weight.T for name in "QKVO"}
    real |= {f"W_{n}.weight": getattr(network, f"W_{n}").weight.T for n in "12"}
    real |= {f"W_{n}.bias": getattr(network, f"W_{n}").bias for n in "12"}
    real["weight"] = Embedding(17, 3).weight
    checked = set()
    for row in SYMBOLS:
        names, shapes = (re.findall(r"`([^`]+)`", cell) for cell in row[2:4])
        for name, shape in zip(names, shapes * len(names) if len(shapes) == 1 else shapes):
            if name in real:
                assert eval(shape, {}, sizes) == tuple(real[name].shape), f"{name} {shape}"
                checked.add(name)
    assert checked == set(real)


# ---- D-glossary

(TERMS,) = tables("book/D-glossary.md").values()
HAN = re.compile("[\u4e00-\u9fff]")


def words(text):
    return re.findall(r"[a-z]+", text.lower())


def test_the_glossary_is_sorted_and_names_no_term_twice():
    keys = [" ".join(words(row[0])) for row in TERMS]
    assert len(keys) > 100
    assert keys == sorted(set(keys))
    names = [name for row in TERMS for name in row[0].lower().split(", ")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("row", TERMS, ids=lambda row: row[0])
def test_a_term_is_complete(row):
    term, chinese, meaning, chapter = row
    assert HAN.search(chinese), "no Chinese characters"
    assert not HAN.search(term + meaning), "Chinese in the English columns"
    assert len(words(meaning)) >= 4, "a meaning of fewer than four words"
    there = " ".join(words(CHAPTERS[chapter]))  # one of the term's names, whatever the endings of its words
    names = re.sub(r" \(.*?\)", "", term).split(", ")
    stems = [[word[: max(5, len(word) - 2)] for word in words(name)] for name in names]
    found = [re.search(r"\b" + r"\w* ".join(stem), there) for stem in stems]
    assert any(found), f"chapter {chapter} does not use this term"


# ---- results/README.md

LIST = tables("results/README.md")
MADE = LIST["record", "what", "command", "commit", "date", "processor"]
WANTED = [row for head, rows in LIST.items() if head[:3] == ("record", "what", "goal") for row in rows]
BEGUN = {"14-ladder"}  # wanted still, for the runs that the record lacks
OLDER = {"14-decoding", "16-chain-gpu"}  # and these, because the code has changed since


def name(row):
    return re.fullmatch(r"`([\w.-]+)/`", row[0])[1]


def runs():
    return {path.name: path for path in sorted((ROOT / "results").iterdir()) if path.is_dir()}


def of_the_record(folder):
    """What the list of records must say of a folder: command, commit, date, processor."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    for key in ("command", "commit", "date", "machine", "versions"):
        assert run.get(key), f"{folder.name}/run.json has no {key}"
    seed = run.get("seed", run.get("seeds", run.get("recipe", {}).get("seed")))
    seeds = seed if isinstance(seed, list) else [seed]
    script = re.search(r"[\w-]+\.py", run["command"])  # one that fixes its seed in its text need not repeat it
    fixed = script and "manual_seed(0)" in (ROOT / "benchmarks" / script[0]).read_text(encoding="utf-8")
    searched = script and script[0].startswith(("11_", "18_pcfg"))  # what only searches or counts draws nothing
    assert all(isinstance(seed, int) for seed in seeds) or fixed or searched, f"{folder.name}/run.json has no seed"
    assert {"python", "torch"} <= set(run["versions"]), f"{folder.name}/run.json lacks the version of python or torch"
    machine = run["machine"]
    gpu = machine.get("gpu") or run.get("gpu")
    commit = run["commit"][:7] + "-dirty" * run["commit"].endswith("-dirty")
    return [f"`{run['command']}`", f"`{commit}`", run["date"][:10], gpu or machine["processor"]]


def test_every_folder_of_results_is_listed_as_made_and_nothing_else():
    assert sorted(map(name, MADE)) == sorted(runs())


@pytest.mark.parametrize("row", MADE, ids=name)
def test_the_list_says_what_the_record_says(row):
    said = of_the_record(runs()[name(row)])
    assert row[2:] == said, f"the row should end in: | {' | '.join(said)} |"


def test_what_is_wanted_is_not_made():
    wanted = set(re.findall(r"`([\w.-]+)/`", " ".join(row[0] for row in WANTED)))
    assert {"14-ladder", "15-budgets-16", "21-opus-mt-en-de"} <= wanted  # of every table
    assert set(runs()) & wanted == BEGUN | OLDER


def test_a_record_without_a_seed_is_found(tmp_path):
    run = {"command": "c", "commit": "0123456789", "date": "2026-01-02T03:04:05", "machine": {"processor": "p"},
           "versions": {"python": "3", "torch": "2"}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(AssertionError, match="no seed"):
        of_the_record(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run | {"recipe": {"seed": 0}}))
    assert of_the_record(tmp_path) == ["`c`", "`0123456`", "2026-01-02", "p"]
