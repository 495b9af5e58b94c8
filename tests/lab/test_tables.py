"""Tables of memory, seconds, predicted bytes and fine-tuning, cell by cell: each cell is made here from its file.

A whole table is compared, so a wrong number, a missing row and a row without a file all fail.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import top

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
ONE, EIGHT, LARGE = "memory_2_7b_1_cuda", "memory_2_7b_8_cuda", "memory_6_7b_1_cuda"
FULL, SMALL, PEERS = "memory_full_2_7b_8_cuda", "memory_85m_32_cuda", "memory_2_7b_1_peers_cuda"
BACK, BACK_FULL, BACK_SMALL = (f"backprop_{n}" for n in ("2_7b_8_cuda", "2_7b_8_cuda_full", "85m_32_cuda_full"))
LARGE_TUNED, SMALL_TUNED = "tune_finetune_85m_ptb_600_linear", "tune_finetune_ptb_200"
CPU_FC, CPU_GPT = "backprop_fc_128_cpu", "backprop_20m_4_cpu_full"
TITLES = {
    "adamw": "AdamW, fused", "in-backward": "AdamW stepped inside backward", "sparse-10": "entries, 10 %",
    "sparse-5": "entries, 5 %", "sparse-1": "entries, 1 %", "columns-10": "columns, 10 %", "columns-5": "columns, 5 %",
    "rows-10": "rows, 10 %", "entries-10": "entries, 10 %", "lora-64": "LoRA, rank 64", "lora-16": "LoRA, rank 16",
    "adamw-8bit": "8-bit AdamW", "galore": "GaLore", "apollo-mini": "APOLLO-Mini", "badam": "BAdam",
}  # fmt: skip
Table = dict[str, list[str]]


def figures(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / "benchmarks" / f"{name}.json").read_text())["figures"]


def runs(name: str, method: str, figure: str) -> list[float]:
    return [run[figure] for run in figures(name)["runs"] if run["method"] == method and figure in run]


def largest(name: str, method: str, figure: str) -> str:
    """With two decimals, or nothing where it was not measured."""
    found = runs(name, method, figure)
    return f"{max(found):.2f}" if found else ""


def span(found: list[float], decimals: int = 1) -> str:
    """A number, a range, or nothing."""
    ends = sorted({f"{x:.{decimals}f}" for x in found}, key=float)
    return " to ".join(dict.fromkeys([*ends[:1], *ends[-1:]]))


def ms(name: str, method: str) -> str:
    return span(runs(name, method, "mean_ms"))


def ratio(name: str, method: str) -> str:
    """To AdamW's mean step in the same repeat: the median."""
    found = figures(name)["mean_over_adamw"].get(method)
    return "" if found is None else "1" if method == "adamw" else f"{found[0]:.2f}"


def ratios(name: str, method: str) -> str:
    """The same, as a range if there is more than one."""
    return "1" if method == "adamw" else span(figures(name)["mean_over_adamw"][method], 2)


def shares(name: str, decimals: int = 2) -> dict[str, dict[str, str]]:
    """Of benchmarks/backprop.py: a step over the dense one, its range, and on CUDA the same of the time in kernels."""
    methods = figures(name)["methods"]
    dense, made = methods[0], {}
    for each in methods[1:]:
        middle, low, high = (f"{x:.{decimals}f}" for x in (each["ratio"], *each["range"]))
        made[each["method"]] = {"ratio": middle, "range": f"{middle} ({low} to {high})"}
        if "kernel_ms" in each:
            made[each["method"]]["kernels"] = f"{each['kernel_ms'] / dense['kernel_ms']:.2f}"
    return made


def tuning(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / "tune" / f"{name}.json").read_text())


def tuned(method: str) -> dict[str, Any]:
    return tuning(LARGE_TUNED)["methods"][method]


def trials(method: str) -> str:
    """Step sizes, ascending, and the loss after each."""
    found = sorted((t["settings"]["lr"], t["loss"]) for t in tuned(method)["trials"])
    return "; ".join(f"{lr:g}: {loss:.3f}" for lr, loss in found)


def seeds(method: str) -> str:
    return ", ".join(f"{loss:.3f}" for loss in tuned(method).get("lowest", [])) or "not run"


def ends(method: str) -> str:
    return f"{tuned(method)['loss']:.3f}; {seeds(method).replace('not run', '–')}"


