"""What the programs of chapter 18 share: the parts of a treebank.

Not a benchmark itself.
"""

from annotated.parsing import load_treebank


def parts_of(treebank):
    """Training, development and test part; where the publisher has two, his second is the test.

    One sentence in ten of his first is then the development part.
    """
    parts = load_treebank(treebank)
    if "test" not in parts:
        whole, parts["test"] = parts["train"], parts["dev"]
        parts["dev"] = whole[::10]
        parts["train"] = [tree for i, tree in enumerate(whole) if i % 10]
    return parts
