"""The models that pages compute with: scripts made at build of what lies in results/, beside the engine that reads them.

They stand in _static/explorers/models/ and are fetched by no page before somebody touches an explorer that needs one.
"""

import functools
import hashlib
import sys
from pathlib import Path

from sphinx.util import logging

ROOT = Path(__file__).resolve().parent.parent.parent
MODELS = ("tatoeba-en-de", "tatoeba-cpu", "grammar-tiny")
BUDGET = 10_000_000  # bytes of a script
log = logging.getLogger(__name__)


def makers(folder: Path) -> list[Path]:
    "What a script is made of: the model's folder, and what writes it."
    return [*sorted(path for path in folder.iterdir() if path.is_file()), ROOT / "annotated" / "page.py"]


def outdated(folder: Path, out: Path) -> bool:
    "Whether a script is missing, or older than what it is made of."
    return not out.exists() or out.stat().st_mtime < max(path.stat().st_mtime for path in makers(folder))


@functools.cache
def version() -> str:
    "A digest of what all scripts are made of, for the addresses by which the engine asks for them."
    digest = hashlib.sha256()
    for path in (path for name in MODELS for path in makers(ROOT / "results" / name)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def write(app, error) -> None:
    "Write each model's script into the built book; one over the budget is a warning, which fails the build."
    if error is not None or app.builder.format != "html":
        return
    sys.path.insert(0, str(ROOT))
    try:
        from annotated.page import to_page
    finally:
        sys.path.pop(0)

    for name in MODELS:
        folder = ROOT / "results" / name
        out = Path(app.outdir, "_static", "explorers", "models", f"{name}.js")
        out.parent.mkdir(parents=True, exist_ok=True)
        if outdated(folder, out):
            to_page(folder, out)
        size = out.stat().st_size
        if size > BUDGET:
            log.warning("%s has %s bytes: a page's model may have %s", out.name, f"{size:,}", f"{BUDGET:,}")


def setup(app):
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
