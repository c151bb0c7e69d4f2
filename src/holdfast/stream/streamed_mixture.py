"""A mixture some of whose children can be read forwards only: which child comes when is computed, the rest is read.

The choice of child at each position is the same pure, exact order as in any mixture. A child with random access gives
the sample that stands there. A streamed child gives whatever it has next: each process reads its own shards of it. So a
process's state is the positions left to it and the states of its streamed children, and the states of all processes
merge into one that any number of them can load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, EmptyPartitionError, StateError, StreamError
from holdfast.order import Order
from holdfast.sources import Columns, Source
from holdfast.sources.base import Indices
from holdfast.stream.dataset import READ_AT_ONCE, DatasetInfo, Leaf, Sample, TuneIterableDataset, states_of
from holdfast.stream.dataset_state import DATASET_STATE, check_fingerprint
from holdfast.stream.position_queue import PositionQueue, Run
from holdfast.stream.reader import Reader
from holdfast.stream.share import Share, share_of_process
from holdfast.versioned import Count, Format

__all__ = ["StreamedMixture", "streamed_leaf"]

_ENDED = object()


class _ReadForwards(Source):
    """Stands in an order for what can be read forwards only: as far as anyone will read, whatever comes next."""

    def __len__(self) -> int:
        return 1 << 62

    def read(self, indices: Indices) -> Columns:
        raise ConfigError("this can be read forwards only")


def streamed_leaf(name: str) -> Leaf:
    """Return the leaf by which the order of a mixture knows a streamed child."""
    return Leaf(name, _ReadForwards(), shuffle="none")


@dataclass(frozen=True, slots=True)
class StreamedMixtureState:
    """What is left to one process of a mixture with streamed children; see ``PositionQueue``.

    ``children`` are the states of all children, nested as they are; those of streamed ones are their own.
    """

    share: Share | None
    left: tuple[Run, ...]
    position: Count
    fingerprint: str
    children: dict[str, Any]


MIXTURE_STATE = Format("state of a streamed mixture", StreamedMixtureState, unmarked=1, hint=DATASET_STATE.hint)


class StreamedMixture(TuneIterableDataset):
    """Does the iterating of a mixture with streamed children, and keeps its state.

    Args:
        info: the mixture's.
        leaves: all leaves of the tree, streamed ones by ``streamed_leaf``.
        order: of the leaves.
        children: the mixture's children, by name.
        streams: those in the whole tree that can be read forwards only, by name.
    """

    def __init__(
        self,
        info: DatasetInfo,
        leaves: Sequence[Leaf],
        order: Order,
        children: Mapping[str, TuneIterableDataset],
        streams: Mapping[str, TuneIterableDataset],
    ) -> None:
        self._info = info
        self._leaves, self._order, self._fingerprint = tuple(leaves), order, order.fingerprint()
        self._children, self._streams = children, streams
        self._queue = PositionQueue()
        self._taken = 0  # of the queue's positions, so far; counted, as a queue is dear to make for every sample
        self._jumps = 0

    @property
    def dataset_name(self) -> str:
        """The mixture's name."""
        return self._info.name

    @property
    def info(self) -> DatasetInfo:
        """Name, weight and children; how many samples there are is not known."""
        return self._info

    def __iter__(self) -> Iterator[Sample]:
        """Yield this process's samples from where its state stands."""
        share = share_of_process(self._ranks)
        return self._samples(share, self._open())

    def state_dict(self) -> dict[str, Any]:
        """Return the positions left to this process, and under ``children`` the state of each child."""
        queue = self._queue.past(self._taken)
        return self._state(queue, {name: stream.state_dict() for name, stream in self._streams.items()})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of the same process, or from one that ``merge_states`` made."""
        queue, states = self._parsed(state_dict)
        before = {name: stream.state_dict() for name, stream in self._streams.items()}
        try:
            for name, stream in self._streams.items():
                stream.load_state_dict(states[name])
        except Exception:
            for name, stream in self._streams.items():  # all or nothing: some may have gone ahead already
                stream.load_state_dict(before[name])
            raise
        self._queue, self._taken = queue, 0
        self._jumps += 1

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one state from those of all processes; load it in each process, of any number."""
        parsed = [self._parsed(state) for state in states]
        queue = PositionQueue.merge([queue for queue, _ in parsed], dataset=self.dataset_name)
        merged: dict[str, Any] = {}
        for name, stream in self._streams.items():
            merge = getattr(stream, "merge_states", None)
            if merge is None:
                raise StateError(
                    "this child of the mixture cannot be dealt to another number of processes",
                    dataset=name,
                    type=type(stream).__name__,
                    hint="resume with as many ranks and workers as before, or give its class a method merge_states",
                )
            merged[name] = merge([own[name] for _, own in parsed])
        return self._state(queue, merged)

    def _state(self, queue: PositionQueue, streams: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        counts = {
            leaf.name: int(self._order.count(number, np.array([queue.position]))[0])
            for number, leaf in enumerate(self._leaves)
        }
        children = states_of(self._children, counts, streams)
        return MIXTURE_STATE.to_json(
            StreamedMixtureState(queue.share, queue.left, queue.position, self._fingerprint, children)
        )

    def _parsed(self, state: Mapping[str, Any]) -> tuple[PositionQueue, dict[str, Any]]:
        """Return the positions a state leaves and its streamed children's states, or say what is wrong with it."""
        stored = MIXTURE_STATE.from_json(state)
        check_fingerprint(stored.fingerprint, stored.children, self.state_dict(), dataset=self.dataset_name)
        queue = PositionQueue(stored.share, stored.left, stored.position)
        try:
            return queue, _streams_in(stored.children, self._streams)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the state of this mixture is damaged: {error!r}", dataset=self.dataset_name) from error

    def _open(self) -> dict[int, Iterator[Sample]]:
        """Begin to read every streamed child, which says at once where a process would get nothing of it."""
        numbers = {leaf.name: number for number, leaf in enumerate(self._leaves)}
        return {numbers[name]: iter(stream) for name, stream in self._streams.items()}

    def _samples(self, share: Share, streams: dict[int, Iterator[Sample]]) -> Iterator[Sample]:
        reader = Reader(self._leaves, self._order)
        stored = [leaf for leaf in self._leaves if leaf.name not in self._streams]
        passed_over, samples = 0, sum(len(leaf.source) for leaf in stored)
        jumps = self._jumps
        while True:
            if self._jumps != jumps:  # a state was loaded: the streams go on from there
                jumps, streams = self._jumps, self._open()
            self._queue = self._queue.past(self._taken).dealt_to(share, dataset=self.dataset_name)
            self._taken = 0
            positions = self._queue.upcoming(READ_AT_ONCE)
            numbers = self._order.locate(positions).source
            at_hand = ~np.isin(numbers, list(streams))
            read = iter(reader.samples(positions[at_hand]))
            for number in numbers.tolist():
                sample = self._next_of(number, streams[number]) if number in streams else next(read)
                self._taken += 1
                if sample is None:  # the transform left it out
                    passed_over += 1
                    continue
                passed_over = 0
                yield sample
                if self._jumps != jumps:
                    break
            if passed_over > samples:
                raise EmptyPartitionError(
                    "the transforms left out every sample of a whole pass",
                    dataset=self.dataset_name,
                    rank=share.number,
                    world_size=share.total,
                    hint="see why they return None",
                )

    def _next_of(self, number: int, stream: Iterator[Sample]) -> Sample:
        sample: Any = next(stream, _ENDED)
        if sample is _ENDED:
            raise StreamError(
                "a child of the mixture ended, and children must be endless",
                dataset=self._leaves[number].name,
                mixture=self.dataset_name,
                hint="begin it anew where it ends",
            )
        found: Sample = sample
        return found


def _streams_in(states: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Find the states of the streamed children in the tree of all children's states."""
    found: dict[str, Any] = {}
    for name, state in states.items():
        if name in names:
            found[name] = state
        else:
            found |= _streams_in(state["children"], names)
    return found
