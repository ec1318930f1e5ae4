"""The explorers with the live model: what they show is what Python computes with the same weights, rounded to bytes."""

import json
import random
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from explore import FOLDER, node, with_browser, with_node
from explorers import computing, program
from test_in_page import EVERYDAY, exported, reference

from annotated.decoding import _beam_step, _Beams, _select, _widen, cannot_improve, greedy, length_penalty, save
from annotated.embedding import positional_encoding
from annotated.figures import attention_maps, without_head
from annotated.page import to_page
from annotated.transformer import TINY, Config, Transformer

NAME = "tatoeba-en-de"
FIGURE_1 = "tatoeba-cpu"  # normalises after each sub-layer, as chapter 7's explorer draws it
START = "What are you thinking of?"
PAIR = "The dog sees the cat."  # what FIGURE_1 begins with


def weights(explorer) -> Path:
    return exported() / "models" / f"{FIGURE_1 if explorer == 'model' else NAME}.js"


def asked(name, expression, given=None):
    "The value of an expression over an explorer's exports `it`, the live `model` and what is `given`."
    import browsers

    body = f"""
      {program(name)}
      {computing(weights(name))}
      const value = await ({expression});
      return JSON.parse(JSON.stringify(value, (_, x) => ArrayBuffer.isView(x) ? Array.from(x) : x));
    """
    return browsers.node(body, [FOLDER / "engine.js"], given)


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
        assert found == pytest.approx(wanted, abs=1e-4, rel=1e-4), where  # less than is shown
    else:
        assert found == wanted, where


@with_node
@pytest.mark.parametrize("name", ["beam", "model", "without"])
def test_what_stands_first_is_what_the_model_says(name):
    import first

    text = (FOLDER / f"{name}-first.js").read_text(encoding="utf-8")
    same(json.loads(text[text.index("] = ") + 4 : text.rindex(";")]), first.first(name, weights(name)), name)


def untouched(page):
    "Whether the page has neither asked for the weights nor started to."
    return page.evaluate("!annotated.weights && ![...document.scripts].some((one) => one.src.includes('models/'))")


def give_weights(page, explorer):
    "The script of the weights, which does not lie beside the sources; tests/test_in_page.py sees it fetched."
    page.set_default_timeout(120_000)
    page.add_script_tag(path=weights(explorer))


def answered(page):
    "Wait until the model has answered, and see that it did."
    page.wait_for_timeout(150)
    page.wait_for_function("!document.querySelector('.explorer').matches('.waiting') || /cannot/.test(document.querySelector('.status').textContent)")
    assert page.locator(".status").inner_text() == ""


@with_browser
@pytest.mark.parametrize("name", ["beam", "model", "without"])
def test_where_no_model_is_fetched_that_is_said_and_what_was_there_stays(alive, name):
    still = (FOLDER.parent.parent / "img/figure-1.svg").read_text(encoding="utf-8")
    page = alive(name, **({"inside": still} if name == "model" else {}))
    seen = "document.querySelector('.explorer :is(.tree, .panel, .result)').textContent"
    before = page.evaluate(seen)
    page.evaluate("() => { annotated.load = async () => { throw new Error('no weights'); }; }")
    page.get_by_role("textbox").fill(EVERYDAY[1])
    page.wait_for_function("/cannot .*no weights/.test(document.querySelector('.told').textContent)")
    assert "no weights" in page.locator(".status").inner_text() and page.evaluate(seen) == before != ""


@with_browser
def test_that_a_sentence_is_cut_is_told_once(alive):
    page = alive("without", 1280)
    give_weights(page, "without")
    part = "document.querySelector('.status [aria-live=polite]').textContent"
    page.evaluate("""() => { window.told = 0;
      new MutationObserver((all) => { told += all.length; }).observe(document.querySelector('.status [aria-live=polite]'),
        { childList: true, characterData: true, subtree: true }); }""")
    for sentence in ("The quick brown fox " * 8, "The quick brown fox " * 7):
        page.get_by_role("textbox").fill(sentence)
        page.wait_for_timeout(150)
        page.wait_for_function("!document.querySelector('.explorer').matches('.waiting')")
        assert page.evaluate(part) == "Only the first 40 tokens are read." == page.locator(".status").inner_text()
    assert page.evaluate("told") == 1
    page.get_by_role("textbox").fill("I am tired.")
    answered(page)
    assert page.evaluate(part) == ""


