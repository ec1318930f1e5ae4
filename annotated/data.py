"""Data.

Generated from book/08-data.md by tools/tangle.py: edit the chapter, not this file.
"""

import gzip
import hashlib
import io
import os
import random
import re
import shutil
import zipfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

__all__ = [
    "split_words",
    "join_words",
    "replacing",
    "read_file",
    "Words",
    "train_subwords",
    "Subwords",
    "load_vocabulary",
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
    "pad_batch",
    "bucket_key",
    "pack",
    "plan_batches",
    "make_batch",
    "token_batches",
    "decode_lines",
    "pair_lines",
    "read_pairs",
    "CHECKSUMS",
    "LICENCES",
    "verified",
    "read_multi30k",
    "connected_components",
    "split_pairs",
    "read_tatoeba",
    "load_corpus",
]


def split_words(text):
    """Split a text into words, a full stop, question mark, exclamation mark or comma on its own.

    Args:
        text: a string.

    Returns:
        list of strings; `join_words` undoes it where words are parted by single spaces.
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


@contextmanager
def replacing(path):
    """A path beside the given one to write to; renamed into place at the end, removed after an error.

    Args:
        path: a file or a folder; the folder that holds it is made where it is missing.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.part")
    shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink(missing_ok=True)
    try:
        yield fresh
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(fresh, path)
    finally:
        shutil.rmtree(fresh) if fresh.is_dir() else fresh.unlink(missing_ok=True)


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


class Words:
    """A vocabulary of whole words, for text whose words are all known beforehand.

    Args:
        words: the words, without the four markers; their order gives the identifiers from 4 on.
    """

    filename = "words.txt"
    markers = ("<pad>", "<bos>", "<eos>", "<unk>")

    def __init__(self, words):
        self.words = [*self.markers, *words]
        self.ids = {word: i for i, word in enumerate(self.words) if i >= len(self.markers)}

    @classmethod
    def build(cls, pairs):
        """Collect the words of both sides of `pairs`, in alphabetical order."""
        return cls(sorted({word for pair in pairs for text in pair for word in split_words(text)} - set(cls.markers)))

    @classmethod
    def load(cls, path):
        """Read what `save` wrote; ValueError where the file is missing or damaged."""
        try:
            count, *words = read_file(path).decode("utf-8").split("\n")
        except UnicodeDecodeError:
            count, words = "", []
        if words[-1:] != [""] or count != f"{len(words) - 1} words" or len(set(words)) != len(words):
            raise ValueError(f"{path} is damaged: it should hold a line 'N words' and N different words, one a line")
        return cls(words[:-1])

    def save(self, path):
        """Write the words, one a line, below their number."""
        words = self.words[len(self.markers):]
        with replacing(path) as fresh:
            fresh.write_bytes("\n".join([f"{len(words)} words", *words, ""]).encode("utf-8"))

    def encode(self, text):
        """Turn a text into identifiers, eos (2) at the end; a word not in the vocabulary becomes unk (3)."""
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
    settings = {"model_type": "bpe", "vocab_size": vocab, "byte_fallback": True, "character_coverage": 0.9995}
    settings |= {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "normalization_rule_name": "identity"}
    settings |= {"max_sentence_length": 1 << 16, "num_threads": 1, "minloglevel": 2, **options}
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=text, model_writer=model, **settings)
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip() or "there is no text in them"
        raise ValueError(f"no vocabulary of vocab={vocab} pieces can be made of these lines: {reason}") from None
    return model.getvalue()


