"""The front page and the index of questions: nothing typed that is counted, read from a record, or found by name."""

import json
import re

import annotated_book
import annotated_front as front
import collect
import find
import layout
import pytest
from bs4 import BeautifulSoup
from chapters import ROOT, Refused, paths, read, woven
from docutils import nodes
from docutils.core import publish_doctree

INDEX = (ROOT / "book" / "index.md").read_text(encoding="utf-8")


# ---- find it fast

EIGHT = [
    "Where are the scores scaled, and why?",
    "Which axis is masked?",
    "Where would I put the norm first?",
    "What do the embeddings and the last layer share?",
    "What changes from base to big?",
    "Where does the rate peak?",
    "How does beam search stop?",
    "Where do we differ from the paper?",
]


def test_the_eight_questions_are_answered():
    assert [row.question for row in find.ROWS] == EIGHT
    assert "```{find-it-fast}" in INDEX


@pytest.mark.parametrize("row", find.ROWS, ids=lambda row: row.question)
def test_an_answer_has_its_lines_and_its_page(row):
    assert row.code or row.page == "book/B-differences"
    for place in row.code:
        module = (ROOT / "annotated" / f"{place.name.split('.')[0]}.py").read_text(encoding="utf-8").splitlines()
        assert place.text in module[find.line(place) - 1]
    folder, stem = row.page.split("/")
    assert (ROOT / "book" / f"{stem}.md").exists() and (folder == "book") == (stem == "B-differences")


@pytest.mark.parametrize("name, text, message", [
    ("masks.causal_mask", ".triu()", "stands in 0 lines of masks.causal_mask"),
    ("masks.causal_mask", "T", "lines of masks.causal_mask, one is wanted"),
    ("masks.square_mask", "return", "annotated/masks.py has no square_mask"),
    ("mask.causal_mask", "return", "there is no annotated/mask.py"),
])
def test_a_line_that_moved_away_is_refused(name, text, message):
    with pytest.raises(Refused, match=message):
        find.line(find.Place(name, text))


def test_a_line_is_looked_for_within_its_name(book):
    package = book.root / "annotated"
    package.mkdir(exist_ok=True)
    (package / "x.py").write_text("def a():\n    return 1\n\n\ndef b():\n    return 1\n\n\nC = (\n    1\n)\n")
    assert [find.line(find.Place(f"x.{name}", text), book.root) for name, text in (("a", "ret"), ("b", "ret"), ("C", "1"))] == [2, 6, 10]


# ---- pages


def test_questions_count_by_themselves():
    """Figure 2.1 is the chapter's, figure Q2.1 one of its questions."""
    names = ["notebooks/02-attention", "notebooks/02-attention-questions", "notebooks/E-bugs", "book/questions"]
    assert [annotated_book.letter(name) for name in (*names, "book/api", "book/api/attention")] == ["2", "Q2", "E", "", "C", ""]
    assert [annotated_book.asks(name) for name in names] == [False, True, False, False]


def test_a_fold_of_the_sidebar_is_named_after_its_page():
    page = '<li><a href="x">2\n <b>Attention</b></a><details><summary></summary><ul><li><a href="y">Deeper</a></li></ul></details></li>'
    tree = annotated_book.named(BeautifulSoup(f"<ul>{page}</ul>", "html.parser"))
    assert [fold["aria-label"] for fold in tree.select("summary")] == ["Pages below 2 Attention"]
    assert annotated_book.named("") == "", "a page without a tree"


# ---- minutes


def test_minutes_are_those_of_the_budget():
    for stem in ("the-hour", "13-command-line"):
        assert front.minutes(stem) == layout.size(read(ROOT / "book" / f"{stem}.md")).minutes
    assert front.minutes("questions-of-nobody") is None


def test_minutes_are_said_in_words():
    assert [front.spoken(n) for n in (1, 14, 114, 120, 550)] == ["1 minute", "14 minutes", "114 minutes", "2 hours", "9 hours"]


def test_on_a_phone_the_doors_stand_before_the_translator():
    assert INDEX.index("{container} doors") < INDEX.index("```{translator}") < INDEX.index("```{record-numbers}")


def test_the_doors_have_their_minutes():
    assert re.findall(r"\{minutes\}`([^`]+)`", INDEX) == ["the-hour", "main line", "13-command-line"]


