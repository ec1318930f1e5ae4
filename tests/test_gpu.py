"""The fast forms beside the plain ones; batches of few shapes; and several processes that must make the updates of one."""

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pytest
import sacrebleu
import torch
import torch._dynamo
import torch.nn.functional as F
from programs import BENCHMARKS, loaded
from shapes import checked, unseen

from annotated import cli, decoding, gpu, graphs
from annotated.after import GroupedQueryAttention
from annotated.attention import additive_attention, scaled_dot_product_attention
from annotated.cpu import CPUObjective, LinearMaps, _LossInPlace, _Products
from annotated.data import Batches, make_batch
from annotated.grammar import grammar_corpus
from annotated.layers import FusedLayerNorm, LayerNorm
from annotated.masks import causal_mask
from annotated.multihead import AttentionDropout, MultiHeadAttention
from annotated.optimization import label_smoothed_loss, optimizer
from annotated.training import update
from annotated.transformer import TINY, Transformer

SMALL = replace(TINY, vocab=23, d_model=12, h=3, d_ff=19, N=2, P_drop=0.0)
close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-4)


def model_of(**changes):
    torch.manual_seed(0)
    return Transformer(replace(SMALL, **changes))


def some_pairs(count=40, seed=0):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 12, (count, 2), generator=draw).tolist()
    return [tuple([*torch.randint(4, 23, (n,), generator=draw).tolist(), 2] for n in pair) for pair in sizes]


def counted_programs():
    """A list for the programs that a compiler makes from now on, and the backend that notes them and runs them as they are."""
    torch._dynamo.reset()
    programs = []

    def count(graph, inputs):
        programs.append(graph)
        return graph.forward

    return programs, count


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# ---- attention


@pytest.mark.parametrize("axes", [(), (5,), (2, 3)])
@pytest.mark.parametrize("hidden", ["nothing", "some", "whole rows"])
def test_fused_attention_is_attention(axes, hidden):
    torch.manual_seed(1)
    Q, K, V = (torch.randn(*axes, n, w, requires_grad=True) for n, w in ((7, 5), (11, 5), (11, 13)))
    mask = None if hidden == "nothing" else torch.rand(7, 11) < 0.5
    if hidden == "whole rows":
        mask[2] = mask[5] = False
    found = []
    for attend in (scaled_dot_product_attention, gpu.fused_attention):
        out = attend(Q, K, V, mask)
        found.append([out, *torch.autograd.grad(out.square().sum(), (Q, K, V))])
    for plain, fast in zip(*found, strict=True):
        assert fast.isfinite().all()
        close(fast, plain)
    if hidden == "whole rows":
        assert (found[1][0][..., [2, 5], :] == 0).all()


