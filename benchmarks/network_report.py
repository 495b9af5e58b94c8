"""The results of benchmarks/network.py: ratios, the cost model against measurements, predictions, tables, a plot."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from network_worker import METHODS, OURS, Settings, mlp, summary
from scaling import Cluster, Loop, Step, break_even, dense, power_sgd, small, top_k

Row = dict[str, Any]
LABELS = {
    "dense": "dense DDP",
    "PowerSGD": "DDP with PowerSGD",
    "SparseSGD": "SparseSGD",
    "SparseSVRG": "SparseSVRG",
}


def figures(rows: list[Row], settings: Settings) -> dict[str, Any]:
    shapes = [tuple(p.shape) for p in mlp(settings.width).parameters()]
    d = sum(math.prod(shape) for shape in shapes)
    found: dict[str, Any] = {"settings": asdict(settings) | {"d": d}, "workers": {}}
    for n in dict.fromkeys(row["part"][0] for row in rows):
        own = {tuple(row["part"][1:]): row["figures"] for row in rows if row["part"][0] == n}
        local = rounds(own, "local") | {"passes": own[("passes",)]}
        steps = model(local, shapes, settings)
        entry: dict[str, Any] = {"local": local, "rates": {}}
        for rate in [part[1] for part in own if part[0] == "messages"]:
            measured = {"messages": own[("messages", rate)], "methods": rounds(own, "rate", rate)}
            entry["rates"][f"{rate:g}"] = at_rate(n, measured, steps, settings)
        targets = [(part, figure) for part, figure in own.items() if part[0] == "target"]
        if targets:
            entry["target"] = to_target(targets, entry["rates"], settings)
        found["workers"][str(n)] = entry
    first = next(iter(found["workers"].values()))
    found["outlook"] = outlook(model(first["local"], shapes, settings), settings)
    return found


def rounds(own: dict[tuple[Any, ...], Any], *title: Any) -> dict[str, Any]:
    """The median over rounds, for every method and kind of step."""
    found: dict[str, dict[str, list[Row]]] = {}
    for part, kinds in own.items():
        if part[: len(title)] == title:
            for kind, block in kinds.items():
                found.setdefault(part[len(title)], {}).setdefault(kind, []).append(block)
    return {name: {kind: summary(blocks) for kind, blocks in kinds.items()} for name, kinds in found.items()}


def model(local: dict[str, Any], shapes: list[tuple[int, ...]], settings: Settings) -> dict[str, Step]:
    """The steps of every method, with measured local times; nothing here is fitted to the network."""
    d = sum(math.prod(shape) for shape in shapes)
    sizes = [(math.prod(shape), len(shape) > 1) for shape in shapes]
    selected = sum(math.ceil(settings.k * size) if is_weight else size for size, is_weight in sizes)  # biases are whole
    k = {"SparseSGD": selected, "SparseSVRG": 2 * math.ceil(settings.k * d / 2)}
    backward = local["passes"]["backward"]
    return {
        "dense step": dense(d, local["dense"]["step"]["seconds"], hidden=backward),
        "PowerSGD step": power_sgd(shapes, settings.rank, local["PowerSGD"]["step"]["seconds"]),
        **{f"{name} anchor": dense(d, local[name]["anchor"]["seconds"]) for name in OURS},
        **{f"{name} small": small(k[name], local[name]["small"]["seconds"]) for name in OURS},
    }


def fit(n: int, messages: dict[str, Any]) -> Cluster:
    """Latency and bandwidth, fitted to plain all-reduces by least squares of the relative errors."""
    sizes = torch.tensor([float(size) for size in messages], dtype=torch.float64)
    seconds = torch.tensor([entry["seconds"] for entry in messages.values()], dtype=torch.float64)
    table = torch.stack((torch.full_like(sizes, 2 * (n - 1)), 2 * (n - 1) / n * sizes), 1) / seconds[:, None]
    latency, slowness = (
        torch.linalg.lstsq(table, torch.ones(len(sizes), 1, dtype=torch.float64)).solution[:, 0].tolist()
    )
    return Cluster(n, max(latency, 0.0), 1 / slowness)


def at_rate(n: int, measured: dict[str, Any], steps: dict[str, Step], settings: Settings) -> dict[str, Any]:
    cluster = fit(n, measured["messages"]["all_reduce"])
    check = {}
    for name, step in steps.items():
        method, kind = name.split()
        entry = measured["methods"][method][kind]
        predicted = step.seconds(cluster)
        check[name] = {
            "measured_ms": round(1e3 * entry["seconds"], 2),
            "predicted_ms": round(1e3 * predicted, 2),
            "ratio": round(predicted / entry["seconds"], 3),
            "payload": round(entry["payload"]),
            "model_payload": round(step.sent(n)),
            "payload_ratio": round(entry["payload"] / step.sent(n), 4),
            "interface": round(entry["interface"]),
            "wire": round(entry["wire"]),
            "others": round(max(others for _, others in entry["blocks"]), 2),
            **({"counted": round(2 * (n - 1) / n * entry["counted"])} if "counted" in entry else {}),
        }
    gathered = measured["messages"]["top_k"]
    loops = {}
    base = measured["methods"]["dense"]["step"]
    for name in OURS:
        kinds, m = measured["methods"][name], settings.m
        mean = {x: (kinds["anchor"][x] + (m - 1) * kinds["small"][x]) / m for x in ("seconds", "payload", "wire")}
        loops[name] = {
            "ms": round(1e3 * mean["seconds"], 2),
            "bytes_saved": round(base["payload"] / mean["payload"], 3),
            "faster": round(base["seconds"] / mean["seconds"], 3),
            "small_step_faster": round(base["seconds"] / kinds["small"]["seconds"], 3),
        }
    power = measured["methods"]["PowerSGD"]["step"]
    loops["PowerSGD"] = {
        "ms": round(1e3 * power["seconds"], 2),
        "bytes_saved": round(base["payload"] / power["payload"], 3),
        "faster": round(base["seconds"] / power["seconds"], 3),
    }
    return {
        "fitted": {"latency_us": round(1e6 * cluster.latency, 1), "mbit": round(8e-6 * cluster.bandwidth, 1)},
        "steps": check,
        "against_dense": loops,
        "top_k_all_gather": {
            "payload": round(gathered["payload"]),
            "model_payload": round(Step(0.0, gathered=(gathered["bytes"],)).sent(n)),
            "measured_ms": round(1e3 * gathered["seconds"], 2),
            "predicted_ms": round(1e3 * cluster.all_gather(gathered["bytes"]), 2),
        },
        "raw": measured,
    }


def to_target(targets: list[tuple[Any, Any]], rates: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Time to the target: measured at one rate; at the others, counted steps times their measured length."""
    found: dict[str, Any] = {}
    for name in METHODS:
        own = [(part, figure) for part, figure in targets if part[2] == name]
        if not own:
            continue
        runs = [figure for _, figure in own]
        found[name] = {
            "mbit": own[0][0][1],
            "lr": own[0][0][4],
            "reached": [run["reached"] for run in runs],
            "steps": [sum(run["counts"].values()) for run in runs],
            "seconds": [round(run["seconds"], 2) for run in runs],
            "median_seconds": round(statistics.median(run["seconds"] for run in runs), 2),
            "others": [round(run["others"], 2) for run in runs],
            "by_steps": {},
            "curves": [run["curve"] for run in runs],
        }
        for rate, entry in rates.items():
            kinds = entry["raw"]["methods"][name]
            totals = [sum(c * kinds[kind]["seconds"] for kind, c in run["counts"].items()) for run in runs]
            found[name]["by_steps"][rate] = round(statistics.median(totals), 2)
    return found


