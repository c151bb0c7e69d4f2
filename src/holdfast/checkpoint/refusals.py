"""All refused objects of a checkpoint in one error: a load stops at the first of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.checkpoint.archive import DamagedArchiveError
from holdfast.checkpoint.files import FileTable
from holdfast.checkpoint.items import decode_item
from holdfast.checkpoint.not_allowed import Refusal, refused
from holdfast.checkpoint.plan import Chunk
from holdfast.checkpoint.sequential import read_whole
from holdfast.errors import CheckpointError, UnsafeCheckpointError

__all__ = ["every_refusal"]


def every_refusal(
    first: UnsafeCheckpointError, chunks: Iterable[Chunk], files: FileTable, registry: Any
) -> UnsafeCheckpointError:
    """Return the error that names the refused keys, classes and forms of all objects, not just of the first.

    Args:
        first: the error that ended the load.
        chunks: all chunks of the load.
        files: the checkpoint's files.
        registry: creates stream transforms.
    """
    if first.names is None:  # for example, a file outside the folder
        return first
    found = {str(first.tensor): _refusal(first)}
    for chunk in chunks:
        if chunk.is_bytes and chunk.fqn not in found:
            try:
                data = read_whole(files.get(chunk.file), chunk, registry, lambda *_: None)
                decode_item(memoryview(data), check=False, tensor=chunk.fqn, file=chunk.file)
            except UnsafeCheckpointError as error:
                found[chunk.fqn] = _refusal(error)
            except (CheckpointError, DamagedArchiveError):  # reported by the next load, once these are allowed
                continue
    return refused(found, file=first.file)


def _refusal(error: UnsafeCheckpointError) -> Refusal:
    return Refusal(tuple(error.names or ()), error.reason or "", str(error.hint or "") if error.reason else "")
