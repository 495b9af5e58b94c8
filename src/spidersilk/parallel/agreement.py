"""Do all ranks hold the same? A few integers from each, compared; the error names the ranks that differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class DisagreementError(RuntimeError):
    """Ranks differ in what they must share, so their selections or parameters would not be the same.

    `ranks` are those that differ from most, or from rank 0 where there is no majority; `what` says in what.
    """

    def __init__(self, what: str, ranks: Sequence[int], world: int, remedy: str):
        self._arguments = (what, ranks, world, remedy)
        self.what, self.ranks = what, list(ranks)
        names = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        verb = "differs" if len(ranks) == 1 else "differ"
        super().__init__(f"{names} of {world} {verb} from the others in {what}: {remedy}")

    def __reduce__(self) -> tuple:
        return type(self), self._arguments


class Fact(NamedTuple):
    """Something that all ranks must hold alike, as an integer, and what to do where they do not."""

    what: str
    value: int | Tensor
    remedy: str


def compare(facts: Sequence[Fact], answers: Sequence[Sequence[int]]) -> None:
    """Raise for the first fact on which not all ranks agree; `answers` has a row of values for each rank."""
    for fact, values in zip(facts, zip(*answers, strict=True), strict=True):
        counts = Counter(values).most_common(2)
        if len(counts) > 1:
            usual = values[0] if counts[0][1] == counts[1][1] else counts[0][0]
            wrong = [rank for rank, value in enumerate(values) if value != usual]
            raise DisagreementError(fact.what, wrong, len(values), fact.remedy)


def hash_of(value: object) -> int:
    """63 bits of anything with a `repr` that tells it."""
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest(), "big") >> 1


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 22  # words worked on at a time
_GOLDEN, _FIRST, _SECOND = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def checksum_of(tensors: Sequence[Tensor]) -> Tensor | int:
    """One integer of the bits of all `tensors` and their places; on the first one's device, without a wait for it."""
    if not tensors:
        return 0
    return checksum(torch.stack([checksum(t).to(tensors[0].device) for t in tensors]))


def checksum(x: Tensor) -> Tensor:
    """The sum, in 64 bits, of a hash of each word of the bits and its place."""
    bits = x.detach().reshape(-1).view(_BITS[x.element_size()])
    share = 8 // x.element_size()  # of a word
    whole = bits.numel() // share * share
    head, tail = bits[:whole], bits[whole:].long()
    if head.storage_offset() % share:
        head = head.clone()  # a word cannot begin there
    head = head.view(torch.int64)
    return _sum_of_hashes(head, 0) + _sum_of_hashes(tail, head.numel())


def _sum_of_hashes(words: Tensor, first: int) -> Tensor:
    """`first` is the place of the first word."""
    if words.device.type == "cpu":
        from spidersilk.kernels.numba import hashes as numba_hashes  # not before it is needed: the import takes a while

        return torch.tensor(numba_hashes.sum_of_hashes(words.numpy(), first), dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        places = torch.arange(first + start + 1, first + start + 1 + part.numel(), device=words.device)
        total += mixed(part + places * _GOLDEN).sum()
    return total


def mixed(words: Tensor) -> Tensor:
    """The finaliser of splitmix64: each bit of a word reaches all of them. Shifts are those of unsigned numbers."""
    words = (words ^ (words >> 30 & (1 << 34) - 1)) * _FIRST
    words = (words ^ (words >> 27 & (1 << 37) - 1)) * _SECOND
    return words ^ (words >> 31 & (1 << 33) - 1)
