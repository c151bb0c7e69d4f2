"""The reader where no one can pass ``storage_reader=``: torch's own default, Accelerate and Lightning."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.checkpoint.support import assert_same, random_bits, save
from torch.distributed.checkpoint import _storage_utils, filesystem
from torch.distributed.checkpoint._extension import ExtensionRegistry, ZStandard
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast.checkpoint import ParallelFileSystemReader, installed
from holdfast.errors import ConfigError, HoldfastError

pytestmark = pytest.mark.filterwarnings("ignore")

SAVED = {"weight": random_bits(300, 40, seed=1), "bias": random_bits(40, seed=2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save({"model": SAVED}, tmp_path / "c")


def current() -> set[Any]:
    """What torch's modules take for their reader."""
    return {vars(module)["FileSystemReader"] for module in (dcp, filesystem, _storage_utils)}


def damage(folder: Path) -> None:
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def loaded_by_torch(folder: Path) -> Any:
    state = {"model": {name: torch.zeros_like(value) for name, value in SAVED.items()}}
    dcp_load(state, checkpoint_id=folder, no_dist=True)
    return state["model"]


def test_torchs_default_reader_is_ours_inside_the_block_only(folder: Path) -> None:
    with installed(verify="full") as reader:
        assert current() == {reader}
        assert_same(loaded_by_torch(folder), SAVED)
        damage(folder)
        with pytest.raises(CheckpointException, match="CRC-32"):
            loaded_by_torch(folder)
    assert current() == {FileSystemReader}
    loaded_by_torch(folder)  # torch's own: notices nothing


def test_blocks_nest_and_survive_an_error() -> None:
    with installed() as outer:
        with pytest.raises(ZeroDivisionError), installed():
            raise ZeroDivisionError
        assert current() == {outer}
    assert current() == {FileSystemReader}


def test_no_class_of_torch_ever_derives_from_ours() -> None:
    with installed():
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    for derived in (FsspecReader, HuggingFaceStorageReader):
        assert not issubclass(derived, ParallelFileSystemReader)


def test_a_reader_is_one_of_torchs_inside_the_block_too(folder: Path) -> None:
    before = FileSystemReader(folder)
    ours = ParallelFileSystemReader(folder)
    with installed() as standing:
        assert all(isinstance(reader, filesystem.FileSystemReader) for reader in (before, ours, standing(folder)))
        assert not isinstance(folder, filesystem.FileSystemReader)


def test_a_class_derived_inside_the_block_has_only_its_own_instances(folder: Path) -> None:
    with installed() as standing:

        class Mine(filesystem.FileSystemReader):
            pass

        assert isinstance(Mine(folder), Mine)
        assert isinstance(Mine(folder), filesystem.FileSystemReader)
        assert not isinstance(standing(folder), Mine)


def test_an_invalid_option_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="verify"), installed(verify="x"):
        pass
    assert current() == {FileSystemReader}


def test_the_path_is_not_an_option() -> None:
    with pytest.raises(ConfigError), installed(path="x"):
        pass


def test_accelerate_merges_sharded_weights_through_it(tmp_path: Path) -> None:
    from accelerate.utils import merge_fsdp_weights
    from safetensors.torch import load_file

    folder = save({"model": SAVED}, tmp_path / "pytorch_model_fsdp_0")
    with installed():
        merge_fsdp_weights(str(folder), str(tmp_path / "merged"))
        assert_same(load_file(tmp_path / "merged" / "model.safetensors"), SAVED)
        damage(folder)
        with pytest.raises((CheckpointException, HoldfastError), match="CRC-32"):
            merge_fsdp_weights(str(folder), str(tmp_path / "again"))


def test_lightning_loads_sharded_checkpoints_through_it(tmp_path: Path) -> None:
    from lightning.fabric.utilities.load import _load_distributed_checkpoint

    folder = save({"model": SAVED}, tmp_path / "c")
    torch.save({"epoch": 3}, folder / "meta.pt")
    with installed():
        assert_same(_load_distributed_checkpoint(folder)["model"], SAVED)
        damage(folder)
        with pytest.raises((CheckpointException, HoldfastError), match="CRC-32"):
            _load_distributed_checkpoint(folder)


def test_the_reader_is_a_file_system_reader_and_takes_its_arguments(tmp_path: Path) -> None:
    folder = save(SAVED, tmp_path / "z", _extensions=[ZStandard()])
    for reader in (
        ParallelFileSystemReader(folder, ExtensionRegistry()),
        ParallelFileSystemReader(folder, _extension_registry=ExtensionRegistry()),
        ParallelFileSystemReader(path=folder),
    ):
        assert isinstance(reader, FileSystemReader)
        state = {name: torch.zeros_like(value) for name, value in SAVED.items()}
        dcp_load(state, storage_reader=reader, no_dist=True)
        assert_same(state, SAVED)


class Pairing(DefaultLoadPlanner):
    """Keeps the item between the two calls, and has one scratch tensor for all."""

    def __init__(self) -> None:
        super().__init__()
        self.item: ReadItem | None = None
        self.threads: set[int] = set()

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        assert self.item is None
        self.item = read_item
        self.scratch = torch.zeros(read_item.lengths)
        self.threads.add(threading.get_ident())
        return self.scratch

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        assert read_item is self.item
        super().resolve_tensor(read_item).copy_(tensor)
        self.item = None


def test_a_planner_that_needs_commit_right_behind_resolve_gets_it(folder: Path) -> None:
    planner = Pairing()
    state = {"model": {name: torch.zeros_like(value) for name, value in SAVED.items()}}
    dcp_load(state, storage_reader=ParallelFileSystemReader(folder, num_workers=4), planner=planner, no_dist=True)
    assert_same(state["model"], SAVED)
    assert planner.threads == {threading.get_ident()}


def test_blocks_that_overlap_leave_nothing_behind() -> None:
    from torch.distributed.checkpoint import filesystem

    original = filesystem.FileSystemReader
    first, second = installed(verify="off"), installed()
    first.__enter__()
    reader = second.__enter__()
    first.__exit__(None, None, None)
    assert filesystem.FileSystemReader is reader
    second.__exit__(None, None, None)
    assert filesystem.FileSystemReader is original
