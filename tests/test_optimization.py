"""Chapter 09: the rate, Adam, and label smoothing against its definitions; bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen

from annotated import optimization
from annotated.optimization import (
    _check_spread,
    _smoothed_loss,
    label_smoothed_loss,
    learning_rate,
    optimizer,
    spread_over_all,
    spread_over_others,
    spread_over_words,
)

B, T, V, PAD = 3, 7, 11, 0
SPREADS = [spread_over_all, spread_over_others, spread_over_words]


def batch(pad=PAD, seed=0, dtype=torch.double):
    "Logits and a target with padding at the end of one sentence."
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(B, T, V, generator=generator, dtype=dtype)
    target = torch.randint(1, V, (B, T), generator=generator)
    target[target == pad] = 1
    target[1, 4:] = pad
    return logits, target


def goals(name, right, vocab, eps, pad=PAD):
    "The definitions, token by token, in plain Python."
    others = {"all": vocab, "others": vocab - 1, "words": vocab - 2}[name]
    row = [eps / others] * vocab
    if name == "words":
        row[pad] = 0.0
    row[right] = 1 - eps + (eps / vocab if name == "all" else 0)
    return row


# ---- the rate


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (64, 1), (1024, 7)])
def test_the_rate_is_equation_3_with_its_peak_at_the_end_of_the_warmup(d_model, warmup):
    rates = [learning_rate(step, d_model, warmup) for step in range(1, 2 * warmup + 3)]
    for step, rate in enumerate(rates, 1):
        rising, falling = step / warmup / math.sqrt(warmup), 1 / math.sqrt(step)
        assert rate == pytest.approx((rising if step < warmup else falling) / math.sqrt(d_model))
    assert rates.index(max(rates)) + 1 == warmup
    assert max(rates) == pytest.approx(1 / math.sqrt(d_model * warmup))


def test_the_factor_scales_the_whole_curve():
    for step in (1, 99, 4000, 50_000):
        assert learning_rate(step, rate=2.0) == pytest.approx(2 * learning_rate(step))


@pytest.mark.parametrize(("given", "message"), [
    ({"step": 0}, "step=0"), ({"step": 3, "warmup": 0}, "warmup=0"), ({"step": 3, "d_model": 0}, "d_model must be 1"),
])
def test_rates_that_are_none_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        learning_rate(**given)


# ---- Adam


def test_adam_is_the_papers_formula():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 3, bias=False).double()
    adam, w = optimizer(model), model.weight.detach().clone()
    m = v = torch.zeros_like(w)
    for step in range(1, 30):
        g, rate = torch.randn_like(w), learning_rate(step, 64, 10)
        model.weight.grad, adam.param_groups[0]["lr"] = g.clone(), rate
        adam.step()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        w = w - rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
        torch.testing.assert_close(model.weight.detach(), w, rtol=1e-9, atol=1e-12)


def test_the_constants_are_the_papers_and_can_be_changed():
    model = torch.nn.Linear(2, 2)
    (group,) = optimizer(model).param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
    (group,) = optimizer(model, 0.8, 0.997, 1e-8).param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.997), 1e-8)


def test_nothing_moves_until_the_rate_is_set():
    model = torch.nn.Linear(2, 2)
    adam, before = optimizer(model), model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    adam.step()
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(("given", "message"), [
    ({"beta1": 1.0}, "beta1 must"), ({"beta2": -0.1}, "beta2 must"), ({"eps": 0.0}, "eps must"),
    ({"eps": math.nan}, "eps must"),
])
def test_constants_that_make_no_adam_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        optimizer(torch.nn.Linear(2, 2), **given)


# ---- spread targets


@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("spread", SPREADS)
def test_targets_are_the_definition_token_by_token(spread, eps, pad):
    target = torch.tensor([[1, 2, 3], [10, 5, 2]])
    made = spread(target, V, eps, pad)
    name = spread.__name__.removeprefix("spread_over_")
    wanted = [[goals(name, right, V, eps, pad) for right in row] for row in target.tolist()]
    torch.testing.assert_close(made, torch.tensor(wanted))
    torch.testing.assert_close(made.sum(-1), torch.ones(2, 3))


def test_spreading_over_all_is_spreading_less_over_the_others():
    target = torch.arange(1, V)
    for eps in (0.1, 0.5):
        torch.testing.assert_close(spread_over_all(target, V, eps), spread_over_others(target, V, eps * (V - 1) / V))


@pytest.mark.parametrize(("spread", "least"), list(zip(SPREADS, (1, 2, 3), strict=True)))
def test_a_vocabulary_with_nothing_to_spread_over_is_refused(spread, least):
    right = torch.tensor([least - 1])
    assert spread(right, least).sum().item() == pytest.approx(1)
    with pytest.raises(ValueError, match=f"vocab must be {least} or more"):
        spread(right, least - 1)
    for eps in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="eps must lie in"):
            spread(right, 5, eps)


# ---- losses


@pytest.mark.parametrize("pad", [0, 4])
@pytest.mark.parametrize("eps", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("spread", SPREADS)
def test_the_loss_written_out_is_the_definition(spread, eps, pad):
    logits, target = batch(pad)
    name = spread.__name__.removeprefix("spread_over_")
    log_p, total, count = logits.log_softmax(-1), 0.0, 0
    for b in range(B):
        for t in range(T):
            if (right := target[b, t].item()) != pad:
                total -= sum(q * x for q, x in zip(goals(name, right, V, eps, pad), log_p[b, t].tolist(), strict=True))
                count += 1
    assert count == B * T - 3
    assert _smoothed_loss(logits, target, spread, eps, pad).item() == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.9])
def test_the_fast_loss_is_the_one_written_out(eps):
    found = []
    for loss in (label_smoothed_loss, lambda x, y, eps: _smoothed_loss(x, y, spread_over_all, eps)):
        logits, target = batch()
        logits.requires_grad_()
        value = loss(logits, target, eps=eps)
        found.append((value.detach(), *torch.autograd.grad(value, logits)))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_gradient_is_the_softmax_minus_the_spread_target(eps):
    logits, target = batch()
    logits.requires_grad_()
    (slope,) = torch.autograd.grad(label_smoothed_loss(logits, target, eps, reduction="sum"), logits)
    wanted = logits.detach().softmax(-1) - spread_over_all(target, V, eps)
    torch.testing.assert_close(slope, wanted * (target != PAD)[..., None], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("spread", SPREADS)
def test_no_prediction_is_better_than_the_target_itself(spread):
    target = torch.tensor([[3, 5, 2]])
    goal = spread(target, V, 0.1).double()
    floor = torch.special.entr(goal).sum(-1).mean().item()
    tiny = 1e-30  # of padding, which one definition never wants
    reached = _smoothed_loss((goal + tiny).log(), target, spread, 0.1).item()
    assert reached == pytest.approx(floor, rel=1e-6)
    for seed in range(5):
        noise = 0.1 * torch.randn(1, 3, V, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        assert _smoothed_loss((goal + tiny).log() + noise, target, spread, 0.1).item() > floor


def test_labels_replaced_at_random_have_the_smoothed_loss_on_average():
    generator = torch.Generator().manual_seed(0)
    logits, right = torch.randn(1, V, generator=generator), 4
    at_random = torch.randint(0, V, (200_000,), generator=generator)
    labels = torch.where(torch.rand(200_000, generator=generator) < 0.3, at_random, right)
    lost = -logits.log_softmax(-1)[0, labels]
    smooth = label_smoothed_loss(logits, torch.tensor([right]), 0.3, pad=-1)
    assert abs(lost.mean() - smooth) < 4 * lost.std() / math.sqrt(200_000)
    sharp = label_smoothed_loss(logits, torch.tensor([right]), 0.0, pad=-1)
    assert abs(lost.mean() - sharp) > 40 * lost.std() / math.sqrt(200_000)


@pytest.mark.parametrize("loss", [label_smoothed_loss, _smoothed_loss])
def test_more_padding_changes_no_loss(loss):
    logits, target = batch()
    wide = F.pad(logits, (0, 0, 0, 5), value=2.0), F.pad(target, (0, 5), value=PAD)
    torch.testing.assert_close(loss(*wide), loss(logits, target))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_full(dtype):
    logits, target = batch(dtype=torch.float)
    logits = logits.to(dtype)
    made = label_smoothed_loss(logits, target)
    assert made.dtype == torch.float
    torch.testing.assert_close(made, label_smoothed_loss(logits.float(), target))


def test_one_token_alone_and_short_integers_have_a_loss():
    logits, target = batch()
    alone = torch.stack([label_smoothed_loss(row, right, reduction="sum") for row, right in zip(logits[0], target[0].int())])
    torch.testing.assert_close(alone.sum(), label_smoothed_loss(logits[0], target[0], reduction="sum"))


@pytest.mark.parametrize("loss", [label_smoothed_loss, _smoothed_loss])
def test_logits_and_target_that_do_not_fit_are_refused(loss):
    logits, target = batch()
    with pytest.raises(ValueError, match=r"need a target of shape \(3, 7\), got \(7, 3\)"):
        loss(logits, target.T)  # as many identifiers, in another order
    for eps in (-0.1, 1.1):
        with pytest.raises(ValueError, match="eps must lie in"):
            loss(logits, target, eps=eps)


def test_a_reduction_that_is_none_is_refused():
    with pytest.raises(ValueError, match='reduction must be "mean" or "sum", got \'none\''):
        label_smoothed_loss(*batch(), reduction="none")


# ---- the form of the code


def test_shape_comments():
    logits, target = batch()
    with checked(optimization) as seen:
        for spread in SPREADS:
            _smoothed_loss(logits, target, spread)
        label_smoothed_loss(logits, target)
    assert not unseen(seen, optimization)


def test_the_check_says_what_would_do():
    assert _check_spread(5, 0.1, 3) is None
    with pytest.raises(ValueError, match="vocab must be 3 or more to spread eps over, got 2"):
        _check_spread(2, 0.1, 3)


def test_everything_may_be_spread():
    logits, target = torch.randn(5, 7, 11), torch.randint(1, 11, (5, 7))
    torch.testing.assert_close(label_smoothed_loss(logits, target, eps=1.0), -logits.log_softmax(-1).mean())


@pytest.mark.parametrize("spread", SPREADS)
def test_without_padding_the_targets_are_still_probabilities(spread):
    made = spread(torch.arange(V), V, 0.1, pad=-1)
    torch.testing.assert_close(made.sum(-1), torch.ones(V))
    assert (made > 0).all(), "no identifier is padding"


@pytest.mark.parametrize("spread", SPREADS)
def test_a_tenth_is_spread_and_0_is_padding_unless_told_otherwise(spread):
    target = torch.tensor([[3, 1, 2]])
    assert torch.equal(spread(target, 7), spread(target, 7, 0.1, 0))
