"""Data.

Generated from book/08-data.md by tools/tangle.py: edit the chapter, not this file.
"""

import errno
import gzip
import hashlib
import io
import json
import mmap
import os
import random
import re
import shutil
import sys
import time
import zipfile
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import torch
from tqdm import tqdm

__all__ = [
    "split_words",
    "join_words",
    "Words",
    "train_subwords",
    "Subwords",
    "Noun",
    "NOUNS",
    "KINDS",
    "nouns_of",
    "ADJECTIVES",
    "Verb",
    "VERBS",
    "DETERMINERS",
    "ENDINGS",
    "PRONOUNS",
    "AUXILIARIES",
    "PARTICLES",
    "Nominal",
    "Clause",
    "Leaf",
    "decline",
    "conjugate",
    "say_nominal",
    "say_determined",
    "say_verb",
    "say_auxiliary",
    "say_complements",
    "say_place",
    "say_clause",
    "german_order",
    "english_order",
    "Example",
    "leaves_of",
    "bracketed",
    "facts_of",
    "say",
    "forms",
    "count_after",
    "count_sentences",
    "sample_nominal",
    "suits",
    "sample_clause",
    "sample_objects",
    "referents",
    "sample_sentence",
    "fraction",
    "part_of",
    "grammar_examples",
    "Corpus",
    "grammar_corpus",
    "lookup_baseline",
    "word_for_word_baseline",
    "connected_components",
    "split_pairs",
    "pad_batch",
    "bucket_key",
    "by_length",
    "pack",
    "Plan",
    "divide",
    "plan_batches",
    "make_batch",
    "Batches",
    "token_batches",
    "flush",
    "remove",
    "put_back",
    "umask_here",
    "UMASK",
    "share",
    "replacing",
    "read_file",
    "load_vocabulary",
    "write_tokens",
    "prepare",
    "TokenPairs",
    "decode_lines",
    "pair_lines",
    "read_pairs",
    "Download",
    "Published",
    "downloads",
    "MULTI30K",
    "MULTI30K_TOKENIZED",
    "TATOEBA_GERMAN",
    "TATOEBA_CHINESE",
    "read_multi30k",
    "read_tatoeba",
    "CORPORA",
    "published",
    "cache_folder",
    "ask",
    "size_of",
    "receive",
    "complete",
    "hopeless",
    "unobtainable",
    "fetch_file",
    "alone",
    "missing_files",
    "fetch",
    "verified",
    "load_corpus",
]


def split_words(text):
    """Split a text into words; a full stop, comma, question or exclamation mark is one too.

    Args:
        text: a string.

    Returns:
        list of strings; `join_words` undoes it where single spaces part the words and marks
            stand only behind them.
    """
    return re.findall(r"[^\s.,?!]+|[.,?!]", text)


def join_words(words):
    """Join words to a text, punctuation attached to the word before it.

    Args:
        words: list of strings, as `split_words` returns them.

    Returns:
        a string.
    """
    return re.sub(r" (?=[.,?!])", "", " ".join(words))


class Words:
    """A vocabulary of whole words, for text whose words are all known beforehand.

    Args:
        words: the words, without the four markers; their order gives identifiers from 4 on.
    """

    filename = "words.txt"
    markers = ("<pad>", "<bos>", "<eos>", "<unk>")

    def __init__(self, words):
        self.words = [*self.markers, *words]
        self.ids = {word: i for i, word in enumerate(self.words) if i >= len(self.markers)}

    @classmethod
    def build(cls, pairs):
        """Collect the words of both sides of `pairs`, in alphabetical order."""
        found = {word for pair in pairs for text in pair for word in split_words(text)}
        return cls(sorted(found - set(cls.markers)))

    @classmethod
    def load(cls, path):
        """Read what `save` wrote; ValueError where the file is missing or damaged."""
        try:
            count, *words = read_file(path).decode("utf-8").split("\n")
        except UnicodeDecodeError:
            count, words = "", []
        whole = words[-1:] == [""] and count == f"{len(words) - 1} words"
        if not whole or len(set(words)) != len(words):
            raise ValueError(f"{path} is damaged: it should hold a line 'N words' "
                             "and N different words, one a line")
        return cls(words[:-1])

    def save(self, path):
        """Write the words, one a line, below their number."""
        words = self.words[len(self.markers):]
        with replacing(path) as fresh:
            fresh.write_bytes("\n".join([f"{len(words)} words", *words, ""]).encode("utf-8"))

    def encode(self, text):
        """Turn a text into identifiers, eos (2) at the end; an unknown word is unk (3)."""
        return [*(self.ids.get(word, 3) for word in split_words(text)), 2]

    def decode(self, ids):
        """Turn identifiers into a text; pad, bos and eos (0, 1, 2) vanish."""
        return join_words(self.words[i] for i in map(int, ids) if i > 2)

    def __len__(self):
        return len(self.words)


def train_subwords(lines, vocab, **options):
    """Learn a byte-pair encoding with SentencePiece (section 5.1).

    Args:
        lines: iterable of strings, both languages together.
        vocab: number of pieces, the four markers and the 256 bytes among them.
        options: further settings of SentencePiece's trainer.

    Returns:
        the model as bytes; ValueError where `vocab` does not suit the lines.
    """
    import sentencepiece

    model, text = io.BytesIO(), (" ".join(line.split()) for line in lines)
    settings = {"model_type": "bpe", "vocab_size": vocab}
    settings |= {"normalization_rule_name": "identity", "max_sentence_length": 1 << 16}
    settings |= {"byte_fallback": True, "character_coverage": 0.9995, "num_threads": 1}
    settings |= {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "minloglevel": 2}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=text, model_writer=model, **settings | options)
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip() or "there is no text in them"
        raise ValueError(f"no vocabulary of vocab={vocab} pieces can be made "
                         f"of these lines: {reason}") from None
    return model.getvalue()


class Subwords:
    """A vocabulary of word pieces shared by both languages, by SentencePiece (section 5.1).

    Characters that the training text lacks are spelt as bytes, so that every text survives.

    Args:
        model: a SentencePiece model as bytes.

    Raises:
        ValueError: `model` is damaged, or its markers are not pad 0, bos 1, eos 2, unk 3.
    """

    filename = "subwords.model"

    def __init__(self, model):
        import sentencepiece

        self.model, self.processor = model, sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except RuntimeError:
            raise ValueError("the SentencePiece model is damaged") from None
        p = self.processor
        if (found := (p.pad_id(), p.bos_id(), p.eos_id(), p.unk_id())) != (0, 1, 2, 3):
            raise ValueError(f"the SentencePiece model has pad, bos, eos, unk = {found}; "
                             "it should have (0, 1, 2, 3)")

    @classmethod
    def train(cls, lines, vocab, **options):
        """Learn `vocab` pieces from an iterable of lines; see `train_subwords`."""
        return cls(train_subwords(lines, vocab, **options))

    @classmethod
    def load(cls, path):
        """Read what `save` wrote; ValueError where the file is missing or damaged."""
        try:
            return cls(read_file(path))
        except ValueError as error:
            said = str(error)
            raise ValueError(said if str(path) in said else f"{path}: {said}") from None

    def save(self, path):
        """Write the model in SentencePiece's own format."""
        with replacing(path) as fresh:
            fresh.write_bytes(self.model)

    def encode(self, text):
        """Turn a text into identifiers, eos (2) at the end; white space becomes a space."""
        return [*self.processor.encode(" ".join(text.split())), 2]

    def decode(self, ids):
        """Turn identifiers into a text; pad, bos and eos (0, 1, 2) vanish."""
        return self.processor.decode([i for i in map(int, ids) if i > 2])

    def __len__(self):
        return self.processor.get_piece_size()


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun of the built-in grammar; gender `w` is masculine with the weak declension."""

    singular: str
    plural: str
    german: str
    german_plural: str
    gender: str
    kind: str


NOUNS = tuple(Noun(*entry.split(), kind) for kind, entries in {
    "person": """man men Mann Männer m, woman women Frau Frauen f, boy boys Junge Jungen w,
        father fathers Vater Väter m, mother mothers Mutter Mütter f,
        brother brothers Bruder Brüder m, sister sisters Schwester Schwestern f,
        uncle uncles Onkel Onkel m, aunt aunts Tante Tanten f, king kings König Könige m,
        queen queens Königin Königinnen f, prince princes Prinz Prinzen w""",
    "animal": """dog dogs Hund Hunde m, cat cats Katze Katzen f, horse horses Pferd Pferde n,
        bird birds Vogel Vögel m, cow cows Kuh Kühe f, pig pigs Schwein Schweine n,
        bear bears Bär Bären w""",
    "thing": """chair chairs Stuhl Stühle m, car cars Auto Autos n,
        lamp lamps Lampe Lampen f, bag bags Tasche Taschen f, hat hats Hut Hüte m,
        shirt shirts Hemd Hemden n""",
    "text": """book books Buch Bücher n, letter letters Brief Briefe m,
        newspaper newspapers Zeitung Zeitungen f""",
    "food": """apple apples Apfel Äpfel m, egg eggs Ei Eier n, cake cakes Kuchen Kuchen m,
        soup soups Suppe Suppen f, sausage sausages Wurst Würste f""",
    "place": """garden gardens Garten Gärten m, house houses Haus Häuser n,
        school schools Schule Schulen f, park parks Park Parks m,
        kitchen kitchens Küche Küchen f, castle castles Schloss Schlösser n""",
}.items() for entry in entries.split(","))

KINDS = {
    "person": ("person",),
    "animal": ("animal",),
    "animate": ("person", "animal"),
    "text": ("text",),
    "food": ("food",),
    "object": ("thing", "text", "food"),
    "any": ("person", "animal", "thing", "text", "food"),
    "place": ("place",),
}


@cache
def nouns_of(kind):
    """The nouns of a kind.

    Args:
        kind: a key of `KINDS`.

    Returns:
        tuple of `Noun`.
    """
    return tuple(noun for noun in NOUNS if noun.kind in KINDS[kind])


ADJECTIVES = {
    "person": {"old": "alt", "young": "jung", "tired": "müde", "hungry": "hungrig",
               "sad": "traurig", "clever": "klug"},
    "animal": {"old": "alt", "young": "jung", "tired": "müde", "hungry": "hungrig",
               "small": "klein", "big": "groß"},
    "thing": {"old": "alt", "new": "neu", "small": "klein", "red": "rot", "cheap": "billig"},
    "text": {"old": "alt", "new": "neu", "long": "lang", "good": "gut"},
    "food": {"fresh": "frisch", "cold": "kalt", "good": "gut", "cheap": "billig"},
    "place": {"old": "alt", "new": "neu", "small": "klein", "big": "groß"},
}


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb of the built-in grammar.

    `third` and `german_third` hold the third person, or all four present forms with
    slashes between; `auxiliary` is the German perfect's, `frame` what follows the verb,
    `place` whether a place may.
    """

    base: str
    third: str
    participle: str
    german: str
    german_third: str
    german_participle: str
    auxiliary: str
    frame: str
    subject: str
    object: str
    place: str


