"""Chapter 20: losses, masks and caches of the two models, the labelled task, sampling, and each later change."""

import math
import random
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

from annotated import after
from annotated.after import (
    CHANGES,
    Classifier,
    GatedFeedForward,
    GroupedQueryAttention,
    LanguageModel,
    MaskedModel,
    RMSNorm,
    _accuracy,
    _grouped_queries,
    _judge,
    _label_sentences,
    _learn,
    _no_positions,
    _norm_first,
    _other_forms,
    _present_verbs,
    _rotary_positions,
    _rotate,
    causal_loss,
    finetune,
    generate,
    mask_words,
    masked_loss,
    pretrain,
    rotary_attention,
    sample,
    top_k,
    top_p,
)
from annotated.attention import scaled_dot_product_attention
from annotated.data import Words, split_words
from annotated.grammar import grammar_examples
from annotated.layers import LayerNorm
from annotated.masks import causal_mask
from annotated.multihead import MultiHeadAttention
from annotated.transformer import TINY, DecoderLayer, EncoderLayer, Transformer

CONFIG = replace(TINY, vocab=31, N=2, d_model=24, d_ff=39, h=6, P_drop=0.0)
SUBSETS = [[], *([name] for name in CHANGES), list(CHANGES)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def examples():
    return grammar_examples(400, 10, 10)[0]


def changed(names, config=CONFIG):
    """A language model in double precision with some changes and no weight at 0 or 1."""
    model = LanguageModel(config)
    for name in names:
        CHANGES[name](model)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def sentences(B=3, T=7, vocab=31):
    return torch.randint(4, vocab, (B, T))


# ---- the two losses


class Table:
    """A stand-in for a model: fixed logits at every position."""

    config = CONFIG

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, ids):
        assert ids.shape == self.logits.shape[:2]
        return self.logits


def test_the_causal_loss_asks_for_every_next_token_and_no_padding():
    ids = torch.tensor([[1, 7, 9, 2], [1, 5, 2, 0]])
    logits = torch.randn(2, 3, 31)
    log_p = logits.log_softmax(-1)
    asked = [(0, 0, 7), (0, 1, 9), (0, 2, 2), (1, 0, 5), (1, 1, 2)]
    by_hand = -sum(log_p[place] for place in asked) / 5
    torch.testing.assert_close(causal_loss(Table(logits), ids), by_hand)


def test_the_masked_loss_asks_for_the_chosen_words_only():
    ids, logits = sentences(2, 5), torch.randn(2, 5, 31)
    chosen = torch.tensor([[0, 1, 0, 0, 1], [0, 0, 0, 1, 0]]).bool()
    log_p = logits.log_softmax(-1)
    by_hand = -sum(log_p[b, t, ids[b, t]] for b, t in ((0, 1), (0, 4), (1, 3))) / 3
    torch.testing.assert_close(masked_loss(Table(logits), ids, ids, chosen), by_hand)


def test_the_masked_loss_reads_what_is_seen():
    model, ids = MaskedModel(CONFIG).eval(), sentences()
    chosen, seen = torch.zeros_like(ids, dtype=torch.bool), ids.clone()
    chosen[:, 2], seen[:, 2] = True, 30
    assert not torch.allclose(masked_loss(model, ids, seen, chosen), masked_loss(model, ids, ids, chosen))
    torch.testing.assert_close(masked_loss(model, ids, seen, chosen), F.cross_entropy(model(seen)[:, 2], ids[:, 2]))


# ---- hiding words


def test_words_are_hidden_in_the_shares_stated():
    ids = torch.randint(4, 100, (100, 1000))
    seen, chosen = mask_words(ids, 100, 0.3)
    assert abs(chosen.float().mean() - 0.3) < 0.01
    blank, same = seen[chosen] == 100, seen[chosen] == ids[chosen]
    assert abs(blank.float().mean() - 0.8) < 0.02
    assert abs(same.float().mean() - 0.1 - 0.1 / 96) < 0.02
    assert torch.equal(seen[~chosen], ids[~chosen])
    others = seen[chosen & (seen != 100) & (seen != ids)]
    assert len(set(others.tolist())) == 96 and others.min() == 4 and others.max() == 99


