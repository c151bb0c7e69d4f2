"""The order: position → (source, epoch, index), and back, for one source or a mixture of many.

Composes the other modules: a ``Mixture`` says which source is at a position and which of its samples (by ordinal);
the source's ``Cycle`` turns the ordinal into an epoch and a shuffled index. The partition is part of the order because
partitions by index lay out an epoch lane by lane.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import ConfigError, MixtureError, OrderError
from holdfast.order.cycle import Cycle, locate_each, rows_by_number
from holdfast.order.mixture import ArrangementName, Mixture
from holdfast.order.numbers import Indices, Int64, Ordinals, Position, Positions, whole_number
from holdfast.order.partition import Partition, RoundRobin, parse_partition
from holdfast.order.permutation import MAX_LENGTH
from holdfast.order.shuffle import FullShuffle, Shuffle, parse_shuffle
from holdfast.order.weights import Weights, WeightSchedule, check_weight_schedule, integer_weights
from holdfast.versioned import Between, Count, Format

__all__ = ["Located", "Order", "SourceSpec", "StopPolicy"]

StopPolicy = Literal["cycle_forever", "first_exhausted", "all_exhausted"]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What the order knows about a source: its name, length and shuffle, and how it grew between epochs."""

    name: str
    length: int
    seed: int = 0
    shuffle: Shuffle = field(default_factory=FullShuffle)
    growth: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number(self.seed, "a seed"))  # a NumPy integer cannot be saved as JSON


@dataclass(frozen=True, slots=True)
class _SavedSource:
    name: str
    length: Annotated[int, Between(1, MAX_LENGTH)]
    seed: int
    shuffle: Any
    growth: list[tuple[Count, Annotated[int, Between(1, MAX_LENGTH)]]]


@dataclass(frozen=True, slots=True)
class _SavedOrder:
    """The saved form of an order: no data, only names, lengths, seeds, weights (out of 2^62) and digests."""

    name: str
    seed: int
    stop: StopPolicy
    arrangement: ArrangementName | None
    sources: list[_SavedSource]
    weights: list[tuple[Count, dict[str, int]]]
    partition: dict[str, Any]


def _upgraded_from_1(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "arrangement": "blocks" if len(old["sources"]) > 1 else None}


FORMAT = Format(
    "order", _SavedOrder, version=2, upgrades={1: _upgraded_from_1}, error=OrderError, version_error=OrderError
)


class Located(NamedTuple):
    """What is at each position: the source (by number), its epoch and the index of the sample."""

    source: NDArray[np.int32]
    epoch: Int64
    index: Indices  # type: ignore[assignment]  # hides tuple.index, which nobody calls

    def part(self, rows: slice | NDArray[np.intp]) -> Located:
        """Return what is at some of the positions."""
        return Located(self.source[rows], self.epoch[rows], Indices(self.index[rows]))

    def by_source(self, positions: Positions, count: int) -> Iterator[tuple[int, Int64, Located, Positions]]:
        """Yield, for every source present, its number, its rows, what is located there, and the positions."""
        if count == 1:
            yield 0, np.arange(len(positions)), self, positions
            return
        rows, bounds = rows_by_number(self.source, count)
        ordered, own = self.part(rows), positions[rows]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                yield number, rows[start:stop], ordered.part(slice(start, stop)), Positions(own[start:stop])


