"""Which of several ways to the same result is the fastest: found out by the clock while they are used in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log2
from typing import TypeVar

import torch

from spidersilk.variance.graph import capturing

Result = TypeVar("Result")
ROUNDS = 5
MARGIN = 0.9  # of the first way's time, below which another one is taken


class Race:
    """Says which of the ways named to take next: each in turn, then the one that was the fastest at its best.

    The first way wins unless another one takes less than `margin` of its time. What a way takes the first time does not
    count: it is a warm-up.
    """

    def __init__(self, names: Sequence[str], margin: float = MARGIN):
        self.margin = margin
        self.winner: str | None = None
        self._times: dict[str, list[float]] = {name: [] for name in names}

    def next(self) -> str:
        return self.winner or min(self._times, key=lambda name: len(self._times[name]))

    def run(self, ways: Mapping[str, Callable[[], Result]], device: torch.device) -> Result:
        """Take the next way and, while the race is on, note its time."""
        name = self.next()
        if self.winner is not None or capturing():
            return ways[name]()
        clock = _clock(device)
        start = clock()
        result = ways[name]()
        self._times[name].append(clock() - start)
        if all(len(times) > ROUNDS for times in self._times.values()):
            best = {name: min(times[1:]) for name, times in self._times.items()}
            first, fastest = next(iter(best)), min(best, key=best.__getitem__)
            self.winner = fastest if best[fastest] < self.margin * best[first] else first
        return result


_races: dict[Hashable, Race] = {}
_forced: list[str] = []
_untimed: list[bool] = []


def run(case: Hashable, ways: Mapping[str, Callable[[], Result]], device: torch.device) -> Result:
    """The result of one of `ways`: the fastest for this case once that is known, until then each in turn.

    Under `untimed` or `torch.use_deterministic_algorithms` it is the first one: ways differ in the rounding.
    """
    if _forced and _forced[-1] in ways:
        return ways[_forced[-1]]()
    if len(ways) == 1 or _untimed or torch.are_deterministic_algorithms_enabled():
        return next(iter(ways.values()))()
    race = _races.get(_here(case))
    if race is None:
        race = _races[_here(case)] = Race(list(ways))
    return race.run(ways, device)


def found(case: Hashable) -> str | None:
    """What was found for a case, None if it is not known yet or does not count."""
    race = None if _untimed else _races.get(_here(case))
    return None if race is None else race.winner


def _here(case: Hashable) -> Hashable:
    return case, torch.get_num_threads()


def settled() -> bool:
    """Whether every case that came up is known."""
    return all(race.winner is not None for race in _races.values())


def known() -> dict[Hashable, str | None]:
    """What was found so far, by case."""
    return {case: race.winner for case, race in _races.items()}


def forget() -> None:
    _races.clear()


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


def _clock(device: torch.device) -> Callable[[], float]:
    """Seconds: of this thread where it does all the work, so that other processes do not count."""
    if device.type != "cuda":
        return time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter

    def wait() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return wait
