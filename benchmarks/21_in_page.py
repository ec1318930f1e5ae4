"""Does the page's engine translate as Python does, what do rounded weights cost, and how long does it take?

    ANNOTATED_DATA=... python benchmarks/21_in_page.py [--sentences 500] [--jobs 4] [--out results/21-in-page]

The book's Tatoeba model, in float32, and rounded to bytes as `annotated.page.to_page` writes it; sentences at equal
distances from Tatoeba's test set. Python searches with the plain model, the engine in node with the exported script:
outputs, scores, logits and attention weights are compared. Times are those of all of node's threads, the encoder
included: per token written, and for one sentence of twelve words, which a telephone must translate while one waits.
Writes run.json and scores.json.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import script
import torch

from annotated.corpora import load_corpus
from annotated.data import pad_batch
from annotated.decoding import cannot_improve, hypotheses, length_penalty, load
from annotated.evaluation import bleu
from annotated.figures import attention_maps
from annotated.page import _rounded, to_page
from annotated.records import Record, about_corpus, about_model

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "book/_static/explorers/engine.js"
sys.path += [str(ROOT / "tools"), str(ROOT / "tests")]  # browsers.py needs tools/page.py
from browsers import node  # noqa: E402

SEARCHES = {"greedy": 1, "beam 4": 4}
TWELVE = "My brother works in a hospital and I have not seen him."
SEARCH = """
const model = new engine.Transformer(annotated.weights[given.name]), out = {};
const ms = ({ user, system }) => (user + system) / 1000;
for (const [name, beam] of Object.entries(given.searches)) {
  for (const text of given.lines.slice(0, 20)) await engine.translate(model, text, { beam }); // warm up
  const before = process.cpuUsage(), found = [];
  for (const text of given.lines) {
    const { text: said, ids, score } = await engine.translate(model, text, { beam });
    found.push([said, ids, score]);
  }
  const whole = process.cpuUsage(before), times = [];
  for (let n = 0; n < 9; n++) {
    const start = process.cpuUsage();
    await engine.translate(model, given.twelve, { beam });
    times.push(ms(process.cpuUsage(start)));
  }
  out[name] = { found, ms: ms(whole), twelve: times.sort((a, b) => a - b)[4] };
}
return out;"""
TRACE = """
const model = new engine.Transformer(annotated.weights[given.name]), out = [];
for (const text of given.lines) {
  const { source, target, values } = await engine.trace(model, text);
  const kept = Object.entries(values).filter(([name]) => /weights$|^logits$/.test(name));
  const plain = kept.map(([name, { values }]) => [name, Array.from(values)]);
  out.push({ source, target, values: Object.fromEntries(plain) });
}
return out;"""


def searched(model, cut, beam, batch=50):
    """The best (ids, score) of each sentence."""
    penalty = partial(length_penalty, alpha=0.6)
    order = sorted(range(len(cut)), key=lambda i: len(cut[i]))
    found = [None] * len(cut)
    for first in range(0, len(order), batch):
        rows = order[first : first + batch]
        source = pad_batch([cut[row] for row in rows])
        for row, pool in zip(rows, hypotheses(model, source, beam, penalty, stop=cannot_improve), strict=True):
            found[row] = pool[0]
    return found


def of_engine(exported, lines, jobs):
    """name of a search -> [text, ids, score] of each line, and the processor's milliseconds, by so many processes."""
    given = {"name": exported.stem, "searches": SEARCHES, "twelve": TWELVE}
    with ThreadPoolExecutor(jobs) as pool:
        parts = [given | {"lines": lines[first::jobs]} for first in range(jobs)]
        done = list(pool.map(lambda part: node(SEARCH, [ENGINE, exported], part), parts))
    out = {}
    for name in SEARCHES:
        found = [None] * len(lines)
        for first, part in enumerate(done):
            found[first::jobs] = part[name]["found"]
        ms = sum(part[name]["ms"] for part in done)
        out[name] = {"found": found, "ms": ms, "twelve": median(part[name]["twelve"] for part in done)}
    return out