# The tables.


def of_the_readme() -> Table:
    bases = runs(PEERS, "adamw", "mean_ms")
    back = shares(BACK)

    def earlier(method: str) -> list[str]:
        mean = runs(PEERS, method, "mean_ms")[0]
        return [largest(PEERS, method, "peak_gib"), f"{mean / max(bases):.2f} to {mean / min(bases):.2f}", "–", "–"]

    def now(method: str) -> list[str]:
        return [largest(ONE, method, "peak_gib"), ratios(ONE, method)]

    return {
        "AdamW, fused": [largest(ONE, "adamw", "peak_gib"), "1", "1", ends("adamw")],
        "8-bit AdamW (bitsandbytes)": earlier("adamw-8bit"),
        "BAdam, a block of layers at a time": earlier("badam"),
        "LoRA, rank 64": [*now("lora-64"), back["lora-64"]["ratio"], ends("lora")],
        "**SparseAdamW**, entries, `k2=0.1`": [*now("sparse-10"), "–", ends("sparse-adamw")],
        "**SparseAdamW**, entries, `k2=0.05`": [*now("sparse-5"), ratio(EIGHT, "sparse-5"), "–"],
        "**SparseAdamW**, columns, `k2=0.1`": [*now("columns-10"), back["columns-10"]["ratio"],
                                               ends("sparse-adamw-columns")],
    }  # fmt: skip


ORDER = ("adamw", "in-backward", "sparse-10", "sparse-5", "sparse-1", "columns-10", "lora-64", "lora-16")


def of_memory_and_seconds() -> Table:
    return {
        TITLES[method]: [cell for name in (ONE, LARGE, FULL, SMALL)
                         for cell in (largest(name, method, "peak_gib"), ratio(name, method))]
        for method in ORDER if method != "in-backward"
    }  # fmt: skip


def of_large_models_in_full() -> Table:
    sizes = ("peak_gib", "bytes_per_parameter")
    return {
        TITLES[method]: [cell for name in (ONE, LARGE)
                         for cell in (*(largest(name, method, size) for size in sizes), ms(name, method),
                                      ratios(name, method) if ratio(name, method) else "")]
        for method in ORDER
    }  # fmt: skip


def of_the_small_gpt() -> Table:
    order = ("adamw", "in-backward", "sparse-10", "sparse-5", "columns-10", "lora-64", "lora-16", "adamw-8bit",
             "galore", "apollo-mini", "badam")  # fmt: skip
    assert set(order) == {run["method"] for run in figures(SMALL)["runs"]}
    return {
        TITLES[m]: [largest(SMALL, m, "peak_gib"), ms(SMALL, m), ratios(SMALL, m)] for m in order
    }  # fmt: skip


def of_many_tokens_without_checkpointing() -> Table:
    return {
        TITLES[m]: [largest(FULL, m, "peak_gib"), ms(FULL, m), ratios(FULL, m)]
        for m in ("adamw", "columns-10", "lora-16")
    }


def of_layer_rules() -> Table:
    cpu = [shares(name, 3) for name in (CPU_FC, CPU_GPT)]
    cuda = [shares(name) for name in (BACK, BACK_FULL, BACK_SMALL)]
    order = ("columns-10", "columns-5", "rows-10", "entries-10", "lora-16")
    return {
        TITLES[m]: [*(of.get(m, {}).get("ratio", "") for of in cpu),
                    *(of.get(m, {}).get(figure, "") for of in cuda for figure in ("ratio", "kernels"))]
        for m in order
    }  # fmt: skip


def of_layer_rules_on_a_cpu() -> Table:
    order = ("columns-10", "columns-5", "rows-10", "entries-10", "lora-64", "lora-16")
    of = [shares(name, 3) for name in (CPU_FC, CPU_GPT, f"{CPU_GPT}_compiled_model")]
    return {TITLES[m]: [each.get(m, {}).get("range", "") for each in of] for m in order}


def of_layer_rules_on_a_gpu() -> Table:
    order = ("columns-10", "columns-5", "lora-64", "lora-16")
    of = [shares(name) for name in (BACK, BACK_FULL, BACK_SMALL)]
    return {TITLES[m]: [each[m][figure] for each in of for figure in ("range", "kernels")] for m in order}


