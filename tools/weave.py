"""Weave: run each chapter of book/ and keep it, with its outputs, as notebooks/NN-name.ipynb.

    python tools/weave.py [--check] [--force] [--jobs N] [CHAPTER ...]

The notebook is a function of the chapter and of what its code reads: cell ids come from the text,
counts are 1, figures are reproducible SVG, and timings and progress bars are not kept, so that weaving
twice changes nothing. A hash of the code cells, the modules they import and the files they name is kept
in the notebook: a chapter runs again only when that changes; an edit of its prose is copied without a run.
`--check` runs and writes nothing and exits 1, with a line for every notebook that is not up to date.

A text whose front matter has `program: NAME.py` also becomes book/NAME.py: its cells tagged `program`, one after
the other, to be run without the book.
"""

import argparse
import ast
import asyncio
import ctypes
import glob
import hashlib
import io
import os
import re
import signal
import sys
import tempfile
import time
import tokenize
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import nbformat
import warm
import yaml
from chapters import (
    ROOT,
    Chapter,
    Refused,
    as_cell,
    chosen,
    clear_orphans,
    contents,
    digest_of,
    edited,
    front_matter,
    read,
    woven,
    write_whole,
)
from kernel import WEAVING, profile
from narrow import KIND as NARROW
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

LIMIT = 450_000  # bytes of a notebook
TIMEOUT = 600  # seconds for a cell: a kernel that hangs, not the 60 s a notebook may take
KEPT = ("module", "paper", "lit")
SOURCES = {".md", ".json", ".jsonl", ".mplstyle", ".bib", ".txt", ".csv", ".yml", ".safetensors", ".model"}
MACHINE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|usr|opt|Users|work|mnt|srv|var|private)/[\w.-]")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
BAR = re.compile(r"\d+(?:%\|.*\||it).*(?:it/s|s/it|\?it/s|\d\d:\d\d)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")

LAUNCH = '''import sys

if "google.colab" in sys.modules:  # on Colab, fetch the files this notebook reads; elsewhere they are here
    import os
    import subprocess

    url = "{url}"
    folder = os.path.join("/content", os.path.basename(url))
    if not os.path.exists(folder):
        subprocess.run(["git", "clone", "--quiet", "--depth", "1", url, folder], check=True)
    package = f"{{folder}}[data,figures]"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-e", package], check=True)
    sys.path.insert(0, folder)
    os.chdir(os.path.join(folder, "notebooks"))'''


def launch_cell(root: Path):
    """The first cell: on Colab it clones the repository that _config.yml names; None without an address."""
    config = root / "_config.yml"
    settings = yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {}
    url = (settings or {}).get("repository", {}).get("url")
    if not url:
        return None
    tags = {"tags": ["launch", "remove-cell"]}
    return nbformat.v4.new_code_cell(source=LAUNCH.format(url=url.rstrip("/")), metadata=tags)


def fold(cell) -> None:
    """Show a cell in Jupyter and on Colab as the page does: where that folds its source, they fold it, too."""
    tags = cell.metadata.get("tags", [])
    if "hide-input" in tags or "hide-cell" in tags or "launch" in tags:
        hidden = {"source_hidden": True} | ({"outputs_hidden": True} if "hide-cell" in tags and cell.outputs else {})
        cell.metadata = nbformat.from_dict(dict(cell.metadata) | {"jupyter": hidden, "cellView": "form"})


def name_cells(cells) -> None:
    """Give each cell an id made from its source, so that a new cell renames no other."""
    seen = Counter()
    for cell in cells:
        digest = hashlib.sha1(cell.source.encode(), usedforsecurity=False).hexdigest()[:8]
        seen[digest] += 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


# ---- what a notebook depends on


