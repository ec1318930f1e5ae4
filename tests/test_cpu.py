"""Training on a CPU: the same update, made faster."""

import json
import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from annotated import cpu, decoding
from annotated.cli import main
from annotated.cpu import CPUObjective, CPURun, LinearMaps, calibrate
from annotated.data import make_batch
from annotated.gpu import FastUpdate, TrainStep
from annotated.optimization import optimizer
from annotated.training import Recipe, Run, list_checkpoints, train, update
from annotated.transformer import BASE, TINY, Transformer

NAMES = ("forward", "input", "weight")
SMALL = replace(TINY, vocab=31, d_model=38, d_ff=53, h=2, P_drop=0.0)
PAIRS = [([5, 6, 2], [7, 8, 9, 2]), ([5, 2], [9, 2]), ([6, 6, 6, 6, 2], [3, 4, 5, 6, 7, 2])]
needs_onednn = pytest.mark.skipif(cpu._onednn() is None, reason="this torch has no oneDNN")


@pytest.fixture
def calls(monkeypatch):
    """Sizes (n, m, k) of the products that oneDNN would make, here made by torch."""
    made = []

    def multiply(x, W, b=None):
        made.append((*x.shape, len(W)))
        return F.linear(x, W, b)

    monkeypatch.setattr(cpu, "_onednn", lambda: multiply)
    return made


def inputs(kind):
    x, W, b = torch.randn(2, 13, 17), torch.randn(19, 17), torch.randn(19)
    return {
        "bias": (x, W, b), "no bias": (x, W, None), "a row": (x[0, 0], W, b), "no rows": (x[:, :0], W, b),
        "columns": (torch.randn(17, 13).t(), torch.randn(17, 19).t(), b), "every other": (torch.randn(13, 34)[:, ::2], W, b),
    }[kind]


def outcome(linear, parts):
    """The output, and the gradients of two losses: one of them hands back an expanded gradient."""
    parts = [part if part is None else part.detach().requires_grad_() for part in parts]
    wanted = [part for part in parts if part is not None]
    y = linear(*parts)
    found = [y, *torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)]
    return [*found, *torch.autograd.grad(y.sum(), wanted)]


@needs_onednn
@pytest.mark.parametrize("names", [*((name,) for name in NAMES), NAMES])
@pytest.mark.parametrize("kind", ["bias", "no bias", "a row", "no rows", "columns", "every other"])
def test_a_linear_map_by_onednn_is_the_plain_one(kind, names):
    torch.manual_seed(0)
    parts = inputs(kind)
    found = outcome(LinearMaps({"19x17": names}), parts)
    for chosen, plain in zip(found, outcome(F.linear, parts), strict=True):
        torch.testing.assert_close(chosen, plain)


def test_each_product_is_made_by_the_library_that_is_named(calls):
    x, W = torch.randn(13, 17, requires_grad=True), torch.randn(19, 17, requires_grad=True)
    wanted = {"forward": (13, 17, 19), "input": (13, 19, 17), "weight": (17, 13, 19)}
    for name in NAMES:
        LinearMaps({"19x17": [name]})(x, W).sum().backward()
        assert calls == [wanted[name]]
        calls.clear()
    LinearMaps({"17x19": NAMES})(x, W).sum().backward()
    assert not calls, "another size is plain"
    LinearMaps({"19x17": NAMES})(x, W.detach()).sum().backward()
    assert calls == [wanted["forward"], wanted["input"]], "no gradient that nobody wants"


def test_what_is_not_float32_on_a_cpu_takes_the_plain_way(calls):
    maps = LinearMaps({"19x17": NAMES})
    x, W = torch.randn(13, 17), torch.randn(19, 17)
    assert torch.equal(maps(x.double(), W.double()), F.linear(x.double(), W.double()))
    assert maps(x.to("meta"), W.to("meta")).shape == (13, 19)
    with torch.autocast("cpu", torch.bfloat16):
        assert maps(x, W).dtype == torch.bfloat16
    assert maps(x[:0], W).shape == (0, 19)
    assert not calls
    assert torch.equal(maps(x, W), F.linear(x, W)) and calls


