"""What will leased reading cost at 16,000 GPUs? Every rank's own heartbeats and leases, under a simulated clock.

Each rank has what a real worker has (``Presence``, ``HealthBoard``, ``Claims``), over one in-memory store that counts
operations as the real client makes them. Nodes die at random, with all their ranks. Nothing sleeps: time is a number,
and working on a chunk adds to it.

The time from an owner's death to the next owner's lease is at most one TTL, plus one heartbeat until a standby has seen
the last renewal, plus, if that standby is busy, the rest of its chunk.
"""

from __future__ import annotations

import heapq
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.coordinate.claims import READ_AHEAD, Claims
from holdfast.coordinate.health import HealthBoard
from holdfast.coordinate.living import Living
from holdfast.coordinate.presence import Presence
from holdfast.coordinate.records import Lease
from holdfast.coordinate.scenario import Scenario
from holdfast.errors import StaleLeaseError

__all__ = ["CountedStore", "LeaseCost", "simulate_leases"]


@dataclass(slots=True)
class LeaseCost:
    """The cost of a leased run."""

    chunks: int = 0
    committed: int = 0
    seconds: float = 0.0
    ideal_seconds: float = 0.0
    failures: int = 0
    chunks_redone: int = 0
    commits_refused: int = 0
    operations: int = 0
    operations_per_second: float = 0.0
    operations_per_rank_and_second: float = 0.0
    median_takeover_ttls: float = 0.0
    longest_takeover_ttls: float = 0.0
    store_bytes: int = 0
    peak_operations_per_second: int = 0
    conclusion: str = ""
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds, chunks committed, operations in that second) for every second."""


# Measured compare-and-sets per second of one server of each kind, with its 32 clients on the same two busy cores:
# ``store_operations_per_second_*`` of bench/coordinate.py. The durable ones wait for the disk, here a slow one.
MEASURED_CAPACITY = {"TCPStore": 27_000, "Redis": 500, "etcd": 90}


def _conclusion(cost: LeaseCost) -> str:
    """Return whether the job ends, how long it takes and which stores can handle its load, in one sentence."""
    peak = cost.peak_operations_per_second
    bears = [name for name, capacity in MEASURED_CAPACITY.items() if capacity >= peak]
    stores = (
        f"which {' and '.join(bears)} can handle"
        if bears
        else "more than any store was measured to handle: raise --heartbeat"
    )
    done = "finishes" if cost.committed == cost.chunks else f"ends with {cost.committed:,} of {cost.chunks:,} chunks"
    share = cost.ideal_seconds / cost.seconds if cost.seconds else 1.0
    return (
        f"The job {done} in {cost.seconds:,.0f} s ({share:.0%} of its ideal speed); the store's peak is {peak:,} "
        f"operations per second, {stores}."
    )


class CountedStore:
    """An in-memory store that answers, and counts its operations, as a ``StoreClient`` over a torch store does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.operations = 0

    def get(self, key: str) -> bytes | None:
        """Same as in the client."""
        self.operations += 1
        return self.values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Same as in the client."""
        self.operations += bool(keys)
        return [self.values.get(key) for key in keys]

    def set(self, key: str, value: bytes) -> None:
        """Same as in the client."""
        self.operations += 1
        self.values[key] = value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Same as in the client."""
        self.operations += 1
        current = self.values.get(key)
        if (current or b"") == expected:
            self.values[key] = desired
            return desired
        return current or b""

    def add(self, key: str, amount: int) -> int:
        """Same as in the client."""
        self.operations += 1
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total


def simulate_leases(scenario: Scenario, *, deaths: Sequence[tuple[float, int]] | None = None) -> LeaseCost:
    """Simulate leased reading: every rank runs the real code that claims, renews, commits and takes over.

    Args:
        scenario: the job.
        deaths: pairs of a time in seconds and the rank that dies then; None draws failures of whole nodes at random.
    """
    scenario.check_leases()
    return _LeaseRun(scenario, deaths).run()


class _Rank:
    """One worker: the parts of a real one, and the chunks it has leased but not yet begun."""

    def __init__(self, rank: int, scenario: Scenario, store: CountedStore, speed: float) -> None:
        self.rank = rank
        self.seconds = scenario.chunk_seconds / speed
        self.alive = True
        self.waiting: deque[Lease] = deque()
        self.presence = Presence(scenario.ranks)
        self.presence.register(store, rank, owner=f"{rank:012x}")
        self.board = HealthBoard(store, ttl=scenario.ttl)
        self.claims = Claims(
            store,
            owner=f"{rank:012x}",
            chunks=scenario.ranks * scenario.chunks_per_rank,
            ttl=scenario.ttl,
            rank=rank,
            replication=scenario.replication,
            living=Living(scenario.ranks),
        )


