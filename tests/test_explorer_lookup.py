"""Chapter 2's explorers: their numbers are Python's, and a key press or a drag changes what it should."""

import pytest
import torch
from explore import node, with_browser, with_node

from annotated.attention import attention_weights, masked_softmax, scaled_dot_product_attention


@with_node
def test_softmax_with_and_without_a_mask():
    torch.manual_seed(0)
    scores = 20 * torch.randn(7, 5, dtype=torch.float64)
    mask = torch.rand(7, 5) < 0.6
    mask[2] = False
    found = node("shared", "x.scores.map((row, i) => [it.softmax(row), it.softmax(row, x.mask[i])])",
                 {"scores": scores.tolist(), "mask": mask.tolist()})
    torch.testing.assert_close(torch.tensor(found)[:, 0], scores.softmax(-1).float())
    torch.testing.assert_close(torch.tensor(found)[:, 1], masked_softmax(scores, mask).float())


@with_node
def test_a_lookup_is_equation_1():
    torch.manual_seed(0)
    q, k, v = (torch.randn(11, n, 3, dtype=torch.float64) for n in (1, 5, 5))
    found = node("lookup", "x.q.map((q, i) => it.lookup(q[0], x.k[i], x.v[i], Math.sqrt(3)))",
                 {"q": q.tolist(), "k": k.tolist(), "v": v.tolist()})
    torch.testing.assert_close(torch.tensor([f["weights"] for f in found]), attention_weights(q, k)[:, 0].float())
    torch.testing.assert_close(torch.tensor([f["output"] for f in found]), scaled_dot_product_attention(q, k, v)[:, 0].float())
    torch.testing.assert_close(torch.tensor([f["products"] for f in found]), (q @ k.mT)[:, 0].float())


@with_node
def test_the_still_begins_as_the_explorer():
    from drawing.lookup import PLANE

    assert node("lookup", "it.START") == PLANE


@with_node
@pytest.mark.parametrize("d_k", [1, 64, 1024])
def test_products_spread_as_the_root_of_the_width(d_k):
    draws = f"const all = it.products(5, 4000); for (let i = 0; i < {d_k}; i++) all.grow(); return all.widths.at(-1);"
    rows = torch.tensor(node("spread", f"(() => {{ {draws} }})()"))
    assert rows.shape == (4000, 5)  # at d_k 1 a query's square scales all five: many queries for a spread within a few percent
    torch.testing.assert_close(rows.std(), torch.tensor(float(d_k) ** 0.5), rtol=0.1, atol=0)
    assert rows.mean().abs() < 0.1 * d_k**0.5
    if d_k == 1:  # a query near 0 makes all of its products small
        assert torch.corrcoef(rows.abs().T)[0, 1:].min() > 0.3


@with_node
def test_the_summary_is_torchs():
    torch.manual_seed(0)
    rows = 3 * torch.randn(13, 8, dtype=torch.float64)
    found = node("spread", "it.summary(x)", rows.tolist())
    weights = rows.softmax(-1)
    slope = torch.stack([torch.autograd.functional.jacobian(lambda s: s.softmax(-1), row).trace() for row in rows]).mean()
    assert found == pytest.approx({"spread": rows.square().mean().sqrt().item(), "largest": weights.amax(-1).mean().item(),
                                   "slope": slope.item()})


def cells(page):
    return page.eval_on_selector_all(".readings tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))")


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_a_query_is_moved_by_key_and_by_hand(alive, width):
    from drawing.lookup import PLANE

    page = alive("lookup", width)
    q, k = (torch.tensor(PLANE[name]) for name in "qk")
    assert [row[3] for row in cells(page)] == [f"{w:.2f}" for w in attention_weights(q, k)[0]]
    handle = page.get_by_role("slider", name="query q")
    handle.focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(100)
    q[0, 0] -= 100 / 26
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(q[0, 0].clamp(-3, 3).item(), abs=0.01)
    assert [row[3] for row in cells(page)] == [f"{w:.2f}" for w in attention_weights(q.clamp(-3, 3), k)[0]]
    before = cells(page)
    box = handle.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 60, box["y"] + box["height"] / 2 + 10, steps=4)
    page.mouse.up()
    page.wait_for_timeout(100)
    assert cells(page) != before
    after = handle.bounding_box()  # the point lies where it was let go
    assert after["x"] - box["x"] == pytest.approx(60, abs=1) and after["y"] - box["y"] == pytest.approx(10, abs=1)
    page.get_by_label("not divided").check()
    page.wait_for_timeout(100)
    assert all(row[1] == row[2] for row in cells(page))


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_the_root_keeps_the_spread(alive, width):
    page = alive("spread", width)
    page.get_by_role("slider", name="d_k").focus()
    page.keyboard.press("End")
    told = "n => document.querySelector('.told').textContent.startsWith(`At d_k ${n} `)"
    page.wait_for_function(told, arg=1024)
    (_, plain, divided), (_, sharp, soft), _ = cells(page)
    assert 25 < float(plain) < 40 and 0.8 < float(divided) < 1.2
    assert float(sharp) > 0.9 > 0.6 > float(soft)
    before = page.text_content(".readings")
    page.get_by_role("button", name="Draw again").click()
    page.wait_for_function("before => document.querySelector('.readings').textContent !== before", arg=before)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Home")
    page.wait_for_function(told, arg=1)
    assert cells(page)[0][1] == cells(page)[0][2]  # the root of 1 changes nothing
