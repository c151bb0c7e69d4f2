"""What will it cost at 16,000 GPUs? The real order, schedule, shares and lease code under a simulated clock.

Two questions, two functions. ``simulate_training`` runs the synchronous mode: nodes fail at random, the group restarts
smaller from the last checkpoint, grows again when the node is back, and stragglers slow everyone or get smaller shares.
``simulate_leases`` runs the leased mode: every rank has a real ``LeaseTable`` over one counted store in memory. Nothing
sleeps; time is a number.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.coordinate.balance import balanced_shares
from holdfast.coordinate.leased import LOOK_AT, idle_pause, watched_chunks
from holdfast.coordinate.protocol import LeaseTable
from holdfast.errors import ConfigError, StaleLeaseError
from holdfast.order import Adaptive, Order, Schedule, SourceSpec

__all__ = ["LeaseCost", "Scenario", "TrainingCost", "simulate_leases", "simulate_training"]

MOST_RANKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job and what may happen to it.

    Args:
        ranks: data-parallel ranks.
        ranks_per_node: how many of them a failing node takes along.
        hours: how long the job runs (synchronous mode).
        node_mtbf_hours: mean time between failures of one node.
        batch_size: samples a rank and step.
        step_seconds: time of a step of equal ranks.
        checkpoint_steps: steps between checkpoints.
        restart_seconds: from a failure to the next step.
        repair_hours: until a failed node is back.
        stragglers: the fraction of ranks that are slow.
        slowdown: how many times slower.
        ttl: of leases and heartbeats.
        heartbeat: seconds between signs of life.
        chunks_per_rank: work of the leased job.
        chunk_seconds: time of a chunk on a rank of normal speed.
        replication: standbys a chunk.
        seed: of the failures.
    """

    ranks: int = 1024
    ranks_per_node: int = 8
    hours: float = 24.0
    node_mtbf_hours: float = 20_000.0
    batch_size: int = 4
    step_seconds: float = 10.0
    checkpoint_steps: int = 60
    restart_seconds: float = 300.0
    repair_hours: float = 4.0
    stragglers: float = 0.01
    slowdown: float = 2.0
    ttl: float = 15.0
    heartbeat: float = 5.0
    chunks_per_rank: int = 4
    chunk_seconds: float = 5.0
    replication: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise ConfigError(f"ranks must be between 1 and {MOST_RANKS:,}", ranks=self.ranks)
        for name in ("ranks_per_node", "hours", "node_mtbf_hours", "batch_size", "step_seconds", "checkpoint_steps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive", value=getattr(self, name))
        if not 0 <= self.stragglers <= 1 or self.slowdown < 1 or self.restart_seconds < 0 or self.repair_hours < 0:
            raise ConfigError(
                "stragglers must be a fraction, slowdown at least 1, restart_seconds and repair_hours not negative",
                stragglers=self.stragglers,
                slowdown=self.slowdown,
            )
        if not 0 < self.heartbeat <= self.ttl / 2 or self.chunks_per_rank < 1 or not self.chunk_seconds > 0:
            raise ConfigError(
                "heartbeat must be at most half the ttl, and there must be work", heartbeat=self.heartbeat
            )

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.ranks // self.ranks_per_node)


