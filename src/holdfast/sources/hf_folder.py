"""Folders written by ``datasets``: the output of ``save_to_disk``, and the cache of ``load_dataset``.

They are read without ``datasets``, from the Arrow files that they list; the classes and formats they name are
ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.arrow_ipc import ArrowSource
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.files import PathLike
from holdfast.sources.shard_folder import ShardFolder

__all__ = ["HFFolderSource", "is_hf_folder"]

_SAVED, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def is_hf_folder(folder: PathLike) -> bool:
    """Return whether a local folder was written by ``datasets``."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (_SAVED, _INFO, _SPLITS))


class HFFolderSource(Source):
    """The rows of a folder written by ``datasets``, in the order given by ``select`` or ``shuffle``.

    Args:
        folder: the output of ``save_to_disk``, or a cache folder with a ``dataset_info.json`` and Arrow files.
        split: the split, if the folder contains several.
        columns: the columns to read; None for all.
        fill_null: replacements for null, by column.
    """

    def __init__(
        self,
        folder: PathLike,
        *,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        fill_null: Mapping[str, Any] | None = None,
    ) -> None:
        top = ShardFolder.at(folder)
        files, mapping = _saved_files(top, split)
        self._rows = ArrowSource(files, columns=columns, fill_null=fill_null)
        self._mapping = ArrowSource(mapping) if mapping else None

    def __len__(self) -> int:
        return len(self._mapping or self._rows)

    @property
    def files(self) -> list[str]:
        """The Arrow files, in index order."""
        return [*self._rows.files, *(self._mapping.files if self._mapping else ())]

    def read(self, indices: Indices) -> Columns:
        """Gather the rows at ``indices``, through the indices mapping if there is one."""
        rows = check_indices(indices, len(self), source="HFFolderSource")
        if self._mapping is not None:
            (mapped,) = self._mapping.read(rows).values()
            if not isinstance(mapped, np.ndarray) or mapped.dtype.kind not in "iu":
                raise SourceFormatError("invalid indices mapping", file=self._mapping.files[0])
            if len(mapped) and (int(mapped.min()) < 0 or int(mapped.max()) >= len(self._rows)):
                raise SourceFormatError("the indices mapping points outside the rows", file=self._mapping.files[0])
            rows = mapped.astype(np.int64)
        return self._rows.read(rows)

    def shards(self) -> Sequence[int] | None:
        """Return the number of rows of each record batch, if rows are in file order."""
        return self._rows.shards() if self._mapping is None else None

    def parts(self) -> Sequence[Source]:
        """Return the Arrow files of rows; those of the indices mapping provide no samples."""
        return (self._rows,)

    def close(self) -> None:
        """Close open files; a later ``read`` reopens them."""
        super().close()
        if self._mapping is not None:
            self._mapping.close()


def _saved_files(top: ShardFolder, split: str | None) -> tuple[list[str], list[str]]:
    """Return the files of rows, and those of the indices mapping."""
    if os.path.isfile(f"{top.place}/{_SPLITS}"):
        splits = top.read_json(_SPLITS).get("splits")
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise SourceFormatError("the folder does not say which splits it contains", file=f"{top.place}/{_SPLITS}")
        if split not in splits:
            raise ConfigError("name one of the splits", folder=top.place, split=split, splits=splits)
        return _saved_files(ShardFolder(top.file(split).name), None)
    if os.path.isfile(f"{top.place}/{_SAVED}"):
        if split is not None:
            raise ConfigError("the folder contains a single split", folder=top.place, split=split)
        state = top.read_json(_SAVED)
        return _listed(top, state, "_data_files"), _listed(top, state, "_indices_data_files")
    return _cached_files(top, split), []


def _listed(top: ShardFolder, state: dict[str, Any], field: str) -> list[str]:
    entries = state.get(field) or []
    names = (
        [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
        if isinstance(entries, list)
        else [None]
    )
    if field == "_data_files" and not names:
        raise SourceFormatError("the folder lists no files", file=f"{top.place}/{_SAVED}")
    return [top.file(name).name for name in names]


def _cached_files(top: ShardFolder, split: str | None) -> list[str]:
    """Return the files of a split in a cache folder: ``name-split.arrow`` or ``name-split-00000-of-00003.arrow``."""
    if not os.path.isdir(top.place):
        raise ConfigError("there is no such folder", folder=top.place)
    by_split: dict[str, list[str]] = {}
    for name in sorted(os.listdir(top.place)):
        if name.endswith(".arrow") and not name.startswith(("cache-", "tmp")):
            stem, _, last = name[: -len(".arrow")].rpartition("-of-")
            parts = (stem if stem and last.isdigit() else name[: -len(".arrow")]).split("-")
            if stem and last.isdigit():
                parts = parts[:-1]
            by_split.setdefault(parts[-1], []).append(f"{top.place}/{name}")
    if split is None and len(by_split) == 1:
        (split,) = by_split
    if split not in by_split:
        raise ConfigError("name one of the splits", folder=top.place, split=split, splits=sorted(by_split))
    files = by_split[split]
    _, _, count = files[0][: -len(".arrow")].rpartition("-of-")
    if count.isdigit() and len(files) != int(count):
        raise SourceFormatError("files of the split are missing", folder=top.place, found=len(files), listed=int(count))
    return files
