"""The published files of each data set: published.csv has their addresses and hashes, as `File` describes them."""

from __future__ import annotations

import csv
from fnmatch import fnmatch
from pathlib import Path

from spidersilk.lab.data.files import File, locate

_TABLE = csv.DictReader(Path(__file__).with_name("published.csv").read_text().splitlines())
FILES = [File(**{column: cell or None for column, cell in row.items()}) for row in _TABLE]


def files_like(pattern: str) -> list[File]:
    return [file for file in FILES if fnmatch(file.path, pattern)]


def image_files(name: str, train_samples: int | None = None, data_dir: Path | str | None = None) -> list[File]:
    """The files from which a data set of `sets.IMAGES` is read, those for training first; none for embedded data.

    For `train_samples`, fewer of CIFAR-10's files may do. SVHN is the re-cropped subset if only that is available.
    """
    if name == "cifar10":
        *train, test = files_like("cifar10/*")
        return [*train[: -(-(train_samples or 50_000) // 10_000)], test]
    return _first_available(data_dir, "svhn/*.mat", "svhn/*.npy") if name == "svhn" else files_like(f"{name}/*")


def ratings_file(size: str, data_dir: Path | str | None = None) -> File:
    """MovieLens "100k" or "1m"; of the latter, the ratings without timestamps if only those are available."""
    if size == "100k":
        return files_like("*/ml-100k/*")[0]
    return _first_available(data_dir, "*/ratings.dat", "*/ratings_no_timestamp.dat")[0]


def _first_available(data_dir: Path | str | None, *patterns: str) -> list[File]:
    """The files of the first pattern of which one is available; without any, those of the first pattern."""
    groups = [files_like(pattern) for pattern in patterns]
    return next((group for group in groups if any(locate(file, data_dir) for file in group)), groups[0])
