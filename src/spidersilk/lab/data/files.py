"""Find a data file, check that it is whole, and download it if it is missing."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

_OPENERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    ".gz": gzip.decompress,
    ".xz": lzma.decompress,
    ".bz2": bz2.decompress,
}
_UNREACHABLE: set[str] = set()  # addresses that failed in this process are not tried again for every run of a batch


class DataError(RuntimeError):
    """A data set is missing, unreadable, truncated or altered; the message says which file, and what to do."""


@dataclass(frozen=True)
class File:
    """One file of a data set: `path` below the data folder, possibly with .gz, .xz or .bz2 appended.

    `sha256` is the hash of the decompressed content; None where only the structure can be checked. `member` names the
    file inside the archive at `url`; `archive_hash` is the archive's ("md5:..." or None).
    """

    path: str
    sha256: str | None
    url: str | None = None
    member: str | None = None
    archive_hash: str | None = None


def cache_folder() -> Path:
    """The user cache: below XDG_CACHE_HOME, or where the system keeps caches."""
    home = Path.home()
    usual = {"darwin": home / "Library" / "Caches", "win32": Path(os.environ.get("LOCALAPPDATA", home))}
    return Path(os.environ.get("XDG_CACHE_HOME") or usual.get(sys.platform, home / ".cache")) / "spidersilk" / "data"


def search_folders(data_dir: Path | str | None) -> list[Path]:
    """The folders that are searched, in this order: `data_dir`, SPIDERSILK_DATA, the user cache."""
    named = [data_dir, os.environ.get("SPIDERSILK_DATA")]
    return [*(Path(folder).expanduser() for folder in named if folder), cache_folder()]


def locate(file: File, data_dir: Path | str | None) -> Path | None:
    """The first path at which the file exists, plain or compressed."""
    for folder in search_folders(data_dir):
        for suffix in _OPENERS:
            path = folder / (file.path + suffix)
            try:
                if path.is_file():
                    return path
            except OSError as error:  # a folder that may not be searched
                raise DataError(f"{path}: cannot be looked at ({error.strerror}): mend its permissions") from error
    return None


def read(file: File, data_dir: Path | str | None = None) -> bytes:
    """The checked content of the file; it is downloaded into the cache if no folder has it."""
    path = locate(file, data_dir)
    return read_checked(path, file.sha256) if path is not None else _download(file, data_dir)


def read_checked(path: Path, sha256: str | None) -> bytes:
    """Read and decompress a file; raise DataError if it is truncated or altered."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}): mend its permissions, or point elsewhere"
        ) from error
    opener = _OPENERS.get(path.suffix, _OPENERS[""])
    try:
        content = opener(raw)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path}: not a whole {path.suffix} file ({error}): remove it and get it again") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: the content ({len(content):,} bytes) is not that of the published file: it is cut "
            "short or altered (its SHA-256 differs), so remove it and get it again"
        )
    return content


def _download(file: File, data_dir: Path | str | None) -> bytes:
    searched = ", ".join(str(folder / file.path) for folder in search_folders(data_dir))
    if file.url is None:
        raise DataError(f"{file.path}: not found (looked for {searched}), and there is no address to get it from")
    remedy = f"get it from {file.url} and put it under the folder that SPIDERSILK_DATA or --data-dir names"
    cache = cache_folder()
    try:
        if file.url in _UNREACHABLE or os.environ.get("SPIDERSILK_OFFLINE"):
            raise ConnectionError
        import pooch  # imported here: a machine that has its data does not need it

        pooch.get_logger().setLevel("WARNING")
        downloader: Any = pooch.HTTPDownloader(progressbar=_Bar())  # pyright: ignore[reportArgumentType]
        fetched = pooch.retrieve(file.url, file.archive_hash, path=cache / "downloads", downloader=downloader)
    except Exception as error:
        why = type(error).__name__
        _UNREACHABLE.add(file.url)
        raise DataError(
            f"{file.path}: not found (looked for {searched}), nor to be had now ({why}): {remedy}"
        ) from error
    content = Path(fetched).read_bytes()
    if file.member is not None:
        content = extract(content, file.member, file.url)
    if file.sha256 is not None and hashlib.sha256(content).hexdigest() != file.sha256:
        raise DataError(f"{file.url}: what came is not the published file (its SHA-256 differs): {remedy}")
    target = cache / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    partial.write_bytes(content)
    partial.replace(target)
    return content


def extract(archive: bytes, member: str, name: str) -> bytes:
    """One member of a tar or zip archive, read into memory: nothing is unpacked to the paths that the archive names."""
    try:
        if zipfile.is_zipfile(io.BytesIO(archive)):
            with zipfile.ZipFile(io.BytesIO(archive)) as opened:
                return opened.read(member)
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            entry = opened.getmember(member)
            stream = opened.extractfile(entry) if entry.isreg() else None
            if stream is None:
                raise DataError(f"{name}: {member} is not a plain file in it")
            return stream.read()
    except (KeyError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{name}: {member} is not to be had from it ({error}): get it again") from error


class _Bar:
    """The progress bar interface of pooch, which sets `total`, drawn by rich."""

    total = 0

    def __init__(self) -> None:
        columns = TextColumn("downloading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task("", total=None)
        self._progress.start()

    def update(self, amount: int) -> None:
        self._progress.update(self._task, total=self.total, advance=amount)

    def reset(self) -> None:
        self._progress.reset(self._task, total=self.total)

    def close(self) -> None:
        self._progress.stop()
