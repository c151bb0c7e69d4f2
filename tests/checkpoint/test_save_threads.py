"""Saving with several threads: a file that one of them cannot write is an error, not a gap in the checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import State, assert_same, blank
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem

from holdfast import checkpoint
from holdfast.checkpoint.at_once import run_at_once
from holdfast.errors import CheckpointWriteError

STATE: State = {
    "large": torch.arange(90_000.0),
    "small": torch.ones(3),
    "smaller": torch.ones(2),
    "list": [1, 2],
    "text": "three",
}
THREADS = [1, 2, 3, 7]


class Failing(DefaultSavePlanner):
    """Fails when torch asks for one of the values, on whichever thread that is."""

    def __init__(self, key: str, error: BaseException) -> None:
        super().__init__()
        self.key = key
        self.error = error

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.index.fqn == self.key:
            raise self.error
        return super().resolve_data(write_item)


def limited(folder: Path, thread_count: int) -> None:
    """Save where a file may not grow as large as one of the tensors; the others, and the metadata, fit."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        checkpoint.save(STATE, folder / "step-2", step=2, keep=1, thread_count=thread_count)
    except CheckpointWriteError as error:
        sys.exit(17 if "File too large" in str(error) else str(error))


@pytest.mark.parametrize("thread_count", THREADS)
def test_a_file_that_a_thread_cannot_write_makes_the_save_fail(tmp_path: Path, thread_count: int) -> None:
    checkpoint.save(STATE, tmp_path / "step-1", step=1)
    saver = multiprocessing.get_context("fork").Process(target=limited, args=(tmp_path, thread_count))
    saver.start()
    saver.join(120)
    assert saver.exitcode == 17
    assert os.listdir(tmp_path) == ["step-1"]
    assert checkpoint.verify_checkpoint(tmp_path / "step-1").sound


@pytest.mark.parametrize("thread_count", THREADS)
@pytest.mark.parametrize("key", list(STATE))
def test_any_value_that_cannot_be_written_makes_the_save_fail(tmp_path: Path, key: str, thread_count: int) -> None:
    with pytest.raises(CheckpointWriteError, match="a value of its own"):
        checkpoint.save(
            STATE,
            tmp_path / "c",
            step=1,
            planner=Failing(key, ValueError("a value of its own")),
            thread_count=thread_count,
        )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("thread_count", THREADS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_on_any_thread_is_raised_as_itself(
    tmp_path: Path, error: BaseException, thread_count: int
) -> None:
    for key in STATE:
        with pytest.raises(type(error)):
            checkpoint.save(STATE, tmp_path / "c", step=1, planner=Failing(key, error), thread_count=thread_count)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("thread_count", THREADS)
def test_what_several_threads_save_is_what_one_saves(tmp_path: Path, thread_count: int) -> None:
    report = checkpoint.save(STATE, tmp_path / "c", step=1, thread_count=thread_count)
    assert report.items == len(STATE)
    assert 1 <= len(list((tmp_path / "c").glob("*.distcp"))) <= thread_count
    assert checkpoint.verify_checkpoint(tmp_path / "c").sound
    into = blank(STATE)
    checkpoint.load(into, tmp_path / "c")
    assert_same(into, STATE)


def test_a_writer_that_leaves_something_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    complete = FileSystemWriter.write_data

    def partial(self: FileSystemWriter, plan: Any, planner: Any) -> Any:
        return complete(self, plan, planner).then(lambda written: written.value()[1:])

    monkeypatch.setattr(FileSystemWriter, "write_data", partial)
    with pytest.raises(CheckpointWriteError, match="not everything was written"):
        checkpoint.save(STATE, tmp_path / "c", step=1)
    assert os.listdir(tmp_path) == []


def no_more_threads(*arguments: Any) -> int:
    raise RuntimeError("can't start new thread")


def test_everything_is_written_where_the_system_allows_no_more_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.at_once.start_new_thread", no_more_threads)
    checkpoint.save(STATE, tmp_path / "c", step=1, thread_count=4)
    assert checkpoint.verify_checkpoint(tmp_path / "c").items == len(STATE)


def test_the_first_error_keeps_jobs_that_have_not_begun_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.at_once.start_new_thread", no_more_threads)
    ran: list[int] = []

    def job(number: int) -> Callable[[], None]:
        def run() -> None:
            ran.append(number)
            if number == 2:
                raise OSError("full")

        return run

    with pytest.raises(OSError, match="full"):
        run_at_once([job(number) for number in range(5)], max_threads=3)
    assert ran == [0, 1, 2]
