"""Many workers: what users call, under the name that they know; the folder is `spidersilk.parallel`."""

from spidersilk.parallel.agreement import DisagreementError
from spidersilk.parallel.all_reduce import WorkerLostError
from spidersilk.parallel.launch import broadcast, join, leave
from spidersilk.parallel.workers import Group, Traffic

__all__ = ["DisagreementError", "Group", "Traffic", "WorkerLostError", "broadcast", "join", "leave"]
