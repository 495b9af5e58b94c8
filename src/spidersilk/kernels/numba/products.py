"""Wanted entries of a product of two matrices, compiled by numba."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from spidersilk.kernels.numba.scalars import compiled

STRETCH = 2048  # entries
BLOCK = 128  # rows


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def _dot(a: Any, b: Any) -> Any:
    total = a[0] * b[0]
    for i in range(1, a.size):
        total += a[i] * b[i]
    return total


@compiled
def dots(left: Any, right: Any, places: Any, begin: Any, sign: Any, out: Any) -> None:
    """out[e] += sign <left[i], right[j]> for the e-th place begin + i width + j; places ascend, rows are not empty.

    Goes through `right` in blocks that stay in a cache while all rows of `left` pass by.
    """
    rows, width = left.shape[0], right.shape[0]
    cursors = np.empty(rows, np.int64)  # for each row, the first of its places that is not done
    e = 0
    for row in range(rows):
        while e < places.size and places[e] < begin + row * width:
            e += 1
        cursors[row] = e
    for block in range(0, width, BLOCK):
        for row in range(rows):
            row_begin = begin + row * width
            end = row_begin + min(block + BLOCK, width)
            e = cursors[row]
            while e < places.size and places[e] < end:
                out[e] += sign * _dot(left[row], right[places[e] - row_begin])
                e += 1
            cursors[row] = e


@compiled
def read_tile(tile: Any, places: Any, start: Any, begin: Any, sign: Any, out: Any) -> Any:
    """out[e] += sign tile[places[e] - begin] from e = start on, as far as the tile reaches; returns the next e."""
    end = begin + tile.size
    e = start
    while e < places.size and places[e] < end:
        out[e] += sign * tile[places[e] - begin]
        e += 1
    return e


@compiled
def shifted_dots(left: Any, right: Any, places: Any, begin: Any, taps: Any, shifts: Any, sign: Any, out: Any) -> None:
    """out[e] += sign <left[i], right[j] from shifts[t] on> for the e-th place begin + (i channels + j) taps + t.

    left is (rows, n); right is (channels, n + the largest shift). Places ascend. Both are read in stretches that stay
    in the first-level cache.
    """
    channels, n = right.shape[0], left.shape[1]
    width = channels * taps
    for start in range(0, n, STRETCH):
        stop = min(start + STRETCH, n)
        row, row_begin = 0, begin
        for e in range(places.size):
            place = places[e]
            while place >= row_begin + width:
                row += 1
                row_begin += width
            channel, tap = divmod(place - row_begin, taps)
            shift = shifts[tap]
            out[e] += sign * _dot(left[row, start:stop], right[channel, start + shift : stop + shift])
