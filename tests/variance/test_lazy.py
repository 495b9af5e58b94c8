"""LazySVRG against SparseSVRG over the same rows: the same x at each step, although rows move later."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk

USERS, ITEMS, RANK, N = 30, 40, 4, 200


class Factors(nn.Module):
    """Matrix factorisation with item biases; with `deep`, bags of tags and a dense layer on top."""

    def __init__(self, deep: bool):
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, RANK, sparse=True), nn.Embedding(ITEMS, RANK, sparse=True)
        self.bias = nn.Embedding(ITEMS, 1, sparse=True)
        self.tags = nn.EmbeddingBag(12, RANK, mode="sum", sparse=True) if deep else None
        self.head = nn.Linear(RANK, 1) if deep else None

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        h = self.user(users) * self.item(items)
        if self.tags is not None and self.head is not None:
            h = h + self.tags(input=torch.stack([users % 12, items % 12], 1))
            return self.head(h.tanh()).squeeze(1) + self.bias(items).squeeze(1)
        return h.sum(1) + self.bias(items).squeeze(1)


def problem(deep: bool = False) -> tuple[Factors, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Factors(deep).double()
        pairs = torch.stack([torch.randint(USERS, (N,)), torch.randint(ITEMS, (N,))], 1)
    return model, pairs


def bpr(model: Callable[..., Tensor], batch: Tensor) -> Tensor:
    """Negatives come from torch's generator, replayed at the second point."""
    users, items = batch.unbind(1)
    negatives = torch.randint(ITEMS, (len(users),))
    return F.softplus(model(users, negatives) - model(users, items)).mean()


def closure_of(model: nn.Module, batch: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        model.zero_grad()
        loss = bpr(model, batch)
        loss.backward()
        return loss.detach()

    return run


STEPS, INNER = 60, 12


def batch_of(pairs: Tensor, t: int, large: bool) -> Tensor:
    g = torch.Generator().manual_seed(100 + t)
    return pairs[torch.randperm(N, generator=g)[: 80 if large else 3]]


def train(
    model: nn.Module,
    optimizer: Any,
    pairs: Tensor,
    start: int = 0,
    stop: int = STEPS,
    lr: Callable[[int], float] = lambda t: 0.5,
    each: Callable[[int], None] = lambda t: None,
) -> list[float]:
    losses = []
    for t in range(start, stop):
        torch.manual_seed(t)
        optimizer.param_groups[0]["lr"] = lr(t)
        batch = batch_of(pairs, t, t % INNER == 0)
        losses.append(float(optimizer.step(closure_of(model, batch), anchor=t % INNER == 0, samples=len(batch))))
        each(t)
    return losses


def x_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


CHOICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "once per anchor": {"choose": "anchor"},
    "not rescaled": {"scaling": "none"},
    "memory reset": {"memory_reset": True},
    "per tensor": {"per_tensor": True},
    "decay": {"memory_decay": 0.1},
    "top alone": {"k2": 0.0},
    "everything": {"k1": 0.5, "k2": 0.5},
}


# Every choice on both backends, once with the deep model and once without.
COMPARED = [
    (choice, (i + j) % 2 == 1, backend)
    for i, choice in enumerate(CHOICES)
    for j, backend in enumerate(("torch", "numba"))
]


@pytest.mark.parametrize(("choice", "deep", "backend"), COMPARED)
def test_the_same_as_moving_everything_at_each_step(choice: str, deep: bool, backend: str) -> None:
    """Step sizes change within loops; at every step, x with the postponed moves added is compared."""
    options = {"k1": 0.1, "k2": 0.1, "backend": backend} | CHOICES[choice]
    lr = lambda t: 0.5 / (1 + t % 7)  # noqa: E731
    (one, pairs), (two, _) = problem(deep), problem(deep)
    eager = silk.SparseSVRG(one.parameters(), 0.5, groups="rows", generator=torch.Generator().manual_seed(3), **options)
    lazy = silk.LazySVRG(two, 0.5, generator=torch.Generator().manual_seed(3), **options)
    expected: list[Tensor] = []
    losses = train(one, eager, pairs, lr=lr, each=lambda t: expected.append(x_of(one)))
    stale = 0

    def compare(t: int) -> None:
        nonlocal stale
        stale += not torch.allclose(x_of(two), expected[t], rtol=0, atol=1e-12)
        rows = lazy._rows
        now = [
            (rows._x(i) - v * (rows.clock - paid)[:, None]).reshape(-1)
            for i, (v, paid) in enumerate(zip(rows._v_of, rows.paid, strict=True))
        ]
        torch.testing.assert_close(torch.cat(now), expected[t], rtol=0, atol=1e-12)

    again = train(two, lazy, pairs, lr=lr, each=compare)
    torch.testing.assert_close(torch.tensor(again), torch.tensor(losses), rtol=0, atol=1e-12)
    assert stale > 40  # it is lazy
    lazy.flush()
    torch.testing.assert_close(x_of(two), expected[-1], rtol=0, atol=1e-12)
    assert lazy.gradient_queries == pytest.approx(eager.gradient_queries)
    assert (lazy.steps, lazy.anchors) == (eager.steps, eager.anchors)
    memory = torch.cat([eager.state[p]["memory"].reshape(p.shape[0], -1).sum(1) for p in one.parameters()])
    sums = torch.cat(lazy._rows._sums_of)
    torch.testing.assert_close(sums, memory, rtol=0, atol=1e-12)


