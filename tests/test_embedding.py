"""Chapter 06: embeddings and positions against torch's own layers, loops, and what the paper claims of them."""

import math

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

from annotated import embedding
from annotated.embedding import (
    Embedding,
    LearnedPositions,
    _angles,
    _look_up,
    halves_encoding,
    positional_encoding,
)

B, T, VOCAB, D = 3, 5, 13, 22


@pytest.fixture
def tied():
    torch.manual_seed(0)
    return Embedding(VOCAB, D)


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (B, T), generator=torch.Generator().manual_seed(1))


# ---- embeddings


def test_a_look_up_is_a_product_with_one_hot_vectors(ids):
    weight = torch.randn(VOCAB, D, requires_grad=True)
    found, product = _look_up(weight, ids, "ids"), F.one_hot(ids, VOCAB).float() @ weight
    torch.testing.assert_close(found, product)
    upstream = torch.randn(B, T, D)
    by_rows, by_product = (torch.autograd.grad(x, weight, upstream)[0] for x in (found, product))
    torch.testing.assert_close(by_rows, by_product)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
def test_the_embedding_is_torchs_times_the_root(tied, ids, kind):
    torchs = nn.Embedding(VOCAB, D, _weight=tied.weight.detach().clone())
    found, expected = tied(ids.to(kind)), torchs(ids) * math.sqrt(D)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(B, T, D)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(tied.weight.grad, torchs.weight.grad)


def test_the_logits_are_a_linear_layer_with_the_same_matrix(tied):
    y = torch.randn(B, T, D)
    torch.testing.assert_close(tied.logits(y), F.linear(y, tied.weight))
    assert [name for name, _ in tied.named_parameters()] == ["weight"]


def test_the_gradient_is_the_sum_of_both_ends(tied, ids):
    ends = nn.Embedding(VOCAB, D, _weight=tied.weight.detach().clone()), tied.weight.detach().clone()
    ends[1].requires_grad_()
    loss = tied.logits(tied(ids).tanh()).logsumexp(-1).sum()
    apart = F.linear((ends[0](ids) * D**0.5).tanh(), ends[1]).logsumexp(-1).sum()
    (total,) = torch.autograd.grad(loss, [tied.weight])
    read, scored = torch.autograd.grad(apart, [ends[0].weight, ends[1]])
    torch.testing.assert_close(read + scored, total)
    assert (read.abs().sum(1) > 0).sum() == len(ids.unique()) < VOCAB
    assert (scored.abs().sum(1) > 0).all()


@pytest.mark.parametrize("width", [64, 512])
def test_both_ends_begin_with_variance_one(width):
    torch.manual_seed(0)
    layer = Embedding(1000, width)
    assert 0.9 < layer(torch.arange(1000)).var() < 1.1
    assert 0.9 < layer.logits(torch.randn(500, width)).var() < 1.1


@pytest.mark.parametrize("layer", [Embedding, LearnedPositions])
@pytest.mark.parametrize(
    "wrong, error, message",
    [
        ([0, VOCAB], ValueError, r"must lie in 0\.\.12, not 0\.\.13"),
        ([-1, 2], ValueError, r"must lie in 0\.\.12, not -1\.\.2"),
        ([0.5, 1.0], TypeError, "whole numbers, .*float32"),
        ([True, False], TypeError, "whole numbers, .*bool"),
    ],
)
def test_what_is_no_row_is_refused(layer, wrong, error, message):
    with pytest.raises(error, match=message):
        layer(VOCAB, D)(torch.tensor([wrong]))


def test_nothing_to_look_up_gives_nothing(tied):
    assert tied(torch.zeros(B, 0, dtype=torch.long)).shape == (B, 0, D)


# ---- sinusoids


def loop(positions, d_model):
    """The formula of section 3.5, one number at a time."""
    rows = []
    for pos in positions:
        row = [0.0] * d_model
        for i in range(d_model // 2):
            row[2 * i] = math.sin(pos / 10000 ** (2 * i / d_model))
            row[2 * i + 1] = math.cos(pos / 10000 ** (2 * i / d_model))
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("d_model", [2, 22, 94, 512])
def test_positions_are_the_formula_far_out_too(d_model):
    positions = [0, 1, 2, 3, 97, 4999, 20011]
    found = positional_encoding(torch.tensor(positions), d_model)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loop(positions, d_model), atol=1e-6, rtol=0)


def test_positions_may_have_any_shape():
    positions = torch.tensor([[7, 0, 3], [1, 1, 5]])
    for encoding in (positional_encoding, halves_encoding):
        found = encoding(positions, D)
        assert found.shape == (2, 3, D)
        torch.testing.assert_close(found[1, 2], encoding(torch.tensor(5), D))


