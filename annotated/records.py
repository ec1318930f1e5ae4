"""Records of long runs.

Generated from book/J-records.md by tools/tangle.py: edit the chapter, not this file.
"""

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from annotated.files import _check_fields, atomic_write, file_lock, read_json, sha256_of, write_json, write_text

__all__ = ["commit", "about_corpus", "about_model", "provenance", "read_run", "Record"]


def _git(*words: str) -> str | None:
    """What git says in the working directory; None without git or without a commit."""
    with suppress(OSError):
        done = subprocess.run(["git", *words], capture_output=True)
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "surrogateescape")
    return None


def _difference(*how: str) -> str | None:
    """What `git diff HEAD` says, but for the provenance of records; None without a repository."""
    return _git("diff", "HEAD", *how, "--", ":/", ":(top,exclude)results/*/run.json")


def commit() -> str | None:
    """The commit of the repository that the working directory belongs to, or None.

    It ends in "-dirty" where files differ from it. Where only the files were copied,
    the variable ANNOTATED_COMMIT says it.
    """
    said = _git("rev-parse", "--short=12", "HEAD")
    if not said:
        return os.environ.get("ANNOTATED_COMMIT")
    return said.strip() + "-dirty" * bool(_difference())


def _uncommitted() -> dict | None:
    """What differs from the commit: {} for nothing, None where there is no repository."""
    difference = _difference()
    if difference is None:
        return None
    found: dict[str, Any] = {}
    if difference:
        found["sha256"] = sha256_of(difference.encode("utf-8", "surrogateescape"))
        found["changed"] = (_difference("--name-only") or "").splitlines()
    places = ":/annotated", ":/benchmarks"
    others = _git("ls-files", "--others", "--exclude-standard", "--full-name", "--", *places)
    if others:
        found["untracked"] = others.splitlines()
    return found


def _command() -> str:
    """The command line of this process, to be pasted."""
    script = Path(sys.argv[0])
    inside = script.parts[-2:] == ("annotated", "__main__.py") or script.stem == "annotated"
    parts = script.parts[-2:] if script.is_absolute() else script.parts
    program = "-m annotated" if inside else shlex.quote("/".join(parts))
    start = "python"
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)  # torchrun's; others set WORLD_SIZE, too
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if here and size > 1:
        more = f"--nnodes {size // here} " if size > here else ""
        start = f"torchrun {more}--nproc-per-node {here}"
    words = " ".join([start, program, *map(shlex.quote, sys.argv[1:])])
    return words.encode("utf-8", "replace").decode()  # a name on Unix may be no UTF-8


def _machine() -> dict:
    """The processor, its cores, the threads in use, and the GPU."""
    cpu = Path("/proc/cpuinfo")  # Linux names the processor here
    rows = cpu.read_text().splitlines() if cpu.exists() else []
    names = [row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _now() -> str:
    """The date and the time of day, of UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> float | None:
    """How many processes ran or waited in the last minute, on average; None on Windows."""
    with suppress(AttributeError, OSError):
        return round(os.getloadavg()[0], 2)
    return None


def _versions(packages: tuple[str, ...]) -> dict:
    """The versions of Python, of torch and of some more packages; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "torch": torch.__version__}
    for name in packages:
        found[name] = None
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _plain(value: object) -> Any:
    """A value as JSON gives it back; a dataclass becomes a dictionary."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.loads(json.dumps(value, default=str))


def about_corpus(corpus: Any, **more: object) -> dict:
    """What a record says of a `Corpus`: name, licence, the sha256 of its files; and more."""
    sums = {"licence": corpus.licence, "sha256": corpus.provenance}
    return {"corpus": corpus.name, **sums, **more}


def about_model(folder: str | Path) -> dict:
    """What a record says of a model folder: its name, and the sha256 of its weights."""
    found = sorted(Path(folder).glob("*.safetensors")) or sorted(Path(folder).glob("*.bin"))
    return {"folder": str(folder), "sha256": sha256_of(*found) if found else None}


def provenance(packages: tuple[str, ...] = (), **what: object) -> dict:
    """Where a run that begins now comes from.

    Args:
        packages: names of packages whose versions matter, beside Python and torch.
        what: what the run is asked to do: config, recipe, seed, data, model, ...

    Returns:
        command, commit, uncommitted, date, machine, load, versions; and `what`.
    """
    return {
        "command": _command(),
        "commit": commit(),
        "uncommitted": _uncommitted(),
        "date": _now(),
        "machine": _machine(),
        "load": _load(),
        "versions": _versions(packages),
        **{name: _plain(value) for name, value in what.items()},
    }


def read_run(folder: str | Path) -> dict:
    """What run.json holds; ValueError where it is missing or damaged."""
    run = read_json(Path(folder, "run.json"))
    kinds = {"config": dict, "recipe": dict, "data": dict, "continued": list}
    there = {name: kind for name, kind in kinds.items() if name in run}
    _check_fields(Path(folder, "run.json"), run, **there)
    return run


def _fields(name: str, value: object, begun: dict) -> Iterator[tuple]:
    """(field, what it was, what it is) of one part of a run."""
    was = begun.get(name)
    now = _plain(value)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        yield name, was, now
        return
    if is_dataclass(value):
        known = {f.name: f.default for f in fields(value) if f.default is not MISSING}
        was = _plain(known) | was
    for field, new in now.items():
        yield field, was.get(field), new


def _check_same(folder: str | Path, free: tuple[str, ...] = (), **what: object) -> None:
    """Refuse to go on with other settings or other data than a folder was begun with.

    Args:
        folder: with a run.json.
        free: names of parts or of fields that may differ.
        what: parts of run.json, as `provenance` takes them.

    Raises:
        ValueError: names the first field that differs; or run.json is damaged.
    """
    begun = read_run(folder)
    for name, value in what.items():
        for field, was, now in _fields(name, value, begun):
            if was != now and name not in free and field not in free:
                short = not any(isinstance(side, dict | list) for side in (was, now))
                other = f"{field}={was}, now {field}={now}" if short else f"another {field}"
                other = "other data" if field == "sha256" else other
                raise ValueError(f"{folder} was begun with {other}: choose another folder")


def _sitting(begun: dict, now: dict, free: tuple[str, ...]) -> dict:
    """The entry of run.json's `continued` for a run that goes on."""
    noted = {name: now[name] for name in ("command", "commit", "uncommitted", "date", "load")}
    differ = {n: now[n] for n in ("machine", "versions") if now[n] != begun.get(n)}
    parts = *(part for part in now.values() if isinstance(part, dict)), now
    loose = {name: part[name] for part in parts for name in free if name in part}
    after = {"after": begun["failed"]} if "failed" in begun else {}
    return noted | differ | loose | after


