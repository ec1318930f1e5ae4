"""Where the explorers' scripts are, what each of them needs, and how node runs one: for the build, tools/first.py and
the tests."""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "book" / "_static" / "explorers"


def needs(name: str) -> list[str]:
    """The scripts that must run before an explorer's own, in their order: shared.js, and those that its first lines
    name, `// needs: engine, live`."""
    head = (FOLDER / f"{name}.js").read_text(encoding="utf-8")[:2000]
    more = re.search(r"^// needs: (.+)$", head, re.M)
    return ["shared", *(more[1].replace(",", " ").split() if more else [])]


def require(path: Path) -> str:
    "JavaScript for the exports of a script."
    return f"require({json.dumps(str(path))})"


def program(name: str) -> str:
    "JavaScript for node, where there are no elements, after which `it` has the exports of an explorer's script."
    page = "globalThis.HTMLElement ??= class {}; globalThis.customElements ??= { define() {} };"
    others = [each for each in needs(name) if not each.endswith("-first")]  # tools/first.py may have to make those yet
    before = "".join(f"{require(FOLDER / f'{each}.js')};\n" for each in others)
    return f"{page}\n{before}const it = {require(FOLDER / f'{name}.js')};\n"


def computing(weights: Path) -> str:
    "JavaScript for node, after which `model` computes with a script of weights, as a page's model does in its worker."
    return f"""
      const engine = {require(FOLDER / "engine.js")};
      {require(weights)};
      const inner = new engine.Transformer(annotated.weights[{json.dumps(weights.stem)}]);
      const model = {{
        config: inner.config,
        translate: (text, options) => engine.translate(inner, text, options),
        trace: (text, options) => engine.trace(inner, text, options),
      }};
    """