class Subwords:
    """A vocabulary of word pieces shared by both languages (section 5.1), made with SentencePiece.

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
            raise ValueError(f"the SentencePiece model has pad, bos, eos, unk = {found}; it should have (0, 1, 2, 3)")

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
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    def save(self, path):
        """Write the model in SentencePiece's own format."""
        with replacing(path) as fresh:
            fresh.write_bytes(self.model)

    def encode(self, text):
        """Turn a text into identifiers, eos (2) at the end; runs of white space count as one space."""
        return [*self.processor.encode(" ".join(text.split())), 2]

    def decode(self, ids):
        """Turn identifiers into a text; pad, bos and eos (0, 1, 2) vanish."""
        return self.processor.decode([i for i in map(int, ids) if i > 2])

    def __len__(self):
        return self.processor.get_piece_size()


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
    raise ValueError(f"no vocabulary in {folder}: it should hold {Subwords.filename} or {Words.filename}")


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
        father fathers Vater Väter m, mother mothers Mutter Mütter f, brother brothers Bruder Brüder m,
        sister sisters Schwester Schwestern f, uncle uncles Onkel Onkel m, aunt aunts Tante Tanten f,
        king kings König Könige m, queen queens Königin Königinnen f, prince princes Prinz Prinzen w""",
    "animal": """dog dogs Hund Hunde m, cat cats Katze Katzen f, horse horses Pferd Pferde n,
        bird birds Vogel Vögel m, cow cows Kuh Kühe f, pig pigs Schwein Schweine n, bear bears Bär Bären w""",
    "thing": """chair chairs Stuhl Stühle m, car cars Auto Autos n, lamp lamps Lampe Lampen f,
        bag bags Tasche Taschen f, hat hats Hut Hüte m, shirt shirts Hemd Hemden n""",
    "text": "book books Buch Bücher n, letter letters Brief Briefe m, newspaper newspapers Zeitung Zeitungen f",
    "food": """apple apples Apfel Äpfel m, egg eggs Ei Eier n, cake cakes Kuchen Kuchen m,
        soup soups Suppe Suppen f, sausage sausages Wurst Würste f""",
    "place": """garden gardens Garten Gärten m, house houses Haus Häuser n, school schools Schule Schulen f,
        park parks Park Parks m, kitchen kitchens Küche Küchen f, castle castles Schloss Schlösser n""",
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
    "person": {"old": "alt", "young": "jung", "tired": "müde", "hungry": "hungrig", "sad": "traurig", "clever": "klug"},
    "animal": {"old": "alt", "young": "jung", "tired": "müde", "hungry": "hungrig", "small": "klein", "big": "groß"},
    "thing": {"old": "alt", "new": "neu", "small": "klein", "red": "rot", "cheap": "billig"},
    "text": {"old": "alt", "new": "neu", "long": "lang", "good": "gut"},
    "food": {"fresh": "frisch", "cold": "kalt", "good": "gut", "cheap": "billig"},
    "place": {"old": "alt", "new": "neu", "small": "klein", "big": "groß"},
}


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb of the built-in grammar.

    `third` and `german_third` hold the third person, or all four present forms with slashes between;
    `auxiliary` is the German perfect's, `frame` what follows the verb, `place` whether a place may.
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
    "this": "dieser diese dieses diese diesen diese dieses diese diesem dieser diesem diesen".split(),
    "a": "ein eine ein - einen eine ein - einem einer einem -".split(),
    "my": "mein meine mein meine meinen meine mein meine meinem meiner meinem meinen".split(),
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
    "adverb": {"today": "heute", "now": "jetzt", "sometimes": "manchmal", "perhaps": "vielleicht"},
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
        """The column of a declension table: three cases of masculine, feminine, neuter, plural."""
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

    `objects` holds pairs (Nominal, case); `clause` is a subordinate clause, `conjunction` joins it.
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
    """The German form of a noun: dative plural in -n, weak masculines in -en but for the nominative.

    Args:
        noun: a `Noun`.
        plural: whether it is plural.
        case: "nom", "acc" or "dat".

    Returns:
        a string.
    """
    if not plural:
        return noun.german_plural if noun.gender == "w" and case != "nom" else noun.german
    return noun.german_plural + ("n" if case == "dat" and noun.german_plural[-1] not in "ns" else "")


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
    """Put a phrase of determiner, perhaps adjective, and noun into both languages; as `say_nominal`."""
    noun, column = nominal.noun, nominal.column(case)
    heads[nominal] = head = Leaf(noun.plural if nominal.plural else noun.singular)
    tree, german = [("NNS" if nominal.plural else "NN", head)], [(decline(noun, nominal.plural, case), (head,))]
    if nominal.adjective:
        leaf = Leaf(nominal.adjective)
        ending = ENDINGS["weak" if nominal.determiner in ("the", "this") else "mixed"][column]
        tree.insert(0, ("JJ", leaf))
        german.insert(0, (ADJECTIVES[noun.kind][leaf.word].removesuffix("e") + ending, (leaf,)))
    special = {"a": "an" if tree[0][1].word[0] in "aeiou" else "a", "this": "these" if nominal.plural else "this"}
    leaf = Leaf(special.get(nominal.determiner, nominal.determiner))
    tag = "PRP$" if leaf.word == "my" else "DT"
    return ("NP", (tag, leaf), *tree), [(DETERMINERS[nominal.determiner][column], (leaf,)), *german]


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
    """The same for a clause with an auxiliary: the participle or the infinitive closes the German clause."""
    verb, person = clause.verb, clause.subject.agreement()
    forms, german = AUXILIARIES[clause.auxiliary]
    auxiliary = Leaf(forms[person])
    if clause.auxiliary == "have":
        german = {"haben": "habe hast hat haben", "sein": "bin bist ist sind"}[verb.auxiliary].split()
        tags, leaf, word = ("VBZ" if person == 2 else "VBP", "VBN"), Leaf(verb.participle), verb.german_participle
    else:
        tags, leaf, word = ("MD", "VB"), Leaf(verb.base), verb.german.replace("|", "")
    return [(tags[0], auxiliary), (tags[1], leaf)], (german[person], (auxiliary,)), [(word, (leaf,))], ""


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
    start = [("im", (leaf, *links))] if article == "dem" else [("in", (leaf,)), (article, links)]
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
    if clause.question or clause.adverb:  # an adverb takes the first place: the subject follows the verb
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
    return [subject, ("VP", finite, ("VP", *rest, *trees)) if rest else ("VP", finite, *trees)]


@dataclass(frozen=True)
class Example:
    """A sentence pair with everything that is true of it.

    Args:
        source: the English sentence.
        target: the German sentence.
        alignment: (source index, target index) of words that translate each other, over `split_words`.
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
    return [tree] if isinstance(tree, Leaf) else [leaf for child in tree[1:] for leaf in leaves_of(child)]


