"""The cost model: bytes and seconds by hand, an all-reduce simulated message by message, and limits."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import scaling
from scaling import Cluster, Loop, Step, break_even, dense, power_sgd, small, top_k

D, K = 11_037_220, 1_103_722


def test_the_example_in_its_docstring_runs() -> None:
    failures, tried = doctest.testmod(scaling)
    assert failures == 0
    assert tried > 0


def ring_by_hand(n: int, size: float, latency: float, bandwidth: float) -> tuple[float, float]:
    """Bytes sent by worker 0, and seconds: reduce-scatter, then all-gather, chunk by chunk."""
    chunk, sent, clock = size / n, 0.0, 0.0
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(n - 1):  # every worker sends one chunk to the next, all at once
            sent += chunk
            clock += latency + chunk / bandwidth
    return sent, clock


@pytest.mark.parametrize("n", [1, 2, 3, 4, 17, 1024])
def test_ring_is_what_its_messages_take(n: int) -> None:
    bytes_by_hand, seconds = ring_by_hand(n, 4.0 * K, 3e-5, 1.25e8)
    assert small(K).sent(n) == pytest.approx(bytes_by_hand)
    assert Cluster(n, 3e-5, 1.25e8).all_reduce(4.0 * K) == pytest.approx(seconds)


def test_bytes_by_hand() -> None:
    assert small(1000).sent(4) == 2 * 3 / 4 * 1000 * 4 == 6000
    assert dense(1000).sent(2) == 4000
    assert small(1000, width=2).sent(4) == 3000
    assert Loop(dense(1000), small(100), 10).sent(4) * 10 == 6000 + 9 * 600


@pytest.mark.parametrize("n", [2, 4, 8, 1024])
def test_shared_coordinates_save_n_times_against_gathering_everyones(n: int) -> None:
    """8 k (n-1) bytes received against 8 k (n-1) / n."""
    assert top_k(K).sent(n) == 8 * K * (n - 1)
    assert small(K).sent(n) == pytest.approx(8 * K * (n - 1) / n)


def test_an_outer_loop_at_ten_percent_sends_five_times_less() -> None:
    for n in (2, 4, 1024):
        ratio = dense(D).sent(n) / Loop(dense(D), small(K), 10).sent(n)
        assert ratio == pytest.approx(10 / 1.9, rel=1e-6)


def test_power_sgd_by_hand() -> None:
    """Rank 2 of a 100 x 50 matrix: 200 and 100 values; the bias and a 4 x 2 matrix go whole."""
    step = power_sgd([(100, 50), (100,), (4, 2)], 2)
    assert step.reduced == (4 * 108, 4 * 200, 4 * 100)
    assert step.sent(2) == 4 * 408
    convolution = power_sgd([(64, 32, 3, 3)], 1)
    assert convolution.reduced == (4 * 64, 4 * 288)
    assert power_sgd([(64, 32, 3, 3)], 1, min_compression_rate=1000).reduced == (4 * 64 * 288,)
    assert power_sgd([(6, 1000)], 50, min_compression_rate=0.5).reduced == (4 * 36, 4 * 6000)  # a rank of at most 6


def test_torch_sends_what_power_sgd_counts() -> None:
    """Against the compression test of torch's own hook."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _should_compress

    for shape in ((100, 50), (4, 2), (10, 2330), (64, 32 * 9), (6, 7)):
        for rank in (1, 2, 4):
            for rate in (1.0, 2.0, 8.0):
                taken, _, after = _should_compress(shape[0], shape[1], rank, rate)
                step = power_sgd([shape], rank, min_compression_rate=rate)
                if min(shape) >= rank:
                    assert sum(step.reduced) == 4 * (after if taken else math.prod(shape)), (shape, rank, rate)


def test_what_is_hidden_costs_nothing_until_sending_takes_longer() -> None:
    cluster = Cluster(2, 0.0, 1000.0)  # 250 floats a second
    step = dense(100, local=1.0, hidden=0.5)
    assert step.sending(cluster) == pytest.approx(0.4)
    assert step.seconds(cluster) == pytest.approx(1.0)
    assert dense(500, local=1.0, hidden=0.5).seconds(cluster) == pytest.approx(1.0 + 2.0 - 0.5)
    assert dense(100, local=1.0).seconds(cluster) == pytest.approx(1.4)


