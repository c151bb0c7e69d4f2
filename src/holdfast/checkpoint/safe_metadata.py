"""The ``.metadata`` of a checkpoint, read without running its code, and accepted only if it is consistent.

Torch reads this file with a bare ``pickle.load``: anyone who can write to the checkpoint's folder can run any code in
every rank of the job. Here the pickle is read as data (``holdfast.checkpoint.inert``), and torch's classes are
created from it by name, field by field. Then it must be consistent: the parts of every tensor tile it, each part is
stored in exactly one place, and no two places share a byte.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem as dcp_filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.files import path_parts
from holdfast.checkpoint.inert import DamagedPickleError, Inert, Name
from holdfast.checkpoint.pickle_machine import read_pickle
from holdfast.checkpoint.safe_objects import RefusedNamesError, build_object
from holdfast.checkpoint.tiling import check_tiling
from holdfast.errors import UnsafeCheckpointError, UnusableCheckpointError

__all__ = ["check_metadata", "load_metadata"]

_HINT_UNSAFE = "do not load this checkpoint unless you made it yourself; if so, pass trusted=True"
_HINT_DAMAGED = "restore the file from a copy, or load an older checkpoint"
MAX_DIMENSIONS = 64
"""Maximum number of dimensions of a tensor; torch's own limit."""
MIN_CONTAINER_BYTES = 4
MAX_PARTS_PER_PLACE = 128
"""Maximum number of parts of all tensors per place: empty parts at one offset, such as those of ranks that got no row,
may have one place together …"""
MIN_PARTS = 1024
"""… and this many parts more."""
"""Minimum number of metadata bytes per container: names and locations take ten or more."""
MAX_NUMBER = 1 << 62
"""Exclusive upper bound of sizes, offsets and lengths."""

_DCP = "torch.distributed.checkpoint"
_OLD = "torch.distributed._shard.sharded_tensor.metadata"
_FIELDS = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")


def load_metadata(data: bytes, *, file: str, trusted: bool = False) -> Metadata:
    """Read a checkpoint's metadata.

    Args:
        data: the content of the file.
        file: its name, for messages.
        trusted: unpickle without any check on what it names.

    Returns:
        The metadata, every field of it checked.

    Raises:
        UnsafeCheckpointError: it names something that no checkpoint needs; nothing was run.
        UnusableCheckpointError: it is damaged or inconsistent.
    """
    try:
        if trusted:
            metadata: Metadata = pickle.loads(data)  # noqa: S301 — the caller vouches for it
        else:
            metadata = _metadata(read_pickle(data, container_bytes=MIN_CONTAINER_BYTES))
        check_metadata(metadata)
    except RefusedNamesError as error:
        raise UnsafeCheckpointError(
            f"the metadata refers to something that no checkpoint needs: {', '.join(error.names)}",
            names=error.names,
            file=file,
            hint=_HINT_UNSAFE,
        ) from None
    except (MemoryError, KeyboardInterrupt, UnusableCheckpointError):
        raise
    except KeyError as error:
        raise UnusableCheckpointError(f"the metadata lacks {error}", file=file, hint=_HINT_DAMAGED) from error
    except Exception as error:  # a damaged pickle may raise anything
        raise UnusableCheckpointError(f"the metadata is damaged: {error}", file=file, hint=_HINT_DAMAGED) from error
    return metadata


# Converting the pickle's data to torch's classes.


def _metadata(tree: Any) -> Metadata:
    if type(tree) is not Inert or not tree.made or type(tree.state) is not dict or tree.arguments:
        raise _refuse(tree)
    if tree.items or tree.values or not _is_metadata_class(tree.function):
        if type(tree.function) is Name and tree.function.module.partition(".")[0] == "torch":
            raise ValueError(f"expected Metadata, got {tree.function}")
        raise _refuse(tree)
    state = tree.state
    sizes = _Sizes()
    storage: dict[MetadataIndex, Any] = {}
    for key, value in _pairs(state["storage_data"]):
        index = _index(key, sizes)
        if index in storage:
            raise ValueError(f"{index.fqn} has two places")
        storage[index] = _place(value)
    sizes.parts_left = MIN_PARTS + MAX_PARTS_PER_PLACE * len(storage)
    meta = state.get("storage_meta")
    version = state.get("version")
    metadata = Metadata(
        state_dict_metadata={_text(fqn): _stored(entry, sizes) for fqn, entry in _pairs(state["state_dict_metadata"])},
        planner_data=_plain(state.get("planner_data")),
        storage_data=storage,
        storage_meta=None if meta is None else _storage_meta(meta),
    )
    if version is not None:
        metadata.version = _text(version)
    for name in state.keys() - set(_FIELDS):
        _keep_extra(metadata, name, state[name])
    return metadata


