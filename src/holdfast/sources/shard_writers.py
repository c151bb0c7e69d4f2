"""Writes columns as a shard of another format: a Parquet file, or a shard of Mosaic's MDS."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.base import Column, Columns
from holdfast.sources.mds_encodings import SCALARS
from holdfast.sources.ragged import Ragged

__all__ = [
    "arrow_table",
    "check_compression",
    "mds_encoding",
    "mds_index",
    "mds_samples",
    "parquet_samples",
    "write_mds",
    "write_parquet",
]

MAX_SHARD_BYTES = 2**32 - 1  # offsets in MDS shards have 32 bits


def check_compression(name: str | None) -> None:
    """Raise unless Parquet files can be written with a compression."""
    import pyarrow as pa

    known = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
    if name is not None and (name not in known or (name != "none" and not pa.Codec.is_available(name))):
        raise ConfigError("unknown compression", compression=name, known=known)


def write_parquet(columns: Columns, path: Path, *, schema: Any, compression: str | None) -> None:
    """Write columns as a Parquet file, completely or not at all."""
    import pyarrow.parquet as parquet

    parquet.write_table(arrow_table(columns, schema), path, compression=compression or "none")


def arrow_table(columns: Columns, schema: Any = None) -> Any:
    """Return columns as an Arrow table that reads back as the same columns.

    Args:
        columns: the columns to write.
        schema: the types of columns of Python objects; None to infer them from the values.
    """
    import pyarrow as pa

    arrays = {}
    for name, column in columns.items():
        try:
            kind = None if schema is None else schema.field(name).type
            arrays[name] = _arrow_array(column, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:  # noqa: PERF203  # names the column
            raise SourceFormatError(
                f"a column cannot be written: {error}", column=name, dtype=str(column.dtype)
            ) from error
    return pa.table(arrays)


def _arrow_array(column: Column, kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, Ragged):
        values, offsets = np.ascontiguousarray(column.values), pa.array(column.offsets)
        if values.ndim != 1:
            raise TypeError("multi-dimensional arrays cannot be stored in it")
        if values.dtype == np.uint8:
            made = pa.large_string() if column.encoding else pa.large_binary()
            buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(values)]
            array = pa.Array.from_buffers(made, len(column), buffers)
            array.validate(full=True)
            return array
        return pa.LargeListArray.from_arrays(offsets, pa.array(values))
    if column.dtype.hasobject:
        return pa.array(column.tolist(), type=kind)
    if column.ndim == 1:
        return pa.array(column)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), int(np.prod(column.shape[1:])))
    if column.ndim == 2:
        return flat
    shaped = pa.fixed_shape_tensor(flat.type.value_type, column.shape[1:])
    return pa.ExtensionArray.from_storage(shaped, flat)


def mds_encoding(name: str, column: Column) -> str:
    """Return the encoding of a column in MDS."""
    if isinstance(column, Ragged):
        if column.values.dtype == np.uint8:
            return "str" if column.encoding else "bytes"
        if column.values.ndim == 1 and column.values.dtype.name in SCALARS:
            return f"ndarray:{column.values.dtype.name}"
    elif column.dtype.hasobject:
        return "json"
    elif column.dtype.name in SCALARS:
        shape = ",".join(map(str, column.shape[1:]))
        return f"ndarray:{column.dtype.name}:{shape}" if shape else column.dtype.name
    raise ConfigError(
        "MDS has no encoding for a column", column=name, dtype=str(column.dtype), hint="convert to Parquet"
    )


def write_mds(columns: Columns, path: Path, *, encodings: dict[str, str]) -> None:
    """Write columns as an MDS shard."""
    names = list(encodings)
    fields = [_fields(name, columns[name], encodings[name]) for name in names]
    stated = [number for number, name in enumerate(names) if _fixed_size(encodings[name]) is None]
    samples = []
    for row in zip(*fields, strict=True):
        sizes = np.array([len(row[number]) for number in stated], dtype="<u4").tobytes()
        samples.append(sizes + b"".join(row))
    config = json.dumps(_config(names, encodings), sort_keys=True).encode()
    head = 4 * (len(samples) + 2) + len(config)
    offsets = head + np.concatenate([[0], np.cumsum([len(sample) for sample in samples])])
    if offsets[-1] > MAX_SHARD_BYTES:
        raise ConfigError(
            "an MDS shard is limited to 4 GiB", bytes=int(offsets[-1]), hint="use fewer samples per shard"
        )
    with open(path, "wb") as out:
        out.write(np.array([len(samples)], dtype="<u4").tobytes() + offsets.astype("<u4").tobytes() + config)
        out.writelines(samples)


def mds_samples(path: Path) -> int | None:
    """Return the number of samples of an MDS shard, or None if its length does not match its header."""
    with open(path, "rb") as shard:
        count = int.from_bytes(shard.read(4), "little")
        shard.seek(4 * (count + 1))
        return count if int.from_bytes(shard.read(4), "little") == os.path.getsize(path) > 0 else None


def parquet_samples(path: Path) -> int | None:
    """Return the number of samples of a Parquet file, or None if it does not end with a footer."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        count: int = parquet.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):
        return None
    return count


def mds_index(shards: Sequence[tuple[Path, int]], encodings: dict[str, str]) -> dict[str, Any]:
    """Return the index of shards, given the number of samples of each."""
    names = list(encodings)
    return {
        "version": 2,
        "shards": [
            {
                **_config(names, encodings),
                "samples": samples,
                "raw_data": {"basename": path.name, "bytes": os.path.getsize(path), "hashes": {}},
                "zip_data": None,
            }
            for path, samples in shards
        ],
    }


def _config(names: list[str], encodings: dict[str, str]) -> dict[str, Any]:
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": names,
        "column_encodings": [encodings[name] for name in names],
        "column_sizes": [_fixed_size(encodings[name]) for name in names],
    }


def _fixed_size(encoding: str) -> int | None:
    from holdfast.sources.mds_encodings import fixed_size_of

    return fixed_size_of(encoding, column="", file="")


def _fields(name: str, column: Column, encoding: str) -> list[bytes]:
    """Return the bytes of a column's values as MDS encodes them."""
    if isinstance(column, Ragged):
        rows = column.to_bytes()
        if not encoding.startswith("ndarray"):
            return rows
        return [_shape_head(len(row) // column.values.dtype.itemsize) + row for row in rows]
    if encoding == "json":
        try:
            return [json.dumps(value).encode() for value in column.tolist()]
        except (TypeError, ValueError) as error:
            raise SourceFormatError(f"a value cannot be written as JSON: {error}", column=name) from error
    little = np.ascontiguousarray(column).astype(column.dtype.newbyteorder("<"), copy=False)
    return [row.tobytes() for row in little]


def _shape_head(length: int) -> bytes:
    """Return the number of dimensions, one, and the length, in as few bytes as possible."""
    width = next(width for width in range(4) if length < 1 << (8 << width))
    return bytes([1 << 2 | width]) + length.to_bytes(1 << width, "little")
