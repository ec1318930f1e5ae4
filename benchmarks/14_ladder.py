"""What does each rung of chapter 14's ladder bring on this machine?

    python benchmarks/14_ladder.py [--sizes base big] [--seconds 5] [--device cuda] [--out results/14-ladder]

First the machine's own ceilings: large matrix products in three precisions, and copies.
Then rung after rung, each keeping the changes before it and each in a process of its own, so that one that fails
(for want of memory, say) costs itself only. Before a rung is timed, its gradients are compared with chapter 10's.
Trained are the models of the paper on random identifiers, 25,000 + 25,000 tokens an update, with sentence lengths as
on_gpu.py draws them; counted are target tokens without padding, and operations as chapter 14 counts them.
scores.json is written after every rung, and a rung that stands in it is not made again.
With --gate FILE all rungs that need a compiler prepare at once, each is timed alone, and the others take one process;
other programs may name the same file and wait for their turn.
On a CPU: --device cpu --sizes small --tokens 1500 --batches 4 --seconds 20 --out results/14-ladder-cpu;
for a trial: --device cpu --sizes tiny --tokens 200 --batches 2 --seconds 0.1 --backend eager --here
"""

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import on_gpu
import script

from annotated.records import commit


def one(size, rung, options):
    """Measure a rung here."""
    shape = options.device, options.tokens, options.batches, options.seconds, options.backend
    return on_gpu.measure(on_gpu.CONFIGS[size], on_gpu.settings(rung), *shape, on_gpu.Gate(options.gate))


def one_here(size, rung, options):
    """Measure a rung that needs no compiler in this process, or say why it cannot be."""
    gate, inside = on_gpu.Gate(options.gate), argparse.Namespace(**vars(options) | {"gate": None})
    with gate.alone():
        try:
            return one(size, rung, inside)
        except RuntimeError as error:  # memory, say
            return {"failed": " ".join(str(error).split())[:300]}
        finally:
            on_gpu.forget_compiled()


def in_a_process(size, rung, options):
    """Measure a rung in a process of its own; what it prints last is the row, or the reason why there is none."""
    given = ["--device", options.device, "--tokens", options.tokens, "--batches", options.batches,
             "--seconds", options.seconds, "--backend", options.backend, "--one", size, rung,
             *(["--gate", options.gate] if options.gate else [])]
    command = [sys.executable, __file__, *map(str, given)]
    limit = None if options.gate else options.timeout  # it may wait long for its turn
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {options.timeout:.0f} seconds"}
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        lines = done.stderr.strip().splitlines() or ["no message"]
        if done.returncode == 130 or lines[-1] == "KeyboardInterrupt":  # at once, or while it began
            raise KeyboardInterrupt
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Unsupported)\b", line)]
        # What script.run tells comes last; after an error that it does not tell, a compiler adds advice.
        said = lines[-1].removeprefix("14_ladder: ") if done.returncode == 2 else (errors or lines)[-1]
        return {"failed": said[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def said_of(row):
    return row.get("failed") or f"{row['tokens a second']:,} tokens/s, {row['share of the matrix rate']:.1%}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu.add_options(parser, "results/14-ladder")
    on_gpu.add_training_options(parser)
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing, about")
    parser.add_argument("--rungs", nargs="+", help="default: all that the device has")
    parser.add_argument("--more", nargs="+", metavar=("SIZE", "RUNG"), help="some rungs of one more size")
    parser.add_argument("--again", nargs="*", default=[], metavar="RUNG", help="rungs to be made anew")
    parser.add_argument("--beside", type=int, default=8, help="rungs that prepare at once, with --gate")
    parser.add_argument("--timeout", type=float, default=480.0,
                        help="seconds for a rung without --gate: less than a sitting of nine minutes")
    parser.add_argument("--here", action="store_true", help="all rungs in this process")
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "RUNG"), help="measure a rung and print it")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*options.one, options)))
        return
    with on_gpu.begin(options) as record:
        scores = record.scores
        order, lock = [*on_gpu.RUNGS, *on_gpu.ASIDE], Lock()

        def climb(size, rung, measure):
            row, rows = measure(size, rung, options), scores[size]
            if "failed" not in row:
                row["share of the matrix rate"] = round(row["operations a second"] / rate, 4)
                row |= {"matrix rate": rate, "copy rate": ceilings["copy"]}
            with lock:
                rows[:] = [old for old in rows if old["rung"] != rung] + [{"rung": rung, **row, "commit": commit()}]
                rows.sort(key=lambda row: order.index(row["rung"]))
                record.write_scores(scores)
                print(f"{size}: {rung:34} {said_of(row)}", flush=True)

        steps = []
        for size in options.sizes:
            steps += [(size, rung) for rung in options.rungs or on_gpu.rungs_of(options.device)]
        if options.more:
            steps += [(options.more[0], rung) for rung in options.more[1:]]
        made = {(size, row["rung"]) for size, _ in steps for row in scores.setdefault(size, [])
                if "failed" not in row and row["rung"] not in options.again}
        steps = [step for step in steps if step not in made]
        if not steps:
            return
        with on_gpu.Gate(options.gate).alone():  # anew in every sitting, which may have another machine of the kind
            ceilings, rate = on_gpu.machine_ceilings(options.device, options.seconds)
        if "ceilings" not in scores:
            scores |= {"ceilings": ceilings, "matrix rate": rate, "tokens a side": options.tokens}
            record.write_scores(scores)
        if not options.gate:
            for size, rung in steps:
                climb(size, rung, one if options.here else in_a_process)
            return
        slow = [step for step in steps if on_gpu.settings(step[1]).get("compile")]
        with ThreadPoolExecutor(options.beside) as beside:
            waiting = [beside.submit(climb, *step, in_a_process) for step in slow]
            if slow:
                on_gpu.Gate(options.gate).wait_for_others(60)
            for step in steps:
                if step not in slow:
                    climb(*step, one_here)
            for future in waiting:
                future.result()


if __name__ == "__main__":
    sys.exit(script.run(main))
