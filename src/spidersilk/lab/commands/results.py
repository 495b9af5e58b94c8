"""From runs to files and reports: `collect`, `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spidersilk.lab.commands import app, console, options
from spidersilk.lab.report import html
from spidersilk.lab.run import collect
from spidersilk.lab.run.curve import load_runs
from spidersilk.lab.run.machine import command


@app.command("collect", epilog="Example: spidersilk collect runs/compare/* --to results/runs_mine.json")
def collect_command(
    runs: options.RunFolders, to: Annotated[Path, typer.Option("--to", help="the JSON file to write, or to add to")]
) -> None:
    """Pack runs into one small JSON file: settings, versions, machine, and curves of at most about 60 points."""
    packed = [collect.pack(curve) for curve in load_runs(runs) if curve.rows]
    console.print(f"collected: {collect.save(to, packed)}")


@app.command("report", epilog="Example: spidersilk report runs/compare/*")
def report_command(
    runs: options.RunFolders,
    to: Annotated[Path, typer.Option("--to", help="the page to write")] = Path("runs/report.html"),
    title: Annotated[str, typer.Option(help="its title")] = "Runs",
) -> None:
    """One HTML page for any set of runs."""
    console.print(f"report: {html.write(html.sections_of(load_runs(runs)), to, title, command())}")
