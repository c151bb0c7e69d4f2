"""Several hosts with addresses of their own; a host is cut off for longer than the TTL and joined again mid-run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.coordinate_runs import DEADLINE, wait_until
from tests.faults.coordinate_worker import Job, dataset
from tests.faults.namespaces import Hosts, why_not

SCRIPT = Path(__file__).with_name("coordinate_host.py")
ROOT = SCRIPT.parents[2]
CUT_OFF = 2


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    hosts = Hosts(3)
    yield hosts
    hosts.close()


def start(hosts: Hosts, number: int, role: str, plan: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = hosts.command(number, [sys.executable, "-m", "tests.faults.coordinate_host", role, json.dumps(plan)])
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def committed(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("worker-*.jsonl") for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.endswith("}")]


def test_a_host_cut_off_and_joined_again_never_commits_what_another_did(hosts: Hosts, tmp_path: Path) -> None:
    store = start(hosts, 0, "store", {"folder": str(tmp_path), "address": hosts.address(0)})
    processes = [store]
    try:
        wait_until((tmp_path / "port").exists, "the store's port")
        job = Job(str(tmp_path), int((tmp_path / "port").read_text()), 2, host=hosts.address(0), seconds_a_sample=0.008)
        plans = [{"job": asdict(job), "rank": rank} for rank in range(2)]
        processes += [start(hosts, 1 + rank, "worker", plan) for rank, plan in enumerate(plans)]
        wait_until(lambda: all(len(list(tmp_path.glob(f"worker-{r}-1.jsonl"))) for r in range(2)), "both workers")
        wait_until(lambda: len(committed(tmp_path)) >= 10, "ten commits")
        hosts.cut(CUT_OFF)
        time.sleep(2.5 * job.ttl)  # the link is down for longer than the TTL: that is the fault
        hosts.heal(CUT_OFF)
        for process in processes[1:]:
            assert process.wait(DEADLINE) == 0
        commits, _ = start(hosts, 0, "commits", plans[0]).communicate(timeout=DEADLINE)
        records = {chunk: (token, payload.split(":")) for chunk, token, payload in json.loads(commits)}
        assert list(records) == list(range(job.chunks))  # in the store itself: each position committed, once
        order = dataset(job).order()
        for chunk, (token, (_, _, named, total)) in records.items():
            positions = np.arange(chunk * job.chunk_size, (chunk + 1) * job.chunk_size)
            assert (int(named), int(total)) == (token, int(order.locate(positions).index.sum()))
        entries = committed(tmp_path)
        assert any("lost" in entry for entry in entries), "the worker never noticed that it was cut off"
        told = [entry for entry in entries if "chunk" in entry]
        for entry in told:  # every yes that a worker ever heard is the record in the store, and no chunk has two
            assert (entry["token"], entry["pid"]) == (records[entry["chunk"]][0], int(records[entry["chunk"]][1][1]))
        assert len({entry["chunk"] for entry in told}) == len(told)
        # A commit whose answer was cut off counted without its worker knowing: one connection, so one at most.
        assert job.chunks - len(told) <= 1
    finally:
        for process in processes:
            process.kill()
            process.communicate()
