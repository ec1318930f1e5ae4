"""More answers to the exercises, each one easily told wrongly: by (chapter, exercise), those that are right and those that are not.

The right ones differ from the solution in their form, the wrong ones in one thing each.
"""

RIGHT = {
    ("01", 1): ["""
def box_regression(q, k, v, width):
    near = ((q[:, None] - k).abs() <= width).double()
    total = near.sum(-1, keepdim=True)
    return near @ v.double() / total.clamp(min=1)
"""],
    ("02", 1): ["""
def bilinear_attention(Q, K, V, W):
    scores = torch.einsum("btk,kl,bsl->bts", Q.double(), W.double(), K.double())
    return scores.softmax(-1) @ V.double()
"""],
    ("02", 3): ["""
def attention_in_pieces(Q, pieces):
    top, below, above = None, 0.0, 0.0
    for K, V in pieces:
        scores = (Q @ K.T / math.sqrt(Q.shape[-1])).double()
        highest = scores.amax(-1, keepdim=True)
        new = highest if top is None else torch.maximum(top, highest)
        old = 0.0 if top is None else (top - new).exp()
        p = (scores - new).exp()
        below, above, top = old * below + p.sum(-1, keepdim=True), old * above + p @ V.double(), new
    return above / below
"""],
    ("03", 3): ["""
def biased_attention(Q, K, V, bias):
    Q, K, V, bias = (x.double() for x in (Q, K, V, bias))
    hidden = bias == -math.inf
    scores = (Q @ K.mT / math.sqrt(Q.shape[-1]) + bias).masked_fill(hidden, -1e30)
    weights = scores.softmax(-1).masked_fill(hidden, 0.0)
    return weights @ V
"""],
    ("05", 1): ["""
def rms_norm(x, gain, eps=1e-6):
    B, T, d = x.shape
    out = torch.empty(B, T, d, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            row = x[b, t].double()
            out[b, t] = gain.double() * row / ((row @ row) / d + eps).sqrt()
    return out
"""],
    ("06", 1): ["""
def weight_gradient(upstream, ids, vocab):
    d = upstream.shape[-1]
    hot = torch.nn.functional.one_hot(ids, vocab).double()
    return torch.einsum("btv,btd->vd", hot, upstream.double()) * d**0.5
"""],
    ("06", 3): ["""
def rotate(x, positions):
    d = x.shape[-1]
    angles = positions[:, None].double() / 10000 ** (torch.arange(0, d, 2).double() / d)
    even, odd = x[:, 0::2].clone(), x[:, 1::2].clone()
    x[:, 0::2] = (angles.cos() * even + angles.sin() * odd).float()
    x[:, 1::2] = (angles.cos() * odd - angles.sin() * even).float()
    return x
""", """
def rotate(x, positions):
    d = x.shape[-1]
    angles = positions[:, None].double() / 10000 ** (torch.arange(0, d, 2).double() / d)
    even, odd = x[:, 0::2], x[:, 1::2]
    turned = angles.cos() * even + angles.sin() * odd, angles.cos() * odd - angles.sin() * even
    return torch.stack(turned, -1).flatten(-2)
"""],
    ("09", 1): ["""
def factor(peak, d_model, warmup):
    return peak * torch.tensor(float(d_model * warmup)).sqrt().item()
""", """
def factor(peak, d_model, warmup):
    return peak * torch.tensor(float(d_model * warmup)).sqrt()
"""],
    ("10", 1): ["""
def mean_loss(sums, tokens):
    return (torch.tensor(sums).sum() / sum(tokens)).item()
"""],
    ("10", 2): ["""
def accumulate(model, batches):
    model.zero_grad()
    total = tokens = 0
    for source, target in batches:
        logits = model(source, target[:, :-1])
        total = total + label_smoothed_loss(logits, target[:, 1:], reduction="sum")
        tokens = tokens + (target[:, 1:] != 0).sum()
    (total / tokens).backward()
""", """
def accumulate(model, batches):
    update(model, optimizer(model), list(batches))
"""],
    ("12", 1): ["""
def brevity(c, r):
    return torch.exp(torch.tensor(1 - r / c)).clamp(max=1).item()
"""],
    ("12", 3): ["""
def joint_perplexity(m, a, n, b):
    return torch.tensor((m * a + n * b) / (m + n)).exp().item()
"""],
    ("14", 3): ["""
def streamed(blocks):
    m, total, out = None, 0.0, 0.0
    for s, v in blocks:
        s, v = s.double(), v.double()
        new = s.max() if m is None else torch.maximum(m, s.max())
        old = 0.0 if m is None else (m - new).exp()
        p = (s - new).exp()
        total, out, m = total * old + p.sum(), out * old + p @ v, new
    return out / total
"""],
    ("15", 2): ["""
def days(operations, tflops, share):
    return torch.tensor(operations / (tflops * 1e12 * share)).item() / 86400
"""],
    ("17", 1): ["""
def narrow_values(d_v):
    return Variation({"d_k": 64, "d_v": d_v})
"""],
    ("17", 2): ["""
def fold(W_Q, W):
    return W.double().T @ W_Q.double()
""", """
def fold(W_Q, W):
    return W_Q.copy_(W.T @ W_Q)
"""],
    ("19", 1): ["""
def weights_of(attention, Q, K):
    S = K.shape[-2]
    return attention(Q.double(), K.double(), torch.eye(S).double().expand(*K.shape[:-2], S, S))
"""],
}

