"""The lab: configs, runs that survive a kill, commands with honest exit codes, and the report."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("typer", reason="needs the extra [lab]")

from rich.console import Console

import spidersilk as silk
from spidersilk.lab import cli, tasks
from spidersilk.lab.data import files
from spidersilk.lab.experiments import demo, pieces
from spidersilk.lab.experiments import paper as reproduce
from spidersilk.lab.experiments.inspecting import TaskSource
from spidersilk.lab.report import html as report
from spidersilk.lab.run import batch, runner
from spidersilk.lab.run import methods as optimizers
from spidersilk.lab.run.config import RunConfig, apply_settings, from_dict, from_yaml
from spidersilk.lab.tasks.language import Language
from spidersilk.loop.lengths import Fixed
from spidersilk.loop.loader import AnchorLoader
from spidersilk.theory import trials

DIGITS = {"data": "digits", "model": "cnn"}
SMALL = {"anchor_batch_size": 200, "batch_size": 20, "inner_steps": 5}


def config(task: str = "logistic", optimizer: str = "sparse-svrg", **rest: Any) -> RunConfig:
    return RunConfig(task, optimizer, **{"budget": 2.0, "eval_every": 0.5} | rest)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Runs the command in this process; what it printed, and its exit code."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(cli, "console", Console(width=200))

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spidersilk", *words])
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capfd.readouterr()
        return code, told.out + told.err

    return run


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


# Configs.


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
    "negative lr": (lambda: config(lr=-1.0), "lr = -1.0 must be at least 0"),
    "no budget": (lambda: config(budget=0.0), "budget = 0.0 must be positive"),
    "unknown groups": (lambda: config(groups="columns"), "groups = 'columns' is not one of 'rows', None"),
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
    with pytest.raises(ValueError, match="not a readable YAML"):
        from_yaml(tmp_path / "c.yaml")
    assert not (tmp_path / "evil").exists()


# Runs.


@pytest.mark.parametrize("optimizer", optimizers.METHODS)
def test_every_optimizer_runs(optimizer: str, tmp_path: Path) -> None:
    told = runner.run(config(optimizer=optimizer, lr=0.1, inner_steps=20), tmp_path / "run")
    assert told["status"] == "finished"
    assert told["last"]["queries"] >= 2.0
    rows = metrics(tmp_path / "run")
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert told["parameters"] == 30
    assert told["machine"]["cpu"]
    assert told["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("optimizer", ["sparse-svrg", "sparse-sgd", "sparse-spiderboost"])
def test_whole_rows_in_the_lab(optimizer: str, tmp_path: Path) -> None:
    made = apply_settings(config("image", optimizer, options=DIGITS | {"model": "fc"}, **SMALL), ["groups=rows"])
    going = runner.Run(replace(made, lr=0.02).completed(), tmp_path / "run")
    assert going.go(False, lambda _: None)["status"] == "finished"
    assert metrics(tmp_path / "run")[-1]["train_loss"] < metrics(tmp_path / "run")[0]["train_loss"]
    shapes = [p.shape for p in going.task.model.parameters()]
    density = going.optimizer.sparsity.density(shapes)
    saved = going.optimizer.state_dict()["selections"]
    assert all(s["top"].numel() + s["random"].numel() == density * s["d"] for s in saved or [])
    long = runner.Run(replace(made, inner_steps="theorem-2").completed(), tmp_path / "long")
    long._build()
    assert long.inner == math.ceil(200 / 20 / density)


def test_plain_sgd_in_the_lab_is_sgd(tmp_path: Path) -> None:
    """The runner's own steps against a loop written here."""
    made = config("image", "sgd", options=DIGITS, lr=0.1, batch_size=50, budget=0.5)
    run = runner.Run(made.completed(), tmp_path / "run")
    run.go(False, lambda _: None)
    torch.manual_seed(0)
    task = tasks.find("image")(DIGITS, None, torch.device("cpu"))
    base = torch.optim.SGD(task.model.parameters(), 0.1)
    loader = AnchorLoader(task.train, 50, 50, 1, loops=10**9, generator=torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
    for number, (batch_of_50, _) in enumerate(loader):
        if number == run.meters.updates:
            break
        base.zero_grad()
        task.loss(batch_of_50, None).backward()
        base.step()
    assert all(map(torch.equal, run.task.model.parameters(), task.model.parameters()))


def test_looking_more_often_changes_nothing(tmp_path: Path) -> None:
    ends = []
    for every in (1.0, 0.05):
        run = runner.Run(
            config("image", options=DIGITS, eval_every=every, budget=1.0, **SMALL).completed(), tmp_path / str(every)
        )
        run.go(False, lambda _: None)
        ends.append(torch.cat([p.detach().reshape(-1) for p in run.task.model.parameters()]))
    assert torch.equal(*ends)


def test_divergence_keeps_what_was_measured_and_others_go_on(tmp_path: Path) -> None:
    bad = config("image", "sparse-spiderboost", options=DIGITS, lr=500.0, name="bad", eval_every=0.05, **SMALL)
    good = config(name="good")
    told = batch.run_all([bad, good], tmp_path, jobs=1, resume=False, console=Console(quiet=True))
    assert [t["status"] for t in told] == ["diverged", "finished"]
    assert "Theorem 1" in told[0]["reason"]
    assert metrics(tmp_path / "bad")


def test_side_by_side(tmp_path: Path) -> None:
    configs = [config(optimizer=o, name=o) for o in ("svrg", "sgd")]
    configs.append(
        replace(config("image", name="nodata"), data_dir=str(tmp_path), options={"train_samples": -1, "data": "digits"})
    )
    told = batch.run_all(configs, tmp_path, jobs=2, resume=False, console=Console(quiet=True))
    assert [t["status"] for t in told[:2]] == ["finished", "finished"]
    alone = runner.run(configs[0], tmp_path / "alone")
    assert {k: v for k, v in told[0]["last"].items() if k != "seconds"} == {
        k: v for k, v in alone["last"].items() if k != "seconds"
    }


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    runner.run(config(), tmp_path / "run")
    before = (tmp_path / "run" / "summary.json").read_text()
    with pytest.raises(runner.RunError, match="holds a run already"):
        runner.run(config(), tmp_path / "run")
    with pytest.raises(runner.RunError, match="other settings"):
        (tmp_path / "run" / "summary.json").rename(tmp_path / "kept")
        runner.run(config(lr=0.1), tmp_path / "run", resume=True)
    (tmp_path / "kept").rename(tmp_path / "run" / "summary.json")
    assert runner.run(config(), tmp_path / "run", resume=True)["status"] == "finished"
    assert (tmp_path / "run" / "summary.json").read_text() == before


KILLED: dict[str, dict[str, Any]] = {
    "image": {"options": {"data": "digits", "model": "fc"}, "budget": 6.0, **SMALL},
    "logistic": {"options": {"data": "digits"}, "budget": 15.0, "lr": 1.0},
    "ranking": {"options": {"rank": 5}, "budget": 0.4},
    "language": {"options": {"hidden": 16, "embedding": 8, "train_tokens": 40_000, "eval_tokens": 4000}, "budget": 2.0},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "optimizer"), [("image", "sparse-sgd"), ("image", "momentum"), *((task, "sparse-svrg") for task in KILLED)]
)
def test_kill_and_resume_ends_as_if_nothing_had_happened(task: str, optimizer: str, tmp_path: Path, request) -> None:
    if task in ("ranking", "language"):
        request.getfixturevalue("data_dir")
    settings = KILLED[task]
    made = config(task, optimizer, **settings, checkpoint_every=0.05)
    made = replace(made, eval_every=made.budget / 20).completed()
    runner.run(made, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    job = tmp_path / "job.yaml"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for attempt in range(20):
        job.write_text(made.to_yaml())
        resume = ["--resume"] if attempt else []
        process = subprocess.Popen(
            [sys.executable, "-m", "spidersilk.lab.run.worker", str(job), str(folder), *resume], env=environment
        )
        enough = (attempt + 1) * 5
        while process.poll() is None and attempt < 2:
            rows = (folder / "metrics.jsonl").read_text().count("\n") if (folder / "metrics.jsonl").exists() else 0
            if rows >= enough and (folder / "checkpoint.pt").exists():
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        if process.wait() == 0:
            break
    assert attempt >= 1, "it was over before it could be killed"
    assert metrics(folder) == metrics(tmp_path / "whole")


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/evil",)

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(config().completed().to_yaml())
    (folder / "checkpoint.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(runner.RunError, match="not a checkpoint that can be loaded"):
        runner.run(config(), folder, resume=True)
    assert not (tmp_path / "evil").exists()


@pytest.fixture
def tiny_disk(tmp_path: Path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    made = shutil.which("mount") and os.geteuid() == 0
    if (
        not made
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], check=False).returncode
    ):
        pytest.skip("needs the right to mount a small tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_gives_one_message_and_keeps_earlier_results(tiny_disk: Path) -> None:
    runner.run(config(), tiny_disk / "first")
    kept = {p.name: p.read_bytes() for p in (tiny_disk / "first").iterdir()}
    bad = config("image", options={"data": "digits", "model": "fc"}, checkpoint_every=0.0, budget=1.0, **SMALL)
    with pytest.raises(runner.RunError, match="cannot be written"):
        runner.run(bad, tiny_disk / "second")
    assert {p.name: p.read_bytes() for p in (tiny_disk / "first").iterdir()} == kept
    assert not list(tiny_disk.rglob("*.part"))


# Commands.


def test_commands(tmp_path: Path, command) -> None:
    out = str(tmp_path / "runs")
    code, told = command("list")
    assert code == 0
    assert all(name in told for name in (*optimizers.METHODS, *tasks.all_tasks()))
    code, told = command("run", "logistic", "--optimizer", "svrg", "--set", "budget=1", "--out", out, "--seeds", "2")
    assert code == 0, told
    code, told = command("compare", "logistic", "--optimizers", "sgd,sparse-svrg", "--budget", "2", "--out", out)
    assert code == 0, told
    assert (tmp_path / "runs" / "report.html").is_file()
    folders = map(str, (tmp_path / "runs").glob("logistic*"))
    code, told = command("report", *folders, "--to", str(tmp_path / "page.html"))
    assert code == 0, told
    for words in (
        [],
        ["run"],
        ["compare"],
        ["reproduce"],
        ["report"],
        ["demo"],
        ["list"],
        ["plan"],
        ["inspect"],
        ["tune"],
    ):
        code, told = command(*words, "--help")
        assert code == 0
        assert not words or "Example" in told


PLAN = ["plan", "--eps", "0.1", "-L", "10", "--sigma2", "5", "--delta-f", "2.3", "--samples", "60000", "-d", "62006"]


def test_plan_command(command) -> None:
    code, told = command(*PLAN, "--k1", "0", "--k2", "1")
    assert code == 0, told
    assert "1000" in told  # B = 2 sigma2 / eps^2
    assert "9.13e-05" in command(*PLAN)[1]  # sqrt(k2 / (6 d m)) / L
    code, told = command(*PLAN, "--k2", "0", "--outside", "0.5")
    assert code == 0
    assert "needs an unbiased operator" in told


def test_inspect_command(tmp_path: Path, command) -> None:
    saved = tmp_path / "found.json"
    code, told = command("inspect", "logistic", "--budget", "4", "--set", "anchor_batch_size=100", "--save", str(saved))
    assert code == 0, told
    assert "entropy of M" in told
    figures = json.loads(saved.read_text())["figures"]
    assert " ".join(figures["verdict"].split()[:3]) in " ".join(told.split())
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "model = nn.Linear(4, 1)\ndata = torch.randn(200, 4)\nanchor_batch_size, batch_size = 50, 10\n"
        "def loss(model, x):\n    return (model(x)[:, 0] - x.sum(1)).square().mean()\n"
    )
    code, told = command("inspect", str(file), "--budget", "4")
    assert code == 0, told
    assert "to the best dense method's loss" in told


def test_a_stateful_task_is_inspected_with_the_state_of_its_reference(data_dir: str) -> None:
    """With lr = 0 both points of an anchored difference are one, so it is zero if both start from the same state."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 4000, "eval_tokens": 800}
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    source = TaskSource(task, 8, 4)
    optimizer = silk.SVRG(task.model.parameters(), lr=0.0)
    source.prepare("anchor")
    told: list[silk.Measures] = []
    optimizer.register_measures_hook(told.append)
    for _, (chunk, is_anchor) in zip(range(6), source.batches(Fixed(6), 0, 8), strict=False):

        def closure(chunk: Any = chunk) -> torch.Tensor:
            optimizer.zero_grad()
            loss = source.loss(chunk, optimizer.evaluating)
            loss.backward()
            return loss.detach()

        optimizer.step(closure, anchor=is_anchor)
        source.stepped()
    assert [m.top_energy for m in told] == [0.0] * 5


def test_an_inspection_of_a_stateful_task_goes_on_where_it_was(data_dir: str) -> None:
    """A run that stops, while another of its method runs, ends as one that does not stop."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 4000, "eval_tokens": 800}
    torch.manual_seed(0)
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    source = TaskSource(task, 8, 4)
    for method in (m for m in trials.METHODS if m.name in ("AdamW", "SparseSVRG", "SparseAdamW")):
        whole, parted = (trials._Run(task.model, source, method, 0.01) for _ in range(2))
        whole.go_to(160, 40)
        parted.go_to(80, 40)
        trials._Run(task.model, source, method, 0.02, seed=1).go_to(80, 40)
        parted.go_to(160, 40)
        assert parted.trial.losses == whole.trial.losses, method.name
        assert len(set(whole.trial.losses)) > 2, method.name


@pytest.mark.parametrize("rows", [5, 10, 20, 40])
def test_evaluated_text_is_as_old_as_the_rest(data_dir: str, rows: int) -> None:
    """When a pass over the text in so many rows comes to the tokens that are looked at is spread evenly over it: the
    largest difference from the even distribution. The first 20,000 of 200,000 tokens have 0.5 with 5 rows."""
    options = {"hidden": 8, "embedding": 4, "train_tokens": 200_000}
    task = tasks.find("language")(options, data_dir, torch.device("cpu"))
    assert isinstance(task, Language)
    pieces = task._spread(torch.arange(200_000))
    assert pieces.shape == (100, 200)
    assert 0 <= pieces.min() < 2000
    assert 198_000 < pieces.max() < 200_000
    ages = (pieces.flatten().double() * rows / 200_000 % 1).sort().values
    even = torch.linspace(0, 1, len(ages), dtype=torch.float64)
    assert (ages - even).abs().max() < 0.05


@pytest.mark.parametrize(("optimizer", "task"), [("sparse-svrg", "logistic"), ("sparse-spiderboost", "image")])
def test_adaptive_loops_and_measures_in_the_lab(optimizer: str, task: str, tmp_path: Path) -> None:
    options = {} if task == "logistic" else {"data": "digits", "model": "fc"}
    small = SMALL | {"inner_steps": "auto"}
    made = config(task, optimizer=optimizer, options=options, measures=True, budget=3.0, **small)
    summary = runner.run(made, tmp_path / "run")
    assert summary["status"] == "finished"
    assert 0 < summary["last"]["captured"] <= 1
    assert summary["last"]["noise"] > 0
    assert summary["anchors"] > 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([*PLAN, "--eps", "-1"], "eps = -1.0 must be a positive number"),
        ([*PLAN, "--k1", "1.5"], "neither a fraction"),
        (["inspect", "nowhere.py"], "there is no such file"),
        (["inspect", "logistc"], "did you mean 'logistic'"),
        (["inspect", "logistic", "--budget", "0.1"], "at least four anchors"),
        (["run", "logistc"], "did you mean 'logistic'"),
        (["run", "logistic", "--optimizer", "sgdd"], "did you mean 'sgd'"),
        (["run", "logistic", "--set", "lr=-1"], "lr = -1 must be at least 0"),
        (["run", "image", "--set", "data=mnst"], "did you mean 'mnist'"),
        (["reproduce", "figure9"], "did you mean 'figure"),
        (["reproduce", "figure1", "--scale", "papre"], "did you mean 'paper'"),
        (["report", "/nowhere"], "no run folder"),
        (["run"], "give a task or a --config"),
    ],
)
def test_mistakes_on_the_command_line(words: list[str], told: str, tmp_path: Path, command) -> None:
    out = [] if words[0] in ("report", "plan", "inspect") else ["--out", str(tmp_path)]
    code, said = command(*words, *out)
    assert code != 0
    assert told in said
    assert "Traceback" not in said


