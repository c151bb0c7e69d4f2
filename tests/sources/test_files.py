"""Names become files in one place: paths, globs, folders, URLs and lists of them."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import rows, through_pickle

from holdfast.errors import ConfigError, RemoteReadError, SourceChangedError, SourceError, SourceFormatError
from holdfast.sources import RemoteOptions
from holdfast.sources.files import DataFile, LocalFile, find_files, gather_by_file
from holdfast.sources.remote import RemoteFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    for name in ("b.bin", "a.bin", "notes.txt", "deep/c.bin"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def names(paths: object) -> list[str]:
    found = find_files(paths, suffixes=(".bin",))  # type: ignore[arg-type]
    return [Path(file.name).name for file in found]


def test_a_path_is_itself_whatever_its_suffix(folder: Path) -> None:
    assert names(folder / "notes.txt") == ["notes.txt"]


def test_a_folder_is_its_files_of_the_right_kind_in_order(folder: Path) -> None:
    assert names(str(folder)) == ["a.bin", "b.bin"]


def test_a_glob_is_what_it_matches_in_order(folder: Path) -> None:
    assert names(f"{folder}/*.bin") == ["a.bin", "b.bin"]
    assert names(f"{folder}/**/*.bin") == ["a.bin", "b.bin", "c.bin"]


def test_a_list_keeps_the_order_given(folder: Path) -> None:
    assert names([folder / "b.bin", folder / "a.bin"]) == ["b.bin", "a.bin"]


def test_a_file_url_is_a_local_file(folder: Path) -> None:
    assert names(f"file://{folder}/a.bin") == ["a.bin"]
    assert not find_files(f"file://{folder}/a.bin", suffixes=(".bin",))[0].is_remote


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path: Path) -> None:
    (tmp_path / "part[1].bin").write_bytes(b"x")
    assert names(tmp_path / "part[1].bin") == ["part[1].bin"]


@pytest.mark.parametrize("name", ["missing.bin", "*.parquet", "deep/nothing"])
def test_what_matches_nothing_is_refused_by_name(folder: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"no such file|matches no file"):
        names(folder / name)


def test_a_folder_without_such_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no \.bin file"):
        names(tmp_path)


@pytest.mark.parametrize("name", ["a.txt.gz", "*.gz", "http://localhost:1/a.txt.zst"])
def test_a_name_that_says_that_a_file_is_compressed_is_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"")
    with pytest.raises(SourceFormatError, match="no random access"):
        find_files(name if "://" in name else tmp_path / name, suffixes=(".txt",))


def test_no_names_at_all_are_refused() -> None:
    with pytest.raises(SourceError, match="no file was named"):
        names([])


def test_a_url_of_no_known_kind_is_refused() -> None:
    with pytest.raises(SourceError, match="nosuch"):
        names("nosuch://bucket/a.bin")


def test_remote_folders_and_globs_are_listed() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    for name in ("b.bin", "a.bin", "c.txt"):
        system.pipe_file(f"/listing/{name}", name.encode())
    assert names("memory://listing") == ["a.bin", "b.bin"]
    assert names("memory://listing/*.txt") == ["c.txt"]
    with pytest.raises(SourceError, match="matches no file"):
        names("memory://listing/*.tar")


def test_a_remote_file_that_is_not_there_is_refused_at_once() -> None:
    file = find_files("memory://listing/none.bin", suffixes=(".bin",), remote=RemoteOptions(first_pause=1000))[0]
    with pytest.raises(RemoteReadError) as caught:
        file.stamp()
    assert caught.value.attempts == 1


def test_ranges_come_in_the_order_asked_for(folder: Path) -> None:
    file = LocalFile(folder / "notes.txt")
    assert file.gather(rows(6, 0, 0), rows(9, 5, 0)).to_bytes() == [b"txt", b"notes", b""]


def test_ranges_outside_the_file_are_refused(folder: Path) -> None:
    with pytest.raises(SourceChangedError, match="outside the file"):
        LocalFile(folder / "a.bin").gather(rows(0), rows(100))


def test_a_copy_refuses_a_file_replaced_since_the_first_look(folder: Path) -> None:
    file = LocalFile(folder / "a.bin")
    file.stamp()
    copy = through_pickle(file)
    (folder / "a.bin").write_bytes(b"something else")
    with pytest.raises(SourceChangedError):
        copy.read(0, 1)


@pytest.mark.parametrize("size", [100, 10**6])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_written_again_with_the_same_content_is_read_on(tmp_path: Path, size: int, in_place: bool) -> None:
    content = np.random.default_rng(1).bytes(size)
    path = tmp_path / "a.bin"
    path.write_bytes(content)
    file = LocalFile(path)
    assert file.read(0, 10) == content[:10]
    copy = through_pickle(file)
    if in_place:
        path.write_bytes(content)
    else:
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").replace(path)
    os.utime(path, (1, 1))
    assert file.read(size - 10, size) == copy.read(size - 10, size) == content[-10:]


@pytest.mark.parametrize("size", [100, 10**6])
def test_a_file_written_again_with_other_content_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"a" * size)
    file = LocalFile(path)
    assert file.read(0, 1) == b"a"
    path.write_bytes(b"b" * size)
    os.utime(path, (1, 1))
    with pytest.raises(SourceChangedError, match="changed while it was being read"):
        file.read(0, 1)


def test_a_file_that_was_removed_is_read_on_from_its_map(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    file = LocalFile(path)
    assert file.read(0, 3) == b"abc"
    path.unlink()
    assert file.read(1, 3) == b"bc"
    with pytest.raises(SourceError, match="cannot"):
        through_pickle(file).read(0, 1)


def test_an_empty_file_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    file = LocalFile(tmp_path / "empty.bin")
    assert file.size == 0
    assert len(file.values()) == 0
    assert file.gather(np.empty(0, np.int64), np.empty(0, np.int64)).to_bytes() == []


@pytest.mark.parametrize("options", [{"block_size": 0}, {"attempts": 0}, {"cache_limit": -1}, {"timeout": 0}])
def test_remote_options_that_cannot_work_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        RemoteOptions(**options)  # type: ignore[arg-type]


CONTENTS = [bytes((31 * place + number) % 256 for place in range(size)) for number, size in enumerate((0, 700, 20_000))]
spans = st.integers(0, 2).flatmap(
    lambda number: st.tuples(
        st.just(number), st.lists(st.integers(0, len(CONTENTS[number])), min_size=2, max_size=2).map(sorted)
    )
)


@given(asked=st.lists(spans, min_size=1, max_size=20), remote=st.sets(st.integers(0, 2)))
def test_ranges_of_local_and_remote_files_come_in_the_order_they_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, list[int]]], remote: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    files: list[DataFile] = []
    for number, content in enumerate(CONTENTS):
        if number in remote:
            fsspec.filesystem("memory").pipe_file(f"/mixed/{number}", content)
            files.append(RemoteFile(f"memory://mixed/{number}", RemoteOptions(cache_limit=0)))
        else:
            (folder / str(number)).write_bytes(content)
            files.append(LocalFile(folder / str(number)))
    owner = np.array([number for number, _ in asked])
    touched = np.unique(owner).tolist()
    places = [np.flatnonzero(owner == number) for number in touched]
    starts, stops = (np.array([span[end] for _, span in asked], dtype=np.int64) for end in range(2))
    found = gather_by_file([files[number] for number in touched], places, starts, stops)
    assert found.to_bytes() == [CONTENTS[number][start:stop] for number, (start, stop) in asked]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (4, 6)])
def test_a_range_outside_one_of_several_files_names_that_file(tmp_path: Path, start: int, stop: int) -> None:
    for name in ("whole", "short"):
        (tmp_path / name).write_bytes(b"bytes")
    files = [LocalFile(tmp_path / name) for name in ("whole", "short")]
    with pytest.raises(SourceChangedError, match="outside the file") as caught:
        gather_by_file(files, [rows(1), rows(0)], rows(start, 0), rows(stop, 5))
    assert caught.value.where["file"] == str(tmp_path / "short")
