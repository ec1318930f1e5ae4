"""How built pages are mended: formulas, icons, images, addresses, links to names; without a browser."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import annotated_api as api
import annotated_book as book
import annotated_bundle as bundle
import annotated_explorers as explorers
import annotated_figures as figures
import annotated_page as page
import annotated_search as search
import pytest
from chapters import ROOT
from docutils import nodes
from web.fetch import fetch

INLINE = '<span class="qkv math notranslate nohighlight">\\(d_k &lt; 2\\)</span>, and'
SHOWN = """<div class="math notranslate nohighlight" id="equation-eq-x">
<span class="eqno">(2.1)<a class="headerlink" href="#equation-eq-x">#</a></span>\\[a = b, \\qquad c = d\\]</div>"""


def test_a_formula_is_cut_only_outside_groups():
    assert page.parts(r"a = b, \qquad c") == ["a = b,", "c"]
    assert page.parts(r"\left(a \quad b\right) \text{if \quad so}") == [r"\left(a \quad b\right) \text{if \quad so}"]
    assert page.parts(r"\begin{aligned} a \quad b \end{aligned}") == [r"\begin{aligned} a \quad b \end{aligned}"]
    assert page.parts("a = b") == ["a = b"]
    long = r"\operatorname{score}(\text{hypothesis}) = \sum_{t=1}^{L} \log P(y_t \mid y_{<t}, x)" + r"\, z" * 4 + " = q"
    assert [part[:1] for part in page.parts(long)] == ["\\", "=", "="]
    shown = f'<div class="math notranslate nohighlight">\\[{long} \\times 3 + b\\]</div>'
    assert [part[:3] for part, _ in page.formulas(shown)] == [r"\op", "{}=", "{}=", "{}\\", "{}+"]  # spaced as between terms
    assert page.parts(rf"x = y, \quad {long}")[0] == "x = y,"  # a short one is whole, though the next is long


def test_formulas_are_found_and_typeset(tmp_path):
    assert page.formulas(INLINE + SHOWN) == [("d_k < 2", False), ("a = b,", True), ("c = d", True)]
    folder = fetch()
    if folder is None or shutil.which("node") is None:
        pytest.skip("there is no node to typeset with")
    setter = page.Typesetter(folder / "node", tmp_path / "kept.json")
    assert setter.learn(set(page.formulas(INLINE + SHOWN)))
    done = setter.typeset(INLINE + SHOWN)
    assert done.count("<mjx-container") == 3 and done.count("--wide:") == 2
    assert "\\(" not in done and "\\[" not in done and page.formulas(done) == []
    assert done.startswith('<span class="together">') and "(2.1)<a" in done
    again = page.Typesetter(folder / "node", tmp_path / "kept.json")
    assert again.html == setter.html and again.css == setter.css and ".mjx-c1D451" in again.css


def test_a_part_of_a_formula_knows_what_stands_around_it(tmp_path):
    "Between a part and a relation that goes on after it there is less room."
    setter = page.Typesetter(tmp_path, tmp_path / "kept.json")
    tex = [r"a \, " + r"\alpha \," * 20, "= b", "= c"]
    setter.html = {f"[{part}": part[-1] for part in (tex[0].strip(), "{}= b", "{}= c")}
    done = setter.typeset(f'<div class="math notranslate nohighlight">\\[{" ".join(tex)}\\]</div>')
    assert re.findall("<span[^>]*>[^<]?", done) == ['<span class="parts">', '<span class="cut">,', '<span class="on cut">b', '<span class="on">c']


def test_without_node_only_pages_with_formulas_load_mathjax(tmp_path):
    config = SimpleNamespace(annotated_web="", mathjax_path="mathjax/x-tex-mml-chtml.js", mathjax_options={"async": "async"}, mathjax3_config={"a": 1})
    app = SimpleNamespace(config=config, outdir=str(tmp_path))
    plain, formal = tmp_path / "a.html", tmp_path / "b" / "c.html"
    done = page.typeset(app, {plain: "<head></head>", formal: f"<head></head>{INLINE}"})
    assert done[plain] == "<head></head>"
    assert 'src="../_static/mathjax/x-tex-mml-chtml.js" async="async"' in done[formal] and '{"a": 1}' in done[formal]
    assert page.typeset(app, done) == done