# ---- chapter 11: beam

@torch.inference_mode()
def searched(text, beam, alpha):
    "Each step of Python's search: its hypotheses as {ids: (log P, score)}, the best score, what is attainable, over."
    model, vocabulary = reference(NAME).model, reference(NAME).vocabulary
    source = torch.tensor([vocabulary.encode(text)])
    limit, penalty = torch.tensor([source.shape[1] + 50]), partial(length_penalty, alpha=alpha)
    beams = _Beams(torch.tensor([0]), beam, limit, penalty(limit), penalty)
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
            return steps, limit.item()


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
@pytest.mark.parametrize("text, beam", [(EVERYDAY[0], 4), (START, 2), ("Tom is not as old as Mary.", 5)])  # some of the last go on
def test_the_tree_joins_what_belongs_together(text, beam):
    steps, boxes, way = asked("beam", """it.search(model, given.text, { beam: given.beam, alpha: 0.6 })
      .then(({ steps }) => [steps, it.boxes(steps, steps.length), it.winner(steps)])""", {"text": text, "beam": beam})
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
    assert text != START or 1 in way  # the chapter's search, in which the second overtakes the first


@with_node
def test_pieces_that_are_bytes_are_read_as_letters():
    "No piece of the model's has an umlaut as a capital."
    text, spelt, tokens = asked("beam", """model.translate(given, { beam: 4, alpha: 0.6 })
      .then(({ text, tokens }) => [text, globalThis.annotated.live.written(tokens.target), tokens.target])""", "Austria is beautiful.")
    assert any(token.startswith("<0x") for token in tokens), "this sentence no longer needs bytes: choose another"
    assert spelt == text and "Ö" in text
    assert node("live", 'it.shown("\u2581")') == "␣"


def rows(page, which):
    script = "(tables, i) => [...tables[i].querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    return page.eval_on_selector_all(".readings", script, which)


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_a_beam_is_stepped_and_widened_by_keyboard(alive, width):
    page = alive("beam", width)
    steps, _ = searched(START, 2, 0.6)
    found, *_ = steps[3]
    kept = [row for row in rows(page, 0) if row[3]]
    assert [plain(row[2]) for row in kept] == sorted((round(p, 2) for p, _ in found.values()), reverse=True)
    assert page.locator(".where").inner_text() == f"step 4 of {len(steps)}"
    page.get_by_role("button", name="Forward").press("Enter")
    assert page.locator(".where").inner_text() == f"step 5 of {len(steps)}"
    page.get_by_role("button", name="Play").press("Enter")  # under reduced motion: to the end
    assert page.locator(".where").inner_text() == f"step {len(steps)} of {len(steps)}"
    assert page.locator(".verdict").inner_text().startswith("It stops")
    assert untouched(page)
    give_weights(page, "beam")
    for _ in range(len(steps) - 4):
        page.get_by_role("button", name="Back").press("Enter")
    page.get_by_role("slider", name="Width").press("ArrowRight")
    answered(page)
    found, *_ = searched(START, 3, 0.6)[0][3]
    assert [plain(row[2]) for row in rows(page, 0) if row[3]] == sorted((round(p, 2) for p, _ in found.values()), reverse=True)
    page.get_by_role("slider", name="Length penalty α").press("End")
    page.get_by_role("textbox").fill(EVERYDAY[1])
    answered(page)
    steps, _ = searched(EVERYDAY[1], 3, 2.0)
    assert page.locator(".where").inner_text() == f"step {len(steps)} of {len(steps)}"
    best = max(score for _, score in steps[-1][0].values() if score is not None)
    assert plain(rows(page, 1)[0][4]) == round(best, 3)
    page.get_by_role("textbox").fill("")
    page.wait_for_timeout(200)
    assert page.locator(".status").inner_text() == "Write an English sentence."


