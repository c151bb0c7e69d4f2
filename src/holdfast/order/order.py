"""The order: position → (source, epoch, index), and back, for one source or a mixture of many.

Composes the other modules: a ``Mixture`` says which source stands at a position and which of its samples (by ordinal);
the source's ``Cycle`` turns the ordinal into an epoch and a shuffled index. The partition is part of the order because
those that go by index lay an epoch out lane by lane.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import ConfigError, MixtureError, OrderError
from holdfast.order.apportion import integer_weights
from holdfast.order.cycle import Cycle
from holdfast.order.mixture import Mixture, Schedule, Weights, check_schedule
from holdfast.order.partition import Partition, RoundRobin, parse_partition
from holdfast.order.shuffle import FullShuffle, Shuffle, parse_shuffle

__all__ = ["Located", "Order", "SourceSpec", "StopPolicy"]

Int64 = NDArray[np.int64]
StopPolicy = Literal["cycle_forever", "first_exhausted", "all_exhausted"]
JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """What the order knows of a source: its name, its length, how it is shuffled, and how it grew between epochs."""

    name: str
    length: int
    seed: int = 0
    shuffle: Shuffle = field(default_factory=FullShuffle)
    growth: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads back."""
        return {
            "name": self.name,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle.to_json(),
            "growth": [list(step) for step in self.growth],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SourceSpec:
        """Read what ``to_json`` wrote."""
        growth = tuple((int(epoch), int(length)) for epoch, length in value["growth"])
        return cls(value["name"], value["length"], value["seed"], parse_shuffle(value["shuffle"]), growth)


class Located(NamedTuple):
    """What stands at each position: the source (by number), its epoch and the index of the sample."""

    source: NDArray[np.int32]
    epoch: Int64
    index: Int64  # type: ignore[assignment]  # a field named as in the design; tuple.index is not used

    def part(self, rows: slice) -> Located:
        """Return what stands at some of the positions."""
        return Located(self.source[rows], self.epoch[rows], self.index[rows])


class Order:
    """Which sample stands at each position of an endless stream; pure arithmetic, nothing remembered.

    Args:
        sources: one or more sources.
        weights: by source name, or a schedule ``[(from_position, weights), …]``; needed for more than one source.
        seed: of the mixture's arrangement (each source has its own seed).
        name: of the mixture, part of its keys.
        partition: how an epoch is dealt to ranks.
        stop: ``cycle_forever`` (endless), ``first_exhausted`` (ends when the first source has been passed through once)
            or ``all_exhausted`` (when the last one has).
    """

    def __init__(
        self,
        sources: Sequence[SourceSpec],
        *,
        weights: Weights | Schedule | None = None,
        seed: int = 0,
        name: str = "mixture",
        partition: Partition | None = None,
        stop: StopPolicy = "cycle_forever",
    ) -> None:
        self.sources = tuple(sources)
        self.seed = seed
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
        self.schedule = check_schedule(weights, names)
        self.layout = None
        if self.partition.by_index:
            if len(names) > 1:
                raise ConfigError(
                    "a partition by index needs one source: in a mixture an index belongs to its source",
                    partition=type(self.partition).__name__,
                    sources=names,
                    hint="use RoundRobin, Contiguous or Adaptive over them",
                )
            if self.sources[0].growth:
                raise ConfigError("a partition by index cannot follow a source that grows", source=names[0])
            self.layout = self.partition.layout(self.sources[0].length)
        self.cycles = tuple(
            Cycle(s.name, s.length, seed=s.seed, shuffle=s.shuffle, growth=s.growth, layout=self.layout)
            for s in self.sources
        )
        self._mixture = Mixture(names, self.schedule, seed=seed, name=name) if len(names) > 1 else None
        self.length = self._find_length()

    def __repr__(self) -> str:
        return f"Order({', '.join(spec.name for spec in self.sources)}, {type(self.partition).__name__})"

    def locate(self, positions: ArrayLike) -> Located:
        """Return the source, epoch and index that stand at each position."""
        array = np.asarray(positions, dtype=np.int64)
        if array.size and int(array.min()) < 0:
            raise OrderError("a position cannot be negative", position=int(array.min()))
        flat, shape = array.ravel(), array.shape
        if self._mixture is None:
            epoch, index = self.cycles[0].locate(flat)
            return Located(np.zeros(shape, dtype=np.int32), epoch.reshape(shape), index.reshape(shape))
        source, ordinal = self._mixture.locate(flat)
        by_source = np.argsort(source.astype(np.uint16), kind="stable")  # a radix sort, as these are 16-bit
        bounds = np.searchsorted(source[by_source], np.arange(len(self.cycles) + 1))
        ordinals = ordinal[by_source]
        epochs, indices = np.empty_like(ordinals), np.empty_like(ordinals)
        for cycle, start, stop in zip(self.cycles, bounds[:-1], bounds[1:], strict=True):
            if start < stop:
                epochs[start:stop], indices[start:stop] = cycle.locate(ordinals[start:stop])
        epoch, index = np.empty_like(ordinal), np.empty_like(ordinal)
        epoch[by_source], index[by_source] = epochs, indices
        return Located(source.reshape(shape), epoch.reshape(shape), index.reshape(shape))

    def position_of(self, source: str, epoch: int, indices: ArrayLike) -> Int64:
        """Return the positions at which these samples of the source stand in its epoch; -1 where they never do."""
        number = self.number_of(source)
        array = np.asarray(indices, dtype=np.int64)
        ordinals = self.cycles[number].ordinal_of(epoch, array.ravel())
        return self.position_of_ordinal(number, ordinals).reshape(array.shape)

    def number_of(self, source: str) -> int:
        """Return the number of the source with this name."""
        for number, spec in enumerate(self.sources):
            if spec.name == source:
                return number
        raise OrderError("no such source", source=source, sources=[spec.name for spec in self.sources])

    def position_of_ordinal(self, source: int, ordinals: Int64) -> Int64:
        """Return the positions of a source's samples counted from its start, over all epochs."""
        return ordinals if self._mixture is None else self._mixture.position_of(source, ordinals)

    def count(self, source: int, positions: Int64) -> Int64:
        """Return how many samples of the source stand before each position."""
        return positions if self._mixture is None else self._mixture.count(source, positions)

    def endless_sources(self) -> tuple[int, ...]:
        """Return the sources, by number, that the stream goes on with for ever."""
        last = self.schedule[-1][1]
        return tuple(number for number, spec in enumerate(self.sources) if last[spec.name] > 0)

    def epoch_start(self, epoch: int) -> int:
        """Return the position at which the stream's epoch begins."""
        if self._mixture is None:
            return self.cycles[0].epoch_start(epoch)
        return epoch * self._pass_length

    def epoch_length(self, epoch: int) -> int:
        """Return how many positions the stream's epoch has: of one source its length, of a mixture one pass."""
        return self.epoch_start(epoch + 1) - self.epoch_start(epoch)

    def epoch_of(self, position: int) -> int:
        """Return the stream's epoch at this position."""
        if self._mixture is None:
            return int(self.cycles[0].split(np.array([position]))[0][0])
        return position // self._pass_length

    @property
    def growth_epochs(self) -> tuple[int, ...]:
        """The epochs from which on the stream's epochs have another length."""
        return tuple(epoch for epoch, _ in self.sources[0].growth) if self._mixture is None else ()

    @property
    def max_deviation(self) -> float:
        """How far a source of the mixture may stand from its weight at any prefix of whole blocks."""
        return 0.0 if self._mixture is None else self._mixture.max_deviation

    @property
    def _pass_length(self) -> int:
        # One pass of an endless mixture has no natural end; as many positions as there are samples is what
        # "an epoch" means for progress bars, and for partitions that deal epoch by epoch.
        return self.length if self.length is not None else sum(spec.length for spec in self.sources)

    def _find_length(self) -> int | None:
        if self.stop == "cycle_forever":
            return None
        if self._mixture is None:
            return self.sources[0].length
        ends: list[int] = []
        for number, spec in enumerate(self.sources):
            if not any(table[spec.name] > 0 for _, table in self.schedule):
                continue
            last = int(self._mixture.position_of(number, np.array([spec.length - 1]))[0])
            if last >= 0:
                ends.append(last + 1)
            elif self.stop == "all_exhausted":
                raise MixtureError(
                    "this source is never passed through, so 'all_exhausted' would never stop", source=spec.name
                )
        if not ends:
            raise MixtureError("no source is ever passed through, so the stream would never stop", stop=self.stop)
        return min(ends) if self.stop == "first_exhausted" else max(ends)

    def to_json(self) -> dict[str, Any]:
        """Return the whole order as plain JSON: no data, only names, lengths, seeds, weights and digests."""
        schedule = []
        for start, table in self.schedule:
            present = [name for name, weight in table.items() if weight > 0]
            shares = integer_weights([table[name] for name in present])
            schedule.append([start, dict(zip(present, shares, strict=True))])
        return {
            "version": JSON_VERSION,
            "name": self.name,
            "seed": self.seed,
            "stop": self.stop,
            "sources": [spec.to_json() for spec in self.sources],
            "weights": schedule,
            "partition": self.partition.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], *, partition: Partition | None = None) -> Order:
        """Read what ``to_json`` wrote.

        Args:
            value: the JSON value.
            partition: the partition with its labels or keys, for orders that need them; its digest must match.
        """
        if value.get("version") != JSON_VERSION:
            raise OrderError(
                "this order was written by another version", version=value.get("version"), known=JSON_VERSION
            )
        stored = parse_partition(value["partition"])
        if partition is not None and partition.to_json() != stored.to_json():
            raise OrderError(
                "the partition is not the one this order was made with",
                partition=partition.to_json(),
                expected=stored.to_json(),
            )
        return cls(
            [SourceSpec.from_json(spec) for spec in value["sources"]],
            weights=[(start, table) for start, table in value["weights"]],
            seed=value["seed"],
            name=value["name"],
            partition=partition if partition is not None else stored,
            stop=value["stop"],
        )

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the order; equal orders have equal fingerprints everywhere."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return blake2b(text.encode(), digest_size=16, person=b"holdfast.order.1").hexdigest()