def test_icons_are_drawn():
    known = {"rocket": ("512", "256", "M1 2z"), "file": ("1", "1", "M0 0z")}
    assert 'viewBox="0 0 512 256"' in page.drawn('<i class="fas fa-rocket"></i>', known)
    assert page.drawn('<i class="fas fa-nothing"></i>', known) == '<i class="fas fa-nothing"></i>'
    switch = page.drawn('<i class="theme-switch fa-solid fa-file   fa-lg" data-mode="light" title="Light"></i>', known)
    assert 'data-mode="light"' in switch and "title" not in switch and "theme-switch" in switch


def test_lines_of_code_know_their_indentation():
    "The text stays as it is, for those who copy it; printed columns are left alone, printed sentences are not."
    code = '<div class="highlight-python notranslate"><div class="highlight"><pre><span></span><span class="k">if</span> a &lt; b:\n\n    <span class="n">c</span>\n</pre></div>'
    done = page.lined(code)
    assert [int(x) for x in re.findall(r'class="ln" style="--in:(\d+)"', done)] == [0, 0, 4]
    assert re.sub("<[^>]*>", "", done) == re.sub("<[^>]*>", "", code) and page.lined(done) == done
    assert done.count('<pre class="lined">') == 1 and done.count('<span class="in">    </span>') == 1
    printed = '<div class="output stream highlight-myst-ansi notranslate"><div class="highlight"><pre><span></span>{}\n</pre></div>'
    assert page.lined(printed.format("a   1.0\nb  12.0")) == printed.format("a   1.0\nb  12.0")
    assert page.lined(printed.format("a sentence")).count('class="ln"') == 1
    wide = f"a   {'1' * page.WIDEST}"  # no page shows it whole
    assert page.lined(printed.format(wide)).count('class="ln"') == 1


def exported(code: str, kind: str = "tag_export") -> str:
    "A cell as the page has it before its lines are marked."
    inner = re.sub(r'^( *""".*|(?<=\n)[^"\n].*""")$', r'<span class="sd">\1</span>', code, flags=re.M)
    return f'<div class="cell {kind} docutils container"><div class="highlight-python notranslate"><div class="highlight"><pre><span></span>{inner}</pre></div></div></div>'


def test_a_long_docstring_of_the_package_is_its_first_line_until_asked():
    "The text stays as it is, for those who copy or search; a short one, and one in a cell that is folded whole, are left alone."
    long = '    """What it is.\n\n    a: one\n    b: two\n    c: three\n    """\n'
    short = '    """What it is.\n\n    One more.\n    """\n'
    line = '    """What it is."""\n'
    code = f"class A:\n{long}\n    def f(self):\n    {line}        return 0\n\n    def g(self):\n    {short}        return 1\n\n    def h(self):\n    {long}        return 2\n"
    lines = page.lined(exported(code))
    done = page.folded(lines)
    assert re.sub("<[^>]*>", "", done) == re.sub("<[^>]*>", "", lines) and page.folded(done) == done
    assert re.findall(r'What it is\.(?:</span>)*<input type="checkbox" class="more" data-lines="(\d)"', done) == ["5", "5"]
    kept = [re.sub("<[^>]*>", "", part) for part in re.findall(r'<span class="rest-of-doc">(.*?\n</span>)</span>', done, re.S)]
    assert [part.count('"""') for part in kept] == [1, 1] and all("b: two" in part and "What" not in part for part in kept)
    assert done.count("<span") == done.count("</span>") and page.tall(done) < page.tall(lines)
    for other in (exported(f"def f():\n{short}    return 1\n"), exported(code, "tag_export tag_hide-input"), exported(code, "tag_check")):
        assert page.folded(page.lined(other)) == page.lined(other)


def test_a_table_of_sentences_knows_the_heads_of_its_cells():
    "So it can be set as blocks on a phone; a table of numbers or of two columns is left alone."
    def table(heads, *rows):
        head, *body = ("<tr>" + "".join(f"<{tag}><p>{cell}</p></{tag}>" for cell in row) + "</tr>" for tag, row in (("th", heads), *(("td", row) for row in rows)))
        return f'<table class="booktabs table"><thead>{head}</thead><tbody>{"".join(body)}</tbody></table>'

    words = table(("question", "the paper", "released code", "here"), ("Which?", "it does not say which one", "this one, as <em>here</em>", "that one, and why"))
    done = page.stacked(words)
    assert re.findall('data-label="([^"]*)"', done) == ["question", "the paper", "released code", "here"]
    assert '<table class="booktabs stack table">' in done and page.stacked(done) == done
    for other in (table(("a", "b", "c", "d"), ("1", "2", "3", "4")), table(("a", "b"), ("x", "many words " * 9)), table(("a", "b", "c"), ("x", "many words " * 9))):
        assert page.stacked(other) == other


