"""Layer rules against autograd's dense gradients, and what else may be done with a layer that has one."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_oracle import seeded
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from spidersilk.layers.dressing import Ruled
from spidersilk.sparse import compact as compact_module
from spidersilk.sparse.compact import Compact, counts_among
from spidersilk.sparse.sparse import Sparse


@pytest.fixture(autouse=True, scope="module", params=[False, True], ids=["", "in runs"])
def in_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of it twice: columns come in runs of two, as those of large layers come in runs of eight."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(compact_module, "MANY", 1)
            patch.setattr(compact_module, "RUN", 2)
            patch.setattr(compact_module, "MULTIPLE", 2)
        yield


class Conv1D(nn.Module):
    """As in transformers: a linear layer whose weight is [inputs, outputs]."""

    def __init__(self, nf: int, nx: int):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)


Conv1D.__module__ = "transformers.pytorch_utils"


def dense(
    model: nn.Module, x: Tensor, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Output, gradient of the input, and those of the parameters, by autograd on an ordinary copy."""
    plain = copy.deepcopy(model)
    assert not any(isinstance(module, Ruled) for module in plain.modules())
    x = x.detach().requires_grad_(x.is_floating_point())
    out = plain(x)
    weigh(out).backward()
    return out.detach(), x.grad, {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}


def weigh(out: Tensor) -> Tensor:
    """A loss that has another gradient at each output."""
    return (out * torch.arange(1, out.numel() + 1, dtype=out.dtype).view(out.shape).sin()).sum()


def selected(optimizer: Sparse, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """What the optimizer has collected for a weight, and what it should have."""
    compact = next(c for c in optimizer._weights if c.weight is weight)
    assert compact.dimension is not None
    return compact.param.grad, gradient.index_select(compact.dimension, compact.indices)


def check(model: nn.Module, x: Tensor, groups: str = "columns", k2: float = 0.3, tolerance: float = 1e-12) -> None:
    """One layer: output, gradients of input, bias and the selected part of the weight."""
    optimizer = Sparse(model, torch.optim.SGD, lr=0.1, k2=k2, groups=groups, generator=seeded())
    out, of_input, wanted = dense(model, x)
    assert isinstance(model, Ruled) or not list(optimizer._weights)
    x = x.detach().requires_grad_(x.is_floating_point())
    found = model(x)
    weigh(found).backward()
    close: Any = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found.detach(), out, **close)
    if of_input is not None:
        torch.testing.assert_close(x.grad, of_input, **close)
    if getattr(model, "bias", None) is not None:
        torch.testing.assert_close(model.bias.grad, wanted["bias"], **close)
    if isinstance(model, Ruled):
        assert model.weight.grad is None
        torch.testing.assert_close(*selected(optimizer, model.weight, wanted["weight"]), **close)
    else:  # all of it is selected, so it is trained as it is
        torch.testing.assert_close(model.weight.grad, wanted["weight"], **close)
    optimizer.close()


SHARES = st.sampled_from([0.01, 0.3, 0.7])
GROUPS = st.sampled_from(["columns", "rows"])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.lists(st.integers(0, 4), max_size=2), st.booleans(), GROUPS, SHARES)
def test_linear(inputs: int, outputs: int, batch: list[int], bias: bool, groups: str, k2: float) -> None:
    torch.manual_seed(0)
    check(nn.Linear(inputs, outputs, bias).double(), torch.randn(*batch, inputs, dtype=torch.float64), groups, k2)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 9), st.integers(2, 9), st.lists(st.integers(0, 4), min_size=1, max_size=2), GROUPS, SHARES)
def test_conv1d_of_transformers(inputs: int, outputs: int, batch: list[int], groups: str, k2: float) -> None:
    """Its columns are its rows."""
    torch.manual_seed(0)
    model = Conv1D(outputs, inputs).double()
    check(model, torch.randn(*batch, inputs, dtype=torch.float64), groups, k2)
    if groups == "columns":
        optimizer = Sparse(model, torch.optim.SGD, lr=0.1, k2=k2, groups=groups)
        assert all(compact.dimension == 0 for compact in optimizer._weights)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.lists(st.integers(0, 4), max_size=2), st.sampled_from([None, 1]), GROUPS, SHARES)
