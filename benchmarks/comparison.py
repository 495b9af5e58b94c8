"""The README's table and picture of the comparison with rivals, from results/ alone.

python benchmarks/comparison.py            # prints the table, writes results/comparison.png
python benchmarks/comparison.py --list     # the files that it needs, how to make each, and which are there

Loss, seconds to AdamW's loss plus 1 % and bytes of gradients are those of the final runs of `spidersilk tune finetune`
(85 M parameters, three seeds); memory and time a step of larger models those of benchmarks/memory.py.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spidersilk.lab.experiments import tuning
from spidersilk.lab.report import tuned

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
TUNED = "tune/tune_finetune_85m_ptb_600.json"
LARGE = {"2.7 B": "benchmarks/comparison_2_7b_1_cuda.json", "6.7 B": "benchmarks/comparison_6_7b_1_cuda.json"}
NEEDED = ("adamw", "columns-10", "sparse-10", "lora-64")
MEASURE = "python benchmarks/memory.py --name comparison --save --size"
COMMANDS = {
    TUNED: "spidersilk tune finetune --set size=85m --steps 600 --resume",
    LARGE["2.7 B"]: f"{MEASURE} 2.7b --repeats 3 --methods {','.join(NEEDED)} "
    "--once in-backward,adamw-8bit,apollo-mini,badam",
    LARGE["6.7 B"]: f"{MEASURE} 6.7b --methods {','.join(NEEDED)}",
}
CARD = 24  # GiB of a common graphics card


@dataclass(frozen=True)
class Row:
    """A method here, in `spidersilk tune`, and in benchmarks/memory.py."""

    title: str
    tuned: str
    measured: str


ROWS = (
    Row("AdamW", "adamw", "adamw"),
    Row("SparseAdamW, 10 % of the columns", "sparse-adamw-columns", "columns-10"),
    Row("SparseAdamW, 10 % of the entries", "sparse-adamw", "sparse-10"),
    Row("LoRA, rank 64", "lora", "lora-64"),
    Row("AdamW inside backward", "in-backward", "in-backward"),
    Row("8-bit AdamW", "adamw-8bit", "adamw-8bit"),
    Row("GaLore", "galore", "galore"),
    Row("APOLLO-Mini", "apollo-mini", "apollo-mini"),
    Row("BAdam", "badam", "badam"),
)


def missing(results: Path) -> list[str]:
    """What is not there, a line each with the command that makes it."""
    lines = [f"{results / name}: not there; make it with `{how}`" for name, how in COMMANDS.items()
             if not (results / name).is_file()]  # fmt: skip
    if not lines:
        record = tuning.read(results / TUNED)
        known = {name: tuned.ended(record, name) for name in record["methods"]}
        absent = [row.tuned for row in ROWS if known.get(row.tuned) is None]
        lines += [f"{results / TUNED}: no final runs of {', '.join(absent)}; `{COMMANDS[TUNED]}`"] if absent else []
        for file in LARGE.values():
            absent = [
                name for name in ("adamw", "columns-10", "sparse-10", "lora-64") if name not in _runs(results / file)
            ]
            lines += [f"{results / file}: no {', '.join(absent)}; `{COMMANDS[file]}`"] if absent else []
    return lines


def _runs(path: Path) -> dict[str, dict[str, float]]:
    """Of each method in a file of benchmarks/memory.py: the peak, and the median over runs of the mean step."""
    runs = json.loads(path.read_text())["figures"]["runs"]
    names = dict.fromkeys(run["method"] for run in runs)
    of = {name: [run for run in runs if run["method"] == name] for name in names}
    return {
        name: {"gib": max(r["peak_gib"] for r in each), "ms": median(r["mean_ms"] for r in each)}
        for name, each in of.items()
        if all("peak_gib" in r for r in each)
    }


def collect(results: Path) -> list[dict[str, Any]]:
    """One record for each row of the table."""
    record = tuning.read(results / TUNED)
    large = {size: _runs(results / name) for size, name in LARGE.items()}
    rows = []
    for row in ROWS:
        ended = tuned.ended(record, row.tuned)
        assert ended is not None
        found: dict[str, Any] = {"title": row.title, **ended._asdict()}
        for size, runs in large.items():
            own = runs.get(row.measured)
            found[size] = None if own is None else own["gib"]
            found[f"{size}, time"] = None if own is None else own["ms"] / runs["adamw"]["ms"]
        rows.append(found)
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    head = ["", "validation loss", "seconds to AdamW's + 1 %", "ms a step", "MB of gradients a step"]
    for size in LARGE:
        head += [f"GiB, {size}", f"step / AdamW's, {size}"]
    lines = ["| " + " | ".join([*head, "fits in 24 GB"]) + " |", "|" + "---|" * (len(head) + 1)]
    for row in rows:
        spread = (row["high"] - row["low"]) / 2
        seconds = "not reached" if row["seconds"] is None else f"{row['seconds']:.1f}"
        cells = [row["title"], f"{row['loss']:.4f} ± {spread:.1g}", seconds, f"{row['ms']:.1f}"]
        cells.append("-" if row["gradient_mb"] is None else f"{row['gradient_mb']:.1f}")
        for size in LARGE:
            gib, time = row[size], row[f"{size}, time"]
            cells += ["-" if gib is None else f"{gib:.1f}", "-" if time is None else f"{time:.2f}"]
        fits = [size for size in LARGE if row[size] is not None and row[size] <= CARD]
        lines.append("| " + " | ".join([*cells, fits[-1] if fits else "-"]) + " |")
    return lines


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Validation loss over peak memory at 2.7 B: low and left is good; the size of a dot is the time of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for row in (r for r in rows if r["2.7 B"] is not None):
        ours = row["title"].startswith("Sparse")
        area = 120 * (row["2.7 B, time"] or 1.0)
        axes.scatter(row["2.7 B"], row["loss"], s=area, color="tab:red" if ours else "tab:gray", alpha=0.8)
        spread = [[row["loss"] - row["low"]], [row["high"] - row["loss"]]]
        axes.errorbar(row["2.7 B"], row["loss"], spread, color="black", linewidth=0.8)
        axes.annotate(row["title"], (row["2.7 B"], row["loss"]), (6, 6), textcoords="offset points", fontsize=8)
    axes.set_xlabel("peak memory of training 2.7 B parameters, GiB")
    axes.set_ylabel("validation loss after fine-tuning 85 M, nats per byte")
    axes.set_title("dots: time of a step beside AdamW's", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="what it needs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    lines = missing(given.results)
    if given.list:
        for name, how in COMMANDS.items():
            print(f"{'there  ' if (given.results / name).is_file() else 'missing'} {name}: {how}")
        return
    if lines:
        raise SystemExit("\n".join(["error: results/ has not all that the comparison needs", *lines]))
    rows = collect(given.results)
    print("\n".join(table(rows)))
    picture(rows, given.results / "comparison.png")
    print(given.results / "comparison.png")


if __name__ == "__main__":
    main()
