"""Selection of whole rows: which rows, Lemma 1 on rows; and training with rows or columns."""

from __future__ import annotations

import io
import math
from itertools import combinations, product

import pytest
import torch
from cases import METHODS, SPARSE
from group_cases import (
    INNER,
    LOOPS,
    PROBLEMS,
    batches,
    conv,
    dimensions_of,
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
from spidersilk import reference
from spidersilk.kernels.plain import PLAIN
from spidersilk.operator.groups import GroupLayout
from spidersilk.operator.random_stream import Stream
from spidersilk.operator.selection import Selection, Selector
from spidersilk.variance.measures import Meter
from spidersilk.variance.method import Method

CPU = torch.device("cpu")
SHAPES = [(3, 2), (3,), (4, 1, 2), ()]  # rows of length 2: 3 + 4, of length 1: 3 + 1


@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6),
    share=st.sampled_from([(0.1, 0.1), (0.0, 0.3), (0.5, 0.0), (0.3, 0.7), (1.0, 0.0), (0.01, 0.5)]),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
def test_whole_rows_are_selected_by_the_sum_of_memory(
    shapes: list[tuple[int, ...]], share: tuple[float, float], seed: int, dtype: torch.dtype
) -> None:
    k1, k2 = share
    d = sum(math.prod(shape) for shape in shapes)
    memory = torch.randint(-3, 4, (d,), generator=seeded(seed)).to(dtype)  # ties, exact sums
    selection = silk.select(memory, k1, k2, shapes=shapes, generator=seeded(seed))
    top, scale_of = [], {}
    for rows in groups_by_length(shapes, [0] * len(shapes)):
        g1, g2 = shares(k1, k2, len(rows))
        chosen = top_groups(memory.double(), rows, g1)
        top += [i for r in chosen for i in rows[r]]
        drawn = [r for r, row in enumerate(rows) if row[0] in selection.random.tolist()]
        assert len(drawn) == g2
        assert not set(drawn) & set(chosen)
        scale_of |= {i: (len(rows) - g1) / g2 for r in drawn for i in rows[r]}
    assert selection.top.tolist() == sorted(top)
    assert selection.random.tolist() == sorted(scale_of)
    scales = torch.as_tensor(selection.scale, dtype=torch.float64).expand(selection.k2)
    assert scales.tolist() == [scale_of[i] for i in sorted(scale_of)]
    assert selection.top.dtype == selection.random.dtype == torch.int64
    assert silk.RTop(k1, k2, groups="rows").density(shapes) == selection.k / d
    # The rows of each tensor, as a sparse back-propagation would ask for them.
    assert selection.rows is not None
    again = []
    for shape, own, at in zip(shapes, selection.rows, offsets(shapes), strict=True):
        length = math.prod(shape[1:]) if len(shape) > 1 else 1
        assert own.tolist() == sorted(set(own.tolist()))
        again += [at + int(row) * length + i for row in own for i in range(length)]
    assert again == sorted(selection.indices.tolist())


def offsets(shapes: list[tuple[int, ...]]) -> list[int]:
    return [sum(math.prod(shape) for shape in shapes[:i]) for i in range(len(shapes))]


@pytest.mark.parametrize(("k1", "k2"), [(0.2, 0.2), (0.0, 0.4), (0.3, 0.1), (0.5, 0.5)])
def test_lemma_1_on_rows_by_enumeration(k1: float, k2: float) -> None:
    """Over all equally likely draws the mean is y and the summed variance that of the formula, to rounding."""
    memory, y = torch.randn(2, 18, generator=seeded(1), dtype=torch.float64)
    outcomes = []
    for rows in groups_by_length(SHAPES, [0] * len(SHAPES)):
        g1, g2 = shares(k1, k2, len(rows))
        top = top_groups(memory, rows, g1)
        rest = [r for r in range(len(rows)) if r not in top]
        own = []
        for drawn in combinations(rest, g2):
            out = torch.zeros_like(y)
            for r in top:
                out[rows[r]] = y[rows[r]]
            for r in drawn:
                out[rows[r]] = y[rows[r]] * (len(rest) / g2)
            own.append(out)
        outcomes.append(own)
    every = torch.stack([sum(parts) for parts in product(*outcomes)])  # type: ignore[misc]
    torch.testing.assert_close(every.mean(0), y, rtol=0, atol=1e-13)
    variance = float((every - y).square().sum(1).mean())
    assert silk.rtop_variance(memory, y, k1, k2, shapes=SHAPES) == pytest.approx(variance, rel=1e-12, abs=1e-12)
    possible = {tuple(out.tolist()) for out in every}
    seen = {
        tuple(silk.rtop(memory, y, k1, k2, shapes=SHAPES, generator=seeded(s)).tolist())
        for s in range(16 * len(possible))
    }
    assert seen == possible