def test_a_chapter_leads_past_its_questions():
    def foot(name, words):
        return f'<a class="right-next"\n href="{name}.html"\n title="next page"><div><p class="prev-next-subtitle">next</p><p class="prev-next-title">{words}</p></div></a>'

    pages = {Path("n/02-x.html"): foot("02-x-questions", "Questions: x"), Path("n/02-x-questions.html"): foot("03-y", "3\u2002Y"), Path("n/03-y.html"): "the end"}
    done = page.onward(pages)
    assert done[Path("n/02-x.html")] == pages[Path("n/02-x.html")] + '<a class="onward" href="03-y.html">or on to 3\u2002Y</a>'
    assert page.onward(done) == done and [path for path in pages if done[path] != pages[path]] == [Path("n/02-x.html")]


def test_words_without_a_colour_are_no_elements():
    code = '<span class="n">a</span> <span class="o">&lt;</span> <span class="k">if</span><span class="nf">f</span><span class="no">x</span>'
    assert page.plainer(code) == 'a &lt; <span class="k">if</span><span class="nf">f</span><span class="no">x</span>'
    css = (ROOT / "book/_static/book.css").read_text(encoding="utf-8")
    coloured = {name for rule in re.findall(r"\.highlight :is\(([^)]*)\)", css) for name in re.findall(r"\.(\w+)", rule)}
    assert "kn" in coloured and not [name for name in coloured if page.PLAIN.match(f'<span class="{name}">x</span>')]


def test_code_in_the_text_breaks_where_its_words_end():
    words = "--tokens", "-n", "a-b", "short_name", "tests/test_x.py::test_a_long_name_of_a_test"
    code = "<code>" + " ".join(f'<span class="pre">{word}</span>' for word in words) + "</code>"
    done = page.breakable(code)
    assert done.count('<span class="together">') == 2 and 'class="together">--t</span>okens' in done
    assert "tests/<wbr>test_<wbr>x.<wbr>py::<wbr>test_" in done and "short_name" in done
    assert re.sub("<[^>]*>", "", done) == re.sub("<[^>]*>", "", code) and page.breakable(done) == done


def test_a_section_knows_about_how_high_it_is():
    "More words, more height; folded code and a formula's words for the ear have none; no section is told twice."
    short, long = (f'<section id="a"><p>{"word " * n}</p><section id="b"><p>x</p></section></section>' for n in (10, 1000))
    heights = [[int(x) for x in re.findall(r'<section id="\w" style="--tall: (\d+)px"', page.measured(one))] for one in (short, long)]
    assert heights[0][1] == heights[1][1] == page.LINE and heights[1][0] > 30 * heights[0][0] > 0
    assert page.measured(page.measured(short)) == page.measured(short)
    folded = '<details class="admonition hide above-input"><span class="ln">x\n</span></details><mjx-assistive-mml>words</mjx-assistive-mml>'
    assert page.tall(folded) == 0 and page.tall('<span class="ln">x\n</span>') > 0 and page.tall("<svg></svg>") == page.PICTURE


CSS = """@charset "UTF-8"; /* a { */ .used, .none:hover, a.used > .none { color: red; content: "}/*" }
.none { top: 0 } :is(.none, .used) b, [class~=none], .x\\:y { top: 1px } .bs-tooltip-auto { top: 2px }
@media print { .none { top: 3px } #name:not(.none)::after { top: 4px } } @media screen { .none { top: 5px } }
@font-face { src: url(data:font/woff2;base64,AAA) } @import "b.css"; .used { background: url("../x/c.svg?v=1") url('data:a,{') }"""


def test_rules_go_that_match_nothing(tmp_path):
    "A class that occurs nowhere cannot match; what stands in brackets may hold without it."
    done = bundle.trimmed(CSS, {"used", "name", "x:y"})
    assert [line.split("{")[0] for line in done.split("\n")] == [
        '@charset "UTF-8";', ".used", ":is(.none, .used) b,[class~=none],.x\\:y", ".bs-tooltip-auto", "@media print", "@font-face", '@import "b.css";', ".used"]
    assert 'content: "}' in done and "top: 4px" in done and not re.search("top: [035]px|top: 0", done)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.css").write_text(CSS)
    (tmp_path / "s" / "b.css").write_text(".used { background: url(d.png) }")
    whole = bundle.sheet(tmp_path, "s/a.css")
    assert 'url("x/c.svg")' in whole and 'url("s/d.png")' in whole and "url(data:font/woff2;base64,AAA)" in whole and "@import" not in whole


