"""Checking a checkpoint without loading it: every record against its checksum, every tensor against its metadata.

Unlike a load, which ends at the first error, this goes on and names all that is damaged. It needs no process group and
no model, and no more memory than its buffers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from holdfast.checkpoint.budget import MemoryBudget
from holdfast.checkpoint.checksum import crc32
from holdfast.checkpoint.engine import Engine
from holdfast.checkpoint.files import CheckpointFile, FileLayer, FileTable, LocalFiles
from holdfast.checkpoint.items import ZIP_START, check_object, check_records, item_layout
from holdfast.checkpoint.layouts import item_reader
from holdfast.checkpoint.metadata_files import read_all_metadata
from holdfast.checkpoint.progress import progress_callback
from holdfast.checkpoint.report import LoadProgress, Unverified
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.checkpoint.tensor_pickle import TensorRecipe
from holdfast.checkpoint.transforms import FileSlice, default_registry, undo_transforms
from holdfast.checkpoint.zip_records import DamagedArchiveError, Record, payload_start, read_directory, read_layout
from holdfast.errors import CheckpointError, UnsafeCheckpointError

__all__ = ["Damage", "VerifyReport", "verify_checkpoint"]

_MEMORY_LIMIT = 256 << 20
_STEP_BYTES = 1 << 20
_MOST_WORKERS = 8


@dataclass(frozen=True, slots=True)
class Damage:
    """Something of a checkpoint that cannot be restored as it was saved."""

    tensor: str
    file: str
    offset: int
    length: int
    problem: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What :func:`verify_checkpoint` found.

    Attributes:
        path: the checkpoint.
        sound: nothing is damaged.
        items: stored chunks and objects that were looked at.
        bytes_read: how much was read for it.
        verified: items whose records all matched their checksums.
        unverified: items that have no checksum to compare with, and why.
        damaged: what is wrong, in the order of the files.
        unsafe: names of objects that load only with ``trusted=True``, because unpickling them runs code.
        seconds: how long it took.
    """

    path: str
    sound: bool
    items: int
    bytes_read: int
    verified: int
    unverified: tuple[Unverified, ...]
    damaged: tuple[Damage, ...]
    unsafe: tuple[str, ...]
    seconds: float


class _Item(NamedTuple):
    fqn: str
    file: str
    offset: int
    length: int
    transforms: tuple[str, ...]
    raw: bool
    dtype: torch.dtype | None  # of the metadata; None for an object
    shape: tuple[int, ...] | None


class _Outcome(NamedTuple):
    item: _Item
    bytes_read: int
    problem: str | None = None
    at: int | None = None
    length: int | None = None
    unverified: str | None = None
    unsafe: bool = False


def verify_checkpoint(
    path: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    trusted: bool = False,
    progress: bool | Callable[[LoadProgress], None] | None = None,
    extension_registry: Any = None,
    file_layer: FileLayer | None = None,
) -> VerifyReport:
    """Read a whole checkpoint and compare every record with its checksum.

    Args:
        path: the checkpoint's folder; torch's format, with one metadata file or one a rank, or safetensors.
        num_workers: threads to use; the number of cores, at most 8, when ``None``.
        trusted: read metadata that names classes of its own, and follow links out of the folder.
        progress: as for :class:`~holdfast.checkpoint.ParallelFileSystemReader`.
        extension_registry: torch's registry of stream transforms; its default one when ``None``.
        file_layer: how files are reached; the local file system when ``None``.

    Returns:
        The report; ``report.sound`` says it in one word.

    Raises:
        UnusableCheckpointError: there is no readable metadata, so nothing to verify.
        UnsafeCheckpointError: the metadata would run code, or names files outside the folder.
    """
    began = time.perf_counter()
    folder = Path(path)
    layer = file_layer or LocalFiles()
    items: list[_Item] = []
    outcomes: list[_Outcome] = []
    for metadata in read_all_metadata(folder, layer=layer, trusted=trusted):
        items.extend(_items(metadata))
        outcomes.extend(_not_stored(metadata))
    items = sorted(set(items), key=lambda item: (item.file, item.offset, item.fqn))
    uses: dict[str, int] = {}
    for item in items:
        uses[item.file] = uses.get(item.file, 0) + 1
    files = FileTable(folder, layer, uses, follow_links_out=trusted)
    budget = MemoryBudget(_MEMORY_LIMIT)
    engine = Engine(num_workers or min(len(os.sched_getaffinity(0)), _MOST_WORKERS), budget)
    checker = _Checker(files, budget, extension_registry or default_registry())
    total = sum(item.length for item in items)
    done = 0
    try:
        with progress_callback(progress, "verifying") as on_progress:
            engine.submit(*(_job(engine, checker, item) for item in items))
            for number, outcome in enumerate(engine.events(), start=1):
                outcomes.append(outcome)
                done += outcome.item.length
                if on_progress is not None:
                    on_progress(LoadProgress(number, len(items), done, total))
    finally:
        engine.close()
        files.close()
    return _report(folder, outcomes, time.perf_counter() - began)


