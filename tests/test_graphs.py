"""Recorded updates and steps beside those that are not: the same gradients, the same translations."""

from contextlib import nullcontext
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo
from shapes import checked, unseen
from test_gpu import SeemsOnAGPU, close, counted_programs, model_of, some_pairs

from annotated import gpu, graphs
from annotated.data import Words
from annotated.decoding import Translator, beam_search, greedy, hypotheses


def searched(**changes):
    return model_of(**changes).eval()


def sources(*lengths, seed=0):
    draw = torch.Generator().manual_seed(seed)
    source = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, n in zip(source, lengths, strict=True):
        row[: n - 1], row[n - 1] = torch.randint(4, 23, (n - 1,), generator=draw), 2
    return source


CHOICES = [
    {}, {"d_k": 5, "d_v": 3}, {"norm": "pre", "final_norm": True}, {"positions": "learned"}, {"positions": "halves"},
    {"output_bias": True, "bias": True}, {"source_vocab": 29, "P_drop_attention": 0.3},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_a_search_in_rooms_writes_the_same(choice, fused):
    model = searched(**choice)
    steps = graphs.CudaGraphDecoder(gpu.fuse(deepcopy(model)) if fused else model, least=2)
    source = sources(3, 7, 1, 5, 7)  # so that sentences reach their limits one after the other
    wanted = greedy(model, source)
    assert greedy(steps, source) == wanted and len({len(ids) for ids in wanted}) > 2
    for k in (1, 3):
        found, wanted = (hypotheses(m, source, k) for m in (steps, model))
        assert [[ids for ids, _ in row] for row in found] == [[ids for ids, _ in row] for row in wanted]
        close(torch.tensor([row[0][1] for row in found]), torch.tensor([row[0][1] for row in wanted]))
    assert {B for B, k, L, S in steps.known if k == 3} == {8, 4, 2} and {L for B, k, L, S in steps.known} == {2, 4, 8, 16, 32, 64}


def test_rooms_are_used_again_and_what_was_left_there_is_not_seen():
    model, draw = searched(), torch.Generator().manual_seed(3)
    steps, long, short = graphs.CudaGraphDecoder(model, least=8), sources(8, 7, 2, 5), sources(3, 4, 1, seed=1)
    for broken in (False, True):
        greedy(steps, long)
        before = dict(steps.known)
        if broken:  # as a search that diverged leaves them
            for room in before.values():
                with torch.inference_mode():
                    for place in (*room.past, *room.memory):
                        place.fill_(float("nan"))
        state, plain = steps.start(short).repeat(2), model.start(short).repeat(2)
        for _ in range(10):
            ids = torch.randint(4, 23, (6,), generator=draw)
            logits, state = steps.step(ids, state)
            expected, plain = model.step(ids, plain)
            close(logits, expected)
        assert greedy(steps, long) == greedy(model, long)
        assert all(steps.known[size] is room for size, room in before.items())


def test_recorded_steps_leave_the_model_as_it_is():
    model = model_of().eval()
    greedy(graphs.CudaGraphDecoder(model), sources(3, 5), max_len=3)
    assert not model.training
    assert [graphs.CudaGraphDecoder(model.train(mode)).training for mode in (True, False)] == [True, False]


def test_rooms_are_powers_of_two():
    steps = graphs.CudaGraphDecoder(model_of(), least=4)
    room = steps.buffers_for(5, 3, 9, 3)
    assert room.past[0].shape == (2, 24, 3, 16, 4) and room.memory[1].shape == (2, 8, 3, 4, 4) and room.state.mask.shape == (8, 1, 1, 4)
    assert steps.buffers_for(7, 3, 10, 1) is room and steps.buffers_for(1, 1, 1, 1).ids.shape == (1,)


def test_hypotheses_move_in_any_order():
    model, source = searched(), sources(3, 7, 2, 5, 7)
    steps, draw = graphs.CudaGraphDecoder(model, least=2), torch.Generator().manual_seed(3)
    order = torch.tensor([2, 0, 1, 4, 3])
    state, plain = (maker.start(source).select(order).repeat(3) for maker in (steps, model))
    ids = torch.ones(15, dtype=torch.long)
    for kept in ([4, 0, 3, 1, 2], [2, 0, 1], [1, 1], [0]):
        logits, state = steps.step(ids, state)
        expected, plain = model.step(ids, plain)
        close(logits, expected)
        rows = torch.tensor([3 * b + i for b in kept for i in torch.randint(3, (3,), generator=draw).tolist()])
        state, plain = state.select(rows), plain.select(rows)
        ids = torch.randint(4, 23, (len(rows),), generator=draw)


def test_a_decoder_refuses_a_state_that_is_not_its_own_and_a_source_as_the_model_does():
    model, ids = model_of().eval(), torch.ones(3, dtype=torch.long)
    steps, other = (graphs.CudaGraphDecoder(model, least=2) for _ in range(2))
    for state in (other.start(sources(3, 5, 2)), model.start(sources(3, 5, 2)), None):
        with pytest.raises(TypeError, match="this decoder's start or step"):
            steps.step(ids, state)
    with pytest.raises(ValueError, match=r"source must be \(sentences, positions\), not of shape \(3,\)"):
        steps.start(ids)


def test_recording_leaves_frozen_weights_without_a_gradient(monkeypatch):
    objective = gpu.Objective(model_of())
    frozen = objective.model.encoder.layers[0].feed_forward.W_1.weight.requires_grad_(False)
    step = graphs.CudaGraphTrainStep(objective)

    class Graph:
        def pool(self):
            return 0

    def run_once(function, pool):
        return Graph(), function()

    monkeypatch.setattr(graphs, "_record_cuda_graph", run_once)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: None)
    step._record([sources(3, 5), sources(4, 2), torch.tensor(1.0)])
    assert frozen.grad is None
    others = [w.grad for w in objective.parameters() if w.requires_grad]
    assert all(grad is not None and not grad.any() for grad in others), "the recording's gradients are taken back"


