"""The settings of a run: a dataclass that reads and writes YAML. Each value is checked when a config is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from spidersilk.lab.run import methods
from spidersilk.lab.settings import (
    Count,
    Fields,
    FileName,
    Flag,
    Number,
    Setting,
    Text,
    Whole,
    check_all,
    nearest,
)  # fmt: skip
from spidersilk.lab.tasks import find
from spidersilk.lab.yaml_text import load_mapping, write_yaml
from spidersilk.loop.lengths import Adaptive


class Device(Text):
    @property
    def allowed(self) -> str:
        return "auto, cpu, cuda or cuda:0, cuda:1 ..."

    def _accept(self, name: str, value: Any) -> Any:
        value = super()._accept(name, value)
        try:
            torch.device("cpu" if value == "auto" else value)
        except RuntimeError:
            raise self.refusal(name, value) from None
        return value


ADAPTIVE: Mapping[str, Setting] = {
    "fraction": Number(above=0, high=1, about="the share of v that may be noise"),
    "confidence": Number(low=0, about="in standard errors"),
    "floor": Whole(low=1, about="the shortest loop, in updates"),
    "ceiling": Whole(low=1, optional=True, about="the longest loop, in updates"),
}
SETTINGS: Mapping[str, Setting] = {
    "task": Text(about="a task of `spidersilk list`"),
    "optimizer": Text(about="an optimizer of `spidersilk list`"),
    "name": FileName(about="the folder's name"),
    "seed": Whole(low=0, about="of the model's start, the batches and the selection"),
    "options": Fields(about="options of the task", example="{data: digits}"),
    "budget": Number(low=1e-6, high=10**9, about="gradient queries at which the run ends, in N"),
    "steps": Whole(low=1, optional=True, about="updates at which the run ends, in place of budget"),
    "eval_every": Number(low=1e-6, high=10**9, about="gradient queries between evaluations, in N"),
    "evaluations": Whole(low=1, optional=True, about="how many, evenly over the run, in place of eval_every"),
    "lr": Number(above=0, optional=True, about="the step size"),
    "arguments": Fields(example="{weight_decay: 0.1}", about="what else the optimizer takes"),
    "schedule": Text(choices=("linear", "warm-up", "constant"), optional=True,
                     about="linear: the step size falls to 0 at the end; warm-up: and rises over the first tenth"),
    "lr_milestones": Fields(key=Number(low=0), value=Number(low=0), example="{10: 0.01}",
                            about="N from which on the step size is another"),
    "inner_lr_end": Number(low=0, optional=True, about="where the step size ends inside each inner loop, on a line"),
    "anchor_batch_size": Whole(low=1, optional=True, about="B, samples of an anchor"),
    "batch_size": Whole(low=1, optional=True, about="b, samples of a small batch"),
    "inner_steps": Whole(low=1, words=("auto", "theorem-2"), optional=True,
                         about="m, updates of an inner loop; theorem-2 is B d / (b k)"),
    "lengths": Text(choices=("fixed", "geometric"), about="of inner loops: each m, or geometric with mean m (theory)"),
    "adaptive": Fields(fields=ADAPTIVE, example="{fraction: 0.9}", about="of inner_steps=auto"),
    "k1": Count(optional=True, about="top coordinates"),
    "k2": Count(optional=True, about="random coordinates"),
    "memory_decay": Number(low=0, high=1, about="the weight of the newest |v| in M"),
    "memory_reset": Flag(about="restart M from |v| at each anchor (Section 2); else it is carried over (Algorithm 1)"),
    "scaling": Text(choices=("unbiased", "none", "refresh"), optional=True,
                    about="of the random part: rescaled, as it is, or as it is and kept until it is selected again"),
    "per_tensor": Flag(about="select k1 and k2 in each tensor apart"),
    "groups": Text(choices=("rows", "columns"), optional=True, about="select whole rows or columns"),
    "output": Text(choices=("last", "uniform"),
                   about="the point to evaluate: the last, or the end of a loop, uniformly chosen (x_out, theory)"),
    "track_memory": Flag(about="keep M for a dense method too (Table 1 needs its entropy)"),
    "measures": Flag(about="log captured energy, noise of v and variance of rtop"),
    "max_norm": Number(above=0, optional=True, about="the largest |v|"),
    "device": Device(about="where to train"),
    "bf16": Flag(about="autocast to bfloat16"),
    "compile": Flag(about="compile the model"),
    "tensorboard": Flag(about="write TensorBoard's files too"),
    "checkpoint_every": Number(low=0, about="seconds between checkpoints"),
    "data_dir": Text(optional=True, about="folder of the data sets"),
    "label": Text(longest=200, about="what reports call the run"),
}  # fmt: skip
WARM_UP = 0.1  # of a run
OWN_PLACE = ("task", "optimizer", "options")  # on the command line


@dataclass(frozen=True)
class RunConfig:
    """One run; `SETTINGS` says what each value means and may be. What is None comes from the optimizer or the task."""

    task: str
    optimizer: str = "sparse-svrg"
    name: str = ""
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    budget: float = 2.0
    steps: int | None = None
    eval_every: float = 0.1
    evaluations: int | None = None
    lr: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    schedule: str | None = None
    lr_milestones: dict[float, float] = field(default_factory=dict)
    inner_lr_end: float | None = None
    anchor_batch_size: int | None = None
    batch_size: int | None = None
    inner_steps: int | str | None = None
    lengths: str = "fixed"
    adaptive: dict[str, Any] = field(default_factory=dict)
    k1: float | int | None = None
    k2: float | int | None = None
    memory_decay: float = 0.5
    memory_reset: bool = False
    scaling: str | None = None
    per_tensor: bool = False
    groups: str | None = None
    output: str = "last"
    track_memory: bool = False
    measures: bool = False
    max_norm: float | None = None
    device: str = "auto"
    bf16: bool = False
    compile: bool = False
    tensorboard: bool = False
    checkpoint_every: float = 60.0
    data_dir: str | None = None
    label: str = ""

    def __post_init__(self) -> None:
        checked = check_all(vars(self), SETTINGS, "is no setting of a run")
        checked["arguments"] = methods.check_arguments(self.optimizer, checked["arguments"])
        checked["options"] = find(self.task).checked(self.options)
        vars(self).update(checked)
        Adaptive(**self.adaptive)
        if self.k1 == 0 and self.k2 == 0:
            raise ValueError("k1 + k2 = 0 selects nothing: raise k1 or k2")
        if self.steps is not None and self.budget != RunConfig.budget:
            raise ValueError(f"steps = {self.steps} and budget = {self.budget} both end the run: give one of them")

    def completed(self) -> RunConfig:
        """With each value that is None taken from the optimizer, else from the task.

        A step size other than that of the task's settings is constant inside a loop.
        """
        task, method = find(self.task), methods.find(self.optimizer)
        defaults = task.settings | method.settings
        rate = task.rates.get(self.optimizer, task.rates.get(method.like)) if self.lr is None else self.lr
        if rate is not None:
            defaults = defaults | {"lr": rate}
            defaults |= {"inner_lr_end": rate} if defaults.get("inner_lr_end") is not None else {}
        made = replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})
        for name in ("lr", "batch_size"):
            if getattr(made, name) is None:
                raise ValueError(f"{name} has no value, and the task {task.name} has no default for it: set {name}")
        for name in ("lr_milestones", "inner_lr_end"):
            if made.schedule in ("linear", "warm-up") and (value := getattr(made, name)):
                given = f"schedule = {made.schedule!r}"
                raise ValueError(f"{name} = {value!r} has no effect with {given}: set schedule=constant")
        if made.lengths == "geometric" and made.inner_steps == "auto":
            raise ValueError("lengths = 'geometric' has no effect with inner_steps = 'auto': give inner_steps a number")
        arguments = {**method.written, **made.arguments}
        return replace(made, arguments=arguments, options=task.completed_options(made.options, made.data_dir))

    def lr_at(self, epochs: float, share: float) -> float | None:
        """The step size after so many epochs, a share of the run; None where it is not set anew."""
        if self.schedule == "linear" and self.lr is not None:
            return self.lr * max(0.0, 1 - share)
        if self.schedule == "warm-up" and self.lr is not None:
            rising = 0.1 + 0.9 * share / WARM_UP  # from a tenth of it
            return self.lr * max(0.0, min(rising, (1 - share) / (1 - WARM_UP)))
        due = [epoch for epoch in self.lr_milestones if epochs >= epoch]
        return self.lr_milestones[max(due)] if due else None

    def evaluated_at(self, epochs: float, share: float) -> tuple[float, float]:
        """Where a run is, and how far from one evaluation to the next: shares of the run, or queries over N."""
        count = self.evaluations
        return (share + 1e-9, 1 / count) if count else (epochs + 1e-9, self.eval_every)

    def title(self) -> str:
        return self.label or self.optimizer

    def to_yaml(self) -> str:
        return write_yaml(asdict(self))


def from_dict(values: Mapping[Any, Any]) -> RunConfig:
    check_all(values, dict.fromkeys(SETTINGS, Setting()), "is no setting of a run")
    if "task" not in values:
        raise ValueError("task has no value: give one of `spidersilk list`")
    milestones = values.get("lr_milestones")
    if isinstance(milestones, Mapping):  # JSON turns keys into text
        values = {**values, "lr_milestones": {_number(at): lr for at, lr in milestones.items()}}
    return RunConfig(**values)


def _number(key: Any) -> Any:
    try:
        return float(key) if isinstance(key, str) else key
    except ValueError:
        return key


def from_yaml(path: Path) -> RunConfig:
    values = load_mapping(path)
    try:
        return from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def apply_settings(config: RunConfig, pairs: Sequence[str]) -> RunConfig:
    """Set `key=value` pairs: settings of the run by name, options of the task otherwise."""
    run = {name: setting for name, setting in SETTINGS.items() if name not in OWN_PLACE}
    options = find(config.task).option_settings()
    values: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        key = key.strip()
        if not sign or not key:
            raise ValueError(f"--set {pair!r}: write it as key=value")
        if key in OWN_PLACE:
            raise ValueError(f"--set {pair!r}: {key} has its own place, as in `run TASK --optimizer NAME --set data=x`")
        if key in values:
            raise ValueError(f"--set {pair!r}: {key} was set before: set it once")
        known = options | run
        if key not in known:
            raise ValueError(f"{key!r} is no setting of {config.task}{nearest(key, known)}")
        values[key] = known[key].parse(key, text)
    own = {key: value for key, value in values.items() if key in run}
    rest = {key: value for key, value in values.items() if key not in run}
    return replace(config, **own, options=config.options | rest)