def bracketed(tree):
    """Write an English tree in brackets, Penn style.

    Args:
        tree: (label, child, ...), a child a tree or a `Leaf`.

    Returns:
        a string such as `(NP (DT the) (NN dog))`.
    """
    return tree.word if isinstance(tree, Leaf) else f"({tree[0]} {' '.join(map(bracketed, tree[1:]))})"


def facts_of(clause):
    """List who does what in a clause and the clause below it, whether by noun or by pronoun.

    Args:
        clause: a `Clause`.

    Returns:
        tuple of (subject noun, German verb, object); the object is an English noun or adjective, "me", "you",
        "us" or ""; a clause about "I", "you" or "we" states none.
    """
    last = clause.objects[-1][0] if clause.objects else None
    thing = clause.adjective if last is None else last.noun.singular if last.noun else PRONOUNS[last.pronoun()][1]
    facts = facts_of(clause.clause) if clause.clause else ()
    return ((clause.subject.noun.singular, clause.verb.german, thing), *facts) if clause.subject.noun else facts


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
        trees, german = [("ADVP", ("RB", leaf)), *trees], [(PARTICLES["adverb"][leaf.word], (leaf,)), *german]
    end = Leaf("?" if clause.question else ".")
    tree = ("SQ" if clause.question else "S", *trees, (".", end))
    german.append((end.word, (end,)))
    leaves = leaves_of(tree)
    index = {leaf: i for i, leaf in enumerate(leaves)}
    alignment = sorted((index[leaf], j) for j, (_, links) in enumerate(german) for leaf in links)
    antecedents = ((i, index[leaf.antecedent]) for i, leaf in enumerate(leaves) if leaf.antecedent)
    leaves[0].word = leaves[0].word[0].upper() + leaves[0].word[1:]
    words = [word for word, _ in german]
    words[0] = words[0][0].upper() + words[0][1:]
    return Example(join_words(leaf.word for leaf in leaves), join_words(words), tuple(alignment),
                   tuple(antecedents), bracketed(tree), facts_of(clause))


