"""AnchorLoader: large batch, small batches, large batch ... with sampling that resumes anywhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from spidersilk.checks import Form, check_choice, check_positive_int, check_same_settings, check_saved
from spidersilk.loop.datasets import as_tensors, checksum_of_data, count_samples, subset
from spidersilk.loop.lengths import Adaptive, Fixed, InnerLength, as_inner_length
from spidersilk.loop.markers import Anchor, Marker, Small
from spidersilk.operator.random_stream import generator_at, mix
from spidersilk.parallel.agreement import Fact, hash_of
from spidersilk.parallel.workers import Group, Portion, as_workers

_ANCHOR, _SMALL, _LENGTH = 1, 2, 3  # one stream each
_ENDLESS = 10**12  # loops
_UNSEEN = 100  # small batches that nobody looked at


class Position(NamedTuple):
    """Where the loader stands: the next batch to be given is `piece` of update `update` of outer loop `loop`."""

    loop: int = 0
    update: int = 0
    piece: int = 0
    small_batches: int = 0  # given so far, over all loops
    last_loop: int = 0  # the iteration under way ends before this loop
    visited: int = 0  # samples given in the iteration under way, where the loops' lengths are adaptive


class AnchorLoader:
    """Yields `(batch, is_anchor)`: one anchor batch, then the small batches of its inner loop, and so on.

    Pass `is_anchor` on to `optimizer.step(closure, anchor=is_anchor)`, as it is. It is False for a small batch (with
    adaptive loops an object that is false) and an `Anchor` (which is true) for an anchor.

    dataset: a map-style data set, a TensorDataset, a tensor, or a tuple of tensors. Tensors are indexed where they lie,
        on CPU or GPU, with no workers and no collation; anything else goes through torch's DataLoader.
    anchor_batch_size: B; None is the whole data set, given as it is, in order.
    batch_size: b.
    inner_steps: the number of updates in an outer loop, the anchor's own included: an int, `Geometric(mean)`, or
        "auto": the optimizer ends a loop when its estimate has become too noisy (`Adaptive(...)` sets how noisy).
    micro_batch_size: an anchor larger than this comes in pieces. The same closure sees each piece; the optimizer sums
        them weighted by their size and moves at the last one, so the result is that of the whole batch for a loss that
        is a mean over samples.
    sampling: "uniform" draws every batch afresh, without replacement inside a batch (the paper); "shuffle" goes through
        shuffled passes, one for anchors and one for small batches, leaving out what does not fill a batch.
    loops: outer loops in one iteration over the loader; None is as many as visit about len(dataset) samples.
    generator: gives the seed of all sampling; torch's default one if None.
    process_group: splits each batch over the ranks of a ProcessGroup, or of "world": sizes stay those of the whole
        batch, and its samples do not depend on the number of ranks. Give the optimizer the same one.
    num_workers, collate_fn, pin_memory and other keywords go to DataLoader, for data sets that are not tensors.

    `state_dict` and `load_state_dict` resume in the middle of an inner loop, to the batch.
    """

    def __init__(
        self,
        dataset: Dataset | Tensor | Sequence[Tensor],
        anchor_batch_size: int | None,
        batch_size: int,
        inner_steps: int | str | InnerLength,
        *,
        micro_batch_size: int | None = None,
        sampling: str = "uniform",
        loops: int | None = None,
        generator: torch.Generator | None = None,
        process_group: Group = None,
        **dataloader: Any,
    ):
        self._tensors = as_tensors(dataset)
        self._size = count_samples(dataset)
        self.dataset = dataset
        self.anchor_batch_size = self._size if anchor_batch_size is None else anchor_batch_size
        self.batch_size = batch_size
        self.micro_batch_size = micro_batch_size
        check_positive_int("anchor_batch_size", self.anchor_batch_size, "None takes the whole data set")
        check_positive_int("batch_size", batch_size, "it is the size of the small batches")
        for name, value in (("batch_size", batch_size), ("anchor_batch_size", self.anchor_batch_size)):
            if value > self._size:
                raise ValueError(f"{name} = {value} exceeds the data set's {self._size} samples: lower it")
        if micro_batch_size is not None:
            check_positive_int("micro_batch_size", micro_batch_size, "None gives each anchor in one piece")
        check_choice("sampling", sampling, ("uniform", "shuffle"))
        self.sampling = sampling
        self.inner_length = as_inner_length(inner_steps)
        self.loops = loops
        if loops is not None:
            check_positive_int("loops", loops, "None visits about len(dataset) samples in one iteration")
        elif not isinstance(self.inner_length, Adaptive):
            per_loop = self.anchor_batch_size + batch_size * max(self.inner_length.mean - 1, 0)
            self.loops = max(1, round(self._size / per_loop))
        if self._tensors and dataloader:
            names = ", ".join(dataloader)
            raise ValueError(f"{names}: tensors are indexed directly, without a DataLoader; leave these out")
        self._dataloader = dataloader
        self._workers = as_workers(process_group)
        self._seed = self._workers.seed(generator)
        self._position = Position()
        self._resumed = False
        self._passes: dict[int, tuple[int, Tensor]] = {}
        self._checksum: int | None = None  # of the data, where ranks compare it

    def __iter__(self) -> Iterator[tuple[Any, Marker]]:
        if not self._resumed:
            first = self._position.loop + (self._position.update > 0 or self._position.piece > 0)
            last = first + (self.loops or _ENDLESS)
            self._position = self._position._replace(loop=first, update=0, piece=0, last_loop=last, visited=0)
        self._resumed = False
        self._workers.verify(self._facts)
        if isinstance(self.inner_length, Adaptive):
            yield from self._adaptively(self.inner_length)
            return
        for batch, (is_anchor, after) in self._source(self._steps_from(self._position)):
            self._position = after
            yield batch, is_anchor

    def __len__(self) -> int:
        """Batches in one iteration; a loader with random lengths has no length."""
        if not isinstance(self.inner_length, Fixed):
            raise TypeError("an AnchorLoader with geometric or adaptive loops has no fixed number of batches")
        assert self.loops is not None
        return self.loops * (len(self._pieces()) + self.inner_length.mean - 1)

    def split_over(self, process_group: Group) -> None:
        """Split batches over these ranks from now on; what `process_group=` does."""
        self._workers = as_workers(process_group)

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self._seed, "position": self._position._asdict(), "settings": self._settings()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch after the last one that was given when the state was taken."""
        position: Form = dict.fromkeys(Position._fields, int)
        check_saved("the loader's state", state, {"seed": int, "position": position, "settings": dict})
        check_same_settings(self._settings(), state["settings"], "construct the same loader")
        at = Position(*(state["position"][name] for name in Position._fields))
        if min(at) < 0:
            raise ValueError(f"the loader's state has the negative {at}: it is damaged")
        self._seed, self._position = state["seed"], at
        done = self.loops is None and at.update == 0 and at.piece == 0 and at.visited >= self._size  # an adaptive one
        self._resumed = at.loop < at.last_loop and not done
        self._passes.clear()

    def _settings(self) -> dict[str, Any]:
        """What decides which samples come when; `loops` may change between iterations."""
        names = ("anchor_batch_size", "batch_size", "micro_batch_size", "sampling")
        more = {"samples": self._size, "inner_steps": repr(self.inner_length)}
        return {name: getattr(self, name) for name in names} | more

    def _facts(self) -> list[Fact]:
        """What ranks that split batches must hold alike."""
        settings = self._settings() | {"loops": self.loops}
        if self._checksum is None:
            self._checksum = checksum_of_data(self.dataset, self._draw(_ANCHOR, 0, self.anchor_batch_size))
        return [
            Fact("the settings of their loaders", hash_of(settings), "construct the same AnchorLoader on every rank"),
            Fact(
                "the seed of their batches",
                self._seed,
                "give every rank's AnchorLoader a generator of the same seed; without one, rank 0's seed goes to all",
            ),
            Fact("the batch they are at", hash_of(self._position), "load the same loader state on every rank"),
            Fact("the data of an anchor", self._checksum, "give every rank the same data, in the same order"),
        ]

    def _mine(self, indices: Tensor | None, total: int) -> tuple[Tensor | None, Portion | None]:
        """This rank's part of the samples at `indices` (None: the whole data set), in `total`."""
        rank, world = self._workers.rank, self._workers.world
        if world == 1:
            return indices, None
        start, stop = total * rank // world, total * (rank + 1) // world
        portion = Portion(stop - start, total, total % world == 0)
        if start == stop:  # one sample that counts nothing, so that each rank has a batch to evaluate
            start, stop = min(start, total - 1), min(start, total - 1) + 1
        return torch.arange(start, stop) if indices is None else indices[start:stop], portion

    def _pieces(self) -> list[tuple[int, int]]:
        size = self.micro_batch_size or self.anchor_batch_size
        return [(i, min(i + size, self.anchor_batch_size)) for i in range(0, self.anchor_batch_size, size)]

    def _steps_from(self, position: Position) -> Iterator[tuple[Tensor | None, tuple[Marker, Position]]]:
        """For each batch still to come its indices (None: the whole data set), and marker and position after it."""
        loop, update, piece, smalls, last_loop, _ = position
        assert not isinstance(self.inner_length, Adaptive)
        while loop < last_loop:
            length = self.inner_length.length(mix(self._seed, _LENGTH), loop)
            following = Position(loop + 1, 0, 0, smalls, last_loop)
            if update == 0:
                for number, (part, marker) in enumerate(self._anchor(loop, piece, length == 0), piece):
                    after = Position(loop, 1, 0, smalls, last_loop) if length > 1 else following
                    yield part, (marker, after if marker.last else Position(loop, 0, number + 1, smalls, last_loop))
                update, piece = 1, 0
            for number in range(update, length):
                indices, portion = self._mine(self._draw(_SMALL, smalls, self.batch_size), self.batch_size)
                smalls += 1
                is_last = number + 1 == length
                marker = False if portion is None else portion
                yield indices, (marker, Position(loop + is_last, 0 if is_last else number + 1, 0, smalls, last_loop))
            loop, update = loop + 1, 0

    def _anchor(self, loop: int, piece: int, idle: bool = False) -> Iterator[tuple[Tensor | None, Anchor]]:
        """The pieces of a loop's anchor from number `piece` on: indices (None: the whole data set) and marker."""
        pieces = self._pieces()
        indices = self._draw(_ANCHOR, loop, self.anchor_batch_size)
        for number, (start, stop) in enumerate(pieces[piece:], piece):
            share = (stop - start) / self.anchor_batch_size
            piece_of_all = None if len(pieces) == 1 else torch.arange(start, stop)
            mine, portion = self._mine(piece_of_all if indices is None else indices[start:stop], stop - start)
            yield mine, Anchor(share, number == 0, number == len(pieces) - 1, idle, portion)

    def _adaptively(self, rule: Adaptive) -> Iterator[tuple[Any, Anchor | Small]]:
        """Loops that end when the optimizer says so. Anchors and small batches come from a source each, so that workers
        can prepare both ahead and nothing that was prepared goes to waste."""
        loop, _, piece, smalls, *_ = self._position
        if self._position.update > 0:
            loop, piece = loop + 1, 0
        anchors = self._source(part for j in count(loop) for part in self._anchor(j, piece if j == loop else 0))
        small = self._source(self._mine(self._draw(_SMALL, i, self.batch_size), self.batch_size) for i in count(smalls))

        def end_loop() -> None:
            if self._position.update:
                self._position = self._position._replace(loop=self._position.loop + 1, update=0)

        unseen = 0

        while True:
            at = self._position
            if at.update == 0:
                if at.piece == 0 and (at.loop >= at.last_loop or (self.loops is None and at.visited >= self._size)):
                    return
                batch, marker = next(anchors)
                visited = at.visited + round(marker.weight * self.anchor_batch_size)
                after = at._replace(update=int(marker.last), piece=0 if marker.last else at.piece + 1, visited=visited)
                self._position = after
                if marker.last and rule.ceiling == 1:
                    end_loop()
                yield batch, marker
            else:
                batch, portion = next(small)
                given = at._replace(small_batches=at.small_batches + 1, visited=at.visited + self.batch_size)
                self._position = given._replace(update=at.update + 1)
                if rule.ceiling is not None and self._position.update >= rule.ceiling:
                    end_loop()
                marker = Small(rule, self.batch_size, self.anchor_batch_size, end_loop, portion)
                yield batch, marker
                unseen = 0 if marker.seen else unseen + 1
                if unseen == _UNSEEN:
                    raise RuntimeError(
                        f"no optimizer saw the last {_UNSEEN} small batches, so nothing ends this loop: pass what the "
                        "loader yields on as it is, optimizer.step(closure, anchor=is_anchor)"
                    )

    def _source(self, drawn: Iterator[tuple[Tensor | None, Any]]) -> Iterator[tuple[Any, Any]]:
        """Batches for indices, each with what came with them."""
        if self._tensors:
            for indices, marker in drawn:
                yield self._take(indices), marker
            return
        ahead: deque[Any] = deque()  # of batches that workers are preparing

        def index_lists() -> Iterator[list[int]]:
            for indices, marker in drawn:
                ahead.append(marker)
                yield list(range(self._size)) if indices is None else indices.tolist()

        # The base seed of the workers comes from a generator of its own, so that iterating leaves the global one alone.
        options: dict[str, Any] = {"generator": generator_at("cpu", self._seed, *self._position), **self._dataloader}
        for batch in DataLoader(self.dataset, batch_sampler=index_lists(), **options):  # pyright: ignore
            yield batch, ahead.popleft()

    def _draw(self, stream: int, number: int, size: int) -> Tensor | None:
        """The indices of batch `number` of a stream: a function of the seed and the number alone."""
        n = self._size
        if size == n:
            return None
        if self.sampling == "uniform":
            return subset(n, size, generator_at("cpu", self._seed, stream, number))
        number_of_pass, slot = divmod(number, n // size)
        if self._passes.get(stream, (-1, None))[0] != number_of_pass:
            order = torch.randperm(n, generator=generator_at("cpu", self._seed, stream, number_of_pass))
            self._passes[stream] = (number_of_pass, order)
        return self._passes[stream][1][slot * size : (slot + 1) * size]

    def _take(self, indices: Tensor | None) -> Tensor | tuple[Tensor, ...]:
        assert self._tensors is not None
        if indices is None:
            batch = tuple(self._tensors)
        else:
            batch = tuple(t.index_select(0, indices.to(t.device, non_blocking=True)) for t in self._tensors)
        return batch[0] if isinstance(self.dataset, Tensor) else batch
