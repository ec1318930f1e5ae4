"""Files that are whole or not there, locks, hashes, JSON read with care, and outputs that survive an interrupt."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from annotated.files import (
    _check_fields,
    _decode_line,
    _Messages,
    _need,
    atomic_write,
    file_lock,
    read_file,
    read_json,
    resumable_output,
    sha256_of,
    write_json,
    write_text,
)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    with atomic_write(path) as fresh:
        fresh.write_bytes(b"old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"), atomic_write(path) as fresh:
        fresh.write_bytes(b"new")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    with pytest.raises(OSError), atomic_write(path) as fresh:
        fresh.write_text("half")
        raise OSError("disk full")
    assert path.read_bytes() == b"old" and list(path.parent.iterdir()) == [path]


def test_a_file_never_takes_the_place_of_a_folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis").write_text("mine")
    with pytest.raises(ValueError, match="work is a folder, which would be lost: name a file"), atomic_write(tmp_path / "work") as fresh:
        fresh.write_text("other")
    assert (tmp_path / "work" / "thesis").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1
    with atomic_write(tmp_path / "work") as fresh:
        fresh.mkdir()
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.skipif(os.name != "posix", reason="symbolic links as POSIX has them")
def test_a_link_to_a_folder_is_replaced_and_what_it_leads_to_stays(tmp_path):
    folder_of(tmp_path / "there", "theirs")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    folder_of(tmp_path / "link", "ours")
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "link" / "file").read_text() == "ours"
    assert (tmp_path / "there" / "file").read_text() == "theirs" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_what_a_library_keeps_to_itself_is_readable_as_other_files_are(mask, mode, tmp_path):
    program = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[2]))
from annotated.files import atomic_write
with atomic_write(Path(sys.argv[1], "file")) as fresh:
    os.close(os.open(fresh, os.O_CREAT | os.O_WRONLY, 0o600))
with atomic_write(Path(sys.argv[1], "folder")) as fresh:
    (fresh / "inside").mkdir(parents=True)
    os.close(os.open(fresh / "inside" / "file", os.O_CREAT | os.O_WRONLY, 0o600))
assert os.umask(0) == int(sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(mask)], check=True)
    for path in (tmp_path / "file", tmp_path / "folder" / "inside" / "file"):
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_a_private_file_stays_private(tmp_path):
    path = tmp_path / "file"
    path.touch(0o600)
    with atomic_write(path) as fresh:
        fresh.write_text("new")
    assert path.stat().st_mode & 0o777 == 0o600


def folder_of(path, content):
    with atomic_write(path) as fresh:
        fresh.mkdir()
        (fresh / "file").write_text(content)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_that_cannot_be_renamed_is_put_back(failing, tmp_path, monkeypatch):
    folder_of(tmp_path / "folder", "old")
    rename, done = os.replace, []

    def fail(a, b):
        done.append(b)
        if len(done) == failing:
            raise OSError("disk full")
        rename(a, b)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        folder_of(tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


KILLED = """
import os, shutil, sys
from pathlib import Path
from annotated import files

def replace_folder(path, content):
    with files.atomic_write(path) as fresh:
        fresh.mkdir()
        (fresh / "file").write_text(content)

def dying(function, place):
    def step(*arguments, **options):
        if place == "before":
            os._exit(9)
        function(*arguments, **options)
        os._exit(9)
    return step

def second(function):
    counted = []
    def step(*arguments):
        counted.append(0)
        return (dying(function, "after") if len(counted) == 2 else function)(*arguments)
    return step

moments = [("replace", dying(os.replace, "before")), ("replace", dying(os.replace, "after")),
           ("replace", second(os.replace)), ("rmtree", dying(shutil.rmtree, "after"))]
