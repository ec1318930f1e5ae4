"""Chapter 01: the recurrent translator, its parts against plain loops, and the loop that trains it."""

import dataclasses
from functools import partial
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from shapes import checked, unseen
from torch import nn

from annotated import recurrent
from annotated.recurrent import (
    RecurrentConfig,
    RecurrentSeq2Seq,
    _check_ids,
    additive_scores,
    fit,
    soft_lookup,
)

CONFIG = RecurrentConfig(vocab=37, d_model=14, P_drop=0.0)
SENTENCES = [[5, 7, 11, 13, 17, 19, 2], [23, 29, 2], [2], [31, 4, 4, 36, 2]]
B, S, T = len(SENTENCES), 7, 5


@pytest.fixture
def model():
    torch.manual_seed(0)
    return RecurrentSeq2Seq(CONFIG).double().eval()


@pytest.fixture
def source():
    return batch(SENTENCES)


@pytest.fixture
def target():
    torch.manual_seed(1)
    return torch.cat([torch.ones(B, 1, dtype=torch.long), torch.randint(4, 37, (B, T - 1))], 1)


def batch(sentences, length=S):
    return torch.tensor([ids + [0] * (length - len(ids)) for ids in sentences])


def naive(Q, K, V, v, visible):
    """Additive attention in plain loops."""
    out = torch.zeros(*Q.shape[:2], V.shape[-1], dtype=V.dtype)
    for b in range(Q.shape[0]):
        for t in range(Q.shape[1]):
            seen = [j for j in range(K.shape[1]) if visible[b, 0, j]]
            scores = [sum(v[i] * torch.tanh(Q[b, t, i] + K[b, j, i]) for i in range(len(v))) for j in seen]
            total = sum(score.exp() for score in scores)
            out[b, t] = sum(score.exp() / total * V[b, j] for score, j in zip(scores, seen))
    return out


def test_additive_attention_is_the_plain_loop():
    torch.manual_seed(0)
    Q, K, V = (torch.randn(size).double() for size in ((2, 3, 7), (2, 5, 7), (2, 5, 11)))
    v, visible = torch.randn(7).double(), torch.tensor([[[True, True, False, True, False]], [[True] * 5]])
    found = soft_lookup(additive_scores(Q, K, v), V, visible)
    torch.testing.assert_close(found, naive(Q, K, V, v, visible))
    everything = soft_lookup(additive_scores(Q, K, v), V)
    assert not torch.allclose(found[0], everything[0])
    torch.testing.assert_close(found[1], everything[1])


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_scores_have_every_pair_whatever_stands_before(leading):
    Q, K, v = torch.randn(*leading, 5, 7), torch.randn(*leading, 11, 7), torch.randn(7)
    scores = additive_scores(Q, K, v)
    assert scores.shape == (*leading, 5, 11)
    torch.testing.assert_close(scores[..., 4, 2], torch.tanh(Q[..., 4, :] + K[..., 2, :]) @ v)


@pytest.mark.parametrize("widths", [(7, 5, 7), (7, 7, 5), (1, 7, 7)])
def test_scores_refuse_unequal_widths(widths):
    a, b, c = widths
    with pytest.raises(ValueError, match=f"{a}, {b} and {c}"):
        additive_scores(torch.zeros(2, a), torch.zeros(3, b), torch.zeros(c))


def test_lookup_with_one_visible_key_is_that_value():
    V = torch.randn(5, 3)
    torch.testing.assert_close(soft_lookup(torch.randn(5, 5), V, torch.eye(5, dtype=torch.bool)), V)


def test_encoder_is_torchs_gru_sentence_by_sentence(model, source):
    memory = model.encode(source)
    assert memory.shape == (B, S, CONFIG.d_model)
    for row, ids in zip(memory, SENTENCES):
        alone, _ = model.encoder(model.embedding(torch.tensor([ids])))
        torch.testing.assert_close(row[: len(ids)], alone[0])
        assert not row[len(ids) :].any()


def independent(model, source, target):
    """Whether each sentence gets alone what it gets in the batch."""
    together = model(source, target)
    alone = [model(torch.tensor([ids]), target[b : b + 1])[0] for b, ids in enumerate(SENTENCES)]
    return torch.allclose(together, torch.stack(alone))


class Unpacked(RecurrentSeq2Seq):
    """The fault the test looks for: the reading from right to left begins in the padding."""

    def encode(self, source):
        return self.encoder(self.embedding(source))[0]


class Unmasked(RecurrentSeq2Seq):
    """Another: padding is looked at."""

    def prepare(self, memory, source):
        return {**super().prepare(memory, source), "visible": torch.ones_like(source, dtype=torch.bool)[:, None]}


