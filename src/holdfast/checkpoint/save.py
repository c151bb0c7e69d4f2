"""Saving: an ordinary DCP checkpoint that torch loads, published whole or not at all, with a manifest to hold it to.

Torch's own writer writes the files, into a folder beside the final one whose name starts with a dot. Every rank digests
what it wrote; the coordinator writes the manifest, makes sure that all of it is on the disk, and renames the folder.
What is not there under its final name was never saved.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import _stateful_to_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future as TorchFuture

from holdfast.checkpoint.files import CheckpointFile, LocalFiles
from holdfast.checkpoint.manifest import (
    MANIFEST,
    Manifest,
    ManifestRecord,
    digest_of,
    digest_whole,
    item_digest,
    read_manifest,
)
from holdfast.errors import CheckpointWriteError, ConfigError, HoldfastError

__all__ = ["PendingSave", "SaveReport", "async_save", "save"]

SAVING = ".saving"
REMOVING = ".removing"


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What :func:`save` did, on this rank.

    Attributes:
        path: the published checkpoint.
        step: its step.
        items: stored tensors and objects that this rank wrote.
        bytes: their size in the files.
        removed: older checkpoints that were removed (on the coordinator).
        seconds: how long it took.
    """

    path: Path
    step: int
    items: int
    bytes: int
    removed: tuple[Path, ...]
    seconds: float


def save(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None = None,
    keep: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    planner: SavePlanner | None = None,
    thread_count: int = 1,
) -> SaveReport:
    """Save a checkpoint that can be verified; every rank of the group calls it.

    Args:
        state_dict: what to save, as for ``torch.distributed.checkpoint.save``.
        path: the checkpoint's folder; its parent holds the run's checkpoints. One of that name is replaced.
        step: after how many steps this is; stored in the manifest.
        run_id: the run this belongs to; stored in the manifest.
        keep: how many checkpoints in the parent to keep, this one included; ``None`` keeps all. Only older ones that
            holdfast wrote are removed, and only when this one is on the disk.
        process_group: the ranks that save together; the default group where torch.distributed is initialised.
        planner: torch's default one when ``None``.
        thread_count: files, and threads that write them, per rank.

    Raises:
        CheckpointWriteError: it could not be saved (a full disk, say). Nothing is left of it, and what was saved before
            is as it was.
    """
    began = time.perf_counter()
    target = Path(os.path.abspath(path))
    _check(step=step, keep=keep)
    writer = _Writer(target, step=step, run_id=run_id, keep=keep, thread_count=thread_count)
    alone = not (dist.is_available() and dist.is_initialized())
    try:
        writer.begin(None if alone else process_group, alone=alone)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch says that it saves in one process, which is meant
            dcp_save(state_dict, storage_writer=writer, process_group=process_group, planner=planner, no_dist=alone)
    except (CheckpointException, OSError) as error:
        writer.discard()
        raise _write_error(error, target) from error
    except BaseException:
        writer.discard()
        raise
    return SaveReport(
        path=target,
        step=step,
        items=writer.items,
        bytes=writer.bytes,
        removed=tuple(writer.removed),
        seconds=time.perf_counter() - began,
    )


