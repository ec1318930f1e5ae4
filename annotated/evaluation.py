"""Evaluation.

Generated from book/12-evaluation.md by tools/tangle.py: edit the chapter, not this file.
"""

import math

from annotated.decoding import evaluating
from annotated.optimization import label_smoothed_loss

__all__ = ["bleu", "cross_entropy", "perplexity"]


def bleu(outputs, references, lowercase=False, tokenize="13a"):
    """Corpus BLEU as the field reports it, by sacreBLEU.

    Args:
        outputs: translations, strings, as a reader would see them.
        references: as many strings.
        lowercase: compare without case.
        tokenize: sacreBLEU's name of a tokeniser; "none" for text that is tokenised already.

    Returns:
        The score in percent, and the signature that says how it was made.

    Raises:
        ValueError: if there are no outputs, or not as many as references.
    """
    from sacrebleu.metrics import BLEU

    if not outputs or len(outputs) != len(references):
        raise ValueError(f"as many outputs as references, and at least one: got {len(outputs)} and {len(references)}")
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    score = metric.corpus_score(outputs, [references]).score
    return score, str(metric.get_signature())


def cross_entropy(model, batches):
    """The mean loss in nats a target token, without smoothing and without padding; its exponential is the perplexity.

    Args:
        model: called with (source, target).
        batches: of (source, target), target beginning with bos.
    """
    total, tokens, pad = 0.0, 0, model.config.pad
    device = next(model.parameters()).device
    with evaluating(model):
        for source, target in batches:
            source, target = source.to(device), target.to(device)
            logits = model(source, target[:, :-1])  # (B, T, vocab)
            total += label_smoothed_loss(logits, target[:, 1:], 0.0, pad, "sum").item()
            tokens += (target[:, 1:] != pad).sum().item()
    if not tokens:
        raise ValueError("no target token to average over: is the corpus empty?")
    return total / tokens


def perplexity(model, batches):
    """The exponential of the cross-entropy: per word piece, so comparable only with the same vocabulary (Table 3)."""
    return math.exp(cross_entropy(model, batches))
