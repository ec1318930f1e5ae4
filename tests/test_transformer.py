"""The whole model: equal to torch's, causal, independent of padding and of its batch, equal to itself with a cache."""

import json
import warnings
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import checked, unseen
from torch import nn

import annotated.transformer as module
from annotated.attention import scaled_dot_product_attention
from annotated.layers import LayerNorm
from annotated.transformer import (
    _ACTIVATIONS,
    _NORMS,
    _POSITIONS,
    BASE,
    BIG,
    TINY,
    Config,
    Decoder,
    Encoder,
    Transformer,
)

TABLE_3 = json.loads((Path(__file__).parents[1] / "book" / "paper.json").read_text())["table_3"]
# Primes, or products of them, so that no axis can be taken for another.
B, S, T, h, d_k, d_v, d_ff, vocab = 5, 11, 7, 3, 13, 2, 17, 23
SMALL = Config(N=2, d_model=38, d_ff=d_ff, h=h, d_k=d_k, d_v=d_v, vocab=vocab, P_drop=0.0)


def build(config, attention=scaled_dot_product_attention, seed=0):
    """A model in float64 whose every parameter is far from 0 and 1, in evaluation mode."""
    torch.manual_seed(seed)
    model = Transformer(config, attention).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) / 5)
    return model


def batch(seed=0, source_vocab=vocab):
    """Source (B, S) and target (B, T), of unequal lengths, padding at the end."""
    g = torch.Generator().manual_seed(seed)
    source = torch.randint(4, source_vocab, (B, S), generator=g)
    target = torch.randint(4, vocab, (B, T), generator=g)
    source[:, -1], target[:, 0], target[:, -1] = 2, 1, 2
    source[1, 6:], source[3, 1:], target[2, 4:] = 0, 0, 0
    return source, target


def side_by_side(ours, theirs):
    """Lists of our parameters, and torch's parameter that is made of them."""
    for mine, other in (("self_attention", "self_attn"), ("cross_attention", "multihead_attn")):
        if hasattr(ours, mine):
            a, b = getattr(ours, mine), getattr(theirs, other)
            for kind in ("weight", "bias"):
                yield [getattr(W, kind) for W in (a.W_Q, a.W_K, a.W_V)], getattr(b, f"in_proj_{kind}")
                yield [getattr(a.W_O, kind)], getattr(b.out_proj, kind)
    for mine, other in ((ours.feed_forward.W_1, theirs.linear1), (ours.feed_forward.W_2, theirs.linear2)):
        yield from (([mine.weight], other.weight), ([mine.bias], other.bias))
    for i, residual in enumerate(ours.add_norm, 1):
        other = getattr(theirs, f"norm{i}")
        yield from (([residual.norm.gain], other.weight), ([residual.norm.bias], other.bias))


