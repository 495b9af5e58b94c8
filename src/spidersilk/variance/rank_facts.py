"""What ranks that train together must hold alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spidersilk.loop.counter import LoopCounter
from spidersilk.operator.random_stream import Stream
from spidersilk.parallel.agreement import Fact, checksum_of, hash_of
from spidersilk.variance.engine import Engine


def facts_of(
    engine: Engine,
    loop: LoopCounter,
    stream: Stream,
    param_groups: Sequence[dict[str, Any]],
    settings: object,
    has_hooks: bool,
) -> list[Fact]:
    """What ranks compare at an anchor: with these alike, all selections until the next one are alike."""
    rates = [[str(g.get(name)) for name in ("lr", "weight_decay")] for g in param_groups]
    memories = engine.vectors.memory if engine.vectors.has_memory else []
    selections = engine.selections or []
    drift = "they were the same before; ranks on unlike hardware, or a parameter changed on one of them"
    return [
        Fact(
            "their settings",
            hash_of([settings, engine.dimensions]),
            "construct the same optimizer over the same parameters on every rank",
        ),
        Fact(
            "the seed of selections",
            stream.seed,
            "give every rank a generator of the same seed; without a generator, rank 0's seed goes to all",
        ),
        Fact(
            "the number of steps",
            hash_of([loop.steps, loop.anchors, loop.inner_step, loop.loop_length, stream.position]),
            "every rank must take every step, and load the same state",
        ),
        Fact("the step size", hash_of(rates), "step the same schedulers on every rank"),
        Fact(
            "the samples they counted",
            hash_of(loop.queries),
            "batches of unequal size are weighed by what an AnchorLoader(process_group=) yields; pass it on, or give "
            "every rank the same number",
        ),
        Fact(
            "whether a measures hook is registered",
            int(has_hooks),
            "register it on every rank: measures are of all ranks together",
        ),
        Fact(
            "the parameters",
            checksum_of(engine.vectors.params),
            "start from the same ones (torch.manual_seed before the model is built, spidersilk.distributed.broadcast, "
            "or DistributedDataParallel)"
            if loop.steps == 0
            else drift,
        ),
        Fact("the memory M", checksum_of(memories), drift),
        Fact("the selection", checksum_of([t for s in selections for t in (s.top, s.random)]), drift),
    ]
