"""A training job that is killed and resumed, again and again: run by test_stream_kill.

One launcher imports torch once and then forks real rank processes, which train a tiny model in step with each other
over gloo. Each rank notes what it received with one unbuffered write a step, so a SIGKILL loses nothing of the notes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from holdfast.order import Contiguous, HashBased, Partition, RoundRobin
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SAMPLES = 240
EPOCHS = 2


def partition_of(name: str) -> Partition:
    return {"round_robin": RoundRobin(), "contiguous": Contiguous(), "hash": HashBased(8)}[name]


def train(folder: Path, life: int, rank: int, world: int, batch: int, partition: str, workers: int) -> None:
    """One rank of one life of the job: resume from the newest state file, train to the end or until killed."""
    store = FileStore(str(folder / f"store-{life}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    dataset = StreamDataset(ArraySource({"index": np.arange(SAMPLES)}), name="a", seed=5)
    config = StreamingConfig(
        batch_size=batch,
        epochs=EPOCHS,
        last_batch="pad",
        num_workers=workers,
        partition_strategy=partition_of(partition),
        prefetch_buffer_size=32,
        checkpoint_interval=3 * world * batch,
        checkpoint_path=folder / "states",
    )
    loader = StreamingShardLoader(dataset, config)
    loader.resume()
    dist.barrier()  # nobody writes a new state before everybody has read the old one
    notes = os.open(folder / f"life-{life}-rank-{rank}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    note(notes, {"start": loader.step})
    weight = torch.zeros(1)
    for data in loader:
        note(notes, {"step": loader.step - 1, "samples": data["index"][data["__valid__"]].tolist()})
        gradient = data["index"].float().mean().reshape(1)
        dist.all_reduce(gradient)  # every rank has its batch of this step when anyone gets past here
        weight -= 1e-3 * gradient
    note(notes, {"done": loader.step})
    dist.barrier()


def note(descriptor: int, value: dict[str, Any]) -> None:
    os.write(descriptor, (json.dumps(value) + "\n").encode())


def run_life(folder: Path, life: int, plan: random.Random, partition: str, workers: int, seconds: float) -> bool:
    """Start a life at a random size, kill it at a random moment; say whether it reached the end before that."""
    world, batch = plan.choice([1, 2, 3]), plan.choice([2, 3, 5])
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                train(folder, life, rank, world, batch, partition, workers)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    # Most lives are killed some time after they have begun to train, a few while they still start.
    began = None if plan.random() < 0.8 else time.monotonic()
    allowed = plan.uniform(0.0, seconds)
    ended: set[int] = set()
    while len(ended) < world and (began is None or time.monotonic() - began < allowed):
        if began is None and (folder / f"life-{life}-rank-0.jsonl").exists():
            began = time.monotonic()
        ended |= {pid for pid in pids if pid not in ended and os.waitpid(pid, os.WNOHANG)[0] == pid}
        time.sleep(0.002)
    finished = len(ended) == world
    plan.shuffle(pids)
    for pid in pids:  # all at once, in any order: the machine is gone
        if pid not in ended:
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        if pid not in ended:
            os.waitpid(pid, 0)
    return finished


def main() -> None:
    """Run jobs until each reaches the end of its stream: ``stream_job.py FOLDER FIRST COUNT``."""
    root, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    for number in range(first, first + count):
        plan = random.Random(number)
        folder = root / f"job-{number}"
        folder.mkdir()
        partition, workers = plan.choice(["round_robin", "contiguous", "hash"]), plan.choice([0, 0, 0, 1])
        lives = 0
        # Later lives are given longer, so that every job ends however slow the machine is.
        while not run_life(folder, lives, plan, partition, workers, 0.1 * 1.3**lives):
            lives += 1
        print(json.dumps({"job": number, "lives": lives + 1, "partition": partition}), flush=True)


if __name__ == "__main__":
    main()