def test_a_padding_mask_hides_a_whole_sentence_without_harm():
    Q, K, V = (torch.randn(2, 3, 4, 5, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    mask[1] = False
    out = gpu.fused_attention(Q, K, V, mask)
    out.sum().backward()
    assert (out[1] == 0).all() and all(x.grad.isfinite().all() and (x.grad[1] == 0).all() for x in (Q, K, V))


def test_no_kernel_gets_a_row_without_a_key(monkeypatch):
    "Kernels differ in what they make of one; PyTorch's for the CPU happens to give 0."
    seen, kernel = [], torch.nn.functional.scaled_dot_product_attention

    def watch(Q, K, V, mask=None, *rest, **more):
        seen.append(bool(mask.any(-1).all()))
        return kernel(Q, K, V, mask, *rest, **more)

    monkeypatch.setattr(gpu.F, "scaled_dot_product_attention", watch)
    gpu.fused_attention(*torch.randn(3, 2, 3, 5, 4), torch.zeros(2, 1, 1, 5, dtype=torch.bool))
    assert seen == [True]


def test_causal_attention_is_attention_under_the_causal_mask():
    Q, K, V = torch.randn(3, 2, 3, 7, 5)
    close(gpu.fused_causal_attention(Q, K, V, causal_mask(7)), scaled_dot_product_attention(Q, K, V, causal_mask(7)))
    close(gpu.fused_causal_attention(Q[..., :1, :], K, V), scaled_dot_product_attention(Q[..., :1, :], K, V))


OTHER = r"causal_mask\(5\)"


@pytest.mark.parametrize("mask, message", [
    (causal_mask(5) | True, OTHER), (causal_mask(5).T, OTHER), (causal_mask(5)[None, None, -1:], OTHER),
    (causal_mask(4), "must broadcast"), (causal_mask(5).expand(7, 1, 5, 5), "must broadcast")])
def test_causal_attention_refuses_another_mask(mask, message):
    with pytest.raises(ValueError, match=message):
        gpu.fused_causal_attention(*torch.randn(3, 2, 3, 5, 4), mask)
    with pytest.raises(TypeError, match="boolean"):
        gpu.fused_causal_attention(*torch.randn(3, 2, 3, 5, 4), causal_mask(5).float())


@pytest.mark.parametrize("shape", [(), (1,), (11,), (7, 1), (7, 11), (1, 11), (5, 7, 11), (5, 1, 11)])
def test_fused_attention_takes_every_mask_that_plain_attention_takes(shape):
    "The leading axes are those of Q and K together; a mask may have fewer than two of its own, in batches with heads, too."
    for first, second in (((1,), (5,)), ((3, 5), (3, 5))):
        Q, K, V = torch.randn(*first, 7, 5), torch.randn(*second, 11, 5), torch.randn(*second, 11, 3)
        for mask in (torch.rand(shape) < 0.5, torch.zeros(shape, dtype=torch.bool)):
            close(gpu.fused_attention(Q, K, V, mask), scaled_dot_product_attention(Q, K, V, mask))


@pytest.mark.parametrize("kind", [gpu.UnpaddedObjective, CPUObjective])
@pytest.mark.parametrize("source, target", [((3, 4), (1, 5)), ((1, 4), (3, 5)), ((4,), (4,)), ((2, 4), (2, 3, 1))])
def test_sides_of_a_batch_that_do_not_belong_together_are_refused(kind, source, target):
    with pytest.raises(ValueError, match=r"source and target must be \(B, S\) and \(B, T \+ 1\), got"):
        kind(Transformer(replace(TINY, vocab=17)))(torch.full(source, 5), torch.full(target, 5))


@pytest.mark.parametrize("kind", [gpu.UnpaddedObjective, CPUObjective])
def test_a_target_that_goes_on_after_padding_is_refused(kind):
    "The plain loss reads the word before the padding, which has no place in a packed target."
    objective = kind(Transformer(SMALL))
    source, target = torch.tensor([[5, 6, 2], [5, 0, 2]]), torch.tensor([[1, 5, 0, 2], [0, 5, 2, 0]])
    with pytest.raises(ValueError, match=r"^target must have padding \(0\) only at its end$"):
        objective(source, target)
    close(objective(source[1:], target[1:]), gpu.Objective(objective.model)(source[1:], target[1:]))


def test_what_can_be_differentiated_once_says_so():
    "A second derivative would lack what the first was made of."
    x, W, target = torch.randn(5, 7, requires_grad=True), torch.randn(11, 7, requires_grad=True), torch.randint(1, 11, (5,))
    linear = LinearMaps({"11x7": ["forward", "input", "weight"]})
    linear.multiply = linear.multiply or F.linear  # where this torch has no oneDNN
    losses = [lambda: gpu.chunked_loss(x, W, target), lambda: linear(x, W).square().sum(),
              lambda: _LossInPlace.apply(x, W, target, 0.1, _Products())]
    for loss in losses:
        first = torch.autograd.grad(loss(), (x, W))
        assert all(g.isfinite().all() for g in first)
        with pytest.raises(RuntimeError, match="can be differentiated only once"):
            torch.autograd.grad(loss(), (x, W), create_graph=True)


@pytest.mark.parametrize(
    "mask, error, message",
    [
        (torch.ones(7, 11), TypeError, "boolean"),
        (torch.ones(7, 5, dtype=torch.bool), ValueError, "broadcast"),
        (torch.ones(1, 2, 3, 7, 11, dtype=torch.bool), ValueError, "broadcast"),
    ],
)
def test_fused_attention_refuses_what_plain_attention_refuses(mask, error, message):
    Q, K, V = torch.randn(2, 3, 7, 5), torch.randn(2, 3, 11, 5), torch.randn(2, 3, 11, 5)
    for attend in (scaled_dot_product_attention, gpu.fused_attention):
        with pytest.raises(error, match=message):
            attend(Q, K, V, mask)
    with pytest.raises(ValueError, match="width"):
        gpu.fused_attention(Q, K[..., :3], V)


# ---- the model


def test_a_fused_model_is_the_model():
    plain = model_of(P_drop_attention=0.1).eval()
    fast = gpu.fuse(deepcopy(plain))
    source, target = make_batch(some_pairs(5))
    close(fast(source, target), plain(source, target))
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert not any(type(m) is LayerNorm for m in fast.modules())
    layer = fast.decoder.layers[1]
    inner = [a.attention.attention for a in (layer.self_attention, layer.cross_attention)]
    assert inner == [gpu.fused_causal_attention, gpu.fused_attention]
    assert isinstance(layer.cross_attention.attention, AttentionDropout) and layer.cross_attention.attention.P_drop == 0.1
    ids, state, old = target[:, 0], fast.start(source), plain.start(source)
    for t in range(3):
        logits, state = fast.step(target[:, t], state)
        expected, old = plain.step(target[:, t], old)
        close(logits, expected)
    assert ids.eq(1).all()


def test_fusing_keeps_the_mode_of_each_norm():
    model = model_of().train()
    model.decoder.eval()
    before = {name: module.training for name, module in model.named_modules()}
    assert {name: module.training for name, module in gpu.fuse(model).named_modules()} == before


def test_another_attention_is_left_alone():
    v = torch.randn(4)
    model = Transformer(SMALL, partial(additive_attention, v=v))
    before = model.encoder.layers[0].self_attention.attention
    assert gpu.fuse(model).encoder.layers[0].self_attention.attention is before


def test_a_fused_model_calls_the_hooks_that_it_had():
    model, called = Transformer(SMALL), []
    norm = next(module for module in model.modules() if type(module) is LayerNorm)
    norm.register_forward_hook(lambda module, inputs, out: called.append("norm"))
    model.dropout.register_forward_hook(lambda module, inputs, out: called.append("dropout"))
    gpu.fuse(gpu.fuse(model))
    assert len(model.dropout._forward_hooks) == 2  # autocast's once
    assert sum(type(module) is LayerNorm for module in model.modules()) == 1
    model(torch.tensor([[5, 2]]), torch.tensor([[1, 5]]))
    assert called == ["dropout", "norm", "dropout"]


def test_a_norm_keeps_precision_under_autocast_and_refuses_another_width():
    norm, plain = FusedLayerNorm(16), LayerNorm(16)
    x = 3 + torch.randn(5, 16)
    close(norm(x), plain(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x.bfloat16()).dtype == torch.bfloat16 and norm(x).dtype == torch.float32
    with pytest.raises(ValueError, match="16"):
        norm(torch.randn(5, 1))


def test_precisions():
    assert gpu.precision_context("bfloat16", "cpu")().fast_dtype == torch.bfloat16
    gpu.precision_context("tf32", "cpu")
    assert torch.get_float32_matmul_precision() == "high"
    gpu.precision_context("float32", "cpu")
    assert torch.get_float32_matmul_precision() == "highest"
    with pytest.raises(ValueError, match="float8"):
        gpu.precision_context("float8", "cpu")


@pytest.mark.gpu
def test_a_training_gives_the_gpus_generator_back():
    from annotated.training import Recipe, train

    model = model_of(P_drop=0.3).cuda()
    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    train(model, Recipe(steps=2, warmup=3), lambda epoch, position: [make_batch(some_pairs(4))][position:])
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_gradients_in_bfloat16_are_near_those_in_float32_and_weights_stay():
    batches, found = [make_batch(some_pairs(30))], []
    for name in ("float32", "bfloat16"):
        model = gpu.fuse(model_of())
        passes = gpu.TrainStep(gpu.Objective(model), gpu.precision_context(name, "cpu"))
        gpu.FastUpdate(passes)(model, optimizer(model), batches)
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
        found.append(gradients(model))
    error = (found[1] - found[0]).norm() / found[0].norm()
    assert 1e-4 < error < 0.05


# ---- projections side by side


WIDTHS = [{}, {"norm": "pre", "N_decoder": 1}, {"d_k": 5, "d_v": 7, "bias": True}, {"N_decoder": 3, "P_drop_attention": 0.3}]


def with_biases(**options):
    model = model_of(**options)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)  # biases begin at 0, which would hide them
    return model


@pytest.mark.parametrize("options", WIDTHS, ids=str)
@pytest.mark.parametrize("kind", [gpu.Objective, gpu.UnpaddedObjective])
def test_joint_projections_give_the_loss_and_the_gradients_of_the_plain_model(options, kind):
    plain = with_biases(**options).train("P_drop_attention" not in options)  # two paths draw other numbers
    joint = gpu.join_projections(gpu.fuse(deepcopy(plain)))
    source, target = batch = make_batch(some_pairs(7, seed=3))
    label_smoothed_loss(plain(source, target[:, :-1]), target[:, 1:], reduction="sum").backward()
    kind(joint, rows=5)(*batch).backward()
    assert list(joint.state_dict()) == list(plain.state_dict())
    for (name, wanted), (other, found) in zip(plain.named_parameters(), joint.named_parameters(), strict=True):
        assert name == other
        torch.testing.assert_close(found.grad, wanted.grad, atol=1e-4, rtol=1e-4)


def test_joint_projections_leave_hooked_layers_apart():
    plain, calls = model_of(P_drop=0.0).eval(), []
    joint = gpu.join_projections(deepcopy(plain))
    hooked = joint.encoder.layers[0].self_attention.W_Q, joint.decoder.layers[0].cross_attention.W_K
    for layer in hooked:
        layer.register_forward_hook(lambda *_: calls.append(1))
    source, target = torch.randint(4, plain.config.vocab, (2, 5)), torch.randint(4, plain.config.vocab, (2, 3))
    close(joint(source, target), plain(source, target))
    assert len(calls) == 2


SPOILED = {
    "encoder.layers.0.self_attention is of class GroupedQueryAttention": lambda model: setattr(model.encoder.layers[0], "self_attention", GroupedQueryAttention(12, 3, 1)),
    "decoder.layers.1.cross_attention has hooks": lambda model: model.decoder.layers[1].cross_attention.register_forward_hook(print),
    "decoder has hooks": lambda model: model.decoder.register_forward_pre_hook(print),
    "decoder.layers.0.self_attention has a forward of its own": lambda model: vars(model.decoder.layers[0].self_attention).update(forward=print),
}


@pytest.mark.parametrize("said, spoil", SPOILED.items(), ids=SPOILED)
def test_joint_projections_replace_nothing_that_does_more_than_they_do(said, spoil):
    model = gpu.join_projections(gpu.join_projections(model_of()))  # its own classes may be replaced
    spoil(model)
    before = [*model.modules()]
    with pytest.raises(ValueError, match=f"^{said}, which joint projections would leave out$"):
        gpu.join_projections(model)
    assert [*model.modules()] == before


def test_a_layer_with_a_forward_of_its_own_is_neither_joined_nor_fused():
    model, calls = model_of(), []
    for layer in (model.encoder.layers[0].self_attention.W_Q, model.encoder.layers[0].add_norm[0].norm):
        layer.forward = lambda x, plain=layer.forward: calls.append(1) or plain(x)
    gpu.join_projections(gpu.fuse(model)).encode(torch.tensor([[5, 2]]))
    assert len(calls) == 2


def test_a_model_with_joint_projections_still_decodes_step_by_step():
    plain = with_biases(N_decoder=3, bias=True).eval()
    joint = gpu.join_projections(deepcopy(plain))
    source, target = make_batch(some_pairs(5))
    close(joint(source, target), plain(source, target))
    close(joint.decode(target, joint.encode(source), source), plain(source, target))
    state, old = joint.start(source), plain.start(source)
    for t in range(3):
        logits, state = joint.step(target[:, t], state)
        expected, old = plain.step(target[:, t], old)
        close(logits, expected)
    assert not joint.training and not any(module.training for module in joint.modules())


@pytest.mark.parametrize("pack", [decoding.packed, decoding.packed_int8])
def test_a_search_may_exchange_the_layers_of_a_model_with_joint_projections(pack):
    plain = with_biases(bias=True).eval()
    source, target = make_batch(some_pairs(5))
    found, wanted = (pack(model)(source, target) for model in (gpu.join_projections(deepcopy(plain)), plain))
    close(found, wanted)


@pytest.mark.parametrize("N_decoder", [1, 3])
def test_joint_projections_are_few_and_wide(N_decoder):
    model = gpu.join_projections(model_of(N_decoder=N_decoder, d_k=5, d_v=7))
    source, target = make_batch(some_pairs(5))
    with torch.profiler.profile(record_shapes=True) as profile:
        model(source, target)
    found = sorted(e.input_shapes[1][0] for e in profile.events() if e.name == "aten::linear")
    keys, values, out = 3 * 5, 3 * 7, 12
    encoder = [2 * keys + values, out, 19, out]
    decoder = [2 * keys + values, out, keys, out, 19, out]
    wanted = encoder * 2 + [N_decoder * (keys + values)] + decoder * N_decoder
    logits = [size for size in found if size == 23]
    assert found == sorted(wanted + logits)


# ---- the loss


@pytest.mark.parametrize("rows", [1, 4, 13, 26, 100])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_loss_in_pieces_is_the_loss(rows, eps):
    torch.manual_seed(2)
    x, W = (torch.randn(*s, dtype=torch.double, requires_grad=True) for s in ((2, 13, 5), (17, 5)))
    target = torch.randint(0, 17, (2, 13))
    target[1, 7:] = 0
    expected = label_smoothed_loss(x @ W.T, target, eps, 0, "sum")
    found = gpu.chunked_loss(x, W, target, gpu._Pieces(eps, 0, rows))
    close(found, expected)
    for a, b in zip(torch.autograd.grad(3 * found, (x, W)), torch.autograd.grad(3 * expected, (x, W)), strict=True):
        close(a, b)


def with_a_scatter(x, W, target, eps, pad):
    """As `_loss_piece`, but for the slope at the right tokens, which is scattered: that ends a kernel."""
    logits = x @ W.T
    right = target[:, None]
    total = logits.logsumexp(-1, keepdim=True)
    lost = total - (1 - eps) * logits.gather(-1, right) - eps * logits.mean(-1, keepdim=True)
    slope = ((logits - total).exp() - eps / len(W)).scatter_add(-1, right, torch.full(right.shape, eps - 1))
    return (lost * (right != pad)).sum(), slope * (right != pad)


def test_a_compiled_piece_of_the_loss_moves_the_logits_once():
    """The traffic of the generated program: arrays as large as the logits, and passes; it makes the slope in their place."""
    from torch._inductor import metrics
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    x, W, target = torch.randn(331, 61), torch.randn(1009, 61), torch.randint(0, 1009, (331,))
    found = {}
    for piece in (gpu._loss_piece, with_a_scatter):
        torch._dynamo.reset()
        metrics.reset()
        (lost, slope), (code,) = run_and_get_code(torch.compile(piece, fullgraph=True), x, W, target, 0.1, 0)
        torch.testing.assert_close(lost, label_smoothed_loss(x @ W.T, target, 0.1, 0, "sum"), rtol=1e-4, atol=1e-2)
        found[piece.__name__] = code.count("empty_strided_cpu((331, 1009)"), metrics.generated_kernel_count, slope
    torch._dynamo.reset()
    (arrays, passes, slope), (others, more, other) = found.values()
    torch.testing.assert_close(slope, other)
    assert arrays < others and passes < more, "the slope is made of the logits in their place, in fewer passes"


def test_the_loss_in_pieces_never_holds_all_logits():
    seen = []

    def watch(x, W, *rest):
        seen.append(len(x))
        return gpu._loss_piece(x, W, *rest)

    x, W = torch.randn(100, 8), torch.randn(11, 8)
    gpu.chunked_loss(x, W, torch.randint(1, 11, (100,)), gpu._Pieces(rows=32, compute=watch))
    assert seen == [32, 32, 32, 4]


@pytest.mark.parametrize(
    "x, W, target, rows, message",
    [((3, 4), (5, 6), (3,), 8, "must be"), ((3, 4), (5, 4), (2,), 8, "must be"), ((3, 4), (5, 4), (3,), 0, "rows must be 1 or more, got 0")],
)
def test_the_loss_in_pieces_refuses(x, W, target, rows, message):
    with pytest.raises(ValueError, match=message):
        gpu.chunked_loss(torch.randn(x), torch.randn(W), torch.ones(target, dtype=torch.long), gpu._Pieces(rows=rows))


def test_the_factor_of_a_loss_is_not_rounded_to_sixteen_bits():
    torch.manual_seed(2)
    x, W, target = torch.randn(257, 7).bfloat16().requires_grad_(), torch.randn(29, 7), torch.randint(1, 29, (257,))
    slopes = [torch.autograd.grad(factor * gpu.chunked_loss(x, W, target), x)[0].double() for factor in (1.0, 1.3008)]
    ratio = (slopes[1] * slopes[0]).sum() / slopes[0].square().sum()
    assert ratio == pytest.approx(1.3008, rel=1e-3)  # in bfloat16 1.3047


@pytest.mark.parametrize("kind", [gpu.TrainStep, graphs.CudaGraphTrainStep])
@pytest.mark.parametrize("count", [1, 3])
def test_a_fast_update_is_an_update(kind, count):
    pairs = some_pairs(30)
    batches = [make_batch(pairs[i::count]) for i in range(count)]
    moved, losses = [], []
    for fast in (False, True):
        model = model_of()
        adam = optimizer(model)
        adam.param_groups[0]["lr"] = 1e-3
        make = gpu.FastUpdate(kind(gpu.Objective(gpu.fuse(model), rows=50))) if fast else update
        for _ in range(2):
            loss, tokens = make(model, adam, batches)
        assert tokens == sum(len(t) for _, t in pairs)
        losses.append(loss)
        moved.append(gradients(model))
    close(losses[1], losses[0])
    close(moved[1], moved[0])


def test_a_fast_update_refuses_a_loss_that_is_not_finite():
    model = model_of()
    model.target_embedding.weight.data[5] = float("nan")
    before = model.encoder.layers[0].feed_forward.W_1.weight.clone()
    with pytest.raises(FloatingPointError, match="nan"):
        gpu.FastUpdate(gpu.TrainStep(gpu.Objective(model)))(model, optimizer(model), [make_batch(some_pairs(30))])
    assert torch.equal(model.encoder.layers[0].feed_forward.W_1.weight, before)


def test_a_fast_update_without_a_word_to_predict_fails_as_an_update_does():
    empty = torch.full((2, 3), 5), torch.zeros(2, 3, dtype=torch.long)
    for make in (update, gpu.FastUpdate(gpu.TrainStep(gpu.Objective(model := model_of())))):
        with pytest.raises(ValueError, match="batches hold no target token to predict"):
            make(model, optimizer(model), [empty])


# ---- batches


def test_no_pairs_make_no_batch():
    assert list(gpu.StaticBatches([], 9, 9)()) == list(Batches([], 9, 9)()) == []


def test_few_shapes_hold_every_pair_once_within_the_budget():
    pairs = some_pairs(203)  # a number that fills no last batch
    plain, few = Batches(pairs, 64, 64, seed=3), gpu.StaticBatches(pairs, 64, 64, seed=3)

    def sentences(batches):
        rows = [(s, t) for a, b in batches for s, t in zip(a.tolist(), b.tolist(), strict=True)]
        clean = [(tuple(i for i in s if i), tuple(i for i in t if i)) for s, t in rows]
        return sorted(pair for pair in clean if pair != ((2,), (1,)))

    assert sentences(few(1)) == sentences(plain(1))
    filled = [a[(b != 0).sum(1) == 1] for a, b in few(1)]
    assert sum(map(len, filled)) > 0 and all((a[:, 0] == 2).all() and (a[:, 1:] == 0).all() for a in filled)
    shapes = {(a.shape, b.shape) for a, b in few(1)}
    assert shapes == {((8, 8), (8, 9)), ((4, 16), (4, 17))}
    for budgets in ((64, 32), (32, 64)):  # either side keeps its own
        assert {a.shape for a, _ in gpu.StaticBatches(pairs, *budgets)()} == {(4, 8), (2, 16)}
    assert len(list(few(1))) - len(list(few(1, 4))) == 4
    for multiple in (0, -8):
        with pytest.raises(ValueError, match=f"multiple must be 1 or more, got {multiple}"):
            gpu.StaticBatches(pairs, 64, 64, multiple=multiple)
    with pytest.raises(ValueError, match="budget"):
        list(gpu.StaticBatches(pairs, 12, 12)())  # 9 to 12 tokens fit, 16 do not


def test_batches_of_few_shapes_have_the_models_own_markers():
    source, target = next(gpu.StaticBatches([([5, 7], [6, 7]), ([5, 5, 7], [6, 7])], 24, 24, eos=7, pad=9, bos=8)())
    assert source[:, 0].tolist() == [5, 5, 7] and target[:, 0].tolist() == [8, 8, 8]
    assert not (source == 0).any() and not (target == 0).any() and not (target == 1).any()
    assert (source == 9).sum() == 24 - 2 - 3 - 1 and (target == 9).sum() == 27 - 3 - 3 - 1


def test_an_attention_that_knows_no_packed_sentences_is_refused():
    model = model_of()
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.attention = additive_attention
    with pytest.raises(ValueError, match="knows no packed sentences: train it by Objective"):
        gpu.UnpaddedObjective(model)
    with pytest.raises(ValueError, match="output_bias"):
        gpu.UnpaddedObjective(other := model_of(output_bias=True))
    assert not any(isinstance(m, FusedLayerNorm) for refused in (model, other) for m in refused.modules())  # as they were


def test_a_loss_in_pieces_keeps_the_digits_of_double_precision():
    x, W = (torch.randn(n, 7, dtype=torch.double, requires_grad=True) for n in (5, 11))
    target = torch.randint(1, 11, (5,))
    losses = gpu.chunked_loss(x, W, target), label_smoothed_loss(x @ W.T, target, reduction="sum")
    for a, b in zip(*(torch.autograd.grad(loss / 3, [x, W]) for loss in losses), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_rows_that_fill_up_change_no_gradient():
    pairs, found = some_pairs(3), []
    for batch in (make_batch(pairs), next(gpu.StaticBatches(pairs, 96, 96)())):
        model = gpu.fuse(model_of())
        gpu.FastUpdate(gpu.TrainStep(gpu.Objective(model)))(model, optimizer(model), [batch])
        found.append(gradients(model))
    close(*found)


def test_batches_made_ahead_are_the_batches():
    batches = Batches(some_pairs(), 40, 40)
    for place in ((0, 0), (2, 3)):
        plain, ahead = list(batches(*place)), list(gpu.Prefetch(batches, ahead=3)(*place))
        assert len(plain) == len(ahead) and all(torch.equal(a[i], b[i]) for a, b in zip(plain, ahead) for i in (0, 1))
    assert list(gpu.Prefetch(lambda epoch, position: [])()) == []
    with pytest.raises(ValueError, match="ahead must be 1 or more, got 0"):
        gpu.Prefetch(batches, 0)


def test_batches_are_made_ahead_and_no_further():
    asked = []

    def slow(epoch, position):
        for n in range(20):
            asked.append(n)
            yield torch.tensor(n), torch.tensor(n)

    coming = gpu.Prefetch(slow, ahead=4)()
    next(coming)
    limit = time.monotonic() + 5
    while len(asked) < 5 and time.monotonic() < limit:
        time.sleep(0.01)
    assert len(asked) == 5
    coming.close()


def test_an_error_in_a_batch_arrives_in_its_place():
    def broken(epoch, position):
        yield torch.tensor(1), torch.tensor(1)
        raise KeyError("lost")

    coming = gpu.Prefetch(broken)()
    next(coming)
    with pytest.raises(KeyError, match="lost"):
        next(coming)


# ---- compilation


@pytest.mark.parametrize("join", [lambda model: model, gpu.join_projections], ids=["plain", "joint projections"])
def test_layers_share_a_program_for_all_shapes(join):
    programs, count = counted_programs()
    model = join(gpu.fuse(model_of(N=3))).eval()
    plain = deepcopy(model)
    gpu.compiled(model, backend=count)
    for n in (5, 9, 14):
        ids = torch.randint(4, 23, (2, n))
        close(model(ids, ids), plain(ids, ids))
    assert len(programs) == 2
    torch._dynamo.reset()


def test_compiled_layers_take_joint_projections_without_padding():
    model = gpu.join_projections(gpu.fuse(model_of(P_drop=0.0)))
    batch = make_batch(some_pairs(7, seed=3))
    (wanted := gpu.UnpaddedObjective(model)(*batch)).backward()
    twin = gpu.compiled(gpu.join_projections(gpu.fuse(model_of(P_drop=0.0))), backend="eager")
    (found := gpu.UnpaddedObjective(twin)(*batch)).backward()
    close(found, wanted)
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        close(one.grad, other.grad)
    torch._dynamo.reset()


def test_compiling_touches_every_layer_and_no_name():
    model = model_of()
    names = list(model.state_dict())
    assert gpu.compiled(model) is model and list(model.state_dict()) == names
    layers = [*model.encoder.layers, *model.decoder.layers]
    assert all(layer._compiled_call_impl is not None for layer in layers)


# ---- work


@pytest.mark.parametrize("change", [{}, {"N_decoder": 1}])
def test_operations_are_those_that_torch_counts(change):
    from torch.utils.flop_counter import FlopCounterMode

    config = replace(SMALL, d_k=5, d_v=3, **change)
    model, ids = Transformer(config), torch.randint(4, 23, (3, 13))
    with FlopCounterMode(display=False) as counter:
        label_smoothed_loss(model(ids[:, :7], ids[:, :-1]), ids[:, 1:]).backward()
    assert counter.get_total_flops() == 3 * gpu.training_flops(config, 7, 12)
    both = gpu.products(config, torch.tensor([7, 2]), torch.tensor([12, 3]))
    assert both.tolist() == [gpu.products(config, 7, 12), gpu.products(config, 2, 3)]


def test_ceilings_leave_the_precision_as_it_was():
    torch.set_float32_matmul_precision("high")
    rates = gpu.ceilings("cpu", n=64, seconds=0.01)
    assert set(rates) == {"float32", "bfloat16", "copy"} and min(rates.values()) > 0
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")


def test_ceilings_count_both_operations_of_a_product_and_both_ways_of_a_copy(monkeypatch):
    monkeypatch.setattr(gpu, "_calls_a_second", lambda *given: 3)
    assert gpu.ceilings("cpu", n=7) == {"float32": 3 * 2 * 7**3, "bfloat16": 3 * 2 * 7**3, "copy": 3 * 2 * 4 * 7**2}


def test_an_output_bias_is_refused_and_not_forgotten():
    model = Transformer(replace(SMALL, output_bias=True))
    with pytest.raises(ValueError, match="output_bias"):
        gpu.Objective(model)


def test_on_a_gpu_attention_is_not_left_to_cudnn_and_other_code_keeps_it(monkeypatch):
    allowed = []
    enabled = torch.backends.cuda.cudnn_sdp_enabled
    monkeypatch.setattr(gpu.F, "scaled_dot_product_attention", lambda *inputs: allowed.append(enabled()))
    assert enabled()
    gpu.fuse(Transformer(SMALL))
    gpu._attend(SimpleNamespace(is_cuda=True), None, None)
    gpu._attend(SimpleNamespace(is_cuda=False), None, None)
    assert allowed == [False, True] and enabled()


def test_the_choice_of_kernels_breaks_no_graph():
    def attend(Q):
        with gpu.sdpa_kernel(gpu._KERNELS, set_priority=True):
            return torch.nn.functional.scaled_dot_product_attention(Q, Q, Q)

    torch._dynamo.reset()
    Q = torch.randn(2, 3, 5, 8, requires_grad=True)
    found = torch.compile(attend, fullgraph=True, backend="aot_eager")(Q)
    close(found, attend(Q))
    torch._dynamo.reset()


# ---- the programs that make the records, at tiny size

TINY_TRAINING = "--device cpu --sizes tiny --tokens 100 --batches 1 --backend eager".split()
TINY_RUN = [*TINY_TRAINING, "--seconds", "0"]


@pytest.fixture
def program(monkeypatch):
    "Load a program of benchmarks/; the result calls its main function, or gives a name of it."

    def load(name):
        module = loaded(BENCHMARKS / f"{name}.py")

        def call(*arguments):
            monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, arguments)])
            module.main()

        return module, call

    return load


