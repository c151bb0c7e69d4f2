"""What a load has to do: stored chunks, the boxes requested from each, and their dependencies.

A load plan is a list of read items. Items that want the same stored chunk are grouped, so that its bytes are read
once. The planner is asked for every destination up front, on the calling thread, because planners are not
thread-safe. Destinations that share memory (tied weights, a planner that hands out one scratch buffer) are chained:
each is read and committed before the next is touched, in the order of torch's own reader, so the last
writer is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from holdfast.checkpoint.items import Expected
from holdfast.checkpoint.manifest import Bound
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.errors import CheckpointMismatchError, UnusableCheckpointError

__all__ = ["Chunk", "ExpectedChunks", "Request", "chain_overlaps", "gather_chunks", "resolve", "stands_for_another"]

# Above this many separate runs of memory, overlap is assumed rather than computed.
_MOST_RUNS = 1 << 21


@dataclass(slots=True, eq=False)
class Request:
    """One read item and its destination."""

    item: ReadItem
    order: int  # its place in the order of torch's own reader
    target: torch.Tensor | None = None
    in_memory: bool = False  # a plain CPU tensor: any thread may write to it

    @property
    def fqn(self) -> str:
        """The name of the tensor."""
        return str(self.item.storage_index.fqn)


@dataclass(slots=True, eq=False)
class Chunk:
    """One stored item of a file, and the requests for boxes of it."""

    file: str
    offset: int
    length: int
    transforms: tuple[str, ...]
    raw: RawTensor | None
    expected: Expected | None  # what the metadata says it is; None for an object
    bound: Bound | None  # what the manifest says it is, where there is one
    requests: list[Request] = field(default_factory=list)
    followers: list[Chunk] = field(default_factory=list)
    blocked: bool = False

    @property
    def fqn(self) -> str:
        """The name of the tensor or object."""
        return self.requests[0].fqn

    @property
    def is_bytes(self) -> bool:
        """Whether this is a pickled object rather than a tensor."""
        return self.requests[0].item.type == LoadItemType.BYTE_IO

    @property
    def needed_bytes(self) -> int:
        """How many bytes of tensors the requests ask for."""
        if self.is_bytes:
            return self.length
        return sum(request.target.nbytes for request in self.requests if request.target is not None)


class ExpectedChunks:
    """A lookup of what the metadata says about stored chunks.

    Args:
        metadata: the checkpoint's metadata.
    """

    def __init__(self, metadata: Metadata | None) -> None:
        self._tensors = {} if metadata is None else metadata.state_dict_metadata
        self._chunks: dict[str, dict[tuple[int, ...], Expected]] = {}

    def of(self, index: MetadataIndex) -> Expected:
        """Return the expected content at an index."""
        if index.fqn not in self._chunks:
            entry = self._tensors.get(index.fqn)
            self._chunks[index.fqn] = _described(entry) if isinstance(entry, TensorStorageMetadata) else {}
        try:
            return self._chunks[index.fqn][tuple(index.offset or ())]
        except KeyError:
            raise UnusableCheckpointError(
                "the metadata does not describe a part of the tensor that the plan needs",
                tensor=index.fqn,
                part=tuple(index.offset or ()),
            ) from None


def _described(entry: TensorStorageMetadata) -> dict[tuple[int, ...], Expected]:
    dtype, layout = entry.properties.dtype, entry.properties.layout
    return {tuple(chunk.offsets): Expected(tuple(chunk.sizes), dtype, layout) for chunk in entry.chunks}


def gather_chunks(
    plan: LoadPlan,
    storage_data: dict[Any, Any],
    expected: ExpectedChunks,
    bound_of: Callable[[Any], Bound | None],
) -> list[Chunk]:
    """Group the read items of a plan by the stored chunk they want."""
    per_file: dict[str, list[tuple[ReadItem, Any]]] = {}
    for item in plan.items:
        try:
            info = storage_data[item.storage_index]
        except KeyError:
            raise UnusableCheckpointError(
                "the metadata lists a tensor but not where it is stored", tensor=item.storage_index.fqn
            ) from None
        per_file.setdefault(info.relative_path, []).append((item, info))
    chunks: dict[tuple[Any, ...], Chunk] = {}
    order = 0
    for file, wanted in per_file.items():
        for item, info in wanted:
            raw = info if isinstance(info, RawTensor) else None
            key: tuple[Any, ...] = (file, info.offset, info.length, item.type, item.storage_index.fqn if raw else None)
            if item.type == LoadItemType.BYTE_IO:
                key = (*key, order)  # two objects never share a read: the planner consumes the stream
            chunk = chunks.get(key)
            if chunk is None:
                transforms = tuple(getattr(info, "transform_descriptors", None) or ())
                stored = None if item.type == LoadItemType.BYTE_IO else expected.of(item.storage_index)
                bound = bound_of(info)
                chunk = chunks[key] = Chunk(file, info.offset, info.length, transforms, raw, stored, bound)
            chunk.requests.append(Request(item, order))
            order += 1
    return list(chunks.values())


def resolve(requests: Iterable[Request], planner: LoadPlanner) -> None:
    """Ask the planner for the destination of every tensor; runs on the calling thread."""
    for request in requests:
        item = request.item
        if item.type == LoadItemType.BYTE_IO:
            continue
        target = planner.resolve_tensor(item).detach()
        if target.size() != item.lengths:
            raise CheckpointMismatchError(
                "the shape of the destination differs from that part of the checkpoint",
                tensor=request.fqn,
                stored=tuple(item.lengths),
                destination=tuple(target.size()),
                hint="build the model with the configuration it was saved with",
            )
        plain = type(target) is torch.Tensor and target.layout == torch.strided and not stands_for_another(target)
        if plain and _lacks_memory(target):
            raise CheckpointMismatchError(
                "the destination has no memory of its own to fill: its storage was freed, or it is a constant of torch",
                tensor=request.fqn,
                stored=tuple(item.lengths),
                destination=tuple(target.size()),
                hint="load into a tensor with allocated memory",
            )
        if plain and _overlaps_itself(target):
            raise CheckpointMismatchError(
                "elements of the destination share memory, so it cannot hold what the checkpoint stores",
                tensor=request.fqn,
                stored=tuple(item.lengths),
                destination=f"strides {tuple(target.stride())}",
                hint="load into a separate tensor: destination.clone()",
            )
        request.target = target
        request.in_memory = plain and target.device.type == "cpu" and not target.is_conj() and not target.is_neg()


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a wrapper of ``torch.func`` around another one, which only torch can write to."""
    return torch._is_functional_tensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _lacks_memory(tensor: torch.Tensor) -> bool:
    if tensor._is_zerotensor():
        return True
    if not tensor.numel() or tensor.is_meta:
        return False
    last = tensor.storage_offset() + _last_offset(tensor)
    return (last + 1) * tensor.itemsize > tensor.untyped_storage().nbytes()


