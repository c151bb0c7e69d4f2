"""The owner of a chunk is killed; its standby has the samples in memory already and takes over before anyone else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.coordinate_runs import Host, hear, start_talking, wait_for, wait_until
from tests.faults.coordinate_worker import Job, coordinator_for, stand_by

from holdfast.coordinate import WorkerStatus


def hear_of(channel: Any, what: str) -> Any:
    while True:
        kind, value = hear(channel)
        if kind == what:
            return value


def test_a_standby_takes_over_without_reading_and_a_bystander_neither_reads_nor_takes_over(tmp_path: Path) -> None:
    host = Host()
    job = Job(str(tmp_path), host.port, 3, samples=8, chunk_size=8, ttl=3.0)  # one chunk, three workers
    owner, to_owner = start_talking(stand_by, job, 0)
    assert hear_of(to_owner, "chunk") == (0, 1, job.samples)
    standby, to_standby = start_talking(stand_by, job, 1)
    while hear_of(to_standby, "read") < job.samples:
        pass  # it stands by for the chunk, and reads all of it while it has nothing else to do
    bystander, to_bystander = start_talking(stand_by, job, 2)
    with coordinator_for(job) as watching:
        wait_until(lambda: watching.get_worker_health(2).status is WorkerStatus.IDLE, "an idle bystander")
        owner.kill()
        chunk, token, reads = hear_of(to_standby, "chunk")
        assert (chunk, token) == (0, 2)
        assert reads == job.samples  # not one more than before the owner died
        assert hear_of(to_standby, "end") == (1, 1, job.samples)  # one taken over, one prefetched
        assert hear_of(to_bystander, "end") == (0, 0, 0)
    assert wait_for([owner, standby, bystander]) == [-9, 0, 0]
    host.close()