def scores_in(folder):
    run = json.loads((folder / "run.json").read_text())
    assert run["seed" if "seed" in run else "recipe"] is not None and run["machine"] and run["commit"]
    return json.loads((folder / "scores.json").read_text())


def test_the_ladder_is_climbed_written_and_gone_on_with(program, tmp_path, capsys):
    ladder, climb = program("14_ladder")
    steps = ["float32, plain", "fused attention", "CUDA graphs"]
    monkey = list(ladder.on_gpu.RUNGS)
    assert monkey[0] == steps[0] and monkey[-1] == steps[-1]
    chosen = ladder.on_gpu.settings("fused attention")
    assert chosen == {"precision": "bfloat16", "attention": True}
    assert all(len(change) == 1 for rung, change in ladder.on_gpu.RUNGS.items() if rung != steps[0])
    climb(*TINY_RUN, "--here", "--rungs", steps[0], "--out", tmp_path)
    assert "tokens/s" in capsys.readouterr().out
    first = scores_in(tmp_path)["tiny"][0]
    assert first["gradients differ by"] == 0 and first["operations a byte"] > 0 and 0 < first["share of the matrix rate"]
    climb(*TINY_RUN, "--here", "--rungs", steps[0], "loss in pieces", "--out", tmp_path)
    scores = scores_in(tmp_path)
    rows = scores["tiny"]
    assert [row["rung"] for row in rows] == [steps[0], "loss in pieces"] and rows[0] == first
    assert rows[0]["matrix rate"] == scores["matrix rate"] != rows[1]["matrix rate"], "each sitting has measured its own"
    assert 0 < rows[1]["gradients differ by"] < 0.1 and rows[1]["tokens a second"] > 0
    with pytest.raises(ValueError, match="no rung 'none'"):
        ladder.on_gpu.settings("none")