VERBS = tuple(Verb(*line.split()) for line in """
sleep sleeps slept     schlafen schläft geschlafen    haben  none      animate -        place
wait waits waited      warten wartet gewartet         haben  none      animate -        place
run runs run           laufen läuft gelaufen          sein   none      animate -        place
see sees seen          sehen sieht gesehen            haben  acc       animate any      place
hear hears heard       hören hört gehört              haben  acc       animate animate  place
know knows known       kennen kennt gekannt           haben  acc       person  person   -
love loves loved       lieben liebt geliebt           haben  acc       person  animate  -
buy buys bought        kaufen kauft gekauft           haben  acc       person  object   place
read reads read        lesen liest gelesen            haben  acc       person  text     place
eat eats eaten         essen isst gegessen            haben  acc       animate food     place
call calls called      an|rufen ruft angerufen        haben  acc       person  person   -
help helps helped      helfen hilft geholfen          haben  dat       person  animate  place
thank thanks thanked   danken dankt gedankt           haben  dat       person  person   -
follow follows followed folgen folgt gefolgt          sein   dat       animate animate  -
give gives given       geben gibt gegeben             haben  dat+acc   person  object   place
show shows shown       zeigen zeigt gezeigt           haben  dat+acc   person  object   place
say says said          sagen sagt gesagt              haben  that      person  -        -
know knows known       wissen weiß/weißt/weiß/wissen gewusst  haben  that  person  -    -
believe believes believed glauben glaubt geglaubt     haben  that      person  -        -
look looks looked      aus|sehen sieht ausgesehen     haben  adjective any     -        -
stay stays stayed      bleiben bleibt geblieben       sein   adjective any     -        -
be am/are/is/are been  sein bin/bist/ist/sind gewesen sein   adjective any     -        -
""".strip().splitlines())

DETERMINERS = {
    "the": "der die das die den die das die dem der dem den".split(),
    "this": "dieser diese dieses diese diesen diese dieses diese "
            "diesem dieser diesem diesen".split(),
    "a": "ein eine ein - einen eine ein - einem einer einem -".split(),
    "my": "mein meine mein meine meinen meine mein meine "
          "meinem meiner meinem meinen".split(),
}

ENDINGS = {
    "weak": "e e e en en e e en en en en en".split(),
    "mixed": "er e es en en e es en en en en en".split(),
}

PRONOUNS = {
    "1": "I me ich mich mir".split(),
    "2": "you you du dich dir".split(),
    "1 plural": "we us wir uns uns".split(),
    "3 he m": "he him er ihn ihm".split(),
    "3 she f": "she her sie sie ihr".split(),
    "3 it m": "it it er ihn ihm".split(),
    "3 it f": "it it sie sie ihr".split(),
    "3 it n": "it it es es ihm".split(),
    "3 plural": "they them sie sie ihnen".split(),
}

AUXILIARIES = {
    "have": ("have have has have".split(), None),
    "can": (["can"] * 4, "kann kannst kann können".split()),
    "must": (["must"] * 4, "muss musst muss müssen".split()),
    "will": (["will"] * 4, "werde wirst wird werden".split()),
}

PARTICLES = {
    "adverb": {"today": "heute", "now": "jetzt",
               "sometimes": "manchmal", "perhaps": "vielleicht"},
    "conjunction": {"because": "weil", "although": "obwohl", "that": "dass"},
}


@dataclass(frozen=True, eq=False)
class Nominal:
    """A noun phrase, or without a determiner the pronoun that stands for one.

    `of` is the noun phrase a pronoun of the third person refers to.
    """

    noun: Noun = None
    determiner: str = ""
    adjective: str = ""
    plural: bool = False
    person: int = 3
    of: "Nominal" = None

    def agreement(self):
        """The column of a verb's present forms: I, you, he, they."""
        return 3 if self.plural else self.person - 1

    def column(self, case):
        """The column of a table of endings: three cases of m, f, n and plural."""
        gender = 3 if self.plural else "mfn".index(self.noun.gender.replace("w", "m"))
        return 4 * ("nom", "acc", "dat").index(case) + gender

    def kind(self):
        """The noun's kind; "I", "you" and "we" are persons."""
        return self.noun.kind if self.noun else "person"

    def pronoun(self):
        """The row of `PRONOUNS` that this phrase is, or may be replaced by."""
        if self.person < 3 or self.plural:
            return f"{self.person} plural" if self.plural else str(self.person)
        gender = self.noun.gender.replace("w", "m")
        english = {"m": "he", "f": "she"}[gender] if self.kind() == "person" else "it"
        return f"3 {english} {gender}"


@dataclass(frozen=True, eq=False)
class Clause:
    """What a clause says, before it is said in either language.

    `objects` holds pairs (Nominal, case); `conjunction` joins the subordinate `clause`.
    """

    subject: Nominal
    verb: Verb
    auxiliary: str = ""
    objects: tuple = ()
    adjective: str = ""
    place: Nominal = None
    conjunction: str = ""
    clause: "Clause" = None
    adverb: str = ""
    question: bool = False


@dataclass(eq=False)
class Leaf:
    """An English word in its tree; German words point at the leaves they translate."""

    word: str
    antecedent: "Leaf" = None


def decline(noun, plural, case):
    """The German form of a noun: dative plural in -n; weak masculines vary in the singular.

    Args:
        noun: a `Noun`.
        plural: whether it is plural.
        case: "nom", "acc" or "dat".

    Returns:
        a string.
    """
    if not plural:
        return noun.german_plural if noun.gender == "w" and case != "nom" else noun.german
    added = "n" if case == "dat" and noun.german_plural[-1] not in "ns" else ""
    return noun.german_plural + added


def conjugate(verb):
    """The present forms of a verb in both languages.

    Args:
        verb: a `Verb`.

    Returns:
        English and German, four forms each: I, you, he, they.
    """
    base, third = verb.base, verb.third
    english = third.split("/") if "/" in third else [base, base, third, base]
    infinitive, third = verb.german.split("|")[-1], verb.german_third
    if "/" in third:
        return english, third.split("/")
    second = third if third[-2] in "sßz" else third[:-1] + "st"
    return english, [infinitive[:-1], second, third, infinitive]


