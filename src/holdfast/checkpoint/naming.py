"""Errors that name their tensor, which the code that reads the bytes does not know, but its caller does."""

from __future__ import annotations

from types import TracebackType

from holdfast.checkpoint.archive import DamagedArchiveError
from holdfast.checkpoint.plan import Chunk
from holdfast.errors import CheckpointReadError, CorruptRecordError

__all__ = ["corrupt", "naming"]


def corrupt(chunk: Chunk, problem: str, offset: int, length: int) -> CorruptRecordError:
    """Return the error for damaged bytes; ``offset`` counts from the start of the item."""
    return CorruptRecordError(
        problem,
        tensor=chunk.fqn,
        file=chunk.file,
        offset=chunk.offset + offset,
        length=length,
        hint="restore the file from a copy, or load an older checkpoint",
    )


class naming:  # noqa: N801 — used like a function, and entered for every one of ten thousand small tensors
    """A context manager that adds the chunk's tensor, file, offset and length to errors from the layers below."""

    __slots__ = ("_chunk",)

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        chunk = self._chunk
        if isinstance(error, DamagedArchiveError):
            raise corrupt(chunk, str(error), error.offset, error.length) from error
        if isinstance(error, CheckpointReadError) and "tensor" not in error.where:
            where = {"tensor": chunk.fqn, "file": chunk.file, "offset": chunk.offset, "length": chunk.length}
            raise CheckpointReadError(error.message, hint=error.hint, **{**where, **error.where}) from (
                error.__cause__ or error
            )
