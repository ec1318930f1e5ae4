"""Parsing: trees and sequences, the score's conventions, reading treebanks, and output that can only be a tree."""

import gzip
import lzma
import random
from dataclasses import replace
from functools import partial

import pytest
import torch

from annotated import parsing
from annotated.data import Words, pad_batch
from annotated.decoding import beam_search, greedy, hypotheses
from annotated.figures import attention_maps
from annotated.files import sha256_of
from annotated.grammar import grammar_examples
from annotated.parsing import (
    WellFormed,
    _attempt,
    _by_word,
    _cleaned,
    _common_labels,
    _deepest,
    _encode_tree,
    _encode_words,
    _leaves,
    _matched,
    _parse_brackets,
    _signature,
    _spans,
    _trees_in,
    _unwrapped,
    _vocabularies,
    _words_of,
    _write_tree,
    bracket_f1,
    delinearize,
    init_cross_attention_diagonal,
    linearize,
    load_treebank,
    parse_words,
    read_trees,
    repair,
    right_branching,
)
from annotated.transformer import TINY, Transformer

CAT = "(S (NP (DT The) (JJ small) (NN cat)) (VP (VBZ sleeps)) (. .))"


def random_tree(rng, words, depth=0):
    "A tree over these words, unary chains and all."
    if len(words) == 1 and (depth > 6 or rng.random() < 0.6):
        return (rng.choice(["DT", "NN", ",", "."]), words[0])
    if len(words) == 1 or (depth < 6 and rng.random() < 0.15):
        return (rng.choice(["NP", "VP"]), random_tree(rng, words, depth + 1))
    cut = rng.randrange(1, len(words))
    return (rng.choice(["S", "NP", "VP", "PRT"]), *(random_tree(rng, w, depth + 1) for w in (words[:cut], words[cut:])))


def random_trees(count, seed=0, longest=9):
    rng = random.Random(seed)
    return [("S", random_tree(rng, [f"w{i}" for i in range(rng.randint(1, longest))])) for _ in range(count)]


def nested(node, begin, found):
    "The spans of a tree by another way: recursion that returns the end."
    if isinstance(node[1], str):
        return begin + 1
    end = begin
    for child in node[1:]:
        end = nested(child, end, found)
    found.append((node[0], begin, end))
    return end


@pytest.fixture(scope="module")
def grammar():
    return [example.tree for example in grammar_examples(train=300, validation=0, test=0)[0]]


# ---- trees and sequences


def test_brackets_there_and_back():
    for tree in random_trees(200):
        text = _write_tree(tree)
        assert _parse_brackets(text) == [tree]
        assert _parse_brackets(text.replace(" ", " \n\t ")) == [tree]


def test_several_trees_and_unlabelled_brackets():
    assert _parse_brackets("( (S (NN a)) )\n(NN b)") == [("", ("S", ("NN", "a"))), ("NN", "b")]
    assert _parse_brackets("") == []


@pytest.mark.parametrize(("text", "message"), [
    ("\n(S (NN a)", "line 2: a bracket is opened and never closed"),
    ("\n(S\n(NP (NN a)", "line 2: a bracket is opened and never closed"),  # the outer one
    ("\n(S (NN a)))", "line 2: '\\)' stands outside"),
    ("word", "stands outside"),
    ("(S ())", "holds nothing"),
    ("(S (NN))", "holds nothing"),
    ("(S the (NN cat))", "words beside trees"),
    ("(S (NN cat) sleeps)", "words beside trees"),
    ("(S " * 400 + "(NN a)" + ")" * 400, "line 1: 300 brackets are open"),
])
def test_bad_brackets_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        _parse_brackets(text, "name.mrg")
    with pytest.raises(ValueError, match="name.mrg"):
        _parse_brackets(text, "name.mrg")


def test_the_deepest_tree_that_is_read_is_not_too_deep_for_what_follows():
    tree = "(S " * 298 + "(NN a)" + ")" * 298
    assert _write_tree(_parse_brackets(tree)[0]) == tree and _trees_in(tree) == [tree]
    assert delinearize(linearize(tree), ["a"], ["NN"]) == tree
    assert bracket_f1([tree], [tree])[2] == 100
    assert _deepest([tree]) == 298 and _words_of(tree) == ["a"]


