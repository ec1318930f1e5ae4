"""Weights from elsewhere: equal to torch's, transformers' and onnxruntime's answers, and refused where they do not fit."""

import json
import math
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

import annotated
from annotated import cli, decoding, interop
from annotated.after import GatedFeedForward, MaskedModel
from annotated.attention import scaled_dot_product_attention
from annotated.data import Subwords, Words, _train_subwords
from annotated.decoding import _can_pack, _sentence_ends, greedy, packed
from annotated.embedding import positional_encoding
from annotated.grammar import grammar_corpus
from annotated.graphs import compile_steps
from annotated.interop import (
    MarianVocabulary,
    PublishedTranslator,
    _find_folder,
    _Generation,
    _Guided,
    _published_search,
    _read_generation,
    from_marian,
    from_torch,
    load_marian,
    to_marian,
    to_onnx,
    to_torch,
)
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import TINY, Config, Transformer

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore", message=".*sacremoses.*")
from transformers import MarianConfig, MarianMTModel, MarianTokenizer  # noqa: E402
from transformers.utils import logging  # noqa: E402

logging.set_verbosity_error()
logging.disable_progress_bar()

SIZES = {"d_model": 22, "layers": 2, "attention_heads": 11, "ffn_dim": 13, "vocab_size": 59}
MODELS = {
    "swish": {},
    "relu, no scale": {"activation_function": "relu", "scale_embedding": False, "layers": 1},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71, "d_model": 26,
                         "attention_heads": 13, "activation_function": "gelu"},
    "two, no scale": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71, "scale_embedding": False},
    "start is eos": {"decoder_start_token_id": 0, "layers": 3, "activation_function": "silu"},
}


def published(folder, seed=3, **change):
    """A MarianMTModel with random weights, biases too, saved in the folder."""
    torch.manual_seed(seed)
    c = {**SIZES, "activation_function": "swish", "scale_embedding": True, **change}
    for name in ("layers", "attention_heads", "ffn_dim"):
        c[f"encoder_{name}"] = c.pop(name)
        c.setdefault(f"decoder_{name}", c[f"encoder_{name}"])
    ids = {"pad_token_id": c["vocab_size"] - 1, "eos_token_id": 0, "forced_eos_token_id": 0}
    c = {"decoder_start_token_id": c["vocab_size"] - 1, **ids, **c}
    model = MarianMTModel(MarianConfig(**c)).eval()
    for p in model.parameters():
        p.data += 0.25 * torch.randn_like(p) * p.requires_grad
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] = 3.5
    rules = model.generation_config
    rules.bad_words_ids, rules.max_length, rules.num_beams = [[c["pad_token_id"]], [7]], 17, 4
    model.save_pretrained(folder)
    return model


def sources(pad=58, vocab=58):
    """A batch (7, 11) with sentences of unequal length."""
    source = torch.randint(2, vocab, (7, 11), generator=torch.Generator().manual_seed(0))
    source[:, -1] = 0
    for row, end in ((2, 5), (4, 1), (5, 8)):
        source[row, end], source[row, end + 1 :] = 0, pad
    return source


def without_filling(rows, outputs, pad):
    """Whether generate's rows, start token first and filled up at the end, are our outputs."""
    return all(row[1 : len(ids) + 1] == ids and set(row[len(ids) + 1 :]) <= {pad}
               for row, ids in zip(rows.tolist(), outputs, strict=True))


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian")
    return published(folder, **MODELS[request.param]), from_marian(folder), _read_generation(folder)


def test_weights_that_no_memory_holds_are_refused_by_the_size_of_their_file(tmp_path, monkeypatch):
    published(tmp_path, **next(iter(MODELS.values())))
    size = next(path for path in tmp_path.iterdir() if path.name in ("model.safetensors", "pytorch_model.bin")).stat().st_size
    from_marian(tmp_path)
    monkeypatch.setattr(decoding, "_machine_memory", lambda: 2 * size - 8)
    monkeypatch.setattr(interop, "load_file", lambda path: pytest.fail("the file was read"))
    with pytest.raises(ValueError, match=r"takes [\d.]+ GB of memory, and this machine has [\d.]+: take a smaller model"):
        from_marian(tmp_path)


def test_logits_are_theirs(pair):
    theirs, ours, _ = pair
    source, pad = sources(), theirs.config.pad_token_id
    target = torch.randint(1, 58, (7, 9))
    target[:, 0] = theirs.config.decoder_start_token_id
    with torch.no_grad():
        expected = theirs(source, attention_mask=source != pad, decoder_input_ids=target).logits
        assert (ours(source, target) - expected).abs().max() < 2e-5
        state = packed(ours).start(source)
        for t in range(3):
            logits, state = packed(ours).step(target[:, t], state)
            assert (logits - expected[:, t]).abs().max() < 2e-5  # the packed copy keeps the biases


def test_greedy_output_is_theirs(pair):
    theirs, ours, how = pair
    source, pad = sources(), theirs.config.pad_token_id
    made = theirs.generate(source, attention_mask=source != pad, num_beams=1, do_sample=False)
    found = greedy(_Guided(packed(ours), how), source, how.max_len)
    assert without_filling(made, found, pad)
    assert not {pad, 7} & {i for ids in found for i in ids}


@pytest.mark.parametrize("beam,power,renormalise", [(2, 1.0, False), (4, 1.0, True), (5, 0.0, False), (3, -0.5, True)])
def test_beam_output_is_theirs(pair, beam, power, renormalise):
    theirs, ours, how = pair
    source, pad = sources(), theirs.config.pad_token_id
    made = theirs.generate(
        source, attention_mask=source != pad, num_beams=beam, num_return_sequences=beam, length_penalty=power,
        do_sample=False, renormalize_logits=renormalise, return_dict_in_generate=True, output_scores=True)
    how = replace(how, beam=beam, power=power, renormalise=renormalise)
    found = [hypothesis for pool in _published_search(packed(ours), source, how) for hypothesis in pool]
    assert without_filling(made.sequences, [ids for ids, _ in found], pad)
    scores = torch.tensor([score for _, score in found])
    torch.testing.assert_close(scores, made.sequences_scores, rtol=1e-4, atol=1e-4)


