"""Which of several ways to the same result is the fastest: timed when a case first comes up, then remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from math import log2

import torch

ROUNDS = 5
MARGIN = 0.9  # of the first way's time, below which another one is taken
_known: dict[Hashable, str] = {}
_forced: list[str] = []
_untimed: list[bool] = []


def fastest(case: Hashable, ways: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """The name of the fastest of `ways` for this case, the first one if it is nearly that.

    A way may be run several times, so it must change nothing.
    Under `untimed` or `torch.use_deterministic_algorithms` it is the first one: ways differ in the rounding.
    """
    if _forced and _forced[-1] in ways:
        return _forced[-1]
    if len(ways) == 1 or _untimed or torch.are_deterministic_algorithms_enabled():
        return next(iter(ways))
    if _here(case) not in _known:
        rounds = [[_clock(way, device) for way in ways.values()] for _ in range(1 + ROUNDS)]
        times = [min(column) for column in zip(*rounds[1:], strict=True)]  # the first round is a warm-up
        best = times.index(min(times))
        _known[_here(case)] = list(ways)[best if times[best] < MARGIN * times[0] else 0]
    return _known[_here(case)]


def found(case: Hashable) -> str | None:
    """What was found for a case, None if it has not come up or does not count."""
    return None if _untimed else _known.get(_here(case))


def _here(case: Hashable) -> Hashable:
    return case, torch.get_num_threads()


def known() -> dict[Hashable, str]:
    """What was found so far, by case."""
    return dict(_known)


def forget() -> None:
    _known.clear()


@contextmanager
def untimed() -> Iterator[None]:
    """Take the first way everywhere: no result depends on the clock."""
    _untimed.append(True)
    try:
        yield
    finally:
        _untimed.pop()


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Take this way wherever it is one of the candidates, timed or not."""
    _forced.append(way)
    try:
        yield
    finally:
        _forced.pop()


def level(density: float) -> int:
    """A density to the nearest half octave, so that like ones are one case."""
    return round(2 * log2(density)) if density > 0 else -1000


def _clock(way: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
