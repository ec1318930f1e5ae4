"""Several processes must make the updates of one, end together, and go on in any number."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import warm
from test_gpu import close, model_of, some_pairs

from annotated import cli, distributed, gpu
from annotated.data import Batches, make_batch
from annotated.distributed import (
    DistributedUpdate,
    ProcessGroup,
    _DistributedRun,
    _Elsewhere,
    _fast_backend,
    _report_lost_process,
    _SharedBatches,
    _timeout,
    _torchrun_group,
    fast_run,
    load_shards,
    save_shards,
    shard,
)
from annotated.grammar import grammar_corpus
from annotated.graphs import CudaGraphTrainStep
from annotated.optimization import optimizer
from annotated.training import Recipe, Run, _read_arrived, _stream, train, update


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", str(torch.cuda.device_count()))
    with pytest.raises(ValueError, match="at most as many processes"), _torchrun_group("cuda"):
        pass


def test_the_variable_of_another_launcher_starts_no_group(monkeypatch):
    for value in ("4", ""):
        monkeypatch.setenv("WORLD_SIZE", value)
        with _torchrun_group("cpu") as group:
            assert group.size == 1


@pytest.mark.parametrize("given", ["abc", "1e300", "-3", "0", "nan"])
def test_a_timeout_that_is_no_number_is_named(given, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("ANNOTATED_TIMEOUT_MINUTES", given)
    with pytest.raises(ValueError, match=f"ANNOTATED_TIMEOUT_MINUTES must be a number of minutes above 0, got '{given}'"), _torchrun_group("cpu"):
        pass


def start_two(function, folder, *arguments):
    "Call a function of this file in two processes, each with (rank, *arguments); wait, and check both."
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_distributed; test_distributed.{function}(*{list(map(str, arguments))!r})"
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    meet = f"file://{folder}/meet"
    started = [
        warm.begin([sys.executable, "-c", code], env=quiet | {"RANK": str(r), "MEET": meet}, stderr=subprocess.PIPE, text=True)
        for r in (0, 1)
    ]
    try:
        for process in started:
            said = process.communicate(timeout=300)[1]
            assert process.returncode == 0, said[-2000:]
    finally:
        for process in started:
            process.kill()


def group_here():
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=2)
    return ProcessGroup(rank, 2)


def run_of(group, folder, batches=None, **changes):
    "A training of six updates of four batches each, as `train` gets it from the command line."
    recipe = Recipe(**{"steps": 6, "warmup": 2, "accumulate": 4, "save_every": 3, "seed": 5} | changes)
    model = model_of()
    start = partial(fast_run, group=group)
    batches = batches or Batches(some_pairs(60), 30, 30)
    log = train(model, recipe, batches, folder if group.rank == 0 else None, start=start)
    return model, log


def in_two_processes(folder):
    "Whatever needs two processes, at once, because starting them takes longer."
    group = group_here()
    assert group.any(group.rank == 1) is True and group.any(False) is False
    parts = group.share(list(range(6)))
    assert parts == [[0, 2, 4], [1, 3, 5]][group.rank]
    model, log = run_of(group, f"{folder}/two")
    model_begun, _ = run_of(group, f"{folder}/begun")  # one process has made three updates of these
    if group.rank == 0:
        torch.save([model.state_dict(), model_begun.state_dict(), [line["loss"] for line in log]], f"{folder}/found.pt")
        assert math.isfinite(log[0]["loss"])
    torch.manual_seed(0)
    shared = _SharedBatches(Batches(some_pairs(60), 30, 30), group)
    _, shared_log = run_of(group, f"{folder}/shared", batches=shared)  # over several epochs
    assert [line["loss"] for line in shared_log] == [line["loss"] for line in log]
    assert [line["tokens"] for line in shared_log] == [line["tokens"] for line in log]
    drop_run = _DistributedRun(model_of(), None, step=3, group=group)
    torch.manual_seed(drop_run.seed(Recipe(seed=5)))
    dropped = torch.nn.functional.dropout(torch.ones(97), 0.5)
    both = [torch.empty(97), torch.empty(97)]
    torch.distributed.all_gather(both, dropped)
    assert not torch.equal(*both)
    torch.manual_seed(5 * 1_000_003 + 3)  # what one process alone drops
    assert torch.equal(both[0], torch.nn.functional.dropout(torch.ones(97), 0.5))
    machines = ProcessGroup(group.rank, 2, local=1)  # as if each stood on a machine of its own
    with machines.in_turn():
        with open(f"{folder}/turns", "a") as turns:
            turns.write(f"{group.rank} in\n")
        time.sleep(0.3 * (1 - group.rank))
        with open(f"{folder}/turns", "a") as turns:
            turns.write(f"{group.rank} out\n")
    torch.manual_seed(0)
    sharded = shard(gpu.Objective(gpu.fuse(model_of())), group)
    (sharded(*make_batch(some_pairs(30)[group.rank :: 2])) * 2).backward()
    held = sum(p.to_local().numel() for p in sharded.parameters())
    whole = [p.grad.full_tensor().flatten() for p in sharded.parameters()]
    if group.rank == 0:
        torch.save([held, whole], f"{folder}/sharded.pt")
    two = sharded_training(group)
    assert load_shards(f"{folder}/by-one", two[0], two[1]) == {"step": 2, "epoch": 0, "position": 8}
    goes_on(group, *two, folder, "by-two", 3)
    torch.distributed.destroy_process_group()


def sharded_training(group):
    "A sharded objective, its optimizer, and a function that makes update number n of it."
    objective = shard(gpu.Objective(gpu.fuse(model_of())), group)
    adam = optimizer(objective)
    adam.param_groups[0]["lr"] = 1e-2
    make = DistributedUpdate(gpu.TrainStep(objective), group)
    return objective, adam, lambda n: make(objective.model, adam, batches_of(n))


def batches_of(n):
    "Four batches for update number n, counted from 1."
    return list(Batches(some_pairs(200), 30, 30)())[4 * n - 4 : 4 * n]


def goes_on(group, objective, adam, advance, folder, name, step):
    "Make update number step, begin to save it, make the next one meanwhile; what stood after each."
    kept = []
    for n in (step, step + 1):
        advance(n)
        kept.append([p.full_tensor().clone() for p in objective.parameters()])
        if n == step:
            written = save_shards(f"{folder}/{name}", objective, adam, {"step": n, "epoch": 0, "position": 4 * n}, group)
    written.result()
    if torch.distributed.get_rank() == 0:
        torch.save(kept, f"{folder}/{name}.pt")


@pytest.fixture
def group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/alone", rank=0, world_size=1)
    yield ProcessGroup()
    torch.distributed.destroy_process_group()


def test_two_processes_make_the_training_of_one(tmp_path, group_of_one):
    plain = model_of()
    recipe = Recipe(steps=6, warmup=2, accumulate=4, save_every=3, seed=5)
    lines = train(plain, recipe, Batches(some_pairs(60), 30, 30), tmp_path / "one")
    run_of(ProcessGroup(), tmp_path / "begun", steps=3)
    alone = sharded_training(group_of_one)
    alone[2](1)
    goes_on(group_of_one, *alone, tmp_path, "by-one", 2)
    start_two("in_two_processes", tmp_path, tmp_path)
    two, begun, losses = torch.load(tmp_path / "found.pt")
    close(torch.tensor(losses), torch.tensor([line["loss"] for line in lines]))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(two[name], value, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(begun[name], value, atol=1e-4, rtol=1e-3)
    assert (tmp_path / "turns").read_text().split("\n")[:4] == ["0 in", "0 out", "1 in", "1 out"]
    resumed = [json.loads(line)["step"] for line in (tmp_path / "begun/log.jsonl").read_text().splitlines()]
    assert resumed == [1, 2, 3, 4, 5, 6]
    again, _ = run_of(ProcessGroup(), tmp_path / "two", steps=8)  # begun by two, one goes on
    assert sorted(p.name for p in (tmp_path / "two/checkpoints").iterdir()) == ["0000003", "0000006", "0000008"]

    held, shares = torch.load(tmp_path / "sharded.pt")
    whole = gpu.Objective(gpu.fuse(model_of()))
    whole(*make_batch(some_pairs(30))).backward()
    numbers = sum(p.numel() for p in whole.parameters())
    assert 0.4 * numbers < held < 0.6 * numbers
    close(torch.cat(shares), torch.cat([p.grad.flatten() for p in whole.parameters()]))

    # A sharded training: two updates by one process, then two by two, the last of which one makes again.
    plain = model_of()
    adam = optimizer(plain)
    adam.param_groups[0]["lr"] = 1e-2
    wanted = []
    for n in (1, 2, 3, 4):
        update(plain, adam, batches_of(n))
        wanted.append([p.detach().clone() for p in plain.parameters()])
    by_one, by_two = (torch.load(tmp_path / f"by-{name}.pt") for name in ("one", "two"))
    near = partial(torch.testing.assert_close, atol=2e-4, rtol=1e-3)
    near([*by_one, *by_two], [wanted[1], wanted[2], wanted[2], wanted[3]])
    again = sharded_training(group_of_one)
    assert load_shards(tmp_path / "by-two", again[0], again[1]) == {"step": 3, "epoch": 0, "position": 12}
    assert all(torch.equal(p.full_tensor(), q) for p, q in zip(again[0].parameters(), by_two[0], strict=True))
    again[2](4)
    near([p.full_tensor() for p in again[0].parameters()], wanted[3])


def test_a_sharded_objective_sends_gradients_once_an_update(group_of_one):
    objective, _, advance = sharded_training(group_of_one)
    asked = []
    objective.set_requires_gradient_sync = asked.append
    advance(1)
    assert asked == [False, False, False, True]


def test_compiled_layers_are_not_cut_at_the_buckets_of_ddp(group_of_one):
    torch._dynamo.reset()
    programs = []

    def count(graph, inputs):
        programs.append(graph)
        return graph.forward

    model = gpu.compiled(gpu.fuse(model_of()), backend=count)
    wrapped = torch.nn.parallel.DistributedDataParallel(gpu.Objective(model), bucket_cap_mb=0.001)
    wrapped(*make_batch(some_pairs(5))).backward()
    assert len(programs) == 2
    torch._dynamo.reset()


def note_kind(kinds, precision, module, inputs, out):
    kinds.add((precision, out.dtype))


def test_sharded_layers_compute_in_two_bytes_and_keep_four(group_of_one):
    found, kinds = [], set()
    for precision in ("float32", "bfloat16"):
        objective = shard(gpu.Objective(gpu.fuse(model_of())), group_of_one, precision=precision)
        for layer in (*objective.model.encoder.layers, *objective.model.decoder.layers):
            layer.feed_forward.W_1.register_forward_hook(partial(note_kind, kinds, precision))
        objective(*make_batch(some_pairs(30))).backward()
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in objective.parameters())
        found.append(torch.cat([p.grad.full_tensor().flatten() for p in objective.parameters()]))
    assert kinds == {("float32", torch.float32), ("bfloat16", torch.bfloat16)}
    assert 1e-4 < (found[1] - found[0]).norm() / found[0].norm() < 0.05


def annotated_train(folder, *more):
    for name, side in zip(("source", "target"), zip(*grammar_corpus(300, 1, 1).train)):  # the whole grammar takes each process seconds
        (folder.parent / name).write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    options = f"train --source {folder.parent}/source --target {folder.parent}/target --preset tiny --vocab 400 --d_model 32 --d_ff 32 --h 2 --P_drop 0 --fast --device cpu --score 0"
    options += " --warmup 4 --source_tokens 100 --target_tokens 100 --accumulate 2 --save_every 20"
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "annotated"]
    return [*start, *options.split(), "--out", str(folder), *more]


def test_a_lost_process_ends_the_job_with_a_line_and_a_checkpoint(tmp_path):
    quiet = os.environ | {"OMP_NUM_THREADS": "1"}
    command = annotated_train(tmp_path / "model", "--steps", "100000")
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=quiet, start_new_session=True)
    try:
        limit = time.monotonic() + 100
        while not list((tmp_path / "model/checkpoints").glob("[0-9]*")) and time.monotonic() < limit:
            assert job.poll() is None, job.stderr.read()[-2000:]
            time.sleep(0.05)
        tree = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(job.pid)], capture_output=True, text=True).stdout
        workers = [int(line.split()[0]) for line in tree.splitlines() if "annotated" in line]
        assert len(workers) == 2, tree
        os.kill(workers[1], signal.SIGKILL)
        said = job.communicate(timeout=100)[1]
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode != 0
    assert re.search(r"annotated train: process \d of 2 has lost another one; checkpoint \d{7} is whole; the same command", said), said[-3000:]
    step = int(sorted((tmp_path / "model/checkpoints").glob("[0-9]*"))[-1].name)
    alone = command[command.index("annotated") + 1 :]
    alone[alone.index("100000")] = str(step + 2)
    assert cli.main(alone) == 0  # one process goes on
    steps = [json.loads(line)["step"] for line in (tmp_path / "model/log.jsonl").read_text().splitlines()]
    assert max(steps) == step + 2


def in_unequal_groups(port):
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(1 + int(os.environ["RANK"])), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with pytest.raises(ValueError, match="--nproc-per-node must be equal on all machines"), _torchrun_group("cpu"):
        raise AssertionError("the group began")


def test_machines_with_different_numbers_of_processes_are_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_two("in_unequal_groups", tmp_path, port)


def test_batches_that_cannot_be_shared_are_refused():
    with pytest.raises(ValueError, match="accumulate must be a multiple of the processes, got 3 batches for 2"):
        ProcessGroup(0, 2).share([1, 2, 3])


def test_another_error_is_not_taken_for_a_lost_process(tmp_path):
    for group, message in ((ProcessGroup(0, 2), "shape mismatch"), (ProcessGroup(), "gloo: connection closed")):
        with pytest.raises(RuntimeError, match=message), _report_lost_process(group):
            raise RuntimeError(message)
    with pytest.raises(ConnectionError, match=r"process 1 of 2 has lost another one; the same .* \(Connection closed by peer\)"), _report_lost_process(ProcessGroup(1, 2)):
        raise RuntimeError("Connection closed by peer")


def test_a_run_of_one_process_is_a_run(tmp_path):
    run = _DistributedRun(model_of(), None)
    assert isinstance(run, Run) and run.stops([2]) and not run.stops([])


def test_a_recorded_step_with_several_processes_is_refused():
    step = CudaGraphTrainStep(gpu.Objective(model_of()))
    DistributedUpdate(step, ProcessGroup())
    with pytest.raises(ValueError, match="several processes need TrainStep"):
        DistributedUpdate(step, ProcessGroup(0, 2))


def test_a_process_makes_its_own_share_only(monkeypatch):
    made = []
    real = Batches.build
    monkeypatch.setattr(Batches, "build", lambda self, plan, k: made.append(k) or real(self, plan, k))
    batches = Batches(some_pairs(60), 30, 30)
    shares = [_SharedBatches(batches, ProcessGroup(rank, 3)) for rank in range(3)]
    count = len(batches.plan())
    for epoch in (0, 1):
        found = [list(share(epoch)) for share in shares]
        whole = list(batches(epoch))
        for k, (batch, *told) in enumerate(zip(whole, *found, strict=True)):
            turn = (epoch * count + k) % 3  # an update may reach into the next epoch
            assert torch.equal(told[turn][1], batch[1])
            others = [source for rank, (source, _) in enumerate(told) if rank != turn]
            assert others == 2 * [_Elsewhere((batch[1][:, 1:] != 0).sum().item())]
    assert len(made) == 2 * 2 * count  # each once by a process, once by us


@pytest.mark.parametrize("feed", [lambda share: share, gpu.Prefetch])
def test_a_training_that_goes_on_keeps_the_shares(feed):
    batches = Batches(some_pairs(60), 30, 30)
    count = len(batches.plan())
    assert count % 3  # an epoch ends within a round
    for place in ((0, 3), (0, count), (1, 1), (2, count - 1)):
        coming = _stream(feed(_SharedBatches(batches, ProcessGroup(2, 3))), *place)
        first = place[0] * count + place[1]
        for n in range(first, first + 2 * count):
            source, _, _ = next(coming)
            assert isinstance(source, _Elsewhere) == (n % 3 != 2)


def test_a_corpus_on_a_disk_gives_its_pages_back_in_every_process():
    class OnDisk(list):
        forgotten = 0

        def forget(self):
            self.forgotten += 1

    for rank in range(4):
        pairs = OnDisk(some_pairs(400))
        made = [source for source, _ in _SharedBatches(Batches(pairs, 30, 30), ProcessGroup(rank, 4))()]
        assert pairs.forgotten == sum(isinstance(s, torch.Tensor) for s in made) // 8 > 2


def test_tokens_of_static_batches_are_counted_without_their_filling():
    batches = gpu.StaticBatches(some_pairs(60), 32, 32)
    told = [source for source, _ in _SharedBatches(batches, ProcessGroup(1, 97))()]
    counted = [(source.tokens, (target[:, 1:] != 0).sum()) for source, (_, target) in zip(told, batches(), strict=True) if isinstance(source, _Elsewhere)]
    assert counted and all(tokens == filled for tokens, filled in counted)


class Event:
    """A GPU's event that comes after so many looks, or never."""

    def __init__(self, looks=None):
        self.looks = looks

    def query(self):
        if self.looks is not None:
            self.looks -= 1
            return self.looks < 0
        return False


