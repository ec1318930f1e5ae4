"""Evaluation: BLEU and chrF against a second implementation, the bootstrap, and losses that compare."""

import json
import math
import random
import re
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from chapters import ROOT
from programs import BENCHMARKS, loaded

from annotated import evaluation
from annotated.data import make_batch
from annotated.evaluation import (
    _resampled_difference,
    accuracy,
    bits_per_byte,
    bleu,
    bleu_counts,
    bleu_of_counts,
    chrf,
    cross_entropy,
    paired_bootstrap,
    perplexity,
)
from annotated.transformer import TINY, Transformer

RECORD = ROOT / "results" / "12-protocols"


def grams(items, n):
    return Counter(tuple(items[i : i + n]) for i in range(len(items) - n + 1))


def reference_bleu(outputs, references):
    "BLEU with sacreBLEU's `exp` smoothing, on lists of words."
    shared, possible = [0] * 4, [0] * 4
    for output, wanted in zip(outputs, references, strict=True):
        for n in range(4):
            a, b = grams(output, n + 1), grams(wanted, n + 1)
            shared[n] += sum(min(count, b[gram]) for gram, count in a.items())
            possible[n] += sum(a.values())
    if not shared[0] or not possible[3]:
        return 0.0
    zeros, product = 0, 1.0
    for s, p in zip(shared, possible, strict=True):
        zeros += s == 0
        product *= s / p if s else 1 / (2**zeros * p)
    c, r = sum(map(len, outputs)), sum(map(len, references))
    return 100 * product**0.25 * (math.exp(1 - r / c) if c < r else 1.0)


def reference_chrf(outputs, references, beta=2):
    "chrF of 1 to 6 characters, orders without n-grams on a side left out."
    precision, recall = [], []
    for n in range(1, 7):
        shared = made = wanted = 0
        for output, reference in zip(outputs, references, strict=True):
            a, b = (grams("".join(line.split()), n) for line in (output, reference))
            shared += sum((a & b).values())
            made += sum(a.values()) if b else 0
            wanted += sum(b.values())
        if made and wanted:
            precision.append(shared / made)
            recall.append(shared / wanted)
    P, R = sum(precision) / len(precision), sum(recall) / len(recall)
    return 100 * (1 + beta**2) * P * R / (beta**2 * P + R) if P + R else 0.0


WORDS = "der die Das ein alte neue Mann Frau sieht hört nicht . , ! Haus".split()


def corpus(seed, size, noise=0.3):
    "References of very unequal length, and outputs with words changed, lost and added."
    chance = random.Random(seed)
    outputs, references = [], []
    for _ in range(size):
        reference = [chance.choice(WORDS) for _ in range(chance.choice([0, 1, 2, 3, 5, 8, 20]))]
        output = []
        for word in reference:
            kind = chance.random()
            output += [] if kind < noise / 3 else [chance.choice(WORDS)] if kind < noise else [word]
            output += [chance.choice(WORDS)] if chance.random() < noise / 5 else []
        outputs.append(" ".join(output))
        references.append(" ".join(reference))
    return outputs, references