def all_pairs(ours, theirs):
    for mine, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for layers in zip(mine.layers, other.layers, strict=True):
            yield from side_by_side(*layers)
        if other.norm is not None:
            yield from (([mine.norm.gain], other.norm.weight), ([mine.norm.bias], other.norm.bias))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_torch_in_outputs_and_gradients(norm, final_norm, activation):
    config = Config(
        N=2, d_model=39, d_ff=d_ff, h=3, vocab=vocab, P_drop=0.0, norm=norm, final_norm=final_norm,
        bias=True, eps_norm=1e-5, positions="learned", activation=activation,
    )  # fmt: skip
    ours = build(config)
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm == "pre"}
    with warnings.catch_warnings(action="ignore"):  # torch's remark that it will not use nested tensors
        theirs = nn.Transformer(39, 3, 2, 2, d_ff, **options).double()
    if not final_norm:
        theirs.encoder.norm = theirs.decoder.norm = None
    pairs = list(all_pairs(ours, theirs))
    inner = {id(p) for part in (ours.encoder, ours.decoder) for p in part.parameters()}
    assert {id(p) for mine, _ in pairs for p in mine} == inner
    assert {id(other) for _, other in pairs} == {id(p) for p in theirs.parameters()}
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(torch.cat(mine))

    source, target = batch()
    x, y = (ours.embed(ours.target_embedding, ids) for ids in (source, target))
    hidden, future = source == 0, torch.ones(T, T, dtype=torch.bool).triu(1)
    x = theirs(x, y, tgt_mask=future, src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    expected, found = ours.target_embedding.logits(x), ours(source, target)
    torch.testing.assert_close(found, expected)

    direction, shared = torch.randn_like(found), ours.target_embedding.weight
    (found * direction).sum().backward()
    gradient, shared.grad = shared.grad, None
    (expected * direction).sum().backward()
    torch.testing.assert_close(gradient, shared.grad)
    for mine, other in pairs:
        torch.testing.assert_close(torch.cat([p.grad for p in mine]), other.grad)


CHOICES = [
    {},
    {"norm": "pre", "final_norm": True, "bias": True},
    {"positions": "learned", "activation": "gelu"},
    {"positions": "halves", "activation": "swish", "source_vocab": 29},
    {"output_bias": True, "activation": "swish", "bias": True},
]


@pytest.mark.parametrize("change", CHOICES)
def test_cached_steps_equal_decode(change):
    model = build(replace(SMALL, **change))
    source, target = batch(source_vocab=change.get("source_vocab", vocab))
    with torch.no_grad():
        expected = model(source, target)
        state, states = model.start(source), []
        for t in range(T):
            states.append(state)
            logits, state = model.step(target[:, t], state)
            torch.testing.assert_close(logits, expected[:, t], rtol=0, atol=1e-12)
        # An old state is still valid, whatever was computed from it, and its rows can be chosen as beam search does.
        again, _ = model.step(target[:, 3], states[3])
        torch.testing.assert_close(again, expected[:, 3], rtol=0, atol=1e-12)
        rows = torch.tensor([4, 1, 1])
        chosen, _ = model.step(target[rows, 3], states[3].select(rows))
        torch.testing.assert_close(chosen, expected[rows, 3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("change", CHOICES)
def test_hypotheses_of_a_sentence_share_its_memory(change):
    model = build(replace(SMALL, **change))
    source, target = batch(source_vocab=change.get("source_vocab", vocab))
    k, rows = 3, torch.tensor([2, 2, 1, 6, 8, 7])  # of sentence 0, and of sentence 2
    with torch.no_grad():
        expected = model(source, target)
        state = model.start(source).repeat(k)
        for t in range(3):
            logits, state = model.step(target[:, t].repeat_interleave(k), state)
            torch.testing.assert_close(logits, expected[:, t].repeat_interleave(k, 0), rtol=0, atol=1e-12)
        fewer = state.select(rows)
        assert [len(c.K) for c in fewer.caches] == [6] * SMALL.N and [len(c.K) for c in fewer.memory] == [2] * SMALL.N
        logits, _ = model.step(target[rows // k, 3], fewer)
        torch.testing.assert_close(logits, expected[rows // k, 3], rtol=0, atol=1e-12)
        assert state.select(torch.arange(len(source) * k)).memory is state.memory
    with pytest.raises(ValueError, match="together"):
        state.select(torch.tensor([0, 1, 3]))
    none = torch.tensor([], dtype=torch.long)
    assert len(state.select(none).select(none).caches[0].K) == 0


@pytest.mark.parametrize("change", CHOICES)
def test_each_position_sees_itself_and_what_is_before(change):
    model = build(replace(SMALL, **change))
    source, target = batch(source_vocab=change.get("source_vocab", vocab))
    before = model(source, target)
    for t in range(1, T):
        other = target.clone()
        other[:, t] = torch.where(target[:, t] == 5, 6, 5)
        other[2, 4:] = target[2, 4:]  # padding stays
        difference = (model(source, other) - before).abs().amax(-1)
        assert (difference[:, :t] == 0).all()
        assert (difference[[0, 1, 3, 4], t:] > 0).all()


def test_padding_and_company_change_nothing():
    model = build(SMALL)
    source, target = batch()
    together = model(source, target)
    for b in range(B):
        length = int((source[b] != 0).sum())
        alone = model(source[b : b + 1, :length], target[b : b + 1])
        torch.testing.assert_close(alone, together[b : b + 1])
    more = torch.cat([source, torch.zeros(B, 3, dtype=torch.long)], 1)
    torch.testing.assert_close(model(more, target), together)
    real = target[2] != 0
    torch.testing.assert_close(model(source[2:3], target[2:3, real]), together[2:3, real])


def test_every_source_word_matters_and_no_padding_does():
    model = build(SMALL)
    source, target = batch()
    embedded = model.embed(model.source_embedding, source).detach().requires_grad_()
    memory = model.encoder(embedded, module.padding_mask(source))
    assert memory.shape == (B, S, 38)
    logits = model.decode(target, memory, source)
    for t in (0, T - 1):
        (gradient,) = torch.autograd.grad((logits[:, t] * torch.randn(vocab)).sum(), embedded, retain_graph=True)
        assert torch.equal(gradient.abs().amax(-1) > 0, source != 0)


def test_every_decoder_layer_reads_the_last_encoder_layer():
    model, made, read = build(replace(SMALL, N=3)), [], []
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda part, given, output: made.append(output))
    for layer in model.decoder.layers:
        layer.cross_attention.register_forward_hook(lambda part, given, output: read.append(given[1]))
    model(*batch())
    assert [memory is made[-1] for memory in read] == [True] * 3
    assert len({id(memory) for memory in made}) == 3


def test_shape_comments_hold():
    source, target = batch()
    with checked(module) as seen:
        model = build(replace(SMALL, output_bias=True))
        model(source, target)
        model.step(target[:, 1], model.step(target[:, 0], model.start(source))[1])
        model.start(source).repeat(2).select(torch.arange(4))
    assert not unseen(seen, module)


# ---- sizes


def count(config):
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize("row", [row for row in TABLE_3 if row["params"]], ids=lambda row: str(row["change"]))
def test_parameters_of_table_3(row):
    config = replace(BASE, **row["change"])
    assert round(count(config) / 1e6) != row["params"]  # the vocabulary of section 5.1 fits no row
    vocabulary = 36000 if row["row"] == "big" else 41100
    assert round(count(replace(config, vocab=vocabulary)) / 1e6) == row["params"]
    other = 41100 if row["row"] == "big" else 36000
    assert round(count(replace(config, vocab=other)) / 1e6) != row["params"]


def test_presets_differ_as_table_3_says():
    big = next(row for row in TABLE_3 if row["row"] == "big")["change"]
    assert replace(BASE, **big) == BIG
    assert (BASE.N, BASE.d_model, BASE.d_ff, BASE.h, BASE.key_width, BASE.value_width) == (6, 512, 2048, 8, 64, 64)
    assert (BASE.P_drop, BASE.eps_ls, BIG.key_width, BIG.value_width) == (0.1, 0.1, 64, 64)
    assert count(TINY) < 2e6 < count(BASE)


def test_head_width_follows_until_it_is_stated():
    assert BASE.key_width == BASE.value_width == 64 and BASE.d_k is BASE.d_v is None
    assert replace(BASE, h=4).key_width == 128 and replace(BASE, d_model=256).value_width == 32
    stated = replace(replace(BASE, d_k=64), h=4)
    assert (stated.key_width, stated.value_width) == (64, 128)
    assert replace(replace(BASE, h=3, d_k=5, d_v=7), d_model=50).key_width == 5
    with pytest.raises(FrozenInstanceError):
        BASE.h = 4


WIDTHS = st.none() | st.integers(1, 9)


@st.composite
def configurations(draw):
    """A configuration that makes a model, and differences that make another."""
    h, norm = draw(st.integers(1, 5)), st.sampled_from(["pre", "post"])
    heads = {"h": h, "d_model": 2 * h * draw(st.integers(1, 4))}
    free = {"N": st.integers(1, 3), "d_k": WIDTHS, "d_v": WIDTHS, "N_decoder": st.none() | st.integers(1, 3), "norm": norm,
            "final_norm": st.none() | st.booleans(), "positions": st.sampled_from(["sinusoidal", "learned"]),
            "source_vocab": st.none() | st.integers(5, 9), "P_drop": st.floats(0, 0.9)}  # fmt: skip
    change = draw(st.fixed_dictionaries({}, optional=free))
    return Config(vocab=11, d_ff=3, max_positions=7, **heads, **draw(st.fixed_dictionaries({}, optional=free))), change


@settings(deadline=None)
@given(configurations(), st.integers(1, 5))
def test_a_configuration_from_a_file_is_the_one_written_by_hand(both, factor):
    config, change = both
    read = Config(**json.loads(json.dumps(asdict(config))))
    assert read == config and hash(read) == hash(config)
    wider = {**change, "d_model": 2 * config.h * factor}
    one, other = replace(config, **wider), replace(read, **wider)
    assert one == other
    assert one.key_width == (wider.get("d_k", config.d_k) or 2 * factor)
    with torch.device("meta"):
        assert {n: p.shape for n, p in Transformer(one).named_parameters()} == {n: p.shape for n, p in Transformer(other).named_parameters()}


@pytest.mark.parametrize("change", [{"N_decoder": 1}, {"N": 1, "N_decoder": 3}])
def test_the_stacks_may_differ_in_depth(change):
    config = replace(SMALL, **change)
    model, (source, target) = build(config), batch()
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (config.N, config.N_decoder)
    expected, state = model(source, target), model.start(source)
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, expected[:, t], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm, stated, found", [("pre", None, True), ("post", None, False), ("pre", False, False), ("post", True, True)])
def test_the_last_norm_stands_where_the_norm_is_first_or_where_it_is_asked_for(norm, stated, found):
    model = Transformer(replace(SMALL, norm=norm, final_norm=stated))
    assert [isinstance(stack.norm, LayerNorm) for stack in (model.encoder, model.decoder)] == [found] * 2


def test_a_step_leaves_the_state_that_it_is_given():
    model, (source, target) = build(SMALL), batch()
    _, state = model.step(target[:, 0], model.start(source))
    first, _ = model.step(target[:, 1], state)
    model.step(target[:, 2], state)
    again, _ = model.step(target[:, 1], state)
    assert torch.equal(first, again) and state.caches[0].K.shape[2] == 1


def test_widths_arrive_where_they_belong():
    model = Transformer(SMALL)
    for layer in (model.encoder.layers[1].self_attention, model.decoder.layers[1].cross_attention):
        assert layer.W_Q.weight.shape == layer.W_K.weight.shape == (h * d_k, 38)
        assert layer.W_V.weight.shape == (h * d_v, 38) and layer.W_O.weight.shape == (38, h * d_v)
    assert model.decoder.layers[0].feed_forward.W_1.weight.shape == (d_ff, 38)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (2, 2)


def test_fields_choose_parts():
    for name, kind in _NORMS.items():
        encoder = Encoder(replace(SMALL, norm=name))
        assert type(encoder.layers[0].add_norm[0]) is kind
    assert isinstance(Decoder(SMALL).norm, nn.Identity)
    assert not isinstance(Decoder(replace(SMALL, final_norm=True)).norm, nn.Identity)
    source, target = batch()
    made = [Transformer(replace(SMALL, positions=name)).eval() for name in _POSITIONS]
    for model in made[1:]:
        model.load_state_dict(made[0].state_dict(), strict=False)
    logits = [model(source, target) for model in made]
    assert not torch.allclose(logits[0], logits[1]) and not torch.allclose(logits[0], logits[2])
    for name in _ACTIVATIONS:
        layer = Transformer(replace(SMALL, activation=name)).encoder.layers[0]
        assert layer.feed_forward.activation is _ACTIVATIONS[name]
    biases = [name for name, _ in Transformer(SMALL).named_parameters() if ".W_" in name and name.endswith("bias")]
    assert biases and all(".feed_forward." in name for name in biases)


def test_dropout_stands_where_the_configuration_puts_it():
    source, target = batch()
    for name in ("P_drop", "P_drop_attention", "P_drop_ffn"):
        model = Transformer(replace(SMALL, **{name: 0.5}))
        assert not torch.equal(model(source, target), model(source, target)), name
        model.eval()
        assert torch.equal(model(source, target), model(source, target)), name
    model = Transformer(SMALL)
    assert torch.equal(model(source, target), model(source, target))


def test_attention_is_the_callers_choice():
    calls = []

    def spy(Q, K, V, mask=None, dropout=0.0):
        calls.append((Q.shape[-2], K.shape[-2], dropout))
        return scaled_dot_product_attention(Q, K, V, mask, dropout)

    source, target = batch()
    torch.testing.assert_close(build(SMALL, spy)(source, target), build(SMALL)(source, target))
    assert calls == [(S, S, 0.0)] * 2 + [(T, T, 0.0), (T, S, 0.0)] * 2
    calls.clear()
    Transformer(replace(SMALL, P_drop_attention=0.25), spy)(source, target)
    assert {dropout for *_, dropout in calls} == {0.25}


def test_one_matrix_or_two():
    shared, apart = Transformer(SMALL), Transformer(replace(SMALL, source_vocab=29))
    assert shared.source_embedding is shared.target_embedding
    assert apart.source_embedding is not apart.target_embedding
    source, target = batch(source_vocab=29)
    source[0, 0] = 28
    assert apart(source, target).shape == (B, T, vocab)
    names = [name for name in shared.state_dict() if "embedding" in name]
    assert sorted(names) == ["source_embedding.weight", "target_embedding.weight"]


def test_first_weights():
    torch.manual_seed(0)
    model = Transformer(replace(TINY, bias=True))
    for name, p in model.named_parameters():
        if name.endswith(("W_Q.weight", "W_1.weight", "W_O.weight")):
            bound = (6 / sum(p.shape)) ** 0.5
            assert p.abs().max() <= bound and p.abs().max() > 0.98 * bound, name
            assert abs(p.std() / (2 / sum(p.shape)) ** 0.5 - 1) < 0.02, name
        elif name.endswith("bias"):
            assert (p == 0).all(), name
    assert abs(model.target_embedding.weight.std() * TINY.d_model**0.5 - 1) < 0.02


# ---- bad input


def test_gradients_of_each_sentence_by_vmap():
    model = Transformer(replace(TINY, vocab=11)).eval()
    source, target = torch.randint(4, 11, (5, 3)), torch.randint(4, 11, (5, 4))
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, source, target):
        logits = torch.func.functional_call(model, parameters, (source[None], target[None, :-1]), tie_weights=False)
        return nn.functional.cross_entropy(logits[0], target[1:])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, source, target)
    for b in range(5):
        alone = torch.func.grad(loss)(parameters, source[b], target[b])
        for name, value in alone.items():
            torch.testing.assert_close(each[name][b], value)


def test_an_exported_model_takes_batches_of_any_size():
    sizes = {name: torch.export.Dim(name, min=2, max=32) for name in "BST"}
    model, source, target = Transformer(replace(TINY, vocab=11)).eval(), torch.randint(4, 11, (2, 4)), torch.randint(4, 11, (2, 3))
    shapes = {"source": {0: sizes["B"], 1: sizes["S"]}, "target": {0: sizes["B"], 1: sizes["T"]}}
    exported = torch.export.export(model, (source, target), dynamic_shapes=shapes).module()
    source, target = torch.randint(4, 11, (7, 5)), torch.randint(4, 11, (7, 11))
    torch.testing.assert_close(exported(source, target), model(source, target))


def test_a_model_compiles_as_one_graph():
    torch._dynamo.reset()
    model = Transformer(replace(TINY, vocab=11)).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for S, T in ((3, 2), (5, 7)):
        source, target = torch.randint(4, 11, (2, S)), torch.randint(4, 11, (2, T))
        torch.testing.assert_close(compiled(source, target), model(source, target))
    torch._dynamo.reset()


@pytest.mark.parametrize("source_vocab", [None, 9])
def test_an_identifier_out_of_range_is_named_with_its_side(source_vocab):
    model = Transformer(replace(TINY, vocab=11, source_vocab=source_vocab))
    with pytest.raises(ValueError, match=rf"^source must lie in 0\.\.{(source_vocab or 11) - 1}, not 4\.\.12"):
        model(torch.tensor([[4, 12]]), torch.tensor([[1, 5]]))
    with pytest.raises(ValueError, match=r"^target must lie in 0\.\.10, not 1\.\.11"):
        model(torch.tensor([[4, 2]]), torch.tensor([[1, 11]]))


def test_a_source_must_be_able_to_end():
    with pytest.raises(ValueError, match=r"^eos must lie in 0\.\.1 \(source_vocab\), got 2"):
        replace(SMALL, source_vocab=2)
    with pytest.raises(ValueError, match=r"^unk must lie in 0\.\.2 \(source_vocab\), got 3"):
        replace(SMALL, source_vocab=3)


@pytest.mark.parametrize(
    "change",
    [
        {"N": 0}, {"d_model": -2}, {"d_ff": 2.5}, {"h": "8"}, {"vocab": 0}, {"source_vocab": 0}, {"d_k": 0}, {"d_v": -1},
        {"P_drop": 1.0}, {"P_drop": -0.1}, {"eps_ls": "0.1"}, {"P_drop_attention": 2}, {"P_drop_ffn": None},
        {"norm": "middle"}, {"activation": "tanh"}, {"positions": "none"}, {"max_positions": 0}, {"N": None},
        {"pad": -1}, {"bos": 37000}, {"eos": None}, {"unk": 1.5}, {"N_decoder": 0}, {"N": True},
        {"eps_norm": 0.0}, {"eps_norm": float("nan")}, {"bias": "no"}, {"final_norm": 1}, {"norm": ["post"]}, {"h": 7}, {"d_model": 507, "h": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_field_that_makes_no_model_is_named(change):
    name = list(change)[-1] if len(change) == 1 else "d_model"
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        replace(BASE, **change)


@pytest.mark.parametrize("change, said", [
    ({"P_drop": np.float32(0.1)}, r"P_drop must be a Python float in \[0, 1\), got np.float32\(0.1\)"),
    ({"eps_norm": np.float32(0.1)}, r"eps_norm must be a Python float in \(0, 1\)"),
    ({"N": np.int64(6)}, r"N must be a whole number, a Python int, got np.int64\(6\)"),
    ({"pad": np.int64(0)}, r"pad must be a Python int in 0..36999, got np.int64\(0\)"),
])
def test_a_field_of_another_type_says_which_is_wanted(change, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        replace(BASE, **change)


def test_an_output_bias_is_added_to_the_logits_and_to_nothing_else():
    ours = build(replace(SMALL, output_bias=True))
    plain = Transformer(SMALL).double().eval()
    left_over = plain.load_state_dict(ours.state_dict(), strict=False)
    assert left_over.unexpected_keys == ["output_bias.bias"] and not left_over.missing_keys
    source, target = batch()
    torch.testing.assert_close(ours(source, target), plain(source, target) + ours.output_bias.bias)
    ours(source, target)[..., 5].sum().backward()
    assert ours.output_bias.bias.grad.nonzero().tolist() == [[5]]


def test_every_field_has_a_default():
    assert Config(**{field.name: getattr(BASE, field.name) for field in fields(Config)}) == BASE


BAD = [
    (torch.ones(2, 3), TypeError, "torch.float32"),
    (torch.ones(2, 3, dtype=torch.bool), TypeError, "torch.bool"),
    (torch.ones(2, 3, dtype=torch.uint8), TypeError, "torch.uint8"),
    ([[5, 2]], TypeError, "list"),
    (torch.tensor([5, 2]), ValueError, r"\(2,\)"),
    (torch.ones(2, 0, dtype=torch.long), ValueError, r"\(2, 0\)"),
    (torch.tensor([[5, 2], [5, vocab]]), ValueError, str(vocab)),
    (torch.tensor([[5, 2], [5, -1]]), ValueError, "-1"),
    (torch.tensor([[5, 2]]), ValueError, "rows"),
]


@pytest.mark.parametrize("ids, error, message", BAD)
def test_bad_batches_are_refused(ids, error, message):
    model, good = Transformer(SMALL), torch.tensor([[1, 5, 2], [1, 2, 0]])
    with pytest.raises(error, match=message):
        model(ids, good)
    with pytest.raises(error, match=message):
        model(good, ids)


def test_a_target_may_hold_padding_anywhere():
    "Some published models begin targets with it, and a model with random weights may write it: to the decoder it is a token."
    model, source = Transformer(SMALL).double().eval(), torch.tensor([[5, 6, 2]])
    target, state, steps = torch.tensor([[0, 6, 0, 5]]), model.start(source), []
    for ids in target.T:
        logits, state = model.step(ids, state)
        steps.append(logits)
    torch.testing.assert_close(torch.stack(steps, 1), model(source, target))


def test_memory_of_another_source_is_refused():
    model, (source, target) = Transformer(SMALL), batch()
    with pytest.raises(ValueError, match="memory"):
        model.decode(target, model.encode(source), source[:, :-1])


def test_padding_that_is_the_end_is_refused():
    with pytest.raises(ValueError, match="pad and eos must differ"):
        Config(pad=2, eos=2)
    assert Config(pad=9, bos=9, eos=0).pad == 9  # as in Marian's models


@pytest.mark.parametrize("unk", [0, 2])
def test_an_unknown_word_is_neither_padding_nor_the_end(unk):
    with pytest.raises(ValueError, match=f"^unk must differ from pad=0 and eos=2, got {unk}$"):
        Config(unk=unk)


def test_a_size_of_2_to_the_31_is_refused():
    assert Config(vocab=2**31 - 1).vocab == 2**31 - 1
    with pytest.raises(ValueError, match=r"vocab must be a whole number, 1 or more and below 2\*\*31, got 2147483648"):
        Config(vocab=2**31)
