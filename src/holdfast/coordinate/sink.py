"""Outputs written exactly once: a temporary name while a worker writes, the real name once its commit is accepted.

The model: an output's name includes the job, its generation, the chunk and the fencing token, so no two attempts share
a name. A worker writes under ``.tmp/``, commits, and renames. If it dies in between, the worker that ends the job (or
begins it again) renames the output if it was committed. Anything else left under ``.tmp/`` was never committed, and is
removed.
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
        suffix: the suffix of every file name, such as ``.jsonl`` or ``.parquet``.
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
            with told("cannot create the folder for outputs", self.place):
                os.makedirs(os.path.join(self._root, ".tmp"), exist_ok=True)

    def open(self, name: str, mode: str = "wb") -> IO[Any]:
        """Open an output for writing, under its temporary name."""
        path = self._temporary(name)
        opener = open if self._remote is None else self._remote.open
        opened: IO[Any] = opener(path, mode)
        return opened

    def settle(self, name: str, file: IO[Any]) -> None:
        """Flush an output to disk before it is committed, whether or not its writer has closed it."""
        file.close()
        if self._remote is None:
            handle = os.open(self._temporary(name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def publish(self, name: str) -> None:
        """Give an output its real name; do nothing if it already has it."""
        temporary, final = self._temporary(name), self._final(name)
        if self._remote is None:
            try:
                with told("cannot rename a committed output", self.place):
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
                "a committed output exists neither under its temporary nor under its real name",
                place=self.place,
                file=name,
                hint="it was removed by hand, or the workers do not see the same place",
            )

    def publish_all(self, names: Collection[str]) -> None:
        """Give many outputs their real names; those that already have them cost only a lookup."""
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
        """Remove uncommitted outputs that attempts of this job left behind; return how many files.

        Outputs of a newer generation are left alone: the worker that calls this may have been paused.
        """
        ours = re.compile(rf"part-\d+-{job}-g(\d+)-")
        found = [(path, ours.match(os.path.basename(path))) for path in self._list(f"{self._root}/.tmp")]
        swept = [path for path, match in found if match is not None and int(match[1]) <= generation]
        with told("cannot remove uncommitted outputs", self.place):
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
