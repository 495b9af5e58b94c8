"""Closures of every kind give the same steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases import METHODS
from small_net import X, Y, flat, make, net, simple, train
from torch import Tensor, nn
from torch.nn import functional as F

import spidersilk as silk


@pytest.mark.parametrize("name", METHODS)
def test_both_ways_to_zero_gradients(name: str) -> None:
    results = []
    for set_to_none in (True, False):
        model = net()
        optimizer = make(name, model)
        train(optimizer, simple(model, optimizer, set_to_none))
        results.append(flat(model))
    assert torch.equal(*results)


def test_a_closure_that_forgets_to_zero_gradients_is_right_too() -> None:
    results = []
    for forgets in (False, True):
        model = net()
        optimizer = make("sparse-svrg", model)

        def closure_for(batch: Tensor, model=model, optimizer=optimizer, forgets=forgets):
            def closure() -> Tensor:
                if not forgets:
                    optimizer.zero_grad()
                loss = F.cross_entropy(model(X[batch]), Y[batch])
                loss.backward()
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(flat(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_a_closure_that_reuses_its_gradient_tensor(name: str) -> None:
    """The gradient at the current point must survive when the closure overwrites it with that at the reference."""
    results = []
    for reuses in (False, True):
        x = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64))
        own = torch.empty_like(x)
        optimizer = METHODS[name].make([x], 0.05, generator=torch.Generator().manual_seed(2))

        def closure_for(batch: Tensor, x=x, own=own, reuses=reuses):
            def closure() -> Tensor:
                gradient = x.detach() ** 3 + X[batch].mean()
                x.grad = own.copy_(gradient) if reuses else gradient
                return gradient.sum()

            return closure

        train(optimizer, closure_for)
        results.append(x.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_inside_the_closure(name: str) -> None:
    """The closure accumulates over pieces: the same trajectory as with whole batches."""
    whole, pieces = net(), net()
    one, many = make(name, whole), make(name, pieces)
    train(one, simple(whole, one))

    def closure_for(batch: Tensor) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            many.zero_grad()
            total = torch.zeros((), dtype=torch.float64)
            for piece in batch.split(5):
                loss = F.cross_entropy(pieces(X[piece]), Y[piece]) * len(piece) / len(batch)
                loss.backward()
                total += loss.detach()
            return total

        return closure

    train(many, closure_for)
    torch.testing.assert_close(flat(pieces), flat(whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_anchors_in_pieces(name: str) -> None:
    """The loader gives an anchor in pieces, each seen by the same closure: the same trajectory as with whole ones."""
    results = []
    for micro in (None, 7):
        model = net()
        optimizer = make(name, model)
        loader = silk.AnchorLoader(
            (X, Y), 40, 8, 6, micro_batch_size=micro, loops=5, generator=torch.Generator().manual_seed(1)
        )
        for (x, y), is_anchor in loader:

            def closure(x=x, y=y, model=model, optimizer=optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss.detach()

            optimizer.step(closure, anchor=is_anchor, samples=len(x))
        results.append((flat(model), optimizer.gradient_queries))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-12)
    assert results[0][1] == pytest.approx(results[1][1])


@pytest.mark.parametrize("name", METHODS)
def test_gradients_that_are_one_tensor_for_two_parameters(name: str) -> None:
    results = []
    for shared in (True, False):
        a, b = (nn.Parameter(torch.full((3,), value, dtype=torch.float64)) for value in (2.0, 1.0))
        optimizer = METHODS[name].make([a, b], 0.05, k1=2, k2=2, generator=torch.Generator().manual_seed(2))

        def closure_for(batch: Tensor, a=a, b=b, shared=shared):
            def closure() -> Tensor:
                loss = ((a + b) * X[batch, :3].mean(0) - 1).square().sum()
                a.grad, b.grad = torch.autograd.grad(loss, [a, b])
                if not shared:
                    a.grad, b.grad = a.grad.clone(), b.grad.clone()
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(torch.cat([a.detach(), b.detach()]))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", METHODS)
def test_sparse_embedding_gradients(name: str) -> None:
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=sparse).double()
        optimizer = make(name, table, k1=6, k2=5)

        def closure_for(batch: Tensor, table=table, optimizer=optimizer, sparse=sparse):
            def closure() -> Tensor:
                optimizer.zero_grad(set_to_none=False)
                loss = (table(batch % 10).sum(1) - 1).square().mean()
                loss.backward()
                assert table.weight.grad.is_sparse == sparse
                return loss.detach()

            return closure

        train(optimizer, closure_for)
        results.append(flat(table))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)
