"""Pickles made to exhaust time, memory or the stack: refused, in metadata and objects, before anything is built."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import load, save
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, files, pickle_machine, verify_checkpoint
from holdfast.checkpoint.inert import DamagedPickleError, RefusedPickleError
from holdfast.checkpoint.pickle_machine import read_pickle
from holdfast.checkpoint.safe_metadata import load_metadata
from holdfast.checkpoint.safe_objects import build_object
from holdfast.errors import (
    CheckpointError,
    CheckpointReadError,
    CorruptRecordError,
    UnsafeCheckpointError,
    UnusableCheckpointError,
)


def shared(levels: int, *, as_key: bool, opcode: bytes = b"\x86") -> bytes:
    """A tuple of twice the tuple below, ``levels`` deep: 2 ** levels leaves."""
    body = b")" + b"".join(b"q\x00h\x00" + opcode for _ in range(levels))
    return b"\x80\x02" + (b"}" + body + b"Ns." if as_key else body + b".")


def nested(levels: int, *, as_key: bool) -> bytes:
    body = b")" + b"\x85" * levels
    return b"\x80\x02" + (b"}" + body + b"Ns." if as_key else body + b".")


def nested_lists(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def colliding(count: int) -> bytes:
    """Keys of one hash: multiples of the modulus of Python's integer hash."""
    pairs = b"".join(
        b"\x8a\x10" + (place * (2**61 - 1) << 20).to_bytes(16, "little") + b"N" for place in range(1, count)
    )
    return b"\x80\x02}(" + pairs + b"u."


