"""Sinks: each writes what it is given, and says what is missing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import MissingDependencyError
from holdfast.metrics import JsonlSink, MlflowSink, TensorBoardSink, WandbSink


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_jsonl_writes_one_object_a_step(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "metrics.jsonl"
    with JsonlSink(path) as sink:
        sink.write({"train_wiki/tokens_seen": 2**60, "loss": 0.5}, step=1)
        assert len(lines(path)) == 1  # on disk before the sink is closed
        sink.write({"loss": float("inf")}, step=2)
    assert lines(path) == [{"step": 1, "train_wiki/tokens_seen": 2**60, "loss": 0.5}, {"step": 2, "loss": None}]


@pytest.mark.parametrize("torn", ["", '{"step": 2, "lo', "x" * 200_000])
def test_jsonl_continues_a_file_and_removes_a_line_a_crash_cut_short(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    with JsonlSink(path) as sink:
        sink.write({}, step=2)
    assert lines(path) == [{"step": 1}, {"step": 2}]


def test_jsonl_starts_over_when_the_only_line_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"ste')
    with JsonlSink(path) as sink:
        sink.write({}, step=1)
    assert lines(path) == [{"step": 1}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own protobuf and numpy uses
def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoardSink(tmp_path) as sink:
        sink.write({"train_wiki/tokens_seen": 5, "train_wiki/seq_len_p50": 2.5, "huge": 10**400}, step=7)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (tokens,) = events.Scalars("train_wiki/tokens_seen")
    (median,) = events.Scalars("train_wiki/seq_len_p50")
    assert (tokens.step, tokens.value) == (7, 5.0)
    assert (median.step, median.value) == (7, 2.5)


class RecordingRun:
    """A run that keeps what it is sent: any object with the two methods serves, as the sinks promise."""

    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = False

    def log(self, data: dict[str, Any], *, step: int) -> None:
        self.logged.append((data, step))

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((metrics, step))

    def finish(self) -> None:
        self.finished = True


def test_wandb_logs_all_figures_in_one_call_and_leaves_a_run_it_was_given_open() -> None:
    run = RecordingRun()
    with WandbSink(run) as sink:
        sink.write({"a": 1, "b": 2.5}, step=3)
    assert run.logged == [({"a": 1.0, "b": 2.5}, 3)]
    assert not run.finished


def test_mlflow_gets_names_it_allows() -> None:
    client = RecordingRun()
    with MlflowSink(client) as sink:
        sink.write({"train_wiki/language_count/c++ (old)": 4}, step=3)
    assert client.logged == [({"train_wiki/language_count/c__ _old_": 4.0}, 3)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # wandb's own imports
def test_wandb_itself_keeps_what_was_written_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with WandbSink(mode="offline", project="holdfast", dir=str(tmp_path)) as sink:
        sink.write({"train_wiki/tokens_seen": 5, "train_wiki/seq_len_p50": 2.5}, step=7)
        sink.write({"train_wiki/tokens_seen": 6}, step=9)
    assert wandb.run is None  # the sink started the run, so it finished it
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    # The log is a sequence of protocol buffers: names as they are, values as JSON text.
    assert re.search(rb"train_wiki/tokens_seen[^}]{0,8}5", log.read_bytes())
    assert re.search(rb"train_wiki/seq_len_p50[^}]{0,8}2\.5", log.read_bytes())
    assert re.search(rb"train_wiki/tokens_seen[^}]{0,8}6", log.read_bytes())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # mlflow's own
def test_mlflow_itself_reads_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer releases ask for it; a folder needs no database
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run, MlflowSink() as sink:
        sink.write({"train_wiki/language_count/c++ (old)": 4, "train_wiki/seq_len_p50": 2.5}, step=7)
    client = mlflow.MlflowClient()
    (count,) = client.get_metric_history(run.info.run_id, "train_wiki/language_count/c__ _old_")
    (median,) = client.get_metric_history(run.info.run_id, "train_wiki/seq_len_p50")
    assert (count.step, count.value) == (7, 4.0)
    assert (median.step, median.value) == (7, 2.5)


@pytest.mark.parametrize(
    ("package", "make"),
    [("wandb", WandbSink), ("mlflow", MlflowSink), ("tensorboard", lambda: TensorBoardSink("nowhere"))],
)
def test_a_missing_package_is_named_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, package: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"'{package}'.*pip install"):
        make()
