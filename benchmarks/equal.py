"""What the comparisons at equal operations share: the multiply-adds of each network, and what they pay for.

Not a benchmark itself.
"""

import convolutional
import torch
from script import weights

from annotated.gpu import products
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq


def recurrent_weights(vocab, d_model):
    """How many a recurrent network has."""
    with torch.device("meta"):
        return weights(RecurrentSeq2Seq(RecurrentConfig(vocab, d_model)))


def multiply_adds(config, S, T):
    """Of all matrix products of one sentence, forward, as chapter 15 counts them."""
    if isinstance(config, convolutional.ConvolutionalConfig):
        return convolutional.multiply_adds(config, S, T)
    if not isinstance(config, RecurrentConfig):
        return products(config, S, T)
    d = config.d_model
    encoder = S * 2 * 3 * (d * (d // 2) + (d // 2) ** 2)  # two directions, three gates
    decoder = T * 3 * 2 * d * d
    attention = d * d + (S + T) * d * d + 2 * T * S * d
    return encoder + decoder + attention + T * 2 * d * d + T * d * config.vocab


def operations(config, pairs):
    """Of one epoch of training: twice the multiply-adds, three times.

    It takes one token a side more than there are, since encoded sentences end in eos already; the records do, too.
    """
    return 6 * sum(multiply_adds(config, len(source) + 1, len(target) + 1) for source, target in pairs)


def updates_for(total, config, pairs, batches):
    """How many updates the operations pay for."""
    return max(1, round(total / operations(config, pairs) * sum(1 for _ in batches(0, 0))))
