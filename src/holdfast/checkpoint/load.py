"""One load, from gathered chunks to committed tensors.

A chunk goes through three stages. *Start* (a worker): find the payload and cut the wanted boxes into byte ranges.
*Read* (workers): fill destinations, or buffers, piece by piece, computing the CRC of each piece while it is in the
cache. *Commit* (the calling thread): only when the whole chunk was read and its checksum matches. Adjacent small chunks
skip the stages: many of them are read at once.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.checkpoint.planner import LoadPlanner

from holdfast.checkpoint.boxes import Part, parts_of_chunk
from holdfast.checkpoint.budget import BLOCK_BYTES, LoadCancelledError, MemoryBudget
from holdfast.checkpoint.checksum import RecordCheck, crc32
from holdfast.checkpoint.destination import bump_version, check_request, copy_into, memory_of, narrow
from holdfast.checkpoint.engine import Engine
from holdfast.checkpoint.files import FileTable
from holdfast.checkpoint.items import (
    NO_CHECKSUM,
    NO_CHECKSUMS_IN_SAFETENSORS,
    OBJECT_COPIES,
    ItemLayout,
    KnownItems,
    ObjectDecoder,
    check_payload,
    decode_tensor,
    memory_reader,
    open_item,
    view_payload,
)
from holdfast.checkpoint.layouts import chunk_layout, raw_layout, read_item
from holdfast.checkpoint.load_state import ChunkState, Copy, Finished
from holdfast.checkpoint.naming import corrupt, naming
from holdfast.checkpoint.neighbours import join_neighbours, may_join
from holdfast.checkpoint.options import LoadOptions
from holdfast.checkpoint.plan import Chunk
from holdfast.checkpoint.report import ReportBuilder
from holdfast.checkpoint.slices import is_dense
from holdfast.errors import CheckpointError

__all__ = ["Load"]

PIECE_BYTES = 16 << 20
"""How much one job reads straight into a destination."""
HOT_BYTES = 1 << 20
"""How much is read before its CRC is computed: as much as stays in a core's own cache."""


