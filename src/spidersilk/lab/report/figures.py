"""Curves of runs as SVG text for the HTML report, and as PNG files."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spidersilk.lab.run.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUERIES = {"queries": "gradient queries / N"}
HOVER = 40  # points of a curve that show their values, about
PAGE = 5.0  # inches of an axes' width in an SVG
_ENDS = {"diverged": "x", "collapsed": "v"}  # markers
_INK = "#010203"  # replaced by the page's text colour, so that a figure follows dark mode
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_COLOURS = ["#3b7dd8", "#e07b39", "#3aa35c", "#c94f7c", "#8c6bd1", "#8a8d3a", "#2aa7b0", "#a5663f", "#7f8790",
            "#d1a93b"]  # fmt: skip


def panels(
    curves: list[Curve], xs: dict[str, str], y: str, y_label: str, title: str, log: bool,
    labels: list[str] | None = None,
) -> Figure | None:  # fmt: skip
    """y over each of `xs` (with the label of its axis), side by side; None if no run has these metrics.

    With `labels`, runs with one label share a colour, by its place in `labels`, and a line in the legend. Without,
    no two runs do.
    """
    plt = _pyplot()
    with plt.rc_context(dict.fromkeys(_INKED, _INK) | {"svg.fonttype": "none", "font.size": 10}):
        size = (6, 3.8) if len(xs) == 1 else (4.6 * len(xs), 3.8)
        figure, grid = plt.subplots(1, len(xs), figsize=size, layout="constrained", sharey=True, squeeze=False)
        figure.patch.set_alpha(0)
        for axes, (x, x_label) in zip(grid[0], xs.items(), strict=True):
            axes.patch.set_alpha(0)
            _draw(axes, curves, labels, x, y, log)
            axes.set(xlabel=x_label)
            axes.grid(alpha=0.25)
        first = grid[0][0]
        if not any(axes.lines for axes in grid[0]):
            plt.close(figure)
            return None
        first.set(ylabel=y_label, yscale="log" if log and _is_wide(first) else "linear")
        first.set_title(title) if len(xs) == 1 else figure.suptitle(title)
        many = len(first.get_legend_handles_labels()[0]) > len(_COLOURS)
        first.legend(frameon=False, fontsize=6 if many else 8, ncols=2 if many else 1)
        return figure


def _draw(axes: Axes, curves: list[Curve], labels: list[str] | None, x: str, y: str, log: bool) -> None:
    """A line for each run that has the metrics; a cross ends a run that diverged, a triangle one that collapsed."""
    drawn: set[str] = set()
    for place, curve in enumerate(curves):
        points = [(a, b) for a, b in zip(*curve.series(x, y), strict=True) if b > 0 or not log]
        if not points:
            continue
        number, width = (place, 1.8) if labels is None else (labels.index(curve.label), 1.1)
        colour, style = _COLOURS[number % len(_COLOURS)], "-" if number < len(_COLOURS) else "--"
        label = None if labels is not None and curve.label in drawn else curve.label
        axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=width)
        if curve.status in _ENDS:
            axes.plot(*points[-1], _ENDS[curve.status], color=colour, markersize=9)
        drawn.add(curve.label)


def _is_wide(axes: Axes) -> bool:
    """Whether values differ by so much that a logarithmic axis has readable ticks."""
    values = [float(y) for line in axes.lines for y in line.get_ydata()]  # pyright: ignore
    return max(values) > 10 * min(values)


def svg(figure: Figure, name: str, title: str = "") -> str:
    """The figure as an <svg> element with the page's text colour; `name` keeps its ids distinct, `title` says what it
    shows to those who cannot see it. Points of the curves have a <title>, which browsers show under the pointer."""
    hover = _add_points(figure)
    buffer, (width, height) = io.StringIO(), figure.get_size_inches()
    figure.set_size_inches(PAGE * len(figure.axes), 3.4)  # small, so that text is large enough on a phone
    with _pyplot().rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    figure.set_size_inches(width, height)
    for line in hover:
        line.remove()
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    for key, titles in hover.values():
        text = _with_titles(text, key, titles)
    label = f'role="img" aria-label="{html.escape(title)}"'
    return re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', f'width="100%" {label}', text, count=1)


def _add_points(figure: Figure) -> dict[Any, tuple[str, list[str]]]:
    """Invisible points on every curve, at most HOVER of each, with their ids in the SVG and their texts."""
    made = {}
    for axes in figure.axes:
        for line in list(axes.lines):
            xs, ys, name = list(line.get_xdata()), list(line.get_ydata()), str(line.get_label())  # pyright: ignore
            if name.startswith("_"):
                continue  # the mark at the end of one that broke down
            keep = sorted({round(i * (len(xs) - 1) / HOVER) for i in range(HOVER + 1)})
            key = f"points-{len(made)}"
            points = [(xs[i], ys[i]) for i in keep]
            (dots,) = axes.plot(*zip(*points, strict=True), "o", color=line.get_color(), alpha=0, markersize=7)
            dots.set_gid(key)
            where = axes.get_xlabel()
            made[dots] = key, [f"{name}: {y:.4g} at {x:.3g} {where}" for x, y in points]
    return made


def _with_titles(text: str, key: str, titles: list[str]) -> str:
    """A <title> in each point of the group with this id."""
    start = text.index(f'<g id="{key}">')
    end = text.find('<g id="', start + 1)
    head, group, tail = text[:start], text[start:end], text[end:]
    rest = iter(titles)

    def one(found: re.Match[str]) -> str:
        return f'<use class="point"{found[1]}><title>{html.escape(next(rest))}</title></use>'

    return head + re.sub(r"<use((?: [^>]*?)?)/>", one, group) + tail


def png(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, facecolor="white")
    _pyplot().close(figure)


def _pyplot() -> Any:
    """Imported when something is drawn: runs do not need matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