def test_a_state_of_a_room_is_used_once_and_keeps_sentences_together():
    steps, ids = graphs.CudaGraphDecoder(model_of().eval(), least=2), torch.ones(3, dtype=torch.long)
    state = steps.start(sources(3, 5, 2))
    logits, newer = steps.step(ids, state)
    for again in (lambda: steps.step(ids, state), lambda: state.repeat(2), lambda: state.select(ids)):
        with pytest.raises(ValueError, match="used before"):
            again()
    kept = logits.clone()
    for wrong, error, said in ((ids[:2], ValueError, "one for each row of the state, 3, not 2"), (ids + 0.7, TypeError, "whole numbers")):
        with pytest.raises(error, match=said):
            steps.step(wrong, newer)
    wide = newer.repeat(2)
    with pytest.raises(ValueError, match="used before"):
        steps.step(ids, newer)  # it has moved
    with pytest.raises(ValueError, match="the 2 hypotheses of a sentence together, got .0, 2, 1, 3."):
        wide.select(torch.tensor([0, 2, 1, 3]))
    steps.step(ids.repeat_interleave(2), wide)
    assert torch.equal(logits, kept)  # a copy, not where the next result arrives
    steps.start(sources(3, 5, 2))
    with pytest.raises(ValueError, match="used before"):
        steps.step(ids, newer)


def test_a_translator_takes_recorded_steps():
    words = Words([f"w{n}" for n in range(19)])
    model, lines = searched(vocab=len(words)), ["w3 w4", "w7", "", "w1 w2 w3 w4 w5 w6"]
    wanted = Translator(model, words).translate(lines)
    assert any(wanted) and Translator(graphs.CudaGraphDecoder(model, least=2), words).translate(lines) == wanted


