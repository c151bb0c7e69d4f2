"""JsonlSource reads any line of any JSON-lines file as `json.loads` would, at stable dtypes."""

from __future__ import annotations

import gzip
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources.support import plain, ragged, rows, through_pickle

from holdfast.errors import ConfigError, SourceChangedError, SourceFormatError
from holdfast.sources import JsonlSource
from holdfast.testing import check_source

integers = st.integers(-(2**63), 2**63 - 1)
records = st.fixed_dictionaries(
    {
        "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        "count": integers,
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "good": st.booleans(),
        "ids": st.lists(integers, min_size=1, max_size=5),
    }
)


def write(path: Path, lines: list[Any], *, end: str = "\n", last: bool = True) -> Path:
    text = end.join(json.dumps(line, ensure_ascii=len(str(line)) % 2 == 0) for line in lines)
    path.write_bytes((text + (end if last else "")).encode())
    return path


@given(
    files=st.lists(st.lists(records, min_size=1, max_size=8), min_size=1, max_size=3),
    end=st.sampled_from(["\n", "\r\n", "\n\n", "\n\r\n"]),
    last=st.booleans(),
    data=st.data(),
)
def test_any_file_reads_as_json_loads_would(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[Any]], end: str, last: bool, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    for number, lines in enumerate(files):
        write(folder / f"{number}.jsonl", lines, end=end, last=last)
    expected = [line for lines in files for line in lines]
    source = JsonlSource(folder)
    assert len(source) == len(expected)
    picks = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=12))
    columns = source.read(np.array(picks, dtype=np.int64))
    wanted = [expected[pick] for pick in picks]
    assert ragged(columns, "text").to_strings() == [line["text"] for line in wanted]
    assert plain(columns, "count").tolist() == [line["count"] for line in wanted]
    assert plain(columns, "score").tolist() == [line["score"] for line in wanted]
    assert plain(columns, "good").tolist() == [line["good"] for line in wanted]
    assert [row.tolist() for row in ragged(columns, "ids")] == [line["ids"] for line in wanted]


def sample_lines(count: int = 300) -> list[dict[str, Any]]:
    return [
        {"id": i, "text": "wörd " * (i % 7), "score": i / 2 if i % 3 else i, "ids": list(range(i % 4))}
        for i in range(count)
    ]


def test_it_keeps_the_contract(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", sample_lines())
    write(tmp_path / "b.jsonl", sample_lines(50), last=False)
    source = JsonlSource(tmp_path)
    check_source(source)
    assert source.shards() == [300, 50]
    assert source.kinds == {"id": "int64", "text": "text", "score": "float64", "ids": "list[int64]"}


def test_it_keeps_the_contract_with_nested_fields(tmp_path: Path) -> None:
    lines = [{"id": i, "messages": [{"role": "user", "content": str(i)}]} for i in range(100)]
    source = JsonlSource(write(tmp_path / "chat.jsonl", lines))
    check_source(source)
    assert plain(source.read(rows(7)), "messages")[0] == lines[7]["messages"]


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path / "a.jsonl", sample_lines()), columns=["text"])
    assert list(source.read(rows(1))) == ["text"]


def test_a_column_no_line_has_is_refused(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path / "a.jsonl", sample_lines()), columns=["txet"])
    with pytest.raises(ConfigError, match="txet"):
        len(source)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path / "a.jsonl", sample_lines()), schema={"id": "integer"})
    with pytest.raises(ConfigError, match="unknown kinds"):
        len(source)


def test_a_stated_kind_overrules_what_the_lines_suggest(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path / "a.jsonl", sample_lines()), schema={"id": "float64", "rare": "object"})
    columns = source.read(rows(3))
    assert plain(columns, "id").dtype == np.float64
    assert plain(columns, "rare").tolist() == [None]


def test_a_missing_number_is_nan_where_there_is_one_and_an_error_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"f": 1.5, "i": 1, "t": "x"}, {"f": None, "i": 2, "t": "y"}, {"f": 2.5}])
    assert np.isnan(plain(JsonlSource(path, columns=["f"]).read(rows(0, 1)), "f")[1])
    with pytest.raises(SourceFormatError, match="fill_null") as caught:
        JsonlSource(path).read(rows(0, 2))
    assert (caught.value.column, caught.value.row) == ("i", 2)
    filled = JsonlSource(path, fill_null={"i": -1, "t": "", "f": 0.0}).read(rows(2, 1))
    assert plain(filled, "i").tolist() == [-1, 2]
    assert ragged(filled, "t").to_strings() == ["", "y"]
    assert plain(filled, "f").tolist() == [2.5, 0.0]


def test_a_missing_list_is_what_fill_null_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"l": [1, 2], "n": 1}, {"l": None, "n": 2}, {"n": 3}])
    filled = JsonlSource(path, fill_null={"l": [9]}).read(rows(1, 0, 2))
    assert [row.tolist() for row in ragged(filled, "l")] == [[9], [1, 2], [9]]


def test_fill_null_of_another_type_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"i": 1}, {"i": None}])
    with pytest.raises(SourceFormatError, match="not of the column's type"):
        JsonlSource(path, fill_null={"i": "none"}).read(rows(1))


