"""`run` and `compare`: runs outside the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spidersilk.lab.commands.arguments import check_data_dir, check_folder
from spidersilk.lab.commands.output import console, finish, show_table
from spidersilk.lab.report import html
from spidersilk.lab.run import batch, methods
from spidersilk.lab.run.check import check_runs
from spidersilk.lab.run.config import SETTINGS, RunConfig, apply_settings, from_yaml
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.run.folder import RunFolder, Summary
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import find

EVALUATIONS = 40  # of each run of a comparison


@dataclass(frozen=True)
class How:
    """Where runs go, and how they are made."""

    out: Path
    seeds: int = 1
    jobs: int = 1
    resume: bool = False
    overwrite: bool = False


def config_of(
    task: str | None,
    optimizer: str | None,
    file: Path | None,
    settings: Sequence[str],
    name: str | None,
    flags: dict[str, bool],
    data_dir: Path | None,
) -> RunConfig:
    """The config that `run` was asked for: of a file, or of a task and an optimizer, with what else was given."""
    if (task is None) == (file is None):
        raise ValueError("give a task or a --config, one of the two")
    if file is not None and optimizer is not None:
        raise ValueError(f"--optimizer {optimizer}: {file} names the optimizer, so leave one of the two out")
    base = (
        from_yaml(file)
        if file is not None
        else RunConfig(str(task), find(str(task)).optimizer if optimizer is None else optimizer)
    )
    given = {key: value for key, value in flags.items() if value}
    given |= {} if name is None else {"name": SETTINGS["name"].parse("--name", name)}
    given |= {} if data_dir is None else {"data_dir": check_data_dir(data_dir)}
    config = replace(apply_settings(base, settings), **given)
    _refuse_ignored(config, [pair.partition("=")[0].strip() for pair in settings])
    return config


def _refuse_ignored(config: RunConfig, named: Sequence[str]) -> None:
    """A setting that the optimizer does not look at; several optimizers that are compared may share settings.

    The file of a run's folder has a value for each: the task's own is nobody's wish there, unless it is `named`.
    """
    untouched = RunConfig(config.task, config.optimizer, lr=config.lr)
    for name in methods.find(config.optimizer).ignores:
        made = [untouched] if name in named else [untouched, untouched.completed()]
        if hasattr(config, name) and getattr(config, name) not in [getattr(m, name) for m in made]:
            value = getattr(config, name)
            raise ValueError(f"{name} = {value!r} has no effect on {config.optimizer}: leave it out")
    if config.adaptive and config.completed().inner_steps != "auto":
        raise ValueError(f"adaptive = {config.adaptive!r} has no effect without inner_steps=auto: set that too")


def rivals(
    task: str, optimizers: str, budget: float, settings: Sequence[str], data_dir: Path | None
) -> list[RunConfig]:
    """The configs of a comparison."""
    budget = SETTINGS["budget"].check("--budget", budget)
    common = {"budget": budget, "eval_every": max(1e-6, budget / EVALUATIONS), "data_dir": check_data_dir(data_dir)}
    names = [name.strip() for name in optimizers.split(",")]
    return [apply_settings(RunConfig(task, name, **common), settings) for name in names]


def run(configs: list[RunConfig], how: How, title: str = "") -> None:
    """Check the configs, run them, print a table, and write a report: beside the runs, or into the folder of one."""
    if how.jobs > 1 and team().world > 1:
        raise ValueError(f"--jobs {how.jobs} under torchrun: its ranks train one run after the other, so leave it out")
    configs = batch.with_seeds(configs, how.seeds)
    check_folder("--out", how.out)
    over = [config.name for config in configs if team().from_first(lambda c=config: _look(c, how))]
    if over:
        console.print(f"taken over, as they have ended: {', '.join(over)}")
    check_runs(config for config in configs if config.name not in over)
    summaries = batch.run_all(
        configs, how.out, jobs=how.jobs, resume=how.resume, overwrite=how.overwrite, console=console
    )
    ended = [(config, summary) for config, summary in zip(configs, summaries, strict=True)]
    done = [(config, summary) for config, summary in ended if summary["status"] != "failed"]
    if done and team().writes:
        head = ["run", "status", "queries, N", "seconds", "train loss", "more at the end"]
        show_table("", head, [_cells(config, summary) for config, summary in done])
        folders = [how.out / config.name for config, _ in done]
        page = (how.out if title or len(configs) > 1 else folders[0]) / "report.html"
        curves = [load_run(folder) for folder in folders]
        sections = html.sections_of(curves)
        for verdict in (verdict for section in sections for verdict in section.verdicts):
            console.print(verdict.text())
        html.write(sections, page, title or configs[0].title(), command())
        console.print(f"{'folder' if len(folders) == 1 else 'folders'}: {', '.join(map(str, folders))}", soft_wrap=True)
        console.print(f"report: {page}", soft_wrap=True)
    finish((config.name, summary) for config, summary in ended)


def _look(config: RunConfig, how: How) -> bool:
    """Whether the run has ended; raises RunError if it may not begin."""
    return RunFolder(how.out / config.name).look(config.completed(), how.resume, how.overwrite) is not None


def _cells(config: RunConfig, summary: Summary) -> list[str]:
    last, shown = summary["last"], ("queries", "seconds", "train_loss")
    more = [f"{k} {v:.4g}" for k, v in last.items() if k not in (*shown, "samples", "updates", "v_norm")]
    more += [f"{k} {summary[k]:.4g}" for k in ("tokens_per_second", "peak_gib") if k in summary]
    cells = [f"{last[k]:.4g}" if k in last else "-" for k in shown]
    return [config.name, summary["status"], *cells, ", ".join(more)]
