"""The jobs of ``trainers.py`` on Ray Train: with holdfast's stream, and with Ray Data's own iterator."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.integrations.trainer_job import GLOBAL_BATCH, SAVE_EVERY, Job, Life

ROOT = Path(__file__).resolve().parent.parent
MAX_WAIT = 60.0
"""Seconds."""


def live_all_on_ray(plan: Sequence[Life]) -> None:
    """Live the lives of a plan, each as one ``TorchTrainer`` that may not retry."""
    import ray

    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # as a runtime_env no idle worker could be used again
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    dead: set[str] = set()
    try:
        for life in plan:
            Path(life.folder).mkdir(exist_ok=True)
            if life.folder in dead:
                continue
            try:
                _live(life)
            except Exception as error:
                if not life.die_after:
                    dead.add(life.folder)
                    (Path(life.folder) / f"errors-{life.number}-0").write_text(str(error))
    finally:
        ray.shutdown()


def _live(life: Life) -> None:
    import ray.data
    from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    datasets: dict[str, Any] = {}
    if life.data == "usual":
        datasets["train"] = ray.data.range(life.samples).random_shuffle(seed=3)
    TorchTrainer(
        train,
        train_loop_config=asdict(life),
        scaling_config=ScalingConfig(num_workers=life.world, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(name="job", storage_path=life.folder, failure_config=FailureConfig(max_failures=0)),
        datasets=datasets,
        dataset_config=DataConfig(),
    ).fit()


def train(config: dict[str, Any]) -> None:
    """Train in a worker, from the newest checkpoint that Ray knows of."""
    import ray.train
    import torch

    from holdfast.integrations.ray_train import checkpoint, prepare

    life = Life(**config)
    context = ray.train.get_context()
    os.environ["RANK"] = str(context.get_world_rank())
    job = Job(life)
    optimizer = torch.optim.SGD(job.model.parameters(), lr=0.01)

    def step(index: torch.Tensor, number: int) -> torch.Tensor:
        if job.seen + 1 == life.die_after:
            _wait_until_known(life, number)
        loss = job.loss(index, number)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if life.data == "holdfast":
        stream = prepare(job.loader())
        while stream.step_number < life.steps:
            for batch in stream:
                stream.step(step(batch["index"], stream.step_number))
                if stream.step_number % SAVE_EVERY == 0:
                    with tempfile.TemporaryDirectory() as folder:
                        ray.train.report({}, checkpoint=checkpoint(stream, folder))
                if stream.step_number == life.steps:
                    return
        return
    for number, batch in _usual(life):
        step(batch, number)
        if (number + 1) % SAVE_EVERY == 0:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "step.json").write_text(json.dumps(number + 1))
                found = ray.train.Checkpoint.from_directory(folder) if context.get_world_rank() == 0 else None
                ray.train.report({}, checkpoint=found)


def _wait_until_known(life: Life, step: int) -> None:
    """Wait until Ray has written down every checkpoint that was reported, which it does every few seconds."""
    known, deadline = Path(life.folder) / "job" / "checkpoint_manager_snapshot.json", time.monotonic() + MAX_WAIT
    while time.monotonic() < deadline:
        if known.exists() and len(json.loads(known.read_text())["checkpoint_results"]) >= step // SAVE_EVERY:
            return
        time.sleep(0.1)


def _usual(life: Life) -> Iterator[tuple[int, Any]]:
    """Yield steps and batches as Ray's documentation does: the epoch of the checkpoint begins again."""
    import ray.train

    done, found = 0, ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            done = json.loads((Path(folder) / "step.json").read_text())
    shard = ray.train.get_dataset_shard("train")
    while done < life.steps:
        for batch in shard.iter_torch_batches(batch_size=GLOBAL_BATCH // life.world):
            yield done, batch["id"]
            done += 1
            if done == life.steps:
                return


if __name__ == "__main__":
    sys.exit("this is a part of trainers.py")
