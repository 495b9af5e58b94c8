"""Bad input as data: the call, the error type, and a message with value, range and remedy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import mlp
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adafactor, AdamW, SparseAdam

import spidersilk as silk

ten = torch.arange(10.0)


def p(n: int = 100) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(n))]


def reduced(*args: Any, **options: Any) -> silk.VarianceReduced:
    return silk.VarianceReduced(SGD(p(), 0.1), *args, **options)


ARGUMENTS: dict[str, tuple[Callable[[], Any], str]] = {
    "k above d": (
        lambda: silk.select(torch.ones(100), 60, 60),
        "k1 + k2 = 120 exceeds d = 100: lower k2 to at most 40",
    ),
    "k1 above d": (lambda: silk.select(ten, 11, 0), "k1 = 11 exceeds d = 10: lower k1 to at most 10"),
    "nothing selected": (lambda: silk.select(ten, 0, 0), "selects nothing: raise k1 or k2"),
    "negative count": (lambda: silk.select(ten, -1, 2), "k1 = -1 is negative"),
    "fraction above 1": (
        lambda: silk.select(ten, 0.1, 3.0),
        "k2 = 3.0 must lie in [0, 1] as a float: for a count write k2=3",
    ),
    "nan fraction": (lambda: silk.select(ten, float("nan"), 1), "k1 = nan must lie in [0, 1]"),
    "bool count": (lambda: silk.select(ten, True, 1), "k1 = True must be an int"),
    "text count": (lambda: silk.select(ten, "5%", 1), "k1 = '5%' must be an int"),
    "memory of two dimensions": (lambda: silk.select(torch.ones(2, 2), 1, 1), "flatten it with reshape(-1)"),
    "empty memory": (lambda: silk.select(torch.ones(0), 1, 1), "d of at least 1"),
    "integer memory": (lambda: silk.select(torch.arange(5), 1, 1), "give a floating-point tensor"),
    "nan in memory": (lambda: silk.select(torch.tensor([1.0, float("nan")]), 1, 0), "not finite"),
    "inf in memory": (lambda: silk.select(torch.tensor([1.0, float("inf")]), 1, 0), "not finite"),
    "lengths differ": (lambda: silk.rtop(ten, torch.ones(9), 1, 1), "memory has 10 entries and y has 9"),
    "entropy of nothing": (lambda: silk.entropy(torch.ones(0)), "at least one"),
    "entropy of inf": (lambda: silk.entropy(torch.tensor([float("inf")])), "not finite"),
    "decay": (lambda: silk.RTop(1, 1, memory_decay=1.5), "memory_decay = 1.5 must lie in [0, 1]"),
    "unknown scaling": (lambda: silk.RTop(1, 1, scaling="half"), "scaling = 'half' is not one of 'unbiased', 'none'"),
    "unknown groups": (
        lambda: silk.RTop(0.1, 0.1, groups="blocks"),
        "groups = 'blocks' is not one of 'rows', 'columns', None",
    ),
    "a count of columns": (lambda: silk.RTop(3, groups="columns"), "k1 = 3 is a count, and columns are selected by"),
    "too many columns": (
        lambda: silk.RTop(0.7, 0.6, groups="columns"),
        "exceeds 1, all columns: lower k2 to",
    ),
    "groups without shapes": (
        lambda: silk.select(torch.ones(6), 0.1, 0.1, groups="columns"),
        "groups = 'columns' without shapes: give the shapes",
    ),
    "groups of select": (
        lambda: silk.rtop_variance(torch.ones(6), torch.ones(6), 0.1, 0.1, shapes=[(2, 3)], groups="blocks"),
        "groups = 'blocks' is not one of 'rows', 'columns', None",
    ),
    "a dimension that is not there": (
        lambda: silk.RTop(groups="columns").density([(2, 3)], [2]),
        "dimension = 2 of a tensor of shape (2, 3): give one below 2",
    ),
    "a count of rows": (lambda: silk.RTop(0.1, 3, groups="rows"), "k2 = 3 is a count, and rows are selected by their"),
    "too many rows": (lambda: silk.SparseSVRG(p(), 0.1, 0.7, 0.6, groups="rows"), "lower k2 to at most 0.3"),
    "shapes that do not fit": (
        lambda: silk.select(ten, 0.1, 0.1, shapes=[(3, 3)]),
        "shapes have 9 entries and memory has 10",
    ),
    "RTop of nothing": (lambda: silk.RTop(0, 0.0), "selects nothing"),
    "optimizer k above d": (
        lambda: silk.SparseSVRG(p(10), 0.1, k1=8, k2=8),
        "k1 + k2 = 16 exceeds d = 10: lower k2 to at most 2",
    ),
    "negative lr": (lambda: silk.SpiderBoost(p(), lr=-0.1), "lr = -0.1 must be a finite number of at least 0"),
    "nan lr": (lambda: silk.SVRG(p(), lr=float("nan")), "lr = nan must be"),
    "negative momentum": (lambda: silk.SparseSGD(p(), 0.1, momentum=-1.0), "momentum = -1.0 must be"),
    "negative step of AdamW": (lambda: silk.SparseAdamW(p(), -0.1), "lr = -0.1 must be"),
    "negative weight decay": (lambda: silk.SparseSGD(p(), 0.1, weight_decay=-1.0), "weight_decay = -1.0 must be"),
    "max_norm of 0": (lambda: silk.SVRG(p(), 0.1, max_norm=0.0), "max_norm = 0.0 must be a finite number above 0"),
    "unknown backend": (lambda: silk.SVRG(p(), 0.1, backend="cuda"), "backend = 'cuda' is not one of 'auto', 'torch'"),
    "a model that is none": (lambda: silk.SVRG(p(), 0.1, model="mlp"), "model = str must be the nn.Module that holds"),
    "a model without the parameters": (
        lambda: silk.SVRG(p(), 0.1, model=torch.nn.BatchNorm1d(3)),
        "model: it does not hold all the parameters",
    ),
    "missing backend": (lambda: silk.SVRG(p(), 0.1, backend="triton"), "backend = 'triton' cannot be had"),
    "unknown reference": (lambda: reduced("last"), "reference = 'last' is not one of 'previous', 'anchor'"),
    "a fresh gradient": (
        lambda: reduced(None),
        "a fresh gradient is sparse training: use silk.SparseSGD, silk.SparseAdamW or silk.Sparse",
    ),
    "a fresh gradient that moves the selected": (
        lambda: reduced(None, move="selected", sparsity=silk.RTop(1, 1)),
        "reference = None is not one of 'previous', 'anchor'",
    ),
    "unknown move": (lambda: reduced(move="some"), "move = 'some' is not one of 'all', 'selected'"),
    "unknown choose": (lambda: reduced(choose="loop"), "choose = 'loop' is not one of"),
    "refresh without an anchor": (
        lambda: reduced("previous", sparsity=silk.RTop(1, 1, "refresh")),
        "scaling = 'refresh' with reference = 'previous'",
    ),
    "previous and selected": (
        lambda: reduced("previous", move="selected", sparsity=silk.RTop(1, 1)),
        "would be stale; use 'anchor'",
    ),
    "unbiased and selected": (
        lambda: silk.SparseSVRG(p(), 0.1, scaling="unbiased", move="selected"),
        "diverges: leave scaling=None",
    ),
    "refresh and selected": (
        lambda: silk.SparseSVRG(p(), 0.1, scaling="refresh", move="selected"),
        "leave scaling=None",
    ),
    "selected but dense": (lambda: reduced(move="selected"), "say what to select with sparsity=RTop(k1, k2)"),
    "anchor_move alone": (lambda: reduced(anchor_move="selected"), "it needs move='selected'"),
    "no optimizer": (lambda: silk.VarianceReduced(p()), "base = list must be a torch.optim optimizer"),  # type: ignore[arg-type]
    "wrapped twice": (lambda: silk.VarianceReduced(silk.SVRG(p(), 0.1)), "wraps an optimizer itself"),
    "LBFGS": (lambda: silk.VarianceReduced(LBFGS(p())), "base = LBFGS cannot step with v"),
    "SparseAdam": (lambda: silk.VarianceReduced(SparseAdam(p())), "base = SparseAdam cannot step with v"),
    "Adafactor": (
        lambda: silk.VarianceReduced(Adafactor(p()), move="selected", sparsity=silk.RTop(1, 1)),
        "base = Adafactor has state for rows",
    ),
    "all frozen": (
        lambda: silk.SVRG([nn.Parameter(ten, requires_grad=False)], 0.1),
        "no parameter requires a gradient",
    ),
    "complex parameters": (lambda: silk.SVRG([nn.Parameter(torch.ones(2) + 0j)], 0.1), "real floating-point"),
    "inner_steps of 0": (
        lambda: silk.SVRG(p(), 0.1, inner_steps=0),
        "inner_steps = 0 must be a whole number of at least 1",
    ),
    "geometric mean of 0": (lambda: silk.Geometric(0), "mean = 0 must be a finite number above 0"),
    "line without anchors": (lambda: silk.InnerLine(SGD(p(), 0.1), 5, 1.0, 0.1), "optimizer = SGD has no anchors"),
    "negative line": (lambda: silk.InnerLine(silk.SVRG(p(), 0.1), 5, -1.0, 0.1), "start = -1.0 must be"),
    "anchor above n": (
        lambda: silk.AnchorLoader(ten, 11, 2, 3),
        "anchor_batch_size = 11 exceeds the data set's 10 samples",
    ),
    "batch above n": (lambda: silk.AnchorLoader(ten, 5, 12, 3), "batch_size = 12 exceeds the data set's 10 samples"),
    "batch of 0": (lambda: silk.AnchorLoader(ten, 5, 0, 3), "batch_size = 0 must be a whole number of at least 1"),
    "inner of 0": (lambda: silk.AnchorLoader(ten, 5, 2, 0), "inner_steps = 0 must be"),
    "micro of 0": (lambda: silk.AnchorLoader(ten, 5, 2, 3, micro_batch_size=0), "micro_batch_size = 0 must be"),
    "unknown sampling": (lambda: silk.AnchorLoader(ten, 5, 2, 3, sampling="all"), "sampling = 'all' is not one of"),
    "ragged tensors": (lambda: silk.AnchorLoader((ten, ten[:5]), 5, 2, 3), "[5, 10] samples: they must agree"),
    "iterable data": (lambda: silk.AnchorLoader(iter([1, 2]), 1, 1, 1), "load an iterable data set into tensors"),  # type: ignore[arg-type]
    "a generator that is a number": (
        lambda: silk.SparseSVRG(p(), 0.1, generator=3),  # type: ignore[arg-type]
        "generator = 3 must be a torch.Generator: torch.Generator().manual_seed(3)",
    ),
    "a loader's generator": (
        lambda: silk.AnchorLoader(ten, 5, 2, 3, generator="seed"),  # type: ignore[arg-type]
        "generator = 'seed' must be a torch.Generator",
    ),
    "a generator for select": (lambda: silk.select(ten, 1, 1, generator=3), "generator = 3 must be"),  # type: ignore[arg-type]
    "a mapping as data": (
        lambda: silk.AnchorLoader({"train": ten}, 5, 2, 3),  # type: ignore[arg-type]
        "dataset is a mapping ('train'): samples are found by number",
    ),
    "lr as text": (lambda: silk.SVRG(p(), "0.1"), "lr = '0.1' must be a finite number of at least 0"),  # type: ignore[arg-type]
    "lr as a bool": (lambda: silk.SVRG(p(), True), "lr = True must be a finite number of at least 0"),
    "momentum as text": (lambda: silk.SVRG(p(), 0.1, momentum="0.9"), "momentum = '0.9' must be"),  # type: ignore[arg-type]
    "weight decay as text": (lambda: silk.SparseAdamW(p(), weight_decay="0"), "weight_decay = '0' must be"),  # type: ignore[arg-type]
    "max_norm as text": (lambda: silk.SVRG(p(), 0.1, max_norm="1"), "max_norm = '1' must be a finite number above 0"),  # type: ignore[arg-type]
    "max_norm of nan": (lambda: silk.SVRG(p(), 0.1, max_norm=float("nan")), "max_norm = nan must be"),
    "inner_steps as text": (lambda: silk.SVRG(p(), 0.1, inner_steps="10"), "inner_steps = '10' is neither a number"),
    "mean as text": (lambda: silk.Geometric("3"), "mean = '3' must be a finite number above 0"),  # type: ignore[arg-type]
    "confidence as text": (lambda: silk.Adaptive(confidence="1"), "confidence = '1' must be a finite number"),  # type: ignore[arg-type]
    "fraction as text": (lambda: silk.Adaptive(fraction="1"), "fraction = '1' must lie in [0, 1]"),  # type: ignore[arg-type]
    "decay as text": (lambda: silk.RTop(1, 1, memory_decay="0.5"), "memory_decay = '0.5' must lie in [0, 1]"),  # type: ignore[arg-type]
    "batch size as text": (lambda: silk.AnchorLoader(ten, 5, "2", 3), "batch_size = '2' must be a whole number"),  # type: ignore[arg-type]
    "lr of LazySVRG as text": (lambda: silk.LazySVRG(nn.Linear(2, 2), "1"), "lr = '1' must be a finite number"),  # type: ignore[arg-type]
    "line as text": (lambda: silk.InnerLine(silk.SVRG(p(), 0.1), 5, "1", 0.1), "start = '1' must be"),  # type: ignore[arg-type]
    "sparse_backward of 1": (lambda: silk.SVRG(p(), 0.1, sparse_backward=1), "sparse_backward = 1 is not one of True"),  # type: ignore[arg-type]
    "negative memory": (lambda: silk.entropy(-ten), "memory has negative entries, such as -9"),
    "only empty parameters": (lambda: silk.SVRG([nn.Parameter(torch.ones(0))], 0.1), "are empty (d = 0)"),
    "a parameter twice": (lambda: silk.SVRG(2 * p(), 0.1), "a parameter is given twice"),
    "meta parameters": (
        lambda: silk.SparseSVRG(nn.Linear(3, 3, device="meta").parameters(), 0.1),
        "parameters on the meta device have no values",
    ),
    "workers for tensors": (
        lambda: silk.AnchorLoader(ten, 5, 2, 3, num_workers=2),
        "num_workers: tensors are indexed directly",
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_arguments(case: str) -> None:
    call, words = ARGUMENTS[case]
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert words in str(caught.value)


def good(optimizer: torch.optim.Optimizer, model: nn.Module) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 5, dtype=torch.float64)).square().mean()
        loss.backward()
        return loss.detach()

    return closure


def setup(**options: Any) -> tuple[nn.Module, silk.VarianceReduced, Callable[[], Tensor]]:
    model = mlp().model
    optimizer = silk.SparseSVRG(model.parameters(), 0.1, **options)
    return model, optimizer, good(optimizer, model)


def test_a_small_step_before_any_anchor() -> None:
    _, optimizer, closure = setup()
    with pytest.raises(RuntimeError, match=r"a small step before any anchor.*anchor=True"):
        optimizer.step(closure, anchor=False)


def test_anchor_none_without_inner_steps() -> None:
    _, optimizer, closure = setup()
    with pytest.raises(ValueError, match=r"anchor = None needs inner_steps"):
        optimizer.step(closure)


@pytest.mark.parametrize("anchor", ["yes", 1, 0.5])
def test_a_strange_anchor(anchor: Any) -> None:
    _, optimizer, closure = setup()
    with pytest.raises(ValueError, match=r"must be True, False, None, or what an AnchorLoader yields"):
        optimizer.step(closure, anchor=anchor)


def test_no_closure() -> None:
    _, optimizer, _ = setup()
    with pytest.raises(ValueError, match="closure = 3 must be a function"):
        optimizer.step(3, anchor=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"without a closure: .*call step\(closure\) with a function"):
        optimizer.step()


@pytest.mark.parametrize("samples", [float("nan"), "8", 2.5, True])
def test_samples_that_are_no_number(samples: Any) -> None:
    _, optimizer, closure = setup()
    with pytest.raises(ValueError, match=f"samples = {samples} must be a whole number of at least 0"):
        optimizer.step(closure, anchor=True, samples=samples)


def test_negative_samples() -> None:
    _, optimizer, closure = setup()
    with pytest.raises(ValueError, match=r"samples = -1 must be a whole number of at least 0"):
        optimizer.step(closure, anchor=True, samples=-1)


@pytest.mark.parametrize(
    ("how", "at_anchor"),
    [
        *((how, at) for how in ("nothing returned", "no backward", "in place", "own step") for at in (True, False)),
        ("through data", True),  # seen by comparing values, which the first evaluation does
    ],
)
def test_bad_closures(how: str, at_anchor: bool) -> None:
    model, optimizer, closure = setup()
    if not at_anchor:
        optimizer.step(closure, anchor=True)
    before = [q.detach().clone() for q in model.parameters()]

    def bad() -> Tensor | None:
        loss = closure()
        if how == "nothing returned":
            return None
        if how == "no backward":
            optimizer.zero_grad()
        elif how == "in place":
            with torch.no_grad():
                next(model.parameters()).add_(1)
        elif how == "through data":
            next(model.parameters()).data.add_(1)
        elif how == "own step":
            optimizer.base.step()
        return loss

    words = {
        "nothing returned": "returned None: let it return the loss",
        "no backward": r"left no gradient in any parameter: let it call loss.backward\(\)",
    }
    with pytest.raises(RuntimeError, match=words.get(how, "changed the parameters")):
        optimizer.step(bad, anchor=at_anchor)
    if how in words:
        assert all(map(torch.equal, before, model.parameters()))


def test_parameters_added_after_the_first_anchor() -> None:
    _, optimizer, closure = setup()
    optimizer.add_param_group({"params": p(3)})  # before it: fine
    optimizer.step(closure, anchor=True)
    with pytest.raises(RuntimeError, match="make a new optimizer"):
        optimizer.add_param_group({"params": p(4)})
    optimizer.base.add_param_group({"params": p(4)})
    with pytest.raises(RuntimeError, match="make a new optimizer"):
        optimizer.step(closure, anchor=True)


def test_parameters_frozen_after_the_first_anchor() -> None:
    model, optimizer, closure = setup()
    optimizer.step(closure, anchor=True)
    next(model.parameters()).requires_grad_(False)
    with pytest.raises(RuntimeError, match="frozen or unfrozen"):
        optimizer.step(closure, anchor=False)


def test_pieces_that_do_not_make_an_anchor() -> None:
    _, optimizer, closure = setup()
    optimizer.step(closure, anchor=silk.Anchor(0.5, last=False))
    with pytest.raises(RuntimeError, match=r"after 50% of an anchor"):
        optimizer.step(closure, anchor=False)
    with pytest.raises(RuntimeError, match=r"make up 150% of it"):
        optimizer.step(closure, anchor=silk.Anchor(1.0, first=False))
    with pytest.raises(RuntimeError, match=r"make up 75% of it"):
        optimizer.step(closure, anchor=silk.Anchor(0.25, first=False))
    optimizer.step(closure, anchor=silk.Anchor(0.5, first=False))
    optimizer.step(closure, anchor=silk.Anchor(0.5, last=False))
    optimizer.step(closure, anchor=True)  # a new anchor begins, whatever came of the other
    optimizer.step(closure, anchor=False)


def test_a_state_of_other_settings() -> None:
    _, optimizer, closure = setup()
    optimizer.step(closure, anchor=True)
    _, other, _ = setup(scaling="refresh")
    with pytest.raises(ValueError, match=r"scaling: 'unbiased' there, 'refresh' here"):
        other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="sizes"):
        silk.SparseSVRG(p(), 0.1).load_state_dict(optimizer.state_dict())


def test_a_state_of_another_kind() -> None:
    _, optimizer, _ = setup()
    with pytest.raises(ValueError, match="not a state of SparseSVRG: it has state, param_groups"):
        optimizer.load_state_dict(optimizer.base.state_dict())


def test_a_loader_state_of_other_settings() -> None:
    saved = silk.AnchorLoader(ten, 6, 2, 3, micro_batch_size=2).state_dict()
    with pytest.raises(ValueError, match="micro_batch_size: 2 there, None here"):
        silk.AnchorLoader(ten, 6, 2, 3).load_state_dict(saved)


def test_a_base_that_stepped_its_parameters_unequally() -> None:
    model = mlp().model
    base = AdamW(model.parameters(), 0.01)
    for number, q in enumerate(model.parameters()):
        q.grad = torch.ones_like(q) if number == 0 else None
    base.step()
    base.zero_grad()
    optimizer = silk.VarianceReduced(base, move="selected", sparsity=silk.RTop(3, 3))
    optimizer.step(good(optimizer, model), anchor=True)
    with pytest.raises(ValueError, match=r"parameters of one group 1, 2 times"):
        optimizer.step(good(optimizer, model), anchor=False)


def test_nan_in_a_parameter_is_not_taken_for_a_change() -> None:
    model, optimizer, closure = setup()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(silk.DivergenceError):
        optimizer.step(closure, anchor=True)


def test_copying_points_to_state_dict() -> None:
    _, optimizer, _ = setup()
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(optimizer)


def test_an_error_of_the_closure_comes_through_and_leaves_things_as_they_were() -> None:
    model, optimizer, closure = setup()
    optimizer.step(closure, anchor=True)
    before = [q.detach().clone() for q in model.parameters()]

    def broken() -> Tensor:
        if optimizer.evaluating == "reference":
            raise KeyError("mine")
        return closure()

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(broken, anchor=False)
    assert all(map(torch.equal, before, model.parameters()))
    assert optimizer.evaluating is None
    optimizer.step(closure, anchor=False)
