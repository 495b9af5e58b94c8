"""What an experiment gives the runner. A task is one file in this folder, or a class registered with `register`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from spidersilk.lab.data.files import DataError, File, locate, read
from spidersilk.loop.batches import Anchor, Small
from spidersilk.loop.lengths import InnerLength
from spidersilk.parallel.workers import Portion


class Batches(Protocol):
    """An endless supply of (batch, is_anchor) that can be stopped and resumed; AnchorLoader is one."""

    def __iter__(self) -> Iterator[tuple[Any, Anchor | Small | Portion | bool]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


class Task(ABC):
    """Data, model, loss, evaluation, and what counts as a sample.

    name: what the command line calls it. options: the task's own settings with their defaults. settings: those of the
    runner that the paper gives for this task (see `RunConfig`), and what "smoke" makes smaller.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    options: ClassVar[dict[str, Any]]
    settings: ClassVar[dict[str, Any]] = {}
    model: nn.Module
    samples: int
    """N: what queries are divided by."""

    def __init__(self, options: dict[str, Any], data_dir: Path | str | None, device: torch.device):
        unknown = [key for key in options if key not in self.options]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no option of the task {self.name}{nearest(unknown[0], self.options)}")
        self.given = self.options | options
        self.data_dir, self.device = data_dir, device

    @classmethod
    def files(cls, options: dict[str, Any]) -> list[File]:
        """The files that a run with these options reads; none for embedded data."""
        return []

    @classmethod
    def missing_data(cls, options: dict[str, Any], data_dir: Path | str | None) -> str | None:
        """Why the data cannot be had, after a try to download it; None if it is there."""
        try:
            for file in cls.files(cls.options | options):
                if locate(file, data_dir) is None:
                    read(file, data_dir)
        except DataError as error:
            return str(error)
        return None

    @abstractmethod
    def batches(self, anchor: int, small: int, inner: int | InnerLength, generator: torch.Generator) -> Batches:
        """The batches of a run."""

    @abstractmethod
    def loss(self, batch: Any, point: str | None) -> Tensor:
        """The mean loss over the batch; `point` is "current" or "reference" inside a two-point step, else None."""

    @abstractmethod
    def size(self, batch: Any) -> int:
        """How many samples the batch has."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """`train_loss`, and whatever else is worth a curve."""

    def stepped(self) -> None:  # noqa: B027
        """Called after each step: a model with a state of its own commits it here."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside model, optimizer and batches."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """The counterpart of `state_dict`."""


_TASKS: dict[str, type[Task]] = {}


def register(task: type[Task]) -> type[Task]:
    """Make a task known under its name; a decorator."""
    _TASKS[task.name] = task
    return task


def all_tasks() -> dict[str, type[Task]]:
    """Every task by name, those of this folder and those registered elsewhere."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_TASKS.items()))


def find(name: str) -> type[Task]:
    tasks = all_tasks()
    if name not in tasks:
        raise ValueError(f"there is no task {name!r}{nearest(name, tasks)}")
    return tasks[name]


def nearest(name: str, known: Any) -> str:
    """ ": did you mean ...?" where something is near, else the list of what there is."""
    close = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, known))}"
