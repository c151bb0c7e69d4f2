"""An index is built once, used again only while it fits its file, and is data, never code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged, rows

from holdfast.sources import JsonlSource, TarSource
from holdfast.sources.files import DataFile, LocalFile
from holdfast.sources.index_file import cached_indexes
from holdfast.sources.saved_index import Index


class Builder:
    """Builds the same index each time and counts how often."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self, files: Sequence[DataFile]) -> list[Index]:
        self.built += 1
        return [Index({"starts": np.arange(100), "keys": np.arange(7, dtype=np.uint8)}, {"columns": ["a", "b"]})]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 1000)
    return path


def index_of(data: Path, builder: Builder, folder: Path | None = None) -> Index:
    return cached_indexes([LocalFile(data)], "lines", builder, has_form=lambda index: True, folder=folder)[0]


def test_it_is_built_once_and_lies_beside_its_file(data: Path) -> None:
    builder = Builder()
    for _ in range(3):
        index = index_of(data, builder)
        assert index.arrays["starts"].tolist() == list(range(100))
        assert index.arrays["keys"].tolist() == list(range(7))
        assert index.about == {"columns": ["a", "b"]}
    assert builder.built == 1
    assert (data.parent / "data.jsonl.lines-index").is_file()
    assert [path.name for path in data.parent.iterdir()].count("data.jsonl.lines-index") == 1


def test_it_goes_to_the_folder_named(data: Path, tmp_path: Path) -> None:
    builder = Builder()
    index_of(data, builder, tmp_path / "indexes")
    index_of(data, builder, tmp_path / "indexes")
    assert builder.built == 1
    assert len(list((tmp_path / "indexes").iterdir())) == 1
    assert not (data.parent / "data.jsonl.lines-index").exists()


