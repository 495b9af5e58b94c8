"""Rivals: each trains a small model where its package is installed, and is refused in one line where it is not."""

from __future__ import annotations

import copy
import re
import sys
from types import SimpleNamespace
from typing import Any

import gpt
import pytest
import torch
from torch import Tensor, nn

from spidersilk.lab import peers

PACKAGES = {name: peer.needs for name, peer in peers.PEERS.items() if peer.needs}
pytestmark = pytest.mark.filterwarnings("ignore:BAdam expect model:UserWarning")


def made(name: str) -> tuple[gpt.GPT, Any]:
    for package in peers.PEERS[name].needs:
        pytest.importorskip(package.replace("-", "_"), reason="needs the extra [peers]")
    model = gpt.make("tiny", "cpu", torch.float32)
    return model, peers.make(name, model, 1e-3)


def train(model: gpt.GPT, optimizer: Any, steps: int) -> list[float]:
    tokens = torch.randint(model.vocabulary, (2, 17), generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(steps):
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_rival_trains(name: str) -> None:
    model, optimizer = made(name)
    losses = train(model, optimizer, 30)
    assert losses[-1] < 0.75 * losses[0]


def test_in_backward_is_adamw() -> None:
    model, optimizer = made("in-backward")
    same = gpt.make("tiny", "cpu", torch.float32)
    assert train(model, optimizer, 5) == train(same, torch.optim.AdamW(same.parameters(), 1e-3, fused=False), 5)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("name", "package"), [(name, package) for name, all_ in PACKAGES.items() for package in all_])
def test_a_missing_package_is_named_before_anything_is_made(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    model = gpt.make("tiny", "cpu", torch.float32)
    for refuse in (lambda: peers.check(name), lambda: peers.make(name, model, 1e-3)):
        with pytest.raises(
            ModuleNotFoundError, match=rf"^{name} needs .*{package}.*: pip install .*{package}"
        ) as caught:
            refuse()
        assert "\n" not in str(caught.value)


def test_a_package_that_does_not_import_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImportError("cannot import name 'x'\nfrom 'y'")

    monkeypatch.setitem(peers.PEERS, "galore", peers.Peer("", broken, ("torch",)))
    with pytest.raises(
        ImportError, match=r"^galore: torch cannot be imported \(cannot import name 'x' from 'y'\): pip"
    ):
        peers.make("galore", nn.Linear(1, 1), 1e-3)


REFUSED = [
    ("galor", "blocks", "there is no rival 'galor': did you mean 'galore'"),
    ("galore", "layers", "blocks = 'layers' must name the list of transformer blocks of the model; it has 'blocks'"),
    ("apollo-mini", "blocks.0", "blocks = 'blocks.0' must name"),
    ("badam", "", "blocks = '' must name"),
]


@pytest.mark.parametrize(("name", "blocks", "message"), REFUSED)
def test_what_is_wrong_is_refused(name: str, blocks: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: True)
    monkeypatch.setattr(peers, "import_module", lambda _: SimpleNamespace(BlockOptimizer=None))
    with pytest.raises(ValueError, match=re.escape(message)):
        peers.make(name, gpt.make("tiny", "cpu", torch.float32), 1e-3, blocks=blocks)


def test_only_matrices_of_the_blocks_are_projected() -> None:
    for name in ("galore", "apollo-mini"):
        model, optimizer = made(name)
        others, projected = optimizer.param_groups
        matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
        assert [id(p) for p in projected["params"]] == [id(p) for p in matrices]
        assert "rank" not in others
        assert len(others["params"]) + len(matrices) == len(list(model.parameters()))


@pytest.mark.parametrize("name", [name for name, peer in peers.PEERS.items() if peer.every])
def test_a_rival_renews_when_it_says(name: str) -> None:
    """GaLore and APOLLO their projections, BAdam its block."""
    model, optimizer = made(name)
    peer = peers.PEERS[name]

    def trained() -> list[Tensor]:
        if name == "badam":
            return [p for p in model.parameters() if p.requires_grad]
        return [state["projector"].ortho_matrix for state in optimizer.state.values() if "projector" in state]

    before, renewed = trained(), []
    for update in range(peer.every + 3):
        train(model, optimizer, 1)
        now = trained()
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            renewed.append(update)
        before = now
    assert renewed == [update for update in range(peer.every + 3) if update % peer.every == peer.at]


def test_badam_trains_one_block_in_float32() -> None:
    model, optimizer = made("badam")
    before = {name: p.clone() for name, p in model.named_parameters()}
    train(model, optimizer, 3)
    changed = {".".join(name.split(".")[:2]) for name, p in model.named_parameters() if not p.equal(before[name])}
    assert len(changed) == 1
    assert changed <= {"blocks.0", "blocks.1"}


def test_lora_is_pefts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain torch, without peft, from the same factors."""
    pytest.importorskip("peft", reason="needs the extra [peers]")
    losses = []
    for installed in (True, False):
        if not installed:
            monkeypatch.setattr(peers, "find_spec", lambda _: None)
        model = gpt.make("tiny", "cpu", torch.float32)
        optimizer = peers.make("lora", model, 1e-2, rank=4, alpha=8)
        trained = [p for p in model.parameters() if p.requires_grad]
        assert [p.shape for p in trained] == [p.shape for group in optimizer.param_groups for p in group["params"]]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for factor in trained[::2]:
                factor.copy_(torch.randn(factor.shape, generator=generator))
        losses.append(train(model, optimizer, 6))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0][-1] < losses[0][0]


def test_lora_trains_its_factors_alone() -> None:
    model = gpt.make("tiny", "cpu", torch.float32)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = peers.make("lora", model, 1e-2, rank=2)
    train(model, optimizer, 3)
    after = dict(model.named_parameters())
    for name, value in before.items():
        now = [p for other, p in after.items() if other.replace("base_layer.", "").replace("layer.", "") == name]
        assert len(now) == 1
        assert torch.equal(now[0], value)


@pytest.mark.parametrize("name", [name for name, peer in peers.PEERS.items() if peer.resumes])
def test_a_rival_goes_on_from_its_saved_state(name: str) -> None:
    model, optimizer = made(name)
    train(model, optimizer, 3)
    states = [{k: v.clone() if isinstance(v, Tensor) else v for k, v in model.state_dict().items()}]
    states.append(copy.deepcopy(optimizer.state_dict()))
    whole = train(model, optimizer, 3)
    other, again = made(name)
    other.load_state_dict(states[0])
    again.load_state_dict(states[1])
    assert train(other, again, 3) == whole


@pytest.mark.parametrize("name", peers.PEERS)
def test_what_a_rival_takes_is_checked(name: str) -> None:
    for package in peers.PEERS[name].needs:
        pytest.importorskip(package.replace("-", "_"), reason="needs the extra [peers]")
    model = gpt.make("tiny", "cpu", torch.float32)
    with pytest.raises(ValueError, match=f"'rnak' is no argument of {name}"):
        peers.make(name, model, 1e-3, rnak=3)
    with pytest.raises(ValueError, match="weight_decay = -1 must be a number of at least 0"):
        peers.make(name, model, 1e-3, weight_decay=-1)
