"""Measure what an update costs while one drags: every slider and every handle of the explorers on the built pages.

    python tools/frames.py [--html _build/html] [--only lookup,rate] [--slower 4] [--json FILE]

Chromium's processor is slowed down so many times. `script` is the median time of the script for one change of a
control, drawing included; `style` is what the browser adds for style and layout, a mean. Both together must stay under
16 ms for 60 frames a second. Nothing fails here: the numbers are printed, and depend on what else the machine does.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

from page import HEIGHT, ROOT, opened, pages, served

SCRIPTS = ROOT / "book" / "_static" / "explorers"
UPDATES = 40

# Callbacks of frames are timed, because most drawings wait for one.
WATCH = """
window.spent = 0;
window.rawFrame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (act) => window.rawFrame((time) => {
  const begun = performance.now();
  try { act(time); } finally { window.spent += performance.now() - begun; }
});"""

CONTROLS = """() => [...document.querySelectorAll('[class~=alive]')].flatMap((host) => {
  const all = [...host.querySelectorAll('.explorer :is(input[type=range], .handle)')];
  const label = (one) => one.labels?.[0]?.textContent ?? one.getAttribute('aria-label');
  return all.map((one, i) => [host.localName, i, label(one).trim()]);
})"""

DRAG = """async ([host, index, updates]) => {
  const frame = () => new Promise((done) => window.rawFrame(() => setTimeout(done)));
  const find = () => document.querySelector(host).querySelectorAll('.explorer :is(input[type=range], .handle)')[index];
  const costs = [];
  for (let i = 0; i < updates; i++) {
    await frame();
    const one = find(), [low, high] = [Number(one.min), Number(one.max)];
    window.spent = 0;
    const begun = performance.now();
    if (one.matches('.handle')) {
      const key = ['ArrowRight', 'ArrowUp', 'ArrowLeft', 'ArrowDown'][Math.floor(i / 5) % 4];
      one.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    } else {
      one.value = low + (high - low) * Math.abs(((i + 1) % 20) - 10) / 10;
      one.dispatchEvent(new Event('input', { bubbles: true }));
    }
    const now = performance.now() - begun;
    await frame();
    await frame();
    costs.push(now + window.spent);
  }
  return costs;
}"""


def metrics(wire) -> dict[str, float]:
    return {one["name"]: one["value"] for one in wire.send("Performance.getMetrics")["metrics"]}


def measured(browser, address: str, slower: float, wanted: set[str]) -> Iterator[dict]:
    "A row for each control of each explorer on a page."
    page = browser.new_page(viewport={"width": 1280, "height": HEIGHT}, reduced_motion="reduce")
    page.set_default_timeout(240_000)
    page.add_init_script(WATCH)
    page.goto(address, wait_until="load")
    wire = page.context.new_cdp_session(page)
    wire.send("Performance.enable", {"timeDomain": "threadTicks"})
    wire.send("Emulation.setCPUThrottlingRate", {"rate": slower})
    for host, index, label in page.evaluate(CONTROLS):
        name = host.removeprefix("annotated-")
        if wanted and name not in wanted:
            continue
        page.evaluate("host => document.querySelector(host).scrollIntoView()", host)
        page.wait_for_timeout(300)  # what comes into sight is laid out once, and is no part of an update
        before = metrics(wire)
        costs = page.evaluate(DRAG, [host, index, UPDATES])
        after = metrics(wire)
        style = sum(after[key] - before[key] for key in ("LayoutDuration", "RecalcStyleDuration"))
        yield {"name": name, "control": label, "script ms": round(statistics.median(costs), 1),
               "style ms": round(1000 * style / UPDATES, 1)}
    page.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--only", default="", help="only these explorers, as in lookup,rate")
    parser.add_argument("--slower", type=float, default=4, help="times that the processor is slowed down")
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    rows: list[dict] = []
    done: set[str] = set()
    with served(options.html) as site, opened() as browser:
        for name in pages(options.html):
            held = set(re.findall(r"<annotated-([a-z0-9-]+)", (options.html / name).read_text(encoding="utf-8")))
            held = (held & wanted if wanted else held) - done  # one that stands on two pages is measured once
            if not held:
                continue
            done |= held
            for row in measured(browser, f"{site}/{name}", options.slower, held):
                rows.append(row)
                size = (SCRIPTS / f"{row['name']}.js").stat().st_size
                print(f"{row['name']:12} {row['control'][:44]:44} {row['script ms']:6.1f} ms script"
                      f" {row['style ms']:6.1f} ms style {size:7,} bytes", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