# ---- chapter 7: model

def greedy_of(text):
    "Identifiers of a text and of the greedy translation of it."
    translator = reference(FIGURE_1)
    source = torch.tensor([translator.vocabulary.encode(text)])
    return source, greedy(translator.model, source)[0]


@torch.inference_mode()
def inside(source, written):
    "What the modules of Python's model computed: (box, part, layer) -> rows, with an axis of heads where there is one."
    model, seen, hooks = reference(FIGURE_1).model, {}, []
    for name, module in model.named_modules():
        if name.rsplit(".", 1)[-1] in ("W_Q", "W_K", "W_V", "W_O", "W_2") or name.rsplit(".", 2)[-2:-1] == ["add_norm"]:
            hooks.append(module.register_forward_hook(lambda _, given, out, name=name: seen.update({name: (given[0][0], out[0])})))
    target = torch.tensor([[1, *written[:-1]]])
    logits = model(source, target)[0]
    for hook in hooks:
        hook.remove()
    config, found = model.config, {}
    split = lambda x: x.unflatten(-1, (config.h, -1))  # noqa: E731
    maps = attention_maps(model, source, target)
    depth = {"encoder": config.N, "decoder": config.decoder_layers}
    for n in range(config.N):
        for kind, box in (("encoder", "encoder.self_attention"), ("decoder", "decoder.self_attention"), ("cross", "decoder.cross_attention")):
            if n >= depth[box.split(".")[0]]:
                continue
            at = f"{box.split('.')[0]}.layers.{n}.{box.split('.')[1]}"
            for part in "QKV":
                found[box, part, n] = split(seen[f"{at}.W_{part}"][1])
            found[box, "heads", n] = split(seen[f"{at}.W_O"][0])
            found[box, "output", n] = seen[f"{at}.W_O"][1]
            found[box, "weights", n] = maps[kind][n][0].transpose(0, 1)  # (T, h, S)
        for stack in (name for name in depth if n < depth[name]):
            hidden, out = seen[f"{stack}.layers.{n}.feed_forward.W_2"]
            found[f"{stack}.feed_forward", "hidden", n], found[f"{stack}.feed_forward", "output", n] = hidden, out
            for i in range(2 if stack == "encoder" else 3):
                (name,) = [name for name in seen if name.startswith(f"{stack}.layers.{n}.add_norm.{i}")][:1]
                found[f"{stack}.add_norm.{i}", "output", n] = seen[name][1]
    for stack, ids in (("encoder", source[0]), ("decoder", target[0])):
        table = model.target_embedding.weight if hasattr(model, "target_embedding") else None
        found[f"{stack}.embedding", "output", 0] = table[ids] * config.d_model**0.5
        found[f"{stack}.positions", "output", 0] = positional_encoding(torch.arange(len(ids)), config.d_model)
    found["decoder.logits", "output", 0] = logits
    found["decoder.softmax", "output", 0] = logits.softmax(-1)
    return found


