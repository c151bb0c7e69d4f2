"""Errors that name their tensor: the code that reads bytes does not know it, the code that asked for them does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def naming(chunk: Chunk) -> Iterator[None]:
    """Turn errors of the layers below into ones that name the chunk's tensor, file, offset and length."""
    try:
        yield
    except DamagedArchiveError as error:
        raise corrupt(chunk, str(error), error.offset, error.length) from error
    except CheckpointReadError as error:
        if "tensor" in error.where:
            raise
        where = {"tensor": chunk.fqn, "file": chunk.file, "offset": chunk.offset, "length": chunk.length}
        raise CheckpointReadError(error.message, hint=error.hint, **{**where, **error.where}) from (
            error.__cause__ or error
        )
