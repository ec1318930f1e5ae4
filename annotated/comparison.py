"""Why self-attention.

Generated from book/16-why-self-attention.md by tools/tangle.py: edit the chapter, not this file.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from annotated.attention import _check_sizes, _check_values, scaled_dot_product_attention

__all__ = [
    "Recurrent",
    "Convolution",
    "separable_convolution",
    "restricted_attention",
    "multiplications",
    "path_length",
]


class Recurrent(nn.Module):
    """An LSTM layer of width d, as the chain of steps that it is (section 4, Table 1)."""

    def __init__(self, d: int):
        super().__init__()
        self.d = d
        self.cell = nn.LSTMCell(d, d)

    def forward(self, x: Tensor) -> Tensor:
        """Read x, (B, n, d), from left to right; gives the states, (B, n, d)."""
        h = c = x.new_zeros(len(x), self.d)  # (B, d)
        states = []
        for row in x.unbind(1):
            h, c = self.cell(row, (h, c))  # (B, d), (B, d)
            states.append(h)
        return torch.stack(states, 1)  # (B, n, d)

    def rounds(self, x: Tensor, count: int) -> Tensor:
        """Step all positions at once, each from its left neighbour's state a round before.

        x is (B, n, d), and so is the result; n rounds make what `forward` makes.
        """
        h = c = torch.zeros_like(x)  # (B, n, d)
        for _ in range(count):
            shifted = [F.pad(state[:, :-1], (0, 0, 1, 0)) for state in (h, c)]  # (B, n, d)
            before = [state.flatten(0, 1) for state in shifted]  # (B*n, d)
            after = self.cell(x.flatten(0, 1), before)  # (B*n, d)
            h, c = (state.unflatten(0, x.shape[:2]) for state in after)
        return h


class Convolution(nn.Module):
    """Mix each position with its neighbours, by a matrix for each of k places (Table 1).

    Args:
        d: width of a position, before and after.
        k: positions that one output reads, odd; beyond the ends of the sentence they are 0.
        dilation: the distance between two of them.
        groups: parts of the features that stay apart; d of them make it depthwise.

    Raises:
        ValueError: k is not odd and at least 1, or dilation is less than 1.
    """

    def __init__(self, d: int, k: int, dilation: int = 1, groups: int = 1):
        super().__init__()
        if k < 1 or k % 2 == 0:
            raise ValueError(f"k must be odd and at least 1: a kernel has a centre; not {k}")
        if dilation < 1:
            raise ValueError(f"dilation must be at least 1, not {dilation}")
        padding = dilation * (k // 2)
        self.conv = nn.Conv1d(d, d, k, padding=padding, dilation=dilation, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x, (B, n, d), over its positions, to the same shape."""
        return self.conv(x.transpose(1, 2)).transpose(1, 2)  # (B, n, d)


def separable_convolution(d: int, k: int) -> nn.Sequential:
    """Mix positions feature by feature, then features position by position (section 4).

    d and k are as in `Convolution`; so is the error. The module keeps the shape (B, n, d).
    """
    return nn.Sequential(Convolution(d, k, groups=d), nn.Linear(d, d))


