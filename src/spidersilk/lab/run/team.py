"""The lab under torchrun: all ranks train, rank 0 writes. Without torchrun there is one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from spidersilk.lab.run.errors import RunError
from spidersilk.loop.loader import AnchorLoader
from spidersilk.parallel import launch
from spidersilk.parallel.all_reduce import answering
from spidersilk.parallel.workers import Workers, as_workers


@cache
def team() -> Team:
    """The ranks that train together, this process included; the first call joins the process group."""
    return Team()


class Team:
    def __init__(self) -> None:
        self.group: Any = None
        if dist.is_available() and dist.is_torchelastic_launched():
            self.rank_device = launch.join()
            self.group = dist.group.WORLD
        self.workers = as_workers(self.group)
        self.world, self.writes = self.workers.world, self.workers.rank == 0

    def device(self, wanted: str) -> torch.device:
        """A GPU for each rank of a machine."""
        if self.group is not None and wanted in ("auto", self.rank_device.type):
            return self.rank_device
        if self.group is not None:
            raise ValueError(f"device = {wanted!r} under torchrun: its ranks have {self.rank_device}, so leave it out")
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device = {wanted!r}: the lab trains on cpu and cuda, so give one of them")
        count = torch.cuda.device_count()
        if device.type == "cuda" and (device.index or 0) >= count:
            raise ValueError(f"device = {wanted!r}: torch sees {count} GPUs here, so give cpu, or one that there is")
        return device

    def from_first(self, do: Callable[[], Any]) -> Any:
        """Call `do` on rank 0 and return its result on all ranks; what it raises is raised on all."""
        if not isinstance(self.workers, Workers):
            return do()
        message: list[Any] = [None]
        if self.writes:
            try:
                message = [do()]
            except Exception as error:
                message = [error]
        with answering(self.workers.group, "the start or the end of a run"):
            dist.broadcast_object_list(message, group=self.group, group_src=0)
        if isinstance(message[0], Exception):
            raise message[0]
        return message[0]

    def on_all(self, do: Callable[[], None]) -> None:
        """Call `do` on every rank; what it raises on one is raised on all, so that none waits for one that ended."""
        if not isinstance(self.workers, Workers):
            do()
            return
        failure: Exception | None = None
        try:
            do()
        except Exception as error:
            failure = error
        reasons: list[Any] = [None] * self.world
        with answering(self.workers.group, "the start of a run"):
            dist.all_gather_object(reasons, failure and (str(failure) or type(failure).__name__), group=self.group)
        if failure is not None:
            raise failure
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise RunError(f"rank {rank} of {self.world}: {reason}")

    def spread(self, model: nn.Module) -> None:
        """Give all ranks the weights of rank 0, whose machine may have made another start."""
        if isinstance(self.workers, Workers):
            with answering(self.workers.group, "the start of a run"):
                for p in model.parameters():
                    dist.broadcast(p.data, group=self.group, group_src=0)

    def split(self, batches: object, task: str) -> None:
        """Each rank takes its part of every batch."""
        if self.world == 1:
            return
        if not isinstance(batches, AnchorLoader):
            raise ValueError(f"the task {task!r} cannot be split over ranks, as its batches are in order: run it alone")
        batches.split_over(self.group)

    def total(self, is_anchor: object, size: int) -> int:
        """The samples of a batch on all ranks."""
        portion = getattr(is_anchor, "portion", None)
        return size if portion is None else portion.total

    def average(self, params: Iterable[Tensor], is_anchor: object, size: int) -> None:
        """Average the gradients of a plain optimizer over ranks."""
        if isinstance(self.workers, Workers):
            gradients = [p.grad for p in params if p.grad is not None]
            self.workers.average(gradients, self.workers.share(getattr(is_anchor, "portion", None), size))


def check_command() -> None:
    """Refuse commands that several processes would run at once in one folder."""
    if team().world > 1 and sys.argv[1:2] != ["run"]:
        raise ValueError("under torchrun there is `spidersilk run` alone: start other commands without it")


def leave() -> None:
    if team.cache_info().currsize and team().group is not None:
        team.cache_clear()  # it refers to the group
        launch.leave()