def test_by_hand():
    assert linearize(CAT) == ["(S", "(NP", "*", "*", "*", ")", "(VP", "*", ")", "*", ")"]
    assert _by_word(linearize(CAT)) == ["(S(NP*", "*", "*)", "(VP*)", "*)"]
    assert delinearize(["(S(NP*", "*)", "(VP*))"], ["a", "b", "c"]) == "(S (NP (XX a) (XX b)) (VP (XX c)))"
    assert _deepest([CAT]) == 2


def test_sequences_there_and_back(grammar):
    for text in [*map(_write_tree, random_trees(300)), *grammar]:
        tags, words = zip(*_leaves(text), strict=True)
        symbols = linearize(text)
        assert delinearize(symbols, words, tags) == text
        assert delinearize(_by_word(symbols), words, tags) == text
        assert len(_by_word(symbols)) == len(words) == symbols.count("*")
        assert "".join(_by_word(symbols)) == "".join(symbols)


def test_roots_are_left_out():
    for root in ("", "TOP", "ROOT", "S1"):
        assert linearize(f"({root} {CAT})") == linearize(CAT)
    assert linearize("(TOP (NP (NN a)) (VP (VB b)))") == ["(NP", "*", ")", "(VP", "*", ")"]
    assert delinearize(["(NP*)", "(VP*)"], ["a", "b"]) == "(TOP (NP (XX a)) (VP (XX b)))"


@pytest.mark.parametrize("symbols", [
    ["(S*", "*"], ["(S*", "*))"], ["(S*", "*)", "*"], ["(S*)"], ["(S*", "()*)"], ["(S*", "*(NP))"], ["(S*", "cat*)"], [],
])
def test_what_is_no_tree_over_two_words(symbols):
    words = ["a", "b"]
    if symbols == ["(S*", "*)", "*"]:
        words = ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match=r"symbols|brackets|holds"):
        delinearize(symbols, words)
    assert _attempt(symbols, words) is None


@pytest.mark.parametrize("symbols", [[], ["(S*", "*)"], ["(S", "(NP"], [")", "*"]])
def test_there_is_no_tree_without_words(symbols):
    assert repair(symbols, 0) == []
    with pytest.raises(ValueError, match="there are no words, and a tree holds at least one"):
        delinearize(repair(symbols, 0), [])
    assert _attempt(repair(symbols, 0), []) is None


def test_repair_keeps_trees_and_makes_trees():
    for tree in random_trees(100):
        symbols = linearize(_write_tree(tree))
        assert repair(symbols, symbols.count("*")) == symbols
    rng = random.Random(1)
    for _ in range(2000):
        n = rng.randint(1, 7)
        noise = rng.choices(["(NP", "(S(VP*", "*", "*)", ")", "(X*)))"], k=rng.randrange(12))
        made = repair(noise, n)
        assert made.count("*") == n and _attempt(made, ["w"] * n) is not None, noise


def test_repair_by_hand():
    assert repair(["(S(NP*", "*)", "(VP*"], 3) == linearize("(S (NP (A a) (B b)) (VP (C c)))")
    assert repair(["(S*", "*))", "*)"], 2) == ["(S", "*", "*", ")"]
    assert repair(["(S*"], 2) == ["(S", "*", "*", ")"]
    assert repair(["(S*", "(NP)"], 1) == ["(S", "*", ")"]


def test_repair_opens_no_more_brackets_than_a_tree_that_is_read_has():
    assert _attempt(repair(["(S(NP(NP(NP(NP(NP*"] * 60, 60), ["w"] * 60) is not None


# ---- the score


def test_spans_against_another_count():
    for tree in random_trees(300, seed=2):
        found = []
        nested(tree, 0, found)
        expected = sorted((parsing._SAME.get(label, label), a, b) for label, a, b in found)
        assert sorted(_spans(tree).elements()) == expected


