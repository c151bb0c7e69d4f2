"""Damage and failures: one clear error, never a wrong tensor, never a hang, nothing left behind."""

from __future__ import annotations

import copy
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.planners import read_box, run_plan
from tests.checkpoint.support import assert_same, load, nothing_left_behind, random_bits, save
from tests.faults.checkpoint_layers import Bomb, Failing, FaultyFiles, Killed
from torch.distributed.checkpoint._extension import ExtensionRegistry
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.storage import StorageReader

from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.items import KnownItems, memory_reader, open_item
from holdfast.checkpoint.naming import naming
from holdfast.errors import (
    CheckpointError,
    CheckpointReadError,
    CorruptRecordError,
    HoldfastError,
    UnusableCheckpointError,
)

SAVED: dict[str, torch.Tensor] = {
    "large": random_bits(200_000, seed=1),
    "matrix": random_bits(300, 301, dtype=torch.bfloat16, seed=2),
    **{f"small.{number}": random_bits(100 + number, seed=number) for number in range(12)},
}


def empty_state() -> dict[str, Any]:
    return {name: torch.zeros_like(value) for name, value in SAVED.items()}


def load_directly(reader: StorageReader) -> dict[str, torch.Tensor]:
    """Load everything without the planning and logging of torch, which a thousand loads do not need."""
    state: dict[str, torch.Tensor] = empty_state()
    items = [read_box(name, (0,) * value.dim(), tuple(value.shape)) for name, value in state.items()]
    run_plan(reader, items, list(state.values()))
    return state


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(SAVED, tmp_path_factory.mktemp("faults") / "checkpoint", thread_count=2)


@pytest.fixture
def folder(tmp_path: Path, saved_once: Path) -> Path:
    return Path(shutil.copytree(saved_once, tmp_path / "checkpoint"))


def payloads(folder: Path) -> list[tuple[str, Path, int, int]]:
    """Where the payload of every tensor lies: name, file, offset, length."""
    places = []
    for index, info in FileSystemReader(folder).read_metadata().storage_data.items():
        data = (folder / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
        layout = open_item(memory_reader(memoryview(data)), len(data), KnownItems(), check=True)
        assert layout is not None
        start = info.offset + layout.payload_offset
        places.append((index.fqn, folder / info.relative_path, start, layout.payload_bytes))
    return places


def flip(path: Path, offset: int, bits: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(descriptor, 1, offset)
        os.pwrite(descriptor, bytes([byte ^ bits]), offset)
    finally:
        os.close(descriptor)


def flips(folder: Path, count: int) -> Iterator[tuple[str, Path, int, int]]:
    """The tensor, file, offset and bits of damaged payload bytes, the same ones every time."""
    chance = random.Random(5)
    places = payloads(folder)
    for _ in range(count):
        fqn, path, start, length = chance.choice(places)
        yield fqn, path, start + chance.randrange(length), chance.randrange(1, 256)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.soak)])
def test_each_flipped_byte_in_a_payload_is_detected_and_named(folder: Path, count: int) -> None:
    reader = ParallelFileSystemReader(folder)
    detected = 0
    with nothing_left_behind():
        for fqn, path, offset, bits in flips(folder, count):
            flip(path, offset, bits)
            with pytest.raises(CorruptRecordError) as caught:
                load_directly(reader)
            flip(path, offset, bits)
            error = caught.value
            assert (error.tensor, error.file) == (fqn, path.name)
            assert error.offset is not None
            assert error.length is not None
            assert error.offset <= offset < error.offset + error.length
            detected += 1
    assert detected == count
    assert_same(load_directly(reader), SAVED)


@pytest.mark.soak
def test_torchs_own_reader_detects_none_of_them(folder: Path) -> None:
    for _, path, offset, bits in flips(folder, 1000):
        flip(path, offset, bits)
        load(empty_state(), FileSystemReader(folder))  # would raise if it noticed
        flip(path, offset, bits)


def test_a_flipped_byte_anywhere_in_a_file_never_loads_a_wrong_tensor(folder: Path) -> None:
    chance = random.Random(7)
    files = sorted(folder.glob("*.distcp"))
    reader = ParallelFileSystemReader(folder)
    harmless = 0
    named: set[str] = set()
    for _ in range(300):
        path = chance.choice(files)
        offset, bits = chance.randrange(path.stat().st_size), chance.randrange(1, 256)
        if path.stat().st_size > 100_000 and chance.random() < 0.8:
            offset = path.stat().st_size - 1 - chance.randrange(1200)  # headers are few: aim at them
        flip(path, offset, bits)
        try:
            assert_same(load_directly(reader), SAVED)  # padding and unused records do not matter
            harmless += 1
        except CheckpointError as error:
            named.add(str(error.tensor))
        finally:
            flip(path, offset, bits)
    assert harmless < 300
    assert named <= set(SAVED)


