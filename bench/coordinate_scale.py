"""A million leased chunks on one machine, and a billion positions with a thousand workers in the simulator.

Two real workers over a TCPStore draw, lease and commit every chunk, with no work in between, so that the figures are
about coordination alone. Then, with everything done but a few chunks that a worker holds: what saving costs, whether a
lease is lost meanwhile, how long another worker takes to join, and how long a job takes to begin again.
"""

from __future__ import annotations

import os

# Set before torch loads: its server asks a name server for every client's name, and a lost answer stalls it.
os.environ.setdefault("RES_OPTIONS", "attempts:0")

import json
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch.distributed as dist

from common import arguments, publish
from holdfast.coordinate import Done, LeasedReader, StreamCoordinator
from holdfast.coordinate.chunk_size import MAX_CHUNK_BYTES, default_chunk_size
from holdfast.coordinate.finals import Finals
from holdfast.coordinate.ledger import Ledger
from holdfast.coordinate.records import to_line
from holdfast.coordinate.scenario import Scenario
from holdfast.coordinate.simulate_leases import simulate_leases
from holdfast.coordinate.stores import TorchStore
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

WORKERS = 2
# Chunks that are left open while saving is measured.
LEFT = 200
SAVE_INTERVAL = 30.0


def host(channel: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    channel.send(store.port)
    channel.recv()


def dataset(chunks: int) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.zeros(chunks, dtype=np.int8)}), name="bench", seed=1, shuffle="none")


@contextmanager
def worker(port: int) -> Iterator[StreamCoordinator]:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    with StreamCoordinator(store, WORKERS) as coordinator:
        coordinator.register_worker(coordinator.join())
        yield coordinator


def reader_of(coordinator: StreamCoordinator, chunks: int, **options: Any) -> LeasedReader:
    return coordinator.lease(dataset(chunks), batch_size=1, chunk_size=1, chunk_seconds=0.05, **options)


def work(port: int, chunks: int, saves: bool, out: Any) -> None:
    """Commit until only a few chunks are left; say how many, how long it took, and what it cost."""
    with worker(port) as coordinator:
        reader = reader_of(coordinator, chunks)
        began = saved = time.perf_counter()
        count, saving = 0, []
        for chunk in reader:
            if chunk.chunk >= chunks - LEFT:
                break
            chunk.commit("a small result")
            count += 1
            if saves and time.perf_counter() - saved > SAVE_INTERVAL:
                saved = time.perf_counter()
                reader.state_dict()
                saving.append(time.perf_counter() - saved)
        seconds = time.perf_counter() - began
        out.put((count, seconds, coordinator.operations / seconds, reader.chunks_lost, sum(saving) / seconds))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def at_the_end(port: int, chunks: int) -> dict[str, float]:
    """Measure what saving, listing, joining and beginning again cost with all but a few chunks done."""
    with worker(port) as coordinator:
        join, reader = timed(lambda: reader_of(coordinator, chunks))
        iterator = iter(reader)
        held = next(iterator)  # a lease that must not be lost, whatever is asked for meanwhile
        first, _ = timed(reader.state_dict)
        again = [timed(reader.state_dict)[0] for _ in range(5)]
        listing, results = timed(reader.results)
        state = reader.state_dict()
        writing, text = timed(lambda: json.dumps(state))
        held.commit("still mine")
        iterator.close()  # type: ignore[attr-defined]
        lost = reader.chunks_lost
    with StreamCoordinator(dist.HashStore(), 1) as fresh:
        fresh.register_worker(0)
        resuming, reader = timed(lambda: reader_of(fresh, chunks, state=json.loads(text)))
        reading, chunk = timed(lambda: next(iter(reader)))
        assert chunk.chunk >= len(results)
    return {
        "join_seconds": join,
        "state_first_seconds": first,
        "state_again_seconds": statistics.median(again),
        "state_again_share_of_30_s": statistics.median(again) / SAVE_INTERVAL,
        "state_as_json_seconds": writing,
        "state_bytes_per_chunk": len(text) / len(results),
        "results_seconds": listing,
        "resume_from_state_seconds": resuming + reading,
        "leases_lost_while_saving": lost,
    }


def from_a_folder(chunks: int) -> float:
    """Return how long it takes to begin again with a folder in which a million chunks have ended."""
    with tempfile.TemporaryDirectory() as place, StreamCoordinator(dist.HashStore(), 1) as coordinator:
        coordinator.register_worker(0)
        reader_of(coordinator, chunks, folder=place).close()
        (generation,) = Path(place).glob("generation-*")
        with (generation / "journal-bench.jsonl").open("w") as journal:
            for chunk in range(chunks - LEFT):
                journal.write(to_line(chunk, Done(chunk, "bench", 1, "a small result").encode()) + "\n")
        Ledger(place, owner="bench").seal(1)
        seconds, reader = timed(lambda: reader_of(coordinator, chunks, folder=place))
        assert next(iter(reader)).chunk == chunks - LEFT
    return seconds


