"""The engine of the page computes what Python computes, with the same rounded weights: in node, Chromium and Firefox.

The book's two small models are exported as the page has them; the reference is the plain model with `annotated.page._rounded`.
"""

import base64
import functools
import json
import os
import random
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import browsers
import numpy as np
import pytest
import torch
from browsers import CHROMIUM, FIREFOX, NODE, node, served
from safetensors.torch import load_file, save_file

from annotated import load
from annotated.data import Subwords, Words
from annotated.decoding import Translator, cannot_improve, hypotheses, length_penalty, save
from annotated.figures import attention_maps, without_head
from annotated.grammar import grammar_corpus
from annotated.page import _round_rows, _rounded, to_page
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import TINY, Transformer

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "book/_static/explorers/engine.js"
MODELS = ("tatoeba-en-de", "tatoeba-cpu", "grammar-tiny")
EVERYDAY = [
    "Can you tell me what you saw yesterday?", "My brother works in a hospital.", "Dogs bark.", "Tom isn't here.",
    "I don't know what to say.", "She has never been to Germany before.", "How much does it cost?", "Happy birthday!",
    "When did she get married?", "Artificial intelligence changes the world.", "Please close the window, it is cold.",
    "The quick brown fox jumps over the lazy dog.",
]

with_node = pytest.mark.skipif(NODE is None, reason="no node here to run the page's engine with")


@functools.cache
def exported() -> Path:
    "A folder as the site has it: the engine, and the scripts of the models beside it."
    import atexit
    import tempfile

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name)
    (path / "models").mkdir()
    for script in [*ENGINE.parent.glob("*.js"), *ENGINE.parent.glob("*.css")]:
        shutil.copy(script, path)
    for name in MODELS:
        to_page(ROOT / "results" / name, path / "models" / f"{name}.js")
    (path / "page.html").write_text('<!doctype html><meta charset="utf-8"><title>Test</title><script src="engine.js" data-weights="0a1b"></script>')
    (path / "own.html").write_text(quoted("html")[0].replace("my-model", MODELS[0]))
    return path


