"""The way of one step through the library: which of its functions run, in which files, with how many calls.

`python tests/hops.py` prints it for a default small step of SparseSVRG and for a step of SparseAdamW.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

import spidersilk as silk

SOURCE = Path(silk.__file__).parent


class Way(NamedTuple):
    """The calls of a step in order, each as (file, function)."""

    calls: list[tuple[str, str]]

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def functions(self) -> set[tuple[str, str]]:
        return set(self.calls)

    @property
    def changes(self) -> int:
        """How often a call is in another file than the one before it."""
        return sum(a[0] != b[0] for a, b in zip(self.calls, self.calls[1:], strict=False))

    def __str__(self) -> str:
        counts = f"{len(self.calls)} calls, {len(self.functions)} functions, {len(self.files)} files"
        return f"{counts}, {self.changes} changes of file"


def trace(step: Callable[[], Any]) -> Way:
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        name = frame.f_code.co_name
        if event == "call" and path.startswith(str(SOURCE)) and not name.startswith("<"):  # comprehensions, lambdas
            calls.append((str(Path(path).relative_to(SOURCE)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return Way(calls)


def classifier() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)), torch.randn(64, 20), torch.randint(5, (64,))


def small_step() -> Way:
    """The third small step after an anchor of a default SparseSVRG on a small classifier on the CPU."""
    model, x, y = classifier()
    optimizer = silk.SparseSVRG(model.parameters(), lr=0.01)

    def step(anchor: bool, count: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[:count]), y[:count])
            loss.backward()
            return loss

        optimizer.step(closure, anchor=anchor, samples=count)

    step(True, 64)
    step(False, 8)
    step(False, 8)
    return trace(lambda: step(False, 8))


def plain_step() -> Way:
    """The third step of a default SparseAdamW in an ordinary loop, its backward() included."""
    model, x, y = classifier()
    optimizer = silk.SparseAdamW(model)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    return trace(step)


WAYS = {"SparseSVRG": small_step, "SparseAdamW": plain_step}

if __name__ == "__main__":
    for name, find in WAYS.items():
        way = find()
        print(f"{name}: {way}")
        if "--all" in sys.argv:
            for call in way.calls:
                print("   ", *call)
