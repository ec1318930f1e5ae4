"""Files that survive.

Generated from book/I-files.md by tools/tangle.py: edit the chapter, not this file.
"""

import codecs
import hashlib
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import IO, Any

__all__ = [
    "read_file",
    "read_json",
    "fsync",
    "atomic_write",
    "write_text",
    "write_json",
    "sha256_of",
    "file_lock",
    "resumable_output",
]


def read_file(path: str | Path) -> bytes:
    """Read a file whole; ValueError where it is missing or cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def read_json(path: str | Path) -> dict:
    """Read a JSON object; ValueError in one line, with the file's name, where there is none."""
    content = read_file(path)
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError(f"{path} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ValueError(f"{path} is damaged: it should hold names with values, not a {kind}")
    return value


_KINDS = {int: "a whole number from 0 on", str: "a text", dict: "names with values", list: "a list"}


def _check_fields(path: str | Path, content: dict, **kinds: type) -> None:
    """Refuse a JSON object of a file in which a field is missing or of another kind.

    Raises:
        ValueError: names the file, the field and what it holds.
    """
    for name, kind in kinds.items():
        value = content.get(name)
        fits = type(value) is kind
        if fits and kind is int:
            fits = 0 <= value < 2**63
        if not fits:
            found = repr(value)[:40]
            raise ValueError(f"{path} is damaged: its {name} should be {_KINDS[kind]}, not {found}")


def _decode_line(line: bytes, name: object, number: int, hint: str = "") -> str:
    """The text of a line without its end, the first without the mark of UTF-8.

    Raises:
        ValueError: names the file, the line and the first byte that is no UTF-8; or the file
            is compressed.
    """
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
        if line.startswith(b"\x1f\x8b"):
            raise ValueError(f"{name} is compressed: unpack it with gunzip first")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"{name}, line {number} is not UTF-8 text"
        byte = f"byte {error.start + 1} of it is {line[error.start]:#04x}"
        raise ValueError(f"{place}, {byte}: convert the file to UTF-8{hint}") from None


def _text_lines(file, name="the input", encoding=None):
    """Yield the lines of a file opened for bytes, cut at line feeds only, without their ends.

    A ValueError names the line that is not of the encoding; without one, UTF-8 is wanted.
    """
    if encoding:
        yield from _encoded_lines(file, name, encoding)
        return
    for number, line in enumerate(file, start=1):
        text = _decode_line(line, name, number, ", or name its encoding by --encoding")
        if "\0" in text:
            what = f"{name}, line {number} holds a zero byte"
            said = f"{what}: if it is UTF-16, say so by --encoding utf-16"
            raise ValueError(rf"{said}, else remove it with tr -d '\0' < FILE > NEW")
        yield text


def _refuse_lone_cr(lines, path):
    """Refuse the lines of a file, or the first two, if CR ends them: ValueError."""
    if len(lines) == 1 and "\r" in lines[0].strip():
        said = f"{path} is a single line, with CR where lines should end"
        raise ValueError(rf"{said}: convert it with tr '\r' '\n' < FILE > NEW")


def _encoded_lines(blocks, name, encoding):
    """The same of blocks of bytes in an encoding by name."""
    decoder = codecs.getincrementaldecoder(encoding)()
    number = 1
    parts = [""]
    for block in chain(blocks, [b""]):
        try:
            first, *others = decoder.decode(block, not block).split("\n")
        except UnicodeError:
            place = f"{name}, line {number}"
            raise ValueError(f"{place} is no text in the encoding {encoding}") from None
        parts.append(first)
        for other in others:
            line = "".join(parts).removesuffix("\r")
            yield line if number > 1 else line.removeprefix("\ufeff")
            number += 1
            parts = [other]
    if last := "".join(parts):
        last = last.removesuffix("\r")
        yield last if number > 1 else last.removeprefix("\ufeff")


def _one_line(text):
    """A text with each run of white space, line ends among it, made one space."""
    return " ".join(text.split())


def _is_visible(line):
    """Whether a text has a character other than separators, controls and marks of format."""
    if line[:1].isprintable() and line[:1].strip():  # as nearly always
        return True
    unseen = "Cc", "Cf", "Zl", "Zp", "Zs"
    return any(unicodedata.category(character) not in unseen for character in line)


def _open_input(path):
    """A file's bytes, standard input's for None; ValueError where it cannot be read."""
    if path is None and sys.stdin is None:  # the shell's <&-
        raise ValueError("standard input is closed: name a file by --input")
    try:
        return nullcontext(sys.stdin.buffer) if path is None else open(path, "rb")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def fsync(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk, safe from a power cut."""
    posix = os.name == "posix"
    if posix or not os.path.isdir(path):  # elsewhere folders cannot be opened
        number = os.open(path, os.O_RDONLY if posix else os.O_RDWR)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_back(path: Path, old: Path) -> None:
    """What was set aside goes back if nothing stands in its place, and else away."""
    if path.exists():
        _remove(old)
    elif old.exists():
        os.replace(old, path)


def _usual_permissions(path: Path) -> int:
    """The permissions that a new file gets here; the path is used for a moment."""
    path.mkdir()  # a folder, because a kill may leave it, and whoever cleans up expects one
    mode = path.stat().st_mode & 0o666
    path.rmdir()
    return mode


def _complete(fresh: Path, mode: int) -> None:
    """Give every file its permissions, and bring all of them to the disk."""
    for written in (*fresh.rglob("*"), fresh):
        if written.is_file():
            with suppress(OSError):  # on a disk without permissions
                written.chmod(mode)
        fsync(written)


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A path beside the given one to write to; at the end on the disk and renamed into place.

    After an error the old file or folder is as it was; after a kill it is there, or set
    aside beside its place until the next call. The folder around it is made where missing.
    It is for one writer at a time: see `file_lock`. A symbolic link is replaced, not followed;
    `.NAME.part` and `.NAME.old` beside it are its own, and removed if they are there.

    Raises:
        ValueError: a file was written, and path is a folder.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (path.with_name(f".{path.name}.{what}") for what in ("part", "old"))
    _put_back(path, old)
    _remove(fresh)
    mode = path.stat().st_mode & 0o777 if path.is_file() else _usual_permissions(fresh)
    try:
        yield fresh
        if path.is_dir() and not fresh.is_dir():
            raise ValueError(f"{path} is a folder, which would be lost: name a file")
        _complete(fresh, mode)
        if path.is_dir():
            os.replace(path, old)
        os.replace(fresh, path)
        fsync(path.parent)
    finally:
        _put_back(path, old)
        _remove(fresh)


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8, whole or not at all, its line ends as they are."""
    with atomic_write(path) as fresh:
        fresh.write_text(text, encoding="utf-8", newline="")


def write_json(path: str | Path, content: object, indent: int | None = 1) -> None:
    """Write JSON, whole or not at all; letters such as ü stay readable."""
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n")


def sha256_of(*contents: bytes | str | Path) -> str | None:
    """The sha256 of a file or of bytes, or of the hashes of several together.

    Returns:
        64 hexadecimal digits, for one file those of `sha256sum`; None where one of them
        is no regular file.
    """
    hashes = []
    for content in contents:
        if isinstance(content, bytes):
            hashes.append(hashlib.sha256(content))
        elif Path(content).is_file():
            with open(content, "rb") as file:
                hashes.append(hashlib.file_digest(file, "sha256"))
        else:
            return None
    if len(hashes) == 1:
        return hashes[0].hexdigest()
    return hashlib.sha256(b"".join(each.digest() for each in hashes)).hexdigest()


def _lock(file: IO[bytes]) -> bool:
    """Whether this process has the lock of an open file; True where there are no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # another process has it
        return False
    except OSError:  # no locks on this drive
        pass
    return True


@contextmanager
def file_lock(path: str | Path, wait: bool = True) -> Iterator[IO[bytes]]:
    """A file, open to be added to, that one process at a time can have open in this way.

    Args:
        path: made where it is missing, with the folder around it.
        wait: for another process to end; otherwise it is an error.

    Raises:
        ValueError: another process has it, or has just given it another name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a+b") as file:
            locked = _lock(file)
            named = False
            with suppress(FileNotFoundError):  # removed or renamed by now
                named = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if locked and named:
                yield file
                return
        if not wait and locked:
            raise ValueError(f"another process has just finished {path}: try again")
        if not wait:
            raise ValueError(f"another process is writing there: {path} is locked; "
                             "wait for its end, or name another place")
        time.sleep(0.05)


class _Done:
    """How much of an output is written: lines, bytes, and their hash."""

    def __init__(self):
        self.lines = 0
        self.bytes = 0
        self.content = hashlib.sha256()

    def add(self, lines: int, content: bytes) -> None:
        """Count some more lines, given with what they consist of."""
        self.lines += lines
        self.bytes += len(content)
        self.content.update(content)

    def note(self) -> dict:
        """What is noted; the hash changes with any byte and with the number of lines."""
        both = self.content.copy()
        both.update(str(self.lines).encode())
        return {"lines": self.lines, "bytes": self.bytes, "sha256": both.hexdigest()}


def _told(part: Path) -> dict | None:
    """The note beside an unfinished output; ValueError where one of the two is not ours."""
    note = Path(f"{part}.json")
    if note.exists():
        told = read_json(note)
        _check_fields(note, told, job=dict, lines=int, bytes=int, sha256=str)
        return told
    if part.stat().st_size:
        what = f"{part} is there, but no output that was stopped"
        raise ValueError(f"{what}: rename it, or name another file for the output")
    return None


def _done_before(part: Path, job: dict, file: IO[bytes]) -> _Done:
    """What an earlier run of the same job has finished; ValueError where it would be lost."""
    done = _Done()
    told = _told(part)
    if not (told and told["lines"] and part.stat().st_size):
        return done
    anew = f"remove {part} and {part.name}.json to begin anew, or name another output"
    if not job.get("input") or told["job"] != job:
        names = {**told["job"], **job}
        differs = [n for n in names if told["job"].get(n) != job.get(n) or job.get(n) is None]
        what = f"{part} holds {told['lines']} finished lines of another job"
        raise ValueError(f"{what} (another {', '.join(differs)}): {anew}")
    file.seek(0)  # the locked file itself: Windows lets no second opening read it
    while block := file.read(min(1 << 20, told["bytes"] - done.bytes)):
        done.add(0, block)
    done.lines = told["lines"]
    if told != {"job": job, **done.note()}:
        raise ValueError(f"{part} is damaged, or its note {part.name}.json: {anew}")
    return done


def _check_output(path: Path, part: Path, source: IO | None) -> None:
    """ValueError where the output is a folder, a pipe, a device, or the file that is read."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file for the output")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: use > FILE instead of --output FILE")
    if source is None:
        return
    with suppress(AttributeError, OSError):  # what is read may be no file of the system
        read = os.fstat(source.fileno())
        for name in (path, part):
            if name.exists() and os.path.samestat(read, name.stat()):
                raise ValueError(f"{path} is the input: name another file for the output")


def _to_disk(file):
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _empty_removed(part: Path) -> Iterator[None]:
    """After an error, remove an unfinished output that holds nothing, and a note that says so."""
    try:
        yield
    except BaseException:
        empty = False
        with suppress(OSError, ValueError):  # a note that is not ours stays
            empty = not part.stat().st_size
            if empty and _told(part):
                Path(f"{part}.json").unlink()
        with suppress(OSError):  # Windows removes no open file
            if empty:
                part.unlink()
        raise


def _take_the_place(part: Path, path: str) -> None:
    """Rename a file that is complete; it gets the permissions of the one that it replaces."""
    with suppress(OSError):  # there is none, or the disk has no permissions
        part.chmod(os.stat(path).st_mode & 0o777)
    os.replace(part, path)


@contextmanager
def resumable_output(path: str | Path, job: dict,
                     source: IO | None = None) -> Iterator[tuple[int, Callable]]:
    """A file that is written bit by bit, and appears under its name when it is complete.

    Args:
        path: where to; of a symbolic link, the file that it leads to is written.
        job: what must be the same to go on; its "input" is None for what cannot be reread.
        source: the open file that is read, if any.

    Yields:
        how many lines are done already, and a function of (lines, text) that adds to them.

    Raises:
        ValueError: the output cannot be written there, another process is at it, or what
            is there is no part of this job and would be lost.
    """
    real = os.path.realpath(path)
    part = Path(f"{real}.part")
    note = Path(f"{real}.part.json")
    _check_output(Path(path), part, source)
    with file_lock(part, wait=False) as file, _empty_removed(part):
        done = _done_before(part, job, file)
        write_json(note, {"job": job, **done.note()}, indent=None)
        file.seek(done.bytes)
        file.truncate()

        def add(lines: int, text: str) -> None:
            content = text.encode("utf-8")
            file.write(content)
            _to_disk(file)  # before the note that counts them
            done.add(lines, content)
            write_json(note, {"job": job, **done.note()}, indent=None)

        yield done.lines, add
        if os.name == "posix":  # while it is locked; Windows renames no open file
            _take_the_place(part, real)
    if os.name != "posix":
        _take_the_place(part, real)
    fsync(os.path.dirname(real))
    note.unlink(missing_ok=True)


def _need(module: str, extra: str, what: str) -> None:
    """Refuse to begin without a package that an extra of this one installs.

    Raises:
        ModuleNotFoundError: it is not there; the message says how to get it.
    """
    if find_spec(module) is None:
        how = f'install it with pip install "annotated-attention[{extra}]"'
        raise ModuleNotFoundError(f"{module} is needed {what}: {how}", name=module)


class _Messages:
    """A stream for messages that raises no error; what cannot be written is lost.

    Args:
        stream: such as sys.stderr.
    """

    def __init__(self, stream: Any):
        self.stream = stream
        self.gone = False  # whether nobody reads on

    def write(self, text: str) -> int:
        """Write a text if it can be written; returns its length."""
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Send off what was written, if it can be sent."""
        self._try(self.stream.flush)

    def _try(self, act: Callable, *arguments: str) -> None:
        try:
            act(*arguments)
        except BrokenPipeError:
            self.gone = True
        except (OSError, ValueError):  # a full disk, a stream that is closed
            pass

    def __getattr__(self, name: str) -> Any:  # isatty, fileno, encoding
        return getattr(self.stream, name)

    @classmethod
    def of(cls, stream: Any) -> "_Messages":
        """The stream itself if it is one of these, so that all share what is known of it."""
        return stream if isinstance(stream, cls) else cls(stream)
