"""Leased reading in one process: what a reader hands out, commits, gives back and goes on from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from holdfast.coordinate import LeasedReader, StreamCoordinator
from holdfast.coordinate.claims import idle_pause
from holdfast.coordinate.living import watched_chunks, watches
from holdfast.errors import ConfigError, CoordinationError, StaleLeaseError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

SAMPLES = 100


def dataset(samples: int = SAMPLES, seed: int = 3) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(samples)}), name="data", seed=seed)


@pytest.fixture
def store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


@pytest.fixture
def coordinator(store: Any) -> Iterator[StreamCoordinator]:
    with StreamCoordinator(store, 2) as coordinator:
        coordinator.register_worker(0)
        yield coordinator


def lease(coordinator: StreamCoordinator, **options: Any) -> LeasedReader:
    return coordinator.lease(dataset(), **{"batch_size": 4, "chunk_size": 8, **options})


def test_one_worker_alone_reads_every_sample_once_in_the_datasets_order(coordinator: StreamCoordinator) -> None:
    values: list[int] = []
    reader = lease(coordinator)
    for chunk in reader:
        assert [len(batch["value"]) for batch in chunk] == [4] * len(chunk)
        values += [value for batch in chunk for value in batch["value"].tolist()]
        chunk.commit()
    assert values == dataset().order().locate(np.arange(SAMPLES)).index.tolist()
    assert reader.is_finished()


def test_two_readers_share_a_job_without_overlap(store: Any, coordinator: StreamCoordinator) -> None:
    with StreamCoordinator(store, 2) as other:
        other.register_worker(1)
        iterators = [iter(lease(coordinator)), iter(lease(other))]
        seen: list[int] = []
        ended = 0
        while ended < 2:
            for iterator in list(iterators):
                chunk = next(iterator, None)
                if chunk is None:
                    iterators.remove(iterator)
                    ended += 1
                    continue
                seen += chunk.positions.tolist()
                chunk.commit()
        assert sorted(seen) == list(range(SAMPLES))


def test_what_is_committed_comes_back_once_a_chunk_with_its_payload(coordinator: StreamCoordinator) -> None:
    reader = lease(coordinator)
    assert reader.process(lambda chunk: str(int(chunk.positions[0]))) == 13
    assert [(done.chunk, done.payload) for done in reader.results()] == [(n, str(8 * n)) for n in range(13)]


def test_a_chunk_cannot_be_committed_twice(coordinator: StreamCoordinator) -> None:
    chunk = next(iterator := iter(lease(coordinator)))
    chunk.commit()
    with pytest.raises(StaleLeaseError) as caught:
        chunk.commit()
    assert (caught.value.chunk, caught.value.token) == (0, 1)
    iterator.close()  # type: ignore[attr-defined]


def test_chunks_given_back_by_a_reader_that_stops_are_read_by_the_next(coordinator: StreamCoordinator) -> None:
    iterator = iter(lease(coordinator))
    next(iterator).commit()
    abandoned = next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    reader = lease(coordinator)
    tokens: dict[int, int] = {}
    for chunk in reader:
        tokens[chunk.chunk] = chunk.token
        chunk.commit()
    assert tokens[abandoned.chunk] == 3  # given back under the second, taken under the third
    assert len(reader.results()) == 13


def test_a_saved_state_goes_on_in_a_new_store_without_doing_anything_again(coordinator: StreamCoordinator) -> None:
    iterator = iter(reader := lease(coordinator))
    for _ in range(5):
        next(iterator).commit()
    state = reader.state_dict()
    iterator.close()  # type: ignore[attr-defined]
    with StreamCoordinator(dist.HashStore(), 1) as fresh:  # type: ignore[attr-defined]
        fresh.register_worker(0)
        again = lease(fresh, state=state)
        assert again.process(lambda chunk: None) == 8
        assert [done.chunk for done in again.results()] == list(range(13))
        assert again.is_finished()
        assert again.state_dict()["finished"] == [[0, 13]]


def test_a_job_finished_before_it_began_yields_nothing(coordinator: StreamCoordinator) -> None:
    state = {**lease(coordinator, name="first").state_dict(), "finished": [[0, 13]]}
    assert list(lease(coordinator, name="second", state=state)) == []


@pytest.mark.parametrize("options", [{"chunk_size": 16}, {"positions": range(50)}])
def test_workers_that_do_not_agree_on_the_job_are_told_what_differs(
    coordinator: StreamCoordinator, options: dict[str, Any]
) -> None:
    lease(coordinator)
    with pytest.raises(CoordinationError, match=next(iter(options))):
        lease(coordinator, **options)


def test_another_datasets_job_is_refused(coordinator: StreamCoordinator) -> None:
    lease(coordinator)
    with pytest.raises(CoordinationError, match="order"):
        coordinator.lease(dataset(seed=4), batch_size=4, chunk_size=8)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"chunk_size": 0}, {"positions": range(0)}, {"positions": range(0, 10, 2)}]
)
def test_options_that_cannot_work_are_refused(coordinator: StreamCoordinator, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        lease(coordinator, **options)


def test_leasing_needs_a_registered_worker(store: Any) -> None:
    with StreamCoordinator(store, 1) as coordinator, pytest.raises(ConfigError, match="registered"):
        lease(coordinator)


@given(st.integers(1, 9), st.integers(0, 4), st.integers(0, 30), st.integers(0, 30))
def test_every_chunk_is_watched_by_one_worker_more_than_the_replication(
    workers: int, replication: int, low: int, count: int
) -> None:
    watched = [watched_chunks(low, low + count, place, workers, replication) for place in range(workers)]
    for chunk in range(low, low + count):
        assert sum(chunk in mine for mine in watched) == min(replication + 1, workers)
        assert [chunk in mine for mine in watched] == [
            watches(place, chunk, workers, replication) for place in range(workers)
        ]
    assert all(len(mine) == len(set(mine)) for mine in watched)


@given(st.floats(0.1, 100), st.integers(1, 100_000))
def test_idle_workers_together_never_ask_more_than_a_thousand_times_a_second_or_once_a_ttl(
    ttl: float, workers: int
) -> None:
    pause = idle_pause(ttl, workers)
    assert pause == ttl or workers / pause <= 1000 + 1e-6


def test_a_fast_worker_takes_many_chunks_at_a_time_and_a_slow_one_takes_one(coordinator: StreamCoordinator) -> None:
    def wanted(name: str, samples_a_second: int) -> int:
        reader = coordinator.lease(dataset(8000), name=name, batch_size=4, chunk_size=8, chunk_seconds=1.0)
        reader._speed.add(samples_a_second, 1.0)
        return len(reader._claims.draw(0.0, int(reader._speed.rate * reader._seconds / reader.job.chunk_size)))

    assert wanted("slow", 4) == 1
    assert wanted("medium", 80) == 10
    assert wanted("fast", 8000) == 32
