"""Indexes of data files, kept on disk: where each sample lies, found once and used by every later run.

An index lies beside its data file, or in a cache folder where that cannot be written or is behind a URL. It is plain
data: a JSON header and raw integer arrays, ended by a digest of all before it. It names no file and runs no code; one
that is torn, damaged, of another version, or made from another state of the data file is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.sources.files import DataFile

_MAGIC = b"holdfast index 1"
_DIGEST_BYTES = 32
_DTYPES = ("<i8", "|u1")
_PROBES, _PROBE_BYTES = 16, 1024
_MOST_HEADER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Index:
    """Integer arrays and a small JSON-able mapping that say where a file's samples lie."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any] = field(default_factory=dict)


def cached_index(
    file: DataFile,
    kind: str,
    build: Callable[[], Index],
    *,
    has_form: Callable[[Index], bool],
    folder: str | os.PathLike[str] | None,
) -> Index:
    """The index of a file: read from disk when one fits the file as it is now, else built and kept.

    Args:
        file: the data file.
        kind: what the index is of; another kind never fits.
        build: makes the index.
        has_form: whether an index read from disk holds the arrays and fields that one of this kind must.
        folder: where to keep it instead of beside the file.
    """
    expected = {"kind": kind, "stamp": list(file.stamp()), "probe": _probe(file)}
    places = _places(file, kind, folder)
    for place in places:
        found = _load(place, expected)
        if found is not None and has_form(found):
            return found
    index = build()
    for place in places:
        if _save(place, index, expected):
            # Read back as a map: processes then share one copy of a large index.
            return _load(place, expected) or index
    return index


def _places(file: DataFile, kind: str, folder: str | os.PathLike[str] | None) -> list[Path]:
    base = file.name.rstrip("/").rpartition("/")[2][:100]
    distinct = hashlib.blake2b(file.name.encode(), digest_size=8).hexdigest()
    if folder is not None:
        return [Path(folder) / f"{base}-{distinct}.{kind}-index"]
    places = [Path.home() / ".cache" / "holdfast" / "indexes" / f"{base}-{distinct}.{kind}-index"]
    if not file.is_remote:
        places.insert(0, Path(file.name + f".{kind}-index"))
    return places


def _probe(file: DataFile) -> str:
    """A digest of pieces spread over the file: notices other content under the same size and time."""
    if file.is_remote:
        return ""  # the server's tag already tells versions apart
    starts = np.unique(np.linspace(0, max(0, file.size - _PROBE_BYTES), _PROBES).astype(np.int64))
    pieces = file.gather(starts, np.minimum(starts + _PROBE_BYTES, file.size))
    return hashlib.blake2b(pieces.values.tobytes(), digest_size=16).hexdigest()


def _load(place: Path, expected: dict[str, Any]) -> Index | None:
    try:
        raw = np.memmap(place, dtype=np.uint8, mode="r")
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None
    start = len(_MAGIC) + 8
    if len(raw) < start + _DIGEST_BYTES or raw[: len(_MAGIC)].tobytes() != _MAGIC:
        return None
    body = raw[:-_DIGEST_BYTES]
    if hashlib.blake2b(body.data, digest_size=_DIGEST_BYTES).digest() != raw[-_DIGEST_BYTES:].tobytes():
        return None
    header_bytes = int.from_bytes(raw[len(_MAGIC) : start].tobytes(), "little")
    if header_bytes > min(_MOST_HEADER_BYTES, len(body) - start):
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
        raise ValueError("not an array of an index")
    size = count * np.dtype(dtype).itemsize
    if at + size > len(body):
        raise ValueError("an array of an index ends outside it")
    return body[at : at + size].view(np.ndarray).view(dtype)


def _save(place: Path, index: Index, expected: dict[str, Any]) -> bool:
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
