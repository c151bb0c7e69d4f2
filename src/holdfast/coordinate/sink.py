"""Outputs written exactly once: a temporary name while a worker writes, the real one after its commit was accepted.

The model: an output's name holds the job, its generation, the chunk and the fencing token, so no two attempts share
one. A worker writes under ``.tmp/``, commits, and renames. If it dies in between, the worker that ends the job (or
begins it again) renames what was committed; whatever else is left under ``.tmp/`` was never committed, and is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from holdfast.coordinate.job_files import told
from holdfast.errors import CoordinationError

__all__ = ["FolderSink"]


class FolderSink:
    """A folder, or a place in an object store, for one file per chunk.

    Args:
        place: a path, or a URL that fsspec knows (``s3://bucket/prefix``); there a rename is a copy and a removal, so
            readers should go by ``reader.results()``, or by names outside ``.tmp/``.
        suffix: of every file's name: ``.jsonl``, ``.parquet``.
    """

    def __init__(self, place: str | Path, *, suffix: str = "") -> None:
        self.place = str(place)
        self.suffix = suffix
        self._remote: Any = None
        self._root = self.place
        if "://" in self.place:
            import fsspec

            self._remote, self._root = fsspec.core.url_to_fs(self.place)
        else:
            with told("a folder for outputs cannot be made here", self.place):
                os.makedirs(os.path.join(self._root, ".tmp"), exist_ok=True)

    def open(self, name: str, mode: str = "wb") -> IO[Any]:
        """Open an output for writing, under its temporary name."""
        path = self._temporary(name)
        opener = open if self._remote is None else self._remote.open
        opened: IO[Any] = opener(path, mode)
        return opened

    def settle(self, name: str, file: IO[Any]) -> None:
        """Bring an output to disk, whether or not its writer has closed it, before it is committed."""
        file.close()
        if self._remote is None:
            handle = os.open(self._temporary(name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def publish(self, name: str) -> None:
        """Give an output its real name; nothing happens if it has it already."""
        temporary, final = self._temporary(name), self._final(name)
        if self._remote is None:
            try:
                with told("a committed output cannot be given its real name", self.place):
                    os.replace(temporary, final)
                return
            except FileNotFoundError:
                there = os.path.exists(final)
        else:
            if self._remote.exists(temporary):
                self._remote.mv(temporary, final)
                return
            there = self._remote.exists(final)
        if not there:
            raise CoordinationError(
                "a committed output is neither under its temporary nor under its real name",
                place=self.place,
                file=name,
                hint="it was removed by hand, or the workers do not see the same place",
            )

    def publish_all(self, names: Collection[str]) -> None:
        """Give many outputs their real names; only those that do not have them yet cost more than a look."""
        waiting = {os.path.basename(path) for path in self._list(f"{self._root}/.tmp")}
        there = {os.path.basename(path) for path in self._list(self._root)}
        for name in names:
            if name in waiting or name not in there:
                self.publish(name)

    def discard(self, name: str) -> None:
        """Remove an output that was not committed."""
        with contextlib.suppress(FileNotFoundError):
            if self._remote is None:
                os.unlink(self._temporary(name))
            else:
                self._remote.rm(self._temporary(name))

    def sweep(self, job: str, generation: int) -> int:
        """Remove what attempts of this job left behind that were never committed; return how many files.

        What a newer generation writes meanwhile is left alone: the worker that sweeps may have been paused.
        """
        ours = re.compile(rf"part-\d+-{job}-g(\d+)-")
        found = [(path, ours.match(os.path.basename(path))) for path in self._list(f"{self._root}/.tmp")]
        swept = [path for path, match in found if match is not None and int(match[1]) <= generation]
        with told("outputs that were not committed cannot be removed", self.place):
            for path in swept:
                self.discard(os.path.basename(path))
        return len(swept)

    def _list(self, folder: str) -> list[str]:
        if self._remote is None:
            return os.listdir(folder)
        self._remote.invalidate_cache()
        return list(self._remote.ls(folder, detail=False)) if self._remote.exists(folder) else []

    def _temporary(self, name: str) -> str:
        return f"{self._root}/.tmp/{name}"

    def _final(self, name: str) -> str:
        return f"{self._root}/{name}"