def say_nominal(nominal, case, heads):
    """Put a noun phrase or a pronoun into both languages.

    Args:
        nominal: a `Nominal`.
        case: "nom", "acc" or "dat".
        heads: Nominal -> Leaf of its noun, for pronouns that come later; added to.

    Returns:
        English tree, list of German (word, leaves).
    """
    if nominal.determiner:
        return say_determined(nominal, case, heads)
    english, objective, *german = PRONOUNS[nominal.pronoun()]
    leaf = Leaf(english if case == "nom" else objective, heads.get(nominal.of))
    return ("NP", ("PRP", leaf)), [(german[("nom", "acc", "dat").index(case)], (leaf,))]


def say_determined(nominal, case, heads):
    """Put determiner, perhaps adjective, and noun into both languages; as `say_nominal`."""
    noun, determiner, column = nominal.noun, nominal.determiner, nominal.column(case)
    heads[nominal] = head = Leaf(noun.plural if nominal.plural else noun.singular)
    tree = [("NNS" if nominal.plural else "NN", head)]
    german = [(decline(noun, nominal.plural, case), (head,))]
    if nominal.adjective:
        leaf = Leaf(nominal.adjective)
        stem = ADJECTIVES[noun.kind][leaf.word].removesuffix("e")
        ending = ENDINGS["weak" if determiner in ("the", "this") else "mixed"][column]
        tree.insert(0, ("JJ", leaf))
        german.insert(0, (stem + ending, (leaf,)))
    special = {"a": "an" if tree[0][1].word[0] in "aeiou" else "a",
               "this": "these" if nominal.plural else "this"}
    leaf = Leaf(special.get(determiner, determiner))
    tag = "PRP$" if determiner == "my" else "DT"
    return ("NP", (tag, leaf), *tree), [(DETERMINERS[determiner][column], (leaf,)), *german]


def say_verb(clause):
    """Put a clause's verb and auxiliary into both languages.

    Args:
        clause: a `Clause`.

    Returns:
        English (tag, Leaf) nodes, the finite one first; German finite (word, leaves);
        list of German (word, leaves) that close the clause; the separable prefix or "".
    """
    if clause.auxiliary:
        return say_auxiliary(clause)
    verb, person = clause.verb, clause.subject.agreement()
    tag, prefix = "VBZ" if person == 2 else "VBP", verb.german.rpartition("|")[0]
    english, german = conjugate(verb)
    if clause.question and verb.base != "be":
        do, leaf = Leaf("does" if person == 2 else "do"), Leaf(verb.base)
        return [(tag, do), ("VB", leaf)], (german[person], (do, leaf)), [], prefix
    leaf = Leaf(english[person])
    return [(tag, leaf)], (german[person], (leaf,)), [], prefix


def say_auxiliary(clause):
    """The same with an auxiliary: participle or infinitive closes the German clause."""
    verb, person = clause.verb, clause.subject.agreement()
    forms, german = AUXILIARIES[clause.auxiliary]
    auxiliary = Leaf(forms[person])
    if clause.auxiliary == "have":
        perfect = {"haben": "habe hast hat haben", "sein": "bin bist ist sind"}
        german = perfect[verb.auxiliary].split()
        tags, leaf = ("VBZ" if person == 2 else "VBP", "VBN"), Leaf(verb.participle)
        word = verb.german_participle
    else:
        tags, leaf, word = ("MD", "VB"), Leaf(verb.base), verb.german.replace("|", "")
    english = [(tags[0], auxiliary), (tags[1], leaf)]
    return english, (german[person], (auxiliary,)), [(word, (leaf,))], ""


def say_complements(clause, heads):
    """Put objects, predicate adjective and place into both languages.

    Args:
        clause: a `Clause`.
        heads: see `say_nominal`.

    Returns:
        English trees; German (word, leaves) of pronouns; and of everything else.
    """
    trees, pronouns, others = [], [], []
    for nominal, case in clause.objects:
        tree, german = say_nominal(nominal, case, heads)
        trees.append(tree)
        (others if nominal.determiner else pronouns).extend(german)
    if clause.adjective:
        leaf = Leaf(clause.adjective)
        trees.append(("ADJP", ("JJ", leaf)))
        others.append((ADJECTIVES[clause.subject.kind()][leaf.word], (leaf,)))
    if clause.place:
        tree, german = say_place(clause.place)
        trees.append(tree)
        others.extend(german)
    return trees, pronouns, others


def say_place(nominal):
    """Put "in" and a noun phrase into both languages; German contracts *in dem* to *im*.

    Args:
        nominal: a `Nominal` of the kind "place".

    Returns:
        English tree, list of German (word, leaves).
    """
    tree, ((article, links), *rest) = say_nominal(nominal, "dat", {})
    leaf = Leaf("in")
    start = [("in", (leaf,)), (article, links)]
    if article == "dem":
        start = [("im", (leaf, *links))]
    return ("PP", ("IN", leaf), tree), [*start, *rest]


def say_clause(clause, heads, final=False):
    """Put a clause into both languages.

    Args:
        clause: a `Clause`.
        heads: see `say_nominal`.
        final: whether it is a subordinate clause, whose German verb comes last.

    Returns:
        English trees, list of German (word, leaves).
    """
    subject, german_subject = say_nominal(clause.subject, "nom", heads)
    verbs, *german_verbs = say_verb(clause)
    trees, pronouns, others = say_complements(clause, heads)
    german = german_order(clause, german_subject, german_verbs, pronouns, others, final)
    if clause.clause:
        leaf = Leaf(clause.conjunction)
        inner, words = say_clause(clause.clause, heads, final=True)
        trees.append(("SBAR", ("IN", leaf), ("S", *inner)))
        german += [(",", ()), (PARTICLES["conjunction"][leaf.word], (leaf,)), *words]
    return english_order(clause, subject, verbs, trees), german


def german_order(clause, subject, verbs, pronouns, others, final):
    """Put the German parts of a clause in order: the finite verb first, second or last.

    Args:
        clause: a `Clause`.
        subject, pronouns, others: lists of (word, leaves).
        verbs: the finite verb, what closes the clause, and the separable prefix.
        final: whether it is a subordinate clause.

    Returns:
        list of (word, leaves).
    """
    (finite, links), closing, prefix = verbs
    if final:
        return [*subject, *pronouns, *others, *closing, (prefix + finite, links)]
    if prefix:
        closing = [(prefix, links[-1:])]
    if clause.question or clause.adverb:  # an adverb takes the first place from the subject
        return [(finite, links), *pronouns, *subject, *others, *closing]
    return [*subject, (finite, links), *pronouns, *others, *closing]


def english_order(clause, subject, verbs, trees):
    """Put the English parts of a clause in order; a question's finite verb comes first.

    Args:
        clause: a `Clause`.
        subject: tree of the subject.
        verbs: one or two (tag, Leaf) nodes.
        trees: what follows the verb.

    Returns:
        list of trees.
    """
    finite, *rest = verbs
    if clause.question:
        return [finite, subject, *([("VP", *rest, *trees)] if rest else trees)]
    return [subject, ("VP", finite, *([("VP", *rest, *trees)] if rest else trees))]


@dataclass(frozen=True)
class Example:
    """A sentence pair with everything that is true of it.

    Args:
        source: the English sentence.
        target: the German sentence.
        alignment: (source index, target index) of words that translate each other, as
            `split_words` counts them.
        antecedents: (index of a source pronoun, index of the noun it refers to).
        tree: the English constituents in brackets, Penn style.
        facts: who does what, see `facts_of`.
    """

    source: str
    target: str
    alignment: tuple
    antecedents: tuple
    tree: str
    facts: tuple


def leaves_of(tree):
    """The leaves of an English tree, from left to right.

    Args:
        tree: (label, child, ...), a child a tree or a `Leaf`.

    Returns:
        list of `Leaf`.
    """
    if isinstance(tree, Leaf):
        return [tree]
    return [leaf for child in tree[1:] for leaf in leaves_of(child)]


def bracketed(tree):
    """Write an English tree in brackets, Penn style.

    Args:
        tree: (label, child, ...), a child a tree or a `Leaf`.

    Returns:
        a string such as `(NP (DT the) (NN dog))`.
    """
    if isinstance(tree, Leaf):
        return tree.word
    return f"({tree[0]} {' '.join(map(bracketed, tree[1:]))})"


