"""Formats of other libraries, read as they are: the samples that their own writers wrote, bit for bit."""

from __future__ import annotations

import importlib.util
import multiprocessing
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.peer_files.make import COUNT, HERE, documents, sample
from tests.sources.support import plain, ragged

from holdfast.errors import ConfigError, SourceChangedError, SourceError, SourceFormatError
from holdfast.sources import LitDataSource, MDSSource, MegatronSource, TFRecordSource
from holdfast.sources.inflate import inflate
from holdfast.testing import check_source

ALL = np.arange(COUNT)


def written(name: str) -> list[Any]:
    return [sample(number)[name] for number in range(COUNT)]


def same_arrays(found: Any, expected: list[Any]) -> bool:
    return all(
        one.dtype == other.dtype and np.array_equal(one, other.reshape(-1))
        for one, other in zip(found, expected, strict=True)
    )


# Mosaic MDS.


@pytest.mark.parametrize("name", ["raw", "zstd", "gz", "br", "bz2"])
def test_mds_shards_give_what_mosaic_wrote(name: str) -> None:
    source = MDSSource(HERE / f"mds_{name}")
    check_source(source)
    assert sum(source.shards() or ()) == COUNT
    found = source.read(ALL)
    assert plain(found, "n").tolist() == written("n")
    assert ragged(found, "text").to_strings() == written("text")
    assert ragged(found, "data").to_bytes() == written("data")
    assert same_arrays(ragged(found, "ids"), written("ids"))
    assert same_arrays(ragged(found, "matrix"), written("matrix"))
    assert plain(found, "matrix.shape").tolist() == [list(made.shape) for made in written("matrix")]
    assert plain(found, "score").tolist() == written("score")
    assert plain(found, "flag").tolist() == written("flag")
    assert plain(found, "nested").tolist() == written("nested")
    assert (plain(found, "fixed") == ALL[:, None, None]).all()
    assert plain(found, "fixed").shape == (COUNT, 2, 3)
    assert plain(found, "big").tolist() == [10**25 + number for number in range(COUNT)]
    assert plain(found, "real").tolist() == [number / 7 for number in range(COUNT)]
    assert plain(found, "exact").tolist() == [Decimal(number) / 7 for number in range(COUNT)]


def test_mds_reads_the_columns_asked_for_and_refuses_pickles_by_name() -> None:
    assert list(MDSSource(HERE / "mds_raw", columns=["ids", "n"]).read(ALL[:1])) == ["ids", "n"]
    with pytest.raises(ConfigError, match="lack the requested columns"):
        MDSSource(HERE / "mds_raw", columns=["none"])
    with pytest.raises(SourceFormatError, match="run code") as refused:
        MDSSource(HERE / "mds_pickle")
    assert refused.value.where["columns"] == ["object"]
    assert plain(MDSSource(HERE / "mds_pickle", columns=["n"]).read(ALL[:1]), "n").tolist() == [1]


def test_mds_takes_a_shard_that_lies_unpacked_beside_its_index(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "mds_zstd", tmp_path / "mds")
    whole = MDSSource(folder).read(ALL)
    for packed in folder.glob("*.zstd"):
        packed.with_suffix("").write_bytes(inflate(packed.read_bytes(), "zstd", name="").tobytes())
        packed.unlink()
    assert ragged(MDSSource(folder).read(ALL), "text").to_strings() == ragged(whole, "text").to_strings()


# LitData.


@pytest.mark.parametrize("name", ["raw", "chunk", "batch", "sample"])
def test_litdata_chunks_give_what_litdata_wrote(name: str) -> None:
    source = LitDataSource(HERE / f"litdata_{name}")
    check_source(source)
    assert source.shards() == [10, 10, 4]
    found = source.read(ALL)
    assert plain(found, "n").tolist() == written("n")
    assert ragged(found, "text").to_strings() == written("text")
    assert ragged(found, "data").to_bytes() == written("data")
    assert same_arrays(ragged(found, "ids"), written("ids"))
    assert same_arrays(ragged(found, "matrix"), written("matrix"))
    assert same_arrays(ragged(found, "array"), [made.astype(np.float64) for made in written("matrix")])
    assert plain(found, "array.shape").tolist() == [list(made.shape) for made in written("matrix")]
    assert plain(found, "flag").tolist() == written("flag")
    assert plain(found, "score").tolist() == written("score")
    assert nested_of(found) == written("nested")