for number, (name, function) in enumerate(2 * moments):
    path = Path(sys.argv[1], str(number), "folder")
    replace_folder(path, "old")
    if not os.fork():
        setattr(os if name == "replace" else shutil, name, function)
        replace_folder(path, "new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
    left = sorted(entry.name for entry in path.parent.iterdir())
    whole = [Path(path.parent, name, "file").read_text() for name in left]
    try:
        with files.atomic_write(path) as fresh:
            whole.append((path / "file").read_text())
            if number < len(moments):
                raise ValueError
            fresh.mkdir()
            (fresh / "file").write_text("newer")
    except ValueError:
        pass
    names = [entry.name for entry in path.parent.iterdir()]
    print(*left, *whole, names == ["folder"], (path / "file").read_text())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork to be killed at a given moment")
def test_a_kill_between_two_steps_loses_no_folder(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    states = [  # what is left, what it holds, what the next write finds in its place
        (".folder.part folder new old", "old"),  # killed before the first renaming
        (".folder.old .folder.part old new", "old"),  # between the two
        (".folder.old folder old new", "new"),  # after the second
        ("folder new", "new"),  # after the old one is gone
    ]
    assert found[:4] == [f"{left} {there} True {there}" for left, there in states], "the next write fails"
    assert found[4:] == [f"{left} {there} True newer" for left, there in states], "the next write succeeds"


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc to see which file is meant")
def test_contents_are_on_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    seen, fsync, rename = [], os.fsync, os.replace
    name = lambda number: Path(os.readlink(f"/proc/self/fd/{number}")).name  # noqa: E731
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append(name(number)), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(f"rename {Path(a).name}"), rename(a, b)))
    folder_of(tmp_path / "folder", "text")
    assert seen == ["file", ".folder.part", "rename .folder.part", tmp_path.name]


# ---- reading


@pytest.mark.parametrize(("content", "why"), [
    (b'{"a": 1', "Expecting"), (b'{"a": "\xff"}', "utf-8"), (b"[" * 200_000, "nested too deeply"),
    (b"[1]", "not a list"), (b"7", "not a int"), (b"", "Expecting value"),
])
def test_what_is_no_json_object_is_said_in_one_line(content, why, tmp_path):
    path = tmp_path / "about.json"
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_json(path)
    said = str(caught.value)
    assert said.startswith(f"{path} is damaged: ") and why in said and "\n" not in said
    assert type(caught.value) is ValueError


def test_what_cannot_be_read_is_named(tmp_path):
    for read in (read_file, read_json):
        with pytest.raises(ValueError, match=r"cannot read .*none\.json: No such file"):
            read(tmp_path / "none.json")
        with pytest.raises(ValueError, match="cannot read .*: Is a directory"):
            read(tmp_path)


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"ü": [1, None, 0.5]})
    assert (tmp_path / "a" / "b.json").read_bytes() == '{\n "ü": [\n  1,\n  null,\n  0.5\n ]\n}\n'.encode()
    assert read_json(tmp_path / "a" / "b.json") == {"ü": [1, None, 0.5]}
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_json(tmp_path / "bom.json") == {}
    with pytest.raises(TypeError):
        write_json(tmp_path / "a" / "b.json", {"ü": object()})
    assert read_json(tmp_path / "a" / "b.json")["ü"] and len(list((tmp_path / "a").iterdir())) == 1


def test_line_ends_stay_as_they_are(tmp_path):
    write_text(tmp_path / "text", "a\r\nb\n")
    assert read_file(tmp_path / "text") == b"a\r\nb\n"


