"""Refuse what cannot be run, before anything is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from spidersilk.lab.data.files import DataError
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.errors import RunError
from spidersilk.lab.run.runner import Run
from spidersilk.lab.run.team import team


def check_runs(configs: Iterable[RunConfig]) -> None:
    """Names that come twice, devices, folders and packages that are not there, and all that only a task, an optimizer
    or a loader can refuse: each is built once, on the CPU."""
    configs = list(configs)
    for name, times in Counter(config.name for config in configs).items():
        if times > 1:
            raise ValueError(f"{times} runs would have the name {name!r}: name each optimizer once, and set no `name`")
    different = []
    for config in configs:
        team().device(config.device)
        if config.data_dir is not None and not Path(config.data_dir).is_dir():
            raise ValueError(f"data_dir = {config.data_dir!r}: there is no such folder")
        if config.tensorboard and find_spec("tensorboard") is None:
            raise ValueError("tensorboard is not installed: pip install 'spidersilk[lab]'")
        same = replace(config, seed=0, name="", label="", lr_milestones={}, device="cpu")
        different += [same] if same not in different else []
    if team().world > 1:
        return  # the ranks build it together, in the run
    for config in different:
        try:
            Run(config.completed(), Path())._build()
        except (DataError, RunError):
            raise
        except (RuntimeError, MemoryError) as error:  # torch's, for want of memory and the like
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"{config.task}, {config.optimizer}: it cannot be built: {reason[0]}") from error