def test_a_gpu_that_waits_for_a_lost_process_is_given_up():
    value = torch.tensor(3.0)
    assert _read_arrived(value, Event(5)) == 3.0
    assert _read_arrived(value, Event(5), [1.0], 10.0) == 3.0
    with pytest.raises(ConnectionError, match="process 0 of 2 has lost another one"), _report_lost_process(ProcessGroup(0, 2)):
        _read_arrived(value, Event(), [1.0], 0.05)
    assert _DistributedRun(model_of(), None, group=ProcessGroup(1, 2)).patience < 60
    assert _DistributedRun(model_of(), None).patience == float("inf")


@pytest.mark.parametrize("given, minutes", [(None, 30), ("0.5", 0.5), ("90", 90)])
def test_a_timeout_is_in_minutes(given, minutes, monkeypatch):
    monkeypatch.delenv("ANNOTATED_TIMEOUT_MINUTES", raising=False)
    if given:
        monkeypatch.setenv("ANNOTATED_TIMEOUT_MINUTES", given)
    assert _timeout() == timedelta(minutes=minutes)


@pytest.mark.parametrize("more", [True, False])
def test_ddp_sends_nothing_while_more_batches_are_to_come(group_of_one, more):
    wrapped = torch.nn.parallel.DistributedDataParallel(gpu.Objective(gpu.fuse(model_of())))
    with group_of_one.no_sync(wrapped, more):
        assert wrapped.require_backward_grad_sync is not more
    assert wrapped.require_backward_grad_sync