@pytest.mark.parametrize(("gold", "predicted", "expected"), [
    (CAT, CAT, (3, 3, 3)),
    # parts of speech do not matter, and neither do brackets around the sentence
    (CAT, "(TOP (S (NP (XX The) (XX small) (XX cat)) (VP (XX sleeps)) (XX .)))", (3, 3, 3)),
    (f"( {CAT} )", CAT, (3, 3, 3)),
    (f"(ROOT {CAT})", f"(S1 {CAT})", (3, 3, 3)),
    # the dot may hang anywhere
    (CAT, "(S (NP (DT The) (JJ small) (NN cat)) (VP (VBZ sleeps) (. .)))", (3, 3, 3)),
    ("(S (NP (NN a) (, ,)) (VP (VB b)))", "(S (NP (NN a)) (, ,) (VP (VB b)))", (3, 3, 3)),
    ("(S (`` q) (NP (NN a)) ('' q))", "(S (NP (`` q) (NN a) ('' q)))", (2, 2, 2)),
    ("(S (NP (NN a) (: ;)))", "(S (NP (NN a)) (: ;))", (2, 2, 2)),
    # but a hyphen or a bracket is a word
    ("(S (NP (NN a) (HYPH -)) (VP (VB b)))", "(S (NP (NN a)) (HYPH -) (VP (VB b)))", (2, 3, 3)),
    # a constituent of punctuation only has no words
    ("(S (NP (NN a)) (PRN (, ,)))", "(S (NP (NN a)) (, ,))", (2, 2, 2)),
    # particles are adverb phrases
    ("(S (PRT (RP up)))", "(S (ADVP (RB up)))", (2, 2, 2)),
    # the label counts, and so do both ends
    ("(S (NP (NN a)) (NN b))", "(S (VP (NN a)) (NN b))", (1, 2, 2)),
    ("(S (NP (NN a) (NN b)) (NN c))", "(S (NN a) (NP (NN b) (NN c)))", (1, 2, 2)),
    # multisets
    ("(NP (NP (NN a)))", "(NP (NN a))", (1, 1, 2)),
    ("(NP (NN a))", "(NP (NP (NP (NN a))))", (1, 3, 1)),
    ("(NP (NP (NN a)))", "(NP (NP (NP (NN a))))", (2, 3, 2)),
    # order of a unary chain is not seen
    ("(S (VP (VB a)))", "(VP (S (VB a)))", (2, 2, 2)),
    # no tree, or a tree over other words
    (CAT, None, (0, 0, 3)),
    (CAT, "", (0, 0, 3)),
    (CAT, CAT[:-1], (0, 0, 3)),
    (CAT, f"{CAT} {CAT}", (0, 0, 3)),
    (CAT, "(S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .))", (0, 0, 3)),
    (CAT, CAT.replace("cat", "dog"), (0, 0, 3)),
    # function tags and empty nodes
    ("(S (NP-SBJ (NN a)) (VP (V b)))", "(S (NP (NN a)) (VP (V b)))", (3, 3, 3)),
    ("(S (NP (NN a)) (VP (V b)))", "(S (NP=2 (NN a)) (VP (V b)))", (3, 3, 3)),
    ("(S (NP (-NONE- *)) (VP (V b)))", "(S (VP (V b)))", (2, 2, 2)),
    ("(S (VP (V b)))", "(S (NP (-NONE- *)) (VP (V b)))", (2, 2, 2)),
    ("(S (NP (-NONE- *)) (NP (NN a) (, ,)) (VP (V b)))", "(S (NP (NN a)) (, ,) (VP (V b)))", (3, 3, 3)),
    ("(S (NP (-NONE- *)))", "(S (VP (V b)))", (0, 0, 0)),
    ("(S (VP (V b)))", "(S (NP (-NONE- *)))", (0, 0, 2)),
])
def test_conventions_by_hand(gold, predicted, expected):
    assert _matched(gold, predicted) == expected


def test_f1_by_hand():
    gold = ["(S (NP (NN a)) (VP (VB b)))", "(S (NP (NN a) (NN b)))"]
    predicted = ["(S (NP (NN a)) (NP (VB b)))", "(S (NN a) (NN b))"]
    precision, recall, f1 = bracket_f1(gold, predicted)  # 2 of 3 and 3; 1 of 1 and 2
    assert (precision, recall) == (75, 60) and f1 == pytest.approx(2 * 75 * 60 / (75 + 60))
    assert bracket_f1(gold, gold) == (100, 100, 100)
    assert bracket_f1(gold, [None, None]) == (0, 0, 0)
    precision, recall, f1 = bracket_f1(gold, [gold[0], None])  # counts are added, sentences not averaged
    assert (precision, recall, f1) == (100, 60, 75)


