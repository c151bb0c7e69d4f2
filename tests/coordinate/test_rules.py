"""The protocol's rules, one by one, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate.claims import Claims
from holdfast.coordinate.leased import MAX_TRACEBACK
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.living import Living
from holdfast.coordinate.protocol import MAX_BACKOFF, LeaseTable
from holdfast.coordinate.records import Dead, Lease, decode
from holdfast.errors import StaleLeaseError, SupersededError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

TTL = 10.0


def table(store: MemoryStore, owner: str = "a", *, chunks: int = 1, max_attempts: int = 5) -> LeaseTable:
    return LeaseTable(store, owner=owner, chunks=chunks, ttl=TTL, max_attempts=max_attempts, backoff=1.0)


def until_expired(observer: LeaseTable, now: float) -> float:
    """Return how long after its last change an observed chunk may be taken over."""
    observer.observe(now, [0])
    expiry = observer.next_expiry()
    assert expiry is not None
    assert observer.expired(expiry - 0.001) == []
    assert observer.expired(expiry) == [0]
    return expiry - now


@pytest.mark.parametrize(
    "late",
    [
        lambda owner, token: owner.commit(0, token, TTL + 0.001),
        lambda owner, token: owner.fail(0, token, TTL + 0.001, "failed"),
    ],
    ids=["a commit", "a failure"],
)
def test_what_comes_after_the_ttl_is_refused_also_where_nobody_took_over(
    late: Callable[[LeaseTable, int], object],
) -> None:
    store = MemoryStore()
    owner = table(store)
    (lease,) = owner.claim(0.0)
    before = store.values["chunk/0"]
    with pytest.raises(StaleLeaseError, match="not renewed"):
        late(owner, lease.token)
    assert store.values["chunk/0"] == before


def test_a_commit_just_within_the_ttl_of_the_last_renewal_counts() -> None:
    owner = table(MemoryStore())
    (lease,) = owner.claim(0.0)
    assert owner.renew(TTL) == []
    assert owner.commit(0, lease.token, 2 * TTL).token == lease.token


def test_a_renewal_after_the_ttl_is_not_made_and_the_lease_is_lost() -> None:
    store = MemoryStore()
    owner = table(store)
    (lease,) = owner.claim(0.0)
    assert owner.renew(TTL + 0.001) == [lease]
    assert owner.held == []
    assert store.values["chunk/0"] == lease.encode()


def test_a_chunk_that_failed_waits_twice_as_long_at_each_attempt_up_to_a_bound() -> None:
    store, now, pauses = MemoryStore(), 0.0, []
    owner = table(store, max_attempts=12)
    lease: Lease | None
    (lease,) = owner.claim(now)
    for _ in range(11):
        assert lease is not None
        owner.fail(0, lease.token, now, "failed")
        pauses.append(until_expired(owner, now))
        now += pauses[-1]
        lease = owner.take_over(0, now)
    assert pauses == [min(MAX_BACKOFF, 2.0**attempt) for attempt in range(11)]
    assert pauses[-1] == MAX_BACKOFF


def test_silent_owners_count_as_attempts_and_from_the_third_on_the_next_gets_twice_the_time() -> None:
    store, now, waits, tokens = MemoryStore(), 0.0, [], []
    owners = [table(store, name) for name in "abcdef"]
    owners[0].claim(now)
    for heir in owners[1:]:
        waits.append(until_expired(heir, now))
        now += waits[-1]
        lease = heir.take_over(0, now)
        tokens.append(None if lease is None else (lease.token, lease.attempts))
    assert waits == [TTL, TTL, TTL, 2 * TTL, 4 * TTL]
    assert tokens == [(2, 1), (3, 2), (4, 3), (5, 4), None]  # after the fifth the chunk is given up
    dead = decode(0, store.values["chunk/0"])
    assert isinstance(dead, Dead)
    assert (dead.attempts, "fell silent for 40 s" in dead.error) == (5, True)
    assert store.values["taken_over"] == b"4"


def test_a_chunk_is_given_up_at_its_last_attempt_and_counted_before_that_is_a_fact() -> None:
    store = MemoryStore()
    owner = table(store, max_attempts=3)
    lease: Lease | None
    (lease,) = owner.claim(0.0)
    for attempt in (1, 2):
        assert lease is not None
        assert owner.fail(0, lease.token, 0.0, "failed") is None
        assert (b'"dead"' in store.values["chunk/0"], owner.given_up()) == (False, False)
        owner.observe(0.0, [0])
        lease = owner.take_over(0, 100.0)
        assert lease is not None
        assert lease.attempts == attempt
        owner.renew(100.0)
    assert lease is not None
    dead = owner.fail(0, lease.token, 100.0, "the last")
    assert dead is not None
    assert (dead.attempts, dead.error) == (3, "the last")
    assert owner.given_up()
    assert owner.is_finished()


def test_a_chunk_that_was_given_up_is_known_of_though_the_connection_broke_when_it_was_counted() -> None:
    class Broken(MemoryStore):
        """Loses one increment, as a client of a durable store does whose connection broke before it was sent."""

        lost = False

        def add(self, key: str, amount: int) -> int:
            if key == "dead" and not self.lost:
                self.lost = True
                return super().add(key, 0)
            return super().add(key, amount)

    owner = table(Broken(), max_attempts=1)
    (lease,) = owner.claim(0.0)
    assert isinstance(owner.fail(0, lease.token, 1.0, "poison"), Dead)
    assert owner.given_up()


def test_giving_a_lease_back_keeps_the_attempts_that_failed_before() -> None:
    store = MemoryStore()
    owner, heir = table(store), table(store, "b")
    (lease,) = owner.claim(0.0)
    owner.fail(0, lease.token, 0.0, "failed")
    owner.observe(0.0, [0])
    assert owner.take_over(0, 50.0) is not None
    owner.release(50.0)
    heir.observe(50.0, [0])
    again = heir.take_over(0, 100.0)
    assert again is not None
    assert again.attempts == 1


def test_a_worker_that_holds_its_chunk_again_cannot_commit_what_it_made_under_the_earlier_lease() -> None:
    store = MemoryStore()
    owner = table(store)
    (first,) = owner.claim(0.0)
    owner.fail(0, first.token, 0.0, "failed")
    owner.observe(0.0, [0])
    second = owner.take_over(0, 50.0)
    assert second is not None
    assert second.token > first.token
    with pytest.raises(StaleLeaseError):
        owner.commit(0, first.token, 50.0)
    assert owner.commit(0, second.token, 50.0).token == second.token


def test_giving_a_lease_back_is_no_failed_attempt() -> None:
    store = MemoryStore()
    owner, heir = table(store), table(store, "b")
    owner.claim(0.0)
    owner.release(0.0)
    heir.observe(0.0, [0])
    lease = heir.take_over(0, 0.0)
    assert lease is not None
    assert (lease.attempts, store.values.get("taken_over")) == (0, None)


def test_a_count_that_fell_behind_is_mended_by_the_first_who_has_seen_every_record() -> None:
    store = MemoryStore()
    owner = table(store, chunks=3)
    leases = owner.claim(0.0, 3)
    for lease in leases:
        owner.commit(lease.chunk, lease.token, 0.0)
    store.values["committed"] = b"2"  # a worker died between commit and count
    witness, other = table(store, "b", chunks=3), table(store, "c", chunks=3)
    witness.drawn()
    witness.observe(0.0, range(3))
    assert witness.is_finished()
    assert other.is_finished()  # by the count alone


def test_whoever_the_living_make_a_standby_looks_at_the_chunk_at_its_next_heartbeat() -> None:
    store, chunks = MemoryStore(), 600  # more than whoever moves the mark reads at a time
    workers = [
        Claims(store, owner=f"{rank}", chunks=chunks, ttl=TTL, rank=rank, replication=0, living=Living(3))
        for rank in range(3)
    ]
    workers[0].table.claim(0.0, chunks)
    for worker in workers[1:]:
        worker.beat(0.0)
    for worker in workers[1:]:
        worker.living = Living(3, gone=(0,))
        worker.beat(1.0)
    assert sorted({*workers[1].table._sightings, *workers[2].table._sightings}) == list(range(chunks))


def test_of_a_long_traceback_the_end_is_kept() -> None:
    data = StreamDataset(ArraySource({"value": np.arange(4)}), name="data", seed=3)
    with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(0)
        reader = coordinator.lease(data, chunk_size=4, max_attempts=1, on_error="skip")
        for chunk in reader:
            chunk.fail("x" * 5 * MAX_TRACEBACK + "the end")
        (letter,) = reader.dead_letters()
    assert len(letter.error) == MAX_TRACEBACK
    assert letter.error.endswith("xthe end")


def test_a_worker_whose_store_names_another_beginning_of_the_generation_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, owner="a")
    generation, mark, *_ = ledger.begin()
    with pytest.raises(SupersededError):
        Ledger(tmp_path, owner="b").enter(generation, "another")
    assert Ledger(tmp_path, owner="c").enter(generation, mark) == []


def test_a_jobs_folder_is_made_with_all_that_is_above_it(tmp_path: Path) -> None:
    data = StreamDataset(ArraySource({"value": np.arange(4)}), name="data", seed=3)
    with StreamCoordinator(dist.HashStore(), 1) as coordinator:  # type: ignore[attr-defined]
        coordinator.register_worker(0)
        reader = coordinator.lease(data, chunk_size=4, folder=tmp_path / "not" / "yet" / "there")
        assert reader.process(lambda chunk: "") == 1
    assert list((tmp_path / "not" / "yet" / "there").glob("generation-*"))
