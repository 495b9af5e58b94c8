"""The kernels on CUDA. Nothing waits for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from spidersilk.kernels.interface import Entries, Flag, Outcome, Rule, Seed, Step, Tensors, Update
from spidersilk.kernels.plain import PLAIN
from spidersilk.kernels.triton import entries, plan, vectors
from spidersilk.kernels.triton.steps import StepTable, dtypes_of, rows_of


class TritonKernels:
    """See `interface.Kernels`. Keeps tables of addresses, so there is one for each optimizer."""

    draws_on_device = True
    refuses_non_finite = False

    def __init__(self) -> None:
        self._steps: dict[tuple[torch.dtype, ...], StepTable] = {}
        self._entries: dict[torch.dtype, entries.EntryTable] = {}
        self._tables: dict[tuple[str, tuple[int, ...], torch.device], vectors.FlatTensors] = {}

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

    def take(self, vector: Tensor, indices: Tensor, out: Tensor, add: bool) -> None:
        entries.take_entries(vector, indices, out, add)

    def carry(self, old: Tensor, new: Tensor, values: Sequence[Tensor], entering: Sequence[Tensor]) -> list[Tensor]:
        return entries.carry_values(old, new, values, entering)

    def refresh(self, parts: Sequence[Entries]) -> None:
        self._through(parts, False)

    def write_through(self, parts: Sequence[Entries]) -> None:
        self._through(parts, True)

    def step(self, rule: Rule, steps: Sequence[Step]) -> None:
        """One launch for all parameters whose weights, indices and values are of the same dtypes."""
        by_dtypes: dict[tuple[torch.dtype, ...], list[Step]] = defaultdict(list)
        for given in steps:
            by_dtypes[dtypes_of(given)].append(given)
        for dtypes, alike in by_dtypes.items():
            table, rows = self._steps.get(dtypes), rows_of(alike)
            if table is None or table.rows != rows:
                table = self._steps[dtypes] = StepTable(alike, rows)
            table.go(rule, alike)

    def _through(self, parts: Sequence[Entries], write: bool) -> None:
        """One launch for all weights whose indices are of one dtype."""
        for dtype in dict.fromkeys(part.indices.dtype for part in parts):
            alike = [part for part in parts if part.indices.dtype == dtype]
            table = self._entries.get(dtype)
            if table is None or table.addresses != entries.addresses_of(alike):
                table = self._entries[dtype] = entries.EntryTable(alike)
            table.go(write)

    def _move(self, update: Update, rate: float, flag: Tensor) -> list[Tensor]:
        sizes = [p.numel() for p in update.params]
        flat = self._flat_tensors("write", sizes, update.v.device)
        gradient = torch.empty_like(update.v)
        params = [p.detach() for p in update.params]
        vectors.move(flat, flat.table(params), gradient, update.v, rate, flag)
        return [part.view(p.shape) for part, p in zip(gradient.split(sizes), params, strict=True)]

    def _flat_tensors(self, use: str, sizes: Sequence[int], device: torch.device) -> vectors.FlatTensors:
        key = use, tuple(sizes), device
        if key not in self._tables:
            self._tables[key] = vectors.FlatTensors(sizes, device)
        return self._tables[key]
