"""Corpora of real text.

Generated from book/G-corpora.md by tools/tangle.py: edit the chapter, not this file.
"""

import errno
import gzip
import io
import json
import math
import mmap
import os
import re
import sys
import time
import zipfile
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
from tqdm import tqdm

from annotated.data import Corpus, _by_length, split_pairs
from annotated.files import (
    _check_fields,
    _decode_line,
    _is_visible,
    _refuse_lone_cr,
    atomic_write,
    file_lock,
    read_file,
    sha256_of,
    write_json,
)
from annotated.grammar import grammar_corpus

__all__ = ["read_pairs", "CORPORA", "cache_folder", "fetch", "load_corpus", "prepare", "TokenPairs"]


def _decode_lines(content, name):
    """The lines of a text file, split at line feeds only, without line ends.

    A byte order mark and a last empty line are left out; ValueError names a line that is
    not UTF-8, and its first byte that is not.
    """
    if b"\0" in content:  # UTF-16, which can be valid UTF-8 by accident
        said = f"{name} holds a zero byte: convert it if it is UTF-16"
        raise ValueError(rf"{said}, else remove it with tr -d '\0' < FILE > NEW")
    rows = content.split(b"\n")
    if not rows[-1]:  # what follows the last line feed
        rows.pop()
    return [_decode_line(line, name, number) for number, line in enumerate(rows, start=1)]


def _bare(line):
    """A line without space around it, and empty where nothing of it can be seen."""
    line = line.strip().removeprefix("\ufeff").lstrip()
    return line if _is_visible(line) else ""


def _pair_lines(source, target, names):
    """Pair the lines of two texts: the pairs without an empty side, and how many had one.

    Raises ValueError, with the two files' names, where the numbers of lines differ.
    """
    if len(source) != len(target):
        raise ValueError(
            f"{names[0]} has {len(source)} lines and {names[1]} has {len(target)}: "
            "line n of one should be the translation of line n of the other")
    pairs = [(_bare(s), _bare(t)) for s, t in zip(source, target)]
    kept = [(s, t) for s, t in pairs if s and t]
    return kept, len(pairs) - len(kept)


def read_pairs(
    source_path: Path | str, target_path: Path | str
) -> tuple[list[tuple[str, str]], int]:
    """Read sentence pairs from two UTF-8 text files, one a translation of the other.

    Returns:
        (source, target) of each line, and how many were left out for an empty side.

    Raises:
        ValueError: a file is missing or not UTF-8, its lines end in CR, or the numbers of
            lines differ.
    """
    paths = source_path, target_path
    source, target = (_decode_lines(read_file(path), path) for path in paths)
    for lines, path in zip((source, target), paths):
        _refuse_lone_cr(lines, path)
    return _pair_lines(source, target, paths)


@dataclass(frozen=True)
class _Download:
    """A file that a corpus consists of.

    Args:
        path: where it goes, below the folder of the data.
        address: where it comes from.
        size: its bytes.
        sha256: their hash.
    """

    path: str
    address: str
    size: int
    sha256: str


@dataclass(frozen=True)
class _Published:
    """A corpus that others have published.

    Args:
        files: what it consists of.
        licence: what may be done with it, in a sentence.
        read: makes the three parts from what the files hold, by path.
    """

    files: tuple[_Download, ...]
    licence: str
    read: Callable[[dict[str, bytes]], Iterable[list]]


def _downloads(table, path, address):
    """The files of a table of name, language, size and sha256.

    In path and address `{0}` stands for the name and `{1}` for the language.
    """
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(_Download(path.format(*row), address.format(*row), int(row[2]), row[3])
                 for row in rows)


_MULTI30K = _downloads(
    """
    train en 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
    train de 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
    val en 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
    val de 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
  test_2016_flickr en 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
  test_2016_flickr de 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
    """,
    "multi30k-en-de/{0}.{1}.gz",
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/{0}.{1}.gz",
)

_MULTI30K_TOKENIZED = _downloads(
    """
    train en 1837696 08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119
    train de 2150008 cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505
    val en 64608 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec
    val de 77273 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00
  test_2016_flickr en 63307 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2
  test_2016_flickr de 71917 c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4
    """,
    "multi30k-en-de/tok/{0}.lc.norm.tok.{1}",
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/{0}.lc.norm.tok.{1}",
)

