"""A mixture in which some children can only be read forwards.

The choice of child at each position is the same pure, exact arrangement as in any mixture. A child with random access
returns the sample at that position. A forward child returns its next one: each process reads its own part of it.
So a process's state is the positions it has left and the states of its forward children, and the states of all
processes merge into one that any number of them can load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, final

import numpy as np

from holdfast.errors import StateError, StreamError
from holdfast.order import ARRANGEMENTS, Located, Order
from holdfast.order.cycle import Cycle, locate_each
from holdfast.order.mixture import ArrangementName, Mixture
from holdfast.order.numbers import Positions, whole_number
from holdfast.order.weights import Weights, WeightSchedule, check_weight_schedule, nest
from holdfast.stream.dataset import (
    DATASET_STATE,
    READ_AT_ONCE,
    OrderedDataset,
    Sample,
    TuneIterableDataset,
    mismatch,
    single,
)
from holdfast.stream.forward.base import ForwardDataset
from holdfast.stream.forward.position_queue import PositionQueue, Stride
from holdfast.stream.interleaved import check_children, mixture_info
from holdfast.stream.named_source import NamedSource
from holdfast.stream.process import Process, everything_left_out
from holdfast.versioned import Count, Format

__all__ = ["MIXTURE_STATE", "ForwardMixture", "ForwardMixtureState"]


@dataclass(frozen=True, slots=True)
class ForwardMixtureState:
    """What one process has left to read of a mixture with forward children; see ``PositionQueue``.

    ``children`` are the states of all children, nested like them; those of forward children are their own.
    """

    process: Process | None
    left: tuple[Stride, ...]
    position: Count
    fingerprint: str
    children: dict[str, Any]


def _upgraded(old: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in old.items() if name != "share"}
    return {**kept, "process": old["share"], "fingerprint": ""}  # of what is no longer hashed


MIXTURE_STATE = Format(
    "state of a forward mixture",
    ForwardMixtureState,
    version=2,
    upgrades={1: _upgraded},
    unmarked=1,
    hint=DATASET_STATE.hint,
)


class _Stored(NamedTuple):
    """The children with random access: their sources, and which sample is at a position of the mixture."""

    sources: tuple[NamedSource, ...]
    cycles: tuple[Cycle, ...]
    mixture: Mixture
    numbers: tuple[int, ...]  # of the sources, in the mixture

    def locate(self, positions: Positions) -> Located:
        """Return which source, epoch and index are at each position; no position may be a forward child's."""
        number, ordinal = self.mixture.locate(positions)
        source = np.searchsorted(self.numbers, number).astype(np.int32)
        return Located(source, *locate_each(self.cycles, source, ordinal))


