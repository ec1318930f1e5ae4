"""A translator in a quarter of an hour: Muon, the rate that ends at 0, and how a run with them goes on."""

import json
import signal
from argparse import Namespace
from copy import deepcopy
from dataclasses import asdict, replace

import pytest
import torch
from programs import BENCHMARKS, loaded

from annotated import quick
from annotated.cli import main
from annotated.cpu import CPURun
from annotated.data import make_batch
from annotated.grammar import grammar_corpus
from annotated.optimization import learning_rate, optimizer
from annotated.quick import QUICK, QUICK_RECIPE, Muon, _line, _orthogonal, _product_type, by_muon
from annotated.records import read_run
from annotated.training import Recipe, Run, list_checkpoints, load_checkpoint, train
from annotated.transformer import TINY, Transformer

SMALL = replace(TINY, vocab=31, d_model=38, d_ff=53, h=2, norm="pre")
PAIRS = [([5, 6, 2], [7, 8, 9, 2]), ([5, 2], [9, 2]), ([6, 6, 6, 6, 2], [3, 4, 5, 6, 7, 2])]


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 5, 31), (1, 1, 13), (5, 53, 53)])
def test_directions_stay_and_count_alike(shape):
    torch.manual_seed(0)
    G = torch.randn(shape)
    U, S, Vh = torch.linalg.svd(G, full_matrices=False)
    X = _orthogonal(G)
    turned = U.mT @ X @ Vh.mT  # in the directions of G: a diagonal matrix
    values = turned.diagonal(dim1=1, dim2=2)
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-3
    found = values[S > 0.02 * S.amax(-1, keepdim=True)]
    assert 0.6 < found.min() and found.max() < 1.3
    assert torch.equal(_orthogonal(torch.zeros(shape)), torch.zeros(shape)), "a gradient of 0 moves nothing"
    torch.testing.assert_close(_orthogonal(1e-4 * G), X, rtol=0, atol=0.01)


@pytest.mark.parametrize("can, dtype, expected", [
    ({"avx512_bf16": True}, torch.float32, torch.bfloat16), ({"amx_bf16": True}, torch.float32, torch.bfloat16),
    ({"avx512_bf16": False}, torch.float32, torch.float32), ({}, torch.float32, torch.float32),
    ({"avx512_bf16": True}, torch.float64, torch.float64),
])
def test_products_of_16_bits_only_where_the_processor_has_them(can, dtype, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can, raising=False)
    assert _product_type(torch.zeros(1, dtype=dtype)) is expected
    assert _product_type(torch.zeros(1, dtype=dtype, device="meta")) is dtype
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert _product_type(torch.zeros(1, dtype=dtype)) is dtype, "an older torch"


def test_an_update_by_products_of_16_bits_is_nearly_that_of_32_where_all_directions_count(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(37, 53, bias=False), torch.nn.Linear(53, 11, bias=False))
    before = [p.detach().clone() for p in model.parameters()]
    gradients = [torch.randn_like(p) for p in before]
    moved = []
    for can in ({}, {"avx512_bf16": True}):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda can=can: can, raising=False)
        muon = Muon(model)
        for p, old, gradient in zip(model.parameters(), before, gradients):
            p.data.copy_(old)
            p.grad = gradient.clone()
        for group in muon.param_groups:
            group["lr"] = 0.01
        muon.step()
        moved.append([p.detach() - old for p, old in zip(model.parameters(), before)])
    for exact, near in zip(*moved):
        assert 0 < (near - exact).norm() < 0.05 * exact.norm()


def test_16_bits_keep_the_strong_directions_where_few_count():
    """Those that are a thousand times weaker are rounding's, and Muon makes them as large."""
    torch.manual_seed(0)
    G = torch.randn(1, 53, 4) @ torch.randn(1, 4, 101) + 1e-3 * torch.randn(1, 53, 101)
    U, _, Vh = torch.linalg.svd(G[0], full_matrices=False)
    strong = [U[:, :4].T @ _orthogonal(G.to(dtype))[0].float() @ Vh[:4].T for dtype in (torch.float32, torch.bfloat16)]
    torch.testing.assert_close(*strong, rtol=0, atol=0.06)
    assert strong[0].diagonal().min() > 0.6