def test_a_flipped_byte_anywhere_in_the_metadata_never_loads_a_wrong_tensor(folder: Path) -> None:
    chance = random.Random(8)
    path = folder / ".metadata"
    whole = path.read_bytes()
    failures = 0
    for _ in range(400):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        path.write_bytes(data)
        try:
            assert_same(load_directly(ParallelFileSystemReader(folder)), SAVED)
        except HoldfastError:
            failures += 1
    assert failures > 100


@pytest.mark.parametrize("keep", [0, 1, 500, 0.5, -1])
def test_a_truncated_file_is_named_with_a_tensor_it_cuts(folder: Path, keep: float) -> None:
    path = folder / "__0_0.distcp"
    size = path.stat().st_size
    left = int(size * keep) if 0 < keep < 1 else int(size + keep if keep < 0 else keep)
    os.truncate(path, left)
    with nothing_left_behind(), pytest.raises(CheckpointReadError) as caught:
        load(empty_state(), ParallelFileSystemReader(folder, num_workers=3))
    assert caught.value.file == path.name
    assert caught.value.tensor in SAVED
    assert caught.value.where["offset"] + caught.value.where["length"] > left


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "__0_1.distcp").unlink()
    with nothing_left_behind(), pytest.raises(CheckpointReadError, match="missing") as caught:
        load(empty_state(), ParallelFileSystemReader(folder, num_workers=3))
    assert caught.value.file == "__0_1.distcp"
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(folder: Path) -> None:
    (folder / "__0_1.distcp").chmod(0)
    with nothing_left_behind(), pytest.raises(CheckpointReadError, match="readable") as caught:
        load(empty_state(), ParallelFileSystemReader(folder))
    assert caught.value.file == "__0_1.distcp"


def test_a_permission_error_of_the_file_layer_is_named(folder: Path) -> None:
    class Refusing(FaultyFiles):
        def open(self, path: Path) -> int:
            if path.name == "__0_1.distcp":
                raise PermissionError(13, "Permission denied")
            return super().open(path)

    with nothing_left_behind(), pytest.raises(CheckpointReadError, match="readable") as caught:
        load(empty_state(), ParallelFileSystemReader(folder, file_layer=Refusing()))
    assert caught.value.file == "__0_1.distcp"


@pytest.mark.parametrize("workers", [1, 4])
def test_an_input_error_at_any_read_is_one_error_with_its_cause(folder: Path, workers: int) -> None:
    counting = FaultyFiles()
    load(empty_state(), ParallelFileSystemReader(folder, num_workers=workers, file_layer=counting))
    assert counting.reads > 4
    with nothing_left_behind():
        for fail_at in range(1, counting.reads):
            reader = ParallelFileSystemReader(folder, num_workers=workers, file_layer=FaultyFiles(fail_at=fail_at))
            with pytest.raises(CheckpointReadError, match="Input/output error") as caught:
                load_directly(reader)
            _check_named(caught.value)


def _check_named(error: CheckpointReadError) -> None:
    assert error.tensor in SAVED
    assert error.where["offset"] >= 0
    assert error.where["length"] > 0
    assert isinstance(error.__cause__, OSError)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 — our own
    assert (again.tensor, again.file, again.offset, again.length) == (
        error.tensor,
        error.file,
        error.offset,
        error.length,
    )


def test_short_reads_of_the_file_layer_are_continued(folder: Path) -> None:
    assert_same(load(empty_state(), ParallelFileSystemReader(folder, file_layer=FaultyFiles(most_bytes=1000))), SAVED)


def _rewrite(path: Path) -> None:
    replacement = path.with_suffix(".new")
    shutil.copy(path, replacement)
    os.replace(replacement, path)


