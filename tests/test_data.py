"""Text becomes numbers that survive files, splits that leak nothing, and batches of little padding."""

import hashlib
import os
import random
import re
from collections import Counter
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from annotated.corpora import _missing_files, cache_folder, load_corpus
from annotated.data import (
    Batches,
    Corpus,
    Subwords,
    Words,
    _connected_components,
    _divide,
    _fraction,
    _pack,
    _plan_batches,
    _train_subwords,
    join_words,
    load_vocabulary,
    lookup_baseline,
    pad_batch,
    split_pairs,
    split_words,
    token_batches,
    word_for_word_baseline,
)
from annotated.grammar import grammar_corpus

LINES = [text for p in grammar_corpus(400, 5, 5).train for text in p]


@pytest.fixture(scope="module")
def subwords():
    return Subwords.train(LINES, 500)


# Vocabularies


def test_half_a_pair_of_surrogates_is_written_as_a_letter_that_stands_for_none(subwords):
    assert subwords.decode(subwords.encode("a \ud800 b")) == "a \ufffd b"
    again = Subwords.train([*LINES, "a \ud800 b"], 500)
    assert again.decode(again.encode("a \ud800 b")) == "a \ufffd b"


def test_words_are_joined_back_exactly():
    for text in [*LINES, "A b, c d.", "Why, then?", ""]:
        assert join_words(split_words(text)) == text
    assert split_words("Yes, it is.") == ["Yes", ",", "it", "is", "."] and split_words("No?!") == ["No", "?", "!"]


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


def test_words_say_which_of_them_is_wrong():
    for wrong in ("", "a\n", "b", "<pad>"):
        with pytest.raises(ValueError, match=re.escape(f"got {wrong!r}")):
            Words(["b", "c", wrong])


@pytest.mark.parametrize("error", [ZeroDivisionError, OSError, KeyboardInterrupt])
def test_an_error_of_who_makes_the_lines_is_raised_as_it_is(error):
    def lines():
        yield from ["The dog sees the cat."] * 50
        raise error("mine")

    with pytest.raises(error, match="mine"):
        Subwords.train(lines(), 300)


def test_a_long_line_is_learned_from():
    pieces = Subwords.train(["The dog sleeps."] * 50 + ["zebra " * 12_000], 300)
    assert len(pieces.processor.encode("zebra", out_type=str)) == 1


def test_words_cut_at_a_line_are_damaged(tmp_path):
    Words(["a", "b", "c"]).save(tmp_path / "words.txt")
    lines = (tmp_path / "words.txt").read_text().splitlines(True)
    (tmp_path / "words.txt").write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match="damaged"):
        Words.load(tmp_path / "words.txt")
    for content in (b"2 words\na\na\n", b"1 words\na\nb"):  # a word twice, and one more than is said
        (tmp_path / "words.txt").write_bytes(content)
        with pytest.raises(ValueError, match="words.txt is damaged"):
            Words.load(tmp_path / "words.txt")


def test_subwords_are_byte_pairs_of_all_the_text_and_rare_letters_are_bytes():
    made = Subwords.train([*LINES, "龍"], 500)
    assert [made.processor.get_score(i) for i in range(260, 270)] == [-i for i in range(10)], "merges, by their number"
    assert len(made.encode("龍")) > 3, "a letter of one in a thousand has no piece"
    assert len(Subwords.train(["ab " * 3000], 264)) == 264, "no line is too long to learn from"
    assert Subwords.train([line.replace(" ", "\t ") for line in LINES], 400).model == Subwords.train(LINES, 400).model


def test_subwords_with_other_markers_are_refused():
    with pytest.raises(ValueError, match=r"pad, bos, eos, unk = \(-1, -1, 0, 1\); it should have \(0, 1, 2, 3\)"):
        Subwords(_train_subwords(LINES, 400, pad_id=-1, bos_id=-1, eos_id=0, unk_id=1))


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
    plan = lists(_plan_batches(lengths, *budgets))
    assert sorted(i for batch in plan for i in batch) == list(range(len(lengths)))
    for batch in plan:
        for side in (0, 1):
            assert len(batch) * max(lengths[i][side] for i in batch) <= budgets[side]


