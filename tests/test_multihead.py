"""Chapter 04: multi-head attention against torch's own and the formula, its properties, and bad input."""

from itertools import product

import pytest
import torch
from shapes import checked, unseen
from torch import nn

from annotated import multihead
from annotated.attention import attention_weights, scaled_dot_product_attention
from annotated.masks import causal_mask, padding_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention, _head_widths

B, T, S, H, D_K, D_V = 2, 5, 11, 3, 7, 13
D_MODEL = H * D_K  # what torch's layer asks for; others are tried where it is not compared with
MASKS = ["none", "padding", "pairs", "both", "heads"]


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def inputs(d_model=D_MODEL):
    return draw(B, T, d_model, seed=1), draw(B, S, d_model, seed=2)


def make(*sizes, **options):
    torch.manual_seed(0)
    return MultiHeadAttention(*sizes, **options).double()


def some_mask(kind):
    """A mask of ours, and the same as torch's layer wants it: True = may not attend."""
    generator = torch.Generator().manual_seed(3)
    padding, pairs, heads = (torch.rand(s, generator=generator) < 0.7 for s in ((B, S), (T, S), (B, H, T, S)))
    padding[:, 0] = pairs[:, 0] = heads[..., 0] = True
    return {
        "none": (None, {}),
        "padding": (padding[:, None, None], {"key_padding_mask": ~padding}),
        "pairs": (pairs, {"attn_mask": ~pairs}),
        "both": (padding[:, None, None] & pairs, {"key_padding_mask": ~padding, "attn_mask": ~pairs}),
        "heads": (heads, {"attn_mask": ~heads.flatten(0, 1)}),
    }[kind]


def torchs(layer):
    """torch's layer with the weights of ours."""
    theirs = nn.MultiheadAttention(layer.d_model, layer.h, bias=layer.W_Q.bias is not None, batch_first=True).double()
    for end in ("weight", "bias") if layer.W_Q.bias is not None else ("weight",):
        stacked = torch.cat([getattr(W, end).detach() for W in (layer.W_Q, layer.W_K, layer.W_V)])
        getattr(theirs, f"in_proj_{end}").data = stacked
        getattr(theirs.out_proj, end).data = getattr(layer.W_O, end).detach().clone()
    return theirs


def gradients(y, x, memory, layer):
    names, parameters = zip(*layer.named_parameters())
    loss = (y * draw(*y.shape, seed=4)).sum()
    return dict(zip(("x", "memory", *names), torch.autograd.grad(loss, [x, memory, *parameters]), strict=True))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_outputs_gradients_and_weights_are_torchs(kind, bias):
    ours, (mask, arguments) = make(D_MODEL, H, bias=bias), some_mask(kind)
    theirs = torchs(ours)
    x, memory = (x.requires_grad_() for x in inputs())
    a = ours(x, memory, mask)
    b, weights = theirs(x, memory, memory, average_attn_weights=False, **arguments)
    torch.testing.assert_close(a, b)
    K, _ = ours.keys_values(memory)
    torch.testing.assert_close(attention_weights(ours.split(ours.W_Q(x)), K, mask), weights)
    mine, other = gradients(a, x, memory, ours), gradients(b, x, memory, theirs)
    for name in ("x", "memory"):
        torch.testing.assert_close(mine[name], other[name])
    for end in ("weight", "bias") if bias else ("weight",):
        stacked = torch.cat([mine[f"{W}.{end}"] for W in ("W_Q", "W_K", "W_V")])
        torch.testing.assert_close(stacked, other[f"in_proj_{end}"])
        torch.testing.assert_close(mine[f"W_O.{end}"], other[f"out_proj.{end}"])


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_formula_head_by_head_and_word_by_word(bias):
    layer, (x, memory), (mask, _) = make(17, H, D_K, D_V, bias=bias), inputs(17), some_mask("heads")

    def through(W, head, width, vector):
        rows = slice(head * width, (head + 1) * width)
        return W.weight[rows] @ vector + (W.bias[rows] if bias else 0)

    found = layer(x, memory, mask)
    for b, t in product(range(B), range(T)):
        heads = []
        for i in range(H):
            q = through(layer.W_Q, i, D_K, x[b, t])
            keys = [through(layer.W_K, i, D_K, memory[b, s]) for s in range(S)]
            powers = [torch.exp(q @ keys[s] / D_K**0.5) * mask[b, i, t, s] for s in range(S)]
            values = [through(layer.W_V, i, D_V, memory[b, s]) for s in range(S)]
            heads.append(sum(p * v for p, v in zip(powers, values)) / sum(powers))
        torch.testing.assert_close(found[b, t], layer.W_O(torch.cat(heads)))


