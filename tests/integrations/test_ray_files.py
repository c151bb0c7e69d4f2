"""The stream's state in the folder of a Ray checkpoint, beside whatever the program has saved there."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.checkpoint import save, verify_checkpoint
from holdfast.integrations.ray_files import EARLIER_FILE, STATE_FILE, read_state, write_state

STATE = {"holdfast": "{}"}


def test_the_manifest_of_a_checkpoint_in_the_same_folder_stays_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save({"weight": torch.ones(3)}, folder, step=1)
    write_state(folder, STATE)
    report = verify_checkpoint(folder)
    assert report.sound
    assert report.manifest
    assert read_state(folder) == STATE


def test_a_state_under_its_earlier_name_is_read(tmp_path: Path) -> None:
    write_state(tmp_path, STATE)
    (tmp_path / STATE_FILE).rename(tmp_path / EARLIER_FILE)
    assert read_state(tmp_path) == STATE


def test_a_torn_state_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    (tmp_path / STATE_FILE).write_text('{"holdf')
    assert read_state(tmp_path) is None
