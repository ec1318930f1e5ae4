"""Evaluation.

Generated from book/12-evaluation.md by tools/tangle.py: edit the chapter, not this file.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from annotated.decoding import _evaluating
from annotated.files import _need
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
    """Refuse outputs and references that cannot be compared line by line."""
    for name, lines in (("outputs", outputs), ("references", references)):
        if isinstance(lines, str):
            raise TypeError(f"{name} must be a list of strings, not one: put it in a list")
    if not outputs or len(outputs) != len(references):
        raise ValueError("outputs and references must be equally many, and at least one: "
                         f"got {len(outputs)} and {len(references)}")


def _bleu_metric(lowercase, tokenize):
    """SacreBLEU's metric for one of its tokenisers; ValueError where it cannot be had."""
    _need("sacrebleu", "data", "for BLEU")
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise ValueError(f"tokenize must be one of {known}, not {tokenize!r}")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    except (RuntimeError, OSError) as error:  # not installed, or not to be fetched
        reason = " ".join(str(error).split())
        raise ValueError(f"tokenize={tokenize!r} cannot be used: {reason}") from None


def bleu(
    outputs: Sequence[str], references: Sequence[str], lowercase: bool = False,
    tokenize: str = "13a",
) -> tuple[float, str]:
    """Corpus BLEU as the field reports it, by sacreBLEU (section 6.1).

    Args:
        outputs: translations, as a reader would see them.
        references: as many lines.
        lowercase: compare without case.
        tokenize: sacreBLEU's name of a tokeniser; "none" for text that is tokenised already.

    Returns:
        the score in percent, and the signature that says how it was made.

    Raises:
        TypeError: outputs or references are one string.
        ValueError: there are no outputs, not as many as references, or no such tokeniser.
    """
    _check_lines(outputs, references)
    metric = _bleu_metric(lowercase, tokenize)
    score = metric.corpus_score(outputs, [references]).score
    return score, str(metric.get_signature())


def chrf(outputs: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus chrF, the F-score of character n-grams, by sacreBLEU; not in the paper.

    Returns:
        the score in percent, and the signature that says how it was made.

    Raises:
        TypeError, ValueError: as for `bleu`.
    """
    _need("sacrebleu", "data", "for chrF")
    from sacrebleu.metrics import CHRF

    _check_lines(outputs, references)
    metric = CHRF()
    score = metric.corpus_score(outputs, [references]).score
    return score, str(metric.get_signature())


def bleu_counts(
    outputs: Sequence[str], references: Sequence[str], lowercase: bool = False,
    tokenize: str = "13a",
) -> Tensor:
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


def bleu_of_counts(counts: Tensor) -> float:
    """BLEU in percent of a corpus whose sentences' counts sum to these, (10,)."""
    _need("sacrebleu", "data", "for BLEU")
    from sacrebleu.metrics import BLEU

    *ngrams, c, r = [round(x) for x in counts.tolist()]
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], c, r, smooth_method="exp").score


def _resampled_difference(a, b, samples=1000, seed=0):
    """What `paired_bootstrap` returns, from the counts of each sentence, (B, 10) for a and b."""
    if a.shape != b.shape or a.dim() != 2 or a.shape[1] != 10:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"a and b must both have the shape (sentences, 10), not {shapes}")
    if samples < 40:
        raise ValueError(f"samples must be 40 or more, for 2.5 % on either side, got {samples}")
    B = len(a)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(B, (samples, B), generator=generator)  # (samples, B)
    times = torch.zeros(samples, B, dtype=torch.double)  # (samples, B)
    times.scatter_add_(1, drawn, torch.ones_like(times))  # how often each sentence was drawn
    sums = zip(times @ a.double(), times @ b.double())
    apart = [bleu_of_counts(x) - bleu_of_counts(y) for x, y in sums]
    spread = torch.tensor(apart, dtype=torch.double)  # (samples,)
    difference = bleu_of_counts(a.sum(0)) - bleu_of_counts(b.sum(0))
    far = ((spread - difference).abs() >= abs(difference) - 1e-9).sum().item()
    outside = samples // 40  # 2.5 % on either side
    ordered = spread.sort().values.tolist()
    low = ordered[outside]
    high = ordered[samples - 1 - outside]
    return difference, (low, high), (far + 1) / (samples + 1)


