"""Gradients of selected groups equal those of dense autograd, whatever the layer does and however it is used."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from group_cases import groups_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from spidersilk.layers import registry, rule, rule_for
from spidersilk.layers.dressing import Dressed
from spidersilk.operator.dimensions import group_dimensions
from spidersilk.operator.selection import Selection
from spidersilk.variance.group_gradients import GroupGradients
from spidersilk.variance.two_point import swapped

GROUPS = ("rows", "columns")


def trained(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def dimensions_of(model: nn.Module, groups: str) -> list[int]:
    params = trained(model)
    return group_dimensions(params, model.modules()) if groups == "columns" else [0] * len(params)


def selection_of(
    params: Sequence[Tensor], dimensions: Sequence[int], top: Sequence[Sequence[int]], random: Sequence[Sequence[int]]
) -> Selection:
    """These groups of each parameter, as top and as random ones."""
    begins = [0, *itertools.accumulate(p.numel() for p in params)]
    found = [groups_of(tuple(p.shape), n, begin) for p, n, begin in zip(params, dimensions, begins, strict=False)]
    coordinates = [
        sorted(i for groups, chosen in zip(found, lists, strict=True) for group in chosen for i in groups[group])
        for lists in (top, random)
    ]
    return Selection(*(torch.tensor(each, dtype=torch.int64) for each in coordinates), 1.0, begins[-1])


def some(params: Sequence[Tensor], dimensions: Sequence[int], seed: int, share: float = 0.4) -> Selection:
    """A share of the groups of each parameter, at least one, every other one of them a random one."""
    counts = [p.shape[n] for p, n in zip(params, dimensions, strict=True)]
    drawn = [torch.randperm(n, generator=_generator(seed))[: max(int(n * share), 1)].tolist() for n in counts]
    return selection_of(params, dimensions, [each[::2] for each in drawn], [each[1::2] for each in drawn])


def read(params: Sequence[Tensor], closure: Callable[[], Any], places: Tensor, by: GroupGradients | None) -> Tensor:
    """The gradient that a closure leaves, in p.grad and `by` rules, at some places."""
    for p in params:
        p.grad = None
    if by is None:
        closure()
    else:
        with by.collected():
            closure()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach().to_dense() for p in params]
    values = torch.cat([g.reshape(-1) for g in grads])[places]
    if by is not None:
        by.add_to([values])
    return values


def check(
    model: nn.Module,
    closure: Callable[[], Any],
    groups: str,
    selection: Selection | None = None,
    *,
    seed: int = 2,
    captured: Sequence[Tensor] = (),
    tolerance: float = 1e-12,
    nonzero: bool = True,
) -> None:
    """The gradient at two points against autograd; `captured` parameters never get a p.grad."""
    params, dimensions = trained(model), dimensions_of(model, groups)
    selection = some(params, dimensions, seed) if selection is None else selection
    kinds = [type(module) for module in model.modules()]
    by = GroupGradients([params], dimensions, model)
    by.select([selection])
    points = [p.detach() + 0.1 * torch.randn(p.shape, generator=_generator(5), dtype=p.dtype) for p in params]
    for values in ([p.detach() for p in params], points):
        with swapped(params, values):
            want = read(params, closure, selection.indices, None)
            found = read(params, closure, selection.indices, by)
            assert all(p.grad is None for p in captured)
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        assert float((found - want).abs().max()) <= tolerance * scale
        assert float(want.abs().sum()) > 0 or not nonzero  # so that zeros cannot pass
    assert [type(module) for module in model.modules()] == kinds


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=_generator(seed), dtype=torch.float64)


def backward(model: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """A loss in which every output counts, and not linearly."""

    def closure() -> Tensor:
        out = model(x)
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).view(out.shape)
        loss = ((out + 0.3) ** 2 * weights).sum()
        loss.backward()
        return loss

    return closure


# Each rule, on random shapes. tests/sparse/test_layers.py has more of them.


@settings(max_examples=60, deadline=None)
@given(
    batch=st.sampled_from([(0,), (1,), (7,), (2, 3), ()]),
    inside=st.integers(1, 9),
    outside=st.integers(1, 9),
    bias=st.booleans(),
    hidden=st.booleans(),
    seed=st.integers(0, 99),
    groups=st.sampled_from(GROUPS),
)
def test_linear(
    batch: tuple[int, ...], inside: int, outside: int, bias: bool, hidden: bool, seed: int, groups: str
) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(inside, outside, bias).double()
    x = _randn(*batch, inside, seed=seed).requires_grad_(hidden)
    check(model, backward(model, x), groups, seed=seed, captured=[model.weight], nonzero=0 not in batch)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 3),
    channels=st.sampled_from([(1, 1, 1), (3, 4, 1), (4, 6, 2), (2, 2, 2), (1, 5, 1)]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from([0, 1, (2, 0), "same", "valid"]),
    dilation=st.sampled_from([1, 2, (1, 3)]),
    hidden=st.booleans(),
    seed=st.integers(0, 99),
    groups=st.sampled_from(GROUPS),
)
def test_conv2d(
    batch: int,
    channels: tuple[int, int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Any,
    dilation: Any,
    hidden: bool,
    seed: int,
    groups: str,
) -> None:
    torch.manual_seed(seed)
    inside, outside, parts = channels
    stride = (1, 1) if padding == "same" else stride
    model = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, parts, bias=seed % 2 == 0).double()
    x = _randn(batch, inside, 9, 10, seed=seed).requires_grad_(hidden)
    captured = [model.weight] if parts == 1 and not isinstance(padding, str) else ()
    check(model, backward(model, x), groups, seed=seed, captured=captured, nonzero=batch > 0)


@pytest.mark.parametrize("groups", GROUPS)
def test_conv2d_channels_last_and_unbatched(groups: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3).double().to(memory_format=torch.channels_last)
    x = _randn(2, 3, 6, 7).to(memory_format=torch.channels_last)
    check(model, backward(model, x), groups, captured=[model.weight])
    check(model, backward(model, _randn(3, 6, 7)), groups)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_embedding_with_padding(padding: int | None, groups: str) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(8, 9, padding).double()
    selection = selection_of([model.weight], [1 if groups == "columns" else 0], [[0, 3, 7]], [[4]])
    tokens = torch.tensor([[3, 3, 0, 7], [1, 7, 5, 5]])
    check(model, backward(model, tokens), groups, selection, captured=[model.weight])


# A rule from outside of the library.


def test_the_rule_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    text = (Path(__file__).parents[2] / "docs" / "backprop.md").read_text()
    (code,) = re.findall(r"## How to add a rule\n.*?```python\n(.*?)```", text, flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(code, "docs/backprop.md", "exec"), found)
    scaled, x = found["Scaled"], _randn(5, 4)
    torch.manual_seed(0)
    model = nn.Sequential(scaled(4, 6, 0.5), nn.Tanh(), scaled(6, 3, 2.0)).double()
    weights = [model[0].weight, model[2].weight]
    check(model, backward(model, x), "columns", captured=weights)
    check(model, backward(model, x.view(1, 5, 4)), "columns", captured=weights)
    none: list[list[int]] = [[], []]
    check(model, backward(model, x), "columns", selection_of(weights, [1, 1], [[1], []], none), captured=weights)
    check(model, backward(model, x), "rows")  # the rule does not apply there


def test_the_rule_of_a_layer_for_its_subclass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(nn.Linear):
        pass

    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    model = Mine(5, 4).double()
    assert rule_for(model) is None
    rule(Mine)(rule_for(nn.Linear(1, 1)))  # type: ignore[arg-type]
    check(model, backward(model, _randn(3, 5)), "columns", captured=[model.weight])


# Ways to use a weight.


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


class Tied(nn.Module):
    """An embedding whose table is also the last layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)))


