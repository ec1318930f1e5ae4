"""Check the form of everything: code, types, the text's rules, and that what is generated is what its source says.

    python tools/check.py

Prints the remarks of each check and, of one that failed, its name; exits 1 if one did. The checks of this folder
share one reading of the chapters, half of their time, and run while other processes check types, code and scripts.
"""

import subprocess
import sys
import tempfile

import collect
import layout
import tangle
import weave
from chapters import ROOT

PROGRAMS = {
    "mypy": ["-m", "mypy", "--no-error-summary"],
    "ruff": ["-m", "ruff", "check", "--quiet", "."],
    "drawings": ["tools/drawings.py", "--check"],
    "web/lint": ["tools/web/lint.py"],
}
READERS = {"tangle": tangle, "collect": collect, "weave": weave}


def start(command: list[str]):
    """A program in a process of its own, and the file that takes what it prints."""
    out = tempfile.TemporaryFile("w+", encoding="utf-8")
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT), out


def main() -> int:
    started = {name: start(command) for name, command in PROGRAMS.items()}
    failed = [name for name, module in READERS.items() if module.main(["--check"])]
    failed += ["layout"] if layout.main([]) else []
    for name, (process, out) in started.items():
        failed += [name] if process.wait() else []
        out.seek(0)
        print(out.read(), end="")
    if failed:
        print(f"lint: failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
