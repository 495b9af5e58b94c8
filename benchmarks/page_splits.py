"""The split k1 : k2 of a tenth of the coordinates on the page, from results/paper/ablation_split.json."""

from __future__ import annotations

import statistics

from page_paper import markdown_table

from spidersilk.lab.report.comparison import FEWER, MORE, compare, has_failed, troubles
from spidersilk.lab.report.evidence import LOSS, Chapter, Group, number

SPLITS = {"0.1-0": "10 : 0", "0.075-0.025": "7.5 : 2.5", "0.05-0.05": "5 : 5", "0.025-0.075": "2.5 : 7.5",
          "0-0.1": "0 : 10"}  # fmt: skip
METHODS = {"sparse-spiderboost": "Algorithm 1", "sparse-svrg": "SparseSVRG",
           "sparse-svrg-selected": "SparseSVRG, selected"}  # fmt: skip


def table(chapter: Chapter) -> str:
    """The lowest loss by 2 N over the seeds, and queries beside the split 5 : 5."""
    rows = []
    for method, title in METHODS.items():
        printed = chapter.find(f"{method}-0.05-0.05")
        for split, name in SPLITS.items():
            group = chapter.find(f"{method}-{split}")
            found = compare(group, printed) if group is not printed else []
            ratio = found[0].ratio() if found else ""
            clear = found and found[0].side in (FEWER, MORE)
            rows.append([title, name, _lowest(group), f"**{ratio}**" if clear else ratio, _ends(group)])
    head = [
        "",
        "k1 : k2, %",
        "lowest training loss: median (lowest to highest of the seeds)",
        "queries beside 5 : 5",
        "ends",
    ]
    return markdown_table(head, rows)


def _lowest(group: Group) -> str:
    """A median only where no seed failed."""
    lows = [low for curve in group.curves if (low := curve.lowest(LOSS)) is not None]
    span = f"{number(min(lows))} to {number(max(lows))}" if lows else "-"
    failed = any(has_failed(curve) for curve in group.curves)
    return f"{number(statistics.median(lows))} ({span})" if lows and not failed else span


def _ends(group: Group) -> str:
    return "; ".join(troubles(group)) or ("all to 2 N" if group.curves else "not run")
