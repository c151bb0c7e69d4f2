"""Checking a checkpoint without loading it, from Python and from the command line."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.checkpoint.support import blank, nothing_left_behind, random_bits, save
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holdfast.checkpoint import verify_checkpoint
from holdfast.checkpoint.items import KnownItems, memory_reader, open_item
from holdfast.checkpoint.metadata_files import read_checkpoint_metadata
from holdfast.cli.main import run
from holdfast.errors import UnusableCheckpointError

SAVED = {
    "model": {
        "large": random_bits(400_000, seed=1),
        "matrix": random_bits(50, 60, seed=2),
        "scalar": torch.tensor(1.0),
    },
    "step": 7,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(SAVED, tmp_path / "checkpoint", thread_count=2)


def damage(folder: Path, *names: str) -> None:
    """Flip one byte in the payload of each tensor."""
    for index, info in read_checkpoint_metadata(folder).storage_data.items():
        if index.fqn in names:
            path = folder / info.relative_path
            data = bytearray(path.read_bytes())
            item = memoryview(data)[info.offset : info.offset + info.length]
            layout = open_item(memory_reader(item), len(item), KnownItems(), check=True)
            item.release()
            assert layout is not None
            data[info.offset + layout.payload_offset] ^= 1
            path.write_bytes(data)


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        run(list(arguments))
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_a_sound_checkpoint_is_verified_whole(folder: Path) -> None:
    with nothing_left_behind():
        report = verify_checkpoint(folder)
    assert report.sound
    assert (report.items, report.verified, report.unverified, report.damaged) == (4, 4, (), ())


def test_every_damaged_tensor_is_named_not_only_the_first(folder: Path) -> None:
    damage(folder, "model.large", "model.scalar")
    with nothing_left_behind():
        report = verify_checkpoint(folder)
    assert not report.sound
    assert {entry.tensor for entry in report.damaged} == {"model.large", "model.scalar"}
    assert report.verified == 2


def test_a_missing_file_damages_every_tensor_in_it(folder: Path) -> None:
    places = read_checkpoint_metadata(folder).storage_data
    lost = {index.fqn for index, info in places.items() if info.relative_path == "__0_0.distcp"}
    (folder / "__0_0.distcp").unlink()
    report = verify_checkpoint(folder)
    assert {entry.tensor for entry in report.damaged} == lost
    assert report.verified == 4 - len(lost)


def test_a_truncated_file_names_the_tensors_that_are_cut(folder: Path) -> None:
    places = read_checkpoint_metadata(folder).storage_data
    path = folder / "__0_0.distcp"
    os.truncate(path, path.stat().st_size - 1)
    cut = {
        index.fqn
        for index, info in places.items()
        if info.relative_path == path.name and info.offset + info.length > path.stat().st_size
    }
    assert {entry.tensor for entry in verify_checkpoint(folder).damaged} == cut
    assert len(cut) == 1


def test_a_tensor_that_the_metadata_describes_otherwise_is_damaged(folder: Path, tmp_path: Path) -> None:
    changed = blank(SAVED)
    changed["model"]["matrix"] = random_bits(60, 50)
    other = save(changed, tmp_path / "other", thread_count=2)
    (folder / ".metadata").write_bytes((other / ".metadata").read_bytes())
    (entry,) = verify_checkpoint(folder).damaged
    assert entry.tensor == "model.matrix"
    assert "where the metadata says" in entry.problem


def test_compressed_items_are_checked_behind_their_compression(tmp_path: Path) -> None:
    folder = save(SAVED, tmp_path / "c", _extensions=[ZStandard()])
    report = verify_checkpoint(folder)
    assert (report.sound, report.verified) == (True, 4)


def test_a_compressed_tensor_that_the_metadata_describes_otherwise_is_damaged(tmp_path: Path) -> None:
    folder = save({"w": random_bits(6, 4)}, tmp_path / "c", _extensions=[ZStandard()])
    metadata = read_checkpoint_metadata(folder)
    entry = metadata.state_dict_metadata["w"]
    assert isinstance(entry, TensorStorageMetadata)
    entry.size = entry.chunks[0].sizes = torch.Size((4, 6))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    (damage,) = verify_checkpoint(folder).damaged
    assert "where the metadata says" in damage.problem


def test_metadata_of_several_ranks_is_verified_together(tmp_path: Path) -> None:
    for rank in range(2):
        folder = save({"x": random_bits(100, seed=rank)}, tmp_path / str(rank))
        (tmp_path / "all").mkdir(exist_ok=True)
        (folder / ".metadata").rename(tmp_path / "all" / f"__{rank}.metadata")
        (folder / "__0_0.distcp").rename(tmp_path / "all" / "__0_0.distcp")
    assert verify_checkpoint(tmp_path / "all").sound


class Own:
    """A class of the user's own."""


