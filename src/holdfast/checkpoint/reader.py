"""``ParallelFileSystemReader``: torch's storage reader, at the speed of the disk.

It replaces ``FileSystemReader`` for existing checkpoints. Metadata is read through the allowlist, the plan is torch's
own, and ``read_data`` passes the work to ``holdfast.checkpoint.load.Load``.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from holdfast.checkpoint.agreement import Given, check_given, given_to
from holdfast.checkpoint.budget import MemoryBudget
from holdfast.checkpoint.collector import collector_paused
from holdfast.checkpoint.engine import Engine
from holdfast.checkpoint.files import FileLayer, FileTable, path_text
from holdfast.checkpoint.load import Load
from holdfast.checkpoint.metadata_files import Described, describe_checkpoint
from holdfast.checkpoint.not_loaded import warn_not_loaded
from holdfast.checkpoint.options import LoadOptions, check_choice, whole_number
from holdfast.checkpoint.plan import Chunk, ExpectedChunks, chain_overlaps, gather_chunks, resolve
from holdfast.checkpoint.process_engine import TransformProcesses
from holdfast.checkpoint.progress import progress_callback
from holdfast.checkpoint.refusals import every_refusal
from holdfast.checkpoint.remote import is_url, locate
from holdfast.checkpoint.replaced import FolderWatch
from holdfast.checkpoint.report import LoadProgress, LoadReport, ReportBuilder
from holdfast.checkpoint.sequential import load_sequentially, read_whole
from holdfast.checkpoint.sharing import NodeSharing, check_group
from holdfast.checkpoint.transforms import default_registry, max_unfolded_bytes
from holdfast.checkpoint.workers import default_workers
from holdfast.errors import ConfigError, UnsafeCheckpointError, UnusableCheckpointError

__all__ = ["ParallelFileSystemReader"]

DEFAULT_MEMORY_LIMIT = 256 << 20


class ParallelFileSystemReader(FileSystemReader):
    """A drop-in ``storage_reader=`` for ``torch.distributed.checkpoint.load`` that reads in parallel and verifies.

    Args:
        path: the checkpoint's folder, or a URL that fsspec supports (``s3://``, ``http(s)://``, ``memory://``).
        _extension_registry: as for torch's ``FileSystemReader``; the same as ``extension_registry``.
        parallel: ``False`` loads item by item on the calling thread: slow, simple, the reference. A planner with its
            own ``commit_tensor`` is always served this way, unless it sets ``commits_in_any_order``.
        engine: ``"thread"``, or ``"process"`` to undo stream transforms that hold the GIL in worker processes.
        num_workers: threads (and processes) to use; when ``None``, chosen from files, bytes and memory.
        memory_limit: maximum memory, in bytes, for buffers beyond the destination; 256 MiB when ``None``. An item that
            is larger is still admitted, alone.
        verify: ``"crc"`` compares every record that is read whole with its CRC-32; ``"full"`` also reads the rest of
            partly wanted records, and checks them; ``"off"`` checks nothing.
        trusted: unpickle metadata and objects without checks, and follow symbolic links out of the folder.
        progress: called with a ``LoadProgress`` on the calling thread; ``True`` draws a bar on a terminal.
        cast: convert where the stored and the wanted dtype differ; otherwise that is an error.
        warn_not_loaded: warn, on one rank, when the checkpoint holds something that no rank asks for.
        require_manifest: refuse a checkpoint without a manifest; where there is one it is always checked.
        share_within: ranks that all load this checkpoint now, such as those of ``node_group``: what several of them
            want in the same way is read, and checked, by one and passed on. Only for contiguous destinations.
        extension_registry: torch's registry of stream transforms; its default one when ``None``.
        file_layer: how files are opened and read; the local file system when ``None``.

    Attributes:
        report: the ``LoadReport`` of the last load, or ``None``.
        error: the exception that ended the last load, or ``None``. Torch turns an error in the metadata into the text
            of an ``AssertionError``; this is the original.
    """

    rank: int | None  # type: ignore[assignment]  # torch annotates only its initial value

    def __init__(
        self,
        path: str | os.PathLike[str],
        _extension_registry: Any = None,
        *,
        parallel: bool = True,
        engine: str = "thread",
        num_workers: int | None = None,
        memory_limit: int | None = None,
        verify: str = "crc",
        trusted: bool = False,
        progress: bool | Callable[[LoadProgress], None] | None = None,
        cast: bool = False,
        warn_not_loaded: bool = True,
        require_manifest: bool = False,
        share_within: dist.ProcessGroup | None = None,
        extension_registry: Any = None,
        file_layer: FileLayer | None = None,
    ) -> None:
        super().__init__(path_text(path))
        check_choice("engine", engine, ("thread", "process"))
        check_choice("verify", verify, ("crc", "full", "off"))
        if share_within is not None:
            check_group(share_within)
        self._share_within = share_within
        self._file_layer = file_layer
        self._locate(path)
        self.storage_data: dict[Any, Any] = {}
        self.load_id = str(uuid.uuid4())
        self.report: LoadReport | None = None
        self.error: Exception | None = None
        self.rank = None
        self.use_collectives = True
        self._parallel = parallel
        self._engine = engine
        self._num_workers = None if num_workers is None else whole_number("num_workers", num_workers, least=1)
        self._memory_limit = None if memory_limit is None else whole_number("memory_limit", memory_limit, least=1)
        self._options = LoadOptions(verify=verify, cast=cast, trusted=trusted)
        self._progress = progress
        self._registry = extension_registry if _extension_registry is None else _extension_registry
        self._metadata: Metadata | None = None
        self._described: Described | None = None
        self._require_manifest = require_manifest
        self._warn_not_loaded = warn_not_loaded

    def _locate(self, path: str | os.PathLike[str]) -> None:
        self.path = path if is_url(path) else Path(path)
        self._folder, self._layer = locate(path, self._file_layer)
        self._kept: Described | None = None  # what keep_metadata() has read
        self._watch: FolderWatch | None = None

    def __repr__(self) -> str:
        return f"holdfast.ParallelFileSystemReader({str(self.path)!r})"

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The folder, or URL, that is read."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether this reader can read such an id: any local path, not a URL."""
        if isinstance(checkpoint_id, Path):
            return True
        if "://" in str(checkpoint_id):
            return False
        path = Path(checkpoint_id)
        return path.exists() or any(parent.exists() and os.access(parent, os.W_OK) for parent in path.parents)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forget the last load; called by torch before each one."""
        self.storage_data = {}
        self._metadata = None
        self._described = None
        self.error = None
        if checkpoint_id:
            self._locate(checkpoint_id)
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read ``.metadata``, or the metadata of one rank, or the headers of safetensors files.

        Raises:
            UnsafeCheckpointError: the metadata would run code.
            UnusableCheckpointError: there is none, or it is damaged.
        """
        rank = kwargs.get("rank")
        kept, self._kept = self._kept, None
        if kept is None and rank is None:
            self._watch = FolderWatch(self._folder, self._layer)
        try:
            described = kept or describe_checkpoint(
                self._folder,
                rank=rank,
                layer=self._layer,
                trusted=self._options.trusted,
                require_manifest=self._require_manifest and rank is None,
            )
        except Exception as error:
            # Torch asks for the rank's own metadata after any failure; the user needs the first error.
            if rank is not None and self.error is not None and isinstance(error, UnusableCheckpointError):
                raise self.error from error
            self.error = self._explained(error)
            raise self.error  # noqa: B904 — it is that error, or has it as its cause
        self.error = None
        self._described = described
        metadata = described.metadata
        if getattr(metadata, "storage_meta", None) is None:
            metadata.storage_meta = StorageMeta()
        assert metadata.storage_meta is not None
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def keep_metadata(self) -> None:
        """Read the metadata now, and use it the next time it is asked for."""
        self.read_metadata()
        self._kept = self._described

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the metadata that the load will use."""
        if metadata.storage_data is None:
            raise UnusableCheckpointError("the metadata does not say where anything is stored", folder=str(self.path))
        self.storage_data = metadata.storage_data
        self._metadata = metadata
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add which group this rank shares with, which the coordinator compares."""
        return replace(plan, storage_data=given_to(self._share_within))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator, find what no rank asks for, warn about it, and send it to every rank with its plan.

        Raises:
            ConfigError: the ranks disagree on ``share_within``; torch raises it on all of them.
        """
        given = [plan.storage_data for plan in plans if isinstance(plan.storage_data, Given)]
        try:
            check_given(given)
        except ConfigError as error:
            self.error = error
            raise
        if self._metadata is None:
            return plans
        wanted = {item.storage_index.fqn for plan in plans for item in plan.items}
        stored = self._metadata.state_dict_metadata
        names = tuple(name for name in sorted(stored.keys() - wanted) if not _is_empty(stored[name]))
        if names and self._warn_not_loaded:
            warn_not_loaded(names)
        return [replace(plan, storage_data=_NotLoaded(names)) for plan in plans]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read everything the plan asks for.

        The planner is only ever called on this thread. It is asked for all destinations first and notified of each when
        it is complete. A planner with its own ``commit_tensor`` may keep state between the two calls, so it is served
        item by item instead, as torch does, unless it sets ``commits_in_any_order = True``.

        Raises:
            CheckpointError: the first error; nothing is left running or open.
        """
        try:
            self.report = self._read(plan, planner)
        except Exception as error:
            self.error = self._explained(error)
            raise self.error  # noqa: B904 — it is that error, or has it as its cause
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _explained(self, error: Exception) -> Exception:
        return error if self._watch is None else self._watch.explained(error)

    def _read(self, plan: LoadPlan, planner: LoadPlanner) -> LoadReport:
        began = time.perf_counter()
        self.report = None
        own_commit = type(planner).commit_tensor.__module__.partition(".")[0] != "torch"
        # A planner may rely on ``commit_tensor`` being called right after ``resolve_tensor``.
        parallel = self._parallel and (not own_commit or getattr(planner, "commits_in_any_order", False))
        sharing = None if self._share_within is None else NodeSharing(self._share_within)
        if sharing is None:
            chunks = self._plan_chunks(plan, planner, parallel=parallel)
        else:
            origin = f"{os.path.normpath(self._folder)} {self._options.verify}"
            chunks = sharing.divide(
                origin,
                lambda: self._plan_chunks(plan, planner, parallel=parallel),
                share=parallel and not own_commit,
            )
        received = [] if sharing is None else sharing.received
        total = sum(chunk.needed_bytes for chunk in (*chunks, *received))
        with progress_callback(self._progress) as on_progress:
            report = ReportBuilder(on_progress, len(chunks) + len(received), total)

            def read() -> tuple[int, int]:
                return self._read_chunks(chunks, planner, report, parallel=parallel)

            if sharing is None:
                workers, peak = read()
            else:
                workers, peak = sharing.together(read)[dist.get_rank(self._share_within)]
                sharing.exchange(planner, report)
        not_loaded = plan.storage_data.names if isinstance(plan.storage_data, _NotLoaded) else ()
        return report.finish(
            not_loaded=not_loaded, workers=workers, peak_buffer_bytes=peak, seconds=time.perf_counter() - began
        )

    def _plan_chunks(self, plan: LoadPlan, planner: LoadPlanner, *, parallel: bool) -> list[Chunk]:
        described = self._described
        bound_of = described.bound_of if described is not None and described.metadata is self._metadata else _unbound
        with collector_paused():
            chunks = gather_chunks(plan, self.storage_data, ExpectedChunks(self._metadata), bound_of)
            if parallel:
                every = (request for chunk in chunks for request in chunk.requests)
                resolve(sorted(every, key=lambda request: request.order), planner)
                chunks = chain_overlaps(chunks)
            return chunks

    def _read_chunks(
        self, chunks: list[Chunk], planner: LoadPlanner, report: ReportBuilder, *, parallel: bool
    ) -> tuple[int, int]:
        """Read chunks; return the number of workers, and the peak memory of the buffers."""
        files = FileTable(
            self._folder,
            self._layer,
            Counter(chunk.file for chunk in chunks),
            follow_links_out=self._options.trusted,
        )
        try:
            if parallel:
                return self._read_parallel(chunks, planner, files, report)
            load_sequentially(chunks, planner, files, report, self._options, self._transform_registry())
            return 0, 0
        except UnsafeCheckpointError as error:
            raise every_refusal(error, chunks, files, self._transform_registry()) from None
        finally:
            files.close()

    def _read_parallel(
        self, chunks: list[Chunk], planner: LoadPlanner, files: FileTable, report: ReportBuilder
    ) -> tuple[int, int]:
        limit = DEFAULT_MEMORY_LIMIT if self._memory_limit is None else self._memory_limit
        workers = self._num_workers
        if workers is None:
            workers = default_workers(chunks, self._layer, files, memory_limit=limit)
        if workers:  # otherwise the read is cheaper than querying the free memory
            limit = max(1, min(limit, psutil.virtual_memory().available // 2))
        pinned = any(
            request.target is not None and request.target.device.type == "cuda"
            for chunk in chunks
            for request in chunk.requests
        )
        budget = MemoryBudget(limit, pinned=pinned)
        engine = Engine(workers, budget)
        processes: TransformProcesses | None = None
        if self._engine == "process" and any(chunk.transforms for chunk in chunks):
            registry = self._transform_registry()
            processes = TransformProcesses(max(1, workers), registry, report.read, lambda: engine.cancelled)
        try:
            unfold = self._unfolder(files, budget, report, processes)
            with nullcontext() if workers else collector_paused():  # without workers the load is short
                Load(files, budget, engine, report, self._options, unfold).run(chunks, planner)
        finally:
            engine.close()
            if processes is not None:
                processes.close()
        return workers, budget.peak

    def _unfolder(
        self, files: FileTable, budget: MemoryBudget, report: ReportBuilder, processes: TransformProcesses | None
    ) -> Callable[[Chunk], tuple[bytearray, int]]:
        def unfold(chunk: Chunk) -> tuple[bytearray, int]:
            expected = self._unfolded_bytes(chunk)
            budget.reserve(2 * expected)
            if processes is not None:
                path = files.get(chunk.file).path
                data = processes.unfold(
                    path,
                    chunk.file,
                    chunk.offset,
                    chunk.length,
                    chunk.transforms,
                    expected_bytes=expected,
                    most_bytes=max_unfolded_bytes(chunk.length, chunk.expected),
                    tensor=chunk.fqn,
                )
            else:
                data = read_whole(files.get(chunk.file), chunk, self._transform_registry(), report.read)
            return data, 2 * expected

        return unfold

    def _unfolded_bytes(self, chunk: Chunk) -> int:
        """Return how many bytes an item has once its transforms are undone, as far as the metadata says."""
        entry = self._metadata.state_dict_metadata.get(chunk.fqn) if self._metadata is not None else None
        if isinstance(entry, TensorStorageMetadata):
            offset = chunk.requests[0].item.storage_index.offset
            for stored in entry.chunks:
                if stored.offsets == offset:
                    return int(stored.sizes.numel()) * entry.properties.dtype.itemsize + (64 << 10)
        return max(4 * chunk.length, 64 << 10)

    def _transform_registry(self) -> Any:
        if self._registry is None:
            self._registry = default_registry()
        return self._registry


class _NotLoaded(NamedTuple):
    """What no rank asks for; sent to every rank with its plan."""

    names: tuple[str, ...]


def _is_empty(entry: Any) -> bool:
    """Return whether there is nothing to load: a tensor without elements is never requested."""
    return isinstance(entry, TensorStorageMetadata) and 0 in entry.size


def _unbound(_: Any) -> None:
    """Return ``None``: metadata that the caller supplied has no manifest."""
