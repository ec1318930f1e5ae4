"""CUDA graphs.

Generated from book/K-graphs.md by tools/tangle.py: edit the chapter, not this file.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from annotated.gpu import TrainStep
from annotated.recurrent import _check_step
from annotated.transformer import KVCache, State, Transformer, _sentences_of

__all__ = ["CudaGraphTrainStep", "StaticKVCache", "CudaGraphDecoder", "compile_steps"]


@cache
def _stream_of(gpu):
    """One stream for all recordings of a GPU, given by its number."""
    return torch.cuda.Stream(gpu)


def _record_cuda_graph(work, pool=None):
    """Record what work() does on a GPU: the graph, and its result, which every replay fills anew.

    What work reads must stay where it is; pool is the memory of earlier recordings.
    """
    side = _stream_of(torch.cuda.current_device())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Only this thread is bound by the rules of recording: another may be making batches.
    mode = "thread_local"
    with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode=mode):
        result = work()
    return graph, result


class CudaGraphTrainStep(TrainStep):
    """A `TrainStep` that is recorded once for each shape, as a CUDA graph, and replayed.

    Batches should have few shapes (`StaticBatches`); one process only. Between updates set
    gradients to 0, never to None, which is refused: a replay adds to them where they lay.
    """

    frees_gradients = False  # a recording adds to the gradients where they lay

    def __init__(self, objective: nn.Module, context: Callable = nullcontext):
        super().__init__(objective, context)
        self.known: dict = {}
        self.pool = None

    def __call__(self, source: Tensor, target: Tensor, scale: Tensor) -> Tensor:
        """As `TrainStep`."""
        batch = (source, target, scale)
        if not scale.is_cuda:
            return super().__call__(*batch)
        shapes = tuple(x.shape for x in batch)
        if shapes not in self.known:
            with torch.cuda.device(scale.device):
                self.known[shapes] = self._record([x.to(scale.device, copy=True) for x in batch])
        graph, places, loss, gradients = self.known[shapes]
        if any(w.grad is not gradient for w, gradient in gradients):
            raise RuntimeError("between recorded updates set gradients to 0, never to None: "
                               "a replay adds to them where they lay")
        for place, x in zip(places, batch):
            place.copy_(x, non_blocking=True)
        graph.replay()
        return loss.clone()

    def _record(self, places):
        """Record the passes; the gradients of making them are taken back."""
        weights = list(self.objective.parameters())
        before = [None if w.grad is None else w.grad.clone() for w in weights]
        drawn = torch.cuda.get_rng_state()
        graph, loss = _record_cuda_graph(partial(super().__call__, *places), self.pool)
        torch.cuda.set_rng_state(drawn)  # the passes of recording have used up random numbers
        self.pool = self.pool or graph.pool()
        for w, old in zip(weights, before):
            if w.grad is None:  # it is frozen
                continue
            if old is None:
                w.grad.zero_()
            else:
                w.grad.copy_(old)
        return graph, places, loss, [(w, w.grad) for w in weights]


@dataclass
class StaticKVCache:
    """A `KVCache` with L places, which are written where they lie.

    Args:
        K: (R, h, L, d_k).
        V: (R, h, L, d_v).
        t: how many positions are written, (1,); all layers share it.
        mask: which places may be looked at, (1, L); all layers share it.
    """

    K: Tensor
    V: Tensor
    t: Tensor
    mask: Tensor

    def next_positions(self, n: int = 1) -> Tensor:
        """The number of the next position, (1,); only one at a time."""
        return self.t

    def update(self, K: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys (R, h, 1, d_k) and values of one position; returns all places."""
        self.K.index_copy_(2, self.t, K)
        self.V.index_copy_(2, self.t, V)
        return self.K, self.V

    def copy(self) -> "StaticKVCache":
        """This cache: a step of a recording changes it in place."""
        return self


class _Buffers:
    """Where a recorded step of decoding finds what it reads, always in the same places.

    They hold B sentences with k hypotheses each, R = B k, of L target and S source positions.
    """

    def __init__(self, model, B, k, L, S):
        c = model.config
        weight = next(model.parameters()).detach()
        N = c.decoder_layers
        widths = (c.key_width, c.value_width)
        whole = partial(torch.zeros, dtype=torch.long, device=weight.device)
        bits = partial(torch.zeros, dtype=torch.bool, device=weight.device)
        self.ids = whole(B * k)
        self.t = whole(1)
        self.places = torch.arange(L, device=weight.device)  # (L,)
        self.seen = bits(1, L)
        mask = bits(B, 1, 1, S)
        self.past = [weight.new_zeros(N, B * k, c.h, L, width) for width in widths]
        self.memory = [weight.new_zeros(N, B, c.h, S, width) for width in widths]
        caches: list[Any] = [StaticKVCache(K, V, self.t, self.seen) for K, V in zip(*self.past)]
        memory: list[Any] = [KVCache(K, V) for K, V in zip(*self.memory)]
        self.state = State(caches, memory, mask)
        self.owner = self.graph = self.logits = None

    def step(self, model):
        """Logits (R, vocab) after the last tokens, whose keys and values are written."""
        torch.le(self.places, self.t, out=self.seen[0])
        return model.step(self.ids, self.state)[0]  # (R, vocab)

    def empty(self):
        """Forget what an earlier search left."""
        for place in (*self.past, *self.memory, self.state.mask):
            place.zero_()

    def fill(self, begun):
        """Begin a search: take the source from a state that `Transformer.start` has made."""
        self.empty()
        B = begun.mask.shape[0]
        S = begun.mask.shape[-1]
        keys, values = self.memory
        keys[:, :B, :, :S] = torch.stack([cache.K for cache in begun.memory])
        values[:, :B, :, :S] = torch.stack([cache.V for cache in begun.memory])
        self.state.mask[:B, ..., :S] = begun.mask


