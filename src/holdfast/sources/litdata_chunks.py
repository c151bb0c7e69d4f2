"""A chunk of a LitData folder: its items, unpacked as they were packed."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError
from holdfast.sources.files import DataFile, LocalFile
from holdfast.sources.inflate import MAX_INFLATED, inflate
from holdfast.sources.item_shards import ItemPart, check_offsets, part_in_file, part_in_memory
from holdfast.sources.litdata_rows import ArrowRows, read_rows
from holdfast.sources.parts import bounds_of
from holdfast.sources.shard_folder import ShardFolder, check_fields

__all__ = ["Frames", "LitDataChunk", "read_chunk"]

_FRAMED = b"LDFZ01\0\0"
_FRAMED_VERSION = 1
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = np.dtype([("first", "<u4"), ("items", "<u4"), ("at", "<u8"), ("packed", "<u4"), ("raw", "<u4")])


@dataclass(frozen=True, slots=True)
class LitDataChunk:
    """A chunk as listed in the index."""

    file: DataFile
    samples: int
    tokens: int
    level: str | None  # "chunk", "batch" or "sample" if it is compressed
    codec: str

    @classmethod
    def of(cls, entry: Any, config: dict[str, Any], folder: ShardFolder) -> LitDataChunk:
        """Return a chunk given its entry in the index."""
        fields: dict[str, type | tuple[type, ...]] = {"filename": str, "chunk_size": int}
        checked = check_fields(entry, fields, file=folder.index_name, what="a chunk of the index")
        tokens = checked.get("dim") or 0
        if not isinstance(tokens, int) or tokens < 0 or max(tokens, checked["chunk_size"]) > MAX_INFLATED:
            raise SourceFormatError("a chunk is too small for what the index lists", file=folder.index_name)
        if not tokens and not checked["chunk_size"]:
            raise SourceFormatError(
                "the index says that a chunk is empty", file=folder.index_name, chunk=checked["filename"][:200]
            )
        codec = config.get("compression")
        level = None if codec is None else config.get("compression_level") or "chunk"
        if codec is not None and (not isinstance(codec, str) or level not in ("chunk", "batch", "sample")):
            raise SourceFormatError("unknown compression", file=folder.index_name, compression=str(codec)[:40])
        file = folder.file(checked["filename"])
        # LitData's reader unpacks the chunks of a local folder in place, without changing the index.
        if level == "chunk" and isinstance(file, LocalFile) and not os.path.isfile(file.name):
            unpacked = folder.file(checked["filename"].replace(f".{str(codec).partition(':')[0]}.bin", ".bin"))
            if os.path.isfile(unpacked.name):
                file, level = unpacked, None
        return cls(file, checked["chunk_size"], tokens, level, codec or "")


@dataclass(frozen=True, slots=True)
class Frames:
    """A chunk whose items are compressed a few hundred at a time."""

    chunk: LitDataChunk
    bounds: NDArray[np.int64]  # items before each frame
    offsets: NDArray[np.int64]  # the starts of all items, unpacked, end to end
    table: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """The memory this takes."""
        return self.offsets.nbytes + self.bounds.nbytes + self.table.nbytes

    def part(self, number: int) -> ItemPart:
        """Return the items of a frame, unpacked."""
        frame, file = self.table[number], self.chunk.file
        offsets = self.offsets[self.bounds[number] : self.bounds[number + 1] + 1]
        size, at = int(offsets[-1] - offsets[0]), int(frame["at"])
        packed = file.read(at, at + int(frame["packed"]))
        return ItemPart(
            file.name, offsets - offsets[0], memory=inflate(packed, self.chunk.codec, name=file.name, size=size)
        )


def read_chunk(chunk: LitDataChunk) -> ItemPart | Frames | ArrowRows:
    """Return the items of a chunk, its compressed frames, or its rows."""
    file = chunk.file
    if chunk.level == "batch":
        return _read_frames(chunk)
    if chunk.level == "chunk":
        memory = inflate(file.read(0, file.size), chunk.codec, name=file.name)
        return part_in_memory(file.name, memory, chunk.samples)
    part = part_in_file(file, chunk.samples)
    if chunk.level == "sample":
        return ItemPart(part.name, part.offsets, file=file, unpack=partial(inflate, codec=chunk.codec, name=file.name))
    if len(part) and part.offsets[0] == part.offsets[-1]:
        return read_rows(file, int(part.offsets[-1]), chunk.samples) or part
    return part


def _read_frames(chunk: LitDataChunk) -> Frames:
    file = chunk.file
    if file.size < _PREFIX.size:
        raise SourceFormatError("a chunk is shorter than its header", file=file.name, bytes=file.size)
    magic, version, _, items, _, count = _PREFIX.unpack(file.read(0, _PREFIX.size))
    tables = _PREFIX.size + 4 * (items + 1)
    end = tables + count * _FRAME.itemsize
    if magic != _FRAMED or version != _FRAMED_VERSION or items != chunk.samples or end > file.size:
        raise SourceFormatError("a chunk does not match the index", file=file.name, items=items, index=chunk.samples)
    offsets = np.frombuffer(file.read(_PREFIX.size, tables), dtype="<u4").astype(np.int64)
    table = np.frombuffer(file.read(tables, end), dtype=_FRAME)
    bounds = bounds_of(table["items"].astype(np.int64))
    check_offsets(offsets, first=0, last=MAX_INFLATED, name=file.name)
    stops = table["at"].astype(np.float64) + table["packed"]
    if (
        bounds[-1] != items
        or (bounds[:-1] != table["first"]).any()
        or (table["at"] < end).any()
        or (stops > file.size).any()
        or (np.diff(offsets[bounds]) != table["raw"]).any()
    ):
        raise SourceFormatError("the compressed parts of a chunk do not match its size", file=file.name)
    return Frames(chunk, bounds, offsets, table)
