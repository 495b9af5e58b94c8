"""Fine-tuning: a GPT over bytes, pretrained on Python code, goes on with another text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from spidersilk.lab.data.files import File, files_like, search_folders
from spidersilk.lab.data.texts import has_ptb, library_code, library_prose, ptb_texts
from spidersilk.lab.settings import Number, Setting, Text, Whole
from spidersilk.lab.tasks import Options, StartReport, State, Task, entropy_of_shares, register
from spidersilk.lab.tasks.gpt import GPT, SIZES

TEXTS = ("ptb", "library")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RECIPE = 1  # of the pretraining below: another number is another start
WARM_UP = 0.1  # of the pretraining


class Defaults(NamedTuple):
    """What an option is for a size, unless it is given."""

    train_bytes: int | None
    eval_samples: int
    pretrain_steps: int
    pretrain_lr: float
    pretrain_batch: int


DEFAULTS = {"tiny": Defaults(32_000, 50, 150, 3e-3, 16), "85m": Defaults(None, 1000, 1650, 6e-4, 32)}


@register
class Finetune(Task):
    name = "finetune"
    about = "a GPT over bytes, pretrained on Python code and fine-tuned on PTB or on Python's help topics"
    optimizer = "sparse-adamw"
    judged_by, blocks = "valid_loss", "blocks"
    options: ClassVar[Options] = {"size": "tiny", "text": None, "dtype": None, "train_bytes": None,
                                  "eval_samples": None, "pretrain_steps": None, "pretrain_lr": None,
                                  "start_seed": 0}  # fmt: skip
    allowed: ClassVar[dict[str, Setting]] = {
        "size": Text(choices=tuple(SIZES), about="0.5 M parameters, context 128; or 85 M, context 512"),
        "text": Text(choices=TEXTS, optional=True, about="fine-tune on: ptb if it is found, else library"),
        "dtype": Text(choices=tuple(DTYPES), optional=True, about="of the weights: bfloat16 on CUDA, float32 on a CPU"),
        "train_bytes": Whole(low=1, optional=True, about="how much of the text to train on: 32,000 (tiny) or all"),
        "eval_samples": Whole(low=1, optional=True, about="rows of each part to evaluate on: 50 (tiny) or 1000"),
        "pretrain_steps": Whole(low=1, high=10**6, optional=True, about="steps of AdamW: 150 (tiny) or 1650"),
        "pretrain_lr": Number(above=0, optional=True, about="its step size: 0.003 (tiny) or 0.0006"),
        "start_seed": Whole(low=0, about="seed of the pretraining"),
    }
    settings: ClassVar[Options] = {"lr": 0.1, "anchor_batch_size": 32, "batch_size": 32, "inner_steps": 200,
                                   "schedule": "warm-up"}  # fmt: skip
    rates: ClassVar[dict[str, float]] = {"sgd": 0.2, "momentum": 0.05, "adamw": 8e-4, "svrg": 0.2, "spiderboost": 0.1,
                                         "sparse-spiderboost": 0.02, "sparse-svrg": 0.1, "sparse-sgd": 0.1,
                                         "sparse-adamw": 8e-4, "lora": 5e-3, "galore": 8e-3, "apollo-mini": 5e-3,
                                         "badam": 1e-3}  # fmt: skip

    def __init__(self, options: Options, data_dir: Path | str | None, device: torch.device):
        super().__init__(self.completed_options(options, data_dir), data_dir, device)
        given, defaults = self.given, DEFAULTS[self.given["size"]]
        given |= {k: getattr(defaults, k) for k in Defaults._fields if k in given and given[k] is None}
        given["dtype"] = given["dtype"] or ("bfloat16" if device.type == "cuda" else "float32")
        self.size_of_model = SIZES[given["size"]]
        self.text = self._read_text()
        train, valid = (self._rows(part) for part in self.text)
        self.train, self.samples = train.to(device), len(train)
        self.guess_loss = entropy_of_shares(self._spread(train)[:, 1:])
        self.seen = {"train_loss": self._spread(train).to(device), "valid_loss": self._spread(valid).to(device)}
        self.model = self.gpt = GPT(self.size_of_model, given["start_seed"]).to(device, DTYPES[given["dtype"]])

    @classmethod
    def completed_options(cls, options: Options, data_dir: Path | str | None) -> Options:
        """With the text that is there, so that a resumed run has the same."""
        if options.get("text") is not None:
            return options
        return options | {"text": "ptb" if has_ptb(data_dir) else "library"}

    @classmethod
    def files(cls, options: Options) -> list[File]:
        return [] if options["text"] == "library" else files_like("ptb/*")[:2]

    # Texts.

    def _read_text(self) -> tuple[bytes, bytes]:
        """For training, and for validation."""
        if self.given["text"] == "ptb":
            self.data_name = "Penn Treebank, bytes"
            train, valid = ptb_texts(self.data_dir)
        else:
            self.data_name = "Python's help topics, bytes"
            if not has_ptb(self.data_dir):
                looked = ", ".join(str(folder / "ptb") for folder in search_folders(self.data_dir))
                missing = f"as the Penn Treebank is not there (looked in {looked})"
                self.remark = f"fine-tuning on Python's help topics, {missing}"
            train, valid = library_prose()
        count = self.given["train_bytes"] or len(train)
        if count > len(train):
            raise ValueError(f"train_bytes = {count} exceeds the {len(train):,} of {self.data_name}: lower it")
        return train[:count], valid

    def _rows(self, text: bytes) -> Tensor:
        """The text as rows of context + 1 bytes; the last byte of each, its last target, is the first of the next."""
        length = self.size_of_model.context
        if len(text) <= length:
            need = f"a row of context {length} needs {length + 1}"
            raise ValueError(f"train_bytes = {len(text)} leaves no row: {need}, so raise it")
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, length + 1, length).contiguous()

    def _spread(self, rows: Tensor) -> Tensor:
        """At most `eval_samples` rows from all over the text."""
        count = min(len(rows), self.given["eval_samples"])
        return rows[torch.arange(count) * len(rows) // count]

    # The pretrained start.

    def start(self) -> State:
        given = self.given
        names = ("size", "pretrain_steps", "pretrain_lr", "start_seed")
        facts = {name: given[name] for name in names} | {"batch": DEFAULTS[given["size"]].pretrain_batch}
        return facts | {"recipe": RECIPE, "device": self.device.type, "text_sha256": _sha256(library_code())}

    def make_start(self, report: StartReport) -> State:
        """AdamW on random passages of Python code: float32 weights, and on CUDA products in bfloat16."""
        given, length = self.given, self.size_of_model.context
        steps, batch = given["pretrain_steps"], DEFAULTS[given["size"]].pretrain_batch
        code = torch.frombuffer(bytearray(library_code()), dtype=torch.uint8).to(self.device)
        model = GPT(self.size_of_model, given["start_seed"]).to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), given["pretrain_lr"], betas=(0.9, 0.95))
        generator = torch.Generator().manual_seed(given["start_seed"])
        inside = torch.arange(length + 1, device=self.device)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = given["pretrain_lr"] * min((step + 1) / (WARM_UP * steps), 1.0, 1 - step / steps)
            begins = torch.randint(len(code) - length, (batch,), generator=generator).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                loss = model.loss(code[begins[:, None] + inside])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 or step == steps - 1:
                report(step + 1, steps, float(loss.detach()))
        return model.state_dict()

    # Training and evaluation.

    def loss(self, batch: Tensor, point: str | None) -> Tensor:
        return self.gpt.loss(batch)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Nats per byte on rows of the training text and of the validation text."""
        return {name: self._mean_loss(rows) for name, rows in self.seen.items()}

    def _mean_loss(self, rows: Tensor) -> float:
        losses = [self.gpt.loss(part).double() * len(part) for part in rows.split(64)]
        return float(torch.stack(losses).sum()) / len(rows)

    def facts(self, last: dict[str, float]) -> dict[str, Any]:
        facts = {"text_sha256": _sha256(b"".join(self.text)), "start": self.start()}
        if last.get("seconds"):
            facts["tokens_per_second"] = last["samples"] * self.size_of_model.context / last["seconds"]
        return facts


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