@pytest.mark.parametrize(
    ("name", "open_source"),
    [("mds_zstd", MDSSource), ("litdata_chunk", LitDataSource), ("litdata_batch", LitDataSource)],
)
def test_a_compressed_shard_rewritten_in_place_is_noticed_though_it_is_held_unpacked(
    tmp_path: Path, name: str, open_source: Any
) -> None:
    folder = shutil.copytree(HERE / name, tmp_path / "data")
    source = open_source(folder)
    source.read(np.arange(len(source)))
    for packed in folder.iterdir():
        if packed.suffix != ".json":
            content = packed.read_bytes()
            packed.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SourceChangedError):
        source.read(np.array([0]))


@pytest.mark.parametrize("name", ["rows", "rows_zstd"])
def test_litdata_rows_in_an_arrow_table_give_what_litdata_wrote(name: str) -> None:
    source = LitDataSource(HERE / f"litdata_{name}")
    check_source(source)
    assert source.shards() == [10, 10, 4]
    found = source.read(ALL)
    assert plain(found, "n").tolist() == written("n")
    assert ragged(found, "text").to_strings() == written("text")
    assert ragged(found, "data").to_bytes() == written("data")
    assert plain(found, "flag").tolist() == written("flag")
    assert plain(found, "score").tolist() == written("score")
    assert nested_of(found) == written("nested")


def nested_of(found: Any) -> list[Any]:
    """Put nested values together again, however deep LitData took them apart."""
    if "nested" in found:
        return [*found["nested"]]
    lists, texts = found["nested.a"], found["nested.b"].to_strings()
    return [{"a": one, "b": other} for one, other in zip(lists, texts, strict=True)]


def test_litdata_token_chunks_are_cut_into_blocks() -> None:
    with pytest.raises(ConfigError, match="block_size"):
        LitDataSource(HERE / "litdata_tokens")
    source = LitDataSource(HERE / "litdata_tokens", block_size=64)
    check_source(source)
    tokens = [token for number in range(COUNT) for token in range(number * 10, number * 10 + 37 + number)]
    found, at = plain(source.read(np.arange(len(source))), "tokens"), 0
    for samples, chunk in zip(source.shards() or (), _chunk_tokens(source), strict=True):
        assert found[:samples].ravel().tolist() == tokens[at : at + samples * 64]
        found, at = found[samples:], at + chunk


def _chunk_tokens(source: LitDataSource) -> list[int]:
    import json

    return [chunk["dim"] for chunk in json.loads((HERE / "litdata_tokens" / "index.json").read_text())["chunks"]]


def test_litdata_refuses_pickles_by_name() -> None:
    with pytest.raises(SourceFormatError, match="run code") as refused:
        LitDataSource(HERE / "litdata_pickle")
    assert refused.value.where["columns"] == ["object"]
    assert plain(LitDataSource(HERE / "litdata_pickle", columns=["n"]).read(ALL[:3]), "n").tolist() == [0, 1, 2]


def test_litdata_takes_a_chunk_that_litdata_unpacked_in_place(tmp_path: Path) -> None:
    folder = shutil.copytree(HERE / "litdata_chunk", tmp_path / "litdata")
    for packed in folder.glob("*.zstd.bin"):
        (folder / packed.name.replace(".zstd", "")).write_bytes(inflate(packed.read_bytes(), "zstd", name="").tobytes())
        packed.unlink()
    assert ragged(LitDataSource(folder).read(ALL), "text").to_strings() == written("text")


# Megatron.


@pytest.mark.parametrize("name", ["int32", "uint16", "float32", "float64"])
def test_megatron_gives_documents_and_sequences(name: str) -> None:
    made = documents()
    source = MegatronSource(HERE / f"megatron_{name}")
    check_source(source)
    found = source.read(ALL)
    assert ragged(found, "tokens").dtype == np.dtype(name)
    assert [row.tolist() for row in ragged(found, "tokens")] == [np.concatenate(parts).tolist() for parts in made]
    assert [row.tolist() for row in ragged(found, "sequence_lengths")] == [
        [len(part) for part in parts] for parts in made
    ]
    sequences = MegatronSource(HERE / f"megatron_{name}.bin", unit="sequence")
    check_source(sequences)
    parts = [part for document in made for part in document]
    read = sequences.read(np.arange(len(parts)))
    assert [row.tolist() for row in ragged(read, "tokens")] == [part.tolist() for part in parts]
    if name == "uint16":
        assert plain(read, "modes").tolist() == [len(part) % 3 for part in parts]
        assert [row.tolist() for row in ragged(found, "modes")] == [[len(p) % 3 for p in parts] for parts in made]
    assert source.row_lengths(3, 17).tolist() == ragged(found, "tokens").row_lengths[3:17].tolist()
    assert sequences.row_lengths(3, 17).tolist() == [len(part) for part in parts[3:17]]