def test_little_is_padding():
    lengths = some_lengths()
    shuffled = list(range(len(lengths)))
    random.Random(0).shuffle(shuffled)
    naive = [shuffled[i : i + 200] for i in range(0, len(shuffled), 200)]
    assert padding(lengths, lists(_plan_batches(lengths, 4096, 4096))) < 0.05 < 0.3 < padding(lengths, naive)


def test_the_plan_is_a_function_of_seed_and_epoch():
    lengths, state, torch_state = some_lengths(2000), random.getstate(), torch.get_rng_state()
    global_state = str(np.random.get_state())
    plans = {key: lists(_plan_batches(lengths, 512, 512, *key)) for key in [(0, 0), (0, 1), (1, 0)]}
    assert plans[0, 0] == lists(_plan_batches(lengths, 512, 512, 0, 0))
    backwards = _plan_batches(lengths, 512, 512, 0, 0)
    assert plans[0, 0][::-1] == [backwards[k].tolist() for k in reversed(range(len(backwards)))], "a batch depends on others"
    sets = {key: {frozenset(b) for b in plan} for key, plan in plans.items()}
    assert len(set(map(frozenset, sets.values()))) == 3, "batches are made anew each epoch, and by each seed"
    order = [max(lengths[i][0] for i in batch) for batch in plans[0, 0]]
    assert order != sorted(order), "batches are not in the order of their lengths"
    assert random.getstate() == state and torch.get_rng_state().equal(torch_state), "global randomness was used"
    assert str(np.random.get_state()) == global_state
    assert lists(_plan_batches([], 10, 10)) == []


def test_a_sentence_is_never_cut():
    with pytest.raises(ValueError, match="pair 2 has 5000 source and 3 target tokens, more than source_tokens=4096"):
        _plan_batches([(2, 2), (2, 2), (5000, 3)], 4096, 4096)
    with pytest.raises(ValueError, match="target_tokens=7"):
        _plan_batches([(2, 8)], 4096, 7)
    assert lists(_plan_batches([(7, 7), (7, 7)], 7, 7)) in ([[0], [1]], [[1], [0]])


def test_a_pair_beyond_the_budgets_is_a_batch_of_its_own():
    runs = np.array([[2, 2, 3], [7, 3, 2], [9, 9, 1]])
    assert _pack(runs, 6, 6) == [0, 3, 4, 5, 6]


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
    uneven = list(token_batches(pairs, 256, 12, seed=3, epoch=2))  # either budget is for its own side, and the seed decides
    wanted = list(Batches(pairs, 256, 12, seed=3)(2))
    assert all(a.equal(b) for x, y in zip(uneven, wanted, strict=True) for a, b in zip(x, y))


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
        _plan_batches([(9, 9)] * 5, 10, 10, workers=2)
    assert len(_plan_batches([(9, 9)] * 6, 10, 10, workers=2)) == 6
    assert _divide([0, 8, 9], 3) == [0, 4, 8, 9] and _divide([0, 2], 2) == [0, 1, 2], "the largest is halved"


def test_a_plan_is_kept_from_version_to_version():
    """A training resumed after an update must find the plan it left."""
    plan = lists(_plan_batches([(3 + i * 7 % 11, 3 + i * 5 % 3) for i in range(90)], 50, 50, seed=7, epoch=2))
    assert hashlib.sha256(str(plan).encode()).hexdigest()[:16] == "d202a9054d337d80"


def test_pairs_of_equal_lengths_meet_others_in_another_epoch():
    plans = [_plan_batches([(5, 5)] * 1000, 100, 100, epoch=epoch) for epoch in (0, 1)]
    neighbours = [{frozenset((a, b)) for batch in lists(plan) for a in batch for b in batch if a < b} for plan in plans]
    assert len(neighbours[0] & neighbours[1]) < 0.1 * len(neighbours[0])


@pytest.mark.needs_data
def test_little_of_multi30k_is_padding():
    if _missing_files("multi30k-en-de", os.environ.get("ANNOTATED_DATA") or cache_folder()):
        pytest.skip("multi30k-en-de is not here: set ANNOTATED_DATA or fetch it")
    train = load_corpus("multi30k-en-de").train
    subwords = Subwords.train((text for pair in train for text in pair), 8000)
    lengths = [(len(subwords.encode(s)), len(subwords.encode(t))) for s, t in train]
    assert padding(lengths, lists(_plan_batches(lengths, 4096, 4096))) < 0.05


