"""The command line as a user meets it: a whole job, streams, interrupts, and everything that can be wrong."""

import errno
import functools
import gzip
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import warm
from commands import RECIPE, SIZES, annotated, contents

from annotated import cli, corpora, own_text
from annotated.data import Corpus, Subwords, Words
from annotated.decoding import load, save
from annotated.evaluation import bleu
from annotated.files import _text_lines, file_lock, resumable_output
from annotated.grammar import grammar_corpus
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.training import Recipe
from annotated.transformer import Config

ROOT = Path(__file__).resolve().parents[1]


# ---- lines


@pytest.mark.parametrize(
    "content, lines",
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\n\r", ["a", ""]),
        (b"\xef\xbb\xbf", [""]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"a\n\xef\xbb\xbfb", ["a", "\ufeffb"]),  # only the first line's is a byte order mark
        ("a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\n".encode(), ["a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g"]),
    ],
)
def test_a_line_ends_at_a_line_feed_only(content, lines):
    assert list(_text_lines(io.BytesIO(content))) == lines
    assert list(_text_lines(io.BytesIO(content), encoding="utf-8")) == lines
    assert corpora._decode_lines(content, "text") == lines


def test_whatever_the_bytes_are_as_many_lines_come_out(tmp_path, called, fake):
    chance = random.Random(0)
    pieces = [b"\n", b"\r", b"\r\n", b"\x1c", "\u2028".encode(), b"\x0b", b"\x01", b" ", b"\xef\xbb\xbf", b"word", "字".encode()]
    for _ in range(30):
        content = b"".join(chance.choices(pieces, k=chance.randrange(60)))
        status, out, _ = called("translate", "--model", fake, "--window", chance.randrange(1, 5), stdin=content)
        wanted = content.count(b"\n") + (content != b"" and not content.endswith(b"\n"))
        assert status == 0 and out.count("\n") == wanted and len(out.splitlines()) == wanted, content


@pytest.mark.parametrize("content, said", [
    (b"gut\nf\xfcr\nx", "line 2 is not UTF-8 text, byte 2 of it is 0xfc: convert the file to UTF-8, or name its encoding by --encoding"),
    ("für".encode("utf-16"), "line 1 is not UTF-8 text, byte 1 of it is 0xff"),
    ("fur\n".encode("utf-16-le"), "line 1 holds a zero byte: if it is UTF-16, say so by --encoding utf-16, else remove it with tr -d"),
    (bytes(range(256)), "line 1 holds a zero byte"),
])
def test_bytes_that_are_no_text_are_a_line_with_their_place(content, said, called, fake, tmp_path):
    (tmp_path / "in").write_bytes(content)
    for options, name in ((["--input", tmp_path / "in"], tmp_path / "in"), ([], "standard input")):
        status, _, line = called("translate", "--model", fake, *options, stdin=content)
        assert status == 2 and f"{name}, {said}" in line and line.count("\n") == 1


def test_a_file_whose_lines_end_in_cr_is_refused(called, fake, tmp_path):
    (tmp_path / "in").write_bytes(b"a\rb\rc\r")
    status, out, line = called("translate", "--model", fake, "--input", tmp_path / "in")
    assert (status, out) == (2, "") and "in is a single line, with CR where lines should end: convert it" in line
    (tmp_path / "in").write_bytes(b"a\rb\nc\r\n")
    assert called("translate", "--model", fake, "--input", tmp_path / "in")[:2] == (0, "A B |\nC |\n")


def test_what_is_translated_before_a_wrong_byte_is_kept(called, fake, tmp_path):
    (tmp_path / "in").write_bytes(b"a\nb\n\xff\n")
    asked = "translate", "--model", fake, "--input", tmp_path / "in", "--output", tmp_path / "out", "--window", 1
    assert called(*asked)[0] == 2 and (tmp_path / "out.part").read_text() == "A |\nB |\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp1252"])
def test_another_encoding_can_be_named(encoding, called, fake, tmp_path):
    text = "f\u00fcr\r\n\n\u00e9" + "\u00df" * 30_000 + "\nno end"
    status, out, said = called("translate", "--model", fake, "--encoding", encoding, stdin=text.encode(encoding))
    lines = out.split("\n")
    assert status == 0 and len(lines) == 5 and lines[0] == "FÜR |" and lines[1] == "|" and lines[3] == "NO END |", said
    for name, content in (("s", "a\nb"), ("t", "\u00fc\nd\n")):
        (tmp_path / name).write_bytes(content.encode(encoding))
    pairs = own_text._FilePairs(tmp_path / "s", tmp_path / "t", encoding=encoding)
    assert list(pairs) == [("a", "ü"), ("b", "d")]


@pytest.mark.parametrize("name", ["utf-8", "UTF8", "utf_8"])
def test_the_default_encoding_may_be_named(name, called, fake):
    status, _, said = called("translate", "--model", fake, "--encoding", name, stdin=b"a\0b\n")
    assert status == 2 and "holds a zero byte" in said


@pytest.mark.parametrize("content", [b"ab\xff", b"\xff\xfea\x00\n"])
def test_a_named_encoding_is_held_to(content):
    with pytest.raises(ValueError, match="text, line 1 is no text in the encoding utf-16-be"):
        list(_text_lines(io.BytesIO(content + b"\xd8\x00"), "text", "utf-16-be"))


@pytest.mark.parametrize("name", ["klingon", "hex", "\0", ""])
def test_an_encoding_that_is_none_is_refused(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["translate", "--model", "x", "--encoding", name])
    assert stop.value.code == 2 and "--encoding: give an encoding that Python knows" in capsys.readouterr().err


def test_windows_hold_all_lines_in_order_and_no_more_than_they_may():
    lines = [str(i) * (i % 7) for i in range(100)]
    for size in (1, 3, 100, 1000):
        found = list(cli._windows(iter(lines), size))
        assert [line for window in found for line in window] == lines and max(map(len, found)) == min(size, 100)
    assert [len(w) for w in cli._windows(["x" * 10] * 5, 100, characters=20)] == [2, 2, 1]
    with pytest.raises(ValueError, match="window must be 1 line or more, got 0"):
        list(cli._windows(lines, 0))


