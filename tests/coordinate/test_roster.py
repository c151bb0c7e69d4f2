"""Who is there: ranks that come and go by the hundred, and takeovers that do not wait for the departed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.coordinate.memory import MemoryStore

from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate.claims import GRACE, Claims
from holdfast.coordinate.health import HealthBoard
from holdfast.coordinate.living import FIRST_JOINED, Living
from holdfast.coordinate.presence import MAX_WATCHED, Presence
from holdfast.coordinate.roster import Roster, read_roster
from holdfast.errors import CoordinatorLost

TTL, HEARTBEAT = 9.0, 3.0


class Peer:
    """A worker as the coordinator's background thread runs it, on the test's clock."""

    def __init__(self, store: MemoryStore, chunks: int, *, world_size: int = 1) -> None:
        self.store = store
        self.presence = Presence(world_size, ttl=TTL, heartbeat=HEARTBEAT)
        self.rank = self.presence.join(store)
        owner = self.presence.register(store, self.rank).owner
        self.board = HealthBoard(store, ttl=TTL)
        self.claims = Claims(
            store, owner=owner, chunks=chunks, ttl=TTL, rank=self.rank, replication=1, living=Living(world_size)
        )

    def beat(self, now: float) -> None:
        self.presence.beat(self.store, self.rank)
        self.claims.living = self.presence.look_around(self.store, self.board, now)
        self.claims.beat(now)


@pytest.mark.parametrize("how", ["left in good order", "were killed"])
def test_after_two_hundred_departed_workers_a_takeover_takes_no_more_than_one_and_a_half_ttls(how: str) -> None:
    store, now = MemoryStore(), 0.0
    peers = [Peer(store, 6) for _ in range(3)]
    for _ in range(200):
        gone = Peer(store, 6)
        gone.beat(now)
        if how == "left in good order":
            gone.presence.leave(store)
    for _ in range(40):  # the living notice, neighbour by neighbour
        now += HEARTBEAT
        for peer in peers:
            peer.beat(now)
    assert [len(peer.claims.living) for peer in peers] == [3, 3, 3]
    victim, *rest = peers
    leases = victim.claims.draw(now, 1)
    for peer in peers:
        peer.beat(now)
    died, taken = now, None
    while taken is None:
        now += HEARTBEAT / 10
        for peer in rest:
            if round((now - died) / HEARTBEAT, 6).is_integer():
                peer.beat(now)
            taken = taken or peer.claims.take_over(now)
    assert taken.chunk == leases[0].chunk
    assert (now - died) / TTL <= 1.0 + GRACE + HEARTBEAT / TTL + 1e-6 <= 1.5


def test_a_joiner_with_another_world_size_evicts_nobody() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    with (
        StreamCoordinator(store, 4) as first,
        StreamCoordinator(store, 2) as second,
        StreamCoordinator(store, 1) as third,
    ):
        for rank in range(4):
            first.register_worker(rank)
        ranks = [coordinator.join() for coordinator in (second, third)]
        second.register_worker(ranks[0])
        third.register_worker(ranks[1])
        assert ranks == [FIRST_JOINED, FIRST_JOINED + 1]
        for rank in range(4):
            first._presence.beat(first._client, rank)  # nobody has replaced it


def test_workers_that_join_at_once_get_ranks_of_their_own() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    coordinators = [StreamCoordinator(store, 1) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        ranks = list(pool.map(lambda coordinator: coordinator.join(), coordinators))
    for coordinator in coordinators:
        coordinator.close()
    assert sorted(ranks) == list(range(FIRST_JOINED, FIRST_JOINED + 16))


@pytest.mark.parametrize("observer", ["has seen the one before", "is new"])
@pytest.mark.parametrize("how", ["left in good order", "was killed"])
def test_a_rank_that_was_joined_and_not_yet_registered_is_given_to_nobody_else(how: str, observer: str) -> None:
    store, now = MemoryStore(), 0.0
    witness, gone = Peer(store, 1), Peer(store, 1)
    witness.beat(now)
    if how == "left in good order":
        gone.presence.leave(store)
    while len(witness.presence.look_around(store, witness.board, now)) > 1:  # until it is off the roster
        now += HEARTBEAT
        witness.beat(now)
    joining = Presence(1, ttl=TTL, heartbeat=HEARTBEAT).join(store)
    assert joining == gone.rank  # whose last record still stands
    (witness if observer == "has seen the one before" else Peer(store, 1)).beat(now)
    assert joining in read_roster(store).living


def test_a_worker_that_finds_its_own_older_record_says_that_the_store_went_back() -> None:
    store = MemoryStore()
    peer = Peer(store, 1)
    older = store.get(f"worker/{peer.rank}")
    peer.beat(0.0)
    assert older is not None
    store.set(f"worker/{peer.rank}", older)
    with pytest.raises(CoordinatorLost, match="older data"):
        peer.beat(HEARTBEAT)


def test_the_rank_of_a_worker_that_left_is_given_to_the_next() -> None:
    store = MemoryStore()
    peers = [Peer(store, 1) for _ in range(3)]
    peers[1].presence.leave(store)
    assert Peer(store, 1).rank == peers[1].rank
    assert Peer(store, 1).rank == FIRST_JOINED + 3


@given(st.integers(0, 30), st.integers(0, 30), st.sets(st.integers(0, 60)), st.integers(1, 80))
def test_the_next_on_the_ring_are_the_living_in_order(world: int, joined: int, numbers: set[int], count: int) -> None:
    everyone = [*range(world), *range(FIRST_JOINED, FIRST_JOINED + joined)]
    gone = tuple(rank for number, rank in enumerate(everyone) if number in numbers)
    living = Living(world, gone, joined)
    alive = list(living)
    assert len(living) == len(alive)
    assert [living.place(rank) for rank in alive] == list(range(len(alive)))
    for rank in everyone[:5]:
        number = everyone.index(rank)
        ring = [other for other in everyone[number + 1 :] + everyone[:number] if other not in gone]
        assert living.after(rank, count) == ring[:count]


class Churn(RuleBasedStateMachine):
    """Workers join, leave and register again: the roster says who is there, and never grows beyond those."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.alive: list[Presence] = []
        self.most = 0

    @rule()
    def join(self) -> None:
        presence = Presence(2)
        presence.register(self.store, presence.join(self.store))
        self.alive.append(presence)
        self.most = max(self.most, len(self.alive))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        self.alive.pop(which % len(self.alive)).leave(self.store)

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 50))
    def be_struck_off_by_mistake_and_come_back(self, which: int) -> None:
        presence = self.alive[which % len(self.alive)]
        from holdfast.coordinate.roster import change_roster

        change_roster(self.store, lambda roster: roster.without(presence.ranks))
        presence.look_around(self.store, HealthBoard(self.store, ttl=TTL), 0.0)

    @invariant()
    def the_roster_names_the_living_each_with_a_rank_of_its_own(self) -> None:
        roster = read_roster(self.store)
        ranks = [rank for presence in self.alive for rank in presence.ranks]
        assert len(set(ranks)) == len(ranks)
        assert [rank for rank in roster.living if rank >= FIRST_JOINED] == sorted(ranks)
        assert roster.joined <= self.most