def test_the_score_refuses_what_it_cannot_count():
    with pytest.raises(TypeError, match="gold must be a list"):
        bracket_f1(CAT, [CAT])
    with pytest.raises(TypeError, match="predicted must be a list"):
        bracket_f1([CAT], CAT)
    with pytest.raises(ValueError, match="gold has 2 trees and predicted 1"):
        bracket_f1([CAT, CAT], [CAT])
    with pytest.raises(ValueError, match="gold has 0 trees"):
        bracket_f1([], [])
    with pytest.raises(ValueError, match="gold"):
        bracket_f1(["(S (NN a)"], [CAT])
    with pytest.raises(ValueError, match="one tree a sentence, got 2"):
        bracket_f1([CAT + CAT], [CAT])


# ---- treebanks


def test_cleaning():
    raw = """( (S (NP-SBJ-1 (PRP They)) (VP=2 (VBP want) (S (NP-SBJ (-NONE- *-1)) (VP (TO to) (VP (VB go)))))
      (-LRB- -LRB-) (SBAR (-NONE- 0) (S (-NONE- *T*))) (. .)) )"""
    assert _trees_in(raw) == [
        "(S (NP (PRP They)) (VP (VBP want) (S (VP (TO to) (VP (VB go))))) (-LRB- -LRB-) (. .))"]
    assert _cleaned(("NP", ("-NONE-", "*"))) is None
    assert _cleaned(("NP", ("NP-1", ("NN-x", "a")))) == ("NP", ("NP", ("NN-x", "a")))  # unary chains stay
    assert _unwrapped(("", ("TOP", ("S", ("NN", "a"))))) == ("S", ("NN", "a"))
    assert _unwrapped(("", ("NP", ("NN", "a")), (".", "."))) == ("TOP", ("NP", ("NN", "a")), (".", "."))
    assert _trees_in("( (NN Title) )") == ["(NN Title)"]


def test_files_and_folders(tmp_path):
    one, two, three = "\ufeff( (S (NN a)) )\n", "(S (NN b))\n(S\n (NN c))\n", "(S (NN µ))"
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.mrg").write_text(one, encoding="utf-8")
    (tmp_path / "b.mrg.gz").write_bytes(gzip.compress(two.encode()))
    (tmp_path / "sub" / "c.MRG.xz").write_bytes(lzma.compress(three.encode()))
    (tmp_path / "README").write_text("(no tree")
    assert read_trees(tmp_path) == ["(S (NN a))", "(S (NN b))", "(S (NN c))", "(S (NN µ))"]
    assert read_trees(str(tmp_path / "b.mrg.gz")) == ["(S (NN b))", "(S (NN c))"]


def test_bad_treebanks_are_named(tmp_path):
    def refused(name, content, message):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as found:
            read_trees(path)
        assert name in str(found.value)

    refused("open.mrg", b"(S (NN a)", "never closed")
    refused("late.mrg", b"(S (NN a))\n(S (NN b)))\n", "late.mrg, line 2")
    refused("empty.mrg", b"\n", "holds no tree")
    refused("nothing.mrg", b"(S (-NONE- *))", "holds no tree")
    refused("latin.mrg", "(S (NN µ))".encode("latin-1"), "not UTF-8")
    refused("cut.mrg.gz", gzip.compress(b"(S (NN a))")[:-9], "cannot be unpacked")
    packed = bytearray(gzip.compress(b"(S (NN a))" * 50))
    packed[24] ^= 255  # an error of zlib's own
    refused("spoilt.mrg.gz", bytes(packed), "cannot be unpacked")
    refused("cut.mrg.xz", lzma.compress(b"(S (NN a))")[:-9], "cannot be unpacked")
    refused("not.mrg.xz", b"(S (NN a))", "cannot be unpacked")
    with pytest.raises(ValueError, match="cannot read .*missing.mrg"):
        read_trees(tmp_path / "missing.mrg")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="no trees in .*folder"):
        read_trees(tmp_path / "folder")