@pytest.mark.parametrize(("pairs", "said"), [
    ([([5, 2], [7, 2]), ("A hat.", "Ein Hut.")], r"pair 1 is \('A hat.', 'Ein Hut.'\): .* identifiers"),
    ([(["A", "hat"], ["Ein", "Hut"])], "pair 0 is .* identifiers"),
    ([([5, 2], [7, 2], [1])], "pair 0 is .* identifiers"),
    ([5, 2], "pair 0 is 5: .* identifiers"),
    ([(5, 2)], "pair 0 is .* identifiers"),
    ([(None, None)], "pair 0 is .* identifiers"),
    ([(b"A hat", b"Ein Hut")], "pair 0 is .* identifiers"),
    ([(iter([5, 2]), iter([7, 2]))], "pair 0 is .* identifiers"),
    ([({"ids": [5, 2]}, {"ids": [7, 2]})], "pair 0 is .* identifiers"),
    (torch.tensor([5, 2]), "pair 0 is .* identifiers"),
    (torch.tensor([[5, 2], [7, 2]]), "pair 0 is .* identifiers"),
    (((pair for pair in [([5, 2], [7, 2])])), "generator: .* a list"),
    (None, "NoneType: .* a list"),
])
def test_what_is_no_list_of_pairs_of_identifiers_is_named(pairs, said):
    with pytest.raises(ValueError, match=said):
        next(Batches(pairs, 100, 100)())


def test_pairs_may_be_arrays_or_tensors():
    source, target = next(Batches([(np.array([5, 2]), torch.tensor([7, 8, 2]))], 100, 100)())
    assert source.tolist() == [[5, 2]] and target.tolist() == [[1, 7, 8, 2]]


# Baselines and splits


def test_baselines_fail():
    sacrebleu = pytest.importorskip("sacrebleu")
    corpus = grammar_corpus(3000, 10, 200)
    sources, references = map(list, zip(*corpus.test))
    assert lookup_baseline(corpus.train, sources) == [""] * len(sources)
    assert lookup_baseline(corpus.train, [corpus.train[7][0]]) == [corpus.train[7][1]]
    found = word_for_word_baseline(corpus.train, sources)
    assert 5 < sacrebleu.corpus_bleu(found, [references]).score < 40
    assert word_for_word_baseline([("a b", "x y"), ("a c", "x z"), ("b", "y")], ["a b c d"]) == ["x y z d"]
    letters = " ".join("abcdefghijklmnopqrstuvwxyz")
    assert word_for_word_baseline([("a", letters)], ["a"]) == ["z"], "of equals always the same, whatever order a set has"


def random_pairs(seed):
    rng = random.Random(seed)
    return [(f"s{rng.randrange(400)}", f"{rng.choice('st')}{rng.randrange(400)}") for _ in range(300)]


@pytest.mark.parametrize("seed", range(5))
def test_no_string_on_two_sides(seed):
    pairs = random_pairs(seed)
    for share in (-1, 0, 0.5, 2):
        with pytest.raises(ValueError, match=f"share must lie between 0 and 0.5, got {share}"):
            split_pairs(pairs, share)
    parts = split_pairs(pairs, share=0.2)
    assert sorted(p for part in parts for p in part) == sorted(pairs)
    texts = [{text for pair in part for text in pair} for part in parts]
    assert all(texts), "every part has something"
    assert texts[0].isdisjoint(texts[1] | texts[2]) and texts[1].isdisjoint(texts[2])
    shuffled = pairs[:]
    random.Random(9).shuffle(shuffled)
    assert [sorted(part) for part in split_pairs(shuffled, 0.2)] == [sorted(part) for part in parts]


def test_a_text_is_in_the_part_it_was_in_when_models_were_trained():
    assert _fraction("a") == int(hashlib.sha256(b"a").hexdigest()[:12], 16) / 2**48


def test_components():
    a, b, c, d, e = ("A", "1"), ("B", "1"), ("B", "2"), ("C", "3"), ("3", "4")
    assert _connected_components([a, d, c, b, e]) == [[a, c, b], [d, e]]


