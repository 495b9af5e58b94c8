"""The files of the data sets: find one, check that it is whole, and download it if it is missing."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import lzma
import os
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from fnmatch import fnmatch
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from rich.progress import wrap_file

_OPENERS = {"": bytes, ".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}
_UNREACHABLE: set[str] = set()  # addresses that failed in this process are not tried again for every run of a batch


class DataError(RuntimeError):
    """A data set is missing, unreadable, truncated or altered; the message says which file, and what to do."""


@dataclass(frozen=True)
class File:
    """One file of a data set: `path` below the data folder, possibly with .gz, .xz or .bz2 appended.

    `sha256` is the hash of the decompressed content; None where only the structure can be checked. `member` names the
    file inside the archive at `url`; `archive_hash` is that of what lies at `url` ("md5:..." or None).
    """

    path: str
    sha256: str | None
    url: str | None = None
    member: str | None = None
    archive_hash: str | None = None


_TABLE = csv.DictReader(Path(__file__).with_name("published.csv").read_text().splitlines())
FILES = [File(row.pop("path"), **{column: cell or None for column, cell in row.items()}) for row in _TABLE]


def files_like(pattern: str) -> list[File]:
    return [file for file in FILES if fnmatch(file.path, pattern)]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file such that a reader sees either the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spidersilk" / "data"


def search_folders(data_dir: Path | str | None) -> list[Path]:
    """The folders that are searched, in this order: `data_dir`, SPIDERSILK_DATA, the user cache."""
    named = [data_dir, os.environ.get("SPIDERSILK_DATA")]
    return [*(Path(folder).expanduser() for folder in named if folder), cache_folder()]


def locate(file: File, data_dir: Path | str | None) -> Path | None:
    """The first path at which the file exists, plain or compressed."""
    for path in (folder / (file.path + suffix) for folder in search_folders(data_dir) for suffix in _OPENERS):
        try:
            if path.is_file():
                return path
        except OSError as error:  # a folder that may not be searched
            raise DataError(f"{path}: cannot be looked at ({error.strerror}): mend its permissions") from error
    return None


def read(file: File, data_dir: Path | str | None = None) -> bytes:
    """The checked content of the file; it is downloaded into the cache if no folder has it."""
    path = locate(file, data_dir)
    if path is None:
        return _download(file, data_dir)
    try:
        content = _decompress(path.read_bytes(), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): mend its permissions") from error
    if file.sha256 not in (None, hashlib.sha256(content).hexdigest()):
        problem = f"the content ({len(content):,} bytes) is not that of the published file (its SHA-256 differs)"
        raise DataError(f"{path}: {problem}: it is cut short or altered, so remove it and get it again")
    return content


def _decompress(raw: bytes, name: str) -> bytes:
    suffix = Path(name).suffix
    try:
        return _OPENERS.get(suffix, _OPENERS[""])(raw)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{name}: not a whole {suffix} file ({error}): remove it and get it again") from error


def _download(file: File, data_dir: Path | str | None) -> bytes:
    missing = f"{file.path}: not found (looked for {', '.join(str(f / file.path) for f in search_folders(data_dir))})"
    if file.url is None:
        raise DataError(f"{missing}, and there is no address to get it from")
    remedy = f"get it from {file.url} and put it under the folder that SPIDERSILK_DATA or --data-dir names"
    try:
        raw = _fetch(file, file.url)
    except (OSError, ValueError, HTTPException) as error:
        _UNREACHABLE.add(file.url)
        raise DataError(f"{missing}, nor to be had now ({type(error).__name__}): {remedy}") from error
    content = _decompress(raw, file.url) if file.member is None else extract(raw, file.member, file.url)
    if file.sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise DataError(f"{file.url}: what came is not the published file (its SHA-256 differs): {remedy}")
    write_atomically(cache_folder() / file.path, content)
    return content


def _fetch(file: File, url: str) -> bytes:
    """What lies at the address. An archive is kept, as other files of the data set may be in it."""
    kept = cache_folder() / "downloads" / Path(url).name
    if file.member is not None and kept.is_file():
        return kept.read_bytes()
    if url in _UNREACHABLE or os.environ.get("SPIDERSILK_OFFLINE"):
        raise ConnectionError
    with urlopen(url, timeout=30) as answer:
        size, copy = int(answer.headers.get("Content-Length", 0)), io.BytesIO()
        with wrap_file(answer, size, description="downloading", transient=True) as stream:
            shutil.copyfileobj(stream, copy)
    raw = copy.getvalue()
    kind, _, digest = (file.archive_hash or "").partition(":")
    if digest and hashlib.new(kind, raw).hexdigest() != digest:
        raise ValueError(f"its {kind} differs")
    if file.member is not None:
        write_atomically(kept, raw)
    return raw


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
