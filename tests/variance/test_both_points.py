"""A difference of two gradients: both evaluations see the same batch, random numbers and buffers."""

from __future__ import annotations

import pytest
import torch
from small_net import TWO_POINT, X, make, net, simple, train
from torch import Tensor, nn

import spidersilk as silk
from spidersilk import reference

# Random numbers.


@pytest.mark.parametrize("name", TWO_POINT)
def test_dropout_draws_the_same_mask_at_both_points(name: str) -> None:
    """With lr = 0 the points are equal, so the difference is 0 only if the masks are: v then stays the anchor's."""
    model = net(nn.Dropout(0.5))
    optimizer = make(name, model, lr=0.0, k1=10, k2=10)
    torch.manual_seed(3)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)), anchor=True)
    anchor = [p.grad.clone() for p in model.parameters()]
    for _ in range(5):
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
        # v stays the anchor's where it is kept, and M = |v| where v is the anchor's anyway (move="selected").
        kind = "memory" if optimizer.move == "selected" else "estimate"
        for p, g in zip(model.parameters(), anchor, strict=True):
            assert torch.equal(optimizer.state[p][kind], g.abs() if kind == "memory" else g)


@pytest.mark.parametrize("name", TWO_POINT)
def test_randomness_is_used_up_as_by_one_evaluation(name: str) -> None:
    model = net(nn.Dropout(0.5))
    optimizer = make(name, model)
    torch.manual_seed(3)
    train(optimizer, simple(model, optimizer))
    after = torch.get_rng_state()
    torch.manual_seed(3)
    for t in range(24):
        model(X[:64] if t % 6 == 0 else X[:8])
    assert torch.equal(after, torch.get_rng_state())


# Running statistics move only at the current point.


@pytest.mark.parametrize("name", TWO_POINT)
def test_batch_norm_statistics_move_once_a_step(name: str) -> None:
    model, shadow = net(nn.BatchNorm1d(8)), net(nn.BatchNorm1d(8))
    optimizer = make(name, model)
    closure_for = simple(model, optimizer)
    for t in range(13):
        batch = torch.arange(64) if t % 6 == 0 else torch.arange(8)
        shadow.load_state_dict(shadow.state_dict() | {k: v for k, v in model.state_dict().items() if "weight" in k})
        shadow.load_state_dict(shadow.state_dict() | {k: v for k, v in model.state_dict().items() if "bias" in k})
        shadow(X[batch])  # one forward at the current point is all that may be seen
        optimizer.step(closure_for(batch), anchor=t % 6 == 0)
        for (key, ours), theirs in zip(model.named_buffers(), shadow.buffers(), strict=True):
            assert torch.equal(ours, theirs), key
    assert int(model[1].num_batches_tracked) == 13  # type: ignore[index]


@pytest.mark.parametrize("name", TWO_POINT)
def test_stateful_layers_start_both_evaluations_alike(name: str) -> None:
    """Spectral norm takes a step of power iteration at each forward: with lr = 0 the difference is still 0."""
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3)).double()
    optimizer = make(name, model, lr=0.0, k1=10, k2=10)
    closure_for = simple(model, optimizer)
    optimizer.step(closure_for(torch.arange(64)), anchor=True)
    before = optimizer._engine.points._buffers
    assert before is None  # an anchor needs no guard
    kind = "memory" if optimizer.move == "selected" else "estimate"
    for _ in range(4):
        held = [optimizer.state[p][kind].clone() for p in model.parameters()]
        optimizer.step(closure_for(torch.arange(8)), anchor=False)
        assert all(map(torch.equal, held, [optimizer.state[p][kind] for p in model.parameters()]))


# A state of the model that depends on the point.


class Recurrent:
    """An RNN that carries its state from batch to batch, as a function of any parameter values."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.cell, self.head = nn.RNNCell(3, 4).double(), nn.Linear(4, 2).double()
        self.params = [*self.cell.parameters(), *self.head.parameters()]
        g = torch.Generator().manual_seed(1)
        self.small = [torch.randn(2, 5, 3, generator=g, dtype=torch.float64) for _ in range(7)]
        self.large = [torch.randn(4, 5, 3, generator=g, dtype=torch.float64) for _ in range(3)]
        self.zeros = [torch.zeros(n, 4, dtype=torch.float64) for n in (2, 4)]

    def x(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.params])

    def run(self, values: list[Tensor], batch: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, and the state after the batch."""
        of_cell = dict(zip(dict(self.cell.named_parameters()), values[:4], strict=True))
        of_head = dict(zip(dict(self.head.named_parameters()), values[4:], strict=True))
        for t in range(batch.shape[1]):
            state = torch.func.functional_call(self.cell, of_cell, (batch[:, t], state))
        return torch.func.functional_call(self.head, of_head, (state,)).square().mean(), state.detach()

    def oracle(self, x: Tensor, batch: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        pieces = x.split([p.numel() for p in self.params])
        values = [v.view(p.shape).detach().requires_grad_() for v, p in zip(pieces, self.params, strict=True)]
        loss, after = self.run(values, batch, state)
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, values)]), after

    def train(self, optimizer: silk.VarianceReduced, steps: int) -> tuple[list[Tensor], list]:
        """Iterates and selections; every third batch is an anchor, every seventh begins a new text."""
        s = s_before = self.zeros[0]
        iterates, selections = [], []
        for t in range(steps):
            is_anchor = t % 3 == 0
            if t % 7 == 0:
                s = s_before = self.zeros[0]
            starts = {"current": s, "reference": s_before if optimizer.reference == "previous" else s}
            if is_anchor:
                starts = {"current": self.zeros[1]}
            batch = self.large[t % 3] if is_anchor else self.small[t % 7]
            after = {}

            def closure() -> Tensor:
                optimizer.zero_grad()
                at = optimizer.evaluating
                loss, after[at] = self.run(self.params, batch, starts[at])
                loss.backward()
                return loss.detach()

            optimizer.step(closure, anchor=is_anchor)
            if is_anchor:
                s_before = s
            else:
                s_before, s = s, after["current"]
                selections.append(optimizer.selection)
            iterates.append(self.x())
        return iterates, selections


@pytest.mark.parametrize("point", ["previous", "anchor"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_stateful_model_learns_which_point_is_evaluated(sparse: bool, point: str) -> None:
    """Algorithm 2: an RNN whose state depends on the point, against the reference."""
    model = Recurrent()
    x0 = model.x()
    base = torch.optim.SGD(model.params, 0.05)
    optimizer = silk.VarianceReduced(base, point, sparsity=silk.RTop(8, 8) if sparse else None)
    iterates, selections = model.train(optimizer, 20)
    trace = reference.algorithm_2(
        model.oracle, x0, model.small, model.large, *model.zeros, lr=0.05, inner_steps=3, iterations=20,
        k1=8, k2=8 if sparse else None, reference=point, replay=iter(selections),
    )  # fmt: skip
    for got, want in zip(iterates, trace.iterates, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert float((iterates[-1] - x0).norm()) > 1e-3
