"""Attention, seen.

Generated from book/19-figures.md by tools/tangle.py: edit the chapter, not this file.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annotated.attention import attention_weights
from annotated.data import Words, pad_batch, split_words
from annotated.decoding import _evaluating, _is_dot_product, greedy
from annotated.multihead import MultiHeadAttention
from annotated.transformer import Transformer

__all__ = [
    "attentions",
    "attention_maps",
    "Maps",
    "look",
    "heatmap",
    "viewer",
    "without_head",
    "links",
    "alignment_error",
]


_KINDS = {
    "encoder": ("encoder", "self_attention", "encoder self-attention"),
    "decoder": ("decoder", "self_attention", "decoder self-attention"),
    "cross": ("decoder", "cross_attention", "encoder-decoder attention"),
}


def _is_of(value, size):
    """Whether a value is a whole number from 0 to size - 1."""
    return isinstance(value, Integral) and 0 <= value < size


def attentions(model: Transformer, kind: str) -> list[MultiHeadAttention]:
    """The attention modules of one kind, from the first layer to the last (section 3.2.3).

    Args:
        model: its modules are returned, not copies.
        kind: "encoder", "decoder" or "cross".

    Raises:
        ValueError: there is no such kind.
        TypeError: the model has no such layers.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    stack, name, _ = _KINDS[kind]
    try:
        return [getattr(layer, name) for layer in getattr(model, stack).layers]
    except AttributeError:
        given = type(model).__name__
        raise TypeError(f"model must be a Transformer, not {given}") from None


@contextmanager
def _recording(model):
    """Inside, each call of the model adds its weights: kind -> (B, h, T, S), layer by layer.

    Cached decoding calls no whole layer and adds nothing.
    """
    seen: dict[str, list[Tensor]] = {kind: [] for kind in _KINDS}

    def hook(kind, module, inputs):
        x, memory, *mask = inputs
        Q = module.split(module.W_Q(x))  # (B, h, T, d_k)
        if isinstance(memory, tuple):  # chapter 14's joint projections have made them
            K = module.split(memory[0])  # (B, h, S, d_k)
        else:
            K, _ = module.keys_values(memory)  # (B, h, S, d_k)
        seen[kind].append(attention_weights(Q, K, *mask))

    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # it would not see the hooks
        for kind in _KINDS:
            for module in attentions(model, kind):
                handle = module.register_forward_pre_hook(partial(hook, kind))
                stack.callback(handle.remove)
        yield seen


def _check_scores(model):
    """Refuse a model of another attention, whose weights the hook would get wrong: ValueError."""
    for kind in _KINDS:
        for module in attentions(model, kind):
            if not _is_dot_product(module):
                raise ValueError("model must use scaled dot-product attention: the hook "
                                 "recomputes no other")