MODELS = {"85m": "GPT, 85 M", "2.7b": "GPT, 2.7 B", "llama": "a small Llama", "resnet18": "ResNet-18"}


def of_predicted_bytes() -> Table:
    rows = {(r["model"], r["method"]): r for r in figures("footprint_cuda")["rows"]}
    methods = list(dict.fromkeys(method for _, method in rows))
    for row in rows.values():
        assert row["ratio"] == pytest.approx(row["predicted"] / row["measured"], abs=1e-4)

    def cell(model: str, method: str) -> str:
        return f"{rows[model, method]['ratio']:.2f}" if (model, method) in rows else ""

    return {method.removeprefix("SparseAdamW, "): [cell(model, method) for model in MODELS] for method in methods}


def of_fine_tuning() -> Table:
    titles = {"adamw": "AdamW", "lora": "LoRA, rank 64", "sparse-adamw": "SparseAdamW, 10 % of the entries",
              "sparse-adamw-columns": "SparseAdamW, 10 % of the columns"}  # fmt: skip
    record = tuning(LARGE_TUNED)
    assert set(titles) == set(record["methods"])
    made = {}
    for method, title in titles.items():
        peaks = [r["summary"]["peak_gib"] for r in record["runs"] if r["config"]["optimizer"] == method]
        made[title] = [trials(method), f"{tuned(method)['best']['lr']:g}", seeds(method),
                       f"{max(peaks):.2f}" if peaks else ""]  # fmt: skip
    return made


def of_fine_tuning_a_small_model() -> Table:
    """All methods of the file, the lowest mean of the final runs first."""
    titles = {
        "adamw": "AdamW", "in-backward": "AdamW stepped inside backward", "adamw-8bit": "8-bit AdamW (bitsandbytes)",
        "lora": "LoRA", "galore": "GaLore", "apollo-mini": "APOLLO", "badam": "BAdam, one of the two blocks",
        "sparse-adamw": "SparseAdamW, 10 % of the entries", "sparse-adamw-columns": "SparseAdamW, 10 % of the columns",
    }  # fmt: skip
    methods = tuning(SMALL_TUNED)["methods"]
    assert set(titles) == set(methods)
    assert all(len(of["trials"]) == 8 and len(of["lowest"]) == 3 for of in methods.values())
    assert not [method for method, of in methods.items() if of["edge"]]
    order = sorted(methods, key=lambda m: (fmean(methods[m]["lowest"]), list(titles).index(m)))
    return {titles[m]: [settings(methods[m]["best"]), ", ".join(f"{x:.3f}" for x in methods[m]["lowest"])]
            for m in order}  # fmt: skip


def losses_of(name: str, key: Any) -> dict[Any, dict[float, list[float]]]:
    """Of short runs: by a key of their settings and by step size, the last losses, in the order of seeds."""
    ends: dict[Any, dict[float, list[float]]] = {}
    for run in sorted(tuning(name)["runs"], key=lambda run: run["config"]["seed"]):
        of_row = ends.setdefault(key(run["config"]), {})
        of_row.setdefault(run["config"]["lr"], []).append(run["curve"]["valid_loss"][-1])
    assert {len(losses) for row in ends.values() for losses in row.values()} == {2}
    return ends


def both(losses: list[float]) -> str:
    return ", ".join(f"{x:.3f}" for x in losses)


def shares_at(scale: float | None) -> dict[Any, dict[float, list[float]]]:
    def key(c: dict[str, Any]) -> tuple[str, float, float | None]:
        return c["optimizer"], c["k2"] or 0.1, c["arguments"]["step_scale"]

    return {found[:2]: row for found, row in losses_of("runs_shares", key).items() if found[2] == scale}


def of_shares() -> Table:
    """Two seeds at each of the same three step sizes."""
    ends = shares_at(None)
    assert all(sorted(row) == [0.0016, 0.0032, 0.0064] for row in ends.values())
    return {f"{100 * share:g} %": ["; ".join(both(losses) for _, losses in sorted(ends[method, share].items()))
                                   for method in ("sparse-adamw", "sparse-adamw-columns")]
            for share in (0.05, 0.1, 0.2, 0.4)}  # fmt: skip


def of_embeddings() -> Table:
    """AdamW by its step size, and by what embeddings step by."""
    ends = losses_of("runs_embeddings", lambda c: c["arguments"]["embeddings"])
    titles = {1.0: "lr", 0.5: "lr / 2", 0.25: "lr / 4"}
    return {title: [both(ends[share][lr]) for lr in (0.0032, 0.0064, 0.0128)] for share, title in titles.items()}


