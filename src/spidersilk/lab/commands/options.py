"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TaskName = Annotated[str, typer.Argument(help="a task of `spidersilk list`")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="runs side by side, each in its own process")]
Resume = Annotated[bool, typer.Option("--resume", help="continue interrupted runs")]
Folder = Annotated[Path, typer.Option("--out", help="folder of the runs")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="folder of the data sets, before SPIDERSILK_DATA")]
Settings = Annotated[list[str] | None, typer.Option("--set", "-s", help="key=value, as often as needed")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="how many seeds, from 0 (or the config's) on")]
TimeLimit = Annotated[float | None, typer.Option("--time-limit", help="seconds after which runs are saved and ended")]
RunFolders = Annotated[list[Path], typer.Argument(help="folders of runs")]