@cache
def imported(source: str) -> set[str]:
    """The names of annotated's modules that a source imports anywhere; `__init__` for the package itself."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module] + [f"{node.module}.{a.name}" for a in node.names if node.module == "annotated"]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == "annotated":
                found.add(rest.split(".")[0] or "__init__")
    return found


def closure(sources: list[str], root: Path) -> list[Path]:
    """The files of annotated that the sources import, with those that they import in turn."""
    todo, seen = set().union(*map(imported, sources), set()), set()
    while todo:
        name = todo.pop()
        path = root / "annotated" / f"{name}.py"
        if path not in seen and path.exists():
            seen.add(path)
            todo |= imported(path.read_text(encoding="utf-8"))
    return sorted(seen)


@cache
def bare(source: str) -> str:
    """A source without docstrings, comments and blank lines: editing those runs nothing again."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            for row in range(node.body[0].lineno, node.body[0].end_lineno + 1):
                lines[row - 1] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip())


def named_files(sources: list[str], root: Path) -> list[Path]:
    """The files, and the files of the folders, that strings of the sources name.

    Of the folder of all records only those records whose names are constants, too.
    """
    found, here = set(), root / "notebooks"
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    named = [here / text for text in texts if re.fullmatch(r"\.\./[\w./ -]*\w[\w./ -]*", text)]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            named += matches(node, root)
    for path in {path.resolve() for path in named}:
        if path.is_file():
            found.add(path)
        elif path.is_dir() and root.resolve() in path.parents:
            inside = {p for p in path.rglob("*") if p.is_file() and wanted(p.relative_to(path))}
            if path == root.resolve() / "results":
                inside = {p for p in inside if p.relative_to(path).parts[0] in texts}
            found |= inside
    return sorted(found)


def matches(text: ast.JoinedStr, root: Path) -> list[Path]:
    """What an f-string may name, `f"../results/run-{seed}/scores.json"`: any text may stand for each of its values.

    A record is named only by an f-string that has a part of the record's own name: any other would name all records.
    """
    parts = [glob.escape(part.value) if isinstance(part, ast.Constant) else "*" for part in text.values]
    pattern = re.sub(r"\*+", "*", "".join(parts))  # two stars would go down into every folder
    place = pattern.removeprefix("../")  # from the notebooks' folder to the book's
    name = place.removeprefix("results/").split("/")[0]
    return list(root.glob(place)) if place != pattern and re.search(r"\w", name) else []


def beside(module: Path) -> list[Path]:
    """The files beside a module, scripts and styles, that its strings name."""
    found = {module.parent / name for name in attached(module.read_text(encoding="utf-8"))}
    return sorted(path for path in found if path.is_file())


@cache
def attached(source: str) -> set[str]:
    """The strings of a source that may name a script or a style."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {text for text in strings if isinstance(text, str) and re.fullmatch(r"\w+\.(css|js)", text)}


def without_prose(text: str) -> str:
    """Front matter, headings and cells of a text: a page that lists the texts reads nothing else of them."""
    front = re.match(r"---\n.*?^---\n", text, re.DOTALL | re.MULTILINE)
    cells = re.findall(r"^```\{code-cell\}.*?^```$", text, re.DOTALL | re.MULTILINE)
    return "\n".join([front[0] if front else "", *re.findall(r"^#+ .+$", text, re.MULTILINE), *cells])


def wanted(relative: Path) -> bool:
    """Whether a file of a folder that is named may be read; its page about the folder is for people."""
    hidden = any(part.startswith((".", "_")) for part in relative.parts)
    return relative.suffix in SOURCES and relative.name != "README.md" and not hidden


def inputs(chapter: Chapter, root: Path) -> str:
    """The hash of everything that decides the outputs: code cells, imported modules, named files."""
    sources = [c.source for c in chapter.code()]
    digest = hashlib.sha256()

    def add(name, data):
        digest.update(f"{name} {len(data)}\n".encode() + data)

    for cell in chapter.code():
        add("cell", cell.source.encode())
        add("tags", b"raises-exception" if "raises-exception" in cell.tags else b"")
    try:
        for path in closure(sources, root):
            add(path.name, bare(path.read_text(encoding="utf-8")).encode())
            for file in beside(path):
                add(file.name, file.read_bytes())
        texts = root.resolve() / "book"
        for path in named_files(sources, root):
            name = path.relative_to(root.resolve()).as_posix()
            listed = path.suffix == ".md" and texts in path.parents and not any(name in source for source in sources)
            add(name, without_prose(path.read_text(encoding="utf-8")).encode() if listed else path.read_bytes())
        if any("matplotlib" in source for source in sources):  # it draws
            add("narrow.py", bare(Path(__file__).with_name("narrow.py").read_text(encoding="utf-8")).encode())
    except SyntaxError:
        pass  # running the chapter reports it where it stands
    return digest.hexdigest()


# ---- a program by itself


def program(chapter: Chapter) -> str:
    """The cells tagged `program` as one file, whose last line calls `main` with the command line's arguments."""
    made = f"Generated from {chapter.name} by tools/weave.py: edit the page, not this file."
    head = f'"""{chapter.front.get("about", chapter.title).strip()}\n{made}\n"""'
    cells = ["\n".join(c.source.rstrip().splitlines()) for c in chapter.code("program")]
    end = 'if __name__ == "__main__":\n    main(*sys.argv[1:])'
    return "\n\n\n".join([f"{head}\n\n{cells[0]}" if cells else head, *cells[1:], end]) + "\n"


