"""Thousands of files: no descriptor is held per file, and a folder has one index."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SourceFormatError
from holdfast.sources import JsonlSource, ParquetSource, Source, TarSource, TokenFileSource, files, jsonl
from holdfast.testing import check_source

FILES = 150
DESCRIPTORS = 64


def _jsonl(path: Path, number: int) -> None:
    lines = [json.dumps({"n": 2 * number + line}) + "\n" for line in range(2)]
    path.with_suffix(".jsonl").write_text("".join(lines))


def _tar(path: Path, number: int) -> None:
    with tarfile.open(path.with_suffix(".tar"), "w") as archive:
        for line in range(2):
            member = tarfile.TarInfo(f"{2 * number + line:06d}.txt")
            member.size = 8
            archive.addfile(member, io.BytesIO(b"%08d" % (2 * number + line)))


def _tokens(path: Path, number: int) -> None:
    np.arange(8 * number, 8 * number + 8, dtype="<u2").tofile(path.with_suffix(".bin"))


def _parquet(path: Path, number: int) -> None:
    parquet.write_table(pa.table({"n": [2 * number, 2 * number + 1]}), path.with_suffix(".parquet"))


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "JsonlSource": _jsonl,
    "TarSource": _tar,
    "TokenFileSource": _tokens,
    "ParquetSource": _parquet,
}
READ_UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from holdfast import sources
kind, folder, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
source = getattr(sources, kind)(folder, *([4] if kind == "TokenFileSource" else []))
for _ in range(2):
    columns = source.read(np.arange(len(source))[::-1].copy())
print(len(source), len(columns))
"""


@pytest.mark.parametrize("kind", WRITERS)
def test_more_files_than_descriptors_are_read(kind: str, tmp_path: Path) -> None:
    for number in range(FILES):
        WRITERS[kind](tmp_path / f"{number:05d}", number)
    run = subprocess.run(
        [sys.executable, "-c", READ_UNDER_A_LIMIT, kind, str(tmp_path), str(DESCRIPTORS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    assert run.stdout.split()[0] == str(2 * FILES)


def _open(kind: str, folder: Path) -> Source:
    if kind == "TokenFileSource":
        return TokenFileSource(folder, 4)
    if kind == "ParquetSource":
        return ParquetSource(folder)
    return JsonlSource(folder) if kind == "JsonlSource" else TarSource(folder)


@pytest.mark.parametrize("kind", WRITERS)
def test_files_used_longest_ago_are_closed_and_opened_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        WRITERS[kind](tmp_path / f"{number:05d}", number)
    monkeypatch.setattr(files, "MAX_MAPPED", 3)
    source = _open(kind, tmp_path)
    check_source(source)
    mapped = sum(file._values is not None for file in source._files)  # type: ignore[attr-defined]
    assert mapped <= 3


@pytest.mark.parametrize("kind", ["JsonlSource", "TarSource"])
def test_a_folder_of_small_files_has_one_index(kind: str, tmp_path: Path) -> None:
    for number in range(FILES):
        WRITERS[kind](tmp_path / f"{number:05d}", number)
    first = _open(kind, tmp_path).read(np.arange(2 * FILES))
    assert sum("index" in name for name in os.listdir(tmp_path)) == 1
    again = _open(kind, tmp_path).read(np.arange(2 * FILES))
    assert {name: list(column) for name, column in again.items() if not hasattr(column, "offsets")} == {
        name: list(column) for name, column in first.items() if not hasattr(column, "offsets")
    }


@pytest.mark.parametrize("kind", ["JsonlSource", "TarSource"])
def test_of_a_folder_only_files_that_changed_are_looked_through_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        WRITERS[kind](tmp_path / f"{number:05d}", number)
    len(_open(kind, tmp_path))
    WRITERS[kind](tmp_path / "00003", 77)
    WRITERS[kind](tmp_path / "00010", 10)
    module = sys.modules[f"holdfast.sources.{'jsonl' if kind == 'JsonlSource' else 'tar'}"]
    looked: list[str] = []
    build = module._build_indexes

    def counted(files: list[files.DataFile], **options: int) -> object:
        looked.extend(Path(file.name).stem for file in files)
        return build(files, **options)

    monkeypatch.setattr(module, "_build_indexes", counted)
    source = _open(kind, tmp_path)
    assert len(source) == 22
    assert sorted(looked) == ["00003", "00010"]
    column = source.read(np.array([6, 7, 21]))["n" if kind == "JsonlSource" else "txt"]
    found = column.tolist() if kind == "JsonlSource" else [int(text) for text in column.to_bytes()]  # type: ignore[union-attr]
    assert found == [154, 155, 21]


def test_two_sources_over_one_folder_do_not_take_the_index_from_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        _jsonl(tmp_path / f"{'train' if number % 2 else 'test'}-{number}", number)
    for name in ("train", "test"):
        assert len(JsonlSource(f"{tmp_path}/{name}-*.jsonl")) == 8
    monkeypatch.delattr(jsonl, "_build_together")
    for name in ("train", "test", "train"):
        assert len(JsonlSource(f"{tmp_path}/{name}-*.jsonl")) == 8


def test_a_file_named_twice_is_read_twice(tmp_path: Path) -> None:
    for number in range(2):
        _jsonl(tmp_path / str(number), number)
    source = JsonlSource([tmp_path / "0.jsonl", tmp_path / "1.jsonl", tmp_path / "0.jsonl"])
    assert source.read(np.arange(6))["n"].tolist() == [0, 1, 2, 3, 0, 1]  # type: ignore[union-attr]


PIECES = [b'{"a": 1}', b'{"b": "x"}', b"\n", b"\n", b"\r\n", b" \n", b"\xef\xbb\xbf", b"no JSON"]


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join), min_size=2, max_size=6))
def test_files_looked_through_together_have_the_lines_they_have_alone(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found: list[files.DataFile] = []
        for number, content in enumerate(contents):
            path = Path(folder) / f"{number}.jsonl"
            path.write_bytes(content)
            found.append(files.LocalFile(path))
        try:
            alone = [jsonl._build_index(file, 3) for file in found]
        except SourceFormatError:
            with pytest.raises(SourceFormatError):
                jsonl._build_indexes(found, looked_at=3)
            return
        for one, other in zip(alone, jsonl._build_indexes(found, looked_at=3), strict=True):
            assert one.arrays["starts"].tolist() == other.arrays["starts"].tolist()
            assert one.arrays["stops"].tolist() == other.arrays["stops"].tolist()
            assert one.about == other.about


def _noted(calls: list[str], call: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **options: Any) -> Any:
        calls.append(call.__name__)
        return call(*arguments, **options)

    return noted


@pytest.mark.parametrize("found_before", [False, True], ids=["no index", "an index"])
@pytest.mark.parametrize("kind", WRITERS)
def test_opening_a_folder_takes_four_system_calls_per_file(
    kind: str, found_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    calls: list[str] = []
    for name in ("open", "fstat", "pread", "read", "stat", "lstat", "close"):
        monkeypatch.setattr(os, name, _noted(calls, getattr(os, name)))
    for count in (10, 30):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            WRITERS[kind](folder / f"{number:05d}", number)
        if found_before:
            len(_open(kind, folder))
        calls.clear()
        assert len(_open(kind, folder)) == 2 * count
        counts.append(len(calls))
    assert counts[1] - counts[0] == 4 * 20  # open, fstat, pread, close
