"""Sparse training against plain lines, and as an ordinary torch optimizer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from sparse_oracle import BASES, X, Y, batch, flat, follows_the_oracle, loss_of, network, seeded, train
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk
from spidersilk.sparse.sparse import Sparse


@pytest.mark.parametrize("groups", [None, "columns", "rows"])
@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize(("k1", "k2"), [(0.0, 0.2), (0.2, 0.0), (0.1, 0.1)])
@pytest.mark.parametrize("base", BASES)
def test_trajectories_are_those_of_plain_lines(base: str, k1: float, k2: float, backend: str, groups: Any) -> None:
    follows_the_oracle(base, k1, k2, backend, groups=groups)


@pytest.mark.parametrize("base", BASES)
def test_everything_selected_is_the_base_itself(base: str) -> None:
    kind, options = BASES[base]
    ends = []
    for sparse in (False, True):
        model = network()
        optimizer = Sparse(model, kind, k2=1.0, **options) if sparse else kind(model.parameters(), **options)
        train(model, optimizer, 30)
        ends.append(flat(model))
    assert torch.equal(*ends)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("k1", [0.0, 0.2])
def test_micro_batches_add_up(base: str, k1: float) -> None:
    kind, options = BASES[base]
    ends = []
    for parts in (1, 4):
        model = network()
        optimizer = Sparse(model, kind, k1=k1, k2=0.1, inner_steps=10, generator=seeded(), **options)
        if k1:  # the choice goes by the first micro-batch, so let it be the same
            loss_of(model).backward()
            optimizer.zero_grad()
        for _ in range(9 if k1 else 30):
            for i in range(parts):
                (loss_of(model, slice(i * 40 // parts, (i + 1) * 40 // parts)) / parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append(flat(model))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stop", [7, 10, 13])
@pytest.mark.parametrize("is_new", [True, False])
def test_resumed_is_bit_identical(dtype: torch.dtype, stop: int, is_new: bool) -> None:
    """In a new optimizer, and in one that has gone on meanwhile."""

    def make() -> tuple[nn.Sequential, Sparse]:
        model = network(dtype)
        options: Any = {"k1": 0.1, "k2": 0.1, "inner_steps": 5, "generator": seeded(), "lr": 0.01}
        return model, Sparse(model, torch.optim.AdamW, **options)

    model, optimizer = make()
    train(model, optimizer, 25)
    whole = flat(model)
    model, optimizer = make()
    train(model, optimizer, stop)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    path = io.BytesIO()
    torch.save(saved, path)
    path.seek(0)
    loaded = torch.load(path, weights_only=True)
    if is_new:
        model, optimizer = make()
    else:
        train(model, optimizer, 2, start=stop)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    train(model, optimizer, 25 - stop, start=stop)
    assert torch.equal(flat(model), whole)
    assert optimizer.steps == 25


# As a torch optimizer.


def small(**options: Any) -> tuple[nn.Sequential, Sparse]:
    model = network(options.pop("dtype", torch.float64))
    defaults = {"k2": 0.2, "inner_steps": 5, "generator": seeded(), "lr": 0.05}
    return model, Sparse(model, options.pop("base", torch.optim.AdamW), **(defaults | options))


def test_what_it_holds() -> None:
    """Compact parameters on their modules, none of size d; vectors are trained whole; a state_dict shows neither."""
    model, optimizer = small()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["0.weight", "0.bias", "0.weight_compact", "2.weight", "2.bias", "2.weight_compact"]
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    train(model, optimizer, 3)
    sizes = {p.numel() for p in optimizer.param_groups[0]["params"]}
    assert sizes == {48, 20, 12, 3}
    assert optimizer.k == 83
    assert optimizer.d == 12 * 20 + 20 + 60 + 3
    state = [t for values in optimizer.state.values() for t in values.values() if isinstance(t, Tensor)]
    assert max(t.numel() for t in state) == 48


def test_gradients_are_freed_as_they_arrive() -> None:
    model, _ = small()
    alive = []

    def look(_: Tensor) -> None:
        alive.append(sum(p.grad is not None for p in (model[0].weight, model[2].weight)))

    for p in (model[0].weight, model[2].weight):
        p.register_post_accumulate_grad_hook(look)  # after ours
    loss_of(model).backward()
    assert alive == [0, 0]


def test_half_precision_has_float32_masters() -> None:
    """Steps too small for bfloat16 add up in the masters."""
    model, optimizer = small(dtype=torch.bfloat16, base=torch.optim.SGD, lr=1e-5, step_scale=1.0, inner_steps=None)
    compact = next(c for c in optimizer._weights if c.weight is model[0].weight)
    assert compact.param.dtype == torch.float32
    assert compact.indices.dtype == torch.int32
    before = compact.param.detach().clone()
    loss_of(model).backward()
    gradient = compact.param.grad.clone()
    for _ in range(10):
        compact.param.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(compact.param.detach(), before - 1e-4 * gradient)
    assert torch.equal(model[0].weight.view(-1)[compact.indices.long()], compact.param.to(torch.bfloat16))


@pytest.mark.parametrize("change", ["copy_", "data", "load", "clamp"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_changed_from_outside_win(change: str, dtype: torch.dtype) -> None:
    model, optimizer = small(dtype=dtype, base=torch.optim.SGD, lr=0.0)
    train(model, optimizer, 3)
    weight, new = model[0].weight, torch.full((20, 12), 0.5, dtype=dtype)
    with torch.no_grad():
        if change == "copy_":
            weight.copy_(new)
        elif change == "data":
            weight.data = new.clone()
        elif change == "load":
            model.load_state_dict(model.state_dict() | {"0.weight": new})
        else:
            weight.data.fill_(0.7).clamp_(max=0.5)
    train(model, optimizer, 1)
    assert torch.equal(weight.detach(), new)


def test_clipping_sees_the_selected_entries() -> None:
    """By max_norm, over the optimizer's parameters, and over the model's: all the same."""
    ends = []
    for how in ("max_norm", "optimizer", "model"):
        model, optimizer = small(max_norm=0.01 if how == "max_norm" else None, base=torch.optim.SGD)
        for step in range(12):
            loss_of(model, batch(step)).backward()
            if how != "max_norm":
                own = [p for group in optimizer.param_groups for p in group["params"]]
                norm = nn.utils.clip_grad_norm_(own if how == "optimizer" else model.parameters(), 0.01)
                assert norm > 0.01
            optimizer.step()
            optimizer.zero_grad()
        ends.append(flat(model))
    assert torch.equal(ends[0], ends[1])
    assert torch.allclose(ends[0], ends[2], rtol=1e-12, atol=0)  # norms are added up in another order


@pytest.mark.parametrize("bare", [False, True])
def test_the_models_zero_grad_discards(bare: bool) -> None:
    model = network()
    optimizer = Sparse(model.parameters() if bare else model, torch.optim.SGD, lr=0.1, generator=seeded())
    before = flat(model)
    loss_of(model).backward()
    model.zero_grad()
    optimizer.step()
    assert torch.equal(flat(model), before)


def test_loss_scaling() -> None:
    ends = []
    for scaled in (False, True):
        model, optimizer = small(dtype=torch.float32, base=torch.optim.SGD)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(8):
            loss = loss_of(model, batch(step))
            scaler.scale(loss * (torch.inf if scaled and step == 3 else 1.0)).backward()
            if not scaled and step == 3:
                optimizer.zero_grad()  # what the scaler skips
                continue
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        ends.append(flat(model))
    torch.testing.assert_close(*ends)


def test_groups_have_settings_of_their_own() -> None:
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.0, "k2": 0.5},
        {"params": [model[2].weight], "k2": 1.0},
        {"params": [model[2].bias], "k2": 1.0, "weight_decay": 0.5},
    ]
    optimizer = Sparse(groups, torch.optim.AdamW, lr=0.1, k2=0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.1, 0.1]
    assert [p.numel() for group in optimizer.param_groups for p in group["params"]] == [120, 20, 60, 3]
    before = flat(model)
    train(model, optimizer, 2)
    moved = (flat(model) != before).split([240, 20, 60, 3])
    assert [int(m.sum()) for m in moved] == [0, 0, 60, 3]
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(30, 10, dtype=torch.float64))], "lr": 0.2})
    assert optimizer.param_groups[-1]["params"][0].numel() == 30
    assert optimizer.param_groups[-1]["k2"] == 0.1


def test_schedulers_and_hooks() -> None:
    model, optimizer = small()
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 10)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(10):
        train(model, optimizer, 1)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.005)
    assert calls == ["before", "after"] * 10


def test_a_closure_and_an_anchor_loader() -> None:
    """A new selection at each anchor; an anchor in pieces is one batch; queries are counted."""
    ends = []
    for micro in (None, 8):
        model = network()
        options: Any = {"k1": 0.0, "k2": 0.2, "generator": seeded(), "lr": 0.05, "inner_steps": None}
        optimizer = Sparse(model, torch.optim.SGD, **options)
        loader = silk.AnchorLoader((X, Y), 24, 8, 4, micro_batch_size=micro, loops=3, generator=seeded())
        selections = []
        for (x, y), is_anchor in loader:

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            assert optimizer.step(closure, anchor=is_anchor, samples=len(x)) is not None
            selections.append(next(iter(optimizer._weights)).indices.tolist())
        assert len({tuple(s) for s in selections}) == 3
        assert optimizer.steps == 12
        assert optimizer.gradient_queries == pytest.approx(3 * (24 + 3 * 8) * optimizer.density)
        ends.append(flat(model))
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-12)


def test_an_anchor_needs_a_closure() -> None:
    """It makes a new selection, and a gradient that is there already is of the old one."""
    model, optimizer = small()
    train(model, optimizer, 1)
    loss_of(model).backward()
    with pytest.raises(ValueError, match="anchor = True: without a closure"):
        optimizer.step(anchor=True)
    optimizer.step(anchor=False)


def test_freezing_and_unfreezing() -> None:
    model, optimizer = small()
    train(model, optimizer, 2)
    before = model[0].weight.detach().clone()
    model[0].requires_grad_(False)
    train(model, optimizer, 6, start=2)  # over a new selection
    assert torch.equal(model[0].weight, before)
    model[0].requires_grad_(True)
    train(model, optimizer, 1, start=8)
    assert not torch.equal(model[0].weight, before)


def test_tied_weights_are_one() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    optimizer = Sparse(model, torch.optim.SGD, lr=0.1, k2=0.5, generator=seeded())
    assert len(optimizer.param_groups[0]["params"]) == 1
    compact = next(iter(optimizer._weights))
    loss = model(torch.ones(2, 8)).square().sum()
    (wanted,) = torch.autograd.grad(loss, [model[0].weight], retain_graph=True)
    loss.backward()
    torch.testing.assert_close(compact.param.grad, wanted.view(-1)[compact.indices.long()])


def test_layouts() -> None:
    """Channels last, transposed, and a weight that does not fill its memory: as for contiguous ones."""
    ends = []
    for layout in ("contiguous", "other"):
        torch.manual_seed(0)
        conv = nn.Conv2d(3, 4, 3).double()
        linear = nn.Linear(4, 6, bias=False).double()
        if layout == "other":
            conv = conv.to(memory_format=torch.channels_last)
            linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
        optimizer = Sparse(nn.ModuleList([conv, linear]), torch.optim.SGD, lr=0.1, k1=0.3, k2=0.0)
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        for _ in range(3):
            linear(conv(x).mean((2, 3))).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append((conv.weight.detach().contiguous(), linear.weight.detach().contiguous()))
    torch.testing.assert_close(ends[0], ends[1])
    spread = nn.Parameter(torch.ones(4, 8)[:, ::2])
    optimizer = Sparse([spread], torch.optim.SGD, lr=0.1)
    spread.sum().backward()
    optimizer.step()
    assert torch.equal(spread.detach(), torch.full((4, 4), 0.9))


def test_close_gives_the_model_back() -> None:
    model, optimizer = small()
    train(model, optimizer, 2)
    optimizer.close()
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    loss_of(model).backward()
    assert model[0].weight.grad is not None
    model.zero_grad()
    with pytest.raises(RuntimeError, match="is closed"):
        optimizer.step()
    Sparse(model, torch.optim.SGD, lr=0.1)


def test_an_optimizer_that_is_gone_leaves_nothing_behind() -> None:
    model, optimizer = small()
    train(model, optimizer, 2)
    del optimizer
    loss_of(model).backward()
    assert model[0].weight.grad is not None
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_copies_and_pickles_of_the_model() -> None:
    model, optimizer = small()
    train(model, optimizer, 2)
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    before = flat(twin)
    train(model, optimizer, 2)
    assert torch.equal(flat(twin), before)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert list(again.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
