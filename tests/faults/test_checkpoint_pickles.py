"""Malicious checkpoints: every one refused, and nothing of them ever runs."""

from __future__ import annotations

import builtins
import functools
import io
import operator
import os
import pickle
import pickletools
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.support import load, random_bits, save
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from holdfast import checkpoint
from holdfast.checkpoint import ParallelFileSystemReader, summarise_checkpoint, verify_checkpoint
from holdfast.errors import CorruptRecordError, UnsafeCheckpointError, UnusableCheckpointError


class Runs:
    """Pickles as a call of anything."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def calls(module: str, name: str, argument: str) -> bytes:
    """A pickle by hand: STACK_GLOBAL module.name, called with a string."""
    return b"\x80\x04" + text(module) + text(name) + b"\x93" + text(argument) + b"\x85R."


# Each makes something whose unpickling creates the marker.
OBJECTS: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda marker: Runs(os.system, f"touch {marker}"),
    "eval": lambda marker: Runs(eval, f"__import__('os').mkdir({str(marker)!r})"),
    "exec": lambda marker: Runs(exec, f"import os; os.mkdir({str(marker)!r})"),
    "write_text": lambda marker: Runs(Path.write_text, marker, "x"),
    "subprocess": lambda marker: Runs(subprocess.check_call, ["touch", str(marker)]),
    "os.mkdir": lambda marker: Runs(os.mkdir, str(marker)),
    "reduce": lambda marker: Runs(functools.reduce, os.makedirs, [str(marker), 0o755]),
    "map": lambda marker: Runs(list, Runs(map, os.mkdir, [str(marker)])),
    "methodcaller": lambda marker: Runs(functools.partial(operator.methodcaller("mkdir"), marker)),
    "torch.save": lambda marker: Runs(torch.save, {"x": 1}, str(marker)),
    "Path.touch": lambda marker: Runs(Path.touch, marker),
}
# Whole pickles by hand, for what the pickler would not write.
PICKLES: dict[str, Callable[[Path], bytes]] = {
    "dotted name through an allowed module": lambda marker: calls(
        "torch.distributed.checkpoint.filesystem", "os.mkdir", str(marker)
    ),
    "dotted name through torch": lambda marker: calls("torch", "os.mkdir", str(marker)),
    "posix": lambda marker: calls("posix", "mkdir", str(marker)),
    "GLOBAL opcode": lambda marker: b"\x80\x02cposix\nmkdir\n" + text(str(marker)) + b"\x85R.",
    "INST opcode": lambda marker: b"(" + text(str(marker)) + b"iposix\nmkdir\n.",
    "OBJ opcode": lambda marker: b"\x80\x02(cposix\nmkdir\n" + text(str(marker)) + b"o.",
}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save({"weight": random_bits(30), "step": 5}, tmp_path / "checkpoint", single_file_per_rank=False)


def clear(marker: Path) -> None:
    if marker.is_dir():
        marker.rmdir()
    else:
        marker.unlink(missing_ok=True)


def metadata_of(folder: Path) -> Metadata:
    return FileSystemReader(folder).read_metadata()


def in_planner_data(metadata: Metadata, evil: Any) -> Metadata:
    metadata.planner_data = {"weight": evil}
    return metadata


def in_tensors(metadata: Metadata, evil: Any) -> Metadata:
    metadata.state_dict_metadata["weight"] = evil
    return metadata


def in_storage(metadata: Metadata, evil: Any) -> Metadata:
    metadata.storage_data[MetadataIndex("weight")] = evil
    return metadata


def assert_refused(folder: Path, marker: Path) -> None:
    for attempt in (
        lambda: ParallelFileSystemReader(folder).read_metadata(),
        lambda: verify_checkpoint(folder),
        lambda: summarise_checkpoint(folder),
    ):
        with pytest.raises((UnsafeCheckpointError, UnusableCheckpointError)):
            attempt()
    assert not marker.exists()


@pytest.mark.parametrize("place", [in_planner_data, in_tensors, in_storage])
@pytest.mark.parametrize("kind", OBJECTS)
def test_metadata_that_would_run_code_is_refused(
    folder: Path, marker: Path, kind: str, place: Callable[[Metadata, Any], Metadata]
) -> None:
    content = pickle.dumps(place(metadata_of(folder), OBJECTS[kind](marker)))
    pickle.loads(content)  # noqa: S301 — shows that it is live
    assert marker.exists()
    clear(marker)
    (folder / ".metadata").write_bytes(content)
    assert_refused(folder, marker)


@pytest.mark.parametrize("kind", PICKLES)
def test_metadata_written_by_hand_to_run_code_is_refused(folder: Path, marker: Path, kind: str) -> None:
    (folder / ".metadata").write_bytes(PICKLES[kind](marker))
    assert_refused(folder, marker)


def test_metadata_that_patches_a_class_of_torch_patches_nothing(folder: Path) -> None:
    before = dict(vars(Metadata))
    patch = b"\x80\x04" + text("torch.distributed.checkpoint.metadata") + text("Metadata") + b"\x93"
    patch += b"N}" + text("version") + text("patched") + b"s\x86b."
    pickletools.dis(patch, io.StringIO())
    (folder / ".metadata").write_bytes(patch)
    with pytest.raises((UnsafeCheckpointError, UnusableCheckpointError)):
        ParallelFileSystemReader(folder).read_metadata()
    assert dict(vars(Metadata)) == before


def put_object(folder: Path, content: bytes) -> None:
    """Replace the stored object ``step`` and its place in the metadata."""
    metadata = metadata_of(folder)
    info = metadata.storage_data[MetadataIndex("step")]
    (folder / info.relative_path).write_bytes(content)
    info.length = len(content)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def zipped(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def legacy(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def renamed(value: Any) -> bytes:
    """An archive in which a harmless pickle hides the evil one behind a name that differs in case only."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02K\x05.")
        archive.writestr("archive/DATA.PKL", pickle.dumps(value, 2))
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


