"""Indexes of data files on disk: where each sample is, found once and used by every later run.

An index is stored next to its data file, or in a cache folder if that is not writable or at a URL; small files of one
source share an index, so that a folder of thousands has only one. An index that is torn, damaged, of another version
(``holdfast.sources.saved_index``), or of another version of a data file is rebuilt.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.sources.collection import collection_paused
from holdfast.sources.files import DataFile, LocalFile
from holdfast.sources.remote import look_at
from holdfast.sources.saved_index import HasForm, Index, join_indexes, load_index, save_index, split_index
from holdfast.sources.side_by_side import side_by_side

MAX_INDEXED_AT_ONCE = 16  # remote files scanned in parallel; each takes some 16 MiB of memory
MAX_SMALL_FILE = 4 * 2**20  # local files up to this size share an index
FILES_AT_ONCE = 512  # small files opened before their index is built: building between system calls is slower


Build = Callable[[Sequence[DataFile]], Sequence[Index]]


def cached_indexes(
    files: Sequence[DataFile], kind: str, build: Build, *, has_form: HasForm, folder: str | os.PathLike[str] | None
) -> list[Index]:
    """Return the index of every file: from disk if it matches the current file, else built and saved.

    Args:
        files: the data files.
        kind: the kind of index; another kind never matches.
        build: builds the indexes of files.
        has_form: returns whether an index from disk has the arrays and fields required for its kind.
        folder: where to store indexes instead of next to the files.
    """
    # By name, because a file may be given twice.
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
    if not stamp.is_versioned:  # it could not be checked later whether it still matches
        return build([file])[0]
    expected = {"kind": kind, "stamp": list(stamp), "probe": _probe(file)}
    places = _places(file.name, kind, folder, is_remote=file.is_remote)
    for place in places:
        found = load_index(place, expected)
        if found is not None and has_form(found):
            return found
    return _kept(places, build([file])[0], expected)


def _shared_indexes(
    files: Sequence[LocalFile], kind: str, build: Build, has_form: HasForm, folder: str | os.PathLike[str] | None
) -> dict[str, Index]:
    """Return the small files' indexes by name, from their shared index; only new or changed files are read."""
    parent = os.path.commonpath({os.path.dirname(file.name) for file in files})
    places = _places(os.path.join(parent, "files"), kind, folder, is_remote=False)
    expected = {"kind": f"joined {kind}"}
    parts: dict[str, tuple[Any, Index]] = {}
    for place in places:
        found = load_index(place, expected)
        if found is not None and (parts := split_index(found, has_form)):
            break
    now: dict[str, tuple[Any, Index]] = {}
    is_new = False
    # Without an index, determining a file's version also reads what the index is built from.
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
        # Another source may use other files of the folder: their entries are kept while the files exist.
        others = {name: part for name, part in parts.items() if name not in now and os.path.exists(parent + name)}
        index = join_indexes(others | now)
        any(save_index(place, index, expected) for place in places)
    return {parent + name: index for name, (_, index) in now.items()}


def _kept(places: list[Path], index: Index, expected: dict[str, Any]) -> Index:
    for place in places:
        if save_index(place, index, expected):
            # Read back as a map, so that processes share one copy of a large index.
            return load_index(place, expected) or index
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
    # The server's tag already distinguishes the versions of a remote file.
    return file.probe() if isinstance(file, LocalFile) else ""
