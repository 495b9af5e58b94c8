"""Does sparsity pay on logistic regression if dense SVRG is tuned as well? Several variants, counted the same way.

python benchmarks/logistic_ideas.py --save      # needs a9a, w8a, MNIST (SPIDERSILK_DATA)

Queries over n to f - f* = 1e-5, at most 20, for anchored differences (SVRG) in five forms, each plain, with anchors
that grow (n / 64 samples, then four times as many each, and loops in proportion), and over Adagrad: six trials each, of
step and batch size, on seed 0, then the best of them on seeds 1 to 3. Sparse forms have 5 % top and 5 % random
coordinates and count 2 b k / d at a small step, SVRG 2 b. A loop is m = B d / (b k) small steps.

    SVRG          dense
    rtop          the paper's operator, all coordinates move
    importance    each coordinate with a probability that is half uniform and half in proportion to M, divided by it
                  (Horvitz-Thompson), all coordinates move
    selected      only the selected coordinates move, unscaled
    selected by importance

A plain numba loop, separate from the library, so that a variant is one line. `SVRG`, `rtop` and `selected` are the
library's `SVRG`, `SparseSVRG` and `SparseSVRG(move="selected")`, except that anchors also update M of `rtop`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import record
from numpy.typing import NDArray

from spidersilk.lab.data.files import DataError
from spidersilk.lab.data.sets import binary
from spidersilk.lab.tasks.logistic import minimum

Array = NDArray[Any]
FORMS = ("SVRG", "rtop", "importance", "selected", "selected by importance")
WAYS = ("plain", "growing anchors", "Adagrad")
SETS = ("a9a", "w8a", "mnist")
TARGET, BUDGET, EVERY, K1, K2, ALPHA = 1e-5, 20.0, 0.1, 0.05, 0.05, 0.5
LARGE = {50: (16.0, 32.0, 64.0), 10: (4.0, 8.0, 16.0)}  # batch size: steps
SMALL = {50: (4.0, 8.0, 16.0), 10: (1.0, 2.0, 4.0)}  # for variants whose scaled entries move all of x
ADAGRAD = {50: (3.0, 6.0, 10.0), 10: (3.0, 6.0, 10.0)}


@dataclass(frozen=True)
class Problem:
    """Rows times their labels, stored as nonzero entries and their columns; l2 with 1 / n."""

    starts: Array
    columns: Array
    values: Array
    d: int
    optimum: float


def problem(name: str) -> Problem:
    features, labels = binary(name, None)
    signed = (features * labels[:, None]).double()
    rows, columns = signed.nonzero(as_tuple=True)
    starts = np.searchsorted(rows.numpy(), np.arange(len(signed) + 1))
    values = signed[rows, columns].numpy()
    return Problem(starts, columns.numpy().astype(np.int32), values, signed.shape[1], minimum(signed, 1 / len(signed)))


@numba.njit(cache=True, fastmath=True)
def margin(starts: Array, columns: Array, values: Array, row: int, x: Array) -> float:
    total = 0.0
    for j in range(starts[row], starts[row + 1]):
        total += values[j] * x[columns[j]]
    return total


@numba.njit(cache=True)
def loss(starts: Array, columns: Array, values: Array, x: Array) -> float:
    n = len(starts) - 1
    total = 0.0
    for row in range(n):
        z = margin(starts, columns, values, row, x)
        total += math.log1p(math.exp(-abs(z))) + max(-z, 0.0)
    return total / n + 0.5 / n * (x * x).sum()


@numba.njit(cache=True, fastmath=True)
def add_gradient(starts: Array, columns: Array, values: Array, rows: Array, x: Array, out: Array, by: float) -> None:
    """out += by times the mean gradient of the rows at x."""
    for row in rows:
        weight = -by / (len(rows) * (1 + math.exp(margin(starts, columns, values, row, x))))
        for j in range(starts[row], starts[row + 1]):
            out[columns[j]] += weight * values[j]
    out += by / (len(starts) - 1) * x


@numba.njit(cache=True)
def draw(memory: Array, by_importance: bool, k1: int, k2: int, chosen: Array, scale: Array) -> None:
    """The selected coordinates, and the factors that make their differences unbiased."""
    d, k = len(memory), k1 + k2
    chosen[:] = False
    if not by_importance:
        order = np.argsort(-memory)
        for place in range(k1):
            chosen[order[place]], scale[order[place]] = True, 1.0
        for place in np.random.choice(d - k1, k2, replace=False):
            chosen[order[k1 + place]], scale[order[k1 + place]] = True, (d - k1) / k2
        return
    weight = 0.5 * memory / memory.sum() + 0.5 / d
    factor = float(k)
    for _ in range(8):  # until the probabilities min(1, factor * weight) sum to k
        sure, rest = 0, 0.0
        for i in range(d):
            if factor * weight[i] >= 1:
                sure += 1
            else:
                rest += weight[i]
        if rest > 0:
            factor = (k - sure) / rest
    for i in range(d):
        p = min(1.0, factor * weight[i])
        chosen[i], scale[i] = np.random.random() < p, 1 / p


@numba.njit(cache=True)
def run(
    starts: Array, columns: Array, values: Array, d: int, optimum: float,
    form: int, grow: bool, adagrad: bool, lr: float, b: int, seed: int,
) -> tuple[float, float]:  # fmt: skip
    """Queries over n until f - f* is at the target (inf if it never is), and the last f - f*."""
    np.random.seed(seed)
    n = len(starts) - 1
    k1, k2 = round(K1 * d), round(K2 * d)
    x, at, v, difference = np.zeros(d), np.zeros(d), np.zeros(d), np.zeros(d)
    memory, squares, scale = np.zeros(d), np.zeros(d), np.ones(d)
    chosen = np.ones(d, np.bool_)
    estimate = np.zeros(d)
    queries, look, large = 0.0, 0.0, n / 64 if grow else float(n)
    gap = 1.0
    while queries < BUDGET * n:
        rows = np.arange(n) if large >= n else np.random.choice(n, int(large), replace=False)
        at[:], v[:] = x, 0.0
        add_gradient(starts, columns, values, rows, at, v, 1.0)
        estimate[:] = v
        queries += len(rows)
        memory = ALPHA * np.abs(v) + (1 - ALPHA) * memory if form < 3 else np.abs(v)
        if adagrad:
            squares += v * v
        x -= lr * v / (np.sqrt(squares) + 1e-10) if adagrad else lr * v
        loop = int(len(rows) * (d / (k1 + k2) if form else 1.0) / b)
        large *= 4
        for _ in range(loop):
            rows = np.random.randint(0, n, b)
            difference[:] = 0.0
            add_gradient(starts, columns, values, rows, x, difference, 1.0)
            add_gradient(starts, columns, values, rows, at, difference, -1.0)
            if form:
                draw(memory, form in (2, 4), k1, k2, chosen, scale)
            queries += 2 * b * chosen.sum() / d
            for i in range(d):
                if chosen[i] or form < 3:
                    estimate[i] = v[i] + (difference[i] * (scale[i] if form < 3 else 1.0) if chosen[i] else 0.0)
                    if adagrad:
                        squares[i] += estimate[i] ** 2
                        x[i] -= lr * estimate[i] / (math.sqrt(squares[i]) + 1e-10)
                    else:
                        x[i] -= lr * estimate[i]
                    memory[i] = ALPHA * abs(estimate[i]) + (1 - ALPHA) * memory[i]
            if queries >= look:
                look = queries + EVERY * n
                gap = loss(starts, columns, values, x) - optimum
                if gap <= TARGET:
                    return queries / n, gap
                if not gap < 10:
                    return math.inf, gap
            if queries >= BUDGET * n:
                break
    return math.inf, gap


def tuned(data: Problem, form: int, way: str) -> dict[str, Any]:
    steps = ADAGRAD if way == "Adagrad" else SMALL if form in (1, 2) else LARGE
    arrays = (data.starts, data.columns, data.values, data.d, data.optimum)
    options = (form, way == "growing anchors", way == "Adagrad")
    trials = [(*run(*arrays, *options, lr, b, 0), lr, b) for b, tried in steps.items() for lr in tried]
    best = min(trials, key=lambda t: (t[0], math.inf if math.isnan(t[1]) else t[1]))
    told: dict[str, Any] = {
        "trials": [{"lr": lr, "b": b, "queries": _finite(q), "gap": _finite(gap)} for q, gap, lr, b in trials],
        "lr": best[2],
        "b": best[3],
    }
    seeds = [run(*arrays, *options, best[2], best[3], seed)[0] for seed in (1, 2, 3)]
    return told | {"each": [_finite(q) for q in seeds], "queries": _finite(statistics.median(seeds))}


def _finite(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sets", default=",".join(SETS), help="data sets, separated by commas; each is saved when it is finished"
    )
    parser.add_argument("--save", action="store_true", help="write results/benchmarks/logistic_ideas.json")
    parser.add_argument("--fresh", action="store_true", help="discard the other sets of an existing file")
    given = parser.parse_args()
    path = record.RESULTS / "logistic_ideas.json"
    figures: dict[str, Any] = json.loads(path.read_text())["figures"] if path.is_file() and not given.fresh else {}
    for name in given.sets.split(","):
        data = problem(name)
        figures[name] = {"n": len(data.starts) - 1, "d": data.d, "target": TARGET, "forms": {}}
        for way in WAYS:
            for form, words in enumerate(FORMS):
                told = figures[name]["forms"][f"{words}, {way}"] = tuned(data, form, way)
                print(f"{name:6} {words}, {way}: {told['queries']} n (lr {told['lr']:g}, b {told['b']})", flush=True)
        if given.save:
            print(record.save("logistic_ideas", [0, 1, 2, 3], figures))


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")
