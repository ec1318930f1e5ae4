"""The explorers with the live model: what they show is what Python computes with the same weights, rounded to bytes."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from explore import FOLDER, alive, browser, needs, node, with_browser, with_node  # noqa: F401
from test_in_page import EVERYDAY, exported, reference

from annotated.decoding import _beam_step, _Beams, _select, _widen, cannot_improve, length_penalty

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

NAME = "tatoeba-cpu"
START = "When did she get married?"


def weights() -> Path:
    return exported() / "models" / f"{NAME}.js"


def asked(name, expression, given=None):
    "The value of an expression over an explorer's exports `it`, the live `model` and what is `given`."
    import browsers

    body = f"""
      globalThis.HTMLElement ??= class {{}};
      globalThis.customElements ??= {{ define() {{}} }};
      {"".join(f"require({json.dumps(str(FOLDER / f'{script}.js'))});" for script in needs(name))}
      const it = require({json.dumps(str(FOLDER / f"{name}.js"))});
      const inner = new engine.Transformer(annotated.weights[{json.dumps(NAME)}]);
      const model = {{ config: inner.config, translate: (text, options) => engine.translate(inner, text, options),
        trace: (text, options) => engine.trace(inner, text, options) }};
      const value = await ({expression});
      return JSON.parse(JSON.stringify(value, (_, x) => ArrayBuffer.isView(x) ? Array.from(x) : x));
    """
    return browsers.node(body, [FOLDER / "engine.js", weights()], given)


def plain(said: str) -> float:
    "A number as the page writes it."
    return float(said.replace("\u2212", "-").replace(",", ""))


def same(found, wanted, where=""):
    "Equal but for the last digits."
    assert type(found) is type(wanted) or {type(found), type(wanted)} == {int, float}, where
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key in wanted:
            same(found[key], wanted[key], f"{where}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            same(a, b, f"{where}.{i}")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=2e-3, rel=1e-3), where
    else:
        assert found == wanted, where


@with_node
@pytest.mark.parametrize("name", ["beam"])
def test_what_stands_first_is_what_the_model_says(name):
    import first

    text = (FOLDER / f"{name}-first.js").read_text(encoding="utf-8")
    same(json.loads(text[text.index("] = ") + 4 : text.rindex(";")]), first.first(name, weights()), name)


def untouched(page):
    "Whether the page has neither asked for the weights nor started to."
    return page.evaluate("!annotated.weights && ![...document.scripts].some((one) => one.src.includes('models/'))")


def give_weights(page):
    "The script of the weights, which does not lie beside the sources; tests/test_in_page.py sees it fetched."
    page.set_default_timeout(120_000)
    page.add_script_tag(path=weights())


def answered(page):
    "Wait until the model has answered, and see that it did."
    page.wait_for_timeout(150)
    page.wait_for_function("!document.querySelector('.explorer').matches('.waiting') || /cannot/.test(document.querySelector('.status').textContent)")
    assert page.locator(".status").inner_text() == ""


# ---- chapter 11: beam

@torch.inference_mode()
def searched(text, beam, alpha):
    "Each step of Python's search: its hypotheses as {ids: (log P, score)}, the best score, what is attainable, over."
    model, vocabulary = reference(NAME).model, reference(NAME).vocabulary
    source = torch.tensor([vocabulary.encode(text)])
    limit = source.shape[1] + 50
    beams = _Beams(torch.tensor([0]), beam, torch.tensor([limit]), partial(length_penalty, alpha=alpha))
    state = _widen(model.start(source), beams.sources, beam)
    ids = torch.full((1, beam), 1)
    steps = []
    while True:
        parent, state = _beam_step(model, beams, ids, state)
        ids = beams.tokens[..., -1]
        state = _select(state, parent[0])
        done, log_p, score = beams.done[0].tolist(), beams.log_p[0].tolist(), beams.score[0].tolist()
        rows = beams.tokens[0].tolist()
        found = {}
        for i in range(beam):
            if log_p[i] > -torch.inf:
                found[tuple(rows[i][: beams.lengths[0, i]] if done[i] else rows[i])] = (log_p[i], score[i] if done[i] else None)
        seen = []
        over = beams.over(lambda best, attainable: (seen.append((best.item(), attainable.item())), cannot_improve(best, attainable))[1])  # noqa: B023
        steps.append((found, *seen[0], over.item()))
        if over:
            return steps, limit


@with_node
@pytest.mark.parametrize("beam, alpha", [(1, 0.6), (2, 0.6), (4, 0.0), (5, 1.4), (8, 0.6)])
def test_a_search_is_pythons(beam, alpha):
    """Log-probabilities, scores, what is attainable and when it is over, after every step."""
    texts = [START, *EVERYDAY[:6]]
    expression = """Promise.all(given.texts.map(async (text) => {
      const found = await it.search(model, text, given);
      return { ...found, verdicts: found.steps.map(({ hypotheses }, t) => it.verdict(hypotheses, t + 1, found.limit, given.alpha)) };
    }))"""
    for text, found in zip(texts, asked("beam", expression, {"texts": texts, "beam": beam, "alpha": alpha}), strict=True):
        steps, limit = searched(text, beam, alpha)
        assert found["limit"] == limit and len(found["steps"]) == len(steps)
        for there, verdict, (wanted, best, attainable, over) in zip(found["steps"], found["verdicts"], steps, strict=True):
            got = {tuple(one["ids"]): (one["logP"], one["score"]) for one in there["hypotheses"]}
            assert got.keys() == wanted.keys()
            for ids, (log_p, score) in wanted.items():
                assert got[ids] == (pytest.approx(log_p, abs=1e-4), score if score is None else pytest.approx(score, abs=1e-4))
            assert verdict["over"] == over
            assert verdict["best"] == (None if best == -torch.inf else pytest.approx(best, abs=1e-4))
            assert verdict["attainable"] == (None if attainable == -torch.inf else pytest.approx(attainable, abs=1e-4))


@with_node
def test_candidates_are_the_likeliest_and_the_best_are_kept():
    found = asked("beam", "it.search(model, given, { beam: 3, alpha: 0.6 })", START)
    model, vocabulary = reference(NAME).model, reference(NAME).vocabulary
    source = torch.tensor([vocabulary.encode(START)])
    before = [{"ids": [], "logP": 0.0, "score": None}]
    for step in found["steps"]:
        alive_ = [(i, one) for i, one in enumerate(before) if one["score"] is None]
        with torch.inference_mode():
            rows = model(source.expand(len(alive_), -1), torch.tensor([[1, *one["ids"]] for _, one in alive_]))[:, -1].log_softmax(-1)
        total = torch.tensor([one["logP"] for _, one in alive_])[:, None] + rows
        best = total.flatten().topk(5)
        for candidate, value, index in zip(step["candidates"], best.values.tolist(), best.indices.tolist(), strict=False):
            row, token = divmod(index, rows.shape[1])
            assert (candidate["parent"], candidate["id"]) == (alive_[row][0], token)
            assert candidate["logP"] == pytest.approx(value, abs=1e-4)
            assert candidate["p"] == pytest.approx(rows[row, token].exp().item(), abs=1e-5)
        places = 3 - (len(before) - len(alive_))
        assert [one["kept"] for one in step["candidates"]] == [i < places for i in range(len(step["candidates"]))]
        before = step["hypotheses"]


@with_node
def test_the_tree_joins_what_belongs_together():
    steps, boxes, way = asked("beam", """it.search(model, given, { beam: 4, alpha: 0.6 })
      .then(({ steps }) => [steps, it.boxes(steps, steps.length), it.winner(steps)])""", EVERYDAY[0])
    for box in boxes:
        before = steps[box["step"] - 2]["hypotheses"] if box["step"] > 1 else [{"ids": [], "score": None}]
        parent = before[box["parent"]]
        assert (box["kind"] == "waiting") == (parent["score"] is not None)
        if box["kind"] in ("kept", "finished"):
            one = steps[box["step"] - 1]["hypotheses"][box["row"]]
            assert one["ids"][:-1] == parent["ids"] and (one["score"] is None) == (box["kind"] == "kept")
            assert box["logP"] == one["logP"]
        if box["kind"] == "dropped":
            assert box["row"] >= len(steps[box["step"] - 1]["hypotheses"])
    best = max((one for one in steps[-1]["hypotheses"] if one["score"] is not None), key=lambda one: one["score"])
    for t, place in enumerate(way):
        one = steps[t]["hypotheses"][place]
        assert one["ids"] == best["ids"][: len(one["ids"])]


def rows(page, which):
    script = "(tables, i) => [...tables[i].querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    return page.eval_on_selector_all(".readings", script, which)


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_a_beam_is_stepped_and_widened_by_keyboard(alive, width):  # noqa: F811
    page = alive("beam", width)
    found, *_ = searched(START, 2, 0.6)[0][3]
    kept = [row for row in rows(page, 0) if row[3]]
    assert [plain(row[2]) for row in kept] == sorted((round(p, 2) for p, _ in found.values()), reverse=True)
    assert page.locator(".where").inner_text() == "step 4 of 7"
    page.get_by_role("button", name="Forward").press("Enter")
    assert page.locator(".where").inner_text() == "step 5 of 7"
    page.get_by_role("button", name="Play").press("Enter")  # under reduced motion: to the end
    assert page.locator(".where").inner_text() == "step 7 of 7"
    assert page.locator(".verdict").inner_text().startswith("It stops")
    assert untouched(page)
    give_weights(page)
    for _ in range(3):
        page.get_by_role("button", name="Back").press("Enter")
    page.get_by_role("slider", name="Width").press("ArrowRight")
    answered(page)
    found, *_ = searched(START, 3, 0.6)[0][3]
    assert [plain(row[2]) for row in rows(page, 0) if row[3]] == sorted((round(p, 2) for p, _ in found.values()), reverse=True)
    page.get_by_role("slider", name="α").press("End")
    page.get_by_role("textbox").fill(EVERYDAY[1])
    answered(page)
    steps, _ = searched(EVERYDAY[1], 3, 2.0)
    assert page.locator(".where").inner_text() == f"step {len(steps)} of {len(steps)}"
    best = max(score for _, score in steps[-1][0].values() if score is not None)
    assert plain(rows(page, 1)[0][4]) == round(best, 3)
    page.get_by_role("textbox").fill("")
    page.wait_for_timeout(200)
    assert page.locator(".status").inner_text() == "Write an English sentence."
