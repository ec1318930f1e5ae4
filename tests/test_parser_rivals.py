"""The parser's rivals in benchmarks/: a treebank grammar, whose tree is the likeliest one that its rules allow, and
the network of chapter 1 with a vocabulary for each side."""

import json
import math
import shutil
from functools import cache

import pytest
import torch
from programs import BENCHMARKS, loaded

from annotated.decoding import greedy
from annotated.grammar import grammar_examples
from annotated.parsing import _parse_brackets, _words_of, _write_tree, bracket_f1, right_branching
from annotated.recurrent import RecurrentSeq2Seq

pcfg, parsing = (loaded(BENCHMARKS / f"18_{name}.py") for name in ("pcfg", "parsing"))

TREES = [example.tree for example in grammar_examples(train=300, validation=0, test=0)[0]]
SEVERAL = "(S (NP (NNP Tom)) (VP (VBZ sees) (NP (DT a) (NN man)) (PP (IN in) (NP (DT a) (NN car))) (ADVP (RB here))) (. .))"


def likeliest(grammar, words):
    "The best log-probability of any derivation, by recursion over rules instead of tables."
    rules = {}
    for rule in range(len(grammar.head)):
        part = grammar.left[rule], grammar.right[rule], grammar.log_p[rule]
        rules.setdefault(int(grammar.head[rule]), []).append([value.item() for value in part])

    @cache
    def best(symbol, i, j):
        if j == i + 1:
            return grammar.scores(words[i])[symbol].item()
        ways = (p + best(a, i, k) + best(b, k, j) for a, b, p in rules.get(symbol, []) for k in range(i + 1, j))
        return max(ways, default=-math.inf)

    return max(best(symbol, 0, len(words)) + root for symbol, root in enumerate(grammar.root.tolist()))


@pytest.mark.parametrize("sizes", pcfg.GRAMMARS)
def test_the_tree_found_is_the_likeliest(sizes):
    grammar = pcfg.Grammar([*TREES[:60], SEVERAL], *sizes)
    sentences = [_words_of(tree) for tree in TREES[60:66]] + ["Tom sees a car .".split(), "a man here .".split()]
    found = [grammar.parse(words)[1] for words in sentences]
    assert found == pytest.approx([likeliest(grammar, tuple(words)) for words in sentences], abs=1e-4)
    assert sum(score > -math.inf for score in found) >= 4


@pytest.mark.parametrize("sizes", pcfg.GRAMMARS)
def test_one_tree_makes_a_grammar_of_that_tree(sizes):
    (found, _) = pcfg.Grammar([SEVERAL], *sizes).parse(_words_of(SEVERAL))
    assert found == SEVERAL


def test_chains_are_one_symbol_and_come_back():
    tree = "(TOP (S (NP (NN Rain)) (VP (VBZ falls))))"
    (parsed,) = _parse_brackets(tree)
    joined = pcfg.collapsed(parsed)
    assert joined == ("TOP+S", ("NP+NN", "Rain"), ("VP+VBZ", "falls"))
    inner = [pcfg.restored(*child)[0] for child in (("NP+NN", ["Rain"]), ("VP+VBZ", ["falls"]))]
    assert _write_tree(pcfg.restored("TOP+S^", inner)[0]) == tree


def test_probabilities_of_a_symbols_rules_add_up_to_1():
    grammar = pcfg.Grammar(TREES, 2, 1)
    sums = torch.zeros(len(grammar.symbols)).index_add_(0, grammar.head, grammar.log_p.exp())
    assert {round(value, 4) for value in sums.tolist()} == {0.0, 1.0}
    assert grammar.root.exp().sum() == pytest.approx(1)


def test_new_sentences_of_the_grammar_are_parsed():
    gold = [example.tree for example in grammar_examples(train=0, validation=0, test=40)[2]]
    made, failed = pcfg.parsed(pcfg.Grammar(TREES, 2, 1), gold, "test")
    assert failed < 4
    assert pcfg.score(gold, made, ("S", "NP"))["f1"] > 90
    tree = next(tree for tree in gold if len(_words_of(tree)) > 2)
    branch = right_branching(_words_of(tree), "S", "NP")
    assert pcfg.score([tree], [None], ("S", "NP"))["f1"] == round(bracket_f1([tree], [branch]).f1, 2) > 0, "in place of none"


