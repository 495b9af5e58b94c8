"""Run by test_triton.py with TRITON_INTERPRET=1. The interpreter is slow, so everything here is small."""

from __future__ import annotations

import math
import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from typing import Any

import added_estimator
import entry_cases
import permutation
import pytest
import torch
from cases import METHODS, mlp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sparse_oracle import follows_the_oracle
from torch import Tensor
from updates import update_of

pytest.importorskip("triton", reason="needs triton")

import interpreted

from spidersilk import reference
from spidersilk.kernels.interface import Flag
from spidersilk.kernels.plain import PLAIN, top_indices
from spidersilk.kernels.triton import entries, plan, vectors
from spidersilk.kernels.triton.backend import TritonKernels
from spidersilk.layers import linear
from spidersilk.operator.random_stream import Stream

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


interpreted.prepare()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles at small sizes."""
    selecting = {"TILE": 256, "PROGRAMS": 2, "BITS": 16, "SAMPLES": (32, 32), "LARGE": (8, 64, 64)}
    updating = {"ADVANCE_TILE": 128, "ADVANCE_PROGRAMS": 2, "MOVE_TILE": 64, "BLOCK": 64}
    for module, sizes in ((plan, selecting), (vectors, updating), (entries, {"TILE": 64})):
        for name, value in sizes.items():
            monkeypatch.setattr(module, name, value)


def inputs(name: str, d: int, dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(3)
    tiny = torch.finfo(dtype).tiny
    return {
        "random": torch.randn(d, generator=g),
        "tied": torch.randint(-2, 3, (d,), generator=g).float(),
        "zero": torch.zeros(d),
        "equal": torch.full((d,), -1.5),
        "denormal": torch.randint(0, 40, (d,), generator=g).to(dtype) * (tiny * torch.finfo(dtype).eps),
        "wide": torch.randn(d, generator=g).to(dtype) * (10.0 ** torch.randint(-30, 30, (d,), generator=g)).to(dtype),
        "few": torch.zeros(d).index_fill_(0, torch.randperm(d, generator=g)[: d // 50], 7.0),
        "largest": (torch.rand(d, generator=g).to(dtype) - 0.5).sign() * torch.finfo(dtype).max,
        "steps": torch.cat([torch.rand(d // 16, generator=g) + 5, torch.rand(d - d // 16, generator=g) / 9]),
    }[name].to(dtype)


def check(memory: Tensor, k1: int, k2: int, seed: int = 5) -> tuple[Tensor, Tensor]:
    counter = plan.make_counter(seed, 0, "cpu")
    top, random = plan.select(memory, k1, k2, counter)
    assert top.tolist() == top_indices(memory.abs(), k1).tolist()
    assert random.dtype == torch.int64
    assert random.numel() == k2
    assert counter.tolist() == [seed, int(k2 > 0)]
    rest = torch.ones(memory.numel(), dtype=torch.bool).index_fill_(0, top, False).nonzero().squeeze(1)
    assert random.tolist() == permutation.drawn(seed, torch.tensor([0]), rest, k2)[0].tolist()
    return top, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["random", "tied", "zero", "equal", "denormal", "wide", "few", "largest", "steps"])
def test_selects_as_torch_does(name: str, dtype: torch.dtype) -> None:
    check(inputs(name, 700, dtype), 35, 40)


@pytest.mark.parametrize(("k1", "k2"), [(0, 50), (50, 0), (600, 0), (0, 600), (1, 599), (599, 1), (300, 300)])
def test_any_counts(k1: int, k2: int) -> None:
    check(inputs("random", 600, torch.float32), k1, k2)
    check(inputs("tied", 600, torch.float32), k1, k2)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-149, 3e38, 1.0 + 2**-23, -7.5]), min_size=1), st.data())
def test_on_any_input(entries: list[float], data: st.DataObject) -> None:
    memory = torch.tensor(entries, dtype=data.draw(st.sampled_from(DTYPES)))
    k1 = data.draw(st.integers(0, len(entries)))
    check(memory, k1, data.draw(st.integers(0, len(entries) - k1)), data.draw(st.integers(0, 2**63 - 1)))


@pytest.mark.parametrize("d", [1, 2, 5, 255, 256, 257, 512])
def test_any_size(d: int) -> None:
    check(inputs("random", d, torch.float32), d // 2, d - d // 2)
    check(inputs("tied", d, torch.bfloat16), 1, 0)


@pytest.mark.parametrize("large", [(8, 64, 64), (8, 512, 512)])
def test_wrong_guesses_cost_passes_only(monkeypatch: pytest.MonkeyPatch, large: tuple[int, int, int]) -> None:
    """Bounds from the wrong end of the samples: the threshold is above both, or below both."""
    monkeypatch.setattr(plan, "LARGE", large)
    cases = zip(DTYPES * 2, ((28, 30), (0, 1), (-1, 99), (15, 16), (0, 31), (29, 30)), strict=True)
    for number, (dtype, ranks) in enumerate(cases):
        monkeypatch.setattr(plan, "_ranks", lambda sample, *_, r=ranks: tuple(x * sample // 32 for x in r))
        plan._plan.cache_clear()
        check(*((inputs("random", 600, dtype), 100, 5) if number % 2 else (inputs("tied", 600, dtype), 400, 5)))
    plan._plan.cache_clear()


def test_a_guess_that_leaves_a_single_key_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower bound is the smallest positive number; the many zeros below it must be counted."""
    memory = torch.zeros(600)
    memory[5::20] = 2.0**-149
    memory[::6] = 1.0
    monkeypatch.setattr(plan, "LARGE", (8, 512, 512))
    for rank in (7, 8, 9):  # one of them is that of a smallest number in the sample
        monkeypatch.setattr(plan, "_ranks", lambda sample, *_, r=rank: (0, r * sample // 32))
        plan._plan.cache_clear()
        check(memory, 400, 50)
    plan._plan.cache_clear()


def test_half_precision_and_nothing_to_select() -> None:
    check(inputs("random", 300, torch.float16), 15, 20)
    check(inputs("denormal", 300, torch.float16), 15, 20)
    top, random = plan.select(torch.empty(0), 0, 0, plan.make_counter(1, 0, "cpu"))
    assert top.numel() == random.numel() == 0


def test_a_loaded_counter_stays_where_it_is() -> None:
    """A captured graph has its address."""
    stream = Stream(5)
    counter = stream.counter(torch.device("cpu"))
    stream.load_state_dict({"seed": 2**63 - 1, "position": 7})
    assert stream.counter(torch.device("cpu")) is counter
    assert counter.tolist() == [2**63 - 1, 7]
    assert stream.position == 7


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_sizes_hold_whatever_chance_does(monkeypatch: pytest.MonkeyPatch, spread: float) -> None:
    """With bounds that the draw is likely to miss: exactly k2 others, ascending."""
    monkeypatch.setattr(plan, "SPREAD", spread)
    for name in ("random", "tied"):
        memory = inputs(name, 700, torch.float32)
        for seed in range(1):
            top, random = plan.select(memory, 35, 300, plan.make_counter(seed, 0, "cpu"))
            assert top.tolist() == top_indices(memory.abs(), 35).tolist()
            assert random.tolist() == sorted(set(random.tolist()) - set(top.tolist()))
            assert len(random) == 300
            assert 0 <= int(random[0]) <= int(random[-1]) < 700


@pytest.mark.statistical
def test_draws_are_uniform() -> None:
    """Every subset of a few equally often, and each coordinate of many: chi-square below 5 standard deviations."""
    calls = 20_000
    for n, k2 in ((2, 1), (5, 2), (7, 3), (9, 4), (17, 2)):
        drawn = permutation.drawn(11, torch.arange(calls), torch.arange(n), k2)
        counts = torch.unique((drawn * n ** torch.arange(k2)).sum(1), return_counts=True)[1].double()
        subsets = math.comb(n, k2)
        assert len(counts) == subsets
        square = float(((counts - calls / subsets) ** 2).sum() * subsets / calls)
        assert abs(square - (subsets - 1)) < 5 * math.sqrt(2 * (subsets - 1))
    drawn = permutation.drawn(12, torch.arange(2000), torch.arange(1000), 50)
    counts, mean = torch.bincount(drawn.reshape(-1), minlength=1000).double(), 2000 * 0.05
    square = float(((counts - mean) ** 2).sum() / (mean * 0.95))
    assert abs(square - 999) < 5 * math.sqrt(2 * 999)


def test_position_decides_the_draw() -> None:
    memory = inputs("random", 600, torch.float32)
    counter = plan.make_counter(2**62 + 1, 2**40, "cpu")
    first = plan.select(memory, 30, 60, counter)[1]
    second = plan.select(memory, 30, 60, counter)[1]
    again = plan.select(memory, 30, 60, plan.make_counter(2**62 + 1, 2**40, "cpu"))[1]
    other = plan.select(memory, 30, 60, plan.make_counter(2**62 + 2, 2**40, "cpu"))[1]
    assert first.tolist() == again.tolist()
    assert len({tuple(x.tolist()) for x in (first, second, other)}) == 3
    assert counter.tolist() == [2**62 + 1, 2**40 + 2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["recursive", "anchored", "refresh"])
@pytest.mark.parametrize("many_scales", [False, True])
def test_advance(form: str, dtype: torch.dtype, many_scales: bool) -> None:
    g, d, k1, k2, decay = torch.Generator().manual_seed(0), 600, 40, 50, 0.3
    v, v_anchor = torch.randn(d, generator=g).to(dtype), torch.randn(d, generator=g).to(dtype)
    memory, values = torch.rand(d, generator=g).to(dtype), torch.randn(k1 + k2, generator=g).to(dtype)
    memory[::7] = 0
    order = torch.randperm(d, generator=g)
    top, random = order[:k1].sort().values, order[k1 : k1 + k2].sort().values
    scale = torch.rand(k2, generator=g, dtype=torch.float64) * 9 if many_scales else (d - k1) / k2
    chosen, weights = torch.cat([top, random]), torch.ones(k1 + k2, dtype=torch.float64)
    weights[k1:] = scale
    expected = v.double().clone()
    if form == "recursive":
        expected[chosen] += weights * values.double()
    elif form == "refresh":
        expected[chosen] = v_anchor.double()[chosen] + values.double()
    else:
        expected = v_anchor.double().clone()
        expected[chosen] += weights * values.double()
    expected_memory = decay * expected.to(dtype).double().abs() + (1 - decay) * memory.double()
    flag = torch.zeros(1, dtype=torch.int64)
    vectors.advance(v, v_anchor, memory, top, random, values, scale, decay, form, flag, 1 << 32)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(v.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(memory.double(), expected_memory, rtol=tolerance, atol=tolerance)
    assert not bool(torch.signbit(memory).any())
    assert flag.item() == 0


def test_all_selected_is_dense_bit_for_bit() -> None:
    g, d = torch.Generator().manual_seed(1), 300
    everything, nothing = torch.arange(d), torch.empty(0, dtype=torch.int64)
    for dtype in (torch.float32, torch.float64):  # the interpreter cuts off where it should round to bfloat16
        v, v_anchor, values = (torch.randn(d, generator=g).to(dtype) for _ in range(3))
        for form, expected in (("recursive", v + values), ("anchored", v_anchor + values)):
            out, flag = v.clone(), torch.zeros(1, dtype=torch.int64)
            vectors.advance(out, v_anchor, v.abs(), everything, nothing, values, 1.0, 0.5, form, flag, 1 << 32)
            assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_move_stops_at_the_first_bad_step(dtype: torch.dtype) -> None:
    g, sizes = torch.Generator().manual_seed(0), [3, 300, 1, 256, 40]
    d = sum(sizes)
    x, v = torch.randn(d, generator=g).to(dtype), torch.randn(d, generator=g).to(dtype)
    tensors, pieces = [piece.clone() for piece in x.split(sizes)], vectors.FlatTensors(sizes, "cpu")
    gradient, flag = torch.zeros(d, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    vectors.move(pieces, pieces.table(tensors), gradient, v, 0.1, flag)
    moved = torch.cat(tensors)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(moved, x - 0.1 * v, rtol=tolerance, atol=tolerance)
    assert torch.equal(gradient, v)
    top = torch.tensor([5])
    none = torch.empty(0, dtype=torch.int64)
    for step, value in ((7, math.nan), (8, math.inf), (9, 0.0)):
        values = torch.tensor([value], dtype=dtype)
        mark = 2**62 - step
        vectors.advance(v, None, v.abs(), top, none, values, 1.0, 0.5, "recursive", flag, mark)
        vectors.move(pieces, pieces.table(tensors), gradient, v, 0.1, flag)
        assert 2**62 - flag.item() == 7
        assert torch.equal(torch.cat(tensors), moved)
        assert not bool(gradient.any())


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_gather_and_scatter_over_pieces(count: int) -> None:
    g = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 30, (count,), generator=g).tolist()
    flat, ops = torch.randn(sum(sizes), generator=g), TritonKernels()
    tensors = [piece.clone() for piece in flat.split(sizes)]
    indices = torch.randperm(len(flat), generator=g)[: max(len(flat) // 3, 1)]
    assert torch.equal(ops.gather(tensors, sizes, indices, torch.float32), flat[indices])
    others = [None, *(tensor * 3 for tensor in tensors[1:])]
    expected = flat * 3
    expected[: sizes[0]] = 0
    assert torch.equal(
        ops.gather(others, sizes, indices, torch.float32), PLAIN.gather(others, sizes, indices, torch.float32)
    )
    torch.testing.assert_close(ops.gather(others, sizes, indices, torch.float32), expected[indices])
    values = torch.randn(len(indices), generator=g)
    ops.scatter(tensors, sizes, indices, values)
    assert torch.equal(torch.cat(tensors), flat.index_copy(0, indices, values))
    with pytest.raises(ValueError, match="contiguous"):
        vectors.FlatTensors(sizes, "cpu").table([torch.zeros(size + 1) for size in sizes])


def test_parts_that_do_not_lie_as_they_should() -> None:
    """Channels last, another dtype, a sparse gradient: falls back to the plain formulas."""
    g, ops = torch.Generator().manual_seed(0), TritonKernels()
    image = torch.randn(2, 3, 4, 4, generator=g).to(memory_format=torch.channels_last)
    table = torch.randn(5, 2, generator=g)
    sizes, indices = [96, 10], torch.tensor([1, 40, 95, 97, 105])
    held = [image, table.to_sparse()]
    expected = torch.cat([image.reshape(-1), table.reshape(-1)])[indices]
    assert torch.equal(ops.gather(held, sizes, indices, torch.float32), expected)
    assert torch.equal(ops.gather([image.double(), table.double()], sizes, indices, torch.float32), expected.double())
    ops.scatter([image, table], sizes, indices, torch.arange(5.0))
    assert torch.cat([image.reshape(-1), table.reshape(-1)])[indices].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["sparse-spiderboost", "sparse-svrg", "sparse-svrg, refresh"])
def test_trajectory_is_that_of_the_plain_formulas(name: str) -> None:
    """The steps of an optimizer with this backend, its selections replayed through the reference."""
    problem, method, lr = mlp(), METHODS[name], 0.05
    x0 = problem.flat_x()
    optimizer = method.make(
        problem.model.parameters(), lr, backend="triton", generator=torch.Generator().manual_seed(4)
    )
    g = torch.Generator().manual_seed(5)
    batches = [torch.randperm(60, generator=g)[: 20 if t % 4 == 0 else 5] for t in range(8)]
    iterates, selections = [], []
    for t, batch in enumerate(batches):
        optimizer.step(problem.closure(optimizer, batch), anchor=t % 4 == 0, samples=len(batch))
        iterates.append(problem.flat_x())
        if optimizer.selection is not None and optimizer.selection is not (selections or [None])[-1]:
            selections.append(optimizer.selection)
    assert optimizer._stream.position == len(selections) == 6
    trace = reference.algorithm_1(
        problem.flat_gradient,
        x0,
        (b for t, b in enumerate(batches) if t % 4 == 0),
        (b for t, b in enumerate(batches) if t % 4),
        lr=lr, inner_steps=4, loops=2, k1=3, k2=2, replay=iter(selections), **method.options,
    )  # fmt: skip
    for got, want in zip(iterates, trace.iterates, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


def test_an_estimator_from_outside_the_library() -> None:
    added_estimator.check("triton")


@pytest.mark.parametrize("form", ["recursive", "anchored", "refresh"])
def test_one_update_moves_all(form: str) -> None:
    """v, M and x by one call, as the plain formulas have them; a value that is not finite leaves x and says so."""
    g, d, sizes = torch.Generator().manual_seed(0), 600, [3, 397, 200]
    top, random = torch.arange(0, 40), torch.arange(100, 150)
    for bad in (False, True):
        v, anchor, memory = (torch.randn(d, generator=g, dtype=torch.float64) for _ in range(3))
        values = torch.randn(90, generator=g, dtype=torch.float64)
        x = [part.clone() for part in torch.randn(d, generator=g, dtype=torch.float64).split(sizes)]
        start = {"recursive": v, "refresh": v, "anchored": anchor}[form].clone()
        weights = torch.cat([torch.ones(40), torch.full((50,), 1.0 if form == "refresh" else 3.0)]).double()
        chosen = torch.cat([top, random])
        new = start.clone()
        new[chosen] = (anchor if form == "refresh" else start)[chosen] + weights * values
        if bad:
            values[7] = math.inf
        given = update_of(
            form, v, anchor, memory.abs(), top, random, values, 1.0 if form == "refresh" else 3.0, 0.3, x, 0.1
        )
        before = torch.cat(x)
        outcome = TritonKernels().advance(given)
        assert outcome.finite is not bad
        if bad:
            assert torch.equal(torch.cat(x), before)
            continue
        torch.testing.assert_close(v, new, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(given.memory, 0.3 * new.abs() + 0.7 * memory.abs(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(torch.cat(x), before - 0.1 * new, rtol=1e-12, atol=1e-12)
        assert outcome.gradients is not None
        assert torch.equal(torch.cat(outcome.gradients), v)
        flag = Flag(torch.zeros(1, dtype=torch.int64), 1 << 40)
        uneven = update_of(form, v, anchor, memory.abs(), top, random, values, 3.0, 0.3, x, [0.1, 0.2, 0.1], flag)
        assert TritonKernels().advance(uneven) == (True, None, None)  # the caller moves x


@pytest.mark.parametrize("dtype", entry_cases.DTYPES)
@pytest.mark.parametrize(("size", "k"), entry_cases.SIZES)
def test_entries_are_taken_and_carried(dtype: torch.dtype, size: int, k: int) -> None:
    kernels = TritonKernels()
    entry_cases.check_take(kernels, "cpu", dtype, size, k)
    entry_cases.check_carry(kernels, "cpu", entry_cases.master_of(dtype), size, k)
    entry_cases.check_groups(kernels, "cpu", dtype)


@pytest.mark.parametrize("shape", [(17, 130), (3, 20, 40), (130, 300)])
def test_columns_of_an_input(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, where a linear layer's rule reads the columns that it keeps by these kernels."""
    monkeypatch.setattr(linear, "_kernels_for", lambda _: TritonKernels())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for k in (0, 1, shape[-1] // 3, shape[-1]):
        indices = entry_cases.some(shape[-1], k, "cpu")
        assert torch.equal(linear.columns_of(x, indices), x[..., indices.long()])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64]
)  # the interpreter rounds 1.11111111b wrongly to bfloat16
def test_masters_are_refreshed_and_written_through(dtype: torch.dtype) -> None:
    entry_cases.check_through(TritonKernels(), "cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "options"), entry_cases.OPTIMIZERS)
def test_a_step_at_once(kind: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype) -> None:
    entry_cases.check_step(TritonKernels(), "cpu", dtype, kind, options)


@pytest.mark.parametrize("groups", [None, "columns"])
@pytest.mark.parametrize(("k1", "k2"), [(0.0, 0.2), (0.1, 0.1)])
@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_sparse_training_follows_plain_lines(base: str, k1: float, k2: float, groups: Any) -> None:
    follows_the_oracle(base, k1, k2, "triton", steps=20, groups=groups)
