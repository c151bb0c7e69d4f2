"""Many fault schedules, several at once: what was inflicted, what was committed, and the seed of whatever went wrong.

``python -m tests.faults.coordinate_soak 1000 2000`` runs a thousand; ``… 1234 1235`` runs one of them again.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.faults.coordinate_runs import Outcome, draw_faults, run
from tests.faults.coordinate_worker import LOST, Job, dataset

AT_ONCE = 4
CHUNKS = Job("", 0, 1).chunks


@dataclass(slots=True)
class Tally:
    """What a series of schedules came to."""

    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, result: Outcome | Exception) -> None:
        self.schedules += 1
        if isinstance(result, Exception):
            self.failures[seed] = f"harness: {result!r}"
            return
        self.counts += result.inflicted
        self.counts["positions committed"] += len(result.committed) * Job("", 0, 1).chunk_size
        self.counts["chunks taken over"] += result.taken_over
        self.counts["commits refused"] += result.refused
        self.counts["workers that lost the store"] += result.exit_codes.count(LOST)
        wrong = problems(result)
        if wrong:
            self.failures[seed] = "; ".join([*wrong, str(result.faults), str(result.exit_codes)])
        self.counts["double commits"] += doubles(result)
        self.counts["positions lost"] += (result.chunks - len(set(result.committed))) * Job("", 0, 1).chunk_size

    def __str__(self) -> str:
        return f"{self.schedules} schedules, {len(self.failures)} failed: {dict(sorted(self.counts.items()))}"


def doubles(outcome: Outcome) -> int:
    """Return how many yeses were said beyond one a chunk, or to another than the one in the store."""
    return sum(count - 1 for count in outcome.accounts.values()) + len(outcome.unknown_commits)


def problems(outcome: Outcome) -> list[str]:
    """Return everything that went wrong in a run; nothing, if every position was committed exactly once."""
    wrong: list[str] = []
    if outcome.committed != list(range(outcome.chunks)):
        wrong.append(f"committed: {len(outcome.committed)} of {outcome.chunks}")
    if doubles(outcome):
        wrong.append(f"double commits: {outcome.unknown_commits or outcome.accounts.most_common(3)}")
    if any(code is None for code in outcome.exit_codes):
        wrong.append("a worker never ended")
    if any(code not in (0, -9, LOST) for code in outcome.exit_codes):
        wrong.append("a worker failed")
    job = Job("", 0, 1)
    order = dataset(job).order()
    for chunk, payload in outcome.payloads.items():
        positions = np.arange(chunk * job.chunk_size, (chunk + 1) * job.chunk_size)
        if int(payload.split(":")[3]) != int(order.locate(positions).index.sum()):
            wrong.append(f"chunk {chunk} was committed with other samples: {payload}")
    return wrong


def run_drawn(folder: Path, seed: int) -> Outcome:
    """Run the schedule of a seed."""
    generator = random.Random(seed)
    workers = generator.randint(2, 4)
    faults = draw_faults(generator, workers, CHUNKS)
    return run(folder / str(seed), faults, workers, replication=generator.randint(0, 2))


def _attempt(folder: Path, seed: int) -> tuple[int, Outcome | Exception]:
    try:
        result: Outcome | Exception = run_drawn(folder, seed)
        shutil.rmtree(folder / str(seed))
    except Exception as error:  # one broken schedule must not hide the other thousand
        result = error
    return seed, result


def soak(folder: Path, seeds: range, at_once: int = AT_ONCE) -> Tally:
    """Run the schedules of many seeds; progress and failures are printed as they come."""
    tally, began = Tally(), time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        for seed, result in pool.map(lambda seed: _attempt(folder, seed), seeds):
            tally.add(seed, result)
            if seed in tally.failures:
                print(f"seed {seed}: {tally.failures[seed]}", flush=True)
            if tally.schedules % 50 == 0 or tally.schedules == len(seeds):
                print(f"{time.monotonic() - began:.0f} s: {tally}", flush=True)
    return tally


if __name__ == "__main__":
    first, stop = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as temporary:
        outcome = soak(Path(temporary), range(first, stop), int(sys.argv[3]) if len(sys.argv) > 3 else AT_ONCE)
    sys.exit(bool(outcome.failures))
