"""Several processes: the same trajectory for any number of ranks, k values on the wire, and what goes wrong."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import processes
import pytest
import torch
from processes import METHODS, NAMED, Pool, trajectory

import spidersilk as silk
from spidersilk.parallel.all_reduce import WorkerLostError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ranks"),  # one pool of processes for all of them
]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


# The same way.


@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_ranks_goes_the_same_way(pool: Pool, method: str) -> None:
    """In float64. Batches of 37 and 7 divide by neither 2 nor 4, so ranks are weighted by their samples."""
    steps = 100 if method in NAMED else 40
    alone, queries = trajectory(None, method, steps)
    for ranks in (2, 4):
        for points, counted in pool.run(trajectory, method, steps, ranks=ranks):
            torch.testing.assert_close(points, alone, rtol=0, atol=1e-6)
            assert counted == queries


OPTIONS = {
    "anchors in pieces": {"micro_batch_size": 10},
    "fewer samples than ranks": {"batch_size": 3, "micro_batch_size": 2, "anchor_batch_size": 9},
    "the whole data set": {"anchor_batch_size": None, "micro_batch_size": 25},
    "through a DataLoader": {"by_dataloader": True, "batch_size": 3, "steps": 30},
    "shuffled": {"sampling": "shuffle"},
    "random lengths": {"inner_steps": silk.Geometric(2)},
    "adaptive lengths": {"inner_steps": "auto"},
    "adaptive lengths, recursive": {"inner_steps": "auto", "method": "SpiderBoost"},
    "under DDP": {"ddp": True},
    "under DDP, batches that divide": {"ddp": True, "anchor_batch_size": 40, "batch_size": 8},
    "under DDP, in pieces": {"ddp": True, "micro_batch_size": 10},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_however_batches_come(pool: Pool, name: str) -> None:
    options = {"method": "SparseSVRG", "steps": 40} | OPTIONS[name]
    alone, queries = trajectory(None, **(options | {"ddp": False}))
    for points, counted in pool.run(trajectory, **options):
        torch.testing.assert_close(points, alone, rtol=0, atol=1e-6)
        assert counted == queries


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_hold_the_same_bits(pool: Pool, dtype: torch.dtype) -> None:
    first, *others = pool.run(trajectory, "torch", 30, dtype=dtype)
    assert all(torch.equal(points, first[0]) for points, _ in others)


def test_ddp_averages_anchors_whose_shares_are_equal_and_nobody_does_it_again(pool: Pool) -> None:
    for off, averaged in pool.run(processes.averaged_by_ddp, ranks=2):
        assert averaged
        assert off < 1e-6


def test_a_wrapper_that_the_closure_does_not_call(pool: Pool) -> None:
    assert max(pool.run(processes.ddp_beside_the_point, ranks=2)) < 1e-6


def test_a_wrapper_over_other_ranks_is_kept_silent(pool: Pool) -> None:
    first, second = pool.run(processes.ddp_over_others, ranks=2)
    assert first < 1e-6
    assert second > 1e-3


def test_anchors_go_in_buckets(pool: Pool) -> None:
    assert max(pool.run(processes.in_small_buckets, ranks=2)) < 1e-6


def test_the_code_of_the_docs_runs(pool: Pool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    first, *others = pool.run(processes.run_code, "\n".join(blocks))
    assert all(torch.equal(x, first) for x in others)


@pytest.mark.parametrize("batch_size", [8, 3])
def test_buffers_under_ddp(pool: Pool, batch_size: int) -> None:
    """Anchors broadcast the buffers of rank 0, and nothing hangs when a rank has no sample."""
    first, *others = pool.run(processes.ddp_with_buffers, batch_size)
    for states in others:
        assert all(torch.equal(a, b) for a, b in zip(states, first, strict=True))


def test_batches_of_ones_own(pool: Pool) -> None:
    alone, queries = processes.own_batches(None)
    for point, counted in pool.run(processes.own_batches):
        torch.testing.assert_close(point, alone, rtol=0, atol=1e-6)
        assert counted == queries


def test_measures_are_of_all_ranks(pool: Pool) -> None:
    alone = torch.tensor(processes.measured(None, "SparseSVRG"))
    for told in pool.run(processes.measured, "SparseSVRG", ranks=2):
        torch.testing.assert_close(torch.tensor(told), alone)


@pytest.mark.parametrize("method", ["SparseSVRG", "selected"])
def test_a_state_goes_on_with_another_number_of_ranks(pool: Pool, method: str) -> None:
    """Saved on two in the middle of a loop; loaded on four, and on one."""
    undisturbed = trajectory(None, method, 33)[0][-1]
    state = pool.run(processes.saved, 13, method, ranks=2)[0]
    for point in [*pool.run(processes.resumed, state, 20, method), processes.resumed(None, state, 20, method)]:
        torch.testing.assert_close(point, undisturbed, rtol=0, atol=1e-6)


def test_no_state_is_saved_between_the_pieces_of_an_anchor(pool: Pool) -> None:
    assert all("anchor_share is 0" in message for message in pool.run(processes.saved_between_pieces, ranks=2))


# What is sent.


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_small_step_sends_k_values(pool: Pool, ranks: int) -> None:
    """Counted at torch's own all_reduce: d values at an anchor, k at a small step, and not an index."""
    for steps, anchors, traffic, d in pool.run(processes.sent, "SparseSVRG", 10, ranks=ranks):
        k = 2 * -(-d // 10)
        assert anchors == [0, 10]
        small = [size for number, size in enumerate(steps) if number not in anchors]
        assert {steps[number] for number in anchors} == {4 * d}
        expected = 2 * (ranks - 1) / ranks * 4 * k
        assert [traffic.ring(size) for size in small] == pytest.approx([expected] * 18, rel=0.02)
        assert (traffic.anchors, traffic.small_steps) == (sum(steps) - sum(small), sum(small))


def test_a_loop_sends_a_fifth_of_what_dense_averaging_does(pool: Pool) -> None:
    """m = 10 and k = 10 %: 1 + 9 / 10 of d, beside 10 d; the check that ranks agree is counted too."""
    for _, _, traffic, d in pool.run(processes.sent, "selected", 10, ranks=2):
        dense = traffic.ring(20 * 4 * d)
        assert 0 < traffic.control < 1000
        assert dense / traffic.ring_bytes >= 5


# What is checked.


WRONG = {
    "seed": ("the seed of selections", "generator of the same seed"),
    "parameters": ("the parameters", "torch.manual_seed"),
    "settings": ("their settings", "construct the same optimizer"),
    "step size": ("the step size", "schedulers"),
    "hook": ("whether a measures hook is registered", "every rank"),
    "batches": ("the seed of their batches", "AnchorLoader"),
    "order": ("the data of an anchor", "the same data, in the same order"),
    "order of a data set": ("the data of an anchor", "the same data, in the same order"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_rank_that_differs_is_named_at_the_first_anchor(pool: Pool, wrong: str) -> None:
    """By every rank, before any of them moves."""
    what, remedy = WRONG[wrong]
    for told, message, ranks, moved in pool.run(processes.outcome, wrong):
        assert told == what
        assert ranks == [1]
        assert message.startswith("rank 1 of 4 differs from the others in ")
        assert remedy in message
        assert moved == 0
    assert [told for told, *_ in pool.run(processes.outcome, "nothing")] == [""] * 4


@pytest.mark.parametrize("what", processes.DRIFTS)
def test_agreement_on_request(pool: Pool, what: str) -> None:
    assert pool.run(processes.drifts, what) == [(what, [2])] * 4


def test_a_wrapper_that_comes_after_a_state_was_loaded(pool: Pool) -> None:
    assert max(pool.run(processes.wrapped_late, ranks=2)) < 1e-6


def test_wrappers_that_cannot_be_kept_silent_are_refused(pool: Pool) -> None:
    for others, static in pool.run(processes.refused_wrappers, ranks=2):
        assert "trainable parameters that this optimizer does not have" in others
        assert "static_graph" in static


def test_a_part_of_an_anchor_is_not_loaded_on_several_ranks(pool: Pool) -> None:
    assert all("neither saved nor loaded" in told for told in pool.run(processes.loads_a_part_of_an_anchor, ranks=2))


def test_an_error_of_the_closure_stays_what_it_is(pool: Pool) -> None:
    assert pool.run(processes.own_error, ranks=2) == ["RuntimeError"] * 2


def test_unequal_batches_of_ones_own_come_out_at_the_next_anchor(pool: Pool) -> None:
    for what, message in pool.run(processes.unequal_own_batches, ranks=2):
        assert what == "the samples they counted"
        assert "AnchorLoader(process_group=)" in message


def test_without_generators_the_seeds_of_rank_0_are_used(pool: Pool) -> None:
    first, *others = pool.run(processes.without_generators)
    assert all(torch.equal(points, first) for points in others)


def test_broadcast(pool: Pool) -> None:
    first, *others = pool.run(processes.spread_from_first)
    for states in others:
        assert all(torch.equal(a, b) for a, b in zip(states, first, strict=True))


# What goes wrong.


def test_a_value_that_is_not_finite_on_one_rank_stops_all_of_them(pool: Pool) -> None:
    told = pool.run(processes.not_finite_on_one_rank)
    assert len({step for _, step, _ in told}) == 1
    for message, step, moved in told:
        assert step >= 0
        assert "not finite" in message
        assert not moved.any()


def test_sharded_models_are_refused(pool: Pool) -> None:
    for told in pool.run(processes.sharded, ranks=2):
        assert len(told) == 6
        assert all("sharded by FSDP" in message for message in told)


def test_a_worker_that_is_killed_stops_the_others_with_the_cause() -> None:
    pool = Pool(3, timedelta(seconds=20))
    try:
        pool.run(processes.trajectory, "SparseSVRG", 5, ranks=3)
        pool.start(processes.endless, ranks=3)
        time.sleep(1)
        os.kill(pool.processes[1].pid, signal.SIGKILL)
        for rank in (0, 2):
            with pytest.raises(WorkerLostError, match=rf"a worker of the group stopped answering.*rank {rank} of 3"):
                pool.result(rank, 30)
    finally:
        pool.close()


def test_a_worker_that_is_slow_only_slows() -> None:
    pool = Pool(2, timedelta(seconds=30))
    try:
        expected = trajectory(None, "SparseSVRG", 40)[0][-1]
        pool.run(processes.trajectory, "SparseSVRG", 5, ranks=2)
        pool.start(processes.timed, 40, ranks=2)
        time.sleep(0.5)
        os.kill(pool.processes[1].pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(pool.processes[1].pid, signal.SIGCONT)
        for rank in (0, 1):
            torch.testing.assert_close(pool.result(rank), expected, rtol=0, atol=1e-6)
    finally:
        pool.close()
