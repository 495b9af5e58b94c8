"""The constants that the theorems ask for, measured on a model and its data: L, sigma^2 and f(x_0) - f*."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from spidersilk.checks import check_positive_int

Loss = Callable[[nn.Module, Any], Tensor]
_ENTRIES = 1 << 25  # of per-sample gradients held at a time


def smoothness(
    loss: Callable[[], Tensor],
    params: Iterable[Tensor],
    *,
    iterations: int = 200,
    tolerance: float = 1e-3,
    generator: torch.Generator | None = None,
) -> float:
    """The largest |eigenvalue| of the Hessian of `loss()` at the present point, by power iteration.

    It is L there for the mean over the samples in `loss`; A1 speaks of each f_i, whose L can be larger: give the loss
    of one sample for that. Stops when the estimate moved by less than `tolerance`, relatively, in three iterations.
    Costs one gradient and one Hessian-vector product for each iteration.
    """
    check_positive_int("iterations", iterations, "each costs a Hessian-vector product")
    params = [p for p in params if p.requires_grad]
    if not params:
        raise ValueError("no parameter requires a gradient: there is no Hessian")
    with (
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),  # what these hand over to fused code has no second derivative
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        gradients = torch.autograd.grad(loss(), params, create_graph=True, allow_unused=True)
        used = [(p, g) for p, g in zip(params, gradients, strict=True) if g is not None and g.requires_grad]
        if not used:
            return 0.0  # linear in every parameter
        points, gradients = [p for p, _ in used], [g for _, g in used]
        start = [torch.randn(p.shape, generator=generator, device=(generator or p).device).to(p) for p in points]
        vector, _ = _unit(start)
        estimate, calm = 0.0, 0
        for _ in range(iterations):
            image = torch.autograd.grad(gradients, points, vector, retain_graph=True, materialize_grads=True)
            before = estimate
            vector, estimate = _unit(image)
            if estimate == 0:
                return 0.0
            calm = calm + 1 if abs(estimate - before) <= tolerance * estimate else 0
            if calm == 3:
                break
    return estimate


@dataclass(frozen=True)
class GradientMoments:
    """Of the gradients of single samples: the mean of |grad f_i|^2 and |mean grad f_i|^2, over `samples` of them."""

    second_moment: float
    mean_energy: float
    samples: int

    @property
    def variance(self) -> float:
        """The mean of |grad f_i - mean|^2, with n - 1 for n."""
        if self.samples < 2:
            return float("nan")
        return (self.second_moment - self.mean_energy) * self.samples / (self.samples - 1)


def gradient_moments(
    model: nn.Module, loss: Loss, batches: Iterable[Any], *, chunk_size: int | None = None
) -> GradientMoments:
    """sigma^2 at the present point, from per-sample gradients: `second_moment` is the theorems' sigma^2 there.

    loss(model, batch): the mean loss over a batch; batches: tensors, or tuples of tensors, with samples along the first
    dimension. Gradients come from torch.func, `chunk_size` samples at a time (None: as many as keep to 2^25 numbers),
    or one by one where the model cannot be vectorised. BatchNorm makes samples depend on each other: put such a model
    into eval mode first.
    """
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules()):
        raise ValueError("the model has BatchNorm in train mode, so a single sample has no gradient: call model.eval()")
    params = {name: p.detach() for name, p in model.named_parameters("model") if p.requires_grad}
    if not params:
        raise ValueError("no parameter requires a gradient")
    d = sum(p.numel() for p in params.values())
    size = chunk_size or max(1, min(_ENTRIES // d, 256))
    check_positive_int("chunk_size", size, "None chooses it by the size of the model")
    with_loss = _WithLoss(model, loss)

    def one(values: dict[str, Tensor], sample: Any) -> Tensor:
        return functional_call(with_loss, values, (tree_map(lambda t: t.unsqueeze(0), sample),))

    vectorised = vmap(grad(one), in_dims=(None, 0), randomness="different")
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items()}
    squares, count = 0.0, 0
    for batch in batches:
        n = len(tree_leaves(batch)[0])
        for start in range(0, n, size):
            chunk = tree_map(lambda t, i=start: t[i : i + size], batch)
            gradients = None
            if vectorised is not None:
                try:
                    gradients = vectorised(params, chunk)
                except (RuntimeError, ValueError):
                    vectorised = None  # data-dependent control flow, a fused operator without a rule, ...
            if gradients is None:
                samples = (tree_map(lambda t, i=i: t[i], chunk) for i in range(min(size, n - start)))
                singles = [grad(one)(params, sample) for sample in samples]
                gradients = {name: torch.stack([single[name] for single in singles]) for name in params}
            for name, g in gradients.items():
                total[name] += g.sum(0, dtype=torch.float64)
                squares += float(g.double().square().sum())
        count += n
    if count == 0:
        raise ValueError("batches is empty: give at least one batch of samples")
    mean_energy = sum(float((t / count).square().sum()) for t in total.values())
    return GradientMoments(squares / count, mean_energy, count)


def initial_gap(losses: Sequence[float], floor: float | None = None) -> float:
    """delta_f = f(x_0) - f*, from the losses of a run, first to last. `floor` is a bound of f from below, 0 for most.

    Without a floor the lowest loss seen stands for f*: what comes back is then a lower bound.
    """
    if not losses:
        raise ValueError("losses is empty: give at least that of the starting point")
    lowest = min(losses) if floor is None else floor
    if lowest > min(losses):
        raise ValueError(f"floor = {floor} is above a loss that was seen ({min(losses):g}): lower it")
    return losses[0] - lowest


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch)


def _unit(tensors: Sequence[Tensor]) -> tuple[list[Tensor], float]:
    """Tensors, together a vector, over its length; and that length, in float64."""
    norm = torch.stack([t.double().norm().to(tensors[0].device) for t in tensors]).norm()
    return [(t / norm.to(t.device)).to(t.dtype) for t in tensors], float(norm)
