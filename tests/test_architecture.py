"""The house: each folder imports only from those above it, typing included, and a step takes few hops through it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import hops
import pytest

import spidersilk as silk

SOURCE = Path(silk.__file__).parent
# From top to bottom. Files beside the folders come first, but for those that gather names for users, which come last.
ORDER = ("checks", "find_modules", "kernels", "operator", "reference", "parallel", "distributed", "loop", "layers",
         "variance", "sparse", "theory", "__init__", "lab")  # fmt: skip
LAB = (
    "messages",
    "yaml_text",
    "settings",
    "peers",
    "data",
    "tasks",
    "run",
    "experiments",
    "report",
)  # then the command line


def imports(path: Path) -> Iterator[str]:
    """The modules of this library that a file imports, wherever in it, also for typing alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("spidersilk"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "spidersilk")


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("spidersilk", *(parts[:-1] if parts[-1] == "__init__" else parts)))


FILES = sorted(SOURCE.rglob("*.py"))


def place(name: str) -> tuple[int, int]:
    """Where a module stands: its folder, and within the lab that folder's."""
    parts = name.split(".")[1:]
    if not parts:
        return ORDER.index("__init__"), 0
    if parts[0] == "lab":
        inner = parts[1] if len(parts) > 1 else "cli"
        return ORDER.index("lab"), LAB.index(inner) if inner in LAB else len(LAB)
    return ORDER.index(parts[0]), 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_each_folder_imports_only_from_those_above_it(path: Path) -> None:
    here = place(name_of(path))
    below = [name for name in imports(path) if place(name) > here]
    assert not below, f"{path.relative_to(SOURCE)} imports {', '.join(below)}, which stands below it"


def test_there_is_no_cycle() -> None:
    """Of modules, typing included; a package stands for its __init__."""
    graph = {name_of(path): set(imports(path)) - {name_of(path)} for path in FILES}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in graph.get(name, ()):
                if not name.startswith(f"{other}."):  # a package that gathers the names of its own modules
                    visit(other, (*way, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_file_is_long() -> None:
    long = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    assert not {name: lines for name, lines in long.items() if lines > 300}
    assert sum(long.values()) < 21_000


@pytest.mark.parametrize(("name", "files", "functions"), [("SparseSVRG", 12, 45), ("SparseAdamW", 11, 33)])
def test_a_step_takes_few_hops(name: str, files: int, functions: int) -> None:
    way = hops.WAYS[name]()
    assert len(way.files) <= files, sorted(way.files)
    assert len(way.functions) <= functions, way.functions


def test_nobody_else_patches_modules_or_asks_the_garbage_collector() -> None:
    users = [name_of(path) for path in FILES if "gc.get_objects" in path.read_text()]
    patches = [name_of(path) for path in FILES if "Module.__call__ =" in path.read_text()]
    assert users == patches == ["spidersilk.find_modules"]


# What torch itself leaves open: batches and data, what a closure returns, states, parameter groups, DataLoader's own.
OPEN = {"batch", "batches", "data", "loss", "state", "state_dict", "param_group", "groups", "dataloader",
        "base_arguments"}  # fmt: skip
OPEN_RESULTS = {"step", "state", "state_dict", "param_groups", "settings"}


def test_public_signatures_say_what_they_take_and_give() -> None:
    """No Any in what users call, but for what torch itself leaves open."""
    vague = []
    for name in silk.__all__:
        thing = getattr(silk, name)
        functions = {name: thing} if not inspect.isclass(thing) else _public_methods(thing)
        for where, function in functions.items():
            hints = {k: v for k, v in inspect.get_annotations(function).items() if "Any" in re.findall(r"\w+", str(v))}
            vague += [f"{where}({k})" for k in hints if k not in OPEN and k != "return"]
            vague += [where] if "return" in hints and function.__name__ not in OPEN_RESULTS else []
    assert not vague


def _public_methods(kind: type) -> dict[str, Callable[..., object]]:
    methods = {}
    for base in kind.__mro__:
        if base.__module__.startswith("spidersilk"):
            for name, member in vars(base).items():
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(function) and (not name.startswith("_") or name == "__init__"):
                    methods[f"{kind.__name__}.{name}"] = inspect.unwrap(function)
    return methods
