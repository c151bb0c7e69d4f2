"""Shuffle modes: how one epoch of one source is laid out.

- ``full``: one permutation of all samples;
- ``window``: whole shards are permuted, then samples are permuted inside groups of neighbouring shards, so that a
  remote or compressed source has only ``group`` shards open at a time;
- ``none``: as stored.

A ``Shuffle`` is a small description; ``bind(length, key)`` gives the ``EpochOrder`` of one epoch, which maps places
0 … length-1 to indices and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from holdfast.errors import ConfigError
from holdfast.order.keys import derive_key
from holdfast.order.numbers import Int64, whole_number
from holdfast.order.permutation import Permutation

__all__ = ["EpochOrder", "FullShuffle", "NoShuffle", "Shuffle", "WindowShuffle", "parse_shuffle"]


# Groups of shards whose permutation is cached: neighbouring positions share a group.
GROUPS_KEPT = 16


class EpochOrder(ABC):
    """One epoch of one source: place → index, and back."""

    permutation: Permutation | None = None
    """The permutation, if the order consists of a single one."""

    @abstractmethod
    def forward(self, places: Int64) -> Int64:
        """Return the index at each place of the epoch."""

    @abstractmethod
    def inverse(self, indices: Int64) -> Int64:
        """Return the place of each index in the epoch."""


class Shuffle(ABC):
    """A description of how an epoch is shuffled; small, comparable, and the same after a round trip through JSON."""

    @property
    def by_shard(self) -> bool:
        """Whether it needs the shards of the whole source, so that it cannot be applied to a part of it."""
        return False

    @abstractmethod
    def bind(self, length: int, key: bytes) -> EpochOrder:
        """Return the order of one epoch of ``length`` samples under this key."""

    @abstractmethod
    def to_json(self) -> Any:
        """Return a JSON value that distinguishes this shuffle from others.

        Your own class is never parsed: on resuming, what the shuffle you pass returns here must equal what was saved.
        """


class _AsStored(EpochOrder):
    def forward(self, places: Int64) -> Int64:
        return places

    def inverse(self, indices: Int64) -> Int64:
        return indices


class _Permuted(EpochOrder):
    permutation: Permutation

    def __init__(self, permutation: Permutation) -> None:
        self.permutation = permutation

    def forward(self, places: Int64) -> Int64:
        return self.permutation.forward(places)

    def inverse(self, indices: Int64) -> Int64:
        return self.permutation.inverse(indices)


@dataclass(frozen=True, slots=True)
class NoShuffle(Shuffle):
    """Samples in stored order."""

    def bind(self, length: int, key: bytes) -> EpochOrder:
        """Return the identity."""
        return _AsStored()

    def to_json(self) -> Any:
        """Return ``"none"``."""
        return "none"


@dataclass(frozen=True, slots=True)
class FullShuffle(Shuffle):
    """Every sample may be anywhere in its epoch."""

    def bind(self, length: int, key: bytes) -> EpochOrder:
        """Return one permutation of the whole epoch."""
        return _Permuted(Permutation(length, key))

    def to_json(self) -> Any:
        """Return ``"full"``."""
        return "full"


@dataclass(frozen=True, slots=True)
class WindowShuffle(Shuffle):
    """Shards permuted, then samples permuted inside groups of neighbouring shards.

    Args:
        shards: the lengths of the shards in index order, or their number for shards of equal size.
        group: how many shards are mixed together, and so how many a reader holds open.
    """

    shards: int | tuple[int, ...]
    group: int = 8

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", whole_number(self.group, "a window shuffle's group"))
        if self.group < 1:
            raise ConfigError("a window shuffle mixes at least one shard at a time", group=self.group)
        lengths = np.asarray(self.shards)  # a billion packed documents have a quarter million shards
        if not lengths.size or (lengths.ndim == 0 and whole_number(self.shards, "a number of shards") < 1):
            raise ConfigError("a window shuffle needs at least one shard", shards=self.shards)
        if lengths.dtype.kind not in "iu" or lengths.ndim > 1:
            raise ConfigError("the lengths of shards must be whole numbers", shards=f"{self.shards!r}"[:80])
        object.__setattr__(self, "shards", tuple(lengths.tolist()) if lengths.ndim else int(lengths))
        if lengths.ndim:
            empty = np.flatnonzero(lengths < 1)
            if len(empty):
                raise ConfigError("a shard has no samples", shard=int(empty[0]), length=int(lengths[empty[0]]))

    @property
    def by_shard(self) -> bool:
        """True: whole shards are permuted."""
        return True

    def bind(self, length: int, key: bytes) -> EpochOrder:
        """Return the windowed order of one epoch."""
        if isinstance(self.shards, int):
            if self.shards > length:
                raise ConfigError("more shards than samples", shards=self.shards, length=length)
            bounds = np.array([number * length // self.shards for number in range(self.shards + 1)], dtype=np.int64)
        else:
            bounds = np.concatenate(([0], np.cumsum(np.array(self.shards, dtype=np.int64))))
            if int(bounds[-1]) != length:
                raise ConfigError("the shard lengths do not add up to the source", total=int(bounds[-1]), length=length)
        return _Windowed(bounds, self.group, key)

    def to_json(self) -> Any:
        """Return mode, group and the shard lengths, run-length encoded."""
        if isinstance(self.shards, int):
            return {"mode": "window", "shards": self.shards, "group": self.group}
        runs = [[length, len(list(run))] for length, run in groupby(self.shards)]
        return {"mode": "window", "shard_runs": runs, "group": self.group}


class _Windowed(EpochOrder):
    """Shards in a permuted sequence; ``group`` neighbours in it form a window, whose samples are permuted."""

    def __init__(self, bounds: Int64, group: int, key: bytes) -> None:
        count = len(bounds) - 1
        self._shard_start = bounds
        self._sequence = Permutation(count, derive_key("shards", key)).forward(np.arange(count))
        self._slot_of_shard = np.argsort(self._sequence, kind="stable")
        lengths = np.diff(bounds)[self._sequence]
        self._start = np.concatenate(([0], np.cumsum(lengths)))
        self._window_start = np.append(self._start[:-1:group], self._start[-1])
        # A closure over locals, not a method: a cache on self would keep every instance alive.
        window_start = self._window_start

        def window(number: int) -> Permutation:
            size = int(window_start[number + 1] - window_start[number])
            return Permutation(size, derive_key("window", key, number))

        self._window = lru_cache(maxsize=GROUPS_KEPT)(window)

    def forward(self, places: Int64) -> Int64:
        inner = self._inside(places, Permutation.forward)
        slot = np.searchsorted(self._start, inner, side="right") - 1
        return self._shard_start[self._sequence[slot]] + (inner - self._start[slot])

    def inverse(self, indices: Int64) -> Int64:
        shard = np.searchsorted(self._shard_start, indices, side="right") - 1
        slot = self._slot_of_shard[shard]
        return self._inside(self._start[slot] + (indices - self._shard_start[shard]), Permutation.inverse)

    def _inside(self, places: Int64, apply: Callable[[Permutation, Int64], Int64]) -> Int64:
        number = np.searchsorted(self._window_start, places, side="right") - 1
        if number.size and (first := int(number[0])) == int(number.min()) == int(number.max()):
            # Nearly always the case: positions are consecutive, and each source of a mixture has few of them.
            base = int(self._window_start[first])
            return base + apply(self._window(first), places - base)
        result = np.empty_like(places)
        for value in np.unique(number):
            mask = number == value
            base = self._window_start[value]
            result[mask] = base + apply(self._window(int(value)), places[mask] - base)
        return result


def parse_shuffle(value: Shuffle | str | Mapping[str, Any] | None, shards: Sequence[int] | None = None) -> Shuffle:
    """Read a shuffle from a name (``"full"``, ``"window"``, ``"none"``), its JSON form, or itself.

    ``shards`` are the natural shards of the source, used if ``"window"`` is given by name alone.
    """
    if isinstance(value, Shuffle):
        return value
    if value is None or value == "none":
        return NoShuffle()
    if value == "full":
        return FullShuffle()
    if value == "window":
        if shards is None:
            raise ConfigError(
                "shuffle='window' needs to know the shards",
                hint="pass WindowShuffle(shards=…, group=…) for this source",
            )
        return WindowShuffle(tuple(shards))
    if isinstance(value, Mapping) and value.get("mode") == "window":
        if "shards" in value:
            return WindowShuffle(int(value["shards"]), int(value["group"]))
        lengths = tuple(int(length) for length, count in value["shard_runs"] for _ in range(int(count)))
        return WindowShuffle(lengths, int(value["group"]))
    raise ConfigError("unknown shuffle mode", shuffle=value, hint="use 'full', 'none', or WindowShuffle(shards, group)")
