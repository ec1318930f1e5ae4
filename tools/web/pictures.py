"""Make the pictures that cannot be SVG: the preview for links to the book, and the icon for a home screen.

    python tools/web/pictures.py

Headless Chromium draws both from _static/logo.svg. The repository keeps them, because a build may have no browser.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))
from page import ROOT, opened

STATIC = ROOT / "book" / "_static"
CARD = """<body style="margin: 0; width: 1200px; height: 630px; background: #fdfcf9; color: #22211f; display: flex;
align-items: center; font-family: Charter, 'DejaVu Serif', serif"><div style="width: 380px; padding-left: 70px">%s</div>
<div style="padding: 0 70px 0 50px"><div style="font-size: 74px; line-height: 1.12">Attention Is All You Need,
Executed</div><div style="font: 31px/1.4 'DejaVu Sans', sans-serif; color: #5d5a53; padding-top: 34px">The paper that
introduced the Transformer, read line by line and run.</div></div></body>"""
ICON = '<body style="margin: 0; background: #fdfcf9"><div style="width: 148px; padding: 16px">%s</div></body>'


def main() -> int:
    logo = (STATIC / "logo.svg").read_text(encoding="utf-8")
    with opened() as browser:
        for name, page, width, height in (("card", CARD, 1200, 630), ("icon", ICON, 180, 180)):
            tab = browser.new_page(viewport={"width": width, "height": height})
            tab.set_content(page % logo)
            tab.screenshot(path=STATIC / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
