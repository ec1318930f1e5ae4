"""Evaluation.

Generated from book/12-evaluation.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

import torch

from annotated.decoding import _evaluating
from annotated.optimization import label_smoothed_loss

__all__ = [
    "bleu",
    "chrf",
    "bleu_counts",
    "bleu_of_counts",
    "paired_bootstrap",
    "cross_entropy",
    "perplexity",
    "bits_per_byte",
    "accuracy",
]


def _check_lines(outputs, references):
    """Refuse outputs and references that cannot be compared line by line.

    Raises:
        TypeError: if either is a string, where a list of strings is wanted.
        ValueError: if there are no outputs, or not as many as references.
    """
    for name, lines in (("outputs", outputs), ("references", references)):
        if isinstance(lines, str):
            raise TypeError(f"{name} must be a list of strings, not one: put it in a list")
    if not outputs or len(outputs) != len(references):
        raise ValueError("outputs and references must be equally many, and at least one: "
                         f"got {len(outputs)} and {len(references)}")


def _bleu_metric(lowercase, tokenize):
    """SacreBLEU's metric for one of its tokenisers; ValueError where it cannot be had."""
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"tokenize must be one of {known}, not {tokenize!r}")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    except RuntimeError as error:  # its package is not installed
        reason = " ".join(str(error).split())
        raise ValueError(f"tokenize={tokenize!r} cannot be used: {reason}") from None


def bleu(outputs, references, lowercase=False, tokenize="13a"):
    """Corpus BLEU as the field reports it, by sacreBLEU (section 6.1).

    Args:
        outputs: translations, strings, as a reader would see them.
        references: as many strings.
        lowercase: compare without case.
        tokenize: sacreBLEU's name of a tokeniser; "none" for text that is tokenised already.

    Returns:
        The score in percent, and the signature that says how it was made.

    Raises:
        TypeError: if outputs or references are one string.
        ValueError: if there are no outputs, not as many as references, or no such tokeniser.
    """
    _check_lines(outputs, references)
    metric = _bleu_metric(lowercase, tokenize)
    score = metric.corpus_score(outputs, [references]).score
    return score, str(metric.get_signature())


def chrf(outputs, references):
    """Corpus chrF, the F-score of character n-grams, by sacreBLEU; not in the paper.

    Args:
        outputs: translations, strings, as a reader would see them.
        references: as many strings.

    Returns:
        The score in percent, and the signature that says how it was made.

    Raises:
        TypeError: if outputs or references are one string.
        ValueError: if there are no outputs, or not as many as references.
    """
    from sacrebleu.metrics import CHRF

    _check_lines(outputs, references)
    metric = CHRF()
    score = metric.corpus_score(outputs, [references]).score
    return score, str(metric.get_signature())


def bleu_counts(outputs, references, lowercase=False, tokenize="13a"):
    """Count for each sentence what BLEU is made of, by sacreBLEU (section 6.1).

    Args, raises: as for `bleu`.

    Returns:
        (B, 10): matching n-grams for n = 1 to 4, the output's n-grams for n = 1 to 4, words
        of the output and of the reference.
    """
    _check_lines(outputs, references)
    metric = _bleu_metric(lowercase, tokenize)
    metric.effective_order = True  # moves a sentence's own score only; silences a warning
    scores = [metric.sentence_score(o, [wanted]) for o, wanted in zip(outputs, references)]
    rows = [[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores]
    return torch.tensor(rows, dtype=torch.long)  # (B, 10)


def bleu_of_counts(counts):
    """BLEU in percent of a corpus whose sentences' counts sum to these, (10,)."""
    from sacrebleu.metrics import BLEU

    *ngrams, c, r = [round(x) for x in counts.tolist()]
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], c, r, smooth_method="exp").score


