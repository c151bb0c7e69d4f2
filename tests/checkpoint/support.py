"""Checkpoints to load, and two ways to load them."""

from __future__ import annotations

import copy
import gc
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageReader

from holdfast.checkpoint import ParallelFileSystemReader
from holdfast.errors import HoldfastError

State = dict[str, Any]

# The tensors here are small, and OpenMP threads that spin for a busy core make every fill of one wait for the others.
torch.set_num_threads(1)
# What is imported by now stays; without this, each of hundreds of collections would look at all of torch again.
gc.collect()
gc.freeze()


def save(state: State, folder: Path, **writer: Any) -> Path:
    """Save as torch does, in one process."""
    with _quiet():
        dcp_save(state, storage_writer=FileSystemWriter(folder, sync_files=False, **writer), no_dist=True)
    return folder


def load(state: State, reader: StorageReader, planner: LoadPlanner | None = None) -> State:
    """Load as torch does, in one process; a failure is raised as what the reader raised, not as torch wraps it."""
    failure: CheckpointException | None = None
    try:
        with _quiet():
            dcp_load(state, storage_reader=reader, planner=planner, no_dist=True)
    except CheckpointException as wrapped:
        failure = wrapped
    if failure is not None:
        # Raised out here, so that the error keeps its own cause.
        raised = [error for error, _ in failure.failures.values()] + [getattr(reader, "error", None)]
        raise next((error for error in raised if isinstance(error, HoldfastError)), failure)
    return state


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # Torch warns that no process group is there, and that typed storages are going away; both are its business.
        warnings.simplefilter("ignore")
        yield


def blank(state: State) -> State:
    """The same state with every value wiped."""

    def wipe(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            extent = sum((size - 1) * stride for size, stride in zip(value.size(), value.stride(), strict=True)) + 1
            pattern = torch.full((max(extent, 0) * value.itemsize,), 0xA5, dtype=torch.uint8)
            if value.dtype == torch.bool or not value.numel():
                return torch.empty_like(value)
            return pattern.view(value.dtype).as_strided(value.size(), value.stride())
        if isinstance(value, dict):
            return {key: wipe(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [wipe(entry) for entry in value]
        return None

    wiped: State = wipe(copy.copy(state))
    return wiped


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """Every element's bits, in logical order."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.detach().reshape(-1))
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def assert_same(left: Any, right: Any, where: str = "state") -> None:
    """Bit for bit: NaN payloads and negative zeros included."""
    assert type(left) is type(right), f"{where}: {type(left)} and {type(right)}"
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype, where
        assert left.shape == right.shape, where
        assert raw_bytes(left) == raw_bytes(right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), where
        for number, pair in enumerate(zip(left, right, strict=True)):
            assert_same(*pair, f"{where}[{number}]")
    else:
        assert left == right, where


def load_both(saved: State, folder: Path, **options: Any) -> ParallelFileSystemReader:
    """Load with torch's reader and with ours, and hold both against what was saved."""
    stock = load(blank(saved), FileSystemReader(folder))
    reader = ParallelFileSystemReader(folder, **options)
    ours = load(blank(saved), reader)
    assert_same(ours, stock)
    assert_same(ours, saved)
    return reader


def random_bits(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A tensor of any dtype with every bit random (bools excepted)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = 1
    for size in shape:
        count *= size
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def open_descriptors() -> set[tuple[str, str]]:
    """The files this process has open, by number and target."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor is gone by now
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Assert that no thread and no open file outlives the block."""
    # What an earlier test left to the collector must not close, or be counted, in between.
    gc.collect()
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    yield
    assert {thread.name for thread in threading.enumerate() if thread not in threads} == set()
    assert open_descriptors() - descriptors == set()
