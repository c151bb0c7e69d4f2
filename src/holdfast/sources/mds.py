"""Mosaic's MDS folders: shards of samples, raw or compressed, listed in an ``index.json``.

A shard is opened when first read; a compressed one is unpacked in memory, within ``cache_bytes``. Columns with the
encoding ``pkl`` are pickles, which run code when loaded, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceError, SourceFormatError
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.field_decoders import Decoder
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import DataFile, LocalFile, PathLike
from holdfast.sources.inflate import MAX_INFLATED, inflate
from holdfast.sources.item_shards import ItemPart, Items, part_in_file, part_in_memory
from holdfast.sources.mds_encodings import decoder_of, fixed_size_of, unsafe
from holdfast.sources.parts import bounds_of, read_together
from holdfast.sources.remote import RemoteOptions
from holdfast.sources.shard_folder import ShardFolder, check_fields
from holdfast.sources.window import Window, plan_window

__all__ = ["MDSSource"]


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard as listed in the index: its file, raw or compressed, and its raw size."""

    raw: DataFile
    packed: DataFile | None
    packed_bytes: int
    compression: str
    raw_bytes: int
    samples: int


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]
    parts: DecodedCache[ItemPart]
    decoders: list[tuple[str, int, Decoder]]  # name and number of each column to read


