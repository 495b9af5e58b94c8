"""The README's picture: memory and step time of AdamW and its rivals, from files in results/ alone.

python benchmarks/picture.py      # writes results/benchmarks/memory_2_7b_1_cuda.png
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks"
FILES = ("memory_2_7b_1_cuda", "memory_2_7b_1_peers_cuda")
PICTURE = RESULTS / f"{FILES[0]}.png"
TITLES = {
    "adamw": "AdamW",
    "in-backward": "AdamW inside backward",
    "adamw-8bit": "8-bit AdamW",
    "apollo-mini": "APOLLO-Mini",
    "lora-64": "LoRA, rank 64",
    "lora-16": "LoRA, rank 16",
    "columns-10": "SparseAdamW, 10 % of columns",
    "sparse-10": "SparseAdamW, 10 % of entries",
    "sparse-5": "SparseAdamW, 5 % of entries",
    "sparse-1": "SparseAdamW, 1 % of entries",
}
OURS, OTHERS = "#b3261e", "#6b7a8f"


def rows(results: Path = RESULTS) -> list[tuple[str, float, float]]:
    """Method, bytes a parameter, and mean milliseconds a step over AdamW's; medians over repeats. The ratio is to AdamW
    of the same repeat where methods took turns, else to the median of AdamW's runs in the file. A method that both
    files have is taken from the first."""
    found: dict[str, tuple[float, float]] = {}
    for name in FILES:
        figures: dict[str, Any] = json.loads((results / f"{name}.json").read_text())["figures"]
        runs, paired = figures["runs"], figures.get("mean_over_adamw", {})
        of = {method: [run for run in runs if run["method"] == method] for method in {run["method"] for run in runs}}
        base = statistics.median(run["mean_ms"] for run in of["adamw"])
        for method, mine in of.items():
            size = statistics.median(run["bytes_per_parameter"] for run in mine)
            alone = statistics.median(run["mean_ms"] for run in mine) / base
            found.setdefault(method, (size, paired[method][0] if method in paired else alone))
    return [(method, *found[method]) for method in TITLES]


def draw(path: Path = PICTURE) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    made = rows()[::-1]
    titles = [TITLES[method] for method, *_ in made]
    colours = [OURS if method.startswith(("sparse", "columns")) else OTHERS for method, *_ in made]
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
    print(draw())
