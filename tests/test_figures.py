"""Chapter 19: the maps against other ways to the same weights, the measures by hand, cutting, and the viewer in a browser."""

import functools
import html
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from browsers import NODE, node
from shapes import checked, unseen

from annotated import figures
from annotated.after import GroupedQueryAttention
from annotated.attention import scaled_dot_product_attention
from annotated.cpu import CPUObjective
from annotated.data import Subwords, Words, split_words
from annotated.decoding import Translator, _evaluating
from annotated.figures import (
    _KINDS,
    Maps,
    _interval,
    _look_all,
    _mass,
    _percent,
    _position_share,
    _recording,
    _relations,
    _render_svg,
    _subjects,
    _tokens,
    _Viewer,
    alignment_error,
    attention_maps,
    attentions,
    heatmap,
    links,
    look,
    viewer,
    without_head,
)
from annotated.gpu import fuse, join_projections
from annotated.grammar import Example, grammar_examples
from annotated.multihead import MultiHeadAttention
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq
from annotated.transformer import TINY, Transformer

with_node = pytest.mark.skipif(NODE is None, reason="no node here to run the viewer's arithmetic with")
PACKAGE = Path(figures.__file__).parent
N, H, B, S, T = 3, 2, 5, 11, 7
CONFIG = replace(TINY, N=N, h=H, d_model=10, d_ff=13, vocab=41, P_drop=0.5)


def model(seed=0, **more):
    torch.manual_seed(seed)
    return Transformer(replace(CONFIG, **more))


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 41, (B, S), generator=generator)
    source[1, 6:] = 0
    return source, torch.randint(4, 41, (B, T), generator=generator)


@functools.cache
def translator():
    words = [f"w{i}" for i in range(37)]
    return Translator(model().eval(), Words(words))


@functools.cache
def examples():
    return grammar_examples(train=0, validation=0, test=60)[2]


