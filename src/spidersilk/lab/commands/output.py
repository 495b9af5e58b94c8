"""What the commands print: tables that fit the terminal, and how the runs ended."""

from __future__ import annotations

from collections.abc import Container, Iterable

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from spidersilk.lab.messages import error_line
from spidersilk.lab.report.cells import are_numbers
from spidersilk.lab.run.folder import Summary

console = Console(highlight=False)
GAP = 3  # columns of the terminal between those of a table
TEXT = 24  # a column of text has at least this width before it wraps


def finish(ended: Iterable[tuple[str, Summary]], good: Container[str] = ("finished",)) -> None:
    """Say which runs, by name, have another status than those in `good`, a line for each reason, and exit with 1."""
    names: dict[str, list[str]] = {}
    for name, summary in ended:
        if summary["status"] not in good:
            names.setdefault(f"{summary['status']}: {summary['reason']}".removesuffix(": "), []).append(name)
    for reason, runs in names.items():
        error_line(f"{', '.join(runs)}: {reason}")
    if names:
        raise typer.Exit(1)


def show_table(title: str, head: list[str], rows: list[list[str]], to: Console = console) -> None:
    """Print a table. Columns for which the terminal is too narrow follow below, with the first column again."""
    columns = [[label, *(row[i] for row in rows)] for i, label in enumerate(head)]
    first, room, parts = _need(columns[0], 999), to.width, [[0]]
    for i, column in enumerate(columns[1:], 1):
        used = first + GAP + sum(_need(columns[j]) + GAP for j in parts[-1][1:])
        if len(parts[-1]) > 1 and used + _need(column) + GAP > room:
            parts.append([0])
        parts[-1].append(i)
    if title:
        to.print(title)
    for part in parts:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0), pad_edge=False)
        for i in part:
            numbers = i > 0 and are_numbers(columns[i][1:])
            side, whole = "right" if numbers else "left", i == 0 and first < room
            table.add_column(head[i], justify=side, overflow="fold", no_wrap=whole, min_width=_word(columns[i]))
        for row in rows:
            table.add_row(*(row[i] for i in part))
        to.print(table)
        to.print()


def _need(column: list[str], most: int = TEXT) -> int:
    """The width that a column needs: that of its longest word, and of its longest cell up to `most`."""
    return max(_word(column), min(most, max((len(cell) for cell in column[1:]), default=0)))


def _word(column: list[str]) -> int:
    return max(len(word) for cell in column for word in (cell.split() or [""]))
