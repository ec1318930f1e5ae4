"""The convolutional translator of benchmarks/, and the operations that the comparisons at equal operations count."""

import pytest
import torch
from convolutional import ConvolutionalConfig, ConvolutionalSeq2Seq
from equal import multiply_adds
from torch.utils.flop_counter import FlopCounterMode

from annotated.decoding import hypotheses
from annotated.transformer import TINY, Transformer


def network(kernel=3):
    torch.manual_seed(0)
    config = ConvolutionalConfig(vocab=31, d_model=22, layers=3, kernel=kernel, P_drop=0.0)
    model = ConvolutionalSeq2Seq(config).double().eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model


def sentences(B, n):
    return torch.randint(4, 31, (B, n))


@pytest.mark.parametrize("kernel", [3, 5])
def test_a_step_at_a_time_gives_what_the_whole_gives(kernel):
    model, source, target = network(kernel), sentences(5, 7), sentences(5, 11)
    whole, state = model(source, target), model.start(source)
    for t in range(target.shape[1]):
        logits, state = model.step(target[:, t], state)
        torch.testing.assert_close(logits, whole[:, t])


def test_no_position_sees_what_comes():
    model, source, target = network(), sentences(1, 7), sentences(1, 11)
    inputs = model.embedding(target).detach().requires_grad_()
    model.embedding.register_forward_hook(lambda _, given, out: inputs if given[0].shape == target.shape else None)
    model(source, target)[0, 5].sum().backward()
    reached = inputs.grad[0].abs().sum(-1) > 0
    assert reached.tolist() == [t <= 5 for t in range(11)], "three blocks of three reach six positions back"


def test_padding_changes_nothing():
    model, source, target = network(), sentences(3, 7), sentences(3, 5)
    longer = torch.cat([source, torch.zeros(3, 4, dtype=torch.long)], 1)
    torch.testing.assert_close(model(longer, target), model(source, target))


def test_a_beam_of_one_is_the_likeliest_token_each_time():
    model, source = network(), sentences(3, 7)
    found = hypotheses(model, source, beam=1, max_len=6)
    for row, pool in zip(source, found):
        ids = [1]
        while len(ids) < 7 and ids[-1] != 2:
            ids.append(int(model(row[None], torch.tensor([ids]))[0, -1].argmax()))
        assert pool[0][0] == ids[1:]


def test_the_encoder_is_torchs_convolutions_gates_and_sums():
    model, source = network(), sentences(2, 7)
    x = model.embedding(source) + model.position.weight[:7]
    for layer in model.encoder:
        y = torch.conv1d(x.mT, layer.weight, layer.bias, padding=1).mT
        x = (x + y[..., :22] * torch.sigmoid(y[..., 22:])) / 2**0.5
    torch.testing.assert_close(model.start(source)["K"], x)


@pytest.mark.parametrize("S, T", [(7, 11), (13, 5)])
def test_the_products_are_those_that_torch_counts(S, T):
    for model in (network().float(), Transformer(TINY).eval()):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.randint(4, 31, (1, S)), torch.randint(4, 31, (1, T)))
        assert counter.get_total_flops() == 2 * multiply_adds(model.config, S, T)
