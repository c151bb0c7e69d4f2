"""The footers of remote Parquet files: one small request each, and none if they were read before.

A footer says where everything in its file is. It is read from the end of the file, separately from the data blocks. The
answer to a request for a file's last bytes includes its size and version, so no other request is needed. Footers are
cached next to the blocks, those of many files together; for files that were opened before, only the version is
requested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.sources.remote import RemoteFile
from holdfast.sources.saved_index import Index, join_indexes, load_index, save_index, split_index
from holdfast.sources.side_by_side import each_side_by_side

__all__ = ["read_footers"]

# Bytes read from the end of a file at first: longer than most footers, and as fast as anything shorter.
TAIL_BYTES = 64 * 1024
# Number of files whose footers are cached together.
KEPT_TOGETHER = 512
_END_BYTES = 8  # the footer's length and a magic number
_MAGIC = b"PAR1"
_KIND = {"kind": "joined footer"}


def read_footers(files: Sequence[RemoteFile]) -> Iterator[Any]:
    """Yield, for each file, what Arrow reads as a Parquet file without data."""
    import pyarrow as pa

    groups = [files[start : start + KEPT_TOGETHER] for start in range(0, len(files), KEPT_TOGETHER)]
    known = [_load(group) for group in groups]
    together = {name: part for parts in known for name, part in parts.items()}
    coming = each_side_by_side(partial(_footer, together), files)
    for group, parts in zip(groups, known, strict=True):
        found = list(islice(coming, len(group)))
        _keep(group, found, parts)
        for index in found:
            yield pa.BufferReader(pa.py_buffer(_MAGIC + index.arrays["footer"].tobytes()))


def _footer(known: dict[str, tuple[Any, Index]], file: RemoteFile) -> Index:
    kept = known.get(file.name)
    if kept is not None and kept[0] == list(file.stamp()):
        return kept[1]
    tail = file.read_tail(TAIL_BYTES)
    length = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    if tail.endswith(_MAGIC) and len(tail) < length <= file.size:
        tail = file.read_apart(file.size - length, file.size - len(tail)) + tail
    # Anything that is not a footer is passed on: Arrow reports what is wrong with it.
    return Index({"footer": np.frombuffer(tail[-length:] if length <= len(tail) else tail, dtype=np.uint8)})


def _load(files: Sequence[RemoteFile]) -> dict[str, tuple[Any, Index]]:
    place = _place(files)
    kept = None if place is None else load_index(place, _KIND)
    return {} if kept is None else split_index(kept, _has_form)


def _keep(files: Sequence[RemoteFile], indexes: Sequence[Index], known: dict[str, tuple[Any, Index]]) -> None:
    found = dict[str, tuple[Any, Index]]()
    is_new = False
    for file, index in zip(files, indexes, strict=True):
        if not file.stamp().is_versioned:  # it could not be checked later whether the footer still matches
            continue
        found[file.name] = list(file.stamp()), index
        is_new = is_new or file.name not in known or known[file.name][1] is not index
    place = _place(files)
    if place is not None and is_new:
        # Another source may begin with the same file and continue with others: theirs are kept too.
        others = [(name, part) for name, part in known.items() if name not in found]
        save_index(place, join_indexes(dict(others[-KEPT_TOGETHER:]) | found), _KIND)


def _place(files: Sequence[RemoteFile]) -> Path | None:
    """Return the path of the cached footers of these files, named after the first; None if nothing is cached."""
    options = files[0].options
    if not options.cache_limit:
        return None
    name = hashlib.blake2b(files[0].name.encode(), digest_size=12).hexdigest()
    return options.folder() / "footers" / f"{name}.footers-index"


def _has_form(index: Index) -> bool:
    return "footer" in index.arrays and index.arrays["footer"].dtype == np.uint8
