"""The order of a test run on several cores."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest

TESTS = Path(__file__).parent


def test_what_runs_longest_comes_first():
    names = ("tests/test_masks.py", "notebooks/02-attention.ipynb", f"tests/{conftest.LONG[1]}", "tests/test_api.py", f"tests/{conftest.LONG[0]}")
    items = [SimpleNamespace(path=Path(name), get_closest_marker=lambda _: None) for name in names]
    conftest.pytest_collection_modifyitems(items)
    assert [str(item.path) for item in items] == [names[4], names[2], names[1], names[0], names[3]]
    places = {".py": TESTS, ".ipynb": TESTS.parent / "notebooks"}
    assert not [name for name in conftest.LONG if not (places[Path(name).suffix] / name).is_file()]


@pytest.mark.parametrize("wanted, mark, expected, outcome", [
    ("1", None, False, "failed"), ("1", "firefox", False, "skipped"), ("1", "needs_data", False, "skipped"),
    ("1", None, True, "skipped"), ("", None, False, "skipped"),
])
def test_a_skip_that_could_be_avoided_fails(wanted, mark, expected, outcome, monkeypatch):
    "Else nothing would be seen of a browser that CI lacks."
    monkeypatch.setenv("ANNOTATED_NO_SKIP", wanted)
    item = SimpleNamespace(get_closest_marker=lambda name: name == mark)
    report = SimpleNamespace(skipped=True, outcome="skipped", longrepr=("file", 3, "Skipped: no node"))
    if expected:
        report.wasxfail = "known"
    told = sent(conftest.pytest_runtest_makereport(item, None), report)
    assert told is report and told.outcome == outcome and (outcome == "skipped" or "no node" in told.longrepr)
    if not mark and not expected:  # a whole file that skips itself
        whole = SimpleNamespace(skipped=True, outcome="skipped", longrepr="Skipped: no node")
        assert sent(conftest.pytest_make_collect_report(None), whole).outcome == outcome


def sent(wrapper, report):
    "What a wrapper makes of a report."
    next(wrapper)
    try:
        wrapper.send(report)
    except StopIteration as end:
        return end.value


def test_several_processes_keep_that_order():
    "pytest-xdist would give out first what has the most tests."
    config = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True))
    assert conftest.pytest_xdist_make_scheduler(config) is None, "the scheduler is pytest-xdist's own"
    assert config.option.loadscopereorder is False