def facts_of(clause):
    """List who does what in a clause and the clause below it, whether by noun or by pronoun.

    Args:
        clause: a `Clause`.

    Returns:
        tuple of (subject noun, German verb, object); the object is an English noun or
        adjective, "me", "you", "us" or ""; a clause about "I", "you" or "we" states none.
    """
    facts = facts_of(clause.clause) if clause.clause else ()
    if not clause.subject.noun:
        return facts
    thing = clause.adjective
    if clause.objects:
        last, _ = clause.objects[-1]
        thing = last.noun.singular if last.noun else PRONOUNS[last.pronoun()][1]
    return ((clause.subject.noun.singular, clause.verb.german, thing), *facts)


def say(clause):
    """Put a whole sentence into both languages.

    Args:
        clause: a `Clause`, the main one.

    Returns:
        an `Example`.
    """
    trees, german = say_clause(clause, {})
    if clause.adverb:
        leaf = Leaf(clause.adverb)
        trees.insert(0, ("ADVP", ("RB", leaf)))
        german.insert(0, (PARTICLES["adverb"][leaf.word], (leaf,)))
    end = Leaf("?" if clause.question else ".")
    tree = ("SQ" if clause.question else "S", *trees, (".", end))
    german.append((end.word, (end,)))
    leaves = leaves_of(tree)
    at = {leaf: i for i, leaf in enumerate(leaves)}
    links = sorted((at[leaf], j) for j, (_, made) in enumerate(german) for leaf in made)
    known = ((i, at[leaf.antecedent]) for i, leaf in enumerate(leaves) if leaf.antecedent)
    leaves[0].word = leaves[0].word[0].upper() + leaves[0].word[1:]
    source = join_words(leaf.word for leaf in leaves)
    target = join_words(word for word, _ in german)
    target = target[0].upper() + target[1:]
    more = tuple(links), tuple(known), bracketed(tree), facts_of(clause)
    return Example(source, target, *more)


def forms(noun):
    """How many noun phrases a noun makes, of determiner, number, and adjective or none.

    Args:
        noun: a `Noun`, or None for one without adjectives.

    Returns:
        an int.
    """
    return (2 * len(DETERMINERS) - 1) * (1 + len(ADJECTIVES[noun.kind] if noun else ()))


def count_after(verb, subject):
    """How many ways there are to complete a clause of subject and verb, auxiliaries aside.

    Args:
        verb: a `Verb` that no that-clause follows.
        subject: a `Noun`, or None for "I", "you" and "we".

    Returns:
        an int.
    """
    def count(kind, speakers=0):
        speakers *= "person" in KINDS[kind] and subject is not None
        return speakers + sum(forms(noun) for noun in nouns_of(kind) if noun is not subject)

    places = count("place")
    if verb.frame == "none":
        return places
    if verb.frame == "dat+acc":
        after = count("person", speakers=3) * count(verb.object)
    else:
        after = count(verb.object, speakers=3)
    return after * (1 + places) if verb.place == "place" else after


def count_sentences():
    """Count the grammar's sentences of a single clause, exactly.

    Returns:
        an int: statements, questions and statements that begin with an adverb.
    """
    total, bare = 0, forms(None)
    for verb in VERBS:
        speakers = [None] * 3 if "person" in KINDS[verb.subject] else []
        for subject in (*nouns_of(verb.subject), *speakers):
            adjectives = len(ADJECTIVES[subject.kind if subject else "person"])
            if verb.frame == "adjective":  # predicate unlike attribute: n + n(n - 1) pairs
                total += bare * adjectives**2 if subject else adjectives
            elif verb.frame != "that":
                total += (forms(subject) if subject else 1) * count_after(verb, subject)
    return total * (1 + len(AUXILIARIES)) * (2 + len(PARTICLES["adverb"]))


def sample_nominal(rng, kind, speakers=True, avoid=()):
    """Draw a noun phrase of a kind, now and then "I", "you" or "we".

    Args:
        rng: a `random.Random`.
        kind: a key of `KINDS`.
        speakers: whether "I", "you" and "we" may come, where persons may.
        avoid: nouns not to take.

    Returns:
        a `Nominal`.
    """
    if speakers and "person" in KINDS[kind] and rng.random() < 0.2:
        person, plural = rng.choice([(1, False), (2, False), (1, True)])
        return Nominal(person=person, plural=plural)
    noun = rng.choice([noun for noun in nouns_of(kind) if noun not in avoid])
    determiner, plural = rng.choice(list(DETERMINERS)), rng.random() < 0.35
    adjective = rng.choice(list(ADJECTIVES[noun.kind])) if rng.random() < 0.35 else ""
    return Nominal(noun, determiner, adjective, plural and determiner != "a")


def suits(verb, subject, theme):
    """Whether a verb can take these pronouns.

    Args:
        verb: a `Verb`.
        subject: a `Nominal` or None.
        theme: a `Nominal` or None.

    Returns:
        a bool.
    """
    kind = "person" if verb.frame == "dat+acc" else verb.object
    return (subject is None or subject.noun.kind in KINDS[verb.subject]) and (
        theme is None or kind in KINDS and theme.noun.kind in KINDS[kind])


def sample_clause(rng, subject=None, theme=None, avoid=(), that=False):
    """Draw a clause; a clause below it is added by `sample_sentence`.

    Args:
        rng: a `random.Random`.
        subject: a pronoun that must be the subject, or None.
        theme: a pronoun that must be an object, or None.
        avoid: nouns not to take.
        that: whether the verb is one that a that-clause follows.

    Returns:
        a `Clause`.
    """
    able = [verb for verb in VERBS if suits(verb, subject, theme)]
    verb = rng.choice([verb for verb in able if (verb.frame == "that") == that])
    subject = subject or sample_nominal(rng, verb.subject, theme is None, avoid)
    objects = sample_objects(rng, verb, subject, theme, avoid)
    adjectives = [word for word in ADJECTIVES[subject.kind()] if word != subject.adjective]
    adjective = rng.choice(adjectives) if verb.frame == "adjective" else ""
    placed = verb.frame == "none" or verb.place == "place" and rng.random() < 0.25
    present = 9 if subject.person < 3 else 3  # rare: the forms of "I" should be met
    auxiliary = rng.choice([""] * present + [*AUXILIARIES])
    place = sample_nominal(rng, "place") if placed else None
    return Clause(subject, verb, auxiliary, objects, adjective, place)


def sample_objects(rng, verb, subject, theme, avoid):
    """Draw the objects of a clause.

    Args:
        rng: a `random.Random`.
        verb: a `Verb`.
        subject: a `Nominal`; if it is a noun, "me", "you" and "us" may be objects.
        theme: a pronoun that must be the object, the receiving one of two, or None.
        avoid: nouns not to take.

    Returns:
        tuple of (Nominal, case).
    """
    speakers, avoid = bool(subject.determiner), (*avoid, subject.noun)
    if verb.frame == "dat+acc":
        receiver = theme or sample_nominal(rng, "person", speakers, avoid)
        return (receiver, "dat"), (sample_nominal(rng, verb.object, False, avoid), "acc")
    if verb.frame in ("acc", "dat"):
        return ((theme or sample_nominal(rng, verb.object, speakers, avoid), verb.frame),)
    return ()


def referents(clause):
    """The noun phrases of a clause that an English pronoun would point at without doubt.

    Args:
        clause: a `Clause`.

    Returns:
        list of `Nominal`: no other one of the clause has the same English pronoun.
    """
    named = clause.subject, *(n for n, _ in clause.objects), clause.place
    nominals = [n for n in named if n and n.determiner]
    words = [PRONOUNS[n.pronoun()][0] for n in nominals]
    clear = [n for n, word in zip(nominals, words) if words.count(word) == 1]
    return [n for n in clear if n is not clause.place]


def sample_sentence(rng):
    """Draw a sentence: a statement, a question, or one with a subordinate clause.

    Args:
        rng: a `random.Random`.

    Returns:
        a `Clause`.
    """
    form = rng.choice(["plain", *["question"] * 2, "adverb", "that", *["reason"] * 3])
    main = sample_clause(rng, that=form == "that")
    if form == "question":
        return replace(main, question=True)
    if form == "adverb":
        return replace(main, adverb=rng.choice(list(PARTICLES["adverb"])))
    if form == "plain":
        return main
    pronouns = [Nominal(n.noun, plural=n.plural, of=n) for n in referents(main)]
    roles = {}
    if pronouns and rng.random() < 0.75:
        roles[rng.choice(["subject", "theme"])] = rng.choice(pronouns)
    used = [n.noun for n in (main.subject, *(n for n, _ in main.objects))]
    conjunction = "that" if form == "that" else rng.choice(["because", "although"])
    below = sample_clause(rng, avoid=used, **roles)
    return replace(main, conjunction=conjunction, clause=below)


