"""Chapter 05: normalisation, residual connections and the feed-forward network, against torch and by properties."""

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

from annotated import layers
from annotated.after import RMSNorm
from annotated.layers import AddNorm, FeedForward, FusedLayerNorm, LayerNorm, PreNorm
from annotated.multihead import MultiHeadAttention

B, T, h, d_model, d_ff = 2, 5, 3, 21, 13


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randomised(module, std=0.5):
    """The module in double precision, every parameter drawn anew, so that none is 0 or 1."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.double()


def numbers(*shape, **options):
    return torch.randn(*shape, dtype=torch.double, **options)


# ---- layer normalisation


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 5, 7)])
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_layer_norm_is_torchs(shape, eps):
    ours, theirs = randomised(LayerNorm(7, eps)), nn.LayerNorm(7, eps).double()
    theirs.load_state_dict({"weight": ours.gain, "bias": ours.bias})
    x, upstream = numbers(*shape, requires_grad=True), numbers(*shape)
    torch.testing.assert_close(ours(x), theirs(x))
    gradients = torch.autograd.grad((ours(x) * upstream).sum(), [x, ours.gain, ours.bias])
    torch.testing.assert_close(
        gradients, torch.autograd.grad((theirs(x) * upstream).sum(), [x, theirs.weight, theirs.bias]))


def test_layer_norm_by_hand():
    torch.testing.assert_close(LayerNorm(4)(torch.tensor([9.0, 1, 3, 3])), torch.tensor([5 / 3, -1, -1 / 3, -1 / 3]))


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1e-3, 1.0])
def test_variance_is_biased_and_eps_inside_the_root(scale):
    x = scale * numbers(11, 5)
    expected = torch.stack([(row - row.sum() / 5) / (((row - row.sum() / 5) ** 2).sum() / 5 + 1e-6) ** 0.5 for row in x])
    torch.testing.assert_close(LayerNorm(5).double()(x), expected)


def test_equal_features_give_the_bias_and_a_bounded_gradient():
    norm, x = randomised(LayerNorm(7)), torch.full((2, 7), 3.0, dtype=torch.double, requires_grad=True)
    y = norm(x)
    torch.testing.assert_close(y, norm.bias.expand(2, 7))
    (y * numbers(2, 7)).sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() < 1e4  # 1 / sqrt(eps), not 1 / eps


def test_scale_and_shift_of_a_position_are_divided_out():
    norm, x = randomised(LayerNorm(7, eps=0)), numbers(B, T, 7)
    torch.testing.assert_close(norm(x), norm(3 * x + 5))
    assert not torch.allclose(norm(x), norm(-x))


def test_a_position_sees_only_itself():
    norm, x = randomised(LayerNorm(7)), numbers(B, T, 7)
    other = numbers(B, T, 7) * 100
    other[1, 2] = x[1, 2]
    assert torch.equal(norm(x)[1, 2], norm(other)[1, 2])


def test_training_and_use_are_one_function():
    norm, x = randomised(LayerNorm(7)), numbers(B, T, 7)
    assert torch.equal(norm.train()(x), norm.eval()(x))
    assert not list(norm.buffers())  # no running averages


@pytest.mark.parametrize("shape", [(2, 5, 1), (2, 5, 8), (7, 5), ()])
def test_a_wrong_width_is_named(shape):
    with pytest.raises(ValueError, match=r"\(\.\.\., 7\)"):
        LayerNorm(7)(torch.zeros(shape))


@pytest.mark.parametrize("kind", [LayerNorm, FusedLayerNorm, RMSNorm])
@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
def test_whole_numbers_are_not_normalised(kind, dtype):
    with pytest.raises(TypeError, match=f"x must hold floating-point numbers, not {dtype}"):
        kind(7)(torch.ones(2, 7, dtype=dtype))


def test_state_dict_names_are_stable():
    names = set(nn.ModuleDict({"wrap": AddNorm(7), "network": FeedForward(7, 11)}).state_dict())
    assert names == {"wrap.norm.gain", "wrap.norm.bias", *(f"network.W_{i}.{p}" for i in (1, 2) for p in ("weight", "bias"))}


# ---- residual connections


@pytest.mark.parametrize("wrap", [AddNorm, PreNorm])
def test_order_of_adding_and_normalising(wrap):
    block, x, W = randomised(wrap(7)), numbers(B, T, 7), numbers(7, 7)
    weight, bias = block.norm.gain, block.norm.bias
    if wrap is AddNorm:
        expected = F.layer_norm(x + x @ W, (7,), weight, bias, 1e-6)
    else:
        expected = x + F.layer_norm(x, (7,), weight, bias, 1e-6) @ W
    torch.testing.assert_close(block(x, lambda x: x @ W), expected)


@pytest.mark.parametrize("wrap", [AddNorm, PreNorm])
def test_eps_reaches_the_norm(wrap):
    norm, x = wrap(7, eps=0.25).norm, numbers(B, T, 7)
    assert norm.eps == 0.25
    torch.testing.assert_close(FusedLayerNorm.of(norm.double())(x), norm(x))


def test_dropout_is_on_the_sublayers_output_only():
    x = numbers(B, T, 7) + 10
    block = PreNorm(7, P_drop=0.5).double()
    change = block(x, torch.ones_like) - x  # 0 where dropped, 1 / (1 - P_drop) elsewhere
    assert set(change.flatten().round(decimals=9).tolist()) == {0.0, 2.0}
    assert torch.equal(block.eval()(x, torch.ones_like), x + 1)


def test_dropout_comes_before_the_norm():
    y = AddNorm(64, P_drop=0.5).double()(numbers(B, T, 64), torch.tanh)
    assert not (y == 0).any()
    torch.testing.assert_close(y.mean(-1), torch.zeros(B, T, dtype=torch.double))
    torch.testing.assert_close(y.var(-1, correction=0), torch.ones(B, T, dtype=torch.double), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wrap", [AddNorm, PreNorm])
@pytest.mark.parametrize("sublayer", [lambda x: x[:, :1], lambda x: x.mean(-1, keepdim=True), lambda x: x[0]])
def test_a_sublayer_that_changes_the_shape_is_refused(wrap, sublayer):
    with pytest.raises(ValueError, match="keep the shape"):  # each of these would broadcast
        wrap(7)(torch.zeros(B, T, 7), sublayer)


@pytest.mark.parametrize("P_drop", [-0.1, 1.5])
@pytest.mark.parametrize("make", [lambda p: AddNorm(7, p), lambda p: FeedForward(7, 11, P_drop=p)])
def test_a_probability_is_one(make, P_drop):
    with pytest.raises(ValueError, match="probability"):
        make(P_drop)


# ---- the feed-forward network


def test_feed_forward_is_two_convolutions_of_width_1():
    network, x = randomised(FeedForward(7, 11)), numbers(B, T, 7)
    first, second = network.W_1, network.W_2
    hidden = F.conv1d(x.mT, first.weight[..., None], first.bias).clamp(min=0)
    torch.testing.assert_close(network(x), F.conv1d(hidden, second.weight[..., None], second.bias).mT)


def test_feed_forward_works_position_by_position():
    network, x = randomised(FeedForward(7, 11)), numbers(B, T, 7, requires_grad=True)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(network(x[:, order]), network(x)[:, order])
    gradient, = torch.autograd.grad(network(x)[1, 2].sum(), x)
    assert (gradient[1, 2] != 0).all()
    gradient[1, 2] = 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("activation", [torch.relu, F.gelu, F.silu])
def test_activation_stands_between_the_two_matrices(activation):
    network, x = randomised(FeedForward(7, 11, activation)), numbers(B, T, 7)
    hidden = activation(x @ network.W_1.weight.T + network.W_1.bias)
    torch.testing.assert_close(network(x), hidden @ network.W_2.weight.T + network.W_2.bias)


def test_feed_forward_drops_after_the_activation():
    network = randomised(FeedForward(7, 1000, P_drop=0.5))
    seen = []
    network.W_2.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = numbers(7)
    network(x), network.eval()(x)
    dropped, whole = seen
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    assert 0.4 < kept[whole > 0].double().mean() < 0.6


# ---- together: torch's encoder layer


@pytest.mark.parametrize("wrap", [AddNorm, PreNorm])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_is_torchs(wrap, activation):
    theirs = randomised(nn.TransformerEncoderLayer(
        d_model, h, d_ff, dropout=0.0, activation=activation, layer_norm_eps=1e-6, batch_first=True, norm_first=wrap is PreNorm))
    attention = MultiHeadAttention(d_model, h, bias=True).double()
    network = FeedForward(d_model, d_ff, {"relu": torch.relu, "gelu": F.gelu}[activation]).double()
    wraps = [wrap(d_model, 0.0, 1e-6).double() for _ in range(2)]
    copied = copy_weights(theirs, attention, network, wraps)
    assert copied == sum(p.numel() for p in theirs.parameters())

    x = numbers(B, T, d_model, requires_grad=True)
    real = torch.arange(T) < torch.tensor([[5], [3]])
    y = wraps[0](x, lambda x: attention(x, x, real[:, None, None]))
    ours, expected = wraps[1](y, network)[real], theirs(x, src_key_padding_mask=~real)[real]
    torch.testing.assert_close(ours, expected)
    upstream = numbers(*expected.shape)
    pairs = [(attention.W_O, theirs.self_attn.out_proj), (network.W_1, theirs.linear1), (network.W_2, theirs.linear2)]
    our_weights = [x, *(a.weight for a, _ in pairs), wraps[0].norm.gain, wraps[1].norm.bias]
    their_weights = [x, *(b.weight for _, b in pairs), theirs.norm1.weight, theirs.norm2.bias]
    torch.testing.assert_close(
        torch.autograd.grad((ours * upstream).sum(), our_weights), torch.autograd.grad((expected * upstream).sum(), their_weights))


@torch.no_grad()
def copy_weights(theirs, attention, network, wraps):
    """Copy torch's layer into ours; returns how many numbers were copied."""
    into = [attention.W_Q.weight, attention.W_K.weight, attention.W_V.weight, attention.W_Q.bias, attention.W_K.bias, attention.W_V.bias]
    source = [*theirs.self_attn.in_proj_weight.chunk(3), *theirs.self_attn.in_proj_bias.chunk(3)]
    for ours, layer in ((attention.W_O, theirs.self_attn.out_proj), (network.W_1, theirs.linear1), (network.W_2, theirs.linear2)):
        into += [ours.weight, ours.bias]
        source += [layer.weight, layer.bias]
    for ours, norm in zip(wraps, (theirs.norm1, theirs.norm2)):
        into += [ours.norm.gain, ours.norm.bias]
        source += [norm.weight, norm.bias]
    for ours, values in zip(into, source, strict=True):
        ours.copy_(values)
    return sum(values.numel() for values in source)


