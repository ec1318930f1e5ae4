"""Search: what beam search promises, over random models of both kinds in float64.

A model is asked only through `start`, `step` and `config`; what it should have answered comes from whole forward
passes without a cache, through a search written here as plainly as possible.
"""

import copy
import itertools
import json
import math
import os
import pickle
import re
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from annotated import decoding, files
from annotated.attention import scaled_dot_product_attention
from annotated.cpu import CPUObjective
from annotated.data import Words
from annotated.decoding import (
    Translator,
    _PackedLinear,
    _select,
    _split_long,
    beam_search,
    cannot_improve,
    greedy,
    hypotheses,
    length_penalty,
    load,
    packed,
    packed_int8,
    save,
    when_full,
)
from annotated.embedding import halves_encoding
from annotated.gpu import UnpaddedObjective, fuse, join_projections
from annotated.layers import PreNorm
from annotated.multihead import MultiHeadAttention
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import BASE, TINY, Config, Transformer

ROOT = Path(__file__).resolve().parent.parent

VOCAB = 7
ABC = Words(["a", "b", "c"])  # of as many entries
SMALL = replace(TINY, d_model=10, h=5, d_ff=13, N=2)


def special(vocab):
    "Special identifiers as published models may have them: padding last."
    return {"pad": vocab - 1, "bos": 0, "eos": 1, "unk": 2}


KINDS = {
    "transformer": lambda vocab: Transformer(replace(SMALL, vocab=vocab)),
    "pre-norm": lambda vocab: Transformer(replace(SMALL, vocab=vocab, norm="pre", final_norm=True, bias=True)),
    "learned": lambda vocab: Transformer(replace(SMALL, vocab=vocab, positions="learned", max_positions=80)),
    "two vocabularies": lambda vocab: Transformer(replace(SMALL, vocab=vocab, source_vocab=11)),
    "other ids": lambda vocab: Transformer(replace(SMALL, vocab=vocab, **special(vocab))),
    "recurrent": lambda vocab: RecurrentSeq2Seq(RecurrentConfig(vocab, d_model=10)),
    "recurrent, other ids": lambda vocab: RecurrentSeq2Seq(RecurrentConfig(vocab, d_model=10, **special(vocab))),
}
every_model = pytest.mark.parametrize("kind,seed", [(kind, seed) for kind in KINDS for seed in (0, 1)])


def random_model(kind, seed, vocab=VOCAB, sharpen=3.0):
    "A model with random weights, sharpened so that its distributions are far from uniform."
    torch.manual_seed(seed)
    model = KINDS[kind](vocab)
    for parameter in model.parameters():
        parameter.data *= sharpen
    return model.double().eval()


def random_sources(model, seed, B=5, S=6):
    "Sentences of unequal length that end in eos, padding at the end."
    c, generator = model.config, torch.Generator().manual_seed(seed)
    size = getattr(c, "source_vocab", None) or c.vocab
    words = torch.tensor([i for i in range(size) if i not in (c.pad, c.bos, c.eos)])
    source = words[torch.randint(len(words), (B, S), generator=generator)]
    for row, length in enumerate(torch.randint(1, S, (B,), generator=generator).tolist()):
        source[row, length], source[row, length + 1 :] = c.eos, c.pad
    return source


def alone(model, source, row):
    "One sentence of a batch without its padding."
    return source[row : row + 1, : (source[row] != model.config.pad).sum()]


class Watched(nn.Module):
    "A model behind the three names a search may use; it counts, and can be kept from ending a sentence."

    def __init__(self, model, endless=False):
        super().__init__()
        self.model, self.config, self.endless = model, model.config, endless
        self.starts, self.rows = 0, []

    def start(self, source):
        self.starts += 1
        return self.model.start(source)

    def step(self, ids, state):
        self.rows.append(len(ids))
        logits, state = self.model.step(ids, state)
        if self.endless:
            logits = logits.index_fill(-1, torch.tensor([self.config.eos]), -1e9)
        return logits, state


@torch.inference_mode()
def whole_passes(model, source, beginnings):
    "Log-probabilities of the next token after each of some beginnings of one length: no cache."
    target = torch.tensor([[model.config.bos, *ids] for ids in beginnings])
    return model(source.expand(len(target), -1), target)[:, -1].log_softmax(-1).tolist()


@torch.inference_mode()
def rescore(model, source, ids):
    "The log-probability of an output, by one pass over the whole of it."
    target = torch.tensor([[model.config.bos, *ids]])
    log_p = model(source, target[:, :-1]).log_softmax(-1)
    return log_p.gather(-1, target[:, 1:, None]).sum().item()


def plain_search(model, source, beam, penalty, longest):
    "Beam search in which a finished hypothesis keeps its place, in lists: all that it finds, best first."
    finished, going = [], [((), 0.0)]
    for length in range(1, longest + 1):
        following = whole_passes(model, source, [ids for ids, _ in going])
        grown = [
            ((*ids, token), log_p + more)
            for (ids, log_p), row in zip(going, following, strict=True)
            for token, more in enumerate(row)
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: beam - len(finished)]
        over = {ids for ids, _ in grown if ids[-1] == model.config.eos or length == longest}
        finished += [(list(ids), log_p / penalty(length)) for ids, log_p in grown if ids in over]
        going = [(ids, log_p) for ids, log_p in grown if ids not in over]
        if not going:
            break
    return sorted(finished, key=lambda pair: -pair[1])


def assert_same(found, expected):
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], rel=1e-9)


PENALTIES = {
    "paper": length_penalty,
    "alpha 0": partial(length_penalty, alpha=0.0),
    "alpha 1.5": partial(length_penalty, alpha=1.5),
    "alpha -1": partial(length_penalty, alpha=-1.0),
    "L ** 1, the mean of a token": lambda length: length**1.0,
    "L ** 0.6": lambda length: length**0.6,
    "none": lambda length: 1.0,
}
every_penalty = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES)


@every_model
def test_a_beam_of_one_is_greedy(kind, seed):
    model = random_model(kind, seed)
    source = random_sources(model, seed)
    outputs = greedy(model, source, max_len=9)
    assert beam_search(model, source, beam=1, max_len=9) == outputs
    for row, ids in enumerate(outputs):
        likeliest = []
        while likeliest[-1:] != [model.config.eos] and len(likeliest) < 9:
            (following,) = whole_passes(model, alone(model, source, row), [likeliest])
            likeliest.append(following.index(max(following)))
        assert ids == likeliest


def space_of(config, longest):
    "Everything that can be said in at most so many tokens."
    words = [i for i in range(config.vocab) if i != config.eos]
    ended = [(*body, config.eos) for n in range(longest) for body in itertools.product(words, repeat=n)]
    return ended + list(itertools.product(words, repeat=longest))


@every_model
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_space_ranks_all_of_it(kind, seed, alpha):
    model, longest = random_model(kind, seed, vocab=4), 3
    source = random_sources(model, seed, B=2, S=3)
    space, penalty = space_of(model.config, longest), partial(length_penalty, alpha=alpha)
    found = hypotheses(model, source, len(space), penalty, longest)
    best = beam_search(model, source, len(space), alpha, longest)
    for row in range(len(source)):
        sentence = alone(model, source, row)
        scores = [(list(ids), rescore(model, sentence, ids) / penalty(len(ids))) for ids in space]
        scores.sort(key=lambda pair: -pair[1])
        assert_same(found[row], scores)
        assert best[row] == scores[0][0]


@every_model
@every_penalty
def test_the_search_equals_a_plain_one_without_a_cache(kind, seed, penalty):
    model = random_model(kind, seed, sharpen=2.0)
    source = random_sources(model, seed, B=3)
    for row, found in enumerate(hypotheses(model, source, 3, penalty, 7)):
        assert_same(found, plain_search(model, alone(model, source, row), 3, penalty, 7))


@every_model
def test_cached_steps_equal_whole_passes_when_rows_are_rearranged(kind, seed):
    model, generator = random_model(kind, seed), torch.Generator().manual_seed(seed)
    source = random_sources(model, seed)
    with torch.inference_mode():
        state, ids = model.start(source), torch.full((5, 1), model.config.bos)
        for B in (5, 7, 7, 3, 4, 2):
            logits, state = model.step(ids[:, -1], state)
            torch.testing.assert_close(logits, model(source, ids)[:, -1], rtol=0, atol=1e-10)
            rows = torch.randint(len(ids), (B,), generator=generator)
            tokens = torch.randint(VOCAB, (B, 1), generator=generator)
            ids, source, state = torch.cat([ids[rows], tokens], 1), source[rows], _select(state, rows)


@every_model
def test_scores_equal_a_rescoring_pass(kind, seed):
    model = random_model(kind, seed)
    source = random_sources(model, seed)
    for row, found in enumerate(hypotheses(model, source, beam=3, max_len=6)):
        for ids, score in found:
            log_p = rescore(model, alone(model, source, row), ids)
            assert math.isclose(log_p / length_penalty(len(ids)), score, rel_tol=1e-9)


@every_model
@pytest.mark.parametrize("stop", [when_full, cannot_improve])
def test_the_n_best_are_sorted_distinct_and_ended(kind, seed, stop):
    model = random_model(kind, seed, sharpen=1.5)
    for found in hypotheses(model, random_sources(model, seed), beam=5, max_len=6, stop=stop):
        assert 1 <= len({tuple(ids) for ids, _ in found}) == len(found) <= 5
        assert len(found) == 5 or stop is cannot_improve
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        for ids, _ in found:  # what has ended did not grow
            assert model.config.eos not in ids[:-1]
            assert ids[-1] == model.config.eos or len(ids) == 6


