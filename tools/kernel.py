"""How the notebooks' kernels are set up; those of weaving also lay out figures for narrow screens."""

from pathlib import Path

# In place of magics in the chapters and of whatever the user's own profile says.
PROFILE = """c.InlineBackend.figure_formats = {"svg"}
c.HistoryManager.enabled = False
c.Application.log_level = "ERROR"
"""

REPRODUCIBLE = {
    "SOURCE_DATE_EPOCH": "0",  # dates in SVG files
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",  # sums come out the same whatever the number of cores
    "TQDM_DISABLE": "1",  # a progress bar is not a result
}

# Stored outputs are made on a CPU, drawn inside the notebook.
WEAVING = REPRODUCIBLE | {
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


NARROW = f"""import runpy
runpy.run_path({str(Path(__file__).with_name("narrow.py"))!r})["register"](get_ipython())
del runpy
"""


def profile(folder: str, narrow: bool = False) -> dict[str, str]:
    """Write the kernel's configuration into a folder; the environment variables that make a kernel use it.

    With `narrow` its figures come in a version for narrow screens, too.
    """
    path = Path(folder, "profile_default", "ipython_kernel_config.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROFILE, encoding="utf-8")
    if narrow:
        startup = path.parent / "startup" / "narrow.py"
        startup.parent.mkdir(exist_ok=True)
        startup.write_text(NARROW, encoding="utf-8")
    return {"IPYTHONDIR": str(folder)}