def quoted(language: str) -> list[str]:
    "What the appendix quotes in a language."
    page = (ROOT / "book/M-in-the-page.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


@functools.cache
def reference(name: str) -> Translator:
    translator = load(ROOT / "results" / name)
    return Translator(_rounded(translator.model).eval(), translator.vocabulary)


def in_node(body: str, given=None, name="tatoeba-en-de", script=None):
    "Run body, in which `model` is the engine's own object, not in a worker."
    script = script or exported() / "models" / f"{name}.js"
    start = f"const model = new engine.Transformer(annotated.weights[{json.dumps(Path(script).stem)}]);\n"
    return node(start + body, [ENGINE, script], given)


def contents(script: Path) -> dict:
    "What a script of weights holds."
    text = script.read_text(encoding="utf-8")
    return json.loads(re.fullmatch(r'\(\(globalThis\.annotated \?\?= \{\}\)\.weights \?\?= \{\}\)\["[^"]+"\] = (\{.*\});\n', text)[1])


# ---- text and identifiers

SPACES = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_SPACES = "\ufeff\u200b\u2060\x00\x1b\x7f"
LETTERS = "aaabcdeeefghiijklmnooprsttuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüßÄÖÜéñ0123456789.,?!'\"-–„“()"
STRANGE = "\u2581\u2581ﬁ€中文字😀👩\u200d👩\u0301\ue000\ufffd\ud800\udbff\udc00\udfff"


def noise(count, seed=0):
    draw = random.Random(seed)
    alphabets = [LETTERS, LETTERS + SPACES, LETTERS + STRANGE + NOT_SPACES, SPACES + NOT_SPACES + STRANGE]
    return ["".join(draw.choices(draw.choice(alphabets), k=draw.randint(0, 40))) for _ in range(count)]


def sentences():
    lines = (ROOT / "results/tatoeba-en-de/outputs.txt").read_text(encoding="utf-8").splitlines()
    corpus = grammar_corpus(train=0, validation=0, test=300).test
    return [*EVERYDAY, *lines, *(text for pair in corpus for text in pair)]


@with_node
@pytest.mark.parametrize("name", MODELS)
def test_segmentation_and_decoding_are_those_of_python(name):
    """Real sentences and noise: white space of all kinds, byte-order marks, half surrogate pairs, U+2581, emoji."""
    translator = reference(name)
    translator.longest = 10**6
    texts = sentences() + noise(4000)
    draw = random.Random(1)
    size = len(translator.vocabulary)
    some = [[draw.randrange(size) if draw.random() < 0.6 else draw.randrange(min(260, size)) for _ in range(draw.randint(0, 12))] for _ in range(3000)]
    body = """
    const ids = given.texts.map((text) => { const found = engine.clean(text); return found ? model.vocabulary.encode(found) : []; });
    return { ids, texts: ids.map((line) => model.vocabulary.decode(line)), decoded: given.some.map((line) => model.vocabulary.decode(line)) };"""
    found = in_node(body, {"texts": texts, "some": some}, name)
    wanted = [[i for piece in translator.cut(text) for i in piece] for text in texts]
    translator.longest = 200
    assert sum(map(len, wanted)) > 40_000
    decode = translator.vocabulary.decode
    for got, ids, text, back in zip(found["ids"], wanted, texts, found["texts"], strict=True):
        assert got == ids, repr(text)
        assert back == decode(ids), repr(text)
    assert found["decoded"] == [decode(ids) for ids in some]


@with_node
def test_a_pair_of_surrogates_is_one_letter_and_a_half_is_replaced():
    found = in_node("return given.map((text) => engine.clean(text));", ["a \ud800 b", "\ud83d\ude00", "\ude00\ud83d"])
    assert found == ["a \ufffd b", "😀", "\ufffd\ufffd"]


@with_node
def test_a_line_of_what_nobody_sees_is_empty():
    lines = ["\u200b", "\ufeff", " \u200b\t\u2060 ", "\x00\x07", "\u3000", "a\u200bb", "\ufeffa\ufeffb", "\ue000"]
    assert in_node("return given.map((text) => engine.clean(text));", lines) == ["", "", "", "", "", "a\u200bb", "a b", "\ue000"]


# ---- numbers

def inside(model, source, target):
    "What modules of a model gave, by the names of the engine's trace."
    seen = {}
    hooks = []
    for name, module in model.named_modules():
        kind = type(module).__name__

        def keep(name, module, inputs, output):
            seen[name] = output[0]

        if kind in ("MultiHeadAttention", "FeedForward", "AddNorm", "PreNorm", "Encoder", "Decoder"):
            hooks.append(module.register_forward_hook(partial(keep, name)))
        elif re.search(r"attention\.W_[QKV]$", name):
            hooks.append(module.register_forward_hook(partial(keep, name.replace(".W_", "."))))
    with torch.inference_mode():
        seen["logits"] = model(source, target)[0]
    for hook in hooks:
        hook.remove()
    seen = {name.removesuffix(".attention"): value for name, value in seen.items()}
    maps = attention_maps(model, source, target)
    for kind, (stack, module) in {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}.items():
        for n, layer in enumerate(maps[kind]):
            seen[f"{stack}.layers.{n}.{module}_attention.weights"] = layer[0]
    return seen


def compare(model, script, texts, encode, options=None):
    "Every module's values in a trace of the page against Python's, over these texts; how many numbers and names there were."
    body = """
    const out = [];
    for (const text of given.texts) {
      const { source, target, values } = await engine.trace(model, text, given.options);
      const plain = Object.entries(values).map(([name, { shape, values }]) => [name, { shape, values: Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("base64") }]);
      out.push({ source, target, values: Object.fromEntries(plain) });
    }
    return out;"""
    numbers, names = 0, set()
    given = {"texts": texts, "options": options or {}}
    for text, found in zip(texts, in_node(body, given, script=script), strict=True):
        assert found["source"] == encode(text)
        shifted = [model.config.bos, *found["target"][:-1]]
        wanted = inside(model, torch.tensor([found["source"]]), torch.tensor([shifted]))
        for name, value in wanted.items():
            there = found["values"][name]
            got = torch.from_numpy(np.frombuffer(base64.b64decode(there["values"]), np.float32).copy()).reshape(there["shape"])
            limit = 1e-5 if name.endswith("weights") else 1e-4
            torch.testing.assert_close(got.flatten(), value.flatten().float(), rtol=1e-5, atol=limit, msg=lambda m, name=name: f"{name}: {m}")
            numbers += value.numel()
        names |= set(wanted)
    return numbers, names


@with_node
@pytest.mark.parametrize("name", MODELS)
def test_every_module_gives_what_it_gives_in_python(name):
    """To 1e-4, attention to 1e-5, and 1e-5 of large numbers; all layers, heads and positions."""
    translator = reference(name)
    texts = [source for source, _ in grammar_corpus(train=0, validation=0, test=12).test] if name == "grammar-tiny" else EVERYDAY
    numbers, names = compare(translator.model, exported() / "models" / f"{name}.js", texts, translator.vocabulary.encode)
    assert numbers > 100_000
    config = translator.model.config
    assert len(names) == config.N * 8 + config.decoder_layers * 14 + 3  # Q, K, V, weights and output of each attention, norms, feed-forward; stacks, logits


@with_node
def test_a_trace_of_given_identifiers_searches_nothing(tmp_path):
    folder, model, words = folder_of(tmp_path)
    to_page(folder, tmp_path / "small.js")
    body = """
    const { ids } = await engine.translate(model, given, { beam: 1 });
    const found = await engine.trace(model, given, { beam: 1 });
    model.step = () => { throw new Error("a search"); };
    const again = await engine.trace(model, given, { target: ids });
    const out = [];
    for (const target of [[5, 41], [-1], [1.5], ["w1"]]) await engine.trace(model, given, { target }).catch((error) => out.push(error.message));
    return { same: JSON.stringify([again.target, again.tokens, again.values]) === JSON.stringify([found.target, found.tokens, found.values]), out };"""
    found = in_node(body, "w1 w5 w2", script=tmp_path / "small.js")
    assert found["same"] and found["out"] == ["target must be a text or identifiers of the vocabulary"] * 4


VARIANTS = {
    "as in the paper": {},
    "pre-norm": {"norm": "pre"},
    "pre-norm without a last one": {"norm": "pre", "final_norm": False},
    "a last norm": {"final_norm": True},
    "unequal depths": {"N": 1, "N_decoder": 3},
    "heads of other widths": {"d_k": 5, "d_v": 7},
    "biases": {"bias": True, "output_bias": True},
    "swish": {"activation": "swish"},
    "half sines": {"positions": "halves"},
    "learned positions": {"positions": "learned", "max_positions": 31},
    "two vocabularies": {"source_vocab": 41},
    "an eps that matters": {"eps_norm": 0.1},
}
SMALL = replace(TINY, N=2, d_model=22, d_ff=13, h=2, vocab=41)


def folder_of(tmp_path, name="small", **fields):
    "A model folder with random weights, biases among them, and a vocabulary of words."
    torch.manual_seed(0)
    model = Transformer(replace(SMALL, **fields)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p += 0.3 * torch.randn_like(p)
    words = Words([f"w{i}" for i in range(37)])
    save(tmp_path / name, model, words)
    return tmp_path / name, model, words


@with_node
@pytest.mark.parametrize("name", VARIANTS)
def test_other_configurations_compute_the_same(name, tmp_path):
    folder, model, words = folder_of(tmp_path, **VARIANTS[name])
    to_page(folder, tmp_path / "small.js")
    numbers, _ = compare(_rounded(model).eval(), tmp_path / "small.js", ["w1 w2 w3 w4 w5", "w36", "w3 w3 w0 nothing ."], words.encode)
    assert numbers > 3000


# ---- outputs

BODY = """
const out = [];
for (const text of given.texts) {
  const { text: said, ids, score } = await engine.translate(model, text, given.options);
  out.push([said, ids, score]);
}
return out;"""


def wanted_of(translator, texts, beam, alpha=0.6):
    "(text, ids, score) of each text, with the plain model."
    penalty = partial(length_penalty, alpha=alpha)
    found = []
    for first in range(0, len(texts), 50):
        cut = [translator.cut(text)[0] for text in texts[first : first + 50]]
        longest = max(map(len, cut))
        source = torch.tensor([ids + [0] * (longest - len(ids)) for ids in cut])
        best = [pool[0] for pool in hypotheses(translator.model, source, beam, penalty, stop=cannot_improve)]
        found += [(translator.vocabulary.decode(ids), ids, score) for ids, score in best]
    return found


def same_outputs(found, wanted):
    for (text, ids, score), (said, written, worth) in zip(found, wanted, strict=True):
        assert (text, ids) == (said, written)
        assert score == pytest.approx(worth, abs=1e-4)


@with_node
@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("name, count", [("grammar-tiny", 60), ("tatoeba-cpu", 8), ("tatoeba-en-de", 16)])
def test_greedy_and_beam_search_write_what_python_writes(name, count, beam):
    texts = [source for source, _ in grammar_corpus(train=0, validation=0, test=count).test]
    texts = texts if name == "grammar-tiny" else [*EVERYDAY, *texts][:count]
    found = in_node(BODY, {"texts": texts, "options": {"beam": beam}}, name)
    same_outputs(found, wanted_of(reference(name), texts, beam))
    assert len({text for text, _, _ in found}) > count / 2


@with_node
@pytest.mark.needs_data
def test_500_sentences_of_tatoeba():
    if not os.environ.get("ANNOTATED_DATA"):
        pytest.skip("ANNOTATED_DATA names no folder with real data")
    from annotated.corpora import load_corpus

    texts = [source for source, _ in load_corpus("tatoeba-en-de").test[::6]][:500]
    found = in_node(BODY, {"texts": texts, "options": {"beam": 4}})
    same_outputs(found, wanted_of(reference("tatoeba-en-de"), texts, 4))


@with_node
@pytest.mark.parametrize("options", [{"beam": 2, "alpha": 0}, {"beam": 8, "alpha": 1.5}, {"beam": 3, "maxLen": 4}, {"beam": 3, "alpha": -1}])
def test_width_penalty_and_limit_mean_the_same(options):
    translator = reference("tatoeba-en-de")
    found = in_node(BODY, {"texts": EVERYDAY, "options": options})
    for (text, ids, score), line in zip(found, EVERYDAY, strict=True):
        source = torch.tensor(translator.cut(line))
        penalty = partial(length_penalty, alpha=options.get("alpha", 0.6))
        best, worth = hypotheses(translator.model, source, options["beam"], penalty, options.get("maxLen"), stop=cannot_improve)[0][0]
        assert ids == best and text == translator.vocabulary.decode(best)
        assert score == pytest.approx(worth, abs=1e-4)


@with_node
def test_the_attention_of_an_answer_is_that_of_its_own_pass():
    """What a cached search collects step by step is what the model gives when it reads the whole output at once."""
    translator = reference("tatoeba-en-de")
    body = """
    const out = [];
    for (const text of given) {
      const { ids, source, attention } = await engine.translate(model, text);
      out.push({ ids, source, attention: JSON.parse(JSON.stringify(attention, (_, v) => ArrayBuffer.isView(v) ? [...v] : v)) });
    }
    return out;"""
    for found in in_node(body, EVERYDAY[:5]):
        maps = attention_maps(translator.model, torch.tensor([found["source"]]), torch.tensor([[1, *found["ids"][:-1]]]))
        for kind, weights in maps.items():
            torch.testing.assert_close(torch.tensor(found["attention"][kind]), weights[:, 0], rtol=0, atol=1e-5)


@with_node
def test_a_short_list_of_candidates_narrows_no_search():
    body = "const { ids, steps } = await engine.translate(model, given.text, { beam: 4, top: given.top }); return [ids, steps.map((step) => step.hypotheses.length)];"
    found = [in_node(body, {"text": EVERYDAY[0], "top": top}) for top in (1, 5)]
    assert found[0] == found[1] and set(found[0][1]) == {4}


@with_node
@pytest.mark.parametrize("beam", [4, 8])
def test_steps_tell_the_search(beam):
    """Each hypothesis continues its parent by a candidate that was kept; log-probabilities add up."""
    body = "const { steps, score } = await engine.translate(model, given.text, { beam: given.beam }); return [steps, score];"
    steps, score = in_node(body, {"text": EVERYDAY[0], "beam": beam})
    before = [{"ids": [], "logP": 0.0, "score": None}]
    for step in steps:
        assert len(step["hypotheses"]) == beam
        kept = [c for c in step["candidates"] if c["kept"]]
        for place, one in enumerate(step["hypotheses"]):
            parent = before[one["parent"]]
            if parent["score"] is not None:
                assert one["ids"] == parent["ids"] and one["score"] == parent["score"]
                continue
            assert one["ids"][:-1] == parent["ids"], place
            (by,) = [c for c in kept if c["parent"] == one["parent"] and c["id"] == one["ids"][-1]]
            assert one["logP"] == pytest.approx(by["logP"])
            assert parent["logP"] + np.log(by["p"]) == pytest.approx(by["logP"], abs=1e-9)
        before = step["hypotheses"]
    finished = [one["score"] for one in before if one["score"] is not None]
    assert steps[-1] and max(finished) == score


@with_node
def test_of_a_long_sentence_the_beginning_is_read():
    body = "const { source, cut } = await engine.translate(model, given, { longest: 7, maxLen: 1 }); return [source, cut];"
    ids = reference("tatoeba-en-de").vocabulary.encode(EVERYDAY[0])
    assert in_node(body, EVERYDAY[0]) == [[*ids[:7], 2], len(ids) - 1 - 7]


@with_node
def test_of_a_very_long_text_only_a_hundred_letters_a_token_are_looked_at():
    """What stands behind them is counted by its letters, and changes nothing else."""
    body = """
    const looked = [], encode = model.vocabulary.encode.bind(model.vocabulary);
    model.vocabulary.encode = (text) => { looked.push(text.length); return encode(text); };
    const of = async (text) => { const { source, cut } = await engine.translate(model, text, { longest: 3, maxLen: 1 }); return [source, cut]; };
    return [await of(given), await of(given + "?".repeat(5)), await of(given.slice(0, -1)), looked];"""
    text = ("Dogs bark. " * 30)[:300]
    ids = reference("tatoeba-en-de").vocabulary.encode(text)[:-1]
    whole, longer, shorter, looked = in_node(body, text)
    assert whole == [[*ids[:3], 2], len(ids) - 3]
    assert longer == [whole[0], whole[1] + 5]
    assert shorter[0] == whole[0] and looked[0] == looked[1] == len(text.strip()) and looked[2] <= 299


@functools.cache
def with_all_heads():
    return in_node(BODY, {"texts": EVERYDAY[:6], "options": {"beam": 1}})


HEADS = [[["cross", 1, 2]], [["encoder", 0, 0], ["encoder", 0, 1]], [["decoder", 1, 3]], [["cross", 0, i] for i in range(4)]]


@with_node
@pytest.mark.parametrize("without", HEADS, ids=str)
def test_a_head_that_is_off_contributes_nothing(without):
    from contextlib import ExitStack

    translator = reference("tatoeba-en-de")
    texts = EVERYDAY[:6]
    found = in_node(BODY, {"texts": texts, "options": {"beam": 1, "without": without}})
    with ExitStack() as stack:
        for place in without:
            stack.enter_context(without_head(translator.model, *place))
        same_outputs(found, wanted_of(translator, texts, 1))
    assert [score for *_, score in with_all_heads()] != [score for *_, score in found]


@with_node
@pytest.mark.parametrize("target", [{}, {"target": "Mein Bruder arbeitet hier."}], ids=["its own translation", "a given target"])
@pytest.mark.parametrize("without", HEADS, ids=str)
def test_a_trace_without_heads_is_that_of_python_without_them(without, target):
    """A head that is off still has its weights, rows of sum 1; its output is 0, and all that comes after it knows."""
    from contextlib import ExitStack

    translator = reference("tatoeba-en-de")
    with ExitStack() as stack:
        for place in without:
            stack.enter_context(without_head(translator.model, *place))
        compare(translator.model, exported() / "models/tatoeba-en-de.js", EVERYDAY[:2], translator.vocabulary.encode,
                {"without": without, **target})
    body = """
    const { values } = await engine.trace(model, given.text, given.options), of = (name) => [values[name].shape, [...values[name].values]];
    return given.names.map((name) => [of(`${name}.weights`), of(`${name}.heads`)]);"""
    names = {"encoder": "encoder.layers.{}.self_attention", "decoder": "decoder.layers.{}.self_attention",
             "cross": "decoder.layers.{}.cross_attention"}
    places = [(kind, layer) for kind in names for layer in (0, 1)]
    found = in_node(body, {"text": EVERYDAY[0], "options": {"without": without, **target},
                           "names": [names[kind].format(layer) for kind, layer in places]})
    for (kind, layer), parts in zip(places, found, strict=True):
        weights, heads = (torch.tensor(values).reshape(shape) for shape, values in parts)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]), rtol=0, atol=1e-5)
        off = {head for head in range(len(weights)) if [kind, layer, head] in without}
        still = {head for head in range(len(weights)) if not heads.unflatten(1, (-1, 1)).reshape(len(heads), len(weights), -1)[:, head].any()}
        assert still == off, (kind, layer)


