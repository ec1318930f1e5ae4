"""The index: each term of the glossary leads to the chapter that explains it; the search finds it there first."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

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


def index(env, doctree, letter: str) -> None:
    "Enter a chapter's terms into the index."
    section = next(doctree.findall(nodes.section), None)
    if section is None or not letter or not (found := terms(letter)):
        return
    env.note_dependency(str(GLOSSARY))
    main = MORE.get(letter, [])
    entries = [("single", term, section["ids"][0], "main" if term in main else "", None) for term in found]
    section.insert(1, addnodes.index(entries=entries))