def test_a_sentence_without_a_parse_says_so():
    grammar = pcfg.Grammar([SEVERAL], 1, 1)
    assert grammar.parse(["sees", "sees"]) == (None, -math.inf)


def test_the_recurrent_parser_is_chapter_1s_network_with_two_vocabularies():
    torch.manual_seed(0)
    model = parsing.recurrent(words=40, tokens=23, P_drop=0.0, wanted=20_000).eval()
    assert abs(parsing.weights(model) - 20_000) < 4000
    twin = RecurrentSeq2Seq(model.config).eval()
    twin.load_state_dict({name: value for name, value in model.state_dict().items() if name != "source_embedding.weight"})
    twin.embedding.weight.data[:] = model.source_embedding.weight.data[:23]
    source = torch.tensor([[5, 9, 22, 2], [7, 2, 0, 0]])
    torch.testing.assert_close(model.encode(source), twin.encode(source))
    found = greedy(model, torch.tensor([[39, 4, 2]]), max_len=5)
    assert all(i < 23 for i in found[0]), "sources may have identifiers that targets do not have"


@pytest.fixture
def parse(tmp_path, monkeypatch):
    "parse(*options) runs the program on a treebank of files, small and short."
    for part, trees in {"train": TREES[:30], "dev": TREES[30:34], "test": TREES[34:38]}.items():
        (tmp_path / part).write_text("\n".join(trees) + "\n")
    small = "--N 1 --d_model 16 --d_ff 16 --h 2 --steps 2 --warmup 1 --every 2 --save_every 1 --least 1 --trial 1".split()

    def run(*options):
        parts = [word for part in ("train", "dev", "test") for word in (f"--{part}", tmp_path / part)]
        given = "parsing", *small, *parts, "--work", tmp_path / "work" / "one", "--out", tmp_path / "out", *options
        monkeypatch.setattr("sys.argv", list(map(str, given)))
        return parsing.main()
    return run


def test_rates_are_tried_alone_and_anew_on_other_trees(parse, tmp_path):
    assert not parse("--rates", 0.1, 0.2, "--only_trials")
    first = json.loads((tmp_path / "out/scores.json").read_text())
    assert set(first["trials"]["f1"]) == {"0.1", "0.2"} and first["measured_on"] == "dev" and "chosen" not in first
    assert not parse("--rates", 0.3, "--only_trials")  # one more
    assert set(json.loads((tmp_path / "out/scores.json").read_text())["trials"]["f1"]) == {"0.1", "0.2", "0.3"}
    tried = {path.name for path in (tmp_path / "work").iterdir()}
    (tmp_path / "dev").write_text("\n".join(TREES[40:43]) + "\n")
    assert not parse("--rates", 0.1, "--only_trials", "--out", tmp_path / "other")
    assert json.loads((tmp_path / "other/scores.json").read_text())["sentences"] == 3
    assert len([path for path in (tmp_path / "work").iterdir() if path.is_dir() and path.name not in tried]) == 1


def test_a_record_is_of_the_trees_and_of_the_training_that_made_it(parse, tmp_path, capsys, monkeypatch):
    assert not parse()
    (tmp_path / "test").write_text("\n".join(TREES[34:36]) + "\n")  # of a file that is read again
    assert parse("--out", tmp_path / "other") == 2 and "begun with other data" in capsys.readouterr().err
    (tmp_path / "test").write_text("\n".join(TREES[34:38]) + "\n")
    shutil.rmtree(tmp_path / "work")
    assert parse() == 2 and "is finished, and" in capsys.readouterr().err
    (tmp_path / "out/scores.json").unlink()  # begun only
    run = json.loads((tmp_path / "out/run.json").read_text())
    (tmp_path / "out/run.json").write_text(json.dumps(run | {"commit": "older"}))
    for name in ("log.jsonl", "examples.json"):
        (tmp_path / "out" / name).unlink()
    assert parse("--seed", 7) == 2 and "begun with seed=0, now seed=7" in capsys.readouterr().err

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as later:
        later.setattr(parsing, "choose", stopped)  # when the training is done
        assert parse() == 130
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert run["commit"] != "older" and "KeyboardInterrupt" in run["failed"], "the run that has made the checkpoints"
    assert not parse()
    assert json.loads((tmp_path / "out/run.json").read_text())["commit"] != "older"