WORKERS = (2, 8, 64, 256, 1024)
LARGE = [(4096, 4096)] * 60  # about 1e9 parameters
ASSUMED = {
    "forward": 0.1,
    "backward": 0.2,
    "dense update": 0.003,
    "small step's own": 0.02,
    "anchor's own": 0.06,
    "PowerSGD's own": 0.03,
}


def outlook(steps: dict[str, Step], settings: Settings) -> dict[str, Any]:
    """Predictions for many workers: the MLP with its measured local times, and a model of 1e9 parameters."""
    d = sum(math.prod(shape) for shape in LARGE)
    k, a = math.ceil(settings.k * d), ASSUMED
    evaluation = a["forward"] + a["backward"]
    own = evaluation + a["small step's own"]
    anchor = dense(d, evaluation + a["anchor's own"])
    large: dict[str, Step | Loop] = {
        "dense": dense(d, evaluation + a["dense update"], hidden=a["backward"]),
        "SparseSGD, m = 10": Loop(anchor, small(k, own), 10),
        "SparseSGD, m = 50": Loop(anchor, small(k, own), 50),
        "top-k all-gather": top_k(k, own),
        "PowerSGD, rank 4": power_sgd(LARGE, 4, evaluation + a["PowerSGD's own"]),
        "PowerSGD, rank 32": power_sgd(LARGE, 32, evaluation + a["PowerSGD's own"]),
    }
    mlp_methods: dict[str, Step | Loop] = {
        "dense": steps["dense step"],
        "SparseSGD": Loop(steps["SparseSGD anchor"], steps["SparseSGD small"], settings.m),
        "top-k all-gather": Step(steps["SparseSGD small"].local, gathered=(2 * steps["SparseSGD small"].reduced[0],)),
        "PowerSGD": steps["PowerSGD step"],
    }
    found: dict[str, Any] = {"assumed_seconds": ASSUMED, "latency_us": 30, "mlp": {}, "1e9": {}, "break_even_gbit": {}}
    for title, methods, gbits in (("mlp", mlp_methods, (0.1, 1, 10)), ("1e9", large, (1, 10, 100))):
        for gbit in gbits:
            for algorithm in ("ring", "best"):
                clusters = [Cluster(n, 30e-6, gbit * 1e9 / 8, algorithm) for n in WORKERS]
                found[title][f"{gbit:g} Gbit/s, {algorithm}"] = {
                    name: {str(c.workers): round(method.seconds(c), 4) for c in clusters}
                    for name, method in methods.items()
                }
        first = methods["dense"]
        found["break_even_gbit"][title] = {
            name: {str(n): _gbit(break_even(method, first, Cluster(n, 30e-6, 1.0, "best"))) for n in WORKERS}
            for name, method in methods.items()
            if name != "dense"
        }
    found["gigabytes_sent_1e9"] = {
        name: {str(n): round(method.sent(n) / 1e9, 4) for n in WORKERS} for name, method in large.items()
    }
    return found