def test_objects_that_a_load_refuses_are_listed_and_make_the_verdict_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save({"x": torch.zeros(3), "path": Path("x"), "own": Own()}, tmp_path / "c")
    report = verify_checkpoint(folder)
    assert (report.sound, report.verdict, report.verified) == (False, "incomplete", 2)
    (refused,) = report.unsafe
    assert (refused.tensor, refused.names) == ("own", (f"{Own.__module__}.Own",))
    assert verify_checkpoint(folder, trusted=True).sound
    assert command("verify", str(folder)) == 3
    output = capsys.readouterr().out
    assert f"{Own.__module__}.Own" in output
    assert "INCOMPLETE" in output


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnusableCheckpointError):
        verify_checkpoint(tmp_path)


def test_the_command_exits_zero_for_a_sound_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("verify", str(folder)) == 0
    assert capsys.readouterr().out.startswith("sound: 4 items, 4 verified")


def test_the_command_exits_one_and_names_each_damaged_tensor(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder, "model.large", "model.matrix")
    assert command("verify", str(folder)) == 1
    output = capsys.readouterr().out
    assert "damaged  model.large" in output
    assert "damaged  model.matrix" in output
    assert command("verify", str(folder), "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["sound"]
    assert {entry["tensor"] for entry in report["damaged"]} == {"model.large", "model.matrix"}


@pytest.mark.parametrize(
    "prepare",
    [
        lambda folder: (folder / ".metadata").unlink(),
        lambda folder: (folder / ".metadata").write_bytes(b"junk"),
        lambda folder: (folder / ".metadata").write_bytes(b"\x80\x02cposix\nsystem\nU\x02id\x85R."),
    ],
    ids=["no metadata", "damaged metadata", "unsafe metadata"],
)
@pytest.mark.parametrize("name", ["verify", "inspect"])
def test_the_commands_exit_two_without_a_traceback_for_unusable_input(
    folder: Path, capsys: pytest.CaptureFixture[str], prepare: Callable[[Path], None], name: str
) -> None:
    prepare(folder)
    assert command(name, str(folder)) == 2
    error = capsys.readouterr().err
    assert error.startswith("holdfast: ")
    assert "Traceback" not in error


def test_inspect_lists_tensors_objects_and_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("inspect", str(folder)) == 0
    output = capsys.readouterr().out
    assert "model.matrix" in output
    assert "50 × 60" in output
    assert command("inspect", str(folder), "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert [tensor["name"] for tensor in summary["tensors"]] == ["model.large", "model.matrix", "model.scalar"]
    assert summary["objects"] == ["step"]
    assert summary["bytes"] == 400_000 * 4 + 3000 * 4 + 4


def test_inspect_shows_long_and_odd_names_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "decoder." * 12 + "[bold]weight"
    folder = save({name: torch.zeros(2)}, tmp_path / "c")
    assert command("inspect", str(folder)) == 0
    assert name in capsys.readouterr().out


def test_names_that_a_terminal_would_obey_or_not_take_are_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save({"\x1b[31mred\n\ud800": torch.zeros(2)}, tmp_path / "c")
    assert command("inspect", str(folder)) == 0
    assert r"\x1b[31mred\n\ud800" in capsys.readouterr().out
    (path,) = folder.glob("*.distcp")
    path.unlink()
    assert command("verify", str(folder)) == 1
    assert r"\x1b[31mred\n\ud800" in capsys.readouterr().out


def test_inspect_says_what_it_can_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("x")
    assert command("inspect", str(tmp_path / "x")) == 2
    assert "checkpoint" in capsys.readouterr().err
    assert command("inspect", str(tmp_path / "nothing")) == 2