def test_markers_are_never_hidden_and_a_generator_repeats():
    ids = torch.tensor([[1, 3, 2, 0]]).expand(50, -1)
    seen, chosen = mask_words(ids, 31, 1.0)
    assert mask_words(ids.to("meta"), 31)[0].is_meta  # as on a GPU: random numbers follow
    assert torch.equal(seen, ids) and not chosen.any()
    words = sentences(5, 50)
    one, two = (mask_words(words, 31, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1]) and one[1].any()


@pytest.mark.parametrize("options, said", [({"rate": 0}, "rate"), ({"rate": 1.5}, "rate"), ({"blank": 4}, "blank")])
def test_bad_hiding_is_refused(options, said):
    with pytest.raises(ValueError, match=f"{said} must be.*not {options[said]}"):
        mask_words(sentences(), **{"blank": 31} | options)


# ---- one stack, two masks


def test_the_masked_model_is_the_encoder_of_chapter_7():
    bert, transformer, ids = MaskedModel(CONFIG).eval(), Transformer(CONFIG).eval(), sentences()
    ids[1, 5:] = 0
    transformer.source_embedding.load_state_dict(bert.embedding.state_dict())
    transformer.encoder.load_state_dict(bert.encoder.state_dict())
    assert torch.equal(bert.encode(ids), transformer.encode(ids))
    torch.testing.assert_close(bert(ids), bert.encode(ids) @ bert.embedding.weight.T)


def test_an_encoder_layer_under_a_causal_mask_is_a_decoder_layer_that_looks_nowhere_else():
    config = replace(CONFIG, norm="pre")
    decoder, encoder = DecoderLayer(config), EncoderLayer(config)
    nn.init.zeros_(decoder.cross_attention.W_O.weight)
    encoder.self_attention, encoder.feed_forward = decoder.self_attention, decoder.feed_forward
    encoder.add_norm = nn.ModuleList([decoder.add_norm[0], decoder.add_norm[2]])
    x = torch.randn(2, 5, 24)
    assert torch.equal(decoder(x, torch.randn(2, 3, 24), causal_mask(5)), encoder(x, causal_mask(5)))


@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: " + ".join(names) or "2017")
def test_a_language_model_never_sees_what_comes_later(names):
    model, ids = changed(names), sentences(1, 7)
    before = model(ids)
    for t in range(1, 7):
        other = ids.clone()
        other[:, t] = (ids[:, t] - 3) % 27 + 4
        now = model(other)
        torch.testing.assert_close(now[:, :t], before[:, :t])
        assert not torch.allclose(now[:, t], before[:, t])


def test_a_masked_model_sees_both_sides_and_no_padding():
    model, ids = MaskedModel(CONFIG).double().eval(), sentences(2, 7)
    other = ids.clone()
    other[0, 6] = (ids[0, 6] - 3) % 27 + 4
    assert (model(other)[0] - model(ids)[0]).abs().amax(-1).min() > 1e-6
    padded = torch.cat([ids, torch.zeros(2, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(model(padded)[:, :7], model(ids))


@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: " + ".join(names) or "2017")
@pytest.mark.parametrize("cuts", [(1,) * 9, (9,), (2, 1, 4, 1, 1)])
def test_cached_steps_equal_the_whole(names, cuts):
    model, ids = changed(names), sentences(2, 9)
    caches = model.start(2)
    parts = []
    for part in ids.split(cuts, 1):
        logits, caches = model.step(part, caches)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), model(ids))
    assert all(cache.K.shape[2] == cache.V.shape[2] == 9 for cache in caches)


def test_a_step_leaves_the_old_state_valid():
    model, ids = changed([]), sentences(2, 4)
    _, caches = model.step(ids[:, :2], model.start(2))
    one, two = (model.step(ids[:, 2:], caches)[0] for _ in range(2))
    assert torch.equal(one, two) and caches[0].K.shape[2] == 2