@every_model
@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_does_not_depend_on_its_batch(kind, seed, beam):
    model = random_model(kind, seed)
    source = random_sources(model, seed, B=7)
    expected = [hypotheses(model, alone(model, source, row), beam, max_len=12)[0] for row in range(7)]
    padded = torch.cat([source, torch.full((7, 3), model.config.pad)], 1)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed)).tolist()
    for batch, rows in ((source, range(7)), (padded, range(7)), (source[order], order), (source[2:4], (2, 3))):
        by_greedy = greedy(model, batch, max_len=12)
        for found, first, row in zip(hypotheses(model, batch, beam, max_len=12), by_greedy, rows, strict=True):
            assert_same(found, expected[row])
            assert beam > 1 or found[0][0] == first


@pytest.mark.parametrize("kind", KINDS)
def test_finished_sentences_leave_the_batch(kind):
    model = random_model(kind, 0, sharpen=1.5)
    source = random_sources(model, 0, B=7)
    together = Watched(model)
    outputs = greedy(together, source)
    assert together.starts == 1 and sum(together.rows) == sum(map(len, outputs))
    together = Watched(model)
    hypotheses(together, source, 4, max_len=12)
    apart = Watched(model)
    for row in range(7):
        hypotheses(apart, alone(model, source, row), 4, max_len=12)
    assert together.starts == 1 and sum(together.rows) == sum(apart.rows)
    assert len(together.rows) < len(apart.rows)


@every_penalty
def test_stopping_early_misses_nothing_and_saves_steps(penalty):
    asked = {when_full: 0, cannot_improve: 0}
    for kind, seed in itertools.product(KINDS, (0, 1)):
        model = random_model(kind, seed, sharpen=1.5)
        source, best = random_sources(model, seed, B=10), {}
        for stop in asked:
            watched = Watched(model)
            found = hypotheses(watched, source, 4, penalty, 12, stop)
            best[stop] = [every[0] for every in found]
            asked[stop] += sum(watched.rows)
        assert_same(best[cannot_improve], best[when_full])
    assert asked[cannot_improve] < asked[when_full]


class Rounded(Watched):
    "A model whose logits have 8 bits of precision, as numbers of 16 bits or of 32."

    def step(self, ids, state):
        logits, state = super().step(ids, state)
        return logits.bfloat16() if self.endless is None else logits.bfloat16().float(), state


def test_logits_of_16_bits_are_summed_in_32():
    model = random_model("transformer", 0, sharpen=1.5)
    short, long = (hypotheses(Rounded(model, how), random_sources(model, 0), 4, max_len=6) for how in (None, False))
    for found, expected in zip(short, long, strict=True):
        assert_same(found, expected)


class Table(nn.Module):
    "A model whose next token depends on the last one only: last token -> probabilities of pad, bos, eos and two words."

    config = replace(SMALL, vocab=5)

    def __init__(self, rows):
        super().__init__()
        self.rows = {ids: torch.tensor(row, dtype=torch.double).log() for ids, row in rows.items()}

    def start(self, source):
        return source

    def step(self, ids, state):
        return torch.stack([self.rows.get(i, self.rows[3]) for i in ids.tolist()]), state


@pytest.mark.parametrize(
    "alpha,begin,best",
    [
        (-1.0, [0, 0, 0.3, 0.4, 0.3], [3, 2]),  # one token more, before the divisor has fallen further
        (1.0, [0, 0, 0.6, 0.0, 0.4], [4] * 10),  # far behind, and best when it reaches the limit
    ],
)
def test_the_bound_looks_at_the_next_length_and_at_the_limit(alpha, begin, best):
    model = Table({1: begin, 3: [0, 0, 1, 0, 0], 4: [0, 0, 0.01, 0, 0.99]})
    penalty, longest = partial(length_penalty, alpha=alpha), 10 if alpha > 0 else 60
    for stop in (when_full, cannot_improve):
        (found,) = hypotheses(model, torch.tensor([[3, 2]]), 3, penalty, longest, stop)
        assert found[0][0] == best


def test_the_bound_holds_for_a_hypothesis_that_nothing_may_follow():
    model = Table({1: [0, 0, 0.28, 0.3, 0.42], 3: [0.0] * 5, 4: [0, 0, 0.5, 0, 0.5]})  # 3 ends as it is
    penalty = partial(length_penalty, alpha=-5.0)
    for stop in (when_full, cannot_improve):
        (found,) = hypotheses(model, torch.tensor([[3, 2]]), 3, penalty, 5, stop)
        assert found[0][0] == [3]


@every_model
def test_outputs_stop_at_their_own_limit(kind, seed):
    model = Watched(random_model(kind, seed), endless=True)
    source = random_sources(model, seed)
    own = ((source != model.config.pad).sum(1) + 50).tolist()
    assert len(set(own)) > 1
    for max_len, limits in ((None, own), (1, [1] * 5), (4, [4] * 5)):
        for outputs in (greedy(model, source, max_len), beam_search(model, source, 2, 0.6, max_len)):
            assert [len(ids) for ids in outputs] == limits
            assert not any(model.config.eos in ids for ids in outputs)


def test_outputs_stop_where_learned_positions_end():
    torch.manual_seed(0)
    small = replace(SMALL, vocab=VOCAB, positions="learned", max_positions=9)
    model = Watched(Transformer(small).eval(), endless=True)
    source = random_sources(model, 0)
    for max_len, longest in ((None, 9), (100, 9), (9, 9), (4, 4)):
        for outputs in (greedy(model, source, max_len), beam_search(model, source, 2, 0.6, max_len)):
            assert [len(ids) for ids in outputs] == [longest] * 5


def test_lines_are_cut_where_learned_positions_end():
    torch.manual_seed(0)
    words = Words([f"w{i}" for i in range(20)])
    small = Transformer(replace(SMALL, vocab=len(words), positions="learned", max_positions=9)).eval()
    line = " ".join(["w3"] * 30)
    assert Translator(small, words).longest == 8 and Translator(small, words, 3).longest == 3
    assert len(Translator(small, words).translate([line, "w1"])) == 2


@pytest.mark.parametrize("search", [greedy, beam_search, hypotheses])
def test_a_source_that_is_no_batch_is_refused(search):
    model = random_model("recurrent", 0)
    with pytest.raises(ValueError, match=r"source must be \(sentences, positions\), not of shape \(2,\)"):
        search(model, torch.tensor([3, 2]))
    with pytest.raises(TypeError, match="source must be a tensor of whole numbers"):
        search(model, [[3, 2]])


def test_a_longer_output_is_favoured_by_a_greater_alpha():
    model = random_model("transformer", 3, sharpen=2.0)
    source = random_sources(model, 3, B=20)
    lengths = [sum(map(len, beam_search(model, source, 4, alpha, max_len=12))) for alpha in (-1.0, 0.0, 1.0, 2.0)]
    assert lengths == sorted(lengths) and lengths[0] < lengths[1] < lengths[-1]


def test_the_model_is_left_in_the_mode_it_was_in():
    model = random_model("transformer", 0).train()
    source = random_sources(model, 0)
    assert greedy(model, source) == greedy(model, source)  # dropout was off
    assert all(part.training for part in model.modules())
    model.encoder.eval()  # as one that is frozen while the rest is tuned
    before = [part.training for part in model.modules()]
    greedy(model, source)
    assert len(set(before)) == 2 and [part.training for part in model.modules()] == before


@pytest.mark.parametrize("call", [lambda m, s: beam_search(m, s, beam=0), lambda m, s: greedy(m, s, max_len=0)])
def test_numbers_that_make_no_search_are_refused(call):
    with pytest.raises(ValueError, match="must be a whole number"):
        call(random_model("transformer", 0), torch.tensor([[3, 2]]))


@pytest.mark.parametrize("alpha", [1000, -1000, 100, -100])
def test_an_alpha_beyond_all_measure_is_refused(alpha):
    with pytest.raises(ValueError, match="penalty must be above 0 and within 1e-30..1e30, got .* for a length of 52$"):
        beam_search(random_model("transformer", 0), torch.tensor([[3, 2]]), alpha=alpha)


