"""What sources that open something share: opening lazily once a process, pickling without it, and counting."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from holdfast.sources.base import Source
from holdfast.sources.files import DataFile
from holdfast.sources.fork_lock import ForkSafeLock

Opened = TypeVar("Opened")


class LazySource(Source, Generic[Opened]):
    """A source that opens something. What `_open` makes stays in its process and is made again in each."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._made: Opened | None = None

    @abstractmethod
    def _open(self) -> Opened:
        """Look at the storage: called once a process, under a lock."""

    @property
    def _opened(self) -> Opened:
        made = self._made
        if made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._open()
                made = self._made
        return made

    def close(self) -> None:
        """Let go of what is open; a later `read` opens it again."""
        super().close()
        with self._lock:
            self._made = None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_made", "_counters")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._made = None


class FileSource(LazySource[Opened]):
    """A source over files.

    Args:
        files: the files, in index order.
    """

    def __init__(self, files: list[DataFile]) -> None:
        super().__init__()
        self._files = files

    @property
    def files(self) -> list[str]:
        """Paths and URLs of the files, in index order."""
        return [file.name for file in self._files]

    @property
    def file_sizes(self) -> list[int]:
        """Bytes of each file."""
        return [file.size for file in self._files]

    @property
    def is_remote(self) -> bool:
        """Whether any file is behind a URL."""
        return any(file.is_remote for file in self._files)

    def close(self) -> None:
        """Let go of open files; a later `read` opens them again."""
        super().close()
        for file in self._files:
            file.close()

    def _count(self, file: DataFile, samples: int, size: int) -> None:
        if file.is_remote:
            self.counters.add(remote=samples, bytes_read=size)
        else:
            self.counters.add(local=samples, bytes_read=size)
