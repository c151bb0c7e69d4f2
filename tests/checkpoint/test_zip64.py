"""Items beyond four gigabytes: made as sparse files, so that they cost neither disk nor time."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import torch
from tests.checkpoint.planners import read_box, run_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint import ParallelFileSystemReader

ROWS, ROW = 5 << 10, 1 << 20  # five gigabytes of bytes
LARGE = 0xFFFFFFFF


def long(value: int) -> bytes:
    return b"\x8a\x06" + value.to_bytes(6, "little")


PICKLE = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nByteStorage\nq\x02"
    b"X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04" + long(ROWS * ROW) + b"tq\x05QK\x00"
    + long(ROWS) + long(ROW) + b"\x86q\x06" + long(ROW) + b"K\x01\x86q\x07"
    b"\x89ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."
)  # fmt: skip


def write_archive(path: Path, start: int, marks: dict[int, int]) -> int:
    """Write the archive of the tensor at ``start`` of a file, with single bytes set; returns its length."""
    records = {
        b"archive/data.pkl": PICKLE,
        b"archive/version": b"3\n",
        b"archive/byteorder": b"little",
        b"archive/data/0": None,
    }
    directory = b""
    with path.open("r+b") as file:
        place = 0
        for name, content in records.items():
            size = ROWS * ROW if content is None else len(content)
            extra = struct.pack("<HHQQ", 1, 16, size, size)
            file.seek(start + place)
            header = (b"PK\x03\x04", 45, 0, 0, 0, 0, 0, LARGE, LARGE, len(name), len(extra))
            file.write(struct.pack("<4sHHHHHIIIHH", *header) + name + extra)
            payload = file.tell() - start
            if content is not None:
                file.write(content)
            entry = (b"PK\x01\x02", 45, 45, 0, 0, 0, 0, 0, LARGE, LARGE, len(name), 28, 0, 0, 0, 0, LARGE)
            directory += struct.pack("<4sHHHHHHIIIHHHHHII", *entry) + name
            directory += struct.pack("<HHQQQ", 1, 24, size, size, place)
            place = payload + size
        for offset, value in marks.items():
            file.seek(start + payload + offset)
            file.write(bytes([value]))
        file.seek(start + place)
        file.write(directory)
        file.write(struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 4, 4, len(directory), place))
        file.write(struct.pack("<4sIQI", b"PK\x06\x07", 0, place + len(directory), 1))
        file.write(struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, LARGE, LARGE, 0))
        return file.tell() - start


def test_rows_beyond_four_gigabytes_of_an_item_beyond_four_gigabytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "__0_0.distcp"
    path.touch()
    start = (4 << 30) + 7  # the item itself starts beyond four gigabytes too
    length = write_archive(path, start, {(ROWS - 1) * ROW + 3: 5, ROWS * ROW - 1: 9, 4 * ROW: 1})
    index = MetadataIndex("giant", [0, 0])
    shape = torch.Size([ROWS, ROW])
    chunk = ChunkStorageMetadata(torch.Size([0, 0]), shape)
    metadata = Metadata(
        {"giant": TensorStorageMetadata(TensorProperties(torch.uint8), shape, [chunk])},
        storage_data={index: _StorageInfo(path.name, start, length)},
    )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    target = torch.full((2, ROW), 3, dtype=torch.uint8)
    first = torch.full((1, ROW), 3, dtype=torch.uint8)
    reader = ParallelFileSystemReader(tmp_path)
    items = [read_box("giant", (ROWS - 2, 0), (2, ROW)), read_box("giant", (4, 0), (1, ROW))]
    run_plan(reader, items, [target, first])
    expected = torch.zeros(2, ROW, dtype=torch.uint8)
    expected[1, 3], expected[1, -1] = 5, 9
    assert torch.equal(target, expected)
    assert (int(first[0, 0]), int(first.sum())) == (1, 1)
    assert reader.report is not None
    assert reader.report.bytes_read <= 3 * ROW + 4096
    assert os.stat(path).st_blocks * 512 < 10 << 20
