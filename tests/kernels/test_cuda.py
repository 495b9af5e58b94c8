"""The same checks on a CUDA device, and those for CUDA alone: no synchronisation, and a flag for divergence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import entry_cases
import permutation
import pytest
import torch
from cases import METHODS, mlp
from sparse_oracle import BASES, follows_the_oracle
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk import reference
from spidersilk.kernels import backends
from spidersilk.kernels.plain import top_indices
from spidersilk.sparse.compact import Compact
from spidersilk.variance.group_gradients import GroupGradients

pytestmark = pytest.mark.gpu

if torch.cuda.is_available():
    from spidersilk.kernels.triton.backend import TritonKernels

G = torch.Generator().manual_seed(0)
BACKENDS = ["torch", "triton"]
X, Y = torch.randn(64, 6, generator=G), torch.randint(3, (64,), generator=G)


def net(*layers: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 3)).to("cuda", dtype)


def closures(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[int], Callable[[], Tensor]]:
    p = next(model.parameters())
    x, y = X.to(p.device, p.dtype), Y.to(p.device)

    def closure_for(size: int) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[:size]), y[:size])
            loss.backward()
            return loss.detach()

        return closure

    return closure_for


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu()


def memories(kind: str, d: int, dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(3)
    bits = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}[dtype]
    return {
        "random": lambda: torch.randn(d, generator=g).to(dtype),
        "tied": lambda: torch.randint(-2, 3, (d,), generator=g).to(dtype),
        "zero": lambda: torch.zeros(d, dtype=dtype),
        "equal": lambda: torch.full((d,), -1.5, dtype=dtype),
        "few": lambda: torch.zeros(d, dtype=dtype).index_fill_(0, torch.arange(0, d, 50), 7.0),
        "denormal": lambda: torch.randint(0, 100, (d,), generator=g).to(bits).view(dtype),
        "wide": lambda: (torch.randn(d, generator=g) * 10.0 ** torch.randint(-30, 30, (d,), generator=g)).to(dtype),
    }[kind]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["random", "tied", "zero", "equal", "few", "denormal", "wide"])
@pytest.mark.parametrize("d", [1, 7, 1000, 62_006, 1_000_003])
def test_selection(kind: str, dtype: torch.dtype, d: int) -> None:
    memory = memories(kind, d, dtype).cuda()
    for k1, k2 in {(d // 20, d // 20), (max(d // 20, 1), 0), (0, max(d // 20, 1)), (d // 2, d - d // 2), (d, 0)}:
        draws = [TritonKernels().select(memory, k1, k2, seed) for seed in (1, 1, 2)]
        top, random = draws[0]
        assert torch.equal(top, top_indices(memory.abs(), k1))
        assert random.numel() == k2
        assert bool((random[1:] > random[:-1]).all())
        assert torch.cat([top, random]).unique().numel() == k1 + k2
        assert k2 == 0 or 0 <= int(random[0]) <= int(random[-1]) < d
        assert torch.equal(random, draws[1][1])
        assert not 0 < k2 < (d - k1) / 2 or d < 1000 or not torch.equal(random, draws[2][1])


def test_draws_are_those_of_the_host() -> None:
    for d, k1, k2, seed, position in (
        (1000, 50, 60, 5, 0),
        (62_006, 3101, 3101, 2**62 + 3, 2**40 + 7),
        (7, 2, 3, 1, 1),
    ):
        memory = memories("random", d, torch.float32).cuda()
        top, random = TritonKernels().select(memory, k1, k2, torch.tensor([seed, position]).cuda())
        rest = torch.ones(d, dtype=torch.bool).index_fill_(0, top.cpu(), False).nonzero().squeeze(1)
        assert torch.equal(random.cpu(), permutation.drawn(seed, torch.tensor([position]), rest, k2)[0])


def test_draws_are_uniform() -> None:
    """Inclusion counts of 2000 draws: chi-square within 5 standard deviations."""
    d, k1, k2, calls = 2000, 100, 100, 2000
    memory, counter, ops = memories("random", d, torch.float32).cuda(), torch.tensor([9, 0]).cuda(), TritonKernels()
    counts = torch.zeros(d, device="cuda", dtype=torch.float64)
    for _ in range(calls):
        top, random = ops.select(memory, k1, k2, counter)
        counts[random] += 1
    share = k2 / (d - k1)
    counts[top] = calls * share
    square = float(((counts - calls * share) ** 2).sum() / (calls * share * (1 - share)))
    assert abs(square - (d - k1 - 1)) < 5 * (2 * (d - k1 - 1)) ** 0.5


CAPTURED = [
    "sparse-spiderboost",
    "sparse-svrg",
    "sparse-svrg, refresh",
    "sparse-svrg, selected",
]


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_step_draws_anew_at_each_replay(name: str) -> None:
    """A graph of one small step, replayed, goes where plain steps go."""
    models, counters = [], []
    for captured in (False, True):
        model = net()
        optimizer = METHODS[name].make(
            model.parameters(), 0.05, k1=10, k2=5, generator=torch.Generator().manual_seed(4)
        )
        closure_for = closures(model, optimizer)
        optimizer.step(closure_for(64), anchor=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.step(closure_for(16), anchor=False)
        torch.cuda.current_stream().wait_stream(side)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step(closure_for(16), anchor=False)
        seen = set()
        for _ in range(4):
            graph.replay() if captured else optimizer.step(closure_for(16), anchor=False)
            seen.add(tuple(optimizer.selection.indices.tolist()))  # type: ignore[union-attr]
        assert len(seen) == 4
        optimizer.check()
        models.append(flat(model))
        counters.append(optimizer._stream.position)
    assert counters == [7, 7]
    torch.testing.assert_close(*models, rtol=0, atol=1e-12)


def test_captures_that_would_use_freed_memory_are_refused() -> None:
    for make in (
        lambda p: silk.SparseSVRG(p, 0.05, move="selected", choose="anchor"),
        lambda p: silk.SparseSVRG(p, 0.05, momentum=0.9, move="selected", choose="step"),
    ):
        model = net()
        optimizer = make(model.parameters())
        closure_for = closures(model, optimizer)
        optimizer.step(closure_for(64), anchor=True)
        optimizer.step(closure_for(16), anchor=False)
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step(closure_for(16), anchor=False)
        torch.cuda.synchronize()


def test_a_loaded_state_is_not_frozen_by_what_went_before() -> None:
    model = net()
    optimizer = silk.SparseSVRG(model.parameters(), 0.05)
    closure_for = closures(model, optimizer)
    optimizer.step(closure_for(64), anchor=True)
    optimizer.step(closure_for(16), anchor=False)
    state = copy.deepcopy(optimizer.state_dict())

    def bad() -> Tensor:
        loss = closure_for(16)()
        (next(model.parameters()).sum() * float("nan")).backward()
        return loss

    optimizer.step(bad, anchor=False)
    optimizer.load_state_dict(state)
    before = flat(model)
    optimizer.step(closure_for(16), anchor=False)
    optimizer.check()
    assert not torch.equal(flat(model), before)


def test_a_capture_that_could_not_replay_its_random_numbers_is_refused() -> None:
    for layers, match in (((nn.Dropout(0.5),), "dropout"), ((), "before the capture")):
        model = net(*layers)
        optimizer = silk.SparseSVRG(model.parameters(), 0.05)
        closure_for = closures(model, optimizer)
        optimizer.step(closure_for(64), anchor=True)
        if layers:
            optimizer.step(closure_for(16), anchor=False)
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match=match), torch.cuda.graph(torch.cuda.CUDAGraph()):
            optimizer.step(closure_for(16), anchor=False)
        torch.cuda.synchronize()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_trajectory_is_that_of_the_reference(name: str, backend: str) -> None:
    problem = mlp()
    x0, lr, method = problem.flat_x(), 0.05, METHODS[name]
    model = mlp().model.cuda()
    optimizer = method.make(model.parameters(), lr, backend=backend, generator=torch.Generator().manual_seed(4))
    g = torch.Generator().manual_seed(5)
    batches = [torch.randperm(60, generator=g)[: 20 if t % 8 == 0 else 5] for t in range(80)]
    iterates, selections = [], []
    for t, batch in enumerate(batches):
        # The problem's data lie on the CPU: the gradient comes from there, the step is done on the device.
        def on_device() -> Tensor:
            x = flat(model)
            gradient = problem.flat_gradient(x.double(), batch).cuda()
            for p, piece in zip(
                model.parameters(), gradient.split([q.numel() for q in model.parameters()]), strict=True
            ):
                p.grad = piece.view(p.shape).clone()
            return torch.zeros(())

        optimizer.step(on_device, anchor=t % 8 == 0, samples=len(batch))
        iterates.append(flat(model))
        if optimizer.selection is not None and optimizer.selection is not (selections or [None])[-1]:
            selections.append(optimizer.selection)
    replay = [silk.Selection(s.top.cpu(), s.random.cpu(), s.scale, s.d) for s in selections]
    trace = reference.algorithm_1(
        problem.flat_gradient,
        x0,
        (b for t, b in enumerate(batches) if t % 8 == 0),
        (b for t, b in enumerate(batches) if t % 8),
        lr=lr, inner_steps=8, loops=10, k1=3, k2=2 if selections else None, replay=iter(replay), **method.options,
    )  # fmt: skip
    for got, want in zip(iterates, trace.iterates, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["spiderboost", "svrg", "sparse-spiderboost", "sparse-svrg", "sparse-svrg, selected"])
def test_dropout_on_the_device_is_replayed_and_statistics_move_once(name: str) -> None:
    model = net(nn.BatchNorm1d(8), nn.Dropout(0.5))
    optimizer = METHODS[name].make(model.parameters(), 0.0)
    closure_for = closures(model, optimizer)
    optimizer.step(closure_for(64), anchor=True)
    anchor = [p.grad.clone() for p in model.parameters()]
    for _ in range(5):
        optimizer.step(closure_for(8), anchor=False)
        for p, g in zip(model.parameters(), anchor, strict=True):
            if optimizer.move == "selected":
                assert torch.equal(optimizer.state[p]["memory"], g.abs())
            else:
                assert torch.equal(optimizer.state[p]["estimate"], g)
    assert int(model[1].num_batches_tracked) == 6  # type: ignore[index]
    torch.manual_seed(1)
    optimizer.step(closure_for(8), anchor=False)
    after = torch.cuda.get_rng_state()
    torch.manual_seed(1)
    closure_for(8)()
    assert torch.equal(after, torch.cuda.get_rng_state())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trains_in_low_precision(name: str, dtype: torch.dtype) -> None:
    model = net(dtype=dtype)
    optimizer = METHODS[name].make(model.parameters(), 0.05, k1=10, k2=5)
    closure_for = closures(model, optimizer)
    losses = [
        float(optimizer.step(closure_for(64 if t % 6 == 0 else 16), anchor=t % 6 == 0, samples=1)) for t in range(61)
    ]
    optimizer.check()
    assert losses[60] < losses[0]


def bases(params, which: str) -> torch.optim.Optimizer:
    return {
        "sgd": lambda: torch.optim.SGD(params, 0.05),
        "momentum": lambda: torch.optim.SGD(params, 0.05, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(params, 0.01),
        "adamw fused": lambda: torch.optim.AdamW(params, 0.01, fused=True),
    }[which]()


FORMS = {
    "dense": {"reference": "anchor"},
    "previous": {"reference": "previous", "sparsity": silk.RTop(10, 5)},
    "anchor": {"reference": "anchor", "sparsity": silk.RTop(10, 5)},
    "rows": {"reference": "anchor", "sparsity": silk.RTop(0.2, 0.2, groups="rows")},
    "columns": {"reference": "anchor", "sparsity": silk.RTop(0.2, 0.2, groups="columns")},
    "selected": {"reference": "anchor", "move": "selected", "choose": "anchor", "sparsity": silk.RTop(10, 5)},
    "selected, k": {"reference": "anchor", "move": "selected", "anchor_move": "selected", "sparsity": silk.RTop(10, 5)},
}


@pytest.mark.parametrize("which", ["sgd", "momentum", "adamw", "adamw fused"])
@pytest.mark.parametrize("form", FORMS)
def test_divergence_keeps_x_and_is_told_later(which: str, form: str) -> None:
    model = net()
    optimizer = silk.VarianceReduced(bases(model.parameters(), which), **FORMS[form])
    closure_for = closures(model, optimizer)
    for t in range(9):
        optimizer.step(closure_for(64 if t % 6 == 0 else 16), anchor=t % 6 == 0)
    optimizer.check()
    before = flat(model)

    def bad() -> Tensor:
        loss = closure_for(16)()
        for p in model.parameters():
            p.grad.mul_(float("inf"))  # type: ignore[union-attr]
        return loss

    optimizer.step(bad, anchor=False)  # the host does not know yet
    assert torch.equal(flat(model), before)
    with pytest.raises(silk.DivergenceError) as caught:
        optimizer.check()
    assert (caught.value.step, caught.value.inner_step) == (9, 3)
    assert torch.equal(flat(model), before)
    optimizer.step(closure_for(64), anchor=True)
    optimizer.step(closure_for(16), anchor=False)
    optimizer.check()
    assert not torch.equal(flat(model), before)
    assert bool(torch.isfinite(flat(model)).all())


@pytest.mark.parametrize("form", FORMS)
def test_divergence_is_raised_by_a_later_step(form: str) -> None:
    model = net()
    optimizer = silk.VarianceReduced(bases(model.parameters(), "adamw"), **FORMS[form])
    closure_for = closures(model, optimizer)
    optimizer.step(closure_for(64), anchor=True)
    before = flat(model)

    def bad() -> Tensor:
        loss = closure_for(16)()
        (next(model.parameters()).sum() * float("nan")).backward()
        return loss

    with pytest.raises(silk.DivergenceError):
        for _ in range(50):
            optimizer.step(bad if optimizer.steps == 1 else closure_for(16), anchor=False)
            torch.cuda.synchronize()
    assert torch.equal(flat(model), before)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["sgd", "adamw fused"])
def test_a_small_step_does_not_wait_for_the_device(form: str, which: str) -> None:
    model = net(nn.BatchNorm1d(8), nn.Dropout(0.1), dtype=torch.float32)
    optimizer = silk.VarianceReduced(bases(model.parameters(), which), **FORMS[form])
    closure_for = closures(model, optimizer)
    for t in range(8):
        optimizer.step(closure_for(64 if t % 6 == 0 else 16), anchor=t % 6 == 0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            optimizer.step(closure_for(16), anchor=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_parameters_on_two_devices() -> None:
    a, b = nn.Parameter(torch.ones(20)), nn.Parameter(torch.full((30,), 2.0, device="cuda"))
    for move in ("all", "selected"):
        optimizer = silk.SparseSVRG([a, b], 0.05, k1=5, k2=5, move=move)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = a.square().sum() + b.square().sum().cpu()
            loss.backward()
            return loss.detach()

        losses = [float(optimizer.step(closure, anchor=t % 5 == 0, samples=1)) for t in range(20)]
        optimizer.check()
        assert losses[-1] < 0.5 * losses[0]
        optimizer.zero_grad()  # the v that it left is a foreign gradient for the next one


def test_state_moves_between_devices() -> None:
    """Saved on the device, loaded on the CPU and back: the same next steps."""
    results = []
    for stay in (True, False):
        model = net()
        optimizer = silk.SparseSVRG(model.parameters(), 0.05, k1=10, k2=5, generator=torch.Generator().manual_seed(1))
        closure_for = closures(model, optimizer)
        for t in range(4):
            optimizer.step(closure_for(64 if t % 6 == 0 else 16), anchor=t % 6 == 0)
        if not stay:
            state = optimizer.state_dict()
            optimizer.zero_grad()  # the v that it left is a foreign gradient for another optimizer
            optimizer = silk.SparseSVRG(model.parameters(), 0.05, k1=10, k2=5)
            moved = torch.utils._pytree.tree_map(lambda v: v.cpu() if isinstance(v, Tensor) else v, state)
            optimizer.load_state_dict(moved)
            closure_for = closures(model, optimizer)
        for t in range(4, 12):
            optimizer.step(closure_for(64 if t % 6 == 0 else 16), anchor=t % 6 == 0)
        results.append(flat(model))
    assert torch.equal(*results)


def test_loader_indexes_tensors_where_they_lie() -> None:
    data = torch.arange(1000, device="cuda")
    on_device = list(silk.AnchorLoader(data, 100, 10, 5, generator=torch.Generator().manual_seed(1)))
    on_host = list(silk.AnchorLoader(data.cpu(), 100, 10, 5, generator=torch.Generator().manual_seed(1)))
    for (a, _), (b, _) in zip(on_device, on_host, strict=True):
        assert a.is_cuda
        assert torch.equal(a.cpu(), b)


def test_an_lstm_at_the_reference_has_its_weights_in_one_piece() -> None:
    """cuDNN warns, and copies all weights at every call, where they are not."""
    table, lstm, head = nn.Embedding(50, 8).cuda(), nn.LSTM(8, 16, num_layers=2).cuda(), nn.Linear(16, 50).cuda()
    params = [*table.parameters(), *lstm.parameters(), *head.parameters()]
    optimizer = silk.SparseSVRG(params, 0.1)
    tokens = torch.randint(50, (12, 4), device="cuda")

    def closure() -> Tensor:
        optimizer.zero_grad()
        out, _ = lstm(table(tokens[:-1]))
        loss = F.cross_entropy(head(out).reshape(-1, 50), tokens[1:].reshape(-1))
        loss.backward()
        return loss.detach()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for t in range(8):
            optimizer.step(closure, anchor=t % 4 == 0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [3, 8, 21])
@pytest.mark.parametrize("dimension", [0, 1])
def test_selected_groups_of_convolutions(dimension: int, channels: int, memory_format: torch.memory_format) -> None:
    """In either memory format, and whatever their number."""
    torch.manual_seed(0)
    conv = nn.Conv2d(24, 24, 3, padding=1, bias=False, dtype=torch.float64, device="cuda").to(
        memory_format=memory_format  # type: ignore[call-overload]
    )
    x = torch.randn(5, 24, 9, 9, dtype=torch.float64, device="cuda").contiguous(memory_format=memory_format)
    chosen = torch.randperm(24)[:channels].sort().values
    entries = torch.arange(conv.weight.numel()).view(conv.weight.shape)
    places = entries.index_select(dimension, chosen).reshape(-1).sort().values.cuda()
    selection = silk.Selection(places, places[:0], 1.0, conv.weight.numel())
    groups = GroupGradients([[conv.weight]], [dimension], conv)
    groups.select([selection])
    with groups.collected():
        conv(x).square().sum().backward()
    assert conv.weight.grad is None
    values = torch.zeros(len(places), dtype=torch.float64, device="cuda")
    groups.add_to([values])
    conv(x).square().sum().backward()
    assert conv.weight.grad is not None
    torch.testing.assert_close(values, conv.weight.grad.reshape(-1)[places], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [*entry_cases.DTYPES, torch.float16])
def test_selected_columns_of_linear_layers(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of an input that does not lie in one piece, and compiled; the weight gets no whole gradient."""
    dense: list[object] = []
    monkeypatch.setattr(Compact, "collect", lambda compact, gradient: dense.append(compact))
    torch.manual_seed(0)
    layer = nn.Linear(130, 70, bias=False, dtype=dtype, device="cuda")
    optimizer = silk.SparseSGD(layer, k2=0.3, groups="columns")
    (compact,) = optimizer._weights
    tolerance = 4 * torch.finfo(dtype).eps
    for x in (torch.randn(3, 17, 130, device="cuda"), torch.randn(130, 50, device="cuda").t()):
        x = x.to(dtype)
        for called in (layer, torch.compile(layer)):
            called(x).float().square().mean().backward()
            plain = copy.deepcopy(layer)
            plain(x).float().square().mean().backward()
            wanted = plain.weight.grad.index_select(1, compact.indices).to(compact.param.dtype)
            scale = float(wanted.abs().max())
            torch.testing.assert_close(compact.param.grad, wanted, rtol=tolerance, atol=tolerance * scale)
            optimizer.zero_grad()
    assert not dense


