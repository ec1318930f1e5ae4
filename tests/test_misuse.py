"""What does not belong together is refused where it is handed in, in words of ours, and not by torch further inside."""

from dataclasses import replace

import pytest
import torch

from annotated.after import CHANGES, Classifier, LanguageModel, MaskedModel
from annotated.recurrent import RecurrentConfig, RecurrentSeq2Seq, _check_encoded
from annotated.transformer import TINY, Transformer

CONFIG = replace(TINY, N=2, d_model=8, d_ff=12, h=2, vocab=17)
SOURCE = torch.tensor([[5, 6, 2], [7, 2, 0]])
TARGET = torch.tensor([[1, 5], [1, 6]])
IDS = torch.tensor([1, 1])


def two_seq2seq(d_model=8):
    return Transformer(replace(CONFIG, d_model=d_model)).eval(), RecurrentSeq2Seq(RecurrentConfig(17, d_model)).eval()


MODELS = pytest.mark.parametrize("model", two_seq2seq(), ids=["Transformer", "RecurrentSeq2Seq"])


@MODELS
@pytest.mark.parametrize("ids, error, said", [
    ([1, 1], TypeError, "ids must be a tensor .* not list"),
    (None, TypeError, "not NoneType"),
    (IDS.float(), TypeError, "torch.float32"),
    (IDS.short(), TypeError, "whole numbers, torch.long or torch.int32, not torch.int16"),
    (IDS[:, None], ValueError, r"ids must be of one axis, not of shape \(2, 1\)"),
    (torch.tensor(1), ValueError, r"not of shape \(\)"),
    (IDS[:0], ValueError, r"not of shape \(0,\)"),
    (IDS[:1], ValueError, "one for each row of the state, 2, not 1"),
    (IDS.repeat(2), ValueError, "one for each row of the state, 2, not 4"),
    (torch.tensor([1, 99]), ValueError, r"lie in 0\.\.16, not 1\.\.99"),
])
def test_a_step_takes_an_identifier_for_each_hypothesis(model, ids, error, said):
    with pytest.raises(error, match=said):
        model.step(ids, model.start(SOURCE))


@MODELS
@pytest.mark.parametrize("change, error, said", [
    (lambda memory: None, TypeError, "memory must be a tensor of torch.float32.* not NoneType"),
    (lambda memory: memory.tolist(), TypeError, "not list"),
    (lambda memory: memory.long(), TypeError, "torch.int64"),
    (lambda memory: memory.double(), TypeError, "torch.float64"),
    (lambda memory: memory[0], ValueError, r"of source, \(2, 3, 8\), not of shape \(3, 8\)"),
    (lambda memory: memory[:1], ValueError, r"not of shape \(1, 3, 8\)"),
    (lambda memory: memory[:, :2], ValueError, r"not of shape \(2, 2, 8\)"),
    (lambda memory: memory.repeat(1, 1, 2), ValueError, r"not of shape \(2, 3, 16\)"),
])
def test_a_memory_is_that_of_its_source_and_model(model, change, error, said):
    with pytest.raises(error, match=said):
        model.decode(TARGET, change(model.encode(SOURCE)), SOURCE)


@MODELS
@pytest.mark.parametrize("source, error", [("a list", TypeError), (None, TypeError), (SOURCE.float(), TypeError), (SOURCE[0], ValueError)])
def test_a_source_is_looked_at_when_decoding_too(model, source, error):
    with pytest.raises(error, match="source must be"):
        model.decode(TARGET, model.encode(SOURCE), source)


@MODELS
def test_under_autocast_a_memory_may_be_of_fewer_bits(model):
    with torch.autocast("cpu", torch.bfloat16):
        assert model.decode(TARGET, model.encode(SOURCE).bfloat16(), SOURCE).isfinite().all()
        with pytest.raises(TypeError, match="memory must be"):
            model.decode(TARGET, model.encode(SOURCE).long(), SOURCE)


@MODELS
def test_a_state_of_fewer_bits_is_refused_outside_autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        state = model.start(SOURCE)
        assert model.step(IDS, state)[0].isfinite().all()
    with pytest.raises(TypeError, match="in state must be a tensor of torch.float32, as the model, not torch.bfloat16$"):
        model.step(IDS, state)


