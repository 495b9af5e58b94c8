"""What an experiment gives the runner. A task is one file in this folder, or a class registered with `register`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spidersilk.lab.data.files import DataError, File, files_like, locate, read
from spidersilk.loop.lengths import InnerLength
from spidersilk.loop.loader import AnchorLoader

State = dict[str, Any]
Options = dict[str, Any]


class Task(ABC):
    """Data, model, loss and evaluation.

    name: its name on the command line. options: the task's settings with their defaults. settings: values for
    `RunConfig`, the paper's for this task. A subclass sets `model`, `samples` and `train`, the training data as a
    tensor or a tuple of tensors, and defines `loss` and `evaluate`. It overrides `batches` and `size` if its batches
    are not rows of `train`.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    options: ClassVar[Options]
    settings: ClassVar[Options] = {}
    model: nn.Module
    samples: int  # N, by which queries are divided
    train: Tensor | tuple[Tensor, ...]
    data_name: str = ""  # what reports call the data

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        unknown = [key for key in options if key not in self.options]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no option of the task {self.name}{nearest(unknown[0], self.options)}")
        self.given = self.options | options
        self.data_dir, self.device = data_dir, device

    def chosen(self, key: str, known: Iterable[str]) -> str:
        """The option `key`, which must be one of `known`."""
        value = str(self.given[key])
        if value not in known:
            raise ValueError(f"{key} = {self.given[key]!r} is not known{nearest(value, known)}")
        return value

    @classmethod
    def files(cls, options: Options) -> list[File]:
        """The files that a run with these options reads: those in the folder that the option `data` names, if any."""
        return files_like(f"{options.get('data')}/*")

    @classmethod
    def missing_data(cls, options: Options, data_dir: Path | str | None) -> str | None:
        """Try to download what is missing; the reason if the data is not available, else None."""
        try:
            for file in cls.files(cls.options | options):
                if locate(file, data_dir) is None:
                    read(file, data_dir)
        except DataError as error:
            return str(error)
        return None

    def batches(self, anchor: int | None, small: int, inner: int | InnerLength, generator: torch.Generator) -> Any:
        """What yields (batch, is_anchor) without end and can be saved and resumed; `anchor` may be None for all."""
        return AnchorLoader(self.train, anchor, small, inner, loops=10**9, generator=generator)

    def size(self, batch: Any) -> int:
        return len(batch[0] if isinstance(batch, tuple | list) else batch)

    @abstractmethod
    def loss(self, batch: Any, point: str | None) -> Tensor:
        """The mean loss over the batch; `point` is "current" or "reference" inside a two-point step, else None."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """`train_loss`, and other metrics of the model as it is."""

    def stepped(self) -> None:  # noqa: B027
        """Called after each step: a stateful model commits its new state here."""

    def set_reference(self, reference: str | None) -> None:
        """Called once, with the optimizer's reference point ("previous", "anchor" or None), for stateful models."""
        self.reference = reference

    def state_dict(self) -> State:
        """What a resumed run needs besides model, optimizer and batches."""
        return {}

    def load_state_dict(self, state: State) -> None:  # noqa: B027
        """The counterpart of `state_dict`."""


_TASKS: dict[str, type[Task]] = {}


def register(task: type[Task]) -> type[Task]:
    """Add a task under its name; usable as a decorator."""
    _TASKS[task.name] = task
    return task


def all_tasks() -> dict[str, type[Task]]:
    """Every task by name: those of this folder, and those registered elsewhere."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_TASKS.items()))


def find(name: str) -> type[Task]:
    tasks = all_tasks()
    if name not in tasks:
        raise ValueError(f"there is no task {name!r}{nearest(name, tasks)}")
    return tasks[name]


def nearest(name: str, known: Iterable[str]) -> str:
    """ ": did you mean ...?" if a known name is similar, else the list of known names."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(map(repr, known))}"
