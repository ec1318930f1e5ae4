"""Settings of every test run, for the unit tests and for the notebooks' kernels."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
import warm
from kernel import REPRODUCIBLE, profile

pytest_plugins = ("commands", "explore")  # a trained model; the browser, and the explorers' pages in it

for name, value in REPRODUCIBLE.items():
    os.environ.setdefault(name, value)
# Begun in the background of a shell without job control, interrupts are ignored, here and in what tests start;
# begun by nohup, a closed terminal is.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # Windows lacks it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
FOLDER = tempfile.TemporaryDirectory()
os.environ.update(profile(FOLDER.name))
warm.kernels()

# With ANNOTATED_NO_SKIP=1 (.ci/run) a test may skip only for want of these.
MAY_SKIP = ("needs_data", "gpu", "firefox")


# What runs longest, the longest first; the other notebooks come next, and the other files fill the gaps at the end.
LONG = (
    "test_page.py", "test_in_page.py", "test_gpu.py", "the-hour.ipynb", "test_cli.py", "E-bugs.ipynb",
    "test_own_text.py",
    "01-why-attention-questions.ipynb", "10-training.ipynb", "09-optimization.ipynb", "test_explorers_together.py",
    "01-why-attention.ipynb", "03-masks-questions.ipynb", "14-gpu-questions.ipynb",
    "13-command-line-questions.ipynb", "09-optimization-questions.ipynb",
)


def weight(item) -> int:
    """The place of an item's file in the run, from 0."""
    name = item.path.name
    return LONG.index(name) if name in LONG else len(LONG) + (item.path.suffix != ".ipynb")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config):
    """Keep the files in this order: pytest-xdist would begin with those of many tests, not of long ones."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Long files first; skip what needs a CUDA device where there is none."""
    items.sort(key=weight)
    for item in items:
        if item.get_closest_marker("gpu") and not has_cuda():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where everything can be provided, a skip is a failure."""
    report = yield
    excused = any(item.get_closest_marker(name) for name in MAY_SKIP)
    if os.environ.get("ANNOTATED_NO_SKIP") and report.skipped and not hasattr(report, "wasxfail") and not excused:
        report.outcome = "failed"
        report.longrepr = f"avoidable skip: {reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """The same for a whole file that skips itself."""
    report = yield
    if os.environ.get("ANNOTATED_NO_SKIP") and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"avoidable skip of a whole file: {reason(report)}"
    return report


def reason(report) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


@pytest.fixture
def few_pairs(monkeypatch):
    """The corpus of the grammar with some hundred pairs, for what only has to have one: the whole takes seconds."""
    from annotated import corpora
    from annotated.grammar import grammar_corpus

    monkeypatch.setattr(corpora, "grammar_corpus", lambda: grammar_corpus(300, 20, 20))


@pytest.fixture
def book(tmp_path):
    """An empty book in a temporary folder; `book(name, text)` writes a chapter and returns its path."""
    for folder in ("book", "annotated", "notebooks", "results"):
        (tmp_path / folder).mkdir()

    def write(name: str, text: str) -> Path:
        path = tmp_path / "book" / name
        path.write_text(text, encoding="utf-8")
        return path

    write.root = tmp_path
    return write
