"""Damage to the files of a folder, and what the command line makes of it.

Not a benchmark itself: 13_damage.py and tests/test_damage.py use it.
"""

import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

import torch

from annotated.cli import main
from annotated.data import Subwords, Words
from annotated.decoding import save
from annotated.interop import to_marian
from annotated.transformer import TINY, Transformer

KINDS = ("model", "marian", "training")
SIZES = replace(TINY, N=1, d_model=8, d_ff=8, h=2)
TEXT = [f"the {a} sees the {b} ." for a in ("dog", "cat", "cow") for b in ("man", "bird", "fish", "hen")]
LINES = [TEXT[0], "", TEXT[-1]]
TRAIN = "--preset tiny --N 1 --d_model 8 --d_ff 8 --h 2 --vocab 285 --source_tokens 60 --target_tokens 60".split()
TRAIN += "--warmup 2 --score 0 --save_every 2 --evaluate_every 2 --keep 3 --threads 1 --device cpu".split()
NUMBERS = (-1, 0, 1, 7, 2**31, 2**70, 1.5, 1e308, float("nan"), float("inf"))
VALUES = (*NUMBERS, True, None, "", "x", "8", [], [[]], [[10**9]], {}, {"a": 1})
MEMORY = 400  # MB that a command may take beside what the process has
SECONDS = 120  # a command that takes longer hangs


# ---- folders


def make(folder: Path) -> None:
    """Write a model folder of each kind, and what `train` makes of each when nothing is damaged."""
    torch.manual_seed(0)
    words = Words.build([(line, line) for line in TEXT])
    save(folder / "model", Transformer(replace(SIZES, vocab=len(words))), words)
    pieces = Subwords.train(TEXT, 285)
    to_marian(Transformer(replace(SIZES, vocab=285, P_drop=0.0)), pieces, folder / "marian")
    (folder / "text").write_text("".join(line + "\n" for line in TEXT))
    for steps, name in ((4, "training"), (6, "wanted")):
        if name == "wanted":
            shutil.copytree(folder / "training", folder / name)
        status, _, said = call("training", folder / name, steps)
        assert status == 0, said


