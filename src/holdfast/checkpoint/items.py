"""One stored item, from its checked bytes to a tensor or an object.

An item is the archive that ``torch.save`` wrote. Everything that is used of it comes from here, for a load and for
``verify`` alike: no other reader ever gets the bytes. A plain tensor is a *layout*: where its payload is in the item.
Everything else is made by ``holdfast.checkpoint.safe_objects``. A planner unpickles a stream without any checks, so
it gets the object that was made here, saved again.
"""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from holdfast.checkpoint.archive import (
    ZIP_START,
    DamagedArchiveError,
    ReadAt,
    Record,
    read_archive,
    read_record,
)
from holdfast.checkpoint.checksum import crc32
from holdfast.checkpoint.collector import collector_paused
from holdfast.checkpoint.inert import DamagedPickleError, RefusedPickleError
from holdfast.checkpoint.not_allowed import Refusal, refused
from holdfast.checkpoint.pickle_machine import read_pickle
from holdfast.checkpoint.safe_objects import RefusedNamesError, build_object, check_object
from holdfast.checkpoint.safe_tensors import NESTED_TENSOR
from holdfast.checkpoint.template import Template
from holdfast.checkpoint.tensor_pickle import TensorRecipe, tensor_recipe

__all__ = [
    "OBJECT_COPIES",
    "Expected",
    "ItemLayout",
    "KnownItems",
    "ObjectDecoder",
    "check_payload",
    "check_structure",
    "decode_item",
    "decode_tensor",
    "memory_reader",
    "open_item",
    "refusal_of",
    "view_payload",
]

NO_CHECKSUM = "no checksum was stored"
NO_CHECKSUMS_IN_SAFETENSORS = "the safetensors format has no checksums"
MAX_TEMPLATES = 8
"""Kinds of archive to remember per length: trying more would cost as much as they save."""
OBJECT_COPIES = 4
"""Memory that an object takes, in multiples of its item: the item, its records, the object, and the object re-saved."""
LARGE_PICKLE_BYTES = 1 << 20
"""The garbage collector is paused while a pickle beyond this size is decoded, which would otherwise take half as long
again (measured with 20,000 tensors in one object)."""
MAX_CACHED_OBJECT_BYTES = 4096
"""Objects up to this size are made once and reused: optimizer options repeat for every parameter."""
_PICKLE = "data.pkl"
_BYTE_ORDER = "byteorder"
_BYTE_ORDERS = (b"little", b"big")
_VERSION = "version"
MAX_FORMAT_VERSION = 10
"""The newest archive version that torch reads."""
_PAYLOADS = "data/"


