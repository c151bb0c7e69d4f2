"""Run by torchrun: a synchronous training loop, then a leased job, in which ranks kill themselves as planned."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from holdfast.coordinate import StreamCoordinator
from holdfast.errors import StaleLeaseError
from holdfast.order import Adaptive
from holdfast.sources import ArraySource
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

SAMPLES = 480
GLOBAL_BATCH = 12


def dataset() -> StreamDataset:
    return StreamDataset(ArraySource({"value": np.arange(SAMPLES)}), name="data", seed=5)


def dies_here(plan: dict[str, Any], what: str, rank: int, at: int) -> None:
    if plan.get("kills", {}).get(what) == [int(os.environ["TORCHELASTIC_RESTART_COUNT"]), rank, at]:
        os.kill(os.getpid(), signal.SIGKILL)


def train(plan: dict[str, Any], coordinator: StreamCoordinator) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(plan["folder"])
    config = StreamingConfig(
        batch_size=GLOBAL_BATCH // world,
        epochs=1,
        partition_strategy=Adaptive(rebalance_threshold=0.2),
        dynamic_balancing=True,
        checkpoint_path=folder / "state",
        checkpoint_interval=10**9,  # saved by hand, after every step that all ranks have made
    )
    loader = StreamingShardLoader(dataset(), config).with_coordinator(coordinator)
    begun = loader.step
    for batch in loader if begun != plan["stop_at"] else ():
        values = batch["value"][batch["__valid__"]] if "__valid__" in batch else batch["value"]
        with coordinator.working(len(values)):
            time.sleep(len(values) * (0.012 if rank == world - 1 else 0.003))  # the last rank is four times slower
        entry = {"values": values.tolist(), "share": loader.share, "rank": rank, "world": world}
        (folder / f"step-{loader.step - 1:04d}-{rank}.json").write_text(json.dumps(entry))
        dies_here(plan, "train", rank, loader.step)
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            loader.save()
        dist.barrier()
        if loader.step == plan["stop_at"]:
            break
    segments = [segment.to_json() for segment in loader.schedule.segments]
    about = {"begun": begun, "segments": segments}
    life = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"end-{plan['name']}-{life}-{rank}.json").write_text(json.dumps(about))


def lease(plan: dict[str, Any], coordinator: StreamCoordinator) -> None:
    rank, life = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    reader = coordinator.lease(dataset(), batch_size=4, chunk_size=8)
    mine = 0
    with (Path(plan["folder"]) / f"leased-{rank}-{life}.jsonl").open("a", buffering=1) as file:
        for chunk in reader:
            time.sleep(0.02)  # the work
            mine += 1
            dies_here(plan, "lease", rank, mine)
            try:
                chunk.commit(json.dumps([rank, life, chunk.token]))
            except StaleLeaseError:
                continue
            file.write(f"{chunk.chunk}\n")
    results = [[done.chunk, json.loads(done.payload)] for done in reader.results()]
    (Path(plan["folder"]) / f"results-{rank}.json").write_text(json.dumps(results))


def main(plan_file: str) -> None:
    plan = json.loads(Path(plan_file).read_text())
    # The documentation's own lines, with times that suit a test.
    quick = partial(StreamCoordinator, heartbeat=0.05, ttl=1.0, balance_interval=4)
    names: dict[str, Any] = {"dist": dist, "os": os, "hfast": SimpleNamespace(StreamCoordinator=quick)}
    exec(plan["set_up"], names)
    with names["coord"] as coordinator:
        train(plan, coordinator)
        if "lease" in plan["kills"]:
            lease(plan, coordinator)
    dist.destroy_process_group()