def _is_metadata_class(name: Any) -> bool:
    """Return whether a name is torch's ``Metadata``, Megatron's, or a subclass that the program has imported."""
    if type(name) is not Name:
        return False
    if name in _METADATA or (name.module.partition(".")[0], name.name) == _MEGATRON:
        return True
    module = sys.modules.get(name.module)
    found = None if module is None else vars(module).get(name.name)  # ``getattr`` may run a module's own code
    return isinstance(found, type) and issubclass(found, Metadata)


def _keep_extra(metadata: Metadata, name: Any, value: Any) -> None:
    """Keep a field unknown to torch if it is plain data; drop it if it holds torch's own plans."""
    try:
        metadata.__dict__[_text(name)] = _plain(value)
    except RefusedNamesError as error:
        foreign = [used for used in error.names if used.partition(".")[0] not in ("torch", "megatron")]
        if foreign:
            raise RefusedNamesError(Name(*used.rpartition(".")[::2]) for used in foreign) from None


def _plain(value: Any) -> Any:
    def storage(_: Any) -> Any:
        raise DamagedPickleError("the metadata refers to an object outside itself")

    return build_object(value, storage)


def _refuse(value: Any) -> Exception:
    if type(value) is Inert:
        value = value.function
    if type(value) is Name:
        return RefusedNamesError([value])
    return ValueError(f"expected a description of a stored item, got {type(value).__name__}")


def _instance(value: Any, classes: frozenset[Name]) -> Any:
    """Return the state of an instance of one of the classes."""
    if (
        type(value) is not Inert
        or type(value.function) is not Name
        or value.function not in classes
        or not value.made
        or value.arguments
        or value.items
        or value.values
    ):
        raise _refuse(value)
    if type(value.state) is dict and {*map(type, value.state)} - {str}:
        raise ValueError("a field whose name is not text")
    return value.state


def _call(value: Any, functions: frozenset[Name]) -> Any:
    """Return the arguments of a call of one of the functions."""
    if (
        type(value) is not Inert
        or type(value.function) is not Name
        or value.function not in functions
        or value.made
        or value.state is not None
        or value.items
        or value.values
    ):
        raise _refuse(value)
    return value.arguments


class _Sizes:
    """A cache that creates every size once, however often it is used: 2,000 tensors on 64 ranks use half a million."""

    def __init__(self) -> None:
        self._known: dict[int, torch.Size] = {}
        self.parts_left = 0
        """How many more parts all tensors may have: tensors may share a list of them, which is walked for each."""
        self.tensors: dict[int, TensorStorageMetadata] = {}
        """Tensors by their description, which tensors of one shape may share."""

    def take_parts(self, count: int) -> None:
        """Count the parts of a tensor; raise if there are far more than places."""
        self.parts_left -= count
        if self.parts_left < 0:
            raise ValueError("its tensors have far more parts than there are places")

    def __call__(self, value: Any) -> torch.Size:
        known = self._known.get(id(value))
        if known is not None:
            return known
        (numbers,) = _call(value, _SIZE)
        if type(numbers) not in (tuple, list) or len(numbers) > MAX_DIMENSIONS or not _whole(numbers):
            raise ValueError("a size that does not consist of integers")
        made = self._known[id(value)] = torch.Size(numbers)
        return made