def fraction(text):
    """Map a text to a number that looks random and is the same on every machine.

    Args:
        text: a string.

    Returns:
        a float in [0, 1), from the text's sha256.
    """
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


def part_of(facts):
    """Which part of the data a sentence belongs to, by its facts (subject, verb and object).

    Args:
        facts: see `Example`.

    Returns:
        "train" where every fact is a training one; "validation" or "test" where at least one
        is kept for that part and none for the other; else "".
    """
    x = [fraction(" ".join(fact)) for fact in facts]
    test, validation = any(a < 0.05 for a in x), any(0.05 <= a < 0.1 for a in x)
    if test and validation:
        return ""
    return "test" if test else "validation" if validation else "train"


def grammar_examples(train=20000, validation=500, test=500, seed=0):
    """Draw sentences and put each into the part of the data it belongs to.

    Args:
        train: number of training sentences.
        validation: number of validation sentences.
        test: number of test sentences.
        seed: the same seed gives the same sentences.

    Returns:
        three lists of `Example`, of 4 to 20 English words and marks each, no sentence twice.
    """
    rng = random.Random(seed)
    wanted = {"train": train, "validation": validation, "test": test}
    found = {part: {} for part in wanted}
    while any(len(found[part]) < count for part, count in wanted.items()):
        clause = sample_sentence(rng)
        part = part_of(facts_of(clause))
        if part and len(found[part]) < wanted[part]:
            example = say(clause)
            if 4 <= len(split_words(example.source)) <= 20:
                found[part][example.source] = example
    return [list(examples.values()) for examples in found.values()]


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs in three parts, and where they come from.

    Args:
        name: the name `load_corpus` knows it by.
        train, validation, test: lists of (source, target).
        licence: what may be done with the text, in a sentence.
        provenance: file -> sha256 of what was read; empty where nothing was.
    """

    name: str
    train: list
    validation: list
    test: list
    licence: str
    provenance: dict = field(default_factory=dict)


def grammar_corpus(train=20000, validation=500, test=500, seed=0):
    """Make a corpus of the built-in grammar.

    Args:
        train: number of training pairs.
        validation: number of validation pairs.
        test: number of test pairs.
        seed: the same seed gives the same pairs.

    Returns:
        a `Corpus`; every validation or test sentence has a fact never seen in training.
    """
    parts = grammar_examples(train, validation, test, seed)
    pairs = ([(example.source, example.target) for example in part] for part in parts)
    return Corpus("grammar", *pairs, "The built-in grammar: no rights reserved.")


def lookup_baseline(train, sources):
    """Translate by looking the sentence up among the training sentences.

    Args:
        train: list of (source, target).
        sources: list of strings.

    Returns:
        list of strings, empty where the sentence was never seen.
    """
    table = dict(train)
    return [table.get(source, "") for source in sources]


def word_for_word_baseline(train, sources):
    """Replace every word by the one that goes with it best in training (Dice's coefficient).

    Args:
        train: list of (source, target).
        sources: list of strings.

    Returns:
        list of strings with as many words as the sources; a word never seen stays.
        A mark is not replaced by a word, nor a word by a mark.
    """
    left, right, both = Counter(), Counter(), Counter()
    for source, target in train:
        s, t = set(split_words(source)), set(split_words(target))
        left.update(s)
        right.update(t)
        both.update((a, b) for a in s for b in t if a.isalnum() == b.isalnum())
    best = {}
    for (a, b), n in both.items():
        best[a] = max(best.get(a, (0, "")), (n / (left[a] + right[b]), b))
    translate = lambda word: best.get(word, (0, word))[1]  # noqa: E731
    return [join_words(map(translate, split_words(source))) for source in sources]


def connected_components(pairs):
    """Group pairs that share a string on either side, directly or through others.

    Args:
        pairs: list of (source, target).

    Returns:
        list of lists of pairs, in order of first occurrence.
    """
    parent = {}

    def root(text):
        while parent.setdefault(text, text) != text:
            parent[text] = text = parent[parent[text]]
        return text

    for source, target in pairs:
        parent[root(source)] = root(target)
    groups = defaultdict(list)
    for pair in pairs:
        groups[root(pair[0])].append(pair)
    return list(groups.values())


def split_pairs(pairs, share=0.02):
    """Divide pairs into training, validation and test so that no string occurs in two.

    Args:
        pairs: list of (source, target).
        share: about which part of the groups goes to validation, and again to test.

    Returns:
        three lists of pairs; which part a group goes to depends on its own text only.
    """
    train, validation, test = [], [], []
    for group in connected_components(pairs):
        x = fraction(min(min(pair) for pair in group))
        (test if x < share else validation if x < 2 * share else train).extend(group)
    return train, validation, test


def pad_batch(sequences, pad=0):
    """Put sequences of unequal length into one tensor, padding at the end.

    Args:
        sequences: B lists or arrays of identifiers.
        pad: the identifier that fills the rest.

    Returns:
        (B, L) long, L the length of the longest.
    """
    L = max(map(len, sequences), default=0)
    batch = np.full((len(sequences), L), pad, dtype=np.int64)
    for row, sequence in zip(batch, sequences):
        row[:len(sequence)] = sequence
    return torch.from_numpy(batch)  # (B, L)


def bucket_key(s, t):
    """Order pairs so that neighbours need little padding on either side.

    The longer side decides; within one such length the difference of the sides
    runs up and down in turn, so that it does not jump where the length changes.

    Args:
        s: source length, or an array of them.
        t: target length, or an array.

    Returns:
        a whole number to sort by, or an array of them; equal for equal lengths only.
    """
    longest = np.maximum(s, t).astype(np.int64)
    return (longest << 32) + (np.int64(s) - np.int64(t)) * (1 - 2 * (longest % 2))


def by_length(lengths):
    """Sort pairs by length, see `bucket_key`, and count how many have the same two lengths.

    Args:
        lengths: (n, 2), source and target length of each pair.

    Returns:
        order, (n,), indices of the pairs, sorted; runs, (r, 3), rows of source length,
        target length and number of pairs, in the same order.
    """
    lengths = np.asarray(lengths).reshape(-1, 2)
    key = bucket_key(lengths[:, 0], lengths[:, 1])
    order = key.argsort(kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))  # (r,); a key is never negative
    counts = np.diff(starts, append=len(key))
    return order, np.column_stack([lengths[order[starts]], counts]).astype(np.int64)


def pack(runs, source_tokens, target_tokens):
    """Cut sorted pairs into batches, a new one wherever the next pair would break a budget.

    Args:
        runs: (r, 3), see `by_length`; no pair is longer than a budget.
        source_tokens, target_tokens: most positions in a batch, padding counted.

    Returns:
        list of places in the sorted list: 0, where the second batch begins, ..., the end.
    """
    cuts, place, S, T = [0], 0, 1, 1
    for s, t, count in runs.tolist():
        end = place + count
        while place < end:
            S, T = max(S, s), max(T, t)
            room = min(source_tokens // S, target_tokens // T) - (place - cuts[-1])
            if room > 0:
                place = min(place + room, end)
            else:
                cuts.append(place)
                S, T = 1, 1
    return [*cuts, place] if place else cuts


class Plan:
    """The batches of an epoch, worked out one at a time: `plan[k]` holds indices of pairs.

    Args:
        order: (n,) indices of the pairs, sorted by length.
        runs: (r, 3), see `by_length`.
        cuts: where the sorted pairs are cut, see `pack`.
        seed, epoch: decide the order of the batches, and of the pairs of a run.
    """

    def __init__(self, order, runs, cuts, seed=0, epoch=0):
        self.order, self.cuts, self.name = order, cuts, f"{seed} {epoch}"
        self.ends = runs[:, 2].cumsum()
        self.sequence = self.random("batches").permutation(len(cuts) - 1)
        self.shuffled = {}

    def random(self, what):
        """A generator of chance for one purpose of this epoch."""
        return np.random.RandomState(list(f"{self.name} {what}".encode()))

    def run(self, r):
        """The pairs of run r, shuffled, and the place where they begin."""
        begin = self.ends[r - 1] if r else 0
        if r not in self.shuffled:
            self.shuffled[r] = self.random(r).permutation(self.order[begin:self.ends[r]])
        return self.shuffled[r], begin

    def __getitem__(self, k):
        begin, end = self.cuts[self.sequence[k]], self.cuts[self.sequence[k] + 1]
        parts, r = [], np.searchsorted(self.ends, begin, side="right")
        while not parts or self.ends[r - 1] < end:
            pairs, first = self.run(r)
            parts.append(pairs[max(begin - first, 0):end - first])
            r += 1
        return np.concatenate(parts)  # (rows,)

    def __len__(self):
        return len(self.sequence)


def divide(cuts, workers):
    """Halve the batches with most pairs until `workers` can take equally many.

    Args:
        cuts: see `pack`.
        workers: how many share the batches.

    Returns:
        list like `cuts`.

    Raises:
        ValueError: every batch has a single pair, and their number cannot be divided.
    """
    cuts = list(cuts)
    while (len(cuts) - 1) % workers:
        rows = np.diff(cuts)
        k = int(rows.argmax())
        if rows[k] < 2:
            raise ValueError(
                f"{len(rows)} batches of one pair each cannot be divided among "
                f"workers={workers}: leave {len(rows) % workers} pairs out or take "
                "another number of workers")
        cuts.insert(k + 1, (cuts[k] + cuts[k + 1]) // 2)
    return cuts


def plan_batches(lengths, source_tokens, target_tokens, seed=0, epoch=0, workers=1):
    """Group pairs of similar length into batches under two token budgets (section 5.1).

    Args:
        lengths: (n, 2), source and target length of each pair; or `TokenPairs`, sorted.
        source_tokens, target_tokens: most positions in a batch, padding counted.
        seed, epoch: decide the order; the same two give the same plan.
        workers: the number of batches is a multiple of this.

    Returns:
        a `Plan`: a sequence of batches, each an array of indices; every index occurs once.

    Raises:
        ValueError: a pair does not fit a budget even alone; sentences are never cut.
    """
    known = hasattr(lengths, "runs")
    order, runs = (lengths.order, lengths.runs) if known else by_length(lengths)
    long = np.flatnonzero((runs[:, 0] > source_tokens) | (runs[:, 1] > target_tokens))
    if len(long):
        s, t, count = runs[long[0]].tolist()
        i = order[runs[:long[0], 2].sum()]
        raise ValueError(
            f"pair {i} has {s} source and {t} target tokens, more than "
            f"source_tokens={source_tokens} or target_tokens={target_tokens}: "
            "raise the budget or leave the pair out")
    cuts = divide(pack(runs, source_tokens, target_tokens), workers)
    return Plan(order, runs, cuts, seed, epoch)


def make_batch(pairs, bos=1, pad=0):
    """Turn encoded sentence pairs into the two tensors a model is trained on.

    Args:
        pairs: B pairs (source ids, target ids), each ending in eos.
        bos: the identifier put before every target.
        pad: the identifier that fills the rest.

    Returns:
        source (B, S) and target (B, T), target from bos to eos.
    """
    source = pad_batch([source for source, _ in pairs], pad)  # (B, S)
    target = pad_batch([target for _, target in pairs], pad)  # (B, T - 1)
    return source, torch.nn.functional.pad(target, (1, 0), value=bos)  # (B, T)


@dataclass(frozen=True)
class Batches:
    """What a trainer draws from: called with epoch and position, it goes on there (5.1).

    Args:
        pairs: list of (source ids, target ids), each ending in eos; or `TokenPairs`.
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions to predict in a batch, padding counted.
        seed: decides the order, together with the epoch.
        worker, workers: which share; shares are disjoint, complete and equally many batches.

    Raises:
        ValueError: worker is none of the workers.
    """

    pairs: object
    source_tokens: int
    target_tokens: int
    seed: int = 0
    worker: int = 0
    workers: int = 1

    def __post_init__(self):
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker={self.worker} of workers={self.workers}: "
                             "workers count from 0")

    def plan(self, epoch=0):
        """The plan of an epoch, the same for all workers."""
        lengths = self.pairs
        if not hasattr(lengths, "runs"):
            lengths = [(len(source), len(target)) for source, target in self.pairs]
        budgets = self.source_tokens, self.target_tokens
        return plan_batches(lengths, *budgets, self.seed, epoch, self.workers)

    def __call__(self, epoch=0, position=0):
        """Yield the worker's (source, target) of an epoch; `position` of them are done."""
        plan = self.plan(epoch)
        first = self.worker + position * self.workers
        for n, k in enumerate(range(first, len(plan), self.workers), 1):
            yield make_batch([self.pairs[i] for i in plan[k].tolist()])
            if n % 8 == 0 and hasattr(self.pairs, "forget"):
                self.pairs.forget()


def token_batches(pairs, source_tokens, target_tokens, seed=0, epoch=0, start=0):
    """Go once through encoded sentence pairs in batches of similar length (section 5.1).

    Args:
        pairs: list of (source ids, target ids), each ending in eos; or `TokenPairs`.
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions to predict in a batch, padding counted.
        seed, epoch: decide the order, see `plan_batches`.
        start: how many batches of the epoch are done already.

    Yields:
        source (B, S) and target (B, T), target from bos to eos.

    Raises:
        ValueError: a pair does not fit a budget even alone.
    """
    yield from Batches(pairs, source_tokens, target_tokens, seed)(epoch, start)


def flush(path):
    """Wait until a file, or the names in a folder, are safe from a power cut, on the disk.

    Args:
        path: a file or a folder, which must be there.
    """
    if os.name == "posix":  # elsewhere folders cannot be opened
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def remove(path):
    """Remove a file, or a folder with all that is in it, where there is one.

    Args:
        path: a `Path`.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_back(path, old):
    """End a replacement: what was set aside goes back if nothing stands in its place.

    Args:
        path: what was to be replaced, a `Path`.
        old: where it was set aside.
    """
    if path.exists():
        remove(old)
    elif old.exists():
        os.replace(old, path)


def umask_here():
    """The permissions that new files of this process do not get."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


UMASK = umask_here()


def share(path):
    """Give a file the permissions that a new file has here; some libraries give fewer.

    Args:
        path: a file, a `Path`.
    """
    with suppress(OSError):  # on a disk without permissions
        path.chmod(0o666 & ~UMASK)


@contextmanager
def replacing(path):
    """A path beside the given one to write to; flushed and renamed into place at the end.

    After an error the old file or folder is as it was; after a kill it is there, or set
    aside beside its place until the next call.

    Args:
        path: a file or a folder; the folder that holds it is made where it is missing.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (path.with_name(f".{path.name}.{what}") for what in ("part", "old"))
    put_back(path, old)
    remove(fresh)
    try:
        yield fresh
        for written in (*fresh.rglob("*"), fresh):
            if written.is_file():
                share(written)
            flush(written)
        if path.is_dir():
            os.replace(path, old)
        os.replace(fresh, path)
        flush(path.parent)
    finally:
        put_back(path, old)
        remove(fresh)


def read_file(path):
    """Read a file whole.

    Args:
        path: which file.

    Returns:
        bytes.

    Raises:
        ValueError: there is no such file, or it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


def load_vocabulary(folder):
    """Load the vocabulary kept in a model folder, of whichever kind it is.

    Args:
        folder: holds `words.txt` or `subwords.model`.

    Returns:
        a `Words` or a `Subwords`.

    Raises:
        ValueError: neither file is there, or the one found is damaged.
    """
    for kind in (Subwords, Words):
        if Path(folder, kind.filename).exists():
            return kind.load(Path(folder, kind.filename))
    raise ValueError(f"no vocabulary in {folder}: "
                     f"it should hold {Subwords.filename} or {Words.filename}")


def write_tokens(pairs, vocabulary, folder):
    """Encode pairs one after the other into two files, as numbers without a header.

    Args:
        pairs: iterable of (source, target), texts.
        vocabulary: has `encode` and a length.
        folder: gets tokens.bin, of the smallest type that fits, and lengths.bin, uint32.

    Returns:
        the name of that type.
    """
    dtype = np.min_scalar_type(max(len(vocabulary) - 1, 0))
    with (Path(folder, "tokens.bin").open("wb") as tokens,
          Path(folder, "lengths.bin").open("wb") as lengths,
          tqdm(pairs, unit="pair", dynamic_ncols=True, mininterval=0.5) as bar):
        for source, target in bar:
            source, target = vocabulary.encode(source), vocabulary.encode(target)
            tokens.write(array(dtype.char, [*source, *target]))
            lengths.write(array("I", [len(source), len(target)]))
    return dtype.name


def prepare(pairs, vocabulary, folder):
    """Encode pairs once into files that `TokenPairs` maps, sorted by length beforehand.

    Args:
        pairs: iterable of (source, target), texts; gone through once, never held.
        vocabulary: a `Words`, a `Subwords`, or anything with `encode` and a length.
        folder: appears whole, at the end, in place of what was there.

    Returns:
        a `TokenPairs`.

    Raises:
        ValueError: there is no pair.
    """
    with replacing(folder) as fresh:
        fresh.mkdir()
        dtype = write_tokens(pairs, vocabulary, fresh)
        lengths = np.fromfile(fresh / "lengths.bin", np.uint32).reshape(-1, 2)
        if not len(lengths):
            raise ValueError(f"pairs is empty: there is nothing to write to {folder}")
        (fresh / "lengths.bin").unlink()
        sizes = lengths.sum(1, dtype=np.int64)  # (n,)
        about = {"pairs": len(sizes), "tokens": int(sizes.sum()), "dtype": dtype}
        about["vocabulary"] = len(vocabulary)
        (fresh / "about.json").write_text(json.dumps(about))
        np.save(fresh / "starts.npy", sizes.cumsum() - sizes)
        np.save(fresh / "lengths.npy", lengths.astype(np.min_scalar_type(lengths.max())))
        order, runs = by_length(lengths)
        np.save(fresh / "order.npy", order.astype(np.min_scalar_type(len(order))))
        np.save(fresh / "runs.npy", runs)
    return TokenPairs(folder)


class TokenPairs:
    """Encoded pairs in mapped files; `pairs[i]` is (source ids, target ids).

    Args:
        folder: what `prepare` made.

    Raises:
        ValueError: the folder holds no prepared corpus, or a damaged one.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        try:
            about = json.loads(Path(folder, "about.json").read_text())
            for name in ("starts", "lengths", "order", "runs"):
                array = np.load(Path(folder, f"{name}.npy"), mmap_mode="r")
                setattr(self, name, array.view(np.ndarray))  # slices faster than a memmap
            with Path(folder, "tokens.bin").open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.tokens = np.frombuffer(self.map, about["dtype"])
            rows = {len(self.starts), len(self.lengths), len(self.order)}
            rows.add(self.runs[:, 2].sum())
            if rows != {about["pairs"]} or len(self.tokens) != about["tokens"]:
                raise ValueError("a file is cut off")
        except OSError as error:
            reason = f"{Path(error.filename).name}: {error.strerror}"
            raise ValueError(f"{folder} is no prepared corpus: {reason}") from None
        except (ValueError, KeyError, TypeError, IndexError, EOFError) as error:
            raise ValueError(f"{folder} is damaged: {error}; prepare it again") from None

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s, t = self.lengths[i].tolist()
        begin = int(self.starts[i])
        return self.tokens[begin:begin + s], self.tokens[begin + s:begin + s + t]

    def __reduce__(self):  # a worker in another process maps the files itself
        return TokenPairs, (self.folder,)

    def forget(self):
        """Hand the pages of tokens read so far back to the system."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.map.madvise(mmap.MADV_DONTNEED)


def decode_lines(content, name):
    """Split the bytes of a text file into lines, at line feeds only.

    Args:
        content: bytes in UTF-8, with or without a byte order mark.
        name: the file's name, for the error.

    Returns:
        list of strings without line ends; a last empty line is no line.

    Raises:
        ValueError: a line is not UTF-8; the error names it.
    """
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            lines[number - 1] = line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}, line {number} is not UTF-8 text: "
                             "convert the file to UTF-8") from None
    return lines[:-1] if not lines[-1] else lines


