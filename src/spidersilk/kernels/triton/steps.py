"""SGD's and AdamW's step on many parameters in one Triton launch, with what comes before and after it.

A table on the device has a row for each parameter: where its values come from (`entries.origin`; the weight's address
is 0 for one that is no copy), then the addresses of its state and of the count of steps. What changes at each step is
sent along: the addresses of the gradients, which numbers (the step size and so on) are whose, and these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from spidersilk.kernels.interface import Rule, Step
from spidersilk.kernels.triton.entries import Kinds, Table, dtypes_of, origin, row_of
from spidersilk.kernels.triton.launch import launch

ROW: tl.constexpr = tl.constexpr(12)  # columns of the table: those of `entries.origin`, and three for state
NUMBERS: tl.constexpr = tl.constexpr(8)  # for each group


@triton.jit
def _number(numbers_ptr, which: tl.constexpr, dtype: tl.constexpr):
    return tl.load(numbers_ptr + which).to(tl.float64, bitcast=True).to(dtype)


@triton.jit
def _sgd(x, g, numbers, momentum_at, place, mask, like_ptr):
    """As torch.optim.SGD, with a momentum that is there."""
    lr, decay = _number(numbers, 0, x.dtype), _number(numbers, 3, x.dtype)
    momentum, dampening = _number(numbers, 1, x.dtype), _number(numbers, 2, x.dtype)
    nesterov = _number(numbers, 4, x.dtype)
    g = _number(numbers, 5, x.dtype) * g + decay * x
    there = mask & (momentum_at != 0)
    places = momentum_at.to(like_ptr.dtype) + place
    if momentum_at != 0:
        average = momentum * tl.load(places, mask=there, other=0) + (1 - dampening) * g
        tl.store(places, average, mask=there)
        g = tl.where(nesterov != 0, g + momentum * average, average)
    return x - lr * g


@triton.jit
def _adamw(x, g, numbers, average_at, square_at, count_at, place, mask, like_ptr):
    """As torch.optim.AdamW. Both corrections are computed in float64, from the logarithms of the betas."""
    lr, eps, decay = _number(numbers, 0, x.dtype), _number(numbers, 3, x.dtype), _number(numbers, 4, x.dtype)
    beta1, beta2 = _number(numbers, 1, x.dtype), _number(numbers, 2, x.dtype)
    g = _number(numbers, 5, x.dtype) * g
    count = tl.load(count_at.to(tl.pointer_type(tl.float32))).to(tl.float64)
    correction1 = 1 - tl.exp(count * _number(numbers, 6, tl.float64))
    correction2 = 1 - tl.exp(count * _number(numbers, 7, tl.float64))
    averages, squares = average_at.to(like_ptr.dtype) + place, square_at.to(like_ptr.dtype) + place
    old1, old2 = tl.load(averages, mask=mask, other=0), tl.load(squares, mask=mask, other=0)
    average = old1 + (1 - beta1) * (g - old1)
    square = beta2 * old2 + (1 - beta2) * g * g
    tl.store(averages, average, mask=mask)
    tl.store(squares, square, mask=mask)
    root = tl.sqrt(square) / tl.sqrt(correction2).to(x.dtype)
    return x - lr * decay * x - (lr / correction1.to(x.dtype)) * average / (root + eps)


@triton.jit(do_not_specialize=["count"])
def step(
    tiles_ptr, table_ptr, sent_ptr, weight_ptr, indices_ptr, value_ptr, count, ADAMW: tl.constexpr,
    GROUPED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of one of `count` parameters. The last three pointers say which dtypes there are."""
    number = tl.load(tiles_ptr + 2 * tl.program_id(0))
    start, lanes = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1), tl.arange(0, TILE)
    place = start + lanes
    row = table_ptr + ROW * number
    numbers = sent_ptr + 2 * count + NUMBERS * tl.load(sent_ptr + count + number)
    mask = place < tl.load(row + 3)
    values = tl.load(row + 2).to(value_ptr.dtype) + place
    x = tl.load(values, mask=mask, other=0)
    g = tl.load(tl.load(sent_ptr + number).to(value_ptr.dtype) + place, mask=mask, other=0)
    weight = tl.load(row)
    copied = mask & (weight != 0)
    entry = weight.to(weight_ptr.dtype) + origin(row, start, lanes, copied, indices_ptr, GROUPED)
    held = tl.load(entry, mask=copied, other=0)
    x = tl.where(copied & (x.to(held.dtype) != held), held.to(x.dtype), x)
    if ADAMW:
        x = _adamw(
            x, g, numbers, tl.load(row + 9), tl.load(row + 10), tl.load(row + 11), place, mask, value_ptr
        )  # fmt: skip
    else:
        x = _sgd(x, g, numbers, tl.load(row + 9), place, mask, value_ptr)
    tl.store(values, x, mask=mask)
    tl.store(entry, x.to(held.dtype), mask=copied)


def take_steps(table: Table, rule: Rule, steps: Sequence[Step]) -> None:
    """A step of each parameter; the rows are those of `rows_of`."""
    programs = len(table.tiles)
    if not programs:
        return
    if rule == "adamw":
        torch._foreach_add_([given.state[2] for given in steps], 1)  # pyright: ignore[reportPrivateImportUsage]
    groups: dict[tuple[float, ...], int] = {}
    whose = [groups.setdefault(given.numbers, len(groups)) for given in steps]
    numbers = np.zeros((len(groups), NUMBERS.value))
    for group, given in enumerate(groups):
        logarithms = [math.log(b) if b > 0 else -math.inf for b in given[1:3]] if rule == "adamw" else []
        numbers[group, : len(given) + len(logarithms)] = [*given, *logarithms]
    gradients = [given.gradient.data_ptr() for given in steps]
    sent = np.concatenate([np.array([gradients, whose], np.int64).ravel(), numbers.ravel().view(np.int64)])
    tensors = table.tiles, table.rows, torch.from_numpy(sent).to(table.rows.device, non_blocking=True)
    key = "step", rule, programs, table.kinds, table.rows.get_device()
    options = {"ADAMW": rule == "adamw", "GROUPED": table.kinds[3], "TILE": table.tile}
    launch(key, step, programs, (*tensors, *table.like), (len(steps),), lambda: options)


def kinds_of(given: Step) -> Kinds:
    """Parameters with the same can share a table."""
    dtype = given.param.dtype
    return (dtype, torch.int32, dtype, False) if given.entries is None else dtypes_of(given.entries)


def rows_of(steps: Sequence[Step]) -> list[list[int]]:
    """Of the table."""
    rows = []
    for param, _, state, entries, _ in steps:
        copied = [0, 0, param.data_ptr(), param.numel(), 0, 0, 0, 0, 0] if entries is None else row_of(entries)
        rows.append(copied + [x.data_ptr() for x in state] + [0] * (3 - len(state)))
    return rows