@pytest.mark.parametrize("dtype", [*entry_cases.DTYPES, torch.float16])
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_single_entries(backend: str, dtype: torch.dtype) -> None:
    kernels = backends.find(backend, [(torch.device("cuda"), dtype)])
    for size, k in entry_cases.SIZES:
        entry_cases.check_take(kernels, "cuda", dtype, size, k)
        entry_cases.check_carry(kernels, "cuda", entry_cases.master_of(dtype), size, k)
    entry_cases.check_through(kernels, "cuda", dtype)
    entry_cases.check_groups(kernels, "cuda", dtype)


@pytest.mark.parametrize("dtype", [*entry_cases.DTYPES, torch.float16])
@pytest.mark.parametrize(("kind", "options"), entry_cases.OPTIMIZERS)
def test_a_step_at_once(kind: type[torch.optim.Optimizer], options: dict[str, Any], dtype: torch.dtype) -> None:
    entry_cases.check_step(backends.find("triton", [(torch.device("cuda"), dtype)]), "cuda", dtype, kind, options)


@pytest.mark.parametrize("groups", [None, "columns", "rows"])
@pytest.mark.parametrize(("k1", "k2"), [(0.0, 0.2), (0.2, 0.0), (0.1, 0.1)])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_sparse_training_follows_plain_lines(base: str, k1: float, k2: float, backend: str, groups: Any) -> None:
    follows_the_oracle(base, k1, k2, backend, device="cuda", groups=groups)
