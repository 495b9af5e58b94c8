"""Optimizers step alike with and without sparse_backward, and refuse closures that need the gradients it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import group_cases
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.layers.dressing import Dressed

GROUPS = ("rows", "columns")
SHARES = {"k1": 0.3, "k2": 0.2, "backend": "torch"}  # no kernels to compile
SPARSE = [name for name in cases.METHODS if name.startswith("sparse")]
PROBLEMS = {"conv": group_cases.conv, "mlp": cases.mlp, "quadratic": cases.PROBLEMS["quadratic"]}


def trajectory(problem: cases.Problem, optimizer: silk.VarianceReduced, extra: Any = None) -> list[Tensor]:
    """x after each of twelve updates, in loops of four."""
    points = []
    for step in range(12):
        size = 30 if step % 4 == 0 else 5
        batch = torch.randperm(problem.samples, generator=torch.Generator().manual_seed(step))[:size]
        closure = problem.closure(optimizer, batch)
        optimizer.step((lambda run=closure: extra(run)) if extra else closure, anchor=step % 4 == 0, samples=size)
        points.append(problem.flat_x())
    return points


def check_alike(problem: str, make: Callable[..., silk.VarianceReduced]) -> None:
    """Weights of layers get no gradient at either point of a small step, but for the one that is compared."""
    runs = []
    for sparse in (True, False):
        at = PROBLEMS[problem]()
        weights = [m.weight for m in at.model.modules() if isinstance(m, nn.Linear | nn.Conv2d | nn.Embedding)]
        optimizer = make(at.model.parameters(), generator=torch.Generator().manual_seed(7), sparse_backward=sparse)
        seen = []

        def look(run: Any, optimizer=optimizer, weights=weights, seen=seen) -> Any:
            loss = run()
            seen.append((optimizer.evaluating, any(w.grad is not None for w in weights)))
            return loss

        runs.append(trajectory(at, optimizer, look))
        assert not any(isinstance(module, Dressed) for module in at.model.modules())
        dense, ruled = ("current", bool(weights)), ("current", bool(weights) and not sparse)
        again, reference = ([ruled] if sparse else []), ("reference", ruled[1])
        first = [dense, dense, *again, reference, ruled, reference, ruled, reference]
        assert seen == first + 2 * [dense, ruled, reference, ruled, reference, ruled, reference]
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("method", "problem"), [*((m, "conv") for m in SPARSE), ("sparse-svrg", "mlp")])
def test_trajectories_agree(method: str, problem: str, groups: str) -> None:
    check_alike(problem, lambda p, **o: cases.METHODS[method].make(p, 0.05, groups=groups, **SHARES, **o))


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("per_tensor", [False, True])
def test_with_one_selection_a_loop(groups: Any, per_tensor: bool) -> None:
    options: Any = {"choose": "anchor", "move": "selected", "per_tensor": per_tensor, **SHARES}
    check_alike("conv", lambda p, **o: silk.SparseSVRG(p, 0.1, groups=groups, **options, **o))


@pytest.mark.parametrize("groups", GROUPS)
def test_a_model_without_layers_that_have_rules(groups: Any) -> None:
    check_alike("quadratic", lambda p, **o: silk.SparseSVRG(p, 0.01, groups=groups, **SHARES, **o))


def test_parameters_of_several_types() -> None:
    """There is a flat vector for each."""
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.ModuleList([nn.Linear(4, 6).double(), nn.Linear(6, 5), nn.Linear(5, 3).double()])
        options: Any = {"groups": "columns", "sparse_backward": sparse, "generator": torch.Generator().manual_seed(1)}
        optimizer = silk.SparseSVRG(model.parameters(), 0.1, **SHARES, **options)
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(3, (8,))

        def closure(model=model, optimizer=optimizer, x=x, y=y) -> Tensor:
            optimizer.zero_grad()
            hidden = torch.tanh(model[1](torch.tanh(model[0](x)).float()))
            loss = F.cross_entropy(model[2](hidden.double()), y)
            loss.backward()
            return loss

        for step in range(8):
            optimizer.step(closure, anchor=step % 4 == 0)
        ends.append(torch.cat([p.detach().double().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_entries_are_left_to_autograd() -> None:
    at = cases.mlp()
    optimizer = silk.SparseSVRG(at.model.parameters(), 0.01, k1=0.3, k2=0.2, sparse_backward=True)
    seen = []

    def look(run: Any) -> Any:
        loss = run()
        seen.append(all(p.grad is not None for p in at.model.parameters()))
        return loss

    trajectory(at, optimizer, look)
    assert all(seen)


@pytest.mark.parametrize("groups", GROUPS)
def test_resumed_in_the_middle_of_a_loop_is_bit_identical(groups: Any) -> None:
    def make() -> tuple[cases.Problem, silk.SparseSVRG]:
        at = group_cases.conv()
        options: Any = {"choose": "anchor", "move": "selected", "groups": groups, "sparse_backward": True, **SHARES}
        generator = torch.Generator().manual_seed(1)
        return at, silk.SparseSVRG(at.model.parameters(), 0.1, generator=generator, **options)

    at, optimizer = make()
    group_cases.train(at, optimizer)
    wanted = at.flat_x()
    at, optimizer = make()
    group_cases.train(at, optimizer, 0, 9)
    saved, model = optimizer.state_dict(), at.model.state_dict()
    at, optimizer = make()
    at.model.load_state_dict(model)
    optimizer.load_state_dict(saved)
    group_cases.train(at, optimizer, 9)
    assert torch.equal(at.flat_x(), wanted)


def net(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 2, bias=bias)).double()


X, Y = torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4).sin(), torch.arange(8) % 2


def test_randomness_and_buffers_are_as_after_one_evaluation() -> None:
    ends = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 2)).double()
        options: Any = {"move": "selected", "groups": "columns", "sparse_backward": sparse}
        optimizer = silk.SparseSVRG(model.parameters(), 0.1, k1=0.5, k2=0.0, **options)

        def closure(model=model, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for step in range(6):
            optimizer.step(closure, anchor=step % 3 == 0)
        ends.append(torch.cat([t.double().reshape(-1) for t in (*model.state_dict().values(), torch.rand(3))]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


# Closures that need the gradients that are left out.


def _clips(model: nn.Sequential) -> Any:
    F.cross_entropy(model(X), Y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def _clips_by_hand(model: nn.Sequential) -> Any:
    F.cross_entropy(model(X), Y).backward()
    for p in model.parameters():
        p.grad = None if p.grad is None else p.grad.clamp(-1e-3, 1e-3)


def _differentiates(model: nn.Sequential) -> Any:
    params = list(model.parameters())
    for p, g in zip(params, torch.autograd.grad(F.cross_entropy(model(X), Y), params), strict=True):
        p.grad = g


def _differentiates_what_is_there(model: nn.Sequential) -> Any:
    params = list(model.parameters())
    for p, g in zip(params, torch.autograd.grad(model(X).square().sum(), params, allow_unused=True), strict=True):
        p.grad = g


def _for_some_alone(model: nn.Sequential) -> Any:
    F.cross_entropy(model(X), Y).backward(inputs=[model[0].weight, model[2].weight])  # type: ignore[list-item]


def _penalty_on_gradients(model: nn.Sequential) -> Any:
    loss = F.cross_entropy(model(X), Y)
    loss.backward(create_graph=True)
    sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None).backward()  # type: ignore[union-attr]


def _penalty_on_some_gradients(model: nn.Sequential) -> Any:
    loss = F.cross_entropy(model(X), Y)
    slopes = torch.autograd.grad(loss, [model[0].weight], create_graph=True)  # type: ignore[list-item]
    (loss + slopes[0].square().sum()).backward()


def _reads(model: nn.Sequential) -> Any:
    F.cross_entropy(model(X), Y).backward()
    return sum(p.grad.norm() for p in model.parameters())  # type: ignore[union-attr]


CHANGED = "the closure changed gradients after backward"
FAILS = "sparse_backward = True: without the whole gradients of weights the closure fails, because.*leave sparse_back"
EITHER = "sparse_backward = True: .*(fails|has other gradients), because.*leave sparse_backward=False"
USES = {
    "clip_grad_norm_": (_clips, CHANGED),
    "clips by hand": (_clips_by_hand, CHANGED),
    "autograd.grad": (_differentiates, FAILS),
    "autograd.grad(allow_unused)": (_differentiates_what_is_there, EITHER),
    "backward(inputs)": (_for_some_alone, EITHER),
    "backward(create_graph)": (_penalty_on_gradients, EITHER),
    "penalty on gradients": (_penalty_on_some_gradients, FAILS),
    "reads": (_reads, FAILS),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("use", USES)
def test_closures_that_need_whole_gradients_are_refused(use: str, groups: Any, bias: bool) -> None:
    body, message = USES[use]
    model = net(bias)
    optimizer = silk.SparseSVRG(model.parameters(), 0.1, 0.5, 0.2, groups=groups, sparse_backward=True)

    def closure() -> float:
        optimizer.zero_grad()
        body(model)
        return 0.0

    optimizer.step(closure, anchor=True)
    with pytest.raises(RuntimeError, match=message):
        optimizer.step(closure, anchor=False)
    assert not any(isinstance(module, Dressed) for module in model.modules())


def test_a_closure_that_leaves_no_gradient_is_refused() -> None:
    model = net(bias=False)  # nothing arrives in p.grad
    optimizer = silk.SparseSVRG(model.parameters(), 0.1, 0.5, 0.2, groups="columns", sparse_backward=True)
    forgets = False

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        if not forgets:
            loss.backward()
        return loss

    for step in range(3):
        optimizer.step(closure, anchor=step == 0)
    forgets = True
    with pytest.raises(RuntimeError, match="left no gradient in any parameter"):
        optimizer.step(closure, anchor=False)
