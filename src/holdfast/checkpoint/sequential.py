"""The sequential reference: one item after the other, as in torch's own reader, with our checks.

``parallel=False`` uses this. It shares only the file layer and the checks with the fast path. It reads whole items,
decodes tensors like any other object, copies them with ``copy_``, and calls the planner strictly in pairs. The tests
compare the fast path with it, and so can a user who doubts a result.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner

from holdfast.checkpoint.destination import check_request, narrow
from holdfast.checkpoint.files import CheckpointFile, FileTable
from holdfast.checkpoint.items import NO_CHECKSUMS_IN_SAFETENSORS, ObjectDecoder, decode_tensor, memory_reader
from holdfast.checkpoint.layouts import read_item
from holdfast.checkpoint.naming import naming
from holdfast.checkpoint.options import LoadOptions
from holdfast.checkpoint.plan import Chunk, resolve
from holdfast.checkpoint.report import ReportBuilder
from holdfast.checkpoint.transforms import FileSlice, max_unfolded_bytes, undo_transforms

__all__ = ["load_sequentially", "read_whole"]


def read_whole(file: CheckpointFile, chunk: Chunk, registry: object, on_read: Callable[..., None]) -> bytearray:
    """Read an item, and undo its transforms if it has any."""
    if chunk.raw is not None:
        on_read(chunk.length)
        return file.read(chunk.offset, chunk.length)
    if not chunk.transforms:
        return read_item(file, chunk.offset, chunk.length, on_read)
    most = max_unfolded_bytes(chunk.length, chunk.expected)
    file.check_reach(chunk.offset, chunk.length)
    with FileSlice(file, chunk.offset, chunk.length, on_read) as stream:
        return undo_transforms(stream, chunk.transforms, registry, most_bytes=most, tensor=chunk.fqn, file=chunk.file)


def load_sequentially(
    chunks: list[Chunk],
    planner: LoadPlanner,
    files: FileTable,
    report: ReportBuilder,
    options: LoadOptions,
    registry: object,
) -> None:
    """Load every chunk, request by request, in the order of torch's own reader."""
    requests = sorted(
        ((request, chunk) for chunk in chunks for request in chunk.requests), key=lambda pair: pair[0].order
    )
    checks = options.verify != "off"
    objects = ObjectDecoder(trusted=options.trusted, check=checks)
    for request, chunk in requests:
        with naming(chunk):
            file = files.get(chunk.file)
            if checks and chunk.bound is not None:
                stored = file.read(chunk.offset, chunk.length)
                chunk.bound.check(memory_reader(memoryview(stored)), chunk.length)
                report.read(chunk.length)
            data = read_whole(file, chunk, registry, report.read)
            content = tensor = None
            if request.item.type == LoadItemType.BYTE_IO:
                content, reason = objects.stream(data, tensor=chunk.fqn, file=chunk.file)
            elif chunk.raw is not None:
                tensor, reason = chunk.raw.view(data), NO_CHECKSUMS_IN_SAFETENSORS
            else:
                tensor, reason = decode_tensor(
                    memoryview(data), chunk.expected, check=checks, tensor=chunk.fqn, file=chunk.file
                )
            if checks and reason is None:
                report.checked()
            elif checks:
                report.unchecked(chunk.fqn, chunk.file, str(reason))
        if content is not None:
            planner.load_bytes(request.item, content)
            report.done(chunk.length)
            continue
        assert tensor is not None
        resolve([request], planner)
        check_request(request, tuple(tensor.shape), tensor.dtype, chunk.file, cast=options.cast)
        target = request.target
        assert target is not None
        part = narrow(tensor, request.item.storage_offsets, request.item.lengths)
        target.copy_(part)
        planner.commit_tensor(request.item, target)
        report.done(target.nbytes)
        request.target = None
    for chunk in chunks:
        with naming(chunk):
            files.release(chunk.file)