def draw(t=T, s=S, seed=0):
    return torch.randn(N, H, t, s, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def maps(t=T, s=S, seed=0):
    weights = {"encoder": draw(s, s, seed), "decoder": draw(t, t, seed + 1), "cross": draw(t, s, seed + 2)}
    source, output = [f"s{i}" for i in range(s)], [f"t{i}" for i in range(t)]
    return Maps(source, ["<bos>", *output[:-1]], output, weights)


# ---- maps


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("bias", [False, True])
def test_the_maps_are_the_weights_the_model_averages_with(norm, bias):
    "Values that are unit vectors make each head's output its own row of weights."
    seen = []

    def spy(Q, K, V, mask=None):
        one = torch.eye(K.shape[-2]).expand(*K.shape[:-1], -1)
        seen.append(scaled_dot_product_attention(Q, K, one, mask))
        return scaled_dot_product_attention(Q, K, V, mask)

    plain = model(norm=norm, bias=bias, final_norm=norm == "pre")
    spied = Transformer(plain.config, attention=spy)
    spied.load_state_dict(plain.state_dict())
    source, target = batch()
    found = attention_maps(plain, source, target)
    with _evaluating(spied):
        spied(source, target)
    order = [*((k, i) for k in ("encoder",) for i in range(N)), *((k, i) for i in range(N) for k in ("decoder", "cross"))]
    for (kind, layer), wanted in zip(order, seen, strict=True):
        torch.testing.assert_close(found[kind][layer], wanted)
    assert found["cross"].shape == (N, B, H, T, S) and found["encoder"].shape == (N, B, H, S, S)


@pytest.mark.parametrize("faster", [fuse, join_projections, lambda net: CPUObjective(net).model], ids=["fused", "joint", "packed"])
def test_the_faster_versions_show_the_same_weights(faster):
    net = model(bias=True)
    before = attention_maps(net, *batch())
    after = attention_maps(faster(net), *batch())
    for kind, weights in before.items():
        torch.testing.assert_close(after[kind], weights)


def test_nobody_looks_at_padding_or_at_the_future():
    found = attention_maps(model(), *batch())
    assert (found["encoder"][:, 1, :, :, 6:] == 0).all() and (found["cross"][:, 1, :, :, 6:] == 0).all()
    assert (found["decoder"].triu(1) == 0).all()
    for weights in found.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_looking_leaves_the_model_as_it_was():
    net = model().train()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    with pytest.raises(RuntimeError, match="stop"), _recording(net):
        raise RuntimeError("stop")
    first, again = (attention_maps(net, *batch()) for _ in range(2))
    assert net.training and not any(m._forward_pre_hooks for m in net.modules())
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert all(torch.equal(first[k], again[k]) and not first[k].is_inference() for k in _KINDS)  # no dropout
    with _recording(net) as seen:
        net(*batch())
    assert {kind: len(x) for kind, x in seen.items()} == dict.fromkeys(_KINDS, N)


def test_maps_of_another_attention_are_refused():
    def by_two(Q, K, V, *rest):  # right where d_k is 4
        return scaled_dot_product_attention(Q * Q.shape[-1] ** 0.5 / 2, K, V, *rest)

    other = Transformer(model().config, attention=by_two)
    with pytest.raises(ValueError, match="model must use scaled dot-product attention"):
        attention_maps(other, *batch())


class Cosine(MultiHeadAttention):
    def attend(self, x, K, V, mask=None):
        Q = torch.nn.functional.normalize(self.split(self.W_Q(x)), dim=-1)
        heads = self.attention(9 * Q, torch.nn.functional.normalize(K, dim=-1), V, mask)
        return self.W_O(heads.transpose(1, 2).flatten(2))


def test_maps_of_a_subclass_that_attends_in_another_way_are_refused():
    other = model(P_drop_attention=0.3).train()
    attention_maps(other, *batch())  # no dropout disturbs the trial
    other.encoder.layers[1].self_attention.__class__ = Cosine
    with pytest.raises(ValueError, match="model must use scaled dot-product attention"):
        attention_maps(other, *batch())
    grouped = model()
    grouped.encoder.layers[0].self_attention = GroupedQueryAttention(10, 2, 1)
    with pytest.raises(ValueError, match="model must use scaled dot-product attention"):
        attention_maps(grouped, *batch())


def test_a_model_without_such_layers_is_refused():
    other = RecurrentSeq2Seq(RecurrentConfig(vocab=41, d_model=8))
    with pytest.raises(TypeError, match="must be a Transformer.*RecurrentSeq2Seq"):
        attention_maps(other, *batch())
    with pytest.raises(ValueError, match="kind must be one of encoder, decoder, cross, not 'self'"):
        attentions(model(), "self")
    assert attentions(model(), "decoder")[0].__class__.__name__ == "MultiHeadAttention"


def test_a_sentence_has_the_same_maps_alone_and_among_others():
    lines = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w9"]
    wanted = ["w3 w2", "w1 w1 w1 w1 w1", "w9"]
    together = _look_all(translator(), lines, wanted, batch=2)
    for line, target, m in zip(lines, wanted, together, strict=True):
        alone = look(translator(), line, target)
        assert m.source == [*line.split(), "<eos>"] and m.written == [*target.split(), "<eos>"]
        assert m.target == ["<bos>", *target.split()] and alone.source == m.source
        for kind in _KINDS:
            torch.testing.assert_close(m.weights[kind], alone.weights[kind])
            assert m.weights[kind].shape == (N, H, len(m.queries(kind)), len(m.keys(kind)))
    assert m.queries("cross") == ["→ w9", "→ <eos>"] and m.keys("decoder") == ["<bos>", "w9"]


def test_one_sentence_is_a_string():
    with pytest.raises(TypeError, match="source must be a string, not list"):
        look(translator(), ["w1 w2"])
    with pytest.raises(TypeError, match="target must be a string, not list"):
        look(translator(), "w1 w2", ["w3"])


def test_without_a_translation_the_models_own_is_looked_at():
    m = look(translator(), "w1 w2", max_len=3)
    assert 1 <= len(m.written) <= 3 and m.target == ["<bos>", *m.written[:-1]]


@pytest.mark.parametrize("given, error, message", [
    (("w1", None), TypeError, "lists of strings"),
    ((["w1"], "w2"), TypeError, "lists of strings"),
    ((["w1"], ["w2", "w3"]), ValueError, "equally many, not 1 and 2"),
])
def test_sentences_that_make_no_pairs_are_refused(given, error, message):
    with pytest.raises(error, match=message):
        _look_all(translator(), *given)


def test_names_of_tokens():
    words = Words(["a", "b"])
    assert _tokens(words, [4, 5, 2]) == ["a", "b", "<eos>"]
    pieces = Subwords.train(["low lower lowest newer newest wide"] * 20, 290)
    names = _tokens(pieces, pieces.encode("lowlowest newwide"))
    assert names[-1] == "<eos>" and "".join(names[:-1]).replace("·", "") == "lowlowestnewwide"
    assert sum(not n.startswith("·") for n in names[:-1]) == 2 < len(names) - 1  # two words of more than two pieces

    class Other:
        def decode(self, ids):
            return "x" if ids == [7] else ""

    assert _tokens(Other(), [7, 2]) == ["x", "<2>"]


# ---- measures


def test_mass_and_position_share_by_loops():
    all_maps, relation = [maps(seed=0), maps(5, 4, seed=9)], [(0, 3, (1, 2)), (1, 0, (0,)), (0, 6, (10,))]
    found, share = _mass(all_maps, "cross", relation), _position_share(all_maps, "cross", relation)
    assert found.shape == share.shape == (3, N, H)
    for n, (b, t, keys) in enumerate(relation):
        torch.testing.assert_close(found[n], sum(all_maps[b].weights["cross"][:, :, t, s] for s in keys))
        wanted = 0
        for s in keys:
            at = [m.weights["cross"][:, :, q, q + s - t] for m in all_maps for q in range(len(m.written))
                  if 0 <= q + s - t < len(m.source)]
            wanted = wanted + torch.stack(at).mean(0)
        torch.testing.assert_close(share[n], wanted)


def test_a_distance_that_no_map_has_is_refused():
    with pytest.raises(ValueError, match="no map has a key at distance 99"):
        _position_share([maps()], "cross", [(0, 0, (99,))])


def test_a_head_that_keeps_a_distance_has_no_more_than_its_position_share():
    back = torch.zeros(1, 1, 6, 6)
    back[..., torch.arange(1, 6), torch.arange(5)] = 1
    m = Maps(list("abcdef"), [], [], {"encoder": back})
    relation = [(0, 3, (2,)), (0, 5, (4,))]
    assert _mass([m], "encoder", relation).mean() == _position_share([m], "encoder", relation).mean() == 1
    back[..., 3, 2] = 0  # now the distance promises more than is there
    assert _position_share([m], "encoder", relation)[0] > _mass([m], "encoder", relation)[0]


def test_measures_refuse_what_they_cannot_measure():
    for measure in (_mass, _position_share):
        with pytest.raises(ValueError, match="kind must be one of"):
            measure([maps()], "self", [(0, 0, (0,))])
    with pytest.raises(ValueError, match="at least one query"):
        _mass([maps()], "cross", [])
    with pytest.raises(ValueError, match="equally many, not 2 and 3"):
        _interval(torch.zeros(2), [0, 1, 2])
    with pytest.raises(ValueError, match="not 0 and 0"):
        _interval(torch.zeros(0), [])


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator, hits = torch.Generator().manual_seed(0), 0
    for seed in range(200):
        hits += (lambda low, high: low <= 0 <= high)(*_interval(
            torch.randn(60, generator=generator), list(range(60)), samples=300, seed=seed))
    assert 180 <= hits <= 198


def test_values_of_a_sentence_are_drawn_together():
    values, alone = torch.tensor([0.0, 1.0] * 40), list(range(80))
    paired = [i // 2 for i in range(80)]  # each sentence has a 0 and a 1: its mean is certain
    assert _interval(values, paired) == (0.5, 0.5)
    low, high = _interval(values, alone)
    assert high - low > 0.1 and _interval(values, alone) == (low, high) != _interval(values, alone, seed=1)


def test_the_grammars_subjects_and_relations():
    for e in examples():
        words, found = split_words(e.source), _relations(e)
        for verb, noun in _subjects(e):
            assert (noun > verb) == (verb == 0), e.source
            if words[verb] in ("am", "is", "has", "does") or words[verb].lower() in ("does", "is", "has"):
                assert words[noun].lower() not in ("we", "they", "you"), e.source
        apart = {name: found["encoder", f"subject of {name}"] for name in ("can, must, will", "verbs in -s", "other verbs")}
        assert sorted(sum(apart.values(), [])) == sorted((v, (n,)) for v, n in _subjects(e))
        assert all(words[v].lower() in ("can", "must", "will") for v, _ in apart["can, must, will"])
        assert all(words[v].endswith("s") for v, _ in apart["verbs in -s"])
        assert not any(words[v].endswith("s") or words[v] in ("can", "must", "will") for v, _ in apart["other verbs"])
        both = found["encoder", "antecedent of it"] + found["encoder", "antecedent of others"]
        assert sorted(both) == sorted((p, (a,)) for p, a in e.antecedents)
        written = {(i, j) for j, keys in found["cross", "word being written"] for i in keys}
        assert written == set(e.alignment)
        assert {(i, j - 1) for j, keys in found["cross", "word just read"] for i in keys} == set(e.alignment)
    e = next(e for e in examples() if split_words(e.source.lower()).count("the") == 2)
    words = split_words(e.source.lower())
    first, second = (i for i, w in enumerate(words) if w == "the")
    assert (first, (second,)) in _relations(e)["encoder", "same word"]
    assert _relations(e)["encoder", "previous token"][0] == (1, (0,))
    assert _relations(e)["encoder", "next token"][-1] == (len(words) - 1, (len(words),))


def test_the_subject_is_the_noun_beside_the_verb():
    question = "(SQ (VBZ Does) (NP (DT the) (NN dog)) (VP (VB eat) (NP (DT the) (NNS eggs))) (. ?))"
    clause = ("(S (NP (PRP I)) (VP (VBP know) (SBAR (IN that) (S (NP (DT the) (NN dog)) "
              "(VP (VBZ eats) (NP (DT the) (NN egg)))))) (. .))")
    for tree, wanted in ((question, [(0, 2)]), (clause, [(1, 0), (5, 4)])):
        assert _subjects(Example("", "", (), (), tree, ())) == wanted


def test_links_and_their_error():
    assert links(torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.1, 0.4]])) == {(1, 0), (0, 1)}
    assert alignment_error([{(0, 0)}], [{(0, 0)}]) == 0 and alignment_error([{(0, 0)}], [{(1, 0)}]) == 1
    found, true = [{(0, 0), (1, 1)}, {(2, 0)}], [{(0, 0)}, {(2, 0), (0, 1), (1, 1)}]
    assert alignment_error(found, true) == pytest.approx(1 - 2 * 2 / 7)  # all sentences together
    with pytest.raises(ValueError, match="not 1 and 2"):
        alignment_error(found[:1], true)
    with pytest.raises(ValueError, match="at least one link"):
        alignment_error([set()], [set()])


