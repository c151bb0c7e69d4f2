"""An interrupt, whenever it comes, ends a save and nothing else: not the process, nor the checkpoint that was there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests.faults.checkpoint_interrupts import Interrupting

from holdfast import checkpoint
from holdfast.checkpoint import budget, engine, publish
from holdfast.checkpoint.publish import Staging
from holdfast.checkpoint.syncing import sync_files

ROOT = Path(__file__).resolve().parents[2]


def outcomes_of(*arguments: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.checkpoint_interrupts", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outcomes: dict[str, int] = json.loads(done.stdout)
    return outcomes


def test_an_interrupt_while_torch_opens_or_ends_an_archive_does_not_abort_the_process(tmp_path: Path) -> None:
    outcomes = outcomes_of(str(tmp_path), "archives")
    assert list(outcomes) == ["interrupted"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_interrupt_anywhere_in_a_save_leaves_a_whole_checkpoint_and_the_next_save_works(tmp_path: Path) -> None:
    outcomes = outcomes_of(str(tmp_path), "all")
    assert outcomes.keys() <= {"interrupted", "not interrupted"}  # Python swallows what is raised in a ``__del__``


def publish_over(path: Path, content: str, interrupting: Interrupting) -> bool:
    """Put a checkpoint in the place of another; whether it was interrupted, in which case another one is saved."""
    staging = Staging(path)
    try:
        sys.setprofile(interrupting)
        try:
            staging.make()
            (staging.folder / "__0_0.distcp").write_text(content)
            staging.publish()
        finally:
            staging.close()
    except KeyboardInterrupt:
        other = Staging(path.with_name("other"))
        other.make()  # waits for nobody
        other.close()
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a ``__del__``
@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_interrupt_while_names_change_loses_nothing_and_the_next_save_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(publish, "_exchange", lambda *_: False)
    never = Interrupting(-1, lambda code: False)
    interrupted = 0
    for nth in range(1, 1000):
        path = tmp_path / str(nth) / "c"
        publish_over(path, "old", never)
        (path / "tokenizer").write_text("mine")
        interrupting = Interrupting(nth, lambda code: code.co_filename == publish.__file__)
        interrupted += publish_over(path, "new", interrupting)
        assert (path / "__0_0.distcp").read_text() in ("old", "new")
        publish_over(path, "newer", never)
        assert os.listdir(path.parent) == ["c"]
        assert (path / "__0_0.distcp").read_text() == "newer"
        assert (path / "tokenizer").read_text() == "mine"
        if interrupting.seen < nth:
            break
    assert interrupted > 40


@pytest.mark.timeout(60)
def test_an_interrupt_while_files_are_synced_ends_the_save_and_waits_for_nobody(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.touch()
    for nth in range(1, 1000):
        interrupting = Interrupting(nth, lambda code: True)
        try:
            sys.setprofile(interrupting)
            try:
                sync_files(paths)
            finally:
                sys.setprofile(None)
        except KeyboardInterrupt:
            pass
        if interrupting.seen < nth:
            break
    assert 10 < nth < 999


@pytest.mark.timeout(120)
@pytest.mark.parametrize("memory_limit", [None, 1 << 20])
def test_an_interrupt_while_threads_read_ends_the_load_and_waits_for_nobody(
    tmp_path: Path, memory_limit: int | None
) -> None:
    saved = {**{f"w{number}": torch.ones(40_000) for number in range(6)}, "n": (1,)}
    checkpoint.save(saved, tmp_path / "c", step=1, thread_count=2)
    waiting = (engine.__file__, budget.__file__, threading.__file__)
    interrupted = 0
    for nth in range(1, 1000):
        interrupting = Interrupting(nth, lambda code: code.co_filename in waiting)
        into = {"n": (), **{key: torch.zeros(80_000)[::2] for key in saved if key != "n"}}  # through buffers
        try:
            sys.setprofile(interrupting)
            try:
                checkpoint.load(into, tmp_path / "c", num_workers=2, memory_limit=memory_limit)
            finally:
                sys.setprofile(None)
        except KeyboardInterrupt:
            interrupted += 1
        if interrupting.seen < nth:
            break
    assert interrupted > 40
