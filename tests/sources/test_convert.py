"""`convert` writes the same samples as Parquet and MDS, and continues where it was killed."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.sources.peer_files.make import COUNT, HERE
from tests.sources.test_arrow_ipc import write

from holdfast.errors import ConfigError, SourceError
from holdfast.sources import ArrowSource, MDSSource, MegatronSource, ParquetSource, Source, TFRecordSource
from holdfast.sources.convert import PLAN, Format, convert
from holdfast.sources.shard_writers import arrow_table
from holdfast.testing import check_source


def source_of(name: str, folder: Path) -> tuple[str, Source]:
    if name == "arrow":
        path = write(folder / "rows.arrow", stream=True)
        return str(path), ArrowSource(path)
    if name == "megatron":
        return str(HERE / "megatron_int32.idx"), MegatronSource(HERE / "megatron_int32")
    path = Path(shutil.copy(HERE / "part-0.tfrecord", folder))
    return str(path), TFRecordSource(path)


@pytest.mark.parametrize("name", ["arrow", "tfrecord", "megatron"])
def test_parquet_reads_back_as_the_same_samples(name: str, tmp_path: Path) -> None:
    path, source = source_of(name, tmp_path)
    report = convert(path, tmp_path / "out", samples_per_shard=10, workers=1)
    assert (report.samples, report.shards, report.written) == (
        len(source),
        -(-len(source) // 10),
        -(-len(source) // 10),
    )
    check_source(ParquetSource(tmp_path / "out"), same_as=source)


@pytest.mark.parametrize("name", ["arrow", "megatron"])
def test_mds_reads_back_as_the_same_samples(name: str, tmp_path: Path) -> None:
    path, source = source_of(name, tmp_path)
    convert(path, tmp_path / "out", to="mds", samples_per_shard=10, workers=1)
    check_source(MDSSource(tmp_path / "out"), same_as=source)


def test_arrays_of_every_shape_survive_parquet(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "cube": np.arange(48, dtype=np.float32).reshape(4, 3, 4),
        "flat": np.arange(8, dtype=np.int16).reshape(4, 2),
        "half": np.arange(4, dtype=np.float16),
        "flag": np.array([True, False, True, True]),
    }
    import pyarrow.parquet as parquet

    parquet.write_table(arrow_table(columns), tmp_path / "rows.parquet")
    found = ParquetSource(tmp_path / "rows.parquet").read(np.arange(4))
    for name, column in columns.items():
        assert found[name].dtype == column.dtype
        assert np.array_equal(found[name], column)  # type: ignore[arg-type]


def test_processes_write_what_one_would(tmp_path: Path) -> None:
    path, _ = source_of("megatron", tmp_path)
    convert(path, tmp_path / "one", samples_per_shard=6, workers=1)
    convert(path, tmp_path / "many", samples_per_shard=6, workers=2)
    for shard in (tmp_path / "one").glob("*.parquet"):
        assert shard.read_bytes() == (tmp_path / "many" / shard.name).read_bytes()


def test_a_conversion_continues_and_another_one_is_refused(tmp_path: Path) -> None:
    path, source = source_of("megatron", tmp_path)
    out = tmp_path / "out"
    convert(path, out, samples_per_shard=6, workers=1)
    (out / "part-00001.parquet").unlink()
    (out / ".convert-1-part-00001.parquet").write_bytes(b"half")
    report = convert(path, out, samples_per_shard=6, workers=1)
    assert report.written == 1
    assert sorted(entry.name for entry in out.iterdir()) == [PLAN, *(f"part-{n:05d}.parquet" for n in range(4))]
    check_source(ParquetSource(out), same_as=source)
    with pytest.raises(ConfigError, match="another conversion") as refused:
        convert(path, out, samples_per_shard=7, workers=1)
    assert refused.value.where["differing"] == ["per_shard"]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        convert(path, tmp_path / "full")


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
@pytest.mark.parametrize("to", ["parquet", "mds"])
def test_a_finished_shard_that_was_cut_is_written_again(to: Format, kept: int, tmp_path: Path) -> None:
    path, _ = source_of("megatron", tmp_path)
    out = tmp_path / "out"
    convert(path, out, to=to, samples_per_shard=6, workers=1)
    shard = sorted(out.glob("part-*" if to == "parquet" else "shard.*"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:kept])
    assert convert(path, out, to=to, samples_per_shard=6, workers=1).written == 1
    assert shard.read_bytes() == whole


def test_a_killed_conversion_is_finished_by_the_same_command(tmp_path: Path) -> None:
    table = pa.table({"ids": [list(range(row % 50)) for row in range(12_000)]})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    command = [sys.executable, "-m", "holdfast", "convert", str(tmp_path / "rows.arrow"), str(tmp_path / "out")]
    command += ["--to", "mds", "--samples-per-shard", "100", "--workers", "1", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not list(tmp_path.glob("out/shard.0000[5-9].mds")) and running.poll() is None:
        threading.Event().wait(0.001)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "out" / "index.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["shards"] == 120
    assert 0 < report["written"] < 120
    check_source(MDSSource(tmp_path / "out"), same_as=ArrowSource(tmp_path / "rows.arrow"))


def test_what_mds_cannot_hold_is_named(tmp_path: Path) -> None:
    table = pa.table({"flag": [True] * COUNT})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ConfigError, match="no encoding") as refused:
        convert(str(tmp_path / "rows.arrow"), tmp_path / "out", to="mds")
    assert refused.value.where["column"] == "flag"


def test_what_cannot_be_written_is_said_before_anything_is(tmp_path: Path) -> None:
    path, _ = source_of("arrow", tmp_path)
    with pytest.raises(ConfigError, match="compression"):
        convert(path, tmp_path / "out", compression="foo")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SourceError, match="cannot be written to"):
        convert(path, path)


def test_a_full_disk_is_an_error_with_the_folder_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = source_of("arrow", tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.sources.convert.write_parquet", full)
        with pytest.raises(SourceError, match="No space left"):
            convert(path, tmp_path / "out", workers=1)
    assert convert(path, tmp_path / "out", workers=1).written == 1