@pytest.mark.parametrize("bad, error", [(torch.ones(3), TypeError), (torch.ones(3, dtype=torch.long), ValueError),
                                        (torch.full((2, 3), 31), ValueError)])
@pytest.mark.parametrize("kind", [MaskedModel, LanguageModel])
def test_what_is_no_batch_of_identifiers_is_refused(kind, bad, error):
    with pytest.raises(error, match="ids must"):
        kind(CONFIG)(bad)


# ---- training


def test_the_rate_rises_and_falls_to_nothing(monkeypatch):
    rates, weight = [], nn.Linear(1, 1, bias=False)

    def note(model):
        adam = torch.optim.SGD(model.parameters(), lr=0.0)
        adam.register_step_pre_hook(lambda *_: rates.append(adam.param_groups[0]["lr"]))
        return adam

    monkeypatch.setattr(after, "optimizer", note)
    losses = _learn(weight, lambda: weight(torch.ones(1, 1)).square().sum(), 10, 2.0, warmup=4)
    assert rates == pytest.approx([2 * min(1, s / 4) * (11 - s) / 10 for s in range(1, 11)])
    assert len(losses) == 10 and not weight.training


def test_both_models_learn_and_repeat():
    text = [[1, a, a + 1, a + 2, 2] for a in range(4, 24)] * 2
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        runs.append(pretrain(MaskedModel(CONFIG), text, 30, 60, 1e-2, seed=5))
    assert runs[0] == runs[1] and sum(runs[0][-10:]) < 0.7 * sum(runs[0][:10])
    torch.manual_seed(1)
    assert pretrain(MaskedModel(CONFIG), text, 30, 1, 1e-2, seed=6)[0] != runs[0][0], "the seed decides"
    gpt, ids = LanguageModel(CONFIG), torch.tensor(text)
    losses = _learn(gpt, lambda: causal_loss(gpt, ids), 40, 1e-2, warmup=10)
    assert losses[-1] < 0.4 * losses[0]


def test_a_classifier_learns_whichever_word_decides():
    rows = [([1, a, b, 2] + [0] * (a % 3), int(a > 15)) for a in range(4, 28) for b in (5, 9, 20)]
    classifier = Classifier(MaskedModel(CONFIG), 2)
    before = [p.clone() for p in classifier.parameters()]
    finetune(classifier, rows, 80, 1e-2)
    assert _accuracy(classifier, rows) > 0.95
    assert all(not torch.equal(a, b) for a, b in zip(before, classifier.parameters()))


def test_padding_changes_no_label():
    classifier, ids = Classifier(MaskedModel(CONFIG), 3).double().eval(), sentences(2, 5)
    padded = torch.cat([ids, torch.zeros(2, 6, dtype=torch.long)], 1)
    torch.testing.assert_close(classifier(padded), classifier(ids))
    torch.testing.assert_close(classifier(ids), classifier.W(classifier.model.encode(ids).mean(1)))


def test_accuracy_counts_what_is_right():
    rows = [([4], 0), ([5], 1), ([6], 1), ([7], 1)]
    fixed = Classifier(MaskedModel(replace(TINY, vocab=11)), 2)
    fixed.forward = lambda ids: F.one_hot((ids[:, 0] > 5).long(), 2).float()
    assert _accuracy(fixed, rows) == 0.75


# ---- the labelled task


def test_every_form_has_its_other_form():
    forms = _other_forms()
    assert forms["sees"] == "see" and forms["see"] == "sees" and forms["is"] == "are" and forms["do"] == "does"
    assert all(forms[forms[word]] == word != forms[word] for word in forms)


def test_verbs_are_found_by_their_tag(examples):
    for example in examples:
        words, places = _present_verbs(example)
        assert words == split_words(example.source)
        for i, other in places:
            assert _other_forms()[words[i].lower()] == other.lower() and other.islower() == words[i].islower()
    counted = sum(len(_present_verbs(example)[1]) for example in examples)
    tags = sum(example.tree.count("(VBZ ") + example.tree.count("(VBP ") for example in examples)
    assert 0.9 * tags < counted <= tags  # "am" has no other form here


