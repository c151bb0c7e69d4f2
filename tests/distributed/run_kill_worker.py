"""One rank of runs that torchrun starts again whenever a rank is killed: run by test_run_kill_torchrun.

``run_kill_worker.py FOLDER SEED KILLS SECONDS STEPS KIND``, where the kind is replicated or sharded. Each of the first
lives draws a rank and a moment within these seconds after its ranks have joined, and trains one run after another until
a process of its own kills that rank, whatever it is doing. The life after them ends the run under way, and notes how
long it took.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tests.faults.run_job import train


def unfinished_run(folder: Path) -> int:
    """Return the first run that some rank has not ended; the same on all ranks."""
    found = [0]
    while all((folder / f"hash-{found[0]}-{rank}").exists() for rank in range(dist.get_world_size())):
        found[0] += 1
    dist.broadcast_object_list(found, src=0)
    return found[0]


def main(*given: str) -> None:
    """Live once."""
    folder, seed, kills, seconds = Path(given[0]), int(given[1]), int(given[2]), float(given[3])
    steps, sharded = int(given[4]), given[5] == "sharded"
    life, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    plan = random.Random(f"{seed}/{life}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    doomed, moment = plan.randrange(dist.get_world_size()), plan.uniform(0.0, seconds)
    if life < kills and rank == doomed:
        subprocess.Popen(["sh", "-c", f"sleep {moment}; kill -KILL {os.getpid()}"])
    began = time.monotonic()
    while True:
        number = unfinished_run(folder)
        told = train(folder / f"run-{number}", folder / f"notes-{number}-{rank}", steps=steps, sharded=sharded)
        (folder / f"hash-{number}-{rank}").write_text(told)
        dist.barrier()
        if life >= kills:
            (folder / f"seconds-{rank}").write_text(str(time.monotonic() - began))
            break
    dist.destroy_process_group()
