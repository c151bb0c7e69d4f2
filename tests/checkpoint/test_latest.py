"""Which checkpoint to resume from, where not everything can be looked at: no run goes back or starts over for that."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import checkpoint
from holdfast.checkpoint import latest_verified, verify_checkpoint
from holdfast.checkpoint.replaced import MAX_READINGS
from holdfast.errors import CheckpointReadError, UnusableCheckpointError

NOBODY = 65534


def save(folder: Path, *steps: int, **options: Any) -> None:
    for step in steps:
        checkpoint.save(
            {f"t{n}": torch.full((4,), float(step)) for n in range(8)}, folder / f"step-{step}", step=step, **options
        )


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter; that of ``tmp_path`` is its owner's."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextmanager
def as_another_user() -> Iterator[None]:
    mine = os.geteuid()
    if mine == 0:  # who may read everything
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(mine)


@contextmanager
def too_many_files_open() -> Iterator[None]:
    """Leave this process no file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        with suppress(OSError):
            while True:
                opened.callback(os.close, os.dup(0))
        yield


@pytest.mark.parametrize("closed", ["step-2", "step-2/.metadata", "step-2/holdfast.json", "step-2/__0_0.distcp"])
def test_a_newest_checkpoint_that_may_not_be_read_is_neither_passed_over_nor_called_damaged(
    shared: Path, closed: str
) -> None:
    save(shared, 1, 2)
    os.chmod(shared / closed, 0)
    with as_another_user():
        with pytest.raises(CheckpointReadError, match="Permission denied"):
            latest_verified(shared)
        with pytest.raises(CheckpointReadError, match="Permission denied"):
            verify_checkpoint(shared / "step-2")
        older = latest_verified(shared, not_after=1)
    assert older is not None
    assert older.step == 1
    os.chmod(shared / closed, 0o700)


def test_a_folder_that_may_be_listed_but_not_entered_is_not_an_empty_one(shared: Path) -> None:
    save(shared, 1)
    os.chmod(shared, 0o444)
    with as_another_user(), pytest.raises(CheckpointReadError, match="Permission denied"):
        latest_verified(shared)
    os.chmod(shared, 0o755)


def test_the_closed_folder_at_the_top_of_a_disk_is_not_a_checkpoint(shared: Path) -> None:
    (shared / "lost+found").mkdir(0o700)
    with as_another_user():
        assert latest_verified(shared) is None


def test_a_link_that_leads_nowhere_may_be_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "step-1").symlink_to(tmp_path / "not mounted" / "step-1")
    with pytest.raises(UnusableCheckpointError, match="step-1: it is a link"):
        latest_verified(tmp_path / "runs")
    (tmp_path / "disk").symlink_to(tmp_path / "not mounted")
    for path in ("disk", "disk/runs/checkpoints"):
        with pytest.raises(UnusableCheckpointError, match="leads nowhere"):
            latest_verified(tmp_path / path)