def test_the_cases_above_end_early_and_late(tmp_path):
    """Else stopping rule and forced end would not have been tried."""
    lengths = set()
    for name, change in MODELS.items():
        published(tmp_path / name, **change)
        how = _read_generation(tmp_path / name)
        found = _published_search(from_marian(tmp_path / name), sources(), how)
        lengths |= {len(ids) for pool in found for ids, _ in pool}
        assert all(ids[-1] == 0 for pool in found for ids, _ in pool)
    assert min(lengths) < 5 and max(lengths) == 16 and len(lengths) > 5


def test_an_output_does_not_depend_on_its_batch(tmp_path):
    published(tmp_path)
    model, how, source = from_marian(tmp_path), _read_generation(tmp_path), sources()
    together = _published_search(model, source, how)
    for row, pool in zip(source, together):
        ((alone),) = _published_search(model, row[None][:, row != 58], how)
        assert [ids for ids, _ in alone] == [ids for ids, _ in pool]


def test_legacy_weights_are_read_without_running_code(tmp_path, capsys):
    theirs = published(tmp_path)
    expected = from_marian(tmp_path).state_dict()
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")  # with every copy of the shared matrix
    assert "lm_head.weight" in theirs.state_dict() and "model.encoder.embed_positions.weight" in theirs.state_dict()
    found = from_marian(tmp_path).state_dict()
    assert all(torch.equal(found[name], p) for name, p in expected.items())

    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save({"model.shared.weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds more than tensors"):
        from_marian(tmp_path)
    assert "executed" not in capsys.readouterr().out


# ---- text

LINES = """Das Café in Zürich öffnet früh; naïve Gäste frühstücken à la carte.
El niño comió piñas mañana por la mañana, ¿verdad?
Она читает книгу, а он слушает музыку в старом доме.
他每天早上喝一杯茶，然后去上班。
今天天气很好，我们去公园散步吧！""".split("\n")
TEXTS = [*LINES, "The man sleeps.", "  two   spaces ", "", " ", "unseen 龍 ☃ signs", ">>fra<< The man sleeps.",
         ">>fra<< A code, and >>another<< later.", ">>xx<< a code that is unknown", "a >>fra<< inside", "Tab\there", "ﬁne ½ ①", "Ünïcödé e\u0301"]


def pieces_of(lines, vocab, kind):
    settings = {"byte_fallback": kind == "bytes", "normalization_rule_name": "nmt_nfkc", "character_coverage": 1.0}
    settings |= {"pad_id": -1, "bos_id": -1, "eos_id": 0, "unk_id": 1}
    settings["model_type"] = "unigram" if kind == "unigram" else "bpe"
    if kind == "bytes":
        settings["character_coverage"] = 0.98
    return _train_subwords(lines, vocab + 300 * (kind == "bytes"), **settings)


def vocabulary_folder(folder, kind, separate):
    import sentencepiece

    pairs, tables = grammar_corpus(200, 10, 10).train, []
    for i, side in enumerate(("source", "target")):
        model = pieces_of([pair[i] for pair in pairs] + LINES, 180 + 7 * i, kind)
        (folder / f"{side}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tables.append([processor.id_to_piece(j) for j in range(2, len(processor))])
    if separate:  # of one size, as published ones are: padding has one identifier for both
        size = max(map(len, tables))
        tables = [pieces + [f"filler{i}" for i in range(size - len(pieces))] for pieces in tables]
    else:
        tables = [tables[0] + tables[1]]
    for name, pieces in zip(("vocab.json", "target_vocab.json"), tables):
        names = dict.fromkeys(["</s>", "<unk>", *pieces, ">>fra<<", "<pad>"])
        (folder / name).write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    about = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("separate", [False, True])
def test_the_ends_of_sentences_are_looked_up_among_the_sources_pieces(tmp_path, separate):
    vocabulary_folder(tmp_path, "bpe", separate)
    vocabulary = MarianVocabulary(tmp_path)
    ends = _sentence_ends(vocabulary, vocabulary.encode("")[-1])
    pieces = {piece.lstrip("▁") for piece, i in vocabulary.source_ids.items() if i in ends}
    assert {".", "!", "?"} <= pieces <= set(".!?。！？")


@pytest.mark.parametrize("kind,separate", [("unigram", False), ("bpe", True), ("bytes", False)])
def test_text_becomes_their_identifiers_and_comes_back(tmp_path, kind, separate):
    vocabulary_folder(tmp_path, kind, separate)
    theirs, ours = MarianTokenizer.from_pretrained(tmp_path), MarianVocabulary(tmp_path)
    unknown = 0
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"], text
        target = theirs(text_target=text)["input_ids"]
        assert ours.encode(text, target=True) == target, text
        target = [theirs.pad_token_id, *target]
        assert ours.decode(target) == theirs.decode(target, skip_special_tokens=True), text
        unknown += 1 in target
    assert unknown or kind == "bytes"


def test_a_code_stands_before_every_piece_of_a_long_line(tmp_path):
    vocabulary_folder(tmp_path, "unigram", False)
    vocabulary = MarianVocabulary(tmp_path)
    sizes = replace(TINY, vocab=len(vocabulary.source_ids), eos=0, pad=len(vocabulary.source_ids) - 1)
    translator = interop.MarianTranslator(Transformer(sizes).eval(), vocabulary, None, longest=6)
    text = "Tom is right. Tom is right."
    code, *plain = vocabulary.encode(">>fra<< " + text)
    pieces = translator.cut(" >>fra<<  " + text)
    assert len(pieces) > 1 and {piece[0] for piece in pieces} == {code}
    assert [i for piece in pieces for i in piece[1:-1]] == plain[:-1]
    assert code not in sum(translator.cut(text), []) and translator.cut(" ") == []


@pytest.mark.parametrize("separate", [False, True])
def test_a_folder_is_loaded_whole_and_translates(tmp_path, separate, capsys):
    vocabulary_folder(tmp_path, "unigram", separate)
    sizes = [len(json.loads(path.read_text())) for path in sorted(tmp_path.glob("*vocab.json"), reverse=True)]
    change = {"decoder_vocab_size": min(sizes), "share_encoder_decoder_embeddings": False} if separate else {}
    ids = {"pad_token_id": min(sizes) - 1, "decoder_start_token_id": min(sizes) - 1}
    model = published(tmp_path, vocab_size=sizes[0], **ids, **change)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    lines = ["The man sleeps.", "", "今天天气很好", LINES[0]]
    ours = load_marian(tmp_path, kind=PublishedTranslator)
    for beam in (1, 4):
        made = [model.generate(**theirs(line, return_tensors="pt"), num_beams=beam, do_sample=False)[0]
                for line in lines if line]
        expected = [theirs.decode(row, skip_special_tokens=True) for row in made]
        found = ours.translate(lines, beam, alpha=1.0)
        assert found[1] == "" and [found[0], *found[2:]] == expected
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    out = tmp_path.with_name(f"{tmp_path.name}.out")  # a model's own folder takes nothing else
    options = ["--input", str(tmp_path / "in"), "--output", str(out), "--device", "cpu"]
    assert cli.main(["translate", "--model", str(tmp_path), *options]) == 0
    assert out.read_text().split("\n")[:-1] == annotated.load(tmp_path).translate(lines)


# ---- folders that are no good


def broken(folder, change):
    published(folder)
    path = folder / "config.json"
    if callable(change):
        change(folder)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))


