"""Search: what beam search promises, over random models of both kinds in float64."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from annotated.data import Words
from annotated.decoding import (
    Translator,
    beam_search,
    cannot_improve,
    greedy,
    hypotheses,
    length_penalty,
    load,
    pieces,
    save,
)
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import TINY, Transformer

VOCAB = 7


def random_model(kind, seed, vocab=VOCAB, sharpen=3.0):
    "A model with random weights, sharpened so that its distributions are far from uniform."
    torch.manual_seed(seed)
    if kind == "recurrent":
        model = RecurrentSeq2Seq(RecurrentConfig(vocab=vocab, d_model=10))
    else:
        model = Transformer(replace(TINY, vocab=vocab, d_model=10, h=5, d_ff=13, N=2))
    for parameter in model.parameters():
        parameter.data *= sharpen
    return model.double()


def random_sources(seed, B=5, S=6, vocab=VOCAB):
    "Sentences of unequal length that end in eos, padding at the end."
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(3, vocab, (B, S), generator=generator)
    for row, length in enumerate(torch.randint(1, S, (B,), generator=generator).tolist()):
        source[row, length], source[row, length + 1 :] = 2, 0
    return source


MODELS = [("transformer", 0), ("transformer", 1), ("recurrent", 0), ("recurrent", 1)]
every_model = pytest.mark.parametrize("kind,seed", MODELS)


@torch.inference_mode()
def rescore(model, source, ids):
    "The log-probability of an output, by one pass over the whole of it."
    model.eval()
    target = torch.tensor([[model.config.bos, *ids]])
    log_p = model(source, target[:, :-1]).log_softmax(-1)
    return log_p.gather(-1, target[:, 1:, None]).sum().item()


@every_model
def test_a_beam_of_one_is_greedy(kind, seed):
    model, source = random_model(kind, seed), random_sources(seed)
    assert beam_search(model, source, beam=1, max_len=9) == greedy(model, source, max_len=9)


@every_model
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_as_wide_as_the_space_finds_the_optimum(kind, seed, alpha):
    vocab, longest = 4, 3
    model, source = random_model(kind, seed, vocab), random_sources(seed, B=3, S=3, vocab=vocab)
    space = [
        (*body, *end)
        for n in range(longest + 1)
        for body in itertools.product([0, 1, 3], repeat=n)
        for end in ([(2,)] if n < longest else [()])
        if body or end
    ]
    for row in range(len(source)):
        sentence = source[row : row + 1, : (source[row] != 0).sum()]
        scores = {ids: rescore(model, sentence, ids) / length_penalty(len(ids), alpha) for ids in space}
        best = max(scores, key=scores.get)
        assert tuple(beam_search(model, sentence, beam=4**longest, alpha=alpha, max_len=longest)[0]) == best


@every_model
def test_scores_equal_a_rescoring_pass(kind, seed):
    model, source = random_model(kind, seed), random_sources(seed)
    for row, found in enumerate(hypotheses(model, source, beam=3, max_len=6)):
        sentence = source[row : row + 1, : (source[row] != 0).sum()]
        assert len({tuple(ids) for ids, _ in found}) == len(found) == 3
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        for ids, score in found:
            assert math.isclose(rescore(model, sentence, ids) / length_penalty(len(ids)), score, rel_tol=1e-9)


@every_model
@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_does_not_depend_on_its_batch(kind, seed, beam):
    model, source = random_model(kind, seed), random_sources(seed, B=7)
    together = hypotheses(model, source, beam)
    for row in range(len(source)):
        (alone,) = hypotheses(model, source[row : row + 1, : (source[row] != 0).sum()], beam)
        assert [ids for ids, _ in alone] == [ids for ids, _ in together[row]]
    by_greedy = greedy(model, source)
    assert by_greedy == [greedy(model, source[i : i + 1, : (source[i] != 0).sum()])[0] for i in range(len(source))]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_stopping_early_misses_nothing(alpha):
    penalty, stopped_early = partial(length_penalty, alpha=alpha), 0
    for kind, seed in MODELS:
        model, source = random_model(kind, seed, sharpen=1.5), random_sources(seed, B=20)
        full = hypotheses(model, source, 4, penalty, max_len=12)
        early = hypotheses(model, source, 4, penalty, max_len=12, stop=cannot_improve)
        assert [found[0] for found in full] == [found[0] for found in early]
        stopped_early += sum(len(a) > len(b) for a, b in zip(full, early, strict=True))
    assert stopped_early


@every_model
def test_outputs_have_the_promised_form(kind, seed):
    model, source = random_model(kind, seed), random_sources(seed)
    limits = ((source != 0).sum(1) + 50).tolist()
    for outputs in (greedy(model, source), beam_search(model, source)):
        for ids, limit in zip(outputs, limits, strict=True):
            assert 2 not in ids[:-1]
            assert ids[-1] == 2 and len(ids) <= limit or len(ids) == limit


def test_a_longer_output_is_favoured_by_a_greater_alpha():
    model, source = random_model("transformer", 3, sharpen=2.0), random_sources(3, B=20)
    lengths = [sum(map(len, beam_search(model, source, 4, alpha, max_len=12))) for alpha in (0.0, 1.0, 2.0)]
    assert lengths[0] < lengths[1] < lengths[2]


def test_the_model_is_left_in_the_mode_it_was_in():
    model, source = random_model("transformer", 0).train(), random_sources(0)
    assert greedy(model, source) == greedy(model, source)  # dropout was off
    assert model.training


@pytest.mark.parametrize("call", [lambda m, s: beam_search(m, s, beam=0), lambda m, s: greedy(m, s, max_len=0)])
def test_numbers_that_make_no_search_are_refused(call):
    with pytest.raises(ValueError, match="must be 1 or more"):
        call(random_model("transformer", 0), random_sources(0))


def test_pieces_are_whole_and_short_enough():
    ids = list(range(100, 130))
    assert list(pieces(ids, 10, ends={105, 117})) == [ids[:6], ids[6:16], ids[16:18], ids[18:28], ids[28:]]
    assert list(pieces(ids, 40, ends=set())) == [ids]


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


def test_strange_lines_give_a_line_each(translator):
    lines = ["man " * 500, "日本語のテキスト", "🙂🙃", "zero\u200bwidth", "عربي", "\x00\x07", "a" * 3000]
    assert len(translator.translate(lines, beam=1)) == len(lines)


def test_one_string_is_refused(translator):
    with pytest.raises(TypeError, match="put it in a list"):
        translator.translate("the man")


@pytest.mark.parametrize("kind", ["transformer", "recurrent"])
def test_a_saved_folder_translates_the_same(kind, tmp_path):
    vocabulary = Words.build([("the man sleeps .", "der Mann schläft .")])
    model = random_model(kind, 1, len(vocabulary)).float()
    save(tmp_path / "model", model, vocabulary, "About.\n")
    lines = ["the man sleeps.", "man the"]
    assert load(tmp_path / "model").translate(lines) == Translator(model, vocabulary).translate(lines)
    assert not [path for path in (tmp_path / "model").iterdir() if path.name.startswith(".")]


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
