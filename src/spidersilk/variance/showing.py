"""What `repr(optimizer)` says: how it selects, how much of the model that is, and the step size of each group."""

from __future__ import annotations

from typing import Any

from spidersilk.loop.lengths import Fixed

_CHOICES = ("reference", "move", "choose", "anchor_move", "scaling")
_SHARES = ("k1", "k2", "groups")


def shown(optimizer: Any) -> str:
    """A few lines, as torch's optimizers have them."""
    base, facts = getattr(optimizer, "base", None), {}
    if base is not None and type(base).__name__.upper() not in type(optimizer).__name__.upper():
        facts["base"] = type(base).__name__
    sparsity = getattr(optimizer, "sparsity", None)
    if sparsity is not None:
        facts |= {name: getattr(sparsity, name) for name in (*_SHARES, "memory_decay")}
    names = _CHOICES if sparsity is not None else ("reference",)
    facts |= {name: getattr(optimizer, name) for name in (*names, "max_norm") if hasattr(optimizer, name)}
    if facts.get("move") == "all":
        facts.pop("anchor_move", None)
    length = optimizer.inner_length if hasattr(optimizer, "inner_length") else optimizer.inner_steps
    lines = [_listed(facts | {"inner_steps": _length(length)}), _amount(optimizer, sparsity)]
    for number, group in enumerate(optimizer.param_groups):
        lines.append(f"group {number}: {_listed({name: group.get(name) for name in ('lr', *_SHARES)})}")
    return "\n".join([f"{type(optimizer).__name__} (", *(f"    {line}" for line in lines if line), ")"])


def _listed(facts: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in facts.items() if value is not None)


def _length(length: Any) -> Any:
    """Of inner loops, or of a selection. None: the loader says when one ends, or a selection is for good."""
    return length.mean if isinstance(length, Fixed) else length


def _amount(optimizer: Any, sparsity: Any) -> str:
    """How many of the d entries a small step has to do with."""
    if hasattr(optimizer, "density"):
        k = optimizer.k
    elif sparsity is not None:
        shapes = [p.shape for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        k = round(sparsity.density(shapes) * optimizer.d)
    else:
        return f"dense: all d = {optimizer.d:,} entries"
    return f"k = {k:,} of d = {optimizer.d:,} entries ({100 * k / optimizer.d:.3g} %)"