@pytest.mark.statistical
def test_lemma_1_on_rows_and_that_it_needs_the_scale() -> None:
    """Mean and variance within 4 standard errors over 4000 draws; without the scale the mean is far outside."""
    shapes = [(9, 4), (9,), (5, 2, 2), (6, 1)]
    g = seeded(11)
    memory, y = torch.randn(2, 71, generator=g, dtype=torch.float64)
    selections = [silk.select(memory, 0.2, 0.2, shapes=shapes, generator=g) for _ in range(4000)]
    expected = silk.rtop_variance(memory, y, 0.2, 0.2, shapes=shapes)

    def against_lemma_1(sample: Tensor) -> tuple[Tensor, float]:
        """Which coordinates have the right mean; how many standard errors the variance is off."""
        error = sample.std(0) / math.sqrt(len(sample))
        squared = (sample - y).square().sum(1)
        gap = abs(float(squared.mean()) - expected) * math.sqrt(len(squared)) / float(squared.std())
        return (sample.mean(0) - y).abs() <= 4 * error + 1e-12, gap

    within, gap = against_lemma_1(torch.stack([s.apply(y) for s in selections]))
    assert bool(within.all())
    assert gap <= 4
    plain = [Selection(s.top, s.random, 1.0, s.d).apply(y) for s in selections]
    within, gap = against_lemma_1(torch.stack(plain))
    assert int((~within).sum()) > 30
    assert gap > 20


def test_classes_are_of_equal_length_over_all_tensors_or_within_each() -> None:
    together = GroupLayout(SHAPES, CPU)
    assert [(c.length, c.count) for c in together.classes] == [(2, 7), (1, 4)]
    apart = GroupLayout(SHAPES, CPU, per_tensor=True)
    assert [(c.length, c.count) for c in apart.classes] == [(2, 3), (1, 3), (2, 4), (1, 1)]
    memory = torch.rand(18, dtype=torch.float64)
    sparsity = silk.RTop(0.3, 0.3, per_tensor=True, groups="rows")
    (selection,) = Selector(sparsity, [(SHAPES, CPU)], Stream(1), PLAIN).draw([memory])
    assert selection.rows is not None
    assert [len(own) for own in selection.rows] == [2, 2, 4, 1]


def test_a_saved_selection_and_a_part_of_one_know_their_rows() -> None:
    selection = silk.select(torch.rand(18), 0.3, 0.3, shapes=SHAPES, generator=seeded(2))
    file = io.BytesIO()
    torch.save(selection.state_dict(), file)
    file.seek(0)
    loaded = Selection.from_state_dict(torch.load(file, weights_only=True), CPU)
    assert loaded.rows is not None
    assert selection.rows is not None
    assert all(map(torch.equal, loaded.rows, selection.rows))
    part = selection.between(9, 18, CPU)
    assert part.rows is not None
    assert all(map(torch.equal, part.rows, selection.rows[2:]))
    assert silk.select(torch.rand(18), 0.3, 0.3).rows is None


# Training, by rows and by columns.

# Every method on both backends, each time on another problem.
TRAJECTORIES = [
    (name, list(PROBLEMS)[(i + j) % len(PROBLEMS)], backend)
    for i, name in enumerate(SPARSE)
    for j, backend in enumerate(("torch", "numba"))
]