def test_a_head_is_cut_out_and_put_back():
    net, (source, target) = model().eval(), batch()
    with torch.no_grad():
        whole = net(source, target)
        with without_head(net, "cross", 1, 0):
            cut = net(source, target)
        assert torch.equal(net(source, target), whole) and not torch.allclose(cut, whole)
        d = CONFIG.d_model // H
        net.decoder.layers[1].cross_attention.W_O.weight[:, :d] = 0  # the columns that read the first head
        torch.testing.assert_close(net(source, target), cut)
    for layer, head in ((N, 0), (0, H), (-1, 0)):
        message = f"{N} layers of {H} heads.*not {layer} and {head}"
        with pytest.raises(ValueError, match=message), without_head(net, "encoder", layer, head):
            pass


def test_a_compiled_model_loses_its_head_and_gives_its_maps():
    from annotated.gpu import compiled

    net, (source, target) = model().eval(), batch()
    with torch.no_grad(), without_head(net, "encoder", 0, 1):
        wanted = net(source, target)
    maps_before = attention_maps(net, source, target)
    compiled(net, backend="eager")
    with torch.no_grad():
        net(source, target)  # traced without a hook
        with without_head(net, "encoder", 0, 1):
            torch.testing.assert_close(net(source, target), wanted)
    torch.testing.assert_close(attention_maps(net, source, target), maps_before)


