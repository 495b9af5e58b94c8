"""Bayesian personalised ranking by matrix factorisation on MovieLens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.lab.data.files import File
from spidersilk.lab.data.sets import movielens, ratings_file
from spidersilk.lab.settings import Number, Setting, Text, Whole
from spidersilk.lab.tasks import Options, Task, register


class Factors(nn.Module):
    """score(u, i) = <p_u, q_i> + b_i."""

    def __init__(self, users: int, items: int, rank: int):
        super().__init__()
        self.user = nn.Embedding(users, rank)
        self.item = nn.Embedding(items, rank)
        self.bias = nn.Embedding(items, 1)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.user(users) * self.item(items)).sum(-1) + self.bias(items).squeeze(-1)


@register
class Ranking(Task):
    name = "ranking"
    about = "BPR matrix factorisation on MovieLens 100k or 1m: AUC and precision@10 on held-out items"
    options: ClassVar[Options] = {"data": "100k", "rank": 20, "held_out": 0.2, "split_seed": 0}
    allowed: ClassVar[dict[str, Setting]] = {
        "data": Text(choices=("100k", "1m")),
        "rank": Whole(low=1, high=4096, about="numbers for each user and item"),
        "held_out": Number(low=0.001, high=0.9, about="share of the ratings for testing"),
        "split_seed": Whole(low=0, about="seed of the split"),
    }
    settings: ClassVar[Options] = {"lr": 1.0, "inner_lr_end": 0.1, "anchor_batch_size": 1030, "batch_size": 103,
                                   "inner_steps": 10}  # fmt: skip
    rates: ClassVar[dict[str, float]] = {"sgd": 10.0, "momentum": 1.0, "adamw": 0.01, "svrg": 10.0, "spiderboost": 5.0,
                                         "sparse-spiderboost": 5.0, "sparse-svrg": 5.0, "sparse-sgd": 10.0,
                                         "sparse-adamw": 0.01}  # fmt: skip

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        super().__init__(options, data_dir, device)
        size = self.given["data"]
        pairs, users, items = movielens(size, data_dir)
        self.data_name = f"MovieLens {size.upper()}"
        generator = torch.Generator().manual_seed(self.given["split_seed"])
        order = torch.randperm(len(pairs), generator=generator)
        test_count = int(len(pairs) * self.given["held_out"])
        train = self.train = pairs[order[test_count:]].to(device)
        self.samples = len(train)
        self.guess_loss = math.log(2)
        self.seen, self.wanted = torch.zeros(2, users, items, dtype=torch.bool, device=device)
        self.seen[*train.T] = True
        self.wanted[*pairs[order[:test_count]].T.to(device)] = True
        self.items = items
        self.model = self.factors = Factors(users, items, self.given["rank"]).to(device)
        # A fixed sample of triples to measure the training loss on.
        self._probe = train[torch.randperm(self.samples, generator=generator)[:20_000].to(device)]
        self._probe_negatives = self._negatives(self._probe[:, 0], generator)

    @classmethod
    def files(cls, options: Options) -> list[File]:
        return [ratings_file(str(options["data"]))]

    def _negatives(self, users: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """For each user an item without a rating in training: the first such of eight draws."""
        drawn = torch.randint(self.items, (len(users), 8), generator=generator).to(self.device)
        fresh = ~self.seen[users[:, None], drawn]
        return drawn.gather(1, fresh.int().argmax(1, keepdim=True)).squeeze(1)

    def loss(self, batch: Tensor, point: str | None) -> Tensor:
        """Negatives come from torch's global generator, so both points of a step see the same ones."""
        users, items = batch.unbind(1)
        return self._triple_loss(users, items, self._negatives(users))

    def _triple_loss(self, users: Tensor, items: Tensor, negatives: Tensor) -> Tensor:
        return F.softplus(self.model(users, negatives) - self.model(users, items)).mean()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Training loss on fixed triples; AUC and precision@10 over held-out items against all unrated ones."""
        loss = float(self._triple_loss(self._probe[:, 0], self._probe[:, 1], self._probe_negatives))
        scores = self.factors.user.weight @ self.factors.item.weight.T + self.factors.bias.weight.T
        scores = scores.masked_fill(self.seen, float("-inf"))
        users = self.wanted.any(1)
        order = scores.argsort(1)
        rank = torch.empty_like(order).scatter_(1, order, torch.arange(self.items, device=self.device).expand_as(order))
        good = self.wanted.sum(1).double()
        bad = (~self.seen & ~self.wanted).sum(1).double()
        # Ranks from the lowest score: each held-out item beats those below it that are neither rated nor held out.
        below = (rank.double() * self.wanted).sum(1) - self.seen.sum(1) * good - good * (good - 1) / 2
        auc = (below / (good * bad).clamp(min=1))[users].mean()
        best = scores.topk(10, 1).indices
        precision = self.wanted.gather(1, best).double().mean(1)[users].mean()
        return {"train_loss": loss, "auc": float(auc), "precision_at_10": float(precision)}