@pytest.mark.parametrize("worth", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("where", [1, 7])
def test_a_penalty_that_is_not_above_0_is_refused(worth, where):
    model = Watched(random_model("transformer", 0))
    with pytest.raises(ValueError, match=f"penalty must be above 0 .* length of {where}$"):
        hypotheses(model, torch.tensor([[3, 2]]), penalty=lambda n: worth if n == where else 1.0, max_len=7)
    assert model.starts == 0  # before any work
    with pytest.raises(ValueError, match="length of 53$"):  # the longer source's own limit
        source = torch.tensor([[3, 2, 0], [3, 4, 2]])
        hypotheses(model, source, penalty=lambda n: 52.5 - n)


class Stuck(nn.Module):
    "Says any word but eos with one probability, and rules everything out after so many tokens."

    config = SimpleNamespace(pad=0, bos=1, eos=2)

    def __init__(self, after):
        super().__init__()
        self.after = after

    def start(self, source):
        return torch.zeros(len(source))

    def step(self, ids, state):
        logits = torch.tensor([-math.inf, -math.inf, -math.inf, 1.0, 0.0]).repeat(len(ids), 1)
        logits[state >= self.after] = -math.inf
        return logits, state + 1


@pytest.mark.parametrize("stop", [when_full, cannot_improve])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_hypothesis_that_nothing_may_follow_ends_as_it_is(after, stop):
    source, one = torch.tensor([[4, 2], [5, 2]]), torch.tensor([1.0, 0.0]).log_softmax(0)[0].item()
    assert beam_search(Stuck(after), source, max_len=9) == [[3] * after] * 2
    for found in hypotheses(Stuck(after), source, 3, lambda length: 1 / length, max_len=9, stop=stop):
        assert found[0] == ([3] * after, pytest.approx(after * one * max(1, after)))
        assert len({tuple(ids) for ids, _ in found}) == len(found) == min(3, 2**after)


def test_pieces_are_whole_and_short_enough():
    ids = list(range(100, 130))
    kinds = [lambda ids, i: ids[i - 1] in (105, 117), lambda ids, i: ids[i] == 115]
    assert list(_split_long(ids, 10, kinds)) == [ids[:6], ids[6:15], ids[15:18], ids[18:28], ids[28:]]
    assert list(_split_long(ids, 40, ())) == [ids]
    assert list(_split_long(ids[:3], 1, kinds)) == [[100], [101], [102]]
    marks = [".", "!", "?", "。", "！", "？"]
    assert decoding._sentence_ends(Words(["a", *marks, "b"]), 3) == set(range(5, 11))


class Bar:
    def update(self, lines):
        pass


@pytest.fixture(scope="module")
def translator():
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    return Translator(random_model("transformer", 0, len(vocabulary), sharpen=1.0).float(), vocabulary, longest=20)


def test_lines_keep_their_number_and_order(translator):
    lines = ["the man", "", "sleeps the man the man", "   ", "man", "\t", "der Mann ."]
    together = translator.translate(lines, tokens=8)
    assert together == [translator.translate([line])[0] for line in lines]
    assert [bool(text) for text in together] == [bool(line.strip()) or bool(text) for line, text in zip(lines, together, strict=True)]
    assert together[1] == together[3] == together[5] == ""


def test_a_batch_of_pieces_keeps_its_budget(translator, monkeypatch):
    seen, search = [], Translator.search
    monkeypatch.setattr(Translator, "search", lambda self, batch, **how: seen.append([len(ids) for ids in batch]) or search(self, batch, **how))
    translator.translate(["the man"] * 5 + ["man"] * 3 + ["the man sleeps ."], beam=1, tokens=12)
    assert seen == [[5, 3], [3, 3, 3, 3], [2, 2, 2]]  # places, padding included: 10, 12 and 6


def test_strange_lines_give_a_line_each(translator):
    lines = ["man " * 500, "日本語のテキスト", "🙂🙃", "zero\u200bwidth", "عربي", "\x00\x07", "a" * 3000]
    assert len(translator.translate(lines, beam=1)) == len(lines)


def test_a_bar_is_shown_for_many_lines_and_where_it_is_wanted(translator, monkeypatch):
    asked = []
    monkeypatch.setattr(decoding, "tqdm", lambda **named: asked.append(named["disable"]) or nullcontext(Bar()))
    for lines, progress in ((["man"] * 101, True), (["man"] * 101, False), (["man"] * 100, True)):
        translator.translate(lines, beam=1, progress=progress)
    assert asked == [None, True, True]  # None: where stderr is a terminal


def test_the_k_best_of_a_line_in_pieces_are_joined_and_their_scores_added(translator):
    pools = [[([1], -1.0), ([2], -3.0), ([3], -9.0)], [([4], -2.0), ([5], -4.0), ([6], -9.0)]]
    assert decoding._join_pools(pools, 2, str) == [(-3.0, "[1] [4]"), (-7.0, "[2] [5]")]
    assert [len(found) for found in translator.n_best(["the man", "", "man sleeps", "the man sleeps ."], 4)] == [4, 1, 4, 4]


def test_one_string_is_refused(translator):
    with pytest.raises(TypeError, match="put it in a list"):
        translator.translate("the man")


def test_lines_may_come_from_a_generator_and_must_be_strings(translator):
    lines = ["the man", "", "sleeps"]
    assert translator.translate(line for line in lines) == translator.translate(lines)
    for wrong in (None, 3, b"man"):
        with pytest.raises(TypeError, match=f"lines must be strings, one is {type(wrong).__name__}$"):
            translator.translate(["man", wrong])


def test_lines_are_filled_up_with_the_models_own_padding():
    class Numbers:
        encode = staticmethod(lambda text: [*map(int, text.split()), 1])
        decode = staticmethod(lambda ids: " ".join(map(str, ids)))

    lines = ["3 4 5 3 4", "4", "5 3"]
    translator = Translator(random_model("other ids", 0), Numbers())
    assert translator.translate(lines) == [translator.translate([line])[0] for line in lines]


@pytest.mark.parametrize("longest", [0, -1])
def test_pieces_without_a_word_are_refused(longest, translator):
    with pytest.raises(ValueError, match="longest must be a whole number, 1 or more"):
        Translator(translator.model, translator.vocabulary, longest=longest)


@pytest.mark.parametrize("kind", ["transformer", "widths", "recurrent"])
def test_a_saved_folder_translates_the_same(kind, tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    model = random_model("transformer" if kind == "widths" else kind, 1, len(vocabulary)).float()
    if kind == "widths":  # which do not follow from the others
        model = Transformer(replace(model.config, d_k=3, d_v=7))
    save(tmp_path / "model", model, vocabulary, "About.\n")
    lines = ["the man sleeps.", "man the"]
    assert load(tmp_path / "model").translate(lines) == Translator(model, vocabulary).translate(lines)
    assert not [path for path in (tmp_path / "model").iterdir() if path.name.startswith(".")]


def test_weights_written_in_half_precision_are_read_as_float32(tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    model = random_model("transformer", 1, len(vocabulary)).float()
    save(tmp_path / "whole", model, vocabulary)
    save(tmp_path / "half", copy.deepcopy(model).half(), vocabulary)
    half, whole = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole"))
    assert abs(whole - half - 2 * sum(p.numel() for p in model.parameters())) < 64, "the headers are nearly alike"
    read = load(tmp_path / "half").model.state_dict()
    assert {value.dtype for value in read.values()} == {torch.float32}
    assert all(torch.equal(value, model.state_dict()[name].half().float()) for name, value in read.items())


def test_the_page_of_a_folder_is_utf_8_wherever_it_is_written(tmp_path, monkeypatch):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    monkeypatch.setattr(decoding.Path, "write_text", ascii_unless_told(decoding.Path.write_text))
    save(tmp_path, random_model("recurrent", 1, len(vocabulary)).float(), vocabulary, "schläft 睡\n")
    assert (tmp_path / "README.md").read_bytes() == "schläft 睡\n".encode()


def ascii_unless_told(write):
    "As in a locale that knows ASCII only."
    return lambda path, text, encoding="ascii", newline=None: write(path, text, encoding=encoding, newline=newline)


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_all_files_of_a_folder_may_be_read_by_the_same_people(tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    save(tmp_path, random_model("recurrent", 1, len(vocabulary)).float(), vocabulary)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("size", [-1, 1])
def test_a_vocabulary_of_another_size_is_refused(size, tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    model = random_model("transformer", 1, len(vocabulary)).float()
    other = Words([f"w{i}" for i in range(len(vocabulary) - 4 + size)])
    said = f"the vocabulary has {len(other)} entries and the model {len(vocabulary)} embeddings"
    with pytest.raises(ValueError, match=said):
        save(tmp_path / "model", model, other)
    apart = Transformer(replace(model.config, source_vocab=len(vocabulary) + 3))
    with pytest.raises(ValueError, match=f"the model {len(vocabulary)} and {len(vocabulary) + 3} embeddings"):
        save(tmp_path / "model", apart, vocabulary)
    assert not (tmp_path / "model").exists()
    save(tmp_path, model, vocabulary)
    other.save(tmp_path / other.filename)
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path))} .*{said}"):
        load(tmp_path)


@pytest.mark.parametrize("device", ["abacus", "cuda:99", "mps:99"])
def test_a_device_that_is_not_there_is_refused(device, tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    save(tmp_path, random_model("recurrent", 1, len(vocabulary)).float(), vocabulary)
    with pytest.raises(ValueError, match=f"^device='{device}' cannot be used here: .+$") as error:
        load(tmp_path, device)
    assert "\n" not in str(error.value)


def damage(folder, name):
    path = folder / name
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: damage(folder, "model.safetensors"),
        lambda folder: damage(folder, "config.json"),
        lambda folder: damage(folder, "words.txt"),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "words.txt").unlink(),
        lambda folder: (folder / "config.json").write_text((folder / "config.json").read_text().replace('"N": 2', '"N": 3')),
        lambda folder: (folder / "config.json").write_text((folder / "config.json").read_text().replace('"d_ff": 13', '"d_ff": 11')),
    ],
)
def test_a_damaged_folder_gives_one_line(spoil, tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    save(tmp_path, random_model("transformer", 1, len(vocabulary)).float(), vocabulary)
    spoil(tmp_path)
    with pytest.raises(ValueError) as error:
        load(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("change", [{}, {"norm": "pre", "final_norm": True, "bias": True}, {"source_vocab": 13, "activation": "gelu"}])
def test_packed_models_say_the_same(change):
    torch.manual_seed(3)
    model = Transformer(replace(TINY, vocab=17, d_model=14, h=7, d_ff=11, N=2, **change)).eval()
    for parameter in model.parameters():
        parameter.data *= 2  # far from uniform, so that rounding decides nothing
    quick, source = packed(model), torch.randint(4, 13, (5, 7))
    assert quick is not model and any(isinstance(m, _PackedLinear) for m in quick.modules())
    assert not any(type(m) is torch.nn.Linear for m in quick.modules())
    assert quick.encoder.layers[0].self_attention.attention is torch.nn.functional.scaled_dot_product_attention
    assert not any(type(m).__name__ == "LayerNorm" for m in quick.encoder.layers[0].add_norm[0].children())
    assert greedy(quick, source, max_len=9) == greedy(model, source, max_len=9)
    assert beam_search(quick, source, max_len=9) == beam_search(model, source, max_len=9)
    assert (quick.source_embedding is quick.target_embedding) == ("source_vocab" not in change)
    model.target_embedding.weight.data.zero_()
    with torch.inference_mode():
        assert quick.eval()(source, source).abs().max() > 0  # a copy: what is done to the model leaves it alone


def test_what_cannot_be_packed_is_left_alone():
    model = Transformer(replace(TINY, vocab=17, d_model=14, h=7)).double()
    assert packed(model) is model


def test_a_packed_model_can_be_copied_and_kept_and_is_not_packed_again():
    quick, source = packed(Transformer(replace(TINY, vocab=17, d_model=14, h=7, bias=True)).eval()), torch.randint(4, 13, (5, 7))
    assert any(isinstance(m, _PackedLinear) for m in quick.modules()) and packed(quick) is quick
    with torch.inference_mode():
        for other in (copy.deepcopy(quick), pickle.loads(pickle.dumps(quick))):
            assert torch.equal(other(source, source), quick(source, source))
    with pytest.raises(ValueError, match="int8 is for a model itself"):
        decoding.packed_int8(quick)


class OtherTorch:
    "Operators of torch of which one is missing, fails or computes something else."

    def __init__(self, there, name, function=None):
        self.there, self.name, self.function = there, name, function

    def __getattr__(self, name):
        if name != self.name:
            return getattr(self.there, name)
        if self.function is None:
            raise AttributeError(name)
        return self.function


def fails(*arguments):
    raise RuntimeError("not on this processor")


@pytest.mark.parametrize("name", ["_reorder_linear_weight", "_linear_pointwise"])
@pytest.mark.parametrize("function", [None, fails, lambda x, *rest: x])
def test_nothing_is_packed_where_one_operator_is_missing_fails_or_is_wrong(name, function, monkeypatch):
    model = Transformer(replace(TINY, vocab=17, d_model=14, h=7, N=1)).eval()
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    assert packed(model) is not model
    if name == "_reorder_linear_weight" and function not in (None, fails):
        function = lambda weight: weight * 0  # noqa: E731
    monkeypatch.setattr(torch.ops, "mkldnn", OtherTorch(torch.ops.mkldnn, name, function))
    assert packed(model) is model


@pytest.mark.parametrize("rows", [0, 4, 10**6])
def test_few_rows_are_multiplied_plainly_and_many_packed(rows, monkeypatch):
    if not decoding._can_pack():
        pytest.skip("nothing can be packed here")
    called = []
    product, plain = decoding._packed_product, torch.nn.functional.linear
    monkeypatch.setattr(decoding, "_plain_rows", lambda n, m: rows)
    monkeypatch.setattr(decoding, "_packed_product", lambda *given: called.append("packed") or product(*given))
    monkeypatch.setattr(decoding.F, "linear", lambda *given: called.append("plain") or plain(*given))
    weight, bias = torch.randn(7, 5), torch.randn(7)
    layer = _PackedLinear(weight, bias)
    for x in (torch.randn(4, 1, 5), torch.randn(5, 5), torch.randn(2, 0, 5)):
        called.clear()
        torch.testing.assert_close(layer(x), x @ weight.T + bias)
        assert called == ["plain" if rows and x.numel() <= 5 * rows else "packed"]
    assert (layer.plain is None) == (rows == 0), "a matrix that is never multiplied is kept"


@pytest.mark.parametrize("slow, most", [({}, 0), ({1: 1}, 1), ({1: 1, 4: 1}, 4), ({4: 1, 16: 1}, 0), ({1: 1, 4: 1, 16: 1, 64: 1}, 64)])
def test_the_rows_that_stay_plain_are_found_by_the_clock(slow, most, monkeypatch):
    "slow: of which numbers of rows the packed product is the slower one."
    def seconds(function, x, *rest):
        return slow.get(len(x), -1) if function is decoding._packed_product else 0

    monkeypatch.setattr(decoding, "_least_seconds", seconds)
    before = torch.get_rng_state()
    assert decoding._plain_rows.__wrapped__(7, 5) == most
    assert torch.equal(before, torch.get_rng_state()), "timing draws random numbers"


QUICK = pytest.mark.parametrize("quick", [packed, packed_int8], ids=lambda f: f.__name__)


def ordinary(monkeypatch):
    "Torch's own attention as other versions have it: a row that may attend to nothing gets a mean."
    def attend(Q, K, V, mask=None):
        scores = Q @ K.transpose(-2, -1) / Q.shape[-1] ** 0.5
        return (scores if mask is None else scores.masked_fill(~mask, -1e9)).softmax(-1) @ V

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)


@pytest.mark.parametrize("other", [False, True])
@QUICK
def test_a_row_that_may_look_at_nothing_stays_0_in_a_copy_for_searching(quick, other, monkeypatch):
    if other:
        ordinary(monkeypatch)
    torch.manual_seed(0)
    model = Transformer(replace(TINY, vocab=17, d_model=16, h=4, N=2)).eval()
    copy = quick(model)
    attention = copy.decoder.layers[0].cross_attention.attention
    Q, K, V = torch.randn(3, 2, 4, 5, 4)
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, 2:] = False
    found = attention(Q, K, V, mask)
    assert (found[1, :, 2:] == 0).all() and (found[0] != 0).all()
    source = torch.tensor([[5, 6, 2], [0, 0, 0]])  # a sentence of padding alone
    with torch.inference_mode():
        near = (model(source, source) - copy(source, source)).abs().max()
    assert near < (1e-4 if quick is packed else 0.3)