def test_the_two_lines_under_a_title_get_their_minutes(monkeypatch):
    monkeypatch.setattr(front, "minutes", lambda stem: {"02-x": 14}[stem])
    page = publish_doctree("A word.\n\n**Needed first:** *chapter* 1.\n**May be skipped:** all of it.\n\nMore.")
    assert front.opening(page, "02-x")
    (block,) = page.findall(nodes.line_block)
    assert [line.astext().strip() for line in block] == [
        "Takes: 14 minutes to read, exercises apart.", "Needed first: chapter 1.", "May be skipped: all of it."]
    assert not front.opening(publish_doctree("Needed first: nothing."), "02-x")


def test_the_main_line_is_every_chapter_in_its_part():
    listed = [stem for _, stems in front.contents() for stem in stems]
    assert listed == [path.stem for path in paths()]
    assert all(caption for caption, _ in front.contents())


# ---- numbers from records


def test_the_numbers_are_of_the_records(monkeypatch):
    worst, tatoeba, multi30k = (number for number, *_ in front.numbers())
    rows = json.loads((ROOT / "results/hour/scores.json").read_text())["seeds"]
    assert worst == f"{min(row['exact'] for row in rows)} of {rows[0]['sentences']}"
    score = json.loads((ROOT / "results/tatoeba-en-de/scores.json").read_text())["bleu"]
    assert tatoeba == f"{score:.1f} BLEU"
    folders = [ROOT / f"results/{front.MULTI30K}-{seed}" for seed in (1, 2, 3)]
    seeds = [json.loads((folder / "scores.json").read_text())["bleu"] for folder in folders if folder.exists()]
    assert len(seeds) > 1 and multi30k == f"{sum(seeds) / len(seeds):.2f} BLEU"
    real = front.record
    changed = {"seeds": [{"seed": 0, "seconds": 61.0, "exact": 7, "sentences": 9}]}
    monkeypatch.setattr(front, "record", lambda name, file: changed if name == "hour" else real(name, file))
    number, words, page = front.numbers()[0]
    assert number == "7 of 9" and "60 seconds" in words and page == "notebooks/the-hour"


def test_what_is_said_of_the_title_is_so():
    runs = json.loads((ROOT / "results/16-recall/scores.json").read_text())["runs"]
    made = {}
    for run in runs:
        made.setdefault((run["network"], run["n"]), []).append(run)
    rivals = {name for name, _ in made} - {"self-attention"}
    assert rivals == {"recurrent", "recurrent with attention", "dilated convolutions"}
    lengths = sorted(n for name, n in made if name == "recurrent" and len(made[name, n]) == 3)
    for n in lengths:
        slowest = max(run["updates"] for run in made["self-attention", n])
        assert all(slowest < min(run["updates"] for run in made[name, n]) / 3 for name in rivals)
        alone = [run["accuracy"] for run in made["recurrent", n]]
        assert min(alone) > 0.95 if n in lengths[:2] else max(alone) < 0.3
    assert sum(run["accuracy"] < 0.99 for n in lengths[:2] for run in made["recurrent", n]) == 1  # "with one seed nearly"
    assert len(lengths) >= 5 and "a fraction of the others' updates at every distance" in INDEX
    opened = json.loads((ROOT / "results/16-recall-open/scores.json").read_text())["runs"]
    for n in lengths[2:5]:
        assert len(found := [run["accuracy"] for run in opened if run["n"] == n]) == 3 and min(found) > 0.9
    assert lengths[-1] not in {run["n"] for run in opened}
    assert "recurrence alone fails at longer distances, and gets further with gates that at first keep nearly all of the state" in INDEX


def test_what_is_said_of_equal_computation_is_so():
    runs = json.loads((ROOT / "results/15-budgets/scores.json").read_text())["runs"]

    def losses(name, budget):
        made = [run for run in runs if (run["network"], run["budget"]) == (name, budget)]
        dropout = min((run for run in made if run["seed"] == 0), key=lambda run: run["perplexity"])["P_drop"]
        return [run["perplexity"] for run in made if run["P_drop"] == dropout]

    ours, first, rival = "Transformer", "Transformer, norm first", "convolutional"
    others = {1: (first, "recurrent", ours), 4: (first, "recurrent", rival)}
    assert all(max(losses(rival, 1)) < min(losses(name, 1)) for name in others[1])
    assert all(max(losses(mine, 4)) < min(losses(name, 4)) for mine in (ours, first) for name in ("recurrent", rival))
    assert all(len(losses(name, budget)) == 3 for budget in others for name in (ours, *others[4]))
    assert "at one budget a convolutional one predicts best, and at four times that budget Transformers do" in INDEX