@with_node
@pytest.mark.parametrize("text", [PAIR, EVERYDAY[1]])
def test_every_box_shows_what_its_module_computes(text):
    source, written = greedy_of(text)
    wanted = inside(source, written)
    steps = len(written)
    expression = """(async () => {
      const found = await it.ask(model, given), out = [];
      for (const box of it.BOXES) for (const part of it.partsOf(box)) for (let layer = 0; layer < (/embedding|positions|logits|softmax/.test(box) ? 1 : found.config[box.startsWith("encoder") ? "N" : "N_decoder"]); layer++)
        for (let head = 0; head < (["weights", "Q", "K", "V", "heads"].includes(part) ? 4 : 1); head++)
          for (const step of box.startsWith("encoder") ? [0] : [1, 3, found.steps.length])
            out.push([{ box, part, layer, head, step }, it.look(found, { box, part, layer, head, step })]);
      return { out, candidates: found.steps.map(({ candidates }) => candidates.map(({ id }) => id)), said: found.said };
    })()"""
    found = asked("model", expression, text)
    assert found["said"] == reference(FIGURE_1).vocabulary.decode(written)
    kinds = set()
    for state, view in found["out"]:
        box, part, layer, head, step = (state[key] for key in ("box", "part", "layer", "head", "step"))
        rows = wanted[box, part, layer]
        kinds.add((box, part, layer))
        if rows.dim() == 3:
            rows = rows[:, head]
        if box in ("decoder.logits", "decoder.softmax"):
            ids = found["candidates"][step - 1]
            assert ids == rows[step - 1].topk(5).indices.tolist()
            rows = rows[step - 1, ids][:, None]
        elif box.startswith("encoder") or (part in "KV" and "cross" in box):
            pass
        elif part in "KV":
            rows = rows[:step]
            assert [label.endswith("(cached)") for label in view["labels"]] == [i < step - 1 for i in range(step)]
        else:
            rows = rows[step - 1 : step, : step if box == "decoder.self_attention" and part == "weights" else None]
            assert (" → " in view["labels"][0]) == (part == "weights")  # what is read, and what is written from it
        torch.testing.assert_close(torch.tensor(view["rows"], dtype=torch.float32), rows.float(), rtol=1e-4, atol=1e-4, msg=lambda m, state=state: f"{state}: {m}")
        letters = view["shape"].strip("()").split(", ")
        assert len(letters) == len(view["sizes"]) and len(view["labels"]) == len(rows)
        assert view["sizes"][-1] == (len(reference(FIGURE_1).vocabulary) if "vocab" in letters else rows.shape[1])
    assert kinds == wanted.keys() and steps > 3


@with_node
def test_the_boxes_are_those_of_figure_1():
    """In the order of the file: each rectangle or circle, with the words that stand in it."""
    import re

    text = (FOLDER.parent.parent / "img/figure-1.svg").read_text(encoding="utf-8")
    boxes = node("model", "it.BOXES")
    drawn = re.findall(r'<rect class="box" x="([\d.]+)"[^>]*/>\n<text[^>]*>(.*?)</text>', text)
    names = [name for name in boxes if not name.endswith("positions")]
    words = {"self_attention": "self-attention", "cross_attention": "cross-attention", "feed_forward": "feed-forward",
             "add_norm": "AddNorm", "embedding": "Embedding", "logits": "Embedding.logits", "softmax": "softmax"}
    assert [(name.split(".")[0], words[name.split(".")[1]]) for name in names] == [
        ("encoder" if float(x) < 180 else "decoder", re.sub(r"<.*?>|masked ", "", said)) for x, said in drawn]
    circles = [float(x) for x in re.findall(r'<circle class="box" cx="([\d.]+)"', text)]
    assert boxes[-2:] == ["encoder.positions", "decoder.positions"] and circles == sorted(circles) and len(circles) == 2


