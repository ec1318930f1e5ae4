"""What the tests of the command line share: the program in a process of its own or in this one, a small text, a model."""

import io
import sys

import pytest
import warm

from annotated import cli

WORDS = [("the", "die"), ("a", "eine"), ("cat", "Katze"), ("dog", "Hündin"), ("sees", "sieht"), ("hears", "hört")]
SIZES = "--preset tiny --vocab 300 --N 1 --d_model 32 --d_ff 32 --h 2 --source_tokens 200 --target_tokens 200 --threads 1".split()
RECIPE = "--norm pre --final_norm true --P_drop 0 --warmup 30 --save_every 40 --evaluate_every 40 --steps 160".split()


def annotated(*arguments, stdin=b"", **more):
    "The program in a process of its own."
    return warm.run([sys.executable, "-m", "annotated", *map(str, arguments)], input=stdin, **more)


@pytest.fixture
def called(monkeypatch, capsys):
    "The program in this process, which is quicker: status, what it wrote, and what it said."

    def call(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = cli.main(list(map(str, arguments)))
        written = capsys.readouterr()
        return status, written.out, written.err

    return call


@pytest.fixture
def fake(tmp_path, monkeypatch):
    "A model folder that stands for a model which turns letters into capitals."

    class Fake:
        def translate(self, lines, beam=4, alpha=0.6, progress=True):
            return [line.upper() + "\u2028|" for line in lines]

    made = Fake()
    monkeypatch.setattr(cli, "_load", lambda folder, device, int8=False: made)
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "config.json").write_text("{}")
    return tmp_path / "fake"


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    "A small parallel corpus: every sentence of five words."
    folder = tmp_path_factory.mktemp("text")
    pairs = [
        tuple(" ".join(word[side] for word in (a, b, v, c, d)) for side in (0, 1))
        for a in WORDS[:2] for b in WORDS[2:4] for v in WORDS[4:] for c in WORDS[:2] for d in WORDS[2:4]
    ]
    for side, name in enumerate(("train.en", "train.de")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(text):
    done = annotated("train", "--source", text / "train.en", "--target", text / "train.de", *SIZES, *RECIPE, "--out", text / "model")
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return text / "model"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