def equal_floats(count: int) -> bytes:
    """Tuples of floats that share a hash (powers of two, 61 apart), so the tuples share one too."""
    floats = [b"G" + struct.pack(">d", 2.0 ** (61 * power)) for power in range(10)]
    keys = (b"".join(floats[place // 10**digit % 10] for digit in range(3)) + b"\x87N" for place in range(count))
    return b"\x80\x02}(" + b"".join(keys) + b"u."


BOMBS = {
    "300,000 nested tuples": nested(300_000, as_key=False),
    "300,000 nested tuples as a key": nested(300_000, as_key=True),
    "a tuple shared 60 levels deep": shared(60, as_key=False),
    "a tuple shared 60 levels deep as a key": shared(60, as_key=True),
    "100,000 nested lists": nested_lists(100_000),
    "a memo index of two billion": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "a string of four gigabytes": b"\x80\x02X\xff\xff\xff\xffabc.",
    "bytes of eight exabytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "a huge bytearray": b"\x80\x02c__builtin__\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R.",
    "an integer of a million digits": b"\x80\x02\x8b\xa0\x86\x01\x00" + b"\x7f" * 100_000 + b".",
    "a list that holds itself": b"\x80\x02]q\x00h\x00a.",
    "marks without end": b"\x80\x02" + b"(" * 100_000 + b".",
    "a reference to 300,000 nested tuples as a key": nested(300_000, as_key=True).replace(b"Ns.", b"QNs."),
    "keys of one hash": colliding(99_000),
    "tuples of one hash as keys": equal_floats(1000),
    "an unknown opcode": b"\x80\x02\x82\x01.",
    "something behind the end": b"\x80\x02N.N.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_in_the_metadata_is_refused(tmp_path: Path, kind: str) -> None:
    folder = save({"weight": torch.ones(3)}, tmp_path / "c")
    (folder / ".metadata").write_bytes(BOMBS[kind])
    for attempt in (ParallelFileSystemReader(folder).read_metadata, lambda: verify_checkpoint(folder)):
        with pytest.raises(CheckpointError):
            attempt()


def _refused(data: bytes) -> bool:
    try:
        build_object(read_pickle(data), lambda _: None)
    except DamagedPickleError:
        return True
    return False


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_in_an_object_is_refused(kind: str) -> None:
    assert _refused(BOMBS[kind])


def test_containers_and_marks_are_counted_while_they_are_made_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_machine, "MAX_CONTAINERS", 1000)
    monkeypatch.setattr(pickle_machine, "MAX_MARKS", 1000)
    monkeypatch.setattr(pickle_machine, "COUNTED_BYTES", 100)
    end = b"\xff"  # an opcode that does not exist: nothing reads that far
    for many in (b")\x85", b"(", b"]", b")R"):
        with pytest.raises(DamagedPickleError, match="more than 1000 containers, or is nested"):
            read_pickle(b"\x80\x02N" + many * 1500 + end)


def test_more_containers_than_bytes_could_hold_are_refused_before_most_are_made() -> None:
    end = b"\xff"  # an opcode that does not exist: nothing reads that far
    with pytest.raises(RefusedPickleError, match=r"it holds 2\d{5} containers in 2\d{5} bytes"):
        read_pickle(b"\x80\x04](" + b"]" * 15_000_000 + end)


def test_metadata_of_more_containers_than_any_has_is_refused_before_most_are_made(tmp_path: Path) -> None:
    folder = save({"weight": torch.ones(3)}, tmp_path / "c")
    (folder / ".metadata").write_bytes(b"\x80\x04](" + b"]\x94" * 300_000 + b"e.")
    with pytest.raises(UnusableCheckpointError, match=r"it holds \d{6} containers in \d{6} bytes"):
        verify_checkpoint(folder)


@pytest.mark.parametrize("protocol", [2, 4])
def test_as_many_containers_as_a_pickler_writes_are_read(monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    monkeypatch.setattr(pickle_machine, "FREE_CONTAINERS", 0)
    monkeypatch.setattr(pickle_machine, "COUNTED_BYTES", 1000)
    value: list[Any] = [[] if number % 2 else (number, {}) for number in range(10_000)]
    assert build_object(read_pickle(pickle.dumps(value, protocol)), lambda _: None) == value


@pytest.mark.parametrize("ranks", [1, 500])
def test_metadata_of_many_parts_has_bytes_enough_for_its_containers(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr(pickle_machine, "FREE_CONTAINERS", 100)
    monkeypatch.setattr(pickle_machine, "COUNTED_BYTES", 1000)
    parts = [ChunkStorageMetadata(torch.Size([rank]), torch.Size([1])) for rank in range(ranks)]
    names = [f"w{number}" for number in range(1000 // ranks)]
    metadata = Metadata(
        {name: TensorStorageMetadata(TensorProperties(), torch.Size([ranks]), list(parts)) for name in names},
        {name: (name,) for name in names},
        {
            MetadataIndex(name, part.offsets, rank): _StorageInfo(f"__{rank}_0.distcp", number, 1)
            for number, name in enumerate(names)
            for rank, part in enumerate(parts)
        },
    )
    assert load_metadata(pickle.dumps(metadata), file=".metadata").storage_data == metadata.storage_data


def count_refusals(folder: Path) -> None:
    """Exit with the number of bombs that were refused."""
    original = (folder / ".metadata").read_bytes()
    deep: tuple[Any, ...] = ()
    for _ in range(60):
        deep = (deep, deep)
    long: tuple[Any, ...] = ()
    for _ in range(400):
        long = (long,)
    refused = 0
    for bomb in (deep, long):
        for place in ("planner_data", "extra", "key"):
            metadata = pickle.loads(original)  # noqa: S301 — our own
            if place == "key":
                metadata.planner_data = {0: bomb}
            else:
                setattr(metadata, place, {"weight": bomb})
            (folder / ".metadata").write_bytes(pickle.dumps(metadata))
            try:
                ParallelFileSystemReader(folder).read_metadata()
            except CheckpointError:
                refused += 1
    sys.exit(refused)


def test_a_bomb_inside_real_metadata_neither_hangs_nor_ends_the_process(tmp_path: Path) -> None:
    """In a process of its own: what is guarded against is a segmentation fault, and a hang beyond Ctrl-C."""
    folder = save({"weight": torch.ones(3), "step": 5}, tmp_path / "c", single_file_per_rank=False)
    victim = multiprocessing.get_context("fork").Process(target=count_refusals, args=(folder,))
    victim.start()
    victim.join(120)
    assert victim.exitcode == 6


def test_a_bomb_in_place_of_an_object_is_one_error(tmp_path: Path) -> None:
    folder = save({"step": 5}, tmp_path / "c", single_file_per_rank=False)
    import io

    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    bomb = BOMBS["a tuple shared 60 levels deep as a key"]
    writer.write_record("data.pkl", bomb, len(bomb))
    writer.write_end_of_file()
    metadata = FileSystemReader(folder).read_metadata()
    info = metadata.storage_data[MetadataIndex("step")]
    (folder / info.relative_path).write_bytes(buffer.getvalue())
    info.length = len(buffer.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError) as caught:
        load({"step": None}, ParallelFileSystemReader(folder))
    assert caught.value.tensor == "step"
    assert verify_checkpoint(folder).verdict == "damaged"


@pytest.mark.parametrize("name", ["a/" * 1000 + "x", "x" * 5000, "é" * 2500, "x/" * 30_000 + "x"], ids=len)
def test_a_file_name_of_no_end_is_refused_without_looking_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checkpoint.save({"step": 5}, tmp_path / "step-1", step=1)
    folder = save({"weight": torch.ones(3), "step": 5}, tmp_path / "step-2", single_file_per_rank=False)
    metadata = FileSystemReader(folder).read_metadata()
    metadata.storage_data[MetadataIndex("step")].relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    looked: list[str] = []
    look = os.lstat

    def lstat(path: str, **options: Any) -> os.stat_result:
        looked.append(str(path))
        return look(path, **options)

    monkeypatch.setattr(os, "lstat", lstat)
    uses: list[Callable[[], object]] = [
        lambda: load({"weight": torch.zeros(3), "step": None}, ParallelFileSystemReader(folder)),
        lambda: verify_checkpoint(folder),
        lambda: checkpoint.summarise_checkpoint(folder),
    ]
    for use in uses:
        with pytest.raises(UnsafeCheckpointError, match="invalid name"):
            use()
    assert max(map(len, looked), default=0) < 1000
    found = checkpoint.latest_verified(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_file_in_folders_of_its_own_is_read(tmp_path: Path) -> None:
    folder = save({"step": 5}, tmp_path / "c")
    metadata = FileSystemReader(folder).read_metadata()
    place = metadata.storage_data[MetadataIndex("step")]
    name = "/".join(["folder"] * 20) + "/" + "x" * 200
    (folder / name).parent.mkdir(parents=True)
    (folder / place.relative_path).rename(folder / name)
    place.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert verify_checkpoint(folder).sound


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("name", ["weight", "step"])
def test_a_file_of_holes_is_refused_without_reading_it(tmp_path: Path, name: str, parallel: bool) -> None:
    """A tebibyte that takes no room on the disk: reading it would take the memory of the machine."""
    folder = save({"weight": torch.ones(3), "step": 5}, tmp_path / "c", single_file_per_rank=False)
    metadata = FileSystemReader(folder).read_metadata()
    (info,) = (info for index, info in metadata.storage_data.items() if index.fqn == name)
    info.length = 1 << 40
    os.truncate(folder / info.relative_path, info.length)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CorruptRecordError) as caught:
        load({"weight": torch.zeros(3), "step": None}, ParallelFileSystemReader(folder, parallel=parallel))
    assert caught.value.tensor == name
    report = verify_checkpoint(folder)
    assert [entry.tensor for entry in report.damaged] == [name]
    assert report.bytes_read < 1 << 20


@pytest.mark.parametrize("parallel", [True, False])
def test_an_object_larger_than_the_memory_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool
) -> None:
    folder = save({"text": "x" * 5000, "step": 5}, tmp_path / "c", single_file_per_rank=False)
    monkeypatch.setattr(files, "_LARGE_BYTES", 4000)
    monkeypatch.setattr("psutil.virtual_memory", lambda: types.SimpleNamespace(available=4000))
    with pytest.raises(CheckpointReadError, match="larger than the available memory") as caught:
        load({"text": None, "step": None}, ParallelFileSystemReader(folder, parallel=parallel, memory_limit=1000))
    assert caught.value.tensor == "text"
    assert [entry.tensor for entry in verify_checkpoint(folder).damaged] == ["text"]
