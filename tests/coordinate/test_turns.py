"""What one worker does for all, when it is paused, or fails, in the middle of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate import FolderSink, LeasedChunk, StreamCoordinator
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.turns import Turns
from holdfast.errors import CoordinationError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

CHUNKS, SIZE = 6, 4
SOON, LATE = 0.3, 3600.0  # a TTL that is waited for, and one that passes in no test


def dataset(seed: int = 3) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(CHUNKS * SIZE)}), name="data", seed=seed)


def worker(store: Any, rank: int = 0, *, ttl: float = LATE) -> StreamCoordinator:
    coordinator = StreamCoordinator(store, 2, ttl=ttl, heartbeat=0.05)
    coordinator.register_worker(rank)
    return coordinator


def lease(coordinator: StreamCoordinator, seed: int = 3, **options: Any) -> Any:
    return coordinator.lease(dataset(seed), batch_size=2, chunk_size=SIZE, backoff=0.0, **options)


def fall_silent(coordinator: StreamCoordinator) -> None:
    """Send no more heartbeats, as a process does that is stopped."""
    coordinator._stop.set()
    assert coordinator._thread is not None
    coordinator._thread.join()
    coordinator._stop.clear()


@pytest.mark.parametrize("dies", [False, True], ids=["and goes on", "and died"])
def test_a_job_goes_on_after_a_worker_woke_up_that_had_been_paused_while_it_began_it(
    dies: bool, tmp_path: Path
) -> None:
    store, asleep, awake = dist.HashStore(), threading.Event(), threading.Event()  # type: ignore[attr-defined]
    begin = Ledger.begin

    def paused(ledger: Ledger, *arguments: Any) -> Any:
        if asleep.is_set():
            return begin(ledger, *arguments)
        asleep.set()
        assert awake.wait(60)
        begun = begin(ledger, *arguments)  # ends the generation that the others work in
        if dies:
            raise KeyboardInterrupt
        return begun

    patched = pytest.MonkeyPatch.context()
    with ThreadPoolExecutor(1) as pool, worker(store) as slow, worker(store, 1, ttl=SOON) as quick, patched as patch:
        patch.setattr(Ledger, "begin", paused)
        late = pool.submit(lease, slow, folder=tmp_path)
        assert asleep.wait(60)
        fall_silent(slow)
        assert lease(quick, folder=tmp_path).generation == 1
        awake.set()
        assert isinstance(late.exception(60), KeyboardInterrupt) == dies
    with worker(store) as again:  # on the same store, as a supervisor starts it
        assert lease(again, folder=tmp_path).process(lambda chunk: "") == CHUNKS


def test_a_worker_that_could_not_begin_the_job_holds_nobody_up_itself_included(tmp_path: Path) -> None:
    with worker(dist.HashStore()) as first:  # type: ignore[attr-defined]
        lease(first, folder=tmp_path).close()
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool, worker(store) as mistaken, worker(store, 1) as other:
        with pytest.raises(CoordinationError, match="order"):
            lease(mistaken, seed=4, folder=tmp_path)
        for coordinator in (mistaken, other):  # it lives on, as in a notebook
            assert pool.submit(lease, coordinator, folder=tmp_path).result(20).generation == 2


def test_a_worker_that_could_not_complete_the_job_holds_nobody_up(tmp_path: Path) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as pool, worker(store) as unlucky, worker(store, 1) as other:
        sink = FolderSink(tmp_path / "out")

        def full(sink: FolderSink, names: object) -> None:
            raise OSError("no space left")

        def work(chunk: LeasedChunk) -> str:
            chunk.open().write(b"x")
            return ""

        reader = lease(unlucky, folder=tmp_path / "job", sink=sink)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FolderSink, "publish_all", full)
            with pytest.raises(OSError, match="no space"):
                reader.process(work)
        joined = lease(other, folder=tmp_path / "job", sink=sink)
        assert pool.submit(joined.process, work).result(20) == 0


def test_a_worker_that_waits_for_its_turn_looks_a_hundred_times_per_ttl_until_the_work_is_done() -> None:
    store, waited = MemoryStore(), list[float]()
    first, second = (Turns(store, rank=rank, owner=f"life{rank}", ttl=LATE, wait=waited.append) for rank in range(2))
    assert first.take(store, "turn", done=lambda: False)
    assert not second.take(store, "turn", done=lambda: len(waited) == 3)
    assert waited == [LATE / 100] * 3


def test_a_late_sweep_leaves_what_a_newer_generation_writes(tmp_path: Path) -> None:
    sink = FolderSink(tmp_path / "out")
    with worker(dist.HashStore()) as coordinator:  # type: ignore[attr-defined]
        zombie = lease(coordinator, folder=tmp_path / "job", sink=sink)
        left = next(abandoned := iter(zombie)).open()  # never committed
        with worker(dist.HashStore()) as successor:  # type: ignore[attr-defined]
            chunk = next(iterator := iter(lease(successor, folder=tmp_path / "job", sink=sink)))
            chunk.open().write(b"new")
            assert sink.sweep(zombie.job.job, zombie.generation) == 1
            chunk.commit()
            iterator.close()
        left.close()
        abandoned.close()
    assert [file.read_bytes() for file in (tmp_path / "out").glob("part-*")] == [b"new"]