def test_shape_comments():
    with checked(figures) as seen:
        attention_maps(model(), *batch())
        attention_maps(join_projections(model()), *batch())
        look(translator(), "w1 w2", "w3")
        _mass([maps()], "cross", [(0, 1, (0,))])
        _position_share([maps()], "cross", [(0, 1, (0,))])
        _interval(torch.rand(4), [0, 1, 1, 2])
        with without_head(translator().model, "encoder", 0, 1):
            look(translator(), "w1 w2", "w3")
    assert not unseen(seen, figures)


# ---- drawings


def test_a_heat_map_shows_the_weights_under_their_names():
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    fig, axes = plt.subplots()
    weights = draw()[0, 0]
    image = heatmap(axes, weights, [f"q{i}" for i in range(T)], [f"k{i}" for i in range(S)])
    torch.testing.assert_close(torch.tensor(image.get_array().data, dtype=torch.float), weights)
    assert [x.get_text() for x in axes.get_yticklabels()] == [f"q{i}" for i in range(T)]
    assert [x.get_text() for x in axes.get_xticklabels()] == [f"k{i}" for i in range(S)] and image.get_clim() == (0, 1)
    with pytest.raises(ValueError, match="7 queries and 3 keys, not of shape"):
        heatmap(axes, weights, list("abcdefg"), list("abc"))
    plt.close(fig)