def longest_holds(chunks: int) -> dict[str, float]:
    """Return for how long saving keeps a thread that renews leases from running, in CPU seconds of this process.

    CPU seconds, as a crowded machine keeps everybody from running: that says nothing about saving.
    """
    store = TorchStore(dist.HashStore())
    for chunk in range(chunks):
        store.set(f"chunk/{chunk}", Done(chunk, "bench", 1, "a small result").encode())
    store.add("tickets", chunks)
    finals, gaps, ended = Finals(store, chunks, []), [0.0], threading.Event()

    def renew() -> None:
        last = time.process_time()
        while not ended.wait(0.005):
            gaps.append(time.process_time() - last)
            last = time.process_time()

    def hold(function: Callable[[], Any]) -> tuple[float, Any]:
        gaps[:] = [0.0]
        result = function()
        return max(gaps), result

    thread = threading.Thread(target=renew)
    thread.start()
    first, (pages, _) = hold(finals.read)
    again, _ = hold(finals.read)
    writing, _ = hold(lambda: json.dumps(pages))
    ended.set()
    thread.join()
    return {"hold_first_cpu_seconds": first, "hold_again_cpu_seconds": again, "hold_json_cpu_seconds": writing}


def million(chunks: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    channel, theirs = context.Pipe()
    server = context.Process(target=host, args=(theirs,), daemon=True)
    server.start()
    port = channel.recv()
    memory = psutil.Process(server.pid).memory_info
    empty, out = memory().rss, context.Queue()
    workers = [context.Process(target=work, args=(port, chunks, rank == 0, out)) for rank in range(WORKERS)]
    for process in workers:
        process.start()
    done = [out.get(timeout=3000) for _ in workers]
    for process in workers:
        process.join()
    count, seconds = sum(each[0] for each in done), max(each[1] for each in done)
    figures = {
        "chunks": chunks,
        "chunks_per_second": count / seconds,
        "store_operations_per_second": sum(each[2] for each in done),
        "store_bytes_per_chunk": (memory().rss - empty) / count,
        "store_megabytes": memory().rss / 1e6,
        "leases_lost_under_way": sum(each[3] for each in done),
        "saving_share_of_throughput": sum(each[4] for each in done) / WORKERS,
        **at_the_end(port, chunks),
    }
    channel.send(None)
    server.join()
    return figures


def billion(positions: int, ranks: int) -> dict[str, float]:
    size = default_chunk_size(
        positions=positions, batch_size=1, workers=ranks, bytes_per_sample=8, max_bytes=MAX_CHUNK_BYTES
    )
    scenario = Scenario(ranks=ranks, chunks_per_rank=positions // size // ranks, chunk_seconds=1.0, node_mtbf_hours=5.0)
    seconds, cost = timed(lambda: simulate_leases(scenario))
    return {
        "simulated_positions": positions,
        "simulated_workers": ranks,
        "simulated_chunks": cost.chunks,
        "simulated_committed": cost.committed,
        "simulated_workers_that_died": cost.failures,
        "simulated_share_of_ideal_speed": cost.ideal_seconds / cost.seconds,
        "simulated_takeover_in_ttls_median": cost.median_takeover_ttls,
        "simulated_takeover_in_ttls_worst": cost.longest_takeover_ttls,
        "simulated_operations_per_second": cost.operations_per_second,
        "simulated_operations_per_second_peak": cost.peak_operations_per_second,
        "simulated_store_bytes_per_chunk": cost.store_bytes / cost.chunks,
        "simulation_seconds": seconds,
    }


def main() -> None:
    options = arguments(__doc__ or "")
    chunks, positions, ranks = (20_000, 10**6, 100) if options.quick else (1_000_000, 10**9, 1000)
    figures = {
        **longest_holds(chunks),
        **million(chunks),
        "resume_from_folder_seconds": from_a_folder(chunks),
        **billion(positions, ranks),
    }
    publish(
        figures,
        {
            "workers": f"{WORKERS} processes beside the store on one machine",
            "saving": f"state_dict() every {SAVE_INTERVAL:.0f} s under way; first: all records are read from the "
            "store; "
            "again: with nothing new",
            "ttl": "15 s",
        },
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
