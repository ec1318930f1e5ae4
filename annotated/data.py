"""Data.

Generated from book/08-data.md by tools/tangle.py: edit the chapter, not this file.
"""

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annotated.files import _need, atomic_write, read_file

__all__ = [
    "split_words",
    "join_words",
    "Words",
    "Subwords",
    "load_vocabulary",
    "Corpus",
    "split_pairs",
    "lookup_baseline",
    "word_for_word_baseline",
    "pad_batch",
    "make_batch",
    "Batches",
    "token_batches",
]


def split_words(text: str) -> list[str]:
    """Split a text into words; a full stop, comma, question or exclamation mark is one too.

    `join_words` undoes it where single spaces part the words and marks stand only behind them.
    """
    return re.findall(r"[^\s.,?!]+|[.,?!]", text)


def join_words(words: Iterable[str]) -> str:
    """Join words to a text, punctuation attached to the word before it."""
    return re.sub(r" (?=[.,?!])", "", " ".join(words))


def _known(ids, size):
    """Identifiers as a list without pad, bos and eos; ValueError beyond 0 to size - 1."""
    found = list(map(int, ids))
    if found and max(found) >= size:
        raise ValueError(f"ids must be below {size}, got {max(found)}")
    if found and min(found) < 0:
        raise ValueError(f"ids must be 0 or more, got {min(found)}")
    return [i for i in found if i > 2]


class Words:
    """A vocabulary of whole words, for text whose words are all known beforehand.

    Args:
        words: the words, without the four markers; their order gives identifiers from 4 on.

    Raises:
        ValueError: a word occurs twice, is empty or a marker, or has a line feed in it.
    """

    filename = "words.txt"
    markers = ("<pad>", "<bos>", "<eos>", "<unk>")

    def __init__(self, words: Iterable[str]):
        self.words = [*self.markers, *words]
        self.ids: dict[str, int] = {}
        for i, word in enumerate(self.words[4:], start=4):
            if not word or "\n" in word or word in self.ids or word in self.markers:
                wanted = "different, none empty, a marker or with a line feed"
                raise ValueError(f"words must be {wanted}, got {word!r}")
            self.ids[word] = i

    @classmethod
    def build(cls, pairs: Iterable[tuple[str, str]]) -> "Words":
        """Collect the words of both sides of `pairs`, sorted; TypeError if one is a string."""
        found: set[str] = set()
        for pair in pairs:
            if isinstance(pair, str):
                raise TypeError("pairs must hold (source, target), not single strings")
            found.update(word for text in pair for word in split_words(text))
        return cls(sorted(found - set(cls.markers)))

    @classmethod
    def load(cls, path: Path | str) -> "Words":
        """Read what `save` wrote; ValueError where the file is missing or damaged."""
        try:
            count, *words = read_file(path).decode("utf-8").split("\n")
        except UnicodeDecodeError:
            count = ""
            words = []
        whole = words[-1:] == [""] and count == f"{len(words) - 1} words"
        if not whole or len(set(words)) != len(words):
            raise ValueError(f"{path} is damaged: it should hold a line 'N words' "
                             "and N different words, one a line")
        return cls(words[:-1])

    def save(self, path: Path | str) -> None:
        """Write the words, one a line, below their number."""
        words = self.words[len(self.markers):]
        text = "\n".join([f"{len(words)} words", *words, ""])
        with atomic_write(path) as fresh:
            fresh.write_bytes(text.encode("utf-8"))

    def encode(self, text: str) -> list[int]:
        """Turn a text into identifiers, eos (2) at the end; an unknown word is unk (3)."""
        return [*(self.ids.get(word, 3) for word in split_words(text)), 2]

    def decode(self, ids: Iterable) -> str:
        """Turn identifiers into a text; pad, bos and eos (0, 1, 2) vanish."""
        return join_words(self.words[i] for i in _known(ids, len(self)))

    def __len__(self) -> int:
        return len(self.words)


def _vocabulary_fault(said):
    """Why SentencePiece makes no vocabulary: too large, too small, or what it says itself."""
    if most := re.search(r"value <= (\d+)", said):
        return f"they give {most[1]} at most"
    if least := re.search(r"smaller than required_chars. \d+ vs (\d+)", said):
        return f"their letters and the markers alone are {least[1]}"
    return " ".join(said.rpartition("] ")[2].split()) or "there is no text in them"


