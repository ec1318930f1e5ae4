"""What a reader with a GPU wants first: is everything there, how fast is it, and does a training end well?

    python benchmarks/14_gpu.py [--device cuda] [--corpus multi30k-en-de] [--out _build/gpu]        (make gpu)

1. The environment: versions, GPU, memory, whether matrix products and the compiler work.
2. The ladder of chapter 14 for base, a few seconds a rung (14_ladder.py), with this machine's own ceilings.
3. A training by the command line, with --fast, that ends with a BLEU score. Where the corpus cannot be fetched, it is
   the built-in grammar.
--trial makes everything tiny, for a CPU. Exits with 2 where a step fails, and says which.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import script
import torch

HERE = Path(__file__).parent
TRAINING = "--preset small --N 4 --d_model 128 --d_ff 256 --h 4 --P_drop 0.3 --vocab 8000 --steps 4000 --warmup 1000"
TRAINING += " --rate 2 --source_tokens 4096 --target_tokens 4096 --evaluate_every 1000 --save_every 200"
GRAMMAR = "--preset tiny --d_ff 256 --P_drop 0 --steps 1500 --warmup 150 --rate 0.4 --save_every 40"
TINY = "--preset tiny --N 1 --d_model 32 --d_ff 32 --h 2 --steps 10 --warmup 5 --source_tokens 200 --target_tokens 200"


def environment(device):
    """What is there, as lines; an error where the device does not work."""
    yield f"Python {sys.version.split()[0]}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("torch finds no CUDA device: a driver, or a wheel of torch with CUDA, is missing")
        about = torch.cuda.get_device_properties(device)
        yield f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {torch.cuda.device_count()} of them"
        yield f"bfloat16: {torch.cuda.is_bf16_supported()}"
    x = torch.randn(64, 64, device=device)
    if not torch.allclose(x @ x.T, (x.cpu() @ x.cpu().T).to(device), atol=1e-2):
        raise ValueError("a matrix product is wrong on this device")
    compiler = shutil.which("cc") or shutil.which("gcc")
    yield f"C compiler for torch.compile: {compiler or 'none; the compiled rungs will fail'}"
    free = shutil.disk_usage(".").free / 2**30
    yield f"disk: {free:.0f} GiB free"


def called(command):
    """Run a step, its output shown; ValueError where it fails."""
    if subprocess.run([sys.executable, *map(str, command)]).returncode:
        raise ValueError(f"failed: {' '.join(map(str, command))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--corpus", default="multi30k-en-de")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each rung of the ladder")
    parser.add_argument("--trial", action="store_true", help="tiny, for a CPU")
    parser.add_argument("--out", type=Path, default=Path("_build/gpu"))
    options = parser.parse_args()
    began = time.monotonic()
    try:
        print("1. The environment", *environment(options.device), sep="\n   ", flush=True)
    except RuntimeError as error:  # torch's, of a driver, say
        raise ValueError(str(error)) from None
    print("2. The ladder", flush=True)
    sizes = ["--device", options.device, "--seconds", options.seconds, "--sizes", "base"]
    if options.trial:
        sizes = "--device cpu --sizes tiny --tokens 100 --batches 1 --seconds 0 --backend eager --here --rungs".split()
        sizes += ["float32, plain", "loss in pieces"]
    called([HERE / "14_ladder.py", *sizes, "--out", options.out / "ladder"])
    print("3. A training", flush=True)
    corpus, recipe = options.corpus, TRAINING.split()
    fetch = [sys.executable, "-m", "annotated", "fetch", corpus]
    if options.trial or subprocess.run(fetch, capture_output=True).returncode:
        if not options.trial:
            print(f"   {corpus} cannot be had here: the built-in grammar takes its place", flush=True)
        corpus, recipe = "grammar", (TINY if options.trial else GRAMMAR).split()
    model = options.out / "model"
    called(["-m", "annotated", "train", "--corpus", corpus, *recipe, "--fast", "--device", options.device,
            "--score", 20 if options.trial else 1000, "--out", model])
    score = json.loads((model / "scores.json").read_text())
    print(f"BLEU {score['bleu']} on {score['sentences']} held-out pairs of {corpus}; "
          f"{(time.monotonic() - began) / 60:.1f} minutes in all")


if __name__ == "__main__":
    sys.exit(script.run(main))