_TATOEBA_GERMAN = _downloads(
    "deu eng 4012023 b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28",
    "tatoeba/{0}-{1}.zip",
    "https://raw.githubusercontent.com/rioyshky/translation/"
    "de48b7027f7318d77010a6e08ed928c10748c23d/{0}-{1}.zip",
)

_TATOEBA_CHINESE = _downloads(
    "cmn eng 4151351 9da1af87e3e61650aa38595e60baef3a4e3a18ed239a7ef4a764c0a87c7ddeff",
    "tatoeba/{0}.txt",
    "https://raw.githubusercontent.com/DaoChaShao/py-st-dl-translater-2.0/"
    "620408eda1721f683e2413778ad19e4f94691053/data/{0}.txt",
)


def _read_multi30k(files):
    """Make the three parts of Multi30k from its six files, source and target in turn."""
    names = list(files)
    parts = []
    for both in zip(names[::2], names[1::2]):
        source, target = (_decode_lines(files[name], name) for name in both)
        pairs, _ = _pair_lines(source, target, both)
        parts.append(pairs)
    return parts


def _read_tatoeba(files):
    """Make the three parts of a Tatoeba export, whose lines are English TAB translation.

    English is the source in a zip archive, and the target in a text file.
    """
    ((name, content),) = files.items()
    archive = name.endswith(".zip")
    if archive:
        content = zipfile.ZipFile(io.BytesIO(content)).read("deu.txt")
    rows = [line.split("\t") for line in _decode_lines(content, name)]
    pairs = [(row[0], row[1]) if archive else (row[1], row[0]) for row in rows]
    return split_pairs(list(dict.fromkeys(pairs)))  # each pair once


_MULTI30K_LICENCE = (
    "Multi30k: non-commercial research and education only; do not publish weights trained on it."
)

_TATOEBA_LICENCE = (
    "Tatoeba (tatoeba.org and its contributors, by way of manythings.org): CC BY 2.0 FR."
)

CORPORA = {
    "multi30k-en-de": _Published(_MULTI30K, _MULTI30K_LICENCE, _read_multi30k),
    "multi30k-en-de-tok": _Published(_MULTI30K_TOKENIZED, _MULTI30K_LICENCE, _read_multi30k),
    "tatoeba-en-de": _Published(_TATOEBA_GERMAN, _TATOEBA_LICENCE, _read_tatoeba),
    "tatoeba-zh-en": _Published(_TATOEBA_CHINESE, _TATOEBA_LICENCE, _read_tatoeba),
}


def _published(name):
    """The corpus of this name; ValueError where there is none."""
    if name not in CORPORA:
        if name == "grammar":
            raise ValueError("the corpus grammar has no files: it is made, not fetched")
        known = ", ".join(["grammar", *CORPORA])
        raise ValueError(f"name={name!r} is no corpus; there are {known}")
    return CORPORA[name]


def cache_folder() -> Path:
    """Where fetched data is stored: `annotated` in XDG_CACHE_HOME or the platform's cache.

    The folder need not exist.

    Raises:
        ValueError: XDG_CACHE_HOME names none, and the user has no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the convention says: a relative one is ignored
        return Path(named, "annotated")
    try:
        home = Path.home()
    except RuntimeError:
        raise ValueError("no home folder to keep fetched data in: set XDG_CACHE_HOME "
                         "to a folder that can be written") from None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
        return Path(local, "annotated", "cache")
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "annotated"


def _ask(address, start, timeout):
    """Ask a server for a file from byte `start` on, with so many seconds of patience.

    Returns the open answer; the byte it begins with; the file's size, None where not said.
    """
    headers = {"User-Agent": "annotated", "Accept-Encoding": "identity"}
    wanted = {"Range": f"bytes={start}-"} if start else {}
    try:
        answer = urlopen(Request(address, headers=headers | wanted), timeout=timeout)
    except HTTPError as error:
        if error.code != 416:  # 416: the file ends before `start`; whole, it says its size
            raise
        answer = urlopen(Request(address, headers=headers), timeout=timeout)
    found = re.match(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if answer.status == 206 and found:
        return answer, int(found[1]), int(found[2]) if found[2] != "*" else None
    size = answer.headers.get("Content-Length")
    return answer, 0, int(size) if size else None


def _size_of(path):
    """The bytes of a file, 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


