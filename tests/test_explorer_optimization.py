"""The explorers of chapter 9: the learning rate and label smoothing are the package's, at the reader's own settings."""

import json
import math
import random

import pytest
import torch
from explore import node, rest, with_browser, with_node
from tangle import ROOT

from annotated.optimization import label_smoothed_loss, learning_rate, spread_over_all
from annotated.transformer import BASE

PAPER = json.loads((ROOT / "book" / "paper.json").read_text(encoding="utf-8"))
STEPS = PAPER["training"]["base_steps"]


def rows(page):
    rest(page)
    return [row.split("\t") for row in page.locator(".readings tbody tr").all_inner_texts()]


def shown(x):
    "A number as the explorer writes it."
    front, power = f"{x:.2e}".split("e")
    return f"{front} · 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


# ---- the rate


@with_node
def test_the_rate_is_the_packages_and_starts_with_the_papers_settings():
    chance = random.Random(0)
    asked = [[chance.randrange(1, STEPS + 1), chance.randrange(1, 4096), chance.randrange(1, 50_000)] for _ in range(500)]
    asked += [[warmup + d, 512, warmup] for warmup in (1, 40, 4000) for d in (-1, 0, 1) if warmup + d]
    made = node("rate", "x.map(([step, d_model, warmup]) => it.learningRate(step, { d_model, warmup }))", asked)
    for row, rate in zip(asked, made, strict=True):
        assert math.isclose(rate, learning_rate(*row), rel_tol=1e-12)
    start = node("rate", "[it.PAPER.d_model, it.PAPER.warmup, it.STEPS]")
    assert start == [BASE.d_model, PAPER["training"]["warmup_steps"], STEPS]
    assert node("rate", "it.WIDTHS.includes(512) && it.WARMUPS.includes(4000)")


@with_node
def test_numbers_are_rounded_as_python_rounds():
    chance = random.Random(0)
    asked = [chance.uniform(-10, 10) * 10.0 ** chance.randrange(-8, 12) for _ in range(500)]
    asked += [round(chance.uniform(-99, 99), 3) for _ in range(2000)]  # many end in 5, and no double is exactly that
    asked += [chance.randrange(-9999, 9999) / 16 for _ in range(500)] + [15.25, 0.5, 1.5, 1.015, -0.001, 0, 1e15]  # ties
    for digits in range(4):
        wanted = [f"{x:,.{digits}f}" for x in asked]
        wanted = [text.replace("-", "−" if float(text.replace(",", "")) else "") for text in wanted]
        assert node("rate", f"x.map((n) => shared.words(n, {digits}))", asked) == wanted
    asked = [abs(x) for x in asked] + [1_125_000, 10.0**20 / 3, 9.995, 1e-12]
    assert node("rate", "x.map((n) => shared.scientific(n))", asked) == [shown(x) for x in asked]


def table_of(d_model, warmup, step):
    def row(name, n):
        curve = "rising" if n < warmup else "falling" if n > warmup else "both"
        return [name, f"{n:,}", shown(learning_rate(n, d_model, warmup)), curve]

    return [row("first", 1), row("peak", warmup), row("read", step), row("last", STEPS)]


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_the_rate_follows_its_three_sliders(alive, width):
    page = alive("rate", width)
    assert rows(page) == table_of(512, 4000, 16_000)
    page.get_by_label("warmup_steps").press("ArrowRight")
    assert rows(page) == table_of(512, 6000, 16_000)
    page.get_by_label("d_model").press("ArrowLeft")
    page.get_by_label("step to read").press("Home")
    assert rows(page) == table_of(256, 6000, 1)
    page.get_by_label("step to read").press("ArrowRight")
    assert rows(page) == table_of(256, 6000, 500)
    peak = shown(learning_rate(6000, 256, 6000))
    assert page.locator(".told").inner_text().startswith(f"Peak {peak} in step 6,000; step 500: ")
    label = page.locator("svg.drawing").get_attribute("aria-label")
    assert f"rises to {peak} in step 6,000" in label
    page.get_by_role("button", name="as in the paper").press("Enter")
    assert rows(page) == table_of(512, 4000, 500)


