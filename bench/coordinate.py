"""What coordination costs: store operations, CPU, takeover time, leased against static reading, adaptive shares.

Real processes over a TCPStore on this machine. Work is simulated by waiting, so that the figures are about coordination
and not about how many cores this machine has.
"""

from __future__ import annotations

import os

# Set before torch loads: its server asks a name server for every client's name, and a lost answer stalls it.
os.environ.setdefault("RES_OPTIONS", "attempts:0")

import multiprocessing
import statistics
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch.distributed as dist

from common import arguments, publish
from holdfast.coordinate import StreamCoordinator
from holdfast.errors import StaleLeaseError
from holdfast.order import Adaptive
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

TTL = 2.0
WORLD = 4
# What a rank four times slower than the other three should get, known beforehand: the ideal that adapting is held to.
PERFECT = (40 / 128, 39 / 128, 39 / 128, 10 / 128)


def client(port: int) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))


def host(channel: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    channel.send(store.port)
    channel.recv()


def dataset(samples: int) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(samples)}), name="bench", seed=1)


def coordinator(port: int, prefix: str, *, ttl: float = TTL, interval: int = 20) -> StreamCoordinator:
    return StreamCoordinator(client(port), WORLD, heartbeat=ttl / 3, ttl=ttl, prefix=prefix, balance_interval=interval)


def leased(port: int, prefix: str, rank: int, samples: int, delay: float, gate: Any, out: Any) -> None:
    with coordinator(port, prefix) as coord:
        coord.register_worker(rank)
        reader = coord.lease(dataset(samples), batch_size=32, chunk_size=64)
        gate.wait()
        began = time.monotonic()
        for chunk in reader:
            for batch in chunk:
                time.sleep(len(batch["value"]) * delay)
            try:
                chunk.commit()
            except StaleLeaseError:
                continue
        seconds = time.monotonic() - began
        out.put((rank, seconds, coord.operations))


def static(port: int, prefix: str, rank: int, samples: int, delay: float, gate: Any, out: Any) -> None:
    config = StreamingConfig(world_size=WORLD, rank=rank, batch_size=32, epochs=1, last_batch="short")
    loader = StreamingShardLoader(dataset(samples), config)
    gate.wait()
    began = time.monotonic()
    for batch in loader:
        time.sleep(len(batch["value"]) * delay)
    out.put((rank, time.monotonic() - began, 0))


def synchronous(
    port: int, prefix: str, rank: int, shares: str, samples: int, delay: float, gate: Any, out: Any
) -> None:
    with coordinator(port, prefix, interval=4) as coord:
        config = StreamingConfig(
            world_size=WORLD,
            rank=rank,
            batch_size=32,
            epochs=1,
            last_batch="short",
            partition_strategy=Adaptive(rebalance_threshold=0.1, shares=PERFECT if shares == "perfect" else None),
            dynamic_balancing=shares == "adaptive",
        )
        coord.heartbeat = 0.05
        loader = StreamingShardLoader(dataset(samples), config).with_coordinator(coord)
        slow = 4 if rank == WORLD - 1 else 1
        gate.wait()
        began = time.monotonic()
        for batch in loader:
            count = len(batch["value"])
            with coord.working(count):
                time.sleep(count * delay * slow)
            gate.wait()  # the step's all-reduce
        out.put((rank, time.monotonic() - began, coord.operations))


def beating(port: int, prefix: str, seconds: float, gate: Any, out: Any) -> None:
    """Measure the CPU of an otherwise idle worker with the default heartbeat."""
    with StreamCoordinator(client(port), WORLD, prefix=prefix) as coord:
        coord.register_worker(0)
        reader = coord.lease(dataset(1000), batch_size=8)
        iterator = iter(reader)
        next(iterator)
        gate.wait()
        used, began, operations = time.process_time(), time.monotonic(), coord.operations
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        out.put((0, (time.process_time() - used) / elapsed, (coord.operations - operations) / elapsed))
        iterator.close()  # type: ignore[attr-defined]


def doomed(port: int, prefix: str, ready: Any) -> None:
    """Lease a chunk and wait to be killed."""
    with coordinator(port, prefix) as coord:
        coord.register_worker(1)
        for _ in coord.lease(dataset(64), batch_size=32, chunk_size=64):
            ready.set()
            time.sleep(3600)


