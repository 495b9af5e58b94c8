"""Whether a CUDA graph is being captured: nothing may wait for the device then, and host-side state is not replayed."""

from __future__ import annotations

import torch


def capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
