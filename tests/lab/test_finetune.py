"""Fine-tuning: the texts, the pretrained start that is made once, and runs that end with a falling step size."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import QUIET, config, metrics

from spidersilk.lab import messages, peers
from spidersilk.lab.data import texts
from spidersilk.lab.data.files import DataError, files_like
from spidersilk.lab.experiments.tuner import tune
from spidersilk.lab.experiments.tuning import Tuning
from spidersilk.lab.run import runner
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.run.errors import Interrupted, RunError
from spidersilk.lab.run.start import Progress, path_of, prepare
from spidersilk.lab.tasks.finetune import Finetune

CPU = torch.device("cpu")
OPTIONS = {"text": "library", "train_bytes": 8000, "eval_samples": 8, "pretrain_steps": 3}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "spidersilk" / "starts"


def made(optimizer: str = "sparse-adamw", **rest: Any) -> RunConfig:
    options = OPTIONS | rest.pop("options", {})
    return config(
        "finetune", optimizer, options=options, **{"batch_size": 8, "anchor_batch_size": 8, "lr": 0.01} | rest
    )


def task(**options: Any) -> Finetune:
    return Finetune(OPTIONS | options, None, CPU)


# Runs.


@pytest.mark.parametrize(("optimizer", "lr"), [("adamw", 0.002), ("momentum", 0.05), ("sparse-adamw", 0.01)])
def test_the_loss_falls_from_that_of_the_start(optimizer: str, lr: float, tmp_path: Path) -> None:
    told = runner.run(made(optimizer, lr=lr, steps=12, eval_every=100.0), tmp_path / "run")
    assert told["status"] == "finished"
    first, *_, last = metrics(tmp_path / "run")
    assert last["updates"] == 12
    assert last["train_loss"] < first["train_loss"] - 0.05
    assert last["valid_loss"] < first["valid_loss"] - 0.05
    assert told["tokens_per_second"] > 0
    assert told["start"]["text_sha256"] == task().start()["text_sha256"]


@pytest.mark.parametrize("optimizer", ["adamw", "sparse-adamw"])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(optimizer: str, tmp_path: Path) -> None:
    sizes = {"batch_size": 2, "anchor_batch_size": 2, "inner_steps": 4}
    run = made(
        optimizer, steps=26, eval_every=0.2, checkpoint_every=0.0, lr=0.002, options={"eval_samples": 2}, **sizes
    )
    runner.run(run, tmp_path / "whole")

    def at_21(at: Progress) -> None:
        if not at.what and at.share > 0.5:
            raise Interrupted

    with pytest.raises(Interrupted):
        runner.run(run, tmp_path / "parted", report=at_21)
    assert (tmp_path / "parted" / "checkpoint.pt").is_file()
    runner.run(run, tmp_path / "parted", resume=True)
    assert metrics(tmp_path / "parted") == metrics(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:BAdam expect model:UserWarning")
@pytest.mark.parametrize("rival", [*peers.PEERS, "sparse-adamw-columns"])
def test_a_rival_lowers_the_loss_and_goes_on_after_an_interruption(rival: str, tmp_path: Path) -> None:
    """One whose state cannot be saved begins anew."""
    for package in peers.PEERS[rival].needs if rival in peers.PEERS else ():
        pytest.importorskip(package.replace("-", "_"), reason="needs the extra [peers]")
    sizes = {"batch_size": 2, "anchor_batch_size": 2, "inner_steps": 4}
    run = made(rival, steps=26, evaluations=2, checkpoint_every=0.0, lr=0.004, options={"eval_samples": 2}, **sizes)
    told = runner.run(run, tmp_path / "whole")
    rows = metrics(tmp_path / "whole")
    assert [row["updates"] for row in rows] == [0, 1, 13, 26]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"] - 0.05
    assert 0 < told["gradient_bytes"] <= 4 * told["parameters"]

    def at_21(at: Progress) -> None:
        if not at.what and at.share > 0.5:
            raise Interrupted

    with pytest.raises(Interrupted):
        runner.run(run, tmp_path / "parted", report=at_21)
    assert (tmp_path / "parted" / "checkpoint.pt").is_file() == (rival not in peers.PEERS or peers.PEERS[rival].resumes)
    runner.run(run, tmp_path / "parted", resume=True)
    ends = [[(row["updates"], row["train_loss"]) for row in metrics(tmp_path / name)] for name in ("parted", "whole")]
    assert ends[0] == ends[1]


REFUSED = [
    (["image", "-o", "badam", "--set", "data=digits"], "badam trains transformer blocks, and the task image has none"),
    (["finetune", "-o", "lora", "--set", "arguments={rank: 0}"], "arguments: rank = 0 must be a whole number of at"),
    (["finetune", "-o", "lora", "--set", "arguments={rnk: 2}"], "'rnk' is no argument of lora: did you mean 'rank'?"),
    (["finetune", "-o", "sgd", "--set", "arguments={rank: 2}"], "arguments = {'rank': 2}: sgd takes none"),
    (["finetune", "-o", "lora", "--set", "k1=0.1"], "k1 = 0.1 has no effect on lora"),
    (
        ["finetune", "-o", "sparse-adamw-columns", "--set", "groups=rows"],
        "groups = 'rows' has no effect on sparse-adamw-columns",
    ),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_makes_no_sense_with_a_rival_is_refused(words: list[str], message: str, tmp_path: Path, command) -> None:
    code, told = command("run", *words, "--out", str(tmp_path))
    assert code == 2, told
    assert message in " ".join(told.split())
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named_with_the_command(
    tmp_path: Path, command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "galore_torch", None)
    code, told = command("run", "finetune", "-o", "galore", "--out", str(tmp_path))
    assert code == 2
    said = " ".join(told.split())
    assert "error: galore needs galore-torch" in said
    assert "pip install galore-torch" in said
    assert not list(tmp_path.iterdir())


def test_arguments_reach_the_optimizer() -> None:
    going = runner.Run(made("sparse-adamw", arguments={"weight_decay": 0.3, "beta2": 0.9}).completed(), Path())
    going._build()
    for group in going.optimizer.param_groups:
        assert group["weight_decay"] == 0.3
        assert group["betas"] == (0.9, 0.9)


def test_the_step_size_warms_up_and_falls_to_zero_on_a_line(tmp_path: Path) -> None:
    run = made("adamw", lr=0.5).completed()
    assert run.schedule == "warm-up"
    rates = [run.lr_at(0.0, share) for share in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.05, 0.275, 0.5, 0.25, 0.0])
    run = replace(run, schedule="linear")
    assert [run.lr_at(0.0, share) for share in (0.0, 0.25, 0.9, 1.0)] == pytest.approx([0.5, 0.375, 0.05, 0.0])
    assert replace(run, schedule="constant").lr_at(0.0, 0.5) is None
    going = runner.Run(made("adamw", lr=0.002, steps=4, schedule="linear").completed(), tmp_path / "run")
    going.go(False, lambda _: None)
    assert going.optimizer.param_groups[0]["lr"] == pytest.approx(0.002 / 4)
    going = runner.Run(config("logistic", "sgd", lr=0.5, schedule="linear").completed(), tmp_path / "logistic")
    going.go(False, lambda _: None)
    assert 0 < going.optimizer.param_groups[0]["lr"] < 0.5 / 20


def test_other_seeds_have_the_same_start_and_other_batches() -> None:
    runs = [runner.Run(made(seed=seed).completed(), Path()) for seed in (0, 1)]
    for run in runs:
        run._build(lambda _: None)
    one, two = (run.task.model.state_dict() for run in runs)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    first, second = (next(iter(run.batches))[0] for run in runs)
    assert not torch.equal(first, second)


@pytest.mark.slow
def test_tuning_goes_on_after_its_time_was_over(tmp_path: Path) -> None:
    base = RunConfig("finetune", "sgd", options=OPTIONS)
    plan = Tuning(base, ["adamw", "sparse-adamw"], 2, 1.0, 1.0, 1, tmp_path / "tuned.json")
    how = {"jobs": 1, "command": "c"}
    assert not tune(plan, tmp_path / "runs", QUIET, resume=False, time_limit=-1.0, **how)
    again = replace(plan, tried={}, finals={})
    assert tune(again, tmp_path / "runs", QUIET, resume=True, time_limit=None, **how)
    assert {method: len(trials) for method, trials in again.tried.items()} == {"adamw": 2, "sparse-adamw": 2}


# Texts.


def test_the_code_is_of_the_library_in_order_without_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"b.py": "b\r\n", "a/x.py": "ax\n", "test/t.py": "t\n", "a/tests/t.py": "t\n", "_sysconfigdata_.py": "s\n",
             "site-packages/p.py": "p\n", "c.txt": "c\n", "d.py": "d" * 9}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(text.encode())
    monkeypatch.setattr(texts, "CODE_BYTES", 8)
    assert texts.library_code.__wrapped__(str(tmp_path)) == b"ax\nb\nddd"
    monkeypatch.setattr(texts, "CODE_BYTES", 80)
    with pytest.raises(DataError, match="14 bytes of Python code, not 80"):
        texts.library_code.__wrapped__(str(tmp_path))


def test_this_python_has_both_texts() -> None:
    assert len(texts.library_code()) == texts.CODE_BYTES
    train, valid = texts.library_prose()
    assert len(train) > 300_000
    assert len(valid) > 30_000
    assert valid[:1000] not in train


def test_ptb_is_the_text_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """A run knows its text, so that it is refused where the text has become another."""
    monkeypatch.delenv("SPIDERSILK_DATA", raising=False)
    messages.note.cache_clear()
    run = made(steps=1, data_dir=str(tmp_path), options={"text": None})
    runner.run(run, tmp_path / "run")
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("note: fine-tuning on Python's help topics, as the Penn Treebank is not there (looked in ")
    assert str(tmp_path / "ptb") in said
    for file in files_like("ptb/*")[:2]:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        (tmp_path / file.path).write_text("words\n" * 2000)
    assert run.completed().options["text"] == "ptb"
    with pytest.raises(RunError, match=r"'text': 'library'.*'text': 'ptb'"):
        runner.run(run, tmp_path / "run", resume=True)


def test_rows_share_one_byte_with_the_next() -> None:
    rows = task()._rows(bytes(range(256)) * 2)
    assert rows.shape == (3, 129)
    assert [int(row[0]) for row in rows] == [0, 128, 0]
    assert torch.equal(rows[0, -1:], rows[1, :1])


# The start.


def test_a_start_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Progress] = []
    first = task(start_seed=7)
    prepare(first, told.append)
    assert [(at.at, at.what) for at in told] == [(1, "pretraining"), (3, "pretraining")]
    monkeypatch.setattr(Finetune, "make_start", lambda *_: pytest.fail("it was made again"))
    second = task(start_seed=7)
    prepare(second, told.append)
    assert len(told) == 2
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert path_of("finetune", first.start()).is_file()
    assert not list(cache.glob("*.lock"))
    half = task(start_seed=7, dtype="bfloat16")
    prepare(half, told.append)
    assert torch.equal(half.gpt.head.weight, first.gpt.head.weight.bfloat16())


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_start_is_made_anew_with_a_word(damage: str, capfd: Any) -> None:
    first, again = task(start_seed=8), task(start_seed=8)
    prepare(first, lambda _: None)
    path = path_of("finetune", first.start())
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"cut": content[:middle], "flipped": flipped, "empty": b""}[damage])
    messages.note.cache_clear()
    prepare(again, lambda _: None)
    said = [line for line in capfd.readouterr().err.splitlines() if "fine-tuning on" not in line]  # which text it takes
    assert len(said) == 1
    assert said[0].startswith(f"note: {path}: not a checkpoint that can be loaded (")
    assert said[0].endswith(": it is made anew")
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True))
    assert path.read_bytes()[:100] == content[:100]


def test_the_name_of_a_start_has_all_that_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    name = lambda **options: path_of("finetune", task(**options).start()).name  # noqa: E731
    plain = name()
    others = [name(**{key: value}) for key, value in {"pretrain_steps": 4, "pretrain_lr": 0.1, "start_seed": 1}.items()]
    assert len({plain, *others}) == 4
    assert name(eval_samples=4, train_bytes=4000) == plain
    monkeypatch.setattr("spidersilk.lab.tasks.finetune.library_code", lambda: b"another Python")
    assert name() != plain


def test_a_run_that_is_only_checked_makes_no_start(cache: Path) -> None:
    before = list(cache.glob("*"))
    runner.Run(made(options={"start_seed": 9}).completed(), Path())._build()
    assert list(cache.glob("*")) == before


def test_a_cache_that_cannot_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RunError, match=r"nothing can be kept there.*XDG_CACHE_HOME"):
        prepare(task(), lambda _: None)


PROCESS = """
import sys, torch
from spidersilk.lab.run.start import prepare
from spidersilk.lab.tasks.finetune import Finetune
torch.set_num_threads(1)
options = {"text": "library", "train_bytes": 8000, "pretrain_steps": int(sys.argv[1])}
task = Finetune(options, None, torch.device("cpu"))
print("ready", flush=True)
prepare(task, lambda at: print("at", int(at.at), flush=True))
print("sum", float(sum(p.double().abs().sum() for p in task.model.parameters())), flush=True)
"""


def start_process(steps: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROCESS, str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_two_processes_one_makes_the_start() -> None:
    both = [start_process(31), start_process(31)]
    printed = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert sorted("at 31" in out for out, _ in printed) == [False, True]
    assert len({out.splitlines()[-1] for out, _ in printed}) == 1
    waited = next(err for out, err in printed if "at 31" not in out)
    assert "it makes the same pretrained start, which is waited for" in waited or waited == ""


@pytest.mark.slow
def test_a_start_whose_maker_was_killed_is_made_by_the_next(cache: Path) -> None:
    first = start_process(1001)
    assert first.stdout is not None
    while not first.stdout.readline().startswith("at"):
        assert first.poll() is None
    second = start_process(1001)
    time.sleep(3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert second.stdout is not None
    assert second.stdout.readline() == "ready\n"
    assert second.stdout.readline() == "at 1\n"
    second.kill()
    second.communicate()
    assert len(list(cache.glob("*.lock"))) == 1  # what a kill leaves behind holds nothing
