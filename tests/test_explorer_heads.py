"""Chapter 4's explorer: split, weights, join and W_O are the package's, and each control shows another head or word."""

import pytest
import torch
from explore import node, with_browser, with_node

from annotated.attention import attention_weights
from annotated.multihead import MultiHeadAttention


def layer(h: int, W_O) -> MultiHeadAttention:
    "A layer whose queries, keys and values are its input, one after the other."
    made = MultiHeadAttention(12, h).double()
    made.W_O.weight.data = torch.tensor(W_O, dtype=torch.float64).T
    made.W_Q.weight.data = torch.eye(12).double()
    return made


@with_node
@pytest.mark.parametrize("h", [1, 2, 3, 4, 6, 12])
def test_heads_are_the_packages(h):
    torch.manual_seed(h)
    given = {name: torch.randn(5, 12, dtype=torch.float64) for name in "QKV"}
    W_O = torch.randn(12, 12, dtype=torch.float64).tolist()
    found, parts, same, shares = node("heads", """(() => { const a = it.attend(x.given, x.h, x.W_O);
        return [a, it.split(x.given.Q, x.h), it.join(it.split(x.given.Q, x.h)), it.shares(a.heads, 3, x.W_O)]; })()""",
        {"given": {name: t.tolist() for name, t in given.items()}, "h": h, "W_O": W_O})
    ours = layer(h, W_O)
    Q, K, V = (ours.split(given[name][None]) for name in "QKV")
    assert parts == Q[0].tolist() and same == given["Q"].tolist()
    torch.testing.assert_close(torch.tensor(found["weights"]), attention_weights(Q, K)[0].float())
    expected = ours.attend(given["Q"][None], K, V)[0].detach().float()
    torch.testing.assert_close(torch.tensor(found["output"]), expected)
    torch.testing.assert_close(torch.tensor(shares).sum(0), expected[3])
    assert len(shares) == h


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


@with_browser
@with_node
@pytest.mark.parametrize("width", [1280, 360])
def test_a_head_and_a_word_at_a_time(alive, width):
    page = alive("heads", width)
    given, W_O = node("heads", "[it.GIVEN, it.W_O]")
    given = {name: torch.tensor(t, dtype=torch.float64) for name, t in given.items()}

    def check(h, head, word):
        page.wait_for_timeout(150)
        Q, K, V = (layer(h, W_O).split(given[name][None])[0] for name in "QKV")
        weights = attention_weights(Q, K)
        shown = page.eval_on_selector_all("text.on, text.under", "all => all.map(t => Number(t.textContent))")
        torch.testing.assert_close(torch.tensor(shown).view(5, 5), weights[head].float(), atol=0.0051, rtol=0)
        each = (weights @ V)[:, word, None] @ torch.tensor(W_O, dtype=torch.float64).view(h, 12 // h, 12)
        rows = page.eval_on_selector_all(".readings tbody tr", "rows => rows.map(r => [...r.children].slice(1).map(c => c.textContent))")
        for row, wanted in zip(rows, (each[head, 0], each.sum(0)[0]), strict=True):
            assert [number(x) for x in row] == pytest.approx(wanted[:4].tolist(), abs=0.0051)
        assert f"({h}, 5, {12 // h})" in page.locator(".shape").text_content()
        fills = page.eval_on_selector_all(".qfill", "all => all.map(c => [Number(c.getAttribute('x')), c.style.fillOpacity])")
        assert len(fills) == 60
        return fills

    start = check(3, 0, 1)
    page.get_by_role("slider", name="head").focus()
    page.keyboard.press("End")
    assert check(3, 2, 1) == start  # the numbers stay
    page.get_by_role("slider", name="word").press("ArrowRight")
    check(3, 2, 2)
    page.get_by_label("2", exact=True).check()  # head 3 is gone: the last one is taken
    two = check(2, 1, 2)
    assert [dark for _, dark in two] == [dark for _, dark in start] and two != start
    page.get_by_label("12", exact=True).check()
    page.get_by_role("slider", name="head").press("End")
    check(12, 11, 2)
