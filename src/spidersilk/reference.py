"""Algorithms 1 and 2, and sparse training, in plain, slow lines: the oracle of the tests, not for training.

The numbers in the margin are the paper's line numbers. Everything is a function of a gradient oracle and of the batches
it is given; nothing here uses the rest of the library but the `Selection` record, so that selections can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spidersilk.operator.selection import Selection

Gradient = Callable[[Tensor, Any], Tensor]
"""gradient(x, batch): the mean gradient over the samples of the batch, at x."""

StatefulGradient = Callable[[Tensor, Any, Any], tuple[Tensor, Any]]
"""gradient(x, batch, state): the gradient, and the model's state after the batch, which it started from `state`."""


@dataclass
class Trace:
    """What a run did: x after each update, v and M as each update found them, each selection with the M it was made
    from, and the queries."""

    output: Tensor
    iterates: list[Tensor] = field(default_factory=list)
    estimates: list[Tensor] = field(default_factory=list)
    memories: list[Tensor] = field(default_factory=list)
    selections: list[Selection] = field(default_factory=list)
    selected_from: list[Tensor] = field(default_factory=list)
    queries: float = 0.0


def top(x: Tensor, k1: int) -> list[int]:
    """The k1 coordinates with the largest |x|; equal ones by lower index first."""
    values = x.abs().tolist()
    return sorted(sorted(range(len(values)), key=lambda i: (-values[i], i))[:k1])


def draw_selection(memory: Tensor, k1: int, k2: int, generator: torch.Generator) -> Selection:
    """The set of Section 2: the top k1 of the memory, and S, k2 of the others, uniformly."""
    d = len(memory)
    first = top(memory, k1)
    others = [i for i in range(d) if i not in set(first)]
    drawn = torch.randperm(len(others), generator=generator)[:k2].tolist()
    random = sorted(others[i] for i in drawn)
    return Selection(torch.tensor(first).long(), torch.tensor(random).long(), (d - k1) / k2 if k2 else 1.0, d)


def rtop(selection: Selection, y: Tensor, unbiased: bool = True) -> Tensor:
    """y on the selection, its random part times (d - k1) / k2 if `unbiased`, 0 elsewhere."""
    out = torch.zeros_like(y)
    out[selection.top] = y[selection.top]
    out[selection.random] = y[selection.random] * (selection.scale if unbiased else 1.0)
    return out


def mask(selection: Selection) -> Tensor:
    """1 on the selection, 0 elsewhere."""
    return rtop(selection, torch.ones(selection.d, dtype=torch.float64), unbiased=False).bool()


def geometric(mean: float, generator: torch.Generator) -> int:
    """A draw of P(N = n) = g^n (1 - g), n = 0, 1, ..., by counting successes of probability g = mean / (mean + 1)."""
    n = 0
    while torch.rand((), generator=generator, dtype=torch.float64).item() < mean / (mean + 1):
        n += 1
    return n


def loop_length(lengths: str | Sequence[int], mean: float, j: int, generator: torch.Generator) -> int:
    """N_j: fixed, geometric, or as given."""
    if not isinstance(lengths, str):
        return lengths[j]
    return int(mean) if lengths == "fixed" else geometric(mean, generator)


def new_estimate(
    reference: str, scaling: str, v: Tensor, v_anchor: Tensor, y: Tensor, selection: Selection | None
) -> Tensor:
    """Line 11 for each reference; y is the difference to it."""
    change = y if selection is None else rtop(selection, y, scaling == "unbiased")
    if reference == "previous":
        return v + change
    if scaling == "refresh":
        assert selection is not None
        return torch.where(mask(selection), v_anchor + change, v)
    return v_anchor + change


def where_it_moves(move: str, selection: Selection, new: Tensor, old: Tensor) -> Tensor:
    """`new` on the coordinates that move: all, or the selected ones; `old` elsewhere."""
    return new if move == "all" else torch.where(mask(selection), new, old)