def absent(*arguments):
    raise AttributeError("no such operator")


@pytest.mark.parametrize("operator", [absent, lambda x, W: x @ W.T, lambda x, W, b, *rest: x @ W.T])
def test_an_operator_that_is_absent_or_other_than_expected_is_not_used(operator, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", operator, raising=False)
    assert cpu._onednn() is None
    maps = LinearMaps({"19x17": NAMES})
    x, W, b = inputs("bias")
    assert torch.equal(maps(x, W, b), F.linear(x, W, b))
    assert calibrate([(512, 512)]) == {}


def test_calibration_takes_what_saves_a_tenth(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(cpu.time, "perf_counter", lambda: now[0])

    def takes(seconds):
        def function():
            now[0] += seconds
        return function

    assert cpu._faster(takes(1.0), takes(0.8), (), 5)
    assert not cpu._faster(takes(1.0), takes(0.95), (), 5)
    assert not cpu._faster(takes(1.0), takes(3.0), (), 5)


def test_calibration_leaves_small_matrices_and_the_seed_alone(calls, monkeypatch):
    monkeypatch.setattr(cpu, "_faster", lambda plain, other, given, seconds: "by_input" in str(other))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    chosen = calibrate([(127, 129), (4000, 4), (128, 128), (8000, 256), (128, 128)], rows=7)
    assert chosen == {"128x128": ["input"], "8000x256": ["input"]}
    assert torch.equal(torch.get_rng_state(), before)
    assert json.loads(json.dumps(chosen)) == chosen
    tried = []
    monkeypatch.setattr(cpu, "_faster", lambda plain, other, given, seconds: tried.append((*(tuple(x.shape) for x in given), seconds)))
    calibrate([(3000, 37 * 100)], rows=977, seconds=0.75)
    assert tried == [((512, 2048), (2048, 2048), 0.25), ((512, 2048), (2048, 2048), 0.25), ((512, 2048), (512, 2048), 0.25)]


CONFIGS = {
    "paper": {}, "pre": {"norm": "pre"}, "biases": {"bias": True}, "gelu": {"activation": "gelu"}, "learned": {"positions": "learned"},
    "fewer": {"N_decoder": 1}, "two vocabularies": {"source_vocab": 23}, "widths": {"d_k": 11, "d_v": 7, "bias": True}, "sharp": {"eps_ls": 0.0},
}


def outcomes(config, batches):
    """Loss and gradients of an update, plain and by `CPUObjective`, and the two models."""
    torch.manual_seed(1)
    plain = Transformer(config)
    for parameter in plain.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)  # biases begin at 0, which would hide them
    fast = deepcopy(plain)
    faster = FastUpdate(TrainStep(CPUObjective(fast)))
    found = []
    for model, make in ((plain, update), (fast, faster)):
        loss, tokens = make(model, optimizer(model), batches)
        found.append({"loss": loss, "tokens": torch.tensor(tokens)} | {name: p.grad for name, p in model.named_parameters()})
    return *found, plain, fast


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("batches", [[make_batch(PAIRS)], [make_batch(PAIRS[:2]), make_batch(PAIRS[2:])]], ids=["padding", "two"])
def test_loss_and_gradients_are_those_of_the_plain_update(changes, batches):
    plain, fast, *_ = outcomes(replace(SMALL, **changes), batches)
    assert list(plain) == list(fast)
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_weights_keep_names_values_and_places_and_fit_the_plain_model():
    torch.manual_seed(0)
    plain = Transformer(SMALL).eval()
    fast = deepcopy(plain)
    before = [(name, id(p)) for name, p in fast.named_parameters()]
    CPUObjective(fast)
    CPUObjective(fast)  # twice is once
    assert [(name, id(p)) for name, p in fast.named_parameters()] == before
    assert list(fast.state_dict()) == list(plain.state_dict())
    source, target = make_batch(PAIRS)
    torch.testing.assert_close(fast(source, target), plain(source, target))
    adam = optimizer(fast)
    adam.param_groups[0]["lr"] = 1e-2
    FastUpdate(TrainStep(CPUObjective(fast)))(fast, adam, [(source, target)])
    plain.load_state_dict(fast.state_dict())
    logits = fast.eval()(source, target)
    torch.testing.assert_close(plain(source, target), logits)
    state, state_fast = plain.start(source), fast.start(source)
    torch.testing.assert_close(fast.step(target[:, 0], state_fast)[0], plain.step(target[:, 0], state)[0])


@pytest.mark.parametrize("pack", [decoding.packed, decoding.packed_int8])
def test_a_search_takes_a_model_that_has_been_trained_so(pack):
    torch.manual_seed(0)
    plain = Transformer(replace(SMALL, bias=True)).eval()
    fast = deepcopy(plain)
    CPUObjective(fast)
    source, target = make_batch(PAIRS)
    torch.testing.assert_close(pack(fast)(source, target), pack(plain)(source, target))


def test_a_model_that_has_been_trained_so_can_be_pickled():
    torch.manual_seed(0)
    model = Transformer(SMALL).eval()
    CPUObjective(model)
    source, target = make_batch(PAIRS)
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(source, target), model(source, target))


