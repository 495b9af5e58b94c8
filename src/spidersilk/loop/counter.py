"""Where an optimizer is in its outer loops: steps, anchors, pieces of an anchor, and gradient queries."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from spidersilk.checks import Form
from spidersilk.loop.lengths import Adaptive, InnerLength
from spidersilk.loop.markers import WHOLE, Anchor, Batch, IsAnchor, Small
from spidersilk.operator.random_stream import Stream, mix
from spidersilk.parallel.workers import Alone, Portion

_ENDLESS = 10**12  # updates
_LENGTHS = 1  # the stream of loop lengths, apart from that of selections


class LoopCounter:
    """Counts, reads what a step was given, and refuses a step that cannot come now.

    length: of an inner loop, where the optimizer decides by itself which step is an anchor; None: it is told.
    """

    FORM: ClassVar[dict[str, Form]] = {
        **dict.fromkeys(("steps", "anchors", "inner_step", "loop_length"), int),
        "anchor_share": float,
        "anchor_samples": (int, type(None)),
        "queries": float,
    }  # of what is saved

    def __init__(self, length: InnerLength | None, stream: Stream):
        self.length, self._stream = length, stream
        self.steps = 0  # updates done
        self.anchors = 0  # anchors done
        self.inner_step = -1  # the last update's place in its loop, 0 for the anchor's; -1 if an anchor must come
        self.loop_length = 0  # of the loop under way, where the optimizer counts by itself
        self.anchor_share = 0.0  # how much of an anchor in pieces has come, 0 outside of one
        self.anchor_samples: int | None = 0  # of the last anchor, None if a step did not say
        self.queries = 0.0  # one sample's full gradient is one, k of its d coordinates are k/d (the paper's accounting)
        self.longest = 1  # loop so far, in updates

    def next_is_anchor(self, anchor: IsAnchor = None) -> bool:
        """Whether the next step is an anchor, given what will be passed to it as `anchor`."""
        if anchor is not None:
            return bool(anchor)
        if self.length is None:
            raise ValueError(
                "anchor = None needs inner_steps: pass anchor=True or False, or construct with inner_steps"
            )
        return self.inner_step < 0 or self.inner_step + 1 >= self.loop_length

    def read(self, anchor: IsAnchor, samples: int | None, workers: Alone) -> Batch:
        """What the batch of the next step is."""
        if anchor is not None and not isinstance(anchor, bool | Anchor | Small | Portion):
            raise ValueError(f"anchor = {anchor!r} must be True, False, None, or what an AnchorLoader yields")
        if samples is not None and (isinstance(samples, bool) or not hasattr(samples, "__index__") or samples < 0):
            raise ValueError(f"samples = {samples} must be a whole number of at least 0: the batch's samples")
        share = workers.share(getattr(anchor, "portion", None), samples)
        if self.next_is_anchor() if anchor is None else anchor:
            piece = anchor if isinstance(anchor, Anchor) else WHOLE
            if anchor is None and self._next_length() == 0:
                piece = Anchor(idle=True)
            return Batch("anchor", share, piece)
        if self.anchor_share:
            raise RuntimeError(f"a small step after {self.anchor_share:.0%} of an anchor: give its other pieces first")
        if self.inner_step < 0:
            raise RuntimeError("a small step before any anchor: v is not set, so give an anchor first (anchor=True)")
        if anchor is None and isinstance(self.length, Adaptive):
            if not share.samples or self.anchor_samples is None:
                raise ValueError("inner_steps = 'auto' weighs batches by their size: pass samples= to each step")
            anchor = Small(self.length, share.samples, self.anchor_samples, lambda: None)
        return Batch("small", share, WHOLE, anchor if isinstance(anchor, Small) else None)

    def _next_length(self) -> int:
        """Of the loop that the next anchor begins, where the optimizer counts by itself; an adaptive one has no end."""
        if self.length is None:
            return 0
        if isinstance(self.length, Adaptive):
            return self.length.ceiling or _ENDLESS
        return self.length.length(mix(self._stream.seed, _LENGTHS), self.anchors)

    def begin_piece(self, piece: Anchor) -> None:
        """Before a piece of an anchor is evaluated: see that it can come now. The first one starts anew."""
        if piece.first:
            self.anchor_share, self.anchor_samples = 0.0, 0
        share = self.anchor_share + piece.weight
        if share > 1 + 1e-6 or (piece.last and share < 1 - 1e-6):
            raise RuntimeError(f"the pieces of an anchor make up {share:.0%} of it: give each once, in order")

    def end_piece(self, piece: Anchor, samples: int | None) -> None:
        """After it was evaluated. The last one ends the anchor."""
        self.anchor_share += piece.weight
        known = samples is not None and self.anchor_samples is not None
        self.anchor_samples = (self.anchor_samples or 0) + (samples or 0) if known else None
        self.count(samples, 1, 1.0)
        if piece.last:
            self.anchor_share, self.loop_length = 0.0, self._next_length()
            self.anchors += 1
            self.inner_step = -1

    def count(self, samples: int | None, evaluations: int, density: float) -> None:
        """Count queries. `samples` None means that nobody said how many: from then on the count is unknown, nan."""
        self.queries += math.nan if samples is None else samples * evaluations * density

    def done(self, inner_step: int) -> None:
        """An update of x was made."""
        self.inner_step = inner_step
        self.steps += 1
        self.longest = max(self.longest, inner_step + 1)

    def end_loop(self, small: Small) -> None:
        """Let an anchor come next, and the loader know."""
        self.loop_length = self.inner_step = -1
        small.end_loop()

    def start_anew(self) -> None:
        """After a divergence: v is worthless, and so is what came of an anchor."""
        self.inner_step, self.anchor_share = -1, 0.0

    def mean_length(self, inner_step: int) -> float:
        """Of a loop: as planned, or the longest seen by update `inner_step` of the present one."""
        if self.length is not None and math.isfinite(self.length.mean):
            return self.length.mean
        return max(inner_step + 1, self.longest)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FORM}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in (*self.FORM, "longest"):  # the latter lies with the measures, as in states of 0.1.0
            if name in state:
                setattr(self, name, state[name])


def _counted(name: str, doc: str) -> property:
    """A number that an optimizer's loop counter keeps."""
    return property(lambda self: getattr(self._loop, name), doc=doc)


class CountsLoops:
    """What can be asked of an optimizer with anchors."""

    _loop: LoopCounter
    steps = _counted("steps", "Updates done.")
    anchors = _counted("anchors", "Anchors done.")
    inner_step = _counted("inner_step", "The last update's place in its loop; 0: the anchor's, -1: an anchor is due.")
    inner_length = _counted("length", "How long inner loops are, where the optimizer counts by itself; else None.")
    loop_length = _counted("loop_length", "Of the loop under way, where the optimizer counts by itself.")
    anchor_share = _counted("anchor_share", "How much of an anchor in pieces has come, 0 outside of one.")
    anchor_samples = _counted("anchor_samples", "Of the last anchor, None if a step did not say.")
    gradient_queries = _counted("queries", "In the paper's accounting; nan if a step did not say how many samples.")

    def next_is_anchor(self, anchor: IsAnchor = None) -> bool:
        """Whether the next step is an anchor, given what will be passed to it as `anchor`."""
        return self._loop.next_is_anchor(anchor)