# ---- what is written

@pytest.mark.parametrize("name", MODELS)
def test_the_exported_bytes_are_the_committed_weights(name):
    file = contents(exported() / "models" / f"{name}.js")
    content = base64.b64decode(file["data"])
    stored = load_file(ROOT / "results" / name / "model.safetensors")
    stored["target_embedding.weight"] = stored.pop("source_embedding.weight")  # one matrix, kept under one name
    twin = dict(reference(name).model.named_parameters())
    assert len(file["tensors"]) == len(twin)
    for entry in file["tensors"]:
        n, *m = entry["shape"]
        start = entry["at"]
        W = stored[entry["name"]].float()
        if not m:
            assert np.array_equal(np.frombuffer(content, "<f4", n, start), W)
            continue
        scales = np.frombuffer(content, "<f4", n, start)
        whole = np.frombuffer(content, np.int8, n * m[0], start + 4 * n).reshape(n, -1)
        assert np.abs(whole).max(1).tolist() == [127] * n
        back = torch.tensor(whole * scales[:, None])
        assert ((back - W).abs() <= 0.501 * torch.tensor(scales)[:, None]).all()
        assert torch.equal(back, twin[entry["name"]])
    assert file["pieces"][0] == {"tatoeba-en-de": "ch", "tatoeba-cpu": "ch", "grammar-tiny": ","}[name]
    assert file["about"] == (ROOT / "results" / name / "README.md").read_text()


