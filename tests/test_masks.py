"""Chapter 03: the masks against torch's own, what they keep from what, and bad input."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

from annotated import masks
from annotated.attention import scaled_dot_product_attention
from annotated.masks import causal_mask, padding_mask

B, H, S, T, D_K, D_V, PAD = 3, 2, 11, 7, 5, 13, 0
LENGTHS = (11, 1, 6)  # full, a single token, in between


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def sentences(lengths=LENGTHS, width=S, pad=PAD, seed=0):
    ids = torch.randint(1, 17, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(width) < torch.tensor(lengths)[:, None], ids, pad)


def with_gradients(f, *inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    return [y, *torch.autograd.grad((y * draw(*y.shape, seed=9)).sum(), inputs)]


def same(ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y)


# ---- padding


def test_the_padding_mask_says_token_by_token_what_may_be_looked_at():
    ids = sentences()
    mask = padding_mask(ids)
    assert mask.shape == (B, 1, 1, S) and mask.dtype == torch.bool
    for b, j in product(range(B), range(S)):
        assert mask[b, 0, 0, j].item() is (ids[b, j].item() != PAD)


@pytest.mark.parametrize("pad", [0, 3, 58100])
def test_padding_is_whatever_identifier_is_said_to_be(pad):
    ids = torch.tensor([[3, 0, 58100, 5]])
    assert padding_mask(ids, pad).flatten().tolist() == [i != pad for i in (3, 0, 58100, 5)]


@pytest.mark.parametrize("dtype", [torch.long, torch.int32])
def test_identifiers_of_any_whole_type(dtype):
    assert torch.equal(padding_mask(sentences().to(dtype)), padding_mask(sentences()))


def test_padded_attention_and_gradients_are_torchs():
    mask = padding_mask(sentences())
    inputs = draw(B, H, T, D_K, seed=1), draw(B, H, S, D_K, seed=2), draw(B, H, S, D_V, seed=3)
    ours = with_gradients(lambda *x: scaled_dot_product_attention(*x, mask), *inputs)
    same(ours, with_gradients(lambda *x: F.scaled_dot_product_attention(*x, attn_mask=mask), *inputs))


def test_padded_attention_is_that_of_the_words_alone():
    ids = sentences()
    Q, K, V = draw(B, H, T, D_K, seed=1), draw(B, H, S, D_K, seed=2), draw(B, H, S, D_V, seed=3)
    y = scaled_dot_product_attention(Q, K, V, padding_mask(ids))
    for b, length in enumerate(LENGTHS):
        alone = scaled_dot_product_attention(Q[b], K[b, :, :length], V[b, :, :length])
        torch.testing.assert_close(y[b], alone)


def test_torchs_layers_say_it_the_other_way_round():
    """nn.MultiheadAttention's key_padding_mask is True where a key may not be looked at."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(D_K, 1, bias=False, batch_first=True).double()
    x, memory, ids = draw(B, T, D_K, seed=1), draw(B, S, D_K, seed=2), sentences()
    theirs, _ = layer(x, memory, memory, key_padding_mask=~padding_mask(ids)[:, 0, 0])
    W_Q, W_K, W_V = layer.in_proj_weight.chunk(3)
    ours = scaled_dot_product_attention(x @ W_Q.T, memory @ W_K.T, memory @ W_V.T, padding_mask(ids)[:, 0])
    torch.testing.assert_close(ours @ layer.out_proj.weight.T, theirs)


# ---- causal


@pytest.mark.parametrize("t", [0, 1, 2, 7, 13])
def test_the_causal_mask_is_torchs(t):
    theirs = nn.Transformer.generate_square_subsequent_mask(t)
    mask = causal_mask(t)
    assert mask.dtype == torch.bool and mask.shape == (t, t)
    assert torch.equal(torch.zeros(t, t).masked_fill(~mask, -torch.inf), theirs)


def test_causal_attention_and_gradients_are_torchs():
    inputs = draw(B, H, T, D_K, seed=1), draw(B, H, T, D_K, seed=2), draw(B, H, T, D_V, seed=3)
    ours = with_gradients(lambda *x: scaled_dot_product_attention(*x, causal_mask(T)), *inputs)
    added = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.double)
    same(ours, with_gradients(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), *inputs))
    same(ours, with_gradients(lambda *x: F.scaled_dot_product_attention(*x, attn_mask=added), *inputs))


