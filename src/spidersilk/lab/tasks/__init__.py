"""What an experiment gives the runner. A task is one file in this folder, or a class registered with `register`."""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spidersilk.lab.data.files import DataError, File, files_like, locate, read
from spidersilk.lab.settings import Setting, check_all, deduced, nearest
from spidersilk.loop.lengths import InnerLength
from spidersilk.loop.loader import AnchorLoader

State = dict[str, Any]
Options = dict[str, Any]
StartReport = Callable[[int, int, float], None]  # is told the step, how many there are, and the loss


class Task(ABC):
    """Data, model, loss and evaluation.

    name: its name on the command line. options: the task's settings with their defaults. allowed: what an option may
    be, where its default does not say it. settings: values for `RunConfig`, the paper's for this task. rates: the step
    size of each optimizer that needs one other than `settings["lr"]`. judged_by: the metric by which tuning compares.
    blocks: the name of the model's list of transformer blocks, if it has one (for rivals). A subclass sets `model`,
    `samples` and `train`, the training data as a tensor or a tuple of tensors, and defines `loss` and `evaluate`. It
    overrides `batches` and `size` if its batches are not rows of `train`, and sets `guess_loss` if it is known (else
    the loss before training takes its place). A model that starts from weights which take long to make defines `start`
    and `make_start`.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    optimizer: ClassVar[str] = "sparse-svrg"  # of a run that names none
    options: ClassVar[Options]
    allowed: ClassVar[dict[str, Setting]] = {}
    settings: ClassVar[Options] = {}
    rates: ClassVar[dict[str, float]] = {}
    judged_by: ClassVar[str] = "train_loss"
    blocks: ClassVar[str] = ""
    model: nn.Module
    samples: int  # N, by which queries are divided
    train: Tensor | tuple[Tensor, ...]
    data_name: str = ""  # what reports call the data
    remark: str = ""  # what users should know when a run begins
    guess_loss: float | None = None  # the training loss of the best constant prediction; a run should end below it

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        self.given = self.options | self.checked(options)
        self.data_dir, self.device = data_dir, device

    @classmethod
    def option_settings(cls) -> dict[str, Setting]:
        """What each option may be: as declared, else of the kind of its default."""
        return {key: cls.allowed.get(key, deduced(default)) for key, default in cls.options.items()}

    @classmethod
    def checked(cls, options: Options) -> Options:
        """The options, each as it is used; ValueError for one that is unknown or out of its range."""
        return check_all(options, cls.option_settings(), f"is no option of the task {cls.name}")

    @classmethod
    def completed_options(cls, options: Options, data_dir: Path | str | None) -> Options:
        """With the value of each option that depends on the data that is there."""
        return options

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

    def start(self) -> State | None:
        """All that the start of the model depends on, as plain values, if it is one that is made once and kept."""
        return None

    def make_start(self, report: StartReport) -> State:
        """The start, as `self.model` loads it. It draws no numbers from torch's global generator."""
        raise TypeError(f"{type(self).__name__} has a start that is kept, so it needs a make_start")

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

    def facts(self, last: dict[str, float]) -> dict[str, Any]:
        """What the summary of a run says besides; `last` is the last row of its metrics."""
        return {}

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


def entropy_of_shares(labels: Tensor) -> float:
    """The loss, in nats, of always predicting the frequencies of the labels."""
    shares = torch.bincount(labels.flatten().long()).double() / labels.numel()
    return float(torch.special.entr(shares).sum())