def paired_bootstrap(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], samples: int = 1000,
    seed: int = 0, **protocol: Any,
) -> tuple[float, tuple[float, float], float]:
    """Tell whether system a's BLEU is above b's by more than the luck of the test sentences.

    Args:
        a, b: the two systems' outputs for the same sources.
        references: as many lines.
        samples: test sets drawn with replacement, each as large as the real one.
        seed: decides the draws.
        protocol: lowercase and tokenize, as for `bleu`.

    Returns:
        the difference a - b in points of BLEU; the interval (low, high) that holds 95 % of
        the drawn differences; and p, the share of draws at least as far from the measured
        difference as 0 is, the measured test set counted as one more, so that p is never 0.

    Raises:
        TypeError: outputs or references are one string.
        ValueError: there are no outputs, not equally many, no such tokeniser, or samples are
            fewer than 40.
    """
    counts_a = bleu_counts(a, references, **protocol)
    counts_b = bleu_counts(b, references, **protocol)
    return _resampled_difference(counts_a, counts_b, samples, seed)


def cross_entropy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The mean loss in nats a target token, neither smoothing nor padding counted (Table 3).

    Args:
        model: called with (source, target).
        batches: of source (B, S) and target (B, T), which begins with bos.

    Raises:
        ValueError: there is no target token.
    """
    config: Any = model.config
    losses = []  # read at the end: a GPU goes on meanwhile
    tokens = 0
    device = next(model.parameters()).device
    for source, target in batches:  # outside: what is made here may be trained on later
        tokens += int((target[:, 1:] != config.pad).sum())
        source = source.to(device, non_blocking=True)
        target = target.to(device, non_blocking=True)
        with _evaluating(model):
            logits = model(source, target[:, :-1])  # (B, T - 1, vocab)
            wanted = target[:, 1:]  # (B, T - 1)
            losses.append(label_smoothed_loss(logits, wanted, 0.0, config.pad, "sum"))
    if not tokens:
        raise ValueError("no target token to average over: is the corpus empty?")
    return sum(loss.item() for loss in losses) / tokens


def perplexity(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The exponential of the cross-entropy (Table 3); compare over one vocabulary only."""
    loss = cross_entropy(model, batches)
    return math.inf if loss > 709 else math.exp(loss)


def bits_per_byte(loss: float, tokens: int, texts: Sequence[str]) -> float:
    """Turn a loss a token into bits a byte of text, which can be compared over vocabularies.

    Args:
        loss: mean of nats a token, eos counted as a token, see `cross_entropy`.
        tokens: how many tokens the mean is over.
        texts: what they stand for; the end of each, its eos, counts as one byte.

    Raises:
        TypeError: texts are one string.
        ValueError: there are no texts.
    """
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, not one string")
    if not texts:
        raise ValueError("texts must hold the text that the tokens stand for, got none")
    size = sum(len(text.encode()) + 1 for text in texts)
    return loss * tokens / (math.log(2) * size)


def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of target tokens that are the likeliest after the right ones (section 5.4).

    Args, raises: as for `cross_entropy`.
    """
    config: Any = model.config
    right, tokens = 0, 0
    device = next(model.parameters()).device
    for source, target in batches:
        source = source.to(device)
        target = target.to(device)
        with _evaluating(model):
            best = model(source, target[:, :-1]).argmax(-1)  # (B, T - 1)
        wanted = target[:, 1:]  # (B, T - 1)
        real = wanted != config.pad  # (B, T - 1)
        right += int(((best == wanted) & real).sum())
        tokens += int(real.sum())
    if not tokens:
        raise ValueError("no target token to average over: is the corpus empty?")
    return right / tokens
