"""Configs: YAML, settings by name, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import DIGITS, config

from spidersilk.lab.run.config import apply_settings, from_dict, from_yaml


def test_a_config_goes_through_yaml_and_back(tmp_path: Path) -> None:
    made = config("image", options=DIGITS, lr_milestones={1.0: 0.01}, k1=5, label="x").completed()
    (tmp_path / "c.yaml").write_text(made.to_yaml())
    assert from_yaml(tmp_path / "c.yaml") == made
    assert made.lr == 0.1  # the paper's, from the task
    assert config("image", lr=0.3).completed().lr == 0.3


def test_settings_by_name() -> None:
    made = apply_settings(config("image"), ["lr=0.5", "data=digits", "k1=0.1", "lr_milestones={3: 0.1}"])
    assert (made.lr, made.options, made.k1, made.lr_milestones) == (0.5, {"data": "digits"}, 0.1, {3: 0.1})


BAD = {
    "unknown key": (lambda: from_dict({"task": "image", "optimiser": "sgd"}), "did you mean 'optimizer'"),
    "unknown task": (lambda: config("imag"), "did you mean 'image'"),
    "unknown optimizer": (lambda: config(optimizer="sparse-sgdd"), "did you mean 'sparse-sgd'"),
    "negative lr": (lambda: config(lr=-1.0), "lr = -1.0 must be a number above 0"),
    "no budget": (lambda: config(budget=0.0), "budget = 0.0 must be a number from 1e-06 to 1,000,000,000"),
    "unknown groups": (lambda: config(groups="blocks"), "groups = 'blocks' is not known; there are 'rows', 'columns'"),
    "unknown setting": (lambda: apply_settings(config(), ["batchsize=3"]), "did you mean 'batch_size'"),
    "no value": (lambda: apply_settings(config(), ["lr"]), "write it as key=value"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configs(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"!!python/object/apply:os.system ['touch {tmp_path}/evil']")
    with pytest.raises(ValueError, match="not readable as YAML"):
        from_yaml(tmp_path / "c.yaml")
    assert not (tmp_path / "evil").exists()