def furthest(model, traces):
    """The largest differences of logits and of attention weights, and how many of these there were."""
    worst = {"logits": 0.0, "attention weights": 0.0}
    counted = dict.fromkeys(worst, 0)
    for trace in traces:
        source = torch.tensor([trace["source"]])
        target = torch.tensor([[model.config.bos, *trace["target"][:-1]]])
        with torch.inference_mode():
            wanted = {"logits": model(source, target)[0]}
        for kind, maps in attention_maps(model, source, target).items():
            stack, name = ("encoder", "self") if kind == "encoder" else ("decoder", {"decoder": "self"}.get(kind, kind))
            wanted |= {f"{stack}.layers.{n}.{name}_attention.weights": layer[0] for n, layer in enumerate(maps)}
        for name, value in wanted.items():
            which = "logits" if name == "logits" else "attention weights"
            given = torch.tensor(trace["values"][name])
            worst[which] = max(worst[which], (given - value.flatten()).abs().max().item())
            counted[which] += len(given)
    return {name: {"largest difference": float(f"{worst[name]:.1e}"), "compared": counted[name]} for name in worst}


def products(config):
    """Multiply-adds of one step of the decoder for one hypothesis, attention to keys left out."""
    c = config
    layer = c.d_model * c.h * (2 * c.key_width + 2 * c.value_width) + 2 * c.d_model * c.d_ff
    across = c.d_model * c.h * (c.key_width + c.value_width)  # its keys and values are made once
    return c.decoder_layers * (layer + across) + c.d_model * c.vocab


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=4, help="processes of node at a time")
    parser.add_argument("--model", type=Path, default=Path("results/tatoeba-en-de"))
    parser.add_argument("--out", type=Path, default=Path("results/21-in-page"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load_corpus("tatoeba-en-de")
    size = min(options.sentences, len(corpus.test))
    pairs = [corpus.test[i * len(corpus.test) // size] for i in range(size)]
    lines, references = [source for source, _ in pairs], [target for _, target in pairs]
    translator = load(options.model)
    decode = translator.vocabulary.decode
    cut = [translator.cut(line)[0] for line in lines]
    models = {"float32": translator.model.eval(), "int8": _rounded(translator.model).eval()}
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    what = {"data": about_corpus(corpus, sentences=size), "model": about_model(options.model), "node": version}
    with Record.begin(options.out, anew=True, packages=("sacrebleu", "sentencepiece"), seed=0, **what) as record, \
            tempfile.TemporaryDirectory() as folder:
        exported = Path(folder, f"{options.model.name}.js")
        to_page(options.model, exported)
        content = exported.read_bytes()
        scores = {"weights": script.weights(translator.model), "bytes": {
            "model.safetensors": (options.model / "model.safetensors").stat().st_size,
            "script": len(content), "script, gzip": len(gzip.compress(content, 9, mtime=0)),
            "engine": ENGINE.stat().st_size}}
        scores["products a step"] = products(translator.model.config)
        record.write_scores(scores)
        engine = of_engine(exported, lines, options.jobs)
        for name, beam in SEARCHES.items():
            made = {kind: searched(model, cut, beam) for kind, model in models.items()}
            texts = {kind: [decode(ids) for ids, _ in found] for kind, found in made.items()}
            page = engine[name]["found"]
            tokens = sum(len(ids) for _, ids, _ in page)
            both = list(zip(page, made["int8"], strict=True))
            far = [abs(score - mine) for (_, ids, score), (own, mine) in both if ids == own]
            scores[name] = {
                "bleu": {kind: round(bleu(found, references)[0], 2) for kind, found in texts.items()},
                "outputs int8 changes": sum(map(str.__ne__, *texts.values())),
                "outputs where page and Python differ": sum(ids != own for (_, ids, _), (own, _) in both),
                "largest difference of scores": float(f"{max(far):.1e}"),
                "tokens": tokens, "processor ms a token": round(engine[name]["ms"] / tokens, 2),
                "processor ms for twelve words": round(engine[name]["twelve"])}
            print(name, json.dumps(scores[name]), flush=True)
            record.write_scores(scores)
        some = {"name": exported.stem, "lines": lines[:: max(1, size // 25)]}
        traces = node(TRACE, [ENGINE, exported], some)
        scores["compared"] = furthest(models["int8"], traces)
        print(json.dumps(scores["compared"]))
        record.write_scores(scores)


if __name__ == "__main__":
    sys.exit(script.run(main))