def script(value: Any) -> bytes:
    """An archive that torch takes for TorchScript."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02K\x05.")
        archive.writestr("archive/constants.pkl", pickle.dumps(value, 2))
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()


@pytest.mark.parametrize("wrap", [zipped, legacy, lambda value: pickle.dumps(value, 2), renamed, script])
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("parallel", [True, False])
def test_objects_that_would_run_code_are_refused_before_the_planner_sees_them(
    folder: Path, marker: Path, kind: str, wrap: Callable[[Any], bytes], parallel: bool
) -> None:
    content = wrap(OBJECTS[kind](marker))
    clear(marker)
    put_object(folder, content)
    reader = ParallelFileSystemReader(folder, parallel=parallel, verify="off")
    with pytest.raises((UnsafeCheckpointError, CorruptRecordError)) as caught:
        load({"weight": torch.zeros(30), "step": None}, reader)
    assert caught.value.tensor == "step"
    assert not marker.exists()


def test_a_trusted_checkpoint_may_run_what_it_likes(folder: Path, marker: Path) -> None:
    put_object(folder, zipped(OBJECTS["os.mkdir"](marker)))
    load({"weight": torch.zeros(30), "step": None}, ParallelFileSystemReader(folder, trusted=True))
    assert marker.exists()


def test_classes_the_user_allows_load_without_trust(folder: Path) -> None:
    put_object(folder, zipped(builtins.set([1, 2])))
    state = load({"weight": torch.zeros(30), "step": None}, ParallelFileSystemReader(folder))
    assert state["step"] == {1, 2}


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc/hostname",
        "a/../../outside",
        "",
        "nul\0l",
        "link",
        "link/",
        "./link",
        "dir/inside",
        "near",
        "\ud800",
    ],
)
def test_files_outside_the_folder_are_refused(folder: Path, name: str) -> None:
    metadata = metadata_of(folder)
    info = metadata.storage_data[MetadataIndex("weight", [0])]
    outside = folder.parent / "outside"
    (folder / info.relative_path).rename(outside)
    (folder / "link").symlink_to(outside)
    (folder / "dir").symlink_to(folder.parent, target_is_directory=True)
    (folder.parent / "inside").write_bytes(outside.read_bytes())
    neighbour = folder.with_name(f"{folder.name}-2")  # its path begins as the folder's does
    neighbour.mkdir()
    (neighbour / "near").write_bytes(outside.read_bytes())
    (folder / "near").symlink_to(neighbour / "near")
    info.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UnsafeCheckpointError):
        load({"weight": torch.zeros(30), "step": None}, ParallelFileSystemReader(folder))
    with pytest.raises(UnsafeCheckpointError):
        verify_checkpoint(folder)
    with pytest.raises(UnsafeCheckpointError):
        summarise_checkpoint(folder)  # nor is anybody told how large a file outside is


def test_a_link_out_of_the_folder_is_followed_when_trusted(folder: Path) -> None:
    metadata = metadata_of(folder)
    info = metadata.storage_data[MetadataIndex("weight", [0])]
    outside = folder.parent / "outside"
    (folder / info.relative_path).rename(outside)
    (folder / info.relative_path).symlink_to(outside)
    state = {"weight": torch.zeros(30), "step": None}
    load(state, ParallelFileSystemReader(folder, trusted=True))
    assert state["weight"].any()  # type: ignore[union-attr]


def test_a_named_pipe_does_not_hang_the_load(folder: Path) -> None:
    metadata = metadata_of(folder)
    path = folder / metadata.storage_data[MetadataIndex("weight", [0])].relative_path
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UnsafeCheckpointError, match="regular file"):
        load({"weight": torch.zeros(30), "step": None}, ParallelFileSystemReader(folder))


def test_a_file_url_is_the_folder_with_all_that_is_refused_in_it(folder: Path) -> None:
    state: dict[str, Any] = {"weight": torch.zeros(30), "step": None}
    checkpoint.load(state, f"file://{folder}")
    assert state["weight"].any()
    path = folder / metadata_of(folder).storage_data[MetadataIndex("weight", [0])].relative_path
    path.unlink()
    os.mkfifo(path)
    for url in (f"file://{folder}", f"local://{folder}"):
        with pytest.raises(UnsafeCheckpointError, match="regular file"):
            checkpoint.load(state, url)
