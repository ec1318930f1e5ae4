"""Training: each fault that widely read implementations have, made impossible; and nothing lost on a crash."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import warm
from safetensors.torch import load_file

from annotated import training
from annotated.data import Batches, make_batch, token_batches
from annotated.gpu import Prefetch
from annotated.optimization import learning_rate, optimizer
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import (
    Recipe,
    Run,
    _Log,
    _prune,
    _stream,
    _warn_of_folder,
    average,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    train,
    update,
)
from annotated.transformer import TINY, Config, Transformer

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
        losses.append(loss.item())
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


def test_training_goes_on_after_the_last_batch_of_an_update(tmp_path):
    recipe, last = Recipe(steps=4, warmup=3, accumulate=3, save_every=2, keep=1), tiny_model()
    whole = train(last, recipe, some_batches)
    train(tiny_model(), replace(recipe, steps=2), some_batches, tmp_path)
    resumed = tiny_model()
    again = train(resumed, recipe, some_batches, tmp_path)
    assert [line["loss"] for line in again] == [line["loss"] for line in whole]
    torch.testing.assert_close(weights(resumed), weights(last), rtol=0, atol=0)


def test_the_stream_goes_on_in_the_middle_of_an_epoch():
    taken = [place for _, place in zip(range(12), ((t.sum().item(), p) for _, t, p in _stream(some_batches)), strict=False)]
    assert taken[4][1] == (0, 5) and taken[5][1] == (1, 1)
    epoch, position = taken[6][1]
    again = [place for _, place in zip(range(5), ((t.sum().item(), p) for _, t, p in _stream(some_batches, epoch, position)), strict=False)]
    assert again == taken[7:]
    with pytest.raises(ValueError, match="no batch"):
        next(_stream(lambda epoch, position: iter([])))


SCRIPT = """
import sys, time
sys.path[:0] = ["tests", "tools", "."]
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
    return warm.begin([sys.executable, "-c", SCRIPT, str(folder)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def wait_for_lines(folder, count):
    path = folder / "log.jsonl"
    until = time.monotonic() + 300  # a busy machine takes a minute to load torch
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < until, "training does not start"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    process = start(folder)
    assert process.wait(timeout=300) == 0
    return folder


@pytest.mark.parametrize("moment", [9, 30])
def test_killed_and_resumed_ends_with_the_same_weights(moment, undisturbed, tmp_path):
    process = start(tmp_path)
    wait_for_lines(tmp_path, moment)
    process.kill()
    process.wait()
    assert (done := list_checkpoints(tmp_path)) and int(done[-1].name) < 60
    assert start(tmp_path).wait(timeout=300) == 0
    assert (tmp_path / "log.jsonl").read_text() == (undisturbed / "log.jsonl").read_text()
    for mine, other in zip(list_checkpoints(tmp_path), list_checkpoints(undisturbed), strict=True):
        assert mine.name == other.name
        assert (mine / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_saves_first(number, tmp_path):
    process = start(tmp_path)
    wait_for_lines(tmp_path, 10)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode != 0
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["step"]
    assert int(list_checkpoints(tmp_path)[-1].name) == last < 60
    assert f"stopped after update {last}".encode() in said


def test_only_the_newest_checkpoints_stay(undisturbed):
    found = list_checkpoints(undisturbed)
    assert [int(path.name) for path in found] == [42, 49, 56, 60]  # the last is not one of the three planned
    assert [(path / "adam.safetensors").exists() for path in found] == [False, False, True, True]
    assert not list(undisturbed.glob("**/*.part"))


def test_a_stop_leaves_no_trace_among_the_checkpoints(tmp_path):
    for step in (20, 40, 53, 60, 80, 97):
        (tmp_path / "checkpoints" / f"{step:07d}").mkdir(parents=True)
    _prune(tmp_path, keep=3, every=20)
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [40, 60, 80, 97]  # the newest stays, to go on from
    (tmp_path / "checkpoints" / "0000100").mkdir()
    _prune(tmp_path, keep=3, every=20)
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [60, 80, 100]
    (tmp_path / "checkpoints" / "0000100" / "progress.json").write_text('{"every": 0}')  # damaged
    _prune(tmp_path, keep=3, every=20)
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [60, 80, 100]
    _prune(tmp_path / "nothing", keep=3, every=20)


def test_a_copy_beside_the_checkpoints_is_left_alone(tmp_path):
    train(tiny_model(), Recipe(steps=2, warmup=3), some_batches, tmp_path)
    (tmp_path / "checkpoints" / "0000002 (copy)").mkdir()
    assert len(train(tiny_model(), Recipe(steps=4, warmup=3), some_batches, tmp_path)) == 4
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000004"]
    assert (tmp_path / "checkpoints" / "0000002 (copy)").is_dir()


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


@pytest.mark.parametrize("batches", [[], [(torch.ones(1, 2, dtype=torch.long), torch.tensor([[1, 0, 0]]))]])
def test_an_update_without_a_label_is_refused(batches):
    model = tiny_model()
    with pytest.raises(ValueError, match="batches hold no target token to predict"):
        training.update(model, optimizer(model), batches)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"accumulate": 0}, {"save_every": 0}, {"evaluate_every": 0}, {"keep": 0}, {"source_tokens": 0}, {"target_tokens": 0}, {"warmup": 2.5}, {"seed": -1}, {"seed": 2**43}, {"rate": 0.0}, {"rate": float("inf")}, {"rate": float("nan")}, {"eps": -1e-9}, {"eps": float("inf")}, {"steps": True}, {"rate": "x"}, {"beta2": None}, {"beta1": float("nan")}, {"beta2": 1.0}])
def test_recipes_that_make_no_training_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must"):
        Recipe(**wrong)