def files_of(folder: Path) -> list[str]:
    """The files that can be damaged, in a fixed order."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


# ---- damage


def another_value(content: object, chance: Random) -> object:
    """JSON in which one value, at any depth, is another one, or gone, or one more."""
    if not isinstance(content, dict | list) or not content or chance.random() < 0.1:
        return chance.choice(VALUES)
    places: list = list(content) if isinstance(content, dict) else list(range(len(content)))
    place = chance.choice(places)
    what = chance.random()
    if isinstance(content, dict) and what < 0.1:
        return {key: value for key, value in content.items() if key != place}
    if isinstance(content, dict) and what < 0.2:
        return {**content, "more": chance.choice(VALUES)}
    changed = dict(content) if isinstance(content, dict) else list(content)
    changed[place] = another_value(content[place], chance)  # type: ignore
    return changed


def change_json(content: bytes, chance: Random) -> bytes:
    rows = content.split(b"\n")
    row = chance.randrange(len(rows))
    try:
        return json.dumps(another_value(json.loads(content), chance)).encode()
    except ValueError:  # a log has a JSON object a line
        pass
    try:
        rows[row] = json.dumps(another_value(json.loads(rows[row]), chance)).encode()
    except ValueError:
        rows[row] = b"{"
    return b"\n".join(rows)


def change_header(content: bytes, chance: Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(another_value(json.loads(content[8 : 8 + size]), chance)).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def fill_numbers(content: bytes, chance: Random) -> bytes:
    begin = 8 + int.from_bytes(content[:8], "little")
    number = torch.tensor([chance.choice([float("nan"), float("inf"), -float("inf"), 3e38])])
    return content[:begin] + number.numpy().tobytes() * ((len(content) - begin) // 4)


def flip(content: bytes, chance: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 5, 100])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(content: bytes, chance: Random) -> bytes:
    return content[: chance.randrange(len(content))]


def garbage(content: bytes, chance: Random) -> bytes:
    others = [b"", b"[" * 100_000, bytes(1000), b"\xff\xfe", b"null", b"[]"]
    return chance.choice([*others, chance.randbytes(1000), content * 2])


def gone(content: bytes, chance: Random) -> None:
    return None


def damage(folder: Path, chance: Random) -> str:
    """Damage one file of a folder; returns what was done."""
    name = chance.choice(files_of(folder))
    ways = [flip, flip, cut, garbage, gone]
    if name.endswith((".json", ".jsonl")):
        ways += [change_json] * 10
    if name.endswith(".safetensors"):
        ways += [change_header, change_header, fill_numbers]
    way = chance.choice(ways)
    content = way((folder / name).read_bytes(), chance)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    return f"{way.__name__} {name}"


# ---- what becomes of it


def call(kind: str, folder: Path, steps: int = 6) -> tuple[int, str, str]:
    """Translate with a model, or go on with a training, in this process: status, stdout, stderr."""
    text = "".join(line + "\n" for line in LINES).encode()
    command = ["translate", "--model", str(folder), "--beam", "2", "--threads", "1", "--device", "cpu"]
    if kind == "training":
        source, target = (folder.parent / name for name in ("text", "same"))
        if not target.exists():  # one file for both is refused
            shutil.copy(source, target)
        files = ["--source", str(source), "--target", str(target)]
        command = ["train", *files, *TRAIN, "--steps", str(steps), "--out", str(folder)]
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(text))), redirect_stdout(out), redirect_stderr(err):
        status = main(command)
    return status, out.getvalue(), err.getvalue()


@contextmanager
def limits() -> Iterator[None]:
    """Raises where what is inside takes too long or too much memory."""

    def late(number, frame):
        raise AssertionError(f"no end after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    had = peak(forget=True)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert peak() - had < MEMORY, f"{peak() - had:.0f} MB of memory"


def peak(forget: bool = False) -> float:
    """The most memory of this process so far, or since it was last forgotten, in MB; 0 where nobody says."""
    try:
        if forget:
            Path("/proc/self/clear_refs").write_text("5")
        rows = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(row.split()[1]) / 1000 for row in rows if row.startswith("VmHWM"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fault(kind: str, folder: Path, wanted: Path) -> tuple[int, str]:
    """The status of a command on a damaged folder, and what is wrong with that; "" for nothing."""
    before = contents(folder)
    try:
        with limits():
            status, out, said = call(kind, folder)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return -1, f"{type(error).__name__}: {error}"[:300]
    after = contents(folder)
    lines = [line for line in said.replace("\r", "\n").split("\n") if line.startswith("annotated ")]
    changed = {name for name in before if before[name] != after.get(name)}
    if status == 2:
        may = ("run.json", "tokens") if kind == "training" else ()  # a sitting is noted; tokens are made again
        lost = [name for name in changed if not name.startswith(may)]
        if len(lines) != 1 or "Traceback" in said or out:
            return status, f"not one line: {said[-300:]!r} {out[:100]!r}"
        return status, f"changed: {lost}" if lost else ""
    if status != 0 or lines:
        return status, f"status {status}: {said[-300:]!r}"
    if kind != "training":
        return status, "" if out.count("\n") == len(LINES) and not changed else f"{out!r} {changed}"
    same = (folder / "model.safetensors").read_bytes() == (wanted / "model.safetensors").read_bytes()
    return status, "" if same else "other weights, and no word"


def trial(place: Path, kind: str, seed: int) -> tuple[str, int, str]:
    """Damage a copy of the folder of a kind: what was done, the status, what is wrong with that."""
    folder = place / f"trial-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(place / kind, folder)
    done = damage(folder, Random(seed))
    return done, *fault(kind, folder, place / "wanted")
