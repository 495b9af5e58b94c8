"""What must hold whatever the model: one test for each line of that list."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import METHODS, SPARSE, mlp
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk import reference

DATA = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=DATA, dtype=torch.float64)
Y = torch.randint(3, (64,), generator=DATA)


def net(*layers: nn.Module, seed: int = 0) -> nn.Module:
    """A small classifier with `layers` in the middle, its weights fixed by the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 3)).double()


def train(
    optimizer: silk.VarianceReduced,
    closure_for: Callable[[Tensor], Callable[[], Tensor]],
    steps: int = 24,
    inner: int = 6,
    start: int = 0,
) -> list[float]:
    """Anchors of all 64 samples, small steps of 8; the losses."""
    losses = []
    for t in range(start, steps):
        is_anchor = t % inner == 0
        g = torch.Generator().manual_seed(1000 + t)
        batch = torch.arange(64) if is_anchor else torch.randperm(64, generator=g)[:8]
        losses.append(float(optimizer.step(closure_for(batch), anchor=is_anchor, samples=len(batch))))
    return losses


def simple(model: nn.Module, optimizer: torch.optim.Optimizer, set_to_none: bool = True):
    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = F.cross_entropy(model(X[batch]), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    return closure_for


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def make(name: str, model: nn.Module, lr: float = 0.05, **rest) -> silk.VarianceReduced:
    return METHODS[name].make(model.parameters(), lr, generator=torch.Generator().manual_seed(2), **rest)


TWO_POINT = [
    "spiderboost",
    "svrg",
    "sparse-spiderboost",
    "sparse-svrg",
    "sparse-svrg, refresh",
    "sparse-svrg, selected",
]


# Both evaluations see the same batch and the same random numbers.


@pytest.mark.parametrize("name", TWO_POINT)
def test_dropout_draws_the_same_mask_at_both_points(name: str) -> None:
    """With lr = 0 the points are equal, so the difference is 0 only if the masks are: v then stays the anchor's."""
    model = net(nn.Dropout(0.5))
    optimizer = make(name, model, lr=0.0, k1=10, k2=10)
    torch.manual_seed(3)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)), anchor=True)
    anchor = [p.grad.clone() for p in model.parameters()]
    for _ in range(5):
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
        # v stays the anchor's where it is kept, and M = |v| where v is the anchor's anyway (move="selected").
        kind = "memory" if optimizer.move == "selected" else "estimate"
        for p, g in zip(model.parameters(), anchor, strict=True):
            assert torch.equal(optimizer.state[p][kind], g.abs() if kind == "memory" else g)


@pytest.mark.parametrize("name", TWO_POINT)
def test_randomness_is_used_up_as_by_one_evaluation(name: str) -> None:
    model = net(nn.Dropout(0.5))
    optimizer = make(name, model)
    torch.manual_seed(3)
    train(optimizer, simple(model, optimizer))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    for t in range(24):
        model(X[:64] if t % 6 == 0 else X[:8])
    assert torch.equal(after, torch.get_rng_state())


# Running statistics move only at the current point.


@pytest.mark.parametrize("name", TWO_POINT)
def test_batch_norm_statistics_move_once_a_step(name: str) -> None:
    model, shadow = net(nn.BatchNorm1d(8)), net(nn.BatchNorm1d(8))
    optimizer = make(name, model)
    closure_for = simple(model, optimizer)
    for t in range(13):
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        shadow.load_state_dict(shadow.state_dict() | {k: v for k, v in model.state_dict().items() if "weight" in k})
        shadow.load_state_dict(shadow.state_dict() | {k: v for k, v in model.state_dict().items() if "bias" in k})
        shadow(X[batch])  # one forward at the current point is all that may be seen
        optimizer.step(closure_for(batch), anchor=t % 6 == 0)
        for (key, ours), theirs in zip(model.named_buffers(), shadow.buffers(), strict=True):
            assert torch.equal(ours, theirs), key
    assert int(model[1].num_batches_tracked) == 13  # type: ignore[index]


