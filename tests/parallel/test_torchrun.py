"""Programs started by torchrun: the example, the lab, and a worker that is killed under it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the workers of torchrun are looked up in /proc"),
]
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
LAB = ["-m", "spidersilk.lab.cli", "run"]


def torchrun(*words: str, ranks: int = 2, restarts: int = 0) -> subprocess.Popen[str]:
    """Standalone, so that it looks for a free port."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.2", *words]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told_by(process: subprocess.Popen[str], code: int = 0) -> str:
    out, _ = process.communicate(timeout=110)
    assert process.returncode == code, out
    return out


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Oldest first."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(int(child) for child in children)


def close_to(rows: list[dict[str, float]], others: list[dict[str, float]]) -> bool:
    return [r.keys() for r in rows] == [o.keys() for o in others] and all(
        r[k] == pytest.approx(o[k], rel=1e-4, abs=1e-5) for r, o in zip(rows, others, strict=True) for k in r
    )


def test_the_example_learns_the_same_on_one_and_on_two(tmp_path: Path) -> None:
    words = [str(ROOT / "examples" / "ddp.py"), "--epochs", "2", "--samples", "1001"]
    alone = subprocess.run([sys.executable, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    both = told_by(torchrun(*words, "--checkpoint", str(tmp_path / "ddp.pt")))
    more = told_by(torchrun(words[0], "--epochs", "3", "--samples", "1001", "--checkpoint", str(tmp_path / "ddp.pt")))

    def lines(text: str) -> list[str]:
        return re.findall(r"epoch \d: loss [\d.]+, [\d.]+ N queries|test accuracy .*", text)

    assert len(lines(alone)) == 3
    assert lines(both) == lines(alone)
    assert "continuing from epoch 2" in more
    assert lines(more)[0].startswith("epoch 2")


@pytest.mark.parametrize("optimizer", ["sparse-svrg", "momentum", "sparse-adamw"])
def test_the_lab_measures_the_same_on_one_and_on_two(optimizer: str, tmp_path: Path) -> None:
    words = [*LAB, "logistic", "-o", optimizer, "--name", "run", "-s", "budget=3", "-s", "eval_every=1"]
    words += ["-s", "batch_size=25", "-s", "lr=1", *(["-s", "measures=true"] if "svrg" in optimizer else []), "--out"]
    subprocess.run([sys.executable, *words, str(tmp_path / "one")], env=ENVIRONMENT, capture_output=True, check=True)
    out = told_by(torchrun(*words, str(tmp_path / "two")))
    assert out.count("finished") == 1  # rank 0 alone speaks
    assert close_to(metrics(tmp_path / "two" / "run"), metrics(tmp_path / "one" / "run"))
    summary = json.loads((tmp_path / "two" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["ranks"]) == ("finished", 2)


def test_the_lab_says_what_it_cannot_do_on_several_ranks(tmp_path: Path) -> None:
    told = told_by(torchrun(*LAB[:2], "list"), code=1)
    assert "there is `spidersilk run` alone" in told
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("task: logistic\noptimizer: sparse-svrg\n")
    told = told_by(torchrun(*LAB, "logistic", "--name", "run", "--out", str(tmp_path)), code=1)
    assert "holds a run already" in " ".join(told.split())


FAILS_ON_RANK_1 = """
import os, sys
from spidersilk.lab import cli
from spidersilk.lab.tasks.logistic import Logistic

build = Logistic.__init__

def fail(self, *given):
    if os.environ["RANK"] == "1":
        raise ValueError("the disk of rank 1 is gone")
    build(self, *given)

Logistic.__init__ = fail
cli.main()
"""


def test_a_run_that_one_rank_refuses_ends_on_all_and_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS_ON_RANK_1)
    words = ["run", "logistic", "--name", "run", "--out", str(tmp_path / "runs")]
    told = told_by(torchrun(str(tmp_path / "fails.py"), *words), code=1)
    assert "rank 1 of 2: the disk of rank 1 is gone" in " ".join(told.split())
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_on_two_ranks_saves_and_the_run_goes_on(tmp_path: Path) -> None:
    """torchrun passes the signal on to its workers."""
    words = [*LAB, "logistic", "--name", "run", "--out", str(tmp_path), "-s", "batch_size=25", "-s", "eval_every=5"]
    words += ["-s", "budget=3000", "-s", "checkpoint_every=1000"]
    process = torchrun(*words)
    path = tmp_path / "run" / "metrics.jsonl"
    end = time.time() + 60
    while not path.is_file() or path.read_bytes().count(b"\n") < 3:
        assert time.time() < end
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out.count("goes on where it was") == 1, out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    assert (tmp_path / "run" / "checkpoint.pt").is_file()
    assert not (tmp_path / "run" / "lock").exists()


def test_a_killed_worker_is_replaced_and_the_run_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    settings = ["data=digits", "model=fc", "budget=6", "eval_every=0.2", "batch_size=15", "anchor_batch_size=99"]
    settings += ["checkpoint_every=0.05"]
    words = [*LAB, "image", "-o", "sparse-sgd", "--name", "run", "--resume"]
    words += [word for s in settings for word in ("-s", s)] + ["--out"]
    told_by(torchrun(*words, str(tmp_path / "whole")))
    folder = tmp_path / "killed" / "run"
    process = torchrun(*words, str(tmp_path / "killed"), restarts=1)

    def rows() -> int:
        path = folder / "metrics.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    killed: Any = None
    while process.poll() is None and killed is None:
        if rows() >= 6 and (folder / "checkpoint.pt").exists():
            killed = workers_of(process)[-1]
            os.kill(killed, signal.SIGKILL)
        time.sleep(0.01)
    before = rows()
    told_by(process)
    assert killed is not None, "it was over before a worker could be killed"
    assert 6 <= before < len(metrics(folder))
    assert metrics(folder) == metrics(tmp_path / "whole" / "run")


LAST_WORDS = """
import os, sys, time
import torch, torch.distributed as dist
import spidersilk as silk
from spidersilk.distributed import join, leave

def train():
    weight = torch.nn.Parameter(torch.zeros(50))
    optimizer = silk.SparseSVRG([weight], lr=0.1, process_group="world")
    optimizer.itself = optimizer  # a cycle: not freed when this function ends
    def closure():
        optimizer.zero_grad()
        loss = (weight - 1).square().sum()
        loss.backward()
        return loss
    optimizer.step(closure, anchor=True)
    if dist.get_rank() == 0:  # the other answers while this one does not let go of Python
        sys.setswitchinterval(100)
        dist.all_reduce(torch.ones(3), async_op=True)
        end = time.perf_counter() + 1
        while time.perf_counter() < end:
            pass
    else:
        time.sleep(0.5)
        dist.all_reduce(torch.ones(3))

join()
train()
leave()
left = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
assert "pt_gloo_runloop\\n" not in left, left
"""


def test_no_thread_of_the_group_is_left_behind(tmp_path: Path) -> None:
    """A thread that still runs when Python shuts down would abort the process."""
    (tmp_path / "last_words.py").write_text(LAST_WORDS)
    told_by(torchrun(str(tmp_path / "last_words.py")))