HEAD = """<html><head><script data-cfasync="false">slow()</script><link rel="stylesheet" href="{0}_static/a.css?v=1" /><link href="{0}_static/b.css" rel="stylesheet"><link rel="stylesheet" href="{0}_static/book.css">
<link rel="preload" as="script" href="{0}_static/z.js" /><script src="{0}_static/one.js?v=2"></script><script>let toggleHint = 1;</script>
<script src="{0}_static/two.js"></script><script>DOCUMENTATION_OPTIONS.pagename = 'p';</script>{1}</head><body class="here"><script>own()</script><script defer src="{0}_static/z.js"></script></body></html>"""


def test_a_page_asks_for_one_stylesheet_and_one_script(tmp_path):
    "In the order in which the theme asks; explorers and the search keep theirs; a page that is not written again keeps up."
    static = tmp_path / "_static"
    (static / "explorers").mkdir(parents=True)
    for name in ("one", "two", "z", "searchtools"):
        (static / f"{name}.js").write_text(f'("{name}")')
    (static / "a.css").write_text(".here, .made { top: 0 } .nowhere { top: 0 }")
    (static / "b.css").write_text(".here { top: 1px }")
    (static / "explorers" / "e.js").write_text('x.className = "made"')
    (static / "book.css").write_text(".nowhere { top: 2px }")
    more = '<script defer src="../_static/explorers/e.js"></script>', '<script src="../_static/searchtools.js"></script><script src="searchindex.js"></script>'
    pages = {tmp_path / f"{i}.html": HEAD.format("../", one) for i, one in enumerate(more)}
    done = bundle.bundle(pages, static, tmp_path / "kept.json")
    assert (static / "styles.css").read_text().split("\n") == [".here,.made{top: 0}", ".here{top: 1px}", ".nowhere { top: 2px }"]
    assert (static / "scripts.js").read_text().split("\n;\n") == ['("one")', "let toggleHint = 1;", '("two")', '("z")']
    for text, kept in zip(done.values(), (["explorers/e"], ["searchtools", "searchindex"])):
        asked = re.findall(r'<(?:script defer src|link rel="stylesheet" href)="(?:\.\./_static/)?([\w/]+)', text)
        assert asked == ["styles", "scripts", *kept] and len(re.findall("<link", text)) == 1
        assert "slow()" not in text and "matchMedia" in text and "own()" in text
    (static / "b.css").write_text(".here { top: 2px }")
    again = bundle.bundle(done, static, tmp_path / "kept.json")
    assert "top: 2px" in (static / "styles.css").read_text()
    old, new = (re.findall(r"\?v=(\w+)", next(iter(texts.values()))) for texts in (done, again))
    assert old[0] != new[0] and old[1] == new[1]


def test_a_script_that_no_page_asks_for_any_more_leaves_the_bundle(tmp_path):
    "Another page, written in an earlier build, keeps its own; one that is gone keeps nothing."
    static = tmp_path / "_static"
    static.mkdir()
    for name in "abcd":
        (static / f"{name}.js").write_text(f'("{name}")')
        (static / f"{name}.css").write_text("")

    def page(*names):
        asked = "".join(f'<link rel="stylesheet" href="_static/{name}.css"><script src="_static/{name}.js"></script>' for name in names)
        return f"<head>{asked}</head><body></body>"

    def built(pages):
        done = bundle.bundle(pages, static, tmp_path / "kept.json")
        return done, re.findall(r'"(\w)"', (static / "scripts.js").read_text())
    one, two, three = (tmp_path / f"{name}.html" for name in ("one", "two", "three"))
    first, scripts = built({one: page("a", "b"), two: page("a", "c"), three: page("d")})
    assert set(scripts) == set("abcd")
    for name in "bd":
        (static / f"{name}.js").unlink()
        (static / f"{name}.css").unlink()
    _, scripts = built({one: page("a"), two: first[two]})
    assert scripts == ["a", "c"]