class Direct(nn.Module):
    """A weight used by a layer and by plain arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) + x @ self.layer.weight.t() + self.layer.weight.sum()


def _shared_and_called_twice(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 4)
    return model, backward(lambda x: model(torch.tanh(model(x))), x)


def _checkpointed(x: Tensor, reentrant: bool) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 5, 3)

    def forward(x: Tensor) -> Any:
        return model[3:](checkpoint(model[:3], x, use_reentrant=reentrant))

    return model, backward(forward, x.requires_grad_() if reentrant else x)


def _micro_batches(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)

    def closure() -> None:
        for part in x.split(2):
            backward(model, part)()

    return model, closure


def _input_overwritten(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """A buffer that is used again after the backward pass."""
    model = _mlp(4, 6, 3)

    def closure() -> None:
        buffer = torch.empty_like(x)
        for scale in (1.0, 2.0):
            backward(model, buffer.copy_(x * scale))()

    return model, closure


def _copied_input(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)
    return model, backward(lambda x: model(x * 2), x)


def _input_depends_on_a_weight(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """An input that needs no gradient and still differs between the points."""
    model = _mlp(4, 4)
    return model, backward(lambda x: model(torch.tanh(model(x)).detach()), x)


def _weight_norm(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)
    parametrizations.weight_norm(model[0])
    return model, backward(model, x)


def _hooked(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)
    model[0].weight.register_hook(lambda g: g * 3)  # type: ignore[union-attr]

    def double(p: Tensor) -> None:
        p.grad.mul_(2)  # type: ignore[union-attr]

    model[2].weight.register_post_accumulate_grad_hook(double)  # type: ignore[union-attr]
    return model, backward(model, x)


def _gradient_penalty(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """A gradient that is differentiated again."""
    model = _mlp(4, 6, 3)

    def closure() -> None:
        at = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(model(at).square().sum(), at, create_graph=True)
        (slope.square().sum() + model(at).sum()).backward()

    return model, closure


def _gradient_penalty_of_a_convolution(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.Sequential(nn.Conv2d(1, 3, 2, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2)).double()

    def closure() -> None:
        at = x.detach().view(5, 1, 2, 2).requires_grad_()
        (slope,) = torch.autograd.grad(model(at).square().sum(), at, create_graph=True)
        (slope.square().sum() + model(at).square().sum()).backward()

    return model, closure


def _vector_as_weight(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.ParameterList([_randn(4, seed=3)])
    return model, backward(lambda x: F.linear(x, model[0]), x)


def _twice_through_one_graph(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)

    def closure() -> None:
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return model, closure


def _no_grad_first(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            target = model(x)
        return model(x) - 0.5 * target

    return model, backward(forward, x)


def _per_sample(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """torch.func inside the closure."""
    model = _mlp(4, 6, 3)

    def closure() -> None:
        jacobian = torch.func.vmap(torch.func.jacrev(model))(x)
        (model(x).square().sum() + jacobian.square().sum()).backward()

    return model, closure


def _in_place_activation(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)).double()
    return model, backward(model, x)


def _frozen(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 5, 3)
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)  # type: ignore[union-attr]
    return model, backward(model, x)


USES: dict[str, Callable[[Tensor], tuple[nn.Module, Callable[[], Any]]]] = {
    "tied": lambda x: (lambda m: (m, backward(m, torch.tensor([[1, 3, 3], [0, 6, 1]]))))(Tied().double()),
    "direct": lambda x: (lambda m: (m, backward(m, x)))(Direct().double()),
    "called twice": _shared_and_called_twice,
    "checkpoint": lambda x: _checkpointed(x, False),
    "checkpoint, reentrant": lambda x: _checkpointed(x, True),
    "micro-batches": _micro_batches,
    "copied input": _copied_input,
    "input overwritten": _input_overwritten,
    "input depends on a weight": _input_depends_on_a_weight,
    "weight norm": _weight_norm,
    "hooks": _hooked,
    "gradient penalty": _gradient_penalty,
    "gradient penalty of a convolution": _gradient_penalty_of_a_convolution,
    "vector as weight": _vector_as_weight,
    "twice through one graph": _twice_through_one_graph,
    "no_grad first": _no_grad_first,
    "torch.func": _per_sample,
    "in-place activation": _in_place_activation,
    "frozen": _frozen,
    "lstm": lambda x: (lambda m: (m, backward(lambda x: m(x)[0], x.view(5, 1, 4))))(nn.LSTM(4, 3, 2).double()),
    "attention": lambda x: (lambda m: (m, backward(lambda x: m(x, x, x)[0], x)))(nn.MultiheadAttention(4, 2).double()),
    "sparse embedding": lambda x: (lambda m: (m, backward(m, torch.arange(9) % 7)))(
        nn.Embedding(7, 4, sparse=True).double()
    ),
    "embedding with max_norm": lambda x: (lambda m: (m, backward(m, torch.arange(9) % 7)))(
        nn.Embedding(7, 4, max_norm=0.5).double()
    ),
    "norms": lambda x: (lambda m: (m, backward(m, x)))(
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    ),
}


CAPTURED = {
    "tied", "called twice", "checkpoint", "checkpoint, reentrant", "micro-batches", "copied input", "input overwritten",
    "input depends on a weight", "twice through one graph", "no_grad first", "in-place activation", "frozen", "norms",
}  # fmt: skip


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("use", USES)
def test_uses_of_a_weight(use: str, groups: str) -> None:
    torch.manual_seed(3)
    model, closure = USES[use](_randn(5, 4))
    captured = [p for p in trained(model) if p.dim() == 2] if use in CAPTURED else ()
    check(model, closure, groups, captured=captured)


@pytest.mark.parametrize("groups", GROUPS)
def test_autocast(groups: str) -> None:
    """To the rounding of its dtype."""
    torch.manual_seed(0)
    model = _mlp(16, 32, 8).float()
    x = torch.randn(6, 16)

    def closure() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().sum()
        loss.backward()

    check(model, closure, groups, captured=[model[0].weight, model[2].weight], tolerance=0.02)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_smaller_types(dtype: torch.dtype, tolerance: float, groups: str) -> None:
    torch.manual_seed(0)
    model = _mlp(8, 6, 3).to(dtype)
    check(model, backward(model, torch.randn(4, 8).to(dtype)), groups, tolerance=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("groups", GROUPS)
def test_compiled_models(groups: str) -> None:
    torch.manual_seed(0)
    model = _mlp(4, 6, 3)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for seed in range(3):
        weights = [model[0].weight, model[2].weight]
        check(model, backward(compiled, _randn(5, 4)), groups, seed=seed, captured=weights)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_models_are_left_to_autograd() -> None:
    model = _mlp(4, 6, 3)
    traced = torch.jit.trace(model, _randn(5, 4))
    check(model, backward(traced, _randn(5, 4)), "columns")


@pytest.mark.parametrize("groups", GROUPS)
def test_weights_of_which_nothing_is_selected(groups: str) -> None:
    """Their layers have nothing to compute, and what is above and below them is right."""
    torch.manual_seed(0)
    table, conv, head = nn.Embedding(7, 4), nn.Conv2d(1, 2, 2), nn.Linear(6, 3)
    model = nn.ModuleList([table, conv, head]).double()
    params, dimensions = trained(model), dimensions_of(model, groups)
    tokens = torch.tensor([[1, 3], [2, 6]])
    closure = backward(lambda t: head(torch.tanh(conv(table(t)[:, None])).flatten(1)), tokens)
    weights: Any = [table.weight, conv.weight, head.weight]
    for only in range(len(params)):
        top: list[list[int]] = [[0] if i == only else [] for i in range(len(params))]
        selection = selection_of(params, dimensions, top, [[] for _ in params])
        check(model, closure, groups, selection, captured=weights, nonzero=params[only] is not table.weight)


def test_groups_of_each_weight() -> None:
    model = nn.ModuleList([nn.Linear(3, 4), nn.Conv2d(2, 3, (1, 2)), nn.Linear(5, 0), nn.Embedding(2, 6)])
    model = model.requires_grad_()
    params, dimensions = trained(model), dimensions_of(model, "columns")
    assert dimensions == [1, 0, 1, 0, 1, 0, 1]
    by = GroupGradients([params], dimensions, model)
    none: list[int] = []
    by.select([selection_of(params, dimensions, [[2], [1], [1], none, none, none, [5, 1]], [[0], none, [0], none, none,
               none, [3]])])  # fmt: skip
    found = {id(groups.weight): groups.part() for slab in by._slabs for groups in slab}
    linear, conv, empty, table = (found.get(id(module.weight)) for module in model)
    assert empty is None
    assert (linear.indices.tolist(), linear.dimension, tuple(linear.values.shape)) == ([0, 2], 1, (4, 2))
    assert (conv.indices.tolist(), conv.dimension, tuple(conv.values.shape)) == ([0, 1], 1, (3, 2, 1, 2))
    assert (table.indices.tolist(), table.dimension, tuple(table.values.shape)) == ([1, 3, 5], 1, (2, 3))


def test_nothing_stays_after_an_error() -> None:
    model = _mlp(4, 6, 3)
    params = trained(model)
    by = GroupGradients([params], [0] * 4, model)
    by.select([some(params, [0] * 4, 1)])
    with pytest.raises(KeyError), by.collected():
        assert isinstance(model[0], Dressed)
        raise KeyError
    assert not any(isinstance(module, Dressed) or "_source" in vars(module) for module in model.modules())
    model(_randn(5, 4)).sum().backward()
    assert all(p.grad is not None for p in params)
    assert not by.arrived


def test_a_module_that_is_dressed_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its rule goes by the name of its class, which a dressed one has too."""
    linear = rule_for(nn.Linear(1, 1))
    monkeypatch.setattr(registry, "_RULES", {"torch.nn.modules.linear.Linear": linear})
    model = _mlp(4, 6)
    outer, inner = (GroupGradients([trained(model)], [0, 0], model) for _ in range(2))
    for by in (outer, inner):
        by.select([some(trained(model), [0, 0], 1)])
    with outer.collected():
        with inner.collected():
            model(_randn(5, 4)).sum().backward()
        assert isinstance(model[0], Dressed)
    assert outer.arrived
    assert not inner.arrived