_BLOCK = 1 << 16


def _receive(file, part, timeout, end=math.inf):
    """Append to `part` what is missing of a file; what has come stays, whatever happens.

    Raises ValueError where the file at the address has another size, OSError or
    HTTPException where the connection fails or stalls, the time `end` of the monotonic
    clock has come, or nothing can be written.
    """
    have = _size_of(part)
    answer, begin, size = _ask(file.address, have, timeout)
    shown = {"desc": part.stem, "unit": "B", "unit_scale": True, "dynamic_ncols": True}
    bar = tqdm(total=file.size, initial=begin, **shown)
    with answer, part.open("ab") as out, bar:
        if size not in (None, file.size):
            raise ValueError(f"the file there has {size} bytes, it should have {file.size}")
        if begin > have:
            raise ConnectionError(f"the answer begins at byte {begin} instead of {have}")
        out.truncate(begin)
        while begin < file.size:
            block = answer.read1(_BLOCK)
            if not block or time.monotonic() > end:
                break
            out.write(block)
            bar.update(len(block))
            begin += len(block)
    if begin < file.size:
        raise ConnectionError(f"cut off after {begin} of {file.size} bytes")


def _complete(file, part, timeout, end=math.inf):
    """Receive what is missing of a file; whether its hash is right, or else `part` is removed.

    Raises what `_receive` raises.
    """
    if _size_of(part) < file.size:
        _receive(file, part, timeout, end)
    if sha256_of(part) == file.sha256:
        return True
    part.unlink()
    return False


def _is_permanent(error):
    """Whether trying again cannot help, because the server or the disk refuses."""
    if isinstance(error, HTTPError):
        return error.code < 500 and error.code not in (408, 429)
    full = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
    forbidden = errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR
    return isinstance(error, ValueError) or getattr(error, "errno", None) in full + forbidden


def _unobtainable(file, error, kept):
    """The ValueError that says why a file cannot be had; `kept` bytes of it are there."""
    cause = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
    return ValueError(
        f"cannot fetch {file.address}: {cause}; set ANNOTATED_DATA to a folder "
        f"that holds {file.path}, or try again: {kept} of {file.size} bytes are kept")


def _fetch_file(file, folder, tries=4, pause=1.0, timeout=20.0, limit=3600.0):
    """Fetch a file, going on where an earlier attempt was cut off.

    It appears below the folder whole and verified, or not at all; for tries, pause, timeout
    and limit see `fetch`. Raises ValueError, with address and cause, if it cannot be had.
    """
    path = Path(folder, file.path)
    end = time.monotonic() + limit
    failed = 0  # attempts in a row that brought next to nothing
    clean = False
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        have = _size_of(part)
        clean = clean or not have  # from here on nothing in it is older than this call
        try:
            if _complete(file, part, timeout, end):
                return os.replace(part, path)
            if clean:
                raise ValueError("what lies there is another file: its sha256 is wrong")
        except (OSError, HTTPException, ValueError) as error:
            failed = 0 if _size_of(part) > have + file.size / 1000 else failed + 1
            if failed >= tries or _is_permanent(error) or time.monotonic() > end:
                raise _unobtainable(file, error, _size_of(part)) from None
            time.sleep(pause * 2 ** max(failed - 1, 0))


