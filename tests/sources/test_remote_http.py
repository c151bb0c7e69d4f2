"""Remote files over a real HTTP server: by byte ranges, each block fetched once, through every transient fault."""

from __future__ import annotations

import io
import json
import multiprocessing
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.servers import FaultyServer
from tests.sources.support import answer_first_values, plain, ragged, rows, through_pickle

from holdfast.errors import ConfigError, RemoteReadError, SourceChangedError, SourceError
from holdfast.sources import JsonlSource, ParquetSource, RemoteOptions, Source, TarSource, TokenFileSource
from holdfast.sources.block_cache import BlockCache
from holdfast.sources.fetch.process import fetcher_of
from holdfast.sources.fetch.ranges import Ranges
from holdfast.sources.files import find_files
from holdfast.sources.remote import RemoteFile, gather_files
from holdfast.testing import check_source

BLOB = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8).tobytes()
BLOCK = 1000


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    tokens = np.arange(5000, dtype=np.uint16).tobytes()
    lines = "".join(json.dumps({"id": i, "text": f"line {i}"}) + "\n" for i in range(500)).encode()
    table = pa.table({"id": np.arange(500), "text": [f"row {i}" for i in range(500)]})
    packed = io.BytesIO()
    parquet.write_table(table, packed, row_group_size=100)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for i in range(60):
            member = tarfile.TarInfo(f"{i:04d}.txt")
            member.size = i
            tar.addfile(member, io.BytesIO(b"x" * i))
    files = {
        "blob": BLOB,
        "tokens.bin": tokens,
        "lines.jsonl": lines,
        "table.parquet": packed.getvalue(),
        "shard.tar": archive.getvalue(),
    }
    with FaultyServer(files) as running:
        yield running


@pytest.fixture
def options(tmp_path: Path) -> RemoteOptions:
    return RemoteOptions(cache_dir=tmp_path / "blocks", block_size=BLOCK, first_pause=0.001, longest_pause=0.002)


def blob(server: FaultyServer, options: RemoteOptions) -> RemoteFile:
    return RemoteFile(server.url("blob"), options)


@given(spans=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)).map(sorted), max_size=12))
def test_any_ranges_equal_slices_of_the_file(tmp_path_factory: pytest.TempPathFactory, spans: list[list[int]]) -> None:
    options = RemoteOptions(cache_dir=tmp_path_factory.mktemp("blocks"), block_size=977)
    found = RemoteFile("memory://blobs/blob", options).gather(
        rows(*(a for a, _ in spans)), rows(*(b for _, b in spans))
    )
    assert found.to_bytes() == [BLOB[start:stop] for start, stop in spans]


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3_000), min_size=2, max_size=2).map(sorted)),
        min_size=1,
        max_size=12,
    ),
    follow=st.booleans(),
    limit=st.sampled_from([2_000, 2**28]),
)
def test_any_ranges_of_many_files_come_in_the_order_they_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, list[int]]], follow: bool, limit: int
) -> None:
    options = RemoteOptions(cache_dir=tmp_path_factory.mktemp("blocks"), block_size=977, memory_limit=limit)
    files = [RemoteFile(f"memory://blobs/{number}", options) for number in range(3)]
    asked = [(number, start, stop) for number, (start, stop) in spans]
    if follow:  # each range also as two that follow each other
        asked = [one for number, start, stop in asked for one in ((number, start, start), (number, start, stop))]
        asked += [(number, stop, 3_000) for number, _, stop in asked[-1:]]
    found = gather_files(files, Ranges(*(rows(*column) for column in zip(*asked, strict=True))))
    assert found.to_bytes() == [BLOB[3_000 * number :][start:stop] for number, start, stop in asked]


@pytest.fixture(autouse=True, scope="module")
def _blob_in_memory() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/blobs/blob", BLOB)
    for number in range(3):
        fsspec.filesystem("memory").pipe_file(f"/blobs/{number}", BLOB[3_000 * number : 3_000 * (number + 1)])


