from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.calling import call
from tests.stream.jobs import dataset_of, numbers

from holdfast.cli import main as cli
from holdfast.order import Stratified
from holdfast.run import Run, RunOptions
from holdfast.stream import StreamingConfig, StreamingShardLoader


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.run(["inspect", *arguments])
    out, err = capsys.readouterr()
    return int(str(caught.value.code)), out, err


def saved(folder: Path, **options: object) -> Path:
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4, **options))  # type: ignore[arg-type]
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)
    return loader.save(folder)


def test_a_state_is_shown_with_its_sources_and_segments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path)
    for target in (path, tmp_path):
        code, out, _ = run(capsys, str(target), "--json")
        assert code == 0
        told = json.loads(out)
        assert (told["step"], told["epoch"], told["position"], told["partition"]) == (12, 1, 48, "round_robin")
        (source,) = told["sources"]
        assert source.pop("fingerprint") == numbers(40).fingerprint()
        assert source == {"name": "a", "length": 40, "samples": 48, "epoch": 1, "place": 8}
        assert told["segments"] == [{"from_step": 0, "world_size": 1, "global_batch_size": 4, "skips": 0}]
    code, out, _ = run(capsys, str(path))
    assert code == 0
    assert "next step 12" in out


def test_a_state_that_needs_labels_is_shown_without_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path, partition_strategy=Stratified(np.arange(40) % 2))
    code, out, _ = run(capsys, str(path), "--json")
    assert code == 0
    assert json.loads(out)["sources"] == [{"name": "a", "length": 40, "fingerprint": numbers(40).fingerprint()}]


def test_a_torn_state_exits_two_and_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    code, _, err = run(capsys, str(path))
    assert code == 2
    assert "torn" in err


def test_a_run_is_inspected_as_the_list_of_runs_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(1, 1)
    loader = StreamingShardLoader(dataset_of({"a": 40}), StreamingConfig(batch_size=4))
    options = RunOptions(handle_signals=False)
    with Run(tmp_path / "run", model=model, loader=loader, steps=3, monitor=False, options=options) as made:
        for _ in made:
            made.step(loss=1.0)
    shown = json.loads(call(capsys, "inspect", tmp_path / "run", "--json").out)
    assert (shown["steps"], shown["attempts"]) == (3, 1)
    (row,) = json.loads(call(capsys, "runs", tmp_path, "--json").out)["runs"]
    assert row == {**shown, "verdict": row["verdict"]}
    assert "steps" in call(capsys, "inspect", tmp_path / "run").out
