"""The store goes away under running workers: an error soon, never a hang, and nothing that was saved is lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.faults.coordinate_runs import DEADLINE, Host, start_worker, wait_until
from tests.faults.coordinate_worker import LOST, Job, connect, coordinator_for, dataset

from holdfast.errors import CoordinatorLost
from holdfast.stream import StreamingConfig, StreamingShardLoader


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_workers_end_with_coordinator_lost_when_the_stores_host_is(fault: signal.Signals, tmp_path: Path) -> None:
    host = Host()
    job = Job(str(tmp_path), host.port, 2)
    watching = connect(job)
    workers = [start_worker(job, rank) for rank in range(2)]
    wait_until(lambda: watching.add("holdfast/lease/job/1/committed", 0) >= 10, "ten commits")
    os.kill(host.process.pid, fault)
    for worker in workers:
        worker.join(DEADLINE)
    host.process.kill()
    assert [worker.exitcode for worker in workers] == [LOST, LOST]
    assert len(list(tmp_path.glob("lost-*.json"))) == 2
    for account in tmp_path.glob("worker-*.jsonl"):
        assert all("chunk" in json.loads(line) for line in account.read_text().splitlines())


def test_a_training_loop_ends_with_coordinator_lost_and_its_state_stands_where_it_stopped(tmp_path: Path) -> None:
    host = Host()
    job = Job(str(tmp_path), host.port, 1)
    config = StreamingConfig(world_size=1, rank=0, batch_size=4)
    with coordinator_for(job) as coordinator:
        loader = StreamingShardLoader(dataset(job), config).with_coordinator(coordinator)
        received = 0

        def train() -> None:
            nonlocal received
            for _ in loader:
                received += 1
                if received == 5:
                    host.process.kill()
                    host.process.join()

        with pytest.raises(CoordinatorLost):
            train()
    again = StreamingShardLoader(dataset(job), config)
    again.load_state_dict(loader.state_dict())
    assert again.step == received >= 5
