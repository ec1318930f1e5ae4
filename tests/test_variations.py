"""Chapter 17: the rows of Table 3 by name, other scores in every head, and the interval of one more training."""

import json
import math
import os
import statistics
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from programs import BENCHMARKS, loaded
from shapes import checked, unseen

from annotated import variations
from annotated.attention import scaled_dot_product_attention
from annotated.decoding import Translator, beam_search, greedy
from annotated.grammar import grammar_corpus
from annotated.training import Recipe
from annotated.transformer import BASE, TINY, Config
from annotated.variations import (
    _PRE_NORM,
    _RELEASED_PRESETS,
    _SCORES,
    _T_975,
    TABLE_3,
    Variation,
    _AdditiveHeads,
    _BilinearHeads,
    _mean_interval,
    _prediction_interval,
    shrink,
)

ROOT = Path(__file__).parent.parent
B, h, T, S, d_k, d_v = 2, 3, 5, 7, 11, 13


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def heads():
    return draw(B, h, T, d_k, seed=1), draw(B, h, S, d_k, seed=2), draw(B, h, S, d_v, seed=3)


# ---- scores


@pytest.mark.parametrize("kind", [_AdditiveHeads, _BilinearHeads])
def test_the_scores_are_the_formula_for_every_pair(kind):
    torch.manual_seed(0)
    attention, (Q, K, V) = kind(h, d_k).double(), heads()
    mask = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(4)) < 0.6
    mask[0, 0, 1] = False  # a row that may attend to nothing
    with checked(variations) as seen:
        made = attention(Q, K, V, mask)
    assert not [line for line in unseen(seen, variations) if kind.__name__ in line]
    for b in range(B):
        for i in range(h):
            for t in range(T):
                row = []
                for s in range(S):
                    q, k = Q[b, i, t], K[b, i, s]
                    additive = kind is _AdditiveHeads
                    row.append(attention.v[i] @ (q + k).tanh() if additive else q @ attention.W[i] @ k / d_k**0.5)
                allowed = mask[b, 0, t]
                weights = torch.stack(row).masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0)
                assert (made[b, i, t] - weights @ V[b, i]).abs().max() < 1e-12


@pytest.mark.parametrize("name", _SCORES)
def test_every_attention_scores_with_parameters_of_its_own_which_learn(name):
    torch.manual_seed(0)
    config = replace(TINY, N=2, d_model=8, d_ff=8, h=2, vocab=11, P_drop=0.0)
    model = _SCORES[name].model(config)
    added = [m for m in model.modules() if isinstance(m, _AdditiveHeads | _BilinearHeads)]
    assert len({id(m) for m in added}) == 2 + 2 * 2
    source, target = torch.randint(4, 11, (3, 5)), torch.randint(4, 11, (3, 6))
    model(source, target).logsumexp(-1).sum().backward()
    assert all(p.grad.abs().sum() > 0 for m in added for p in m.parameters())


@pytest.mark.parametrize("name", _SCORES)
def test_cached_and_packed_search_is_the_plain_one(name):
    torch.manual_seed(1)
    model = _SCORES[name].model(replace(TINY, N=1, d_model=16, d_ff=16, h=2, vocab=13)).double().eval()
    source = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    for row, made in zip(source, greedy(model, source, max_len=6)):
        target = [1]
        row = row[row != 0][None]
        while len(target) <= 6 and target[-1] != 2:
            target.append(model(row, torch.tensor([target]))[0, -1].argmax().item())
        assert target[1:] == made
    assert beam_search(model, source, beam=1, max_len=6) == greedy(model, source, max_len=6)
    quick = Translator(model.float(), None).quick
    assert (model(source, source) - quick(source, source)).abs().max() < 1e-5


# ---- rows


def sizes_of(config):
    return asdict(config) | {"d_k": config.key_width, "d_v": config.value_width}


def test_the_rows_are_the_papers():
    table = json.loads((ROOT / "book/paper.json").read_text())["table_3"]
    assert len(table) == len(TABLE_3) == 20
    for (name, variation), row in zip(TABLE_3.items(), table, strict=True):
        built = sizes_of(variation.config)
        wanted = {k: v for k, v in row["change"].items() if k in built}
        assert {k: built[k] for k in wanted} == wanted, name
        allowed = set(row["change"]) | ({"d_k", "d_v"} if {"h", "d_model"} & set(row["change"]) else set())
        differs = {k for k, v in built.items() if v != sizes_of(BASE)[k]}
        assert differs <= allowed | ({"positions"} if row["row"] == "E" else set()), name


