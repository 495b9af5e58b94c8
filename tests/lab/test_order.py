"""The order of the lab's folders: each imports only from those before it, for type checkers too."""

from __future__ import annotations

import ast
from pathlib import Path

import spidersilk

ORDER = [
    "messages",
    "yaml_text",
    "settings",
    "peers",
    "data",
    "tasks",
    "run",
    "experiments",
    "report",
    "commands",
    "cli",
]
LAB = Path(spidersilk.__file__).parent / "lab"


def layer(module: str) -> int | None:
    """The place in ORDER of a module of the lab; None for any other."""
    words = module.split(".")
    return ORDER.index(words[2]) if words[:2] == ["spidersilk", "lab"] and len(words) > 2 else None


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_folders_import_only_from_those_before_them() -> None:
    files = [path for path in LAB.rglob("*.py") if path != LAB / "__init__.py"]
    assert {path.relative_to(LAB).parts[0].removesuffix(".py") for path in files} == set(ORDER)
    for path in files:
        mine = ORDER.index(path.relative_to(LAB).parts[0].removesuffix(".py"))
        for name in imported(path):
            other = layer(name)
            assert other is None or other <= mine, f"{path} imports {name}"


def test_files_are_short() -> None:
    assert not [str(path) for path in LAB.rglob("*.py") if len(path.read_text().splitlines()) > 300]
