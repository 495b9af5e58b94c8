"""UniformOutput: x_out of the theorems, against the loop ends of the plain reference."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases import Problem, quadratic
from torch import Tensor, nn

import spidersilk as silk
from spidersilk import reference

LENGTHS = [3, 0, 2, 1, 4]
ENDS = [2, 2, 4, 5, 9]  # the last iterate of each loop; a loop of length 0 ends where the one before it did


def batches(problem: Problem) -> tuple[list[Tensor], list[Tensor]]:
    g = torch.Generator().manual_seed(1)
    draw = lambda size: torch.randperm(problem.samples, generator=g)[:size]  # noqa: E731
    return [draw(20) for _ in LENGTHS], [draw(5) for _ in range(sum(LENGTHS))]


def run(seed: int, loops: int = len(LENGTHS)) -> tuple[Problem, silk.UniformOutput, list[silk.Selection]]:
    """Some loops of Algorithm 1, the last one not said to be over."""
    problem = quadratic()
    g = torch.Generator().manual_seed(seed)
    optimizer = silk.SparseSpiderBoost(problem.model.parameters(), problem.lr, k1=3, k2=2, generator=g)
    output = silk.UniformOutput(optimizer)
    large, small = map(iter, batches(problem))
    selections = []
    for length in LENGTHS[:loops]:
        batch = next(large)
        pieces = [silk.Anchor(0.5, last=False), silk.Anchor(0.5, first=False, idle=length == 0)]
        for marker, half in zip(pieces, batch.chunk(2), strict=True):
            optimizer.step(problem.closure(optimizer, half), anchor=marker, samples=10)
        for _ in range(length - 1):
            optimizer.step(problem.closure(optimizer, next(small)), anchor=False, samples=5)
            selections.append(optimizer.selection)
    return problem, output, selections


def points(selections: list[silk.Selection]) -> list[Tensor]:
    """The iterates of the reference."""
    problem = quadratic()
    large, small = map(iter, batches(problem))
    return reference.algorithm_1(
        problem.flat_gradient, problem.flat_x(), large, small, lr=problem.lr, inner_steps=1, loops=len(LENGTHS), k1=3,
        k2=2, lengths=LENGTHS, replay=iter(selections),
    ).iterates  # fmt: skip


def test_it_is_the_end_of_a_loop_of_the_reference_each_with_equal_chance() -> None:
    seen: Counter[int] = Counter()
    runs = 120
    for seed in range(runs):
        problem, output, selections = run(seed)
        output.end_loop()
        output.end_loop()  # it is over already
        assert output.loops == len(LENGTHS)
        last = problem.flat_x()
        with output.applied():
            distances = [float(problem.flat_x().sub(x).norm()) for x in points(selections)]
        assert torch.equal(problem.flat_x(), last)
        nearest = min(range(len(distances)), key=distances.__getitem__)
        assert distances[nearest] < 1e-12
        seen[nearest] += 1
    assert seen.keys() == set(ENDS)
    for end, count in seen.items():  # within four standard errors
        share = ENDS.count(end) / len(ENDS)
        assert abs(count / runs - share) < 4 * (share * (1 - share) / runs) ** 0.5


def test_the_loop_under_way_does_not_count() -> None:
    problem, output, _ = run(0, loops=1)
    assert output.loops == 0
    with output.applied():  # none has ended: x as it is
        now = problem.flat_x()
    assert torch.equal(now, problem.flat_x())
    _, output, _ = run(0, loops=3)
    assert output.loops == 2


def test_a_resumed_run_goes_on_as_if_nothing_had_happened() -> None:
    for seed in range(6):
        problem, output, _ = run(seed, loops=4)
        other, again, _ = run(seed + 100, loops=1)
        again._optimizer.load_state_dict(output._optimizer.state_dict())
        again.load_state_dict(output.state_dict())
        other.model.load_state_dict(problem.model.state_dict())
        for _ in range(2):  # as it was saved, and after the next draw
            with output.applied(), again.applied():
                assert torch.equal(other.flat_x(), problem.flat_x())
            output.end_loop()
            again.end_loop()
        assert again.loops == output.loops == 4


def test_buffers_are_kept_with_the_parameters_of_their_point() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = silk.SVRG(model.parameters(), lr=0.1, model=model)
    output = silk.UniformOutput(optimizer, model)

    def step() -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(8, 2)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure, anchor=True, samples=8)

    step()
    kept = model[1].running_mean.clone()  # pyright: ignore
    output.end_loop()
    step()
    assert not torch.equal(model[1].running_mean, kept)  # pyright: ignore
    now = model[1].running_mean.clone()  # pyright: ignore
    with output.applied():
        assert torch.equal(model[1].running_mean, kept)  # pyright: ignore
    assert torch.equal(model[1].running_mean, now)  # pyright: ignore


def test_what_has_no_loops_is_refused() -> None:
    with pytest.raises(ValueError, match="optimizer = SGD has no outer loops: give a VarianceReduced"):
        silk.UniformOutput(torch.optim.SGD([nn.Parameter(torch.ones(1))]))  # pyright: ignore
    _, output, _ = run(0)
    with pytest.raises(ValueError, match="has no 'loops'"):
        output.load_state_dict({"kept": []})
    with pytest.raises(ValueError, match="has shape"):
        output.load_state_dict({"loops": 1, "anchors": 1, "kept": [torch.ones(2)]})
