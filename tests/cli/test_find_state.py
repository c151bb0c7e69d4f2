from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.test_samples import run
from tests.stream.jobs import dataset_of
from torch.distributed.checkpoint.state_dict_saver import save as stock_save

import holdfast
from holdfast import checkpoint
from holdfast.stream import StreamingConfig, StreamingShardLoader


def advanced(steps: int, samples: int = 40) -> StreamingShardLoader:
    loader = StreamingShardLoader(dataset_of({"a": samples}), StreamingConfig(batch_size=4, epochs=2))
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    loader.skip(samples={"a": [7]})
    return loader


def indices(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> list[int]:
    code, out, err = run(capsys, "samples", str(path), "--step", "5", "--json", *options)
    assert code == 0, err
    return [ref["index"] for ref in json.loads(out)["samples"]]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_samples_and_when_read_the_state_out_of_a_checkpoint_by_holdfast_or_torch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loader = advanced(3)
    state = {"model": {"weight": torch.zeros(3)}, "training": {"loader": loader.state_dict()}}
    checkpoint.save(state, tmp_path / "ours", step=3)
    stock_save(state, checkpoint_id=tmp_path / "stock", no_dist=True)
    expected = [ref.index for ref in loader.samples_in(5)]
    for name in ("ours", "stock"):
        assert indices(capsys, tmp_path / name) == expected
        assert indices(capsys, tmp_path / name, "--key", "training.loader") == expected
        code, out, _ = run(capsys, "when", str(tmp_path / name), "a", "9", "--epochs", "2", "--json")
        assert code == 0
        assert json.loads(out)["seen"] == [entry._asdict() for entry in loader.when("a", 9, epochs=2)]


def test_of_several_loaders_one_must_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train, held_out = advanced(3), advanced(2, samples=50)
    checkpoint.save({"train": train, "held_out": held_out, "weight": torch.zeros(1)}, tmp_path / "c", step=1)
    code, _, err = run(capsys, "samples", str(tmp_path / "c"), "--step", "5")
    assert code == 2
    assert "train" in err
    assert "held_out" in err
    assert indices(capsys, tmp_path / "c", "--key", "held_out") == [ref.index for ref in held_out.samples_in(5)]


def test_a_run_is_asked_through_its_newest_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, epochs=2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training = holdfast.Run(tmp_path / "run", model=model, optimizer=optimizer, loader=loader, steps=6)
    for _ in training:
        training.step(loss=torch.tensor(1.0))
    expected = [ref.index for ref in loader.samples_in(5)]
    assert indices(capsys, tmp_path / "run") == expected
    (newest,) = (tmp_path / "run" / "checkpoints").glob("step-00000006")
    assert indices(capsys, newest) == expected
    code, out, _ = run(capsys, "inspect", str(newest), "--json")
    assert code == 0
    assert json.loads(out)["streams"]["loader"]["step"] == 6


def test_inspect_says_where_the_stream_in_a_checkpoint_stands(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    checkpoint.save({"loader": advanced(3), "weight": torch.zeros(2)}, tmp_path / "c", step=1)
    code, out, _ = run(capsys, "inspect", str(tmp_path / "c"))
    assert code == 0
    assert "loader: stream state saved" in out
    assert "next step 3" in out


def test_a_checkpoint_without_a_stream_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint.save({"order": torch.zeros(2), "segments": 3, "step": 1, "fingerprint": "x"}, tmp_path / "c", step=1)
    code, _, err = run(capsys, "samples", str(tmp_path / "c"), "--step", "0")
    assert code == 2
    assert "stream state" in err
    checkpoint.save({"weight": torch.zeros(2)}, tmp_path / "d", step=1)
    code, _, err = run(capsys, "samples", str(tmp_path / "d"), "--step", "0")
    assert code == 2
    assert "the checkpoint holds no stream state" in err


def test_a_key_for_a_state_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    advanced(3).save(tmp_path)
    code, _, err = run(capsys, "samples", str(tmp_path), "--step", "0", "--key", "loader")
    assert code == 2
    assert "--key" in err
