"""ArraySource: one gather a column, no copy of the whole, cheap to send to another process."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sources.support import plain, through_pickle

from holdfast.errors import ConfigError, SourceError, SourceFormatError
from holdfast.sources import ArraySource, Ragged
from holdfast.testing import check_source


@given(st.integers(1, 50), st.data())
def test_any_read_equals_numpy_indexing(length: int, data: st.DataObject) -> None:
    table = np.arange(length * 3).reshape(length, 3)
    picks = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=40)), dtype=np.int64)
    assert plain(ArraySource({"x": table}).read(picks), "x").tolist() == table[picks].tolist()


def test_it_keeps_the_contract_with_arrays_tensors_and_ragged_columns() -> None:
    check_source(
        ArraySource(
            {
                "numbers": np.arange(300).reshape(100, 3),
                "tensor": torch.arange(100, dtype=torch.float32),
                "ragged": Ragged.from_rows([np.arange(i % 7) for i in range(100)]),
                "text": Ragged.from_rows([f"sample {i}" for i in range(100)]),
                "objects": np.array([{"i": i} for i in range(100)], dtype=object),
            }
        )
    )


def test_one_array_is_named_features_and_labels_go_beside_it() -> None:
    source = ArraySource(np.zeros((4, 2)), np.arange(4))
    assert list(source.read(np.array([1]))) == ["features", "labels"]


@pytest.mark.parametrize(
    "table",
    [
        np.asfortranarray(np.arange(40).reshape(10, 4)),
        np.arange(40).reshape(10, 4)[:, 1:3],
        np.arange(80).reshape(20, 4)[::2],
        np.arange(40).reshape(10, 4).astype(">i4"),
        np.frombuffer(b"x" + np.arange(40).tobytes(), dtype=np.uint8)[1:].view(np.int64).reshape(10, 4),
    ],
    ids=["fortran order", "some columns", "every second row", "big endian", "unaligned"],
)
def test_any_memory_layout_reads_right_and_comes_out_contiguous_and_native(table: NDArray[Any]) -> None:
    source = ArraySource({"x": table})
    check_source(source)
    assert plain(source.read(np.array([7, 0])), "x").tolist() == table[[7, 0]].tolist()


def test_an_array_that_cannot_be_gathered_in_place_is_still_not_copied_whole() -> None:
    source = ArraySource({"x": np.zeros((1000, 2000)).T})
    tracemalloc.start()
    source.read(np.arange(3))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # the whole is 16 MB


@pytest.mark.parametrize(
    "view", [slice(None), slice(3000, None), slice(None, None, 3)], ids=["all", "a tail", "every third"]
)
def test_a_memory_map_is_sent_as_its_place_in_the_file(tmp_path: Path, view: slice) -> None:
    path = tmp_path / "table.bin"
    written = np.memmap(path, mode="w+", shape=(5000, 4), dtype=np.int32)
    written[:] = np.arange(20_000).reshape(5000, 4)
    written.flush()
    table = np.memmap(path, mode="r", shape=(4000, 4), dtype=np.int32, offset=16)[view]
    source = ArraySource({"x": table})
    assert len(pickle.dumps(source)) < 1000
    check_source(source)
    again = through_pickle(through_pickle(source))
    picks = np.array([5, len(source) - 1, 0])
    assert np.array_equal(plain(again.read(picks), "x"), table[picks])


class Scaled(ArraySource):
    """A source with something of its own."""

    def __init__(self, factor: int) -> None:
        super().__init__({"x": np.arange(10)})
        self.factor = factor

    def read(self, indices: NDArray[np.int64]) -> Any:
        return {"x": plain(super().read(indices), "x") * self.factor}


def test_a_subclass_keeps_what_it_holds_when_it_is_sent_to_another_process() -> None:
    source = Scaled(3)
    check_source(source)
    assert through_pickle(through_pickle(source)).factor == 3
    assert plain(through_pickle(source).read(np.array([2])), "x").tolist() == [6]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="same number of rows") as caught:
        ArraySource({"a": np.zeros(3), "b": np.zeros(4)})
    assert caught.value.where["lengths"] == {"a": 3, "b": 4}


@pytest.mark.parametrize("columns", [{}, {"x": np.float64(3)}])
def test_no_columns_and_no_rows_are_refused(columns: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ArraySource(columns)


def test_labels_with_named_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="name the labels"):
        ArraySource({"x": np.zeros(3)}, np.zeros(3))


def test_a_dtype_numpy_lacks_is_refused_with_a_way_out() -> None:
    with pytest.raises(SourceFormatError, match="bfloat16"):
        ArraySource({"x": torch.zeros(3, dtype=torch.bfloat16)})


@given(
    st.integers(1, 20), st.one_of(st.integers(max_value=-1), st.integers(min_value=20)).filter(lambda i: abs(i) < 2**63)
)
def test_every_index_outside_is_refused_by_name(length: int, wrong: int) -> None:
    with pytest.raises(SourceError) as caught:
        ArraySource({"x": np.zeros(length)}).read(np.array([0, wrong], dtype=np.int64))
    assert (caught.value.index, caught.value.length) == (wrong, length)


@pytest.mark.parametrize("indices", [np.array([0.5]), np.array([[1, 2]])])
def test_indices_that_are_no_list_of_whole_numbers_are_refused(indices: NDArray[Any]) -> None:
    with pytest.raises(SourceError):
        ArraySource({"x": np.zeros(5)}).read(indices)


def test_reads_are_counted_in_samples_and_bytes() -> None:
    source = ArraySource({"x": np.zeros((10, 4), dtype=np.float32)})
    source.read(np.array([1, 2, 3]))
    assert source.counters.counts()[:3] == (3, 0, 48)
    assert through_pickle(source).bytes_read == 0


@given(st.integers(2, 60), st.integers(1, 10))
def test_a_source_that_grew_is_recognised_by_the_fingerprint_of_its_beginning(length: int, more: int) -> None:
    old, new = np.arange(length), np.arange(length + more)
    before = ArraySource({"x": old}).fingerprint()
    assert ArraySource({"x": new}).fingerprint(length) == before
    assert ArraySource({"x": new}).fingerprint() != before
    assert ArraySource({"x": old + 1}).fingerprint() != before
    assert ArraySource({"y": old}).fingerprint() != before
    assert ArraySource({"x": old.astype(np.int32)}).fingerprint() != before


def test_more_samples_than_there_are_cannot_be_fingerprinted() -> None:
    with pytest.raises(SourceError, match="more samples than there are"):
        ArraySource({"x": np.zeros(3)}).fingerprint(4)