def weave_program(path: Path, root: Path = ROOT, check: bool = False) -> str:
    """Bring a text's program up to date; a line to print, empty where it is or where there is none."""
    front = front_matter(path)
    if front is not None and not front.get("program"):
        return ""
    chapter = read(path)
    target, text = root / "book" / chapter.program, program(chapter)
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return ""
    if not check:
        write_whole(target, text)
    return f"book/{target.name} is " + (f"not what {chapter.name} says" if check else "written")


# ---- making a notebook


def assemble(chapter: Chapter, outputs: list, digest: str, root: Path):
    """The notebook: the chapter's cells, the code cells' outputs, and nothing of the machine."""
    cells, stored = [as_cell(c) for c in chapter.cells], iter(outputs)
    for cell in cells:
        if cell.cell_type == "code":
            cell.execution_count = 1  # nbval takes a count of None for a cell that was never run
            cell.outputs = [nbformat.from_dict(o) for o in next(stored)]
    launch = launch_cell(root)
    if launch is not None:
        launch.execution_count = 1
        cells.insert(0, launch)
    for cell in cells:
        if cell.cell_type == "code":
            fold(cell)
    name_cells(cells)
    front = {key: chapter.front[key] for key in KEPT if key in chapter.front}
    made_of = {"chapter": chapter.name, "cells": digest_of(contents(chapter.cells)), "inputs": digest}
    metadata = {
        "annotated": {**front, **made_of},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def text_of(notebook) -> str:
    """The notebook as it is written: keys sorted, one trailing newline."""
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


def run(chapter: Chapter, root: Path) -> list[list]:
    """The outputs of the chapter's code cells, one list a cell."""
    notebook = nbformat.v4.new_notebook(cells=[as_cell(c) for c in chapter.cells])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    warm.kernels()
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        # Given to the kernel alone: whoever weaves in a process of his own keeps the path that he had.
        env = os.environ | WEAVING | profile(folder, narrow=True) | {"PYTHONPATH": path}
        resources = {"metadata": {"path": str(root / "notebooks")}}
        client = NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=resources)
        client.on_notebook_start = end_by_signals
        try:
            client.execute(env=env)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise Refused(failure(chapter, notebook, error)) from error
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    return [[clean(o, root) for o in joined(c.outputs)] for c in cells]


def end_by_signals(notebook) -> None:
    """Let interrupts and requests to terminate end the process: nbclient would end its kernel only, and wait."""
    with suppress(RuntimeError):  # nbclient listens in the main thread alone
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)