def test_a_position_depends_on_itself_and_what_came_before_and_on_nothing_else():
    Q, K, V = (draw(T, D_K, seed=s) for s in (1, 2, 3))
    K.requires_grad_(), V.requires_grad_()
    for t in range(T):
        y = scaled_dot_product_attention(Q, K, V, causal_mask(T))[t]
        by_value, by_key = torch.autograd.grad(y.sum(), [V, K])
        assert (by_value[: t + 1] != 0).all() and (by_value[t + 1 :] == 0).all()
        assert (by_key[t + 1 :] == 0).all() and (t == 0 or (by_key[: t + 1] != 0).any(-1).all())


def test_each_row_of_the_masked_pass_is_one_unmasked_step():
    Q, K, V = draw(B, H, T, D_K, seed=1), draw(B, H, T, D_K, seed=2), draw(B, H, T, D_V, seed=3)
    y = scaled_dot_product_attention(Q, K, V, causal_mask(T))
    for t in range(T):
        now, so_far = slice(t, t + 1), slice(t + 1)
        step = scaled_dot_product_attention(Q[:, :, now], K[:, :, so_far], V[:, :, so_far])
        torch.testing.assert_close(step, y[:, :, now])


def test_no_row_of_the_books_masks_is_empty():
    assert padding_mask(sentences()).any(-1).all()
    assert causal_mask(T).any(-1).all() and causal_mask(T)[-1].all()


# ---- both


def test_the_two_together():
    ids = sentences()
    mask = padding_mask(ids) & causal_mask(S)
    assert mask.shape == (B, 1, S, S)
    for b, t, j in product(range(B), range(S), range(S)):
        assert mask[b, 0, t, j].item() is (j <= t and ids[b, j].item() != PAD)


def test_padding_at_the_end_needs_no_mask_of_its_own_in_a_decoder():
    mask, causal = padding_mask(sentences()) & causal_mask(S), causal_mask(S).expand(B, 1, S, S)
    for b, length in enumerate(LENGTHS):
        assert torch.equal(mask[b, :, :length], causal[b, :, :length])
    assert not torch.equal(mask, causal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_padding_at_the_front_leaves_empty_rows_and_no_nan(dtype):
    ids = sentences().flip(1)
    mask = padding_mask(ids) & causal_mask(S)
    empty = ~mask.any(-1)[:, 0]  # (B, S)
    assert empty.sum(-1).tolist() == [S - length for length in LENGTHS]
    inputs = [draw(B, H, S, D_K, seed=s).to(dtype) for s in (1, 2, 3)]
    with torch.autograd.detect_anomaly(check_nan=True):
        y, *gradients = with_gradients(lambda *x: scaled_dot_product_attention(*x, mask), *inputs)
    assert (y.transpose(1, 2)[empty] == 0).all() and (y.transpose(1, 2)[~empty] != 0).any(-1).all()
    assert all(g.isfinite().all() and g.any() for g in gradients)


# ---- where, and bad input


def test_masks_are_made_where_they_are_wanted():
    assert causal_mask(T).device.type == "cpu"
    assert causal_mask(T, device="meta").device.type == "meta"
    assert padding_mask(torch.ones(2, 5, dtype=torch.long, device="meta")).device.type == "meta"


def test_identifiers_are_left_as_they_were():
    ids = sentences()
    padding_mask(ids)
    assert torch.equal(ids, sentences())


REFUSED = [
    (padding_mask, (torch.ones(2, 5),), TypeError, r"ids must be a tensor of whole numbers, torch.long or torch.int32, not torch.float32"),
    (padding_mask, (torch.ones(2, 5, dtype=torch.bool),), TypeError, "ids must be .* not torch.bool"),
    (padding_mask, (torch.ones(5, dtype=torch.long),), ValueError, r"ids must be \(sentences, positions\), not of shape \(5,\)"),
    (padding_mask, (torch.ones(2, 5, 7, dtype=torch.long),), ValueError, r"not of shape \(2, 5, 7\)"),
    (causal_mask, (-1,), ValueError, "T must be 0 or more positions, not -1"),
]


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: f"{call[0].__name__}: {call[3]}")
def test_bad_input_is_named(call):
    f, arguments, error, message = call
    with pytest.raises(error, match=message):
        f(*arguments)


def test_shape_comments():
    with checked(masks) as seen:
        padding_mask(sentences())
        causal_mask(T)
    assert not unseen(seen, masks)
