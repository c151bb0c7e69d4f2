"""Items that are in memory whole: small neighbours read together, decompressed streams, pickled objects.

What the fast path does with byte ranges of a file, this does with a buffer: find the payload, check it, see it as a
tensor. What is not a plain tensor goes through ``torch.load(weights_only=True)``, as torch's own reader does. Pickled
objects are proven harmless before the planner, which unpickles them with no check at all, gets to see them.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from holdfast.checkpoint.checksum import crc32
from holdfast.checkpoint.tensor_pickle import TensorRecipe, is_plain_data
from holdfast.checkpoint.zip_records import (
    DamagedArchiveError,
    ItemLayout,
    payload_start,
    read_directory,
    read_layout,
    read_record,
)
from holdfast.errors import CheckpointMismatchError, UnsafeCheckpointError, UnusableCheckpointError

__all__ = [
    "ZIP_START",
    "check_object",
    "check_payload",
    "check_records",
    "decode_generic",
    "item_layout",
    "view_payload",
]

ZIP_START = b"PK\x03\x04"


def _reader(data: memoryview) -> Any:
    def read_at(offset: int, length: int) -> memoryview:
        piece = data[offset : offset + length]
        if offset < 0 or len(piece) != length:
            raise DamagedArchiveError("the archive is cut short", offset, length)
        return piece

    return read_at


def item_layout(data: memoryview, cache: dict[bytes, TensorRecipe | None], *, check: bool) -> ItemLayout | None:
    """Find the payload of a saved tensor in a buffer; ``None`` when it is not a plain tensor."""
    if bytes(data[:4]) != ZIP_START:
        return None
    return read_layout(_reader(data), len(data), cache, check=check)


def check_payload(data: memoryview, layout: ItemLayout) -> str | None:
    """Compare a payload with its CRC-32; returns why it could not be checked, or ``None`` when it matches."""
    if not layout.payload_bytes:
        return None
    if not layout.crc:
        return "no checksum was stored"
    payload = data[layout.payload_offset : layout.payload_offset + layout.payload_bytes]
    if crc32(payload) != layout.crc:
        raise DamagedArchiveError(
            "the bytes differ from their CRC-32", layout.payload_offset, layout.payload_bytes, checksum=True
        )
    return None


def view_payload(data: bytearray | memoryview, layout: ItemLayout) -> torch.Tensor:
    """See a payload that lies in a writable buffer as the tensor it is."""
    recipe = layout.recipe
    if not layout.payload_bytes or 0 in recipe.shape:
        return torch.empty(recipe.shape, dtype=recipe.dtype)
    flat = torch.frombuffer(
        data,
        dtype=recipe.dtype,
        count=layout.payload_bytes // recipe.dtype.itemsize,
        offset=layout.payload_offset,
    )
    return flat.as_strided(recipe.shape, recipe.strides, recipe.storage_offset)


def check_records(data: memoryview) -> str | None:
    """Compare every record of an archive with its CRC-32; returns why that was not possible, or ``None``."""
    if bytes(data[:4]) != ZIP_START:
        return "it is not an archive with checksums"
    read_at = _reader(data)
    missing = None
    for record in read_directory(read_at, len(data)).values():
        if not record.stored:
            missing = "a record is compressed"
        elif record.size and not record.crc:
            missing = "no checksum was stored"
        elif record.size:
            start = payload_start(read_at, record)
            if crc32(read_at(start, record.size)) != record.crc:
                name = record.raw_name.decode("utf-8", "replace")
                raise DamagedArchiveError(f"{name} differs from its CRC-32", start, record.size, checksum=True)
    return missing


def decode_generic(data: bytearray | memoryview, tensor: str, file: str) -> torch.Tensor:
    """Load anything that is not a plain tensor, with torch's weights-only loader."""
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever a damaged or foreign file makes it meet
        raise UnusableCheckpointError(
            f"torch cannot load this item: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            tensor=tensor,
            file=file,
            hint="register its classes with torch.serialization.add_safe_globals if you trust them",
        ) from error
    if not isinstance(value, torch.Tensor):
        raise CheckpointMismatchError(
            f"the checkpoint holds a {type(value).__name__} where its metadata says tensor", tensor=tensor, file=file
        )
    return value


def check_object(data: memoryview, tensor: str, file: str, cache: set[bytes]) -> None:
    """Prove that unpickling an object runs no code of its own choosing.

    Numbers, strings, lists and dicts are recognised from their opcodes. Anything else must load under
    ``weights_only=True``; classes that the user allowed with ``torch.serialization.add_safe_globals`` do.

    Raises:
        UnsafeCheckpointError: it does not.
    """
    if _is_plain_archive(data, cache):
        return
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever it is, the planner must not see it
        reason = str(error).strip().splitlines()
        raise UnsafeCheckpointError(
            f"an object of the checkpoint cannot be loaded safely: {reason[0] if reason else type(error).__name__}",
            tensor=tensor,
            file=file,
            hint="allow its classes with torch.serialization.add_safe_globals, or pass trusted=True "
            "if you made this checkpoint yourself",
        ) from error


def _is_plain_archive(data: memoryview, cache: set[bytes]) -> bool:
    if bytes(data[:4]) != ZIP_START:
        return False
    read_at = _reader(data)
    records = read_directory(read_at, len(data))
    record = records.get("data.pkl")
    # A "constants.pkl" makes torch take it for TorchScript, which is code.
    if record is None or not record.stored or any(name.lower() == "constants.pkl" for name in records):
        return False
    pickle = read_record(read_at, record, check=False)
    if pickle in cache:
        return True
    if is_plain_data(pickle):
        cache.add(pickle)
        return True
    return False
