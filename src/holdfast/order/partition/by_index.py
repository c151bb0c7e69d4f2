"""Partitions by a sample's index: ``HashBased``, ``RangeBased`` and ``Stratified``.

The same samples stay with the same lane in every epoch; shuffling happens inside the lanes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, EmptyPartitionError, PartitionError
from holdfast.order.assignment import Assignment, RunAssignment, TableAssignment
from holdfast.order.batch_sizes import BatchSizes
from holdfast.order.keys import derive_key, scramble
from holdfast.order.layout import Layout, PermutedLayout, RangeLayout, TableLayout
from holdfast.order.numbers import Int64
from holdfast.order.partition.base import Mix, Partition, ReadColumn, proportional
from holdfast.order.remaining import Remaining

__all__ = ["HashBased", "RangeBased", "Stratified"]


@dataclass(frozen=True, slots=True)
class HashBased(Partition):
    """Hashes samples into partitions that stay together: changing the number of ranks moves whole partitions only.

    Args:
        num_partitions: the number of partitions; at least the largest world size of the run.
        hash_seed: the seed of the hash.
        key: what is hashed: None for the sample's index (partitions of equal size, no table), the name of a column, or
            an array of one key per sample. Samples with equal keys are in the same partition.
    """

    num_partitions: int
    hash_seed: int = 0
    key: str | NDArray[Any] | None = field(default=None, compare=False)
    digest: str | None = None

    def __post_init__(self) -> None:
        if self.num_partitions < 1:
            raise ConfigError("a hash needs at least one partition", num_partitions=self.num_partitions)
        _set_digest(self, self.key)

    @property
    def by_index(self) -> bool:
        """True: the hash is that of the index or of the sample's key."""
        return True

    def with_values(self, values: NDArray[Any]) -> HashBased:
        """Return this partition with its keys, if it uses any."""
        if self.digest is None:
            raise ConfigError("the partition does not use labels or keys", partition="hash_based")
        return replace(self, key=values)

    def resolve(self, read_column: ReadColumn) -> HashBased:
        """Read the key column in."""
        return replace(self, key=read_column(self.key)) if isinstance(self.key, str) else self

    def layout(self, length: int) -> Layout:
        """Lay the hash partitions end to end."""
        if self.key is None and self.digest is None:
            return PermutedLayout(length, self.num_partitions, derive_key("hash", self.hash_seed))
        keys = _values(self.key, self.digest, length, "HashBased(key=…)")
        unique, inverse = np.unique(keys, return_inverse=True)
        if unique.dtype.kind in "iu":
            hashed = scramble(unique.astype(np.uint64), derive_key("hash", self.hash_seed))
        else:
            words = [derive_key("hash", self.hash_seed, str(value))[:8] for value in unique.tolist()]
            hashed = np.frombuffer(b"".join(words), dtype="<u8")
        lane = (hashed % np.uint64(self.num_partitions)).astype(np.int64)
        return TableLayout(lane[inverse.ravel()], self.num_partitions)

    def check(self, length: int, world_size: int, lanes: Int64 | None = None) -> None:
        """Check that every rank gets its own partition, with a sample in it."""
        Partition.check(self, length, world_size)
        if self.num_partitions < world_size:
            raise EmptyPartitionError(
                f"rank {self.num_partitions} of {world_size} would get no hash partition",
                rank=self.num_partitions,
                world_size=world_size,
                samples=length,
                num_partitions=self.num_partitions,
                hint="raise num_partitions",
            )
        if lanes is not None and world_size >= 1:
            empty = np.flatnonzero(np.diff(lanes[self._evenly(world_size)]) < 1)
            if empty.size:
                rank = int(empty[0])
                raise EmptyPartitionError(
                    f"rank {rank} of {world_size} would get no sample: its hash partitions are empty",
                    rank=rank,
                    world_size=world_size,
                    samples=length,
                    num_partitions=self.num_partitions,
                    hint="use fewer ranks, another hash_seed, or keys with more distinct values",
                )

    def _evenly(self, world_size: int) -> Int64:
        return np.arange(world_size + 1, dtype=np.int64) * self.num_partitions // world_size

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign runs of whole partitions."""
        assert lanes is not None
        first = self._evenly(sizes.world_size) if sizes.even else proportional(self.num_partitions, sizes)
        return RunAssignment(remaining, sizes, lanes[first])

    def to_json(self) -> dict[str, Any]:
        """Return the options, with a digest of the keys."""
        return {
            "kind": "hash_based",
            "num_partitions": self.num_partitions,
            "hash_seed": self.hash_seed,
            "digest": self.digest,
        }


@dataclass(frozen=True, slots=True)
class RangeBased(Partition):
    """Gives rank r the r-th range of indices; at another world size the ranges, end to end, are cut into equal runs.

    Args:
        ranges: ``(start, stop)`` pairs that cover every index exactly once, in any order.
    """

    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        pairs = tuple((int(start), int(stop)) for start, stop in self.ranges)
        object.__setattr__(self, "ranges", pairs)
        if not pairs:
            raise PartitionError("no ranges were given")
        for number, (start, stop) in enumerate(pairs):
            if start < 0:
                raise PartitionError("a range begins below zero", range=number, start=start, stop=stop)
            if stop <= start:
                raise EmptyPartitionError(
                    f"range {number} holds no sample, so rank {number} of {len(pairs)} would get none",
                    rank=number,
                    world_size=len(pairs),
                    samples=0,
                    start=start,
                    stop=stop,
                )

    @property
    def by_index(self) -> bool:
        """True: ranges are of indices."""
        return True

    def layout(self, length: int) -> Layout:
        """Lay the ranges end to end, after checking that they cover the source exactly."""
        reached = 0
        for number in sorted(range(len(self.ranges)), key=lambda i: self.ranges[i]):
            start, stop = self.ranges[number]
            if start > reached:
                raise PartitionError(f"no range covers the samples {reached} … {start - 1}", before_range=number)
            if start < reached:
                raise PartitionError(
                    f"the samples {start} … {min(reached, stop) - 1} are in two ranges",
                    range=number,
                    start=start,
                    stop=stop,
                )
            if stop > length:
                raise PartitionError(
                    "a range reaches past the last sample", range=number, start=start, stop=stop, samples=length
                )
            reached = stop
        if reached < length:
            raise PartitionError(f"no range covers the samples {reached} … {length - 1}", samples=length)
        return RangeLayout(self.ranges)

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign one range per rank, or equal runs if the numbers of ranges and ranks differ."""
        assert lanes is not None
        if sizes.world_size == len(self.ranges):
            return RunAssignment(remaining, sizes, lanes)
        return RunAssignment(remaining, sizes, None if sizes.even else proportional(remaining.n, sizes))

    def to_json(self) -> dict[str, Any]:
        """Return the ranges."""
        return {"kind": "range_based", "ranges": [list(pair) for pair in self.ranges]}


