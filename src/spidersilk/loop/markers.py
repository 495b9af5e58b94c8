"""What a batch is: what loaders say of it, and the one record that an optimizer makes of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spidersilk.loop.lengths import Adaptive
from spidersilk.parallel.workers import Portion, Share


@dataclass(frozen=True)
class Anchor:
    """What a loader says of an anchor batch. It is true, so `if is_anchor` works as with a plain True.

    An anchor may come in pieces: `weight` is the piece's share of the samples, `first` begins an anchor, whatever came
    of an earlier one, and `last` ends it. It may be `idle`: the anchor of an inner loop of length 0, which is evaluated
    and counted but moves nothing. `portion` is this rank's part of it, where it is split over ranks.
    """

    weight: float = 1.0
    first: bool = True
    last: bool = True
    idle: bool = False
    portion: Portion | None = None

    def __bool__(self) -> bool:
        return True


class Small:
    """What a loader with adaptive loops says of a small batch. It is false, as a plain False.

    Through it the optimizer finds the `rule` and the sizes of batches, and ends the loop, so that an anchor comes next.
    """

    def __init__(
        self,
        rule: Adaptive,
        samples: int,
        anchor_samples: int,
        end_loop: Callable[[], None],
        portion: Portion | None = None,
    ):
        self.rule, self.samples, self.anchor_samples, self.portion = rule, samples, anchor_samples, portion
        self._end_loop = end_loop
        self.seen = False  # by an optimizer

    def end_loop(self) -> None:
        """Let an anchor come next."""
        self.seen = True
        self._end_loop()

    def __bool__(self) -> bool:
        return False


Marker = bool | Anchor | Small | Portion
"""What a loader yields beside a batch: true for an anchor, false for a small batch."""
IsAnchor = Marker | None
"""What `step(closure, anchor=...)` takes: a marker, or None to let the optimizer count."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the batch of one step is, whatever it was given as."""

    kind: Literal["anchor", "small"]
    share: Share
    """Of this rank: how much its gradient counts; and how many samples the batch has on all ranks together."""
    piece: Anchor
    """Which piece of an anchor it is; for a small batch, a whole one that means nothing."""
    adaptive: Small | None = None
    """For a small batch of an adaptive loop: its rule, and the way to end the loop."""


WHOLE = Anchor()
