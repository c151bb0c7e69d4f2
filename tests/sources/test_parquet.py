"""ParquetSource decodes each row group once while it is in use, only the columns asked for, within a limit."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged, rows, through_pickle

from holdfast.errors import ConfigError, HoldfastError, SourceChangedError, SourceFormatError
from holdfast.sources import ParquetSource, Ragged
from holdfast.sources.base import Indices
from holdfast.sources.decoded_cache import DecodedCache
from holdfast.testing import check_source

ROWS = 500


def table(count: int = ROWS, start: int = 0) -> Any:
    numbers = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "half": pa.array([n / 2 for n in numbers], pa.float32()),
            "even": [n % 2 == 0 for n in numbers],
            "text": [f"row {n} ü" for n in numbers],
            "raw": [bytes([n % 256]) * (n % 5) for n in numbers],
            "ids": pa.array([list(range(n % 6)) for n in numbers], pa.list_(pa.int32())),
            "vector": pa.array([[n, n + 1, n + 2] for n in numbers], pa.list_(pa.float64(), 3)),
            "label": pa.array([f"class {n % 3}" for n in numbers]).dictionary_encode(),
            "when": pa.array(numbers, pa.timestamp("s")),
            "nested": [{"role": "user", "n": n} for n in numbers],
            "words": [["a"] * (n % 3) for n in numbers],
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    parquet.write_table(table(), tmp_path / "a.parquet", row_group_size=60)
    return tmp_path / "a.parquet"


def test_it_keeps_the_contract_with_every_kind_of_column(path: Path) -> None:
    parquet.write_table(table(200, ROWS), path.with_name("b.parquet"), row_group_size=100)
    source = ParquetSource(path.parent)
    check_source(source)
    assert source.shards() == [60] * 8 + [20, 100, 100]


@given(
    picks=st.lists(st.integers(0, ROWS - 1), max_size=30),
    group=st.integers(20, 600),
    cache_bytes=st.sampled_from([0, 20_000, 2**30]),
)
def test_any_read_equals_the_rows_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, picks: list[int], group: int, cache_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    whole = table()
    parquet.write_table(whole, path, row_group_size=group)
    columns = ParquetSource(path, cache_bytes=cache_bytes).read(np.array(picks, dtype=np.int64))
    expected = whole.take(pa.array(picks, pa.int64())).to_pydict()
    for name in ("id", "half", "even", "nested", "words"):
        assert plain(columns, name).tolist() == expected[name]
    assert plain(columns, "vector").tolist() == expected["vector"]
    assert plain(columns, "when").astype("M8[s]").tolist() == expected["when"]
    assert ragged(columns, "text").to_strings() == expected["text"]
    assert ragged(columns, "label").to_strings() == expected["label"]
    assert ragged(columns, "raw").to_bytes() == expected["raw"]
    assert [row.tolist() for row in ragged(columns, "ids")] == expected["ids"]


def test_dtypes_are_those_of_the_file(path: Path) -> None:
    columns = ParquetSource(path).read(rows(0))
    assert plain(columns, "half").dtype == np.float32
    assert ragged(columns, "ids").values.dtype == np.int32
    assert ragged(columns, "text").encoding == "utf-8"
    assert ragged(columns, "raw").encoding is None


def test_only_the_columns_asked_for_are_read_from_the_file(path: Path) -> None:
    everything, little = ParquetSource(path), ParquetSource(path, columns=["id"])
    everything.read(rows(0))
    assert list(little.read(rows(0))) == ["id"]
    assert 0 < little.bytes_read < everything.bytes_read / 2


def test_a_row_group_in_use_is_decoded_once(path: Path) -> None:
    source = ParquetSource(path, columns=["id"])
    source.read(rows(0, 59))
    after_one = source.bytes_read
    for _ in range(5):
        source.read(rows(3, 58, 7))
    assert source.bytes_read == after_one
    source.read(rows(60))
    assert source.bytes_read > after_one
    assert source.counters.counts().samples_local == 2 + 15 + 1


def test_no_more_row_groups_are_held_than_fit_the_cache_however_many_a_read_touches(path: Path) -> None:
    source = ParquetSource(path, columns=["id"], cache_bytes=2 * 60 * 8)
    everything = np.random.default_rng(0).permutation(ROWS)
    assert plain(source.read(everything), "id").tolist() == everything.tolist()
    assert 0 < source.decoded_bytes <= 2 * 60 * 8
    assert source.counters.counts().samples_local == ROWS


def test_without_memory_for_it_a_row_group_is_decoded_again(path: Path) -> None:
    source = ParquetSource(path, columns=["id"], cache_bytes=0)
    source.read(rows(0))
    one = source.bytes_read
    for index in (60, 0, 60):
        source.read(rows(index))
    assert source.bytes_read > 3 * one


def test_columns_that_are_not_there_are_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="identity"):
        len(ParquetSource(path, columns=["identity"]))


def test_a_negative_cache_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="cache_bytes"):
        ParquetSource(path, cache_bytes=-1)


def test_files_that_disagree_on_a_type_are_refused(path: Path) -> None:
    parquet.write_table(pa.table({"id": ["x"]}), path.with_name("b.parquet"))
    with pytest.raises(SourceFormatError, match="disagree") as caught:
        len(ParquetSource(path.parent, columns=["id"]))
    assert caught.value.column == "id"


def test_nulls_are_nan_where_there_is_one_and_otherwise_errors_that_name_the_row(tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"f": [1.0, None], "i": [1, None], "l": pa.array([[1], None], pa.list_(pa.int64()))}),
        tmp_path / "a.parquet",
    )
    assert np.isnan(plain(ParquetSource(tmp_path, columns=["f"]).read(rows(1)), "f")[0])
    with pytest.raises(SourceFormatError, match="fill_null") as caught:
        ParquetSource(tmp_path, columns=["i"]).read(rows(0))
    assert (caught.value.column, caught.value.row) == ("i", 1)
    filled = ParquetSource(tmp_path, columns=["i", "l"], fill_null={"i": -1, "l": []})
    check_source(filled)
    assert plain(filled.read(rows(1, 0)), "i").tolist() == [-1, 1]
    assert [row.tolist() for row in ragged(filled.read(rows(1, 0)), "l")] == [[], [1]]


def test_a_null_inside_a_list_of_integers_is_refused_rather_than_turned_into_a_float(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"l": pa.array([[1, None]], pa.list_(pa.int64()))}), tmp_path / "a.parquet")
    with pytest.raises(SourceFormatError, match="inside a list"):
        ParquetSource(tmp_path).read(rows(0))


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int16(), 2)], ids=str)
def test_a_null_inside_a_list_is_named_by_its_row_or_is_what_fill_null_says(tmp_path: Path, kind: Any) -> None:
    values = pa.array([[5, 6], [1, 2], [None, 3], [4, None]], kind)
    parquet.write_table(pa.table({"l": values}), tmp_path / "a.parquet", row_group_size=2)
    with pytest.raises(SourceFormatError, match="inside a list") as caught:
        ParquetSource(tmp_path).read(rows(0, 3))
    assert caught.value.row == 2
    with pytest.raises(SourceFormatError, match="inside a list"):
        ParquetSource(tmp_path, fill_null={"l": [0, 0]}).read(rows(3))
    filled = ParquetSource(tmp_path, fill_null={"l": -1})
    check_source(filled)
    column = filled.read(rows(3, 2, 0))["l"]
    assert [list(row) for row in column] == [[4, -1], [-1, 3], [5, 6]]
    assert (column.values if isinstance(column, Ragged) else column).dtype == kind.value_type.to_pandas_dtype()


def test_a_cache_that_is_too_small_for_the_shuffle_is_warned_of_once(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": np.arange(1_000)}), tmp_path / "a.parquet", row_group_size=25)
    shuffled = np.random.default_rng(0).permutation(1_000)
    small = ParquetSource(tmp_path, cache_bytes=4 * 200)
    with pytest.warns(UserWarning, match=r"shuffle='window'.*cache_bytes=8,000") as seen:
        _read_in_batches(small, shuffled)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _read_in_batches(ParquetSource(tmp_path, cache_bytes=40 * 200), shuffled)
        _read_in_batches(ParquetSource(tmp_path, cache_bytes=4 * 200), np.arange(1_000))


def _read_in_batches(source: ParquetSource, indices: Indices) -> None:
    for start in range(0, len(indices), 10):
        source.read(indices[start : start + 10])


@pytest.mark.parametrize("content", [b"", b"PAR1 not really PAR1", b"x" * 1000])
def test_what_is_no_parquet_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(SourceFormatError, match=r"a\.parquet"):
        len(ParquetSource(tmp_path / "a.parquet"))


def test_a_damaged_row_group_is_refused_by_its_number(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4:400] = b"\xff" * 396
    path.write_bytes(raw)
    with pytest.raises(SourceFormatError, match="row group") as caught:
        ParquetSource(path).read(rows(0))
    assert caught.value.where["row_group"] == 0


def test_a_file_rewritten_under_the_run_is_refused(path: Path) -> None:
    source = ParquetSource(path)
    source.read(rows(0))
    parquet.write_table(table(100), path)
    with pytest.raises(SourceChangedError):
        source.read(rows(400))
    with pytest.raises(SourceChangedError):
        through_pickle(source).read(rows(400))


def test_the_fingerprint_follows_content_not_place_and_knows_its_beginning(path: Path, tmp_path: Path) -> None:
    before = ParquetSource(path).fingerprint()
    (tmp_path / "moved").mkdir()
    copy = tmp_path / "moved" / "z.parquet"
    copy.write_bytes(path.read_bytes())
    assert ParquetSource(copy).fingerprint() == before
    parquet.write_table(table(50, ROWS), path.with_name("b.parquet"))
    grown = ParquetSource(path.parent)
    assert grown.fingerprint() != before
    assert grown.fingerprint(ROWS) == before
    parquet.write_table(table(start=1), copy, row_group_size=60)
    assert ParquetSource(copy).fingerprint() != before


def test_a_file_rewritten_in_place_is_noticed_though_its_rows_are_held_decoded(tmp_path: Path) -> None:
    place = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"n": [1, 2, 3]}), place)
    source = ParquetSource(place)
    source.read(np.arange(3))
    content = place.read_bytes()
    place.write_bytes(content)
    assert plain(source.read(np.arange(3)), "n").tolist() == [1, 2, 3]  # written again, and the same
    parquet.write_table(pa.table({"n": [4, 5, 6]}), place)
    with pytest.raises(SourceChangedError, match="changed while it was being read"):
        source.read(np.arange(3))


def test_rows_that_changed_places_inside_a_row_group_change_the_fingerprint(path: Path, tmp_path: Path) -> None:
    order = np.arange(ROWS)
    order[:60] = order[:60][::-1]
    (tmp_path / "other").mkdir()
    parquet.write_table(table().take(pa.array(order)), tmp_path / "other" / "a.parquet", row_group_size=60)
    assert ParquetSource(tmp_path / "other").fingerprint() != ParquetSource(path).fingerprint()


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 50))
def test_the_cache_of_decoded_pieces_never_exceeds_its_limit_by_more_than_the_piece_in_use(
    keys: list[int], limit: int
) -> None:
    cache: DecodedCache[bytes] = DecodedCache(limit, len)
    for key in keys:
        assert cache.get(key, lambda key=key: bytes(key)) == bytes(key)  # type: ignore[misc]
        assert cache.total <= limit or len(cache) == 1


def test_a_piece_that_failed_to_decode_is_tried_again() -> None:
    cache: DecodedCache[bytes] = DecodedCache(10, len)

    def fail() -> bytes:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cache.get(1, fail)
    assert cache.get(1, lambda: b"good") == b"good"


def test_damage_is_always_an_error_of_ours(tmp_path: Path) -> None:
    """Arrow itself aborts on rare footers (it lets a C++ exception escape): a child tries, and the next one goes on."""
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"a": range(50), "s": [f"row {n}" for n in range(50)]}), path, row_group_size=20)
    sound = path.read_bytes()
    generator = np.random.default_rng(0)
    flips = generator.integers((len(sound), 8), size=(60, 2)).tolist()
    ended = b""
    while len(ended) < len(flips):
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for place, bit in flips[len(ended) :]:
                os.write(tell, outcome_of_damage(path, sound, place, bit))
            os._exit(0)
        os.close(tell)
        with open(told, "rb") as outcomes:
            ended += outcomes.read()
        _, status = os.waitpid(child, 0)
        ended += b"!" if os.WIFSIGNALED(status) else b""
    assert ended.count(b"n") > 10
    assert b"f" not in ended, "foreign exceptions"
    assert b"u" not in ended, "errors that name no file"


def outcome_of_damage(path: Path, sound: bytes, place: int, bit: int) -> bytes:
    """Read a file with a flipped bit: ``r``ead, refused by ``n``ame, ``u``nnamed, or a ``f``oreign error."""
    damaged = bytearray(sound)
    damaged[place] ^= 1 << bit
    path.write_bytes(damaged)
    try:
        source = ParquetSource(path)
        source.read(np.arange(len(source)))
    except HoldfastError as error:
        return b"n" if str(path) in str(error) else b"u"
    except BaseException:
        return b"f"
    return b"r"
