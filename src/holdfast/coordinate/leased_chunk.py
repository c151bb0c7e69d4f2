"""A chunk under lease, as a worker gets it in hand."""

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
        token: the fencing token of this lease, higher than that of any lease of the chunk before, on any store.
        positions: of its samples.
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
        """Return how many batches there are."""
        return len(self._content)

    @property
    def name(self) -> str:
        """A name for what is made of this chunk: no other attempt, generation or job ever has the same."""
        number = (self.token - 1) % TOKENS_PER_GENERATION + 1
        return f"part-{self.chunk:08d}-{self._reader.job.job}-g{generation_of(self.token)}-t{number}"

    def open(self, mode: str = "wb") -> IO[Any]:
        """Open the chunk's output in the job's sink, under a temporary name that becomes the real one by ``commit``."""
        sink = self._reader.sink
        if sink is None:
            raise ConfigError("this job has no place for outputs", hint="pass sink=FolderSink(place) to lease()")
        if self._output:
            raise ConfigError("a chunk has one output", chunk=self.chunk, file=self._output[0][0])
        name = self.name + sink.suffix
        file = sink.open(name, mode)
        self._output.append((name, file))
        return file

    def commit(self, payload: str = "") -> None:
        """Finish the chunk, once and for all; ``StaleLeaseError`` means that its work must be discarded.

        Args:
            payload: a small text kept with the commit, of at most 100,000 characters: a count, a JSON value, the
                digest of something larger.
        """
        self._reader.commit(self, payload)

    def fail(self, error: BaseException | str) -> None:
        """Give the chunk back to be tried again later, by anyone; after the last attempt it becomes a dead letter."""
        self._reader.fail(self, error)

    def discard_output(self) -> None:
        """Remove an output that will not be committed."""
        for name, file in self._output:
            assert self._reader.sink is not None
            with suppress(OSError):  # a full disk fails again here
                file.close()
            self._reader.sink.discard(name)

    def settle_output(self) -> str:
        """Close the output and bring it to disk; return its name, or nothing if there is none."""
        for name, file in self._output:
            assert self._reader.sink is not None
            try:
                self._reader.sink.settle(name, file)
            except FileNotFoundError as error:  # a newer generation sweeps what older ones had not committed
                raise StaleLeaseError(
                    "the chunk's output was swept away, as of an attempt that can commit no more",
                    chunk=self.chunk,
                    token=self.token,
                    file=name,
                    hint="discard this chunk's work: the worker that holds it now commits it",
                ) from error
            return name
        return ""