@pytest.mark.parametrize(
    "change",
    [_rewrite, lambda path: os.utime(path, ns=(1, 1)), lambda path: path.unlink()],
    ids=["replaced", "written", "removed"],
)
@pytest.mark.parametrize("options", [{"num_workers": 1}, {"parallel": False}], ids=["parallel", "sequential"])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    folder: Path, change: Callable[[Path], None], options: dict[str, Any]
) -> None:
    path = folder / "__0_0.distcp"
    metadata_reads, first_of_data = 1, 1
    layer = FaultyFiles(before={metadata_reads + first_of_data: lambda: change(path)})
    with nothing_left_behind(), pytest.raises(CheckpointReadError, match="while it was being read") as caught:
        load(empty_state(), ParallelFileSystemReader(folder, file_layer=layer, **options))
    assert caught.value.file == path.name


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x04N.", b"\x80\x04\x95"], ids=repr)
def test_corrupt_metadata_is_named(folder: Path, content: bytes) -> None:
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(UnusableCheckpointError) as caught:
        ParallelFileSystemReader(folder).read_metadata()
    assert caught.value.file == ".metadata"


def test_metadata_of_another_shape_than_the_stored_tensor_is_an_error(folder: Path) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    entry = metadata.state_dict_metadata["small.3"]
    other = copy.deepcopy(metadata.state_dict_metadata["small.5"])
    metadata.state_dict_metadata["small.3"] = other
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    state = {"small.3": torch.zeros(SAVED["small.5"].shape)}
    with pytest.raises(CheckpointError) as caught:
        load(state, ParallelFileSystemReader(folder))
    assert caught.value.tensor == "small.3"
    assert entry != other


def _registry() -> ExtensionRegistry:
    registry = ExtensionRegistry()
    for extension in (Killed, Failing, Bomb):
        registry.register(extension)
    return registry


@pytest.mark.parametrize(
    ("extension", "engine", "error", "message"),
    [
        (Killed, "process", CheckpointReadError, "worker process died"),
        (Failing, "process", CorruptRecordError, "cannot undo this"),
        (Failing, "thread", CorruptRecordError, "cannot undo this"),
        (Bomb, "thread", CorruptRecordError, "decodes to more bytes"),
        (Bomb, "none", CorruptRecordError, "decodes to more bytes"),
    ],
)
def test_a_transform_that_fails_or_dies_is_one_error(
    tmp_path: Path, extension: type, engine: str, error: type[CheckpointError], message: str
) -> None:
    saved = {name: SAVED[name] for name in ("large", "small.1", "small.2")}
    folder = save(saved, tmp_path / "c", _extensions=[extension()])
    workers = 1 if engine == "process" else 2  # each process starts with importing torch
    options = {"parallel": False} if engine == "none" else {"engine": engine, "num_workers": workers}
    reader = ParallelFileSystemReader(folder, extension_registry=_registry(), **options)
    resource_tracker.ensure_running()  # lives as long as this process, once anyone has used multiprocessing
    with nothing_left_behind(), pytest.raises(error, match=message) as caught:
        load({name: torch.zeros_like(value) for name, value in saved.items()}, reader)
    assert caught.value.tensor in saved
    if engine == "thread":
        report = verify_checkpoint(folder, extension_registry=_registry())
        assert {entry.tensor for entry in report.damaged} == set(saved)


def test_a_planner_that_raises_stops_the_load_and_leaves_nothing_behind(folder: Path) -> None:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Refusing(DefaultLoadPlanner):
        commits_in_any_order = True

        def commit_tensor(self, read_item: Any, tensor: torch.Tensor) -> None:
            raise ZeroDivisionError("the planner's own")

    with nothing_left_behind(), pytest.raises(CheckpointException, match="the planner's own"):
        load(empty_state(), ParallelFileSystemReader(folder, num_workers=4), Refusing())


def test_zstd_damage_is_detected(tmp_path: Path) -> None:
    from torch.distributed.checkpoint._extension import ZStandard

    saved = {"noise": random_bits(50_000)}
    folder = save(saved, tmp_path / "c", _extensions=[ZStandard()])
    (path,) = folder.glob("*.distcp")
    flip(path, 30_000, 4)
    with pytest.raises(CorruptRecordError) as caught:
        load({"noise": torch.zeros(50_000)}, ParallelFileSystemReader(folder))
    assert caught.value.tensor == "noise"


@pytest.mark.parametrize(
    "error", [ValueError("of a planner"), KeyboardInterrupt(), CheckpointReadError("gone", tensor="small", file="f")]
)
def test_an_error_that_names_its_tensor_or_is_not_about_reading_stays_as_it_is(error: BaseException) -> None:
    chunk: Any = None
    with pytest.raises(type(error)) as caught, naming(chunk):
        raise error
    assert caught.value is error