@pytest.mark.parametrize("words", [["a\nb"], ["a", "a"], ["<pad>"], [""]])
def test_words_that_a_file_could_not_hold_are_refused(words):
    with pytest.raises(ValueError, match="words must be different, none empty, a marker or with a line feed"):
        Words(words)


def test_why_there_is_no_such_vocabulary_is_said_in_our_words():
    for vocab, why in ((8000, "they give [0-9]+ at most"), (10, "their letters and the markers alone are [0-9]+"), (2**31, "."), (2**70, ".")):
        with pytest.raises(ValueError, match=f"no vocabulary of vocab={vocab} pieces can be made of these lines: {why}") as caught:
            Subwords.train(["a b"], vocab)
        assert "\n" not in str(caught.value) and "Internal" not in str(caught.value)


@pytest.mark.parametrize("kind", ["words", "subwords"])
def test_identifiers_beyond_the_vocabulary_are_refused(kind, subwords):
    vocabulary = Words(["a"]) if kind == "words" else subwords
    assert vocabulary.decode([0, 1, 2]) == "" and vocabulary.decode([3]).strip(), "an unknown word does not vanish"
    with pytest.raises(ValueError, match=f"ids must be below {len(vocabulary)}, got {len(vocabulary)}"):
        vocabulary.decode([4, len(vocabulary)])
    with pytest.raises(ValueError, match="ids must be 0 or more, got -3"):
        vocabulary.decode([-3, 4])


def test_pairs_may_come_from_an_iterator():
    pairs = [(f"s{i}", f"t{i}") for i in range(200)]
    assert split_pairs(iter(pairs)) == split_pairs(pairs) and sum(map(len, split_pairs(iter(pairs)))) == 200


@pytest.mark.parametrize("vocab", [0, -5])
def test_a_vocabulary_of_nothing_is_refused(vocab):
    with pytest.raises(ValueError, match=f"vocab must be 1 or more, got {vocab}"):
        Subwords.train(["a b"], vocab)


def test_an_epoch_has_no_batch_before_the_first():
    with pytest.raises(ValueError, match="position must be 0 or more batches, got -1"):
        next(token_batches([([5, 2], [6, 2])] * 3, 6, 6, start=-1))


def test_word_for_word_takes_no_mark_for_a_word():
    pairs = [("a T-shirt .", "ein T-Shirt ."), ("a T-shirt, a dog .", "ein T-Shirt, ein Hund ."), ("a cat .", "ein Kater .")]
    assert word_for_word_baseline(pairs, ["a T-shirt ."]) == ["ein T-Shirt."]
    assert word_for_word_baseline([("don't.", "nicht.")], ["don't."]) == ["nicht."]


def test_a_hash_below_the_share_is_for_the_test_and_below_twice_the_share_for_validation():
    pairs = [(f"s{i}", f"t{i}") for i in range(5000)]
    for share in (0.02, 0.1):
        train, validation, test = split_pairs(pairs, share)
        assert test == [pair for pair in pairs if _fraction(pair[0]) < share]
        assert validation == [pair for pair in pairs if share <= _fraction(pair[0]) < 2 * share]
        assert all(0.8 * share < len(part) / len(pairs) < 1.2 * share for part in (validation, test))
    assert split_pairs(pairs) == split_pairs(pairs, 0.02)


def test_words_are_numbered_in_alphabetical_order():
    assert Words.build([("b a.", "c Ä")]).words[4:] == [".", "a", "b", "c", "Ä"]


def test_a_vocabulary_of_single_sentences_is_refused():
    with pytest.raises(TypeError, match="pairs must hold .source, target., not single strings"):
        Words.build(["the cat sleeps", "a dog runs"])


def test_the_smallest_text_of_a_group_says_where_it_goes():
    pairs = [("g", "z"), ("c", "z")]
    assert _fraction("c") < 0.2 and _fraction("g") > _fraction("z") > 0.2
    assert split_pairs(pairs, 0.2) == ([], [], pairs)


def test_a_corpus_cannot_be_changed():
    corpus = Corpus("mine", [], [], [], "public domain")
    with pytest.raises(FrozenInstanceError):
        corpus.train = [("a", "b")]
