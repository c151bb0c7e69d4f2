"""Footers of remote Parquet files: one request for each, whatever the server makes of it, and none for those kept."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.sources.servers import FaultyServer
from tests.sources.support import plain

from holdfast.errors import RemoteReadError, SourceChangedError, SourceFormatError
from holdfast.sources import ParquetSource, RemoteOptions
from holdfast.sources import parquet_footer as footers

FILES, ROWS = 12, 300


def _table(first: int, *, about: dict[str, str] | None = None) -> bytes:
    packed = io.BytesIO()
    table = pa.table({"n": np.arange(first, first + ROWS)}).replace_schema_metadata(about)
    parquet.write_table(table, packed, compression=None, use_dictionary=False)
    return packed.getvalue()


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    files = {f"{number:02}.parquet": _table(number * ROWS) for number in range(FILES)}
    with FaultyServer(files) as running:
        running.tags = {name: f'"{name}"' for name in files}
        yield running


@pytest.fixture
def options(tmp_path: Path) -> RemoteOptions:
    return RemoteOptions(cache_dir=tmp_path / "blocks", first_pause=0.001, longest_pause=0.002)


def _open(server: FaultyServer, options: RemoteOptions) -> ParquetSource:
    source = ParquetSource([server.url(name) for name in sorted(server.files)], remote=options)
    len(source)
    return source


def _assert_reads_all(source: ParquetSource) -> None:
    assert plain(source.read(np.arange(len(source))), "n").tolist() == list(range(FILES * ROWS))


def test_files_are_opened_with_one_request_each(server: FaultyServer, options: RemoteOptions) -> None:
    source = _open(server, options)
    assert len(server.headers) == FILES
    _assert_reads_all(source)


def test_files_opened_before_are_asked_for_their_version_only(server: FaultyServer, options: RemoteOptions) -> None:
    _open(server, options)
    server.headers.clear()
    server.ranges.clear()
    source = _open(server, options)
    assert (len(server.headers), server.heads, server.ranges) == (FILES, FILES, [])
    _assert_reads_all(source)


def test_of_files_opened_before_those_that_changed_are_read_again(server: FaultyServer, options: RemoteOptions) -> None:
    _open(server, options)
    server.files["03.parquet"] = _table(7_000)
    server.tags["03.parquet"] = '"new"'
    server.files["99.parquet"] = _table(8_000)
    server.ranges.clear()
    source = _open(server, options)
    assert sorted(name for name, _, _ in server.ranges) == ["03.parquet", "99.parquet"]
    found = plain(source.read(np.array([3 * ROWS, FILES * ROWS])), "n").tolist()
    assert found == [7_000, 8_000]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("suffixes", ["ignored", "first", "unsized", "416"])
def test_a_server_that_cannot_send_the_end_of_a_file_is_asked_for_its_size_first(
    server: FaultyServer, tmp_path: Path, suffixes: str, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "TAIL_BYTES", 1024)  # less than a file
    server.suffixes = suffixes
    options = RemoteOptions(cache_dir=tmp_path / "blocks", cache_limit=2**30 if cached else 0, max_connections=1)
    source = _open(server, options)
    asked = len(server.headers)
    assert asked == (3 * FILES if suffixes == "416" else 2 * FILES + 1)  # it is asked in vain once
    _assert_reads_all(source)


def test_a_server_that_sends_no_ranges_at_all_is_refused_by_name(
    server: FaultyServer, options: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footers, "TAIL_BYTES", 1024)
    server.faults.extend(["whole"] * 10 * FILES)
    with pytest.raises(RemoteReadError, match="does not send byte ranges"):
        _open(server, options)


def test_files_that_come_as_a_whole_are_taken_where_they_are_short(
    server: FaultyServer, options: RemoteOptions
) -> None:
    server.suffixes = "ignored"
    source = _open(server, options)
    assert len(server.headers) == FILES
    _assert_reads_all(source)


def test_a_footer_longer_than_what_is_asked_for_at_first_is_read_in_two(
    server: FaultyServer, options: RemoteOptions
) -> None:
    server.files = {"long.parquet": _table(0, about={"note": "x" * 2 * footers.TAIL_BYTES})}
    source = _open(server, options)
    assert len(server.headers) == 2
    assert plain(source.read(np.array([5])), "n").tolist() == [5]


@pytest.mark.parametrize("content", [b"", b"P", b"PAR1PAR1", b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_refused_by_name(
    server: FaultyServer, options: RemoteOptions, content: bytes
) -> None:
    server.files["05.parquet"] = content
    with pytest.raises(SourceFormatError, match=r"05\.parquet"):
        _open(server, options)


@pytest.mark.parametrize("fault", ["500", "503", "429", "reset", "truncated", "short"])
def test_a_transient_fault_is_tried_again(server: FaultyServer, options: RemoteOptions, fault: str) -> None:
    server.faults.extend([fault, "ok", fault])
    _assert_reads_all(_open(server, options))


def test_a_file_that_changes_between_its_footer_and_its_rows_is_noticed(
    server: FaultyServer, options: RemoteOptions
) -> None:
    source = _open(server, options)
    server.tags["02.parquet"] = '"new"'
    with pytest.raises(SourceChangedError, match=r"02\.parquet"):
        source.read(np.array([2 * ROWS]))


def test_footers_kept_from_before_are_not_believed_where_they_are_damaged(
    server: FaultyServer, options: RemoteOptions
) -> None:
    _open(server, options)
    kept = [path for path in (options.folder() / "footers").iterdir() if path.is_file()]
    assert len(kept) == 1  # not one for each
    for path in kept:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    _assert_reads_all(_open(server, options))