# ---- products of 8-bit numbers


needs_int8 = pytest.mark.skipif(not decoding._int8_bits(), reason="torch has no products of 8-bit numbers here")


@needs_int8
def test_a_weight_of_as_many_steps_as_8_bits_have_is_exact():
    weight = torch.tensor([[127.0, 1.0, -64.0], [-127.0, 3.0, 64.0]])
    torch.testing.assert_close(decoding._Int8Linear(weight)(torch.ones(2, 3)), weight.sum(1).expand(2, 2), rtol=0, atol=0.3)


@needs_int8
@pytest.mark.parametrize("shape", [(3, 11), (2, 5, 11), (4, 0, 11), (1, 1, 11)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_of_8_bit_numbers_is_near_the_plain_one(shape, has_bias):
    torch.manual_seed(0)
    weight, bias, x = torch.randn(7, 11), torch.randn(7) if has_bias else None, torch.randn(shape)
    weight[2] = 0  # a row without a scale
    weight[3] *= 1000  # which must not spoil the others
    found = decoding._Int8Linear(weight, bias)(x)
    wanted = torch.nn.functional.linear(x, weight, bias)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    size = weight.norm(dim=1) * 0.03 + 1e-6  # (7,)
    assert ((found - wanted).abs() <= size * x.abs().amax()).all() if x.numel() else True


@needs_int8
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_a_product_of_8_bit_numbers_makes_no_number_of_what_is_none(wrong):
    x = torch.randn(3, 11)
    x[1, 4] = wrong
    assert decoding._Int8Linear(torch.randn(7, 11))(x).isnan().all()


@pytest.mark.parametrize("place", range(4))
def test_a_place_that_nothing_can_fill_is_no_copy_of_a_finished_hypothesis(place):
    """One of four hypotheses has ended, one goes on by a single token: two places are left."""
    beams = decoding._Beams(torch.tensor([0]), 4, torch.tensor([9]), torch.ones(1), lambda n: 1.0)
    beams.score[0, place] = beams.log_p[0, place] = -1.0
    beams.log_p[0, [i for i in range(4) if i != place]] = torch.tensor([-2.0, -torch.inf, -torch.inf])
    log_probs = torch.full((1, 4, 5), -torch.inf)
    log_probs[..., 3] = 0.0
    for _ in range(2):
        beams.extend(log_probs, 0)
        assert beams.done.sum() == 1


DEEP = [{}, {"norm": "pre", "bias": True}, {"N_decoder": 1}, {"source_vocab": 17, "activation": "gelu"}, {"positions": "learned"}, {"output_bias": True}]


@needs_int8
@pytest.mark.parametrize("numbers", [(math.nan,), (math.inf,), (-math.inf,), (math.inf, -math.inf)])
def test_an_int8_product_of_what_is_not_finite_is_nan(numbers):
    layer = decoding._Int8Linear(torch.ones(2, 3))
    x = torch.zeros(5, 3)
    x.view(-1)[7 : 7 + len(numbers)] = torch.tensor(numbers)
    assert layer(x).isnan().all()


@needs_int8
def test_an_int8_product_of_finite_numbers_whose_sum_overflows_is_none():
    x = torch.full((5, 3), torch.finfo(torch.float32).max / 4)  # fifteen of them have no finite sum
    assert not x.sum().isfinite() and not decoding._Int8Linear(torch.ones(2, 3) / 8)(x).isnan().any()


@needs_int8
@pytest.mark.parametrize("change", DEEP)
def test_every_product_of_an_int8_copy_is_of_8_bit_numbers_and_the_model_is_left_alone(change):
    torch.manual_seed(3)
    model = Transformer(replace(TINY, vocab=31, d_model=32, h=4, d_ff=64, N=2, **change)).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copy, source = packed_int8(model), torch.randint(4, 17, (5, 7))
    kinds = {type(part) for part in copy.modules()}
    assert decoding._Int8Linear in kinds and not {torch.nn.Linear, _PackedLinear} & kinds
    assert isinstance(copy.target_embedding.logits, decoding._Int8Linear)
    assert (copy.source_embedding is copy.target_embedding) == ("source_vocab" not in change)
    with torch.inference_mode():
        logits, expected = copy(source, source), model(source, source)
    assert 0 < (logits - expected).abs().max() < 0.1 * expected.abs().max()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert len(greedy(copy, source, max_len=5)) == len(beam_search(copy, source, max_len=5)) == 5
    assert beam_search(copy, source, beam=1, max_len=9) == greedy(copy, source, max_len=9)


@needs_int8
def test_a_trained_model_says_about_the_same_with_8_bit_numbers():
    root = Path(__file__).parents[1] / "results" / "grammar-tiny"
    lines = ["The dog sees the cat.", "", "The old woman sees the cat because she sleeps."]
    plain, quick = load(root), load(root, int8=True)
    assert quick.translate(lines) == plain.translate(lines) and quick.translate(lines, beam=1) == plain.translate(lines, beam=1)
    scores = [[score for score, _ in found.n_best(lines[:1], 4)[0]] for found in (plain, quick)]
    assert scores[0] != scores[1], "not a product was of 8-bit numbers"


def test_int8_is_refused_in_one_line_where_it_cannot_be(monkeypatch):
    small, words = replace(TINY, vocab=17, d_model=14, h=7, N=1), Words([f"w{i}" for i in range(13)])
    recurrent = RecurrentSeq2Seq(RecurrentConfig(17, d_model=10))
    for model, why in ((recurrent, "Transformer, got RecurrentSeq2Seq"), (Transformer(small).double(), "float32 on a CPU"), (Transformer(small).to("meta"), "float32 on a CPU")):
        with pytest.raises(ValueError, match=f"int8 .*{why}") as caught:
            Translator(model, words, int8=True)
        assert "\n" not in str(caught.value)
    if decoding._int8_bits():
        model = Transformer(small)
        model.decoder.layers[0].self_attention.W_Q.weight.data[0, 0] = math.nan
        with pytest.raises(FloatingPointError, match="not finite"):
            packed_int8(model)


def other_quantized(name, function, monkeypatch):
    monkeypatch.setattr(torch.ops, "quantized", OtherTorch(torch.ops.quantized, name, function))


@pytest.mark.parametrize("lacks", ["linear_prepack", "linear_dynamic", "quantize_per_channel", "engine", "sums"])
def test_int8_is_refused_where_torch_lacks_an_operator_or_computes_wrongly(lacks, monkeypatch):
    if lacks == "quantize_per_channel":
        monkeypatch.delattr(torch, lacks)
    elif lacks == "sums":
        other_quantized("linear_dynamic", lambda x, weight, short: torch.full((3, 8), 33.0), monkeypatch)
    elif lacks == "engine":
        other_quantized("linear_prepack", fails, monkeypatch)
    else:
        other_quantized(lacks, None, monkeypatch)
    monkeypatch.setattr(decoding, "_int8_bits", decoding._int8_bits.__wrapped__)
    with pytest.raises(ValueError, match=r"int8 cannot be used: torch .* for this processor"):
        packed_int8(Transformer(replace(TINY, vocab=17, d_model=14, h=7, N=1)))


def test_inputs_have_7_bits_where_sums_of_8_overflow(monkeypatch):
    def saturates(x, weight, short=False):
        calls.append(short)
        return torch.full((*x.shape[:-1], 8), 65.0 if short else 33.0)

    calls = []
    other_quantized("linear_dynamic", saturates, monkeypatch)
    other_quantized("linear_prepack", lambda weight, bias: None, monkeypatch)
    monkeypatch.setattr(torch, "quantize_per_channel", lambda *given: None)
    monkeypatch.setattr(decoding, "_int8_bits", decoding._int8_bits.__wrapped__)
    assert decoding._int8_bits() == 7
    decoding._Int8Linear(torch.ones(8, 4))(torch.ones(2, 4))
    assert calls[-1] is True


@needs_int8
def test_a_search_of_8_bit_numbers_that_overflows_ends_as_any_other():
    model = Transformer(replace(TINY, vocab=17, d_model=16, h=4, N=1)).eval()
    with torch.no_grad():
        model.target_embedding.weight.fill_(3e38)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        greedy(packed_int8(model), torch.tensor([[5, 2]]))


def test_a_width_that_an_older_folder_has_worked_out_follows_again():
    config = load(Path(__file__).parents[1] / "results" / "grammar-tiny").model.config
    assert config.d_k is config.d_v is None
    assert replace(config, d_model=2 * config.d_model).key_width == 2 * config.key_width


# ---- what no model in order gives, and what no machine holds


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("search", [greedy, beam_search, hypotheses])
@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_logits_that_are_not_finite_end_a_search(search, value, kind):
    model = random_model(kind, 0)
    source = random_sources(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        search(model, source)


class Counting(list):
    "A list that counts the identifiers that are read of it."

    read = 0

    def __getitem__(self, place):
        found = super().__getitem__(place)
        Counting.read += len(found) if isinstance(place, slice) else 1
        return Counting(found) if isinstance(place, slice) else found


def test_a_long_line_is_cut_in_linear_time():
    counts = []
    for n in (10_000, 20_000):
        Counting.read = 0
        pieces = list(decoding._split_long(Counting(range(n)), 200, [lambda ids, i: ids[i] == 7]))
        assert sum(pieces, []) == list(range(n)) and max(map(len, pieces)) <= 200
        counts.append(Counting.read)
    assert counts[1] <= 2.1 * counts[0]


def test_half_a_letter_costs_its_own_line_only(tmp_path):
    class Vocabulary(Words):
        def encode(self, text):
            text.encode("utf-8")  # as SentencePiece does
            return super().encode(text)

    torch.manual_seed(0)
    model = Transformer(replace(TINY, vocab=6, d_model=8, h=2, d_ff=8, N=1))
    translator = Translator(model, Vocabulary(["a", "b"]))
    found = translator.translate(["a b", "a \ud800 b", "b"], beam=1)
    assert found[0] == translator.translate(["a b"], beam=1)[0] and found[2] == translator.translate(["b"], beam=1)[0]


def test_a_small_folder_that_asks_for_much_is_refused_by_the_header(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = Transformer(replace(TINY, vocab=6, d_model=8, h=2, d_ff=8, N=1))
    save(tmp_path, model, Words(["a", "b"]))
    whole = json.loads((tmp_path / "config.json").read_text())
    load(tmp_path)
    made = []
    monkeypatch.setitem(decoding._KINDS, "Transformer", (lambda config: made.append(torch.empty(0).device.type) or Transformer(config), Config))
    for change, why in (({"d_ff": 2**30}, "has the shape"), ({"N": 10**6}, "layers cannot be made of"), ({"N_decoder": 10**9}, "layers cannot"),
                        ({"d_model": 2**30, "d_k": 4, "d_v": 4}, ""), ({"bias": True}, "is missing"), ({"vocab": 4 * 10**7}, "embeddings")):
        (tmp_path / "config.json").write_text(json.dumps({**whole, "config": whole["config"] | change}))
        with pytest.raises(ValueError, match=f"holds no model that fits its config.json: .*{why}"):
            load(tmp_path)
    assert "cpu" not in made, "the model was made before its header was read"
    monkeypatch.setattr(decoding, "_machine_memory", lambda: 1000)
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"takes 0\.0 GB of memory, and this machine has 0\.0"):
        load(tmp_path)
    wanted = 3 * 4 * sum(p.numel() for p in model.parameters())  # the model, and its copy for searching
    monkeypatch.setattr(decoding, "_machine_memory", lambda: wanted)
    load(tmp_path)
    monkeypatch.setattr(decoding, "_machine_memory", lambda: wanted - 1)
    with pytest.raises(ValueError, match="of memory, and this machine has"):
        load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system does not say")
def test_the_memory_is_the_machines_or_what_it_lets_a_process_have(monkeypatch):
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for said, found in (("max\n", whole), ("12345\n", 12345), (f"{whole + 1}\n", whole)):
        monkeypatch.setattr(decoding.Path, "read_text", lambda path, said=said: said)
        assert decoding._machine_memory() == found


@pytest.mark.parametrize("change", [[], None, {"kind": "Other"}, {"kind": 3}, {"config": []}, {"config": {"h": 0}}, {"config": {"d_model": "8"}}])
def test_a_configuration_of_wrong_kinds_is_one_line(change, tmp_path):
    save(tmp_path, Transformer(replace(TINY, vocab=6, d_model=8, h=2, d_ff=8, N=1)), Words(["a", "b"]))
    whole = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**whole, **change} if isinstance(change, dict) else change))
    with pytest.raises(ValueError) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_beam_beyond_all_measure_is_refused():
    model = random_model("transformer", 0)
    with pytest.raises(ValueError, match="beam must be a whole number from 1 to 100000, got"):
        beam_search(model, random_sources(model, 0), beam=2**70)


