"""Chapter 5's explorer: sizes, gradients and likeness are torch's with the package's layers, and each control changes them."""

import pytest
import torch
from explore import node, with_browser, with_node

from annotated.attention import scaled_dot_product_attention
from annotated.layers import AddNorm, LayerNorm, PreNorm


class NoNorm(AddNorm):
    def forward(self, x, sublayer):
        return self.add(x, sublayer(x))


def wrapped(order, residual):
    "A sub-layer's wrapper: the package's own with a residual connection, written out without."
    norm = LayerNorm(16).double()
    if residual:
        return {"after": AddNorm, "before": PreNorm, "none": NoNorm}[order](16).double()
    return {"after": lambda x, f: norm(f(x)), "before": lambda x, f: f(norm(x)), "none": lambda x, f: f(x)}[order]


def sublayers(layer):
    W = {name: torch.tensor(w, dtype=torch.float64) for name, w in layer.items()}
    return (lambda z: scaled_dot_product_attention(z @ W["Q"], z @ W["K"], z @ W["V"]),
            lambda z: torch.relu(z @ W["W_1"]) @ W["W_2"])


def expected(drawn, order, residual):
    x = torch.tensor(drawn["x"], dtype=torch.float64, requires_grad=True)
    wrap = wrapped(order, residual)
    states = [x]
    for layer in drawn["layers"]:
        attention, network = sublayers(layer)
        states.append(wrap(wrap(states[-1], attention), network))
    end = LayerNorm(16).double()(states[-1]) if order == "before" else states[-1]
    gradients = torch.autograd.grad((end * torch.tensor(drawn["upstream"], dtype=torch.float64)).sum(), states)
    seen = torch.stack(states).detach()
    unit = torch.nn.functional.normalize(seen, dim=-1)
    return {"size": seen.square().mean((1, 2)).sqrt().tolist(), "gradient": [g.norm().item() for g in gradients],
            "likeness": ((unit @ unit.mT).sum((1, 2)) - 5).div(20).tolist()}


@with_node
def test_a_stack_is_torchs():
    cases = [(order, residual) for order in ("after", "before", "none") for residual in (True, False)]
    for seed, N, scale in ((1, 12, 1), (5, 3, 0.25), (6, 5, 2)):
        drawn, found = node("stack", """(() => { const d = it.draw(x.seed, x.N, x.scale);
            return [d, x.cases.map(([o, r]) => it.run(d.x, d.layers, d.upstream, o, r))]; })()""",
                            {"seed": seed, "N": N, "scale": scale, "cases": cases})
        assert len(drawn["layers"]) == N
        for (order, residual), one in zip(cases, found):
            for key, values in expected(drawn, order, residual).items():
                assert one[key] == pytest.approx(values, rel=1e-6), (order, residual, key, seed)
        limit = scale * (6 / 32) ** 0.5
        weights = torch.tensor([layer["Q"] for layer in drawn["layers"]])
        assert 0.9 * limit < weights.abs().max() <= limit and weights.mean().abs() < 0.1 * limit


@with_node
def test_a_depth_cuts_the_same_stack():
    short, deep = node("stack", "[it.draw(1, 2, 1), it.draw(1, 7, 1)]")
    assert short["x"] == deep["x"] and short["layers"] == deep["layers"][:2] and short["upstream"] == deep["upstream"]


def number(text: str) -> float:
    front, _, power = text.partition(" \u00b7 10")  # 7.2 · 10²⁵
    raised = "".join("0123456789-"["\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b".index(c)] for c in power)
    return float(front.replace("\u2212", "-").replace(",", "")) * 10 ** int(raised or 0)


def table(page):
    page.wait_for_timeout(400)
    rows = page.eval_on_selector_all(".readings tbody tr", "rows => rows.map(r => [...r.children].slice(1).map(c => c.textContent))")
    return [[number(x) for x in row] for row in rows]


@with_browser
@with_node
@pytest.mark.parametrize("width", [1280, 360])
def test_residual_norm_depth_and_scale(alive, width):
    page = alive("stack", width)

    def check(order, residual, N, scale=1):
        drawn = node("stack", "it.draw(1, x[0], x[1])", [N, scale])
        wanted = expected(drawn, order, residual)
        rows = [[wanted[key][layer] for layer in (0, (N + 1) // 2, N)] for key in ("size", "gradient", "likeness")]
        for found, row in zip(table(page), rows, strict=True):
            assert found == pytest.approx(row, rel=0.06, abs=0.0051)  # two digits at the least

    check("after", True, 12)
    assert page.locator("text.code").text_content() == "norm(x + f(x))"
    page.get_by_label("residual connection").focus()
    page.keyboard.press("Space")
    check("after", False, 12)
    assert page.locator("text.code").text_content() == "norm(f(x))"
    page.get_by_label("nowhere").check()
    check("none", False, 12)
    page.get_by_label("residual connection").press("Space")
    page.get_by_role("slider", name="layers").press("End")
    page.get_by_role("slider", name="weights times").press("End")
    check("none", True, 16, 4)
    curve = page.locator(".wire.thick.o").get_attribute("d")
    page.get_by_label("likeness of five words").check()
    page.wait_for_timeout(200)
    assert page.locator(".wire.thick.o").get_attribute("d") != curve
    page.get_by_label("before the sub-layer").check()
    check("before", True, 16, 4)
