"""Every optimizer against the plain reference, and the limits in which it equals another method."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from cases import DENSE, METHODS, PROBLEMS, SPARSE, Problem, mlp
from torch import Tensor

import spidersilk as silk
from spidersilk import reference

STEPS, INNER, B, SMALL = 200, 8, 20, 5


def batches(problem: Problem, seed: int = 3) -> tuple[list[Tensor], list[Tensor]]:
    g = torch.Generator().manual_seed(seed)
    draw = lambda size: torch.randperm(problem.samples, generator=g)[:size]  # noqa: E731
    loops = STEPS // INNER
    return [draw(B) for _ in range(loops)], [draw(SMALL) for _ in range(loops * (INNER - 1))]


def run(problem: Problem, optimizer: silk.VarianceReduced) -> tuple[list[Tensor], list[silk.Selection]]:
    """Train; the iterates and each selection once."""
    large, small = map(iter, batches(problem))
    iterates, selections = [], []
    for t in range(STEPS):
        is_anchor = t % INNER == 0
        batch = next(large) if is_anchor else next(small)
        optimizer.step(problem.closure(optimizer, batch), anchor=is_anchor, samples=len(batch))
        iterates.append(problem.flat_x())
        if optimizer.selection is not None and optimizer.selection is not (selections or [None])[-1]:
            selections.append(optimizer.selection)
    return iterates, selections


# Every method on both backends, each time on another problem.
TRAJECTORIES = [
    (name, list(PROBLEMS)[(i + j) % len(PROBLEMS)], backend)
    for i, name in enumerate(METHODS)
    for j, backend in enumerate(("torch", "numba"))
]


@pytest.mark.parametrize(("name", "problem_name", "backend"), TRAJECTORIES)
def test_trajectory_equals_the_reference(name: str, problem_name: str, backend: str) -> None:
    problem = PROBLEMS[problem_name]()
    method = METHODS[name]
    x0 = problem.flat_x()
    lr = problem.lr
    g = torch.Generator().manual_seed(4)
    optimizer = method.make(problem.model.parameters(), lr, generator=g, backend=backend)
    iterates, selections = run(problem, optimizer)

    large, small = batches(problem)
    trace = reference.algorithm_1(
        problem.flat_gradient,
        x0,
        iter(large),
        iter(small),
        lr=lr,
        inner_steps=INNER,
        loops=STEPS // INNER,
        k1=3,
        k2=None if name in DENSE else 2,
        replay=iter(selections),
        **method.options,
    )
    assert len(trace.iterates) == STEPS
    assert trace.selections == selections  # all replayed, none left over
    for got, want in zip(iterates, trace.iterates, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    for selection, memory in zip(trace.selections, trace.selected_from, strict=True):  # and replayed what M says
        others = memory.index_fill(0, selection.top, 0.0)
        assert float(memory[selection.top].min()) >= float(others.max()) - 1e-10
    assert optimizer.gradient_queries == pytest.approx(trace.queries, rel=1e-12)
    assert float(iterates[-1].sub(x0).norm()) > 0.01  # it went somewhere


@pytest.mark.parametrize(
    ("sparse", "dense", "k1", "backend"),
    [
        ("sparse-spiderboost", "spiderboost", 0, "torch"),
        ("sparse-spiderboost", "spiderboost", 30, "numba"),
        ("sparse-svrg", "svrg", 30, "torch"),
        ("sparse-svrg", "svrg", 66, "numba"),
        ("sparse-svrg, refresh", "svrg", 66, "torch"),
        ("sparse-svrg, refresh", "svrg", 0, "numba"),
    ],
)
def test_all_coordinates_selected_is_the_dense_method_bit_for_bit(
    sparse: str, dense: str, k1: int, backend: str
) -> None:
    ours, theirs = mlp(), mlp()
    d = len(ours.flat_x())
    got, _ = run(ours, METHODS[sparse].make(ours.model.parameters(), 0.1, k1=k1, k2=d - k1, backend=backend))
    want, _ = run(theirs, METHODS[dense].make(theirs.model.parameters(), 0.1))
    assert all(map(torch.equal, got, want))


def sgd_run(problem: Problem, base: torch.optim.Optimizer, draw: list[Tensor]) -> list[Tensor]:
    iterates = []
    for batch in draw:
        problem.closure(base, batch)()
        base.step()
        iterates.append(problem.flat_x())
    return iterates


@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].options.get("anchor_move") != "selected"])
def test_anchors_alone_are_plain_sgd(name: str) -> None:
    """m = 1: every step is an anchor."""
    ours, theirs = mlp(), mlp()
    optimizer = METHODS[name].make(ours.model.parameters(), 0.1, inner_steps=1)
    draw = batches(ours)[1]
    want = sgd_run(theirs, torch.optim.SGD(theirs.model.parameters(), 0.1), draw)
    for batch, x in zip(draw, want, strict=True):
        optimizer.step(ours.closure(optimizer, batch))
        torch.testing.assert_close(ours.flat_x(), x, rtol=0, atol=1e-12)


# Every base with both ways to choose and both anchor moves, not with every pair of them.
PERMUTED = [
    (base, anchor_move, ("anchor", "step")[(i + j) % 2])
    for i, base in enumerate(("sgd", "momentum", "nesterov", "adamw", "adam-amsgrad", "rmsprop", "adagrad"))
    for j, anchor_move in enumerate(("all", "selected"))
]


@pytest.mark.parametrize(("base", "anchor_move", "choose"), PERMUTED)
def test_all_coordinates_selected_is_the_dense_method(base: str, anchor_move: str, choose: str) -> None:
    """k = d: the compact vector is a permutation of x, so every base must take the very steps it takes on all of x."""
    ours, theirs = mlp(), mlp()
    d = len(ours.flat_x())
    optimizer = silk.VarianceReduced(
        BASES[base](ours.model.parameters()),
        "anchor",
        move="selected",
        choose=choose,
        anchor_move=anchor_move,
        sparsity=silk.RTop(d - 7, 7),
        inner_steps=INNER,
    )
    dense = silk.VarianceReduced(BASES[base](theirs.model.parameters()), "anchor", inner_steps=INNER)
    for batch in batches(ours)[1]:
        optimizer.step(ours.closure(optimizer, batch))
        dense.step(theirs.closure(dense, batch))
        torch.testing.assert_close(ours.flat_x(), theirs.flat_x(), rtol=0, atol=1e-12)


BASES = {
    "sgd": lambda params: torch.optim.SGD(params, 0.1),
    "momentum": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, nesterov=True),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01),
    "adam-amsgrad": lambda params: torch.optim.Adam(params, 0.01, amsgrad=True, foreach=False),
    "rmsprop": lambda params: torch.optim.RMSprop(params, 0.01, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 0.05),
}


def test_no_top_is_random_coordinates() -> None:
    """k1 = 0: the memory has no say, so another decay draws the same coordinates and takes the same steps."""
    runs = []
    for decay in (0.1, 0.9):
        problem = mlp()
        generator = torch.Generator().manual_seed(5)
        optimizer = silk.SparseSVRG(
            problem.model.parameters(), 0.1, k1=0, k2=6, memory_decay=decay, generator=generator
        )
        iterates, selections = run(problem, optimizer)
        assert all(s.k1 == 0 and s.k2 == 6 and s.scale == len(iterates[0]) / 6 for s in selections)
        runs.append((iterates, [s.random.tolist() for s in selections]))
    assert runs[0][1] == runs[1][1]
    assert len(set(map(tuple, runs[0][1]))) > 100
    assert all(map(torch.equal, runs[0][0], runs[1][0]))


@pytest.mark.parametrize("base", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("anchor_move", ["all", "selected"])
def test_unselected_coordinates_stay_bit_for_bit(base: str, anchor_move: str) -> None:
    problem = mlp()
    optimizer = silk.VarianceReduced(
        BASES[base](problem.model.parameters()),
        "anchor",
        move="selected",
        anchor_move=anchor_move,
        sparsity=silk.RTop(5, 3),
    )
    large, small = map(iter, batches(problem))
    for t in range(40):
        before = problem.flat_x()
        is_anchor = t % INNER == 0
        optimizer.step(problem.closure(optimizer, next(large if is_anchor else small)), anchor=is_anchor)
        if is_anchor and anchor_move == "all":
            continue
        selection = optimizer.selection
        assert isinstance(selection, silk.Selection)
        changed = (problem.flat_x() != before).nonzero().squeeze(1)
        assert set(changed.tolist()) == set(selection.indices.tolist())


def test_base_state_has_k_entries_when_anchors_move_the_selected() -> None:
    problem = mlp()
    base = torch.optim.AdamW(problem.model.parameters(), 0.01)
    optimizer = silk.VarianceReduced(
        base, "anchor", move="selected", anchor_move="selected", sparsity=silk.RTop(5, 3), inner_steps=4
    )
    draw = batches(problem)[1]
    for batch in draw[:30]:
        optimizer.step(problem.closure(optimizer, batch))
    assert not base.state  # nothing of size d
    twin = optimizer._engine.compact.twin  # type: ignore[union-attr]
    (state,) = twin.state.values()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "step": (), "exp_avg": (8,), "exp_avg_sq": (8,)
    }  # fmt: skip
    assert float(state["step"]) == 30


@pytest.mark.parametrize("anchor_move", ["all", "selected"])
def test_compact_state_follows_its_coordinates(anchor_move: str) -> None:
    """AdamW on the compact vector against AdamW written out on all of x, moving by a mask."""
    problem, other = mlp(), mlp()
    lr, b1, b2, eps = 0.01, 0.9, 0.999, 1e-8
    base = torch.optim.AdamW(problem.model.parameters(), lr, weight_decay=0.1)
    optimizer = silk.VarianceReduced(
        base, "anchor", move="selected", choose="step", anchor_move=anchor_move, sparsity=silk.RTop(6, 4)
    )
    x = other.flat_x()
    mean, square, inside = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x).bool()
    large, small = map(iter, batches(problem))
    memory = torch.zeros_like(x)
    for t in range(60):
        is_anchor = t % INNER == 0
        batch = next(large if is_anchor else small)
        optimizer.step(problem.closure(optimizer, batch), anchor=is_anchor)
        gradient = other.flat_gradient(x, batch)
        if is_anchor:
            memory, x_anchor, v_anchor = gradient.abs(), x, gradient
        else:
            gradient = v_anchor + gradient - other.flat_gradient(x_anchor, batch)
        chosen = torch.ones_like(inside)
        if not is_anchor or anchor_move == "selected":
            assert isinstance(optimizer.selection, silk.Selection)
            chosen = reference.mask(optimizer.selection)
        if anchor_move == "selected":
            entering = chosen & ~inside
            mean[entering] = 0.0
            square[entering] = memory[entering] ** 2 * (1 - b2**t)
            inside = chosen
        count = t + 1
        mean = torch.where(chosen, b1 * mean + (1 - b1) * gradient, mean)
        square = torch.where(chosen, b2 * square + (1 - b2) * gradient**2, square)
        moved = mean / (1 - b1**count) / ((square / (1 - b2**count)).sqrt() + eps)
        x = torch.where(chosen, x * (1 - lr * 0.1) - lr * moved, x)
        if not is_anchor:
            memory = torch.where(chosen, 0.5 * gradient.abs() + 0.5 * memory, memory)
        torch.testing.assert_close(problem.flat_x(), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SPARSE)
def test_every_sparse_method_trains_per_tensor(name: str) -> None:
    problem = mlp()
    optimizer = METHODS[name].make(
        problem.model.parameters(),
        0.05,
        k1=0.2,
        k2=0.2,
        per_tensor=True,
        generator=torch.Generator().manual_seed(1),
    )
    _, selections = run(problem, optimizer)
    sizes = [p.numel() for p in problem.model.parameters()]
    for selection in selections:
        counts = torch.bincount(
            torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))[selection.indices], minlength=4
        )
        assert counts.tolist() == [2 * -(-size // 5) for size in sizes]
    everything = torch.arange(problem.samples)
    assert problem.loss(problem.model, everything) < mlp().loss(mlp().model, everything)


def test_coordinates_are_chosen_over_all_dtypes_together() -> None:
    torch.manual_seed(0)
    a = torch.nn.Parameter(torch.randn(30, dtype=torch.float64))
    b = torch.nn.Parameter(torch.randn(20, dtype=torch.float32))
    one = torch.nn.Parameter(torch.cat([a.detach(), b.detach().double()]))
    weights = torch.cat([torch.rand(30) * 0.1, 1 + torch.rand(20)]).double()

    def runner(optimizer: silk.VarianceReduced, x: list[torch.nn.Parameter]):
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (weights * torch.cat([p.double() for p in x]) ** 2).sum()
            loss.backward()
            return loss

        for t in range(30):
            optimizer.step(closure, anchor=t % 10 == 0, samples=1)
        return torch.cat([p.detach().double() for p in x])

    for make in (silk.SparseSVRG, partial(silk.SparseSVRG, move="selected", choose="anchor")):
        pair = [torch.nn.Parameter(p.detach().clone()) for p in (a, b)]
        single = torch.nn.Parameter(one.detach().clone())
        generators = [torch.Generator().manual_seed(7) for _ in range(2)]
        split = make(pair, 0.05, k1=4, k2=3, generator=generators[0])
        joined = make([single], 0.05, k1=4, k2=3, generator=generators[1])
        torch.testing.assert_close(runner(split, pair), runner(joined, [single]), rtol=1e-5, atol=1e-6)
        assert isinstance(split.selection, list)
        assert sum(s.k for s in split.selection) == 7
        assert split.gradient_queries == pytest.approx(joined.gradient_queries)


@pytest.mark.parametrize("anchor_move", ["all", "selected"])
@pytest.mark.parametrize("base", ["momentum", "adamw"])
def test_two_equal_groups_are_one_also_where_one_has_nothing_selected(anchor_move: str, base: str) -> None:
    runs = []
    for split in (False, True):
        problem = mlp()
        params = list(problem.model.parameters())
        groups = [{"params": params[:2]}, {"params": params[2:]}] if split else params
        optimizer = silk.VarianceReduced(
            BASES[base](groups),
            "anchor",
            move="selected",
            choose="step",
            anchor_move=anchor_move,
            sparsity=silk.RTop(0, 1),
            generator=torch.Generator().manual_seed(3),
        )
        iterates, selections = run(problem, optimizer)
        runs.append(iterates)
        first = sum(p.numel() for p in params[:2])
        assert any(bool((s.indices < first).all()) for s in selections)  # the second group goes without
        assert any(bool((s.indices >= first).all()) for s in selections)
    for one, two in zip(*runs, strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=1e-12)


def test_per_tensor_over_two_dtypes() -> None:
    a, b = torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.ones(30, dtype=torch.bfloat16))
    optimizer = silk.SparseSVRG([a, b], 0.05, k1=0.2, k2=0.2, per_tensor=True)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = a.square().sum() + b.float().square().sum()
        loss.backward()
        return loss.detach()

    losses = [float(optimizer.step(closure, anchor=t % 5 == 0)) for t in range(20)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", [n for n in SPARSE if "at anchors too" not in n])  # these draw before any replay
@pytest.mark.parametrize("base", ["sgd", "momentum", "scheduled", "clipped", "channels last"])
def test_one_pass_and_many_passes_agree(name: str, base: str) -> None:
    """Fused and unfused updates agree in x, v, M and p.grad, given the same selections."""

    def go(backend: str, replay: list[silk.Selection] | None) -> tuple[list[Tensor], list[silk.Selection]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(16, 3)
        )
        if base == "channels last":
            model = model.to(memory_format=torch.channels_last)
        x, y = torch.randn(40, 2, 4, 4), torch.randint(3, (40,))
        options = {"momentum": 0.9} if base == "momentum" else {"max_norm": 0.5} if base == "clipped" else {}
        optimizer = METHODS[name].make(model.parameters(), 0.05, k1=9, k2=7, backend=backend, **options)
        if base == "scheduled":
            torch.optim.lr_scheduler.StepLR(optimizer.base, 100)
        drawn: list[silk.Selection] = []
        for step in range(9):
            if replay is not None and optimizer._engine is not None:
                rest = iter(replay[len(drawn) :])
                optimizer._engine.selector.draw = lambda _, rest=rest: [next(rest)]  # type: ignore
            before = optimizer.selection
            batch = slice(None) if step % 4 == 0 else slice(step, step + 10)

            def closure(batch: slice = batch) -> Tensor:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
                loss.backward()
                return loss

            optimizer.step(closure, anchor=step % 4 == 0)
            if optimizer.selection is not None and optimizer.selection is not before:
                drawn.append(optimizer.selection)  # type: ignore[arg-type]
        found = [p.detach().clone() for p in model.parameters()]
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        for state in optimizer.state.values():
            found += [state[key].clone() for key in ("memory", "estimate") if key in state]
        return found, drawn

    numba, selections = go("numba", None)
    plain, again = go("torch", selections)
    assert len(selections) == len(again) > 0
    for a, b in zip(numba, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
