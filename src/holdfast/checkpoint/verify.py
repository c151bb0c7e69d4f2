"""Checking a checkpoint without loading it: every record against its checksum, every tensor against its metadata.

It takes the same steps as a load, through the same functions, so *sound* means: it loads, and every byte the load uses
was compared with a checksum. Unlike a load, which ends at the first error, it continues and names everything that is
damaged. It needs no process group, no model, and no memory beyond its buffers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.checkpoint.archive import DamagedArchiveError
from holdfast.checkpoint.budget import MemoryBudget
from holdfast.checkpoint.checksum import crc32
from holdfast.checkpoint.engine import Engine
from holdfast.checkpoint.files import CheckpointFile, FileLayer, FileTable, tells_nothing
from holdfast.checkpoint.items import (
    NO_CHECKSUM,
    NO_CHECKSUMS_IN_SAFETENSORS,
    OBJECT_COPIES,
    Expected,
    ItemLayout,
    KnownItems,
    ObjectDecoder,
    check_payload,
    decode_tensor,
    memory_reader,
    open_item,
)
from holdfast.checkpoint.layouts import chunk_layout, read_item
from holdfast.checkpoint.manifest import Bound
from holdfast.checkpoint.metadata_files import Described, read_all_metadata
from holdfast.checkpoint.not_allowed import Refusal
from holdfast.checkpoint.plan import ExpectedChunks
from holdfast.checkpoint.progress import progress_callback
from holdfast.checkpoint.remote import locate
from holdfast.checkpoint.replaced import FolderWatch, read_again
from holdfast.checkpoint.report import LoadProgress, Unverified
from holdfast.checkpoint.safetensors import RawTensor
from holdfast.checkpoint.transforms import FileSlice, default_registry, max_unfolded_bytes, undo_transforms
from holdfast.checkpoint.workers import max_workers
from holdfast.errors import CheckpointError, UnsafeCheckpointError

__all__ = ["Damage", "Refused", "VerifyReport", "verify_checkpoint"]

_MEMORY_LIMIT = 256 << 20
_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a checkpoint that cannot be restored as it was saved."""

    tensor: str
    file: str
    offset: int
    length: int
    problem: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An intact object that a load refuses.

    Attributes:
        tensor: its key.
        file: the file it is in.
        names: the classes and functions it uses that are not allowed.
        reason: why its form is not supported (nested too deep, for example); empty where ``names`` is the reason.
    """

    tensor: str
    file: str
    names: tuple[str, ...]
    reason: str = ""

    @property
    def why(self) -> str:
        """The reason in a few words, whichever it is."""
        return self.reason or f"it uses {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``verify_checkpoint`` found.

    Attributes:
        path: the checkpoint.
        sound: it loads, and every byte that a load uses was checked; the same as ``verdict == "sound"``.
        verdict: ``"sound"``, ``"incomplete"`` (nothing is damaged, but not everything could be checked, or some objects
            are refused: see ``unverified`` and ``unsafe``) or ``"damaged"``.
        manifest: whether there is a manifest, with which every item was compared.
        items: stored chunks and objects that were checked.
        bytes_read: how much was read.
        verified: items whose records all matched their checksums.
        unverified: items that have no checksum to compare with, and why.
        damaged: what is wrong, in the order of the files.
        unsafe: objects that are refused for the classes or functions they use, or because their form is not supported.
        seconds: how long it took.
    """

    path: str
    sound: bool
    verdict: str
    manifest: bool
    items: int
    bytes_read: int
    verified: int
    unverified: tuple[Unverified, ...]
    damaged: tuple[Damage, ...]
    unsafe: tuple[Refused, ...]
    seconds: float

    @property
    def reason(self) -> str:
        """Why it is not sound, in one line; empty if it is."""
        reasons = [f"{entry.tensor}: {entry.problem}" for entry in self.damaged]
        reasons += [f"{entry.tensor} is refused: {entry.why}" for entry in self.unsafe]
        reasons += [f"{entry.tensor}: {entry.reason}" for entry in self.unverified]
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return reasons[0] + more if reasons else ""


class _Item(NamedTuple):
    fqn: str
    file: str
    offset: int
    length: int
    transforms: tuple[str, ...]
    raw: bool
    expected: Expected | None  # None for an object
    bound: Bound | None


class _Outcome(NamedTuple):
    item: _Item
    bytes_read: int
    problem: str | None = None
    at: int | None = None
    length: int | None = None
    unverified: str | None = None
    refusal: Refusal | None = None


