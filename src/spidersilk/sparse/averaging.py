"""Gradients averaged over ranks while backward goes on, bucket by bucket, as DistributedDataParallel does it.

When backward has ended they are averaged: clipping and loss scaling then act on what will be stepped. A gradient that
was averaged before and to which more was added is averaged again as it is, which is right: averages stay what they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakMethod, ref

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from spidersilk.parallel.workers import Alone, Share

BUCKET = 25 << 20  # bytes of gradients that go in one message, unless a backward pass ends before

_engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportAttributeAccessIssue]


class Averaging:
    """Who calls `arrived(param)` for each gradient sees to it that all ranks do so in the same order.

    share: a method that says how much this rank's gradients count now. before: one that is called once, before anything
    is sent.
    """

    def __init__(self, workers: Alone, share: Callable[[], Share], before: Callable[[], None]):
        self._workers, self._share, self._before = workers, WeakMethod(share), WeakMethod(before)
        self.wrappers: Sequence[DistributedDataParallel] = ()  # which may be in their `no_sync`
        self._is_off = False  # gradients wait for the next pass, or for the step
        self._is_checked = False
        self._queued: set[int] = set()  # passes at whose end `_finish` is called
        self._ready: list[Tensor] = []
        self._bytes = 0
        self._sent: list[tuple[list[Tensor], Tensor, Callable[[], None]]] = []
        self._averaged: dict[Tensor, ReferenceType[Tensor]] = {}  # of a parameter, its gradient that is averaged

    def arrived(self, param: Tensor) -> None:
        """Something was added to its gradient."""
        self._averaged.pop(param, None)
        self._check()
        if self._is_off or any(not wrapper.require_backward_grad_sync for wrapper in self.wrappers):
            return
        number = torch._C._current_graph_task_id()
        if number < 0:
            return  # no backward pass is going on: the step averages it
        if number not in self._queued:
            self._queued.add(number)
            _engine.queue_callback(lambda: self._finish(number))
        self._ready.append(param)
        self._bytes += param.numel() * param.element_size()
        if self._bytes >= BUCKET:
            self._send()

    @contextmanager
    def pause(self) -> Iterator[None]:
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False

    def rest(self, params: Sequence[Tensor]) -> None:
        """At a step: average what no backward pass has averaged, as a gradient that somebody put there."""
        self._check()
        self._ready = [p for p in params if not self._is_averaged(p)]
        self._send()
        self._receive()

    def average(self, gradient: Tensor) -> Tensor:
        """A gradient's average, now."""
        self._check()
        averaged = gradient.clone()
        self._workers.begin_average(averaged, self._share_of_this())()
        return averaged

    def _share_of_this(self) -> Share:
        share = self._share()
        assert share is not None
        return share()

    def _check(self) -> None:
        if not self._is_checked:
            self._is_checked = True
            before = self._before()
            assert before is not None
            before()

    def _is_averaged(self, param: Tensor) -> bool:
        found = self._averaged.get(param)
        return found is not None and found() is param.grad

    @torch.no_grad()
    def _send(self) -> None:
        ready, self._ready, self._bytes = dict.fromkeys(p for p in self._ready if p.grad is not None), [], 0
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for p in ready:
            assert p.grad is not None
            alike[p.grad.device, p.grad.dtype].append(p)
        for params in alike.values():
            vector = torch.cat([p.grad.reshape(-1) for p in params if p.grad is not None])
            self._sent.append((params, vector, self._workers.begin_average(vector, self._share_of_this())))

    def _finish(self, number: int) -> None:
        """A backward pass has ended."""
        self._queued.discard(number)
        self._send()
        self._receive()

    @torch.no_grad()
    def _receive(self) -> None:
        sent, self._sent = self._sent, []
        for params, vector, wait in sent:
            wait()
            for p, part in zip(params, vector.split([p.numel() for p in params]), strict=True):
                if p.grad is not None:
                    p.grad.copy_(part.view(p.grad.shape))
                    self._averaged[p] = ref(p.grad)
