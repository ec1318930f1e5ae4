"""Pairs come back from mapped files as they were, and files of text are read or refused in a line."""

import errno
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from annotated import corpora
from annotated.corpora import CORPORA, TokenPairs, load_corpus, prepare, read_pairs
from annotated.data import Batches, Words, token_batches
from annotated.grammar import grammar_corpus

# Corpora larger than memory


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    corpus = grammar_corpus(700, 5, 5)
    words = Words.build(corpus.train)
    ids = [(words.encode(s), words.encode(t)) for s, t in corpus.train]
    return corpus.train, words, ids, prepare(iter(corpus.train), words, tmp_path_factory.mktemp("prepared") / "corpus")


def test_a_prepared_corpus_is_the_list(prepared):
    _, words, ids, pairs = prepared
    assert len(pairs) == len(ids) and pairs.tokens.dtype == np.uint16
    assert [(s.tolist(), t.tolist()) for s, t in map(pairs.__getitem__, range(len(ids)))] == ids
    assert pairs.lengths.tolist() == [[len(s), len(t)] for s, t in ids]
    listed = list(token_batches(ids, 300, 300, seed=4, epoch=1, start=2))
    mapped = list(token_batches(pairs, 300, 300, seed=4, epoch=1, start=2))
    assert all(a.equal(b) for x, y in zip(listed, mapped, strict=True) for a, b in zip(x, y))
    pairs.forget()
    assert pairs[5][0].tolist() == ids[5][0]


def test_a_prepared_corpus_travels_to_a_worker(prepared):
    pairs = pickle.loads(pickle.dumps(Batches(prepared[-1], 300, 300))).pairs
    assert len(pickle.dumps(prepared[-1])) < 1000 and pairs[3][1].tolist() == prepared[2][3][1]


@pytest.mark.parametrize("vocabulary, dtype", [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_tokens_take_the_smallest_type_that_fits(vocabulary, dtype, tmp_path):
    class Numbers:
        def encode(self, ids):
            return ids

        def __len__(self):
            return vocabulary

    rows = [([vocabulary - 1, 2], [2]), ([2], [vocabulary - 1] * 300)]
    pairs = prepare(rows, Numbers(), tmp_path / "p")
    assert pairs.tokens.dtype == dtype and [(s.tolist(), t.tolist()) for s, t in (pairs[0], pairs[1])] == rows
    for beyond in (vocabulary, 1 << 8 * pairs.tokens.itemsize):
        with pytest.raises(ValueError, match=f"pair 2 has the identifier {beyond}, and the vocabulary has {vocabulary}"):
            prepare([rows[0], ([2], [beyond, 2])], Numbers(), tmp_path / "q")
    assert not (tmp_path / "q").exists()


def test_what_a_link_leads_to_is_prepared(prepared, tmp_path):
    train, words, *_ = prepared
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for count in (9, 7):
        prepare(train[:count], words, tmp_path / "link")
        assert (tmp_path / "link").is_symlink() and len(TokenPairs(tmp_path / "there")) == count


def test_an_interrupted_preparation_keeps_the_old_one(prepared, tmp_path):
    train, words, ids, _ = prepared

    def interrupted():
        yield from train[:50]
        raise KeyboardInterrupt

    prepare(train[:9], words, tmp_path / "p")
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted(), words, tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["p"] and len(TokenPairs(tmp_path / "p")) == 9
    (tmp_path / ".p.part").mkdir()  # what a process that was killed leaves
    (tmp_path / ".p.part" / "tokens.bin").write_bytes(b"half")
    assert len(prepare(train[:60], words, tmp_path / "p")) == 60
    with pytest.raises(ValueError, match="pairs is empty"):
        prepare([], words, tmp_path / "empty")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize("place", ["array", "save"])
def test_a_full_disk_is_named_and_keeps_the_old_corpus(place, prepared, tmp_path, monkeypatch):
    train, words, *_ = prepared
    prepare(train[:9], words, tmp_path / "p")

    def full(*_):
        if place == "save":  # as numpy says it
            raise OSError("800 requested and 512 written")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((corpora, "array") if place == "array" else (np, "save")), full)
    with pytest.raises(OSError) as caught:
        prepare(train, words, tmp_path / "p")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "p")) and caught.value.strerror
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["p"] and len(TokenPairs(tmp_path / "p")) == 9


def test_an_error_of_what_is_read_is_not_laid_on_the_folder(prepared, tmp_path):
    def pairs(error):
        yield prepared[0][0]
        raise error

    for error in (OSError("not a gzipped file"), OSError(errno.EIO, "bad"), OSError(errno.ENOSPC, "full", "/elsewhere")):
        with pytest.raises(OSError) as caught:
            prepare(pairs(error), prepared[1], tmp_path / "p")
        assert caught.value is error


