"""The README's table and picture: AdamW, its rivals and SparseAdamW, from files in results/ alone.

python benchmarks/comparison.py      # prints the table, writes results/benchmarks/memory_2_7b_1_cuda.png
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent.parent / "results"
# Of benchmarks/memory.py and backprop.py; a method that two files have is taken from the first.
ONE_SEQUENCE = ("memory_2_7b_1_cuda", "memory_2_7b_1_peers_cuda")
EIGHT_SEQUENCES = ("memory_2_7b_8_cuda", "backprop_2_7b_8_cuda")
TUNED = "tune_finetune_85m_ptb_600_linear"  # of `spidersilk tune`
PICTURE = RESULTS / "benchmarks" / f"{ONE_SEQUENCE[0]}.png"
HEAD = ("GPT, bfloat16, one H200", "2.7 B, one sequence: peak GiB", "step / AdamW's",
        "eight sequences: step / AdamW's", "85 M: loss (seeds 0; 1, 2)")  # fmt: skip
# The rows of the table: the method in the benchmarks, and in the tuning.
ROWS = {
    "AdamW, fused": ("adamw", "adamw"),
    "8-bit AdamW (bitsandbytes)": ("adamw-8bit", "adamw-8bit"),
    "BAdam, a block of layers at a time": ("badam", "badam"),
    "LoRA, rank 64": ("lora-64", "lora"),
    "**SparseAdamW**, entries, `k2=0.1`": ("sparse-10", "sparse-adamw"),
    "**SparseAdamW**, entries, `k2=0.05`": ("sparse-5", ""),
    "**SparseAdamW**, columns, `k2=0.1`": ("columns-10", "sparse-adamw-columns"),
}
BARS = {
    "AdamW": "adamw",
    "AdamW inside backward": "in-backward",
    "8-bit AdamW": "adamw-8bit",
    "APOLLO-Mini": "apollo-mini",
    "LoRA, rank 64": "lora-64",
    "LoRA, rank 16": "lora-16",
    "SparseAdamW, 10 % of columns": "columns-10",
    "SparseAdamW, 10 % of entries": "sparse-10",
    "SparseAdamW, 5 % of entries": "sparse-5",
    "SparseAdamW, 1 % of entries": "sparse-1",
}
NONE = "–"  # not measured
OURS, OTHERS = "#b3261e", "#6b7a8f"


class Measured(NamedTuple):
    """One sequence: the peak, and the mean step over AdamW's, one ratio for each run."""

    gib: float
    bytes_per_parameter: float
    ratios: list[float]


def figures(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / "benchmarks" / f"{name}.json").read_text())["figures"]


def measured() -> dict[str, Measured]:
    """By method. Ratios are to AdamW of the same repeat where methods took turns; else the one run is divided by each
    of AdamW's."""
    found: dict[str, Measured] = {}
    for name in ONE_SEQUENCE:
        made = figures(name)
        runs = made["runs"]
        adamw = [run for run in runs if run["method"] == "adamw"]
        for method in {run["method"] for run in runs} - found.keys():
            mine = [run for run in runs if run["method"] == method]
            pairs = [(run, of) for run in mine for of in adamw]
            if made.get("turns", 1) > 1:
                pairs = [(run, of) for run, of in pairs if run["repeat"] == of["repeat"]]
            sizes = (median(run[size] for run in mine) for size in ("peak_gib", "bytes_per_parameter"))
            found[method] = Measured(*sizes, sorted(run["mean_ms"] / of["mean_ms"] for run, of in pairs))
    return found


def eight_sequences() -> dict[str, float]:
    """The step over AdamW's, by method."""
    memory, backprop = map(figures, EIGHT_SEQUENCES)
    of_layers = {row["method"]: row["ratio"] for row in backprop["methods"]}
    return of_layers | {method: middle for method, (middle, *_) in memory["mean_over_adamw"].items()}


def fine_tuned() -> dict[str, str]:
    """The loss of the best trial, and of the final runs, by method."""
    methods = json.loads((RESULTS / "tune" / f"{TUNED}.json").read_text())["methods"]
    seeds = {name: ", ".join(f"{loss:.3f}" for loss in of.get("lowest", [])) for name, of in methods.items()}
    return {name: f"{of['loss']:.3f}; {seeds[name] or NONE}" for name, of in methods.items()}


def table() -> str:
    """Markdown."""
    one, eight, tuned = measured(), eight_sequences(), fine_tuned()
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for title, (method, name) in ROWS.items():
        several = f"{eight[method]:.2f}" if method in eight else NONE
        times = ["1", "1"] if method == "adamw" else [_range(one[method].ratios), several]
        cells = [title, f"{one[method].gib:.2f}", *times, tuned.get(name, NONE)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(ratios: list[float]) -> str:
    return " to ".join(dict.fromkeys(f"{x:.2f}" for x in (ratios[0], ratios[-1])))


def bars() -> list[tuple[str, float, float]]:
    """Title, bytes a parameter, and the median ratio of steps."""
    found = measured()
    return [(title, found[m].bytes_per_parameter, median(found[m].ratios)) for title, m in BARS.items()]


def draw(path: Path = PICTURE) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    made = bars()[::-1]
    titles = [title for title, *_ in made]
    colours = [OURS if title.startswith("Sparse") else OTHERS for title in titles]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.7), sharey=True, facecolor="white")
    headings = ("bytes a parameter, peak", "step time, AdamW = 1, one sequence")
    for column, (axis, heading) in enumerate(zip(axes, headings, strict=True), 1):
        values = [row[column] for row in made]
        axis.bar_label(axis.barh(titles, values, color=colours), fmt="%.2f", padding=3)
        axis.set(title=heading, xlim=(0, 1.17 * max(values)), xticks=[])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.tick_params(left=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(table())
    print(draw())