def end_with_parent(parent: int) -> None:
    """Let the system end this process when its parent is gone: a worker would wait for jobs for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def failure(chapter: Chapter, notebook, error) -> str:
    """`book/02-attention.md:57: ValueError: ...` and the traceback of the cell that failed."""
    for cell, node in zip(chapter.cells, notebook.cells):
        for output in node.get("outputs", []):
            if output.output_type == "error" and "raises-exception" not in cell.tags:
                trace = ANSI.sub("", "\n".join(output.traceback))
                lines = re.findall(r"^Cell In\[\d+\], line (\d+)", trace, re.MULTILINE)
                line = int(lines[0]) if lines else 1
                return f"{chapter.at(cell, line)}: {output.ename}: {output.evalue}\n{trace}"
    text = str(error).strip().splitlines() or [type(error).__name__]
    return f"{chapter.name}:1: {type(error).__name__}: {text[0]}"


def joined(outputs: list) -> list:
    """The outputs without progress bars, neighbouring pieces of one stream as one: how it is cut is chance."""
    kept = []
    for output in outputs:
        if is_bar(output):
            continue
        if kept and output.output_type == kept[-1].output_type == "stream" and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def is_bar(output) -> bool:
    """A progress bar on stderr; anything else there is refused by `check_outputs`."""
    if output.output_type != "stream" or output.name != "stderr":
        return False
    parts = [p for p in re.split(r"[\r\n]+", ANSI.sub("", output.text)) if p.strip(" \x1b[A")]
    return all(BAR.search(p) for p in parts)


def clean(output, root: Path) -> dict:
    """An output without counts, timings and, in tracebacks, the place of this checkout; a narrow figure as metadata."""
    output = dict(output)
    if "execution_count" in output:
        output["execution_count"] = 1
    if NARROW in output.get("data", {}):  # a type that others do not know stands where they do not look
        data = dict(output["data"])
        output |= {"metadata": {**output["metadata"], "narrow": data.pop(NARROW)}, "data": data}
    if output["output_type"] == "error":
        output["traceback"] = [line.replace(f"{root}/", "") for line in output["traceback"]]
    return output


def check_outputs(chapter: Chapter, outputs: list) -> None:
    """Refuse what would differ on the next machine: stderr, absolute paths, addresses of objects."""
    for cell, stored in zip(chapter.code(), outputs):
        for output in stored:
            if output["output_type"] == "stream" and output["name"] == "stderr":
                raise Refused(f"{chapter.at(cell)}: the cell writes to stderr: {output['text'].strip()[:300]}")
            for text in texts(output):
                for pattern, what in ((MACHINE, "an absolute path"), (ADDRESS, "an object's address")):
                    if found := pattern.search(text):
                        part = text[max(0, found.start() - 20) : found.end() + 40]
                        hint = " (end the cell with a line that shows nothing)" if "Generator" in part else ""
                        raise Refused(f"{chapter.at(cell)}: {what} in the output: {part.strip()}{hint}")


def texts(output) -> list[str]:
    if output["output_type"] == "stream":
        return [output["text"]]
    if output["output_type"] == "error":
        return [output["evalue"], "\n".join(output["traceback"])]
    return [str(v) for k, v in output["data"].items() if k.startswith("text/") or k == "application/json"]


def weave(path: Path, root: Path = ROOT, check: bool = False, force: bool = False) -> tuple[str, str]:
    """Bring one notebook up to date. What was done (`same`, `copied`, `run`, `stale`) and a line to print."""
    target = root / "notebooks" / f"{path.stem}.ipynb"
    chapter = read(path)
    digest = inputs(chapter, root)
    old_text = target.read_text(encoding="utf-8") if target.exists() else ""
    if not force and edits_at_stake(old_text, chapter):
        message = f"notebooks/{target.name} was edited: `make untangle` carries that into {chapter.name}"
        raise Refused(message + "; --force drops it")
    outputs = None if force else stored_outputs(old_text, digest, chapter)
    if outputs is not None:
        text = text_of(assemble(chapter, outputs, digest, root))
        if text == old_text:
            return "same", ""
        if check:
            return "stale", f"notebooks/{target.name} does not say what {chapter.name} says"
    elif check:
        return "stale", f"notebooks/{target.name} must run again: its code, a module or a record changed"
    seconds = 0.0
    target.parent.mkdir(exist_ok=True)
    if outputs is None:
        start = time.perf_counter()
        outputs = run(chapter, root)
        seconds = time.perf_counter() - start
        check_outputs(chapter, outputs)
        text = text_of(assemble(chapter, outputs, digest, root))
    if (size := len(text.encode())) > LIMIT:
        raise Refused(f"{chapter.name}:1: the notebook weighs {size:,} bytes, {LIMIT:,} are allowed{heaviest(outputs)}")
    if text != old_text:
        write_whole(target, text)
    if seconds:
        return "run", f"notebooks/{target.name}: ran {seconds:.1f} s, {size / 1000:.0f} kB"
    return "copied", f"notebooks/{target.name}: prose only, nothing run"


def heaviest(outputs) -> str:
    sizes = [sum(len(str(o)) for o in stored) for stored in outputs]
    return f" (code cell {sizes.index(max(sizes)) + 1} alone {max(sizes):,})" if sizes else ""


def edits_at_stake(text: str, chapter: Chapter) -> bool:
    """Whether the notebook holds edits, made in Jupyter, that the chapter does not have."""
    try:
        notebook = nbformat.reads(text, as_version=4)
    except Exception:  # no notebook yet, or a damaged one
        return False
    return edited(notebook) and contents(notebook.cells) != contents(chapter.cells)


def stored_outputs(text: str, digest: str, chapter: Chapter):
    """The outputs a notebook holds, if they were made by the same inputs; else None."""
    try:
        notebook = nbformat.reads(text, as_version=4)
        if notebook.metadata["annotated"]["inputs"] != digest:
            return None
    except Exception:  # no notebook, or not one of ours: run the chapter
        return None
    cells = [c for c in notebook.cells if c.cell_type == "code" and "launch" not in c.metadata.get("tags", [])]
    if [c.source for c in cells] != [c.source for c in chapter.code()]:
        return None
    return [c.outputs for c in cells]


def attempt(job) -> tuple[str, str]:
    """`weave` for a worker process: a refusal comes back as text."""
    try:
        return weave(*job)
    except Refused as error:
        return "failed", str(error)


def orphans(root: Path) -> list[Path]:
    """The notebooks that no chapter makes."""
    stems = {p.stem for p in woven(root)}
    return [p for p in sorted((root / "notebooks").glob("*.ipynb")) if p.stem not in stems]


def is_ours(path: Path) -> bool:
    """Whether weaving wrote a notebook, in this place, and nobody edited it since."""
    try:
        notebook = nbformat.read(path, as_version=4)
        made_of = notebook.metadata["annotated"]
        return made_of["chapter"] == f"book/{path.stem}.md" and "cells" in made_of and not edited(notebook)
    except Exception:  # damaged, or without what weaving writes
        return False


def main(argv=None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Run the chapters whose inputs changed; make notebooks/*.ipynb.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="02 or book/02-attention.md; all by default")
    parser.add_argument("--check", action="store_true", help="run and write nothing, exit 1 where a notebook is stale")
    parser.add_argument("--force", action="store_true", help="run even what did not change")
    parser.add_argument("--jobs", type=int, default=1, help="chapters at a time (default 1)")
    args = parser.parse_args(argv)
    jobs = [(path, root, args.check, args.force) for path in chosen(args.chapters, root)]
    failed, total, start = False, Counter(), time.perf_counter()
    for path, *_ in jobs:
        with suppress(Refused):  # weaving it says why
            if line := weave_program(path, root, args.check):
                print(line)
                failed |= args.check
    workers = max(1, min(args.jobs, len(jobs) or 1))
    with ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),)) as pool:
        for what, line in pool.map(attempt, jobs):
            total[what] += 1
            failed |= what in ("failed", "stale")
            if line:
                print(line, file=sys.stderr if what == "failed" else sys.stdout, flush=True)
    failed |= clear_orphans(orphans(root), is_ours, args.check, unknown=failed and not args.check)
    done = ", ".join(f"{n} {what}" for what, n in sorted(total.items()))
    print(f"notebooks: {done or 'none'} ({time.perf_counter() - start:.1f} s)")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
