"""The order of a test run on several cores."""

from pathlib import Path
from types import SimpleNamespace

import conftest

TESTS = Path(__file__).parent


def test_what_runs_longest_comes_first():
    names = ("tests/test_masks.py", "notebooks/02-attention.ipynb", f"tests/{conftest.LONG[1]}", "tests/test_api.py", f"tests/{conftest.LONG[0]}")
    items = [SimpleNamespace(path=Path(name), get_closest_marker=lambda _: None) for name in names]
    conftest.pytest_collection_modifyitems(items)
    assert [str(item.path) for item in items] == [names[4], names[2], names[1], names[0], names[3]]
    assert not [name for name in conftest.LONG if not (TESTS / name).is_file()]


def test_several_processes_keep_that_order():
    "pytest-xdist would give out first what has the most tests."
    config = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True))
    assert conftest.pytest_xdist_make_scheduler(config) is None, "the scheduler is pytest-xdist's own"
    assert config.option.loadscopereorder is False
