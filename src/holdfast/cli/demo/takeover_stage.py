"""A worker is killed in the middle of its work, and the others finish it, each position exactly once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from holdfast.cli.demo import Row
from holdfast.errors import CoordinationError

__all__ = ["run"]

WORKERS = 3
PATIENCE = 120.0


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Lease positions to three processes, kill one, and count the commits."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in its __all__

    from holdfast.cli.demo.leaser import DOOMED, HOLDING, POSITIONS, TTL, open_reader

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    command = [sys.executable, "-m", "holdfast.cli.demo.leaser", str(folder), str(store.port)]
    workers = [
        subprocess.Popen([*command, str(rank), str(WORKERS + 1)], stdout=subprocess.PIPE, text=True)
        for rank in range(WORKERS)
    ]
    coordinator, reader = open_reader(folder, store.port, WORKERS, WORKERS + 1)
    try:
        with coordinator:
            deadline = time.monotonic() + PATIENCE
            store.wait([HOLDING], timedelta(seconds=PATIENCE))
            while len(reader.results()) < 30 and time.monotonic() < deadline:
                time.sleep(0.05)
            workers[DOOMED].kill()
            killed = time.monotonic()
            say(f"three processes lease {len(POSITIONS):,} positions; one killed with SIGKILL in the middle of a chunk")
            while not reader.is_finished():
                if time.monotonic() > deadline:
                    raise CoordinationError("the workers did not finish", committed=len(reader.results()))
                time.sleep(0.05)
            seconds = time.monotonic() - killed
            done = reader.results()
            reader.close()
        over = sum(int(worker.communicate(timeout=PATIENCE)[0] or 0) for worker in workers[DOOMED + 1 :])
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    by_rank = Counter(record.payload.split(":")[0] for record in done)
    committed = sum(int(record.payload.split(":")[2]) for record in done)
    once = committed == len(POSITIONS) and len({record.chunk for record in done}) == len(done)
    say(f"chunks committed by rank: {dict(sorted(by_rank.items()))}; taken over from the dead one: {over}")
    say(f"{committed:,} of {len(POSITIONS):,} positions, each once: {once}; done {seconds:.1f} s after the kill")
    measured = f"{committed:,} of {len(POSITIONS):,} positions once, {over} chunks taken over (TTL {TTL:.0f} s)"
    return [Row("a worker killed, its work taken over", measured, once and over > 0)]
