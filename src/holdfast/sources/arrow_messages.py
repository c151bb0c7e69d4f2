"""How much memory the compressed record batches of an Arrow file decode to, before any of them is decoded.

Arrow's messages are flatbuffers. Only the table of buffers of each record batch, and whether it is compressed, are
read; a compressed buffer begins with its decoded size.
"""

from __future__ import annotations

import struct
from typing import Any

from holdfast.errors import SourceFormatError

__all__ = ["decoded_size"]

_RECORD_BATCH = "record batch"
# Fields of the flatbuffers, by their numbers in Arrow's Message.fbs.
_MESSAGE_HEADER, _BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 2, 3
_NOT_COMPRESSED = -1


def decoded_size(stream: Any) -> int:
    """Return the decoded size of all compressed buffers of an IPC stream; 0 if none is compressed.

    Raises:
        ValueError: a batch's metadata is damaged.
    """
    import pyarrow as pa

    reader = pa.BufferReader(stream)
    total = 0
    while True:
        try:
            message = pa.ipc.read_message(reader)
        except EOFError:
            return total
        if message.type in (_RECORD_BATCH, "dictionary"):
            try:
                total += _decoded_size(memoryview(message.metadata), message.body, message.type == _RECORD_BATCH)
            except (struct.error, IndexError) as error:
                raise ValueError("a record batch does not say where its buffers are") from error


def _decoded_size(metadata: memoryview, body: Any, is_batch: bool) -> int:
    table = _child(metadata, struct.unpack_from("<I", metadata, 0)[0], _MESSAGE_HEADER)
    if table is not None and not is_batch:
        table = _child(metadata, table, 1)  # a dictionary batch holds a record batch
    if table is None or _child(metadata, table, _BATCH_COMPRESSION) is None:
        return 0
    vector = _child(metadata, table, _BATCH_BUFFERS)
    if vector is None or body is None:
        return 0
    total, raw = 0, memoryview(body)
    for number in range(struct.unpack_from("<I", metadata, vector)[0]):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
        if offset < 0 or length < 0 or offset + length > len(raw):
            raise SourceFormatError("a buffer of a record batch is outside it")
        if length >= 8:
            size = struct.unpack_from("<q", raw, offset)[0]
            total += length if size == _NOT_COMPRESSED else max(size, 0)
    return total


def _child(data: memoryview, table: int, field: int) -> int | None:
    """Return the offset to which a field of a flatbuffer's table points, or None if it is missing."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    if layout < 0 or 4 + 2 * field >= struct.unpack_from("<H", data, layout)[0]:
        return None
    inside: int = struct.unpack_from("<H", data, layout + 4 + 2 * field)[0]
    place: int = table + inside
    return place + struct.unpack_from("<I", data, place)[0] if inside else None
