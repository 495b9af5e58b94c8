"""What a run measures of its optimizer: the entropy of M, |v|, and the averages of what small steps report."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import spidersilk as silk


class Meter:
    """The measures of one optimizer on one model; its state is in the checkpoint.

    uniform: the model is evaluated at the end of a uniformly chosen loop.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, uniform: bool = False):
        self.model, self.optimizer = model, optimizer
        reduced = isinstance(optimizer, silk.VarianceReduced)
        self.output = silk.UniformOutput(optimizer, model) if uniform and reduced else None
        self.memory: list[Tensor] = []  # kept for a dense method, if the config asks for it
        self.since_last_row: dict[str, list[float]] = {}  # what small steps measured
        self.saved_v_norm: float | None = None

    def at_output(self) -> AbstractContextManager[None]:
        """Inside, the model is at the point that is to be evaluated."""
        return nullcontext() if self.output is None else self.output.applied()

    def add(self, measures: silk.Measures) -> None:
        """Add what a small step reports to the averages of the next row."""
        for name in ("captured", "noise", "rtop_variance"):
            if math.isfinite(value := getattr(measures, name)):
                self.since_last_row.setdefault(name, []).append(value)

    def update_memory(self, decay: float) -> None:
        """The memory that a dense method would have: it starts from |v| and is averaged at each step."""
        sizes = [p.grad.detach().abs() for p in self.model.parameters() if p.grad is not None]
        if not self.memory:
            self.memory = sizes
            return
        for memory, size in zip(self.memory, sizes, strict=True):
            memory.mul_(1 - decay).add_(size, alpha=decay)

    def row(self) -> dict[str, float]:
        measures: dict[str, float] = {}
        memory = self.memory or self._states("memory")
        if memory and any(bool(m.any()) for m in memory):
            measures["entropy"] = silk.entropy(torch.cat([m.reshape(-1) for m in memory]))
        if (v_norm := self.v_norm()) is not None:
            measures["v_norm"] = v_norm
        measures |= {name: fmean(values) for name, values in self.since_last_row.items()}
        self.since_last_row = {}
        return measures

    def v_norm(self) -> float | None:
        """|v| of the estimate, or of the last gradient if there is none; right after a resumption, the saved one."""
        v = self._states("estimate") or [p.grad for p in self.model.parameters() if p.grad is not None]
        return float(torch.stack([g.detach().double().norm() for g in v]).norm()) if v else self.saved_v_norm

    def gradient_bytes(self) -> int:
        """Of the gradients of a step, which each of several workers would send."""
        params = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        return sum(p.numel() * p.element_size() for p in params)

    def _states(self, name: str) -> list[Tensor]:
        return [s[name] for s in self.optimizer.state.values() if isinstance(s, dict) and name in s]

    def state_dict(self) -> dict[str, Any]:
        state = {"memory": self.memory, "since_last_row": self.since_last_row, "v_norm": self.v_norm()}
        return state if self.output is None else state | {"output": self.output.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory, self.since_last_row, self.saved_v_norm = state["memory"], state["since_last_row"], state["v_norm"]
        if self.output is not None:
            self.output.load_state_dict(state["output"])