@pytest.mark.parametrize(("kind", "holds"), [(RecurrentSeq2Seq, True), (Unpacked, False), (Unmasked, False)])
def test_a_sentence_does_not_depend_on_its_batch(kind, holds, source, target):
    torch.manual_seed(0)
    assert independent(kind(CONFIG).double().eval(), source, target) == holds


def test_padding_changes_neither_logits_nor_gradients(model, source, target):
    gradients = []
    for length in (S, S + 4):
        model.zero_grad()
        logits = model(batch(SENTENCES, length), target)
        logits.square().mean().backward()
        gradients.append([logits.detach(), *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(*gradients)
    assert not model.embedding.weight.grad[CONFIG.pad].any()


def test_padding_is_never_looked_at(model, source, target):
    memory = model.encode(source)
    logits = model.decode(target, memory, source)
    hidden = (source == CONFIG.pad)[..., None]
    torch.testing.assert_close(model.decode(target, memory.masked_fill(hidden, 1e6), source), logits)
    assert not torch.allclose(model.decode(target, memory + 0.5 * ~hidden, source), logits)


def test_later_target_words_change_nothing_before_them(model, source, target):
    logits = model(source, target)
    for t in range(1, T):
        changed = target.clone()
        changed[:, t] = (changed[:, t] - 3) % 33 + 4
        moved = (model(source, changed) - logits).abs().amax((0, 2))
        assert not moved[:t].any() and (moved[t:] > 0).all()


def test_steps_are_decode(model, source, target):
    logits = model(source, target)
    assert logits.shape == (B, T, CONFIG.vocab)
    state = model.start(source)
    for t in range(T):
        found, state = model.step(target[:, t], state)
        torch.testing.assert_close(found, logits[:, t])


def test_step_leaves_the_old_state_valid(model, source, target):
    state = model.start(source)
    kept = {name: tensor.clone() for name, tensor in state.items()}
    first, after = model.step(target[:, 1], state)
    model.step(target[:, 2], after)
    torch.testing.assert_close(state, kept)
    torch.testing.assert_close(model.step(target[:, 1], state)[0], first)
    assert not torch.allclose(model.step(target[:, 1], after)[0], first)


def test_rows_of_a_state_can_be_chosen(model, source, target):
    rows = torch.tensor([3, 0, 0, 2, 1])
    state = model.step(target[:, 0], model.start(source))[1]
    logits, _ = model.step(target[:, 1], state)
    chosen, _ = model.step(target[rows, 1], {name: tensor[rows] for name, tensor in state.items()})
    torch.testing.assert_close(chosen, logits[rows])


def test_dropout_is_there_in_training_only(source, target):
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(dataclasses.replace(CONFIG, P_drop=0.5))
    model.train()
    assert not torch.allclose(model(source, target), model(source, target))
    dropped = []
    model.dropout.register_forward_hook(lambda part, given, made: dropped.append(made.shape[:2]))
    model(source, target)
    assert dropped == [source.shape, target.shape, target.shape], "the words of both sides, and what the logits are made of"
    model.eval()
    torch.testing.assert_close(model(source, target), model(source, target))


def test_every_parameter_learns(model, source, target):
    model(source, target).logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("d_model", 0), ("d_model", 7), ("P_drop", -0.1), ("P_drop", 1.0), ("P_drop", "0.1"), ("vocab", 3),
        ("pad", 2), ("bos", -1), ("unk", 37),
    ],
)  # fmt: skip
def test_config_refuses(field, value):
    with pytest.raises(ValueError, match=str(value)) as error:
        RecurrentConfig(**{"vocab": 37, field: value})
    assert ("vocab" if field == "unk" else field) in str(error.value)


@pytest.mark.parametrize("wrong", [{"vocab": 37.5}, {"d_model": 4.0}, {"pad": 0.0}])
def test_config_wants_whole_numbers(wrong):
    with pytest.raises(ValueError, match="must be whole numbers"):
        RecurrentConfig(**{"vocab": 37, **wrong})


def test_config_wants_a_number_of_python():
    with pytest.raises(ValueError, match=r"^P_drop must be a Python float in \[0, 1\), not "):
        RecurrentConfig(37, P_drop=torch.tensor(0.1))


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONFIG.vocab = 5