CASES = [corpus(seed, size, noise=noise) for seed, (size, noise) in enumerate(
    [(20, 0.1), (20, 0.3), (20, 0.9), (1, 0.5), (2, 0.5), (3, 0.9), (3, 1.0), (5, 1.0), (60, 0.3)]
)]
CASES += [
    (["a b c"], ["a b c"]),  # no n-gram of order 4
    (["d c b a"], ["a b c d"]),  # three orders without a match
    (["a b x c d e"], ["a b y c d"]),
    (["a a a a a"], ["a"]),
    (["x y z w v"], ["a b c d e"]),
    ([""], ["a b c d"]),
    (["a b c d", ""], ["a b c d", "e f g h"]),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_bleu_is_the_formula(case):
    outputs, references = CASES[case]
    expected = reference_bleu(*([line.split() for line in side] for side in (outputs, references)))
    assert bleu(outputs, references, tokenize="none")[0] == pytest.approx(expected, abs=1e-9)


def test_the_cases_need_the_smoothing_and_both_sides_of_the_penalty():
    scores = [bleu(outputs, references, tokenize="none")[0] for outputs, references in CASES]
    counts = [bleu_counts(outputs, references, tokenize="none").sum(0) for outputs, references in CASES]
    assert any(0 < s and (c[:4] == 0).any() for s, c in zip(scores, counts, strict=True))
    assert any(c[8] < c[9] for c in counts) and any(c[8] > c[9] for c in counts)


@pytest.mark.parametrize("case", [i for i, (outputs, _) in enumerate(CASES) if any(outputs)])
def test_chrf_is_the_formula(case):
    outputs, references = CASES[case]
    assert chrf(outputs, references)[0] == pytest.approx(reference_chrf(outputs, references), abs=1e-9)


def test_what_belongs_to_the_protocol_moves_the_score_and_stands_in_the_signature():
    outputs, references = ["Der Mann sah die S-Bahn, sagte er."], ["der Mann sah die S-Bahn; sagte er."]
    scores = {}
    for how in ({}, {"lowercase": True}, {"tokenize": "intl"}, {"tokenize": "none"}):
        score, signature = bleu(outputs, references, **how)
        scores[signature] = score
        assert f"tok:{how.get('tokenize', '13a')}" in signature
        assert ("case:lc" in signature) == how.get("lowercase", False)
    assert len({round(score, 6) for score in scores.values()}) == len(scores) == 4
    assert "chrF2" in chrf(outputs, references)[1] or "nc:6" in chrf(outputs, references)[1]


@pytest.mark.parametrize("measure", [bleu, chrf, bleu_counts])
def test_lists_that_do_not_fit_are_refused(measure):
    for outputs, references in ([], []), (["a"], []), (["a"], ["a", "b"]):
        with pytest.raises(ValueError, match=f"got {len(outputs)} and {len(references)}"):
            measure(outputs, references)
    for outputs, references, name in ("a b", ["a b"], "outputs"), (["a"], "a", "references"):
        with pytest.raises(TypeError, match=f"{name} must be a list of strings"):
            measure(outputs, references)


@pytest.mark.parametrize("measure", [bleu, bleu_counts])
def test_an_unknown_tokeniser_is_refused(measure):
    with pytest.raises(ValueError, match="tokenize must be one of .*13a.*, not '13b'"):
        measure(["a"], ["a"], tokenize="13b")


@pytest.mark.parametrize("measure", [bleu, bleu_counts])
def test_a_tokeniser_without_its_package_is_refused_in_a_line(measure, monkeypatch):
    from sacrebleu.metrics import BLEU

    def fail(self, **_):
        raise RuntimeError("\nIt needs more.\n\n    pip install more\n")

    monkeypatch.setattr(BLEU, "__init__", fail)
    with pytest.raises(ValueError, match="^tokenize='ja-mecab' cannot be used: It needs more. pip install more$"):
        measure(["a"], ["a"], tokenize="ja-mecab")


@pytest.mark.parametrize("how", [{}, {"lowercase": True}, {"tokenize": "none"}, {"tokenize": "char"}])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_counts_of_the_sentences_sum_to_the_corpus(case, how):
    outputs, references = CASES[case]
    counts = bleu_counts(outputs, references, **how)
    assert counts.shape == (len(outputs), 10)
    assert bleu_of_counts(counts.sum(0)) == pytest.approx(bleu(outputs, references, **how)[0], abs=1e-9)


# ---- the bootstrap


@pytest.fixture(scope="module")
def systems():
    "Two systems of different quality, and their references."
    worse, references = corpus(1, 200, noise=0.5)
    chance = random.Random(2)
    better = [r if chance.random() < 0.3 else w for w, r in zip(worse, references, strict=True)]
    return better, worse, references


def test_the_same_seed_draws_the_same(systems):
    assert paired_bootstrap(*systems, samples=100) == paired_bootstrap(*systems, samples=100)
    assert paired_bootstrap(*systems, samples=100)[1] != paired_bootstrap(*systems, samples=100, seed=1)[1]


def test_changing_sides_changes_the_sign(systems):
    better, worse, references = systems
    difference, (low, high), p = paired_bootstrap(better, worse, references, 200)
    assert paired_bootstrap(worse, better, references, 200) == (-difference, (-high, -low), p)


def test_the_interval_of_one_sentence_is_its_difference():
    difference, interval, _ = paired_bootstrap(["a b c d"], ["a b c e"], ["a b c d"], 40)
    assert interval == (difference, difference) and difference > 0


def test_the_difference_is_that_of_the_scores(systems):
    better, worse, references = systems
    difference, (low, high), _ = paired_bootstrap(better, worse, references, 200)
    assert difference == pytest.approx(bleu(better, references)[0] - bleu(worse, references)[0])
    assert low < difference < high


def test_a_clear_difference_is_significant(systems):
    _, (low, _), p = paired_bootstrap(*systems, samples=400)
    assert low > 0 and 1 / 401 <= p < 0.01, "the measured set is counted as one more: never 0"


def test_equal_systems_are_not_significant(systems):
    better, _, references = systems
    assert paired_bootstrap(better, better, references, 100) == (0.0, (0.0, 0.0), 1.0)


def test_chance_is_called_significant_as_rarely_as_p_says(systems):
    "Systems that take each sentence from either of two by a coin: 5 % of the pairs may fall below 0.05."
    a, b = (bleu_counts(side, systems[2]) for side in systems[:2])
    coin, ps = torch.Generator().manual_seed(0), []
    for _ in range(100):
        heads = (torch.rand(len(a), 1, generator=coin) < 0.5).long()
        ps.append(_resampled_difference(heads * a + (1 - heads) * b, heads * b + (1 - heads) * a, 100)[2])
    assert sum(p < 0.05 for p in ps) <= 12  # 5 are expected; 13 or more have a probability of 0.15 %
    assert sum(p < 0.5 for p in ps) >= 30  # nor does it call everything chance


def test_a_draw_is_a_test_set_scored_anew(systems):
    better, worse, references = systems
    samples, B = 40, len(references)
    drawn = torch.randint(B, (samples, B), generator=torch.Generator().manual_seed(5)).tolist()
    spread = sorted(
        bleu([better[i] for i in rows], [references[i] for i in rows])[0]
        - bleu([worse[i] for i in rows], [references[i] for i in rows])[0]
        for rows in drawn
    )
    _, (low, high), _ = paired_bootstrap(better, worse, references, samples, seed=5)
    assert (low, high) == pytest.approx((spread[1], spread[-2]))


def test_sentences_that_do_not_pair_are_refused():
    counts = torch.ones(3, 10, dtype=torch.long)
    for a, b in (counts, counts[:2]), (counts[:, :8], counts[:, :8]), (counts[0], counts[0]):
        with pytest.raises(ValueError, match="a and b must both have the shape"):
            _resampled_difference(a, b)
    with pytest.raises(ValueError, match="samples must be 40 or more, .* got 39"):
        _resampled_difference(counts, counts, samples=39)
    with pytest.raises(ValueError, match="got 1 and 2"):
        paired_bootstrap(["a"], ["a"], ["a", "b"])


# ---- loss, perplexity, accuracy


@pytest.mark.parametrize("measure", [cross_entropy, accuracy])
def test_what_is_measured_may_be_trained_on(measure):
    model, kept = Transformer(TINY), []

    def batches():
        kept.append(make_batch([([5, 2], [7, 2])]))
        yield from kept

    measure(model, batches())
    assert not any(ids.is_inference() for ids in kept[0])


def test_a_perplexity_may_be_infinite(monkeypatch):
    monkeypatch.setattr(evaluation, "cross_entropy", lambda *_: 710.0)
    assert perplexity(None, []) == math.inf


def test_what_is_missing_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    for score in (bleu, chrf):
        with pytest.raises(ModuleNotFoundError, match=r"data"):
            score(["a"], ["a"])

PAIRS = [([5, 6, 7, 2], [8, 9, 2]), ([5, 2], [8, 8, 8, 4, 9, 2]), ([6, 2], [2])]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Transformer(replace(TINY, vocab=11)).double()


def test_loss_and_accuracy_do_not_depend_on_the_batches(model):
    together, alone = [make_batch(PAIRS)], [make_batch([pair]) for pair in PAIRS]
    assert cross_entropy(model, together) == pytest.approx(cross_entropy(model, alone))
    assert accuracy(model, together) == accuracy(model, alone)
    assert perplexity(model, together) == pytest.approx(math.exp(cross_entropy(model, together)))


def test_loss_and_accuracy_are_of_the_tokens_one_by_one(model):
    nats, right = [], []
    with torch.inference_mode():
        for source, target in PAIRS:
            for t, token in enumerate(target):
                logits = model.eval()(torch.tensor([source]), torch.tensor([[1, *target[:t]]]))[0, -1]
                nats.append(-logits.log_softmax(-1)[token].item())
                right.append(logits.argmax().item() == token)
    assert cross_entropy(model, [make_batch(PAIRS)]) == pytest.approx(sum(nats) / len(nats))
    assert accuracy(model, [make_batch(PAIRS)]) == pytest.approx(sum(right) / len(right))


def test_loss_and_accuracy_pass_over_the_models_own_padding():
    torch.manual_seed(0)
    model = Transformer(replace(TINY, vocab=11, pad=10, bos=1)).double()
    batches = [[make_batch(pairs, pad=10)] for pairs in (PAIRS, PAIRS[:2], PAIRS[2:])]
    whole, first, last = ([measure(model, batch) for measure in (cross_entropy, accuracy)] for batch in batches)
    assert whole == pytest.approx([(9 * a + b) / 10 for a, b in zip(first, last)])


class Oracle(torch.nn.Module):
    "Answers every position with the token that follows there, but for every n-th; and padding with padding."

    def __init__(self, every=None):
        super().__init__()
        self.config, self.every, self.answers = replace(TINY, vocab=11), every, None
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, source, target):
        wanted = self.answers.clone()
        if self.every:
            wanted[:, :: self.every] = 10
        return 50 * torch.nn.functional.one_hot(wanted, 11).float() + self.weight


