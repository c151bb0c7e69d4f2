"""A host of the split-brain run: the store's, or a worker's that rejoins over a new connection after it was cut off.

A third role reads back what stands in the store when all is over.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from tests.faults.coordinate_worker import Job, coordinator_for, reader_for, without_name_lookups

from holdfast.errors import CoordinationError, StaleLeaseError


def hold_store(folder: Path, address: str) -> None:
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
    (folder / "port.tmp").write_text(str(store.port))
    (folder / "port.tmp").rename(folder / "port")
    sys.stdin.read()


def work(job: Job, rank: int) -> None:
    life = 0
    while True:
        life += 1
        account = Path(job.folder) / f"worker-{rank}-{life}.jsonl"
        try:
            with account.open("a", buffering=1) as file, coordinator_for(job) as coordinator:
                coordinator.register_worker(rank)
                for chunk in reader_for(job, coordinator):
                    values = [value for batch in chunk for value in batch["value"].tolist()]
                    time.sleep(len(values) * job.seconds_a_sample)  # the work
                    try:
                        chunk.commit(f"{rank}:{os.getpid()}:{chunk.token}:{sum(values)}")
                    except StaleLeaseError:
                        file.write(json.dumps({"refused": chunk.chunk}) + "\n")
                        continue
                    entry = {"chunk": chunk.chunk, "token": chunk.token, "pid": os.getpid(), "life": life}
                    file.write(json.dumps(entry) + "\n")
            return
        except (CoordinationError, dist.DistNetworkError) as error:
            with account.open("a") as file:
                file.write(json.dumps({"lost": str(error)[:200]}) + "\n")


def print_commits(job: Job) -> None:
    with coordinator_for(job) as coordinator:
        coordinator.register_worker(coordinator.join())
        print(json.dumps([[done.chunk, done.token, done.payload] for done in reader_for(job, coordinator).results()]))


if __name__ == "__main__":
    without_name_lookups()
    role, plan = sys.argv[1], json.loads(sys.argv[2])
    if role == "store":
        hold_store(Path(plan["folder"]), plan["address"])
    elif role == "commits":
        print_commits(Job(**plan["job"]))
    else:
        work(Job(**plan["job"]), plan["rank"])
