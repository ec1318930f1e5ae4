"""Vocabularies, batches, the grammar and its truth, splits, files that are not as they should be."""

import hashlib
import io
import json
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from annotated import data
from annotated.data import (
    CORPORA,
    Batches,
    Nominal,
    Subwords,
    TokenPairs,
    Words,
    conjugate,
    connected_components,
    decline,
    grammar_corpus,
    grammar_examples,
    join_words,
    load_corpus,
    load_vocabulary,
    lookup_baseline,
    pad_batch,
    plan_batches,
    prepare,
    read_pairs,
    replacing,
    sample_clause,
    say,
    say_nominal,
    split_pairs,
    split_words,
    token_batches,
    word_for_word_baseline,
)

LINES = [text for p in grammar_corpus(400, 5, 5).train for text in p]


@pytest.fixture(scope="module")
def examples():
    return grammar_examples(3000, 200, 200)


@pytest.fixture(scope="module")
def subwords():
    return Subwords.train(LINES, 500)


# Vocabularies


def test_words_are_joined_back_exactly():
    for text in [*LINES, "A b, c d.", "Why, then?", ""]:
        assert join_words(split_words(text)) == text
    assert split_words("Yes, it is.") == ["Yes", ",", "it", "is", "."]


@pytest.mark.parametrize("kind", ["words", "subwords"])
def test_vocabulary_keeps_text_and_survives_its_file(kind, tmp_path, subwords):
    vocabulary = Words.build([("a b.", "c, d?"), *zip(LINES[::2], LINES[1::2])]) if kind == "words" else subwords
    vocabulary.save(tmp_path / vocabulary.filename)
    again = load_vocabulary(tmp_path)
    assert type(again) is type(vocabulary) and len(again) == len(vocabulary)
    assert [p.name for p in tmp_path.iterdir()] == [vocabulary.filename], "a temporary file was left behind"
    for text in LINES:
        ids = vocabulary.encode(text)
        assert ids[-1] == 2 and not {0, 1, 2, 3} & set(ids[:-1]) and max(ids) < len(vocabulary)
        assert again.encode(text) == ids
        assert vocabulary.decode([1, *ids, 0, 0]) == text
        assert vocabulary.decode(torch.tensor(ids)) == text


def test_markers_in_the_text_are_no_markers(subwords):
    words = Words.build([("<eos> a", "<pad> b")])
    assert words.encode("<eos> a <pad>")[0] == 3 and words.encode("<pad>") == [3, 2]
    assert subwords.decode(subwords.encode("a </s> <s> b")) == "a </s> <s> b"
    assert subwords.encode("</s>").count(2) == 1


def test_subwords_keep_every_script(subwords):
    for text in ("中文字", "حبيبي", "😀👩‍🚀", "naïve Ünïcödé", "½ ① ﬁ", "x\u2028y"):
        ids = subwords.encode(text)
        assert 3 not in ids and subwords.decode(ids) == " ".join(text.split())
    assert subwords.encode("  a \t b\n") == subwords.encode("a b")
    assert subwords.encode("") == [2] and subwords.decode([2]) == "" and subwords.decode([]) == ""
    assert len(subwords.encode("word " * 5000)) > 5000


def test_subwords_are_deterministic_and_quiet(capfd):
    first, second = Subwords.train(LINES, 400), Subwords.train(iter(LINES), 400)
    assert first.model == second.model and len(first) == 400
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("lines, vocab", [(["a b"], 8000), ([], 300), (["a b"], 10)])
def test_subwords_that_cannot_be_made(lines, vocab):
    with pytest.raises(ValueError, match=f"vocab={vocab}") as error:
        Subwords.train(lines, vocab)
    assert "\n" not in str(error.value)


