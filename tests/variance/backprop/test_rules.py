"""Captured gradient entries equal those of dense autograd, whatever the layer does and however it is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from spidersilk.kernels import backends as dispatch
from spidersilk.variance.backprop import Capture, Wanted, rules, sampled, timing
from spidersilk.variance.two_point import swapped

OPS = dispatch.find("torch", [])
Pick = Callable[[Sequence[Tensor], torch.Generator, float], tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True)
def _take_small_weights_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "SMALLEST", 0)
    yield
    timing.forget()


def entries(params: Sequence[Tensor], generator: torch.Generator, share: float = 0.3) -> tuple[Tensor, Tensor]:
    d = sum(p.numel() for p in params)
    drawn = torch.randperm(d, generator=generator)[: max(int(d * share), 1)]
    return drawn[::2].sort().values, drawn[1::2].sort().values


def rows(params: Sequence[Tensor], generator: torch.Generator, share: float = 0.3) -> tuple[Tensor, Tensor]:
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    begin = 0
    for p in params:
        width = p.numel() // p.shape[0]
        drawn = torch.randperm(p.shape[0], generator=generator)[: max(int(p.shape[0] * share), 1)]
        for number, chosen in enumerate((drawn[::2], drawn[1::2])):
            found[number].append(begin + (chosen.sort().values[:, None] * width + torch.arange(width)).view(-1))
        begin += p.numel()
    return torch.cat(found[0]), torch.cat(found[1])


PICKS: dict[str, Pick] = {"entries": entries, "rows": rows}


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
    selection: tuple[Tensor, Tensor],
    *,
    captured: Sequence[Tensor] = (),
    tolerance: float = 1e-10,
    nonzero: bool = True,
) -> None:
    """The gradient at one point, and the difference of two, against autograd; `captured` ones never get a p.grad."""
    points = [p.detach() + 0.1 * torch.randn(p.shape, generator=_generator(5), dtype=p.dtype) for p in params]
    places = torch.cat(selection)
    here = dense(params, closure, places)
    with swapped(params, points):
        there = dense(params, closure, places)
    for shares, signs in ((False, (1.0,)), (False, (1.0, -1.0)), (True, (1.0, -1.0))):
        capture = Capture([Wanted(params, *selection)], OPS, shares)
        for sign, values in zip(signs, ([p.detach() for p in params], points), strict=False):
            for p in params:
                p.grad = None
            with swapped(params, values), capture.evaluation(sign):
                closure()
            assert all(p.grad is None for p in captured)
        (found,) = capture.values()
        want = here if len(signs) == 1 else here - there
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
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
    pick=st.sampled_from(list(PICKS)),
    way=st.sampled_from(["whole", "tiles", "dots"]),
    seed=st.integers(0, 99),
)
def test_linear(
    batch: tuple[int, ...], inside: int, outside: int, bias: bool, hidden: bool, pick: str, way: str, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(inside, outside, bias).double()
    x = _randn(*batch, inside, seed=seed).requires_grad_(hidden)
    params = list(model.parameters())
    with timing.forced(way):
        if 0 in batch:
            closure = backward(lambda x: torch.cat([model(x), params[0].square()[:, :1].t()]), x)
            check(params, closure, PICKS[pick](params, _generator(seed), 0.4))
        else:
            check(params, backward(model, x), PICKS[pick](params, _generator(seed), 0.4), captured=params[:1])


@settings(max_examples=150)
@given(
    batch=st.integers(0, 3),
    channels=st.sampled_from([(1, 1, 1), (3, 4, 1), (4, 6, 2), (2, 2, 2), (1, 5, 1)]),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.sampled_from([0, 1, (2, 0), "same", "valid"]),
    dilation=st.sampled_from([1, 2, (1, 3)]),
    hidden=st.booleans(),
    pick=st.sampled_from(list(PICKS)),
    way=st.sampled_from(["product", "shifts"]),
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
    pick: str,
    way: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    inside, outside, groups = channels
    stride = (1, 1) if padding == "same" else stride
    model = nn.Conv2d(inside, outside, kernel, stride, padding, dilation, groups, bias=seed % 2 == 0).double()
    x = _randn(batch, inside, 9, 10, seed=seed).requires_grad_(hidden)
    params = list(model.parameters())
    taken = groups == 1 and not isinstance(padding, str)
    closure = backward(lambda x: model(x).sum() + model.weight.sum() if batch == 0 else model(x), x)
    with timing.forced(way):
        captured = params[:1] if taken and batch else ()
        check(params, closure, PICKS[pick](params, _generator(seed)), captured=captured, nonzero=batch > 0)


@pytest.mark.parametrize("pick", PICKS)
def test_conv2d_channels_last_and_unbatched(pick: str) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(3, 5, 3).double().to(memory_format=torch.channels_last)
    params = list(model.parameters())
    selection = PICKS[pick](params, _generator(0), 0.3)
    check(params, backward(model, _randn(2, 3, 6, 7).to(memory_format=torch.channels_last)), selection)
    check(params, backward(model, _randn(3, 6, 7)), selection)


@settings(max_examples=60)
@given(
    rows_of=st.integers(1, 9),
    width=st.integers(1, 5),
    tokens=st.lists(st.integers(0, 100), max_size=12),
    padding=st.sampled_from([None, 0, -1]),
    pick=st.sampled_from(list(PICKS)),
    seed=st.integers(0, 99),
)
def test_embedding(rows_of: int, width: int, tokens: list[int], padding: int | None, pick: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Embedding(rows_of, width, padding).double()
    x = torch.tensor(tokens, dtype=torch.int64) % rows_of
    params = list(model.parameters())
    captured = params if len(tokens) else ()
    check_embedding = backward(lambda x: model(x).sum(0) + (0 if len(tokens) else params[0].sum(0)), x)
    selection = PICKS[pick](params, _generator(seed), 0.6)
    places = torch.cat(selection)
    if float(dense(params, check_embedding, places).abs().sum()) > 0:
        check(params, check_embedding, selection, captured=captured)


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("size", [8, 400])  # of a large table, only the tokens that occur are looked at
def test_embedding_with_padding(size: int, padding: int | None, pick: str) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(size, 3, padding).double()
    params = list(model.parameters())
    tokens = torch.tensor([3, 3, 0, size - 1, 1, size - 1, 5])
    wanted = torch.tensor([0, 3, size - 1])
    entry = torch.arange(3) if pick == "rows" else torch.tensor([0, 2])
    places = (wanted[:, None] * 3 + entry).view(-1)
    check(params, backward(model, tokens), (places, torch.arange(12, 15)), captured=params)


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
        for piece in x.split(2):
            backward(model, piece)()

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
    "input depends on a weight": _input_depends_on_a_weight,
    "weight norm": _weight_norm,
    "hooks": _hooked,
    "autograd.grad": _autograd_grad,
    "backward(inputs)": _some_inputs,
    "gradient penalty": _gradient_penalty,
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


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("use", USES)
def test_uses_of_a_weight(use: str, pick: str) -> None:
    torch.manual_seed(3)
    model, closure = USES[use](_randn(5, 4))
    params = [p for p in model.parameters() if p.requires_grad]
    check(params, closure, PICKS[pick](params, _generator(2), 0.4))


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


@pytest.mark.parametrize("way", ["plain", "onednn", "whole", "tiles", "dots"])
def test_float32_and_each_way(way: str) -> None:
    torch.manual_seed(0)
    model = _mlp(30, 40, 20).float()
    params = list(model.parameters())
    with timing.forced(way):
        for pick in PICKS.values():
            check(params, backward(model, torch.randn(8, 30)), pick(params, _generator(1), 0.2), tolerance=1e-5)


def test_bfloat16_parameters() -> None:
    torch.manual_seed(0)
    model = _mlp(8, 6, 3).bfloat16()
    params = list(model.parameters())
    for pick in PICKS.values():
        closure = backward(model, torch.randn(4, 8).bfloat16())
        check(params, closure, pick(params, _generator(1), 0.4), tolerance=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("pick", PICKS)
def test_compiled_models(pick: str) -> None:
    torch.manual_seed(0)
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    check(params, backward(torch.compile(model, backend="aot_eager"), _randn(5, 4)), PICKS[pick](params, _generator(1)))


def test_traced_models_are_left_to_autograd() -> None:
    model = _mlp(4, 6, 3)
    traced = torch.jit.trace(model, _randn(5, 4))
    params = list(model.parameters())
    check(params, backward(traced, _randn(5, 4)), entries(params, _generator(1)))


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


@pytest.mark.parametrize("first", [0, 1])
def test_backward_stops_below_the_lowest_layer_with_a_wanted_entry(first: int) -> None:
    torch.manual_seed(0)
    below = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 4)).double()
    above = _mlp(4, 3)
    params = [*below.parameters(), *above.parameters()]
    begin = sum(p.numel() for p in params[: len(params) - 2]) if first else 0
    selection = torch.arange(begin, begin + 2), torch.arange(begin + 3, begin + 4)
    closure = backward(lambda x: above(Noticing.apply(below(x))), _randn(5, 1, 2, 2))
    Noticing.passes = 0
    capture = Capture([Wanted(params, *selection)], OPS, shares=False)
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
    capture = Capture([Wanted(params, torch.tensor([20]), torch.tensor([22]))], OPS)
    with capture.evaluation():
        backward(used, _randn(5, 4))()
    assert capture.caught
    assert capture.values()[0].tolist() == [0.0, 0.0]


def test_rows_are_found_only_where_they_are_whole() -> None:
    params = [torch.zeros(4, 3), torch.zeros(2), torch.zeros(3, 1, 2)]
    wanted = Wanted(params, torch.tensor([3, 4, 5, 12, 16, 17]), torch.tensor([0, 1, 2]))
    found = [part.rows for part in wanted.parts]
    assert [None if rows is None else rows.tolist() for rows in found] == [[1, 0], None, [1]]
    split = Wanted(params, torch.tensor([2, 3, 4, 15, 16]), torch.tensor([9, 10, 11]))
    assert [part.rows for part in split.parts] == [None, None, None]


# What cannot be trusted is said so, and nothing is left behind.


def _grad_read(model: nn.Sequential, x: Tensor) -> None:
    backward(model, x)()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def _grad_dropped(model: nn.Sequential, x: Tensor) -> None:
    backward(model, x)()
    model.zero_grad()
    backward(model, x)()


def _input_overwritten(model: nn.Sequential, x: Tensor) -> None:
    buffer = torch.empty_like(x)
    for scale in (1.0, 2.0):
        backward(model, buffer.copy_(x * scale))()


@pytest.mark.parametrize("misuse", [_grad_read, _grad_dropped, _input_overwritten])
def test_a_closure_that_spoils_the_capture_is_noticed(misuse: Callable[[nn.Sequential, Tensor], None]) -> None:
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    capture = Capture([Wanted(params, *rows(params, _generator(1)))], OPS)
    for sign in (1.0, -1.0):
        for p in params:
            p.grad = None
        with capture.evaluation(sign):
            misuse(model, _randn(5, 4))
    with pytest.raises(RuntimeError, match="without a capture"):
        capture.values()
    assert capture.spoiled


def test_nothing_stays_after_an_error() -> None:
    model = _mlp(4, 6, 3)
    params = list(model.parameters())
    engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    capture = Capture([Wanted(params, *rows(params, _generator(1)))], OPS)
    with pytest.raises(KeyError), capture.evaluation():
        out = model(_randn(5, 4))
        raise KeyError
    assert torch.autograd._engine_run_backward is engine  # type: ignore[attr-defined]
    assert not torch.overrides._get_current_function_mode_stack()
    out.sum().backward()  # after the evaluation: gradients are where they always are
    assert all(p.grad is not None for p in params)


def test_timing_keeps_the_fastest() -> None:
    ran: list[str] = []
    ways: dict[str, Callable[[], object]] = {
        "slow": lambda: (ran.append("slow"), list(range(200_000))),
        "fast": lambda: ran.append("fast"),
    }
    device = torch.device("cpu")
    for _ in range(2 * (1 + timing.ROUNDS)):
        assert timing.found("case") is None
        timing.run("case", ways, device)
    assert ran.count("slow") == ran.count("fast")
    assert timing.found("case") == "fast"
    timing.run("case", ways, device)
    assert ran[-1] == "fast"
    with timing.forced("slow"):
        timing.run("case", ways, device)
    assert ran[-1] == "slow"


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
def test_dot_products_in_blocks(width: int) -> None:
    generator = _generator(0)
    left, right = (torch.randn(7, n, generator=generator, dtype=torch.float64) for n in (5, width))
    weight = torch.zeros(5, width, dtype=torch.float64)
    drawn = torch.randperm(5 * width, generator=generator)[: max(5 * width // 2, 1)]
    part = Wanted([weight], drawn[::2].sort().values, drawn[1::2].sort().values).parts[0]
    into = torch.ones(part.count, dtype=torch.float64)
    sampled._dots(part, left, right, -1.0, into)
    torch.testing.assert_close(into, 1 - (left.t() @ right).reshape(-1)[part.local], rtol=1e-12, atol=1e-12)
