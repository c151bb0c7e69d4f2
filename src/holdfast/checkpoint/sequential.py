"""The sequential reference: one item after the other, as torch's own reader does it, with the safety of ours.

``parallel=False`` uses this. It shares no code with the fast path but the file layer and the checks, reads every item
whole, lets ``torch.load`` decode it and ``copy_`` deliver it, and calls the planner strictly in pairs. The tests hold
the fast path against it, and so can a user who distrusts a result.
"""

from __future__ import annotations

import io

from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner

from holdfast.checkpoint.destination import check_request, narrow
from holdfast.checkpoint.files import FileTable
from holdfast.checkpoint.items import check_object, check_records, decode_generic
from holdfast.checkpoint.load import LoadOptions
from holdfast.checkpoint.naming import naming
from holdfast.checkpoint.plan import Chunk, resolve
from holdfast.checkpoint.report import ReportBuilder
from holdfast.checkpoint.transforms import FileSlice, undo_transforms

__all__ = ["load_sequentially"]


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
    harmless: set[bytes] = set()
    for request, chunk in requests:
        with naming(chunk):
            file = files.get(chunk.file)
            if chunk.transforms:
                with FileSlice(file, chunk.offset, chunk.length, report.read) as stream:
                    data = undo_transforms(
                        stream, chunk.transforms, registry, most_bytes=1 << 62, tensor=chunk.fqn, file=chunk.file
                    )
            else:
                data = file.read(chunk.offset, chunk.length)
                report.read(chunk.length)
            reason = None
            if options.verify != "off":
                reason = "the safetensors format has no checksums" if chunk.raw else check_records(memoryview(data))
                if reason is None:
                    report.checked()
                else:
                    report.unchecked(chunk.fqn, chunk.file, reason)
            if request.item.type == LoadItemType.BYTE_IO and not options.trusted:
                check_object(memoryview(data), chunk.fqn, chunk.file, harmless)
        if request.item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(request.item, io.BytesIO(data))
            report.done(chunk.length)
            continue
        tensor = chunk.raw.view(data) if chunk.raw is not None else decode_generic(data, chunk.fqn, chunk.file)
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