def replica(module):
    """As `nn.DataParallel` makes one for each GPU: its weights are attributes, not parameters."""
    made = module._replicate_for_data_parallel()
    made._parameters = {}
    for name, weight in module._parameters.items():
        object.__setattr__(made, name, None if weight is None else weight.view_as(weight))
    made._modules = {name: replica(child) for name, child in module._modules.items()}
    return made


def test_a_replica_of_data_parallel_decodes():
    model = two_seq2seq()[0]
    made = replica(model)
    assert not [*made.parameters()]
    torch.testing.assert_close(made(SOURCE, TARGET), model(SOURCE, TARGET))
    _check_encoded(torch.zeros(2, 3, 8), SOURCE, TARGET, replica(two_seq2seq()[1]))
    with pytest.raises(TypeError, match="memory must be a tensor of torch.float32"):
        made.decode(TARGET, made.encode(SOURCE).double(), SOURCE)


def foreign_states():
    ours, theirs = two_seq2seq()
    for name, model, other in ("Transformer", ours, theirs), ("RecurrentSeq2Seq", theirs, ours):
        for what in (None, {}, [], LanguageModel(CONFIG).start(2), other.start(SOURCE)):
            yield pytest.param(model, what, TypeError, "state must be what start or step returned", id=f"{name}-{type(what).__name__}")
    wide, wide_recurrent = two_seq2seq(16)
    flat = Transformer(replace(CONFIG, N=1)).eval()
    yield pytest.param(ours, wide.start(SOURCE), ValueError, "2 layers with keys of 4, not 2 with keys of 8", id="Transformer-wide")
    yield pytest.param(ours, flat.start(SOURCE), ValueError, "2 layers .* not 1 with", id="Transformer-flat")
    yield pytest.param(theirs, wide_recurrent.start(SOURCE), ValueError, "d_model=8, not hidden", id="RecurrentSeq2Seq-wide")
    state = theirs.start(SOURCE)
    yield pytest.param(theirs, state | {"K": state["K"][:1]}, ValueError, r"K \(1, 3, 8\)", id="RecurrentSeq2Seq-torn")


@pytest.mark.parametrize("model, state, error, said", [*foreign_states()])
def test_a_state_is_of_its_model(model, state, error, said):
    with pytest.raises(error, match=said):
        model.step(IDS, state)


@pytest.mark.parametrize("bad, error", [("text", TypeError), ([[1, 2]], TypeError), (None, TypeError), (SOURCE.float(), TypeError), (SOURCE[0], ValueError)])
@pytest.mark.parametrize("model", [LanguageModel(CONFIG), MaskedModel(CONFIG), Classifier(MaskedModel(CONFIG), 3)], ids=lambda model: type(model).__name__)
def test_one_stack_takes_a_batch_of_identifiers(model, bad, error):
    with pytest.raises(error, match="ids must be"):
        model(bad)


@pytest.mark.parametrize("state, error, said", [
    (None, TypeError, "not NoneType"),
    ({}, TypeError, "not dict"),
    (two_seq2seq()[0].start(SOURCE), TypeError, "not State"),
    (LanguageModel(replace(CONFIG, N=1)).start(2), ValueError, "2 layers .* not 1"),
    (LanguageModel(replace(CONFIG, d_model=16)).start(2), ValueError, "keys of 4, not 2 with keys of 8"),
    (LanguageModel(CONFIG).start(3), ValueError, "one for each row of the state, 3, not 2"),
])
def test_caches_are_of_their_language_model(state, error, said):
    with pytest.raises(error, match=said):
        LanguageModel(CONFIG).step(TARGET, state)


@pytest.mark.parametrize("B", [0, -1, 2.5, None, True])
def test_a_language_model_starts_with_a_number_of_texts(B):
    with pytest.raises(ValueError, match="B must be a number of texts"):
        LanguageModel(CONFIG).start(B)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_language_model_takes_its_own_caches(change):
    model = LanguageModel(CONFIG).eval()
    CHANGES[change](model)
    assert model.step(TARGET, model.start(2))[0].shape == (2, 2, 17)
