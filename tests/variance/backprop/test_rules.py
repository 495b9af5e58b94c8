"""Captured gradients of rows equal those of dense autograd, whatever the layer does and however it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv1d_input, conv1d_weight
from torch.nn.utils import parametrizations
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.checkpoint import checkpoint

from spidersilk.operator.groups import PickedRows
from spidersilk.operator.selection import Selection
from spidersilk.variance.backprop import Capture, Rule, Wanted, registry, rule
from spidersilk.variance.two_point import swapped


@pytest.fixture(autouse=True)
def _take_small_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SMALLEST", 0)


@pytest.fixture
def _own_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))


def selection_of(params: Sequence[Tensor], top: Sequence[Sequence[int]], random: Sequence[Sequence[int]]) -> Selection:
    """These rows of each parameter, as top and as random ones."""
    shapes = [(p.shape[0], p[0].numel()) for p in params]
    begins = [0, *itertools.accumulate(rows * width for rows, width in shapes)]
    first = [0, *itertools.accumulate(rows for rows, _ in shapes)]
    coordinates = [
        [begins[i] + row * shapes[i][1] + j for i, each in enumerate(lists) for row in sorted(each)
         for j in range(shapes[i][1])] for lists in (top, random)
    ]  # fmt: skip
    numbers = sorted(first[i] + row for lists in (top, random) for i, each in enumerate(lists) for row in each)
    picked = PickedRows(torch.tensor(numbers, dtype=torch.int64), tuple(shapes))
    chosen = (torch.tensor(each, dtype=torch.int64) for each in coordinates)
    return Selection(*chosen, 1.0, begins[-1], picked)


def rows(params: Sequence[Tensor], generator: torch.Generator, share: float = 0.3) -> Selection:
    """A share of the rows of each parameter, at least one, every other one of them a random one."""
    drawn = [torch.randperm(len(p), generator=generator)[: max(int(len(p) * share), 1)].tolist() for p in params]
    return selection_of(params, [each[::2] for each in drawn], [each[1::2] for each in drawn])


def dense(params: Sequence[Tensor], closure: Callable[[], Any], places: Tensor) -> Tensor:
    for p in params:
        p.grad = None
    closure()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in params]
    for p in params:
        p.grad = None
    return torch.cat([g.reshape(-1) for g in grads])[places]


def check(
    params: Sequence[Tensor],
    closure: Callable[[], Any],
    selection: Selection,
    *,
    captured: Sequence[Tensor] = (),
    tolerance: float = 1e-12,
    nonzero: bool = True,
) -> None:
    """The gradient at one point, and the difference of two, against autograd; `captured` ones never get a p.grad."""
    points = [p.detach() + 0.1 * torch.randn(p.shape, generator=_generator(5), dtype=p.dtype) for p in params]
    here = dense(params, closure, selection.indices)
    with swapped(params, points):
        there = dense(params, closure, selection.indices)
    for signs in ((1.0,), (1.0, -1.0)):
        capture = Capture([Wanted(params, selection)])
        for sign, values in zip(signs, ([p.detach() for p in params], points), strict=False):
            for p in params:
                p.grad = None
            with swapped(params, values), capture.evaluation(sign):
                closure()
            assert all(p.grad is None for p in captured)
        (found,) = capture.values()
        want = here if len(signs) == 1 else here - there
        scale = max(1.0, float(here.abs().max()), float(there.abs().max()))
        assert float((found - want).abs().max()) <= tolerance * scale
        for p in params:
            p.grad = None
    assert float(here.abs().sum()) > 0 or not nonzero  # so that zeros cannot pass


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


# Each rule, on random shapes.


@settings(max_examples=60)
@given(
    batch=st.sampled_from([(0,), (1,), (7,), (2, 3), ()]),
    inside=st.integers(1, 9),
    outside=st.integers(1, 9),
    bias=st.booleans(),
    hidden=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear(batch: tuple[int, ...], inside: int, outside: int, bias: bool, hidden: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(inside, outside, bias).double()
    x = _randn(*batch, inside, seed=seed).requires_grad_(hidden)
    params = list(model.parameters())
    selection = rows(params, _generator(seed), 0.4)
    check(params, backward(model, x), selection, captured=params[:1], nonzero=0 not in batch)


@settings(max_examples=100)
@given(
    batch=st.integers(0, 3),
    channels=st.sampled_from([(1, 1, 1), (3, 4, 1), (4, 6, 2), (2, 2, 2), (1, 5, 1)]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from([0, 1, (2, 0), "same", "valid"]),
    dilation=st.sampled_from([1, 2, (1, 3)]),
    hidden=st.booleans(),
    seed=st.integers(0, 99),
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
) -> None:
    torch.manual_seed(seed)
    inside, outside, groups = channels
    stride = (1, 1) if padding == "same" else stride
    model = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, groups, bias=seed % 2 == 0).double()
    x = _randn(batch, inside, 9, 10, seed=seed).requires_grad_(hidden)
    params = list(model.parameters())
    captured = params[:1] if groups == 1 and not isinstance(padding, str) else ()
    check(params, backward(model, x), rows(params, _generator(seed)), captured=captured, nonzero=batch > 0)


def test_conv2d_channels_last_and_unbatched() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3).double().to(memory_format=torch.channels_last)
    params = list(model.parameters())
    selection = rows(params, _generator(0), 0.3)
    check(params, backward(model, _randn(2, 3, 6, 7).to(memory_format=torch.channels_last)), selection)
    check(params, backward(model, _randn(3, 6, 7)), selection)


def test_conv2d_with_sizes_of_length_one() -> None:
    weight = _randn(5, 3, 2, 2).requires_grad_()
    closure = backward(lambda x: torch.conv2d(x, weight, None, (2,), (1,), [2]), _randn(2, 3, 7, 8))
    check([weight], closure, rows([weight], _generator(0)), captured=[weight])


@settings(max_examples=60)
@given(
    length=st.integers(1, 9),
    width=st.integers(1, 5),
    tokens=st.lists(st.integers(0, 100), max_size=12),
    padding=st.sampled_from([None, 0, -1]),
    seed=st.integers(0, 99),
)
def test_embedding(length: int, width: int, tokens: list[int], padding: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Embedding(length, width, padding).double()
    x = torch.tensor(tokens, dtype=torch.int64) % length
    params = list(model.parameters())
    selection = rows(params, _generator(seed), 0.6)
    check(params, backward(lambda x: model(x).sum(0), x), selection, captured=params, nonzero=False)


@pytest.mark.parametrize("padding", [None, 3, -1])
def test_embedding_with_padding(padding: int | None) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(8, 3, padding).double()
    params = list(model.parameters())
    tokens = torch.tensor([[3, 3, 0, 7], [1, 7, 5, 5]])
    check(params, backward(model, tokens), selection_of(params, [[0, 3, 7]], [[4]]), captured=params)


# A rule from outside of the library.


def scaled_linear(x: Tensor, weight: Tensor, *, scale: float = 1.0) -> Tensor:
    """A function of a user's, which modes can see."""
    if has_torch_function((x, weight)):
        return handle_torch_function(scaled_linear, (x, weight), x, weight, scale=scale)
    return scale * (x @ weight.t())