def test_registered_treebanks_without_data(monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="no treebank; there are treebank-craft, treebank-genia"):
        load_treebank("wsj")
    monkeypatch.delenv("ANNOTATED_DATA", raising=False)
    with pytest.raises(ValueError, match="ANNOTATED_DATA.*treebank-craft/train.mrg.xz.*read_trees"):
        load_treebank("treebank-craft")
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="treebank-genia/train.mrg.xz"):
        load_treebank("treebank-genia")
    (tmp_path / "treebank-genia").mkdir()
    (tmp_path / "treebank-genia" / "train.mrg.xz").write_bytes(lzma.compress(b"(S (NN a))"))
    with pytest.raises(ValueError, match="sha256"):
        load_treebank("treebank-genia")


def test_a_registered_treebank_is_read_part_by_part(monkeypatch, tmp_path):
    trees = {"train": "( (S (NP-SBJ (NN a)) (-NONE- *)) )\n(S (NN b))", "dev": "(S (NN c))"}
    files = {name: lzma.compress(text.encode()) for name, text in trees.items()}
    table = "".join(f"{name} {len(content)} {sha256_of(content)}\n" for name, content in files.items())
    monkeypatch.setitem(parsing.TREEBANKS, "some", parsing._treebank("some", "https://a.b", "free", table))
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    (tmp_path / "some").mkdir()
    for name, content in files.items():
        (tmp_path / "some" / f"{name}.mrg.xz").write_bytes(content)
    assert load_treebank("some") == {"train": ["(S (NP (NN a)))", "(S (NN b))"], "dev": ["(S (NN c))"]}


# ---- baseline, vocabularies


def test_right_branching():
    assert right_branching(["a"]) == "(S (XX a))"
    assert right_branching(["a", "b"], "X", "Y") == "(X (XX a) (XX b))"
    assert right_branching(list("abcd"), "S", "VP") == "(S (XX a) (VP (XX b) (VP (XX c) (XX d))))"
    assert right_branching(["w"] * 299).count("(NP ") == 297
    for n in (0, 300):
        with pytest.raises(ValueError, match=f"words must be 1 to 299, got {n}"):
            right_branching(["w"] * n)
    assert _common_labels(["(S (NP (NN a)) (NP (NN b)))", "(S (VP (NN a)))", "(NN c)"]) == ("S", "NP")


def test_rare_words_become_shapes():
    assert len({_signature(word) for word in ("cat", "Cat", "IL-2", "3.5", "p53", "sleeping", "sleeper")}) == 7
    assert _signature("walking") == _signature("talking") and "(" not in _signature("x(y")
    trees = ["(S (NN cat) (NN cat) (VB walking) (VB talking) (NN Zebra))"]
    words, tokens = _vocabularies(trees, least=2)
    shape = words.ids[_signature("walking")]
    assert _encode_words(["cat", "walking", "running", "Okapi"], words) == [words.ids["cat"], shape, shape, 3, 2]
    source, target = _encode_tree(trees[0], words, tokens)
    assert len(source) == len(target) == 6 and source[-1] == target[-1] == 2
    assert [tokens.words[i] for i in target[:-1]] == _by_word(linearize(trees[0]))
    words, tokens = _vocabularies(["(S (NP (VB walking) (VB walking) (VB talking)) (NN b))"], least=3)
    assert shape == words.ids[_signature("walking")] and len(words) == 5, "a shape counts each of its words"
    assert {"*", "*)", "*))"} <= set(tokens.words), "a tree of that depth can be closed anywhere"


# ---- output that can only be a tree


@pytest.fixture(scope="module")
def newborn(grammar):
    words, tokens = _vocabularies(grammar)
    torch.manual_seed(3)
    config = replace(TINY, N=1, d_model=32, d_ff=32, vocab=len(tokens), source_vocab=len(words))
    return Transformer(config).eval(), words, tokens


@pytest.mark.parametrize("search", [greedy, partial(beam_search, beam=3), partial(beam_search, beam=2, alpha=0.0)])
def test_random_weights_write_trees(grammar, newborn, search):
    model, words, tokens = newborn
    sentences = [_words_of(tree) for tree in grammar[:60]] + [["cat"], ["cat", "sleeps"], ["cat"] * 30]
    free = parse_words(model, sentences, words, tokens, search)
    bound = parse_words(WellFormed(model, tokens), sentences, words, tokens, search)
    assert sum(_attempt(a, b) is None for a, b in zip(free, sentences, strict=True)) > 30
    for symbols, sentence in zip(bound, sentences, strict=True):
        made = _attempt(symbols, sentence)
        assert made is not None and len(symbols) == len(sentence)
        assert not made.startswith("(TOP"), "one bracket is around all words"


