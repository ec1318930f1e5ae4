"""What a page says to those who hear it, where the theme's templates say nothing: names of its parts, and languages."""

import functools
import re

DIALOGS = {"pst-search-dialog": "Search", "pst-primary-sidebar-modal": "Contents", "pst-secondary-sidebar-modal": "On this page"}
EMPHASIS = re.compile(r"<em>([^<]+)</em>")
TABLE = re.compile(r'<table class="[^"]*\bbooktabs\b.*?</table>', re.S)
FIRST = re.compile(r"(<tr\b[^>]*>\s*)<td\b([^>]*)>(.*?)</td>", re.S)
CURRENT = re.compile(r'<a class="current reference internal" href="#"(?! aria-current)')


@functools.cache
def vocabularies() -> tuple[frozenset[str], frozenset[str]]:
    "The English and the German words of the book's grammar, in small letters."
    from annotated.data import split_words
    from annotated.grammar import grammar_examples

    examples = [example for part in grammar_examples() for example in part]
    sides = [example.source for example in examples], [example.target for example in examples]
    english, german = (frozenset(word.lower() for text in set(side) for word in split_words(text)) for side in sides)
    return english, german


def is_german(text: str) -> bool:
    "Whether all words of a text are German ones of the grammar, and one of them is not English as well."
    english, german = vocabularies()
    words = [word.lower() for word in re.findall(r"\w+", text)]
    return set(words) <= german and not set(words) <= english


def named(page: str) -> str:
    "A page whose dialogs have names, whose first part is its banner and whose list of contents tells which page this is."
    for dialog, name in DIALOGS.items():
        page = page.replace(f'<dialog id="{dialog}">', f'<dialog id="{dialog}" aria-label="{name}">')
    page = page.replace('<header id="pst-header" class=', '<header id="pst-header" role="presentation" class=')
    start = '<div class="sidebar-primary-items__start sidebar-primary__section">'
    page = page.replace(start, start.replace("<div", '<div role="banner"'))
    return CURRENT.sub(lambda found: f'{found[0]} aria-current="page"', page)


def headed(page: str) -> str:
    "A page whose tables tell what each row is about: below heads of columns, a row's first cell is its head."
    def table(found: re.Match) -> str:
        return FIRST.sub(r'\1<th scope="row"\2>\3</th>', found[0]) if "<thead" in found[0] else found[0]

    return TABLE.sub(table, page)


def spoken(page: str) -> str:
    "A page whose German words are marked as such, to be read aloud with the sounds of their language."
    return EMPHASIS.sub(lambda found: f'<em lang="de">{found[1]}</em>' if is_german(found[1]) else found[0], page)
