"""Training: each fault that widely read implementations have, made impossible; and nothing lost on a crash."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from annotated.data import make_batch
from annotated.optimization import label_smoothed_loss, learning_rate, optimizer
from annotated.training import Recipe, average, list_checkpoints, stream, train, update
from annotated.transformer import TINY, Transformer

SMALL = replace(TINY, vocab=11, d_model=8, h=2, d_ff=12, N=1)


def tiny_model(**changes):
    torch.manual_seed(0)
    return Transformer(replace(SMALL, **changes))


def some_batches(epoch=0, position=0, count=5):
    "Batches of unequal size, so that dividing by the wrong number shows."
    generator = torch.Generator().manual_seed(epoch)
    for number in range(count):
        lengths = [(2 + (number * 3 + row) % 4) for row in range(1 + number % 3)]
        pairs = [(torch.randint(3, 11, (n,), generator=generator).tolist() + [2],) * 2 for n in lengths]
        if number >= position:
            yield make_batch(pairs)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_accumulated_gradients_count_every_token_the_same():
    batches = list(some_batches())
    sources, targets = zip(*batches, strict=True)
    S, T = max(s.shape[1] for s in sources), max(t.shape[1] for t in targets)
    pad = torch.nn.functional.pad
    whole = (
        torch.cat([pad(s, (0, S - s.shape[1])) for s in sources]),
        torch.cat([pad(t, (0, T - t.shape[1])) for t in targets]),
    )
    losses, gradients = [], []
    for made in (batches, [whole]):
        model = tiny_model(P_drop=0.0).double()
        loss, tokens = update(model, optimizer(model), made)
        losses.append(loss)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        assert tokens == sum((t[:, 1:] != 0).sum().item() for t in targets)
    assert abs(losses[0] - losses[1]) < 1e-6  # the loss itself is computed in float32
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)


def test_padding_changes_neither_loss_nor_gradient():
    (source, target), *_ = list(some_batches())[2:]
    wide = torch.nn.functional.pad(source, (0, 3)), torch.nn.functional.pad(target, (0, 5))
    losses = []
    for made in ((source, target), wide):
        model = tiny_model(P_drop=0.0).double()
        losses.append(update(model, optimizer(model), [made]))
    assert losses[0][1] == losses[1][1]
    assert abs(losses[0][0] - losses[1][0]) < 1e-6


def test_the_rate_moves_once_an_update_whatever_is_accumulated():
    for accumulate in (1, 3):
        log = train(tiny_model(), Recipe(steps=7, warmup=3, accumulate=accumulate), some_batches)
        assert [line["rate"] for line in log] == [learning_rate(step, 8, 3) for step in range(1, 8)]


def test_loss_is_torchs_and_ignores_padding():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    target = torch.randint(1, 7, (3, 5), generator=generator)
    target[:, 3:] = 0
    by_hand = 0.0
    log_p = logits.log_softmax(-1)
    for row, column in (target != 0).nonzero().tolist():
        smooth = torch.full((7,), 0.1 / 7, dtype=torch.float64)
        smooth[target[row, column]] += 0.9
        by_hand -= (smooth * log_p[row, column]).sum().item()
    assert label_smoothed_loss(logits, target, 0.1, reduction="sum").item() == pytest.approx(by_hand, rel=1e-5)
    assert label_smoothed_loss(logits, target, 0.1).item() == pytest.approx(by_hand / 9, rel=1e-5)


def test_the_rate_peaks_at_the_end_of_the_warmup():
    rates = [learning_rate(step, 512, 4000) for step in range(1, 20_001)]
    assert rates.index(max(rates)) + 1 == 4000
    assert rates[15_999] == pytest.approx(rates[3_999] / 2)
    assert rates[1_999] == pytest.approx(rates[3_999] / 2)
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0)


def test_the_stream_goes_on_in_the_middle_of_an_epoch():
    taken = [place for _, place in zip(range(12), ((t.sum().item(), p) for _, t, p in stream(some_batches)), strict=False)]
    assert taken[4][1] == (0, 5) and taken[5][1] == (1, 1)
    epoch, position = taken[6][1]
    again = [place for _, place in zip(range(5), ((t.sum().item(), p) for _, t, p in stream(some_batches, epoch, position)), strict=False)]
    assert again == taken[7:]
    with pytest.raises(ValueError, match="no batch"):
        next(stream(lambda epoch, position: iter([])))


SCRIPT = """
import sys, time
sys.path[:0] = ["tests", "."]
import torch
torch.set_num_threads(1)
from test_training import some_batches, tiny_model
from annotated.training import Recipe, train
def slow(epoch, position):
    for batch in some_batches(epoch, position):
        time.sleep(0.01)
        yield batch
