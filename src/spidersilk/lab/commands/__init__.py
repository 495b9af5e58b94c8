"""The commands of `spidersilk`, by what they do; this file has what they share."""

from __future__ import annotations

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


def finish(summaries: list[Summary]) -> None:
    """Exit with 1 if a run could not be done. A run that diverged was done."""
    if any(summary["status"] == "failed" for summary in summaries):
        raise typer.Exit(1)


def rich_table(title: str, head: list[str], rows: list[list[str]]) -> Table:
    table = Table(*head, title=title or None)
    for row in rows:
        table.add_row(*row)
    return table
