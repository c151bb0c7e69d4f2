"""A call of the system that fails while a checkpoint takes its name: what the save says is what is on the disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

import pytest
import torch

from holdfast import checkpoint
from holdfast.checkpoint import publish
from holdfast.checkpoint.publish import Staging
from holdfast.errors import CheckpointWriteError


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((3,), value)}


def loaded(path: Path) -> float:
    into = state(-1)
    checkpoint.load(into, path, require_manifest=True)
    return float(into["w"][0])


class Failing:
    """A profile function that lets the nth call of the system fail."""

    def __init__(self, nth: int) -> None:
        self.seen = 0
        self.failed = ""
        self._nth = nth

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and isinstance(called, BuiltinFunctionType) and called.__module__ in ("posix", "fcntl"):
            self.seen += called.__name__ not in ("fspath", "getpid")
            if self.seen == self._nth:
                self.seen += 1
                self.failed = f"{called.__name__} in {frame.f_code.co_name}"
                raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(("name", "can_exchange"), [("step-2", True), ("step-2", False), ("step-3", True)])
def test_whatever_call_fails_the_old_checkpoint_is_as_it_was_or_the_new_one_is_saved_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(publish, "_exchange", lambda *_: False)
    failing = Failing(0)
    put, close = Staging.publish, Staging.close

    def watched_put(staging: Staging) -> None:
        sys.setprofile(failing)
        put(staging)

    def watched_close(staging: Staging) -> None:
        try:
            close(staging)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Staging, "close", watched_close)
    before = tmp_path / "before"
    for step in (1, 2):
        checkpoint.save(state(step), before / f"step-{step}", step=step)
        (before / f"step-{step}" / "tokenizer").write_text("mine")
    failures = 0
    for nth in range(1, 1000):
        folder = shutil.copytree(before, tmp_path / str(nth))
        failing = Failing(nth)
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            patch.setattr(Staging, "publish", watched_put)
            try:
                checkpoint.save(state(7), folder / name, step=7, keep=1)
                saved = True
            except CheckpointWriteError:
                saved = False
                failures += 1
        if saved:
            assert loaded(folder / name) == 7
            assert warned or sorted(os.listdir(folder)) == sorted({"step-1", "step-2", name})
            assert warned or all((folder / old / "tokenizer").exists() for old in ("step-1", "step-2"))
        else:
            assert [other for other in sorted(os.listdir(folder)) if other[0] != "."] == ["step-1", "step-2"]
            assert [loaded(folder / f"step-{step}") for step in (1, 2)] == [1, 2]
        checkpoint.save(state(9), folder / "other", step=9)  # puts everything in its place
        assert sorted(os.listdir(folder)) == sorted({"step-1", "step-2", "other"} | ({name} if saved else set()))
        assert [(folder / f"step-{step}" / "tokenizer").read_text() for step in (1, 2)] == ["mine", "mine"]
        if failing.seen < nth:
            break
    assert 3 <= failures < nth


def test_a_file_that_cannot_be_closed_after_reading_says_nothing_against_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(state(1), tmp_path / "step-1", step=1)
    close = os.close

    def failing(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    assert checkpoint.verify_checkpoint(tmp_path / "step-1").verdict == "sound"
    latest = checkpoint.latest_verified(tmp_path)
    assert latest is not None
    assert latest.path == tmp_path / "step-1"


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave this process this many free file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + count, hard))
        held = []
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for number in held[count:]:
            opened.callback(os.close, number)
        for number in held[:count]:
            os.close(number)
        yield


@pytest.mark.parametrize("count", range(9))
def test_with_few_file_descriptors_a_save_succeeds_or_leaves_nothing(tmp_path: Path, count: int) -> None:
    checkpoint.save(state(1), tmp_path / "step-1", step=1)
    failed = None
    with free_descriptors(count):
        try:
            checkpoint.save(state(2), tmp_path / "step-2", step=2)
        except CheckpointWriteError as error:
            failed = str(error)
    assert sorted(os.listdir(tmp_path)) == (["step-1", "step-2"] if failed is None else ["step-1"])
    assert failed is None or ("Too many open files" in failed and "nothing of it is left" in failed)
    assert failed is None or count < 4


def test_a_failed_save_whose_folder_cannot_be_removed_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Any, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing)
        patch.setattr(publish, "sync_names", failing)
        with pytest.raises(CheckpointWriteError, match=r"could not be removed") as caught:
            checkpoint.save(state(1), tmp_path / "step-1", step=1)
    (left,) = os.listdir(tmp_path)
    assert left in str(caught.value)
    checkpoint.save(state(2), tmp_path / "step-2", step=2)
    assert os.listdir(tmp_path) == ["step-2"]
