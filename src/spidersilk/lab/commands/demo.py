"""`demo`: three comparisons in two minutes, three sentences made from their numbers, and a report that opens."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from spidersilk.lab.commands.arguments import check_folder
from spidersilk.lab.commands.output import console, finish, show_table
from spidersilk.lab.data.files import write_atomically
from spidersilk.lab.experiments import demo
from spidersilk.lab.report import demo_page, html
from spidersilk.lab.run import batch
from spidersilk.lab.run.curve import Curve, load_run
from spidersilk.lab.run.machine import command
from spidersilk.lab.run.start import Progress as At


def run(out: Path) -> None:
    """Everything anew, one after the other on one thread, so that times can be compared."""
    check_folder("--out", out)
    torch.set_num_threads(1)
    convex, printed = demo.convex(), demo.algorithm_1()
    tuned = _finetune(console)
    text = json.dumps([asdict(curve) for curve in tuned], indent=1)
    write_atomically(out / "finetune.json", text.encode() + b"\n")
    configs = [*convex, *printed]
    summaries = batch.run_all(configs, out, jobs=1, resume=False, overwrite=True, console=console)
    ended = [(config.name, summary) for config, summary in zip(configs, summaries, strict=True)]
    finish(ended, ("finished", "diverged", "collapsed"))  # of the last two, the demo wants to tell
    curves = [load_run(out / config.name) for config in configs]
    parts = tuned, curves[: len(convex)], curves[len(convex) :]
    sections, said = demo_page.sections(*parts), demo_page.sentences(*parts)
    for section in sections:
        title, head, rows = section.tables[0]
        show_table(f"[bold]{section.title}[/bold]\n{title}", head, rows)
    for number, sentence in enumerate(said, 1):
        console.print(f"{number}. {sentence}", markup=False)
    path = html.write(sections, out / "report.html", "spidersilk demo", command(), conclusion=said)
    console.print(f"report: {path}", soft_wrap=True)
    open_page(path)


def _finetune(console: Console) -> list[Curve]:
    """Compile all kernels, then the first part, with a bar for each method."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bars:
        lines = {name: bars.add_task(name, total=1.0, state="") for name in ("kernels", "pretraining", *demo.RATES)}
        demo.warm_up([*demo.convex(), *demo.algorithm_1()])
        bars.update(lines["kernels"], completed=1.0, state="compiled")

        def pretrained(at: At) -> None:
            bars.update(lines["pretraining"], completed=at.share, state=f"loss {at.loss:.3f}")

        def moved(rounds: int, of: int, name: str, loss: float) -> None:
            bars.update(lines["pretraining"], completed=1.0)
            bars.update(lines[name], completed=rounds / of, state=f"loss {loss:.3f}")

        return demo.finetune(pretrained, moved)


def open_page(path: Path) -> bool:
    """Show the page in a browser, where somebody sits at a screen: never in CI, nor where output goes into a file."""
    display = sys.platform in ("win32", "darwin") or any(os.environ.get(x) for x in ("DISPLAY", "WAYLAND_DISPLAY"))
    if not display or os.environ.get("CI") or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    with contextlib.suppress(webbrowser.Error):
        if type(webbrowser.get()) is webbrowser.GenericBrowser:  # one for text, which would take over the terminal
            return False
        return webbrowser.open(path.resolve().as_uri())
    return False
