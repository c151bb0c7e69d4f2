"""Torch's writer, into a hidden folder that the coordinator publishes with a manifest once all ranks are done."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _split_by_size_and_type, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast.checkpoint.archive import HEAD_BYTES, ReadAt
from holdfast.checkpoint.at_once import run_at_once
from holdfast.checkpoint.data_files import DataFiles, NoTransforms
from holdfast.checkpoint.files import CheckpointFile, LocalFiles
from holdfast.checkpoint.interrupts import interrupt_in
from holdfast.checkpoint.items import MAX_CACHED_OBJECT_BYTES, memory_reader, refusal_of
from holdfast.checkpoint.manifest import (
    MANIFEST,
    WHOLE_BYTES,
    Manifest,
    ManifestRecord,
    ReadPart,
    digest_of,
    digest_whole,
    item_digest,
)
from holdfast.checkpoint.not_allowed import Refusal
from holdfast.checkpoint.publish import Staging, check_replaceable, prune
from holdfast.checkpoint.syncing import sync_files, sync_names
from holdfast.errors import CheckpointWriteError

__all__ = ["VerifiedWriter"]

_READ_BYTES = 1 << 20
MAX_TRIED_BYTES = 64 << 20
"""Objects up to this size are decoded once as a load would, to warn about those that it would refuse."""
_PLAIN_TENSOR = re.compile(
    rb"PK.{,80}?\x80\x02ctorch\._utils\n_rebuild_tensor_v[23]\n.{,400}?"
    rb"ccollections\nOrderedDict\nq.\)Rq.(ctorch\n\w+\nq.)?tq.Rq.\.PK",
    re.DOTALL,
)
"""A description that every load accepts, from its first byte to its last: a plain tensor without attributes or hooks.
Decoding the descriptions of 5,000 tensors of different shapes instead made saving them a sixth slower."""


@dataclass(frozen=True)
class _Digested(WriteResult):
    """What torch tells the coordinator about one written item, and its digest."""

    whole: bool
    digest: str


class VerifiedWriter(FileSystemWriter):
    """The writer of one checkpoint; created by ``holdfast.checkpoint.save`` on every rank.

    Nothing is on the disk before ``begin``, and only the checkpoint after ``close``.

    Args:
        target: the final folder.
        step: for the manifest.
        run_id: for the manifest.
        keep: how many checkpoints of the run to keep; all when ``None``.
        thread_count: files, and threads that write them.
        group: the ranks that save together, or ``None`` for all.
        alone: whether there is one process and no group.
    """

    def __init__(
        self,
        target: Path,
        *,
        step: int,
        run_id: str | None,
        keep: int | None,
        thread_count: int,
        group: dist.ProcessGroup | None,
        alone: bool,
    ) -> None:
        self.items = 0
        self.bytes = 0
        self.removed: list[Path] = []
        self.refused: dict[str, Refusal] = {}
        self._written: list[Path] = []
        self._step = step
        self._run_id = run_id
        self._keep = keep
        self._group = group
        self._alone = alone
        self._files = thread_count
        self._staging = Staging(target)
        self._coordinator = alone or dist.get_rank(group) == 0
        # Synced here, all files at once: the file system then commits its journal once, not once per file.
        super().__init__(self._staging.folder, sync_files=False, overwrite=False)
        if thread_count > 1:  # as torch does: copying ahead is slow on several threads
            self.per_thread_copy_ahead = 0
        self.fs = DataFiles()
        self.transforms = NoTransforms()  # type: ignore[assignment]  # it has all that torch uses

    def begin(self) -> None:
        """Create the hidden folder before any rank writes; if that fails, raise on all ranks."""
        staging = self._staging
        outcome: list[Exception | Path] = [staging.folder]
        if self._coordinator:
            try:
                check_replaceable(staging.target)
                staging.make()
            except (OSError, CheckpointWriteError) as error:
                outcome = [error]
        if not self._alone:
            source = 0 if self._group is None else dist.get_global_rank(self._group, 0)
            dist.broadcast_object_list(outcome, src=source, group=self._group)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        self.path = staging.folder = outcome[0]

    def discard(self) -> Path | None:
        """Remove what was written, unless it was published; return its folder if it could not be removed."""
        return self._staging.close()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items, and compute their digests from the files."""
        handled = sys.exc_info()[1]
        try:
            results = self._write_files(plan, planner)
        except Exception as error:  # such as torch's zip writer's; sent to other ranks, an error loses its cause
            interrupt = interrupt_in(error, handled=handled)
            if interrupt is None:
                raise
            raise interrupt from None
        tensors = {item.index: item.tensor_data for item in plan.items if item.tensor_data is not None}
        per_file: dict[str, list[WriteResult]] = {}
        for result in results:
            per_file.setdefault(result.storage_data.relative_path, []).append(result)
        digested: list[WriteResult] = []
        refusals = _Refusals()
        for name, written in per_file.items():
            file = CheckpointFile(self._staging.folder / name, name, LocalFiles())
            try:
                digested += _digest(file, written, tensors, refusals)
            finally:
                file.close()
        self.refused = refusals.found
        self.items = len(digested)
        self.bytes = sum(result.size_in_bytes for result in digested)
        self._written = [self._staging.folder / name for name in per_file]
        if not self._alone:  # otherwise together with the metadata and the manifest
            sync_files(self._written)
        future: Future[list[WriteResult]] = Future()
        future.set_result(digested)
        return future

    def _write_files(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Have torch write one file per thread; raise an error of any thread, which torch's own threads would lose."""
        shares = [share for share in _split_by_size_and_type(self._files, plan.items) if share]
        written: list[WriteResult] = []

        def writing(number: int, share: list[WriteItem]) -> Callable[[], None]:
            prefix = f"{plan.storage_data.prefix}{number or ''}"  # torch appends a 0
            part = replace(plan, items=share, storage_data=_StoragePrefix(prefix))
            return lambda: written.extend(super(VerifiedWriter, self).write_data(part, planner).value())

        run_at_once([writing(*share) for share in enumerate(shares)], max_threads=self._files)
        left_out = {item.index for item in plan.items}.difference(result.index for result in written)
        if left_out:
            # Should not happen, but a save that silently skipped a tensor would go unnoticed.
            raise CheckpointWriteError(
                f"not everything was written: {', '.join(sorted(index.fqn for index in left_out)[:5])}",
                path=str(self._staging.target),
            )
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata and the manifest, and publish; called on the coordinator when every rank has written."""
        super().finish(metadata, results)
        folder = self._staging.folder
        records = [
            ManifestRecord(
                result.index.fqn,
                list(result.index.offset or ()),
                result.storage_data.relative_path,
                result.storage_data.offset,
                result.storage_data.length,
                result.whole,
                result.digest,
            )
            for rank in results
            for result in rank
            if isinstance(result, _Digested)
        ]
        missing = sorted(name for name in {record.file for record in records} if not (folder / name).exists())
        if missing:
            raise CheckpointWriteError(
                f"files that ranks wrote are not in the coordinator's folder: {', '.join(missing[:5])}",
                path=str(self._staging.target),
                hint="all ranks must save to one shared file system",
            )
        content = (folder / ".metadata").read_bytes()
        manifest = Manifest(step=self._step, run_id=self._run_id, metadata=digest_of(content), records=records).sealed()
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
        sync_files([folder / MANIFEST, folder / ".metadata", *(self._written if self._alone else ())])
        sync_names(folder)
        try:
            self._staging.publish()
            if self._keep is not None:
                self.removed = prune(self._staging.target, manifest, self._keep)
        except Exception as error:
            if not self._staging.published:
                raise
            raise CheckpointWriteError(  # such as a warning, where the program turns warnings into errors
                f"the checkpoint is saved, but an older one could not be removed: {error}",
                path=str(self._staging.target),
            ) from error


class _Refusals:
    """What a load will refuse of what was written; equal small objects are examined once."""

    def __init__(self) -> None:
        self.found: dict[str, Refusal] = {}
        self._known: dict[bytes, Refusal | None] = {}

    def look_at_tensor(self, key: str, read: ReadPart, length: int) -> None:
        """Examine a tensor as it was written, unless it is plain."""
        if _PLAIN_TENSOR.match(read(0, min(HEAD_BYTES, length))) is None:
            self.look_at_object(key, read, length)

    def look_at_object(self, key: str, read: ReadPart, length: int) -> None:
        """Examine an object as it was written."""
        whole = length <= MAX_TRIED_BYTES
        content = bytes(read(0, length)) if whole else b""
        if content in self._known:
            refusal = self._known[content]
        else:
            read_at: ReadAt = memory_reader(memoryview(content)) if whole else lambda at, count: bytes(read(at, count))
            refusal = refusal_of(read_at, length, make=whole)
        if length <= MAX_CACHED_OBJECT_BYTES:
            self._known[content] = refusal
        if refusal is not None:
            self.found[key] = refusal


def _digest(
    file: CheckpointFile,
    written: Iterable[WriteResult],
    tensors: Mapping[MetadataIndex, TensorWriteData],
    refusals: _Refusals,
) -> Iterator[_Digested]:
    """Compute the digests of what was written to a file, from the file itself, and find what a load will refuse."""
    held, held_at = memoryview(b""), 0
    for result in sorted(written, key=lambda result: result.storage_data.offset):
        info = result.storage_data
        read: ReadPart
        if info.length <= WHOLE_BYTES:  # together with its neighbours: one read fetches a few hundred
            if info.offset + info.length > held_at + len(held):
                held_at = info.offset
                held = memoryview(file.read(held_at, min(_READ_BYTES, file.size - held_at)))
            read = memory_reader(held[info.offset - held_at :][: info.length])
        else:
            read = _reader(file, info.offset)
        tensor = tensors.get(result.index)
        if tensor is None:
            refusals.look_at_object(result.index.fqn, read, info.length)
        elif 0 not in tensor.chunk.sizes:  # a load reads nothing of an empty one
            refusals.look_at_tensor(result.index.fqn, read, info.length)
        whole = digest_whole(read, info.length, tensor=tensor is not None)
        digest = item_digest(read, info.length, whole=whole)
        yield _Digested(result.index, result.size_in_bytes, info, whole, digest)


def _reader(file: CheckpointFile, start: int) -> ReadPart:
    return lambda offset, length: file.read(start + offset, length)