train(tiny_model(P_drop=0.3), Recipe(steps=60, warmup=5, save_every=7, keep=3), slow, sys.argv[1])
"""


def start(folder):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def wait_for_lines(folder, count):
    path = folder / "log.jsonl"
    until = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < until, "training does not start"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    process = start(folder)
    assert process.wait(timeout=120) == 0
    return folder


@pytest.mark.parametrize("moment", [9, 30])
def test_killed_and_resumed_ends_with_the_same_weights(moment, undisturbed, tmp_path):
    process = start(tmp_path)
    wait_for_lines(tmp_path, moment)
    process.kill()
    process.wait()
    assert (done := list_checkpoints(tmp_path)) and int(done[-1].name) < 60
    assert start(tmp_path).wait(timeout=120) == 0
    assert (tmp_path / "log.jsonl").read_text() == (undisturbed / "log.jsonl").read_text()
    for mine, other in zip(list_checkpoints(tmp_path), list_checkpoints(undisturbed), strict=True):
        assert mine.name == other.name
        assert (mine / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_saves_first(number, tmp_path):
    process = start(tmp_path)
    wait_for_lines(tmp_path, 10)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["step"]
    assert int(list_checkpoints(tmp_path)[-1].name) == last < 60
    assert f"stopped after update {last}".encode() in said


def test_only_the_newest_checkpoints_stay(undisturbed):
    found = list_checkpoints(undisturbed)
    assert [int(path.name) for path in found] == [49, 56, 60]
    assert [(path / "adam.safetensors").exists() for path in found] == [False, False, True]
    assert not list(undisturbed.glob("**/*.part"))


def test_the_average_is_the_mean(undisturbed):
    model = tiny_model()
    assert average(model, undisturbed, 2) == 2
    files = [load_file(path / "model.safetensors") for path in list_checkpoints(undisturbed)[-2:]]
    for name, parameter in model.named_parameters():
        if name in files[0]:
            torch.testing.assert_close(parameter.data, (files[0][name] + files[1][name]) / 2, rtol=0, atol=1e-7)
    assert model.source_embedding.weight is model.target_embedding.weight
    with pytest.raises(ValueError, match="train first"):
        average(model, undisturbed / "nothing")


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(tmp_path):
    model = tiny_model()
    recipe = Recipe(steps=9, warmup=3, save_every=2)

    def poisoned(epoch, position):
        for number, batch in enumerate(some_batches(epoch, position), position):
            if number == 4:
                model.target_embedding.weight.data[5] = float("nan")
            yield batch

    with pytest.raises(FloatingPointError, match=r"update 5, epoch 0, batch 5; last good checkpoint: .*0000004"):
        train(model, recipe, poisoned, tmp_path)


def test_another_model_cannot_resume(undisturbed):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="does not fit this model or is damaged"):
        train(Transformer(replace(SMALL, d_ff=13)), Recipe(steps=99), some_batches, undisturbed)


def test_evaluation_runs_when_asked_and_at_the_end():
    log = train(tiny_model(), Recipe(steps=7, warmup=3, evaluate_every=3), some_batches, evaluate=lambda m: {"mode": m.training})
    seen = [line for line in log if "mode" in line]
    assert [line["step"] for line in seen] == [3, 6, 7] and not any(line["mode"] for line in seen)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"accumulate": 0}, {"save_every": 0}])
def test_recipes_that_make_no_training_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Recipe(**wrong)
