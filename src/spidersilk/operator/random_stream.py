"""Random streams addressed by position: the n-th draw depends on the seed and on n, not on how many came before it.

A run resumes from two integers, and every worker that knows them draws the same numbers.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from spidersilk.checks import Form

_WORD = (1 << 64) - 1


def mix(*words: int) -> int:
    """Hash integers to a seed in [0, 2^63), by the finaliser of splitmix64 after each word.

    >>> mix(0, 1) != mix(1, 0)
    True
    """
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & _WORD
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _WORD
        state ^= state >> 31
    return state >> 1


def fresh_seed(generator: torch.Generator | None) -> int:
    """Take one seed from `generator` (torch's default one if None), advancing it."""
    if generator is not None and not isinstance(generator, torch.Generator):
        remedy = f"torch.Generator().manual_seed({generator})" if isinstance(generator, int) else "or None"
        raise ValueError(f"generator = {generator!r} must be a torch.Generator: {remedy}")
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device).item())


def generator_at(device: torch.device | str, *words: int) -> torch.Generator:
    """A generator on `device` whose numbers depend on `words` alone."""
    return torch.Generator(device=device).manual_seed(mix(*words))


class Stream:
    """A seed and a position; each `next` gives a seed for one draw and moves on by one.

    Where draws are made on a device, the position lives there: `counter` gives it to a kernel, which moves it on. So a
    captured CUDA graph draws anew at each replay.
    """

    FORM: ClassVar[Form] = {"seed": int, "position": int}

    def __init__(self, seed: int):
        self.seed = seed
        self._position = 0
        self._counter: torch.Tensor | None = None

    @property
    def position(self) -> int:
        """How many draws were made; waits for the device where they are made there."""
        return self._position if self._counter is None else int(self._counter[1])

    def next(self) -> int:
        self._position += 1
        return mix(self.seed, self._position)

    def counter(self, device: torch.device) -> torch.Tensor:
        """[seed, position] on the device, in int64."""
        if self._counter is None:
            self._counter = torch.tensor([self.seed & (_WORD >> 1), self._position], dtype=torch.int64, device=device)
        return self._counter

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed, self._position = state["seed"], state["position"]
        if self._counter is not None:  # in place: a captured graph goes on with it
            self._counter.copy_(torch.tensor([self.seed & (_WORD >> 1), self._position]))