@pytest.mark.parametrize("module, inputs", [
    (LayerNorm(7), ()), (FeedForward(7, 11), ()), (AddNorm(7, 0.1), (torch.tanh,)), (PreNorm(7, 0.1), (torch.tanh,))])
def test_precision_is_kept(module, inputs):
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(B, T, 7).to(dtype)
        assert module.to(dtype)(x, *inputs).dtype == dtype


def test_large_numbers_of_float16_are_normalised_as_torch_does():
    x = torch.tensor([6e4, 6e4, 6e4, -6e4]).half()  # whose sum float16 cannot hold
    theirs = torch.nn.LayerNorm(4, eps=1e-6).half()
    torch.testing.assert_close(LayerNorm(4).half()(x), theirs(x), atol=2e-3, rtol=2e-3)


def test_shape_comments_hold():
    with checked(layers) as seen:
        FeedForward(7, 11)(torch.randn(B, T, 7))
        LayerNorm(7)(torch.randn(3, B, T, 7))
        AddNorm(7)(torch.randn(B, T, 7), torch.tanh)
        PreNorm(7)(torch.randn(B, T, 7), torch.tanh)
    assert not unseen(seen, layers)


@pytest.mark.parametrize("returned, said", [(None, "NoneType"), (lambda x: (x, x), "tuple"), (lambda x: x[..., :3], r"\(2, 5, 3\)")])
def test_what_a_sub_layer_returns_is_named(returned, said):
    with pytest.raises(ValueError, match=f"must keep the shape .*{said}"):
        AddNorm(7)(torch.randn(2, 5, 7), returned or (lambda x: None))


def test_squares_do_not_overflow_in_half_precision():
    x = 300 * torch.randn(3, 64)
    expected = F.layer_norm(x.half().float(), (64,), eps=1e-6)
    torch.testing.assert_close(LayerNorm(64).half()(x.half()).float(), expected, atol=5e-3, rtol=5e-3)
    expected = F.rms_norm(x.half().float(), (64,), eps=1e-6)
    torch.testing.assert_close(RMSNorm(64).half()(x.half()).float(), expected, atol=5e-3, rtol=5e-3)