WRONG = {
    ("00", 2): ["""
def epochs(steps, tokens, pairs, mean):
    return 100 * tokens / (pairs * mean)
"""],
    ("00", 3): ["""
def beaten(rows, name):
    (one,) = (row for row in rows if row["model"] == name)
    return [row["model"] for row in rows if row["en_de"] and row["flops_en_de"] and row is not one
            and row["en_de"] <= one["en_de"] and row["flops_en_de"] > one["flops_en_de"]]
""", """
def beaten(rows, name):
    return 5
"""],
    ("01", 3): ["""
def write(model, source, length):
    memory = model.encode(source)
    ids = torch.full((len(source), 1), 2)
    for _ in range(length):
        logits = model.decode(ids, memory, source)[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
    return ids[:, 1:]
"""],
    ("02", 2): ["""
def attention_backward(Q, K, V, G):
    weights = (Q @ K.mT / math.sqrt(Q.shape[-1])).softmax(-1)
    return None, None, weights.mT @ G
"""],
    ("02", 3): ["""
def attention_in_pieces(Q, pieces):
    below = above = 0.0
    for K, V in pieces:
        p = (Q @ K.T / math.sqrt(Q.shape[-1])).double().exp()
        below, above = below + p.sum(-1, keepdim=True), above + p @ V.double()
    return (above / below).float()
"""],
    ("03", 1): ["""
def leaks(f, ids, vocab):
    before = f(ids)
    for t in range(1, ids.shape[1]):
        other = ids.clone()
        other[:, t] = 5
        if not torch.equal(f(other)[:, :t], before[:, :t]):
            return True
    return False
""", """
def leaks(f, ids, vocab):
    before = f(ids)
    for t in range(1, ids.shape[1]):
        other = ids.clone()
        other[:, t] = (other[:, t] + 1) % vocab
        if not torch.equal(f(other)[:, [0, t - 1]], before[:, [0, t - 1]]):
            return True
    return False
"""],
    ("03", 3): ["""
def biased_attention(Q, K, V, bias):
    scores = Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1])
    hidden = bias.isneginf()
    weights = (scores + bias.masked_fill(hidden, -1e9)).softmax(-1).clone()
    weights[:, [t for t in range(bias.shape[0]) if hidden[t].all()]] = 0
    return weights @ V
""", """
def biased_attention(Q, K, V, bias):
    scores = (Q @ K.transpose(-2, -1) / math.sqrt(Q.shape[-1]) + bias).detach()
    return scores.softmax(-1).nan_to_num(0.0) @ V.detach()
"""],
    ("05", 1): ["""
def rms_norm(x, gain, eps=1e-6):
    return gain * x / (x.square().mean(-1, keepdim=True).sqrt() + eps)
"""],
    ("07", 1): ["""
def parameters(config):
    d, d_ff, wide = config.d_model, config.d_ff, config.h * (config.key_width + config.value_width)
    attention, network, norm = 2 * d * wide, 2 * d * d_ff + d_ff + d, 52
    layer = attention + network + 2 * norm
    return config.vocab * d + config.N * (2 * layer + attention + norm)
"""],
    ("07", 2): [f"""
{before}
def ladder(model, source, target):
    mask, causal = padding_mask(source), causal_mask(target.shape[1])
    x = model.embed(model.source_embedding, source)
    y = model.embed(model.target_embedding, target)
    for below, layer in zip(model.encoder.layers, model.decoder.layers):
        x = below(x, mask)
        y = layer(y, x, causal, mask)
        {after}
    return model.target_embedding.logits(model.decoder.norm(y))
""" for before, after in (("", "mask = None"), ("", "causal = torch.ones_like(causal)"), ("@torch.no_grad()", "pass"))],
    ("08", 2): ["""
def merge(parts, pair):
    out, i = [], 0
    while i < len(parts):
        if sorted(parts[i : i + 2]) == sorted(pair):
            out.append(parts[i] + parts[i + 1])
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out
"""],
    ("08", 3): ["""
def leaks(train, test):
    train, test = dict(train), dict(test)
    return ({*train} | {*train.values()}) & ({*test} | {*test.values()})
""", """
def leaks(train, test):
    return {text for pair in test for text in pair if text in str(train)}
"""],
    ("09", 2): ["""
def replaced(target, vocab, eps, generator):
    drawn = torch.randint(0, vocab + 1, target.shape, generator=generator)
    swapped = torch.rand(target.shape, generator=generator) < eps
    return torch.where(swapped, drawn, target)
""", """
def replaced(target, vocab, eps, generator):
    drawn = torch.randint(0, vocab, target.shape, generator=generator)
    swapped = torch.rand(target.shape, generator=generator) < eps
    target[swapped] = drawn[swapped]
    return target
"""],
    ("10", 2): [f"""
def accumulate(model, batches):
    {first}
    tokens = 0
    for source, target in batches:
        logits = model(source, target[:, :-1])
        loss = label_smoothed_loss(logits, target[:, 1:], reduction="sum")
        loss.backward()
        tokens += {count}
    for p in model.parameters():
        p.grad /= tokens
        {more}
""" for first, count, more in (
        ("pass", "(target[:, 1:] != 0).sum()", "pass"),
        ("model.zero_grad()", "target[:, 1:].numel()", "pass"),
        ("model.zero_grad()", "(target != 0).sum()", "pass"),
        ("model.zero_grad()", "len(target)", "pass"),
        ("model.zero_grad()", "(target[:, 1:] != 0).sum()", "p.data -= 1e-3 * p.grad"))] + ["""
def accumulate(model, batches):
    model.zero_grad()
    tokens = sum((target[:, 1:] != 0).sum() for _, target in batches)
    for source, target in batches:
        logits = model(source, target[:, :-1])
        (label_smoothed_loss(logits, target[:, 1:], reduction="sum") / tokens).backward()
""", """
def accumulate(model, batches):
    model.zero_grad()
    for made, (source, target) in enumerate(batches, 1):
        logits = model(source, target[:, :-1])
        label_smoothed_loss(logits, target[:, 1:]).backward()
    for p in model.parameters():
        p.grad /= made
"""],
    ("11", 2): [f"""
def sample(logits, temperature, generator):
    p = (logits / {divisor}).softmax(-1)
    return torch.multinomial(p, 1, generator={generator})[:, 0]
""" for divisor, generator in (("temperature**2", "generator"), ("temperature**0.5", "generator"),
                               ("temperature", "torch.Generator().manual_seed(0)"))] + ["""
def sample(logits, temperature, generator):
    return (logits / temperature + torch.randn(logits.shape, generator=generator)).argmax(-1)
"""],
    ("12", 2): [f"""
from collections import Counter
def precision(outputs, references, n):
    grams = lambda words: [{gram} for i in range(len(words) - n + 1)]
    hit = made = 0
    for o, r in zip(outputs, references):
        o, r = grams(o), grams(r)
        hit, made = hit + {hit}, made + len(o)
    return hit / made
""" for gram, hit in (("tuple(words[i : i + n])", "sum(a == b for a, b in zip(o, r))"),
                      ("tuple(words[i : i + n])", "len(set(o) & set(r))"),
                      ("frozenset(words[i : i + n])", "(Counter(o) & Counter(r)).total()"))],
    ("13", 1): ["""
def keeps_lines(translate):
    lines = ["b", "", "a"]
    return all([o] == translate([line]) for o, line in zip(translate(lines), lines))
"""],
    ("13", 2): [f"""
import re
def with_links(translate):
    def wrapped(lines):
        outputs = []
        hidden, links = [], []
        for line in lines:
            found = []
            def hide(match):
                found.append(match[0])
                return f"X{{len(found)}}"
            hidden.append(re.sub(r"{pattern}", hide, line))
            links.append(found)
        for text, found in zip(translate(hidden), links):
            {put_back}
            outputs.append(text)
        return outputs
    return wrapped
""" for pattern, put_back in (
        (r"(?<!\S)http\S*", 'for k in range(len(found), 0, -1): text = text.replace(f"X{k}", found[k - 1])'),
        (r"(?<!\S)http\S*", r'for k, link in enumerate(found, 1): text = re.sub(rf"\bX{k}\b", link, text)'),
        (r"(?<!\S)http\S*", r'text = re.sub(r"X(\d+)", lambda m: found[int(m[1]) - 1], text)'),
        (r"(?<!\S)http[\w:/.]*", r'text = re.sub(r"\bX(\d+)\b", lambda m: found[int(m[1]) - 1], text)'))],
    ("13", 3): ["""
def split(pairs, held):
    seen = {text for pair in pairs if held(pair[0]) for text in pair}
    for pair in pairs + pairs[::-1]:
        if seen & set(pair):
            seen |= set(pair)
    return [p for p in pairs if not seen & set(p)], [p for p in pairs if seen & set(p)]
"""],
    ("14", 2): ["""
def scales(local):
    return len(local) / sum(tokens for _, tokens in local)
"""],
    ("14", 3): [f"""
def streamed(blocks):
    m, total, out = torch.tensor({start}), 0.0, 0.0
    for s, v in blocks:
        new = torch.maximum(m, s.max())
        p = (s - new).exp()
        total, out, m = total * (m - new).exp() + p.sum(), out * (m - new).exp() + p @ v, new
    return out / total
""" for start in ("0.0", "-1000.0")] + ["""
def streamed(blocks):
    total = out = 0.0
    for s, v in blocks:
        p = s.double().exp()
        total, out = total + p.sum(), out + p @ v.double()
    return (out / total).float()
"""],
    ("15", 2): ["""
def days(operations, tflops, share):
    return 1 / (tflops * share)
"""],
    ("15", 3): ["""
def equal_updates(a, n, b):
    return int(n * (a / b))
"""],
    ("17", 2): ["""
def fold(W_Q, W):
    W.copy_(torch.eye(len(W)))
    return W_Q
"""],
    ("17", 3): [f"""
from statistics import mean, pstdev, stdev
def undecided(ours, base):
    d = [one - other for one, other in zip(ours, base)]
    table = {{1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}}
    return abs(mean(d)) <= {t} * {s}(d) / len(d) ** 0.5
""" for t, s in (("table[len(d)]", "stdev"), ("table[len(d) - 2]", "stdev"), ("table[len(d) - 1]", "pstdev"), ("2.776", "stdev"))],
    ("18", 1): ["""
def unlabelled(tree):
    for label in ("S", "NP", "VP", "SBAR", "ADJP"):
        tree = tree.replace(f"({label} ", "(X ")
    return tree
"""],
    ("18", 3): ["""
def left_branching(words, root="S", label="NP"):
    if len(words) == 1:
        return f"({root} (XX {words[0]}))"
    if len(words) == 2:
        return f"({root} (XX {words[0]}) (XX {words[1]}))"
    return f"({root} {left_branching(words[:-1], label)} (XX {words[-1]}))"
"""],
    ("19", 2): ["""
def keys_looked_at(weights):
    return torch.special.entr(weights).sum(-1).exp()
"""],
    ("20", 1): ["""
def above(logits, share):
    p = logits.softmax(-1)
    return torch.where(p > share * p.amax(-1, keepdim=True), logits, -math.inf)
"""],
    ("20", 3): ["""
def pool(attention, groups):
    made = GroupedQueryAttention(attention.d_model, attention.h, groups)
    with torch.no_grad():
        made.W_Q.weight.copy_(attention.W_Q.weight)
        made.W_O.weight.copy_(attention.W_O.weight)
        for name in ("W_K", "W_V"):
            wide = getattr(attention, name).weight
            d = attention.d_model // attention.h
            shared = wide.reshape(groups, -1, d, attention.d_model).mean(1).flatten(0, 1)
            getattr(made, name).weight.copy_(shared)
    return made
"""],
    ("21", 1): ["""
def drop_idle(attention):
    attention.W_K.bias = None
"""],
    ("21", 2): ["""
def fold_values(attention):
    with torch.no_grad():
        attention.W_O.bias += attention.W_O.weight @ attention.W_V.bias
        for name in "QKV":
            getattr(attention, f"W_{name}").bias.zero_()
"""],
    ("21", 3): ["""
def forbid(model, token):
    model.output_bias.bias.data[7] = -1e4
""", """
def forbid(model, token):
    model.output_bias.bias.data[token] *= 1e4
"""],
}