@pytest.mark.parametrize("name", [*TABLE_3, *_SCORES, *_PRE_NORM, *_RELEASED_PRESETS])
def test_every_variation_is_a_model_and_a_recipe(name):
    variation = (TABLE_3 | _SCORES | _PRE_NORM | _RELEASED_PRESETS)[name]
    assert set(variation.changes) <= {f.name for f in fields(Config)}
    Recipe(**variation.recipe)
    config = replace(shrink(variation.config), vocab=17)
    logits = variation.model(config)(torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]]))
    assert logits.shape == (1, 2, 17) and logits.isfinite().all()


def test_a_variation_cannot_be_changed_by_accident():
    with pytest.raises(AttributeError):
        TABLE_3["base"].changes = {}
    assert Variation().changes is not Variation().changes


def test_equal_variations_have_one_hash():
    one, other = (Variation({"N": 2}, {"rate": 2.0}) for _ in range(2))
    assert {one: "found"}[other] == "found" and one not in {Variation({"N": 4}): 1}


def test_other_scores_and_attention_dropout_are_not_combined_in_silence():
    row = replace(next(iter(_SCORES.values())), changes={"P_drop_attention": 0.5})
    with pytest.raises(ValueError, match="P_drop_attention must be 0"):
        row.model(replace(shrink(row.config), vocab=17))


def test_shrink_divides_sizes_and_nothing_else():
    small = shrink(replace(BASE, d_k=16, vocab=31), width=4, depth=3)
    assert small == replace(BASE, N=2, d_model=128, d_ff=512, d_k=4, vocab=31)
    assert small.value_width == 16 and shrink(BASE).key_width == 8
    assert shrink(replace(BASE, d_v=24)).d_v == 3
    assert shrink(replace(BASE, N_decoder=4)).N_decoder == 2
    with pytest.raises(ValueError, match="d_model=512 cannot be divided by 7"):
        shrink(BASE, width=7)
    with pytest.raises(ValueError, match="width must be at least 1, not 0"):
        shrink(BASE, width=0)
    with pytest.raises(ValueError, match="N=6 cannot be divided by 4"):
        shrink(BASE, depth=4)


# ---- the interval


def test_the_interval_is_the_textbooks():
    values = [3.0, 5.0, 4.0, 7.0, 1.0]
    low, high = _prediction_interval(values)
    reach = 2.776 * statistics.stdev(values) * (1 + 1 / 5) ** 0.5
    assert abs(low - (4 - reach)) < 1e-9 and abs(high - (4 + reach)) < 1e-9
    assert _prediction_interval([2.0, 2.0]) == (2.0, 2.0)


def test_the_interval_of_a_mean_is_the_textbooks():
    values = [0.048, 0.079, 0.032, 0.055]
    reach = 3.182 * statistics.stdev(values) / 2
    assert _mean_interval(values) == pytest.approx((0.0535 - reach, 0.0535 + reach), rel=1e-12)


@pytest.mark.parametrize("count", [0, 1, 12])
@pytest.mark.parametrize("interval", [_prediction_interval, _mean_interval])
def test_too_few_or_too_many_values_are_refused(interval, count):
    with pytest.raises(ValueError, match=f"values must be 2 to 11 numbers, got {count}"):
        interval([1.0] * count)


def test_the_factors_fall_towards_the_normal_distributions():
    assert all(a > b > 1.96 for a, b in zip(_T_975[1:], _T_975[2:]))


# ---- the benchmark


@pytest.fixture
def script():
    return loaded(BENCHMARKS / "17_variations.py")


def options(script, **more):
    from argparse import Namespace

    usual = {"steps": 1500, "warmup": 200, "rate": 0.5, "tokens": 1500, "norm": None, "rates": [],
             "keep": 1, "save_every": None}
    return Namespace(**(usual | more))


