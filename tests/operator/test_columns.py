"""Selection of whole columns: which coordinates, Lemma 1 by enumeration, and along which dimension they are counted."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

import pytest
import torch
from group_cases import (
    COLUMNS,
    INNER,
    LOOPS,
    PROBLEMS,
    Shape,
    batches,
    conv,
    groups_by_length,
    seeded,
    shapes_of,
    shares,
    top_groups,
    train,
)
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import spidersilk as silk
from spidersilk.kernels import backends
from spidersilk.kernels.plain import top_indices
from spidersilk.operator.dimensions import group_dimension, group_dimensions
from spidersilk.operator.groups import GroupLayout
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selection, Selector
from spidersilk.variance.rank_facts import facts_of

CPU = torch.device("cpu")
KERNELS = {name: backends.find(name, [(CPU, torch.float64)]) for name in ("torch", "numba")}


def entries(shapes: list[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[list[Shape], list[int]]:
    """Shapes, some of size 0 or with one column, and a dimension for each."""
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), max_size=5))
    shapes.append(draw(st.lists(st.integers(1, 4), max_size=4).map(tuple)))  # one has entries
    return shapes, [draw(st.integers(0, max(len(shape) - 1, 0))) for shape in shapes]


def check_against_naive(
    selection: Selection, memory: Tensor, classes: list[list[list[int]]], share: tuple[float, float]
) -> None:
    """The top groups of a plain loop, others drawn whole, each with the scale of its class; all ascending."""
    top, scale_of = [], {}
    for groups in classes:
        g1, g2 = shares(*share, len(groups))
        chosen = top_groups(memory, groups, g1)
        top += [i for j in chosen for i in groups[j]]
        drawn = [j for j, group in enumerate(groups) if group[0] in selection.random.tolist()]
        assert len(drawn) == g2
        assert not set(drawn) & set(chosen)
        scale_of |= {i: (len(groups) - g1) / g2 for j in drawn for i in groups[j]}
    assert selection.top.tolist() == sorted(top)
    assert selection.random.tolist() == sorted(scale_of)
    scales = torch.as_tensor(selection.scale, dtype=torch.float64).expand(selection.k2)
    assert scales.tolist() == [scale_of[i] for i in sorted(scale_of)]
    assert selection.top.dtype == selection.random.dtype == torch.int64
    assert selection.rows is None


@given(
    tensors=tensors(),
    share=st.sampled_from([(0.1, 0.1), (0.0, 0.3), (0.5, 0.0), (0.3, 0.7), (1.0, 0.0), (0.01, 0.5)]),
    per_tensor=st.booleans(),
    backend=st.sampled_from(list(KERNELS)),
    seed=st.integers(0, 2**31),
)
def test_selection_equals_a_plain_loop(
    tensors: tuple[list[Shape], list[int]],
    share: tuple[float, float],
    per_tensor: bool,
    backend: str,
    seed: int,
) -> None:
    shapes, dimensions = tensors
    memory = torch.randint(-3, 4, (entries(shapes),), generator=seeded(seed)).double()  # ties, exact sums
    sparsity = silk.RTop(*share, per_tensor=per_tensor, groups="columns")
    selector = Selector(sparsity, [(shapes, CPU)], Stream(seed), KERNELS[backend], dimensions)
    (selection,) = selector.draw([memory])
    check_against_naive(selection, memory, groups_by_length(shapes, dimensions, per_tensor), share)
    assert sparsity.density(shapes, dimensions) == selection.k / memory.numel()


@given(
    tensors=tensors(),
    share=st.sampled_from([(0.1, 0.1), (0.4, 0.3), (1.0, 0.0)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**31),
)
def test_select_counts_columns_along_the_second_dimension(
    tensors: tuple[list[Shape], list[int]], share: tuple[float, float], dtype: torch.dtype, seed: int
) -> None:
    shapes, _ = tensors
    memory = torch.randint(-3, 4, (entries(shapes),), generator=seeded(seed)).to(dtype)
    selection = silk.select(memory, *share, shapes=shapes, groups="columns", generator=seeded(seed))
    check_against_naive(selection, memory.double(), groups_by_length(shapes, [1] * len(shapes)), share)
    assert silk.RTop(*share, groups="columns").density(shapes) == selection.k / memory.numel()


def test_columns_are_rows_of_the_transposed_matrix() -> None:
    """By the scores, the draw and the scale; only the places differ."""
    memory = torch.rand(5, 7, generator=seeded(1), dtype=torch.float64)
    place = torch.arange(35).reshape(5, 7).t().reshape(-1)  # of each entry of the transposed matrix
    columns = silk.select(memory.reshape(-1), 0.3, 0.3, shapes=[(5, 7)], groups="columns", generator=seeded(2))
    rows = silk.select(memory.t().reshape(-1), 0.3, 0.3, shapes=[(7, 5)], groups="rows", generator=seeded(2))
    assert columns.top.tolist() == sorted(place[rows.top].tolist())
    assert columns.random.tolist() == sorted(place[rows.random].tolist())
    assert columns.scale == rows.scale


# Lemma 1: every possible draw once. All are equally likely.


class Prescribed:
    """Kernels whose random groups are given, one class after the other."""

    def __init__(self, drawn: tuple[tuple[int, ...], ...]):
        self._drawn = iter(drawn)

    def select(self, memory: Tensor, k1: int, k2: int, seed: Any, hint: object = None) -> tuple[Tensor, Tensor]:
        del seed, hint
        top = top_indices(memory, k1)
        rest = [j for j in range(memory.numel()) if j not in top.tolist()]
        random = torch.tensor([rest[j] for j in next(self._drawn)], dtype=torch.int64)
        assert random.numel() == k2
        return top, random


def every_draw(
    layout: GroupLayout, memory: Tensor, share: tuple[float, float]
) -> Iterator[tuple[Tensor, Tensor, float | Tensor, int, Any]]:
    counts = layout.counts(*share)
    choices = [
        list(combinations(range(of_class.count - g1), g2))
        for of_class, (g1, g2) in zip(layout.classes, counts, strict=True)
    ]
    for drawn in product(*choices):
        kernels: Any = Prescribed(drawn)
        yield layout.draw(memory, counts, 0, kernels)


SHAPES: dict[str, list[Shape]] = {
    "a matrix": [(3, 5)],
    "one column": [(4, 1)],
    "two matrices with columns of one length": [(3, 4), (3, 2)],
    "a convolution": [(2, 5, 2, 3)],
    "a convolution and a matrix with columns of one length": [(2, 3, 2, 2), (8, 3)],
    "matrices, a convolution, vectors, a number and nothing": [(2, 4), (4,), (0, 3), (2, 3, 1, 2), (), (4, 3), (2, 0)],
}


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("share", [(0.2, 0.2), (0.0, 0.4), (0.3, 0.1), (0.5, 0.5)])
@pytest.mark.parametrize("name", SHAPES)
def test_lemma_1_on_columns_by_enumeration(name: str, share: tuple[float, float], per_tensor: bool) -> None:
    """Each draw is one of columns; over all of them the mean is y and the summed variance that of the formula."""
    shapes = SHAPES[name]
    memory, y = torch.randn(2, entries(shapes), generator=seeded(1), dtype=torch.float64)
    layout = GroupLayout(shapes, CPU, "columns", per_tensor)
    selections = [Selection(*fields) for fields in every_draw(layout, memory, share)]
    classes = groups_by_length(shapes, [1] * len(shapes), per_tensor)
    for selection in selections:
        check_against_naive(selection, memory, classes, share)
    every = torch.stack([selection.apply(y) for selection in selections])
    torch.testing.assert_close(every.mean(0), y, rtol=0, atol=1e-12)
    variance = float((every - y).square().sum(1).mean())
    parts = [slice(0, entries(shapes))]
    of_parts = [shapes]
    if per_tensor:
        ends = [entries(shapes[:i]) for i in range(len(shapes) + 1)]
        parts = [slice(a, b) for a, b in pairwise(ends) if a < b]
        of_parts = [[shape] for shape in shapes if math.prod(shape)]
    formula = sum(
        silk.rtop_variance(memory[part], y[part], *share, shapes=of_part, groups="columns")
        for part, of_part in zip(parts, of_parts, strict=True)
    )
    assert formula == pytest.approx(variance, rel=1e-12, abs=1e-12)


def test_real_draws_are_all_the_possible_ones_and_no_others() -> None:
    shapes, share = SHAPES["a convolution and a matrix with columns of one length"], (0.3, 0.3)
    memory, y = torch.randn(2, entries(shapes), generator=seeded(1), dtype=torch.float64)
    draws = every_draw(GroupLayout(shapes, CPU, "columns"), memory, share)
    possible = {tuple(Selection(*fields).apply(y).tolist()) for fields in draws}
    seen = {
        tuple(silk.rtop(memory, y, *share, shapes=shapes, groups="columns", generator=seeded(s)).tolist())
        for s in range(16 * len(possible))
    }
    assert seen == possible


# Training.


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("problem_name", PROBLEMS)
def test_sparse_svrg_equals_a_loop_with_masked_gradients(problem_name: str, backend: str) -> None:
    """v := v_anchor + weights * (g - g_anchor), the weights 1 on top columns, (G - G1) / G2 on drawn ones, else 0."""
    problem, lr, share = PROBLEMS[problem_name](), 0.05, (0.15, 0.15)
    twin = copy.deepcopy(problem)
    optimizer = silk.SparseSVRG(
        problem.model.parameters(), lr, *share, groups="columns", backend=backend, model=problem.model,
        generator=seeded(4),
    )  # fmt: skip
    selections = iter(train(problem, optimizer))
    classes = groups_by_length(shapes_of(twin), COLUMNS[problem_name])
    (large, small), x = batches(twin), twin.flat_x()
    memory, smalls = torch.zeros(0), iter(small)
    for loop in range(LOOPS):
        v_anchor = v = twin.flat_gradient(x, large[loop])
        x_anchor = x
        memory = memory if loop else v.abs()
        x = x - lr * v
        for _ in range(INNER - 1):
            batch, drawn = next(smalls), next(selections)
            weights = torch.zeros_like(x)
            for groups in classes:
                g1, g2 = shares(*share, len(groups))
                for j in top_groups(memory, groups, g1):
                    weights[groups[j]] = 1.0
                for group in groups:
                    if group[0] in drawn.random.tolist():
                        weights[group] = (len(groups) - g1) / g2
            difference = twin.flat_gradient(x, batch) - twin.flat_gradient(x_anchor, batch)
            v = v_anchor + weights * difference
            memory = 0.5 * v.abs() + 0.5 * memory
            x = x - lr * v
    torch.testing.assert_close(problem.flat_x(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_columns_of_two_dtypes(per_tensor: bool) -> None:
    """One draw over both dtypes; each part consists of columns of its own parameters."""
    a, b = nn.Parameter(torch.ones(4, 10)), nn.Parameter(torch.ones(4, 8, dtype=torch.bfloat16))
    c = nn.Parameter(torch.ones(5))
    optimizer = silk.SparseSVRG([a, b, c], 0.05, k1=0.2, k2=0.2, groups="columns", per_tensor=per_tensor)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = a.square().sum() + b.float().square().sum() + c.square().sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure, anchor=t % 5 == 0, samples=1)) for t in range(20)]
    assert losses[-1] < 0.5 * losses[0]
    parts = optimizer.selection
    assert isinstance(parts, list)
    counts = []
    for part, shapes in zip(parts, ([(4, 10), (5,)], [(4, 8)]), strict=True):
        chosen = set(part.indices.tolist())
        for groups in groups_by_length(shapes, [1] * len(shapes), per_tensor=True):
            whole = [group for group in groups if chosen & set(group)]
            assert all(chosen >= set(group) for group in whole)
            counts.append(len(whole))
    assert counts[1] == 2
    assert (counts[0], counts[2]) == (4, 4) if per_tensor else counts[0] + counts[2] == 4 + 4


# Along which dimension.


def conv1d() -> nn.Module:
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(3, 2)


class Conv1D(nn.Linear):
    """Not that of transformers."""


MODULES: dict[str, tuple[Any, int]] = {
    "Linear": (lambda: nn.Linear(2, 3), 1),
    "a subclass of Linear": (lambda: Conv1D(2, 3), 1),
    "Embedding": (lambda: nn.Embedding(3, 2), 1),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(3, 2), 1),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 1), 1),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2), 1),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), 1),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 1), 0),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2), 0),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2), 0),
    "transformers' Conv1D": (conv1d, 0),
    "any other": (lambda: nn.Bilinear(4, 5, 3), 1),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_module_tells_the_dimension(name: str) -> None:
    make, dimension = MODULES[name]
    module = make()
    assert group_dimension(module, module.weight) == dimension
    if name != "any other":
        assert module.weight.shape[dimension] == 2  # the inputs, or features of a table


def test_unknown_and_tied_weights_and_vectors() -> None:
    free, vector = torch.ones(2, 3), torch.ones(3)
    table, head, norm = nn.Embedding(7, 3), nn.Linear(3, 7, bias=False), nn.LayerNorm(3)
    head.weight = table.weight
    assert group_dimensions([free, vector, table.weight, norm.weight], [head, table, norm]) == [1, 0, 1, 0]
    assert group_dimensions([table.weight], [table, head]) == group_dimensions([table.weight], [head, table]) == [1]


class Language(nn.Module):
    """The outputs of transformers' GPT-2: a table, a Conv1D and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inside, self.head = nn.Embedding(10, 5), conv1d(), nn.Linear(3, 8)
        self.inside.weight = nn.Parameter(torch.randn(5, 3))

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.inside(self.table(words)))