def test_flushes_in_the_middle_change_nothing() -> None:
    (one, pairs), (two, _) = problem(), problem()
    first, second = (silk.LazySVRG(m, 0.5, 0.1, 0.1, generator=torch.Generator().manual_seed(3)) for m in (one, two))
    train(one, first, pairs)
    train(two, second, pairs, each=lambda t: second.flush() if t % 5 == 0 else None)
    first.flush()
    second.flush()
    torch.testing.assert_close(x_of(two), x_of(one), rtol=0, atol=1e-12)


def test_looking_up_and_saving_see_rows_that_are_up_to_date() -> None:
    model, pairs = problem()
    optimizer = silk.LazySVRG(model, 0.5, 0.1, 0.1, generator=torch.Generator().manual_seed(3))
    train(model, optimizer, pairs, stop=20)
    stale = model.item.weight.detach().clone()
    users, items = torch.arange(5), torch.arange(5, 10)
    with torch.no_grad():
        scores = model(users, items)
    moved = (model.item.weight != stale).any(1)
    assert bool(moved[5:10].any())
    assert not bool(moved[10:].any())  # what was not looked up still waits
    saved = copy.deepcopy(model.state_dict())  # flushes
    assert int((saved["item.weight"] != stale).any(1).sum()) > 20
    other, _ = problem()
    other.load_state_dict(saved)
    with torch.no_grad():
        torch.testing.assert_close(other(users, items), scores, rtol=0, atol=1e-12)


def test_lookups_of_any_kind_and_letting_go_of_the_model() -> None:
    model, pairs = problem()
    optimizer = silk.LazySVRG(model, 0.5, 0.1, 0.1, generator=torch.Generator().manual_seed(3))
    train(model, optimizer, pairs, stop=20)
    twin, _ = problem()
    again = silk.LazySVRG(twin, 0.5, 0.1, 0.1, generator=torch.Generator().manual_seed(3))
    train(twin, again, pairs, stop=20)
    with torch.inference_mode():
        early = model.item(torch.arange(ITEMS, dtype=torch.int32).view(2, -1)).reshape(ITEMS, RANK).clone()
    again.close()
    torch.testing.assert_close(early, twin.item.weight.detach(), rtol=0, atol=1e-12)
    optimizer.flush()
    torch.testing.assert_close(x_of(model), x_of(twin), rtol=0, atol=1e-12)
    assert not twin.item._forward_pre_hooks
    assert torch.equal(x_of(copy.deepcopy(twin)), x_of(twin))
    with pytest.raises(RuntimeError, match="is closed"):
        again.step(closure_of(twin, pairs[:3]), anchor=True)


@pytest.mark.parametrize("choose", ["step", "anchor"])
def test_saved_and_loaded_in_the_middle_of_a_loop(choose: str) -> None:
    options: dict[str, Any] = {"k1": 0.1, "k2": 0.1, "choose": choose}
    (whole, pairs), (first, _), (second, _) = problem(), problem(), problem()
    never = silk.LazySVRG(whole, 0.5, generator=torch.Generator().manual_seed(3), **options)
    train(whole, never, pairs)
    before = silk.LazySVRG(first, 0.5, generator=torch.Generator().manual_seed(3), **options)
    train(first, before, pairs, stop=29)
    file = io.BytesIO()
    torch.save((before.state_dict(), first.state_dict()), file)
    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    after = silk.LazySVRG(second, 0.1, **options)
    second.load_state_dict(values)
    after.load_state_dict(state)
    assert after.param_groups[0]["lr"] == 0.5
    train(second, after, pairs, start=29)
    torch.testing.assert_close(
        torch.cat([t.reshape(-1) for t in second.state_dict().values()]),
        torch.cat([t.reshape(-1) for t in whole.state_dict().values()]),
        rtol=0, atol=1e-12,
    )  # fmt: skip
    assert (after.steps, after.gradient_queries) == (never.steps, never.gradient_queries)
    with pytest.raises(ValueError, match="saved with other settings"):
        silk.LazySVRG(second, 0.1, 0.3, 0.1).load_state_dict(state)


def test_with_a_loader_in_pieces_and_a_scheduler() -> None:
    ends = []
    for lazy in (False, True):
        model, pairs = problem()
        g = torch.Generator().manual_seed(3)
        make = silk.LazySVRG if lazy else silk.SparseSVRG
        optimizer: Any = make(
            model if lazy else model.parameters(), 0.5, 0.1, 0.1, generator=g, **({} if lazy else {"groups": "rows"})
        )
        loader = silk.AnchorLoader(
            pairs, 80, 4, 6, micro_batch_size=30, loops=5, generator=torch.Generator().manual_seed(1)
        )
        line = silk.InnerLine(optimizer, 6, 0.5, 0.1)
        torch.manual_seed(0)
        for batch, is_anchor in loader:
            optimizer.step(closure_of(model, batch), anchor=is_anchor, samples=len(batch))
            if not is_anchor or is_anchor.last:
                line.step()
        model.state_dict()  # flushes
        ends.append((x_of(model), optimizer.gradient_queries))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=0, atol=1e-12)
    assert ends[0][1] == pytest.approx(ends[1][1])