def test_embedding(rows: int, batch: list[int], padding: int | None, groups: str, k2: float) -> None:
    torch.manual_seed(0)
    check(nn.Embedding(rows, 4, padding).double(), torch.randint(rows, batch), groups, k2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(2, 5), st.integers(2, 5), st.integers(0, 3), st.integers(1, 2), st.integers(0, 2),
    st.integers(1, 2), GROUPS, SHARES,
)  # fmt: skip
def test_convolutions(
    dims: int, inputs: int, outputs: int, batch: int, stride: int, padding: int, dilation: int, groups: str, k2: float
) -> None:
    torch.manual_seed(0)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    model = kind(inputs, outputs, (3, 2, 2)[:dims], stride, padding, dilation).double()
    check(model, torch.randn(batch, inputs, *(6, 5, 4)[:dims], dtype=torch.float64), groups, k2)


@pytest.mark.parametrize("groups", ["columns", "rows"])
@pytest.mark.parametrize("kind", ["sparse", "jagged", "strided"])
def test_sparse_and_nested_inputs(groups: Any, kind: str) -> None:
    """They are left to autograd."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    optimizer = Sparse(model, torch.optim.SGD, lr=0.1, k2=0.3, groups=groups, generator=seeded())
    x, twin = torch.randn(3, 6).relu(), copy.deepcopy(model)
    layout = getattr(torch, kind)
    given = x.to_sparse() if kind == "sparse" else torch.nested.nested_tensor([x[:1], x[1:]], layout=layout)
    out = model(given)
    weigh(out if kind == "sparse" else torch.cat(out.unbind())).backward()
    weigh(twin(x)).backward()
    torch.testing.assert_close(*selected(optimizer, model.weight, twin.weight.grad))


def test_channels_last() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(6, 4, 3).double().to(memory_format=torch.channels_last)
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    check(conv, x)
    with pytest.raises(ValueError, match=r"rows of a weight of shape \(4, 6, 3, 3\).*contiguous_format"):
        Sparse(conv, torch.optim.SGD, lr=0.1, groups="rows")


OTHERWISE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "grouped convolution": (lambda: nn.Conv2d(8, 8, 3, groups=2), (2, 8, 5, 5)),
    "padding by a word": (lambda: nn.Conv1d(4, 4, 3, padding="same"), (2, 4, 5)),
    "circular padding": (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (2, 4, 5, 5)),
    "no batch": (lambda: nn.Conv2d(4, 4, 3), (4, 5, 5)),
    "lstm": (lambda: nn.LSTM(4, 6), (3, 2, 4)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 3, 2), (2, 4, 3, 3)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), (3, 2, 4)),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_layers_without_a_rule_are_read_from_their_gradients(name: str) -> None:
    torch.manual_seed(0)
    make, shape = OTHERWISE[name]
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)

    def loss_of(model: nn.Module) -> Tensor:
        out = model(x, x, x) if name == "attention" else model(x)
        return weigh(out[0] if isinstance(out, tuple) else out)

    optimizer = Sparse(model, torch.optim.SGD, lr=0.1, k2=0.3, groups="columns", generator=seeded())
    plain = copy.deepcopy(model)
    loss_of(plain).backward()
    loss_of(model).backward()
    wanted = dict(plain.named_parameters())
    grouped = [c for c in optimizer._weights if c.dimension is not None]
    assert grouped
    names = {id(p): name for name, p in model.named_parameters()}
    for compact in grouped:
        gradient = wanted[names[id(compact.weight)]].grad
        assert compact.weight.grad is None
        torch.testing.assert_close(
            compact.param.grad, gradient.index_select(compact.dimension, compact.indices), rtol=1e-12, atol=1e-12
        )


# Models.


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, 12), nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 12, bias=False), nn.Linear(12, 3)
    ).to(dtype)


IDS, TARGETS = torch.arange(40).view(8, 5) % 11, torch.arange(8) % 3


def loss_of(model: nn.Module, part: slice = slice(None)) -> Tensor:
    return F.cross_entropy(model(IDS[part]).mean(1).double(), TARGETS[part])


def columns(model: nn.Module, **options: Any) -> Sparse:
    defaults = {"k2": 0.3, "groups": "columns", "inner_steps": 5, "generator": seeded(), "lr": 0.05}
    return Sparse(model, torch.optim.AdamW, **(defaults | options))


def same_as_dense(model: nn.Module, optimizer: Sparse, loss: Callable[[nn.Module], Tensor], tolerance: float) -> None:
    plain = copy.deepcopy(model)
    loss(plain).backward()
    optimizer.zero_grad()
    loss(model).backward()
    wanted = {name: p.grad for name, p in plain.named_parameters()}
    for name, p in model.named_parameters():
        if name.endswith("weight"):
            torch.testing.assert_close(*selected(optimizer, p, wanted[name]), rtol=tolerance, atol=tolerance)
            assert p.grad is None


def used_twice(model: nn.Module) -> Tensor:
    return loss_of(model) + loss_of(model, slice(0, 3)) ** 2


def checkpointed(reentrant: bool) -> Callable[[nn.Module], Tensor]:
    def loss(model: Any) -> Tensor:
        x = model[0](IDS)
        inner = nn.Sequential(*list(model)[1:])
        out: Any = checkpoint(inner, x, use_reentrant=reentrant)
        return F.cross_entropy(out.mean(1).double(), TARGETS)

    return loss


def outside_too(model: Any) -> Tensor:
    """Weights are also used outside of their layers."""
    return loss_of(model) + model[1].weight.square().sum() + F.linear(torch.ones(2, 12).double(), model[4].weight).sum()


def accumulated(model: nn.Module) -> Tensor:
    loss_of(model, slice(0, 4)).backward()
    return loss_of(model, slice(4, 8))


LOSSES = {
    "twice": used_twice,
    "checkpointed": checkpointed(False),
    "checkpointed, reentrant": checkpointed(True),
    "outside too": outside_too,
    "accumulated": accumulated,
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("k1", [0.0, 0.2])
def test_gradients_of_a_model(loss: str, k1: float) -> None:
    """At a first selection by the gradient, if k1 > 0, and after it."""
    model = network()
    optimizer = columns(model, k1=k1)
    for _ in range(2):
        same_as_dense(model, optimizer, LOSSES[loss], 1e-12)
        optimizer.step()


def test_tied_weights() -> None:
    """One set of rows, those of the table, for the head too."""
    model = network()
    model[4] = nn.Linear(12, 11, bias=False).double()
    model[4].weight = model[0].weight
    optimizer = columns(model)
    assert isinstance(model[4], Ruled)
    plain = copy.deepcopy(model)
    assert plain[4].weight is plain[0].weight
    loss_of(plain).backward()
    loss_of(model).backward()
    torch.testing.assert_close(*selected(optimizer, model[0].weight, plain[0].weight.grad), rtol=1e-12, atol=1e-12)
    assert len([name for name, _ in model.named_parameters() if name.endswith("_compact")]) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    """To rounding: what autocast gives with the dense gradient."""

    def loss(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype):
            out = model(IDS)
        return F.cross_entropy(out.mean(1).float(), TARGETS)

    model = network(torch.float32)
    optimizer = columns(model)
    same_as_dense(model, optimizer, loss, 4 * torch.finfo(dtype).eps)


def test_gradients_of_gradients() -> None:
    model = network()
    optimizer = columns(model)

    def penalty(model: Any, parameters: list[Tensor]) -> Tensor:
        x = torch.randn(4, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
        out = model[3](model[2](model[1](x))).square().sum()
        (of_input,) = torch.autograd.grad(out, x, create_graph=True)
        return of_input.square().sum()

    same_as_dense_at = [model[1], model[3]]
    plain = copy.deepcopy(model)
    penalty(plain, []).backward()
    penalty(model, []).backward()
    for layer, other in zip(same_as_dense_at, (plain[1], plain[3]), strict=True):
        torch.testing.assert_close(*selected(optimizer, layer.weight, other.weight.grad), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layer", [nn.Linear(6, 5), nn.Conv2d(6, 4, 3, padding=1)], ids=["linear", "convolution"])
@pytest.mark.parametrize("groups", ["columns", "rows"])
def test_selected_gradients_have_gradients(layer: nn.Module, groups: str) -> None:
    """With respect to the input, by way of what is kept of it."""
    model, shape = copy.deepcopy(layer).double(), (3, 6) if isinstance(layer, nn.Linear) else (2, 6, 4, 4)
    plain, x = copy.deepcopy(model), torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    optimizer = columns(model, k2=0.5, groups=groups)
    (compact,) = [c for c in optimizer._weights if c.dimension is not None]
    found = []
    for net, weight in ((model, compact.param), (plain, plain.weight)):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(weigh(net(given).sin()), weight, create_graph=True)
        if net is plain:
            assert compact.dimension is not None
            gradient = gradient.index_select(compact.dimension, compact.indices)
        (gradient.square().sum() + net(given).sum()).backward()
        found.append(given.grad)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("bias", [False, True])
def test_a_checkpoint_computes_its_last_product_once(bias: bool) -> None:
    """Forward, again in backward up to the last layer, gradients of inputs, and those of half of the columns."""
    model = nn.Sequential(nn.Linear(8, 16, bias), nn.ReLU(), nn.Linear(16, 4, bias)).double()
    optimizer = columns(model, k2=0.5)
    assert optimizer.density < 1
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as seen:
        out: Any = checkpoint(model, x, use_reentrant=False)
        out.sum().backward()
    first, last = 2 * 5 * 8 * 16, 2 * 5 * 16 * 4
    products = [event.flops for event in seen.key_averages() if event.key in ("aten::mm", "aten::addmm")]
    assert sum(products) == (first + last) + first + (first + last) + (first + last) // 2


@pytest.mark.parametrize("groups", ["columns", "rows"])
def test_without_a_graph_break_and_without_compiling_again(groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dense: list[object] = []
    monkeypatch.setattr(Compact, "collect", lambda compact, gradient: dense.append(compact))
    model = network(torch.float32)
    optimizer = columns(model, inner_steps=2, groups=groups)
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for _ in range(6):  # over three selections
        same_as_dense(model, optimizer, lambda m: loss_of(compiled if m is model else m), 1e-5)
        optimizer.step()
    assert counter.frame_count == 1
    assert not dense  # no weight got a whole gradient


def test_what_others_see_is_an_ordinary_model() -> None:
    model = network()
    names, kinds = list(model.state_dict()), [type(module) for module in model.modules()]
    optimizer = columns(model)
    loss_of(model).backward()
    optimizer.step()
    assert list(model.state_dict()) == names
    assert model.load_state_dict(model.state_dict()) == ([], [])
    for other in (copy.deepcopy(model), pickled(model)):
        assert [type(module) for module in other.modules()] == kinds
        assert [name for name, _ in other.named_parameters()] == names
        assert torch.equal(other(IDS), model(IDS))
        loss_of(other).backward()
        assert all(p.grad is not None for p in other.parameters())
        exported = torch.export.export(other, (IDS,))
        assert list(exported.state_dict) == names
    torch.testing.assert_close(torch.export.export(model, (IDS,)).module()(IDS), model(IDS))
    optimizer.close()
    assert [type(module) for module in model.modules()] == kinds
    assert not {"_compacts", "_source"} & set(vars(model[1]))


def pickled(model: nn.Module) -> nn.Module:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def test_another_weight_in_its_place_is_left_to_autograd() -> None:
    model = network()
    optimizer = columns(model)
    others = {name: p.detach().clone().requires_grad_() for name, p in copy.deepcopy(model).named_parameters()}
    out = torch.func.functional_call(model, others, (IDS,))
    out.sum().backward()
    assert all(p.grad is not None for p in others.values())
    assert all(p.grad is None for p in optimizer._params())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("groups", ["columns", "rows"])
def test_a_selection_that_changes_before_backward_is_noticed(groups: str, compiled: bool) -> None:
    model = network()
    optimizer = columns(model, groups=groups)
    torch._dynamo.reset()
    called: Any = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    loss = loss_of(called)
    optimizer._renew()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("groups", [None, "columns", "rows"])
def test_a_step_before_backward_is_noticed(groups: str | None, backend: str, compiled: bool) -> None:
    """As by torch, also where kernels of ours have written to the weights."""
    model = network()
    optimizer = columns(model, groups=groups, backend=backend)
    torch._dynamo.reset()
    called: Any = torch.compile(model, backend="aot_eager") if compiled else model
    loss = loss_of(called)
    loss_of(model, slice(0, 3)).backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_compiled_backward_passes() -> None:
    model = network(torch.float32)
    optimizer = columns(model)
    torch._dynamo.reset()

    def compiled(model: nn.Module) -> Tensor:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss_of(torch.compile(model, backend="aot_eager")).backward()  # pyright: ignore[reportArgumentType]
        return torch.zeros((), requires_grad=True)

    same_as_dense(model, optimizer, lambda m: compiled(m) if m is model else loss_of(m), 1e-5)


@pytest.mark.parametrize("groups", ["columns", "rows"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_can_be_changed_in_place(groups: str, bias: bool, compiled: bool) -> None:
    """As those of torch's layer; three dimensions and a bias make it a view inside."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias), nn.ReLU(inplace=True), nn.Linear(9, 4, bias)).double()
    optimizer, x = columns(model, groups=groups), torch.randn(2, 5, 6, dtype=torch.float64)

    def loss(model: nn.Module) -> Tensor:
        y = model(x)
        y += 1
        return y.square().sum()

    torch._dynamo.reset()
    changed: Any = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
    same_as_dense(model, optimizer, changed, 1e-12)


