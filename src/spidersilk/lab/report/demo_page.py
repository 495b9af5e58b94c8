"""What the demo showed: three sections of its page, and three sentences made from their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spidersilk.lab.report.cells import duration, size, value_of
from spidersilk.lab.report.conclusions import at
from spidersilk.lab.report.html import Section, Table
from spidersilk.lab.run.curve import BROKEN, Curve

EQUAL = 1.02  # a ratio below this is no difference worth a word
# Of the loss before training: a run trained that ends below the first, never above the second.
TRAINED, RISES = 0.5, 1.5
LOSS, VALID, GAP = "train_loss", "valid_loss", "gap"


def sections(tuned: Sequence[Curve], convex: Sequence[Curve], printed: Sequence[Curve]) -> list[Section]:
    """Of the three parts, in the order AdamW, LoRA, SparseAdamW; SGD, SVRG, SparseSVRG; the paper's step, the stable
    one."""
    return [
        Section(
            f"Fine-tuning a GPT of {tuned[0].summary['parameters']:,} parameters", list(tuned),
            "Pretrained on Python's library, fine-tuned on its help topics. Methods take turns in blocks of steps. "
            "Held: gradients, optimizer state and extra parameters, all tensors counted; weights and activations come "
            "on top.",
            tables=[finetune_table(tuned)], rivals=False, x="updates",
        ),
        Section(
            "Logistic regression with a known optimum", list(convex),
            "Breast-cancer data, 569 samples, 30 features: Python's overhead is most of every step here.",
            tables=[convex_table(convex)],
        ),
        Section(
            "Algorithm 1 of the paper, at two step sizes", list(printed),
            "The paper's fully connected network on digits, k = 10 % of d = 308,310, ten updates to an anchor.",
            tables=[printed_table(printed)], rivals=False,
        ),
    ]  # fmt: skip


def finetune_table(tuned: Sequence[Curve]) -> Table:
    adamw, rows = tuned[0].summary, []
    for curve in tuned:
        of = curve.summary
        sizes = [size(of["held_bytes"]), *(f"{of['held_bytes'] / adamw[x]:.2f}" for x in ("parameters", "held_bytes"))]
        times = [duration(of["step_seconds"]), f"{of['step_ratio']:.2f}"]
        rows.append([curve.label, f"{curve.rows[-1][VALID]:.3f}", *times, *sizes])
    head = ["method", "validation loss", "time a step", "time / AdamW's", "held", "bytes a parameter", "held / AdamW's"]
    return f"After fine-tuning (validation loss before: {tuned[0].rows[0][VALID]:.3f})", head, rows


def equal_seconds(curves: Sequence[Curve]) -> float:
    """The time in which the quickest of them spent its budget."""
    return min(curve.rows[-1]["seconds"] for curve in curves)


def convex_table(curves: Sequence[Curve]) -> Table:
    spent, limit = min(c.rows[-1]["queries"] for c in curves), equal_seconds(curves)
    rows = [
        [c.label, f"{at(c, 'queries', GAP, spent):.1e}", f"{at(c, 'seconds', GAP, limit):.1e}",
         duration(c.rows[-1]["seconds"])]
        for c in curves
    ]  # fmt: skip
    head = ["method", f"f - f* at {spent:.3g} N queries", f"f - f* after {duration(limit)}", "time of all steps"]
    return "f - f* at equal queries and at equal seconds", head, rows


def printed_table(curves: Sequence[Curve]) -> Table:
    rows = [
        [c.label, c.status, *(f"{x:.3g}" for x in (first(c), highest(c), end(c))),
         value_of("test_accuracy", c.last("test_accuracy"))]
        for c in curves
    ]  # fmt: skip
    head = ["run", "status", "training loss before", "highest", "at the end", "test accuracy, %"]
    return "Training loss", head, rows


def first(curve: Curve) -> float:
    return curve.rows[0].get(LOSS, math.nan)


def highest(curve: Curve) -> float:
    return max((row[LOSS] for row in curve.rows if LOSS in row), default=math.nan)


def end(curve: Curve) -> float:
    last = curve.last(LOSS)
    return math.nan if last is None else last


def sentences(tuned: Sequence[Curve], convex: Sequence[Curve], printed: Sequence[Curve]) -> list[str]:
    """What was seen, one sentence a part; each says so where what we hoped for did not happen."""
    return [of_finetuning(tuned), of_convex(convex), of_algorithm_1(printed)]


def of_finetuning(tuned: Sequence[Curve]) -> str:
    adamw, lora, ours = (curve.summary for curve in tuned)
    losses = [curve.rows[-1][VALID] for curve in tuned]
    ratios = {"bytes": ours["held_bytes"] / adamw["held_bytes"], "seconds a step": ours["step_ratio"]}
    saved = [what for what, ratio in ratios.items() if ratio < 1 / EQUAL]
    lead = (
        "saved bytes and seconds" if len(saved) == 2 else f"saved {saved[0]} alone" if saved else "saved nothing here"
    )
    held = [size(of["held_bytes"]) for of in (adamw, lora, ours)]
    took = f"a step took {ours['step_ratio']:.2f} of AdamW's time (LoRA {lora['step_ratio']:.2f})"
    above = losses[2] - losses[0]
    loss = f"{losses[2]:.3f}, is {abs(above):.3f} {'above' if above > 0 else 'below'} AdamW's"
    return (
        f"SparseAdamW {lead}: it held {held[2]} where AdamW held {held[0]} and LoRA {held[1]}, and {took}; its "
        f"validation loss, {loss} (LoRA {losses[1]:.3f}, before {tuned[0].rows[0][VALID]:.3f})."
    )


def of_convex(curves: Sequence[Curve]) -> str:
    spent, limit = min(c.rows[-1]["queries"] for c in curves), equal_seconds(curves)
    sgd, svrg, sparse = curves
    queries = [at(c, "queries", GAP, spent) for c in curves]
    seconds = [at(c, "seconds", GAP, limit) for c in curves]
    wins = [
        f"{c.label} ended {_side(queries[i], queries[0])} SGD at equal queries and {_side(seconds[i], seconds[0])} it "
        f"at equal seconds ({queries[i]:.0e} and {seconds[i]:.0e})"
        for i, c in ((1, svrg), (2, sparse))
    ]
    return (
        f"On logistic regression SGD came to f - f* = {queries[0]:.0e} in {spent:.3g} N queries and "
        f"{duration(sgd.rows[-1]['seconds'])}; {'; '.join(wins)}."
    )


def _side(ours: float, theirs: float) -> str:
    return "below" if ours < theirs / EQUAL else "level with" if ours < theirs * EQUAL else "above"


def of_algorithm_1(curves: Sequence[Curve]) -> str:
    lead = {
        (False, True): "needs a smaller step than the paper's",
        (True, True): "trained at both steps here, which other seeds do not",
        (True, False): "trained at the paper's step alone",
        (False, False): "trained at neither step",
    }[trained(curves[0]), trained(curves[1])]
    rates = [curve.config["lr"] for curve in curves]
    paper, stable = map(course, curves)
    return f"Algorithm 1 {lead}: at {rates[0]:g}, the paper's, the training loss {paper}; at {rates[1]:g} it {stable}."


def rose(curve: Curve) -> bool:
    return not highest(curve) < RISES * first(curve)


def trained(curve: Curve) -> bool:
    return curve.status not in BROKEN and not rose(curve) and end(curve) < TRAINED * first(curve)


def course(curve: Curve) -> str:
    """What the training loss did, in words."""
    ends = f"ends at {end(curve):.3g}" + (f" ({curve.status})" if curve.status in BROKEN else "")
    if rose(curve):
        return f"rises from {first(curve):.3g} to {highest(curve):.3g} and {ends}"
    if not trained(curve):
        return f"begins at {first(curve):.3g} and {ends}"
    return f"falls from {first(curve):.3g} to {end(curve):.3g}"