def _stored(value: Any, sizes: _Sizes) -> TensorStorageMetadata | BytesStorageMetadata:
    if type(value) is Inert and value.function in _BYTES:
        _instance(value, _BYTES)
        return BytesStorageMetadata()
    known = sizes.tensors.get(id(value))
    if known is not None:
        sizes.take_parts(len(known.chunks))
        own = object.__new__(TensorProperties)  # a copy, so that a planner's change does not affect another tensor
        own.__dict__.update(known.properties.__dict__)
        return TensorStorageMetadata(own, known.size, list(known.chunks))
    fields = _instance(value, _TENSOR)
    chunks = fields["chunks"]
    if type(chunks) is not list:
        raise ValueError("the parts of a tensor are not a list")
    sizes.take_parts(len(chunks))
    made = sizes.tensors[id(value)] = TensorStorageMetadata(
        properties=_properties(fields["properties"]),
        size=sizes(fields["size"]),
        chunks=[_chunk(chunk, sizes) for chunk in chunks],
    )
    return made


def _properties(value: Any) -> TensorProperties:
    dtype, layout, requires_grad, memory_format, pin_memory = _instance(value, _PROPERTIES)
    kind = getattr(torch, dtype.name, None) if type(dtype) is Name and dtype.module == "torch" else None
    if not isinstance(kind, torch.dtype):
        raise _refuse(dtype)
    if type(requires_grad) is not bool or type(pin_memory) is not bool:
        raise ValueError("requires_grad and pin_memory must be true or false")
    (number,) = _call(memory_format, _MEMORY_FORMAT)
    if not _whole((number,)):
        raise ValueError("an unknown memory format")
    return TensorProperties(
        dtype=kind,
        layout=_layout(layout),
        requires_grad=requires_grad,
        memory_format=(torch.contiguous_format, torch.channels_last, torch.preserve_format)[number],
        pin_memory=pin_memory,
    )


def _layout(value: Any) -> torch.layout:
    (name,) = _call(value, _LAYOUT)
    layout = getattr(torch, _text(name).removeprefix("torch."), None)
    if not isinstance(layout, torch.layout):
        raise ValueError(f"unknown layout {name!r}")
    return layout


def _chunk(value: Any, sizes: _Sizes) -> ChunkStorageMetadata:
    fields = _instance(value, _CHUNK)
    return ChunkStorageMetadata(offsets=sizes(fields["offsets"]), sizes=sizes(fields["sizes"]))


def _index(value: Any, sizes: _Sizes) -> MetadataIndex:
    fields = _instance(value, _INDEX)
    offset, index = fields.get("offset"), fields.get("index")
    if index is not None and not _whole((index,)):
        raise ValueError("invalid part number")
    return MetadataIndex(_text(fields["fqn"]), None if offset is None else sizes(offset), index)


def _place(value: Any) -> Any:
    fields = _instance(value, _PLACE)
    place = dcp_filesystem._StorageInfo(_text(fields["relative_path"]), fields["offset"], fields["length"])
    transforms = fields.get("transform_descriptors")
    if transforms is not None:
        if type(transforms) not in (list, tuple):
            raise ValueError("the transforms are not a list")
        place.transform_descriptors = [_text(name) for name in transforms]
    return place


def _storage_meta(value: Any) -> StorageMeta:
    fields = _instance(value, _META)
    path = fields.get("checkpoint_id")
    texts = {name: fields.get(name) for name in ("save_id", "load_id")}
    if any(text is not None and type(text) is not str for text in texts.values()):
        raise ValueError("an id is not text")
    # The folder it was saved to may be a path on another machine: only its name is kept.
    where = path if path is None or type(path) is str else PurePosixPath(*map(_text, _call(path, _PATH)))
    return StorageMeta(checkpoint_id=where, modules=[_text(name) for name in fields.get("modules", [])], **texts)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value


def _pairs(mapping: Any) -> Any:
    if type(mapping) is not dict:
        raise ValueError(f"expected a dict, got {type(mapping).__name__}")
    return mapping.items()


def _whole(numbers: Iterable[Any]) -> bool:
    return all(type(number) is int and 0 <= number < MAX_NUMBER for number in numbers)


def _names(name: str, *modules: str) -> frozenset[Name]:
    return frozenset(Name(module, name) for module in modules)


