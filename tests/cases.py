"""Problems, methods and error cases as data, for all tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk


@dataclass
class Problem:
    """A model with data; `loss(indices)` is the mean over these samples, `flat_gradient` an oracle over flat x."""

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, Tensor], Tensor]
    samples: int
    lr: float

    def closure(self, optimizer: torch.optim.Optimizer, batch: Tensor) -> Callable[[], Tensor]:
        def run() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss(self.model, batch)
            loss.backward()
            return loss

        return run

    def flat_gradient(self, x: Tensor, batch: Tensor) -> Tensor:
        params = dict(self.model.named_parameters())
        pieces = x.split([p.numel() for p in params.values()])
        values = {
            name: piece.detach().view(p.shape).requires_grad_()
            for (name, p), piece in zip(params.items(), pieces, strict=True)
        }
        loss = self.loss(Functional(self.model, values), batch)  # type: ignore[arg-type]
        grads = torch.autograd.grad(loss, list(values.values()))
        return torch.cat([g.reshape(-1) for g in grads])

    def flat_x(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])


class Functional:
    """A model called with other parameter values."""

    def __init__(self, model: nn.Module, values: dict[str, Tensor]):
        self.model, self.values = model, values

    def __call__(self, *args: Any) -> Any:
        return torch.func.functional_call(self.model, self.values, args)

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Point(nn.Module):
    def __init__(self, x: Tensor):
        super().__init__()
        self.x = nn.Parameter(x)


def quadratic(d: int = 12, n: int = 40, seed: int = 0) -> Problem:
    """f_i(x) = 1/2 (x - c_i)^T A_i (x - c_i) with diagonal A_i in [0.5, 1.5]."""
    g = _generator(seed)
    curvature = 0.5 + torch.rand(n, d, generator=g, dtype=torch.float64)
    centre = torch.randn(n, d, generator=g, dtype=torch.float64)

    def loss(model: Any, batch: Tensor) -> Tensor:
        return 0.5 * (curvature[batch] * (model.x - centre[batch]) ** 2).sum(1).mean()

    return Problem("quadratic", Point(torch.randn(d, generator=g, dtype=torch.float64)), loss, n, lr=0.02)


def logistic(d: int = 10, n: int = 60, seed: int = 1) -> Problem:
    g = _generator(seed)
    a = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = (torch.rand(n, generator=g) < 0.5).double() * 2 - 1

    def loss(model: Any, batch: Tensor) -> Tensor:
        return F.softplus(-y[batch] * model(a[batch]).squeeze(1)).mean()

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Linear(d, 1).double()
    return Problem("logistic", model, loss, n, lr=0.05)


def mlp(seed: int = 2, n: int = 60, activation: type[nn.Module] = nn.Tanh) -> Problem:
    g = _generator(seed)
    a = torch.randn(n, 5, generator=g, dtype=torch.float64)
    y = torch.randint(3, (n,), generator=g)

    def loss(model: Any, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(a[batch]), y[batch])

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 3)).double()
    return Problem("mlp", model, loss, n, lr=0.05)


PROBLEMS = {"quadratic": quadratic, "logistic": logistic, "mlp": mlp}


@dataclass
class Method:
    """An optimizer, and the options of `reference.algorithm_1` that describe the same method."""

    make: Callable[..., silk.VarianceReduced]
    options: dict[str, Any]


def _sparse(make: Any, reference: str, **options: Any) -> Method:
    names = ("scaling", "move", "choose", "anchor_move", "memory_reset")
    told = {"scaling": "none" if options.get("move") == "selected" else "unbiased"} | options
    return Method(
        lambda params, lr, k1=3, k2=2, **rest: make(params, lr, k1=k1, k2=k2, **options, **rest),
        {"reference": reference, **{n: told[n] for n in names if n in told}},
    )


METHODS = {
    "spiderboost": Method(lambda params, lr, k1=0, k2=0, **rest: silk.SpiderBoost(params, lr, **rest), {}),
    "svrg": Method(lambda params, lr, k1=0, k2=0, **rest: silk.SVRG(params, lr, **rest), {"reference": "anchor"}),
    "sparse-spiderboost": _sparse(silk.SparseSpiderBoost, "previous"),
    "sparse-spiderboost, reset": _sparse(silk.SparseSpiderBoost, "previous", memory_reset=True),
    "sparse-spiderboost, not rescaled": _sparse(silk.SparseSpiderBoost, "previous", scaling="none"),
    "sparse-spiderboost, once per anchor": _sparse(silk.SparseSpiderBoost, "previous", choose="anchor"),
    "sparse-svrg": _sparse(silk.SparseSVRG, "anchor"),
    "sparse-svrg, not rescaled": _sparse(silk.SparseSVRG, "anchor", scaling="none"),
    "sparse-svrg, refresh": _sparse(silk.SparseSVRG, "anchor", scaling="refresh"),
    "sparse-svrg, selected": _sparse(silk.SparseSVRG, "anchor", move="selected"),
    "sparse-svrg, selected, once per anchor": _sparse(silk.SparseSVRG, "anchor", move="selected", choose="anchor"),
    "sparse-svrg, selected at anchors too": _sparse(silk.SparseSVRG, "anchor", move="selected", anchor_move="selected"),
}
DENSE = ("spiderboost", "svrg")
SPARSE = tuple(name for name in METHODS if name not in DENSE)
