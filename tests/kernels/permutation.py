"""The draw of `the Triton kernels` in torch, for many positions at once: what the kernel must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def philox(seed: int, positions: Tensor) -> list[Tensor]:
    """Philox4x32-10 with the counter (position, 0, 0, 0) and the key `seed`."""
    c = [positions & _WORD, positions >> 32, positions * 0, positions * 0]
    keys = [seed & _WORD, seed >> 32]
    for _ in range(10):
        high_a, low_a = _multiply(0xD2511F53, c[0])
        high_b, low_b = _multiply(0xCD9E8D57, c[2])
        c = [high_b ^ c[1] ^ keys[0], low_b, high_a ^ c[3] ^ keys[1], low_a]
        keys = [(keys[0] + 0x9E3779B9) & _WORD, (keys[1] + 0xBB67AE85) & _WORD]
    return c


def drawn(seed: int, positions: Tensor, rest: Tensor, k2: int) -> Tensor:
    """The k2 of the coordinates `rest` drawn at each position, (positions, k2), ascending."""
    words = [word[:, None] for word in philox(seed, positions)[2:]]
    key = (words[0] + (rest >> 32) * 0x9E3779B9) & _WORD
    numbers = _hash(_multiply_both((rest & _WORD) ^ key, words[1] | 1)) >> 1
    pairs = (numbers << 32) | torch.arange(len(rest))
    return rest[pairs.topk(k2, dim=1, largest=False).indices].sort(dim=1).values


def _hash(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x = _multiply(0x7FEB352D, x)[1]
    x = x ^ (x >> 15)
    x = _multiply(0x846CA68B, x)[1]
    return x ^ (x >> 16)


def _multiply_both(a: Tensor, b: Tensor) -> Tensor:
    """The low word of the product of 32-bit numbers, in int64."""
    return ((((a >> 16) * b & 0xFFFF) << 16) + (a & 0xFFFF) * b) & _WORD


def _multiply(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of the product of two 32-bit numbers, in int64."""
    low, high = (a & 0xFFFF) * b, (a >> 16) * b
    total = (high & 0xFFFF) * 65536 + low
    return (high >> 16) + (total >> 32), total & _WORD
