"""The package: a wheel, built from the sdist, that pip installs into a clean environment with and without [lab].

The environments hold links to the declared dependencies, and to theirs, as they are installed here; pip resolves
against these without a network, and nothing else can be imported. So this shows that the wheel has all its files and
declares all it imports. It does not show that a registry has these versions.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*words: object, cwd: Path, code: int = 0) -> str:
    """What a command printed, run in a folder without anything of this checkout's on its path."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    plain |= {"XDG_CACHE_HOME": str(cwd.parent / "cache"), "NUMBA_CACHE_DIR": str(cwd.parent / "numba")}
    done = subprocess.run([str(w) for w in words], cwd=cwd, env=plain, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of this checkout, and the wheel that is built from it."""
    pytest.importorskip("hatchling", reason="needs the extra [dev]")
    folder = tmp_path_factory.mktemp("dist")
    build = sys.executable, "-m", "hatchling", "build", "-d", folder
    run(*build, "-t", "sdist", cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    run(*build, "-t", "wheel", cwd=folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def closure(requirements: list[str], extra: str = "") -> dict[str, importlib.metadata.Distribution]:
    """The distributions that are installed here for these requirements and for what they require in turn."""
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [(Requirement(text), extra) for text in requirements]
    while todo:
        wanted, outer = todo.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": outer}):
            continue
        try:
            there = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:  # pip will say so where it is needed
            continue
        if there.name.lower() not in found:
            found[there.name.lower()] = there
            todo += [(Requirement(text), inner) for text in there.requires or [] for inner in ("", *wanted.extras)]
    return found


def environment(folder: Path, wheel: Path, extra: str) -> Path:
    """A clean virtual environment with the wheel; the folder of its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    optional = PROJECT["optional-dependencies"]["lab"] if extra else []
    for there in closure([*PROJECT["dependencies"], *optional]).values():
        for name in {file.parts[0] for file in there.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(there.locate_file(name))).resolve())
    pip = sys.executable, "-m", "pip", "--python", folder / "bin" / "python"
    run(*pip, "install", "--quiet", "--no-index", f"spidersilk{extra} @ {wheel.as_uri()}", cwd=folder.parent)
    return folder / "bin"


def test_files_of_the_packages(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    source = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*") if p.is_file()}
    source = {name for name in source if "__pycache__" not in name}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == source
    assert {"spidersilk/py.typed", "spidersilk/lab/report/templates/report.html"} <= names
    with tarfile.open(sdist) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "examples/quickstart.py", "tests/test_package.py"} <= inside
    assert not {name for name in inside if name.startswith(("results/", "runs/"))}


def test_a_citation_names_the_paper() -> None:
    yaml = pytest.importorskip("yaml", reason="needs the extra [lab]")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    assert cited["title"] == "Variance Reduction with Sparse Gradients"
    assert [author["family-names"] for author in cited["authors"]] == ["Elibol", "Lei", "Jordan"]
    assert cited["url"] in PROJECT["urls"].values()


@pytest.mark.slow
def test_without_the_lab(built: tuple[Path, Path], tmp_path: Path) -> None:
    programs, empty = environment(tmp_path / "clean", built[1], ""), tmp_path / "empty"
    empty.mkdir()
    where = run(programs / "python", "-c", "import spidersilk; print(spidersilk.__file__)", cwd=empty)
    assert where.startswith(str(tmp_path / "clean"))
    shutil.copy(ROOT / "examples" / "own_model_adamw.py", empty)
    code = "import own_model_adamw as example; example.main(epochs=2, samples=500)"
    assert " N queries" in run(programs / "python", "-c", code, cwd=empty)
    told = run(programs / "spidersilk", "list", cwd=empty, code=2)
    assert "is not installed, and the command needs it: pip install 'spidersilk[lab]'" in told
    assert len(told.splitlines()) == 1
    for name in ("typer", "sklearn", "matplotlib"):
        run(programs / "python", "-c", f"import {name}", cwd=empty, code=1)


@pytest.mark.slow
def test_with_the_lab(built: tuple[Path, Path], tmp_path: Path) -> None:
    programs, empty = environment(tmp_path / "clean", built[1], "[lab]"), tmp_path / "empty"
    empty.mkdir()
    for name in ("quickstart", "inspect_me"):
        shutil.copy(ROOT / "examples" / f"{name}.py", empty)
    code = "import quickstart; quickstart.main(epochs=3)"
    assert " N queries" in run(programs / "python", "-c", code, cwd=empty)
    assert "entropy of M" in run(programs / "spidersilk", "inspect", "inspect_me.py", "--budget", "2", cwd=empty)
    told = run(programs / "spidersilk", "compare", "logistic", "--optimizers", "sgd,svrg", "--budget", "2", cwd=empty)
    assert "report: runs/compare/report.html" in told
    assert "What was seen" in (empty / "runs" / "compare" / "report.html").read_text()