def _gbit(bandwidth: float) -> float | None:
    return None if math.isinf(bandwidth) else round(8e-9 * bandwidth, 3)


def tuning(rows: list[Row], settings: Settings) -> dict[str, Any]:
    """Print and return the steps to the target by method and step size, and the best step size."""
    found: dict[str, Any] = {"settings": asdict(settings), "steps_to_target": {}}
    for name in METHODS:
        table: dict[str, list[Any]] = {}
        for row in rows:
            _, _, _, method, _, lr = row["part"]
            if method == name:
                run = row["figures"]
                table.setdefault(f"{lr:g}", []).append(sum(run["counts"].values()) if run["reached"] else None)
        found["steps_to_target"][name] = table
        print(f"{name:12} " + "   ".join(f"lr {lr}: {counts}" for lr, counts in table.items()))
    return found


def tables(found: dict[str, Any]) -> str:
    lines = []
    for n, entry in found["workers"].items():
        for rate, at in entry["rates"].items():
            lines += [
                "",
                f"{n} workers, {float(rate):g} Mbit/s (fitted {at['fitted']['mbit']:g} Mbit/s, "
                f"{at['fitted']['latency_us']:g} us)",
                "| step | ms | the model says | payload, MB | of the model's | interface | frames | other programs |",
                "|---|---|---|---|---|---|---|---|",
            ]
            lines += [
                f"| {name} | {x['measured_ms']:.1f} | {x['predicted_ms']:.1f} ({x['ratio']:.2f}) | "
                f"{x['payload'] / 1e6:.3f} | {x['payload_ratio']:.4f} | {x['interface'] / 1e6:.3f} | "
                f"{x['wire'] / 1e6:.3f} | {x['others']:.2f} |"
                for name, x in at["steps"].items()
            ]
            for name, x in at["against_dense"].items():
                more = f", a small step {x['small_step_faster']:.2f} times" if "small_step_faster" in x else ""
                lines.append(
                    f"{name}: {x['bytes_saved']:.2f} times fewer bytes than dense, {x['faster']:.2f} times faster{more}"
                )
            x = at["top_k_all_gather"]
            lines.append(
                f"a top-k's all-gather: {x['payload'] / 1e6:.1f} MB (model {x['model_payload'] / 1e6:.1f}), "
                f"{x['measured_ms']:.1f} ms (model {x['predicted_ms']:.1f})"
            )
        for name, x in entry.get("target", {}).items():
            lines.append(
                f"to the target, {name}: steps {x['steps']}, {x['seconds']} s at {x['mbit']:g}; "
                f"by steps {x['by_steps']}"
            )
    return "\n".join(lines)


def plot(found: dict[str, Any], path: Path) -> None:
    """Plot step time against the rate, measured and predicted, and the time to the target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    n, entry = next(iter(found["workers"].items()))
    rates = sorted(entry["rates"], key=float)
    x = [float(rate) for rate in rates]
    figure, axes = plt.subplots(1, 2 if "target" in entry else 1, figsize=(11, 4.2), squeeze=False)
    shown = {
        "dense step": ("dense DDP", "black"),
        "SparseSGD anchor": ("SparseSGD, anchor", "tab:cyan"),
        "SparseSGD small": ("SparseSGD, small step", "tab:blue"),
        "SparseSVRG small": ("SparseSVRG, small step", "tab:green"),
        "PowerSGD step": (f"PowerSGD, rank {found['settings']['rank']}", "tab:red"),
    }
    for name, (label, colour) in shown.items():
        steps = [entry["rates"][rate]["steps"][name] for rate in rates]
        axes[0][0].plot(x, [s["measured_ms"] for s in steps], "o", color=colour, label=label)
        axes[0][0].plot(x, [s["predicted_ms"] for s in steps], "-", color=colour, linewidth=0.8)
    axes[0][0].set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="ms a step")
    axes[0][0].set_title(f"{n} workers, d = 11 M; points measured, lines the model", fontsize=10)
    axes[0][0].legend(fontsize=8)
    if "target" in entry:
        for name, colour in zip(METHODS, ("black", "tab:red", "tab:blue", "tab:green"), strict=True):
            seconds = [entry["target"][name]["by_steps"][rate] for rate in rates]
            axes[0][1].plot(x, seconds, "o-", color=colour, label=LABELS[name])
        axes[0][1].set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="seconds")
        axes[0][1].set_title(f"time to a training loss of {found['settings']['target']:g}", fontsize=10)
        axes[0][1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