@pytest.mark.parametrize("status, stderr, said", [
    (1, "Traceback\nInductorError: full\nSome advice", "InductorError: full"),
    (2, "ImportError: of no matter\n14_ladder: out of memory", "out of memory"),  # by script.run
])
def test_a_rung_that_fails_costs_itself_only(status, stderr, said, program, tmp_path, monkeypatch, capsys):
    ladder, climb = program("14_ladder")
    made = SimpleNamespace(returncode=status, stderr=stderr, stdout="")
    monkeypatch.setattr(ladder, "subprocess", SimpleNamespace(run=lambda *a, **k: made, TimeoutExpired=TimeoutError))
    climb(*TINY_RUN, "--rungs", "TF32", "--out", tmp_path)
    (row,) = scores_in(tmp_path)["tiny"]
    assert row == {"rung": "TF32", "failed": said, "commit": ladder.commit()}
    climb(*TINY_RUN, "--here", "--rungs", "TF32", "--out", tmp_path)
    assert "tokens a second" in scores_in(tmp_path)["tiny"][0]  # tried again


def test_peers_compute_the_same_and_take_turns(program, tmp_path, capsys):
    module, call = program("14_peers")
    call(*TINY_TRAINING, "--rounds", 1, "--not-compiled", "--out", tmp_path)
    rows = scores_in(tmp_path)["tiny"]
    assert rows["largest difference of a logit"] < 1e-3 and rows["ours, not compiled"]["times as long as ours"] == 1
    assert {"ours, plain", "ours, whole loss", "torch.nn.Transformer"} <= set(rows)
    assert ("XTransformer" in rows) != ("XTransformer" in rows["missing"])
    found, _ = module.sides(module.on_gpu.CONFIGS["tiny"], SimpleNamespace(device="cpu", backend="eager", not_compiled=False))
    assert {"ours", "torch.nn.Transformer, compiled"} <= set(found)
    same = "ours, whole loss", "ours, whole loss, compiled", "torch.nn.Transformer", "torch.nn.Transformer, compiled"
    assert {type(found[name][1]).__name__ for name in same} == {"Plain"}  # who is compared has the same loss


def test_a_side_that_waits_for_its_turn_keeps_no_gradients(program):
    module, _ = program("14_peers")
    model = model_of()
    adam = optimizer(model)
    batches = [make_batch(some_pairs(9, seed)) for seed in (0, 1)]
    assert module.turn(model, adam, update, batches, "cpu")() > 0
    assert all(p.grad is None for p in model.parameters()) and adam.state


@pytest.mark.parametrize("rung", ["fused attention", "norms in one kernel", "residual sums in 16 bits", "joint projections"])
def test_a_rung_makes_its_own_change_only(program, rung):
    on_gpu, _ = program("on_gpu")
    model = model_of()
    on_gpu.prepare(model, on_gpu.settings(rung), "cpu")
    order = list(on_gpu.RUNGS)
    norms = {type(module) for module in model.modules() if isinstance(module, LayerNorm)}
    assert norms == {FusedLayerNorm if order.index(rung) >= order.index("norms in one kernel") else LayerNorm}
    assert bool(model.dropout._forward_hooks) == (order.index(rung) >= order.index("residual sums in 16 bits"))
    joint = {isinstance(module, gpu._JointAttention) for module in model.modules() if isinstance(module, MultiHeadAttention)}
    assert joint == {isinstance(model.decoder, gpu._JointDecoder)} == {rung == "joint projections"}
    assert model.encoder.layers[0].self_attention.attention is gpu.fused_attention


def test_searches_are_compared_before_they_are_timed(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_decoding")
    small = ("--device", "cpu", "--backend", "eager", "--sizes", "tiny", "--rounds", 1, "--batch", 3, "--length", 4)
    call(*small, "--out", tmp_path / "right")
    scores = scores_in(tmp_path / "right")
    assert scores["greedy"]["ours, fused"]["same as plain"] == 1 and scores["beam 4"]["ours, plain"]["sentences a second"] > 0
    monkeypatch.setattr(module, "fuse", lambda model: Transformer(model.config).eval())
    with pytest.raises(ValueError, match="other tokens than ours"):
        call(*small, "--out", tmp_path / "wrong")
    record = tmp_path / "wrong" / "scores.json"  # begun, and without a time
    assert not record.exists() or "greedy" not in json.loads(record.read_text())


def told(*records):
    "(record, command) of results/README.md that goes on with it."
    rows = (Path(__file__).parent.parent / "results/README.md").read_text(encoding="utf-8").splitlines()
    return [(record, re.search("`python benchmarks/([^`]*)`", row)[1])
            for record in records for row in rows if row.startswith(f"| `{record}/` |")]


@pytest.mark.parametrize("record, command", told("14-ladder", "14-peers", "14-decoding"))
def test_a_record_is_gone_on_with_by_the_commands_that_are_told(record, command, program, tmp_path, monkeypatch):
    folder = shutil.copytree(Path(__file__).parent.parent / "results" / record, tmp_path / record)
    run = json.loads((folder / "run.json").read_text())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: run["machine"]["gpu"])
    monkeypatch.setattr(torch, "__version__", run["versions"]["torch"])
    name, *words = shlex.split(command)
    module, call = program(name.removesuffix(".py"))
    begin = module.on_gpu.begin

    def only_begin(*given, **more):
        begin(*given, **more)
        raise InterruptedError

    monkeypatch.setattr(module.on_gpu, "begin", only_begin)
    with pytest.raises(InterruptedError):
        call(*words, "--out", folder)
    assert len(json.loads((folder / "run.json").read_text())["continued"]) == 1 + len(run.get("continued", []))
    others = {"14-decoding": {"batch": 128, "length": 40}}.get(record, {"tokens": 25_000, "batches": run["options"].get("batches")})
    for option, was in others.items():
        with pytest.raises(ValueError, match=f"was begun with {option}={was}, now {option}=64: choose another"):
            call(*words, "--out", folder, f"--{option}", 64)