def test_it_goes_to_the_cache_of_the_user_where_the_folder_takes_no_file(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (data.parent / "data.jsonl.lines-index").mkdir()  # stands for a folder that cannot be written, also for root
    builder = Builder()
    index_of(data, builder)
    index_of(data, builder)
    assert builder.built == 1
    assert len(list((tmp_path / "home" / ".cache" / "holdfast" / "indexes").iterdir())) == 1


def test_it_works_where_nothing_can_be_written(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    builder = Builder()
    assert len(index_of(data, builder, tmp_path / "file").arrays["starts"]) == 100
    assert builder.built == 1


def test_another_size_makes_it_anew(data: Path) -> None:
    builder = Builder()
    index_of(data, builder)
    data.write_bytes(data.read_bytes() + b'{"a": 2}\n')
    index_of(data, builder)
    assert builder.built == 2


def test_another_time_makes_it_anew(data: Path) -> None:
    builder = Builder()
    index_of(data, builder)
    os.utime(data, ns=(1, 1))
    index_of(data, builder)
    assert builder.built == 2


def test_other_content_of_the_same_size_and_time_makes_it_anew(data: Path) -> None:
    builder = Builder()
    index_of(data, builder)
    found = data.stat()
    data.write_bytes(b'{"b": 2}\n' * 1000)
    os.utime(data, ns=(found.st_atime_ns, found.st_mtime_ns))
    index_of(data, builder)
    assert builder.built == 2


def test_another_kind_never_fits(data: Path, tmp_path: Path) -> None:
    builder = Builder()
    index_of(data, builder, tmp_path / "indexes")
    written = next((tmp_path / "indexes").iterdir())
    written.rename(written.with_name(written.name.replace("lines-index", "tar-index")))
    cached_indexes([LocalFile(data)], "tar", builder, has_form=lambda index: True, folder=tmp_path / "indexes")
    assert builder.built == 2


@given(damage=st.data())
def test_any_flipped_or_missing_byte_makes_it_anew(
    tmp_path_factory: pytest.TempPathFactory, damage: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    data = folder / "data.jsonl"
    data.write_bytes(b"{}\n" * 50)
    builder = Builder()
    index_of(data, builder)
    place = folder / "data.jsonl.lines-index"
    raw = bytearray(place.read_bytes())
    if damage.draw(st.booleans()):
        raw[damage.draw(st.integers(0, len(raw) - 1))] ^= damage.draw(st.integers(1, 255))
    else:
        raw = raw[: damage.draw(st.integers(0, len(raw) - 1))]
    place.write_bytes(raw)
    index = index_of(data, builder)
    assert builder.built == 2
    assert index.arrays["starts"].tolist() == list(range(100))


def forge(place: Path, change: Any) -> None:
    """Rewrite the header as an attacker would, with a digest that fits."""
    raw = place.read_bytes()
    size = int.from_bytes(raw[16:24], "little")
    header = json.loads(raw[24 : 24 + size])
    change(header)
    text = json.dumps(header).encode()
    body = raw[:16] + len(text).to_bytes(8, "little") + text + raw[24 + size : -32]
    place.write_bytes(body + hashlib.blake2b(body, digest_size=32).digest())


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["arrays"].update(starts=["|O", 10, 0]),
        lambda header: header["arrays"].update(starts=["<i8", 10**9, 0]),
        lambda header: header["arrays"].update(starts=["<i8", 10, -80]),
        lambda header: header["arrays"].update(starts=["<i8", -1, 0]),
        lambda header: header.update(arrays=[1, 2]),
        lambda header: header.update(about=7),
        lambda header: header.pop("arrays"),
    ],
    ids=["objects", "too many", "before the start", "negative", "no mapping", "no about", "no arrays"],
)
def test_a_forged_header_is_not_believed(data: Path, change: Any) -> None:
    builder = Builder()
    index_of(data, builder)
    forge(data.parent / "data.jsonl.lines-index", change)
    assert index_of(data, builder).arrays["starts"].tolist() == list(range(100))
    assert builder.built == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["about"].update(fields=7),
        lambda header: header["about"].update(fields={"a": 7}),
        lambda header: header["about"].pop("fields"),
        lambda header: header["arrays"].pop("stops"),
        lambda header: header["arrays"].update(stops=["<i8", 3, 0]),
        lambda header: header["arrays"].update(stops=["|u1", 1000, 0]),
    ],
    ids=["fields are no mapping", "kinds are no text", "no fields", "no stops", "few stops", "stops of bytes"],
)
def test_an_index_of_lines_without_the_right_form_is_built_anew(data: Path, change: Any) -> None:
    assert len(JsonlSource(data)) == 1000
    forge(data.parent / "data.jsonl.lines-index", change)
    assert plain(JsonlSource(data).read(rows(999)), "a").tolist() == [1]


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["about"].update(columns={"txt": 0}),
        lambda header: header["about"].update(columns=["txt", "png"]),
        lambda header: header["arrays"].pop("keys"),
        lambda header: header["arrays"].update(keys=["|u1", 1, 0]),
        lambda header: header["arrays"].update(starts_0=["<i8", 1, 0]),
    ],
    ids=["columns are no list", "a column more", "no keys", "few keys", "few starts"],
)
def test_an_index_of_a_tar_without_the_right_form_is_built_anew(tmp_path: Path, change: Any) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(5):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = 4
            archive.addfile(member, io.BytesIO(b"text"))
    assert len(TarSource(tmp_path / "a.tar")) == 5
    forge(tmp_path / "a.tar.tar-index", change)
    assert ragged(TarSource(tmp_path / "a.tar").read(rows(4)), "txt").to_bytes() == [b"text"]


def test_a_forged_index_cannot_make_a_source_read_outside_its_file(data: Path) -> None:
    from holdfast.errors import SourceChangedError

    len(JsonlSource(data))
    place = data.parent / "data.jsonl.lines-index"
    raw = bytearray(place.read_bytes()[:-32])
    size = int.from_bytes(raw[16:24], "little")
    stops = np.frombuffer(raw, dtype="<i8", offset=24 + size)
    stops[1000:] += 10**9  # the array of line ends follows the one of line starts
    place.write_bytes(raw + hashlib.blake2b(raw, digest_size=32).digest())
    with pytest.raises(SourceChangedError, match="outside the file"):
        JsonlSource(data).read(rows(5))