@with_browser
@pytest.mark.parametrize(("keys", "highest"), [(("End", "End"), 1e-3), (("Home", "Home"), 1e-2)])
def test_the_curve_stays_within_its_frame_and_its_peak_stands_where_the_frame_says(alive, keys, highest):
    page = alive("rate", 360)
    for label, key in zip(("d_model", "warmup_steps"), keys, strict=True):
        page.get_by_label(label).press(key)
    page.wait_for_function("k => document.querySelector('svg.drawing').getAttribute('aria-label').includes(k)", arg="step 40,000" if keys[0] == "End" else "step 400")
    at = [2048, 40_000] if keys[0] == "End" else [64, 400]
    peak, low, high = page.evaluate("""() => {
      const frame = [...document.querySelectorAll('svg.drawing .rule')].map((e) => e.getBBox());
      const y = frame.map((b) => b.y), dot = document.querySelector('svg.drawing circle.dot');
      const curve = document.querySelector('svg.drawing .thick').getBBox();
      if (curve.y < Math.min(...y) - 1 || curve.y + curve.height > Math.max(...y.concat(frame.map((b) => b.y + b.height))) + 1) return [NaN, 0, 0];
      return [Number(dot.getAttribute('cy')), Math.max(...frame.map((b) => b.y + b.height)), Math.min(...y)];
    }""")
    assert math.isclose((low - peak) / (low - high), learning_rate(at[1], *at) / highest, rel_tol=1e-3)


# ---- label smoothing


@with_node
def test_the_loss_its_target_and_its_floor_are_the_packages():
    generator, chance = torch.Generator().manual_seed(0), random.Random(0)
    asked = []
    for _ in range(300):
        vocab = chance.randrange(2, 12)
        logits = (chance.choice([1, 4, 30]) * torch.randn(vocab, generator=generator, dtype=torch.double)).tolist()
        asked.append([logits, chance.randrange(vocab), chance.choice([0, 0.1, 0.5, 1, chance.random()])])
    made = node("smoothing", "x.map(([logits, right, eps]) => it.smoothed(logits, right, eps))", asked)
    for (logits, right, eps), now in zip(asked, made, strict=True):
        z, wanted = torch.tensor(logits, dtype=torch.double), torch.tensor(right)
        loss = label_smoothed_loss(z[None], wanted[None], eps, pad=-1).item()
        assert math.isclose(now["loss"], loss, rel_tol=1e-9, abs_tol=1e-12)
        q = torch.tensor(now["q"], dtype=torch.double)
        if eps < 1:
            torch.testing.assert_close(q, spread_over_all(wanted, len(logits), eps).double(), atol=1e-7, rtol=1e-6)
        torch.testing.assert_close(torch.tensor(now["p"], dtype=torch.double), z.softmax(0), atol=1e-12, rtol=1e-9)
        floor = label_smoothed_loss(q.clamp(min=1e-300).log()[None], wanted[None], eps, pad=-1).item()
        assert math.isclose(now["floor"], floor, abs_tol=1e-9) and now["loss"] >= now["floor"] - 1e-9
        assert math.isclose(now["right"], -q[right].item() * z.log_softmax(0)[right].item(), abs_tol=1e-9)


@with_node
def test_downhill_is_gradient_descent():
    logits = torch.tensor([0.5, 3.0, 1.5, 0.0, -0.5], dtype=torch.double, requires_grad=True)
    for _ in range(7):
        loss = label_smoothed_loss(logits[None], torch.tensor([1]), 0.1, pad=-1)
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 0.5 * gradient).detach().requires_grad_()
    made = node("smoothing", "it.downhill(it.START.logits, it.RIGHT, it.START.eps, 7, 0.5)")
    torch.testing.assert_close(torch.tensor(made, dtype=torch.double), logits.detach())


