""""Attention Is All You Need" (Vaswani et al., 2017) in one file: `python the_transformer.py pairs.tsv [STEPS]`
trains on pairs, a source, a tab and its translation on each line; then it translates standard input line by line.
Generated from book/the-hour.md by tools/weave.py: edit the page, not this file.
"""

import math
import random
import re
import sys

import torch
from torch import nn


def attention_weights(Q, K, mask):
    """The softmax of Eq. 1: how much each query attends to each key where the mask is True."""
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])  # (B, h, T, S)
    return scores.masked_fill(~mask, -1e9).softmax(-1)  # (B, h, T, S)


def attention(Q, K, V, mask):
    """Eq. 1: average the values by how well each key fits the query."""
    return attention_weights(Q, K, mask) @ V  # (B, h, T, d_v)


PAD, BOS, EOS, UNK = range(4)


def padding_mask(ids):
    """Everyone may attend to every word but padding."""
    return (ids != PAD)[:, None, None, :]  # (B, 1, 1, S)


def causal_mask(T, device=None):
    """Position t may attend to positions 0 to t."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()  # (T, T)


class MultiHeadAttention(nn.Module):
    """Attend h times side by side, each time through other projections (section 3.2.2)."""

    def __init__(self, d_model, h):
        super().__init__()
        self.h = h
        self.W_Q = nn.Linear(d_model, d_model, bias=False)  # all W_i^Q side by side
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)
        self.W_O = nn.Linear(d_model, d_model, bias=False)

    def split(self, x):
        return x.unflatten(-1, (self.h, -1)).transpose(1, 2)  # (B, h, T, d_k)

    def forward(self, x, memory, mask):
        Q = self.split(self.W_Q(x))  # (B, h, T, d_k)
        K = self.split(self.W_K(memory))  # (B, h, S, d_k)
        V = self.split(self.W_V(memory))  # (B, h, S, d_v)
        heads = attention(Q, K, V, mask)  # (B, h, T, d_v)
        return self.W_O(heads.transpose(1, 2).flatten(2))  # (B, T, d_model)


class FeedForward(nn.Module):
    """The same two-layer network at every position (section 3.3, Eq. 2)."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.W_1 = nn.Linear(d_model, d_ff)
        self.W_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.W_2(torch.relu(self.W_1(x)))  # (B, T, d_model)


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(change)) around every sub-layer (sections 3.1, 5.4)."""

    def __init__(self, d_model, P_drop):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=1e-6)
        self.dropout = nn.Dropout(P_drop)

    def forward(self, x, change):
        return self.norm(x + self.dropout(change))  # (B, T, d_model)


def positional_encoding(T, d_model, device=None):
    """Sines in the even features, cosines in the odd ones (section 3.5)."""
    speed = 10000 ** (-torch.arange(0, d_model, 2, device=device) / d_model)  # (d_model / 2,)
    angle = torch.arange(T, device=device)[:, None] * speed  # (T, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)  # (T, d_model)


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network (Figure 1, left)."""

    def __init__(self, d_model, h, d_ff, P_drop):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, h)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.add_norm = nn.ModuleList(AddNorm(d_model, P_drop) for _ in range(2))

    def forward(self, x, mask):
        x = self.add_norm[0](x, self.self_attention(x, x, mask))  # (B, S, d_model)
        return self.add_norm[1](x, self.feed_forward(x))  # (B, S, d_model)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward (Figure 1, right)."""

    def __init__(self, d_model, h, d_ff, P_drop):
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, h)
        self.cross_attention = MultiHeadAttention(d_model, h)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.add_norm = nn.ModuleList(AddNorm(d_model, P_drop) for _ in range(3))

    def forward(self, x, memory, causal, mask):
        x = self.add_norm[0](x, self.self_attention(x, x, causal))  # (B, T, d_model)
        x = self.add_norm[1](x, self.cross_attention(x, memory, mask))  # (B, T, d_model)
        return self.add_norm[2](x, self.feed_forward(x))  # (B, T, d_model)


class Transformer(nn.Module):
    """Figure 1: source and target in, a score for every possible next word out."""

    def __init__(self, vocab, N=2, d_model=96, h=4, d_ff=192, P_drop=0.0):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Parameter(torch.randn(vocab, d_model) / math.sqrt(d_model))
        self.dropout = nn.Dropout(P_drop)
        sizes = d_model, h, d_ff, P_drop
        self.encoder = nn.ModuleList(EncoderLayer(*sizes) for _ in range(N))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(N))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)  # as the paper's released code

    def embed(self, ids):
        x = self.embedding[ids] * math.sqrt(self.d_model)  # (B, T, d_model)
        return self.dropout(x + positional_encoding(ids.shape[1], self.d_model, ids.device))

    def encode(self, source):
        x = self.embed(source)  # (B, S, d_model)
        for layer in self.encoder:
            x = layer(x, padding_mask(source))  # (B, S, d_model)
        return x

    def decode(self, target, memory, source):
        x = self.embed(target)  # (B, T, d_model)
        causal = causal_mask(target.shape[1], target.device)  # (T, T)
        for layer in self.decoder:
            x = layer(x, memory, causal, padding_mask(source))  # (B, T, d_model)
        return x @ self.embedding.T  # (B, T, vocab)

    def forward(self, source, target):
        return self.decode(target, self.encode(source), source)  # (B, T, vocab)


