"""Arrow IPC files and streams, and the folders that Hugging Face datasets leave behind, read from their map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources import ArrowSource, HFFolderSource, Ragged
from holdfast.testing import check_source

ROWS = 200
TABLE = pa.table(
    {
        "id": range(ROWS),
        "ids": [list(range(row % 5)) for row in range(ROWS)],
        "text": [f"é{row}" for row in range(ROWS)],
        "score": pa.array([row / 3 for row in range(ROWS)], pa.float32()),
        "nested": [{"a": row, "b": [str(row)]} for row in range(ROWS)],
        "kind": pa.array(["ab"[row % 2] for row in range(ROWS)]).dictionary_encode(),
    }
)


def write(path: Path, *, stream: bool, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(str(path), TABLE.schema, options=options) as writer:
        writer.write_table(TABLE, max_chunksize=32)
    return path


def assert_same(found: Any, rows: list[dict[str, Any]]) -> None:
    assert plain(found, "id").tolist() == [row["id"] for row in rows]
    assert [list(ids) for ids in ragged(found, "ids")] == [row["ids"] for row in rows]
    assert ragged(found, "text").to_strings() == [row["text"] for row in rows]
    assert plain(found, "score").tolist() == [row["score"] for row in rows]
    assert plain(found, "nested").tolist() == [row["nested"] for row in rows]
    assert ragged(found, "kind").to_strings() == [row["kind"] for row in rows]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_files_and_streams_give_their_rows(tmp_path: Path, stream: bool, compression: str | None) -> None:
    path = write(tmp_path / "rows.arrow", stream=stream, compression=compression)
    source = ArrowSource(path)
    check_source(source)
    assert source.shards() == [32] * 6 + [8]
    assert_same(source.read(np.arange(ROWS)), TABLE.to_pylist())
    if compression is not None:
        with pytest.raises(SourceFormatError, match="max_decoded_bytes"):
            len(ArrowSource(path, max_decoded_bytes=1_000))


@given(st.lists(st.lists(st.lists(st.floats(allow_nan=False), max_size=2), min_size=1, max_size=3), min_size=1))
def test_any_batches_give_their_rows_be_they_all_empty(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[float]]]
) -> None:
    path = tmp_path_factory.mktemp("arrow") / "rows.arrow"
    schema = pa.schema([("list", pa.list_(pa.float64())), ("text", pa.string())])
    texts = [["x" * len(row) for row in rows] for rows in batches]
    with pa.ipc.new_stream(str(path), schema) as writer:
        for rows, text in zip(batches, texts, strict=True):
            writer.write_batch(pa.record_batch([pa.array(rows, pa.list_(pa.float64())), pa.array(text)], schema=schema))
    found = ArrowSource(path).read(np.arange(sum(map(len, batches))))
    assert [row.tolist() for row in ragged(found, "list")] == [row for rows in batches for row in rows]
    assert ragged(found, "text").to_strings() == [row for rows in texts for row in rows]


VIEWS = {
    "text": pa.array(["a", "é", "x" * 30], pa.string_view()),
    "bytes": pa.array([b"a", b"", b"x" * 30], pa.binary_view()),
    "lists of text": pa.array([["a"], [], ["b", "c" * 20]], pa.list_(pa.string_view())),
    "structs": pa.array([{"a": "x"}, {"a": "y"}, {"a": "z"}], pa.struct([("a", pa.string_view())])),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"])),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_columns_that_arrow_takes_no_rows_of_give_theirs(kind: str, tmp_path: Path) -> None:
    table = pa.table({"column": VIEWS[kind]})
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    source = ArrowSource(tmp_path / "rows.arrow")
    check_source(source)
    found = source.read(np.array([2, 0, 1, 2]))["column"]
    values = found.to_bytes() if isinstance(found, Ragged) else found.tolist()
    expected = table["column"].to_pylist()
    same = [value.encode() if isinstance(value, str) else value for value in expected]
    assert values in ([same[row] for row in (2, 0, 1, 2)], [expected[row] for row in (2, 0, 1, 2)])


def test_an_empty_stream_and_files_that_differ_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", stream=True)
    with pa.ipc.new_stream(str(tmp_path / "b.arrow"), pa.schema([("other", pa.int8())])) as writer:
        writer.write_table(pa.table({"other": pa.array([1], pa.int8())}))
    with pytest.raises(SourceFormatError, match="differ in their columns"):
        len(ArrowSource(tmp_path))
    with pa.ipc.new_stream(str(tmp_path / "none.arrow"), TABLE.schema):
        pass
    with pytest.raises(SourceFormatError, match="no rows"):
        len(ArrowSource(tmp_path / "none.arrow"))
    with pytest.raises(ConfigError, match="lack the requested columns"):
        len(ArrowSource(tmp_path / "a.arrow", columns=["nothing"]))


def test_a_file_whose_footer_is_gone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.arrow", stream=False)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SourceFormatError, match="not a readable Arrow file"):
        len(ArrowSource(path))


def test_a_saved_dataset_is_read_without_datasets(tmp_path: Path) -> None:
    whole = datasets.Dataset(TABLE)
    whole.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    source = HFFolderSource(tmp_path / "saved")
    check_source(source)
    assert_same(source.read(np.arange(ROWS)), TABLE.to_pylist())
    datasets.DatasetDict(train=whole, test=whole.select(range(10))).save_to_disk(str(tmp_path / "splits"))
    assert len(HFFolderSource(tmp_path / "splits", split="test")) == 10
    with pytest.raises(ConfigError, match="name one of the splits"):
        HFFolderSource(tmp_path / "splits")


def test_a_cache_folder_is_read_by_split(tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    parquet.write_table(TABLE, tmp_path / "rows.parquet")
    named = {"train": [str(tmp_path / "rows.parquet")], "validation": [str(tmp_path / "rows.parquet")]}
    loaded = datasets.load_dataset("parquet", data_files=named, cache_dir=str(tmp_path / "cache"))
    folder = Path(loaded["train"].cache_files[0]["filename"]).parent
    source = HFFolderSource(folder, split="validation")
    check_source(source)
    assert_same(source.read(np.arange(ROWS)), TABLE.to_pylist())
    with pytest.raises(ConfigError, match="name one of the splits"):
        HFFolderSource(folder)
    first = next(folder.glob("*train*.arrow"))
    first.rename(folder / "parquet-train-00000-of-00002.arrow")
    with pytest.raises(SourceFormatError, match="missing"):
        HFFolderSource(folder, split="train")


def test_a_mapping_of_indices_is_followed_and_checked(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    datasets.Dataset(TABLE).save_to_disk(str(folder))
    state = json.loads((folder / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (folder / "state.json").write_text(json.dumps(state))
    for last, message in ((7, None), (ROWS, "outside the rows")):
        mapping = pa.table({"indices": pa.array([5, 3, last], pa.uint64())})
        with pa.ipc.new_stream(str(folder / "indices.arrow"), mapping.schema) as writer:
            writer.write_table(mapping)
        source = HFFolderSource(folder)
        if message is None:
            check_source(source)
            assert plain(source.read(np.arange(3)), "id").tolist() == [5, 3, 7]
        else:
            with pytest.raises(SourceFormatError, match=message):
                source.read(np.arange(3))


@pytest.mark.parametrize("name", ["../rows.arrow", "/etc/passwd", "a/../../rows.arrow", "s3://bucket/x", "", "x\0y", 5])
def test_files_outside_of_the_folder_are_refused(tmp_path: Path, name: object) -> None:
    write(tmp_path / "rows.arrow", stream=True)
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(SourceFormatError, match=r"outside its folder|invalid file name"):
        HFFolderSource(folder)
