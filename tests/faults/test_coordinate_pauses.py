"""A worker sleeps past the TTL between its work and its commit, wakes up, and is refused: by whomever, whenever."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.coordinate_runs import Host, hear, start_talking, wait_for, wait_until
from tests.faults.coordinate_worker import Job, commit_after_a_pause, coordinator_for, reader_for


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def job_of_two_chunks(folder: Path, host: Host) -> Job:
    return Job(str(folder), host.port, 2, samples=16, chunk_size=8)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("how", ["stopped", "holding the interpreter's lock"])
def test_a_woken_workers_commit_is_refused_and_the_other_workers_stands(how: str, host: Host, tmp_path: Path) -> None:
    job = job_of_two_chunks(tmp_path, host)
    sleeper, channel = start_talking(commit_after_a_pause, job, 0, how)
    chunk, token, pid = hear(channel)
    if how == "stopped":
        wait_until(lambda: is_stopped(pid), "a process that stops itself")
    with coordinator_for(job) as coordinator:
        coordinator.register_worker(1)
        reader = reader_for(job, coordinator)
        assert reader.process(lambda _: "in time") == job.chunks  # ends only when it has taken over the sleeper's
        if how == "stopped":
            os.kill(pid, signal.SIGCONT)
        answer = hear(channel)
        assert answer.startswith("refused"), answer
        assert {done.chunk: (done.payload, done.token) for done in reader.results()}[chunk] == ("in time", token + 1)
        assert [done.chunk for done in reader.results()] == list(range(job.chunks))
        channel.send(None)
        assert wait_for([sleeper]) == [0]


def test_a_worker_silent_beyond_the_ttl_is_refused_though_nobody_took_over(host: Host, tmp_path: Path) -> None:
    job = job_of_two_chunks(tmp_path, host)
    sleeper, channel = start_talking(commit_after_a_pause, job, 0, "holding the interpreter's lock")
    hear(channel)
    assert hear(channel).startswith("refused")
    channel.send(None)
    assert wait_for([sleeper]) == [0]
    with coordinator_for(job) as coordinator:
        coordinator.register_worker(1)
        assert reader_for(job, coordinator).process(lambda _: "") == job.chunks