def test_no_number_is_typed_on_the_front_page():
    text = INDEX.split("---\n", 2)[2]
    text = re.sub(r"```.*?```|\]\([^)]*\)|\{\w+\}`[^`]*`", "", text, flags=re.S)
    assert re.findall(r"\d+", text) == ["2017"]


def test_the_readme_has_the_front_pages_numbers():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("- **")] == [f"- **{number}** {words}." for number, words, _ in front.numbers()]


def test_the_readme_says_what_the_gpu_reached():
    ladder = json.loads((ROOT / "results/14-ladder/scores.json").read_text())["base"]
    best = max(ladder, key=lambda rung: rung.get("tokens a second", 0))
    assert best["rung"] == "packed rows, flexible attention, compiled, CUDA graphs" and 600_000 < best["tokens a second"] < 650_000
    assert "base trained on random identifiers at more than six hundred thousand target tokens a second, in 16 bits, compiled, with sentences packed into rows, FlexAttention, and the passes of an update recorded as CUDA graphs" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_leads_to_the_published_book():
    (owner, name) = re.search(r"  url: https://github\.com/([^/\s]+)/([^/\s]+)", (ROOT / "_config.yml").read_text(encoding="utf-8")).groups()
    assert f"**[Read it](https://{owner}.github.io/{name}/)**" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_has_the_same_doors():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert not [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]
    for door in ("notebooks/the-hour.ipynb", "notebooks/00-the-paper.ipynb", "notebooks/13-command-line.ipynb"):
        assert door in links
        assert door.split("/")[1].removesuffix(".ipynb") in INDEX


# ---- the ten differences


def test_ten_differences_head_the_list_each_with_its_chapter():
    text = (ROOT / "book" / collect.TEN).read_text(encoding="utf-8")
    rows = re.findall(r"^(\d+)\. \*\*[^*]+\*\* (.+)$", text, re.M)
    assert [int(n) for n, _ in rows] == list(range(1, 11))
    for _, row in rows:
        (chapter,) = re.findall(r"\{doc\}`chapter (\d+) <\.\./notebooks/(\d\d)-[\w-]+>`", row)
        assert int(chapter[0]) == int(chapter[1])
    stems = re.findall(r"notebooks/([\w-]+)>", text)
    assert all((ROOT / "book" / f"{stem}.md").exists() for stem in stems)
    page = (ROOT / "book" / "B-differences.md").read_text(encoding="utf-8")
    assert page.index(text.strip()) < page.index("## Every choice, by chapter")


# ---- what the notes ask and leave open

OPEN = {  # in the words of the notes -> the question that answers it
    "Is encoder layer i connected to decoder layer i, N connections in all?": "q-which-layer",
    "What do the sinusoids mean physically?": "q-clocks",
    "Why attention at all?": "q-why-attention",
    "If Q, K and V are the same thing three times, what does the model learn?": "q-same-three",
    "How would learned positions be done, and do they matter?": "q-learned-positions",
    "What does masked multi-head attention do in training, and what is left of it in use?": "q-mask-in-use",
    "Why is there still a W^O after the concatenation?": "q-why-w-o",
}


@pytest.mark.parametrize("asked, label", OPEN.items(), ids=list(OPEN.values()))
def test_what_the_notes_leave_open_is_in_the_index(asked, label):
    index = (ROOT / "book" / "questions.md").read_text(encoding="utf-8")
    assert f"(#{label})" in index, f"the index has no {label}, which answers: {asked}"


def test_the_index_has_every_question_and_every_statement():
    index = (ROOT / "book" / "questions.md").read_text(encoding="utf-8")
    chapters = [read(path) for path in woven()]
    labels = [q.label for c in chapters for q in collect.questions(c)]
    labels += [label for c in chapters for label, *_ in collect.statements(c)]
    assert labels and sorted(labels) == sorted(re.findall(r"\]\(#([\w-]+)\)\\$", index, re.M))