def test_a_page_is_read_again_when_its_element_or_a_name_changes():
    noted = set()
    env = SimpleNamespace(note_dependency=noted.add, found_docs={"notebooks/05-layers", "book/api", "book/index", book.MAP}, annotated_names={"a": "m.a"},
                          annotated_namesakes=set(), annotated_public={})
    app = SimpleNamespace(env=env, config=SimpleNamespace(root_doc="index"))
    doctree = nodes.document(None, None)
    doctree += [nodes.raw("", f"<annotated-{name}>", format="html") for name in ("ablation", "nothing", "translator")]
    explorers.depend(app, doctree)
    names = {path.removeprefix(f"{ROOT}/") for path in noted}
    static = "book/_static/explorers"
    assert {f"{static}/ablation.js", f"{static}/shared.js", f"{static}/engine.js", f"{static}/explorers.css", "book/paper.json",
            "results/17-norm-first/runs/base-1.json", "results/tatoeba-en-de/log.jsonl", "annotated/page.py"} <= names
    assert all(Path(path).is_file() for path in noted) and f"{static}/lookup.js" not in names

    assert set(book.outdated(app, env, [], [], [])) == {"book/api", "book/index", book.MAP}
    env.annotated_names = {"a": "m.a", "b": "m.b"}
    assert set(book.outdated(app, env, [], [], [])) == env.found_docs
    assert set(book.outdated(app, env, [], [], [])) == {"book/api", "book/index", book.MAP}


def test_all_pages_are_written_again_when_one_has_another_title():
    env = SimpleNamespace(found_docs={"a", "b"}, titles={"a": nodes.title("", "A"), "b": nodes.title("", "B")})
    assert book.retitled(None, env) == book.retitled(None, env) == []
    env.titles["b"] = nodes.title("", "C")
    assert book.retitled(None, env) == ["a", "b"]
    assert book.retitled(None, env) == []


def test_the_pages_with_the_map_are_always_read_again():
    found = {path.stem for path in (ROOT / "book").glob("*.md") if "{model-map}" in path.read_text(encoding="utf-8")}
    assert found == {"index", Path(book.MAP).name}


