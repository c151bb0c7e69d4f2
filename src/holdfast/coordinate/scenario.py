"""A job and what may happen to it: the question that both simulations answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import ConfigError

__all__ = ["MOST_RANKS", "Scenario"]

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
        save_seconds: how long a checkpoint holds the training up.
        restart_seconds: from a failure to the next step.
        spare_nodes: nodes that wait to replace failed ones, so that the job keeps its size.
        hang_fraction: the fraction of failures that crash nothing but hang, and must be noticed.
        hang_seconds: until a hang is noticed: a collective's timeout, or a watchdog's.
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
        if not 1 <= self.ranks <= MOST_RANKS:
            raise ConfigError(f"ranks must be between 1 and {MOST_RANKS:,}", ranks=self.ranks)
        for name in ("ranks_per_node", "hours", "node_mtbf_hours", "batch_size", "step_seconds", "checkpoint_steps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive", value=getattr(self, name))
        if not 0 <= self.hang_fraction <= 1 or min(self.save_seconds, self.spare_nodes, self.hang_seconds) < 0:
            raise ConfigError(
                "hang_fraction must be a fraction, save_seconds, spare_nodes and hang_seconds not negative",
                hang_fraction=self.hang_fraction,
            )
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
    def best_interval_seconds(self) -> float:
        """The time between checkpoints that costs least (Young, Daly): the root of 2 · save · time between failures."""
        between_failures = 3600 * self.node_mtbf_hours / self.nodes
        return max(self.step_seconds, math.sqrt(2 * self.save_seconds * between_failures))

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return -(-self.ranks // self.ranks_per_node)
