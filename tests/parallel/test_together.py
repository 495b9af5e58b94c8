"""Sparse training on several ranks: the same trajectory, k values a step in one message, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sparse_ranks
import torch
from processes import Pool

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("together")]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shares", [(0.0, 0.2), (0.2, 0.0), (0.1, 0.1)])
def test_any_number_of_ranks_takes_the_same_way(pool: Pool, ranks: int, shares: tuple[float, float]) -> None:
    options = dict(zip(("k1", "k2"), shares, strict=True))
    alone, queries = sparse_ranks.trajectory(None, **options)
    for x, counted in pool.run(sparse_ranks.trajectory, ranks=ranks, **options):
        torch.testing.assert_close(x, alone, rtol=1e-9, atol=1e-9)
        assert counted == pytest.approx(queries)


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_message_of_k_values_a_step(pool: Pool, ranks: int) -> None:
    """New selections included: twelve steps, two of them followed by one."""
    for k, values, anchors, messages in pool.run(sparse_ranks.sent, 12, ranks=ranks):
        assert messages == [4 * k] * 12
        assert values == 12 * 4 * k
        assert anchors == 0


@pytest.mark.parametrize("groups", ["columns", "rows"])
@pytest.mark.parametrize("k1", [0.0, 0.1])
def test_groups_on_ranks(pool: Pool, groups: str, k1: float) -> None:
    alone, _ = sparse_ranks.trajectory(None, groups=groups, k1=k1)
    for x, _ in pool.run(sparse_ranks.trajectory, ranks=2, groups=groups, k1=k1):
        torch.testing.assert_close(x, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("how", "messages"), [("each pass", 2), ("no_sync", 1), ("wrapper", 1)])
def test_micro_batches_and_clipping(pool: Pool, how: str, messages: int) -> None:
    """Clipping sees the average; a step sends k values, or as often as it has micro-batches."""
    alone, _, _ = sparse_ranks.accumulated(None, how)
    for x, sent, k in pool.run(sparse_ranks.accumulated, how, ranks=2):
        torch.testing.assert_close(x, alone, rtol=1e-5, atol=1e-6)
        assert sent == [messages * 4 * k] * 12


def test_messages_go_out_while_backward_goes_on(pool: Pool) -> None:
    """Of the last layer first: its bias and columns fill a bucket together."""
    assert pool.run(sparse_ranks.in_buckets, ranks=2) == [[15, 20, 60]] * 2


def test_gradients_that_somebody_put_there(pool: Pool) -> None:
    ends = pool.run(sparse_ranks.put_there)
    assert all(torch.equal(ends[0], end) for end in ends)


WRONG = {
    "seed": "the seed and number of selections",
    "parameters": "the parameters",
    "settings": "their settings",
    "scale of steps": "their settings",
    "step size": "the step size",
    "nothing": "",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_rank_that_differs_is_named(pool: Pool, wrong: str) -> None:
    assert pool.run(sparse_ranks.outcome, wrong) == [WRONG[wrong]] * 4


def test_a_drift_comes_out_at_the_next_selection(pool: Pool) -> None:
    assert pool.run(sparse_ranks.drifted) == ["the parameters"] * 4


def test_a_wrapper_put_around_afterwards_leaves_the_weights_alone(pool: Pool) -> None:
    alone, _ = sparse_ranks.trajectory(None)
    for x, _ in pool.run(sparse_ranks.trajectory, ddp=True, ranks=2):
        torch.testing.assert_close(x, alone, rtol=1e-9, atol=1e-9)


def test_a_wrapper_that_averages_whole_gradients_is_refused(pool: Pool) -> None:
    for message in pool.run(sparse_ranks.wrapped_before, ranks=2):
        assert "make the optimizer over the module first and wrap that very module then" in message


def test_ranks_without_a_group_do_not_drift_apart(pool: Pool) -> None:
    ends = pool.run(sparse_ranks.nobody_said_so)
    assert all(torch.equal(ends[0], end) for end in ends)


@pytest.mark.parametrize("groups", [None, "columns"])
def test_fsdp_trains_saves_and_loads(pool: Pool, tmp_path: Path, groups: str | None) -> None:
    """Each rank selects within its part; clipping sees all parts; a checkpoint goes on to the bit, or is refused."""
    folder = str(tmp_path / "checkpoint")
    ends = pool.run(sparse_ranks.fsdp, folder, groups, ranks=2)
    for straight, resumed, norms, moved, before, after in ends:
        assert torch.equal(straight, resumed)
        assert torch.equal(straight, ends[0][0])
        assert norms == ends[0][2]
        assert after < before
        assert 0 < moved < 0.8 * len(straight)
    for message in pool.run(sparse_ranks.fsdp_elsewhere, folder, groups, ranks=4):
        assert "cut into 2 parts, and here they are cut into 4" in message


def test_a_rank_that_is_killed() -> None:
    pool = Pool(2, timedelta(seconds=8))
    try:
        pool.start(sparse_ranks.one_is_killed, ranks=2)
        assert "stopped answering during the all-reduce" in pool.result(0)
    finally:
        pool.close()
