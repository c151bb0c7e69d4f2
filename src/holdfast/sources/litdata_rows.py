"""LitData chunks of plain rows: a table of empty items, followed by all rows in an Arrow table.

LitData writes chunks this way if a sample is a dict of text, bytes, numbers and nested values of these. The Arrow file
is followed by its size and eight bytes that mark it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.errors import SourceFormatError
from holdfast.sources.arrow_columns import objects_of
from holdfast.sources.arrow_ipc import parse_batches
from holdfast.sources.arrow_memory import ArrowMemory
from holdfast.sources.base import Column, Indices
from holdfast.sources.files import DataFile
from holdfast.sources.inflate import MAX_INFLATED

__all__ = ["ArrowRows", "read_rows"]

_TAIL = struct.Struct("<I8s")
_MAGIC = b"LDARW01\0"


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """The rows of a chunk.

    Attributes:
        name: its file.
        table: the Arrow table.
        nbytes: the memory this takes.
    """

    name: str
    table: Any
    nbytes: int
    _columns: dict[tuple[str, str], ArrowMemory] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def read(self, leaf: str, data_format: str, rows: Indices) -> Column:
        """Copy a leaf of some rows.

        Args:
            leaf: its path, joined by dots.
            data_format: its format according to the index, the same for every chunk.
            rows: the rows to copy.
        """
        kind = data_format.partition(":")[0]
        if kind == "json":
            return objects_of(self._leaf(leaf).take(rows).to_pylist())
        memory = self._columns.get((leaf, kind))
        if memory is None:
            memory = self._columns[leaf, kind] = self._typed(leaf, kind)
        return memory.read(rows)

    def _typed(self, leaf: str, kind: str) -> ArrowMemory:
        import pyarrow as pa

        types = {"str": pa.large_string(), "text": pa.large_string(), "bytes": pa.large_binary()}
        types |= {"bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
        if kind not in types:
            raise SourceFormatError("the types of rows do not match the index", file=self.name, column=leaf)
        column = self._leaf(leaf)
        if column.null_count and kind != "float":
            raise SourceFormatError(
                "a leaf is missing in some rows", file=self.name, column=leaf, hint="leave it out with columns=[…]"
            )
        try:
            return ArrowMemory(column.cast(types[kind]), name=leaf, fill_null={})
        except pa.ArrowException as error:
            raise SourceFormatError(
                f"a leaf is not what the index says: {error}"[:300], file=self.name, column=leaf, format=kind
            ) from error

    def _leaf(self, path: str) -> Any:
        """Return the column of a leaf: one of that name, or a field of a struct."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = self.table.schema.names
        first = next((name for name in sorted(names, key=len) if path == name or path.startswith(f"{name}.")), None)
        if first is None or names.count(first) > 1:
            raise SourceFormatError(
                "a chunk lacks a column of the index", file=self.name, column=path, found=names[:20]
            )
        column = self.table[first]
        rest = path[len(first) + 1 :]
        try:
            return pc.struct_field(column, rest.split(".")) if rest else column
        except (pa.ArrowException, KeyError, IndexError) as error:
            raise SourceFormatError("a chunk lacks a column of the index", file=self.name, column=path) from error


def read_rows(file: DataFile, start: int, count: int) -> ArrowRows | None:
    """Return the rows of a chunk, or None if it has none.

    Args:
        file: the chunk.
        start: where its items end.
        count: number of rows according to the index.
    """
    import pyarrow as pa

    if file.size < start + _TAIL.size:
        return None
    size, magic = _TAIL.unpack(file.read(file.size - _TAIL.size, file.size))
    if magic != _MAGIC:
        return None
    stop = file.size - _TAIL.size
    if size > stop - start:
        raise SourceFormatError("the rows of a chunk do not match its size", file=file.name, bytes=size)
    # Copied, because Arrow needs aligned buffers, and because a file may be truncated later.
    raw = np.frombuffer(bytes(file.read(stop - size, stop)), dtype=np.uint8)
    schema, batches, decoded = parse_batches(raw, file.name, MAX_INFLATED)
    try:
        table = pa.Table.from_batches(batches, schema=schema)
        table.validate(full=True)
    except pa.ArrowException as error:
        raise SourceFormatError(f"the rows of a chunk are damaged: {error}"[:300], file=file.name) from error
    if table.num_rows != count:
        raise SourceFormatError(
            "the number of items in a shard does not match the index",
            file=file.name,
            shard=table.num_rows,
            index=count,
        )
    return ArrowRows(file.name, table, raw.nbytes + decoded)