def test_special_tokens_may_be_others():
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(RecurrentConfig(vocab=11, d_model=6, P_drop=0.0, pad=10, bos=0, eos=1, unk=2)).eval()
    source, target = torch.tensor([[0, 5, 1], [7, 1, 10]]), torch.tensor([[0, 3], [0, 4]])
    torch.testing.assert_close(model(source, target)[1], model(source[1:, :2], target[1:])[0])


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        ([[5, 2]], TypeError, "list"),
        (torch.zeros(2, 3), TypeError, "float32"),
        (torch.ones(2, 3, dtype=torch.bool), TypeError, "bool"),
        (torch.tensor([5, 2]), ValueError, r"\(2,\)"),
        (torch.zeros(2, 0, dtype=torch.long), ValueError, r"\(2, 0\)"),
        (torch.zeros(0, 2, dtype=torch.long), ValueError, r"\(0, 2\)"),
        (torch.tensor([[5, 37]]), ValueError, r"lie in 0\.\.36, not 5\.\.37"),
        (torch.tensor([[5, -1]]), ValueError, r"not -1\.\.5"),
    ],
)
def test_ids_that_no_model_reads_are_refused(ids, error, said, model, source, target):
    for name, call in (("source", model.encode), ("target", lambda ids: model.decode(ids, None, source))):
        with pytest.raises(error, match=f"{name}.*{said}"):
            call(ids)
    assert _check_ids("source", source, CONFIG.vocab) is None


@pytest.mark.parametrize(("ids", "said"), [([[5, 2], [0, 0]], "a token first"), ([[5, 0, 2]], r"padding \(0\) only last")])
def test_padding_before_the_end_of_a_source_is_refused(ids, said, model, source, target):
    with pytest.raises(ValueError, match=said):
        model.encode(torch.tensor(ids))
    written = torch.tensor([[1, 0, 5]])  # what a model writes may hold any token
    assert model.decode(written, model.encode(source[:1]), source[:1]).shape[:2] == (1, 3)


class Bigrams(nn.Module):
    """The smallest model with forward(source, target) and a config."""

    config = CONFIG

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CONFIG.vocab, CONFIG.vocab)

    def forward(self, source, target):
        return self.table(target)


def test_fit_learns(source, target):
    torch.manual_seed(0)
    model = RecurrentSeq2Seq(CONFIG)
    losses = fit(model, [(source, target)], steps=80, rate=1e-2)
    assert len(losses) == 80 and all(isinstance(loss, float) for loss in losses)
    assert losses[0] > 3 and losses[-1] < 0.1
    assert not model.training
    assert (model(source, target[:, :-1]).argmax(-1) == target[:, 1:]).all()


def test_fit_counts_no_padding_and_predicts_the_next_word():
    torch.manual_seed(0)
    model, target = Bigrams(), torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    expected = [(1, 5), (5, 6), (6, 2), (1, 7), (7, 2)]
    by_hand = sum(F.cross_entropy(model.table.weight[a], torch.tensor(b)).item() for a, b in expected) / 5
    (loss,) = fit(model, [(None, target)], steps=1)
    assert loss == pytest.approx(by_hand)


def test_fit_begins_again_and_takes_no_more_than_it_needs():
    torch.manual_seed(0)
    a, b = torch.tensor([[1, 5, 2]]), torch.tensor([[1, 7, 2]])
    one, two, three, four = fit(Bigrams(), [(None, a), (None, b)], steps=4, rate=0.1)
    assert three < one and four < two
    endless = count()
    fit(Bigrams(), ((None, a + 0 * i) for i in endless), steps=3)
    assert next(endless) == 3
    with pytest.raises(ValueError, match="batches"):
        fit(Bigrams(), [], steps=1)


def test_fit_shows_its_progress_on_stderr_alone(capfd, monkeypatch):
    monkeypatch.setattr(recurrent, "tqdm", partial(recurrent.tqdm, disable=False))  # the tests switch bars off
    fit(Bigrams(), [(None, torch.tensor([[1, 5, 2]]))], steps=2)
    out, err = capfd.readouterr()
    assert out == "" and "2/2" in err


def test_shape_comments(source, target):
    with checked(recurrent) as seen:
        model = RecurrentSeq2Seq(RecurrentConfig(vocab=37, d_model=14))
        fit(model, [(source, target)], steps=1)
        model.step(target[:, 0], model.start(source))
    assert not unseen(seen, recurrent)


def test_a_word_is_read_and_the_next_one_told_as_the_formula_says(model, source, target):
    "From the memory of the first word a state; then for each word a GRU's step, a look at the source, a layer of tanh."
    memory, logits = model.encode(source), model(source, target)
    hidden = torch.tanh(model.W_S(memory[:, 0]))
    for t in range(T):
        hidden = model.decoder(model.embedding(target[:, t : t + 1]), hidden[None])[1][0]
        found = naive(model.W_Q(hidden)[:, None], model.W_K(memory), memory, model.v, (source != 0)[:, None])[:, 0]
        told = model.W_O(torch.tanh(model.W_C(torch.cat([hidden, found], -1))))
        torch.testing.assert_close(logits[:, t], told)
