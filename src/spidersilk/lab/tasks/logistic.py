"""l2-regularised logistic regression with a known optimum: variance reduction is known to win here."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.lab.data.files import cache_folder, write_atomically
from spidersilk.lab.data.sets import BINARY, binary
from spidersilk.lab.settings import Setting, Text
from spidersilk.lab.tasks import Options, Task, register


@register
class Logistic(Task):
    name = "logistic"
    about = "l2 logistic regression, f - f* known: breast-cancer, digits, mnist (even or odd), a9a, w8a"
    judged_by = "gap"
    options: ClassVar[Options] = {"data": "breast-cancer"}
    allowed: ClassVar[dict[str, Setting]] = {"data": Text(choices=BINARY)}
    settings: ClassVar[Options] = {"lr": 4.0, "anchor_batch_size": None, "batch_size": 50, "inner_steps": "theorem-2",
                                   "k1": 0.1, "k2": 0.1}  # fmt: skip
    rates: ClassVar[dict[str, float]] = {"sgd": 4.0, "momentum": 0.5, "adamw": 0.01, "svrg": 4.0, "spiderboost": 4.0,
                                         "sparse-spiderboost": 0.25, "sparse-svrg": 1.0, "sparse-svrg-refresh": 4.0,
                                         "sparse-svrg-selected": 8.0, "sparse-sgd": 4.0, "sparse-adamw": 0.01,
                                         "top-k": 0.1}  # fmt: skip

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        super().__init__(options, data_dir, device)
        self.data_name = self.given["data"]
        features, labels = binary(self.data_name, data_dir)
        self.train = self.signed = (features * labels[:, None]).to(device)
        self.samples = len(self.signed)
        self.guess_loss = math.log(2)
        self.lam = 1 / self.samples
        self.optimum = minimum(self.signed.cpu(), self.lam)
        self.model = self.linear = nn.Linear(self.signed.shape[1], 1, bias=False, dtype=torch.float64, device=device)
        nn.init.zeros_(self.linear.weight)

    def loss(self, batch: Tensor, point: str | None) -> Tensor:
        return F.softplus(-self.linear(batch)).mean() + 0.5 * self.lam * self.linear.weight.square().sum()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        loss = float(self.loss(self.signed, None))
        return {"train_loss": loss, "gap": max(loss - self.optimum, 0.0)}


def minimum(signed: Tensor, lam: float) -> float:
    """f* to 1e-12, by Newton's method; cached by the data's content."""
    key = hashlib.sha256(signed.contiguous().numpy().tobytes() + repr(lam).encode()).hexdigest()[:24]
    path = cache_folder().parent / "optima" / f"{key}.json"
    if path.is_file():
        return json.loads(path.read_text())["minimum"]
    from sklearn.linear_model import LogisticRegression

    matrix = signed.double()
    labels = 1.0 - 2.0 * (torch.arange(len(matrix)) % 2)  # whatever they are: it wants two classes
    solver = LogisticRegression(
        C=1 / (lam * len(matrix)), fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
    ).fit((matrix * labels[:, None]).numpy(), labels.numpy())
    w = torch.from_numpy(solver.coef_[0]).requires_grad_()
    loss = F.softplus(-(matrix @ w)).mean() + 0.5 * lam * w.square().sum()
    (gradient,) = torch.autograd.grad(loss, w)
    if float(gradient.square().sum()) / (2 * lam) > 1e-13:  # strong convexity bounds f - f* by this
        raise RuntimeError(f"f* was not found to 1e-12: the gradient is still {float(gradient.norm()):.1e}")
    write_atomically(path, json.dumps({"minimum": loss.item()}).encode())
    return loss.item()
