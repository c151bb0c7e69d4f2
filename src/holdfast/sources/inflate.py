"""Bounded decompression: data that unpacks to more than was declared is rejected before it fills the memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceFormatError

__all__ = ["MAX_INFLATED", "inflate"]

MAX_INFLATED = 2**32  # bytes of one shard: these formats use 32-bit offsets
_PIECE = 16 * 2**20
_BY_NAME = {"zstd": "zstd", "gz": "gzip", "gzip": "gzip", "br": "brotli", "bz2": "bz2", "lz4": "lz4"}


def inflate(
    packed: Any, codec: str, *, name: str, size: int | None = None, limit: int = MAX_INFLATED
) -> NDArray[np.uint8]:
    """Return the decompressed bytes.

    Args:
        packed: the compressed bytes, as a buffer.
        codec: ``zstd``, ``gz``, ``br``, ``bz2``, ``lz4`` or ``snappy``; anything after a colon (a level) is ignored.
        name: the file, for errors.
        size: the declared decompressed size; None if unknown.
        limit: maximum decompressed size.
    """
    import pyarrow as pa

    kind = codec.partition(":")[0]
    if size is not None and size > limit:
        raise SourceFormatError("a shard unpacks to more than a shard can hold", file=name, bytes=size, at_most=limit)
    most = limit if size is None else size
    try:
        if kind == "snappy":
            found = _inflate_snappy(packed, name, most)
        elif kind in _BY_NAME:
            found = _inflate_stream(packed, _BY_NAME[kind], name, most)
        else:
            raise SourceFormatError(
                "unknown compression", file=name, compression=codec[:40], known=sorted([*_BY_NAME, "snappy"])
            )
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise SourceFormatError(f"compressed data is damaged: {error}", file=name, compression=kind) from error
    if size is not None and len(found) != size:
        raise SourceFormatError("compressed data does not unpack to the declared size", file=name, announced=size)
    return found


def _inflate_stream(packed: Any, codec: str, name: str, most: int) -> NDArray[np.uint8]:
    import pyarrow as pa

    pieces, total = [], 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), codec) as stream:
        while piece := stream.read(min(_PIECE, most + 1 - total)):
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise SourceFormatError(
                    "compressed data unpacks to more than the declared size", file=name, at_most=most
                )
    return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), dtype=np.uint8)


def _inflate_snappy(packed: Any, name: str, most: int) -> NDArray[np.uint8]:
    """Unpack raw snappy, which begins with its decompressed size."""
    import pyarrow as pa

    raw = memoryview(packed).cast("B")
    size = shift = 0
    for byte in raw[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise SourceFormatError("compressed data unpacks to more than the declared size", file=name, at_most=most)
    return np.frombuffer(pa.decompress(pa.py_buffer(raw), size, codec="snappy"), dtype=np.uint8)