@pytest.mark.parametrize("local, size, waits", [(None, 2, [0, 1]), (1, 2, [0, 1]), (2, 4, [0, 2, 1, 2])])
def test_all_but_the_first_of_a_machine_wait_for_all_the_first(local, size, waits, monkeypatch):
    meetings = []
    monkeypatch.setattr(ProcessGroup, "any", lambda self, asked, among=None: meetings.append(among) or asked)
    for rank, before in enumerate(waits):
        meetings.clear()
        with ProcessGroup(rank, size, local, "patient").in_turn():
            assert meetings == ["patient"] * before
        assert len(meetings) == size // (local or size), "as many for all, or one would wait for ever"


def test_shards_are_not_written_over_others(tmp_path, group_of_one):
    objective, adam, _ = sharded_training(group_of_one)
    first, second = ({"step": n, "epoch": 0, "position": n} for n in (1, 2))
    save_shards(tmp_path / "shards", objective, adam, first, group_of_one).result()
    with pytest.raises(ValueError, match="shards holds a checkpoint: name a new folder"):
        save_shards(tmp_path / "shards", objective, adam, second, group_of_one)
    assert load_shards(tmp_path / "shards", objective, adam) == first


def test_shards_are_read_whole_where_there_are_gradients(tmp_path, group_of_one):
    objective, adam, advance = sharded_training(group_of_one)
    advance(1)
    save_shards(tmp_path / "shards", objective, adam, {"step": 1, "epoch": 0, "position": 4}, group_of_one).result()
    other, fresh, _ = sharded_training(group_of_one)
    sum(weight.sum() for weight in other.parameters()).backward()
    load_shards(tmp_path / "shards", other, fresh)
    assert len(fresh.state) == len(adam.state) > 0
    for mine, theirs in zip(fresh.state.values(), adam.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"].full_tensor(), theirs["exp_avg"].full_tensor()) and mine["step"] == 1


def test_a_lost_process_is_told_with_the_newest_checkpoint(monkeypatch):
    monkeypatch.setattr(distributed, "list_checkpoints", lambda folder: [Path("2"), Path("4"), Path("6")])
    with pytest.raises(ConnectionError, match="checkpoint 6 is whole"), _report_lost_process(ProcessGroup(0, 2), Path("model")):
        raise RuntimeError("Connection closed by peer")


@pytest.mark.parametrize("given", [{"precision": "bfloat16"}, {"compile": True}, {}])
def test_a_fast_run_begins_as_the_backend_was_asked(given, monkeypatch):
    asked = []
    monkeypatch.setattr(distributed, "fast_run", lambda *parts, **how: asked.append(how))
    with _fast_backend("cpu", **given) as backend:
        backend.start(None, None, None)
    assert {name: asked[0][name] for name in ("precision", "compile")} == {"precision": None, "compile": False} | given