@pytest.mark.parametrize("gives_model", [True, False])
def test_conv1d_is_grouped_along_its_first_dimension(gives_model: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Language()
    given = {"model": model} if gives_model else {}
    optimizer = silk.SparseSVRG(model.parameters(), 0.1, 0.2, 0.2, groups="columns", **given)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.arange(10)).square().mean()
        loss.backward()
        return loss

    for t in range(3):
        optimizer.step(closure, anchor=t == 0)
    chosen = set(optimizer.selection.indices.tolist())  # type: ignore[union-attr]
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [(10, 5), (5, 3), (3,), (8, 3), (8,)]
    # Of lengths 10, 3, 1 and 8: one top and one random one of five, and so on.
    found = [
        sum(chosen >= set(group) for group in groups)
        for groups in groups_by_length(shapes, [1, 0, 0, 1, 0], per_tensor=True)
    ]
    assert found[:2] == [2, 2]
    assert found[2] + found[4] == 6
    assert found[3] == 2
    assert len(chosen) == 2 * 10 + 2 * 3 + 6 + 2 * 8


def test_without_a_module_columns_are_along_the_second_dimension() -> None:
    weight = nn.Parameter(torch.ones(4, 10))
    optimizer = silk.SparseSVRG([weight], 0.1, 0.1, 0.1, groups="columns")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    for t in range(2):
        optimizer.step(closure, anchor=t == 0)
    columns = {i % 10 for i in optimizer.selection.indices.tolist()}  # type: ignore[union-attr]
    assert len(columns) == 2
    assert optimizer.selection.k == 8  # type: ignore[union-attr]