def _one_line_each(lines, raised):
    """The lines with single spaces; an error of their maker is noted: SentencePiece hides it."""
    try:
        for line in lines:
            yield " ".join(_writable(line).split())
    except BaseException as error:
        raised.append(error)
        raise


def _train_subwords(lines, vocab, **options):
    """Learn a byte-pair encoding with SentencePiece (section 5.1); the model as bytes.

    Raises ValueError where `vocab`, the number of pieces, does not suit the lines.
    """
    _need("sentencepiece", "data", "for subwords")
    import sentencepiece

    if vocab < 1:
        raise ValueError(f"vocab must be 1 or more, got {vocab}")
    model = io.BytesIO()
    raised: list[BaseException] = []
    settings = {"model_type": "bpe", "vocab_size": vocab}
    settings |= {"normalization_rule_name": "identity", "max_sentence_length": 1 << 30}
    settings |= {"byte_fallback": True, "character_coverage": 0.9995, "num_threads": 1}
    settings |= {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "minloglevel": 2}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_one_line_each(lines, raised), model_writer=model,
            **settings | options)
    except (RuntimeError, ValueError) as error:
        if raised:
            raise raised[0] from None
        what = f"no vocabulary of vocab={vocab} pieces can be made of these lines"
        raise ValueError(f"{what}: {_vocabulary_fault(str(error))}") from None
    return model.getvalue()


def _writable(line):
    """A text in which a lone surrogate, which no encoding can write, is U+FFFD."""
    return line.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Subwords:
    """A vocabulary of word pieces shared by both languages, by SentencePiece (section 5.1).

    Characters that the training text lacks are spelled as bytes, so that they survive.
    White space becomes one space between words, each sign `▁` a space, and half a surrogate
    pair U+FFFD.

    Args:
        model: what SentencePiece's own model file holds.

    Raises:
        ValueError: `model` is damaged, or its markers are not pad 0, bos 1, eos 2, unk 3.
    """

    filename = "subwords.model"

    def __init__(self, model: bytes):
        _need("sentencepiece", "data", "for subwords")
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except (RuntimeError, UnicodeDecodeError):
            raise ValueError("the SentencePiece model is damaged") from None
        p = self.processor
        found = (p.pad_id(), p.bos_id(), p.eos_id(), p.unk_id())
        if found != (0, 1, 2, 3):
            raise ValueError(f"the SentencePiece model has pad, bos, eos, unk = {found}; "
                             "it should have (0, 1, 2, 3)")

    @classmethod
    def train(cls, lines: Iterable[str], vocab: int, **options: Any) -> "Subwords":
        """Learn a vocabulary from the lines of both languages together.

        Args:
            lines: gone through once.
            vocab: number of pieces, the four markers and the 256 bytes among them.
            options: further settings of SentencePiece's trainer.

        Raises:
            ValueError: vocab does not suit the lines.
        """
        return cls(_train_subwords(lines, vocab, **options))

    @classmethod
    def load(cls, path: Path | str) -> "Subwords":
        """Read what `save` wrote; ValueError where the file is missing or damaged."""
        try:
            return cls(read_file(path))
        except ValueError as error:
            said = str(error)
            if str(path) not in said:
                said = f"{path}: {said}"
            raise ValueError(said) from None

    def save(self, path: Path | str) -> None:
        """Write the model in SentencePiece's own format."""
        with atomic_write(path) as fresh:
            fresh.write_bytes(self.model)

    def encode(self, text: str) -> list[int]:
        """Turn a text into identifiers, eos (2) at the end; white space becomes a space."""
        return [*self.processor.encode(" ".join(_writable(text).split())), 2]

    def decode(self, ids: Iterable) -> str:
        """Turn identifiers into a text; pad, bos and eos (0, 1, 2) vanish."""
        return self.processor.decode(_known(ids, len(self)))

    def __len__(self) -> int:
        return self.processor.get_piece_size()