def test_a_compiled_step_serves_all_layers():
    programs, count = counted_programs()
    model, source = searched(N=3), sources(3, 7, 2)
    steps = graphs.CudaGraphDecoder(graphs.compile_steps(deepcopy(model), backend=count))
    assert beam_search(steps, source, 2) == beam_search(model, source, 2)
    assert len(programs) <= len(steps.known) < 3 * model.config.N
    torch._dynamo.reset()


def test_a_copy_of_a_compiled_model_steps_with_its_own_weights():
    model, source = searched(), sources(3, 7, 2)
    other = deepcopy(graphs.compile_steps(deepcopy(model), backend="eager"))
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.5)
    plain = deepcopy(model)
    plain.load_state_dict(other.state_dict())
    ids = source[:, 0]
    expected, _ = plain.step(ids, plain.start(source))
    torch.testing.assert_close(other.step(ids, other.start(source))[0], expected)
    assert not torch.allclose(model.step(ids, model.start(source))[0], expected, atol=1e-2)
    torch._dynamo.reset()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compile_", [False, True])
def test_on_a_gpu_recorded_steps_are_the_steps(dtype, compile_):
    model = gpu.fuse(model_of(N=3)).eval().to("cuda", dtype)
    recorded = graphs.compile_steps(deepcopy(model)) if compile_ else model
    steps, draw = graphs.CudaGraphDecoder(recorded, least=4), torch.Generator().manual_seed(3)
    near = {"atol": 0.1 if dtype is torch.bfloat16 else 1e-3, "rtol": 1e-2}
    for lengths in ((3, 7, 2, 5, 7), (4, 1, 3), (3, 7, 2, 5, 7)):  # the third time every recording is there
        source, kept, made = sources(*lengths).cuda(), list(range(len(lengths))), []
        state, plain = steps.start(source).repeat(2), model.start(source).repeat(2)
        for t in range(11):  # rooms grow, and in the middle sentences leave in another order
            ids = torch.randint(4, 23, (2 * len(kept),), generator=draw).cuda()
            with torch.inference_mode():
                logits, state = steps.step(ids, state)
                expected, plain = model.step(ids, plain)
            made.append((logits, expected))
            kept = kept[::-1][: 2 if t == 5 else None]
            order = torch.arange(len(plain.mask)).flip(0)[: len(kept)]
            rows = (2 * order[:, None] + torch.tensor([1, 0])).flatten().cuda()
            state, plain = state.select(rows), plain.select(rows)
        for logits, expected in made:  # now, when later steps have arrived in the same place
            torch.testing.assert_close(logits.float(), expected.float(), **near)
    assert any(room.graph for room in steps.known.values())
    if dtype is torch.float32 and not compile_:
        source = sources(3, 7, 2, 5, 7).cuda()
        assert greedy(steps, source, max_len=20) == greedy(model, source, max_len=20)


def test_shape_comments_hold():
    with checked(graphs) as seen:
        beam_search(graphs.CudaGraphDecoder(searched(), least=2), sources(3, 7, 2), 2, max_len=5)
    assert not unseen(seen, graphs)


def test_a_replay_after_gradients_were_set_to_none_is_refused(monkeypatch):
    "It would add to memory that is no longer theirs, and the weights would never move."
    monkeypatch.setattr(graphs, "_record_cuda_graph", lambda work, pool=None: (SimpleNamespace(replay=work, pool=object), work()))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda _: None)
    objective = gpu.Objective(model_of())
    step, scale = graphs.CudaGraphTrainStep(objective), torch.tensor(0.1).as_subclass(SeemsOnAGPU)
    (source, target), *_ = gpu.StaticBatches(some_pairs(60), 96, 96)()
    for _ in range(2):
        step(source, target, scale)
        objective.zero_grad(set_to_none=False)
    step(source, target, scale)
    objective.zero_grad()
    with pytest.raises(RuntimeError, match="set gradients to 0, never to None"):
        step(source, target, scale)