def _job(engine: Engine, checker: _Checker, item: _Item) -> Callable[[], None]:
    return lambda: engine.post(checker.check(item))


def _report(folder: Path, outcomes: list[_Outcome], seconds: float) -> VerifyReport:
    damaged = []
    for item, _, problem, at, length, _, _ in outcomes:
        if problem is not None:
            offset = item.offset if at is None else at
            damaged.append(Damage(item.fqn, item.file, offset, item.length if length is None else length, problem))
    return VerifyReport(
        path=str(folder),
        sound=not damaged,
        items=len(outcomes),
        bytes_read=sum(outcome.bytes_read for outcome in outcomes),
        verified=sum(outcome.problem is None and outcome.unverified is None for outcome in outcomes),
        unverified=tuple(
            sorted(
                (
                    Unverified(outcome.item.fqn, outcome.item.file, outcome.unverified)
                    for outcome in outcomes
                    if outcome.unverified is not None and outcome.problem is None
                ),
                key=lambda entry: (entry.tensor, entry.file),
            )
        ),
        damaged=tuple(sorted(damaged, key=lambda entry: (entry.file, entry.offset, entry.tensor))),
        unsafe=tuple(sorted(outcome.item.fqn for outcome in outcomes if outcome.unsafe)),
        seconds=seconds,
    )


def _items(metadata: Metadata) -> Iterable[_Item]:
    shapes = {
        (fqn, tuple(chunk.offsets)): (entry.properties.dtype, tuple(chunk.sizes))
        for fqn, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
        for chunk in entry.chunks
    }
    for index, info in metadata.storage_data.items():
        dtype, shape = shapes.get((index.fqn, tuple(index.offset or ())), (None, None))
        transforms = tuple(getattr(info, "transform_descriptors", None) or ())
        raw = isinstance(info, RawTensor)
        yield _Item(index.fqn, info.relative_path, info.offset, info.length, transforms, raw, dtype, shape)


def _not_stored(metadata: Metadata) -> Iterable[_Outcome]:
    stored = {(index.fqn, tuple(index.offset or ())) for index in metadata.storage_data}
    for fqn, entry in metadata.state_dict_metadata.items():
        places = [tuple(chunk.offsets) for chunk in entry.chunks] if isinstance(entry, TensorStorageMetadata) else [()]
        for place in places:
            if (fqn, place) not in stored:
                missing = _Item(fqn, "", 0, 0, (), False, None, None)
                yield _Outcome(missing, 0, f"the metadata does not say where the part at {place} is stored")