def test_what_makes_another_record_of_searches_is_compared_and_nothing_else(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_decoding")
    monkeypatch.setattr(module, "sides", lambda model, options: ({"ours, plain": partial(module.of_ours, model, options.length)}, {}))
    small = "--device cpu --backend eager --sizes tiny --rounds 1 --batch 3 --length 4".split()
    call(*small, "--out", tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["options"] == {"device": "cpu", "backend": "eager", "batch": 3, "length": 4}
    call(*small, "--out", tmp_path)
    for option in ("batch", "length"):
        with pytest.raises(ValueError, match=f"was begun with {option}=., now {option}=5"):
            call(*small, f"--{option}", 5, "--out", tmp_path)


@pytest.mark.parametrize("name, option", [("14_decoding", "--tokens"), ("14_decoding", "--batches"),
                                          ("14_decoding", "--seconds"), ("14_peers", "--seconds")])
def test_an_option_that_does_nothing_is_not_there(name, option, program, tmp_path, capsys):
    with pytest.raises(SystemExit):
        program(name)[1](option, 1, "--out", tmp_path)
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def test_ctranslate2_in_its_own_process_writes_our_tokens(program):
    pytest.importorskip("ctranslate2")
    module, _ = program("11_decoding")
    torch.manual_seed(0)
    model = module.EndlessTransformer(replace(TINY, N=1, d_model=32, d_ff=32, h=2, vocab=101, eps_norm=1e-5)).eval()
    source = torch.randint(4, 101, (3, 7))
    source[:, -1] = model.config.eos
    theirs = module.CTranslate2(model, "float32", 1)
    for beam in (1, 4):
        assert module.of_ctranslate2(theirs, source, beam) == module.of_ours(model, module.LENGTH, source, beam)


def test_a_stopped_training_on_multi30k_ends_in_a_line(program, capsys, monkeypatch):
    module, _ = program("14_multi30k")

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "one_seed", stopped)
    monkeypatch.setattr(sys, "argv", ["14_multi30k.py"])
    assert module.main() == 130
    assert capsys.readouterr().err.startswith("14_multi30k: stopped; the same command goes on")


@pytest.mark.parametrize("more, adam_or_muon", [([], "adam"), (["--muon"], "muon")])
def test_multi30k_trains_chooses_on_validation_and_scores_once(more, adam_or_muon, program, tmp_path, monkeypatch, capsys):
    module, call = program("14_multi30k")
    scored = []
    corpus = grammar_corpus(train=40, validation=5, test=3)
    monkeypatch.setattr(module, "load_corpus", lambda name: corpus)
    monkeypatch.setattr(module, "bleu", lambda made, wanted, **how: scored.append((len(made), how)) or (9.0 - len(scored), "s"))
    monkeypatch.setattr(module, "ALPHAS", (0.3, 1.0))
    monkeypatch.setattr(module, "KEPT", 2)
    small = "--device cpu --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --steps 6 --warmup 2 --save_every 2 --average 2 --every 1 --vocab 330 --tokens 200 --seeds 1 --beam 2".split()
    for _ in range(2):  # the second time the seed is there
        call(*small, *more, "--protocols", "tok", "--out", tmp_path / "m", "--work", tmp_path / "work")
    assert scored == [(5, {"tokenize": "none"})] * 4 + [(3, {"tokenize": "none"})]  # two ends, two penalties, one test
    scores = scores_in(tmp_path / "m-tok-1")
    assert scores["end"] == 4 and scores["alpha"] == 0.3 and scores["checkpoints averaged"] == 2 and scores["bleu"] == 4
    assert scores["averages tried, greedy"] == {"2": 9 - 1}
    assert (tmp_path / "m-tok-1/outputs.txt").read_text().count("\n") == 3 and not (tmp_path / "work/m-tok-1").exists()
    assert json.loads((tmp_path / "m-tok-1/run.json").read_text())["recipe"]["optimizer"] == adam_or_muon
    rates = [json.loads(line)["rate"] for line in (tmp_path / "m-tok-1/log.jsonl").read_text().splitlines() if "rate" in line]
    assert len(rates) == 3 and (rates[2] < rates[1] / 1.5) == bool(more)  # Muon's ends at 0


def test_multi30k_tries_several_averages_and_penalties_beyond_the_strongest_until_one_is_worse(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_multi30k")
    monkeypatch.setattr(module, "load_corpus", lambda name: grammar_corpus(train=40, validation=5, test=3))
    monkeypatch.setattr(module, "ALPHAS", (0.3, 1.0))
    made = iter([1.0, 3.0, 2.0, 4.0, 2.5, 5.0, 6.0, 7.0, 6.5, 8.0])  # two ends of pairs, three of single ones, then penalties
    monkeypatch.setattr(module, "bleu", lambda *given, **how: (next(made), "s"))
    small = "--device cpu --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --steps 6 --warmup 2 --save_every 2 --average 2 1 --every 1 --vocab 330 --tokens 200 --seeds 1 --beam 2".split()
    call(*small, "--protocols", "tok", "--out", tmp_path / "m", "--work", tmp_path / "work")
    scores = scores_in(tmp_path / "m-tok-1")
    assert scores["averages tried, greedy"] == {"2": 3, "1": 4} and (scores["checkpoints averaged"], scores["end"]) == (1, 4)
    assert scores["ends tried, greedy"] == {"2": 2, "4": 4, "6": 2.5}
    assert scores["penalties tried"] == {"0.3": 5, "1.0": 6, "1.6": 7, "2.2": 6.5}
    assert (scores["alpha"], scores["validation"], scores["bleu"]) == (1.6, 7, 8) and next(made, None) is None


def test_multi30k_refuses_to_go_on_with_other_settings(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_multi30k")
    monkeypatch.setattr(module, "load_corpus", lambda name: grammar_corpus(train=40, validation=5, test=3))
    small = "--device cpu --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --steps 6 --warmup 2 --save_every 2 --average 2 --every 4 --tokens 200 --seeds 1 --protocols tok".split()
    places = "--out", tmp_path / "m", "--work", tmp_path / "work"

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "choose", stopped)
    call(*small, *places, "--vocab", 330, "--beam", 2)
    assert "stopped" in capsys.readouterr().err
    for other in (["--vocab", 340, "--beam", 2], ["--vocab", 330, "--beam", 3], ["--vocab", 330, "--beam", 2, "--bpe_dropout", 0.3]):
        call(*small, *places, *other)
        said = capsys.readouterr().err
        assert "vocabulary of 330 pieces, not 340" in said if 340 in other else "begun with" in said


def test_multi30k_takes_the_rate_that_leaves_the_least_loss_and_goes_on_with_its_trials(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_multi30k")
    monkeypatch.setattr(module, "load_corpus", lambda name: grammar_corpus(train=40, validation=5, test=3))
    small = "--device cpu --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --steps 6 --warmup 2 --save_every 2 --average 2 --every 4 --vocab 330 --tokens 200 --seeds 1 --beam 2".split()
    places = "--protocols", "tok", "--out", tmp_path / "m", "--work", tmp_path / "work"
    call(*small, *places, "--trial", 3, "--rates", 0.001, 0.1)
    made = scores_in(tmp_path / "m-tok-rates")["validation loss"]
    assert made["0.1"] < made["0.001"]
    trials = json.loads((tmp_path / "m-tok-rates/run.json").read_text())["recipe"]
    assert (trials["seed"], trials["steps"], trials["warmup"], trials["rate"]) == (99, 3, 1, [0.001, 0.1])
    assert json.loads((tmp_path / "m-tok-1/run.json").read_text())["recipe"]["rate"] == 0.1
    monkeypatch.setattr(module, "train", lambda *given: pytest.fail("trained again"))
    call(*small, *places, "--trial", 3, "--rates", 0.001, 0.1)


def test_a_model_reads_what_teachers_write_and_both_are_made_once(program, tmp_path, monkeypatch, capsys):
    module, call = program("14_multi30k")
    corpus, seen, given = grammar_corpus(train=40, validation=5, test=3), [], []
    real = module.trained

    def trained(data, config, recipe, work, options):
        given.append(options)
        seen.append((recipe.seed, recipe.steps, data[0].train[0], len(data[2])))
        return real(data, config, recipe, work, options)

    def written(model, vocabulary, pairs, beam, alpha):  # an empty line is no translation
        return ["" if i == 7 else f"x {source}" for i, (source, _) in enumerate(pairs)]

    for name, new in (("load_corpus", lambda name: corpus), ("trained", trained), ("translate", written), ("ALPHAS", (1.0,))):
        monkeypatch.setattr(module, name, new)
    small = "--device cpu --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --steps 6 --warmup 2 --save_every 2 --average 2 --every 4 --vocab 330 --tokens 200 --beam 2".split()
    more = *small, "--teachers", 1, "--teacher_steps", 4, "--protocols", "tok", "--out", tmp_path / "m", "--work", tmp_path / "work"
    call(*more, "--seeds", 1)
    one, two = corpus.train[0]
    assert seen[:2] == [(100, 4, (one, two), 40), (101, 4, (two, one), 40)]
    assert seen[2:] == [(1, 6, (one, two), 3 * 40 - 2)]
    words = module.Subwords.train([text for pair in corpus.train for text in pair], 330)
    data = corpus, words, [(words.encode(a), words.encode(b)) for a, b in corpus.train], []
    place, rate = tmp_path / "work/m-tok-teachers", given[-1].rate
    plain, (data, found) = data, module.taught(data, rate, place, {}, given[-1])
    module.taught(plain, rate, place, {}, module.argparse.Namespace(**{**vars(given[-1]), "steps": 99}))  # the model's own
    for other in ({"beam": 3}, {"bpe_dropout": 0.5}, {"teacher_steps": 5}):  # those of other trainings are not read
        with pytest.raises(ValueError, match="begun with"):
            module.taught(plain, rate, place, {}, module.argparse.Namespace(**{**vars(given[-1]), **other}))
    assert data[0].train[40] == (one, f"x {one}") and data[0].train[79] == (f"x {two}", two)
    assert data[2][40] == (words.encode(one), words.encode(f"x {one}"))
    run = json.loads((tmp_path / "m-tok-1/run.json").read_text())
    assert run["teachers"] == {"seeds": {"forward-1": 100, "backward-1": 101}, "steps": 4}
    scores = scores_in(tmp_path / "m-tok-1")
    assert scores["teachers"] == {"pairs with theirs": 118, **found}
    assert {name: set(one) for name, one in found.items()} == dict.fromkeys(run["teachers"]["seeds"], {"validation", "seconds of training", "seconds in all"})
    with pytest.raises(ValueError, match="m-tok-1 was begun with teachers: give --teachers again"):
        module.check_teachers(tmp_path / "m-tok-1", module.argparse.Namespace(teachers=0))
    call(*more, "--seeds", 1, 2)  # another seed has the same teachers
    assert [seed for seed, *_ in seen[3:]] == [2]


def test_a_file_that_a_killed_process_has_left_keeps_no_teacher_waiting(program, tmp_path, monkeypatch):
    module, _ = program("14_multi30k")
    corpus, made = grammar_corpus(train=5, validation=1, test=1), []

    def teach(name, data, rate, folder, how, options):
        made.append(name)
        (folder / f"{name}.txt").write_text("x\n" * 5)
        (folder / f"{name}.json").write_text("{}")

    monkeypatch.setattr(module, "teach", teach)
    monkeypatch.setattr(module, "about_teachers", lambda *_: {})
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("waits for itself"))
    for name, end in (("forward-1", "pid"), ("backward-1", "lock")):
        (tmp_path / f"{name}.{end}").write_text(str(os.getpid()))  # of a process that was called as this one is
    words = SimpleNamespace(encode=str.split)
    data, _ = module.taught((corpus, words, [], []), 1.0, tmp_path, {}, SimpleNamespace(teachers=1))
    assert made == ["forward-1", "backward-1"] and len(data[2]) == 10


def test_a_teacher_that_another_process_has_is_waited_for(program, tmp_path, monkeypatch):
    module, _ = program("14_multi30k")
    waited = []

    def sleep(seconds):  # meanwhile the other one ends
        waited.append(seconds)
        for name in ("forward-1", "backward-1"):
            (tmp_path / f"{name}.txt").write_text("x\n" * 5)
            (tmp_path / f"{name}.json").write_text("{}")

    monkeypatch.setattr(module, "teach", lambda *_: pytest.fail("made twice"))
    monkeypatch.setattr(module, "about_teachers", lambda *_: {})
    monkeypatch.setattr(module.time, "sleep", sleep)
    words = SimpleNamespace(encode=str.split)
    data = grammar_corpus(train=5, validation=1, test=1), words, [], []
    with module.alone(tmp_path / "forward-1.lock") as one, module.alone(tmp_path / "backward-1.lock") as two:
        module.taught(data, 1.0, tmp_path, {}, SimpleNamespace(teachers=1))
    assert one and two and waited == [module.WAIT]


def test_a_score_says_what_it_is_made_of(program):
    module, _ = program("14_multi30k")
    texts = ["a b c d e f", "a b c d x f g", "h i j k l m n", "b c d e", "x y z u v w"] * 7
    made = [text.rsplit(" ", 1)[0] for text in texts[:-7]] + ["a b c x y z u v"] * 7
    found = module.about_score(made, texts, {"tokenize": "none"})
    score = module.bleu(made, texts, tokenize="none")[0]
    assert found["brevity penalty"] * math.prod(found["precisions"]) ** 0.25 == pytest.approx(score, rel=1e-3)
    assert found["precisions"] == [round(p, 2) for p in sacrebleu.corpus_bleu(made, [texts], tokenize="none").precisions]
    low, high = found["interval"]
    assert low + 1 < score < high - 1
    assert found["length ratio"] == pytest.approx(sum(len(x.split()) for x in made) / sum(len(x.split()) for x in texts), abs=1e-4)


@pytest.mark.parametrize("more, large", [([], "aten::mm"), (["--memory"], "aten::sub")])
def test_a_profile_lists_time_or_memory(program, more, large, capsys):
    program("14_profile")[1](*"--preset tiny --vocab 997 --tokens 100 --device cpu --rows 400".split(), *more)
    lines = capsys.readouterr().out.splitlines()
    shares = [float(line.split()[-1].rstrip("%")) for line in lines]
    assert shares == sorted(shares, reverse=True) and 95 < sum(shares) < 105
    named = {line.split()[0]: share for line, share in zip(lines, shares)}
    assert named[large] > 5 and (named["aten::view"] == 0) == bool(more)  # a view takes time and no memory


def test_a_profile_of_a_rung_becomes_a_record(program, tmp_path, capsys):
    words = "--preset tiny --vocab 503 --tokens 100 --device cpu --rows 1 --rung".split()
    program("14_profile")[1](*words, "packed rows", "--out", tmp_path)
    scores, run = scores_in(tmp_path), json.loads((tmp_path / "run.json").read_text())
    assert scores["rung"] == "packed rows" and "ended" in run
    assert sum(share for _, _, share in scores["operation, calls, share"]) == pytest.approx(1)


@pytest.mark.parametrize("here, installs", [(sys.executable, False), ("/bin/false", True)])
def test_make_gpu_installs_nothing_where_torch_is_there(here, installs, tmp_path):
    root = Path(__file__).parent.parent
    command = ["make", "--no-print-directory", "-n", "gpu", f"VENV={tmp_path}/venv", f"PYTHON={here}"]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert ("pip install" in said) == installs
    assert said.splitlines()[-1].split()[1] == (f"{tmp_path}/venv/bin/python" if installs else here)


def test_make_gpu_checks_climbs_and_trains(program, tmp_path, monkeypatch, capsys, few_pairs):
    module, call = program("14_gpu")
    steps = []

    def here(command):
        steps.append(Path(command[0]).stem if command[0] != "-m" else command[2])
        if command[0] == "-m":
            assert cli.main(list(map(str, command[2:]))) == 0
        else:
            program("14_ladder")[1](*command[1:])

    monkeypatch.setattr(module, "called", here)
    call("--device", "cpu", "--trial", "--out", tmp_path)
    assert steps == ["14_ladder", "train"] and "BLEU" in capsys.readouterr().out
    with pytest.raises(ValueError, match="CUDA device" if not torch.cuda.is_available() else "nothing"):
        call("--device", "cuda", "--trial", "--out", tmp_path)
        raise ValueError("nothing")


# ---- no padding


def ragged(count=7):
    """A batch of very unequal sentences."""
    return make_batch(some_pairs(count, seed=3))


@pytest.mark.parametrize("options", [{}, {"norm": "pre", "N_decoder": 1}, {"d_k": 5, "d_v": 3}, {"positions": "learned"}, {"source_vocab": 29}])
@pytest.mark.parametrize("context", [nullcontext, partial(torch.autocast, "cpu", dtype=torch.bfloat16)])
def test_without_padding_loss_and_gradients_are_those_with_it(options, context):
    model = model_of(**options)
    batch, found = ragged(), []
    for kind in (gpu.Objective, gpu.UnpaddedObjective):
        twin = gpu.fuse(deepcopy(model))
        with context():
            loss = kind(twin, rows=5)(*batch)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in twin.parameters())])
    near = {"atol": 1e-4, "rtol": 1e-4} if context is nullcontext else {"atol": 0.5, "rtol": 0.1}
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, **near)