@pytest.mark.parametrize("call, name", [
    (lambda m, s: beam_search(m, s, beam="x"), "beam"), (lambda m, s: beam_search(m, s, beam=2.5), "beam"),
    (lambda m, s: greedy(m, s, "x"), "max_len"), (lambda m, s: greedy(m, s, 2.5), "max_len"),
    (lambda m, s: Translator(m, ABC, longest=2.5), "longest"), (lambda m, s: Translator(m, ABC).n_best(["a"], 1, beam="4"), "beam"),
    (lambda m, s: Translator(m, ABC).n_best(["a"], 0), "k"), (lambda m, s: Translator(m, ABC).n_best(["a"], -1), "k"),
])
def test_what_is_no_number_or_too_small_is_named(call, name):
    model = random_model("transformer", 0)
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        call(model, random_sources(model, 0))


# ---- lines that are longer than the model reads


def test_only_marks_end_a_sentence_where_pieces_are_parts_of_words():
    "With subwords a mark is written as a space and the mark: the space ends nothing."
    translator = decoding.load(ROOT / "results" / "tatoeba-cpu")
    vocabulary, unk = translator.vocabulary, translator.model.config.unk
    ends = decoding._sentence_ends(vocabulary, unk)
    assert {vocabulary.decode([i]).strip() for i in ends} == {".", "!", "?"}
    translator.longest = 40
    text = "Tom has 3 dogs and (he says) 5 cats, and a parrot that talks. " * 6
    pieces = translator.cut(text)
    said = [vocabulary.decode(piece[:-1]).strip() for piece in pieces]
    assert len(pieces) > 3 and all(one.endswith(".") for one in said)
    assert " ".join(said) == " ".join(text.split()) and all(len(piece) <= 41 for piece in pieces)