def test_no_two_seeds_drop_the_same_in_any_of_their_updates():
    model = tiny_model()
    seeds = {Run(model, optimizer(model), step=step).seed(Recipe(seed=seed)) for seed in range(5) for step in range(7)}
    assert len(seeds) == 35


def test_the_greatest_seed_trains():
    assert len(train(tiny_model(), Recipe(steps=2, warmup=3, seed=2**43 - 1), some_batches)) == 2


# ---- what a crash, a full disk or a signal leaves


# At the nth change of the folder (a file opened to write, a name made, moved or removed) kill the process, or let
# the disk be full; then train on. Prints how many changes were tried, and the messages of the full disk.
AT_EVERY_CHANGE = """
import json, os, signal, sys
sys.path[:0] = ["tests", "tools", "."]
import torch
torch.set_num_threads(1)
from pathlib import Path
from test_training import contents, some_batches, tiny_model
from annotated.optimization import optimizer
from annotated.training import Recipe, list_checkpoints, train

optimizer(tiny_model())  # the first one loads much of torch: not in every fork
base, what = Path(sys.argv[1]), sys.argv[2]
RECIPE = Recipe(steps=2, warmup=3, accumulate=2, save_every=1, evaluate_every=2, keep=1)

def happen(at):
    count = 0
    def hook(event, arguments):
        nonlocal count
        if event == "open":
            changes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        else:
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        count += bool(changes)
        if changes and count == at:
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(28, "No space left on device")
    sys.addaudithook(hook)
    return lambda: count

def attempt(folder, at=0):
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status, messages = 0, os.open(base / "messages", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    model, count = tiny_model(P_drop=0.3), happen(at)
    try:
        train(model, RECIPE, some_batches, folder, lambda model: {"held_out": 1.5})
        status = 4 if 0 < at <= count() else 0
    except OSError as error:
        found = list_checkpoints(folder)
        os.write(messages, (json.dumps([str(error), str(folder), found[-1].name if found else None]) + chr(10)).encode())
        status = 3
    except BaseException as error:
        os.write(messages, (json.dumps([repr(error), "", ""]) + chr(10)).encode())
        status = 5
    os._exit(status)

assert attempt(base / "undisturbed") == 0
expected, at = contents(base / "undisturbed"), 0
while True:
    at += 1
    folder = base / str(at)
    status = attempt(folder, at)
    if status == 0:
        break
    assert status in ((-9,) if what == "kill" else (3, 4)), (at, status, (base / "messages").read_text())
    for checkpoint in list_checkpoints(folder):  # whatever is seen is whole
        assert {p.name for p in checkpoint.iterdir()} >= {"model.safetensors", "progress.json"}, (at, checkpoint)
    assert attempt(folder) == 0, (at, (base / "messages").read_text())
    assert contents(folder) == expected, at
print(json.dumps([at - 1, (base / "messages").read_text().splitlines()]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that forks processes")
@pytest.mark.parametrize("what", ["kill", "full"])
def test_no_change_of_the_folder_is_a_bad_moment(what, tmp_path):
    done = warm.run([sys.executable, "-c", AT_EVERY_CHANGE, str(tmp_path), what], text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tried, messages = json.loads(done.stdout)
    assert tried > 20 and bool(messages) == (what == "full")
    for message, folder, newest in map(json.loads, messages):
        assert message.startswith(f"cannot write to {folder}: No space left on device; kept: ") and "\n" not in message
        assert (f"checkpoint {newest} and those before" if newest else "no checkpoint yet") in message
        assert "make room, then the same command goes on" in message


LIMITED = """
import resource, sys
sys.path[:0] = ["tests", "tools", "."]
from test_training import some_batches, tiny_model
from annotated.training import Recipe, train
def filling(epoch, position):
    for number, batch in enumerate(some_batches(epoch, position), position):
        if epoch == 1 and number == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        yield batch
try:
    train(tiny_model(), Recipe(steps=20, warmup=3, save_every=3), filling, sys.argv[1])
except OSError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("size", [500, 3000])  # smaller than the log; smaller than a checkpoint's files
def test_a_limit_on_files_loses_no_earlier_checkpoint(size, tmp_path):
    pytest.importorskip("resource")
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "full"), str(size)]
    done = warm.run(command, text=True, timeout=300)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert "kept: checkpoint 0000006 and those before; make room" in done.stderr.splitlines()[-1]
    assert [path.name for path in (tmp_path / "full/checkpoints").iterdir() if path.name > "0000006"] == []
    for name in ("full", "free"):
        train(tiny_model(), Recipe(steps=20, warmup=3, save_every=3), some_batches, tmp_path / name)
    assert contents(tmp_path / "full") == contents(tmp_path / "free")