def test_without_padding_nothing_is_computed_on_it(monkeypatch):
    source, target = ragged()
    rows = set()

    def linear(x, W, b=None):
        rows.add(x.shape[:-1].numel())
        return x @ W.T if b is None else x @ W.T + b

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    gpu.UnpaddedObjective(model_of())(source, target)
    assert rows == {int((source != 0).sum()), int((target[:, 1:] != 0).sum())}


def test_a_batch_of_padding_alone_adds_nothing():
    source, target = ragged()
    model = model_of()
    gpu.UnpaddedObjective(model)(source, target).backward()
    alone = gradients(model)
    gpu.UnpaddedObjective(model)(source[:1], torch.zeros_like(target[:1])).backward()
    assert torch.equal(gradients(model), alone)


def test_a_sentence_learns_nothing_from_its_neighbours():
    objective = gpu.UnpaddedObjective(model_of())
    source, target = ragged()
    whole = objective(source, target)
    alone = sum(objective(source[i : i + 1], target[i : i + 1]) for i in range(len(source)))
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-3)


def test_a_model_without_padding_still_reads_padded_batches():
    model = model_of()
    source, target = ragged()
    expected = model.eval()(source, target[:, :-1])
    found = gpu.UnpaddedObjective(model).model(source, target[:, :-1])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_compiled_layers_are_few_programs_over_twenty_shapes_and_an_evaluation():
    programs, count = counted_programs()
    model = gpu.compiled(gpu.fuse(model_of(P_drop=0.1, d_model=128, h=2)), backend=count)
    objective = gpu.Objective(model)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for i in range(20):
            objective.train()(torch.randint(4, 23, (2, 5 + i)), torch.randint(4, 23, (2, 30 - i))).backward()
        with torch.no_grad():
            objective.eval()(*ragged())
    assert len(programs) <= 8


def test_lengths_that_are_equal_at_first_make_no_program_of_their_own():
    programs, count = counted_programs()
    objective = gpu.Objective(gpu.compiled(gpu.fuse(model_of(P_drop=0.1)), backend=count))
    for S, T in ((9, 9), (9, 13), (16, 7), (7, 16)):
        objective(torch.randint(4, 23, (3, S)), torch.randint(4, 23, (3, T + 1))).backward()
    assert len(programs) == 2  # a layer of the encoder, and one of the decoder


@pytest.mark.parametrize("S", [1, 7, 8, 9, 16])
def test_rows_of_a_mask_on_a_gpu_lie_at_multiples_of_eight_and_are_always_made_longer(S):
    mask = torch.rand(2, 1, 1, S) < 0.5
    on_gpu = SimpleNamespace(is_cuda=True, shape=mask.shape)
    pad = lambda _, more: torch.nn.functional.pad(mask, more)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "F", SimpleNamespace(pad=pad))
        seen = gpu._aligned(on_gpu)
    assert torch.equal(seen, mask) and seen.stride(-2) % 8 == 0 and seen.stride(-2) > S


def test_a_layout_says_where_its_sentences_end():
    real = torch.arange(5)[None] < torch.tensor([5, 2, 4])[:, None]
    layout = gpu._Layout.of(real, "cpu")
    assert layout.ends.tolist() == [0, 5, 7, 11] and layout.ends.dtype == torch.int32


def test_what_is_sent_to_a_gpu_is_pinned_first():
    x = SimpleNamespace(is_cuda=False, pin_memory=lambda: SimpleNamespace(to=lambda device, non_blocking: ("pinned", device)))
    assert gpu._sent(x, "cuda:0") == ("pinned", "cuda:0")
    assert gpu._sent(torch.ones(2), "cpu").tolist() == [1, 1]


# ---- packed rows, which the ladder measures