def test_half_of_the_sentences_get_one_wrong_verb(examples):
    rows = _label_sentences(examples, random.Random(0))
    kept = [e.source for e in examples if _present_verbs(e)[1]]
    assert len(rows) == len(kept) and 0.4 < sum(y for _, y in rows) / len(rows) < 0.6
    for (sentence, label), source in zip(rows, kept, strict=True):
        pairs = [(a, b) for a, b in zip(split_words(sentence), split_words(source), strict=True) if a != b]
        assert len(pairs) == label and all(_other_forms()[a.lower()] == b.lower() for a, b in pairs)
    assert rows == _label_sentences(examples, random.Random(0)) != _label_sentences(examples, random.Random(1))


def test_the_judge_follows_the_model(examples):
    words = Words.build((e.source, e.source) for e in examples)
    words = Words([*words.words[4:], *({*_other_forms()} - {*words.words})])
    example = next(e for e in examples if len(_present_verbs(e)[1]) == 1 and " " in e.source)
    (place, other), wording = _present_verbs(example)[1][0], _present_verbs(example)[0]
    calls = []

    class Likes:
        """Prefers one word wherever it is asked, and remembers what it has read."""

        def __init__(self, word):
            self.word = word

        def __call__(self, ids):
            calls.append(ids.clone())
            return F.one_hot(torch.full_like(ids, words.ids[self.word]), len(words)).float()

    blank = len(words)
    assert _judge(Likes(other), words, example.source, blank) == 1
    assert _judge(Likes(wording[place]), words, example.source, blank) == 0
    hidden = [ids[0].tolist().index(blank) for ids in calls]
    assert place + 1 in hidden and all((ids == blank).sum() == 1 for ids in calls)


# ---- drawing tokens


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_top_k_keeps_the_likeliest(k):
    logits = torch.randn(4, 5)
    kept = top_k(logits, k)
    for row, before in zip(kept, logits):
        stays = set(before.sort(descending=True).indices[:k].tolist())
        assert {i for i in range(5) if row[i] > -math.inf} == stays
        assert all(row[i] == before[i] for i in stays)


def test_top_k_keeps_ties():
    assert (top_k(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), 2) > -math.inf).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.75, 0.9, 1.0])
def test_top_p_keeps_the_fewest_that_reach_p(p):
    logits = torch.randn(6, 11, dtype=torch.double) * 2
    for row, before in zip(top_p(logits, p), logits):
        share = before.softmax(-1)
        stays = row > -math.inf
        assert share[stays].sum() >= p - 1e-9
        assert stays.all() or share[stays].min() >= share[~stays].max()
        assert share[stays].sum() - share[stays].min() < p
        assert torch.equal(row[stays], before[stays])


def test_top_p_of_one_keeps_all_and_of_little_keeps_one():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert torch.equal(top_p(logits, 1.0), logits)
    assert (top_p(logits, 1e-9) > -math.inf).tolist() == [[False, True, False]]
    many = 4 * torch.randn(1, 50000)  # the rounded sum is 1 long before the last of so many
    assert torch.equal(top_p(many, 1.0), many)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.float32])
def test_numbers_of_fewer_bits_lose_no_token(dtype):
    assert (top_p(torch.zeros(1, 5000, dtype=dtype), 0.9) == 0).sum() in (4500, 4501)
    for temperature in (1e-3, 1e-40):
        assert sample(torch.tensor([[20, 70, 30]], dtype=dtype), temperature).tolist() == [1]


def test_samples_have_the_probabilities_of_the_temperature():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(20000, -1)
    for temperature, expected in ((1.0, [0.5, 0.25, 0.125, 0.125]), (0.5, [16 / 22, 4 / 22, 1 / 22, 1 / 22])):
        counts = Counter(sample(logits, temperature, generator=torch.Generator().manual_seed(1)).tolist())
        assert all(abs(counts[i] / 20000 - p) < 0.015 for i, p in enumerate(expected))