def damaged(vocabulary, content):
    """Ways in which a vocabulary's file may be broken."""
    return {"empty": b"", "cut": content[: len(content) // 2], "foreign": b"\x00\xff\x80 something else"}


@pytest.mark.parametrize("way", ["empty", "cut", "foreign", "missing"])
@pytest.mark.parametrize("kind", [Words, Subwords])
def test_damaged_vocabulary(kind, way, tmp_path, subwords):
    vocabulary = Words(["a", "b", "c"]) if kind is Words else subwords
    path = tmp_path / kind.filename
    vocabulary.save(path)
    if way == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged(vocabulary, path.read_bytes())[way])
    with pytest.raises(ValueError, match=re.escape(str(path))) as error:
        kind.load(path)
    assert "\n" not in str(error.value)
    if way == "missing":
        with pytest.raises(ValueError, match="no vocabulary in"):
            load_vocabulary(tmp_path)


def test_words_cut_at_a_line_are_damaged(tmp_path):
    Words(["a", "b", "c"]).save(tmp_path / "words.txt")
    lines = (tmp_path / "words.txt").read_text().splitlines(True)
    (tmp_path / "words.txt").write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="damaged"):
        Words.load(tmp_path / "words.txt")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    with replacing(path) as fresh:
        fresh.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"), replacing(path) as fresh:
        fresh.write_bytes(b"new")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    with pytest.raises(OSError), replacing(path) as fresh:
        fresh.write_text("half")
        raise OSError("disk full")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_what_a_library_keeps_to_itself_is_readable_as_other_files_are(mask, mode, tmp_path):
    program = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[2]))
from annotated.data import replacing
with replacing(Path(sys.argv[1], "file")) as fresh:
    os.close(os.open(fresh, os.O_CREAT | os.O_WRONLY, 0o600))
with replacing(Path(sys.argv[1], "folder")) as fresh:
    (fresh / "inside").mkdir(parents=True)
    os.close(os.open(fresh / "inside" / "file", os.O_CREAT | os.O_WRONLY, 0o600))
assert os.umask(0) == int(sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(mask)], check=True)
    for path in (tmp_path / "file", tmp_path / "folder" / "inside" / "file"):
        assert path.stat().st_mode & 0o777 == mode