def _band_mask(n, r, device=None):
    """Let each of n positions attend to the r centred on it: (n, n), True = may attend."""
    near = torch.ones(n, n, dtype=torch.bool, device=device)  # (n, n)
    return near.tril(r // 2).triu(-(r // 2))  # (n, n)


def _windows(x, size, step, rest):
    """Cut the positions into overlapping windows, a step apart (for `restricted_attention`).

    Args:
        x: (..., n, width).
        size: positions in a window.
        step: positions in the block at its centre.
        rest: how many positions the last block lacks.

    Returns:
        (..., blocks, size, width); what lies outside the sentence is 0, or False.
    """
    side = (size - step) // 2
    padded = F.pad(x, (0, 0, side, side + rest))
    return padded.unfold(-2, size, step).transpose(-2, -1)  # (..., blocks, size, width)


def _check_neighbourhood(Q, K, mask, r):
    """Refuse what `restricted_attention` cannot work on: TypeError or ValueError."""
    n = Q.shape[-2]
    if not isinstance(r, int) or isinstance(r, bool):
        raise TypeError(f"r must be a whole number, not {type(r).__name__}")
    if r < 1 or r % 2 == 0:
        raise ValueError(f"r must be odd and at least 1: it has a centre; not {r}")
    if n < 1 or K.shape[-2] != n:
        found = f"{n} and {K.shape[-2]}"
        raise ValueError(f"there must be as many keys as queries, at least one, not {found}")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask must be boolean, True = may attend, not {mask.dtype}")
    if mask is not None and mask.shape[-2:] != (1, n):
        raise ValueError(f"mask must have the shape (..., 1, {n}), not {tuple(mask.shape)}")


def restricted_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, r: int = 3
) -> Tensor:
    """Let each query attend to the r positions centred on its own (section 4, Table 1).

    Args:
        Q: queries, (..., n, d_k).
        K: keys, (..., n, d_k).
        V: values, (..., n, d_v).
        mask: boolean, (..., 1, n), such as `padding_mask` gives; True = may attend.
        r: size of the neighbourhood, odd; at the ends of the sentence part of it is missing.

    Returns:
        (..., n, d_v); a query that may attend to nothing gets 0.

    Raises:
        TypeError: r is not a whole number, or mask is not boolean.
        ValueError: r is even or less than 1, or the shapes do not fit.
    """
    _check_sizes(Q, K)
    _check_values(K, V)
    _check_neighbourhood(Q, K, mask, r)
    n = Q.shape[-2]
    w = r // 2
    block = max(w, 1)
    size = block + 2 * w
    rest = -n % block
    allowed = torch.ones(n, 1, dtype=torch.bool, device=Q.device)  # (n, 1)
    if mask is not None:
        allowed = mask.transpose(-2, -1)  # (..., n, 1)
    Q = _windows(Q, block, block, rest)  # (..., blocks, block, d_k)
    K = _windows(K, size, block, rest)  # (..., blocks, size, d_k)
    V = _windows(V, size, block, rest)  # (..., blocks, size, d_v)
    allowed = _windows(allowed, size, block, rest)  # (..., blocks, size, 1)
    near = torch.ones(block, size, dtype=torch.bool, device=Q.device)  # (block, size)
    near = near.tril(2 * w).triu()  # (block, size)
    visible = allowed.transpose(-2, -1) & near  # (..., blocks, block, size)
    out = scaled_dot_product_attention(Q, K, V, visible)  # (..., blocks, block, d_v)
    return out.flatten(-3, -2)[..., :n, :]  # (..., n, d_v)