def pair_lines(source, target, names):
    """Pair the lines of two texts, leaving out pairs with an empty side.

    Args:
        source: list of lines.
        target: list of lines, the n-th a translation of the n-th of `source`.
        names: the two files' names, for the error.

    Returns:
        list of (source, target), and how many pairs were left out.

    Raises:
        ValueError: the numbers of lines differ.
    """
    if len(source) != len(target):
        raise ValueError(
            f"{names[0]} has {len(source)} lines and {names[1]} has {len(target)}: "
            "line n of one should be the translation of line n of the other")
    pairs = [(s.strip(), t.strip()) for s, t in zip(source, target)]
    kept = [(s, t) for s, t in pairs if s and t]
    return kept, len(pairs) - len(kept)


def read_pairs(source_path, target_path):
    """Read sentence pairs from two text files, line by line.

    Args:
        source_path: a UTF-8 text file, one sentence a line.
        target_path: its translation, line by line.

    Returns:
        list of (source, target), and how many pairs were left out for an empty side.

    Raises:
        ValueError: a file is missing or not UTF-8, or the numbers of lines differ.
    """
    paths = source_path, target_path
    source, target = (decode_lines(read_file(path), path) for path in paths)
    return pair_lines(source, target, paths)


@dataclass(frozen=True)
class Download:
    """A file that a corpus consists of.

    Args:
        path: where it goes, below the folder of the data.
        address: where it comes from.
        size: its bytes.
        sha256: their hash.
    """

    path: str
    address: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Published:
    """A corpus that others have published.

    Args:
        files: tuple of `Download`.
        licence: what may be done with it, in a sentence.
        read: makes the three parts from the files, a dict of path -> bytes.
    """

    files: tuple
    licence: str
    read: Callable


