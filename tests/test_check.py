"""tools/check.py fails when one of its checks does, says which, and hides no remark."""

from types import SimpleNamespace

import check
import pytest


@pytest.mark.parametrize(
    "reader, form, status, failed",
    [(0, 0, 0, ""), (1, 0, 0, "collect"), (0, 1, 0, "layout"), (0, 0, 1, "types"), (1, 1, 1, "collect, layout, types")],
)
def test_one_check_that_fails_is_named(monkeypatch, capsys, reader, form, status, failed):
    monkeypatch.setattr(check, "READERS", {"collect": SimpleNamespace(main=lambda argv: reader)})
    monkeypatch.setattr(check, "layout", SimpleNamespace(main=lambda argv: form))
    monkeypatch.setattr(check, "PROGRAMS", {"types": ["-c", f"print('a remark'); raise SystemExit({status})"]})
    assert check.main() == int(bool(failed))
    said = capsys.readouterr().out
    assert "a remark" in said
    assert (f"lint: failed: {failed}\n" in said) if failed else ("lint:" not in said)


def test_every_tool_that_can_check_is_asked():
    """A tool with `--check` that nobody calls would let its pages go stale."""
    checking = {path.stem for path in (check.ROOT / "tools").glob("*.py") if '"--check"' in path.read_text("utf-8")}
    assert checking - {"check", "untangle"} == {*check.READERS, "drawings"}
