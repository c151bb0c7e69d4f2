"""`holdfast inspect DATA`: kind, samples, columns, bytes and fingerprint, as the source itself gives them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from holdfast.cli import main as cli
from holdfast.sources import JsonlSource, ParquetSource, Source, TarSource, TokenFileSource
from holdfast.stream import StreamDataset, StreamingShardLoader


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.run(["inspect", *arguments])
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    answer: dict[str, Any] = json.loads(out)
    return answer


def write_jsonl(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"text": f"line {n}", "score": n / 2}) + "\n" for n in range(count)))
    return path


def write_tar(path: Path, count: int) -> Path:
    with tarfile.open(path, "w") as archive:
        for number in range(count):
            for ending, body in (("txt", b"hello"), ("cls", b"%d" % number)):
                entry = tarfile.TarInfo(f"sample{number}.{ending}")
                entry.size = len(body)
                archive.addfile(entry, io.BytesIO(body))
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """One file of each kind."""
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    rows = pa.table({"index": np.arange(30), "words": [list(range(n % 5)) for n in range(30)]})
    parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=10)
    return {
        "jsonl": write_jsonl(tmp_path / "lines.jsonl", 7),
        "parquet": tmp_path / "rows.parquet",
        "tar": write_tar(tmp_path / "shard.tar", 4),
        "tokens": tmp_path / "tokens.bin",
    }


def source_of(kind: str, path: Path) -> Source:
    if kind == "tokens":
        return TokenFileSource(path, 128)
    if kind == "jsonl":
        return JsonlSource(path)
    return ParquetSource(path) if kind == "parquet" else TarSource(path)


@pytest.mark.parametrize(("kind", "samples", "shards"), [("jsonl", 7, 1), ("parquet", 30, 3), ("tar", 4, 1)])
def test_every_kind_says_samples_bytes_and_the_sources_own_fingerprint(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], kind: str, samples: int, shards: int
) -> None:
    found = told(capsys, str(files[kind]))
    source = source_of(kind, files[kind])
    assert (found["kind"], found["samples"], found["files"], found["shards"]) == (kind, samples, 1, shards)
    assert found["bytes"] == files[kind].stat().st_size
    assert (found["source"], found["fingerprint"]) == (type(source).__name__, source.fingerprint())
    assert {column["name"] for column in found["columns"]} == set(source.read(np.array([0])))


def test_token_files_are_cut_as_the_options_say(capsys: pytest.CaptureFixture[str], files: dict[str, Path]) -> None:
    found = told(capsys, str(files["tokens"]), "--seq-len", "128")
    assert (found["samples"], found["bytes"]) == (1000 // 128, 2000)
    assert found["columns"] == [{"name": "tokens", "dtype": "int64", "shape": [128]}]
    assert found["fingerprint"] == TokenFileSource(files["tokens"], 128).fingerprint()
    halved = told(capsys, str(files["tokens"]), "--seq-len", "100", "--dtype", "uint32", "--header-bytes", "400")
    assert halved["samples"] == (2000 - 400) // 4 // 100


def test_columns_say_what_a_row_is_made_of(capsys: pytest.CaptureFixture[str], files: dict[str, Path]) -> None:
    assert told(capsys, str(files["jsonl"]))["columns"] == [
        {"name": "text", "dtype": "text", "shape": None},
        {"name": "score", "dtype": "float64", "shape": []},
    ]
    assert told(capsys, str(files["parquet"]))["columns"] == [
        {"name": "index", "dtype": "int64", "shape": []},
        {"name": "words", "dtype": "int64", "shape": None},
    ]


def test_a_folder_and_a_glob_count_all_their_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = [write_jsonl(tmp_path / f"part{number}.jsonl", 5 + number).stat().st_size for number in range(3)]
    for name in (str(tmp_path), str(tmp_path / "part*.jsonl")):
        found = told(capsys, name)
        assert (found["files"], found["shards"], found["samples"], found["bytes"]) == (3, 3, 18, sum(sizes))


def test_an_empty_file_has_no_samples(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    found = told(capsys, str(tmp_path / "empty.jsonl"))
    assert (found["samples"], found["bytes"], found["columns"]) == (0, 0, [])


def test_the_fingerprint_is_the_one_a_stream_state_keeps(
    capsys: pytest.CaptureFixture[str], files: dict[str, Path], tmp_path: Path
) -> None:
    loader = StreamingShardLoader(StreamDataset(JsonlSource(files["jsonl"]), name="lines"))
    state = told(capsys, str(loader.save(tmp_path / "states")))
    assert state["sources"][0]["fingerprint"] == told(capsys, str(files["jsonl"]))["fingerprint"]


def test_the_table_shows_the_same(capsys: pytest.CaptureFixture[str], files: dict[str, Path]) -> None:
    code, out, _ = run(capsys, str(files["parquet"]))
    assert code == 0
    for word in ("parquet", "ParquetSource", "30 samples", "3 shards", "words", "any length", "scalar"):
        assert word in out


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tokens.bin", (), "--seq-len"),
        ("tokens.bin", ("--seq-len", "0"), "length must be at least 1"),
        ("tokens.bin", ("--seq-len", "8", "--dtype", "float16"), "float16"),
        ("tokens.bin", ("--seq-len", "8", "--dtype", "tokens"), "unknown dtype"),
        ("tokens.bin", ("--seq-len", "2000"), "long enough"),
        (".", (), "several kinds"),
        ("*.tsv", (), "matches no file"),
        ("nothing.jsonl", (), "no such file"),
        ("torn.parquet", (), "torn.parquet"),
        ("torn.jsonl", (), "torn.jsonl"),
        ("torn.tar", (), "torn.tar"),
        ("odd.csv", (), "unrecognised path"),
        ("*", (), "cannot tell the kind"),
    ],
)
@pytest.mark.usefixtures("files")
def test_data_that_cannot_be_told_exits_two_with_one_line_that_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "odd.csv").write_text("a,b\n")
    for number, ending in enumerate(("parquet", "jsonl", "tar")):
        (tmp_path / f"torn.{ending}").write_bytes(bytes(range(100 + number)) * 7)
    code, out, err = run(capsys, str(tmp_path / name), *options)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
