"""Data-parallel runs in one process: real replicas, real gradient averaging, and the three faults of ranks.

Every replica has its own batch and its own copy of the model; after the backward pass the gradients are averaged, as
DDP does. A desynchronised rank keeps its own gradients; a slow one does more work a step; a hung one stops entering
collectives. The flight recorder is emulated: it lists the collectives the replicas entered.
"""

from __future__ import annotations

import time
import zlib
from typing import Any

import torch
from bench.faultlab.data import load_task
from bench.faultlab.models import build_model
from bench.faultlab.plan import RunSpec
from bench.faultlab.train import Record, learning_rate
from torch import nn

__all__ = ["run_replicas"]

STEPS = 48


def run_replicas(spec: RunSpec) -> Record:
    """Train replicas for a few steps and record per-rank times, parameter hashes and collectives."""
    torch.manual_seed(spec.seed)
    generator = torch.Generator().manual_seed(spec.seed)
    task = load_task(spec.data)
    world = 2 + spec.seed % 3
    models: list[nn.Module] = []
    for _ in range(world):
        torch.manual_seed(spec.seed)
        models.append(
            build_model(
                spec.family, task, width=spec.width, depth=spec.depth, norm=spec.norm, dropout=0.0, precision="fp32"
            )
        )
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1.0) for model in models]
    victim, first_bad = spec.seed % world, STEPS // 4 + spec.seed % (STEPS // 3)
    shards = [torch.randn(4, 4, generator=generator) for _ in range(world)]  # tensor-parallel: may differ between ranks
    record = Record()
    sequence = 0
    for step in range(STEPS):
        hung = spec.cause == "hung_rank" and step >= first_bad
        # Ranks take turns being first, and are timed by their own work: one process stands in for several machines.
        for turn in range(world):
            rank = (turn + step) % world
            model = models[rank]
            started = time.thread_time()
            chosen = torch.randint(0, len(task.inputs), (spec.batch,), generator=generator)
            repeats = 1
            if spec.cause == "slow_rank" and rank == victim and step >= first_bad // 2:
                repeats = int(spec.strength)
            for _ in range(repeats):
                outputs = model(task.inputs[chosen])
                targets = task.targets[chosen]
                if task.classes == 0:
                    loss = nn.functional.mse_loss(outputs[:, 0], targets)
                else:
                    loss = nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
                optimizers[rank].zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            record.add(f"step_time/rank{rank}", "step_time", step, time.thread_time() - started, replica=rank)
            if rank == 0:
                record.add("loss", "loss", step, float(loss.detach()))
        _average(spec, models, victim, step >= first_bad)
        for rank, model in enumerate(models):
            for group in optimizers[rank].param_groups:
                group["lr"] = learning_rate(spec, step * spec.steps // STEPS)
            optimizers[rank].step()
            if step % 2 == 0 and not hung and "rank_desync" in (spec.cause, spec.twin_of):
                for name, parameter in model.named_parameters():
                    record.add(
                        f"param_hash/{name}/rank{rank}", "param_hash", step, _hash(parameter), layer=name, replica=rank
                    )
                shards[rank] += 0.01
                record.add(
                    f"param_hash/shard.weight/rank{rank}",
                    "param_hash",
                    step,
                    _hash(shards[rank]),
                    layer="shard.weight",
                    replica=rank,
                    extra={"sharded": True},
                )
        sequence += 1
        if hung:
            break
    if "hung_rank" in (spec.cause, spec.twin_of):
        record.events.extend(_collectives(spec, world, victim, sequence))
    record.series["loss"].extra["first_bad_step"] = first_bad
    record.series["loss"].extra["victim"] = victim
    return record


def _average(spec: RunSpec, models: list[nn.Module], victim: int, broken: bool) -> None:
    parameters = [list(model.parameters()) for model in models]
    for number, group in enumerate(zip(*parameters, strict=True)):
        gradients = [p.grad for p in group if p.grad is not None]
        if not gradients:
            continue
        mean = torch.stack(gradients).mean(0)
        for rank, parameter in enumerate(group):
            bypassed = spec.cause == "rank_desync" and broken and rank == victim
            if bypassed and (spec.strength == 1.0 or number == 0):  # everything, or one parameter that was left out
                continue
            assert parameter.grad is not None
            parameter.grad.copy_(mean)


def _hash(tensor: torch.Tensor) -> float:
    return float(zlib.crc32(tensor.detach().numpy().tobytes()))


def _collectives(spec: RunSpec, world: int, victim: int, sequence: int) -> list[dict[str, Any]]:
    """What a flight recorder would hold at the end: the last collectives of every rank."""
    events: list[dict[str, Any]] = []
    ranks = tuple(range(world))
    for rank in ranks:
        stuck = spec.cause == "hung_rank"
        entered = sequence - 1 if stuck and rank == victim else sequence
        completed = sequence - 1 if stuck else sequence
        for number in range(max(1, entered - 8), entered + 1):
            state = "completed" if number <= completed else "started" if spec.strength == 1.0 else "scheduled"
            events.append(
                {
                    "type": "collective",
                    "replica": rank,
                    "group": "0",
                    "group_description": "default_pg",
                    "group_ranks": ranks,
                    "sequence": number,
                    "operation": "nccl:all_reduce",
                    "state": state,
                    "point_to_point": False,
                    "sizes": ((1024,),),
                    "time_created_ns": number * 10**9,
                    "timeout_ms": 600000,
                }
            )
        events.append(
            {
                "type": "collective_status",
                "replica": rank,
                "group": "0",
                "group_description": "default_pg",
                "group_ranks": ranks,
                "last_enqueued": entered,
                "last_started": entered,
                "last_completed": completed,
            }
        )
    return events
