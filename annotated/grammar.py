"""A grammar for two languages.

Generated from book/F-grammar.md by tools/tangle.py: edit the chapter, not this file.
"""

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from annotated.data import Corpus, _part_of, join_words, split_words

__all__ = ["Example", "count_sentences", "grammar_examples", "grammar_corpus"]


@dataclass(frozen=True, eq=False)
class _Noun:
    """A noun of the built-in grammar; gender `w` is masculine with the weak declension."""

    singular: str
    plural: str
    german: str
    german_plural: str
    gender: str
    kind: str


_NOUNS = tuple(_Noun(*f"{entry} {kind}".split()) for kind, entries in {
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

_KINDS = {
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
def _nouns_of(kind):
    """The nouns of a kind, a key of `_KINDS`."""
    return tuple(noun for noun in _NOUNS if noun.kind in _KINDS[kind])


_ADJECTIVES = {
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
class _Verb:
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


_VERBS = tuple(_Verb(*line.split()) for line in """
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

_DETERMINERS = {
    "the": "der die das die den die das die dem der dem den".split(),
    "this": "dieser diese dieses diese diesen diese dieses diese "
            "diesem dieser diesem diesen".split(),
    "a": "ein eine ein - einen eine ein - einem einer einem -".split(),
    "my": "mein meine mein meine meinen meine mein meine "
          "meinem meiner meinem meinen".split(),
}

_ENDINGS = {
    "weak": "e e e en en e e en en en en en".split(),
    "mixed": "er e es en en e es en en en en en".split(),
}

_PRONOUNS = {
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

_AUXILIARIES = {
    "have": ("have have has have".split(), "habe hast hat haben".split()),
    "can": (["can"] * 4, "kann kannst kann können".split()),
    "must": (["must"] * 4, "muss musst muss müssen".split()),
    "will": (["will"] * 4, "werde wirst wird werden".split()),
}

_PARTICLES = {
    "adverb": {"today": "heute", "now": "jetzt",
               "sometimes": "manchmal", "perhaps": "vielleicht"},
    "conjunction": {"because": "weil", "although": "obwohl", "that": "dass"},
}


@dataclass(frozen=True, eq=False)
class _Nominal:
    """A noun phrase, or without a determiner the pronoun that stands for one.

    `of` is the noun phrase a pronoun of the third person refers to.
    """

    noun: Any = None  # a `_Noun`; None for "I", "you" and "we"
    determiner: str = ""
    adjective: str = ""
    plural: bool = False
    person: int = 3
    of: "_Nominal | None" = None

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
        """The row of `_PRONOUNS` that this phrase is, or may be replaced by."""
        if self.person < 3 or self.plural:
            return f"{self.person} plural" if self.plural else str(self.person)
        gender = self.noun.gender.replace("w", "m")
        english = {"m": "he", "f": "she"}[gender] if self.kind() == "person" else "it"
        return f"3 {english} {gender}"


@dataclass(frozen=True, eq=False)
class _Clause:
    """What a clause says, before it is said in either language.

    `objects` holds pairs (Nominal, case); `conjunction` joins the subordinate `clause`.
    """

    subject: _Nominal
    verb: _Verb
    auxiliary: str = ""
    objects: tuple = ()
    adjective: str = ""
    place: _Nominal | None = None
    conjunction: str = ""
    clause: "_Clause | None" = None
    adverb: str = ""
    question: bool = False


@dataclass(eq=False)
class _Leaf:
    """An English word in its tree; German words point at the leaves they translate."""

    word: str
    antecedent: "_Leaf | None" = None


def _decline(noun, plural, case):
    """The German form of a noun: dative plural in -n; weak masculines vary in the singular."""
    if not plural:
        return noun.german_plural if noun.gender == "w" and case != "nom" else noun.german
    added = "n" if case == "dat" and noun.german_plural[-1] not in "ns" else ""
    return noun.german_plural + added


def _conjugate(verb):
    """The present forms of a verb, English and German, four each: I, you, he, they."""
    base, third = verb.base, verb.third
    english = third.split("/") if "/" in third else [base, base, third, base]
    infinitive = verb.german.split("|")[-1]
    third = verb.german_third
    if "/" in third:
        return english, third.split("/")
    second = third if third[-2] in "sßz" else third[:-1] + "st"
    return english, [infinitive[:-1], second, third, infinitive]


def _say_nominal(nominal, case, heads):
    """The English tree of a noun phrase or pronoun, and its German words with their leaves.

    The leaf of its noun is added to heads, by `_Nominal`, for pronouns that come later.
    """
    if nominal.determiner:
        return _say_determined(nominal, case, heads)
    english, objective, *german = _PRONOUNS[nominal.pronoun()]
    leaf = _Leaf(english if case == "nom" else objective, heads.get(nominal.of))
    return ("NP", ("PRP", leaf)), [(german[("nom", "acc", "dat").index(case)], (leaf,))]


def _say_determined(nominal, case, heads):
    """Put determiner, perhaps adjective, and noun into both languages; as `_say_nominal`."""
    noun, determiner = nominal.noun, nominal.determiner
    column = nominal.column(case)
    heads[nominal] = head = _Leaf(noun.plural if nominal.plural else noun.singular)
    tree = [("NNS" if nominal.plural else "NN", head)]
    german = [(_decline(noun, nominal.plural, case), (head,))]
    if nominal.adjective:
        leaf = _Leaf(nominal.adjective)
        stem = _ADJECTIVES[noun.kind][leaf.word].removesuffix("e")
        ending = _ENDINGS["weak" if determiner in ("the", "this") else "mixed"][column]
        tree.insert(0, ("JJ", leaf))
        german.insert(0, (stem + ending, (leaf,)))
    special = {"a": "an" if tree[0][1].word[0] in "aeiou" else "a",
               "this": "these" if nominal.plural else "this"}
    leaf = _Leaf(special.get(determiner, determiner))
    tag = "PRP$" if determiner == "my" else "DT"
    return ("NP", (tag, leaf), *tree), [(_DETERMINERS[determiner][column], (leaf,)), *german]


def _say_verb(clause):
    """Put a clause's verb and auxiliary into both languages.

    Returns English (tag, Leaf) nodes, the finite one first; the German finite verb, (word,
    leaves); the German words that close the clause; the separable prefix or "".
    """
    if clause.auxiliary:
        return _say_auxiliary(clause)
    verb = clause.verb
    person = clause.subject.agreement()
    tag = "VBZ" if person == 2 else "VBP"
    prefix = verb.german.rpartition("|")[0]
    english, german = _conjugate(verb)
    if clause.question and verb.base != "be":
        do = _Leaf("does" if person == 2 else "do")
        leaf = _Leaf(verb.base)
        return [(tag, do), ("VB", leaf)], (german[person], (do, leaf)), [], prefix
    leaf = _Leaf(english[person])
    return [(tag, leaf)], (german[person], (leaf,)), [], prefix


def _say_auxiliary(clause):
    """The same with an auxiliary: participle or infinitive closes the German clause."""
    verb = clause.verb
    person = clause.subject.agreement()
    forms, german = _AUXILIARIES[clause.auxiliary]
    auxiliary = _Leaf(forms[person])
    if clause.auxiliary == "have":
        if verb.auxiliary == "sein":
            german = "bin bist ist sind".split()
        leaf = _Leaf(verb.participle)
        english = [("VBZ" if person == 2 else "VBP", auxiliary), ("VBN", leaf)]
        closing = verb.german_participle
    else:
        leaf = _Leaf(verb.base)
        english = [("MD", auxiliary), ("VB", leaf)]
        closing = verb.german.replace("|", "")
    return english, (german[person], (auxiliary,)), [(closing, (leaf,))], ""


def _say_complements(clause, heads):
    """Put objects, predicate adjective and place into both languages.

    Returns English trees; German (word, leaves) of pronouns; and of everything else.
    """
    trees: list = []
    pronouns: list = []
    others: list = []
    for nominal, case in clause.objects:
        tree, german = _say_nominal(nominal, case, heads)
        trees.append(tree)
        (others if nominal.determiner else pronouns).extend(german)
    if clause.adjective:
        leaf = _Leaf(clause.adjective)
        trees.append(("ADJP", ("JJ", leaf)))
        others.append((_ADJECTIVES[clause.subject.kind()][leaf.word], (leaf,)))
    if clause.place:
        tree, german = _say_place(clause.place)
        trees.append(tree)
        others.extend(german)
    return trees, pronouns, others


def _say_place(nominal):
    """Put "in" and a noun phrase into both languages; German contracts *in dem* to *im*."""
    tree, ((article, links), *rest) = _say_nominal(nominal, "dat", {})
    leaf = _Leaf("in")
    start = [("in", (leaf,)), (article, links)]
    if article == "dem":
        start = [("im", (leaf, *links))]
    return ("PP", ("IN", leaf), tree), [*start, *rest]


def _say_clause(clause, heads, final=False):
    """The English trees of a clause, and its German words with their leaves.

    `final` says that it is a subordinate clause, whose German verb comes last.
    """
    subject, german_subject = _say_nominal(clause.subject, "nom", heads)
    verbs, *german_verbs = _say_verb(clause)
    trees, pronouns, others = _say_complements(clause, heads)
    german = _german_order(clause, german_subject, german_verbs, pronouns, others, final)
    if clause.clause:
        leaf = _Leaf(clause.conjunction)
        inner, words = _say_clause(clause.clause, heads, final=True)
        trees.append(("SBAR", ("IN", leaf), ("S", *inner)))
        german += [(",", ()), (_PARTICLES["conjunction"][leaf.word], (leaf,)), *words]
    return _english_order(clause, subject, verbs, trees), german


def _german_order(clause, subject, verbs, pronouns, others, final):
    """Put the German parts of a clause in order: the finite verb first, second or last.

    `verbs` are the finite verb, what closes the clause, and the separable prefix.
    """
    (finite, links), closing, prefix = verbs
    if final:
        return [*subject, *pronouns, *others, *closing, (prefix + finite, links)]
    if prefix:
        closing = [(prefix, links[-1:])]
    if clause.question or clause.adverb:  # an adverb takes the first place from the subject
        return [(finite, links), *pronouns, *subject, *others, *closing]
    return [*subject, (finite, links), *pronouns, *others, *closing]


def _english_order(clause, subject, verbs, trees):
    """Put the English parts of a clause in order; a question's finite verb comes first."""
    finite, *rest = verbs
    if rest:
        trees = [("VP", *rest, *trees)]
    if clause.question:
        return [finite, subject, *trees]
    return [subject, ("VP", finite, *trees)]


@dataclass(frozen=True)
class Example:
    """A sentence pair with everything that is true of it.

    Args:
        source: English.
        target: German.
        alignment: (source index, target index) of words that translate each other, as
            `split_words` counts them.
        antecedents: (index of a source pronoun, index of the noun it refers to).
        tree: the English constituents in brackets, Penn style.
        facts: who does what: subject noun, German verb, object.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]
    antecedents: tuple[tuple[int, int], ...]
    tree: str
    facts: tuple[tuple[str, str, str], ...]


def _leaves_of(tree):
    """The leaves of an English tree, (label, child, ...), from left to right."""
    if isinstance(tree, _Leaf):
        return [tree]
    return [leaf for child in tree[1:] for leaf in _leaves_of(child)]


def _bracketed(tree):
    """Write an English tree in brackets, Penn style, such as `(NP (DT the) (NN dog))`."""
    if isinstance(tree, _Leaf):
        return tree.word
    return f"({tree[0]} {' '.join(map(_bracketed, tree[1:]))})"


def _facts_of(clause):
    """Who does what in a clause and the clause below it: (subject noun, German verb, object).

    The object is an English noun or adjective, "me", "you", "us" or ""; a clause about "I",
    "you" or "we" states no fact.
    """
    facts = _facts_of(clause.clause) if clause.clause else ()
    if not clause.subject.noun:
        return facts
    thing = clause.adjective
    if clause.objects:
        last, _ = clause.objects[-1]
        thing = last.noun.singular if last.noun else _PRONOUNS[last.pronoun()][1]
    return ((clause.subject.noun.singular, clause.verb.german, thing), *facts)


def _say(clause):
    """The `Example` of a sentence, given its main clause."""
    trees, german = _say_clause(clause, {})
    if clause.adverb:
        leaf = _Leaf(clause.adverb)
        trees.insert(0, ("ADVP", ("RB", leaf)))
        german.insert(0, (_PARTICLES["adverb"][leaf.word], (leaf,)))
    end = _Leaf("?" if clause.question else ".")
    tree = ("SQ" if clause.question else "S", *trees, (".", end))
    german.append((end.word, (end,)))
    leaves = _leaves_of(tree)
    at = {leaf: i for i, leaf in enumerate(leaves)}
    alignment = sorted((at[leaf], j) for j, (_, made) in enumerate(german) for leaf in made)
    pronouns = [leaf for leaf in leaves if leaf.antecedent]
    antecedents = tuple((at[leaf], at[leaf.antecedent]) for leaf in pronouns)
    leaves[0].word = leaves[0].word[0].upper() + leaves[0].word[1:]
    source = join_words(leaf.word for leaf in leaves)
    target = join_words(word for word, _ in german)
    target = target[0].upper() + target[1:]
    facts = _facts_of(clause)
    return Example(source, target, tuple(alignment), antecedents, _bracketed(tree), facts)


def _forms(noun):
    """How many noun phrases a noun makes, of determiner, number, and adjective or none.

    None stands for a noun without adjectives.
    """
    return (2 * len(_DETERMINERS) - 1) * (1 + len(_ADJECTIVES[noun.kind] if noun else ()))


def _count_after(verb, subject):
    """How many ways there are to complete a clause of subject and verb, auxiliaries aside.

    No that-clause follows the verb; the subject is a noun, or None for "I", "you" and "we".
    """
    def count(kind, speakers=0):
        speakers *= "person" in _KINDS[kind] and subject is not None
        return speakers + sum(_forms(noun) for noun in _nouns_of(kind) if noun is not subject)

    places = count("place")
    if verb.frame == "none":
        return places
    if verb.frame == "dat+acc":
        after = count("person", speakers=3) * count(verb.object)
    else:
        after = count(verb.object, speakers=3)
    return after * (1 + places) if verb.place == "place" else after


def count_sentences() -> int:
    """Count the grammar's sentences of a single clause, exactly.

    These are statements, questions and statements that begin with an adverb.
    """
    total = 0
    for verb in _VERBS:
        subjects = list(_nouns_of(verb.subject))
        if "person" in _KINDS[verb.subject]:
            subjects += [None, None, None]  # "I", "you" and "we"
        for subject in subjects:
            adjectives = len(_ADJECTIVES[subject.kind if subject else "person"])
            if verb.frame == "adjective" and subject:
                # A predicate unlike the attribute: n without one, and n(n - 1) pairs.
                total += _forms(None) * adjectives**2
            elif verb.frame == "adjective":
                total += adjectives
            elif verb.frame != "that":
                total += (_forms(subject) if subject else 1) * _count_after(verb, subject)
    auxiliaries = 1 + len(_AUXILIARIES)
    orders = 2 + len(_PARTICLES["adverb"])
    return total * auxiliaries * orders


def _sample_nominal(rng, kind, speakers=True, avoid=()):
    """Draw a noun phrase of a kind, a key of `_KINDS`, but for the nouns to avoid.

    Where persons may come and speakers is true, it is now and then "I", "you" or "we".
    """
    if speakers and "person" in _KINDS[kind] and rng.random() < 0.2:
        person, plural = rng.choice([(1, False), (2, False), (1, True)])
        return _Nominal(person=person, plural=plural)
    noun = rng.choice([noun for noun in _nouns_of(kind) if noun not in avoid])
    determiner = rng.choice(list(_DETERMINERS))
    plural = rng.random() < 0.35
    adjective = rng.choice(list(_ADJECTIVES[noun.kind])) if rng.random() < 0.35 else ""
    return _Nominal(noun, determiner, adjective, plural and determiner != "a")


def _suits(verb, subject, theme):
    """Whether a verb can take these pronouns, or None, as its subject and its object."""
    if subject and subject.noun.kind not in _KINDS[verb.subject]:
        return False
    kind = "person" if verb.frame == "dat+acc" else verb.object
    return theme is None or theme.noun.kind in _KINDS.get(kind, ())


def _sample_clause(rng, subject=None, theme=None, avoid=(), that=False):
    """Draw a clause; a clause below it is added by `_sample_sentence`.

    Pronouns may be given as subject and as theme, an object; the nouns to avoid are not
    taken; `that` asks for a verb that a that-clause follows.
    """
    able = [verb for verb in _VERBS if _suits(verb, subject, theme)]
    verb = rng.choice([verb for verb in able if (verb.frame == "that") == that])
    subject = subject or _sample_nominal(rng, verb.subject, theme is None, avoid)
    objects = _sample_objects(rng, verb, subject, theme, avoid)
    adjectives = [word for word in _ADJECTIVES[subject.kind()] if word != subject.adjective]
    adjective = rng.choice(adjectives) if verb.frame == "adjective" else ""
    placed = verb.frame == "none" or verb.place == "place" and rng.random() < 0.25
    present = 9 if subject.person < 3 else 3  # rare: the forms of "I" should be met
    auxiliary = rng.choice([""] * present + [*_AUXILIARIES])
    place = _sample_nominal(rng, "place") if placed else None
    return _Clause(subject, verb, auxiliary, objects, adjective, place)


def _sample_objects(rng, verb, subject, theme, avoid):
    """Draw the objects of a clause, each with its case.

    If the subject is a noun, "me", "you" and "us" may be objects; a pronoun may be given as
    theme, for the object or the receiving one of two.
    """
    speakers = bool(subject.determiner)
    avoid = (*avoid, subject.noun)
    if verb.frame == "dat+acc":
        receiver = theme or _sample_nominal(rng, "person", speakers, avoid)
        return (receiver, "dat"), (_sample_nominal(rng, verb.object, False, avoid), "acc")
    if verb.frame in ("acc", "dat"):
        return ((theme or _sample_nominal(rng, verb.object, speakers, avoid), verb.frame),)
    return ()


def _referents(clause):
    """The noun phrases of a clause whose English pronoun no other one of them has."""
    named = clause.subject, *(n for n, _ in clause.objects), clause.place
    nominals = [n for n in named if n and n.determiner]
    words = [_PRONOUNS[n.pronoun()][0] for n in nominals]
    clear = [n for n, word in zip(nominals, words) if words.count(word) == 1]
    return [n for n in clear if n is not clause.place]


def _sample_sentence(rng: random.Random) -> _Clause:
    """Draw a sentence: a statement, a question, or one with a subordinate clause."""
    form = rng.choice(["plain", *["question"] * 2, "adverb", "that", *["reason"] * 3])
    main = _sample_clause(rng, that=form == "that")
    if form == "question":
        return replace(main, question=True)
    if form == "adverb":
        return replace(main, adverb=rng.choice(list(_PARTICLES["adverb"])))
    if form == "plain":
        return main
    pronouns = [_Nominal(n.noun, plural=n.plural, of=n) for n in _referents(main)]
    roles = {}
    if pronouns and rng.random() < 0.75:
        roles[rng.choice(["subject", "theme"])] = rng.choice(pronouns)
    used = [n.noun for n in (main.subject, *(n for n, _ in main.objects))]
    conjunction = "that" if form == "that" else rng.choice(["because", "although"])
    below = _sample_clause(rng, avoid=used, **roles)
    return replace(main, conjunction=conjunction, clause=below)


def grammar_examples(
    train: int = 20000, validation: int = 500, test: int = 500, seed: int = 0
) -> list[list[Example]]:
    """Draw sentences and put each into the part of the data it belongs to.

    Args:
        train, validation, test: how many sentences.
        seed: the same seed gives the same sentences.

    Returns:
        three lists of examples, of 4 to 20 English words and marks each, no sentence twice.
    """
    rng = random.Random(seed)
    wanted = {"train": train, "validation": validation, "test": test}
    for part, count in wanted.items():
        if count < 0:
            raise ValueError(f"{part} must be 0 or more, got {count}")
    found: dict[str, dict[str, Example]] = {part: {} for part in wanted}
    while any(len(found[part]) < count for part, count in wanted.items()):
        clause = _sample_sentence(rng)
        part = _part_of(_facts_of(clause))
        if part and len(found[part]) < wanted[part]:
            example = _say(clause)
            if 4 <= len(split_words(example.source)) <= 20:
                found[part][example.source] = example
    return [list(examples.values()) for examples in found.values()]


def grammar_corpus(
    train: int = 20000, validation: int = 500, test: int = 500, seed: int = 0
) -> Corpus:
    """Make a corpus of the built-in grammar; the arguments are those of `grammar_examples`.

    Every validation or test sentence has a fact never seen in training.
    """
    parts = grammar_examples(train, validation, test, seed)
    pairs = [[(example.source, example.target) for example in part] for part in parts]
    licence = "The built-in grammar: no rights reserved."
    return Corpus("grammar", pairs[0], pairs[1], pairs[2], licence)