def test_a_preset_changes_the_reduced_recipe_by_the_papers_factors(script):
    base = script.small_recipe(TABLE_3["base"], options(script))
    v3 = script.small_recipe(_RELEASED_PRESETS["t2t_v3"], options(script))
    assert (base.warmup, base.rate, base.beta2, base.source_tokens) == (200, 0.5, 0.98, 1500)
    assert (v3.warmup, v3.rate, v3.beta2) == (400, 1.0, 0.997)
    assert v3.source_tokens == v3.target_tokens == 1500 * 8 * 4096 // 25000
    assert script.small_recipe(None, options(script)) == base


@pytest.fixture
def inside():
    return loaded(BENCHMARKS / "05_inside.py")


def test_the_scale_inside_is_the_papers_at_the_root_and_else_another(inside):
    scaled, POWERS = inside.scaled, {"none": 0.0, "root": 0.5, "d_k": 1.0}
    torch.manual_seed(0)
    Q, K, V = (torch.randn(3, 5, 7, 11, dtype=torch.double) for _ in range(3))
    found = {name: scaled(power, Q, K, V) for name, power in POWERS.items()}
    for name, divisor in (("none", 1), ("root", 11**0.5), ("d_k", 11)):
        torch.testing.assert_close(found[name], (Q @ K.mT / divisor).softmax(-1) @ V)
    torch.testing.assert_close(found["root"], scaled_dot_product_attention(Q, K, V))


def test_rows_of_the_inside_have_the_power_they_say(inside):
    for row, power in (("scale none d_k=64", 0.0), ("scale root d_k=64", 0.5), ("scale d_k d_k=64", 1.0)):
        assert inside.ROWS[row].power == power and inside.ROWS[row].config == {"d_k": 64}
    assert {row.removeprefix("scale none ") for row in inside.ROWS if "none" in row} == {f"d_k={d}" for d in (16, 64, 256)}


def test_rows_without_a_part_lack_it_and_are_cached_alike(inside):
    source, target = torch.randint(4, 50, (3, 7)), torch.randint(4, 50, (3, 5))
    for row in ("no FFN", "no residual N=2", "scale none d_k=16"):
        model = inside.ROWS[row].model(50).double().eval()
        logits, state = model(source, target), model.start(source)
        for t in range(5):
            step, state = model.step(target[:, t], state)
            torch.testing.assert_close(step, logits[:, t])
    bare = inside.ROWS["no residual N=2"].model(50).double().eval()
    x = torch.randn(2, 3, bare.config.d_model, dtype=torch.double)
    for layer in inside.layers_of(bare):
        gone = [part(x, torch.zeros_like) for part in layer.add_norm]
        assert all(torch.equal(y, torch.zeros_like(x)) for y in gone), "nothing of x is left where a sub-layer adds 0"
    less, base = (sum(p.numel() for p in inside.ROWS[row].model(50).parameters()) for row in ("no FFN", "base"))
    assert base - less == 4 * (2 * 64 * 256 + 64 + 256)


def test_positions_differ_from_row_E_in_what_they_say(script):
    from annotated.embedding import positional_encoding

    learned, sines, fixed = (
        script.build(row, 50, 0, 8, 2, "pre") for row in ("E learned", "positions from sines", "positions random fixed"))
    rows = {name: model.positions.weight for name, model in (("learned", learned), ("sines", sines), ("fixed", fixed))}
    torch.testing.assert_close(rows["sines"], positional_encoding(torch.arange(len(rows["sines"])), 64))
    assert torch.equal(rows["fixed"], rows["learned"]) and not torch.equal(rows["sines"], rows["learned"])
    assert [row.requires_grad for row in rows.values()] == [True, True, False]
    base = script.build("base", 50, 0, 8, 2, "pre")
    assert base.positions is not learned.positions and not list(getattr(base.positions, "parameters", list)())
    for model in (sines, fixed):  # all else is row E's
        same = dict(learned.named_parameters())
        assert all(torch.equal(p, same[name]) for name, p in model.named_parameters() if name != "positions.weight")