def of_600_steps() -> Table:
    """Losses of two seeds; AdamW and LoRA at the better of two step sizes."""
    titles = {"adamw": "AdamW", "lora": "LoRA, rank 64, alpha 128", "sparse-adamw": "10 % of the entries",
              "sparse-adamw-columns": "10 % of the columns"}  # fmt: skip

    def title(c: dict[str, Any]) -> str:
        beta2 = c["arguments"].get("beta2")
        return titles[c["optimizer"]] + (f", beta2 {beta2:g}" if beta2 else "")

    ends = losses_of("runs_long", title)
    best = {title: min(row, key=lambda lr, row=row: fmean(row[lr])) for title, row in ends.items()}
    order = sorted(ends, key=lambda title: fmean(ends[title][best[title]]))
    return {t: [f"{best[t]:g}", both(ends[t][best[t]])] for t in order}


def settings(best: dict[str, Any]) -> str:
    """But for those that all runs of a method have."""
    flat = {k: v for k, v in best.items() if k not in ("arguments", "anchor_batch_size")} | best.get("arguments", {})
    found = {k: v for k, v in flat.items() if v is not None}
    return ", ".join(f"{k} {v:g}" if isinstance(v, float | int) else f"{k} {v}" for k, v in found.items())


MEASURED, TUNED = "results/benchmarks/README.md", "results/tune/README.md"
PERFORMANCE = "docs/performance.md"
TABLES = [
    ("README.md", "| GPT, bfloat16, one H200", of_the_readme),
    (PERFORMANCE, "| GiB; step / AdamW's", of_memory_and_seconds),
    (PERFORMANCE, "| step / dense", of_layer_rules),
    (MEASURED, "| one sequence, checkpointing", of_large_models_in_full),
    (MEASURED, "| 85 M, 32 sequences", of_the_small_gpt),
    (MEASURED, "| 2,681 M, eight sequences", of_many_tokens_without_checkpointing),
    (MEASURED, "| one thread of a CPU", of_layer_rules_on_a_cpu),
    (MEASURED, "| one H200", of_layer_rules_on_a_gpu),
    (MEASURED, "| predicted / measured", of_predicted_bytes),
    (TUNED, "| 85 M", of_fine_tuning),
    (TUNED, "| 0.5 M", of_fine_tuning_a_small_model),
    (TUNED, "| share of each matrix", of_shares),
    (TUNED, "| embeddings step by", of_embeddings),
    (TUNED, "| 600 steps", of_600_steps),
]


def read(text: str, head: str) -> Table:
    """The rows of the one table whose head begins so."""
    lines = text.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.startswith(head))
    made = {}
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        title, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        made[title] = cells
    return made


@pytest.mark.parametrize(("page", "head", "table"), TABLES, ids=[f"{page} {head[2:]}" for page, head, _ in TABLES])
def test_a_table_is_of_its_files(page: str, head: str, table: Any) -> None:
    found = read((ROOT / page).read_text(), head)
    assert found == table()
    assert list(found) == list(table())


def in_the_readme() -> list[str]:
    assert all(
        runs(ONE, m, "peak_gib")[0] < 0.51 * runs(ONE, "adamw", "peak_gib")[0] for m in ("sparse-10", "sparse-5")
    )
    small = tuning(SMALL_TUNED)["methods"]
    methods = "adamw", "lora", "sparse-adamw", "sparse-adamw-columns"
    worst = [f"{max(small[m]['lowest']):.3f}" for m in methods]
    assert len({small[m]["best"]["lr"] for m in methods if m != "lora"}) == 1  # AdamW's own
    assert {tuned(m)["best"]["lr"] for m in methods[2:]} == {0.004}
    entries, columns = (f"{max(shares_at(None)[m, 0.2][0.0064]):.3f}" for m in methods[2:])
    adamw = min(max(cell.split(", ")) for row in of_embeddings().values() for cell in row)
    return [
        f"6.7 B in {largest(LARGE, 'sparse-5', 'peak_gib')} GiB",
        "all that is trained stepped by 0.004",
        f"AdamW ends at {worst[0]}, LoRA at {worst[1]}, 10 % of the entries at {worst[2]} and of the columns "
        f"at {worst[3]} (worst of three seeds)",
        f"at {entries} and {columns}",
        f"AdamW too gains from a smaller step for embeddings: [{adamw}]",
    ]


