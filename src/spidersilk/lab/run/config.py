"""The settings of a run: a dataclass that reads and writes YAML, and rejects unknown keys."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from spidersilk.checks import check_choice
from spidersilk.lab.run import methods
from spidersilk.lab.tasks import find, nearest


@dataclass(frozen=True)
class RunConfig:
    """One run. A number that is None comes from the task's settings, which are the paper's.

    budget and eval_every are in queries over N. inner_steps may be "theorem-2", m = B d / (b k), or "auto", for which
    `adaptive` may give fraction, confidence, floor and ceiling. lr_milestones changes the step size by epoch:
    {10: 0.01} sets 0.01 from epoch 10 on. With inner_lr_end the step size falls linearly inside each inner loop.
    With groups="rows" a sparse method selects whole rows. track_memory keeps M for a dense method (Table 1 needs its
    entropy). measures logs captured energy, noise of v and variance of rtop. checkpoint_every is in seconds.
    """

    task: str
    optimizer: str = "sparse-svrg"
    name: str = ""
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    budget: float = 2.0
    eval_every: float = 0.1
    lr: float | None = None
    lr_milestones: dict[float, float] = field(default_factory=dict)
    inner_lr_end: float | None = None
    anchor_batch_size: int | None = None
    batch_size: int | None = None
    inner_steps: int | str | None = None
    adaptive: dict[str, Any] = field(default_factory=dict)
    k1: float | int | None = None
    k2: float | int | None = None
    memory_decay: float = 0.5
    groups: str | None = None
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
        find(self.task)
        methods.find(self.optimizer)
        check_choice("groups", self.groups, ("rows", None))
        for name in ("budget", "eval_every"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be positive: it is in queries over N")
        for name in ("lr", "inner_lr_end", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} = {value} must be at least 0")

    def completed(self) -> RunConfig:
        """With each value that is None taken from the optimizer's settings, else from the task's."""
        defaults = find(self.task).settings | methods.find(self.optimizer).settings
        return replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})

    def title(self) -> str:
        return self.label or self.optimizer

    def to_yaml(self) -> str:
        return yaml.safe_dump(asdict(self), sort_keys=False)


def from_dict(values: dict[str, Any]) -> RunConfig:
    known = [f.name for f in fields(RunConfig)]
    for key in values:
        if key not in known:
            raise ValueError(f"{key!r} is no setting of a run{nearest(str(key), known)}")
    if values.get("lr_milestones"):  # JSON turns keys into text
        values = values | {"lr_milestones": {float(at): lr for at, lr in values["lr_milestones"].items()}}
    return RunConfig(**values)


def from_yaml(path: Path) -> RunConfig:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: not a readable YAML file ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a mapping of settings to values")
    return from_dict(values)


def apply_settings(config: RunConfig, pairs: list[str]) -> RunConfig:
    """Set `key=value` pairs: settings of the run by name, options of the task otherwise. Values are read as YAML."""
    known = {f.name for f in fields(RunConfig)} - {"task", "optimizer", "options"}
    task = find(config.task)
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ValueError(f"--set {pair}: write it as key=value")
        value = yaml.safe_load(text)
        if key in known:
            config = replace(config, **{key: value})
        elif key in task.options:
            config = replace(config, options=config.options | {key: value})
        else:
            raise ValueError(f"{key!r} is no setting of {config.task}{nearest(key, [*known, *task.options])}")
    return config