def downloads(table, path, address):
    """Write a table of files out.

    Args:
        table: lines of name, language, size and sha256.
        path: see `Download`; `{0}` stands for the name and `{1}` for the language.
        address: the same.

    Returns:
        tuple of `Download`.
    """
    rows = [line.split() for line in table.strip().splitlines()]
    return tuple(Download(path.format(*row), address.format(*row), int(row[2]), row[3])
                 for row in rows)


MULTI30K = downloads(
    """
    train en 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f
    train de 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6
    val en 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28
    val de 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a
  test_2016_flickr en 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9
  test_2016_flickr de 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8
    """,
    "multi30k-en-de/{0}.{1}.gz",
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/{0}.{1}.gz",
)

MULTI30K_TOKENIZED = downloads(
    """
    train en 1837696 08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119
    train de 2150008 cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505
    val en 64608 46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec
    val de 77273 97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00
  test_2016_flickr en 63307 5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2
  test_2016_flickr de 71917 c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4
    """,
    "multi30k-en-de/tok/{0}.lc.norm.tok.{1}",
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/{0}.lc.norm.tok.{1}",
)

TATOEBA_GERMAN = downloads(
    "deu eng 4012023 b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28",
    "tatoeba/{0}-{1}.zip",
    "https://raw.githubusercontent.com/rioyshky/translation/"
    "de48b7027f7318d77010a6e08ed928c10748c23d/{0}-{1}.zip",
)

TATOEBA_CHINESE = downloads(
    "cmn eng 4151351 9da1af87e3e61650aa38595e60baef3a4e3a18ed239a7ef4a764c0a87c7ddeff",
    "tatoeba/{0}.txt",
    "https://raw.githubusercontent.com/DaoChaShao/py-st-dl-translater-2.0/"
    "620408eda1721f683e2413778ad19e4f94691053/data/{0}.txt",
)


def read_multi30k(files):
    """Make the three parts of Multi30k from its six files.

    Args:
        files: path -> bytes: training, validation and test, source and target in turn.

    Returns:
        three lists of pairs.
    """
    lines = [(name, decode_lines(content, name)) for name, content in files.items()]
    both = zip(lines[::2], lines[1::2])
    return [pair_lines(source, target, (a, b))[0] for (a, source), (b, target) in both]


def read_tatoeba(files):
    """Make the three parts of a Tatoeba export, whose lines are English TAB translation.

    Args:
        files: name -> bytes of the one file, a zip archive or plain text.

    Returns:
        three lists of pairs; English is the source in an archive, the target in a text file.
    """
    (name, content), = files.items()
    packed = name.endswith(".zip")
    if packed:
        content = zipfile.ZipFile(io.BytesIO(content)).read("deu.txt")
    rows = [line.split("\t") for line in decode_lines(content, name)]
    pairs = ((row[0], row[1]) if packed else (row[1], row[0]) for row in rows)
    return split_pairs(list(dict.fromkeys(pairs)))  # each pair once


CORPORA = {
    name: Published(files, licence, read)
    for read, licence, corpora in (
        (read_multi30k, "Multi30k: non-commercial research and education only; "
                        "do not publish weights trained on it.",
         {"multi30k-en-de": MULTI30K, "multi30k-en-de-tok": MULTI30K_TOKENIZED}),
        (read_tatoeba, "Tatoeba (tatoeba.org and its contributors, "
                       "by way of manythings.org): CC BY 2.0 FR.",
         {"tatoeba-en-de": TATOEBA_GERMAN, "tatoeba-zh-en": TATOEBA_CHINESE}),
    )
    for name, files in corpora.items()
}