@dataclass(slots=True)
class TrainingCost:
    """What a synchronous run cost."""

    failures: int = 0
    resizes: int = 0
    steps: int = 0
    steps_redone: int = 0
    samples: int = 0
    samples_reread: int = 0
    hours_lost_to_restarts: float = 0.0
    hours_lost_to_redone_steps: float = 0.0
    useful_fraction: float = 0.0
    step_slowdown_even_shares: float = 1.0
    step_slowdown_adaptive: float = 1.0
    state_bytes: int = 0
    positions_lost: int = 0
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(hours, ranks, samples delivered) at every change."""


def simulate_training(scenario: Scenario) -> TrainingCost:
    """Run the synchronous mode through its failures."""
    generator = np.random.default_rng(scenario.seed)
    cost = TrainingCost()
    total = scenario.ranks * scenario.batch_size
    order = Order([SourceSpec("data", 10**12, seed=scenario.seed)], partition=Adaptive())
    schedule = Schedule.start(order, world_size=scenario.ranks, global_batch_size=total)
    _compare_shares(scenario, total, cost)
    end = 3600 * scenario.hours
    failures, repairs = _draw_failures(scenario, generator, end)
    now, step, saved, delivered = 0.0, 0, 0, 0
    broken, world = 0, scenario.ranks
    cost.timeline.append((0.0, scenario.ranks, 0))
    for at, is_failure in heapq.merge(((t, True) for t in failures), ((t, False) for t in repairs)):
        if at >= end:
            break
        seconds = scenario.step_seconds * scenario.ranks / world * cost.step_slowdown_adaptive
        made = max(0, int((at - now) / seconds))
        step += made
        now = max(now, at)
        broken += 1 if is_failure else -1
        if is_failure:
            committed = max(saved, step - step % scenario.checkpoint_steps)
            redone = step - committed
            cost.failures += 1
            cost.steps_redone += redone
            cost.hours_lost_to_redone_steps += redone * seconds / 3600
            step = committed
        saved = step  # a planned change saves first; after a failure this is where the run goes on
        world = max(1, scenario.ranks - broken * scenario.ranks_per_node)
        schedule = schedule.resized(step, world_size=world)
        cost.resizes += 1
        now += scenario.restart_seconds
        cost.hours_lost_to_restarts += scenario.restart_seconds / 3600
        delivered = schedule.delivered_before(step)
        cost.timeline.append((now / 3600, world, delivered))
    seconds = scenario.step_seconds * scenario.ranks / world * cost.step_slowdown_adaptive
    step += max(0, int((end - now) / seconds))
    cost.steps = step
    cost.samples = schedule.delivered_before(step)
    cost.samples_reread = cost.steps_redone * total
    cost.positions_lost = step * total - cost.samples
    cost.useful_fraction = step * scenario.step_seconds * cost.step_slowdown_adaptive / end
    cost.timeline.append((scenario.hours, world, cost.samples))
    cost.state_bytes = len(json.dumps({"order": order.to_json(), **schedule.to_json()}, separators=(",", ":")))
    return cost


def _draw_failures(scenario: Scenario, generator: np.random.Generator, end: float) -> tuple[list[float], list[float]]:
    gap = 3600 * scenario.node_mtbf_hours / scenario.nodes
    failures: list[float] = []
    at = float(generator.exponential(gap))
    while at < end:
        failures.append(at)
        at += float(generator.exponential(gap))
    return failures, [moment + 3600 * scenario.repair_hours for moment in failures]


def _compare_shares(scenario: Scenario, total: int, cost: TrainingCost) -> None:
    """Find what stragglers do to a step with even shares and with shares in proportion to speed."""
    slow = round(scenario.ranks * scenario.stragglers)
    if not slow or scenario.slowdown == 1:
        return
    speed = np.ones(scenario.ranks)
    speed[:slow] /= scenario.slowdown
    shares = np.asarray(balanced_shares(speed.tolist(), total))
    cost.step_slowdown_even_shares = scenario.slowdown
    cost.step_slowdown_adaptive = float((shares * scenario.ranks / speed).max())


@dataclass(slots=True)
class LeaseCost:
    """What a leased run cost."""

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
    longest_takeover_ttls: float = 0.0
    store_bytes: int = 0
    timeline: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds, chunks committed, operations in that second) for every second."""


