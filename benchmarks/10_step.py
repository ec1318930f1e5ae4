"""How long does an update of one model take in three implementations?

    python benchmarks/10_step.py [--rounds 9] [--threads 2] [--out results/10-step]

Ours, torch.nn.Transformer and x-transformers' XTransformer with the base model's sizes (vocabulary 8,192) get the
same weights, the same loss and the same optimizer; one update sees 32 sentences of 30 tokens on each side.
"ours" is the command line's update on a CPU (appendix N) with everything that a calibration chooses here; "ours, plain"
is chapter 10's. Before anything is timed, all must give the same logits.
Timed are two settings: without dropout, where all three compute exactly the same; and with P_drop 0.1 as each
implementation understands it (torch.nn.Transformer drops attention weights and units of the feed-forward network, too;
x-transformers drops these instead of the sub-layers' outputs).
With it stands the share of this machine's own matrix product rate that each update reaches: the better of the rates of
torch's default library and of oneDNN. A profile of some updates of ours says where the rest of the time goes.
Writes run.json and scores.json.
"""

import argparse
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import script
import torch
from peers import TorchTransformer, X, keep_memory, matrix_rate, summary, take_turns, update

from annotated.cpu import CPUObjective, LinearMaps, _onednn, _sizes, calibrate
from annotated.gpu import FastUpdate, Objective, TrainStep, training_flops
from annotated.optimization import optimizer
from annotated.records import Record
from annotated.transformer import BASE, Transformer

B, S, T = 32, 30, 30
PARTS = {  # of a profile: the beginning of an operation's name -> what it is counted as
    "products": ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::"), "attention": ("aten::_scaled_dot_product",),
    "dropout": ("aten::bernoulli", "aten::native_dropout"), "norms": ("aten::native_layer_norm",),
    "Adam": ("aten::_fused_adam",),
}


def build(config):
    ours = Transformer(config)
    peers = {"torch.nn.Transformer": TorchTransformer(ours), "XTransformer": X(ours)}
    return {"ours": deepcopy(ours), "ours, plain": ours, **peers}


def updates(models, adams, chosen, batch):
    """What each side does in a round; our fast model is changed in place."""
    found = {}
    for side, model in models.items():
        found[side] = lambda model=model, adam=adams[side]: update(model, adam, *batch)
    fast = FastUpdate(TrainStep(CPUObjective(models["ours"], LinearMaps(chosen))))
    found["ours"] = lambda: fast(models["ours"], adams["ours"], [batch])
    return found


def breakdown(function, times=3):
    """The share of its time that a function spends in each of PARTS, and in all else."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(times):
            function()
    taken = dict.fromkeys((*PARTS, "the rest"), 0.0)
    for event in profile.key_averages():
        part = next((name for name, begins in PARTS.items() if event.key.startswith(begins)), "the rest")
        taken[part] += event.self_cpu_time_total
    return {name: round(spent / sum(taken.values()), 3) for name, spent in taken.items()}


@torch.no_grad()
def check_equal(models, source, target):
    """The largest difference of a logit; raises where two do not compute the same."""
    logits = {name: model.eval()(source, target[:, :-1]) for name, model in models.items()}
    for name, found in logits.items():
        models[name].train()
        torch.testing.assert_close(found, logits["ours"], rtol=1e-4, atol=1e-4)
    return max((found - logits["ours"]).abs().max().item() for found in logits.values())


def check_fast(model, chosen, source, target):
    """Raise where the fast update has not the loss and the gradients of the plain one."""
    found = []
    for kind in (Objective, partial(CPUObjective, linear=LinearMaps(chosen))):
        twin = deepcopy(model)
        loss = kind(twin)(source, target)
        loss.backward()
        found.append([loss.detach() / target.numel(), *(p.grad / target.numel() for p in twin.parameters())])
    for plain, fast in zip(*found, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-3, atol=1e-6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--N", type=int, default=BASE.N, help="fewer layers for a trial")
    parser.add_argument("--out", type=Path, default=Path("results/10-step"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    keep_memory()
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, 8192, (B, n), generator=generator) for n in (S, T + 1))
    scores = {"sentences": B, "source tokens": S, "target tokens": T, "layers": options.N}
    base = replace(BASE, N=options.N, vocab=8192, eps_norm=1e-5)  # both others: eps 1e-5
    with Record.begin(options.out, anew=True, packages=("x-transformers",), seed=0, config=base) as record:
        for P_drop, name in ((0.0, "without dropout"), (0.1, "with dropout")):
            config = replace(base, P_drop=P_drop)
            models = build(config)
            difference = check_equal(models, source, target)
            adams = {side: optimizer(model) for side, model in models.items()}
            for adam in adams.values():
                adam.param_groups[0]["lr"] = 1e-5
            chosen = calibrate(_sizes(models["ours"]), B * T)
            if not P_drop:
                check_fast(models["ours"], chosen, source, target)
            runs = updates(models, adams, chosen, (source, target))
            rows = summary(take_turns(runs, options.rounds, name))
            c = config
            shapes = [(B * T, c.d_model, c.d_model), (B * T, c.d_model, c.d_ff), (B * T, c.d_ff, c.d_model)]
            rates = {"torch": matrix_rate(shapes)}
            if multiply := _onednn():
                rates["oneDNN"] = matrix_rate(shapes, multiply=multiply)
            rate = max(rates.values())
            for row in rows.values():
                row["share of the matrix rate"] = round(B * training_flops(config, S, T) / row["median"] / rate, 3)
            facts = {"largest difference of a logit": difference, "matrix rate, GFLOP/s": round(rate / 1e9, 1)}
            facts["matrix rates, GFLOP/s"] = {library: round(each / 1e9, 1) for library, each in rates.items()}
            facts |= {"chosen for oneDNN": chosen, "where the time of ours goes": breakdown(runs["ours"])}
            scores[name] = facts | rows
            for side, row in rows.items():
                print(f"{name}: {side:22}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
            record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