class Counted(LinearMaps):
    def __init__(self):
        super().__init__()
        self.sizes = []

    def products(self, x, W):
        self.sizes.append((x.numel() // x.shape[-1], *W.shape))
        return super().products(x, W)


@pytest.mark.parametrize("N_decoder", [1, 3])
def test_padding_has_no_rows_and_projections_are_joined(N_decoder):
    config = replace(SMALL, N_decoder=N_decoder)
    source, target = make_batch(PAIRS)
    linear = Counted()
    CPUObjective(Transformer(config), linear)(F.pad(source, (0, 5)), F.pad(target, (0, 3)))
    m, n = (source != 0).sum().item(), (target[:, 1:] != 0).sum().item()
    d, f = config.d_model, config.d_ff
    encoder = [(m, 3 * d, d), (m, d, d), (m, f, d), (m, d, f)]
    decoder = [(n, 3 * d, d), (n, d, d), (n, d, d), (n, d, d), (n, f, d), (n, d, f)]
    assert linear.sizes == encoder * 2 + [(m, 2 * N_decoder * d, d)] + decoder * N_decoder + [(n, 31, d)]
    assert {size[1:] for size in linear.sizes} <= cpu._sizes(Transformer(config))


def test_the_loss_is_made_in_the_array_of_the_logits():
    torch.manual_seed(0)
    logits = torch.randn(13, 31, dtype=torch.float64, requires_grad=True)
    target = torch.randint(1, 31, (13,))
    loss = F.cross_entropy(logits, target, label_smoothing=0.1, reduction="sum")
    (slope,) = torch.autograd.grad(loss, logits)
    place = logits.detach().clone()
    torch.testing.assert_close(cpu._loss_in_place(place, target, 0.1), loss.detach())
    torch.testing.assert_close(place, slope)
    many = torch.randn(7, 2**17 + 1)  # more than fit into one pass
    wanted = F.cross_entropy(many, target[:7], reduction="sum")
    torch.testing.assert_close(cpu._loss_in_place(many.clone(), target[:7], 0.0), wanted)


def test_dropout_follows_the_seed_and_reaches_the_attention_weights():
    def loss(seed, **changes):
        torch.manual_seed(0)
        objective = CPUObjective(Transformer(replace(SMALL, **changes)))
        torch.manual_seed(seed)
        return objective(*make_batch(PAIRS)).item()

    for name in ("P_drop", "P_drop_attention", "P_drop_ffn"):
        assert loss(1, **{name: 0.5}) == loss(1, **{name: 0.5}) != loss(2, **{name: 0.5})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_loss_of_short_numbers_is_summed_in_float32(dtype):
    "In a model of them, and under autocast."
    torch.manual_seed(0)
    model = Transformer(replace(SMALL, P_drop=0.0)).eval()
    source, target = torch.randint(4, SMALL.vocab, (7, 11)), torch.randint(4, SMALL.vocab, (7, 13))
    wanted = CPUObjective(deepcopy(model))(source, target)
    made = deepcopy(model).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        found = CPUObjective(made)(source, target)
    found.backward()
    assert found.dtype == torch.float32 and abs(found / wanted - 1) < 0.01
    assert all(p.grad is not None and p.grad.dtype == dtype for p in made.parameters())


def test_a_batch_of_nothing_has_no_loss():
    source, target = make_batch(PAIRS[:1])
    objective = CPUObjective(Transformer(SMALL))
    loss = objective(source, target[:, :1])
    loss.backward()
    assert loss == 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())


class Adapted(torch.nn.Linear):
    pass


@pytest.mark.parametrize(("change", "message"), [
    (lambda layer: setattr(layer.self_attention, "W_Q", Adapted(32, 32, False)), "encoder.layers.0.self_attention.W_Q is of class Adapted, which"),
    (lambda layer: layer.self_attention.register_forward_hook(print), "encoder.layers.0.self_attention has hooks, which .* train with start=Run"),
    (lambda layer: layer.add_norm[0].norm.register_forward_pre_hook(print), "norm has hooks"),
    (lambda layer: setattr(layer.feed_forward.W_1, "forward", print), "W_1 has a forward of its own, which .* train with start=Run"),
    (lambda layer: torch.nn.utils.parametrizations.weight_norm(layer.self_attention.W_K), "W_K is of class Parametrized"),
])
def test_layers_that_would_be_thrown_away_are_refused(change, message):
    """And the model is as it was."""
    model = Transformer(replace(TINY, d_model=32, d_ff=48, h=2, vocab=11))
    change(model.encoder.layers[0])
    before = [type(module) for module in model.modules()]
    with pytest.raises(ValueError, match=message):
        CPUObjective(model)
    assert [type(module) for module in model.modules()] == before


def test_hooks_of_what_stays_are_called_and_others_refused():
    model, calls = Transformer(replace(TINY, d_model=32, d_ff=48, h=2, vocab=11)), []
    model.encoder.layers[0].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    CPUObjective(model)(*make_batch([([4, 5, 2], [4, 2])]))
    assert calls == [1]
    for part, name in ((model.decoder, "decoder"), (model, "the model")):
        handle = part.register_forward_hook(print)
        with pytest.raises(ValueError, match=f"^{name} has hooks"):
            CPUObjective(model)
        handle.remove()


def test_a_model_with_an_output_bias_is_refused():
    with pytest.raises(ValueError, match="output_bias"):
        CPUObjective(Transformer(replace(SMALL, output_bias=True)))


# ---- a training remembers what was chosen


CHOSEN = {"114x38": ["forward", "weight"], "38x53": ["input"], "31x38": ["forward"]}


def trained(folder, steps, start, P_drop=0.1):
    torch.manual_seed(5)
    model = Transformer(replace(SMALL, P_drop=P_drop))
    recipe = Recipe(steps=steps, warmup=4, save_every=2, evaluate_every=100)
    train(model, recipe, lambda epoch, position: [make_batch(PAIRS)][position:], folder, start=start)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def chooses(chosen, said=None):
    said = [] if said is None else said
    return lambda *given: CPURun(*given, choose=lambda sizes, rows: chosen, say=said.append)


@needs_onednn
def test_a_resumed_training_keeps_what_was_chosen(tmp_path):
    said = []
    whole = trained(tmp_path / "whole", 6, chooses(CHOSEN))
    trained(tmp_path / "stopped", 4, chooses(CHOSEN, said))
    resumed = trained(tmp_path / "stopped", 6, chooses({}, said))
    assert torch.equal(resumed, whole)
    assert said[0] == said[1] and "4 kinds of them by oneDNN" in said[0]
    for checkpoint in list_checkpoints(tmp_path / "stopped"):
        assert json.loads((checkpoint / "progress.json").read_text())["notes"]["onednn"] == CHOSEN


def test_resuming_prunes_by_the_distance_that_is_asked_for(tmp_path):
    model, pruned = Transformer(SMALL), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("annotated.training._load_newest", lambda *_: {"step": 9, "notes": {"onednn": {}}})
        patch.setattr("annotated.training._prune", lambda folder, keep, every=1: pruned.append((keep, every)))
        CPURun(model, optimizer(model), tmp_path).resume(2, 4)
    assert pruned == [(2, 4)]


def test_a_training_begun_the_plain_way_goes_on_in_it(tmp_path):
    whole = trained(tmp_path / "whole", 4, Run)
    trained(tmp_path / "stopped", 2, Run)
    path = list_checkpoints(tmp_path / "stopped")[-1] / "progress.json"
    progress = json.loads(path.read_text())
    path.write_text(json.dumps({name: progress[name] for name in ("step", "epoch", "position")}))  # as older ones are
    said = []
    assert torch.equal(trained(tmp_path / "stopped", 4, chooses(CHOSEN, said)), whole)
    assert "plain" in said[0]
    assert not torch.equal(trained(None, 4, chooses({})), whole), "the fast way rounds and drops otherwise"


def test_plain_and_fast_trainings_agree_without_dropout():
    plain, fast = (trained(None, 5, start, P_drop=0.0) for start in (Run, chooses({})))
    assert (fast - plain).abs().mean() < 1e-5  # the mean: Adam's step is large even where a gradient is all but 0


SHORT = "train --corpus grammar --preset tiny --d_model 16 --d_ff 16 --h 2 --steps 2 --warmup 2 --source_tokens 300 --target_tokens 300 --score 0"


@pytest.mark.parametrize("options, line", [([], True), (["--plain"], False), (["--output_bias", "true"], False)])
def test_the_command_line_says_how_it_trains(options, line, tmp_path, capsys, few_pairs):
    assert main([*SHORT.split(), "--device", "cpu", "--out", str(tmp_path / "model"), *options]) == 0
    assert ("without padding" in capsys.readouterr().err) == line
    notes = json.loads((list_checkpoints(tmp_path / "model")[-1] / "progress.json").read_text())["notes"]
    assert notes.get("onednn") == ({} if line else None), "a model of few weights is not calibrated"


@pytest.mark.parametrize("d_ff, sizes", [(512, True), (256, False)])
def test_only_a_model_of_many_weights_is_calibrated(d_ff, sizes):
    given = []
    model = Transformer(replace(BASE, N=1, d_model=256, d_ff=d_ff, h=4, vocab=1000))
    assert (sum(p.numel() for p in model.parameters()) >= 1_500_000) == sizes
    CPURun(model, optimizer(model), None, rows=77, choose=lambda these, rows: given.append((these, rows)) or {}).resume(1)
    assert [(bool(these), rows) for these, rows in given] == [(sizes, 77)]


def test_plain_and_fast_exclude_each_other(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*SHORT.split(), "--out", str(tmp_path / "model"), "--plain", "--fast"])
    assert "not allowed" in capsys.readouterr().err


def test_where_nothing_is_left_to_onednn_it_is_not_named(monkeypatch):
    monkeypatch.setattr(cpu, "_onednn", lambda: F.linear)
    assert cpu._said(LinearMaps({})).endswith("products by torch's default library")
    monkeypatch.setattr(cpu, "_onednn", lambda: None)
    assert cpu._said(LinearMaps({"31x38": ["forward"]})).endswith("products by torch's default library")