def test_a_process_counts_what_its_cache_folder_holds_once_and_not_for_every_file(
    server: FaultyServer, options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    count = BlockCache._make_room

    def make_room(cache: BlockCache, need: int) -> int:
        counts.append(need)
        return count(cache, need)

    monkeypatch.setattr(BlockCache, "_make_room", make_room)
    for name in ("blob", "tokens.bin", "lines.jsonl", "shard.tar"):
        RemoteFile(server.url(name), options).gather(np.array([0]), np.array([10]))
    fetcher_of(options).wait_until_idle()
    assert len(list(options.folder().glob("*/*.blocks"))) == 4
    assert len(counts) == 1


def test_only_the_blocks_touched_are_fetched_and_each_only_once(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    for _ in range(3):
        assert file.read(1500, 2500) == BLOB[1500:2500]
        assert file.gather(rows(1900, 9999, 1200), rows(2100, 10_000, 1201)).to_bytes() == [
            BLOB[1900:2100],
            BLOB[9999:],
            BLOB[1200:1201],
        ]
    assert sorted(server.ranges) == [("blob", 1000, 2000), ("blob", 2000, 3000), ("blob", 9000, 10_000)]


def test_without_a_cache_every_read_goes_to_the_server(server: FaultyServer, options: RemoteOptions) -> None:
    file = RemoteFile(server.url("blob"), RemoteOptions(cache_limit=0, memory_limit=0, block_size=BLOCK))
    file.read(0, 10)
    file.read(0, 10)
    assert server.ranges == [("blob", 0, 1000)] * 2


def test_the_cache_stays_within_its_limit_and_reads_stay_right(server: FaultyServer, tmp_path: Path) -> None:
    limit = 3 * 4096  # a file system keeps no block in less than a page
    small = RemoteOptions(cache_dir=tmp_path / "blocks", block_size=BLOCK, cache_limit=limit, memory_limit=0)
    file = blob(server, small)
    for start in [*range(0, 9_700, 500), *range(0, 9_700, 700)]:
        assert file.read(start, start + 300) == BLOB[start : start + 300]
        fetcher_of(small).wait_until_idle()  # blocks are kept, and others dropped, beside the reading
        held = [path.stat().st_blocks * 512 for path in (tmp_path / "blocks").glob("*/*.blocks")]
        assert held
        assert sum(held) <= limit


def test_a_damaged_block_in_the_cache_is_fetched_again(server: FaultyServer, options: RemoteOptions) -> None:
    options = replace(options, memory_limit=0)
    blob(server, options).read(0, 10)
    fetcher_of(options).wait_until_idle()
    for path in options.folder().glob("*/*.blocks"):
        path.write_bytes(b"\x00" * path.stat().st_size)
    assert blob(server, options).read(0, 10) == BLOB[:10]
    assert len(server.ranges) == 2


def test_another_version_of_the_file_does_not_get_the_old_blocks(server: FaultyServer, options: RemoteOptions) -> None:
    blob(server, options).read(0, 10)
    server.files["blob"] = BLOB[::-1]
    server.tags["blob"] = '"two"'
    assert blob(server, options).read(0, 10) == BLOB[::-1][:10]


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset", "truncated", "short"])
def test_a_transient_fault_is_tried_again(server: FaultyServer, options: RemoteOptions, fault: str) -> None:
    file = blob(server, options)
    file.stamp()
    server.faults.extend([fault, fault])
    assert file.read(0, 3000) == BLOB[:3000]
    assert not server.faults


@given(faults=st.lists(st.sampled_from(["500", "reset", "truncated", "short", "ok"]), max_size=5))
def test_any_run_of_faults_shorter_than_the_attempts_is_survived(
    faulty: tuple[FaultyServer, Path], faults: list[str]
) -> None:
    server, _ = faulty
    patient = RemoteOptions(
        cache_limit=0, memory_limit=0, block_size=BLOCK, attempts=6, first_pause=0.0001, longest_pause=0.0002
    )
    file = blob(server, patient)
    file.stamp()
    server.faults.clear()
    server.faults.extend(faults)
    assert file.read(500, 1500) == BLOB[500:1500]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyServer, Path]]:
    with FaultyServer({"blob": BLOB}) as running:
        yield running, tmp_path_factory.mktemp("faulty")


def test_a_fault_that_stays_is_raised_with_its_cause_after_the_last_attempt(
    server: FaultyServer, tmp_path: Path
) -> None:
    impatient = RemoteOptions(cache_dir=tmp_path / "blocks", block_size=BLOCK, attempts=3, first_pause=0.001)
    file = blob(server, impatient)
    file.stamp()
    server.faults.extend(["500"] * 10)
    with pytest.raises(RemoteReadError) as caught:
        file.read(0, 10)
    assert caught.value.attempts == 3
    assert caught.value.file == server.url("blob")
    assert caught.value.__cause__ is not None
    assert len(server.faults) == 7


