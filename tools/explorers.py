"""Where the explorers' scripts are, and what each of them needs: for the build, tools/first.py and the tests."""

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "book" / "_static" / "explorers"


def needs(name: str) -> list[str]:
    """The scripts that must run before an explorer's own, in their order: shared.js, and those that its first lines
    name, `// needs: engine, live`."""
    head = (FOLDER / f"{name}.js").read_text(encoding="utf-8")[:2000]
    more = re.search(r"^// needs: (.+)$", head, re.M)
    return ["shared", *(more[1].replace(",", " ").split() if more else [])]