_METADATA = _names("Metadata", f"{_DCP}.metadata")
_MEGATRON = ("megatron", "MCoreMetadata")  # in a module that has moved between its releases
_TENSOR = _names("TensorStorageMetadata", f"{_DCP}.metadata")
_BYTES = _names("BytesStorageMetadata", f"{_DCP}.metadata")
_PROPERTIES = _names("TensorProperties", _OLD, f"{_DCP}.metadata")
_CHUNK = _names("ChunkStorageMetadata", f"{_DCP}.metadata")
_SIZE = _names("Size", "torch")
_LAYOUT = _names("_get_layout", "torch.serialization")
_MEMORY_FORMAT = _names("MEM_FORMAT_ENCODING", _OLD) | _names("_MEM_FORMAT_ENCODING", f"{_DCP}.metadata")
_INDEX = _names("MetadataIndex", f"{_DCP}.metadata")
_PLACE = _names("_StorageInfo", f"{_DCP}.filesystem")
_META = _names("StorageMeta", f"{_DCP}.metadata")
_PATH = frozenset(
    Name(module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
)


# Checking that it is consistent.


def check_metadata(metadata: Any) -> None:
    """Raise ``ValueError`` unless the metadata is consistent; also used for trusted metadata."""
    if not isinstance(metadata, Metadata):
        raise ValueError(f"expected Metadata, got {type(metadata).__name__}")
    parts: dict[str, set[tuple[int, ...]]] = {}
    objects: set[str] = set()
    for fqn, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            try:
                check_tiling(entry.size, [(chunk.offsets, chunk.sizes) for chunk in entry.chunks])
            except ValueError as error:
                raise ValueError(f"the parts of {fqn} do not tile it: {error}") from None
            parts[fqn] = {chunk.offsets for chunk in entry.chunks}
        elif isinstance(entry, BytesStorageMetadata):
            parts[fqn] = {()}
            objects.add(fqn)
        else:
            raise ValueError(f"the entry for {fqn} is a {type(entry).__name__}")
    places: dict[str, list[tuple[int, int, str]]] = {}
    for index, info in metadata.storage_data.items():
        part = index.offset or ()
        is_object = index.offset is None  # a load distinguishes objects by this
        if part not in parts.get(index.fqn, ()) or is_object != (index.fqn in objects):
            raise ValueError(f"a location of {index.fqn} belongs to no part, or to one that already has a location")
        parts[index.fqn].remove(part)
        if not _whole((info.offset, info.length)) or type(info.relative_path) is not str:
            raise ValueError(f"the metadata does not say where {index.fqn} is stored")
        file = "/".join(path_parts(info.relative_path)) if "/" in info.relative_path else info.relative_path
        places.setdefault(file, []).append((info.offset, info.length, index.fqn))
    for fqn, missing in parts.items():
        if missing:
            raise ValueError(
                f"the metadata does not say where {fqn} is stored: no location for its part at {min(missing)}"
            )
    for file, used in places.items():
        _check_places(file, used)
    _check_paths(getattr(metadata, "planner_data", None), metadata)


def _check_paths(planner_data: Any, metadata: Metadata) -> None:
    """Check that the path torch's planner stored for every name leads to that name."""
    if not isinstance(planner_data, dict) or planner_data.keys().isdisjoint(metadata.state_dict_metadata):
        return
    stored = metadata.state_dict_metadata
    ends = {name: _joined(path) for name, path in planner_data.items() if type(path) is tuple}
    # Another planner may store something else, under names of its own or in place of all paths.
    lost = [name for name in planner_data if ends.get(name) != name and (name in stored or ends.get(name) in stored)]
    if lost and any(ends.get(name) == name for name in stored):
        raise ValueError(f"the planner's path to {lost[0]!r} leads elsewhere")


def _joined(path: tuple[Any, ...]) -> str | None:
    """Return the name that a path leads to; ``None`` unless it consists of keys, as a path does.

    The text of anything else, such as a tuple of shared tuples, may take any time and memory.
    """
    if all(type(part) in (str, int, float, bool, type(None)) for part in path):
        return ".".join(map(str, path))
    return None


def _check_places(file: str, used: list[tuple[int, int, str]]) -> None:
    end, before = 0, ""
    for offset, length, fqn in sorted(used):
        if length and offset < end:
            raise ValueError(f"{before} and {fqn} are listed at the same place of {file}")
        if length:
            end, before = offset + length, fqn