@final
class ForwardMixture(ForwardDataset):
    """A mixture of datasets with exact ratios, some of which can only be read forwards.

    Forward children (an ``HFStreamingDataset``, or a ``TuneIterableDataset`` of your own) then belong to the mixture:
    it moves them, and keeps their states.

    Args:
        datasets: the children, each with its own name; children may be mixtures themselves, whose weights multiply.
        weights: by child name, or a schedule ``[(from_position, weights), …]``; None takes the children's own weights.
        seed: the seed of the arrangement.
        name: the name of the mixture.
        weight: the weight of the mixture itself in another that gives none.
    """

    def __init__(
        self,
        datasets: Sequence[TuneIterableDataset],
        weights: Weights | WeightSchedule | None = None,
        *,
        seed: int = 0,
        name: str = "mixture",
        weight: float = 1.0,
    ) -> None:
        schedule = check_children(name, datasets, weights)
        super().__init__(mixture_info(name, None, weight, datasets, schedule[0][1]))
        self.children = {dataset.dataset_name: dataset for dataset in datasets}
        self.parts = tuple(part for dataset in datasets for part in _parts(dataset))
        """What is mixed in the end: sources, and datasets that can only be read forwards."""
        nested = {
            child: dataset.weight_schedule
            for child, dataset in self.children.items()
            if isinstance(dataset, (OrderedDataset, ForwardMixture)) and dataset.children
        }
        self.weight_schedule: WeightSchedule = nest(schedule, nested)
        self.seed = whole_number(seed, "a seed")
        names = [_name(part) for part in self.parts]
        check_weight_schedule(self.weight_schedule, names)
        self.streams = {name: p for name, p in zip(names, self.parts, strict=True) if not isinstance(p, NamedSource)}
        """The datasets of the whole tree that can only be read forwards, by name."""
        numbers = tuple(number for number, name in enumerate(names) if name not in self.streams)
        sources = tuple(part for part in self.parts if isinstance(part, NamedSource))
        specs = [source.spec() for source in sources]
        cycles = tuple(Cycle(spec.name, spec.length, seed=spec.seed, shuffle=spec.shuffle) for spec in specs)
        mixture = Mixture(names, self.weight_schedule, seed=seed, name=name)
        self._stored = _Stored(sources, cycles, mixture, numbers)
        self._identities = {name: self._identity(name) for name in ARRANGEMENTS}
        self._queue = PositionQueue()
        self._taken = 0  # positions taken from the queue; a counter, as creating a queue per sample is expensive

    def read_as(self, *, rank: int, world_size: int) -> None:
        """Set the data-parallel rank to iterate as, for all forward children too."""
        super().read_as(rank=rank, world_size=world_size)
        for stream in self.streams.values():
            stream.read_as(rank=rank, world_size=world_size)

    def __iter__(self) -> Iterator[Sample]:
        """Yield this process's samples from its state's position."""
        return self._samples(self.process(), self._open())

    def state_dict(self) -> dict[str, Any]:
        """Return the positions this process has left, and under ``children`` the state of each child."""
        states = {name: stream.state_dict() for name, stream in self.streams.items()}
        return self._state(self._queue.past(self._taken), states)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of the same process, or from one that ``merge_states`` made."""
        stored = self._stored
        queue, states = self._parsed(state_dict)
        before = {name: stream.state_dict() for name, stream in self.streams.items()}
        try:
            for name, stream in self.streams.items():
                stream.load_state_dict(states[name])
        except Exception:
            for name, stream in self.streams.items():  # all or nothing: some may have gone ahead already
                stream.load_state_dict(before[name])
            self._stored = stored
            raise
        self._queue, self._taken = queue, 0
        self._jumps += 1

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Merge the states of all processes (ranks × workers) into one, to load in each of any number of processes.

        No position and no sample is lost or comes twice; but which process gets which changes.
        """
        parsed = [self._parsed(state) for state in states]
        queue = PositionQueue.merge([queue for queue, _ in parsed], dataset=self.dataset_name)
        merged: dict[str, Any] = {}
        for name, stream in self.streams.items():
            merge = getattr(stream, "merge_states", None)
            if merge is None:
                raise StateError(
                    "this child of the mixture cannot be split over a different number of processes",
                    dataset=name,
                    type=type(stream).__name__,
                    hint="resume with the same number of ranks and workers, or give its class a method merge_states",
                )
            merged[name] = merge([own[name] for _, own in parsed])
        return self._state(queue, merged)

    def _identity(self, arrangement: ArrangementName) -> str:
        """Return a hash of what decides the child at each position, and of the order of those with random access."""
        parts = [
            Order([part.spec()]).to_json() if isinstance(part, NamedSource) else part.dataset_name
            for part in self.parts
        ]
        weights = [[start, {name: str(w) for name, w in table.items()}] for start, table in self.weight_schedule]
        mixture = [self.dataset_name, self.seed, arrangement, weights]
        text = json.dumps([mixture, parts], sort_keys=True)
        return blake2b(text.encode(), digest_size=16, person=b"holdfast.forward").hexdigest()

    def _arrange(self, arrangement: ArrangementName) -> None:
        """Choose children as in this or an earlier release."""
        names = self._stored.mixture.names
        mixture = Mixture(names, self.weight_schedule, seed=self.seed, name=self.dataset_name, arrangement=arrangement)
        self._stored = self._stored._replace(mixture=mixture)

    def _state(self, queue: PositionQueue, streams: Mapping[str, Any]) -> dict[str, Any]:
        at = np.array([queue.position])
        counts = {_name(part): int(self._stored.mixture.count(number, at)[0]) for number, part in enumerate(self.parts)}
        children = _child_states(self.children, counts, streams)
        identity = self._identities[self._stored.mixture.arrangement]
        state = ForwardMixtureState(queue.process, queue.left, queue.position, identity, children)
        return MIXTURE_STATE.to_json(state)

    def _parsed(self, state: Mapping[str, Any]) -> tuple[PositionQueue, dict[str, Any]]:
        """Return the positions a state leaves and its forward children's states, or raise ``StateError``."""
        stored = MIXTURE_STATE.from_json(state)
        queue = PositionQueue(stored.process, stored.left, stored.position)
        known = {identity: name for name, identity in self._identities.items()} | {"": "blocks"}
        if stored.fingerprint not in known:
            raise mismatch(stored.fingerprint, stored.children, self.state_dict(), dataset=self.dataset_name)
        before = self._stored
        self._arrange(known[stored.fingerprint])
        try:
            streams = _streams_in(stored.children, self.streams)
            is_own = bool(stored.fingerprint) or _same_places(stored.children, self._state(queue, streams)["children"])
        except (KeyError, TypeError, ValueError) as error:
            self._stored = before
            raise StateError(f"the state of this mixture is damaged: {error!r}", dataset=self.dataset_name) from error
        if not is_own:
            self._stored = before
            raise mismatch("", stored.children, self.state_dict(), dataset=self.dataset_name)
        return queue, streams

    def _open(self) -> dict[int, Iterator[Sample]]:
        """Begin to read every forward child, which raises at once if this process would get nothing from it."""
        return {self._stored.mixture.names.index(name): iter(stream) for name, stream in self.streams.items()}

    def _samples(self, process: Process, streams: dict[int, Iterator[Sample]]) -> Iterator[Sample]:
        left_out, samples = 0, sum(len(source.source) for source in self._stored.sources)
        jumps = self._jumps
        while True:
            if self._jumps != jumps:  # a state was loaded: the streams continue from there
                jumps, streams = self._jumps, self._open()
            self._queue = self._queue.past(self._taken).assigned_to(process, dataset=self.dataset_name)
            self._taken = 0
            positions = self._queue.upcoming(READ_AT_ONCE)
            numbers = self._stored.mixture.locate(positions)[0]
            stored = Positions(positions[~np.isin(numbers, list(streams))])
            read = single(self._stored, self._stored, stored)
            for number in numbers.tolist():
                sample = self._next_of(number, streams[number]) if number in streams else next(read)
                self._taken += 1
                if sample is None:  # the transform left it out
                    left_out += 1
                    continue
                left_out = 0
                yield sample
                if self._jumps != jumps:
                    break
            if left_out > samples:
                raise everything_left_out(process, dataset=self.dataset_name, what="pass")

    def _next_of(self, number: int, stream: Iterator[Sample]) -> Sample:
        for sample in stream:
            return sample
        raise StreamError(
            "a child of the mixture ended, but children must be endless",
            dataset=_name(self.parts[number]),
            mixture=self.dataset_name,
            hint="restart it when it ends",
        )


