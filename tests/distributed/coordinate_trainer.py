"""Run by torchrun: a synchronous training loop, or a leased job, in which a rank may kill itself in the first life."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
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


def dies_here(plan: dict[str, Any], rank: int, at: int) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and plan.get("kill") == [rank, at]:
        os.kill(os.getpid(), signal.SIGKILL)


def train(plan: dict[str, Any], coordinator: StreamCoordinator, store: Any) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Each life of the group has keys of its own, so that gloo does not call at the dead one's doors.
    life = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=life, rank=rank, world_size=world, timeout=timedelta(seconds=60))
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
    for batch in loader:
        values = batch["value"][batch["__valid__"]] if "__valid__" in batch else batch["value"]
        with coordinator.working(len(values)):
            time.sleep(len(values) * (0.012 if rank == world - 1 else 0.003))  # the last rank is four times slower
        entry = {"values": values.tolist(), "share": loader.share, "rank": rank, "world": world}
        (folder / f"step-{loader.step - 1:04d}-{rank}.json").write_text(json.dumps(entry))
        dies_here(plan, rank, loader.step)
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            loader.save()
        dist.barrier()
        if loader.step == plan["stop_at"]:
            break
    segments = [segment.to_json() for segment in loader.schedule.segments]
    about = {"begun": begun, "segments": segments, "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}
    (folder / f"end-{plan['name']}-{rank}.json").write_text(json.dumps(about))
    dist.destroy_process_group()


def lease(plan: dict[str, Any], coordinator: StreamCoordinator) -> None:
    rank, life = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    coordinator.register_worker(rank)
    reader = coordinator.lease(dataset(), batch_size=4, chunk_size=8)
    mine = 0
    with (Path(plan["folder"]) / f"leased-{rank}-{life}.jsonl").open("a", buffering=1) as file:
        for chunk in reader:
            time.sleep(0.02)  # the work
            mine += 1
            dies_here(plan, rank, mine)
            try:
                chunk.commit(json.dumps([rank, life, chunk.token]))
            except StaleLeaseError:
                continue
            file.write(f"{chunk.chunk}\n")
    results = [[done.chunk, json.loads(done.payload)] for done in reader.results()]
    (Path(plan["folder"]) / f"results-{rank}.json").write_text(json.dumps(results))


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    # torchrun's agent holds this store, so it outlives the workers it restarts.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
    world = int(os.environ["WORLD_SIZE"])
    with StreamCoordinator(store, world, heartbeat=0.05, ttl=1.0, balance_interval=4) as coordinator:
        if plan["mode"] == "train":
            train(plan, coordinator, store)
        else:
            lease(plan, coordinator)


if __name__ == "__main__":
    main()
