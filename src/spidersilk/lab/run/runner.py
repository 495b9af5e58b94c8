"""One run: a config in, a folder of results out, that survives being killed at any moment."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spidersilk as silk
from spidersilk.lab.run import methods as optimizers
from spidersilk.lab.run.config import RunConfig, from_yaml
from spidersilk.lab.run.machine import machine, revision, versions
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import Task, find
from spidersilk.loop.lengths import Adaptive, as_inner_length
from spidersilk.theory.planner import theorem_2_inner_steps

FINISHED = ("finished", "diverged")


class RunError(RuntimeError):
    """A run cannot start or go on; the message says why and what to do."""


@dataclass
class Progress:
    """What a progress bar can show."""

    queries: float
    budget: float
    loss: float
    seconds: float


@dataclass
class _Meters:
    """The counters of a run; all are in the checkpoint."""

    queries: float = 0.0
    samples: int = 0
    updates: int = 0
    seconds: float = 0.0
    next_eval: float = 0.0
    metrics_bytes: int = 0


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    report: Callable[[Progress], None] | None = None,
    until: float | None = None,
) -> dict[str, Any]:
    """Train to the budget; returns the summary. With `resume`, continue from the last checkpoint in the folder.

    A run that comes to the time `until` (as `time.time` tells it) measures once more, saves a checkpoint and ends with
    the status "stopped"; `resume` goes on with it.
    """
    return Run(config.completed(), folder, until).go(resume, report or (lambda _: None))


class Run:
    def __init__(self, config: RunConfig, folder: Path, until: float | None = None):
        self.config, self.folder, self.team = config, folder, team()
        self.until = math.inf if until is None else until
        self.meters = _Meters()
        self.memory: list[Tensor] = []  # where the config asks for it
        self.noted: dict[str, tuple[float, int]] = {}  # sums and counts of measures since the last line of metrics
        self._saved_v_norm: float | None = None

    # The whole run.

    def go(self, resume: bool, report: Callable[[Progress], None]) -> dict[str, Any]:
        checkpoint = self.folder / "checkpoint.pt"
        done, resumes = self.team.from_first(lambda: (self._open_folder(resume), resume and checkpoint.is_file()))
        if done is not None:
            return done
        self._build()
        if resumes:
            self._load(checkpoint)
        elif self.team.writes:
            (self.folder / "metrics.jsonl").write_bytes(b"")
        self._tensorboard = self._open_tensorboard()
        status, reason = "finished", ""
        try:
            if not self._train(report):
                status, reason = "stopped", f"its time was over at {self.meters.queries / self.task.samples:.2f} N"
        except silk.DivergenceError as error:
            status, reason = "diverged", str(error)
        if self._tensorboard is not None:
            self._tensorboard.close()
        return self.team.from_first(lambda: self._finish(status, reason))

    def _finish(self, status: str, reason: str) -> dict[str, Any]:
        told = self._summary(status, reason)
        write_atomically(self.folder / "summary.json", json.dumps(told, indent=1).encode() + b"\n")
        if status in FINISHED:
            (self.folder / "checkpoint.pt").unlink(missing_ok=True)
        return told

    def _open_folder(self, resume: bool) -> dict[str, Any] | None:
        """Make it, or see that it holds this run; the summary comes back if the run is over."""
        summary = self.folder / "summary.json"
        if resume and summary.is_file():
            told = json.loads(summary.read_text())
            if told["status"] in FINISHED:
                return told
        self.folder.mkdir(parents=True, exist_ok=True)
        held = self.folder / "config.yaml"
        if held.is_file():
            if not resume:
                raise RunError(f"{self.folder} holds a run already: give --resume to go on, or another name")
            if from_yaml(held) != self.config:
                raise RunError(f"{self.folder} holds a run with other settings (its config.yaml): give another name")
        else:
            write_atomically(held, self.config.to_yaml().encode())
        return None

    def _build(self) -> None:
        config = self.config
        torch.manual_seed(config.seed)
        self.device = self.team.device(config.device)
        self.task: Task = find(config.task)(config.options, config.data_dir, self.device)
        generator = torch.Generator().manual_seed(config.seed)
        params = list(self.task.model.parameters())
        method = optimizers.find(config.optimizer)
        self.plain = method.plain
        self.optimizer = method.make(params, config, generator)
        if config.measures and isinstance(self.optimizer, silk.VarianceReduced):
            self.optimizer.register_measures_hook(self._note)
        if hasattr(self.task, "point_of_old_state"):
            self.task.point_of_old_state = getattr(self.optimizer, "reference", None)  # pyright: ignore[reportAttributeAccessIssue]
        small = config.batch_size
        assert small is not None
        anchor = small if self.plain else config.anchor_batch_size
        inner = 1 if self.plain else config.inner_steps
        if inner == "theorem-2":
            inner = theorem_2_inner_steps(anchor or self.task.samples, small, self._density(params))
        length = as_inner_length(inner or 1)
        if isinstance(length, Adaptive):
            length = Adaptive(**config.adaptive)
        self.inner = int(length.mean) if math.isfinite(length.mean) else 10
        self.batches = self.task.batches(anchor, small, length, generator)  # pyright: ignore[reportArgumentType]
        self.team.split(self.batches, config.task)
        self.line = None
        if config.inner_lr_end is not None and isinstance(self.optimizer, silk.VarianceReduced):
            assert config.lr is not None
            self.line = silk.InnerLine(self.optimizer, self.inner, config.lr, config.inner_lr_end)
        if config.compile:
            self.task.model.compile()

    def _density(self, params: Sequence[Tensor]) -> float:
        sparsity = getattr(self.optimizer, "sparsity", None)
        return 1.0 if sparsity is None else sparsity.density([p.shape for p in params])

    # Training.

    def _train(self, report: Callable[[Progress], None]) -> bool:
        """Whether it came to the budget before its time was over.

        The clock runs while batches are fetched and steps taken, and stands while one looks or saves.
        """
        meters, config, n = self.meters, self.config, self.task.samples
        batches = iter(self.batches)
        saved_at = meters.seconds
        self._start_clock()
        while True:
            done = meters.queries / n + 1e-9
            if done >= min(meters.next_eval, config.budget) or meters.updates == 1:  # 1: the memory as it starts
                self._stop_clock()
                self._evaluate()
                meters.next_eval = (math.floor(done / config.eval_every) + 1) * config.eval_every
                if done >= config.budget:
                    return True
                self._start_clock()
            if time.time() > self.until:
                self._stop_clock()
                self._save()  # before it looks: what a stopped run shows last is measured again if it goes on
                self._evaluate()
                return False
            batch, is_anchor = next(batches)
            loss = self._step(batch, is_anchor)
            meters.updates += 1
            if config.track_memory:
                self._stop_clock()
                self._track_memory()
                self._start_clock()
            if meters.updates % 20 == 1 and self.team.writes:
                self._stop_clock()
                report(Progress(meters.queries / n, config.budget, float(loss), meters.seconds))
                if meters.seconds - saved_at >= config.checkpoint_every:
                    self._save()
                    saved_at = meters.seconds
                self._start_clock()

    def _start_clock(self) -> None:
        self._synchronise()
        self._clock = time.perf_counter()

    def _stop_clock(self) -> None:
        self._synchronise()
        self.meters.seconds += time.perf_counter() - self._clock

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _note(self, measures: silk.Measures) -> None:
        """Add up what small steps tell of themselves, for the next line of metrics."""
        told = {"captured": measures.captured, "noise": measures.noise, "rtop_variance": measures.rtop_variance}
        for name, value in told.items():
            if math.isfinite(value):
                total, count = self.noted.get(name, (0.0, 0))
                self.noted[name] = total + value, count + 1

    def _track_memory(self) -> None:
        """The memory that a dense method would have: started from |v|, averaged at each step."""
        decay = self.config.memory_decay
        gradients = [p.grad.detach() for p in self.task.model.parameters() if p.grad is not None]
        sizes = torch._foreach_abs(gradients)  # pyright: ignore[reportPrivateImportUsage]
        if not self.memory:
            self.memory = list(sizes)
        else:
            torch._foreach_mul_(self.memory, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(self.memory, sizes, alpha=decay)  # pyright: ignore[reportPrivateImportUsage]

    def _step(self, batch: Any, is_anchor: Any) -> Tensor:
        size = self.task.size(batch)
        optimizer = self.optimizer
        self._saved_v_norm = None
        self._set_epoch_lr()

        def closure() -> Tensor:
            optimizer.zero_grad()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16):
                loss = self.task.loss(batch, getattr(optimizer, "evaluating", None))
            loss.backward()
            return loss.detach()

        if isinstance(optimizer, silk.VarianceReduced):
            loss = optimizer.step(closure, anchor=is_anchor, samples=size)
            self.meters.queries = optimizer.gradient_queries
            if self.line is not None:
                self.line.step()
        else:
            loss = closure()
            size = self.team.average(self.task.model.parameters(), is_anchor, size)
            optimizer.step()
            self.meters.queries += size
        self.meters.samples += self.team.total(is_anchor, size)
        self.task.stepped()
        return loss

    def _set_epoch_lr(self) -> None:
        epoch = self.meters.queries / self.task.samples
        due = [at for at in self.config.lr_milestones if epoch >= at]
        if due:
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr_milestones[max(due)]

    def _evaluate(self) -> None:
        """One line of metrics. Randomness is put back, so that how often one looks does not change the run."""
        state = torch.get_rng_state()
        told = self.task.evaluate()
        torch.set_rng_state(state)
        if isinstance(self.optimizer, silk.VarianceReduced):
            self.optimizer.check()
        meters = self.meters
        row = {
            "queries": meters.queries / self.task.samples,
            "samples": meters.samples,
            "updates": meters.updates,
            "seconds": meters.seconds,
            **told,
            **self._sparsity_measures(),
            **{name: total / count for name, (total, count) in self.noted.items()},
        }
        self.noted = {}
        if not self.team.writes:
            return
        with (self.folder / "metrics.jsonl").open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
            meters.metrics_bytes = stream.tell()
        if self._tensorboard is not None:
            for name, value in row.items():
                self._tensorboard.add_scalar(name, value, meters.updates)

    def _sparsity_measures(self) -> dict[str, float]:
        """Entropy of M, and |v|: of the estimate where there is one, else of the last gradient."""
        told = {}
        states = [s for s in self.optimizer.state.values() if isinstance(s, dict)]
        memory = self.memory or [s["memory"] for s in states if "memory" in s]
        if memory and any(bool(m.any()) for m in memory):
            told["entropy"] = silk.entropy(torch.cat([m.reshape(-1) for m in memory]))
        v_norm = self._v_norm()
        if v_norm is not None:
            told["v_norm"] = v_norm
        return told

    def _v_norm(self) -> float | None:
        """|v| of the estimate, or of the last gradient where there is none; just after a resumption, as saved."""
        v = [s["estimate"] for s in self.optimizer.state.values() if isinstance(s, dict) and "estimate" in s]
        v = v or [p.grad for p in self.task.model.parameters() if p.grad is not None]
        return float(torch.stack([g.detach().double().norm() for g in v]).norm()) if v else self._saved_v_norm

    # Stopping and going on.

    def _save(self) -> None:
        state = {
            "model": self.task.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "line": None if self.line is None else self.line.state_dict(),
            "batches": self.batches.state_dict(),
            "task": self.task.state_dict(),
            "meters": vars(self.meters),
            "memory": self.memory,
            "noted": self.noted,
            "v_norm": self._v_norm(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }
        partial = self.folder / "checkpoint.pt.part"
        try:
            torch.save(state, partial)
            partial.replace(self.folder / "checkpoint.pt")
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
            partial.unlink(missing_ok=True)
            raise RunError(f"{partial}: cannot be written ({str(error).splitlines()[0]}): free some space") from error

    def _load(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:
            raise RunError(
                f"{path}: not a checkpoint that can be loaded ({type(error).__name__}): remove it"
            ) from error
        self.task.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.line is not None:
            self.line.load_state_dict(state["line"])
        self.batches.load_state_dict(state["batches"])
        self.task.load_state_dict(state["task"])
        self.memory, self._saved_v_norm = state["memory"], state["v_norm"]
        self.noted = {name: (total, count) for name, (total, count) in state["noted"].items()}
        for name, value in state["meters"].items():
            setattr(self.meters, name, value)
        if self.team.writes:  # what was measured after the checkpoint will be measured again
            os.truncate(self.folder / "metrics.jsonl", self.meters.metrics_bytes)
        torch.set_rng_state(state["random"].cpu())
        if state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"].cpu(), self.device)

    def _open_tensorboard(self) -> Any:
        if not self.config.tensorboard or not self.team.writes:
            return None
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.folder / "tensorboard", purge_step=self.meters.updates)

    def _summary(self, status: str, reason: str) -> dict[str, Any]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return {
            "status": status,
            "reason": reason,
            "task": self.config.task,
            "data": getattr(self.task, "data_name", ""),
            "optimizer": self.config.optimizer,
            "seed": self.config.seed,
            "parameters": sum(p.numel() for p in self.task.model.parameters()),
            "samples": self.task.samples,
            "inner_steps": self.inner,
            "anchors": getattr(self.optimizer, "anchors", 0),
            "ranks": self.team.world,
            "last": json.loads(lines[-1]) if lines else {},
            "versions": versions(),
            "revision": revision(),
            "machine": machine(self.device),
        }


def write_atomically(path: Path, content: bytes) -> None:
    """The file is either the old one or the new one, whatever happens."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