class CountedStore:
    """A store in memory that counts its operations and behaves as torch's stores do."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.operations = 0

    def get(self, key: str) -> bytes | None:
        """As a torch store."""
        self.operations += 1
        return self.values.get(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """As a torch store: a check and one read of all."""
        self.operations += 2
        return [self.values.get(key) for key in keys]

    def set(self, key: str, value: bytes) -> None:
        """As a torch store."""
        self.operations += 1
        self.values[key] = value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """As a torch store."""
        self.operations += 1
        current = self.values.get(key)
        if current == expected or (current is None and not expected):
            self.values[key] = desired
            return desired
        return expected if current is None else current

    def add(self, key: str, amount: int) -> int:
        """As a torch store."""
        self.operations += 1
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total


# A heartbeat's own operations besides leases: the record, the world's size, and a look at the neighbours.
BEAT_OPERATIONS = 4


def simulate_leases(scenario: Scenario) -> LeaseCost:
    """Run the leased mode: every rank claims, works, renews, dies and takes over by the real protocol."""
    return _LeaseRun(scenario).run()


class _LeaseRun:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.store = CountedStore()
        self.cost = LeaseCost(chunks=scenario.ranks * scenario.chunks_per_rank)
        self.generator = np.random.default_rng(scenario.seed)
        ranks = scenario.ranks
        slow = self.generator.random(ranks) < scenario.stragglers
        self.speed: list[float] = np.where(slow, 1 / scenario.slowdown, 1.0).tolist()
        self.tables = [self._table(rank, 0) for rank in range(ranks)]
        self.died: dict[int, float] = {}  # chunk -> when its owner died
        self.alive = [True] * ranks
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number = 0

    def _table(self, rank: int, life: int) -> LeaseTable:
        return LeaseTable(self.store, owner=f"{rank}.{life}", chunks=self.cost.chunks, ttl=self.scenario.ttl)

    def _plan(self, at: float, what: str, rank: int, chunk: int = -1) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, self.number, what, rank, chunk))

    def run(self) -> LeaseCost:
        scenario, cost = self.scenario, self.cost
        for rank in range(scenario.ranks):
            self._plan(float(self.generator.random()) * 0.5, "acquire", rank)
            self._plan(float(self.generator.random()) * scenario.heartbeat, "beat", rank)
            death = float(self.generator.exponential(3600 * scenario.node_mtbf_hours / scenario.ranks_per_node))
            self._plan(death, "die", rank)
        cost.ideal_seconds = cost.chunks * scenario.chunk_seconds / sum(self.speed)
        limit = 100 * (cost.ideal_seconds + scenario.ttl)
        second, before = 0, 0
        while self.events and cost.committed < cost.chunks:
            now, _, what, rank, chunk = heapq.heappop(self.events)
            if now > limit:
                break
            while now >= second + 1:
                cost.timeline.append((float(second), cost.committed, self.store.operations - before))
                second, before = second + 1, self.store.operations
            cost.seconds = now
            if self.alive[rank]:
                getattr(self, f"_{what}")(now, rank, chunk)
        cost.timeline.append((cost.seconds, cost.committed, self.store.operations - before))
        cost.operations = self.store.operations
        cost.operations_per_second = cost.operations / max(cost.seconds, 1e-9)
        cost.operations_per_rank_and_second = cost.operations_per_second / scenario.ranks
        cost.store_bytes = sum(len(key) + len(value) for key, value in self.store.values.items())
        return cost

    def _acquire(self, now: float, rank: int, _: int) -> None:
        table = self.tables[rank]
        for chunk in table.expired(now):
            lease = table.take_over(chunk, now)
            if lease is not None:
                waited = (now - self.died.get(chunk, now)) / self.scenario.ttl
                self.cost.longest_takeover_ttls = max(self.cost.longest_takeover_ttls, waited)
                self.cost.chunks_redone += 1
                self._plan(now + self.scenario.chunk_seconds / self.speed[rank], "commit", rank, chunk)
                return
        leases = table.claim(now, 1)
        if leases:
            self._plan(now + self.scenario.chunk_seconds / self.speed[rank], "commit", rank, leases[0].chunk)
            return
        if not table.is_finished():
            table.read_mark()
            if (rank - table.low) % self.scenario.ranks <= self.scenario.replication:
                table.move_mark(now)
            table.observe(now, table.open_chunks(LOOK_AT))
            table.publish_mark()
            self._plan(now + idle_pause(self.scenario.ttl, self.scenario.ranks), "acquire", rank)

    def _commit(self, now: float, rank: int, chunk: int) -> None:
        table = self.tables[rank]
        token = next((lease.token for lease in table.held if lease.chunk == chunk), 0)
        try:
            table.commit(chunk, token, now)
            self.cost.committed += 1
        except StaleLeaseError:
            self.cost.commits_refused += 1
        self._acquire(now, rank, -1)

    def _beat(self, now: float, rank: int, _: int) -> None:
        scenario, table = self.scenario, self.tables[rank]
        self.store.operations += BEAT_OPERATIONS
        table.renew(now)
        table.read_mark()
        if (rank - table.low) % scenario.ranks <= scenario.replication:
            table.move_mark(now)
        watched = watched_chunks(table.low, table.drawn(), rank, scenario.ranks, scenario.replication)
        table.observe(now, watched)
        self._plan(now + scenario.heartbeat, "beat", rank)

    def _die(self, now: float, rank: int, _: int) -> None:
        self.cost.failures += 1
        self.alive[rank] = False
        for lease in self.tables[rank].held:
            self.died[lease.chunk] = now