Part = NamedSource | TuneIterableDataset


def _parts(dataset: TuneIterableDataset) -> tuple[Part, ...]:
    if isinstance(dataset, OrderedDataset):
        return dataset.sources
    return dataset.parts if isinstance(dataset, ForwardMixture) else (dataset,)


def _name(part: Part) -> str:
    return part.name if isinstance(part, NamedSource) else part.dataset_name


def _child_states(
    children: Mapping[str, TuneIterableDataset], counts: Mapping[str, int], streams: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the states of a mixture's children by name, nested like the children."""
    states: dict[str, Any] = {}
    for name, child in children.items():
        if isinstance(child, OrderedDataset):
            states[name] = child.state_in_parent(counts)
        elif isinstance(child, ForwardMixture):
            inner = _child_states(child.children, counts, streams)
            states[name] = {"position": sum(counts[_name(part)] for part in child.parts), "children": inner}
        else:
            states[name] = streams[name]
    return states


def _streams_in(states: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Find the states of the forward children in the tree of all children's states."""
    found: dict[str, Any] = {}
    for name, state in states.items():
        if name in names:
            found[name] = state
        else:
            found |= _streams_in(state["children"], names)
    return found


def _same_places(saved: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Return whether the children are at the same positions: the only possible check without a fingerprint."""
    return saved.keys() == own.keys() and all(
        saved[name].get("position") == state.get("position")
        and _same_places(saved[name].get("children", {}), state.get("children", {}))
        for name, state in own.items()
    )
