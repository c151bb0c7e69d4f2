"""The archive of a saved tensor, read as byte ranges; and its pickle, read without running it."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import zipfile
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.support import raw_bytes

from holdfast.checkpoint.archive import DamagedArchiveError, read_archive
from holdfast.checkpoint.inert import DamagedPickleError, Inert
from holdfast.checkpoint.items import ItemLayout, KnownItems, memory_reader, open_item, view_payload
from holdfast.checkpoint.pickle_machine import read_pickle


def layout_of(data: bytes | bytearray) -> ItemLayout | None:
    return open_item(memory_reader(memoryview(data)), len(data), KnownItems(), check=True)


def archive(value: Any) -> bytearray:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return bytearray(buffer.getvalue())


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint16, torch.bool, torch.complex64]),
    transpose=st.booleans(),
)
def test_any_plain_tensor_is_found_in_its_archive(shape: list[int], dtype: torch.dtype, transpose: bool) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    if transpose and len(shape) >= 2:
        tensor = tensor.transpose(0, 1)
    data = archive(tensor)
    layout = layout_of(data)
    assert layout is not None
    assert (layout.recipe.dtype, layout.recipe.shape) == (dtype, tuple(tensor.shape))
    assert raw_bytes(view_payload(data, layout)) == raw_bytes(tensor)


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.ones(3)),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        {"a": torch.ones(3)},
    ],
    ids=["parameter", "conjugate", "sparse", "dict"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_not_a_plain_tensor_is_left_to_torch(value: Any) -> None:
    assert layout_of(archive(value)) is None


@given(data=st.binary(max_size=200), protocol=st.sampled_from([b"", b"\x80\x02", b"\x80\x04"]))
def test_any_bytes_are_a_pickle_or_a_damaged_one(data: bytes, protocol: bytes) -> None:
    with contextlib.suppress(DamagedPickleError):
        read_pickle(protocol + data)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=10)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(st.integers() | st.text(max_size=3), max_size=3)
        | st.frozensets(st.tuples(st.integers(), st.booleans()), max_size=3)
    ),
    max_leaves=12,
)


@given(value=plain, protocol=st.sampled_from([4, 5]))
def test_plain_data_comes_out_of_its_pickle_as_it_went_in(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


def test_a_call_stays_a_record_of_a_call() -> None:
    record = read_pickle(pickle.dumps(range(3), 2))
    assert isinstance(record, Inert)
    assert (str(record.function), record.arguments, record.made) == ("builtins.range", (0, 3, 1), False)


def test_a_central_directory_with_many_records_is_read() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for number in range(500):
            file.writestr(f"archive/data/{number}", bytes(number))
    data = buffer.getvalue()
    records = read_archive(memory_reader(memoryview(data)), len(data))
    assert [records[f"data/{number}"].size for number in range(500)] == list(range(500))


def zip64_archive(payload: bytes, *, first: bytes = b"", flags: int = 0, local_sizes: tuple[int, ...] = ()) -> bytes:
    """An archive that uses the zip64 fields throughout, as one beyond four gigabytes must.

    Args:
        payload: of its one record.
        first: what stands in front of the zip64 field in the directory.
        flags: of the record; with 8 its sizes and checksum are in a descriptor behind the payload.
        local_sizes: what the zip64 field of the local header holds, when not the size twice.
    """
    name = b"archive/data/0"
    large = 0xFFFFFFFF
    sizes = local_sizes or (len(payload), len(payload))
    short = (0, 0, 0) if flags else (9, large, large)
    extra = struct.pack(f"<HH{len(sizes)}Q", 1, 8 * len(sizes), *sizes) + struct.pack("<HH", 0x4246, 0)
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, flags, 0, 0, 0, *short, len(name), len(extra))
    local += name + extra + payload
    if flags:
        local += struct.pack("<4sIQQ", b"PK\x07\x08", 9, len(payload), len(payload))
    entry = struct.pack(
        "<4sHHHHHHIIIHHHHHII",
        b"PK\x01\x02",
        45,
        45,
        flags,
        0,
        0,
        0,
        9,
        large,
        large,
        len(name),
        28 + len(first),
        0,
        0,
        0,
        0,
        large,
    )
    entry += name + first + struct.pack("<HHQQQ", 1, 24, len(payload), len(payload), 0)
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(entry), len(local))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + len(entry), 1)
    end = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, large, large, 0)
    return local + entry + end64 + locator + end


def test_zip64_fields_are_followed() -> None:
    data = zip64_archive(b"payload")
    assert zipfile.ZipFile(io.BytesIO(data)).infolist()[0].file_size == 7
    record = read_archive(memory_reader(memoryview(data)), len(data))["data/0"]
    assert data[record.start : record.start + record.size] == b"payload"


@pytest.mark.parametrize("sizes", [(7, 0, 0), (0, 0), (7, 7)])
def test_a_local_header_may_leave_the_sizes_of_zip64_to_the_descriptor(sizes: tuple[int, ...]) -> None:
    data = zip64_archive(b"payload", flags=8, local_sizes=sizes)
    assert read_archive(memory_reader(memoryview(data)), len(data))["data/0"].size == 7


@pytest.mark.parametrize(
    "data",
    [
        zip64_archive(b"payload", flags=8, local_sizes=(6, 6)),
        zip64_archive(b"payload", first=struct.pack("<HHQQQ", 1, 24, 6, 6, 0)),
        zip64_archive(b"payload", first=struct.pack("<HH", 1, 0)),
    ],
    ids=["another size in the local header", "a second field", "an empty field"],
)
def test_zip64_fields_that_disagree_or_stand_twice_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedArchiveError):
        read_archive(memory_reader(memoryview(data)), len(data))


@given(position=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_archive_is_refused_or_gives_the_tensor(position: int, value: int) -> None:
    data = archive(torch.arange(40.0))
    data[position % len(data)] = value
    try:
        layout = layout_of(data)
    except DamagedArchiveError:
        return
    if layout is not None:
        assert layout.recipe.shape == (40,)
        assert layout.payload_bytes == 160


@pytest.mark.parametrize("record", ["/.data/serialization_id", "/data.pkl", "/byteorder", "/version"])
def test_damage_to_any_record_of_an_archive_like_others_is_found(record: str) -> None:
    """From the second of one length on, an archive is compared with the others instead of being parsed."""
    known = KnownItems()
    first, second, third = (archive(torch.full((5,), float(number))) for number in range(3))
    for data in (first, second):
        assert open_item(memory_reader(memoryview(data)), len(data), known, check=True) is not None
    with zipfile.ZipFile(io.BytesIO(third)) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(record))
        content = opened.read(name)
    assert open_item(memory_reader(memoryview(third)), len(third), known, check=True) is not None
    third[third.index(content, third.index(name.encode()))] ^= 1
    with pytest.raises(DamagedArchiveError):
        open_item(memory_reader(memoryview(third)), len(third), known, check=True)
