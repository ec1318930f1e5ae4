"""Chapter 02: attention against torch's own and against loops, its properties, its limits, and bad input."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen

from annotated import attention
from annotated.attention import additive_attention, attention_weights, masked_softmax, scaled_dot_product_attention
from annotated.gpu import fused_attention
from annotated.recurrent import additive_scores

B, H, T, S, D_K, D_V = 2, 3, 5, 7, 11, 13
MASKS = {
    "none": None,
    "keys": (S,),
    "queries and keys": (T, S),
    "padding": (B, 1, 1, S),
    "heads": (H, 1, S),
    "full": (B, H, T, S),
}


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def qkv():
    return draw(B, H, T, D_K, seed=1), draw(B, H, S, D_K, seed=2), draw(B, H, S, D_V, seed=3)


def some_mask(shape, seed=4):
    if shape is None:
        return None
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., 2] = True
    return mask


def with_gradients(f, *inputs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    y = f(*inputs)
    return [y, *torch.autograd.grad((y * draw(*y.shape, seed=5)).sum(), inputs)]


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_outputs_and_gradients_are_torchs(shape):
    mask = some_mask(shape)
    ours = with_gradients(lambda *x: scaled_dot_product_attention(*x, mask), *qkv())
    full = None if mask is None else mask.expand(B, H, T, S)  # torch's wants two axes at least
    theirs = with_gradients(lambda *x: F.scaled_dot_product_attention(*x, attn_mask=full), *qkv())
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y)


def test_the_weights_are_those_of_the_formula_pair_by_pair():
    (Q, K, _), mask = qkv(), some_mask((B, H, T, S))
    found = attention_weights(Q, K, mask)
    for b, h, t in product(range(B), range(H), range(T)):
        powers = [torch.exp((Q[b, h, t] * K[b, h, s]).sum() / D_K**0.5) * mask[b, h, t, s] for s in range(S)]
        torch.testing.assert_close(found[b, h, t], torch.stack(powers) / sum(powers))
    assert (found[~mask] == 0).all()


def test_additive_attention_is_the_formula_pair_by_pair():
    (Q, K, V), v, mask = qkv(), draw(D_K), some_mask((T, S))
    found = additive_attention(Q, K, V, v, mask)
    for b, h, t in product(range(B), range(H), range(T)):
        powers = [torch.exp(v @ torch.tanh(Q[b, h, t] + K[b, h, s])) * mask[t, s] for s in range(S)]
        torch.testing.assert_close(found[b, h, t], torch.stack(powers) @ V[b, h] / sum(powers))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", ["dot", "additive"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.double])
def test_a_query_that_may_look_at_nothing_gets_zeros_and_gives_no_gradient(name, dtype):
    Q, K, V = (x.to(dtype) for x in qkv())
    mask = torch.ones(T, S, dtype=torch.bool)
    mask[1] = False
    attend = {
        "dot": lambda *x: scaled_dot_product_attention(*x, mask),
        "additive": lambda *x: additive_attention(*x, draw(D_K).to(dtype), mask),
    }[name]
    with torch.autograd.detect_anomaly(check_nan=True):  # no NaN on the way either
        y, *gradients = with_gradients(attend, Q, K, V)
    assert (y[..., 1, :] == 0).all() and (y[..., [0, 2, 3, 4], :] != 0).any(-1).all()
    assert (gradients[0][..., 1, :] == 0).all() and (gradients[0][..., 0, :] != 0).any()
    assert all(g.isfinite().all() for g in gradients)


def test_no_keys_at_all_give_zeros():
    Q, K, V = qkv()
    y = scaled_dot_product_attention(Q, K[..., :0, :], V[..., :0, :])
    assert y.shape == (B, H, T, D_V) and (y == 0).all()


def test_what_is_masked_has_no_influence():
    (Q, K, V), mask = qkv(), some_mask((S,))
    other = torch.where(mask[:, None], 0.0, 1e6)
    expected = scaled_dot_product_attention(Q, K, V, mask)
    assert torch.equal(scaled_dot_product_attention(Q, K + other, V + other, mask), expected)
    torch.testing.assert_close(scaled_dot_product_attention(Q, K[..., mask, :], V[..., mask, :]), expected)


def test_reordering():
    (Q, K, V), t, s = qkv(), torch.tensor([3, 0, 4, 1, 2]), torch.tensor([6, 2, 0, 5, 1, 4, 3])
    y = scaled_dot_product_attention(Q, K, V)
    torch.testing.assert_close(scaled_dot_product_attention(Q[..., t, :], K, V), y[..., t, :])
    torch.testing.assert_close(scaled_dot_product_attention(Q, K[..., s, :], V[..., s, :]), y)
    assert not torch.allclose(scaled_dot_product_attention(Q, K[..., s, :], V), y)


def test_scores_of_any_size_give_finite_weights():
    for scale in (1e-30, 1e6, 1e150):
        weights = attention_weights(scale * qkv()[0], qkv()[1])
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.double))


def test_the_scale_keeps_the_variance_of_scores_at_1():
    for d_k in (16, 256):
        Q, K = draw(500, d_k, seed=1), draw(500, d_k, seed=2)
        log_weights = attention_weights(Q, K).log()  # the scores but for a constant in each row
        assert abs(log_weights.var(-1).mean() - 1) < 0.1


def test_dropout_falls_on_the_weights_and_only_when_asked_for():
    Q, K, _ = qkv()
    V = torch.eye(S, dtype=torch.double).expand(B, H, S, S)  # so that the output shows the weights
    weights = attention_weights(Q, K)
    torch.testing.assert_close(scaled_dot_product_attention(Q, K, V), weights)
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(Q, K, V, None, 0.25)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], weights[kept] / 0.75)
    assert 0.6 < kept.double().mean() < 0.9
    assert (scaled_dot_product_attention(Q, K, V, dropout=1.0) == 0).all()
    alike = scaled_dot_product_attention(Q, K, torch.ones_like(V), dropout=0.25)  # what is dropped is missed by all
    assert torch.equal(alike, alike[..., :1].expand_as(alike)) and (alike != alike[0, 0, 0, 0]).any()


def test_inputs_are_left_as_they_were():
    before, mask = qkv(), some_mask((T, S))
    after = qkv()
    additive_attention(*after, draw(D_K), mask)
    scaled_dot_product_attention(*after, mask, 0.5)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


Z = torch.zeros
REFUSED = [
    (attention_weights, (Z(3, 5), Z(4, 7)), ValueError, "Q and K must have one width, not 5 and 7"),
    (attention_weights, (Z(5), Z(4, 5)), ValueError, "Q must have at least two axes"),
    (scaled_dot_product_attention, (Z(3, 5), Z(5), Z(4, 7)), ValueError, "K must have at least two axes"),
    (scaled_dot_product_attention, (Z(3, 5), Z(4, 5), Z(4)), ValueError, r"V must come in pairs.*shape \(4,\)"),
    (scaled_dot_product_attention, (Z(3, 5), Z(4, 5), Z(2, 7)), ValueError, r"not 4 keys and values of shape \(2, 7\)"),
    (scaled_dot_product_attention, (Z(3, 5), Z(4, 5), Z(4, 7), None, 1.5), ValueError, "dropout"),
    (additive_attention, (Z(3, 5), Z(4, 5), Z(2, 7), Z(5)), ValueError, r"not 4 keys and values of shape \(2, 7\)"),
    (additive_attention, (Z(3, 5), Z(4, 6), Z(4, 7), Z(5)), ValueError, "must have one width, not 5, 6 and 5"),
    (additive_attention, (Z(3, 5), Z(4, 5), Z(4, 7), Z(6)), ValueError, "5, 5 and 6"),
    (additive_attention, (Z(4, 4), Z(4, 4), Z(4, 7), Z(4, 4)), ValueError, r"axes or more and v one, not \(4, 4\), \(4, 4\) and \(4, 4\)"),
    (additive_attention, (Z(4), Z(3, 4), Z(3, 7), Z(4)), ValueError, "Q and K must have two axes or more"),
    (additive_attention, (Z(2, 4), Z(3, 4), Z(3, 7), Z(())), ValueError, "and v one"),
    (masked_softmax, (Z(3, 4), Z(3, 4)), TypeError, "mask must be boolean, True = may attend, not torch.float32"),
    (masked_softmax, (Z(3, 4), Z(3, 4, dtype=torch.uint8)), TypeError, "mask must be boolean"),
    (masked_softmax, (Z(3, 4), [[True] * 4] * 3), TypeError, "mask must be a tensor, not list"),
    (masked_softmax, (Z(3, 4), Z(3, 5, dtype=torch.bool)), ValueError, r"\(3, 4\), not \(3, 5\)"),
    # A mask with more axes than the scores would silently make a larger output.
    (masked_softmax, (Z(2, 3, 4), Z(2, 1, 1, 4, dtype=torch.bool)), ValueError, "mask must broadcast"),
    (masked_softmax, (Z(1, 4), Z(3, 4, dtype=torch.bool)), ValueError, "mask must broadcast"),
]


@pytest.mark.parametrize("call", REFUSED, ids=lambda call: f"{call[0].__name__}: {call[3]}")
def test_bad_input_is_named(call):
    f, arguments, error, message = call
    with pytest.raises(error, match=message):
        f(*arguments)


def test_shape_comments():
    with checked(attention) as seen:
        scaled_dot_product_attention(*qkv(), some_mask((T, S)))
        additive_attention(*qkv(), draw(D_K))
    assert not unseen(seen, attention)


def test_additive_scores_do_not_grow_with_the_width():
    spread = []
    for d_k in (16, 1024):
        Q, K, v = draw(50, d_k, seed=1), draw(50, d_k, seed=2), draw(d_k, seed=3)
        spread.append(additive_scores(Q, K, v / d_k**0.5).abs().max())
        assert spread[-1] <= v.abs().sum() / d_k**0.5
    assert spread[1] < 2 * spread[0]


def test_the_record_of_the_benchmark_is_whole():
    folder = Path(__file__).parent.parent / "results" / "02-scoring"
    run, scores = (json.loads((folder / name).read_text()) for name in ("run.json", "scores.json"))
    config = run["config"]
    sizes = {(config["length_of_widths"], d) for d in config["widths"]}
    sizes |= {(t, config["width_of_lengths"]) for t in config["lengths"]}
    wanted = set(product(["dot", "pairwise", "additive"], ["forward", "forward and backward"], sizes))
    assert {(e["scoring"], e["pass"], (e["T"], e["d"])) for e in scores} == wanted
    assert len(scores) == len(wanted) and all(0 < e["seconds_min"] <= e["seconds_median"] for e in scores)
    assert not run["changed_since_commit"] and config["memory_kept"]


def test_a_width_of_0_is_named():
    with pytest.raises(ValueError, match="Q and K must have a width of 1 or more, not 0"):
        attention_weights(Z(3, 0), Z(4, 0))


def test_in_float16_a_product_beyond_its_range_overflows_and_the_fused_attention_does_not():
    Q, V = 36 * torch.ones(1, 2, 64, dtype=torch.float16), draw(1, 2, 7).half()
    assert attention_weights(Q, Q).isnan().all() and 36**2 * 64 > 65504
    torch.testing.assert_close(fused_attention(Q, Q, V), V.mean(1, keepdim=True).expand_as(V), atol=1e-3, rtol=1e-2)