def contents(folder):
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    took = rb'"seconds": \d+(, )?|"progress": "\w+"'  # the latter is a hash of the seconds, too
    return {name: re.sub(took, b"", data) for name, data in files.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "A training of 12 updates that nothing disturbs, in this process."
    folder = tmp_path_factory.mktemp("whole")
    go(folder)
    return contents(folder)


GO = Recipe(steps=12, warmup=3, evaluate_every=4, save_every=5, keep=4)


def go(folder, evaluate=lambda model: {"held_out": 1.5}):
    return train(tiny_model(P_drop=0.3), GO, some_batches, folder, evaluate)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_evaluation_saves_what_was_evaluated(number, whole, tmp_path):
    def disturbed(model):
        signal.raise_signal(number)
        return {"held_out": 1.5}

    with pytest.raises(KeyboardInterrupt, match="stopped after update 4;"):
        go(tmp_path, disturbed)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000004"]
    assert "held_out" in (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    go(tmp_path)
    mine = contents(tmp_path)
    assert {name: mine[name] for name in mine if "0000004" not in name} == {name: whole[name] for name in whole}


class Clock:
    "In place of time: goes on when told, and by next to nothing in between."

    now = 100.0

    def monotonic(self):
        self.now += 1e-6
        return self.now


def test_a_second_interrupt_stops_at_once(whole, tmp_path, monkeypatch, capsys):
    clock, updates, plain = Clock(), [], training.update
    monkeypatch.setattr(training, "time", clock)

    def disturbed(model, adam, batches):
        updates.append(0)
        if len(updates) == 8:
            for number, seconds in ((signal.SIGINT, 0.1), (signal.SIGINT, 5), (signal.SIGTERM, 0)):
                signal.raise_signal(number)  # the second one comes too soon to be meant
                clock.now += seconds
            said.extend(capsys.readouterr().err.splitlines())
            signal.raise_signal(signal.SIGINT)
        return plain(model, adam, batches)

    said = []
    start = lambda *parts: Run(*parts, update=disturbed)  # noqa: E731
    with pytest.raises(KeyboardInterrupt, match="^stopped at once; the same command goes on from the last checkpoint$"):
        train(tiny_model(P_drop=0.3), GO, some_batches, tmp_path, lambda model: {"held_out": 1.5}, start)
    assert len(updates) == 8 and sum("stopping after this update; again: at once" in line for line in said) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000005"]
    monkeypatch.undo()
    go(tmp_path)
    assert contents(tmp_path) == whole


def test_a_second_interrupt_during_a_save_leaves_the_others_whole(whole, tmp_path, monkeypatch):
    clock, save_file = Clock(), training.save_file
    monkeypatch.setattr(training, "time", clock)

    def disturbed(*arguments):
        save_file(*arguments)
        if "0000010" in str(arguments[1]):
            for _ in range(2):
                signal.raise_signal(signal.SIGINT)
                clock.now += 2

    monkeypatch.setattr(training, "save_file", disturbed)
    with pytest.raises(KeyboardInterrupt, match="at once"):
        go(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["0000005"]
    monkeypatch.undo()
    go(tmp_path)
    assert contents(tmp_path) == whole


def test_a_lost_terminal_does_not_keep_a_training_from_stopping(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr(training.tqdm, "write", gone)
    with pytest.raises(KeyboardInterrupt, match="stopped after update 4;"):
        go(tmp_path, lambda model: signal.raise_signal(signal.SIGINT) or {"held_out": 1.5})


def test_a_signal_during_a_save_leaves_it_whole(whole, tmp_path, monkeypatch):
    save_file = training.save_file

    def disturbed(*arguments):
        signal.raise_signal(signal.SIGTERM)
        save_file(*arguments)

    monkeypatch.setattr(training, "save_file", disturbed)
    with pytest.raises(KeyboardInterrupt, match="stopped after update 6;"):
        go(tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000005", "0000006"]
    assert contents(tmp_path)["checkpoints/0000005/model.safetensors"] == whole["checkpoints/0000005/model.safetensors"]
    monkeypatch.undo()
    go(tmp_path)
    assert contents(tmp_path)["checkpoints/0000012/adam.safetensors"] == whole["checkpoints/0000012/adam.safetensors"]


def test_a_checkpoint_that_a_killed_process_has_set_aside_is_gone_on_from(whole, tmp_path):
    """It was being written once more, after an evaluation that failed again: both copies have names of their own."""
    with pytest.raises(KeyboardInterrupt, match="enough"):
        go(tmp_path, lambda model: stop_at(model, tmp_path, 12))
    for path in list_checkpoints(tmp_path)[:-1]:
        shutil.rmtree(path)
    (only,) = list_checkpoints(tmp_path)
    shutil.copytree(only, only.with_name(f".{only.name}.part"))
    only.rename(only.with_name(f".{only.name}.old"))
    go(tmp_path)
    names = sorted(path.name for path in only.parent.iterdir())
    assert names == [only.name, "0000012"]  # from the beginning it would have made one before


@pytest.mark.parametrize("found", [{1: 2.0}, {"step": 3.0}, {"seconds": 1.0}], ids=str)
def test_an_evaluation_with_wrong_keys_costs_no_update(found, tmp_path):
    with pytest.raises(ValueError, match="texts as keys, others than step and seconds"):
        go(tmp_path, lambda model: found)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000004"]


@pytest.mark.parametrize("name", ["model.safetensors", "adam.safetensors", "progress.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(name, damage, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt, match="enough"):
        go(tmp_path, lambda model: stop_at(model, tmp_path, 12))
    path = list_checkpoints(tmp_path)[-1] / name
    path.write_bytes(path.read_bytes()[:-9]) if damage == "cut" else path.unlink()
    (tmp_path / "checkpoints/.0000011.part").mkdir()
    with pytest.warns(UserWarning, match=r"0000010 does not fit this model or is damaged.*; going on from 0000005"):
        go(tmp_path)
    assert contents(tmp_path) == whole and not list(tmp_path.rglob("*.part"))


def stop_at(model, folder, step):
    if json.loads((folder / "log.jsonl").read_text().splitlines()[-1])["step"] == step:
        raise KeyboardInterrupt("enough")
    return {"held_out": 1.5}


@pytest.mark.parametrize("wrong", [lambda model: 1 / 0, lambda model: {"step": 1}, lambda model: {"v": torch.ones(3)}])
def test_an_error_of_the_evaluation_costs_no_update(wrong, whole, tmp_path):
    failed = []

    def evaluate(model):
        if len(failed) < 2:
            failed.append(True)
            return wrong(model)
        return {"held_out": 1.5}

    for _ in range(2):  # here, and where the next command goes on
        with pytest.raises((ZeroDivisionError, ValueError, TypeError)):
            go(tmp_path, evaluate)
    assert list_checkpoints(tmp_path)
    go(tmp_path, evaluate)
    found, expected = ([{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text.splitlines()]
                       for text in ((tmp_path / "log.jsonl").read_text(), whole["log.jsonl"].decode()))
    assert found == expected
    name = "checkpoints/0000012/model.safetensors"
    assert contents(tmp_path)[name] == whole[name]


@pytest.mark.filterwarnings("ignore:.* updates already")
def test_a_stop_during_the_repeated_last_evaluation_is_one(tmp_path):
    recipe = Recipe(steps=3, warmup=3, evaluate_every=3, save_every=3)
    with pytest.raises(ZeroDivisionError):
        train(tiny_model(), recipe, some_batches, tmp_path, lambda model: 1 / 0)
    with pytest.raises(KeyboardInterrupt, match="stopped after update 3"):
        train(tiny_model(), recipe, some_batches, tmp_path, lambda model: signal.raise_signal(signal.SIGINT) or {"tokens": 1.5})
    assert len(train(tiny_model(), recipe, some_batches, tmp_path, lambda model: 1 / 0)) == 4, "it has been made"


def test_an_evaluation_says_its_own_error_where_nothing_can_be_saved(tmp_path):
    def spoils(model):
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as error:
        train(tiny_model(), Recipe(steps=1, warmup=3), some_batches, tmp_path, spoils)
    assert "could not be saved" in error.value.__notes__[0]


def test_a_process_forked_in_training_can_be_ended(capfd):
    def evaluate(model):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join()
        return {"code": child.exitcode}

    log = train(tiny_model(), Recipe(steps=1, warmup=3), some_batches, evaluate=evaluate)
    assert log[-1]["code"] == -signal.SIGTERM and "stopping" not in capfd.readouterr().err


def test_a_refused_checkpoint_changes_nothing(whole, tmp_path):
    go(tmp_path)
    other = Transformer(replace(SMALL, d_ff=16))
    before = [p.clone() for p in other.parameters()]
    adam = optimizer(other)
    for refused in (lambda: average(other, tmp_path, 1), lambda: load_checkpoint(list_checkpoints(tmp_path)[-1], other, adam)):
        with pytest.raises(ValueError, match="does not fit this model or is damaged.* has the shape .* and the model"):
            refused()
    assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True)) and not adam.state


@pytest.mark.parametrize("stops", [False, True])
def test_a_training_gives_the_generator_back_as_it_was(stops):
    "Else the models of a loop that trains one after the other would begin with the same weights."
    model = tiny_model()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="stop here") if stops else nullcontext():
        train(model, Recipe(steps=2, warmup=3), some_batches, evaluate=stop_here if stops else None)
    assert torch.equal(torch.get_rng_state(), before)


def stop_here(model):
    raise ValueError("stop here")


def test_a_trained_model_is_ready_for_use():
    model = tiny_model()
    train(model, Recipe(steps=1, warmup=3), some_batches)
    assert not model.training


def test_a_training_that_goes_on_counts_its_seconds_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, lambda model: signal.raise_signal(signal.SIGINT) or {"held_out": 1.5})
    log = tmp_path / "log.jsonl"
    log.write_text(re.sub(r'"seconds": \d+', '"seconds": 1000', log.read_text()))
    assert [line["seconds"] >= 1000 for line in go(tmp_path) if "seconds" in line] == [True] * 3


def test_no_second_is_lost_by_a_stop_between_two_evaluations(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(training, "time", clock)

    def slow(epoch, position, stop=None):
        for number, batch in enumerate(some_batches(epoch, position), position + 1):
            clock.now += 10
            if number == stop:
                signal.raise_signal(signal.SIGINT)
            yield batch

    recipe = Recipe(steps=4, warmup=3, evaluate_every=4, save_every=4)
    with pytest.raises(KeyboardInterrupt, match="^stopped after update 3; the same command goes on from there$"):
        train(tiny_model(), recipe, partial(slow, stop=3), tmp_path, lambda model: {})
    assert train(tiny_model(), recipe, slow, tmp_path, lambda model: {})[-1]["seconds"] == 40


def test_a_clock_that_stands_still_for_an_update_ends_no_training(monkeypatch):
    monkeypatch.setattr(training.time, "monotonic", lambda: 7.0)
    assert len(train(tiny_model(), Recipe(steps=3, warmup=3), some_batches)) == 3


def test_what_was_stopped_without_a_folder_does_not_go_on():
    def stopped(epoch, position):
        signal.raise_signal(signal.SIGINT)
        yield from some_batches(epoch, position)

    with pytest.raises(KeyboardInterrupt, match="^stopped after update 1$"):
        train(tiny_model(), Recipe(steps=3, warmup=3), stopped)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError("no memory"), torch.OutOfMemoryError("no memory")])
def test_a_disk_that_cannot_be_read_now_costs_no_checkpoint(error, whole, tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt, match="enough"):
        go(tmp_path, lambda model: stop_at(model, tmp_path, 12))
    before = contents(tmp_path)

    def unread(*_):
        raise error

    monkeypatch.setattr(training, "load_file", unread)
    with pytest.raises(type(error), match=str(error.args[-1])):
        go(tmp_path)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    go(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("given, said", [({"keep": 0}, "keep must be 1 or more, got 0"), ({"every": 0}, "every must be 1")])
def test_checkpoints_without_number_or_distance_are_refused(given, said, tmp_path):
    model = tiny_model()
    with pytest.raises(ValueError, match=said):
        save_checkpoint(tmp_path, model, optimizer(model), {"step": 1}, **given)
    assert not list_checkpoints(tmp_path)


def test_a_checkpoint_may_be_named_by_a_string(tmp_path):
    go(tmp_path)
    model = tiny_model()
    newest = list_checkpoints(tmp_path)[-1]
    assert training.load_checkpoint(str(newest), model, optimizer(model))["step"] == int(newest.name)


def test_two_damaged_checkpoints_stop_it_and_stay(tmp_path):
    go(tmp_path)
    for checkpoint in list_checkpoints(tmp_path)[-2:]:
        (checkpoint / "adam.safetensors").write_bytes(b"")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="0000012 does not fit this model or is damaged"):
        go(tmp_path)
    assert contents(tmp_path) == before


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    seen = []
    fsync, replace_ = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append(os.readlink(f"/proc/self/fd/{number}")), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(f"rename {a}"), replace_(a, b)))
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc to see which file is meant")
    train(tiny_model(), Recipe(steps=1), some_batches, tmp_path)
    assert seen[0].endswith(".log.jsonl.part") and seen[1] == f"rename {tmp_path}/.log.jsonl.part"
    rename = seen.index(f"rename {tmp_path}/checkpoints/.0000001.part")
    flushed = {os.path.basename(path) for path in seen[:rename]}
    assert flushed >= {"log.jsonl", "model.safetensors", "adam.safetensors", "progress.json", ".0000001.part"}
    assert f"{tmp_path}/checkpoints" in seen[rename:]


def test_a_log_drops_what_a_crash_cut_short(tmp_path):
    log = _Log(tmp_path, 0)
    for step in (1, 2, 3):
        log.add(step=step)
    (tmp_path / "log.jsonl").write_bytes((tmp_path / "log.jsonl").read_bytes() + b'{"step": 4, "lo\x00\x00\xff')
    assert [line["step"] for line in _Log(tmp_path, 9).lines] == [1, 2, 3]
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 3
    assert [line["step"] for line in _Log(tmp_path, 2).lines] == [1, 2]
    assert not (tmp_path / "log.jsonl.damaged").exists()
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n7\n{"st')
    assert _Log(tmp_path, 9).lines == [{"step": 1}] and (tmp_path / "log.jsonl.damaged").exists()
    for strange in ('{"loss": 1.0}', "7", "null", '{"step": null}', '{"step": 2, "seconds": -1}', '{"step": 2, "seconds": Infinity}'):
        (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{strange}\n{{"step": 2}}\n')
        assert _Log(tmp_path, 9).lines == [{"step": 1}, {"step": 2}]
        assert strange in (tmp_path / "log.jsonl.damaged").read_text()


def test_a_log_without_its_checkpoints_is_kept_beside_the_new_one(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    assert _Log(tmp_path, 0).lines == []
    assert (tmp_path / "log.jsonl.before").read_text() == '{"step": 1}\n{"step": 2}\n'
    (tmp_path / "log.jsonl").write_text('{"epoch": 1, "acc": 0.5}\n')  # a single line, of another program
    assert _Log(tmp_path, 0).lines == []
    assert "acc" in (tmp_path / "log.jsonl.damaged").read_text()
    (tmp_path / "log.jsonl.before").unlink()
    (tmp_path / "log.jsonl").write_text('{"step": 2}\n')  # before the first checkpoint was due
    assert _Log(tmp_path, 0, save_every=2).lines == [] and not (tmp_path / "log.jsonl.before").exists()
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"st')
    assert _Log(tmp_path, 1).lines == [{"step": 1}] and not (tmp_path / "log.jsonl.before").exists()


# ---- losses that are read late


def pretend_gpu(monkeypatch, bad):
    "Read one update late, as on a GPU, and let update number `bad` have a loss that nobody has looked at."
    made, init = [], training._Report.__init__

    def late(self, *arguments):
        init(self, *arguments)
        self.late = 1

    def unseen(model, adam, batches):
        loss, tokens = update(model, adam, batches)
        made.append(tokens)
        return (loss * float("nan") if len(made) == bad else loss), tokens

    monkeypatch.setattr(training._Report, "__init__", late)
    monkeypatch.setattr(training, "update", unseen)
    return made


def test_reading_late_changes_no_line(whole, tmp_path, monkeypatch):
    pretend_gpu(monkeypatch, None)
    go(tmp_path)
    assert contents(tmp_path) == whole


@pytest.mark.parametrize("bad, made", [(3, 4), (5, 5), (4, 4)])  # 5 is saved, 4 is evaluated: read at once
def test_a_loss_read_late_is_never_saved_or_evaluated(bad, made, tmp_path, monkeypatch):
    done = pretend_gpu(monkeypatch, bad)
    evaluated = []
    with pytest.raises(FloatingPointError, match=f"the loss is nan in update {bad}, epoch 0, batch {bad}; last good checkpoint: none"):
        go(tmp_path, lambda model: evaluated.append(1) or {"held_out": 1.5})
    assert len(done) == made and not list_checkpoints(tmp_path)
    assert len(evaluated) == (bad > 4) and len((tmp_path / "log.jsonl").read_text().splitlines()) == bad - 1 + len(evaluated)


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = tiny_model()
    run = Run(model, optimizer(model), tmp_path, step=7, position=3)
    run.save(2)
    model.decoder.layers[0].feed_forward.W_1.weight.data[0, 0] = float("inf")
    run.step = 8
    with pytest.raises(FloatingPointError, match=r"a weight is not finite in update 8, epoch 0, batch 3; last good checkpoint: .*0000007"):
        run.save(2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["0000007"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_update_makes_nobody_wait_for_the_gpu():
    model = tiny_model().cuda()
    run = Run(model, optimizer(model))
    coming = _stream(some_batches)
    run.advance(coming, Recipe())
    torch.cuda.set_sync_debug_mode("error")
    try:
        lines = [run.advance(coming, Recipe()) for _ in range(3)]
        reads = [training._read_later(line["loss"]) for line in lines]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [read() for read in reads] == [line["loss"].item() for line in lines]


def test_the_bar_shows_loss_speed_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(training, "tqdm", partial(training.tqdm, disable=False))  # the tests switch bars off
    train(tiny_model(), Recipe(steps=3), some_batches)
    said = capsys.readouterr()
    assert not said.out
    last = said.err.split("\r")[-1]
    assert "3/3" in last and "loss=" in last and "tokens=" in last and "/s" in last and "<" in last


# ---- averages and records


def test_averages_that_cannot_be_made_are_refused(undisturbed, tmp_path):
    for k in (0, -1, 2.5, "5"):
        with pytest.raises(ValueError, match=f"k must be a whole number, 1 or more, got {k!r}"):
            average(tiny_model(), undisturbed, k)
    for other in ({"N": 2}, {"d_ff": 13}):  # more layers than the checkpoints have, or wider ones
        with pytest.raises(ValueError, match="does not fit this model or is damaged"):
            average(tiny_model(**other), undisturbed)
    model = tiny_model()
    save_checkpoint(tmp_path, model, optimizer(model), {"step": 1})
    (tmp_path / "checkpoints/0000001/model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="0000001 does not fit this model or is damaged"):
        average(model, tmp_path)


def test_fewer_checkpoints_than_asked_for_are_all_averaged(undisturbed):
    assert average(tiny_model(), undisturbed, 20) == len(list_checkpoints(undisturbed)) == 4


def test_a_byte_that_a_disk_has_lost_is_not_gone_on_with(tmp_path):
    "Weights in which a bit has changed are weights, and a place in the data that is another is a place."
    whole = tmp_path / "whole"
    go(whole)

    for name in ("model.safetensors", "adam.safetensors"):
        folder = shutil.copytree(whole, tmp_path / name)
        for checkpoint in list_checkpoints(folder)[-2:]:
            content = bytearray((checkpoint / name).read_bytes())
            content[-3] ^= 1
            (checkpoint / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"damaged: {name} is not what was written"):
            go(folder)
    for change, said in (({"position": 0}, "progress is not what was written"), ({"step": 11}, "it is of step 11")):
        folder = shutil.copytree(whole, tmp_path / said.replace(" ", "-"))
        for checkpoint in list_checkpoints(folder)[-2:]:
            note = checkpoint / "progress.json"
            note.write_text(json.dumps(json.loads(note.read_text()) | change))
        with pytest.raises(ValueError, match=f"damaged: .*{said}"):
            go(folder)
    newest = list_checkpoints(whole)[-1]
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="damaged: model.safetensors is not what was written"):
        average(tiny_model(), whole)
    folder = shutil.copytree(whole, tmp_path / "older")
    oldest = list_checkpoints(folder)[0]
    (oldest / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"{oldest.name} does not fit this model or is damaged"):
        go(folder)


def test_a_place_behind_the_end_of_an_epoch_is_no_place():
    five = lambda epoch, position: some_batches(epoch, position)  # noqa: E731
    assert next(_stream(five, 0, 5))[2] == (1, 1)
    with pytest.raises(ValueError, match="epoch 0 has no batch 6: the checkpoint is damaged"):
        next(_stream(five, 0, 6))


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no SIGHUP on this system")
def test_a_closed_terminal_stops_a_training_unless_that_is_ignored():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, heard in ((signal.SIG_DFL, 1), (signal.SIG_IGN, 0)):
            signal.signal(signal.SIGHUP, handler)
            with training._stop_signals() as seen:
                signal.raise_signal(signal.SIGHUP)
            assert len(seen) == heard and signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.filterwarnings("ignore:.* updates already")
def test_another_distance_of_checkpoints_discards_none_that_was_planned(tmp_path):
    "A finished training that is asked for again must come to the same mean."
    recipe = Recipe(steps=10, warmup=3, save_every=2, keep=5)
    train(tiny_model(), recipe, some_batches, tmp_path)
    before = [path.name for path in list_checkpoints(tmp_path)]
    assert len(before) == 5
    train(tiny_model(), replace(recipe, save_every=3), some_batches, tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == before


def test_checkpoints_are_in_order_beyond_ten_million(tmp_path):
    for step in (9_998_000, 9_999_000, 10_000_000, 10_001_000):
        (tmp_path / "checkpoints" / f"{step:07d}").mkdir(parents=True)
    _prune(tmp_path, keep=2, every=1000)
    assert [int(path.name) for path in list_checkpoints(tmp_path)] == [10_000_000, 10_001_000]


def test_an_evaluation_may_give_numbers_of_torch_and_numpy(tmp_path):
    recipe = Recipe(steps=2, warmup=3, evaluate_every=2)
    log = train(tiny_model(), recipe, some_batches, tmp_path, lambda model: {"a": torch.ones(1)[0] / 4, "b": np.float32(0.5)})
    assert type(log[-1]["a"]) is type(log[-1]["b"]) is float
    last = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["a"], last["b"]) == (2, 0.25, 0.5)


def test_batches_take_another_models_bos_and_padding():
    model = Transformer(replace(SMALL, bos=9, pad=9, eos=0, unk=1))
    adam = optimizer(model)
    pairs = [([4, 5, 0], [4, 0]), ([4, 5, 6, 7, 0], [4, 5, 6, 0])]
    (batch,) = Batches(pairs, 100, 100, bos=9, pad=9)()
    assert update(model, adam, [batch])[1] == 6 and set(batch[1][:, 0].tolist()) == {9}


@pytest.mark.parametrize("changes, given, message", [
    ({"bos": 3, "unk": 1}, {}, "batches have bos=1 and the model has bos=3"),
    ({"pad": 3, "unk": 0}, {}, "batches have pad=0 and the model has pad=3"),
    ({}, {"pad": 7}, "batches have pad=7 and the model has pad=0"),
])
def test_batches_with_markers_of_another_model_are_refused(changes, given, message):
    pairs = [([4, 5, 2], [4, 2]), ([4, 5, 6, 7, 2], [4, 5, 6, 2])]
    with pytest.raises(ValueError, match=message):
        train(tiny_model(**changes), Recipe(steps=1, warmup=1), Batches(pairs, 100, 100, **given))
    with pytest.raises(ValueError, match=message):
        train(tiny_model(**changes), Recipe(steps=1, warmup=1), Prefetch(Prefetch(Batches(pairs, 100, 100, **given))))


def test_a_feed_s_own_marker_counts_before_those_within():
    class Feed:
        pad = 5

        def __init__(self):
            self.batches = [self]  # not what it feeds

        def __call__(self, epoch, position):
            yield from some_batches(epoch, position)

    with pytest.raises(ValueError, match="batches have pad=5 and the model has pad=0"):
        train(tiny_model(), Recipe(steps=1, warmup=1), Feed())


@pytest.mark.parametrize("given", [[], iter(()), token_batches([([4, 2], [5, 2])], 9, 9)], ids=["list", "iterator", "generator"])
def test_batches_that_cannot_begin_anew_are_refused(given, tmp_path):
    with pytest.raises(TypeError, match="batches must be called as `Batches` is, with .epoch, position., not"):
        train(tiny_model(), Recipe(steps=1, warmup=1), given, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_done_says_that_nothing_is_trained(tmp_path):
    recipe = Recipe(steps=2, warmup=1)
    first, second = tiny_model(), tiny_model(P_drop=0.5)
    log = train(first, recipe, some_batches, tmp_path)
    with pytest.warns(UserWarning, match="has 2 updates already, and the model gets their weights: for another training"):
        assert train(second, recipe, some_batches, tmp_path) == log
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())


def test_a_folder_of_another_recipe_says_what_differs(tmp_path):
    """Where updates are at stake; how long, how often and how much is kept may change, but with Muon how long matters."""
    recipe = Recipe(steps=2, warmup=1, rate=0.5)
    train(tiny_model(), recipe, some_batches, tmp_path)
    with pytest.warns(UserWarning, match=r"the last updates in .* had warmup 1, not 3, rate 0.5, not 1.0: for another training"):
        train(tiny_model(), replace(recipe, steps=4, warmup=3, rate=1.0), some_batches, tmp_path)
    with warnings.catch_warnings(action="error"):
        later = Recipe(steps=6, warmup=3, keep=1, save_every=1, evaluate_every=1)
        train(tiny_model(), later, some_batches, tmp_path)
    with pytest.warns(UserWarning, match="had steps 2, not 4"):
        run = Run(tiny_model(), None, tmp_path, 2, notes={"recipe": asdict(replace(recipe, optimizer="muon"))})
        _warn_of_folder(run, replace(recipe, steps=4, optimizer="muon"), None)
    with pytest.warns(UserWarning, match="had activation 'relu', not 'gelu': for another training"):
        train(tiny_model(activation="gelu"), replace(later, steps=7), some_batches, tmp_path)


def test_a_configuration_that_json_lacks_can_be_saved_and_gone_on_with(tmp_path):
    """A model of one's own may have a precision or a tuple in it; the same again is no other configuration."""
    @dataclass(frozen=True)
    class Own(Config):
        precision: torch.dtype = torch.float32
        shape: tuple = (1, 2)

    def model():
        made = tiny_model()
        made.config = Own(**asdict(made.config))
        return made

    train(model(), Recipe(steps=2, warmup=1), some_batches, tmp_path)
    with warnings.catch_warnings(action="error"):
        train(model(), Recipe(steps=3, warmup=1), some_batches, tmp_path)


def test_a_checkpoint_that_names_no_optimizer_and_no_recipe_goes_on(tmp_path):
    """As older ones do; averages of other shapes are another optimizer's then."""
    whole, resumed = tiny_model(), tiny_model()
    train(whole, Recipe(steps=4, warmup=1), some_batches)
    train(tiny_model(), Recipe(steps=2, warmup=1), some_batches, tmp_path)
    path = list_checkpoints(tmp_path)[-1] / "progress.json"
    progress = json.loads(path.read_text())
    del progress["optimizer"], progress["notes"]["recipe"], progress["sha256"]
    path.write_text(json.dumps(progress))
    own = torch.optim.Adam(tiny_model(d_ff=9).parameters())
    assert load_checkpoint(path.parent, tiny_model(), optimizer(tiny_model()))["step"] == 2
    with pytest.raises(ValueError, match="is of another weight: was it another optimizer"):
        load_checkpoint(path.parent, tiny_model(), own)
    train(resumed, Recipe(steps=4, warmup=1), some_batches, tmp_path)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())


def test_a_training_by_an_optimizer_of_ones_own_goes_on(tmp_path):
    """Also by one whose averages have other shapes than the weights; another one than before is refused."""
    def by(kind):
        return lambda model, adam, folder: Run(model, kind(model.parameters()), folder)

    whole, resumed, kind = tiny_model(), tiny_model(), torch.optim.Adafactor
    train(whole, Recipe(steps=4, warmup=1), some_batches, start=by(kind))
    train(tiny_model(), Recipe(steps=2, warmup=1), some_batches, tmp_path, start=by(kind))
    train(resumed, Recipe(steps=4, warmup=1), some_batches, tmp_path, start=by(kind))
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
    with pytest.raises(TypeError, match="was made by Adafactor, not by Adam"):
        train(tiny_model(), Recipe(steps=6, warmup=1), some_batches, tmp_path)


def test_what_was_trained_is_saved_if_a_batch_cannot_be_made(tmp_path):
    """The run goes on from there as one that met no error; an error of the first batch leaves nothing to save."""
    def failing(epoch, position):
        for place, batch in enumerate(some_batches(epoch, position), position):
            if (epoch, place) == failing.at:
                raise OSError("the drive is away")
            yield batch

    recipe, failing.at = Recipe(steps=9, warmup=2), (1, 0)
    with pytest.raises(OSError, match="the drive is away"):
        train(tiny_model(), recipe, failing, tmp_path)
    (kept,) = list_checkpoints(tmp_path)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == int(kept.name) > 0
    with pytest.raises(OSError, match="the drive is away"):
        train(tiny_model(), recipe, failing, tmp_path)
    assert list_checkpoints(tmp_path) == [kept]
    whole, resumed = tiny_model(), tiny_model()
    assert train(whole, recipe, some_batches) == train(resumed, recipe, some_batches, tmp_path)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())
    failing.at = (0, 0)
    with pytest.raises(OSError):
        train(tiny_model(), recipe, failing, tmp_path / "new")
    assert not list_checkpoints(tmp_path / "new")


def test_an_older_checkpoint_says_why_it_cannot_be_trained_on(tmp_path):
    train(tiny_model(), Recipe(steps=3, warmup=3, save_every=1, keep=3), some_batches, tmp_path)
    model = tiny_model()
    with pytest.raises(ValueError, match="adam.safetensors is missing"):
        load_checkpoint(list_checkpoints(tmp_path)[0], model, optimizer(model))


def test_one_training_at_a_time_writes_to_a_folder(tmp_path):
    "The second gets a line, and the first goes on; afterwards nothing of the lock is left."
    def batches(epoch, position):
        with pytest.raises(ValueError, match="another process is writing there: .*writing is locked"):
            train(tiny_model(), Recipe(steps=2, warmup=1), some_batches, tmp_path)
        return some_batches(epoch, position)

    log = train(tiny_model(), Recipe(steps=3, warmup=1), batches, tmp_path)
    assert [line["step"] for line in log if "loss" in line] == [1, 2, 3] and not (tmp_path / ".writing").exists()


def test_an_older_checkpoint_that_is_damaged_says_what_would_do(tmp_path):
    recipe = Recipe(steps=4, warmup=1, save_every=1, keep=4)
    train(tiny_model(), recipe, some_batches, tmp_path)
    first = list_checkpoints(tmp_path)[0]
    (first / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"{first.name} .*; remove it to go on without it"):
        train(tiny_model(), replace(recipe, steps=5), some_batches, tmp_path)
    shutil.rmtree(first)
    assert len(train(tiny_model(), replace(recipe, steps=5), some_batches, tmp_path)) == 5


def test_what_is_not_given_is_the_papers():
    "The defaults of recipe, rate, loss, optimizer and search."
    from inspect import signature
    from pathlib import Path

    from annotated import decoding, optimization

    paper = json.loads((Path(__file__).parent.parent / "book" / "paper.json").read_text(encoding="utf-8"))["training"]
    adam = paper["adam"]
    given = lambda function, *names: [signature(function).parameters[name].default for name in names]  # noqa: E731
    recipe = Recipe()
    assert (recipe.steps, recipe.warmup, recipe.rate, recipe.keep) == (paper["base_steps"], paper["warmup_steps"], 1.0, paper["checkpoints_averaged"]["base"])
    assert (recipe.source_tokens, recipe.target_tokens) == (paper["batch_source_tokens"], paper["batch_target_tokens"])
    assert {"beta1": recipe.beta1, "beta2": recipe.beta2, "eps": recipe.eps} == adam
    assert dict(zip(adam, given(optimizer, *adam), strict=True)) == adam
    assert given(learning_rate, "d_model", "warmup", "rate") == [512, paper["warmup_steps"], 1.0]
    for loss in (optimization.label_smoothed_loss, optimization._smoothed_loss, optimization.spread_over_all):
        assert given(loss, "eps") == [0.1]
    for search in (decoding.beam_search, decoding.Translator.translate, decoding.Translator.n_best):
        assert given(search, "beam", "alpha") == [paper["beam"], paper["alpha"]]
    assert given(decoding.hypotheses, "beam", "penalty") == [paper["beam"], decoding.length_penalty]
    assert given(decoding.length_penalty, "alpha") == [paper["alpha"]]


def test_the_recipes_constants_reach_adam_and_its_factor_the_rate():
    seen, recipe = [], Recipe(steps=1, warmup=3, rate=0.5, beta1=0.8, beta2=0.9, eps=1e-5)
    log = train(tiny_model(), recipe, some_batches, start=lambda model, adam, folder: seen.append(adam) or Run(model, adam, folder))
    (group,) = seen[0].param_groups
    assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-5)
    assert group["lr"] == log[0]["rate"] == learning_rate(1, 8, 3, 0.5)


@pytest.mark.parametrize("model, eps", [(tiny_model(P_drop=0.0, eps_ls=0.3), 0.3), (RecurrentSeq2Seq(RecurrentConfig(vocab=11, d_model=8, P_drop=0.0)), 0.0)])
def test_an_update_smooths_as_its_model_says_and_not_at_all_where_that_says_nothing(model, eps):
    source, target = list(some_batches())[2]
    logits, right = model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten()
    wanted = F.cross_entropy(logits, right, ignore_index=0, label_smoothing=eps).item()
    assert update(model, optimizer(model), [(source, target)])[0].item() == pytest.approx(wanted, rel=1e-5)