@pytest.mark.parametrize("encoding", [positional_encoding, halves_encoding])
def test_an_odd_width_is_refused(encoding):
    with pytest.raises(ValueError, match="d_model must be even .* not 7"):
        encoding(torch.arange(3), 7)


@pytest.mark.parametrize("k", [1, 5, 311, -2])
def test_a_shift_is_one_rotation_for_all_positions(k):
    rates = torch.tensor([10000 ** (-2 * i / D) for i in range(D // 2)], dtype=torch.float64)
    sin, cos = (rates * k).sin(), (rates * k).cos()
    M = torch.block_diag(*(torch.tensor([[c, s], [-s, c]]) for s, c in zip(sin.tolist(), cos.tolist())))
    torch.testing.assert_close(M @ M.T, torch.eye(D), atol=1e-6, rtol=0)
    positions = torch.arange(2, 2000)
    moved = positional_encoding(positions, D) @ M.T
    torch.testing.assert_close(moved, positional_encoding(positions + k, D), atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoding", [positional_encoding, halves_encoding])
def test_the_inner_product_depends_on_the_distance_only(encoding):
    PE = encoding(torch.arange(300), 64).double()
    products = PE @ PE.T
    torch.testing.assert_close(products[1:, 1:], products[:-1, :-1], atol=1e-4, rtol=0)
    assert (products[0, 0] - products[0, 1:]).min() > 1, "no other position is as near as itself"


def test_wavelengths_run_geometrically_from_two_pi():
    rates = _angles(torch.tensor(1), torch.arange(0, 512, 2).double() / 512)
    wavelengths = 2 * math.pi / rates
    ratio = wavelengths[1:] / wavelengths[:-1]
    torch.testing.assert_close(ratio, ratio[:1].expand(255))
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    assert 0.96 * 20000 * math.pi < wavelengths[-1] < 20000 * math.pi


# ---- the released layout


def test_halves_are_the_released_formula():
    d_model, positions = 22, [0, 1, 5, 97, 4999]
    half = d_model // 2
    step = math.log(10000) / (half - 1)
    expected = torch.tensor(
        [[f(pos * math.exp(-i * step)) for f in (math.sin, math.cos) for i in range(half)] for pos in positions]
    )
    torch.testing.assert_close(halves_encoding(torch.tensor(positions), d_model), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(halves_encoding(torch.arange(3), 2), positional_encoding(torch.arange(3), 2))


def test_the_layouts_differ_by_more_than_a_permutation():
    ours = positional_encoding(torch.arange(1000), 64).unflatten(-1, (-1, 2)).transpose(-2, -1).flatten(-2)
    released = halves_encoding(torch.arange(1000), 64)
    torch.testing.assert_close(ours[:, [0, 32]], released[:, [0, 32]])  # the fastest hand is the same
    assert (ours - released).abs().max() > 1


# ---- learned positions


def test_learned_positions_are_torchs_embedding_as_loud_as_sinusoids():
    torch.manual_seed(0)
    learned, positions = LearnedPositions(211, 94), torch.tensor([[0, 210, 7], [3, 3, 1]])
    torch.testing.assert_close(learned(positions), F.embedding(positions, learned.weight))
    loudness = learned.weight.square().mean() / positional_encoding(torch.arange(211), 94).square().mean()
    assert 0.9 < loudness < 1.1


def test_a_position_without_a_row_is_named():
    with pytest.raises(ValueError, match=r"positions must lie in 0\.\.6, not 0\.\.7"):
        LearnedPositions(7, D)(torch.arange(8))


# ---- shapes, devices


def test_the_shape_comments_hold(tied, ids):
    with checked(embedding) as seen:
        tied.logits(tied(ids))
        positional_encoding(torch.arange(T), D)
        halves_encoding(torch.arange(T), D)
        LearnedPositions(7, D)(torch.arange(T))
    assert not unseen(seen, embedding)


@pytest.mark.parametrize("encoding", [positional_encoding, halves_encoding])
def test_positions_are_made_where_they_are_asked_for(encoding):
    assert encoding(torch.arange(3, device="meta"), D).device.type == "meta"


def test_halves_of_four_features_turn_at_rates_1_and_a_ten_thousandth():
    p = torch.tensor([0.0, 1.0, 5000.0])
    wanted = torch.stack([p.sin(), (p / 10000).sin(), p.cos(), (p / 10000).cos()], -1)
    torch.testing.assert_close(halves_encoding(p, 4), wanted)
