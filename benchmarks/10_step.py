"""How long does an update of one model take in three implementations?

    python benchmarks/10_step.py [--rounds 9] [--threads 2] [--out results/10-step]

Ours, torch.nn.Transformer and x-transformers' XTransformer with the base model's sizes (vocabulary 8,192) get the
same weights, the same loss and the same optimizer; one update sees 32 sentences of 30 tokens on each side.
Before anything is timed, the three must give the same logits and the same loss.
Timed are two settings: without dropout, where all three compute exactly the same; and with P_drop 0.1 as each
implementation understands it (the other two drop attention weights and units of the feed-forward network, too).
With it stands the share of this machine's own matrix product rate that each update reaches.
Writes run.json and scores.json.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from peers import TorchTransformer, X, keep_memory, matrix_rate, summary, take_turns

from annotated.gpu import training_flops
from annotated.optimization import label_smoothed_loss, optimizer
from annotated.records import Record
from annotated.transformer import BASE, Transformer

B, S, T = 32, 30, 30


def update(model, adam, source, target):
    adam.zero_grad()
    label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:]).backward()
    adam.step()


def build(config):
    ours = Transformer(config)
    return {"ours": ours, "torch.nn.Transformer": TorchTransformer(ours), "XTransformer": X(ours)}


@torch.no_grad()
def check_equal(models, source, target):
    """The largest difference of a logit; raises where two do not compute the same."""
    logits = {name: model.eval()(source, target[:, :-1]) for name, model in models.items()}
    for name, found in logits.items():
        models[name].train()
        torch.testing.assert_close(found, logits["ours"], rtol=1e-4, atol=1e-4)
    return max((found - logits["ours"]).abs().max().item() for found in logits.values())


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
            runs = {side: lambda m=model, a=adams[side]: update(m, a, source, target) for side, model in models.items()}
            rows = summary(take_turns(runs, options.rounds, name))
            c = config
            rate = matrix_rate([(B * T, c.d_model, c.d_model), (B * T, c.d_model, c.d_ff), (B * T, c.d_ff, c.d_model)])
            for row in rows.values():
                row["share of the matrix rate"] = round(B * training_flops(config, S, T) / row["median"] / rate, 3)
            facts = {"largest difference of a logit": difference, "matrix rate, GFLOP/s": round(rate / 1e9, 1)}
            scores[name] = facts | rows
            for side, row in rows.items():
                print(f"{name}: {side:22}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
            record.write_scores(scores)


if __name__ == "__main__":
    main()
