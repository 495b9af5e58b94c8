"""Data parallel training on shared coordinates.

M and the random stream are the same on every rank, so the selection is too, and a small step all-reduces k values and
no indices. An anchor all-reduces all of v. docs/distributed.md says how to use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from spidersilk.operator.random_stream import fresh_seed
from spidersilk.parallel.agreement import Fact, compare
from spidersilk.parallel.all_reduce import SURE_SIGNS, all_reduce, answering, begin_all_reduce
from spidersilk.parallel.ddp_wrappers import Wrappers, refuse_sharding

if dist.is_available():  # before there is a group: defaults of its functions hold the one they find, see `leave`
    import torch.distributed.nn

Group: TypeAlias = "dist.ProcessGroup | Literal['world'] | None"
BUCKET = 1 << 23  # entries of v that go in one all-reduce of an anchor


@dataclass
class Traffic:
    """What this rank has handed over to be sent, in bytes of payload; `world` is the number of ranks.

    anchors: all of v at each anchor. small_steps: the k values of each small step, or d of a dense method. control: the
    few integers of each check that ranks agree, and what adaptive loops and measures exchange.
    """

    world: int = 1
    anchors: int = 0
    small_steps: int = 0
    control: int = 0

    def ring(self, payload: int) -> float:
        """What a rank sends in a ring all-reduce of `payload` bytes: 2 (n - 1) / n of it. It receives as much."""
        return 2 * (self.world - 1) / self.world * payload

    @property
    def ring_bytes(self) -> float:
        """Of all that was handed over, as rings send it."""
        return self.ring(self.anchors + self.small_steps + self.control)


class Share(NamedTuple):
    """How much this rank's gradient counts at a step, and how many samples the step has on all ranks together."""

    weight: float
    samples: int | None
    even: bool
    """Whether all ranks' gradients count the same."""


@dataclass(frozen=True)
class Portion:
    """This rank's part of a batch that is split over ranks. It is false: by itself it stands for a small batch.

    `samples` of the batch's `total` are here, 0 where it has fewer samples than there are ranks: the rank then gets one
    that counts nothing. `even`: all ranks have the same number, by a rule that each of them knows.
    """

    samples: int
    total: int
    even: bool = False

    @property
    def portion(self) -> Portion:
        """What it is of itself: all that loaders yield has a portion."""
        return self

    def __bool__(self) -> bool:
        return False


class Alone:
    """One process: nothing is sent, nothing can differ."""

    rank, world = 0, 1

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.quiet: AbstractContextManager[object] = nullcontext()
        """In it no wrapper sends anything: for a small step's evaluations."""

    def seed(self, generator: torch.Generator | None) -> int:
        """That of `generator`, which `verify` compares; rank 0's where none is given."""
        return fresh_seed(generator)

    def attach(self, params: Sequence[Tensor]) -> None:
        """Look at what is around the parameters, before the first step."""
        if dist.is_available() and dist.is_initialized():
            refuse_sharding(params)

    def share(self, portion: Portion | None, samples: int | None) -> Share:
        if portion is not None and portion.samples != portion.total:
            raise ValueError(
                f"the loader gives this process {portion.samples} of a batch's {portion.total} samples, and the "
                "optimizer has no process_group, so ranks would drift apart: give it the loader's"
            )
        return Share(1.0, samples, True)

    def at_anchor(self, evaluate: Callable[[], Any], whole: bool, share: Share) -> tuple[Any, float]:
        """Evaluate an anchor or a piece of one; the loss, and what this rank's gradient is to be multiplied with."""
        return evaluate(), 1.0

    def reduce_anchor(self, v: Sequence[Tensor]) -> None:
        """v := the sum over ranks, in place."""

    def average(self, values: Sequence[Tensor], share: Share) -> None:
        """The values of a small step := their mean over ranks, each by its share, in place."""

    def begin_average(self, values: Tensor, share: Share) -> Callable[[], None]:
        """As `average`, of one tensor; it is done when what comes back has been called."""
        return lambda: None

    def mean(self, value: Tensor | float, share: Share) -> Tensor | float:
        """A number of this rank's batch -> that of all ranks' batches."""
        return value

    def verify(self, facts: Callable[[], Sequence[Fact]]) -> None:
        """Raise DisagreementError on every rank if one differs."""

    def check_can_pass(self, anchor_share: float) -> None:
        """Refuse to save or load what is not the same on all ranks."""