class Expected(NamedTuple):
    """What the metadata says a stored tensor is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: torch.layout = torch.strided

    def check(self, shape: tuple[int, ...], dtype: torch.dtype, layout: torch.layout = torch.strided) -> None:
        """Raise unless the stored tensor matches."""
        if layout != self.layout:
            raise DamagedArchiveError(f"it holds a {layout} tensor where the metadata says {self.layout}")
        if shape != self.shape or dtype != self.dtype:
            raise DamagedArchiveError(
                f"it holds {dtype} {list(shape)} where the metadata says {self.dtype} {list(self.shape)}"
            )


class ItemLayout(NamedTuple):
    """Where the payload of a saved tensor is in its item, and how to view it."""

    payload_offset: int
    payload_bytes: int
    crc: int
    recipe: TensorRecipe

    @property
    def has_checksum(self) -> bool:
        """Whether there is a CRC-32 to compare the payload with."""
        return bool(self.crc) or not self.payload_bytes


class KnownItems:
    """The archives that one load has read so far."""

    def __init__(self) -> None:
        self.recipes: dict[bytes, TensorRecipe | None] = {}
        self.templates: dict[int, list[tuple[Template, ItemLayout]]] = {}
        """By the length of the archive; empty where only one of that length was seen."""

    def find(self, read_at: ReadAt, length: int, *, check: bool) -> ItemLayout | None:
        """Return the layout of an archive that is like an earlier one; ``None`` when there was none."""
        for template, layout in self.templates.get(length, ()):
            crc = template.read(read_at, check=check)
            if crc is not None:
                return layout._replace(crc=crc)
        return None

    def add(self, read_at: ReadAt, length: int, records: dict[str, Record], payload: str, layout: ItemLayout) -> None:
        """Remember an archive if it is not the first of its length: most shapes in a small checkpoint are unique."""
        seen = self.templates.get(length)
        if seen is None:
            self.templates[length] = []
        elif len(seen) < MAX_TEMPLATES and layout.crc:
            seen.append((Template(read_at, length, records, payload), layout))


def memory_reader(data: memoryview) -> ReadAt:
    """Return a function that reads from an item in memory."""

    def read_at(offset: int, length: int) -> memoryview:
        piece = data[offset : offset + length]
        if offset < 0 or len(piece) != length:
            raise DamagedArchiveError("the archive is truncated", offset, length)
        return piece

    return read_at


def open_item(read_at: ReadAt, length: int, known: KnownItems, *, check: bool) -> ItemLayout | None:
    """Find the payload of a saved tensor, and check every record but the payload.

    Args:
        read_at: reads from the item.
        length: the length of the item in bytes.
        known: archives read so far; tensors of one shape differ only in their payload.
        check: compare the records with their CRC-32.

    Returns:
        The layout, or ``None`` when the item is sound but not a plain tensor of this machine's byte order.

    Raises:
        DamagedArchiveError: the item is damaged.
    """
    found = known.find(read_at, length, check=check)
    if found is not None:
        return found
    records = _read_records(read_at, length)
    small = {
        name: read_record(read_at, name, record, check=check)
        for name, record in records.items()
        if not _is_payload(name)
    }
    _check_format(small)
    pickle = small[_PICKLE]
    if pickle in known.recipes:
        recipe = known.recipes[pickle]
    else:
        recipe = known.recipes[pickle] = tensor_recipe(_parse(pickle, records[_PICKLE]))
    payloads = [name for name in records if _is_payload(name)]
    if recipe is None or small.get(_BYTE_ORDER, _NATIVE) != _NATIVE or payloads != [_PAYLOADS + recipe.storage_key]:
        return None
    payload = records[payloads[0]]
    if payload.size != recipe.storage_bytes:
        raise DamagedArchiveError(
            f"the payload holds {payload.size} bytes where the tensor's storage takes {recipe.storage_bytes}",
            payload.start,
            payload.size,
        )
    # Where the description has no checksum, the checksum of the payload proves nothing.
    crc = 0 if _lacks_checksum(records) else payload.crc
    layout = ItemLayout(payload.start, payload.size, crc, recipe)
    _check_extent(layout)
    known.add(read_at, length, records, payloads[0], layout)
    return layout


_NATIVE = sys.byteorder.encode()


def _is_payload(name: str) -> bool:
    return name.startswith(_PAYLOADS)


def _read_records(read_at: ReadAt, length: int) -> dict[str, Record]:
    if length < 4 or bytes(read_at(0, 4)) != ZIP_START:
        raise DamagedArchiveError("this is not an archive that torch.save wrote", 0, min(4, length))
    records = read_archive(read_at, length)
    # With a "constants.pkl" torch treats the archive as TorchScript, which is code.
    if _PICKLE not in records or any(name.lower() == "constants.pkl" for name in records):
        raise DamagedArchiveError("this is not the archive of a tensor or an object", 0, length)
    return records


def check_structure(read_at: ReadAt, length: int) -> None:
    """Raise unless the headers of an item are those of a ``torch.save`` archive; only a little of it is read."""
    _read_records(read_at, length)


def _check_format(content: dict[str, bytes]) -> None:
    version = content.get(_VERSION, b"").strip()
    if not version.isdigit() or len(version) > 2 or not 1 <= int(version) <= MAX_FORMAT_VERSION:
        raise DamagedArchiveError(f"the archive's version is missing or unknown: {version[:20]!r}")
    if content.get(_BYTE_ORDER, _NATIVE) not in _BYTE_ORDERS:
        raise DamagedArchiveError(f"unknown byte order {content[_BYTE_ORDER][:20]!r}")


def _parse(pickle: bytes, record: Record) -> Any:
    try:
        return read_pickle(pickle)
    except DamagedPickleError as error:
        raise _damaged(error, record) from error


def _damaged(error: DamagedPickleError, record: Record) -> DamagedArchiveError:
    return DamagedArchiveError(f"its pickle is damaged: {error}", record.start, record.size)


def _check_extent(layout: ItemLayout) -> None:
    recipe = layout.recipe
    if 0 in recipe.shape:
        return
    last = recipe.storage_offset + sum(
        (size - 1) * stride for size, stride in zip(recipe.shape, recipe.strides, strict=True)
    )
    if (last + 1) * recipe.dtype.itemsize > layout.payload_bytes:
        raise DamagedArchiveError("the tensor extends beyond its payload", layout.payload_offset, layout.payload_bytes)


def check_payload(data: memoryview, layout: ItemLayout) -> str | None:
    """Compare a payload with its CRC-32; return why it could not be checked, or ``None`` when it matches."""
    if not layout.has_checksum:
        return NO_CHECKSUM
    payload = data[layout.payload_offset : layout.payload_offset + layout.payload_bytes]
    if layout.payload_bytes and crc32(payload) != layout.crc:
        raise DamagedArchiveError("the bytes differ from their CRC-32", layout.payload_offset, layout.payload_bytes)
    return None


def view_payload(data: bytearray | memoryview, layout: ItemLayout) -> torch.Tensor:
    """Return a payload in a writable buffer as a tensor that shares its memory."""
    recipe = layout.recipe
    if not layout.payload_bytes or 0 in recipe.shape:
        return torch.empty(recipe.shape, dtype=recipe.dtype, device="cpu")
    flat = torch.frombuffer(
        data,
        dtype=recipe.dtype,
        count=layout.payload_bytes // recipe.dtype.itemsize,
        offset=layout.payload_offset,
    )
    return flat.as_strided(recipe.shape, recipe.strides, recipe.storage_offset)


def check_records(data: memoryview) -> str | None:
    """Compare every record of an item with its CRC-32; return why that was not possible, or ``None``."""
    read_at = memory_reader(data)
    records = _read_records(read_at, len(data))
    for name, record in records.items():
        read_record(read_at, name, record, check=True)
    return NO_CHECKSUM if _lacks_checksum(records) else None


def _lacks_checksum(records: dict[str, Record]) -> bool:
    return any(record.size and not record.crc for record in records.values())


class Decoded(NamedTuple):
    """What an item holds, and why it could not be compared with a checksum (``None`` when it was)."""

    value: Any
    unchecked: str | None


def decode_item(data: memoryview, *, check: bool, tensor: str, file: str) -> Decoded:
    """Make whatever an item holds.

    Args:
        data: the whole item.
        check: compare every record with its CRC-32.
        tensor: its name, for messages.
        file: its file, for messages.

    Raises:
        DamagedArchiveError: the item is damaged.
        UnsafeCheckpointError: it uses classes or functions that are not allowed, which the error names, or has a form
            that is not supported.
    """
    read_at = memory_reader(data)
    records = _read_records(read_at, len(data))
    content = {name: read_record(read_at, name, record, check=check) for name, record in records.items()}
    _check_format(content)
    unchecked = NO_CHECKSUM if _lacks_checksum(records) else None
    storages = _Storages(content)
    try:
        with collector_paused() if len(content[_PICKLE]) > LARGE_PICKLE_BYTES else nullcontext():
            value = build_object(read_pickle(content[_PICKLE]), storages.load)
    except (RefusedNamesError, RefusedPickleError) as error:
        raise refused({tensor: _refusal(error)}, file=file) from error
    except DamagedPickleError as error:
        raise _damaged(error, records[_PICKLE]) from error
    return Decoded(value, unchecked if check else None)


def _refusal(error: RefusedNamesError | RefusedPickleError) -> Refusal:
    if not isinstance(error, RefusedNamesError):
        return Refusal(reason=str(error), hint=error.hint)
    if all(name.startswith(("torch.nested.", "torch._dynamo.")) for name in error.names):  # allowing them does not help
        return Refusal(reason=NESTED_TENSOR)
    return Refusal(names=tuple(error.names))


def refusal_of(read_at: ReadAt, length: int, *, make: bool) -> Refusal | None:
    """Return why a load will refuse an object that was just saved; ``None`` when it will not.

    Args:
        read_at: reads from the item.
        length: its length.
        make: make it as a load will; otherwise only its names and its depth are checked.
    """
    records = _read_records(read_at, length)
    content = {
        name: read_record(read_at, name, record, check=False)
        for name, record in records.items()
        if make or name == _PICKLE
    }
    try:
        tree = read_pickle(content[_PICKLE])
        if make:
            build_object(tree, _Storages(content).load)
        else:
            check_object(tree)
    except (RefusedNamesError, RefusedPickleError) as error:
        return _refusal(error)
    except Warning:  # that this program turns into an error
        return None
    return None


def decode_tensor(
    data: memoryview, expected: Expected | None, *, check: bool, tensor: str, file: str
) -> tuple[torch.Tensor, str | None]:
    """Return the tensor that an item holds, of any kind, and why it could not be compared with a checksum."""
    value, unchecked = decode_item(data, check=check, tensor=tensor, file=file)
    if not isinstance(value, torch.Tensor):
        raise DamagedArchiveError(f"it holds a {type(value).__name__} where the metadata says tensor", 0, len(data))
    if value.is_meta:
        raise DamagedArchiveError("it holds a tensor without its elements", 0, len(data))
    if expected is not None:
        expected.check(tuple(value.shape), value.dtype, value.layout)
    return value, unchecked


class _Storages:
    """The storages of one archive's tensors, each made once from its record."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self._content = content
        self._swap = content.get(_BYTE_ORDER, _NATIVE) != _NATIVE
        self._made: dict[str, torch.storage.TypedStorage] = {}

    def load(self, identity: Any) -> torch.storage.TypedStorage:
        """Return the storage that a persistent reference denotes."""
        if type(identity) is not tuple or len(identity) != 5:
            raise DamagedPickleError("a reference to something other than a storage")
        kind, storage_type, key, location, count = identity
        if (*map(type, (kind, key, location, count)),) != (str, str, str, int) or kind != "storage":
            raise DamagedPickleError("a reference to something other than a storage")
        if key in self._made:
            return self._made[key]
        dtype = torch.uint8 if storage_type is torch.UntypedStorage else storage_type.dtype
        content = self._content.get(_PAYLOADS + key)
        if content is None or len(content) != count * dtype.itemsize:
            raise DamagedPickleError(f"the storage {key!r} is missing, or of a different size")
        # NumPy's memory: for a tensor that extends beyond it, torch would resize its own, exposing old content.
        # Even an empty storage gets its own address: torch does not save two types of storage at one address.
        memory = np.frombuffer(bytearray(content or 1), dtype=np.uint8)[: len(content)]
        storage = torch.from_numpy(memory).untyped_storage()
        if self._swap and dtype.itemsize > 1:
            storage.byteswap(dtype)  # type: ignore[no-untyped-call]
        if location != "cpu":
            storage = _placed(storage, location)
        self._made[key] = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]
        return self._made[key]