def _last_offset(tensor: torch.Tensor) -> int:
    return sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements share memory, as those of an expanded tensor do."""
    steps = sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size > 1)
    if not tensor.numel() or not steps:
        return False
    if steps[0][0] == 0:
        return True
    reach = 0  # offset of the last element, over the dimensions so far
    nested = True  # each dimension steps over all of the smaller ones
    for stride, size in steps:
        nested = nested and stride > reach
        reach += (size - 1) * stride
    if nested:
        return False
    # Interleaved strides may still give every element its own place: count the places.
    taken = torch.zeros(reach + 1, dtype=torch.bool, device="cpu")
    taken.as_strided(tensor.size(), tensor.stride()).fill_(True)
    return int(taken.sum()) < tensor.numel()


def chain_overlaps(chunks: list[Chunk]) -> list[Chunk]:
    """Chain chunks whose destinations share memory; return the chunks, some of them split.

    A chained chunk is ``blocked`` until the one before it is committed. Overlapping requests get their own chunk.
    """
    by_storage: dict[int, list[tuple[int, int, Chunk, Request]]] = {}
    for chunk in chunks:
        for request in chunk.requests:
            target = request.target
            if target is None or not target.numel() or not _has_storage(target):
                continue
            start = target.data_ptr()
            extent = 1 + _last_offset(target)
            by_storage.setdefault(target.untyped_storage().data_ptr(), []).append(
                (start, start + extent * target.itemsize, chunk, request)
            )
    result = dict.fromkeys(chunks)
    for spans in by_storage.values():
        for group in _overlapping(spans):
            for _, _, chunk, request in group:
                chunk.requests.remove(request)
                if not chunk.requests:
                    result.pop(chunk, None)
            previous: Chunk | None = None
            for _, _, chunk, request in sorted(group, key=lambda entry: entry[3].order):
                alone = replace(chunk, requests=[request], followers=[], blocked=False)
                result[alone] = None
                if previous is not None:
                    previous.followers.append(alone)
                    alone.blocked = True
                previous = alone
    return list(result)


def _has_storage(target: torch.Tensor) -> bool:
    try:
        return target.device.type != "meta" and target.untyped_storage().data_ptr() != 0
    except (NotImplementedError, RuntimeError):  # subclasses without their own storage cannot be compared
        return False


def _overlapping(
    spans: list[tuple[int, int, Chunk, Request]],
) -> list[list[tuple[int, int, Chunk, Request]]]:
    if len(spans) < 2:
        return []
    spans.sort(key=lambda span: span[:2])
    groups: list[list[tuple[int, int, Chunk, Request]]] = []
    group = [spans[0]]
    end = spans[0][1]
    for span in spans[1:]:
        if span[0] < end:
            group.append(span)
            end = max(end, span[1])
        else:
            groups.append(group)
            group, end = [span], span[1]
    groups.append(group)
    return [group for group in groups if len(group) > 1 and _share_bytes([span[3].target for span in group])]


def _share_bytes(targets: Sequence[torch.Tensor | None]) -> bool:
    """Return whether any byte belongs to two of the tensors; interleaved column blocks of a matrix share none."""
    starts, ends, total = [], [], 0
    for target in targets:
        assert target is not None
        run, outer = _run_bytes(target)
        total += int(np.prod([size for size, _ in outer], dtype=np.int64)) if outer else 1
        if total > _MOST_RUNS:
            return True
        places = np.array([target.data_ptr()], dtype=np.int64)
        for size, stride in outer:
            places = (places[:, None] + np.arange(size, dtype=np.int64) * stride).ravel()
        starts.append(places)
        ends.append(places + run)
    start = np.concatenate(starts)
    end = np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    return bool((start[order][1:] < np.maximum.accumulate(end[order])[:-1]).any())


def _run_bytes(target: torch.Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Return the length of a contiguous run of the tensor, and (count, step in bytes) of the outer dimensions."""
    run = 1
    outer: list[tuple[int, int]] = []
    for stride, size in sorted(zip(target.stride(), target.size(), strict=True)):
        if size == 1:
            continue
        if stride == run and not outer:
            run *= size
        else:
            outer.append((size, stride * target.itemsize))
    return run * target.itemsize, outer