@dataclass(frozen=True, slots=True)
class Stratified(Partition):
    """Gives every rank an even share of every class, within one sample; a rank's share is mixed over classes.

    Args:
        labels: the class of every sample (0 … num_classes-1), or the name of the column that holds it.
        num_classes: the number of classes; None takes it from the labels.
    """

    labels: str | NDArray[Any] | None = field(compare=False)
    num_classes: int | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        if self.labels is None and self.digest is None:
            raise PartitionError("Stratified needs the labels, or the name of the column that holds them")
        _set_digest(self, self.labels)

    @property
    def by_index(self) -> bool:
        """True: labels belong to indices."""
        return True

    def with_values(self, values: NDArray[Any]) -> Stratified:
        """Return this partition with its labels."""
        return replace(self, labels=values)

    def resolve(self, read_column: ReadColumn) -> Stratified:
        """Read the label column in."""
        return replace(self, labels=read_column(self.labels)) if isinstance(self.labels, str) else self

    def layout(self, length: int) -> Layout:
        """Lay the classes end to end."""
        labels = _values(self.labels, self.digest, length, "Stratified(labels=…)")
        if labels.dtype.kind not in "iub":
            raise PartitionError("labels must be whole numbers", dtype=str(labels.dtype))
        labels = labels.astype(np.int64)
        classes = self.num_classes if self.num_classes is not None else int(labels.max()) + 1
        outside = np.flatnonzero((labels < 0) | (labels >= classes))
        if outside.size:
            index = int(outside[0])
            raise PartitionError(
                "a label is not one of the classes", index=index, label=int(labels[index]), num_classes=classes
            )
        return TableLayout(labels, classes)

    def assign(self, remaining: Remaining, sizes: BatchSizes, lanes: Int64 | None, mix: Mix) -> Assignment:
        """Assign class by class, one sample to each rank in turn; all ranks read in the same mixed order."""
        numbers = np.arange(remaining.n, dtype=np.int64)
        owner = numbers % sizes.world_size if sizes.even else _interleaved(sizes)[numbers % sizes.total]
        mixed = np.argsort(mix(remaining.place_of(numbers)))
        by_rank = mixed[np.argsort(owner[mixed], kind="stable")]
        cuts = np.cumsum(np.bincount(owner, minlength=sizes.world_size))[:-1]
        return TableAssignment(remaining, sizes, np.split(by_rank, cuts))

    def to_json(self) -> dict[str, Any]:
        """Return the number of classes and a digest of the labels."""
        return {"kind": "stratified", "num_classes": self.num_classes, "digest": self.digest}


def _set_digest(partition: HashBased | Stratified, values: str | NDArray[Any] | None) -> None:
    if values is None or isinstance(values, str):
        return
    array = _comparable(values)
    found = blake2b(f"{array.dtype.str}{array.shape}".encode() + array.tobytes(), digest_size=16).hexdigest()
    if partition.digest is not None and partition.digest != found:
        raise PartitionError(
            "the labels or keys are not the ones this order was made with", digest=found, expected=partition.digest
        )
    object.__setattr__(partition, "digest", found)


def _comparable(values: NDArray[Any]) -> NDArray[Any]:
    # The bytes of an object array are addresses, which differ in every process: compare its values as text.
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind == "O" else array


def _values(values: str | NDArray[Any] | None, digest: str | None, length: int, option: str) -> NDArray[Any]:
    if values is None or isinstance(values, str):
        raise PartitionError(
            f"{option} must be read from the data first",
            column=values,
            digest=digest,
            hint="call resolve() with a function that reads a column, or pass the array",
        )
    array = _comparable(values)
    if array.shape != (length,):
        raise PartitionError(f"{option} needs one value per sample", shape=array.shape, samples=length)
    return array


def _interleaved(sizes: BatchSizes) -> Int64:
    """Return the ranks of one step's samples, interleaved so that any run of them follows the shares."""
    counts = sizes.all()
    ranks = np.repeat(np.arange(sizes.world_size), counts)
    turn = np.arange(sizes.total) - np.repeat(np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return ranks[np.argsort((turn + 0.5) / counts[ranks], kind="stable")]