def test_the_same_folder_gives_the_same_script(tmp_path):
    to_page(ROOT / "results/grammar-tiny", tmp_path / "grammar-tiny.js")
    assert (tmp_path / "grammar-tiny.js").read_bytes() == (exported() / "models/grammar-tiny.js").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["grammar-tiny.js"]


def test_the_script_is_small_enough_for_a_page():
    assert (exported() / "models/tatoeba-en-de.js").stat().st_size < 10e6


def test_rows_of_zeros_and_of_one_size():
    scales, whole = _round_rows(torch.tensor([[0.0, 0.0], [-2.0, 1.0]]))
    assert whole.tolist() == [[0, 0], [-127, 64]] and scales.tolist() == pytest.approx([1, 2 / 127])


def damaged(tmp_path, name="damaged", value=float("nan"), **fields):
    folder, *_ = folder_of(tmp_path, name, **fields)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layers.0.feed_forward.W_1.bias"][0] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


def with_subwords(tmp_path, lines=None, vocab=330, **options):
    lines = lines or [text for pair in grammar_corpus(train=200, validation=0, test=0).train for text in pair]
    subwords = Subwords.train(lines, vocab, **options)
    save(tmp_path / "subwords", Transformer(replace(SMALL, vocab=vocab)), subwords)
    return tmp_path / "subwords"


