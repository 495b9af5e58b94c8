"""Adaptive inner loops: the rules, the loader and the optimizer working together, resumption."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import spidersilk as silk
from spidersilk.loop.lengths import Adaptive, as_inner_length
from spidersilk.loop.markers import Small

# The rules.


def test_a_recursive_loop_ends_when_v_is_noise() -> None:
    rule = Adaptive(fraction=0.5, floor=3)
    assert rule.is_safe(1, 10.0)  # below the floor
    assert rule.is_safe(3, 0.5)
    assert not rule.is_safe(3, 0.51)
    assert not rule.is_safe(3, math.nan)


def test_an_anchored_loop_goes_on_while_the_loss_falls_and_ends_when_it_rises() -> None:
    rule = Adaptive()
    noise = [0.002 * (-1) ** i for i in range(60)]
    falling = [-0.01 * t + e for t, e in enumerate(noise)]
    rising = [0.01 * t + e for t, e in enumerate(noise)]
    saturated = [-0.3 + 0.2 * 0.5**t + e for t, e in enumerate(noise)]
    assert all(rule.pays(falling[:t], price=20) for t in range(61))
    assert not all(rule.pays(rising[:t], price=20) for t in range(61))
    ends = next(t for t in range(61) if not rule.pays(saturated[:t], price=20))
    assert 8 <= ends < 40
    assert all(rule.pays(rising[:t], price=20) for t in range(4))  # not before a fifth of the anchor's price
    assert all(rule.pays(rising[:t], price=1e6) for t in range(61))
    assert all(Adaptive(floor=61).pays(rising[:t], price=20) for t in range(60))
    assert rule.pays([], price=20)
    assert not Adaptive(floor=61).pays([0.1, math.inf], price=20)
    assert not rule.pays([0.1, math.nan], price=20)


def test_a_loop_has_a_ceiling() -> None:
    assert not Adaptive().is_over(99, price=50)
    assert Adaptive().is_over(100, price=50)  # B d / (b k), twice the anchor's price in small steps
    assert Adaptive(ceiling=7).is_over(7, price=50)
    assert not Adaptive(floor=10).is_over(9, price=0.5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fraction": 0.0}, r"fraction = 0.0 must be a finite number above 0"),
        ({"fraction": 1.5}, "fraction = 1.5"),
        ({"confidence": -1.0}, "confidence = -1.0"),
        ({"floor": 0}, "floor = 0"),
        ({"ceiling": 0}, "ceiling = 0"),
        ({"floor": 5, "ceiling": 4}, "ceiling = 4 is below floor = 5"),
    ],
)
def test_bad_rules_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Adaptive(**options)


def test_auto_is_adaptive_and_nothing_else() -> None:
    assert as_inner_length("auto") == Adaptive()
    with pytest.raises(ValueError, match="neither a number nor 'auto'"):
        as_inner_length("often")


# Loader and optimizer together.


class Task:
    """A small network, and data whose labels it can learn."""

    def __init__(self, seed: int = 0, samples: int = 240):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.x = torch.randn(samples, 6)
        self.y = (self.x @ torch.randn(6, 3)).argmax(1)

    def loader(self, rule: Adaptive | str | int = "auto", **options: Any) -> silk.AnchorLoader:
        g = torch.Generator().manual_seed(1)
        return silk.AnchorLoader((self.x, self.y), 60, 12, rule, generator=g, **options)

    def closure(self, optimizer: torch.optim.Optimizer, batch: Any) -> Callable[[], Tensor]:
        def run() -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            loss.backward()
            return loss

        return run

    def loss(self) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(self.model(self.x), self.y))

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_adaptive_anchors_turn_divergence_into_progress() -> None:
    """Algorithm 1 at a step far beyond Theorem 1's: fixed loops diverge or end in a huge loss, adaptive ones train."""

    def run(rule: Adaptive | str | int) -> float:
        task = Task()
        optimizer = silk.SparseSpiderBoost(task.model.parameters(), lr=1.0, k1=0.05, k2=0.05, generator=seeded())
        try:
            for batch, is_anchor in task.loader(rule, loops=60):
                optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=len(batch[0]))
        except silk.DivergenceError:
            return math.inf
        return task.loss()

    start = Task().loss()
    assert run(10) > start
    assert run("auto") < 0.5 * start