def verify_checkpoint(
    path: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    trusted: bool = False,
    require_manifest: bool = False,
    progress: bool | Callable[[LoadProgress], None] | None = None,
    extension_registry: Any = None,
    file_layer: FileLayer | None = None,
) -> VerifyReport:
    """Read a whole checkpoint and check everything that a load would use.

    Args:
        path: the checkpoint's folder, or its URL; torch's format, with one metadata file or one per
            rank, or safetensors.
        num_workers: threads to use; when ``None``, 8 for a disk and 16 for a store, at most one per item.
        trusted: read metadata that names other classes, and follow links out of the folder.
        require_manifest: refuse a checkpoint without a manifest, which only ``holdfast.checkpoint.save`` writes.
        progress: as for ``holdfast.checkpoint.ParallelFileSystemReader``.
        extension_registry: torch's registry of stream transforms; its default one when ``None``.
        file_layer: how files are reached; the local file system when ``None``.

    Returns:
        The report; ``report.sound`` is the overall result.

    Raises:
        UnusableCheckpointError: there is no readable metadata, so nothing to verify.
        UnsafeCheckpointError: the metadata would run code, or names files outside the folder.
        CheckpointReadError: nothing is known about the checkpoint: the store fails, this process may not read it or
            has too many open files, or the checkpoint was replaced every time it was read (``replaced``).
    """
    folder, layer = locate(path, file_layer)
    return read_again(
        lambda: verify_once(
            path,
            folder,
            layer,
            num_workers=num_workers,
            trusted=trusted,
            require_manifest=require_manifest,
            progress=progress,
            extension_registry=extension_registry,
        )
    )


def verify_once(path: str | os.PathLike[str], folder: Path, layer: FileLayer, **options: Any) -> VerifyReport:
    """Verify a checkpoint as ``verify_checkpoint`` does, but without reading it again if it is replaced meanwhile.

    Raises:
        CheckpointReadError: it was replaced, so what was found to be damaged may be sound; or the store fails.
    """
    watch = FolderWatch(folder, layer)
    try:
        report = _verify(path, folder, layer, **options)
    except CheckpointError as error:
        raise watch.explained(error)  # noqa: B904 — it is that error, or has it as its cause
    if report.damaged and watch.replaced():
        raise watch.error()
    return report


def _verify(
    path: str | os.PathLike[str],
    folder: Path,
    layer: FileLayer,
    *,
    num_workers: int | None,
    trusted: bool,
    require_manifest: bool,
    progress: bool | Callable[[LoadProgress], None] | None = None,
    extension_registry: Any = None,
) -> VerifyReport:
    began = time.perf_counter()
    items: list[_Item] = []
    outcomes: list[_Outcome] = []
    described = read_all_metadata(folder, layer=layer, trusted=trusted, require_manifest=require_manifest)
    for one in described:
        items.extend(_items(one))
    has_manifest = all(one.bound is not None for one in described)
    items = sorted(set(items), key=lambda item: (item.file, item.offset, item.fqn))
    uses: dict[str, int] = {}
    for item in items:
        uses[item.file] = uses.get(item.file, 0) + 1
    files = FileTable(folder, layer, uses, follow_links_out=trusted)
    budget = MemoryBudget(_MEMORY_LIMIT)
    engine = Engine(max(1, min(len(items), max_workers(layer))) if num_workers is None else num_workers, budget)
    checker = _Checker(files, budget, extension_registry or default_registry(), trusted=trusted)
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
    return _report(os.fspath(path), outcomes, has_manifest, time.perf_counter() - began)


def _job(engine: Engine, checker: _Checker, item: _Item) -> Callable[[], None]:
    return lambda: engine.post(checker.check(item))


def _report(path: str, outcomes: list[_Outcome], manifest: bool, seconds: float) -> VerifyReport:
    damaged = []
    for item, _, problem, at, length, *_ in outcomes:
        if problem is not None:
            offset = item.offset if at is None else at
            damaged.append(Damage(item.fqn, item.file, offset, item.length if length is None else length, problem))
    unverified = [
        Unverified(outcome.item.fqn, outcome.item.file, outcome.unverified)
        for outcome in outcomes
        if outcome.unverified is not None and outcome.problem is None
    ]
    unsafe = [
        Refused(outcome.item.fqn, outcome.item.file, outcome.refusal.names, outcome.refusal.reason)
        for outcome in outcomes
        if outcome.refusal is not None
    ]
    verdict = "damaged" if damaged else "incomplete" if unverified or unsafe else "sound"
    return VerifyReport(
        path=path,
        sound=verdict == "sound",
        verdict=verdict,
        manifest=manifest,
        items=len(outcomes),
        bytes_read=sum(outcome.bytes_read for outcome in outcomes),
        verified=sum(not (outcome.problem or outcome.unverified or outcome.refusal) for outcome in outcomes),
        unverified=tuple(sorted(unverified, key=lambda entry: (entry.tensor, entry.file))),
        damaged=tuple(sorted(damaged, key=lambda entry: (entry.file, entry.offset, entry.tensor))),
        unsafe=tuple(sorted(unsafe, key=lambda entry: entry.tensor)),
        seconds=seconds,
    )


