"""What does each rung of chapter 14's ladder bring on this machine?

    python benchmarks/14_ladder.py [--sizes base big] [--seconds 5] [--device cuda] [--out results/14-ladder]

First the machine's own ceilings: large matrix products in three precisions, and copies.
Then rung after rung, each keeping the changes before it and each in a process of its own, so that one that fails
(for want of memory, say) costs itself only. Before a rung is timed, its gradients are compared with chapter 10's.
Trained are the models of the paper on random identifiers, 25,000 + 25,000 tokens an update, with sentence lengths as
on_gpu.py draws them; counted are target tokens without padding, and operations as chapter 14 counts them.
scores.json is written after every rung, and a rung that stands in it is not made again.
On a CPU: --device cpu --sizes small --tokens 1500 --batches 4 --seconds 20 --out results/14-ladder-cpu;
for a trial: --device cpu --sizes tiny --tokens 200 --batches 2 --seconds 0.1 --backend eager --here
"""

import argparse
import json
import re
import subprocess
import sys

import on_gpu


def one(size, rung, options):
    """Measure a rung here."""
    shape = options.device, options.tokens, options.batches, options.seconds, options.backend
    return on_gpu.measure(on_gpu.CONFIGS[size], on_gpu.settings(rung), *shape)


def in_a_process(size, rung, options):
    """Measure a rung in a process of its own; what it prints last is the row, or the reason why there is none."""
    given = ["--device", options.device, "--tokens", options.tokens, "--batches", options.batches,
             "--seconds", options.seconds, "--backend", options.backend, "--one", size, rung]
    command = [sys.executable, __file__, *map(str, given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {options.timeout:.0f} seconds"}
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unsupported)\b", line)]
        return {"failed": (errors or lines)[-1][:300]}  # after the error a compiler adds advice
    return json.loads(done.stdout.splitlines()[-1])


def said_of(row):
    return row.get("failed") or f"{row['tokens a second']:,} tokens/s, {row['share of the matrix rate']:.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu.add_options(parser, "results/14-ladder")
    parser.add_argument("--rungs", nargs="+", help="default: all that the device has")
    parser.add_argument("--timeout", type=float, default=480.0,
                        help="seconds for a rung, compiling included: less than a sitting of nine minutes")
    parser.add_argument("--here", action="store_true", help="all rungs in this process")
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "RUNG"), help="measure a rung and print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one, options)))
        return
    with on_gpu.begin(options) as record:
        scores = record.scores
        if "ceilings" not in scores:
            scores["ceilings"], scores["matrix rate"] = on_gpu.machine_ceilings(options.device, options.seconds)
            scores["tokens a side"] = options.tokens
            record.write_scores(scores)
        for size in options.sizes:
            rows = scores.setdefault(size, [])
            for rung in options.rungs or on_gpu.rungs_of(options.device):
                if any(row["rung"] == rung and "failed" not in row for row in rows):
                    continue
                row = (one if options.here else in_a_process)(size, rung, options)
                if "failed" not in row:
                    row["share of the matrix rate"] = round(row["operations a second"] / scores["matrix rate"], 4)
                rows[:] = [old for old in rows if old["rung"] != rung] + [{"rung": rung, **row}]
                record.write_scores(scores)
                print(f"{size}: {rung:34} {said_of(row)}", flush=True)


if __name__ == "__main__":
    main()
