"""On the device `meta`, which has shapes and no values: nothing waits for a number, and nothing is left on the CPU.

A GPU computes while Python goes on, until Python asks for a value: `.item()`, `if tensor`, `nonzero`. `meta` refuses
these. It takes some inputs from the CPU that a GPU would refuse, or would wait for; `OneDevice` refuses them here.
"""

from functools import partial

import pytest
import torch
from test_gpu import SMALL, model_of, some_pairs
from test_graphs import CHOICES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated import decoding, gpu, training
from annotated.after import LanguageModel, causal_loss
from annotated.data import Batches, make_batch
from annotated.evaluation import cross_entropy
from annotated.optimization import label_smoothed_loss

COPIES = ("aten::_to_copy", "aten::copy_", "aten::to")


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, but for copies that nobody waits for, and for single numbers."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        devices = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim()}
        target = torch.device(kwargs.get("device") or next(iter(devices), "meta")).type
        free = name in COPIES and (kwargs.get("non_blocking") or any(given is True for given in args))
        if len(devices | {target}) > 1 and not free:
            raise RuntimeError(f"{name} has tensors of {sorted(devices | {target})}")
        return func(*args, **kwargs)


def on_meta(**choice):
    return model_of(P_drop=0.1, **choice).to("meta")


def on_the_cpu():
    return make_batch(some_pairs(7))


def test_what_a_gpu_would_wait_for_is_refused():
    x, ids = torch.ones(3, 5, device="meta"), torch.tensor([0, 2])
    with OneDevice():
        assert x.to("meta").add(torch.tensor(2.0)).shape == (3, 5)
        assert ids.to("meta", non_blocking=True).is_meta
        for wait in (lambda: x.sum().item(), lambda: bool(x.any()), lambda: x.nonzero(), lambda: x.tolist(), lambda: torch.equal(x, x),
                     lambda: x[ids], lambda: x @ torch.ones(5, 2), lambda: ids.to("meta"), lambda: x.cpu(), lambda: x[x > 0]):
            with pytest.raises((RuntimeError, NotImplementedError)):
                wait()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_a_model_learns_without_waiting(choice, fused):
    model = on_meta(**choice)
    model = gpu.fuse(model) if fused else model
    source, target = (ids.to("meta") for ids in on_the_cpu())
    with OneDevice():
        loss = label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:])
        loss.backward()
        with torch.inference_mode():
            logits = model.eval()(source, target)
    assert loss.is_meta and logits.shape == (*target.shape, 23) and all(p.grad.is_meta for p in model.parameters())


def updates():
    yield "chapter 10", lambda model: training.update
    for kind in (gpu.Objective, gpu.UnpaddedObjective):
        yield kind.__name__, partial(fast, kind)
        yield f"{kind.__name__}, joint", lambda model, kind=kind: fast(kind, gpu.join_projections(model))


def fast(kind, model):
    return gpu.FastUpdate(gpu.TrainStep(kind(gpu.fuse(model), rows=30)))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in updates()])
def test_an_update_waits_for_nothing(make):
    model = on_meta()
    adam = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)  # the fused one knows no meta
    run = training.Run(model, adam, update=make(model))
    coming = training._stream(Batches(some_pairs(40), 60, 60))
    for _ in range(2):
        with OneDevice():
            line = run.advance(coming, training.Recipe(accumulate=2))
    assert line["loss"].is_meta and line["tokens"] > 10 and run.step == 2


def test_an_evaluation_reads_its_losses_when_all_are_on_their_way(monkeypatch):
    model, order = on_meta().eval(), []
    model.register_forward_hook(lambda *given: order.append("forward"))
    monkeypatch.setattr(torch.Tensor, "item", lambda x: order.append("item") or 3.0)
    batches = [make_batch(some_pairs(3, seed)) for seed in range(4)]
    with OneDevice():
        loss = cross_entropy(model, batches)
    assert order == ["forward"] * 4 + ["item"] * 4
    assert loss == 12 / sum((target[:, 1:] != 0).sum() for _, target in batches)


def searched(choice, fused):
    model = on_meta(**choice).eval()
    return (gpu.fuse(model) if fused else model), on_the_cpu()[0].to("meta")


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_steps_of_greedy_search_wait_for_nothing(choice, fused):
    model, source = searched(choice, fused)
    with OneDevice(), torch.inference_mode():
        state = model.start(source)
        ids = torch.full_like(source[:, 0], 1)
        for rows in (6, 5):  # where none ends, `select` looks at the order: once a step, when the search has just waited
            logits, state = model.step(ids, state)
            ids = logits.argmax(-1)[:rows]
            state = decoding._select(state, torch.arange(rows, device="meta"))
    assert logits.shape == (6, 23) and ids.shape == (5,)


@pytest.mark.parametrize("stop", [decoding.when_full, decoding.cannot_improve])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_step_of_beam_search_waits_for_nothing(choice, stop, monkeypatch):
    monkeypatch.setattr(decoding, "_check_logits", lambda logits: None)  # the search waits here anyway, for who is done
    model, source = searched(choice, True)
    with OneDevice(), torch.inference_mode():
        limits = decoding._output_limits(model, source)
        everyone = torch.arange(len(source), device="meta")
        beams = decoding._Beams(everyone, 3, limits, decoding.length_penalty(limits), decoding.length_penalty)
        state = decoding._widen(model.start(source), everyone, 3)
        ids = torch.full_like(beams.log_p, 1, dtype=torch.long)
        parent, state = decoding._beam_step(model, beams, ids, state)
        over = beams.over(stop)
        going = torch.arange(4, device="meta")
        beams.keep(going)
        state = decoding._select(state, (going[:, None] * 3 + parent[going]).flatten())
        logits, _ = model.step(beams.tokens[..., -1].flatten(), state)
    assert over.shape == (7,) and logits.shape == (12, 23)


def test_a_language_model_learns_and_writes_without_waiting():
    model = LanguageModel(SMALL).to("meta")
    ids = on_the_cpu()[1].to("meta")
    with OneDevice():
        causal_loss(model, ids).backward()
        with torch.inference_mode():
            logits, caches = model.eval().step(ids[:, :3], model.start(7))
            logits, _ = model.step(logits[:, -1:].argmax(-1), caches)
    assert logits.shape == (7, 1, 23)