class _Checker:
    """Checks one item after the other, on any thread."""

    def __init__(self, files: FileTable, budget: MemoryBudget, registry: Any) -> None:
        self._files = files
        self._budget = budget
        self._registry = registry
        self._recipes: dict[bytes, TensorRecipe | None] = {}
        self._harmless: set[bytes] = set()

    def check(self, item: _Item) -> _Outcome:
        """Check an item; never raises for damage."""
        count = 0

        def on_read(length: int, _: int = 1) -> None:
            nonlocal count
            count += length

        try:
            try:
                file = self._files.get(item.file)
                file.check_reach(item.offset, item.length)
                unverified, unsafe = self._check(file, item, on_read)
            finally:
                self._files.release(item.file)
        except DamagedArchiveError as error:
            return _Outcome(item, count, str(error), item.offset + error.offset, error.length)
        except UnsafeCheckpointError:
            raise
        except CheckpointError as error:
            return _Outcome(item, count, error.message)
        return _Outcome(item, count, unverified=unverified, unsafe=unsafe)

    def _check(self, file: CheckpointFile, item: _Item, on_read: Callable[..., None]) -> tuple[str | None, bool]:
        if item.raw:
            return "the safetensors format has no checksums", False
        if item.transforms or item.shape is None:
            return self._check_whole(file, item, on_read)
        read_at, head = item_reader(file, item.offset, item.length, on_read)
        if head[:4] != ZIP_START:
            raise DamagedArchiveError("this is not the archive of a tensor", 0, min(4, item.length))
        reason = None
        for record in read_directory(read_at, item.length).values():
            reason = self._check_record(file, item, record, payload_start(read_at, record), on_read) or reason
        layout = read_layout(read_at, item.length, self._recipes, check=True)
        self._check_description(item, None if layout is None else layout.recipe)
        return reason, False

    def _check_record(
        self, file: CheckpointFile, item: _Item, record: Record, start: int, on_read: Callable[..., None]
    ) -> str | None:
        if start + record.size > item.length:
            raise DamagedArchiveError("a record reaches beyond its archive", start, record.size)
        buffer = self._budget.take(min(_STEP_BYTES, max(record.size, 1)))
        try:
            crc = 0
            for done in range(0, record.size, _STEP_BYTES):
                view = buffer.view[: min(_STEP_BYTES, record.size - done)]
                file.read_into(view, item.offset + start + done)
                crc = crc32(view, crc)
        finally:
            buffer.release()
        on_read(record.size)
        if not record.size:
            return None
        if not record.stored:
            return "a record is compressed"
        if not record.crc:
            return "no checksum was stored"
        if crc != record.crc:
            name = record.raw_name.decode("utf-8", "replace")
            raise DamagedArchiveError(f"{name} differs from its CRC-32", start, record.size, checksum=True)
        return None

    def _check_whole(self, file: CheckpointFile, item: _Item, on_read: Callable[..., None]) -> tuple[str | None, bool]:
        charged = item.length * (4 if item.transforms else 1)
        self._budget.reserve(charged)
        try:
            if item.transforms:
                with FileSlice(file, item.offset, item.length, on_read) as stream:
                    data = undo_transforms(
                        stream, item.transforms, self._registry, most_bytes=_most(item), tensor=item.fqn, file=item.file
                    )
            else:
                data = file.read(item.offset, item.length)
                on_read(item.length)
            reason = check_records(memoryview(data))
            if item.shape is not None:
                layout = item_layout(memoryview(data), self._recipes, check=True)
                self._check_description(item, None if layout is None else layout.recipe)
                return reason, False
            try:
                check_object(memoryview(data), item.fqn, item.file, self._harmless)
            except UnsafeCheckpointError:
                return reason, True
            return reason, False
        finally:
            self._budget.unreserve(charged)

    def _check_description(self, item: _Item, recipe: TensorRecipe | None) -> None:
        if recipe is None:
            return  # something only torch can decode; its records are checked all the same
        if recipe.shape != item.shape or recipe.dtype != item.dtype:
            raise DamagedArchiveError(
                f"it holds {recipe.dtype} {list(recipe.shape)} where the metadata says "
                f"{item.dtype} {list(item.shape or ())}",
                0,
                item.length,
            )


def _most(item: _Item) -> int:
    if item.shape is None or item.dtype is None:
        return max(64 << 20, 1000 * item.length)
    return 2 * torch.Size(item.shape).numel() * item.dtype.itemsize + (64 << 20)
