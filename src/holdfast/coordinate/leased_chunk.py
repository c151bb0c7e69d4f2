"""A chunk under lease, as a worker receives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.coordinate.records import TOKENS_PER_GENERATION, generation_of
from holdfast.errors import ConfigError, StaleLeaseError
from holdfast.stream.batch import Batch

if TYPE_CHECKING:
    from holdfast.coordinate.leased import LeasedReader

__all__ = ["LeasedChunk"]


@dataclass(frozen=True, slots=True)
class LeasedChunk:
    """A chunk under lease: iterate over its batches, then commit.

    Attributes:
        chunk: its number in the job.
        token: the fencing token of this lease, higher than that of any earlier lease of the chunk, on any store.
        positions: the positions of its samples.
    """

    chunk: int
    token: int
    positions: NDArray[np.int64]
    _content: list[Batch]
    _reader: LeasedReader
    _output: list[tuple[str, IO[Any]]] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (batch.make() for batch in self._content)

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._content)

    @property
    def name(self) -> str:
        """A name for the output of this chunk; no other attempt, generation or job ever has the same name."""
        number = (self.token - 1) % TOKENS_PER_GENERATION + 1
        return f"part-{self.chunk:08d}-{self._reader.job.job}-g{generation_of(self.token)}-t{number}"

    def open(self, mode: str = "wb") -> IO[Any]:
        """Open the chunk's output in the job's sink, under a temporary name until ``commit`` renames it."""
        sink = self._reader.sink
        if sink is None:
            raise ConfigError("this job has no sink for outputs", hint="pass sink=FolderSink(place) to lease()")
        if self._output:
            raise ConfigError(
                "a chunk has only one output, which was opened before",
                chunk=self.chunk,
                file=self._output[0][0],
                hint="write everything to the file that the first open() returned",
            )
        name = self.name + sink.suffix
        file = sink.open(name, mode)
        self._output.append((name, file))
        return file

    def commit(self, payload: str = "") -> None:
        """Finish the chunk for good; ``StaleLeaseError`` means that its work must be discarded.

        Args:
            payload: a short text kept with the commit, at most 100,000 characters: a count, a JSON value, or the digest
                of something larger.
        """
        self._reader.commit(self, payload)

    def fail(self, error: BaseException | str) -> None:
        """Return the chunk, to be tried again later by any worker; after the last attempt it becomes a dead letter."""
        self._reader.fail(self, error)

    def discard_output(self) -> None:
        """Remove an output that will not be committed."""
        for name, file in self._output:
            assert self._reader.sink is not None
            with suppress(OSError):  # on a full disk this fails again
                file.close()
            self._reader.sink.discard(name)

    def settle_output(self) -> str:
        """Close the output and flush it to disk; return its name, or an empty string if there is none."""
        for name, file in self._output:
            assert self._reader.sink is not None
            try:
                self._reader.sink.settle(name, file)
            except FileNotFoundError as error:  # a newer generation removes what older ones had not committed
                raise StaleLeaseError(
                    "the chunk's output was removed, because its attempt can no longer commit",
                    chunk=self.chunk,
                    token=self.token,
                    file=name,
                    hint="discard this chunk's work: the worker that holds it now commits it",
                ) from error
            return name
        return ""