def slow_muon(params, means, lr):
    """Muon of one matrix after the other, by an exact singular value decomposition of what is turned."""
    for p, mean in zip(params, means):
        mean.mul_(0.95).add_(p.grad, alpha=0.05)
        ahead = 0.05 * p.grad + 0.95 * mean
        wide = ahead if len(ahead) <= ahead.shape[1] else ahead.T
        U, S, Vh = torch.linalg.svd(wide, full_matrices=False)
        x = S / S.square().sum().sqrt()
        for _ in range(5):
            x = 3.4445 * x - 4.775 * x**3 + 2.0315 * x**5
        X = (U * x) @ Vh
        p.data -= lr * 0.2 * max(p.shape) ** 0.5 * (X if wide is ahead else X.T)


def test_an_update_is_that_of_the_definition_and_of_adam():
    torch.manual_seed(0)
    model = Transformer(SMALL).double()
    other = deepcopy(model)
    ours = Muon(model)
    linear = [m for m in other.modules() if isinstance(m, torch.nn.Linear)]
    matrices = [m.weight for m in linear]
    means = [torch.zeros_like(p) for p in matrices]
    rest = [p for p in other.parameters() if not any(p is q for q in matrices)]
    adam = torch.optim.Adam(rest, lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    for lr in (0.01, 0.003, 0.02):
        for group in (*ours.param_groups, *adam.param_groups):
            group["lr"] = lr
        for p, q in zip(model.parameters(), other.parameters()):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        ours.step()
        adam.step()
        slow_muon(matrices, means, lr)
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9, msg=name)
    assert sum(p.numel() for p in matrices) > 0.8 * sum(p.numel() for p in rest), "a test of both"


def test_a_closure_is_called_before_the_matrices_are_turned():
    models = [torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))]
    models.append(deepcopy(models[0]))
    x = torch.randn(4, 3)
    for model, by_closure in zip(models, (False, True)):
        muon = Muon(model)
        muon.param_groups[0]["lr"] = muon.param_groups[1]["lr"] = 0.1

        def loss(model=model, muon=muon):
            muon.zero_grad()
            made = model(x).square().sum()
            made.backward()
            return made

        for _ in range(3):
            before = None if by_closure else loss()
            returned = muon.step(loss if by_closure else None)
        assert (returned is None) == (before is not None)
    for p, q in zip(*(model.parameters() for model in models)):
        assert torch.equal(p, q)


def test_a_matrix_without_a_gradient_stays():
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    muon = Muon(model)
    muon.param_groups[0]["lr"] = muon.param_groups[1]["lr"] = 0.1
    before = deepcopy(model.state_dict())
    model[0](torch.randn(4, 3)).square().sum().backward()
    muon.step()
    moved = {name for name, p in model.state_dict().items() if not torch.equal(p, before[name])}
    assert moved == {"0.weight", "0.bias"}


def test_the_rate_rises_as_the_papers_and_falls_to_zero_in_a_line():
    recipe = Recipe(steps=101, warmup=11, rate=0.7, optimizer="muon")
    rates = [_line(recipe, step, 37) for step in range(1, 102)]
    assert rates[:10] == pytest.approx([learning_rate(step, 37, 11, 0.7) for step in range(1, 11)])
    assert max(rates) == pytest.approx(learning_rate(11, 37, 11, 0.7))
    falls = [a - b for a, b in zip(rates[12:], rates[13:])]
    assert falls == pytest.approx([falls[0]] * len(falls)) and rates[-1] == pytest.approx(falls[0])
    assert _line(replace(recipe, steps=5), 5, 37) > 0, "shorter than its warm-up"


def trained(folder, steps, start, stop=None, **changes):
    """The weights after a training, which a signal may stop."""
    torch.manual_seed(0)
    model = Transformer(SMALL)
    recipe = replace(QUICK_RECIPE, steps=steps, warmup=3, save_every=50, **changes)
    def batches(epoch, position):
        if stop == (epoch, position):
            signal.raise_signal(signal.SIGTERM)
        return [make_batch(PAIRS)][position:]

    train(model, recipe, batches, folder, start=start)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def fast(*given, **more):
    return CPURun(*given, choose=lambda sizes, rows: {}, **more)


@pytest.mark.parametrize("start", [Run, fast])
def test_a_stopped_training_ends_with_the_same_weights(start, tmp_path):
    whole = trained(tmp_path / "whole", 9, by_muon(start))
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "stopped", 9, by_muon(start), stop=(4, 0))
    assert 1 < int(list_checkpoints(tmp_path / "stopped")[-1].name) < 9
    assert torch.equal(trained(tmp_path / "stopped", 9, by_muon(start)), whole)


