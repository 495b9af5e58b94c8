"""The kernels on CUDA. Nothing waits for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Flag, Outcome, Rule, Seed, Step, Tensors, Update
from spidersilk.kernels.plain import PLAIN, is_grouped
from spidersilk.kernels.triton import entries, plan, vectors
from spidersilk.kernels.triton.steps import kinds_of, rows_of, take_steps


class TritonKernels:
    """See `interface.Kernels`. Keeps tables of addresses, so there is one for each optimizer."""

    draws_on_device = True
    refuses_non_finite = False

    def __init__(self) -> None:
        self._tables: dict[tuple[str, entries.Kinds], entries.Table] = {}
        self._flats: dict[tuple[str, tuple[int, ...], torch.device], vectors.FlatTensors] = {}

    def select(self, memory: Tensor, k1: int, k2: int, seed: Seed, hint: object = None) -> tuple[Tensor, Tensor]:
        if not isinstance(seed, Tensor):
            seed = plan.make_counter(seed & (2**63 - 1), 0, memory.device)
        return plan.select(memory, k1, k2, seed)

    def gather(self, tensors: Tensors, sizes: Sequence[int], indices: Tensor, dtype: torch.dtype) -> Tensor:
        full = [None if t is None else (t if t.layout == torch.strided else t.to_dense()).contiguous() for t in tensors]
        out = torch.empty(indices.numel(), dtype=dtype, device=indices.device)
        if any(t is not None and (t.dtype != dtype or t.device != out.device) for t in full):
            return PLAIN.gather(tensors, sizes, indices, dtype)
        flat = self._flat_tensors("read", sizes, out.device)
        vectors.transfer(flat, flat.table(full), indices, out, False)
        return out

    def scatter(self, tensors: Sequence[Tensor], sizes: Sequence[int], indices: Tensor, values: Tensor) -> None:
        if not all(t.is_contiguous() for t in tensors):
            PLAIN.scatter(tensors, sizes, indices, values)
            return
        flat = self._flat_tensors("write", sizes, values.device)
        vectors.transfer(flat, flat.table(tensors), indices, values, True)

    def advance(self, update: Update) -> Outcome:
        """x is moved if all its tensors have the same rate, and stays if the flag is up."""
        v, memory, indices = update.v, update.memory, update.indices
        if update.form is None or memory is None or indices is None:
            return PLAIN.advance(update)
        flag = update.flag or Flag(torch.zeros(1, dtype=torch.int64, device=v.device), 1 << 32)
        scale = update.scale.to(v.device) if isinstance(update.scale, Tensor) else update.scale
        top, random = indices[: update.k1], indices[update.k1 :]
        vectors.advance(v, update.v_anchor, memory, top, random, update.values, scale, update.decay, update.form, *flag)
        for p in update.params:
            p.grad = None  # that of the closure: its memory is needed for v
        gradients = None
        if update.rates is not None and len(set(update.rates)) == 1:
            gradients = self._move(update, update.rates[0], flag.raised)
        return Outcome(update.flag is not None or not bool(flag.raised), gradients)

    def take(self, source: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
        if not is_grouped(out):
            entries.take_entries(source, indices, out, add)
        elif out.shape[2] == 1 and out.is_contiguous():  # columns; torch copies whole rows as fast
            entries.take_single_groups(source, indices, out, add)
        else:
            PLAIN.take(source, indices, out, add)

    def carry(self, old: Tensor, new: Tensor, values: Sequence[Tensor], entering: Sequence[Tensor]) -> list[Tensor]:
        return (PLAIN.carry if is_grouped(values[0]) else entries.carry_values)(old, new, values, entering)

    def refresh(self, parts: Sequence[Entries]) -> None:
        self._through(parts, False)

    def write_through(self, parts: Sequence[Entries]) -> None:
        self._through(parts, True)

    def step(self, rule: Rule, steps: Sequence[Step]) -> None:
        """One launch for all parameters of one kind."""
        for kinds, alike in _by(kinds_of, steps).items():
            take_steps(self._table("steps", kinds, rows_of(alike), alike[0].param.device), rule, alike)

    def _through(self, parts: Sequence[Entries], write: bool) -> None:
        for kinds, alike in _by(entries.dtypes_of, parts).items():
            rows = list(map(entries.row_of, alike))
            entries.pass_through(self._table("entries", kinds, rows, alike[0].weight.device), write)

    def _table(self, of: str, kinds: entries.Kinds, rows: list[list[int]], device: torch.device) -> entries.Table:
        """The last one, if it has these rows."""
        table = self._tables.get((of, kinds))
        if table is None or table.given != rows:
            table = self._tables[of, kinds] = entries.Table(rows, kinds, device)
        return table

    def _move(self, update: Update, rate: float, flag: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in update.params]
        flat = self._flat_tensors("write", sizes, update.v.device)
        gradient = torch.empty_like(update.v)
        params = [p.detach() for p in update.params]
        vectors.move(flat, flat.table(params), gradient, update.v, rate, flag)
        return [part.view(p.shape) for part, p in zip(gradient.split(sizes), params, strict=True)]

    def _flat_tensors(self, use: str, sizes: Sequence[int], device: torch.device) -> vectors.FlatTensors:
        key = use, tuple(sizes), device
        if key not in self._flats:
            self._flats[key] = vectors.FlatTensors(sizes, device)
        return self._flats[key]


T = TypeVar("T")


def _by(kinds: Callable[[T], entries.Kinds], things: Sequence[T]) -> dict[entries.Kinds, list[T]]:
    found: dict[entries.Kinds, list[T]] = defaultdict(list)
    for thing in things:
        found[kinds(thing)].append(thing)
    return found