@contextmanager
def _changed(path: Path, anew: bool = False) -> Iterator[dict]:
    """A JSON file as it is by now, {} for none or anew; what is changed inside is written."""
    lock = path.with_name(".lock")
    with file_lock(lock):
        try:
            content = {} if anew or not path.exists() else read_json(path)
            yield content
            write_json(path, content)
        finally:
            with suppress(OSError):  # Windows removes no open file
                lock.unlink()


_PARTS = ("run.json", "scores.json", "log.jsonl")  # of a record; other files are the caller's


def _parts_of(folder):
    """What a record's files hold, by name."""
    files = [folder / name for name in _PARTS]
    return {path.name: path.read_bytes() for path in files if path.exists()}


def _taken_out(folder):
    """Remove a record's files, and return what they held."""
    before = _parts_of(folder)
    for name in before:  # run.json first: what is left without it is refused
        (folder / name).unlink()
    return before


def _put_back(folder, before):
    """Restore an old record where the new one has no scores; returns whether that was done."""
    if not before or (folder / "scores.json").exists():
        return False
    for name in _PARTS:
        if name not in before:
            (folder / name).unlink(missing_ok=True)
            continue
        with atomic_write(folder / name) as file:
            file.write_bytes(before[name])
    return True


class Record:
    """What a long run leaves in a folder: run.json, log.jsonl, scores.json and other files."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.before: dict[str, bytes] = {}  # what a new run has replaced

    @classmethod
    def begin(cls, folder: str | Path, free: tuple[str, ...] = (),
              packages: tuple[str, ...] = (), anew: bool = False, **what: object) -> "Record":
        """Write run.json now, or note in it that the run goes on.

        Args:
            folder, free, what: see `_check_same`.
            packages: see `provenance`.
            anew: replace the record that is there, if any, instead of going on with it; a run
                that fails inside `with` before it has scores puts the old one back.
        """
        record = cls(folder)
        now = provenance(packages, **what)
        with _changed(record.folder / "run.json", anew) as run:
            record.before = _taken_out(record.folder) if anew else {}
            if not run and (left := _parts_of(record.folder)):
                raise ValueError(f"{folder} holds {min(left)} of an unknown run: choose another")
            if not run:
                run.update(now)
            else:
                _check_same(folder, free, **what)
                run.setdefault("continued", []).append(_sitting(run, now, free))
                for told in ("failed", "ended", "ended_load"):  # of the sitting before
                    run.pop(told, None)
        return record

    def change(self, name: str) -> AbstractContextManager[dict]:
        """A JSON file as it is by now, {} for none, to be changed in `with`, one at a time."""
        return _changed(self.folder / name)

    def log(self, **line: object) -> None:
        """Append a line to log.jsonl."""
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def scores(self) -> dict:
        """What scores.json holds so far; {} before it is written."""
        path = self.folder / "scores.json"
        return read_json(path) if path.exists() else {}

    def write_scores(self, scores: object, indent: int | None = 1) -> None:
        """Write scores.json."""
        write_json(self.folder / "scores.json", scores, indent)

    def write(self, name: str, text: str) -> None:
        """Write another file."""
        write_text(self.folder / name, text)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and _put_back(self.folder, self.before):
            return
        # The error that ends the run says more than that a full disk takes no note of it.
        passed = () if error is None else (OSError, ValueError)
        with suppress(*passed), self.change("run.json") as run:
            run.pop("failed", None)
            run.update(ended=_now(), ended_load=_load())
            if error is not None:
                run["failed"] = ": ".join(filter(None, (type(error).__name__, str(error))))
