"""Archives that two readers could understand in two ways: refused, whichever field they disagree in."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import load, save
from tests.faults.checkpoint_archives import LOCAL, UNUSED, Field, archive, changed, fields_of
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex

from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.archive import DamagedArchiveError
from holdfast.checkpoint.items import ItemLayout, KnownItems, decode_item, memory_reader, open_item
from holdfast.errors import CheckpointError, UnsafeCheckpointError

TENSOR = archive(torch.arange(40.0))
KNOWN = KnownItems()  # has seen the archives before they were changed
OBJECT = archive({"step": 7, "noise": torch.ones(5), "name": "x" * 300})


def accepted(data: bytes) -> Any:
    """What the item holds, however it is read; raises when it is refused."""
    layout = open_item(memory_reader(memoryview(data)), len(data), KnownItems(), check=False)
    again = open_item(memory_reader(memoryview(data)), len(data), KNOWN, check=False)
    assert again == layout
    value = decode_item(memoryview(data), check=False, tensor="x", file="f").value
    if layout is not None:
        payload = data[layout.payload_offset : layout.payload_offset + layout.payload_bytes]
        assert payload == value.numpy().tobytes()
    return value


@pytest.mark.parametrize("data", [TENSOR, OBJECT], ids=["tensor", "object"])
def test_a_change_of_any_field_that_a_reader_uses_is_refused(data: bytes) -> None:
    original = accepted(data)
    fields = fields_of(data)
    assert len(fields) > 7 * (len(("local", "entry", "descriptor")) * 4)
    survived = []
    for field in fields:
        for bits in (1, 1 << 8 * field.width - 1, -1):
            try:
                value = accepted(changed(data, field, bits))
            except (DamagedArchiveError, UnsafeCheckpointError):
                continue
            assert str(value) == str(original)
            survived.append(field)
    used = {str(field) for field in survived if (field.structure, field.name) not in UNUSED}
    # With a different kind of extra field the padding is still padding.
    assert {name for name in used if not name.endswith("extra_kind")} == set()


@pytest.mark.parametrize("data", [TENSOR, OBJECT], ids=["tensor", "object"])
def test_torch_reads_the_same_from_every_archive_with_one_flipped_bit_that_is_accepted(data: bytes) -> None:
    survived = 0
    for field in fields_of(data):
        for bit in range(8 * field.width):
            flipped = changed(data, field, 1 << bit)
            try:
                value = accepted(flipped)
            except (DamagedArchiveError, UnsafeCheckpointError):
                continue
            assert str(torch.load(io.BytesIO(flipped))) == str(value), (field, bit)
            survived += 1
    assert survived > len(UNUSED)


def with_local_checksums(data: bytes) -> bytes:
    """The archive with the sizes and checksums in the local headers too, where torch leaves zeros."""
    values = {(field.record, field.name): field for field in fields_of(data) if field.structure == "descriptor"}
    filled = bytearray(data)
    for field in fields_of(data):
        if field.structure == "local" and field.name in ("crc", "packed", "size"):
            told = values[field.record, field.name]
            filled[field.offset : field.offset + 4] = data[told.offset : told.offset + 4]
    return bytes(filled)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("like", [TENSOR, with_local_checksums(TENSOR)], ids=["as torch writes it", "told thrice"])
def test_an_archive_like_one_that_was_read_before_is_held_to_the_same(like: bytes, check: bool) -> None:
    """Whatever is changed, a byte or all copies of a field, the same comes out as for the first archive of a load."""

    def opened(data: bytes, known: KnownItems) -> ItemLayout | str | None:
        try:
            return open_item(memory_reader(memoryview(data)), len(data), known, check=check)
        except DamagedArchiveError as error:
            return str(error)

    known = KnownItems()
    first, again = opened(like, known), opened(like, known)
    assert isinstance(first, ItemLayout)
    assert first == again == opened(like, known)
    assert len(known.templates[len(like)]) == 1
    for place in range(len(like)):
        data = like[:place] + bytes([like[place] ^ 1]) + like[place + 1 :]
        assert opened(data, known) == opened(data, KnownItems()), place
    copies: dict[tuple[str, str], list[Field]] = {}
    for field in fields_of(like):
        if any(like[field.offset : field.offset + field.width]):
            copies.setdefault((field.record, field.name), []).append(field)
    for fields in copies.values():
        none = other = like
        for field in fields:
            none = none[: field.offset] + bytes(field.width) + none[field.offset + field.width :]
            other = changed(other, field, 1)
            assert opened(other, known) == opened(other, KnownItems()), "some of the copies"
        assert opened(none, known) == opened(none, KnownItems())


def test_tensors_of_many_kinds_and_one_length_are_all_read_right() -> None:
    """Archives are remembered by their length, and what differs in kind must never be taken for the other."""
    kinds = [torch.arange(8), torch.arange(8.0), torch.arange(8).reshape(2, 4), torch.arange(8).reshape(4, 2).t()]
    kinds += [torch.arange(8).reshape(2, 2, 2), torch.arange(8, dtype=torch.int32), torch.arange(16).to(torch.int16)]
    kinds += [torch.arange(8).reshape(8, 1), torch.arange(8).reshape(1, 8), torch.arange(4.0, dtype=torch.float64)]
    known = KnownItems()
    archives = [archive(kind + number) for number in range(4) for kind in kinds]
    assert len({len(data) for data in archives}) < len(kinds), "some are of one length"
    for data in archives:
        alone = open_item(memory_reader(memoryview(data)), len(data), KnownItems(), check=True)
        assert open_item(memory_reader(memoryview(data)), len(data), known, check=True) == alone
    assert max(map(len, known.templates.values())) > 1


@pytest.mark.parametrize("data", [TENSOR, OBJECT], ids=["tensor", "object"])
def test_bytes_between_two_records_that_belong_to_neither_are_refused(data: bytes) -> None:
    """Every offset is right, so only the gap itself can tell: another reader might find a record in it."""
    fields = fields_of(data)
    starts = sorted(field.offset for field in fields if (field.structure, field.name) == ("local", "signature"))
    moved = bytearray(data)
    for field in fields:
        if field.name in ("header_offset", "directory_offset", "end64_offset"):
            place = int.from_bytes(data[field.offset : field.offset + field.width], "little")
            if starts[1] <= place < 1 << 8 * field.width - 1:
                moved[field.offset : field.offset + field.width] = (place + 64).to_bytes(field.width, "little")
    moved[starts[1] : starts[1]] = bytes(64)
    assert torch.load(io.BytesIO(moved), weights_only=True) is not None, "torch reads it"
    with pytest.raises(DamagedArchiveError, match="gap"):
        accepted(bytes(moved))


@pytest.mark.parametrize("flag", [bit for bit in range(16) if bit not in (3, 11)])
def test_a_record_that_says_it_is_encrypted_or_patched_is_refused(flag: int) -> None:
    """In both headers alike; only a descriptor behind the payload (3) and names in UTF-8 (11) change nothing."""
    data = TENSOR
    for field in fields_of(TENSOR):
        if field.name == "flags" and field.record.endswith("data/0"):
            data = changed(data, field, 1 << flag)
    assert data != TENSOR
    with pytest.raises(DamagedArchiveError):
        accepted(data)


@pytest.mark.parametrize("size", [4, 40], ids=["read in a window", "read in parts"])
def test_a_tensor_whose_description_has_no_checksum_is_not_called_verified(tmp_path: Path, size: int) -> None:
    """Nothing but that checksum tells a matrix from its transpose."""
    folder = save({"w": torch.arange(float(size * size * 64)).reshape(8 * size, 8 * size)}, tmp_path / "c")
    path = folder / "__0_0.distcp"
    data = whole = path.read_bytes()
    for field in fields_of(data):
        if field.record.endswith("data.pkl") and field.name == "crc" and field.structure != "local":
            data = data[: field.offset] + bytes(4) + data[field.offset + 4 :]
    assert data != whole
    path.write_bytes(data)
    assert verify_checkpoint(folder).verdict == "incomplete"
    reader = ParallelFileSystemReader(folder)
    load({"w": torch.zeros(8 * size, 8 * size)}, reader)
    assert reader.report is not None
    assert [entry.tensor for entry in reader.report.unverified] == ["w"]


def test_sizes_and_checksums_that_the_local_header_holds_itself_must_agree_too() -> None:
    """Torch leaves them to a descriptor; other writers, such as Python's ``zipfile``, do not."""
    data = plain_archive()
    assert torch.equal(accepted(data), torch.arange(40.0))
    with zipfile.ZipFile(io.BytesIO(data)) as plain:
        headers = [entry.header_offset for entry in plain.infolist()]
    for at in headers:
        for field in ("crc", "packed", "size"):
            place = at + sum(width for _, width in LOCAL[: [name for name, _ in LOCAL].index(field)])
            for byte in range(4):
                wrong = bytearray(data)
                wrong[place + byte] ^= 1
                with pytest.raises(DamagedArchiveError):
                    accepted(bytes(wrong))