@pytest.mark.parametrize("text, joint", [
    ("It was about 3.50 dollars and " * 9, " "), ("Mr.Smith said so! And " * 9, " "), ("It costs 漢字 and " * 9, " "),
    ("漢字" * 40, ""), ("それは犬。" * 20, ""), ("Donaudampfschiff" * 20, ""),
], ids=["number", "within", "words", "characters", "wide marks", "one word"])
def test_a_long_line_is_cut_between_words_else_between_characters(text, joint):
    translator = decoding.load(ROOT / "results" / "tatoeba-cpu")
    translator.longest = 23
    pieces = translator.cut(text)
    said = [translator.vocabulary.decode(piece[:-1]) for piece in pieces]
    assert len(said) > 3 and all(len(piece) <= 24 for piece in pieces)
    assert joint.join(said) == " ".join(text.split())  # no number, word or character is divided


def test_the_mark_of_a_file_within_lines_is_no_word():
    translator = decoding.load(ROOT / "results" / "tatoeba-cpu")
    assert translator.cut("\ufeffHello.\ufeff") == translator.cut("Hello.")
    assert translator.cut("\ufeff") == []


# ---- a folder that held another model


def test_weights_that_may_not_be_read_are_not_called_absent(tmp_path, monkeypatch):
    decoding.save(tmp_path, Transformer(replace(TINY, vocab=9)), Words(["a", "b", "c", "d", "e"]))

    def locked(path, *arguments, **options):
        if str(path).endswith("model.safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, *arguments, **options)

    monkeypatch.setattr(decoding, "open", locked, raising=False)  # root may read anything
    with pytest.raises(PermissionError, match="model.safetensors"):
        decoding.load(tmp_path)


@pytest.mark.parametrize("tokens", [0, -1, 100.5, True])
def test_tokens_of_a_batch_are_counted_in_whole_numbers(tokens):
    translator = decoding.Translator(Transformer(replace(TINY, vocab=9)), Words(["a", "b", "c", "d", "e"]))
    for lines in (["a b"], []):
        with pytest.raises(ValueError, match="tokens must be a whole number, 1 or more"):
            translator.translate(lines, tokens=tokens)
    with pytest.raises(ValueError, match="beam must be a whole number"):
        translator.translate(["a b"], beam=True)


def test_a_save_that_fails_leaves_the_older_model(tmp_path, monkeypatch):
    old, words = Transformer(replace(TINY, vocab=9)), Words(["a", "b", "c", "d", "e"])
    decoding.save(tmp_path, old, words)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoding, "save_model", full)
    with pytest.raises(OSError, match="No space"):
        decoding.save(tmp_path, Transformer(replace(TINY, vocab=9)), Words(["v", "w", "x", "y", "z"]))
    again = decoding.load(tmp_path)
    assert again.vocabulary.words == words.words
    torch.testing.assert_close(again.model.state_dict(), old.state_dict())


@pytest.mark.parametrize("about", ["text \udce9", {"licence": "free"}], ids=["no UTF-8", "no text"])
def test_a_page_that_cannot_be_written_costs_no_model(about, tmp_path):
    model, words = Transformer(replace(TINY, vocab=9)), Words(["a", "b", "c", "d", "e"])
    decoding.save(tmp_path, model, words, "the first")
    with pytest.raises((TypeError, ValueError), match="about must be|utf-8"):
        decoding.save(tmp_path, Transformer(replace(TINY, vocab=9)), words, about)
    torch.testing.assert_close(decoding.load(tmp_path).model.state_dict(), model.state_dict())
    assert (tmp_path / "README.md").read_text() == "the first"


@pytest.mark.parametrize("at", ["words.txt", "model.safetensors", "README.md", "config.json"])
def test_an_interrupted_save_keeps_a_vocabulary_to_go_on_with(at, tmp_path, monkeypatch):
    model, words = Transformer(replace(TINY, vocab=9)), Words(["a", "b", "c", "d", "e"])
    decoding.save(tmp_path, model, words)
    plain = files.fsync

    def interrupted(path):
        if at in Path(path).name:
            raise KeyboardInterrupt
        plain(path)

    monkeypatch.setattr(files, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoding.save(tmp_path, model, words)
    assert decoding.load_vocabulary(tmp_path).words == words.words
    whole = at == "words.txt"  # nothing was replaced; later, old weights could be read with a new vocabulary
    assert (tmp_path / "config.json").exists() == whole
    monkeypatch.undo()
    decoding.save(tmp_path, model, words)
    torch.testing.assert_close(decoding.load(tmp_path).model.state_dict(), model.state_dict())


def test_an_attention_that_no_file_keeps_is_not_saved(tmp_path):
    def shifted(Q, K, V, mask=None, dropout=0.0):
        return scaled_dot_product_attention(Q + 1, K, V, mask, dropout)

    for attention in (shifted, torch.nn.functional.scaled_dot_product_attention):
        for P_drop in (0.0, 0.3):
            config = replace(TINY, vocab=9, P_drop_attention=P_drop)
            call = partial(decoding.save, tmp_path / "model", Transformer(config, attention), Words(["a", "b", "c", "d", "e"]))
            if attention is shifted:
                with pytest.raises(ValueError, match="^the model's attention is not scaled_dot_product_attention"):
                    call()
                assert not (tmp_path / "model").exists()
            else:
                call()
    def near(Q, K, V, mask=None, dropout=0.0):
        "Only neighbours up to ten positions away."
        seen = torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool).triu(-10).tril(10)
        return scaled_dot_product_attention(Q, K, V, seen if mask is None else mask & seen, dropout)

    def unmasked(Q, K, V, mask=None, dropout=0.0):
        return scaled_dot_product_attention(Q, K, V, None, dropout)

    def without_masks(Q, K, V):
        return scaled_dot_product_attention(Q, K, V)

    for attention in (near, unmasked, without_masks):
        with pytest.raises(ValueError, match="^the model's attention is not scaled_dot_product_attention"):
            decoding.save(tmp_path / "model", Transformer(replace(TINY, vocab=9), attention), Words(["a", "b", "c", "d", "e"]))
    half = Transformer(replace(TINY, vocab=9), torch.nn.functional.scaled_dot_product_attention).half()
    decoding.save(tmp_path / "half", half, Words(["a", "b", "c", "d", "e"]))


def test_a_penalty_may_be_a_function_of_numbers_alone():
    model, source = random_model("transformer", 0), torch.tensor([[3, 2, 0], [3, 4, 2]])
    of_numbers, of_tensors = (hypotheses(model, source, 2, penalty) for penalty in (math.sqrt, lambda n: n**0.5))
    assert [[ids for ids, _ in found] for found in of_numbers] == [[ids for ids, _ in found] for found in of_tensors]


def test_a_vocabulary_of_the_other_kind_does_not_stay(tmp_path):
    subwords = decoding.load(ROOT / "results" / "tatoeba-cpu").vocabulary
    decoding.save(tmp_path, Transformer(replace(TINY, N=1, vocab=len(subwords))), subwords)
    words = Words(["a", "b", "c"])
    decoding.save(tmp_path, Transformer(replace(TINY, vocab=7)), words)
    assert decoding.load(tmp_path).vocabulary.words == words.words
    assert not (tmp_path / subwords.filename).exists()


# ---- what others bring: subclasses, modules of their own, numbers of numpy


class Own(Transformer):
    pass


class Adapted(nn.Linear):
    "A layer that does more than its base class, as adapters do."

    def forward(self, x):
        return super().forward(x) + 3 * x.flip(-1)


