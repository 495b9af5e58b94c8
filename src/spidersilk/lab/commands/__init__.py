"""What can be typed after `spidersilk`: the arguments of each command. The other files here do what is asked.

They are imported by the command that needs them, so that `spidersilk --help` does not wait for torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spidersilk import __version__

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Variance reduction with sparse gradients: run the paper's experiments, compare optimizers, read the report.",
)

TaskName = Annotated[str, typer.Argument(help="a task of `spidersilk list`")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=1024, help="runs side by side, each in its own process")]
Resume = Annotated[bool, typer.Option("--resume", help="continue interrupted runs")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="begin anew where a run is already")]
Folder = Annotated[Path, typer.Option("--out", help="folder of the runs")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="folder of the data sets, before SPIDERSILK_DATA")]
Settings = Annotated[list[str] | None, typer.Option("--set", "-s", help="key=value, as often as needed")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="how many seeds, from 0 (or the config's) on")]
TimeLimit = Annotated[float | None, typer.Option("--time-limit", help="seconds after which runs are saved and ended")]
Paths = Annotated[list[Path], typer.Argument(help="folders of runs, or folders that hold some")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"spidersilk {__version__}")
        raise typer.Exit


@app.callback()
def spidersilk(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    pass


@app.command("list", epilog="Example: spidersilk list image")
def list_command(
    task: Annotated[str | None, typer.Argument(help="one task, with what each of its options may be")] = None,
) -> None:
    """The tasks and the optimizers; with a task, what can be --set."""
    from spidersilk.lab.commands import listing

    listing.all_names() if task is None else listing.one_task(task)


@app.command("run", epilog="Example: spidersilk run image --optimizer sparse-sgd --set data=digits --set budget=5")
def run_command(
    task: Annotated[str | None, typer.Argument(help="a task of `spidersilk list`")] = None,
    optimizer: Annotated[str | None, typer.Option("--optimizer", "-o", help="one of `spidersilk list`")] = None,
    settings: Settings = None,
    config: Annotated[Path | None, typer.Option("--config", help="a YAML file in place of task and optimizer")] = None,
    name: Annotated[str | None, typer.Option(help="folder name of the run")] = None,
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
    bf16: Annotated[bool, typer.Option("--bf16", help="autocast to bfloat16")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="compile the model")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="write TensorBoard's files too")] = False,
    out: Folder = Path("runs"),
    data_dir: DataDir = None,
) -> None:
    """One run (or one for each seed), to the budget, into a folder with config, metrics, summary and report."""
    from spidersilk.lab.commands import runs

    flags = {"bf16": bf16, "compile": compiled, "tensorboard": tensorboard}
    made = runs.config_of(task, optimizer, config, settings or [], name, flags, data_dir)
    runs.run([made], runs.How(out, seeds, jobs, resume, overwrite))


@app.command("compare", epilog="Example: spidersilk compare logistic --optimizers svrg,sparse-svrg --budget 20")
def compare_command(
    task: TaskName,
    chosen: Annotated[str, typer.Option("--optimizers", help="names, separated by commas")],
    budget: Annotated[float, typer.Option("--budget", help="gradient queries for each, in N: passes of SGD")] = 2.0,
    settings: Settings = None,
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
    out: Folder = Path("runs/compare"),
    data_dir: DataDir = None,
) -> None:
    """Several optimizers on one task at equal queries, and their report. Runs that are there already are taken over."""
    from spidersilk.lab.commands import runs

    configs = runs.rivals(task, chosen, budget, settings or [], data_dir)
    how = runs.How(out, seeds, jobs, resume or not overwrite, overwrite)
    runs.run(configs, how, title=f"{task}: {chosen}")


@app.command("tune", epilog="Example: spidersilk tune logistic --set data=w8a --budget 10 --jobs 2")
def tune_command(
    task: TaskName,
    settings: Settings = None,
    methods: Annotated[str | None, typer.Option("--methods", help="names, separated by commas; all without it")] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, max=1000, help="how many for each method")] = 8,
    budget: Annotated[float | None, typer.Option("--budget", help="gradient queries for a trial, in N (1)")] = None,
    final_budget: Annotated[float | None, typer.Option(help="for the best of each (four times a trial's)")] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="of all runs, in place of a budget; 200,600: both")
    ] = None,
    final_steps: Annotated[int | None, typer.Option(help="for the best of each (as many as a trial's)")] = None,
    trials_of: Annotated[Path | None, typer.Option(help="a tuning's file whose trials serve here too")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="how many, for the best of each")] = 3,
    jobs: Jobs = 1,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda")] = "auto",
    out: Folder = Path("runs/tune"),
    to: Annotated[Path, typer.Option("--to", help="folder of the JSON file")] = Path("results/tune"),
    name: Annotated[str | None, typer.Option("--name", help="of the JSON file, in place of tune_TASK_OPTIONS")] = None,
    resume: Resume = False,
    time_limit: TimeLimit = None,
    data_dir: DataDir = None,
) -> None:
    """The same number of trials for every method, then the best of each over seeds: queries and seconds to a target."""
    from spidersilk.lab.commands import tune
    from spidersilk.lab.experiments.tuning import Tuning

    base = tune.base_of(task, settings or [], device, data_dir)
    chosen = tune.methods_of(task, methods)
    lengths = tune.lengths_of(task, budget, final_budget, steps, final_steps)
    paths = [tune.path_of(base, to, name, length) for length in lengths]
    made = [Tuning(base, chosen, trials, seeds=seeds, path=path, trials_of=trials_of, **length)
            for path, length in zip(paths, lengths, strict=True)]  # fmt: skip
    tune.tune(made, out, jobs=jobs, resume=resume, time_limit=time_limit)


REPRODUCIBLE = (
    "table1, figure1, figure2, figure3, sparsity, or all of these; ablation-split (k1 : k2, from random-k to top-k), "
    "ablation-reset (of M), ablation-lengths (fixed and geometric loops), ablation-forms (that figures lack), "
    "controls-figure2, controls-figure3 (SGD with the same steps); more with commas"
)


@app.command("reproduce", epilog="Example: spidersilk reproduce figure1 --scale smoke")
def reproduce_command(
    what: Annotated[str, typer.Argument(help=REPRODUCIBLE)],
    scale: Annotated[str, typer.Option("--scale", help="smoke (a laptop) or paper (a GPU)")] = "smoke",
    jobs: Jobs = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
    only: Annotated[str, typer.Option(help="runs by name, with * and commas; what is named first runs first")] = "",
    budget: Annotated[float | None, typer.Option("--budget", help="stop each run after these queries, in N")] = None,
    seeds: Seeds = 1,
    settings: Settings = None,
    time_limit: TimeLimit = None,
    collect: Annotated[
        Path | None, typer.Option(help="folder of JSON files, one an experiment; runs that it has are skipped")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the runs")] = None,
    data_dir: DataDir = None,
    plan_only: Annotated[bool, typer.Option("--list", help="print what would be run, and run nothing")] = False,
) -> None:
    """Experiments of the paper, ablations and controls: a report, with the paper's claims beside what was measured."""
    from spidersilk.lab.commands import reproduce as command

    if resume and overwrite:
        raise ValueError("--resume goes on (as without it) and --overwrite begins anew: give one of them")
    chosen = command.chosen(what, scale, only, budget, seeds, settings or [], data_dir)
    if plan_only:
        command.list_runs(chosen, collect)
        return
    folder, title = out or Path("runs") / f"{what.replace(',', '-')}-{scale}", f"Reproduction: {what}, {scale} scale"
    request = command.Request(chosen, folder, title, jobs, overwrite, only, time_limit, collect, scale == "smoke")
    command.run(request, checked=bool(settings))


