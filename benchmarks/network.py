"""Step time, time to a target loss and bytes on the wire of data-parallel training on slow links.

python benchmarks/network.py --save              # the published figures, about eight minutes
python benchmarks/network.py --tune --save       # where the step sizes come from
python benchmarks/network.py --rates 1000 --workers 2 --repeats 1 --seeds 0     # a quick look

Each worker is a process in its own network namespace; a bridge joins them, and tc limits each link's outgoing traffic.
The model is an MLP of 11 million parameters on scikit-learn's digits, with only 8 samples on each worker, so that
sending dominates. Compared: dense DDP, DDP with torch's PowerSGD hook, SparseSGD and SparseSVRG.
Methods take turns, and results are medians over rounds. A block of steps that other programs disturbed is
repeated, and the quieter attempt counts. The cost model of benchmarks/scaling.py is fitted to plain messages and
compared with the steps.

An interrupted run continues when it is started again with the same options.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import links
import network_report as report
from network_worker import METHODS, Settings
from record import RESULTS, ROOT, save

TUNED = {
    "dense": 0.2,
    "PowerSGD": 0.2,
    "SparseSGD": 0.4,
    "SparseSVRG": 0.2,
}  # results/benchmarks/network_tuning.json
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),  # glibc would hand large blocks back at each step; it hurts PowerSGD most
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
}
GRID = (0.1, 0.2, 0.4)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[100, 1000, 10000], help="rates of the links, in Mbit/s"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4], help="numbers of processes, one after the other"
    )
    parser.add_argument("--steps", type=int, default=10, help="updates of an outer loop, its anchor included")
    parser.add_argument("--repeats", type=int, default=3, help="rounds; each times every method once")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for idle processors at each block")
    parser.add_argument("--k", type=float, default=0.1, help="share of the coordinates that a small step sends")
    parser.add_argument("--batch", type=int, default=8, help="samples on each worker")
    parser.add_argument("--rank", type=int, default=4, help="rank of PowerSGD's factors")
    parser.add_argument(
        "--width", type=int, default=2330, help="width of the three hidden layers; 2330 is 11 M parameters"
    )
    parser.add_argument("--target", type=float, default=0.5, help="training loss to reach")
    parser.add_argument(
        "--target-rate", type=float, default=1000, help="rate, in Mbit/s, at which the time to the target is measured"
    )
    parser.add_argument("--seeds", type=int, default=2, help="runs to the target for each method; 0 leaves them out")
    parser.add_argument("--max-steps", type=int, default=300, help="give up a run to the target after this many steps")
    parser.add_argument("--tune", action="store_true", help="only count steps to the target, for a grid of step sizes")
    parser.add_argument("--fresh", action="store_true", help="discard the measurements of an interrupted run")
    parser.add_argument("--save", action="store_true", help="write results/benchmarks/network.json and .png")
    parser.add_argument("--name", default="network", help="name of the files that --save writes")
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder that --save writes to")
    given = parser.parse_args()
    if min(given.workers) < 2 or max(given.workers) > 200:
        parser.error(f"--workers {given.workers}: there must be at least 2, and at most 200")
    if given.steps < 2:
        parser.error(f"--steps {given.steps}: a loop has an anchor and at least one small step")
    return given


def parts(given: argparse.Namespace, workers: int) -> list[list[Any]]:
    """The parts to measure with this number of workers, in order."""
    if given.tune:
        return [["target", None, name, seed, lr] for seed in range(given.seeds) for name in METHODS for lr in GRID]
    turns = range(given.repeats)
    found: list[list[Any]] = [["passes"], *(["local", name, turn] for turn in turns for name in METHODS)]
    for rate in given.rates:
        found += [["messages", rate], *(["rate", rate, name, turn] for turn in turns for name in METHODS)]
    if workers == given.workers[0]:  # the number of workers sets the batch: not comparable
        found += [
            ["target", given.target_rate, name, seed, TUNED[name]] for seed in range(given.seeds) for name in METHODS
        ]
    return found


def measure(given: argparse.Namespace, settings: Settings, shaped: bool, partial: Path) -> list[dict[str, Any]]:
    """Measure the parts that the partial file lacks, and return all of them."""
    done = read(partial)
    for n in given.workers:
        todo = [part for part in parts(given, n) if [n, *part] not in [row["part"] for row in done]]
        if not todo:
            continue
        print(f"{n} workers: {len(todo)} parts to measure", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder, links.Network(shaped) as network:
            spec = {"settings": asdict(settings), "workers": n, "shaped": shaped, "parts": todo, "out": str(partial)}
            spec["store"] = str(Path(folder) / "store")
            script = str(Path(__file__).with_name("network_worker.py"))
            commands = [[sys.executable, script, json.dumps(spec | {"rank": rank})] for rank in range(n)]
            paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), str(ROOT / "src"))))
            network.start(commands, {"PYTHONPATH": paths, **ENVIRONMENT})
            network.wait()
        done = read(partial)
    return done


def read(partial: Path) -> list[dict[str, Any]]:
    if not partial.exists():
        return []
    lines = partial.read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # an interrupted run may have left half a line


def main() -> None:
    given = options()
    shaped = True
    if not links.inside():
        problem = links.obstacle()
        if problem is None:
            links.enter()
        print(
            f"no limited links: {problem}.\nThe workers talk over loopback instead, as fast as it goes: its counter "
            "and local times are still right, the rates are not, and nothing is saved. As root, or where user "
            "namespaces are allowed, this measures what it should.",
            file=sys.stderr,
        )
        shaped, given.save, given.rates = False, False, given.rates[-1:]
    settings = Settings(
        given.width, given.batch, 5 * given.batch, given.k, given.steps, given.rank, given.patience, given.target,
        given.max_steps, TUNED,
    )  # fmt: skip
    alike = asdict(replace(settings, patience=0, lr={} if given.tune else settings.lr))
    mark = hashlib.sha256(json.dumps([alike, shaped, given.tune, str(given.to.resolve())]).encode()).hexdigest()[:10]
    partial = ROOT / "runs" / f"network-{mark}.jsonl"
    partial.parent.mkdir(exist_ok=True)
    if given.fresh:
        partial.unlink(missing_ok=True)
    rows = measure(given, settings, shaped, partial)
    wanted = [[n, *part] for n in given.workers for part in parts(given, n)]
    rows = [next(row for row in rows if row["part"] == part) for part in wanted]
    if given.tune:
        figures, name = report.tuning(rows, settings), "network_tuning"
    else:
        figures, name = report.figures(rows, settings), given.name
        print(report.tables(figures))
    if given.save:
        print(save(name, list(range(given.seeds)), figures, given.to))
        if not given.tune:
            report.plot(figures, given.to / f"{name}.png")
    partial.unlink()


if __name__ == "__main__":
    main()