@pytest.mark.parametrize("name", TWO_POINT)
def test_stateful_layers_start_both_evaluations_alike(name: str) -> None:
    """Spectral norm takes a step of power iteration at each forward: with lr = 0 the difference is still 0."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)).double()
    optimizer = make(name, model, lr=0.0, k1=10, k2=10)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)), anchor=True)
    before = optimizer._points._buffers
    assert before is None  # an anchor needs no guard
    kind = "memory" if optimizer.move == "selected" else "estimate"
    for _ in range(4):
        held = [optimizer.state[p][kind].clone() for p in model.parameters()]
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
        assert all(map(torch.equal, held, [optimizer.state[p][kind] for p in model.parameters()]))


# Closures of every kind.


@pytest.mark.parametrize("name", METHODS)
def test_both_ways_to_zero_gradients(name: str) -> None:
    results = []
    for set_to_none in (True, False):
        model = net()
        optimizer = make(name, model)
        train(optimizer, simple(model, optimizer, set_to_none))
        results.append(flat(model))
    assert torch.equal(*results)


def test_a_closure_that_forgets_to_zero_gradients_is_right_too() -> None:
    results = []
    for forgets in (False, True):
        model = net()
        optimizer = make("sparse-svrg", model)

        def closure_for(batch: Tensor, model=model, optimizer=optimizer, forgets=forgets):
            def closure() -> Tensor:
                if not forgets:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(X[batch]), Y[batch])
                loss.backward()
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(flat(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_a_closure_that_reuses_its_gradient_tensor(name: str) -> None:
    """What was read at the current point must not change when the closure writes the reference's over it."""
    results = []
    for reuses in (False, True):
        x = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64))
        own = torch.empty_like(x)
        optimizer = METHODS[name].make([x], 0.05, generator=torch.Generator().manual_seed(2))

        def closure_for(batch: Tensor, x=x, own=own, reuses=reuses):
            def closure() -> Tensor:
                gradient = x.detach() ** 3 + X[batch].mean()
                x.grad = own.copy_(gradient) if reuses else gradient
                return gradient.sum()

            return closure

        train(optimizer, closure_for)
        results.append(x.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_inside_the_closure(name: str) -> None:
    """The closure accumulates over pieces: the same trajectory as with whole batches."""
    whole, pieces = net(), net()
    one, many = make(name, whole), make(name, pieces)
    train(one, simple(whole, one))

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            many.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for piece in batch.split(5):
                loss = F.cross_entropy(pieces(X[piece]), Y[piece]) * len(piece) / len(batch)
                loss.backward()
                total += loss.detach()
            return total

        return closure

    train(many, closure_for)
    torch.testing.assert_close(flat(pieces), flat(whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_anchors_in_pieces(name: str) -> None:
    """The loader gives an anchor in pieces, each seen by the same closure: the same trajectory as with whole ones."""
    results = []
    for micro in (None, 7):
        model = net()
        optimizer = make(name, model)
        loader = silk.AnchorLoader(
            (X, Y), 40, 8, 6, micro_batch_size=micro, loops=5, generator=torch.Generator().manual_seed(1)
        )
        for (x, y), is_anchor in loader:

            def closure(x=x, y=y, model=model, optimizer=optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss.detach()

            optimizer.step(closure, anchor=is_anchor, samples=len(x))
        results.append((flat(model), optimizer.gradient_queries))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    assert results[0][1] == pytest.approx(results[1][1])


@pytest.mark.parametrize("name", METHODS)
def test_bf16_autocast(name: str) -> None:
    model = net().float()
    optimizer = make(name, model)

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(X[batch].float()), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    losses = train(optimizer, closure_for, steps=60)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert losses[-6] < losses[0]


@pytest.mark.parametrize("name", TWO_POINT)
def test_autocast_around_the_step(name: str) -> None:
    """Autocast keeps casts of weights: the reference must not be evaluated with those of the current point."""
    results = []
    for outside in (False, True):
        model = net().float()
        optimizer = make(name, model, lr=0.5)

        def closure_for(batch: Tensor, model=model, optimizer=optimizer):
            def closure() -> Tensor:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = F.cross_entropy(model(X[batch].float()), Y[batch])
                loss.backward()
                return loss.detach()

            return closure

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
            train(optimizer, closure_for)
        results.append(flat(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_gradients_that_are_one_tensor_for_two_parameters(name: str) -> None:
    results = []
    for shared in (True, False):
        a, b = (nn.Parameter(torch.full((3,), value, dtype=torch.float64)) for value in (2.0, 1.0))
        optimizer = METHODS[name].make([a, b], 0.05, k1=2, k2=2, generator=torch.Generator().manual_seed(2))

        def closure_for(batch: Tensor, a=a, b=b, shared=shared):
            def closure() -> Tensor:
                loss = ((a + b) * X[batch, :3].mean(0) - 1).square().sum()
                a.grad, b.grad = torch.autograd.grad(loss, [a, b])
                if not shared:
                    a.grad, b.grad = a.grad.clone(), b.grad.clone()
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(torch.cat([a.detach(), b.detach()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_model_in_low_precision(name: str, dtype: torch.dtype) -> None:
    model = net().to(dtype)
    optimizer = make(name, model)

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X[batch].to(dtype)), Y[batch])
            loss.backward()
            return loss.detach()

        return closure

    losses = train(optimizer, closure_for, steps=60)
    assert losses[-6] < losses[0]  # the last anchor against the first, on all samples
    assert all(p.dtype == dtype for p in model.parameters())


@pytest.mark.parametrize("name", METHODS)
def test_frozen_parameters_are_left_out_of_d(name: str) -> None:
    """As if the frozen layer were not a parameter at all; and it is never touched."""
    model, other = net(), net()
    model[0].requires_grad_(False)
    optimizer = make(name, model, k1=4, k2=3)
    assert optimizer.d == 27
    frozen = [p.clone() for p in model[0].parameters()]
    train(optimizer, simple(model, optimizer))
    assert all(map(torch.equal, frozen, model[0].parameters()))
    assert all(p.grad is None for p in model[0].parameters())
    for p in other[0].parameters():
        p.requires_grad_(False)
    head = METHODS[name].make(other[2].parameters(), 0.05, k1=4, k2=3, generator=torch.Generator().manual_seed(2))
    train(head, simple(other, head))
    assert torch.equal(flat(model), flat(other))
    assert optimizer.gradient_queries == head.gradient_queries


@pytest.mark.parametrize("name", METHODS)
def test_a_parameter_without_gradient_counts_as_zero(name: str) -> None:
    model = net()
    unused = nn.Parameter(torch.ones(5, dtype=torch.float64))
    params = [*model.parameters(), unused]
    optimizer = METHODS[name].make(params, 0.05, k1=20, k2=10, generator=torch.Generator().manual_seed(2))
    losses = train(optimizer, simple(model, optimizer))
    assert torch.equal(unused, torch.ones_like(unused))
    assert optimizer.d == flat(model).numel() + 5
    assert losses[18] < losses[0]


@pytest.mark.parametrize("name", METHODS)
def test_two_parameter_groups(name: str) -> None:
    """Two groups with the same lr are one group; with lr 0, a group stays where it is."""
    joined, split = net(), net()
    one = make(name, joined)
    groups = [{"params": split[0].parameters()}, {"params": split[2].parameters(), "lr": 0.05}]
    two = METHODS[name].make(groups, 0.05, generator=torch.Generator().manual_seed(2))
    train(one, simple(joined, one))
    train(two, simple(split, two))
    torch.testing.assert_close(flat(split), flat(joined), rtol=0, atol=1e-13)
    still = [p.clone() for p in split[2].parameters()]
    two.param_groups[1]["lr"] = 0.0
    train(two, simple(split, two))
    assert all(map(torch.equal, still, split[2].parameters()))
    assert not torch.equal(flat(split[0]), flat(joined[0]))


def _bases(params, which: str) -> torch.optim.Optimizer:
    if which == "momentum":
        return torch.optim.SGD(params, 0.05, momentum=0.9)
    return torch.optim.AdamW(params, 0.01)


@pytest.mark.parametrize("which", ["momentum", "adamw"])
@pytest.mark.parametrize("point", ["previous", "anchor"])
def test_momentum_and_adamw_as_base_step_with_v(which: str, point: str) -> None:
    """A second copy of the base, fed with the v that p.grad shows, takes the very same steps."""
    model, other = net(), net()
    optimizer = silk.VarianceReduced(_bases(model.parameters(), which), point, sparsity=silk.RTop(10, 10))
    base = _bases(other.parameters(), which)
    closure_for = simple(model, optimizer)
    for t in range(24):
        optimizer.step(closure_for(torch.arange(64) if t % 6 == 0 else torch.arange(8)), anchor=t % 6 == 0)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.grad = p.grad.clone()  # type: ignore[union-attr]
            assert torch.equal(q.grad, optimizer.state[p]["estimate"])
            assert p.grad.data_ptr() != optimizer.state[p]["estimate"].data_ptr()  # type: ignore[union-attr]
        base.step()
        assert torch.equal(flat(model), flat(other))


@pytest.mark.parametrize("name", METHODS)
def test_sparse_embedding_gradients(name: str) -> None:
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=sparse).double()
        optimizer = make(name, table, k1=6, k2=5)

        def closure_for(batch: Tensor, table=table, optimizer=optimizer, sparse=sparse):
            def closure() -> Tensor:
                optimizer.zero_grad(set_to_none=False)
                loss = (table(batch % 10).sum(1) - 1).square().mean()
                loss.backward()
                assert table.weight.grad.is_sparse == sparse
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(flat(table))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["svrg", "sparse-svrg, selected", "sparse-sgd", "sparse-sgd, each step"])
def test_an_lr_scheduler_of_torch(name: str) -> None:
    """A schedule through torch's scheduler equals one set by hand."""
    by_torch, by_hand = net(), net()
    one, two = make(name, by_torch, lr=0.1), make(name, by_hand, lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=30)
    rates = []
    one_closure, two_closure = simple(by_torch, one), simple(by_hand, two)
    for t in range(24):
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        rates.append(one.param_groups[0]["lr"])
        one.step(one_closure(batch), anchor=t % 6 == 0)
        scheduler.step()
        two.param_groups[0]["lr"] = rates[-1]
        two.step(two_closure(batch), anchor=t % 6 == 0)
    assert rates[-1] < 0.2 * rates[0]
    assert torch.equal(flat(by_torch), flat(by_hand))


def test_a_stateful_model_learns_which_point_is_evaluated() -> None:
    """Algorithm 2: an RNN whose state depends on the point, against the reference."""
    torch.manual_seed(0)
    cell = nn.RNNCell(3, 4).double()
    head = nn.Linear(4, 2).double()
    params = [*cell.parameters(), *head.parameters()]
    g = torch.Generator().manual_seed(1)
    small = [torch.randn(2, 5, 3, generator=g, dtype=torch.float64) for _ in range(7)]
    large = [torch.randn(4, 5, 3, generator=g, dtype=torch.float64) for _ in range(3)]

    def run(values: list[Tensor], batch: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        names = [n for n, _ in cell.named_parameters()], [n for n, _ in head.named_parameters()]
        own = dict(zip(names[0], values[:4], strict=True)), dict(zip(names[1], values[4:], strict=True))
        for t in range(batch.shape[1]):
            state = torch.func.functional_call(cell, own[0], (batch[:, t], state))
        return torch.func.functional_call(head, own[1], (state,)).square().mean(), state.detach()

    def oracle(x: Tensor, batch: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        pieces = x.split([p.numel() for p in params])
        values = [v.view(p.shape).detach().requires_grad_() for v, p in zip(pieces, params, strict=True)]
        loss, after = run(values, batch, state)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, values)]), after

    x0 = torch.cat([p.detach().reshape(-1) for p in params])
    zeros = [torch.zeros(n, 4, dtype=torch.float64) for n in (2, 4)]
    for sparse in (False, True):
        for point in ("previous", "anchor"):
            with torch.no_grad():
                for p, v in zip(params, x0.split([p.numel() for p in params]), strict=True):
                    p.copy_(v.view(p.shape))
            base = torch.optim.SGD(params, 0.05)
            optimizer = silk.VarianceReduced(base, point, sparsity=silk.RTop(8, 8) if sparse else None)
            s = s_before = zeros[0]
            large_s = zeros[1]
            iterates, selections = [], []
            for t in range(20):
                is_anchor = t % 3 == 0
                if t % 7 == 0:
                    s = s_before = zeros[0]
                if t % 3 == 0:
                    large_s = zeros[1]
                state = {}

                def closure() -> Tensor:
                    optimizer.zero_grad()
                    at = optimizer.evaluating
                    if is_anchor:
                        start = large_s
                    else:
                        start = s_before if at == "reference" and optimizer.reference == "previous" else s
                    loss, after = run(params, (large[t % 3] if is_anchor else small[t % 7]), start)
                    state[at] = after
                    loss.backward()
                    return loss.detach()

                optimizer.step(closure, anchor=is_anchor)
                if is_anchor:
                    large_s, s_before = state["current"], s
                else:
                    s_before, s = s, state["current"]
                    selections.append(optimizer.selection)
                iterates.append(torch.cat([p.detach().reshape(-1) for p in params]))
            trace = reference.algorithm_2(
                oracle, x0, small, large, *zeros, lr=0.05, inner_steps=3, iterations=20,
                k1=8, k2=8 if sparse else None, reference=point, replay=iter(selections),
            )  # fmt: skip
            for got, want in zip(iterates, trace.iterates, strict=True):
                torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
            assert float((iterates[-1] - x0).norm()) > 1e-3


# Limits that are no errors.


@pytest.mark.parametrize("name", METHODS)
def test_lr_zero_is_valid_and_moves_nothing(name: str) -> None:
    model = net()
    before = flat(model)
    optimizer = make(name, model, lr=0.0)
    train(optimizer, simple(model, optimizer))
    assert torch.equal(flat(model), before)


def test_top_k_alone_draws_nothing() -> None:
    model = net()
    optimizer = make("sparse-svrg", model, k1=10, k2=0)
    train(optimizer, simple(model, optimizer))
    assert isinstance(optimizer.selection, silk.Selection)
    assert (optimizer.selection.k2, optimizer.selection.scale) == (0, 1.0)


@pytest.mark.parametrize("name", SPARSE)
def test_the_same_generator_gives_the_same_run(name: str) -> None:
    results = []
    for seed in (2, 2, 3):
        model = net()
        optimizer = METHODS[name].make(model.parameters(), 0.05, generator=torch.Generator().manual_seed(seed))
        train(optimizer, simple(model, optimizer))
        results.append(flat(model))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# Saved, loaded in a new process, and continued.


RESUME = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_must_hold as t
name, base, folder = sys.argv[2], sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
model, optimizer, loader = t.resumable(name, base)
saved = torch.load(folder + "/state.pt", weights_only=True)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
loader.load_state_dict(saved["loader"])
torch.set_rng_state(saved["rng"])
t.go(model, optimizer, loader, 10**9)
torch.save({"x": t.flat(model), "queries": optimizer.gradient_queries}, folder + "/end.pt")
"""


def resumable(name: str, base: str) -> tuple[nn.Module, silk.VarianceReduced, silk.AnchorLoader]:
    model = net(nn.BatchNorm1d(8), nn.Dropout(0.3))
    made = make(name, model, k1=10, k2=5)
    if base != "sgd":
        made = silk.VarianceReduced(
            _bases(model.parameters(), base),
            made.reference,
            move=made.move,
            choose=made.choose,
            anchor_move=made.anchor_move,
            sparsity=made.sparsity,
            generator=torch.Generator().manual_seed(2),
        )
    loader = silk.AnchorLoader(
        (X, Y), 40, 8, silk.Geometric(5), loops=8, micro_batch_size=16, generator=torch.Generator().manual_seed(1)
    )
    return model, made, loader


def go(model: nn.Module, optimizer: silk.VarianceReduced, loader: silk.AnchorLoader, batches: int) -> None:
    for number, ((x, y), is_anchor) in enumerate(loader):

        def closure(x=x, y=y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        optimizer.step(closure, anchor=is_anchor, samples=len(x))
        if number + 1 == batches:
            return


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "base", "batches"),
    [
        ("spiderboost", "sgd", 7),
        ("sparse-spiderboost", "momentum", 7),
        ("sparse-svrg, refresh", "adamw", 6),
        ("sparse-svrg, selected", "adamw", 7),
        ("sparse-sgd", "adamw", 8),
        ("sparse-sgd, selected at anchors too", "adamw", 8),
        ("sparse-sgd", "momentum", 2),  # in the middle of an anchor's pieces
    ],
)
def test_resumed_in_a_new_process_is_bit_identical(name: str, base: str, batches: int, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, optimizer, loader = resumable(name, base)
    go(model, optimizer, loader, 10**9)
    torch.manual_seed(5)
    half, stopped, at = resumable(name, base)
    go(half, stopped, at, batches)
    position = at.state_dict()["position"]
    assert position["update"] + position["piece"] > 0  # inside a loop
    saved = {
        "model": half.state_dict(),
        "optimizer": stopped.state_dict(),
        "loader": at.state_dict(),
        "rng": torch.get_rng_state(),
    }
    torch.save(saved, tmp_path / "state.pt")
    here = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", RESUME, here, name, base, str(tmp_path)], check=True, cwd=here)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    assert torch.equal(end["x"], flat(model))
    assert end["queries"] == optimizer.gradient_queries


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_saving_changes_nothing(name: str, base: str) -> None:
    results = []
    for saves in (False, True):
        torch.manual_seed(5)
        model, optimizer, _ = resumable(name, base)
        closure_for = simple(model, optimizer)
        for t in range(20):
            batch = torch.arange(40) if t % 6 == 0 else torch.arange(8)
            optimizer.step(closure_for(batch), anchor=t % 6 == 0)
            if saves:
                optimizer.state_dict()
        results.append(flat(model))
    assert torch.equal(*results)


def test_loading_while_an_anchor_in_pieces_is_under_way() -> None:
    """SparseSGD keeps no v between anchors, so that of a half anchor must not survive the loading."""
    results = []
    for dirty in (False, True):
        model = net()
        optimizer = make("sparse-sgd", model)
        closure_for = simple(model, optimizer)
        train(optimizer, closure_for, steps=3)
        state = {"x": {k: v.clone() for k, v in model.state_dict().items()}, "o": optimizer.state_dict()}
        if dirty:
            optimizer.step(closure_for(torch.arange(9)), anchor=silk.Anchor(0.5, last=False))
        model.load_state_dict(state["x"])
        optimizer.load_state_dict(state["o"])
        train(optimizer, closure_for, steps=12, start=3)
        results.append(flat(model))
    assert torch.equal(*results)


def test_the_base_may_load_a_state_of_its_own() -> None:
    model = net()
    optimizer = make("svrg", model)
    optimizer.base.load_state_dict(optimizer.base.state_dict())
    assert optimizer.param_groups is optimizer.base.param_groups
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.0)
    before = flat(model)
    train(optimizer, simple(model, optimizer))
    assert scheduler.get_last_lr() == [0.0]
    assert torch.equal(flat(model), before)


def test_breaking_out_of_an_anchor_and_beginning_another() -> None:
    model = net()
    optimizer = make("sparse-svrg", model)
    loader = silk.AnchorLoader((X, Y), 40, 8, 4, micro_batch_size=10, generator=torch.Generator().manual_seed(1))
    go(model, optimizer, loader, 2)  # in the middle of an anchor
    go(model, optimizer, loader, 6)
    assert (optimizer.anchors, optimizer.steps) == (1, 3)


# A v that is not finite.


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at_anchor", [True, False])
def test_divergence_leaves_x_as_it_was_and_training_can_go_on(name: str, at_anchor: bool) -> None:
    model = net()
    optimizer = make(name, model, lr=0.05)
    closure_for = simple(model, optimizer)
    train(optimizer, closure_for, steps=9)
    before = flat(model)

    def bad() -> Tensor:
        loss = closure_for(torch.arange(8))()
        with torch.no_grad():
            for p in model.parameters():
                p.grad.mul_(float("inf"))  # type: ignore[union-attr]
        return loss

    with pytest.raises(silk.DivergenceError) as caught:
        optimizer.step(bad, anchor=at_anchor)
    assert torch.equal(flat(model), before)
    error = caught.value
    assert error.step == 9
    assert error.inner_step == (0 if at_anchor else 3)
    assert error.norms["x"] == pytest.approx(float(before.norm()))
    assert "Theorem 1" in str(error)
    if optimizer.reference is not None:
        assert error.theorem_1_lr is not None
        assert 0 < error.theorem_1_lr < 10
        assert f"{0.0 + error.theorem_1_lr:.2g}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), repr(again.norms)) == (str(error), repr(error.norms))
    with pytest.raises(RuntimeError, match="anchor"):
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
    losses = train(optimizer, closure_for, steps=24, start=12)
    assert losses[-6] < losses[0]


def test_divergence_comes_from_a_large_step_too() -> None:
    """Algorithm 1 at a step size far above Theorem 1's, in float32: it raises, and x is finite."""
    problem = mlp()
    model = problem.model.float()
    optimizer = silk.SparseSpiderBoost(model.parameters(), lr=50.0, k1=2, k2=2, inner_steps=1000)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(X[:, :5].float()).square().mean()
        loss.backward()
        return loss.detach()

    with pytest.raises(silk.DivergenceError, match="this run's secants give L >="):
        for _ in range(1000):
            optimizer.step(closure)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_a_first_difference_that_is_not_finite_says_nothing_of_the_smoothness() -> None:
    model = net()
    optimizer = make("sparse-svrg", model, inner_steps=10)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)))

    def bad() -> Tensor:
        loss = closure_for(torch.arange(8))()
        if optimizer.evaluating == "current":
            for p in model.parameters():
                p.grad.fill_(float("inf"))  # type: ignore[union-attr]
        return loss

    with pytest.raises(silk.DivergenceError) as caught:
        optimizer.step(bad)
    assert caught.value.theorem_1_lr is None
    assert "L >=" not in str(caught.value)


def test_a_closure_that_fails_at_an_anchor_leaves_the_count_as_it_was() -> None:
    model = net()
    optimizer = make("svrg", model, inner_steps=silk.Geometric(4))
    closure_for = simple(model, optimizer)
    good = closure_for(torch.arange(8))
    seen = []
    for _ in range(60):
        due = optimizer.next_is_anchor()
        if due:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
            assert optimizer.next_is_anchor()
        optimizer.step(good)
        seen.append(due)
    assert 5 < sum(seen) < 40


# Clipping.


@pytest.mark.parametrize("name", METHODS)
def test_max_norm_clips_what_moves_x_and_not_the_estimate(name: str) -> None:
    model = net()
    optimizer = make(name, model, lr=1.0, max_norm=0.01)
    closure_for = simple(model, optimizer)
    for t in range(13):
        before = flat(model)
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        optimizer.step(closure_for(batch), anchor=t % 6 == 0)
        assert float((flat(model) - before).norm()) == pytest.approx(0.01, rel=1e-3)
        if t == 0 and "estimate" in optimizer.state[model[0].weight]:
            estimate = torch.cat([optimizer.state[p]["estimate"].reshape(-1) for p in model.parameters()])
            assert float(estimate.norm()) > 0.1