@pytest.mark.parametrize("attention", ["plain", "fused"])
def test_packed_rows_have_the_loss_and_the_gradients_of_the_padded_batch(attention, program):
    packed, _ = program("packed")
    pairs = some_pairs(21)
    feed = packed.PackedBatches(pairs, 367, 359, width=29)
    (batch,) = feed()
    found = []
    for kind in (gpu.Objective, partial(packed.PackedObjective, kind=attention)):
        torch.manual_seed(1)
        model = model_of()
        loss = kind(model)(*(make_batch(pairs) if kind is gpu.Objective else batch))
        loss.backward()
        found.append([loss.detach(), gradients(model)])
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-4)
    update = packed.PackedUpdate(gpu.TrainStep(packed.PackedObjective(model)))
    assert update.count(*batch, 0) == sum(len(target) for _, target in pairs)


def test_flexible_attention_sees_what_the_dense_mask_shows(program):
    packed, _ = program("packed")
    (source, target), = packed.PackedBatches(some_pairs(21), 367, 359, width=29)()
    losses = []
    for kind in packed.ATTENTIONS:
        torch.manual_seed(1)
        objective = packed.PackedObjective(model_of(), kind)
        with torch.no_grad():  # FlexAttention makes no gradients on a CPU
            losses.append(objective(source, target))
    assert len(losses) == 3
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0], rtol=1e-4, atol=1e-4)


def test_packed_rows_have_one_shape_and_hold_every_pair_once(program):
    packed, _ = program("packed")
    pairs = some_pairs(101)
    feed = packed.PackedBatches(pairs, 97, 89, seed=3, width=31)
    batches = list(feed())
    assert {(tuple(s.shape), tuple(t.shape)) for s, t in batches} == {((2, 2, 31), (3, 2, 31))}
    plans = [[[row.tolist() for row in batch] for batch in feed.plan(epoch)] for epoch in (0, 1)]
    for plan in plans:
        assert sorted(i for batch in plan for row in batch for i in row) == list(range(101))
    assert plans[0] != plans[1]
    for source, target in batches:
        # A row begins as many sentences on both sides, of which the last is padding; a full target has none.
        begun, wanted = (source[1] == 0).sum(-1), (target[2] == 0).sum(-1)
        assert torch.equal(begun, wanted + (target[1, :, -1] != 0))
        assert (source[0, :, -1] == 0).all()
    with pytest.raises(ValueError, match="pair 1 has 40 tokens, more than the 30 that a row holds"):
        packed.PackedBatches([([4, 2], [4, 2]), ([4] * 39 + [2], [2])], 97, 89, width=31).plan()
    assert list(packed.PackedBatches([], 97, 89, width=31)()) == []


def test_what_is_timed_behind_a_gate_is_alone(program, tmp_path):
    on_gpu, _ = program("on_gpu")
    gate, seen = on_gpu.Gate(tmp_path / "gate"), []

    def timed():
        with gate.alone():
            seen.append("timed")

    waiting = Thread(target=timed)
    with gate.together(), on_gpu.Gate(tmp_path / "gate").together():
        waiting.start()
        waiting.join(0.2)
        seen.append("prepared")
    waiting.join(10)
    assert seen == ["prepared", "timed"]
    with on_gpu.Gate().alone(), on_gpu.Gate().together():  # no others, no waiting
        pass


def test_rungs_that_share_a_gate_end_like_those_that_take_turns(program, tmp_path, monkeypatch, capsys):
    "One of them is taken for one that needs a compiler, which gets a process of its own, and compiles nothing there."
    ladder, climb = program("14_ladder")
    rungs = "float32, plain", "no padding", "packed rows"
    for out, more in (("turns", ["--here"]), ("beside", ["--gate", tmp_path / "gate"])):
        climb(*TINY_RUN, *more, "--rungs", *rungs[1:], "--more", "tiny", rungs[0], "--out", tmp_path / out)
        monkeypatch.setitem(ladder.on_gpu.ASIDE, rungs[1], {"unpadded": True, "compile": True})  # from now on
    beside, turns = (scores_in(tmp_path / out)["tiny"] for out in ("beside", "turns"))
    assert [row["rung"] for row in beside] == list(rungs) and all(row["tokens a second"] > 0 for row in beside)
    for name in ("gradients differ by", "padding"):
        assert [row[name] for row in beside] == pytest.approx([row[name] for row in turns], rel=1e-3), name
    assert beside[2]["padding"] < 1


def test_a_rung_can_be_made_anew(program, tmp_path, monkeypatch):
    ladder, climb = program("14_ladder")
    for made in (1, 2):
        monkeypatch.setattr(ladder, "one", lambda size, rung, options, made=made: {"operations a second": made, "tokens a second": made})
        climb(*TINY_RUN, "--here", "--rungs", "TF32", "--again", *["TF32"] * (made == 2), "--out", tmp_path)
        assert [row["operations a second"] for row in scores_in(tmp_path)["tiny"]] == [made]


def test_a_stopped_rung_leaves_no_row(program, tmp_path, monkeypatch):
    ladder, climb = program("14_ladder")
    made = SimpleNamespace(returncode=-2, stderr="Traceback\nKeyboardInterrupt", stdout="")
    monkeypatch.setattr(ladder, "subprocess", SimpleNamespace(run=lambda *a, **k: made, TimeoutExpired=TimeoutError))
    with pytest.raises(KeyboardInterrupt):
        climb(*TINY_RUN, "--rungs", "TF32", "--out", tmp_path)
    assert not scores_in(tmp_path).get("tiny")


def test_a_record_of_another_gpu_is_not_gone_on_with(program, tmp_path, capsys):
    _, climb = program("14_ladder")
    climb(*TINY_RUN, "--here", "--rungs", "float32, plain", "--out", tmp_path)
    run = json.loads((tmp_path / "run.json").read_text())
    run["machine"]["gpu"] = "NVIDIA H200"
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match="was begun with GPU NVIDIA H200 and torch .* choose another --out"):
        climb(*TINY_RUN, "--here", "--rungs", "float32, plain", "--out", tmp_path)


def test_a_kernel_of_another_form_is_not_called(monkeypatch):
    from torch.nn.attention import varlen

    assert gpu._varlen_kernel() is varlen.varlen_attn
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False: None)
    assert gpu._varlen_kernel() is None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert gpu._varlen_kernel() is None


def test_the_kernel_for_packed_sentences_is_given_what_it_wants():
    "On a CPU by a stand-in that attends as the kernel does, sentence by sentence."

    def kernel(Q, K, V, ends, keys, longest, most, *, window_size):
        spans = [list(zip(e.tolist(), e.tolist()[1:])) for e in (ends, keys)]
        assert longest == max(b - a for a, b in spans[0]) and most == max(b - a for a, b in spans[1]) and ends.dtype == torch.int32
        rows = [(Q[a:b], K[c:d], V[c:d]) for (a, b), (c, d) in zip(*spans, strict=True)]
        causal = {(-1, -1): False, (-1, 0): True}[window_size]
        heads = (scaled_dot_product_attention(*(x.transpose(0, 1) for x in row), causal_mask(len(row[0])) if causal else None) for row in rows)
        return torch.cat([out.transpose(0, 1) for out in heads])

    real = [torch.arange(max(n))[None] < torch.tensor(n)[:, None] for n in ([5, 2, 4], [3, 7, 1])]
    words, labels = (gpu._Layout.of(each, "cpu") for each in real)
    for mask in (gpu._PackedMask(words, words, True), gpu._PackedMask(words, words), gpu._PackedMask(labels, words)):
        Q, (K, V) = torch.randn(1, 3, len(mask.queries.index), 5), torch.randn(2, 1, 3, 11, 5)
        close(gpu._flash_unpadded(kernel, Q, K, V, mask), gpu.unpadded_attention(Q, K, V, mask))


