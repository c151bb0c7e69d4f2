"""A job and what may happen to it: the input of both simulations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import ConfigError

__all__ = ["MAX_RANKS", "Scenario"]

MAX_RANKS = 100_000
# As much as one machine simulates within minutes.
MAX_FAILURES = 100_000
MAX_EVENTS = 5_000_000
# Bounds of each option, inclusive; integer bounds mean an integer option. Hours reach a century, ttl a day.
_BOUNDS: dict[str, tuple[float, float]] = {
    "ranks": (1, MAX_RANKS),
    "ranks_per_node": (1, MAX_RANKS),
    "hours": (1e-3, 1e6),
    "node_mtbf_hours": (1e-6, 1e15),
    "batch_size": (1, 10**6),
    "step_seconds": (1e-4, 1e6),
    "checkpoint_steps": (1, 10**9),
    "save_seconds": (0.0, 1e6),
    "restart_seconds": (0.0, 1e7),
    "spare_nodes": (0, MAX_RANKS),
    "hang_fraction": (0.0, 1.0),
    "hang_seconds": (0.0, 1e7),
    "repair_hours": (0.0, 1e6),
    "stragglers": (0.0, 1.0),
    "slowdown": (1.0, 1000.0),
    "ttl": (1e-3, 86_400.0),
    "heartbeat": (1e-3, 86_400.0),
    "chunks_per_rank": (1, 10**6),
    "chunk_seconds": (1e-3, 86_400.0),
    "replication": (0, 100),
    "seed": (0, 2**63 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A job and what may happen to it.

    Args:
        ranks: number of data-parallel ranks.
        ranks_per_node: how many of them are lost when a node fails.
        hours: how long the job runs (synchronous mode).
        node_mtbf_hours: mean time between failures of one node.
        batch_size: samples per rank and step.
        step_seconds: time of a step of equal ranks.
        checkpoint_steps: steps between checkpoints.
        save_seconds: how long a checkpoint blocks the training.
        restart_seconds: time from a failure to the next step.
        spare_nodes: nodes that wait to replace failed ones, so that the job keeps its size.
        hang_fraction: the fraction of failures that hang instead of crashing, and must be noticed.
        hang_seconds: time until a hang is noticed: the timeout of a collective or of a watchdog.
        repair_hours: time until a failed node is back.
        stragglers: the fraction of ranks that are slow.
        slowdown: how many times slower they are.
        ttl: seconds of silence after which a lease expires and a worker counts as failed.
        heartbeat: seconds between heartbeats.
        chunks_per_rank: chunks per rank in the leased job.
        chunk_seconds: time of a chunk on a rank of normal speed.
        replication: standbys per chunk.
        seed: seed of the random failures.
    """

    ranks: int = 1024
    ranks_per_node: int = 8
    hours: float = 24.0
    node_mtbf_hours: float = 20_000.0
    batch_size: int = 4
    step_seconds: float = 10.0
    checkpoint_steps: int = 60
    save_seconds: float = 30.0
    restart_seconds: float = 300.0
    spare_nodes: int = 0
    hang_fraction: float = 0.1
    hang_seconds: float = 600.0
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
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            whole = isinstance(low, int)
            if not isinstance(value, int if whole else (int, float)) or not low <= value <= high:
                kind = "a whole number" if whole else "a number"
                raise ConfigError(f"{name} must be {kind} between {low:,} and {high:,}", **{name: value})
        if self.heartbeat > self.ttl / 2:
            raise ConfigError("heartbeat must be at most half the ttl", heartbeat=self.heartbeat, ttl=self.ttl)

    def check_training(self) -> None:
        """Reject a synchronous run with more failures than can be simulated."""
        failures = self.hours * self.nodes / self.node_mtbf_hours
        if failures > MAX_FAILURES:
            raise ConfigError(
                f"about {failures:,.0f} failures are expected, but at most {MAX_FAILURES:,} can be simulated",
                node_mtbf_hours=self.node_mtbf_hours,
                hours=self.hours,
                hint="raise node_mtbf_hours, or lower hours",
            )

    def check_leases(self) -> None:
        """Reject a leased job with more commits and heartbeats than can be simulated."""
        slowest = self.chunk_seconds * (self.slowdown if self.stragglers else 1)
        seconds = max(self.chunks_per_rank * self.chunk_seconds, slowest)
        events = self.ranks * (self.chunks_per_rank + seconds / self.heartbeat)
        if events > MAX_EVENTS:
            raise ConfigError(
                f"a leased job of about {seconds:,.0f} s has {events:,.0f} commits and heartbeats, but at most "
                f"{MAX_EVENTS:,} can be simulated",
                chunks_per_rank=self.chunks_per_rank,
                chunk_seconds=self.chunk_seconds,
                slowdown=self.slowdown,
                heartbeat=self.heartbeat,
                hint="lower chunks_per_rank, chunk_seconds or slowdown, raise heartbeat, or simulate the training only",
            )

    @property
    def best_interval_seconds(self) -> float:
        """The best time between checkpoints (Young, Daly): the square root of 2 · save time · time between failures."""
        between_failures = 3600 * self.node_mtbf_hours / self.nodes
        return max(self.step_seconds, math.sqrt(2 * self.save_seconds * between_failures))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return -(-self.ranks // self.ranks_per_node)
