"""Texts as bytes: Python code and English prose that every installation of Python has, and the Penn Treebank."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

from spidersilk.lab.data.files import DataError, files_like, locate, read

CODE_BYTES = 7_500_000  # of Python code: as much as every Python from 3.11 on has
# Folders that not every installation has, or that hold tables in place of code.
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "pydoc_data", "encodings", "lib2to3", "distutils",
             "ensurepip", "idlelib", "turtledemo", "tkinter"}  # fmt: skip


@lru_cache(maxsize=1)
def library_code(folder: str | None = None) -> bytes:
    """The first CODE_BYTES of the standard library's .py files, by path, without tests. Versions of Python differ."""
    root = Path(folder or sysconfig.get_paths()["stdlib"])
    parts, size = [], 0
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        inside = path.relative_to(root).parts[:-1]
        if not _LEFT_OUT.isdisjoint(inside) or path.name.startswith("_sysconfigdata"):
            continue
        try:
            parts.append(path.read_bytes().replace(b"\r\n", b"\n"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}): mend its permissions") from error
        size += len(parts[-1])
        if size >= CODE_BYTES:
            return b"".join(parts)[:CODE_BYTES]
    raise DataError(f"{root}: {size:,} bytes of Python code, not {CODE_BYTES:,}: use a Python with its whole library")


def library_prose() -> tuple[bytes, bytes]:
    """The help topics of Python, half a megabyte of English, but for the last tenth; and that tenth."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def ptb_texts(data_dir: Path | str | None = None) -> tuple[bytes, bytes]:
    """The Penn Treebank's training and validation texts."""
    train, valid = (read(file, data_dir) for file in files_like("ptb/*")[:2])
    return train, valid


def has_ptb(data_dir: Path | str | None = None) -> bool:
    """Whether both are there, without a download."""
    return all(locate(file, data_dir) is not None for file in files_like("ptb/*")[:2])
