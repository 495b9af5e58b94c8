"""One choice of the method at a time, and controls: plain SGD that takes the same steps. They are not in the paper."""

from __future__ import annotations

from spidersilk.lab.experiments.claims import of_part
from spidersilk.lab.experiments.paper import FAST, Experiments, Part, Values
from spidersilk.lab.run.config import RunConfig
from spidersilk.lab.tasks import find

# Algorithm 1 as printed diverges on the CNN at the paper's step, 0.1: it has a tenth of it too.
STEPS = (("sparse-spiderboost", 0.1), ("sparse-spiderboost", 0.01), ("sparse-svrg", 0.1))
LABELS = {"sparse-spiderboost": "Algorithm 1", "sparse-svrg": "SparseSVRG", "spiderboost": "SpiderBoost",
          "sparse-svrg-selected": "SparseSVRG, selected"}  # fmt: skip
SPLITS = ((0.0, 0.1), (0.025, 0.075), (0.05, 0.05), (0.075, 0.025), (0.1, 0.0))  # k1, k2: the ends are random-k, top-k
MODELS = ("cnn", "fc")


def ablations(scale: str) -> Experiments:
    """All of them by name; `scale` is "smoke" or "paper"."""
    smoke = scale == "smoke"
    return {
        "ablation-split": [_split(model, smoke) for model in MODELS],
        "ablation-reset": [_reset(model, smoke) for model in (*MODELS, *(() if smoke else ("resnet18",)))],
        "ablation-lengths": [_lengths(model, smoke) for model in MODELS],
        "ablation-forms": [_forms(m, data, smoke) for data in ("mnist", "cifar10", "svhn")[: 1 if smoke else 3]
                           for m in MODELS],
        "controls-figure2": [_controls("figure2", smoke)],
        "controls-figure3": [_controls("figure3", smoke)],
    }  # fmt: skip


def _image(model: str, smoke: bool) -> Values:
    size: Values = {"train_samples": 5000, "eval_samples": 1000} if smoke else {}
    return {"options": {"model": model, "data": "mnist"} | size, "budget": 2.0, "eval_every": 0.1}


def _split(model: str, smoke: bool) -> Part:
    """k1 : k2 at the same k."""
    configs = []
    for name, lr in {"sparse-svrg": 0.1, "sparse-svrg-selected": 0.1, "sparse-spiderboost": 0.01}.items():
        for k1, k2 in SPLITS:
            text = {"name": f"split-{model}-{name}-{k1:g}-{k2:g}", "label": f"{name}, k1 {k1:g}, k2 {k2:g}"}
            configs.append(RunConfig("image", name, lr=lr, k1=k1, k2=k2, **text, **_image(model, smoke)))
    return Part(
        f"split-{model}", f"k1 : k2 at k/d = 10 %, {model.upper()} on MNIST", configs, of_part(f"split-{model}")
    )


def _reset(model: str, smoke: bool) -> Part:
    """M carried over from loop to loop (Algorithm 1), or restarted at each large batch (Sections 1 and 2 in words)."""
    big = model == "resnet18"
    data, steps = ("CIFAR-10", STEPS[:1]) if big else ("MNIST", STEPS)
    size: Values = {"options": {"model": model, "data": "cifar10"} | FAST, "budget": 10.0, "eval_every": 0.5}
    configs = []
    for name, lr in steps:
        for reset, word in ((False, "carried"), (True, "reset")):
            text = {"name": f"reset-{model}-{name}-{lr:g}-{word}", "label": f"{LABELS[name]}, lr {lr:g}, M {word}"}
            settings = size if big else _image(model, smoke)
            configs.append(RunConfig("image", name, lr=lr, memory_reset=reset, **text, **settings))
    return Part(f"reset-{model}", f"M carried over or reset, {model.upper()} on {data}", configs, [])


def _forms(model: str, data: str, smoke: bool) -> Part:
    """What the figures lack: loops of an adaptive length for both methods, M reset at each anchor, and dense SVRG."""
    auto: Values = {"inner_steps": "auto"}
    forms = {"spiderboost-adaptive": auto, "sparse-spiderboost-adaptive": auto}
    forms |= {"sparse-spiderboost-reset": {"memory_reset": True}} | ({"svrg": {}} if data == "mnist" else {})
    common = _image(model, smoke)
    common |= {} if data == "mnist" else {"options": {"model": model, "data": data}, "budget": 10.0, "eval_every": 0.5}
    key, configs = f"forms-{model}-{data}", []
    for form, settings in forms.items():
        method = form.removesuffix("-adaptive").removesuffix("-reset")
        configs.append(RunConfig("image", method, lr=0.1, name=f"{key}-{form}", label=form, **settings, **common))
    return Part(key, f"Other forms, {model.upper()} on {data}", configs, [])


def _lengths(model: str, smoke: bool) -> Part:
    """Loops of m updates (the paper's implementation), or of a geometric length with mean m (its analysis)."""
    configs = []
    for name, lr in (("spiderboost", 0.1), *STEPS):
        for lengths in ("fixed", "geometric"):
            text = {
                "name": f"lengths-{model}-{name}-{lr:g}-{lengths}",
                "label": f"{LABELS[name]}, lr {lr:g}, {lengths}",
            }
            configs.append(RunConfig("image", name, lr=lr, lengths=lengths, **text, **_image(model, smoke)))
    key, title = f"lengths-{model}", f"Fixed and geometric loops, {model.upper()} on MNIST"
    return Part(key, title, configs, of_part(key))


def summed_step(task: str) -> float:
    """What the step sizes of one inner loop add up to, with the paper's settings for the task."""
    settings = find(task).settings
    start, m = settings["lr"], settings["inner_steps"]
    end = settings.get("inner_lr_end", start)
    return sum(end + (start - end) * (m - t) / m for t in range(m))


def _controls(figure: str, smoke: bool) -> Part:
    """SGD that takes the steps of an inner loop at once, on a batch of the anchor's size; and, where that is not the
    paper's SGD, one by one on small batches with their mean.

    If v hardly changes inside a loop, they go where Algorithm 1 and SpiderBoost go, without any small step.
    """
    task = {"figure2": "language", "figure3": "ranking"}[figure]
    if task == "language":
        common: Values = {"options": {"vocabulary": 1000, "eval_pieces": 100}, "budget": 40.0, "eval_every": 0.5}
        options = {"vocabulary": 1000, "hidden": 64, "embedding": 32, "train_tokens": 100_000}
        common = {"options": options, "budget": 1.0, "eval_every": 0.1} if smoke else common
    else:
        length = {"budget": 2.0, "eval_every": 0.25} if smoke else {"budget": 40.0, "eval_every": 0.5}
        common = {"options": {"data": "100k"}, **length}
    key, settings, total = f"controls-{figure}", find(task).settings, summed_step(task)
    forms = {"summed": (settings["anchor_batch_size"], total)}
    if task == "ranking":
        forms["mean"] = settings["batch_size"], total * settings["batch_size"] / settings["anchor_batch_size"]
    configs = []
    for word, (size, lr) in forms.items():
        text = {"name": f"{key}-sgd-{word}", "label": f"SGD, b {size}, lr {lr:.3g}"}
        configs.append(RunConfig(task, "sgd", lr=lr, batch_size=size, **text, **common))
    note = f"To be read beside the runs of {figure}, which have the same task and length."
    return Part(key, f"Controls of Figure {figure[-1]}: SGD with the steps of a loop", configs, [], note)
