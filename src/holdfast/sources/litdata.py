"""LitData folders: chunks of samples listed in an ``index.json``, raw or compressed with zstd.

A chunk is opened when first read. Rows that LitData stores as an Arrow table are read by Arrow. Compressed chunks are
unpacked in memory, within ``cache_bytes``: whole, in groups of samples or sample by sample, as they were written.
Leaves that are pickles run code when loaded and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.base import Columns, Indices, check_indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.sources.field_decoders import Decoder
from holdfast.sources.file_source import FileRanges, FileSource
from holdfast.sources.files import PathLike
from holdfast.sources.item_shards import ItemPart, Items
from holdfast.sources.litdata_chunks import Frames, LitDataChunk, read_chunk
from holdfast.sources.litdata_rows import ArrowRows
from holdfast.sources.litdata_values import column_names, decoder_of, flat_dtype_of, unsafe
from holdfast.sources.parts import bounds_of, merge_parts, read_by_part, read_together
from holdfast.sources.ragged import gather_rows
from holdfast.sources.remote import RemoteOptions
from holdfast.sources.shard_folder import ShardFolder, check_fields
from holdfast.sources.window import Window, plan_window

__all__ = ["LitDataSource"]

Held: TypeAlias = ItemPart | Frames | ArrowRows


@dataclass(frozen=True, slots=True)
class _Opened:
    bounds: NDArray[np.int64]
    chunks: DecodedCache[Held]
    decoders: list[tuple[str, int, Decoder]]


class LitDataSource(FileSource[_Opened]):
    """The samples of a folder written by ``litdata.optimize``.

    A sample's leaves are columns named by their path (``image``, ``boxes.0``); a sample that is a single leaf has the
    column ``value``, and token chunks (``TokensLoader``) the column ``tokens``.

    Args:
        folder: the folder with the ``index.json``, or its URL.
        columns: the columns to read; None for all.
        block_size: tokens per sample, for token chunks, which do not store it.
        cache_bytes: maximum memory for unpacked chunks and tables of sample offsets; the one in use is always kept.
        remote: how URLs are read.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        columns: Sequence[str] | None = None,
        block_size: int | None = None,
        cache_bytes: int = 512 * 2**20,
        remote: RemoteOptions | None = None,
    ) -> None:
        self._folder = ShardFolder.at(folder, remote)
        index = self._folder.read_json()
        file = self._folder.index_name
        config = check_fields(index.get("config"), {"data_format": list}, file=file, what="the index's config")
        listed = index.get("chunks")
        if not isinstance(listed, list) or not listed:
            raise SourceFormatError("the index lists no chunks", file=file)
        self._formats = _formats_of(config, file)
        self._tokens = config.get("item_loader") == "TokensLoader"
        self._block = _block_size(self._tokens, block_size, file)
        names = ["tokens"] if self._tokens else column_names(config.get("data_spec"), len(self._formats), file=file)
        self._wanted = _wanted(columns, names, self._formats, file)
        self._chunks = [LitDataChunk.of(entry, config, self._folder) for entry in listed]
        self._cache_bytes = cache_bytes
        super().__init__([chunk.file for chunk in self._chunks])

    def __len__(self) -> int:
        return int(self._opened.bounds[-1])

    def shards(self) -> Sequence[int]:
        """Return the number of samples of each chunk."""
        lengths: list[int] = np.diff(self._opened.bounds).tolist()
        return lengths

    def read(self, indices: Indices) -> Columns:
        """Copy the leaves of the samples at ``indices`` from their chunks."""
        opened = self._opened
        rows = check_indices(indices, int(opened.bounds[-1]), source="LitDataSource")
        self._hurry(rows)
        columns = read_together(
            rows,
            opened.bounds,
            partial(self._held, opened),
            partial(self._read_chunks, opened),
            size_of=lambda held: held.nbytes,
            limit=self._cache_bytes,
        )
        self._count_rows(rows, opened.bounds)
        self.counters.add(bytes_read=sum(column.nbytes for column in columns.values()))
        return columns

    def _ranges(self, rows: Indices) -> Iterable[FileRanges]:
        return self._whole_files(rows, self._opened.bounds)

    def window(self) -> Window | None:
        """Return how a remote source is best shuffled: by chunks, which are fetched whole."""
        shards = [samples for samples in self.shards() if samples]
        if not self._is_remote:
            return None
        options = self._first_remote().options
        return plan_window(len(self), stored_bytes=self._stored_bytes(), options=options, shards=shards)

    def _held(self, opened: _Opened, number: int) -> Held:
        held = opened.chunks.get(number, partial(self._chunk, number))
        if not isinstance(held, ItemPart) or held.memory is not None:
            self._chunks[number].file.check_unchanged()  # a chunk that is cached unpacked would hide a change
        return held

    def _chunk(self, number: int) -> Held:
        held = read_chunk(self._chunks[number])
        if self._tokens and isinstance(held, ItemPart):
            stored = int(held.offsets[-1] - held.offsets[0])
            if stored < self._chunks[number].tokens * self._token.itemsize:
                raise SourceFormatError("a chunk has fewer tokens than the index says", file=held.name)
        return held

    def _read_chunks(self, opened: _Opened, held: list[Held], places: list[Indices], rows: Indices) -> Columns:
        plain = [part for part in held if isinstance(part, ItemPart) and part.unpack is None]
        if len(plain) == len(held) and not self._tokens:
            return self._decode(opened, Items(plain, places, rows))
        pieces = [self._read_chunk(opened, part, rows[where]) for part, where in zip(held, places, strict=True)]
        return pieces[0] if len(pieces) == 1 else merge_parts(pieces, places)

    def _read_chunk(self, opened: _Opened, held: Held, rows: Indices) -> Columns:
        if isinstance(held, Frames):
            return read_by_part(rows, held.bounds, partial(self._read_frame, opened, held))
        if isinstance(held, ArrowRows):
            return {name: held.read(name, self._formats[leaf], rows) for name, leaf, _ in opened.decoders}
        if self._tokens:
            return self._read_blocks(held, rows)
        if held.unpack is not None:
            held, rows = held.inflate_items(rows), np.arange(len(rows))
        return self._decode(opened, Items.of(held, rows))

    def _read_frame(self, opened: _Opened, frames: Frames, frame: int, rows: Indices) -> Columns:
        part = opened.chunks.get((frames.chunk.file.name, frame), partial(frames.part, frame))
        assert isinstance(part, ItemPart)
        return self._decode(opened, Items.of(part, rows))

    def _decode(self, opened: _Opened, items: Items) -> Columns:
        fields = items.read_fields([None] * len(self._formats), [leaf for _, leaf, _ in opened.decoders])
        columns: Columns = {}
        for (name, _, decode), field in zip(opened.decoders, fields, strict=True):
            columns |= decode(name, field)
        return columns

    def _read_blocks(self, part: ItemPart, rows: Indices) -> Columns:
        width = self._block * self._token.itemsize
        starts = int(part.offsets[0]) + rows * width
        values, starts, stops = part.bytes_at(starts, starts + width)
        blocks = gather_rows(values, starts, stops).values.view(self._token)
        return {"tokens": blocks.reshape(len(rows), self._block)}

    @property
    def _token(self) -> np.dtype[Any]:
        dtype = flat_dtype_of(self._formats[0], file=self._folder.index_name)
        assert dtype is not None  # checked with the index
        return dtype

    def _open(self) -> _Opened:
        counts = [chunk.tokens // self._block if self._tokens else chunk.samples for chunk in self._chunks]
        bounds = bounds_of(counts)
        if not bounds[-1]:
            raise SourceFormatError("no chunk is long enough for one sample", file=self._folder.index_name)
        chunks: DecodedCache[Held] = DecodedCache(self._cache_bytes, lambda held: held.nbytes)
        opened = _Opened(bounds, chunks, [])
        if not self._tokens:
            for name, leaf in self._wanted:
                sample = partial(self._first_leaf, opened, leaf)
                decode = decoder_of(self._formats[leaf], sample, column=name, file=self._folder.index_name)
                opened.decoders.append((name, leaf, decode))
        return opened

    def _first_leaf(self, opened: _Opened, leaf: int) -> bytes:
        """Return a leaf of the first sample as stored."""
        from holdfast.sources.field_decoders import as_bytes

        number = int(np.searchsorted(opened.bounds, 0, side="right")) - 1
        only = _Opened(opened.bounds, opened.chunks, [("leaf", leaf, as_bytes)])
        column = self._read_chunk(only, self._held(opened, number), np.zeros(1, dtype=np.int64))["leaf"]
        return bytes(column[0])


def _formats_of(config: dict[str, Any], file: str) -> list[str]:
    formats = config["data_format"]
    if not formats or not all(isinstance(data_format, str) for data_format in formats):
        raise SourceFormatError("the index does not say how samples are stored", file=file)
    if config.get("encryption") is not None:
        raise SourceFormatError("the chunks are encrypted", file=file, hint="rewrite them without encryption")
    loader = config.get("item_loader", "PyTreeLoader")
    if loader not in ("PyTreeLoader", "TokensLoader", None):
        raise SourceFormatError(
            "chunks written for this item loader cannot be read", file=file, item_loader=str(loader)[:80]
        )
    if loader == "TokensLoader" and (len(formats) != 1 or flat_dtype_of(formats[0], file=file) is None):
        raise SourceFormatError("token chunks have one array of tokens per item", file=file, format=formats[0][:80])
    return [*formats]


def _block_size(tokens: bool, block_size: int | None, file: str) -> int:
    if not tokens:
        if block_size is not None:
            raise ConfigError("block_size is for token chunks, but these are not", file=file)
        return 1
    if block_size is None or block_size < 1:
        raise ConfigError(
            "token chunks do not store the number of tokens per sample",
            file=file,
            hint="pass block_size, like TokensLoader(block_size=…)",
        )
    return block_size


def _wanted(columns: Sequence[str] | None, names: list[str], formats: list[str], file: str) -> list[tuple[str, int]]:
    asked = names if columns is None else list(columns)
    unknown = [name for name in asked if name not in names]
    if unknown or not asked:
        raise ConfigError("the chunks lack the requested columns", columns=unknown, found=names)
    wanted = [(name, names.index(name)) for name in asked]
    refused = [name for name, leaf in wanted if unsafe(formats[leaf])]
    if refused:
        raise SourceFormatError(
            "pickled leaves run code when loaded and are refused",
            file=file,
            columns=refused,
            hint="leave them out with columns=[…], or rewrite the data as arrays, text or bytes",
        )
    return wanted