def test_only_a_model_that_writes_step_by_step_generates():
    with pytest.raises(TypeError, match="model must be a LanguageModel, not MaskedModel"):
        generate(MaskedModel(CONFIG), sentences(), lambda logits: logits.argmax(-1))
    with pytest.raises(TypeError, match="model must be a LanguageModel, not Transformer"):
        generate(Transformer(CONFIG), sentences(), lambda logits: logits.argmax(-1))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_refuses_a_transformer_before_it_is_half_changed(name):
    model = Transformer(CONFIG)
    before = [(*vars(module).items(),) for module in model.modules()]
    with pytest.raises(TypeError, match="model must be a LanguageModel or a MaskedModel, not Transformer"):
        CHANGES[name](model)
    assert [(*vars(module).items(),) for module in model.modules()] == before


def test_a_row_of_padding_alone_makes_no_label_nan():
    assert Classifier(MaskedModel(CONFIG), 2).eval()(torch.zeros(2, 3, dtype=torch.long)).isfinite().all()


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_changed_model_keeps_its_mode_and_precision(name):
    model = LanguageModel(replace(CONFIG, P_drop=0.5)).double().eval()
    CHANGES[name](model)
    assert {p.dtype for p in model.parameters()} == {torch.float64} and not any(m.training for m in model.modules())
    ids = sentences()
    assert torch.equal(model(ids), model(ids))


def test_the_filter_comes_after_the_temperature():
    logits = torch.tensor([[0.6, 0.4]]).log().expand(200, -1)
    # at temperature 0.1 the first has a share of 0.98: it reaches 0.9 alone
    assert sample(logits, 0.1, partial(top_p, p=0.9)).sum() == 0
    assert sample(logits, 1.0, partial(top_p, p=0.9)).sum() > 0


@pytest.mark.parametrize("call, said", [
    (lambda: top_k(torch.zeros(1, 3), 0), "k must be 1 or more, not 0"),
    (lambda: top_p(torch.zeros(1, 3), 0.0), "p must be above 0 and at most 1, not 0.0"),
    (lambda: top_p(torch.zeros(1, 3), 1.1), "p must be"),
    (lambda: sample(torch.zeros(1, 3), 0), "temperature must be above 0, not 0; the likeliest"),
    (lambda: sample(torch.zeros(1, 3), float("nan")), "temperature must be"),
    (lambda: generate(changed([]), sentences(), top_k, 0), "max_len must be 1 or more, not 0"),
    (lambda: finetune(Classifier(MaskedModel(CONFIG), 2), [], 1, 1e-3), "rows must have at least one sentence, not none"),
    (lambda: pretrain(MaskedModel(CONFIG), [], 4, 1, 1e-3), "text must have at least one sentence, not none"),
    (lambda: rotary_attention(torch.ones(1, 5, 4), *torch.ones(2, 1, 3, 4)), "Q has 5 positions, more than the 3 of K"),
    (lambda: changed(["gated network"], replace(CONFIG, P_drop_ffn=0.1)), "P_drop_ffn must be 0"),
    (lambda: changed(["grouped queries"], replace(CONFIG, bias=True)), "bias must be False"),
    (lambda: changed(["grouped queries"], replace(CONFIG, d_v=5)), "leave out d_k and d_v"),
    (lambda: changed(["rotary positions"], replace(CONFIG, positions="learned")), "positions must not be learned"),
    (lambda: LanguageModel(replace(CONFIG, output_bias=True)), "one stack has no output_bias and no source_vocab"),
    (lambda: MaskedModel(replace(CONFIG, source_vocab=31)), "one stack has no output_bias and no source_vocab"),
])
def test_bad_settings_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("names", [[], list(CHANGES)], ids=["2017", "all changes"])
def test_greedy_generation_is_the_argmax_without_a_cache(names):
    model, prompt = changed(names), sentences(3, 4)
    ids = prompt
    for _ in range(12):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    expected = [row[: row.index(2) + 1] if 2 in row else row for row in ids[:, 4:].tolist()]
    model.train()
    assert generate(model, prompt, lambda logits: logits.argmax(-1), 12) == expected
    assert model.training


