"""The HTML report, its figures, and costs to a common target."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import config

from spidersilk.lab.report import figures, html
from spidersilk.lab.run import runner
from spidersilk.lab.run.curve import Curve, common_target, load_run


def test_report_is_self_contained(tmp_path: Path) -> None:
    for name in ("sgd", "svrg", "sparse-svrg"):
        runner.run(config(optimizer=name, name=name), tmp_path / name)
    curves = [load_run(tmp_path / name) for name in ("sgd", "svrg", "sparse-svrg")]
    path = html.write(html.sections_of(curves), tmp_path / "report.html", "A <title>", "spidersilk compare")
    page = path.read_text()
    assert page.count("<svg") == 3  # by queries, by seconds, entropy
    assert "A &lt;title&gt;" in page
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert all(link.startswith("data:") for link in links)
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert len(list(tmp_path.glob("figure-*.png"))) == 3


def test_cost_to_a_common_target() -> None:
    def curve(label: str, losses: list[float], status: str = "finished") -> Curve:
        rows = [{"queries": float(q), "seconds": 2.0 * q, "train_loss": x} for q, x in enumerate(losses)]
        return Curve(label, rows, status)

    curves = [curve("a", [9, 3, 2]), curve("b", [9, 8, 2.5]), curve("c", [9, 99], "diverged")]
    assert common_target(curves, "train_loss") == 2.5
    assert curves[0].cost("train_loss", 2.5) == (2.0, 4.0)
    name, head, rows = html.target_table(html.Section("s", curves))
    assert [row[3] for row in rows] == ["2.00", "2.00", "not reached"]
    assert len(head) == len(rows[0])
    assert "2.5" in name


@pytest.mark.slow
@pytest.mark.browser
def test_report_in_a_browser(tmp_path: Path) -> None:
    browser = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
    if browser is None:
        pytest.skip("needs Chromium")
    for name in ("sgd", "sparse-svrg"):
        runner.run(config(optimizer=name, name=name), tmp_path / name)
    curves = [load_run(tmp_path / name) for name in ("sgd", "sparse-svrg")]
    path = html.write(html.sections_of(curves), tmp_path / "report.html", "Runs", "spidersilk compare")
    # A script of the test's own writes down what the page asked the network for, and what went wrong in it.
    spy = """<script>window.addEventListener("load", () => { document.body.dataset.asked =
        performance.getEntriesByType("resource").map((entry) => entry.name).join(" ") || "nothing"; })</script>"""
    watched = tmp_path / "watched.html"
    watched.write_text(path.read_text().replace("</body>", spy + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
             "--enable-logging=stderr", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [browser, *flags, f"file://{watched}"], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 3
    assert 'data-asked="nothing"' in done.stdout


def test_seeds_of_a_method_have_one_colour_and_one_line_in_the_legend() -> None:
    rows = [{"queries": float(i), "seconds": float(i), "loss": 1.0 / (1 + i)} for i in range(3)]
    curves = [Curve(label, rows) for label in ("b", "b", "c")]
    figure = figures.panels(curves, {"queries": "q", "seconds": "s"}, "loss", "l", "t", False, labels=["a", "b", "c"])
    assert figure is not None
    left, right = figure.axes
    assert left.get_legend_handles_labels()[1] == ["b", "c"]
    first, second, third = (line.get_color() for line in left.lines)
    assert first == second != third
    assert [line.get_color() for line in right.lines] == [first, second, third]
    alone = figures.panels(curves[2:], {"queries": "q"}, "loss", "l", "t", False, labels=["a", "b", "c"])
    assert alone is not None
    assert alone.axes[0].lines[0].get_color() == third
    assert figures.panels(curves, {"queries": "q"}, "gap", "l", "t", False) is None
    apart = figures.panels(curves, {"queries": "q"}, "loss", "l", "t", False)  # two runs that happen to be called alike
    assert apart is not None
    assert len({line.get_color() for line in apart.axes[0].lines}) == 3
    assert apart.axes[0].get_legend_handles_labels()[1] == ["b", "b", "c"]
