"""What a data-parallel step sends and how long it takes, by the alpha-beta model: latency + bytes / bandwidth.

A `Step` is local work and the messages that follow it; a `Cluster` says how long these take. The makers `dense`,
`small`, `top_k` and `power_sgd` know what each method sends, and a `Loop` is an anchor and its small steps. Nothing
is measured here: network.py measures and compares.

>>> d, k, n = 11_037_220, 1_103_722, 4
>>> small(k).sent(n) == 2 * (n - 1) / n * k * 4
True
>>> round(dense(d).sent(n) / Loop(dense(d), small(k), 10).sent(n), 2)
5.26
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

ALGORITHMS = ("ring", "tree", "best")


@dataclass(frozen=True)
class Cluster:
    """Workers on equal links that send and receive at the same time.

    latency: seconds from the call to the first byte, for each message of a collective.
    bandwidth: bytes a second, each way.
    algorithm: of an all-reduce. "ring": 2 (n-1) messages of 1/n of the vector, the least bytes (gloo). "tree": two
        binary trees, each for half the vector in a pipeline, 2 ceil(log2 n) messages deep and two vectors of bytes.
        "best": whichever is faster for the message (what NCCL aims at).
    """

    workers: int
    latency: float
    bandwidth: float
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers = {self.workers} must be at least 1")
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ValueError(
                f"latency = {self.latency} must be at least 0 seconds and bandwidth = {self.bandwidth} above 0 bytes/s"
            )
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm = {self.algorithm!r} is not one of {', '.join(map(repr, ALGORITHMS))}")

    def all_reduce(self, size: float) -> float:
        """Seconds to sum vectors of `size` bytes, one of each worker."""
        n = self.workers
        if n == 1 or size == 0:
            return 0.0
        ring = 2 * (n - 1) * self.latency + 2 * (n - 1) / n * size / self.bandwidth
        tree = 2 * math.ceil(math.log2(n)) * self.latency + 2 * size / self.bandwidth
        return {"ring": ring, "tree": tree, "best": min(ring, tree)}[self.algorithm]

    def all_gather(self, size: float) -> float:
        """Seconds until every worker has received the `size` bytes of every other one, over its one link."""
        return (self.workers - 1) * (self.latency + size / self.bandwidth) if size else 0.0


@dataclass(frozen=True)
class Step:
    """One update: local work, then messages.

    local: seconds of everything that is not sending: evaluations, selection, compression, the optimizer.
    reduced: bytes of each vector that is all-reduced, one call after the other.
    gathered: bytes that a worker gives to each all-gather.
    hidden: seconds of the local work during which sending can go on already (back-propagation under DDP).
    """

    local: float
    reduced: tuple[float, ...] = ()
    gathered: tuple[float, ...] = ()
    hidden: float = 0.0

    def sent(self, workers: int) -> float:
        """Bytes that each worker sends and receives with ring algorithms, without headers."""
        n = workers
        return 2 * (n - 1) / n * sum(self.reduced) + (n - 1) * sum(self.gathered)

    def sending(self, cluster: Cluster) -> float:
        """Seconds of the messages alone."""
        return sum(map(cluster.all_reduce, self.reduced)) + sum(map(cluster.all_gather, self.gathered))

    def seconds(self, cluster: Cluster) -> float:
        sending = self.sending(cluster)
        return self.local + sending - min(self.hidden, sending)


@dataclass(frozen=True)
class Loop:
    """An outer loop of `length` updates: one anchor, then small steps. Figures are means over its updates."""

    anchor: Step
    small: Step
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length = {self.length} must be at least 1: an anchor is the first update of a loop")

    def _mean(self, of: Callable[[Step], float]) -> float:
        return (of(self.anchor) + (self.length - 1) * of(self.small)) / self.length

    def sent(self, workers: int) -> float:
        return self._mean(lambda step: step.sent(workers))

    def sending(self, cluster: Cluster) -> float:
        return self._mean(lambda step: step.sending(cluster))

    def seconds(self, cluster: Cluster) -> float:
        return self._mean(lambda step: step.seconds(cluster))


def dense(d: int, local: float = 0.0, *, hidden: float = 0.0, width: int = 4) -> Step:
    """All d values: a DDP step, or an anchor. `width` is the bytes of a value."""
    return Step(local, (float(width * d),), hidden=hidden)


def small(k: int, local: float = 0.0, *, width: int = 4) -> Step:
    """The k selected values of a small step, on coordinates that every worker knows: no indices."""
    return Step(local, (float(width * k),))


def top_k(k: int, local: float = 0.0, *, width: int = 4, index: int = 4) -> Step:
    """Each worker's own k values with their indices, gathered from all of them: what top-k compression sends."""
    return Step(local, gathered=(float((width + index) * k),))


def power_sgd(
    shapes: Iterable[Sequence[int]],
    rank: int,
    local: float = 0.0,
    *,
    hidden: float = 0.0,
    width: int = 4,
    min_compression_rate: float = 2,
) -> Step:
    """torch's PowerSGD hook: the two factors of each matrix, and small tensors uncompressed.

    A tensor is a matrix of its first dimension by the rest; it stays as it is if rank (rows + columns) times
    `min_compression_rate` is not less than its size.
    """
    if rank < 1:
        raise ValueError(f"rank = {rank} must be at least 1")
    whole = left = right = 0
    for shape in shapes:
        size, rows = math.prod(shape), shape[0] if shape else 1
        columns = size // rows if rows else 0
        r = min(rows, columns, rank)
        if len(shape) > 1 and (rows + columns) * r * min_compression_rate < size:
            left, right = left + rows * r, right + columns * r
        else:
            whole += size
    sizes = tuple(float(width * x) for x in (whole, left, right) if x)
    return Step(local, sizes, hidden=hidden)


def break_even(method: Step | Loop, other: Step | Loop, cluster: Cluster) -> float:
    """The bandwidth, in bytes a second, above which `method` is no longer faster than `other`; inf if it always is.

    `cluster.bandwidth` is not used. 0.0 if `method` is not faster even on the slowest link.

    >>> fast, slow = small(10_000_000, local=0.05), dense(100_000_000, local=0.03)
    >>> at = break_even(fast, slow, Cluster(2, 0.0, 1.0))
    >>> round(at / 1e9, 3)  # 360 MB less to send, 20 ms more local work
    18.0
    """
    low, high = 1.0, 1e18

    def wins(bandwidth: float) -> bool:
        at = replace(cluster, bandwidth=bandwidth)
        return method.seconds(at) < other.seconds(at)

    if not wins(low):
        return 0.0
    if wins(high):
        return math.inf
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if wins(middle) else (low, middle)
    return low
