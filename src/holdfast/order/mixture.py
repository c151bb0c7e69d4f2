"""A mixture: which source is at each position, and which of its samples.

The model: an ``Arrangement`` gives places to sources by weight. A source's samples keep their own order: its k-th place
in the mixture holds its k-th sample. Weights may follow a schedule: from each given position on, new weights apply.
Every stretch of the schedule continues the counts of the previous one, and makes up for how far each source is behind
or ahead of its weights there. What is planned for later never changes an earlier position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import ConfigError, OrderError
from holdfast.order.arrangement import Arrangement
from holdfast.order.blocks import BlockArrangement
from holdfast.order.deadlines import DeadlineArrangement
from holdfast.order.even import EvenArrangement
from holdfast.order.keys import derive_key
from holdfast.order.numbers import Int64, Ordinals, Position, Positions, whole_number
from holdfast.order.weights import WHOLE, Weights, WeightSchedule, check_weight_schedule, integer_weights

__all__ = ["ARRANGEMENTS", "ArrangementName", "Mixture"]

ArrangementName = Literal["even", "blocks"]
ARRANGEMENTS: tuple[ArrangementName, ...] = get_args(ArrangementName)
"""How sources may be arranged: ``even`` for new streams; ``blocks`` is what holdfast 0.1 used."""

ARRANGEMENTS_KEPT = 8  # otherwise a resumed or reweighted order would compute its blocks again
NEGLIGIBLE = 2.0**-20  # a source this many samples behind counts as not behind: weights are rounded


@dataclass(frozen=True, slots=True)
class _Stretch:
    start: Position
    sources: tuple[int, ...]  # numbers of the sources with a positive weight: the columns of the arrangement
    numbers: NDArray[np.int32]  # the same
    weights: tuple[int, ...]  # theirs, out of 2^62
    arrangement: Arrangement
    max_deviation: float
    base: Int64  # how many samples of each source (of all sources) come before `start`
    owed: tuple[int, ...]  # how many each is behind its weights there, out of 2^62

    def locate(self, positions: Positions) -> tuple[NDArray[np.int32], Int64]:
        """Return the source (by number) and the ordinal of its sample at each position of the stretch."""
        column, count = self.arrangement.locate(positions - self.start)
        numbers = self.numbers[column]
        return numbers, count + self.base[numbers] if self.start else count

    def counts(self, position: Position) -> Int64:
        """Return how many samples of each source come before the position."""
        counts = self.base.copy()
        for column, source in enumerate(self.sources):
            counts[source] += int(self.arrangement.count(column, np.array([position - self.start]))[0])
        return counts

    def owed_at(self, position: Position, counts: Int64) -> tuple[int, ...]:
        """Return how many samples each source is behind its weights at the position, out of 2^62."""
        rates = dict(zip(self.sources, self.weights, strict=True))
        return tuple(
            due + (position - self.start) * rates.get(source, 0) - int(counts[source] - self.base[source]) * WHOLE
            for source, due in enumerate(self.owed)
        )


class Mixture:
    """Positions given to several sources by weight, with random access both ways.

    Args:
        names: the sources, in order; their numbers are their places in this list.
        weights: weight by source name, or a schedule ``[(from_position, weights), …]``. They need not add up to one;
            zero leaves a source out.
        seed: decides what the arrangement leaves to chance.
        name: the mixture's own name, part of its keys.
        arrangement: ``even``, or ``blocks`` as in earlier releases.
    """

    def __init__(
        self,
        names: Sequence[str],
        weights: Weights | WeightSchedule,
        *,
        seed: int = 0,
        name: str = "mixture",
        arrangement: ArrangementName = "even",
    ) -> None:
        if arrangement not in ARRANGEMENTS:
            raise ConfigError("unknown arrangement", arrangement=arrangement, known=list(ARRANGEMENTS))
        self.names = tuple(names)
        self.seed = whole_number(seed, "a seed")
        self.name = name
        self.arrangement: ArrangementName = arrangement
        self.weight_schedule = check_weight_schedule(weights, self.names)
        arrange = _evenly if arrangement == "even" else _in_blocks
        self._stretches: list[_Stretch] = []
        base: Int64 = np.zeros(len(self.names), dtype=np.int64)
        owed: tuple[int, ...] = (0,) * len(self.names)
        for number, (from_position, table) in enumerate(self.weight_schedule):
            start = Position(from_position)
            present = tuple(i for i, source in enumerate(self.names) if table[source] > 0)
            parts = tuple(integer_weights([table[self.names[i]] for i in present]))
            if self._stretches:
                base = self._stretches[-1].counts(start)
                owed = self._stretches[-1].owed_at(start, base)
            arranged, bound = arrange(parts, derive_key("mixture", seed, name, number), tuple(owed[i] for i in present))
            numbers = np.array(present, dtype=np.int32)
            self._stretches.append(_Stretch(start, present, numbers, parts, arranged, bound, base, owed))
        self._starts = np.array([stretch.start for stretch in self._stretches], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.names, self.weight_schedule, self.seed, self.name, self.arrangement)

    @property
    def max_deviation(self) -> float:
        """How far, at most, a source may deviate from its weights.

        At every position with the even arrangement; with ``blocks`` at the end of every block, counted from the start
        of a stretch of the schedule.
        """
        return max(stretch.max_deviation for stretch in self._stretches)

    def locate(self, positions: ArrayLike) -> tuple[NDArray[np.int32], Ordinals]:
        """Return the source (by number) and the ordinal of its sample at each position."""
        positions = Positions(np.asarray(positions, dtype=np.int64))
        if positions.size and int(positions.min()) < 0:
            raise OrderError("a position cannot be negative", found=int(positions.min()))
        if positions.ndim != 1:
            found = self.locate(positions.ravel())
            return found[0].reshape(positions.shape), Ordinals(found[1].reshape(positions.shape))
        stretches = self._by_stretch(positions)
        if len(stretches) == 1:
            source, ordinal = stretches[0][0].locate(positions)
            return source, Ordinals(ordinal)
        source = np.empty(positions.shape, dtype=np.int32)
        ordinal = np.empty(positions.shape, dtype=np.int64)
        for stretch, here in stretches:
            source[here], ordinal[here] = stretch.locate(Positions(positions[here]))
        return source, Ordinals(ordinal)

    def position_of(self, source: int, ordinals: ArrayLike) -> Positions:
        """Return the position at which each of the source's samples (by ordinal) is, or -1 if it never occurs."""
        ordinals = Ordinals(np.asarray(ordinals, dtype=np.int64))
        if ordinals.size and int(ordinals.min()) < 0:
            raise OrderError("an ordinal cannot be negative", found=int(ordinals.min()))
        if ordinals.ndim != 1:
            return Positions(self.position_of(source, ordinals.ravel()).reshape(ordinals.shape))
        result = np.full(ordinals.shape, -1, dtype=np.int64)
        bases = np.array([stretch.base[source] for stretch in self._stretches])
        # side="right" minus one is the last stretch that begins with this count: those before it hold no sample.
        number = np.searchsorted(bases, ordinals, side="right") - 1
        for value in np.unique(number):
            stretch = self._stretches[value]
            if source in stretch.sources:
                here = number == value
                place = stretch.arrangement.place_of(stretch.sources.index(source), ordinals[here] - bases[value])
                result[here] = np.where(place < 0, -1, stretch.start + place)
        return Positions(result)

    def count(self, source: int, positions: ArrayLike) -> Ordinals:
        """Return how many samples of the source come before each position."""
        positions = Positions(np.asarray(positions, dtype=np.int64))
        if positions.size and int(positions.min()) < 0:
            raise OrderError("a position cannot be negative", found=int(positions.min()))
        if positions.ndim != 1:
            return Ordinals(self.count(source, positions.ravel()).reshape(positions.shape))
        result = np.empty(positions.shape, dtype=np.int64)
        for stretch, here in self._by_stretch(positions):
            result[here] = stretch.base[source]
            if source in stretch.sources:
                places = positions[here] - stretch.start
                result[here] += stretch.arrangement.count(stretch.sources.index(source), places)
        return Ordinals(result)

    def _by_stretch(self, positions: Positions) -> list[tuple[_Stretch, Any]]:
        if len(self._stretches) == 1 or not positions.size:
            return [(self._stretches[0], slice(None))]
        number = np.searchsorted(self._starts, positions, side="right") - 1
        first = int(number.flat[0])
        if bool((number == first).all()):
            return [(self._stretches[first], slice(None))]
        return [(self._stretches[i], number == i) for i in np.unique(number)]