def test_a_step_that_is_too_noisy_is_not_taken() -> None:
    task = Task()
    optimizer = silk.SparseSpiderBoost(task.model.parameters(), lr=3.0, k1=0.02, k2=0.02, generator=seeded())
    loader = iter(task.loader(Adaptive(fraction=1e-6), loops=3))
    batch, is_anchor = next(loader)
    assert is_anchor
    optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=60)
    before, steps = task.flat(), optimizer.steps
    memory = [s["memory"].clone() for s in optimizer.state.values()]
    batch, is_anchor = next(loader)
    assert not is_anchor
    queries = optimizer.gradient_queries
    optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=12)
    assert torch.equal(task.flat(), before)
    assert all(torch.equal(s["memory"], m) for s, m in zip(optimizer.state.values(), memory, strict=True))
    assert optimizer.steps == steps
    assert optimizer.gradient_queries > queries  # it was looked at, and is paid for
    batch, is_anchor = next(loader)
    assert is_anchor
    optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=60)
    assert optimizer.steps == steps + 1


@pytest.mark.parametrize("make", [silk.SparseSVRG, silk.SVRG, silk.SpiderBoost])
def test_the_ceiling_is_kept_by_loader_and_optimizer(make: Any) -> None:
    task = Task()
    optimizer = make(task.model.parameters(), lr=1e-4)  # so small that nothing is noisy
    kinds = []
    for batch, is_anchor in task.loader(Adaptive(ceiling=4, floor=4), loops=3):
        optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=len(batch[0]))
        kinds.append(bool(is_anchor))
    assert kinds == [True, False, False, False] * 3


def test_the_default_ceiling_is_twice_the_anchors_price() -> None:
    task = Task()
    optimizer = silk.SVRG(task.model.parameters(), lr=1e-4)  # dense: B / b = 5 updates
    kinds = []
    for batch, is_anchor in task.loader(Adaptive(floor=4), loops=2):
        optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=len(batch[0]))
        kinds.append(bool(is_anchor))
    assert kinds == [True, False, False, False, False] * 2


def test_an_iteration_visits_about_the_data_set() -> None:
    task = Task()
    visited = 0
    for batch, is_anchor in task.loader(Adaptive(ceiling=3)):
        visited += len(batch[0])
        assert isinstance(is_anchor, silk.Anchor | Small)
    assert visited == 252  # loops of 60 + 12 + 12, until 240 samples have come


def test_a_state_from_the_end_of_an_epoch_goes_on_with_a_whole_one() -> None:
    task = Task()
    loader = task.loader(Adaptive(ceiling=3))
    first = [bool(a) for _, a in loader]
    state = loader.state_dict()
    straight = [batch[0] for batch, _ in loader]
    again = task.loader(Adaptive(ceiling=3))
    again.load_state_dict(state)
    resumed = [batch[0] for batch, _ in again]
    assert len(resumed) == len(first)
    assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_a_loop_that_nobody_ends_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="pass what the loader yields on as it is"):
        for _ in Task().loader():
            pass


def test_after_divergence_the_loader_gives_an_anchor() -> None:
    task = Task()
    optimizer = silk.SparseSVRG(task.model.parameters(), lr=0.1)
    loader = iter(task.loader())
    batch, is_anchor = next(loader)
    optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=60)
    batch, is_anchor = next(loader)

    def bad() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(task.model(batch[0]), batch[1]) * float("nan")
        loss.backward()
        return loss

    with pytest.raises(silk.DivergenceError):
        optimizer.step(bad, anchor=is_anchor, samples=12)
    batch, is_anchor = next(loader)
    assert is_anchor


def test_closures_may_return_what_they_like_where_no_loss_is_compared() -> None:
    task = Task()
    optimizer = silk.SVRG(task.model.parameters(), lr=0.1)
    for batch, is_anchor in task.loader(3, loops=1):
        run = task.closure(optimizer, batch)
        told = optimizer.step(lambda run=run: {"loss": run()}, anchor=is_anchor)
        assert "loss" in told
    for batch, is_anchor in task.loader(loops=1):
        run = task.closure(optimizer, batch)
        optimizer.step(lambda run=run: run().reshape(1), anchor=is_anchor, samples=len(batch[0]))


def test_the_length_of_loops_is_part_of_a_state() -> None:
    task = Task()
    optimizer = silk.SVRG(task.model.parameters(), lr=0.1, inner_steps="auto")
    batch = task.x[:60], task.y[:60]
    for _ in range(3):
        optimizer.step(task.closure(optimizer, batch), samples=60)
    state = optimizer.state_dict()
    other = silk.SVRG(task.model.parameters(), lr=0.1, inner_steps=4)
    with pytest.raises(ValueError, match="inner_steps"):
        other.load_state_dict(state)
    same = silk.SVRG(task.model.parameters(), lr=0.1, inner_steps="auto")
    same.load_state_dict(state)
    assert same.smoothness == optimizer.smoothness is not None


