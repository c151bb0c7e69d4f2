"""A leased job under a supervisor, as Kubernetes or Slurm would run it, while its workers and its store die.

The supervisor starts a worker again whenever one has ended early, and a store whenever it was killed; that is all.
Whether everything was done exactly once is for ``coordinate_check`` to count.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.coordinate_check import problems
from tests.faults.coordinate_runs import DEADLINE, is_alive, start
from tests.faults.coordinate_servers import Server
from tests.faults.coordinate_worker import work_in_a_fleet

# What may happen, with how often.
FAULTS = {
    "kill a worker": 4,
    "pause a worker": 2,
    "add a worker": 1,
    "kill the store": 3,
    "kill every worker": 2,
    "kill both": 2,
    "lose everything": 2,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens once ``after`` outputs are there, in the job's first generation or a later one."""

    after: int
    kind: str
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """One schedule: everything about it follows from its seed."""

    folder: str
    kind: str
    workers: int
    faults: tuple[Fault, ...]
    replication: int = 1
    ttl: float = 1.0
    chunks: int = 28
    chunk_size: int = 8
    seconds_per_sample: float = 0.002


@dataclass(slots=True)
class Result:
    """What came of it."""

    inflicted: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    generations: int = 0
    problems: list[str] = field(default_factory=list)


def draw_plan(folder: Path, kind: str, seed: int) -> Plan:
    """Draw a schedule."""
    generator = random.Random(f"{kind}/{seed}")
    plan = Plan(str(folder), kind, generator.randint(2, 3), (), replication=generator.randint(0, 2))
    kinds = generator.choices(list(FAULTS), list(FAULTS.values()), k=generator.randint(1, 4))
    faults = [Fault(generator.randrange(plan.chunks * 3 // 4), kind) for kind in kinds]
    return Plan(**{**asdict(plan), "faults": tuple(sorted(faults, key=lambda fault: fault.after))})


class Fleet:
    """The supervisor."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.folder = Path(plan.folder)
        self.folder.mkdir(parents=True)
        self.server = Server(plan.kind, self.folder / "server")
        self.result = Result()
        self.generator = random.Random(plan.folder)
        self.workers: list[Any] = []
        self.paused: dict[int, float] = {}
        self.lives_at_last_loss = 0
        self.tell_address()

    def tell_address(self) -> None:
        temporary = self.folder / "address.tmp"
        temporary.write_text(self.server.address)
        temporary.rename(self.folder / "address")

    def run(self) -> Result:
        """Run to the end, then count."""
        try:
            for _ in range(self.plan.workers):
                self.start_worker()
            for fault in self.plan.faults:
                self.tend(
                    lambda fault=fault: (
                        self.outputs() >= fault.after
                        and (fault.generation == 1 or self.generations() >= fault.generation)
                    )
                )
                self.inflict(fault.kind)
            self.tend(lambda: not self.workers)
            self.result.generations = self.generations()
            self.result.problems += problems(
                self.folder,
                self.server.raw(),
                chunks=self.plan.chunks,
                chunk_size=self.plan.chunk_size,
                # Nobody began after the store was emptied: the last worker had finished before.
                may_forget=self.result.lives == self.lives_at_last_loss,
            )
            if not list(self.folder.glob("results-*.json")):
                self.result.problems.append("no worker listed the results")
            return self.result
        finally:
            for worker in self.workers:
                worker.kill()
            self.server.kill()

    def start_worker(self) -> None:
        self.result.lives += 1
        self.workers.append(start(work_in_a_fleet, asdict(self.plan)))

    def generations(self) -> int:
        return len(list((self.folder / "job").glob("generation-*")))

    def outputs(self) -> int:
        with suppress(FileNotFoundError):
            return sum(name.startswith("part-") for name in os.listdir(self.folder / "out"))
        return 0

    def tend(self, done: Any) -> None:
        """Start again whatever has ended early, until something is so."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end, f"never done: {self.plan.faults}, {self.outputs()} outputs"
            self.wake()
            for worker in [worker for worker in self.workers if not is_alive(worker)]:
                self.workers.remove(worker)
                if worker.exitcode != 0:  # 0: the job is finished
                    self.start_worker()
            time.sleep(0.03)

    def wake(self, *, all_of_them: bool = False) -> None:
        for pid, at in list(self.paused.items()):
            if all_of_them or time.monotonic() > at:
                del self.paused[pid]
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def inflict(self, kind: str) -> None:
        alive = [worker for worker in self.workers if is_alive(worker)]
        if kind in ("kill a worker", "pause a worker") and alive:
            worker = self.generator.choice(alive)
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL if kind == "kill a worker" else signal.SIGSTOP)
            if kind == "pause a worker":
                # Longer than the TTL: that is the fault.
                self.paused[worker.pid] = time.monotonic() + 1.8 * self.plan.ttl
        elif kind == "add a worker":
            self.start_worker()
        if kind in ("kill both", "lose everything", "kill every worker"):
            for worker in alive:
                worker.kill()
        if kind in ("kill both", "lose everything", "kill the store"):
            self.server.kill()
            if kind == "lose everything":
                self.server.forget()
            if kind == "lose everything" or self.plan.kind == "tcp":
                self.lives_at_last_loss = self.result.lives
            self.server.start()
            self.tell_address()
        self.result.inflicted[kind] += 1


def run_drawn(folder: Path, kind: str, seed: int) -> Result:
    """Run the schedule of a kind of store and a seed."""
    return Fleet(draw_plan(folder / f"{kind}-{seed}", kind, seed)).run()


def describe(result: Result) -> str:
    """Return a schedule's result in a line."""
    return json.dumps({"faults": dict(result.inflicted), "lives": result.lives, "problems": result.problems})
