"""Chapter 16: the layers of Table 1, what they cost, how far they reach, and bad input."""

import math
from functools import partial

import pytest
import torch
from shapes import checked, unseen
from torch import nn

from annotated import comparison
from annotated.attention import scaled_dot_product_attention
from annotated.comparison import (
    Convolution,
    Recurrent,
    _band_mask,
    _counted,
    _exponent,
    _kept_bytes,
    _longest_chain,
    _reach,
    _table_layers,
    _windows,
    multiplications,
    path_length,
    restricted_attention,
    separable_convolution,
)
from annotated.layers import FeedForward
from annotated.masks import padding_mask
from annotated.multihead import MultiHeadAttention

B, H, N, D, D_K, D_V = 2, 3, 29, 7, 5, 13
LENGTHS, NEIGHBOURHOODS = (1, 2, 3, 8, 12, N), (1, 3, 5, 9, 2 * N + 5)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def double(layer):
    return layer.double() if isinstance(layer, nn.Module) else layer


# ---- recurrent


def lstm_pair():
    theirs, ours = nn.LSTM(D, D, batch_first=True).double(), Recurrent(D).double()
    ours.cell.load_state_dict({name[:-3]: w for name, w in theirs.state_dict().items()})
    return theirs, ours


def test_the_loop_is_torchs_lstm():
    theirs, ours = lstm_pair()
    x = draw(B, N, D)
    torch.testing.assert_close(ours(x), theirs(x)[0])


def test_as_many_rounds_as_words_are_the_loop_and_fewer_see_a_shorter_past():
    _, ours = lstm_pair()
    x = draw(B, N, D)
    torch.testing.assert_close(ours.rounds(x, N), ours(x))
    torch.testing.assert_close(ours.rounds(x, N + 3), ours(x))
    for count in (1, 4):
        y = ours.rounds(x, count)
        torch.testing.assert_close(y[:, :count], ours(x)[:, :count])
        torch.testing.assert_close(y[:, -1], ours(x[:, -count:])[:, -1])


# ---- convolutions