class MDSSource(FileSource[_Opened]):
    """The samples of an MDS folder, as written by ``streaming.MDSWriter``.

    Args:
        folder: the folder with the ``index.json``, or its URL; its index may list shards in folders below it.
        columns: the columns to read; None for all.
        cache_bytes: maximum memory for unpacked shards and tables of sample offsets; the one in use is always kept.
        remote: how URLs are read.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        columns: Sequence[str] | None = None,
        cache_bytes: int = 512 * 2**20,
        remote: RemoteOptions | None = None,
    ) -> None:
        self._folder = ShardFolder.at(folder, remote)
        index = self._folder.read_json()
        shards = index.get("shards")
        if not isinstance(shards, list) or not shards:
            raise SourceFormatError("the index lists no shards", file=self._folder.index_name)
        if index.get("version") != 2:
            raise SourceFormatError(
                "unknown version of MDS", file=self._folder.index_name, version=repr(index.get("version"))[:40], known=2
            )
        self._names, self._encodings, self._sizes = _columns_of(shards, self._folder)
        self._wanted = _wanted(columns, self._names, self._encodings, self._folder)
        self._shards = [_shard(entry, self._folder) for entry in shards]
        self._cache_bytes = cache_bytes
        super().__init__([shard.packed or shard.raw for shard in self._shards])

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int]:
        """Return the number of samples of each shard."""
        return [shard.samples for shard in self._shards]

    def read(self, indices: Indices) -> Columns:
        """Copy the fields of the samples at ``indices`` from their shards."""
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="MDSSource")
        self._hurry(rows)
        columns = read_together(
            rows,
            opened.bounds,
            partial(self._held, opened),
            partial(self._read_items, opened),
            size_of=lambda part: part.nbytes,
            limit=self._cache_bytes,
        )
        self._count_rows(rows, opened.bounds)
        return columns

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        return self._whole_files(rows, self._opened.bounds)

    def window(self) -> Window | None:
        """Return how a remote source is best shuffled: by shards, which are fetched whole."""
        if not self._is_remote:
            return None
        packed = [shard for shard in self._shards if shard.packed is not None]
        return plan_window(
            len(self),
            stored_bytes=self._stored_bytes(),
            options=self._first_remote().options,
            shards=[samples for samples in self.shards() if samples],
            decoded_bytes=sum(shard.raw_bytes for shard in packed),
            memory=self._cache_bytes,
        )

    def _stored_bytes(self) -> int:
        return sum(shard.raw_bytes if shard.packed is None else shard.packed_bytes for shard in self._shards)

    def _held(self, opened: _Opened, number: int) -> ItemPart:
        part = opened.parts.get(number, partial(self._part, number))
        if part.memory is not None:
            self._files[number].check_unchanged()  # a shard that is cached unpacked would hide a change
        return part

    def _read_items(self, opened: _Opened, parts: list[ItemPart], places: list[Indices], rows: Indices) -> Columns:
        fields = Items(parts, places, rows).read_fields(self._sizes, [column for _, column, _ in opened.decoders])
        columns: Columns = {}
        for (name, _, decode), field in zip(opened.decoders, fields, strict=True):
            columns |= decode(name, field)
        self.counters.add(bytes_read=sum(field.nbytes for field in fields))
        return columns

    def _part(self, number: int) -> ItemPart:
        shard = self._shards[number]
        if shard.packed is None:
            if shard.raw.size != shard.raw_bytes:
                raise _wrong_size(shard.raw, shard.raw_bytes)
            return part_in_file(shard.raw, shard.samples)
        if shard.packed.size != shard.packed_bytes:
            raise _wrong_size(shard.packed, shard.packed_bytes)
        packed = shard.packed.read(0, shard.packed.size)
        memory = inflate(packed, shard.compression, name=shard.packed.name, size=shard.raw_bytes)
        return part_in_memory(shard.packed.name, memory, shard.samples)

    def _open(self) -> _Opened:
        bounds = bounds_of([shard.samples for shard in self._shards])
        parts: DecodedCache[ItemPart] = DecodedCache(self._cache_bytes, lambda part: part.nbytes)
        first = int(np.searchsorted(bounds, 0, side="right")) - 1  # the first shard with a sample
        decoders = []
        for number in self._wanted:
            name, encoding = self._names[number], self._encodings[number]

            def sample(number: int = number) -> bytes:
                part = parts.get(first, partial(self._part, first))
                return Items.of(part, np.zeros(1, dtype=np.int64)).read_fields(self._sizes, [number])[0].to_bytes()[0]

            decoders.append((name, number, decoder_of(encoding, sample, column=name, file=self._folder.index_name)))
        return _Opened(bounds, parts, decoders)


def _columns_of(shards: list[Any], folder: ShardFolder) -> tuple[list[str], list[str], list[int | None]]:
    """Return names, encodings and sizes of the columns, which all shards must share."""
    known: tuple[Any, ...] | None = None
    fields: dict[str, type | tuple[type, ...]] = {"column_names": list, "column_encodings": list, "column_sizes": list}
    for entry in shards:
        checked = check_fields(entry, fields, file=folder.index_name, what="a shard of the index")
        found = tuple(checked[name] for name in fields)
        if known is None:
            known = found
        elif found != known:
            raise SourceFormatError("shards differ in their columns", file=folder.index_name)
    assert known is not None
    names, encodings, sizes = known
    texts = all(isinstance(text, str) for text in [*names, *encodings])
    if not names or not texts or not len(names) == len(encodings) == len(sizes) or len(set(names)) != len(names):
        raise SourceFormatError("the index does not describe the columns", file=folder.index_name)
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        if fixed_size_of(encoding, column=name, file=folder.index_name) != (size or None):
            raise SourceFormatError(
                "the size of a column does not match its encoding",
                file=folder.index_name,
                column=name,
                encoding=encoding,
            )
    return names, encodings, [size or None for size in sizes]


def _wanted(columns: Sequence[str] | None, names: list[str], encodings: list[str], folder: ShardFolder) -> list[int]:
    asked = names if columns is None else list(columns)
    unknown = [name for name in asked if name not in names]
    if unknown or not asked:
        raise ConfigError("the shards lack the requested columns", columns=unknown, found=names)
    numbers = [names.index(name) for name in asked]
    refused = [names[number] for number in numbers if unsafe(encodings[number])]
    if refused:
        raise SourceFormatError(
            "pickled columns run code when loaded and are refused",
            file=folder.index_name,
            columns=refused,
            encoding="pkl",
            hint="leave them out with columns=[…], or rewrite the data as json or ndarray",
        )
    return numbers


def _shard(entry: Any, folder: ShardFolder) -> _Shard:
    fields: dict[str, type | tuple[type, ...]] = {"samples": int, "raw_data": dict, "format": str, "version": int}
    checked = check_fields(entry, fields, file=folder.index_name, what="a shard of the index")
    if checked["format"] != "mds" or checked["version"] != 2:
        raise SourceFormatError(
            "shards of this format or version cannot be read",
            file=folder.index_name,
            format=checked["format"][:40],
            version=checked["version"],
            known="mds 2",
        )
    info: dict[str, type | tuple[type, ...]] = {"basename": str, "bytes": int}
    raw = check_fields(checked["raw_data"], info, file=folder.index_name, what="a shard's raw_data")
    # Offsets in shards are 32-bit numbers, which limits the size of a shard.
    if raw["bytes"] > MAX_INFLATED or 4 * (checked["samples"] + 2) > raw["bytes"]:
        raise SourceFormatError(
            "a shard is too small for what the index lists", file=folder.index_name, shard=raw["basename"][:200]
        )
    file, compression = folder.file(raw["basename"]), checked.get("compression")
    packed, packed_bytes = None, 0
    if compression is not None and not _is_there(file):
        zipped = check_fields(checked.get("zip_data"), info, file=folder.index_name, what="a shard's zip_data")
        packed, packed_bytes = folder.file(zipped["basename"]), zipped["bytes"]
    return _Shard(file, packed, packed_bytes, str(compression), raw["bytes"], checked["samples"])


def _is_there(file: DataFile) -> bool:
    """Return whether the unpacked version of a compressed shard exists, as Mosaic's cache leaves it."""
    if not isinstance(file, LocalFile):
        return False
    try:
        return file.size >= 0
    except SourceError:
        return False


def _wrong_size(file: DataFile, expected: int) -> SourceFormatError:
    return SourceFormatError(
        "the size of a shard does not match the index: truncated, or still being written",
        file=file.name,
        bytes=file.size,
        index=expected,
    )