def test_hashes(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    assert sha256_of(tmp_path / "a") == sha256_of(b"a") == hashlib.sha256(b"a").hexdigest()
    several = {sha256_of(b"a", b"b"), sha256_of(b"ab", b""), sha256_of(b"b", b"a"), sha256_of(tmp_path / "a")}
    assert len(several) == 4 and sha256_of(b"a", b"b") == sha256_of(tmp_path / "a", b"b")
    assert sha256_of(tmp_path) is sha256_of(tmp_path / "none") is sha256_of(b"a", tmp_path) is None


def test_importing_leaves_the_process_as_it_is():
    program = """
import os
before, calls = os.umask, []
os.umask = lambda mask: (calls.append(mask), before(mask))[1]
import annotated.files
assert not calls
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- locks

HOLD = """
import sys, time
from annotated.files import file_lock
with file_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A lock that another process holds until its input ends."""
    path = tmp_path / "new" / "lock"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout.readline().strip() == b"held"
    yield path, other
    other.kill()
    other.wait()
    other.stdin.close()
    other.stdout.close()


def test_a_lock_of_another_process_is_refused_or_waited_for(held):
    path, other = held
    with pytest.raises(ValueError, match=f"another process is writing there: {path} is locked"), file_lock(path, wait=False):
        pass
    came = []

    def wait():
        with file_lock(path):
            came.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    assert not came
    released = time.monotonic()
    other.stdin.close()
    waiting.join(10)
    assert came and came[0] >= released


def test_a_lock_that_vanishes_when_it_is_looked_at_is_taken_anew(tmp_path, monkeypatch):
    path, stat, seen = tmp_path / "lock", os.stat, []

    def vanish(file, **more):  # another process removes it just now
        if str(file) == str(path) and not seen:
            seen.append(file)
            path.unlink()
        return stat(file, **more)

    monkeypatch.setattr(os, "stat", vanish)
    with file_lock(path):
        assert seen and path.exists()


def test_a_process_that_is_killed_holds_no_lock(held):
    path, other = held
    other.kill()
    other.wait()
    with file_lock(path, wait=False):
        pass


def test_an_error_inside_frees_the_lock(tmp_path):
    with pytest.raises(KeyError), file_lock(tmp_path / "lock", wait=False):
        raise KeyError
    with file_lock(tmp_path / "lock", wait=False) as file:
        file.write(b"added")
    assert (tmp_path / "lock").read_bytes() == b"added"


def test_what_was_finished_while_a_lock_was_waited_for_is_not_touched(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    part, out, done = tmp_path / "out.part", tmp_path / "out", []
    part.write_text("theirs\n")

    def finish(file, how):  # the other one is done just now
        done.append(os.replace(part, out) if not done else None)

    monkeypatch.setattr(fcntl, "flock", finish)
    with pytest.raises(ValueError, match="has just finished"), resumable_output(out, {}):
        pass
    assert out.read_text() == "theirs\n"
    done.clear()
    os.replace(out, part)
    with file_lock(part) as file:  # one that waits takes the name's new file
        file.write(b"mine\n")
    assert (out.read_text(), part.read_text()) == ("theirs\n", "mine\n")


# ---- an output that survives

JOB = {"input": "a hash", "beam": 4}


def half(path, job=JOB):
    with pytest.raises(RuntimeError), resumable_output(path, job) as (_, add):
        add(2, "1\n2\n")
        add(1, "ü\n")
        raise RuntimeError
    return Path(f"{path}.part"), Path(f"{path}.part.json")


@pytest.mark.skipif(os.name != "posix", reason="the permissions are those of POSIX")
def test_an_output_keeps_the_permissions_of_the_file_that_it_replaces(tmp_path):
    out = tmp_path / "out"
    out.write_text("old\n")
    out.chmod(0o600)
    with resumable_output(out, JOB) as (_, add):
        add(1, "new\n")
    assert out.read_text() == "new\n" and out.stat().st_mode & 0o777 == 0o600


def test_an_output_goes_on_behind_the_last_noted_line(tmp_path):
    part, note = half(tmp_path / "out")
    with part.open("a") as file:
        file.write("hal")
    assert not (tmp_path / "out").exists()
    with resumable_output(tmp_path / "out", JOB) as (done, add):
        assert done == 3
        add(1, "4\n")
    assert (tmp_path / "out").read_text() == "1\n2\nü\n4\n" and len(list(tmp_path.iterdir())) == 1


def noted(**change):
    "Change what a note says."
    return lambda part, note: note.write_text(json.dumps(json.loads(note.read_text()) | change)) and JOB


@pytest.mark.parametrize(("change", "why"), [
    (lambda part, note: JOB | {"beam": 8}, "holds 3 finished lines of another job (another beam)"),
    (lambda part, note: JOB | {"input": None}, "holds 3 finished lines of another job (another input)"),
    (lambda part, note: {"input": JOB["input"]}, "holds 3 finished lines of another job (another beam)"),
    (lambda part, note: note.write_text("[" * 100_000) and JOB, "nested too deeply"),
    (lambda part, note: note.write_text(json.dumps({"job": JOB})) and JOB, "its lines should be a whole number"),
    (lambda part, note: part.write_text("1\n") and JOB, "is damaged"),
    (lambda part, note: part.write_bytes(part.read_bytes().replace(b"1", b"7")) and JOB, "is damaged"),
    (noted(lines=2), "is damaged"), (noted(lines=10**9), "is damaged"), (noted(lines=-1), "its lines should be"),
    (noted(lines=True), "its lines should be"), (noted(bytes=2), "is damaged"), (noted(bytes=10**18), "is damaged"),
    (noted(sha256="0"), "is damaged"), (noted(job=[]), "its job should be"),
])
def test_finished_lines_are_neither_lost_nor_believed_when_they_are_damaged(tmp_path, change, why):
    job = change(*half(tmp_path / "out"))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError) as caught, resumable_output(tmp_path / "out", job):
        pass
    assert why in str(caught.value) and "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["out.part", "out.part.json"])
def test_a_file_of_the_user_s_with_the_name_of_an_unfinished_output_stays(tmp_path, name):
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="out.part"), resumable_output(tmp_path / "out", JOB):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == '{"mine": 1}'


def test_an_output_that_fails_before_its_first_line_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), resumable_output(tmp_path / "out", JOB):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_lines_that_were_written_and_not_yet_noted_are_cut(tmp_path):
    note = tmp_path / "out.part.json"
    with pytest.raises(RuntimeError), resumable_output(tmp_path / "out", JOB) as (_, add):
        first = note.read_bytes()
        add(1, "1\n")
        raise RuntimeError
    note.write_bytes(first)  # killed behind the first line, before its note
    with resumable_output(tmp_path / "out", JOB) as (done, add):
        assert done == 0
        add(1, "one\n")
    assert (tmp_path / "out").read_text() == "one\n" and len(list(tmp_path.iterdir())) == 1


def test_the_input_and_what_is_no_file_are_no_output(tmp_path):
    (tmp_path / "text").write_text("a\n")
    (tmp_path / "second").symlink_to(tmp_path / "text")
    with (tmp_path / "text").open("rb") as source:
        for path, why in ((tmp_path / "second", "is the input"), (tmp_path, "is a folder"), ("/dev/null", "no regular file")):
            with pytest.raises(ValueError, match=why), resumable_output(path, JOB, source):
                pass
    assert (tmp_path / "text").read_text() == "a\n"


# ---- what is read back, packages, messages


@pytest.mark.parametrize("value", [-1, 2**63, True, 1.0, float("nan"), "1", None, [], {}])
def test_a_count_is_a_whole_number_from_0_on(value):
    _check_fields("note", {"n": 0}, n=int)
    with pytest.raises(ValueError, match="note is damaged: its n should be a whole number from 0 on, not "):
        _check_fields("note", {"n": value}, n=int)


@pytest.mark.parametrize(("line", "place"), [
    (b"f\xfcr\r\n", "line 7 is not UTF-8 text, byte 2 of it is 0xfc"), (b"\xff\xfea\x00", "byte 1 of it is 0xff"),
    (b"\xe2\x80", "byte 1 of it is 0xe2"), (b"\xed\xa0\x80", "byte 1 of it is 0xed"),
])
def test_a_byte_that_is_no_utf8_is_named_with_its_place(line, place):
    with pytest.raises(ValueError, match=place):
        _decode_line(line, "text", 7)


def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch):
    import tomllib

    about = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    _need("json", "data", "for this test")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        _need("sentencepiece", "data", "for this test")
    assert str(caught.value) == f'sentencepiece is needed for this test: install it with pip install "{about["name"]}[data]"'
    assert any(line.startswith("sentencepiece") for line in about["optional-dependencies"]["data"])


def test_messages_that_cannot_be_written_cost_nothing():
    reader, writer = os.pipe()
    with open(writer, "w") as pipe:
        messages = _Messages.of(pipe)
        assert print("heard", file=messages, flush=True) is None and os.read(reader, 9) == b"heard\n"
        assert not messages.gone and not messages.isatty() and _Messages.of(messages) is messages
        os.close(reader)
        print("unheard", file=messages, flush=True)
        assert messages.gone
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), writer)
    messages = _Messages.of(pipe)  # closed
    print("nobody", file=messages, flush=True)
    assert not messages.gone


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_messages_is_no_wish_to_stop():
    with open("/dev/full", "w", buffering=1) as full:
        messages = _Messages.of(full)
        print("lost", file=messages, flush=True)
        assert not messages.gone
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), full.fileno())


def test_lines_are_on_the_disk_before_the_note_that_counts_them(tmp_path, monkeypatch):
    "After a power cut the note must not count lines that are lost."
    synced, real = [], os.fsync

    def noted(fd):
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    out = tmp_path / "out.txt"
    with resumable_output(out, {"input": None}) as (_, add):
        monkeypatch.setattr(os, "fsync", noted)
        add(1, "eins\n")
        part, note = (Path(f"{out}.part{end}").stat().st_ino for end in ("", ".json"))
        assert part in synced and synced.index(part) < synced.index(note)
        synced.clear()
    assert tmp_path.stat().st_ino in synced, "and so is its name at the end"


def test_an_output_that_vanishes_hides_no_interrupt(tmp_path):
    out = tmp_path / "out.txt"
    with pytest.raises(KeyboardInterrupt), resumable_output(out, JOB) as (_, add):
        add(1, "eins\n")
        Path(f"{out}.part").unlink()
        raise KeyboardInterrupt


def test_a_drive_without_locks_is_written_to_all_the_same(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with file_lock(tmp_path / "lock", wait=False) as file:
        file.write(b"added")
    assert (tmp_path / "lock").read_bytes() == b"added"


def test_the_largest_count_is_one():
    _check_fields("note.json", {"lines": 2**63 - 1}, lines=int)
