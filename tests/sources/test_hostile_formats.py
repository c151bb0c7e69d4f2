"""Damaged and hostile files of every format: a named error or the samples, never a crash, a hang or a foreign error."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.peer_files.make import HERE
from tests.sources.test_arrow_ipc import write

from holdfast.errors import HoldfastError, SourceFormatError
from holdfast.sources import (
    ArrayRecordSource,
    ArrowSource,
    LanceSource,
    LitDataSource,
    MDSSource,
    MegatronSource,
    Source,
    TFRecordSource,
)
from holdfast.sources.inflate import inflate
from holdfast.sources.litdata_values import parse_nested

DAMAGES = 60


def _arrow(folder: Path, *, stream: bool, compression: str | None) -> Path:
    return write(folder / "rows.arrow", stream=stream, compression=compression)


def _copied(name: str) -> Callable[[Path], Path]:
    return lambda folder: Path(shutil.copytree(HERE / name, folder / name))


def _megatron(folder: Path) -> Path:
    for ending in ("bin", "idx"):
        shutil.copy(HERE / f"megatron_uint16.{ending}", folder)
    return folder / "megatron_uint16"


def _tfrecord(folder: Path) -> Path:
    return Path(shutil.copy(HERE / "part-0.tfrecord", folder))


def _array_record(folder: Path) -> Path:
    pytest.importorskip("array_record")
    return Path(shutil.copy(HERE / "part.array_record", folder))


FORMATS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Source]]] = {
    "mds": (_copied("mds_raw"), MDSSource),
    "mds zstd": (_copied("mds_zstd"), MDSSource),
    "litdata": (_copied("litdata_raw"), LitDataSource),
    "litdata batch": (_copied("litdata_batch"), LitDataSource),
    "litdata sample": (_copied("litdata_sample"), LitDataSource),
    "litdata chunk": (_copied("litdata_chunk"), LitDataSource),
    "litdata rows": (_copied("litdata_rows"), LitDataSource),
    "litdata rows zstd": (_copied("litdata_rows_zstd"), LitDataSource),
    "litdata tokens": (_copied("litdata_tokens"), lambda path: LitDataSource(path, block_size=50)),
    "megatron": (_megatron, MegatronSource),
    "tfrecord": (_tfrecord, TFRecordSource),
    "arrow file": (lambda folder: _arrow(folder, stream=False, compression=None), ArrowSource),
    "arrow stream": (lambda folder: _arrow(folder, stream=True, compression=None), ArrowSource),
    "array_record": (_array_record, ArrayRecordSource),
    "arrow zstd": (lambda folder: _arrow(folder, stream=True, compression="zstd"), ArrowSource),
}


def damage(raw: bytes, generator: np.random.Generator) -> bytes:
    """Return the bytes with a bit turned over, a number replaced, a piece cut out, or the end missing."""
    data = bytearray(raw)
    place = int(generator.integers(len(data)))
    kind = int(generator.integers(5))
    if kind == 0:
        return bytes(data[:place])
    if kind == 1:
        data[place] ^= 1 << int(generator.integers(8))
    elif kind == 2:
        extreme = int(generator.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000]))
        data[place : place + 4] = struct.pack("<I", extreme)
    elif kind == 3:
        data[place : place + 8] = struct.pack("<q", int(generator.choice([-1, 2**40, 2**62])))
    else:
        del data[place : place + int(generator.integers(1, 40))]
    return bytes(data)


def read_damaged(name: str, folder: Path, generator: np.random.Generator) -> None:
    make, opener = FORMATS[name]
    path = make(folder)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    victim = files[int(generator.integers(len(files)))]
    victim.write_bytes(damage(victim.read_bytes(), generator))
    try:
        source = opener(path)
        source.read(np.arange(len(source)))
        source.fingerprint()
    except HoldfastError:
        pass


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_named_errors_only(name: str, tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    for number in range(DAMAGES):
        folder = tmp_path / str(number)
        folder.mkdir()
        read_damaged(name, folder, generator)
        shutil.rmtree(folder)


def damage_lance(folder: Path) -> None:
    import lance

    rows = {"n": range(50), "text": [f"é{row}" for row in range(50)], "list": [[float(row)] * 4 for row in range(50)]}
    lance.write_dataset(pa.table(rows), str(folder / "whole"))
    FORMATS["lance"] = (lambda copy: Path(shutil.copytree(folder / "whole", copy / "rows.lance")), LanceSource)
    test_damaged_files_give_named_errors_only("lance", folder)


def test_a_damaged_lance_dataset_gives_named_errors_only(tmp_path: Path) -> None:
    if importlib.util.find_spec("lance") is None:
        pytest.skip("lance is not installed")
    # In a process of its own: lance warns of every fork in one that has loaded it.
    child = multiprocessing.get_context("spawn").Process(target=damage_lance, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode == 0


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("name", ["../shard", "/etc/passwd", "a/../../b", "s3://bucket/x", "", "index.json", 5, None])
def test_an_index_that_names_files_outside_of_its_folder_is_refused(tmp_path: Path, name: object) -> None:
    def rename_shard(index: dict[str, Any]) -> None:
        index["shards"][0]["raw_data"]["basename"] = name

    def rename_chunk(index: dict[str, Any]) -> None:
        index["chunks"][0]["filename"] = name

    with pytest.raises(SourceFormatError):
        MDSSource(edited(_copied("mds_raw")(tmp_path), rename_shard))
    with pytest.raises(SourceFormatError):
        LitDataSource(edited(_copied("litdata_raw")(tmp_path), rename_chunk))


def test_shards_that_announce_more_than_they_hold_are_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    def swell(index: dict[str, Any]) -> None:
        index["shards"][0]["raw_data"]["bytes"] = 2**31

    folder = edited(_copied("mds_zstd")(tmp_path), swell)
    with pytest.raises(SourceFormatError, match="the declared size"):
        len(MDSSource(folder, columns=["matrix"]))

    def count(index: dict[str, Any]) -> None:
        index["chunks"][0]["chunk_size"] = 2**31

    folder = edited(_copied("litdata_raw")(tmp_path), count)
    with pytest.raises(SourceFormatError, match="shorter than its table"):
        LitDataSource(folder).read(np.arange(3))


def test_a_bomb_is_stopped_where_it_exceeds_what_was_announced() -> None:
    for codec in ("zstd", "gzip", "brotli", "bz2"):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(bytes(50 * 2**20))
        packed = sink.getvalue()
        with pytest.raises(SourceFormatError, match="more than the declared size"):
            inflate(packed, {"gzip": "gz", "brotli": "br"}.get(codec, codec), name="bomb", size=1000)
    packed = pa.compress(bytes(50 * 2**20), codec="snappy", asbytes=True)
    with pytest.raises(SourceFormatError, match="more than the declared size"):
        inflate(packed, "snappy", name="bomb", size=1000)
    with pytest.raises(SourceFormatError, match="unknown compression"):
        inflate(b"", "rot13", name="bomb")


def test_columns_of_the_same_name_are_refused_unless_others_are_asked_for(tmp_path: Path) -> None:
    table = pa.table([[1], [2], [3]], names=["a", "a", "b"])
    with pa.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as out:
        out.write_table(table)
    with pytest.raises(SourceFormatError, match="the same name"):
        len(ArrowSource(tmp_path / "rows.arrow"))
    assert np.asarray(ArrowSource(tmp_path / "rows.arrow", columns=["b"]).read(np.array([0]))["b"])[0] == 3


def test_items_that_overlap_are_refused(tmp_path: Path) -> None:
    folder = _copied("mds_raw")(tmp_path)
    shard = folder / "shard.00000.mds"
    raw = bytearray(shard.read_bytes())
    first, second = struct.unpack_from("<II", raw, 8)
    struct.pack_into("<II", raw, 8, second, first)
    shard.write_bytes(raw)
    with pytest.raises(SourceFormatError, match="overlap"):
        MDSSource(folder).read(np.arange(2))


def test_a_megatron_index_of_another_file_is_refused(tmp_path: Path) -> None:
    path = _megatron(tmp_path)
    data = path.with_suffix(".bin")
    data.write_bytes(data.read_bytes()[:-2])
    with pytest.raises(SourceFormatError, match="truncated"):
        len(MegatronSource(path))
    index = bytearray((HERE / "megatron_int32.idx").read_bytes())
    for place, message in (
        (0, "not a Megatron index"),
        (9, "unknown version"),
        (17, "unknown version"),
        (18, "match its header"),
    ):
        changed = bytearray(index)
        changed[place] ^= 0x40
        path.with_suffix(".idx").write_bytes(changed)
        with pytest.raises(SourceFormatError, match=message):
            len(MegatronSource(path))
    path.with_suffix(".idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    with pytest.raises(SourceFormatError, match="TNTIDX"):
        len(MegatronSource(path))


@pytest.mark.parametrize(
    "data", [b"", b"\x05\xff\xff\xff\xff", b"\x06" + b"\xff" * 8, b"\x01\x01", b"\x20", b"[" * 5000]
)
def test_nested_values_that_announce_more_than_they_hold_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_nested(data)
