"""What the benchmarks share: other implementations with the weights of one of our models, and taking turns.

Not a benchmark itself. The other libraries come with `pip install -e .[bench]`.
"""

import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from annotated.data import replacing
from annotated.embedding import positional_encoding
from annotated.multihead import MultiHeadAttention
from annotated.training import provenance


def keep_memory():
    """Keep memory from call to call, for all sides alike, so that none waits for the system's pages."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(option, value)


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
            "median": round(statistics.median(seconds), 4), "least": round(min(seconds), 4),
            "most": round(max(seconds), 4), "times as long as ours": round(statistics.median(ratios), 3),
            "least ratio": round(min(ratios), 3), "greatest ratio": round(max(ratios), 3),
        }
    return rows


def matrix_rate(shapes, seconds=4.0):
    """What torch's float32 matrix product reaches here, in operations a second, on products of these shapes."""
    done = spent = 0.0
    for rows, inner, columns in shapes:
        a, b = torch.randn(rows, inner), torch.randn(columns, inner)
        a @ b.T
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / len(shapes):
            a @ b.T
            count += 1
        spent += time.perf_counter() - began
        done += 2.0 * rows * inner * columns * count
    return done / spent


def write_record(folder, scores, versions):
    """run.json and scores.json, each whole or not at all."""
    run = provenance(seed=0)
    run["versions"] |= versions
    write_files(folder, run, scores)


def write_files(folder, run, scores, indent=1):
    """The two files of a record that does more than take turns, each whole or not at all.

    Args:
        folder: of the record.
        run: becomes run.json; made before the work, so that date and commit are those of its beginning.
        scores: becomes scores.json.
        indent: of scores.json; None puts it on one line.
    """
    for name, content, spaces in (("run.json", run, 1), ("scores.json", scores, indent)):
        with replacing(Path(folder, name)) as fresh:
            fresh.write_text(json.dumps(content, indent=spaces) + "\n")


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with the embeddings and positions it leaves to its user."""

    def __init__(self, config):
        super().__init__()
        self.config, c = config, config
        self.embedding = nn.Embedding(c.vocab, c.d_model)
        self.register_buffer("positions", positional_encoding(torch.arange(c.max_positions), c.d_model))
        self.dropout = nn.Dropout(c.P_drop)
        self.transformer = nn.Transformer(
            c.d_model, c.h, c.N, c.N, c.d_ff, c.P_drop, layer_norm_eps=c.eps_norm, batch_first=True
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None  # post-norm needs none; ours has none

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


def torch_weights(ours, peer):
    """Copy our weights into torch's layout; biases that ours lacks become 0."""
    def attention(a, b):
        b.in_proj_weight.data = torch.cat([a.W_Q.weight, a.W_K.weight, a.W_V.weight]).detach().clone()
        b.out_proj.weight.data = a.W_O.weight.detach().clone()
        nn.init.zeros_(b.in_proj_bias)
        nn.init.zeros_(b.out_proj.bias)

    peer.embedding.weight.data = ours.source_embedding.weight.detach().clone()
    for name in ("encoder", "decoder"):
        for a, b in zip(getattr(ours, name).layers, getattr(peer.transformer, name).layers, strict=True):
            attention(a.self_attention, b.self_attn)
            if name == "decoder":
                attention(a.cross_attention, b.multihead_attn)
            b.linear1.load_state_dict(a.feed_forward.W_1.state_dict())
            b.linear2.load_state_dict(a.feed_forward.W_2.state_dict())


class X(nn.Module):
    """x-transformers' XTransformer, set to the paper's choices."""

    def __init__(self, config):
        super().__init__()
        from x_transformers import XTransformer

        self.config, c = config, config
        stack = dict(depth=c.N, heads=c.h, max_seq_len=c.max_positions, num_tokens=c.vocab, attn_dim_head=c.d_k)
        stack |= dict(pre_norm=False, ff_mult=c.d_ff / c.d_model, ff_custom_activation=nn.ReLU(), attn_flash=True)
        stack |= dict(emb_dropout=c.P_drop, attn_dropout=c.P_drop, ff_dropout=c.P_drop)
        sides = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in stack.items()}
        self.model = XTransformer(dim=c.d_model, tie_token_emb=True, **sides)
        decoder = self.model.decoder.net
        del decoder.to_logits  # XTransformer does not pass on its own option for the tied matrix
        decoder.to_logits = lambda x: x @ decoder.token_emb.emb.weight.T * c.d_model**-0.5

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


def marian(ours, positions=1024):
    """transformers' MarianMTModel, which has the paper's architecture; biases that ours lacks are 0."""
    from transformers import MarianConfig, MarianMTModel

    c = ours.config
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder")
             for name, value in (("layers", c.N), ("attention_heads", c.h), ("ffn_dim", c.d_ff))}
    config = MarianConfig(
        vocab_size=c.vocab, d_model=c.d_model, activation_function=c.activation, dropout=c.P_drop,
        scale_embedding=True, share_encoder_decoder_embeddings=True, max_position_embeddings=positions,
        pad_token_id=c.pad, bos_token_id=c.bos, eos_token_id=c.eos, decoder_start_token_id=c.bos,
        forced_eos_token_id=None, **sides,
    )
    peer = MarianMTModel(config).eval()
    peer.generation_config.forced_eos_token_id = peer.generation_config.bad_words_ids = None
    table = positional_encoding(torch.arange(positions), c.d_model)
    shared = ours.source_embedding.weight.detach().clone()
    peer.model.shared.weight.data = shared
    for name in ("encoder", "decoder"):
        stack = getattr(peer.model, name)
        stack.embed_positions.weight = nn.Parameter(table, requires_grad=False)
        stack.embed_tokens.weight.data = shared
        for a, b in zip(getattr(ours, name).layers, stack.layers, strict=True):
            blocks = [b.self_attn, b.encoder_attn] if name == "decoder" else [b.self_attn]
            norms = [b.self_attn_layer_norm, b.final_layer_norm]
            norms[1:1] = [b.encoder_attn_layer_norm] if name == "decoder" else []
            for attention, block in zip(attentions(a), blocks, strict=True):
                for letter, matrix in (("q_proj", "W_Q"), ("k_proj", "W_K"), ("v_proj", "W_V"), ("out_proj", "W_O")):
                    getattr(block, letter).weight.data = getattr(attention, matrix).weight.detach().clone()
                    nn.init.zeros_(getattr(block, letter).bias)
            b.fc1.load_state_dict(a.feed_forward.W_1.state_dict())
            b.fc2.load_state_dict(a.feed_forward.W_2.state_dict())
            for add_norm, norm in zip(a.add_norm, norms, strict=True):
                norm.weight.data = add_norm.norm.gain.detach().clone()
                norm.bias.data = add_norm.norm.bias.detach().clone()
    peer.lm_head.weight.data = shared
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


def fill(spec, linears):
    """Stack matrices and biases of torch's layers as CTranslate2 keeps them."""
    spec.weight = np.concatenate([linear.weight.detach().numpy() for linear in linears])
    zeros = [np.zeros(len(linear.weight), np.float32) for linear in linears]
    spec.bias = np.concatenate([z if linear.bias is None else linear.bias.detach().numpy()
                                for z, linear in zip(zeros, linears)])