TestChurn = Churn.TestCase


def test_a_roster_reads_back_as_it_was_written() -> None:
    roster = Roster(5, 3, (1, 2, 3, FIRST_JOINED), 15.0, 5.0)
    assert Roster.decode(roster.encode()) == roster
    assert MAX_WATCHED >= 16  # a machine's ranks die together, and are noticed together


def test_a_worker_that_two_others_saw_silent_is_struck_off_once() -> None:
    """The first of them makes the roster forget it; the second must not strike off a rank that is not on it."""
    roster = Roster(world=1).with_rank(FIRST_JOINED, 1).with_rank(FIRST_JOINED + 1, 1)
    silent = [FIRST_JOINED, FIRST_JOINED + 1]
    once = roster.without(silent)
    again = once.without(silent)
    assert again == once
    assert (len(again.living), again.next_free()) == (1, FIRST_JOINED)
    assert len(Roster(world=2).without([0, 1, 7, FIRST_JOINED]).living) == 0


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_a_rank_that_is_added_is_alive_and_ranks_below_it_that_nobody_took_are_free(
    world: int, rank: int, late: int
) -> None:
    expected = Roster().with_rank(rank, world)
    assert list(expected.living) == list(range(max(world, rank + 1)))
    joined = expected.with_rank(FIRST_JOINED + late, world)
    assert list(joined.living) == [*expected.living, FIRST_JOINED + late]
    taken = []
    while (free := joined.next_free()) < FIRST_JOINED + late:
        taken.append(free)
        joined = joined.with_rank(free, world)
    assert taken == list(range(FIRST_JOINED, FIRST_JOINED + late))
    assert (joined.gone, joined.joined) == ((), late + 1)