def test_missing_data_fails_the_run_with_one_message(tmp_path: Path, command, monkeypatch) -> None:
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, told = command("run", "ranking", "--out", str(tmp_path))
    assert code == 1
    assert "movielens/ml-100k/u.data: not found" in told
    assert "Traceback" not in told


def test_without_data_digits_stand_in_and_the_rest_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(file: files.File, data_dir: Any) -> bytes:
        raise files.DataError(f"{file.path}: not found")

    monkeypatch.setattr(files, "_download", offline)
    monkeypatch.setenv("SPIDERSILK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = reproduce.experiments("smoke")
    found, absent = pieces.with_data([c for part in known["figure1"] for c in part.configs])
    assert [c.options["data"] for c, _ in found.values()] == ["digits"] * 5  # the CNN; nothing stands in for ResNet-18
    told = list(absent.values())
    assert len(told) == 10
    assert "cifar10/data_batch_1.bin: not found" in told[0]
    assert "digits stand in" in told[-1]
    assert pieces.with_data([c for part in known["figure2"] + known["figure3"] for c in part.configs])[0] == {}
    (table,) = known["table1"]
    assert pieces.with_data(table.configs, stand_in=False)[0] == {}
    found, told = pieces.with_data(table.configs)
    kept = [c for c, _ in found.values()]
    assert [(c.options["model"], c.options["data"], c.label) for c in kept] == [
        ("fc", "digits", "fc, digits"), ("cnn", "digits", "cnn, digits")
    ]  # fmt: skip
    assert len(told) == 8
    runner.run(replace(kept[0], budget=0.5), tmp_path / "run")
    section = report.Section("s", [report.load_run(tmp_path / "run")])
    table.conclude(section)
    (_, head, rows) = section.tables[0]
    assert len(head) == len(rows[0])
    assert rows[0][:2] == ["fc, digits", "18.234"]


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_experiments_are_whole(scale: str) -> None:
    """Every name is used once, and all settings of the paper are in the configs at its own scale."""
    known = reproduce.experiments(scale)
    configs = [c.completed() for parts in known.values() for part in parts for c in part.configs]
    assert len({c.name for c in configs}) == len(configs)
    assert len(known["table1"][0].configs) == 8
    if scale == "paper":
        image = next(c for c in configs if c.name == "figure1-left-sparse-spiderboost")
        assert (image.lr, image.anchor_batch_size, image.batch_size, image.inner_steps) == (0.1, 1000, 100, 10)
        assert (image.memory_decay, image.k1, image.budget) == (0.5, None, 50.0)  # k1 = k2 = 5 % is the default
        language = next(c for c in configs if c.name == "figure2-spiderboost")
        assert (language.lr, language.anchor_batch_size, language.batch_size, language.inner_steps) == (0.2, 40, 20, 2)
        ranking = next(c for c in configs if c.name == "figure3-sgd")
        assert (ranking.lr, ranking.batch_size, ranking.lr_milestones) == (0.1, 103, {10.0: 0.01, 20.0: 0.001})


def test_the_demos_runs(tmp_path: Path) -> None:
    for part in demo.parts():
        assert [c.optimizer for c in part.configs] == list(demo.METHODS)
        for made in part.configs[-2:]:
            told = runner.run(replace(made, budget=3.0, eval_every=1.0), tmp_path / made.name)
            assert told["status"] == "finished"


# Adding to the lab, as docs/lab.md describes.


class Line(tasks.Task):
    """A straight line through points: one file is all a task needs."""

    name = "line"
    about = "least squares"
    options: ClassVar[dict[str, Any]] = {"slope": 2.0}
    settings: ClassVar[dict[str, Any]] = {"lr": 0.1, "anchor_batch_size": 40, "batch_size": 8, "inner_steps": 5}

    def __init__(self, options: dict[str, Any], data_dir: Any, device: torch.device):
        super().__init__(options, data_dir, device)
        self.x = torch.linspace(-1, 1, 80)[:, None]
        self.samples = 80
        self.model = nn.Linear(1, 1)

    def batches(self, anchor: int, small: int, inner: Any, generator: torch.Generator) -> AnchorLoader:
        return AnchorLoader(self.x, anchor, small, inner, loops=10**9, generator=generator)

    def loss(self, batch: Tensor, point: str | None) -> Tensor:
        return (self.model(batch) - self.given["slope"] * batch).square().mean()

    def size(self, batch: Tensor) -> int:
        return len(batch)

    def evaluate(self) -> dict[str, float]:
        return {"train_loss": float(self.loss(self.x, None).detach())}


def test_adding_a_task_and_an_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
    monkeypatch.setattr(optimizers, "METHODS", dict(optimizers.METHODS))
    tasks.register(Line)
    optimizers.register(
        "rprop", optimizers.Method("Rprop", lambda params, c, g: torch.optim.Rprop(params, c.lr), plain=True)
    )
    for name in ("rprop", "sparse-svrg"):
        made = config("line", name, options={"slope": 3.0}, budget=20.0, k1=1, k2=1)
        told = runner.run(made, tmp_path / name)
        assert told["last"]["train_loss"] < 0.1


# The report.


def test_report_is_self_contained(tmp_path: Path) -> None:
    for name in ("sgd", "svrg", "sparse-svrg"):
        runner.run(config(optimizer=name, name=name), tmp_path / name)
    curves = [report.load_run(tmp_path / name) for name in ("sgd", "svrg", "sparse-svrg")]
    path = report.write(report.sections_of(curves), tmp_path / "report.html", "A <title>", "spidersilk compare")
    page = path.read_text()
    assert page.count("<svg") == 3  # by queries, by seconds, entropy
    assert "A &lt;title&gt;" in page
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert all(link.startswith("data:") for link in links)
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert len(list(tmp_path.glob("figure-*.png"))) == 3


def test_cost_to_a_common_target() -> None:
    def curve(label: str, losses: list[float], status: str = "finished") -> report.Curve:
        rows = [{"queries": float(q), "seconds": 2.0 * q, "train_loss": x} for q, x in enumerate(losses)]
        return report.Curve(label, rows, status)

    curves = [curve("a", [9, 3, 2]), curve("b", [9, 8, 2.5]), curve("c", [9, 99], "diverged")]
    assert report.common_target(curves, "train_loss") == 2.5
    assert report.cost_to_target(curves[0], "train_loss", 2.5) == (2.0, 4.0)
    name, head, rows = report.target_table(report.Section("s", curves))
    assert [row[3] for row in rows] == ["2.00", "2.00", "not reached"]
    assert len(head) == len(rows[0])
    assert "2.5" in name


def test_verdicts() -> None:
    def curve(optimizer: str, losses: list[float], status: str = "finished") -> report.Curve:
        rows = [{"queries": float(q), "seconds": 1.0 * q, "train_loss": x} for q, x in enumerate(losses)]
        return report.Curve(optimizer, rows, status, config={"optimizer": optimizer})

    good = report.Section("s", [curve("spiderboost", [9, 8, 7]), curve("sparse-spiderboost", [9, 6, 5])])
    reproduce.sparse_beats_dense(good)
    assert good.claims[0].verdict == "reproduced"
    bad = report.Section("s", [curve("spiderboost", [9, 8, 7]), curve("sparse-spiderboost", [9, 60], "diverged")])
    reproduce.sparse_beats_dense(bad)
    assert bad.claims[0].verdict == "not reproduced: it diverged"
    idle = report.Section("s", [curve("spiderboost", [9, 10, 11]), curve("sparse-spiderboost", [9, 6, 5])])
    reproduce.sparse_beats_dense(idle)
    assert idle.claims[0].verdict == "no verdict: the budget is too small"


@pytest.mark.browser
def test_report_in_a_browser(tmp_path: Path) -> None:
    browser = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
    if browser is None:
        pytest.skip("needs Chromium")
    for name in ("sgd", "sparse-svrg"):
        runner.run(config(optimizer=name, name=name), tmp_path / name)
    curves = [report.load_run(tmp_path / name) for name in ("sgd", "sparse-svrg")]
    path = report.write(report.sections_of(curves), tmp_path / "report.html", "Runs", "spidersilk compare")
    # A script of the test's own writes down what the page asked the network for, and what went wrong in it.
    spy = """<script>window.addEventListener("load", () => { document.body.dataset.asked =
        performance.getEntriesByType("resource").map((entry) => entry.name).join(" ") || "nothing"; })</script>"""
    watched = tmp_path / "watched.html"
    watched.write_text(path.read_text().replace("</body>", spy + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
             "--enable-logging=stderr", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [browser, *flags, f"file://{watched}"], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 3
    assert 'data-asked="nothing"' in done.stdout


# The orders that the prototypes found.


@pytest.mark.slow
def test_ranking_has_the_order_of_the_prototypes(data_dir: str, tmp_path: Path) -> None:
    """After 3 epochs of queries: SGD as in the paper, SpiderBoost, Algorithm 1; and tuned SGD below all."""
    losses = []
    for name, settings in (
        ("sgd", {"lr": 0.1}),
        ("spiderboost", {}),
        ("sparse-spiderboost", {}),
        ("sgd", {"lr": 10.0}),
    ):
        made = config("ranking", name, budget=3.0, eval_every=3.0, **settings)
        losses.append(runner.run(made, tmp_path / str(len(losses)))["last"]["train_loss"])
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_logistic_has_the_order_of_the_prototypes(data_dir: str, tmp_path: Path) -> None:
    """w8a after 13 n queries: the anchored sparse form is ahead of SVRG."""
    gaps = {}
    for name in ("sparse-svrg", "svrg"):
        made = config("logistic", name, options={"data": "w8a"}, budget=13.0, eval_every=13.0)
        gaps[name] = runner.run(made, tmp_path / name)["last"]["gap"]
    assert 3 * gaps["sparse-svrg"] < gaps["svrg"]
