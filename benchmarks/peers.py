"""What the benchmarks share: other implementations with the weights of one of our models, and taking turns.

Not a benchmark itself. The other libraries come with `pip install -e .[bench]`.
"""

import ctypes
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from annotated.decoding import beam_search, greedy
from annotated.embedding import positional_encoding
from annotated.interop import _marian_about, _marian_tensors, _with_biases, to_torch
from annotated.multihead import MultiHeadAttention
from annotated.optimization import label_smoothed_loss
from annotated.transformer import Transformer


@torch.inference_mode()
def of_transformers(model, tokenizer, batch, lines, sort=False, bar=None, **search):
    """Translations by `transformers`, a batch of lines at a time, the longest first if asked.

    bar names a progress bar; search holds the settings of `generate` that are not the model's own.
    """
    order, outputs = list(range(len(lines))), [""] * len(lines)
    if sort:
        order.sort(key=lambda i: len(lines[i]), reverse=True)
    for i in tqdm(range(0, len(order), batch), desc=bar, unit="batch", disable=not bar):
        rows = order[i : i + batch]
        inputs = tokenizer([lines[row] for row in rows], return_tensors="pt", padding=True)
        made = model.generate(**inputs, do_sample=False, **search)
        for row, text in zip(rows, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
            outputs[row] = text
    return outputs


def keep_memory():
    """Keep memory from call to call, for all sides alike: none waits for the system's pages. True where it can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    options = (-3, 1 << 30), (-1, (1 << 31) - 1)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    return bool(mallopt) and all([mallopt(option, value) for option, value in options])


def update(model, adam, source, target):
    """One update by chapter 9's loss, the same for every implementation."""
    adam.zero_grad()
    label_smoothed_loss(model(source, target[:, :-1]), target[:, 1:]).backward()
    adam.step()


def of_ours(model, length, source, beam):
    """Outputs of exactly this length by one of our models that never says eos."""
    if beam == 1:
        return greedy(model, source, max_len=length)
    return beam_search(model, source, beam, alpha=0.0, max_len=length)


@torch.inference_mode()
def of_marian(model, length, source, beam):
    """Outputs of exactly this length by a MarianMTModel."""
    lengths = {"min_new_tokens": length, "max_new_tokens": length}
    rules = {"num_beams": beam, "do_sample": False, **({"length_penalty": 0.0} if beam > 1 else {})}
    made = model.generate(source, attention_mask=source != model.config.pad_token_id, **lengths, **rules)
    return [row[1 : 1 + length].tolist() for row in made]


def take_turns(functions, rounds, text):
    """Run each function once without counting, then rounds times in turn.

    Returns:
        name -> list of seconds.
    """
    times = {name: [] for name in functions}
    for number in tqdm(range(rounds + 1), desc=text, unit="round"):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            if number:
                times[name].append(time.perf_counter() - began)
    return times


def summary(times, ours="ours"):
    """Median and spread of each side in seconds, and how many times as long as ours it takes, round by round."""
    rows = {}
    for name, seconds in times.items():
        ratios = [theirs / mine for theirs, mine in zip(seconds, times[ours], strict=True)]
        rows[name] = {
            "seconds": [round(value, 4) for value in seconds],  # round by round
            "median": round(statistics.median(seconds), 4), "least": round(min(seconds), 4),
            "most": round(max(seconds), 4), "times as long as ours": round(statistics.median(ratios), 3),
            "least ratio": round(min(ratios), 3), "greatest ratio": round(max(ratios), 3), "rounds": len(seconds),
        }
    return rows


def matrix_rate(shapes, seconds=4.0, multiply=torch.nn.functional.linear):
    """What multiply(a, b), a @ b.T, reaches here in float32, in operations a second, on products of these shapes."""
    done = spent = 0.0
    for rows, inner, columns in shapes:
        a, b = torch.randn(rows, inner), torch.randn(columns, inner)
        multiply(a, b)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / len(shapes):
            multiply(a, b)
            count += 1
        spent += time.perf_counter() - began
        done += 2.0 * rows * inner * columns * count
    return done / spent


class Endless:
    """Mixed into what has `step`: never says eos, so that every output has the full length."""

    def step(self, ids, state):
        logits, state = super().step(ids, state)
        logits[:, self.config.eos] = -math.inf
        return logits, state


class EndlessTransformer(Endless, Transformer):
    pass


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with our weights, and with the embeddings and positions that it leaves to its user."""

    def __init__(self, ours):
        super().__init__()
        self.config = c = ours.config
        # Torch drops attention weights and units of the feed-forward network, too, wherever it drops.
        twin = Transformer(replace(c, P_drop_attention=c.P_drop, P_drop_ffn=c.P_drop))
        twin.load_state_dict(ours.state_dict())
        self.transformer = to_torch(twin)
        self.embedding = nn.Embedding.from_pretrained(ours.source_embedding.weight.detach().clone(), freeze=False)
        self.register_buffer("positions", positional_encoding(torch.arange(c.max_positions), c.d_model))
        self.dropout = nn.Dropout(c.P_drop)

    def embed(self, ids):
        return self.dropout(self.embedding(ids) * self.config.d_model**0.5 + self.positions[: ids.shape[1]])

    def forward(self, source, target):
        padding = source == self.config.pad
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        x = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=causal, src_key_padding_mask=padding,
            memory_key_padding_mask=padding, tgt_is_causal=True,
        )
        return x @ self.embedding.weight.T


class X(nn.Module):
    """x-transformers' XTransformer with our weights, set to the paper's choices."""

    def __init__(self, ours):
        super().__init__()
        from x_transformers import XTransformer

        self.config = c = ours.config
        stack = dict(depth=c.N, heads=c.h, max_seq_len=c.max_positions, num_tokens=c.vocab, attn_dim_head=c.key_width)
        stack |= dict(pre_norm=False, ff_mult=c.d_ff / c.d_model, ff_custom_activation=nn.ReLU(), attn_flash=True)
        stack |= dict(emb_dropout=c.P_drop, attn_dropout=c.P_drop, ff_dropout=c.P_drop)
        sides = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in stack.items()}
        self.model = XTransformer(dim=c.d_model, tie_token_emb=True, **sides)
        decoder = self.model.decoder.net
        del decoder.to_logits  # XTransformer does not pass on its own option for the tied matrix
        decoder.to_logits = lambda x: x @ decoder.token_emb.emb.weight.T * c.d_model**-0.5
        x_weights(ours, self)

    def forward(self, source, target):
        mask = source != self.config.pad
        memory = self.model.encoder(source, mask=mask, return_embeddings=True)
        return self.model.decoder.net(target, context=memory, context_mask=mask)


def x_weights(ours, peer):
    """Copy our weights into x-transformers' layout; its embeddings hold the factor sqrt(d_model) themselves."""
    root = ours.config.d_model**0.5
    peer.model.encoder.token_emb.emb.weight.data = ours.source_embedding.weight.detach() * root
    for stack, name in ((peer.model.encoder, "encoder"), (peer.model.decoder.net, "decoder")):
        positions = positional_encoding(torch.arange(ours.config.max_positions), ours.config.d_model)
        stack.pos_emb.emb.weight = nn.Parameter(positions * root, requires_grad=False)
        blocks = [layer[1] for layer in stack.attn_layers.layers]
        for a in getattr(ours, name).layers:
            for attention in attentions(a):
                block = blocks.pop(0)
                for letter, matrix in (("to_q", "W_Q"), ("to_k", "W_K"), ("to_v", "W_V"), ("to_out", "W_O")):
                    getattr(block, letter).weight.data = getattr(attention, matrix).weight.detach().clone()
            ff = blocks.pop(0).ff
            ff[0][0].load_state_dict(a.feed_forward.W_1.state_dict())
            ff[2].load_state_dict(a.feed_forward.W_2.state_dict())


def attentions(layer):
    """The attentions of one of our layers, self before cross."""
    return [module for module in layer.children() if isinstance(module, MultiHeadAttention)]


def marian(ours):
    """transformers' MarianMTModel with our weights and our identifiers, free to end anywhere."""
    from transformers import MarianConfig, MarianMTModel

    twin, order = _with_biases(ours), list(range(ours.config.vocab))
    about, _ = _marian_about(twin.config, order)
    about |= {"forced_eos_token_id": None, "bad_words_ids": None}
    peer = MarianMTModel(MarianConfig(**about)).eval()
    loaded = peer.load_state_dict(_marian_tensors(twin, order), strict=False)
    if loaded.unexpected_keys:
        raise ValueError(f"MarianMTModel knows no {', '.join(loaded.unexpected_keys)}: another version?")
    peer.tie_weights()
    peer.generation_config.forced_eos_token_id = peer.generation_config.bad_words_ids = None
    return peer


def array(x):
    return x.detach().float().contiguous().numpy()


def ctranslate2_folder(ours, folder, positions=1024, eps_norm=None):
    """Write one of our models in CTranslate2's format; token i is called str(i)."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    c = ours.config
    spec = TransformerSpec.from_config(c.N, c.h, pre_norm=False, activation=Activation.RELU)
    table = array(positional_encoding(torch.arange(positions), c.d_model))
    shared = array(ours.source_embedding.weight)
    for name in ("encoder", "decoder"):
        stack, mine = getattr(spec, name), getattr(ours, name)
        embeddings = stack.embeddings[0] if name == "encoder" else stack.embeddings
        embeddings.weight, embeddings.multiply_by_sqrt_depth = shared, True
        stack.scale_embeddings = True
        stack.position_encodings.encodings = table
        for a, b in zip(mine.layers, stack.layer, strict=True):
            own, *cross = attentions(a)
            fill(b.self_attention.linear[0], [own.W_Q, own.W_K, own.W_V])
            fill(b.self_attention.linear[1], [own.W_O])
            for attention in cross:
                fill(b.attention.linear[0], [attention.W_Q])
                fill(b.attention.linear[1], [attention.W_K, attention.W_V])
                fill(b.attention.linear[2], [attention.W_O])
            fill(b.ffn.linear_0, [a.feed_forward.W_1])
            fill(b.ffn.linear_1, [a.feed_forward.W_2])
            norms = [b.self_attention.layer_norm, *([b.attention.layer_norm] if cross else []), b.ffn.layer_norm]
            for add_norm, norm in zip(a.add_norm, norms, strict=True):
                norm.gamma, norm.beta = array(add_norm.norm.gain), array(add_norm.norm.bias)
    spec.decoder.projection.weight = shared
    special = {c.pad: "<blank>", c.bos: "<s>", c.eos: "</s>", c.unk: "<unk>"}
    names = [special.get(i, str(i)) for i in range(c.vocab)]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.layer_norm_epsilon = eps_norm or c.eps_norm
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.validate()
    spec.save(str(folder))
    return names


class CTranslate2:
    """Translates with CTranslate2 in a process of its own, one kind of number in each.

    Its threads wait between two translations. In one process with torch's they make both libraries slower: torch's
    two threads then take nearly as long as one. Sending the lines to and fro counts as its time.
    """

    def __init__(self, model, kind, threads, device="cpu", **more):
        self.folder = tempfile.TemporaryDirectory()
        self.names = ctranslate2_folder(model, self.folder.name, **more)
        self.ids = {name: i for i, name in enumerate(self.names)}
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, spawn, _open_translator, (self.folder.name, kind, threads, device))

    def __call__(self, lines, **rules):
        """The best translation of each line, identifiers to identifiers."""
        pieces = [[self.names[i] for i in line] for line in lines]
        return [[self.ids[piece] for piece in made] for made in self.pool.submit(_best, pieces, rules).result()]


def _open_translator(folder, kind, threads, device):
    global _translator  # of this process
    import ctranslate2

    keep_memory()
    _translator = ctranslate2.Translator(folder, device=device, compute_type=kind, intra_threads=threads)


def _best(lines, rules):
    return [result.hypotheses[0] for result in _translator.translate_batch(lines, **rules)]


def fill(spec, linears):
    """Stack matrices and biases of torch's layers as CTranslate2 keeps them."""
    spec.weight = np.concatenate([linear.weight.detach().numpy() for linear in linears])
    zeros = [np.zeros(len(linear.weight), np.float32) for linear in linears]
    spec.bias = np.concatenate([z if linear.bias is None else linear.bias.detach().numpy()
                                for z, linear in zip(zeros, linears)])