class Image(Tensor):
    """A subclass that adds nothing, as libraries of images have."""


def saving_all(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE


class Doubled(TorchFunctionMode):
    """Makes another linear layer, as modes for quantisation do."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return 2 * out if function is F.linear else out


def doubled(model: nn.Module, x: Tensor) -> Tensor:
    with Doubled():
        return model(x)


WATCHED: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "of a subclass": lambda model, x: model(x.as_subclass(Image)).sin_(),
    "in a selective checkpoint": lambda model, x: checkpoint(
        model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(saving_all)
    ),
    "under a mode": lambda model, x: doubled(model, x),
    "traced by torch.jit": lambda model, x: torch.jit.trace(model, x, check_trace=False)(x),
}


@pytest.mark.parametrize("groups", ["columns", "rows"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", WATCHED)
def test_where_somebody_looks_at_single_operations(name: str, bias: bool, groups: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias), nn.ReLU(), nn.Linear(9, 4, bias)).double()
    optimizer, x = columns(model, groups=groups), torch.randn(2, 5, 6, dtype=torch.float64)
    same_as_dense(model, optimizer, lambda m: WATCHED[name](m, x).square().sum(), 1e-12)
    torch.testing.assert_close(make_fx(model)(x)(x), model(x))


class IntoLayers(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


@pytest.mark.parametrize("layer", [nn.Linear(6, 9), nn.Conv1d(4, 6, 3), nn.Embedding(5, 9)], ids=repr)
def test_traced_by_torch_fx_and_in_inference_mode(layer: nn.Module) -> None:
    table = isinstance(layer, nn.Embedding)
    x = torch.tensor([[1, 2]]) if table else torch.randn(2, 4, 6)
    model, out = nn.Sequential(layer), layer(x)
    optimizer = columns(model)
    traced = torch.fx.GraphModule(model, IntoLayers().trace(model))
    torch.testing.assert_close(traced(x), out)
    with torch.inference_mode(), torch.enable_grad():
        torch.testing.assert_close(model(x), out)
    optimizer.close()


def test_a_hook_on_a_weight_sees_its_whole_gradient() -> None:
    model, norms = nn.Linear(32, 4), []
    model.weight.register_post_accumulate_grad_hook(lambda weight: norms.append(weight.grad.norm()))
    wanted = copy.deepcopy(model)
    optimizer, x = columns(model), torch.randn(3, 32)
    weigh(model(x)).backward()
    weigh(wanted(x)).backward()
    torch.testing.assert_close(norms, [wanted.weight.grad.norm()])
    torch.testing.assert_close(*selected(optimizer, model.weight, wanted.weight.grad))


def test_the_hooks_of_another_sparse_optimizer_turn_no_rule_off() -> None:
    first, second = nn.Linear(32, 16), nn.Linear(16, 32)
    second.requires_grad_(False)
    model = nn.Sequential(first, second)
    one = columns(model)
    second.requires_grad_(True)
    other = columns(second)
    arrived: list[Tensor] = []
    for compact in other._weights:
        compact.collect = arrived.append  # type: ignore[method-assign]
    model(torch.randn(3, 32)).sum().backward()
    assert not arrived
    one.close()
    other.close()


def test_autocast_leaves_numbers_alone_that_it_does_not_cast() -> None:
    model = nn.Linear(32, 4)
    optimizer, words = columns(model), "must have the same dtype"
    for x in (torch.ones(2, 32, dtype=torch.long), torch.ones(2, 32, dtype=torch.complex64)):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match=words):
            model(x)
    optimizer.close()


def test_a_layer_without_outputs() -> None:
    model = nn.Linear(32, 0)
    optimizer, x = columns(model), torch.randn(3, 32, requires_grad=True)
    y = model(x)
    y.sum().backward()
    assert y.shape == (3, 0)
    assert torch.equal(x.grad, torch.zeros(3, 32))
    optimizer.close()


def test_an_input_of_another_width_gets_the_words_of_torch() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    optimizer = columns(model)
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied \(4x16 and 32x8\)"):
        model(torch.randn(4, 16))
    optimizer.close()


def test_activations_that_are_kept() -> None:
    """By linear layers: at 10 % of the columns no more than a fifth of what they keep for a dense gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(200, 200, bias=False) for _ in range(4)])
    x = torch.randn(64, 200)
    weights = {p.data_ptr() for p in model.parameters()}

    def kept(model: nn.Module) -> int:
        sizes = []

        def note(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in weights:
                sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            model(x).sum()
        return sum(sizes)

    before = kept(model)
    assert before == 4 * x.numel() * 4
    optimizer = columns(model, k2=0.1)
    assert kept(model) <= 0.2 * before
    assert optimizer.density == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("shape", "groups", "k1", "k2", "shares"),
    [
        ((2, 768), "columns", 0.0, 0.1, (0, 80, 8)),
        ((2, 768), "columns", 0.1, 0.0, (80, 0, 8)),
        ((2, 768), "columns", 0.05, 0.05, (40, 40, 8)),
        ((2, 640), "columns", 0.0, 0.1, (0, 64, 8)),
        ((2, 624), "columns", 0.0, 0.1, (0, 63, 1)),
        ((2, 700), "columns", 0.0, 0.1, (0, 72, 1)),
        ((2, 104), "columns", 0.0, 0.99, (0, 104, 8)),
        ((2, 70), "columns", 0.5, 0.45, (35, 35, 1)),
        ((768, 2), "rows", 0.0, 0.1, (0, 80, 1)),
        ((768, 2), "rows", 0.1, 0.0, (80, 0, 1)),
        ((768, 2), "rows", 0.05, 0.05, (39, 41, 1)),
        ((2, 768), None, 0.0, 0.1, (0, 154, 1)),
    ],
)
def test_of_many_groups_a_multiple_of_eight_and_columns_in_runs(
    shape: tuple[int, int], groups: Any, k1: float, k2: float, shares: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_module, "MANY", 64)
    monkeypatch.setattr(compact_module, "RUN", 8)
    monkeypatch.setattr(compact_module, "MULTIPLE", 8)
    dimension = {"rows": 0, "columns": 1, None: None}[groups]
    assert counts_among(shape, k1, k2, dimension) == shares
    optimizer = columns(nn.Linear(*reversed(shape), bias=False), k1=k1, k2=k2, groups=groups)
    assert optimizer.k == (shares[0] + shares[1]) * (1 if dimension is None else shape[1 - dimension])
    for compact in optimizer._weights:
        assert (compact.k1, compact.k2, compact.run) == shares