def test_adaptive_loops_have_no_length() -> None:
    with pytest.raises(TypeError, match="no fixed number of batches"):
        len(Task().loader())


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_through_a_dataloader_are_those_of_tensors(workers: int) -> None:
    task = Task()

    def sequence(data: Any, **options: Any) -> list[tuple[bool, list[float]]]:
        g = torch.Generator().manual_seed(1)
        loader = silk.AnchorLoader(data, 60, 12, "auto", loops=3, micro_batch_size=25, generator=g, **options)
        seen = []
        for number, (batch, is_anchor) in enumerate(loader):
            seen.append((bool(is_anchor), batch[0][:, 0].tolist()))
            if number % 5 == 4 and isinstance(is_anchor, Small):
                is_anchor.end_loop()
        return seen

    class Mapped(TensorDataset):
        """Not a plain TensorDataset, so it goes through a DataLoader."""

    straight = sequence((task.x, task.y))
    assert sequence(Mapped(task.x, task.y), num_workers=workers) == straight
    assert [kind for kind, _ in straight].count(True) == 9  # three anchors of three pieces


@pytest.mark.parametrize("make", [silk.SparseSVRG, silk.SparseSpiderBoost])
@pytest.mark.parametrize(("stop", "micro"), [(1, 25), (3, None), (3, 25), (8, None), (20, 25)])
def test_resumption_in_an_adaptive_loop_is_exact(make: Any, stop: int, micro: int | None) -> None:
    def fresh() -> tuple[Task, Any, silk.AnchorLoader]:
        task = Task()
        optimizer = make(task.model.parameters(), lr=0.3, k1=0.1, k2=0.1, generator=seeded())
        return task, optimizer, task.loader(loops=8, micro_batch_size=micro)

    def go(task: Task, optimizer: Any, loader: silk.AnchorLoader, until: int | None) -> list[bool]:
        kinds = []
        for batch, is_anchor in loader:
            optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=len(batch[0]))
            kinds.append(bool(is_anchor))
            if len(kinds) == until:
                break
        return kinds

    task, optimizer, loader = fresh()
    whole = go(task, optimizer, loader, None)
    end = task.flat()
    task, optimizer, loader = fresh()
    first = go(task, optimizer, loader, stop)
    saved = task.model.state_dict(), optimizer.state_dict(), loader.state_dict()
    task, optimizer, loader = fresh()
    for thing, state in zip((task.model, optimizer, loader), saved, strict=True):
        thing.load_state_dict(state)
    assert first + go(task, optimizer, loader, None) == whole
    assert torch.equal(task.flat(), end)


@pytest.mark.parametrize("make", [silk.SparseSVRG, silk.SparseSpiderBoost])
def test_an_optimizer_that_counts_by_itself_ends_its_loops_too(make: Any) -> None:
    """Fed with the batches that a loader gave another optimizer, it agrees on which are anchors."""
    kinds: list[bool] = []
    task = Task()
    optimizer = make(task.model.parameters(), lr=0.3, k1=0.1, k2=0.1, generator=seeded())
    batches = []
    for batch, is_anchor in task.loader(loops=6):
        optimizer.step(task.closure(optimizer, batch), anchor=is_anchor, samples=len(batch[0]))
        kinds.append(bool(is_anchor))
        batches.append(batch)
    end = task.flat()
    task = Task()
    optimizer = make(task.model.parameters(), lr=0.3, k1=0.1, k2=0.1, generator=seeded(), inner_steps="auto")
    for batch, kind in zip(batches, kinds, strict=True):
        assert optimizer.next_is_anchor() == kind
        optimizer.step(task.closure(optimizer, batch), samples=len(batch[0]))
    assert torch.equal(task.flat(), end)


def test_auto_needs_differences_and_sizes() -> None:
    task = Task()
    for options in ({"scaling": "none"}, {"choose": "anchor"}, {"k2": 0}):
        with pytest.raises(ValueError, match="needs scaling='unbiased', choose='step' and k2 above 0"):
            silk.SparseSpiderBoost(task.model.parameters(), lr=0.1, inner_steps="auto", **options)
    batch, _ = next(iter(task.loader()))
    counting = silk.SVRG(task.model.parameters(), lr=0.1, inner_steps="auto")
    counting.step(task.closure(counting, batch))
    with pytest.raises(ValueError, match="pass samples= to each step"):
        counting.step(task.closure(counting, batch))