NASTY = ["</script><script>document.title='broken in'</script>", "<img src=x onerror=\"document.title='broken in'\">",
         "it's \"quoted\" & more", "a&lt;b"]


def nasty():
    names = [*NASTY, "<eos>"]
    weights = {"encoder": draw(5, 5), "decoder": draw(5, 5, 1), "cross": draw(5, 5, 2)}
    return Maps(names, ["<bos>", *names[:-1]], names, weights)


class Reader(HTMLParser):
    "What a browser finds in a piece of HTML: tags, and the data of the viewer."

    def __init__(self, text):
        super().__init__()
        self.tags, self.data, self.words = [], None, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.data = dict(attributes).get("data-maps") or self.data

    def handle_data(self, data):
        self.words.append(data)


def test_the_viewers_html_holds_the_data_and_nothing_gets_out_of_it():
    m = nasty()
    seen = Reader(viewer(m, "cross", np.int64(1), np.int64(1))._repr_html_())  # as argmax gives them
    assert seen.tags.count("script") == 1 and "img" not in seen.tags
    data = json.loads(seen.data)
    assert data["maps"][0]["source"] == m.source and data["start"]["kind"] == "cross"
    for kind, layers in data["maps"][0]["weights"].items():
        for found, wanted in zip(layers, m.weights[kind], strict=True):
            for rows, head in zip(found, wanted, strict=True):
                for t, row in enumerate(rows):
                    wide = t + 1 if kind == "decoder" else 5
                    torch.testing.assert_close(torch.tensor(row) / 100, head[t, :wide], atol=0.0051, rtol=0)
    assert all(name in seen.words for name in m.source)  # in the still figure, as text


def test_the_viewer_asks_the_network_for_nothing_and_is_small():
    text = viewer([maps(16, 16, seed) for seed in range(3)])._repr_html_()
    assert not re.search(r"https?://(?!www\.w3\.org)|\bsrc=|@import|url\(|fetch\(|import\(", text)
    assert len(text.encode()) < 60_000
    assert text == viewer([maps(16, 16, seed) for seed in range(3)])._repr_html_()  # a notebook woven twice is the same


