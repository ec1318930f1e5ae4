"""Check the page's scripts with eslint, at the version of package-lock.json.

    python tools/web/lint.py

Exits 1 on a complaint. Where there is no npm or no node, a line says so and nothing is checked.
"""

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fetch import HERE, fetch

ROOT = HERE.parent.parent
SCRIPTS = ("annotated", "book/_static", "book/_ext", "tools/web")


def main() -> int:
    folder, node = fetch(), shutil.which("node")
    if folder is None or node is None:
        print("the page's scripts are not checked: node and npm are needed for eslint", file=sys.stderr)
        return 0
    place = folder / "lint"
    shutil.copyfile(HERE / "eslint.config.mjs", place / "eslint.config.mjs")  # where its imports are found
    files = sorted(path for name in SCRIPTS for path in (ROOT / name).rglob("*.js"))
    command = [node, place / "node_modules/eslint/bin/eslint.js", "-c", place / "eslint.config.mjs", *files]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