class Workers(Alone):
    """This process among those of a process group."""

    def __init__(self, group: dist.ProcessGroup):
        super().__init__()
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.traffic.world = self.world
        on_cpu = "cpu:" in str(dist.get_backend_config(group))
        self.device = torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())
        self._wrappers: Wrappers | None = None
        self._averaged = False  # whether v of the anchor under way came averaged from DistributedDataParallel

    def seed(self, generator: torch.Generator | None) -> int:
        seed = fresh_seed(generator)
        if generator is not None:
            return seed
        word = torch.tensor([seed], dtype=torch.int64, device=self.device)
        with answering(self.group, "the exchange of seeds"):
            dist.broadcast(word, group=self.group, group_src=0)
        self.traffic.control += 8
        return int(word)

    def attach(self, params: Sequence[Tensor]) -> None:
        if self._wrappers is None:
            self._wrappers = self.quiet = Wrappers(params, self.group)

    def share(self, portion: Portion | None, samples: int | None) -> Share:
        if portion is None:
            return Share(1 / self.world, None if samples is None else samples * self.world, True)
        return Share(portion.samples / portion.total, None if samples is None else portion.total, portion.even)

    def at_anchor(self, evaluate: Callable[[], Any], whole: bool, share: Share) -> tuple[Any, float]:
        assert self._wrappers is not None
        self._averaged = False
        # Of an anchor in pieces, or of unequal shares, the sum over ranks is taken once, at the end.
        if self._wrappers.reduces and whole and share.even:
            self._wrappers.watch()
            with answering(self.group, "the all-reduce of an anchor by DistributedDataParallel", SURE_SIGNS):
                loss = evaluate()
            self._averaged = self._wrappers.was_called()
            return loss, 1.0 if self._averaged else share.weight
        with self._wrappers:
            return evaluate(), share.weight

    def reduce_anchor(self, v: Sequence[Tensor]) -> None:
        self.traffic.anchors += sum(part.numel() * part.element_size() for part in v)
        if not self._averaged:
            buckets = [bucket for part in v for bucket in part.split(BUCKET)]
            all_reduce(buckets, self.group, "the all-reduce of an anchor")

    def average(self, values: Sequence[Tensor], share: Share) -> None:
        values = [x for x in values if x.numel()]
        for x in values:
            x.mul_(share.weight)
        self.traffic.small_steps += sum(x.numel() * x.element_size() for x in values)
        all_reduce(values, self.group, "the all-reduce of a small step")

    def begin_average(self, values: Tensor, share: Share) -> Callable[[], None]:
        self.traffic.small_steps += values.numel() * values.element_size()
        return begin_all_reduce(values.mul_(share.weight), self.group, "the all-reduce of gradients")

    def mean(self, value: Tensor | float, share: Share) -> Tensor:
        number = torch.as_tensor(value, dtype=torch.float64).to(self.device).reshape(1) * share.weight
        self.traffic.control += 8
        all_reduce([number], self.group, "the exchange of losses")
        return number.reshape(())

    def verify(self, facts: Callable[[], Sequence[Fact]]) -> None:
        mine = facts()
        words = torch.stack([torch.as_tensor(fact.value, dtype=torch.int64).to(self.device) for fact in mine])
        answers = [torch.empty_like(words) for _ in range(self.world)]
        with answering(self.group, "the check that ranks agree"):
            dist.all_gather(answers, words, group=self.group)
        self.traffic.control += words.numel() * 8
        compare(mine, torch.stack(answers).tolist())

    def check_can_pass(self, anchor_share: float) -> None:
        if anchor_share and self.world > 1:
            raise RuntimeError(
                f"a state after {anchor_share:.0%} of an anchor: its pieces are summed over ranks at the last one, so "
                "it is neither saved nor loaded on several; save after that, where optimizer.anchor_share is 0"
            )


def as_workers(process_group: Group) -> Alone:
    """What `process_group=` means: None is this process alone, "world" all processes."""
    if process_group is None:
        return Alone()
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "process_group is given and torch.distributed is not initialised: call init_process_group() first, in a "
            "program started by torchrun"
        )
    group = dist.group.WORLD if isinstance(process_group, str) and process_group == "world" else process_group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("process_group: this rank is not a member of it, so it must not make the optimizer or loader")
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"process_group = {process_group!r} must be a ProcessGroup, 'world', or None")
    return Workers(group)