def folder_of(path, content):
    with replacing(path) as fresh:
        fresh.mkdir()
        (fresh / "file").write_text(content)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_that_cannot_be_renamed_is_put_back(failing, tmp_path, monkeypatch):
    folder_of(tmp_path / "folder", "old")
    rename, done = os.replace, []

    def fail(a, b):
        done.append(b)
        if len(done) == failing:
            raise OSError("disk full")
        rename(a, b)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        folder_of(tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


KILLED = """
import os, shutil, sys
from pathlib import Path
from annotated import data

def replace_folder(path, content):
    with data.replacing(path) as fresh:
        fresh.mkdir()
        (fresh / "file").write_text(content)

def dying(function, place):
    def step(*arguments, **options):
        if place == "before":
            os._exit(9)
        function(*arguments, **options)
        os._exit(9)
    return step

def second(function):
    counted = []
    def step(*arguments):
        counted.append(0)
        return (dying(function, "after") if len(counted) == 2 else function)(*arguments)
    return step

moments = [("replace", dying(os.replace, "before")), ("replace", dying(os.replace, "after")),
           ("replace", second(os.replace)), ("rmtree", dying(shutil.rmtree, "after"))]
for number, (name, function) in enumerate(2 * moments):
    path = Path(sys.argv[1], str(number), "folder")
    replace_folder(path, "old")
    if not os.fork():
        setattr(os if name == "replace" else shutil, name, function)
        replace_folder(path, "new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
    left = sorted(entry.name for entry in path.parent.iterdir())
    whole = [Path(path.parent, name, "file").read_text() for name in left]
    try:
        with data.replacing(path) as fresh:
            whole.append((path / "file").read_text())
            if number < len(moments):
                raise ValueError
            fresh.mkdir()
            (fresh / "file").write_text("newer")
    except ValueError:
        pass
    names = [entry.name for entry in path.parent.iterdir()]
    print(*left, *whole, names == ["folder"], (path / "file").read_text())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork to be killed at a given moment")
def test_a_kill_between_two_steps_loses_no_folder(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    states = [  # what is left, what it holds, what the next write finds in its place
        (".folder.part folder new old", "old"),  # killed before the first renaming
        (".folder.old .folder.part old new", "old"),  # between the two
        (".folder.old folder old new", "new"),  # after the second
        ("folder new", "new"),  # after the old one is gone
    ]
    assert found[:4] == [f"{left} {there} True {there}" for left, there in states], "the next write fails"
    assert found[4:] == [f"{left} {there} True newer" for left, there in states], "the next write succeeds"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is meant")
def test_contents_are_on_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    seen, fsync, rename = [], os.fsync, os.replace
    name = lambda number: Path(os.readlink(f"/proc/self/fd/{number}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append(name(number)), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(f"rename {Path(a).name}"), rename(a, b)))
    folder_of(tmp_path / "folder", "text")
    assert seen == ["file", ".folder.part", "rename .folder.part", tmp_path.name]


# Batches


def some_lengths(n=30000, seed=0):
    """Lengths like those of picture captions in two languages: alike, but not equal."""
    rng = random.Random(seed)
    source = [min(60, max(4, round(rng.lognormvariate(2.65, 0.33)))) for _ in range(n)]
    return [(s, max(3, round(s * rng.gauss(1.05, 0.2)))) for s in source]


def padding(lengths, plan):
    full = sum(len(b) * (max(lengths[i][0] for i in b) + max(lengths[i][1] for i in b)) for b in plan)
    return 1 - sum(map(sum, lengths)) / full


def lists(plan):
    return [batch.tolist() for batch in plan]


def test_pad_batch():
    assert pad_batch([[5, 2], [6, 7, 2]]).tolist() == [[5, 2, 0], [6, 7, 2]]
    assert pad_batch([[5], [6, 7]], pad=9).tolist() == [[5, 9], [6, 7]]
    assert pad_batch([[5]]).dtype == torch.long
    assert pad_batch([]).shape == (0, 0) and pad_batch([[], []]).shape == (2, 0)


@pytest.mark.parametrize("budgets", [(4096, 4096), (2048, 4096), (5000, 700)])
def test_plan_keeps_the_budgets_and_every_pair(budgets):
    lengths = some_lengths(5000)
    plan = lists(plan_batches(lengths, *budgets))
    assert sorted(i for batch in plan for i in batch) == list(range(len(lengths)))
    for batch in plan:
        for side in (0, 1):
            assert len(batch) * max(lengths[i][side] for i in batch) <= budgets[side]


def test_little_is_padding():
    lengths = some_lengths()
    shuffled = list(range(len(lengths)))
    random.Random(0).shuffle(shuffled)
    naive = [shuffled[i : i + 200] for i in range(0, len(shuffled), 200)]
    assert padding(lengths, lists(plan_batches(lengths, 4096, 4096))) < 0.05 < 0.3 < padding(lengths, naive)


def test_the_plan_is_a_function_of_seed_and_epoch():
    lengths, state, torch_state = some_lengths(2000), random.getstate(), torch.get_rng_state()
    global_state = str(np.random.get_state())
    plans = {key: lists(plan_batches(lengths, 512, 512, *key)) for key in [(0, 0), (0, 1), (1, 0)]}
    assert plans[0, 0] == lists(plan_batches(lengths, 512, 512, 0, 0))
    backwards = plan_batches(lengths, 512, 512, 0, 0)
    assert plans[0, 0][::-1] == [backwards[k].tolist() for k in reversed(range(len(backwards)))], "a batch depends on others"
    sets = {key: {frozenset(b) for b in plan} for key, plan in plans.items()}
    assert sets[0, 0] != sets[0, 1] != sets[1, 0], "batches are made anew each epoch"
    order = [max(lengths[i][0] for i in batch) for batch in plans[0, 0]]
    assert order != sorted(order), "batches are not in the order of their lengths"
    assert random.getstate() == state and torch.get_rng_state().equal(torch_state), "global randomness was used"
    assert str(np.random.get_state()) == global_state
    assert lists(plan_batches([], 10, 10)) == []


def test_a_sentence_is_never_cut():
    with pytest.raises(ValueError, match="pair 1 has 5000 source and 3 target tokens, more than source_tokens=4096"):
        plan_batches([(2, 2), (5000, 3)], 4096, 4096)
    with pytest.raises(ValueError, match="target_tokens=7"):
        plan_batches([(2, 8)], 4096, 7)
    assert lists(plan_batches([(7, 7), (7, 7)], 7, 7)) in ([[0], [1]], [[1], [0]])


def test_token_batches_and_going_on():
    rng = random.Random(1)
    pairs = [([rng.randrange(4, 90) for _ in range(s)] + [2], [i + 4, 2]) for i, (s, _) in enumerate(some_lengths(500))]
    batches = list(token_batches(pairs, 256, 256, seed=3, epoch=2))
    found = []
    for source, target in batches:
        assert source.numel() <= 256 and target[:, 1:].numel() <= 256
        assert (target[:, 0] == 1).all() and ((target == 2).sum(1) == 1).all() and ((source == 2).sum(1) == 1).all()
        found += [([i for i in s.tolist() if i], [i for i in t.tolist()[1:] if i]) for s, t in zip(source, target)]
    assert sorted(found) == sorted(pairs)
    rest = list(token_batches(pairs, 256, 256, seed=3, epoch=2, start=7))
    assert len(rest) == len(batches) - 7
    assert all(a.equal(b) and c.equal(d) for (a, c), (b, d) in zip(batches[7:], rest))


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 64])
def test_workers_share_an_epoch(workers):
    pairs = [([*range(4, 3 + s), 2], [i + 4, *range(4, 2 + t), 2]) for i, (s, t) in enumerate(some_lengths(700))]
    shares = [Batches(pairs, 512, 512, seed=5, worker=w, workers=workers) for w in range(workers)]
    found = [list(share(epoch=2)) for share in shares]
    assert len({len(batches) for batches in found}) == 1, "one worker would wait for ever"
    alone = len(list(Batches(pairs, 512, 512, seed=5)(epoch=2)))
    assert workers < 5 or alone % workers, "the batches have to be divided"
    seen = Counter(t[1] for batches in found for _, target in batches for t in target.tolist())
    assert seen == Counter(i + 4 for i in range(len(pairs))), "every pair once, over all workers"
    rest = list(shares[-1](epoch=2, position=3))
    assert all(a.equal(b) for x, y in zip(found[-1][3:], rest, strict=True) for a, b in zip(x, y))
    for source, target in found[0]:
        assert source.numel() <= 512 and target[:, 1:].numel() <= 512


def test_batches_that_cannot_be_shared():
    with pytest.raises(ValueError, match="worker=2 of workers=2"):
        Batches([], 10, 10, worker=2, workers=2)
    with pytest.raises(ValueError, match="5 batches of one pair each cannot be divided among workers=2: leave 1 pairs out"):
        plan_batches([(9, 9)] * 5, 10, 10, workers=2)
    assert len(plan_batches([(9, 9)] * 6, 10, 10, workers=2)) == 6


def test_a_plan_is_kept_from_version_to_version():
    """A training resumed after an update must find the plan it left."""
    plan = lists(plan_batches([(3 + i * 7 % 11, 3 + i * 5 % 3) for i in range(90)], 50, 50, seed=7, epoch=2))
    assert hashlib.sha256(str(plan).encode()).hexdigest()[:16] == "d202a9054d337d80"


def test_pairs_of_equal_lengths_meet_others_in_another_epoch():
    plans = [plan_batches([(5, 5)] * 1000, 100, 100, epoch=epoch) for epoch in (0, 1)]
    neighbours = [{frozenset((a, b)) for batch in lists(plan) for a in batch for b in batch if a < b} for plan in plans]
    assert len(neighbours[0] & neighbours[1]) < 0.1 * len(neighbours[0])


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
    with pytest.raises(OverflowError):
        prepare([([1 << 8 * pairs.tokens.itemsize], [2])], Numbers(), tmp_path / "q")
    assert not (tmp_path / "q").exists()


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


# The grammar


def phrase(word, determiner, case, adjective="", plural=False):
    noun = next(noun for noun in data.NOUNS if noun.singular == word)
    return " ".join(w for w, _ in say_nominal(Nominal(noun, determiner, adjective, plural), case, {})[1])


def test_german_phrases_are_those_of_a_textbook():
    table = {
        ("man", "the", "nom", "old"): "der alte Mann",
        ("man", "the", "acc", "old"): "den alten Mann",
        ("man", "the", "dat", "old"): "dem alten Mann",
        ("man", "a", "nom", "old"): "ein alter Mann",
        ("woman", "my", "dat", "young"): "meiner jungen Frau",
        ("woman", "a", "acc", "tired"): "eine müde Frau",
        ("book", "a", "nom", "good"): "ein gutes Buch",
        ("book", "this", "acc", "new"): "dieses neue Buch",
        ("horse", "my", "dat", "big"): "meinem großen Pferd",
        ("boy", "the", "nom", "clever"): "der kluge Junge",
        ("boy", "the", "acc", "clever"): "den klugen Jungen",
        ("prince", "a", "dat", "sad"): "einem traurigen Prinzen",
        ("dog", "this", "nom", "small", True): "diese kleinen Hunde",
        ("dog", "the", "dat", "small", True): "den kleinen Hunden",
        ("car", "my", "dat", "", True): "meinen Autos",
        ("woman", "the", "dat", "", True): "den Frauen",
        ("apple", "the", "dat", "", True): "den Äpfeln",
    }
    for (word, determiner, case, adjective, *plural), german in table.items():
        assert phrase(word, determiner, case, adjective, bool(plural)) == german


def test_german_verbs_are_those_of_a_textbook():
    table = {
        "sehen": "sehe siehst sieht sehen", "lesen": "lese liest liest lesen", "essen": "esse isst isst essen",
        "warten": "warte wartest wartet warten", "laufen": "laufe läufst läuft laufen", "geben": "gebe gibst gibt geben",
        "helfen": "helfe hilfst hilft helfen", "wissen": "weiß weißt weiß wissen", "sein": "bin bist ist sind",
        "an|rufen": "rufe rufst ruft rufen", "schlafen": "schlafe schläfst schläft schlafen",
    }  # fmt: skip
    verbs = {verb.german: verb for verb in data.VERBS}
    assert {name: " ".join(conjugate(verbs[name])[1]) for name in table} == table
    assert conjugate(verbs["sein"])[0] == ["am", "are", "is", "are"]
    assert conjugate(verbs["wissen"])[0] == ["know", "know", "knows", "know"]


def test_every_noun_declines():
    for noun in data.NOUNS:
        assert noun.gender in "mfnw" and noun.kind in data.ADJECTIVES
        assert decline(noun, True, "dat")[-1] in "ns", f"{noun.german}: a dative plural ends in -n or -s"


def test_alignment_tree_and_antecedents(examples):
    pronouns = set()
    for example in examples[0]:
        source, target = split_words(example.source), split_words(example.target)
        assert 4 <= len(source) <= 20
        assert re.findall(r" ([^\s()]+)\)", example.tree) == source, "the tree's leaves are the sentence"
        assert example.tree.count("(") == example.tree.count(")")
        assert {i for i, _ in example.alignment} == set(range(len(source))), "every English word has its German"
        unaligned = set(range(len(target))) - {j for _, j in example.alignment}
        assert all(target[j] == "," for j in unaligned)
        assert len(set(example.alignment)) == len(example.alignment)
        assert (len(source) - 1, len(target) - 1) in example.alignment
        for i, j in example.antecedents:
            assert source[i] in ("he", "him", "she", "her", "it", "they", "them") and j < i
            pronouns.add((source[i], target[next(b for a, b in example.alignment if a == i)]))
    assert {("it", "er"), ("it", "es"), ("it", "sie"), ("it", "ihn"), ("him", "ihm"), ("them", "ihnen")} <= pronouns


def test_every_pronoun_has_a_clear_antecedent(examples):
    for example in examples[0]:
        source = split_words(example.source)
        third = {i for i, w in enumerate(source) if w in ("he", "him", "she", "her", "it", "they", "them")}
        assert third == {i for i, _ in example.antecedents}


def test_gender_of_it_is_that_of_its_antecedent(examples):
    genders = {w: noun.gender for noun in data.NOUNS for w in (noun.singular,)}
    german = {"m": {"er", "ihn", "ihm"}, "w": {"er", "ihn", "ihm"}, "f": {"sie", "ihr"}, "n": {"es", "ihm"}}
    seen = Counter()
    for example in examples[0]:
        source, target = split_words(example.source), split_words(example.target)
        for i, j in example.antecedents:
            if source[i] == "it":
                gender = genders[source[j]]
                seen[gender] += 1
                assert target[next(b for a, b in example.alignment if a == i)] in german[gender], example
    assert min(seen[g] for g in "mfn") > 20


def test_the_same_seed_gives_the_same_sentences(examples):
    assert grammar_examples(300, 20, 20)[0] == examples[0][:300]
    assert grammar_examples(30, 2, 2, seed=1)[0] != examples[0][:30]
    program = "from annotated.data import grammar_examples; print(grammar_examples(50, 5, 5))"
    runs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, env={**os.environ, "PYTHONHASHSEED": h}).stdout
        for h in "12"
    }
    assert len(runs) == 1 and runs.pop().startswith(b"[[Example(")


def test_held_out_combinations_of_known_words():
    train, validation, test = grammar_examples()
    facts = [{fact for e in part for fact in e.facts} for part in (train, validation, test)]
    for part, other in ((validation, 2), (test, 1)):
        assert len({e.source for e in part}) == len(part) == 500
        for example in part:
            assert set(example.facts) - facts[0], f"every fact of {example.source!r} is in training"
            assert (set(example.facts) - facts[0]).isdisjoint(facts[other])
    words = {w for e in train for text in (e.source, e.target) for w in split_words(text)}
    missing = {w for e in validation + test for text in (e.source, e.target) for w in split_words(text)} - words
    assert not missing
    assert len({e.source for e in train}) == len(train)


def test_baselines_fail(examples):
    sacrebleu = pytest.importorskip("sacrebleu")
    corpus = grammar_corpus(3000, 10, 200)
    sources, references = map(list, zip(*corpus.test))
    assert lookup_baseline(corpus.train, sources) == [""] * len(sources)
    assert lookup_baseline(corpus.train, [corpus.train[7][0]]) == [corpus.train[7][1]]
    found = word_for_word_baseline(corpus.train, sources)
    assert 5 < sacrebleu.corpus_bleu(found, [references]).score < 40
    assert word_for_word_baseline([("a b", "x y"), ("a c", "x z"), ("b", "y")], ["a b c d"]) == ["x y z d"]


class Exhausted(Exception):
    pass


class EveryChoice:
    """Stands in for random.Random and takes, run after run, every way through the choices there are."""

    def __init__(self):
        self.path, self.place = [], 0

    def pick(self, n):
        if self.place == len(self.path):
            self.path.append([0, n])
        self.place += 1
        return self.path[self.place - 1][0]

    def choice(self, options):
        return options[self.pick(len(options))]

    def random(self):
        return (0.0, 0.999)[self.pick(2)]

    def advance(self):
        self.place = 0
        while self.path and self.path[-1][0] == self.path[-1][1] - 1:
            self.path.pop()
        if not self.path:
            raise Exhausted
        self.path[-1][0] += 1


def test_count_is_exact(monkeypatch):
    """A grammar small enough to be written out has as many sentences as are counted."""
    nouns = [noun for noun in data.NOUNS if noun.singular in ("man", "woman", "dog", "apple", "garden")]
    verbs = [v for v in data.VERBS if v.german in ("schlafen", "sehen", "kennen", "essen", "sein", "geben", "sagen")]
    monkeypatch.setattr(data, "NOUNS", tuple(nouns))
    monkeypatch.setattr(data, "VERBS", tuple(v for v in verbs if v.german not in ("sehen", "geben")))
    monkeypatch.setattr(data, "ADJECTIVES", {kind: dict(list(words.items())[:2]) for kind, words in data.ADJECTIVES.items()})
    monkeypatch.setattr(data, "DETERMINERS", {k: data.DETERMINERS[k] for k in ("the", "a")})
    monkeypatch.setattr(data, "AUXILIARIES", {"can": data.AUXILIARIES["can"]})
    data.nouns_of.cache_clear()
    try:
        rng, sentences = EveryChoice(), set()
        while True:
            clause = sample_clause(rng)
            sentences.add(say(clause).source)
            try:
                rng.advance()
            except Exhausted:
                break
        assert len(sentences) * (2 + len(data.PARTICLES["adverb"])) == data.count_sentences()
    finally:
        data.nouns_of.cache_clear()


def test_over_a_million_sentences():
    assert data.count_sentences() > 1_000_000


# Splits


def random_pairs(seed):
    rng = random.Random(seed)
    return [(f"s{rng.randrange(400)}", f"{rng.choice('st')}{rng.randrange(400)}") for _ in range(300)]


@pytest.mark.parametrize("seed", range(5))
def test_no_string_on_two_sides(seed):
    pairs = random_pairs(seed)
    parts = split_pairs(pairs, share=0.2)
    assert sorted(p for part in parts for p in part) == sorted(pairs)
    texts = [{text for pair in part for text in pair} for part in parts]
    assert all(texts), "every part has something"
    assert texts[0].isdisjoint(texts[1] | texts[2]) and texts[1].isdisjoint(texts[2])
    shuffled = pairs[:]
    random.Random(9).shuffle(shuffled)
    assert [sorted(part) for part in split_pairs(shuffled, 0.2)] == [sorted(part) for part in parts]


def test_components():
    a, b, c, d, e = ("A", "1"), ("B", "1"), ("B", "2"), ("C", "3"), ("3", "4")
    assert connected_components([a, d, c, b, e]) == [[a, c, b], [d, e]]


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
    monkeypatch.setattr(data, "fetch", lambda name: pytest.fail("with ANNOTATED_DATA nothing is fetched"))
    for folder in (tmp_path / "nowhere", tmp_path):
        monkeypatch.setenv("ANNOTATED_DATA", str(folder))
        with pytest.raises(ValueError, match="cannot read .*ANNOTATED_DATA should name.*" + re.escape(file.path)):
            load_corpus(name)
    (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file.path).write_bytes(b"not what was meant")
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
        meant = tuple(data.Download(f, "http://127.0.0.1:9/", len(c), sums[name][f]) for f, c in files.items())
        monkeypatch.setitem(data.CORPORA, name, replace(data.CORPORA[name], files=meant))
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
    if data.missing_files(name, os.environ.get("ANNOTATED_DATA") or data.cache_folder()):
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


@pytest.mark.needs_data
def test_little_of_multi30k_is_padding():
    train = real("multi30k-en-de").train
    subwords = Subwords.train((text for pair in train for text in pair), 8000)
    lengths = [(len(subwords.encode(s)), len(subwords.encode(t))) for s, t in train]
    assert padding(lengths, lists(plan_batches(lengths, 4096, 4096))) < 0.05