def test_compiled_layers_take_lengths_that_are_no_multiples_of_eight():
    """By the compiler's own kernels, here for a CPU; heads of 64, an own length on each side."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = gpu.fuse(model_of(N=1, d_model=128, h=2))
    twins = model, gpu.compiled(deepcopy(model))
    for S, T in ((25, 27), (31, 14)):
        ids = torch.randint(4, 23, (3, S)), torch.randint(4, 23, (3, T + 1))
        ids[0][0, S // 2:] = 0
        found = []
        for twin in twins:
            twin.zero_grad()
            loss = gpu.Objective(twin)(*ids)
            loss.backward()
            found.append((loss.detach(), gradients(twin)))
        torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)
    torch._dynamo.reset()


@pytest.mark.gpu
def test_on_a_gpu_compiled_layers_take_lengths_that_are_no_multiples_of_eight():
    model = gpu.fuse(model_of(d_model=128, h=2)).cuda()
    ids = torch.randint(4, 23, (3, 25), device="cuda"), torch.randint(4, 23, (3, 28), device="cuda")
    ids[0][0, 12:] = 0
    found = []
    for twin in (model, gpu.compiled(deepcopy(model))):
        with torch.autocast("cuda", torch.bfloat16):
            loss = gpu.Objective(twin)(*ids)
        loss.backward()
        found.append(gradients(twin))
    assert (found[1] - found[0]).norm() < 0.05 * found[0].norm()


@pytest.mark.gpu
@pytest.mark.parametrize("d_k, d_v", [(64, 64), (16, 64), (12, 12), (512, 512)])
def test_on_a_gpu_the_kernel_for_packed_sentences_gives_what_spreading_gives(d_k, d_v):
    Q, K, V = (torch.randn(1, 2, 11, d, device="cuda").bfloat16() for d in (d_k, d_k, d_v))
    real = torch.arange(5)[None] < torch.tensor([5, 2, 4])[:, None]
    for causal in (False, True):
        layout = gpu._Layout.of(real, "cuda")
        mask = gpu._PackedMask(layout, layout, causal)
        found = gpu.unpadded_attention(Q, K, V, mask)
        wanted = gpu.unpadded_attention(Q.float(), K.float(), V.float(), mask)
        torch.testing.assert_close(found.float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
def test_on_a_gpu_a_recorded_update_drops_other_units_each_time_and_those_of_the_seed():
    source, target = (ids.cuda() for ids in next(gpu.StaticBatches(some_pairs(60), 96, 96)()))
    scale, losses = torch.tensor(0.01, device="cuda"), []
    for kind in (gpu.TrainStep, graphs.CudaGraphTrainStep):
        step = kind(gpu.Objective(gpu.fuse(model_of(P_drop=0.3)).cuda().train()))
        for seed in (5, 6, 5):
            torch.manual_seed(seed)
            losses.append(step(source, target, scale).item())
    eager, recorded = losses[:3], losses[3:]
    assert recorded[0] == recorded[2] != recorded[1]
    assert recorded == pytest.approx(eager, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("objective", [gpu.Objective, gpu.UnpaddedObjective])
def test_on_a_gpu_a_fast_update_waits_for_nothing(objective):
    model = model_of(d_model=128, h=2, P_drop=0.1).cuda()
    make = gpu.FastUpdate(gpu.TrainStep(objective(gpu.fuse(model)), gpu.precision_context("bfloat16", "cuda")))
    adam, batches = optimizer(model), list(gpu.Prefetch(Batches(some_pairs(200), 96, 96))())
    make(model, adam, batches[:1])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:4]:
            make(model, adam, [batch])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_on_a_gpu_a_model_trained_in_tf32_can_be_saved():
    before = torch.get_float32_matmul_precision()
    gpu.precision_context("tf32", "cuda")
    try:
        decoding._check_attention(gpu.fuse(model_of(d_model=128, h=2)).cuda())
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_on_a_gpu_batches_are_pinned_while_an_update_is_recorded():
    pairs, found = some_pairs(400), []
    for kind in (gpu.TrainStep, graphs.CudaGraphTrainStep):
        model = gpu.fuse(model_of()).cuda()
        make, adam = gpu.FastUpdate(kind(gpu.Objective(model))), optimizer(model)
        feed = gpu.Prefetch(gpu.StaticBatches(pairs, 96, 96), ahead=2)
        found.append([make(model, adam, [batch])[0].item() for batch in feed()])
        assert all(x.is_pinned() for x in next(feed()))
    assert len(found[0]) > 10 and found[1] == pytest.approx(found[0], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("causal, kernel", [(True, "flash"), (False, "fmha")])
def test_on_a_gpu_attention_runs_a_fused_kernel(causal, kernel):
    Q, K, V = torch.randn(3, 2, 4, 24, 64, device="cuda").bfloat16()
    mask = causal_mask(24, "cuda") if causal else torch.rand(2, 1, 1, 24, device="cuda") < 0.8
    attend = gpu.fused_causal_attention if causal else gpu.fused_attention
    attend(Q, K, V, mask)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        attend(Q, K, V, mask)
        torch.cuda.synchronize()
    names = [event.key.lower() for event in profile.key_averages()]
    assert any(kernel in name for name in names) and not any("softmax" in name for name in names), names


# ---- shapes, a GPU


def test_shape_comments_hold():
    with checked(gpu) as seen:
        model = gpu.fuse(model_of())
        batch = next(gpu.StaticBatches(some_pairs(9), 32, 32)())
        gpu.Objective(model)(*batch).backward()
        gpu.UnpaddedObjective(model_of())(*batch).backward()
        gpu.join_projections(model_of(bias=True))(*batch)
        gpu.fused_attention(*torch.randn(3, 2, 3, 5, 4), causal_mask(5))
        gpu.fused_attention(*torch.randn(3, 2, 3, 5, 4))
        assert not unseen(seen, gpu)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [gpu.TrainStep, graphs.CudaGraphTrainStep])
@pytest.mark.parametrize("compile_", [False, True])
def test_on_a_gpu_every_form_gives_the_gradients_of_the_plain_one(kind, compile_):
    batches = [tuple(x.cuda() for x in next(gpu.StaticBatches(some_pairs(60), 96, 96)()))]
    found = []
    for fast in (False, True):
        model = model_of().cuda()
        if fast:
            gpu.fuse(model)
            objective = gpu.Objective(gpu.compiled(model) if compile_ else model, rows=50)
            make = gpu.FastUpdate(kind(objective))
        for _ in range(3):
            (make if fast else update)(model, optimizer(model), batches)
        found.append(gradients(model))
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-3)


TOGETHER = gpu._Layout.of(torch.ones(3, 20, dtype=torch.bool), "cpu")
FORMS = {
    "no mask": gpu.fused_attention, "a mask": partial(gpu.fused_attention, mask=torch.ones(60, dtype=torch.bool)),
    "causal": partial(gpu.fused_causal_attention, mask=causal_mask(60)),
    "packed": partial(gpu.unpadded_attention, mask=gpu._PackedMask(TOGETHER, TOGETHER)),
    "packed, causal": partial(gpu.unpadded_attention, mask=gpu._PackedMask(TOGETHER, TOGETHER, True)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_fast_form_of_attention_drops_weights(form):
    "Values of 1 show what is left of a row's weights: all of them without dropout, and on average with it."
    torch.manual_seed(0)
    Q, K, V = torch.randn(1, 2, 60, 5), torch.randn(1, 2, 60, 5), torch.ones(1, 2, 60, 3)
    close(FORMS[form](Q, K, V), V)
    left = FORMS[form](Q, K, V, dropout=0.25)
    assert left.std() > 0.05 and abs(left.mean() - 1) < 0.1


class SeemsOnAGPU(torch.Tensor):
    is_cuda = True


def test_a_kernel_that_drops_no_weights_is_not_asked_to(monkeypatch):
    asked, (Q, K, V) = [], torch.randn(3, 1, 2, 60, 8).bfloat16().as_subclass(SeemsOnAGPU)
    monkeypatch.setattr(gpu, "_varlen_kernel", lambda: "kernel")
    monkeypatch.setattr(gpu, "_flash_unpadded", lambda kernel, *given: asked.append(kernel))
    for dropout in (0.0, 0.5):
        gpu.unpadded_attention(Q, K, V, gpu._PackedMask(TOGETHER, TOGETHER, True), dropout)
    assert asked == ["kernel"]


def test_under_autocast_a_fused_model_has_residual_sums_of_sixteen_bits():
    model, (source, _) = gpu.fuse(gpu.fuse(model_of())), make_batch(some_pairs(3))
    assert len(model.dropout._forward_hooks) == 1
    assert model.encode(source).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert model.encode(source).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", [gpu.Objective, gpu.UnpaddedObjective])
def test_an_objective_has_the_padding_and_the_smoothing_of_its_model(kind):
    model, (source, target) = model_of(pad=3, unk=0, eps_ls=0.3), make_batch(some_pairs(7), 1, 3)
    wanted = label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:], 0.3, 3, "sum")
    objective = kind(model, rows=5)
    torch.testing.assert_close(objective(source, target), wanted, rtol=1e-4, atol=1e-3)
    _, tokens = gpu.FastUpdate(gpu.TrainStep(objective))(model, optimizer(model), [(source, target)])
    assert tokens == (target[:, 1:] != 3).sum()


def test_under_autocast_the_loss_in_pieces_has_logits_of_sixteen_bits():
    seen = []

    def watch(x, W, *rest):
        seen.append((x.dtype, W.dtype))
        return gpu._loss_piece(x, W, *rest)

    given = torch.randn(5, 8), torch.randn(11, 8), torch.randint(1, 11, (5,)), gpu._Pieces(compute=watch)
    gpu.chunked_loss(*given)
    with torch.autocast("cpu", torch.bfloat16):
        gpu.chunked_loss(*given)
    assert seen == [(torch.float32,) * 2, (torch.bfloat16,) * 2]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_share_batches_of_few_shapes(workers):
    "As many each, or one would wait for the others for ever; together those of an epoch."
    shares = [list(gpu.StaticBatches(some_pairs(203), 64, 64, seed=3, worker=w, workers=workers)(1)) for w in range(workers)]
    assert len({len(share) for share in shares}) == 1
    targets = [tuple(i for i in row if i > 1) for share in shares for _, b in share for row in b.tolist()]
    assert sorted(filter(None, targets)) == sorted(tuple(t) for _, t in some_pairs(203))


def test_compiling_sets_what_torch_would_do_otherwise():
    with torch._dynamo.config.patch(recompile_limit=8, optimize_ddp=True):
        gpu.compiled(model_of(), backend="eager")
        assert torch._dynamo.config.recompile_limit >= 64 and not torch._dynamo.config.optimize_ddp


@pytest.mark.parametrize("attend, mask", [(gpu.fused_attention, None), (gpu.fused_attention, causal_mask(5)), (gpu.fused_causal_attention, causal_mask(5))])
def test_keys_and_values_come_in_pairs(attend, mask):
    Q, K, V = torch.randn(3, 2, 3, 5, 4)
    with pytest.raises(ValueError, match="K and V must come in pairs"):
        attend(Q, K, V[..., :4, :], mask)
    with pytest.raises(ValueError, match="one width"):
        attend(Q[..., :3], K, V, mask)


@pytest.mark.parametrize("width", [248, 256, 264, 512, 12, 8])
def test_the_kernel_for_packed_sentences_gets_the_widths_that_it_has(width, monkeypatch):
    asked, (Q, K, V) = [], torch.randn(3, 1, 2, 60, width).bfloat16().as_subclass(SeemsOnAGPU)
    monkeypatch.setattr(gpu, "_varlen_kernel", lambda: "kernel")
    monkeypatch.setattr(gpu, "_flash_unpadded", lambda kernel, *given: asked.append(kernel))
    gpu.unpadded_attention(Q, K, V, gpu._PackedMask(TOGETHER, TOGETHER, True))
    assert bool(asked) == (width <= 256 and width % 8 == 0)


@pytest.mark.parametrize("begun", [False, True])
def test_batches_are_pinned_only_once_a_gpu_is_in_use(begun, monkeypatch):
    "A training on the CPU of a machine with a GPU asks nothing of it."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    assert len(list(gpu.Prefetch(Batches(some_pairs(60), 96, 96))())) > 1 and bool(pinned) == begun


@pytest.mark.parametrize("device, seconds, size", [("cuda", 0.5, 8192), ("cuda", 3, 8192), ("cpu", 0.5, 512), ("cpu", 3, 4096)])
def test_a_matrix_rate_is_that_of_products_and_not_of_launches(device, seconds, size, monkeypatch):
    on_gpu = loaded(BENCHMARKS / "on_gpu.py")
    monkeypatch.setattr(on_gpu, "ceilings", lambda device, n, seconds: {"bfloat16": n, "copy": 10**9})
    assert on_gpu.machine_ceilings(device, seconds)[1] == size
