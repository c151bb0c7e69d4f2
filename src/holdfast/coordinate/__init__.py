"""Health, takeover and rebalancing over a store, and work that is done exactly once.

Read the modules in this order. The store: ``stores`` (the contract and its engines), ``store`` (deadlines). A chunk's
life: ``records`` (its record in the store), ``protocol`` (leases by compare-and-set, pure), ``progress`` (which chunks
are done), ``claims`` (what a worker does next). A job's life: ``job``, ``begin`` (one worker begins it), ``ledger``
(its folder and its generations), ``sink`` (its outputs), ``finals`` and ``outcome`` (its results). Who is alive:
``health``, ``roster``, ``presence``, ``living``. Reading by leases: ``chunk_size``, ``standby``, ``leased``. Shares of
a step: ``throughput``, ``balance``. All of it together: ``coordinator``. The same code under a simulated clock:
``scenario``, ``simulate_leases``, ``simulate_training``.
"""

from __future__ import annotations

from holdfast.coordinate.coordinator import StreamCoordinator
from holdfast.coordinate.health import WorkerHealth, WorkerStatus
from holdfast.coordinate.leased import LeasedReader
from holdfast.coordinate.leased_chunk import LeasedChunk
from holdfast.coordinate.records import Dead, Done
from holdfast.coordinate.sink import FolderSink
from holdfast.coordinate.stores import EtcdStore, RedisStore, Store, open_store

__all__ = [
    "Dead",
    "Done",
    "EtcdStore",
    "FolderSink",
    "LeasedChunk",
    "LeasedReader",
    "RedisStore",
    "Store",
    "StreamCoordinator",
    "WorkerHealth",
    "WorkerStatus",
    "open_store",
]
