from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.jobs import dataset_of

from holdfast.cli import main as cli
from holdfast.order import Adaptive, HashBased, Partition, Stratified
from holdfast.stream import StreamingConfig, StreamingShardLoader


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.run([*arguments])
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


@pytest.fixture
def loader(tmp_path: Path) -> StreamingShardLoader:
    """A run resumed at another size, skipped something, and saved beside."""
    first = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=2))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(world_size=2, rank=0, batch_size=3, epochs=2))
    second.load_state_dict(first.state_dict())
    next(iter(second))
    second.save(tmp_path)
    return second


@pytest.mark.parametrize("step", [0, 2, 3, 4, 9])
def test_samples_of_any_step_come_from_the_state_file_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loader: StreamingShardLoader, step: int
) -> None:
    code, out, _ = run(capsys, "samples", str(tmp_path), "--step", str(step), "--json")
    assert code == 0
    told = json.loads(out)["samples"]
    assert [(ref["source"], ref["index"], ref["rank"]) for ref in told] == [
        (ref.source, ref.index, ref.rank) for ref in loader.samples_in(step)
    ]


def test_one_rank_may_be_asked_for_and_the_table_names_the_samples(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loader: StreamingShardLoader
) -> None:
    code, out, _ = run(capsys, "samples", str(tmp_path), "--step", "4", "--rank", "1")
    assert code == 0
    for ref in loader.samples_in(4, rank=1):
        assert f" {ref.index} " in out
    assert "step 4" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", "99"), "no such step"),
        (("--step", "-1"), "'--step'"),
        (("--step", "4", "--rank", "7"), "rank"),
    ],
)
@pytest.mark.usefixtures("loader")
def test_a_step_or_rank_that_is_not_there_exits_two_with_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = run(capsys, "samples", str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_file_that_is_no_state_exits_two(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    code, _, err = run(capsys, "samples", str(tmp_path / "x.json"), "--step", "0")
    assert code == 2
    assert "not a holdfast stream state" in err


def test_long_and_odd_names_of_sources_are_shown_whole(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "corpus." * 20 + "[bold]wiki"
    state = str(StreamingShardLoader(dataset_of({name: 40})).save(tmp_path))
    for arguments in (("samples", state, "--step", "2"), ("when", state, name, "2"), ("inspect", state)):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert name in out


KEYS = np.arange(40) // 3
LABELLED: list[tuple[Partition, Any]] = [
    (Stratified(np.arange(40) % 3), np.arange(40) % 3),
    (HashBased(8, key=KEYS), KEYS),
    (HashBased(8, key=KEYS.astype(str)), KEYS.astype(str)),
    (Adaptive(Stratified(np.arange(40) % 3)), np.arange(40) % 3),
]


@pytest.mark.parametrize(("partition", "labels"), LABELLED, ids=["stratified", "keys", "text keys", "adaptive"])
def test_a_partition_by_labels_takes_them_from_a_file_that_the_state_recognises(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, partition: Partition, labels: Any
) -> None:
    config = StreamingConfig(world_size=2, rank=0, batch_size=4, partition_strategy=partition)
    loader = StreamingShardLoader(dataset_of({"a": 40}), config)
    state = str(loader.save(tmp_path))
    right, wrong = str(tmp_path / "right.npy"), str(tmp_path / "wrong.npy")
    np.save(right, labels)
    np.save(wrong, labels[::-1])
    code, out, _ = run(capsys, "samples", state, "--step", "2", "--labels", right, "--json")
    assert code == 0
    assert [ref["index"] for ref in json.loads(out)["samples"]] == [ref.index for ref in loader.samples_in(2)]
    code, out, _ = run(capsys, "when", state, "a", "7", "--labels", right, "--json")
    assert json.loads(out)["seen"] == [entry._asdict() for entry in loader.when("a", 7)]
    for arguments, said in (((), "--labels"), (("--labels", wrong), "not the ones"), (("--labels", state), "np.save")):
        code, out, err = run(capsys, "samples", state, "--step", "2", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.strip().splitlines()) == 1


def test_labels_for_a_partition_that_needs_none_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, loader: StreamingShardLoader
) -> None:
    np.save(tmp_path / "labels.npy", np.arange(40))
    state, labels = str(loader.save(tmp_path)), str(tmp_path / "labels.npy")
    code, _, err = run(capsys, "samples", state, "--step", "2", "--labels", labels)
    assert code == 2
    assert "round_robin" in err
