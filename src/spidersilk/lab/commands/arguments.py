"""Arguments that are no settings of a run, paths above all: each is looked at before any work is done."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

WRITTEN = ("report.html", "figure-*.png")  # by the lab, beside runs


def check_folder(option: str, path: Path) -> None:
    """Refuse a folder to write to that is a file, or below one, or that may not be written to."""
    nearest = path
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise ValueError(f"{option} {path}: {nearest} is not a folder: give another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{option} {path}: {nearest} may not be written to: give another")


def check_file(option: str, path: Path) -> None:
    """Refuse a file to write that is a folder, or whose folder cannot be."""
    if path.is_dir() or not path.name:
        raise ValueError(f"{option} {path}: it is a folder: give the name of a file")
    check_folder(option, path.parent)


def check_data_dir(path: Path | None) -> str | None:
    """The folder as text, as a config has it."""
    if path is not None and not path.is_dir():
        raise ValueError(f"--data-dir {path}: there is no such folder")
    return None if path is None else str(path)


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """The folders of runs among the paths and directly inside them; what else is named is refused."""
    found: list[Path] = []
    for path in paths:
        if path.is_file() and any(path.match(pattern) for pattern in WRITTEN):
            continue
        if not path.is_dir():
            raise ValueError(f"{path}: {'a file, not a folder' if path.exists() else 'there is no such folder'}")
        inside = [path] if is_run(path) else sorted(folder for folder in path.iterdir() if is_run(folder))
        if not inside:
            raise ValueError(f"{path}: neither a run (it has no config.yaml) nor a folder of runs")
        found += [folder for folder in inside if folder not in found]
    if not found:
        raise ValueError("no folder of a run was given: name one, as in `spidersilk report runs/compare`")
    return found


def is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def check_time_limit(seconds: float | None) -> None:
    if seconds is not None and not 0 <= seconds <= 1e9:
        raise ValueError(f"--time-limit {seconds:g} must be a number of seconds from 0 to 1e9")
