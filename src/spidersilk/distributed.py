"""`spidersilk.parallel` under the name that users know."""

from spidersilk.parallel.workers import DisagreementError, Group, Traffic, WorkerLostError, broadcast, join, leave

__all__ = ["DisagreementError", "Group", "Traffic", "WorkerLostError", "broadcast", "join", "leave"]
