"""`list`: the tasks and the optimizers, and what can be set."""

from __future__ import annotations

from typing import Any

from spidersilk.lab.commands.output import console, show_table
from spidersilk.lab.run.config import OWN_PLACE, SETTINGS, RunConfig
from spidersilk.lab.run.methods import METHODS
from spidersilk.lab.settings import Setting
from spidersilk.lab.tasks import all_tasks, find


def all_names() -> None:
    rows = [[name, task.about, ", ".join(task.options) or "-"] for name, task in all_tasks().items()]
    show_table("", ["task", "what it is", "options"], rows)
    show_table("", ["optimizer", "what it is"], [[name, method.about] for name, method in METHODS.items()])
    console.print("What can be --set, with ranges and defaults: spidersilk list TASK")


def one_task(name: str) -> None:
    """The options of a task and the settings of its runs, each with its range and its default."""
    task, settings = find(name), {key: s for key, s in SETTINGS.items() if key not in OWN_PLACE}
    console.print(task.about)
    head = ["--set", "may be", "default", "what it is"]
    options = [_row(key, setting, task.options[key]) for key, setting in task.option_settings().items()]
    if options:
        show_table("options of the task", head, options)
    blank = RunConfig(name)
    defaults = {key: task.settings.get(key, getattr(blank, key)) for key in settings}
    show_table("settings of a run", head, [_row(key, setting, defaults[key]) for key, setting in settings.items()])
    if task.rates:
        rows = [[method, f"{lr:g}"] for method, lr in task.rates.items()]
        show_table("step sizes (lr), where the optimizer has its own", ["optimizer", "lr"], rows)


def _row(key: str, setting: Setting, default: Any) -> list[str]:
    shown = "-" if default in (None, "", {}) else str(default).lower() if isinstance(default, bool) else f"{default}"
    return [key, setting.allowed, shown, setting.about]