def test_a_stream_is_not_read_ahead_of_what_is_translated():
    read = []
    lines = (read.append(i) or str(i) for i in range(1000))
    next(cli._windows(lines, 10))
    assert len(read) == 10


# ---- a stand-in for the model, so that only the stream is tested

FAKE = """
import sys, time
from annotated import cli

class Fake:
    def translate(self, lines, beam=4, alpha=0.6, progress=True):
        time.sleep({sleep})
        with open({log!r}, "a") as log:
            log.write(f"{{len(lines)}}\\n")
        return [line.upper() + "\\u2028|" for line in lines]  # a line end that an output must not keep

cli._load = lambda folder, device, int8=False: Fake()
status = cli.main(sys.argv[1:])
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("peak", *peak, file=sys.stderr)
sys.exit(status)
"""


def script(tmp_path, sleep=0):
    "The same in a process of its own; the size of each window that it translates goes to a log."
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    code = FAKE.format(sleep=sleep, log=str(tmp_path / "log"))
    return [sys.executable, "-c", code, "translate", "--model", str(tmp_path / "model")]


def translated_lines(tmp_path):
    log = tmp_path / "log"
    return sum(map(int, log.read_text().split())) if log.exists() else 0


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    peaks = []
    for lines in (2_000, 200_000):
        (tmp_path / "in").write_text("".join(f"a sentence of some words, number {i}, so that it has a length\n" for i in range(lines)))
        done = subprocess.run([*script(tmp_path), "--input", tmp_path / "in", "--output", tmp_path / "out"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        with open(tmp_path / "out") as file:
            assert sum(1 for _ in file) == lines
        peaks.append(int(done.stderr.split("peak")[1]))
    assert peaks[1] - peaks[0] < 6_000, f"{peaks} kB: read whole, the larger file takes some 30,000 kB more"


def test_a_killed_translation_goes_on_where_it_was(tmp_path):
    text = "".join(f"line {i}\n" for i in range(200))
    (tmp_path / "in").write_text(text)
    rest = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--window", "10"]
    process = warm.begin([*script(tmp_path, sleep=0.05), *rest], stderr=subprocess.DEVNULL)
    part, note = tmp_path / "out.part", tmp_path / "out.part.json"
    while not (note.exists() and json.loads(note.read_text())["lines"] >= 30):
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists() and 30 <= part.read_text().count("\n") < 200
    with part.open("a") as file:
        file.write("torn")  # as when a write was cut off
    done = json.loads(note.read_text())["lines"]
    (tmp_path / "log").unlink()
    again = warm.run([*script(tmp_path), *rest], text=True)
    assert again.returncode == 0 and f"going on after {done} lines" in again.stderr
    assert (tmp_path / "out").read_text() == text.upper().replace("\n", " |\n")
    assert translated_lines(tmp_path) == 200 - done
    assert not part.exists() and not note.exists()


@pytest.mark.parametrize("wanted", [False, True])
def test_int8_reaches_the_model_and_stands_in_the_scores(wanted, called, fake, tmp_path, monkeypatch):
    made, asked = cli._load(fake, "cpu"), []
    monkeypatch.setattr(cli, "_load", lambda folder, device, int8: asked.append(int8) or made)
    for name in ("text", "same"):
        (tmp_path / name).write_text("a b c d\n")
    flag = ["--int8"] if wanted else []
    assert called("translate", "--model", fake, *flag, stdin=b"a\n")[0] == 0
    files = ["--source", tmp_path / "text", "--target", tmp_path / "same", "--out", tmp_path / "scores"]
    status, out, _ = called("evaluate", "--model", fake, *files, *flag)
    assert status == 0 and (", int8" in out) == wanted and asked == [wanted, wanted]
    assert json.loads((tmp_path / "scores" / "scores.json").read_text()).get("int8", False) == wanted


def test_width_penalty_part_and_threads_reach_what_they_are_for(called, fake, tmp_path, monkeypatch):
    made, asked, threads = cli._load(fake, "cpu"), [], []
    made.translate = lambda lines, beam=4, alpha=0.6, progress=True: asked.append((beam, alpha)) or lines
    made.n_best = lambda lines, k, beam=4, alpha=0.6, progress=True: asked.append((beam, alpha)) or [[(0.0, line)] * k for line in lines]
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(cli, "load_corpus", lambda name: Corpus(name, [("a", "b")], [("c", "d")], [("e", "f")], "ours", {}))
    how = "--model", fake, "--beam", 3, "--alpha", 0.25, "--threads", 5
    for command in (["translate"], ["translate", "--n-best", 2], ["evaluate", "--corpus", "one"], ["evaluate", "--corpus", "one", "--split", "validation"]):
        out = ["--out", tmp_path / str(len(asked))] if "evaluate" in command else []
        assert called(*command, *how, *out, stdin=b"g\n")[0] == 0
    assert asked == [(3, 0.25)] * 4 and threads == [5] * 4
    assert [(tmp_path / name / "outputs.txt").read_text() for name in "23"] == ["e\n", "c\n"]


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_int8_for_a_recurrent_model_is_refused_in_one_line(command, called, tmp_path):
    words = Words(["a", "b"])
    save(tmp_path / "model", RecurrentSeq2Seq(RecurrentConfig(len(words), d_model=8)), words)
    for name in ("text", "same"):
        (tmp_path / name).write_text("a\n")
    files = ["--source", tmp_path / "text", "--target", tmp_path / "same"] if command == "evaluate" else []
    status, out, said = called(command, "--model", tmp_path / "model", "--device", "cpu", "--int8", *files, stdin=b"a\n")
    assert status == 2 and not out and said.count("\n") == 1 and "int8 is for a Transformer" in said


@pytest.mark.parametrize("change", ["beam", "alpha", "n_best", "encoding", "int8", "input", "model", "part", "note", "page", "nothing"])
def test_only_the_same_job_is_gone_on_with(tmp_path, called, fake, change):
    (tmp_path / "in").write_text("a\nb\nc\n")
    arguments = ["translate", "--model", fake, "--input", tmp_path / "in", "--output", tmp_path / "out", "--window", 1]

    class Stops:
        lines = 0

        def translate(self, lines, beam=4, alpha=0.6, progress=True):
            Stops.lines += 1
            if Stops.lines == 3:
                raise KeyboardInterrupt
            return lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "_load", lambda folder, device, int8=False: Stops())
        assert called(*arguments)[0] == 130
    part, note = tmp_path / "out.part", tmp_path / "out.part.json"
    assert part.read_text() == "a\nb\n"
    if change in ("beam", "alpha"):
        arguments += [f"--{change}", "2"]
    elif change in ("n_best", "encoding"):
        arguments += ["--n-best", 2] if change == "n_best" else ["--encoding", "latin-1"]
    elif change == "page":  # which no translation reads
        (fake / "README.md").write_text("Another page.")
    elif change == "int8":
        arguments += ["--int8"]
    elif change == "input":
        (tmp_path / "in").write_text("a\nb\nd\n")
    elif change == "model":
        (fake / "config.json").write_text("{ }")
    elif change == "part":
        part.write_text("a\n")
    elif change == "note":
        note.write_text("{")
    status, _, said = called(*arguments)
    if change in ("page", "nothing"):
        assert status == 0 and "going on after 2 lines" in said and (tmp_path / "out").read_text() == "a\nb\nC |\n"
    else:  # two finished lines would be lost
        hints = {"note": "Expecting", "part": "is damaged"}
        assert status == 2 and hints.get(change, f"holds 2 finished lines of another job (another {change})") in said
        assert part.read_text() == ("a\n" if change == "part" else "a\nb\n") and not (tmp_path / "out").exists()


def test_what_a_stopped_pipe_has_left_is_not_lost(tmp_path, called, fake):
    arguments = ["translate", "--model", fake, "--output", tmp_path / "out", "--window", 1]
    assert called(*arguments, stdin=b"a\n\xff\n")[0] == 2
    status, _, said = called(*arguments, stdin=b"a\n")
    assert status == 2 and "holds 1 finished lines of another job (another input)" in said and "begin anew" in said
    assert (tmp_path / "out.part").read_text() == "A |\n"
    for name in ("out.part", "out.part.json"):
        (tmp_path / name).unlink()
    assert called(*arguments, stdin=b"a\n")[0] == 0 and (tmp_path / "out").read_text() == "A |\n"


def test_numbers_of_lines_go_on_with_the_job(tmp_path, called, fake, monkeypatch):
    (tmp_path / "in").write_text("a\nb\nc\n")
    arguments = ["translate", "--model", fake, "--input", tmp_path / "in", "--output", tmp_path / "out", "--window", 1, "--n-best", 1]
    seen = []

    def found(lines, *_, **__):
        seen.extend(lines)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return [[(-0.5, line)] for line in lines]

    cli._load(fake, "cpu").n_best = found
    assert called(*arguments)[0] == 130 and called(*arguments)[0] == 0
    assert (tmp_path / "out").read_text() == "1\t-0.5000\ta\n2\t-0.5000\tb\n3\t-0.5000\tc\n" and len(seen) == 4


def test_output_appears_only_when_it_is_complete(tmp_path, called, fake):
    (tmp_path / "out").write_text("what was there before\n")
    with pytest.raises(RuntimeError), resumable_output(tmp_path / "out", {"input": None}) as (_, add):
        add(1, "half\n")
        raise RuntimeError
    assert (tmp_path / "out").read_text() == "what was there before\n"
    status, _, said = called("translate", "--model", fake, "--output", tmp_path, stdin=b"a\n")
    assert status == 2 and "is a folder" in said


def test_each_window_is_sent_off_before_the_next_is_read(tmp_path):
    process = warm.begin([*script(tmp_path), "--window", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    for word in (b"one", b"two"):  # waits for each answer before it gives the next line
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == word.upper() + b" |\n"
    process.stdin.close()
    assert process.wait() == 0


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path):
    process = warm.begin([*script(tmp_path), "--window", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline()
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.write(b"two\n" * 1000)
        process.stdin.close()
    said = process.stderr.read()
    assert process.wait() == 141 and b"Traceback" not in said and b"Exception" not in said


# ---- on a terminal


def until(terminal, wanted, seconds=60):
    "What comes from a terminal, up to some bytes."
    found, end = b"", time.monotonic() + seconds
    while wanted not in found:
        assert time.monotonic() < end, found
        with suppress(BlockingIOError):
            found += os.read(terminal, 1000)
        time.sleep(0.01)
    return found


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals on this system")
@pytest.mark.parametrize("end, status", [(b"quit\n", 0), (b"\x04", 0), (signal.SIGINT, 130)])
def test_on_a_terminal_each_line_is_answered(tmp_path, end, status):
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    command = [*script(tmp_path), "--beam", "1"]
    process = warm.begin(command, stdin=theirs, stdout=theirs, stderr=theirs)
    until(ours, b"> ")
    os.write(ours, "für\n".encode())
    assert "FÜR |".encode() in until(ours, b"|\r\n> ")
    time.sleep(0.5)  # an interrupt between prompt and read would be seen only after the read
    process.send_signal(end) if isinstance(end, int) else os.write(ours, end)
    said = until(ours, b"peak")
    assert process.wait(60) == status and b"Traceback" not in said
    os.close(ours)
    os.close(theirs)


def test_interactive_answers_through_a_pipe(tmp_path, called, fake):
    status, out, said = called("translate", "--model", fake, "--interactive", stdin=b"a\n\nb\nquit\nc\n")
    assert status == 0 and out == "A |\n|\nB |\n" and said.count("> ") == 4
    cli._load(fake, "cpu").n_best = lambda lines, k, *rest, **options: [[(0.0, line)] * k for line in lines]
    _, out, said = called("translate", "--model", fake, "--interactive", "--n-best", 2, stdin=b"a\nb\n")
    assert [line.split()[0] for line in out.splitlines()] == ["1", "1", "2", "2"], said


# ---- a whole job


def test_translate_keeps_the_number_of_lines(model, tmp_path, called):
    lines = ["the cat sees a dog", "", "  ", "word " * 300, "日本語", "🙂", "a cat\u2028hears the dog", "a cat hears the dog"]
    status, out, _ = called("translate", "--model", model, stdin="\n".join(lines).encode())
    assert status == 0 and out.count("\n") == len(lines) == len(out.splitlines())
    assert out.split("\n")[6] == out.split("\n")[7]
    (tmp_path / "in").write_bytes("\r\n".join([*lines, ""]).encode())
    status, nothing, _ = called("translate", "--model", model, "--input", tmp_path / "in", "--output", tmp_path / "out", "--window", 3)
    assert status == 0 and nothing == "" and (tmp_path / "out").read_bytes().decode() == out


def test_nothing_in_gives_nothing_out(model, called, tmp_path):
    assert called("translate", "--model", model)[:2] == (0, "")
    assert called("translate", "--model", model, "--output", tmp_path / "out")[0] == 0 and (tmp_path / "out").read_bytes() == b""


def test_n_best_begins_with_the_translation_and_falls(model, called):
    lines = "the cat sees a dog\n\na dog hears the cat\n" + "the cat sees a dog . " * 60 + "\n"
    _, best, _ = called("translate", "--model", model, stdin=lines.encode())
    status, out, _ = called("translate", "--model", model, "--n-best", 3, stdin=lines.encode())
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [row[0] for row in rows] == list("1112333444")
    for number, text in enumerate(best.splitlines(), 1):
        mine = [row for row in rows if row[0] == str(number)]
        scores = [float(row[1]) for row in mine]
        assert mine[0][2] == text and scores == sorted(scores, reverse=True)
    status, _, said = called("translate", "--model", model, "--n-best", 5, stdin=b"x\n")
    assert status == 2 and "n-best=5 needs a beam of 5 or more, got beam=4" in said


def test_more_translations_than_the_beam_is_wide_are_refused_before_a_file_is_made(model, tmp_path, called):
    (tmp_path / "in").write_text("a cat\n")
    asked = "translate", "--model", model, "--input", tmp_path / "in", "--output", tmp_path / "out", "--n-best", 5
    status, _, said = called(*asked)
    assert status == 2 and "n-best=5 needs a beam of 5 or more, got beam=4" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_evaluate_prints_the_score_with_its_signature(model, text, tmp_path, called):
    arguments = ["evaluate", "--model", model, "--source", text / "train.en", "--target", text / "train.de"]
    status, out, _ = called(*arguments, "--out", tmp_path)
    assert status == 0 and "BLEU" in out and "chrF" in out and "nrefs:1|case:mixed" in out
    scores, written = json.loads((tmp_path / "scores.json").read_text()), (tmp_path / "outputs.txt").read_text().splitlines()
    assert scores["sentences"] == 32 and written == load(model).translate((text / "train.en").read_text().splitlines())
    assert scores["bleu"] == round(bleu(written, (text / "train.de").read_text().splitlines())[0], 2)
    losses = [line["loss"] for line in map(json.loads, (model / "log.jsonl").read_text().splitlines()) if "loss" in line]
    assert losses[-1] < 0.5 * losses[0]  # for a moment it has learned; the score of such a model is luck
    status, out, _ = called(*arguments, "--tokenize", "char", "--lowercase", "--beam", 1)
    assert status == 0 and "case:lc" in out and "tok:char" in out and "beam 1" in out


def test_what_evaluate_has_scored_is_written_before_it_is_said(text, fake, tmp_path, called, monkeypatch):
    asked = "evaluate", "--model", fake, "--source", text / "train.en", "--target", text / "train.de", "--out", tmp_path / "out"

    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(cli, "print", closed, raising=False)
    assert called(*asked)[0] == 141
    assert set(contents(tmp_path / "out")) == {"outputs.txt", "scores.json"}


def test_a_score_of_0_has_its_reason_beside_it(fake, tmp_path, called):
    for name, line in (("in", "aa bb"), ("short", "AA |"), ("long", "AA BB CC DD |")):
        (tmp_path / name).write_text(line + "\n")
    _, out, said = called("evaluate", "--model", fake, "--source", tmp_path / "in", "--target", tmp_path / "short")
    assert "BLEU 0.00" in out and "BLEU is 0 where no word is right, or no output has four words" in said
    (tmp_path / "in").write_text("aa bb cc dd\n")
    _, out, said = called("evaluate", "--model", fake, "--source", tmp_path / "in", "--target", tmp_path / "long")
    assert "BLEU 0.00" not in out and "BLEU is 0" not in said


def test_a_disk_that_fills_up_costs_evaluate_no_score(text, fake, tmp_path, called, monkeypatch):
    asked = "evaluate", "--model", fake, "--source", text / "train.en", "--target", text / "train.de", "--out", tmp_path / "out"

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "out/.scores.json.part")

    with monkeypatch.context() as later:
        later.setattr(cli, "_write_scores", full)
        status, out, said = called(*asked)
        assert status == 2 and "BLEU" in out and "chrF" in out
        assert said.endswith("out/scores.json: No space left on device: make room, and give the same command again\n")

    class Full:
        __init__ = full

    monkeypatch.setattr(cli, "TemporaryFile", Full)  # before anything is translated
    monkeypatch.setattr(cli, "_score", None)
    status, out, said = called(*asked)
    assert status == 2 and not out and f"cannot write to {tmp_path / 'out'}: No space left on device: choose another --out" in said


def test_a_compressed_file_is_called_so(text, fake, tmp_path, called):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"ein Satz\n"))
    for asked in (["translate", "--model", fake, "--input", tmp_path / "a.gz"],
                  ["train", "--source", tmp_path / "a.gz", "--target", tmp_path / "b.gz", "--out", tmp_path / "out"]):
        status, _, said = called(*asked)
        assert status == 2 and "a.gz is compressed: unpack it with gunzip first" in said


# ---- what is wrong, and what helps


def test_input_that_cannot_be_used_gives_one_line(model, text, tmp_path, called):
    (tmp_path / "short.de").write_text("eins\n")
    (tmp_path / "latin").write_bytes("gut\nfür\n".encode("latin-1"))
    for name, content in (("empty", ""), ("nil", ""), ("one", "a\n"), ("uno", "a\n"), ("mac", "a\rb\rc\r")):
        (tmp_path / name).write_text(content)
    train = ["train", *SIZES, "--out", tmp_path / "out"]
    en, de = text / "train.en", text / "train.de"
    for arguments, hint in [
        (["translate", "--model", tmp_path], "not a model folder"),
        (["translate", "--model", model, "--input", tmp_path / "nothing"], "cannot read"),
        (["translate", "--model", model, "--input", tmp_path], "cannot read"),
        (["translate", "--model", model, "--interactive", "--input", en], "leave out --input"),
        ([*train, "--source", tmp_path, "--target", de], "is no regular file"),
        (["translate", "--model", model, "--threads", 0], "threads must be from 1 to 1024"),
        (["translate", "--model", model, "--threads", 99999999999999], "threads must be from 1 to 1024"),
        (["translate", "--model", "opus-mt-en-de"], "reads owner/model"),
        (["translate", "--model", model, "--device", "cuda:99"], "device='cuda:99'"),
        ([*train, "--source", en, "--target", tmp_path / "nothing"], "cannot read"),
        ([*train, "--source", en, "--target", tmp_path / "short.de"], "has 32 lines and"),
        ([*train, "--source", tmp_path / "latin", "--target", de], "latin, line 2 is not UTF-8"),
        ([*train, "--source", tmp_path / "empty", "--target", tmp_path / "nil"], "no sentence pair"),
        ([*train, "--source", en], "give either"),
        ([*train, "--corpus", "grammar", "--source", en], "give either"),
        ([*train, "--source", en, "--target", de, "--valid-source", en], "give both"),
        ([*train, "--corpus", "wmt99"], "no corpus"),
        ([*train, "--source", en, "--target", de, "--vocab", "10"], "vocab=10"),
        ([*train, "--source", en, "--target", de, "--h", "5"], "got h=5 and d_model=32"),
        ([*train, "--source", en, "--target", de, "--source_tokens", "3"], "source_tokens=3"),
        ([*train, "--source", en, "--target", de, "--longest", "2"], "longest=2"),
        ([*train, "--source", en, "--target", en], "train.en is both source and target: name two files"),
        ([*train, "--source", en, "--target", de, "--valid-source", de, "--valid-target", de], "train.de is both source and target"),
        (["evaluate", "--model", model, "--source", en, "--target", en], "train.en is both source and target"),
        ([*train, "--source", tmp_path / "mac", "--target", de], "mac is a single line, with CR where lines should end: convert it"),
        (["evaluate", "--model", model, "--source", en, "--target", tmp_path / "mac"], "mac is a single line, with CR where"),
        (["evaluate", "--model", model], "give either"),
        (["evaluate", "--model", model, "--corpus", "grammar", "--source", en], "give either"),
        (["evaluate", "--model", model, "--source", en], "give either"),
        ([*train[:-1], en, "--source", en, "--target", de], "is a file, not a folder"),
        ([*train[:-1], en / "below", "--source", en, "--target", de], "train.en is a file, so"),
        (["fetch", "grammar", "--folder", en / "below"], "train.en is a file, so"),
        ([*train, "--corpus", "grammar", "--valid-source", en, "--valid-target", de], "has held-out text of its own"),
        ([*train, "--corpus", "grammar", "--encoding", "latin-1"], "--encoding is for files"),
        ([*train, "--source", en, "--target", de, "--valid-source", tmp_path / "one", "--valid-target", tmp_path / "uno", "--longest", "2"],
         "longest=2 leaves out every training pair: raise it"),
        ([*train, "--corpus", "grammar", "--vocab", "3"], "vocab=3"),
        (["evaluate", "--model", model, "--corpus", "grammar", "--encoding", "latin-1"], "--encoding is for files"),
        (["evaluate", "--model", model, "--source", en, "--target", de, "--split", "validation"], "--split is for --corpus NAME"),
    ]:
        status, _, said = called(*arguments, stdin=b"a line\n")
        lines = [line for line in said.replace("\r", "\n").split("\n") if line.startswith("annotated ")]
        assert status == 2 and len(lines) == 1 and hint in lines[0] and "Traceback" not in said, (arguments, said)


@pytest.mark.parametrize("command, option, hint", [
    ("translate", "--input", ", or leave --input out for standard input"), ("translate", "--output", ", or leave --output out for standard output"),
    ("evaluate", "--source", ""), ("train", "--target", ""), ("train", "--valid-source", ""), ("train", "--valid-target", ""),
])
def test_a_dash_is_no_name_of_a_file(command, option, hint, fake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for given in ("-", ""):
        with pytest.raises(SystemExit) as stop:
            cli.main([command, "--out" if command == "train" else "--model", str(fake), option, given])
        assert stop.value.code == 2 and capsys.readouterr().err.endswith(f"argument {option}: name a file, not {given!r}{hint}\n")
    assert not Path("-").exists()


def test_a_file_that_is_called_dash_has_a_path(called, fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert called("translate", "--model", fake, "--output", "./-", stdin=b"a\n")[0] == 0 and Path("./-").read_text() == "A |\n"


def test_a_mistake_in_a_process_of_its_own_is_a_line_and_a_status(tmp_path):
    done = annotated("translate", "--model", tmp_path)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and done.stdout == b""


@functools.cache
def the_grammar():
    return grammar_corpus()


@pytest.fixture
def once(monkeypatch):
    "The grammar's corpus takes seconds: it is made once for the tests that write it."
    monkeypatch.setattr(corpora, "grammar_corpus", the_grammar)


def test_the_grammar_is_written_as_text(called, tmp_path, once):
    status, out, said = called("fetch", "grammar", "--folder", tmp_path)
    assert status == 0 and said == "" and out == f"grammar is in {tmp_path}\n"
    corpus = the_grammar()
    for part in ("train", "validation", "test"):
        lines = (tmp_path / "grammar" / f"{part}.tsv").read_bytes().decode().split("\n")
        assert [tuple(line.split("\t")) for line in lines] == [*getattr(corpus, part), ("",)]
    assert sorted(path.name for path in (tmp_path / "grammar").iterdir()) == ["test.tsv", "train.tsv", "validation.tsv"]


def test_without_arguments_it_helps(called):
    status, out, said = called()
    assert status == 0 and said == "" and "a whole job:\n  python -m annotated train" in out
    assert all(name in out for name in ("train", "translate", "evaluate", "fetch"))


@pytest.mark.parametrize("command", ["train", "translate", "evaluate", "fetch"])
def test_help_teaches_by_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and "examples:\n  python -m annotated " in capsys.readouterr().out.replace('echo "A man rides a bike." | ', "")


def test_every_example_is_a_command_that_the_parser_knows():
    parser, seen = cli._make_parser(), 0
    for text in cli._EXAMPLES.values():
        for line in text.replace("\\\n", "").splitlines():
            _, found, command = line.partition("python -m annotated ")
            if found:
                parser.parse_args(command.split())
                seen += 1
    assert seen > 10


def test_every_field_can_be_given_and_is_explained():
    internal = {"source_vocab", "pad", "bos", "eos", "unk"}
    assert {field.name for field in fields(Config)} - internal == set(cli._CONFIG_HELP)
    assert {field.name for field in fields(Recipe)} == set(cli._RECIPE_HELP)


def test_true_and_false_are_the_only_answers(capsys):
    options = cli._make_parser().parse_args(["train", "--out", "x", "--bias", "true", "--final_norm", "False"])
    assert options.bias is True and options.final_norm is False
    with pytest.raises(SystemExit):
        cli.main(["train", "--out", "x", "--bias", "yess"])
    assert "give true or false, not 'yess'" in capsys.readouterr().err


def test_the_version_is_the_package_s(capsys):
    import annotated

    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out.startswith(f"annotated {annotated.__version__}, torch ")


@pytest.mark.parametrize("option, value", [
    ("--alpha", -11), ("--alpha", 11), ("--window", 0), ("--beam", 0), ("--n-best", -1), ("--n-best", "x"), ("--score", -3), ("--longest", 0), ("--out", ""), ("--model", ""),
])
def test_numbers_below_their_least_and_empty_names_are_refused(option, value, capsys):
    command = ["train", "--out", "x"] if option in ("--score", "--longest", "--out") else ["translate", "--model", "x"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, option, str(value)])
    assert stop.value.code == 2 and re.search(f"{option}: (give a (whole )?number|name a folder)", capsys.readouterr().err)


# ---- nothing is written over that is not ours


def test_an_output_that_cannot_be_replaced_is_refused(tmp_path, called, fake, monkeypatch):
    text, fifo = tmp_path / "text", tmp_path / "fifo"
    text.write_text("a\n")
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to(text)
    (tmp_path / "text2.part").write_text("b\n")
    for source, output, hint in (
        (text, fifo, "is no regular file: use > FILE"),
        (text, text, "is the input"),
        (text, tmp_path / "link", "is the input"),
        (tmp_path / "link", text, "is the input"),
        (tmp_path / "text2.part", tmp_path / "text2", "is the input"),
    ):
        status, _, said = called("translate", "--model", fake, "--input", source, "--output", output)
        assert status == 2 and hint in said, (source, output, said)
    with text.open() as file:  # the shell's < text
        monkeypatch.setattr(sys, "stdin", file)
        assert cli.main(["translate", "--model", str(fake), "--output", str(text)]) == 2
    assert text.read_text() == "a\n" and fifo.is_fifo() and (tmp_path / "link").is_symlink()
    assert (tmp_path / "text2.part").read_text() == "b\n"


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no /dev/fd")
def test_a_pipe_with_a_name_is_refused_as_one(tmp_path, called, fake):
    (tmp_path / "text").write_text("a\n")
    ends = os.pipe()
    try:
        status, _, said = called("translate", "--model", fake, "--input", tmp_path / "text", "--output", f"/dev/fd/{ends[1]}")
    finally:
        for end in ends:
            os.close(end)
    assert status == 2 and "is no regular file: use > FILE" in said


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, called, fake):
    (tmp_path / "there").write_text("old\n")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert called("translate", "--model", fake, "--output", tmp_path / "link", stdin=b"a\n")[0] == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_text() == "A |\n"


def test_one_process_at_a_time_writes_to_a_place(text, tmp_path, called, fake):
    pytest.importorskip("fcntl")
    (tmp_path / "out.part").touch()
    files = ["--source", text / "train.en", "--target", text / "train.de"]
    with file_lock(tmp_path / "out.part"), file_lock(tmp_path / "model" / own_text._MARK):
        for command in (
            ["translate", "--model", fake, "--output", tmp_path / "out"],
            ["train", *files, *SIZES, "--steps", 1, "--out", tmp_path / "model"],
        ):
            status, _, said = called(*command)
            assert status == 2 and "another process is writing there" in said
    assert (tmp_path / "out.part").exists() and len(list((tmp_path / "model").iterdir())) == 1
    assert called("translate", "--model", fake, "--output", tmp_path / "out", stdin=b"a\n")[0] == 0


# ---- what would fail late


def test_what_evaluate_cannot_do_is_found_out_before_it_translates(text, tmp_path, called, monkeypatch):
    monkeypatch.setattr(cli, "_load", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "file").touch()
    arguments = ["evaluate", "--model", tmp_path, "--source", text / "train.en", "--target", text / "train.de"]
    for more, hint in ((["--tokenize", "none-such"], "none-such"), (["--out", tmp_path / "file"], "is a file, not a folder")):
        status, _, said = called(*arguments, *more)
        assert status == 2 and hint in said


def test_closed_streams_cost_a_line(fake, tmp_path, monkeypatch, called, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        assert cli.main(["translate", "--model", str(fake)]) == 2
        assert "standard input is closed" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n")))
        assert cli.main(["translate", "--model", str(fake)]) == 2
        assert "standard output is closed" in capsys.readouterr().err
        assert cli.main(["evaluate", "--model", str(fake), "--corpus", "grammar"]) == 2
    assert "standard output is closed: name a folder by --out" in capsys.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert cli.main(["translate", "--model", str(tmp_path / "none" / "such")]) == 2
        sys.stderr.close()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error, said", [
    (RuntimeError("[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. "
                  "Error code 12 (Cannot allocate memory)"), "there is not enough memory for 4,000.0 GB more: a smaller"),
    (RuntimeError("Storage size calculation overflowed"), "overflowed"),
    (MemoryError(), "not enough memory"),
    (OverflowError("Result too large"), "Result too large"),
    (RuntimeError("a mistake of ours"), None),
])
def test_a_job_that_is_too_large_costs_a_line(called, monkeypatch, tmp_path, error, said):
    def load(folder, device, int8):
        raise error

    monkeypatch.setattr(cli, "_load", load)
    if said is None:
        with pytest.raises(RuntimeError):
            called("translate", "--model", tmp_path)
    else:
        status, _, line = called("translate", "--model", tmp_path)
        assert status == 2 and said in line