def algorithm_1(
    gradient: Gradient, x0: Tensor, anchors: Iterator[Any], smalls: Iterator[Any], *,
    lr: float | Callable[[int, int], float], inner_steps: float, loops: int, k1: int = 0, k2: int | None = None,
    memory_decay: float = 0.5, memory_reset: bool = False, memory_batch: bool = False,
    reference: str = "previous", scaling: str = "unbiased", move: str = "all", choose: str = "step",
    anchor_move: str = "all", lengths: str | Sequence[int] = "fixed", last_v: bool = False, output: str = "last",
    replay: Iterator[Selection] | None = None, generator: torch.Generator | None = None,
) -> Trace:  # fmt: skip
    """SpiderBoost with sparse gradients, and the methods that differ from it in one choice or another.

    As printed: reference="previous", scaling="unbiased", move="all", memory_batch=True, last_v=True. The library leaves
    out the two batches that feed nothing but M: that of lines 1-2 (M starts from the first anchor instead), and the
    last one of each inner loop.

    lr: the step size, or a function of (j, t). lengths: "fixed" (N_j = m), "geometric" (mean m), or the N_j themselves.
    k2=None: the dense method. reference: "previous" or "anchor". scaling: "unbiased", "none" or "refresh". move and
    anchor_move: whether x moves on all coordinates or on the selected ones. choose: a selection at each "step" or at
    each "anchor". memory_reset, and always with move="selected": M restarts from each large batch. output: "last" or
    "uniform" (over the outer loops). replay: selections to use in place of draws.
    """
    generator = generator or torch.Generator().manual_seed(0)
    trace = Trace(output=x0)
    d = len(x0)
    sparse = k2 is not None
    density = (k1 + (k2 or 0)) / d if sparse else 1.0
    step_size = lr if callable(lr) else lambda j, t: lr

    def select(memory: Tensor) -> Selection:
        selection = draw_selection(memory, k1, k2 or 0, generator) if replay is None else next(replay)
        trace.selections.append(selection)
        trace.selected_from.append(memory)
        return selection

    x = x0.clone()
    memory: Tensor | None = None
    if memory_batch:
        batch = next(anchors)  # 1
        memory = gradient(x, batch).abs()  # 2
        trace.queries += len(batch)
    ends = []
    for j in range(loops):  # 3, 4
        batch = next(anchors)  # 5
        v = gradient(x, batch)  # 6
        trace.queries += len(batch)
        n_j = loop_length(lengths, inner_steps, j, generator)  # 7
        if n_j == 0:
            ends.append(x)
            continue
        x_anchor, v_anchor = x, v
        if memory is None or memory_reset or move == "selected":
            memory = v.abs()
        selection: Selection | None = None
        moved = v
        if anchor_move == "selected":
            selection = select(memory)
            moved = torch.where(mask(selection), v, 0)
        for t in range(n_j):  # 8
            trace.estimates.append(v)
            trace.memories.append(memory)
            x_previous, x = x, x - step_size(j, t) * moved  # 9
            trace.iterates.append(x)
            if t == n_j - 1 and not last_v:
                break
            if sparse and (selection is None or choose == "step"):
                selection = select(memory)
            batch = next(smalls)  # 10
            y = gradient(x, batch) - gradient(x_previous if reference == "previous" else x_anchor, batch)
            trace.queries += 2 * len(batch) * density
            v = new_estimate(reference, scaling, v, v_anchor, y, selection)  # 11
            moved = v
            if selection is not None:
                new = memory_decay * v.abs() + (1 - memory_decay) * memory
                memory = where_it_moves(move, selection, new, memory)  # 12
                moved = where_it_moves(move, selection, v, torch.zeros_like(v))
        ends.append(x)  # 13
    trace.output = x if output == "last" else ends[int(torch.randint(len(ends), (), generator=generator))]
    return trace


