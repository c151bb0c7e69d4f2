"""Indexes of data files, kept on disk: where each sample lies, found once and used by every later run.

An index lies beside its data file, or in a cache folder where that cannot be written or is behind a URL; small files of
one source share an index, so that a folder of thousands has one. An index is plain data: a JSON header and raw integer
arrays, ended by a digest of all before it. It runs no code; what is torn, damaged, of another version, or made from
another state of a data file is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError
from holdfast.sources.collection import collection_paused
from holdfast.sources.files import DataFile, LocalFile, map_file
from holdfast.sources.remote import look_at, side_by_side

_MAGIC = b"holdfast index 1"
_DIGEST_BYTES = 32
_DTYPES = ("<i8", "|u1")
MAX_HEADER_BYTES = 64 * 2**20
MAX_INDEXED_AT_ONCE = 16  # remote files looked through side by side; each takes some 16 MiB of memory
MAX_SMALL_FILE = 4 * 2**20  # local files up to this size share an index
FILES_AT_ONCE = 512  # small files looked at before their index is built: building between system calls takes longer


@dataclass(frozen=True, slots=True)
class Index:
    """Integer arrays and a small JSON-able mapping that say where a file's samples lie."""

    arrays: dict[str, NDArray[Any]]
    about: dict[str, Any] = field(default_factory=dict)


Build = Callable[[Sequence[DataFile]], Sequence[Index]]
HasForm = Callable[[Index], bool]


def cached_indexes(
    files: Sequence[DataFile], kind: str, build: Build, *, has_form: HasForm, folder: str | os.PathLike[str] | None
) -> list[Index]:
    """Return the index of every file: read from disk where one fits the file as it is now, else built and kept.

    Args:
        files: the data files.
        kind: what the index is of; another kind never fits.
        build: makes the indexes of files.
        has_form: whether an index read from disk holds the arrays and fields that one of this kind must.
        folder: where to keep indexes instead of beside the files.
    """
    # By name, as a file may be named twice.
    local = {file.name: file for file in files if isinstance(file, LocalFile)}
    shared = _shared_indexes(list(local.values()), kind, build, has_form, folder) if len(local) > 1 else {}

    def index_of(file: DataFile) -> Index:
        return shared[file.name] if file.name in shared else _own_index(file, kind, build, has_form, folder)

    look_at(files)
    return side_by_side(index_of, files, most=MAX_INDEXED_AT_ONCE)


def _own_index(
    file: DataFile, kind: str, build: Build, has_form: HasForm, folder: str | os.PathLike[str] | None
) -> Index:
    stamp = file.stamp()
    if not stamp.is_versioned:  # it would be unknown later whether it still fits
        return build([file])[0]
    expected = {"kind": kind, "stamp": list(stamp), "probe": _probe(file)}
    places = _places(file.name, kind, folder, is_remote=file.is_remote)
    for place in places:
        found = _load(place, expected)
        if found is not None and has_form(found):
            return found
    return _kept(places, build([file])[0], expected)


def _shared_indexes(
    files: Sequence[LocalFile], kind: str, build: Build, has_form: HasForm, folder: str | os.PathLike[str] | None
) -> dict[str, Index]:
    """Return the small files' indexes by name, from the one they share; only new or changed files are read."""
    parent = os.path.commonpath({os.path.dirname(file.name) for file in files})
    places = _places(os.path.join(parent, "files"), kind, folder, is_remote=False)
    expected = {"kind": f"joined {kind}"}
    parts: dict[str, tuple[Any, Index]] = {}
    for place in places:
        found = _load(place, expected)
        if found is not None and (parts := _parts(found, has_form)):
            break
    now: dict[str, tuple[Any, Index]] = {}
    is_new = False
    # Where there is no index, the look that says in which state a file is reads what the index is made of as well.
    for start in range(0, len(files), FILES_AT_ONCE):
        with collection_paused():
            missing = []
            for file in files[start : start + FILES_AT_ONCE]:
                stamp = file.look_first(keep=not parts)
                if stamp.size > MAX_SMALL_FILE:
                    continue
                name = file.name[len(parent) :]
                state = [*stamp, file.probe()]
                part = parts.get(name)
                if part is not None and part[0] == state:
                    now[name] = part
                else:
                    missing.append((name, state, file))
            if missing:
                is_new = True
                built = build([file for _, _, file in missing])
                for (name, state, file), index in zip(missing, built, strict=True):
                    now[name] = state, index
                    file.close()
    if is_new:
        # Another source may be made of other files of the folder: theirs are kept while the files are there.
        others = {name: part for name, part in parts.items() if name not in now and os.path.exists(parent + name)}
        index = _joined(others | now)
        any(_save(place, index, expected) for place in places)
    return {parent + name: index for name, (_, index) in now.items()}


@collection_paused()
def _joined(parts: Mapping[str, tuple[Any, Index]]) -> Index:
    """Return one index of many files: arrays of the same name end to end, as thousands of small ones take long."""
    joined: dict[str, list[NDArray[Any]]] = {}
    files = []
    for file, (state, part) in parts.items():
        files.append([file, state, part.about, {name: len(array) for name, array in part.arrays.items()}])
        for name, array in part.arrays.items():
            joined.setdefault(name, []).append(array)
    return Index({name: np.concatenate(arrays) for name, arrays in joined.items()}, {"files": files})


@collection_paused()
def _parts(shared: Index, has_form: HasForm) -> dict[str, tuple[Any, Index]]:
    """Return what a shared index says of each file: in which state it was, and where its samples lie."""
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


def _kept(places: list[Path], index: Index, expected: dict[str, Any]) -> Index:
    for place in places:
        if _save(place, index, expected):
            # Read back as a map: processes then share one copy of a large index.
            return _load(place, expected) or index
    return index


def _places(name: str, kind: str, folder: str | os.PathLike[str] | None, *, is_remote: bool) -> list[Path]:
    base = name.partition("?")[0].rstrip("/").rpartition("/")[2][:100]
    distinct = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    if folder is not None:
        return [Path(folder) / f"{base}-{distinct}.{kind}-index"]
    places = [Path.home() / ".cache" / "holdfast" / "indexes" / f"{base}-{distinct}.{kind}-index"]
    if not is_remote:
        places.insert(0, Path(name + f".{kind}-index"))
    return places


def _probe(file: DataFile) -> str:
    # The server's tag already tells the versions of a remote file apart.
    return file.probe() if isinstance(file, LocalFile) else ""


def _load(place: Path, expected: dict[str, Any]) -> Index | None:
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