class ScaledLinear(Rule):
    def read(self, x: Tensor, weight: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor, None] | None:
        self.scale = scale
        return (x, weight, None) if x.dim() == 2 else None

    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return self.scale * delta[:, rows].t() @ x

    def input_gradient(self, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return self.scale * delta @ weight


class Conv1d(Rule):
    def read(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *options: Any) -> Any:
        self.options, self.row_shape = options, weight.shape[1:]
        return input, weight, bias

    def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return conv1d_weight(x, (len(rows), *self.row_shape), delta[:, rows], *self.options)

    def input_gradient(self, delta: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return conv1d_input(x.shape, weight, delta, *self.options)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return delta.sum((0, 2))


@pytest.mark.usefixtures("_own_rules")
def test_a_rule_for_a_function_of_ones_own() -> None:
    first, second = _randn(6, 4).requires_grad_(), _randn(3, 6, seed=2).requires_grad_()

    def model(x: Tensor) -> Tensor:
        return scaled_linear(torch.tanh(scaled_linear(x, first, scale=0.5)), second, scale=2.0)

    params, x = [first, second], _randn(5, 4)
    selection = rows(params, _generator(1), 0.5)
    check(params, backward(model, x), selection)
    rule(scaled_linear)(ScaledLinear)
    check(params, backward(model, x), selection, captured=params)
    check(params, backward(lambda x: model(x[0]), x), selection)  # the rule does not apply there


@pytest.mark.usefixtures("_own_rules")
def test_a_rule_for_another_function_of_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 5, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(5, 3, 2)).double()
    params = list(model.parameters())
    rule(F.conv1d)(Conv1d)
    check(params, backward(model, _randn(4, 2, 9)), rows(params, _generator(1), 0.5), captured=params[::2])


@pytest.mark.usefixtures("_own_rules")
def test_a_rule_that_returns_another_number_of_values_is_refused() -> None:
    class Wrong(ScaledLinear):
        def rows_gradient(self, delta: Tensor, x: Tensor, rows: Tensor) -> Tensor:
            return super().rows_gradient(delta, x, rows)[:1]

    rule(scaled_linear)(Wrong)
    weight = _randn(6, 4).requires_grad_()
    with pytest.raises(RuntimeError, match="shape"):
        check(
            [weight],
            backward(lambda x: scaled_linear(x, weight), _randn(5, 4)),
            selection_of([weight], [[0, 2]], [[3]]),
        )


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


def _autograd_grad(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    model = _mlp(4, 6, 3)

    def closure() -> None:
        params = list(model.parameters())
        for p, g in zip(params, torch.autograd.grad(model(x).square().sum(), params), strict=True):
            p.grad = g

    return model, closure


def _some_inputs(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """backward(inputs=...) leaves the other parameters out."""
    model = _mlp(4, 6, 3)

    def closure() -> None:
        model(x).square().sum().backward(inputs=[model[2].weight])
        torch.autograd.backward(model(x).square().sum(), inputs=[model[0].bias])

    return model, closure


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


def _penalty_on_weight_gradients(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    table, conv, head = nn.Embedding(7, 4), nn.Conv2d(1, 2, 2), nn.Linear(6, 3)
    model = nn.ModuleList([table, conv, head]).double()

    def closure() -> None:
        out = head(torch.tanh(conv(table(torch.tensor([[1, 3], [2, 6]]))[:, None])).flatten(1))
        weights = [table.weight, conv.weight, head.weight]
        slopes = torch.autograd.grad(out.square().sum(), weights, create_graph=True)
        sum((slope.square().sum() for slope in slopes), out.sum()).backward()

    return model, closure


def _differentiable_gradients(x: Tensor) -> tuple[nn.Module, Callable[[], Any]]:
    """Gradients that come to p.grad with a graph, and are used."""
    model = _mlp(4, 6, 3)

    def closure() -> None:
        model(x).square().sum().backward(create_graph=True)
        sum(p.grad.square().sum() for p in model.parameters()).backward()  # type: ignore[union-attr]

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
    "autograd.grad": _autograd_grad,
    "backward(inputs)": _some_inputs,
    "gradient penalty": _gradient_penalty,
    "gradient penalty of a convolution": _gradient_penalty_of_a_convolution,
    "penalty on weight gradients": _penalty_on_weight_gradients,
    "backward(create_graph)": _differentiable_gradients,
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


@pytest.mark.parametrize("use", USES)
def test_uses_of_a_weight(use: str) -> None:
    torch.manual_seed(3)
    model, closure = USES[use](_randn(5, 4))
    params = [p for p in model.parameters() if p.requires_grad]
    captured = [p for p in params if p.dim() == 2] if use in CAPTURED else ()
    check(params, closure, rows(params, _generator(2), 0.4), captured=captured)


def test_autocast_is_left_to_autograd() -> None:
    torch.manual_seed(0)
    model = _mlp(16, 32, 8).float()
    x = torch.randn(6, 16)

    def closure() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().sum()
        loss.backward()

    params = list(model.parameters())
    check(params, closure, rows(params, _generator(1)), tolerance=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_smaller_types(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    model = _mlp(8, 6, 3).to(dtype)
    params = list(model.parameters())
    closure = backward(model, torch.randn(4, 8).to(dtype))
    check(params, closure, rows(params, _generator(1), 0.4), tolerance=tolerance)


@pytest.mark.slow
def test_compiled_models() -> None:
    torch.manual_seed(0)
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    check(params, backward(torch.compile(model, backend="aot_eager"), _randn(5, 4)), rows(params, _generator(1)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traced_models_are_left_to_autograd() -> None:
    model = _mlp(4, 6, 3)
    traced = torch.jit.trace(model, _randn(5, 4))
    params = list(model.parameters())
    check(params, backward(traced, _randn(5, 4)), rows(params, _generator(1)))


# What is not wanted is not computed.


class Noticing(torch.autograd.Function):
    """The identity; counts its backward passes."""

    passes = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Tensor:  # type: ignore[override]
        Noticing.passes += 1
        return delta


@pytest.mark.parametrize("run", [Tensor.backward, torch.autograd.backward])
@pytest.mark.parametrize("first", [0, 1])
def test_backward_stops_below_the_lowest_layer_with_a_wanted_row(first: int, run: Callable[[Tensor], None]) -> None:
    torch.manual_seed(0)
    below = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 4)).double()
    above = _mlp(4, 3)
    params = [*below.parameters(), *above.parameters()]
    nothing: list[list[int]] = [[] for _ in params]
    top, random = ([[*each] for each in nothing] for _ in range(2))
    at = len(params) - 2 if first else 0
    top[at], random[at] = [0], [1]
    selection = selection_of(params, top, random)
    closure = lambda: run(above(Noticing.apply(below(_randn(5, 1, 2, 2)))).square().sum())  # noqa: E731
    Noticing.passes = 0
    capture = Capture([Wanted(params, selection)])
    with capture.evaluation():
        closure()
    assert Noticing.passes == 1 - first
    assert all(p.grad is None for p in params[:-1] if first)
    for p in params:
        p.grad = None
    check(params, closure, selection)


def test_a_loss_of_which_nothing_is_wanted_gives_zeros() -> None:
    used, unused = _mlp(4, 3), _mlp(4, 3)
    params = [*used.parameters(), *unused.parameters()]
    capture = Capture([Wanted(params, selection_of(params, [[], [], [1], []], [[], [], [], [2]]))])
    with capture.evaluation():
        backward(used, _randn(5, 4))()
    assert capture.caught
    assert capture.values()[0].tolist() == [0.0] * 5


def test_rows_of_each_parameter() -> None:
    params = [torch.zeros(4, 3), torch.zeros(2), torch.zeros(0, 3), torch.zeros(3, 1, 2)]
    wanted = Wanted(params, selection_of(params[:2] + params[3:], [[1, 3], [0], [1]], [[0], [], [2]]))
    assert [part.count for part in wanted.parts] == [9, 1, 0, 4]
    assert [part.rows.tolist() for part in wanted.parts if part.count] == [[1, 3, 0], [0], [1, 2]]


def test_a_selection_of_entries_is_refused() -> None:
    entries = Selection(torch.tensor([3, 5]), torch.tensor([1]), 1.0, 12)
    with pytest.raises(ValueError, match="whole rows"):
        Wanted([torch.zeros(4, 3)], entries)


# What cannot be trusted is said so, and nothing is left behind.


def _grad_read(model: nn.Sequential, x: Tensor) -> None:
    backward(model, x)()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def _grad_dropped(model: nn.Sequential, x: Tensor) -> None:
    backward(model, x)()
    model.zero_grad()
    backward(model, x)()


def _clipped_after_a_cut(model: nn.Sequential, x: Tensor) -> None:
    """No layer is captured, but a weight has no gradient because nothing of it is wanted."""
    loss = F.layer_norm(x, (4,), model[0].bias[:4], None).sum() + F.layer_norm(x[:, :3], (3,), model[2].bias).sum()
    model.zero_grad()  # before the backward pass, this is no misuse
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def _cut_gradient_asked_for(model: nn.Sequential, x: Tensor) -> None:
    params = list(model.parameters())
    slopes = torch.autograd.grad(model(x).square().sum(), params, create_graph=True)
    sum(slope.square().sum() for slope in slopes).backward()  # type: ignore[union-attr]


@pytest.mark.parametrize("misuse", [_grad_read, _grad_dropped, _clipped_after_a_cut, _cut_gradient_asked_for])
def test_a_closure_that_spoils_the_capture_is_noticed(misuse: Callable[[nn.Sequential, Tensor], None]) -> None:
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    capture = Capture([Wanted(params, selection_of(params, [[1], [2], [0], []], [[3], [1], [], []]))])
    for sign in (1.0, -1.0):
        for p in params:
            p.grad = None
        with capture.evaluation(sign):
            misuse(model, _randn(5, 4))
    with pytest.raises(RuntimeError, match="without a capture"):
        capture.values()
    assert capture.spoiled


def test_gradients_that_are_there_may_be_read() -> None:
    model = _mlp(4, 6, 3)
    params = list(model.parameters())

    def closure() -> None:
        out = model(_randn(5, 4))
        model.zero_grad()
        out.square().sum().backward()
        assert model[2].bias.grad is not None

    check(params, closure, selection_of(params, [[1], [2], [0], [1]], [[3], [], [], [2]]), captured=[model[0].weight])


def test_nothing_stays_after_an_error() -> None:
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    capture = Capture([Wanted(params, rows(params, _generator(1)))])
    with pytest.raises(KeyError), capture.evaluation():
        out = model(_randn(5, 4))
        raise KeyError
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]
    assert not torch.overrides._get_current_function_mode_stack()
    out.sum().backward()  # after the evaluation: gradients are where they always are
    assert all(p.grad is not None for p in params)