@pytest.mark.parametrize("groups", ["rows", "columns"])
@pytest.mark.parametrize(("name", "problem_name", "backend"), TRAJECTORIES)
def test_trajectory_equals_the_reference(name: str, problem_name: str, backend: str, groups: str) -> None:
    """Replays the same selections; each must hold the top groups of the reference's M."""
    problem = PROBLEMS[problem_name]()
    x0, method = problem.flat_x(), METHODS[name]
    options = {"k1": 0.15, "k2": 0.15, "groups": groups, "backend": backend, "generator": seeded(4)}
    optimizer = method.make(problem.model.parameters(), problem.lr, **options)
    selections = train(problem, optimizer)
    large, small = batches(problem)
    trace = reference.algorithm_1(
        problem.flat_gradient, x0, iter(large), iter(small), lr=problem.lr, inner_steps=INNER, loops=LOOPS,
        k1=selections[0].k1, k2=selections[0].k2, replay=iter(selections), **method.options,
    )  # fmt: skip
    torch.testing.assert_close(problem.flat_x(), trace.output, rtol=0, atol=1e-11)
    assert optimizer.gradient_queries == pytest.approx(trace.queries)
    classes = groups_by_length(shapes_of(problem), dimensions_of(problem_name, groups))
    for selection, memory in zip(trace.selections, trace.selected_from, strict=True):
        expected = [i for own in classes for r in top_groups(memory, own, -(-len(own) * 3 // 20)) for i in own[r]]
        assert selection.top.tolist() == sorted(expected)


@pytest.mark.parametrize("name", SPARSE)
def test_all_groups_are_the_same_as_all_coordinates(name: str) -> None:
    ends = []
    for groups in ("rows", "columns", None):
        problem = conv()
        options = {"k1": 0.5, "k2": 0.5, "groups": groups, "generator": seeded(4)}
        train(problem, METHODS[name].make(problem.model.parameters(), problem.lr, **options))
        ends.append(problem.flat_x())
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(ends[1], ends[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", ["rows", "columns"])
@pytest.mark.parametrize("name", SPARSE)
def test_stopped_and_gone_on_bit_for_bit(name: str, groups: str) -> None:
    options = {"k1": 0.2, "k2": 0.2, "groups": groups}
    whole = conv()
    train(whole, METHODS[name].make(whole.model.parameters(), whole.lr, generator=seeded(4), **options))
    first, second = conv(), conv()
    before = METHODS[name].make(first.model.parameters(), first.lr, generator=seeded(4), **options)
    train(first, before, 0, 15)
    file = io.BytesIO()
    torch.save((first.model.state_dict(), before.state_dict()), file)
    file.seek(0)
    model, state = torch.load(file, weights_only=True)
    second.model.load_state_dict(model)
    after = METHODS[name].make(second.model.parameters(), second.lr, **options)
    after.load_state_dict(state)
    train(second, after, 15)
    assert torch.equal(second.flat_x(), whole.flat_x())
    other = METHODS[name].make(second.model.parameters(), second.lr, k1=0.2, k2=0.2)
    with pytest.raises(ValueError, match=f"'groups': '{groups}'"):
        other.load_state_dict(state)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_rows_of_two_dtypes(per_tensor: bool) -> None:
    """One draw over both dtypes; each part holds the rows of its own parameters."""
    a, b = nn.Parameter(torch.ones(10, 4)), nn.Parameter(torch.ones(8, 4, dtype=torch.bfloat16))
    c = nn.Parameter(torch.ones(5))
    optimizer = silk.SparseSVRG([a, b, c], 0.05, k1=0.2, k2=0.2, groups="rows", per_tensor=per_tensor)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = a.square().sum() + b.float().square().sum() + c.square().sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure, anchor=t % 5 == 0, samples=1)) for t in range(20)]
    assert losses[-1] < 0.5 * losses[0]
    parts = optimizer.selection
    assert isinstance(parts, list)
    rows = [own for part in parts for own in part.rows or ()]
    counts = {tuple(p.shape): len(own) for p, own in zip([a, c, b], rows, strict=True)}
    if per_tensor:
        assert counts == {(10, 4): 4, (5,): 2, (8, 4): 4}
    else:
        assert counts[10, 4] + counts[8, 4] == 4 + 4  # 18 rows of length 4
        assert counts[5,] == 2
    for part, params in zip(parts, ([a, c], [b]), strict=True):
        assert part.d == sum(p.numel() for p in params)
        assert part.k == sum(len(own) * p[0].numel() for own, p in zip(part.rows or (), params, strict=True))


@pytest.mark.statistical
def test_measures_know_of_rows() -> None:
    """The mean of the estimates of rtop's variance is that variance, within 4 standard errors."""
    shapes = [(9, 4), (9,), (5, 2, 2), (6, 1)]
    g = seeded(12)
    memory, y = torch.randn(2, 71, generator=g, dtype=torch.float64)
    meter, told = Meter(Method("anchor", sparsity=silk.RTop(0.2, 0.2, groups="rows"))), []
    for _ in range(1000):
        drawn = silk.select(memory, 0.2, 0.2, shapes=shapes, generator=g)
        told.append(meter.measure((0, 0), [drawn.gather(y)], [drawn], [y], 0.0, [memory], None).rtop_variance)
    expected = silk.rtop_variance(memory, y, 0.2, 0.2, shapes=shapes)
    sample = torch.tensor(told, dtype=torch.float64)
    assert abs(float(sample.mean()) - expected) <= 4 * float(sample.std()) / math.sqrt(len(told))


@pytest.mark.parametrize("backend", ["torch", "numba"])
def test_sums_of_a_finite_memory_may_overflow(backend: str) -> None:
    """The sum of M over a row is cut at the largest float: an M that is finite is never refused."""
    model = nn.Linear(64, 8, bias=False)
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    sparsity = silk.RTop(0.3, 0.3, groups="rows")
    optimizer = silk.VarianceReduced(base, "previous", sparsity=sparsity, inner_steps=5, backend=backend)

    def closure() -> Tensor:
        loss = 1e37 * model.weight.sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure, samples=1)
    assert optimizer.steps == 3