@dataclass(eq=False)
class _BufferState:
    """What a search by `CudaGraphDecoder` remembers; a step or a move uses it up.

    Args:
        decoder: where buffers come from.
        buffers: those in use.
        rows: hypotheses, the first of the buffers.
        k: of these for each sentence.
        t: positions so far.
    """

    decoder: "CudaGraphDecoder"
    buffers: _Buffers
    rows: int
    k: int = 1
    t: int = 0

    def __post_init__(self):
        self.buffers.owner = self

    def check(self, ids=None):
        """Refuse to go on in buffers that another state uses by now, and ids that do not fit."""
        if self.buffers.owner is not self:
            raise ValueError("this state was used before: keep the newer one, or start again")
        if ids is not None:
            _check_step(ids, self.rows)

    def select(self, rows):
        """Go on with hypotheses rows, (R',), as many for each sentence as before."""
        return self.move(rows, self.k, len(self.buffers.places))

    def repeat(self, k):
        """k hypotheses in the place of each one."""
        rows = torch.arange(self.rows, device=self.buffers.ids.device)  # (R,)
        return self.move(rows.repeat_interleave(k), self.k * k, len(self.buffers.places))

    @torch.inference_mode()
    def move(self, rows, k, L):
        """Hypotheses rows, (R',), k a sentence, go on in buffers of L positions that fit them."""
        self.check()
        old, new = self.buffers, self.buffers  # if none goes on, no others are needed
        sentences = _sentences_of(rows, self.k, k)  # (B',)
        if len(rows):
            S = old.state.mask.shape[-1]
            new = self.decoder.buffers_for(len(sentences), k, L, S)
        if new is not old:
            new.empty()
        for x, place in zip(old.past, new.past):
            place[:, : len(rows), :, : self.t] = x[..., : self.t, :].index_select(1, rows)
        for x, place in zip(old.memory, new.memory):
            place[:, : len(sentences)] = x.index_select(1, sentences)
        new.state.mask[: len(sentences)] = old.state.mask.index_select(0, sentences)
        old.owner = None
        return _BufferState(self.decoder, new, len(rows), k, self.t)


def _check_own(decoder, state):
    """Refuse a state that is not this decoder's."""
    if not isinstance(state, _BufferState) or state.decoder is not decoder:
        raise TypeError("the state must be what this decoder's start or step returned")


def _power_of_two(n):
    """The smallest power of two that is n or more; n is 1 or more."""
    return 1 << (n - 1).bit_length()


class CudaGraphDecoder(nn.Module):
    """A Transformer whose steps of decoding have few shapes and are replayed on a GPU.

    It writes what the model writes. Searches share its buffers: one at a time. Choose device
    and precision before, use no autocast; weights may be written to later, but not replaced.

    Args:
        model: a Transformer, fused or not, of any precision.
        least: positions of the smallest buffers, on either side.
    """

    def __init__(self, model: Transformer, least: int = 32):
        super().__init__()
        self.model = model
        self.config = model.config
        self.least = least
        self.known: dict = {}
        self.pool = None
        self.train(model.training)  # a new module would say that it trains

    def buffers_for(self, B: int, k: int, L: int, S: int) -> _Buffers:
        """The buffers of these sizes, rounded up."""
        B = _power_of_two(B)
        L = _power_of_two(max(L, self.least))
        S = _power_of_two(max(S, self.least))
        if (B, k, L, S) not in self.known:
            self.known[B, k, L, S] = _Buffers(self.model, B, k, L, S)
        return self.known[B, k, L, S]

    @torch.inference_mode()
    def start(self, source: Tensor) -> _BufferState:
        """The state before the first step, a hypothesis a sentence of source, (B, S)."""
        begun = self.model.start(source)
        B, S = source.shape
        buffers = self.buffers_for(B, 1, 1, S)
        buffers.fill(begun)
        return _BufferState(self, buffers, B)

    @torch.inference_mode()
    def step(self, ids: Tensor, state: _BufferState) -> tuple[Tensor, _BufferState]:
        """Logits (R, vocab) for the token after ids, (R,), and a new state; the old is used up."""
        _check_own(self, state)
        state.check(ids)
        L = len(state.buffers.places)
        if state.t == L:
            state = state.move(torch.arange(len(ids), device=ids.device), state.k, 2 * L)
        buffers = state.buffers
        buffers.ids[: len(ids)] = ids
        buffers.t.fill_(state.t)
        logits = self._replay(buffers)[: len(ids)].clone()  # (R, vocab)
        return logits, _BufferState(self, buffers, len(ids), state.k, state.t + 1)

    def _replay(self, buffers):
        """The step of some buffers, recorded where it can be."""
        if not buffers.t.is_cuda:
            return buffers.step(self.model)
        if buffers.graph is None:
            work = partial(buffers.step, self.model)
            with torch.cuda.device(buffers.t.device):
                buffers.graph, buffers.logits = _record_cuda_graph(work, self.pool)
            self.pool = self.pool or buffers.graph.pool()
        buffers.graph.replay()
        return buffers.logits


def compile_steps(model: Transformer, backend: str | Callable = "inductor") -> Transformer:
    """Compile the decoder layers' steps in place, one program for all shapes.

    Returns the model; backend is as in `torch.compile`.
    """
    layers: Any = model.decoder.layers
    for layer in layers:  # bound anew, so that a copy of the model steps with its own weights
        step = torch.compile(type(layer).step, dynamic=True, backend=backend)
        layer.step = MethodType(step, layer)
    return model
