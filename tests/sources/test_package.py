"""The package of sources: light to import, whole in its names, and several sources as one."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import answer_first_values, plain, ragged, rows

import holdfast.sources
from holdfast import StreamDataset, StreamingConfig, StreamingShardLoader
from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources import ArraySource, ConcatSource, JsonlSource, PackedSource, Ragged
from holdfast.testing import check_source


def test_every_public_name_loads() -> None:
    for name in holdfast.sources.__all__:
        assert getattr(holdfast.sources, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        holdfast.sources.Nothing  # noqa: B018 - the lookup is what is tested


def test_reading_arrays_imports_numpy_alone() -> None:
    code = (
        "import sys, numpy as np\n"
        "from holdfast.sources import ArraySource, Ragged\n"
        "ArraySource({'x': np.arange(3)}).read(np.array([1]))\n"
        "from holdfast.sources import TokenFileSource, JsonlSource, ParquetSource, HFSource, TarSource\n"
        "print([name for name in ('torch', 'pyarrow', 'fsspec', 'datasets', 'pandas') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), data=st.data())
def test_several_sources_read_as_one_array_would(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes))
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    joined = ConcatSource([ArraySource({"x": part, "r": Ragged.from_rows([[n] * (n % 4) for n in part.tolist()],
                                        dtype=np.int64)}) for part in parts])  # fmt: skip
    picks = data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=20))
    columns = joined.read(np.array(picks, dtype=np.int64))
    assert plain(columns, "x").tolist() == picks
    assert [row.tolist() for row in ragged(columns, "r")] == [[pick] * (pick % 4) for pick in picks]
    assert joined.shards() == sizes


def test_several_sources_keep_the_contract_as_one() -> None:
    joined = ConcatSource([ArraySource({"x": np.arange(40)}), ArraySource({"x": np.arange(7)})])
    check_source(joined)
    joined.counters.add(local=5)
    assert joined.is_remote is False


def test_counts_of_several_sources_add_up() -> None:
    joined = ConcatSource([ArraySource({"x": np.arange(4)}), ArraySource({"x": np.arange(4)})])
    joined.read(rows(0, 7))
    assert joined.counters.counts()[:3] == (2, 0, 16)
    assert joined.bytes_read == 16


def test_a_source_added_leaves_the_fingerprint_of_the_beginning() -> None:
    one, other = ArraySource({"x": np.arange(40)}), ArraySource({"x": np.arange(7)})
    assert ConcatSource([one, other]).fingerprint(40) == ConcatSource([one]).fingerprint()


@pytest.mark.parametrize("other", [{"y": np.arange(3)}, {"x": np.arange(3.0)}, {"x": Ragged.from_rows([[1]] * 3)}])
def test_sources_with_other_columns_or_dtypes_do_not_join(other: dict[str, Any]) -> None:
    joined = ConcatSource([ArraySource({"x": np.arange(3)}), ArraySource(other)])
    with pytest.raises(SourceFormatError, match="parts of a source"):
        joined.read(rows(0, 4))


def test_nothing_to_join_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ConcatSource([])


@pytest.mark.parametrize("context", [multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")])
def test_a_source_open_in_its_parent_reads_in_a_child(tmp_path: Path, context: Any) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"id": {i}}}\n' for i in range(20)))
    source = JsonlSource(tmp_path / "a.jsonl")
    source.read(rows(0))
    answers = context.Queue()
    child = context.Process(target=answer_first_values, args=(source, rows(9, 2), "id", answers))
    child.start()
    assert answers.get(timeout=60) == [9, 2]
    child.join()
    assert child.exitcode == 0


def test_plain_sources_end_to_end_are_made_of_no_documents() -> None:
    a = ArraySource({"x": np.arange(10)})
    dataset = StreamDataset(ConcatSource([a, a]), name="d", seed=3)
    loader = StreamingShardLoader(dataset, StreamingConfig(batch_size=4))
    assert [one.pieces for one in loader.samples_in(0)] == [()] * 4
    with pytest.raises(ConfigError, match="documents"):
        loader.when("d", document=3)


def test_packs_end_to_end_keep_their_epochs_and_their_documents() -> None:
    def packed(first: int) -> PackedSource:
        rows = [[first + number] * (number % 4 + 1) for number in range(30)]
        return PackedSource(ArraySource({"tokens": Ragged.from_rows(rows)}), length=4, window=10)

    parts = [packed(100), packed(200)]
    both = ConcatSource([parts[0], ConcatSource([parts[1]])])
    rows = np.random.default_rng(0).permutation(len(both))
    for epoch in range(3):
        got = plain(both.read_at(rows, np.full(len(rows), epoch)), "tokens")
        wanted = [plain(part.read_at(np.arange(len(part)), np.full(len(part), epoch)), "tokens") for part in parts]
        assert np.array_equal(got, np.concatenate(wanted)[rows])
        for index in range(len(both)):
            pieces = both.pieces(index, epoch)
            tokens = [(piece.document % 30) + 100 * (1 + piece.document // 30) for piece in pieces]
            row = got[np.flatnonzero(rows == index)[0]]
            assert sorted(set(row[row > 0].tolist())) == sorted(tokens)
            for piece in pieces:
                assert index in both.samples_of(piece.document, epoch)
    assert not np.array_equal(
        plain(both.read_at(rows, np.zeros(len(rows), dtype=np.int64)), "tokens"),
        plain(both.read_at(rows, np.ones(len(rows), dtype=np.int64)), "tokens"),
    )