def panel(page):
    return page.eval_on_selector_all(".panel tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))")


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_the_model_is_walked_by_keyboard(alive, width):
    still = (FOLDER.parent.parent / "img/figure-1.svg").read_text(encoding="utf-8")
    page = alive("model", width, inside=still)
    source, written = greedy_of(PAIR)
    wanted = inside(source, written)
    shown = [plain(x) for x in page.locator(".panel svg .small").all_text_contents()]
    assert shown == [round(x, 2) for x in wanted["decoder.cross_attention", "weights", 1][1, 0].tolist()]
    page.get_by_label("3", exact=True).check()  # another head needs no weights
    shown = [plain(x) for x in page.locator(".panel svg .small").all_text_contents()]
    assert shown == [round(x, 2) for x in wanted["decoder.cross_attention", "weights", 1][1, 2].tolist()]
    assert untouched(page)
    give_weights(page, "model")
    page.locator(".part[aria-pressed=true]").focus()
    page.keyboard.press("ArrowUp")
    answered(page)
    assert page.locator(".part[aria-pressed=true]").get_attribute("aria-label") == "decoder: add and norm 2: AddNorm"
    assert panel(page)[0][1:5] == [f"{x:.2f}".replace("-", "\u2212") for x in wanted["decoder.add_norm.1", "output", 1][1, :4].tolist()]
    page.keyboard.press("ArrowLeft")
    assert page.locator(".part[aria-pressed=true]").get_attribute("aria-label").startswith("encoder")
    assert len(panel(page)) == source.shape[1]
    page.get_by_role("button", name="decoder: softmax").click()
    page.get_by_role("button", name="Play").press("Enter")
    assert plain(panel(page)[0][1]) == round(wanted["decoder.softmax", "output", 0][-1].max().item(), 2)
    assert "writes eos" in page.locator(".verdict").inner_text()
    assert page.locator(".verdict [lang=de]").all_inner_texts() == [page.locator(".cache").last.locator("span").last.inner_text(), "eos"]
    held = page.eval_on_selector_all(".cache", "rows => rows.map((row) => row.querySelectorAll('.held').length)")
    assert held == [source.shape[1], len(written)]
    for _ in range(len(written)):
        page.get_by_role("button", name="Back").press("Enter")
    assert page.locator(".verdict").inner_text().startswith("The encoder reads")
    assert page.eval_on_selector_all(".cache", "rows => rows.map((row) => row.querySelectorAll('.held').length)") == [0, 0]
    page.get_by_role("textbox").fill(EVERYDAY[1])
    answered(page)
    assert len(page.query_selector_all(".panel svg text.q")) == greedy_of(EVERYDAY[1])[0].shape[1]


@with_browser
def test_a_box_of_the_shallower_stack_shows_its_last_layer(alive, tmp_path):
    vocabulary = reference(FIGURE_1).vocabulary
    torch.manual_seed(0)
    save(tmp_path / FIGURE_1, Transformer(replace(TINY, vocab=len(vocabulary), N=3, N_decoder=2)), vocabulary)
    to_page(tmp_path / FIGURE_1, tmp_path / f"{FIGURE_1}.js")
    still = (FOLDER.parent.parent / "img/figure-1.svg").read_text(encoding="utf-8")
    page = alive("model", 1280, inside=still)
    page.set_default_timeout(120_000)
    page.add_script_tag(path=tmp_path / f"{FIGURE_1}.js")
    page.get_by_role("textbox").fill("Dogs bark.")
    answered(page)
    page.locator(".part[aria-label^='encoder: self attention']").click()
    page.locator("fieldset", has_text="Layer").get_by_label("3", exact=True).check()
    assert "layer 3" in page.locator(".panel p").first.inner_text()
    page.locator(".part[aria-label^='decoder: feed forward']").click()
    assert "layer 2" in page.locator(".panel p").first.inner_text()
    assert page.locator("fieldset", has_text="Layer").locator("input").count() == 2


# ---- chapter 4: heads switched off

@torch.inference_mode()
def without(text, heads):
    "Python's greedy translation without some heads, and the geometric mean of its tokens' probabilities."
    translator = reference(NAME)
    source = torch.tensor([translator.vocabulary.encode(text)])
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(without_head(translator.model, *head))
        (ids,) = greedy(translator.model, source)
        log_p = translator.model(source, torch.tensor([[1, *ids[:-1]]])).log_softmax(-1)[0]
    return translator.vocabulary.decode(ids), log_p[torch.arange(len(ids)), ids].mean().exp().item()