def test_the_installed_program_ends_quietly_when_it_is_interrupted(monkeypatch):
    from annotated.__main__ import run

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = [signal.getsignal(number) for number in numbers]
    try:
        assert run() == 130
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


# ---- nothing lost


@pytest.mark.parametrize("kept", [
    {"outputs.txt": "mine\n"}, {"scores.json": "{}"}, {"scores.json": '{"outputs": "0"}', "outputs.txt": "mine\n"},
    {"scores.json": "not json"}, {"scores.json": '{"outputs": null}', "outputs.txt": "mine\n"},
])
def test_evaluate_replaces_its_own_results_only(kept, text, fake, tmp_path, called):
    asked = "evaluate", "--model", fake, "--source", text / "train.en", "--target", text / "train.de", "--out", tmp_path / "out"
    assert called(*asked)[0] == 0 and called(*asked)[0] == 0  # its own
    assert set(contents(tmp_path / "out")) == {"outputs.txt", "scores.json"}
    for name, content in kept.items():
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / name).write_text(content)
    before = contents(tmp_path / "mine")
    status, _, said = called(*asked[:-1], tmp_path / "mine")
    assert status == 2 and "evaluate has not written" in said and contents(tmp_path / "mine") == before


def test_an_evaluation_that_is_stopped_between_its_two_files_can_be_made_again(text, fake, tmp_path, called, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    asked = "evaluate", "--model", fake, "--source", text / "train.en", "--target", text / "train.de", "--out", tmp_path / "out"
    assert called(*asked)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(own_text.Record, "write", stopped)
        assert called(*asked[:3], "--source", text / "train.de", "--target", text / "train.en", *asked[-2:])[0] == 130
    assert called(*asked)[0] == 0 and set(contents(tmp_path / "out")) == {"outputs.txt", "scores.json"}


def test_evaluate_does_not_write_over_what_it_reads(text, fake, tmp_path, called):
    (tmp_path / "e3").mkdir()
    shutil.copy(text / "train.en", tmp_path / "e3" / "outputs.txt")
    asked = "evaluate", "--model", fake, "--source", tmp_path / "e3" / "outputs.txt", "--target", text / "train.de", "--out"
    status, _, said = called(*asked, tmp_path / "e3")
    assert status == 2 and (tmp_path / "e3" / "outputs.txt").read_bytes() == (text / "train.en").read_bytes()
    assert called("evaluate", "--model", fake, "--source", text / "train.en", "--target", text / "train.de", "--out", tmp_path / "e4")[0] == 0
    before = contents(tmp_path / "e4")
    (tmp_path / "link").symlink_to(tmp_path / "e4" / "outputs.txt")
    status, _, said = called(*asked[:4], tmp_path / "link", *asked[5:], tmp_path / "e4")
    assert status == 2 and "is read, and would be lost" in said and contents(tmp_path / "e4") == before


def test_nothing_is_written_into_the_model_s_own_folder(text, fake, tmp_path, called):
    (tmp_path / "way").symlink_to(fake)
    before = contents(fake)
    files = "--source", text / "train.en", "--target", text / "train.de"
    for command in (
        ["translate", "--model", fake, "--output", fake / "config.json"], ["translate", "--model", fake, "--output", tmp_path / "way" / "new"],
        ["evaluate", "--model", fake, *files, "--out", fake], ["evaluate", "--model", tmp_path / "way", *files, "--out", fake],
    ):
        status, _, said = called(*command, stdin=b"a\n")
        assert status == 2 and "names the model's own folder" in said and contents(fake) == before


def test_lines_with_an_empty_side_are_written_and_counted(fake, tmp_path, called, text):
    (tmp_path / "s").write_text("a b c d\n\ne f g h\ni\n\n")
    (tmp_path / "t").write_text("A B C D |\nx\nE F G H |\n\n\n")
    status, out, _ = called("evaluate", "--model", fake, "--source", tmp_path / "s", "--target", tmp_path / "t", "--out", tmp_path / "out")
    assert status == 0 and "2 sentences, beam 4, alpha 0.6; 3 lines more have an empty side" in out and "BLEU 100.00" in out
    assert (tmp_path / "out" / "outputs.txt").read_text() == "A B C D |\n|\nE F G H |\nI |\n|\n"
    assert json.loads((tmp_path / "out" / "scores.json").read_text())["sentences"] == 2
    assert own_text._FilePairs(tmp_path / "s", tmp_path / "t").count() == (2, 3)


def test_a_grammar_that_somebody_has_changed_stays(called, tmp_path, once):
    (tmp_path / "grammar").mkdir()
    (tmp_path / "grammar" / "test.tsv").write_text("mine")
    status, _, said = called("fetch", "grammar", "--folder", tmp_path)
    assert status == 2 and "test.tsv holds something else" in said and (tmp_path / "grammar" / "test.tsv").read_text() == "mine"


# ---- what this machine cannot do


@pytest.mark.parametrize("option", ["--beam", "--d_ff", "--vocab", "--window"])
def test_numbers_beyond_all_measure_are_refused(option, text, tmp_path, called):
    command = ["translate", "--model", tmp_path] if option in ("--beam", "--window") else ["train", "--corpus", "grammar", "--out", tmp_path / "out"]
    for value in (2**31, 2**70, "9" * 5000):
        try:
            status, _, said = called(*command, option, value)
        except SystemExit as stop:
            status, said = stop.code, ""
        assert status == 2 and "Traceback" not in said and "[" not in said


def test_a_missing_package_is_asked_for_before_anything_else(text, tmp_path, called, monkeypatch, model):
    files = "--source", text / "train.en", "--target", text / "train.de"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sacrebleu", None)
        patch.setattr(own_text, "_read_corpus", lambda options: pytest.fail("it has begun"))
        patch.setattr(cli, "_to_score", lambda options: pytest.fail("it has begun"))
        for command in (["train", *files, *SIZES, "--out", tmp_path / "out"], ["evaluate", "--model", tmp_path, *files]):
            status, _, said = called(*command)
            assert status == 2 and "sacrebleu is needed" in said and "pip install \"annotated-attention[data]\"" in said
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ModuleNotFoundError, match="sentencepiece is needed for subwords: install it with pip install"):
        Subwords.train(["a b c"], 300)
    for command in (["train", *files, *SIZES, "--out", tmp_path / "out"], ["translate", "--model", model]):
        status, _, said = called(*command, stdin=b"a\n")
        assert status == 2 and "sentencepiece is needed" in said and "pip install \"annotated-attention[data]\"" in said
    assert not (tmp_path / "out").exists()