@pytest.mark.parametrize("k, dilation", [(1, 1), (3, 1), (5, 1), (3, 4), (7, 2)])
def test_a_convolution_sums_over_its_places(k, dilation):
    layer, x = Convolution(D, k, dilation).double(), draw(B, 11, D)
    expected = layer.conv.bias.expand(B, 11, D).clone()
    for t in range(11):
        for place in range(k):
            s = t + (place - k // 2) * dilation
            if 0 <= s < 11:
                expected[:, t] += x[:, s] @ layer.conv.weight[:, :, place].T
    torch.testing.assert_close(layer(x), expected)


def test_a_separable_convolution_is_a_convolution_with_few_weights():
    separable, plain, x = separable_convolution(D, 5).double(), Convolution(D, 5).double(), draw(B, 11, D)
    depthwise, pointwise = separable[0].conv, separable[1]
    plain.conv.weight.data = pointwise.weight[:, :, None] * depthwise.weight[:, 0]
    plain.conv.bias.data = pointwise(depthwise.bias)
    torch.testing.assert_close(separable(x), plain(x))
    assert sum(w.numel() for w in separable.parameters()) == 5 * D + D + D * D + D


# ---- restricted self-attention


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("r", NEIGHBOURHOODS)
def test_restricted_attention_is_attention_with_a_band_mask(n, r):
    inputs = [draw(B, H, n, width, seed=i).requires_grad_() for i, width in enumerate((D_K, D_K, D_V))]
    ours = restricted_attention(*inputs, r=r)
    theirs = scaled_dot_product_attention(*inputs, _band_mask(n, r))
    torch.testing.assert_close(ours, theirs)
    weight = draw(B, H, n, D_V, seed=9)
    gradients = [torch.autograd.grad((y * weight).sum(), inputs) for y in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_band_mask_is_the_distance(n):
    for r in NEIGHBOURHOODS:
        assert _band_mask(n, r).tolist() == [[abs(i - j) <= r // 2 for j in range(n)] for i in range(n)]


@pytest.mark.parametrize("r", NEIGHBOURHOODS)
def test_padding_is_hidden_and_an_empty_neighbourhood_gives_0(r):
    ids = torch.ones(B, N, dtype=torch.long)
    ids[1, 4:] = 0
    Q, K, V = (draw(B, H, N, width, seed=i) for i, width in enumerate((D_K, D_K, D_V)))
    ours = restricted_attention(Q, K, V, padding_mask(ids), r)
    torch.testing.assert_close(ours, scaled_dot_product_attention(Q, K, V, padding_mask(ids) & _band_mask(N, r)))
    far = 4 + r // 2  # the first position that sees padding only
    assert far >= N or (ours[1, :, far:] == 0).all()
    moved = restricted_attention(Q, K + 5 * (ids == 0)[:, None, :, None], V, padding_mask(ids), r)
    torch.testing.assert_close(ours, moved)


def test_it_serves_as_the_attention_of_heads():
    layer, x = MultiHeadAttention(12, 3).double(), draw(B, N, 12)
    expected = layer(x, x, _band_mask(N, 5))
    layer.attention = partial(restricted_attention, r=5)
    torch.testing.assert_close(layer(x, x), expected)


def test_two_axes_and_single_precision_suffice():
    x = torch.randn(N, D)
    torch.testing.assert_close(restricted_attention(x, x, x, r=3), scaled_dot_product_attention(x, x, x, _band_mask(N, 3)))


def test_windows_overlap_and_are_filled_up():
    x = torch.arange(1, 8)[:, None]
    assert _windows(x, 6, 2, 1)[..., 0].tolist() == [
        [0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 0], [5, 6, 7, 0, 0, 0]]


def test_its_cost_is_linear_in_the_length():
    """Twice the words, twice the products and the memory; the band mask takes four times as many."""
    short, long = (torch.randn(1, n, 8) for n in (240, 480))
    layer = _table_layers(8, r=9)["self-attention (restricted)"]
    assert _counted(layer, long) == 2 * _counted(layer, short)
    assert _kept_bytes(layer, long) < 2.1 * _kept_bytes(layer, short)
    banded = lambda x: scaled_dot_product_attention(x, x, x, _band_mask(x.shape[1], 9))  # noqa: E731
    assert _counted(banded, long) == 4 * _counted(banded, short) > 10 * _counted(layer, long)
    assert _kept_bytes(banded, long) > 3.5 * _kept_bytes(banded, short)


# ---- counting


@pytest.mark.parametrize("n, d, k, r", [(1, 1, 1, 1), (2, 7, 3, 5), (29, 7, 5, 9), (64, 3, 7, 13), (31, 11, 3, 99)])
def test_the_formulas_are_what_torchs_counter_sees(n, d, k, r):
    formula, layers = multiplications(n, d, k, r), _table_layers(d, k, r)
    assert set(formula) == set(layers)
    for name, layer in layers.items():
        assert _counted(layer, torch.randn(1, n, d)) == formula[name], name


def test_the_counter_by_hand():
    assert _counted(torch.matmul, torch.randn(2, 3), torch.randn(3, 5)) == 2 * 3 * 5
    assert _counted(torch.relu, torch.randn(2, 3)) == 0


@pytest.mark.parametrize("limit, attention, ffn", [(4, False, False), (2, True, False), (2, True, True)])
def test_the_crossover_with_an_lstm(limit, attention, ffn):
    d = 8
    heads, network, lstm = MultiHeadAttention(d, 2), FeedForward(d, 4 * d), Recurrent(d)
    ours = (lambda x: heads(x, x)) if attention else (lambda x: scaled_dot_product_attention(x, x, x))
    more = network if ffn else (lambda x: x)
    for n, sign in ((limit * d - 1, -1), (limit * d, 0), (limit * d + 1, 1)):
        x = torch.randn(1, n, d)
        difference = _counted(lambda x: more(ours(x)), x) - _counted(lambda x: more(lstm(x)), x)
        assert (difference > 0) - (difference < 0) == sign


def test_with_its_ffn_attention_forms_more_products_at_any_length():
    heads, network, lstm = MultiHeadAttention(8, 2), FeedForward(8, 32), Recurrent(8)
    for n in (1, 7, 40):
        x = torch.randn(1, n, 8)
        assert _counted(lambda x: network(heads(x, x)), x) > _counted(lstm, x)


def test_exponents():
    assert _exponent([10, 20], [7, 28]) == pytest.approx(2)
    assert _exponent([3, 5, 9, 40], [2 * s**-0.5 for s in (3, 5, 9, 40)]) == pytest.approx(-0.5)
    assert _exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0)
    x, y = [1, 2, 8, 9], [3, 1, 4, 9]
    logs = torch.tensor([[math.log(a), 1.0] for a in x]), torch.tensor([[math.log(b)] for b in y])
    assert _exponent(x, y) == pytest.approx(torch.linalg.lstsq(*logs).solution[0].item(), rel=1e-4)


# ---- memory and chains


def test_what_is_kept_counts_each_piece_of_memory_once_and_no_weights():
    x = torch.randn(1, 10, 4)
    assert _kept_bytes(lambda x: scaled_dot_product_attention(x, x, x), x) == 4 * (10 * 4 + 10 * 10)
    assert _kept_bytes(lambda x: x.mT @ x, x) == 4 * 10 * 4  # two views of one tensor
    assert _kept_bytes(nn.Linear(4, 4), x) == 4 * 10 * 4
    assert _kept_bytes(lambda x: x + 1, x) == 0


def test_the_longest_chain():
    x = torch.randn(3, 3, requires_grad=True)
    assert _longest_chain(x @ x) == 1
    assert _longest_chain((x @ x) @ (x @ x)) == 2
    assert _longest_chain((x @ x @ x @ x) + x @ x) == 3
    assert _longest_chain(x.relu()) == 0
    y = x
    for _ in range(3000):  # deeper than a recursion could go
        y = y.relu()
    assert _longest_chain(y @ x) == 1


def test_only_the_recurrent_chain_grows():
    for name, layer in _table_layers(8, k=3, r=5).items():
        chains = [_longest_chain(layer(torch.randn(1, n, 8, requires_grad=True))) for n in (8, 16)]
        assert chains == [8, 16] if name == "recurrent" else chains[0] == chains[1] <= 2, name


# ---- reach and paths


def test_reach_is_what_a_changed_word_changes():
    """Gradients against the plain test: change one word, see which outputs move."""
    for name, layer in _table_layers(D, k=3, r=5).items():
        f, found = double(layer), _reach(double(layer), 9, D)
        x = draw(1, 9, D)
        before = f(x)
        for j in range(9):
            changed = x.clone()
            changed[:, j] += 1
            moved = (f(changed) != before).any(-1)[0]
            assert torch.equal(found[:, j], moved), (name, j)


def test_reach_of_each_layer():
    layers = {name: double(layer) for name, layer in _table_layers(D, k=3, r=5).items()}
    expected = {
        "self-attention": _band_mask(9, 99), "recurrent": torch.ones(9, 9).tril().bool(),
        "convolutional": _band_mask(9, 3), "convolutional (separable)": _band_mask(9, 3),
        "self-attention (restricted)": _band_mask(9, 5),
        "convolutional (dilated)": _band_mask(9, 7) & (torch.arange(9)[:, None] - torch.arange(9)).remainder(3).eq(0),
    }
    for name, layer in layers.items():
        assert torch.equal(_reach(layer, 9, D), expected[name]), name


def stack_of(make):
    return lambda depth: nn.Sequential(*(make(layer) for layer in range(depth))).double()


def repeated(f):
    def apply(x, depth):
        for _ in range(depth):
            x = f(x)
        return x

    return lambda depth: partial(apply, depth=depth)


@pytest.mark.parametrize("n", [2, 5, 9, 13])
def test_path_lengths(n):
    for k in (3, 5):
        assert path_length(stack_of(lambda _, k=k: Convolution(4, k)), n, 4) == math.ceil((n - 1) / (k // 2))
    assert path_length(stack_of(lambda i: Convolution(4, 3, 2**i)), n, 4) == 1 + math.floor(math.log2(n - 1))
    assert path_length(repeated(lambda x: restricted_attention(x, x, x, r=7)), n, 4) == math.ceil((n - 1) / 3)
    assert path_length(repeated(lambda x: scaled_dot_product_attention(x, x, x)), n, 4) == 1
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    assert path_length(lambda depth: partial(Recurrent(4).double().rounds, count=depth), n, 4, lower) == n


def test_a_separable_convolution_as_wide_as_the_sentence_needs_two_layers():
    for n, k, depth in ((9, 9, 2), (9, 17, 1), (9, 15, 2)):
        assert path_length(stack_of(lambda _, k=k: separable_convolution(4, k)), n, 4) == depth


# ---- bad input

X = torch.randn(1, 9, 4)
BAD = {
    "an even kernel": (ValueError, "k must be odd", lambda: Convolution(4, 4)),
    "no kernel": (ValueError, "k must be odd", lambda: Convolution(4, -1)),
    "an even separable kernel": (ValueError, "k must be odd", lambda: separable_convolution(4, 2)),
    "no dilation": (ValueError, "dilation must be at least 1, not 0", lambda: Convolution(4, 3, 0)),
    "an even neighbourhood": (ValueError, "r must be odd", lambda: restricted_attention(X, X, X, r=4)),
    "no neighbourhood": (ValueError, "r must be odd.*not -1", lambda: restricted_attention(X, X, X, r=-1)),
    "a fraction of it": (TypeError, "r must be a whole number, not float", lambda: restricted_attention(X, X, X, r=3.0)),
    "more keys than queries": (
        ValueError, "as many keys as queries, at least one, not 8 and 9", lambda: restricted_attention(X[:, :8], X, X)),
    "no words": (ValueError, "not 0 and 0", lambda: restricted_attention(X[:, :0], X[:, :0], X[:, :0])),
    "widths that differ": (ValueError, "Q and K", lambda: restricted_attention(X[..., :3], X, X)),
    "a mask of numbers": (TypeError, "mask must be boolean", lambda: restricted_attention(X, X, X, torch.ones(1, 9))),
    "a mask for each query": (
        ValueError, r"mask must have the shape \(..., 1, 9\), not \(9, 9\)",
        lambda: restricted_attention(X, X, X, _band_mask(9, 3))),
    "no length": (ValueError, "n must be at least 1, not 0", lambda: multiplications(0, 4)),
    "no places": (ValueError, "k must be at least 1, not 0", lambda: multiplications(4, 4, k=0)),
    "no middle": (ValueError, "r must be odd, so that there is a middle, not 4", lambda: multiplications(4, 4, r=4)),
    "one size": (ValueError, "sizes", lambda: _exponent([3, 3], [1, 2])),
    "another number of values": (ValueError, "2 sizes and 1 values", lambda: _exponent([3, 4], [1])),
    "a value of 0": (ValueError, "above 0, not 0", lambda: _exponent([3, 4], [1, 0])),
    "a stack that does not connect": (ValueError, "within 3 layers", lambda: path_length(repeated(lambda x: x), 3, 4)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case):
    error, message, call = BAD[case]
    with pytest.raises(error, match=message):
        call()


def test_shape_comments():
    with checked(comparison) as seen:
        for layer in _table_layers(D, k=3, r=5).values():
            double(layer)(draw(B, 11, D))
            _reach(double(layer), 9, D)
        Recurrent(D).rounds(torch.randn(B, 11, D), 3)
        restricted_attention(X, X, X, torch.ones(1, 9, dtype=torch.bool))
        _band_mask(7, 3)
        path_length(repeated(lambda x: scaled_dot_product_attention(x, x, x)), 3, 4)
    assert not unseen(seen, comparison)