def test_megatron_files_of_the_old_dtype_codes_are_told_by_the_size_of_a_token(tmp_path: Path) -> None:
    for name, old_code in (("float32", 6), ("float64", 7)):
        index = bytearray((HERE / f"megatron_{name}.idx").read_bytes())
        index[17] = old_code
        (tmp_path / f"{name}.idx").write_bytes(index)
        shutil.copy(HERE / f"megatron_{name}.bin", tmp_path / f"{name}.bin")
        assert ragged(MegatronSource(tmp_path / name).read(ALL), "tokens").dtype == np.dtype(name)


def test_several_megatron_files_are_one_source_and_must_agree(tmp_path: Path) -> None:
    for number in range(2):
        for ending in ("bin", "idx"):
            shutil.copy(HERE / f"megatron_int32.{ending}", tmp_path / f"{number}.{ending}")
    source = MegatronSource(tmp_path)
    assert source.shards() == [COUNT, COUNT]
    check_source(source)
    assert source.row_lengths(20, 30).tolist() == ragged(source.read(np.arange(20, 30)), "tokens").row_lengths.tolist()
    with pytest.raises(SourceFormatError, match="dtype"):
        len(MegatronSource([HERE / "megatron_int32", HERE / "megatron_float32"]))
    (tmp_path / "0.idx").unlink()
    with pytest.raises(SourceError, match="no index next to the data file"):
        MegatronSource(tmp_path)


# TFRecord.


def copy_records(folder: Path) -> list[Path]:
    return [Path(shutil.copy(HERE / f"part-{half}.tfrecord", folder)) for half in range(2)]


def test_tfrecord_gives_the_features_of_examples(tmp_path: Path) -> None:
    source = TFRecordSource(copy_records(tmp_path))
    check_source(source)
    found = source.read(ALL)
    assert sorted(found) == ["data", "ids", "many", "matrix", "n", "score"]
    assert plain(found, "n").tolist() == written("n")
    assert ragged(found, "data").to_bytes() == written("data")
    assert plain(found, "score").tolist() == [np.float32(score) for score in written("score")]
    assert [row.tolist() for row in ragged(found, "ids")] == [
        (ids.astype(np.int64) - 2**40).tolist() for ids in written("ids")
    ]
    assert same_arrays(ragged(found, "matrix"), written("matrix"))
    assert plain(found, "many").tolist() == [[b"a" * size for size in range(number % 3 + 1)] for number in range(COUNT)]
    assert list(tmp_path.glob("*examples-index"))  # found once, and kept
    assert list(TFRecordSource(copy_records(tmp_path), columns=["ids"]).read(ALL)) == ["ids"]


def test_tfrecord_gives_whole_records_where_they_are_no_examples(tmp_path: Path) -> None:
    source = TFRecordSource(copy_records(tmp_path), examples=False)
    check_source(source)
    assert len(source) == COUNT


def test_a_damaged_record_is_refused_when_indexed_and_when_read(tmp_path: Path) -> None:
    path = copy_records(tmp_path)[0]
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[700] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(SourceFormatError, match="checksum differs") as refused:
        len(TFRecordSource(path, index_dir=tmp_path / "indexes"))
    assert refused.value.where["record"] > 0
    path.write_bytes(whole)
    source = TFRecordSource(path, index_dir=tmp_path / "indexes")
    count = len(source)
    values = source._files[0].values()  # type: ignore[attr-defined]
    broken = values.copy()
    broken[700] ^= 4
    source._files[0]._values = broken  # type: ignore[attr-defined]  # as a failing disk would
    with pytest.raises(SourceFormatError, match="checksum differs"):
        source.read(np.arange(count))


def test_a_damaged_record_among_those_of_several_files_is_named_by_its_file(tmp_path: Path) -> None:
    source = TFRecordSource(copy_records(tmp_path))
    count = len(source) // 2
    for file, record in ((0, 3), (1, 5)):
        values = source._files[file].values()  # type: ignore[attr-defined]
        broken = values.copy()
        broken[source._opened.ends[file][0][record] + 2] ^= 4
        source._files[file]._values = broken  # type: ignore[attr-defined]  # as a failing disk would
        with pytest.raises(SourceFormatError, match="checksum differs") as refused:
            source.read(np.array([1, 2 * count - 1, file * count + record, 0]))
        assert refused.value.where == {"file": source.files[file], "record": record}
        source._files[file]._values = values  # type: ignore[attr-defined]