def test_limits() -> None:
    alone = Cluster(1, 1.0, 1.0)
    for step in (dense(D, 0.1), small(K, 0.1), top_k(K, 0.1), power_sgd([(100, 50)], 1, 0.1)):
        assert step.sent(1) == 0
        assert step.seconds(alone) == pytest.approx(0.1)
        assert step.seconds(Cluster(8, 0.0, 1e30)) == pytest.approx(0.1)
    assert small(D).seconds(Cluster(8, 1e-4, 1e9)) == dense(D).seconds(Cluster(8, 1e-4, 1e9))
    assert Loop(dense(D), small(K), 1).seconds(Cluster(8, 1e-4, 1e9)) == dense(D).seconds(Cluster(8, 1e-4, 1e9))
    far = Cluster(8, 1e-4, 1e-3)  # where only bytes count
    ratio = dense(D, 0.1).seconds(far) / Loop(dense(D, 0.1), small(K, 0.2), 10).seconds(far)
    assert ratio == pytest.approx(10 / 1.9, rel=1e-6)
    many = Cluster(10**6, 0.0, 1e9)
    assert many.all_reduce(1e9) == pytest.approx(2.0, rel=1e-5)  # a ring's time has an end, a gather's has none
    assert many.all_gather(1e9) == pytest.approx(1e6, rel=1e-5)


def test_ring_and_tree() -> None:
    """A tree has logarithmic depth, a ring sends less; "best" takes the faster."""
    for n, size in ((2, 4.0), (8, 4.0), (1024, 4.0), (8, 4e9), (1024, 4e10)):
        ring, tree, best = (Cluster(n, 1e-5, 1e9, how).all_reduce(size) for how in ("ring", "tree", "best"))
        assert best == min(ring, tree)
        assert (tree < ring) == (n > 2 and size < 1e6)
    assert Cluster(1024, 1e-5, 1e30, "tree").all_reduce(4) == pytest.approx(20e-5)
    assert Cluster(1000, 1e-5, 1e30, "tree").all_reduce(4) == pytest.approx(20e-5)
    assert Cluster(1024, 1e-5, 1e30, "ring").all_reduce(4) == pytest.approx(2046e-5)


@pytest.mark.parametrize("make", [lambda s: dense(s, 0.1), lambda s: small(s, 0.1), lambda s: top_k(s, 0.1)])
@pytest.mark.parametrize("algorithm", ["ring", "tree", "best"])
def test_monotone(make, algorithm: str) -> None:
    at = Cluster(8, 1e-5, 1e9, algorithm)

    def grows(values: list[float]) -> bool:
        return all(x < y for x, y in pairwise(values))

    assert grows([make(s).seconds(at) for s in (10, 1000, 10**6, 10**9)])
    assert grows([make(10**6).seconds(replace(at, workers=n)) for n in (2, 4, 8, 64, 1024)])
    assert grows([make(10**6).seconds(replace(at, latency=x)) for x in (0.0, 1e-6, 1e-3)])
    assert grows([make(10**6).seconds(replace(at, bandwidth=x)) for x in (1e10, 1e9, 1e7)])


def test_longer_loops_send_less() -> None:
    sent = [Loop(dense(D), small(K), m).sent(4) for m in (1, 2, 10, 100)]
    assert sent == sorted(sent, reverse=True)
    assert Loop(dense(D), small(K), 10**9).sent(4) == pytest.approx(small(K).sent(4), rel=1e-6)


def test_break_even() -> None:
    """Where both take equally long; above it the order is reversed."""
    loop, step, cluster = Loop(dense(D, 0.1), small(K, 0.05), 10), dense(D, 0.03, hidden=0.01), Cluster(4, 1e-5, 1.0)
    at = break_even(loop, step, cluster)
    assert loop.seconds(replace(cluster, bandwidth=at)) == pytest.approx(step.seconds(replace(cluster, bandwidth=at)))
    assert loop.seconds(replace(cluster, bandwidth=at / 2)) < step.seconds(replace(cluster, bandwidth=at / 2))
    assert loop.seconds(replace(cluster, bandwidth=at * 2)) > step.seconds(replace(cluster, bandwidth=at * 2))
    assert break_even(small(K, 0.01), dense(D, 0.03), cluster) == math.inf
    assert break_even(dense(D, 0.03), small(K, 0.01), cluster) == 0.0


def test_errors() -> None:
    with pytest.raises(ValueError, match="workers = 0"):
        Cluster(0, 0.0, 1.0)
    with pytest.raises(ValueError, match="bandwidth = 0"):
        Cluster(2, 0.0, 0.0)
    with pytest.raises(ValueError, match="latency = -1"):
        Cluster(2, -1.0, 1.0)
    with pytest.raises(ValueError, match="algorithm = 'star'"):
        Cluster(2, 0.0, 1.0, "star")
    with pytest.raises(ValueError, match="length = 0"):
        Loop(Step(1.0), Step(1.0), 0)
    with pytest.raises(ValueError, match="rank = 0"):
        power_sgd([(4, 4)], 0)