@app.command("demo", epilog="Example: spidersilk demo")
def demo_command(out: Folder = Path("runs/demo")) -> None:
    """Two minutes: AdamW, LoRA and SparseAdamW on a small GPT; SVRG beside SGD; Algorithm 1 at two steps; a report."""
    from spidersilk.lab.commands import demo

    demo.run(out)


@app.command("report", epilog="Example: spidersilk report runs/compare")
def report_command(
    runs: Paths,
    to: Annotated[Path, typer.Option("--to", help="the page to write")] = Path("runs/report.html"),
    title: Annotated[str, typer.Option(help="its title")] = "Runs",
) -> None:
    """One HTML page for any set of runs."""
    from spidersilk.lab.commands import saved

    saved.report(runs, to, title)


@app.command("collect", epilog="Example: spidersilk collect runs/compare --to results/runs_mine.json")
def collect_command(
    runs: Paths, to: Annotated[Path, typer.Option("--to", help="the JSON file to write, or to add to")]
) -> None:
    """Pack runs into one small JSON file: settings, versions, machine, and curves of at most about 60 points."""
    from spidersilk.lab.commands import saved

    saved.collect(runs, to)


PLAN_EXAMPLE = "Example: spidersilk plan --eps 0.1 -L 10 --sigma2 5 --delta-f 2.3 --samples 60000 -d 62006"


@app.command("plan", epilog=PLAN_EXAMPLE)
def plan_command(
    eps: Annotated[float, typer.Option("--eps", help="gradient norm to reach")],
    smoothness: Annotated[float, typer.Option("--smoothness", "-L", help="L of each sample's loss")],
    sigma2: Annotated[float, typer.Option("--sigma2", help="bound on the mean of |grad f_i|^2")],
    delta_f: Annotated[float, typer.Option("--delta-f", help="f(x_0) - f*")],
    samples: Annotated[int, typer.Option("--samples", "-n", help="n")],
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="d, the number of parameters")],
    k1: Annotated[float, typer.Option("--k1", help="top coordinates: a fraction up to 1, or a count above it")] = 0.05,
    k2: Annotated[float, typer.Option("--k2", help="random coordinates, likewise")] = 0.05,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", help="b")] = 1,
    outside: Annotated[float | None, typer.Option(help="share of energy that the top k1 miss (see inspect)")] = None,
) -> None:
    """The theorems as a table: step size, batches and loops that reach E|grad f| <= eps, and their price."""
    from spidersilk.lab.commands import theory

    values = {"eps": eps, "smoothness": smoothness, "sigma2": sigma2, "delta_f": delta_f, "n": samples, "d": dimension}
    theory.plan(values, k1, k2, batch_size, outside)


@app.command("inspect", epilog="Example: spidersilk inspect examples/inspect_me.py   or: spidersilk inspect logistic")
def inspect_command(
    target: Annotated[str, typer.Argument(help="a task, or a Python file with model, loss(model, batch) and data")],
    lr: Annotated[float | None, typer.Option("--lr", help="what suits SGD (0.1, or the task's)")] = None,
    adam_lr: Annotated[float | None, typer.Option(help="what suits AdamW (0.001, or the task's); 0: none")] = None,
    budget: Annotated[float | None, typer.Option("--budget", help="gradient queries for each trial, in N")] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    save: Annotated[Path | None, typer.Option("--save", help="write the measurements to this JSON file")] = None,
) -> None:
    """Would it fit, and would it pay? Bytes by method, seconds a step, short trials, and a yes or no for each."""
    from spidersilk.lab.commands import inspection

    inspection.inspect(target, lr, adam_lr, budget, settings or [], data_dir, save)
