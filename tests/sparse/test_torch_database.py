"""torch's own database of optimizers, in the spirit of its test_optim: what holds there holds for sparse training.

Every configuration of every base that can step single entries runs over selected entries and beside a plain optimizer
that steps copies of them.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spidersilk as silk

database = pytest.importorskip("torch.testing._internal.common_optimizers", reason="needs expecttest")
REFUSED = ("LBFGS", "SparseAdam", "Adafactor", "Muon")
INFOS = {info.optim_cls.__name__: info for info in database.optim_db}
NAMED = {"SGD": silk.SparseSGD, "AdamW": silk.SparseAdamW}
CONFIGS = [
    pytest.param(name, given, id=f"{name}, {given.desc}")
    for name, info in INFOS.items()
    if name not in REFUSED
    for given in info.optim_inputs_func(device="cpu")
]
OWN = [pytest.param(*c.values, id=c.id) for c in CONFIGS if c.values[0] in NAMED]
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "with gaps": lambda t: torch.stack([t, t], 2)[:, :, 0],
    "empty": lambda t: t[:0],
}


def weights(dtype: torch.dtype = torch.float64, layout: str = "contiguous") -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 5), (4, 3, 2), (7,)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    made[0] = LAYOUTS[layout](made[0])
    return [nn.Parameter(t) for t in made]


def loss_of(params: list[nn.Parameter], step: int = 0) -> Tensor:
    parts = [((p.double() - 0.1 * step) ** 2).sum() + (p.double() ** 3).sum() / 30 for p in params]
    return torch.stack(parts).sum()


def sparse(name: str, params: Any, options: dict[str, Any], **more: Any) -> silk.Sparse:
    seed = torch.Generator().manual_seed(1)
    defaults: dict[str, Any] = {"k2": 0.5, "inner_steps": None, "generator": seed, "step_scale": 1.0}
    given = defaults | copy.deepcopy(options) | more
    if name in NAMED:
        own = {"betas": (0.9, 0.999)} if name == "AdamW" else {}  # torch's, where it has another default
        return NAMED[name](params, **(own | given))
    return silk.Sparse(params, INFOS[name].optim_cls, **given)


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        optimizer.zero_grad()
        loss_of(params, step).backward()
        optimizer.step()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "with gaps"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "given"), CONFIGS)
def test_every_base_steps_the_selected_entries(name: str, given: Any, dtype: torch.dtype, layout: str) -> None:
    params = weights(dtype, layout)
    optimizer = sparse(name, params, given.kwargs)
    compacts = [optimizer._weights.by_param.get(p) for p in optimizer.param_groups[0]["params"]]
    twins = [
        nn.Parameter((p if c is None else c.param).detach().clone()) for p, c in zip(params, compacts, strict=True)
    ]
    twin = INFOS[name].optim_cls(twins, **({"lr": 0.1} if name == "SGD" and "lr" not in given.kwargs else {})
                                 | copy.deepcopy(given.kwargs))  # fmt: skip
    for step in range(8):
        loss_of(params, step).backward()
        for p, c, copied in zip(params, compacts, twins, strict=True):
            copied.grad = (p.grad if c is None else c.param.grad).clone()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        twin.step()
    for p, c, copied in zip(params, compacts, twins, strict=True):
        if c is None:
            assert torch.equal(p, copied)
        else:
            assert torch.equal(c.param, copied)
            assert torch.equal(c.view[c.indices.long()], copied.to(dtype))


@pytest.mark.parametrize(("name", "given"), CONFIGS)
def test_every_base_steps_by_the_scaled_step_size(name: str, given: Any) -> None:
    """As it would with a group for the selected parts, whose step size is four times lr, and one for the vector."""
    params = weights()
    optimizer = sparse(name, params, given.kwargs, step_scale=4.0)
    (group,) = optimizer.param_groups
    twins = [nn.Parameter(p.detach().clone()) for p in group["params"]]
    selected, whole = {"params": twins[:2], "lr": 4 * group["lr"]}, {"params": twins[2:], "lr": group["lr"]}
    options = copy.deepcopy(given.kwargs) | ({"betas": (0.9, 0.999)} if name == "AdamW" else {})
    twin = INFOS[name].optim_cls([selected, whole], **(options | {"lr": group["lr"]}))
    for step in range(4):
        loss_of(params, step).backward()
        for p, copied in zip(group["params"], twins, strict=True):
            copied.grad = p.grad.clone()
        optimizer.step()
        optimizer.zero_grad()
        twin.step()
    assert optimizer.param_groups == [group]
    assert all(map(torch.equal, group["params"], twins))


@pytest.mark.parametrize(("name", "given"), CONFIGS)
def test_a_state_is_loaded_and_goes_on(name: str, given: Any) -> None:
    """Through a file, into a new optimizer, over selections that change."""
    ends = []
    for stops in (False, True):
        params = weights()
        optimizer = sparse(name, params, given.kwargs, inner_steps=3, k1=0.2, k2=0.3)
        train(optimizer, params, 5)
        if stops:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.close()
            optimizer = sparse(name, params, given.kwargs, inner_steps=3, k1=0.2, k2=0.3)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        train(optimizer, params, 6, start=5)
        optimizer.close()
        ends.append([p.detach().clone() for p in params])
    # torch itself loads NAdam's product of momenta in another precision than it has.
    torch.testing.assert_close(*ends, rtol=1e-6 if name == "NAdam" else 0.0, atol=0.0)


@pytest.mark.parametrize(("name", "given"), OWN)
def test_nothing_moves_without_gradients(name: str, given: Any) -> None:
    params = weights()
    before = [p.detach().clone() for p in params]
    optimizer = sparse(name, params, given.kwargs)
    optimizer.step()
    assert all(map(torch.equal, before, params))


@pytest.mark.parametrize(("name", "given"), OWN)
def test_closures_states_and_words(name: str, given: Any) -> None:
    params = weights()
    optimizer = sparse(name, params, given.kwargs)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    wanted = float(loss_of(params))
    assert float(optimizer.step(closure)) == pytest.approx(wanted)
    assert float(optimizer.step(closure)) != wanted
    assert type(optimizer).__name__ in repr(optimizer)
    assert "k2: 0.5" in repr(optimizer)
    first = optimizer.state_dict()
    assert set(first) == {"state", "param_groups"}
    assert len(first["state"]) == 3 if given.kwargs.get("momentum") or name == "AdamW" else 2
    with pytest.raises(TypeError, match="save its state_dict"):
        copy.deepcopy(optimizer)


@pytest.mark.parametrize(("name", "given"), OWN)
def test_groups_and_names(name: str, given: Any) -> None:
    params = weights()
    named = [(f"p{i}", p) for i, p in enumerate(params)]
    optimizer = sparse(name, named, given.kwargs)
    assert optimizer.param_groups[0]["param_names"] == ["p0", "p1", "p2"]
    optimizer.close()
    options = {k: v for k, v in given.kwargs.items() if k != "lr"}
    optimizer = sparse(name, [{"params": params[:1], "lr": 0.0}, {"params": params[1:]}], options | {"lr": 0.01})
    before = [p.detach().clone() for p in params]
    train(optimizer, params, 3)
    assert [torch.equal(a, b) for a, b in zip(before, params, strict=True)] == [True, False, False]


IMPLEMENTATIONS = [
    pytest.param(*own.values, kind, id=f"{own.id}, {kind}")
    for own in OWN
    for kind in ("foreach", "fused")
    if kind == "fused" or not isinstance(own.values[1].kwargs.get("lr"), Tensor)  # torch has no such foreach on the CPU
]


@pytest.mark.parametrize(("name", "given", "kind"), IMPLEMENTATIONS)
def test_implementations(name: str, given: Any, kind: str) -> None:
    ends = []
    for on in (False, True):
        params = weights(torch.float32)
        train(sparse(name, params, given.kwargs, **{kind: on}), params, 5)
        ends.append([p.detach().clone() for p in params])
    torch.testing.assert_close(ends[0], ends[1])


@pytest.mark.parametrize("name", NAMED)
def test_an_empty_weight(name: str) -> None:
    params = weights(layout="empty")
    train(sparse(name, params, {"lr": 0.01}), params, 3)


ERRORS = [
    pytest.param(name, e, id=f"{name}, {e.error_regex[:40]}")
    for name in NAMED
    for e in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32)
]


@pytest.mark.parametrize(("name", "error"), ERRORS)
def test_what_torch_refuses_is_refused(name: str, error: Any) -> None:
    """With torch's error, or with ours for a parameter that comes twice and for numbers."""
    bad = error.optimizer_error_input
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises((TypeError, ValueError, UserWarning)):
            sparse(name, bad.params, bad.kwargs)


@pytest.mark.parametrize("name", REFUSED)
def test_bases_that_cannot_step_entries_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"base_class = {name} cannot step single entries"):
        silk.Sparse(weights(), INFOS[name].optim_cls)