def test_what_cannot_heal_is_raised_at_once(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    file.stamp()
    server.faults.extend(["404"])
    with pytest.raises(RemoteReadError, match="check the URL") as caught:
        file.read(0, 10)
    assert caught.value.attempts == 1
    assert isinstance(caught.value, OSError)


def test_blocks_that_arrived_before_a_fault_are_not_fetched_again(server: FaultyServer, options: RemoteOptions) -> None:
    file = blob(server, options)
    file.stamp()
    server.faults.extend(["500"])
    assert file.read(0, 10_000) == BLOB
    assert sum(stop - start for _, start, stop in server.ranges) == 10_000  # the one that failed sent no range


def sources(server: FaultyServer, options: RemoteOptions, index_dir: Path) -> dict[str, Source]:
    return {
        "tokens": TokenFileSource(server.url("tokens.bin"), 50, remote=options),
        "lines": JsonlSource(server.url("lines.jsonl"), index_dir=index_dir, remote=options),
        "table": ParquetSource(server.url("table.parquet"), remote=options),
        "shard": TarSource(server.url("shard.tar"), index_dir=index_dir, remote=options),
    }


@pytest.mark.parametrize("name", ["tokens", "lines", "table", "shard"])
def test_every_source_over_files_keeps_the_contract_behind_a_url(
    server: FaultyServer, options: RemoteOptions, tmp_path: Path, name: str
) -> None:
    source = sources(server, options, tmp_path)[name]
    check_source(source)
    assert source.is_remote


@pytest.mark.parametrize("name", ["tokens", "lines", "table", "shard"])
def test_every_source_over_files_reads_through_faults(
    server: FaultyServer, options: RemoteOptions, tmp_path: Path, name: str
) -> None:
    server.faults.extend(["reset", "500", "ok", "truncated", "ok", "short", "ok", "503"])
    columns = sources(server, options, tmp_path)[name].read(rows(7, 59, 7))
    if name == "tokens":
        assert plain(columns, "tokens")[1].tolist() == list(range(2950, 3000))
    elif name == "shard":
        assert [len(text) for text in ragged(columns, "txt").to_bytes()] == [7, 59, 7]
    else:
        assert plain(columns, "id").tolist() == [7, 59, 7]


def test_remote_samples_are_counted_as_such(server: FaultyServer, options: RemoteOptions, tmp_path: Path) -> None:
    for source in sources(server, options, tmp_path).values():
        source.read(rows(1, 2, 3))
        counts = source.counters.counts()
        assert (counts.samples_local, counts.samples_remote) == (0, 3)
        assert counts.bytes_read > 0


def test_a_remote_file_has_the_fingerprint_of_the_same_file_on_disk(
    server: FaultyServer, options: RemoteOptions, tmp_path: Path
) -> None:
    for name in ("tokens.bin", "lines.jsonl", "table.parquet", "shard.tar"):
        (tmp_path / name).write_bytes(server.files[name])
    remote = sources(server, options, tmp_path)
    assert remote["tokens"].fingerprint() == TokenFileSource(tmp_path / "tokens.bin", 50).fingerprint()
    assert remote["lines"].fingerprint() == JsonlSource(tmp_path / "lines.jsonl").fingerprint()
    assert remote["table"].fingerprint() == ParquetSource(tmp_path / "table.parquet").fingerprint()
    assert remote["shard"].fingerprint() == TarSource(tmp_path / "shard.tar").fingerprint()


@pytest.mark.parametrize("context", [multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")])
def test_a_source_used_by_its_parent_is_read_in_a_child_too(
    server: FaultyServer, options: RemoteOptions, context: Any
) -> None:
    source = TokenFileSource(server.url("tokens.bin"), 50, remote=options)
    source.read(rows(0))
    answers: multiprocessing.Queue[list[int]] = context.Queue()
    child = context.Process(target=answer_first_values, args=(source, rows(3, 1), "tokens", answers))
    child.start()
    assert answers.get(timeout=60) == [150, 50]
    child.join()
    assert child.exitcode == 0


def test_a_copy_knows_the_version_its_parent_saw(server: FaultyServer, options: RemoteOptions) -> None:
    file = find_files(server.url("blob"), suffixes=(".bin",), remote=options)[0]
    stamp = file.stamp()
    server.tags["blob"] = '"two"'
    assert through_pickle(file).stamp() == stamp


def test_the_columns_of_a_row_group_are_fetched_at_once_and_the_others_not_at_all(
    server: FaultyServer, tmp_path: Path
) -> None:
    options = RemoteOptions(cache_limit=0, memory_limit=0, block_size=64)
    source = ParquetSource(server.url("table.parquet"), columns=["id"], remote=options)
    len(source)
    server.ranges.clear()
    assert plain(source.read(rows(250)), "id").tolist() == [250]
    fetched = sum(stop - start for _, start, stop in server.ranges)
    assert 0 < fetched <= source.bytes_read + 2 * 64
    assert len(server.ranges) == len(set(server.ranges))


def test_a_server_that_stops_answering_is_given_up_and_asked_again(server: FaultyServer, tmp_path: Path) -> None:
    file = blob(server, RemoteOptions(cache_dir=tmp_path, block_size=BLOCK, timeout=0.5, first_pause=0.001))
    file.stamp()
    server.faults.extend(["stall"])
    assert file.read(0, 10) == BLOB[:10]
    assert not server.faults


def test_many_blocks_come_in_few_requests_and_a_fault_in_one_leaves_the_others(
    server: FaultyServer, options: RemoteOptions
) -> None:
    many = replace(options, block_size=50, max_connections=8)
    file = blob(server, many)
    file.stamp()
    server.faults.extend(["ok"] * 4 + ["500"])
    assert file.read(0, 10_000) == BLOB
    ends = sorted((start, stop) for _, start, stop in server.ranges)
    assert [stop for _, stop in ends[:-1]] == [start for start, _ in ends[1:]]  # each byte once
    assert len(ends) <= 8 + 10_000 // 50 // 8 + 1  # the failed request's blocks come one by one


def _token_file(values: list[int]) -> bytes:
    return np.array(values, dtype=np.uint16).tobytes()


def _line_file(values: list[int]) -> bytes:
    return "".join(json.dumps({"id": value, "text": "x" * (value % 7)}) + "\n" for value in values).encode()


def _table_file(values: list[int]) -> bytes:
    packed = io.BytesIO()
    parquet.write_table(
        pa.table({"id": values}),
        packed,
        row_group_size=100,
        compression=None,
        use_dictionary=False,
        write_statistics=False,
    )
    return packed.getvalue()


@pytest.mark.parametrize(
    ("make", "open_source", "column"),
    [
        (_token_file, lambda url, options: TokenFileSource(url, 1, remote=options), "tokens"),
        # Lines of other lengths in the same places: an index of the old file would cut them in the middle.
        (_line_file, lambda url, options: JsonlSource(url, remote=options), "id"),
        (_table_file, lambda url, options: ParquetSource(url, remote=options), "id"),
    ],
)
def test_nothing_is_kept_of_a_file_whose_server_tells_no_version(
    server: FaultyServer, options: RemoteOptions, make: Any, open_source: Any, column: str
) -> None:
    server.tags["file"] = ""
    values = list(range(1000, 1500))
    for content in (values, values[::-1]):
        server.files["file"] = make(content)
        source = open_source(server.url("file"), options)
        assert plain(source.read(np.arange(20)), column).ravel().tolist() == content[:20]
    assert plain(source.read(np.arange(500)), column).ravel().tolist() == values[::-1]
    assert not list(options.folder().rglob("*.block*"))


def test_a_user_and_password_in_the_url_are_sent_and_change_nothing_else(
    server: FaultyServer, options: RemoteOptions
) -> None:
    url = server.url("blob").replace("://", "://jane:s%40crt@")
    file = RemoteFile(url, options)
    assert file.read(0, 100) == BLOB[:100]
    assert {headers.get("Authorization") for headers in server.headers} == {"Basic amFuZTpzQGNydA=="}
    server.tags["blob"] = '"two"'
    with pytest.raises(SourceChangedError) as caught:
        file.read(9000, 9100)
    assert "s%40crt" not in str(caught.value)
    assert "jane:***@" in str(caught.value)


def test_credentials_go_to_the_host_they_were_meant_for_only(server: FaultyServer, options: RemoteOptions) -> None:
    other = server.url("blob").replace("127.0.0.1", "localhost")
    server.moves["moved/blob"] = other
    file = RemoteFile(server.url("moved/blob").replace("://", "://jane:secret@"), options)
    assert file.read(0, 100) == BLOB[:100]
    assert all("Authorization" not in sent for sent in server.headers if sent["Host"].startswith("localhost"))
    assert any("Authorization" in sent for sent in server.headers)


def test_an_error_does_not_show_what_opens_a_signed_url(server: FaultyServer, options: RemoteOptions) -> None:
    url = server.url("nothing") + "?X-Amz-Signature=abcdef&X-Amz-Date=20260101"
    with pytest.raises(RemoteReadError) as caught:
        RemoteFile(url, options).stamp()
    assert "abcdef" not in str(caught.value)
    assert "20260101" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"block_size": "x"}, {"block_size": 0}, {"attempts": 1.5}, {"timeout": "1"}, {"timeout": 0}, {"cache_dir": 5},
     {"storage_options": 3}, {"max_connections": True}, {"first_pause": -1}],
)  # fmt: skip
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        RemoteOptions(**wrong)


@pytest.mark.parametrize("url", ["reference://x.jsonl", "dbfs://x.jsonl", "dir://x.jsonl", "unknown://x.jsonl"])
def test_a_url_that_no_file_system_can_open_is_refused_by_name(url: str) -> None:
    with pytest.raises(SourceError, match="fsspec cannot open this URL") as caught:
        len(JsonlSource(url))
    assert url in str(caught.value)
