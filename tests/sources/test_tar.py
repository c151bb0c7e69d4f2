"""TarSource reads webdataset tars as they are, sample by sample, whatever header format wrote them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import ragged, rows

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources import TarSource
from holdfast.sources.files import LocalFile
from holdfast.sources.tar_members import _walk_plain
from holdfast.testing import check_source


def write(path: Path, members: list[tuple[str, bytes]], tar_format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def samples(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    members = []
    for number in range(start, start + count):
        members.append((f"{number:06d}.jpg", bytes([number % 256]) * (number * 37 % 900)))
        members.append((f"{number:06d}.cls", str(number).encode()))
    return members


# Parts of names that force every way a tar can store one: short, over 100 bytes, over 255 bytes, not ASCII.
folders = st.sampled_from(["", "a/", "train/" * 20, "deep/" * 70, "ünï/"])


@given(
    shards=st.lists(
        st.lists(st.tuples(folders, st.binary(max_size=1200)), min_size=1, max_size=6), min_size=1, max_size=3
    ),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    data=st.data(),
)
def test_any_tars_give_their_members_by_sample(
    tmp_path_factory: pytest.TempPathFactory,
    shards: list[list[tuple[str, bytes]]],
    tar_format: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("tars")
    expected: list[tuple[str, bytes]] = []
    for number, shard in enumerate(shards):
        named = [(f"{prefix}{number}-{place}", content) for place, (prefix, content) in enumerate(shard)]
        members = [pair for key, body in named for pair in ((f"{key}.txt", body), (f"{key}.meta.json", body[::-1]))]
        write(folder / f"{number}.tar", members, tar_format)
        expected += named
    source = TarSource(folder)
    assert source.shards() == [len(shard) for shard in shards]
    picks = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=10))
    columns = source.read(np.array(picks, dtype=np.int64))
    assert ragged(columns, "__key__").to_strings() == [expected[pick][0] for pick in picks]
    assert ragged(columns, "txt").to_bytes() == [expected[pick][1] for pick in picks]
    assert ragged(columns, "meta.json").to_bytes() == [expected[pick][1][::-1] for pick in picks]


@given(
    names=st.lists(st.tuples(folders, st.sampled_from(["0", "5", "1", "2", "7"])), min_size=1, max_size=6),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    flips=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=2),
)
def test_members_read_from_plain_headers_are_those_that_tarfile_finds(
    tmp_path_factory: pytest.TempPathFactory,
    names: list[tuple[str, str]],
    tar_format: int,
    flips: list[tuple[int, int]],
) -> None:
    path = tmp_path_factory.mktemp("plain") / "a.tar"
    with tarfile.open(path, "w", format=tar_format) as archive:
        for place, (folder, kind) in enumerate(names):
            member = tarfile.TarInfo(f"{folder if len(folder) < 200 else 'd/'}{place}.txt")
            member.type, member.linkname = kind.encode(), "0.txt"
            member.size = place * 300 if kind in "07" else 0
            archive.addfile(member, io.BytesIO(bytes([65 + place]) * member.size))
    damaged = bytearray(path.read_bytes())
    for at, value in flips:
        damaged[at % len(damaged)] = value
    path.write_bytes(damaged)
    plain = _walk_plain(LocalFile(path))
    if plain is None:
        return
    with tarfile.open(path, "r:") as archive:
        assert plain == [(member.name, member.offset_data, member.size) for member in archive if member.isreg()]


def test_ordinary_archives_of_every_format_are_read_from_their_headers(tmp_path: Path) -> None:
    for number, tar_format in enumerate([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]):
        path = write(tmp_path / f"{number}.tar", samples(3), tar_format)
        assert [name for name, _, _ in _walk_plain(LocalFile(path)) or ()] == [name for name, _ in samples(3)]


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", samples(50))
    write(tmp_path / "b.tar", samples(30, 50), tarfile.PAX_FORMAT)
    source = TarSource(tmp_path)
    check_source(source)
    assert source.shards() == [50, 30]


def test_only_the_extensions_asked_for_are_read(tmp_path: Path) -> None:
    source = TarSource(write(tmp_path / "a.tar", samples(10)), columns=["cls"])
    assert list(source.read(rows(3))) == ["__key__", "cls"]
    assert source.bytes_read == 1


def test_an_extension_no_sample_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="png"):
        len(TarSource(write(tmp_path / "a.tar", samples(3)), columns=["png"]))


def test_a_sample_that_lacks_a_member_is_refused_by_its_key(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [*samples(3), ("000003.jpg", b"alone")])
    with pytest.raises(SourceFormatError, match="lacks the column 'cls'") as caught:
        len(TarSource(path))
    assert caught.value.where["key"] == "000003"
    source = TarSource(path, missing="empty")
    assert ragged(source.read(rows(3, 2)), "cls").to_bytes() == [b"", b"2"]
    check_source(source)
    assert len(TarSource(path, columns=["jpg"])) == 4


def test_an_unknown_way_with_missing_members_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        TarSource(write(tmp_path / "a.tar", samples(3)), missing="drop")  # type: ignore[arg-type]


def test_the_same_member_twice_in_a_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceFormatError, match="twice"):
        len(TarSource(write(tmp_path / "a.tar", [("a.txt", b"1"), ("a.txt", b"2")])))


@pytest.mark.parametrize("name", ["caf\udce9.txt", "cafe.t\udce9"])
def test_a_name_that_is_not_utf_8_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceFormatError, match="UTF-8") as refused:
        len(TarSource(write(tmp_path / "a.tar", [("a.txt", b"1"), (name, b"2")])))
    str(refused.value).encode()  # can be printed


def test_folders_links_and_dot_files_are_no_samples(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        folder = tarfile.TarInfo("train.set")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        for name in ("train.set/.DS_Store", "train.set/README", "./train.set/one.txt"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    source = TarSource(tmp_path / "a.tar")
    with pytest.warns(UserWarning, match=r"symbolic links or devices and are not read, 'link.txt' first"):
        assert ragged(source.read(rows(0)), "__key__").to_strings() == ["train.set/one"]
    assert len(source) == 1


def damage_header(raw: bytearray, place: int) -> None:
    raw[place : place + 8] = b"\xff" * 8


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_tar_cut_short_is_refused(tmp_path: Path, keep: float) -> None:
    members = [(f"{number}.bin", bytes(5000)) for number in range(20)]
    path = write(tmp_path / "a.tar", members)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(20 * 5632 * keep) + 1000])
    with pytest.raises(SourceFormatError, match="tar"):
        len(TarSource(path))


def test_a_damaged_header_is_refused_and_never_taken_for_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", [(f"{number}.bin", bytes(512)) for number in range(20)])
    raw = bytearray(path.read_bytes())
    damage_header(raw, 10 * 1024 + 148)
    path.write_bytes(raw)
    with pytest.raises(SourceFormatError, match="damaged header") as caught:
        len(TarSource(path))
    assert caught.value.byte == 10 * 1024


@pytest.mark.parametrize("content", [b"", b"not a tar at all " * 100, b"\x1f\x8b" + bytes(600)])
def test_what_is_no_tar_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceFormatError, match=r"a\.tar"):
        len(TarSource(tmp_path / "a.tar"))


def test_a_second_opening_walks_no_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tar", samples(20))
    first = TarSource(path).read(rows(5))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the tar was walked again")

    monkeypatch.setattr(tarfile, "open", refuse)
    again = TarSource(path).read(rows(5))
    assert ragged(again, "jpg").to_bytes() == ragged(first, "jpg").to_bytes()


_LINKED = (("0.txt", b"same", ""), ("1.txt", b"", "0.txt"), ("2.txt", b"other", ""), ("3.txt", b"", "2.txt"))


def test_hard_links_are_the_files_they_link_to(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as archive:
        for name, data, linked in _LINKED:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            if linked:
                member.type, member.linkname = tarfile.LNKTYPE, linked
            archive.addfile(member, io.BytesIO(data))
    source = TarSource(tmp_path / "t.tar")
    assert [bytes(row) for row in ragged(source.read(np.arange(4)), "txt")] == [b"same", b"same", b"other", b"other"]
    check_source(source)


@pytest.mark.parametrize(
    ("kind", "name", "linked", "said"),
    [
        (tarfile.LNKTYPE, "1.txt", "nowhere.txt", "does not come before it"),
        (tarfile.REGTYPE, "1.__key__", "", "reserved for the key"),
    ],
)
def test_members_that_would_be_lost_or_forged_are_refused(
    kind: bytes, name: str, linked: str, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.tar", [("0.txt", b"x")])
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, linked
        archive.addfile(member, io.BytesIO(b""))
    with pytest.raises(SourceFormatError, match=said):
        len(TarSource(path))
