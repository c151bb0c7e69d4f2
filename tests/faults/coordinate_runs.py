"""Runs a leased job in real processes under a schedule of faults, and counts what was committed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.faults.coordinate_worker import Job, connect, coordinator_for, host_store, lease_and_commit, reader_for

DEADLINE = 120.0

# Children are forked from one process that has torch loaded already: starting a worker takes milliseconds.
context: Any = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.faults.coordinate_worker"])

# Starting a process also asks after all others, and an exit code can be read only once: schedules that run side by side
# take turns.
_asking = threading.Lock()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a worker once ``after`` chunks are committed."""

    after: int
    kind: str  # kill, pause, join, slow, kill_all_but_one
    worker: int = 0


@dataclass(slots=True)
class Outcome:
    """What was counted after a run."""

    faults: list[Fault]
    chunks: int
    inflicted: Counter[str] = field(default_factory=Counter)
    committed: list[int] = field(default_factory=list)
    payloads: dict[int, str] = field(default_factory=dict)
    accounts: Counter[int] = field(default_factory=Counter)
    unknown_commits: list[tuple[int, int, int]] = field(default_factory=list)
    refused: int = 0
    taken_over: int = 0
    exit_codes: list[int | None] = field(default_factory=list)


def draw_faults(generator: random.Random, workers: int, chunks: int) -> list[Fault]:
    """Draw a schedule in which at least one worker is left in the end."""
    faults = [Fault(0, "slow", generator.randrange(workers))] if generator.random() < 0.3 else []
    if generator.random() < 0.15:
        return [*faults, Fault(generator.randrange(1, chunks), "kill_all_but_one", generator.randrange(workers))]
    spared = generator.randrange(workers)
    for _ in range(generator.randint(1, 4)):
        kind = generator.choice(["kill", "kill", "pause", "pause", "join"])
        worker = generator.randrange(workers)
        if kind == "kill" and worker == spared:
            kind = "pause"
        faults.append(Fault(generator.randrange(chunks * 3 // 4), kind, worker))
    return sorted(faults, key=lambda fault: fault.after)


class Host:
    """The process that holds the store."""

    def __init__(self) -> None:
        self.process, self.channel = start_talking(host_store)
        self.port: int = hear(self.channel)

    def close(self) -> None:
        if is_alive(self.process):
            self.channel.send(None)
            wait_for([self.process])


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = context.Process(target=target, args=arguments, daemon=True)
    with _asking:
        process.start()
    return process


def start_worker(job: Job, rank: int | None, slowness: float = 1.0) -> Any:
    return start(lease_and_commit, job, rank, slowness)


def start_talking(target: Callable[..., None], *arguments: Any) -> tuple[Any, Any]:
    """Start a process that gets one end of a pipe as its last argument; return it and the other end."""
    ours, theirs = context.Pipe()
    return start(target, *arguments, theirs), ours


def hear(channel: Any) -> Any:
    """Return what a process says next; a process that says nothing is an error, not a hang."""
    if not channel.poll(DEADLINE):
        raise TimeoutError("a process that says something")
    return channel.recv()


def is_alive(process: Any) -> bool:
    with _asking:
        return bool(process.is_alive())


def wait_for(processes: list[Any]) -> list[int | None]:
    """Return the exit codes of processes that end by themselves; None for one that does not."""
    with suppress(TimeoutError):
        wait_until(lambda: not any(map(is_alive, processes)), "processes that end")
    with _asking:
        return [process.exitcode for process in processes]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.005)


def run(folder: Path, faults: list[Fault], workers: int, **options: Any) -> Outcome:
    """Run one schedule to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    host = Host()
    try:
        job = replace(Job(str(folder), host.port, workers), **options)
        watching = connect(job)
        slow = {fault.worker for fault in faults if fault.kind == "slow"}
        processes = [start_worker(job, rank, 4.0 if rank in slow else 1.0) for rank in range(workers)]
        inflicted = Counter(slow=len(slow))
        for fault in (fault for fault in faults if fault.kind != "slow"):
            _wait_for_commits(watching, fault)
            _inflict(fault, job, processes, inflicted)
        exit_codes = wait_for(processes)
        return _count(job, faults, exit_codes, inflicted)
    finally:
        host.close()


def _wait_for_commits(watching: Any, fault: Fault) -> None:
    wait_until(lambda: bool(watching.add("holdfast/lease/job/committed", 0) >= fault.after), f"never {fault}")


def _inflict(fault: Fault, job: Job, processes: list[Any], inflicted: Counter[str]) -> None:
    if fault.kind == "join":
        processes.append(start_worker(job, None))
        inflicted["join"] += 1
        return
    if fault.kind == "kill_all_but_one":
        for number, process in enumerate(processes):
            if number != fault.worker:
                inflicted["kill"] += is_alive(process)
                process.kill()
        return
    process = processes[fault.worker]
    if not is_alive(process):
        return
    if fault.kind == "kill":
        process.kill()
        inflicted["kill"] += 1
        return
    with suppress(ProcessLookupError):  # it may end by itself at this very moment
        os.kill(process.pid, signal.SIGSTOP)
        inflicted["stop"] += 1
        wake = threading.Timer(1.8 * job.ttl, _wake, (process, inflicted))  # longer than the TTL: that is the fault
        wake.daemon = True
        wake.start()


def _wake(process: Any, inflicted: Counter[str]) -> None:
    if is_alive(process):  # it may have been killed in its sleep
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
            inflicted["resume"] += 1


def _count(job: Job, faults: list[Fault], exit_codes: list[int | None], inflicted: Counter[str]) -> Outcome:
    outcome = Outcome(faults, job.chunks, inflicted, exit_codes=exit_codes)
    with coordinator_for(job) as coordinator:
        coordinator.register_worker(coordinator.join())
        reader = reader_for(job, coordinator)
        results = reader.results()
    outcome.committed = [done.chunk for done in results]
    outcome.payloads = {done.chunk: done.payload for done in results}
    outcome.taken_over = sum(done.token > 1 for done in results)
    for account in Path(job.folder).glob("worker-*.jsonl"):
        for line in account.read_text().splitlines():
            entry = json.loads(line)
            if "refused" in entry:
                outcome.refused += 1
                continue
            outcome.accounts[entry["chunk"]] += 1
            _, pid, token, _ = outcome.payloads[entry["chunk"]].split(":")
            if (int(pid), int(token)) != (entry["pid"], entry["token"]):
                outcome.unknown_commits.append((entry["chunk"], entry["pid"], entry["token"]))
    return outcome