def forms(noun):
    """How many noun phrases a noun makes: four determiners, two numbers ("a" has one), adjective or none.

    Args:
        noun: a `Noun`, or None for one without adjectives.

    Returns:
        an int.
    """
    return (2 * len(DETERMINERS) - 1) * (1 + len(ADJECTIVES[noun.kind] if noun else ()))


def count_after(verb, subject):
    """How many ways there are to complete a clause that has a subject and a verb, auxiliaries aside.

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
    both = verb.frame == "dat+acc"
    after = count("person", speakers=3) * count(verb.object) if both else count(verb.object, speakers=3)
    return after * (1 + places) if verb.place == "place" else after


def count_sentences():
    """Count the grammar's sentences of a single clause, exactly.

    Returns:
        an int: statements, questions and statements that begin with an adverb.
    """
    total, bare = 0, forms(None)
    for verb in VERBS:
        for subject in (*nouns_of(verb.subject), *[None] * 3 * ("person" in KINDS[verb.subject])):
            adjectives = len(ADJECTIVES[subject.kind if subject else "person"])
            if verb.frame == "adjective":  # the predicate is not the attribute: n + n(n - 1) pairs of them
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
    verb = rng.choice([verb for verb in VERBS if (verb.frame == "that") == that and suits(verb, subject, theme)])
    subject = subject or sample_nominal(rng, verb.subject, theme is None, avoid)
    objects = sample_objects(rng, verb, subject, theme, avoid)
    adjectives = [word for word in ADJECTIVES[subject.kind()] if word != subject.adjective]
    adjective = rng.choice(adjectives) if verb.frame == "adjective" else ""
    placed = verb.frame == "none" or verb.place == "place" and rng.random() < 0.25
    present = 9 if subject.person < 3 else 3  # "I" and "you" are rare: all their verb forms should be met
    auxiliary = rng.choice([""] * present + [*AUXILIARIES])
    return Clause(subject, verb, auxiliary, objects, adjective, sample_nominal(rng, "place") if placed else None)


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
    nominals = [n for n in (clause.subject, *(n for n, _ in clause.objects), clause.place) if n and n.determiner]
    words = [PRONOUNS[n.pronoun()][0] for n in nominals]
    return [n for n, word in zip(nominals, words) if words.count(word) == 1 and n is not clause.place]


def sample_sentence(rng):
    """Draw a sentence: a statement, a question, or one with a subordinate clause.

    Args:
        rng: a `random.Random`.

    Returns:
        a `Clause`.
    """
    form = rng.choice(["plain", "question", "question", "adverb", "that", "reason", "reason", "reason"])
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
    return replace(main, conjunction=conjunction, clause=sample_clause(rng, avoid=used, **roles))


def fraction(text):
    """Map a text to a number that looks random and is the same on every machine.

    Args:
        text: a string.

    Returns:
        a float in [0, 1), from the text's sha256.
    """
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


def part_of(facts):
    """Which part of the data a sentence belongs to, by its combinations of subject, verb and object.

    Args:
        facts: see `Example`.

    Returns:
        "train" where every combination is a training one; "validation" or "test" where at least
        one is kept for that part and none for the other; else "".
    """
    x = [fraction(" ".join(fact)) for fact in facts]
    test, validation = any(a < 0.05 for a in x), any(0.05 <= a < 0.1 for a in x)
    return "" if test and validation else "test" if test else "validation" if validation else "train"


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
    rng, wanted = random.Random(seed), {"train": train, "validation": validation, "test": test}
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
        a `Corpus`; every validation or test sentence has a combination never seen in training.
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
    """Replace every word by the one that goes with it best in training, by Dice's coefficient.

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
    return [join_words(best.get(word, (0, word))[1] for word in split_words(source)) for source in sources]


