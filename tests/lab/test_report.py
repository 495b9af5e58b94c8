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
from spidersilk.lab.report.cells import are_numbers, duration
from spidersilk.lab.report.verdicts import Verdict
from spidersilk.lab.run import runner
from spidersilk.lab.run.curve import Curve, common_target, load_run


def test_report_is_self_contained(tmp_path: Path) -> None:
    for name in ("sgd", "svrg", "sparse-svrg"):
        runner.run(config(optimizer=name, name=name), tmp_path / name)
    curves = [load_run(tmp_path / name) for name in ("sgd", "svrg", "sparse-svrg")]
    path = html.write(html.sections_of(curves), tmp_path / "report.html", "A <title>", "spidersilk compare")
    page = path.read_text()
    assert page.count("<svg") == 3  # by queries, by seconds, entropy
    assert page.index("At equal queries (2") < page.index("<svg")
    assert "<title>sparse-svrg: 0.5506 at 0 gradient queries / N</title>" in page
    assert "queries / sgd&#39;s" in page
    assert "A &lt;title&gt;" in page
    links = re.findall(r'(?:src|href)="([^"#][^"]*)"', page)
    assert all(link.startswith("data:") for link in links)
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert len(list(tmp_path.glob("figure-*.png"))) == 3


def test_accuracy_stands_beside_the_loss(tmp_path: Path) -> None:
    rows = [{"queries": q, "seconds": q, "train_loss": 2 - q, "test_accuracy": q / 2} for q in (0.0, 0.5, 1.0)]
    path = html.write([html.Section("s", [Curve("a", rows)])], tmp_path / "report.html", "t", "c")
    page = path.read_text()
    assert page.count("<svg") == 3
    assert "a ended at training loss 1.00 after 1 N queries and 1.00 s of steps; test accuracy, % 50.0." in page
    assert "<title>a: 25 at 0.5 gradient queries / N</title>" in page
    table = html.Section("s", [Curve("a", rows)]).all_tables()[-1]
    assert table[1:] == (["run", "training loss", "test accuracy, %"], [["a", "1.000", "50.0"]])


def test_conclusions_name_who_leads_and_who_broke() -> None:
    def curve(label: str, losses: list[float], status: str = "finished", step: float = 1.0) -> Curve:
        rows = [{"queries": float(q), "seconds": step * q, "train_loss": x} for q, x in enumerate(losses)]
        return Curve(label, rows, status)

    fast, slow = curve("fast", [9, 5, 4]), curve("slow", [9, 3, 1], step=10.0)
    lost = curve("lost", [9, 99], "diverged")
    (said,) = html.conclusions([html.Section("s", [fast, slow, lost])])
    assert said == (
        "At equal queries (2 N) slow has the lowest training loss, 1.00; fast 4.00. At equal seconds (2.00 s) fast has "
        "the lowest training loss, 4.00; slow 9.00. lost diverged."
    )
    verdicts = [Verdict("c", word, "", []) for word in ("reproduced", "not reproduced", "reproduced")]
    (said,) = html.conclusions([html.Section("s", [], "", verdicts)])
    assert said == "Of 3 claims of the paper: 2 reproduced, 1 not reproduced."


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [(["1.2", "-3e-05", "12.3 ms", ""], True), (["5 min 12 s", "2 h 5 min", "not reached"], True), (["5.71 MB"], True),
     (["1.2", "sgd"], False), (["ms"], False)],
)  # fmt: skip
def test_columns_of_numbers(cells: list[str], numbers: bool) -> None:
    assert are_numbers(cells) is numbers
    assert html.number_columns(["run", "x"], [["1", cell] for cell in cells]) == [False, numbers]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000123, "0.123 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (99.94, "99.9 s"), (99.96, "1 min 40 s"),
     (3599.4, "59 min 59 s"), (3600, "1 h 0 min"), (0, "0.00 ms")],
)  # fmt: skip
def test_times_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_no_line_ends_inside_a_number() -> None:
    assert html.unbroken("f - f* is 1e-05, pre-trained") == "f\u00a0-\u00a0f* is 1e\u201105, pre-trained"


def test_cost_to_a_common_target() -> None:
    def curve(label: str, losses: list[float], status: str = "finished") -> Curve:
        rows = [{"queries": float(q), "seconds": 2.0 * q, "train_loss": x} for q, x in enumerate(losses)]
        return Curve(label, rows, status)

    curves = [curve("a", [9, 3, 2]), curve("b", [9, 8, 2.5]), curve("c", [9, 99], "diverged")]
    assert common_target(curves, "train_loss") == 2.5
    assert curves[0].cost("train_loss", 2.5) == (2.0, 4.0)
    name, head, rows = html.target_table(html.Section("s", curves))
    assert [row[3] for row in rows] == ["2.00", "2.00", "not reached"]
    assert head[4:] == ["queries / a's", "time of steps", "time / a's"]
    assert rows[0][5] == "4.00 s"
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
    # A script of the test's own writes down what the page asked the network for, and how it is laid out.
    spy = """<script>window.addEventListener("load", () => {
        const root = document.documentElement, body = document.body, seen = body.dataset;
        const box = (where) => document.querySelector(where).getBoundingClientRect();
        const of = (what, where) => getComputedStyle(document.querySelector(where))[what];
        seen.asked = performance.getEntriesByType("resource").map((entry) => entry.name).join(" ") || "nothing";
        seen.page = root.scrollWidth <= root.clientWidth ? "fits" : "is too wide";
        seen.scrolls = [...document.querySelectorAll(".wide")].filter((x) => x.scrollWidth > x.clientWidth).length;
        seen.numbers = of("textAlign", "td.number");
        seen.paper = of("backgroundColor", "body");
        seen.first = box(".conclusion").bottom <= box("section").top ? "the conclusion" : "something else";
        const point = document.querySelectorAll("use.point")[2].getBoundingClientRect();
        const top = document.elementFromPoint(point.x + point.width / 2, point.y + point.height / 2);
        seen.hover = top && top.querySelector("title") ? top.querySelector("title").textContent : "nothing";
    })</script>"""
    watched = tmp_path / "watched.html"
    watched.write_text(path.read_text().replace("</body>", spy + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path}/profile",
             "--enable-logging=stderr", "--dump-dom"]  # fmt: skip

    def seen(*more: str) -> dict[str, str]:
        done = subprocess.run(
            [browser, *flags, *more, f"file://{watched}"], capture_output=True, text=True, timeout=120, check=True
        )
        assert "CONSOLE" not in done.stderr
        assert done.stdout.count("<svg") == 3
        found = re.search(r"<body([^>]*)>", done.stdout)
        assert found is not None
        return dict(re.findall(r'data-(\w+)="([^"]*)"', found[1]))

    desk = seen("--window-size=1200,4000")
    assert desk["asked"] == "nothing"
    assert desk["page"] == "fits"
    assert desk["scrolls"] == "0"
    assert desk["numbers"] == "right"
    assert desk["first"] == "the conclusion"
    assert re.fullmatch(r"sgd: 0\.\d+ at 0\.5\d+ gradient queries / N", desk["hover"])
    dark = seen("--blink-settings=preferredColorScheme=0")
    assert dark["paper"] == "rgb(20, 24, 31)" != desk["paper"]
    phone = seen("--window-size=500,4000")  # the narrowest that Chromium makes without a device
    assert phone["page"] == "fits"
    assert int(phone["scrolls"]) >= 1


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