@pytest.mark.parametrize(
    "sizes", [(512, 8), (512, 1, 512, 512), (512, 32, 16, 16), (512, 8, 16, 64), (13, 3, 5, 7), (6, 6)]
)
def test_sizes_and_names_of_the_parameters(sizes):
    d_model, h, *widths = sizes
    d_k, d_v = widths or (d_model // h, d_model // h)
    assert _head_widths(*sizes) == (d_k, d_v)
    shapes = {name: tuple(p.shape) for name, p in MultiHeadAttention(*sizes, bias=True).state_dict().items()}
    rows = {"W_Q": (h * d_k, d_model), "W_K": (h * d_k, d_model), "W_V": (h * d_v, d_model), "W_O": (d_model, h * d_v)}
    expected = {f"{W}.weight": shape for W, shape in rows.items()} | {f"{W}.bias": s[:1] for W, s in rows.items()}
    assert shapes == expected
    assert list(MultiHeadAttention(*sizes).state_dict()) == [f"{W}.weight" for W in rows]


def test_one_width_may_be_given_and_the_other_left_out():
    assert _head_widths(12, 3, d_k=5) == (5, 4) and _head_widths(12, 3, d_v=5) == (4, 5)


def test_each_head_depends_on_every_input_feature():
    layer, x = make(12, 3), draw(1, T, 12)

    def heads(x):
        return scaled_dot_product_attention(layer.split(layer.W_Q(x)), *layer.keys_values(x))[0, :, 2]

    J = torch.autograd.functional.jacobian(heads, x)  # of (3, 4) by (1, T, 12)
    assert (J != 0).any(-2).all()


def test_heads_add_up_through_blocks_of_w_o():
    layer, (x, memory) = make(17, H, D_K, D_V), inputs(17)
    whole, parts = layer(x, memory), []
    for i in range(H):
        one = make(17, H, D_K, D_V)
        one.load_state_dict(layer.state_dict())
        one.W_O.weight.data[:, [c for c in range(H * D_V) if c // D_V != i]] = 0
        parts.append(one(x, memory))
    torch.testing.assert_close(sum(parts), whole)
    assert all(part.abs().max() > 0.01 for part in parts)


def test_self_attention_shuffles_its_outputs_with_its_inputs():
    layer, (_, x), order = make(D_MODEL, H), inputs(), torch.randperm(S, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(layer(x[:, order], x[:, order]), layer(x, x)[:, order])
    target = inputs()[0]
    torch.testing.assert_close(layer(target, x[:, order]), layer(target, x))
    causal = causal_mask(S)
    assert not torch.allclose(layer(x[:, order], x[:, order], causal), layer(x, x, causal)[:, order])


def test_sentences_do_not_mix():
    layer, (x, memory) = make(D_MODEL, H), inputs()
    for b in range(B):
        torch.testing.assert_close(layer(x, memory)[b : b + 1], layer(x[b : b + 1], memory[b : b + 1]))


def test_padding_has_no_influence():
    layer, (x, memory) = make(D_MODEL, H), inputs()
    ids = torch.tensor([[5] * 7 + [0] * 4, [5] * 11])
    other = memory.clone()
    other[0, 7:] = 1e3
    y = layer(x, other, padding_mask(ids))
    assert torch.equal(y, layer(x, memory, padding_mask(ids)))
    torch.testing.assert_close(y[:1], layer(x[:1], memory[:1, :7]))


def test_a_position_sees_nothing_later():
    layer, (_, x) = make(D_MODEL, H), inputs()
    other = x.clone()
    other[:, 6:] += 1
    a, b = (layer(z, z, causal_mask(S)) for z in (x, other))
    assert torch.equal(a[:, :6], b[:, :6]) and (a[:, 6:] != b[:, 6:]).any(-1).all()


def test_word_by_word_is_all_at_once():
    layer, (x, memory) = make(D_MODEL, H), inputs()
    K, V = layer.keys_values(memory)
    steps = [layer.attend(x[:, t : t + 1], K, V) for t in range(T)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, memory))
    K, V = layer.keys_values(x[:, :0])  # the decoder begins with nothing
    for t in range(T):
        k, v = layer.keys_values(x[:, t : t + 1])
        K, V = torch.cat([K, k], 2), torch.cat([V, v], 2)
        torch.testing.assert_close(layer.attend(x[:, t : t + 1], K, V), layer(x, x, causal_mask(T))[:, t : t + 1])


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("bias", [False, True])
def test_nothing_to_look_at_gives_the_bias_or_0_and_no_nan(bias):
    layer, (x, memory) = make(D_MODEL, H, bias=bias), inputs()
    mask = torch.ones(B, 1, T, S, dtype=torch.bool)
    mask[1, :, 3] = False
    with torch.autograd.detect_anomaly(check_nan=True):
        x.requires_grad_()
        y = layer(x, memory, mask)
        y.sum().backward()
    expected = layer.W_O.bias if bias else torch.zeros(D_MODEL, dtype=torch.double)
    assert torch.equal(y[1, 3], expected) and not torch.equal(y[1, 2], expected)
    assert (x.grad[1, 3] == 0).all() and (x.grad[1, 2] != 0).any()


def test_the_attention_function_is_called_with_heads_and_mask():
    seen, (x, memory), (mask, _) = [], inputs(17), some_mask("pairs")

    def spy(Q, K, V, mask):
        seen.append((*(tuple(z.shape) for z in (Q, K, V)), mask))
        return torch.ones(B, H, T, D_V, dtype=torch.double)

    layer = make(17, H, D_K, D_V, attention=spy)
    y = layer(x, memory, mask)
    assert seen == [((B, H, T, D_K), (B, H, S, D_K), (B, H, S, D_V), mask)] and seen[0][3] is mask
    torch.testing.assert_close(y, layer.W_O.weight.sum(1).expand(B, T, 17))


def test_dropout_follows_the_mode_and_hits_weights():
    dropping = AttentionDropout(scaled_dot_product_attention, 0.25)
    layer, (x, memory) = make(D_MODEL, H, attention=dropping), inputs()
    plain = make(D_MODEL, H)
    assert list(layer.state_dict()) == list(plain.state_dict()), "dropout must not change the names of weights"
    assert not torch.equal(layer(x, memory), layer(x, memory))
    layer.eval()
    assert torch.equal(layer(x, memory), plain(x, memory))
    Q, K, V = draw(B, H, T, D_K), draw(B, H, S, D_K, seed=1), torch.eye(S, dtype=torch.double).expand(B, H, S, S)
    mask = some_mask("heads")[0]
    torch.manual_seed(0)
    dropped, weights = dropping.train()(Q, K, V, mask), attention_weights(Q, K, mask)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    assert 0.65 < kept[mask].double().mean() < 0.85 and not kept[~mask].any()
    never = AttentionDropout(scaled_dot_product_attention, 0.0)
    assert torch.equal(never(Q, K, V, mask), scaled_dot_product_attention(Q, K, V, mask))


def layer_on(x, memory, mask=None):
    return MultiHeadAttention(12, 3)(x, memory, mask)


Z = torch.zeros
REFUSED = [
    (MultiHeadAttention, (10, 3), ValueError, "h=3 does not divide d_model=10"),
    (MultiHeadAttention, (10, 3, 5), ValueError, "h=3 does not divide d_model=10"),
    (MultiHeadAttention, (10, 3, None, 5), ValueError, "give d_k and d_v"),
    (MultiHeadAttention, (12, 0), ValueError, "h must be at least 1, not 0"),
    (MultiHeadAttention, (0, 3), ValueError, "d_model must be at least 1, not 0"),
    (MultiHeadAttention, (12, 3, 0), ValueError, "d_k must be at least 1, not 0"),
    (MultiHeadAttention, (12, 3, 4, -4), ValueError, "d_v must be at least 1, not -4"),
    (AttentionDropout, (scaled_dot_product_attention, 1.0), ValueError, "P_drop must be .* less than 1, not 1.0"),
    (AttentionDropout, (scaled_dot_product_attention, -0.1), ValueError, "P_drop must be at least 0"),
    (layer_on, (Z(2, 5, 13), Z(2, 7, 12)), ValueError, r"x must be \(2 sentences, positions, 12\), .* \(2, 5, 13\)"),
    (layer_on, (Z(2, 5, 12), Z(2, 7, 13)), ValueError, r"memory must be \(2 sentences, positions, 12\)"),
    (layer_on, (Z(5, 12), Z(2, 7, 12)), ValueError, r"x must be .* not of shape \(5, 12\)"),
    (layer_on, (Z(2, 5, 12), Z(7, 12)), ValueError, r"memory must be .* not of shape \(7, 12\)"),
    (layer_on, (Z(2, 5, 12), Z(3, 7, 12)), ValueError, r"memory must be \(2 sentences, .* shape \(3, 7, 12\)"),
    (layer_on, (Z(2, 5, 12), Z(2, 7, 12), Z(5, 7)), TypeError, "mask must be boolean"),
    (layer_on, (Z(2, 5, 12), Z(2, 7, 12), Z(2, 7) > 0), ValueError, r"mask must broadcast .* not \(2, 7\)"),
]


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: f"{call[0].__name__}: {call[3]}")
def test_bad_input_is_named(call):
    f, arguments, error, message = call
    with pytest.raises(error, match=message):
        f(*arguments)


def test_inputs_are_left_as_they_were():
    layer, before, after, (mask, _) = make(D_MODEL, H), inputs(), inputs(), some_mask("both")
    kept = mask.clone()
    layer(*after, mask)
    assert torch.equal(mask, kept) and all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_shape_comments():
    with checked(multihead) as seen:
        make(17, H, D_K, D_V)(*inputs(17), some_mask("both")[0])
    assert not unseen(seen, multihead)


def test_a_mask_of_three_axes_is_refused_even_where_it_would_fit():
    "With as many sentences as heads, a mask for each sentence would be read as one for each head."
    layer, x = MultiHeadAttention(12, 3), torch.randn(3, 5, 12)
    allowed = torch.ones(3, 5, 5, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask must be \(T, S\) or have four axes"):
        layer(x, x, allowed)
    torch.testing.assert_close(layer(x, x, allowed[:, None]), layer(x, x))