def on_the_page_of_performance() -> list[str]:
    (least, most), (ours, adamw) = sorted(runs(ONE, "adamw", "mean_ms")), peaks_of_eight()
    return [
        f"AdamW's own means were {least:.1f} and {most:.1f} ms",
        f"5 % of the entries take {ours} GiB and {ratio(EIGHT, 'sparse-5')} of AdamW's step, AdamW {adamw} GiB",
    ]


def of_the_top_part() -> list[str]:
    rows: list[str] = []
    for case in ("finetune", "cnn_sgd", "cnn_adamw"):
        rows += [row for row in top.table(figures(f"top_{case}_small"))[2:] if "for scale" not in row]
    assert all(row.split("|")[2].strip().startswith("**") for row in rows)  # the first split, random
    decided = sum(row.endswith("| random |") for row in rows)
    scores = figures("top_cnn_sgd_small")["means"]["10 % of the entries, scores: anchor, new after 50"]
    batch = figures("top_cnn_sgd_small")["means"]["10 % of the entries, scores: batch, new after 50"]
    return [
        f"in each of the {len(rows)} rows of fine-tuning and of the CNN, and in {decided} of them with both seeds",
        f"from {batch['1:0'][0]} to {scores['1:0'][0]}, where random entries end at {batch['0:1'][0]}",
    ]


def beside_the_files() -> list[str]:
    means, medians = (sorted(runs(ONE, "adamw", f"{which}_ms")) for which in ("mean", "median"))
    (ours, adamw), small = peaks_of_eight(), shares(BACK_SMALL)["columns-10"]
    dense, columns = figures(BACK)["methods"][:2]
    entries, groups = (sorted(runs(SMALL, m, "anchor_ms")) for m in ("sparse-5", "columns-10"))
    return [
        *of_the_top_part(),
        f"had means of {means[0]:.1f} and {means[1]:.1f} ms, and medians of {medians[0]:.1f} and {medians[1]:.1f}",
        f"{ms(EIGHT, 'adamw')} ms for AdamW and {ms(EIGHT, 'sparse-5')} for 5 % of the entries "
        f"({ratio(EIGHT, 'sparse-5')}), at {adamw} and {ours} GiB",
        f"10 % of the columns take {columns['ms']:.1f} ms, of which {columns['kernel_ms']:.1f} in kernels, "
        f"the dense step {dense['ms']:.1f} and {dense['kernel_ms']:.1f}",
        f"kernels take {small['kernels']} of the dense step's time, the step {small['ratio']}",
        f"{entries[0]:.1f} and {entries[1]:.1f} ms for 5 % of the entries, "
        f"{groups[0]:.1f} and {groups[1]:.1f} ms for columns",
    ]


def in_the_guide() -> list[str]:
    assert all(0.96 <= row["ratio"] <= 1.04 for row in figures("footprint_cpu")["rows"])
    assert all(0.95 <= row["ratio"] <= 1.0 for row in figures("footprint_cuda")["rows"] if not of_a_later_form(row))
    for row in shares_at(None).values():  # half of AdamW's step is never the best
        assert fmean(row[0.0016]) > min(fmean(row[0.0032]), fmean(row[0.0064]))
    assert tuning(SMALL_TUNED)["methods"]["adamw"]["best"]["lr"] == 0.0032
    return ["on an H200 within 5 % of the allocator's peak", "AdamW's, or twice that, for k from 5 to 40 %"]


def of_sparse_backpropagation() -> list[str]:
    plain, checkpointed, small = (shares(name)["columns-10"]["ratio"] for name in (BACK_FULL, BACK, BACK_SMALL))
    return [f"took {plain} of AdamW's step at 2,681 M, [{checkpointed} with checkpointing, and {small} at 85 M]"]


