"""Draw the schematic drawings of the book, book/img/NAME.svg.

    python tools/drawings.py [NAME ...]      write those that changed, all by default
    python tools/drawings.py --check         write nothing; exit 1 when a file is not current
"""

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "book" / "img"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from chapters import write_whole  # noqa: E402


def drawn() -> dict:
    """Name -> function that makes the drawing's canvas."""
    import drawing
    from drawing.canvas import DRAWINGS

    for module in pkgutil.iter_modules(drawing.__path__):  # each registers its drawings
        importlib.import_module(f"drawing.{module.name}")

    return DRAWINGS


def stale(names, folder: Path = FOLDER) -> dict[str, str]:
    """Name -> text of the drawings whose file says something else."""
    known, out = drawn(), {}
    for name in names:
        text, path = known[name]().svg(), folder / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            out[name] = text
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the schematic drawings of the book.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="drawings to make; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not current")
    args = parser.parse_args()
    known = drawn()
    if unknown := sorted(set(args.names) - set(known)):
        print(f"no drawing {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    wrong = stale(args.names or known)
    for name, text in wrong.items():
        if args.check:
            print(f"book/img/{name}.svg is not current: python tools/drawings.py {name}", file=sys.stderr)
        else:
            write_whole(FOLDER / f"{name}.svg", text)
            print(f"book/img/{name}.svg")
    return 1 if args.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
