"""Data

Generated from book/08-data.md by tools/tangle.py: edit the chapter, not this file.
"""
import gzip
import hashlib
import io
import os
import random
import re
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch

__all__ = ["split_words", "join_words", "write_atomically", "read_file", "Words", "train_subwords", "Subwords", "load_vocabulary", "pad_batch", "plan_batches", "bucket_key", "make_batch", "token_batches", "Corpus", "decode_lines", "pair_lines", "read_pairs", "connected_components", "fraction", "split_pairs", "CHECKSUMS", "LICENCES", "verified", "read_multi30k", "read_tatoeba", "load_corpus"]


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


def write_atomically(path, content):
    """Write a file whole or not at all: a crash leaves the old file in place.

    Args:
        path: where to; the folder is made where it is missing.
        content: bytes.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
            count, *words, end = read_file(path).decode("utf-8").split("\n")
        except UnicodeDecodeError:
            count, words, end = "", [], ""
        if count != f"{len(words)} words" or end or len(set(words)) != len(words):
            raise ValueError(f"{path} is damaged: it should hold a line 'N words' and N different words, one a line")
        return cls(words)

    def save(self, path):
        """Write the words, one a line, below their number."""
        words = self.words[len(self.markers):]
        write_atomically(path, "\n".join([f"{len(words)} words", *words, ""]).encode("utf-8"))

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
        the model as bytes, a function of `lines` and `vocab` alone.

    Raises:
        ValueError: `vocab` does not suit the lines.
    """
    import sentencepiece

    model = io.BytesIO()
    settings = dict(model_type="bpe", byte_fallback=True, character_coverage=0.9995, max_sentence_length=1 << 16)
    fixed = dict(pad_id=0, bos_id=1, eos_id=2, unk_id=3, normalization_rule_name="identity", num_threads=1, minloglevel=2)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(" ".join(line.split()) for line in lines),
            model_writer=model, vocab_size=vocab, **(settings | fixed | options))
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
        write_atomically(path, self.model)

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


def plan_batches(lengths, source_tokens, target_tokens, seed=0, epoch=0):
    """Group sentence pairs of similar length into batches under two token budgets (section 5.1).

    Args:
        lengths: list of (source length, target length).
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions in a batch, padding counted.
        seed: with `epoch` decides the order; the same two give the same plan.
        epoch: how often the data was gone through before.

    Returns:
        list of batches, each a list of indices into `lengths`; every index occurs once.

    Raises:
        ValueError: a pair does not fit a budget even alone; sentences are never cut.
    """
    shuffle = random.Random(f"{seed} {epoch}").shuffle
    order = list(range(len(lengths)))
    shuffle(order)
    order.sort(key=lambda i: bucket_key(*lengths[i]))
    batches, S, T = [], source_tokens, target_tokens
    for i in order:
        s, t = lengths[i]
        if s > source_tokens or t > target_tokens:
            raise ValueError(f"pair {i} has {s} source and {t} target tokens, more than source_tokens={source_tokens} "
                             f"or target_tokens={target_tokens}: raise the budget or leave the pair out")
        rows, S, T = len(batches[-1]) + 1 if batches else 1, max(S, s), max(T, t)
        if not batches or rows * S > source_tokens or rows * T > target_tokens:
            batches.append([])
            S, T = s, t
        batches[-1].append(i)
    shuffle(batches)
    return batches


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


def token_batches(pairs, source_tokens, target_tokens, seed=0, epoch=0, start=0, **markers):
    """Go once through encoded sentence pairs in batches of similar length (section 5.1).

    Args:
        pairs: list of (source ids, target ids), each ending in eos.
        source_tokens: most source positions in a batch, padding counted.
        target_tokens: most target positions to predict in a batch, padding counted.
        seed, epoch: decide the order, see `plan_batches`.
        start: how many batches of the epoch are done already.
        markers: `bos` and `pad` where they are not 1 and 0.

    Yields:
        source (B, S) and target (B, T), target from bos to eos.

    Raises:
        ValueError: a pair does not fit a budget even alone.
    """
    lengths = [(len(source), len(target)) for source, target in pairs]
    plan = plan_batches(lengths, source_tokens, target_tokens, seed, epoch)
    for batch in plan[start:]:
        yield make_batch([pairs[i] for i in batch], **markers)


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


def fraction(text):
    """Map a text to a number that looks random and is the same on every machine.

    Args:
        text: a string.

    Returns:
        a float in [0, 1), from the text's sha256.
    """
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:6], "big") / 2**48


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
        "multi30k-en-de/tok/test_2016_flickr.lc.norm.tok.en": "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "multi30k-en-de/tok/test_2016_flickr.lc.norm.tok.de": "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
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
    """Load a corpus by its name: a corpus of files is read from ANNOTATED_DATA.

    Args:
        name: a key of `CHECKSUMS`.

    Returns:
        a `Corpus`.

    Raises:
        ValueError: the name is unknown, or a file is missing or damaged.
    """
    if name not in CHECKSUMS:
        raise ValueError(f"name={name!r} is no corpus; there are {', '.join(CHECKSUMS)}")
    sums = CHECKSUMS[name]
    files = {file: verified(file, sha256) for file, sha256 in sums.items()}
    train, validation, test = (read_tatoeba if name.startswith("tatoeba") else read_multi30k)(files)
    return Corpus(name, train, validation, test, LICENCES[name], sums)