def beside_the_tunings() -> list[str]:
    adamw, lora = (tuned(m)["best"]["lr"] for m in ("adamw", "lora"))
    sparse = [tuned(m) for m in ("sparse-adamw", "sparse-adamw-columns")]
    entries, columns = (next(t["loss"] for t in m["trials"] if t["settings"]["lr"] == 5 * adamw) for m in sparse)
    assert min(entries, columns) > tuned("adamw")["loss"]
    assert {m["best"]["lr"] for m in sparse} == {20 * adamw}
    assert all(beside(m) == (0.002, 0.008) for m in ("sparse-adamw", "sparse-adamw-columns"))
    assert max(sparse[0]["lowest"]) < min(sparse[1]["lowest"])
    assert max(sparse[1]["lowest"]) < min(tuned("adamw")["lowest"])
    assert sparse[0]["loss"] < tuned("lora")["loss"] < sparse[1]["loss"]
    (lower, upper), (low, high) = beside("adamw"), beside("lora")
    of = {m: tuning(SMALL_TUNED)["methods"][m] for m in ("adamw", "lora", "sparse-adamw", "sparse-adamw-columns")}
    target = 1.01 * fmean(of["adamw"]["lowest"])
    assert all(min(of[m]["lowest"]) > target for m in ("sparse-adamw", "sparse-adamw-columns"))
    plain, shorter = (of["adamw"]["trials"][i]["loss"] for i in (2, 7))
    entries_50, _, entries_top = (t["loss"] for t in of["sparse-adamw"]["trials"][5:])
    columns_50, _, columns_top = (t["loss"] for t in of["sparse-adamw-columns"]["trials"][5:])
    best_entries, best_columns = (
        min(t["loss"] for t in of[m]["trials"][:5]) for m in ("sparse-adamw", "sparse-adamw-columns")
    )
    unscaled = shares_at(1.0)
    assert columns_50 < best_columns
    assert entries_50 > best_entries
    return [
        f"its trial ended at {of['lora']['trials'][5]['loss']:.3f}, where the trial of a tenth of the entries ended "
        f"at {best_entries:.3f}",
        f"the trial of entries ended at {entries_top:.3f} and not at {best_entries:.3f}, that of columns at "
        f"{columns_top:.3f} and not at {best_columns:.3f}",
        *(
            f"{form} end at {both(min(unscaled[m, 0.1].values(), key=fmean))} at best"
            for form, m in (("entries", "sparse-adamw"), ("columns", "sparse-adamw-columns"))
        ),
        f"New selections every 50 steps helped columns, {columns_50:.3f}, and hurt entries, {entries_50:.3f}",
        f"its trials ended at {shorter:.3f} with 0.95 and {plain:.3f} with torch's",
        f"The best sparse step is 20 times AdamW's here. At 5 times, {5 * adamw:g}, entries and columns end "
        f"at {entries:.3f} and {columns:.3f}, above AdamW",
        f"Beside AdamW's best, {adamw:g}, were {lower:g} and {upper:g}, and "
        f"beside LoRA's, {lora:g}, {low:g} and {high:g}",
    ]


def peaks_of_eight() -> tuple[str, str]:
    return largest(EIGHT, "sparse-5", "peak_gib"), largest(EIGHT, "adamw", "peak_gib")


def of_a_later_form(row: dict[str, Any]) -> bool:
    """These predictions are checked in tests/theory/test_footprint.py."""
    return row["model"] == "resnet18" and "columns" in row["method"]


def beside(method: str) -> tuple[float, float]:
    """The step sizes that were tried next to the best."""
    tried = sorted(t["settings"]["lr"] for t in tuned(method)["trials"])
    at = tried.index(tuned(method)["best"]["lr"])
    return tried[at - 1], tried[at + 1]


SENTENCES = {
    "README.md": in_the_readme, PERFORMANCE: on_the_page_of_performance, MEASURED: beside_the_files,
    "docs/guide.md": in_the_guide, "docs/backprop.md": of_sparse_backpropagation, TUNED: beside_the_tunings,
}  # fmt: skip


@pytest.mark.parametrize("page", SENTENCES)
def test_sentences_with_measured_numbers_are_of_their_files(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert [sentence for sentence in SENTENCES[page]() if sentence not in text] == []


def test_a_wrong_cell_is_noticed() -> None:
    text = (ROOT / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| LoRA, rank 64"))
    wrong = re.sub(r"\d\.\d\d(?= \|)", "9.99", row, count=1)
    assert wrong != row
    assert read(text.replace(row, wrong), "| GPT, bfloat16, one H200") != of_the_readme()
    assert read(text.replace(row + "\n", ""), "| GPT, bfloat16, one H200") != of_the_readme()
