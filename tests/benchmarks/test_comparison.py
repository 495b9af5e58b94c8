"""benchmarks/comparison.py: it refuses while files are missing, and its table has what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import comparison
import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")


def tuning_file(methods: list[str]) -> dict[str, Any]:
    runs, records = [], {}
    for number, method in enumerate(methods):
        trial = {"settings": {"lr": 1.0}, "loss": 1.0 + number, "status": "finished"}
        records[method] = {"trials": [trial], "best": {"lr": 1.0}, "loss": 1.0 + number, "edge": ""}
        for seed in (1, 2, 3):
            end = 1.0 + number / 100 + seed / 1000
            curve = {"queries": [0, 1], "seconds": [0.0, 6.0], "updates": [0, 600], "valid_loss": [3.0, end]}
            config = {"name": f"{method}-{seed}", "optimizer": method, "lr": 1.0, "seed": seed, "budget": 2.0}
            runs.append({"name": config["name"], "config": config, "curve": curve, "status": "finished", "reason": "",
                         "summary": {"gradient_bytes": 5_000_000}})  # fmt: skip
    made = {"conditions": {"task": "finetune", "steps": 600}, "final_budget": 0, "final_steps": 600, "target": 1.012}
    return made | {"metric": "valid_loss", "seeds": [1, 2, 3], "methods": records, "runs": runs}


def measured(methods: dict[str, float]) -> dict[str, Any]:
    runs = [{"method": m, "peak_gib": gib, "mean_ms": 10 * gib} for m, gib in methods.items()]
    return {"figures": {"runs": runs}}


NEEDED = {"adamw": 20.0, "columns-10": 8.0, "sparse-10": 9.0, "lora-64": 6.0}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    files = {
        comparison.TUNED: tuning_file([row.tuned for row in comparison.ROWS]),
        comparison.LARGE["2.7 B"]: measured(NEEDED | {"badam": 4.0}),
        comparison.LARGE["6.7 B"]: measured({"adamw": 50.0, "columns-10": 20.0, "sparse-10": 25.0, "lora-64": 15.0}),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path


def run(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["comparison.py", "--results", str(results)])
    comparison.main()


def test_the_table_and_the_picture(results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run(results, monkeypatch)
    lines = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in capsys.readouterr().out.splitlines()}
    columns = lines["SparseAdamW, 10 % of the columns"]
    assert columns[1:5] == ["1.0120 ± 0.001", "6.0", "10.0", "5.0"]  # two seeds of three are at the target at the end
    assert columns[5:] == ["8.0", "0.40", "20.0", "0.40", "6.7 B |"]
    assert lines["AdamW"][5:] == ["20.0", "1.00", "50.0", "1.00", "2.7 B |"]
    assert lines["BAdam"][5:] == ["4.0", "0.20", "-", "-", "2.7 B |"]
    assert lines["GaLore"][2] == "not reached"
    assert (results / "comparison.png").stat().st_size > 5000


@pytest.mark.parametrize("name", comparison.COMMANDS)
def test_a_missing_file_is_named_with_its_command(name: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (results / name).unlink()
    with pytest.raises(SystemExit, match="results/ has not all") as caught:
        run(results, monkeypatch)
    assert f"{results / name}: not there; make it with `{comparison.COMMANDS[name]}`" in str(caught.value)


def test_missing_methods_are_named(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (results / comparison.TUNED).write_text(json.dumps(tuning_file(["adamw", "lora"])))
    (results / comparison.LARGE["6.7 B"]).write_text(json.dumps(measured({"adamw": 1.0, "lora-64": 1.0})))
    with pytest.raises(SystemExit) as caught:
        run(results, monkeypatch)
    assert "no final runs of sparse-adamw-columns, sparse-adamw, in-backward" in str(caught.value)
    assert "no columns-10, sparse-10;" in str(caught.value)
    assert not (results / "comparison.png").exists()