def state(page):
    "eps and the logits as the sliders have them, and the five numbers under the drawing."
    values = [float(e.input_value()) for e in page.locator("input[type=range]").all()]
    return values[0], values[1:], [float(row[1]) for row in rows(page)]


def expected(eps, logits):
    now = label_smoothed_loss(torch.tensor([logits], dtype=torch.double), torch.tensor([1]), eps, pad=-1).item()
    q = spread_over_all(torch.tensor(1), 5, eps).double()
    right = -(q * torch.tensor(logits, dtype=torch.double).log_softmax(0))[1].item()
    floor = -torch.special.xlogy(q, q).sum().item()
    return pytest.approx([now, right, now - right, floor, now - floor], abs=0.00051)


@with_browser
@pytest.mark.parametrize("width", [1280, 360])
def test_the_loss_follows_its_sliders(alive, width):
    page = alive("smoothing", width)
    eps, logits, numbers = state(page)
    assert (eps, logits) == (0.1, [0.5, 3.0, 1.5, 0.0, -0.5]) and numbers == expected(eps, logits)
    bars = page.locator("svg.drawing").get_attribute("aria-label")
    p = torch.tensor(logits).softmax(0).tolist()
    assert bars.startswith(f"Target against prediction: der 0.02 against {p[0]:.2f}, Hund 0.92 against {p[1]:.2f}, ")
    page.get_by_label("eps_ls").press("PageUp")
    for word in ("der", "Hund", "Katze", "sieht", "eos"):
        before = state(page)
        page.get_by_label(f"logit of {word}").press("PageUp")
        eps, logits, numbers = state(page)
        assert logits != before[1] and numbers == expected(eps, logits) and numbers != before[2]
    assert eps > 0.1
    page.get_by_role("button", name="as at first").press("Enter")
    assert state(page)[:2] == (0.1, [0.5, 3.0, 1.5, 0.0, -0.5])


@with_browser
def test_without_smoothing_the_loss_falls_on_and_with_it_there_is_a_floor(alive):
    page = alive("smoothing", 360)
    walk = page.get_by_role("button", name="100 steps downhill")
    for _ in range(5):
        walk.press("Enter")
    _, logits, numbers = state(page)
    assert numbers[-1] == 0 and numbers[0] == numbers[3] > 0.3
    assert state(page)[2] == expected(0.1, logits)
    page.get_by_label("eps_ls").press("Home")
    losses = []
    for _ in range(3):
        walk.press("Enter")
        eps, logits, numbers = state(page)
        assert eps == 0 and numbers[2] == numbers[3] == 0 and numbers == expected(eps, logits)
        losses.append(numbers[0])
    assert losses[0] > losses[1] > losses[2] > 0


BURST = """async () => {
  const root = document.querySelector('.explorer'), input = root.querySelector('input[type=range]');
  const seen = () => root.querySelector('.readings').textContent;
  const said = [], drawn = [], before = seen();
  new MutationObserver((found) => said.push(...found)).observe(root.querySelector('.told'), { subtree: true, characterData: true, childList: true });
  new MutationObserver(() => drawn.push(seen())).observe(root.querySelector('.readings'), { subtree: true, characterData: true, childList: true });
  const last = Number(input.value) > (Number(input.min) + Number(input.max)) / 2 ? 0.1 : 0.9; // not where it began
  for (const share of [0.2, 0.9, 0.4, 0.8, last]) {
    input.value = Number(input.min) + share * (input.max - input.min);
    input.dispatchEvent(new Event('input', { bubbles: true }));
  }
  await null; // observers have run
  const early = drawn.length;
  await new Promise((done) => setTimeout(done, 600));
  return [early, drawn.length, said.length, seen() !== before];
}"""


@with_browser
@pytest.mark.parametrize("name", ["rate", "smoothing", "costs", "spread", "positions", "stack", "heads"])
def test_many_changes_in_one_frame_are_drawn_once_and_said_once(alive, name):
    page = alive(name)
    rest(page)
    assert page.evaluate(BURST) == [0, 1, 1, True]