SIZES = Config(**json.loads((FOLDER.parents[2] / "results" / NAME / "config.json").read_text())["config"])
LAYERS = {"encoder": SIZES.N, "decoder": SIZES.decoder_layers, "cross": SIZES.decoder_layers}
HEADS = [(kind, layer, head) for kind, layers in LAYERS.items() for layer in range(layers) for head in range(SIZES.h)]


@with_node
def test_without_heads_the_model_says_what_pythons_says():
    draw = random.Random(0)
    cases = [(text, draw.sample(HEADS, count)) for text, count in zip(EVERYDAY, (0, 1, 1, 2, 3, 5, 8, 12), strict=False)]
    cases += [(START, [head for head in HEADS if head[0] == kind]) for kind in ("encoder", "decoder", "cross")]
    expression = """given.reduce(async (before, [text, heads]) => [...await before, await it.ask(model, text, heads)], [])"""
    changed = 0
    for (text, heads), found in zip(cases, asked("without", expression, cases), strict=True):
        for one, off in ((found["whole"], []), (found["less"], heads)):
            said, sure = without(text, off)
            assert one["said"] == said and one["sure"] == pytest.approx(sure, abs=1e-4), (text, off)
        changed += found["whole"]["said"] != found["less"]["said"]
    assert changed > 1


@with_node
def test_common_words_are_a_longest_common_subsequence():
    draw = random.Random(1)
    cases = [["".join(draw.choices("abc", k=draw.randrange(9))) for _ in "ab"] for _ in range(300)]
    for (a, b), kept in zip(cases, node("without", "x.map(([a, b]) => it.common([...a], [...b]))", cases), strict=True):
        common = [x for x, stays in zip(b, kept, strict=True) if stays]
        rest = iter(a)
        assert all(x in rest for x in common), "in the order of both"
        long = {(i, j): 0 for i in range(len(a) + 1) for j in range(len(b) + 1)}
        for i in range(len(a)):
            for j in range(len(b)):
                long[i + 1, j + 1] = long[i, j] + 1 if a[i] == b[j] else max(long[i, j + 1], long[i + 1, j])
        assert len(common) == long[len(a), len(b)]


def result(page):
    return page.eval_on_selector_all(".result dd", "all => all.map((one) => one.textContent.trim())")


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_heads_are_switched_by_keyboard(alive, width):
    page = alive("without", width)
    text = page.get_by_role("textbox").input_value()
    decoder = [head for head in HEADS if head[0] == "decoder"]
    whole, less = without(text, []), without(text, decoder)
    wanted = [whole[0], f"geometric mean of its tokens' probabilities {whole[1]:.2f}", less[0], f"geometric mean of its tokens' probabilities {less[1]:.2f}"]
    assert result(page) == wanted
    assert untouched(page)
    buttons = page.locator(".readings button")
    does = ["on" if kind == "decoder" else "off" for kind, layers in LAYERS.items() for _ in range(layers)]
    assert buttons.all_inner_texts() == does  # what each does to its row
    give_weights(page, "without")
    page.get_by_role("checkbox", name="encoder, layer 1, head 2", exact=True).press("Space")
    answered(page)
    assert buttons.all_inner_texts() == ["on", *does[1:]]
    less = without(text, [*decoder, ("encoder", 0, 1)])
    assert result(page)[2:] == [less[0], f"geometric mean of its tokens' probabilities {less[1]:.2f}"]
    for layer in range(1, SIZES.decoder_layers + 1):
        page.get_by_role("button", name=f"decoder, layer {layer}").press("Enter")
        page.get_by_role("button", name=f"cross-attention, layer {layer}").press("Enter")
    answered(page)
    less = without(text, [("encoder", 0, 1), *(head for head in HEADS if head[0] == "cross")])
    assert result(page)[2] == less[0] and f"Without {1 + SIZES.decoder_layers * SIZES.h} of {len(HEADS)} heads" in page.locator(".result").inner_text()
    page.get_by_role("textbox").fill(EVERYDAY[1])
    answered(page)
    assert result(page)[0] == without(EVERYDAY[1], [])[0]