def attention_maps(model: Transformer, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """The attention weights of every head of a model (Figures 3 to 5).

    Args:
        model: of scaled dot-product attention, in whichever version.
        source: identifiers, (B, S), each sentence ending in eos.
        target: identifiers, (B, T), each beginning with bos.

    Returns:
        "encoder", "decoder", "cross" -> (N, B, h, T, S); in self-attention queries and keys
        are of one sentence.

    Raises:
        TypeError, ValueError: what `attentions` or the model refuses.
        ValueError: the model has another attention.
        FloatingPointError: a weight is not finite.
    """
    _check_scores(model)
    with _recording(model) as seen, _evaluating(model):
        model(source, target)
    maps = {kind: torch.stack(layers) for kind, layers in seen.items()}
    if not all(weights.isfinite().all() for weights in maps.values()):
        raise FloatingPointError("attention weights are not finite: the model is damaged")
    return maps


@dataclass(frozen=True)
class Maps:
    """One sentence, its translation, and how each head looked at them.

    Args:
        source: the S tokens of the source, eos the last.
        target: the T tokens the decoder read, bos the first.
        written: the T tokens it was to write, eos the last.
        weights: kind -> (N, h, T, S), as in `attention_maps`.
    """

    source: list[str]
    target: list[str]
    written: list[str]
    weights: dict[str, Tensor] = field(repr=False)

    def queries(self, kind: str) -> list[str]:
        """The names of the rows; a decoder's row is named by the token it writes."""
        return self.source if kind == "encoder" else [f"→ {token}" for token in self.written]

    def keys(self, kind: str) -> list[str]:
        """The names of the columns."""
        return self.target if kind == "decoder" else self.source


def _tokens(vocabulary, ids):
    """The words or pieces of identifiers; a piece that continues a word begins with a dot."""
    if isinstance(vocabulary, Words):
        return [vocabulary.words[i] for i in ids]
    if not hasattr(vocabulary, "processor"):
        return [vocabulary.decode([i]) or f"<{i}>" for i in ids]
    names = [vocabulary.processor.id_to_piece(int(i)) for i in ids]
    begun = [name[1:] or "_" if name.startswith("▁") else f"·{name}" for name in names]
    return [
        Words.markers[i] if i < len(Words.markers) else name for i, name in zip(ids, begun)
    ]


def _crop(vocabulary, maps, b, read, written):
    """The `Maps` of sentence b of a batch, whose identifiers are `read` and `written`."""
    S = len(read)
    T = len(written)
    sizes = {"encoder": (S, S), "decoder": (T, T), "cross": (T, S)}
    weights = {kind: maps[kind][:, b, :, :t, :s].cpu() for kind, (t, s) in sizes.items()}
    output = _tokens(vocabulary, written)
    return Maps(_tokens(vocabulary, read), [Words.markers[1], *output[:-1]], output, weights)


def _look_batch(translator, sources, targets=None, max_len=None):
    """`_look_all` at a few sentences, in one batch; arguments and result as there."""
    model, vocabulary = translator.model, translator.vocabulary
    bos, pad = model.config.bos, model.config.pad
    device = next(model.parameters()).device
    read = [vocabulary.encode(line) for line in sources]
    source = pad_batch(read, pad).to(device)  # (B, S)
    if targets is None:
        written = greedy(model, source, max_len)
    else:
        written = [vocabulary.encode(line) for line in targets]
    target = pad_batch([[bos, *ids[:-1]] for ids in written], pad).to(device)  # (B, T)
    maps = attention_maps(model, source, target)
    pairs = enumerate(zip(read, written, strict=True))
    return [_crop(vocabulary, maps, b, *both) for b, both in pairs]


def _look_all(translator, sources, targets=None, batch=100, max_len=None):
    """The `Maps` of sentences and their translations, `batch` of them computed together.

    Without targets they are the model's own translations, by greedy search.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise TypeError("sources and targets must be lists of strings, not one string")
    if targets is not None and len(targets) != len(sources):
        numbers = f"{len(sources)} and {len(targets)}"
        raise ValueError(f"sources and targets must be equally many, not {numbers}")
    found = []
    for start in range(0, len(sources), batch):
        part = slice(start, start + batch)
        found += _look_batch(translator, sources[part], targets and targets[part], max_len)
    return found


def look(
    translator: Any, source: str, target: str | None = None, max_len: int | None = None
) -> Maps:
    """All attention weights of a sentence and its translation (the content of Figures 3 to 5).

    Args:
        translator: a `Translator`, such as `annotated.load` gives.
        source: a sentence.
        target: its translation; None takes the model's own, by greedy search.
        max_len: the most tokens that it may write.

    Raises:
        TypeError: source or target is no string.
    """
    for name, text in (("source", source), ("target", target)):
        if not isinstance(text, str) and (name == "source" or text is not None):
            raise TypeError(f"{name} must be a string, not {type(text).__name__}")
    targets = None if target is None else [target]
    return _look_all(translator, [source], targets, max_len=max_len)[0]


def heatmap(axes: Any, weights: Tensor, queries: Sequence[str], keys: Sequence[str]) -> Any:
    """Draw one head's weights (the content of Figures 3 to 5).

    Args:
        axes: matplotlib axes.
        weights: (T, S).
        queries: T strings, beside the rows.
        keys: S strings, below the columns.

    Returns:
        the image drawn.

    Raises:
        ValueError: there are not as many names as rows and columns.
    """
    if tuple(weights.shape) != (len(queries), len(keys)):
        names = f"{len(queries)} queries and {len(keys)} keys"
        raise ValueError(f"weights must be of {names}, not of shape {tuple(weights.shape)}")
    image = axes.imshow(weights.tolist(), vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(
        range(len(keys)), keys, rotation=60, ha="right", rotation_mode="anchor", color="C1"
    )
    axes.set_yticks(range(len(queries)), queries, color="C0")
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return image


_COLOURS = (
    "#440154 #482878 #3e4989 #31688e #26828e #1f9e89 #35b779 #6ece58 #b5de2b #fde725".split()
)


def _beside(name):
    """The text of a file of the package, `viewer.js` or `viewer.css`."""
    return (resources.files("annotated") / name).read_text(encoding="utf-8")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Attention maps</title><style>
body { margin: 1rem; color: #22211f; background: #fdfcf9; }
@media (prefers-color-scheme: dark) { body { color: #dcdad3; background: #191a1c; }
  .attention-viewer.alone { --q: #6fb1e6; --k: #e6a44a; } }
</style></head><body><main>BODY</main></body></html>
"""


def _percent(maps):
    """The weights in whole percent, kind -> layers of heads of rows; no key after a decoder's row."""

    def rows(kind, head):
        table = (100 * head).round().int().tolist()
        return [row[: t + 1] for t, row in enumerate(table)] if kind == "decoder" else table

    weights = maps.weights.items()
    return {
        kind: [[rows(kind, head) for head in layer] for layer in layers]
        for kind, layers in weights
    }


def _render_svg(rows, queries, keys, label, cell=19):
    """Draw one head, rows of whole percent, as an SVG element, for where no script runs."""
    left = 8 + 7 * max(map(len, [*queries, *keys]))  # room for the longest word
    paths = [""] * len(_COLOURS)
    for t, row in enumerate(rows):
        for s, w in enumerate(row):
            paths[min(9, w // 10)] += f"M{s} {t}h.94v.94h-.94z"
    turn = f'transform="translate({left} {left}) scale({cell})"'
    drawn = [f'<path d="{d}" fill="{c}" {turn}/>' for d, c in zip(paths, _COLOURS) if d]
    for t, word in enumerate(queries):
        place = f'x="{left - 5}" y="{left + cell * (t + 0.7):.0f}" text-anchor="end"'
        drawn.append(f"<text {place}>{html.escape(word)}</text>")
    for s, word in enumerate(keys):
        place = f"translate({left + cell * (s + 0.7):.0f} {left - 5}) rotate(-90)"
        drawn.append(f'<text transform="{place}">{html.escape(word)}</text>')
    width = left + cell * len(keys) + 2
    height = left + cell * len(queries) + 2
    head = f'class="map" role="img" aria-label="{html.escape(label)}" width="{width}"'
    return f'<svg {head} viewBox="0 0 {width} {height}">{"".join(drawn)}</svg>'


@dataclass(frozen=True)
class _Viewer:
    """A page element to look at attention with, for Jupyter, the book, or a file.

    Args:
        maps: a list of `Maps`, all of one model.
        kind, layer, head: what is shown first, counted from 0.
        row: the query that is chosen first.
    """

    maps: list[Maps] = field(repr=False)
    kind: str = "encoder"
    layer: int = 0
    head: int = 0
    row: int = 0

    def data(self):
        """What the script reads."""
        maps = [
            {
                "title": " ".join(m.source[:-1]),
                "source": m.source,
                "target": m.target,
                "written": m.written,
                "weights": _percent(m),
            }
            for m in self.maps
        ]
        start = {name: getattr(self, name) for name in ("kind", "layer", "head", "row")}
        start["sentence"] = 0
        kinds = {kind: name for kind, (_, _, name) in _KINDS.items()}
        return {"maps": maps, "start": start, "kinds": kinds, "colours": _COLOURS}

    def _repr_html_(self):
        first = self.maps[0]
        kind = self.kind
        where = f"{_KINDS[kind][2]}, layer {self.layer + 1}, head {self.head + 1}"
        rows = _percent(first)[kind][self.layer][self.head]
        label = f"Attention map: {where}"
        still = _render_svg(rows, first.queries(kind), first.keys(kind), label)
        data = json.dumps(self.data(), ensure_ascii=False, separators=(",", ":"))
        data = html.escape(data, quote=False).replace("'", "&#39;")
        scale = ", ".join(_COLOURS)
        return f"""<div class="attention-viewer alone" data-maps='{data}'>
<style>{_beside("viewer.css")}</style>
<div class="choices" hidden></div>
<fieldset hidden><legend>Look from</legend><div class="words"></div></fieldset>
<p class="said" role="status" hidden></p>
<ul class="keys" aria-label="Keys and their weights" hidden></ul>
{still}
<p class="scale" aria-hidden="true">0<i
  style="background:linear-gradient(90deg, {scale})"></i>1</p>
<noscript><p>Scripts are off: this is {where}.</p></noscript>
<script>{_beside("viewer.js")}</script></div>"""

    def save(self, path):
        """Write a page that holds the viewer and needs nothing else."""
        Path(path).write_text(_PAGE.replace("BODY", self._repr_html_()), encoding="utf-8")


def viewer(
    maps: Maps | Iterable[Maps], kind: str = "encoder", layer: int = 0, head: int = 0, row: int = 0
) -> _Viewer:
    """Look at attention interactively (Figures 3 to 5).

    Args:
        maps: of one sentence or several, all of one model.
        kind: "encoder", "decoder" or "cross", shown first.
        layer: shown first, counted from 0.
        head: the same.
        row: the query chosen first.

    Returns:
        what notebooks display, and its method `save(path)` writes to a file.

    Raises:
        ValueError: nothing to look at; or kind, layer, head or row is not there.
        TypeError: something else than `Maps` is among maps.
    """
    maps = [maps] if isinstance(maps, Maps) else list(maps)
    if not maps or not all(isinstance(m, Maps) for m in maps):
        error = TypeError if maps else ValueError
        raise error("maps must be one `Maps` or more")
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    sizes = dict(zip(("layer", "head", "row"), maps[0].weights[kind].shape))
    for (name, size), value in zip(sizes.items(), (layer, head, row)):
        if not _is_of(value, size):
            raise ValueError(f"{name} must be a whole number in 0..{size - 1}, not {value!r}")
    return _Viewer(maps, kind, int(layer), int(head), int(row))  # numpy's are not JSON


def _mass(maps, kind, relation):
    """How much each head gives to the keys of a relation.

    Args:
        maps: from `attention_maps`.
        kind: of the attention.
        relation: n places (sentence, query, keys).

    Returns:
        (n, N, h).
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    if not relation:
        raise ValueError("relation must have at least one query, not none")
    rows = [
        maps[b].weights[kind][:, :, t, list(keys)].sum(-1) for b, t, keys in relation
    ]  # (N, h)
    return torch.stack(rows)  # (n, N, h)


def _position_share(maps, kind, relation):
    """What each head would give to the same keys if it went by distance alone, (n, N, h)."""
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    wanted = {s - t for _, t, keys in relation for s in keys}
    profile = {}
    for d in wanted:
        found = torch.cat([m.weights[kind].diagonal(d, -2, -1) for m in maps], -1)
        if not found.numel():
            raise ValueError(f"no map has a key at distance {d} of a query")
        profile[d] = found.mean(-1)  # (N, h)
    rows = [
        torch.stack([profile[s - t] for s in keys]).sum(0) for _, t, keys in relation
    ]  # (N, h)
    return torch.stack(rows)  # (n, N, h)


@contextmanager
def without_head(model: Transformer, kind: str, layer: int, head: int) -> Iterator[None]:
    """Inside, one head of the model contributes nothing.

    Args:
        model: left as it was at the end. A `Translator` searches with a copy made earlier, and
            is not affected.
        kind: "encoder", "decoder" or "cross".
        layer: counted from 0.
        head: counted from 0.

    Raises:
        ValueError: there is no such head.
    """
    modules = attentions(model, kind)
    if not (_is_of(layer, len(modules)) and _is_of(head, modules[0].h)):
        sizes = f"whole numbers, of {len(modules)} layers of {modules[0].h} heads from 0 on"
        raise ValueError(f"layer and head must be {sizes}, not {layer!r} and {head!r}")
    h = modules[layer].h

    def hook(W_O, inputs):
        heads = inputs[0].unflatten(-1, (h, -1)).clone()  # (B, T, h, d_v)
        heads[:, :, head] = 0
        return (heads.flatten(2),)  # (B, T, h * d_v)

    handle = modules[layer].W_O.register_forward_pre_hook(hook)
    try:
        with torch.compiler.set_stance("force_eager"):  # compiled code does not see the hook
            yield
    finally:
        handle.remove()


def _interval(values, sentences, samples=1000, seed=0):
    """The 95 % interval of the mean of values, (n,), by the bootstrap of chapter 12.

    `sentences` are n numbers: values of one sentence are drawn together.
    """
    if len(values) != len(sentences) or not len(values):
        counts = f"{len(values)} and {len(sentences)}"
        raise ValueError(f"values and sentences must be equally many, not {counts}")
    groups = torch.tensor(sentences).unique(return_inverse=True)[1]  # (n,)
    sums = torch.zeros(int(groups.max()) + 1).index_add_(0, groups, values.float())  # (G,)
    counts = groups.bincount().float()  # (G,)
    generator = torch.Generator().manual_seed(seed)
    G = len(sums)
    drawn = torch.randint(G, (samples, G), generator=generator)  # (samples, G)
    means = sums[drawn].sum(1) / counts[drawn].sum(1)  # (samples,)
    return tuple(means.quantile(torch.tensor([0.025, 0.975])).tolist())


def _subjects(example):
    """The places of an `Example`'s finite verbs, each with that of its subject's noun or pronoun."""
    tags = re.findall(r"\((\S+) [^()]+\)", example.tree)
    found = []
    for verb, tag in enumerate(tags):
        if tag in ("VBZ", "VBP", "MD"):
            # a question begins with its verb; elsewhere the subject stands before it
            order = range(1, len(tags)) if verb == 0 else range(verb - 1, -1, -1)
            found.append((verb, next(i for i in order if tags[i] in ("NN", "NNS", "PRP"))))
    return found


_MODALS = ("can", "must", "will")


def _word_relations(example):
    """What an encoder's head might attend to for the words: relation -> list of (query, keys)."""
    words = list(enumerate(split_words(example.source.lower())))
    same = [(q, tuple(k for k, twin in words if twin == word and k != q))
            for q, word in words]
    found = {"same word": [(q, keys) for q, keys in same if keys]}
    for name in ("can, must, will", "verbs in -s", "other verbs"):
        found[f"subject of {name}"] = []
    found |= {"antecedent of it": [], "antecedent of others": []}
    for q, k in _subjects(example):
        _, word = words[q]
        name = "other verbs"
        if word in _MODALS:
            name = "can, must, will"
        elif word.endswith("s"):
            name = "verbs in -s"
        found[f"subject of {name}"].append((q, (k,)))
    for q, k in example.antecedents:
        _, word = words[q]
        name = "it" if word == "it" else "others"
        found[f"antecedent of {name}"].append((q, (k,)))
    return found


def _relations(example):
    """What a head might attend to in an `Example`: (kind, relation) -> list of (query, keys).

    The decoder's query t writes word t.
    """
    S = len(split_words(example.source)) + 1  # with eos
    T = len(split_words(example.target)) + 1
    linked: dict[int, tuple] = {}
    for i, j in example.alignment:
        linked[j] = (*linked.get(j, ()), i)
    found = {
        ("encoder", "previous token"): [(q, (q - 1,)) for q in range(1, S)],
        ("encoder", "next token"): [(q, (q + 1,)) for q in range(S - 1)],
        ("decoder", "previous token"): [(q, (q - 1,)) for q in range(1, T)],
        ("cross", "word being written"): sorted(linked.items()),
        ("cross", "word just read"): [(j + 1, keys) for j, keys in sorted(linked.items())],
    }
    by_word = {("encoder", name): pairs for name, pairs in _word_relations(example).items()}
    return dict(sorted((found | by_word).items(), key=lambda item: item[0][0] != "encoder"))


def links(weights: Tensor) -> set[tuple[int, int]]:
    """Link each target word to the source word of the largest weight.

    Args:
        weights: (T, S), of words only.

    Returns:
        (source, target) pairs.
    """
    return {(int(s), t) for t, s in enumerate(weights.argmax(-1))}


def alignment_error(
    found: Sequence[Iterable[tuple[int, int]]], true: Sequence[Iterable[tuple[int, int]]]
) -> float:
    """The alignment error rate of sentences together, all true links being sure ones.

    Args:
        found: the (source, target) links of each sentence.
        true: the same.

    Returns:
        from 0, no error, to 1.

    Raises:
        ValueError: not equally many sentences, or no link at all.
    """
    if len(found) != len(true):
        numbers = f"{len(found)} and {len(true)}"
        raise ValueError(f"found and true must be of equally many sentences, not {numbers}")
    pairs = [(set(a), set(g)) for a, g in zip(found, true)]
    made = sum(len(a) + len(g) for a, g in pairs)
    if not made:
        raise ValueError("found and true must have at least one link, not none")
    return 1 - 2 * sum(len(a & g) for a, g in pairs) / made
