"""A command that is refused says why in one line, exits with an error, and leaves no file or folder behind."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from refused_commands import CASES, PROCESSES, Case

from spidersilk.lab import cli


def prepare(case: Case, folder: Path) -> list[str]:
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return contents(folder)


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


def check(case: Case, code: int, out: str, err: str) -> None:
    assert code != 0, out
    assert err.startswith("error: "), err
    assert err.count("\n") == 1, err
    assert err.endswith("\n")
    assert case.says in err
    assert out == ""


def test_there_are_many() -> None:
    assert len(CASES) >= 150
    assert len(set(map(str, CASES))) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.typed)[1:60])
def test_refused(case: Case, tmp_path: Path, monkeypatch, capfd) -> None:
    before = prepare(case, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["spidersilk", *shlex.split(case.typed)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capfd.readouterr()
    check(case, int(ended.value.code or 0), printed.out, printed.err)
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("case", PROCESSES, ids=lambda case: case.typed)
def test_refused_in_a_process_of_its_own(case: Case, tmp_path: Path) -> None:
    before = prepare(case, tmp_path)
    words = [sys.executable, "-m", "spidersilk.lab.cli", *shlex.split(case.typed)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    check(case, done.returncode, done.stdout, done.stderr)
    assert contents(tmp_path) == before