class Vocabulary:
    """Words to numbers and back; both languages share one (section 5.1)."""

    def __init__(self, texts):
        words = {word for text in texts for word in self.split(text)}
        self.words = ["<pad>", "<bos>", "<eos>", "<unk>", *sorted(words)]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def split(self, text):
        return re.findall(r"[^\s.,?!]+|[.,?!]", text)

    def encode(self, text):
        return [*(self.ids.get(word, UNK) for word in self.split(text)), EOS]

    def decode(self, ids):
        words = " ".join(self.words[i] for i in ids if i > EOS)
        return re.sub(r" (?=[.,?!])", "", words)


def pad(rows):
    """Lists of numbers as one tensor, padding at the end."""
    L = max(map(len, rows))
    return torch.tensor([row + [PAD] * (L - len(row)) for row in rows])  # (B, L)


def batches(pairs, size=24):
    """Batches without end: source (B, S) and target (B, T + 1), beginning with BOS."""
    while pairs:
        pairs = sorted(pairs, key=lambda pair: len(pair[0] + pair[1]) + random.random())
        cuts = [pairs[i : i + size] for i in range(0, len(pairs), size)]
        for cut in random.sample(cuts, len(cuts)):
            sources, targets = zip(*cut)
            yield pad(sources), pad([[BOS, *target] for target in targets])


def smoothed_loss(logits, target, eps_ls=0.1):
    """Cross-entropy with label smoothing over all tokens but padding (section 5.4)."""
    log_p = logits.log_softmax(-1)  # (B, T, vocab)
    right = log_p.gather(-1, target[..., None])[..., 0]  # (B, T)
    loss = -(1 - eps_ls) * right - eps_ls * log_p.mean(-1)  # (B, T)
    return loss[target != PAD].mean()


def learning_rate(step, d_model, warmup, rate=1.0):
    """Eq. 3 times a factor: up in a line, then down with the inverse root of the step."""
    return rate * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


STEPS, WARMUP, RATE = 2400, 300, 0.6


def train(model, pairs, steps=STEPS, warmup=WARMUP, rate=RATE):
    """Train on encoded pairs as in section 5; yields each step and its loss.

    At its end, the model gets the mean of its last five sets of weights.
    """
    constants = {"betas": (0.9, 0.98), "eps": 1e-9}
    adam = torch.optim.Adam(model.parameters(), **constants, fused=True)
    device = next(model.parameters()).device
    apart = max(1, steps // 24)  # steps between two sets of weights
    last = []
    for step, (source, target) in zip(range(1, steps + 1), batches(pairs)):
        model.train()  # dropout on; greedy, below, switches it off
        lr = learning_rate(step, model.d_model, warmup, rate)
        adam.param_groups[0]["lr"] = lr
        source, target = source.to(device), target.to(device)
        loss = smoothed_loss(model(source, target[:, :-1]), target[:, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step > steps - 5 * apart and (steps - step) % apart == 0:
            last.append([p.detach().clone() for p in model.parameters()])
        yield step, loss.item()
    for p, *found in zip(model.parameters(), *last):
        p.data.copy_(torch.stack(found).mean(0))  # as section 6.1 does


@torch.no_grad()
def greedy(model, source):
    """Write the likeliest next word until every sentence has ended."""
    limit = (source != PAD).sum(1, keepdim=True) + 50  # the paper: each input's length + 50
    memory = model.eval().encode(source)  # (B, S, d_model)
    target = torch.full_like(source[:, :1], BOS)  # (B, 1)
    ended = torch.zeros_like(target, dtype=torch.bool)  # (B, 1)
    while not ended.all():
        logits = model.decode(target, memory, source)[:, -1:]  # (B, 1, vocab)
        word = logits.argmax(-1).masked_fill(ended, PAD)  # (B, 1)
        target = torch.cat([target, word], 1)
        ended = ended | (word == EOS) | (target.shape[1] > limit)
    return target[:, 1:].tolist()


def translate(model, vocabulary, sentences):
    """Sentences in, their translations out, fifty at a time."""
    rows = [vocabulary.encode(sentence) for sentence in sentences]
    device = next(model.parameters()).device
    written = []
    for i in range(0, len(rows), 50):
        written += greedy(model, pad(rows[i : i + 50]).to(device))
    return [vocabulary.decode(ids) for ids in written]


def main(path, steps=2400):
    """Train on a file of pairs; then translate standard input line by line."""
    with open(path, encoding="utf-8-sig") as file:
        texts = [line.rstrip("\n").split("\t")[:2] for line in file if "\t" in line]
    if not texts:
        sys.exit(f"{path} has no line of a source, a tab and a target")
    if not str(steps).isdecimal() or int(steps) == 0:
        sys.exit(f"the number of steps is a whole number from 1, not {steps}")
    vocabulary = Vocabulary(text for pair in texts for text in pair)
    pairs = [(vocabulary.encode(a), vocabulary.encode(b)) for a, b in texts]
    model = Transformer(len(vocabulary.words)).to("cuda" if torch.cuda.is_available() else "cpu")
    for step, loss in train(model, pairs, int(steps)):
        if step % 100 == 1 or step == int(steps):
            print(f"step {step}: loss {loss:.2f}", file=sys.stderr)
    for line in sys.stdin:
        print(*translate(model, vocabulary, [line]) if line.strip() else "", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