@pytest.mark.parametrize("every, expected", [(None, 1.0), (1, 0.0), (3, 6 / 10)])
def test_accuracy_counts_target_tokens_only(every, expected):
    batch, oracle = make_batch(PAIRS), Oracle(every)
    oracle.answers = batch[1][:, 1:]
    assert accuracy(oracle, [batch]) == pytest.approx(expected)


@pytest.mark.parametrize("measure", [cross_entropy, accuracy])
def test_an_empty_corpus_is_refused(model, measure):
    with pytest.raises(ValueError, match="no target token to average over"):
        measure(model, [])


def test_measuring_leaves_the_model_as_it_was(model):
    for training in (True, False):
        model.train(training)
        accuracy(model, [make_batch(PAIRS)])
        cross_entropy(model, [make_batch(PAIRS)])
        assert model.training is training


def test_bits_per_byte_do_not_depend_on_the_tokens():
    texts = ["ab", "für"]  # 3 + 5 bytes with the ends
    assert bits_per_byte(math.log(2), 8, texts) == pytest.approx(1.0)  # bytes as tokens, one bit each
    assert bits_per_byte(4 * math.log(2), 2, texts) == pytest.approx(1.0)  # the same, four bytes a token
    with pytest.raises(ValueError, match="texts must hold"):
        bits_per_byte(1.0, 3, [])