def late_surprise(path: Path, line: str) -> Path:
    """A file whose odd line is not among those looked at when the index is built."""
    lines = [json.dumps({"id": i, "text": "t", "nested": None}) for i in range(5000)]
    lines[4] = line
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": 1, "text": "t"', "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        ('{"id": 1.5, "text": "t"}', "float64, but the column is int64"),
        ('{"id": 1, "text": 7}', "int64, but the column is text"),
        ('{"id": null, "text": "t"}', "null"),
    ],
)
@pytest.mark.parametrize("columns", [["id", "text"], ["id", "text", "nested"]], ids=["in bulk", "as objects"])
def test_a_line_that_does_not_fit_is_named(tmp_path: Path, line: str, message: str, columns: list[str]) -> None:
    source = JsonlSource(late_surprise(tmp_path / "a.jsonl", line), columns=columns)
    assert len(source.read(rows(0, 1, 2, 3, 5))["id"]) == 5
    with pytest.raises(SourceFormatError, match=message) as caught:
        source.read(rows(3, 4, 5))
    assert str(caught.value.file).endswith("a.jsonl")
    assert 4 in (caught.value.where.get("index"), caught.value.where.get("row"))


@pytest.mark.parametrize("line", ["{bad", "[]", "7"])
def test_a_bad_line_among_those_looked_at_is_named_by_its_byte(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(SourceFormatError) as caught:
        len(JsonlSource(tmp_path / "a.jsonl"))
    assert caught.value.byte == 9


def test_integers_beyond_64_bits_come_as_python_objects(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path / "a.jsonl", [{"n": 2**70}, {"n": 1}]))
    assert plain(source.read(rows(0)), "n").tolist() == [2**70]


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}\n{"a": 2}\n')
    assert plain(JsonlSource(tmp_path / "a.jsonl").read(rows(0, 1)), "a").tolist() == [1, 2]


@pytest.mark.parametrize("magic", [b"\x1f\x8b\x08\x00", b"\x28\xb5\x2f\xfd\x00"])
def test_a_compressed_file_is_refused_with_a_way_out(tmp_path: Path, magic: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(magic + bytes(100))
    with pytest.raises(SourceFormatError, match="decompress"):
        len(JsonlSource(tmp_path / "a.jsonl"))


def test_the_command_unpacks_a_compressed_file_whose_name_does_not_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"a": 7}\n'))
    with pytest.raises(SourceFormatError, match="gzip-compressed") as caught:
        len(JsonlSource(tmp_path / "a.jsonl"))
    subprocess.run(caught.value.where["command"], shell=True, check=True)  # as people paste it
    assert plain(JsonlSource(tmp_path / "a.jsonl.unpacked.jsonl").read(rows(0)), "a").tolist() == [7]


@pytest.mark.parametrize("files", [1, 3])
def test_the_command_an_error_gives_unpacks_a_compressed_folder(tmp_path: Path, files: int) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(b'{"a": %d}\n' % number))
    for number in range(files):
        with pytest.raises(SourceFormatError, match="gzip-compressed") as caught:
            len(JsonlSource([folder / f"{n}.jsonl{'' if n < number else '.gz'}" for n in range(files)]))
        if number == 0:
            with pytest.raises(SourceFormatError, match="gzip-compressed"):
                JsonlSource(folder)
        subprocess.run(shlex.split(caught.value.where["command"]), check=True)
    source = JsonlSource(folder)
    assert plain(source.read(rows(files - 1)), "a").tolist() == [files - 1]


def test_a_null_inside_a_list_is_named_or_filled(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"l": [1, 2]}] * 700 + [{"l": [3, None]}] + [{"l": [1]}] * 700)
    source = JsonlSource(path, schema={"l": "list[int64]"})
    with pytest.raises(SourceFormatError, match="inside a list") as caught:
        source.read(rows(3, 700))
    assert caught.value.row == 700
    filled = JsonlSource(path, schema={"l": "list[int64]"}, fill_null={"l": -1}).read(rows(700, 3))
    assert [row.tolist() for row in ragged(filled, "l")] == [[3, -1], [1, 2]]


def test_an_empty_file_beside_others_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    write(tmp_path / "b.jsonl", [{"a": 1}])
    source = JsonlSource(tmp_path)
    assert source.shards() == [0, 1]
    check_source(source)


def test_lines_across_the_pieces_of_the_scan_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.sources import jsonl

    monkeypatch.setattr(jsonl, "_FETCH_BYTES", 29)
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", 7)
    source = JsonlSource(write(tmp_path / "a.jsonl", sample_lines(40)))
    assert plain(source.read(np.arange(40)), "id").tolist() == list(range(40))


def test_a_file_rewritten_under_the_run_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", sample_lines())
    source = JsonlSource(path)
    source.read(rows(0))
    write(path, sample_lines(2))
    with pytest.raises(SourceChangedError):
        source.read(rows(200))
    with pytest.raises(SourceChangedError):
        through_pickle(source).read(rows(200))


def test_the_same_lines_elsewhere_have_the_same_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    one = JsonlSource(write(tmp_path / "a.jsonl", sample_lines()))
    other = JsonlSource(write(tmp_path / "x" / "b.jsonl", sample_lines()))
    longer = JsonlSource(write(tmp_path / "x" / "c.jsonl", sample_lines(301)))
    assert one.fingerprint() == other.fingerprint() != longer.fingerprint()
    assert longer.fingerprint(300) == one.fingerprint()


def test_a_field_whose_name_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1, "\\ud800": 2}\n')
    with pytest.raises(SourceFormatError, match="not Unicode") as refused:
        JsonlSource(file).read(np.arange(1))
    str(refused.value).encode()  # can be printed