def test_records_that_lack_a_feature_are_an_error_or_empty(tmp_path: Path) -> None:
    first, second = copy_records(tmp_path)
    second.write_bytes(second.read_bytes().replace(b"score", b"scare"))
    from holdfast.sources import tfrecord

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "_first_damaged", lambda _: None)
        with pytest.raises(SourceFormatError, match="lack the feature"):
            len(TFRecordSource([first, second]))
        found = TFRecordSource([first, second], missing="empty").read(ALL)
    assert ragged(found, "score").row_lengths.tolist() == [1] * (COUNT // 2) + [0] * (COUNT // 2)
    assert ragged(found, "scare").row_lengths.tolist() == [0] * (COUNT // 2) + [1] * (COUNT // 2)


# Through their own libraries.


def test_array_record_gives_its_records(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    from holdfast.sources import ArrayRecordSource

    source = ArrayRecordSource(HERE / "part.array_record")
    check_source(source)
    assert ragged(source.read(ALL), "record").to_bytes() == written("data")
    (tmp_path / "torn.array_record").write_bytes((HERE / "part.array_record").read_bytes()[:-50])
    with pytest.raises(SourceFormatError, match="ArrayRecord"):
        len(ArrayRecordSource(tmp_path / "torn.array_record"))


def in_process_with_lance(check: Callable[[Path], None], folder: Path) -> None:
    """Call in a process of its own: lance warns of every fork in one that has loaded it."""
    if importlib.util.find_spec("lance") is None:
        pytest.skip("lance is not installed")
    child = multiprocessing.get_context("spawn").Process(target=check, args=(folder,))
    child.start()
    child.join()
    assert child.exitcode == 0


def test_lance_gives_its_rows_at_one_version(tmp_path: Path) -> None:
    in_process_with_lance(check_lance, tmp_path)


def check_lance(folder: Path) -> None:
    import lance
    import pyarrow as pa

    from holdfast.sources import LanceSource

    table = pa.table({"n": written("n"), "text": written("text"), "ids": [ids.tolist() for ids in written("ids")]})
    lance.write_dataset(table, str(folder / "data.lance"), max_rows_per_file=10)
    source = LanceSource(folder / "data.lance")
    assert source.shards() == [10, 10, 4]
    check_source(source)
    lance.write_dataset(table, str(folder / "data.lance"), mode="append")
    source.close()
    assert len(source) == COUNT
    assert ragged(source.read(ALL), "text").to_strings() == written("text")
    with pytest.raises(SourceError, match="Lance cannot open"):
        len(LanceSource(folder / "nothing.lance"))


def test_lance_rows_that_are_held_are_the_rows_that_are_taken(tmp_path: Path) -> None:
    in_process_with_lance(check_held_rows, tmp_path)


def check_held_rows(folder: Path) -> None:
    import lance
    import pyarrow as pa

    from holdfast.sources import LanceSource

    count = 300
    table = pa.table(
        {
            "n": pa.array(range(count), pa.int32()),
            "x": pa.array([None if n % 7 == 0 else n / 3 for n in range(count)], pa.float32()),
            "text": [f"row {n}" * (n % 5) for n in range(count)],
            "ids": [list(range(n % 11)) for n in range(count)],
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(range(4 * count), pa.uint16()), 4),
            "filled": pa.array([None if n == 250 else n for n in range(count)]),
            "nested": [{"a": n, "b": [str(n)]} for n in range(count)],
        }
    )
    dataset = lance.write_dataset(table, str(folder / "data.lance"), max_rows_per_file=70)
    dataset.delete("n % 10 = 3")
    taken = LanceSource(folder / "data.lance", fill_null={"filled": -1}, cache_bytes=0)
    held = LanceSource(folder / "data.lance", fill_null={"filled": -1})
    generator = np.random.default_rng(3)
    for _ in range(20):
        rows = generator.integers(0, len(held), generator.integers(0, 64))
        for name, expected in taken.read(rows).items():
            found = held.read(rows)[name]
            assert type(found) is type(expected)
            assert found.dtype == expected.dtype
            assert [str(row) for row in found] == [str(row) for row in expected]
    assert len(held._opened.scanned) == 1  # scanned once
    assert not len(taken._opened.scanned)  # as nothing fits
    # A null that nothing replaces is an error of its row, and of no other, however many rows were read before.
    strict = LanceSource(folder / "data.lance", columns=["filled"])
    for _ in range(4):
        strict.read(np.arange(100))
    with pytest.raises(SourceError):
        strict.read(np.arange(len(strict)))