def load_vocabulary(folder: Path | str) -> Words | Subwords:
    """Load the vocabulary of a model folder, from `words.txt` or from `subwords.model`.

    Raises:
        ValueError: neither file is there, or the one found is damaged.
    """
    if Path(folder, Subwords.filename).exists():
        return Subwords.load(Path(folder, Subwords.filename))
    if Path(folder, Words.filename).exists():
        return Words.load(Path(folder, Words.filename))
    raise ValueError(f"no vocabulary in {folder}: "
                     f"it should hold {Subwords.filename} or {Words.filename}")


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs in three parts, and where they come from.

    Args:
        name: the name `load_corpus` knows it by.
        train: pairs of source and target.
        validation, test: the same, held out.
        licence: what may be done with the text, in a sentence.
        provenance: file -> sha256 of what was read; empty where nothing was.
    """

    name: str
    train: list[tuple[str, str]]
    validation: list[tuple[str, str]]
    test: list[tuple[str, str]]
    licence: str
    provenance: dict[str, str] = field(default_factory=dict)


def _connected_components(pairs):
    """Lists of pairs that share a string on either side, directly or through others."""
    parent: dict[str, str] = {}

    def root(text):
        parent.setdefault(text, text)
        while parent[text] != text:
            parent[text] = parent[parent[text]]  # shorter for later calls
            text = parent[text]
        return text

    for source, target in pairs:
        parent[root(source)] = root(target)
    groups = defaultdict(list)
    for pair in pairs:
        groups[root(pair[0])].append(pair)
    return list(groups.values())


def _fraction(text):
    """Map a text to a number in [0, 1) by its sha256: random to look at, always the same."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


def split_pairs(
    pairs: Iterable[tuple[str, str]], share: float = 0.02
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]:
    """Divide pairs into training, validation and test so that no string occurs in two.

    Pairs that share a string form a group; its own text alone says where it goes, and about
    `share` of the groups go to validation, and as many to test.

    Raises:
        ValueError: share is not between 0 and 0.5.
    """
    if not 0 < share < 0.5:
        raise ValueError(f"share must lie between 0 and 0.5, got {share}")
    train: list[tuple[str, str]] = []
    validation: list[tuple[str, str]] = []
    test: list[tuple[str, str]] = []
    for group in _connected_components(list(pairs)):
        x = _fraction(min(min(pair) for pair in group))
        if x < share:
            test.extend(group)
        elif x < 2 * share:
            validation.extend(group)
        else:
            train.extend(group)
    return train, validation, test


def lookup_baseline(train: Iterable[tuple[str, str]], sources: Iterable[str]) -> list[str]:
    """Translate by looking the sentence up in the training pairs; "" where it is not there."""
    table = dict(train)
    return [table.get(source, "") for source in sources]


def _part_of(facts):
    """Which part of the data a sentence belongs to, by its facts (subject, verb and object).

    "validation" or "test" where at least one fact is reserved for that part and none for
    the other, "" where both have one, and else "train".
    """
    x = [_fraction(" ".join(fact)) for fact in facts]
    test = any(a < 0.05 for a in x)
    validation = any(0.05 <= a < 0.1 for a in x)
    if test and validation:
        return ""
    if test:
        return "test"
    return "validation" if validation else "train"


def word_for_word_baseline(
    train: Iterable[tuple[str, str]], sources: Iterable[str]
) -> list[str]:
    """Replace every word by the one that goes with it best in training (Dice's coefficient).

    A word never seen stays; a mark is not replaced by a word, nor a word by a mark.
    """
    left: Counter = Counter()  # training sources that hold a word
    right: Counter = Counter()  # training targets that hold a word
    both: Counter = Counter()  # pairs that hold one and the other
    for source, target in train:
        s = set(split_words(source))
        t = set(split_words(target))
        left.update(s)
        right.update(t)
        both.update((a, b) for a in s for b in t if (a in ".,?!") == (b in ".,?!"))
    best: dict[str, tuple[float, str]] = {}
    for (a, b), n in both.items():
        score = 2 * n / (left[a] + right[b])
        best[a] = max(best.get(a, (0.0, "")), (score, b))
    dictionary = {word: translation for word, (_, translation) in best.items()}
    lines = [[dictionary.get(w, w) for w in split_words(source)] for source in sources]
    return [join_words(words) for words in lines]


def pad_batch(sequences: Sequence[Sequence[int] | np.ndarray], pad: int = 0) -> Tensor:
    """Put B sequences of identifiers into one tensor, (B, L), L the length of the longest.

    The identifier pad fills the ends of the others.
    """
    L = max(map(len, sequences), default=0)
    batch = np.full((len(sequences), L), pad, dtype=np.int64)
    for row, sequence in zip(batch, sequences):
        row[:len(sequence)] = sequence
    return torch.from_numpy(batch)  # (B, L)


