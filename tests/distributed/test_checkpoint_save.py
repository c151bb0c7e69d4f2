"""Saving under torchrun: one checkpoint of all ranks, published once, whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.distributed import checkpoint_save_worker
from tests.forking import torchrun

from holdfast.checkpoint import latest_verified, verify_checkpoint

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def test_two_ranks_save_one_checkpoint_that_verifies_and_loads(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    torchrun(2, checkpoint_save_worker.__name__, str(folder))
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [report["equal"] for report in found] == [True, True]
    assert [report["wants_group"] for report in found] == [True, True]
    assert [report["not_loaded"] for report in found] == [[], []]
    assert [report["error"] for report in found] == ["CheckpointWriteError"] * 2
    assert [report["disagreements"] for report in found] == [2, 2]
    assert [report["unable"] for report in found] == [
        [
            "CheckpointWriteError: the checkpoint could not be saved: 'broken'",
            "ConfigError: keep must be a whole number, 1 or more",
            "ConfigError: the path must be a str or a Path",
        ]
    ] * 2
    for report, where in zip(found, ("with the result", "at the call"), strict=True):
        assert report["unable_later"] == [
            ["CheckpointWriteError: the checkpoint could not be saved: 'broken'", where],
            ["CheckpointWriteError: the checkpoint could not be saved: cannot pickle '_thread.lock' object", where],
            ["ConfigError: keep must be a whole number, 1 or more", where],
            ["ConfigError: the path must be a str or a Path", where],
        ]
        assert report["before"] == 4
    assert [(report["last"], report["stands"]) for report in found] == [([5, 6, 7, 8], 8)] * 2
    on_both = ["UnusableCheckpointError", "ConfigError", "ConfigError"]
    assert found[0]["told"] == [*on_both, "CheckpointError", "CheckpointError", "none"]
    assert found[1]["told"] == [*on_both, "TypeError", "KeyError", "RuntimeError"]  # its own
    assert [report["interrupted"] for report in found] == [
        "CheckpointWriteError: the checkpoint could not be saved: KeyboardInterrupt",
        "KeyboardInterrupt: ",
    ]
    assert [(report["replaced"], report["again"]) for report in found] == [("CheckpointReadError", "none")] * 2
    assert not list(folder.glob("other*"))
    assert not list(folder.glob(".other*"))
    assert sum(report["items"] for report in found) == 4
    report = verify_checkpoint(folder / "step-1", require_manifest=True)
    assert (report.verdict, report.verified) == ("sound", 4)
    latest = latest_verified(folder, require_manifest=True)
    assert latest is not None
    assert latest.step == 8
