"""The processes of the fault runs: a host for the store, and workers that lease, work and commit."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from holdfast.coordinate import FolderSink, LeasedReader, StreamCoordinator, open_store
from holdfast.errors import CoordinationError, CoordinatorLost, StaleLeaseError
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset

LOST = 3
REPLACED = 4


@dataclass(frozen=True, slots=True)
class Job:
    """What a fault run is about, the same for all its processes."""

    folder: str
    port: int
    world_size: int
    ttl: float = 1.0
    samples: int = 640
    chunk_size: int = 8
    batch_size: int = 4
    seconds_a_sample: float = 0.002
    replication: int = 1
    host: str = "127.0.0.1"

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)


def without_name_lookups() -> None:
    """Keep torch's server from asking a name server for each client's name: a lost answer stalls it for seconds."""
    os.environ["RES_OPTIONS"] = "attempts:0"


def connect(job: Job) -> Any:
    without_name_lookups()
    return dist.TCPStore(job.host, job.port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]


def dataset(job: Job) -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(job.samples)}), name="data", seed=11)


def coordinator_for(job: Job) -> StreamCoordinator:
    return StreamCoordinator(
        connect(job), job.world_size, heartbeat=job.ttl / 4, ttl=job.ttl, replication=job.replication
    )


def reader_for(job: Job, coordinator: StreamCoordinator) -> LeasedReader:
    return coordinator.lease(dataset(job), batch_size=job.batch_size, chunk_size=job.chunk_size)


def host_store(channel: Connection, address: str = "127.0.0.1") -> None:
    """Hold the store until the test ends it."""
    without_name_lookups()
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))  # type: ignore[attr-defined]
    channel.send(store.port)
    channel.recv()


def lease_and_commit(job: Job, rank: int | None, slowness: float = 1.0) -> None:
    """Work until the job is done; every accepted commit is written down, by this process's own account."""
    account = Path(job.folder) / f"worker-{rank}-{os.getpid()}.jsonl"
    last_answer = time.monotonic()
    try:
        with coordinator_for(job) as coordinator, account.open("a", buffering=1) as file:
            if rank is None:
                rank = coordinator.join()
            coordinator.register_worker(rank)
            for chunk in reader_for(job, coordinator):
                values = [value for batch in chunk for value in batch["value"].tolist()]
                time.sleep(len(values) * job.seconds_a_sample * slowness)  # the work
                last_answer = time.monotonic()
                try:
                    chunk.commit(f"{rank}:{os.getpid()}:{chunk.token}:{sum(values)}")
                except StaleLeaseError:
                    file.write(json.dumps({"refused": chunk.chunk, "token": chunk.token}) + "\n")
                    continue
                file.write(json.dumps({"chunk": chunk.chunk, "token": chunk.token, "pid": os.getpid()}) + "\n")
    except CoordinatorLost as error:
        waited = time.monotonic() - last_answer
        (Path(job.folder) / f"lost-{os.getpid()}.json").write_text(json.dumps({"seconds": waited, "error": str(error)}))
        os._exit(LOST)
    except CoordinationError:
        os._exit(REPLACED)


def work_in_a_fleet(plan: dict[str, Any]) -> None:
    """Work until the job is done, or its store is lost: a supervisor then starts the next life of this worker."""
    without_name_lookups()
    folder = Path(plan["folder"])
    samples = plan["chunks"] * plan["chunk_size"]
    data = StreamDataset(ArraySource({"value": np.arange(samples)}), name="data", seed=11)
    logging.disable(logging.WARNING)
    try:
        store = open_store((folder / "address").read_text(), timeout=30)
        coordinator = StreamCoordinator(
            store, 2, heartbeat=plan["ttl"] / 4, ttl=plan["ttl"], replication=plan["replication"], patience=20
        )
        with coordinator, (folder / f"account-{os.getpid()}.jsonl").open("a", buffering=1) as account:
            coordinator.register_worker(rank := coordinator.join())
            owner = coordinator._presence.record(rank).owner
            reader = coordinator.lease(
                data,
                batch_size=4,
                chunk_size=plan["chunk_size"],
                folder=folder / "job",
                sink=FolderSink(folder / "out", suffix=".json"),
                save_interval=0.2,
                max_attempts=50,  # pauses and kills here are the schedule's, not the chunk's
            )
            for chunk in reader:
                values = [value for batch in chunk for value in batch["value"].tolist()]
                with chunk.open("w") as file:
                    json.dump({"positions": chunk.positions.tolist(), "values": values}, file)
                time.sleep(len(values) * plan["seconds_per_sample"])  # the work
                try:
                    chunk.commit(str(sum(values)))
                except StaleLeaseError:
                    continue
                account.write(json.dumps([chunk.chunk, chunk.token, owner]) + "\n")
            listing = [[done.chunk, done.token, done.payload, done.file] for done in reader.results()]
            (folder / f"results-{os.getpid()}.json").write_text(json.dumps(listing))
    except (CoordinationError, ConnectionError) as error:
        (folder / f"ended-{os.getpid()}.txt").write_text(repr(error))
        os._exit(LOST)


def run_on_terminal(terminal: str, arguments: list[str]) -> None:
    """Run the command line on a terminal, as a shell would, with torch loaded already."""
    os.setsid()
    handle = os.open(terminal, os.O_RDWR)
    for number in range(3):
        os.dup2(handle, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (for the process's life)
    os.environ.update({"TERM": "xterm", "COLUMNS": "100"})
    without_name_lookups()
    from holdfast.cli.main import run

    run(arguments)


def commit_after_a_pause(job: Job, rank: int, how: str, channel: Connection) -> None:
    """Lease a chunk, work on it, sleep past the TTL as a whole process, and try to commit it when awake again."""
    with coordinator_for(job) as coordinator:
        coordinator.register_worker(rank)
        iterator = iter(reader_for(job, coordinator))
        chunk = next(iterator)
        channel.send((chunk.chunk, chunk.token, os.getpid()))
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)  # until the test sends SIGCONT
        else:
            # A call that keeps the interpreter's lock, as a long collection of garbage does: no thread of ours runs.
            ctypes.PyDLL(None).usleep(int(2.5 * job.ttl * 1e6))
        try:
            chunk.commit("late")
            channel.send("accepted")
        except StaleLeaseError as error:
            channel.send(f"refused: {error}")
        iterator.close()  # type: ignore[attr-defined]
        channel.recv()


def stand_by(job: Job, rank: int, channel: Connection) -> None:
    """Work as others do, and tell the test about every sample that is read and every chunk that is handed out."""
    reads = 0

    def counted(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal reads
        reads += 1
        channel.send(("read", reads))
        return sample

    with coordinator_for(job) as coordinator:
        coordinator.register_worker(rank)
        data = StreamDataset(ArraySource({"value": np.arange(job.samples)}), name="data", seed=11, transform=counted)
        reader = coordinator.lease(data, batch_size=job.batch_size, chunk_size=job.chunk_size)
        for chunk in reader:
            channel.send(("chunk", (chunk.chunk, chunk.token, reads)))
            if rank == 0:
                channel.recv()  # the owner: works until it is killed
            chunk.commit()
        channel.send(("end", (reader.chunks_taken_over, reader.chunks_prefetched, reads)))
