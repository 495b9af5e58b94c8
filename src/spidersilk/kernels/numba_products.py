"""Wanted entries of a product of two matrices, compiled by numba."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numba

from spidersilk.kernels.numba_scalars import compiled


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")
def _dot(a: Any, b: Any) -> Any:
    total = a[0] * b[0]
    for i in range(1, a.size):
        total += a[i] * b[i]
    return total


@compiled
def dots(left: Any, right: Any, places: Any, begin: Any, sign: Any, out: Any) -> None:
    """out[e] += sign <left[i], right[j]> for the e-th place begin + i width + j; places ascend, rows are not empty."""
    width = right.shape[0]
    row, row_begin = 0, begin
    for e in range(places.size):
        place = places[e]
        while place >= row_begin + width:
            row += 1
            row_begin += width
        out[e] += sign * _dot(left[row], right[place - row_begin])


@compiled
def read_tile(tile: Any, places: Any, start: Any, begin: Any, sign: Any, out: Any) -> Any:
    """out[e] += sign tile[places[e] - begin] from e = start on, as far as the tile reaches; returns the next e."""
    end = begin + tile.size
    e = start
    while e < places.size and places[e] < end:
        out[e] += sign * tile[places[e] - begin]
        e += 1
    return e