def test_a_v_that_is_not_finite_leaves_x_and_an_anchor_goes_on() -> None:
    model, pairs = problem()
    optimizer = silk.LazySVRG(model, 0.5, 0.1, 0.5, generator=torch.Generator().manual_seed(3))
    train(model, optimizer, pairs, stop=5)
    optimizer.flush()
    x = x_of(model)

    def broken() -> Tensor:
        model.zero_grad()
        (model(pairs[:40, 0], pairs[:40, 1]).sum() * float("inf")).backward()
        return torch.tensor(0.0)

    with pytest.raises(silk.DivergenceError, match="small step 5 after its anchor"):
        optimizer.step(broken, anchor=False)
    assert torch.equal(x_of(model), x)
    with pytest.raises(RuntimeError, match="give an anchor first"):
        optimizer.step(closure_of(model, pairs[:3]), anchor=False)
    with pytest.raises(silk.DivergenceError, match="an anchor"):
        optimizer.step(broken, anchor=True)
    assert torch.equal(x_of(model), x)
    optimizer.step(closure_of(model, pairs[:50]), anchor=True)
    optimizer.step(closure_of(model, pairs[:3]), anchor=False)
    optimizer.flush()
    assert bool(torch.isfinite(x_of(model)).all())


def test_single_precision_stays_close() -> None:
    (one, pairs), (two, _) = problem(), problem()
    one, two = one.float(), two.float()
    eager = silk.SparseSVRG(one.parameters(), 0.5, 0.5, 0.5, groups="rows")
    lazy = silk.LazySVRG(two, 0.5, 0.5, 0.5)
    train(one, eager, pairs)
    train(two, lazy, pairs)
    lazy.flush()
    torch.testing.assert_close(x_of(two), x_of(one), rtol=0, atol=1e-4)


def tied(model: Factors) -> None:
    optimizer = silk.LazySVRG(model, 0.1)

    def closure() -> Tensor:
        model.zero_grad()
        loss = (model.user.weight @ model.item.weight.T).square().mean()
        loss.backward()
        return loss.detach()

    optimizer.step(closure, anchor=True)
    optimizer.step(closure, anchor=False)


WRONG: dict[str, tuple[Callable[[Factors], Any], str]] = {
    "refresh": (lambda m: silk.LazySVRG(m, 0.1, scaling="refresh"), "use SparseSVRG for it"),
    "lr": (lambda m: silk.LazySVRG(m, -0.1), "lr = -0.1 must be a finite number"),
    "a count": (lambda m: silk.LazySVRG(m, 0.1, k1=3), "k1 = 3 is a count"),
    "two dtypes": (lambda m: silk.LazySVRG(nn.ModuleList([m, nn.Linear(2, 2)]), 0.1), "takes one device and dtype"),
    "max_norm": (lambda m: silk.LazySVRG(nn.Embedding(3, 2, sparse=True, max_norm=1.0), 0.1), "leave max_norm=None"),
    "used without a lookup": (tied, "construct it with sparse=False"),
    "no anchor": (lambda m: silk.LazySVRG(m, 0.1).step(lambda: None, anchor=False), "give an anchor first"),
    "anchor": (lambda m: silk.LazySVRG(m, 0.1).step(lambda: None, anchor="yes"), "anchor = 'yes' must be"),  # type: ignore[arg-type]
    "another group": (lambda m: silk.LazySVRG(m, 0.1).add_param_group({"params": []}), "make a new one"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_it_refuses(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises((ValueError, RuntimeError), match=re.escape(words)):
        make(problem()[0])


class _Around(nn.Module):
    """A module that holds the trained one, and has buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(50, 4, sparse=True), nn.BatchNorm1d(4, affine=False)

    def forward(self, indices: Tensor) -> Tensor:
        return self.norm(self.table(indices)).square().mean() + self.table(indices).mean()


def test_buffers_around_the_model_move_once_a_step_and_a_failed_anchor_leaves_the_loop_as_it_was() -> None:
    torch.manual_seed(0)
    outer = _Around()
    optimizer = silk.LazySVRG(outer.table, lr=0.1)
    indices = torch.randint(50, (30,))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = outer(indices)
        loss.backward()
        return loss

    def failing() -> Tensor:
        raise KeyError("no data")

    for anchor in (True, False, False, False):
        optimizer.step(closure, anchor=anchor)
    assert int(outer.norm.num_batches_tracked) == 4
    with pytest.raises(KeyError):
        optimizer.step(failing, anchor=True)
    optimizer.step(closure, anchor=False)  # v is that of the first anchor
    assert optimizer.inner_step == 4