@contextmanager
def _lock_aloud(path):
    """A lock that is waited for, with a line on stderr where another process has it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(path, wait=False))
        except ValueError:
            said = f"another process is fetching into {path.parent}: waiting for it"
            tqdm.write(said, file=sys.stderr)
            stack.enter_context(file_lock(path))
        yield


def _missing_files(name, folder):
    """The files of a corpus that are not in a folder, or are not as they should be."""
    files = _published(name).files
    return [file for file in files if sha256_of(Path(folder, file.path)) != file.sha256]


def fetch(name: str, folder: Path | str | None = None, **patience: Any) -> Path:
    """Fetch the files of a corpus that are missing, and say once what their licence is.

    Args:
        name: a key of `CORPORA`.
        folder: where they go; `cache_folder()` by default.
        patience: `tries`, attempts in a row that may bring nothing, 4; `pause`, seconds
            before the next one, 1.0, doubled after each that brought nothing; `timeout`,
            seconds without a byte that count as a stall, 20.0; `limit`, seconds for a file
            in all, 3600.0.

    Returns:
        the folder.

    Raises:
        ValueError: the name is unknown, a file cannot be had, the folder cannot be written.
    """
    advice = "" if folder else "XDG_CACHE_HOME to a folder that can be written, or "
    folder = Path(folder or cache_folder())
    if not _missing_files(name, folder):
        return folder
    try:
        with _lock_aloud(folder / ".lock"):
            missing = _missing_files(name, folder)  # another process may have been here
            for file in missing:
                _fetch_file(file, folder, **patience)
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder}: {error.strerror}; set {advice}"
            f"ANNOTATED_DATA to one that holds the files of {name}") from None
    if missing:
        tqdm.write(CORPORA[name].licence, file=sys.stderr)
    return folder


def _verified(folder, file):
    """What a file of the data holds, unpacked; ValueError if it is missing or another one."""
    path = Path(folder, file.path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; "
            f"ANNOTATED_DATA should name the folder that holds {file.path}") from None
    found = sha256_of(content)
    if found != file.sha256:
        raise ValueError(
            f"{path} is damaged or another version: its sha256 is {found:.12}..., "
            f"it should be {file.sha256[:12]}...; fetch it again")
    return gzip.decompress(content) if file.path.endswith(".gz") else content


def load_corpus(name: str) -> Corpus:
    """Load a corpus by its name: "grammar" is made, any other read, and fetched if need be.

    Args:
        name: "grammar" or a key of `CORPORA`; files come from the folder that the variable
            ANNOTATED_DATA names, where nothing is fetched, or from `cache_folder()`.

    Raises:
        ValueError: the name is unknown; a file is missing or damaged and cannot be fetched.
    """
    if name == "grammar":
        return grammar_corpus()
    about = _published(name)
    folder = os.environ.get("ANNOTATED_DATA") or fetch(name)
    files = {file.path: _verified(folder, file) for file in about.files}
    sums = {file.path: file.sha256 for file in about.files}
    train, validation, test = about.read(files)
    return Corpus(name, train, validation, test, about.licence, sums)


def _write_tokens(pairs, vocabulary, folder):
    """Encode pairs one after the other into two files, as numbers without a header.

    They are lengths.bin, of uint32, and tokens.bin, of the smallest type that fits; its
    name is returned.
    """
    dtype = np.min_scalar_type(max(len(vocabulary) - 1, 0))
    with (Path(folder, "tokens.bin").open("wb") as tokens,
          Path(folder, "lengths.bin").open("wb") as lengths,
          tqdm(pairs, unit="pair", dynamic_ncols=True, mininterval=0.5) as bar):
        for number, pair in enumerate(bar, start=1):
            source, target = map(vocabulary.encode, pair)
            if (most := max([*source, *target], default=0)) >= len(vocabulary):
                has = f"the vocabulary has {len(vocabulary)}"
                raise ValueError(f"pair {number} has the identifier {most}, and {has}")
            tokens.write(array(dtype.char, [*source, *target]))
            lengths.write(array("I", [len(source), len(target)]))
    return dtype.name


def _check_replaceable(folder):
    """Refuse a folder of anything else than an earlier `prepare`: ValueError."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: name a folder that is new or empty")
    ours = {"about.json", "tokens.bin", "lengths.npy", "starts.npy", "order.npy", "runs.npy"}
    if not any((folder / name).exists() for name in ours - {"about.json"}):
        ours = set()  # an about.json alone is of something else
    if others := sorted({path.name for path in folder.glob("*")} - ours):
        raise ValueError(f"{folder} holds {others[0]}, which would be lost: "
                         "name a folder that is new or empty")


@contextmanager
def _full_disk_named(folder):
    """Let the error of a full disk inside name the folder, where it names no file."""
    try:
        yield
    except OSError as error:
        short = "requested and" in str(error)  # numpy's, about what it could not write
        full = short or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if error.filename or not full:
            raise
        reason = error.strerror or str(error)
        raise OSError(error.errno or errno.ENOSPC, reason, str(folder)) from error


