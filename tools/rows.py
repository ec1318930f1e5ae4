"""Which rows of Table 3 the record holds whole: the drawing, the explorer and their tests show the same ones."""

import json
from pathlib import Path


def complete(root: Path) -> dict[str, list[dict]]:
    """Row -> its runs, in the order of base's first three seeds; a row that lacks one of these seeds is left out.

    Rows are compared with base seed by seed: runs of other seeds have nothing to be compared with.
    """
    made: dict[str, dict[int, dict]] = {}  # row -> seed -> run
    for path in sorted((root / "results" / "17-norm-first" / "runs").glob("*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        made.setdefault(run["row"], {})[run["recipe"]["seed"]] = run
    seeds = sorted(made["base"])[:3]
    return {row: [runs[seed] for seed in seeds] for row, runs in made.items() if set(seeds) <= set(runs)}
