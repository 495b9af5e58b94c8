"""Hashes of vectors, compiled by numba."""
# pyright: reportMissingImports=false

from __future__ import annotations

import numpy as np

from spidersilk.kernels.numba.scalars import compiled, mixed


@compiled
def sum_of_hashes(words, first):
    """The sum of splitmix64's finaliser over (word + place times the golden ratio); places are counted from 1."""
    total = np.uint64(0)
    for i in range(words.size):
        total += mixed(np.uint64(words[i]) + np.uint64(first + i + 1) * np.uint64(0x9E3779B97F4A7C15))
    return np.int64(total)
