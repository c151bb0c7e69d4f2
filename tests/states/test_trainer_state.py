"""The frozen state that a trainer's checkpoint holds: it continues with the samples, figures and steps it had."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from tests.stream.jobs import numbers

import holdfast as hfast
from holdfast.debug.online import OnlineDebugger
from holdfast.errors import StateError
from holdfast.integrations.finished import newest_finished
from holdfast.integrations.loop import TrainingStream
from holdfast.integrations.trainer_state import TRAINER_STATE
from holdfast.run.monitor import Monitor

FROZEN = Path(__file__).parent / "v1" / "trainer.json"


def make_stream(metrics: hfast.MetricsAggregator | None = None) -> TrainingStream:
    dataset = hfast.StreamDataset(numbers(40), name="a", seed=7)
    config = hfast.StreamingConfig(rank=0, world_size=1, batch_size=4)
    return TrainingStream(hfast.StreamingShardLoader(dataset, config), metrics=metrics)


def test_a_frozen_trainer_state_continues_as_it_did() -> None:
    kept = json.loads(FROZEN.read_text())
    metrics = hfast.MetricsAggregator()
    stream = make_stream(metrics)
    stream.load_state_dict({"holdfast": json.dumps(kept["state"])})
    assert stream.step_number == 3
    assert [batch["index"].tolist() for batch in islice(stream, 3)] == kept["then"]
    assert metrics.get_metrics()["a"]["seen"] == 12
    monitor = Monitor(OnlineDebugger())
    monitor.load_state_dict(TRAINER_STATE.from_json(kept["state"]).monitors[0])
    assert monitor.state_dict()["debugger"]["fed"] == 3


@pytest.mark.parametrize("state", [{}, {"holdfast": "{"}, {"holdfast": "{}"}, {"holdfast": '{"version": 1}'}])
def test_a_state_without_a_stream_is_refused(state: dict[str, str]) -> None:
    with pytest.raises(StateError):
        make_stream().load_state_dict(state)


def test_a_checkpoint_with_a_frozen_mark_is_whole_while_its_files_have_their_sizes(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "holdfast_finished.json").write_text(FROZEN.with_name("finished-checkpoint.json").read_text())
    (saved / "custom_checkpoint_0.pkl").write_text("abc")
    assert newest_finished(tmp_path) is None
    (saved / "model.safetensors").write_text("abcde")
    assert newest_finished(tmp_path) == str(saved)
