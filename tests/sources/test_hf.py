"""HFSource reads what indexing the dataset would, straight from Arrow, through any mapping of indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged, rows
from tests.sources.test_parquet import table

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources import HFSource
from holdfast.sources.arrow_memory import ArrowMemory
from holdfast.testing import check_source

ROWS = 400


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # Saved and loaded, so that it is memory-mapped and in many record batches, as datasets are.
    folder = tmp_path_factory.mktemp("hf")
    whole = datasets.Dataset(table(ROWS))
    whole.map(lambda row: row, writer_batch_size=30, cache_file_name=str(folder / "cache.arrow"))
    loaded = datasets.Dataset.from_file(str(folder / "cache.arrow"))
    assert len(loaded.data.table["id"].chunks) > 5
    return loaded


def variants(dataset: Any) -> dict[str, Any]:
    return {
        "as it is": dataset,
        "shuffled": dataset.shuffle(seed=3),
        "selected": dataset.select(range(390, 10, -7)),
        "a stretch": dataset.select(range(35, 300)),
        "split": dataset.train_test_split(test_size=0.25, seed=1)["test"],
        "concatenated": datasets.concatenate_datasets([dataset.shuffle(seed=1), dataset]),
        "formatted": dataset.with_format("torch"),
        "in memory": datasets.Dataset.from_dict({"id": list(range(50)), "text": [str(i) for i in range(50)]}),
    }


@pytest.mark.parametrize("name", list(variants(datasets.Dataset.from_dict({"id": list(range(400))}))))
def test_every_kind_of_dataset_keeps_the_contract_and_reads_as_indexing_would(dataset: Any, name: str) -> None:
    given_dataset = variants(dataset)[name]
    source = HFSource(given_dataset)
    check_source(source)
    picks = np.random.default_rng(0).integers(0, len(source), 40)
    columns = source.read(picks)
    expected = given_dataset.with_format(None)[picks.tolist()]
    for column in given_dataset.column_names:
        found = columns[column]
        if column in ("text", "label"):
            assert ragged(columns, column).to_strings() == list(expected[column])
        elif column == "raw":
            assert ragged(columns, column).to_bytes() == list(expected[column])
        elif column == "ids":
            assert [row.tolist() for row in ragged(columns, column)] == list(expected[column])
        elif column != "when":
            assert isinstance(found, np.ndarray)
            assert found.tolist() == list(expected[column])


def test_a_read_touches_no_other_rows(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = HFSource(dataset.shuffle(seed=1), columns=["id", "text", "ids", "vector", "half", "raw"])
    source.read(rows(0))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a column was taken through Arrow")

    monkeypatch.setattr(ArrowMemory, "_take", refuse)
    assert len(source.read(rows(1, 2, 3))["id"]) == 3


@given(st.data())
def test_any_chunks_slices_and_rows_read_as_arrow_would(data: st.DataObject) -> None:
    kind = data.draw(
        st.sampled_from(
            [pa.int8(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.list_(pa.int16()), pa.bool_(),
             pa.large_list(pa.float32()), pa.list_(pa.int32(), 2), pa.list_(pa.string())]
        )
    )  # fmt: skip
    chunks = []
    for _ in range(data.draw(st.integers(1, 4))):
        values = data.draw(st.lists(values_of(kind), max_size=8))
        start = data.draw(st.integers(0, len(values)))
        chunks.append(pa.array(values, kind).slice(start))
    column = pa.chunked_array(chunks, kind)
    count = len(column)
    picks = data.draw(st.lists(st.integers(0, count - 1), max_size=12)) if count else []
    found = ArrowMemory(column, name="x", fill_null={}).read(np.array(picks, dtype=np.int64))
    expected = [column[pick].as_py() for pick in picks]
    assert as_python(found, kind) == expected


def values_of(kind: Any) -> Any:
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        return st.integers(-100, 100)
    if pa.types.is_floating(kind):
        return st.integers(-100, 100).map(float)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
    if pa.types.is_binary(kind):
        return st.binary(max_size=9)
    size = 2 if pa.types.is_fixed_size_list(kind) else None
    return st.lists(values_of(kind.value_type), min_size=size or 0, max_size=size or 5)


def as_python(column: Any, kind: Any) -> list[Any]:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(column.to_strings())
    if pa.types.is_binary(kind):
        return list(column.to_bytes())
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in (column if pa.types.is_list(kind)
            or pa.types.is_large_list(kind) else column.tolist())]  # fmt: skip


def test_nulls_are_errors_by_name_unless_filled() -> None:
    dataset = datasets.Dataset.from_dict({"i": [1, None, 3], "t": ["a", None, "c"]})
    with pytest.raises(SourceFormatError, match="fill_null"):
        HFSource(dataset).read(rows(1))
    source = HFSource(dataset, fill_null={"i": 0, "t": ""})
    check_source(source)
    assert plain(source.read(rows(1, 2)), "i").tolist() == [0, 3]


def test_fixed_shape_arrays_come_as_arrays_of_that_shape() -> None:
    features = datasets.Features({"image": datasets.Array2D((2, 3), "int32")})
    dataset = datasets.Dataset.from_dict({"image": [np.full((2, 3), i).tolist() for i in range(10)]}, features=features)
    source = HFSource(dataset)
    check_source(source)
    assert plain(source.read(rows(4, 2)), "image")[0].tolist() == [[4, 4, 4], [4, 4, 4]]


def test_offsets_damaged_on_disk_are_refused_rather_than_followed() -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 10**6, 4], np.int32).tobytes()), pa.py_buffer(b"abcd")]
    )
    with pytest.raises(SourceFormatError, match="damaged"):
        ArrowMemory(pa.chunked_array([broken]), name="x", fill_null={}).read(rows(0))


def test_only_the_columns_asked_for_are_read(dataset: Any) -> None:
    assert list(HFSource(dataset, columns=["text"]).read(rows(0))) == ["text"]
    with pytest.raises(ConfigError, match="txet"):
        HFSource(dataset, columns=["txet"])


def test_what_is_no_map_style_dataset_is_refused_with_a_way_out(dataset: Any) -> None:
    with pytest.raises(ConfigError, match="train"):
        HFSource(datasets.DatasetDict({"train": dataset}))
    with pytest.raises(ConfigError, match="streaming"):
        HFSource(dataset.to_iterable_dataset())


def test_the_same_rows_have_the_same_fingerprint_wherever_they_lie(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(str(tmp_path / "saved"))
    saved = datasets.load_from_disk(str(tmp_path / "saved"))
    assert HFSource(saved).fingerprint() == HFSource(dataset).fingerprint()
    assert HFSource(dataset.shuffle(seed=1)).fingerprint() != HFSource(dataset).fingerprint()
