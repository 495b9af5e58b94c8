"""The lab under torchrun: all ranks train, rank 0 writes. Without torchrun there is one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
        return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)

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
