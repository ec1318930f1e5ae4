"""How long would the paper's training take on one GPU of this machine?

    python benchmarks/14_training.py [--sizes base big] [--seconds 30] [--rung "compiled layers"] [--device cuda]

Trains base and big for about so many seconds as 14_ladder.py does, by the fastest rung of results/14-ladder or the
one given, and says what share of the measured bfloat16 matrix rate that is and how many hours the paper's 100,000
and 300,000 updates of 25,000 + 25,000 tokens would take at this pace.
Writes OUT-SIZE/run.json and scores.json for each size; a size that is there is not made again.
"""

import argparse
import json
from pathlib import Path

import on_gpu

from annotated.records import Record

PAPER = json.loads((Path(__file__).parent.parent / "book" / "paper.json").read_text())["training"]


def best_rung(ladder, size):
    """The rung with most tokens a second, or the last but two where nothing is recorded."""
    rows = [row for row in Record(ladder).scores.get(size, []) if "tokens a second" in row]
    return max(rows, key=lambda row: row["tokens a second"])["rung"] if rows else "compiled layers"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu.add_options(parser, "results/14-training")
    parser.add_argument("--rung", help="of the ladder; default: the fastest recorded")
    parser.add_argument("--ladder", type=Path, default=Path("results/14-ladder"))
    parser.set_defaults(seconds=30.0)
    options = parser.parse_args()
    rates, top = on_gpu.machine_ceilings(options.device, options.seconds)
    for size in options.sizes:
        out = options.out.with_name(f"{options.out.name}-{size}")
        if Record(out).scores:
            continue
        on_gpu.forget_compiled()
        rung, config = options.rung or best_rung(options.ladder, size), on_gpu.CONFIGS[size]
        shape = options.device, options.tokens, options.batches, options.seconds, options.backend
        with on_gpu.begin(options, out, config=config) as record:
            row = on_gpu.measure(config, on_gpu.settings(rung), *shape)
            share = row["operations a second"] / top
            hours = PAPER.get(f"{size}_steps", 100_000) * row["milliseconds an update"] / 1e3 / 3600
            scores = {"rung": rung, "ceilings": rates, **row, "share of the matrix rate": round(share, 4),
                      "hours for the paper's updates": round(hours, 3), "tokens a side": options.tokens}
            record.write_scores(scores)
        print(f"{size}: {row['tokens a second']:,} tokens/s, {share:.1%} of the matrix rate, {hours:.2f} hours")


if __name__ == "__main__":
    main()
