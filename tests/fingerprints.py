"""What every optimizer and loader does, as a few numbers each: `python tests/fingerprints.py` writes fingerprints.json.

Only public names are used, so that the numbers can be compared across any change inside the library. A run of 60 steps
ends at some x; its fingerprint is x along six fixed directions, v and M along two, the gradient queries, and a hash of
all selections.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from cases import METHODS, Problem, mlp

import spidersilk as silk

PATH = Path(__file__).with_name("fingerprints.json")
STEPS, INNER, B, SMALL = 60, 8, 20, 5
BACKENDS = ("torch", "numba")

Make = Callable[..., Any]
WEIGHTED: dict[str, Make] = {
    "SpiderBoost": lambda p, **o: silk.SpiderBoost(p, 0.05, **o),
    "SpiderBoost, momentum": lambda p, **o: silk.SpiderBoost(p, 0.02, momentum=0.9, weight_decay=0.01, **o),
    "SparseSpiderBoost": lambda p, **o: silk.SparseSpiderBoost(p, 0.02, **o),
    "SparseSpiderBoost, per tensor": lambda p, **o: silk.SparseSpiderBoost(p, 0.02, per_tensor=True, **o),
    "SparseSpiderBoost, rows": lambda p, **o: silk.SparseSpiderBoost(p, 0.02, 0.2, 0.2, groups="rows", **o),
    "SVRG": lambda p, **o: silk.SVRG(p, 0.05, **o),
    "SVRG, clipped": lambda p, **o: silk.SVRG(p, 0.05, max_norm=0.1, **o),
    "SparseSVRG": lambda p, **o: silk.SparseSVRG(p, 0.05, **o),
    "SparseSVRG, clipped": lambda p, **o: silk.SparseSVRG(p, 0.05, max_norm=0.1, **o),
    "SparseSVRG, momentum": lambda p, **o: silk.SparseSVRG(p, 0.05, momentum=0.9, **o),
    "SparseSVRG, rows": lambda p, **o: silk.SparseSVRG(p, 0.05, 0.2, 0.2, groups="rows", **o),
    "SparseSVRG, rows per tensor": lambda p, **o: silk.SparseSVRG(
        p, 0.05, 0.2, 0.2, groups="rows", per_tensor=True, **o
    ),
    "SparseSVRG, rows selected": lambda p, **o: silk.SparseSVRG(
        p, 0.05, 0.2, 0.2, groups="rows", move="selected", choose="anchor", sparse_backward=True, **o
    ),
    "SparseSVRG, memory reset": lambda p, **o: silk.SparseSVRG(p, 0.05, memory_reset=True, memory_decay=0.3, **o),
    "SparseSVRG, selected, clipped": lambda p, **o: silk.SparseSVRG(p, 0.1, move="selected", max_norm=0.1, **o),
    "VarianceReduced, AdamW": lambda p, **o: silk.VarianceReduced(torch.optim.AdamW(p, 0.01), **o),
    "VarianceReduced, AdamW, rtop": lambda p, **o: silk.VarianceReduced(
        torch.optim.AdamW(p, 0.01), sparsity=silk.RTop(0.1, 0.1), **o
    ),
    "VarianceReduced, recursive, RMSprop": lambda p, **o: silk.VarianceReduced(
        torch.optim.RMSprop(p, 0.001), "previous", sparsity=silk.RTop(0.1, 0.1), **o
    ),
}
COUNTED: dict[str, Any] = {"by itself": INNER, "geometric": silk.Geometric(6.0), "adaptive": "auto"}


def _hash(things: Any) -> str:
    return hashlib.sha256(repr(things).encode()).hexdigest()[:16]


def _directions(x: Tensor) -> list[float]:
    """x along six fixed unit directions."""
    g = torch.Generator().manual_seed(17)
    directions = torch.randn(6, x.numel(), generator=g, dtype=torch.float64)
    return (F.normalize(directions, dim=1) @ x.double()).tolist()


def _state(problem: Problem, optimizer: Any, name: str) -> list[float]:
    """v or M along the first two directions; nothing where the method keeps none."""
    parts = [optimizer.state[p][name].detach().double().reshape(-1) for p in problem.model.parameters()
             if name in optimizer.state[p]]  # fmt: skip
    return _directions(torch.cat(parts))[:2] if parts else []


def _selections(optimizer: Any) -> list[Any]:
    chosen = optimizer.selection
    parts = [] if chosen is None else chosen if isinstance(chosen, list) else [chosen]
    return [(part.top.tolist(), part.random.tolist()) for part in parts]


def trained(problem: Problem, optimizer: Any, counts: bool = False) -> dict[str, Any]:
    """Sixty steps; `counts`: the optimizer decides by itself which is an anchor."""
    g = torch.Generator().manual_seed(3)
    losses, chosen = [], []
    for t in range(STEPS):
        is_anchor = optimizer.next_is_anchor(None) if counts else t % INNER == 0
        batch = torch.randperm(problem.samples, generator=g)[: B if is_anchor else SMALL]
        anchor = None if counts else is_anchor
        loss = optimizer.step(problem.closure(optimizer, batch), anchor=anchor, samples=len(batch))
        losses.append(float(loss.detach()))
        chosen.append(_selections(optimizer))
    gradients = [p.grad for p in problem.model.parameters() if p.grad is not None]
    return {
        "x": _directions(problem.flat_x()),
        **{name: _state(problem, optimizer, name) for name in ("estimate", "memory")},
        "gradient": float(torch.stack([g.double().norm() for g in gradients]).norm()) if gradients else None,
        "loss": sum(losses) / len(losses),
        "queries": optimizer.gradient_queries,
        "anchors": optimizer.anchors,
        "selections": _hash(chosen),
    }


def optimizers() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    seeded = lambda: torch.Generator().manual_seed(4)  # noqa: E731

    def run(make: Make, counts: bool = False) -> dict[str, Any]:
        problem = mlp()
        return trained(problem, make(problem.model.parameters()), counts)

    for backend in BACKENDS:
        options = {"backend": backend}
        for name, method in METHODS.items():
            yield (
                f"case {name}, {backend}",
                lambda m=method, o=options: run(lambda p: m.make(p, 0.05, generator=seeded(), **o)),
            )
        for name, make in WEIGHTED.items():
            yield f"{name}, {backend}", lambda m=make, o=options: run(lambda p: m(p, generator=seeded(), **o))
        for name, inner in COUNTED.items():
            for kind in ("SpiderBoost", "SparseSpiderBoost", "SVRG", "SparseSVRG"):
                more = {**options, "inner_steps": inner}
                yield (
                    f"{kind}, {name}, {backend}",
                    lambda m=WEIGHTED[kind], o=more: run(lambda p: m(p, generator=seeded(), **o), True),
                )
        yield f"two dtypes, {backend}", lambda o=options: two_dtypes(o)
        yield f"LazySVRG, {backend}", lambda o=options: lazy("step", o)
        yield f"LazySVRG, once per anchor, {backend}", lambda o=options: lazy("anchor", o)


def two_dtypes(options: dict[str, Any]) -> dict[str, Any]:
    """Half of the model in float32, under one selection."""
    problem = mlp()
    first, last = problem.model[0], problem.model[2]  # type: ignore[index]
    first.float()
    g = torch.Generator().manual_seed(6)
    a, y = torch.randn(problem.samples, 5, generator=g), torch.randint(3, (problem.samples,), generator=g)
    problem.loss = lambda _, batch: F.cross_entropy(last(torch.tanh(first(a[batch])).double()), y[batch])
    made = silk.SparseSVRG(problem.model.parameters(), 0.05, generator=torch.Generator().manual_seed(4), **options)
    return trained_in_float32(problem, made)


def trained_in_float32(problem: Problem, optimizer: Any) -> dict[str, Any]:
    problem.flat_x = lambda: torch.cat([p.detach().double().reshape(-1) for p in problem.model.parameters()])  # type: ignore[method-assign]
    return trained(problem, optimizer)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(20, 4, sparse=True)
        self.items = nn.Embedding(30, 4, sparse=True)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.users(users) * self.items(items)).sum(1) + self.bias


def lazy(choose: str, options: dict[str, Any]) -> dict[str, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = Tables().double()
    g = torch.Generator().manual_seed(5)
    users, items = torch.randint(20, (80,), generator=g), torch.randint(30, (80,), generator=g)
    y = torch.randn(80, generator=g, dtype=torch.float64)
    optimizer = silk.LazySVRG(
        model, 0.05, 0.2, 0.2, choose=choose, generator=torch.Generator().manual_seed(4), **options
    )
    draws = torch.Generator().manual_seed(3)
    for t in range(STEPS):
        is_anchor = t % INNER == 0
        batch = torch.randperm(80, generator=draws)[: B if is_anchor else SMALL]

        def closure(batch: Tensor = batch) -> Tensor:
            optimizer.zero_grad()
            loss = (model(users[batch], items[batch]) - y[batch]).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure, anchor=is_anchor, samples=len(batch))
    optimizer.flush()
    x = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"x": _directions(x), "queries": optimizer.gradient_queries, "anchors": optimizer.anchors}


LOADERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "fixed": ((20, 5, 8), {}),
    "whole anchors": ((None, 5, 8), {}),
    "pieces": ((20, 5, 8), {"micro_batch_size": 7}),
    "shuffled": ((20, 5, 8), {"sampling": "shuffle", "loops": 9}),
    "geometric": ((20, 5, silk.Geometric(4.0)), {"loops": 7}),
    "adaptive": ((20, 5, silk.Adaptive(ceiling=6)), {}),
}


def batches(name: str, as_dataset: bool) -> dict[str, Any]:
    """What a loader yields in two iterations, and from the middle of the second one on after a reload."""
    arguments, options = LOADERS[name]
    data = torch.arange(60)

    def make() -> silk.AnchorLoader:
        dataset = _Numbers() if as_dataset else data
        return silk.AnchorLoader(dataset, *arguments, generator=torch.Generator().manual_seed(9), **options)

    loader = make()
    seen, state = [], None
    for iteration in range(2):
        for number, (batch, is_anchor) in enumerate(loader):
            marks = (is_anchor.weight, is_anchor.first, is_anchor.last, is_anchor.idle) if is_anchor else False
            seen.append((batch.tolist(), marks))
            if iteration == 1 and number == 3:
                state, at = loader.state_dict(), len(seen)
    assert state is not None
    again = make()
    again.load_state_dict(state)
    rest = [batch.tolist() for batch, _ in again]
    if name != "adaptive":
        assert rest == [batch for batch, _ in seen[at:]]
    return {"count": len(seen), "batches": _hash(seen), "rest": _hash(rest)}


class _Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return index


def loaders() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    for name in LOADERS:
        for as_dataset in (False, True):
            kind = "data set" if as_dataset else "tensor"
            yield f"AnchorLoader, {name}, {kind}", lambda n=name, d=as_dataset: batches(n, d)


def all_cases() -> dict[str, Callable[[], dict[str, Any]]]:
    return dict([*optimizers(), *loaders()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    taken = {name: run() for name, run in all_cases().items()}
    PATH.write_text("{\n" + ",\n".join(f"{json.dumps(n)}: {json.dumps(v)}" for n, v in taken.items()) + "\n}\n")
    print(f"{PATH}: {len(taken)} fingerprints")
