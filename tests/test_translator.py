"""The front page's translator and the attention of chapter 19: what they show is what Python computes."""

import html
import json
import random

import annotated_front as front
import explore
import pytest
import torch
from chapters import ROOT
from explore import with_browser, with_node
from test_in_page import exported, reference, wanted_of

from annotated.figures import attention_maps

SENTENCES = ["My brother works in a hospital.", "This mountain is covered in snow all year round.", "Tom isn't here."]


# ---- arithmetic

def layers(seed=0, N=2, h=4, T=5, S=7):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(N, h, T, S, generator=draw).softmax(-1)


@with_node
@pytest.mark.parametrize("seed", range(3))
def test_one_head_or_the_mean_of_a_layer(seed):
    weights = layers(seed)
    data = {"w": weights.tolist()}
    near = dict(rtol=0, atol=1e-6)
    got = explore.node("translator", "[it.chosen(x.w, null), it.chosen(x.w, [0, 3])]", data)
    torch.testing.assert_close(torch.tensor(got), torch.stack([weights[-1].mean(0), weights[0, 3]]), **near)
    got = explore.node("attention", "[it.matrix(x.w[0], 'mean'), it.matrix(x.w[1], '2')]", data)
    torch.testing.assert_close(torch.tensor(got), torch.stack([weights[0].mean(0), weights[1, 2]]), **near)


@with_node
def test_a_line_for_each_weight_that_is_seen():
    weights = layers()[0, 0]
    found = explore.node("translator", "it.lines(x)", weights.tolist())
    assert {(f["t"], f["s"]) for f in found} == {(t, s) for t in range(5) for s in range(7) if weights[t, s] >= 0.08}
    assert 0 < len(found) < weights.numel() and found == sorted(found, key=lambda f: f["weight"])


@with_node
def test_words_name_the_largest_weights():
    assert explore.node("live", "it.said('Hund', [0.03, 0.9, 0.07], ['the', 'dog', '.'], 0.05)") == "Hund attends to dog 90 %, . 7 %"
    assert explore.node("live", "it.said('x', Array(50).fill(0.02), Array(50).fill('s'), 0.05)") == "x attends to s 2 %", "however thin"
    assert explore.node("attention", "it.said('a', [1, 0, 0], ['a', 'b', 'c'])") == "a attends to a 100 %"


@with_node
def test_tokens_are_shown_as_they_are_read():
    assert explore.node("translator", "x.map(it.shown)", ["\u2581Hund", "es", "<eos>", "\u2581"]) == ["Hund", "·es", "end", "\u2423"]
    tokens = {"source": ["\u2581The", "\u2581dog", "s", "<eos>"], "target": ["\u2581Hund", "e", "<eos>"]}
    names = {kind: explore.node("attention", f"it.names(x, '{kind}')", tokens) for kind in ("encoder", "decoder", "cross")}
    assert names == {
        "encoder": [["The", "dog", "·s", "eos"]] * 2,
        "decoder": [["\u2192 Hund", "\u2192 ·e", "\u2192 eos"], ["bos", "Hund", "·e"]],
        "cross": [["\u2192 Hund", "\u2192 ·e", "\u2192 eos"], ["The", "dog", "·s", "eos"]]}


# ---- in a browser

STYLES = ("book.css", "drawing.css")
ATTRIBUTES = {
    "translator": {"model": "tatoeba-en-de", "heads": "2 4", "first": front.FIRST[1], "examples": json.dumps(front.examples())},
    "attention": {"model": "tatoeba-en-de", "heads": "4 2 4", "first": "The dog sees the cat."},
}


