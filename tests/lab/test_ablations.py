"""Variants of the method from the command line, and the ablations and controls that are made of them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer", reason="needs the extra [lab]")

from lab_helpers import DIGITS, SMALL, config, metrics

from spidersilk.lab.commands import REPRODUCIBLE, reproduce
from spidersilk.lab.experiments.ablations import SPLITS, ablations, summed_step
from spidersilk.lab.experiments.paper import PRINTED, experiments
from spidersilk.lab.experiments.plan import choose, path_of
from spidersilk.lab.run import collect, methods, runner
from spidersilk.lab.run.config import RunConfig, apply_settings
from spidersilk.lab.run.curve import load_run
from spidersilk.lab.tasks import find

RESULTS = Path(__file__).parents[2] / "results" / "paper"


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_every_ablation_is_whole(scale: str) -> None:
    known = ablations(scale)
    configs = [c.completed() for parts in known.values() for part in parts for c in part.configs]
    assert len({c.name for c in configs}) == len(configs)
    assert all(c.name.startswith(part.key) for parts in known.values() for part in parts for c in part.configs)
    assert all(name in REPRODUCIBLE for name in [*known, *experiments(scale)])  # the help names each


def test_all_are_those_of_the_paper_and_ablations_have_their_own_files() -> None:
    both = experiments("paper") | ablations("paper")
    assert tuple(choose(both, "all")) == PRINTED
    assert tuple(choose(both, "ablation-reset,figure1")) == ("figure1", "ablation-reset")
    assert path_of(Path("x"), "figure1") == Path("x/paper_figure1.json")
    assert path_of(Path("x"), "controls-figure3") == Path("x/controls_figure3.json")
    assert "ablation-split" in reproduce.chosen("ablation-split", "smoke", "", None, 1, [], None)


def test_what_is_published_is_what_reproduce_makes() -> None:
    """So `reproduce --collect results/paper` does not repeat it."""
    known, seeds = ablations("paper"), 3
    reset, forms = (
        "reset-fc-*,reset-cnn-*",
        "forms-fc-*,forms-cnn-mnist-spiderboost-adaptive,forms-cnn-mnist-svrg,forms-cnn-svhn-sparse-spiderboost-adaptive",
    )
    published = {
        "ablation-split": "",
        "ablation-reset": reset,
        "ablation-lengths": "",
        "ablation-forms": forms,
        "controls-figure3": "",
    }
    for name, only in published.items():
        packed = collect.load(path_of(RESULTS, name))
        chosen = choose(known, name, only, seeds=seeds)
        configs = [c for parts in chosen.values() for p in parts for c in p.configs]
        assert [c.name for c in configs if not collect.is_done(c, packed)] == []
        for run in packed.values():
            assert run["command"]
            assert run["summary"]["machine"]["cpu"]
            assert run["summary"]["revision"]


def test_a_control_takes_the_steps_of_a_loop() -> None:
    """Figure 3: b + (a - b)(m - t) / m with a = 1, b = 0.1, m = 10, summed over t = 0 ... 9; Figure 2: 0.2, twice."""
    assert summed_step("ranking") == pytest.approx(sum(0.1 + 0.9 * (10 - t) / 10 for t in range(10)))
    assert summed_step("language") == pytest.approx(0.4)
    summed, mean = ablations("paper")["controls-figure3"][0].configs
    assert (summed.batch_size, mean.batch_size) == (1030, 103)
    assert summed.lr == pytest.approx(10 * mean.lr)  # pyright: ignore
    paper = next(c for c in experiments("paper")["figure3"][0].configs if c.optimizer == "spiderboost")
    assert (summed.budget, summed.eval_every, summed.options) == (paper.budget, paper.eval_every, paper.options)
    (control,) = ablations("paper")["controls-figure2"][0].configs
    assert (control.batch_size, control.lr) == (find("language").settings["anchor_batch_size"], pytest.approx(0.4))


def optimizer_of(name: str, *settings: str, d: int = 1000) -> torch.optim.Optimizer:
    made = apply_settings(RunConfig("image", name, options=DIGITS), settings).completed()
    return methods.find(name).make([torch.nn.Parameter(torch.ones(d))], made, torch.Generator())


@pytest.mark.parametrize("settings", [(), ("k1=0.1", "k2=0.2"), ("k1=70", "k2=20"), ("k1=0", "k2=0.2")])
def test_random_k_and_top_k_select_as_many_as_the_rest(settings: tuple[str, ...]) -> None:
    shapes = [torch.Size([1000])]
    chosen = {name: optimizer_of(name, *settings).sparsity for name in ("sparse-svrg", "random-k", "top-k")}  # pyright: ignore
    assert {s.density(shapes) for s in chosen.values()} == {chosen["sparse-svrg"].density(shapes)}
    assert chosen["random-k"].k1 == chosen["top-k"].k2 == 0


def test_the_ends_of_the_split_are_random_k_and_top_k() -> None:
    assert (SPLITS[0][0], SPLITS[-1][1]) == (0, 0)
    assert {sum(split) for split in SPLITS} == {0.1}


def test_variants_reach_the_optimizer() -> None:
    made = optimizer_of("sparse-spiderboost", "memory_reset=true", "per_tensor=true", "scaling=none", "k1=0.02")
    s = made.sparsity  # pyright: ignore
    assert (s.memory_reset, s.per_tensor, s.scaling, s.k1, s.k2) == (True, True, "none", 0.02, 0.05)
    plain = optimizer_of("sparse-spiderboost").sparsity  # pyright: ignore
    assert (plain.memory_reset, plain.per_tensor, plain.scaling) == (False, False, "unbiased")
    assert optimizer_of("sparse-svrg", "scaling=refresh").scaling == "refresh"  # pyright: ignore


def test_geometric_loops_in_the_lab(tmp_path: Path) -> None:
    run = runner.Run(config("image", "svrg", options=DIGITS, lengths="geometric", **SMALL).completed(), tmp_path / "r")
    run._build()
    assert run.inner == SMALL["inner_steps"]
    markers = [bool(marker) for _, (_, marker) in zip(range(400), run.batches, strict=False)]
    anchors = [i for i, marker in enumerate(markers) if marker]
    lengths = [b - a for a, b in itertools.pairwise(anchors)]
    assert len(set(lengths)) > 4
    told = runner.run(config(optimizer="sparse-svrg", lengths="geometric", inner_steps="theorem-2"), tmp_path / "run")
    assert told["status"] == "finished"


def test_the_output_may_be_the_end_of_a_random_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes what is evaluated and nothing else, and a resumed run has the same."""
    made = config(optimizer="sparse-svrg", budget=6.0, inner_steps=20)
    last, uniform = made, replace(made, output="uniform", name="uniform")
    for one in (last, uniform):
        runner.run(one, tmp_path / one.name)
    a, b = metrics(tmp_path / last.name), metrics(tmp_path / "uniform")
    assert [row["v_norm"] for row in a[1:]] == [row["v_norm"] for row in b[1:]]
    assert a[0]["train_loss"] == b[0]["train_loss"]  # no loop has ended yet
    assert a[-1]["train_loss"] != b[-1]["train_loss"]
    assert b[-1]["train_loss"] < b[0]["train_loss"]
    now = iter(range(10**6))
    monkeypatch.setattr(runner.time, "time", lambda: next(now))  # a second for each step
    assert runner.run(uniform, tmp_path / "again", until=b[-1]["updates"] // 2)["status"] == "stopped"
    runner.run(uniform, tmp_path / "again", resume=True, until=math.inf)
    assert metrics(tmp_path / "again") == b


def test_older_runs_have_the_defaults(tmp_path: Path) -> None:
    """A file from before these settings is that of the same run."""
    made = config("image", options=DIGITS)
    runner.run(replace(made, budget=0.5), tmp_path / "run")
    packed = collect.pack(load_run(tmp_path / "run"))
    for name in ("memory_reset", "scaling", "per_tensor", "lengths", "output"):
        del packed["config"][name]
    assert collect.is_done(replace(made, budget=0.5), {made.name: json.loads(json.dumps(packed))})
    assert not collect.is_done(replace(made, budget=0.5, memory_reset=True), {made.name: packed})
