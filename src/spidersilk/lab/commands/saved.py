"""`report` and `collect`: what is made of runs that are there."""

from __future__ import annotations

from pathlib import Path

from spidersilk.lab.commands.arguments import check_file, run_folders
from spidersilk.lab.commands.output import console
from spidersilk.lab.report import html
from spidersilk.lab.run.collect import pack, save
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.run.machine import command


def report(paths: list[Path], to: Path, title: str) -> None:
    """One HTML page for the runs."""
    check_file("--to", to)
    curves = [load_run(folder) for folder in run_folders(paths)]
    console.print(f"report: {html.write(html.sections_of(curves), to, title, command())}", soft_wrap=True)


def collect(paths: list[Path], to: Path) -> None:
    """One JSON file of the runs that have a curve; the others are named."""
    check_file("--to", to)
    folders = run_folders(paths)
    curves = {folder: load_run(folder) for folder in folders}
    empty = [str(folder) for folder, curve in curves.items() if not curve.rows]
    if len(empty) == len(folders):
        raise ValueError(f"{', '.join(empty)}: nothing was measured yet, so there is nothing to collect")
    path = save(to, [pack(curve) for curve in curves.values() if curve.rows])
    if empty:
        console.print(f"left out, as nothing was measured yet: {', '.join(empty)}", soft_wrap=True)
    console.print(f"collected: {path}", soft_wrap=True)
