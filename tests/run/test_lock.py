"""The folder's lock: held by one process however its files are read, and by nobody once that process is dead."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.run.lives import live

from holdfast.errors import RunLockedError
from holdfast.run.lock import FolderLock


def is_refused(path: Path) -> bool:
    """Return whether another process cannot lock the folder now."""

    def intrudes() -> None:
        with pytest.raises(RunLockedError, match="another process") as caught:
            FolderLock(path)
        assert caught.value.where["pid"] == os.getppid()

    return live(intrudes) == 0


def test_a_program_that_copies_its_own_runs_folder_still_holds_it(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    assert (tmp_path / "lock").read_bytes()  # opens and closes the file, as a copy of the folder does
    assert is_refused(tmp_path / "lock")
    lock.release()
    assert not (tmp_path / "lock").read_bytes()


def test_a_second_run_of_the_same_process_is_refused_and_costs_the_first_nothing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    for _ in range(2):
        with pytest.raises(RunLockedError, match="of this process is still open"):
            FolderLock(tmp_path / "lock")
    assert is_refused(tmp_path / "lock")
    lock.release()
    FolderLock(tmp_path / "lock").release()


def test_a_fork_that_outlives_a_killed_run_does_not_hold_its_folder(tmp_path: Path) -> None:
    forked_read, forked_write = os.pipe()
    end_read, end_write = os.pipe()

    def is_killed() -> None:
        lock = FolderLock(tmp_path / "lock")
        if os.fork() == 0:  # as a worker process that reads data
            os.close(end_write)
            os.write(forked_write, b".")
            os.read(end_read, 1)  # until the test has ended
            os._exit(0)
        os.read(forked_read, 1)
        os.kill(os.getpid(), signal.SIGKILL)
        lock.release()

    assert live(is_killed) == -signal.SIGKILL
    FolderLock(tmp_path / "lock").release()
    for descriptor in (forked_read, forked_write, end_read, end_write):
        os.close(descriptor)


def test_a_fork_that_lets_a_run_go_does_not_open_the_folder_to_others(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "lock")
    assert live(lock.release) == 0
    assert is_refused(tmp_path / "lock")
    lock.release()
