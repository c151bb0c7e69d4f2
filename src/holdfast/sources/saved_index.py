"""The format of an index on disk, of one data file or of many.

Plain data: a JSON header and raw integer arrays, followed by a digest. It runs no code; an index that is torn, damaged
or of another version is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError
from holdfast.sources.collection import collection_paused
from holdfast.sources.files import map_file

__all__ = ["HasForm", "Index", "join_indexes", "load_index", "save_index", "split_index"]

_MAGIC = b"holdfast index 1"
_DIGEST_BYTES = 32
_DTYPES = ("<i8", "|u1")
MAX_HEADER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Index:
    """Integer arrays and a small JSON-compatible mapping that say where a file's samples are."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any] = field(default_factory=dict)


HasForm = Callable[[Index], bool]
"""Returns whether an index from disk has the arrays and fields required for its kind."""


@collection_paused()
def join_indexes(parts: Mapping[str, tuple[Any, Index]]) -> Index:
    """Return one index of many files, with arrays of the same name concatenated: thousands of small ones are slow."""
    joined: dict[str, list[NDArray[Any]]] = {}
    files = []
    for file, (state, part) in parts.items():
        files.append([file, state, part.about, {name: len(array) for name, array in part.arrays.items()}])
        for name, array in part.arrays.items():
            joined.setdefault(name, []).append(array)
    return Index({name: np.concatenate(arrays) for name, arrays in joined.items()}, {"files": files})


@collection_paused()
def split_index(shared: Index, has_form: HasForm) -> dict[str, tuple[Any, Index]]:
    """Return the version of each file in a shared index, and where its samples are."""
    at = dict.fromkeys(shared.arrays, 0)
    found: dict[str, tuple[Any, Index]] = {}
    try:
        for file, state, about, lengths in shared.about["files"]:
            arrays = {name: shared.arrays[name][at[name] : at[name] + length] for name, length in lengths.items()}
            for name, length in lengths.items():
                at[name] += length
            index = Index(arrays, dict(about))
            if has_form(index):
                found[str(file)] = state, index
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
    return found


def load_index(place: Path, expected: dict[str, Any]) -> Index | None:
    """Return the index at a path, if it is complete and its header is as expected."""
    try:
        raw = map_file(place)
    except SourceError:
        return None
    start = len(_MAGIC) + 8
    if len(raw) < start + _DIGEST_BYTES or raw[: len(_MAGIC)].tobytes() != _MAGIC:
        return None
    body = raw[:-_DIGEST_BYTES]
    if hashlib.blake2b(body.data, digest_size=_DIGEST_BYTES).digest() != raw[-_DIGEST_BYTES:].tobytes():
        return None
    header_bytes = int.from_bytes(raw[len(_MAGIC) : start].tobytes(), "little")
    if header_bytes > min(MAX_HEADER_BYTES, len(body) - start):
        return None
    try:
        header = json.loads(raw[start : start + header_bytes].tobytes())
        if any(header[key] != value for key, value in expected.items()):
            return None
        arrays = {
            str(name): _view(body[start + header_bytes :], int(at), str(dtype), int(count))
            for name, (dtype, count, at) in header["arrays"].items()
        }
        about = dict(header["about"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return Index(arrays, about)


def _view(body: NDArray[np.uint8], at: int, dtype: str, count: int) -> NDArray[Any]:
    if dtype not in _DTYPES or at < 0 or count < 0:
        raise ValueError("invalid array in an index")
    size = count * np.dtype(dtype).itemsize
    if at + size > len(body):
        raise ValueError("an array of an index ends outside it")
    return body[at : at + size].view(dtype)


def save_index(place: Path, index: Index, expected: dict[str, Any]) -> bool:
    """Save an index at a path atomically; return whether that was possible."""
    arrays, layout, at = [], {}, 0
    for name, array in index.arrays.items():
        plain = np.ascontiguousarray(array, dtype="<i8" if array.dtype.kind == "i" else "|u1")
        layout[name] = (plain.dtype.str, len(plain), at)
        arrays.append(plain.tobytes() + bytes(-plain.nbytes % 8))
        at += len(arrays[-1])
    header = json.dumps({**expected, "about": index.about, "arrays": layout}).encode()
    header += b" " * (-(len(_MAGIC) + 8 + len(header)) % 8)  # keeps the arrays aligned
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    aside = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".index-", delete=False) as out:
            aside = out.name
            for piece in (_MAGIC, len(header).to_bytes(8, "little"), header, *arrays):
                digest.update(piece)
                out.write(piece)
            out.write(digest.digest())
        os.chmod(aside, 0o644)
        os.replace(aside, place)
    except OSError:
        if aside is not None and os.path.exists(aside):
            os.unlink(aside)
        return False
    return True