def recurrent(tmp_path):
    words = Words(["a"])
    save(tmp_path / "old", RecurrentSeq2Seq(RecurrentConfig(vocab=5, d_model=4)), words)
    return tmp_path / "old"


REFUSED = {
    "gelu": (partial(folder_of, activation="gelu"), "activations relu and swish, got gelu"),
    "damaged": (damaged, "W_1.bias holds numbers that are not finite"),
    "no model": (lambda path: path, "is not a model folder"),
    "unigram": (partial(with_subwords, model_type="unigram"), "in the order of their merges"),
    "normaliser": (partial(with_subwords, normalization_rule_name="nfkc"), "text left as it is"),
    "over spaces": (partial(with_subwords, lines=["of the people of the land"] * 50, vocab=290, split_by_whitespace=False), "word marks at the beginning only"),
    "recurrent": (recurrent, "runs a Transformer, got a RecurrentSeq2Seq"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_lacks_is_refused_in_one_line(name, tmp_path):
    make, message = REFUSED[name]
    made = make(tmp_path)
    folder = made[0] if isinstance(made, tuple) else made
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        to_page(folder, tmp_path / "x.js")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x.js").exists()


def test_a_script_ends_in_js(tmp_path):
    with pytest.raises(ValueError, match="must be a file NAME.js, got"):
        to_page(ROOT / "results/grammar-tiny", tmp_path / "x.json")


@with_node
def test_subwords_of_ones_own_are_segmented_alike(tmp_path):
    """A small vocabulary that `Subwords.train` has made, in which most words are cut."""
    folder = with_subwords(tmp_path)
    to_page(folder, tmp_path / "own.js")
    texts = [text for text in sentences() + noise(1500, 7) if text.strip()]
    found = in_node("return given.map((text) => { const one = engine.clean(text); return one ? model.vocabulary.encode(one) : []; });", texts, script=tmp_path / "own.js")
    translator = load(folder)
    translator.longest = 10**6
    assert found == [[i for piece in translator.cut(text) for i in piece] for text in texts]


WRONG = [
    ("{ beam: 0 }", "beam must be a whole number, 1 or more"),
    ("{ beam: 1.5 }", "beam must be a whole number"),
    ("{ beam: 1000 }", "beam must be 100 at most"),
    ("{ alpha: NaN }", "alpha must lie in -10..10"),
    ("{ maxLen: '3' }", "maxLen must be a whole number"),
    ("{ top: 0 }", "top must be a whole number, 1 or more"),
    ("{ without: [['cross', 2, 0]] }", "there is no head 0 in layer 2 of cross"),
    ("{ without: [['cross', 0, 4]] }", "there is no head 4 in layer 0 of cross"),
    ("{ without: [['cross', 0, 'length']] }", "there is no head length in layer 0 of cross"),
    ("{ without: [['cross', 'length', 0]] }", "there is no head 0 in layer length of cross"),
    ("{ without: [['memory', 0, 0]] }", "there is no head 0 in layer 0 of memory"),
]


@with_node
def test_wrong_options_are_refused():
    each = ", ".join(f"() => engine.translate(model, 'Dogs bark.', {options})" for options, _ in WRONG)
    body = f"const said = []; for (const ask of [{each}]) said.push(await ask().then(() => 'nothing', (error) => error.message)); return said;"
    for (options, message), said in zip(WRONG, in_node(body), strict=True):
        assert message in said, options


# ---- what the appendix quotes

def test_lines_that_the_appendix_quotes_stand_in_the_engine():
    found, engine = quoted("js"), ENGINE.read_text(encoding="utf-8")
    assert len(found) == 5
    assert not [lines for lines in found if lines not in engine]


def test_the_engine_reads_alike_in_every_encoding():
    assert ENGINE.read_bytes().isascii(), "a page of one's own may name none"


# ---- in browsers

@pytest.fixture(scope="module", params=["chromium", pytest.param("firefox", marks=pytest.mark.firefox)])
def browser(request):
    path, kind = browsers.BROWSERS[request.param]
    if path is None:
        pytest.skip(f"no {request.param} here")
    if request.param == "chromium" and not browsers.has_playwright():
        pytest.skip("playwright is not installed")
    found = kind()
    yield found
    found.close()


@pytest.fixture(scope="module")
def places():
    "The addresses of the page: as a file, and from a server."
    with served(exported()) as address:
        yield {"file": (exported() / "page.html").as_uri(), "http": f"{address}/page.html"}


TRANSLATE = """
const model = await annotated.load("tatoeba-en-de");
const out = [];
for (const text of given) { const { text: said, ids, score } = await model.translate(text, { beam: 4 }); out.push([said, ids, score]); }
return out;"""


@pytest.mark.parametrize("place", ["file", "http"])
def test_a_page_translates_as_python_does_and_asks_nobody(browser, places, place):
    browser.open(places[place])
    before = browser.asked()
    assert not [address for address in before if "models/" in address], "weights are read before they are wanted"
    same_outputs(browser.run(TRANSLATE, EVERYDAY), wanted_of(reference("tatoeba-en-de"), EVERYDAY, 4))
    weights = [address for address in browser.asked() if "models/" in address]
    assert all(address.endswith("models/tatoeba-en-de.js?v=0a1b") for address in weights), weights
    own = places[place].rsplit("/", 1)[0]
    assert not [address for address in browser.asked() if not address.startswith((own, "blob:", "data:"))]


@pytest.mark.parametrize("place", ["file", "http"])
def test_the_page_that_the_appendix_shows_translates(browser, places, place):
    browser.open(places[place].replace("page.html", "own.html"))
    body = "for (const said = document.getElementById('said');;) { if (said.textContent) return said.textContent; await new Promise((done) => setTimeout(done, 50)); }"
    assert browser.run(body) == wanted_of(reference("tatoeba-en-de"), ["Dogs bark."], 4)[0][0]


def test_a_page_without_workers_or_base64_translates_too(browser, places):
    browser.open(places["file"])
    browser.run("window.Worker = undefined; delete Uint8Array.fromBase64;")
    same_outputs(browser.run(TRANSLATE, EVERYDAY[:2]), wanted_of(reference("tatoeba-en-de"), EVERYDAY[:2], 4))


def test_a_worker_that_cannot_start_is_replaced(browser, places):
    browser.open(places["file"])
    browser.run("window.Worker = class { constructor() { setTimeout(() => this.onerror(new Event('error'))); } };")
    same_outputs(browser.run(TRANSLATE, EVERYDAY[:1]), wanted_of(reference("tatoeba-en-de"), EVERYDAY[:1], 4))


def test_two_explorers_share_a_model_and_a_missing_one_is_said(browser, places):
    browser.open(places["file"])
    assert browser.run("return await annotated.load('grammar-tiny') === await annotated.load('grammar-tiny');")
    assert browser.run("try { await annotated.load('no-model'); } catch (error) { return error.message.split(' ')[0]; }") == "no"
    assert browser.run("return Object.keys(annotated).sort();") == ["load", "weights"]


@with_node
def test_the_engine_adds_to_what_other_scripts_have_made():
    shared = ENGINE.with_name("shared.js")
    load = "typeof annotated.load + typeof annotated.explorer + typeof annotated.weights"
    for order in ([ENGINE, shared], [shared, ENGINE]):
        assert node(f"return {load};", [*order, exported() / "models/grammar-tiny.js"]) == "functionfunctionobject"


def test_empty_long_and_foreign_input(browser, places):
    browser.open(places["file"])
    given = ["", " \n\u3000", "x" * 300, "word " * 30_000, "中文字 😀 \ud800", "a" * 500_000]
    body = """
    const model = await annotated.load("grammar-tiny"), out = [];
    for (const text of given) {
      const { text: said, source, cut, steps } = await model.translate(text, { beam: 1, maxLen: 20, longest: 40 });
      out.push([typeof said, said, source.length, cut, steps.length]);
    }
    return out;"""
    empty, space, letters, words, foreign, one = browser.run(body, given)
    assert empty == space == ["string", "", 0, 0, 0]
    assert words[2] == 41 and words[3] > 100 and words[4] <= 20
    assert letters[2] == one[2] == 2 and foreign[2] == 4
    tokens = browser.run("const { source, cut } = await (await annotated.load('tatoeba-en-de')).translate(given, { beam: 1, maxLen: 5, longest: 40 }); return [source.length, cut];", "x" * 300)
    assert tokens[0] == 41 and tokens[1] > 0


def test_what_is_called_off_ends_at_once(browser, places):
    """One types on: earlier requests end with AbortError, the last is answered, and the page stays alive meanwhile."""
    browser.open(places["file"])
    body = """
    const model = await annotated.load("tatoeba-en-de"), out = [];
    await model.translate("Dogs bark.");
    const long = "The old woman sees the cat because she sleeps. ".repeat(8);
    let control = new AbortController();
    for (let n = 1; n <= 12; n++) {
      control.abort();
      control = new AbortController();
      model.translate(long.slice(0, 30 * n), { signal: control.signal }).then((r) => out.push(r.text), (e) => out.push(e.name));
      await new Promise((done) => setTimeout(done, 20));
    }
    control.abort();
    const { text } = await model.translate("Dogs bark.");
    await new Promise((done) => setTimeout(done, 50));
    const early = AbortSignal.abort();
    const never = await model.translate("Dogs bark.", { signal: early }).catch((error) => error.name);
    return { out, text, never };"""
    found = browser.run(body)
    assert found["out"].count("AbortError") >= 11 and len(found["out"]) == 12
    assert found["text"] == wanted_of(reference("tatoeba-en-de"), ["Dogs bark."], 4)[0][0]
    assert found["never"] == "AbortError"


def test_a_request_that_is_called_off_computes_no_further(browser, places):
    """The long one alone takes seconds; called off, it leaves the engine free, in one of three tries on a busy machine."""
    browser.open(places["file"])
    body = """
    const model = await annotated.load("tatoeba-en-de"), long = "It rains and we go home now. ".repeat(4);
    await model.translate("Dogs bark.");
    const clock = () => performance.now();
    let start = clock();
    await model.translate(long, { beam: 24, maxLen: 150 });
    const whole = clock() - start;
    const control = new AbortController();
    const called = model.translate(long, { beam: 24, maxLen: 150, signal: control.signal }).catch((error) => error.name);
    await new Promise((done) => setTimeout(done, 50));
    control.abort();
    start = clock();
    await model.translate("Dogs bark.", { beam: 1 });
    return [await called, whole, clock() - start];"""
    found = []
    for _ in range(3):
        name, whole, after = browser.run(body)
        found.append((whole, after))
        assert name == "AbortError"
        if after < 0.5 * whole:  # the step under way is finished first
            return
    raise AssertionError(found)


def test_browsers_are_looked_for():
    assert CHROMIUM or FIREFOX or not os.environ.get("ANNOTATED_NO_SKIP")
