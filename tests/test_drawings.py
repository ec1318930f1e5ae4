"""The schematic drawings: current, legible on a phone, in both themes and to a screen reader."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import annotated_inline
import drawings
import pytest
import torch
from drawing import canvas
from programs import BENCHMARKS, loaded

ROOT = Path(__file__).resolve().parent.parent
NAMES = list(drawings.drawn())
PHONE, LEAST = 328, 11  # width of the text on a small phone, and the smallest letters there, in pixels
SVG = "{http://www.w3.org/2000/svg}"
FILLS = {"qfill": "--query", "kfill": "--key", "vfill": "--value", "ofill": "--output", "block": "--soft", "dark": "--soft"}


def text_of(name: str) -> str:
    return (drawings.FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=NAMES)
def made(request):
    "Each drawing's canvas, made once."
    return drawings.drawn()[request.param]()


def test_a_drawing_is_current(made):
    path = drawings.FOLDER / f"{made.name}.svg"
    assert path.exists() and path.read_text(encoding="utf-8") == made.svg(), f"python tools/drawings.py {made.name}"


def test_the_task_drawn_is_one_of_the_record():
    "Its first sentence over eight words with seed 2."
    recall = loaded(BENCHMARKS / "16_recall.py")
    ids, values = recall.examples(8, recall.BATCH, torch.Generator().manual_seed(1_000_003 * 2 + 8))
    *facts, question = ids[0].tolist()
    facts, filler = facts[: recall.FACTS], facts[recall.FACTS :]
    letters, first = "abcd", recall.KEYS * recall.VALUES
    wanted = [f"{letters[fact // recall.VALUES]} = {fact % recall.VALUES}" for fact in facts]
    wanted += [str(word - first) for word in filler]
    wanted += [f"{letters[question - first - recall.FILLING]} ?", str(values[0].item())]
    assert len(letters) == recall.KEYS
    assert re.findall(r"<text[^>]*>([^<]*)</text>", text_of("recall-task"))[: len(wanted)] == wanted


def test_the_words_of_the_model_are_read_on_a_phone():
    "Those of its large drawing, which fills a column between margins."
    text = text_of("model")
    width = float(re.search(r'viewBox="0 0 (\d+)', text)[1])
    assert min(float(size) for size in re.findall(r'font-size="([\d.]+)"', text)) * (PHONE - 18) / width >= 10


def test_every_drawing_has_its_function():
    files = {path.stem for path in drawings.FOLDER.glob("*.svg") if 'class="drawing"' in path.read_text(encoding="utf-8")}
    assert files == set(NAMES)


def test_the_check_sees_an_old_file(tmp_path):
    name = NAMES[0]
    assert drawings.stale([name], tmp_path)
    (tmp_path / f"{name}.svg").write_text(text_of(name), encoding="utf-8")
    assert not drawings.stale([name], tmp_path)
    (tmp_path / f"{name}.svg").write_text(text_of(name).replace("<title>", "<title>Old: "), encoding="utf-8")
    assert drawings.stale([name], tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_complete_and_has_no_colours_of_its_own(name):
    text = text_of(name)
    root = ElementTree.fromstring(text)
    assert root.get("viewBox") == f"0 0 {canvas.WIDTH} {root.get('viewBox').split()[-1]}"
    assert root[0].tag == f"{SVG}title" and len(root[0].text.split()) >= 2
    assert root[1].tag == f"{SVG}desc" and len(root[1].text.split()) >= 12
    body = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    assert not re.search(r'\b(style|fill|stroke|font-\w+)="|#[0-9a-fA-F]{3,8}\b|rgb|\burl\(', body)
    assert not re.search(r'\bid="', body)  # several drawings may stand on one page
    css = (canvas.STYLES / "drawing.css").read_text(encoding="utf-8")
    known = set(re.findall(r"\.([a-z]\w*)", re.sub(r"/\*.*?\*/", "", css, flags=re.S)))
    used = {kind for e in root.iter() for kind in (e.get("class") or "").split()}
    assert used <= known, used - known


def test_words_are_large_enough_and_lie_where_they_should(made):
    scale = PHONE / canvas.WIDTH
    page = canvas.Area(0, 0, canvas.WIDTH, made.height)
    for label in made.labels:
        a = label.area
        assert label.size * scale >= LEAST, label.words
        holder = label.holder or page
        inside = holder.left <= a.left and a.right <= holder.right and holder.top <= a.top and a.bottom <= holder.bottom
        assert inside, f"{label.words!r} at {a} leaves {holder}"
    for i, one in enumerate(made.labels):
        for other in made.labels[:i]:
            a, b = one.area, other.area
            apart = a.right <= b.left or b.right <= a.left or a.bottom <= b.top + 1 or b.bottom <= a.top + 1
            assert apart, f"{one.words!r} lies on {other.words!r}"


@pytest.mark.parametrize("name", NAMES)
def test_no_dot_and_no_box_is_cut_by_the_edge(name):
    root = ElementTree.fromstring(text_of(name))
    _, _, wide, high = map(float, root.get("viewBox").split())
    for e in root.iter():
        at = {key: float(e.get(key, 0)) for key in ("cx", "cy", "r", "x", "y", "width", "height") if "ground" not in e.get("class", "")}
        if at and e.tag == f"{SVG}circle":
            left, top, right, low = at["cx"] - at["r"], at["cy"] - at["r"], at["cx"] + at["r"], at["cy"] + at["r"]
        elif at and e.tag == f"{SVG}rect":
            left, top, right, low = at["x"], at["y"], at["x"] + at["width"], at["y"] + at["height"]
        else:
            continue
        assert left >= 0 and top >= 0 and right <= wide and low <= high, (e.attrib, wide, high)


def test_no_bar_over_a_run_of_words_lies_on_another():
    bars = ElementTree.fromstring(text_of("bleu")).iterfind(f".//{SVG}rect[@class='bar obar']")
    rows = {}
    for bar in bars:
        x, y, wide = (int(bar.get(key)) for key in ("x", "y", "width"))
        rows.setdefault(y, []).append((x, x + wide))
    assert sum(map(len, rows.values())) == 4 + 3 + 2
    for row in map(sorted, rows.values()):
        assert all(end <= start for (_, end), (start, _) in zip(row, row[1:]))


def test_a_fault_of_layout_is_seen():
    c = canvas.Canvas("trial", 40, "A trial", "words")
    c.box(10, 10, 20, 20, "too long for it")
    with pytest.raises(AssertionError, match="leaves"):
        test_words_are_large_enough_and_lie_where_they_should(c)
    c = canvas.Canvas("trial", 40, "A trial", "words")
    c.text(100, 20, "one")
    c.text(105, 22, "other")
    with pytest.raises(AssertionError, match="lies on"):
        test_words_are_large_enough_and_lie_where_they_should(c)


def light(colour: str) -> float:
    "Relative luminance of #rrggbb."
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: str, ground: str, opacity: float) -> str:
    "A colour seen through."
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a * opacity + b * (1 - opacity)):02x}" for a, b in pairs)


def rules() -> dict[str, str]:
    "Class -> its rule in drawing.css."
    css = (canvas.STYLES / "drawing.css").read_text(encoding="utf-8")
    return dict(re.findall(r"^\.drawing \.(\w+) \{ (.*?) \}", css, re.M))


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_words_stand_out_from_what_they_lie_on(theme):
    "4.5:1 for every hue of words on paper, in print on white, and on the tints of boxes."
    colours = canvas.palette("light" if theme == "print" else theme)
    paper = "#ffffff" if theme == "print" else colours["--paper"]
    for hue in ("--ink", "--soft", "--query", "--key", "--value", "--output"):
        assert contrast(colours[hue], paper) >= 4.5, hue
        assert contrast(colours[hue], colours["--plate"]) >= 4.5, hue
    given = rules()
    assert given["small"] == f"font-size: {canvas.SMALL}px;"  # what is measured is what is shown
    for kind, hue in FILLS.items():
        opacity = float(re.search(r"fill-opacity: ([\d.]+)", given[kind])[1])
        ground = over(colours[hue], paper, opacity)
        assert contrast(colours["--ink"], ground) >= 4.5, kind


def test_attention_weights_have_the_map_of_all_figures():
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.colors import to_hex

    given = rules()
    for i in range(canvas.SHADES + 1):
        shade = to_hex(matplotlib.colormaps["viridis"](i / canvas.SHADES))
        assert given[f"w{i}"] == f"fill: {shade};"
        assert contrast(shade, "#ffffff" if i < 5 else "#000000") >= 4.5


def test_a_drawing_becomes_a_part_of_the_page():
    alt = 'Q meets K, "by hand" & more'
    svg = annotated_inline.inline(text_of(NAMES[0]), alt)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == alt and root.get("class") == "drawing"
    assert root.get("width") is None and root.get("viewBox").endswith(root.get("style").removeprefix("--high:"))
    assert not {e.tag for e in root.iter()} & {f"{SVG}style", f"{SVG}title", f"{SVG}desc"}
    whole = ElementTree.fromstring(text_of(NAMES[0]))
    assert len(root.findall(f"{SVG}text")) == len(whole.findall(f"{SVG}text")) > 0
    assert annotated_inline.inline('<svg xmlns="http://www.w3.org/2000/svg" class="model"></svg>', alt) is None


class App:
    "What `resolve` needs of Sphinx."

    def __init__(self, format: str):
        self.srcdir, self.builder = ROOT, type("Builder", (), {"format": format})


def document(*images: tuple[str, str]):
    from docutils import nodes
    from docutils.utils import new_document

    page = new_document("page")
    page += [nodes.paragraph("", "", nodes.image(uri=uri, alt=alt)) for uri, alt in images]
    return page


def test_the_page_takes_in_drawings_and_no_other_images():
    from docutils import nodes

    drawn, other = f"book/img/{NAMES[0]}.svg", "book/img/model.svg"
    page = document((drawn, "a drawing"), (other, "the model"), ("book/img/page.png", "a page"))
    annotated_inline.resolve(App("html"), page, "page")
    assert [e["uri"] for e in page.findall(nodes.image)] == [other, "book/img/page.png"]
    (raw,) = page.findall(nodes.raw)
    assert raw["format"] == "html" and 'aria-label="a drawing"' in raw.astext()
    page = document((drawn, "a drawing"))
    annotated_inline.resolve(App("latex"), page, "page")
    assert len(list(page.findall(nodes.image))) == 1


def test_a_drawing_without_words_is_complained_of(monkeypatch):
    said = []
    monkeypatch.setattr(annotated_inline.log, "warning", lambda message, *rest, **_: said.append(message % rest))
    annotated_inline.resolve(App("html"), document((f"book/img/{NAMES[0]}.svg", " ")), "page")
    assert len(said) == 1 and NAMES[0] in said[0]
