"""One run: a config in, a folder of results out. It can be killed at any moment and resumed."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spidersilk as silk
from spidersilk.lab.run import checkpoint, methods
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.curve import has_collapsed
from spidersilk.lab.run.errors import Interrupted
from spidersilk.lab.run.folder import RunFolder, Summary, differences, read_rows
from spidersilk.lab.run.interrupt import Interruption
from spidersilk.lab.run.machine import machine, revision, versions
from spidersilk.lab.run.measures import Meter
from spidersilk.lab.run.start import Progress, Report, prepare
from spidersilk.lab.run.team import team
from spidersilk.lab.tasks import Task, find

_COLLAPSED = "no better than guessing, or than before training; lower lr, or see `spidersilk inspect`"


@dataclass
class _Counters:
    """The counters of a run; all are in the checkpoint."""

    queries: float = 0.0
    samples: int = 0
    updates: int = 0
    seconds: float = 0.0
    next_eval: float = 0.0
    metrics_bytes: int = 0


def run(
    config: RunConfig, folder: Path, *, resume: bool = False, overwrite: bool = False,
    report: Report = lambda _: None, until: float = math.inf,
) -> Summary:  # fmt: skip
    """Train to the budget; returns the summary. With `resume`, continue from the last checkpoint in the folder, or
    return the summary of a run that has ended there; with `overwrite`, begin anew where a run is already.

    When `time.time()` passes `until`, the run saves a checkpoint and ends with the status "stopped". Ctrl-C and SIGTERM
    save one too, and raise `Interrupted`. A run that is refused leaves no folder behind, and changes none.
    """
    return Run(config.completed(), folder, until).go(resume, report, overwrite)


class Run:
    def __init__(self, config: RunConfig, folder: Path, until: float = math.inf):
        self.config, self.folder, self.until = config, RunFolder(folder), until
        self.team, self.counters, self.interruption = team(), _Counters(), Interruption()

    def go(self, resume: bool, report: Report, overwrite: bool = False) -> Summary:
        how, team = (self.config, resume, overwrite), self.team
        try:
            ended = team.from_first(lambda: self.folder.look(*how))
            if ended is None:
                self._build(report)
                ended = team.from_first(lambda: self.folder.begin(*how))
            if ended is not None:
                return ended
            if team.from_first(lambda: resume and self.folder.checkpoint.is_file()):
                team.on_all(self._load)
                team.from_first(lambda: os.truncate(self.folder.metrics, self.counters.metrics_bytes))
            else:
                team.from_first(lambda: self.folder.metrics.write_bytes(b""))
            return self._go(report)
        finally:
            self.folder.lock.release()

    def _go(self, report: Report) -> Summary:
        try:
            with self._open_tensorboard() as self._tensorboard, self.interruption:
                reason = self._train(report)
                status = "stopped" if reason else "finished"
        except silk.DivergenceError as error:
            status, reason = "diverged", str(error)
        except Exception:
            if self.counters.updates == 0:
                self.folder.undo()
            if self.interruption.asked and not self.team.writes:  # rank 0 has saved, and left
                raise Interrupted from None
            raise
        if self.interruption.asked:  # without a word to other ranks, which may be at another step
            if self.team.writes:
                self.folder.finish(self._summary(status, reason))
            raise Interrupted
        return self.team.from_first(lambda: self.folder.finish(self._summary(status, reason)))

    @property
    def epochs(self) -> float:
        return self.counters.queries / self.task.samples

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        steps = self.config.steps
        return self.counters.updates / steps if steps else (self.epochs + 1e-9) / self.config.budget

    def _build(self, report: Report | None = None) -> None:
        """All that can be refused, before anything is written. With a `report`, the model gets its start too."""
        self.team.on_all(self._build_task)
        if report is not None:
            self.team.on_all(lambda: prepare(self.task, report))
            self.team.spread(self.task.model)
        self.team.on_all(self._build_optimizer)

    def _build_task(self) -> None:
        config = self.config
        torch.manual_seed(config.seed)
        self.device = self.team.device(config.device)
        self.task: Task = find(config.task)(config.options, config.data_dir, self.device)
        self.parameters = sum(p.numel() for p in self.task.model.parameters())  # before an optimizer adds its own

    def _build_optimizer(self) -> None:
        config = self.config
        generator = torch.Generator().manual_seed(config.seed)
        method = methods.find(config.optimizer)
        self.optimizer = method.build(self.task.model, config, generator)
        self.task.set_reference(getattr(self.optimizer, "reference", None))
        small = config.batch_size
        assert small is not None
        anchor = small if method.plain else config.anchor_batch_size
        length = methods.inner_length(config, self.optimizer, anchor or self.task.samples, small)
        self.inner = int(length.mean) if math.isfinite(length.mean) else 10
        self.batches = self.task.batches(anchor, small, length, generator)
        self.team.split(self.batches, config.task)
        self.meter, self.line = Meter(self.task.model, self.optimizer, config.output == "uniform"), None
        if isinstance(self.optimizer, silk.VarianceReduced):
            if config.measures:
                self.optimizer.register_measures_hook(self.meter.add)
            if config.inner_lr_end is not None:
                assert config.lr is not None
                self.line = silk.InnerLine(self.optimizer, self.inner, config.lr, config.inner_lr_end)
        if config.compile:
            self.task.model.compile()

    def _train(self, report: Report) -> str:
        """Train until the budget is spent; returns why it stopped before that, else "". The clock runs during batches
        and steps alone."""
        counters, config = self.counters, self.config
        batches = iter(self.batches)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        saved_at = counters.seconds
        self._clock = self._now()
        while True:
            done, every = config.evaluated_at(self.epochs, self.share)
            if self.share >= 1 or done >= counters.next_eval or counters.updates == 1:  # 1: the initial memory
                with self._paused():
                    self._evaluate()
                counters.next_eval = (math.floor(done / every) + 1) * every
                if self.share >= 1:
                    return ""
            if self.interruption.asked and self.team.writes:  # on other ranks, rank 0 may still wait for theirs
                with self._paused():
                    self._save()
                return f"it was interrupted at {self.epochs:.2f} N"
            if time.time() > self.until:
                with self._paused():
                    self._save()  # before the evaluation: a resumed run drops this row
                    self._evaluate()
                return f"its time was over at {self.epochs:.2f} N"
            batch, is_anchor = next(batches)
            loss = self._step(batch, is_anchor)
            counters.updates += 1
            if config.track_memory and not isinstance(self.optimizer, silk.Sparse):
                with self._paused():
                    self.meter.update_memory(config.memory_decay)
            if counters.updates % 20 == 1 and self.team.writes:
                with self._paused():
                    report(Progress(self.epochs, float(loss), min(self.share, 1.0)))
                    if counters.seconds - saved_at >= config.checkpoint_every:
                        self._save()
                        saved_at = counters.seconds

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Stop the clock: `counters.seconds` is up to date inside."""
        self.counters.seconds += self._now() - self._clock
        yield
        self._clock = self._now()

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _step(self, batch: Any, is_anchor: Any) -> Tensor:
        optimizer, size = self.optimizer, self.task.size(batch)
        total = self.team.total(is_anchor, size)
        self.meter.saved_v_norm = None
        if (lr := self.config.lr_at(self.epochs, self.share)) is not None:
            for group in optimizer.param_groups:
                group["lr"] = lr

        def closure() -> Tensor:
            optimizer.zero_grad()
            with self._autocast():
                loss = self.task.loss(batch, getattr(optimizer, "evaluating", None))
            loss.backward()
            return loss.detach()

        if isinstance(optimizer, silk.VarianceReduced | silk.Sparse):
            loss = optimizer.step(closure, anchor=is_anchor, samples=size)
            self.counters.queries = optimizer.gradient_queries
            if self.line is not None:
                self.line.step()
        else:
            loss = closure()
            self.team.average(self.task.model.parameters(), is_anchor, size)
            optimizer.step()
            self.counters.queries += total
        self.counters.samples += total
        self.task.stepped()
        return loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.bf16)

    def _evaluate(self) -> None:
        """Write one row of metrics. The random state is restored, so evaluations do not change the run."""
        with torch.random.fork_rng(devices=[]), self.meter.at_output(), self._autocast():
            metrics = self.task.evaluate()
        if isinstance(self.optimizer, silk.VarianceReduced):
            self.optimizer.check()
        counters = self.counters
        row = {"queries": self.epochs, **{k: getattr(counters, k) for k in ("samples", "updates", "seconds")}}
        row |= metrics | self.meter.row()
        if self.team.writes:
            counters.metrics_bytes = self.folder.append(row)
        if self._tensorboard is not None:
            for name, value in row.items():
                self._tensorboard.add_scalar(name, value, counters.updates)

    def _save(self) -> None:
        if not methods.find(self.config.optimizer).resumes:
            return  # a resumed run begins anew
        state = {name: part.state_dict() for name, part in self._parts().items()}
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        state |= {"counters": vars(self.counters), "random": torch.get_rng_state(), "cuda": cuda}
        state |= {"run": asdict(self.config), "metrics": self.folder.metrics_sum(self.counters.metrics_bytes)}
        checkpoint.write(self.folder.checkpoint, state)

    def _parts(self) -> dict[str, Any]:
        """What has a state, by its name in a checkpoint."""
        parts = {"model": self.task.model, "optimizer": self.optimizer, "line": self.line, "batches": self.batches}
        return {name: p for name, p in (parts | {"task": self.task, "meter": self.meter}).items() if p is not None}

    def _load(self) -> None:
        """Take over the state of the checkpoint; changes no file."""
        path, parts = self.folder.checkpoint, self._parts()
        state = checkpoint.read(path, self.device, [*parts, "counters", "random", "cuda", "run", "metrics"])
        if other := differences(path, state["run"], self.config):
            raise checkpoint.refusal(path, f"it is that of a run with other settings: {other}")
        try:
            self.counters = _Counters(**{name: state["counters"][name] for name in vars(self.counters)})
            for name, part in parts.items():
                part.load_state_dict(state[name])
            torch.set_rng_state(state["random"].cpu())
            if state["cuda"] is not None:
                torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)
        except Exception as error:
            raise checkpoint.refusal(path, f"{type(error).__name__}: {str(error).splitlines()[0]}") from error
        self.folder.check_metrics(self.counters.metrics_bytes, state["metrics"])

    def _open_tensorboard(self) -> Any:
        if not self.config.tensorboard or not self.team.writes:
            return contextlib.nullcontext()
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.folder.path / "tensorboard", purge_step=self.counters.updates)

    def _summary(self, status: str, reason: str) -> Summary:
        config, task = self.config, self.task
        made = {"status": status, "reason": reason, "task": config.task, "data": task.data_name}
        made |= {"optimizer": config.optimizer, "seed": config.seed}
        made |= {"parameters": self.parameters, "samples": task.samples, "gradient_bytes": self.meter.gradient_bytes()}
        made |= {"inner_steps": self.inner, "anchors": getattr(self.optimizer, "anchors", 0), "ranks": self.team.world}
        rows = read_rows(self.folder.metrics, None)
        if status == "finished" and has_collapsed(rows, task.guess_loss):
            made |= {"status": "collapsed", "reason": f"it ended at loss {rows[-1]['train_loss']:.4g}: {_COLLAPSED}"}
        made |= {"guess_loss": task.guess_loss, "last": (last := rows[-1] if rows else {})}
        made |= {"versions": versions(), "revision": revision()}
        if self.device.type == "cuda":
            made["peak_gib"] = torch.cuda.max_memory_allocated(self.device) / 2**30
        made |= task.facts(last)
        return made | {"machine": machine(self.device)}
