"""Whatever becomes of the files of a model or of a training: one line and a status, and nothing lost or believed."""

import shutil
from random import Random

import damage
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = {"model": 200, "marian": 100, "training": 20}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    threads = torch.get_num_threads()
    damage.make(folder)
    yield folder
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")  # of a checkpoint that gave way to the one before
@pytest.mark.parametrize("kind", damage.KINDS)
def test_a_damaged_file_costs_a_line(kind, place):
    wrong = []

    @settings(max_examples=EXAMPLES[kind], deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def try_one(seed):
        done, status, fault = damage.trial(place, kind, seed)
        assert not fault, f"{done}: {fault}"
        wrong.append(status)

    try_one()
    assert wrong.count(2) > EXAMPLES[kind] / 20, "else hardly anything was damaged"


def test_a_damage_is_noticed(place, tmp_path, monkeypatch):
    "What the test above looks at: a traceback, a changed file, other weights, memory."
    for name in ("model", "training", "wanted", "text"):
        (shutil.copytree if (place / name).is_dir() else shutil.copy)(place / name, tmp_path / name)
    assert damage.fault("model", tmp_path / "model", tmp_path / "wanted") == (0, "")
    with monkeypatch.context() as patch:
        patch.setattr(damage, "call", lambda kind, folder: 1 / 0)
        assert "ZeroDivisionError" in damage.fault("model", tmp_path / "model", tmp_path)[1]
        patch.setattr(damage, "call", lambda kind, folder: (folder / "words.txt").unlink() or (2, "", "annotated translate: no\n"))
        assert "words.txt" in damage.fault("model", tmp_path / "model", tmp_path)[1]
        patch.setattr(damage, "call", lambda kind, folder: (0, "one\n", ""))
        assert damage.fault("model", tmp_path / "model", tmp_path)[1]
        patch.setattr(damage, "call", lambda kind, folder: (2, "", "annotated a: b\nannotated a: c\n"))
        assert "not one line" in damage.fault("model", tmp_path / "model", tmp_path)[1]
        if damage.peak():
            patch.setattr(damage, "call", lambda kind, folder: (2, "", "annotated a: b\n" + str(len(b"x" * (damage.MEMORY + 100) * 1_000_000))[:0]))
            assert "MB of memory" in damage.fault("model", tmp_path / "model", tmp_path)[1]
    assert damage.fault("training", tmp_path / "training", tmp_path / "wanted") == (0, "")
    (tmp_path / "wanted" / "model.safetensors").write_bytes(b"other")
    assert "other weights" in damage.fault("training", tmp_path / "training", tmp_path / "wanted")[1]


def test_every_way_of_damage_leaves_bytes():
    header = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    whole = len(header).to_bytes(8, "little") + header + bytes(4)
    for seed in range(50):
        for way in (damage.flip, damage.cut, damage.garbage, damage.change_header, damage.fill_numbers):
            assert isinstance(way(whole, Random(seed)), bytes)
        assert isinstance(damage.change_json(b'{"a": [1, {"b": null}]}\n{}', Random(seed)), bytes)