def algorithm_2(
    gradient: StatefulGradient, x0: Tensor, small_matrix: Sequence[Any], large_matrix: Sequence[Any],
    initial_small_state: Any, initial_large_state: Any, *, lr: float, inner_steps: int, iterations: int, k1: int = 0,
    k2: int | None = None, memory_decay: float = 0.5, reference: str = "previous", advance: str = "printed",
    replay: Iterator[Selection] | None = None, generator: torch.Generator | None = None,
) -> Trace:  # fmt: skip
    """SpiderBoost for recurrent language models: a batch matrix and a model state for each batch size.

    small_matrix: Z_1, its l_1 batches in order, each with b rows; large_matrix: Z_2, its l_2 batches with B rows.
    The paper prints "g_c - g_b" in line 14; it is g_c - g_p. Its Z_2 has b rows in one place; it has B. With
    reference="anchor" both evaluations start from s_t. k2=None is dense, as printed.

    advance: "printed" takes batch mod(t, l) of both matrices, so that with m = 2 half of each is never seen; "own" lets
    each matrix advance when it is used, so that its text is contiguous.
    """
    generator = generator or torch.Generator().manual_seed(0)
    trace = Trace(output=x0)
    x = x_previous = x_anchor = x0
    s = s_previous = initial_small_state
    large_s = initial_large_state
    v = v_anchor = torch.zeros_like(x0)
    memory: Tensor | None = None
    smalls_used = larges_used = 0
    for t in range(iterations):  # 1
        is_anchor = t % inner_steps == 0
        i = (t if advance == "printed" else smalls_used) % len(small_matrix)  # 2
        j = (t if advance == "printed" else larges_used) % len(large_matrix)  # 3
        if i == 0 and (advance == "printed" or not is_anchor):  # 4
            s = s_previous = initial_small_state  # 5
        if j == 0 and (advance == "printed" or is_anchor):  # 6
            large_s = initial_large_state  # 7
        if is_anchor:  # 8
            v, large_s = gradient(x, large_matrix[j], large_s)  # 9
            v_anchor, x_anchor = v, x
            s_previous = s  # 10
            larges_used += 1
            memory = v.abs() if memory is None else memory
        else:  # 11
            batch = small_matrix[i]
            point, state = (x_previous, s_previous) if reference == "previous" else (x_anchor, s)
            g_p, _ = gradient(point, batch, state)  # 12
            g_c, s_next = gradient(x, batch, s)  # 13
            s_previous, s = s, s_next
            smalls_used += 1
            y = g_c - g_p
            if k2 is not None:
                assert memory is not None
                selection = draw_selection(memory, k1, k2, generator) if replay is None else next(replay)
                trace.selections.append(selection)
                trace.selected_from.append(memory)
                y = rtop(selection, y)
            v = (v if reference == "previous" else v_anchor) + y  # 14
            if k2 is not None and memory is not None:
                memory = memory_decay * v.abs() + (1 - memory_decay) * memory
        trace.estimates.append(v)
        x_previous, x = x, x - lr * v  # 16
        trace.iterates.append(x)
    trace.output = x
    return trace


@dataclass
class SparseTraining:
    """Sparse training of one weight in plain lines: x moves where `selected` says, and has state there alone.

    `update` is what a base optimizer does to one entry: SGD with momentum (and Nesterov's form of it), or AdamW. A new
    selection keeps the state of what stays. What enters has momentum 0 and the mean second moment of the others; where
    groups along a dimension are selected, the mean along it. A step is lr over the share that is selected.
    """

    x: Tensor
    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] | None = None  # given: AdamW
    eps: float = 1e-8
    weight_decay: float = 0.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        self.steps = 0
        self.selected = torch.zeros_like(self.x, dtype=torch.bool)
        self.first, self.second = torch.zeros_like(self.x), torch.zeros_like(self.x)

    def select(self, selected: Tensor) -> None:
        stays = selected & self.selected
        count = self.selected.sum(self.dimension, keepdim=True).clamp(min=1)
        mean = self.second.sum(self.dimension, keepdim=True) / count  # it is 0 elsewhere
        self.first = torch.where(stays, self.first, 0.0)
        self.second = torch.where(stays, self.second, torch.where(selected, mean, 0.0))
        self.selected = selected

    def update(self, gradient: Tensor) -> None:
        self.steps += 1
        lr = self.lr * self.x.numel() / int(self.selected.sum())
        if self.betas is None:
            gradient = gradient + self.weight_decay * self.x
            self.first = gradient if self.steps == 1 else self.momentum * self.first + gradient
            move = gradient + self.momentum * self.first if self.nesterov else self.first
            new = self.x - lr * (move if self.momentum else gradient)
        else:
            beta1, beta2 = self.betas
            self.first = beta1 * self.first + (1 - beta1) * gradient
            self.second = beta2 * self.second + (1 - beta2) * gradient**2
            first = self.first / (1 - beta1**self.steps)
            second = self.second / (1 - beta2**self.steps)
            new = (1 - lr * self.weight_decay) * self.x - lr * first / (second.sqrt() + self.eps)
        self.x = torch.where(self.selected, new, self.x)
        self.first = torch.where(self.selected, self.first, 0.0)
        self.second = torch.where(self.selected, self.second, 0.0)