def test_a_run_is_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn without a gradient: whole runs, each at a multiple of its length, all of them sooner or later."""
    monkeypatch.setattr(compact_module, "MANY", 64)
    monkeypatch.setattr(compact_module, "RUN", 8)
    monkeypatch.setattr(compact_module, "MULTIPLE", 8)
    optimizer = columns(nn.Linear(768, 2, bias=False), k2=0.1)
    compact = next(iter(optimizer._weights))
    seen = set()
    for _ in range(100):
        runs = compact.indices.view(-1, 8)
        assert torch.equal(runs, 8 * (runs[:, :1] // 8) + torch.arange(8))
        assert bool((runs[:, 0].diff() > 0).all())
        seen |= set(runs[:, 0].tolist())
        optimizer._renew()
    assert seen == set(range(0, 768, 8))


def test_columns_are_chosen_by_their_scores() -> None:
    """k1 of the largest averages of the norms so far, k2 others at random; so are runs of columns."""
    torch.manual_seed(0)
    model = nn.Linear(40, 4, bias=False).double()
    optimizer = columns(model, k1=0.2, k2=0.1, inner_steps=1, lr=0.0)
    compact = next(iter(optimizer._weights))
    scores = torch.zeros(40 // compact.run, dtype=torch.float64)
    for step in range(4):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(model(x).square().sum(), model.weight)
        norms = gradient.unflatten(1, (-1, compact.run)).norm(dim=(0, 2))
        scores = (scores + norms) / 2
        model(x).square().sum().backward()
        top = scores.topk(8 // compact.run).indices
        assert set(top.tolist()) <= set((compact.indices // compact.run).tolist())
        assert len(compact.indices) == 12
        torch.testing.assert_close(compact.param.grad, gradient[:, compact.indices.long()])
        torch.testing.assert_close(compact.scores, scores)
        optimizer.step()
        optimizer.zero_grad()


def test_scores_outlive_a_gradient_that_overflows() -> None:
    model = nn.Linear(20, 4, bias=False)
    optimizer = columns(model, k1=0.2, k2=0.1, inner_steps=1, lr=0.0)
    compact = next(iter(optimizer._weights))
    for scale in (1.0, torch.inf, 1.0):
        (model(torch.ones(2, 20)).sum() * scale).backward()
        assert compact.scores.isfinite().all()
        optimizer.zero_grad()
        optimizer._renew()


@pytest.mark.parametrize("groups", ["columns", "rows"])
@pytest.mark.parametrize("k1", [0.0, 0.2])
def test_resumed_is_bit_identical(groups: str, k1: float) -> None:
    def make() -> tuple[nn.Module, Sparse]:
        model = network()
        return model, columns(model, groups=groups, k1=k1)

    def train(model: nn.Module, optimizer: Sparse, steps: int) -> None:
        for _ in range(steps):
            loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = make()
    train(model, optimizer, 17)
    wanted = copy.deepcopy(model.state_dict())
    model, optimizer = make()
    train(model, optimizer, 10 if k1 else 8)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    model, optimizer = make()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    train(model, optimizer, 7 if k1 else 9)
    for name, p in model.state_dict().items():
        assert torch.equal(p, wanted[name])


def test_unselected_weights_stay_and_bytes_are_as_the_formula_says() -> None:
    """Values, gradient and two averages of float32 for what is selected, and an index for each column."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 200, bias=False), nn.Linear(200, 300, bias=False)).to(torch.bfloat16)
    before = copy.deepcopy(model)
    optimizer = columns(model, k2=0.1)
    model(torch.randn(4, 300).to(torch.bfloat16)).sum().backward()
    held = [*optimizer._params(), *[p.grad for p in optimizer._params()]]
    optimizer.step()
    held += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    held += [c.indices for c in optimizer._weights]
    count = sum(t.numel() * t.element_size() for t in held)
    parameters = sum(p.numel() for p in before.parameters())
    assert count == pytest.approx(16 * 0.1 * parameters, rel=0.1)
    for layer, old in zip(model, before, strict=True):
        compact = next(c for c in optimizer._weights if c.weight is layer.weight)
        left = [i for i in range(layer.in_features) if i not in set(compact.indices.tolist())]
        assert torch.equal(layer.weight[:, left], old.weight[:, left])
        moved = (layer.weight != old.weight).any(0).nonzero().view(-1).tolist()
        assert set(moved) <= set(compact.indices.tolist())
        assert moved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "column"}, "groups = 'column'"),
        ({"k2": 3}, "k2 = 3 is a count"),
        ({"k1": 0.6, "k2": 0.5}, "exceeds 1"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        columns(network(), **options)
    assert math.isfinite(loss_of(network()).item())