def test_a_training_is_a_file_that_is_made_once(script, tmp_path, monkeypatch):
    corpus = grammar_corpus(150, 20, 1)
    monkeypatch.setattr(script, "load_corpus", lambda name: corpus)
    told = "--norm pre --rates 0.5 1 --trial 4 --steps 20 --warmup 4 --vocab 350 --width 16 --depth 6 --seeds 3 --tokens 300"
    told = [*told.split(), "--row", "D P_drop=0.0", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert script.main(told) == 0
    (path,) = (tmp_path / "out/runs").glob("*.json")
    made, curve = json.loads(path.read_text()), json.loads(path.read_text())["curve"]
    assert (made["row"], made["recipe"]["seed"], made["config"]["P_drop"], made["config"]["norm"]) == (
        "D P_drop=0.0", 3, 0.0, "pre")
    assert [line["step"] for line in curve] == list(range(2, 21, 2))
    for name in ("perplexity", "training_perplexity"):
        assert made[name] == curve[-1][name] < curve[0][name]
    assert made["training_perplexity"] != made["perplexity"] and "averages" not in made
    tried = json.loads((tmp_path / "out/scores.json").read_text())["perplexity of base after a trial"]
    assert str(made["recipe"]["rate"]) == min(tried, key=tried.get)
    before = path.stat().st_mtime_ns
    assert script.main(told) == 0 and path.stat().st_mtime_ns == before


def test_means_of_the_last_checkpoints_are_measured_as_the_last_one_is(script, tmp_path, monkeypatch):
    corpus = grammar_corpus(150, 20, 1)
    monkeypatch.setattr(script, "load_corpus", lambda name: corpus)
    monkeypatch.setattr(script, "AVERAGED", (1, 3, 20))
    told = "--norm pre --steps 20 --warmup 4 --vocab 350 --width 16 --depth 6 --seeds 3 --tokens 300 --keep 3 --save_every 4"
    told = [*told.split(), "--row", "base", "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
    assert script.main(told) == 0
    (path,) = (tmp_path / "out/runs").glob("*.json")
    made = json.loads(path.read_text())
    assert list(made["averages"]) == ["1", "3"], "no more than there are"
    alone = made["averages"]["1"]
    assert all(alone[name] == pytest.approx(made[name], rel=1e-4) for name in ("perplexity", "accuracy", "bleu"))
    assert made["averages"]["3"]["perplexity"] != alone["perplexity"]
    assert (made["recipe"]["keep"], made["recipe"]["save_every"]) == (3, 4)


def runs_made(script, tmp_path, monkeypatch):
    "Ask for a run of base; the names of those that were made."
    made, out = [], tmp_path / "out"
    (out / "runs").mkdir(parents=True)

    def one_run(row, seed, *_):
        made.append(script.slug(row, seed))
        return {"perplexity": 1.0, "bleu": 1.0}

    monkeypatch.setattr(script, "one_run", one_run)
    script.unless_made("base", 0, None, None, options(script, cache=tmp_path / "cache", out=out))
    return made


def test_a_run_that_another_process_has_is_left_to_it(script, tmp_path, monkeypatch):
    with script.alone(tmp_path / "cache/base-0.lock") as ours:
        assert ours and not runs_made(script, tmp_path, monkeypatch)


def test_a_file_that_a_killed_process_has_left_stops_no_run(script, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    for end in ("pid", "lock"):  # what a process had that was called as this one is
        (tmp_path / f"cache/base-0.{end}").write_text(str(os.getpid()))
    assert runs_made(script, tmp_path, monkeypatch) == ["base-0"]


def test_a_run_that_ends_elsewhere_while_this_process_takes_its_lock_is_not_made_again(script, tmp_path, monkeypatch):
    @contextmanager
    def late(path):
        (tmp_path / "out/runs/base-0.json").write_text("{}")
        yield True

    monkeypatch.setattr(script, "alone", late)
    assert not runs_made(script, tmp_path, monkeypatch)


def test_a_row_inside_is_left_to_the_process_that_has_it(inside, tmp_path, monkeypatch):
    made, given = [], options(inside, out=tmp_path, seeds=[0])
    monkeypatch.setattr(inside, "best_rate", lambda *_: 1.0)
    monkeypatch.setattr(inside, "one_run", lambda name, *_: made.append(name))
    (tmp_path / "trials").mkdir()
    for end in ("pid", "lock"):
        (tmp_path / f"trials/base.{end}").write_text(str(os.getpid()))
    inside.unless_taken("base", None, Recipe(), given)
    with inside.alone(tmp_path / "trials/base.lock") as ours:
        inside.unless_taken("base", None, Recipe(), given)
    assert ours and made == ["base"] and not list(tmp_path.glob("trials/*.lock"))


def test_with_a_norm_for_all_the_usual_rows_are_table_3s(script):
    assert script.usual_rows("pre") == list(TABLE_3)
    assert {"additive", "recurrent", "pre-norm base", *TABLE_3} < set(script.usual_rows(None))
    assert not {"no FFN", "residual N=2"} & set(script.usual_rows(None))


def test_every_row_has_a_file_name_of_its_own(script):
    names = {script.slug(row, seed) for row in script.ROWS for seed in (0, 1)}
    assert len(names) == 2 * len(script.ROWS)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") for name in names)


@pytest.mark.parametrize("path", sorted((ROOT / "results/17-variations/runs").glob("*.json")), ids=lambda p: p.stem)
def test_each_run_of_the_record_is_what_its_name_says(script, path):
    run = json.loads(path.read_text())
    assert path.stem == script.slug(run["row"], run["recipe"]["seed"])
    torch.manual_seed(0)
    model = script.build(run["row"], run["config"]["vocab"], 0)
    built = asdict(model.config)
    if run["row"] != "recurrent":  # the record states what follows from other fields, too
        built = sizes_of(model.config) | {"final_norm": model.config.last_norm}
    assert run["config"].items() <= built.items()  # fields may have been added since
    assert sum(p.numel() for p in model.parameters()) == run["parameters"]
    assert run["epochs"] >= 10 and run["curve"][-1]["step"] == run["recipe"]["steps"]


def test_a_record_begun_before_a_field_came_is_gone_on_with_and_another_is_not(script, tmp_path):
    corpus = SimpleNamespace(name="c", licence="l", provenance={}, train=[], validation=[])
    words = type("Subwords", (), {"model": b"m", "__len__": lambda self: 50})()
    record, path = options(script, out=tmp_path, width=8, depth=2), tmp_path / "run.json"
    script.begin(record, corpus, words)
    begun = json.loads(path.read_text())
    del begun["config"]["output_bias"]
    path.write_text(json.dumps(begun))
    script.begin(record, corpus, words)
    for name, field, value in (("config", "output_bias", True), ("recipe", "rate", 0.7)):
        other = begun | {name: begun[name] | {field: value}}
        path.write_text(json.dumps(other))
        with pytest.raises(ValueError, match=f"was begun with {field}="):
            script.begin(record, corpus, words)


def test_by_one_nothing_is_made_smaller():
    assert shrink(BASE, width=1, depth=1) == BASE


def test_rows_can_be_keys_of_a_table():
    assert len({Variation(): 1, Variation(recipe={"beta2": 0.9}): 2, TABLE_3["big"]: 3}) == 3


@pytest.mark.parametrize("freedom", range(1, len(_T_975)))
def test_the_factors_are_those_of_students_distribution(freedom):
    area = torch.linspace(0, _T_975[freedom], 100_001, dtype=torch.double)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    density = scale * (1 + area**2 / freedom) ** (-(freedom + 1) / 2)
    assert torch.trapezoid(density, area).item() == pytest.approx(0.475, abs=2e-5)


def test_eleven_values_have_an_interval():
    low, high = _mean_interval(range(11))
    assert low + high == pytest.approx(10) and high - 5 == pytest.approx(2.228)


@pytest.mark.parametrize(("kind", "weights"), [(_AdditiveHeads, "v"), (_BilinearHeads, "W")])
def test_scores_begin_as_large_whatever_the_width(kind, weights):
    torch.manual_seed(0)
    for d_k in (4, 256):
        assert getattr(kind(64, d_k), weights).std().item() * math.sqrt(d_k) == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("name", ["t2t_v1", "t2t_v3"])
def test_the_released_presets_read_as_much_on_a_side_as_eight_gpus_do(name):
    assert {_RELEASED_PRESETS[name].recipe[side] for side in ("source_tokens", "target_tokens")} == {8 * 4096}
