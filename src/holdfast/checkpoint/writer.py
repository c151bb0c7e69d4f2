"""Torch's writer, into a hidden folder that the coordinator publishes with a manifest when every rank has written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from holdfast.checkpoint.files import CheckpointFile, LocalFiles
from holdfast.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    ManifestRecord,
    digest_of,
    digest_whole,
    item_digest,
)
from holdfast.checkpoint.publish import Staging, check_replaceable, prune, sync_folder
from holdfast.errors import CheckpointWriteError, ConfigError

__all__ = ["VerifiedWriter"]


@dataclass(frozen=True)
class _Digested(WriteResult):
    """What torch tells the coordinator of one written item, and its digest."""

    whole: bool
    digest: str


class VerifiedWriter(FileSystemWriter):
    """Writes one checkpoint; made by :func:`~holdfast.checkpoint.save` on every rank.

    Args:
        target: the final folder.
        step: for the manifest.
        run_id: for the manifest.
        keep: how many checkpoints of the run to keep; all when ``None``.
        thread_count: files, and threads that write them.
        group: the ranks that save together, or ``None`` for all.
        alone: there is one process and no group.
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
        self._step = step
        self._run_id = run_id
        self._keep = keep
        self._group = group
        self._alone = alone
        self._staging = Staging(target)
        self._coordinator = alone or dist.get_rank(group) == 0
        self._begin()
        super().__init__(self._staging.folder, sync_files=True, overwrite=False, thread_count=thread_count)

    def _begin(self) -> None:
        """Agree on what is saved, and make the hidden folder, before any rank writes; all ranks hear if that fails."""
        staging = self._staging
        about = (str(staging.target), self._step, self._run_id)
        if not self._alone:
            told: list[tuple[str, int, str | None]] = [about] * dist.get_world_size(self._group)
            dist.all_gather_object(told, about, group=self._group)
            if any(other != told[0] for other in told):
                raise ConfigError(
                    "the ranks disagree on the path, step or run_id of the checkpoint",
                    ranks=sorted({str(other) for other in told}),
                    hint="compute them on one rank and broadcast them; a time stamp or host name differs on each",
                )
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
        staging.folder = outcome[0]

    def close(self) -> None:
        """Remove what was written, unless it was published."""
        self._staging.close()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items, and digest them as they lie in the files."""
        results = super().write_data(plan, planner).value()
        files: dict[str, CheckpointFile] = {}
        digested: list[WriteResult] = []
        tensors = {item.index for item in plan.items if item.tensor_data is not None}
        try:
            digested += [self._digest(result, files, tensor=result.index in tensors) for result in results]
        finally:
            for file in files.values():
                file.close()
        self.items = len(digested)
        self.bytes = sum(result.size_in_bytes for result in digested)
        future: Future[list[WriteResult]] = Future()
        future.set_result(digested)
        return future

    def _digest(self, result: WriteResult, files: dict[str, CheckpointFile], *, tensor: bool) -> _Digested:
        info = result.storage_data
        file = files.get(info.relative_path)
        if file is None:
            file = CheckpointFile(self._staging.folder / info.relative_path, info.relative_path, LocalFiles())
            files[info.relative_path] = file

        def read(offset: int, length: int) -> bytearray:
            return file.read(info.offset + offset, length)

        whole = digest_whole(read, info.length, tensor=tensor)
        digest = item_digest(read, info.length, whole=whole)
        return _Digested(result.index, result.size_in_bytes, info, whole, digest)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when every rank has written: write the metadata and the manifest, and publish."""
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
        missing = sorted({record.file for record in records if not (folder / record.file).exists()})
        if missing:
            raise CheckpointWriteError(
                f"files that ranks wrote are not in the coordinator's folder: {', '.join(missing[:5])}",
                path=str(self._staging.target),
                hint="all ranks must save to one shared file system",
            )
        content = (folder / ".metadata").read_bytes()
        manifest = Manifest(step=self._step, run_id=self._run_id, metadata=digest_of(content), records=records).sealed()
        with (folder / MANIFEST).open("xb") as file:
            file.write(manifest.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)
        self._staging.publish()
        if self._keep is not None:
            self.removed = prune(self._staging.target, manifest, self._keep)
