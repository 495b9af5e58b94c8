"""The random-top-k operator as functions of tensors (Section 2, Lemma 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from spidersilk.checks import check_choice
from spidersilk.kernels import backends
from spidersilk.kernels.plain import is_finite, top_indices
from spidersilk.operator.counts import Count, check_counts, check_shares, resolve_counts
from spidersilk.operator.groups import GroupLayout, Groups, Shapes
from spidersilk.operator.random_stream import fresh_seed
from spidersilk.operator.selection import Selection


def select(
    memory: Tensor,
    k1: Count,
    k2: Count,
    *,
    shapes: Shapes | None = None,
    groups: Groups | None = None,
    generator: torch.Generator | None = None,
) -> Selection:
    """Take the k1 coordinates with the largest |memory| (ties: lower index first) and k2 random others.

    k2 = 0 is plain top-k (no draw, scale 1, biased); k1 = 0 is plain random coordinates. With `shapes` of the tensors
    that memory is made of, take whole rows, or whole columns with groups="columns", as `RTop(groups=)` does.

    >>> memory = torch.tensor([11.0, 12.0, 13.0, -14.0, -15.0])
    >>> selection = select(memory, k1=1, k2=1)
    >>> selection.top.tolist(), selection.scale
    ([4], 4.0)
    """
    _check_vector("memory", memory)
    kernels = backends.find("auto", [(memory.device, memory.dtype)])
    seen_by_select = shapes is None and k1 != 0 and kernels.refuses_non_finite
    if not seen_by_select and not bool(is_finite(memory)):
        raise ValueError("memory has entries that are not finite: there is no order among them, so mend them first")
    memory = memory.contiguous()
    layout = _layout_of(memory, k1, k2, shapes, groups)
    if layout is not None:
        return Selection(*layout.draw(memory, layout.counts(k1, k2), fresh_seed(generator) if k2 else 0, kernels))
    d = memory.numel()
    top, random = resolve_counts(k1, k2, d)
    picked = kernels.select(memory, top, random, fresh_seed(generator) if random else 0)
    return Selection(*picked, (d - top) / random if random else 1.0, d)


def rtop(
    memory: Tensor,
    y: Tensor,
    k1: Count,
    k2: Count,
    *,
    shapes: Shapes | None = None,
    groups: Groups | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The operator rtop_{k1,k2}(memory, y): an unbiased, sparse version of y; a dense tensor comes back."""
    check_pair(memory, y)
    return select(memory, k1, k2, shapes=shapes, groups=groups, generator=generator).apply(y)


def rtop_variance(
    memory: Tensor, y: Tensor, k1: Count, k2: Count, *, shapes: Shapes | None = None, groups: Groups | None = None
) -> float:
    """Lemma 1: the summed variance of rtop(memory, y), (d - k1 - k2) / k2 times the energy of y outside the top k1.

    k2 = 0 draws nothing, so the variance is 0 (and the operator biased). With groups it is the same for those of each
    length, (G - G1 - G2) / G2 times the energy outside the top G1 of G groups, summed over the lengths.
    """
    check_pair(memory, y)
    layout = _layout_of(memory, k1, k2, shapes, groups)
    if layout is not None:
        counts = layout.counts(k1, k2)
        pairs = [(of_class.scores(memory), of_class.scores(y.double().square())) for of_class in layout.classes]
    else:
        pairs, counts = [(memory.abs(), y.double().square())], [resolve_counts(k1, k2, memory.numel())]
    variance = 0.0
    for (scores, energies), (top, random) in zip(pairs, counts, strict=True):
        if random:
            outside = energies.index_fill(0, top_indices(scores, top), 0.0)
            variance += (scores.numel() - top - random) / random * float(outside.sum())
    return variance


def check_pair(memory: Tensor, y: Tensor) -> None:
    """Two vectors of one length."""
    _check_vector("memory", memory)
    _check_vector("y", y)
    if memory.shape != y.shape:
        raise ValueError(f"memory has {memory.numel()} entries and y has {y.numel()}: they must have the same length")


def _layout_of(
    memory: Tensor, k1: Count, k2: Count, shapes: Shapes | None, groups: Groups | None
) -> GroupLayout | None:
    """Where the groups of memory are; None if coordinates are selected."""
    check_choice("groups", groups, ("rows", "columns", None))
    if shapes is None:
        if groups is not None:
            raise ValueError(
                f"groups = {groups!r} without shapes: give the shapes of the tensors that memory is made of"
            )
        return None
    check_counts(k1, k2)
    check_shares(k1, k2, groups or "rows")
    layout = GroupLayout(shapes, memory.device, groups or "rows")
    if layout.d != memory.numel():
        raise ValueError(
            f"shapes have {layout.d} entries and memory has {memory.numel()}: give those of all its tensors"
        )
    return layout


def _check_vector(name: str, value: Tensor) -> None:
    if value.dim() != 1 or value.numel() == 0:
        shape = tuple(value.shape)
        raise ValueError(f"{name} has shape {shape}, not (d,) with d of at least 1: flatten it with reshape(-1)")
    if not value.is_floating_point():
        raise ValueError(f"{name} has dtype {value.dtype}: give a floating-point tensor, for example {name}.float()")
