"""Ctrl-C and ``sys.exit`` while a checkpoint is saved or loaded: they come out as themselves, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, WriteItem

from holdfast import checkpoint
from holdfast.checkpoint.interrupts import interrupt_in
from holdfast.checkpoint.publish import Staging
from holdfast.errors import CheckpointError, CheckpointWriteError

STATE = {"w": torch.ones(4), "n": (1,)}


class Stops:
    """An object that is interrupted while torch pickles it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class StoppedSave(DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> Any:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        try:
            signal.raise_signal(signal.SIGINT)
            return super().resolve_data(write_item)
        finally:
            signal.signal(signal.SIGINT, before)


class WrappingSave(DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> Any:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the archive could not be closed")  # as torch's zip writer does


class StoppedLoad(DefaultLoadPlanner):
    def create_local_plan(self) -> LoadPlan:
        raise SystemExit(3)


class WrappingLoad(DefaultLoadPlanner):
    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("could not copy") from error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_during_a_save_is_raised_as_itself_and_nothing_is_left(
    tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        checkpoint.save({"o": Stops(error), **STATE}, tmp_path / "c", step=1)
    assert caught.value is error
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("planner", [StoppedSave, WrappingSave])
def test_an_interrupt_that_an_error_hides_is_raised_as_itself(
    tmp_path: Path, planner: type[DefaultSavePlanner]
) -> None:
    checkpoint.save(STATE, tmp_path / "c", step=1)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(STATE, tmp_path / "c", step=2, planner=planner())
    assert os.listdir(tmp_path) == ["c"]
    assert checkpoint.verify_checkpoint(tmp_path / "c").sound


def test_an_interrupt_in_a_background_save_is_raised_where_the_result_is_asked_for(tmp_path: Path) -> None:
    pending = checkpoint.async_save(STATE, tmp_path / "c", step=1, planner=WrappingSave())
    with pytest.raises(KeyboardInterrupt):
        pending.result()


@pytest.mark.parametrize(("planner", "error"), [(StoppedLoad, SystemExit), (WrappingLoad, KeyboardInterrupt)])
def test_an_interrupt_during_a_load_is_raised_as_itself(
    tmp_path: Path, planner: type[DefaultLoadPlanner], error: type[BaseException]
) -> None:
    checkpoint.save(STATE, tmp_path / "c", step=1)
    with pytest.raises(error):
        checkpoint.load(dict(STATE), tmp_path / "c", planner=planner())


def test_a_program_that_saves_or_loads_because_it_was_interrupted_hears_why_that_failed(tmp_path: Path) -> None:
    checkpoint.save(STATE, tmp_path / "c", step=1)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        with pytest.raises(CheckpointWriteError, match="not picklable"):
            checkpoint.save({"o": Stops(TypeError("not picklable"))}, tmp_path / "d", step=1)
        with pytest.raises(CheckpointError, match="cannot be loaded: LookupError"):
            checkpoint.load(dict(STATE), tmp_path / "c", planner=FailingLoad())


class FailingLoad(DefaultLoadPlanner):
    def create_local_plan(self) -> LoadPlan:
        raise LookupError


@pytest.mark.parametrize("error", [RuntimeError(), OSError()], ids=repr)
def test_an_error_without_a_message_is_named_by_its_class(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(CheckpointWriteError, match=f"could not be saved: {type(error).__name__}"):
        checkpoint.save({"o": Stops(error)}, tmp_path / "c", step=1)


def test_a_cleanup_that_is_interrupted_lets_go_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(tmp_path / "c")
    staging.make()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.rmdir", interrupted)
        with pytest.raises(KeyboardInterrupt):
            staging.close()
    checkpoint.save(STATE, tmp_path / "c", step=1)  # removes what the other left
    assert os.listdir(tmp_path) == ["c"]


def test_errors_that_led_to_each_other_are_looked_at_once() -> None:
    one, two = ValueError(), OSError()
    one.__context__, two.__context__ = two, one
    assert interrupt_in(one, handled=None) is None
    two.__cause__ = KeyboardInterrupt()
    assert interrupt_in(one, handled=None) is two.__cause__
    assert interrupt_in(one, handled=two.__cause__) is None