class _LeaseRun:
    def __init__(self, scenario: Scenario, deaths: Sequence[tuple[float, int]] | None) -> None:
        self.scenario = scenario
        self.store = CountedStore()
        self.cost = LeaseCost(chunks=scenario.ranks * scenario.chunks_per_rank)
        self.generator = np.random.default_rng(scenario.seed)
        slow = self.generator.random(scenario.ranks) < scenario.stragglers
        self.speed: list[float] = np.where(slow, 1 / scenario.slowdown, 1.0).tolist()
        self.ranks = [_Rank(rank, scenario, self.store, self.speed[rank]) for rank in range(scenario.ranks)]
        self.deaths = self._draw_deaths() if deaths is None else deaths
        self.died: dict[int, float] = {}  # chunk -> when its owner died
        self.takeovers: list[float] = []
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number = 0

    def _draw_deaths(self) -> list[tuple[float, int]]:
        scenario = self.scenario
        moments = self.generator.exponential(3600 * scenario.node_mtbf_hours, scenario.nodes).tolist()
        return [(moments[rank // scenario.ranks_per_node], rank) for rank in range(scenario.ranks)]

    def _plan(self, at: float, what: str, rank: int, chunk: int = -1) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, self.number, what, rank, chunk))

    def run(self) -> LeaseCost:
        scenario, cost = self.scenario, self.cost
        for rank in range(scenario.ranks):
            self._plan(float(self.generator.random()) * 0.5, "next", rank)
            self._plan(float(self.generator.random()) * scenario.heartbeat, "beat", rank)
        for at, rank in self.deaths:
            self._plan(at, "die", rank)
        cost.ideal_seconds = cost.chunks * scenario.chunk_seconds / sum(self.speed)
        limit = 100 * (cost.ideal_seconds + scenario.ttl)
        handlers = {"next": self._next, "beat": self._beat, "commit": self._commit, "die": self._die}
        second, before = 0, 0
        while self.events and cost.committed < cost.chunks:
            now, _, what, rank, chunk = heapq.heappop(self.events)
            if now > limit:
                break
            while now >= second + 1:
                cost.timeline.append((float(second), cost.committed, self.store.operations - before))
                second, before = second + 1, self.store.operations
            cost.seconds = now
            if self.ranks[rank].alive:
                handlers[what](now, self.ranks[rank], chunk)
        cost.timeline.append((cost.seconds, cost.committed, self.store.operations - before))
        cost.operations = self.store.operations
        cost.operations_per_second = cost.operations / max(cost.seconds, 1e-9)
        cost.operations_per_rank_and_second = cost.operations_per_second / scenario.ranks
        cost.chunks_redone = len(self.takeovers)
        if self.takeovers:
            cost.median_takeover_ttls = statistics.median(self.takeovers)
            cost.longest_takeover_ttls = max(self.takeovers)
        cost.store_bytes = sum(len(key) + len(value) for key, value in self.store.values.items())
        cost.peak_operations_per_second = max((operations for _, _, operations in cost.timeline), default=0)
        cost.conclusion = _conclusion(cost)
        return cost

    def _next(self, now: float, worker: _Rank, _: int) -> None:
        """Do what the reader does between two chunks."""
        claims, waiting = worker.claims, worker.waiting
        while len(waiting) <= READ_AHEAD and (leases := claims.next_leases(now, ahead=bool(waiting))):
            waiting.extend(leases)
            self.takeovers += [
                (now - self.died.pop(lease.chunk)) / self.scenario.ttl for lease in leases if lease.chunk in self.died
            ]
        if waiting:
            self._plan(now + worker.seconds, "commit", worker.rank, waiting.popleft().chunk)
        elif not claims.table.is_finished():
            claims.look(now)
            self._plan(now + claims.pause(now), "next", worker.rank)

    def _commit(self, now: float, worker: _Rank, chunk: int) -> None:
        table = worker.claims.table
        token = next((lease.token for lease in table.held if lease.chunk == chunk), 0)
        try:
            table.commit(chunk, token, now)
            self.cost.committed += 1
        except StaleLeaseError:
            self.cost.commits_refused += 1
        self._next(now, worker, -1)

    def _beat(self, now: float, worker: _Rank, _: int) -> None:
        worker.presence.beat(self.store, worker.rank)
        worker.claims.living = worker.presence.look_around(self.store, worker.board, now)
        worker.claims.beat(now)
        self._plan(now + self.scenario.heartbeat, "beat", worker.rank)

    def _die(self, now: float, worker: _Rank, _: int) -> None:
        self.cost.failures += 1
        worker.alive = False
        self.died.update((lease.chunk, now) for lease in worker.claims.table.held)
