"""benchmarks/memory.py: which methods are refused, which timed steps are anchors, and the table."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import memory
import pytest
import torch

REFUSED = [
    ("galor", "there is no method 'galor'; there are adamw, sparse-P"),
    ("lora-0", "there is no method 'lora-0'"),
    ("sparse-0", "sparse-0: 0 % must be above 0 and at most 100"),
    ("sparse-top-101", "sparse-top-101: 101 % must be above 0"),
    ("", "there is no method ''"),
]


@pytest.mark.parametrize(("method", "message"), REFUSED)
def test_a_method_is_refused_in_one_line(method: str, message: str) -> None:
    line = memory.refusal(method)
    assert line is not None
    assert line.startswith(message)
    assert "\n" not in line


@pytest.mark.parametrize("method", [*memory.METHODS, "lora-64", "sparse-0.5", "columns-10", "rows-top-5"])
def test_what_needs_no_package_is_not_refused(method: str) -> None:
    assert memory.refusal(method) is None


def given(method: str, steps: int = 6) -> argparse.Namespace:
    return argparse.Namespace(one=method, device="cpu", size="tiny", sequences=1, length=8, steps=steps, threads=0,
                              no_checkpointing=True, compile=False, seed=0, turns=1)  # fmt: skip


@pytest.mark.parametrize("method", ["sparse-5", "sparse-top-5", "columns-5"])
def test_one_timed_step_is_an_anchor_and_makes_a_selection(method: str) -> None:
    run = memory.Run(given(method))
    compact = [c for c in run.optimizer._weights if not c.is_whole][-1]  # of the head
    for _ in range(memory.WARM_UP):
        run.timed()
    run.renew_every(6)
    for _ in range(6):
        before = compact.indices.clone()
        _, anchor = run.timed()
        assert anchor == (not torch.equal(before, compact.indices))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("adamw", {"anchors": 0, "anchor_ms": None, "anchor_every": None, "micro_batches": 4, "clipped": True}),
        ("in-backward", {"anchors": 0, "anchor_every": None, "micro_batches": 1, "clipped": False}),
        ("sparse-5", {"anchors": 1, "anchor_every": 6, "micro_batches": 4, "clipped": True}),
        ("lora-2", {"anchors": 0, "micro_batches": 4, "clipped": True}),
    ],
)
def test_a_result_says_what_was_in_it(method: str, expected: dict[str, object]) -> None:
    result = memory.run_one(given(method))
    assert {name: result[name] for name in expected} == expected
    assert result["method"] == method
    assert 0 < result["median_ms"] <= result["slowest_ms"]
    assert (result["anchor_ms"] is not None) == bool(result["anchors"])


def test_the_table_has_ratios_of_the_same_repeat() -> None:
    runs = [
        {
            "repeat": r,
            "method": m,
            "mean_ms": mean,
            "median_ms": 1.0,
            "anchors": 0,
            "anchor_ms": None,
            "anchor_every": e,
        }
        for m, e, means in [("adamw", None, (10.0, 20.0, 40.0)), ("galore", 200, (20.0, 30.0, 40.0))]
        for r, mean in enumerate(means)
    ]
    lines = memory.table(runs).splitlines()
    assert lines[2].split()[:6] == ["galore", "3", "30.00", "1.00", "1.500", "(1.000-2.000)"]
    assert lines[3].startswith("galore: its anchors, every 200 steps, are not in mean_ms")
    assert memory.table([run for run in runs if run["method"] == "galore"]).splitlines()[1].split()[4] == "-"


def test_a_missing_rival_is_refused_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Done:
        result = '{"method": "adamw", "mean_ms": 1, "median_ms": 1, "anchors": 0, "anchor_every": null}'

        def __init__(self, *_: object) -> None: ...

        def wait(self) -> None: ...

        def take_turn(self) -> None: ...

    monkeypatch.setitem(sys.modules, "badam", None)
    monkeypatch.setattr(sys, "argv", ["memory.py", "--methods", "badam,adamw"])
    monkeypatch.setattr(memory, "Process", Done)
    with pytest.raises(SystemExit) as ended:
        memory.main()
    assert ended.value.code == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("error: badam needs badam")
    assert printed[1].startswith("tiny 1 0 {")


@pytest.mark.parametrize(
    ("turns", "order"),
    [
        (1, ["start a", "wait a", "turn a", "start b", "wait b", "turn b"]),
        (2, ["start a", "start b", "wait a", "wait b", "turn a", "turn b", "turn a", "turn b"]),
    ],
)
def test_processes_that_take_turns_start_before_any_is_waited_for(
    turns: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Noted:
        def __init__(self, method: str, *_: object) -> None:
            self.method = method
            done.append(f"start {method}")

        def wait(self) -> None:
            done.append(f"wait {self.method}")

        def take_turn(self) -> None:
            done.append(f"turn {self.method}")

    monkeypatch.setattr(memory, "Process", Noted)
    assert len(list(memory.take_turns(["a", "b"], argparse.Namespace(turns=turns), 0))) == 2
    assert done == order


def test_timed_steps_come_in_turns() -> None:
    asked: list[int] = []
    options = given("sparse-5", steps=7)
    options.turns = 3
    result = memory.run_one(options, lambda: asked.append(1))
    assert len(asked) == 3
    assert result["anchors"] == 1


@pytest.mark.slow
def test_processes_take_turns_and_one_that_fails_is_an_error() -> None:
    command = [sys.executable, memory.__file__, "--size", "tiny", "--length", "8", "--threads", "1", "--device", "cpu"]
    large = f"lora-{10**13}"  # no machine has memory for it
    command += ["--methods", f"adamw,sparse-5,{large}", "--steps", "5", "--turns", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(memory.__file__).parents[1])
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.startswith("tiny 1 0 {") for line in lines[:2]] == [True, True]
    assert any(line.startswith(f"tiny 1 0 error: {large}: ") for line in lines)
    assert lines[-2].startswith("adamw     1     ")
    assert lines[-1].startswith("sparse-5  1     ")