def _items(described: Described) -> Iterable[_Item]:
    metadata = described.metadata
    expected = ExpectedChunks(metadata)
    for index, info in metadata.storage_data.items():
        tensor = isinstance(metadata.state_dict_metadata[index.fqn], TensorStorageMetadata)
        stored = expected.of(index) if tensor else None
        if stored is not None and 0 in stored.shape:
            continue  # a load reads nothing of it
        yield _Item(
            index.fqn,
            info.relative_path,
            info.offset,
            info.length,
            tuple(getattr(info, "transform_descriptors", None) or ()),
            isinstance(info, RawTensor),
            stored,
            described.bound_of(info),
        )


class _Checker:
    """A checker of single items, usable on any thread."""

    def __init__(self, files: FileTable, budget: MemoryBudget, registry: Any, *, trusted: bool) -> None:
        self._files = files
        self._budget = budget
        self._registry = registry
        self._known = KnownItems()
        self._objects = ObjectDecoder(trusted=trusted, check=True)

    def check(self, item: _Item) -> _Outcome:
        """Check an item; never raise for damage, only when it cannot be examined."""
        count = 0

        def on_read(length: int, _: int = 1) -> None:
            nonlocal count
            count += length

        try:
            try:
                file = self._files.get(item.file)
                file.check_reach(item.offset, item.length)
                unverified = self._check(file, item, on_read)
            finally:
                self._files.release(item.file)
        except DamagedArchiveError as error:
            return _Outcome(item, count, str(error), item.offset + error.offset, error.length)
        except UnsafeCheckpointError as error:
            if error.names is None:
                raise  # a file outside the folder, not an object of another class
            return _Outcome(item, count, refusal=Refusal(tuple(error.names), error.reason or ""))
        except CheckpointError as error:
            if tells_nothing(error, remote=self._files.remote):
                raise
            return _Outcome(item, count, error.message)
        return _Outcome(item, count, unverified=unverified)

    def _check(self, file: CheckpointFile, item: _Item, on_read: Callable[..., None]) -> str | None:
        if item.raw:
            return NO_CHECKSUMS_IN_SAFETENSORS
        if item.transforms or item.expected is None:
            return self._check_whole(file, item, on_read)
        layout = chunk_layout(
            file, item.offset, item.length, self._known, check=True, bound=item.bound, on_read=on_read
        )
        if layout is None:
            return self._check_whole(file, item, on_read)
        item.expected.check(layout.recipe.shape, layout.recipe.dtype)
        return self._check_payload(file, item, layout, on_read)

    def _check_payload(
        self, file: CheckpointFile, item: _Item, layout: ItemLayout, on_read: Callable[..., None]
    ) -> str | None:
        crc = 0
        size = layout.payload_bytes
        buffer = self._budget.take(min(_STEP_BYTES, max(size, 1)))
        try:
            for done in range(0, size, _STEP_BYTES):
                view = buffer.view[: min(_STEP_BYTES, size - done)]
                file.read_into(view, item.offset + layout.payload_offset + done)
                crc = crc32(view, crc)
        finally:
            buffer.release()
        on_read(size)
        if not layout.has_checksum:
            return NO_CHECKSUM
        if crc != layout.crc:
            raise DamagedArchiveError("the bytes differ from their CRC-32", layout.payload_offset, size)
        return None

    def _check_whole(self, file: CheckpointFile, item: _Item, on_read: Callable[..., None]) -> str | None:
        charged = item.length * (OBJECT_COPIES if item.transforms or item.expected is None else 2)
        self._budget.reserve(charged)
        try:
            if item.bound is not None:
                item.bound.check(lambda offset, length: file.read(item.offset + offset, length), item.length)
            if item.transforms:
                most = max_unfolded_bytes(item.length, item.expected)
                with FileSlice(file, item.offset, item.length, on_read) as stream:
                    data = undo_transforms(
                        stream, item.transforms, self._registry, most_bytes=most, tensor=item.fqn, file=item.file
                    )
            else:
                data = read_item(file, item.offset, item.length, on_read)
            return self._check_data(memoryview(data), item)
        finally:
            self._budget.unreserve(charged)

    def _check_data(self, data: memoryview, item: _Item) -> str | None:
        if item.expected is None:
            return self._objects.stream(data, tensor=item.fqn, file=item.file)[1]
        layout = open_item(memory_reader(data), len(data), self._known, check=True)
        if layout is None:
            return decode_tensor(data, item.expected, check=True, tensor=item.fqn, file=item.file)[1]
        item.expected.check(layout.recipe.shape, layout.recipe.dtype)
        return check_payload(data, layout)
