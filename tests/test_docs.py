"""The pages: their code runs, their links and commands exist, every public name is on the API page, and they are short.

`make docs` builds them as a site, where any warning is an error.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spidersilk as silk
import spidersilk.distributed
from spidersilk.layers import registry

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
# What was tried and measured, beside its files; and the detail pages of reproduction.md, which a script makes.
MEASURED = sorted([*(ROOT / "results").rglob("*.md"), *(ROOT / "docs").glob("*/*.md")])
# From docstrings and from results, so their words are not counted; nor are those of MEASURED, which are results.
GENERATED = ("api.md", "reproduction.md")
WORDS = 14_000
KINDS = {
    "python": "run here, in order, in one namespace for a page",
    "diff": "what it leaves is run here, by itself",
    "py": "lines inside a trainer: tests/integration/test_docs_in_trainers.py",
    "": "commands and drawings: commands are looked up",
}
ELSEWHERE = {"distributed.md": "parallel/test_ranks.py", "lab.md": "test_the_script_of_the_lab_page_runs"}
SLOW = ("guide.md",)


def blocks(page: Path, kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    return [text for name, text in found if name == kind]


def names() -> dict[str, Any]:
    """What the pages take for granted."""
    torch.manual_seed(0)
    train_set = torch.utils.data.TensorDataset(torch.randn(2000, 4), torch.randint(3, (2000,)))
    return {
        "__name__": "docs",
        "torch": torch,
        "silk": silk,
        "model": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        "loss_fn": nn.CrossEntropyLoss(),
        "train_set": train_set,
        "loader": torch.utils.data.DataLoader(train_set, batch_size=500),
    }


WITH_CODE = [p for p in PAGES + MEASURED if blocks(p, "python") and p.name not in ELSEWHERE]
MARKS = dict.fromkeys(SLOW, pytest.mark.slow)


def of(page: Path) -> Any:
    name = page.relative_to(ROOT).as_posix()
    return pytest.param(page, id=name, marks=MARKS.get(page.name, ()))


@pytest.mark.parametrize("page", [of(page) for page in WITH_CODE])
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.chdir(tmp_path)
    held = names()
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), held)


CHANGES = [(page, text) for page in PAGES for text in blocks(page, "diff")]


@pytest.mark.parametrize(("page", "text"), CHANGES, ids=[page.name for page, _ in CHANGES])
def test_the_code_after_a_change_runs(page: Path, text: str) -> None:
    lines = text.splitlines()
    assert any(line.startswith("-") for line in lines)
    assert all(line[:1] in "+- " for line in lines)
    held = names()
    before = [p.detach().clone() for p in held["model"].parameters()]
    exec(compile("\n".join(line[1:] for line in lines if line[:1] != "-"), page.name, "exec"), held)
    assert isinstance(held["optimizer"], torch.optim.Optimizer)
    if "for x, y in loader" in text:
        after = held["model"].state_dict().values()
        assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.slow
def test_the_script_of_the_lab_page_runs(tmp_path: Path) -> None:
    """A task and an optimizer of a user: its processes know what the script registered."""
    pytest.importorskip("typer", reason="needs the extra [lab]")
    (script,) = blocks(ROOT / "docs" / "lab.md", "python")
    (tmp_path / "mine.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.parent.name for path in tmp_path.glob("runs/*/summary.json")) == ["line-0", "line-1"]


@pytest.mark.parametrize("page", PAGES + MEASURED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_is_of_a_kind_that_is_tested(page: Path) -> None:
    opened = re.findall(r"^```(.*)$", page.read_text(), flags=re.M)[::2]
    assert set(opened) <= set(KINDS)


def test_pages_that_are_run_elsewhere_are_read_there() -> None:
    assert "distributed.md" in (ROOT / "tests" / ELSEWHERE["distributed.md"]).read_text()
    assert [page.name for page in PAGES + MEASURED if blocks(page, "py")] == ["integrations.md"]


# Commands.


def commands() -> list[str]:
    lines = [line for page in PAGES for text in blocks(page, "") for line in text.replace("\\\n", " ").splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.startswith(("spidersilk ", "make "))]


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_commands_exist(line: str) -> None:
    """The command and each of its options; a target of the Makefile."""
    first, command, *words = line.split()
    if first == "make":
        assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.M)
        return
    typer = pytest.importorskip("typer", reason="needs the extra [lab]")
    from spidersilk.lab.commands import app

    known = typer.main.get_command(app).commands
    assert command in known
    options = {name for param in known[command].params for name in param.opts + param.secondary_opts}
    assert {word for word in words if re.match(r"--?[A-Za-z]", word)} <= options


# Links.


def anchors(page: Path) -> list[str]:
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    made = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]
    return made + re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)


@pytest.mark.parametrize("page", PAGES + MEASURED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path), target


# The API page and the length.


def test_every_public_name_is_on_the_api_page_with_a_docstring() -> None:
    held = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^::: (\S+)$", held, flags=re.M)
    assert len(listed) == len(set(listed))
    for module in (silk, spidersilk.distributed):
        for name in module.__all__:
            assert f"{module.__name__}.{name}" in listed, f"docs/api.md lacks {module.__name__}.{name}"
    for name in listed:
        module, _, last = name.rpartition(".")
        thing = getattr(importlib.import_module(module), last)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), f"{name} has no docstring"


def test_docstrings_become_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("griffe", reason="needs the extra [docs]")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    made = importlib.import_module("docstrings").as_markdown(
        "First.\n\nk1, k2: shares.\n    More.\nlr: step\n\n>>> 1\n1"
    )
    assert made.split("\n") == [
        "First.", "", "", "- **k1, k2**: shares.", "    More.", "- **lr**: step", "", "", "```pycon", ">>> 1", "1",
        "```",
    ]  # fmt: skip


def words(page: Path) -> int:
    """Those with a letter or a digit: rules of tables and signs of formulas are not words."""
    return sum(any(c.isalnum() for c in word) for word in page.read_text().split())


def test_the_pages_are_short() -> None:
    counted = {page.name: words(page) for page in PAGES if page.name not in GENERATED}
    assert sum(counted.values()) <= WORDS, sorted(counted.items(), key=lambda item: -item[1])
