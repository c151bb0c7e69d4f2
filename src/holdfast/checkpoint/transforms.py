"""Items stored through a stream transform (such as zstd), turned back into the archive they wrap.

Transforms are torch's extension mechanism: the metadata names them, a registry creates them. They take a file-like view
of the item and return another. A decompressor that releases the GIL runs well on threads; for one that does not, use
``engine="process"``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.checkpoint.files import CheckpointFile
from holdfast.checkpoint.items import Expected
from holdfast.errors import CheckpointError, CorruptRecordError, UnusableCheckpointError

__all__ = ["FileSlice", "default_registry", "max_unfolded_bytes", "undo_transforms"]

MAX_UNFOLDED_OBJECT_BYTES = 1 << 30
MAX_UNFOLDED_EXTRA_BYTES = 64 << 20
"""Bytes that the archive of a tensor may hold beyond twice its elements."""
_STEP_BYTES = 4 << 20


class FileSlice(io.RawIOBase):
    """A seekable, read-only stream over one item of a file; reads by position, so threads do not disturb each other."""

    def __init__(self, file: CheckpointFile, offset: int, length: int, on_read: Callable[[int], None]) -> None:
        super().__init__()
        self._file = file
        self._offset = offset
        self._length = length
        self._on_read = on_read
        self._position = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def tell(self) -> int:
        """Return the current position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._length - self._position))
        if count:
            self._file.read_into(view[:count], self._offset + self._position)
            self._on_read(count)
            self._position += count
        return count


def default_registry() -> Any:
    """Return torch's registry of extensions, or ``None`` if torch is too old to have one."""
    try:
        from torch.distributed.checkpoint._extension import ExtensionRegistry
    except ImportError:
        return None
    return ExtensionRegistry()


def max_unfolded_bytes(length: int, expected: Expected | None) -> int:
    """Return how many bytes an item may have once its transforms are undone.

    Args:
        length: of the item as it is stored.
        expected: what the metadata says about a tensor; ``None`` for an object, which may well be a long list of zeros.
    """
    if expected is None:
        return max(MAX_UNFOLDED_OBJECT_BYTES, 1000 * length)
    return 2 * math.prod(expected.shape) * expected.dtype.itemsize + MAX_UNFOLDED_EXTRA_BYTES


def undo_transforms(
    stream: Any, descriptors: Sequence[str], registry: Any, *, most_bytes: int, tensor: str, file: str
) -> bytearray:
    """Read all of a stream and undo its transforms.

    Args:
        stream: the item as it is stored in the file.
        descriptors: what the metadata says was applied, in the order to undo it.
        registry: creates the transforms.
        most_bytes: give up beyond this size: a few kilobytes of zstd can expand to terabytes.
        tensor: the item's name, for messages.
        file: its file, for messages.

    Raises:
        UnusableCheckpointError: the transform is unknown.
        CorruptRecordError: the transform could not decode the bytes.
    """
    if registry is None:
        raise UnusableCheckpointError(
            "the item is stored through a transform that this version of torch does not support",
            tensor=tensor,
            file=file,
            transforms=list(descriptors),
            hint="update torch",
        )
    try:
        extensions = registry.from_descriptor_list(descriptors)
    except Exception as error:
        raise UnusableCheckpointError(
            f"the item is stored through an unknown transform: {error}",
            tensor=tensor,
            file=file,
            transforms=list(descriptors),
            hint="pass an extension_registry that contains it",
        ) from error
    data = bytearray()
    try:
        for extension in extensions:
            if hasattr(extension, "transform_from"):
                stream = extension.transform_from(stream)
        while piece := stream.read(_STEP_BYTES):
            data += piece
            if len(data) > most_bytes:
                raise CorruptRecordError(
                    "the item decodes to more bytes than the metadata allows",
                    tensor=tensor,
                    file=file,
                    allowed=most_bytes,
                )
    except CheckpointError:
        raise
    except Exception as error:  # each transform raises its own errors
        raise CorruptRecordError(
            f"undoing {', '.join(descriptors)} failed: {type(error).__name__}: {error}", tensor=tensor, file=file
        ) from error
    return data
