"""The folder of a run: config.yaml, metrics.jsonl, summary.json, and checkpoint.pt while the run is under way."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from spidersilk.lab.data.files import write_atomically as write_atomically
from spidersilk.lab.run.config import RunConfig, from_yaml

FINISHED = ("finished", "diverged")  # the statuses of a run that will not go on
Row = dict[str, Any]  # one line of metrics.jsonl: queries, samples, updates, seconds and the metrics by name
Summary = dict[str, Any]  # summary.json: status, reason, the last row, versions, machine


class RunError(RuntimeError):
    """A run cannot start or go on; the message says why and what to do."""


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.metrics, self.checkpoint = path / "metrics.jsonl", path / "checkpoint.pt"

    def open(self, config: RunConfig, resume: bool) -> Summary | None:
        """Create the folder, or check that it belongs to this run; returns the summary if the run has ended."""
        summary = self.path / "summary.json"
        if resume and summary.is_file():
            saved = json.loads(summary.read_text())
            if saved["status"] in FINISHED:
                return saved
        settings = self.path / "config.yaml"
        if not settings.is_file():
            write_atomically(settings, config.to_yaml().encode())
        elif not resume:
            raise RunError(f"{self.path} holds a run already: give --resume to go on, or another name")
        elif from_yaml(settings) != config:
            raise RunError(f"{self.path} holds a run with other settings (its config.yaml): give another name")
        return None

    def append(self, row: Row) -> int:
        """Add a row to the metrics; returns the size of the file."""
        with self.metrics.open("ab") as stream:
            stream.write(json.dumps(row).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
            return stream.tell()

    def last_row(self) -> Row:
        lines = self.metrics.read_text().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def finish(self, summary: Summary) -> Summary:
        """Write the summary; a run that will not go on needs its checkpoint no more."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=1).encode() + b"\n")
        if summary["status"] in FINISHED:
            self.checkpoint.unlink(missing_ok=True)
        return summary

    def save(self, state: dict[str, Any]) -> None:
        partial = self.path / "checkpoint.pt.part"
        try:
            torch.save(state, partial)
            partial.replace(self.checkpoint)
        except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError on a full disk
            partial.unlink(missing_ok=True)
            raise RunError(f"{partial}: cannot be written ({str(error).splitlines()[0]}): free some space") from error

    def load(self, device: torch.device) -> dict[str, Any]:
        try:
            return torch.load(self.checkpoint, map_location=device, weights_only=True)
        except Exception as error:
            kind = type(error).__name__
            raise RunError(f"{self.checkpoint}: not a checkpoint that can be loaded ({kind}): remove it") from error