def prepare(
    pairs: Iterable[tuple[str, str]], vocabulary: Any, folder: Path | str
) -> "TokenPairs":
    """Encode pairs once into files that `TokenPairs` maps, sorted by length beforehand.

    Args:
        pairs: gone through once, never held.
        vocabulary: a `Words`, a `Subwords`, or anything with `encode` and a length.
        folder: appears whole, at the end, in place of an earlier one.

    Raises:
        ValueError: there is no pair, or the folder holds something else.
        OSError: the disk takes no more; an earlier folder is then as it was.
    """
    folder = os.path.realpath(folder)  # what a symbolic link leads to is replaced, not the link
    _check_replaceable(folder)
    with _full_disk_named(folder), atomic_write(folder) as fresh:
        fresh.mkdir()
        dtype = _write_tokens(pairs, vocabulary, fresh)
        lengths = np.fromfile(fresh / "lengths.bin", np.uint32).reshape(-1, 2)
        if not len(lengths):
            raise ValueError(f"pairs is empty: there is nothing to write to {folder}")
        (fresh / "lengths.bin").unlink()
        sizes = lengths.sum(1, dtype=np.int64)  # (n,)
        about = {"pairs": len(sizes), "tokens": int(sizes.sum()), "dtype": dtype,
                 "vocabulary": len(vocabulary)}
        np.save(fresh / "starts.npy", sizes.cumsum() - sizes)
        np.save(fresh / "lengths.npy", lengths.astype(np.min_scalar_type(lengths.max())))
        order, runs = _by_length(lengths)
        np.save(fresh / "order.npy", order.astype(np.min_scalar_type(len(order))))
        np.save(fresh / "runs.npy", runs)
        sums = {path.name: sha256_of(path) for path in sorted(fresh.iterdir())}
        write_json(fresh / "about.json", {**about, "sha256": sums})
    return TokenPairs(folder)


_TABLES = ("starts.npy", "lengths.npy", "order.npy", "runs.npy")


def _check_sums(folder, sums, names):
    """Refuse files of a folder that have not the hashes they had when they were written."""
    for name in names:
        if sums.get(name) != sha256_of(Path(folder, name)):
            raise ValueError(f"{name} is not what was written")


class TokenPairs:
    """Encoded pairs in mapped files; `pairs[i]` is (source ids, target ids).

    Args:
        folder: what `prepare` made.

    Raises:
        ValueError: the folder holds no prepared corpus, or a damaged one; of tokens.bin, which
            may be large, only the size is checked.
    """

    starts: np.ndarray  # (n,), where each pair begins in tokens
    lengths: np.ndarray  # (n, 2), of source and target
    order: np.ndarray  # (n,), the pairs sorted by length
    runs: np.ndarray  # (r, 3), lengths and how many pairs have them

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        try:
            about = json.loads(Path(folder, "about.json").read_text())
            kinds = {"pairs": int, "tokens": int, "dtype": str, "sha256": dict}
            _check_fields("about.json", about, **kinds)
            for name in ("starts", "lengths", "order", "runs"):
                array = np.load(Path(folder, f"{name}.npy"), mmap_mode="r")
                setattr(self, name, array.view(np.ndarray))  # slices faster than a memmap
            with Path(folder, "tokens.bin").open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.tokens = np.frombuffer(self.map, about["dtype"])
            rows = {len(self.starts), len(self.lengths), len(self.order)}
            rows.add(self.runs[:, 2].sum())
            if rows != {about["pairs"]} or len(self.tokens) != about["tokens"]:
                raise ValueError("a file is cut off")
            _check_sums(self.folder, about["sha256"], _TABLES)
        except OSError as error:
            reason = f"{Path(error.filename or folder).name}: {error.strerror}"
            raise ValueError(f"{folder} is no prepared corpus: {reason}") from None
        except Exception as error:  # numpy has several for a damaged file
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{folder} is damaged: {reason}; prepare it again") from None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        s, t = self.lengths[i].tolist()
        begin = int(self.starts[i])
        return self.tokens[begin:begin + s], self.tokens[begin + s:begin + s + t]

    def __reduce__(self):  # a worker in another process maps the files itself
        return TokenPairs, (self.folder,)

    def forget(self) -> None:
        """Hand the pages of tokens read so far back to the system."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)


def _open_tokens(folder):
    """`TokenPairs`, after all files are held against their hashes; ValueError as theirs."""
    pairs = TokenPairs(folder)
    sums = json.loads(Path(folder, "about.json").read_text())["sha256"]
    _check_sums(folder, sums, ["tokens.bin"])
    return pairs