def test_generation_ends_where_learned_positions_do():
    model = LanguageModel(replace(TINY, vocab=23, positions="learned", max_positions=8))
    rows = generate(model, torch.full((2, 3), 4), lambda logits: torch.full((2,), 5), 50)
    assert rows == [[5] * 6] * 2  # the last token that is written is not read
    with pytest.raises(ValueError, match="positions must lie in 0..7"):
        generate(model, torch.full((2, 9), 4), lambda logits: torch.full((2,), 5), 50)


def test_training_pads_with_the_models_own_identifier():
    model = MaskedModel(replace(TINY, vocab=23, pad=3, bos=0, unk=1))
    read = []
    model.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    pretrain(model, [[0, 5, 2], [0, 5, 6, 7, 2]], 22, 1, 1e-3)
    classifier = Classifier(model, 2)
    classifier.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    finetune(classifier, [([0, 5, 2], 0), ([0, 5, 6, 7, 2], 1)], 1, 1e-3)
    after._accuracy(classifier, [([0, 5, 2], 0), ([0, 5, 6, 7, 2], 1)])
    assert len(read) >= 3 and all((ids[ids[:, 2] == 2][:, 3:] == 3).all() for ids in read)


def test_generation_ends_with_the_last_eos():
    script = iter([[5, 2, 6], [2, 9, 7], [8, 8, 2], [9, 9, 9]])
    rows = generate(changed([]), sentences(3, 2), lambda logits: torch.tensor(next(script)), 50)
    assert rows == [[5, 2], [2], [6, 7, 2]] and next(script) == [9, 9, 9]


# ---- what changed


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rms_norm_is_torchs(eps):
    norm, x = RMSNorm(13, eps).double(), torch.randn(3, 7, 13, dtype=torch.double, requires_grad=True)
    nn.init.normal_(norm.gain)
    theirs = F.rms_norm(x, (13,), norm.gain, eps)
    torch.testing.assert_close(norm(x), theirs)
    upstream = torch.randn_like(theirs)
    gradients = [torch.autograd.grad((y * upstream).sum(), [x, norm.gain]) for y in (norm(x), theirs)]
    torch.testing.assert_close(*gradients)


def test_rms_norm_overflows_only_where_the_result_does():
    norm = RMSNorm(7).half()
    nn.init.constant_(norm.gain, 4)
    x = torch.tensor([[-3e4, *[2e4] * 6]]).half()
    torch.testing.assert_close(norm(x), F.rms_norm(x.float(), (7,), norm.gain.float(), 1e-6).half())


def test_rms_norm_is_layer_norm_on_centred_input():
    x = torch.randn(5, 13, dtype=torch.double)
    torch.testing.assert_close(RMSNorm(13).double()(x - x.mean(-1, keepdim=True)), LayerNorm(13).double()(x))
    assert not torch.allclose(RMSNorm(13).double()(x), LayerNorm(13).double()(x))


def test_rms_norm_refuses_another_width():
    with pytest.raises(ValueError, match=r"x must be \(..., 13\) for this RMSNorm, not \(2, 1\)"):
        RMSNorm(13)(torch.zeros(2, 1))


def test_rotated_scores_depend_on_the_distance_only():
    q, k = torch.randn(2, 10, dtype=torch.double)
    places = torch.arange(60)
    scores = _rotate(q.expand(60, -1), places) @ _rotate(k.expand(60, -1), places).T
    for distance in range(-59, 60):
        line = scores.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line))
    assert scores[0].std() > 0.1  # and they do depend on it


