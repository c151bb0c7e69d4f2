"""Many fault schedules, several at once: what was inflicted, what it came to, and the seed of whatever went wrong.

``python -m tests.faults.coordinate_soak 1000 2000`` runs a thousand; ``… 1234 1235`` runs one of them again. The kind
of store follows from the seed: TCPStore, Redis and etcd take turns.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

# Stores are killed here on purpose: keep torch's pages about it out of the way. Read when torch is loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from tests.faults.coordinate_schedule import Result, run_drawn
from tests.faults.coordinate_servers import KINDS, why_not

AT_ONCE = 4


def quick_folder() -> str | None:
    """Return a folder in memory, where there is one: processes are killed here, not machines, and disks are slow."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(slots=True)
class Tally:
    """What a series of schedules came to."""

    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, seed: int, result: Result | BaseException) -> None:
        self.schedules += 1
        if isinstance(result, BaseException):
            self.failures[seed] = f"harness: {result!r}"
            return
        self.counts += result.inflicted
        self.counts["lives"] += result.lives
        self.counts["generations"] += result.generations
        self.counts[f"schedules on {kind_of(seed)}"] += 1
        if result.problems:
            self.failures[seed] = "; ".join(result.problems)

    def __str__(self) -> str:
        return f"{self.schedules} schedules, {len(self.failures)} failed: {dict(sorted(self.counts.items()))}"


def kinds() -> list[str]:
    """Return the kinds of store that can be started here."""
    return [kind for kind in KINDS if why_not(kind) is None]


def kind_of(seed: int) -> str:
    """Return a seed's kind of store."""
    return kinds()[seed % len(kinds())]


def _attempt(folder: Path, seed: int) -> tuple[int, Result | BaseException]:
    try:
        result: Result | BaseException = run_drawn(folder, kind_of(seed), seed)
        shutil.rmtree(folder / f"{kind_of(seed)}-{seed}")
    except Exception as error:  # one broken schedule must not hide the other thousand
        result = error
    return seed, result


def soak(folder: Path, seeds: range, at_once: int = AT_ONCE, *, seconds: float = float("inf")) -> Tally:
    """Run the schedules of many seeds; progress and failures are printed as they come."""
    tally, began = Tally(), time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for seed, result in pool.map(lambda seed: _attempt(folder, seed), seeds):
                tally.add(seed, result)
                if seed in tally.failures:
                    print(f"seed {seed}: {tally.failures[seed]}", flush=True)
                if tally.schedules % 20 == 0 or tally.schedules == len(seeds):
                    print(f"{time.monotonic() - began:.0f} s: {tally}", flush=True)
                if time.monotonic() - began > seconds:
                    break
        finally:
            pool.shutdown(cancel_futures=True)  # also where it is told to end: not after all the other seeds
    return tally


if __name__ == "__main__":
    first, stop = int(sys.argv[1]), int(sys.argv[2])
    limit = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers must not outlive a soak that is cut short
    with tempfile.TemporaryDirectory(dir=quick_folder()) as temporary:
        parallel = int(sys.argv[3]) if len(sys.argv) > 3 else AT_ONCE
        outcome = soak(Path(temporary), range(first, stop), parallel, seconds=limit)
    print(outcome)
    sys.exit(bool(outcome.failures))
