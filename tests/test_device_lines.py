"""The cells of the notebooks that name a device, on the device `meta`: no tensor is left on the CPU, nothing is waited for
in the middle of a computation.

A cell that asks for values ends at that line, since `meta` has none; every operation before it has had one device.
"""

import ast
import contextlib
import io
import re
import warnings

import matplotlib.pyplot as plt
import pytest
from chapters import ROOT, read
from test_meta import COPIES, OneDevice

from annotated import grammar

LINE = 'device = "cuda" if torch.cuda.is_available() else "cpu"'
CHAPTERS = sorted(path.name for path in (ROOT / "book").glob("*.md") if LINE in path.read_text(encoding="utf-8"))
SLOW = re.compile(r"subprocess|torchrun|init_process_group|dist\.|torch\.compile|_dynamo|ceilings\(device|beam_search|greedy|train\(|fit\(|torch\.device\(.meta|nested_tensor")
ELSEWHERE = re.compile(r"perf_counter|update\(model, adam, parts\)")  # slow in cells that name no device


# Cells that end before their device line, for want of what was left out: no other may.
UNREACHED = {"07-transformer.md": 1, "10-training-questions.md": 1,
             "10-training.md": 1, "14-gpu-questions.md": 2, "14-gpu.md": 1}


class Mixed(AssertionError):
    "Tensors of two devices met."


class Notebook(OneDevice):
    """As `OneDevice`, but a cell may wait for a copy: cells show results, one after the other."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in COPIES:
            return func(*args, **(kwargs or {}))
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except RuntimeError as error:
            raise Mixed(error) if "has tensors of" in str(error) else error from None


def cells_on_meta(path):
    """Run a notebook's cells on meta; for each that uses its device, whether it came to its end, or to where it needs a value."""
    names, ended, left_out = {"__name__": "__main__"}, {}, False
    for cell in read(path).code():
        tree = ast.parse(cell.source.replace(LINE, 'device = "meta"'))
        if not {"export", "setup"} & set(cell.tags):
            if SLOW.search(cell.source) or "device" not in cell.source and ELSEWHERE.search(cell.source):
                left_out = True  # all but the statements that put something on the device
                tree.body = [node for node in tree.body if isinstance(node, ast.Assign) and "(device)" in (text := ast.unparse(node)) and not SLOW.search(text)]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), Notebook():
                exec(compile(tree, f"{path.name}:{cell.line}", "exec"), names)
            done = True
        except Mixed as error:
            raise Mixed(f"{path.name}, line {cell.line}: {error}") from None
        except Exception as error:
            done = "meta tensor" in str(error).lower()  # a value is asked for, which meta has not
            if not done and not left_out:  # else it may be a name that what was left out would have made
                raise
            left_out = True
        if "device" in cell.source and not {"export", "setup"} & set(cell.tags):
            ended[cell.line] = done
        plt.close("all")
    return ended


@pytest.mark.parametrize("name", CHAPTERS)
def test_what_stands_on_a_device_stays_on_it(name, monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    monkeypatch.setattr(plt, "show", lambda: None)
    made = grammar.grammar_corpus
    monkeypatch.setattr(grammar, "grammar_corpus", lambda *given, **named: made(3000, 20, 200))  # the whole one takes seconds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = cells_on_meta(ROOT / "book" / name)
    assert any(ended.values()) and list(ended.values()).count(False) == UNREACHED.get(name, 0), ended


def test_a_tensor_that_is_left_behind_is_found(tmp_path):
    lines = ["import torch", LINE, "x = torch.ones(2, 3, device=device)", "x = x + torch.ones(3)"]
    cells = "\n\n".join(f"```{{code-cell}}\n{line}\n```" for line in lines)
    (tmp_path / "09-some.md").write_text(f"---\nkernelspec:\n  name: python3\n  display_name: Python 3\n---\n\n# Some\n\n{cells}\n")
    with pytest.raises(Mixed, match=r"09-some.md, line \d+: aten::add has tensors of"):
        cells_on_meta(tmp_path / "09-some.md")
