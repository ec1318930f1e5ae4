"""Fetching, from a server on this machine that cuts, stalls, lies and refuses."""

import errno
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import warm

from annotated import corpora
from annotated.corpora import _Download, _fetch_file, _missing_files, _Published, cache_folder, fetch, load_corpus

CONTENT = random.Random(8).randbytes(400_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FAST = {"pause": 0.01, "timeout": 30}  # a busy machine is no stall


class Server(ThreadingHTTPServer):
    """Serves CONTENT at /text in the way its attributes say, and counts."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.asked, self.sent = CONTENT, [], 0
        self.cut, self.cuts, self.stall, self.ranges, self.say_length, self.status = None, 10**9, None, True, True, None
        self.slow, self.shift, self.over = 0.0, 0, threading.Event()

    def file(self, path="sub/text", **more):
        address = f"http://127.0.0.1:{self.server_port}/{Path(path).name}"
        return replace(_Download(path, address, len(CONTENT), SHA256), **more)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.status:
            status = server.status.pop(0) if isinstance(server.status, list) else server.status
            if status:
                return self.send_error(status)
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if begin and begin >= len(server.content):
            return self.send_error(416)
        begin -= server.shift if begin else 0
        body = server.content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(server.content) - 1}/{len(server.content)}")
        if server.say_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.cut and server.cuts > 0:
            server.cuts -= 1
            body = body[: server.cut]
        if server.stall is not None and len(body) > server.stall:
            self.write(body[: server.stall])
            return server.over.wait(60)
        self.write(body)

    def write(self, body):
        for i in range(0, len(body), 4096):
            try:
                self.wfile.write(body[i : i + 4096])
                self.wfile.flush()
            except OSError:  # the client has gone
                return
            self.server.sent += len(body[i : i + 4096])
            time.sleep(self.server.slow)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.over.set()
        server.shutdown()


def part_of(folder):
    return folder / "sub" / "text.part"


def assert_sent(server, count):
    """The server counts a piece when it is written, which may be after the client has read it."""
    wait_for(lambda: server.sent >= count, seconds=30)
    assert server.sent == count


def wait_for(condition, seconds=300):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "nothing happened"
        time.sleep(0.01)


def assert_fetched(folder):
    assert (folder / "sub" / "text").read_bytes() == CONTENT
    assert [p.name for p in (folder / "sub").iterdir()] == ["text"], "only the file itself is left"


def test_whole_at_once(server, tmp_path):
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    assert server.asked == [None]
    assert_sent(server, len(CONTENT))


@pytest.mark.parametrize("say_length", [True, False])
def test_cut_off_and_resumed(server, tmp_path, say_length):
    server.cut, server.say_length = 150_000, say_length
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    assert server.asked == [None, "bytes=150000-", "bytes=300000-"]
    assert_sent(server, len(CONTENT))


def test_as_long_as_bytes_come_it_is_not_given_up(server, tmp_path):
    server.cut = 21_000
    _fetch_file(server.file(), tmp_path, tries=2, **FAST)
    assert len(server.asked) == 20
    assert_fetched(tmp_path)


def test_a_server_that_gives_a_byte_an_attempt_is_given_up(server, tmp_path):
    server.cut = 1
    with pytest.raises(ValueError, match="cannot fetch .*: 3 of 400000 bytes are kept"):
        _fetch_file(server.file(), tmp_path, tries=3, **FAST)
    assert len(server.asked) == 3
    server.asked.clear()
    with pytest.raises(ValueError, match="cannot fetch"):
        _fetch_file(server.file(), tmp_path, tries=0, limit=3, **FAST)  # as few as can be, not as many
    assert len(server.asked) == 1


def test_a_file_that_drips_for_ever_is_given_up(server, tmp_path, monkeypatch):
    "The clock of the program goes a minute a look."
    now = [0.0]
    monkeypatch.setattr(corpora.time, "monotonic", lambda: now.append(now[-1] + 60) or now[-1])
    with pytest.raises(ValueError, match="cannot fetch .*cut off after"):
        _fetch_file(server.file(), tmp_path, limit=180.0, pause=0.0)
    assert part_of(tmp_path).stat().st_size < len(CONTENT) and len(server.asked) == 1


def test_stalled_and_resumed(server, tmp_path):
    server.stall = 250_000
    _fetch_file(server.file(), tmp_path, pause=0.01, timeout=2)
    assert_fetched(tmp_path)
    assert server.asked == [None, "bytes=250000-"]
    assert_sent(server, len(CONTENT))


def test_a_server_that_only_stalls_is_given_up(server, tmp_path):
    server.stall = 0
    begun = time.monotonic()
    with pytest.raises(ValueError, match="cannot fetch .*timed out; set ANNOTATED_DATA .*0 of 400000 bytes are kept"):
        _fetch_file(server.file(), tmp_path, tries=2, pause=0.01, timeout=1)
    assert len(server.asked) == 2 and time.monotonic() - begun < 30


def test_what_came_is_kept_for_the_next_call(server, tmp_path):
    server.cut, server.cuts = 100_000, 1
    server.status = [None, 503, 503]
    with pytest.raises(ValueError, match="HTTP Error 503.* or try again: 100000 of 400000 bytes are kept") as error:
        _fetch_file(server.file(), tmp_path, tries=2, **FAST)
    assert "\n" not in str(error.value) and server.file().address in str(error.value)
    assert part_of(tmp_path).read_bytes() == CONTENT[:100_000]
    server.status = None
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    assert server.asked[-1] == "bytes=100000-"
    assert_sent(server, len(CONTENT))


def test_ranges_ignored(server, tmp_path):
    server.ranges, server.cut, server.cuts = False, 150_000, 1
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    assert server.asked == [None, "bytes=150000-"]
    assert_sent(server, 150_000 + len(CONTENT))


def test_an_earlier_range_than_asked_for(server, tmp_path):
    server.shift, server.cut, server.cuts = 1000, 150_000, 1
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    server.shift = -1000
    part_of(tmp_path).write_bytes(CONTENT[:5])
    with pytest.raises(ValueError, match="the answer begins at byte 1005 instead of 5"):
        _fetch_file(server.file(), tmp_path, tries=2, **FAST)


def test_wrong_bytes(server, tmp_path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(ValueError, match="cannot fetch .*its sha256 is wrong.*0 of 400000 bytes are kept") as error:
        _fetch_file(server.file(), tmp_path, **FAST)
    assert "\n" not in str(error.value) and len(server.asked) == 1
    assert list((tmp_path / "sub").iterdir()) == [], "wrong bytes are not kept"


def test_wrong_bytes_and_cuts_end(server, tmp_path):
    server.content, server.cut = CONTENT[:-1] + b"?", 150_000
    with pytest.raises(ValueError, match="its sha256 is wrong"):
        _fetch_file(server.file(), tmp_path, **FAST)
    assert len(server.asked) == 3


@pytest.mark.parametrize("rest", [b"x" * 100_000, b"x" * 400_000, b"x" * 400_001])
def test_a_damaged_part_is_begun_anew(server, tmp_path, rest):
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(rest)
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)


@pytest.mark.parametrize("content", [CONTENT + b"more", CONTENT[:-7]])
def test_another_size_than_promised(server, tmp_path, content):
    server.content = content
    with pytest.raises(ValueError, match=f"the file there has {len(content)} bytes, it should have 400000"):
        _fetch_file(server.file(), tmp_path, **FAST)
    assert len(server.asked) == 1 and server.sent < 200_000, "hung up before it all came"
    part_of(tmp_path).write_bytes(CONTENT[:50])
    with pytest.raises(ValueError, match=f"the file there has {len(content)} bytes"):
        _fetch_file(server.file(), tmp_path, **FAST)
    assert server.asked[1:] == ["bytes=50-"], "a part of the file says its size, too"


@pytest.mark.parametrize("name, stays", [("EROFS", True), ("EACCES", True), ("EPERM", True), ("ENOSPC", True), ("ECONNRESET", False), ("ETIMEDOUT", False)])
def test_what_no_further_attempt_can_help_ends_the_first(name, stays):
    assert corpora._is_permanent(OSError(getattr(errno, name), "said by the system")) == stays


def test_a_larger_file_that_does_not_say_so(server, tmp_path):
    server.content, server.say_length = b"!" + CONTENT + b"more" * 100_000, False
    with pytest.raises(ValueError, match="its sha256 is wrong"):
        _fetch_file(server.file(), tmp_path, **FAST)
    assert list((tmp_path / "sub").iterdir()) == []


def test_a_file_shorter_than_the_part(server, tmp_path):
    server.content = CONTENT[:1000]
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(CONTENT[:5000])
    with pytest.raises(ValueError, match="the file there has 1000 bytes"):
        _fetch_file(server.file(), tmp_path, **FAST)
    assert server.asked == ["bytes=5000-", None]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refused_is_not_asked_again(server, tmp_path, status):
    server.status = status
    with pytest.raises(ValueError, match=f"cannot fetch http://127.0.0.1:.*/text: HTTP Error {status}") as error:
        _fetch_file(server.file(), tmp_path, **FAST)
    assert len(server.asked) == 1 and "\n" not in str(error.value)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_busy_is_asked_again(server, tmp_path, status):
    server.status = [status, status, None]
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)


def test_nobody_there(server, tmp_path):
    server.server_close()
    with pytest.raises(ValueError, match="Connection refused; set ANNOTATED_DATA to a folder that holds sub/text"):
        _fetch_file(server.file(), tmp_path, tries=2, **FAST)


def test_pauses_grow(server, tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(corpora.time, "sleep", pauses.append)
    server.server_close()
    with pytest.raises(ValueError):
        _fetch_file(server.file(), tmp_path, tries=4)
    assert pauses == [1, 2, 4]


@pytest.mark.skipif(sys.platform == "win32", reason="limits a file's size as Unix does")
def test_a_full_disk_is_not_tried_again(server, tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(ValueError, match="File too large; set ANNOTATED_DATA .* 100000 of 400000 bytes are kept"):
            _fetch_file(server.file(), tmp_path, **FAST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(server.asked) == 1
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)


# A corpus


@pytest.fixture
def corpus(server, tmp_path, monkeypatch):
    """A corpus of two files, and a cache folder that is empty."""
    files = (server.file("toy/a"), server.file("toy/b"))
    published = _Published(files, "Toy: do with it what you like.", lambda files: [[(name, "x")] for name in (*files, "test")])
    monkeypatch.setitem(corpora.CORPORA, "toy", published)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ANNOTATED_DATA", raising=False)
    return published


def test_fetch_brings_what_is_missing_and_says_the_licence_once(server, corpus, tmp_path, capsys):
    folder = fetch("toy", **FAST)
    assert folder == tmp_path / "cache" / "annotated" == cache_folder()
    assert len(server.asked) == 2 and _missing_files("toy", folder) == []
    out, err = capsys.readouterr()
    assert out == "" and err.count(corpus.licence) == 1
    assert fetch("toy") == folder and len(server.asked) == 2
    assert capsys.readouterr() == ("", "")
    (folder / "toy" / "b").write_bytes(b"damaged")
    fetch("toy")
    assert len(server.asked) == 3 and _missing_files("toy", folder) == []


def test_load_fetches_into_the_cache_and_only_there(server, corpus, tmp_path, monkeypatch):
    loaded = load_corpus("toy")
    assert loaded.train == [("toy/a", "x")] and loaded.licence == corpus.licence
    assert loaded.provenance == {"toy/a": SHA256, "toy/b": SHA256} and len(server.asked) == 2
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "mine"))
    with pytest.raises(ValueError, match="cannot read .*mine.toy.a: No such file"):
        load_corpus("toy")
    assert len(server.asked) == 2 and not (tmp_path / "mine").exists()
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path / "cache" / "annotated"))
    assert load_corpus("toy").test == [("test", "x")]


def test_fetch_into_a_folder_and_unknown_names(server, corpus, tmp_path):
    assert fetch("toy", tmp_path / "here") == tmp_path / "here"
    assert _missing_files("toy", tmp_path / "here") == [] and not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match="name='wmt' is no corpus; there are grammar, multi30k-en-de"):
        fetch("wmt")
    with pytest.raises(ValueError, match="the corpus grammar has no files: it is made, not fetched"):
        fetch("grammar")


def test_the_cache_cannot_be_written(server, corpus, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")  # root may write anywhere else
    with pytest.raises(ValueError, match="cannot write to .*cache.*; set XDG_CACHE_HOME .* or ANNOTATED_DATA") as error:
        fetch("toy")
    assert "\n" not in str(error.value) and server.asked == []
    with pytest.raises(ValueError, match="cannot write to .*cache: [^;]*; set ANNOTATED_DATA to one that holds"):
        fetch("toy", tmp_path / "cache")  # that folder was not chosen by the variable


def test_who_waits_for_another_process_says_so(server, corpus, tmp_path, capsys, monkeypatch):
    "The lock is another's when it is asked for first, and free when it is waited for."
    lock, asked = corpora.file_lock, []

    def taken(path, wait=True):
        asked.append(wait)
        if not wait:
            raise ValueError("another process is writing there")
        return lock(path, wait)

    monkeypatch.setattr(corpora, "file_lock", taken)
    fetch("toy", tmp_path / "there")
    said = capsys.readouterr().err
    assert asked == [False, True] and f"another process is fetching into {tmp_path / 'there'}: waiting for it" in said


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else/annotated")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setattr(corpora.sys, "platform", "linux")
        assert cache_folder() == tmp_path / ".cache" / "annotated"
        monkeypatch.setattr(corpora.sys, "platform", "darwin")
        assert cache_folder() == tmp_path / "Library" / "Caches" / "annotated"
        monkeypatch.setattr(corpora.sys, "platform", "win32")
        monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
        assert cache_folder() == tmp_path / "local" / "annotated" / "cache"
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"


def test_nobody_needs_a_home(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(corpora.Path, "home", homeless)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else/annotated")
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(ValueError, match="no home folder .* set XDG_CACHE_HOME to a folder"):
        cache_folder()


# Other processes

PROGRAM = """
import sys
from annotated.corpora import CORPORA, _Download, _Published, fetch

folder, path, address, size, sha256 = sys.argv[1:]
CORPORA["toy"] = _Published((_Download(path, address, int(size), sha256),), "a licence", None)
print("ready", flush=True)
try:
    print(fetch("toy", folder, pause=0.01))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(server, folder, bars="1"):
    file = server.file()
    command = [sys.executable, "-c", PROGRAM, str(folder), file.path, file.address, str(file.size), file.sha256]
    begin = warm.begin if bars else subprocess.Popen  # whether there are bars is settled when tqdm is imported
    return begin(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "no_proxy": "127.0.0.1", "TQDM_DISABLE": bars},
    )  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (getattr(signal, "SIGKILL", 9), -9)])
