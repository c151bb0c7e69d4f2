"""What coordination costs: store operations, CPU, takeover time, leased against static reading, adaptive shares.

Real processes over a TCPStore on this machine. Work is simulated by waiting, so that the figures are about coordination
and not about how many cores this machine has.
"""

from __future__ import annotations

import os

# Set before torch loads: its server asks a name server for every client's name, and a lost answer stalls it.
os.environ.setdefault("RES_OPTIONS", "attempts:0")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # stores are killed here on purpose

import multiprocessing
import random
import signal
import statistics
import sys
import time
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from common import arguments, publish
from holdfast.coordinate import StreamCoordinator
from holdfast.coordinate.scenario import Scenario
from holdfast.coordinate.simulate_leases import simulate_leases
from holdfast.errors import CoordinatorLost, StaleLeaseError
from holdfast.order import Adaptive
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

TTL = 2.0
WORLD = 4
CHUNK_SECONDS = 3.0
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


def one_chunk(port: int, prefix: str, rank: int, gate: Any, out: Any) -> None:
    """Work on one chunk of one's own, then wait for the others' and say when one was taken over."""
    with coordinator(port, prefix) as coord:
        time.sleep(random.Random(f"{prefix}/{rank}").random() * TTL / 3)  # workers' heartbeats are not in step
        coord.register_worker(rank)
        gate.wait()
        time.sleep(TTL / 2)  # by then each has seen all the others
        for chunk in coord.lease(dataset(64 * WORLD), batch_size=32, chunk_size=64):
            if chunk.token == 1:
                time.sleep(CHUNK_SECONDS)
            else:
                out.put(time.monotonic())
            chunk.commit()


def until_lost(port: int, ready: Any, out: Any) -> None:
    """Work off small chunks until the store is lost, and say when that was noticed."""
    with coordinator(port, "lost") as coord:
        coord.register_worker(0)
        try:
            for chunk in coord.lease(dataset(10**7), batch_size=32, chunk_size=64):
                time.sleep(0.01)
                chunk.commit()
                ready.set()
        except CoordinatorLost:
            out.put(time.monotonic())


def hammer(address: str, seconds: float, gate: Any, out: Any) -> None:
    """Renew one record as fast as the store answers; say how often that was in a second."""
    from holdfast.coordinate import open_store

    store, key = open_store(address), f"hammer/{os.getpid()}"
    gate.wait()
    before, count, end = b"", 0, time.monotonic() + seconds
    while time.monotonic() < end:
        wanted = f"{os.getpid()}/{count}".encode() * 4
        assert store.compare_set(key, before, wanted) == wanted
        before, count = wanted, count + 1
    out.put(count / seconds)


def capacity(kind: str, seconds: float, clients: int = 32) -> float:
    """Return how many compare-and-sets a second a server bears; 0 where it cannot be started.

    Many clients, because a durable server brings what many of them wrote to disk at once.
    """
    import tempfile

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.faults.coordinate_servers import Server, why_not

    if why_not(kind) is not None:
        return 0.0
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        server = Server(kind, Path(folder) / "server")
        gate, out = context.Barrier(clients), context.Queue()
        processes = [context.Process(target=hammer, args=(server.address, seconds, gate, out)) for _ in range(clients)]
        for process in processes:
            process.start()
        total = sum(out.get(timeout=300) for _ in processes)
        for process in processes:
            process.join()
        server.kill()
    return float(total)