def test_rotation_is_that_of_the_sinusoids():
    """Complex numbers: a pair turned by a position times its rate, the way sines and cosines turn."""
    x, places = torch.randn(7, 10, dtype=torch.double), torch.arange(7)
    rates = 10000.0 ** -(torch.arange(0, 10, 2).double() / 10)
    turned = torch.view_as_complex(x.unflatten(-1, (5, 2))) * torch.exp(1j * places[:, None] * rates)
    torch.testing.assert_close(_rotate(x, places), torch.view_as_real(turned).flatten(-2))
    torch.testing.assert_close(_rotate(x, places).norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(_rotate(x[:1], places[:1]), x[:1])


def test_a_far_position_is_turned_by_the_exact_angle():
    x, far = torch.randn(3, 64, dtype=torch.double), torch.tensor([5003, 5011, 100003])
    exact = _rotate(x, far)
    torch.testing.assert_close(_rotate(x.float(), far).double(), exact, atol=1e-5, rtol=0)
    torch.testing.assert_close(_rotate(x.bfloat16(), far).double(), exact, atol=0.1, rtol=0)


def test_an_odd_width_cannot_be_turned():
    with pytest.raises(ValueError, match="d_k must be even .*, not 5"):
        _rotate(torch.zeros(2, 5), torch.arange(2))


def test_rotary_queries_stand_at_the_end():
    Q, K, V = torch.randn(3, 2, 6, 9, 4, dtype=torch.double)
    whole = rotary_attention(Q, K, V, causal_mask(9))
    torch.testing.assert_close(rotary_attention(Q[..., 5:, :], K, V, causal_mask(9)[5:]), whole[..., 5:, :])
    places = torch.arange(9)
    by_hand = scaled_dot_product_attention(_rotate(Q, places), _rotate(K, places), V, causal_mask(9))
    torch.testing.assert_close(whole, by_hand)
    assert not rotary_attention(Q, K, V, dropout=1.0).any()


def test_rotary_positions_keep_the_dropout_of_attention():
    model = after.LanguageModel(replace(TINY, vocab=31, P_drop_attention=0.3))
    after._rotary_positions(model)
    ids = torch.randint(3, 31, (2, 7))
    assert not torch.equal(model(ids), model(ids)) and model.encoder.layers[0].self_attention.attention.P_drop == 0.3
    assert torch.equal(model.eval()(ids), model(ids))


def test_a_rotary_model_does_not_know_where_it_stands():
    ids, shift = sentences(2, 6), 5
    longer = torch.cat([sentences(2, shift), ids], 1)
    mask = causal_mask(6 + shift)
    mask[shift:, :shift] = False
    moved = {}
    for name in ("2017", "rotary positions"):
        model = changed([name] if name in CHANGES else [])
        moved[name] = (model.read(longer, mask)[:, shift:] - model.read(ids, causal_mask(6))).abs().max()
    assert moved["rotary positions"] < 1e-10 and moved["2017"] > 1e-2
    assert torch.equal(_no_positions(torch.arange(4)), torch.zeros(4, 1))


def test_a_rotary_model_knows_the_order():
    model, ids = changed(["rotary positions"]), sentences(1, 6)
    swapped = ids[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.allclose(model(swapped)[:, -1], model(ids)[:, -1])


def test_the_gated_network_is_its_formula():
    network, x = GatedFeedForward(7, 11).double(), torch.randn(2, 5, 7, dtype=torch.double)
    W_1, W_G, W_2 = (getattr(network, name).weight.T for name in ("W_1", "W_G", "W_2"))
    gate = x @ W_G
    torch.testing.assert_close(network(x), (gate * torch.sigmoid(gate) * (x @ W_1)) @ W_2)


def test_two_thirds_of_the_width_give_as_many_weights():
    plain, gated = (changed(names, replace(CONFIG, d_ff=48)) for names in ([], ["gated network"]))
    matrices = [sum(w.numel() for w in m.encoder.layers[0].feed_forward.parameters() if w.dim() == 2) for m in (plain, gated)]
    assert matrices[0] == matrices[1] == 2 * 24 * 48


@pytest.mark.parametrize("groups", [6, 3, 2, 1])
def test_grouped_queries_are_multi_head_attention_with_shared_heads(groups):
    ours, paper = GroupedQueryAttention(24, 6, groups).double(), MultiHeadAttention(24, 6).double()
    weights = ours.state_dict()
    for name in ("W_K.weight", "W_V.weight"):
        weights[name] = torch.cat([weights[name][4 * (i * groups // 6) :][:4] for i in range(6)])
    paper.load_state_dict(weights)
    x, memory = torch.randn(2, 5, 24, dtype=torch.double), torch.randn(2, 7, 24, dtype=torch.double)
    mask = torch.rand(2, 1, 5, 7) < 0.7
    torch.testing.assert_close(ours(x, memory, mask), paper(x, memory, mask))


@pytest.mark.parametrize("groups", [0, 4, 12, -1])
def test_groups_must_divide_the_heads(groups):
    with pytest.raises(ValueError, match=f"groups must divide h=6, not be {groups}"):
        GroupedQueryAttention(24, 6, groups)


@pytest.mark.parametrize("groups", [6, 3, 2, 1])
def test_the_cache_shrinks_with_the_groups(groups):
    model = changed([])
    _grouped_queries(model, groups)
    _, caches = model.double().step(sentences(2, 5), model.start(2))
    assert all(cache.K.shape == cache.V.shape == (2, groups, 5, 4) for cache in caches)
    assert model.encoder.layers[0].self_attention.attention is scaled_dot_product_attention


def test_norm_first_is_the_configurations_pre_norm():
    config = replace(CONFIG, P_drop=0.5, eps_norm=0.1)
    ours, same = LanguageModel(config), LanguageModel(replace(config, norm="pre", final_norm=True))
    _norm_first(ours)
    same.load_state_dict(ours.state_dict())
    ids, found = sentences(), []
    for model in (ours, same):
        torch.manual_seed(1)  # what is dropped
        found.append(model(ids))
    assert torch.equal(*found)


def test_no_layer_norm_is_left():
    for names in (["RMSNorm"], ["norm first", "RMSNorm"]):
        modules = list(changed(names, replace(CONFIG, eps_norm=0.1)).modules())
        assert not any(isinstance(m, LayerNorm) for m in modules)
        assert [m.eps for m in modules if isinstance(m, RMSNorm)] == [0.1] * (4 + ("norm first" in names))


def test_grouping_keeps_the_rotation():
    model = changed(["rotary positions"])
    _grouped_queries(model)
    rotary = changed(["grouped queries"])
    _rotary_positions(rotary)
    for m in (model, rotary):
        assert all(layer.self_attention.attention is rotary_attention for layer in m.encoder.layers)
    rotary.load_state_dict(model.state_dict())
    ids = sentences()
    assert torch.equal(model.double()(ids), rotary(ids))


def test_shapes_are_as_commented(examples):
    words = Words.build((e.source, e.source) for e in examples)
    rows = [([1, 5, 6, 2], 0), ([1, 7, 2], 1)]
    with checked(after) as seen:
        ids = sentences()
        causal_loss(changed([]), ids)
        pretrain(MaskedModel(CONFIG), [row for row, _ in rows], 30, 2, 1e-3)
        classifier = Classifier(MaskedModel(CONFIG), 2)
        finetune(classifier, rows, 1, 1e-3)
        _accuracy(classifier, rows)
        _judge(MaskedModel(replace(CONFIG, vocab=len(words) + 1)), words, examples[2].source, len(words))
        generate(changed(list(CHANGES)), ids, partial(sample, keep=partial(top_p, p=0.9)), 3)
        generate(changed([]), ids, partial(sample, keep=partial(top_k, k=3)), 3)
    assert not unseen(seen, after)


def test_a_single_token_can_be_asked_for():
    assert generate(changed([]), sentences(3, 4), lambda logits: torch.full((3,), 5), 1) == [[5]] * 3


def test_what_is_drawn_in_training_follows_its_own_seed_alone():
    model = MaskedModel(replace(CONFIG, P_drop=0.0))
    classifier = Classifier(model, 2)
    text = [[0, 5 + i % 7, 6, 7 + i % 3, 2] for i in range(20)]
    rows = [(line, i % 2) for i, line in enumerate(text)]
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        found.append((pretrain(model, text, CONFIG.vocab - 1, 2, 0.0), finetune(classifier, rows, 2, 0.0)))
    assert found[0] == found[1]
