"""What a worker does next, on a clock of the test's own: who takes over when, and what waiting costs the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate.claims import GRACE, Claims
from holdfast.coordinate.living import Living
from holdfast.coordinate.records import Done, decode
from holdfast.errors import StaleLeaseError

TTL = 10.0


def worker(store: MemoryStore, rank: int, *, world: int = 3, chunks: int = 1, replication: int = 1) -> Claims:
    return Claims(
        store,
        owner=f"life{rank}",
        chunks=chunks,
        ttl=TTL,
        rank=rank,
        replication=replication,
        living=Living(world),
    )


def lease_of_a_dead_owner(store: MemoryStore) -> tuple[Claims, Claims]:
    """Return the standby and a bystander of chunk 0, which have both just seen its owner's last sign of life."""
    assert worker(store, 0).draw(0.0)
    standby, bystander = worker(store, 1), worker(store, 2)
    assert (standby.stands_by(0), bystander.stands_by(0)) == (True, False)
    for claims in (standby, bystander):
        assert claims.draw(0.0) == []
        claims.look(0.0)
    return standby, bystander


def test_a_standby_takes_over_one_ttl_after_the_last_sign_of_life_and_others_one_grace_later() -> None:
    for first in (True, False):
        standby, bystander = lease_of_a_dead_owner(MemoryStore())
        assert standby.take_over(0.999 * TTL) is None
        assert bystander.take_over((1.0 + 0.999 * GRACE) * TTL) is None
        if first:
            assert standby.take_over(TTL) is not None
            assert bystander.take_over((1.0 + GRACE) * TTL) is None  # it sees that the standby has it
        else:
            assert bystander.take_over((1.0 + GRACE) * TTL) is not None


def test_an_owners_death_does_not_change_who_stands_by_for_the_lease_it_left() -> None:
    standby, bystander = lease_of_a_dead_owner(MemoryStore())
    for claims in (standby, bystander):
        claims.living = Living(3, gone=(0,))
    assert bystander.stands_by(0)  # for whatever is seen to change from now on
    assert bystander.take_over(TTL) is None
    assert standby.take_over(TTL) is not None


def test_a_worker_whose_clock_stood_still_meanwhile_is_refused_by_the_store_itself() -> None:
    # A suspended machine's monotonic clock does not move: no check of its own can tell the worker that it is late.
    store = MemoryStore()
    owner, standby = worker(store, 0), worker(store, 1)
    owner.draw(0.0)
    standby.look(0.0)
    taken = standby.take_over(TTL)
    assert taken is not None
    with pytest.raises(StaleLeaseError, match="another worker has taken over the chunk"):
        owner.table.commit(0, 1, 0.0, "late")
    assert standby.table.commit(0, taken.token, TTL, "in time").payload == "in time"
    assert decode(0, store.values["chunk/0"]) == Done(0, "life1", 2, "in time")


def test_a_lease_given_back_is_taken_at_once_by_anyone() -> None:
    store = MemoryStore()
    owner = worker(store, 0)
    owner.draw(0.0)
    owner.table.release(0.0)
    bystander = worker(store, 2)
    bystander.look(0.0)
    taken = bystander.take_over(0.0)
    assert taken is not None
    assert taken.token == 3


def test_leases_that_live_on_cost_one_look_together_and_no_attempt_each() -> None:
    store = MemoryStore()
    owner, idle = worker(store, 0, chunks=50), worker(store, 2, chunks=50)
    for _ in range(50):
        owner.draw(0.0)
    idle.look(0.0)
    owner.beat(TTL)
    before = store.operations
    assert idle.take_over(2 * TTL) is None
    assert store.operations - before == 1
    assert idle.take_over(2 * TTL) is None
    assert store.operations - before == 1  # nothing is due any more


@given(st.integers(1, 5000), st.integers(0, 3), st.floats(0.0, 1.0))
def test_nobody_spins_while_others_have_the_right_of_way(world: int, replication: int, at: float) -> None:
    # Until a lease expires for this worker, it looks at most 22 times: twenty a TTL, and at the expiry itself.
    store = MemoryStore()
    worker(store, 0, world=world, replication=replication).draw(0.0)
    idle = worker(store, round(at * (world - 1)), world=world, replication=replication)
    idle.draw(0.0)
    now, looks = 0.0, 0
    while idle.take_over(now) is None:
        idle.look(now)
        now += idle.pause(now)
        looks += 1
    assert looks <= 23
    assert now <= (1.0 + GRACE) * TTL + 0.01


@given(st.integers(1, 200), st.lists(st.integers(0, 199), unique=True))
def test_places_among_the_living_are_numbered_without_gaps(world: int, dead: list[int]) -> None:
    living = Living(world, tuple(sorted(rank for rank in dead if rank < world)))
    ranks = list(living)
    assert len(ranks) == len(living)
    assert [living.place(rank) for rank in ranks] == list(range(len(ranks)))
    assert all(living.place(rank) is None and rank not in living for rank in (*living.gone, world, -1))


def test_the_watchers_of_a_chunk_are_not_neighbours_who_would_die_together() -> None:
    watchers = [place for place in range(64) if worker(MemoryStore(), place, world=64, chunks=100).stands_by(5)]
    assert watchers == [5, 37]


def test_a_worker_that_has_work_leaves_the_last_chunks_to_those_that_have_none() -> None:
    store = MemoryStore()
    busy, idle = worker(store, 0, chunks=7), worker(store, 1, chunks=7)
    assert [lease.chunk for lease in busy.next_leases(0.0)] == [0]
    assert [lease.chunk for lease in busy.next_leases(0.0, ahead=True)] == [1]
    assert busy.next_leases(0.0, ahead=True) == []  # five left among three workers
    assert [lease.chunk for lease in idle.next_leases(0.0)] == [2]


@given(st.integers(1, 5), st.integers(1, 300))
def test_fewer_chunks_are_taken_at_a_time_as_the_end_comes_near(world: int, chunks: int) -> None:
    quick = worker(MemoryStore(), 0, world=world, chunks=chunks)
    taken = []
    while fresh := quick.draw(0.0, 1000):
        taken.append(len(fresh))
    assert sum(taken) == chunks
    assert taken == sorted(taken, reverse=True)
    assert (max(taken) <= 32, taken[-1]) == (True, 1)
