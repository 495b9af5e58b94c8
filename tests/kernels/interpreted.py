"""Makes Triton's interpreter fast enough for kernels of many small functions. Use it in a separate process."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter


class _Kept:
    def restore(self) -> None:
        pass


def prepare() -> None:
    """Patch Triton's language once for each module: the interpreter does so at each call, which takes milliseconds.

    And let loop bounds be read from tensors, which NumPy 2.4 forbids to Triton 3.6.
    """
    patch_all, patch_tensor, done = interpreter._patch_lang, interpreter._patch_lang_tensor, set()

    def with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    def once(function: Any) -> _Kept:
        if function.__module__ not in done:
            done.add(function.__module__)
            patch_all(function)
        return _Kept()

    interpreter._patch_lang_tensor = with_index
    interpreter._patch_lang = once
