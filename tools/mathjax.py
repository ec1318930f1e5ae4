"""Fetch what the page needs and the repository does not keep: MathJax and four families of type.

    python tools/mathjax.py            all that the page is made of
    python tools/mathjax.py axe-core   what a test needs besides

Each package comes from the npm registry through npm itself, at one version, and is checked against the
digest below before anything of it is used. It goes to `.cache/npm/NAME-VERSION`, whole or not at all.
Where there is no npm the build goes on: math from the CDN, the reader's own typefaces, and a line that says so.
"""

import fnmatch
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "npm"
CDN = "https://cdn.jsdelivr.net/npm/mathjax@3.2.2/es5/tex-mml-chtml.js"


@dataclass(frozen=True)
class Package:
    version: str
    sha256: str  # of the archive
    files: dict[str, str]  # pattern inside the archive -> folder under _static, "" for the root


def family(version: str, sha256: str, *files: str) -> Package:
    "A typeface: the subsets we use and the licence that travels with them."
    return Package(version, sha256, {f"files/{name}.woff2": "fonts" for name in files} | {"LICENSE": "fonts"})


PACKAGES = {
    "mathjax": Package(
        "3.2.2",
        "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09",
        {
            "es5/tex-mml-chtml.js": "mathjax",
            "es5/output/chtml/fonts/woff-v2/*": "mathjax/output/chtml/fonts/woff-v2",
            "LICENSE": "mathjax",
        },
    ),
    "@fontsource-variable/source-serif-4": family(
        "5.3.1",
        "8c452853c74be1e43e9fbfe76321c26f4678a2d431e93209ff1d9faec03fd96f",
        "source-serif-4-latin-wght-normal",
        "source-serif-4-latin-wght-italic",
        "source-serif-4-latin-ext-wght-normal",
        "source-serif-4-greek-wght-normal",
    ),
    "@fontsource-variable/source-sans-3": family(
        "5.3.0", "115c2d5a38a05d52c77ba02e4d939644bae30585a30a2e4657a3be2c99d5c7dc", "source-sans-3-latin-wght-normal", "source-sans-3-latin-wght-italic"
    ),
    "@fontsource-variable/inconsolata": family(
        "5.3.0", "274b0bbc06ef8c74982eca67d4206ad0984767e9d72957e87724bedd0e405aea", "inconsolata-latin-wght-normal", "inconsolata-latin-ext-wght-normal"
    ),
    "@fontsource-variable/stix-two-text": family(
        "5.3.0", "bce477b122769580029cf905bd175a112e616af857aa500ba5eaa05a7bd3e921", "stix-two-text-latin-wght-normal", "stix-two-text-latin-wght-italic"
    ),
    "axe-core": Package("4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745", {"axe.min.js": "", "LICENSE": ""}),
}
PAGE = [name for name in PACKAGES if name != "axe-core"]


def place(name: str) -> Path:
    "Where a package stands once it is here."
    return CACHE / f"{name.split('/')[-1]}-{PACKAGES[name].version}"


def unpack(archive: Path, name: str, folder: Path) -> None:
    "The files we use, out of the archive; a file that is missing there is an error."
    with tarfile.open(archive) as tar:
        members = {m.name.removeprefix("package/"): m for m in tar.getmembers() if m.isfile()}
        for pattern, below in PACKAGES[name].files.items():
            found = fnmatch.filter(members, pattern)
            if not found:
                raise SystemExit(f"{name} {PACKAGES[name].version} holds no {pattern}")
            for path in found:
                base = Path(path).name
                if base == "LICENSE":  # several packages share a folder
                    base = f"LICENSE-{name.split('/')[-1]}.txt"
                (folder / below).mkdir(parents=True, exist_ok=True)
                (folder / below / base).write_bytes(tar.extractfile(members[path]).read())


def fetch(name: str) -> Path | None:
    "The package's folder, fetched if it is not here yet; None where it cannot be had."
    if place(name).is_dir():
        return place(name)
    npm = shutil.which("npm")
    if npm is None:
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        command = [npm, "pack", "--silent", f"{name}@{PACKAGES[name].version}", "--pack-destination", scratch]
        if subprocess.run(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return None
        archive = next(Path(scratch).glob("*.tgz"))
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != PACKAGES[name].sha256:
            raise SystemExit(f"{archive.name}: sha256 is {digest}, {PACKAGES[name].sha256} was expected")
        whole = Path(scratch) / "whole"
        unpack(archive, name, whole)
        try:
            whole.rename(place(name))
        except OSError:  # another build was first
            if not place(name).is_dir():
                raise
    return place(name)


def main(names: list[str]) -> int:
    for name in names or PAGE:
        if name not in PACKAGES:
            print(f"{name} is not one of {', '.join(PACKAGES)}", file=sys.stderr)
            return 2
    missing = [name for name in names or PAGE if fetch(name) is None]
    if missing:
        why = "npm could not fetch" if shutil.which("npm") else "there is no npm to fetch"
        print(f"{why} {', '.join(missing)}: the page will use the CDN for math and the reader's own typefaces")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