def test_a_page_whose_text_is_gone_goes(tmp_path):
    for name in ("notebooks/02-a.html", "notebooks/99-gone.html", "book/api/gone.html", "search.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    app = SimpleNamespace(env=SimpleNamespace(found_docs={"notebooks/02-a"}))
    assert [path.name for path in page.gone(app, tmp_path)] == ["gone.html", "99-gone.html"]


def test_the_themes_script_measures_no_box_at_the_end_and_names_no_map(tmp_path, caplog):
    "A theme that does it in other words is told, so that a build with -W stops."
    name = "scripts/pydata-sphinx-theme.js"
    (tmp_path / "scripts").mkdir()
    (tmp_path / name).write_text(f"a();{bundle.ASKS};b()\n//# sourceMappingURL=theme.js.map\n")
    assert bundle.script(tmp_path, name).strip() == "a();0;b()" and not caplog.records
    (tmp_path / name).write_text("a();b()")
    assert bundle.script(tmp_path, name) == "a();b()" and len(caplog.records) == 1


def test_a_script_that_is_data_stays_where_it_stands():
    "Sphinx and its extensions keep settings in one; as code it would stop the whole bundle."
    data = '<script type="application/json">let toggle = {}</script>'
    text, _, scripts, _ = bundle.parted(f"<head></head>{data}<script>let toggle = 1;</script>")
    assert data in text and scripts == ["let toggle = 1;"]


def test_pages_with_more_of_their_own_agree_on_one_order():
    assert bundle.merged([("a", "b", "e"), ("a", "e"), ("a", "c", "e", "f")]) == ["a", "b", "c", "e", "f"]
    assert bundle.merged([("a", "b", "c", "d"), ("a", "d", "x")]) == ["a", "b", "c", "d", "x"]


def test_the_theme_asks_for_the_inside_of_no_element(caplog):
    "A browser would ask again at every change of the page; what is new in the theme is told, so that a build with -W stops."
    words = {"toggle", "copybtn", "highlight", "text_html", "only-dark", "cell", "viewcode-link", "new"}
    css = """.toggle:has(:focus-visible) b, .toggle { top: 0 } div.highlight:has(button.copybtn) { top: 1px }
        @media print { .text_html:not(:has(table.dataframe)) { top: 2px } } .only-dark~figcaption, .only-dark { top: 3px }
        div.cell:has(>
        *:nth-child(2)) b, a:has(.viewcode-link) { top: 4px } .cell:not(:has(.highlight)) { top: 5px }"""
    assert [line.split("{")[0] for line in bundle.trimmed(css, words).split("\n")] == [
        ".toggle:focus-within b,.toggle", ":is(div.cell_input, div.highlight-bash) div.highlight", "@media print", ".only-dark"]
    assert ".text_html{top: 2px}" in bundle.trimmed(css, words) and not caplog.records
    bundle.trimmed(".new:has(b) { top: 0 }", words)
    assert len(caplog.records) == 1 and ".new:has(b)" in caplog.text


def test_the_front_page_has_room_for_two_columns():
    "Once, and no other page."
    around = '<div class="bd-article-container"><article>{}</article></div>'
    wide = page.roomy(around.format('<div class="front docutils container">'))
    assert wide.count('class="bd-article-container front-page"') == 1 and page.roomy(wide) == wide
    assert page.roomy(around.format("<p>front</p>")) == around.format("<p>front</p>")


def test_an_image_keeps_its_place(tmp_path):
    (tmp_path / "a.svg").write_text('<svg xmlns="x" width="72pt" height="36pt" viewBox="0 0 9 9">')
    (tmp_path / "b.svg").write_text('<svg viewBox="0 0 640 480">')
    page.size.cache_clear()
    assert 'width="96" height="48" loading="lazy"' in page.spaced('<img alt="x" src="a.svg"/>', tmp_path)
    assert 'width="640" height="480"' in page.spaced('<img src="b.svg" alt="y">', tmp_path)
    for same in ('<img src="a.svg" width="5">', '<img src="c.svg">', '<img src="https://x.org/a.svg">'):
        assert page.spaced(same, tmp_path) == same


def luminance(colour: str) -> float:
    parts = [int(colour.lstrip("#")[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_words_in_figures_have_a_contrast_of_four_and_a_half():
    "On the page's grounds, which book.css names, each in its theme; every colour of the figures' style is known."
    css = (ROOT / "book/_static/book.css").read_text(encoding="utf-8")
    grounds = [luminance(colour) for colour in re.findall(r"--paper: (#[0-9a-f]{6});", css)]
    assert len(grounds) == 2
    for theme, ground in enumerate(grounds):
        for pair in figures.WORDS.values():
            dark, light = sorted([luminance(pair[theme]), ground])
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (theme, pair)
    style = (ROOT / "book/annotated.mplstyle").read_text(encoding="utf-8")
    assert set(re.findall(r"\b[0-9a-f]{6}\b", style)) <= set(figures.WORDS)


def test_a_figure_comes_in_two_versions(tmp_path):
    (tmp_path / "_images").mkdir()
    figure = tmp_path / "_images" / "f.svg"
    figure.write_text('<text style="font-size: 9px; fill: #767676">a</text><path style="fill: #767676"/>')
    done = figures.themed('<img alt="x" class="y" src="_images/f.svg"><img src="_images/none.svg">', tmp_path)
    assert done == ('<img alt="x" class="only-light y" src="_images/f.svg"><img alt="x" class="only-dark y" src="_images/f-dark.svg">'
                    '<img src="_images/none.svg">')
    assert figure.read_text() == '<text style="font-size: 9px; fill: #5d5a53">a</text><path style="fill: #767676"/>'
    assert "#a9a69d" in (tmp_path / "_images" / "f-dark.svg").read_text()
    assert figures.themed(done, tmp_path) == done


def test_a_formula_in_a_figure_is_a_word_of_it():
    formula = '<text><tspan style="fill: #767676">d</tspan></text><g style="fill: #767676"><path/></g>'
    assert figures.coloured(formula, 1) == formula.replace("767676", "a9a69d", 1)


def test_what_is_pale_stands_out_on_dark():
    bars = '<path style="fill: #7d6bb5; opacity: 0.45"/><path style="fill: #7d6bb5"/><path style="fill: #7d6bb5; opacity: 1"/>'
    assert figures.coloured(bars, 0) == bars and figures.coloured(bars, 1) == bars.replace("7d6bb5", "ab9be0", 1)


def test_a_figure_has_the_narrow_version_of_its_notebook(tmp_path, monkeypatch):
    wide = '<svg width="460pt" height="200pt"><text style="fill: #767676">a</text></svg>'
    below = '<svg width="270pt" height="300pt"><text style="fill: #767676">b</text></svg>'
    monkeypatch.setattr(figures, "narrow_versions", lambda: {wide: below})
    (tmp_path / "_images").mkdir()
    (tmp_path / "_images" / "f.svg").write_text(wide + "\n")
    done = figures.themed('<img alt="x" src="_images/f.svg">', tmp_path)
    sources = re.findall(r'<source media="\(max-width: 480px\)" srcset="([^"]*)" width="(\d+)" height="(\d+)">', done)
    assert sources == [("_images/f-narrow.svg", "360", "400"), ("_images/f-narrow-dark.svg", "360", "400")]
    assert [(tmp_path / name).read_text().count(hue) for (name, *_), hue in zip(sources, ("#5d5a53", "#a9a69d"))] == [1, 1]
    assert figures.themed(done, tmp_path) == done


def test_only_the_search_page_asks_for_the_index():
    head = '<script src="../_static/searchtools.js"></script><script src="../searchindex.js"></script><meta name="viewport" a><meta name="viewport" b>'
    assert page.lighter(head, search=False) == '<meta name="viewport" a>'
    assert "searchindex" in page.lighter(head, search=True)


def test_the_front_page_stands_at_the_root(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "index.html").write_text('<html data-content_root="../"><a href="../x/y.html"><a href="api.html"><a href="#z"><a href="https://a.b/">')
    app = SimpleNamespace(config=SimpleNamespace(root_doc="book/index"))
    page.root(app, tmp_path)
    assert (tmp_path / "index.html").read_text() == '<html data-content_root="./"><a href="x/y.html"><a href="book/api.html"><a href="#z"><a href="https://a.b/">'


def test_a_name_with_a_namesake_needs_its_full_name():
    names, same = api.names(), api.namesakes()
    assert "scaled_dot_product_attention" in names and "scaled_dot_product_attention" not in same
    assert {"step", "mask", "forward"} <= same  # methods, parameters
    code = "def look(x):\n    y = x\n    self.z = y\n"
    assert api.bound(ast.parse(code)) == {"look", "x", "y", "z"}


def test_suggest_edit_opens_the_text():
    assert book.source("notebooks/02-attention") == "book/02-attention.md"
    assert book.source("book/api/attention") == "book/02-attention.md"
    assert book.source("book/A-notation") == "book/A-notation.md"
    assert book.source("book/questions") is None
    button = {"label": "source-edit-button", "url": "https://github.com/a/b/edit/main/notebooks/02-attention.ipynb"}
    (group,) = book.edits("notebooks/02-attention", [{"buttons": [button, {"label": "other"}]}])
    assert [b.get("url") for b in group["buttons"]] == ["https://github.com/a/b/edit/main/book/02-attention.md", None]
    assert book.edits("book/questions", [button]) == []


@pytest.mark.parametrize("place, anchor", [
    ("3.2.1", "#S3.SS2.SSS1"), ("4 (last paragraph)", "#S4"), ("Abstract", ""), ("Figure 2 (left, the mask)", "#S3.SS2"), ("Table 4", "#S6.SS3"),
])
def test_a_place_in_the_paper_leads_there(place, anchor):
    assert book.paper_link(place)["refuri"] == book.PAPER + anchor


def test_a_page_is_described_without_citations_and_a_page_of_questions_by_its_first():
    assert page.cut("The Transformer [Vaswani et al., 2017, Ba et al., 2016a], run [here].") == "The Transformer, run [here]."
    assert page.cut("word " * 40) == " ".join(["word"] * 31) + "..."
    titles = [nodes.title("", text) for text in ("Questions: a", "Why?", r"Is \\sqrt{x} x?", "How?", "When?", "Notes")]
    assert page.questions(nodes.section("", *titles)) == "Why? How?"


def test_the_page_of_what_is_not_found_asks_by_addresses_from_the_root():
    app = SimpleNamespace(outdir="out", config=SimpleNamespace(notfound_urls_prefix="/book/"))
    assert [page.up(app, Path("out", name)) for name in ("404.html", "notebooks/a.html")] == ["/book/", "../"]


def test_the_index_has_the_glossarys_terms():
    assert {"label smoothing", "learning rate"} <= set(search.terms("9"))
    assert {"key-value cache", "KV cache", "cached"} <= set(search.terms("7"))
    assert search.terms("no") == []


def test_the_index_has_what_a_chapter_has_of_the_paper():
    "A part of a table leads to its chapter after the chapter that has the whole."
    found = search.places(["3.2.1", "Eq. 1", "Table 3 (sizes)", "Abstract", "4 (last paragraph)"])
    assert found == [("section 3.2.1", True), ("equation 1", True), ("Table 3", False), ("Abstract", True), ("section 4", False)]


# ---- numbers of figures

FIGURES = {
    "index": "Book\n====\n\n.. toctree::\n\n   notebooks/02-a\n   notebooks/03-b\n   C-c\n",
    "notebooks/02-a": "A\n=\n\n.. figure:: x.png\n\n   One.\n",
    "notebooks/03-b": "B\n=\n\n.. figure:: x.png\n\n   Two.\n\n.. figure:: x.png\n\n   Three.\n",
    "C-c": "C\n=\n\nNo figure.\n",
}


def searched_thrice(folder):
    "The entries of the search after builds: the first; with a word more in A; without B."
    from sphinx.application import Sphinx

    folder, found = Path(folder), []
    texts = {"index": "Book\n====\n\n.. toctree::\n   :glob:\n\n   *\n"}
    texts |= {name: f"Page {name}\n======\n" for name in "ab"}
    for name, text in (texts | {"a again": texts["a"] + "\nMore.\n", "b gone": None}).items():
        path = folder / f"{name.split()[0]}.rst"
        path.write_text(text) if text else path.unlink()
        if name in ("index", "a"):
            continue
        app = Sphinx(folder, None, folder / "out", folder / "trees", "html", status=None, warning=None)
        app.connect("doctree-read", lambda app, doctree: search.index(app.env, doctree, {"a": "2", "b": "7"}.get(app.env.docname, ""), ["Table 3"]))
        app.connect("env-updated", search.keep)
        app.build()
        script = (folder / "out" / "searchindex.js").read_text()
        index = json.loads(script.removeprefix("Search.setIndex(").removesuffix(")"))
        found.append({word: sorted([index["docnames"][page], main] for page, _, main in places) for word, places in index["indexentries"].items()})
    print(json.dumps(found))


def test_a_page_that_is_not_written_again_keeps_its_entries_in_the_search(tmp_path):
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_mechanics; test_mechanics.searched_thrice({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first, again, without = json.loads(done.stdout)
    assert first == again and first["attention"] == [["a", True]] and first["transformer"] == [["b", True]]
    assert first["table 3"] == [["a", True], ["b", True]]
    assert without["table 3"] == without["attention"] == [["a", True]] and "transformer" not in without


class Connected:
    "Takes the place of Sphinx in an extension's setup, and notes what that connects."

    def __init__(self):
        self.handlers = []

    def connect(self, event, handler, **options):
        self.handlers.append((event, handler, options))

    def __getattr__(self, name):
        return lambda *_, **__: None


def built_once(folder):
    "The pages that a build in this folder writes, and the numbers of figures, when Sphinx and annotated_book number them."
    from sphinx.application import Sphinx

    app = Sphinx(folder, None, folder / "out", folder / "trees", "text", confoverrides={"numfig": True}, status=None, warning=None)
    ours, written = Connected(), []
    book.setup(ours)
    for event, handler, options in ours.handlers:
        if event == "env-get-updated":
            app.connect(event, handler, **options)
    app.connect("doctree-resolved", lambda app, doctree, docname: written.append(docname))
    app.build()
    return sorted(written), {name: found["figure"] for name, found in app.env.toc_fignumbers.items()}


def built_four_times(folder):
    "Builds: the first; with a word more in C, which has no figure; with one more in A; with a figure more in A."
    folder = Path(folder)
    for name, text in FIGURES.items():
        path = folder / f"{name}.rst"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (folder / "notebooks/x.png").touch()  # a page whose image is missing is read at every build
    builds = [built_once(folder)]
    for name, more in (("C-c", "\nMore.\n"), ("notebooks/02-a", "\nMore.\n"), ("notebooks/02-a", "\n.. figure:: x.png\n\n   Four.\n")):
        path = folder / f"{name}.rst"
        path.write_text(path.read_text() + more)
        builds.append(built_once(folder))
    print(json.dumps(builds))


def test_a_page_with_figures_is_written_anew_only_where_something_changed(tmp_path):
    "In a process of its own: Sphinx keeps the log of the process for itself."
    code = f"import sys; sys.path[:0] = {sys.path!r}; import test_mechanics; test_mechanics.built_four_times({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first, no_figure, a_word, a_figure = json.loads(done.stdout)
    numbers = {"notebooks/02-a": {"id1": ["2", 1]}, "notebooks/03-b": {"id1": ["3", 1], "id2": ["3", 2]}}
    assert first == [sorted(FIGURES), numbers]
    assert no_figure == [["C-c", "index"], numbers], "the index lists what changed"
    assert a_word == [["index", "notebooks/02-a"], numbers]
    # Sphinx itself numbers through the book, and takes it that B's figures have other numbers now.
    assert a_figure == [["index", "notebooks/02-a", "notebooks/03-b"], numbers | {"notebooks/02-a": {"id1": ["2", 1], "id2": ["2", 2]}}]