class Foreign(nn.Module):
    "A module with start, step and config that reads a layer's weight itself."

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(vocab=9, pad=0, bos=1, eos=2, unk=3)
        self.inner = nn.Transformer(6, 2, 1, 1, 5, batch_first=True)
        self.out = nn.Linear(6, 9)

    def start(self, source):
        return self.inner.encoder(torch.nn.functional.embedding(source, self.out.weight))

    def step(self, ids, memory):
        x = torch.nn.functional.embedding(ids[:, None], self.out.weight)
        return self.out(self.inner.decoder(x, memory)[:, -1]), memory


@pytest.mark.parametrize("wrong", ["subclass", "packed", "adapter", "vocabulary"])
def test_what_could_not_be_loaded_is_refused_before_a_model_is_lost(wrong, tmp_path):
    words = Words.build([("a b c", "d")])
    config = replace(TINY, N=1, d_model=14, h=7, d_ff=5, vocab=len(words))
    model = Transformer(config)
    save(tmp_path, model, words, "ours")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other, vocabulary = Transformer(config), words
    if wrong == "subclass":
        other = Own(config)
    if wrong == "packed":
        if not decoding._can_pack():
            pytest.skip("nothing can be packed here")
        other = Translator(other, words).quick
    if wrong == "adapter":
        other.register_parameter("more", nn.Parameter(torch.zeros(3)))
    if wrong == "vocabulary":
        vocabulary = ["a", "b", "c", "d", "e", "f", "g", "h"][: len(words)]
        assert len(vocabulary) == len(words)
    with pytest.raises((TypeError, ValueError)) as caught:
        save(tmp_path, other, vocabulary)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_readme_that_is_there_stays_unless_another_is_given(tmp_path):
    words = Words.build([("a b c", "d")])
    model = Transformer(replace(TINY, N=1, d_model=14, h=7, d_ff=5, vocab=len(words)))
    (tmp_path / "README.md").write_bytes(b"pr\xe9cieux\r\n")  # not UTF-8
    save(tmp_path, model, words)
    assert (tmp_path / "README.md").read_bytes() == b"pr\xe9cieux\r\n"
    save(tmp_path, model, words, "other")
    assert (tmp_path / "README.md").read_text() == "other"
    save(tmp_path, model, words)  # it said something of the model before
    assert (tmp_path / "README.md").read_text() == ""


def test_a_layer_that_does_more_than_its_base_class_is_not_exchanged():
    torch.manual_seed(0)
    model = Transformer(replace(TINY, N=1, d_model=14, h=7, d_ff=14, vocab=17, P_drop=0.0)).eval()
    network = model.encoder.layers[0].feed_forward
    network.W_1 = Adapted(14, 14)
    network.W_2.forward = lambda x, plain=network.W_2: -nn.Linear.forward(plain, x)
    source = torch.randint(4, 17, (3, 5))
    with torch.inference_mode():
        torch.testing.assert_close(packed(model)(source, source), model(source, source))
    assert type(packed(model).encoder.layers[0].feed_forward.W_1) is Adapted


def test_a_module_of_another_kind_translates_as_it_is():
    torch.manual_seed(1)
    model, words = Foreign().eval(), Words.build([("a b c d", "e")])
    assert len(words) == 9
    ids = greedy(model, torch.tensor([words.encode("a b")]), max_len=None)
    assert Translator(model, words).translate(["a b"], beam=1) == [words.decode(ids[0])]
    with pytest.raises(ValueError, match="int8 is for a Transformer, got Foreign"):
        Translator(model, words, int8=True)


def test_a_beam_may_be_a_number_of_numpy():
    model = random_model("transformer", 0)
    source = random_sources(model, 0)
    assert beam_search(model, source, beam=np.int64(3), max_len=4) == beam_search(model, source, beam=3, max_len=4)


@pytest.mark.parametrize("beam", [1, 50])
def test_short_lines_and_wide_beams_stay_within_memory(beam, monkeypatch):
    words = Words.build([("a b c", "d")])
    model = Transformer(replace(TINY, N=1, d_model=14, h=7, d_ff=5, vocab=len(words))).eval()
    translator, seen = Translator(model, words), []
    model.config.__dict__["vocab"] = 2**20  # as if there were so many scores a hypothesis
    monkeypatch.setattr(translator, "search", lambda batch, beam, alpha: seen.append(len(batch)) or [[([], 0.0)]] * len(batch))
    translator.translate(["a"] * 300, beam=beam)
    assert sum(seen) == 300 and max(seen) == 2**27 // (beam * 2**20)


def test_a_state_of_unknown_form_is_refused():
    rows, part = torch.tensor([1, 0]), torch.tensor([[3], [5]])
    pair = namedtuple("pair", "a b")(part, None)
    assert _select(pair, rows).a.tolist() == _select({"a": [part]}, rows)["a"][0].tolist() == [[5], [3]]
    assert _select((None, 7), rows) == (None, 7)
    with pytest.raises(TypeError, match=r"a method select\(rows\); this is a SimpleNamespace"):
        _select(SimpleNamespace(part=part), rows)


def test_a_translator_takes_a_module_without_weights():
    model = Stuck(after=3)
    model.config = SimpleNamespace(pad=0, bos=1, eos=2, unk=3, vocab=5)
    assert Translator(model, Words(["a"])).translate(["a"], beam=1) == ["<unk> <unk> <unk>"]


@pytest.mark.parametrize("int8", [False, True])
def test_a_translator_can_be_pickled(int8):
    "A pool of processes gets its own; packed weights stay where they were packed."
    ours = load(ROOT / "results/grammar-tiny", int8=int8)
    again = pickle.loads(pickle.dumps(ours))
    lines = ["The dog sees the cat.", "She sleeps."]
    assert again.translate(lines) == ours.translate(lines) and again.int8 == int8
    assert pickle.loads(pickle.dumps(Translator(ours.model, ours.vocabulary, longest=7))).longest == 7


def test_an_empty_translation_leaves_no_space():
    assert [decoding._join_texts(parts) for parts in (["a", "", "c"], ["", "a"], [])] == ["a c", "a", ""]


def test_short_lines_are_no_more_than_their_keys_and_values_let_them_be():
    one, tall = replace(TINY, vocab=40_000), replace(TINY, vocab=8000, N=6, d_model=512, h=8)
    assert decoding._most_rows(4, tall, 1) == 2**28 // (4 * 51 * 6 * 8 * 128) < 2**27 // (4 * 8000)
    assert decoding._most_rows(4, one, 1) == 2**27 // (4 * one.vocab)


def test_a_model_with_other_markers_than_the_vocabulary_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="the model's configuration .0, 1, 5, 3"):
        save(tmp_path / "model", Transformer(replace(TINY, vocab=9, eos=5)), Words("abcde"))
    assert not (tmp_path / "model").exists()


def test_a_disk_that_is_full_at_the_last_moment_keeps_the_old_model(tmp_path, monkeypatch):
    words = Words("abcde")
    save(tmp_path, Transformer(replace(TINY, vocab=9)), words)

    def full(path):
        if "safetensors" in str(path):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(decoding, "fsync", full)
    with pytest.raises(OSError):
        save(tmp_path, Transformer(replace(TINY, vocab=9)), words)
    load(tmp_path)


