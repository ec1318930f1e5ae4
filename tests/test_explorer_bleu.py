"""The explorer of chapter 12: BLEU of a sentence that the reader edits is the book's BLEU, and sacreBLEU's."""

import math
import random

import pytest
from explore import node, rest, with_browser, with_node

from annotated.evaluation import bleu, bleu_counts

WORDS = ["der", "die", "Hund", "Katze", "sieht", "ich", "weiß", "Der", ".", "ß", "a\u200bb"]
SPACES = [" ", "  ", "\t", "\u00a0", "\u3000", "\x1c", "\x85", "\u2028", "\n"]


def edited(words, chance):
    "A sentence with a few random changes: words changed, repeated, left out, moved."
    words = list(words)
    for _ in range(chance.randrange(5)):
        i = chance.randrange(len(words) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            words.insert(i, chance.choice(WORDS))
        elif kind == 1 and words:
            words.pop(i % len(words))
        elif kind == 2 and words:
            words.insert(i, words[i % len(words)])
        else:
            chance.shuffle(words)
    return words


def pairs():
    chance = random.Random(0)
    for _ in range(1500):
        reference = [chance.choice(WORDS) for _ in range(chance.randrange(1, 12))]
        output = edited(reference, chance)
        yield [chance.choice(SPACES).join(words) for words in (reference, output)]


@with_node
def test_counts_and_scores_are_sacrebleus():
    texts = list(pairs())
    made = node("bleu", "x.map(([r, o]) => it.score(it.cut(o), it.cut(r)))", texts)
    smoothed = 0
    for (reference, output), now in zip(texts, made, strict=True):
        *counts, c, r = bleu_counts([output], [reference], tokenize="none")[0].tolist()
        assert [order["shared"] for order in now["orders"]] == counts[:4]
        assert [order["possible"] for order in now["orders"]] == counts[4:]
        assert [now["c"], now["r"]] == [c, r]
        assert math.isclose(now["bleu"], bleu([output], [reference], tokenize="none")[0], abs_tol=1e-9), (reference, output)
        assert math.isclose(now["bleu"], 100 * now["brevity"] * now["mean"])
        smoothed += any(order["given"] for order in now["orders"]) and now["bleu"] > 0
    assert smoothed > 50  # the rule for orders without a match was put to the test


@with_node
def test_what_is_lit_is_what_counts_and_what_is_clipped_stands_in_the_reference():
    texts = list(pairs())[:300]
    made = node("bleu", "x.map(([r, o]) => it.score(it.cut(o), it.cut(r)))", texts)
    for (reference, output), now in zip(texts, made, strict=True):
        reference, output = reference.split(), output.split()
        for n, order in enumerate(now["orders"], 1):
            grams = [tuple(output[i : i + n]) for i in range(len(output) - n + 1)]
            wanted = [tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)]
            for i, (gram, found) in enumerate(zip(grams, order["found"], strict=True)):
                earlier = grams[:i].count(gram)
                assert found["lit"] == (earlier < wanted.count(gram))
                assert found["clipped"] == (0 < wanted.count(gram) <= earlier)


def numbers(page):
    return [row.split("\t") for row in page.locator(".readings tbody tr").all_inner_texts()]


@with_browser
def test_runs_that_count_are_seen_where_the_reader_has_chosen_the_colours(alive):
    page = alive("bleu")
    page.emulate_media(forced_colors="active")
    assert page.eval_on_selector(".lanes:has(.lit)", "one => getComputedStyle(one.querySelector('.lit')).backgroundColor === getComputedStyle(one).color")


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_it_starts_with_the_chapters_example_and_follows_an_edit(alive, width):
    reference, output = "ich weiß dass der Hund die Katze sieht", "ich weiß dass der Hund der Katze"
    page = alive("bleu", width)
    assert numbers(page) == [
        ["n = 1", "6 of 7", "1", "0.857"], ["n = 2", "4 of 6", "0", "0.667"],
        ["n = 3", "3 of 5", "0", "0.600"], ["n = 4", "2 of 4", "0", "0.500"],
        ["brevity exp(1 − 8/7)", "0.867"], ["fourth root of the product", "0.643"], ["BLEU", "55.8"],
    ]  # as in the drawing and in the chapter's cells
    assert page.locator("input[lang=de]").count() == 2 and page.locator("[lang=de] > .word").all_inner_texts() == reference.split()
    assert page.locator(".bleu .word.lit").count() == 6 and page.locator(".bleu .word.unlit").inner_text() == "der"
    assert page.locator(".lanes i.lit.first").count() == 4 + 3 + 2
    assert not page.get_by_text("counts half a match").is_visible()  # the remark on a star that is not there yet

    page.get_by_label("output").fill("")
    page.get_by_label("output").press_sequentially("der Hund sieht")
    page.keyboard.press("Tab")  # on to the buttons
    expected = bleu(["der Hund sieht"], [reference], tokenize="none")[0]
    assert numbers(page)[-1] == ["BLEU", f"{expected:.1f}"]
    page.get_by_label("output").fill("der Hund ich weiß")
    expected = bleu(["der Hund ich weiß"], [reference], tokenize="none")[0]
    assert numbers(page)[-1] == ["BLEU", f"{expected:.1f}"] and expected > 0
    assert numbers(page)[2][1] == "0.5 of 2 *"  # no triple matches
    assert page.get_by_text("counts half a match").is_visible()

    for name, text in {
        "the reference": reference,
        "its first half": "ich weiß dass der",
        "backwards": " ".join(reversed(reference.split())),
        "one word repeated": " ".join(["ich"] * 8),
        "as at first": output,
    }.items():
        page.get_by_role("button", name=name).press("Enter")
        assert page.get_by_label("output").input_value() == text
        expected = bleu([text], [reference], tokenize="none")[0]
        assert numbers(page)[-1] == ["BLEU", f"{expected:.1f}"]
        rest(page)
        assert page.locator(".told").inner_text().startswith(f"BLEU {expected:.1f}: ")


@with_browser
def test_half_a_sentence_scores_its_precision_times_the_penalty_and_nothing_scores_nothing(alive):
    page = alive("bleu", 360)
    page.get_by_role("button", name="its first half").press("Enter")
    assert numbers(page)[4:] == [["brevity exp(1 − 8/4)", f"{math.exp(-1):.3f}"], ["fourth root of the product", "1.000"], ["BLEU", f"{100 * math.exp(-1):.1f}"]]
    page.get_by_label("output").fill("")
    assert numbers(page)[-1] == ["BLEU", "0.0"]
    page.get_by_label("reference").fill("")
    assert numbers(page)[-1] == ["BLEU", "0.0"]
    assert "NaN" not in page.locator(".explorer").inner_text()
