"""The all-reduce among the workers of a group, and what it means if a worker does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor

SURE_SIGNS = ("/gloo/", "nccl error", "connection closed by peer", "connection reset by peer")
_SIGNS = (*SURE_SIGNS, "gloo", "nccl", "timed out", "timeout")  # where nothing but a collective can have failed


class WorkerLostError(RuntimeError):
    """Another worker of the group did not take part in a collective operation before the group's timeout."""


def begin_all_reduce(tensor: Tensor, group: dist.ProcessGroup, what: str) -> Callable[[], None]:
    """Tensor := its sum over the workers, in place, when what comes back has been called; `what` is said if a worker is
    lost meanwhile."""
    with answering(group, what):
        work = dist.all_reduce(tensor, group=group, async_op=True)

    def wait() -> None:
        assert work is not None
        with answering(group, what):
            work.wait()

    return wait


def all_reduce(tensors: Sequence[Tensor], group: dist.ProcessGroup, what: str) -> None:
    """The same for several, all at once, till they are done."""
    for wait in [begin_all_reduce(tensor, group, what) for tensor in tensors]:
        wait()


@contextmanager
def answering(group: dist.ProcessGroup, what: str, signs: Sequence[str] = _SIGNS) -> Iterator[None]:
    """Say what it means if a collective fails: torch's message is of sockets, and gloo's a plain RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip()
        from_gloo = type(error) is RuntimeError and any(sign in text.lower() for sign in signs)
        if not from_gloo and not isinstance(error, dist.DistError):
            raise
        rank, world = dist.get_rank(group), dist.get_world_size(group)
        raise WorkerLostError(
            f"a worker of the group stopped answering during {what} (this is rank {rank} of {world}): it was killed, "
            "raised an error of its own, or took longer than the group's timeout. This rank cannot go on without it: "
            "start again from the last checkpoint, or let torchrun do so (--max-restarts). torch: "
            + (text.splitlines()[0] if text else type(error).__name__)
        ) from error
