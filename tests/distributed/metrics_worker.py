"""One rank of the distributed metrics tests; run once by torchrun, told what to do by a list of JSON plans.

Every plan has its own process group, in which as many ranks take part as it says; the others wait for the next plan.

The data: 24 steps of 12 positions. A position decides its sample, through a fixed shuffle, and a sample decides its
dataset (three, one of them rare) and its metrics, of all six types. Rank r of n takes every n-th position of a step,
and reads it through a DataLoader, in the uninterrupted run one with two worker processes.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.utils.data import DataLoader, Dataset

from holdfast.errors import MetricError
from holdfast.metrics import (
    AggregationType,
    Metric,
    MetricsAggregator,
    StandardMetricTransform,
    collate_with_metrics,
    merge_state_dicts,
)
from holdfast.metrics.gather import gather_bytes

STEPS, STEP_SIZE = 24, 12
ORDER = np.random.default_rng(1).permutation(STEPS * STEP_SIZE)


class Samples(Dataset[dict[str, Any]]):
    """Samples by position in the shuffled order."""

    def __len__(self) -> int:
        return len(ORDER)

    def __getitem__(self, position: int) -> dict[str, Any]:
        index = int(ORDER[position])
        name = "rare" if index == 5 else ("wiki", "chat")[index % 3 == 0]
        generator = np.random.default_rng(index)
        transform = StandardMetricTransform()
        transform.set_dataset_name(name)
        sample = transform({"tokens": generator.integers(1, 99, int(generator.integers(1, 200)))})
        score = float(generator.normal() * np.exp(generator.normal() * 12))
        if index % 17 == 0:
            score = float("nan")
        values: dict[AggregationType, Any] = dict.fromkeys(AggregationType, score)
        values[AggregationType.CATEGORICAL_COUNT] = f"language {index % 7}"
        sample["metrics"] += [Metric(name, f"score_{kind.value}", value, kind) for kind, value in values.items()]
        return sample


def train(
    aggregator: MetricsAggregator, start: int, stop: int, rank: int, world_size: int, *, workers: int = 0
) -> None:
    """Aggregate a rank's share of some steps."""
    positions = [list(range(step * STEP_SIZE, (step + 1) * STEP_SIZE))[rank::world_size] for step in range(start, stop)]
    loader: DataLoader[Any] = DataLoader(
        Samples(), batch_sampler=positions, num_workers=workers, collate_fn=collate_with_metrics
    )
    for step, batch in enumerate(loader, start):
        aggregator.update(batch["metrics"], step=step)


def run_plan(plan: dict[str, Any], early: MetricsAggregator, rank: int, world_size: int) -> dict[str, Any]:
    """Do what the plan asks; the result is JSON."""
    folder = Path(plan["folder"])
    results: dict[str, Any] = {}

    whole = MetricsAggregator(recent_steps=8)
    train(whole, 0, STEPS, rank, world_size, workers=2)
    results["uninterrupted"] = repr(whole.get_metrics())

    middle = plan["stop_at"]
    half = MetricsAggregator(recent_steps=8)
    train(half, 0, middle, rank, world_size)
    (folder / f"state-{world_size}-{rank}.json").write_text(json.dumps(half.state_dict()))
    save({"metrics": half.as_stateful()}, checkpoint_id=folder / f"dcp-{world_size}")
    run_state = json.dumps(half.run_state_dict())
    if rank == 0:
        (folder / f"run-{world_size}.json").write_text(run_state)
    dist.barrier()

    again = MetricsAggregator(recent_steps=8)
    again.load_state_dict(json.loads((folder / f"state-{world_size}-{rank}.json").read_text()))
    train(again, middle, STEPS, rank, world_size)
    results["resumed_alike"] = repr(again.get_metrics())

    if plan["resume_from"]:
        before = plan["resume_from"]
        states = [json.loads((folder / f"state-{before}-{old}.json").read_text()) for old in range(before)]
        resumed = MetricsAggregator(recent_steps=8)
        resumed.load_state_dict(merge_state_dicts(states[rank::world_size]))
        train(resumed, middle, STEPS, rank, world_size)
        results["resumed"] = repr(resumed.get_metrics())

        from_dcp = MetricsAggregator(recent_steps=8)
        load({"metrics": from_dcp.as_stateful()}, checkpoint_id=folder / f"dcp-{before}")
        train(from_dcp, middle, STEPS, rank, world_size)
        results["resumed_from_dcp"] = repr(from_dcp.get_metrics())

        train(early, middle, STEPS, rank, world_size)
        results["resumed_from_run_state"] = repr(early.get_metrics())

    results["empty"] = MetricsAggregator().get_metrics()
    lonely = MetricsAggregator()
    if rank == world_size - 1:
        lonely.update([Metric("wiki", "lonely", 3, AggregationType.SUM)])
    results["lonely"] = lonely.get_metrics()

    conflicting = MetricsAggregator()
    conflicting.update([Metric("wiki", "m", 1, (AggregationType.SUM, AggregationType.MAX)[rank % 2])])
    try:
        conflicting.get_metrics()
    except MetricError as error:
        results["conflict"] = str(error)

    payload = bytes([rank]) * (rank * 1000)  # rank 0 has nothing to say
    at_once = list(gather_bytes(payload, world_size, None))
    one_by_one = list(gather_bytes(payload, world_size, None, at_once=0))
    results["gathered"] = [len(part) for part in at_once]
    results["gather_paths_agree"] = at_once == one_by_one
    return results


def follow(plan: dict[str, Any], rank: int) -> None:
    """Run a plan as one of its ranks, and leave the result in the plan's folder."""
    folder, world_size = Path(plan["folder"]), plan["ranks"]
    early = MetricsAggregator(recent_steps=8)
    if plan["resume_from"]:  # before this process belongs to a group
        early.load_state_dict(json.loads((folder / f"run-{plan['resume_from']}.json").read_text()))
    store = dist.FileStore(str(folder / f"store-{plan['name']}"), world_size)  # type: ignore[attr-defined]
    dist.init_process_group(plan["backend"], store=store, rank=rank, world_size=world_size)
    results = run_plan(plan, early, rank, world_size)
    (folder / f"result-{plan['name']}-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def main(plan_file: str) -> None:
    """Follow the plans one after the other."""
    rank, plans = int(os.environ["RANK"]), json.loads(Path(plan_file).read_text())
    everyone = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=200)
    )
    for plan in plans:
        if rank < plan["ranks"]:
            follow(plan, rank)
            everyone.set(f"{plan['name']}-{rank}", "done")
        everyone.wait([f"{plan['name']}-{each}" for each in range(plan["ranks"])])