class Order:
    """Which sample is at each position of an endless stream; pure arithmetic, nothing remembered.

    Args:
        sources: one or more sources.
        weights: by source name, or a schedule ``[(from_position, weights), …]``; needed for more than one source.
        seed: the seed of the mixture's arrangement (each source has its own seed).
        name: the mixture's name, part of its keys.
        partition: how an epoch is divided among ranks.
        stop: ``cycle_forever`` (endless), ``first_exhausted`` (ends when the first source has been read once)
            or ``all_exhausted`` (ends when the last one has).
        arrangement: how a mixture is arranged: ``even``, or ``blocks`` as in holdfast 0.1.
    """

    def __init__(
        self,
        sources: Sequence[SourceSpec],
        *,
        weights: Weights | WeightSchedule | None = None,
        seed: int = 0,
        name: str = "mixture",
        partition: Partition | None = None,
        stop: StopPolicy = "cycle_forever",
        arrangement: ArrangementName = "even",
    ) -> None:
        self.sources = tuple(sources)
        self.seed = whole_number(seed, "a seed")
        self.name = name
        self.partition: Partition = partition if partition is not None else RoundRobin()
        self.stop: StopPolicy = stop
        if stop not in get_args(StopPolicy):
            raise ConfigError("unknown stop policy", stop=stop, known=list(get_args(StopPolicy)))
        if not self.sources:
            raise ConfigError("an order needs at least one source")
        names = [spec.name for spec in self.sources]
        if weights is None:
            if len(names) > 1:
                raise MixtureError("a mixture needs weights", sources=names)
            weights = {names[0]: 1.0}
        self.weight_schedule = check_weight_schedule(weights, names)
        self.layout = None
        if self.partition.by_index:
            if len(names) > 1:
                raise ConfigError(
                    "a partition by index needs one source: in a mixture an index belongs to its source",
                    partition=type(self.partition).__name__,
                    sources=names,
                    hint="use RoundRobin or Contiguous, or Adaptive over one of them",
                )
            if self.sources[0].growth:
                raise ConfigError("a partition by index cannot follow a source that grows", source=names[0])
            self.layout = self.partition.layout(self.sources[0].length)
        self.cycles = tuple(
            Cycle(s.name, s.length, seed=s.seed, shuffle=s.shuffle, growth=s.growth, layout=self.layout)
            for s in self.sources
        )
        self._mixture = None
        if len(names) > 1:
            self._mixture = Mixture(names, self.weight_schedule, seed=seed, name=name, arrangement=arrangement)
        self.length = self._find_length()

    def __repr__(self) -> str:
        return f"Order({', '.join(spec.name for spec in self.sources)}, {type(self.partition).__name__})"

    @property
    def arrangement(self) -> ArrangementName | None:
        """How the sources are arranged; None for a single source."""
        return None if self._mixture is None else self._mixture.arrangement

    def locate(self, positions: ArrayLike) -> Located:
        """Return the source, epoch and index at each position."""
        array = np.asarray(positions, dtype=np.int64)
        flat, shape = array.ravel(), array.shape
        if self._mixture is None:
            if array.size and (lowest := int(array.min())) < 0:
                raise OrderError("a position cannot be negative", found=lowest)
            epoch, index = self.cycles[0].locate(Ordinals(flat))  # with one source, position and ordinal are the same
            return Located(np.zeros(shape, dtype=np.int32), epoch.reshape(shape), Indices(index.reshape(shape)))
        source, ordinal = self._mixture.locate(flat)
        epoch, index = locate_each(self.cycles, source, ordinal)
        return Located(source.reshape(shape), epoch.reshape(shape), Indices(index.reshape(shape)))

    def position_of(self, source: str, epoch: int, indices: ArrayLike) -> Positions:
        """Return the positions of these samples of the source in its epoch; -1 for those that never occur."""
        number = self.number_of(source)
        array = np.asarray(indices, dtype=np.int64)
        ordinals = self.cycles[number].ordinal_of(epoch, Indices(array.ravel()))
        return Positions(self.position_of_ordinal(number, ordinals).reshape(array.shape))

    def number_of(self, source: str) -> int:
        """Return the number of the source with this name."""
        for number, spec in enumerate(self.sources):
            if spec.name == source:
                return number
        raise OrderError("no such source", source=source, sources=[spec.name for spec in self.sources])

    def position_of_ordinal(self, source: int, ordinals: Ordinals) -> Positions:
        """Return the positions of a source's samples counted from its start, over all epochs."""
        return Positions(ordinals) if self._mixture is None else self._mixture.position_of(source, ordinals)

    def count(self, source: int, positions: ArrayLike) -> Ordinals:
        """Return how many samples of the source come before each position."""
        array = Positions(np.asarray(positions, dtype=np.int64))
        return Ordinals(array) if self._mixture is None else self._mixture.count(source, array)

    def reweighted(self, position: Position, weights: Weights) -> Order:
        """Return the order with new weights from this position on; what comes before it does not change."""
        if self._mixture is None:
            raise MixtureError("a single source has no weights to change", source=self.sources[0].name)
        earlier = [(start, table) for start, table in self.weight_schedule if start < position]
        return self.altered(weights=[*earlier, (position, weights)])

    def altered(self, *, weights: WeightSchedule, sources: Sequence[SourceSpec] | None = None) -> Order:
        """Return this order with other weights and, if given, other sources."""
        return Order(
            self.sources if sources is None else sources,
            weights=weights,
            seed=self.seed,
            name=self.name,
            partition=self.partition,
            stop=self.stop,
            arrangement=self.arrangement or "even",
        )

    def endless_sources(self) -> tuple[int, ...]:
        """Return the sources, by number, that the stream repeats indefinitely."""
        last = self.weight_schedule[-1][1]
        return tuple(number for number, spec in enumerate(self.sources) if last[spec.name] > 0)

    def epoch_start(self, epoch: int) -> Position:
        """Return the position at which the stream's epoch begins."""
        if self._mixture is None:
            return Position(self.cycles[0].epoch_start(epoch))
        return Position(epoch * self._pass_length)

    def epoch_length(self, epoch: int) -> int:
        """Return how many positions the stream's epoch has: the length of a single source, or one pass of a mixture."""
        return self.epoch_start(epoch + 1) - self.epoch_start(epoch)

    def epoch_of(self, position: Position) -> int:
        """Return the stream's epoch at this position."""
        if self._mixture is None:
            return int(self.cycles[0].split(Ordinals(np.array([position])))[0][0])
        return position // self._pass_length

    @property
    def growth_epochs(self) -> tuple[int, ...]:
        """The epochs at which the length of the stream's epochs changes."""
        return tuple(epoch for epoch, _ in self.sources[0].growth) if self._mixture is None else ()

    @property
    def max_deviation(self) -> float:
        """How far a source of the mixture may deviate from its weight: see ``Mixture.max_deviation``."""
        return 0.0 if self._mixture is None else self._mixture.max_deviation

    @property
    def _pass_length(self) -> int:
        # One pass of an endless mixture has no natural end; for progress bars, and for partitions that assign epoch
        # by epoch, "an epoch" has as many positions as there are samples.
        return self.length if self.length is not None else sum(spec.length for spec in self.sources)

    def _find_length(self) -> int | None:
        if self.stop == "cycle_forever":
            return None
        if self._mixture is None:
            return self.sources[0].length
        ends: list[int] = []
        for number, spec in enumerate(self.sources):
            if not any(table[spec.name] > 0 for _, table in self.weight_schedule):
                continue
            last = int(self._mixture.position_of(number, [spec.length - 1])[0])
            if last >= 0:
                ends.append(last + 1)
            elif self.stop == "all_exhausted":
                raise MixtureError(
                    "this source is never exhausted, so 'all_exhausted' would never stop", source=spec.name
                )
        if not ends:
            raise MixtureError("no source is ever exhausted, so the stream would never stop", stop=self.stop)
        return min(ends) if self.stop == "first_exhausted" else max(ends)

    def to_json(self) -> dict[str, Any]:
        """Return the whole order as plain JSON: no data, only names, lengths, seeds, weights and digests."""
        return FORMAT.to_json(self._saved)

    @cached_property
    def _saved(self) -> _SavedOrder:
        weights = []
        for start, table in self.weight_schedule:
            present = [name for name, weight in table.items() if weight > 0]
            parts = integer_weights([table[name] for name in present])
            weights.append((start, dict(zip(present, parts, strict=True))))
        sources = [
            _SavedSource(spec.name, spec.length, spec.seed, spec.shuffle.to_json(), list(spec.growth))
            for spec in self.sources
        ]
        return _SavedOrder(
            self.name, self.seed, self.stop, self.arrangement, sources, weights, self.partition.to_json()
        )

    @classmethod
    def from_json(
        cls,
        value: Mapping[str, Any],
        *,
        partition: Partition | None = None,
        shuffles: Mapping[str, Shuffle] | None = None,
    ) -> Order:
        """Read what ``to_json`` of this or an earlier release wrote.

        Args:
            value: the JSON value.
            partition: the partition it was made with, needed if it is your own class or takes labels or keys; what its
                ``to_json`` returns must equal what was saved.
            shuffles: shuffles by source name; each is used if its ``to_json`` equals what was saved, so that a shuffle
                of your own can be restored.
        """
        saved = FORMAT.from_json(value)
        if partition is not None and not same_json(partition.to_json(), saved.partition):
            raise OrderError(
                "the partition is not the one this order was made with",
                partition=partition.to_json(),
                expected=saved.partition,
            )
        known = shuffles or {}
        specs = [
            SourceSpec(
                source.name,
                source.length,
                source.seed,
                known[source.name]
                if source.name in known and same_json(known[source.name].to_json(), source.shuffle)
                else parse_shuffle(source.shuffle),
                tuple(source.growth),
            )
            for source in saved.sources
        ]
        return cls(
            specs,
            weights=saved.weights,
            seed=saved.seed,
            name=saved.name,
            partition=parse_partition(saved.partition) if partition is None else partition,
            stop=saved.stop,
            arrangement=saved.arrangement or "even",
        )

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the order; equal orders have equal fingerprints everywhere."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # Orders that version 1 could describe keep their version-1 fingerprint.
        identity = {**self.to_json(), "version": 1}
        if self.arrangement != "even":
            del identity["arrangement"]
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16, person=b"holdfast.order.1").hexdigest()


def same_json(one: Any, other: Any) -> bool:
    """Return whether two values are the same as JSON, where a tuple is a list."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
