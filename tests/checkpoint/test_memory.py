"""Memory stays within its limit, and a limit that is too small never stops a load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.checkpoint.support import assert_same, load, random_bits, save
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.filesystem import FileSystemReader

from holdfast.checkpoint import ParallelFileSystemReader, verify_checkpoint
from holdfast.checkpoint.budget import BLOCK_BYTES, LoadCancelledError, MemoryBudget
from holdfast.checkpoint.files import LocalFiles
from holdfast.checkpoint.workers import MAX_PROBES

# Loads into a transposed destination, so that every byte goes through a buffer, and prints how far the process grew.
MEASURE = """
import json, resource, sys, threading, warnings
import torch, torch.distributed.checkpoint as dcp
from holdfast.checkpoint import ParallelFileSystemReader
warnings.simplefilter("ignore")
torch.set_num_threads(1)
folder, limit, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state = {f"t{number}": torch.ones(2048, 2048).t() for number in range(count)}
warm = {"t0": torch.ones(2048, 2048)}
reader = ParallelFileSystemReader(folder, num_workers=8, memory_limit=limit, verify="off")
dcp.load(warm, storage_reader=reader, no_dist=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reader = ParallelFileSystemReader(folder, num_workers=8, memory_limit=limit)
dcp.load(state, storage_reader=reader, no_dist=True)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
print(json.dumps({"grown": grown, "peak": reader.report.peak_buffer_bytes, "first": state["t3"][5, 7].item()}))
"""


def test_peak_memory_above_the_destination_stays_within_the_limit(tmp_path: Path) -> None:
    saved = {f"t{number}": torch.full((2048, 2048), float(number)) for number in range(6)}
    folder = save(saved, tmp_path / "c", thread_count=4)
    limit = 24 << 20
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(limit), "6"], capture_output=True, text=True, check=True
    ).stdout
    measured = json.loads(output)
    assert measured["first"] == 3.0
    assert 0 < measured["peak"] <= limit
    # 96 MiB went through the buffers; thread stacks and torch's own caches are the slack.
    assert measured["grown"] <= limit + (8 << 20)


@pytest.mark.parametrize("limit", [1, 5000, 1 << 20])
@pytest.mark.parametrize("workers", [1, 4])
def test_any_limit_loads_everything(tmp_path: Path, limit: int, workers: int) -> None:
    saved = {"bent": random_bits(80, 60), "large": random_bits(70_000), "step": list(range(300))}
    folder = save(saved, tmp_path / "plain")
    packed = save({"x": saved["large"], "y": saved["bent"]}, tmp_path / "packed", _extensions=[ZStandard()])
    state = {"bent": torch.zeros(60, 80).t(), "large": torch.zeros(70_000), "step": [None] * 300}
    load(state, ParallelFileSystemReader(folder, memory_limit=limit, num_workers=workers))
    assert_same({**state, "bent": state["bent"].contiguous()}, saved)  # type: ignore[attr-defined]
    other = {"x": torch.zeros(70_000), "y": torch.zeros(80, 60)}
    load(other, ParallelFileSystemReader(packed, memory_limit=limit, num_workers=workers))
    assert_same(other, {"x": saved["large"], "y": saved["bent"]})


@pytest.mark.parametrize("extensions", [[], [ZStandard()]], ids=["plain", "compressed"])
@pytest.mark.parametrize("workers", [None, 2])
def test_a_load_gives_back_all_the_memory_that_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extensions: list[ZStandard], workers: int | None
) -> None:
    made: list[MemoryBudget] = []

    class Kept(MemoryBudget):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("holdfast.checkpoint.reader.MemoryBudget", Kept)
    saved: dict[str, Any] = {
        "bent": random_bits(600, 500),
        "large": random_bits(900_000),
        "small": random_bits(3),
        "object": "x" * 400_000,
    }
    folder = save(saved, tmp_path / "c", _extensions=extensions)
    state: dict[str, Any] = {
        name: torch.zeros_like(value) for name, value in saved.items() if isinstance(value, torch.Tensor)
    }
    state |= {"bent": torch.zeros(500, 600).t(), "object": None}
    load(state, ParallelFileSystemReader(folder, num_workers=workers))
    assert state["object"] == saved["object"]
    assert_same(state["bent"].contiguous(), saved["bent"])
    (budget,) = made
    assert budget.limit == 256 << 20  # as documented
    assert budget.peak > 0
    assert budget._used == 0


@pytest.mark.parametrize(
    ("make", "copies"),
    [(lambda: "x" * 400_000, 4), (lambda: torch.quantize_per_tensor(torch.ones(200), 0.5, 0, torch.qint8), 2)],
    ids=["object", "quantized tensor"],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_verify_counts_the_copies_of_what_it_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], copies: int
) -> None:
    made: list[MemoryBudget] = []

    def kept(limit: int) -> MemoryBudget:
        made.append(MemoryBudget(limit))
        return made[0]

    monkeypatch.setattr("holdfast.checkpoint.verify.MemoryBudget", kept)
    folder = save({"one": make()}, tmp_path / "c")
    assert verify_checkpoint(folder).sound
    (info,) = FileSystemReader(folder).read_metadata().storage_data.values()
    assert made[0].peak == copies * info.length


def test_a_request_beyond_the_whole_budget_is_admitted_alone() -> None:
    budget = MemoryBudget(1000)
    budget.reserve(5000)
    waiting = threading.Thread(target=budget.reserve, args=(1,))
    waiting.start()
    budget.unreserve(5000)
    waiting.join(10)
    assert not waiting.is_alive()
    assert budget.peak == 5000


def test_cancelling_wakes_whoever_waits() -> None:
    budget = MemoryBudget(10)
    budget.reserve(10)
    woken: list[bool] = []

    def wait() -> None:
        try:
            budget.reserve(1)
        except LoadCancelledError:
            woken.append(True)

    thread = threading.Thread(target=wait)
    thread.start()
    budget.cancel()
    thread.join(10)
    assert woken == [True]


def test_blocks_are_used_again() -> None:
    budget = MemoryBudget(4 * BLOCK_BYTES)
    first = budget.take(1_000_000)
    address = first.tensor.data_ptr()
    first.release()
    assert budget.take(2_000_000).tensor.data_ptr() == address


@pytest.mark.parametrize(("limit", "kept"), [(BLOCK_BYTES - 1, 0), (BLOCK_BYTES, 1), (2 * BLOCK_BYTES, 2)])
def test_no_more_blocks_are_kept_than_the_limit_has_room_for(limit: int, kept: int) -> None:
    budget = MemoryBudget(limit)
    held = [budget.take(BLOCK_BYTES) for _ in range(max(kept, 1))]
    for buffer in held:
        buffer.release()
    assert len(budget._free) == kept
    small = MemoryBudget(limit)
    small.take(1000).release()
    assert small._free == []
    budget.reserve(limit)  # everything: what was kept goes
    assert budget._free == []


class Cached(LocalFiles):
    """Files of which the kernel says that they are in memory, or that they are not."""

    def __init__(self, *missing: int, is_cached: bool) -> None:
        self.probes = 0
        self._missing = missing
        self._is_cached = is_cached

    def is_cached(self, descriptor: int, offset: int) -> bool:
        assert 0 < offset < os.fstat(descriptor).st_size
        self.probes += 1
        return self._is_cached and self.probes - 1 not in self._missing


def workers_of(tmp_path: Path, layer: LocalFiles, limit: int | None = None, tensors: int = 10) -> int:
    saved = {f"t{number}": torch.ones(100, 1500) for number in range(tensors)}
    folder = save(saved, tmp_path / "c", thread_count=10)
    reader = ParallelFileSystemReader(folder, memory_limit=limit, file_layer=layer)
    state = {name: torch.zeros_like(value) for name, value in saved.items()}
    load(state, reader)
    assert_same(state, saved)
    assert reader.report is not None
    return reader.report.workers


@pytest.mark.parametrize(("limit", "workers"), [(None, 8), (12 << 20, 3), (4 << 20, 1), (1, 1)])
@pytest.mark.parametrize("cores", [1, 2])
def test_the_threads_of_a_load_from_a_disk_follow_the_files_and_the_memory_not_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, limit: int | None, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers_of(tmp_path, Cached(is_cached=False), limit) == workers


@pytest.mark.parametrize(("limit", "cores", "workers"), [(None, 1, 1), (None, 3, 3), (None, 64, 8), (12 << 20, 64, 3)])
def test_files_that_are_in_memory_are_read_by_one_thread_per_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, limit: int | None, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers_of(tmp_path, Cached(is_cached=True), limit) == workers


@pytest.mark.parametrize("missing", [0, 9])
def test_one_part_that_is_not_in_memory_makes_a_load_one_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert workers_of(tmp_path, Cached(missing, is_cached=True)) == 8


def test_few_parts_of_a_large_checkpoint_are_looked_for_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    layer = Cached(is_cached=True)
    workers_of(tmp_path, layer, tensors=50)
    assert 8 < layer.probes <= MAX_PROBES


def test_what_was_just_written_is_in_memory_and_what_lies_beyond_the_end_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(10_000))
    layer = LocalFiles()
    descriptor = layer.open(path)
    try:
        if not layer.is_cached(descriptor, 5_000):
            pytest.skip("this file system does not say what is in memory")
        assert not layer.is_cached(descriptor, 10_000)
    finally:
        layer.close(descriptor)


def test_a_store_is_read_by_more_threads_than_a_disk(tmp_path: Path) -> None:
    saved = {f"t{number}": torch.ones(100, 1500) for number in range(10)}
    folder = save(saved, tmp_path / "c", thread_count=10)
    system = fsspec.filesystem("memory")
    system.put(f"{folder}/", "/threads/c/", recursive=True)
    try:
        reader = ParallelFileSystemReader("memory://threads/c")
        load({name: torch.zeros_like(value) for name, value in saved.items()}, reader)
    finally:
        system.rm("/threads", recursive=True)
    assert reader.report is not None
    assert reader.report.workers == len(saved)