def _placed(storage: Any, location: str) -> Any:
    try:
        return torch.serialization.default_restore_location(storage, location)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, AttributeError):  # this machine has no such device
        return storage


class ObjectDecoder:
    """Converter from stored objects to streams that a planner may unpickle; equal small objects are made once.

    Args:
        trusted: give the planner the stored bytes as they are.
        check: compare every record with its CRC-32.
    """

    def __init__(self, *, trusted: bool, check: bool) -> None:
        self._trusted = trusted
        self._check = check
        self._known: dict[bytes, tuple[bytes, str | None]] = {}

    def stream(self, data: bytearray | memoryview, *, tensor: str, file: str) -> tuple[io.BytesIO, str | None]:
        """Return the object as a stream, and why it could not be compared with a checksum."""
        if self._trusted:
            return io.BytesIO(data), check_records(memoryview(data)) if self._check else None
        key = bytes(data) if len(data) <= MAX_CACHED_OBJECT_BYTES else b""
        if key in self._known:
            saved, unchecked = self._known[key]
            return io.BytesIO(saved), unchecked
        value, unchecked = decode_item(memoryview(data), check=self._check, tensor=tensor, file=file)
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
        except Exception as error:
            raise refused({tensor: Refusal(reason=f"it cannot be passed on: {error}")}, file=file) from error
        if key:
            self._known[key] = (buffer.getvalue(), unchecked)
        buffer.seek(0)
        return buffer, unchecked
