"""The index: each term of the glossary leads to the chapter that explains it; the search finds it there first."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.util.index_entries import split_index_msg

HERE = Path(__file__).resolve().parent
GLOSSARY = HERE.parent / "D-glossary.md"
ROW = re.compile(r"^\| ([^|]+) \|[^|]*\|[^|]*\| ([\dA-Z]+) \|$", re.M)

# What readers call a thing, beside the glossary's word for it; or where they want it, beside where it first occurs.
MORE = {"2": ["attention"], "7": ["Transformer"], "11": ["key-value cache"]}


def terms(letter: str) -> list[str]:
    "The terms that a chapter or an appendix explains, by its number or letter."
    rows = ROW.findall(GLOSSARY.read_text(encoding="utf-8"))
    found = [term.strip("` ") for names, where in rows if where == letter for term in names.split(", ")]
    return sorted({*found, *MORE.get(letter, [])}, key=str.lower)


def places(paper: list[str]) -> list[tuple[str, bool]]:
    "What a chapter has of the paper, as readers name it, and whether it has all of that: `Table 3 (sizes)` is a part."
    whole = [re.sub(r"^(?=\d)", "section ", place).replace("Eq.", "equation") for place in paper]
    return [(place.split(" (")[0], "(" not in place) for place in whole]


def index(env, doctree, letter: str, paper: list[str] = ()) -> None:
    "Enter a chapter's terms into the index, and the sections, tables, figures and equations of the paper that it has."
    section = next(doctree.findall(nodes.section), None)
    if section is None or not letter:
        return
    env.note_dependency(str(GLOSSARY))
    found = dict.fromkeys(terms(letter), False) | dict.fromkeys(MORE.get(letter, []), True) | dict(places(paper))
    entries = [("single", term, section["ids"][0], "main" if main else "", None) for term, main in found.items()]
    if entries:
        section.insert(1, addnodes.index(entries=entries))
        # Sphinx has gone through the page by now; `keep` reads them here.
        env.get_domain("index").entries.setdefault(env.docname, []).extend(entries)


def keep(app, env) -> None:
    """Give the search every page's entries of the index, also those of pages that a build does not write again:
    Sphinx notes an entry as it writes its page, and forgets it until the next.
    """
    env._search_index_index_entries = {
        docname: sorted({(part, target or "", main) for kind, value, target, main, _ in found for part in split_index_msg(kind, value)})
        for docname, found in env.get_domain("index").entries.items()}
