"""Shards of items with fields: what Mosaic's MDS and LitData have in common.

A shard begins with the number of its items and their offsets, as 32-bit numbers. An item begins with the sizes of its
fields of variable size; the fields follow, end to end. Many items are therefore read with a few gathers: their bounds,
their sizes, and each field of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.base import Indices
from holdfast.sources.files import DataFile, LocalFile
from holdfast.sources.parts import bounds_of
from holdfast.sources.ragged import Ragged, gather_from

__all__ = ["ItemPart", "Items", "check_offsets", "part_in_file", "part_in_memory"]

_COUNT_BYTES = 4


@dataclass(frozen=True, slots=True)
class ItemPart:
    """Items stored together: a shard, or a compressed part of one.

    Attributes:
        name: their file.
        offsets: the start of each item, and the end of the last one.
        file: the file to which the offsets refer, if the bytes are read from it,
        memory: or the bytes, if they had to be unpacked.
        unpack: unpacks a single item, if each is compressed separately.
    """

    name: str
    offsets: NDArray[np.int64]
    file: DataFile | None = None
    memory: NDArray[np.uint8] | None = None
    unpack: Callable[[NDArray[np.uint8]], NDArray[np.uint8]] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """The memory this takes."""
        return self.offsets.nbytes + (0 if self.memory is None else self.memory.nbytes)

    def bytes_of(self, rows: Indices) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Return bytes, and the starts and ends in them of the items at ``rows``."""
        return self.bytes_at(self.offsets[rows], self.offsets[rows + 1])

    def bytes_at(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """Return bytes, and the starts and ends in them of these ranges, which must be inside the part."""
        if self.memory is not None:
            return self.memory, starts, stops
        if isinstance(self.file, LocalFile):
            values = self.file.values()
            if len(values) < self.offsets[-1]:
                raise SourceFormatError("a shard is shorter than its items", file=self.name)
            return values, starts, stops
        if self.file is None:
            raise SourceFormatError("the shard is empty", file=self.name)
        fetched = self.file.gather(starts, stops)
        return fetched.values, fetched.offsets[:-1], fetched.offsets[1:]

    def inflate_items(self, rows: Indices) -> ItemPart:
        """Return the items at ``rows``, which are compressed one by one, unpacked and end to end."""
        values, starts, stops = self.bytes_of(rows)
        unpack = self.unpack or (lambda item: item)
        items = [unpack(values[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        offsets = bounds_of([len(item) for item in items])
        return ItemPart(self.name, offsets, memory=np.concatenate([*items, np.empty(0, dtype=np.uint8)]))


def part_in_file(file: DataFile, count: int) -> ItemPart:
    """Return the items of an uncompressed shard."""
    head = _COUNT_BYTES * (count + 2)
    if file.size < head:
        raise SourceFormatError("a shard is shorter than its table of items", file=file.name, bytes=file.size)
    return ItemPart(file.name, _offsets(file.read(0, head), count, file.size, file.name), file=file)


def part_in_memory(name: str, memory: NDArray[np.uint8], count: int) -> ItemPart:
    """Return the items of a compressed shard."""
    head = _COUNT_BYTES * (count + 2)
    if len(memory) < head:
        raise SourceFormatError("a shard is shorter than its table of items", file=name, bytes=len(memory))
    return ItemPart(name, _offsets(memory[:head].tobytes(), count, len(memory), name), memory=memory)


def _offsets(head: bytes, count: int, size: int, name: str) -> NDArray[np.int64]:
    numbers = np.frombuffer(head, dtype="<u4")
    if int(numbers[0]) != count:
        raise SourceFormatError(
            "the number of items in a shard does not match the index", file=name, shard=int(numbers[0]), index=count
        )
    return check_offsets(numbers[1:].astype(np.int64), first=len(head), last=size, name=name)


def check_offsets(offsets: NDArray[np.int64], *, first: int, last: int, name: str) -> NDArray[np.int64]:
    """Return the offsets of items, checked to be consecutive and inside their shard."""
    if len(offsets) > 1 and (offsets[0] < first or offsets[-1] > last or bool((offsets[1:] < offsets[:-1]).any())):
        raise SourceFormatError(
            "the items of a shard overlap, or are outside it",
            file=name,
            first=int(offsets[0]),
            last=int(offsets[-1]),
        )
    return offsets


@dataclass(frozen=True, slots=True)
class Items:
    """Items chosen from several parts.

    Attributes:
        parts: the parts.
        places: for each part, which of the items are in it.
        rows: for each item, its number in its part.
    """

    parts: Sequence[ItemPart]
    places: Sequence[Indices]
    rows: Indices

    @classmethod
    def of(cls, part: ItemPart, rows: Indices) -> Items:
        """Return items of one part."""
        return cls([part], [np.arange(len(rows))], rows)

    def read_fields(self, sizes: Sequence[int | None], wanted: Sequence[int]) -> list[Ragged]:
        """Copy some fields of these items.

        Args:
            sizes: the size of each field; None if it varies by item.
            wanted: the numbers of the fields to copy.
        """
        arrays: list[NDArray[np.uint8]] = []
        starts, stops = (np.empty(len(self.rows), dtype=np.int64) for _ in range(2))
        for part, where in zip(self.parts, self.places, strict=True):
            values, starts[where], stops[where] = part.bytes_of(self.rows[where])
            arrays.append(values)
        stated = [number for number, size in enumerate(sizes) if size is None]
        head = 4 * len(stated)
        self._check(stops - starts >= head)
        lengths = np.empty((len(self.rows), len(sizes)), dtype=np.int64)
        for number, size in enumerate(sizes):
            if size is not None:
                lengths[:, number] = size
        if stated:
            table = gather_from(arrays, self.places, starts, starts + head).values
            lengths[:, stated] = table.view("<u4").reshape(len(self.rows), len(stated))
        ends = (starts + head)[:, None] + np.cumsum(lengths, axis=1)
        self._check(ends[:, -1] == stops if len(sizes) else starts == stops)
        begins = ends - lengths
        return [gather_from(arrays, self.places, begins[:, number], ends[:, number]) for number in wanted]

    def _check(self, holds: NDArray[np.bool_]) -> None:
        if not holds.all():
            wrong = int(np.flatnonzero(~holds)[0])
            part = next(part for part, where in zip(self.parts, self.places, strict=True) if wrong in where)
            raise SourceFormatError("the fields of an item do not fill it", file=part.name, item=int(self.rows[wrong]))
