"""Write what the explorers with the live model show before a touch, book/_static/explorers/NAME-first.js.

    python tools/first.py [NAME ...]

Each of them exports `first(model)`, which asks the model for the sentence that it begins with. Node runs it here, so
that a page need not fetch the weights to show it. tests/test_explorers_live.py holds the files against the model.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from chapters import write_whole
from explorers import FOLDER, computing, program

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"beam": "tatoeba-en-de", "model": "tatoeba-cpu", "without": "tatoeba-en-de"}
DIGITS = 5  # of each number: more than are shown


def first(name: str, weights: Path):
    "What an explorer's `first` makes of the model in a script of weights, in plain lists and numbers."
    code = f"""
      {program(name)}
      {computing(weights)}
      const plain = (_, x) => ArrayBuffer.isView(x) ? Array.from(x)
        : typeof x === "number" ? Number(x.toPrecision({DIGITS})) : x;
      it.first(model)
        .then((found) => process.stdout.write(JSON.stringify(found, plain)))
        .catch((error) => {{ console.error(error); process.exit(1); }});
    """
    done = subprocess.run([shutil.which("node") or "node", "-e", code], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def write(name: str, found) -> None:
    text = json.dumps(found, separators=(",", ":"))
    say = f"// Made by tools/first.py of the model in results/{MODELS[name]}.\n"
    code = f'((globalThis.annotated ??= {{}}).first ??= {{}})["{name}"] = {text};\n'
    write_whole(FOLDER / f"{name}-first.js", say + code)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write what explorers with the live model show first.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all by default")
    names = parser.parse_args().names or MODELS
    sys.path.insert(0, str(ROOT))
    from annotated.page import to_page

    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            weights = Path(folder) / f"{MODELS[name]}.js"
            if not weights.exists():
                to_page(ROOT / "results" / MODELS[name], weights)
            write(name, first(name, weights))
            print(f"book/_static/explorers/{name}-first.js")


if __name__ == "__main__":
    main()