def test_interrupted_and_resumed(server, tmp_path, number, code):
    server.slow = 0.02
    process = start(server, tmp_path)
    wait_for(lambda: part_of(tmp_path).exists() and part_of(tmp_path).stat().st_size > 50_000)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    assert process.returncode == code and "Traceback" not in err
    kept = part_of(tmp_path).read_bytes()
    assert 50_000 < len(kept) < len(CONTENT) and CONTENT.startswith(kept)
    server.slow = 0.0
    time.sleep(0.1)  # until the first answer has noticed that nobody listens
    server.sent = 0
    _fetch_file(server.file(), tmp_path, **FAST)
    assert_fetched(tmp_path)
    assert server.asked == [None, f"bytes={len(kept)}-"]
    assert_sent(server, len(CONTENT) - len(kept))


def test_progress_goes_to_stderr(server, tmp_path):
    out, err = start(server, tmp_path, bars="").communicate(timeout=300)
    assert out.split() == ["ready", str(tmp_path)], "standard output is the program's own"
    assert re.search(r"text: .*400k/400k", err) and "a licence" in err


def test_two_processes_at_once(server, tmp_path):
    server.slow = 0.01
    processes = [start(server, tmp_path) for _ in range(2)]
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert_fetched(tmp_path)
    assert_sent(server, len(CONTENT))  # one fetched, the other waited
    assert sum(err.count("a licence") for _, err in results) == 1