class Bench:
    """One store's host for all runs, each under a prefix of its own."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")
        self.channel, theirs = self.context.Pipe()
        self.host = self.context.Process(target=host, args=(theirs,), daemon=True)
        self.host.start()
        self.port: int = self.channel.recv()
        self.runs = 0

    def together(self, target: Any, *options: Any, workers: int = WORLD) -> list[tuple[int, float, float]]:
        """Run one process a rank, let them begin together, and return (rank, seconds, operations) of each."""
        self.runs += 1
        gate, out = self.context.Barrier(workers), self.context.Queue()
        processes = [
            self.context.Process(target=target, args=(self.port, f"run{self.runs}", rank, *options, gate, out))
            for rank in range(workers)
        ]
        for process in processes:
            process.start()
        results = [out.get(timeout=300) for _ in processes]
        for process in processes:
            process.join()
        return sorted(results)

    def heartbeat(self, seconds: float) -> tuple[float, float]:
        """Return an idle worker's share of a CPU, and its store operations a second."""
        self.runs += 1
        gate, out = self.context.Barrier(1), self.context.Queue()
        process = self.context.Process(target=beating, args=(self.port, f"run{self.runs}", seconds, gate, out))
        process.start()
        _, share, operations = out.get(timeout=300)
        process.join()
        return share, operations

    def takeover(self) -> float:
        """Kill the owner of a chunk and return how many TTLs later another worker holds it."""
        self.runs += 1
        prefix = f"run{self.runs}"
        ready = self.context.Event()
        victim = self.context.Process(target=doomed, args=(self.port, prefix, ready))
        victim.start()
        ready.wait()
        with coordinator(self.port, prefix) as coord:
            coord.register_worker(0)
            iterator = iter(coord.lease(dataset(64), batch_size=32, chunk_size=64))
            victim.kill()
            killed = time.monotonic()
            next(iterator).commit()
            waited = (time.monotonic() - killed) / TTL
            iterator.close()  # type: ignore[attr-defined]
        victim.join()
        return waited

    def close(self) -> None:
        """End the store's host."""
        self.channel.send(None)
        self.host.join()


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 5
    samples, delay = (8192, 0.0005) if options.quick else (16384, 0.001)
    bench = Bench()
    ratios, operations = [], []
    for _ in range(rounds):
        one = bench.together(static, samples, delay)
        other = bench.together(leased, samples, delay)
        ratios.append(max(seconds for _, seconds, _ in one) / max(seconds for _, seconds, _ in other))
        operations.append(statistics.mean(count / seconds for _, seconds, count in other))
    epochs: dict[str, list[float]] = {"adaptive": [], "even": [], "perfect": []}
    length, delay = (25_600, 0.00025) if options.quick else (38_400, 0.0005)
    for _ in range(rounds):
        for shares, times in epochs.items():
            times.append(max(seconds for _, seconds, _ in bench.together(synchronous, shares, length, delay)))
    adaptive, even, perfect = (statistics.median(epochs[shares]) for shares in ("adaptive", "even", "perfect"))
    computed = length * delay / (WORLD - 1 + 0.25)
    takeovers = [bench.takeover() for _ in range(rounds)]
    share, idle_operations = bench.heartbeat(10 if options.quick else 30)
    bench.close()
    publish(
        {
            "leased_over_static_throughput": statistics.median(ratios),
            "operations_per_worker_and_second_leased": statistics.median(operations),
            "operations_per_worker_and_second_heartbeat_only": idle_operations,
            "heartbeat_cpu_share": share,
            "takeover_in_ttls_median": statistics.median(takeovers),
            "takeover_in_ttls_worst": max(takeovers),
            "adaptive_epoch_over_ideal": adaptive / perfect,
            "adaptive_epoch_over_computed_ideal": adaptive / computed,
            "even_epoch_over_adaptive": even / adaptive,
        },
        {
            "rounds": rounds,
            "workers": WORLD,
            "ttl": f"{TTL} s (takeover), 15 s (heartbeat)",
            "adaptive": "one of four ranks four times slower; whole epoch, the adaptation included. ideal: the best "
            "shares known from the start, measured; computed ideal: no cost but the work",
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
