"""Step time, time to a target loss and bytes on the wire of data-parallel training on slow links.

python benchmarks/network.py --save              # the published figures, about eight minutes
python benchmarks/network.py --tune --save       # where the step sizes come from
python benchmarks/network.py --rates 1000 --workers 2 --repeats 1 --seeds 0     # a quick look

Workers are processes in network namespaces of their own, joined by a bridge, each link limited by tc on its way out.
The model is an MLP of 11 million parameters on scikit-learn's digits, with 8 samples on each worker, so that the wire
is what is measured. Compared: dense DDP, DDP with torch's PowerSGD hook, SparseSGD (of entries, and of whole rows) and
SparseSVRG. In each round every method has its turn, and figures are medians over the rounds; a block of steps during
which other programs used the processors is tried again, and the quieter attempt counts. The cost model of
benchmarks/scaling.py is fitted to plain messages and compared with the steps.

A run that is broken off goes on where it was when it is started again with the same options.
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
    "SparseSGD-rows": 0.4,
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
    parser.add_argument("--rates", type=float, nargs="+", default=[100, 1000, 10000], help="of the links, in Mbit/s")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4], help="how many processes; a list is run in turn"
    )
    parser.add_argument("--steps", type=int, default=10, help="updates of an outer loop, its anchor included")
    parser.add_argument("--repeats", type=int, default=3, help="rounds in which every method has its turn")
    parser.add_argument("--patience", type=float, default=5, help="seconds to wait for quiet processors at each block")
    parser.add_argument("--k", type=float, default=0.1, help="share of the coordinates that a small step sends")
    parser.add_argument("--batch", type=int, default=8, help="samples on each worker")
    parser.add_argument("--rank", type=int, default=4, help="of PowerSGD's factors")
    parser.add_argument("--width", type=int, default=2330, help="of the three hidden layers; 2330 is 11 M parameters")
    parser.add_argument("--target", type=float, default=0.5, help="training loss to reach")
    parser.add_argument("--target-rate", type=float, default=1000, help="the rate, in Mbit/s, at which that is timed")
    parser.add_argument("--seeds", type=int, default=2, help="runs to the target for each method; 0 leaves them out")
    parser.add_argument("--max-steps", type=int, default=300, help="after which a run to the target gives up")
    parser.add_argument("--tune", action="store_true", help="only count steps to the target, for a grid of step sizes")
    parser.add_argument("--fresh", action="store_true", help="forget what a broken-off run had measured")
    parser.add_argument("--save", action="store_true", help="write results/benchmarks/network.json and .png")
    parser.add_argument("--name", default="network", help="of the files that --save writes")
    parser.add_argument("--to", type=Path, default=RESULTS, help="folder that --save writes to")
    given = parser.parse_args()
    if min(given.workers) < 2 or max(given.workers) > 200:
        parser.error(f"--workers {given.workers}: there must be at least 2, and at most 200")
    if given.steps < 2:
        parser.error(f"--steps {given.steps}: a loop has an anchor and at least one small step")
    return given


def parts(given: argparse.Namespace, workers: int) -> list[list[Any]]:
    """What is to be measured with so many workers, in order."""
    if given.tune:
        return [["target", None, name, seed, lr] for seed in range(given.seeds) for name in METHODS for lr in GRID]
    turns = range(given.repeats)
    found: list[list[Any]] = [["passes"], *(["local", name, turn] for turn in turns for name in METHODS)]
    for rate in given.rates:
        found += [["messages", rate], *(["rate", rate, name, turn] for turn in turns for name in METHODS)]
    if workers == given.workers[0]:  # the arithmetic is that of so many samples: not compared across workers
        found += [
            ["target", given.target_rate, name, seed, TUNED[name]] for seed in range(given.seeds) for name in METHODS
        ]
    return found


def measure(given: argparse.Namespace, settings: Settings, shaped: bool, partial: Path) -> list[dict[str, Any]]:
    """Run what the partial file does not have yet, and return all of it."""
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
    return [json.loads(line) for line in lines if line.endswith("}")]  # a run may have died while it wrote the last


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
