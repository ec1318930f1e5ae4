"""Fetch what the page needs and the repository does not keep: MathJax, four families of type, axe-core for the tests.

    python tools/web/fetch.py

`npm ci` fetches the packages of package.json at the versions of package-lock.json and checks them against the digests
there. What is used of them goes to `.cache/web-DIGEST`, whole or not at all: `page` for the book, `node` to typeset its
formulas, `test` for its tests, `lint` to check its scripts.
Where there is no npm the build goes on: math from the CDN, the reader's own typefaces, and a line that says so.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache"
LOCK = ("package.json", "package-lock.json")
CDN = "https://cdn.jsdelivr.net/npm/mathjax@3.2.2/es5/tex-mml-chtml.js"
CDN_INTEGRITY = "sha384-Wuix6BuhrWbjDBs24bXrjf4ZQ5aFeFWBuKkFekO2t8xFU0iNaLQfp2K6/1Nxveei"

TYPE = {  # family -> the subsets in use
    "source-serif-4": ("latin-wght-normal", "latin-wght-italic", "latin-ext-wght-normal", "greek-wght-normal"),
    "source-sans-3": ("latin-wght-normal", "latin-wght-italic"),
    "inconsolata": ("latin-wght-normal", "latin-ext-wght-normal"),
    "stix-two-text": ("latin-wght-normal", "latin-wght-italic"),
}
FILES = {  # pattern in node_modules -> folder
    "mathjax/es5/tex-mml-chtml.js": "page/mathjax",
    "mathjax/es5/output/chtml/fonts/woff-v2/*": "page/mathjax/output/chtml/fonts/woff-v2",
    "mathjax/LICENSE": "page/mathjax",
    "mathjax/es5/node-main.js": "node",  # with which node typesets at build time
    "mathjax/es5/adaptors/liteDOM.js": "node/adaptors",
    "mathjax/es5/input/tex.js": "node/input",
    "mathjax/es5/output/chtml.js": "node/output",
    "mathjax/es5/output/chtml/fonts/tex.js": "node/output/chtml/fonts",
    "mathjax/es5/a11y/assistive-mml.js": "node/a11y",
    "axe-core/axe.min.js": "test",
}
for name, subsets in TYPE.items():
    FILES[f"@fontsource-variable/{name}/LICENSE"] = "page/fonts"
    for subset in subsets:
        FILES[f"@fontsource-variable/{name}/files/{name}-{subset}.woff2"] = "page/fonts"


def place() -> Path:
    "Where everything stands once it is here; another lock or another choice of files is another place."
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in LOCK:
        digest.update((HERE / name).read_bytes())
    return CACHE / f"web-{digest.hexdigest()[:16]}"


def gather(modules: Path, folder: Path) -> None:
    "The files in use, out of node_modules; one that is missing there is an error."
    for pattern, below in FILES.items():
        found = [path for path in modules.glob(pattern) if path.is_file()]
        if not found:
            raise SystemExit(f"{pattern} is in none of the packages")
        for path in found:
            name = f"LICENSE-{path.parent.name}.txt" if path.name == "LICENSE" else path.name
            (folder / below).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / below / name)


def keep_linter(modules: Path, folder: Path) -> None:
    "eslint stays with all that it needs; what the page itself uses has been gathered."
    for name in ("mathjax", "@fontsource-variable", "axe-core"):
        shutil.rmtree(modules / name)
    modules.rename(folder / "node_modules")


def fetch() -> Path | None:
    "The folder with everything, fetched if it is not here yet; None where it cannot be had."
    npm = shutil.which("npm")
    if place().is_dir() or npm is None:
        return place() if place().is_dir() else None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        for name in LOCK:
            shutil.copyfile(HERE / name, Path(scratch) / name)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if "EINTEGRITY" in done.stderr or "EUSAGE" in done.stderr:  # a package or the lock is not what it should be
            said = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
            raise SystemExit("npm ci in tools/web: " + " ".join(filter(None, said[:5])))
        if done.returncode:
            return None
        whole = Path(scratch) / "whole"
        gather(Path(scratch) / "node_modules", whole)
        (whole / "lint").mkdir()
        keep_linter(Path(scratch) / "node_modules", whole / "lint")
        try:
            whole.rename(place())
        except OSError:  # another build was first
            if not place().is_dir():
                raise
    return place()


def main() -> int:
    if fetch() is None:
        why = "npm ci failed" if shutil.which("npm") else "there is no npm"
        print(f"{why}: the page will use the CDN for math and the reader's own typefaces")
    return 0


if __name__ == "__main__":
    sys.exit(main())