def cut_short(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def without(name):
    def change(folder):
        tensors = interop.load_file(folder / "model.safetensors")
        tensors.pop(name)
        interop.save_file(tensors, folder / "model.safetensors")

    return change


def with_tensor(name, tensor):
    def change(folder):
        tensors = interop.load_file(folder / "model.safetensors")
        interop.save_file(tensors | {name: tensor}, folder / "model.safetensors")

    return change


BAD = {
    "another architecture": ({"model_type": "bart"}, "model_type 'marian', got 'bart'"),
    "pre-norm": ({"normalize_before": True}, "normalize_before False"),
    "a norm of the embedding": ({"normalize_embedding": True}, "normalize_embedding False"),
    "a last norm": ({"add_final_layer_norm": True}, "add_final_layer_norm False"),
    "learned positions": ({"static_position_embeddings": False}, "static_position_embeddings True"),
    "a matrix for the logits": ({"tie_word_embeddings": False}, "tie_word_embeddings True"),
    "a decoder alone": ({"is_encoder_decoder": False}, "is_encoder_decoder True"),
    "unequal heads": ({"decoder_attention_heads": 1}, "equal attention_heads, got "),
    "unequal stacks": ({"decoder_layers": 1}, "has no counterpart"),
    "unknown activation": ({"activation_function": "tanh"}, "activation must be one of"),
    "other sizes": ({"encoder_ffn_dim": 14, "decoder_ffn_dim": 14}, "must have the shape"),
    "no number": ({"d_model": None}, "d_model must be a whole number"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
    "damaged config": (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
    "a list as config": (lambda folder: (folder / "config.json").write_text("[]"), "not a list"),
    "incomplete config": (lambda folder: (folder / "config.json").write_text('{"model_type": "marian"}'), "it lacks"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "cut short": (cut_short, "model.safetensors is damaged"),
    "a tensor less": (without("model.decoder.layers.1.fc2.bias"), "model.decoder.layers.1.fc2.bias is missing"),
    "a tensor more": (with_tensor("model.extra", torch.zeros(3)), "model.extra has no counterpart"),
    "untied": (with_tensor("lm_head.weight", torch.zeros(59, 22)), "lm_head.weight differs"),
    "other positions": (with_tensor("model.encoder.embed_positions.weight", torch.ones(9, 22)), "no sines"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_in_one_line(tmp_path, name):
    change, message = BAD[name]
    broken(tmp_path, change)
    with pytest.raises(ValueError) as error:
        from_marian(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


VOCABULARIES = {
    "no source.spm": (lambda folder: (folder / "source.spm").unlink(), "source.spm"),
    "damaged target.spm": (lambda folder: (folder / "target.spm").write_bytes(b"no model"), "target.spm is damaged"),
    "no vocab.json": (lambda folder: (folder / "vocab.json").unlink(), "vocab.json"),
    "no eos": (lambda folder: (folder / "vocab.json").write_text('{"<unk>": 1, "<pad>": 2}'), "lacks </s>"),
    "too many": (lambda folder: None, "leaves the model's 0..58"),
}


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_bad_vocabulary_is_refused_in_one_line(tmp_path, name, capsys):
    change, message = VOCABULARIES[name]
    published(tmp_path)
    vocabulary_folder(tmp_path, "unigram", False)
    change(tmp_path)
    assert cli.main(["translate", "--model", str(tmp_path), "--device", "cpu", "--input", os.devnull]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_rules_that_are_not_here_are_named(tmp_path):
    for rules in ({"bad_words_ids": [[3, 4]]}, {"early_stopping": True}, {"no_repeat_ngram_size": 3},
                  {"repetition_penalty": 1.2}, {"min_length": 5}, {"suppress_tokens": [7]}, {"forced_bos_token_id": 7},
                  {"encoder_no_repeat_ngram_size": 3}, {"begin_suppress_tokens": [3]}, {"sequence_bias": [[[3], 1.0]]},
                  {"exponential_decay_length_penalty": [5, 1.1]}, {"num_beam_groups": 2}, {"eos_token_id": [0, 3]},
                  {"do_sample": True}, {"min_new_tokens": 2}, {"max_new_tokens": 9}, {"diversity_penalty": 0.5},
                  {"encoder_repetition_penalty": 1.2}, {"forced_eos_token_id": 3, "eos_token_id": 0}):
        (tmp_path / "generation_config.json").write_text(json.dumps(rules))
        with pytest.raises(ValueError, match=f"{list(rules)[0]}.* which this search lacks"):
            _read_generation(tmp_path)
    silent = {"early_stopping": False, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "min_length": 0}
    (tmp_path / "generation_config.json").write_text(json.dumps(silent))
    assert _read_generation(tmp_path) == interop._Generation()
    (tmp_path / "config.json").write_text(json.dumps({"num_beams": 6, "max_length": 23}))  # as older folders have it
    (tmp_path / "generation_config.json").write_text(json.dumps({"num_beams": 3}))
    how = _read_generation(tmp_path)
    assert (how.beam, how.max_len) == (3, 22), "the newer file counts, and the older one where that is silent"
    (tmp_path / "generation_config.json").write_text(json.dumps({"renormalize_logits": True}))
    assert _read_generation(tmp_path).renormalise and not how.renormalise


@pytest.mark.parametrize("given,power", [(0.0, 0.0), (-0.5, -0.5), (None, 1.0)])
def test_a_length_penalty_of_0_is_no_missing_one(tmp_path, given, power):
    (tmp_path / "generation_config.json").write_text(json.dumps({"length_penalty": given}))
    assert _read_generation(tmp_path).power == power


def test_a_name_that_cannot_be_had_is_one_line():
    with pytest.raises(ValueError, match="^no-such-owner/no-such-model is no folder here") as error:
        _find_folder("no-such-owner/no-such-model")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="has no config.json"):
        _find_folder("tests/no-such-folder")  # a folder of this name is here, so no hub is asked


def test_importing_the_package_stays_light():
    code = "import sys, annotated, annotated.interop; print(sorted({'transformers', 'huggingface_hub', 'onnx',\
        'onnxruntime', 'sentencepiece'} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert made.stdout.strip() == "[]"


# ---- out again


@pytest.fixture(scope="module")
def trained():
    """A model of ours with random weights, far from 0, and its subwords."""
    pairs = grammar_corpus(200, 10, 10).train
    vocabulary = Subwords.train([text for pair in pairs for text in pair] + LINES, 431)
    torch.manual_seed(0)
    model = Transformer(replace(TINY, d_model=22, h=11, d_ff=13, vocab=431, eps_norm=1e-5)).eval()
    for p in model.parameters():
        p.data += 0.2 * torch.randn_like(p)
    return model, vocabulary


def test_a_disk_that_is_full_costs_no_older_model(trained, tmp_path, monkeypatch):
    to_marian(*trained, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(interop, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        to_marian(*trained, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_in_one_line(tmp_path):
    published(tmp_path)
    with pytest.raises(ValueError, match="^device='cuda' cannot be used here: [^\n]*$"):
        load_marian(tmp_path, "cuda")


def test_a_model_of_ours_is_the_same_as_a_marian_folder(trained, tmp_path):
    model, vocabulary = trained
    before = {name: p.clone() for name, p in model.state_dict().items()}
    to_marian(model, vocabulary, tmp_path)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert _read_generation(tmp_path) == _Generation(beam=4, max_len=511, forbidden=(430,), forced_eos=True)
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] >= 512
    theirs, tokenizer = MarianMTModel.from_pretrained(tmp_path), MarianTokenizer.from_pretrained(tmp_path)
    order = interop._marian_vocabulary(vocabulary, model.config)[1]
    source, target = sources(pad=0), torch.randint(4, 431, (7, 9))
    source[source == 0] = 0
    source[:, -1], target[:, 0] = 2, 1
    place = torch.tensor([order.index(i) for i in range(431)])
    start = place[target].clone()
    start[:, 0] = 430
    said = [i for i in order if i != 0]  # all but padding, which Marian's never says
    with torch.no_grad():
        expected = model(source, target)[..., said].log_softmax(-1)
        mask = source != 0
        logits = theirs(place[source], attention_mask=mask, decoder_input_ids=start).logits
        assert (logits.log_softmax(-1)[..., place[said]] - expected).abs().max() < 1e-4
        assert logits.softmax(-1)[..., 430].max() == 0
    for text in [text for text in TEXTS if not text.startswith(">>")]:  # a code is text to Subwords
        ids = tokenizer(" ".join(text.split()))["input_ids"]
        assert ids == place[vocabulary.encode(text)].tolist(), text
        assert tokenizer.decode(ids, skip_special_tokens=True) == vocabulary.decode(vocabulary.encode(text)), text


def test_a_vocabulary_of_another_size_is_not_written(trained, tmp_path):
    model, vocabulary = trained
    for size in (len(vocabulary) - 1, len(vocabulary) + 1):
        other = Transformer(replace(model.config, vocab=size))
        with pytest.raises(ValueError, match=f"the vocabulary has {len(vocabulary)} entries and the model {size} embeddings"):
            to_marian(other, vocabulary, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_an_older_folder_lends_nothing_to_a_new_model(trained, tmp_path, monkeypatch):
    model, vocabulary = trained
    to_marian(model, vocabulary, tmp_path)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "target_vocab.json").write_text(json.dumps({f"x{i}": i for i in range(431)}))
    to_marian(model, vocabulary, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(interop, "write_json", full)
    with pytest.raises(OSError):
        to_marian(model, vocabulary, tmp_path)
    assert not (tmp_path / "config.json").exists(), "new weights beside files of an older model are no model"


def test_ctranslate2_translates_with_our_folder(tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    model = annotated.load(Path(__file__).parent.parent / "results" / "tatoeba-cpu")
    to_marian(model.model, model.vocabulary, tmp_path / "marian")
    converter = ctranslate2.converters.TransformersConverter(str(tmp_path / "marian"))
    converter.convert(str(tmp_path / "converted"))
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "marian")
    lines = ["I don't know what to say.", "She read the book that he gave her.", "Tom is right."]
    pieces = [tokenizer.convert_ids_to_tokens(tokenizer(line)["input_ids"]) for line in lines]
    made = ctranslate2.Translator(str(tmp_path / "converted")).translate_batch(pieces, beam_size=1)
    texts = [tokenizer.convert_tokens_to_string(one.hypotheses[0]) for one in made]
    assert texts == model.translate(lines, beam=1)


@pytest.mark.parametrize("name", MODELS)
def test_in_and_out_again_gives_the_same_folder(tmp_path, name):
    published(tmp_path / "one", **MODELS[name])
    about = json.loads((tmp_path / "one" / "config.json").read_text().replace("silu", "swish"))  # two names of one
    model = from_marian(tmp_path / "one")
    files = {f"{side}.spm": b"" for side in ("source", "target")}
    vocabulary = object.__new__(MarianVocabulary)
    markers = {"</s>": model.config.eos, "<pad>": model.config.pad}
    vocabulary.files, vocabulary.source_ids, vocabulary.target_ids = files, {"a": 1, **markers}, {"b": 2, **markers}
    to_marian(model, vocabulary, tmp_path / "two")
    again = json.loads((tmp_path / "two" / "config.json").read_text())
    same = set(interop._MARIAN_FIELDS.values()) - {"dropout"}
    assert {key: again[key] for key in same} == {key: about[key] for key in same}
    source, target = sources(), torch.randint(1, 58, (7, 9))
    target[:, 0] = model.config.bos
    with torch.no_grad():
        said = [i for i in range(model.config.vocab) if i != model.config.pad]
        expected = model(source, target)[..., said].log_softmax(-1)
        found = from_marian(tmp_path / "two")(source, target)[..., said].log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("decoder", [1, 3])
def test_stacks_of_unequal_depth_pass_both_ways(trained, tmp_path, decoder):
    theirs = published(tmp_path / "given", decoder_layers=decoder)
    ours = from_marian(tmp_path / "given")
    assert (ours.config.N, ours.config.N_decoder) == (SIZES["layers"], None if decoder == SIZES["layers"] else decoder)
    source, target = sources(), torch.randint(1, 58, (7, 9))
    target[:, 0] = ours.config.bos
    with torch.no_grad():
        made = theirs(input_ids=source, attention_mask=(source != ours.config.pad).long(), decoder_input_ids=target).logits
        torch.testing.assert_close(ours(source, target), made, rtol=0, atol=1e-5)
    model = Transformer(replace(trained[0].config, N=2, N_decoder=decoder)).eval()
    to_marian(model, trained[1], tmp_path / "made")
    assert len(from_marian(tmp_path / "made").decoder.layers) == decoder


@pytest.mark.parametrize("change", [{"norm": "pre"}, {"positions": "learned"}, {"d_k": 3}, {"final_norm": True}], ids=str)
def test_what_has_no_counterpart_there_is_named(trained, tmp_path, change):
    model = Transformer(replace(trained[0].config, **change))
    with pytest.raises(ValueError, match=f"must have {list(change)[0]}="):
        to_marian(model, trained[1], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(TypeError, match="Subwords or MarianVocabulary, got Words"):
        to_marian(trained[0], Words(["a"]), tmp_path / "new")
    separate = Transformer(replace(trained[0].config, source_vocab=trained[0].config.vocab))
    with pytest.raises(ValueError, match="source_vocab"):
        to_marian(separate, trained[1], tmp_path / "new")


# ---- torch and ONNX


@pytest.mark.parametrize("norm,final,activation", [("post", False, "relu"), ("pre", True, "gelu"), ("post", True, "swish")])
@pytest.mark.parametrize("decoder", [None, 1, 3])
def test_torch_gives_the_same_and_gives_it_back(norm, final, activation, decoder):
    torch.manual_seed(0)
    config = Config(N=2, N_decoder=decoder, d_model=22, d_ff=13, h=11, vocab=17, bias=True, norm=norm, final_norm=final,
                    activation=activation, P_drop=0.2, P_drop_attention=0.3, P_drop_ffn=0.4)
    ours = Transformer(config).eval()
    for p in ours.parameters():
        p.data += 0.3 * torch.randn_like(p)
    theirs = to_torch(ours)
    source, target = torch.randint(4, 17, (3, 7)), torch.randint(4, 17, (3, 5))
    source[1, 4:] = 0
    x, y = ours.embed(ours.source_embedding, source), ours.embed(ours.target_embedding, target)
    hidden = source == 0
    made = theirs(x, y, tgt_mask=torch.ones(5, 5, dtype=torch.bool).triu(1),
                  src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    torch.testing.assert_close(ours.target_embedding.logits(made), ours(source, target))
    again = from_torch(theirs, vocab=17)
    assert again.config == config and not again.training
    again.target_embedding.load_state_dict(ours.target_embedding.state_dict())
    assert torch.equal(again(source, target), ours(source, target))
    assert to_torch(ours.train()).training and from_torch(theirs.train(), vocab=17).training


@pytest.mark.parametrize("write", ["marian", "torch", "onnx"])
def test_only_a_transformer_of_its_own_configuration_goes_out(write, tmp_path):
    send = {"marian": lambda model: to_marian(model, Words("ab"), tmp_path / "out"), "torch": to_torch,
            "onnx": lambda model: to_onnx(model, tmp_path / "out")}[write]
    with pytest.raises(TypeError, match="model must be a Transformer, not RecurrentSeq2Seq"):
        send(RecurrentSeq2Seq(RecurrentConfig(vocab=6, d_model=8)))
    with pytest.raises(TypeError, match="model must be a Transformer, not MaskedModel"):
        send(MaskedModel(replace(TINY, N=1, vocab=6)))
    gated = Transformer(replace(TINY, N=1, vocab=6))
    gated.encoder.layers[0].feed_forward = GatedFeedForward(TINY.d_model, TINY.d_ff)
    if write != "onnx":  # which traces what is there
        with pytest.raises(ValueError, match="not what its configuration makes"):
            send(gated)
    assert not (tmp_path / "out").exists()


def test_a_compiled_model_goes_out_as_it_is():
    model = Transformer(replace(TINY, N=1, vocab=6))
    sent = to_torch(torch.compile(model))
    assert torch.equal(sent.encoder.layers[0].linear1.weight, model.encoder.layers[0].feed_forward.W_1.weight)


def test_a_compiled_model_becomes_graphs(tmp_path):
    model = Transformer(replace(TINY, N=1, vocab=6))
    for name, compiled in (("whole", torch.compile(model)), ("steps", compile_steps(model, "eager"))):
        to_onnx(compiled, tmp_path / name)
        assert {path.suffix for path in (tmp_path / name).iterdir()} >= {".onnx"}


@pytest.mark.skipif(not _can_pack(), reason="nothing can be packed here")
def test_a_packed_copy_becomes_no_graph(tmp_path):
    with pytest.raises(ValueError, match="^model must be the model itself, not a packed copy"):
        to_onnx(packed(Transformer(replace(TINY, N=1, vocab=6))), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_torch_cannot_say_is_refused():
    with pytest.raises(TypeError, match="nn.Transformer, got Linear"):
        from_torch(nn.Linear(2, 2), 5)
    uneven = partial(nn.Transformer, 8, 2, dim_feedforward=4)
    layer = partial(nn.TransformerDecoderLayer, 8, dim_feedforward=4, batch_first=True)
    others = [layer(2, activation="gelu"), layer(2, norm_first=True), layer(2, layer_norm_eps=0.5), layer(4), layer(2, dropout=0.3)]
    others = [uneven(1, custom_decoder=nn.TransformerDecoder(other, 1, nn.LayerNorm(8))) for other in others]
    others.append(uneven(1, custom_decoder=nn.TransformerDecoder(layer(2), 1, nn.LayerNorm(8, 0.5))))
    others += [uneven(1, 1, custom_encoder=nn.Identity()), uneven(1, 1, custom_decoder=nn.Identity())]
    others[-1].decoder.layers, others[-1].decoder.norm = nn.ModuleList([nn.Identity()]), nn.LayerNorm(8)
    for theirs in (uneven(1, 1, bias=False), uneven(1, 1, activation=torch.tanh), *others):
        with pytest.raises(ValueError, match="^theirs must have"):
            from_torch(theirs, 5)
    with pytest.raises(ValueError, match="^theirs decides N, P_drop: leave that out$"):
        from_torch(nn.Transformer(16, 2, 1, 1, 16, batch_first=True), 17, P_drop=0.0, N=1, pad=0)
    with pytest.raises(ValueError, match="^theirs decides d_k: leave that out$"):
        from_torch(nn.Transformer(16, 2, 1, 1, 16, batch_first=True), 17, d_k=3)
    with pytest.raises(ValueError, match="d_k=3"):
        to_torch(Transformer(replace(TINY, d_k=3)))


class Doubled(nn.TransformerEncoder):
    def forward(self, src, *given, **more):
        return super().forward(2 * src, *given, **more)


class OtherLayer(nn.TransformerDecoderLayer):
    def forward(self, tgt, *given, **more):
        return -super().forward(tgt, *given, **more)


ATTENTION = partial(nn.MultiheadAttention, 32, batch_first=True)
CHANGES = {  # in one layer of the stack, or in all: what is then said
    "other heads": ("decoder", "multihead_attn", lambda: ATTENTION(2, 0.1), "num_heads=4 in decoder.layers.0.multihead_attn, got 2"),
    "other dropout of a cross-attention": ("decoder", "multihead_attn", lambda: ATTENTION(4, 0.3), "dropout=0.1 in decoder.layers.0.multihead_attn, got 0.3"),
    "zeros": ("encoder", "self_attn", lambda: ATTENTION(4, 0.1, add_zero_attn=True), "add_zero_attn=False in encoder.layers.0.self_attn, got True"),
    "one more key": ("encoder", "self_attn", lambda: ATTENTION(4, 0.1, add_bias_kv=True), r"bias_k.shape=None in encoder.layers.0.self_attn, got \(1, 1, 32\)"),
    "narrow keys": ("decoder", "multihead_attn", lambda: ATTENTION(4, 0.1, kdim=16, vdim=16), r"in_proj_weight.shape=\(96, 32\) in decoder.layers.0.multihead_attn"),
    "eps of norm2": ("encoder", "norm2", lambda: nn.LayerNorm(32, 0.5), "eps=1e-05 in encoder.layers.0.norm2, got 0.5"),
    "eps of norm3": ("decoder", "norm3", lambda: nn.LayerNorm(32, 0.5), "eps=1e-05 in decoder.layers.0.norm3, got 0.5"),
    "dropout2": ("encoder", "dropout2", lambda: nn.Dropout(0.9), "p=0.1 in encoder.layers.0.dropout2, got 0.9"),
    "dropout3": ("decoder", "dropout3", lambda: nn.Dropout(0.9), "p=0.1 in decoder.layers.0.dropout3, got 0.9"),
    "no norm1": ("encoder", "norm1", nn.Identity, "torch's own LayerNorm as encoder.layers.0.norm1, got Identity"),
    "no norm3": ("decoder", "norm3", nn.Identity, "torch's own LayerNorm as decoder.layers.0.norm3, got Identity"),
    "no self-attention": ("decoder", "self_attn", nn.Identity, "torch's own MultiheadAttention as decoder.layers.0.self_attn, got Identity"),
    "no bias": ("encoder", "linear2", lambda: nn.Linear(64, 32, bias=False), r"bias.shape=\(32,\) in encoder.layers.0.linear2, got None"),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stack, name, make, said", CHANGES.values(), ids=CHANGES)
def test_every_part_of_every_layer_of_torchs_is_read(stack, name, make, said, last):
    theirs = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    for layer in getattr(theirs, stack).layers[last:]:
        setattr(layer, name, make())
    with pytest.raises(ValueError, match="^theirs must have " + said.replace("layers.0", f"layers.{last:d}")):
        from_torch(theirs, 50)


def test_a_subclass_of_torchs_which_may_compute_otherwise_is_refused():
    theirs = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    theirs.encoder.__class__ = Doubled
    with pytest.raises(ValueError, match="^theirs must have torch's own TransformerEncoder as encoder, got Doubled$"):
        from_torch(theirs, 50)
    theirs = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)
    theirs.decoder.layers[1].__class__ = OtherLayer
    with pytest.raises(ValueError, match="own TransformerDecoderLayer as decoder.layers.1, got OtherLayer$"):
        from_torch(theirs, 50)


def test_norms_at_the_end_of_torchs_stacks_need_what_ours_have():
    for make, said in ((partial(nn.LayerNorm, 32, bias=False), r"bias.shape=\(32,\) in encoder.norm, got None"), (nn.Identity, "LayerNorm as encoder.norm, got Identity")):
        theirs = nn.Transformer(32, 4, 1, 1, 64)
        theirs.encoder.norm, theirs.decoder.norm = make(), make()
        with pytest.raises(ValueError, match=f"^theirs must have .*{said}$"):
            from_torch(theirs, 50)
    theirs = nn.Transformer(32, 4, 1, 1, 64)
    theirs.encoder.layers = nn.ModuleList()
    with pytest.raises(ValueError, match="^theirs must have a layer in each"):
        from_torch(theirs, 50)


@pytest.mark.parametrize("module, name", [(nn.ReLU(), "relu"), (nn.GELU(), "gelu"), (nn.SiLU(), "swish")])
def test_an_activation_of_torchs_may_be_a_module(module, name):
    torch.manual_seed(0)
    theirs = nn.Transformer(32, 4, 1, 2, 64, activation=module, batch_first=True).eval()
    if name != "relu" and theirs.decoder.layers[0].activation is F.relu:  # torch 2.13 forgets the module as it copies a layer
        with pytest.raises(ValueError, match=f"^theirs must have activation={name} in decoder.layers.0, got relu$"):
            from_torch(theirs, 50)
    for layer in theirs.decoder.layers:
        layer.activation = module
    ours = from_torch(theirs, 50)
    assert ours.config.activation == name
    x, y = torch.randn(2, 4, 32), torch.randn(2, 3, 32)
    made = ours.decoder(y, ours.encoder(x), torch.ones(3, 3).tril().bool())
    torch.testing.assert_close(made, theirs(x, y, tgt_mask=torch.ones(3, 3).triu(1).bool()))


@pytest.mark.parametrize("module", [nn.GELU("tanh"), nn.Tanh(), nn.Sequential(nn.ReLU(), nn.Tanh()), type("Mine", (nn.ReLU,), {})()], ids=str)
def test_another_activation_of_torchs_is_refused(module):
    with pytest.raises(ValueError, match="^theirs must have one of relu, gelu, swish, got .*$"):
        from_torch(nn.Transformer(32, 4, 1, 1, 64, activation=module), 50)
    theirs = nn.Transformer(32, 4, 1, 1, 64)
    theirs.decoder.layers[0].activation = module
    with pytest.raises(ValueError, match="^theirs must have one of relu, gelu, swish, got .*$"):
        from_torch(theirs, 50)


def test_copies_of_double_precision_lose_no_digit():
    model = Transformer(replace(TINY, vocab=17, bias=True)).double()
    for p in model.parameters():
        p.data += torch.randn_like(p)
    theirs = to_torch(model)
    again = from_torch(theirs, 17)
    for name, p in again.state_dict().items():
        assert "embedding" in name or torch.equal(p, model.state_dict()[name]), name


def test_an_attention_that_the_others_lack_is_not_exported(trained, tmp_path):
    model = Transformer(trained[0].config, lambda Q, K, V, mask=None: scaled_dot_product_attention(2 * Q, K, V, mask))
    for export in (to_torch, partial(to_marian, vocabulary=trained[1], folder=tmp_path / "made")):
        with pytest.raises(ValueError, match="attention is not scaled_dot_product_attention"):
            export(model)


@pytest.mark.parametrize("search", [{"beam": 0}, {"beam": -1}, {"beam": 1.5}, {"beam": 2, "alpha": 1000.0}], ids=str)
def test_a_published_search_that_makes_no_sense_is_refused(search, tmp_path):
    vocabulary_folder(tmp_path, "unigram", False)
    published(tmp_path, vocab_size=len(json.loads((tmp_path / "vocab.json").read_text())))
    with pytest.raises(ValueError, match="^(beam|penalty) must be"):
        load_marian(tmp_path, kind=PublishedTranslator).translate(["The man sleeps."], **search)


def test_a_vocabulary_of_another_published_model_is_not_written(trained, tmp_path):
    (tmp_path / "theirs").mkdir()
    vocabulary_folder(tmp_path / "theirs", "unigram", False)
    size = len(json.loads((tmp_path / "theirs" / "vocab.json").read_text()))
    published(tmp_path / "theirs", vocab_size=size)
    theirs = load_marian(tmp_path / "theirs")
    for change, said in (({"vocab": size - 1}, f"^the vocabulary leaves the model's 0..{size - 2}$"), ({"eos": 2}, "^for </s> and <pad> the vocabulary has 0")):
        with pytest.raises(ValueError, match=said):
            to_marian(Transformer(replace(theirs.model.config, **{"pad": 1, "bos": 1, "unk": 3, **change})), theirs.vocabulary, tmp_path / "made")
    assert not (tmp_path / "made").exists()


GRAPHS = [
    {},
    {"N_decoder": 1},
    {"source_vocab": 13, "output_bias": True, "bias": True, "activation": "swish"},
    {"norm": "pre", "final_norm": True, "positions": "learned", "max_positions": 40, "d_k": 3, "d_v": 7},
]


@pytest.mark.parametrize("change", GRAPHS, ids=str)
def test_onnx_computes_the_same_for_every_shape(tmp_path, change):
    torch.manual_seed(0)
    model = Transformer(replace(TINY, vocab=17, d_model=14, h=7, d_ff=11, **change)).eval()
    c = model.config
    model.train().double()  # the graphs are of float32, for searching
    to_onnx(model, tmp_path)
    assert model.training and {p.dtype for p in model.parameters()} == {torch.float64}
    model.eval().float()
    encoder, step = (onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("encoder", "step"))
    past, memory, _ = interop._graph_names(c.decoder_layers)
    for B, S in ((5, 7), (1, 1), (3, 11)):
        source, target = torch.randint(4, 13, (B, S)), torch.randint(4, 17, (B, 6))
        source[-1, S // 2 + 1 :] = 0
        kept = dict(zip(memory, encoder.run(None, {"source": source.numpy()})))
        kept |= {name: np.zeros((B, c.h, 0, c.key_width if name.endswith("K") else c.value_width), np.float32) for name in past}
        with torch.no_grad():
            expected = model(source, target).numpy()
        for t in range(6):
            logits, *now = step.run(None, {"ids": target[:, t].numpy(), "source": source.numpy(), **kept})
            kept |= dict(zip(past, now))
            np.testing.assert_allclose(logits, expected[:, t], atol=1e-5)


def test_shape_comments_hold(tmp_path):
    published(tmp_path)
    with checked(interop) as seen:
        model = from_marian(tmp_path)
        how = _Generation(beam=3, max_len=4, forced_eos=True, forbidden=(5,))
        _published_search(model, sources(), how)
        greedy(_Guided(model, how), sources(), 4)
        assert interop._feature_order(6).tolist() == [0, 2, 4, 1, 3, 5]
        twin = interop._with_biases(model)
        interop._start_from_zero(twin)
        vocabulary_folder(tmp_path, "unigram", False)
        table = json.loads((tmp_path / "vocab.json").read_text())
        published(tmp_path, vocab_size=len(table))
        load_marian(tmp_path, kind=PublishedTranslator).translate(["The man sleeps."], beam=2)
        plain, source, ids = interop._traceable(model), sources(), torch.zeros(7, dtype=torch.long)
        state = plain.start(source)
        flat = [x for cache in (*state.caches, *state.memory) for x in (cache.K, cache.V)]
        interop._StepGraph(plain)(ids, source, *flat)
    assert not unseen(seen, interop)


# ---- what is damaged, or made to do damage


DAMAGED = {
    "pad": ({"pad_token_id": 3}, "for </s> and <pad>"),
    "eos": ({"eos_token_id": 3}, "for </s> and <pad>"),
    "beams": ({"num_beams": 10**9}, "num_beams must lie in 1..1000"),
    "a text": ({"num_beams": "4"}, "num_beams must lie in"),
    "length": ({"max_length": 10**12}, "max_length must lie in"),
    "penalty": ({"length_penalty": math.nan}, "length_penalty must lie in"),
    "no token": ({"bad_words_ids": [[1000000]]}, "bad_words_ids must be lists of tokens below"),
    "no list": ({"bad_words_ids": {"a": 1}}, "bad_words_ids must be lists"),
    "width": ({"d_model": 11 * 2**20}, "must have the shape"),
    "rows": ({"vocab_size": 40_000_000}, "must have the shape"),
    "layers": ({"encoder_layers": 10**9, "decoder_layers": 10**9}, "layers cannot be made of"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    vocabulary_folder(folder, "unigram", False)
    published(folder, vocab_size=len(json.loads((folder / "vocab.json").read_text())))
    return folder


@pytest.mark.parametrize("name", DAMAGED)
def test_fields_of_wrong_kinds_and_sizes_are_refused_in_one_line(name, whole, tmp_path, capsys):
    change, message = DAMAGED[name]
    folder = shutil.copytree(whole, tmp_path / "model")
    for file in ("config.json", "generation_config.json"):
        about = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(about | {k: v for k, v in change.items() if k in about or file == "config.json"}))
    assert cli.main(["translate", "--model", str(folder), "--device", "cpu", "--input", os.devnull]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_vocabulary_in_which_all_is_one_is_refused(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "model")
    for value in (0, "0", None, [], True):
        (folder / "vocab.json").write_text(json.dumps(dict.fromkeys(json.loads((whole / "vocab.json").read_text()), value)))
        with pytest.raises(ValueError, match="needs a number of its own a piece"):
            MarianVocabulary(folder)


def test_weights_that_unpack_to_more_than_their_file_are_refused(tmp_path):
    import zipfile

    published(tmp_path)
    tensors = interop.load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    name = next(iter(tensors))
    torch.save(tensors | {name: torch.zeros(1, dtype=torch.half).expand(10**7, 10**3)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="claims 1000.* numbers, more than it has bytes"):
        from_marian(tmp_path)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.pkl", bytes(10**7))
    with pytest.raises(ValueError, match="unpacks to 10000000 bytes, more than it has"):
        from_marian(tmp_path)


def test_marian_weights_that_are_no_numbers_end_the_search(whole):
    for kind in (interop.MarianTranslator, PublishedTranslator):
        translator = load_marian(whole, kind=kind)
        with torch.no_grad():
            translator.model.target_embedding.weight[:] = math.nan
        translator = kind(translator.model, translator.vocabulary, translator.how)
        for beam in (1, 2):
            with pytest.raises(FloatingPointError, match="logits are not finite"):
                translator.translate(["The man sleeps."], beam=beam)


@pytest.mark.parametrize("path", [PurePosixPath("Helsinki-NLP/opus-mt-en-de"), PureWindowsPath("Helsinki-NLP/opus-mt-en-de"), "Helsinki-NLP/opus-mt-en-de"])
def test_a_name_on_the_hub_is_one_on_every_system(path):
    assert interop._is_hub_name(path) and not interop._is_hub_name(type(path)("a/b/c"))


@pytest.mark.parametrize("path", ["./model/own", "model/own/", "model//own", "/model/own", "own"])
def test_a_path_that_is_written_as_one_is_no_name_on_the_hub(path):
    assert not interop._is_hub_name(path)


def test_a_published_model_is_searched_by_its_own_rules_unless_others_are_given(tmp_path, monkeypatch):
    vocabulary_folder(tmp_path, "unigram", False)
    published(tmp_path, vocab_size=len(json.loads((tmp_path / "vocab.json").read_text())))
    translator = load_marian(tmp_path, kind=PublishedTranslator)
    translator.how, seen = replace(translator.how, beam=3, power=0.9), []
    search = lambda batch, beam, alpha, k=0: seen.append((beam, alpha)) or [[([5], 0.0)] * 3] * len(batch)  # noqa: E731
    monkeypatch.setattr(translator, "search", search)
    translator.translate(["The man sleeps."])
    translator.translate(["The man sleeps."], beam=2, alpha=0.5)
    translator.n_best(["The man sleeps."], 2)
    assert seen == [(3, 0.9), (2, 0.5), (3, 0.9)]


def test_graphs_have_as_many_positions_as_are_told():
    plain = interop._traceable(Transformer(replace(TINY, N=1, vocab=6)))
    assert plain.positions.weight.shape == (1024, TINY.d_model)
    torch.testing.assert_close(plain.positions(torch.tensor([1023])), positional_encoding(torch.tensor([1023]), TINY.d_model))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_copies_of_the_shared_matrix_are_copies(side, tmp_path):
    published(tmp_path)
    tensors = interop.load_file(tmp_path / "model.safetensors")
    name = f"model.{side}.embed_tokens.weight"
    interop.save_file(tensors | {name: tensors["model.shared.weight"].clone()}, tmp_path / "model.safetensors")
    from_marian(tmp_path)
    interop.save_file(tensors | {name: torch.zeros(59, 22)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} differs from model.shared.weight"):
        from_marian(tmp_path)


def test_a_published_search_drops_nothing_and_leaves_the_mode(tmp_path):
    published(tmp_path)
    model, how = from_marian(tmp_path), _read_generation(tmp_path)
    wanted = _published_search(model, sources(), how)
    assert model.config.P_drop > 0
    assert _published_search(model.train(), sources(), how) == wanted and model.training


@pytest.mark.skipif(not decoding._int8_bits(), reason="torch has no products of 8-bit numbers here")
def test_int8_reaches_a_published_model(tmp_path):
    vocabulary_folder(tmp_path, "unigram", False)
    published(tmp_path, vocab_size=len(json.loads((tmp_path / "vocab.json").read_text())))
    made = [load_marian(tmp_path, int8=int8) for int8 in (False, True)]
    assert [one.int8 for one in made] == [False, True]


def test_further_fields_of_a_model_of_torchs():
    theirs = to_torch(Transformer(replace(TINY, N=1, vocab=17)))
    model = from_torch(theirs, 17, pad=3, unk=0, positions="learned", max_positions=5)
    assert (model.config.pad, model.config.positions, model.positions.weight.shape[0]) == (3, "learned", 5)


def test_unk_is_the_vocabularys(tmp_path):
    published(tmp_path)
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 5, "<pad>": 58}')
    assert from_marian(tmp_path).config.unk == 5
