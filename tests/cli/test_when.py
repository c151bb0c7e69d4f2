from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.stream.jobs import dataset_of

from holdfast.cli import main as cli
from holdfast.stream import StreamingConfig, StreamingShardLoader


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.run([*arguments])
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


@pytest.fixture
def loader(tmp_path: Path) -> StreamingShardLoader:
    found = StreamingShardLoader(dataset_of({"a": 40, "b": 20}), StreamingConfig(batch_size=4))
    iterator = iter(found)
    for _ in range(20):
        next(iterator)
    found.skip(samples={"a": [7]})
    found.save(tmp_path)
    return found


def test_when_says_what_the_loader_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loader: StreamingShardLoader
) -> None:
    code, out, _ = run(capsys, "when", str(tmp_path), "b", "11", "--json")
    assert code == 0
    assert json.loads(out)["seen"] == [entry._asdict() for entry in loader.when("b", 11)]
    code, out, _ = run(capsys, "when", str(tmp_path), "b", "11", "--epochs", "5", "--json")
    assert len(json.loads(out)["seen"]) == 5


@pytest.mark.usefixtures("loader")
def test_the_table_says_what_was_read_what_is_to_come_and_what_is_skipped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, _ = run(capsys, "when", str(tmp_path), "a", "7", "--epochs", "4")
    assert code == 0
    assert "skipped" in out
    _, out, _ = run(capsys, "when", str(tmp_path), "a", "8", "--epochs", "4")
    assert "read" in out
    assert "to come" in out


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(("source", "index", "said"), [("c", "0", "no such source"), ("a", "40", "40")])
def test_a_sample_that_is_not_there_exits_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, source: str, index: str, said: str
) -> None:
    code, _, err = run(capsys, "when", str(tmp_path), source, index)
    assert code == 2
    assert said in err


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["5", "--epochs", "0"], "'--epochs'"),
        (["5", "--epochs", "-1"], "'--epochs'"),
        (["5", "--epochs", "1000000000"], "100000"),
        (["-5"], "an argument cannot be negative: -5"),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    code, out, err = run(capsys, "when", str(tmp_path), "a", *words)
    assert (code, out) == (2, "")
    assert said in err
