"""The coordinator over every kind of store that one process can hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from holdfast.coordinate import StreamCoordinator, WorkerStatus
from holdfast.coordinate.health import HealthBoard, WorkerRecord
from holdfast.coordinate.store import StoreClient
from holdfast.coordinate.stores import TorchStore
from holdfast.errors import ConfigError, CoordinationError, CoordinatorLost
from holdfast.order import Adaptive
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

KINDS = ("hash", "file", "tcp")


def make_store(kind: str, folder: Path) -> Any:
    if kind == "hash":
        return dist.HashStore()  # type: ignore[attr-defined]
    if kind == "file":
        return dist.FileStore(str(folder / "store"), -1)  # type: ignore[attr-defined]
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RES_OPTIONS", "attempts:0")
    return make_store(request.param, tmp_path)


@pytest.fixture
def coordinator(store: Any) -> Iterator[StreamCoordinator]:
    with StreamCoordinator(store, 4) as coordinator:
        yield coordinator


def dataset(samples: int = 320) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(samples)}), name="data", seed=3)


def test_a_registered_worker_is_active_and_says_what_it_did(coordinator: StreamCoordinator) -> None:
    coordinator.register_worker(1, range(10))
    coordinator.update_worker_health(1, 1000, 50.0)
    health = coordinator.get_worker_health(1)
    assert (health.rank, health.status) == (1, WorkerStatus.ACTIVE)
    assert (health.samples_processed, health.average_throughput) == (1000, 50.0)


def test_a_worker_nobody_has_seen_is_unknown(coordinator: StreamCoordinator) -> None:
    assert coordinator.get_worker_health(3).status is WorkerStatus.UNKNOWN


def test_a_checkpoint_is_published_and_read_back(coordinator: StreamCoordinator) -> None:
    assert coordinator.get_checkpoint(0) is None
    state = StreamingShardLoader(dataset()).get_checkpoint()
    coordinator.register_checkpoint(0, state)
    assert coordinator.get_checkpoint(0) == state.to_json()


def test_the_health_of_an_unregistered_worker_cannot_be_updated(coordinator: StreamCoordinator) -> None:
    with pytest.raises(CoordinationError, match="register_worker"):
        coordinator.update_worker_health(2, 1, 1.0)


def test_a_rebalance_is_due_only_where_speeds_stray_from_shares(store: Any) -> None:
    with StreamCoordinator(store, 2) as coordinator:
        for rank in range(2):
            coordinator.register_worker(rank)
            coordinator.update_worker_health(rank, 100, 10.0)
        coordinator._presence.beat(coordinator._client, 0)
        coordinator._presence.beat(coordinator._client, 1)
        assert not coordinator.rebalance_if_needed()
        coordinator.update_worker_health(1, 100, 2.0)
        coordinator._presence.beat(coordinator._client, 1)
        assert coordinator.rebalance_if_needed()


def test_a_leased_job_runs_over_every_kind_of_store(coordinator: StreamCoordinator) -> None:
    coordinator.register_worker(0)
    reader = coordinator.lease(dataset(), batch_size=8, chunk_size=16)
    assert reader.process(lambda chunk: str(chunk.token)) == 20
    assert [done.payload for done in reader.results()] == ["1"] * 20


def test_two_jobs_in_one_store_do_not_see_each_other(store: Any) -> None:
    with StreamCoordinator(store, 1, prefix="a") as first, StreamCoordinator(store, 1, prefix="b") as second:
        first.register_worker(0)
        assert second.workers() == []


def test_a_rank_registered_again_ends_the_process_that_had_it(store: Any) -> None:
    with StreamCoordinator(store, 1) as old, StreamCoordinator(store, 1) as new:
        old.register_worker(0)
        new.register_worker(0)
        with pytest.raises(CoordinationError, match="another process has registered this rank"):
            old._presence.beat(old._client, 0)


def test_a_closed_coordinator_says_so_and_leaves_no_thread(store: Any) -> None:
    coordinator = StreamCoordinator(store, 1)
    coordinator.register_worker(0)
    coordinator.close()
    with pytest.raises(CoordinationError, match="closed"):
        coordinator.get_worker_health(0)
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-heartbeat"]


def test_a_worker_that_left_in_good_order_is_not_failed(store: Any) -> None:
    with StreamCoordinator(store, 2) as watching:
        leaving = StreamCoordinator(store, 2)
        leaving.register_worker(1)
        assert watching.get_worker_health(1).status is WorkerStatus.ACTIVE
        leaving.close()
        assert watching.get_worker_health(1).status is WorkerStatus.UNKNOWN


@pytest.mark.parametrize(
    "options", [{"world_size": 0}, {"heartbeat": 10.0}, {"ttl": 0.0}, {"replication": -1}, {"balance_interval": 1}]
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StreamCoordinator(dist.HashStore(), **{"world_size": 2, **options})  # type: ignore[attr-defined]


def test_something_that_is_no_store_is_refused() -> None:
    with pytest.raises(ConfigError, match="store"):
        StreamCoordinator({}, 1)


def test_a_value_too_large_for_a_store_is_refused_before_it_breaks_the_connection(store: Any) -> None:
    client = StoreClient(store, prefix="p", timeout=10)
    with pytest.raises(ConfigError, match="too large"):
        client.set("key", b"x" * (TorchStore.max_value_bytes + 1))
    client.close()


def test_a_read_of_many_keys_marks_the_missing_ones(store: Any) -> None:
    client = StoreClient(store, prefix="p", timeout=10)
    client.set("a", b"1")
    assert client.get_many(["a", "b"]) == [b"1", None]
    client.set("b", b"2")
    assert client.get_many(["a", "b"]) == [b"1", b"2"]
    assert client.get("c") is None
    client.close()


def test_a_store_that_never_answers_is_lost_and_stays_lost() -> None:
    client = StoreClient(dist.HashStore(), prefix="p", timeout=0.05)  # type: ignore[attr-defined]
    never = threading.Event()
    with pytest.raises(CoordinatorLost, match="did not answer"):
        client._call(never.wait)
    with pytest.raises(CoordinatorLost):
        client.get("a")
    never.set()
    client.close()


class TestHealthByTheObserversClock:
    def board(self) -> tuple[HealthBoard, StoreClient]:
        client = StoreClient(dist.HashStore(), prefix="p", timeout=10)  # type: ignore[attr-defined]
        return HealthBoard(client, ttl=3.0), client

    def test_silence_beyond_the_ttl_is_failure_and_a_new_sign_of_life_ends_it(self) -> None:
        board, client = self.board()
        client.set("worker/0", WorkerRecord(0, "life").encode())
        board.look([0], 100.0)
        board.look([0], 103.0)
        assert board.health(0, 103.0).status is WorkerStatus.ACTIVE
        assert board.health(0, 103.1).status is WorkerStatus.FAILED
        client.set("worker/0", WorkerRecord(0, "life", 1).encode())
        board.look([0], 103.2)
        assert board.health(0, 103.2).status is WorkerStatus.ACTIVE
        client.close()

    def test_less_than_half_the_median_throughput_is_slow_and_waiting_is_idle(self) -> None:
        board, client = self.board()
        for rank, speed in enumerate([10.0, 10.0, 4.0]):
            client.set(f"worker/{rank}", WorkerRecord(rank, "life", throughput=speed).encode())
        client.set("worker/3", WorkerRecord(3, "life", state="idle").encode())
        board.look(range(4), 0.0)
        found = [board.health(rank, 0.0).status.name for rank in range(4)]
        assert found == ["ACTIVE", "ACTIVE", "SLOW", "IDLE"]
        client.close()


def test_a_loader_with_a_coordinator_adopts_agreed_shares_and_keeps_every_steps_positions(store: Any) -> None:
    world, steps = 2, 16
    coordinators = [StreamCoordinator(store, world, balance_interval=4) for _ in range(world)]
    loaders = [
        StreamingShardLoader(
            dataset(),
            StreamingConfig(
                batch_size=8, world_size=world, rank=rank, partition_strategy=Adaptive(), dynamic_balancing=True
            ),
        ).with_coordinator(coordinators[rank])
        for rank in range(world)
    ]
    order = dataset().order()
    iterators = [iter(loader) for loader in loaders]
    for step in range(steps):
        values = []
        for rank in range(world):
            values += next(iterators[rank])["value"].tolist()
            coordinators[rank].update_worker_health(rank, step, (3.0, 1.0)[rank])
            coordinators[rank]._presence.beat(coordinators[rank]._client, rank)
        assert sorted(values) == sorted(order.locate(np.arange(16 * step, 16 * step + 16)).index.tolist())
    assert [loader.share for loader in loaders] == [0.75, 0.25]
    assert loaders[0].schedule.to_json() == loaders[1].schedule.to_json()
    for iterator, coordinator in zip(iterators, coordinators, strict=True):
        iterator.close()  # type: ignore[attr-defined]
        coordinator.close()


def test_a_loader_goes_on_from_its_last_saved_state_when_a_coordinator_is_attached(tmp_path: Path) -> None:
    def loader(world: int) -> StreamingShardLoader:
        config = StreamingConfig(batch_size=8 // world, world_size=world, rank=0, checkpoint_path=tmp_path)
        return StreamingShardLoader(dataset(), config)

    first = loader(2)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    first.save()
    iterator.close()  # type: ignore[attr-defined]
    with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
        again = loader(1).with_coordinator(coordinator)
        assert again.step == 5
        rest = iter(again)
        expected = dataset().order().locate(np.arange(40, 48)).index.tolist()
        assert sorted(next(rest)["value"].tolist()) == sorted(expected)
        rest.close()  # type: ignore[attr-defined]
