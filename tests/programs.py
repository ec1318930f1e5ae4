"""Load programs as modules; a name such as `12_protocols.py` cannot be imported."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def loaded(path: Path) -> ModuleType:
    """A new module from the file."""
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