def multiplications(n: int, d: int, k: int = 3, r: int = 3) -> dict[str, int]:
    """How many products of two numbers each layer forms for a sentence (section 4, Table 1).

    Args:
        n: words of the sentence.
        d: width of each vector.
        k: positions that a convolution reads, odd.
        r: positions that a restricted query looks at, odd.

    Returns:
        name of a layer -> number; biases, softmax and element-wise products are left out.

    Raises:
        ValueError: a size is less than 1, or k or r is even.
    """
    for name, size in (("n", n), ("d", d), ("k", k), ("r", r)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
    for name, size in (("k", k), ("r", r)):
        if size % 2 == 0:
            raise ValueError(f"{name} must be odd, so that there is a middle, not {size}")
    block = max(r // 2, 1)
    pairs = (n + -n % block) * (block + 2 * (r // 2))
    return {
        "self-attention": 2 * n * n * d,
        "recurrent": 8 * n * d * d,
        "convolutional": k * n * d * d,
        "convolutional (dilated)": k * n * d * d,
        "convolutional (separable)": k * n * d + n * d * d,
        "self-attention (restricted)": 2 * pairs * d,
    }


def _table_layers(d, k=3, r=3):
    """The layers of Table 1 by name: functions that keep the shape (B, n, d).

    Attention has no projections; k is also the dilation of the dilated convolution.
    """
    return {
        "self-attention": lambda x: scaled_dot_product_attention(x, x, x),
        "recurrent": Recurrent(d),
        "convolutional": Convolution(d, k),
        "convolutional (dilated)": Convolution(d, k, dilation=k),
        "convolutional (separable)": separable_convolution(d, k),
        "self-attention (restricted)": lambda x: restricted_attention(x, x, x, r=r),
    }


def _counted(f, *inputs):
    """The products of two numbers that PyTorch's own counter sees when f reads the inputs.

    The counter counts fused layers, such as `nn.LSTM` on a CPU, as 0.
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        f(*inputs)
    return counter.get_total_flops() // 2  # it counts additions as well


def _longest_chain(y):
    """The greatest number of products on any way through the gradient's graph of y (Table 1)."""
    products = ("AddmmBackward0", "MmBackward0", "BmmBackward0", "ConvolutionBackward0")
    depth: dict = {}
    todo = [y.grad_fn]
    while todo:
        below = [node for node, _ in todo[-1].next_functions if node is not None]
        missing = [node for node in below if node not in depth]
        if missing:
            todo += missing
            continue
        node = todo.pop()
        deepest = max((depth[b] for b in below), default=0)
        depth[node] = deepest + (node.name() in products)
    return depth[y.grad_fn]


def _reach(f, n, d):
    """Whether output i (row) of f depends on input j (column), (n, n), by their gradients.

    f keeps the shape (B, n, d), in double precision.
    """
    copies = torch.randn(n, d, dtype=torch.double).repeat(n, 1, 1)  # (n, n, d)
    copies.requires_grad_()
    own = f(copies).diagonal().sum()  # copy i is asked for its output i only
    (gradient,) = torch.autograd.grad(own, copies)  # (n, n, d)
    return (gradient != 0).any(-1)  # (n, n)


def path_length(
    stack: Callable[[int], Callable[[Tensor], Tensor]], n: int, d: int, pairs: Tensor | None = None
) -> int:
    """How many layers it takes until every output depends on every input (Table 1).

    Args:
        stack: depth -> a function of that many layers, from (B, n, d) to the same shape,
            in double precision.
        n: words of the sentence.
        d: width of each vector.
        pairs: boolean, (n, n): which pairs must be connected, output by input; default all.

    Raises:
        ValueError: n layers do not connect them.
    """
    pairs = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs  # (n, n)
    for depth in range(1, n + 1):
        if _reach(stack(depth), n, d)[pairs].all():
            return depth
    raise ValueError(f"stack must connect the pairs within {n} layers; it does not")


def _kept_bytes(f, x):
    """The bytes that f keeps of x for its backward pass, a module's own weights left out."""
    weights = f.parameters() if isinstance(f, nn.Module) else ()
    owned = {w.untyped_storage().data_ptr() for w in weights}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        f(x.detach().requires_grad_())
    return sum(storage.nbytes() for place, storage in kept.items() if place not in owned)


def _exponent(sizes, values):
    """The p that fits values ~ sizes ** p best: the slope between logarithms.

    Raises:
        ValueError: too few sizes, another number of values, or numbers without a logarithm.
    """
    if len(set(sizes)) < 2 or len(sizes) != len(values):
        found = f"{len(sizes)} sizes and {len(values)} values"
        raise ValueError(f"sizes must be two or more, with a value each, not {found}")
    if min(*sizes, *values) <= 0:
        raise ValueError(f"sizes and values must be above 0, not {min(*sizes, *values)}")
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    mean_x = sum(x) / len(x)
    mean_y = sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    return above / sum((a - mean_x) ** 2 for a in x)