def test_a_checkpoint_itself_is_not_a_folder_without_checkpoints(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(UnusableCheckpointError, match="is a checkpoint itself"):
        latest_verified(tmp_path / "step-1")


def test_with_too_many_files_open_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    with too_many_files_open():
        for look in (lambda: verify_checkpoint(tmp_path / "step-2"), lambda: latest_verified(tmp_path)):
            with pytest.raises(CheckpointReadError, match="Too many open files"):
                look()


def test_where_no_thread_can_be_started_everything_is_done_on_the_calling_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    save(tmp_path, 1)
    pending = checkpoint.async_save({"t": torch.ones(4)}, tmp_path / "step-2", step=2)
    assert pending.done()
    assert pending.result().step == 2
    into = {"t": torch.zeros(4)}
    checkpoint.load(into, tmp_path / "step-2", num_workers=3)
    assert into["t"].tolist() == [1.0] * 4
    found = latest_verified(tmp_path)
    assert found is not None
    assert found.step == 2


@pytest.mark.parametrize("name", ["holdfast.json", ".metadata"])
def test_a_file_that_cannot_be_looked_for_does_not_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save(tmp_path, 1, 2)
    lstat = os.lstat

    def stale(path: Any, **options: Any) -> os.stat_result:
        if os.fspath(path).endswith(f"step-2/{name}"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return lstat(path, **options)

    monkeypatch.setattr(os, "lstat", stale)
    into = {f"t{number}": torch.zeros(4) for number in range(8)}
    for look in (
        lambda: checkpoint.load(into, tmp_path / "step-2"),
        lambda: verify_checkpoint(tmp_path / "step-2"),
        lambda: latest_verified(tmp_path),
    ):
        with pytest.raises(CheckpointReadError, match="Stale file handle"):
            look()


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP])
def test_checkpoints_that_are_listed_but_never_found_end_the_search_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save(tmp_path, 1, 2)
    lstat, listdir, listed = os.lstat, os.listdir, 0

    def missing(path: Any, **options: Any) -> os.stat_result:
        if os.fspath(path).startswith(f"{tmp_path}/step-"):
            raise OSError(number, os.strerror(number))
        return lstat(path, **options)

    def counted(path: Any = ".") -> list[Any]:
        nonlocal listed
        listed += os.fspath(path) == str(tmp_path)
        assert listed <= MAX_READINGS + 2  # before and after
        return listdir(path)

    monkeypatch.setattr(os, "lstat", missing)
    monkeypatch.setattr(os, "listdir", counted)
    with pytest.raises(CheckpointReadError, match="gone when they were read") as caught:
        latest_verified(tmp_path)
    assert caught.value.replaced
    assert listed == MAX_READINGS + 2


@pytest.mark.parametrize("length", [4080, 4088, 4089, 4095])
def test_checkpoints_whose_paths_are_too_long_are_neither_missing_nor_damaged(tmp_path: Path, length: int) -> None:
    save(tmp_path, 1)
    folder = str(tmp_path)
    with ExitStack() as leaving:
        here = os.open(".", os.O_RDONLY)
        leaving.callback(os.close, here)
        leaving.callback(os.fchdir, here)
        os.chdir(tmp_path)
        while left := length - len(folder):
            name = "d" * (left - 1 if left < 200 else 100)
            folder += f"/{name}"
            os.mkdir(name)
            os.chdir(name)
        shutil.copytree(tmp_path / "step-1", "step-1")
        with pytest.raises(CheckpointReadError, match="File name too long"):
            latest_verified(folder)


def test_a_folder_that_cannot_be_listed_says_nothing_about_its_checkpoints(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(shared, 1)
    with too_many_files_open(), pytest.raises(CheckpointReadError, match="Too many open files"):
        latest_verified(shared)
    os.chmod(shared, 0o311)
    with as_another_user(), pytest.raises(CheckpointReadError, match="Permission denied"):
        latest_verified(shared)
    os.chmod(shared, 0o755)
    iterdir = Path.iterdir

    def failing(path: Path) -> Iterator[Path]:
        if path == shared:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", failing)
    with pytest.raises(CheckpointReadError, match="Input/output error"):
        latest_verified(shared)


def test_a_file_in_place_of_the_folder_is_not_a_folder_that_cannot_be_listed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableCheckpointError, match="Not a directory"):
        latest_verified(tmp_path / "file")


@pytest.mark.parametrize("trusted", [False, True])
def test_a_manifest_that_is_a_link_to_nowhere_is_not_a_missing_manifest(tmp_path: Path, trusted: bool) -> None:
    save(tmp_path, 1, 2)
    manifest = tmp_path / "step-2" / "holdfast.json"
    manifest.unlink()
    manifest.symlink_to("nowhere")
    into = {f"t{number}": torch.zeros(4) for number in range(8)}
    with pytest.raises(CheckpointReadError, match=r"No such file.*holdfast\.json"):
        verify_checkpoint(tmp_path / "step-2", trusted=trusted)
    with pytest.raises(CheckpointReadError, match=r"No such file.*holdfast\.json"):
        checkpoint.load(into, tmp_path / "step-2", trusted=trusted)
    found = latest_verified(tmp_path, trusted=trusted)
    assert found is not None
    assert [found.step, *(path.name for path, _ in found.passed_over)] == [1, "step-2"]