def _pack(runs, source_tokens, target_tokens):
    """Cut sorted pairs into batches, a new one wherever the next pair would break a budget.

    A pair that does not fit even alone is a batch of its own; `_plan_batches` refuses it.

    Returns places in the sorted list: 0, where the second batch begins, ..., the end.
    """
    cuts = [0]
    place = 0
    S = T = 1  # the longest sides of the batch so far
    for s, t, count in runs.tolist():
        end = place + count
        while place < end:
            S = max(S, s)
            T = max(T, t)
            most = max(1, min(source_tokens // S, target_tokens // T))
            free = most - (place - cuts[-1])
            if free > 0:
                place = min(place + free, end)
            else:
                cuts.append(place)
                S = T = 1
    return [*cuts, place] if place else cuts


def _bucket_key(s, t):
    """Order pairs so that neighbours need little padding on either side.

    The longer side decides; within one such length the difference of the sides
    runs up and down in turn, so that it does not jump where the length changes.
    The lengths s and t may be arrays; keys are equal for equal lengths only.
    """
    longest = np.maximum(s, t).astype(np.int64)
    return (longest << 32) + (np.int64(s) - np.int64(t)) * (1 - 2 * (longest % 2))


def _by_length(lengths):
    """Sort pairs by their lengths, (n, 2), see `_bucket_key`, and count equal ones.

    Returns order, (n,), the sorted indices; and runs, (r, 3): source length, target length
    and number of pairs, in the same order.
    """
    lengths = np.asarray(lengths).reshape(-1, 2)
    key = _bucket_key(lengths[:, 0], lengths[:, 1])
    order = key.argsort(kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))  # (r,); a key is never negative
    counts = np.diff(starts, append=len(key))
    return order, np.column_stack([lengths[order[starts]], counts]).astype(np.int64)


class _Plan:
    """The batches of an epoch, worked out one at a time: `plan[k]` holds indices of pairs.

    For order and runs see `_by_length`, for cuts `_pack`; seed and epoch decide the order
    of the batches, and of the pairs of a run.
    """

    def __init__(self, order, runs, cuts, seed=0, epoch=0):
        self.order = order
        self.cuts = cuts
        self.name = f"{seed} {epoch}"
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
        batch = self.sequence[k]
        begin = self.cuts[batch]
        end = self.cuts[batch + 1]
        parts: list[np.ndarray] = []
        r = np.searchsorted(self.ends, begin, side="right")
        while not parts or self.ends[r - 1] < end:
            pairs, first = self.run(r)
            parts.append(pairs[max(begin - first, 0):end - first])
            r += 1
        return np.concatenate(parts)  # (rows,)

    def __len__(self):
        return len(self.sequence)


def _divide(cuts, workers):
    """Halve the batches with most pairs until `workers` can take equally many.

    Raises ValueError if every batch has a single pair, and their number cannot be divided.
    """
    cuts = list(cuts)
    while (len(cuts) - 1) % workers:
        rows = np.diff(cuts)
        k = int(rows.argmax())
        if rows[k] < 2:
            spare = len(rows) % workers
            what = f"leave {spare} pairs out or take" if spare < len(rows) else "take"
            raise ValueError(
                f"{len(rows)} batches of one pair each cannot be divided among "
                f"workers={workers}: {what} another number of workers")
        cuts.insert(k + 1, (cuts[k] + cuts[k + 1]) // 2)
    return cuts


def _plan_batches(lengths, source_tokens, target_tokens, seed=0, epoch=0, workers=1):
    """Group pairs of similar length into batches under two token budgets (section 5.1).

    The lengths, (n, 2), may be `TokenPairs`, which are sorted already. Returns a `_Plan`
    of a multiple of `workers` batches; the same seed and epoch give the same plan.
    Raises ValueError if a pair does not fit a budget even alone; sentences are never cut.
    """
    if hasattr(lengths, "runs"):
        order, runs = lengths.order, lengths.runs
    else:
        order, runs = _by_length(lengths)
    long = np.flatnonzero((runs[:, 0] > source_tokens) | (runs[:, 1] > target_tokens))
    if len(long):
        s, t, count = runs[long[0]].tolist()
        i = order[runs[:long[0], 2].sum()]
        raise ValueError(
            f"pair {i} has {s} source and {t} target tokens, more than "
            f"source_tokens={source_tokens} or target_tokens={target_tokens}: "
            "raise the budget or leave the pair out")
    cuts = _divide(_pack(runs, source_tokens, target_tokens), workers)
    return _Plan(order, runs, cuts, seed, epoch)


def make_batch(
    pairs: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[int] | np.ndarray]],
    bos: int = 1, pad: int = 0,
) -> tuple[Tensor, Tensor]:
    """Turn B encoded pairs, all ending in eos, into the two tensors a model is trained on.

    Returns:
        source (B, S) and target (B, T + 1), target from bos to eos.
    """
    source = pad_batch([source for source, _ in pairs], pad)  # (B, S)
    target = pad_batch([target for _, target in pairs], pad)  # (B, T)
    return source, torch.nn.functional.pad(target, (1, 0), value=bos)  # (B, T + 1)