def pad_batch(sequences, pad=0):
    """Put sequences of unequal length into one tensor, padding at the end.

    Args:
        sequences: B lists of identifiers.
        pad: the identifier that fills the rest.

    Returns:
        (B, L) long, L the length of the longest.
    """
    L = max(map(len, sequences), default=0)
    rows = [list(s) + [pad] * (L - len(s)) for s in sequences]
    return torch.tensor(rows, dtype=torch.long).reshape(len(rows), L)  # (B, L)


def bucket_key(s, t):
    """Order pairs so that neighbours need little padding on either side.

    The longer side decides; within one such length the difference of the sides
    runs up and down in turn, so that it does not jump where the length changes.

    Args:
        s: source length.
        t: target length.

    Returns:
        a sort key.
    """
    longest = max(s, t)
    return longest, (s - t) * (-1) ** longest


def pack(order, lengths, source_tokens, target_tokens):
    """Cut a list of indices into batches, a new one wherever the next pair would break a budget.

    Args, returns and raises as `plan_batches`; `order` is the list of indices.
    """
    batches, S, T = [[]], 0, 0
    for i in order:
        s, t = lengths[i]
        if s > source_tokens or t > target_tokens:
            raise ValueError(f"pair {i} has {s} source and {t} target tokens, more than source_tokens={source_tokens} "
                             f"or target_tokens={target_tokens}: raise the budget or leave the pair out")
        rows, S, T = len(batches[-1]) + 1, max(S, s), max(T, t)
        if rows * S > source_tokens or rows * T > target_tokens:
            batches.append([])
            S, T = s, t
        batches[-1].append(i)
    return batches if order else []


def plan_batches(lengths, source_tokens, target_tokens, seed=0, epoch=0):
    """Group sentence pairs of similar length into batches under two token budgets (section 5.1).

    Args:
        lengths: list of (source length, target length).
        source_tokens, target_tokens: most positions in a batch, padding counted.
        seed, epoch: decide the order; the same two give the same plan.

    Returns:
        list of batches, each a list of indices into `lengths`; every index occurs once.

    Raises:
        ValueError: a pair does not fit a budget even alone; sentences are never cut.
    """
    shuffle = random.Random(f"{seed} {epoch}").shuffle
    order = list(range(len(lengths)))
    shuffle(order)
    order.sort(key=lambda i: bucket_key(*lengths[i]))
    batches = pack(order, lengths, source_tokens, target_tokens)
    shuffle(batches)
    return batches


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
    target = pad_batch([[bos, *target] for _, target in pairs], pad)  # (B, T)
    return source, target


