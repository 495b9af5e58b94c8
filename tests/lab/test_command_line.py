"""The command line as a whole: how fast it answers, what it says at the end, how wide its tables are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

import spidersilk
from spidersilk.lab.commands.runs import config_of
from spidersilk.lab.run import methods
from spidersilk.lab.run.config import SETTINGS, RunConfig, apply_settings, from_yaml
from spidersilk.lab.tasks import all_tasks, find

HEAVY = """
import sys
sys.argv = ["spidersilk", *sys.argv[1:]]
from spidersilk.lab.cli import main
try:
    main()
except SystemExit as ended:
    loaded = {"torch", "numpy", "matplotlib"} & set(sys.modules)
    sys.exit(99 if loaded else ended.code)
"""
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("typer", "rich", "yaml", "numpy", "matplotlib", "jinja2", "sklearn", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["spidersilk", *sys.argv[1:]]
from spidersilk.lab.cli import main
main()
"""


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["--version"], 0), (["run", "--help"], 0), (["run", "--nope"], 2), ([], 0)]
)
def test_help_does_not_wait_for_torch(words: list[str], code: int) -> None:
    done = python(HEAVY, *words)
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--help"], ["run", "logistic"]])
def test_without_the_extra_the_remedy_is_told(words: list[str]) -> None:
    done = python(WITHOUT, *words)
    assert done.returncode == 2
    assert done.stderr == "error: typer is not installed, and the command needs it: pip install 'spidersilk[lab]'\n"
    assert done.stdout == ""


def test_version(command) -> None:
    assert command("--version") == (0, f"spidersilk {spidersilk.__version__}\n")


def test_every_name_of_the_library_can_be_had() -> None:
    for name in spidersilk.__all__:
        assert getattr(spidersilk, name).__module__.startswith("spidersilk.")
    assert set(spidersilk.__all__) <= set(dir(spidersilk))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        spidersilk.nothing  # noqa: B018  # pyright: ignore


# Numbers.


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("1E-3", 0.001), (".5", 0.5), ("5.", 5.0), ("1_000", 1000), ("+2", 2)]
)
def test_numbers_are_numbers(text: str, value: float, tmp_path: Path) -> None:
    made = apply_settings(RunConfig("logistic"), [f"lr={text}", f"budget={text}"])
    assert (made.lr, made.budget) == (value, value)
    (tmp_path / "c.yaml").write_text(f"task: logistic\nlr: {text}\nlr_milestones: {{{text}: {text}}}\n")
    read = from_yaml(tmp_path / "c.yaml")
    assert (read.lr, read.lr_milestones) == (value, {value: value})


def test_a_whole_number_may_have_an_exponent() -> None:
    made = apply_settings(RunConfig("image"), ["train_samples=1e4", "batch_size=1e2", "seed=3"])
    assert (made.options, made.batch_size, made.seed) == ({"train_samples": 10_000}, 100, 3)
    assert type(made.batch_size) is int


@pytest.mark.parametrize("label", ["1e-3", "yes", "010", "null", "1:30", "~", "2020-01-01", "", "a: b", "#x"])
def test_text_survives_a_config_file(label: str, tmp_path: Path) -> None:
    made = RunConfig("logistic", label=label).completed()
    (tmp_path / "c.yaml").write_text(made.to_yaml())
    assert from_yaml(tmp_path / "c.yaml") == made


def test_every_setting_of_a_run_is_declared() -> None:
    assert set(SETTINGS) == set(vars(RunConfig("logistic")))
    assert all(setting.about for setting in SETTINGS.values())
    for task in all_tasks().values():
        assert set(task.allowed) <= set(task.options)
        assert task.checked(task.options) == task.options  # the defaults are allowed


# Step sizes.


@pytest.mark.parametrize("task", ["image", "language", "logistic", "ranking"])
def test_each_optimizer_has_its_own_step_size(task: str) -> None:
    steps = {name: RunConfig(task, name).completed().lr for name in methods.METHODS}
    assert steps["adamw"] == steps["sparse-adamw"] == find(task).rates["adamw"]
    assert steps["adamw"] < steps["sgd"]
    assert RunConfig(task, "adamw", lr=0.5).completed().lr == 0.5


@pytest.mark.parametrize("optimizer", methods.METHODS)
@pytest.mark.parametrize("task", ["image", "language", "logistic", "ranking", "finetune"])
def test_the_config_of_a_runs_folder_can_be_run(task: str, optimizer: str, tmp_path: Path) -> None:
    """All its settings have values there, also those that its optimizer ignores."""
    made = RunConfig(task, optimizer, lr=0.3).completed()
    (tmp_path / "config.yaml").write_text(made.to_yaml())
    assert config_of(None, None, tmp_path / "config.yaml", [], None, {}, None) == made


