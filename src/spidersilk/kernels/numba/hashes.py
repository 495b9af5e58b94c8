"""Hashes of vectors, compiled by numba."""
# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np

from spidersilk.kernels.numba.scalars import compiled

_GOLDEN, _FIRST, _SECOND = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@compiled
def sum_of_hashes(words, first):
    """The sum of splitmix64's finaliser over (word + place times the golden ratio); places are counted from 1."""
    total = np.uint64(0)
    for i in range(words.size):
        word = np.uint64(words[i]) + np.uint64(first + i + 1) * _GOLDEN
        word = (word ^ (word >> np.uint64(30))) * _FIRST
        word = (word ^ (word >> np.uint64(27))) * _SECOND
        total += word ^ (word >> np.uint64(31))
    return np.int64(total)
