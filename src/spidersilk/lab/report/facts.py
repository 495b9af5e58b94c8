"""The rules on sentences that benchmarks answer, and those that need no run at all."""

from __future__ import annotations

from spidersilk.lab.experiments.claims import Claim
from spidersilk.lab.experiments.paper import LABELS
from spidersilk.lab.report.comparison import LEVEL
from spidersilk.lab.report.judging import NO, NOT_RUN, YES, Material, Rule, Verdict

SHARE = "0.1"  # k / d of the paper's experiments
HALF = 0.5


def _captured(claim: Claim, material: Material) -> list[Verdict]:
    """`spidersilk inspect`, before training: of a gradient, and of a difference of two, which is what rtop sees."""
    found = {name.removeprefix("inspect/inspect_"): facts
             for name, facts in material.facts.items() if name.startswith("inspect/")}  # fmt: skip
    if not found:
        return [Verdict(claim.text, NOT_RUN, "missing: results/inspect")]
    kinds, words, told = {"captured_gradient": "gradients", "captured": "differences"}, [], []
    for key, name in kinds.items():
        shares = {task: facts[key][SHARE] for task, facts in found.items()}
        words.append(f"{sum(share >= HALF for share in shares.values())} of {len(shares)} for {name}")
        told.append(f"of {name} {', '.join(f'{task} {100 * share:.0f} %' for task, share in shares.items())}")
    why = f"share of the energy in the top 10 % of M, a mean over three loops of SVRG: {'; '.join(told)}"
    files = [f"results/{n}.json" for n in material.facts if n.startswith("inspect/")]
    return [Verdict(claim.text, f"{YES} in {', in '.join(words)}", why, files)]


def _forward(claim: Claim, material: Material) -> list[Verdict]:
    facts = material.facts.get("benchmarks/sparse_forward")
    if facts is None:
        return [Verdict(claim.text, NOT_RUN, "missing: results/benchmarks/sparse_forward.json")]
    once, twice = (facts[draws] for draws in ("one draw for both", "independent draws"))
    why = "relative error of the mean of 5,000 draws, where an unbiased one is explained by their number: "
    why += (
        f"one draw as printed {once['one layer']:.1f} in one layer; independent draws {twice['one layer']:.2f} in one "
    )
    why += f"layer, {twice['their gradient']:.1f} in the gradient of two (the number of draws explains "
    why += f"{twice['one layer, explained by the number of draws']:.2f} and "
    why += f"{twice['their gradient, explained by the number of draws']:.1f})"
    biased = twice["their gradient"] > 2 * twice["their gradient, explained by the number of draws"]
    word = "sparse, but biased as printed" if biased else YES
    return [Verdict(claim.text, word, why, ["results/benchmarks/sparse_forward.json"])]


def _selection(claim: Claim, material: Material) -> list[Verdict]:
    """Whether selecting the top takes most of the operator's time, and grows linearly."""
    facts = material.facts.get("benchmarks/step_cpu_1")
    if facts is None:
        return [Verdict(claim.text, NOT_RUN, "missing: results/benchmarks/step_cpu_1.json")]
    times = facts["times"]
    sizes = list(times["select, numba"])[-2:]
    top, both = (times[name][sizes[0]] for name in ("torch.topk", "torch.topk and random keys"))
    growth = times["torch.topk"][sizes[1]] / times["torch.topk"][sizes[0]]
    small, large = (f"{int(size):,}" for size in sizes)
    why = (
        f"torch.topk takes {top:.0f} of {both:.0f} copies of d floats in plain torch at d = {small}, the random part, "
    )
    why += f"here random keys and their own top, the rest; at d = {large} its cost per float is {growth:.2f} times that"
    linear, most = 1 / 1.2 <= growth <= 1.2, top > both / 2
    word = YES if linear and most else "linear, but not dominated by the top in this implementation" if linear else NO
    return [Verdict(claim.text, word, why, ["results/benchmarks/step_cpu_1.json"])]


def _time(claim: Claim, material: Material) -> list[Verdict]:
    """Gradient differences at single coordinates, each network alone on its machine."""
    found = {f"{machine}: {network}": ratios["two points, coordinates, True"]
             for machine, name in {"CPU": "backprop_cpu_1", "GPU": "backprop_cuda_float32"}.items()
             for network, ratios in material.facts.get(f"benchmarks/{name}", {}).get("ratios", {}).items()}  # fmt: skip
    if not found:
        return [Verdict(claim.text, NOT_RUN, "missing: results/benchmarks/backprop_*.json")]
    faster = [name for name, ratio in found.items() if ratio < 1 / LEVEL]
    word = f"{YES} in {len(faster)} of {len(found)}" if faster else "by the count of queries, not in seconds"
    why = f"seconds over those of all coordinates: {min(found.values()):.2f} to {max(found.values()):.2f} "
    why += f"on {len(found)} networks"
    files = [f"results/benchmarks/{name}.json" for name in ("backprop_cpu_1", "backprop_cuda_float32")]
    return [Verdict(claim.text, word, why, files)]


def _larger_steps(claim: Claim, material: Material) -> list[Verdict]:
    """The best step size of SpiderBoost and SVRG above SGD's by more than the factor of a clear difference. Files that
    share their trials, and go on for longer, count once."""
    larger: dict[str, list[bool]] = {}
    distinct = {repr(record["conditions"]): record["methods"] for record in material.tunings.values()}
    decays, edges = 0, 0
    for methods in distinct.values():
        best = {m: methods[m]["best"] for m in ("sgd", "spiderboost", "svrg") if m in methods}
        rivals = [m for m in ("spiderboost", "svrg") if best.get(m) and best.get("sgd")]
        for method in rivals:
            larger.setdefault(LABELS[method], []).append(best[method]["lr"] > LEVEL * best["sgd"]["lr"])
        decays += bool(rivals and best["sgd"].get("decay"))
        edges += bool(rivals and any(methods[m]["edge"] for m in best))
    if not larger:
        return [Verdict(claim.text, NOT_RUN, "missing: tunings of SpiderBoost or SVRG, and SGD")]
    why = "; ".join(f"{name} in {sum(each)} of {len(each)} tunings" for name, each in larger.items())
    why += f"; in {decays} of them SGD's step decays and the others' does not, in {edges} a best step is at the edge "
    every = [x for each in larger.values() for x in each]
    word = YES if all(every) else f"{YES} in {sum(every)} of {len(every)}" if any(every) else NO
    return [Verdict(claim.text, word, f"a larger best step size than SGD's: {why}of those tried", ["results/tune"])]


def _told(word: str) -> Rule:
    """For what no run decides: counted, proved, or not run."""

    def rule(claim: Claim, material: Material) -> list[Verdict]:
        why = f"missing: {claim.note}" if word == NOT_RUN else claim.note
        return [Verdict(claim.text, word, f"{why} (`{claim.test}`)" if claim.test else why)]

    return rule


RULES: dict[str, Rule] = {
    "captured": _captured,
    "forward": _forward,
    "selection": _selection,
    "time": _time,
    "larger steps": _larger_steps,
    "counted": _told("holds by the count"),
    "proved": _told("holds, tested"),
    "proved in part": _told("holds in part, tested"),
    "disproved": _told("does not hold"),
    "not run": _told(NOT_RUN),
}