def test_every_hypothesis_of_the_beam_is_a_tree(grammar, newborn):
    model, words, tokens = newborn
    source = pad_batch([_encode_words(_words_of(tree), words) for tree in grammar[:9]])
    for tree, found in zip(grammar, hypotheses(WellFormed(model, tokens), source, beam=4), strict=False):
        assert len(found) == 4
        for ids, _ in found:
            assert ids[-1] == 2 and _attempt([tokens.words[i] for i in ids[:-1]], _words_of(tree))


def test_the_constraint_allows_every_tree(grammar, newborn):
    "Along each right tree, the right token is always among those allowed."
    model, words, tokens = newborn
    bound = WellFormed(model, tokens)
    for tree in grammar[:100]:
        _, target = _encode_tree(tree, words, tokens)
        depth, left = torch.zeros(1, dtype=torch.long), torch.tensor([len(target) - 1])
        for token in target:
            assert bound.allowed(depth, left)[0, token]
            depth, left = depth + bound.rise[token], left - bound.word[token].long()


def test_the_constraint_changes_no_other_score(grammar, newborn):
    model, words, tokens = newborn
    source = pad_batch([_encode_words(_words_of(tree), words) for tree in grammar[:5]])
    ids = torch.full((5,), 1)
    with torch.inference_mode():
        free, _ = model.step(ids, model.start(source))
        bound = WellFormed(model, tokens)
        kept, _ = bound.step(ids, bound.start(source))
    allowed = kept > -torch.inf
    assert allowed.any(1).all() and not allowed.all()
    torch.testing.assert_close(kept[allowed], free[allowed])


def test_a_text_is_no_list_of_words(newborn):
    model, words, tokens = newborn
    with pytest.raises(TypeError, match="^sentences must be lists of words"):
        parse_words(model, ["the dog"], words, tokens)


def test_batches_do_not_matter(grammar, newborn):
    model, words, tokens = newborn
    sentences = [_words_of(tree) for tree in grammar[:20]]
    together = parse_words(WellFormed(model, tokens), sentences, words, tokens)
    assert together == parse_words(WellFormed(model, tokens), sentences, words, tokens, size=1)


def test_side_by_side_starts_on_the_diagonal():
    config = replace(TINY, vocab=50, source_vocab=70, positions="learned", norm="pre", final_norm=True)
    torch.manual_seed(0)
    model = init_cross_attention_diagonal(Transformer(config))
    for layer in model.decoder.layers:
        assert torch.equal(layer.cross_attention.W_K.weight, layer.cross_attention.W_Q.weight)
        assert not torch.equal(layer.self_attention.W_K.weight, layer.self_attention.W_Q.weight)
    assert all(parameter.requires_grad for parameter in model.parameters())
    torch.manual_seed(0)
    plain, (source, target) = Transformer(config), (torch.randint(4, vocab, (5, 9)) for vocab in (70, 50))
    own = [attention_maps(one, source, target)["cross"].diagonal(dim1=-2, dim2=-1).mean() for one in (plain, model)]
    assert own[0] < 0.15 and 0.3 < own[1], "a position looks at the one with its own number, of nine"


# ---- real treebanks


@pytest.mark.needs_data
def test_real_trees_there_and_back():
    import os

    if not os.environ.get("ANNOTATED_DATA"):
        pytest.skip("ANNOTATED_DATA is not set")
    try:
        dev = load_treebank("treebank-genia")["dev"]
    except ValueError as error:
        pytest.skip(str(error))
    for tree in dev:
        tags, words = zip(*_leaves(tree), strict=True)
        assert "-NONE-" not in tags
        assert delinearize(_by_word(linearize(tree)), words, tags) == tree
    assert bracket_f1(dev, dev) == (100, 100, 100)