@pytest.fixture
def opened(browser):
    """opened(name) is a page from a file with one element; it must ask for nothing else, and complain of nothing."""
    trouble, pages = [], []

    def open_(name, width=1280, **more):
        given = " ".join(f'data-{key}="{html.escape(value)}"' for key, value in ATTRIBUTES[name].items())
        links = [(ROOT / "book/_static" / style).as_uri() for style in STYLES] + ["explorers.css"]
        text = "<!doctype html><html lang='en' data-theme='light'><meta charset='utf-8'><title>one element</title>"
        text += "".join(f"<link rel='stylesheet' href='{link}'>" for link in links)
        text += "".join(f"<script defer src='{script}.js'></script>" for script in [*explore.needs(name), name])
        text += f"<main class='bd-article'><annotated-{name} {given}><p>The still.</p></annotated-{name}></main>"
        path = exported() / f"{name}.html"
        path.write_text(text, encoding="utf-8")
        page = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce", **more)
        page.set_default_timeout(180_000)
        page.on("pageerror", lambda e: trouble.append(f"script: {e}"))
        page.on("console", lambda m: trouble.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
        page.asked = []
        page.on("request", lambda r: page.asked.append(r.url))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_
    for page in pages:
        trouble += [f"foreign: {url}" for url in page.asked if not url.startswith(("file:", "blob:", "data:"))]
        page.close()
    assert not trouble


def translated(page, words):
    page.wait_for_function("words => document.querySelector('output.translation').textContent === words", arg=words)


def german(sentence, beam=4):
    return wanted_of(reference("tatoeba-en-de"), [sentence], beam)[0]


def attention_of(sentence, ids):
    translator = reference("tatoeba-en-de")
    (source,) = translator.cut(sentence)
    return attention_maps(translator.model, torch.tensor([source]), torch.tensor([[1, *ids[:-1]]]))


@with_browser
def test_the_still_is_there_first_and_no_weights_are_fetched(opened):
    page = opened("translator")
    page.wait_for_selector(".alive")
    page.focus("input[type=text]")
    page.wait_for_timeout(200)
    assert page.inner_text(".stage").strip() == "The still." and page.inner_text("output.translation") == front.FIRST[1]
    assert not [url for url in page.asked if "models/" in url]
    page.emulate_media(media="print")
    assert page.is_visible(".still") and not page.is_visible(".explorer")


@with_browser
def test_without_scripts_the_still_stays(opened):
    assert opened("translator", java_script_enabled=False).inner_text("main") == "The still."


@with_browser
def test_a_sentence_that_is_typed_or_clicked_is_translated_with_its_lines(opened):
    page = opened("translator")
    for number, sentence in enumerate(SENTENCES):
        if number == 1:
            page.click("summary")  # the examples are folded
            counts = page.eval_on_selector_all(".examples", "lists => lists.map(one => one.children.length)")
            assert counts == [3, 3], "the first sentence, which has no rank, is in neither list"
            page.click(f"text={sentence}")
        else:
            page.fill("input[type=text]", sentence)
        text, ids, _ = german(sentence)
        translated(page, text)
        names = reference("tatoeba-en-de").vocabulary.processor
        shown = page.eval_on_selector_all(".token", "found => found.map(e => e.textContent)")
        assert [name.lstrip("·") for name in shown] == [names.id_to_piece(i).lstrip("\u2581") for i in ids[:-1]] + ["end"]
        cross = attention_of(sentence, ids)["cross"][:, 0]
        for value, weights in (("", cross[-1].mean(0)), ("0.2", cross[0, 2])):
            page.select_option("select", value)
            widths = page.eval_on_selector_all(".arc", "found => found.map(e => [+e.dataset.t, parseFloat(e.style.strokeWidth) / 4.5])")
            wanted = sorted((t, w) for t, row in enumerate(weights.tolist()) for w in row if w >= 0.08)
            assert len(widths) == len(wanted)
            for (t, got), (want_t, want) in zip(sorted(map(tuple, widths)), wanted, strict=True):
                assert t == want_t and got == pytest.approx(want, abs=1e-4)
        page.select_option("select", "")
    assert page.inner_text(".reference") == ""
    page.click(f"text={SENTENCES[1]}")
    page.wait_for_function("document.querySelector('.reference').textContent.includes('Dieser Berg ist das ganze Jahr mit')")


@with_browser
def test_another_example_is_the_next_one_and_after_ones_own_the_first(opened):
    page = opened("translator", 360)
    first, second, *_ = [example["source"] for example in front.examples()]
    for own, wanted in ((None, second), ("Dogs bark.", first)):
        if own:
            page.fill("input[type=text]", own)
        page.click("text=Another example")
        assert page.input_value("input[type=text]") == wanted
        translated(page, german(wanted)[0])


@with_browser
def test_greedy_search_and_beam_search_can_be_told_apart(opened):
    page = opened("translator")
    sentence = "What are you thinking of?"
    page.fill("input[type=text]", sentence)
    translated(page, german(sentence)[0])
    page.click("text=greedy")
    assert german(sentence, 1)[0] != german(sentence)[0]
    translated(page, german(sentence, 1)[0])


@with_browser
def test_typing_fast_ends_with_the_last_sentence(opened):
    page = opened("translator")
    sentence = SENTENCES[0]
    page.fill("input[type=text]", "")
    page.type("input[type=text]", sentence, delay=5)
    translated(page, german(sentence)[0])
    assert page.get_attribute("output.translation", "lang") == "de"
    page.fill("input[type=text]", "  ")
    page.wait_for_function("document.querySelector('output.translation').textContent === 'Write an English sentence.' && !document.querySelector('.token')")
    assert page.get_attribute("output.translation", "lang") == "en"


@with_browser
@pytest.mark.parametrize("name", ["translator", "attention"])
def test_what_answers_another_sentence_is_dim_until_the_answer_comes(opened, name):
    page = opened(name)
    page.wait_for_selector(".alive")
    page.evaluate("""new MutationObserver(() => (window.dimmed ||= document.querySelector('.explorer').matches('.waiting')))
        .observe(document.querySelector('.explorer'), { attributes: true })""")
    page.fill("input[type=text]", SENTENCES[0])
    translated(page, german(SENTENCES[0], 4 if name == "translator" else 1)[0])
    assert page.evaluate("window.dimmed") and not page.evaluate("document.querySelector('.explorer').matches('.waiting')")


@with_browser
@pytest.mark.parametrize("name", ["translator", "attention"])
def test_where_no_model_is_fetched_that_is_said_and_the_still_is_not_dim(opened, name):
    page = opened(name)
    page.wait_for_selector(".alive")
    page.evaluate("() => { annotated.load = async () => { throw new Error('no weights'); }; }")
    page.fill("input[type=text]", SENTENCES[0])
    page.wait_for_function("/cannot .*no weights/.test(document.querySelector('.told').textContent)")
    assert page.inner_text(".stage").strip() == "The still."
    assert not page.evaluate("document.querySelector('.explorer').matches('.waiting')")


@with_browser
def test_after_a_failure_the_old_drawing_stays_dim_and_a_head_asks_anew(opened):
    page = opened("translator")
    page.fill("input[type=text]", SENTENCES[0])
    translated(page, german(SENTENCES[0])[0])
    page.evaluate("() => { window.load = annotated.load; annotated.load = async () => { throw new Error('no weights'); }; }")
    page.fill("input[type=text]", SENTENCES[2])
    for head in (None, "0.1"):
        if head:
            page.select_option("select", head)
        page.wait_for_function("/cannot .*no weights/.test(document.querySelector('.hint').textContent)")
        page.wait_for_function("document.querySelector('.explorer').matches('.waiting')")
    page.evaluate("() => { annotated.load = window.load; }")
    page.select_option("select", "0.2")
    translated(page, german(SENTENCES[2])[0])
    assert not page.evaluate("document.querySelector('.explorer').matches('.waiting')")


@with_browser
def test_a_sentence_that_is_cut_is_told_so(opened):
    page = opened("translator")
    page.fill("input[type=text]", "The quick brown fox " * 8)
    page.wait_for_function("document.querySelector('.reference').textContent === 'Only the first 40 tokens are read.'")
    page.wait_for_function("document.querySelector('.told').textContent.endsWith('Only the first 40 tokens are read.')")
    assert page.inner_text("output.translation").endswith(" …")


@with_browser
def test_a_long_translation_is_there_soon_and_another_head_at_once(opened):
    page = opened("translator")
    page.emulate_media(reduced_motion="no-preference")
    page.fill("input[type=text]", "The quick brown fox " * 8)
    page.wait_for_selector(".appearing .token")
    delays = page.eval_on_selector_all(".token", "found => found.map(e => parseFloat(getComputedStyle(e).animationDelay))")
    assert len(delays) > 20 and 1 < max(delays) <= 1.2 and delays == sorted(delays)
    page.select_option("select", "0.2")
    assert page.locator(".appearing").count() == 0


@with_browser
def test_a_map_that_is_wider_than_the_page_can_be_scrolled_by_keyboard(opened):
    page = opened("attention", 360)
    page.wait_for_selector(".alive")
    for sentence, wide in (("The quick brown fox " * 4, True), ("I am tired.", False)):
        page.fill("input[type=text]", sentence)
        translated(page, german(sentence.strip(), 1)[0])
        assert page.evaluate("(() => { const e = document.querySelector('.stage'); return e.scrollWidth > e.clientWidth; })()") == wide
        assert page.locator(".stage[tabindex='0'][role=region][aria-label]").count() == wide


@with_browser
def test_tokens_are_reached_by_keyboard(opened):
    page = opened("translator", 360)
    page.fill("input[type=text]", SENTENCES[0])
    translated(page, german(SENTENCES[0])[0])
    page.focus(".token")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.t") == "1"
    assert page.inner_text(".hint").startswith("Bruder attends to brother")
    assert page.locator("[role=listbox] > [role=option]").count() == page.locator(".token").count()
    assert page.locator("[aria-selected=true]").all_text_contents() == ["Bruder"]
    assert page.locator(".arc.lit").count() > 0 and page.locator('.arc.lit:not([data-t="1"])').count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@with_browser
def test_the_maps_of_every_kind_layer_and_head(opened):
    page = opened("attention", 360)
    sentence = SENTENCES[0]
    page.fill("input[type=text]", sentence)
    text, ids, _ = german(sentence, 1)
    translated(page, text)
    maps = attention_of(sentence, ids)
    draw = random.Random(0)
    for kind in ("encoder", "decoder", "cross"):
        page.check(f'input[value="{kind}"]')
        depth = len(maps[kind])
        assert page.locator(".choice", has_text="Layer").locator("input:enabled").count() == depth, "the stacks differ"
        for layer, head in draw.sample([(n, i) for n in range(depth) for i in range(4)], 3):
            page.locator(".choice", has_text="Layer").locator(f'input[value="{layer}"]').check()
            page.locator(".choice", has_text="Head").locator(f'input[value="{head}"]').check()
            rows = page.eval_on_selector_all(".query", "found => found.map(e => [...e.querySelectorAll('rect')].map(r => +r.classList[1].slice(1)))")
            weights = maps[kind][layer, 0, head]
            assert len(rows) == len(weights)
            # halfway between two shades a last digit decides
            assert all(abs(10 * w - shade) <= 0.5001 for row, shades in zip(weights.tolist(), rows) for w, shade in zip(row, shades, strict=True))
    page.focus(".query.chosen")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-checked')") == "true"
    assert page.inner_text(".hint") == page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


# ---- what the front page says

def test_the_examples_are_those_of_the_record_in_its_order():
    ranked = json.loads((ROOT / "results/tatoeba-en-de/examples.json").read_text())
    first, *rows = front.examples()
    assert first["source"] == front.FIRST[0] and "reference" not in first, "it is of no test set, and has no rank"
    assert [row["source"] for row in rows] == [row["source"] for row in ranked]
    assert [row["fails"] for row in rows] == [False] * 3 + [True] * 3


def test_the_first_translation_is_the_models_own():
    translator = reference("tatoeba-en-de")
    assert wanted_of(translator, [front.FIRST[0]], 4)[0][0] == front.FIRST[1]


def test_the_facts_are_of_the_records():
    count = sum(p.numel() for p in reference("tatoeba-en-de").model.parameters())
    size = (exported() / "models/tatoeba-en-de.js").stat().st_size
    said = front.facts()
    assert said.startswith(f"{count / 1e6:.1f} million weights, {size / 1e6:.1f} MB, fetched")
    bleu = json.loads((ROOT / "results/tatoeba-en-de/scores.json").read_text())["bleu"]
    minutes = json.loads((ROOT / "results/tatoeba-en-de/log.jsonl").read_text().splitlines()[-1])["seconds"] / 60
    assert f"{bleu:.1f} BLEU" in said and f"for {minutes:.0f} minutes on one core" in said and "CC BY 2.0 FR" in said


def test_the_chapter_offers_every_layer_and_head_of_the_model():
    text = (ROOT / "book/19-figures.md").read_text(encoding="utf-8")
    config = reference("tatoeba-en-de").model.config
    assert f'data-heads="{config.N} {config.decoder_layers} {config.h}"' in text
