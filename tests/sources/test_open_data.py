"""What a path holds is told by its ending or by what lies in its folder, and described by the source that reads it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.sources.peer_files.make import COUNT, HERE
from tests.sources.test_arrow_ipc import ROWS, TABLE, write

from holdfast.errors import SourceError
from holdfast.sources.describe import describe_data
from holdfast.sources.open_data import TokenLayout


@pytest.mark.parametrize(
    ("name", "kind", "source"),
    [
        ("mds_raw", "mds", "MDSSource"),
        ("mds_zstd/index.json", "mds", "MDSSource"),
        ("litdata_batch", "litdata", "LitDataSource"),
        ("megatron_int32", "megatron", "MegatronSource"),
        ("megatron_int32.idx", "megatron", "MegatronSource"),
        ("megatron_int32.bin", "megatron", "MegatronSource"),
    ],
)
def test_formats_of_other_libraries_are_known_by_their_files(name: str, kind: str, source: str) -> None:
    told = describe_data(str(HERE / name))
    assert (told.kind, told.source, told.samples) == (kind, source, COUNT)
    assert told.bytes > 0
    assert told.columns


def test_token_chunks_records_and_saved_datasets_are_described(tmp_path: Path) -> None:
    assert describe_data(str(HERE / "litdata_tokens"), tokens=TokenLayout(length=64)).columns[0].shape == (64,)
    record = shutil.copy(HERE / "part-0.tfrecord", tmp_path)
    assert describe_data(str(record)).samples == COUNT // 2
    write(tmp_path / "rows.arrow", stream=True)
    assert describe_data(str(tmp_path / "rows.arrow")).samples == ROWS
    import datasets

    splits = datasets.DatasetDict(train=datasets.Dataset(TABLE), test=datasets.Dataset(TABLE))
    splits.save_to_disk(str(tmp_path / "saved"))
    told = describe_data(str(tmp_path / "saved"), tokens=TokenLayout(split="test"))
    assert (told.kind, told.samples) == ("hugging face", ROWS)


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    shutil.copy(HERE / "part-0.tfrecord", tmp_path)
    write(tmp_path / "rows.arrow", stream=True)
    with pytest.raises(SourceError, match="several kinds"):
        describe_data(str(tmp_path))
