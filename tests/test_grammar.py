"""The grammar's German is a textbook's, what it says of a pair is true, and its count is exact."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from annotated import grammar
from annotated.data import split_words
from annotated.grammar import _conjugate, _decline, _Nominal, _sample_clause, _say, _say_nominal, grammar_examples


@pytest.fixture(scope="module")
def examples():
    return grammar_examples(3000, 200, 200)


def phrase(word, determiner, case, adjective="", plural=False):
    noun = next(noun for noun in grammar._NOUNS if noun.singular == word)
    return " ".join(w for w, _ in _say_nominal(_Nominal(noun, determiner, adjective, plural), case, {})[1])


def test_german_phrases_are_those_of_a_textbook():
    table = {
        ("man", "the", "nom", "old"): "der alte Mann",
        ("man", "the", "acc", "old"): "den alten Mann",
        ("man", "the", "dat", "old"): "dem alten Mann",
        ("man", "a", "nom", "old"): "ein alter Mann",
        ("woman", "my", "dat", "young"): "meiner jungen Frau",
        ("woman", "a", "acc", "tired"): "eine müde Frau",
        ("book", "a", "nom", "good"): "ein gutes Buch",
        ("book", "this", "acc", "new"): "dieses neue Buch",
        ("horse", "my", "dat", "big"): "meinem großen Pferd",
        ("boy", "the", "nom", "clever"): "der kluge Junge",
        ("boy", "the", "acc", "clever"): "den klugen Jungen",
        ("prince", "a", "dat", "sad"): "einem traurigen Prinzen",
        ("dog", "this", "nom", "small", True): "diese kleinen Hunde",
        ("dog", "the", "dat", "small", True): "den kleinen Hunden",
        ("car", "my", "dat", "", True): "meinen Autos",
        ("woman", "the", "dat", "", True): "den Frauen",
        ("apple", "the", "dat", "", True): "den Äpfeln",
    }
    for (word, determiner, case, adjective, *plural), german in table.items():
        assert phrase(word, determiner, case, adjective, bool(plural)) == german


def test_german_verbs_are_those_of_a_textbook():
    table = {
        "sehen": "sehe siehst sieht sehen", "lesen": "lese liest liest lesen", "essen": "esse isst isst essen",
        "warten": "warte wartest wartet warten", "laufen": "laufe läufst läuft laufen", "geben": "gebe gibst gibt geben",
        "helfen": "helfe hilfst hilft helfen", "wissen": "weiß weißt weiß wissen", "sein": "bin bist ist sind",
        "an|rufen": "rufe rufst ruft rufen", "schlafen": "schlafe schläfst schläft schlafen",
    }  # fmt: skip
    verbs = {verb.german: verb for verb in grammar._VERBS}
    assert {name: " ".join(_conjugate(verbs[name])[1]) for name in table} == table
    assert _conjugate(verbs["sein"])[0] == ["am", "are", "is", "are"]
    assert _conjugate(verbs["wissen"])[0] == ["know", "know", "knows", "know"]


def test_fewer_sentences_than_none_are_refused():
    with pytest.raises(ValueError, match="train must be 0 or more, got -1"):
        grammar_examples(-1, 0, 0)


def test_every_noun_declines():
    for noun in grammar._NOUNS:
        assert noun.gender in "mfnw" and noun.kind in grammar._ADJECTIVES
        assert _decline(noun, True, "dat")[-1] in "ns", f"{noun.german}: a dative plural ends in -n or -s"


def test_alignment_tree_and_antecedents(examples):
    pronouns = set()
    for example in examples[0]:
        source, target = split_words(example.source), split_words(example.target)
        assert 4 <= len(source) <= 20
        assert re.findall(r" ([^\s()]+)\)", example.tree) == source, "the tree's leaves are the sentence"
        assert example.tree.count("(") == example.tree.count(")")
        assert {i for i, _ in example.alignment} == set(range(len(source))), "every English word has its German"
        unaligned = set(range(len(target))) - {j for _, j in example.alignment}
        assert all(target[j] == "," for j in unaligned)
        assert len(set(example.alignment)) == len(example.alignment)
        assert (len(source) - 1, len(target) - 1) in example.alignment
        for i, j in example.antecedents:
            assert source[i] in ("he", "him", "she", "her", "it", "they", "them") and j < i
            pronouns.add((source[i], target[next(b for a, b in example.alignment if a == i)]))
    assert {("it", "er"), ("it", "es"), ("it", "sie"), ("it", "ihn"), ("him", "ihm"), ("them", "ihnen")} <= pronouns


def test_every_pronoun_has_a_clear_antecedent(examples):
    for example in examples[0]:
        source = split_words(example.source)
        third = {i for i, w in enumerate(source) if w in ("he", "him", "she", "her", "it", "they", "them")}
        assert third == {i for i, _ in example.antecedents}


def test_gender_of_it_is_that_of_its_antecedent(examples):
    genders = {w: noun.gender for noun in grammar._NOUNS for w in (noun.singular,)}
    german = {"m": {"er", "ihn", "ihm"}, "w": {"er", "ihn", "ihm"}, "f": {"sie", "ihr"}, "n": {"es", "ihm"}}
    seen = Counter()
    for example in examples[0]:
        source, target = split_words(example.source), split_words(example.target)
        for i, j in example.antecedents:
            if source[i] == "it":
                gender = genders[source[j]]
                seen[gender] += 1
                assert target[next(b for a, b in example.alignment if a == i)] in german[gender], example
    assert min(seen[g] for g in "mfn") > 20


def test_the_same_seed_gives_the_same_sentences(examples):
    assert grammar_examples(300, 20, 20)[0] == examples[0][:300]
    assert grammar_examples(30, 2, 2, seed=1)[0] != examples[0][:30]
    program = "from annotated.grammar import grammar_examples; print(grammar_examples(50, 5, 5))"
    runs = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, env={**os.environ, "PYTHONHASHSEED": h}).stdout
        for h in "12"
    }
    assert len(runs) == 1 and runs.pop().startswith(b"[[Example(")


def test_held_out_combinations_of_known_words():
    train, validation, test = grammar_examples()
    facts = [{fact for e in part for fact in e.facts} for part in (train, validation, test)]
    for part, other in ((validation, 2), (test, 1)):
        assert len({e.source for e in part}) == len(part) == 500
        for example in part:
            assert set(example.facts) - facts[0], f"every fact of {example.source!r} is in training"
            assert (set(example.facts) - facts[0]).isdisjoint(facts[other])
    words = {w for e in train for text in (e.source, e.target) for w in split_words(text)}
    missing = {w for e in validation + test for text in (e.source, e.target) for w in split_words(text)} - words
    assert not missing
    assert len({e.source for e in train}) == len(train)


class Exhausted(Exception):
    pass


class EveryChoice:
    """Stands in for random.Random and takes, run after run, every way through the choices there are."""

    def __init__(self):
        self.path, self.place = [], 0

    def pick(self, n):
        if self.place == len(self.path):
            self.path.append([0, n])
        self.place += 1
        return self.path[self.place - 1][0]

    def choice(self, options):
        return options[self.pick(len(options))]

    def random(self):
        return (0.0, 0.999)[self.pick(2)]

    def advance(self):
        self.place = 0
        while self.path and self.path[-1][0] == self.path[-1][1] - 1:
            self.path.pop()
        if not self.path:
            raise Exhausted
        self.path[-1][0] += 1


def test_count_is_exact(monkeypatch):
    """A grammar small enough to be written out has as many sentences as are counted."""
    nouns = [noun for noun in grammar._NOUNS if noun.singular in ("man", "woman", "dog", "apple", "garden")]
    verbs = [v for v in grammar._VERBS if v.german in ("schlafen", "sehen", "kennen", "essen", "sein", "geben", "sagen")]
    monkeypatch.setattr(grammar, "_NOUNS", tuple(nouns))
    monkeypatch.setattr(grammar, "_VERBS", tuple(v for v in verbs if v.german not in ("sehen", "geben")))
    monkeypatch.setattr(grammar, "_ADJECTIVES", {kind: dict(list(words.items())[:2]) for kind, words in grammar._ADJECTIVES.items()})
    monkeypatch.setattr(grammar, "_DETERMINERS", {k: grammar._DETERMINERS[k] for k in ("the", "a")})
    monkeypatch.setattr(grammar, "_AUXILIARIES", {"can": grammar._AUXILIARIES["can"]})
    grammar._nouns_of.cache_clear()
    try:
        rng, sentences = EveryChoice(), set()
        while True:
            clause = _sample_clause(rng)
            sentences.add(_say(clause).source)
            try:
                rng.advance()
            except Exhausted:
                break
        assert len(sentences) * (2 + len(grammar._PARTICLES["adverb"])) == grammar.count_sentences()
    finally:
        grammar._nouns_of.cache_clear()


def test_over_a_million_sentences():
    assert grammar.count_sentences() > 1_000_000