def plain_archive(*more: tuple[str, bytes]) -> bytes:
    """The archive of the tensor as ``zipfile`` writes it, with more records behind its own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(TENSOR)) as source, zipfile.ZipFile(buffer, "w") as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
        for name, content in more:
            target.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["archive/data.pkl", "archive/DATA.PKL", "archive/data.pkl?x", "other/data.pkl", "x"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_record_that_a_reader_could_take_for_another_is_refused(name: str) -> None:
    """By its name alone, by its name in another case, or as a reader that ends names at a zero byte sees it."""
    assert torch.equal(accepted(plain_archive(("archive/more", b"1"))), torch.arange(40.0))
    data = plain_archive((name, b"another pickle")).replace(b"?x", b"\0x")
    with pytest.raises(DamagedArchiveError, match="misnamed or named twice"):
        accepted(data)


def test_bytes_between_the_last_record_and_the_directory_are_refused() -> None:
    data = plain_archive()
    at = struct.unpack_from("<I", data, len(data) - 6)[0]
    moved = bytearray(data[:at] + bytes(64) + data[at:])
    struct.pack_into("<I", moved, len(moved) - 6, at + 64)
    assert zipfile.ZipFile(io.BytesIO(moved)).testzip() is None, "another reader takes it"
    with pytest.raises(DamagedArchiveError, match="where its directory starts"):
        accepted(bytes(moved))


def test_more_records_than_any_object_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.archive.MAX_RECORDS", 3)
    with pytest.raises(DamagedArchiveError, match="does not match"):
        accepted(plain_archive())


@pytest.mark.parametrize("bits", [1, 0xFFFFFFFF, 0x0102])
@pytest.mark.parametrize("data", [TENSOR, OBJECT], ids=["tensor", "object"])
def test_local_and_central_headers_that_agree_on_other_values_give_the_same_bytes_or_none(
    data: bytes, bits: int
) -> None:
    """Change a field in both places at once: consistent, so only the bounds and the bytes can tell."""
    original = accepted(data)
    both: dict[tuple[str, str], list[Field]] = {}
    for field in fields_of(data):
        both.setdefault((field.record, field.name), []).append(field)
    for fields in both.values():
        altered = data
        for field in fields:
            altered = changed(altered, field, bits)
        try:
            assert str(accepted(altered)) == str(original)
        except (DamagedArchiveError, UnsafeCheckpointError):
            continue


def evil_archive(marker: Path, harmless: bytes) -> bytes:
    """An archive whose local header makes torch read a second pickle, further into the record, than was checked.

    The central directory names the record ``archive/data.pkl``; the local header declares a longer name, so that a
    reader that believes it starts reading later.
    """

    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    evil = pickle.dumps(Runs(), 2)
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    shift = len(harmless)
    content = harmless + evil
    writer.write_record("data.pkl", content, len(content))
    writer.write_record("byteorder", b"little", 6)
    writer.write_end_of_file()
    data = bytearray(buffer.getvalue())
    name_length = struct.unpack_from("<H", data, 26)[0]
    struct.pack_into("<H", data, 26, name_length + shift)
    return bytes(data)


@pytest.mark.parametrize("verify", ["crc", "full", "off"])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_longer_name_in_the_local_header_does_not_run_code(tmp_path: Path, verify: str, parallel: bool) -> None:
    marker = tmp_path / "marker"
    folder = save({"weight": torch.ones(3), "step": 5}, tmp_path / "c", single_file_per_rank=False)
    content = evil_archive(marker, pickle.dumps(5, 2))
    metadata = FileSystemReader(folder).read_metadata()
    info = metadata.storage_data[MetadataIndex("step")]
    (folder / info.relative_path).write_bytes(content)
    info.length = len(content)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError):
        load(
            {"weight": torch.zeros(3), "step": None}, ParallelFileSystemReader(folder, parallel=parallel, verify=verify)
        )
    assert not marker.exists()
    assert verify_checkpoint(folder).verdict == "damaged"


def test_the_planner_gets_the_object_that_was_checked_saved_again(tmp_path: Path) -> None:
    folder = save({"step": {"a": [1, 2.5, "x"]}}, tmp_path / "c", single_file_per_rank=False)
    seen: list[bytes] = []
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Watching(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            seen.append(value.getvalue())
            super().load_bytes(read_item, value)

    state = load({"step": {"a": [None, None, None]}}, ParallelFileSystemReader(folder), Watching())
    assert state == {"step": {"a": [1, 2.5, "x"]}}
    stored = {path.read_bytes() for path in folder.glob("*.distcp")}
    assert all(archive(torch.load(io.BytesIO(data), weights_only=True)) == data for data in seen)
    assert len(seen) == len(stored)
