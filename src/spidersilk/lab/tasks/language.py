"""An LSTM language model on the Penn Treebank: Algorithm 2, with a batch matrix and a state for each batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spidersilk.lab.data.files import File, files_like
from spidersilk.lab.data.sets import ptb
from spidersilk.lab.settings import Setting, Whole
from spidersilk.lab.tasks import Options, State, Task, entropy_of_shares, register
from spidersilk.loop.lengths import InnerLength
from spidersilk.loop.loader import AnchorLoader

Hidden = tuple[Tensor, Tensor]
GOLDEN = (math.sqrt(5) - 1) / 2


class LanguageModel(nn.Module):
    """Embedding, LSTM, softmax over the vocabulary."""

    def __init__(self, vocabulary: int, width: int, hidden: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        out, state = self.lstm(self.embedding(tokens), state)
        return self.head(out), state


class Chunks:
    """Chunks of the two matrices in turn: Z_2 at anchors, Z_1 at small steps, each advancing when it is used.

    A batch is (which, number of the chunk): the text stays in the task. `order` says when an anchor comes; its batches
    are not looked at. As printed, Algorithm 2 takes chunk t mod l of both, so that with m = 2 half of each is not seen.
    """

    def __init__(self, order: AnchorLoader, lengths: dict[str, int]):
        self.order, self.lengths = order, lengths
        self.used = {"large": 0, "small": 0}

    def __iter__(self) -> Iterator[tuple[tuple[str, int], Any]]:
        for _, is_anchor in self.order:
            which = "large" if is_anchor else "small"
            self.used[which] += 1
            yield (which, (self.used[which] - 1) % self.lengths[which]), is_anchor

    def state_dict(self) -> State:
        return {"order": self.order.state_dict(), "used": dict(self.used)}

    def load_state_dict(self, state: State) -> None:
        self.order.load_state_dict(state["order"])
        self.used = dict(state["used"])


@register
class Language(Task):
    name = "language"
    about = "LSTM language model on PTB (Algorithm 2), vocabulary 1000 or 10000"
    options: ClassVar[Options] = {"vocabulary": 1000, "embedding": 128, "hidden": 1024, "length": 35,
                                  "train_tokens": None, "eval_tokens": 20_000, "eval_pieces": 100}  # fmt: skip
    allowed: ClassVar[dict[str, Setting]] = {
        "vocabulary": Whole(low=100, high=10_000, about="how many words are known; others are <unk>"),
        "embedding": Whole(low=1, high=16_384, about="width of the embedding"),
        "hidden": Whole(low=1, high=16_384, about="width of the LSTM"),
        "length": Whole(low=1, high=10_000, about="tokens of a sample"),
        "train_tokens": Whole(low=2, optional=True, about="how many tokens of each text to use; all without it"),
        "eval_tokens": Whole(low=2, about="how many tokens of each text to evaluate on"),
        "eval_pieces": Whole(low=1, about="in how many passages at most"),
    }
    settings: ClassVar[Options] = {"lr": 0.2, "anchor_batch_size": 40, "batch_size": 20, "inner_steps": 2}
    rates: ClassVar[dict[str, float]] = {"sgd": 1.0, "momentum": 0.2, "adamw": 0.001, "svrg": 0.5, "spiderboost": 0.5,
                                         "sparse-spiderboost": 0.5, "sparse-svrg": 0.5, "sparse-sgd": 1.0,
                                         "sparse-adamw": 0.001}  # fmt: skip

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        super().__init__(options, data_dir, device)
        texts, words = ptb(data_dir, self.given["vocabulary"])
        self.data_name = f"PTB, vocabulary {len(words)}"
        self.text = {part: text[: self.given["train_tokens"]] for part, text in texts.items()}
        self.model = LanguageModel(len(words), self.given["embedding"], self.given["hidden"]).to(device)
        self.samples = len(self.text["train"]) // self.given["length"]  # a sample is a row of `length` tokens
        self._pending: dict[str, Hidden] = {}
        seen, _ = (self._spread(self.text[part]) for part in ("train", "valid"))  # too short a text is refused now
        self.guess_loss = entropy_of_shares(seen[:, 1 : self._chunks(seen) * self.given["length"] + 1])

    @classmethod
    def files(cls, options: Options) -> list[File]:
        return files_like("ptb/*")

    def batches(self, anchor: int | None, small: int, inner: int | InnerLength, generator: torch.Generator) -> Chunks:
        self.rows = {"large": anchor or self.samples, "small": small}
        self.matrix = {which: self._matrix(self.text["train"], rows) for which, rows in self.rows.items()}
        self.state = {which: self._zero_state(rows) for which, rows in self.rows.items()}
        self.old_state = self.state["small"]
        lengths = {which: self._chunks(matrix) for which, matrix in self.matrix.items()}
        order = AnchorLoader(torch.empty(self.samples), anchor, small, inner, loops=10**9, generator=generator)
        return Chunks(order, lengths)

    def _matrix(self, text: Tensor, rows: int) -> Tensor:
        """The text as `rows` contiguous rows."""
        columns = len(text) // rows
        if columns <= self.given["length"]:
            short = f"{len(text)} tokens in {rows} rows leave {columns} each"
            raise ValueError(f"{short}: lower the batch size or `length`")
        return text[: rows * columns].view(rows, columns).to(self.device)

    def _chunks(self, matrix: Tensor) -> int:
        return (matrix.shape[1] - 1) // self.given["length"]

    def _zero_state(self, rows: int) -> Hidden:
        shape = (1, rows, self.given["hidden"])
        return torch.zeros(shape, device=self.device), torch.zeros(shape, device=self.device)

    def loss(self, batch: tuple[str, int], point: str | None) -> Tensor:
        which, chunk = batch
        if chunk == 0 and point != "reference":
            self.state[which] = self._zero_state(self.rows[which])  # lines 4-7: a new pass over the text
            if which == "small":
                self.old_state = self.state[which]
        old = point == "reference" and self.reference == "previous"
        start = self.old_state if old else self.state[which]
        loss, after = self._chunk_loss(self.matrix[which], chunk, start)
        if point != "reference":
            self._pending = {which: (after[0].detach(), after[1].detach())}
        return loss

    def _chunk_loss(self, matrix: Tensor, chunk: int, state: Hidden) -> tuple[Tensor, Hidden]:
        length = self.given["length"]
        text = matrix[:, chunk * length : (chunk + 1) * length + 1]
        out, after = self.model(text[:, :-1], state)
        return F.cross_entropy(out.flatten(0, 1), text[:, 1:].flatten()), after

    def stepped(self) -> None:
        """s_{t+1} after a small step; an anchor leaves s, and so s_{t-1} = s_t at the next one."""
        self.old_state = self.state["small"]
        self.state.update(self._pending)
        self._pending = {}

    def size(self, batch: tuple[str, int]) -> int:
        return self.rows[batch[0]]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Mean loss per token on `eval_tokens` tokens from all over the training text, and the validation text."""
        self.model.eval()
        metrics = {}
        for part, name in (("train", "train_loss"), ("valid", "valid_loss")):
            matrix = self._spread(self.text[part])
            state = self._zero_state(len(matrix))
            losses = []
            for chunk in range(self._chunks(matrix)):
                loss, state = self._chunk_loss(matrix, chunk, state)
                losses.append(loss.double())
            metrics[name] = float(torch.stack(losses).mean())
        self.model.train()
        return metrics

    def _spread(self, text: Tensor) -> Tensor:
        """Passages of the text, as rows. Training reads the text in order, so neighbouring tokens were read at about
        the same time. The passages start at multiples of the golden ratio, which no number of rows divides evenly."""
        tokens = min(len(text), self.given["eval_tokens"])
        count = max(1, min(self.given["eval_pieces"], tokens // (5 * self.given["length"] + 1)))
        columns = tokens // count
        if columns <= self.given["length"]:
            raise ValueError(f"{tokens} tokens to look at are not more than `length`: raise eval_tokens or lower it")
        starts = [int(i * GOLDEN % 1 * (len(text) - columns + 1)) for i in range(count)]
        return torch.stack([text[i : i + columns] for i in starts]).to(self.device)

    def state_dict(self) -> State:
        return {"state": dict(self.state), "old": self.old_state}

    def load_state_dict(self, state: State) -> None:
        self.state, self.old_state = dict(state["state"]), state["old"]
