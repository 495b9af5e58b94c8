"""Curves of runs as SVG text for the report, and as PNG beside it."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK = "#010203"  # replaced by the page's own text colour, so that a figure follows dark mode
_COLOURS = [
    "#3b7dd8",
    "#e07b39",
    "#3aa35c",
    "#c94f7c",
    "#8c6bd1",
    "#8a8d3a",
    "#2aa7b0",
    "#a5663f",
    "#7f8790",
    "#d1a93b",
]


@dataclass
class Curve:
    """A run's metrics by name, one list each, and what it is called."""

    label: str
    rows: list[dict[str, Any]]
    status: str = "finished"
    reason: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def series(self, x: str, y: str) -> tuple[list[float], list[float]]:
        rows = [row for row in self.rows if x in row and y in row and row[y] == row[y]]
        return [row[x] for row in rows], [row[y] for row in rows]


def plot(curves: list[Curve], x: str, y: str, x_label: str, y_label: str, title: str, log: bool) -> Figure | None:
    """Lines of y over x, one for each run, each with a colour of its own; None if no run has them."""
    return panels(curves, {x: x_label}, y, y_label, title, log)


def panels(
    curves: list[Curve],
    xs: dict[str, str],
    y: str,
    y_label: str,
    title: str,
    log: bool,
    labels: list[str] | None = None,
) -> Figure | None:
    """The same lines over several things side by side, each with its words. Runs with the same label have the colour of
    its place in `labels`, and one line in the legend; without `labels` each run is for itself."""
    plt = _pyplot()
    with plt.rc_context({"text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK, "xtick.color": _INK,
                         "ytick.color": _INK, "svg.fonttype": "none", "font.size": 10}):  # fmt: skip
        size = (6, 3.8) if len(xs) == 1 else (4.6 * len(xs), 3.8)
        figure, grid = plt.subplots(1, len(xs), figsize=size, layout="constrained", sharey=True, squeeze=False)
        figure.patch.set_alpha(0)
        drawn = 0
        for axes, (x, x_label) in zip(grid[0], xs.items(), strict=True):
            axes.patch.set_alpha(0)
            drawn += _draw(axes, curves, labels, x, y, log)
            axes.set(xlabel=x_label)
            axes.grid(alpha=0.25)
        if not drawn:
            plt.close(figure)
            return None
        first = grid[0][0]
        if log:
            first.set_yscale("log")
        first.set(ylabel=y_label)
        first.set_title(title) if len(xs) == 1 else figure.suptitle(title)
        many = len(first.get_legend_handles_labels()[0]) > len(_COLOURS)
        first.legend(frameon=False, fontsize=6 if many else 8, ncols=2 if many else 1)
        return figure


def _draw(axes: Any, curves: list[Curve], labels: list[str] | None, x: str, y: str, log: bool) -> int:
    """How many lines there were to draw."""
    drawn, named = 0, set()
    width = 1.8 if labels is None else 1.1
    for place, curve in enumerate(curves):
        number = place if labels is None else labels.index(curve.label)
        xs, ys = curve.series(x, y)
        if log:
            xs, ys = [a for a, b in zip(xs, ys, strict=True) if b > 0], [b for b in ys if b > 0]
        if not xs:
            continue
        colour, style = _COLOURS[number % len(_COLOURS)], "-" if number < len(_COLOURS) else "--"
        label = None if labels is not None and curve.label in named else curve.label
        axes.plot(xs, ys, style, color=colour, label=label, linewidth=width)
        if curve.status == "diverged":
            axes.plot(xs[-1:], ys[-1:], "x", color=colour, markersize=9)
        named.add(curve.label)
        drawn += 1
    return drawn


def svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element that takes its text colour from the page; `name` keeps its ids apart."""
    buffer = io.StringIO()
    plt = _pyplot()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%" role="img"', text, count=1)


def png(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130, facecolor="white")
    _pyplot().close(figure)


def _pyplot() -> Any:
    """Imported when something is drawn: runs can be done on a machine without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