def test_a_step_size_of_ones_own_does_not_rise_inside_a_loop() -> None:
    """The line from 1 to 0.1 belongs to the paper's step size for ranking."""
    assert RunConfig("ranking", "sparse-adamw").completed().inner_lr_end == 0.01
    assert RunConfig("ranking", "sparse-svrg", lr=0.05).completed().inner_lr_end == 0.05
    assert RunConfig("ranking", "sparse-svrg", lr=0.05, inner_lr_end=0.01).completed().inner_lr_end == 0.01
    assert RunConfig("image", "sparse-svrg", lr=0.05).completed().inner_lr_end is None


def test_a_task_without_rates_has_one_step_size(monkeypatch) -> None:
    monkeypatch.setattr(find("image"), "rates", {})
    assert {RunConfig("image", name).completed().lr for name in methods.METHODS} == {0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "guess"), [("logistic", 0.6931), ("image --set data=digits --set model=fc", 2.3026)]
)
def test_no_optimizer_ends_above_guessing(options: str, guess: float, tmp_path: Path, command) -> None:
    names = [name for name, method in methods.METHODS.items() if not method.of_model]  # those need other packages
    words = ["compare", *options.split(), "--optimizers", ",".join(names), "--budget", "4", "--out", str(tmp_path)]
    code, told = command(*words)
    assert code == 0, told
    losses = [float(line.split()[4]) for line in told.splitlines() if " finished " in line]
    assert len(losses) == len(names)
    assert max(losses) < guess


# The end of a run.


def test_a_run_says_where_its_folder_and_report_are(tmp_path: Path, command) -> None:
    code, told = command("run", "logistic", "-o", "sgd", "--set", "budget=0.5", "--out", str(tmp_path), "--name", "a")
    assert code == 0, told
    assert f"folder: {tmp_path / 'a'}\n" in told
    assert f"report: {tmp_path / 'a' / 'report.html'}\n" in told
    assert (tmp_path / "a" / "report.html").is_file()


def test_a_run_that_diverges_exits_with_1(tmp_path: Path, command) -> None:
    words = ["run", "image", "-o", "sparse-spiderboost", "--set", "data=digits", "--set", "model=fc", "--set", "lr=1e9"]
    code, told = command(*words, "--out", str(tmp_path), "--name", "a")
    assert code == 1
    assert "error: a: diverged: " in told
    assert "Traceback" not in told


def test_a_folder_of_runs_is_reported_as_its_runs_are(tmp_path: Path, command) -> None:
    out = tmp_path / "runs"
    code, told = command("compare", "logistic", "--optimizers", "sgd,svrg", "--budget", "1", "--out", str(out))
    assert code == 0, told
    everything = map(str, sorted(out.iterdir()))  # as the shell gives runs/*: the report and figures too
    for number, paths in enumerate(([str(out)], everything)):
        page = tmp_path / f"{number}.html"
        code, told = command("report", *paths, "--to", str(page))
        assert code == 0, told
        assert "sgd" in page.read_text()


# Tables.

PLAN = "plan --eps 0.1 -L 10 --sigma2 5 --delta-f 2.3 --samples 60000 -d 62006"
LONG = (
    "compare image --optimizers sparse-svrg-selected,sparse-sgd-momentum --set data=digits --set model=fc --budget 0.5"
)
TABLES = {
    "list": ["sparse-svrg-selected", "logistic"],
    "list image": ["anchor_batch_size", "train_samples"],
    PLAN: ["SpiderBoost's", "9.13e-05"],
    LONG: ["image-digits-fc-sparse-svrg-selected-seed0", "image-digits-fc-sparse-sgd-momentum-seed0", "loss"],
    "reproduce all --list": ["figure1-right-sparse-spiderboost", "sparsity-cnn-sparse-spiderboost-0.02"],
    "reproduce all --scale paper --list": ["figure1-right-sparse-spiderboost-adaptive"],
    "tune logistic --methods sgd,sparse-svrg --trials 1 --budget 0.2 --seeds 1 --to t": [
        "sparse-svrg",
        "t/tune_logistic.json",
    ],
}


@pytest.mark.parametrize("typed", ["list", "list image", PLAN, "reproduce all --list"])
def test_a_narrow_table_says_what_a_wide_one_does(typed: str, command) -> None:
    (_, wide), (_, narrow) = (command(*typed.split(), width=width) for width in (300, 80))
    assert sorted(set(wide.replace("─", "").split())) == sorted(set(narrow.replace("─", "").split()))


@pytest.mark.parametrize("typed", TABLES)
def test_tables_fit_80_columns(typed: str, tmp_path: Path, monkeypatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    code, told = command(*typed.split(), width=80)
    assert code == 0, told
    assert max(len(line) for line in told.splitlines() if "─" in line or not re.match("report|folder", line)) <= 80
    assert "…" not in told
    for name in TABLES[typed]:
        assert re.search(rf"(?m)(^|\s){re.escape(name)}(\s|$)", told), told


@pytest.mark.slow
def test_tables_of_inspect_fit_80_columns(command) -> None:
    code, told = command("inspect", "logistic", "--budget", "4", "--set", "anchor_batch_size=100", width=80)
    assert code == 0, told
    assert max(map(len, told.splitlines())) <= 80
    assert "SparseSVRG, selected" in told