def _resampled_difference(a, b, samples=1000, seed=0):
    """How far the difference of two BLEU scores moves if the test sentences are drawn anew.

    Args:
        a, b: counts of the same sentences, (B, 10), see `bleu_counts`.
        samples: test sets drawn with replacement, each as large as the real one.
        seed: decides the draws.

    Returns:
        The difference a - b; the interval (low, high) that holds 95 % of the drawn ones;
        and p, the share of draws at least as far from the measured difference as 0 is.

    Raises:
        ValueError: if a and b are not of the same sentences, or samples are fewer than 40.
    """
    if a.shape != b.shape or a.dim() != 2 or a.shape[1] != 10:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"a and b must both have the shape (sentences, 10), not {shapes}")
    if samples < 40:
        raise ValueError(f"samples must be 40 or more, for 2.5 % on either side, got {samples}")
    B, generator = len(a), torch.Generator().manual_seed(seed)
    drawn = torch.randint(B, (samples, B), generator=generator)  # (samples, B)
    times = torch.zeros(samples, B, dtype=torch.double)  # (samples, B)
    times.scatter_add_(1, drawn, torch.ones_like(times))  # how often each sentence was drawn
    sums = zip(times @ a.double(), times @ b.double())
    drawn = [bleu_of_counts(x) - bleu_of_counts(y) for x, y in sums]
    spread = torch.tensor(drawn)  # (samples,)
    difference = bleu_of_counts(a.sum(0)) - bleu_of_counts(b.sum(0))
    far = ((spread - difference).abs() >= abs(difference) - 1e-9).sum().item()
    low, high = spread.sort().values[[samples // 40, samples - 1 - samples // 40]].tolist()
    return difference, (low, high), (far + 1) / (samples + 1)


def paired_bootstrap(a, b, references, samples=1000, seed=0):
    """Tell whether system a's BLEU is above b's by more than the luck of the test sentences.

    Args:
        a, b: the two systems' outputs for the same sources, strings.
        references: as many strings.
        samples, seed: as for `_resampled_difference`.

    Returns:
        The difference a - b in points of BLEU, its 95 % interval (low, high), and p.

    Raises:
        TypeError, ValueError: as `bleu` and `_resampled_difference` do.
    """
    counts = [bleu_counts(outputs, references) for outputs in (a, b)]
    return _resampled_difference(*counts, samples, seed)


def cross_entropy(model, batches):
    """The mean loss in nats a target token, neither smoothing nor padding counted (Table 3).

    Args:
        model: called with (source, target).
        batches: of (source, target), target beginning with bos.

    Raises:
        ValueError: if there is no target token.
    """
    total, tokens, pad = 0.0, 0, model.config.pad
    device = next(model.parameters()).device
    with _evaluating(model):
        for source, target in batches:
            source, target = source.to(device), target.to(device)
            logits = model(source, target[:, :-1])  # (B, T, vocab)
            total += label_smoothed_loss(logits, target[:, 1:], 0.0, pad, "sum").item()
            tokens += (target[:, 1:] != pad).sum().item()
    if not tokens:
        raise ValueError("no target token to average over: is the corpus empty?")
    return total / tokens


def perplexity(model, batches):
    """The exponential of the cross-entropy (Table 3); compare over one vocabulary only."""
    return math.exp(cross_entropy(model, batches))


def bits_per_byte(loss, tokens, texts):
    """Turn a loss a token into bits a byte of text, which can be compared over vocabularies.

    Args:
        loss: mean of nats a token, eos counted as a token, see `cross_entropy`.
        tokens: how many tokens the mean is over.
        texts: the strings they stand for; the end of each, its eos, counts as one byte.

    Raises:
        ValueError: if there are no texts.
    """
    if not texts:
        raise ValueError("texts must hold the text that the tokens stand for, got none")
    size = sum(len(text.encode()) + 1 for text in texts)
    return loss * tokens / (math.log(2) * size)


def accuracy(model, batches):
    """The share of target tokens that are the likeliest after the right ones (section 5.4).

    Args, raises: as for `cross_entropy`.
    """
    right, tokens, pad = 0, 0, model.config.pad
    device = next(model.parameters()).device
    with _evaluating(model):
        for source, target in batches:
            source, target = source.to(device), target.to(device)
            best = model(source, target[:, :-1]).argmax(-1)  # (B, T)
            real = target[:, 1:] != pad  # (B, T)
            right += ((best == target[:, 1:]) & real).sum().item()
            tokens += real.sum().item()
    if not tokens:
        raise ValueError("no target token to average over: is the corpus empty?")
    return right / tokens