class Load:
    """One load, made for one call of ``read_data``.

    Args:
        files: the checkpoint's files.
        budget: memory for buffers.
        engine: runs the jobs.
        report: counts.
        options: what the user chose.
        unfold: reads a whole chunk and undoes its transforms.
    """

    def __init__(
        self,
        files: FileTable,
        budget: MemoryBudget,
        engine: Engine,
        report: ReportBuilder,
        options: LoadOptions,
        unfold: Callable[[Chunk], tuple[bytearray, int]],
    ) -> None:
        self._files = files
        self._budget = budget
        self._engine = engine
        self._report = report
        self._options = options
        self._unfold = unfold
        self._checks = options.verify != "off"
        self._known = KnownItems()
        self._objects = ObjectDecoder(trusted=options.trusted, check=self._checks)

    def run(self, chunks: list[Chunk], planner: LoadPlanner) -> None:
        """Read everything, and commit it on the calling thread as it arrives."""
        ready = sorted((chunk for chunk in chunks if not chunk.blocked), key=lambda chunk: (chunk.file, chunk.offset))
        self._engine.submit(*self._jobs(ready))
        for event in self._engine.events():
            if isinstance(event, Copy):
                self._copy(event)
                continue
            self._commit(event, planner)
            if event.chunk.followers:
                self._engine.submit(*self._jobs(event.chunk.followers))
        if self._report.items_done != len(chunks):
            # Cannot happen; but nobody would notice a load that silently skips a tensor.
            raise CheckpointError(
                "the load ended before everything was read", done=self._report.items_done, of=len(chunks)
            )

    def _commit(self, finished: Finished, planner: LoadPlanner) -> None:
        chunk = finished.chunk
        for request in chunk.requests:
            if finished.content is not None:
                planner.load_bytes(request.item, finished.content)
            elif request.target is not None:
                if request.in_memory:
                    bump_version(request.target)
                planner.commit_tensor(request.item, request.target)
        if finished.reserved:
            self._budget.unreserve(finished.reserved)
        self._report.done(chunk.needed_bytes)

    def _jobs(self, chunks: Iterable[Chunk]) -> list[Callable[[], None]]:
        return [
            _job(self._start, group[0])
            if len(group) == 1 and not may_join(group[0], self._budget.limit)
            else _job(self._read_neighbours, group)
            for group in join_neighbours(chunks, self._budget.limit)
        ]

    # Small neighbours, in one read.

    def _read_neighbours(self, chunks: list[Chunk]) -> None:
        start = chunks[0].offset
        end = max(chunk.offset + chunk.length for chunk in chunks)
        buffer = self._budget.take(end - start)
        try:
            with naming(chunks[0]):
                file = self._files.get(chunks[0].file)
            for chunk in chunks:
                with naming(chunk):
                    file.check_reach(chunk.offset, chunk.length)
            with naming(chunks[0]):
                file.read_into(buffer.view, start)
            self._report.read(end - start)
            address = buffer.tensor.data_ptr()
            for chunk in chunks:
                place = chunk.offset - start
                with naming(chunk):
                    item = buffer.view[place : place + chunk.length]
                    self._take_item(chunk, item, address + place)
        finally:
            buffer.release()

    def _take_item(self, chunk: Chunk, item: memoryview, address: int) -> None:
        """Deliver a chunk whose whole item is in memory, at ``address``."""
        proven = self._check_bound(chunk, item)
        if chunk.is_bytes:
            self._finish_object(chunk, bytearray(item), 0)
            return
        layout = self._layout_in_memory(chunk, item, check=self._checks and not proven)
        request = chunk.requests[0]
        target = request.target
        if (
            layout is not None
            and len(chunk.requests) == 1
            and target is not None
            and target.dtype == layout.recipe.dtype
            and layout.recipe.shape == tuple(request.item.lengths)
            and not any(request.item.storage_offsets)
            and layout.recipe.strides == target.stride()
            and layout.recipe.fills_storage
        ):
            reason = None if proven else self._check_item(chunk, item, layout)
            if layout.payload_bytes:
                ctypes.memmove(target.data_ptr(), address + layout.payload_offset, layout.payload_bytes)
            self._finish(chunk, reason)
            return
        # Copied to its own memory: among its neighbours the payload may be at an unaligned address.
        self._deliver(chunk, bytearray(item), layout)

    def _check_bound(self, chunk: Chunk, item: memoryview) -> bool:
        """Compare an item with the manifest; ``True`` if every byte was compared, so its CRC-32 adds nothing."""
        bound = chunk.bound
        if bound is None or not self._checks:
            return False
        bound.check(memory_reader(item), len(item))
        return bound.whole

    def _check_stored(self, chunk: Chunk) -> None:
        """Compare an item with the manifest as it is stored in the file, before undoing its transforms."""
        if self._checks and chunk.bound is not None:
            file = self._files.get(chunk.file)
            with self._budget.reserved(chunk.length):
                chunk.bound.check(lambda offset, length: file.read(chunk.offset + offset, length), chunk.length)
            self._report.read(chunk.length)

    def _layout_in_memory(self, chunk: Chunk, item: memoryview, *, check: bool) -> ItemLayout | None:
        if chunk.raw is not None:
            return raw_layout(chunk.raw)
        return _as_expected(chunk, open_item(memory_reader(item), len(item), self._known, check=check))

    def _check_item(self, chunk: Chunk, item: memoryview, layout: ItemLayout) -> str | None:
        if not self._checks:
            return None
        return NO_CHECKSUMS_IN_SAFETENSORS if chunk.raw is not None else check_payload(item, layout)

    def _deliver(self, chunk: Chunk, data: bytearray, layout: ItemLayout | None, reserved: int = 0) -> None:
        """Copy boxes of an item in memory to destinations that any thread may write to; the caller's does the rest."""
        if layout is not None:
            reason = self._check_item(chunk, memoryview(data), layout)
            tensor = view_payload(data, layout)
        else:
            self._report.went_generic(chunk.fqn)
            tensor, reason = decode_tensor(
                memoryview(data), chunk.expected, check=self._checks, tensor=chunk.fqn, file=chunk.file
            )
        for request in chunk.requests:
            check_request(request, tuple(tensor.shape), tensor.dtype, chunk.file, cast=self._options.cast)
        state = ChunkState(chunk, layout, len(chunk.requests), reserved)
        state.reason = reason
        for request in chunk.requests:
            source = narrow(tensor, request.item.storage_offsets, request.item.lengths)
            if request.in_memory:
                assert request.target is not None
                copy_into(request.target, source)
                self._one_done(state)
            else:
                start = (0,) * source.dim()
                self._engine.post(Copy(state, request, start, source, None))

    def _finish_object(self, chunk: Chunk, data: bytearray, reserved: int) -> None:
        stream, reason = self._objects.stream(data, tensor=chunk.fqn, file=chunk.file)
        self._finish(chunk, reason, stream, reserved)

    # One chunk, in pieces.

    def _start(self, chunk: Chunk) -> None:
        with naming(chunk):
            if chunk.transforms:
                self._check_stored(chunk)
                self._take_whole(chunk, *self._unfold(chunk))
                return
            layout = self._layout(chunk)
            if chunk.is_bytes or layout is None or not is_dense(layout.recipe.shape, layout.recipe.strides):
                self._read_whole(chunk)
                return
            for request in chunk.requests:
                check_request(request, layout.recipe.shape, layout.recipe.dtype, chunk.file, cast=self._options.cast)
            self._read_parts(chunk, layout)

    def _take_whole(self, chunk: Chunk, data: bytearray, reserved: int) -> None:
        if chunk.is_bytes:
            self._finish_object(chunk, data, reserved)
        else:
            self._deliver(chunk, data, self._layout_in_memory(chunk, memoryview(data), check=self._checks), reserved)

    def _read_whole(self, chunk: Chunk) -> None:
        """Read an item that can only be decoded as a whole: an object, or a tensor that is not plain."""
        reserved = chunk.length * (OBJECT_COPIES if chunk.is_bytes else 2)
        self._budget.reserve(reserved)
        data = read_item(self._files.get(chunk.file), chunk.offset, chunk.length, self._report.read)
        self._check_bound(chunk, memoryview(data))
        self._take_whole(chunk, data, reserved)

    def _layout(self, chunk: Chunk) -> ItemLayout | None:
        if chunk.is_bytes:
            return None
        if chunk.raw is not None:
            return raw_layout(chunk.raw)
        file = self._files.get(chunk.file)
        file.check_reach(chunk.offset, chunk.length)
        layout = chunk_layout(
            file,
            chunk.offset,
            chunk.length,
            self._known,
            check=self._checks,
            bound=chunk.bound,
            on_read=self._report.read,
        )
        return _as_expected(chunk, layout)

    def _read_parts(self, chunk: Chunk, layout: ItemLayout) -> None:
        full = self._options.verify == "full"
        parts = parts_of_chunk(chunk, layout, piece_bytes=PIECE_BYTES, block_bytes=self._block_bytes, full=full)
        state = ChunkState(chunk, layout, 1)
        if not self._checks:
            pass
        elif chunk.raw is not None:
            state.reason = NO_CHECKSUMS_IN_SAFETENSORS
        elif not layout.has_checksum:
            state.reason = NO_CHECKSUM
        elif parts.whole:
            state.check = RecordCheck(layout.crc, layout.payload_bytes)
        else:
            state.reason = "only a part of the record was read"
        jobs = [_job(self._read_group, state, group) for group in parts.groups]
        if len(jobs) <= 1:
            for job in jobs or [_job(self._one_done, state)]:
                job()
            return
        state.expect(len(jobs))
        self._engine.submit(*jobs, first=True)

    @property
    def _block_bytes(self) -> int:
        return max(1, min(BLOCK_BYTES, self._budget.limit))

    def _read_group(self, state: ChunkState, parts: list[Part]) -> None:
        """Read the parts of one job."""
        with naming(state.chunk):
            for part in parts:
                if self._engine.cancelled:
                    raise LoadCancelledError
                if part.address is not None:
                    self._read_into(state, memory_of(part.address, part.length), part.offset)
                else:
                    self._read_through_buffer(state, part)
            self._one_done(state)

    def _read_into(self, state: ChunkState, view: memoryview, offset: int) -> None:
        chunk, layout = state.chunk, state.layout
        assert layout is not None
        file = self._files.get(chunk.file)
        place = chunk.offset + layout.payload_offset + offset
        length = len(view)
        if state.check is None:
            file.read_into(view, place)
            self._report.read(length)
            return
        crc = 0
        step = HOT_BYTES if not file.remote else length  # one request is worth more than a warm cache
        for done in range(0, length, step):
            part = view[done : done + step]
            file.read_into(part, place + done)
            crc = crc32(part, crc)
        self._report.read(length, -(-length // step))
        state.check.add(offset, length, crc)

    def _read_through_buffer(self, state: ChunkState, part: Part) -> None:
        layout = state.layout
        assert layout is not None
        buffer = self._budget.take(part.length)
        handed_over = False
        try:
            self._read_into(state, buffer.view, part.offset)
            if not part.overlaps:
                return  # read for the checksum only
            flat = buffer.tensor[: part.length].view(layout.recipe.dtype)
            copies = []
            for overlap in part.overlaps:
                source = flat.as_strided(overlap.lengths, layout.recipe.strides, overlap.offset)
                if overlap.request.in_memory:
                    assert overlap.request.target is not None
                    copy_into(narrow(overlap.request.target, overlap.start, overlap.lengths), source)
                else:
                    copies.append(Copy(state, overlap.request, overlap.start, source, None))
            if copies:
                # The calling thread handles events in order, so the last copy can release the buffer.
                copies[-1] = copies[-1]._replace(buffer=buffer)
                handed_over = True
                for copy in copies:
                    state.one_more()
                    self._engine.post(copy)
        finally:
            if not handed_over:
                buffer.release()

    # Finishing.

    def _copy(self, event: Copy) -> None:
        request = event.request
        assert request.target is not None
        try:
            copy_into(narrow(request.target, event.start, event.source.shape), event.source)
        finally:
            if event.buffer is not None:
                event.buffer.release()
        with naming(event.state.chunk):
            self._one_done(event.state)

    def _one_done(self, state: ChunkState) -> None:
        if not state.one_done():
            return
        if state.check is not None:
            result = state.check.result()
            layout = state.layout
            assert layout is not None
            if result != state.check.expected and layout.payload_bytes:
                raise corrupt(
                    state.chunk, "the bytes differ from their CRC-32", layout.payload_offset, layout.payload_bytes
                )
        self._finish(state.chunk, state.reason, None, state.reserved)

    def _finish(self, chunk: Chunk, reason: str | None, content: io.BytesIO | None = None, reserved: int = 0) -> None:
        self._files.release(chunk.file)
        if self._checks:
            if reason is None:
                self._report.checked()
            else:
                self._report.unchecked(chunk.fqn, chunk.file, reason)
        self._engine.post(Finished(chunk, content, reserved))


def _as_expected(chunk: Chunk, layout: ItemLayout | None) -> ItemLayout | None:
    """Raise if the shape or dtype of a stored tensor differs from the metadata."""
    if layout is not None and chunk.expected is not None:
        chunk.expected.check(layout.recipe.shape, layout.recipe.dtype)
    return layout


def _job(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)