@pytest.mark.parametrize("name", ["about.json", "tokens.bin", "starts.npy", "lengths.npy", "order.npy", "runs.npy"])
def test_a_damaged_preparation_is_noticed(name, prepared, tmp_path):
    prepare(prepared[0], prepared[1], tmp_path / "p")
    path = tmp_path / "p" / name
    whole = path.read_bytes()
    changed = [b"", whole[: len(whole) // 2]]
    if name == "tokens.bin":
        changed.append(whole[:-2])
    elif name != "about.json":
        shorter = io.BytesIO()
        np.save(shorter, np.load(path)[:-1])
        changed.append(shorter.getvalue())
    for content in changed:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="p is damaged: .*; prepare it again"):
            TokenPairs(tmp_path / "p")
    if name.endswith(".npy"):  # a number is another one
        path.write_bytes(whole[:-24] + bytes([whole[-24] ^ 1]) + whole[-23:])
        with pytest.raises(ValueError, match=f"p is damaged: {name} is not what was written"):
            TokenPairs(tmp_path / "p")
    path.unlink()
    with pytest.raises(ValueError, match=f"p is no prepared corpus: {name}: No such file"):
        TokenPairs(tmp_path / "p")


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of a process")
def test_a_stream_takes_little_memory_and_begins_at_once(tmp_path):
    """The benchmark on three hundred thousand pairs; its record has ten million."""
    script = Path(__file__).resolve().parent.parent / "benchmarks" / "08_streaming.py"
    command = [sys.executable, str(script), "--pairs", "300000", "--out", str(tmp_path / "record")]
    subprocess.run([*command, "--folder", str(tmp_path / "p")], check=True, capture_output=True, timeout=300)
    scores = json.loads((tmp_path / "record" / "scores.json").read_text())
    assert scores["prepare"]["pairs"] == scores["stream"]["pairs"] == 300_000, "every pair once"
    assert scores["stream"]["first_batch_seconds"] < 1 and scores["stream"]["padding"] < 0.05
    grown = scores["stream"]["MB"]["VmHWM"] - scores["stream"]["MB_before"]["VmHWM"]
    assert 0 <= grown < 100 and scores["stream"]["MB"]["VmHWM"] < 1000


# Files


def test_read_pairs(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes("\ufeffOne.\r\nTwo\u2028half.\n\n Four. ".encode())
    target.write_bytes(b"Eins.\nZwei.\nDrei.\nVier.\n")
    assert read_pairs(source, target) == ([("One.", "Eins."), ("Two\u2028half.", "Zwei."), ("Four.", "Vier.")], 1)
    target.write_text("Eins.\nZwei.\n")
    with pytest.raises(ValueError, match="a has 4 lines and .*b has 2"):
        read_pairs(source, target)
    target.write_bytes(b"Eins.\nZw\xf6lf.\n3\n4\n")
    with pytest.raises(ValueError, match="b, line 2 is not UTF-8"):
        read_pairs(source, target)
    target.write_bytes("Eins.\nZwei.\n3\n4\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="b holds a zero byte: convert it if it is UTF-16, else remove it with tr"):
        read_pairs(source, target)
    for path in (source, target):
        path.write_bytes("a\n\u200b\n\ufeffb\n\ufeff\n".encode())
    assert read_pairs(source, target) == ([("a", "a"), ("b", "b")], 2)
    source.write_bytes(b"a\rb\rc")
    with pytest.raises(ValueError, match="a is a single line, with CR where lines should end: convert it"):
        read_pairs(source, target)
    with pytest.raises(ValueError, match="cannot read .*nowhere"):
        read_pairs(source, tmp_path / "nowhere")
    source.write_bytes(b"")
    target.write_bytes(b"")
    assert read_pairs(source, target) == ([], 0)


def test_unknown_corpus():
    with pytest.raises(ValueError, match="name='wmt' is no corpus; there are grammar, multi30k-en-de"):
        load_corpus("wmt")


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_without_its_files(name, tmp_path, monkeypatch):
    file = CORPORA[name].files[0]
    monkeypatch.setattr(corpora, "fetch", lambda name: pytest.fail("with ANNOTATED_DATA nothing is fetched"))
    for folder in (tmp_path / "nowhere", tmp_path):
        monkeypatch.setenv("ANNOTATED_DATA", str(folder))
        with pytest.raises(ValueError, match="cannot read .*ANNOTATED_DATA should name.*" + re.escape(file.path)):
            load_corpus(name)
    (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
    for content in (b"not what was meant", bytes(file.size)):
        (tmp_path / file.path).write_bytes(content)
        with pytest.raises(ValueError, match="damaged or another version.*should be " + file.sha256[:12]) as error:
            load_corpus(name)
        assert "\n" not in str(error.value)


def test_the_registry_says_what_it_must():
    for published in CORPORA.values():
        assert len(published.licence) > 20 and callable(published.read)
        assert len({file.path for file in published.files}) == len(published.files)
        for file in published.files:
            assert re.fullmatch(r"https://[\w.-]+/[\w./-]+/[0-9a-f]{40}/[\w./-]+", file.address), "a fixed version"
            assert file.address.rpartition("/")[2] == file.path.rpartition("/")[2]
            assert re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 10_000
            assert not file.path.startswith("/") and ".." not in file.path


def test_corpora_from_files_of_that_layout(tmp_path, monkeypatch):
    """The readers, on small files of the real ones' form."""
    import gzip

    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    contents = {"multi30k-en-de": {}, "tatoeba-en-de": {}, "tatoeba-zh-en": {}}
    for number, file in enumerate(file.path for file in CORPORA["multi30k-en-de"].files):
        contents["multi30k-en-de"][file] = gzip.compress(f"line {number}\nsecond {number}\n".encode(), mtime=0)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("deu.txt", "Hi.\tHallo!\nHi.\tGrüß Gott!\nRun!\tLauf!\n")
    contents["tatoeba-en-de"]["tatoeba/deu-eng.zip"] = (tmp_path / "z.zip").read_bytes()
    contents["tatoeba-zh-en"]["tatoeba/cmn.txt"] = "Hi.\t嗨。\tCC-BY 2.0\nHi.\t嗨。\tCC-BY 2.0\n".encode()
    sums = {n: {f: hashlib.sha256(c).hexdigest() for f, c in files.items()} for n, files in contents.items()}
    for name, files in contents.items():
        meant = tuple(corpora._Download(f, "http://127.0.0.1:9/", len(c), sums[name][f]) for f, c in files.items())
        monkeypatch.setitem(corpora.CORPORA, name, replace(corpora.CORPORA[name], files=meant))
    for files in contents.values():
        for file, content in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_bytes(content)
    corpus = load_corpus("multi30k-en-de")
    assert corpus.train == [("line 0", "line 1"), ("second 0", "second 1")]
    assert corpus.validation[0] == ("line 2", "line 3") and corpus.test[0] == ("line 4", "line 5")
    assert corpus.provenance == sums["multi30k-en-de"]
    german, chinese = load_corpus("tatoeba-en-de"), load_corpus("tatoeba-zh-en")
    assert sorted(german.train + german.validation + german.test) == [
        ("Hi.", "Grüß Gott!"), ("Hi.", "Hallo!"), ("Run!", "Lauf!"),
    ]  # fmt: skip
    assert chinese.train + chinese.validation + chinese.test == [("嗨。", "Hi.")]


def real(name):
    """A real corpus, where it is; nothing is fetched for a test."""
    if corpora._missing_files(name, os.environ.get("ANNOTATED_DATA") or corpora.cache_folder()):
        pytest.skip(f"{name} is not here: set ANNOTATED_DATA or fetch it")
    return load_corpus(name)


@pytest.mark.needs_data
@pytest.mark.parametrize("name", CORPORA)
def test_real_corpora(name):
    corpus = real(name)
    sizes = [len(part) for part in (corpus.train, corpus.validation, corpus.test)]
    if name.startswith("multi30k"):
        assert sizes == [29000, 1014, 1000]
    else:
        texts = [{text for pair in part for text in pair} for part in (corpus.train, corpus.validation, corpus.test)]
        assert texts[0].isdisjoint(texts[1] | texts[2]) and texts[1].isdisjoint(texts[2])
        assert all(0.01 * sum(sizes) < size < 0.03 * sum(sizes) for size in sizes[1:])
    assert all(s.strip() and t.strip() for s, t in corpus.train) and corpus.licence


def test_a_folder_of_anything_else_is_not_replaced(prepared, tmp_path):
    train, words, ids, _ = prepared
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="holds thesis.tex, which would be lost"):
        prepare(iter(train), words, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "about.json").write_text('{"sha256": {}}')
    with pytest.raises(ValueError, match="holds about.json, which would be lost"):
        prepare(iter(train), words, tmp_path / "site")
    with pytest.raises(ValueError, match="thesis.tex is a file: name a folder"):
        prepare(iter(train), words, tmp_path / "thesis.tex")
    prepare(iter(train), words, tmp_path / "damaged")
    (tmp_path / "damaged" / "tokens.bin").unlink()
    assert len(prepare(iter(train), words, tmp_path / "damaged")) == len(train)
    (tmp_path / "empty").mkdir()
    for part in (train, train[:5], train[:3]):  # an empty folder, an earlier corpus, a damaged one
        assert len(prepare(iter(part), words, tmp_path / "empty")) == len(part)
        if len(part) == 5:
            (tmp_path / "empty" / "about.json").unlink()