def test_the_still_figure_draws_every_weight_once():
    rows = _percent(maps())["decoder"][0][0]
    svg = _render_svg(rows, [f"q{i}" for i in range(T)], [f"<{i}>" for i in range(T)], 'a "label"')
    assert len(re.findall(r"M\d+ \d+h", svg)) == T * (T + 1) // 2
    assert html.escape("<3>") in svg and 'aria-label="a &quot;label&quot;"' in svg
    assert _render_svg([[100, 0]], ["q"], ["a", "b"], "x").count("<path") == 2


@with_node
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_the_viewers_script_counts_as_python_does(kind):
    m = maps(seed=10)
    rows = _percent(m)[kind][1]
    data = {"maps": {"source": m.source, "target": m.target, "written": m.written}, "kind": kind, "heads": rows}
    body = """const heads = [...given.heads.keys(), given.heads.length].map((head) => engine.headOf(given.heads, head));
      return [engine.namesOf(given.maps, given.kind), heads, heads.map((rows) => rows.map(engine.largest)), heads.map((rows) => engine.squares(rows, 10))];"""
    names, heads, best, drawn = node(body, [PACKAGE / "viewer.js"], data)
    assert names == [m.queries(kind), m.keys(kind)]
    assert heads[:H] == rows
    mean = [[sum(cells) / H for cells in zip(*lines)] for lines in zip(*rows)]
    assert heads[H] == mean
    for head, found in zip(heads, best):
        wanted = [sorted((-w, s) for s, w in enumerate(row) if w > 0)[:3] for row in head]
        assert found == [[s for _, s in row] for row in wanted]
    for head, paths in zip(rows, drawn):
        svg = _render_svg(head, *names, "label")
        assert [path for path in paths if path] == re.findall(r'<path d="([^"]+)"', svg)


@with_node
def test_a_weight_of_nothing_is_never_among_the_largest():
    assert node("return given.map(engine.largest);", [PACKAGE / "viewer.js"], [[0, 100, 0], [0, 0], [7, 7, 7, 7]]) == [[1], [], [0, 1, 2]]


def shipped() -> list[str]:
    "The files that a wheel takes along beside the modules."
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["setuptools"]["package-data"]["annotated"]


def test_an_installed_package_finds_the_viewers_files(tmp_path):
    """As a wheel has them: from another folder, out of an archive, which has no paths at all."""
    archive = tmp_path / "installed.zip"
    with zipfile.ZipFile(archive, "w") as whole:
        for path in [*PACKAGE.glob("*.py"), *(PACKAGE / name for name in shipped())]:
            whole.write(path, f"annotated/{path.name}")
    code = "from annotated import figures; print(figures.__file__); print(len(figures._beside('viewer.js')), len(figures._beside('viewer.css')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(archive)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    where, sizes = done.stdout.splitlines()
    assert where.startswith(str(archive)) and all(int(n) > 1000 for n in sizes.split())


