"""The footers of remote Parquet files: one small request each, and none where they were read before.

A footer says where everything in its file lies. It is read from the file's end, apart from the blocks of the data, and
kept beside them: ten thousand files are then opened without reading any again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.sources.files import DataFile
from holdfast.sources.index_file import Index, cached_indexes
from holdfast.sources.remote import RemoteFile

__all__ = ["read_footer"]

# Read from a file's end at first: longer than most footers, and as quickly sent as anything shorter.
TAIL_BYTES = 64 * 1024
_END_BYTES = 8  # the footer's length and a magic number
_MAGIC = b"PAR1"


def read_footer(file: RemoteFile) -> Any:
    """Return what Arrow reads as a Parquet file without data."""
    import pyarrow as pa

    options = file.options
    if not options.cache_limit:
        (index,) = _build([file])
    else:
        folder = options.folder() / "footers"
        (index,) = cached_indexes([file], "footer", _build, has_form=_has_form, folder=folder)
    return pa.BufferReader(pa.py_buffer(_MAGIC + index.arrays["footer"].tobytes()))


def _build(files: Sequence[DataFile]) -> list[Index]:
    (file,) = files
    assert isinstance(file, RemoteFile)
    size = file.size
    tail = file.read_apart(max(0, size - TAIL_BYTES), size)
    length = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if tail.endswith(_MAGIC) and len(tail) < length <= size:
        tail = file.read_apart(size - length, size - len(tail)) + tail
    # What is no footer is left as it is: Arrow says what is wrong with it.
    return [Index({"footer": np.frombuffer(tail[-length:] if length <= len(tail) else tail, dtype=np.uint8)})]


def _has_form(index: Index) -> bool:
    return "footer" in index.arrays and index.arrays["footer"].dtype == np.uint8