# ---- the record of the protocols


@pytest.fixture(scope="module")
def protocols():
    "The benchmark's functions."
    return loaded(BENCHMARKS / "12_protocols.py")


def lines(name):
    return (RECORD / "outputs" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_compounds_are_split_as_the_script_does_it(protocols):
    assert protocols.split_compounds(["die S-Bahn - zum UN-US-Haus"], str) == [
        "die S ##AT##-##AT## Bahn - zum UN ##AT##-##AT## US ##AT##-##AT## Haus"
    ]


def test_sentences_are_held_out_once_and_whole(protocols):
    class Few:
        validation = [(f"s{i // 2}", f"t{i}") for i in range(20)]

    assert protocols.held_out(Few, 5) == {f"s{i}": [f"t{2 * i}", f"t{2 * i + 1}"] for i in (0, 2, 4, 6, 8)}
    assert list(protocols.held_out(Few, 7)) == ["s0", "s1", "s2", "s4", "s5", "s7", "s8"]  # up to the end
    assert len(protocols.held_out(Few, 100)) == 10


def test_the_record_says_what_its_outputs_say(protocols):
    scores = json.loads((RECORD / "scores.json").read_text(encoding="utf-8"))
    references = lines("reference")
    further = [line.split("\t") if line else [] for line in lines("further-references")]
    translations = [[one, *more] for one, more in zip(references, further, strict=True)]
    assert len(references) == scores["sentences"]
    assert set(scores["systems"]) == {
        f"{weights}, {search}" for weights in protocols.CHECKPOINTS for search in protocols.SEARCHES
    }
    for name in (scores["base"], "last checkpoint, greedy"):
        outputs, system = lines(re.sub("[ ,]+", "-", name)), scores["systems"][name]
        found = protocols.scorings(outputs, translations)
        assert {scoring: round(score, 2) for scoring, (score, _, _) in found.items()} == system["bleu"]
        assert round(chrf(outputs, references)[0], 2) == system["chrf"]
        for _, (score, _, counts) in found.items():
            assert bleu_of_counts(counts.sum(0)) == pytest.approx(score)


def test_a_comparison_can_have_its_own_protocol():
    a, b, references = ["A B c d e"] * 3, ["a b c d f"] * 3, ["a b c d e"] * 3
    assert paired_bootstrap(a, b, references, 100)[0] < 0 < paired_bootstrap(a, b, references, 100, lowercase=True)[0]
    with pytest.raises(ValueError, match="tokenize must be one of"):
        paired_bootstrap(a, b, references, tokenize="no such")


def test_one_string_is_no_list_of_texts():
    with pytest.raises(TypeError, match="texts must be a list of strings"):
        bits_per_byte(1.0, 3, "abc")


def test_a_comparison_draws_1000_test_sets_with_seed_0_unless_told_otherwise():
    references = [f"w{i} w{i + 1} w{i + 2} w{i + 3} w{i + 4}" for i in range(7)]
    a = [*references[:4], *["w1 w2"] * 3]
    b = [*["w1 w2"] * 2, *references[2:]]
    assert paired_bootstrap(a, b, references) == paired_bootstrap(a, b, references, samples=1000, seed=0)
