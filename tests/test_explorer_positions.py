"""Chapter 6's explorer: its encodings and inner products are Python's, and moving both positions changes no product."""

import re

import pytest
import torch
from explore import node, with_browser, with_node

from annotated.embedding import positional_encoding


@with_node
@pytest.mark.parametrize("d_model", [16, 32, 512])
def test_an_encoding_is_the_packages(d_model):
    places = [0, 1, 2, 17, 40, 63, 4999]
    found, products, digits = node("positions", "[x.places.map((p) => it.encoding(p, x.d)), x.places.map((k) => it.product(k, x.d)), it.digits(37)]",
                                   {"places": places, "d": d_model})
    expected = positional_encoding(torch.tensor(places), d_model)
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-6, rtol=0)
    for p in (0, 13):
        pairs = positional_encoding(torch.tensor(places) + p, d_model) @ positional_encoding(torch.tensor(p), d_model)
        torch.testing.assert_close(torch.tensor(products), pairs, atol=1e-4, rtol=1e-5)
    assert digits == [int(digit) for digit in reversed(f"{37:08b}")]


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


def shown(page):
    page.wait_for_timeout(150)
    found, summed, alone = map(number, re.findall(r"(?<== )[\u2212\d.]+(?=[,.] |$)|(?<=itself: )[\d.]+(?=\.$)", page.locator(".equal").text_content()))
    table = page.eval_on_selector_all(".readings tbody td", "all => all.map(c => c.textContent)")
    return found, summed, alone, [number(x) for x in table]


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_two_positions_move_together(alive, width):
    page = alive("positions", width)

    def check(p, k, d_model, pair):
        here, there = positional_encoding(torch.tensor([p, p + k]), d_model)
        features = torch.stack([here, there], -1)[2 * pair : 2 * pair + 2]
        assert shown(page) == (pytest.approx((here @ there).item(), abs=0.0051), pytest.approx((here @ there).item(), abs=0.0051),
                               d_model / 2, pytest.approx(features.flatten().tolist(), abs=0.0051))

    check(20, 3, 32, 4)
    place = page.get_by_role("slider", name="position p")
    place.focus()
    before, hands = shown(page), page.locator(".wire.q").last.get_attribute("d")
    page.keyboard.press("End")
    assert shown(page)[:3] == before[:3] and page.locator(".wire.q").last.get_attribute("d") != hands
    check(40, 3, 32, 4)
    page.get_by_role("slider", name="distance k").press("ArrowRight")
    check(40, 4, 32, 4)
    page.get_by_role("slider", name="pair i").press("Home")
    check(40, 4, 32, 0)
    page.get_by_label("512").check()
    page.get_by_role("slider", name="pair i").press("End")
    check(40, 4, 512, 224)
    assert page.locator("image").get_attribute("href").startswith("data:image/png")
