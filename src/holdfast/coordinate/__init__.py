"""Health, takeover and rebalancing on torch's own store.

Read the modules in this order. A chunk's life: ``records`` (what stands in the store), ``protocol`` (leases by
compare-and-set, pure), ``progress`` (what is done), ``claims`` (what a worker does next). Who is alive: ``health``,
``presence``, ``living``. The store itself, with deadlines: ``store``. Reading by leases: ``job``, ``standby``,
``leased``. Shares of a step: ``throughput``, ``balance``. All of it together: ``coordinator``. The same code under a
simulated clock: ``scenario``, ``simulate_leases``, ``simulate_training``.
"""

from __future__ import annotations

from holdfast.coordinate.coordinator import StreamCoordinator
from holdfast.coordinate.health import WorkerHealth, WorkerStatus
from holdfast.coordinate.leased import LeasedChunk, LeasedReader

__all__ = ["LeasedChunk", "LeasedReader", "StreamCoordinator", "WorkerHealth", "WorkerStatus"]
