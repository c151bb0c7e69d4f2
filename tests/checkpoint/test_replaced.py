"""Reading a checkpoint while a saver replaces it: the reading begins again, and intact checkpoints stay sound."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.checkpoint.support import load as load_with

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, latest_verified, summarise_checkpoint, verify_checkpoint
from holdfast.checkpoint.files import LocalFiles
from holdfast.checkpoint.remote import RemoteFiles
from holdfast.checkpoint.replaced import MAX_READINGS
from holdfast.errors import CheckpointMismatchError, CheckpointReadError, CorruptRecordError


def state(step: float, size: int = 10) -> dict[str, Any]:
    return {"w": torch.full((size,), float(step)), "n": (step,)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoint.save(state(0), tmp_path / "last", step=0)
    return tmp_path / "last"


Replacing = Callable[[int], None]


@pytest.fixture
def replacing(path: Path, monkeypatch: pytest.MonkeyPatch) -> Replacing:
    """Let a saver replace the checkpoint, that often, between reading its metadata and reading its data."""
    really_open = LocalFiles.open
    steps = itertools.count(1)
    left = 0

    def open_later(files: LocalFiles, opened: Path) -> int:
        nonlocal left
        if left and opened.parent == path and opened.suffix == ".distcp":
            left -= 1
            step = next(steps)
            checkpoint.save(state(step), path, step=step)
        return really_open(files, opened)

    monkeypatch.setattr(LocalFiles, "open", open_later)

    def begin(times: int) -> None:
        nonlocal left
        left = times

    return begin


def loaded(path: Path) -> int:
    into = state(-1)
    checkpoint.load(into, path)
    assert torch.equal(into["w"], state(into["n"][0])["w"])
    return int(into["n"][0])


def latest_step(path: Path) -> int:
    found = latest_verified(path.parent)
    assert found is not None
    assert (found.path, found.passed_over, found.report.sound) == (path, (), True)
    return found.step


READS = [lambda path: verify_checkpoint(path).verdict, loaded, latest_step]


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_again(path: Path, replacing: Replacing) -> None:
    results: list[Any] = []
    for read in READS:
        replacing(MAX_READINGS - 1)
        results.append(read(path))
    assert results == ["sound", 2 * (MAX_READINGS - 1), 3 * (MAX_READINGS - 1)]


@pytest.mark.parametrize("read", READS, ids=["verify", "load", "latest_verified"])
def test_a_checkpoint_that_is_replaced_whenever_it_is_read_is_not_called_damaged(
    path: Path, replacing: Replacing, read: Callable[[Path], Any]
) -> None:
    replacing(MAX_READINGS)
    with pytest.raises(CheckpointReadError, match="writing to this checkpoint") as caught:
        read(path)
    assert caught.value.replaced
    read(path)  # the saver has ended


def test_a_reader_under_torchs_own_load_says_that_the_checkpoint_was_replaced(path: Path, replacing: Replacing) -> None:
    reader = ParallelFileSystemReader(path)
    replacing(1)
    with pytest.raises(CheckpointReadError) as caught:
        load_with(state(-1), reader)
    assert caught.value.replaced
    assert caught.value is reader.error
    assert isinstance(caught.value.__cause__, CorruptRecordError)


def test_a_damaged_checkpoint_is_damaged_until_another_takes_its_place(path: Path, replacing: Replacing) -> None:
    (data,) = path.glob("*.distcp")
    os.truncate(data, 100)
    assert verify_checkpoint(path).verdict == "damaged"
    with pytest.raises(CheckpointReadError) as caught:
        loaded(path)
    assert not caught.value.replaced
    replacing(1)
    assert verify_checkpoint(path).verdict == "sound"


def test_a_destination_of_another_shape_is_not_explained_by_a_saver(path: Path, replacing: Replacing) -> None:
    replacing(MAX_READINGS)
    with pytest.raises(CheckpointMismatchError):
        checkpoint.load(state(-1, size=11), path)


def test_the_metadata_and_the_manifest_of_two_checkpoints_are_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = LocalFiles.open
    steps = [1, 2]

    def open_later(files: LocalFiles, opened: Path) -> int:
        if steps and opened == path / "holdfast.json":
            step = steps.pop()
            checkpoint.save({**state(step), f"more{step}": 1}, path, step=step)
        return really_open(files, opened)

    monkeypatch.setattr(LocalFiles, "open", open_later)
    assert verify_checkpoint(path).sound
    assert not steps
    steps.append(3)
    assert summarise_checkpoint(path).objects == ("more3", "n")
    steps.append(4)
    checkpoint.load(state(-1), path, warn_not_loaded=False)


def test_a_checkpoint_behind_a_url_that_is_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = fsspec.filesystem("memory")
    for step in (1, 2):
        checkpoint.save(state(step), tmp_path / str(step), step=step)
    files = {step: {path.name: path.read_bytes() for path in (tmp_path / step).iterdir()} for step in ("1", "2")}

    def put(step: str) -> None:
        for name, content in files[step].items():
            system.pipe_file(f"/replaced/c/{name}", content)

    really_open = RemoteFiles.open

    def open_later(layer: RemoteFiles, path: Path) -> int:
        if path.suffix == ".distcp" and left:
            put(left.pop())
        return really_open(layer, path)

    monkeypatch.setattr(RemoteFiles, "open", open_later)
    try:
        put("1")
        left = ["2"]
        into = state(-1)
        checkpoint.load(into, "memory://replaced/c")
        assert into["n"] == (2,)
        left = ["1"]
        assert verify_checkpoint("memory://replaced/c").sound
        left = ["1", "2"] * MAX_READINGS
        with pytest.raises(CheckpointReadError, match="memory://replaced/c") as caught:
            verify_checkpoint("memory://replaced/c")
        assert caught.value.replaced
    finally:
        system.rm("/replaced", recursive=True)