def _lengths(pairs):
    """The lengths of both sides; ValueError names the first that is no pair of identifiers."""
    if not hasattr(pairs, "__getitem__"):  # an epoch reads its pairs in an order of its own
        raise ValueError(f"pairs are a {type(pairs).__name__}: give a list")
    lengths = []
    for i, pair in enumerate(pairs):
        try:
            source, target = pair
            lengths.append((len(source), len(target)))
            words = any(isinstance(side, (str, bytes)) or isinstance(next(iter(side), 0), str)
                        for side in (source, target))
        except (TypeError, ValueError):
            words = True
        if words:
            raise ValueError(f"pair {i} is {str(pair)[:60]}: "
                             "give two lists of identifiers, as `encode` makes them")
    return lengths


@dataclass(frozen=True)
class Batches:
    """What a trainer draws from: called with epoch and position, it goes on there (5.1).

    Args:
        pairs: list of (source ids, target ids), all ending in eos; or `TokenPairs`.
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions to predict in a batch, padding counted.
        seed: decides the order, together with the epoch.
        worker, workers: which share; shares are disjoint, complete and equally many batches.
        bos, pad: of the model's configuration.

    Raises:
        ValueError: worker is none of the workers.
    """

    pairs: Any
    source_tokens: int
    target_tokens: int
    seed: int = 0
    worker: int = 0
    workers: int = 1
    bos: int = 1
    pad: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise ValueError(f"worker={self.worker} of workers={self.workers}: "
                             "workers count from 0")

    def plan(self, epoch: int = 0) -> _Plan:
        """The plan of an epoch, the same for all workers."""
        lengths = self.pairs if hasattr(self.pairs, "runs") else _lengths(self.pairs)
        budgets = self.source_tokens, self.target_tokens
        return _plan_batches(lengths, *budgets, self.seed, epoch, self.workers)

    def build(self, plan: _Plan, k: int) -> tuple[Tensor, Tensor]:
        """Batch k of a plan: source and target."""
        return make_batch([self.pairs[i] for i in plan[k].tolist()], self.bos, self.pad)

    def forget(self, done: int) -> None:
        """After every eighth batch, give back what a corpus on a disk has read for them."""
        if done % 8 == 0 and hasattr(self.pairs, "forget"):
            self.pairs.forget()

    def __call__(self, epoch: int = 0, position: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the worker's (source, target) of an epoch; `position` of them are done."""
        if position < 0:
            raise ValueError(f"position must be 0 or more batches, got {position}")
        plan = self.plan(epoch)
        first = self.worker + position * self.workers
        for done, k in enumerate(range(first, len(plan), self.workers), start=1):
            yield self.build(plan, k)
            self.forget(done)


def token_batches(
    pairs: Any,
    source_tokens: int,
    target_tokens: int,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Go once through encoded sentence pairs in batches of similar length (section 5.1).

    `train` goes through them several times, and takes `Batches` itself.

    Args:
        pairs, source_tokens, target_tokens: as in `Batches`; for another bos or pad use that.
        seed, epoch: decide the order.
        start: how many batches of the epoch are done already.

    Yields:
        source (B, S) and target (B, T + 1), target from bos to eos.

    Raises:
        ValueError: a pair does not fit a budget even alone.
    """
    yield from Batches(pairs, source_tokens, target_tokens, seed)(epoch, start)