def test_a_recipe_for_muon_is_not_trained_by_adam():
    with pytest.raises(ValueError, match="trains by adam, not by muon"):
        trained(None, 2, Run)
    with pytest.raises(ValueError, match='"adam" or "muon", got \'sgd\''):
        Recipe(optimizer="sgd")


def test_a_recipe_for_adam_is_not_trained_by_muon():
    with pytest.raises(ValueError, match='needs optimizer="muon", got \'adam\''):
        trained(None, 2, by_muon(Run), optimizer="adam")


@pytest.mark.parametrize("first", ["adam", "muon"])
def test_the_averages_of_one_optimizer_are_not_read_by_the_other(first, tmp_path):
    starts = {"adam": Run, "muon": by_muon(Run)}
    trained(tmp_path, 2, starts.pop(first), optimizer=first)
    (other, start), = starts.items()
    torch.manual_seed(0)
    model = Transformer(SMALL)
    run = start(model, optimizer(model), tmp_path)
    with pytest.raises(TypeError, match="was made by .*, not by "):
        load_checkpoint(list_checkpoints(tmp_path)[-1], model, run.adam)


def test_adams_constants_are_handed_on():
    recipe = Recipe(beta1=0.8, beta2=0.9, eps=1e-5)
    model = Transformer(SMALL)
    run = by_muon()(model, optimizer(model, recipe.beta1, recipe.beta2, recipe.eps), None)
    assert {(g["betas"], g["eps"]) for g in run.adam.param_groups} == {((0.8, 0.9), 1e-5)}


SHORT = "train --corpus grammar --preset quick --N 1 --N_decoder 1 --d_model 16 --d_ff 16 --h 2 --device cpu --steps 6 --warmup 2 --source_tokens 300 --target_tokens 300 --save_every 3 --score 0"


def test_the_command_line_trains_so_goes_on_and_refuses_another_end(tmp_path, capsys, few_pairs):
    command = [*SHORT.split(), "--out", str(tmp_path / "model")]
    assert main(command) == 0
    run = json.loads((tmp_path / "model" / "run.json").read_text())
    assert run["recipe"]["optimizer"] == "muon" and run["recipe"]["keep"] == QUICK_RECIPE.keep
    assert run["config"]["norm"] == QUICK.norm == "pre"
    log = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    rates = [line["rate"] for line in log if "rate" in line]
    assert rates[-1] == pytest.approx(max(rates) / 4), "the last of four updates behind the warm-up"
    assert main(command) == 0, "a finished training is finished"
    capsys.readouterr()
    assert main([*command, "--steps", "9"]) == 2, "its rate has ended"
    assert "begun with steps=6, now steps=9" in capsys.readouterr().err
    assert main([*command, "--optimizer", "adam"]) == 2
    assert "optimizer=muon, now optimizer=adam" in capsys.readouterr().err
    assert main([*SHORT.split(), "--out", str(tmp_path / "fast"), "--fast"]) == 2
    assert "muon cannot be had with --fast" in capsys.readouterr().err
    assert not (tmp_path / "fast").exists()


def test_a_folder_of_before_there_was_a_choice_goes_on(tmp_path, capsys, few_pairs):
    command = [*SHORT.split(), "--preset", "tiny", "--out", str(tmp_path / "model")]
    assert main(command) == 0
    path = tmp_path / "model" / "run.json"
    run = json.loads(path.read_text())
    del run["recipe"]["optimizer"]
    path.write_text(json.dumps(run))
    assert main([*command, "--steps", "8"]) == 0, capsys.readouterr().err


@pytest.fixture
def ladder(monkeypatch):
    "The program that makes the record of a quarter of an hour, with two small rungs and a small corpus."
    module = loaded(BENCHMARKS / "20_minutes.py")
    config, recipe = replace(TINY, vocab=330, norm="pre"), Recipe(source_tokens=200, target_tokens=200)
    every = {
        "Adam": module.Rung(config, CPURun, recipe, rates=(1e-3, 2e-3)),
        "Muon": module.Rung(config, recipe=replace(recipe, optimizer="muon"), rates=(4e-3,)),
    }
    corpus = grammar_corpus(train=200, validation=5, test=3)
    for name, value in {"rungs": lambda: every, "load_corpus": lambda name: corpus, "QUICK": config, "ALPHAS": (0.6, 1.4)}.items():
        monkeypatch.setattr(module, name, value)
    return module