def test_a_tokeniser_that_is_fetched_is_announced(called, tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_bleu_metric", lambda lowercase, tokenize: None)
    status, _, said = called("evaluate", "--model", tmp_path, "--tokenize", "flores200")
    assert status == 2 and "flores200 is a model, which sacreBLEU fetches" in said


# ---- signals, and nobody who reads


def test_what_ends_a_process_gives_its_status(tmp_path):
    "Five interrupts at once, a request to terminate, a closed terminal: while it loads, while it works, and at its end."
    (tmp_path / "in").write_text("a\n" * 1000)
    rest = ["--input", str(tmp_path / "in"), "--window", "1", "--output", str(tmp_path / "out")]
    code = FAKE.format(sleep=0.05, log=str(tmp_path / "log"))
    code = code.replace("status = cli.main(sys.argv[1:])", "from annotated.__main__ import run\nstatus = run()")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for number, times in ((signal.SIGINT, 5), (signal.SIGTERM, 2), (signal.SIGHUP, 1)):
        command = [sys.executable, "-c", code, "translate", "--model", str(tmp_path / "model"), *rest]
        process = warm.begin(command, stderr=subprocess.PIPE)
        note = tmp_path / "out.part.json"
        done = json.loads(note.read_text())["lines"] if note.exists() else 0
        while not note.exists() or json.loads(note.read_text())["lines"] < done + 2:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        for _ in range(times):
            with suppress(ProcessLookupError):
                process.send_signal(number)
            time.sleep(0.01)
        said = process.communicate()[1].decode()
        assert process.returncode == 130 and "Traceback" not in said and "annotated translate: stopped" in said, said
        assert (tmp_path / "out.part").read_text().count("\n") >= done + 2


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_request_to_stop_while_it_starts_is_a_stop(name, tmp_path):
    code = "import sys; sys.modules['torch'] = None\nimport signal, annotated.files as f\n"
    code += "of = f._Messages.of\ndef wait(s):\n    signal.raise_signal(signal." + name + ")\n    return of(s)\n"
    code += "f._Messages.of = wait\nfrom annotated.__main__ import run\nsys.exit(run())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 130 and done.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_or_broken_stderr_changes_no_status(tmp_path, text):
    refused = [sys.executable, "-m", "annotated", "translate", "--model", str(tmp_path)]
    with open("/dev/full", "w") as full:
        assert warm.begin(refused, stderr=full).wait() == 2
    arguments = ["train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE[:-1], 10**6, "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "annotated", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}  # the bar is what is written
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=env)
    log = tmp_path / "out" / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 5):
        assert process.poll() is None
        time.sleep(0.005)
    process.stderr.close()  # as head does when it has enough
    try:
        assert process.wait(120) == 141
    finally:
        process.kill()
    newest = max(path.name for path in (tmp_path / "out" / "checkpoints").iterdir())
    assert int(newest) > 5 and json.loads(log.read_text().splitlines()[-1])["step"] == int(newest)


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["fetch"]])
def test_output_that_nobody_reads_any_more_ends_it_quietly(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "annotated", *arguments], stdout=writer, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["fetch"]])
def test_output_that_finds_no_room_is_said_in_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "annotated", *arguments], stdout=full, stderr=subprocess.PIPE, env=BUFFERED, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("annotated")


@pytest.mark.parametrize("missing, said", [(0, "there"), (1, "in part"), (6, "not there")])
def test_what_is_there_of_a_corpus_is_said(missing, said, called, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "_missing_files", lambda name, folder: list(corpora.CORPORA[name].files)[:missing])
    status, out, _ = called("fetch", "--folder", tmp_path)
    assert status == 0 and re.search(rf"multi30k-en-de +1\.3 MB  {said}  ", out), out


def test_everything_is_fetched_to_where_the_environment_says(called, monkeypatch, tmp_path):
    fetched = []
    monkeypatch.setattr(cli, "fetch", lambda name, folder: fetched.append((name, folder)))
    monkeypatch.setenv("ANNOTATED_DATA", str(tmp_path))
    assert called("fetch", "all")[0] == 0 and fetched == [(name, tmp_path) for name in corpora.CORPORA]
