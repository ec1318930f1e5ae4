"""Explorers: a page that holds `<annotated-NAME>` gets the scripts of that element, and no other page does.

A chapter writes the element around a drawing, its still, which stays wherever no script runs: in Jupyter, in Colab, in
print. Lines before and after the still are empty, so that it is read as Markdown:

    <annotated-lookup>

    ![what is seen](../book/img/attention-by-hand.svg)

    </annotated-lookup>

The script is _static/explorers/NAME.js. Its first lines may say what it needs besides shared.js: `// needs: engine`
(tools/explorers.py).
What an element needs of the records comes in attributes that ATTRIBUTES makes when the page is built.
"""

import ast
import json
import re
from html import escape
from pathlib import Path

import annotated_model
from annotated_front import ROOT, translator  # which makes tools/ importable
from docutils import nodes
from explorers import FOLDER, needs
from rows import complete
from sphinx.util import logging

log = logging.getLogger(__name__)


def table_3(root: Path = ROOT) -> dict:
    """The rows of Table 3 that the record has whole: name, what changes, the paper's numbers and ours, a value a seed.

    `t` are the factors of the interval by n - 1, read in the text of annotated/variations.py.
    """
    runs, rows = complete(root), []
    for row in json.loads((root / "book" / "paper.json").read_text(encoding="utf-8"))["table_3"]:
        field, value = next(iter(row["change"].items()), ("", ""))
        name = next((n for n in (f"{row['row']} {field}={value}", f"{row['row']} {value}", row["row"]) if n in runs), None)
        if name:
            ours = {key: [run[what] for run in runs[name]] for key, what in (("ppl", "perplexity"), ("bleu", "bleu"))}
            rows.append({"name": name, "group": row["row"], "paper": {key: row[key] for key in ours}, "ours": ours})
    tree = ast.parse((root / "annotated" / "variations.py").read_text(encoding="utf-8"))
    bound = {node.targets[0].id: node.value for node in tree.body
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    factors = [element.value for element in bound["_T_975"].elts if isinstance(element, ast.Constant)]
    return {"rows": rows, "t": [None, *factors]}


ATTRIBUTES = {  # of elements that need some: names and values, made when a page is built
    "ablation": lambda: {"numbers": json.dumps(table_3(), separators=(",", ":"))},
    "translator": translator,
}


MADE_OF = {  # what those attributes are made of
    "ablation": ["book/paper.json", "annotated/variations.py", "results/17-norm-first/runs/*.json"],
    "translator": ["results/tatoeba-en-de/*.json", "results/tatoeba-en-de/*.jsonl", "results/tatoeba-en-de/model.safetensors"],
}
ELEMENT = re.compile(r"<annotated-([a-z0-9-]+)")


def depend(app, doctree) -> None:
    "A page is read again when a script of one of its elements changes, or what the element is told."
    for name in {name for node in doctree.findall(nodes.raw) for name in ELEMENT.findall(node.astext())}:
        if not (FOLDER / f"{name}.js").is_file():
            continue
        asked = [*needs(name), name]
        told = [path for pattern in MADE_OF.get(name, []) for path in ROOT.glob(pattern)]
        models = [ROOT / "results" / each for each in annotated_model.MODELS] if "engine" in asked else []
        weights = [path for folder in models for path in annotated_model.makers(folder)]
        for path in (*(FOLDER / f"{each}.js" for each in asked), FOLDER / "explorers.css", *told, *weights):
            app.env.note_dependency(str(path))


def add(app, pagename, templatename, context, doctree) -> None:
    "The scripts and the style of the elements on a page."
    found = dict.fromkeys(ELEMENT.findall(context.get("body") or ""))
    wanted: dict[str, None] = {}
    for name in found:
        if not (FOLDER / f"{name}.js").is_file():
            log.warning("no explorer <annotated-%s>: there is no _static/explorers/%s.js", name, name, location=pagename)
            continue
        wanted.update(dict.fromkeys([*needs(name), name]))
    for name in ATTRIBUTES.keys() & found.keys():
        told = "".join(f' data-{key}="{escape(value)}"' for key, value in ATTRIBUTES[name]().items())
        context["body"] = context["body"].replace(f"<annotated-{name}>", f"<annotated-{name}{told}>")
    for name in wanted:
        more = {"data-weights": annotated_model.version()} if name == "engine" else {}
        app.add_js_file(f"explorers/{name}.js", loading_method="defer", **more)
    if wanted:
        app.add_css_file("explorers/explorers.css")


def setup(app):
    app.connect("doctree-read", depend)
    app.connect("html-page-context", add)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
