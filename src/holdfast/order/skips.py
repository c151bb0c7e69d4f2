"""Skips: positions and samples that are left out, without moving the rest.

``Skips`` is the list of what to leave out: intervals of positions, and samples by (source, index), which are left out
in every epoch. ``Kept`` binds it to an order and does the counting: how many positions before p are left out,
and which position is the k-th that remains. Both are computed directly, not by walking from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, EverythingSkippedError, OrderError
from holdfast.order.cycle import Cycle
from holdfast.order.numbers import Indices, Int64, Ordinals, Positions, whole_number, whole_numbers

__all__ = ["Kept", "Skips"]

EPOCHS_KEPT = 64
# If scattered numbers span more positions than this, each is bisected instead of walking the positions between them.
MAX_WALK = 1 << 17
SAMPLES_BY_SOURCE = "pass the indices by source name, as in samples={'wiki': [5, 9]}"
FARTHEST = 1 << 60  # no position is beyond this: three times as much must still fit into 64 bits


@dataclass(frozen=True, slots=True)
class Skips:
    """What is left out: ``intervals`` of positions, and ``samples`` as indices by source name."""

    intervals: tuple[tuple[int, int], ...] = ()
    samples: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int]] = (), samples: Mapping[str, Iterable[int]] | None = None) -> Skips:
        """Build from any iterables; overlapping intervals are joined and indices sorted."""
        joined: list[list[int]] = []
        for start, stop in sorted((whole_number(a, "a position"), whole_number(b, "a position")) for a, b in intervals):
            if start < 0 or stop < start:
                raise OrderError(
                    "an interval of positions must run from start ≥ 0 to stop ≥ start", start=start, stop=stop
                )
            if start == stop:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], stop)
            else:
                joined.append([start, stop])
        if not isinstance(samples or {}, Mapping):
            raise ConfigError(
                "samples must be a mapping from source to indices", found=f"{samples!r}"[:80], hint=SAMPLES_BY_SOURCE
            )
        chosen = {
            name: tuple(sorted(whole_numbers(indices, f"the indices of samples of {name!r}")))
            for name, indices in (samples or {}).items()
        }
        for name, indices in chosen.items():
            if indices and indices[0] < 0:
                raise OrderError("an index cannot be negative", source=name, index=indices[0])
        kept = tuple((name, indices) for name, indices in sorted(chosen.items()) if indices)
        return cls(tuple((start, stop) for start, stop in joined), kept)

    def __bool__(self) -> bool:
        return bool(self.intervals or self.samples)

    def plus(self, other: Skips) -> Skips:
        """Return both together."""
        samples: dict[str, list[int]] = {name: list(indices) for name, indices in self.samples}
        for name, indices in other.samples:
            samples.setdefault(name, []).extend(indices)
        return Skips.of((*self.intervals, *other.intervals), samples)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON value that ``from_json`` reads back."""
        return {
            "intervals": [list(pair) for pair in self.intervals],
            "samples": {name: list(indices) for name, indices in self.samples},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Skips:
        """Read what ``to_json`` wrote."""
        for name, indices in value["samples"].items():
            if not isinstance(indices, (list, tuple)):
                raise OrderError("skips and masks take lists of samples", source=name, found=f"{indices!r}"[:80])
        for number in chain(*value["intervals"], *value["samples"].values()):
            if type(number) is not int or not 0 <= number <= FARTHEST:
                raise OrderError("skips and masks take integers, 0 or more", found=number)
        return cls.of([(start, stop) for start, stop in value["intervals"]], value["samples"])


class CountedOrder(Protocol):
    """What ``Kept`` needs to know about an order."""

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """Return the sources, by number."""

    def count(self, source: int, positions: Positions) -> Ordinals:
        """Return how many samples of the source come before each position."""

    def position_of_ordinal(self, source: int, ordinals: Ordinals) -> Positions:
        """Return the positions of a source's samples counted from its start, over all epochs."""

    def endless_sources(self) -> tuple[int, ...]:
        """Return the sources that never end (of the last stretch of a schedule)."""


class Kept:
    """The positions that remain, numbered 0, 1, 2, … without gaps."""

    def __init__(self, order: CountedOrder, skips: Skips) -> None:
        self._order = order
        self._starts = Positions(np.array([start for start, _ in skips.intervals], dtype=np.int64))
        self._stops = Positions(np.array([stop for _, stop in skips.intervals], dtype=np.int64))
        numbers = {cycle.name: number for number, cycle in enumerate(order.cycles)}
        self._samples: dict[int, Indices] = {}
        for name, indices in skips.samples:
            if name not in numbers:
                raise OrderError(
                    "a skip names a source that is not in this order", source=name, sources=sorted(numbers)
                )
            length = _final_length(order.cycles[numbers[name]])
            if indices[-1] >= length:
                raise OrderError(
                    "a skip names a sample that the source does not have", source=name, index=indices[-1], length=length
                )
            self._samples[numbers[name]] = Indices(np.array(indices, dtype=np.int64))
        self.trivial = not len(self._starts) and not self._samples
        """Whether nothing is skipped."""
        if all(
            source in self._samples and len(self._samples[source]) >= _final_length(order.cycles[source])
            for source in order.endless_sources()
        ):
            names = [order.cycles[source].name for source in order.endless_sources()]
            raise EverythingSkippedError("every sample of every source is skipped", sources=names)
        self._skipped_places = lru_cache(maxsize=EPOCHS_KEPT)(self._find_skipped_places)
        lengths = self._stops - self._starts
        # Skipped samples inside a skipped interval must not be counted twice.
        self._only_interval = lengths - (self._occurrences(self._stops) - self._occurrences(self._starts))
        self._before_interval = np.concatenate(([0], np.cumsum(self._only_interval)))

    def intervals(self) -> list[tuple[int, int]]:
        """Return the skipped intervals of positions."""
        return list(zip(self._starts.tolist(), self._stops.tolist(), strict=True))

    @property
    def has_samples(self) -> bool:
        """Whether samples are skipped, not only intervals of positions."""
        return bool(self._samples)

    def skipped_between(self, start: int, stop: int) -> Positions:
        """Return the positions from start to stop-1 that are left out, in order."""
        found = [
            np.arange(max(start, low), min(stop, high), dtype=np.int64)
            for low, high in self.intervals()
            if low < stop and high > start
        ]
        for source in self._samples:
            cycle = self._order.cycles[source]
            bounds = self._order.count(source, Positions(np.array([start, stop])))
            first, last = (int(epoch) for epoch in cycle.split(bounds)[0])
            for epoch in range(first, last + 1):
                ordinals = cycle.epoch_start(epoch) + self._skipped_places(source, epoch)
                inside = Ordinals(ordinals[(ordinals >= bounds[0]) & (ordinals < bounds[1])])
                found.append(self._order.position_of_ordinal(source, inside))
        return Positions(np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found])))

    def is_skipped(self, positions: Positions) -> NDArray[np.bool_]:
        """Return whether each position is left out."""
        return self.removed_before(Positions(positions + 1)) > self.removed_before(positions)

    def removed_before(self, positions: Positions) -> Int64:
        """Return how many positions before each of these are left out."""
        if self.trivial:
            return np.zeros(np.shape(positions), dtype=np.int64)
        occurrences = self._occurrences(positions)
        number = np.searchsorted(self._starts, positions, side="right")
        result = occurrences + self._before_interval[number]
        if len(self._starts):
            last = np.maximum(number - 1, 0)
            inside = (number > 0) & (positions < self._stops[last])
            if inside.any():
                start = Positions(self._starts[last])
                partial = positions - start - (occurrences - self._occurrences(start))
                result = np.where(inside, occurrences + self._before_interval[last] + partial, result)
        return result

    def count_before(self, positions: Positions) -> Int64:
        """Return how many positions before each of these remain."""
        return positions - self.removed_before(positions)

    def position_at(self, numbers: Int64) -> Positions:
        """Return the position of each remaining number."""
        if self.trivial or not numbers.size:
            return Positions(numbers)
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < MAX_WALK:
            return Positions(self._stretch(low, high + 1)[numbers - low])
        return self._bisect(numbers)

    def _stretch(self, start: int, stop: int) -> Positions:
        """Return the positions of the remaining numbers start … stop-1 by walking from the first."""
        first = int(self._bisect(np.array([start]))[0])
        found: list[Int64] = []
        missing = stop - start
        while missing > 0:
            chunk = np.arange(first, first + missing + 64, dtype=np.int64)
            before = self.removed_before(Positions(np.append(chunk, chunk[-1] + 1)))
            kept = chunk[before[1:] == before[:-1]][:missing]
            found.append(kept)
            missing -= len(kept)
            first = int(chunk[-1]) + 1
            if not len(kept):
                first = int(self._bisect(np.array([stop - missing]))[0])
        return Positions(np.concatenate(found))

    def _bisect(self, numbers: Int64) -> Positions:
        low, high = numbers.copy(), numbers + 1
        while (short := self.count_before(Positions(high)) <= numbers).any():
            if int(high[short].max()) > FARTHEST:
                raise EverythingSkippedError("the skips leave nothing within range", after=int(numbers[short][0]))
            high = np.where(short, high + 2 * (high - low), high)
        while (unsure := high - low > 1).any():
            middle = low + (high - low) // 2
            enough = self.count_before(Positions(middle)) > numbers
            high = np.where(unsure & enough, middle, high)
            low = np.where(unsure & ~enough, middle, low)
        return Positions(high - 1)

    def _occurrences(self, positions: Positions) -> Int64:
        """Return how often a skipped sample comes before each position."""
        total = np.zeros(np.shape(positions), dtype=np.int64)
        for source, indices in self._samples.items():
            cycle = self._order.cycles[source]
            epoch, place = cycle.split(self._order.count(source, positions))
            for value in np.unique(epoch):
                mask = epoch == value
                earlier = _full_epochs(cycle, indices, int(value))
                total[mask] += earlier + np.searchsorted(self._skipped_places(source, int(value)), place[mask])
        return total

    def _find_skipped_places(self, source: int, epoch: int) -> Int64:
        cycle = self._order.cycles[source]
        indices = self._samples[source]
        present = Indices(indices[indices < cycle.epoch_length(epoch)])
        return np.sort(cycle.ordinal_of(epoch, present) - cycle.epoch_start(epoch))


def _final_length(cycle: Cycle) -> int:
    return cycle.growth[-1][1] if cycle.growth else cycle.length


def _full_epochs(cycle: Cycle, indices: Indices, epoch: int) -> int:
    """Return how many occurrences of the indices there are in epochs 0 … epoch-1."""
    stages = [(0, cycle.length), *cycle.growth]
    total = 0
    for number, (start, length) in enumerate(stages):
        stop = stages[number + 1][0] if number + 1 < len(stages) else epoch
        total += max(0, min(stop, epoch) - start) * int(np.searchsorted(indices, length))
    return total
