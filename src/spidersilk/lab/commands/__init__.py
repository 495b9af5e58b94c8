"""The commands of `spidersilk`, by what they do; this file has what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spidersilk.lab.run.folder import Summary

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Variance reduction with sparse gradients: run the paper's experiments, compare optimizers, read the report.",
)
console = Console()

TaskName = Annotated[str, typer.Argument(help="a task of `spidersilk list`")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="runs side by side, each in its own process")]
Resume = Annotated[bool, typer.Option("--resume", help="continue interrupted runs")]
Folder = Annotated[Path, typer.Option("--out", help="folder of the runs")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="folder of the data sets, before SPIDERSILK_DATA")]
Settings = Annotated[list[str] | None, typer.Option("--set", "-s", help="key=value, as often as needed")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="how many seeds, from 0 (or the config's) on")]
TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", help="seconds after which runs are saved and none is started")
]
RunFolders = Annotated[list[Path], typer.Argument(help="folders of runs")]


def finish(summaries: list[Summary]) -> None:
    """Exit with 1 if a run could not be done. A run that diverged was done."""
    if any(summary["status"] == "failed" for summary in summaries):
        raise typer.Exit(1)


def rich_table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    table = Table(*head, title=title or None)
    for row in rows:
        table.add_row(*row)
    return table