# What is refused.


def saved() -> dict[str, Any]:
    problem = conv()
    optimizer = silk.SparseSVRG(problem.model.parameters(), 0.05, 0.2, 0.2, groups="columns", generator=seeded(4))
    train(problem, optimizer, 0, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


STATES: dict[str, tuple[Any, str]] = {
    "another dimension": (
        lambda state: state["dimensions"].__setitem__(4, 0),
        "columns of parameter 4 along dimension 0, here it is dimension 1: give model=",
    ),
    "no dimensions": (lambda state: state.pop("dimensions"), "no 'dimensions'"),
    "too few": (lambda state: state["dimensions"].pop(), "has 6 entries"),
    "a text": (lambda state: state["dimensions"].__setitem__(0, "rows"), "'rows' and must be"),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_with_other_dimensions_is_refused(name: str) -> None:
    spoil, words = STATES[name]
    state, problem = saved(), conv()
    optimizer = silk.SparseSVRG(problem.model.parameters(), 0.05, 0.2, 0.2, groups="columns", model=problem.model)
    optimizer.load_state_dict(saved())
    spoil(state)
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(state)


def test_ranks_compare_dimensions() -> None:
    """A rank that found no modules would select other coordinates."""
    hashes = []
    for dimensions in ([1, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 1, 1, 0]):
        problem = conv()
        optimizer: Any = silk.SparseSVRG(problem.model.parameters(), 0.05, 0.2, 0.2, groups="columns")
        engine = optimizer._built()
        engine.dimensions = dimensions
        facts = facts_of(engine, optimizer._loop, optimizer._stream, optimizer.param_groups, {}, False)
        hashes.append(next(fact.value for fact in facts if fact.what == "their settings"))
    assert hashes[0] != hashes[1]