class PendingSave:
    """A save that goes on in the background."""

    def __init__(self, future: Future[SaveReport]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> SaveReport:
        """Wait for the end; raises what :func:`save` raises, or ``TimeoutError``."""
        return self._future.result(timeout)


def async_save(
    state_dict: dict[str, Any],
    path: str | os.PathLike[str],
    *,
    step: int,
    run_id: str | None = None,
    keep: int | None = None,
    process_group: dist.ProcessGroup | None = None,
    planner: SavePlanner | None = None,
    thread_count: int = 1,
) -> PendingSave:
    """Copy the state to memory now, and save it in the background; every rank calls it.

    The arguments are those of :func:`save`. With several ranks the group must be one of its own, such as
    ``torch.distributed.new_group(backend="gloo")``: the training loop goes on using the default group meanwhile.
    """
    _check(step=step, keep=keep)
    if process_group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ConfigError(
            "async_save needs a process group of its own",
            hint='pass process_group=torch.distributed.new_group(backend="gloo"), made once on all ranks',
        )
    copied = BlockingAsyncStager(cache_staged_state_dict=False, type_check=False).stage(
        _stateful_to_state_dict(state_dict)
    )
    future: Future[SaveReport] = Future()

    def work() -> None:
        try:
            report = save(
                copied,
                path,
                step=step,
                run_id=run_id,
                keep=keep,
                process_group=process_group,
                planner=planner,
                thread_count=thread_count,
            )
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(report)

    Thread(target=work, name="holdfast-checkpoint-save", daemon=False).start()
    return PendingSave(future)


def _check(*, step: int, keep: int | None) -> None:
    if type(step) is not int or step < 0:
        raise ConfigError("step must be a whole number, 0 or more", value=step)
    if not torch.serialization.get_crc32_options():
        raise ConfigError(
            "checkpoint.save needs the checksums that torch.save writes",
            hint="call torch.serialization.set_crc32_options(True), which is the default",
        )
    if keep is not None and (type(keep) is not int or keep < 1):
        raise ConfigError("keep must be a whole number above zero", value=keep)


def _write_error(error: BaseException, target: Path) -> BaseException:
    causes: Iterable[BaseException] = (error,)
    if isinstance(error, CheckpointException):
        causes = [cause for cause, _ in error.failures.values()]
        own = next((cause for cause in causes if isinstance(cause, HoldfastError)), None)
        if own is not None:
            return own
    problem = next((cause for cause in causes if isinstance(cause, OSError)), next(iter(causes), error))
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return CheckpointWriteError(
        f"the checkpoint could not be saved: {text}",
        path=str(target),
        free_bytes=_free_bytes(target),
        hint="nothing is left of it, and the checkpoints saved before are as they were; make room, or fix the disk",
    )


def _free_bytes(target: Path) -> int | None:
    try:
        return shutil.disk_usage(target.parent).free
    except OSError:
        return None


@dataclass(frozen=True)
class _Digested(WriteResult):
    """What torch tells the coordinator of one written item, and its digest."""

    whole: bool
    digest: str


class _Writer(FileSystemWriter):
    """Torch's writer, into a hidden folder that the coordinator publishes when all is written."""

    def __init__(self, target: Path, *, step: int, run_id: str | None, keep: int | None, thread_count: int) -> None:
        self.target = target
        self.hidden = target.with_name(f".{target.name}{SAVING}")
        super().__init__(self.hidden, sync_files=True, overwrite=False, thread_count=thread_count)
        self.items = 0
        self.bytes = 0
        self.removed: list[Path] = []
        self._step = step
        self._run_id = run_id
        self._keep = keep
        self._coordinator = True

    def begin(self, group: dist.ProcessGroup | None, *, alone: bool) -> None:
        """Clear what an earlier save that was cut off left, before any rank writes; all ranks hear if that fails."""
        self._coordinator = alone or dist.get_rank(group) == 0
        problem: list[OSError | None] = [None]
        if self._coordinator:
            try:
                self.discard()
                self.target.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                problem = [error]
        if not alone:
            dist.broadcast_object_list(problem, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
        if problem[0] is not None:
            raise problem[0]

    def discard(self) -> None:
        """Remove what was written."""
        if self._coordinator:
            shutil.rmtree(self.hidden, ignore_errors=True)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> TorchFuture[list[WriteResult]]:
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
        future: TorchFuture[list[WriteResult]] = TorchFuture()
        future.set_result(digested)
        return future

    def _digest(self, result: WriteResult, files: dict[str, CheckpointFile], *, tensor: bool) -> _Digested:
        info = result.storage_data
        file = files.get(info.relative_path)
        if file is None:
            file = CheckpointFile(self.hidden / info.relative_path, info.relative_path, LocalFiles())
            files[info.relative_path] = file

        def read(offset: int, length: int) -> bytearray:
            return file.read(info.offset + offset, length)

        whole = digest_whole(read, info.length, tensor=tensor)
        digest = item_digest(read, info.length, whole=whole)
        return _Digested(result.index, result.size_in_bytes, info, whole, digest)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when every rank has written: write the metadata and the manifest, and publish."""
        super().finish(metadata, results)
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
        content = (self.hidden / ".metadata").read_bytes()
        manifest = Manifest(step=self._step, run_id=self._run_id, metadata=digest_of(content), records=records)
        with (self.hidden / MANIFEST).open("xb") as file:
            file.write(manifest.sealed().to_bytes())
            file.flush()
            os.fsync(file.fileno())
        _sync(self.hidden)
        self._publish()
        self._prune()

    def _publish(self) -> None:
        replaced = self.target.with_name(f".{self.target.name}{REMOVING}")
        shutil.rmtree(replaced, ignore_errors=True)
        if os.path.lexists(self.target):
            os.rename(self.target, replaced)
        try:
            os.rename(self.hidden, self.target)
        except OSError:
            if os.path.lexists(replaced):
                os.rename(replaced, self.target)
            raise
        _sync(self.target.parent)
        shutil.rmtree(replaced, ignore_errors=True)

    def _prune(self) -> None:
        if self._keep is None:
            return
        older = sorted((step, path) for path, step in _written_by_us(self.target.parent) if step < self._step)
        for _, path in older[: max(0, len(older) + 1 - self._keep)]:
            hidden = path.with_name(f".{path.name}{REMOVING}")
            shutil.rmtree(hidden, ignore_errors=True)
            os.rename(path, hidden)  # gone as a whole, however long removing takes
            shutil.rmtree(hidden, ignore_errors=True)
            self.removed.append(path)


def _written_by_us(folder: Path) -> list[tuple[Path, int]]:
    found = []
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.is_symlink() or not entry.is_dir():
            continue
        try:
            manifest = read_manifest(entry, LocalFiles())
        except HoldfastError:
            continue  # not ours, or damaged: somebody may want to look at it
        if manifest is not None:
            found.append((entry, manifest.step))
    return found


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