class Bench:
    """One store's host for all runs, each under a prefix of its own."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")
        self.host, self.channel, self.port = self.start_host()
        self.runs = 0

    def start_host(self) -> tuple[Any, Any, int]:
        """Start a process that holds a store."""
        channel, theirs = self.context.Pipe()
        process = self.context.Process(target=host, args=(theirs,), daemon=True)
        process.start()
        return process, channel, channel.recv()

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
        """Return an idle worker's share of a CPU, and its store operations per second."""
        self.runs += 1
        gate, out = self.context.Barrier(1), self.context.Queue()
        process = self.context.Process(target=beating, args=(self.port, f"run{self.runs}", seconds, gate, out))
        process.start()
        _, share, operations = out.get(timeout=300)
        process.join()
        return share, operations

    def takeover(self, dies_at: float) -> float:
        """Kill the owner of a chunk so long after the start; return how many TTLs later another worker holds it."""
        self.runs += 1
        gate, out = self.context.Barrier(WORLD + 1), self.context.Queue()
        processes = [
            self.context.Process(target=one_chunk, args=(self.port, f"run{self.runs}", rank, gate, out))
            for rank in range(WORLD)
        ]
        for process in processes:
            process.start()
        gate.wait()
        time.sleep(TTL / 2 + dies_at)
        processes[-1].kill()
        killed = time.monotonic()
        waited = (out.get(timeout=60) - killed) / TTL
        for process in processes:
            process.join()
        return float(waited)

    def lost(self, fault: signal.Signals) -> float:
        """Kill or stop the store's host; return how many TTLs later a worker that uses it is told."""
        process, _, port = self.start_host()
        ready, out = self.context.Event(), self.context.Queue()
        worker = self.context.Process(target=until_lost, args=(port, ready, out))
        worker.start()
        ready.wait()
        os.kill(process.pid, fault)
        gone = time.monotonic()
        waited = (out.get(timeout=60) - gone) / TTL
        process.kill()
        process.join()
        worker.join()
        return float(waited)

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
    # Anywhere between two heartbeats, just before the others have nothing left to do.
    moments = (CHUNK_SECONDS - TTL / 3 * np.random.default_rng(0).random(2 * rounds)).tolist()
    takeovers = [bench.takeover(moment) for moment in moments]
    job = Scenario(
        ranks=WORLD, chunks_per_rank=1, chunk_seconds=CHUNK_SECONDS, ttl=TTL, heartbeat=TTL / 3, stragglers=0.0
    )
    simulated = [
        simulate_leases(replace(job, seed=seed), deaths=[(moment, WORLD - 1)]).longest_takeover_ttls
        for seed in range(20)
        for moment in moments
    ]
    lost = {fault: [bench.lost(fault) for _ in range(rounds)] for fault in (signal.SIGKILL, signal.SIGSTOP)}
    share, idle_operations = bench.heartbeat(10 if options.quick else 30)
    bears = {kind: capacity(kind, 3.0 if options.quick else 10.0) for kind in ("tcp", "redis", "etcd")}
    bench.close()
    publish(
        {
            "leased_over_static_throughput": statistics.median(ratios),
            "operations_per_worker_and_second_leased": statistics.median(operations),
            "operations_per_worker_and_second_heartbeat_only": idle_operations,
            "heartbeat_cpu_share": share,
            "takeover_in_ttls_median": statistics.median(takeovers),
            "takeover_in_ttls_worst": max(takeovers),
            "takeover_in_ttls_simulated_median": statistics.median(simulated),
            "takeover_in_ttls_simulated_worst": max(simulated),
            "store_killed_noticed_in_ttls_worst": max(lost[signal.SIGKILL]),
            "store_stopped_noticed_in_ttls_worst": max(lost[signal.SIGSTOP]),
            **{f"store_operations_per_second_{kind}": count for kind, count in bears.items()},
            "adaptive_epoch_over_ideal": adaptive / perfect,
            "adaptive_epoch_over_computed_ideal": adaptive / computed,
            "even_epoch_over_adaptive": even / adaptive,
        },
        {
            "rounds": rounds,
            "workers": WORLD,
            "ttl": f"{TTL} s (takeover, lost store), 15 s (heartbeat)",
            "takeover": "one of four workers is killed anywhere between two heartbeats, the others wait. simulated: "
            "the same job by `holdfast simulate`'s code, 20 seeds",
            "adaptive": "one of four ranks four times slower; whole epoch, the adaptation included. ideal: the best "
            "shares known from the start, measured; computed ideal: no cost but the work",
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