def test_words_that_are_brackets_and_tags_that_are_too_few_are_named():
    with pytest.raises(ValueError, match=r"words hold neither spaces nor brackets .* got '\('"):
        delinearize(["(S*", "*)"], ["(", "a"])
    with pytest.raises(ValueError, match="got 'New York'"):
        delinearize(["(S*", "*)"], ["New York", "b"])
    with pytest.raises(ValueError, match="tags hold neither spaces nor brackets .* got 'N N'"):
        delinearize(["(S*", "*)"], ["a", "b"], ["N N", "N"])
    with pytest.raises(ValueError, match="1 tags for 2 words"):
        delinearize(["(S*", "*)"], ["a", "b"], ["NN"])


@pytest.mark.parametrize("tree, found", [("", 0), ("(S (NN a)) (S (NN b))", 2)])
def test_a_sequence_is_made_of_one_tree(tree, found):
    with pytest.raises(ValueError, match=f"tree must hold one tree, got {found}"):
        linearize(tree)


def test_a_label_with_a_space_is_repaired_away():
    assert delinearize(repair(["(S X*)"], 1), ["x"]) == "(S (XX x))"


def test_a_vocabulary_that_cannot_close_every_bracket_is_refused():
    model = Transformer(replace(TINY, vocab=7))
    with pytest.raises(ValueError, match=r"tokens lack a word that closes 0, such as '\*'"):
        WellFormed(model, Words(["(S(NP*", "*)", "*)))"]))
    with pytest.raises(ValueError, match="tokens must be 7, as the model's vocab, not 6"):
        WellFormed(model, Words(["*", "*)"]))


def test_the_constraint_moves_with_its_model():
    tokens = Words(["(S*", "*", "*)"])
    moved = WellFormed(Transformer(replace(TINY, vocab=len(tokens))), tokens).to("meta")
    assert moved.rise.is_meta and moved.word.is_meta and not {"rise", "word"} & moved.state_dict().keys()
    assert [WellFormed(moved.model.train(mode), tokens).training for mode in (True, False)] == [True, False]


def test_words_of_one_part_of_speech_become_one():
    assert parsing._parse_brackets("(NP (NNP New York))") == [("NP", ("NNP", "New_York"))]


def test_only_long_words_have_an_ending_in_their_shape():
    assert (parsing._signature("table"), parsing._signature("tables"), parsing._signature("A-tables")) == ("<a:>", "<a:les>", "<Aa-:les>")


@pytest.mark.parametrize("ending", ["mrg", "tree", "trees", "parse", "ptb", "txt", "TXT", "ptb.gz", "mrg.xz"])
def test_a_treebanks_files_are_known_by_their_ending(ending, tmp_path):
    pack = {"gz": gzip.compress, "xz": lzma.compress}.get(ending.split(".")[-1], bytes)
    (tmp_path / f"a.{ending}").write_bytes(pack(b"(S (NN a))"))
    (tmp_path / "b.conll").write_text("(no tree")
    assert parsing.read_trees(tmp_path) == ["(S (NN a))"]


def test_padding_of_the_models_own_is_no_word_to_come():
    tokens = Words(["(S*", "*", "*)"])
    model = Transformer(replace(TINY, vocab=len(tokens), source_vocab=9, pad=3, unk=0))
    assert parsing.WellFormed(model, tokens).start(torch.tensor([[5, 6, 2], [7, 2, 3]])).left.tolist() == [2, 1]


def test_words_before_the_deepest_place_do_not_change_its_depth():
    tree = "(S (NN a) (NN b) (VP (VB c) (NP (NN d))))"
    assert _deepest([tree]) == 3
    _, tokens = _vocabularies([tree])
    assert "*)))" in tokens.words and "*))))" not in tokens.words


@pytest.mark.parametrize(("word", "shape"), [("abc123def", "<a0:def>"), ("abcd1ef", "<a0:>"), ("ABCDEF", "<A:def>")])
def test_the_ending_in_a_shape_is_the_last_three_letters(word, shape):
    assert parsing._signature(word) == shape


def test_a_batch_has_no_more_words_than_were_asked_for(grammar, newborn):
    model, words, tokens = newborn
    sentences, sizes = [_words_of(tree) for tree in grammar[:20]], []

    def search(model, source):
        sizes.append(source.shape)
        return greedy(model, source, 1)

    parse_words(model, sentences, words, tokens, search, size=60)
    assert sum(rows for rows, _ in sizes) == 20 and max(rows * longest for rows, longest in sizes) <= 60
    assert max(rows for rows, _ in sizes) > 1