@pytest.mark.parametrize("lack", [MemoryError(), ModuleNotFoundError("a package"), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_lack_of_memory_is_no_damage(monkeypatch, lack):
    def full(*_):
        raise lack

    monkeypatch.setattr(decoding, "load_model", full)
    with pytest.raises(type(lack), match=str(lack)[-10:] or None):
        load(ROOT / "results/grammar-tiny")


def test_keys_and_values_of_other_widths_and_depths_are_counted_as_they_are():
    wide = replace(TINY, vocab=8000, N=6, N_decoder=2, d_model=512, h=8, d_k=64, d_v=256)
    assert decoding._most_rows(4, wide, 1) == 2**28 // (4 * 51 * 2 * 8 * (64 + 256))


def test_a_loaded_model_drops_nothing():
    assert not any(part.training for part in load(ROOT / "results/grammar-tiny").model.modules())


def test_a_translator_divides_by_the_penalty_that_is_asked_for():
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    translator = Translator(random_model("transformer", 3, len(vocabulary), sharpen=2.0).float(), vocabulary)
    lines, found = ["the man", "sleeps the man the man", "man", "der Mann .", "schläft", "the der man sleeps ."], {}
    for alpha in (-1.0, 0.0, 2.0):
        penalty = partial(length_penalty, alpha=alpha)
        pools = [hypotheses(translator.model, torch.tensor(translator.cut(line)), 4, penalty)[0] for line in lines]
        found[alpha] = translator.translate(lines, alpha=alpha)
        assert found[alpha] == [vocabulary.decode(pool[0][0]) for pool in pools]
        scores = [[score for score, _ in best] for best in translator.n_best(lines, 4, alpha=alpha)]
        assert sum(scores, []) == pytest.approx([score for pool in pools for _, score in pool], rel=1e-4)
    assert found[-1.0] != found[2.0]


def test_the_penalty_is_the_published_one():
    assert [length_penalty(n) for n in (1, 7, 55)] == pytest.approx([1.0, 2**0.6, 10**0.6])
    assert length_penalty(7, 2.0) == 4.0 and length_penalty(7, 0.0) == 1.0


# ---- a model that is not what its configuration says


def saved_model(kind="transformer", **change):
    "A model and a vocabulary that fit each other, random weights, dropout everywhere."
    torch.manual_seed(0)
    words = Words([f"w{i}" for i in range(16)])
    if kind == "recurrent":
        return RecurrentSeq2Seq(RecurrentConfig(len(words), d_model=10)), words
    config = Config(N=2, d_model=16, d_ff=32, h=2, vocab=len(words), P_drop=0.3, P_drop_attention=0.2, P_drop_ffn=0.1)
    return Transformer(replace(config, **change)), words


def part_embeddings(model):
    model.source_embedding = copy.deepcopy(model.target_embedding)


def share_embeddings(model):
    model.source_embedding = model.target_embedding


def share_layers(model):
    model.encoder.layers[1] = model.encoder.layers[0]


def share_numbers(model):
    "Two parameters of one storage."
    model.encoder.layers[1].feed_forward.W_1.weight.data = model.encoder.layers[0].feed_forward.W_1.weight.data


@pytest.mark.parametrize("change, config, said", [
    (share_layers, {}, "encoder.layers.0.* and encoder.layers.1.* must be two tensors"),
    (share_numbers, {}, "encoder.layers.0.* and encoder.layers.1.* must be two tensors"),
    (share_embeddings, {"source_vocab": 20}, "source_embedding.weight and target_embedding.weight must be two tensors"),
    (part_embeddings, {}, "source_embedding.weight and target_embedding.weight must be one tensor"),
], ids=lambda given: getattr(given, "__name__", None))
def test_weights_that_are_shared_otherwise_cost_no_older_model(change, config, said, tmp_path):
    model, words = saved_model(**config)
    save(tmp_path, model, words, "ours")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    change(model)
    with pytest.raises(ValueError, match=f"^the model is not what its configuration makes: .*{said}; keep its state_dict$"):
        save(tmp_path, model, words)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    load(tmp_path)


class Cosine(MultiHeadAttention):
    "Attention by the cosine of queries and keys, with the weights of the other."

    def attend(self, x, K, V, mask=None):
        Q = nn.functional.normalize(self.split(self.W_Q(x)), dim=-1)
        heads = self.attention(9 * Q, nn.functional.normalize(K, dim=-1), V, mask)
        return self.W_O(heads.transpose(1, 2).flatten(2))


class Backwards(MultiHeadAttention):
    def forward(self, x, memory, mask=None):
        return -super().forward(x, memory, mask)


class Unscaled(MultiHeadAttention):
    def keys_values(self, memory):
        K, V = super().keys_values(memory)
        return 2 * K, V


class Interleaved(MultiHeadAttention):
    def split(self, x):
        return x.unflatten(-1, (-1, self.h)).movedim(-1, 1)


ATTENTIONS = [Cosine, Backwards, Unscaled, Interleaved]


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_a_subclass_that_attends_in_another_way_is_seen(kind, tmp_path):
    model, words = saved_model()
    module = model.decoder.layers[1].cross_attention
    assert decoding._is_dot_product(module) and module.training
    module.__class__ = kind
    assert not decoding._is_dot_product(module) and module.training
    with pytest.raises(ValueError, match="^the model's attention is not scaled_dot_product_attention"):
        save(tmp_path / "model", model, words)
    module.__class__ = MultiHeadAttention
    module.attend = lambda x, *rest: x  # of one module only
    assert not decoding._is_dot_product(module)


@pytest.mark.parametrize("faster", [fuse, join_projections, lambda net: CPUObjective(net).model, lambda net: UnpaddedObjective(net).model],
                         ids=["fused", "joint", "packed", "unpadded"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_faster_version_of_a_model_is_saved(faster, dtype, norm, tmp_path):
    model, words = saved_model(norm=norm)
    state = {name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    model = faster(model.to(dtype))
    before = torch.get_rng_state()
    assert all(map(decoding._is_dot_product, (m for m in model.modules() if isinstance(m, MultiHeadAttention))))
    save(tmp_path, model, words)
    assert model.training and all(part.training for part in model.modules())
    assert torch.equal(torch.get_rng_state(), before)
    found = load(tmp_path).model.state_dict()
    assert all(torch.equal(found[name], tensor.float()) for name, tensor in state.items())


def other_activation(model):
    model.encoder.layers[0].feed_forward.activation = nn.functional.gelu


def other_positions(model):
    model.positions = partial(halves_encoding, d_model=model.config.d_model)


def other_order(model):
    model.encoder.layers[0].add_norm[0].__class__ = PreNorm


def other_eps(model):
    model.decoder.layers[-1].add_norm[-1].norm.eps = 0.5


def other_output(model):
    model.decoder.register_forward_hook(lambda module, given, made: -made)


def other_gru(model):
    model.encoder.register_forward_pre_hook(lambda module, given: (given[0]._replace(data=2 * given[0].data), *given[1:]))


OTHERS = [(change, "transformer") for change in (other_activation, other_positions, other_order, other_eps, other_output)]


@pytest.mark.parametrize("change, kind", [*OTHERS, (other_gru, "recurrent")], ids=lambda given: getattr(given, "__name__", given))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_model_that_computes_something_else_is_not_saved(change, kind, dtype, tmp_path):
    model, words = saved_model(kind)
    model.to(dtype)
    save(tmp_path, model, words)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    change(model)
    with pytest.raises(ValueError, match="^the model computes something else than its configuration says, .*keep its state_dict, and the code$"):
        save(tmp_path, model, words)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before and model.training


@pytest.mark.parametrize("change", [
    {"positions": "learned", "max_positions": 3}, {"source_vocab": 20, "output_bias": True, "bias": True}, {"positions": "halves", "activation": "swish"},
    {"d_k": 3, "d_v": 7, "N_decoder": 1},
], ids=str)
def test_every_configuration_is_what_it_says(change, tmp_path):
    model, words = saved_model(**change)
    assert decoding._computes_its_config(model)
    save(tmp_path, model, words)
    if model.config.output_bias:  # one logit that is far from all others hides no difference
        model.output_bias.bias.data[0] = -1e4
        assert decoding._computes_its_config(model)
        other_activation(model)
        assert not decoding._computes_its_config(model)


def test_a_model_that_cannot_be_tried_is_saved(tmp_path):
    "As one whose kernels want more than a few words, or one that is damaged."
    def at_least(Q, K, V, mask=None, dropout=0.0):
        if K.shape[-2] < 9:
            raise RuntimeError("no kernel for so few keys")
        return scaled_dot_product_attention(Q, K, V, mask, dropout)

    model, words = saved_model(P_drop_attention=0.0)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.attention = at_least
    save(tmp_path / "few", model, words)
    model, words = saved_model()
    model.decoder.layers[0].feed_forward.W_1.weight.data[0, 0] = math.nan
    save(tmp_path / "damaged", model, words)
    assert load(tmp_path / "damaged").model.decoder.layers[0].feed_forward.W_1.weight[0, 0].isnan()


# ---- hooks, vocabularies of other models, lines without a letter


@pytest.mark.parametrize("quick", [packed, pytest.param(packed_int8, marks=needs_int8)])
def test_a_copy_for_searching_calls_the_hooks_of_its_layers(quick):
    model, _ = saved_model()
    model.eval()
    layer, norm = model.decoder.layers[1].feed_forward.W_2, model.decoder.layers[1].add_norm[2].norm
    layer.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    norm.register_forward_hook(lambda module, given, made: made.flip(-1))
    source = torch.randint(4, 20, (3, 5))
    near = {packed: 1e-4, packed_int8: 0.5}[quick]
    with torch.inference_mode():
        torch.testing.assert_close(quick(model)(source, source), model(source, source), atol=near, rtol=0)


@pytest.mark.parametrize("size", [-1, 1])
def test_a_translator_refuses_a_vocabulary_of_another_size_or_with_other_markers(size):
    model, words = saved_model()
    other = Words([f"w{i}" for i in range(16 + size)])
    with pytest.raises(ValueError, match=f"^the vocabulary has {20 + size} entries and the model 20 embeddings"):
        Translator(model, other)
    subwords = load(ROOT / "results" / "tatoeba-cpu").vocabulary
    with pytest.raises(ValueError, match=f"^the vocabulary has {len(subwords)} entries"):
        Translator(model, subwords)
    with pytest.raises(ValueError, match=r"has pad, bos, eos, unk = \(0, 1, 2, 3\), and the model's configuration \(0, 1, 5, 3\)$"):
        Translator(saved_model(eos=5)[0], words)
    Translator(model, SimpleNamespace(encode=words.encode, decode=words.decode))  # of which nobody knows


INVISIBLE = ["\u200b", "\ufeff", " \u200b\t\u2060 ", "\x00\x07", "\u00ad", "\u3000"]


@pytest.mark.parametrize("line", INVISIBLE, ids=ascii)
def test_a_line_of_invisible_characters_is_an_empty_one(translator, line):
    assert translator.cut(line) == []
    assert translator.translate([line, "man"]) == ["", translator.translate(["man"])[0]]
    assert translator.n_best([line], 2) == translator.n_best([""], 2)
    assert translator.cut(f"{line}man") and translator.cut("\ud800")  # half a letter is shown as a sign


def test_a_model_with_a_part_that_is_absent_can_be_packed():
    model = Transformer(replace(SMALL, vocab=VOCAB)).eval()
    model.register_module("spare", None)
    assert packed(model).spare is None


def test_a_sentence_beyond_the_memory_meant_for_a_batch_is_searched_alone():
    assert decoding._most_rows(100_000, BASE, 200) == 1
