"""A training job that is killed and resumed, again and again: run by test_stream_kill.

One launcher imports torch once and then forks real rank processes, which train a tiny model in step with each other
over gloo. Each rank notes what it received with one unbuffered write a step, so a SIGKILL loses nothing of the notes.
The launcher prints a line of JSON for every life: its size, when it was killed, and whether that cut a save short.
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

from holdfast.order import Adaptive, Contiguous, HashBased, Partition, RangeBased, RoundRobin, Stratified
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SAMPLES = 240
EPOCHS = 2
WORLDS = (1, 2, 3)
BATCHES = (2, 3, 5)
PARTITIONS: dict[str, Partition] = {
    "round robin": RoundRobin(),
    "contiguous": Contiguous(),
    "hash": HashBased(8),
    "ranges": RangeBased(((100, SAMPLES), (0, 100))),
    "stratified": Stratified(np.arange(SAMPLES) % 7),
    "adaptive": Adaptive(Contiguous()),
}
# Most lives are killed some time after they have begun to train, some in the middle of saving, a few while they start.
MOMENTS = ("training", "training", "training", "saving", "saving", "starting")


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
        partition_strategy=PARTITIONS[partition],
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
    if rank == 0:
        loader.save(folder / "final")


def note(descriptor: int, value: dict[str, Any]) -> None:
    os.write(descriptor, (json.dumps(value) + "\n").encode())


def run_life(
    folder: Path, life: int, plan: random.Random, world: int, batch: int, partition: str, workers: int, seconds: float
) -> dict[str, Any]:
    """Start a life, kill it at a random moment, and say which; ``finished`` if it reached the end before that."""
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
    moment = plan.choice(MOMENTS)
    began = time.monotonic() if moment == "starting" else None
    allowed = plan.uniform(0.0, seconds)
    # The machine is gone: all at once, or one rank a little after the other, in any order.
    gaps = [plan.choice([0.0, 0.0, plan.uniform(0.0, 0.02)]) for _ in pids]
    waiting = set(pids)
    while waiting and (began is None or time.monotonic() - began < allowed):
        if began is None and (folder / f"life-{life}-rank-0.jsonl").exists():
            began = time.monotonic()
        waiting -= {pid for pid in waiting if ended(pid)}
        time.sleep(0.002)
    while moment == "saving" and waiting and not any((folder / "states").glob(".*.tmp")):
        waiting -= {pid for pid in waiting if ended(pid)}  # no sleep: saving takes a millisecond or so
    writer = pids[0]
    told = {"world": world, "batch": batch, "moment": moment if waiting else "finished"}
    plan.shuffle(pids)
    for pid, gap in zip(pids, gaps, strict=True):
        if pid in waiting:
            time.sleep(gap)
            os.kill(pid, signal.SIGKILL)
    for pid in waiting:
        os.waitpid(pid, 0)
    return {**told, "torn": any((folder / "states").glob(f".*.{writer}.tmp"))}


def ended(pid: int) -> bool:
    """Say whether a rank has ended, which it only may by reaching the end of the stream."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if found == pid and status != 0:
        sys.exit(f"a rank failed by itself, with status {status}")
    return found == pid


def main() -> None:
    """Run jobs until each reaches the end of its stream: ``stream_job.py FOLDER JOB…``."""
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    for number in map(int, sys.argv[2:]):
        plan = random.Random(number)
        folder = root / f"job-{number}"
        folder.mkdir()
        partition = list(PARTITIONS)[number % len(PARTITIONS)]
        life, world, finished = 0, 0, False
        while not finished:
            world = plan.choice([size for size in WORLDS if size != world])  # always another than before
            batch, workers = plan.choice(BATCHES), plan.choice([0, 0, 1, 2])
            # Later lives are given longer, so that every job ends however slow the machine is.
            told = run_life(folder, life, plan, world, batch, partition, workers, 0.1 * 1.3**life)
            finished = told["moment"] == "finished"
            print(json.dumps({"job": number, "life": life, "partition": partition, "workers": workers, **told}))
            sys.stdout.flush()
            life += 1


if __name__ == "__main__":
    main()
