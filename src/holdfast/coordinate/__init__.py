"""Health, takeover and rebalancing on torch's own store.

Read the modules in this order: ``protocol`` (leases as compare-and-set records, pure), ``store`` (a torch store with
deadlines), ``health`` (who is alive), ``balance`` and ``throughput`` (who gets how much), ``leased`` (reading by
leases), ``coordinator`` (all of it), ``simulate`` (the same code under a simulated clock).
"""

from __future__ import annotations

from holdfast.coordinate.coordinator import StreamCoordinator
from holdfast.coordinate.health import WorkerHealth, WorkerStatus
from holdfast.coordinate.leased import LeasedChunk, LeasedReader

__all__ = ["LeasedChunk", "LeasedReader", "StreamCoordinator", "WorkerHealth", "WorkerStatus"]