def published(name):
    """Look a corpus up by its name.

    Args:
        name: a key of `CORPORA`.

    Returns:
        a `Published`.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in CORPORA:
        known = ", ".join(["grammar", *CORPORA])
        raise ValueError(f"name={name!r} is no corpus; there are {known}")
    return CORPORA[name]


def cache_folder():
    """Where fetched data is kept: `annotated` in XDG_CACHE_HOME or the platform's cache.

    Returns:
        a `Path`; it need not exist.

    Raises:
        ValueError: XDG_CACHE_HOME names none, and the user has no home folder.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):  # the convention says: a relative one is ignored
        return Path(named, "annotated")
    try:
        home = Path.home()
    except RuntimeError:
        raise ValueError("no home folder to keep fetched data in: set XDG_CACHE_HOME "
                         "to a folder that can be written") from None
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
        return Path(local, "annotated", "cache")
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "annotated"


def ask(address, start, timeout):
    """Ask a server for a file from a byte on.

    Args:
        address: of the file.
        start: the first byte wanted.
        timeout: seconds to wait for an answer, and later for each piece of it.

    Returns:
        the open answer; the byte it begins with; the file's size, None where not said.
    """
    headers = {"User-Agent": "annotated", "Accept-Encoding": "identity"}
    wanted = {"Range": f"bytes={start}-"} if start else {}
    try:
        answer = urlopen(Request(address, headers=headers | wanted), timeout=timeout)
    except HTTPError as error:
        if error.code != 416:  # 416: the file ends before `start`; whole, it says its size
            raise
        answer = urlopen(Request(address, headers=headers), timeout=timeout)
    found = re.match(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if answer.status == 206 and found:
        return answer, int(found[1]), int(found[2]) if found[2] != "*" else None
    size = answer.headers.get("Content-Length")
    return answer, 0, int(size) if size else None


def size_of(path):
    """The bytes of a file, 0 where there is none.

    Args:
        path: a `Path`.

    Returns:
        an int.
    """
    return path.stat().st_size if path.exists() else 0


def receive(file, part, timeout):
    """Bring what is missing of a file, behind what there is of it.

    Args:
        file: a `Download`.
        part: path of what there is; it keeps what comes, whatever happens.
        timeout: see `ask`.

    Raises:
        ValueError: the file at the address has another size.
        OSError, HTTPException: the connection failed or stalled; or nothing can be written.
    """
    have = size_of(part)
    answer, begin, size = ask(file.address, have, timeout)
    shown = {"desc": part.stem, "unit": "B", "unit_scale": True, "dynamic_ncols": True}
    bar = tqdm(total=file.size, initial=begin, **shown)
    with answer, part.open("ab") as out, bar:
        if size not in (None, file.size):
            raise ValueError(f"the file there has {size} bytes, it should have {file.size}")
        if begin > have:
            raise ConnectionError(f"the answer begins at byte {begin} instead of {have}")
        out.truncate(begin)
        while begin < file.size and (block := answer.read1(1 << 16)):
            out.write(block)
            bar.update(len(block))
            begin += len(block)
    if begin < file.size:
        raise ConnectionError(f"cut off after {begin} of {file.size} bytes")


def complete(file, part, timeout):
    """Bring what is missing of a file and compare the whole with its hash.

    Args, and what is raised, as of `receive`.

    Returns:
        whether it is the file we mean; if not, the part is removed.
    """
    if size_of(part) < file.size:
        receive(file, part, timeout)
    if hashlib.sha256(part.read_bytes()).hexdigest() == file.sha256:
        return True
    part.unlink()
    return False


def hopeless(error):
    """Whether trying again cannot help, because the server or the disk refuses.

    Args:
        error: what `receive` raised.

    Returns:
        a bool.
    """
    if isinstance(error, HTTPError):
        return error.code < 500 and error.code not in (408, 429)
    full = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
    forbidden = errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR
    return isinstance(error, ValueError) or getattr(error, "errno", None) in full + forbidden


def unobtainable(file, error, kept):
    """Say in a line why a file cannot be had, and what would do.

    Args:
        file: a `Download`.
        error: what went wrong last.
        kept: how many bytes of it are there.

    Returns:
        a ValueError.
    """
    cause = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
    return ValueError(
        f"cannot fetch {file.address}: {cause}; set ANNOTATED_DATA to a folder "
        f"that holds {file.path}, or try again: {kept} of {file.size} bytes are kept")


def fetch_file(file, folder, tries=4, pause=1.0, timeout=20.0):
    """Fetch a file, going on where an earlier attempt was cut off.

    Args:
        file: a `Download`.
        folder: the file goes below it; it appears there whole and verified, or not at all.
        tries: attempts in a row that may bring nothing.
        pause: seconds before the next attempt, doubled after each that brought nothing.
        timeout: seconds without a byte that count as a stall.

    Raises:
        ValueError: it cannot be had; names the address and the cause.
    """
    path, failed, clean = Path(folder, file.path), 0, False
    part = path.with_name(f"{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        have = size_of(part)
        clean = clean or not have  # from here on nothing in it is older than this call
        try:
            if complete(file, part, timeout):
                return os.replace(part, path)
            if clean:
                raise ValueError("what lies there is another file: its sha256 is wrong")
        except (OSError, HTTPException, ValueError) as error:
            failed = 0 if size_of(part) > have else failed + 1
            if failed == tries or hopeless(error):
                raise unobtainable(file, error, size_of(part)) from None
            time.sleep(pause * 2 ** max(failed - 1, 0))


@contextmanager
def alone(folder):
    """Let one process at a time into a folder, made where it is missing; others wait.

    Args:
        folder: gets a file `.lock`; the system unlocks it even if the process dies.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with Path(folder, ".lock").open("ab") as file:
        with suppress(OSError):  # no locks on this file system: the hashes still guard
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def missing_files(name, folder):
    """The files of a corpus that are not in a folder, or are not as they should be.

    Args:
        name: a key of `CORPORA`.
        folder: of the data.

    Returns:
        list of `Download`.

    Raises:
        ValueError: the name is unknown.
    """
    def as_it_should_be(file):
        path = Path(folder, file.path)
        if not path.is_file():
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256

    return [file for file in published(name).files if not as_it_should_be(file)]


def fetch(name, folder=None, **patience):
    """Fetch the files of a corpus that are missing, and say once what their licence is.

    Args:
        name: a key of `CORPORA`.
        folder: where they go; `cache_folder()` by default.
        patience: tries, pause and timeout of `fetch_file`.

    Returns:
        the folder.

    Raises:
        ValueError: the name is unknown, a file cannot be had, the folder cannot be written.
    """
    folder = Path(folder or cache_folder())
    if not missing_files(name, folder):
        return folder
    try:
        with alone(folder):
            missing = missing_files(name, folder)  # another process may have been here
            for file in missing:
                fetch_file(file, folder, **patience)
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder "
            "that can be written, "
            f"or ANNOTATED_DATA to one that holds the files of {name}") from None
    if missing:
        tqdm.write(CORPORA[name].licence, file=sys.stderr)
    return folder


def verified(folder, file):
    """Read a file of the data and make sure that it is the one we mean.

    Args:
        folder: of the data.
        file: a `Download`.

    Returns:
        bytes, unpacked where the name ends in `.gz`.

    Raises:
        ValueError: the file is missing, or is another one.
    """
    path = Path(folder, file.path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; "
            f"ANNOTATED_DATA should name the folder that holds {file.path}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise ValueError(
            f"{path} is damaged or another version: its sha256 is {found[:12]}..., "
            f"it should be {file.sha256[:12]}...; fetch it again")
    return gzip.decompress(content) if file.path.endswith(".gz") else content


def load_corpus(name):
    """Load a corpus by its name: "grammar" is made, any other read, and fetched if need be.

    Args:
        name: "grammar" or a key of `CORPORA`; files come from the folder that the variable
            ANNOTATED_DATA names, where nothing is fetched, or from `cache_folder()`.

    Returns:
        a `Corpus`.

    Raises:
        ValueError: the name is unknown; a file is missing or damaged and cannot be fetched.
    """
    if name == "grammar":
        return grammar_corpus()
    about = published(name)
    folder = os.environ.get("ANNOTATED_DATA") or fetch(name)
    files = {file.path: verified(folder, file) for file in about.files}
    sums = {file.path: file.sha256 for file in about.files}
    return Corpus(name, *about.read(files), about.licence, sums)