def _rebuild(names: Any, schedule: Any, seed: int, name: str, arrangement: ArrangementName) -> Mixture:
    return Mixture(names, schedule, seed=seed, name=name, arrangement=arrangement)


def _in_blocks(weights: tuple[int, ...], key: bytes, owed: tuple[int, ...]) -> tuple[Arrangement, float]:
    arrangement = BlockArrangement(weights, key) if len(weights) > 1 else EvenArrangement(weights, key)
    return arrangement, arrangement.max_deviation


@lru_cache(maxsize=ARRANGEMENTS_KEPT)
def _evenly(weights: tuple[int, ...], key: bytes, owed: tuple[int, ...]) -> tuple[Arrangement, float]:
    """Return the arrangement for columns that are behind by ``owed``, and how far any may then deviate at any place.

    A tree of splits, which is fast, if it keeps within one sample and there is nothing to make up for; else deadlines.
    """
    tree = EvenArrangement(weights, key)
    behind = max(map(abs, owed)) / WHOLE
    behind = behind if behind > NEGLIGIBLE else 0.0
    if len(weights) == 1 or (not behind and tree.max_deviation <= 1) or not DeadlineArrangement.fits(weights):
        return tree, tree.max_deviation + behind
    paid = _payable(weights, owed)
    left = max(abs(due - part) for due, part in zip(owed, paid, strict=True)) / WHOLE
    return DeadlineArrangement(weights, key, paid), 1 + left


def _payable(weights: tuple[int, ...], owed: Sequence[int]) -> list[int]:
    """Return how much of what is owed can be made up for: all of it, except in some cases of three or more columns."""
    # What is owed to or by columns that left the schedule is spread over the others by weight.
    missing = sum(owed)
    for sixteenths in range(16, 0, -1):
        paid = [(due - missing * weight // WHOLE) * sixteenths // 16 for due, weight in zip(owed, weights, strict=True)]
        paid[weights.index(max(weights))] -= sum(paid)
        if DeadlineArrangement.can_pay(weights, paid):
            return paid
    return [0] * len(weights)
