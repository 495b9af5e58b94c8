"""Where an optimizer is in its loops."""

from __future__ import annotations

import math

import pytest

from spidersilk.loop.counter import LoopCounter
from spidersilk.loop.lengths import Adaptive, Fixed, Geometric
from spidersilk.loop.markers import Anchor, Small
from spidersilk.operator.random_stream import Stream
from spidersilk.parallel.workers import Alone, Portion


def test_query_counter() -> None:
    counter = LoopCounter(None, Stream(0))
    counter.count(1000, 1, 1.0)
    counter.count(100, 2, 0.1)
    assert counter.queries == pytest.approx(1020)
    counter.count(None, 1, 1.0)
    assert math.isnan(counter.queries)


def test_everything_that_a_step_may_be_given_becomes_one_record() -> None:
    counter, alone = LoopCounter(Fixed(3), Stream(0)), Alone()
    first = counter.read(None, 7, alone)
    assert (first.kind, first.share.samples, first.piece.idle, first.adaptive) == ("anchor", 7, False, None)
    assert counter.read(True, None, alone).kind == "anchor"
    assert counter.read(Anchor(0.5, last=False), 7, alone).piece.weight == 0.5
    counter.end_piece(Anchor(), 7)
    counter.done(0)
    rule = Small(Adaptive(), 5, 20, lambda: None)
    for small in (None, False, Portion(4, 4), rule):
        batch = counter.read(small, 4, alone)
        assert batch.kind == "small"
        assert batch.adaptive is (rule if small is rule else None)
    counter.done(1)
    assert not counter.next_is_anchor()
    counter.done(2)
    assert counter.next_is_anchor()
    with pytest.raises(ValueError, match="anchor = 'yes' must be True, False, None"):
        counter.read("yes", 4, alone)  # type: ignore[arg-type]


def test_an_anchor_of_a_loop_of_no_steps_is_idle() -> None:
    """Lengths come from a seeded stream: those of 0 are idle anchors, and the loop ends with them."""
    counter, lengths, idle = LoopCounter(Geometric(1.0), Stream(3)), [], []
    for _ in range(40):
        batch = counter.read(None, 1, Alone())
        assert batch.kind == "anchor"
        idle.append(batch.piece.idle)
        counter.end_piece(batch.piece, 1)
        lengths.append(counter.loop_length)
        if not batch.piece.idle:
            counter.done(lengths[-1] - 1)
    assert 0 < sum(idle) < 40


def test_a_divergence_or_the_end_of_a_loop_asks_for_an_anchor() -> None:
    counter, ended = LoopCounter(Fixed(9), Stream(0)), []
    counter.end_piece(Anchor(), 1)
    counter.done(0)
    counter.end_loop(Small(Adaptive(), 1, 1, lambda: ended.append(True)))
    assert counter.next_is_anchor()
    assert ended == [True]
    counter.begin_piece(Anchor(0.5, last=False))
    counter.end_piece(Anchor(0.5, last=False), 1)
    assert counter.anchor_share == 0.5
    counter.start_anew()
    assert (counter.inner_step, counter.anchor_share) == (-1, 0.0)
