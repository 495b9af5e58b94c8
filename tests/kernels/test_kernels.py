"""The numba kernels against the plain formulas: exact selection, uniform draws, fused updates."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("numba")
from updates import update_of

from spidersilk.kernels.interface import Outcome
from spidersilk.kernels.numba import backend
from spidersilk.kernels.numba.backend import NumbaKernels
from spidersilk.kernels.plain import top_indices

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
OPS = NumbaKernels()
FORMS = list(backend.FORMS)
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-7}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(d: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(d, generator=seeded(seed), dtype=torch.float64).to(dtype)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The number of threads that even small work is split over."""
    monkeypatch.setattr(backend, "PARALLEL_FROM", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


# Selection.


def check_selection(memory: Tensor, k1: int, k2: int, seed: int, histogram: Any = None) -> tuple[Tensor, Tensor]:
    top, random = OPS.select(memory, k1, k2, seed, histogram)
    assert torch.equal(top, top_indices(memory.abs(), k1))
    assert random.dtype == torch.int64
    assert random.numel() == k2
    assert bool((random[1:] > random[:-1]).all())
    assert k2 == 0 or (int(random[0]) >= 0 and int(random[-1]) < memory.numel())
    assert not bool(torch.isin(random, top).any())
    return top, random


def blend(memory: Tensor, v: Tensor, decay: float) -> Any:
    """M := decay |v| + (1 - decay) M by an update that selects nothing; the histogram of M comes back."""
    nothing = torch.empty(0, dtype=torch.int64)
    return OPS.advance(update_of("recursive", v, None, memory, nothing, nothing, v[:0], 1.0, decay)).hint


TINY = 2.0**-149
MEMORIES = {
    "random": lambda d: normal(d, 1, torch.float64),
    "equal": lambda d: torch.full((d,), 0.3, dtype=torch.float64),
    "zero": lambda d: torch.zeros(d, dtype=torch.float64),
    "zeros of both signs": lambda d: torch.zeros(d, dtype=torch.float64).mul_(normal(d, 2, torch.float64)),
    "few values": lambda d: torch.randint(-2, 3, (d,), generator=seeded(3)).double(),
    "mostly zero": lambda d: normal(d, 4, torch.float64) * (torch.rand(d, generator=seeded(5)) < 0.03),
    "denormal": lambda d: torch.randint(-9, 10, (d,), generator=seeded(6)).double() * TINY,
    "one bin": lambda d: 1 + torch.randint(0, 50, (d,), generator=seeded(7)).double() * 2**-23,
    "two bins and ties": lambda d: torch.where(torch.arange(d) % 3 == 0, 1.0, 1.0 - 2**-24).double(),
    "huge range": lambda d: torch.exp2(torch.linspace(-140, 120, d, dtype=torch.float64)),
    "ascending": lambda d: torch.arange(d, dtype=torch.float64),
    "descending": lambda d: -torch.arange(d, 0, -1, dtype=torch.float64),
    "largest": lambda d: torch.full((d,), torch.finfo(torch.bfloat16).max, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MEMORIES)
def test_the_top_is_that_of_the_plain_formulas(name: str, dtype: torch.dtype) -> None:
    for d in (1, 2, 63, 64, 65, 1000, 5003):
        memory = MEMORIES[name](d).to(dtype)
        for k1 in {0, 1, d // 20, d // 2, d - 1, d}:
            for k2 in {0, min(1, d - k1), (d - k1) // 3, max(d - k1 - 1, 0), d - k1}:
                check_selection(memory, k1, k2, seed=d + k1)


ENTRIES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, TINY, -TINY, 3e38, 1.0 + 2**-23]), st.floats(-(2.0**127), 2.0**127, width=32)
)


@settings(deadline=None)
@given(st.lists(ENTRIES, min_size=1, max_size=200), st.data())
def test_the_top_on_any_input(entries: list[float], data: st.DataObject) -> None:
    memory = torch.tensor(entries, dtype=data.draw(st.sampled_from(DTYPES)))
    k1 = data.draw(st.integers(0, len(entries)))
    k2 = data.draw(st.integers(0, len(entries) - k1))
    check_selection(memory, k1, k2, data.draw(st.integers(0, 2**63 - 1)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_histogram_changes_nothing_even_a_wrong_one(dtype: torch.dtype) -> None:
    v, memory = normal(5003, 1, dtype), normal(5003, 2, dtype).abs()
    right = blend(memory, v, 0.5)
    assert int(right.sum()) == 5003
    expected = check_selection(memory, 250, 250, 7)
    for histogram in (right, blend(v.clone(), v * 100, 1.0), right * 0, right[::-1].copy(), right // 2, right * 2):
        for own, other in zip(check_selection(memory, 250, 250, 7, histogram), expected, strict=True):
            assert torch.equal(own, other)


def test_a_seed_decides_the_draw() -> None:
    memory = normal(4000, 1)
    assert torch.equal(OPS.select(memory, 100, 200, 5)[1], OPS.select(memory, 100, 200, 5)[1])
    assert not torch.equal(OPS.select(memory, 100, 200, 5)[1], OPS.select(memory, 100, 200, 6)[1])
    OPS.select(memory, 1, 1, -1)
    with pytest.raises(ValueError, match="together at most d"):
        OPS.select(memory, 4000, 1, 5)


@pytest.mark.statistical
@pytest.mark.parametrize(("k1", "k2"), [(0, 6), (10, 6), (10, 45), (54, 5), (30, 15)])
def test_the_draw_is_uniform(k1: int, k2: int) -> None:
    """Counts of each coordinate, and of each pair of neighbours in the rest, over 20000 seeds, by chi-square.

    With k of n drawn without replacement, the counts' covariance shrinks the statistic: (n - 1) / (n - k) times it is
    chi-square with n - 1 degrees of freedom. The bounds are the 1e-5 quantiles on either side.
    """
    stats = pytest.importorskip("scipy.stats")
    d, draws = 70, 20_000
    memory = normal(d, 3)
    n = d - k1
    marks = torch.zeros(draws, d, dtype=torch.float64)
    for seed in range(draws):
        marks[seed, OPS.select(memory, k1, k2, seed)[1]] = 1
    rest = torch.ones(d, dtype=torch.bool)
    rest[top_indices(memory.abs(), k1)] = False
    marks = marks[:, rest]
    expected = draws * k2 / n
    statistic = float((marks.sum(0) - expected).square().sum() / expected) * (n - 1) / (n - k2)
    assert stats.chi2.ppf(1e-5, n - 1) < statistic < stats.chi2.ppf(1 - 1e-5, n - 1)
    pairs = float((marks[:, 1:] * marks[:, :-1]).sum(1).mean())  # neighbours drawn together, against its expectation
    spread = float((marks[:, 1:] * marks[:, :-1]).sum(1).std()) / draws**0.5
    assert abs(pairs - (n - 1) * k2 * (k2 - 1) / (n * (n - 1))) < 4.5 * spread + 1e-9


# Updates.


def advance(given: dict[str, Any], **more: Any) -> Outcome:
    return OPS.advance(update_of(**given, **more))


def plain_update(form: str, v: Tensor, anchor: Tensor, indices: Tensor, changes: Tensor) -> Tensor:
    new = {"recursive": v, "refresh": v, "anchored": anchor}[form].clone()
    if form == "refresh":
        new[indices] = anchor[indices] + changes
    else:
        new[indices] += changes
    return new


def case(form: str, d: int, dtype: torch.dtype, per_coordinate: bool = False, seed: int = 0) -> dict[str, Any]:
    k1, k2 = d // 10, d // 5
    memory = normal(d, seed + 2, dtype).abs()
    top, random = OPS.select(memory, k1, k2, seed)
    scale = torch.rand(k2, generator=seeded(seed), dtype=torch.float64) + 1 if per_coordinate else 2.7
    values = normal(k1 + k2, seed + 4, dtype)
    anchor = normal(d, seed + 1, dtype)
    given = {"form": form, "v": normal(d, seed, dtype), "v_anchor": None if form == "recursive" else anchor}
    return given | {"memory": memory, "top": top, "random": random, "values": values, "scale": scale, "decay": 0.3}


def expected_of(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The new v and M by the plain formulas, in float64."""
    v, memory, values = (given[name].double() for name in ("v", "memory", "values"))
    anchor = torch.zeros_like(v) if given["v_anchor"] is None else given["v_anchor"].double()
    k1 = given["top"].numel()
    changes = torch.cat([values[:k1], values[k1:] * given["scale"]])
    new = plain_update(given["form"], v, anchor, torch.cat([given["top"], given["random"]]), changes)
    return new, 0.3 * new.abs() + 0.7 * memory


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """To the rounding of two operations, relative to 1 or to the entry, as sums may cancel."""
    error = (actual.double() - expected).abs() / expected.abs().clamp(min=1)
    assert float(error.max()) <= 2 * ROUNDING[actual.dtype]


def histogram_of(memory: Tensor) -> Tensor:
    integers, width = {
        torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63), torch.bfloat16: (torch.int16, 15)
    }[memory.dtype]  # fmt: skip
    keys = memory.abs().view(integers).long() >> (width - 13)
    return torch.bincount(keys, minlength=1 << 13)


@pytest.mark.parametrize("per_coordinate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_advance(form: str, dtype: torch.dtype, per_coordinate: bool, threads: int) -> None:
    given = case(form, 10_007, dtype, per_coordinate)
    v, memory = expected_of(given)
    before = given["v"].clone()
    finite, gradients, histogram = advance(given)
    assert finite
    assert gradients is None  # x was not moved
    assert isinstance(histogram, np.ndarray)
    assert_near(given["v"], v)
    assert_near(given["memory"], memory)
    assert torch.equal(torch.from_numpy(histogram).long(), histogram_of(given["memory"]))
    outside = torch.ones(10_007, dtype=torch.bool)
    outside[torch.cat([given["top"], given["random"]])] = False
    kept = {"recursive": before, "refresh": before, "anchored": given["v_anchor"]}[form]
    assert torch.equal(given["v"][outside], kept[outside])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_advance_and_move(form: str, dtype: torch.dtype, threads: int) -> None:
    given = case(form, 10_007, dtype)
    sizes = [1, 0, 5000, 2, 3000, 0, 2004, 0]
    params = [torch.nn.Parameter(p.clone()) for p in normal(10_007, 8, dtype).split(sizes)]
    rates = [0.1 * (i + 1) for i in range(len(sizes))]
    v, memory = expected_of(given)
    steps = torch.cat([torch.full((size,), rate, dtype=torch.float64) for size, rate in zip(sizes, rates, strict=True)])
    x = torch.cat(params).detach().double() - steps * v
    other = {name: value.clone() if isinstance(value, Tensor) else value for name, value in given.items()}
    finite, gradients, _ = advance(given, params=params, lr=rates)
    assert finite
    assert gradients is not None
    assert_near(given["v"], v)
    assert_near(given["memory"], memory)
    assert_near(torch.cat(params).detach(), x)
    assert torch.equal(torch.cat(gradients), given["v"])
    advance(other)
    assert torch.equal(other["v"], given["v"])
    assert torch.equal(other["memory"], given["memory"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # torch rounds bfloat16 between the operations
def test_the_same_bits_as_torch(dtype: torch.dtype) -> None:
    """v is what the torch backend makes of it, bit for bit; M and a plain SGD step too, where torch fuses x y + z."""
    given = case("recursive", 10_007, dtype)
    v, k1 = given["v"].clone(), given["top"].numel()
    changes = torch.cat([given["values"][:k1], given["values"][k1:] * given["scale"]])
    v.index_add_(0, torch.cat([given["top"], given["random"]]), changes)
    memory, x = given["memory"].clone(), normal(10_007, 9, dtype)
    memory.mul_(1 - given["decay"]).add_(v.abs(), alpha=given["decay"])
    moved = x.clone()
    advance(given, params=[moved], lr=0.1)
    assert torch.equal(given["v"], v)
    near = ROUNDING[dtype]
    torch.testing.assert_close(given["memory"], memory, rtol=near, atol=near)
    torch.testing.assert_close(moved, x.add(v, alpha=-0.1), rtol=near, atol=near)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan, "overflow"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_moves_when_v_is_not_finite(form: str, dtype: torch.dtype, bad: float | str, threads: int) -> None:
    for where in ("top", "random"):
        given = case(form, 3000, dtype)
        place = 5 if where == "top" else -5
        if bad == "overflow":
            largest = torch.finfo(dtype).max
            base = given["v"] if given["v_anchor"] is None else given["v_anchor"]
            base[given[where][place]] = largest
            given["values"][place] = largest
        else:
            given["values"][place] = bad
        params = list(normal(3000, 8, dtype).split([1000, 2000]))
        kept = {name: given[name].clone() for name in ("v", "memory")} | {"x": torch.cat(params)}
        assert advance(given, params=params, lr=0.1) == Outcome(False)
        assert torch.equal(kept["x"], torch.cat(params))
        assert torch.equal(kept["v"], given["v"])
        assert torch.equal(kept["memory"], given["memory"])
        assert advance(given).finite is False


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_but_finite_values_pass(dtype: torch.dtype) -> None:
    given = case("recursive", 3000, dtype)
    given["v"][given["top"][3]] = -torch.finfo(dtype).max
    given["values"][3] = torch.finfo(dtype).max
    x = torch.zeros(3000, dtype=dtype)
    assert advance(given, params=[x], lr=0.1).finite
    assert float(given["v"][given["top"][3]]) == 0


def test_sizes_that_do_not_fit_are_refused() -> None:
    given = case("recursive", 3000, torch.float32)
    for change in (
        {"values": given["values"][1:]}, {"memory": given["memory"][1:]}, {"memory": given["memory"].double()},
        {"form": "anchored"}, {"form": "other"}, {"scale": torch.ones(3)},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"values|one dtype|form"):
            advance(given | change)
    with pytest.raises(ValueError, match="make up"):
        advance(given, params=[torch.zeros(2999)], lr=0.1)
    with pytest.raises(ValueError, match="contiguous"):
        advance(given, params=[torch.zeros(50, 60).T], lr=0.1)
    with pytest.raises(IndexError):
        advance(given | {"top": given["top"] + 3000})


# The k entries of a selection.


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=8), st.data())
def test_gather_and_scatter(shapes: list[tuple[int, bool]], data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    sizes = [size for size, _ in shapes]
    flat = normal(sum(sizes), 1, dtype)
    pieces = [None if gone else piece for piece, (_, gone) in zip(flat.split(sizes), shapes, strict=True)]
    whole = torch.cat([torch.zeros(n, dtype=dtype) if p is None else p for p, n in zip(pieces, sizes, strict=True)])
    indices = torch.tensor(data.draw(st.lists(st.integers(0, max(sum(sizes) - 1, 0)), unique=True, max_size=60)))
    indices = indices.long() if sum(sizes) else torch.empty(0, dtype=torch.int64)
    assert torch.equal(OPS.gather(pieces, sizes, indices, dtype), whole[indices])
    values = normal(indices.numel(), 2, dtype)
    kept = [torch.zeros(n, dtype=dtype) if p is None else p.clone() for p, n in zip(pieces, sizes, strict=True)]
    OPS.scatter(kept, sizes, indices, values)
    whole[indices] = values
    assert torch.equal(torch.cat(kept), whole)
    for wrong in (-1, sum(sizes)):
        with pytest.raises(IndexError):
            OPS.gather(pieces, sizes, torch.tensor([wrong]), dtype)


def test_gather_copies_what_is_not_contiguous() -> None:
    pieces = [torch.arange(6.0).view(2, 3).T, torch.eye(3).to_sparse(), None]
    whole = torch.cat([pieces[0].reshape(-1), torch.eye(3).reshape(-1), torch.zeros(2)])
    assert torch.equal(OPS.gather(pieces, [6, 9, 2], torch.arange(17), torch.float32), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_alone(dtype: torch.dtype, threads: int) -> None:
    whole, v = normal(5000, 4, dtype).abs(), normal(5000, 5, dtype)
    blended = 0.3 * v.double().abs() + 0.7 * whole.double()
    blend(whole, v, 0.3)
    assert_near(whole, blended)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_memory_that_is_not_finite_is_refused(dtype: torch.dtype, bad: float, threads: int) -> None:
    """Largest finite numbers pass: their bin is below those of infinities and nan."""
    memory = normal(5003, 1, dtype)
    memory[17] = torch.finfo(dtype).max
    assert 17 in OPS.select(memory, 10, 10, 1)[0].tolist()
    memory[4000] = bad
    with pytest.raises(ValueError, match="not finite"):
        OPS.select(memory, 10, 10, 1)


# Threads and the cache.


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_depends_on_the_number_of_threads(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "PARALLEL_FROM", 1)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        given = case("anchored", 20_011, dtype)
        params = list(normal(20_011, 8, dtype).split([7000, 13_011]))
        histogram = advance(given, params=params, lr=0.1).hint
        assert isinstance(histogram, np.ndarray)
        picked = OPS.select(given["memory"], 1000, 9000, 3, histogram)
        read = OPS.gather(params, [7000, 13_011], torch.cat(picked), dtype)
        top = OPS.select(given["memory"], 1000, 15_000, 3)
        results.append([given["v"], given["memory"], *params, torch.from_numpy(histogram).long(), *picked, read, *top])
    torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(own, first) for own, first in zip(result, results[0], strict=True))


NO_FOLDER = "c.CacheImpl._locator_classes = []"
FULL_DISK = "def save(*_): raise OSError(28, 'no space')\nc.IndexDataCacheFile.save = save"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [NO_FOLDER, FULL_DISK])
def test_a_cache_that_cannot_be_written_is_done_without(trouble: str, tmp_path: Path) -> None:
    code = f"""import torch
import numba.core.caching as c
{trouble}
from spidersilk.kernels.numba.backend import NumbaKernels
print(NumbaKernels().select(torch.arange(9.), 2, 0, 1)[0])"""
    source = str(Path(backend.__file__).parents[3])
    run = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": source},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "tensor([7, 8])" in run.stdout
    assert not list(tmp_path.rglob("*.nbc"))
