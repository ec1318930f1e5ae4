"""Chapter 3's explorer: its weights and losses are Python's, and a touch on a mask or a pair changes what it should."""

import math
import random

import pytest
import torch
from explore import node, with_browser, with_node

from annotated.attention import masked_softmax
from annotated.masks import causal_mask, padding_mask

SUBJECTS = ["der Hund", "die Katze", "das Pferd"]
LINES = [f"bos {s} {v} {o.replace('der', 'den')} eos".split()  # as in the chapter
         for s in SUBJECTS for v in ("sieht", "hört") for o in SUBJECTS if o != s]
FLOOR = (math.log(3) + 2 * math.log(2)) / 6


def allowed(keys: list[str], T: int, padding: bool, causal: bool) -> torch.Tensor:
    ids = torch.tensor([[0 if word == "pad" else 1 for word in keys]])
    mask = torch.ones(T, len(keys), dtype=torch.bool)
    if padding:
        mask = mask & padding_mask(ids)[0, 0]
    return mask & causal_mask(T) if causal else mask


def entropy(t: int, seen: list[int]) -> float:
    "H(label | words seen), as H(both) - H(words seen)."
    def bits(items):
        return -sum(items.count(x) / len(items) * math.log(items.count(x) / len(items)) for x in set(items))

    keys = [tuple(line[s] for s in seen) for line in LINES]
    return bits([(key, line[t + 1]) for key, line in zip(keys, LINES)]) - bits(keys)


RINGED = """() => {
  const [box, ring] = [document.activeElement.querySelector('rect'), document.querySelector('annotated-masks .ring')].map((e) => e.getBoundingClientRect());
  const last = document.querySelector('annotated-masks .ring').parentElement.lastElementChild;  // so that no cell hides it
  return getComputedStyle(last).stroke !== 'none' && last.matches('.ring') && box.x === ring.x && box.y === ring.y;
}"""


@with_node
@pytest.mark.parametrize("use", ["encoder", "decoder", "cross"])
def test_the_masks_are_the_packages(use):
    words = node("masks", "it.USES[x]", use)
    T = len(words["queries"])
    for padding in (False, True):
        for causal in (False, True) if use != "cross" else (False,):
            found = node("masks", """it.USES[x.use].queries.map((_, t) => it.USES[x.use].keys.map((_, s) =>
                         it.reason(it.USES[x.use].keys, t, s, x.padding, x.causal) === ''))""",
                         {"use": use, "padding": padding, "causal": causal})
            assert found == allowed(words["keys"], T, padding, causal).tolist()


@with_node
def test_the_sentences_are_the_chapters():
    assert node("masks", "it.SENTENCES") == LINES
    assert node("masks", "it.VOCAB") == len({word for line in LINES for word in line})
    assert node("masks", "it.USES.decoder.keys")[:6] in [line[:6] for line in LINES]


@with_node
def test_the_best_loss_is_the_conditional_entropy():
    draw = random.Random(0)
    cases = [(t, sorted(draw.sample(range(6), draw.randint(0, 6)))) for t in range(6) for _ in range(12)]
    found = node("masks", "x.map(([t, seen]) => it.bestLoss(t, seen))", cases)
    assert found == pytest.approx([entropy(t, seen) for t, seen in cases], abs=1e-12)


@with_node
def test_the_floor_of_the_chapter_and_the_leak_below_it():
    causal = node("masks", "it.leak(x)", causal_mask(7).tolist())
    assert [row["training"] for row in causal] == [row["use"] for row in causal]
    assert sum(row["use"] for row in causal) / 6 == pytest.approx(FLOOR)
    assert node("masks", "it.leak(x)", causal_mask(7).tril(-1).tolist()) == causal  # its own word is known in any case
    none = node("masks", "it.leak(x)", torch.ones(7, 7).bool().tolist())
    assert [row["training"] for row in none] == [0] * 6 and [row["leaks"] for row in none] == [True] * 5 + [False]
    assert [row["use"] for row in none] == pytest.approx([math.log(11)] * 5 + [0])


def grid(page, size):
    shown = page.eval_on_selector_all("[role=checkbox] text", "all => all.map(t => Number(t.textContent))")
    return torch.tensor(shown).view(size)


def means(page):
    return page.eval_on_selector_all(".readings tbody tr:last-child td", "all => all.map(c => c.textContent)")[1:]


@with_browser
@with_node
@pytest.mark.parametrize("width", [1280, 360])
def test_masks_and_single_pairs(alive, width):
    page = alive("masks", width)
    scores = torch.tensor(node("masks", "it.SCORES"))
    keys = node("masks", "it.USES.decoder.keys")

    def shows(mask, size=(7, 7)):
        page.wait_for_timeout(100)
        expected = masked_softmax(scores[: size[0], : size[1]], mask)
        torch.testing.assert_close(grid(page, size), expected, atol=0.0051, rtol=0)

    shows(allowed(keys, 7, True, True))
    assert means(page) == [f"{FLOOR:.2f}"] * 2
    page.get_by_label("causal mask", exact=True).focus()
    page.keyboard.press("Space")
    shows(allowed(keys, 7, True, False))
    assert means(page) == ["0.00", f"{5 * math.log(11) / 6:.2f}"]
    page.get_by_label("padding mask", exact=True).press("Space")
    shows(allowed(keys, 7, False, False))
    page.get_by_label("causal mask", exact=True).press("Space")

    assert page.get_by_role("group", name="query 0, bos").get_by_role("checkbox").count() == 7
    assert page.locator(".readings span[lang=de]").count() == 12  # what is read and what is predicted
    page.get_by_role("checkbox", name="bos may attend to bos").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(RINGED)
    page.keyboard.press("Enter")  # the label leaks to the first position alone
    mask = causal_mask(7)
    mask[0, 1] = True
    shows(mask)
    assert means(page) == [f"{2 * math.log(2) / 6:.2f}", f"{(2 * math.log(2) + math.log(11)) / 6:.2f}"]
    page.keyboard.press("Space")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Space")  # nothing is left to look at
    mask[0] = False
    shows(mask)
    assert page.locator(".sum").first.text_content() == "0"

    page.get_by_label("cross-attention").check()
    assert page.get_by_label("causal mask", exact=True).is_disabled()
    shows(allowed(node("masks", "it.USES.cross.keys"), 7, True, False), (7, 8))
    assert page.locator(".readings").count() == 0