def test_a_script_in_the_page_cannot_end_before_its_end():
    for name in ("viewer.js", "viewer.css"):
        assert "</" not in (PACKAGE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("given, error, message", [
    (([],), ValueError, "one `Maps` or more"),
    ((["a sentence"],), TypeError, "maps must be one `Maps` or more"),
    ((maps(), "self"), ValueError, "kind must be one of"),
    ((maps(), "encoder", N), ValueError, "layer must be a whole number in 0..2, not 3"),
    ((maps(), "encoder", 0, -1), ValueError, "head must be a whole number in 0..1, not -1"),
    ((maps(), "cross", 0, 0, T), ValueError, "row must be a whole number in 0..6, not 7"),
    ((maps(), "encoder", 0.5), ValueError, "layer must be a whole number in 0..2, not 0.5"),
])
def test_what_is_not_there_cannot_be_shown(given, error, message):
    with pytest.raises(error, match=message):
        viewer(*given)


# ---- in a browser


@pytest.fixture
def shown(browser, tmp_path):
    """Open a viewer's own page; whatever the page complains of or asks for fails the test."""
    trouble, pages = [], []

    def open_page(what: _Viewer, **window):
        path = tmp_path / "maps.html"
        what.save(path)
        page = browser.new_page(**({"viewport": {"width": 1000, "height": 900}} | window))
        pages.append(page)
        page.set_default_timeout(120_000)  # a busy machine is slow, not wrong
        page.on("console", lambda m: trouble.append(m.text))
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on("request", lambda r: trouble.append(r.url) if r.url != path.as_uri() else None)
        page.goto(path.as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not trouble, trouble


def sentence(m, kind, layer, head, row):
    "What the viewer should say of a row."
    weights = m.weights[kind][layer] if head == H else m.weights[kind][layer, head : head + 1]
    row_of = (100 * weights).round().mean(0)[row, : row + 1 if kind == "decoder" else None]
    best = row_of.sort(descending=True, stable=True)
    names = [f"{m.keys(kind)[i]} ({int(w + 0.5)} %)" for w, i in zip(best[0][:3].tolist(), best[1].tolist()) if w > 0]
    return f"{m.queries(kind)[row]} looks at {', '.join(names)}."


@pytest.mark.page
def test_everything_can_be_chosen(shown):
    both = [maps(seed=3), maps(5, 4, seed=8)]
    page = shown(viewer(both, "encoder", 1, 0, row=2))
    assert page.inner_text(".said") == sentence(both[0], "encoder", 1, 0, 2)
    for label, index in (("Attention", 2), ("Layer", 2), ("Head", 1), ("Sentence", 1)):
        page.get_by_label(label, exact=True).select_option(index=index)
    assert page.inner_text(".said") == sentence(both[1], "cross", 2, 1, 2)
    page.get_by_label("Head", exact=True).select_option(label="mean")
    assert page.inner_text(".said") == sentence(both[1], "cross", 2, H, 2)
    page.get_by_label("Attention", exact=True).select_option(index=1)
    assert page.inner_text(".said") == sentence(both[1], "decoder", 2, H, 2)
    assert page.locator(".keys li").count() == 3  # the future is not there


@pytest.mark.page
def test_stacks_of_different_depth_offer_their_own_layers(shown):
    m = maps(seed=6)
    for kind in ("decoder", "cross"):
        m.weights[kind] = m.weights[kind][:2]
    page = shown(viewer(m, "encoder", 2))
    for kind in ("decoder", "cross", "encoder"):
        page.get_by_label("Attention", exact=True).select_option(value=kind)
        assert page.inner_text(".said") == sentence(m, kind, 1, 0, 0)
        assert page.locator("select[name=layer] option:enabled").count() == len(m.weights[kind])


@pytest.mark.page
def test_without_colours_of_its_own_the_chosen_word_and_the_weights_are_seen(shown):
    page = shown(viewer(maps(seed=7), row=3), forced_colors="active")
    ground = "one => getComputedStyle(one).backgroundColor"
    chosen, other = (page.eval_on_selector(f".words input{which} + span", ground) for which in (":checked", ":not(:checked)"))
    assert chosen != other
    assert page.eval_on_selector(".keys i", ground) == page.eval_on_selector(".keys", "one => getComputedStyle(one).color")
    assert "gradient" in page.eval_on_selector(".scale i", "one => getComputedStyle(one).backgroundImage")


@pytest.mark.page
def test_hovering_shows_a_row(shown):
    m = maps(seed=4)
    page = shown(viewer(m))
    page.get_by_text("s7", exact=True).first.hover()
    assert page.inner_text(".said") == sentence(m, "encoder", 0, 0, 7)
    page.locator("svg .row").nth(4).hover()
    assert page.inner_text(".said") == sentence(m, "encoder", 0, 0, 4)
    assert page.locator("svg .row.on").count() == 1


@pytest.mark.page
def test_the_keyboard_reaches_everything(shown):
    m = maps(seed=5)
    page = shown(viewer(m, row=3))
    names = []
    for _ in range(5):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.name"))
    assert names[:4] == ["sentence", "kind", "layer", "head"]
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".said") == sentence(m, "encoder", 0, 0, 4)
    ring = page.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle")
    assert ring == "solid"
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowDown")
    assert page.inner_text(".said") == sentence(m, "encoder", 0, 1, 4)


@pytest.mark.page
def test_a_screen_reader_hears_what_it_is(shown):
    page = shown(viewer(maps(seed=6)))
    assert page.get_by_role("combobox").count() == 4 and page.get_by_role("radio").count() == S
    assert page.get_by_role("group", name="Look from").count() == 1
    assert page.get_by_role("radio", name="s3", exact=True).count() == 1
    assert page.get_by_role("status").inner_text().startswith("s0 looks at")
    assert page.get_by_role("list", name="Keys and their weights").count() == 1
    assert page.get_by_role("img", name=re.compile("Attention map: encoder self-attention")).count() == 1


CONTRASTS = """() => {
  const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255).map(x => x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
    return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  const ratio = c => (Math.max(light(c), ground) + .05) / (Math.min(light(c), ground) + .05);
  const texts = [...document.querySelectorAll('.attention-viewer :is(label, legend, .said, li, select, svg text)')];
  return [Math.min(...texts.map(e => ratio(e.tagName === 'text' ? getComputedStyle(e).fill : getComputedStyle(e).color))),
    ratio(getComputedStyle(document.querySelector('.words span')).borderTopColor), ratio(getComputedStyle(document.querySelector('li i')).backgroundColor)];
}"""


@pytest.mark.page
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_can_be_read_on_a_phone(shown, theme):
    page = shown(viewer(maps(16, 18, seed=7)), viewport={"width": 390, "height": 844}, color_scheme=theme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    text, border, bar = page.evaluate(CONTRASTS)
    assert text >= 4.5 and border >= 3 and bar >= 3


@pytest.mark.page
def test_without_scripts_there_is_a_still_figure(shown):
    page = shown(viewer(maps(seed=8), "cross", 1, 0), java_script_enabled=False)
    assert page.locator("svg").is_visible() and page.locator("svg path").count() > 1
    assert not page.locator(".choices").is_visible() and not page.locator("fieldset").is_visible()
    assert "Scripts are off: this is encoder-decoder attention, layer 2, head 1." in page.inner_text("noscript")


@pytest.mark.page
def test_words_that_look_like_html_are_words(shown):
    page = shown(viewer(nasty()))
    assert page.title() == "Attention maps"
    shown_words = page.locator(".words span").all_inner_texts()
    assert [w.strip() for w in shown_words] == nasty().source
    assert page.locator("img[src]").count() == 0


@pytest.mark.page
def test_two_viewers_do_not_disturb_each_other(shown):
    class Two(_Viewer):
        def _repr_html_(self):
            return super()._repr_html_() * 2

    m = maps(seed=9)
    page = shown(Two([m]))
    page.locator(".words").nth(1).get_by_text("s5", exact=True).hover()
    said = page.locator(".said").all_inner_texts()
    assert said == [sentence(m, "encoder", 0, 0, 0), sentence(m, "encoder", 0, 0, 5)]
    assert page.locator(".words input:checked").count() == 2


def test_a_damaged_model_has_no_attention_to_be_seen():
    net = model()
    with torch.no_grad():
        net.target_embedding.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="attention weights are not finite: the model is damaged"):
        attention_maps(net, *batch())


def test_nothing_of_the_still_figure_is_cut_off():
    queries, keys = [f"q{i}" for i in range(T)], [f"key{i}" for i in range(S)]
    svg = _render_svg(_percent(maps())["cross"][0][0], queries, keys, "label")
    width, height = map(int, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    left, top, cell = map(int, re.search(r"translate\((\d+) (\d+)\) scale\((\d+)\)", svg).groups())
    assert min(left, top) >= 5 + 7 * len("key10"), "room for the longest word"
    assert left + cell * S <= width and top + cell * T <= height


def test_the_viewer_calls_a_sentence_by_its_words():
    assert viewer(maps(s=4)).data()["maps"][0]["title"] == "s0 s1 s2"


def test_relations_of_the_decoder_and_their_order():
    e = examples()[0]
    found, length = _relations(e), len(split_words(e.target))
    assert found["decoder", "previous token"] == [(t, (t - 1,)) for t in range(1, length + 1)]
    kinds = [kind for kind, _ in found]
    assert kinds == ["encoder"] * kinds.count("encoder") + ["decoder"] + ["cross"] * 2