def token_batches(pairs, source_tokens, target_tokens, seed=0, epoch=0, start=0):
    """Go once through encoded sentence pairs in batches of similar length (section 5.1).

    Args:
        pairs: list of (source ids, target ids), each ending in eos.
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions to predict in a batch, padding counted.
        seed, epoch: decide the order, see `plan_batches`.
        start: how many batches of the epoch are done already.

    Yields:
        source (B, S) and target (B, T), target from bos to eos.

    Raises:
        ValueError: a pair does not fit a budget even alone.
    """
    lengths = [(len(source), len(target)) for source, target in pairs]
    plan = plan_batches(lengths, source_tokens, target_tokens, seed, epoch)
    for batch in plan[start:]:
        yield make_batch([pairs[i] for i in batch])


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
            raise ValueError(f"{name}, line {number} is not UTF-8 text: convert the file to UTF-8") from None
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
        raise ValueError(f"{names[0]} has {len(source)} lines and {names[1]} has {len(target)}: "
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
    source, target = (decode_lines(read_file(path), path) for path in (source_path, target_path))
    return pair_lines(source, target, (source_path, target_path))


CHECKSUMS = {
    "multi30k-en-de": {
        "multi30k-en-de/train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
        "multi30k-en-de/train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
        "multi30k-en-de/val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
        "multi30k-en-de/val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
        "multi30k-en-de/test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
        "multi30k-en-de/test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    },
    "multi30k-en-de-tok": {
        "multi30k-en-de/tok/train.lc.norm.tok.en": "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "multi30k-en-de/tok/train.lc.norm.tok.de": "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
        "multi30k-en-de/tok/val.lc.norm.tok.en": "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "multi30k-en-de/tok/val.lc.norm.tok.de": "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
        "multi30k-en-de/tok/test_2016_flickr.lc.norm.tok.en":
            "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "multi30k-en-de/tok/test_2016_flickr.lc.norm.tok.de":
            "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    },
    "tatoeba-en-de": {"tatoeba/deu-eng.zip": "b7688f84f99fa33c17397c14d8bd9cef1fdeb2ee0bf50074767023aee8926e28"},
    "tatoeba-zh-en": {"tatoeba/cmn.txt": "9da1af87e3e61650aa38595e60baef3a4e3a18ed239a7ef4a764c0a87c7ddeff"},
}

LICENCES = {
    "multi30k-en-de": "Multi30k: non-commercial research and education only; do not publish weights trained on it.",
    "multi30k-en-de-tok": "Multi30k: non-commercial research and education only; do not publish weights trained on it.",
    "tatoeba-en-de": "Tatoeba (tatoeba.org and its contributors, by way of manythings.org): CC BY 2.0 FR.",
    "tatoeba-zh-en": "Tatoeba (tatoeba.org and its contributors, by way of manythings.org): CC BY 2.0 FR.",
}


def verified(file, sha256):
    """Read a file of the data folder and make sure that it is the one we mean.

    Args:
        file: path below the folder that the environment variable ANNOTATED_DATA names.
        sha256: what the file's bytes should hash to.

    Returns:
        bytes, unpacked where the name ends in `.gz`.

    Raises:
        ValueError: the variable, the folder or the file is missing, or the file is another one.
    """
    folder = os.environ.get("ANNOTATED_DATA")
    if not folder or not Path(folder).is_dir():
        raise ValueError(f"ANNOTATED_DATA is {folder!r}: set it to the folder that holds {file}")
    content = read_file(Path(folder, file))
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{Path(folder, file)} is damaged or another version: "
                         f"its sha256 is {found[:12]}..., it should be {sha256[:12]}...; fetch it again")
    return gzip.decompress(content) if file.endswith(".gz") else content


def read_multi30k(files):
    """Make the three parts of Multi30k from its six files.

    Args:
        files: name -> bytes: training, validation and test, source and target in turn.

    Returns:
        three lists of pairs.
    """
    lines = [(name, decode_lines(content, name)) for name, content in files.items()]
    return [pair_lines(source, target, (a, b))[0] for (a, source), (b, target) in zip(lines[::2], lines[1::2])]


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
    """Divide pairs into training, validation and test so that no string occurs in two of them.

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


def read_tatoeba(files):
    """Make the three parts of a Tatoeba export, whose lines are English TAB translation.

    Args:
        files: name -> bytes of the one file, a zip archive or plain text.

    Returns:
        three lists of pairs; English is the source of a zip archive's and the target of a plain one.
    """
    (name, content), = files.items()
    packed = name.endswith(".zip")
    if packed:
        content = zipfile.ZipFile(io.BytesIO(content)).read("deu.txt")
    rows = [line.split("\t") for line in decode_lines(content, name)]
    return split_pairs(list(dict.fromkeys((row[0], row[1]) if packed else (row[1], row[0]) for row in rows)))


def load_corpus(name):
    """Load a corpus by its name: "grammar" is made, any other is read from the folder ANNOTATED_DATA.

    Args:
        name: "grammar" or a key of `CHECKSUMS`.

    Returns:
        a `Corpus`.

    Raises:
        ValueError: the name is unknown, or a file is missing or damaged.
    """
    if name == "grammar":
        return grammar_corpus()
    if name not in CHECKSUMS:
        raise ValueError(f"name={name!r} is no corpus; there are grammar, {', '.join(CHECKSUMS)}")
    sums = CHECKSUMS[name]
    files = {file: verified(file, sha256) for file, sha256 in sums.items()}
    train, validation, test = (read_tatoeba if name.startswith("tatoeba") else read_multi30k)(files)
    return Corpus(name, train, validation, test, LICENCES[name], sums)