def climbed(module, folder, timed=None, **options):
    given = {"rungs": None, "seeds": [1], "rounds": 2, "steps": 3, "work": folder / "work", "timed": timed}
    out = folder / ("second" if timed else "record")
    module.go(Namespace(**{**given, **options}, out=out))
    return json.loads((out / "scores.json").read_text())


def test_a_ladder_chooses_on_validation_tests_once_and_goes_on(ladder, tmp_path, monkeypatch):
    scored, begun, train_ = [], [], ladder.train
    monkeypatch.setattr(ladder, "train", lambda *given: begun.append(given[3].name) or train_(*given))
    monkeypatch.setattr(ladder, "bleu", lambda made, wanted: scored.append(len(made)) or (9.0 - len(scored), "signature"))
    scores = climbed(ladder, tmp_path)
    assert {name: len(found["all"]) for name, found in scores["an update"].items()} == {"Adam": 2, "Muon": 2}
    tried = scores["trials"]["Adam"]
    assert set(tried) == {"0.001", "0.002"} and list(scores["trials"]["Muon"]) == ["0.004"]
    first, second = scores["trainings"]
    assert first["rate"] == float(min(tried, key=tried.get)) and (first["rung"], second["rung"]) == ("Adam", "Muon")
    assert scored == [5, 5, 3] * 2 and first["alpha"] == 0.6 and first["BLEU"] == 6.0 and first["updates"] == 3
    scores = climbed(ladder, tmp_path, rungs=["Muon"], seeds=[1, 2])
    assert scored == [5, 5, 3] * 3 and [made["seed"] for made in scores["trainings"]] == [1, 1, 2]
    assert begun == ["Adam-0.001", "Adam-0.002", "Adam-1", "Muon-0.004", "Muon-1", "Muon-2"]
    with pytest.raises(ValueError, match="begun with steps=3, now steps=4"):  # a trial's trainings are of no use
        climbed(ladder, tmp_path, steps=4)


def test_a_second_program_takes_the_times_of_the_first(ladder, tmp_path, monkeypatch):
    monkeypatch.delattr(ladder, "seconds_an_update")
    times = {name: {"seconds": 450.0, "all": []} for name in ladder.rungs()}
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / "scores.json").write_text(json.dumps({"an update": times}))
    scores = climbed(ladder, tmp_path, tmp_path / "record", rungs=["Muon"], steps=None)
    assert scores["an update"] == times and scores["trainings"][0]["updates"] == 2  # 15 minutes of 450 seconds each


@pytest.mark.parametrize("has", [False, True])
def test_a_gpu_with_products_of_16_bits_makes_them(has, monkeypatch):
    class SeemsOnAGPU(torch.Tensor):
        is_cuda, device = True, torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has and not including_emulation)
    X = torch.randn(1, 3, 5).as_subclass(SeemsOnAGPU)
    assert quick._product_type(X) == (torch.bfloat16 if has else torch.float32)
    assert quick._product_type(X.double()) == torch.float64


def test_the_preset_is_what_its_record_trained():
    rung = read_run(BENCHMARKS.parent / "results" / "20-minutes-amd")["recipe"]["a deep encoder, a shallow decoder"]
    recipe = asdict(QUICK_RECIPE)
    same = "source_tokens", "target_tokens", "beta1", "beta2", "eps", "optimizer"
    assert rung["config"] == asdict(QUICK)
    assert {name: rung["recipe"][name] for name in same} == {name: recipe[name] for name in same}
    assert (rung["warmup"], rung["averaged"]) == (QUICK_RECIPE.warmup / QUICK_RECIPE.steps, QUICK_RECIPE.keep)


def test_its_constants_are_those_of_adam():
    model = torch.nn.Linear(3, 5)
    ours, adam = Muon(model).defaults, optimizer(model).defaults
    assert {name: ours[name] for name in ("lr", "betas", "eps")} == {name: adam[name] for name in ("lr", "betas", "eps")}


def test_a_matrix_moves_as_far_beside_many_of_its_shape_as_alone():
    torch.manual_seed(0)
    gradients, moved = torch.randn(11, 5, 3), []
    for count in (1, 11):
        model = torch.nn.ModuleList(torch.nn.Linear(3, 5, bias=False) for _ in range(count))
        muon = Muon(model)
        muon.param_groups[1]["lr"] = 0.1
        before = model[0].weight.detach().clone()
        for layer, gradient in zip(model, gradients):
            layer.weight.grad = gradient.clone()
        muon.step()
        moved.append(model[0].weight.detach() - before)
    torch.testing.assert_close(*moved)
